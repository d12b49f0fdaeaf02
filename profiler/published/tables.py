"""Make a study's tables and picture with the rows of runs among its figures, ours marked, ranked per image."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import repeat
from typing import Any

import polars as pl

from exporters.catalog import LAYERS
from profiler.published import references
from profiler.published.comparing import OWN, claims, conclusions, matrix, per_network, represented
from profiler.published.studies import STUDIES
from profiler.published.times import FORWARD_ONLY, NOT_MEASURED, PASSES, cost_rows, layer_times, own_times, study_times
from profiler.results.columns import place
from profiler.tables.numbers import compact, count, measure, measures, money, own_ends, rates, whole
from profiler.tables.table import Field, Section, Table, figure, prose, words

Environment = Mapping[str, Any]
_LAYER_HEADINGS = {"backward": "backward (gradInput + gradWeight)", "gradWeight": "gradWeights"}
_ROW = ["machine", "library", "implementation", "batch_size", "ours"]
_SHAPES = {
    "layer": "Layer", "input": "Input", "batch_size": "Batch-size", "maps": "Feature maps", "kernel": "Kernel Size",
    "stride": "Stride", "own_batch_sizes": OWN.format("Batch-size"),
}  # fmt: skip
_NETWORKS = {
    "published_network": "Network", "year": "Year", "layers": "Layers", "top1_error_percent": "Top-1 error (%)",
    "top5_error_percent": "Top-5 error (%)", "milliseconds": "Speed, Pascal Titan X (ms)",
}  # fmt: skip
_HARDWARE = {
    "gpu": "GPU", "cloud": "Cloud", "instance": "Instance Name", "memory": "Memory", "architecture": "Architecture",
    "cuda_cores": "CUDA Cores", "fp32_tflops": "FP32 TFLOPS", "base_clock_mhz": "Base Clock (MHz)",
    "memory_bandwidth_gb_per_s": "Bandwidth (GB/s)", "compute_capability": "Compute Capability",
    "price": "Price (USD)", "published_release_date": "Release Date",
}  # fmt: skip
_LINKS = {"gpu": "url", "cloud": "cloud_url", "implementation": "url", "citation": "citation_url"}
"""By column that of the addresses that its cells lead to."""
_DEVICE_TIME = "Own times are the device's, without gaps between launches, where they are known."
_ONLY_INFER = "Rows that ran only inference show its time as forward."
_BATCHES = "Batch sizes differ: ranked by the time per image."
_PICTURES = "The source printed its figures as pictures: only those in its text are here."


def published_tables(
    name: str, results: pl.DataFrame, environments: Sequence[Environment] = ()
) -> tuple[list[str], list[Section]]:
    """Return five conclusions, and the study's tables to which the results have something to say.

    `environments` are those of the runs. Without a row of ours there is nothing. Raises ConfigError where references/
    is missing.
    """
    times, layers = study_times(name, results), layer_times(results)
    if not times["ours"].any() and ("layers" not in STUDIES[name].tables or not layers["ours"].any()):
        return [], []
    made = [section for form in STUDIES[name].tables for section in TABLES[form](name, times, layers, results)]
    rows = represented(per_network(name, times, layers), STUDIES[name])
    sections = [*made, *_hardware(name, own_times(results), environments), *matrix(rows), *claims(name, rows, layers)]
    notes = references.notes(name)
    noted = [
        replace(each, tables=[replace(table, note=notes.get(table.title or each.heading, "")) for table in each.tables])
        for each in sections
    ]
    return conclusions(name, results, rows), [section for section in noted if section.tables]


def picture(name: str, results: pl.DataFrame) -> str:
    """Return an SVG of what a million images cost, where it is known; else of sweeps, or of all times per image."""
    from profiler.tables import pictures  # altair takes half a second

    rows, unit = picture_rows(name, results)
    columns = [one for one in [*references.network_names(name).values(), *LAYERS] if one in rows["network"].unique()]
    of = ", forward, gradInput and gradWeight together" if columns[0] in LAYERS else ""
    draw = pictures.sweep if rows.filter("swept").height else pictures.dots
    return draw(rows, columns, f"{STUDIES[name].title}{of}", f"{unit}, on a logarithmic scale")


def picture_rows(name: str, results: pl.DataFrame) -> tuple[pl.DataFrame, str]:
    """Return what a picture shows, and the unit of its `value`: a row a `side`, `network`, `pass` and batch size."""
    names, unit = references.network_names(name), "Milliseconds per image"
    rows = per_network(name, study_times(name, results), layer_times(results))
    costs = cost_rows(name, results).drop_nulls("usd_per_million_items")
    value, low, high = (pl.coalesce(one, "latency_ms") for one in ("latency_ms", "latency_low_ms", "latency_high_ms"))
    if costs.height:
        unit = "US dollars per million images"
        rows = costs.with_columns(side=pl.format("{}, {}", "machine", "library"), swept=pl.lit(value=False))
        value = low = high = pl.col("usd_per_million_items")
    elif rows.filter("ours", "swept").height:
        rows = rows.filter("swept")
    else:
        rows = rows.filter(~pl.col("swept"))
    rows = rows.filter(pl.col("ours").any().over("network")).select(
        *("side", "batch_size", "swept", pl.col("pass").replace(PASSES)),
        *(value.alias("value"), low.alias("low"), high.alias("high")),
        network=pl.col("network").replace(names),
        kind=pl.when("ours").then("precision").otherwise(pl.lit("published")),
    )
    return rows, unit


def _overview(name: str, times: pl.DataFrame, *_: pl.DataFrame) -> list[Section]:
    """List the source's networks, with a column a machine of ours: its time with what stands for the library."""
    rows = times.filter("ours", "counterpart", ~pl.col("swept"), pl.col("pass") == "training").drop_nulls("total_ms")
    wide = rows.pivot("machine", index="network", values="total_ms", maintain_order=True, aggregate_function="min")
    why = pl.when(pl.col("network").is_not_null()).then(pl.lit(NOT_MEASURED))
    depth = pl.concat_str("layers", "layers_up_to", separator=" to ", ignore_nulls=True).replace("", None)
    frame = references.read("networks").filter(source=name).with_columns(ours=pl.lit(value=True), why=why, layers=depth)
    frame = frame.join(wide, on="network", how="left", maintain_order="left")
    own = [figure(OWN.format(f"{one} (ms)"), (one, "ours", "why"), _times) for one in wide.columns[1:]]
    fields = [*_fields(frame, _NETWORKS), *own, *_fields(frame, {"citation": "Citation"})]
    return [Section("The networks", (), [Table("overview", "", frame, fields)] if rows.height else [])]


