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

from profiler.results.ends import WITH_ENDS, ends_of
from profiler.tables.numbers import UNITS, factors
from profiler.tables.table import Field, figure, words

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


def _column(name: str, heading: str = "", aim: str = "", **more: Any) -> Column:
    """A column without its meaning; an `aim` is what `recommend` can choose by, under that name."""
    return Column(name=name, heading=heading, **{"meaning": "", "noun": aim, "objective": aim, **more})


_text = partial(_column, type=TEXT)
_count = partial(_column, type=COUNT)
_flag = partial(_column, type=FLAG)
_figure = partial(_column, shown=Shown.REPORT)
_ms = partial(_figure, unit="ms", better="less")
_part = partial(_ms, part_of="latency_ms")
_gpu_part = partial(_ms, part_of="gpu_ms")
_mib = partial(_figure, unit="MiB", better="less")
_of_peak = partial(_mib, part_of="peak_memory_mib")
_seconds = partial(_figure, unit="s", better="less")
_error = partial(_figure, unit="error", better="less")

_DECLARED: tuple[Group | str | Column, ...] = (
    Group.CASE,
    "the run's folder: UTC time, host, four hex digits",
    _text("run_id"),
    "`resnet50/ort-tuned/inference/fp16/b16/r0`: model, variant, pass, precision, batch, replicate; then `/key=value` "
    "for each setting",
    _text("case_id"),
    "the job's name",
    _text("suite"),
    "the cell; `engine` is the runtime, `variant` the preset or label",
    _text("model", "Model"),
    _text("engine", "Engine"),
    _text("variant", "Variant"),
    _text("pass", "Pass"),
    _text("precision", "Precision"),
    _count("batch_size", "Batch"),
    _text("device", "Device"),
    _count("replicate", "Replicate"),
    "`canonical`, `factory`, `onnx` or `layer`; of a layer `model` is its name",
    _text("model_kind"),
    "the canonical network that the row's model is, whatever the model is called; else null",
    _text("network"),
    "what else tells the case apart, as at the end of its id: `optimizer=sgd/head=logits`; empty for nothing",
    _text("setting", "Setting"),
    "the sizes of named dimensions that the job varies (`shapes`), as in `setting`: `height=224/width=224`; else null",
    _text("shape", "Shape"),
    "whether speed-ups are relative to this row: eager at fp32, `ort` for a user's ONNX file",
    _flag("is_base", "Base"),
    "the model whose base the row's speed-up is relative to, and whose outputs its error is, where the job names "
    "another (`reference`); else null",
    _text("reference_model", "Reference"),
    "what training did besides forward and backward; null in inference",
    _text("optimizer", "Optimizer"),
    _text("head", "Head"),
    _flag("dropout", "Dropout"),
    _flag("input_gradient", "Input gradient"),
    "the engine's options, JSON",
    _text("options", "Options"),
    "of int8 and fp8: whether their ranges are those of the job's `calibration` data; false of seeded data, and of "
    "torchao, which takes them from each call's inputs; null at any other precision",
    _flag("calibrated", "Calibrated"),
    Group.OUTCOME,
    "`ok`, `unsupported` (cannot be done here), `failed`, `oom` (out of memory), `timeout`, `crashed` (ended by a "
    "signal)",
    _text("status", "Status"),
    "why it is not `ok`",
    _text("reason", "Reason"),
    "of a row that is not `ok`: the file in the run's folder that has the whole traceback, or what was printed",
    _text("log", "Log"),
    "who made the ONNX graph that ran, and for which batches: `torch.export, any batch`, `torch.export (strict), "
    "batch 8 only`, `the file` (a user's), then by whom it was converted or quantized; null where the module ran",
    _text("graph", "Graph"),
    "what the errors are relative to: `eager-fp32-cpu`, `ort-cpu-unoptimized` for a user's ONNX file, or in training "
    "`step-fp64-cpu`; in inference of `reference_model`, where there is one. Where the CPU cannot afford it: "
    "`eager-fp32-cuda`, `ort-cuda-unoptimized`, or fewer items, such as `eager-fp32-cpu, 2 of 8 items`",
    _text("reference", "Reference"),
    Group.LATENCY,
    "the headline clock: `event` on a GPU, `host` on a CPU and for an engine with a queue of its own (JAX)",
    _text("clock", "Clock"),
    "median of one call on that clock",
    _ms("latency_ms", "Latency", aim="latency", shown=Shown.TERMINAL),
    "mean and minimum",
    _ms("latency_mean_ms", "Mean", shown=Shown.FILES),
    _ms("latency_min_ms", "Least", shown=Shown.FILES),
    "percentiles, null below 64, 130 and 662 samples",
    _ms("latency_p90_ms", "p90", noun="p90 latency", percentile=90),
    _ms("latency_p95_ms", "p95", noun="p95 latency", percentile=95),
    _ms("latency_p99_ms", "p99", noun="p99 latency", percentile=99),
    "by how much processes of one configuration differ here: the standard deviation of the logarithms of their "
    "medians, measured on the bases of this and earlier runs, and its degrees of freedom",
    _column("latency_spread", "Spread between processes", unit="share"),
    _column("latency_spread_free", "Degrees of freedom"),
    "how many samples, and why sampling stopped: `precision`, `plateau`, `budget`, `max_samples`",
    _count("samples", "Samples"),
    _text("stop_reason", "Stopped by"),
    Group.CLOCKS,
    "median of one call with launch gaps taken out: all its launches were queued before its first kernel started, and "
    "nothing behind it",
    _ms("gpu_ms", "Device", shown=Shown.TERMINAL, expendable=5),
    "the same as `latency_spread`, of figures that the device sets",
    _column("gpu_spread", "Spread between processes on device", unit="share"),
    _column("gpu_spread_free", "Degrees of freedom on device"),
    "host time until the call returns",
    _ms("enqueue_ms", "Enqueue"),
    "host time from the call to finished work",
    _ms("host_ms", "Host"),
    "pinned copies of inputs and outputs; in no other figure",
    _ms("h2d_ms", "To device"),
    _ms("d2h_ms", "From device"),
    Group.PARTS,
    "parts of a training iteration, on the headline clock; `step_ms` is the optimizer's step, null without one",
    _part("forward_ms", "Forward", shown=Shown.TERMINAL),
    _part("backward_ms", "Backward", shown=Shown.TERMINAL),
    _part("step_ms", "Step", shown=Shown.TERMINAL),
    "of a single layer, the two parts of its backward pass",
    _part("grad_input_ms", "Input gradient"),
    _part("grad_weight_ms", "Weight gradient"),
    "the same on the clock of `gpu_ms`, free of gaps between launches",
    _gpu_part("gpu_forward_ms", "Forward on device"),
    _gpu_part("gpu_backward_ms", "Backward on device"),
    _gpu_part("gpu_step_ms", "Step on device"),
    _gpu_part("gpu_grad_input_ms", "Input gradient on device"),
    _gpu_part("gpu_grad_weight_ms", "Weight gradient on device"),
    Group.THROUGHPUT,
    "items per second of a back-to-back loop of at least 0.5 s",
    _figure(
        "throughput", "Items/s", aim="throughput", unit="items/s", better="more", shown=Shown.TERMINAL, expendable=4
    ),
    Group.MEMORY,
    "on a GPU the most device memory in use above what was in use before; on a CPU `host_peak_mib`",
    _mib("peak_memory_mib", "Memory", aim="memory", shown=Shown.TERMINAL, expendable=2),
    "its parts, which add up: CUDA context, weights, in training the gradients and the optimizer's state (null in "
    "inference), activations with workspace, the rest",
    _of_peak("context_mib", "Context"),
    _of_peak("weights_mib", "Weights"),
    _of_peak("gradients_mib", "Gradients"),
    _of_peak("optimizer_mib", "Optimizer"),
    _of_peak("activations_mib", "Activations"),
    _of_peak("other_mib", "Other", shown=Shown.FILES),
    "the two parts of the rest: what the engine's allocator holds unused, and what no allocator knows of (loaded "
    "kernels, handles of cuDNN and cuBLAS)",
    _mib("slack_mib", "Slack", part_of="other_mib"),
    _mib("library_mib", "Library", part_of="other_mib"),
    "device memory that was in use before the case, by other processes too; in none of the parts",
    _mib("baseline_mib", "Before", shown=Shown.FILES),
    "peak resident set while measuring, above what the process started with",
    _mib("host_peak_mib", "Host peak"),
    "the same of the set-up before it",
    _mib("set_up_peak_mib", "Host peak of the set-up", shown=Shown.FILES),
    "peaks of torch's allocator",
    _mib("torch_allocated_mib", "torch allocated"),
    _mib("torch_reserved_mib", "torch reserved"),
    Group.SET_UP,
    "set-up: export to ONNX, compiling, loading, the first call after that (torch.compile's very first call is in "
    "`build_s`; its cache on disk is the run's own, so a later case of a run may find parts of an earlier one)",
    _seconds("export_s", "Export", part_of="once_s"),
    _seconds("build_s", "Build", part_of="once_s"),
    _seconds("load_s", "Load", part_of="start_s"),
    _seconds("first_run_s", "First run", part_of="start_s"),
    Group.ACCURACY,
    "relative L2 error against the reference, in the places where both are finite, of integers the share of places "
    "that differ: the largest over the outputs, the median over items",
    _error("rel_l2_error", "Rel. error", noun="error", shown=Shown.TERMINAL, expendable=3),
    "95 % upper bound of that error for a further item, and how many items were compared; limits of the error are held "
    "against the bound",
    _error("rel_l2_error_high", "Error bound", noun="error bound"),
    _count("error_items", "Items compared"),
    "largest over the outputs and items; null where all are integers",
    _error("max_abs_error", "Max. error", shown=Shown.FILES),
    "share of items with the reference's top class; only with real weights",
    _figure("top1_agreement", "Top-1", unit="share", better="more"),
    "of the first training step, against fp64 on the CPU: relative, the gradients' over all parameters together",
    _error("loss_error", "Loss error"),
    _error("gradient_error", "Gradient error", noun="error", shown=Shown.TERMINAL, expendable=3),
    Group.ROOFLINE,
    "FLOPs of one item's convolutions and products, forward and backward in training (inference: without work that "
    "reaches no output, where the run has an export); null where they cannot be counted",
    _column("flops_per_item", "FLOPs an item", unit="FLOPs"),
    "weights, inputs and outputs of one call: the bytes that it moves at least",
    _mib("moved_mib", "Moved", shown=Shown.FILES),
    "FLOPs of one call / `latency_ms`, in 10¹² a second",
    _figure("tflops", "TFLOP/s", unit="TFLOP/s", better="more"),
    "`tflops` / the roof of the precision (`native`: of the one type in the proof, else null), the highest rate that "
    "was measured or reached in the run; null for a row above it",
    _figure("fraction_of_peak", "Of peak", unit="share", better="more", shown=Shown.TERMINAL, expendable=6),
    "the roofline's shortest time: FLOPs / roof, or uncached bytes / copy bandwidth, whichever is longer (FLOPs / "
    "roof alone while the cache's size is unknown)",
    _ms("floor_ms", "Floor"),
    Group.ENERGY,
    "millijoules of the whole card, from a loop of at least 5 s; null without `energy: true`",
    _figure("energy_mj_per_item", "Energy", aim="energy", unit="mJ/item", better="less"),
    "NVML's medians while sampling, the energy loop apart; power at each instant where the driver has it, else its "
    "average over up to a second; `throttled` for thermal or hardware slowdown",
    _figure("power_w", "Power", unit="W"),
    _figure("sm_clock_mhz", "SM clock", unit="MHz"),
    _figure("temperature_c", "Temperature", unit="°C"),
    _flag("throttled", "Throttled", shown=Shown.REPORT),
    Group.OUTCOME,
    "what really ran, JSON: types, providers, TF32, CUDA graph",
    _text("proof", "Proof"),
    "share of the processors' or the GPU's time that others had while the case was measured: the largest of what "
    "other processes took, what the hypervisor took, and how long this case's threads waited for them; null where "
    "neither /proc nor NVML tells, and of the processors on a GPU whose latency is not the host's",
    _column("disturbance", "Disturbed", unit="share", better="less"),
    "see below",
    _column("warnings", "Warnings", type=pl.List(pl.String())),
    Group.MACHINE,
    "as given by `machine` or `--machine`; without a label the GPU's name, or the processor's",
    _text("machine", "Machine"),
    _text("cloud", "Cloud"),
    _text("instance", "Instance"),
    _figure("usd_per_hour", "$ per hour", unit="USD"),
    Group.COST,
    "at `throughput` and that price",
    _figure(
        "usd_per_million_items", "USD/1M items", aim="cost", unit="USD/1M items", better="less", shown=Shown.TERMINAL
    ),
    _figure("items_per_usd", "Items per $", unit="items", better="more"),
    Group.PLACE,
    "the environment",
    _text("gpu", "GPU"),
    _text("host", "Host"),
    Group.VERSIONS,
    _text("cuda", "CUDA"),
    _text("driver", "Driver", noun="driver"),
    _text("cudnn", "cuDNN"),
    _text("python", "Python"),
    _text("torch_version", "torch"),
    _text("onnxruntime_version", "ONNX Runtime"),
    _text("tensorrt_version", "TensorRT"),
    _text("openvino_version", "OpenVINO"),
    _text("jax_version", "JAX"),
)
"""The columns in the order of results.parquet, each below its group and its meaning, which several may share."""
_ENDS = "95 % interval of the figure before: the hull of all that is known of it (docs/method.md)"


