"""Make a study's tables with the rows of runs among its figures, ours marked, ranked by the time per image."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import repeat
from typing import Any

import polars as pl

from exporters.catalog import LAYERS as SHAPES
from profiler.published import references
from profiler.published.comparing import CONCLUSIONS, OWN, claims, conclusions, matrix, per_network, prices
from profiler.published.studies import STUDIES
from profiler.published.times import (
    FORWARD_ONLY,
    NOT_MEASURED,
    cost_rows,
    layer_times,
    own_times,
    ranked,
    represented,
    study_times,
)
from profiler.results.columns import place
from profiler.tables import numbers
from profiler.tables.numbers import compact, count, measure, measures, whole
from profiler.tables.table import Field, Section, Table, figure, prose, words

Environment = Mapping[str, Any]
LAYERS = list(SHAPES)
_LAYER_TABLES = {
    "forward_ms": ("forward", "forward"),
    "backward_ms": ("backward", "backward (gradInput + gradWeight)"),
    "grad_input_ms": ("gradInput", "gradInput"),
    "grad_weight_ms": ("gradWeight", "gradWeights"),
}
"""By our column: the published table of a pass, and its heading."""
_SUMS = {"total_ms": "Total (ms)", "forward_ms": "forward (ms)", "backward_ms": "backward (ms)"}
_ROW = ["machine", "library", "implementation", "batch_size", "ours"]
_SECTIONS = {"inference": "forward", "training": "forward + backward"}
_DEVICE_TIME = "Own times are the device's, without gaps between launches, where they are known."
_ONLY_INFER = "Rows that ran only inference show its time as forward."
_PICTURES = "The source printed its figures as pictures: only those in its text are here."


def published_tables(
    name: str, results: pl.DataFrame, environments: Sequence[Environment] = ()
) -> tuple[list[str], list[Section]]:
    """Return five conclusions, and the study's tables to which the results have something to say.

    `environments` are those of the runs. Without a row of ours there is nothing. Raises ConfigError where references/
    is missing.
    """
    times, layers = study_times(name, results), layer_times(results)
    if not times["ours"].any() and ("layers" not in STUDIES[name].tables or layers.is_empty()):
        return [], []
    made = [section for form in STUDIES[name].tables for section in TABLES[form](name, times, layers, results)]
    rows = represented(per_network(name, times, layers), STUDIES[name])
    sections = [*made, *_hardware(name, own_times(results), environments), *matrix(rows), *claims(name, rows)]
    notes = references.notes(name)
    noted = [
        replace(each, tables=[replace(table, note=notes.get(table.title or each.heading, "")) for table in each.tables])
        for each in sections
    ]
    return [*prices(name, results), *conclusions(rows)][:CONCLUSIONS], [section for section in noted if section.tables]


def _overview(name: str, times: pl.DataFrame, *_: pl.DataFrame) -> list[Section]:
    """List the source's networks, with a column a machine of ours: its time with what stands for the library."""
    rows = times.filter("ours", "counterpart", ~pl.col("swept"), pl.col("pass") == "training").drop_nulls("total_ms")
    if rows.is_empty():
        return []
    wide = rows.pivot("machine", index="network", values="total_ms", maintain_order=True, aggregate_function="min")
    machines = rows["machine"].unique(maintain_order=True)
    fields = [
        *(_label("published_network", "Network"), words("Year", "year"), words("Layers", "depth")),
        words("Top-1 error (%)", "top1_error_percent"),
        words("Top-5 error (%)", "top5_error_percent"),
        figure("Speed, Pascal Titan X (ms)", "milliseconds", measures),
        *(figure(OWN.format(f"{machine} (ms)"), (machine, "ours", "why"), _times) for machine in machines),
        _label("citation", "Citation", "citation_url"),
    ]
    frame = references.overview(name).join(wide, on="network", how="left", maintain_order="left").with_columns(
        ours=pl.lit(value=True), why=pl.when(pl.col("network").is_not_null()).then(pl.lit(NOT_MEASURED))
    )  # fmt: skip
    return [Section("The networks", (), [Table("overview", "", frame, fields)])]