def _networks(name: str, times: pl.DataFrame, *_: pl.DataFrame) -> list[Section]:
    """Show a table a network, a row a machine and library: the times of its passes."""
    study = STUDIES[name]
    rows = times.filter(~pl.col("swept"))
    order = place("network", references.network_names(name))
    rows = _ranked(pl.concat([rows, _missing(rows)], how="diagonal"), order)
    batch = _batch(rows, "network")
    fields = [
        *_fields(rows, study.columns),
        figure("95 %", ("low_ms", "high_ms", "ours"), own_ends, unit="ms", expendable=1),
        *(_milliseconds("gpu_ms", "Device (ms)", expendable=2), *batch),
    ]
    text = [_ONLY_INFER] * (FORWARD_ONLY in rows["why"]) + [_BATCHES] * bool(batch)
    return [_section(f"{study.title}: forward and backward pass", text, rows, fields, "published_network")]


def _missing(rows: pl.DataFrame) -> pl.DataFrame:
    """Return the rows that our machines and libraries lack: a network that one of them did not measure."""
    keys = ["machine", "library", "implementation", "ours"]
    networks = rows.select("network", "published_network").unique(maintain_order=True)
    sides = rows.filter("ours").select(keys).unique(maintain_order=True)
    missing = sides.join(networks, how="cross").join(rows, on=[*keys, "network"], how="anti", nulls_equal=True)
    return missing.with_columns(why=pl.lit(NOT_MEASURED))


