"""Make the tables of a report."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import polars as pl

from engines.catalog import PRECISIONS
from profiler.report.data import CONFIGURATION_KEY, KEY, SWEEP, Data
from profiler.results import batch_sweeps
from profiler.results.columns import RESULTS, Group, Shown, columns, field, fields, latency_spread, place, verdict
from profiler.results.layer_profiles import Profiled, groups
from profiler.results.set_up import BREAK_EVENS, PARTS
from profiler.results.speedups import certain
from profiler.results.warning_kinds import carried_by_all, meaning
from profiler.tables import numbers
from profiler.tables.numbers import aligned, compact, each, rates, significant, text, whole
from profiler.tables.table import Field, Table, figure, prose, under, words

_FACTS = {
    "GPU": {"gpu": "{}", "gpu_memory_mib": "{:,.0f} MiB", "compute_capability": "compute capability {}"},
    "Driver": {"driver": "{}"},  # Before the others, as it belongs to the GPU.
    **{column.heading: {column.name: "{}"} for column in columns(Group.VERSIONS)},
    "CPU": {"cpu": "{}", "cpu_cores": "{} cores", "memory_mib": "{:,.0f} MiB"},
    "Host": {"host": "{}"},
    "Platform": {"platform": "{}"},
}
_UNITS = {"tflops": "TFLOP/s", "gb_s": "GB/s", "mib": "MiB"}


def tables(data: Data) -> dict[str, Table]:
    """Every table that is not empty, by name."""
    configurations = data.configurations
    trained = configurations.filter(pl.col("pass") == "training")
    sized = configurations.filter(pl.col("batch_size").n_unique().over(SWEEP) > 1)
    warned = own_warnings(carried_by_all(configurations["warnings"]))
    made = [
        _answer(configurations, warned),
        _table("speedups", "Speed-up by configuration", _in_steps(configurations), *_SPEEDUPS, needs="speedup"),
        _table("latency", "Latency on every clock", configurations, *_LATENCY, warned, needs="latency_ms"),
        _table("throughput", "Throughput and latency", configurations, *_THROUGHPUT, needs="latency_ms"),
        _table("memory", "Memory", configurations, *_MEMORY, needs="peak_memory_mib"),
        _table("roofline", "Roofline", configurations, *_ROOFLINE, needs="tflops"),
        _table("efficiency", "Time per item", sized, *_EFFICIENCY, needs="item_ms"),
        _largest(data),
        _table("training", "Training", trained, *_TRAINING, needs="latency_ms"),
        *(_layers(number, cell) for number, cell in enumerate(data.layers, 1)),
        _table("samples", "Raw samples", configurations, *_SAMPLES, needs="taken"),
        _table("setup", "Set-up and break-even", configurations, *_SETUP, needs="set_up_s"),
        _table("energy", "Energy and cost", configurations, *_ENERGY, needs=("energy_mj_per_item", "usd_per_hour")),
        problems_table(data.problems),
        _warnings(data.warnings),
        environment_table(data.environments),
        Table("notes", "Notes", {"note": [*data.runs.notes, *data.notes]}, [prose("Note", "note")]),
    ]
    return {table.name: table for table in made if table.rows}


@dataclass(frozen=True)
class Layer:
    """Exported nodes that some variant runs as one, the PyTorch modules they come from, and each variant's time."""

    nodes: str
    modules: str | None
    ms: Mapping[str, float]


def layers(cell: Sequence[Profiled]) -> list[Layer]:
    """The nodes in the graph's order, then all layers without one; where no variant knows nodes, its own layers."""
    known = [Layer(group.name, group.modules, {v: group.ms(v) for v in group.layers}) for group in groups(cell)]
    if not known:
        (case,) = cell[:1]
        return [Layer(f"{own['kind']} {own['layer']}", None, {case.row["variant"]: own["ms"]}) for own in case.layers]
    strangers = {case.row["variant"]: sum(layer["ms"] for layer in own) for case in cell if (own := case.without_nodes)}
    return known + ([Layer("no exported node", None, strangers)] if strangers else [])


def own_warnings(of_all: Collection[str]) -> Field:
    """The kinds that a row carries, but those `of_all`, which the page says once."""
    own = each(lambda kinds: text([kind for kind in kinds if kind not in of_all]))
    return field("warnings", format=own)


