"""Merge the rows of results into cells: what every answer reads, and nothing below it.

A cell is a configuration (an engine's variant at a precision) of a model, pass, batch size and setting: its replicates
as one row, each figure with its 95 % interval, the factor over its base with its interval, one verdict, and footnotes.
Answers select, sort and render cells; none of them judges.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
import polars as pl

from engines.catalog import ENGINES
from profiler.results.columns import COLUMNS, DERIVED, RESULTS, kind_of_warning, parts, prices
from profiler.results.result import WITH_ENDS, ends_of
from profiler.results.warning_kinds import DISTURBED
from profiler.stats import intervals
from profiler.stats.intervals import Processes, common_spread, processes_beyond, ratio_interval, spread_reach, verdict

Row = Mapping[str, Any]
Frame = TypeVar("Frame", pl.DataFrame, pl.LazyFrame)
GROUP = ["model", "pass", "batch_size", "setting"]
"""A deployment chooses within a group."""
CONFIGURATION = [*GROUP, "variant", "precision"]
PROBLEM = ("status", "model", "variant", "pass", "precision", "reason")
OUT_OF_MEMORY = "out of memory"
DEVICE_BOUND = 0.98
"""A call whose device works this share of its time or more does not wait for the host; none is much faster than it."""
_PLAIN_DIFFERS = 1.1
"""A plain call of ONNX Runtime that differs by this ratio has a figure of its own."""
_IDS, _SPLIT = ("run", "case"), ("once_s", "start_s")
OK = pl.col("status") == "ok"
_COUNTS = pl.col("counts")
"""True of the processes that make a cell: those beside other work, which only adds time, only where none was quiet."""
_LIBRARIES = {engine.version.column for engine in ENGINES.values() if engine.version}
_NOT_OF_BASES = {"options", "calibrated", "python", *_LIBRARIES} - {"torch_version"}
"""Columns of `by` that tell configurations apart, whose base, which is PyTorch's, may have other values."""
_SEARCH = ["run_id", "model", "variant", "pass", "precision", "setting"]
_NOT_MERGED = {"run_id", "case_id", "replicate", "warnings"}
CELLS: dict[str, pl.DataType] = {
    **{name: dtype for name, dtype in RESULTS.items() if name not in _NOT_MERGED},
    **dict.fromkeys(DERIVED, pl.Float64()),
    **dict.fromkeys(("processes", "measured", "failures"), pl.Int64()),
    **dict.fromkeys(("run_ids", "case_ids", "footnotes"), pl.List(pl.String())),
    "base": pl.String(),
    **dict.fromkeys(("factor", "factor_low", "factor_high"), pl.Float64()),
    "verdict": pl.String(),
}
"""The columns of `cells`: those of a row, merged; how many processes count, gave figures and failed; the kinds of
their warnings; and how the cell compares with its base."""


def cells(results: pl.DataFrame | pl.LazyFrame, by: Sequence[str] = ("run_id",)) -> pl.DataFrame:
    """Return one row a cell, in the order of the first rows; its columns are CELLS and `by`.

    Each combination of values in `by` has cells and bases of its own. Give all rows of a run: how far its replicates
    differ is estimated from all of them. A figure is the median over the processes that gave it, a percentile only
    where each of them did; texts are those of the first process that gave figures, or of the first row.
    """
    rows = results.lazy().with_columns(**_derived()).collect()
    keys = [*by, *(name for name in CONFIGURATION if name not in by)]
    quiet = OK & ~pl.col("warnings").list.eval(kind_of_warning(pl.element()) == DISTURBED).list.any()
    rows = rows.with_columns(*_arms(rows), counts=quiet | (OK & ~quiet.any().over(keys)))
    kinds = kind_of_warning(pl.col("warnings").filter(_COUNTS).explode().drop_nulls())
    merged = rows.group_by(keys, maintain_order=True).agg(
        *(_merged(name) for name in CELLS if name in rows.columns and name not in keys),
        *(pl.col(f"{n}_id").filter(OK | ~OK.any()).unique(maintain_order=True).alias(f"{n}_ids") for n in _IDS),
        *(part for name in WITH_ENDS for part in _processes(name)),
        processes=_COUNTS.sum().cast(pl.Int64),
        measured=OK.sum().cast(pl.Int64),
        failures=(~OK).sum().cast(pl.Int64),
        footnotes=kinds.unique(maintain_order=True),
    )
    for name in WITH_ENDS:
        merged = merged.with_columns(_ends(merged, name))
    # A small call's device time is up to 6 % above its latency.
    device = pl.col("gpu_low_ms").clip(upper_bound=pl.col("latency_ms"))
    merged = merged.with_columns(
        pl.col("latency_low_ms").clip(DEVICE_BOUND * device),
        # The medians of rates and of prices are of different processes.
        **prices(pl.col("throughput"), pl.col("usd_per_hour")),
    )
    return _against_bases(merged, by).select(*by, *(name for name in CELLS if name not in by))