def _frameworks(name: str, times: pl.DataFrame, *_: pl.DataFrame) -> list[Section]:
    """Show a table a pass, a row a machine and library, a column a network."""
    rows = times.filter(~pl.col("swept")).with_columns(
        section=pl.col("pass").replace(PASSES),
        place=(pl.col("total_ms") / pl.col("batch_size")).rank().over("pass", "network"),
    )
    keys = ["section", "machine", "library", "batch_size", "ours"]
    wide, spread = _wide(rows, "published_network", keys, "total_ms", pl.col("place").mean())
    frame = wide.sort("section", "place", nulls_last=True)
    fields = [*_fields(frame, STUDIES[name].columns), *_batch(frame)[:1], *spread]
    title = f"GPU vs Framework vs Network: milliseconds, {STUDIES[name].batch_size} samples per minibatch"
    return [_section(title, [_PICTURES], frame, fields, "section")]


def _minibatch(name: str, times: pl.DataFrame, *_: pl.DataFrame) -> list[Section]:
    """Show a table a network and pass, a row a machine and library, a column a batch size."""
    rows = times.filter("swept", pl.col("ours").any().over("network"))
    rows = rows.with_columns(
        section=pl.format("{}, {}", "published_network", pl.col("pass").replace(PASSES)),
        ms=pl.col("total_ms") / pl.col("batch_size"),
    ).sort("batch_size", maintain_order=True)
    wide, spread = _wide(rows, "batch_size", ["network", "machine", "library", "section", "ours"], "ms")
    frame = wide.sort(place("network", references.network_names(name)), maintain_order=True)
    fields = [*_fields(frame, STUDIES[name].columns), *spread]
    title = "Minibatch efficiency: milliseconds per sample, by samples per minibatch"
    return [_section(title, [f"{_PICTURES} {_DEVICE_TIME}"], frame, fields, "section")]


def _layers(name: str, _: pl.DataFrame, layers: pl.DataFrame, __: pl.DataFrame) -> list[Section]:
    """Show the layers' shapes, the sums over all five and every pass; only of L1 to L5."""
    headings, own = STUDIES[name].columns, layers.filter("ours")
    sizes = own.group_by("layer").agg(own_batch_sizes=pl.col("batch_size").unique().sort())
    of_two = {one: pl.format("{}x{}", f"{one}_height", f"{one}_width") for one in ("input", "kernel", "stride")}
    frame = references.read("convnet-layer-shapes").join(sizes, on="layer", how="left", maintain_order="left")
    frame = frame.with_columns(**of_two, maps=pl.format("{}->{}", "in_channels", "out_channels"))
    fields = [words(heading, column) for column, heading in _SHAPES.items()]
    shapes = Section("L1 to L5: shapes", (), [Table("layer-shapes", "", frame, fields)])
    return [shapes, _layer_sums(own, headings), _layer_passes(layers, headings)] if own.height else []


def _layer_sums(own: pl.DataFrame, headings: Mapping[str, str]) -> Section:
    times = pl.col("total_ms", "forward_ms", "backward_ms")
    own = own.group_by(_ROW, maintain_order=True).agg(pl.when(times.count() == len(LAYERS)).then(times.sum()))
    own = own.filter(pl.any_horizontal(times.is_not_null())).with_columns(why=pl.lit(FORWARD_ONLY))
    frame = _ranked(pl.concat([references.layer_summary(), own], how="diagonal_relaxed"))
    fields = [*_fields(frame, {**headings, "total_ms": "Total (ms)"}), *_batch(frame)]
    return _section("L1 to L5: forward + backprop", [f"{_DEVICE_TIME} {_ONLY_INFER}"], frame, fields)


def _layer_passes(layers: pl.DataFrame, headings: Mapping[str, str]) -> Section:
    tables = {column: table for table, column in references.LAYER_PARTS.items()}
    rows = layers.unpivot(list(tables), index=["layer", *_ROW, "why"], variable_name="table")
    value, sums = pl.col("value"), pl.col("layer") == "total"
    total = pl.when("ours", value.count() == len(LAYERS)).then(value.sum()).otherwise(value.filter(sums).first())
    rows = rows.with_columns(pl.col("table").replace(tables), note=pl.lit(None, pl.String))
    rows = rows.with_columns(total_ms=total.over("table", *_ROW)).filter(
        # An engine without a backward pass has no row there.
        ~sums, ~pl.col("ours") | value.is_not_null().any().over("table", *_ROW) | (pl.col("table") == "forward")
    )  # fmt: skip
    wide, spread = _wide(rows, "layer", ["table", "total_ms", *_ROW], "value")
    links = references.read("convnet-layers").select("table", "implementation", "url", library="published_library")
    wide = wide.join(links.unique(), on=["table", "library", "implementation"], how="left", maintain_order="left")
    frame = _ranked(wide, place("table", references.LAYER_PARTS))
    frame = frame.with_columns(section=pl.col("table").replace(_LAYER_HEADINGS))
    labels = {column: heading for column, heading in headings.items() if column in _ROW}
    fields = [*_fields(frame, labels), *spread, _milliseconds("total_ms", "Total"), *_batch(frame)]
    return _section("L1 to L5, by pass (ms)", (), frame, fields, "section")


