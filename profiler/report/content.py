"""Make the tables of a report."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import polars as pl

from engines.catalog import PRECISIONS
from profiler.report.data import KEY, LINE, Data
from profiler.results.columns import Group, Shown
from profiler.results.fields import field, fields, latency_spread
from profiler.results.layer_profiles import Profiled, groups
from profiler.results.warning_kinds import meaning
from profiler.tables import numbers
from profiler.tables.numbers import aligned, compact, count, rates, significant, whole
from profiler.tables.table import Field, Table, figure, prose, under, words

_FACTS = {
    "GPU": {"gpu": "{}", "gpu_memory_mib": "{} MiB", "compute_capability": "compute capability {}"},
    "Driver": {"driver": "{}"},
    "CUDA": {"cuda": "{}"},
    "cuDNN": {"cudnn": "{}"},
    "torch": {"torch_version": "{}"},
    "ONNX Runtime": {"onnxruntime_version": "{}"},
    "TensorRT": {"tensorrt_version": "{}"},
    "CPU": {"cpu": "{}", "cpu_cores": "{} cores", "memory_mib": "{} MiB"},
    "Host": {"host": "{}"},
    "Platform": {"platform": "{}"},
    "Python": {"python": "{}"},
}
_UNITS = {"tflops": "TFLOP/s", "gb_s": "GB/s", "mib": "MiB"}


def tables(data: Data) -> dict[str, Table]:
    """Every table that is not empty, by name."""
    lines = data.lines
    made = [
        answer(lines),
        _table("ladder", "Speed-ups", _in_ladder_order(lines), *_LADDER, needs="speedup"),
        _table("latency", "Latency on every clock", lines, *_LATENCY, needs="latency_ms"),
        _table("throughput", "Throughput and latency", lines, *_THROUGHPUT, needs="latency_ms"),
        _table("memory", "Memory", lines, *_MEMORY, needs="peak_memory_mib"),
        _table("roofline", "Below the roofs", lines, *_ROOFLINE, needs="tflops"),
        _table("efficiency", "Time per item", lines, *_EFFICIENCY, needs="item_ms"),
        largest(data.probes),
        _table("training", "Training", lines.filter(pl.col("pass") == "training"), *_TRAINING, needs="latency_ms"),
        *(layer_table(number, cell) for number, cell in enumerate(data.layers, 1)),
        _samples(data),
        _table("setup", "Set-up and break-even", lines, *_SETUP, needs="setup_s"),
        _table("energy", "Energy and cost", lines, *_ENERGY, needs=("energy_mj_per_item", "usd_per_hour")),
        _problems(data.problems),
        _warnings(data.warnings),
        environment(data),
        Table("notes", "Notes", {"note": data.notes}, [prose("Note", "note")]),
    ]
    return {table.name: table for table in made if table.rows}


def answer(lines: pl.DataFrame) -> Table:
    """What is fastest in each group, and the fastest in each precision, in rows that the page's filter shows."""
    measured = [precision for precision in PRECISIONS if precision in lines["precision"]]
    several = [None, *measured] if len(measured) > 1 else [None]
    runner_up = lines.filter(rank=2).select(*KEY, runner_up="line", runner_up_ms="latency_ms")
    plain = lines.filter(pl.col("precision") == "fp32").group_by(KEY, maintain_order=True).first()
    plain = plain.select(*KEY, fastest_fp32="line", fastest_fp32_ms="latency_ms")
    found = []
    for precision in several:
        of = lines if precision is None else lines.filter(pl.col("precision") == precision)
        best = of.unique(KEY, keep="first", maintain_order=True)
        found.append(best.with_columns(restricted_to=pl.lit(precision, pl.String)))
    best = pl.concat(found)
    for more in (runner_up, plain):
        best = best.join(more, on=KEY, how="left", nulls_equal=True, maintain_order="left")
    margin = pl.when(rank=1).then(pl.col("runner_up_ms") / pl.col("latency_ms"))
    best = best.with_columns(margin=margin, runner_up=pl.when(rank=1).then("runner_up"))
    order = {tuple(key): place for place, key in enumerate(best.select(KEY).unique(maintain_order=True).iter_rows())}
    places = pl.Series("place", [order[key] for key in best.select(KEY).iter_rows()], pl.Int64)
    best = best.with_columns(places).sort("place", maintain_order=True)
    base = best["base"].drop_nulls().unique()
    against = under(
        f"Against {base[0]}" if base.len() == 1 else "Against the base",
        figure("Speed-up (95\u00a0%),\u00a0×", ("speedup", "speedup_low", "speedup_high"), numbers.speedup),
        *([words("over", "base")] if base.len() > 1 else []),
        words("Verdict", "verdict"),
        words("Tied with", "indistinguishable_from"),
    )
    fields = [
        *_identity(best, engine=False),
        *under("Deploy", words("Line", "line"), field("latency_ms"), field("throughput", format=rates)),
        *against,
        *under("At the price of", field("peak_memory_mib"), field("rel_l2_error")),
        field("top1_agreement"),
        *under(
            "Otherwise",
            _rival("Runner-up, × the time", "runner_up", "margin"),
            _rival("Fastest in fp32, ms", "fastest_fp32", "fastest_fp32_ms"),
        ),
        field("warnings"),
    ]
    return Table("answer", "What to deploy", best, fields, keys=[*KEY, "restricted_to"], hidden="restricted_to")


