"""Decide what to deploy, and state it as data: the winner with its figures, why nothing else wins, and what to do next.

`Answer.model_json_schema(mode="serialization")` describes it for programs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

import polars as pl
from pydantic import BaseModel, Field

from profiler.job.case import parse_only, setting_words
from profiler.results.cells import cells
from profiler.results.choice import HIGHER, Choice, Limit, Loser, cell_name, choose
from profiler.results.columns import COLUMNS, DERIVED, LIMITED_BY, Group, columns, names
from profiler.results.reading import chosen, versions_of_others
from profiler.results.reasons import Reason
from profiler.results.result import WITH_ENDS, ends_of
from profiler.results.warning_kinds import KINDS
from profiler.tables import numbers

Row = Mapping[str, Any]
BY = ("machine", "device", *names(Group.VERSIONS), "options", "calibrated")
"""Rows that agree in these and in their configuration are replicates of one another, be it in several runs."""
OBJECTIVES = {column.objective: column.name for column in COLUMNS.values() if column.objective}
"""By objective the figure that is to be as good as possible."""
FIGURES = {
    **{c.name: c for c in columns(Group.LATENCY, Group.CLOCKS, Group.SET_UP) if c.better},
    **{c.name: c for c in COLUMNS.values() if c.objective},
    **DERIVED,
}
"""Figures that an answer gives of each candidate."""


@dataclass(frozen=True)
class Request:
    """Ask what to deploy: of this model, pass and setting, among the cells that `only` selects."""

    model: str
    pass_: Annotated[str, Field(serialization_alias="pass")] = "inference"
    setting: str = ""
    """Setting of training or shape, as the column has it."""
    only: str = ""
    """As `--only` takes it, such as "engine=ort,precision=fp16"."""
    limits: tuple[Limit, ...] = ()
    objective: str = "latency"
    allow_uncalibrated: bool = False

    @property
    def subject(self) -> str:
        """Return what is asked about, like "resnet50 training, optimizer sgd"."""
        model = f"{self.model}{' training' if self.pass_ == 'training' else ''}"
        return ", ".join([model, *setting_words(self.setting)])

    def admitted(self) -> pl.Expr:
        """Return which cells the request leaves to choose from."""
        only = parse_only([self.only]) if self.only else None
        of = (pl.col("model") == self.model, pl.col("pass") == self.pass_, pl.col("setting") == self.setting)
        return pl.all_horizontal(*of, pl.lit(value=True) if only is None else chosen(only))

    def words(self) -> list[str]:
        """Return the options that ask for it, without those that have their default."""
        found, usual = ["--model", self.model], Request(self.model)
        for name in ("pass_", "setting", "only", "objective"):
            if (value := getattr(self, name)) != getattr(usual, name):
                found += [f"--{name.rstrip('_')}", value]
        found += [word for limit in self.limits for word in option(limit.figure, f"{limit.value:g}").split()]
        return [*found, *["--allow-uncalibrated"][: self.allow_uncalibrated]]


class Figure(BaseModel):
    """State a figure with its 95 % interval, where it has one."""

    value: float
    low: float | None
    high: float | None
    unit: str


class Candidate(BaseModel):
    """State a configuration with its figures; `name` is unique within an answer."""

    name: str
    engine: str
    variant: str
    precision: str
    calibrated: bool | None
    batch_size: int
    setting: str
    machine: str | None
    device: str | None
    versions: dict[str, str]
    """Versions of the software that it ran in, by column."""
    run_ids: list[str]
    case_ids: list[str]
    processes: int
    """How many gave figures; `failures` gave none."""
    failures: int
    figures: dict[str, Figure]
    base: str | None
    factor: Figure | None
    """How many times faster than the base."""
    verdict: str | None
    warnings: list[str]
    """Kinds."""


class Rejected(BaseModel):
    """State why a candidate was not chosen."""

    candidate: Candidate
    reasons: list[Reason]


class Relaxation(BaseModel):
    """State what one limit, the others kept, would have to be; `needed` is None where that alone admits nothing."""

    figure: str
    limit: float
    needed: float | None
    option: str | None
    admits: str | None


class Footnote(BaseModel):
    """State a kind of warning once, and which of the winner, its base and the runner-up carry it."""

    kind: str
    meaning: str
    of: list[str]


class Command(BaseModel):
    """State a shell command, and what it is for."""

    purpose: Literal["export", "replicates"]
    command: str


class Answer(BaseModel):
    """State what to deploy. Without a `winner` nothing meets the limits, and `nearest` misses them by the least.

    `tied`, `runner_up` and `nearest` are names in `losers`. `margin` is how many times worse the runner-up is. `close`
    are limits that the winner meets by little. `next` are commands that follow.
    """

    request: Request
    figure: str
    limits: list[Limit]
    """Those that were asked for, and the usual limit of the error."""
    winner: Candidate | None
    tied: list[str]
    replicates_to_settle: int | None
    runner_up: str | None
    margin: Reason | None
    close: list[Reason]
    losers: list[Rejected]
    nearest: str | None
    relaxations: list[Relaxation]
    footnotes: list[Footnote]
    next: list[Command] = []

    @property
    def candidates(self) -> list[Candidate]:
        """Return all that were compared, the winner first."""
        return [*([self.winner] if self.winner else []), *(loser.candidate for loser in self.losers)]


def recommend(results: pl.DataFrame, request: Request) -> Answer:
    """Return what to deploy by all rows of any number of runs; their columns are profiler.results.columns's."""
    every = cells_of(results)
    return make_answer(request, decide(every, request), every)