def _cost(name: str, _: pl.DataFrame, __: pl.DataFrame, results: pl.DataFrame) -> list[Section]:
    """Show own rows whose price or energy is known, by network and pass, cheapest first."""
    rows = cost_rows(name, results).with_columns(pl.col("pass").replace(PASSES))
    fields = [
        *(words("Machine", "machine"), words("Instance Name", "instance"), words("Network", "published_network")),
        *(words("Pass", "pass"), words("Library", "library"), figure("USD/h", "usd_per_hour", money)),
        *(figure("Batch", "batch_size", whole), figure("Images/s", "throughput", rates)),
        *(figure("USD/1M images", "usd_per_million_items", money), figure("J/image", "joules", money)),
    ]
    text = "At full load, at the price that the run was given. Energy is the whole card's, without the host's."
    return [_section("What a million images cost", [text], rows, fields)] if rows.height else []


def _hardware(name: str, own: pl.DataFrame, environments: Sequence[Environment]) -> list[Section]:
    """List the published GPUs and, before them, what runs knew of their machines."""
    rows = []
    for row in own.unique("machine", keep="first", maintain_order=True).iter_rows(named=True):
        facts = next((f for f in environments if row["machine"] in map(f.get, ("machine", "gpu", "cpu"))), {})
        roofs, source = facts.get("roofs") or {}, f" ({facts['price_source']})" if facts.get("price_source") else ""
        mebibytes = facts.get("gpu_memory_mib" if row["device"] == "cuda" else "memory_mib")
        rows.append({
            "gpu": row["machine"], "cloud": row["cloud"], "instance": row["instance"],
            "memory": f"{count(mebibytes / 1024)}GiB" if mebibytes else None,
            "fp32_tflops": roofs.get("fp32_tflops"), "memory_bandwidth_gb_per_s": roofs.get("copy_gb_s"),
            "compute_capability": facts.get("compute_capability"),
            "price": f"{compact(row['usd_per_hour'])} an hour{source}" if row["usd_per_hour"] else None, "ours": True,
        })  # fmt: skip
    memory = pl.format("{}GB {}", "memory_gb", "memory_type")
    price = pl.format("{} ({})", "price_usd", "price_kind").str.replace(r"(.+) \((less than)\)", "$2 $1")
    published = references.read("hardware").filter(source=name)
    published = published.with_columns(memory=memory, price=price, ours=pl.lit(value=False))
    frame = pl.concat([pl.DataFrame(rows, schema=published.schema), published])
    text = "Own TFLOPS were measured in matrix products, own bandwidth in a copy (bytes read and written)."
    return [_section("The machines", [text], frame, _fields(frame, _HARDWARE))]


TABLES: Mapping[str, Callable[[str, pl.DataFrame, pl.DataFrame, pl.DataFrame], list[Section]]] = {
    "overview": _overview,
    "networks": _networks,
    "layers": _layers,
    "frameworks": _frameworks,
    "minibatch": _minibatch,
    "cost": _cost,
}
"""Given a study's name, `study_times`, `layer_times` and the results."""


def _section(
    title: str, text: Sequence[str], frame: pl.DataFrame, fields: Sequence[Field], section: str = ""
) -> Section:
    """Split a frame into tables by the column `section`: own rows marked (without any none), lowest times bold."""
    if "note" in frame.columns:
        fields = [*fields, prose("Note", "note")]
    parts = frame.partition_by(section, maintain_order=True) if section else [frame]
    tables = [
        Table(title, str(rows[section][0]) if section else "", rows, fields, marked="ours", bold=_lowest(rows, fields))
        for rows in parts
    ]
    return Section(title, text, tables if frame["ours"].any() else [])


