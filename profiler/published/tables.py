"""Make a study's tables and picture with our rows, marked, among its figures, ranked per image."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import repeat
from typing import Any

import polars as pl

from exporters.catalog import LAYERS
from profiler.published import references
from profiler.published.comparing import OWN, claims, conclusions, matrix, per_network, release, represented
from profiler.published.studies import STUDIES
from profiler.published.times import (
    BEST_PER_LAYER,
    CALLS,
    FORWARD_ONLY,
    NOT_MEASURED,
    PASSES,
    absent_times,
    break_even,
    cost_rows,
    layer_times,
    own_times,
    study_times,
)
from profiler.results.columns import place
from profiler.results.warning_kinds import HOST_BOUND
from profiler.tables.numbers import compact, count, measure, measures, money, own_ends, rates, whole
from profiler.tables.table import Field, Section, Table, figure, prose, words

Environment = Mapping[str, Any]
_LAYER_HEADINGS = {"backward": "backward (gradInput + gradWeight)", "gradWeight": "gradWeights"}
_ROW = ["machine", "library", "implementation", "batch_size", "ours"]
_SIDE = ["machine", "library", "implementation", "pass"]
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
_HOSTS = {
    "gpu": "GPU", "cpu": "CPU", "cpus": "CPUs", "cores": "Cores", "threads": "Threads", "clock_ghz": "Clock (GHz)",
    "memory": "Memory", "os": "OS", "cuda": "CUDA", "driver": "Driver",
}  # fmt: skip
_LIMITS = {
    "gpu": "GPU", "machine": "As cheap as", "networks": "Networks", "usd_low": "From (USD/h)", "usd_high": "To (USD/h)",
}  # fmt: skip
_COSTS = {
    "machine": "Machine", "instance": "Instance Name", "published_network": "Network", "pass": "Pass",
    "library": "Library", "usd_per_hour": "USD/h", "batch_size": "Batch", "throughput": "Images/s",
    "usd_per_million_items": "USD/1M images", "joules": "J/image", "peak_memory_mib": "Peak (MiB)",
}  # fmt: skip
_MONEY = ("usd_low", "usd_high", "usd_per_hour", "usd_per_million_items", "joules")
_LINKS = {"gpu": "url", "cloud": "cloud_url", "implementation": "url", "citation": "citation_url"}
_DEVICE_TIME = "Own times are the device's, without gaps between launches, where they are known."
_SWEPT = (
    "Own times are the smaller of the device's time, without gaps between launches, and the call's latency: where it "
    "says host-bound, the call takes longer."
)
_SUMS = "Own backward is the sum of the medians of gradInput and gradWeight, an own total that of its parts'."
_WHOLE = "An own total is the median of whole iterations, not the sum of its parts' medians."
_NO_CLOCK = "A GPU has no device time where the CPU launches too slowly to measure it, or the engine has no such clock."
_BEST = 'Our "best per layer" takes the lowest time in fp32 of any library, as the source\'s does.'
_PEAK = "Peak memory is what the process added to the GPU's memory in use, on a CPU to its own resident set."
_RECORDED = "A row that is missing has none on record."
_ONLY_INFER = "Rows that ran only inference show its time as forward."
_BATCHES = "Batch sizes differ: ranked by the time per image."
_PICTURES = "The source printed its figures as pictures: only those in its text are here."


def published_tables(
    name: str, results: pl.DataFrame, environments: Sequence[Environment] = ()
) -> tuple[list[str], list[Section]]:
    """Return five conclusions and the study's tables that have rows of ours, or nothing without such rows.

    `environments` are the runs' environment.json. Raises ConfigError if references/ is missing.
    """
    times, layers = study_times(name, results), layer_times(results)
    if not times["ours"].any() and ("layers" not in STUDIES[name].tables or not layers["ours"].any()):
        return [], []
    sections = [section for form in STUDIES[name].tables for section in TABLES[form](name, times, layers, results)]
    rows = represented(per_network(name, times, layers), STUDIES[name])
    sections += [_absent(name, results), _hardware(name, own_times(results), environments)]
    sections += [*matrix(rows), *claims(name, rows, layers)]
    notes = references.notes(name)
    noted = [
        replace(part, tables=[replace(table, note=notes.get(table.title or part.heading, "")) for table in part.tables])
        for part in sections
        if part.tables
    ]
    return conclusions(name, results, rows), noted


def title(name: str, results: pl.DataFrame) -> str:
    """Return the title of the study, or of the part that the results cover."""
    if "layer" in results["model_kind"]:
        kind = "layers"
    else:
        kind = "minibatch" if study_times(name, results).filter("ours")["swept"].all() else "frameworks"
    return STUDIES[name].titles.get(kind, STUDIES[name].title)


def picture(name: str, results: pl.DataFrame) -> str:
    """Draw an SVG of the times per image or of sweeps, and of the costs if known."""
    from profiler.tables import pictures  # altair takes half a second

    order = [*references.network_names(name).values(), *LAYERS]
    charts = [
        (pictures.sweep if rows["swept"].any() else pictures.dots)(rows, order, heading)
        for rows, heading in picture_rows(name, results)
    ]
    return pictures.svg(charts, title(name, results))


def picture_rows(name: str, results: pl.DataFrame) -> list[tuple[pl.DataFrame, str]]:
    """Return rows and heading of each part of a picture: one row per `side`, `network`, `pass` and batch size.

    Pictures with GPUs leave out CPUs, which are hundreds of times slower. Each of several published machines has one
    row, its newest release or fastest library. `hollow` marks calls that wait for the host.
    """
    names, study = references.network_names(name), STUDIES[name]
    rows = per_network(name, study_times(name, results), layer_times(results))
    if rows.filter(~pl.col("ours"))["machine"].n_unique() > 1:
        rows = represented(rows, study)
    costs = cost_rows(name, results).drop_nulls("usd_per_million_items")
    is_swept = rows.filter("ours")["swept"].any()
    rows = rows.filter(pl.col("swept") == is_swept, pl.col("ours").any().over("network"))
    has_gpu = rows.filter("ours", device="cuda").height > 0
    rows = rows.filter((pl.col("device") == "cuda") | pl.lit(not has_gpu))
    parts = [(rows, "latency_ms", "latency_low_ms", "latency_high_ms", "Milliseconds per image")]
    if costs.height:
        costs = costs.with_columns(side=pl.format("{}, {}", "machine", "library"), swept=pl.lit(value=False))
        parts.append((costs, *["usd_per_million_items"] * 3, "US dollars per million images"))  # type: ignore[arg-type]
    of = "; forward, gradInput and gradWeight together" if "L1" in rows["network"] else ""
    waits = pl.col("note").str.contains_any([HOST_BOUND, CALLS]).fill_null(value=False)
    return [
        (
            part.select(
                *(_brief("side"), "batch_size", "swept", pl.col("pass").replace(PASSES)),
                *(pl.coalesce(end, value).alias(to) for end, to in ((value, "value"), (low, "low"), (high, "high"))),
                network=pl.col("network").replace(names),
                kind=pl.when("ours").then("precision").otherwise("machine"),
                hollow=pl.col("swept") & waits,
            ),
            f"{unit}, on a logarithmic scale{of}",
        )
        for part, value, low, high, unit in parts
    ]


def _brief(side: str) -> pl.Expr:
    """Drop releases from the names of our sides; the tables have them."""
    brief = pl.col(side).str.replace(r", cuDNN [\d.]+", "").str.replace(r"(, [A-Za-z ]+) [\d.]+", "${1}")
    return pl.when("ours").then(brief).otherwise(side).alias(side)


def _overview(name: str, times: pl.DataFrame, *_: pl.DataFrame) -> list[Section]:
    rows = times.filter("ours", "counterpart", ~pl.col("swept"), pl.col("pass") == "training").drop_nulls("total_ms")
    is_alike = pl.col("batch_size").n_unique().over("network").max() == 1
    side = pl.when(is_alike).then("machine").otherwise(pl.format("{}, batch {}", "machine", "batch_size"))
    rows = rows.with_columns(side=side)
    wide = rows.pivot("side", index="network", values="total_ms", maintain_order=True, aggregate_function="min")
    why = pl.when(pl.col("network").is_not_null()).then(pl.lit(NOT_MEASURED))
    depth = pl.concat_str("layers", "layers_up_to", separator=" to ", ignore_nulls=True).replace("", None)
    frame = references.read("networks").filter(source=name).with_columns(ours=pl.lit(value=True), why=why, layers=depth)
    frame = frame.join(wide, on="network", how="left", maintain_order="left")
    ours = [figure(OWN.format(f"{side} (ms)"), (side, "ours", "why"), _times) for side in wide.columns[1:]]
    fields = [*_fields(frame, _NETWORKS), *ours, *_fields(frame, {"citation": "Citation"})]
    return [Section("The networks", (), [Table("overview", "", frame, fields)] if rows.height else [])]


def _networks(name: str, times: pl.DataFrame, *_: pl.DataFrame) -> list[Section]:
    """Show the times of the passes: one table per network, one row per machine and library."""
    study = STUDIES[name]
    rows = _with_figures(times.filter(~pl.col("swept")), *_SIDE)
    order = place("network", references.network_names(name))
    rows = rows.with_columns(library=release() if study.by_release else "library")
    rows = _ranked(pl.concat([rows, _missing(rows)], how="diagonal"), order)
    rows = rows.with_columns(timed=pl.col("ours") & pl.col("total_ms").is_not_null())
    no_clock = rows.filter("timed", pl.col("gpu_ms").is_null(), device="cuda").height > 0
    batch = _batch(rows, "network")
    fields = [
        *_fields(rows, study.columns),
        figure("95 %", ("low_ms", "high_ms", "timed"), own_ends, unit="ms", expendable=1),
        *(_milliseconds("Device (ms)", "gpu_ms", expendable=2), *batch, _peak("Peak (MiB)")),
    ]
    notes = [*[_ONLY_INFER] * (FORWARD_ONLY in rows["why"]), *[_BATCHES] * bool(batch)]
    text = [_WHOLE, *[_NO_CLOCK] * no_clock, _PEAK, *notes]
    heading = f"{study.title}: forward and backward pass"
    return [_section(heading, [" ".join(text)], rows, fields, "published_network")]


def _missing(rows: pl.DataFrame) -> pl.DataFrame:
    """Return a row for each network that one of our machines and libraries did not measure."""
    keys = ["machine", "library", "implementation", "ours"]
    networks = rows.select("network", "published_network").unique(maintain_order=True)
    sides = rows.filter("ours").select(keys).unique(maintain_order=True)
    missing = sides.join(networks, how="cross").join(rows, on=[*keys, "network"], how="anti", nulls_equal=True)
    return missing.with_columns(why=pl.lit(NOT_MEASURED))


def _frameworks(name: str, times: pl.DataFrame, *_: pl.DataFrame) -> list[Section]:
    """Show one table per pass, one row per machine and library, one column per network."""
    rows = _with_figures(times.filter(~pl.col("swept")), *_SIDE).with_columns(
        section=pl.col("pass").replace(PASSES),
        place=(pl.col("total_ms") / pl.col("batch_size")).rank().over("pass", "network"),
    )
    keys = ["section", "machine", "library", "batch_size", "ours"]
    wide, spread = _wide(rows, "published_network", keys, "total_ms", pl.col("place").mean())
    frame = wide.sort("section", "place", nulls_last=True)
    fields = [*_fields(frame, STUDIES[name].columns), *_batch(frame)[:1], *spread]
    title = f"GPU vs Framework vs Network: milliseconds, {STUDIES[name].batch_size} samples per minibatch"
    peaks = _peaks(name, rows, "published_network", "Peak memory (MiB)", "batch_size")
    return [_section(title, [_PICTURES], frame, fields, "section"), *peaks]


def _minibatch(name: str, times: pl.DataFrame, *_: pl.DataFrame) -> list[Section]:
    """Show one table per network and pass, one row per machine and library, one column per batch size."""
    rows = _with_figures(times.filter("swept", pl.col("ours").any().over("network")), *_SIDE, "network")
    rows = rows.with_columns(
        section=pl.format("{}, {}", "published_network", pl.col("pass").replace(PASSES)),
        ms=pl.col("total_ms") / pl.col("batch_size"),
    ).sort("batch_size", maintain_order=True)
    wide, spread = _wide(rows, "batch_size", ["network", "machine", "library", "section", "ours"], "ms")
    frame = wide.sort(place("network", references.network_names(name)), maintain_order=True)
    fields = [*_fields(frame, STUDIES[name].columns), *spread]
    title = "Minibatch efficiency: milliseconds per sample, by samples per minibatch"
    peaks = _peaks(name, rows, "batch_size", "Peak memory (MiB), by samples per minibatch", "published_network")
    return [_section(title, [f"{_PICTURES} {_SWEPT}"], frame, fields, "section"), *peaks]


def _peaks(name: str, rows: pl.DataFrame, on: str, title: str, *keys: str) -> list[Section]:
    """Show our peaks of memory, one table per pass, with the columns of the table of times."""
    is_measured = pl.col("peak_memory_mib").is_not_null().any().over(*_SIDE, *keys)
    section = pl.format("peak memory, {}", pl.col("pass").replace(PASSES))
    is_absent = rows.filter("ours", ~is_measured).height > 0
    rows = rows.filter("ours", is_measured).with_columns(section=section, note=pl.lit(None, pl.String))
    if rows.is_empty():
        return []
    frame, spread = _wide(rows, on, [*keys, "machine", "library", "section", "ours"], "peak_memory_mib")
    headings = {"published_network": "Network", **STUDIES[name].columns, "batch_size": "Batch"}
    fields = _fields(frame, {column: heading for column, heading in headings.items() if column in frame.columns})
    frame = frame.sort("section", maintain_order=True)
    text = [_PEAK, *[_RECORDED] * is_absent]
    return [_section(title, [" ".join(text)], frame, [*fields, *spread], "section")]


def _layers(name: str, _: pl.DataFrame, layers: pl.DataFrame, __: pl.DataFrame) -> list[Section]:
    headings, ours = STUDIES[name].columns, layers.filter("ours")
    sizes = ours.group_by("layer").agg(own_batch_sizes=pl.col("batch_size").unique().sort())
    pairs = {part: pl.format("{}x{}", f"{part}_height", f"{part}_width") for part in ("input", "kernel", "stride")}
    frame = references.read("convnet-layer-shapes").join(sizes, on="layer", how="left", maintain_order="left")
    frame = frame.with_columns(**pairs, maps=pl.format("{}->{}", "in_channels", "out_channels"))
    fields = [words(heading, column) for column, heading in _SHAPES.items()]
    shapes = Section("L1 to L5: shapes", (), [Table("layer-shapes", "", frame, fields)])
    return [shapes, _layer_sums(ours, headings), _layer_passes(layers, headings)] if ours.height else []


def _layer_sums(ours: pl.DataFrame, headings: Mapping[str, str]) -> Section:
    times = pl.col("total_ms", "forward_ms", "backward_ms")
    sums = pl.when(times.count() == len(LAYERS)).then(times.sum())
    ours = ours.group_by(_ROW, maintain_order=True).agg(sums, pl.col("peak_memory_mib").max())
    ours = ours.filter(pl.any_horizontal(times.is_not_null())).with_columns(why=pl.lit(FORWARD_ONLY))
    frame = _ranked(pl.concat([references.layer_summary(), ours], how="diagonal_relaxed"))
    fields = [*_fields(frame, {**headings, "total_ms": "Total (ms)"}), *_batch(frame), _peak("Peak Memory (MiB)")]
    text = (
        f"{_DEVICE_TIME} {_SUMS} {_ONLY_INFER} {_BEST} {_PEAK} It is of the layer that takes most; the source has none."
    )
    return _section("L1 to L5: forward + backprop", [text], frame, fields)


def _layer_passes(layers: pl.DataFrame, headings: Mapping[str, str]) -> Section:
    tables = {column: table for table, column in references.LAYER_PARTS.items()}
    rows = layers.unpivot(list(tables), index=["layer", *_ROW, "why"], variable_name="table")
    value, sums = pl.col("value"), pl.col("layer") == "total"
    total = pl.when("ours", value.count() == len(LAYERS)).then(value.sum()).otherwise(value.filter(sums).first())
    rows = rows.with_columns(pl.col("table").replace(tables), note=pl.lit(None, pl.String))
    rows = rows.with_columns(total_ms=total.over("table", *_ROW)).filter(
        # Leave out engines without that pass.
        ~sums, ~pl.col("ours") | value.is_not_null().any().over("table", *_ROW)
    )  # fmt: skip
    wide, spread = _wide(rows, "layer", ["table", "total_ms", *_ROW], "value")
    links = references.read("convnet-layers").select("table", "implementation", "url", library="published_library")
    wide = wide.join(links.unique(), on=["table", "library", "implementation"], how="left", maintain_order="left")
    frame = _ranked(wide, place("table", references.LAYER_PARTS))
    frame = frame.with_columns(section=pl.col("table").replace(_LAYER_HEADINGS))
    labels = {column: heading for column, heading in headings.items() if column in _ROW}
    fields = [*_fields(frame, labels), *spread, _milliseconds("Total", "total_ms"), *_batch(frame)]
    return _section("L1 to L5, by pass (ms)", [f"{_DEVICE_TIME} {_BEST}"], frame, fields, "section")


def _cost(name: str, times: pl.DataFrame, layers: pl.DataFrame, results: pl.DataFrame) -> list[Section]:
    """Show our rows with a price or energy, cheapest first, and the break-even prices of published cards."""
    costs = cost_rows(name, results)
    rows = costs.with_columns(pl.col("pass").replace(PASSES))
    published = per_network(name, times, layers).filter(~pl.col("ours"))
    even = break_even(costs.drop_nulls("usd_per_million_items"), published)
    text = "At full load, at the price that the run was given. Energy is the whole card's, without the host's."
    section = _section("What a million images cost", [text], rows, _fields(rows, _COSTS))
    title = "The published cards: prices an hour at which they train as cheaply, by network"
    limits = [Table("break-even", title, even, _fields(even, _LIMITS))] * bool(even.height)
    return [replace(section, tables=[*section.tables, *limits])] if rows.height else []


def _absent(name: str, results: pl.DataFrame) -> Section:
    rows = absent_times(references.network_names(name), results)
    fields = [words("Machine", "machine"), words("Library", "libraries"), words("Pass", "pass")]
    fields += [prose("Networks", "networks"), prose("Reason", "why")]
    return _section("Not measured", (), rows, fields)


def _hardware(name: str, ours: pl.DataFrame, environments: Sequence[Environment]) -> Section:
    """List our machines, as the runs describe them, and then the published GPUs."""
    rows, hosts, cards = [], [], {card["gpu"]: card for card in references.read("cards").to_dicts()}
    for row in ours.unique("machine", keep="first", maintain_order=True).iter_rows(named=True):
        facts = next((f for f in environments if row["machine"] in map(f.get, ("machine", "gpu", "cpu"))), {})
        roofs, source = facts.get("roofs") or {}, f" ({facts['price_source']})" if facts.get("price_source") else ""
        card = cards.get(facts.get("gpu"), {})
        mebibytes = facts.get("gpu_memory_mib" if row["device"] == "cuda" else "memory_mib")
        memory = [f"{count(mebibytes / 1024)}GiB" if mebibytes else "", card.get("memory_type", "")]
        rows.append({
            "gpu": row["machine"], "cloud": row["cloud"], "instance": row["instance"],
            **{fact: card.get(fact) for fact in ("url", "architecture", "cuda_cores", "published_release_date")},
            "memory": " ".join(filter(None, memory)) or None,
            "fp32_tflops": roofs.get("fp32_tflops"), "memory_bandwidth_gb_per_s": roofs.get("copy_gb_s"),
            "compute_capability": facts.get("compute_capability"),
            "price": f"{compact(row['usd_per_hour'])} an hour{source}" if row["usd_per_hour"] else None, "ours": True,
        })  # fmt: skip
        hosts.append({
            "gpu": row["machine"], "cpu": facts.get("cpu"), "cores": str(facts.get("cpu_cores") or ""),
            "memory": f"{count(facts['memory_mib'] / 1024)}GiB" if facts.get("memory_mib") else None,
            "os": facts.get("platform"), "cuda": facts.get("cuda"), "driver": facts.get("driver"), "ours": True,
        })  # fmt: skip
    published = references.read("hardware").filter(source=name).with_columns(
        memory=pl.format("{}GB {}", "memory_gb", "memory_type"), ours=pl.lit(value=False),
        price=pl.format("{} ({})", "price_usd", "price_kind").str.replace(r"(.+) \((less than)\)", "$2 $1"),
    )  # fmt: skip
    frame = pl.concat([pl.DataFrame(rows, schema=published.schema), published])
    text = "Own TFLOPS were measured in matrix products, own bandwidth in a copy (bytes read and written)."
    text += " A GPU of ours has its other facts from NVIDIA."
    section = _section("The machines", [text], frame, _fields(frame, _HARDWARE))
    theirs = references.read("machines").filter(source=name).with_columns(
        gpu=pl.col("gpu").fill_null("all"), memory=pl.format("{}GB", "memory_gb"), ours=pl.lit(value=False),
        cores=pl.when(pl.col("cpus").is_null()).then("cores_per_cpu")
        .otherwise(pl.format("{} each", "cores_per_cpu")),
    )  # fmt: skip
    machines = pl.concat([pl.DataFrame(hosts, infer_schema_length=None), theirs], how="diagonal_relaxed")
    fields = [words(heading, column) for column, heading in _HOSTS.items()]
    hosted = Table("hosts", "Their hosts", machines, fields, marked="ours")
    return replace(section, tables=[*section.tables, hosted])


TABLES: Mapping[str, Callable[[str, pl.DataFrame, pl.DataFrame, pl.DataFrame], list[Section]]] = {
    "overview": _overview,
    "networks": _networks,
    "layers": _layers,
    "frameworks": _frameworks,
    "minibatch": _minibatch,
    "cost": _cost,
}
"""Call with a study's name, `study_times`, `layer_times` and the results."""


