"""Collect published and our times, one row per machine, library, network, pass and batch size."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import polars as pl

from engines.catalog import engine_row
from exporters.catalog import LAYERS
from profiler.published import references
from profiler.published.studies import SEARCHING, STUDIES, Study
from profiler.results.cells import DEVICE_BOUND, OK, OUT_OF_MEMORY, cells
from profiler.results.columns import Group, names, place
from profiler.results.layers import layer_rows
from profiler.results.reading import json_object
from profiler.results.warning_kinds import HOST_BOUND, KINDS

_FEWEST_OF_SWEEP = 3
NOTED = [HOST_BOUND, *(kind.kind for kind in KINDS.values() if kind.retake)]
"""Footnotes that tables show in their notes."""
NOT_MEASURED, FORWARD_ONLY = "not measured", "forward only"
CALLS = "the call's time"
"""Footnote of a sweep without the device's time."""
BEST_PER_LAYER = "best per layer"
"""Implementation in a row of each layer's lowest times over all libraries: the source's, and ours."""
PASSES = {"inference": "forward", "training": "forward + backward"}
"""The sources' word for a pass."""
TOTALS = {"total_ms": "latency_ms", "low_ms": "latency_low_ms", "high_ms": "latency_high_ms"}
"""A cell's column for each column of a batch's time."""
_REASON = pl.coalesce("reason", "status").str.replace(": pip install .*", "")
_WHY = pl.when(status="oom").then(pl.lit(OUT_OF_MEMORY)).when(~OK).then(_REASON)
"""Why a case has no figures, without advice on installing."""
_BY = [*names(Group.MACHINE), "device", "cudnn", *(name for name in names(Group.VERSIONS) if name.endswith("_version"))]
"""Rows that differ in one of these columns are not merged."""


def own_times(results: pl.DataFrame) -> pl.DataFrame:
    """Return the cells of runs with the names of their machines and libraries.

    `library` is the runtime with variant, precision and other differences: "PyTorch 2.11 eager fp32, cuDNN 9.19".
    `runtime` lacks the variant. `why` explains missing figures, `note` names footnotes.
    """
    machine = pl.coalesce("machine", "gpu", pl.when(device="cpu").then(pl.lit("CPU")).otherwise(pl.lit("GPU")))
    rows = cells(results.with_columns(machine=machine), by=_BY)
    called = [(_library(row, row["variant"]), _library(row, "")) for row in rows.iter_rows(named=True)]
    named = pl.DataFrame(called, schema={"library": pl.String, "runtime": pl.String}, orient="row")
    busy = pl.col("gpu_ms") >= DEVICE_BOUND * pl.col("latency_ms")
    kinds = pl.when(busy).then(pl.lit(NOTED[1:])).otherwise(pl.lit(NOTED))
    footnotes = pl.col("footnotes").list.set_intersection(kinds).list.join(", ").replace("", None)
    return rows.hstack(named).with_columns(
        network=pl.coalesce("network", "model"),
        implementation="variant",
        note=pl.when(OK).then(footnotes),
        why=_WHY,
        ours=pl.lit(value=True),
    )