def _answer(configurations: pl.DataFrame, warned: Field) -> Table:
    """What is fastest in each group, and the fastest in each precision, in rows that the page's filter shows."""
    second, plain = pl.col("rank") == 2, pl.col("precision") == "fp32"

    def rival(name: str, which: pl.Expr) -> pl.Expr:
        return pl.col(name).filter(which).first().over(KEY)

    known = pl.col("disturbed").is_null()
    best = (
        certain(configurations)
        .with_row_index("place")
        .with_columns(
            place=pl.col("place").first().over(KEY),
            runner_up=pl.when(rank=1).then(rival("configuration", second)),
            margin=pl.when(known & rival("disturbed", second).is_null(), rank=1).then(
                rival("latency_ms", second) / pl.col("latency_ms")
            ),
            fastest_fp32=rival("configuration", plain),
            fastest_fp32_ms=rival("latency_ms", plain),
        )
    )
    rows = [best.filter(rank=1).with_columns(restricted_to=pl.lit(None, pl.String))]
    if several := configurations["precision"].n_unique() > 1:
        own = best.unique([*KEY, "precision"], keep="first", maintain_order=True).sort(place("precision", PRECISIONS))
        rows.append(own.with_columns(restricted_to="precision"))
    best = pl.concat(rows).sort("place", maintain_order=True)
    fields = [
        *_identity(best, engine=False),
        *_FASTEST,
        *_against(best["base"].drop_nulls().unique()),
        *_PRICE,
        field("top1_agreement"),
        *_OTHERWISE[: 1 + several],
        warned,
        _NOTE,
    ]
    keys = [*KEY, "restricted_to", *PARTS, *BREAK_EVENS]
    return Table("answer", "What to deploy", best, fields, keys=keys, hidden="restricted_to")


def _against(base: pl.Series) -> list[Field]:
    return under(
        f"Against {base[0]}" if base.len() == 1 else "Against the base",
        figure("Speed-up (95\u00a0%),\u00a0×", ("speedup", "speedup_low", "speedup_high"), numbers.speedup),
        *([words("over", "base")] if base.len() > 1 else []),
        verdict(),
        words("Tied with", "indistinguishable_from"),
    )


def _layers(number: int, cell: Sequence[Profiled]) -> Table:
    """The exported nodes with every variant's time next to each other, and the sums."""
    row, variants = cell[0].row, [str(case.row["variant"]) for case in cell]
    rows = [*layers(cell), Layer("all layers", None, {case.row["variant"]: case.ms for case in cell})]
    frame = pl.DataFrame(
        {
            "modules": [layer.modules for layer in rows],
            "nodes": [layer.nodes for layer in rows],
            **{f"ms_{variant}": [layer.ms.get(variant) for layer in rows] for variant in variants},
        }
    )
    keys = {name: pl.lit(row[name], RESULTS.get(name, pl.String())) for name in (*KEY, "precision")}
    fields = [
        prose("PyTorch modules", "modules"),
        prose("ONNX nodes, fused where they share a row", "nodes"),
        *(figure(variant, f"ms_{variant}", unit="ms") for variant in variants),
    ]
    what = f"{row['model']}, {row['pass']}, {row['precision']}, batch {row['batch_size']}"
    frame = frame.with_columns(**keys, shape=pl.lit(row["shape"], pl.String))
    return Table(f"layers-{number}", what, frame, fields, keys=list(keys))


def _largest(data: Data) -> Table:
    """From a search: the largest batch that ran in each configuration, and the smallest above it that did not."""
    keys = ["run", "model", "pass", "setting", "variant", "precision"]
    run = pl.col("run_id").replace_strict(data.labels, default=None, return_dtype=pl.String)
    largest = batch_sweeps.largest(data.probes).with_columns(run=run, setting="settings", status="refused_status")
    fields = [
        *_identity(largest, batch=False),
        *([field("setting")] if largest["setting"].n_unique() > 1 else []),
        figure("Largest batch", "largest", whole),
        field("peak_memory_mib"),
        figure("Too large", "refused", whole),
        field("status"),
    ]
    return Table("largest-batch", "The largest batch that fits", largest, fields, keys=keys)


