"""Compare the cells of several sides, such as two machines, as data.

A ratio is the base's time over the side's, above 1 for a faster side.
"""

from __future__ import annotations

import math
import re

import numpy as np
import polars as pl

from profiler.errors import ConfigError, nearest
from profiler.results import cells as merged
from profiler.stats.intervals import Verdict, holm
from profiler.stats.samples import student

CELL = ["model", "variant", "pass", "precision", "batch_size", "setting"]
_OF_A_SIDE = {"latency_ms": "ms", "latency_low_ms": "low_ms", "latency_high_ms": "high_ms"}
_OF_A_SIDE |= {"gpu_ms": "device_ms", "peak_memory_mib": "memory_mib"}
_OF_A_SIDE |= {name: name for name in ("status", "reason", "processes", "footnotes")}
"""Name of a cell's column behind `base_` and `side_`."""
MISSING = "this side has no such case"
REGRESSIONS = {"slower": 1, "failed": 1, "unclear": 4, "lost": 4}
"""The codes of regressions, worst first, with their exit codes."""


def compare(
    results: pl.LazyFrame | pl.DataFrame,
    by: str = "run_id",
    base: str | None = None,
    only: pl.Expr | None = None,
) -> pl.DataFrame:
    """Return one row per cell and side: how many times faster than the base it is, and its memory.

    `results` has all rows of its runs; `by` is the text column whose values are the sides. The base is the side of that
    name, else the first. `only` selects cells.

    `ratio`, its 95 % interval and `verdict` are of the latency; memory is in MiB. A failed or missing cell has no
    ratio, and its status, or null. `differs` is "options" if the sides' options differ.

    Raises ConfigError for a missing column, for a single side, and for sides without a common cell.
    """
    texts = [name for name, dtype in results.collect_schema().items() if dtype == pl.String]
    if by not in texts:
        raise ConfigError(f"--by: no text column is called '{by}'{nearest(by, texts)}")
    rows = results.lazy().with_columns(side=by).filter(pl.col("side").is_not_null()).collect()
    if rows.is_empty():
        raise ConfigError(f"--by {by}: that column is empty; give another, such as run or machine")
    lines = merged.cells(rows, by=("side",)).with_columns(pl.col("setting").fill_null(""))
    lines = lines if only is None else lines.filter(only)
    # Drop the side from the setting, so that both sides share the cell's key.
    setting = pl.col("setting").str.strip_suffix(pl.col("side")) if by == "shape" else pl.col("setting")
    lines = lines.with_columns(setting.str.replace(f"(^|/){re.escape(by)}=[^/]*", "").str.strip_chars("/"))
    if by in CELL:
        lines = lines.with_columns(pl.lit(None, lines.schema[by]).alias(by))
    names = lines["side"].unique(maintain_order=True).to_list()
    if len(names) < 2:
        problem = f"there is only one side ({by} {names[0]})" if names else "--only: no row of these runs matches"
        raise ConfigError(f"{problem}: give another run, or other sides by --by")
    if base is not None and base not in names:
        raise ConfigError(f"--base: no side is called '{base}'{nearest(base, names)}")
    base = base or names[0]
    compared = pl.concat(_against(lines, base, side) for side in names if side != base)
    if compared.drop_nulls(["base_status", "side_status"]).is_empty():
        sides, keys = ", ".join(names), ", ".join(name for name in CELL if name != by)
        raise ConfigError(f"no cell is on both sides: {sides} share no {keys}; compare runs of the same models")
    return compared


def _against(lines: pl.DataFrame, base: str, side: str) -> pl.DataFrame:
    lines = lines.select("side", *CELL, *_OF_A_SIDE, "clock", "options", "latency_degrees")
    first, other = (lines.filter(side=name).drop("side") for name in (base, side))
    both = first.join(
        other, on=CELL, how="full", suffix="_side", coalesce=True, nulls_equal=True, maintain_order="left_right"
    )
    both = both.hstack(merged.compared(both, base="", side="_side"))
    ends = (("base", ""), ("side", "_side"))
    of_sides = {f"{side}_{new}": f"{old}{end}" for old, new in _OF_A_SIDE.items() for side, end in ends}
    ratios = {f"ratio{end}": f"factor{end}" for end in ("", "_low", "_high")}
    memory = pl.col("peak_memory_mib_side") / pl.col("peak_memory_mib")
    differs = pl.col("variant").is_not_null() & (pl.col("options") != pl.col("options_side"))
    return both.select(
        pl.lit(base).alias("base"),
        pl.lit(side).alias("side"),
        *CELL[:-1],
        pl.col("setting").replace("", None),
        **of_sides,
        **ratios,
        verdict="verdict",
        degrees=pl.min_horizontal("latency_degrees", "latency_degrees_side"),
        memory_ratio=pl.when(memory.is_finite() & (memory > 0)).then(memory),
        differs=pl.when(differs).then(pl.lit("options")),
    )


