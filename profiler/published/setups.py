"""Collect the times of runs, and those of a study with them, by what machine and library are called.

A setup is a machine with a library at a precision, such as "H200 with PyTorch 2.11 eager fp32, cuDNN 9.19": what a
published table has a row for.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import polars as pl

from engines.catalog import known
from profiler.published import references
from profiler.published.printed import MARKED, marks
from profiler.published.studies import STUDIES, Study
from profiler.results.cells import OK, cells
from profiler.results.columns import Group, names, place
from profiler.results.problems import OUT_OF_MEMORY, why_not
from profiler.results.run_files import json_object
from profiler.tables.numbers import natural

LEAST_BATCHES = 3
_BY = (
    *("machine", "cloud", "instance", "usd_per_hour", "device", "cudnn"),
    *(column for column in names(Group.VERSIONS) if column.endswith("_version")),
)
"""Rows that differ in one of these stand apart."""


def times(results: pl.DataFrame) -> pl.DataFrame:
    """Return one row a cell of the runs' machines, with what its machine and library are called.

    `library` names the `software` (runtime, version, variant and precision) with its `ending`, such as ", cuDNN 9.19";
    `runtime` is the software without the variant. `note` and `brief` say why a row has no figures, or have the marks of
    the `kinds` of its warnings. `low_ms` and `high_ms` are the ends of the interval of `latency_ms`; `device_ms` is the
    device's own time, or the latency where that is unknown or less. `updates` marks the rows with an optimizer's step,
    `to_image` those with the gradient of the network's input.
    """
    machine = pl.coalesce("machine", "gpu", pl.when(device="cpu").then(pl.lit("CPU")).otherwise(pl.lit("GPU")))
    rows = cells(results.with_columns(machine=machine), by=_BY)
    called = [(software(row, row["variant"]), software(row), ending(row)) for row in rows.iter_rows(named=True)]
    named = pl.DataFrame(called, schema=dict.fromkeys(("software", "runtime", "ending"), pl.String), orient="row")
    brief = pl.when(status="oom").then(pl.lit(OUT_OF_MEMORY)).when(~OK).then("status")
    kinds = pl.col("footnotes").list.set_intersection(pl.lit(list(MARKED)))
    return rows.with_columns(
        *named.with_columns(pl.col("runtime") + pl.col("ending"), library=pl.col("software") + pl.col("ending")),
        model=pl.coalesce("network", "model"),
        model_kind=pl.col("model_kind").fill_null("canonical"),
        updates=pl.col("optimizer").fill_null("none") != "none",
        to_image=pl.col("input_gradient").fill_null(False),
        note=pl.coalesce(why_not(), marks(kinds)),
        brief=pl.coalesce(brief, marks(kinds)),
        kinds=kinds,
        low_ms="latency_low_ms",
        high_ms="latency_high_ms",
        # The device cannot take longer than the call.
        device_ms=pl.min_horizontal("gpu_ms", "latency_ms"),
    ).with_columns(setup=pl.format("{} with {}", "machine", "library"))


def network_cells(results: pl.DataFrame) -> pl.DataFrame:
    """`times` of networks, without those of single layers."""
    return times(results).filter(pl.col("model_kind") != "layer")


def network_times(name: str, own: pl.DataFrame) -> pl.DataFrame:
    """A study's published rows, and after them the `own` ones of its networks and passes, in the networks' order.

    A row has `total_ms` and perhaps its parts, `per_item_ms` (the total per image), `ours`, and `counterpart`: whether
    it stands for the published library.
    """
    study, networks, published = STUDIES[name], references.network_names(name), published_times(name)
    both = published.filter(pl.col("swept"), pl.col("batch_size") == pl.lit(study.batch_size))
    mine = with_differences(of_study(name, own), study).drop("network")
    mine = mine.rename({"model": "network", "latency_ms": "total_ms"}).with_columns(
        ours=pl.lit(True),
        implementation="variant",
        called="library",
        counterpart=counterpart(study.counterpart),
        library="runtime" if "implementation" in study.columns else "library",
    )
    more = ["precision", "note", "brief", "kinds", "gpu_ms", "samples"]
    shared = [column for column in (*published.columns, *more) if column in mine.columns]
    rows = pl.concat([published, both.with_columns(swept=pl.lit(False)), mine.select(shared)], how="diagonal")
    return rows.with_columns(
        per_item_ms=pl.col("total_ms") / pl.col("batch_size"),
        published_network=pl.col("network").replace_strict(networks),
    ).sort(place("network", networks), maintain_order=True)


def of_study(name: str, own: pl.DataFrame) -> pl.DataFrame:
    """Return the `own` rows of a study's networks and passes, without an optimizer's step.

    A setup's rows are those at the published batch size, or where it has none all. In a study of minibatches those of a
    network at three sizes or more all stay, marked as `swept`.
    """
    study = STUDIES[name]
    usual = dict(references.networks(name).select("network", "batch_size").rows())
    is_usual = pl.col("batch_size") == (study.batch_size or pl.col("model").replace_strict(usual, default=None))
    networks = pl.col("model").is_in(list(references.network_names(name)))
    rows = own.filter(networks, pl.col("pass").is_in(study.passes), ~pl.col("updates"))
    family = ["setup", "model", "pass"]
    several = pl.col("batch_size").n_unique().over(family) >= LEAST_BATCHES
    rows = rows.with_columns(swept=several & pl.lit("minibatch" in study.tables))
    return rows.filter(pl.col("swept") | is_usual | ~is_usual.any().over(family))


def with_differences(own: pl.DataFrame, study: Study) -> pl.DataFrame:
    """Own times; names say where the study computed the gradient of the image and the row did not, or inversely."""
    differs = pl.col("to_image") != pl.col("model").is_in(study.input_gradient)
    word = pl.when("to_image").then(pl.lit("with")).otherwise(pl.lit("without"))
    says = pl.when(differs, pl.col("pass") == "training").then(pl.format(", {} the image's gradient", word))
    return own.with_columns(pl.col("library", "runtime", "setup", "ending") + says.otherwise(pl.lit("")))


def published_times(name: str) -> pl.DataFrame:
    """A study's published rows, marked as not ours."""
    return references.networks(name).with_columns(
        pl.lit("training").alias("pass"),
        software="called",
        ending=pl.lit(""),
        ours=pl.lit(False),
        counterpart=pl.lit(False),
        device_ms="total_ms",
        **dict.fromkeys(("low_ms", "high_ms"), pl.lit(None, pl.Float64)),
        clock=pl.lit(None, pl.String),
    )