def _networks(name: str, times: pl.DataFrame, *_: pl.DataFrame) -> list[Section]:
    """Show a table a network, a row a machine and library: the times of its passes."""
    study = STUDIES[name]
    rows = times.filter((pl.col("pass") == "training") | (pl.col("why") == FORWARD_ONLY), ~pl.col("swept"))
    sizes = rows.group_by("network").agg(pl.col("batch_size").n_unique())["batch_size"]
    rows = ranked(pl.concat([rows, _missing(rows)], how="diagonal"), "total_ms", "network")
    rows = rows.sort(place("network", references.network_names(name)), maintain_order=True)
    fields = [
        _milliseconds(column, heading, "why" * (column == "total_ms"))
        if column.endswith("_ms")
        else _label(column, heading, "url" * (column == "implementation"))
        for column, heading in study.columns.items()
    ]
    fields.append(figure("95 %", ("low_ms", "high_ms", "ours"), numbers.own_ends, unit="ms", expendable=1))
    fields.append(_milliseconds("gpu_ms", "Device (ms)", expendable=2))
    text = [_ONLY_INFER] if FORWARD_ONLY in rows["why"] else []
    if sizes.max() != 1:
        fields += _batch("Per image (ms)")
        text.append("Batch sizes differ: ranked by the time per image.")
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
        section=pl.col("pass").replace(_SECTIONS),
        place=(pl.col("total_ms") / pl.col("batch_size")).rank().over("pass", "network"),
        note=pl.format("{}: {}", "published_network", "note"),
    )
    keys = ["section", "machine", "library", "batch_size", "ours"]
    wide, spread = _wide(rows, "published_network", keys, "total_ms", pl.col("place").mean(), _notes())
    frame = wide.sort("section", "place", nulls_last=True)
    fields = [_label(column, heading) for column, heading in STUDIES[name].columns.items()]
    fields += [figure("Batch", "batch_size", whole)] if frame["batch_size"].n_unique() > 1 else []
    fields += spread
    title = f"GPU vs Framework vs Network: milliseconds, {STUDIES[name].batch_size} samples per minibatch"
    return [_section(title, [_PICTURES], frame, fields, "section")]


def _minibatch(name: str, times: pl.DataFrame, *_: pl.DataFrame) -> list[Section]:
    """Show a table a network and pass, a row a machine and library, a column a batch size."""
    rows = times.filter("swept", pl.col("swept").any().over("network") & pl.col("ours").any().over("network"))
    rows = rows.with_columns(
        section=pl.format("{}, {}", "published_network", pl.col("pass").replace(_SECTIONS)),
        ms=pl.col("device_ms") / pl.col("batch_size"),
        note=pl.format("{}: {}", "batch_size", "note"),
    ).sort("batch_size", maintain_order=True)
    if rows.is_empty():
        return []
    keys = ["published_network", "machine", "library", "section", "ours"]
    wide, spread = _wide(rows, "batch_size", keys, "ms", _notes())
    frame = wide.sort(place("published_network", references.network_names(name).values()), maintain_order=True)
    fields = [_label(column, heading) for column, heading in STUDIES[name].columns.items()]
    fields += spread
    title = "Minibatch efficiency: milliseconds per sample, by samples per minibatch"
    return [_section(title, [f"{_PICTURES} {_DEVICE_TIME}"], frame, fields, "section")]


def _layers(_: str, __: pl.DataFrame, own: pl.DataFrame, ___: pl.DataFrame) -> list[Section]:
    """Show the layers' shapes, the sums over all five and every pass; only of L1 to L5."""
    return [] if own.is_empty() else [_shapes(own), _layer_sums(own), _layer_passes(own)]


def _shapes(own: pl.DataFrame) -> Section:
    sizes = own.group_by("layer").agg(own_batch_sizes=pl.col("batch_size").unique().sort())
    frame = references.layer_shapes().join(sizes, on="layer", how="left", maintain_order="left")
    printed = {"layer": "Layer", "input": "Input", "batch_size": "Batch-size", "maps": "Feature maps"}
    printed |= {"kernel": "Kernel Size", "stride": "Stride", "own_batch_sizes": OWN.format("Batch-size")}
    fields = [words(heading, column) for column, heading in printed.items()]
    return Section("L1 to L5: shapes", (), [Table("layer-shapes", "", frame, fields)])


