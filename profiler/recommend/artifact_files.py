"""What enters: a case and its graph, in a process of its own. What leaves: the model's files, and how to open them."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from engines.base import Job
from engines.catalog import ENGINES
from exporters.cache import Cache
from exporters.inputs import BATCH, TensorSpec, fixed_batch, input_specs, onnx_specs, read_onnx, seeded_inputs
from exporters.onnx_export import check_onnx, quiet
from exporters.source import ModelError
from exporters.weights import cached_state, external_locations
from profiler.job.case import Case
from profiler.processes.messages import Report


@dataclass(frozen=True)
class FilesOrder:
    """What is to be written into `folder`: `onnx` for an engine that reads a graph, `engine` for one that is built."""

    case: Case
    folder: Path
    cache: Path
    onnx: Path | None = None
    engine: Path | None = None


def write_files(order: FilesOrder, report: Report) -> dict[str, Any]:
    """Write the model and return its part of config.json: inputs, outputs and the runtime's settings.

    Raises ModelError for a model that torch.export, or a file that ONNX, cannot take.
    """
    case = order.case
    if ENGINES[case.engine].needs == "torch":
        specs = input_specs(case.source)
        _write_program(order, specs)
        return {"inputs": _inputs(specs, case.batch_size), "settings": {}}
    assert order.onnx is not None, "an engine that needs a graph gets the exported one"
    if case.source.kind == "onnx":
        check_onnx(order.onnx)
    specs = onnx_specs(replace(case.source, onnx=order.onnx))
    fixed = fixed_batch(specs)
    if fixed not in (None, case.batch_size):
        raise ModelError(f"model {case.model!r}: its batch is fixed to {fixed}, and {case.batch_size} was measured")
    _copy_graph(order.onnx, order.folder)
    if order.engine is not None:
        shutil.copyfile(order.engine, order.folder / "model.engine")
    outputs = [value.name for value in read_onnx(order.onnx).graph.output]
    return {"inputs": _inputs(specs, case.batch_size), "outputs": outputs, "settings": _SETTINGS[case.engine](order)}


def _inputs(specs: list[TensorSpec], batch: int) -> list[dict[str, Any]]:
    return [
        {"name": spec.name, "shape": [batch if size == BATCH else size for size in spec.shape], "dtype": spec.dtype}
        for spec in specs
    ]


def _copy_graph(onnx: Path, folder: Path) -> None:
    """The file, and beside it whatever it keeps in other files."""
    shutil.copyfile(onnx, folder / "model.onnx")
    for location in sorted(set(external_locations(onnx).values())):
        target = folder / location
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(onnx.parent / location, target)


def _write_program(order: FilesOrder, specs: list[TensorSpec]) -> None:
    """model.pt2, which torch alone loads, for the batch size of the case; the weights besides, for other uses."""
    import torch
    from safetensors.torch import save_model

    from engines.pytorch.eager import DTYPES
    from exporters.build_model import restore

    case = order.case
    dtype = DTYPES[case.precision]
    model = restore(case.source, cached_state(case.source, Cache(order.cache))).to(dtype)
    tensors = [torch.from_numpy(array) for array in seeded_inputs(specs, case.batch_size)]
    example = tuple(tensor.to(dtype) if tensor.is_floating_point() else tensor for tensor in tensors)
    try:
        with quiet(), torch.no_grad():
            torch.export.save(torch.export.export(model, example), order.folder / "model.pt2")
    except Exception as error:
        cause = " ".join(str(error).split())[:400]
        raise ModelError(
            f"model {case.model!r}: torch.export cannot take it ({type(error).__name__}: {cause}), so no program "
            "can be written that runs without its source"
        ) from error
    weights = order.folder / "weights.safetensors"
    save_model(model, str(weights))
    weights.chmod(0o644)  # It is made for its owner's eyes alone.


def _job(order: FilesOrder) -> Job:
    case = order.case
    return Job(
        case.source, case.pass_, case.precision, case.batch_size, case.device, case.options, (), onnx=order.onnx,
        engine=case.engine,
    )  # fmt: skip


def _ort_settings(order: FilesOrder) -> dict[str, Any]:
    from engines.onnx_runtime.session import cuda_settings, session_entries, symbol_sizes

    job = _job(order)
    cuda = [["CUDAExecutionProvider", {"device_id": "0", **cuda_settings(job)}]] if job.device == "cuda" else []
    return {
        "providers": [*cuda, ["CPUExecutionProvider", {}]],
        "threads": int(job.options.get("threads", 0)),
        "optimize": bool(job.options.get("optimize", True)),
        "session": session_entries(job.precision, job.device),
        "dimensions": symbol_sizes(job),
    }


def _openvino_settings(order: FilesOrder) -> dict[str, Any]:
    from engines.openvino_cpu import cpu_properties

    return cpu_properties(_job(order))


def _trt_settings(order: FilesOrder) -> dict[str, Any]:
    from engines.tensorrt_engines.session import library

    return {"module": library(order.case.engine).__name__}


_SETTINGS: dict[str, Callable[[FilesOrder], dict[str, Any]]] = {
    "ort": _ort_settings,
    "openvino": _openvino_settings,
    "trt": _trt_settings,
    "trt-rtx": _trt_settings,
}
