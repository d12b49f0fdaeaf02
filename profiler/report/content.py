"""What enters: `Data`. What leaves: the tables of a report, by name."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import polars as pl

from profiler.report.data import KEY, LINE, Data
from profiler.report.tables import (
    Column,
    Table,
    declared,
    figure,
    interval,
    items,
    percent,
    prose,
    ratio,
    rival,
    shown,
    spread,
    text,
    tiny,
    under,
    whole,
)
from profiler.results.columns import Group
from profiler.results.layer_profiles import Profiled, groups
from profiler.results.warning_kinds import meaning

_FACTS = {
    "GPU": {"gpu": "{}", "gpu_memory_mib": "{:,.0f} MiB", "compute_capability": "compute capability {}"},
    "Driver": {"driver": "{}"},
    "CUDA": {"cuda": "{}"},
    "cuDNN": {"cudnn": "{}"},
    "torch": {"torch_version": "{}"},
    "ONNX Runtime": {"onnxruntime_version": "{}"},
    "TensorRT": {"tensorrt_version": "{}"},
    "CPU": {"cpu": "{}", "cpu_cores": "{} cores", "memory_mib": "{:,.0f} MiB"},
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
        Table(
            "notes", "Notes", [prose("Note", "note")], pl.DataFrame({"note": data.notes}, schema={"note": pl.String})
        ),
    ]
    return {table.name: table for table in made if not table.frame.is_empty()}


def answer(lines: pl.DataFrame) -> Table:
    """What is fastest in each group, and the fastest in each precision, in rows that the page's filter shows."""
    several = [None, *lines["precision"].unique()] if lines["precision"].n_unique() > 1 else [None]
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
        ratio("Speed-up (95\u00a0%),\u00a0×", "speedup", "speedup_low", "speedup_high"),
        *([text("over", "base")] if base.len() > 1 else []),
        text("Verdict", "verdict"),
        text("Tied with", "indistinguishable_from"),
    )
    columns = [
        *_identity(best, engine=False),
        *under("Deploy", text("Line", "line"), figure("Latency, ms", "latency_ms"), items("Items/s", "throughput")),
        *against,
        *under("At the price of", whole("Memory, MiB", "peak_memory_mib"), tiny("Rel. error", "rel_l2_error")),
        percent("Top-1, %", "top1_agreement"),
        *under(
            "Otherwise",
            rival("Runner-up, × the time", "runner_up", "margin"),
            rival("Fastest in fp32, ms", "fastest_fp32", "fastest_fp32_ms"),
        ),
        text("Warnings", "warnings"),
    ]
    return Table("answer", "What to deploy", columns, best, [*KEY, "restricted_to"])


def layer_table(number: int, cell: Sequence[Profiled]) -> Table:
    """The exported nodes with every variant's time side by side; where no variant knows the nodes, its layers."""
    row, variants = cell[0].row, [str(case.row["variant"]) for case in cell]
    rows = layer_rows(cell)
    sums = {f"ms_{case.row['variant']}": case.ms for case in cell}
    frame = pl.DataFrame([*rows, {"modules": None, "nodes": "all layers", **sums}], infer_schema_length=None)
    keys = [*KEY, "precision"]
    frame = frame.with_columns(pl.lit(row[key], _KEY_TYPES[key]).alias(key) for key in keys)
    columns = [
        prose("PyTorch modules", "modules"),
        prose("ONNX nodes, fused where they share a row", "nodes"),
        *(figure(f"{variant}, ms", f"ms_{variant}") for variant in variants),
    ]
    what = f"{row['model']}, {row['pass']}, {row['precision']}, batch {row['batch_size']}"
    return Table(f"layers-{number}", what, columns, frame, keys)


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
    columns = [
        *_identity(found, batch=False),
        *([text("Setting", "setting")] if found["setting"].n_unique() > 1 else []),
        whole("Largest batch", "largest"),
        whole("Memory, MiB", "peak_memory_mib"),
        whole("Too large", "too_large"),
        text("since", "status"),
    ]
    return Table("largest-batch", "The largest batch that fits", columns, found, keys)


def environment(data: Data) -> Table:
    """Versions and machine, a column a run; then what the device reached."""
    found = data.environments
    rows: dict[str, dict[str, str]] = {}
    for place, facts in enumerate(found.values()):
        for part, forms in _FACTS.items():
            said = [form.format(facts[key]) for key, form in forms.items() if facts.get(key) is not None]
            rows.setdefault(part, {})[f"v{place}"] = ", ".join(said)
        packages = facts.get("packages") or {}
        rows.setdefault("Packages", {})[f"v{place}"] = ", ".join(
            f"{name} {version}" for name, version in packages.items()
        )
        for name, value in (facts.get("roofs") or {}).items():
            of, _, unit = name.partition("_")
            what = {"copy": "Memory roof, a copy", "cache": "Last-level cache"}.get(of, f"{of} roof")
            rows.setdefault(what, {})[f"v{place}"] = f"{value:,.4g} {_UNITS.get(unit, unit)}"
    filled = [{"part": part, **values} for part, values in rows.items() if any(values.values())]
    columns = [text("Part", "part"), *(prose(label, f"v{place}") for place, label in enumerate(found))]
    schema = {"part": pl.String, **{f"v{place}": pl.String for place in range(len(found))}}
    return Table("environment", "Machines and versions", columns, pl.DataFrame(filled, schema=schema))


