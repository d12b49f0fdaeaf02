"""What enters: references/*.csv. What leaves: the published figures as polars frames, and what each study is called.

references/README.md explains the files, their columns and the slips of their sources, which are kept.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import polars as pl

from profiler.errors import ConfigError, nearest
from profiler.results.reading import with_all_columns

FOLDER = Path(__file__).resolve().parents[2] / "references"
_COUNTS = ("rank", "batch_size", "runs", "cuda_cores", "layers")
_MEASURES = ("milliseconds", "low", "high", "memory_gb", "fp32_tflops")
PASSES = ("forward", "backward", "total")


@dataclass(frozen=True)
class Study:
    """A published benchmark: its title, and where it stands; empty where it gives no address of its own."""

    title: str
    address: str = ""


STUDIES = {
    "cnn-benchmarks": Study("cnn-benchmarks", "https://github.com/jcjohnson/cnn-benchmarks"),
    "cloud-gpus": Study("GPU in the Cloud | cnn-benchmarks"),
    "convnet-benchmarks": Study("convnet-benchmarks", "https://github.com/soumith/convnet-benchmarks"),
    "gpu-study": Study("GPU vs Framework vs Network, and Minibatch Efficiency for TensorFlow (Addfor)"),
}
"""By the name that a config's `published` and the column `source` have."""


def read(name: str) -> pl.DataFrame:
    """The file references/`name`.csv: counts Int64, measures Float64, all else text; an empty cell is null.

    Raises ConfigError where the folder or the file is missing, as in a copy of the package without its project.
    """
    path = FOLDER / f"{name}.csv"
    if not path.is_file():
        raise ConfigError(
            f"{path} is missing: the published figures lie in references/ at the root of the project; run from a "
            "checkout of it, or leave published out of the config"
        )
    frame = pl.read_csv(path, infer_schema=False)
    return frame.with_columns(
        pl.col([c for c in _COUNTS if c in frame.columns]).cast(pl.Int64),
        pl.col([c for c in _MEASURES if c in frame.columns]).cast(pl.Float64),
    )


def published_as_results(study: str) -> pl.DataFrame:
    """references/<study>.csv as results: a row a network, machine and library, in training, fp32.

    Times are as printed, in milliseconds: forward, backward and, as latency, both. There is no clock, no interval and
    no memory. Raises ConfigError for a study that is none.
    """
    if study not in STUDIES:
        raise ConfigError(f"--reference: no published figures of '{study}'{nearest(study, STUDIES)}")
    keys = ["network", "gpu", "device", "library", "library_version", "batch_size"]
    printed = read(study).drop_nulls("network").with_columns(ms=pl.col("milliseconds").cast(pl.Float64))
    wide = printed.pivot("pass", index=keys, values="ms", maintain_order=True, aggregate_function="first")
    times = {"latency_ms": "total", "forward_ms": "forward", "backward_ms": "backward"}
    machine = pl.col("gpu").str.strip_prefix("CPU: ")
    rows = wide.select(
        run_id=pl.lit(study), suite=pl.lit(study), status=pl.lit("ok"), precision=pl.lit("fp32"),
        model="network", engine="library", batch_size="batch_size", device="device", machine=machine,
        variant=pl.concat_str("library", "library_version", separator=" ", ignore_nulls=True),
        replicate=pl.lit(0), gpu=pl.when(device="cuda").then(machine), **{"pass": pl.lit("training")},
        **{name: pl.col(pass_) for name, pass_ in times.items() if pass_ in wide.columns},
    ).drop_nulls("latency_ms")  # fmt: skip
    case_id = pl.format("{}/{}/training/fp32/b{}/{}", "model", "variant", "batch_size", "machine")
    rows = rows.with_columns(case_id=case_id)
    return with_all_columns(rows)