def environment_table(environments: Mapping[str, Mapping[str, Any]]) -> Table:
    """Versions and machine, a column a label; then what the device reached."""
    known = [facts(environment) | roofs(environment) for environment in environments.values()]
    parts = list(dict.fromkeys(part for of in known for part in of))
    places = {f"v{place}": [of.get(part) for part in parts] for place, of in enumerate(known)}
    fields = [words("Part", "part"), *(prose(label, f"v{place}") for place, label in enumerate(environments))]
    return Table("environment", "Machines and versions", {"part": parts, **places}, fields)


def facts(environment: Mapping[str, Any]) -> dict[str, str]:
    """By part what environment.json says of the machine and its software, as far as it does."""
    found = {}
    for part, forms in _FACTS.items():
        known = {key: value for key in forms if (value := environment.get(key)) is not None}
        found[part] = ", ".join(forms[key].format(value) for key, value in known.items())
    found["Packages"] = ", ".join(f"{name} {version}" for name, version in (environment.get("packages") or {}).items())
    for label, own in (environment.get("interpreters") or {}).items():
        known = {c.heading: own[c.name] for c in columns(Group.VERSIONS) if own.get(c.name)}
        found[f"Interpreter of {label}"] = ", ".join(f"{name} {version}" for name, version in known.items())
    return {part: what for part, what in found.items() if what}


def roofs(environment: Mapping[str, Any]) -> dict[str, str]:
    """What the device reached, and its cache."""
    found = {}
    for name, value in (environment.get("roofs") or {}).items():
        of, _, unit = name.partition("_")
        what = {"copy": "Memory bandwidth, measured", "cache": "Last-level cache"}.get(of, f"{of} peak, measured")
        found[what] = f"{compact(value)} {_UNITS.get(unit, unit)}"
    return found


def _rival(heading: str, name: str, value: str) -> Field:
    """Another configuration and its figure, like "ort fp16, 1.05"."""

    def cells(names: pl.Series, figures: pl.Series) -> list[str]:
        pairs = zip(names, figures, strict=True)
        return ["" if name is None or value is None else f"{name}, {significant(value)}" for name, value in pairs]

    return Field(heading=heading, columns=(name, value), format=cells, kind="words")


_shown = partial(fields, shown=Shown.REPORT)
_NOTE = words("Note", "note")
"""What was disturbed, for which factors are left out."""
_FASTEST = under(
    "Fastest", words("Configuration", "configuration"), field("latency_ms"), field("throughput", format=rates)
)
_OTHERWISE = under(
    "Otherwise",
    _rival("Runner-up, × the time", "runner_up", "margin"),
    _rival("Fastest in fp32, ms", "fastest_fp32", "fastest_fp32_ms"),
)
"""The second where there are several precisions."""
_PRICE = under("At the price of", field("peak_memory_mib"), field("rel_l2_error"))
_SPEEDUPS = [
    field("latency_ms"),
    figure("Speed-up", "speedup", aligned(most=2), unit="×"),
    figure("95 %", ("speedup_low", "speedup_high"), numbers.interval),
    words("over", "base"),
    words("Interval", "interval"),
    figure("On device", "device_speedup", aligned(most=2), unit="×"),
    figure("95 % on device", ("device_speedup_low", "device_speedup_high"), numbers.interval),
    verdict(),
    figure("Over the step before", "gain", aligned(most=2), unit="×"),
    field("rel_l2_error"),
    _NOTE,
]
_LATENCY = [field("latency_ms"), latency_spread(), *_shown(Group.LATENCY)[1:], *_shown(Group.CLOCKS)]
_THROUGHPUT = [
    field("latency_ms"),
    field("throughput", format=rates),
    words("On the front", "front"),
    field("peak_memory_mib"),
    _NOTE,
]
_MEMORY = [*_shown(Group.MEMORY), figure("Undivided", "undivided_mib", whole, unit="MiB")]
_ROOFLINE = [
    figure("GFLOPs an item", "gflops_per_item"),
    figure("FLOPs per byte", "intensity", aligned(most=1)),
    *_shown(Group.ROOFLINE),
    figure("Latency over floor", "over_floor", aligned(most=1), unit="×"),
    _NOTE,
]
_EFFICIENCY = [
    field("latency_ms"),
    figure("Per item", "item_ms", aligned(most=4), unit="ms"),
    figure("Against the smallest batch", "item_gain", aligned(most=2), unit="×"),
    field("throughput", format=rates),
    _NOTE,
]
_TRAINING = [
    field("latency_ms", "Iteration"),
    *_shown(Group.PARTS),
    field("throughput", format=rates),
    figure("Speed-up", "speedup", aligned(most=2), unit="×"),
    field("loss_error"),
    field("gradient_error"),
    _NOTE,
]
_SAMPLES = [
    field("clock"),
    field("samples"),
    field("latency_min_ms", "Minimum"),
    figure("p25", "ms_p25", unit="ms"),
    field("latency_ms", "Median"),
    figure("p75", "ms_p75", unit="ms"),
    field("latency_p99_ms"),
    figure("Maximum", "ms_max", unit="ms"),
    figure("Outliers", "outliers", whole),
    field("stop_reason"),
    figure("Processes", "replicates", whole),
]
_SETUP = [
    *_shown(Group.SET_UP),
    figure("Once", "once_s", aligned(most=2), unit="s"),
    figure("Every start", "start_s", aligned(most=2), unit="s"),
    figure("Total", "set_up_s", aligned(most=2), unit="s"),
    figure("Once pays off after", "pays_off_items", whole, unit="items"),
    figure("A restart costs", "restart_items", whole, unit="items"),
    words("against", "base"),
    figure("Fastest from", "best_from_items", whole, unit="items"),
    _NOTE,
]
_ENERGY = [*_shown(Group.ENERGY), field("usd_per_hour"), *_shown(Group.COST)]


