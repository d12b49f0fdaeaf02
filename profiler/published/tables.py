"""What enters: results of one or several runs, and references/. What leaves: tables in the published form, ours marked.

The published rows and ours stand together, ranked by time. A row of ours that was measured at another batch size than
the published is ranked by its time per image, and the table says so.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import polars as pl

from profiler.published import references, setups
from profiler.published.layers import layer_tables
from profiler.published.printed import Printed
from profiler.published.study import study_tables
from profiler.tables.numbers import count
from profiler.tables.writers import escape_markdown

Environment = Mapping[str, Any]
"""What environment.json holds; `machine` is what to call it, as in profiler.results.reading.Run."""

_PASSES = {"forward_ms": "Forward (ms)", "backward_ms": "Backward (ms)", "total_ms": "Total (ms)"}
_HARDWARE = {
    "gpu": "GPU",
    "cloud": "Cloud",
    "instance": "Instance Name",
    "memory": "Memory",
    "architecture": "Architecture",
    "cuda_cores": "CUDA Cores",
    "fp32_tflops": "FP32 TFLOPS",
    "release_date": "Release Date",
}
_COST = {
    "machine": "Machine",
    "instance": "Instance Name",
    "usd_per_hour": "USD/h",
    "pass": "Pass",
    "library": "Library",
    "batch_size": "Batch",
    "throughput": "Images/s",
    "usd_per_million_items": "USD/1M images",
    "items_per_usd": "Images/USD",
}


def published_tables(study: str, results: pl.DataFrame, environments: Sequence[Environment] = ()) -> list[Printed]:
    """Every table of the study to which the results have something to say; `environments` are the runs' own.

    Raises ConfigError where references/ is missing.
    """
    own = setups.times(results).filter(pl.col("model_kind") != "layer")
    tables = [] if study == "gpu-study" else [network_table(study, own)]
    if study == "convnet-benchmarks":
        tables += layer_tables(results)
    if study == "gpu-study":
        tables += study_tables(own)
    if study != "convnet-benchmarks":
        tables.append(hardware_table(study, own, environments))
    tables.append(cost_table(study, own))
    return [table for table in tables if table.frame["ours"].any()]


def network_times(study: str, own: pl.DataFrame) -> pl.DataFrame:
    """Published and own rows of the study's networks together, as `references.networks` has them.

    `per_item_ms` is the total per image; `rank` counts by it within a network, null where there is no time. `ours`
    marks the own rows: those at the published batch size, or where a setup has none, whatever it has.
    """
    published = references.networks(study).with_columns(ours=pl.lit(False), plain=pl.lit(False))
    usual = published.select("network", "published_network", usual="batch_size").unique()
    mine = (
        own.filter(pl.col("pass") == "training", ~pl.col("swept"), ~pl.col("updates"))
        .rename({"model": "network", "latency_ms": "total_ms"})
        .join(usual, on="network")
        .filter(setups.nearest_batch("setup", "network"))
        .with_columns(ours=pl.lit(True), implementation=pl.col("variant"), called=pl.col("library"))
    )
    if study == "convnet-benchmarks":  # Its tables have a column for what the variant is.
        mine = mine.with_columns(library="runtime")
    mine = mine.select(c for c in mine.columns if c in (*published.columns, "note"))
    both = pl.concat([published, mine], how="diagonal")
    total = pl.col("total_ms") / pl.col("batch_size")
    rank = pl.col("per_item_ms").rank("ordinal").over("network").cast(pl.Int64)
    place = references.place(study, "network")
    return (
        both.with_columns(per_item_ms=total)
        .with_columns(rank=rank)
        .sort(place, "rank", nulls_last=True, maintain_order=True)
    )


def network_table(study: str, own: pl.DataFrame) -> Printed:
    """`GPU | cuDNN | Forward | Backward | Total`, or 002's `Library | Class/Function | Total | forward | backward`."""
    frame = network_times(study, own)
    differs = batches_differ(frame)
    more = {"batch_size": "Batch", "per_item_ms": "Per image (ms)"} if differs else {}
    if study == "convnet-benchmarks":
        names = {"machine": "GPU", "library": "Library", "implementation": "Class/Function"}
        passes = {"total_ms": "Time (ms)", "forward_ms": "forward (ms)", "backward_ms": "backward (ms)"}
    else:
        names, passes = {"machine": "GPU", "library": "cuDNN"}, _PASSES
    title = f"{references.STUDIES[study].title}: forward and backward pass"
    note = "Batch sizes differ: ranked by the time per image." if differs else ""
    return Printed(
        *("networks", title, frame, names | passes | more | {"note": "Note"}, "published_network", note),
        whole=study == "convnet-benchmarks",
    )


