"""Read the published figures, references/*.csv, as polars frames.

references/README.md explains the files, their columns and the slips of their sources, which are kept.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import polars as pl

from exporters.single_layers import LAYERS
from profiler.bundled import bundled
from profiler.errors import ConfigError, nearest
from profiler.published.studies import STUDIES
from profiler.results.columns import RESULTS
from profiler.results.ends import ends_of

FOLDER = bundled("references")
PASSES = ("forward", "backward", "total")
_NUMBERS = {
    **dict.fromkeys(("rank", "batch_size", "runs", "cuda_cores", "layers", "base_clock_mhz"), pl.Int64),
    **dict.fromkeys(("milliseconds", "low", "high", "memory_gb", "fp32_tflops"), pl.Float64),
    "memory_bandwidth_gb_per_s": pl.Float64,
}
_ROW = dict.fromkeys(
    (
        *("network", "published_network", "rank", "device", "batch_size", "gpu", "study", "framework_version"),
        *("library", "library_version", "published_library", "implementation", "url"),
    ),
    pl.String,
) | {"rank": pl.Int64, "batch_size": pl.Int64}
"""What distinguishes the rows of a study's tables; its file may lack some."""
_LAYER_ROW = ["rank", "batch_size", "machine", "library", "implementation", "url"]


def read(name: str) -> pl.DataFrame:
    """The file references/`name`.csv: counts Int64, measures Float64, all else text; an empty cell is null.

    A library's asterisks, which refer to footnotes, are left out. Raises ConfigError where the file is missing.
    """
    path = FOLDER / f"{name}.csv"
    if not path.is_file():
        raise ConfigError(
            f"{path} is missing: this copy of the profiler is not complete; install it again, or leave published out "
            "of the config"
        )
    frame = pl.read_csv(path, infer_schema=False, schema_overrides=_NUMBERS)
    return frame.with_columns(pl.col("^published_library$").str.strip_chars("* "))


def published_as_results(study: str) -> pl.DataFrame:
    """references/<study>.csv as results: a row a network, machine and library, in training, fp32.

    Times are as printed, in milliseconds: forward, backward and, as latency, both. There is no clock and no memory, and
    an interval is the figure itself. Raises ConfigError for a study that is none.
    """
    if study not in STUDIES:
        raise ConfigError(f"--reference: no published figures of '{study}'{nearest(study, STUDIES)}")
    machine = pl.col("gpu").str.strip_prefix("CPU: ")
    same = {"run_id": study, "suite": study, "status": "ok", "precision": "fp32", "pass": "training", "replicate": 0}
    same |= {"setting": "", "is_base": False}
    rows = _rows(study).select(
        "batch_size",
        "device",
        "forward_ms",
        "backward_ms",
        *(pl.lit(value).alias(name) for name, value in same.items()),
        model="network",
        engine="library",
        variant=pl.concat_str("library", "library_version", separator=" ", ignore_nulls=True),
        machine=machine,
        gpu=pl.when(device="cuda").then(machine),
        **dict.fromkeys(("latency_ms", *ends_of("latency_ms")), pl.col("total_ms")),
    )
    case_id = pl.format("{}/{}/training/fp32/b{}/{}", "model", "variant", "batch_size", "machine")
    known = rows.drop_nulls("latency_ms").with_columns(case_id=case_id)
    return pl.concat([pl.DataFrame(schema=RESULTS), known], how="diagonal_relaxed")


def networks(study: str) -> pl.DataFrame:
    """One row a network, machine and library, in the printed order: `forward_ms`, `backward_ms` and `total_ms`.

    A table calls the library `library`; a sentence calls it `called`, and machine and library `setup`. `swept` marks
    the rows of a study of batch sizes.
    """
    row = STUDIES[study]
    rows = _rows(study).with_columns(cpu=pl.when(device="cpu").then("gpu"), machine="gpu")
    named = rows.with_columns(library=_text(row.library), called=_text(row.called or row.library))
    return named.select(
        *["network", "published_network", "rank", "device", "batch_size", "machine", "library", "implementation"],
        "url",
        *[f"{pass_}_ms" for pass_ in PASSES],
        "called",
        _text(row.setup or ("{machine} with {called}",)).alias("setup"),
        (pl.col("study") == "minibatch").fill_null(value=False).alias("swept"),
    )


def layers() -> pl.DataFrame:
    """convnet-benchmarks' layers: one row a printed row of a table, with `L1` to `L5` and `total` in milliseconds.

    `table` is `forward`, `backward`, `gradInput` or `gradWeight`; a cell without a plain number is null. The source's
    row `cherry-picking` is there as printed, although some of its cells are not the lowest.
    """
    breakdown = _layer_cells().filter(pl.col("table") != "summary")
    wide = breakdown.pivot("layer", index=["table", *_LAYER_ROW], values="milliseconds", maintain_order=True)
    return wide.select("table", *_LAYER_ROW, *LAYERS, "total")


def layer_summary() -> pl.DataFrame:
    """convnet-benchmarks' table of all five layers together: one row a library, `forward_ms` and so on.

    `total_printed` is the total as printed where that is no plain number.
    """
    cells = _layer_cells().filter(table="summary")
    printed = cells.filter(pl.col("pass") == "total").select("rank", total_printed="remark")
    wide = _by_pass(cells, _LAYER_ROW).join(printed, on="rank", maintain_order="left")
    return wide.select(*_LAYER_ROW, *(f"{pass_}_ms" for pass_ in PASSES), "total_printed")