def study_times(name: str, results: pl.DataFrame) -> pl.DataFrame:
    """Return a study's published rows, then ours, in the networks' order.

    Our rows are of its networks and passes, without an optimizer's step. They have the published batch size; a
    configuration without it keeps every size. A study of batch sizes keeps all sizes, as `swept`, of networks with at
    least three. `total_ms`, its interval and its parts are times of a whole batch, in our sweeps the device's.
    `counterpart` rows stand for the published library.
    """
    study, networks = STUDIES[name], references.network_names(name)
    sweeps = pl.lit("minibatch" in study.tables)
    ours = own_times(results.filter(pl.col("model_kind").ne_missing("layer")))
    ours = ours.filter(pl.col("network").is_in(list(networks)), pl.col("optimizer").fill_null("none") == "none")
    trains = (pl.col("pass") == "training").any().over("machine", "variant", "precision", "network")
    alone = ~pl.col("pass").is_in(study.passes)
    ours = ours.filter(~alone | pl.lit(study.forward_alone) & ~trains).with_columns(
        forward_ms=pl.when(alone).then("latency_ms").otherwise("forward_ms"),
        why=pl.when(alone & OK).then(pl.lit(FORWARD_ONLY)).otherwise("why"),
        gpu_ms=pl.when(~alone).then("gpu_ms"),
        **{total: pl.when(~alone).then(cell) for total, cell in TOTALS.items()},
    )
    published = references.networks(name).with_columns(swept=sweeps)
    usual = dict(published.select("network", "batch_size").rows())
    is_usual = pl.col("batch_size") == (study.batch_size or pl.col("network").replace_strict(usual, default=None))
    family = ["machine", "library", "network", "pass"]
    swept = sweeps & (pl.col("batch_size").n_unique().over(family) >= _FEWEST_OF_SWEEP)
    ours = ours.with_columns(swept=swept).filter(pl.col("swept") | is_usual | ~is_usual.any().over(family))
    library = pl.col("runtime" if "implementation" in study.columns else "library") + _image_gradient(study)
    # Our sweeps show the device's time, which cannot be longer than the call's.
    device = [pl.min_horizontal(t, pl.when("swept").then(cell.replace("latency", "gpu"))) for t, cell in TOTALS.items()]
    is_calls = pl.col("swept") & OK & (pl.col("device") == "cuda") & pl.col("gpu_ms").is_null()
    note = pl.when(is_calls).then(pl.lit(CALLS)).otherwise("note")
    ours = ours.with_columns(*device, library=library, counterpart=counterpart(study.counterpart), note=note)
    # A published sweep's row at the study's batch size also stands in its other tables.
    both = published.filter("swept", batch_size=pl.lit(study.batch_size)).with_columns(swept=pl.lit(value=False))
    theirs = pl.concat([published, both]).with_columns(pl.lit("training").alias("pass"))
    rows = pl.concat([theirs, ours], how="diagonal")
    rows = rows.with_columns(published_network=pl.col("network").replace_strict(networks))
    return rows.sort(place("network", networks), maintain_order=True)


def layer_times(results: pl.DataFrame) -> pl.DataFrame:
    """Return the published layers, then `layer_rows` of L1 to L5 with the names of `own_times`.

    `implementation` is the variant. Each machine also has a row of its lowest fp32 times, as the source has.
    """
    results = results.filter(pl.col("model_kind") == "layer", pl.col("model").is_in(list(LAYERS)))
    keys = ["machine", "device", "variant", "precision", "batch_size"]
    ours = own_times(results).with_columns(counterpart=counterpart(SEARCHING)).unique(keys, keep="first")
    ours = ours.select(*keys, "ours", "counterpart", "implementation", library="runtime")
    rows = layer_rows(results).join(ours, on=keys, how="left", maintain_order="left").with_columns(why=_WHY)
    parts = pl.col(*references.LAYER_PARTS.values())
    machines = rows.filter(precision="fp32").group_by("machine", "device", "layer", "batch_size", maintain_order=True)
    best = machines.agg(parts.min()).with_columns(
        total_ms=pl.col("forward_ms") + pl.col("backward_ms"),
        library=pl.lit("cherry-picking fp32"),
        implementation=pl.lit(BEST_PER_LAYER),
        precision=pl.lit("fp32"),
        ours=pl.lit(value=True),
        counterpart=pl.lit(value=False),
    )
    return pl.concat([references.layers(), rows, best], how="diagonal_relaxed")


def absent_times(names: Mapping[str, str], results: pl.DataFrame) -> pl.DataFrame:
    """Return one row per machine, pass and reason with the `networks` and `libraries` of our cells without figures."""
    keys, order = ["machine", "pass", "why", "ours"], [*names, *LAYERS]
    rows = own_times(results).filter(~OK, pl.col("network").is_in(order))
    rows = rows.sort(place("network", order), maintain_order=True)
    rows = rows.with_columns(pl.col("network").replace(names), pl.col("pass").replace(PASSES))
    networks = pl.col("network").unique(maintain_order=True).str.join(", ")
    rows = rows.group_by(*keys, "library", maintain_order=True).agg(networks=networks)
    return rows.group_by(*keys, "networks", maintain_order=True).agg(libraries=pl.col("library").str.join(", "))