def batches_differ(frame: pl.DataFrame) -> bool:
    """Whether a network's rows were measured at more than one batch size."""
    return bool((frame.group_by("network").agg(pl.col("batch_size").n_unique())["batch_size"] > 1).any())


def hardware_table(study: str, own: pl.DataFrame, environments: Sequence[Environment]) -> Printed:
    """The published GPUs and the own machines, with cloud and instance.

    Of an own machine memory is the system's figure, and TFLOPS what its matrix products were measured to reach, which
    is no data sheet's number. An own machine of which nothing is known is left out.
    """
    rows = []
    for machine in own.select("machine", "cloud", "instance", "device").unique(maintain_order=True).to_dicts():
        facts = _environment_of(machine["machine"], environments)
        memory = facts.get("gpu_memory_mib") if machine["device"] == "cuda" else facts.get("memory_mib")
        roof = (facts.get("roofs") or {}).get("fp32_tflops")
        rows.append(
            {
                "gpu": machine["machine"],
                "cloud": machine["cloud"],
                "instance": machine["instance"],
                "memory": f"{count(memory / 1024)}GiB" if memory else None,
                "fp32_tflops": roof,
                "ours": True,
            }
        )
    published = references.hardware(study).with_columns(ours=pl.lit(False))
    texts = dict.fromkeys(("gpu", "cloud", "instance", "memory"), pl.String)
    mine = pl.DataFrame(rows, schema={**texts, "fp32_tflops": pl.Float64, "ours": pl.Boolean})
    mine = mine.filter(pl.any_horizontal(pl.col("cloud", "instance", "memory", "fp32_tflops").is_not_null()))
    frame = pl.concat([mine, published], how="diagonal").select(published.columns)
    note = "Own rows: memory as the system tells it, FP32 TFLOPS as measured in matrix products."
    return Printed("hardware", "The machines", frame, _HARDWARE, note=note)


def cost_table(study: str, own: pl.DataFrame) -> Printed:
    """What a million images cost, cheapest first, where the machine's price is known: back-to-back, at full load."""
    names = references.network_names(study)
    known = own.filter(pl.col("usd_per_million_items").is_not_null(), pl.col("model").is_in(list(names)))
    ranked = known.filter(~pl.col("swept")).sort(references.place(study, "model"), "pass", "usd_per_million_items")
    frame = ranked.select(pl.col("model").replace(names).alias("network"), *_COST, pl.lit(True).alias("ours"))
    return Printed("cost", "What a million images cost", frame, _COST, "network")


def markdown(study: str, tables: Sequence[Printed]) -> str:
    """The tables as one page."""
    told = references.STUDIES[study]
    title = escape_markdown(told.title)
    source = f"[{title}]({told.address})" if told.address else f'"{title}"'
    lead = f"# {title}: published and own figures\n\nOwn rows are **bold**; the others are {source}'s.\n"
    return "\n".join([lead, *(table.markdown() for table in tables)])


def write_published(folder: Path, study: str, tables: Sequence[Printed]) -> None:
    """published.md, and published-<table>.csv for each of the tables."""
    folder.mkdir(parents=True, exist_ok=True)
    for table in tables:
        table.write_csv(folder)
    (folder / "published.md").write_text(markdown(study, tables))


def _environment_of(machine: str, environments: Sequence[Environment]) -> Environment:
    for facts in environments:
        if machine in (facts.get("machine"), facts.get("gpu"), facts.get("cpu")):
            return facts
    return {}