def layer_table(number: int, cell: Sequence[Profiled]) -> Table:
    """The exported nodes with every variant's time side by side; where no variant knows the nodes, its layers."""
    row, variants = cell[0].row, [str(case.row["variant"]) for case in cell]
    rows = layer_rows(cell)
    sums = {f"ms_{case.row['variant']}": case.ms for case in cell}
    frame = pl.DataFrame([*rows, {"modules": None, "nodes": "all layers", **sums}], infer_schema_length=None)
    keys = [*KEY, "precision"]
    frame = frame.with_columns(pl.lit(row[key], _KEY_TYPES[key]).alias(key) for key in keys)
    fields = [
        prose("PyTorch modules", "modules"),
        prose("ONNX nodes, fused where they share a row", "nodes"),
        *(figure(variant, f"ms_{variant}", unit="ms") for variant in variants),
    ]
    what = f"{row['model']}, {row['pass']}, {row['precision']}, batch {row['batch_size']}"
    return Table(f"layers-{number}", what, frame, fields, keys=keys)


def layer_rows(cell: Sequence[Profiled]) -> list[dict[str, Any]]:
    """A row a group of nodes that some variant runs as one, in the graph's order, and one for all that is in none."""
    rows = []
    for group in groups(cell):
        times = {f"ms_{variant}": group.ms(variant) for variant in group.layers}
        rows.append({"modules": group.modules, "nodes": group.name, **times})
    strangers: dict[str, float] = {}
    if not rows:
        (case,) = cell[:1]
        return [
            {"modules": None, "nodes": f"{layer['kind']} {layer['layer']}", f"ms_{case.row['variant']}": layer["ms"]}
            for layer in case.layers
        ]
    for case in cell:
        if own := case.without_nodes:
            strangers[f"ms_{case.row['variant']}"] = sum(layer["ms"] for layer in own)
    return rows + ([{"modules": None, "nodes": "no exported node", **strangers}] if strangers else [])


def largest(probes: pl.DataFrame) -> Table:
    """The largest batch that ran in each line, and the smallest above it that did not, from a search for it."""
    keys = ["run", "model", "pass", "setting", "variant", "precision"]
    ok, batch = pl.col("status") == "ok", pl.col("batch_size")
    most = batch.filter(ok).max()
    # Memory need not grow with the batch: a smaller one than the largest may have failed.
    refused = ~ok & (batch > most.fill_null(0))
    found = probes.group_by(keys, maintain_order=True).agg(
        largest=most,
        peak_memory_mib=pl.col("peak_memory_mib").filter(ok & (batch == most)).first(),
        too_large=batch.filter(refused).min(),
        status=pl.col("status").filter(refused).sort_by(batch.filter(refused)).first(),
    )
    fields = [
        *_identity(found, batch=False),
        *([field("setting")] if found["setting"].n_unique() > 1 else []),
        figure("Largest batch", "largest", whole),
        field("peak_memory_mib"),
        figure("Too large", "too_large", whole),
        field("status", "since"),
    ]
    return Table("largest-batch", "The largest batch that fits", found, fields, keys=keys)


def environment(data: Data) -> Table:
    """Versions and machine, a column a run; then what the device reached."""
    found = data.environments
    rows: dict[str, dict[str, str]] = {}
    for place, facts in enumerate(found.values()):
        for part, forms in _FACTS.items():
            said = [form.format(_fact(key, facts[key])) for key, form in forms.items() if facts.get(key) is not None]
            rows.setdefault(part, {})[f"v{place}"] = ", ".join(said)
        packages = facts.get("packages") or {}
        rows.setdefault("Packages", {})[f"v{place}"] = ", ".join(
            f"{name} {version}" for name, version in packages.items()
        )
        for name, value in (facts.get("roofs") or {}).items():
            of, _, unit = name.partition("_")
            what = {"copy": "Memory roof, a copy", "cache": "Last-level cache"}.get(of, f"{of} roof")
            rows.setdefault(what, {})[f"v{place}"] = f"{compact(value)} {_UNITS.get(unit, unit)}"
    filled = [{"part": part, **values} for part, values in rows.items() if any(values.values())]
    fields = [words("Part", "part"), *(prose(label, f"v{place}") for place, label in enumerate(found))]
    schema = {"part": pl.String, **{f"v{place}": pl.String for place in range(len(found))}}
    return Table("environment", "Machines and versions", pl.DataFrame(filled, schema=schema), fields)


def _fact(key: str, value: Any) -> str:
    return count(value) if key.endswith("_mib") else str(value)