def cells_of(results: pl.DataFrame) -> pl.DataFrame:
    """Merge replicates on one machine with one set of versions."""
    # A replicate that failed does not tell; a run has one set of calibration data.
    calibrated = pl.coalesce("calibrated", pl.col("calibrated").max().over("run_id", "precision"))
    return cells(results.with_columns(calibrated=calibrated), BY)


def decide(every: pl.DataFrame, request: Request) -> Choice:
    """Choose among the cells of a request: for latency at the smallest batch size that meets the limits."""
    rows, figure = every.filter(request.admitted()), OBJECTIVES[request.objective]
    lost: tuple[Loser, ...] = ()
    for size in sorted(rows["batch_size"].unique()) if request.objective == "latency" else ():
        found = choose(rows.filter(batch_size=size), figure, request.limits, request.allow_uncalibrated)
        if found.winner is not None:
            return replace(found, losers=(*found.losers, *lost))
        lost += found.losers
    return choose(rows, figure, request.limits, request.allow_uncalibrated)


def make_answer(request: Request, choice: Choice, every: pl.DataFrame) -> Answer:
    """State a choice among `every` cell as data, without commands."""
    winner, runner_up = choice.winner, choice.runner_up
    rows = [*([winner] if winner else []), *(loser.cell for loser in choice.losers)]
    named = dict(zip(map(id, rows), _unique_names(rows), strict=True))
    losers = [
        Rejected(candidate=_candidate(loser.cell, named[id(loser.cell)]), reasons=list(loser.reasons))
        for loser in choice.losers
    ]
    return Answer(
        request=request,
        figure=choice.figure,
        limits=list(choice.limits),
        winner=_candidate(winner, named[id(winner)]) if winner else None,
        tied=[named[id(cell)] for cell in choice.tied],
        replicates_to_settle=choice.replicates_to_settle,
        runner_up=named[id(runner_up)] if runner_up else None,
        margin=choice.margin,
        close=[reason for limit in choice.limits if winner and (reason := limit.close(winner))],
        losers=losers,
        nearest=named[id(choice.nearest)] if choice.nearest else None,
        relaxations=[] if winner else [_relaxation(limit, choice, named) for limit in choice.limits],
        footnotes=_footnotes([(named[id(cell)], cell) for cell in (winner, runner_up) if cell], winner, every),
    )


