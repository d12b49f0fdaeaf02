"""Merge rows into cells. Every answer reads cells and nothing below them.

A cell merges all replicates of a configuration (a variant at a precision, for a model, pass, batch size and setting)
into one row: figures, the factor over its base, their 95 % intervals, one verdict, and footnotes. Answers select, sort
and render cells; they judge nothing.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import polars as pl

from engines.catalog import ENGINES
from profiler.results.columns import COLUMNS, DERIVED, FACTOR, RESULTS, kind_of_warning, parts, prices
from profiler.results.result import JUDGED, WITH_ENDS, ends_of
from profiler.results.warning_kinds import DISTURBED
from profiler.stats import intervals
from profiler.stats.intervals import Processes, processes_beyond, ratio_interval, spread_reach, verdict
from profiler.stats.samples import Floats
from profiler.tables.numbers import WIDEST

Row = Mapping[str, Any]
GROUP = ["model", "pass", "batch_size", "setting"]
"""Columns that identify a group. A deployment chooses one cell of a group."""
CONFIGURATION = [*GROUP, "variant", "precision"]
PROBLEM = ("status", "model", "variant", "pass", "precision", "reason")
OUT_OF_MEMORY = "out of memory"
DEVICE_BOUND = 0.98
"""If the device works for this share of a call, the call does not wait for the host. No latency is below this share of
the device's time."""
_PLAIN_DIFFERS = 1.1
"""Show the latency of a plain `session.run` if it differs from the row's latency by this ratio."""
OK = pl.col("status") == "ok"
FAULTS = ("failed", "oom", "timeout", "crashed")
"""Statuses of cases that were tried in vain."""
QUIET = OK & ~pl.col("warnings").list.eval(kind_of_warning(pl.element()) == DISTURBED).list.any()
"""True for processes that ran beside no other work, which only adds time."""
_USABLE = pl.col("usable")
"""True for processes that show a cell's spread: the quiet ones if there are any."""
_COUNTS = pl.col("counts")
"""True for processes that give a cell's figures: the confirming ones if there are any, since luck helped to choose the
earlier ones."""
_OF_ONE = ("accuracy", "accuracy_items", "accuracy_loss", *ends_of("accuracy_loss"))
"""Figures of a cell's first process alone, whether it counts or not."""
_LIBRARIES = {engine.version.column for engine in ENGINES.values() if engine.version}
_NOT_OF_BASES = {"options", "calibrated", "python", *_LIBRARIES} - {"torch_version"}
"""Columns of `by` that may differ between a configuration and its base, which is PyTorch's."""
_SEARCH = ["run_id", "model", "variant", "pass", "precision", "setting"]
_NOT_MERGED = {"run_id", "case_id", "replicate", "warnings"}
CELLS: dict[str, pl.DataType] = {
    **{name: dtype for name, dtype in RESULTS.items() if name not in _NOT_MERGED},
    **dict.fromkeys(DERIVED, pl.Float64()),
    **dict.fromkeys(("processes", "measured", "failures"), pl.Int64()),
    **dict.fromkeys(("run_ids", "case_ids", "footnotes"), pl.List(pl.String())),
    "base": pl.String(),
    **dict.fromkeys((*FACTOR, *ends_of("usd_per_million_items")), pl.Float64()),
    "verdict": pl.String(),
    "latency_degrees": pl.Float64(),
}
"""Columns of `cells`: a row's, merged; the numbers of processes that count, gave figures and failed; the kinds of their
warnings; the factor over the base and its verdict; the cost's ends; the latency interval's degrees of freedom."""