def _rival(heading: str, name: str, value: str) -> Field:
    """Another line and its figure, like "ort fp16, 1.05"."""

    def cells(names: pl.Series, figures: pl.Series) -> list[str]:
        pairs = zip(names, figures, strict=True)
        return ["" if name is None or value is None else f"{name}, {significant(value)}" for name, value in pairs]

    return Field(heading=heading, columns=(name, value), format=cells, kind="words")


_shown = partial(fields, shown=Shown.REPORT)
_KEY_TYPES = {**dict.fromkeys([*KEY, "precision"], pl.String), "batch_size": pl.Int64}
_LADDER = [
    field("latency_ms"),
    figure("Speed-up", "speedup", aligned(most=2), unit="×"),
    figure("95 %", ("speedup_low", "speedup_high"), numbers.interval),
    words("over", "base"),
    words("Interval", "interval"),
    figure("On device", "device_speedup", aligned(most=2), unit="×"),
    figure("95 % on device", ("device_speedup_low", "device_speedup_high"), numbers.interval),
    words("Verdict", "verdict"),
    figure("Over the rung before", "gain", aligned(most=2), unit="×"),
    field("rel_l2_error"),
]
_LATENCY = [
    field("latency_ms"),
    latency_spread(),
    *_shown(Group.LATENCY)[1:],
    *_shown(Group.CLOCKS),
    field("warnings"),
]
_THROUGHPUT = [
    field("latency_ms"),
    field("throughput", format=rates),
    words("On the front", "front"),
    field("peak_memory_mib"),
]
_MEMORY = [*_shown(Group.MEMORY), figure("Undivided", "undivided_mib", whole, unit="MiB")]
_ROOFLINE = [
    figure("GFLOPs an item", "gflops_per_item"),
    figure("FLOPs per byte", "intensity", aligned(most=1)),
    field("tflops"),
    field("fraction_of_peak", "Of the roof"),
    figure("Floor", "floor_ms", aligned(most=4), unit="ms"),
    figure("Latency over floor", "over_floor", aligned(most=1), unit="×"),
]
_EFFICIENCY = [
    field("latency_ms"),
    figure("Per item", "item_ms", aligned(most=4), unit="ms"),
    figure("Against the smallest batch", "item_gain", aligned(most=2), unit="×"),
    field("throughput", format=rates),
]
_TRAINING = [
    field("latency_ms", "Iteration"),
    *_shown(Group.PARTS),
    field("throughput", format=rates),
    figure("Speed-up", "speedup", aligned(most=2), unit="×"),
    field("loss_error"),
    field("gradient_error"),
]
_SETUP = [
    *_shown(Group.SET_UP),
    figure("Together", "setup_s", aligned(most=2), unit="s"),
    figure("Pays off after", "pays_off_items", whole, unit="items"),
    words("against", "base"),
    figure("The best from", "best_from_items", whole, unit="items"),
]
_ENERGY = [*_shown(Group.ENERGY), field("usd_per_hour"), *_shown(Group.COST)]


def _identity(frame: pl.DataFrame, engine: bool = True, batch: bool = True) -> list[Field]:
    """What tells the rows apart; what is the same in all of them is left out."""
    several = {name for name in ("run", "pass") if frame[name].n_unique() > 1}
    return [
        *([words("Run", "run")] if "run" in several else []),
        field("model"),
        *([field("pass")] if "pass" in several else []),
        *([field("batch_size"), field("extra")] if batch else []),
        *([field("variant", "Engine"), field("precision")] if engine else []),
    ]


def _table(name: str, title: str, lines: pl.DataFrame, *fields: Field, needs: str | tuple[str, ...]) -> Table:
    frame = lines.filter(pl.any_horizontal(pl.col(needs).is_not_null()))
    return Table(name, title, frame, [*_identity(frame), *fields], keys=LINE)


def _in_ladder_order(lines: pl.DataFrame) -> pl.DataFrame:
    """Each group's rungs from the base on, with what each gains over the one before."""
    keys = lines.select(KEY).unique(maintain_order=True).with_row_index("place")
    lines = lines.join(keys, on=KEY, how="left", nulls_equal=True, maintain_order="left")
    lines = lines.sort("place", "rung", maintain_order=True)
    return lines.with_columns(gain=(pl.col("latency_ms").shift(1) / pl.col("latency_ms")).over("place"))


def _samples(data: Data) -> Table:
    frame = data.lines.join(data.drawn, on=LINE, how="inner", nulls_equal=True, maintain_order="left")
    fields = [
        *_identity(frame),
        field("clock"),
        figure("Samples", "taken", whole),
        field("latency_min_ms"),
        figure("p25", "ms_p25", unit="ms"),
        field("latency_ms", "Median"),
        figure("p75", "ms_p75", unit="ms"),
        field("latency_p99_ms"),
        figure("Most", "ms_max", unit="ms"),
        figure("Outliers", "outliers", whole),
        field("stop_reason"),
        figure("Processes", "replicates", whole),
    ]
    return Table("samples", "Raw samples", frame, fields, keys=LINE)


def _problems(problems: pl.DataFrame) -> Table:
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