def compared(both: pl.DataFrame, base: str = "_base", own: str = "", figure: str = "latency_ms") -> pl.DataFrame:
    """Return how many times less (of throughput more) each row's own figure is than its base's, and the verdict.

    `both` has the columns of two cells in each row, under the suffixes `base` and `own`; the result is null where
    either lacks the figure. Without an interval the figure is taken as it is.
    """
    ends = ends_of(figure) if figure in WITH_ENDS else (figure, figure)

    def side(suffix: str) -> tuple[Any, Any, Any]:
        middle, low, high = (both[f"{name}{suffix}"].cast(pl.Float64) for name in (figure, *ends))
        known = (each.fill_null(middle).fill_null(float("nan")).to_numpy() for each in (middle, low, high))
        return tuple(known)  # type: ignore[return-value]

    is_rate = figure in COLUMNS and COLUMNS[figure].better == "more"
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio, least, most = ratio_interval(side(own if is_rate else base), side(base if is_rate else own))
    clocks = zip(both[f"clock{base}"], both[f"clock{own}"], strict=True)
    margins = [intervals.margin(one if one == other else None) for one, other in clocks]
    ends_and_margins = zip(least, most, margins, strict=True)
    verdicts = [None if np.isnan(low) else str(verdict(low, high, within)) for low, high, within in ends_and_margins]
    figures = {"factor": ratio, "factor_low": least, "factor_high": most}
    return pl.DataFrame(figures).fill_nan(None).with_columns(pl.Series("verdict", verdicts, pl.String))


def largest(tries: pl.DataFrame) -> pl.DataFrame:
    """Return a row a configuration: the largest batch that fits, null if none does, and the smallest that does not."""
    size = pl.col("batch_size")
    most = size.filter(OK).max()
    refused = ~OK & (size > most.fill_null(0))
    first = refused & (size == size.filter(refused).min())
    is_full = (pl.col("status") == "oom") & ~pl.col("reason").str.starts_with("not tried").fill_null(value=False)
    why = pl.when(is_full).then(pl.lit(OUT_OF_MEMORY)).otherwise(pl.coalesce("reason", "status"))
    return tries.group_by(_SEARCH, maintain_order=True).agg(
        largest=most,
        peak_memory_mib=pl.col("peak_memory_mib").filter(OK & (size == most)).first(),
        refused=size.filter(first).first(),
        why=why.filter(first).first(),
    )


def not_measured(results: Frame, by: Sequence[str] = PROBLEM, *more: pl.Expr) -> Frame:
    """Return one row for all cases without figures that agree in `by`: their batch sizes, sorted, and `more`."""
    cases = results.filter(~OK).group_by(by, maintain_order=True)
    return cases.agg(pl.col("batch_size").unique().sort(), *more)


def warned(results: pl.DataFrame) -> pl.DataFrame:
    """Return one row a kind of warning: how many `cases` carry it, their `case_ids`, and the first one as `example`."""
    given = results.filter(OK).select("run_id", "case_id", example="warnings").explode("example").drop_nulls("example")
    return given.group_by(kind=kind_of_warning(pl.col("example")), maintain_order=True).agg(
        pl.struct("run_id", "case_id").n_unique().alias("cases"),
        pl.col("case_id").unique(maintain_order=True).alias("case_ids"),
        pl.first("example"),
    )


def _derived() -> dict[str, pl.Expr]:
    """Compute errors by pass, and set-up: once, kept for later, and at every start, in seconds.

    An engine that compiles in the process that runs the model, as torch.compile does, builds at every start.
    """
    compiles = pl.col("engine").is_in([engine.name for engine in ENGINES.values() if engine.compiles])
    whole, once = parts("set_up_s"), parts("once_s")

    def seconds(names: Sequence[str]) -> pl.Expr:
        return pl.when(pl.any_horizontal(pl.col(whole).is_not_null())).then(pl.sum_horizontal(names))

    def split(kept: Sequence[str]) -> tuple[pl.Expr, pl.Expr]:
        return seconds(kept), seconds([name for name in whole if name not in kept])

    each_start, ahead = split([name for name in once if name != "build_s"]), split(once)
    made = {name: pl.when(compiles).then(a).otherwise(b) for name, a, b in zip(_SPLIT, each_start, ahead, strict=True)}
    in_training = pl.col("pass") == "training"
    error = pl.when(in_training).then("gradient_error").otherwise("rel_l2_error")
    bound = pl.when(in_training).then("gradient_error").otherwise("rel_l2_error_high")
    plain = pl.col("proof").str.json_path_match("$.plain_run").cast(pl.Float64, strict=False)
    differs = plain.log().abs() > math.log(_PLAIN_DIFFERS)
    made["plain_run_ms"] = pl.when(differs).then(pl.col("latency_ms") * plain)
    errors = {"error": error, "error_high": pl.coalesce(bound, error)}
    # Rows of earlier versions have no bound.
    errors["rel_l2_error_high"] = pl.coalesce("rel_l2_error_high", "rel_l2_error")
    return {"set_up_s": seconds(whole), **made, **errors}


