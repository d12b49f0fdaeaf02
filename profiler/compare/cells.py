"""Compare results of several sides, such as two machines, cell by cell.

A ratio is the base's time over the side's: how many times faster the side is.
"""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl

from profiler.errors import ConfigError, nearest
from profiler.results import speedups
from profiler.results.columns import kind_of_warning
from profiler.results.replicates import disturbed, doubts, without_probes
from profiler.results.speedups import compared, sides, spreads
from profiler.tables.numbers import listed, natural

CELL = ["model", "variant", "pass", "precision", "batch_size", "extra"]
COLUMNS = [
    *CELL,
    *speedups.NEEDED,
    *("role", "run_id", "reason", "options", "flops_per_item", "peak_memory_mib", "warnings"),
]
"""The columns of the results that a comparison needs, besides the sides'."""
_MODEL_DIFFERS = 1e-3
"""From this share of FLOPs on two models of one name are not the same."""


def compare(
    results: pl.LazyFrame | pl.DataFrame,
    by: str = "run_id",
    base: str | None = None,
    best: bool = False,
    common: pl.DataFrame | None = None,
) -> pl.DataFrame:
    """One row a cell and side: how many times faster the side is than the base, and how much more memory it takes.

    `results` has the columns of results.parquet; `by` is the text column whose values are the sides. Rows of one side
    and one cell (model, variant, pass, precision, batch size, extra) are its processes. The base is the side named
    `base`, else the first (of shapes the smallest that a model has of the same dimensions). With `best` only a side's
    fastest variant counts, whatever its name. `common` are the `spreads` of the whole runs that `results` are of.

    Times are medians over the processes' medians, in milliseconds; memory is in MiB. `ratio` is on the headline
    clock, `device_ratio` and `verdict` on the clock `judged_on`. A cell that a side lacks, or that failed there, has no
    ratio: its status is null, or says why. `disturbed` are the kinds of warnings with which no sentence names a cell's
    ratio, `base_doubts` and `side_doubts` the others that make that side's times unreliable.

    Raises ConfigError for a column that is none, without two sides, and where no cell is on two.
    """
    rows = _rows(results, by)
    names = rows["side"].unique(maintain_order=True).to_list()
    if by == "shape":
        names.sort(key=natural)
    if len(names) < 2:
        raise ConfigError(f"there is only one side ({by} {names[0]}): give another run, or other sides by --by")
    if base is not None and base not in names:
        raise ConfigError(f"--base: no side is called '{base}'{nearest(base, names)}")
    cell = [name for name in CELL if name != by]
    match = [name for name in cell if not (best and name in ("variant", "extra"))]
    lines = _lines(rows, cell, spreads(results) if common is None else common)
    if best:
        lines = lines.sort("latency_median", nulls_last=True, maintain_order=True)
        lines = lines.unique(["side", *match], keep="first", maintain_order=True)
    groups = _by_dimensions(lines) if by == "shape" and base is None else [lines]
    cells = pl.concat(_against(part, match, [n for n in names if n in set(part["side"])], base) for part in groups)
    if cells.filter(pl.col("base_status").is_not_null() & pl.col("side_status").is_not_null()).is_empty():
        first = names[0] if base is None else base
        others = ", ".join(name for name in names if name != first)
        models = [(name, listed(rows.filter(side=name)["model"].unique(maintain_order=True))) for name in names]
        differ = f" ({'; '.join(f'{name}: {of}' for name, of in models)})" if len({of for _, of in models}) > 1 else ""
        raise ConfigError(f"no cell is on both sides: {first} and {others} share no {', '.join(match)}{differ}")
    return cells


def _by_dimensions(lines: pl.DataFrame) -> list[pl.DataFrame]:
    """Each model has dimensions of its own: a sequence is not to be compared with a cache."""
    dimensions = pl.col("side").str.replace_all("=[^/]*", "").alias("dimensions")
    groups = [part for _, part in lines.group_by("model", dimensions, maintain_order=True)]
    return [part for part in groups if part["side"].n_unique() > 1] or [lines]


def _against(lines: pl.DataFrame, match: Sequence[str], names: Sequence[str], base: str | None = None) -> pl.DataFrame:
    """The cells of all other sides against the base, else against the first of `names`."""
    sides = {name: lines.filter(side=name).drop("side") for name in names}
    base = names[0] if base is None else base
    found = []
    for name in [name for name in names if name != base]:
        # Until the last step the base's columns have no suffix.
        both = sides[base].join(
            sides[name], on=match, how="full", suffix="_side", coalesce=True, maintain_order="left_right"
        )
        both = both.hstack(compared(both, side="_side")).with_columns(_differs(both.columns))
        found.append(_named(both, base, name))
    return pl.concat(found)


def check_by(results: pl.LazyFrame | pl.DataFrame, by: str) -> None:
    """Raises ConfigError where the results have no such text column."""
    texts = [name for name, dtype in results.collect_schema().items() if dtype == pl.String]
    if by not in texts:
        raise ConfigError(f"--by: no text column is called '{by}'{nearest(by, texts)}")


