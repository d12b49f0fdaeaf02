"""Declare every kind of warning: its meaning as a footnote, and whether its rows are measured again.

A row's warnings are `Warning` objects in memory and "kind: text" in files (engines/base.py). A new kind is one row of
`_KINDS`, and one of docs/columns.md. A rough row, of a `retake` kind, is measured again; docs/method.md says which
doubts widen an interval.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from engines.base import Warning
from profiler.tables.numbers import grouped, listed

HOST_BOUND, DISTURBED, REMEASURED, NO_CUDA_GRAPH = "host-bound", "disturbed", "remeasured", "no-cuda-graph"
"""Kinds that code names."""


@dataclass(frozen=True)
class WarningKind:
    """A kind of warning and its footnote of at most 15 words.

    A row with a `retake` kind is measured again at the end of the run. docs/method.md has the exact rules. A `caveat`
    stands below a run's tables: the row's precision or error means less than usual.
    """

    kind: str
    meaning: str
    retake: bool = False
    caveat: bool = False


_KINDS = (
    WarningKind(HOST_BOUND, "the host, not the device, sets the latency; a CUDA graph would help"),
    WarningKind("queue-bound", "a call takes over 5 % longer with others queued behind it than alone"),
    WarningKind("gate-overrun", "one call's launches outlast any gate, so `gpu_ms` is null"),
    WarningKind("inconsistent", "latency contradicts throughput by over 10 %", retake=True),
    WarningKind(DISTURBED, "other work ran on the machine meanwhile", retake=True),
    WarningKind("drift", "moved by over 2 % while it was taken; a larger budget may settle it"),
    WarningKind("unsteady", "timings moved by over 2 % when measuring began"),
    WarningKind("throttled", "the GPU slowed down for heat or a hardware reason", retake=True),
    WarningKind(REMEASURED, "measured again; the first take is dropped"),
    WarningKind("power-cap", "the GPU was at its power limit, which lowers its clocks"),
    WarningKind("below-floor", "faster than this machine's measured peak or bandwidth allows (`floor_ms`)"),
    WarningKind("outliers", "more than one sample in twenty is outside Tukey's fences; avoid the mean"),
    WarningKind("short-calls", "calls under 50 µs, timed in blocks"),
    WarningKind("inaccurate", "the error is larger than usual for the precision (docs/method.md)", caveat=True),
    WarningKind("no-parity", "some outputs or items were not compared, or depend on the batch", caveat=True),
    WarningKind("kept-float", "some operators of the .onnx file stay float32", caveat=True),
    WarningKind("static-graph", "the model could be exported for one batch size and shape only"),
    WarningKind("no-accuracy", "the outputs could not be scored on the given data"),
    WarningKind("unlabelled", "the data have no labels, so errors are measured and accuracy is not"),
    WarningKind("few-items", "only a part of the given data was scored before the timeout"),
    WarningKind("calibration", "int8 was calibrated on seeded data, so its error says nothing", caveat=True),
    WarningKind("unproven", "the types of convolutions and products could not be seen", caveat=True),
    WarningKind("mixed-precision", "some convolutions and products were computed in a wider type", caveat=True),
    WarningKind("quantized", "the module brings quantized weights, whatever the precision", caveat=True),
    WarningKind("inaccurate-gradients", "gradients are further from fp64 than is usual at this precision", caveat=True),
    WarningKind("unchecked-outputs", "the reference is zero, or the model has state or random numbers", caveat=True),
    WarningKind(
        "unchecked-gradients",
        "gradients were not compared: they are random, depend on the batch, or lack a reference",
        caveat=True,
    ),
    WarningKind("unchecked", "it fitted, and left no memory for the checks of outputs and types", caveat=True),
    WarningKind("built-here", "memory includes what building took in the same process"),
    WarningKind("engine-cache", "a cached engine did not load and was built again"),
    WarningKind("cpu-nodes", "ONNX Runtime ran nodes on the CPU"),
    WarningKind("graph-breaks", "torch.compile left the graph"),
    WarningKind("eager-first", "call the module once in eager before you compile it"),
    WarningKind("same-inputs", "all calls had equal inputs, whose outputs a model may remember"),
    WarningKind("recompiled", "torch.compile compiled again while it ran, though the shapes stayed"),
    WarningKind(NO_CUDA_GRAPH, "no CUDA graph was recorded, though one was asked for"),
    WarningKind("no-layers", "the layers could not be profiled"),
    WarningKind("parallel-layers", "layers ran side by side; their times overlap"),
    WarningKind("unclosed", "the runtime failed while closing, after everything had been measured"),
)
KINDS = {kind.kind: kind for kind in _KINDS}
CAVEATS = {kind.kind for kind in _KINDS if kind.caveat}
_NAMED = 4
"""Most configurations that a footnote names."""


def retaken(warnings: Iterable[Warning]) -> list[Warning]:
    """Return the warnings whose rows are measured again."""
    return [warning for warning in warnings if is_rough(warning.kind)]


def is_rough(kind: str) -> bool:
    """Return whether rows with that kind of warning are measured again."""
    return kind in KINDS and KINDS[kind].retake


def footnotes(cells: Iterable[tuple[str, Iterable[str]]], only_caveats: bool = False) -> list[str]:
    """Explain each kind of warning once, given the names of cells and the kinds of their warnings."""
    kinds = grouped((kind, name) for name, kinds in cells for kind in kinds if kind in CAVEATS or not only_caveats)
    return [f"{kind} ({listed(dict.fromkeys(names), shown=_NAMED)}): {meaning(kind)}" for kind, names in kinds.items()]


def meaning(kind: str, otherwise: str = "") -> str:
    return KINDS[kind].meaning if kind in KINDS else otherwise
