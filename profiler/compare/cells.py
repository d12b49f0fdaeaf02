"""What enters: results of several sides, such as two machines. What leaves: a row a cell, with ratio and verdict.

A ratio is the base's time over the side's: how many times faster the side is. Its interval and verdict follow the rules
of profiler/results/speedups.py: between processes on device time from three processes a side, else within them and no
verdict.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import polars as pl

from profiler.compare.ratios import Means, intervals
from profiler.errors import ConfigError, nearest
from profiler.job.case import Role
from profiler.stats.ratios import REPLICATES_FOR_A_VERDICT

CELL = ["model", "variant", "pass", "precision", "batch_size", "extra"]
MARGINS = {"gpu": 0.01, "host": 0.03, "latency": 0.03}
"""Differences of up to so much do not count, by the clock that is judged. `latency` is either side's headline clock,
where they are not the same (a GPU's and a CPU's) or not known (published figures)."""
BETWEEN, WITHIN = "between processes", "within process"
COLUMNS = [
    *CELL,
    *("role", "status", "reason", "clock", "options", "flops_per_item", "latency_ms", "latency_ci_low_ms"),
    *("latency_ci_high_ms", "gpu_ms", "peak_memory_mib"),
]
"""The columns of the results that a comparison needs, besides the sides'."""
_STATISTICS = ("mean", "variance", "processes", "low", "high")
_MODEL_DIFFERS = 1e-3
"""From this share of FLOPs on two models of one name are not the same."""


def compare(
    results: pl.LazyFrame | pl.DataFrame, by: str = "run_id", base: str | None = None, best: bool = False
) -> pl.DataFrame:
    """One row a cell and side: how many times faster the side is than the base, and how much more memory it takes.

    `results` has the columns of results.parquet; `by` is the text column whose values are the sides. Rows of one side
    and one cell (model, variant, pass, precision, batch size, extra) are its processes. The base is the side named
    `base`, else the first. With `best` a side's fastest variant stands for it, whatever its name.

    Times are geometric means over the processes' medians, in milliseconds; memory is in MiB. `ratio` is on the headline
    clock, `device_ratio` and `verdict` on the clock `judged_on`. A cell that a side lacks, or that failed there, has no
    ratio: its status is null, or says why. Raises ConfigError for a column that is none, without two sides, and where
    no cell stands on two.
    """
    rows = _rows(results, by)
    names = rows["side"].unique(maintain_order=True).to_list()
    if len(names) < 2:
        raise ConfigError(f"there is one side alone ({by} {names[0]}): give another run, or other sides by --by")
    if base is not None and base not in names:
        raise ConfigError(f"--base: no side is called '{base}'{nearest(base, names)}")
    base = names[0] if base is None else base
    cell = [name for name in CELL if name != by]
    match = [name for name in cell if not (best and name in ("variant", "extra"))]
    lines = _lines(rows, cell)
    if best:
        lines = lines.sort("latency_mean", nulls_last=True, maintain_order=True)
        lines = lines.unique(["side", *match], keep="first", maintain_order=True)
    sides = {name: lines.filter(side=name).drop("side") for name in names}
    cells = pl.concat(_pair(sides[base], sides[name], match, base, name) for name in names if name != base)
    if cells.filter(pl.col("base_status").is_not_null() & pl.col("side_status").is_not_null()).is_empty():
        others = ", ".join(name for name in names if name != base)
        raise ConfigError(f"no cell stands on both sides: {base} and {others} share no {', '.join(match)}")
    return cells


def check_by(results: pl.LazyFrame | pl.DataFrame, by: str) -> None:
    """Raises ConfigError where the results have no such text column."""
    texts = [name for name, dtype in results.collect_schema().items() if dtype == pl.String]
    if by not in texts:
        raise ConfigError(f"--by: no text column is called '{by}'{nearest(by, texts)}")


def _rows(results: pl.LazyFrame | pl.DataFrame, by: str) -> pl.DataFrame:
    """The columns that a comparison needs, with `side`."""
    check_by(results, by)
    # A probe shows where memory ends, not how fast anything is.
    asked = results.lazy().filter(pl.col("role") != Role.PROBE)
    rows = asked.select(*COLUMNS, pl.col(by).alias("side")).filter(pl.col("side").is_not_null()).collect()
    if rows.is_empty():
        raise ConfigError(f"--by {by}: no row says anything there; give a column that does, such as run or machine")
    return rows.with_columns(pl.col("extra").fill_null(""))


