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
from profiler.stats.intervals import Processes, processes_beyond, ratio_interval, spread_reach, verdict
from profiler.stats.samples import Floats
from profiler.tables.numbers import WIDEST

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
QUIET = OK & ~pl.col("warnings").list.eval(kind_of_warning(pl.element()) == DISTURBED).list.any()
"""True of processes beside no other work, which only adds time."""
_USABLE, _COUNTS = pl.col("usable"), pl.col("counts")
"""True of processes that show a cell's spread, which are quiet ones if there are any; true of those that give its
figures. A process that chose the cell was fast by luck, so it gives none once a confirming process does."""
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
    "latency_degrees": pl.Float64(),
}
"""The columns of `cells`: those of a row, merged; how many processes count, gave figures and failed; the kinds of
their warnings; how the cell compares with its base; and the degrees of freedom of its latency's interval."""


def cells(results: pl.DataFrame | pl.LazyFrame, by: Sequence[str] = ("run_id",)) -> pl.DataFrame:
    """Return one row a cell, in the order of the first rows; its columns are CELLS and `by`.

    Each combination of values in `by` has cells and bases of its own. A figure is the median over the processes that
    gave it, a percentile only where each of them did. It has no interval if the spread between processes is unknown.
    Texts come from the first process with figures, or else from the first row.
    """
    rows = results.lazy().with_columns(**_derived()).collect()
    keys = [*by, *(name for name in CONFIGURATION if name not in by)]
    rows = rows.with_columns(_arms(rows), usable=QUIET | (OK & ~QUIET.any().over(keys)))
    confirms = _USABLE & pl.col("confirming").fill_null(value=False)
    group = [name for name in keys if name not in ("variant", "precision")]
    rows = rows.with_columns(counts=confirms | (_USABLE & ~confirms.any().over(keys)))
    kinds = kind_of_warning(pl.col("warnings").filter(_COUNTS).explode().drop_nulls())
    merged = rows.group_by(keys, maintain_order=True).agg(
        *(_merged(name) for name in CELLS if name in rows.columns and name not in keys),
        *(pl.col(f"{n}_id").filter(OK | ~OK.any()).unique(maintain_order=True).alias(f"{n}_ids") for n in _IDS),
        *(part for name in WITH_ENDS for part in _processes(name)),
        processes=_COUNTS.sum().cast(pl.Int64),
        measured=OK.sum().cast(pl.Int64),
        failures=(~OK).sum().cast(pl.Int64),
        footnotes=kinds.unique(maintain_order=True),
        confirmed=(_COUNTS & pl.col("confirming").fill_null(value=False)).any(),
    )
    merged = merged.with_columns(tests=pl.when("confirmed").then(pl.col("confirmed").sum().over(group)))
    for name in WITH_ENDS:
        merged = merged.with_columns(_ends(merged, name))
    # A small call's device time is up to 6 % above its latency.
    device = pl.col("gpu_low_ms").clip(upper_bound=pl.col("latency_ms"))
    merged = merged.with_columns(
        pl.col("latency_low_ms").clip(DEVICE_BOUND * device),
        # The medians of rates and of prices are of different processes.
        **prices(pl.col("throughput"), pl.col("usd_per_hour")),
        latency_degrees=pl.col("latency_spread_free").fill_null(0.0) + pl.col("latency_ms seen") - 1,
    )
    return _against_bases(merged, by).select(*by, *(name for name in CELLS if name not in by))


def compared(both: pl.DataFrame, base: str = "_base", own: str = "", figure: str = "latency_ms") -> pl.DataFrame:
    """Return how many times less (of throughput more) each row's own figure is than its base's, and the verdict.

    `both` has the columns of two cells in each row, under the suffixes `base` and `own`; the result is null where
    either lacks the figure. If either has no interval, the factor has none and no verdict, unless the other side's
    interval is already too wide.
    """
    ends = ends_of(figure) if figure in WITH_ENDS else (figure, figure)

    def side(suffix: str) -> tuple[Any, Any, Any]:
        middle, low, high = (both[f"{name}{suffix}"].cast(pl.Float64) for name in (figure, *ends))
        parts = (
            part.fill_null(float("nan")).to_numpy() for part in (middle, low.fill_null(middle), high.fill_null(middle))
        )
        return tuple(parts)  # type: ignore[return-value]

    is_rate = figure in COLUMNS and COLUMNS[figure].better == "more"
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio, low, high = ratio_interval(side(own if is_rate else base), side(base if is_rate else own))
    is_known = ~np.logical_or.reduce([both[f"{ends[0]}{suffix}"].is_null().to_numpy() for suffix in (base, own)])
    low, high = (np.where(is_known | (high > WIDEST * low), end, np.nan) for end in (low, high))
    clocks = zip(both[f"clock{base}"], both[f"clock{own}"], strict=True)
    margins = [intervals.margin(one if one == other else None) for one, other in clocks]
    ends_and_margins = zip(low, high, margins, strict=True)
    verdicts = [None if np.isnan(least) else str(verdict(least, most, by)) for least, most, by in ends_and_margins]
    figures = {"factor": ratio, "factor_low": low, "factor_high": high}
    is_ratio = pl.col(pl.Float64).is_finite() & (pl.col(pl.Float64) > 0)  # A figure of 0 has no ratio.
    ratios = pl.DataFrame(figures).select(pl.when(is_ratio).then(pl.col(pl.Float64)))
    return ratios.with_columns(pl.Series("verdict", verdicts, pl.String))


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