def _layer_sums(own: pl.DataFrame) -> Section:
    sums = [pl.when(pl.col(name).count() == len(LAYERS)).then(pl.col(name).sum()).alias(name) for name in _SUMS]
    own = own.group_by(_ROW, maintain_order=True).agg(sums).with_columns(total_printed=pl.lit(FORWARD_ONLY))
    own = own.filter(pl.any_horizontal(pl.col(list(_SUMS)).is_not_null()))
    published = references.layer_summary().with_columns(ours=pl.lit(value=False))
    frame = ranked(pl.concat([published, own], how="diagonal_relaxed"), "total_ms")
    text = f"{_DEVICE_TIME} {_ONLY_INFER}"
    fields = [_milliseconds(name, heading, "total_printed" * (name == "total_ms")) for name, heading in _SUMS.items()]
    return _section("L1 to L5: forward + backprop", [text], frame, _layer_fields(frame, fields))


def _layer_passes(own: pl.DataFrame) -> Section:
    long = own.rename({column: table for column, (table, _) in _LAYER_TABLES.items()}).unpivot(
        [table for table, _ in _LAYER_TABLES.values()], index=[*_ROW, "layer", "why"], variable_name="table"
    )
    # An engine without a backward pass has no row there.
    long = long.filter((pl.col("value").is_not_null().any().over("table", *_ROW)) | (pl.col("table") == "forward"))
    wide, fields = _wide(long, "layer", ["table", *_ROW], "value", columns=LAYERS)
    wide = wide.with_columns(total=pl.sum_horizontal(LAYERS, ignore_nulls=False))
    published = references.layers().with_columns(ours=pl.lit(value=False))
    frame = ranked(pl.concat([published, wide], how="diagonal_relaxed"), "total", "table")
    headings = dict(_LAYER_TABLES.values())
    frame = frame.sort(place("table", headings), maintain_order=True)
    frame = frame.with_columns(section=pl.col("table").replace_strict(headings))
    fields = [*fields, _milliseconds("total", "Total")]
    return _section("L1 to L5, by pass (ms)", (), frame, _layer_fields(frame, fields), "section")


def _layer_fields(frame: pl.DataFrame, times: list[Field]) -> list[Field]:
    labels = [_label("machine", "GPU"), _label("library", "Library"), _label("implementation", "Class/Function", "url")]
    return [*labels, *times, *(_batch("Per image (ms)") if frame["batch_size"].n_unique() > 1 else [])]


def _cost(name: str, _: pl.DataFrame, __: pl.DataFrame, results: pl.DataFrame) -> list[Section]:
    """Show own rows whose price or energy is known, by network and pass, cheapest first."""
    rows = cost_rows(name, results).with_columns(pl.col("pass").replace(_SECTIONS))
    fields = [
        *(_label("machine", "Machine"), words("Instance Name", "instance"), _label("network", "Network")),
        *(_label("pass", "Pass"), _label("library", "Library"), figure("USD/h", "usd_per_hour", numbers.money)),
        *(figure("Batch", "batch_size", whole), figure("Images/s", "throughput", numbers.rates)),
        *(figure("USD/1M images", "usd_per_million_items", numbers.money), figure("J/image", "joules", numbers.money)),
    ]
    text = "At full load, at the price that the run was given. Energy is the whole card's, without the host's."
    return [_section("What a million images cost", [text], rows, fields)] if rows.height else []


