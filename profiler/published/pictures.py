"""Draw the picture that answers a suite's question: times or costs by network, or times over the batch size."""

from __future__ import annotations

import polars as pl

from exporters.catalog import LAYERS
from profiler.published import references
from profiler.published.comparing import per_network
from profiler.published.studies import STUDIES
from profiler.published.times import cost_rows, layer_times, study_times
from profiler.tables.pictures import dots, sweep

PASSES = {"training": "forward + backward", "inference": "forward"}


def picture(name: str, results: pl.DataFrame) -> str:
    """Return an SVG of what a million images cost, where it is known; else of sweeps, or of all times per image."""
    rows, unit = picture_rows(name, results)
    columns = [one for one in [*references.network_names(name).values(), *LAYERS] if one in rows["network"].unique()]
    of = ", forward, gradInput and gradWeight together" if columns[0] in LAYERS else ""
    draw = sweep if rows.filter("swept").height else dots
    return draw(rows, columns, f"{STUDIES[name].title}{of}", f"{unit}, on a logarithmic scale")


def picture_rows(name: str, results: pl.DataFrame) -> tuple[pl.DataFrame, str]:
    """Return what a picture shows, and the unit of its `value`: a row a `side`, `network`, `pass` and batch size."""
    study, names = STUDIES[name], references.network_names(name)
    rows, unit = per_network(name, study_times(name, results), layer_times(results)), "Milliseconds per image"
    rows = rows.with_columns(value="latency_ms", low="latency_low_ms", high="latency_high_ms")
    costs = cost_rows(name, results).drop_nulls("usd_per_million_items") if "cost" in study.tables else None
    if costs is not None and costs.height:
        value, unit = pl.col("usd_per_million_items"), "US dollars per million images"
        side = pl.format("{}, {}", "machine", "library")
        rows = costs.with_columns(value=value, low=value, high=value, side=side, swept=pl.lit(value=False))
    elif rows.filter("ours", "swept").height:
        value = pl.col("device_ms") / pl.col("batch_size")
        rows = rows.filter("swept").with_columns(value=value, low=value, high=value)
    else:
        rows = rows.filter(~pl.col("swept"))
    rows = rows.filter(pl.col("network").is_in(rows.filter("ours")["network"].unique().to_list())).select(
        *("side", "value", "low", "high", "batch_size", "swept", pl.col("pass").replace(PASSES)),
        network=pl.col("network").replace(names),
        kind=pl.when("ours").then("precision").otherwise(pl.lit("published")),
    )
    return rows, unit