def spread_of(name: str) -> str:
    """Return the column of the spread that a figure has."""
    return "gpu_spread" if name == "gpu_ms" else "latency_spread"


def own_arms(rows: pl.DataFrame) -> dict[str, tuple[Floats, Floats]]:
    """Return by figure how far each row's interval reaches down and up by itself, on the log scale.

    The spread between processes was added in squares, and is subtracted in squares.
    """
    by_figure = {}
    for name in WITH_ENDS:
        reach = spread_reach(*(_numbers(rows, f"{spread_of(name)}{end}") for end in ("", "_free")))
        ends = rows.select((pl.col(end) / pl.col(name)).log().fill_nan(None) for end in ends_of(name))
        arms = (_numbers(ends, end) for end in ends_of(name))
        low, high = (np.sqrt(np.maximum(np.where(np.isfinite(arm), arm, 0.0) ** 2 - reach**2, 0.0)) for arm in arms)
        by_figure[name] = low, high
    return by_figure


def _numbers(frame: pl.DataFrame, column: str, missing: float = 0.0) -> Floats:
    return frame[column].cast(pl.Float64).fill_null(missing).to_numpy()


def _arms(rows: pl.DataFrame) -> list[pl.Series]:
    arms = {name: zip(("below", "above"), of, strict=True) for name, of in own_arms(rows).items()}
    return [pl.Series(f"{name} {side}", arm) for name, of in arms.items() for side, arm in of]


def _processes(name: str) -> list[pl.Expr]:
    known = _COUNTS & (pl.col(name) > 0)
    value, seen = pl.col(name).filter(known), pl.col(name).filter(_USABLE & (pl.col(name) > 0))
    outside: pl.Expr = processes_beyond(value.count()).clip(0)
    share = outside - outside.floor()

    def end(from_top: bool) -> pl.Expr:
        two = value.log().sort(descending=from_top).slice(outside.cast(pl.UInt32), 2)
        return two.first() * (1 - share) + two.last() * share

    return [
        value.count().cast(pl.Float64).alias(f"{name} count"),
        seen.count().cast(pl.Float64).alias(f"{name} seen"),
        seen.log().var().alias(f"{name} variance"),
        end(from_top=False).alias(f"{name} lowest"),
        end(from_top=True).alias(f"{name} highest"),
        *(pl.col(f"{name} {arm}").filter(known).mean().alias(f"{name} {arm}") for arm in ("below", "above")),
    ]


def _ends(merged: pl.DataFrame, name: str) -> list[pl.Expr]:
    is_known, spread = merged[name].fill_null(0) > 0, spread_of(name)
    middle = np.log(np.where(is_known, _numbers(merged, name), 1.0))
    arms = {arm: _numbers(merged, f"{name} {arm}") for arm in ("below", "above")}
    low, high = Processes(
        middle=middle,
        count=np.maximum(_numbers(merged, f"{name} count"), 1.0),
        seen=np.maximum(_numbers(merged, f"{name} seen"), 1.0),
        sd=_numbers(merged, spread),
        free=_numbers(merged, f"{spread}_free"),
        tests=_numbers(merged, "tests", 1.0),
        **{part: _numbers(merged, f"{name} {part}") for part in ("variance", "lowest", "highest")},
        **arms,
    ).interval()
    # A process that is too wide by itself keeps its width, whatever the spread. A spread that is too wide says nothing.
    is_wide, is_alone = arms["below"] + arms["above"] > math.log(WIDEST), _numbers(merged, f"{name} count") == 1
    alone = middle - arms["below"], middle + arms["above"]
    low, high = np.where(is_wide & np.isnan(low), alone, (low, high))
    low, high = np.where(~is_wide & is_alone & (high - low > math.log(WIDEST)), np.nan, (low, high))
    ends = zip(ends_of(name), (low, high), strict=True)
    return [pl.when(is_known).then(pl.Series(np.exp(values)).fill_nan(None)).alias(end) for end, values in ends]


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
