"""Make the tables of a study with the rows of runs among its figures, ours marked.

The published rows and ours are ranked together by time. A row of ours that was measured at another batch size than the
published is ranked by its time per image, and the table says so.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import polars as pl

from profiler.published import references, setups
from profiler.published.cost import cost_table
from profiler.published.layers import layer_tables
from profiler.published.printed import (
    NOTES,
    SAME_BATCH,
    Printed,
    device_time,
    joined_kinds,
    joined_notes,
    label,
    measures,
    milliseconds,
    per_image,
    uncertainty,
)
from profiler.published.studies import STUDIES, Study
from profiler.tables.numbers import count, whole
from profiler.tables.table import figure
from profiler.tables.writers import MARK, escape_markdown

Environment = Mapping[str, Any]
"""What environment.json holds; `machine` is what to call it, as in profiler.results.reading.Run."""

_PICTURES = "The source printed its figures as pictures: only those in its text are here."
_BOLD = "**Bold** is the lowest time of a column, among the published rows and among the own ones."
_SECTIONS = {"inference": "forward", "training": "forward + backward"}
_HARDWARE = [
    *(label("gpu", "GPU"), label("cloud", "Cloud"), label("instance", "Instance Name"), label("memory", "Memory")),
    *(label("architecture", "Architecture"), figure("CUDA Cores", "cuda_cores", whole)),
    *(figure("FP32 TFLOPS", "fp32_tflops", measures), label("release_date", "Release Date")),
]


def published_tables(name: str, results: pl.DataFrame, environments: Sequence[Environment] = ()) -> list[Printed]:
    """Every table of the study to which the results have something to say; `environments` are the runs' own.

    Raises ConfigError where references/ is missing.
    """
    own = setups.times(results).filter(pl.col("model_kind") != "layer")
    tables = [table for form in STUDIES[name].tables for table in TABLES[form](name, own, results)]
    tables += [hardware_table(name, own, environments), cost_table(name, own, environments)]
    return [table for table in tables if table.frame["ours"].any()]


def network_table(name: str, own: pl.DataFrame, _: pl.DataFrame) -> list[Printed]:
    """A section a network, a row a setup: the times of its passes."""
    study = STUDIES[name]
    rows = setups.network_times(name, own).filter(pl.col("pass") == "training", ~pl.col("swept"))
    inner = ["pass", "swept", "software", "ending", "judged_ms", "host_set"]
    frame = setups.ranked(rows.drop(inner), "total_ms", "network")
    frame = frame.sort(references.place(name, "network"), maintain_order=True)
    fields = [milliseconds(c, h) if c.endswith("_ms") else label(c, h) for c, h in study.columns.items()]
    fields += [uncertainty(), device_time()]
    note = ""
    if (frame.group_by("network").agg(pl.col("batch_size").n_unique())["batch_size"] > 1).any():
        fields += per_image("Per image (ms)")
        note = "Batch sizes differ: ranked by the time per image."
    title = f"{study.title}: forward and backward pass"
    return [Printed("networks", title, frame, fields, "published_network", note, contest=SAME_BATCH)]


def framework_table(name: str, own: pl.DataFrame, _: pl.DataFrame) -> list[Printed]:
    """A section a pass, a row a setup, a column a network, blank where that ran out of memory."""
    rows = _of_both_passes(name, own).filter(~pl.col("swept"))
    keys = ["section", "machine", "library", "batch_size", "ours"]
    ranked = rows.with_columns(
        *(pl.format("{}: {}", "published_network", note).alias(note) for note in NOTES),
        place=pl.col("per_item_ms").rank().over("section", "network"),
    )
    about = ranked.group_by(keys, maintain_order=True).agg(pl.col("place").mean(), joined_kinds(), *joined_notes())
    wide = rows.pivot("published_network", index=keys, values="ms", maintain_order=True, aggregate_function="first")
    frame = wide.join(about, on=keys).sort("section", "place", nulls_last=True)
    fields = [label(column, heading) for column, heading in STUDIES[name].columns.items()]
    title = "GPU vs Framework vs Network: milliseconds"
    if frame["batch_size"].n_unique() > 1:
        fields.append(figure("Batch", "batch_size", whole))
    else:
        title += f", {STUDIES[name].batch_size} samples per minibatch"
    fields += [milliseconds(network, network) for network in rows["published_network"].unique(maintain_order=True)]
    return [Printed("frameworks", title, frame, fields, "section", _PICTURES, data=rows, contest=SAME_BATCH)]


def minibatch_table(name: str, own: pl.DataFrame, _: pl.DataFrame) -> list[Printed]:
    """A section a network, a row a setup and pass, a column a batch size: milliseconds per sample."""
    swept = _of_both_passes(name, own).filter("swept")
    keys = ["published_network", "machine", "library", "section", "ours"]
    noted = swept.drop_nulls("note").sort("batch_size", maintain_order=True)
    size, listed = pl.col("batch_size"), pl.col("batch_size").cast(pl.String).str.join(", ")
    # What failed at a size is not repeated for larger ones.
    sizes = pl.when(pl.col("per_item_ms").is_null().all()).then(size.min().cast(pl.String)).otherwise(listed)
    notes = (
        noted.group_by(*keys, *NOTES, maintain_order=True)
        .agg(joined_kinds(), at=sizes)
        .with_columns(pl.format("{} at {}", note, "at").alias(note) for note in NOTES)
        .group_by(keys)
        .agg(joined_kinds(), *joined_notes())
    )
    by_size = swept.sort("batch_size", maintain_order=True).with_columns(pl.col("batch_size").cast(pl.String))
    # Of runs that differ only in the machine's price, the faster.
    wide = by_size.pivot("batch_size", index=keys, values="per_item_ms", maintain_order=True, aggregate_function="min")
    order = swept.select("published_network").unique(maintain_order=True)
    frame = order.join(wide, on="published_network", maintain_order="left_right").join(
        notes, on=keys, how="left", maintain_order="left"
    )
    fields = [label(column, heading) for column, heading in STUDIES[name].columns.items()]
    fields.append(label("section", "Pass"))
    fields += [milliseconds(size, size) for size in by_size["batch_size"].unique(maintain_order=True)]
    title = "Minibatch efficiency: milliseconds per sample, by samples per minibatch"
    same_pass = pl.format("{} {}", "ours", "section")
    return [Printed("minibatch", title, frame, fields, "published_network", _PICTURES, data=swept, contest=same_pass)]


TABLES: Mapping[str, Callable[[str, pl.DataFrame, pl.DataFrame], list[Printed]]] = {
    "networks": network_table,
    "layers": layer_tables,
    "frameworks": framework_table,
    "minibatch": minibatch_table,
}
"""What makes them, given a study's name, the runs' times (`setups.times`) and their results."""


def hardware_table(name: str, own: pl.DataFrame, environments: Sequence[Environment]) -> Printed:
    """The published GPUs and the own machines, with cloud and instance; empty where none were published.

    Of an own machine memory is the system's figure, and TFLOPS what its matrix products were measured to reach, which
    is no data sheet's number. An own machine of which nothing is known is left out.
    """
    rows = []
    for machine in own.select("machine", "cloud", "instance", "device").unique(maintain_order=True).to_dicts():
        facts = _environment_of(machine["machine"], environments)
        memory = facts.get("gpu_memory_mib" if machine["device"] == "cuda" else "memory_mib")
        known = {
            "cloud": machine["cloud"],
            "instance": machine["instance"],
            "memory": f"{count(memory / 1024)}GiB" if memory else None,
            "fp32_tflops": (facts.get("roofs") or {}).get("fp32_tflops"),
        }
        if any(value is not None for value in known.values()):
            rows.append({"gpu": machine["machine"], **known, "ours": True})
    published = references.hardware(name).with_columns(ours=pl.lit(False))
    mine = pl.DataFrame(rows if len(published) else [], schema=published.schema)
    note = "Own rows: memory as the system reports it, FP32 TFLOPS as measured in matrix products."
    return Printed("hardware", "The machines", pl.concat([mine, published]), _HARDWARE, note=note)


def link(study: Study) -> str:
    """Its title in Markdown, which leads to its address if it has one."""
    title = escape_markdown(study.title)
    return f"[{title}]({study.address})" if study.address else title


def markdown(name: str, tables: Sequence[Printed], pictures: Mapping[str, Sequence[str]]) -> str:
    """The tables as one page, each below its pictures, which are paragraphs by the name of the table."""
    study = STUDIES[name]
    source = link(study) if study.address else f'"{link(study)}"'
    title = f"# {escape_markdown(study.title)}: published and own figures"
    lead = f"{title}\n\nOwn rows are marked {MARK}; the others are {source}'s. {_BOLD}\n"
    return "\n".join([lead, *(table.markdown(pictures.get(table.name, ())) for table in tables)])


def _of_both_passes(name: str, own: pl.DataFrame) -> pl.DataFrame:
    """The rows of the study's networks, with the heading of their pass in `section`."""
    return setups.network_times(name, own).select(
        *("machine", "library", "setup", "batch_size", "network", "pass"),
        pl.col("total_ms").alias("ms"),
        *("swept", "counterpart", "device", "note", "ours", "per_item_ms", "published_network"),
        *("gpu_ms", "low_ms", "high_ms", "samples", "kinds"),
        pl.col("pass").replace(_SECTIONS).alias("section"),
        "brief",
    )


def _environment_of(machine: str, environments: Sequence[Environment]) -> Environment:
    of_it = (facts for facts in environments if machine in (facts.get("machine"), facts.get("gpu"), facts.get("cpu")))
    return next(of_it, {})
