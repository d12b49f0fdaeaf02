"""Merge the rows of results into cells: what every answer reads, and nothing below it.

A cell is a configuration (an engine's variant at a precision) of a model, pass, batch size and setting: its replicates
as one row, each figure with its 95 % interval, the factor over its base with its interval, one verdict, and footnotes.
Answers select, sort and render cells; none of them judges.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import polars as pl

from engines.catalog import ENGINES
from profiler.results.columns import COLUMNS, DERIVED, RESULTS, kind_of_warning
from profiler.results.ends import WITH_ENDS, ends_of
from profiler.results.set_up import set_up
from profiler.stats import intervals
from profiler.stats.intervals import Processes, common_spread, ratio_interval, spread_reach, verdict

GROUP = ["model", "pass", "batch_size", "setting"]
"""A deployment chooses within a group."""
CONFIGURATION = [*GROUP, "variant", "precision"]
OK = pl.col("status") == "ok"
_OWN_VERSIONS = {e.version.column for e in ENGINES.values() if e.version and e.version.from_proof}
_NOT_OF_BASES = {"options", "calibrated", *_OWN_VERSIONS}
"""Columns of `by` that tell configurations apart, whose base may have other values."""
_NOT_MERGED = {"run_id", "case_id", "replicate", "warnings"}
_SUMMED, _ANY = ("samples", "error_items"), ("throttled",)
CELLS: dict[str, pl.DataType] = {
    **{name: dtype for name, dtype in RESULTS.items() if name not in _NOT_MERGED},
    **dict.fromkeys(DERIVED, pl.Float64()),
    "processes": pl.Int64(),
    "failures": pl.Int64(),
    "run_ids": pl.List(pl.String()),
    "case_ids": pl.List(pl.String()),
    "footnotes": pl.List(pl.String()),
    "base": pl.String(),
    **dict.fromkeys(("factor", "factor_low", "factor_high"), pl.Float64()),
    "verdict": pl.String(),
}
"""The columns of `cells`: those of a row, merged; how many processes gave figures and how many failed; the kinds of
their warnings; and how the cell compares with its base."""
Row = Mapping[str, Any]


def cells(results: pl.DataFrame | pl.LazyFrame, by: Sequence[str] = ("run_id",)) -> pl.DataFrame:
    """Return one row a cell, in the order of the first rows; its columns are CELLS and `by`.

    `by` are columns that keep rows apart besides the configuration: each combination of their values has cells and
    bases of its own. Give all rows of a run: how far its replicates differ is estimated from all of them.

    A figure is the median over the processes that gave it, a percentile only where each of them did; texts are those
    of the first process that gave figures. A cell without figures has the status and reason of its first row.
    """
    rows = results.lazy().with_columns(**_derived()).collect().with_columns(_arms(results.lazy().collect()))
    keys = [*by, *(name for name in CONFIGURATION if name not in by)]
    merged = rows.group_by(keys, maintain_order=True).agg(
        *(_merged(name) for name in CELLS if name in rows.columns and name not in keys),
        OK.sum().cast(pl.Int64).alias("processes"),
        (~OK).sum().cast(pl.Int64).alias("failures"),
        pl.col("run_id").filter(OK | ~OK.any()).unique(maintain_order=True).alias("run_ids"),
        pl.col("case_id").filter(OK | ~OK.any()).unique(maintain_order=True).alias("case_ids"),
        kind_of_warning(pl.col("warnings").filter(OK).explode().drop_nulls())
        .unique(maintain_order=True)
        .alias("footnotes"),
        *(part for name in WITH_ENDS for part in _processes(name)),
    )
    for name in WITH_ENDS:
        merged = merged.with_columns(_ends(merged, name))
    return _against_bases(merged, by).select(*by, *(name for name in CELLS if name not in by))


def compared(both: pl.DataFrame, base: str = "_base", own: str = "", figure: str = "latency_ms") -> pl.DataFrame:
    """Return how many times less (of throughput more) each row's own figure is than its base's, and the verdict.

    `both` has the columns of two cells in each row, under the suffixes `base` and `own`; the result has `factor`,
    `factor_low`, `factor_high` and `verdict`, null where either lacks the figure. Without an interval the figure is
    taken as it is.
    """
    low, high = ends_of(figure) if figure in WITH_ENDS else (figure, figure)

    def side(suffix: str) -> tuple[Any, Any, Any]:
        middle, *ends = (both[f"{name}{suffix}"].cast(pl.Float64) for name in (figure, low, high))
        found = [each.fill_null(middle).fill_null(float("nan")).to_numpy() for each in (middle, *ends)]
        return found[0], found[1], found[2]

    is_rate = figure in COLUMNS and COLUMNS[figure].better == "more"
    first, second = (side(own), side(base)) if is_rate else (side(base), side(own))
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio, least, most = ratio_interval(first, second)
    clocks = zip(both[f"clock{base}"], both[f"clock{own}"], strict=True)
    margins = [intervals.margin(one if one == other else None) for one, other in clocks]
    verdicts = [
        None if np.isnan(a) else str(verdict(a, b, within)) for a, b, within in zip(least, most, margins, strict=True)
    ]
    figures = {"factor": ratio, "factor_low": least, "factor_high": most}
    return pl.DataFrame(figures).fill_nan(None).with_columns(pl.Series("verdict", verdicts, pl.String))


def with_base(frame: pl.DataFrame, bases: pl.DataFrame, by: Sequence[str] = ()) -> pl.DataFrame:
    """Join each cell with its base, whose columns end in `_base`: its group's, or that of its `reference_model`."""
    keys = [*(name for name in by if name not in _NOT_OF_BASES), "base_model"]
    keys += [name for name in GROUP[1:] if name not in by]
    bases = bases.with_columns(base_model="model").unique(keys, keep="first", maintain_order=True)
    frame = frame.with_columns(base_model=pl.coalesce("reference_model", "model"))
    return frame.join(bases, on=keys, how="left", suffix="_base", nulls_equal=True, maintain_order="left")