def _lowest(rows: pl.DataFrame, fields: Sequence[Field]) -> dict[str, list[bool]]:
    """Find the lowest time per image of each contested column, among the published rows and among our own."""
    names = [field.columns[0] for field in fields if field.contested]
    # "best per layer" is put together of several libraries.
    is_one = pl.col("implementation").ne_missing("best per layer") if "implementation" in rows.columns else True
    times = pl.when(is_one).then(pl.col(names) / (pl.col("batch_size") if "batch_size" in rows.columns else 1))
    best = (times == times.min()) & (times.count() > 1)
    return rows.select(best.over("ours").fill_null(value=False)).to_dict(as_series=False) if names else {}


def _wide(rows: pl.DataFrame, on: str, keys: list[str], value: str, *more: pl.Expr) -> tuple[pl.DataFrame, list[Field]]:
    """Spread `value` over a column for each value of `on`; returns these columns' fields as well.

    `more` is made of each row's values. A blank of ours gives the reason, once in a row: a dash repeats what stands to
    its left.
    """
    notes = pl.format("{}: {}", on, "note").drop_nulls().unique(maintain_order=True).str.join("; ").replace("", None)
    about = rows.group_by(keys, maintain_order=True).agg(*more, note=notes)
    columns = rows.select(on).unique(maintain_order=True)
    best = rows.sort(value, nulls_last=True, maintain_order=True).unique([*keys, on], keep="first")
    best = best.select(*keys, on, value, "why")
    cells = about.join(columns, how="cross").join(best, [*keys, on], "left", nulls_equal=True, maintain_order="left")
    why = pl.when("ours", pl.col(value).is_null()).then(pl.coalesce("why", pl.lit(NOT_MEASURED)))
    said = why.forward_fill().shift().over(keys)
    cells = cells.with_columns(why=pl.when(why == said).then(pl.lit("–")).otherwise(why))
    wide = cells.pivot(on, index=about.columns, values=[value, "why"], maintain_order=True)
    names = map(str, columns[on])
    return wide, [_milliseconds(f"{value}_{name}", name, f"why_{name}") for name in names]


def _fields(frame: pl.DataFrame, headings: Mapping[str, str]) -> list[Field]:
    """Declare columns: times to rank, other numbers, and all else as words; a blank total says why."""

    def declared(column: str, heading: str) -> Field:
        if column.endswith("_ms"):
            return _milliseconds(column, heading, *["why"] * (column == "total_ms"))
        if frame.schema[column].is_numeric():
            return figure(heading, column, whole if frame.schema[column].is_integer() else measures)
        return words(heading, column, link=_LINKS.get(column, ""))

    return [declared(column, heading) for column, heading in headings.items()]


def _ranked(rows: pl.DataFrame, *groups: pl.Expr) -> pl.DataFrame:
    """Sort within groups by the total per image, as `per_item_ms`; blanks come last."""
    rows = rows.with_columns(per_item_ms=pl.col("total_ms") / pl.col("batch_size"))
    return rows.sort(*groups, "per_item_ms", nulls_last=True, maintain_order=True)


def _batch(frame: pl.DataFrame, within: str = "") -> list[Field]:
    """Show batch sizes and the time per image where sizes differ."""
    if frame.select(pl.col("batch_size").drop_nulls().n_unique().over(within or pl.lit("all")).max()).item() == 1:
        return []
    return [figure("Batch", "batch_size", whole), figure("Per image (ms)", "per_item_ms", measures)]


def _milliseconds(column: str, heading: str, *printed: str, **more: Any) -> Field:
    """Declare a column of times, whose lowest stands out; `printed` names what replaces a missing number."""
    return figure(heading, (column, "ours", *printed), _times, contested=True, **more)


def _times(
    values: Iterable[float | None], ours: Iterable[bool], said: Iterable[str | None] = repeat(None)
) -> list[str]:
    """Write published times that are all whole without decimals."""
    rows = list(zip(values, ours, said, strict=False))
    plain = all(value.is_integer() for value, own, _ in rows if value is not None and not own)
    return [text or "" if v is None else count(v) if plain and not own else measure(v) for v, own, text in rows]
