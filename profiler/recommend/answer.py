"""Decide what to deploy: the request, the choice that answers it, and both as data."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any

import polars as pl

from profiler.job.case import parse_only, setting_words
from profiler.results.cells import OK, Row, cells
from profiler.results.choice import Choice, Limit, choose
from profiler.results.columns import COLUMNS, DERIVED, FIGURES, LIMITED_BY, Group, columns, names
from profiler.results.reading import chosen
from profiler.results.result import JUDGED, ends_of

BY = ("machine", "device", *names(Group.VERSIONS), "options", "calibrated")
"""Rows of one configuration that agree in these columns are replicates, in one run or several."""
OBJECTIVES = {column.objective: column.name for column in COLUMNS.values() if column.objective}
"""Map each objective to its figure."""
_FIGURES = [c.name for c in columns(Group.LATENCY, Group.CLOCKS, Group.SET_UP) if c.better]
_FIGURES += [figure for figure in (*OBJECTIVES.values(), *DERIVED, "factor") if figure not in _FIGURES]
_STATED = (
    *("name", "engine", "variant", "precision", "calibrated", "batch_size", "setting", "machine", "device", "gpu"),
    *(*names(Group.VERSIONS), "run_ids", "case_ids", "processes", "failures"),
    *(name for figure in _FIGURES for name in (figure, *(ends_of(figure) if figure in JUDGED else ()))),
    *("accuracy", "accuracy_items", "accuracy_loss", *ends_of("accuracy_loss")),
    *("factor_low", "factor_high", "base", "verdict", "footnotes"),
)
"""Columns of a cell in an answer."""


@dataclass(frozen=True)
class Request:
    """A question: what to deploy for this model, pass and setting, among the cells that `only` selects."""

    model: str
    pass_: str = "inference"
    setting: str = ""
    """Setting of training or shape, as the column has it."""
    only: str = ""
    """Conditions in the form of `--only`, such as "engine=ort,precision=fp16"."""
    limits: tuple[Limit, ...] = ()
    objective: str = "latency"
    allow_uncalibrated: bool = False

    @property
    def subject(self) -> str:
        """Name the model, pass and setting, like "resnet50 training, optimizer sgd"."""
        model = f"{self.model}{' training' if self.pass_ == 'training' else ''}"
        return ", ".join([model, *setting_words(self.setting)])

    def admitted(self) -> pl.Expr:
        """Return the filter for the cells to choose from."""
        only = parse_only([self.only]) if self.only else None
        place = (pl.col("model") == self.model, pl.col("pass") == self.pass_, pl.col("setting") == self.setting)
        return pl.all_horizontal(*place, pl.lit(value=True) if only is None else chosen(only))

    def words(self) -> list[str]:
        """Return the request as options of recommend, without defaults."""
        words, default = ["--model", self.model], Request(self.model)
        for name in ("pass_", "setting", "only", "objective"):
            if (value := getattr(self, name)) != getattr(default, name):
                words += [f"--{name.rstrip('_')}", value]
        for limit in self.limits:
            percentile = FIGURES[limit.figure].percentile
            value = f"{100 * limit.value:g}%" if FIGURES[limit.figure].unit == "points" else f"{limit.value:g}"
            words += [LIMITED_BY[limit.figure], f"{f'p{percentile}=' if percentile else ''}{value}"]
        return [*words, "--allow-uncalibrated"] if self.allow_uncalibrated else words


def recommend(results: pl.DataFrame, request: Request) -> Choice:
    """Choose what to deploy from all rows of any number of runs, with the columns of profiler.results.columns."""
    return decide(cells_of(results), request)


def cells_of(results: pl.DataFrame) -> pl.DataFrame:
    """Merge replicates of one machine and set of versions into cells."""
    # A failed replicate has no value: take it from the run, which has one set of calibration data.
    calibrated = pl.coalesce("calibrated", pl.col("calibrated").max().over("run_id", "precision"))
    return cells(results.with_columns(calibrated=calibrated), BY)


def decide(merged: pl.DataFrame, request: Request) -> Choice:
    """Choose among the cells of a request; for latency, take the smallest batch size that meets the limits."""
    rows, figure = merged.filter(request.admitted()), OBJECTIVES[request.objective]
    sizes = sorted(rows["batch_size"].unique()) if request.objective == "latency" else []
    for part in (*(rows.filter(pl.col("batch_size") <= size) for size in sizes), rows):
        choice = choose(_named(part), figure, request.limits, request.allow_uncalibrated)
        if choice.best is not None or choice.doubt is not None:
            break
    if choice.doubt is None or choice.doubt.code != "only-base" or choice.doubt.value:
        return choice
    left_out = merged.filter(replace(request, only="").admitted(), OK, ~pl.col("is_base"))
    is_left = left_out["batch_size"].is_in(rows["batch_size"].to_list()).any()
    return replace(choice, doubt=replace(choice.doubt, code="only-left")) if is_left else choice


def as_data(request: Request, choice: Choice, settle: str | None = None) -> dict[str, Any]:
    """Return an answer for JSON: `tied`, `runner_up` and `nearest` are names of losers.

    `settle` is the command that may settle the `doubt`.
    """
    question = asdict(request)
    return {
        "request": {"model": question.pop("model"), "pass": question.pop("pass_"), **question},
        "status": choice.status,
        "doubt": choice.doubt and {**asdict(choice.doubt), "command": settle},
        "figure": choice.figure,
        "limits": [asdict(limit) for limit in choice.limits],
        "best": choice.best and stated(choice.best),
        "winner": choice.winner and stated(choice.winner),
        "tied": [cell["name"] for cell in choice.tied],
        "runner_up": choice.runner_up and choice.runner_up["name"],
        "margin": choice.margin and asdict(choice.margin),
        "losers": [
            {**stated(loser.cell), "reasons": [asdict(reason) for reason in loser.reasons]} for loser in choice.losers
        ],
        "nearest": choice.nearest and choice.nearest["name"],
    }


def stated(cell: Row) -> dict[str, Any]:
    """Return a cell's name, configuration, machine, versions and figures, without unknown ones."""
    return {name: cell[name] for name in _STATED if cell[name] is not None}


def _named(rows: pl.DataFrame) -> pl.DataFrame:
    """Name cells by configuration, and by batch size, machine and run where these differ."""
    name = pl.concat_str("variant", "precision", separator=" ")
    for column, prefix in (("batch_size", ", batch "), ("machine", " on ")):
        if rows[column].n_unique() > 1:
            name = pl.concat_str(name, pl.lit(prefix), pl.col(column).cast(pl.String).fill_null("?"))
    run = pl.when(name.is_duplicated()).then(pl.format(" (run {})", pl.col("run_ids").list.first()))
    return rows.with_columns(name=pl.concat_str(name, run.otherwise(pl.lit(""))))