def networks(study: str) -> pl.DataFrame:
    """One row a network, machine and library, in the printed order: `forward_ms`, `backward_ms` and `total_ms`.

    `library` is what the printed column says: cuDNN's version or "None" in cnn-benchmarks and cloud-gpus, else the
    library's name without its asterisks. A sentence calls the library `called`, and machine and library `setup`.
    """
    keys = ["network", "published_network", "rank", "gpu", "device", "library", "library_version", "batch_size"]
    frame = read(study)
    extra = [column for column in ("published_library", "implementation") if column in frame.columns]
    wide = _by_pass(frame, [*keys, *extra])
    if extra:
        library = called = pl.col("published_library").str.strip_chars("* ")
        setup = pl.format("{} with {}", "gpu", library)
    else:
        library = pl.col("library_version").fill_null("None")
        called = pl.coalesce(pl.format("cuDNN {}", "library_version"), pl.lit("Torch without cuDNN"))
        without = pl.when(device="cpu").then("gpu").otherwise(pl.format("{} without cuDNN", "gpu"))
        setup = pl.coalesce(pl.format("{} with cuDNN {}", "gpu", "library_version"), without)
    implementation = pl.col("implementation") if extra else pl.lit(None, pl.String)
    return wide.select(
        *["network", "published_network", "rank", "device", "batch_size"],
        pl.col("gpu").alias("machine"),
        library.alias("library"),
        implementation.alias("implementation"),
        *[f"{pass_}_ms" for pass_ in PASSES],
        called.alias("called"),
        setup.alias("setup"),
    )


def layers() -> pl.DataFrame:
    """convnet-benchmarks' layers: one row a printed row of a table, with `L1` to `L5` and `total` in milliseconds.

    `table` is `forward`, `backward`, `gradInput` or `gradWeight`; a cell without a plain number is null. The source's
    row `cherry-picking` is there as printed, although some of its cells are not the lowest.
    """
    breakdown = read("convnet-layers").filter(pl.col("table") != "summary")
    wide = breakdown.pivot("layer", index=["table", *_LIBRARY], values="milliseconds", maintain_order=True)
    return _named(wide).select("table", *_NAMED, "L1", "L2", "L3", "L4", "L5", "total")


def layer_summary() -> pl.DataFrame:
    """convnet-benchmarks' table of all five layers together: one row a library, `forward_ms` and so on."""
    summary = read("convnet-layers").filter(table="summary")
    return _named(_by_pass(summary, _LIBRARY)).select(*_NAMED, *(f"{pass_}_ms" for pass_ in PASSES))


def minibatch() -> pl.DataFrame:
    """gpu-study's times of the text: its plots had the others. One row a GPU, network and batch size."""
    framework = pl.col("framework").replace("tensorflow", "TensorFlow")
    return read("gpu-study").select(
        *["network", "published_network", "device", "batch_size"],
        pl.col("gpu").alias("machine"),
        pl.format("{} {}, cuDNN {}", framework, "framework_version", "library_version").alias("library"),
        pl.col("milliseconds").alias("total_ms"),
    )


def hardware(study: str) -> pl.DataFrame:
    """The machines' facts as printed: `gpu`, `cloud`, `instance`, `memory`, `architecture`, `cuda_cores` and so on."""
    frame = read("hardware").filter(source=study)
    return frame.select(
        *["gpu", "cloud", "instance"],
        pl.format("{}GB {}", pl.col("memory_gb").cast(pl.Int64), "memory_type").alias("memory"),
        *["architecture", "cuda_cores", "fp32_tflops"],
        pl.col("published_release_date").alias("release_date"),
    )


def network_names(study: str) -> dict[str, str]:
    """The printed name of each network of the study by the catalog's, in the printed order."""
    frame = read("studies").filter(pl.col("source") == study, pl.col("study") != "layers")
    pairs: dict[str, str] = {}
    for ours, printed in frame.select("networks", "published_networks").iter_rows():
        # "ResNet-52" is a slip of the source, which its README tells.
        names = zip(ours.split("; "), printed.replace("ResNet-52", "ResNet-152").split("; "), strict=True)
        pairs |= {name: text for name, text in names if name not in pairs}
    return pairs


_LIBRARY = ["rank", "gpu", "library", "library_version", "published_library", "implementation", "batch_size"]
_NAMED = ["rank", "batch_size", "machine", "library", "implementation"]


def _named(frame: pl.DataFrame) -> pl.DataFrame:
    library = pl.col("published_library").str.strip_chars("* ")
    return frame.with_columns(machine=pl.col("gpu"), library=library)


def place(study: str, column: str) -> pl.Expr:
    """The place of the network that `column` names in the study's printed order."""
    order = {name: number for number, name in enumerate(network_names(study))}
    return pl.col(column).replace_strict(order, return_dtype=pl.Int64)


def _by_pass(frame: pl.DataFrame, keys: list[str]) -> pl.DataFrame:
    wide = frame.pivot("pass", index=keys, values="milliseconds", maintain_order=True)
    return wide.rename({pass_: f"{pass_}_ms" for pass_ in PASSES})