_KEY_TYPES = {**dict.fromkeys([*KEY, "precision"], pl.String), "batch_size": pl.Int64}
_LADDER = [
    figure("Latency, ms", "latency_ms"),
    figure("Speed-up, ×", "speedup", most=2),
    interval("95 %", "speedup_low", "speedup_high"),
    text("over", "base"),
    text("Interval", "interval"),
    figure("On device, ×", "device_speedup", most=2),
    interval("95 % on device", "device_speedup_low", "device_speedup_high"),
    text("Verdict", "verdict"),
    figure("Over the rung before, ×", "gain", most=2),
    tiny("Rel. error", "rel_l2_error"),
]
_LATENCY = [
    declared("latency_ms"),
    spread("± %", "latency_ci_low_ms", "latency_ci_high_ms", "latency_ms"),
    *shown(Group.LATENCY)[1:],
    *shown(Group.CLOCKS),
    text("Warnings", "warnings"),
]
_THROUGHPUT = [
    figure("Latency, ms", "latency_ms"),
    items("Items/s", "throughput"),
    text("On the front", "front"),
    whole("Memory, MiB", "peak_memory_mib"),
]
_MEMORY = [*shown(Group.MEMORY), whole("Undivided, MiB", "undivided_mib")]
_ROOFLINE = [
    figure("GFLOPs an item", "gflops_per_item"),
    figure("FLOPs per byte", "intensity", most=1),
    figure("TFLOP/s", "tflops"),
    percent("Of the roof, %", "fraction_of_peak"),
    figure("Floor, ms", "floor_ms", most=4),
    figure("Latency over floor, ×", "over_floor", most=1),
]
_EFFICIENCY = [
    figure("Latency, ms", "latency_ms"),
    figure("Per item, ms", "item_ms", most=4),
    figure("Against the smallest batch, ×", "item_gain", most=2),
    items("Items/s", "throughput"),
]
_TRAINING = [
    figure("Iteration, ms", "latency_ms"),
    *shown(Group.PARTS),
    items("Items/s", "throughput"),
    figure("Speed-up, ×", "speedup", most=2),
    declared("loss_error"),
    declared("gradient_error"),
]
_SETUP = [
    *shown(Group.SET_UP),
    figure("Together, s", "setup_s", most=2),
    whole("Pays off after, items", "pays_off_items"),
    text("against", "base"),
    whole("The best from, items", "best_from_items"),
]
_ENERGY = [*shown(Group.ENERGY), declared("usd_per_hour"), *shown(Group.COST)]


def _identity(frame: pl.DataFrame, engine: bool = True, batch: bool = True) -> list[Column]:
    """What tells the rows apart; what is the same in all of them is left out."""
    several = {name for name in ("run", "pass") if frame[name].n_unique() > 1}
    return [
        *([text("Run", "run")] if "run" in several else []),
        text("Model", "model"),
        *([text("Pass", "pass")] if "pass" in several else []),
        *([whole("Batch", "batch_size"), text("Setting", "extra")] if batch else []),
        *([text("Engine", "variant"), text("Precision", "precision")] if engine else []),
    ]


def _table(name: str, title: str, lines: pl.DataFrame, *columns: Column, needs: str | tuple[str, ...]) -> Table:
    frame = lines.filter(pl.any_horizontal(pl.col(needs).is_not_null()))
    return Table(name, title, [*_identity(frame), *columns], frame, LINE)


def _in_ladder_order(lines: pl.DataFrame) -> pl.DataFrame:
    """Each group's rungs from the base on, with what each gains over the one before."""
    keys = lines.select(KEY).unique(maintain_order=True).with_row_index("place")
    lines = lines.join(keys, on=KEY, how="left", nulls_equal=True, maintain_order="left")
    lines = lines.sort("place", "rung", maintain_order=True)
    return lines.with_columns(gain=(pl.col("latency_ms").shift(1) / pl.col("latency_ms")).over("place"))


def _samples(data: Data) -> Table:
    frame = data.lines.join(data.drawn, on=LINE, how="inner", nulls_equal=True, maintain_order="left")
    columns = [
        *_identity(frame),
        text("Clock", "clock"),
        whole("Samples", "taken"),
        figure("Least, ms", "latency_min_ms"),
        figure("p25, ms", "ms_p25"),
        figure("Median, ms", "latency_ms"),
        figure("p75, ms", "ms_p75"),
        figure("p99, ms", "latency_p99_ms"),
        figure("Most, ms", "ms_max"),
        whole("Outliers", "outliers"),
        text("Stopped by", "stop_reason"),
        whole("Processes", "replicates"),
    ]
    return Table("samples", "Raw samples", columns, frame, LINE)


def _problems(problems: pl.DataFrame) -> Table:
    columns = [
        *([text("Run", "run")] if problems["run"].n_unique() > 1 else []),
        text("Status", "status"),
        prose("Reason", "reason"),
        text("Engine", "variant"),
        text("Precision", "precision"),
        text("Pass", "pass"),
        prose("Models", "model"),
        text("Batches", "batch_size"),
        whole("Cases", "cases"),
    ]
    return Table("not-measured", "Not measured", columns, problems, ["run", "pass", "precision", "model", "batch_size"])


def _warnings(warnings: pl.DataFrame) -> Table:
    meanings = [meaning(kind, otherwise=text) for kind, text in warnings.select("kind", "example").iter_rows()]
    frame = warnings.with_columns(pl.Series("meaning", meanings, pl.String))
    columns = [
        text("Warning", "kind"),
        whole("Cases", "cases"),
        prose("What it means", "meaning"),
        prose("For example", "example"),
    ]
    return Table("warnings", "Warnings", columns, frame)
