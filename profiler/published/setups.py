"""Collect the times of runs, and those of a study with them, by what machine and library are called.

A setup is a machine with a library at a precision, such as "H200 with PyTorch 2.11 eager fp32, cuDNN 9.19": what a
published table has a row for.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import polars as pl

from engines.catalog import known
from profiler.job.case import Role
from profiler.published import references
from profiler.published.studies import STUDIES, Study
from profiler.results.columns import place
from profiler.results.replicates import OK, OUT_OF_MEMORY, disturbed, merge, why_not, without_probes
from profiler.results.run_files import json_object
from profiler.results.speedups import geometric_mean
from profiler.results.warning_kinds import HOST_BOUND, qualifying
from profiler.tables.numbers import natural

_FIGURES = [
    *("latency_ms", "forward_ms", "backward_ms", "gpu_ms", "samples", "throughput", "peak_memory_mib"),
    *("usd_per_million_items", "items_per_usd", "energy_mj_per_item", "status", "reason", "warnings"),
]
_KEYS = [
    *("model", "model_kind", "pass", "batch_size", "device", "machine", "cloud", "instance", "usd_per_hour"),
    *("software", "ending", "runtime", "variant", "precision", "swept", "updates", "is_base", "to_image"),
]


def times(results: pl.DataFrame) -> pl.DataFrame:
    """One row a cell of the matrix: keys, medians over its replicates, and in `note` and `brief` why it has no figures.

    `kinds` has those of its warnings that a table marks, whose marks are in the notes, and `disturbed`, as text, those
    with which no factor counts. `judged_ms` is the time on which sentences rest: the device's own where it is known,
    and no more than the latency. `host_set` says that it is not known, and the host sets the row's time or nearly.
    `low_ms` and `high_ms` are the ends of the interval of `latency_ms`, or null; of several replicates the widest, and
    no closer than they are apart.

    `library` names the `software` (runtime, version, variant and precision) with its `ending`, such as ", cuDNN 9.19";
    `runtime` is the software without the variant. `swept` marks the rows of a batch sweep, `updates` those with an
    optimizer's step, `to_image` those with the gradient of the network's input. Probes for the largest batch are left
    out.
    """
    rows = without_probes(results)
    names = [(software(row, row["variant"]), software(row), ending(row)) for row in rows.iter_rows(named=True)]
    named = pl.DataFrame(names, schema=dict.fromkeys(("software", "runtime", "ending"), pl.String), orient="row")
    labelled = rows.with_columns(
        *named.get_columns(),
        machine=pl.coalesce("machine", "gpu", pl.when(device="cpu").then(pl.lit("CPU")).otherwise(pl.lit("GPU"))),
        model=pl.coalesce("network", "model"),
        model_kind=pl.col("model_kind").fill_null("canonical"),
        swept=pl.col("role") == Role.SWEEP,
        updates=pl.col("optimizer").fill_null("none") != "none",
        to_image=pl.col("input_gradient").fill_null(False),
    )
    brief, kinds = pl.when(status="oom").then(pl.lit(OUT_OF_MEMORY)).when(~OK).then("status"), pl.col("warnings")
    cells = merge(labelled, _KEYS, _FIGURES, **_ends())
    return cells.with_columns(
        library=pl.format("{}{}", "software", "ending"),
        runtime=pl.format("{}{}", "runtime", "ending"),
        note=pl.coalesce(why_not(), marks(kinds)),
        brief=pl.coalesce(brief, marks(kinds)),
        disturbed=disturbed(kinds),
        kinds=kinds.list.set_intersection(pl.lit([kind.kind for kind in qualifying()])),
        # The device cannot take longer than the call.
        judged_ms=pl.min_horizontal("gpu_ms", "latency_ms"),
        host_set=kinds.list.contains(HOST_BOUND) & pl.col("gpu_ms").is_null(),
        setup=pl.format("{} with {}{}", "machine", "software", "ending"),
    ).drop("warnings")


def network_cells(results: pl.DataFrame) -> pl.DataFrame:
    """`times` of networks, without those of single layers."""
    return times(results).filter(pl.col("model_kind") != "layer")


def marks(kinds: pl.Expr) -> pl.Expr:
    """The marks of what a table says of rows with lists of kinds of warnings, such as "h x"; null without any."""
    found = [pl.when(kinds.list.contains(kind.kind)).then(pl.lit(kind.mark)) for kind in qualifying()]
    text = pl.concat_str(found, separator=" ", ignore_nulls=True)
    return pl.when(text != "").then(text)


def _ends() -> dict[str, pl.Expr]:
    """The ends of the interval of replicates' median latencies."""
    ms, several = pl.col("latency_ms").filter(OK), OK.sum() > 1
    low, high = (pl.col(f"latency_ci_{end}_ms").filter(OK) for end in ("low", "high"))
    return {
        "low_ms": pl.when(several).then(pl.min_horizontal(low.min(), ms.min())).otherwise(low.min()),
        "high_ms": pl.when(several).then(pl.max_horizontal(high.max(), ms.max())).otherwise(high.max()),
    }


def network_times(name: str, own: pl.DataFrame) -> pl.DataFrame:
    """A study's published rows, and after them the `own` ones of its networks and passes, in the networks' order.

    A row has `total_ms` and perhaps its parts, `per_item_ms` (the total per image), `ours`, and `counterpart`: whether
    it stands for the published library.
    """
    study, names, published = STUDIES[name], references.network_names(name), published_times(name)
    # At the usual batch size a row of a sweep is one of the plain table, too.
    both = published.filter(pl.col("swept"), pl.col("batch_size") == pl.lit(study.batch_size))
    mine = with_differences(of_study(name, own), study)
    mine = mine.rename({"model": "network", "latency_ms": "total_ms"}).with_columns(
        ours=pl.lit(True),
        implementation="variant",
        called="library",
        counterpart=counterpart(study.counterpart),
        library="runtime" if "implementation" in study.columns else "library",
    )
    more = ["precision", "note", "brief", "kinds", "gpu_ms", "low_ms", "high_ms", "samples"]
    shared = [column for column in (*published.columns, *more) if column in mine.columns]
    rows = pl.concat([published, both.with_columns(swept=pl.lit(False)), mine.select(shared)], how="diagonal")
    return rows.with_columns(
        per_item_ms=pl.col("total_ms") / pl.col("batch_size"), published_network=pl.col("network").replace_strict(names)
    ).sort(place("network", names), maintain_order=True)


def of_study(name: str, own: pl.DataFrame) -> pl.DataFrame:
    """The `own` rows of a study's networks and passes, without an optimizer's step.

    Of a setup those at the published batch size, or where it has none all; and every row of a batch sweep.
    """
    study = STUDIES[name]
    usual = dict(references.networks(name).select("network", "batch_size").rows())
    is_usual = pl.col("batch_size") == (study.batch_size or pl.col("model").replace_strict(usual, default=None))
    networks = pl.col("model").is_in(list(references.network_names(name)))
    rows = own.filter(networks, pl.col("pass").is_in(study.passes), ~pl.col("updates"))
    return rows.filter(pl.col("swept") | is_usual | ~is_usual.any().over("setup", "model", "pass", "swept"))


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
        disturbed=pl.lit(None, pl.String),
        judged_ms="total_ms",
        host_set=pl.lit(False),
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
