"""Collect a study's published times and those of runs, one row a machine, library, network, pass and batch size."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import polars as pl

from engines.catalog import known
from exporters.catalog import LAYERS
from profiler.published import references
from profiler.published.studies import STUDIES, Study
from profiler.results.cells import OK, OUT_OF_MEMORY, cells
from profiler.results.columns import MEASURE, Group, names, place
from profiler.results.layers import layer_rows
from profiler.results.reading import json_object
from profiler.results.warning_kinds import HOST_BOUND, KINDS
from profiler.tables.numbers import natural

LEAST_BATCHES = 3
"""A network at fewer batch sizes is no sweep."""
SEARCHING = ("eager-benchmark", "eager")
"""As Study.counterpart, of libraries at their best."""
DEVICE_BOUND = 0.98
"""A call whose device works this share of its time or more does not wait for the host."""
NOTED = [HOST_BOUND, *(kind.kind for kind in KINDS.values() if kind.retake)]
"""Footnotes that a table shows in its notes."""
NOT_MEASURED, FORWARD_ONLY = "not measured", "forward only"
_REASON = pl.coalesce("reason", "status").str.replace(": pip install .*", "")
_WHY = pl.when(status="oom").then(pl.lit(OUT_OF_MEMORY)).when(~OK).then(_REASON)
"""Why a case has no figures, without how to install what it lacked."""
_BY = (
    *("machine", "cloud", "instance", "usd_per_hour", "device", "cudnn"),
    *(column for column in names(Group.VERSIONS) if column.endswith("_version")),
)
"""Rows that differ in one of these stand apart."""


def own_times(results: pl.DataFrame) -> pl.DataFrame:
    """Return the cells of runs, each with the name of its machine and library.

    `library` is the runtime, variant and precision, and what else distinguishes it: "PyTorch 2.11 eager fp32, cuDNN
    9.19"; `runtime` is the same without the variant. `why` says why figures are missing, `note` names footnotes.
    `device_ms` is the device's own time, or the latency where that is unknown or less.
    """
    machine = pl.coalesce("machine", "gpu", pl.when(device="cpu").then(pl.lit("CPU")).otherwise(pl.lit("GPU")))
    rows = cells(results.with_columns(machine=machine), by=_BY)
    called = [(_library(row, row["variant"]), _library(row, "")) for row in rows.iter_rows(named=True)]
    named = pl.DataFrame(called, schema={"library": pl.String, "runtime": pl.String}, orient="row")
    busy = (pl.col("gpu_ms") >= DEVICE_BOUND * pl.col("latency_ms")).fill_null(value=False)
    kinds = pl.when(busy).then(pl.lit(NOTED[1:])).otherwise(pl.lit(NOTED))
    footnotes = pl.col("footnotes").list.set_intersection(kinds).list.join(", ").replace("", None)
    return rows.hstack(named).with_columns(
        model=pl.coalesce("network", "model"),
        implementation="variant",
        note=pl.when(OK).then(footnotes),
        why=_WHY,
        # The device cannot take longer than the call.
        device_ms=pl.min_horizontal("gpu_ms", "latency_ms"),
        ours=pl.lit(value=True),
    )


def study_times(name: str, results: pl.DataFrame) -> pl.DataFrame:
    """Return a study's published rows, and after them those of runs, in the networks' order.

    `total_ms`, its interval and perhaps its parts are of a whole batch; `swept` rows belong to a sweep of batch sizes;
    `counterpart` rows stand for the published library.
    """
    study, networks, published = STUDIES[name], references.network_names(name), references.networks(name)
    published = published.with_columns(
        pl.lit("training").alias("pass"),
        ours=pl.lit(value=False),
        counterpart=pl.lit(value=False),
        low_ms="total_ms",
        high_ms="total_ms",
        device_ms="total_ms",
        clock=pl.lit(None, pl.String),
    )
    # A published sweep's row at the study's batch size also stands in its other tables.
    both = published.filter(pl.col("swept"), batch_size=pl.lit(study.batch_size)).with_columns(
        swept=pl.lit(value=False)
    )
    own = _of_study(name, own_times(results.filter(pl.col("model_kind").ne_missing("layer"))))
    own = own.with_columns(
        pl.col("library", "runtime") + _image_gradient(study), counterpart=counterpart(study.counterpart)
    )
    if "implementation" in study.columns:
        own = own.with_columns(library="runtime")
    own = own.drop("network").rename(
        {"model": "network", "latency_ms": "total_ms", "latency_low_ms": "low_ms", "latency_high_ms": "high_ms"}
    )
    more = ["precision", "note", "why", "gpu_ms"]
    rows = pl.concat([published, both, own.select(name for name in (*published.columns, *more) if name in own.columns)],
                     how="diagonal")  # fmt: skip
    rows = rows.with_columns(published_network=pl.col("network").replace_strict(networks))
    return rows.sort(place("network", networks), maintain_order=True)


def layer_times(results: pl.DataFrame) -> pl.DataFrame:
    """Return `layer_rows` of L1 to L5, with the names of `own_times`; `implementation` is the variant."""
    results = results.filter(pl.col("model_kind") == "layer", pl.col("model").is_in(list(LAYERS)))
    keys = ["machine", "device", "variant", "precision", "batch_size"]
    own = own_times(results).with_columns(counterpart=counterpart(SEARCHING))
    own = own.unique(keys, keep="first").select(*keys, "counterpart", library="runtime")
    rows = layer_rows(results).join(own, on=keys, how="left", maintain_order="left")
    return rows.with_columns(implementation="variant", ours=pl.lit(value=True), why=_WHY)


def cost_rows(name: str, results: pl.DataFrame) -> pl.DataFrame:
    """Return own rows whose price or energy is known, by `network` as printed and pass, the cheapest first."""
    names = references.network_names(name)
    known = pl.any_horizontal(pl.col("usd_per_million_items", "energy_mj_per_item").is_not_null())
    rows = own_times(results).filter(known, pl.col("model").is_in(list(names)))
    rows = rows.with_columns(joules=pl.col("energy_mj_per_item") / 1e3, network=pl.col("model").replace(names))
    return rows.sort(place("model", names), "pass", "usd_per_million_items", "joules", nulls_last=True)


def per_image(rows: pl.DataFrame) -> pl.DataFrame:
    """Divide the total and its interval by the batch size, as `latency_ms` and its ends."""
    of = {"latency_ms": "total_ms", "latency_low_ms": "low_ms", "latency_high_ms": "high_ms"}
    return rows.with_columns(**{name: pl.col(column) / pl.col("batch_size") for name, column in of.items()})


def represented(rows: pl.DataFrame, study: Study) -> pl.DataFrame:
    """Keep our rows, and one published row a machine and network: its newest release, or its fastest library.

    The `side` of a published row is then the machine; where there is one machine every library stays, under its name.
    All rows have a time, so an older release stands for one that could not run.
    """
    published = rows.filter(~pl.col("ours"))
    if published["machine"].n_unique() < 2:
        side = pl.concat_str("library", "implementation", separator=", ", ignore_nulls=True)
    else:
        # 2.9 before 2.11, and no library before all.
        release = pl.col("library").replace("None", "").map_elements(natural, return_dtype=pl.String)
        order = release if study.by_release else pl.col("latency_ms")
        published = published.sort(order, descending=study.by_release, maintain_order=True)
        keys, side = ["machine", "network", "batch_size", "swept"], pl.col("machine")
        published = published.unique(keys, keep="first", maintain_order=True)
    return pl.concat([rows.filter("ours"), published.with_columns(side=side)])


def ranked(rows: pl.DataFrame, total: str, *within: str) -> pl.DataFrame:
    """Sort by the column `total` per image, as `per_item_ms`, and `rank` within groups; blanks come last."""
    per_item = pl.col(total) / pl.col("batch_size")
    rank = per_item.rank("ordinal").cast(pl.Int64)
    rows = rows.with_columns(per_item_ms=per_item, rank=rank.over(within) if within else rank)
    return rows.sort("rank", nulls_last=True, maintain_order=True)


def _of_study(name: str, own: pl.DataFrame) -> pl.DataFrame:
    """Return the `own` rows of a study's networks and passes, without an optimizer's step.

    Rows at the published batch size, or all where a configuration has none. In a study of batch sizes those of a
    network at three sizes or more all stay, marked as `swept`.
    """
    study = STUDIES[name]
    usual = dict(references.networks(name).select("network", "batch_size").rows())
    is_usual = pl.col("batch_size") == (study.batch_size or pl.col("model").replace_strict(usual, default=None))
    rows = own.filter(
        pl.col("model").is_in(list(references.network_names(name))), pl.col("optimizer").fill_null("none") == "none"
    )
    blank, whose = pl.lit(None, MEASURE), ("machine", "variant", "precision", "model")
    trains = (pl.col("pass") == "training").any().over(whose)
    alone = rows.filter(study.forward_alone, OK, ~trains).with_columns(
        forward_ms="latency_ms", latency_ms=blank, latency_low_ms=blank, latency_high_ms=blank, gpu_ms=blank,
        why=pl.lit(FORWARD_ONLY),
    )  # fmt: skip
    rows = pl.concat([rows.filter(pl.col("pass").is_in(study.passes)), alone])
    family = ["machine", "library", "model", "pass"]
    several = pl.col("batch_size").n_unique().over(family) >= LEAST_BATCHES
    rows = rows.with_columns(swept=several & pl.lit("minibatch" in study.tables))
    return rows.filter(pl.col("swept") | is_usual | ~is_usual.any().over(family))


def _image_gradient(study: Study) -> pl.Expr:
    """Name a difference in the gradient of the image: the study computed it and the row did not, or inversely."""
    to_image = pl.col("input_gradient").fill_null(value=False)
    differs = (to_image != pl.col("model").is_in(study.input_gradient)) & (pl.col("pass") == "training")
    word = pl.when(to_image).then(pl.lit("with")).otherwise(pl.lit("without"))
    return pl.when(differs).then(pl.format(", {} the image's gradient", word)).otherwise(pl.lit(""))


def counterpart(variants: Sequence[str]) -> pl.Expr:
    """Mark the first of some variants in fp32 that its machine measured in that pass; without any the base."""
    rank = pl.when(pl.col("variant").is_in(variants), precision="fp32").then(place("variant", variants))
    first = rank.filter(OK).min().over("machine", "device", "pass")
    return pl.coalesce((rank == first).fill_null(value=False) | first.is_null() & pl.col("is_base"), False)


def _library(row: Mapping[str, Any], variant: str) -> str:
    """Name what a cell ran in, and what else it did than the published rows."""
    engine = known(row["engine"])
    version = _release(row[engine.version.column]) if engine.version else ""
    words = [" ".join(filter(None, [engine.library, version, variant, row["precision"]]))]
    if row["device"] == "cuda" and engine.uses_cudnn and row["cudnn"] is not None:
        without = json_object(row["options"]).get("cudnn", True) is False
        words.append("no cuDNN" if without else f"cuDNN {_cudnn_release(row['cudnn'])}")
    if row["network"] not in (None, row["model"]):
        words.append(f"as {row['model']}")
    if row["dropout"]:
        words.append("dropout on")
    # The published backward passes began with a gradient of the network's output.
    if row["pass"] == "training" and row["model_kind"] != "layer" and row["head"] != "logits":
        words.append("with loss")
    return ", ".join(words)


def _cudnn_release(number: str) -> str:
    """Write cuDNN's own number as people do: 91900 is 9.19, 8902 is 8.9."""
    if not number.isdigit():
        return _release(number)
    value = int(number)
    thousands = 10_000 if value >= 90_000 else 1_000
    return f"{value // thousands}.{value % thousands // 100}"


def _release(version: str | None) -> str:
    """Shorten 2.11.0+cu130 to 2.11."""
    return ".".join((version or "").partition("+")[0].split(".")[:2])