def _section(
    title: str, text: Sequence[str], frame: pl.DataFrame, fields: Sequence[Field], section: str = ""
) -> Section:
    """Make a table per value of `section`, our rows marked and lowest times bold; no table without rows of ours."""
    if "note" in frame.columns:
        fields = [*fields, prose("Note", "note")]
    parts = frame.partition_by(section, maintain_order=True) if section else [frame]
    tables = [
        Table(title, str(rows[section][0]) if section else "", rows, fields, marked="ours", bold=_lowest(rows, fields))
        for rows in parts
    ]
    return Section(title, text, tables if frame["ours"].any() else [])


def _lowest(rows: pl.DataFrame, fields: Sequence[Field]) -> dict[str, list[bool]]:
    """Mark the lowest time per image of each contested column, among the published rows and among ours."""
    names = [field.columns[0] for field in fields if field.contested]
    # Leave out "best per layer", which mixes several libraries.
    is_single = pl.col("implementation").ne_missing(BEST_PER_LAYER) if "implementation" in rows.columns else True
    times = pl.when(is_single).then(pl.col(names) / (pl.col("batch_size") if "batch_size" in rows.columns else 1))
    best = (times == times.min()) & (times.count() > 1)
    return rows.select(best.over("ours").fill_null(value=False)).to_dict(as_series=False) if names else {}


