"""Declare every column of results.parquet once: name, type, unit, heading, meaning, group, and which way is better.

Schemas, tables/*.csv, the terminal, the report and its charts, recommend and docs/columns.md read the columns from
here: a new one is declared in its group and filled where it is measured. Outside tools rely on the names and types; a
unit is part of the name.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from enum import IntEnum, StrEnum
from functools import partial
from typing import Any, Literal

import polars as pl

TEXT, COUNT, MEASURE, FLAG = pl.String(), pl.Int64(), pl.Float64(), pl.Boolean()


class Group(StrEnum):
    """What a column tells about a case: a table shows the columns of one group or of several."""

    CASE = "case"
    OUTCOME = "outcome"
    LATENCY = "latency"
    CLOCKS = "clocks"
    PARTS = "parts of an iteration"
    THROUGHPUT = "throughput"
    MEMORY = "memory"
    SET_UP = "set-up"
    ACCURACY = "accuracy"
    ROOFLINE = "roofline"
    ENERGY = "energy"
    MACHINE = "machine"
    COST = "cost"
    PLACE = "place"
    VERSIONS = "versions"


class Shown(IntEnum):
    """How far a column reaches; each reach includes those before it."""

    FILES = 0
    """results.parquet and the tables of its group."""
    REPORT = 1
    TERMINAL = 2


@dataclass(frozen=True, kw_only=True)
class Column:
    """One column of the results.

    `heading` goes over it in tables, `noun` is its name in a sentence, both without the unit. `part_of` names the whole
    that it is a part of: parts of one whole add up to it. `meaning` is Markdown; neighbours of one meaning share a row
    of docs/columns.md.
    """

    name: str
    meaning: str
    group: Group = Group.CASE
    type: pl.DataType = MEASURE
    heading: str = ""
    noun: str = ""
    unit: str = ""
    """Such as "ms" or "items/s"; "share" is printed in percent, "error" as 1.6e-3; empty for counts and words."""
    better: Literal["less", "more"] | None = None
    part_of: str = ""
    percentile: int | None = None
    expendable: int = 0
    """A narrow terminal does without the column of the highest number first, and never without one of 0."""
    objective: str = ""
    """What `recommend --objective` calls it."""
    shown: Shown = Shown.FILES


def _column(name: str, heading: str, meaning: str, **more: Any) -> Column:
    return Column(name=name, heading=heading, meaning=meaning, **more)


_text = partial(_column, type=TEXT)
_count = partial(_column, type=COUNT)
_flag = partial(_column, type=FLAG)
_figure = partial(_column, shown=Shown.REPORT)
_ms = partial(_figure, unit="ms", better="less")
_mib = partial(_figure, unit="MiB", better="less")
_seconds = partial(_figure, unit="s", better="less")
_error = partial(_figure, unit="error", better="less")


def _identity() -> Iterator[Column]:
    cell = "the cell; `engine` is the runtime, `variant` the preset or label"
    parts = (
        "`extra` in its two parts: the first without its end (`optimizer=sgd/head=logits`; empty for nothing), the "
        "second as `cell`, `sweep` or `probe`"
    )
    yield _text("run_id", "", "the run's folder: UTC time, host, four hex digits")
    yield _text(
        "case_id",
        "",
        "`resnet50/ort-tuned/inference/fp16/b16/r0`: model, variant, pass, precision, batch, replicate; then "
        "`/key=value` for each extra",
    )
    yield _text("suite", "", "the job's name")
    yield _text("model", "Model", cell)
    yield _text("engine", "Engine", cell)
    yield _text("variant", "Variant", cell)
    yield _text("pass", "Pass", cell)
    yield _text("precision", "Precision", cell)
    yield _count("batch_size", "Batch", cell)
    yield _text("device", "Device", cell)
    yield _count("replicate", "Replicate", cell)
    yield _text("model_kind", "", "`canonical`, `factory`, `onnx` or `layer`; of a layer `model` is its name")
    yield _text("network", "", "the canonical network that the row's model is, whatever the model is called; else null")
    yield _text(
        "extra",
        "Setting",
        "what else distinguishes the case, as at the end of its id: `optimizer=sgd/head=logits`, `sweep=batch` (a "
        "batch of a sweep, in one process with the others), `probe=largest` (a try of the search for the largest "
        "batch; it has only the headline clock, and no throughput)",
    )
    yield _text("setting", "Setting", parts)
    yield _text("role", "Role", parts)
    yield _text(
        "shape",
        "Shape",
        "the sizes of named dimensions that the job varies (`shapes`), as in `extra`: `height=224/width=224`; else "
        "null",
    )


def _work() -> Iterator[Column]:
    training = "what training did besides forward and backward; null in inference"
    yield _flag(
        "is_base", "Base", "whether speed-ups are relative to this row: eager at fp32, `ort` for a user's ONNX file"
    )
    yield _text(
        "reference_model",
        "Reference",
        "the model whose base the row's speed-up is relative to, and whose outputs its error is, where the job names "
        "another (`reference`); else null",
    )
    yield _text("optimizer", "Optimizer", training)
    yield _text("head", "Head", training)
    yield _flag("dropout", "Dropout", training)
    yield _flag("input_gradient", "Input gradient", training)
    yield _text("options", "Options", "the engine's options, JSON")
    yield _flag(
        "calibrated",
        "Calibrated",
        "of int8 and fp8: whether their ranges are those of the job's `calibration` data; false of seeded data, and of "
        "torchao, which takes them from each call's inputs; null at any other precision, and where an older run does "
        "not say",
    )


def _outcome() -> Iterator[Column]:
    yield _text(
        "status",
        "Status",
        "`ok`, `unsupported` (cannot be done here), `failed`, `oom` (out of memory), `timeout`, `crashed` (ended by a "
        "signal)",
    )
    yield _text("reason", "Reason", "why it is not `ok`")
    yield _text(
        "log",
        "Log",
        "of a row that is not `ok`: the file in the run's folder that has the whole traceback, or what was printed",
    )
    yield _text(
        "graph",
        "Graph",
        "who made the ONNX graph that ran, and for which batches: `torch.export, any batch`, `torch.export (strict), "
        "batch 8 only`, `the file` (a user's), then by whom it was converted or quantized; null where the module ran",
    )
    yield _text(
        "reference",
        "Reference",
        "what the errors are relative to: `eager-fp32-cpu`, `ort-cpu-unoptimized` for a user's ONNX file, or in "
        "training `step-fp64-cpu`; in inference of `reference_model`, where there is one. Where the CPU cannot afford "
        "it: `eager-fp32-cuda`, `ort-cuda-unoptimized`, or fewer items, such as `eager-fp32-cpu, 2 of 8 items`",
    )


def _latency() -> Iterator[Column]:
    ends = "95 % block-bootstrap interval of the median, within this process; null below 30 effective samples"
    tail = "percentiles, null below 64, 130 and 662 samples"
    sampling = "how many samples, and why sampling stopped: `precision`, `plateau`, `budget`, `max_samples`"
    yield _text(
        "clock",
        "Clock",
        "the headline clock: `event` on a GPU, `host` on a CPU and for an engine with a queue of its own (JAX)",
    )
    median = "median of one call on that clock"
    yield _ms("latency_ms", "Latency", median, noun="latency", objective="latency", shown=Shown.TERMINAL)
    yield _ms("latency_mean_ms", "Mean", "mean and minimum", shown=Shown.FILES)
    yield _ms("latency_min_ms", "Least", "mean and minimum", shown=Shown.FILES)
    yield _ms("latency_p90_ms", "p90", tail, noun="p90 latency", percentile=90)
    yield _ms("latency_p95_ms", "p95", tail, noun="p95 latency", percentile=95)
    yield _ms("latency_p99_ms", "p99", tail, noun="p99 latency", percentile=99)
    yield _ms("latency_ci_low_ms", "95 % from", ends, shown=Shown.FILES)
    yield _ms("latency_ci_high_ms", "to", ends, shown=Shown.FILES)
    yield _count("samples", "Samples", sampling)
    yield _text("stop_reason", "Stopped by", sampling)


def _clocks() -> Iterator[Column]:
    copies = "pinned copies of inputs and outputs; in no other figure"
    yield _ms(
        "gpu_ms",
        "Device",
        "median of one call with launch gaps taken out: all its launches were queued before its first kernel started, "
        "and nothing behind it",
        shown=Shown.TERMINAL,
        expendable=5,
    )
    yield _ms("enqueue_ms", "Enqueue", "host time until the call returns")
    yield _ms("host_ms", "Host", "host time from the call to finished work")
    yield _ms("h2d_ms", "To device", copies)
    yield _ms("d2h_ms", "From device", copies)


def _parts() -> Iterator[Column]:
    iteration = (
        "parts of a training iteration, on the headline clock; `step_ms` is the optimizer's step, null without one"
    )
    layer = "of a single layer, the two parts of its backward pass"
    device = "the same on the clock of `gpu_ms`, free of gaps between launches"
    yield _ms("forward_ms", "Forward", iteration, part_of="latency_ms", shown=Shown.TERMINAL)
    yield _ms("backward_ms", "Backward", iteration, part_of="latency_ms", shown=Shown.TERMINAL)
    yield _ms("step_ms", "Step", iteration, part_of="latency_ms", shown=Shown.TERMINAL)
    yield _ms("grad_input_ms", "Input gradient", layer, part_of="latency_ms")
    yield _ms("grad_weight_ms", "Weight gradient", layer, part_of="latency_ms")
    yield _ms("gpu_forward_ms", "Forward on device", device, part_of="gpu_ms")
    yield _ms("gpu_backward_ms", "Backward on device", device, part_of="gpu_ms")
    yield _ms("gpu_step_ms", "Step on device", device, part_of="gpu_ms")
    yield _ms("gpu_grad_input_ms", "Input gradient on device", device, part_of="gpu_ms")
    yield _ms("gpu_grad_weight_ms", "Weight gradient on device", device, part_of="gpu_ms")


def _throughput() -> Iterator[Column]:
    meaning = "items per second of a back-to-back loop of at least 0.5 s"
    own = {"noun": "throughput", "objective": "throughput", "unit": "items/s", "better": "more"}
    yield _figure("throughput", "Items/s", meaning, **own, shown=Shown.TERMINAL, expendable=4)


def _memory() -> Iterator[Column]:
    peak = "on a GPU the most device memory in use above what was in use before; on a CPU `host_peak_mib`"
    of_peak = (
        "its parts, which add up: CUDA context, weights, in training the gradients and the optimizer's state (null in "
        "inference), activations with workspace, the rest"
    )
    of_rest = (
        "the two parts of the rest: what the engine's allocator holds unused, and what no allocator knows of (loaded "
        "kernels, handles of cuDNN and cuBLAS)"
    )
    own = {"noun": "memory", "objective": "memory", "expendable": 2}
    yield _mib("peak_memory_mib", "Memory", peak, **own, shown=Shown.TERMINAL)
    yield _mib("context_mib", "Context", of_peak, part_of="peak_memory_mib")
    yield _mib("weights_mib", "Weights", of_peak, part_of="peak_memory_mib")
    yield _mib("gradients_mib", "Gradients", of_peak, part_of="peak_memory_mib")
    yield _mib("optimizer_mib", "Optimizer", of_peak, part_of="peak_memory_mib")
    yield _mib("activations_mib", "Activations", of_peak, part_of="peak_memory_mib")
    yield _mib("other_mib", "Other", of_peak, part_of="peak_memory_mib", shown=Shown.FILES)
    yield _mib("slack_mib", "Slack", of_rest, part_of="other_mib")
    yield _mib("library_mib", "Library", of_rest, part_of="other_mib")
    before = "device memory that was in use before the case, by other processes too; in none of the parts"
    yield _mib("baseline_mib", "Before", before, shown=Shown.FILES)
    yield _mib("host_peak_mib", "Host peak", "peak resident set while measuring, above what the process started with")
    yield _mib("set_up_peak_mib", "Host peak of the set-up", "the same of the set-up before it", shown=Shown.FILES)
    yield _mib("torch_allocated_mib", "torch allocated", "peaks of torch's allocator")
    yield _mib("torch_reserved_mib", "torch reserved", "peaks of torch's allocator")


def _set_up() -> Iterator[Column]:
    meaning = (
        "set-up: export to ONNX, compiling, loading, the first call after that (torch.compile's very first call is in "
        "`build_s`; its cache on disk is the run's own, so a later case of a run may find parts of an earlier one)"
    )
    yield _seconds("export_s", "Export", meaning, part_of="once_s")
    yield _seconds("build_s", "Build", meaning, part_of="once_s")
    yield _seconds("load_s", "Load", meaning, part_of="start_s")
    yield _seconds("first_run_s", "First run", meaning, part_of="start_s")
    yield _ms(
        "first_call_ms",
        "First call",
        "the first call at this shape in a process of its own that has run the run's smaller shapes: algorithm "
        "search, compilation, a recorded graph; where an engine is for one shape, opening it again; null at the "
        "smallest shape (`first_run_s`) and without `shapes`",
        shown=Shown.TERMINAL,
        expendable=1,
    )


def _accuracy() -> Iterator[Column]:
    outputs = "largest over the outputs, against the reference, over at most 8 items"
    relative = f"{outputs}, in the places where both are finite; of integers the share of places that differ"
    absolute = f"{outputs}; null where all are integers"
    top1 = "share of items with the reference's top class; only with real weights"
    step = "of the first training step, against fp64 on the CPU: relative, the gradients' over all parameters together"
    yield _error("rel_l2_error", "Rel. error", relative, noun="error", shown=Shown.TERMINAL, expendable=3)
    yield _error("max_abs_error", "Max. error", absolute, shown=Shown.FILES)
    yield _figure("top1_agreement", "Top-1", top1, unit="share", better="more")
    yield _error("loss_error", "Loss error", step)
    yield _error("gradient_error", "Gradient error", step, noun="error")


def _roofline() -> Iterator[Column]:
    yield _column(
        "flops_per_item",
        "FLOPs an item",
        "FLOPs of one item's convolutions and products, forward and backward in training (inference: without work that "
        "reaches no output, where the run has an export); null where they cannot be counted",
        unit="FLOPs",
    )
    moved = "weights, inputs and outputs of one call: the bytes that it moves at least"
    yield _mib("moved_mib", "Moved", moved, shown=Shown.FILES)
    rate = "FLOPs of one call / `latency_ms`, in 10¹² a second"
    yield _figure("tflops", "TFLOP/s", rate, unit="TFLOP/s", better="more")
    share = (
        "`tflops` / the roof of the precision (`native`: of the one type in the proof, else null), the highest rate "
        "that was measured or reached in the run; null for a row above it, which did not raise it"
    )
    own = {"unit": "share", "better": "more", "expendable": 6}
    yield _figure("fraction_of_peak", "Of peak", share, **own, shown=Shown.TERMINAL)
    yield _ms(
        "floor_ms",
        "Floor",
        "the roofline's shortest time: FLOPs / roof, or uncached bytes / copy bandwidth, whichever is longer (FLOPs / "
        "roof alone while the cache's size is unknown)",
    )


def _energy() -> Iterator[Column]:
    energy = "millijoules of the whole card, from a loop of at least 5 s; null without `energy: true`"
    medians = (
        "NVML's medians while sampling, the energy loop apart; power at each instant where the driver has it, else its "
        "average over up to a second; `throttled` for thermal or hardware slowdown"
    )
    own = {"noun": "energy", "objective": "energy", "unit": "mJ/item", "better": "less"}
    yield _figure("energy_mj_per_item", "Energy", energy, **own)
    yield _figure("power_w", "Power", medians, unit="W")
    yield _figure("sm_clock_mhz", "SM clock", medians, unit="MHz")
    yield _figure("temperature_c", "Temperature", medians, unit="°C")
    yield _flag("throttled", "Throttled", medians, shown=Shown.REPORT)


def _evidence() -> Iterator[Column]:
    yield _text("proof", "Proof", "what really ran, JSON: types, providers, TF32, CUDA graph")
    yield _column(
        "disturbance",
        "Disturbed",
        "share of the processors' or the GPU's time that others had while the case was measured: the largest of what "
        "other processes took, what the hypervisor took, and how long this case's threads waited for them; null where "
        "neither /proc nor NVML tells, and of the processors on a GPU whose latency is not the host's",
        unit="share",
        better="less",
    )
    yield _column("warnings", "Warnings", "see below", type=pl.List(pl.String()))


def _machine() -> Iterator[Column]:
    named = "as given by `machine` or `--machine`; without a label the GPU's name, or the processor's"
    yield _text("machine", "Machine", named)
    yield _text("cloud", "Cloud", named)
    yield _text("instance", "Instance", named)
    yield _figure("usd_per_hour", "$ per hour", named, unit="USD")


def _cost() -> Iterator[Column]:
    price = "at `throughput` and that price"
    unit = "USD/1M items"
    own = {"noun": "cost", "objective": "cost", "unit": unit, "better": "less"}
    yield _figure("usd_per_million_items", unit, price, **own, shown=Shown.TERMINAL)
    yield _figure("items_per_usd", "Items per $", price, unit="items", better="more")


def _place() -> Iterator[Column]:
    yield _text("gpu", "GPU", "the environment")
    yield _text("host", "Host", "the environment")


def _versions() -> Iterator[Column]:
    meaning = "the environment"
    yield _text("cuda", "CUDA", meaning)
    yield _text("driver", "Driver", meaning, noun="driver")
    yield _text("cudnn", "cuDNN", meaning)
    yield _text("python", "Python", meaning)
    yield _text("torch_version", "torch", meaning)
    yield _text("onnxruntime_version", "ONNX Runtime", meaning)
    yield _text("tensorrt_version", "TensorRT", meaning)
    yield _text("openvino_version", "OpenVINO", meaning)
    yield _text("jax_version", "JAX", meaning)


_DECLARED = (
    (Group.CASE, _identity),
    (Group.CASE, _work),
    (Group.OUTCOME, _outcome),
    (Group.LATENCY, _latency),
    (Group.CLOCKS, _clocks),
    (Group.PARTS, _parts),
    (Group.THROUGHPUT, _throughput),
    (Group.MEMORY, _memory),
    (Group.SET_UP, _set_up),
    (Group.ACCURACY, _accuracy),
    (Group.ROOFLINE, _roofline),
    (Group.ENERGY, _energy),
    (Group.OUTCOME, _evidence),
    (Group.MACHINE, _machine),
    (Group.COST, _cost),
    (Group.PLACE, _place),
    (Group.VERSIONS, _versions),
)

COLUMNS = {column.name: replace(column, group=group) for group, declared in _DECLARED for column in declared()}
"""By name, in the order of results.parquet."""

DERIVED = {
    "set_up_s": _seconds("set_up_s", "Set-up", "what its parts come to", noun="set-up"),
    "once_s": _seconds("once_s", "Once", "the part of it that is kept", noun="set-up once", part_of="set_up_s"),
    "start_s": _seconds("start_s", "Every start", "the rest", noun="every start", part_of="set_up_s"),
    "error": _error("error", "Error", "`rel_l2_error`, in training `gradient_error`", noun="error"),
}
"""Figures that are made of columns; no file has them."""

RESULTS: dict[str, pl.DataType] = {column.name: column.type for column in COLUMNS.values()}
"""One row a case."""

SAMPLES: dict[str, pl.DataType] = {"run_id": TEXT, "case_id": TEXT, "clock": TEXT, "index": COUNT, "ms": MEASURE}
"""One row a raw sample, in the order in which they were taken."""

LAYERS: dict[str, pl.DataType] = {
    "run_id": TEXT,
    "case_id": TEXT,
    "order": COUNT,
    "layer": TEXT,
    "kind": TEXT,
    "nodes": pl.List(pl.String()),
    "ms": MEASURE,
    "share": MEASURE,
}
"""One row a layer of a case, in running order; `share` is of the sum over the case's layers."""