def cells(results: pl.DataFrame | pl.LazyFrame, by: Sequence[str] = ("run_id",)) -> pl.DataFrame:
    """Return one row per cell, with the columns CELLS and `by`, in the order of the first rows.

    Each combination of values in `by` has cells and bases of its own. A figure is the median over the processes that
    have it; a percentile is null unless all have it. A figure of unknown spread between processes has no interval.
    Texts come from the first process with figures, or else from the first row. A missing column, as in tables of
    earlier versions, is null.
    """
    absent = {name: pl.lit(None, RESULTS[name]) for name in RESULTS.keys() - results.collect_schema().names()}
    rows = results.lazy().with_columns(**absent).with_columns(**_derived()).collect()
    keys = [*by, *(name for name in CONFIGURATION if name not in by)]
    arms = [
        pl.Series(f"{name} {side}", arm)
        for name, below_and_above in own_arms(rows).items()
        for side, arm in zip(("below", "above"), below_and_above, strict=True)
    ]
    rows = rows.with_columns(arms, usable=QUIET | (OK & ~QUIET.any().over(keys)))
    is_confirming = pl.col("confirming").fill_null(value=False)
    confirms = _USABLE & is_confirming
    group = _group(by)
    rows = rows.with_columns(counts=confirms | (_USABLE & ~confirms.any().over(keys)))
    kinds = kind_of_warning(pl.col("warnings").filter(_COUNTS).explode().drop_nulls())
    merged = rows.group_by(keys, maintain_order=True).agg(
        *(_merged(name) for name in CELLS if name in rows.columns and name not in keys),
        pl.col("run_id", "case_id").filter(OK | ~OK.any()).unique(maintain_order=True).name.suffix("s"),
        *(part for name in WITH_ENDS for part in _processes(name)),
        processes=_COUNTS.sum().cast(pl.Int64),
        measured=OK.sum().cast(pl.Int64),
        failures=(~OK).sum().cast(pl.Int64),
        footnotes=kinds.unique(maintain_order=True),
        confirmed=(_COUNTS & is_confirming).any(),
    )
    merged = merged.with_columns(tests=pl.when("confirmed").then(pl.col("confirmed").sum().over(group)))
    for name in WITH_ENDS:
        merged = merged.with_columns(_ends(merged, name))
    # Cap it, since a small call's device time is up to 6 % above its latency.
    device = pl.col("gpu_low_ms").clip(upper_bound=pl.col("latency_ms"))
    merged = merged.with_columns(
        pl.col("latency_low_ms").clip(DEVICE_BOUND * device),
        # Not the median of prices, which may be of another process than the median rate.
        **prices(pl.col("throughput"), pl.col("usd_per_hour")),
        **{
            end: prices(pl.col(of), pl.col("usd_per_hour"))["usd_per_million_items"]
            for end, of in zip(ends_of("usd_per_million_items"), reversed(ends_of("throughput")), strict=True)
        },
        latency_degrees=pl.col("latency_spread_free").fill_null(0.0) + pl.col("latency_ms usable") - 1,
    )
    return _against_bases(merged, by).select(*by, *(name for name in CELLS if name not in by))


def compared(both: pl.DataFrame, base: str = "_base", side: str = "", figure: str = "latency_ms") -> pl.DataFrame:
    """Return each row's factor over its base, above 1 if it is better, with its interval and verdict.

    `both` has the columns of two cells in each row, under the suffixes `base` and `side`. A factor is null if either
    lacks the figure. It has neither interval nor verdict if either lacks an interval, unless the other's interval is
    already too wide.
    """
    ends = ends_of(figure) if figure in JUDGED else (figure, figure)

    def values(suffix: str) -> tuple[Any, Any, Any]:
        middle, low, high = (both[f"{name}{suffix}"].cast(pl.Float64) for name in (figure, *ends))
        parts = (middle, low.fill_null(middle), high.fill_null(middle))
        return tuple(part.fill_null(float("nan")).to_numpy() for part in parts)  # type: ignore[return-value]

    is_rate = figure in COLUMNS and COLUMNS[figure].better == "more"
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio, low, high = ratio_interval(values(side if is_rate else base), values(base if is_rate else side))
    has_ends = ~np.logical_or.reduce([both[f"{ends[0]}{suffix}"].is_null().to_numpy() for suffix in (base, side)])
    low, high = (np.where(has_ends | (high > WIDEST * low), end, np.nan) for end in (low, high))
    clocks = zip(both[f"clock{base}"], both[f"clock{side}"], strict=True)
    margins = [intervals.margin(first if first == second else None) for first, second in clocks]
    ends_and_margins = zip(low, high, margins, strict=True)
    verdicts = [None if np.isnan(a) else str(verdict(a, b, margin)) for a, b, margin in ends_and_margins]
    figures = {"factor": ratio, "factor_low": low, "factor_high": high}
    is_ratio = pl.col(pl.Float64).is_finite() & (pl.col(pl.Float64) > 0)  # A figure of 0 has no ratio.
    ratios = pl.DataFrame(figures).select(pl.when(is_ratio).then(pl.col(pl.Float64)))
    return ratios.with_columns(pl.Series("verdict", verdicts, pl.String))