def _wide(
    rows: pl.DataFrame, on: str, keys: list[str], value: str, *aggregates: pl.Expr
) -> tuple[pl.DataFrame, list[Field]]:
    """Pivot `value` into one column per value of `on`; return the frame and these columns' fields.

    `aggregates` are computed over each row's values. Our empty cells give the reason, or a dash if it is
    the one to the left.
    """
    of_note = rows.drop_nulls("note").group_by(*keys, "note", maintain_order=True)
    where = pl.col(on).cast(pl.String).unique(maintain_order=True).str.join(", ")
    notes = of_note.agg(where=where).with_columns(note=pl.format("{}: {}", "note", "where"))
    notes = notes.group_by(keys, maintain_order=True).agg(pl.col("note").str.join("; "))
    about = rows.group_by(keys, maintain_order=True).agg(*aggregates)
    about = about.join(notes, on=keys, how="left", nulls_equal=True, maintain_order="left")
    columns = rows.select(on).unique(maintain_order=True)
    best = rows.sort(value, nulls_last=True, maintain_order=True).unique([*keys, on], keep="first")
    best = best.select(*keys, on, value, "why")
    cells = about.join(columns, how="cross").join(best, [*keys, on], "left", nulls_equal=True, maintain_order="left")
    why = pl.when("ours", pl.col(value).is_null()).then(pl.coalesce("why", pl.lit(NOT_MEASURED)))
    before = why.forward_fill().shift().over(keys)
    cells = cells.with_columns(why=pl.when(why == before).then(pl.lit("–")).otherwise(why))
    wide = cells.pivot(on, index=about.columns, values=[value, "why"], maintain_order=True)
    make = _peak if value == "peak_memory_mib" else _milliseconds
    return wide, [make(name, f"{value}_{name}", f"why_{name}") for name in map(str, columns[on])]