def _declared() -> Iterator[Column]:
    group, meaning = Group.CASE, ""
    for row in _DECLARED:
        if isinstance(row, Column):
            yield replace(row, group=group, meaning=meaning)
            if row.name in WITH_ENDS:
                for end, heading in zip(ends_of(row.name), ("95 % from", "to"), strict=True):
                    yield Column(name=end, heading=heading, group=group, meaning=_ENDS, unit=row.unit)
        elif isinstance(row, Group):
            group = row
        else:
            meaning = row


COLUMNS = {column.name: column for column in _declared()}
"""By name, in the order of results.parquet."""

DERIVED = {
    "set_up_s": _seconds("set_up_s", "Set-up", meaning="what its parts come to", noun="set-up"),
    "once_s": _seconds("once_s", "Once", meaning="the part of it that is kept", noun="set-up once", part_of="set_up_s"),
    "start_s": _seconds("start_s", "Every start", meaning="the rest", noun="every start", part_of="set_up_s"),
    "error": _error("error", "Error", meaning="`rel_l2_error`, in training `gradient_error`", noun="error"),
    "error_high": _error("error_high", "Error bound", meaning="`rel_l2_error_high`, in training `gradient_error`"),
}
"""Figures that are made of columns; no file has them."""

RESULTS: dict[str, pl.DataType] = {column.name: column.type for column in COLUMNS.values()}
"""One row a case."""

