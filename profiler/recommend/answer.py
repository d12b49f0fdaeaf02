"""Decide what to deploy, and state it as data: the winner with its figures, why nothing else wins, and what to do next.

Every sentence is made of an Answer by writers.py; `Answer.model_json_schema()` describes it for programs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any, Literal

import polars as pl
from pydantic import BaseModel

from profiler.job.case import setting_words
from profiler.recommend.options import OBJECTIVES, Request
from profiler.results.cells import cells
from profiler.results.choice import HIGHER, Choice, Limit, Loser, cell_name, choose
from profiler.results.columns import COLUMNS, DERIVED, LIMITED_BY, Group, columns, names
from profiler.results.reading import versions_of_others
from profiler.results.reasons import Reason
from profiler.results.result import WITH_ENDS, ends_of
from profiler.results.warning_kinds import KINDS
from profiler.tables import numbers

Row = Mapping[str, Any]
BY = ("machine", "device", *names(Group.VERSIONS), "options", "calibrated")
"""Rows that agree in these and in their configuration are replicates of one another, be it in several runs."""
FIGURES = {
    **{c.name: c for c in columns(Group.LATENCY, Group.CLOCKS, Group.SET_UP) if c.better},
    **{c.name: c for c in COLUMNS.values() if c.objective},
    **DERIVED,
}
"""Figures that an answer gives of each candidate."""


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
    """Of the software that it ran in, by column."""
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


class Why(BaseModel):
    """State a reason as profiler.results.reasons.Reason does; `subject` is a candidate's name, `text` the words.

    `detail` is what a run said, such as why a case was not measured.
    """

    code: str
    subject: str
    figure: str
    value: float | None
    low: float | None
    high: float | None
    limit: float | None
    other: str
    have: float | None
    detail: str
    text: str


class Rejected(BaseModel):
    """State why a candidate was not chosen."""

    candidate: Candidate
    reasons: list[Why]


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

    purpose: Literal["export", "replicates", "samples"]
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
    margin: Why | None
    close: list[Why]
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
    every = cells_of(results, request.prices)
    return make_answer(request, decide(every, request), every)


def cells_of(results: pl.DataFrame, prices: Mapping[str, float]) -> pl.DataFrame:
    """Merge replicates on one machine with one set of versions; `prices` replace the runs' own, by machine."""
    usd_per_hour = pl.col("machine").replace_strict(prices, default=pl.col("usd_per_hour"), return_dtype=pl.Float64)
    items_per_hour = 3600 * pl.when(pl.col("throughput") > 0).then("throughput")
    # A replicate that failed does not tell; a run has one set of calibration data.
    calibrated = pl.coalesce("calibrated", pl.col("calibrated").max().over("run_id", "precision"))
    cost = 1e6 * usd_per_hour / items_per_hour
    rows = results.with_columns(usd_per_hour=usd_per_hour, usd_per_million_items=cost, calibrated=calibrated)
    return cells(rows, BY)


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
    rows = [*([choice.winner] if choice.winner else []), *(loser.cell for loser in choice.losers)]
    named = dict(zip(map(id, rows), _unique_names(rows), strict=True))

    def name(cell: Row | None) -> str | None:
        return None if cell is None else named[id(cell)]

    def why(cell: Row, reason: Reason) -> Why:
        return Why(**asdict(reason) | {"subject": named[id(cell)], "detail": reason.text, "text": str(reason)})

    winner, runner_up = choice.winner, choice.runner_up
    close = [reason for limit in choice.limits if winner and (reason := limit.close(winner))]
    return Answer(
        request=request,
        figure=choice.figure,
        limits=list(choice.limits),
        winner=_candidate(winner, named[id(winner)]) if winner else None,
        tied=[named[id(cell)] for cell in choice.tied],
        replicates_to_settle=choice.replicates_to_settle,
        runner_up=name(runner_up),
        margin=why(runner_up, choice.margin) if runner_up and choice.margin else None,
        close=[why(winner, reason) for reason in close] if winner else [],
        losers=[
            Rejected(
                candidate=_candidate(loser.cell, named[id(loser.cell)]),
                reasons=[why(loser.cell, reason) for reason in loser.reasons],
            )
            for loser in choice.losers
        ],
        nearest=name(choice.nearest),
        relaxations=[] if winner else [_relaxation(limit, choice, named) for limit in choice.limits],
        footnotes=_footnotes([(named[id(cell)], cell) for cell in (winner, runner_up) if cell], winner, every),
    )


def base_of(cell: Row, every: pl.DataFrame) -> Row | None:
    """Return the cell that another one's factor is over."""
    same = {key: cell[key] for key in ("pass", "batch_size", "setting", "machine", "device")}
    bases = every.filter(pl.col("is_base"), pl.col("status") == "ok", model=cell["reference_model"] or cell["model"])
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
    endings: list[Callable[[int], str]] = [lambda at: f" (run {rows[at]['run_ids'][0]})", lambda at: f", no. {at + 1}"]
    for ending in endings:
        count = Counter(found)
        found = [name + ending(at) if count[name] > 1 else name for at, name in enumerate(found)]
    return found


def _relaxation(limit: Limit, choice: Choice, named: Mapping[int, str]) -> Relaxation:
    """Find what this limit would have to be for one that misses no other."""
    able = [
        (value, loser.cell)
        for loser in choice.losers
        if {(reason.code in ("over", "under"), reason.figure) for reason in loser.reasons} == {(True, limit.figure)}
        and (value := limit.measured(loser.cell)) is not None
    ]
    needed, cell = min(able, key=lambda pair: limit.excess(pair[0]), default=(None, None))
    return Relaxation(
        figure=limit.figure,
        limit=limit.value,
        needed=needed,
        option=None if needed is None else option(limit.figure, needed),
        admits=None if cell is None else named[id(cell)],
    )


def option(figure: str, value: float) -> str:
    """Return the option whose limit a candidate with that value meets, like "--max-latency-ms p99=2.31"."""
    percentile = FIGURES[figure].percentile
    number = numbers.reachable(value, up=figure not in HIGHER)
    return f"{LIMITED_BY[figure]} {f'p{percentile}=' if percentile else ''}{number}"


def _footnotes(compared: list[tuple[str, Row]], winner: Row | None, every: pl.DataFrame) -> list[Footnote]:
    """Return each kind that the compared ones or the winner's base carry, and processes of theirs that failed."""
    base = winner and not winner["is_base"] and base_of(winner, every)
    if base and base["case_ids"] not in [cell["case_ids"] for _, cell in compared]:
        compared = [*compared, (cell_name(base), base)]
    carried = numbers.grouped((kind, name) for name, cell in compared for kind in cell["footnotes"] or [])
    found = [Footnote(kind=kind, meaning=KINDS[kind].meaning, of=of) for kind, of in carried.items() if kind in KINDS]
    failed = [(name, cell["failures"], cell["failures"] + cell["processes"]) for name, cell in compared]
    return found + [
        Footnote(kind="failed", meaning=f"{failures} of {total} processes gave no figures", of=[name])
        for name, failures, total in failed
        if failures
    ]


def subject(answer: Answer) -> str:
    """Return what an answer is of, like "resnet50 training, optimizer sgd"."""
    request = answer.request
    model = f"{request.model}{' training' if request.pass_ == 'training' else ''}"
    return ", ".join([model, *setting_words(request.setting)])
