"""Declare every kind of warning: what it means, its mark, and which figures it casts doubt on.

A row's warnings are `Warning` objects from where they are made to where they are written, and "kind: text" in files
(engines/base.py). A new kind is one row of `_KINDS`: terminal, report, recommend, docs/columns.md and the published
pages read it from there.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from engines.base import Warning

Doubt = Literal["latency", "memory", "error"]


@dataclass(frozen=True, kw_only=True)
class WarningKind:
    """What a kind of warning says about a row.

    `meaning` is what a reader of a table needs, `when` the exact rule for docs/columns.md, `mark` its sign on published
    pages. `doubts` are the figures that it makes unreliable. A row with an `unsteady` kind would give other figures if
    it were measured again; one that is `measured_again` is, at the end of the run.
    """

    kind: str
    mark: str
    meaning: str
    when: str
    doubts: frozenset[Doubt] = frozenset()
    unsteady: bool = False
    measured_again: bool = False


REMEASURED = "remeasured"
"""Of a row that was measured a second time."""

_LATENCY: frozenset[Doubt] = frozenset({"latency"})
_MEMORY: frozenset[Doubt] = frozenset({"memory"})
_ERROR: frozenset[Doubt] = frozenset({"error"})

_KINDS = (
    WarningKind(
        kind="host-bound",
        mark="h",
        meaning="the host, not the device, sets the latency or is close to it; a CUDA graph would help",
        when="the host sets the latency or is close to it: enqueueing takes more than 0.8 of the device's time "
        "(`gpu_ms`, or where that is null `latency_ms`)",
    ),
    WarningKind(
        kind="queue-bound",
        mark="q",
        meaning="with calls queued behind it a call takes longer than alone, and not for the host's sake",
        when="`event` / `gpu` > 1.05 although enqueueing is fast: with calls queued behind it a call takes longer than "
        "alone",
    ),
    WarningKind(
        kind="gate-overrun",
        mark="g",
        meaning="one call's launches outlast any gate, so Device ms is blank",
        when="one call's launches outlast any gate, so `gpu_ms` is null",
    ),
    WarningKind(
        kind="inconsistent",
        mark="x",
        meaning="two clocks contradict each other: the machine was disturbed; measure again",
        when="latency and throughput contradict each other by more than 10 %: the machine was disturbed",
        doubts=_LATENCY,
        unsteady=True,
    ),
    WarningKind(
        kind="drift",
        mark="d",
        meaning="figures moved while they were taken; a longer warm-up or a larger budget may settle them",
        when="the last third of the samples differs from the first by more than 2 %, and not by chance",
        doubts=_LATENCY,
        unsteady=True,
    ),
    WarningKind(
        kind="unsteady",
        mark="u",
        meaning="the warm-up ended before two windows agreed within 2 %",
        when="the warm-up ended before two windows agreed within 2 %",
        doubts=_LATENCY,
        unsteady=True,
    ),
    WarningKind(
        kind="throttled",
        mark="t",
        meaning="the GPU slowed down for heat or a hardware reason",
        when="the card slowed down for heat or a hardware reason",
        doubts=_LATENCY,
        measured_again=True,
    ),
    WarningKind(
        kind=REMEASURED,
        mark="r",
        meaning="first taken while the card slowed down; measured again at the run's end",
        when="the case was first taken while the card slowed down; these figures are of a second time, at the run's "
        "end",
    ),
    WarningKind(
        kind="power-cap",
        mark="p",
        meaning="the GPU was at its power limit, which lowers its clocks",
        when="the card was at its power limit, which lowers its clocks: the figure belongs to this duty cycle",
        doubts=_LATENCY,
    ),
    WarningKind(
        kind="below-floor",
        mark="f",
        meaning="faster than the roofline; the column warnings names the limit",
        when="the fastest of `gpu_ms` and `latency_ms` is below `floor_ms`; more than 2.5 times below, the row is "
        "`failed`",
        doubts=_LATENCY,
    ),
    WarningKind(
        kind="outliers",
        mark="o",
        meaning="more than one sample in twenty lies outside Tukey's fences; trust the median",
        when="more than one sample in twenty lies outside Tukey's fences; none is dropped",
    ),
    WarningKind(
        kind="short-calls",
        mark="s",
        meaning="calls under 50 µs, timed in blocks",
        when="calls under 50 µs, timed in blocks",
    ),
    WarningKind(
        kind="inaccurate",
        mark="i",
        meaning="the error is larger than usual for the precision",
        when="the error is larger than usual for the precision (fp32 1e-4, tf32 1e-2, fp16 2e-2, bf16 1e-1, int8 "
        "2e-1); from 0.5 on the row is `failed`",
        doubts=_ERROR,
    ),
    WarningKind(
        kind="calibration",
        mark="k",
        meaning="int8 was calibrated on seeded data, so its accuracy says nothing",
        when="int8 was calibrated on seeded data, so its accuracy says nothing",
        doubts=_ERROR,
    ),
    WarningKind(
        kind="unproven",
        mark="?",
        meaning="the types in which convolutions and products ran could not be seen",
        when="the types in which convolutions and products ran could not be seen",
        doubts=_ERROR,
    ),
    WarningKind(
        kind="mixed-precision",
        mark="8",
        meaning="int8 left some convolutions and products in float; the column warnings says how many",
        when="of an int8 graph some convolutions or products were computed in float, as counted; if all were, the row "
        "is `failed`",
        doubts=_ERROR,
    ),
    WarningKind(
        kind="inaccurate-gradients",
        mark="j",
        meaning="gradients are further from fp64 than is usual for the model and the precision",
        when="`gradient_error` is more than 3 times the error of the same step at that precision on the CPU; where a "
        "tensor that carries 1 % of the gradient's norm is wrong (by more than 0.5 and 3 times its own usual error, "
        "zeros, or not finite), the row is `failed`",
        doubts=_ERROR,
    ),
    WarningKind(
        kind="unchecked-gradients",
        mark="v",
        meaning="gradients were not compared; the column warnings says why",
        when="the gradients were not compared: dropout is on, or the reference could not be made",
        doubts=_ERROR,
    ),
    WarningKind(
        kind="unchecked",
        mark="!",
        meaning="it fitted, and left no memory for the checks of outputs and types",
        when="a batch of a sweep or of the search for the largest one fitted, and the checks of its outputs and types, "
        "which take memory beside it, did not",
    ),
    WarningKind(
        kind="built-here",
        mark="z",
        meaning="memory includes what building took in the same process",
        when="the engine was built in the measured process, so `peak_memory_mib` and `other_mib` include what building "
        "took",
        doubts=_MEMORY,
    ),
    WarningKind(
        kind="host-peak",
        mark="m",
        meaning="the kernel does not count anew, so the host's memory includes the set-up",
        when="the kernel does not count the peak anew, so `host_peak_mib` includes the set-up",
        doubts=_MEMORY,
    ),
    WarningKind(
        kind="engine-cache",
        mark="a",
        meaning="an engine in the cache was damaged, foreign or did not load, and was built again",
        when="an engine in the cache was damaged, foreign or did not load, and was built again",
    ),
    WarningKind(
        kind="timing-cache",
        mark="w",
        meaning="TensorRT's timing cache was damaged or of another device, and was dropped",
        when="TensorRT's timing cache was damaged, or of another device or version, and was dropped",
    ),
    WarningKind(
        kind="cpu-nodes",
        mark="c",
        meaning="ONNX Runtime ran nodes on the CPU",
        when="ONNX Runtime placed nodes on its CPU provider",
    ),
    WarningKind(
        kind="graph-breaks",
        mark="b",
        meaning="torch.compile left the graph",
        when="torch.compile left the graph",
    ),
    WarningKind(
        kind="no-cuda-graph",
        mark="n",
        meaning="torch.compile or TensorRT recorded no CUDA graph; the log or the column warnings says why",
        when="torch.compile, or TensorRT, recorded no CUDA graph",
    ),
    WarningKind(
        kind="no-layers",
        mark="y",
        meaning="the layers could not be profiled; the column warnings says why",
        when="`--profile` was given and the layers could not be timed; all else stands",
    ),
    WarningKind(
        kind="unclosed",
        mark="#",
        meaning="the runtime failed while it closed the session, after everything had been measured",
        when="the process failed, as the text says, while it closed the session: everything had been measured",
    ),
    WarningKind(
        kind="no-energy",
        mark="e",
        meaning="the timeout left no time for the energy loop",
        when="`budget.timeout` left no time for the energy loop",
    ),
    WarningKind(
        kind="telemetry",
        mark="l",
        meaning="the process that reads the GPU's sensors ended; power, clocks and polled memory are missing",
        when="the process that reads the GPU's sensors ended: power, clocks and polled memory are missing",
    ),
)

KINDS = {kind.kind: kind for kind in _KINDS}


def check(warnings: Iterable[Warning]) -> None:
    """Raise KeyError for a kind that is not declared here; those of older runs are tolerated by not being checked."""
    for warning in warnings:
        if warning.kind not in KINDS:
            raise KeyError(f"no kind of warning is called '{warning.kind}'; declare it in warning_kinds.py")


def is_measured_again(warnings: Iterable[Warning]) -> bool:
    """Whether a row that carries these is to be measured a second time, and was not yet."""
    kinds = [warning.kind for warning in warnings]
    return REMEASURED not in kinds and any(kind in KINDS and KINDS[kind].measured_again for kind in kinds)


def meaning(kind: str, otherwise: str) -> str:
    """What a kind means; `otherwise` for one that only another version of the profiler knows."""
    return KINDS[kind].meaning if kind in KINDS else otherwise


def doubting(figure: Doubt) -> tuple[str, ...]:
    """The kinds that make a figure unreliable, in the order of declaration."""
    return tuple(kind.kind for kind in _KINDS if figure in kind.doubts)


def documented() -> str:
    """The table of docs/columns.md, in Markdown."""
    rows = [f"| `{kind.kind}` | {kind.when} |" for kind in _KINDS]
    return "\n".join(["| warning | meaning |", "| --- | --- |", *rows]) + "\n"
