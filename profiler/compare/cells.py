"""Compare the cells of several sides, such as two machines, and sum up what they say; all of it is data.

A ratio is the base's time over the side's: how many times faster the side is.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import polars as pl

from profiler.errors import ConfigError, nearest
from profiler.results import cells as merged
from profiler.stats.intervals import MARGINS, MOST_REPLICATES, Verdict

CELL = ["model", "variant", "pass", "precision", "batch_size", "setting"]
_OF_A_SIDE = {
    "latency_ms": "ms",
    "latency_low_ms": "low_ms",
    "latency_high_ms": "high_ms",
    "gpu_ms": "device_ms",
    "peak_memory_mib": "memory_mib",
    "status": "status",
    "reason": "reason",
    "processes": "processes",
    "footnotes": "footnotes",
}
"""By column of a cell its name behind `base_` and `side_`."""
_FAILED = ("failed", "oom", "timeout", "crashed")
REGRESSIONS = {"slower": 1, "failed": 1, "unclear": 4, "lost": 4}
"""The codes of regressions, worst first, with their exit codes."""
_TOLD = ("clock", "options")


def compare(
    results: pl.LazyFrame | pl.DataFrame,
    by: str = "run_id",
    base: str | None = None,
    best: bool = False,
    only: pl.Expr | None = None,
) -> pl.DataFrame:
    """Return one row a cell and side: how many times faster the side is than the base, and how much memory it takes.

    `results` has all rows of its runs; `by` is the text column whose values are the sides. The base is the side of that
    name, else the first. With `best` only the fastest variant of a side counts. `only` selects cells.

    `ratio`, its 95 % interval and `verdict` are of the latency; memory is in MiB. A cell that failed or that a side
    lacks has no ratio: its status says why, or is null. `differs` says "options" where these are not the same.

    Raises ConfigError for a column that does not exist, for one side only, and where sides share no cell.
    """
    texts = [name for name, dtype in results.collect_schema().items() if dtype == pl.String]
    if by not in texts:
        raise ConfigError(f"--by: no text column is called '{by}'{nearest(by, texts)}")
    rows = results.lazy().with_columns(side=by).filter(pl.col("side").is_not_null()).collect()
    if rows.is_empty():
        raise ConfigError(f"--by {by}: that column is empty; give another, such as run or machine")
    lines = merged.cells(rows, by=("side",)).with_columns(pl.col("setting").fill_null(""))
    lines = lines if only is None else lines.filter(only)
    if by in CELL:  # A cell is not told by its side.
        lines = lines.with_columns(pl.lit(None, lines.schema[by]).alias(by))
    names = lines["side"].unique(maintain_order=True).to_list()
    if len(names) < 2:
        there = f"there is only one side ({by} {names[0]})" if names else "--only: no row of these runs matches"
        raise ConfigError(f"{there}: give another run, or other sides by --by")
    if base is not None and base not in names:
        raise ConfigError(f"--base: no side is called '{base}'{nearest(base, names)}")
    match = [name for name in CELL if not (best and name in ("variant", "setting"))]
    if best:
        lines = lines.sort("latency_ms", nulls_last=True, maintain_order=True)
        lines = lines.unique(["side", *match], keep="first", maintain_order=True)
    found = _against(lines, match, names, base)
    if found.filter(pl.col("base_status").is_not_null() & pl.col("side_status").is_not_null()).is_empty():
        others, keys = (", ".join(each) for each in (names, [name for name in match if name != by]))
        raise ConfigError(f"no cell is on both sides: {others} share no {keys}; compare runs of the same models")
    return found


def _against(lines: pl.DataFrame, match: Sequence[str], names: Sequence[str], base: str | None) -> pl.DataFrame:
    """Compare all other sides with the base, else with the first of `names`."""
    own = [name for name in dict.fromkeys([*CELL, *_OF_A_SIDE, *_TOLD]) if name not in match]
    base, found = base or names[0], []
    first, *others = (
        lines.filter(side=name).select(*match, pl.col(own).name.suffix(suffix))
        for name, suffix in [(base, "_base"), *((name, "_side") for name in names if name != base)]
    )
    for side, other in zip((name for name in names if name != base), others, strict=True):
        both = first.join(other, on=match, how="full", coalesce=True, nulls_equal=True, maintain_order="left_right")
        found.append(_named(both.hstack(merged.compared(both, own="_side")), base, side))
    return pl.concat(found)


def _named(both: pl.DataFrame, base: str, side: str) -> pl.DataFrame:
    """Select the columns of a comparison; a column of a cell in which the sides differ is null."""
    keys: dict[str, Any] = {name: pl.col(name) if name in both.columns else pl.lit(None, pl.String) for name in CELL}
    same = keys["variant"].is_not_null()
    if "variant" not in both.columns:
        same = pl.col("variant_base") == pl.col("variant_side")
        of_both = pl.concat_str("variant_base", "variant_side", separator=" | ", ignore_nulls=True)
        keys["variant"] = pl.when(same).then("variant_base").when(of_both != "").then(of_both)
    keys["setting"] = pl.when(keys["setting"] != "").then(keys["setting"])
    own = {f"{which}_{name}": f"{of}_{which}" for of, name in _OF_A_SIDE.items() for which in ("base", "side")}
    is_known = pl.col("verdict").is_not_null()  # A figure of 0 has no ratio.
    ratios = {f"ratio{end}": pl.when(is_known).then(f"factor{end}") for end in ("", "_low", "_high")}
    memory = pl.col("peak_memory_mib_side") / pl.col("peak_memory_mib_base")
    differs = same & (pl.col("options_base") != pl.col("options_side"))
    return both.select(
        **{"base": pl.lit(base), "side": pl.lit(side), **keys, **own, **ratios, "verdict": "verdict"},
        memory_ratio=pl.when(memory.is_finite() & (memory > 0)).then(memory),
        differs=pl.when(differs).then(pl.lit("options")),
    )


def find_regressions(cells: pl.DataFrame, limit: float) -> pl.DataFrame:
    """Return the cells of `compare` that are worse by more than the limit, worst first, each with a `code`.

    `slower`: the whole interval lies beyond the limit. `failed`: the base ran the cell. `unclear`: the ratio lies
    beyond the limit, and its interval reaches back over it. `lost`: the base ran the cell, and the side lacks it or
    cannot run it.
    """
    beyond, ran = 1 / (1 + limit), pl.col("base_status") == "ok"
    tests = {
        "failed": ran & pl.col("side_status").is_in(_FAILED).fill_null(value=False),
        "lost": ran & pl.col("side_status").ne_missing("ok"),
        "slower": pl.col("ratio_high") < beyond,
        "unclear": pl.col("ratio") < beyond,
    }
    code = pl.coalesce(pl.when(test).then(pl.lit(code)) for code, test in tests.items()).cast(pl.Enum([*REGRESSIONS]))
    status = pl.concat_str("side_status", "side_reason", separator=": ", ignore_nulls=True)
    ends = {"ratio": "ratio", "low": "ratio_low", "high": "ratio_high"}
    reason = pl.when(pl.col("side_status") != "ok").then(status)
    found = cells.select("base", "side", code=code, cell=cell_name(), **ends, limit=limit, reason=reason)
    return found.drop_nulls("code").sort("code", "ratio", nulls_last=True, maintain_order=True)


def cell_name() -> pl.Expr:
    """Name a cell like "resnet50/ort/inference/fp32/b1"."""
    parts = [pl.format("b{}", name) if name == "batch_size" else pl.col(name) for name in CELL]
    return pl.concat_str(parts, separator="/", ignore_nulls=True)


def totals(cells: pl.DataFrame) -> pl.DataFrame:
    """Return one row for each side and pass in which cells of `compare` have a ratio, in their order.

    `ratio` and `memory_ratio` are geometric means; `low` and `high` are the ends over models of each one's mean, whose
    cells' intervals are taken as going together. Both sides ran `models`, of the `of` that either has.
    """
    keys = ["base", "side", "pass"]
    ran = cells.drop_nulls("ratio")
    by_model = ran.group_by(*keys, "model", maintain_order=True).agg(_mean("ratio_low"), _mean("ratio_high"))
    models = by_model.group_by(keys, maintain_order=True).agg(
        low=pl.col("ratio_low").min(), high=pl.col("ratio_high").max(), models=pl.col("model").drop_nulls()
    )
    counts = ((pl.col("verdict") == verdict).sum().alias(verdict) for verdict in Verdict)
    means = ran.group_by(keys, maintain_order=True).agg(_mean("ratio"), _mean("memory_ratio"), *counts, cells=pl.len())
    for other in (models, cells.group_by(keys).agg(of=pl.col("model").n_unique())):
        means = means.join(other, on=keys, how="left", nulls_equal=True, maintain_order="left")
    return means


def resolution(cells: pl.DataFrame) -> float | None:
    """Return the difference, as a share, that half of the cells can tell: the median half-width of their intervals."""
    width = cells.select((pl.col("ratio_high") / pl.col("ratio_low")).log().median() / 2).item()
    return None if width is None else math.expm1(width)


def replicates_needed(cells: pl.DataFrame, limit: float | None) -> int | None:
    """Estimate how many replicates a side tell a difference of `limit` in half of the cells, where these do not.

    An interval narrows with the square root of the number of processes. None where they do, and beyond 100.
    """
    told, wanted = resolution(cells), limit or MARGINS["host"]
    if told is None or told <= wanted:
        return None
    processes = cells.drop_nulls("ratio").select(pl.min_horizontal("base_processes", "side_processes").median()).item()
    needed = max(3, math.ceil(processes * (math.log1p(told) / math.log1p(wanted)) ** 2))
    return needed if needed <= MOST_REPLICATES else None


def _mean(name: str) -> pl.Expr:
    return pl.col(name).log().mean().exp()
