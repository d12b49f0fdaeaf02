"""Read the published figures, references/*.csv, as polars frames.

references/README.md explains the files, their columns and their sources' slips, which are preserved.
"""

from __future__ import annotations

import polars as pl
import polars.selectors as cs

from profiler.bundled import bundled
from profiler.errors import ConfigError

FOLDER = bundled("references")
_NUMBERS = {
    **dict.fromkeys(("rank", "batch_size", "runs", "cuda_cores", "base_clock_mhz", "memory_gb"), pl.Int64),
    **dict.fromkeys(("milliseconds", "low", "high", "fp32_tflops", "memory_bandwidth_gb_per_s"), pl.Float64),
}
LAYER_PARTS = {"forward": "forward_ms", "backward": "backward_ms"}
LAYER_PARTS |= {"gradInput": "grad_input_ms", "gradWeight": "grad_weight_ms"}
"""Our column for each of convnet-benchmarks' tables of layers."""
_ROW = (
    *("ours", "network", "published_network", "layer", "rank", "batch_size"),
    *("device", "machine", "library", "implementation", "url"),
)
"""Columns that tell printed rows apart; a file may lack some."""


def read(name: str) -> pl.DataFrame:
    """Read references/`name`.csv: counts Int64, measures Float64, all else text; an empty cell is null.

    Library names lose the asterisks of their footnotes. Raises ConfigError for a missing file.
    """
    path = FOLDER / f"{name}.csv"
    if not path.is_file():
        raise ConfigError(f"{path} is missing: install the profiler again, or leave `published` out of the config")
    frame = pl.read_csv(path, infer_schema=False, schema_overrides=_NUMBERS)
    return frame.with_columns(pl.col("^published_library$").str.strip_chars("* "))


def networks(study: str) -> pl.DataFrame:
    """Return one row per network, machine and library, as printed, with `forward_ms`, `backward_ms`, `total_ms`."""
    return _side_by_side(read(study), "pass")


def layers() -> pl.DataFrame:
    """Return convnet-benchmarks' `L1` to `L5` and `total`: one row per `layer` and library, one column per table.

    `total_ms` adds forward and backward; a cell without a plain number is null. The row `cherry-picking` is as printed,
    although some of its cells are not the lowest. Ranks and links, which differ by table, are dropped.
    """
    cells = read("convnet-layers").filter(pl.col("table") != "summary").drop("rank", "url")
    return _side_by_side(cells, "table").with_columns(total_ms=pl.col("forward_ms") + pl.col("backward_ms"))


def layer_summary() -> pl.DataFrame:
    """Return convnet-benchmarks' sums of all layers, one row per library; `why` is any text in place of a total."""
    cells = read("convnet-layers").filter(table="summary")
    return _side_by_side(cells, "pass").with_columns(why=cells.filter(pl.col("pass") == "total")["remark"])


def notes(study: str) -> dict[str, str]:
    """Return the source's note by table title."""
    rows = read("notes").filter(pl.col("source").str.split("; ").list.contains(study))
    return dict(rows.select("table", "note").rows())


def network_names(study: str) -> dict[str, str]:
    """Map the catalog's names of the study's networks to the printed ones, in the printed order."""
    listed = read("studies").filter(pl.col("source") == study, pl.col("study") != "layers")
    # "ResNet-52" is a slip of the source, which references/README.md mentions.
    printed = pl.col("published_networks").str.replace("ResNet-52", "ResNet-152", literal=True)
    pairs = listed.select(pl.col("networks").str.split("; "), printed.str.split("; ")).explode(cs.all())
    return dict(pairs.unique("networks", keep="first", maintain_order=True).rows())


def _side_by_side(cells: pl.DataFrame, on: str) -> pl.DataFrame:
    """Pivot a printed row's times into columns, and name its `machine` and `library` as ours."""
    column = pl.col(on).replace({**LAYER_PARTS, "total": "total_ms"})
    cells = cells.with_columns(column, machine="gpu", library="published_library", ours=pl.lit(value=False))
    return cells.pivot(on, index=cs.by_name(_ROW, require_all=False), values="milliseconds", maintain_order=True)