def _merged(name: str) -> pl.Expr:
    column, dtype = pl.col(name), CELLS[name]
    known = column.filter(_COUNTS)
    if name in ("samples", "error_items"):
        return known.sum()
    if name == "throttled":
        return known.any()
    if name in COLUMNS and COLUMNS[name].percentile:
        return pl.when(known.null_count() == 0).then(known.median()).alias(name)
    if dtype.is_numeric():
        return known.median().cast(dtype)
    return column.get(_COUNTS.cast(pl.UInt8).arg_max())


def _spread_of(name: str) -> str:
    return "gpu_spread" if name == "gpu_ms" else "latency_spread"


def _arms(rows: pl.DataFrame) -> list[pl.Series]:
    """Return what each row's interval reaches beyond the spread between processes, on the log scale."""
    found = []
    for name in WITH_ENDS:
        sd, free = (rows[f"{_spread_of(name)}{end}"].fill_null(0.0).to_numpy() for end in ("", "_free"))
        reach = spread_reach(sd, free) * (1 + 1e-9)
        middle = rows[name].fill_null(float("nan"))
        for end, arm in zip(ends_of(name), ("below", "above"), strict=True):
            own = (rows[end].fill_null(middle) / middle).log().abs().fill_nan(0.0).fill_null(0.0).to_numpy()
            found.append(pl.Series(f"{name} {arm}", np.where((own > reach) & np.isfinite(own), own, 0.0)))
    return found


def _processes(name: str) -> list[pl.Expr]:
    known = _COUNTS & (pl.col(name) > 0)
    value = pl.col(name).filter(known)
    outside: pl.Expr = processes_beyond(value.count()).clip(0)
    share = outside - outside.floor()

    def end(from_top: bool) -> pl.Expr:
        two = value.log().sort(descending=from_top).slice(outside.cast(pl.UInt32), 2)
        return two.first() * (1 - share) + two.last() * share

    return [
        value.count().cast(pl.Float64).alias(f"{name} count"),
        value.log().var().alias(f"{name} variance"),
        end(from_top=False).alias(f"{name} lowest"),
        end(from_top=True).alias(f"{name} highest"),
        *(pl.col(f"{name} {arm}").filter(known).mean().alias(f"{name} {arm}") for arm in ("below", "above")),
    ]


def _ends(merged: pl.DataFrame, name: str) -> list[pl.Expr]:
    def numbers(column: str, missing: float = 0.0) -> Any:
        return merged[column].cast(pl.Float64).fill_null(missing).to_numpy()

    count, variance, is_known = numbers(f"{name} count"), numbers(f"{name} variance"), merged[name].fill_null(0) > 0
    run = merged.select(pl.when(pl.col("run_ids").list.len() == 1).then(pl.col("run_ids").list.first()))["run_ids"]
    common = np.zeros((len(merged), 2))
    for own in (run.eq(one).fill_null(value=False).to_numpy() for one in run.drop_nulls().unique()):
        common[own] = common_spread(variance[own & (count > 1)], count[own & (count > 1)])
    processes = Processes(
        middle=np.log(np.where(is_known, numbers(name), 1.0)),
        count=np.maximum(count, 1.0),
        variance=variance,
        lowest=numbers(f"{name} lowest"),
        highest=numbers(f"{name} highest"),
        below=numbers(f"{name} below"),
        above=numbers(f"{name} above"),
        sd=numbers(_spread_of(name)),
        free=numbers(f"{_spread_of(name)}_free", 1.0),
        is_base=numbers("is_base"),
        common_sd=common[:, 0],
        common_free=common[:, 1],
    )
    ends = zip(ends_of(name), processes.interval(), strict=True)
    return [pl.when(is_known).then(pl.Series(np.exp(values))).alias(end) for end, values in ends]


def _against_bases(merged: pl.DataFrame, by: Sequence[str]) -> pl.DataFrame:
    is_base = pl.col("is_base").fill_null(value=False)
    keys = list(dict.fromkeys([*(name for name in by if name not in _NOT_OF_BASES), *GROUP]))
    bases = merged.filter(is_base, OK).unique(keys, keep="first", maintain_order=True)
    both = merged.join(bases, on=keys, how="left", suffix="_base", nulls_equal=True, maintain_order="left")
    both = both.hstack(compared(both))
    known = pl.col("factor").is_not_null()
    of = pl.concat_str("variant_base", "precision_base", separator=" ")
    ends = {end: pl.when(is_base & known).then(1.0).otherwise(end) for end in ("factor", "factor_low", "factor_high")}
    return both.with_columns(**ends, base=pl.when(known).then(of), verdict=pl.when(~is_base).then("verdict"))