def largest(tries: pl.DataFrame) -> pl.DataFrame:
    """Return each configuration's largest batch that fits, null if none does, and the next one, which does not."""
    size = pl.col("batch_size")
    fitting = size.filter(OK).max()
    refused = ~OK & (size > fitting.fill_null(0))
    first = refused & (size == size.filter(refused).min())
    is_full = (pl.col("status") == "oom") & ~pl.col("reason").str.starts_with("not tried").fill_null(value=False)
    why = pl.when(is_full).then(pl.lit(OUT_OF_MEMORY)).otherwise(pl.coalesce("reason", "status"))
    return tries.group_by(_SEARCH, maintain_order=True).agg(
        largest=fitting,
        peak_memory_mib=pl.col("peak_memory_mib").filter(OK & (size == fitting)).first(),
        refused=size.filter(first).first(),
        why=why.filter(first).first(),
    )


def not_measured(results: pl.DataFrame, by: Sequence[str] = PROBLEM, *further: pl.Expr) -> pl.DataFrame:
    """Group the cases without figures by these columns; return their sorted batch sizes and `further` aggregates."""
    cases = results.filter(~OK).group_by(by, maintain_order=True)
    return cases.agg(pl.col("batch_size").unique().sort(), *further)


def warned(results: pl.DataFrame) -> pl.DataFrame:
    """Return one row per kind of warning: the number of `cases`, their `case_ids`, and the first text as `example`."""
    texts = results.filter(OK).select("run_id", "case_id", example="warnings").explode("example").drop_nulls("example")
    return texts.group_by(kind=kind_of_warning(pl.col("example")), maintain_order=True).agg(
        pl.struct("run_id", "case_id").n_unique().alias("cases"),
        pl.col("case_id").unique(maintain_order=True).alias("case_ids"),
        pl.first("example"),
    )


def _derived() -> dict[str, pl.Expr]:
    """Return expressions for errors by pass and set-up seconds.

    An engine that compiles as it runs builds at every start.
    """
    compiles = pl.col("engine").is_in([engine.name for engine in ENGINES.values() if engine.compiles])
    is_known = pl.any_horizontal(pl.col(parts("set_up_s")).is_not_null())
    builds = {"set_up_s": pl.lit(value=True), "once_s": ~compiles, "start_s": compiles}
    terms = {
        whole: [pl.when(builds_then).then("build_s"), *(pl.col(part) for part in parts(whole) if part != "build_s")]
        for whole, builds_then in builds.items()
    }
    in_training = pl.col("pass") == "training"
    error = pl.when(in_training).then("gradient_error").otherwise("rel_l2_error")
    # Rows of earlier versions have no bound.
    bound = pl.coalesce("rel_l2_error_high", "rel_l2_error")
    plain = pl.col("proof").str.json_path_match("$.plain_run").cast(pl.Float64, strict=False)
    differs = plain.log().abs() > math.log(_PLAIN_DIFFERS)
    return {
        **{whole: pl.when(is_known).then(pl.sum_horizontal(seconds)) for whole, seconds in terms.items()},
        "plain_run_ms": pl.when(differs).then(pl.col("latency_ms") * plain),
        "error": error,
        "error_high": pl.when(in_training).then("gradient_error").otherwise(bound),
        "rel_l2_error_high": bound,
    }


def _merged(name: str) -> pl.Expr:
    column, dtype = pl.col(name), CELLS[name]
    counted = column.filter(_COUNTS)
    if name in _OF_ONE:
        return column.get(pl.sum_horizontal(pl.col("accuracy_loss", "accuracy").is_not_null()).arg_max())
    if name in ("samples", "error_items"):
        return counted.sum()
    if name == "throttled":
        return counted.any()
    if name in COLUMNS and COLUMNS[name].percentile:
        return pl.when(counted.null_count() == 0).then(counted.median()).alias(name)
    if dtype.is_numeric():
        return counted.median().cast(dtype)
    return column.get(_COUNTS.cast(pl.UInt8).arg_max())