def _rows(results: pl.LazyFrame | pl.DataFrame, by: str) -> pl.DataFrame:
    """The columns that a comparison needs, with `side`."""
    check_by(results, by)
    # A probe shows where memory ends, not how fast anything is.
    cases = without_probes(results.lazy())
    rows = cases.select(*COLUMNS, pl.col(by).alias("side")).filter(pl.col("side").is_not_null()).collect()
    if by == "shape":
        # Settings end with the shape; other sizes are other work, but no other model.
        setting = pl.col("extra").str.strip_suffix(pl.col("side")).str.strip_suffix("/")
        rows = rows.with_columns(extra=setting, flops_per_item=pl.lit(None, rows.schema["flops_per_item"]))
    if rows.is_empty():
        raise ConfigError(f"--by {by}: that column is empty; give another, such as run or machine")
    return rows.with_columns(pl.col("extra").fill_null(""))


def _lines(rows: pl.DataFrame, cell: Sequence[str], common: pl.DataFrame) -> pl.DataFrame:
    """One row a side and cell: the statistics of its processes, and what a comparison says of it besides."""
    measured = pl.col("ok")
    more = [
        pl.when(measured.any()).then(pl.lit("ok")).otherwise(pl.col("status").first()).alias("status"),
        pl.col("reason").filter(~measured).first(),
        *(pl.col(name).filter(measured).first() for name in ("clock", "options", "flops_per_item")),
        pl.col("peak_memory_mib").filter(measured).median().alias("memory_mib"),
        kind_of_warning(pl.col("warnings").filter(measured).explode().drop_nulls()).unique().alias("warnings"),
    ]
    return sides(rows, ["side", *cell], common, *more)


def _differs(columns: Sequence[str]) -> pl.Expr:
    """What makes two cells of one name not the same: the engine's options, or the model's FLOPs; null if nothing."""
    flops = pl.col("flops_per_item")
    model = ((flops / pl.col("flops_per_item_side") - 1).abs() > _MODEL_DIFFERS).fill_null(value=False)
    options = (pl.col("options") != pl.col("options_side")).fill_null(value=False)
    if "variant_side" in columns:
        options &= pl.col("variant") == pl.col("variant_side")
    if "variant" not in columns:  # The sides are variants.
        options = pl.lit(value=False)
    words = [pl.when(options).then(pl.lit("options")), pl.when(model).then(pl.lit("model"))]
    text = pl.concat_str(words, separator=", ", ignore_nulls=True)
    return pl.when(text != "").then(text).alias("differs")


def _named(both: pl.DataFrame, base: str, side: str) -> pl.DataFrame:
    """The columns of a comparison; a column of a cell by which the sides differ is null."""
    cell = {name: pl.col(name) if name in both.columns else pl.lit(None, pl.String) for name in CELL}
    cell["batch_size"] = cell["batch_size"].cast(pl.Int64)
    if "extra" in both.columns:
        cell["extra"] = pl.when(pl.col("extra") != "").then("extra")
    if "variant_side" in both.columns:
        same = pl.col("variant") == pl.col("variant_side")
        of_both = pl.concat_str("variant", "variant_side", separator=" | ", ignore_nulls=True)
        cell |= {"variant": pl.when(same).then("variant").otherwise(of_both), "extra": pl.lit(None, pl.String)}
    ratios = [f"{name}{end}" for name in ("ratio", "device_ratio") for end in ("", "_low", "_high")]
    known = (pl.col("memory_mib") > 0) & (pl.col("memory_mib_side") > 0)
    memory_ratio = pl.when(known).then(pl.col("memory_mib_side") / pl.col("memory_mib"))

    def milliseconds(clock: str, suffix: str) -> pl.Expr:
        return pl.when(judged_on="latency").then(f"latency_median{suffix}").otherwise(f"{clock}_median{suffix}").exp()

    times = {
        f"{prefix}_{name}": milliseconds(clock, end)
        for name, clock in (("ms", "latency"), ("device_ms", "device"))
        for prefix, end in (("base", ""), ("side", "_side"))
    }
    own = {"status": "status", "reason": "reason", "processes": "latency_processes", "memory_mib": "memory_mib"}
    return both.select(
        pl.lit(base).alias("base"),
        pl.lit(side).alias("side"),
        *(column.alias(name) for name, column in cell.items()),
        *(value.alias(name) for name, value in times.items()),
        *ratios,
        *("interval", "judged_on", "verdict", "replicates_to_settle", "why_no_verdict"),
        memory_ratio.alias("memory_ratio"),
        *(
            pl.col(f"{column}{end}").alias(f"{prefix}_{name}")
            for name, column in own.items()
            for prefix, end in (("base", ""), ("side", "_side"))
        ),
        "differs",
        disturbed=disturbed(pl.concat_list(pl.col(name).fill_null([]) for name in ("warnings", "warnings_side"))),
        base_doubts=doubts(pl.col("warnings")),
        side_doubts=doubts(pl.col("warnings_side")),
    )