def find_regressions(cells: pl.DataFrame, limit: float) -> pl.DataFrame:
    """Return the cells of `compare` that are worse than the limit allows, worst first, with a `code`.

    `slower`: the ratio is surely beyond the limit; 97.5 % of comparisons, of any number of cells, have no false one.
    `unclear`: it is beyond the limit, but not surely. `failed`: the cell fails, and the base ran it. `lost`: the side
    lacks the cell or cannot run it, and the base ran it; skipping it loses nothing.
    """
    beyond, ran = 1 / (1 + limit), pl.col("base_status") == "ok"
    tests: dict[str, pl.Expr | pl.Series] = {
        "failed": ran & pl.col("side_status").is_in(merged.FAULTS).fill_null(value=False),
        "lost": ran & ~pl.col("side_status").is_in(["ok", "skipped"]).fill_null(value=False),
        "slower": pl.Series(_surely_below(cells, beyond)),
        "unclear": pl.col("ratio") < beyond,
    }
    code = pl.coalesce(pl.when(test).then(pl.lit(code)) for code, test in tests.items()).cast(pl.Enum([*REGRESSIONS]))
    status = pl.concat_str("side_status", "side_reason", separator=": ", ignore_nulls=True)
    ends = {"ratio": "ratio", "low": "ratio_low", "high": "ratio_high"}
    is_missing = pl.col("side_status").is_null()
    reason = pl.when(is_missing).then(pl.lit(MISSING)).when(pl.col("side_status") != "ok").then(status)
    rows = cells.select("base", "side", code=code, cell=cell_name(), **ends, limit=limit, reason=reason)
    return rows.drop_nulls("code").sort("code", "ratio", nulls_last=True, maintain_order=True)


def _surely_below(cells: pl.DataFrame, limit: float) -> list[bool]:
    """Return whether each row's ratio is below a limit, by Student's t of its interval, at one level for all rows."""
    from scipy.special import stdtr

    names = ("ratio", "ratio_high", "degrees")
    ratio, high, degrees = (cells[name].fill_null(float("nan")).to_numpy() for name in names)
    with np.errstate(divide="ignore", invalid="ignore"):
        beyond = np.log(limit / ratio) / np.log(high / ratio)
    by_luck = stdtr(np.maximum(degrees, 1.0), -beyond * student(0.975, np.nan_to_num(degrees, nan=1.0)))
    return holm(by_luck)


def cell_name() -> pl.Expr:
    """Name a cell like "resnet50/ort/inference/fp32/b1"."""
    parts = [pl.format("b{}", name) if name == "batch_size" else pl.col(name) for name in CELL]
    return pl.concat_str(parts, separator="/", ignore_nulls=True)


def totals(cells: pl.DataFrame) -> pl.DataFrame:
    """Return one row per side and pass with ratios, in the order of `compare`.

    `ratio` and `memory_ratio` are geometric means. The arms of the 95 % interval, `low` to `high`, add the cells' in
    squares (cells are measured independently); it is null if a cell has no interval.
    """
    mean = {name: pl.col(name).log().mean().exp() for name in ("ratio", "memory_ratio")}
    is_known = pl.col("ratio_low").null_count() == 0
    arms = {end: (pl.col(f"ratio_{end}") / pl.col("ratio")).log() for end in ("low", "high")}
    means = {end: arm.pow(2).sum().sqrt() / pl.len() for end, arm in arms.items()}
    ends = {"low": mean["ratio"] * (-means["low"]).exp(), "high": mean["ratio"] * means["high"].exp()}
    ends = {end: pl.when(is_known).then(value) for end, value in ends.items()}
    counts = ((pl.col("verdict") == verdict).sum().alias(verdict) for verdict in Verdict)
    ran = cells.drop_nulls("ratio").group_by("base", "side", "pass", maintain_order=True)
    return ran.agg(*counts, **mean, **ends, cells=pl.len())


def resolution(cells: pl.DataFrame) -> float | None:
    """Return the median half-width of the cells' intervals, as a share: half of the cells resolve this difference."""
    width = cells.select((pl.col("ratio_high") / pl.col("ratio_low")).log().median() / 2).item()
    return None if width is None else math.expm1(width)
