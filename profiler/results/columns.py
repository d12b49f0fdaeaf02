"""Declare every column of results.parquet once: name, type, unit, heading, group, and its better direction.

Rows, tables/*.csv, terminal, report, charts and recommend read the columns from here. Declare a new column in its
group, explain it in docs/columns.md, and fill it where it is measured; columns of a case, a training or the environment
are filled by name. Outside tools rely on the names and types; a unit is part of the name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from enum import IntEnum
from functools import partial
from typing import Any, Literal

import polars as pl

from exporters.python310 import StrEnum
from profiler.results.result import RANGED, WITH_ENDS, ends_of
from profiler.tables.numbers import UNITS, factors, unless_busy
from profiler.tables.table import Field, figure, words

TEXT, COUNT, MEASURE, FLAG = pl.String(), pl.Int64(), pl.Float64(), pl.Boolean()


class Group(StrEnum):
    """Subject of a column; a terminal's table has the groups in this order."""

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
"""The places that show a column: TERMINAL includes the report, and results.parquet has every column."""


@dataclass(frozen=True, kw_only=True)
class Column:
    """One column of the results.

    `heading` is its name in tables and `noun` in a sentence, both without the `unit`: "ms", "share" (printed in
    percent), "error" (1.6e-3). Parts (`part_of`) of one whole add up to it. A narrow terminal drops the most
    `expendable` column first, and never one of 0. `objective` is its name in recommend --objective, `limit` the option
    that limits it.
    """

    name: str
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


def _column(name: str, heading: str = "", aim: str = "", **attributes: Any) -> Column:
    return Column(name=name, heading=heading, **{"noun": aim, "objective": aim, **attributes})


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
_loss = partial(_column, unit="points", better="less", shown=Shown.TERMINAL)


def _each(make: Callable[..., Column], **headings: str) -> tuple[Column, ...]:
    return tuple(make(name, heading) for name, heading in headings.items())


