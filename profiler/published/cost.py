"""Make the table of what a million images cost: in dollars at the machine's stated price, and in electricity."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import polars as pl

from profiler.published import references, setups
from profiler.published.printed import NOTES, Printed, label, measure, money, rates
from profiler.published.studies import STUDIES
from profiler.tables.numbers import whole
from profiler.tables.table import figure

_FIELDS = [
    *(label("machine", "Machine"), label("instance", "Instance Name"), figure("USD/h", "usd_per_hour", money)),
    *(label("pass", "Pass"), label("library", "Library"), figure("Batch", "batch_size", whole)),
    *(figure("Images/s", "throughput", rates), figure("USD/1M images", "usd_per_million_items", money)),
    *(figure("Images/USD", "items_per_usd", rates), figure("J/image", "joules_per_item", money)),
    figure("kWh/1M images", "kwh_per_million_items", money),
]
_FULL_LOAD = "Back-to-back calls, at full load."
_ENERGY = "Energy is the whole card's by its own counter, idle power included; the host's is not in it."


def cost_table(name: str, own: pl.DataFrame, environments: Sequence[Mapping[str, Any]]) -> Printed:
    """A section a network, a row a setup, cheapest first: of setups whose price or whose energy is known.

    A price is what the user stated; the note says from where, as `environments` have it in `price_source`.
    """
    names = references.network_names(name)
    joules = pl.col("energy_mj_per_item") / 1e3
    rows = setups.with_differences(own, STUDIES[name])
    known = rows.filter(
        pl.any_horizontal(pl.col("usd_per_million_items", "energy_mj_per_item").is_not_null()),
        pl.col("model").is_in(list(names)) & ~pl.col("swept"),
    ).with_columns(joules_per_item=joules, kwh_per_million_items=joules * 1e6 / 3.6e6)
    order = [references.place(name, "model"), "pass", "usd_per_million_items", "joules_per_item"]
    ranked = known.sort(order, nulls_last=True)
    columns = [column for field in _FIELDS for column in field.columns]
    frame = ranked.select(pl.col("model").replace(names).alias("network"), *columns, *NOTES, "kinds", ours=True)
    fields = [field for field in _FIELDS if frame[field.columns[0]].count()]
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