def spread_of(name: str) -> str:
    """Return the column of a figure's spread."""
    return "gpu_spread" if name == "gpu_ms" else "latency_spread"


def own_arms(rows: pl.DataFrame) -> dict[str, tuple[Floats, Floats]]:
    """Return by figure the lower and upper arms of each row's interval, by its process alone, on the log scale.

    The spread between processes was added in squares, so it is subtracted in squares.
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


def _processes(name: str) -> list[pl.Expr]:
    counts = _COUNTS & (pl.col(name) > 0)
    value, usable = pl.col(name).filter(counts), pl.col(name).filter(_USABLE & (pl.col(name) > 0))
    outside: pl.Expr = processes_beyond(value.count()).clip(0)
    share = outside - outside.floor()

    def end(from_top: bool) -> pl.Expr:
        two = value.log().sort(descending=from_top).slice(outside.cast(pl.UInt32), 2)
        return two.first() * (1 - share) + two.last() * share

    return [
        value.count().cast(pl.Float64).alias(f"{name} count"),
        usable.count().cast(pl.Float64).alias(f"{name} usable"),
        usable.log().var().alias(f"{name} variance"),
        end(from_top=False).alias(f"{name} lowest"),
        end(from_top=True).alias(f"{name} highest"),
        *(pl.col(f"{name} {arm}").filter(counts).mean().alias(f"{name} {arm}") for arm in ("below", "above")),
    ]


def _ends(merged: pl.DataFrame, name: str) -> list[pl.Expr]:
    is_known, spread = merged[name].fill_null(0) > 0, spread_of(name)
    middle = np.log(np.where(is_known, _numbers(merged, name), 1.0))
    arms = {arm: _numbers(merged, f"{name} {arm}") for arm in ("below", "above")}
    low, high = Processes(
        middle=middle,
        count=np.maximum(_numbers(merged, f"{name} count"), 1.0),
        usable=np.maximum(_numbers(merged, f"{name} usable"), 1.0),
        sd=_numbers(merged, spread),
        free=_numbers(merged, f"{spread}_free"),
        tests=_numbers(merged, "tests", 1.0),
        **{part: _numbers(merged, f"{name} {part}") for part in ("variance", "lowest", "highest")},
        **arms,
    ).interval()
    # Keep an interval that is too wide by the processes alone, even if their spread is unknown. Drop an interval of a
    # single process if only the spread makes it too wide.
    is_wide, is_single = arms["below"] + arms["above"] > math.log(WIDEST), _numbers(merged, f"{name} count") == 1
    without_spread = middle - arms["below"], middle + arms["above"]
    low, high = np.where(is_wide & np.isnan(low), without_spread, (low, high))
    low, high = np.where(~is_wide & is_single & (high - low > math.log(WIDEST)), np.nan, (low, high))
    ends = zip(ends_of(name), (low, high), strict=True)
    return [pl.when(is_known).then(pl.Series(np.exp(values)).fill_nan(None)).alias(end) for end, values in ends]


def _group(by: Sequence[str]) -> list[str]:
    """Return the columns that cells with one base share."""
    return list(dict.fromkeys([*(name for name in by if name not in _NOT_OF_BASES), *GROUP]))


def _against_bases(merged: pl.DataFrame, by: Sequence[str]) -> pl.DataFrame:
    is_base = pl.col("is_base").fill_null(value=False)
    group = _group(by)
    bases = merged.filter(is_base, OK).unique(group, keep="first", maintain_order=True)
    both = merged.join(bases, on=group, how="left", suffix="_base", nulls_equal=True, maintain_order="left")
    both = both.hstack(compared(both))
    has_base, base = pl.col("factor").is_not_null(), pl.concat_str("variant_base", "precision_base", separator=" ")
    return both.with_columns(
        pl.when(~is_base | ~has_base).then(pl.col(FACTOR)).otherwise(1.0),
        base=pl.when(has_base).then(base),
        verdict=pl.when(~is_base).then("verdict"),
    )