def _with_figures(rows: pl.DataFrame, *side: str) -> pl.DataFrame:
    """Leave out our sides without a figure: "Not measured" lists them with their reason."""
    is_measured = pl.any_horizontal(pl.col("total_ms", "forward_ms").is_not_null()).any()
    return rows.filter(~pl.col("ours") | is_measured.over(side))


def _fields(frame: pl.DataFrame, headings: Mapping[str, str]) -> list[Field]:
    """Declare a field per column: times to rank, other numbers, or words. An empty total gives its reason."""

    def declared(column: str, heading: str) -> Field:
        if column.endswith("_ms"):
            return _milliseconds(heading, column, *["why"] * (column == "total_ms"))
        if column == "peak_memory_mib":
            return _peak(heading)
        if frame.schema[column].is_numeric():
            usual = whole if frame.schema[column].is_integer() else measures
            form = money if column in _MONEY else rates if column == "throughput" else usual
            return figure(heading, column, form)
        link = _LINKS.get(column, "")
        return words(heading, column, link=link if link in frame.columns else "")

    return [declared(column, heading) for column, heading in headings.items()]


def _ranked(rows: pl.DataFrame, *groups: pl.Expr) -> pl.DataFrame:
    """Add the total per image as `per_item_ms` and sort groups by it, empty ones last."""
    rows = rows.with_columns(per_item_ms=pl.col("total_ms") / pl.col("batch_size"))
    return rows.sort(*groups, "per_item_ms", nulls_last=True, maintain_order=True)


