"""Read the published figures, references/*.csv, as polars frames.

references/README.md explains the files, their columns and the slips of their sources, which are kept.
"""

from __future__ import annotations

import polars as pl

from exporters.catalog import LAYERS
from profiler.bundled import bundled
from profiler.errors import ConfigError
from profiler.published.studies import STUDIES

FOLDER = bundled("references")
_NUMBERS = {
    **dict.fromkeys(("rank", "batch_size", "runs", "cuda_cores", "layers", "base_clock_mhz"), pl.Int64),
    **dict.fromkeys(("milliseconds", "low", "high", "memory_gb", "fp32_tflops"), pl.Float64),
    "memory_bandwidth_gb_per_s": pl.Float64,
}
_TIMES = {"forward": "forward_ms", "backward": "backward_ms", "total": "total_ms"}
_TEXTS = (
    *("network", "published_network", "device", "gpu", "study", "framework", "framework_version"),
    *("library", "library_version", "published_library", "implementation", "url"),
)
_ROW = {**dict.fromkeys(_TEXTS, pl.String), "rank": pl.Int64, "batch_size": pl.Int64}
"""Columns that tell a study's rows apart; its file may lack some."""
_LAYER_ROW = ["rank", "batch_size", "machine", "library", "implementation", "url"]


def read(name: str) -> pl.DataFrame:
    """Read references/`name`.csv: counts Int64, measures Float64, all else text; an empty cell is null.

    The asterisks of a library's name, which refer to footnotes, are left out. Raises ConfigError for a missing file.
    """
    path = FOLDER / f"{name}.csv"
    if not path.is_file():
        raise ConfigError(f"{path} is missing: install the profiler again, or leave `published` out of the config")
    frame = pl.read_csv(path, infer_schema=False, schema_overrides=_NUMBERS)
    return frame.with_columns(pl.col("^published_library$").str.strip_chars("* "))


def networks(study: str) -> pl.DataFrame:
    """Return one row a network, machine and library, in the printed order: `forward_ms`, `backward_ms`, `total_ms`.

    `swept` marks the rows of a study of batch sizes.
    """
    library = pl.concat_str(STUDIES[study].library, separator=" ", ignore_nulls=True).replace("", "None")
    schema = pl.Schema({**_ROW, **dict.fromkeys(_TIMES.values(), pl.Float64)})
    frame = read(study)
    wide = _by_pass(frame, [name for name in _ROW if name in frame.columns])
    rows = pl.concat([schema.to_frame(), wide], how="diagonal").with_columns(library=library, machine="gpu")
    return rows.select(
        *("network", "published_network", "rank", "device", "batch_size", "machine", "library", "implementation"),
        *("url", *_TIMES.values()),
        swept=(pl.col("study") == "minibatch").fill_null(value=False),
    )


def layers() -> pl.DataFrame:
    """Return the layers of convnet-benchmarks: a printed row of a table each, `L1` to `L5` and `total` in milliseconds.

    `table` is `forward`, `backward`, `gradInput` or `gradWeight`; a cell without a plain number is null. The source's
    row `cherry-picking` is there as printed, although some of its cells are not the lowest.
    """
    breakdown = _layer_cells().filter(pl.col("table") != "summary")
    wide = breakdown.pivot("layer", index=["table", *_LAYER_ROW], values="milliseconds", maintain_order=True)
    return wide.select("table", *_LAYER_ROW, *LAYERS, "total")


def layer_summary() -> pl.DataFrame:
    """Return convnet-benchmarks' table of all five layers together: a row a library, `forward_ms` and so on.

    `total_printed` is the total as printed where that is no plain number.
    """
    cells = _layer_cells().filter(table="summary")
    printed = cells.filter(pl.col("pass") == "total").select("rank", total_printed="remark")
    wide = _by_pass(cells, _LAYER_ROW).join(printed, on="rank", maintain_order="left")
    return wide.select(*_LAYER_ROW, *_TIMES.values(), "total_printed")


def layer_shapes() -> pl.DataFrame:
    """Return convnet-benchmarks' layers as printed: `layer`, `batch_size`, `input`, `maps`, `kernel` and `stride`."""
    of_two = {name: (f"{name}_height", f"{name}_width") for name in ("input", "kernel", "stride")}
    sizes = {name: pl.format("{}x{}", *both) for name, both in of_two.items()}
    return read("convnet-layer-shapes").select(
        "layer", "batch_size", **sizes, maps=pl.format("{}->{}", "in_channels", "out_channels")
    )


def hardware(study: str) -> pl.DataFrame:
    """Return the GPUs' facts as printed: `gpu`, `cloud`, `instance`, `memory`, `architecture` and so on.

    `price` is in US dollars, with what the source says of it; `url` and `cloud_url` are its links.
    """
    price = pl.when(price_kind="less than").then(pl.format("less than {}", "price_usd"))
    return read("hardware").filter(source=study).select(
        *("gpu", "url", "cloud", "cloud_url", "instance", "architecture", "cuda_cores", "fp32_tflops"),
        *("base_clock_mhz", "compute_capability"),
        memory=pl.format("{}GB {}", pl.col("memory_gb").cast(pl.Int64), "memory_type"),
        bandwidth_gb_s="memory_bandwidth_gb_per_s",
        price=price.otherwise(pl.format("{} ({})", "price_usd", "price_kind")),
        release_date="published_release_date",
    )  # fmt: skip


def overview(study: str) -> pl.DataFrame:
    """Return the study's list of networks as printed, with errors in percent."""
    depth = pl.concat_str("layers", "layers_up_to", separator=" to ", ignore_nulls=True).replace("", None)
    return read("networks").filter(source=study).select(
        *("network", "published_network", "year", "top1_error_percent", "top5_error_percent", "milliseconds"),
        *("citation", "citation_url"),
        depth=depth,
    )  # fmt: skip


def notes(study: str) -> dict[str, str]:
    """Return by a table's title what its source says beside it."""
    rows = read("notes").filter(pl.col("source").str.split("; ").list.contains(study))
    return dict(rows.select("table", "note").rows())


def network_names(study: str) -> dict[str, str]:
    """Map the catalog's names of the study's networks to the printed ones, in the printed order.

    studies.csv comes first: it also has the networks whose figures were printed as pictures.
    """
    listed = read("studies").filter(pl.col("source") == study, pl.col("study") != "layers")
    # "ResNet-52" is a slip of the source, which references/README.md mentions.
    printed = pl.col("published_networks").str.replace("ResNet-52", "ResNet-152", literal=True)
    pairs = listed.select(pl.col("networks").str.split("; "), printed.str.split("; "))
    names: dict[str, str] = {}
    for frame in (pairs.explode(pairs.columns), read(study).select("network", "published_network")):
        for network, name in frame.rows():
            names.setdefault(network, name)
    return names


def _layer_cells() -> pl.DataFrame:
    return read("convnet-layers").drop("library").rename({"gpu": "machine", "published_library": "library"})


def _by_pass(frame: pl.DataFrame, keys: list[str]) -> pl.DataFrame:
    wide = frame.pivot("pass", index=keys, values="milliseconds", maintain_order=True)
    return wide.rename(_TIMES, strict=False)