def _derived() -> dict[str, pl.Expr]:
    error = pl.when(pl.col("pass") == "training").then("gradient_error").otherwise("rel_l2_error")
    bound = pl.when(pl.col("pass") == "training").then("gradient_error")
    return {
        **set_up(),
        "error": error,
        "error_high": pl.coalesce(bound.otherwise("rel_l2_error_high"), error),
    }


def _merged(name: str) -> pl.Expr:
    column, dtype = pl.col(name), CELLS[name]
    known = column.filter(OK)
    if name in _SUMMED:
        return known.sum()
    if name in _ANY:
        return known.any()
    if name in COLUMNS and COLUMNS[name].percentile:
        return pl.when(known.null_count() == 0).then(known.median()).alias(name)
    if dtype.is_numeric():
        return known.median().cast(dtype)
    return column.get(OK.cast(pl.UInt8).arg_max())


def _spread_of(name: str) -> str:
    return "gpu_spread" if name == "gpu_ms" else "latency_spread"


def _arms(rows: pl.DataFrame) -> list[pl.Series]:
    """What each row's interval reaches beyond the spread between processes, on the log scale."""
    found = []
    for name in WITH_ENDS:
        sd, free = (rows[f"{_spread_of(name)}{end}"].fill_null(0.0).to_numpy() for end in ("", "_free"))
        reach = spread_reach(sd, free) * (1 + 1e-9)
        middle = rows[name].fill_null(float("nan")).to_numpy()
        for end, arm in zip(ends_of(name), ("below", "above"), strict=True):
            with np.errstate(divide="ignore", invalid="ignore"):
                own = np.nan_to_num(np.abs(np.log(rows[end].fill_null(rows[name]).fill_null(float("nan")) / middle)))
            found.append(pl.Series(f"{name} {arm}", np.where(own > reach, own, 0.0)))
    return found


def _processes(name: str) -> list[pl.Expr]:
    known = OK & (pl.col(name) > 0)
    value = pl.col(name).filter(known)
    return [
        value.count().cast(pl.Float64).alias(f"{name} count"),
        value.log().var().alias(f"{name} variance"),
        *(pl.col(f"{name} {arm}").filter(known).mean().alias(f"{name} {arm}") for arm in ("below", "above")),
    ]


def _ends(merged: pl.DataFrame, name: str) -> list[pl.Series]:
    """The interval of each cell's figure."""

    def numbers(column: str, missing: float = 0.0) -> Any:
        return merged[column].cast(pl.Float64).fill_null(missing).to_numpy()

    common = merged.select(pl.col("run_ids").list.len() == 1, run=pl.col("run_ids").list.first())
    several = merged.filter(merged[f"{name} count"] > 1)
    lent = {}
    for run in several["run_ids"].list.first().drop_nulls().unique():
        own = several.filter(pl.col("run_ids").list.len() == 1, pl.col("run_ids").list.first() == run)
        lent[run] = common_spread(*(own[f"{name} {of}"].to_numpy() for of in ("variance", "count")))
    of_run = np.array([lent.get(run, (0.0, 0.0)) if one else (0.0, 0.0) for one, run in common.iter_rows()]).reshape(
        -1, 2
    )
    processes = Processes(
        middle=np.log(np.where(numbers(name) > 0, numbers(name), 1.0)),
        count=np.maximum(numbers(f"{name} count"), 1.0),
        variance=numbers(f"{name} variance"),
        below=numbers(f"{name} below"),
        above=numbers(f"{name} above"),
        sd=numbers(_spread_of(name)),
        free=numbers(f"{_spread_of(name)}_free", 1.0),
        is_base=numbers("is_base"),
        common_sd=of_run[:, 0],
        common_free=of_run[:, 1],
    )
    is_known = merged[name] > 0
    return [
        pl.Series(end, np.exp(values)).to_frame().select(pl.when(is_known).then(pl.col(end)))[end]
        for end, values in zip(ends_of(name), processes.interval(), strict=True)
    ]


def _against_bases(merged: pl.DataFrame, by: Sequence[str]) -> pl.DataFrame:
    is_base = pl.col("is_base").fill_null(value=False)
    bases = merged.filter(is_base, OK)
    both = with_base(merged, bases, by)
    factors = compared(both)
    known, own = pl.col("factor").is_not_null(), pl.col("is_base").fill_null(value=False)
    name = pl.concat_str("variant_base", "precision_base", separator=" ")
    of = (
        pl.when(pl.col("reference_model").is_not_null()).then(pl.format("{} of {}", name, "base_model")).otherwise(name)
    )
    both = both.hstack(factors).with_columns(base=pl.when(known).then(of))
    ends = [pl.when(own & known).then(1.0).otherwise(end).alias(end) for end in ("factor", "factor_low", "factor_high")]
    return both.with_columns(*ends, verdict=pl.when(~own).then("verdict"))