SAMPLES: dict[str, pl.DataType] = {"run_id": TEXT, "case_id": TEXT, "clock": TEXT, "index": COUNT, "ms": MEASURE}
"""One row a raw sample, in the order in which they were taken."""

LAYERS: dict[str, pl.DataType] = {"run_id": TEXT, "case_id": TEXT, "order": COUNT, "layer": TEXT, "kind": TEXT}
LAYERS |= {"nodes": pl.List(pl.String()), "ms": MEASURE, "share": MEASURE}
"""One row a layer of a case, in running order; `share` is of the sum over the case's layers."""


LARGEST_BATCH: dict[str, pl.DataType] = dict.fromkeys(("run_id", "model", "variant", "pass", "precision"), TEXT)
LARGEST_BATCH |= {"setting": TEXT, "batch_size": COUNT, "status": TEXT, "reason": TEXT, "peak_memory_mib": MEASURE}
"""One row a batch that the search for the largest one tried."""


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


def place(column: str, order: Iterable[str]) -> pl.Expr:
    """Where in the order a column's value is; what is not in it comes last."""
    names = list(order)
    return pl.col(column).replace_strict(names, range(len(names)), default=len(names), return_dtype=pl.Int64)


def field(name: str, heading: str | None = None, **more: Any) -> Field:
    """The field of a column, under its own heading and in its unit's format unless others are given."""
    column = COLUMNS[name]
    heading = column.heading if heading is None else heading
    if not column.type.is_numeric():
        return words(heading, name, **more)
    unit, format = UNITS[column.unit]
    return figure(heading, name, **{"format": format, "unit": unit, "expendable": column.expendable, **more})


def fields(*groups: Group, shown: Shown) -> list[Field]:
    """The fields of every column of some groups that is shown at least so far."""
    return [field(column.name) for column in columns(*groups, shown=shown)]


def factor(heading: str, **more: Any) -> Field:
    """The factor over the base with its interval."""
    return figure(heading, ("factor", "factor_low", "factor_high"), factors, **more)