def _lines(rows: pl.DataFrame, cell: Sequence[str]) -> pl.DataFrame:
    """One row a side and cell: over its processes the `_STATISTICS` of log latency and of log device time."""
    latency, on_gpu = _log("latency_ms"), pl.col("clock") == "event"
    ok = ((pl.col("status") == "ok") & latency.is_not_null()).fill_null(value=False)
    rows = rows.with_columns(
        ok.alias("ok"),
        pl.when(ok).then(latency).alias("latency"),
        pl.when(ok).then(pl.when(on_gpu).then(_log("gpu_ms")).otherwise(latency)).alias("device"),
        # How far each process's own interval reaches below and above its median.
        pl.when(ok).then(latency - _log("latency_ci_low_ms")).alias("below"),
        pl.when(ok).then(_log("latency_ci_high_ms") - latency).alias("above"),
    )
    count, measured = pl.col("latency").count(), pl.col("ok")
    known = pl.all_horizontal(pl.col(arm).count() == count for arm in ("below", "above"))
    reach = {arm: pl.when(known).then((pl.col(arm) ** 2).sum().sqrt() / count) for arm in ("below", "above")}
    ends = {"low": pl.col("latency").mean() - reach["below"], "high": pl.col("latency").mean() + reach["above"]}
    statistics = [
        *(pl.col(clock).mean().alias(f"{clock}_mean") for clock in ("latency", "device")),
        *(pl.col(clock).var().alias(f"{clock}_variance") for clock in ("latency", "device")),
        *(pl.col(clock).count().cast(pl.Int64).alias(f"{clock}_processes") for clock in ("latency", "device")),
        *(end.alias(f"latency_{name}") for name, end in ends.items()),
        *(pl.when(~on_gpu.any()).then(end).alias(f"device_{name}") for name, end in ends.items()),
    ]
    return rows.group_by("side", *cell, maintain_order=True).agg(
        *statistics,
        pl.when(measured.any()).then(pl.lit("ok")).otherwise(pl.col("status").first()).alias("status"),
        pl.col("reason").filter(~measured).first(),
        *(pl.col(name).filter(measured).first() for name in ("clock", "options", "flops_per_item")),
        pl.col("peak_memory_mib").filter(measured).median().alias("memory_mib"),
    )


def _log(name: str) -> pl.Expr:
    """The logarithm; null for a figure that is not above 0."""
    return pl.when(pl.col(name) > 0).then(pl.col(name)).log()


def _pair(base: pl.DataFrame, side: pl.DataFrame, match: Sequence[str], base_name: str, side_name: str) -> pl.DataFrame:
    """The cells of two sides as a comparison; until the last step the base's columns have no suffix."""
    both = base.join(side, on=match, how="full", suffix="_side", coalesce=True, maintain_order="left_right")
    known = pl.col("clock").is_in(["event", "host"]) & (pl.col("clock") == pl.col("clock_side"))
    judged_on = pl.when(known.fill_null(value=False)).then(pl.col("clock").replace("event", "gpu"))
    both = both.with_columns(judged_on.otherwise(pl.lit("latency")).alias("judged_on"))
    both = both.with_columns(
        pl.when(judged_on="latency").then(f"latency_{name}").otherwise(f"device_{name}").alias(f"device_{name}")
        for name in [f"{what}{end}" for what in _STATISTICS for end in ("", "_side")]
    )
    both = both.hstack(_ratios(both, "latency", "ratio")).hstack(_ratios(both, "device", "device_ratio"))
    both = both.with_columns(_verdicts()).with_columns(_why_no_verdict(), _differs(both.columns))
    return _named(both, base_name, side_name)


def _ratios(both: pl.DataFrame, clock: str, name: str) -> pl.DataFrame:
    """The ratio of the base's to the side's times on a clock, with the ends of its interval."""
    base, side = (
        Means(*(both[f"{clock}_{what}{end}"].cast(pl.Float64).to_numpy() for what in _STATISTICS))
        for end in ("", "_side")
    )
    low, high = intervals(base, side)
    found = {name: np.exp(base.mean - side.mean), f"{name}_low": low, f"{name}_high": high}
    return pl.DataFrame(found).fill_nan(None)