def base_of(cell: Row, every: pl.DataFrame) -> Row | None:
    """Return the cell that a factor is over."""
    same = {key: cell[key] for key in ("pass", "batch_size", "setting", "machine", "device")}
    bases = every.filter(pl.col("is_base"), pl.col("status") == "ok", model=cell["model"])
    found = bases.filter(pl.col(key).eq_missing(pl.lit(value)) for key, value in same.items())
    return next((base for base in found.to_dicts() if set(base["run_ids"]) & set(cell["run_ids"])), None)


def _candidate(cell: Row, name: str) -> Candidate:
    others = versions_of_others([cell["engine"]])
    factor = {end: cell[f"factor{suffix}"] for end, suffix in (("value", ""), ("low", "_low"), ("high", "_high"))}
    shared = set(Candidate.model_fields) - {"name", "versions", "figures", "factor", "warnings"}
    return Candidate(
        name=name,
        versions={c: str(cell[c]) for c in names(Group.VERSIONS) if cell[c] and c not in others},
        figures={figure: _figure(cell, figure) for figure in FIGURES if cell[figure] is not None},
        factor=None if factor["value"] is None else Figure(**factor, unit="×"),
        warnings=cell["footnotes"] or [],
        **{key: cell[key] for key in shared},
    )


def _figure(cell: Row, name: str) -> Figure:
    low, high = (cell[end] for end in ends_of(name)) if name in WITH_ENDS else (None, None)
    return Figure(value=cell[name], low=low, high=high, unit=FIGURES[name].unit)


def _unique_names(rows: Sequence[Row]) -> list[str]:
    """Name cells by configuration, and by batch size, machine, run and number as far as that tells them apart."""
    found = [cell_name(row) for row in rows]
    for column, before in (("batch_size", ", batch "), ("machine", " on ")):
        if len({row[column] for row in rows}) > 1:
            found = [f"{name}{before}{row[column]}" for name, row in zip(found, rows, strict=True)]
    for endings in ([f" (run {row['run_ids'][0]})" for row in rows], [f", no. {at}" for at in range(1, len(rows) + 1)]):
        count = Counter(found)
        found = [name + ending if count[name] > 1 else name for name, ending in zip(found, endings, strict=True)]
    return found


def _relaxation(limit: Limit, choice: Choice, named: Mapping[int, str]) -> Relaxation:
    """Find what this limit would have to be for one that misses no other."""
    able = [
        (value, loser.cell)
        for loser in choice.losers
        if {(reason.code in ("over", "under"), reason.figure) for reason in loser.reasons} == {(True, limit.figure)}
        and (value := limit.measured(loser.cell)) is not None
    ]
    if not able:
        return Relaxation(figure=limit.figure, limit=limit.value, needed=None, option=None, admits=None)
    needed, cell = min(able, key=lambda pair: limit.excess(pair[0]))
    given = option(limit.figure, numbers.reachable(needed, up=limit.figure not in HIGHER))
    return Relaxation(figure=limit.figure, limit=limit.value, needed=needed, option=given, admits=named[id(cell)])


def option(figure: str, number: str) -> str:
    """Return the option that limits the figure to the number, like "--max-latency-ms p99=2.31"."""
    percentile = FIGURES[figure].percentile
    return f"{LIMITED_BY[figure]} {f'p{percentile}=' if percentile else ''}{number}"


def _footnotes(compared: list[tuple[str, Row]], winner: Row | None, every: pl.DataFrame) -> list[Footnote]:
    """Return each kind that the compared ones or the winner's base carry."""
    base = winner and not winner["is_base"] and base_of(winner, every)
    if base and base["case_ids"] not in [cell["case_ids"] for _, cell in compared]:
        compared = [*compared, (cell_name(base), base)]
    carried = numbers.grouped((kind, name) for name, cell in compared for kind in cell["footnotes"] or [])
    return [Footnote(kind=kind, meaning=KINDS[kind].meaning, of=of) for kind, of in carried.items() if kind in KINDS]
