"""Make the tables of a study's machines: the cards, the computers around them, and what a million images cost there."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import polars as pl

from profiler.published import references, setups
from profiler.published.printed import NOTES, Printed, label, measure, money, rates
from profiler.published.studies import STUDIES
from profiler.results.columns import place
from profiler.tables.numbers import compact, count, whole
from profiler.tables.table import figure, words

Environment = Mapping[str, Any]
"""What environment.json holds; `machine` is what to call it, as in profiler.results.reading.Run."""

_NOTE = (
    "Own rows: what the run knew of its machine. Memory is as the system reports it; TFLOPS were measured in matrix"
    " products, bandwidth in a copy (bytes read and written); the price is the one given, by the hour."
)
_HOST_NOTE = "Own rows: cores are those that the run could use, CUDA is that of its PyTorch."


def _known(digits: Any) -> Any:
    """A format of published figures, and of own ones with the word that they were measured."""

    def cells(values: Iterable[float | None], ours: Iterable[bool]) -> list[str]:
        rows = zip(values, ours, strict=True)
        return ["" if v is None else f"{digits(v)} measured" if own else digits(v) for v, own in rows]

    return cells


_CARDS = [
    *(label("gpu", "GPU", link="url"), words("Cloud", "cloud", link="cloud_url"), words("Instance Name", "instance")),
    *(words("Memory", "memory"), words("Architecture", "architecture"), figure("CUDA Cores", "cuda_cores", whole)),
    figure("FP32 TFLOPS", ("fp32_tflops", "ours"), _known(measure)),
    figure("Base Clock (MHz)", "base_clock_mhz", whole),
    figure("Bandwidth (GB/s)", ("bandwidth_gb_s", "ours"), _known(compact)),
    *(words("Compute Capability", "compute_capability"), words("Price (USD)", "price")),
    words("Release Date", "release_date"),
]
_HOSTS = [
    *(label("machine", "GPU"), words("Processor", "cpu"), words("Cores", "cores"), words("Clock (GHz)", "clock_ghz")),
    *(words("Memory", "memory"), words("System", "os"), words("CUDA", "cuda")),
]
_COSTS = [
    *(label("machine", "Machine"), label("instance", "Instance Name"), figure("USD/h", "usd_per_hour", money)),
    *(label("pass", "Pass"), label("library", "Library"), figure("Batch", "batch_size", whole)),
    *(figure("Images/s", "throughput", rates), figure("USD/1M images", "usd_per_million_items", money)),
    *(figure("Images/USD", "items_per_usd", rates), figure("J/image", "joules_per_item", money)),
    figure("kWh/1M images", "kwh_per_million_items", money),
]
_FULL_LOAD = "Back-to-back calls, at full load."
_ENERGY = "Energy is the whole card's by its own counter, idle power included; the host's is not in it."


def hardware_table(name: str, own: pl.DataFrame, environments: Sequence[Environment]) -> Printed:
    """The published GPUs and the own machines, with cloud, instance and price; of an own one what is known."""
    rows = []
    known = own.select("machine", "cloud", "instance", "usd_per_hour", "device").unique(maintain_order=True)
    for machine in known.to_dicts():
        facts = _environment_of(machine["machine"], environments)
        roofs = facts.get("roofs") or {}
        price = machine["usd_per_hour"]
        rows.append(
            {
                "gpu": machine["machine"],
                "cloud": machine["cloud"],
                "instance": machine["instance"],
                "memory": _gibibytes(facts.get("gpu_memory_mib" if machine["device"] == "cuda" else "memory_mib")),
                "fp32_tflops": roofs.get("fp32_tflops"),
                "bandwidth_gb_s": roofs.get("copy_gb_s"),
                "compute_capability": facts.get("compute_capability"),
                "price": None if price is None else f"{compact(price)} an hour",
            }
        )
    return Printed("hardware", "The machines", _with_own(references.hardware(name), rows, "gpu"), _CARDS, note=_NOTE)


def host_table(name: str, own: pl.DataFrame, environments: Sequence[Environment]) -> Printed:
    """The computers around the published GPUs and the own: processor, memory, system and CUDA."""
    rows = []
    for machine in own["machine"].unique(maintain_order=True):
        facts = _environment_of(machine, environments)
        rows.append(
            {
                "machine": machine,
                "cpu": facts.get("cpu"),
                "cores": str(facts["cpu_cores"]) if facts.get("cpu_cores") else None,
                "memory": _gibibytes(facts.get("memory_mib")),
                "os": facts.get("platform"),
                "cuda": facts.get("cuda"),
            }
        )
    frame = _with_own(references.machines(name), rows, "machine")
    return Printed("hosts", "The computers around them", frame, _HOSTS, note=_HOST_NOTE)


def _with_own(published: pl.DataFrame, rows: Sequence[Mapping[str, Any]], name: str) -> pl.DataFrame:
    """Own rows of which more than the name is known, and after them the published."""
    known = [row for row in rows if any(value is not None for key, value in row.items() if key != name)]
    mine = pl.DataFrame(known, schema=published.schema).with_columns(ours=pl.lit(value=True))
    return pl.concat([mine, published.with_columns(ours=pl.lit(value=False))])


def _gibibytes(mebibytes: float | None) -> str | None:
    return f"{count(mebibytes / 1024)}GiB" if mebibytes else None


def _environment_of(machine: str, environments: Sequence[Environment]) -> Environment:
    of_it = (facts for facts in environments if machine in (facts.get("machine"), facts.get("gpu"), facts.get("cpu")))
    return next(of_it, {})


def cost_table(name: str, own: pl.DataFrame, environments: Sequence[Mapping[str, Any]]) -> Printed:
    """A section a network, a row a setup, cheapest first: of setups whose price or whose energy is known.

    A price is what the user stated; the note says from where, as `environments` have it in `price_source`.
    """
    names = references.network_names(name)
    joules = pl.col("energy_mj_per_item") / 1e3
    rows = setups.with_differences(own, STUDIES[name])
    known = rows.filter(
        pl.any_horizontal(pl.col("usd_per_million_items", "energy_mj_per_item").is_not_null()),
        pl.col("model").is_in(list(names)),
    ).with_columns(joules_per_item=joules, kwh_per_million_items=joules * 1e6 / 3.6e6)
    order = [place("model", names), "pass", "usd_per_million_items", "joules_per_item"]
    ranked = known.sort(order, nulls_last=True)
    columns = [column for field in _COSTS for column in field.columns]
    frame = ranked.select(pl.col("model").replace(names).alias("network"), *columns, *NOTES, "kinds", ours=True)
    fields = [field for field in _COSTS if frame[field.columns[0]].count()]
    measured_energy = frame["joules_per_item"].count() > 0
    note = " ".join([_FULL_LOAD, *_prices(frame, environments), *([_ENERGY] if measured_energy else [])])
    return Printed("cost", "What a million images cost", frame, fields, "network", note)


def _prices(frame: pl.DataFrame, environments: Sequence[Mapping[str, Any]]) -> list[str]:
    """One sentence with every machine's price, and where it comes from."""
    stated = []
    for machine, price in frame.select("machine", "usd_per_hour").drop_nulls().unique(maintain_order=True).rows():
        of_it = (one for one in environments if (one.get("machine"), one.get("usd_per_hour")) == (machine, price))
        source = next((one["price_source"] for one in of_it if one.get("price_source")), None)
        stated.append(f"{machine}: {measure(price)} USD an hour ({source or 'as the user stated it'})")
    return [f"Stated prices: {'; '.join(stated)}."] if stated else []