def _verdicts() -> list[pl.Expr]:
    low, high = pl.col("device_ratio_low"), pl.col("device_ratio_high")
    margin = pl.col("judged_on").replace_strict(MARGINS, return_dtype=pl.Float64)
    judged = _replicated("device") & low.is_not_null()
    found = pl.when(low > 1 + margin).then(pl.lit("faster")).when(high < 1 / (1 + margin)).then(pl.lit("slower"))
    kind = pl.when(_replicated("latency")).then(pl.lit(BETWEEN)).otherwise(pl.lit(WITHIN))
    return [
        pl.when(judged).then(found.otherwise(pl.lit("indistinguishable"))).alias("verdict"),
        pl.when(pl.col("ratio_low").is_not_null()).then(kind).alias("interval"),
    ]


def _replicated(clock: str) -> pl.Expr:
    least = pl.min_horizontal(f"{clock}_processes", f"{clock}_processes_side")
    return (least >= REPLICATES_FOR_A_VERDICT).fill_null(value=False)


def _why_no_verdict() -> pl.Expr:
    few = pl.format(
        f"{{}} and {{}} processes: a verdict needs {REPLICATES_FOR_A_VERDICT} a side",
        "latency_processes",
        "latency_processes_side",
    )
    no_interval = pl.when(pl.col("ratio_low").is_null()).then(pl.lit("; too few samples for an interval, too"))
    return (
        pl.when(pl.col("verdict").is_not_null() | pl.col("ratio").is_null()).then(None)
        .when(~_replicated("latency")).then(few + no_interval.otherwise(pl.lit("")))
        .otherwise(pl.lit(f"no device time from {REPLICATES_FOR_A_VERDICT} processes a side"))
        .alias("why_no_verdict")
    )  # fmt: skip


def _differs(columns: Sequence[str]) -> pl.Expr:
    """What makes two cells of one name not the same: the engine's options, or the model's FLOPs; null if nothing."""
    flops = pl.col("flops_per_item")
    model = ((flops / pl.col("flops_per_item_side") - 1).abs() > _MODEL_DIFFERS).fill_null(value=False)
    options = (pl.col("options") != pl.col("options_side")).fill_null(value=False)
    if "variant_side" in columns:
        options &= pl.col("variant") == pl.col("variant_side")
    said = [pl.when(options).then(pl.lit("options")), pl.when(model).then(pl.lit("model"))]
    text = pl.concat_str(said, separator=", ", ignore_nulls=True)
    return pl.when(text != "").then(text).alias("differs")


def _named(both: pl.DataFrame, base: str, side: str) -> pl.DataFrame:
    """The columns of a comparison, of which those of a cell that all of it differ in are null."""
    cell = {name: pl.col(name) if name in both.columns else pl.lit(None, pl.String) for name in CELL}
    cell["batch_size"] = cell["batch_size"].cast(pl.Int64)
    if "extra" in both.columns:
        cell["extra"] = pl.when(pl.col("extra") != "").then("extra")
    if "variant_side" in both.columns:
        same = pl.col("variant") == pl.col("variant_side")
        of_both = pl.concat_str("variant", "variant_side", separator=" | ", ignore_nulls=True)
        cell |= {"variant": pl.when(same).then("variant").otherwise(of_both), "extra": pl.lit(None, pl.String)}
    ratios = [f"{name}{end}" for name in ("ratio", "device_ratio") for end in ("", "_low", "_high")]
    beside = {"status": "status", "reason": "reason", "processes": "latency_processes", "memory_mib": "memory_mib"}
    return both.select(
        pl.lit(base).alias("base"),
        pl.lit(side).alias("side"),
        *(column.alias(name) for name, column in cell.items()),
        *(pl.col(f"latency_mean{end}").exp().alias(name) for name, end in (("base_ms", ""), ("side_ms", "_side"))),
        *(
            pl.col(f"device_mean{end}").exp().alias(name)
            for name, end in (("base_device_ms", ""), ("side_device_ms", "_side"))
        ),
        *ratios,
        *("interval", "judged_on", "verdict", "why_no_verdict"),
        (_log("memory_mib_side") - _log("memory_mib")).exp().alias("memory_ratio"),
        *(
            pl.col(f"{column}{end}").alias(f"{prefix}_{name}")
            for name, column in beside.items()
            for prefix, end in (("base", ""), ("side", "_side"))
        ),
        "differs",
    )