def columns(*groups: Group, shown: Shown = Shown.FILES) -> list[Column]:
    """The columns of some groups, group by group, that are shown at least so far."""
    return [c for group in groups for c in COLUMNS.values() if c.group == group and c.shown >= shown]


def names(*groups: Group, shown: Shown = Shown.FILES) -> list[str]:
    return [column.name for column in columns(*groups, shown=shown)]


def parts(whole: str) -> list[str]:
    """The names of the columns that add up to `whole`; of a part that has parts itself, those."""
    found = []
    for column in (*COLUMNS.values(), *DERIVED.values()):
        if column.part_of == whole:
            found += parts(column.name) or [column.name]
    return found


def check(names: Iterable[str]) -> None:
    """Raise KeyError for a name that no column has."""
    for name in names:
        if name not in COLUMNS:
            raise KeyError(f"no column is called '{name}'; declare it in profiler/results/columns.py")


def whole_row(row: Mapping[str, Any]) -> dict[str, Any]:
    """A row with every column, null where it has none. Raises KeyError for a key that is no column."""
    check(row)
    return {name: row.get(name) for name in COLUMNS}


def kind_of_warning(written: pl.Expr) -> pl.Expr:
    """The kind of each warning, which is "kind: text" in files (engines/base.py)."""
    return written.str.split(":").list.first()
