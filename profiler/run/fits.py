"""Run side by side what memory holds, and refuse in words what it cannot, before the kernel ends a process for it."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sized
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from exporters.catalog import network_of
from exporters.cost import WEIGHT_BYTES
from exporters.libraries.catalog import folder_of
from exporters.qdq_placement import PLACEMENTS
from exporters.source import ModelError, ModelSource
from exporters.weights import graph_files
from profiler.job.case import Case
from profiler.machine import available_memory_mib, usable_cores
from profiler.nvml import Gpu
from profiler.processes.messages import Outcome
from profiler.processes.process import Call, run_all

Key = TypeVar("Key", bound=Hashable)
Tick = Callable[[str, int, int], None]
"""Called with what is being made, how many of it are done, and of how many."""
_HELD = {
    "prepare_model": ("reference outputs", 1.0),
    "prepare_export": ("its export", 1.0),
    "prepare_gradients": ("reference gradients", 5.0),  # Weights in fp32, weights and gradients in fp64.
    "int8": ("quantizing it", 3.0),  # ONNX Runtime's quantizer holds a graph and two simplified ones.
}
"""What a step of preparing makes, and how many copies of the weights in fp32 it holds at once, at least; others hold
none. Measured with a transformer's blocks of 2.4 GiB: 1 (weights that are mapped from a file not counted, which the
kernel can drop)."""
_BASE_MIB, _COPIES = 700, 6.5
"""What a preparation may take: VGG-16's export, the largest, peaks at 3.5 GB for 528 MiB of weights in fp32."""
_UNKNOWN_MIB = 400.0


def weight_mib(source: ModelSource, state: Path | None = None) -> float | None:
    """What the weights take in fp32: as the cache's `state` holds them, else as far as it is known before the model is
    made, which is not of a factory's own."""
    if state is not None:
        return state.stat().st_size / 2**20
    folder = folder_of(source.factory or "") if source.library else None
    known = None if source.weights else network_of(source) or source.layer
    if known:
        return known.parameters * 4 / 2**20
    try:
        files = [*folder.glob("*.safetensors")] if folder else []
        files += [source.weights] if source.weights else []
        files += graph_files(source.onnx).values() if source.onnx else []
        return sum(file.stat().st_size for file in files) / 2**20 if files else None
    except (OSError, ModelError):
        return None  # Whoever reads the file says why.


def at_once(weights: Iterable[float | None]) -> int:
    """How many preparations of models with so many MiB of weights run side by side: one a core, as long as the largest
    of them fits into memory."""
    largest = max((_BASE_MIB + _COPIES * (_UNKNOWN_MIB if each is None else each) for each in weights), default=0.0)
    available = available_memory_mib()
    by_memory = int(available * 0.8 / largest) if available and largest else usable_cores()
    return max(1, min(usable_cores(), by_memory))


def side_by_side(
    calls: Mapping[Key, Call], weights: Iterable[float | None], tick: Tick, what: str
) -> dict[Key, Outcome]:
    """Run calls on models with so many MiB of weights; `tick` is called a few times a second, for the display."""
    slots = max(1, min(at_once(weights), len(calls)))
    # Ten processes with a thread a core each, on 64 cores, took minutes for what takes seconds.
    shared = [replace(call, threads=call.threads or max(1, usable_cores() // slots)) for call in calls.values()]
    outcomes = run_all(shared, slots, lambda done: tick(what, done, len(calls)))
    return dict(zip(calls, outcomes, strict=True))


def of_several(tick: Tick, things: Sized) -> Tick:
    """The display's tick; one thing alone is none to be counted."""
    return tick if len(things) > 1 else lambda *_: None


def too_large_to_prepare(function: str, arguments: tuple[object, ...], weights: float | None) -> Outcome | None:
    """Why a function of prepare_model.py that would hold these MiB of weights is not started; None if it may be."""
    source, int8 = arguments[0], function == "prepare_export" and arguments[1] in PLACEMENTS
    if function == "prepare_export" and not int8 and isinstance(source, ModelSource) and source.own_graph:
        return None  # The user's file is converted without loading its weights.
    what, copies = _HELD.get("int8" if int8 else function, ("", 0.0))
    available = available_memory_mib()
    if weights is None or available is None or weights * copies <= available:
        return None
    needs = f"{weights * copies / 1024:.1f} GiB ({copies:g} × {weights / 1024:.1f} GiB of weights)"
    return Outcome(
        "oom",
        f"not started: {what} would take at least {needs} of memory, and {available / 1024:.1f} GiB are available; "
        "free some, or use a machine with more",
    )


def too_large_to_run(case: Case, weights: float | None, gpu: Gpu | None) -> Outcome | None:
    """Why a case is not started whose weights alone are larger than the GPU's memory, or than what is available."""
    if weights is None:
        return None
    own = weights * WEIGHT_BYTES.get(case.precision, 4) / 4 * (2 if case.pass_ == "training" else 1)
    card = gpu if case.device == "cuda" else None
    limit = card.memory_mib if card else available_memory_mib()
    if limit is None or own <= limit:
        return None
    what = "weights and gradients" if case.pass_ == "training" else "the weights"
    where = f"the GPU has {limit / 1024:.1f} GiB" if card else f"{limit / 1024:.1f} GiB are available"
    mend = "use a narrower precision, or a machine with more memory"
    return Outcome(
        "oom", f"not started: {what} alone take {own / 1024:.1f} GiB at {case.precision}, and {where}; {mend}"
    )