def _batch(frame: pl.DataFrame, within: str = "") -> list[Field]:
    """Show batch sizes and times per image if the sizes differ."""
    if frame.select(pl.col("batch_size").drop_nulls().n_unique().over(within or pl.lit("all")).max()).item() == 1:
        return []
    return [figure("Batch", "batch_size", whole), figure("Per image (ms)", "per_item_ms", measures)]


def _milliseconds(heading: str, column: str, *reasons: str, expendable: int = 0) -> Field:
    """Declare a column of times whose lowest stands out; the columns of `reasons` fill its empty cells."""
    return figure(heading, (column, "ours", *reasons), _times, contested=True, expendable=expendable)


def _peak(heading: str, column: str = "peak_memory_mib", *reasons: str) -> Field:
    return figure(heading, (column, *reasons), _counts, expendable=3)


def _counts(values: Iterable[float | None], reasons: Iterable[str | None] = repeat(None)) -> list[str]:
    return [text or "" if value is None else count(value) for value, text in zip(values, reasons, strict=False)]


def _times(
    values: Iterable[float | None], ours: Iterable[bool], reasons: Iterable[str | None] = repeat(None)
) -> list[str]:
    """Format published times without decimals if all are whole."""
    rows = list(zip(values, ours, reasons, strict=False))
    plain = all(value.is_integer() for value, is_ours, _ in rows if value is not None and not is_ours)
    return [
        text or "" if ms is None else count(ms) if plain and not is_ours else measure(ms) for ms, is_ours, text in rows
    ]