_DECLARED: tuple[Group | Column, ...] = (
    Group.CASE,
    *map(_text, ("run_id", "case_id", "suite")),
    *_each(_text, model="Model", engine="Engine", variant="Variant", **{"pass": "Pass"}, precision="Precision"),
    _count("batch_size", "Batch"),
    _text("device", "Device"),
    _count("replicate", "Replicate"),
    _flag("confirming", "Confirming"),
    *map(_text, ("model_kind", "network")),
    *_each(_text, setting="Setting", shape="Shape"),
    _flag("is_base", "Base"),
    *_each(_text, optimizer="Optimizer", head="Head"),
    *_each(_flag, dropout="Dropout", input_gradient="Input gradient"),
    _text("options", "Options"),
    _flag("calibrated", "Calibrated"),
    Group.OUTCOME,
    *_each(_text, status="Status", reason="Reason", log="Log", graph="Graph", reference="Reference"),
    _text("beaten_by", "Beaten by"),
    *(_text("worst", "Largest error in", shown=Shown.REPORT), _text("drawn", "Drawn inputs")),
    Group.LATENCY,
    _text("clock", "Clock"),
    _percentile("latency_ms", "Latency", aim="latency"),
    *_each(partial(_ms, shown=Shown.FILES), latency_mean_ms="Mean", latency_min_ms="Least"),
    *(_percentile(f"latency_p{q}_ms", f"p{q}", noun=f"p{q} latency", percentile=q) for q in (90, 95, 99)),
    _spread("latency_spread", "Spread between processes"),
    _column("latency_spread_free", "Degrees of freedom"),
    _count("samples", "Samples"),
    _text("stop_reason", "Stopped by"),
    Group.CLOCKS,
    _ms("gpu_ms", "Device", shown=Shown.TERMINAL, expendable=5),
    _spread("gpu_spread", "Spread between processes on device"),
    _column("gpu_spread_free", "Degrees of freedom on device"),
    *_each(_ms, enqueue_ms="Enqueue", host_ms="Host", h2d_ms="To device", d2h_ms="From device"),
    Group.PARTS,
    *_each(partial(_part, shown=Shown.TERMINAL), forward_ms="Forward", backward_ms="Backward", step_ms="Step"),
    *_each(_part, grad_input_ms="Input gradient", grad_weight_ms="Weight gradient"),
    *_each(_gpu_part, gpu_forward_ms="Forward on device", gpu_backward_ms="Backward on device"),
    *_each(_gpu_part, gpu_step_ms="Step on device", gpu_grad_input_ms="Input gradient on device"),
    _gpu_part("gpu_grad_weight_ms", "Weight gradient on device"),
    Group.THROUGHPUT,
    _throughput("throughput", "Items/s", shown=Shown.TERMINAL, expendable=4),
    Group.MEMORY,
    _mib("peak_memory_mib", "Memory", "memory", limit="--max-memory-mib", shown=Shown.TERMINAL, expendable=2),
    *_each(_of_peak, context_mib="Context", weights_mib="Weights", gradients_mib="Gradients"),
    *_each(_of_peak, optimizer_mib="Optimizer", activations_mib="Activations"),
    _of_peak("other_mib", "Other", shown=Shown.FILES),
    *_each(partial(_mib, part_of="other_mib"), slack_mib="Slack", library_mib="Library"),
    _mib("baseline_mib", "Before", shown=Shown.FILES),
    _mib("host_peak_mib", "Host peak"),
    _mib("set_up_peak_mib", "Host peak of the set-up", shown=Shown.FILES),
    *_each(_mib, torch_allocated_mib="torch allocated", torch_reserved_mib="torch reserved"),
    Group.SET_UP,
    *_each(partial(_seconds, part_of="once_s"), export_s="Export", build_s="Build"),
    *_each(partial(_seconds, part_of="start_s"), load_s="Load", first_run_s="First run"),
    Group.ACCURACY,
    _error("rel_l2_error", "Rel. error", noun="error"),
    _error("rel_l2_error_high", "Error bound", noun="error bound", shown=Shown.TERMINAL, expendable=3),
    _count("error_items", "Items compared"),
    _error("max_abs_error", "Max. error", shown=Shown.FILES),
    _figure("top1_agreement", "Top-1", unit="share", better="more"),
    _figure("accuracy", "Accuracy", unit="share", better="more", shown=Shown.TERMINAL, expendable=4),
    _column("accuracy_items", "Items scored", type=COUNT, shown=Shown.REPORT),
    _loss("accuracy_loss", "Acc. loss", noun="accuracy loss", limit="--max-accuracy-loss"),
    _error("loss_error", "Loss error"),
    _error("gradient_error", "Gradient error", noun="error", shown=Shown.TERMINAL, expendable=3),
    Group.ROOFLINE,
    _column("flops_per_item", "FLOPs an item", unit="FLOPs"),
    _mib("moved_mib", "Moved", shown=Shown.FILES),
    _figure("tflops", "TFLOP/s", unit="TFLOP/s", better="more"),
    _figure("fraction_of_peak", "Of peak", unit="share", better="more", shown=Shown.TERMINAL, expendable=6),
    _ms("floor_ms", "Floor"),
    Group.ENERGY,
    _figure("energy_mj_per_item", "Energy", aim="energy", unit="mJ/item", better="less"),
    _figure("power_w", "Power", unit="W"),
    _figure("sm_clock_mhz", "SM clock", unit="MHz"),
    _figure("temperature_c", "Temperature", unit="°C"),
    _flag("throttled", "Throttled", shown=Shown.REPORT),
    Group.OUTCOME,
    _text("proof", "Proof"),
    _column("disturbance", "Disturbed", unit="share", better="less"),
    _column("warnings", "Warnings", type=pl.List(pl.String())),
    Group.MACHINE,
    *_each(_text, machine="Machine", cloud="Cloud", instance="Instance"),
    _column("usd_per_hour", "$ per hour", unit="USD"),
    Group.COST,
    _figure("usd_per_million_items", "USD/1M items", "cost", unit="USD/1M items", better="less", shown=Shown.TERMINAL),
    _figure("items_per_usd", "Items per $", unit="items", better="more"),
    Group.PLACE,
    *_each(_text, gpu="GPU", host="Host"),
    Group.VERSIONS,
    *_each(_text, cuda="CUDA", driver="Driver", cudnn="cuDNN", python="Python", torch_version="torch"),
    *_each(_text, onnxruntime_version="ONNX Runtime", tensorrt_version="TensorRT", openvino_version="OpenVINO"),
)
"""The columns in the order of results.parquet, each below its group; docs/columns.md explains them."""


def _declared() -> Iterator[Column]:
    group = Group.CASE
    for row in _DECLARED:
        if isinstance(row, Group):
            group = row
            continue
        yield replace(row, group=group)
        if row.name in RANGED:
            for end, heading in zip(ends_of(row.name), ("95 % from", "to"), strict=True):
                yield Column(name=end, heading=heading, group=group, unit=row.unit)


