"""Declare every kind of warning: what it means, its mark, and which figures it casts doubt on.

A row's warnings are `Warning` objects from where they are made to where they are written, and "kind: text" in files
(engines/base.py). A new kind is one row of `_KINDS`: terminal, report, recommend, docs/columns.md and the published
pages read it from there.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from engines.base import Warning
from profiler.tables.numbers import grouped, listed

Doubt = Literal["latency", "memory", "error"]
HOST_BOUND, INCONSISTENT, DISTURBED, REMEASURED = "host-bound", "inconsistent", "disturbed", "remeasured"
NO_CUDA_GRAPH, UNTIMED, SLOWER_KERNELS = "no-cuda-graph", "no-first-call", "slower-kernels"
"""Kinds that are asked for by name."""
CONTRADICTION = 1.1
"""How many times one figure of a call is another that contradicts it."""


@dataclass(frozen=True)
class WarningKind:
    """What a kind of warning says about a row.

    `mark` is its sign on published pages, `meaning` what a reader of a table needs, `when` the exact rule for
    docs/columns.md where it is another. `doubts` names the figure that it makes unreliable. A row with an `unsteady`
    kind would give other figures if it were measured again. One with a kind that says when it was `first_taken` is, at
    the end of the run: "while the card slowed down", or "{text}" for the warning's own. With `no_factor` no headline
    may say by what factor it wins, or another wins over it.
    """

    kind: str
    mark: str
    meaning: str
    when: str = ""
    doubts: Doubt | None = None
    unsteady: bool = False
    first_taken: str = ""
    no_factor: bool = False


_KINDS = (
    WarningKind(
        HOST_BOUND,
        "h",
        "the host, not the device, sets the latency or is close to it; a CUDA graph would help",
        "the host sets the latency or is close to it: enqueueing takes more than 0.8 of the device's time (`gpu_ms`, "
        "or where that is null `latency_ms`)",
    ),
    WarningKind(
        "queue-bound",
        "q",
        "with calls queued behind it a call takes longer than alone, and not because of the host",
        "`event` / `gpu` > 1.05 although enqueueing is fast: with calls queued behind it a call takes longer than "
        "alone",
    ),
    WarningKind(
        "gate-overrun",
        "g",
        "one call's launches outlast any gate, so Device ms is blank",
        "one call's launches outlast any gate, so `gpu_ms` is null",
    ),
    WarningKind(
        INCONSISTENT,
        "x",
        "latency and throughput (on a CPU a call's median and mean) contradict each other; rely on neither",
        "latency and throughput (on a CPU a call's median and mean), or an iteration and the sum of its parts, "
        "contradict each other by more than 10 %: the machine was disturbed",
        doubts="latency",
        unsteady=True,
        first_taken="while latency and throughput contradicted each other",
        no_factor=True,
    ),
    WarningKind(
        DISTURBED,
        "B",
        "other work ran on the machine while it was measured",
        "while it was measured other processes, the hypervisor or waiting for them took more of the processors than "
        "docs/method.md allows, or another process computed on the card; `disturbance` has the share",
        doubts="latency",
        unsteady=True,
        first_taken="while {text}",
        no_factor=True,
    ),
    WarningKind(
        "drift",
        "d",
        "figures moved while they were taken; a longer warm-up or a larger budget may settle them",
        "the last third of the samples differs from the first by more than 2 % (of fewer than 60 samples, by more than "
        "10 %), and not by chance",
        doubts="latency",
        unsteady=True,
    ),
    WarningKind(
        "unsteady",
        "u",
        "timings had not settled when measuring began",
        "timings had not settled when measuring began: the last two windows of the warm-up disagree by more than 2 %",
        doubts="latency",
        unsteady=True,
    ),
    WarningKind(
        "throttled",
        "t",
        "the GPU slowed down for heat or a hardware reason",
        doubts="latency",
        first_taken="while the card slowed down",
    ),
    WarningKind(
        REMEASURED,
        "r",
        "disturbed when it was first taken; measured again at the run's end",
        "the case was disturbed when it was first taken, as the text says; these figures are of another time, at the "
        "run's end",
    ),
    WarningKind(
        "power-cap",
        "p",
        "the GPU was at its power limit, which lowers its clocks",
        "the card was at its power limit, which lowers its clocks: the figure belongs to this duty cycle",
        doubts="latency",
    ),
    WarningKind(
        "below-floor",
        "f",
        "faster than this machine's measured peak or bandwidth allows, which may have been measured too low; the "
        "column `warnings` of results.parquet has both figures",
        "the fastest of `gpu_ms` and `latency_ms` is below `floor_ms`; more than 2.5 times below, the row is `failed` "
        "if the roofs were measured again after it and nothing disturbed that",
        doubts="latency",
    ),
    WarningKind(
        "outliers",
        "o",
        "more than one sample in twenty is far from the median (Tukey's rule); do not use the mean",
        "more than one sample in twenty is far from the median, outside Tukey's fences; none is dropped",
    ),
    WarningKind("short-calls", "s", "calls under 50 µs, timed in blocks"),
    WarningKind(
        "inaccurate",
        "i",
        "the error is larger than usual for the precision",
        "the error is larger than usual for the precision (fp32 1e-4, tf32 1e-2, fp16 2e-2, bf16 1e-1, int8 2e-1, "
        "fp8 2e-1); from 0.5 on the row is `failed`",
        doubts="error",
    ),
    WarningKind(
        "no-parity",
        "P",
        "not all outputs could be compared with the reference's; the column warnings says which and why",
        "outputs whose shape depends on what is computed, or on the other items of a batch, were timed and not "
        "compared, since the reference's have other shapes",
        doubts="error",
    ),
    WarningKind(
        "kept-float",
        "K",
        "operators of a user's .onnx file that ONNX Runtime's converter does not take to fp16 stay float32; the column "
        "warnings names them",
    ),
    WarningKind(
        "static-graph",
        "S",
        "the model could be exported for one batch size or one shape at a time only; the column warnings says why",
    ),
    WarningKind(
        UNTIMED, "N", "the first call at a new shape was disturbed, or could not be timed; the column warnings says why"
    ),
    WarningKind("calibration", "k", "int8 was calibrated on seeded data, so its accuracy says nothing", doubts="error"),
    WarningKind(
        SLOWER_KERNELS,
        "D",
        "the device takes longer than in eager at the same precision; the column warnings names the kernels",
        "on a GPU `gpu_ms` is more than 1.1 times plain eager's of the same cell; the text names the kernels in which "
        "the time goes, from a short profiled pass of both after everything was measured",
    ),
    WarningKind("unproven", "?", "the types in which convolutions and products ran could not be seen", doubts="error"),
    WarningKind(
        "mixed-precision",
        "8",
        "some convolutions and products were computed in a wider type; the column warnings says how many",
        "of an int8 graph, of a module at int8 or fp8, or of what a user's Q/DQ file quantizes, some convolutions or "
        "products were computed in float, as counted; if all were at int8 or fp8, the row is `failed`. Of a factory's "
        "model in half precision, fewer than half were computed in fp32",
        doubts="error",
    ),
    WarningKind(
        "inaccurate-gradients",
        "j",
        "gradients are further from fp64 than is usual for the model and the precision",
        "`gradient_error` is more than 3 times the error of the same step at that precision on the CPU; where a "
        "tensor that carries 1 % of the gradient's norm is wrong (by more than 0.5 and 3 times its own usual error, "
        "zeros, or not finite), the row is `failed`",
        doubts="error",
    ),
    WarningKind(
        "unchecked-outputs",
        "0",
        "the reference's outputs are zero, or hardly depend on the inputs, so agreeing with them says nothing",
        "every output of the reference is zero on the seeded inputs, so what computes nothing agrees with it, or the "
        "error is half or more of how far its items are from each other: all that depends on the inputs could be wrong",
        doubts="error",
    ),
    WarningKind(
        "unchecked-gradients",
        "v",
        "gradients were not compared; the column warnings says why",
        "the gradients were not compared: dropout is on, the reference could not be made, or it is zero",
        doubts="error",
    ),
    WarningKind(
        "unchecked",
        "!",
        "it fitted, and left no memory for the checks of outputs and types",
        "a batch of a sweep or of the search for the largest one fitted, and the checks of its outputs and types, "
        "which take memory of their own, did not",
    ),
    WarningKind(
        "built-here",
        "z",
        "memory includes what building took in the same process",
        "the engine was built in the measured process, so `peak_memory_mib` and `other_mib` include what building took",
        doubts="memory",
    ),
    WarningKind(
        "host-peak",
        "m",
        "the kernel does not reset its count of the peak, so `host_peak_mib` includes the set-up",
        doubts="memory",
    ),
    WarningKind(
        "engine-cache", "a", "an engine in the cache was damaged, foreign or did not load, and was built again"
    ),
    WarningKind(
        "timing-cache", "w", "TensorRT's timing cache was damaged, or of another device or version, and was dropped"
    ),
    WarningKind("cpu-nodes", "c", "ONNX Runtime ran nodes on the CPU"),
    WarningKind("graph-breaks", "b", "torch.compile left the graph; the column warnings says where and why"),
    WarningKind(
        "eager-first",
        "E",
        "torch.compile failed until the module had been called once in eager; call yours so before you compile it",
        "the module keeps a tensor of an earlier call, which torch.compile's CUDA graphs overwrite. It was compiled "
        "again after a call in eager, which a program that compiles it needs as well",
    ),
    WarningKind(
        "recompiled",
        "R",
        "torch.compile compiled again while it ran, though the shapes stayed; the column warnings says why",
    ),
    WarningKind(
        NO_CUDA_GRAPH,
        "n",
        "no CUDA graph was recorded; the log or the column warnings says why",
        "no CUDA graph was recorded, though one was asked for",
    ),
    WarningKind(
        "no-layers",
        "y",
        "the layers could not be profiled; the column warnings says why",
        "`--profile` was given and the layers could not be timed; all other figures are there",
    ),
    WarningKind(
        "slow-layers",
        "L",
        "with the profiler on the layers took far longer than the case; they are no parts of its latency",
        "the layers add up to more than 1.5 times `gpu_ms`, or where that is null `latency_ms`: the profiler or other "
        "work slowed them, and they are no parts of the latency",
    ),
    WarningKind(
        "parallel-layers",
        "A",
        "layers ran side by side, on several streams; their times overlap, and are no parts of its latency",
        "`--profile` was given, and TensorRT's engine has auxiliary streams: its layers' times overlap",
    ),
    WarningKind(
        "unclosed", "#", "the runtime failed or hung while it closed the session, after everything had been measured"
    ),
    WarningKind("no-energy", "e", "`budget.timeout` left no time for the energy loop"),
    WarningKind(
        "telemetry", "l", "the process that reads the GPU's sensors ended; power, clocks and polled memory are missing"
    ),
)

KINDS = {kind.kind: kind for kind in _KINDS}
TAKEN_AGAIN = [kind.kind for kind in _KINDS if kind.first_taken]
"""Those for which a row is measured again."""


def check(warnings: Iterable[Warning]) -> None:
    """Raise KeyError for a kind that is not declared here; those of older runs are tolerated by not being checked."""
    for warning in warnings:
        if warning.kind not in KINDS:
            raise KeyError(f"no kind of warning is called '{warning.kind}'; declare it in warning_kinds.py")


def disturbances(warnings: Iterable[Warning]) -> list[Warning]:
    """Those for which a row is measured again."""
    return [warning for warning in warnings if warning.kind in TAKEN_AGAIN]


def is_remeasured(warnings: Iterable[Warning]) -> bool:
    """Whether a row that carries these is not the first take of its case."""
    return any(warning.kind == REMEASURED for warning in warnings)


def is_measured_again(warnings: Sequence[Warning]) -> bool:
    """Whether a row that carries these is to be measured a second time, and was not yet."""
    return bool(disturbances(warnings)) and not is_remeasured(warnings)


def first_taken(warnings: Iterable[Warning]) -> str:
    """When a row that is measured again was first taken, like "while the card slowed down"."""
    texts = [KINDS[warning.kind].first_taken.format(text=warning.text) for warning in disturbances(warnings)]
    return ", and ".join(dict.fromkeys(texts))


def kinds_first_taken(warnings: Iterable[Warning]) -> set[str]:
    """For which kinds a row that carries these was measured again, as its `remeasured` has them in words."""
    texts = [warning.text.removeprefix("first taken ") for warning in warnings if warning.kind == REMEASURED]
    kinds = {kind.first_taken: kind.kind for kind in KINDS.values()}
    return {kinds.get(part, DISTURBED) for text in texts for part in text.split(", and ")}


def without_factor(kinds: Iterable[str]) -> list[str]:
    """Those of the kinds that a row carries which forbid to say by what factor it wins, or another wins over it.

    Whatever names a factor asks this of all rows that it rests on: for frames by `replicates.disturbed`.
    """
    carried = set(kinds)
    return [kind.kind for kind in KINDS.values() if kind.no_factor and kind.kind in carried]


def qualifying() -> list[WarningKind]:
    """Those that a published table marks: its rows are not, or not only, about the device."""
    return [kind for kind in KINDS.values() if kind.no_factor or kind.kind == HOST_BOUND]


def meaning(kind: str, otherwise: str) -> str:
    """What a kind means; `otherwise` for one that only another version of the profiler knows."""
    return KINDS[kind].meaning if kind in KINDS else otherwise


def doubting(figure: Doubt) -> tuple[str, ...]:
    """The kinds that make a figure unreliable, in the order of declaration."""
    return tuple(kind.kind for kind in KINDS.values() if figure == kind.doubts)


def carried_by_all(rows: Iterable[Iterable[str]]) -> frozenset[str]:
    """The kinds that each of several rows carries, which need to be said only once; of those that are declared here."""
    carried = [KINDS.keys() & set(kinds) for kinds in rows]
    return frozenset(set.intersection(*carried)) if len(carried) > 1 else frozenset()


def was_disturbed(kinds: Iterable[str]) -> str:
    """Like "was inconsistent", of a row that carries some kinds without a factor: each by its name."""
    return f"was {' and '.join(sorted(without_factor(kinds))) or DISTURBED}"


def disturbed(named: Iterable[tuple[str, Iterable[str]]]) -> str:
    """Like "ort fp32 was inconsistent and eager fp32 and trt fp16 were disturbed", of names and what each carries."""
    found = grouped((was_disturbed(kinds), name) for name, kinds in dict(named).items())
    return " and ".join(f"{listed(who)} {how if len(who) == 1 else f'were{how[3:]}'}" for how, who in found.items())
