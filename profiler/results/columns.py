"""Declare every column of results.parquet once: name, type, unit, heading, meaning, group, and which way is better.

Rows, tables/*.csv, terminal, report, charts, recommend and docs/columns.md read the columns from here: declare a new
one in its group and fill it where it is measured; one of a case, a training or the environment is filled by its name.
Outside tools rely on the names and types; a unit is part of the name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from enum import IntEnum, StrEnum
from functools import partial
from typing import Any, Literal

import polars as pl

from profiler.results.result import WITH_ENDS, ends_of
from profiler.tables.numbers import UNITS, factors
from profiler.tables.table import Field, figure, words

TEXT, COUNT, MEASURE, FLAG = pl.String(), pl.Int64(), pl.Float64(), pl.Boolean()


class Group(StrEnum):
    """Say what a column tells about a case; a terminal's table has the groups in this order."""

    CASE = "case"
    OUTCOME = "outcome"
    LATENCY = "latency"
    CLOCKS = "clocks"
    PARTS = "parts of an iteration"
    ROOFLINE = "roofline"
    ENERGY = "energy"
    SET_UP = "set-up"
    THROUGHPUT = "throughput"
    COST = "cost"
    MEMORY = "memory"
    ACCURACY = "accuracy"
    MACHINE = "machine"
    PLACE = "place"
    VERSIONS = "versions"


Shown = IntEnum("Shown", {"FILES": 0, "REPORT": 1, "TERMINAL": 2})
"""How far a column reaches; each reach includes those before it. All are in results.parquet."""


@dataclass(frozen=True, kw_only=True)
class Column:
    """One column of the results.

    `heading` goes over it in tables, `noun` is its name in a sentence, both without the unit, which is such as "ms",
    "share" (in percent) or "error" (1.6e-3). Parts (`part_of`) of one whole add up to it. `meaning` is Markdown.
    A narrow terminal does without the most `expendable` column first, never without one of 0. `recommend` chooses by an
    `objective` of that name; `limit` is the option that limits it.
    """

    name: str
    meaning: str = ""
    group: Group = Group.CASE
    type: pl.DataType = MEASURE
    heading: str = ""
    noun: str = ""
    unit: str = ""
    better: Literal["less", "more"] | None = None
    part_of: str = ""
    percentile: int | None = None
    expendable: int = 0
    objective: str = ""
    limit: str = ""
    shown: Shown = Shown.FILES


def _column(name: str, heading: str = "", aim: str = "", **more: Any) -> Column:
    return Column(name=name, heading=heading, **{"noun": aim, "objective": aim, **more})


_text = partial(_column, type=TEXT)
_count = partial(_column, type=COUNT)
_flag = partial(_column, type=FLAG)
_figure = partial(_column, shown=Shown.REPORT)
_throughput = partial(_figure, aim="throughput", unit="items/s", better="more", limit="--min-throughput")
_ms = partial(_figure, unit="ms", better="less")
_part = partial(_ms, part_of="latency_ms")
_gpu_part = partial(_ms, part_of="gpu_ms")
_percentile = partial(_ms, limit="--max-latency-ms")
_mib = partial(_figure, unit="MiB", better="less")
_of_peak = partial(_mib, part_of="peak_memory_mib")
_seconds = partial(_figure, unit="s", better="less")
_error = partial(_figure, unit="error", better="less")
_spread = partial(_column, unit="share")


def _each(make: Callable[..., Column], *shown: Shown, **headings: str) -> tuple[Column, ...]:
    """Make columns that only differ in name and heading."""
    more = {"shown": shown[0]} if shown else {}
    return tuple(make(name, heading, **more) for name, heading in headings.items())