def layer_shapes() -> pl.DataFrame:
    """convnet-benchmarks' layers as printed: `layer`, `batch_size`, `input`, `maps`, `kernel` and `stride`."""
    of_two = {name: (f"{name}_height", f"{name}_width") for name in ("input", "kernel", "stride")}
    sizes = {name: pl.format("{}x{}", *both) for name, both in of_two.items()}
    return read("convnet-layer-shapes").select(
        "layer", "batch_size", **sizes, maps=pl.format("{}->{}", "in_channels", "out_channels")
    )


def hardware(study: str) -> pl.DataFrame:
    """The GPUs' facts as printed: `gpu`, `cloud`, `instance`, `memory`, `architecture`, `cuda_cores` and so on.

    `price` is in US dollars, with what the source says of it; `url` and `cloud_url` are its links.
    """
    frame = read("hardware").filter(source=study)
    less = pl.col("price_kind") == "less than"
    price = pl.when(less).then(pl.format("less than {}", "price_usd"))
    return frame.select(
        *["gpu", "url", "cloud", "cloud_url", "instance"],
        pl.format("{}GB {}", pl.col("memory_gb").cast(pl.Int64), "memory_type").alias("memory"),
        *["architecture", "cuda_cores", "fp32_tflops", "base_clock_mhz"],
        pl.col("memory_bandwidth_gb_per_s").alias("bandwidth_gb_s"),
        "compute_capability",
        price.otherwise(pl.format("{} ({})", "price_usd", "price_kind")).alias("price"),
        pl.col("published_release_date").alias("release_date"),
    )


def machines(study: str) -> pl.DataFrame:
    """The computers around the GPUs as printed: `machine` (the GPU), `cpu`, `cores`, `memory` and so on."""
    frame = read("machines").filter(source=study)
    several = pl.col("cpus").is_not_null()
    cores = [
        pl.when(several).then(pl.format("{} x {}", "cpus", "cores_per_cpu")).otherwise("cores_per_cpu"),
        pl.format("{} threads", "threads"),
    ]
    return frame.select(
        pl.col("gpu").fill_null("all published").alias("machine"),
        pl.when(several).then(pl.format("{} x {}", "cpus", "cpu")).otherwise("cpu").alias("cpu"),
        pl.concat_str(cores, separator=", ", ignore_nulls=True).replace("", None).alias("cores"),
        "clock_ghz",
        pl.format("{}GB", pl.col("memory_gb").cast(pl.Int64)).alias("memory"),
        *["os", "cuda"],
    )


def overview(study: str) -> pl.DataFrame:
    """The study's own list of networks as printed: `year`, `depth`, errors in percent, `milliseconds`, `citation`."""
    frame = read("networks").filter(source=study)
    frame = frame.with_columns(
        depth=pl.concat_str("layers", "layers_up_to", separator=" to ", ignore_nulls=True).replace("", None),
        citation=pl.format("[{}]", "citation"),
    )
    errors = ["top1_error_percent", "top5_error_percent"]
    return frame.select("network", "published_network", "year", "depth", *errors, "milliseconds", "citation")


def top5_errors(study: str) -> dict[str, float]:
    """The study's own list of top-5 errors in percent, by network."""
    rows = read("networks").filter(source=study).drop_nulls(["network", "top5_error_percent"])
    return dict(rows.select("network", pl.col("top5_error_percent").cast(pl.Float64)).iter_rows())


def claims(study: str) -> list[dict[str, Any]]:
    """What the study states, a row of conclusions.csv each; `gpu`, `networks` and `pass` are lists."""
    rows = read("conclusions").filter(source=study)
    lists = [pl.col(name).str.split("; ").fill_null([]) for name in ("gpu", "networks", "pass")]
    return rows.with_columns(lists).to_dicts()


def network_names(study: str) -> dict[str, str]:
    """The printed name of each network of the study by the catalog's, in the printed order.

    Those of studies.csv, which also has networks whose figures were printed as pictures, then those of the figures.
    """
    listed = read("studies").filter(pl.col("source") == study, pl.col("study") != "layers")
    # "ResNet-52" is a slip of the source, which references/README.md mentions.
    printed = pl.col("published_networks").str.replace("ResNet-52", "ResNet-152", literal=True)
    pairs = listed.select(pl.col("networks").str.split("; "), printed.str.split("; ")).explode(
        "networks", "published_networks"
    )
    figures = read(study).select("network", "published_network").rows()
    names: dict[str, str] = {}
    for network, name in (*pairs.rows(), *figures):
        names.setdefault(network, name)
    return names


def _rows(study: str) -> pl.DataFrame:
    """A study's file, one row a network, machine and library, with a column a pass and all columns of _ROW."""
    frame = read(study)
    wide = _by_pass(frame, [name for name in _ROW if name in frame.columns])
    times = dict.fromkeys((f"{pass_}_ms" for pass_ in PASSES), pl.Float64)
    return pl.concat([pl.DataFrame(schema={**_ROW, **times}), wide], how="diagonal")


def _layer_cells() -> pl.DataFrame:
    return read("convnet-layers").drop("library").rename({"gpu": "machine", "published_library": "library"})


def _by_pass(frame: pl.DataFrame, keys: Sequence[str]) -> pl.DataFrame:
    wide = frame.pivot("pass", index=keys, values="milliseconds", maintain_order=True)
    return wide.rename({pass_: f"{pass_}_ms" for pass_ in PASSES}, strict=False)


def _text(templates: Sequence[str]) -> pl.Expr:
    """The first of the templates whose columns a row has all of."""
    texts = [
        pl.format(re.sub(r"\{\w+\}", "{}", template), *re.findall(r"\{(\w+)\}", template)) for template in templates
    ]
    return pl.coalesce(texts)