def counterpart(variants: Sequence[str]) -> pl.Expr:
    """Whether a row is of the first of some variants in fp32 that its machine measured in that pass.

    On a machine that has none of them it is what speed-ups are relative to.
    """
    rank = pl.when(pl.col("variant").is_in(variants), precision="fp32").then(place("variant", variants))
    first = rank.filter(pl.col("status") == "ok").min().over("machine", "device", "pass")
    return pl.coalesce((rank == first).fill_null(value=False) | first.is_null() & pl.col("is_base"), False)


def one_each(rows: pl.DataFrame, by_release: bool, name: str = "machine") -> pl.DataFrame:
    """Of each value of the column `name` and network the row with the newest release of its library, else the fastest.

    `rows` have `ms`; those without a time are left out, so that an older release stands for one that could not run.
    """
    # 2.9 before 2.11, and no library before all.
    release = pl.col("library").replace("None", "").map_elements(natural, return_dtype=pl.String)
    order = release if by_release else pl.col("ms")
    ordered = rows.drop_nulls("ms").sort(order, descending=by_release, maintain_order=True)
    return ordered.unique([name, "network"], keep="first", maintain_order=True)


def geometric_mean(values: pl.Expr) -> pl.Expr:
    """Return the geometric mean of what is known of ratios or times above 0; null without any."""
    return values.log().mean().exp()


def fastest(rows: pl.DataFrame, name: str, *within: str) -> pl.DataFrame:
    """Of each of `within` the value of `name` with the lowest geometric mean of times, of those with most networks."""
    figures = {"count": pl.col("network").n_unique(), "mean": geometric_mean(pl.col("ms"))}
    means = rows.drop_nulls("ms").group_by(*within, name).agg(**figures)
    ranked = means.sort("count", "mean", name, descending=[True, False, False])
    return ranked.unique(within, keep="first", maintain_order=True) if within else ranked.head(1)


def ranked(rows: pl.DataFrame, total: str, *within: str) -> pl.DataFrame:
    """Sorted by the column `total` per image, their `rank` within others that agree in some columns; blanks last."""
    per_item = pl.col(total) / pl.col("batch_size")
    rank = per_item.rank("ordinal").cast(pl.Int64)
    ranked = rows.with_columns(per_item_ms=per_item, rank=rank.over(within) if within else rank)
    return ranked.sort("rank", nulls_last=True, maintain_order=True)


def software(row: Mapping[str, Any], variant: str = "") -> str:
    """What a row of results ran in, like "PyTorch 2.11 eager fp32"."""
    engine = known(row["engine"])
    version = _release(row[engine.version.column]) if engine.version else ""
    return " ".join(filter(None, [engine.library, version, variant, row["precision"]]))


def ending(row: Mapping[str, Any]) -> str:
    """The cuDNN that a row ran with, and what else it did than the published ones, like ", cuDNN 9.19, with loss"."""
    words = []
    if row["device"] == "cuda" and known(row["engine"]).uses_cudnn and row["cudnn"] is not None:
        without = json_object(row["options"]).get("cudnn", True) is False
        words.append("no cuDNN" if without else f"cuDNN {_cudnn_release(row['cudnn'])}")
    if row["network"] not in (None, row["model"]):
        words.append(f"as {row['model']}")
    if row["optimizer"] not in (None, "none"):
        words.append(f"optimizer {row['optimizer']}")
    if row["dropout"]:
        words.append("dropout on")
    # The published ones began their backward pass with a gradient of the network's output.
    if row["pass"] == "training" and row["model_kind"] != "layer" and row["head"] != "logits":
        words.append("with loss")
    return "".join(f", {word}" for word in words)


def _cudnn_release(number: str) -> str:
    """cuDNN's own number as people write it: 91900 is 9.19, 8902 is 8.9."""
    if not number.isdigit():
        return _release(number)
    value = int(number)
    thousands = 10_000 if value >= 90_000 else 1_000
    return f"{value // thousands}.{value % thousands // 100}"


def _release(version: str | None) -> str:
    """2.11.0+cu130 as 2.11."""
    return ".".join((version or "").partition("+")[0].split(".")[:2])
