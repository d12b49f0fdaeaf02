"""Declare every kind of warning: its meaning as a footnote, its mark, and which rows are measured again for it.

A row's warnings are `Warning` objects from where they are made to where they are written, and "kind: text" in files
(engines/base.py). A new kind is one row of `_KINDS`; terminal, report, recommend, docs/columns.md and the published
pages read it from there. What casts doubt on a figure widens its interval (docs/method.md); nothing branches on a kind,
but for measuring again.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from engines.base import Warning

HOST_BOUND, INCONSISTENT, DISTURBED, REMEASURED = "host-bound", "inconsistent", "disturbed", "remeasured"
NO_CUDA_GRAPH = "no-cuda-graph"
"""Kinds that are made or asked for by name."""


@dataclass(frozen=True)
class WarningKind:
    """A kind of warning: its sign on published pages, its footnote of at most 15 words, and the exact rule for
    docs/columns.md where that says more. A row with a `retake` kind is measured again at the end of the run."""

    kind: str
    mark: str
    meaning: str
    when: str = ""
    retake: bool = False


_KINDS = (
    WarningKind(
        HOST_BOUND,
        "h",
        "the host, not the device, sets the latency; a CUDA graph would help",
        "enqueueing takes more than 0.8 of the device's time (`gpu_ms`, or `latency_ms` where that is null)",
    ),
    WarningKind(
        "queue-bound",
        "q",
        "a call takes longer with others queued behind it than alone",
        "`event` / `gpu` > 1.05 although enqueueing is fast",
    ),
    WarningKind("gate-overrun", "g", "one call's launches outlast any gate, so `gpu_ms` is null"),
    WarningKind(
        INCONSISTENT,
        "x",
        "latency and throughput contradict each other by more than 10 %",
        "latency and throughput (on a CPU median and mean), or an iteration and the sum of its parts, contradict each "
        "other by more than 10 %",
        retake=True,
    ),
    WarningKind(
        DISTURBED,
        "B",
        "other work ran on the machine meanwhile",
        "other processes, the hypervisor or waiting for them took more of the processors than docs/method.md allows, "
        "or another process computed on the card; `disturbance` has the share",
        retake=True,
    ),
    WarningKind(
        "drift",
        "d",
        "the figure moved while it was taken; a larger budget may settle it",
        "the last third of the samples differs from the first by more than 2 % (of fewer than 60 samples, by more than "
        "10 %), and not by chance",
    ),
    WarningKind(
        "unsteady",
        "u",
        "timings had not settled when measuring began",
        "the last two windows of the warm-up disagree by more than 2 %",
    ),
    WarningKind("throttled", "t", "the GPU slowed down for heat or a hardware reason", retake=True),
    WarningKind(REMEASURED, "r", "measured again at the run's end; the first take is dropped"),
    WarningKind("power-cap", "p", "the GPU was at its power limit, which lowers its clocks"),
    WarningKind(
        "below-floor",
        "f",
        "faster than this machine's measured peak or bandwidth allows",
        "the fastest of `gpu_ms` and `latency_ms` is below `floor_ms`; more than 2.5 times below, the row is `failed` "
        "unless other work ran while the peaks were measured",
    ),
    WarningKind(
        "outliers",
        "o",
        "more than one sample in twenty is far from the median; avoid the mean",
        "more than one sample in twenty is outside Tukey's fences; none is dropped",
    ),
    WarningKind("short-calls", "s", "calls under 50 µs, timed in blocks"),
    WarningKind(
        "inaccurate",
        "i",
        "the error is larger than usual for the precision",
        "the error is larger than usual for the precision (fp32 1e-4, tf32 1e-2, fp16 2e-2, bf16 1e-1, int8 2e-1, "
        "fp8 2e-1); from 0.5 on the row is `failed`",
    ),
    WarningKind(
        "no-parity",
        "P",
        "not all outputs could be compared with the reference's",
        "outputs whose shape depends on what is computed, or on the other items of a batch, were not compared",
    ),
    WarningKind("kept-float", "K", "some operators of the .onnx file stay float32"),
    WarningKind("static-graph", "S", "the model could be exported for one batch size or shape only"),
    WarningKind("calibration", "k", "int8 was calibrated on seeded data, so its error says nothing"),
    WarningKind("unproven", "?", "the types of convolutions and products could not be seen"),
    WarningKind(
        "mixed-precision",
        "8",
        "some convolutions and products were computed in a wider type",
        "of an int8 graph, of a module at int8 or fp8, or of what a user's Q/DQ file quantizes, some convolutions or "
        "products were computed in float, as counted; if all were, the row is `failed`. Of a factory's model in half "
        "precision, fewer than half were computed in fp32",
    ),
    WarningKind(
        "inaccurate-gradients",
        "j",
        "gradients are further from fp64 than is usual at this precision",
        "`gradient_error` is more than 3 times the error of the same step at that precision on the CPU; where a "
        "tensor that carries 1 % of the gradient's norm is wrong (by more than 0.5 and 3 times its own usual error, "
        "zeros, or not finite), the row is `failed`",
    ),
    WarningKind(
        "unchecked-outputs",
        "0",
        "the reference is zero or hardly depends on the inputs, so the error says nothing",
        "every output of the reference is zero on the seeded inputs, or the error is half or more of how far its items "
        "are from each other",
    ),
    WarningKind(
        "unchecked-gradients",
        "v",
        "gradients were not compared",
        "dropout is on, the reference could not be made, or it is zero",
    ),
    WarningKind("unchecked", "!", "it fitted, and left no memory for the checks of outputs and types"),
    WarningKind(
        "built-here",
        "z",
        "memory includes what building took in the same process",
        "the engine was built in the measured process, so `peak_memory_mib` and `other_mib` include what building took",
    ),
    WarningKind("host-peak", "m", "`host_peak_mib` includes the set-up: the kernel does not reset its peak"),
    WarningKind("engine-cache", "a", "a cached engine did not load and was built again"),
    WarningKind("timing-cache", "w", "TensorRT's timing cache did not fit and was dropped"),
    WarningKind("cpu-nodes", "c", "ONNX Runtime ran nodes on the CPU"),
    WarningKind("graph-breaks", "b", "torch.compile left the graph"),
    WarningKind(
        "eager-first",
        "E",
        "call the module once in eager before you compile it",
        "the module keeps a tensor of an earlier call, which torch.compile's CUDA graphs overwrite; it was compiled "
        "again after a call in eager",
    ),
    WarningKind("recompiled", "R", "torch.compile compiled again while it ran, though the shapes stayed"),
    WarningKind(NO_CUDA_GRAPH, "n", "no CUDA graph was recorded, though one was asked for"),
    WarningKind("no-layers", "y", "the layers could not be profiled"),
    WarningKind(
        "slow-layers",
        "L",
        "the profiler slowed the layers; they are no parts of the latency",
        "the layers add up to more than 1.5 times `gpu_ms`, or `latency_ms` where that is null",
    ),
    WarningKind("parallel-layers", "A", "layers ran side by side; their times overlap"),
    WarningKind("unclosed", "#", "the runtime failed while closing, after everything had been measured"),
    WarningKind("no-energy", "e", "`budget.timeout` left no time for the energy loop"),
    WarningKind("telemetry", "l", "the reader of the GPU's sensors ended; power, clocks and polled memory are missing"),
)

KINDS = {kind.kind: kind for kind in _KINDS}


def check(warnings: Iterable[Warning]) -> None:
    """Raise KeyError for a kind that is not declared here."""
    for warning in warnings:
        if warning.kind not in KINDS:
            raise KeyError(f"no kind of warning is called '{warning.kind}'; declare it in warning_kinds.py")


def retaken(warnings: Iterable[Warning]) -> list[Warning]:
    """Return those for which a row is measured again."""
    return [warning for warning in warnings if warning.kind in KINDS and KINDS[warning.kind].retake]


def is_due(warnings: Sequence[Warning]) -> bool:
    """Return whether a row that carries these is to be measured again, and was not yet."""
    return bool(retaken(warnings)) and all(warning.kind != REMEASURED for warning in warnings)


def meaning(kind: str, otherwise: str = "") -> str:
    return KINDS[kind].meaning if kind in KINDS else otherwise
