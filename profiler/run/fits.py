"""Refuse in words what memory cannot hold, before the kernel or the driver ends a process for it."""

from __future__ import annotations

from exporters.catalog import network_of
from exporters.libraries.catalog import folder_of
from exporters.source import ModelError, ModelSource
from exporters.weights import graph_files
from profiler.job.case import Case
from profiler.machine import available_memory_mib
from profiler.nvml import Gpu
from profiler.processes.messages import Outcome

_COPIES = {
    "prepare_model": 1.0,
    "prepare_export": 1.0,
    "prepare_gradients": 5.0,  # Weights in fp32, weights and gradients in fp64.
}
"""How many copies of the weights in fp32 a step of preparing holds at once, at least; of int8 see below. Measured with
a transformer's blocks of 2.4 GiB: 1 (weights that are mapped from a file not counted, which the kernel can drop)."""
_INT8_COPIES = 3.0
"""ONNX Runtime's quantizer holds a graph and two simplified ones."""
_BYTES = {"fp16": 2, "bf16": 2, "int8": 1}


def weight_mib(source: ModelSource) -> float | None:
    """What the weights take in fp32, as far as it is known before the model is made: not of a factory's own."""
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


def too_large_to_prepare(function: str, arguments: tuple[object, ...], weights: float | None) -> Outcome | None:
    """Why a function of prepare_model.py that would hold these MiB of weights is not started; None if it may be."""
    int8 = function == "prepare_export" and "int8" in arguments
    copies = _INT8_COPIES if int8 else _COPIES.get(function, 0.0)
    source = arguments[0]
    streamed = function == "prepare_export" and not int8 and isinstance(source, ModelSource) and source.own_graph
    available = available_memory_mib()
    if weights is None or available is None or streamed or weights * copies <= available:
        return None
    what = {"prepare_model": "reference outputs", "prepare_gradients": "reference gradients"}.get(
        function, "its export"
    )
    what = "quantizing it" if int8 else what
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
    own = weights * _BYTES.get(case.precision, 4) / 4 * (2 if case.pass_ == "training" else 1)
    limit = gpu.memory_mib if gpu and case.device == "cuda" else available_memory_mib()
    if limit is None or own <= limit:
        return None
    what = "weights and gradients" if case.pass_ == "training" else "the weights"
    where = f"the GPU has {limit / 1024:.1f} GiB" if gpu else f"{limit / 1024:.1f} GiB are available"
    mend = "use a narrower precision, or a machine with more memory"
    return Outcome(
        "oom", f"not started: {what} alone take {own / 1024:.1f} GiB at {case.precision}, and {where}; {mend}"
    )