def _identity(frame: pl.DataFrame, engine: bool = True, batch: bool = True) -> list[Field]:
    """What tells the rows apart; what is the same in all of them is left out."""
    several = {name for name in ("run", "pass") if frame[name].n_unique() > 1}
    return [
        *([words("Run", "run")] if "run" in several else []),
        field("model"),
        *([field("pass")] if "pass" in several else []),
        *([field("batch_size"), field("setting" if frame["role"].n_unique() == 1 else "extra")] if batch else []),
        *([field("variant", "Engine"), field("precision")] if engine else []),
    ]


def _table(name: str, title: str, configurations: pl.DataFrame, *fields: Field, needs: str | tuple[str, ...]) -> Table:
    frame = certain(configurations.filter(pl.any_horizontal(pl.col(needs).is_not_null())))
    return Table(name, title, frame, [*_identity(frame), *fields], keys=CONFIGURATION_KEY)


def _in_steps(configurations: pl.DataFrame) -> pl.DataFrame:
    """Each group's steps from the base on, with what each gains over the one before."""
    keys = configurations.select(KEY).unique(maintain_order=True).with_row_index("place")
    configurations = configurations.join(keys, on=KEY, how="left", nulls_equal=True, maintain_order="left")
    configurations = configurations.sort("place", "step", maintain_order=True)
    calm = pl.when(pl.col("own_disturbed").is_null()).then("latency_ms")
    return configurations.with_columns(gain=(calm.shift(1) / calm).over("place"))


def problems_table(problems: pl.DataFrame) -> Table:
    fields = [
        *([words("Run", "run")] if problems["run"].n_unique() > 1 else []),
        field("status"),
        prose("Reason", "reason"),
        field("variant", "Engine"),
        field("precision"),
        field("pass"),
        prose("Models", "model"),
        words("Batches", "batch_size"),
        figure("Cases", "cases", whole),
    ]
    keys = ["run", "pass", "precision", "model", "batch_size"]
    return Table("not-measured", "Not measured", problems, fields, keys=keys)


def _warnings(warnings: pl.DataFrame) -> Table:
    meanings = [meaning(kind, otherwise=text) for kind, text in warnings.select("kind", "example").iter_rows()]
    frame = warnings.with_columns(pl.Series("meaning", meanings, pl.String))
    fields = [
        words("Warning", "kind"),
        figure("Cases", "cases", whole),
        prose("What it means", "meaning"),
        prose("For example", "example"),
    ]
    return Table("warnings", "Warnings", frame, fields)