def _hardware(name: str, own: pl.DataFrame, environments: Sequence[Environment]) -> list[Section]:
    """List the published GPUs and, before them, what runs knew of their machines."""
    rows = []
    for row in own.unique("machine", keep="first", maintain_order=True).iter_rows(named=True):
        machine = row["machine"]
        facts = next((f for f in environments if machine in (f.get("machine"), f.get("gpu"), f.get("cpu"))), {})
        roofs = facts.get("roofs") or {}
        mebibytes = facts.get("gpu_memory_mib" if row["device"] == "cuda" else "memory_mib")
        rows.append({
            "gpu": machine, "cloud": row["cloud"], "instance": row["instance"],
            "memory": f"{count(mebibytes / 1024)}GiB" if mebibytes else None,
            "fp32_tflops": roofs.get("fp32_tflops"), "bandwidth_gb_s": roofs.get("copy_gb_s"),
            "compute_capability": facts.get("compute_capability"),
            "price": f"{compact(row['usd_per_hour'])} an hour" if row["usd_per_hour"] else None, "ours": True,
        })  # fmt: skip
    published = references.hardware(name).with_columns(ours=pl.lit(value=False))
    frame = pl.concat([pl.DataFrame(rows, schema=published.schema), published])
    fields = [
        *(_label("gpu", "GPU", "url"), words("Cloud", "cloud", link="cloud_url"), words("Instance Name", "instance")),
        *(words("Memory", "memory"), words("Architecture", "architecture"), figure("CUDA Cores", "cuda_cores", whole)),
        *(figure("FP32 TFLOPS", "fp32_tflops", measures), figure("Base Clock (MHz)", "base_clock_mhz", whole)),
        *(
            figure("Bandwidth (GB/s)", "bandwidth_gb_s", measures),
            words("Compute Capability", "compute_capability"),
        ),
        *(words("Price (USD)", "price"), words("Release Date", "release_date")),
    ]
    text = "Own TFLOPS were measured in matrix products, own bandwidth in a copy (bytes read and written)."
    return [_section("The machines", [text], frame, fields)]


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
    title: str, text: Sequence[str], frame: pl.DataFrame, fields: Sequence[Field], section: str | None = None
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
    if "implementation" in rows.columns:
        # "best per layer" is put together of several libraries.
        rows = rows.with_columns(
            pl.when(pl.col("implementation").ne_missing("best per layer")).then(name).alias(name) for name in names
        )
    images = pl.col("batch_size") if "batch_size" in rows.columns else 1
    per_image = [(pl.col(name) / images).alias(name) for name in names]
    lowest = [(one == one.min()) & (pl.col(name).count() > 1) for one, name in zip(per_image, names, strict=True)]
    best = rows.select(one.over("ours").fill_null(value=False) for one in lowest)
    return best.to_dict(as_series=False) if names else {}


def _wide(
    rows: pl.DataFrame, on: str, keys: list[str], value: str, *more: pl.Expr, columns: Sequence[str] = ()
) -> tuple[pl.DataFrame, list[Field]]:
    """Spread `value` over a column for each value of `on`, or for `columns`; returns these columns' fields as well.

    `more` is made of each row's values. A blank of ours gives the reason, once in a row: a dash repeats what stands to
    its left.
    """
    columns = columns or [str(one) for one in rows[on].unique(maintain_order=True)]
    best = rows.sort(value, nulls_last=True, maintain_order=True).unique([*keys, on], keep="first", maintain_order=True)
    parts = [best.pivot(on, index=keys, values=name, maintain_order=True) for name in (value, "why")]
    wide = parts[0].join(parts[1], on=keys, suffix=" why", nulls_equal=True, maintain_order="left")
    about = rows.group_by(keys, maintain_order=True).agg(more)
    wide = about.join(wide, on=keys, nulls_equal=True, maintain_order="left")
    wide, said = wide.with_columns(said=pl.lit(None, pl.String)), pl.col("said")
    for column in columns:
        known = [name for name in (column, f"{column} why") if name in wide.columns]
        is_blank = pl.col(column).is_null() if known else pl.lit(value=True)
        why = pl.when("ours", is_blank).then(pl.coalesce(*known[1:], pl.lit(NOT_MEASURED)))
        wide = wide.with_columns(
            pl.when(why == said).then(pl.lit("–")).otherwise(why).alias(f"{column} why"), said=pl.coalesce(why, said),
            **({} if known else {column: pl.lit(None, pl.Float64)}),
        )  # fmt: skip
    return wide, [_milliseconds(column, column, f"{column} why") for column in columns]


def _notes() -> pl.Expr:
    return pl.col("note").drop_nulls().unique(maintain_order=True).str.join("; ").replace("", None)


def _label(column: str, heading: str, link: str = "") -> Field:
    return words(heading, column, link=link)


def _batch(heading: str) -> list[Field]:
    return [figure("Batch", "batch_size", whole), figure(heading, "per_item_ms", measures)]


def _milliseconds(column: str, heading: str, as_printed: str = "", **more: Any) -> Field:
    """Declare a column of times, whose lowest stands out; `as_printed` names what replaces a missing number."""
    columns = (column, "ours", as_printed) if as_printed else (column, "ours")
    return figure(heading, columns, _times, contested=True, **more)


def _times(
    values: Iterable[float | None], ours: Iterable[bool], printed: Iterable[str | None] = repeat(None)
) -> list[str]:
    """Write published times that are all whole without decimals."""
    rows = list(zip(values, ours, printed, strict=False))
    plain = all(value.is_integer() for value, own, _ in rows if value is not None and not own)
    return [text or "" if v is None else count(v) if plain and not own else measure(v) for v, own, text in rows]