def cost_rows(name: str, results: pl.DataFrame) -> pl.DataFrame:
    """Return our rows of inference, and others with a cost, cheapest first; empty for a study without costs."""
    names = references.network_names(name) if "cost" in STUDIES[name].tables else {}
    costs = pl.any_horizontal(pl.col("usd_per_million_items", "energy_mj_per_item").is_not_null())
    printed, joules = pl.col("network").replace(names), pl.col("energy_mj_per_item") / 1e3
    rows = own_times(results).filter(costs | OK & (pl.col("pass") == "inference"), pl.col("network").is_in(list(names)))
    cheapest = ("usd_per_million_items", "joules", -pl.col("throughput"))
    rows = rows.with_columns(published_network=printed, joules=joules)
    return rows.sort(place("network", names), "pass", *cheapest, nulls_last=True)


def break_even(costs: pl.DataFrame, published: pl.DataFrame) -> pl.DataFrame:
    """Return the hourly price for a published GPU to train as cheaply as a machine of `cost_rows`.

    One row per `machine` and published `gpu`, dearest first, has the lowest and highest price over their `networks`.
    `published` has the times per image of `per_network`.
    """
    trained = costs.filter(pl.col("pass") == "training")
    usd = trained.group_by("machine", "network").agg(pl.col("usd_per_million_items").min())
    quickest = published.filter(device="cuda").group_by("network", gpu="machine").agg(pl.col("latency_ms").min())
    price = pl.col("usd_per_million_items") * 3.6 / pl.col("latency_ms")
    both = usd.join(quickest, on="network").with_columns(price=price).group_by("machine", "gpu")
    prices = both.agg(networks=pl.len(), usd_low=pl.col("price").min(), usd_high=pl.col("price").max())
    return prices.sort("machine", "usd_high", descending=[False, True])


def _image_gradient(study: Study) -> pl.Expr:
    """Tell if a row computed the image's gradient and the study did not, or the reverse."""
    to_image = pl.col("input_gradient").fill_null(value=False)
    differs = (to_image != pl.col("network").is_in(study.input_gradient)) & (pl.col("pass") == "training")
    word = pl.when(to_image).then(pl.lit("with")).otherwise(pl.lit("without"))
    return pl.when(differs).then(pl.format(", {} the image's gradient", word)).otherwise(pl.lit(""))


def counterpart(variants: Sequence[str]) -> pl.Expr:
    """Mark the first of these variants that a machine measured in fp32 and in that pass, or else its base."""
    rank = pl.when(pl.col("variant").is_in(variants), precision="fp32").then(place("variant", variants))
    first = rank.filter(OK).min().over("machine", "device", "pass")
    return pl.coalesce((rank == first).fill_null(value=False) | first.is_null() & pl.col("is_base"), False)


def _library(row: Mapping[str, Any], variant: str) -> str:
    """Name a cell's runtime, and its differences from the published rows."""
    engine = engine_row(row["engine"])
    version = _release(row[engine.version.column]) if engine.version else ""
    words = [" ".join(filter(None, [engine.library, version, variant, row["precision"]]))]
    if row["device"] == "cuda" and engine.uses_cudnn and row["cudnn"] is not None:
        is_off = json_object(row["options"]).get("cudnn", True) is False
        words.append("no cuDNN" if is_off else f"cuDNN {_cudnn_release(row['cudnn'])}")
    words += [f"as {row['model']}"] * (row["network"] not in (None, row["model"]))
    words += ["dropout on"] * bool(row["dropout"])
    # The published backward passes began with a gradient of the network's output, without a loss.
    words += ["with loss"] * (row["pass"] == "training" and row["model_kind"] != "layer" and row["head"] != "logits")
    return ", ".join(words)


def _cudnn_release(number: str) -> str:
    """Format cuDNN's version number: 91900 is 9.19, 8902 is 8.9."""
    if not number.isdecimal():
        return _release(number)
    major, rest = divmod(int(number), 10_000 if int(number) >= 90_000 else 1_000)
    return f"{major}.{rest // 100}"


def _release(version: str | None) -> str:
    """Shorten 2.11.0+cu130 to 2.11."""
    return ".".join((version or "").partition("+")[0].split(".")[:2])