_DECLARED: tuple[Group | str | Column, ...] = (
    Group.CASE,
    "the run's folder: UTC time, host, four hex digits",
    _text("run_id"),
    "model, variant, pass, precision, batch, replicate, settings: `resnet50/ort-tuned/inference/fp16/b16/r0/key=value`",
    _text("case_id"),
    "the job's name",
    _text("suite"),
    "the cell; `engine` is the runtime, `variant` the preset or label",
    *_each(_text, model="Model", engine="Engine", variant="Variant", **{"pass": "Pass"}, precision="Precision"),
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
    "what training did besides forward and backward; null in inference",
    *_each(_text, optimizer="Optimizer", head="Head"),
    *_each(_flag, dropout="Dropout", input_gradient="Input gradient"),
    "the engine's options, JSON",
    _text("options", "Options"),
    "of int8 and fp8: whether their ranges are of the job's `calibration` data, not seeded, nor of each call (torchao)",
    _flag("calibrated", "Calibrated"),
    Group.OUTCOME,
    "`ok`, `unsupported` (here), `failed`, `oom` (out of memory), `timeout`, `crashed` (ended by a signal)",
    _text("status", "Status"),
    "why it is not `ok`",
    _text("reason", "Reason"),
    "of a row that is not `ok`: the file in the run's folder with the whole traceback, or what was printed",
    _text("log", "Log"),
    "who made the ONNX graph that ran, for which batches, and who converted it; null where the module ran",
    _text("graph", "Graph"),
    "what the errors are relative to: `eager-fp32-cpu`, `ort-cpu-unoptimized` for a user's ONNX file, `step-fp64-cpu` "
    "in training; on `cuda`, or of fewer items (`2 of 8 items`), where the CPU cannot afford it",
    _text("reference", "Reference"),
    Group.LATENCY,
    "the headline clock: `event` on a GPU, `host` on a CPU and for an engine with a queue of its own (JAX)",
    _text("clock", "Clock"),
    "median of one call on that clock",
    _percentile("latency_ms", "Latency", aim="latency"),
    "mean and minimum",
    *_each(_ms, Shown.FILES, latency_mean_ms="Mean", latency_min_ms="Least"),
    "percentiles, null below 64, 130 and 662 samples",
    *(_percentile(f"latency_p{q}_ms", f"p{q}", noun=f"p{q} latency", percentile=q) for q in (90, 95, 99)),
    "standard deviation of the logarithms of processes' medians, from bases of this and earlier runs, and its freedom",
    _spread("latency_spread", "Spread between processes"),
    _column("latency_spread_free", "Degrees of freedom"),
    "how many samples, and why sampling stopped: `precision`, `plateau`, `budget`, `max_samples`",
    _count("samples", "Samples"),
    _text("stop_reason", "Stopped by"),
    Group.CLOCKS,
    "median of one call without launch gaps: all its launches were queued before its first kernel started",
    _ms("gpu_ms", "Device", shown=Shown.TERMINAL, expendable=5),
    "the same as `latency_spread`, of figures that the device sets",
    _spread("gpu_spread", "Spread between processes on device"),
    _column("gpu_spread_free", "Degrees of freedom on device"),
    "host time until the call returns",
    _ms("enqueue_ms", "Enqueue"),
    "host time from the call to finished work",
    _ms("host_ms", "Host"),
    "pinned copies of inputs and outputs; in no other figure",
    *_each(_ms, h2d_ms="To device", d2h_ms="From device"),
    Group.PARTS,
    "parts of a training iteration, on the headline clock; `step_ms` is the optimizer's step, null without one",
    *_each(_part, Shown.TERMINAL, forward_ms="Forward", backward_ms="Backward", step_ms="Step"),
    "of a single layer, the two parts of its backward pass",
    *_each(_part, grad_input_ms="Input gradient", grad_weight_ms="Weight gradient"),
    "the same on the clock of `gpu_ms`, free of gaps between launches",
    *_each(_gpu_part, gpu_forward_ms="Forward on device", gpu_backward_ms="Backward on device"),
    *_each(_gpu_part, gpu_step_ms="Step on device", gpu_grad_input_ms="Input gradient on device"),
    *_each(_gpu_part, gpu_grad_weight_ms="Weight gradient on device"),
    Group.THROUGHPUT,
    "items per second of a back-to-back loop of at least 0.5 s",
    _throughput("throughput", "Items/s", shown=Shown.TERMINAL, expendable=4),
    Group.MEMORY,
    "on a GPU the most device memory in use above what was in use before; on a CPU `host_peak_mib`",
    _mib("peak_memory_mib", "Memory", "memory", limit="--max-memory-mib", shown=Shown.TERMINAL, expendable=2),
    "its parts, which add up: CUDA context, weights, gradients and optimizer in training, activations, the rest",
    *_each(_of_peak, context_mib="Context", weights_mib="Weights", gradients_mib="Gradients"),
    *_each(_of_peak, optimizer_mib="Optimizer", activations_mib="Activations"),
    _of_peak("other_mib", "Other", shown=Shown.FILES),
    "the two parts of the rest: what the engine's allocator holds unused, and what none knows of (kernels, handles)",
    *_each(partial(_mib, part_of="other_mib"), slack_mib="Slack", library_mib="Library"),
    "device memory that was in use before the case, by other processes too; in none of the parts",
    _mib("baseline_mib", "Before", shown=Shown.FILES),
    "peak resident set while measuring, above what the process started with",
    _mib("host_peak_mib", "Host peak"),
    "the same of the set-up before it",
    _mib("set_up_peak_mib", "Host peak of the set-up", shown=Shown.FILES),
    "peaks of torch's allocator",
    *_each(_mib, torch_allocated_mib="torch allocated", torch_reserved_mib="torch reserved"),
    Group.SET_UP,
    "set-up: export to ONNX, compiling (torch.compile's first call too), loading, the first call after that",
    *_each(partial(_seconds, part_of="once_s"), export_s="Export", build_s="Build"),
    *_each(partial(_seconds, part_of="start_s"), load_s="Load", first_run_s="First run"),
    Group.ACCURACY,
    "relative L2 error against the reference (of integers the share that differs): largest output, median over items",
    _error("rel_l2_error", "Rel. error", noun="error", shown=Shown.TERMINAL, expendable=3),
    "95 % upper bound of it for a further item, against which limits are held, and how many items were compared",
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
    "FLOPs of one item's convolutions and products, forward and backward in training; null if they cannot be counted",
    _column("flops_per_item", "FLOPs an item", unit="FLOPs"),
    "weights, inputs and outputs of one call: the bytes that it moves at least",
    _mib("moved_mib", "Moved", shown=Shown.FILES),
    "FLOPs of one call / `latency_ms`, in 10¹² a second",
    _figure("tflops", "TFLOP/s", unit="TFLOP/s", better="more"),
    "`tflops` / the highest rate of that precision that was measured or reached in the run; null for a row above it",
    _figure("fraction_of_peak", "Of peak", unit="share", better="more", shown=Shown.TERMINAL, expendable=6),
    "the roofline's shortest time: FLOPs / roof, or uncached bytes / copy bandwidth, whichever is longer",
    _ms("floor_ms", "Floor"),
    Group.ENERGY,
    "millijoules of the whole card, from a loop of at least 5 s; null without `energy: true`",
    _figure("energy_mj_per_item", "Energy", aim="energy", unit="mJ/item", better="less"),
    "NVML's medians while sampling, the energy loop apart; `throttled` for thermal or hardware slowdown",
    _figure("power_w", "Power", unit="W"),
    _figure("sm_clock_mhz", "SM clock", unit="MHz"),
    _figure("temperature_c", "Temperature", unit="°C"),
    _flag("throttled", "Throttled", shown=Shown.REPORT),
    Group.OUTCOME,
    "what really ran, JSON: types, providers, TF32, CUDA graph",
    _text("proof", "Proof"),
    "share of the processors' or the GPU's time that others had while the case was measured: other processes, the "
    "hypervisor or waiting for them; null if unknown, and of processors where the device sets the latency",
    _column("disturbance", "Disturbed", unit="share", better="less"),
    "see below",
    _column("warnings", "Warnings", type=pl.List(pl.String())),
    Group.MACHINE,
    "as given by `machine` or `--machine`; without a label the GPU's name, or the processor's",
    *_each(_text, machine="Machine", cloud="Cloud", instance="Instance"),
    _column("usd_per_hour", "$ per hour", unit="USD"),
    Group.COST,
    "at `throughput` and that price",
    _figure("usd_per_million_items", "USD/1M items", "cost", unit="USD/1M items", better="less", shown=Shown.TERMINAL),
    _figure("items_per_usd", "Items per $", unit="items", better="more"),
    Group.PLACE,
    "the environment",
    *_each(_text, gpu="GPU", host="Host"),
    Group.VERSIONS,
    *_each(_text, cuda="CUDA", driver="Driver", cudnn="cuDNN", python="Python", torch_version="torch"),
    *_each(_text, onnxruntime_version="ONNX Runtime", tensorrt_version="TensorRT", openvino_version="OpenVINO"),
    *_each(_text, jax_version="JAX"),
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
_MADE = (
    _seconds("set_up_s", "Set-up", meaning="what its parts come to", noun="set-up"),
    _seconds("once_s", "Once", meaning="the part of it that is kept", noun="set-up once", part_of="set_up_s"),
    _seconds("start_s", "Every start", meaning="the rest", noun="every start", part_of="set_up_s"),
    _error("error", "Error", meaning="`rel_l2_error`, in training `gradient_error`", noun="error", limit="--max-error"),
    _error("error_high", "Error bound", meaning="`rel_l2_error_high`, in training `gradient_error`"),
)
DERIVED = {column.name: column for column in _MADE}
"""Figures that are made of columns; no file has them."""
FIGURES = {**COLUMNS, **DERIVED}
LIMITED_BY = {column.name: column.limit for column in FIGURES.values() if column.limit}
"""By figure the option of recommend that limits it."""

Schema = dict[str, pl.DataType]
RESULTS: Schema = {column.name: column.type for column in COLUMNS.values()}
"""One row a case."""
SAMPLES: Schema = {"run_id": TEXT, "case_id": TEXT, "clock": TEXT, "index": COUNT, "ms": MEASURE}
"""One row a raw sample, in the order in which they were taken."""
LAYERS: Schema = dict.fromkeys(("run_id", "case_id"), TEXT) | {"order": COUNT, "layer": TEXT, "kind": TEXT}
LAYERS |= {"nodes": pl.List(pl.String()), "ms": MEASURE, "share": MEASURE}
"""One row a layer of a case, in running order; `share` is of the sum over the case's layers."""
_TRIED = ("run_id", "model", "variant", "pass", "precision", "setting", "batch_size", "status", "reason")
LARGEST_BATCH: Schema = {name: RESULTS[name] for name in (*_TRIED, "peak_memory_mib")}
"""One row a batch that the search for the largest one tried."""


def columns(*groups: Group, shown: Shown = Shown.FILES) -> list[Column]:
    """Return the columns of some groups, group by group, that are shown at least so far."""
    return [c for group in groups for c in COLUMNS.values() if c.group == group and c.shown >= shown]


def names(*groups: Group, shown: Shown = Shown.FILES) -> list[str]:
    return [column.name for column in columns(*groups, shown=shown)]


def parts(whole: str) -> list[str]:
    """Return the names of the columns that add up to `whole`; of a part that has parts itself, those."""
    own = [column.name for column in FIGURES.values() if column.part_of == whole]
    return [name for part in own for name in parts(part) or [part]]


def check(figures: Mapping[str, Any]) -> None:
    """Raise KeyError for a figure that is no column, TypeError for one that is no number."""
    for name, value in figures.items():
        if name not in COLUMNS:
            raise KeyError(f"no column is called '{name}'; declare it in profiler/results/columns.py")
        if value is not None and not isinstance(value, bool | int | float):
            raise TypeError(f"{name} is no number: {value!r}")


def kind_of_warning(written: pl.Expr) -> pl.Expr:
    """Return the kind of each warning, which is "kind: text" in files (engines/base.py)."""
    return written.str.split(":").list.first()


def place(column: str, order: Iterable[str]) -> pl.Expr:
    """Return where in the order a column's value is; what is not in it comes last."""
    names = list(order)
    return pl.col(column).replace_strict(names, range(len(names)), default=len(names), return_dtype=pl.Int64)


def field(name: str, heading: str | None = None, **more: Any) -> Field:
    """Make the field of a column, under its own heading and in its unit's format unless others are given."""
    column = FIGURES[name]
    heading = column.heading if heading is None else heading
    if not column.type.is_numeric():
        return words(heading, name, **{"expendable": column.expendable, **more})
    unit, format = UNITS[column.unit]
    return figure(heading, name, **{"format": format, "unit": unit, "expendable": column.expendable, **more})


def fields(*groups: Group, shown: Shown) -> list[Field]:
    """Make the fields of every column of some groups that is shown at least so far."""
    return [field(column.name) for column in columns(*groups, shown=shown)]


def factor(heading: str, **more: Any) -> Field:
    """Make the field of the factor over the base with its interval."""
    return figure(heading, ("factor", "factor_low", "factor_high"), factors, **more)