COLUMNS = {column.name: column for column in _declared()}
_DERIVED = (
    _seconds("set_up_s", "Set-up", noun="set-up"),
    _seconds("once_s", "Once", noun="set-up once", part_of="set_up_s"),
    _seconds("start_s", "Every start", noun="every start", part_of="set_up_s"),
    _error("error", "Error", noun="error", limit="--max-error"),
    _error("error_high", "Error bound"),
    _ms("plain_run_ms", "session.run"),
)
DERIVED = {column.name: column for column in _DERIVED}
"""Figures computed from columns. results.parquet lacks them."""
FIGURES = {**COLUMNS, **DERIVED}
LIMITED_BY = {column.name: column.limit for column in FIGURES.values() if column.limit}
"""Map a figure to the option of recommend that limits it."""
FACTOR = ("factor", *ends_of("factor"))
"""A cell's columns with the factor over its base and its interval."""

_BY_LATENCY = ("tflops", "fraction_of_peak", "energy_mj_per_item", "usd_per_million_items", "items_per_usd")
"""Figures computed from the latency, whose interval tells whether they are busy."""

Schema = dict[str, pl.DataType]
RESULTS: Schema = {column.name: column.type for column in COLUMNS.values()}
"""One row per case."""
SAMPLES: Schema = {"run_id": TEXT, "case_id": TEXT, "clock": TEXT, "index": COUNT, "ms": MEASURE}
"""One row per raw sample, in the order of sampling."""
SCORES: Schema = {"run_id": TEXT, "case_id": TEXT, "item": COUNT, "score": MEASURE}
"""One row per evaluated item of a case; `item` is its place in the user's data."""
LAYERS: Schema = dict.fromkeys(("run_id", "case_id"), TEXT) | {"order": COUNT, "layer": TEXT, "kind": TEXT}
LAYERS |= {"nodes": pl.List(pl.String()), "ms": MEASURE, "share": MEASURE}
"""One row per layer of a case, in running order; `share` is relative to the sum over the case's layers."""
_TRIED = ("run_id", "model", "variant", "pass", "precision", "setting", "batch_size", "status", "reason")
LARGEST_BATCH: Schema = {name: RESULTS[name] for name in (*_TRIED, "peak_memory_mib")}
"""One row per batch tried in the search for the largest."""


def columns(*groups: Group, shown: Shown = Shown.FILES) -> list[Column]:
    """Return the columns of these groups, group by group, that appear at least there."""
    return [c for group in groups for c in COLUMNS.values() if c.group == group and c.shown >= shown]


def names(*groups: Group) -> list[str]:
    return [column.name for column in columns(*groups)]


def parts(whole: str) -> list[str]:
    """Return the names of the finest columns that add up to `whole`."""
    direct = [column.name for column in FIGURES.values() if column.part_of == whole]
    return [name for part in direct for name in parts(part) or [part]]


def prices(throughput: Any, usd_per_hour: Any) -> dict[str, Any]:
    """Return the figures of Group.COST, given items per second and the price of an hour as numbers or columns."""
    items = throughput * 3600 / usd_per_hour
    return {"usd_per_million_items": 1e6 / items, "items_per_usd": items}


def check(figures: Iterable[str]) -> None:
    """Raise KeyError for a figure without a column."""
    for name in figures:
        if name not in COLUMNS:
            raise KeyError(f"no column is called '{name}'; declare it in profiler/results/columns.py")


def kind_of_warning(written: pl.Expr) -> pl.Expr:
    """Return the kind of each warning, which is "kind: text" in files (engines/base.py)."""
    return written.str.split(":").list.first()


def place(column: str, order: Iterable[str]) -> pl.Expr:
    """Return the index of a column's value in the order; other values come last."""
    names = list(order)
    return pl.col(column).replace_strict(names, range(len(names)), default=len(names), return_dtype=pl.Int64)


def field(name: str, heading: str | None = None, **options: Any) -> Field:
    """Make the field of a column, by default with its heading and its unit's format."""
    column = FIGURES[name]
    heading = column.heading if heading is None else heading
    if not column.type.is_numeric():
        return words(heading, name, **{"expendable": column.expendable, **options})
    unit, format = UNITS[column.unit]
    names = (name, *ends_of(name)) if column.unit == "points" and name in RANGED else (name,)
    return figure(heading, names, **{"format": format, "unit": unit, "expendable": column.expendable, **options})


def fields(*groups: Group, shown: Shown) -> list[Field]:
    """Make the fields of these groups' columns that appear at least there; a busy figure says so."""
    return [_unless_busy(field(column.name)) for column in columns(*groups, shown=shown)]


def _unless_busy(plain: Field) -> Field:
    name, *_ = plain.columns
    timed = "latency_ms" if name in _BY_LATENCY else name
    if timed not in WITH_ENDS:
        return plain
    return replace(plain, columns=(name, *ends_of(timed)), format=unless_busy(plain.format))


def factor(heading: str, **options: Any) -> Field:
    """Make the field of the factor over the base with its interval."""
    return figure(heading, FACTOR, factors, **options)
