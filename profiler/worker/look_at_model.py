"""Look at a model without running it: what `--dry-run` finds out before anything is prepared."""

from __future__ import annotations

import contextlib
import inspect
import warnings
from collections.abc import Sequence

import torch
from torch import nn

from exporters.build_model import build, call_factory, fill, structure
from exporters.inputs import TensorSpec, arguments, described, input_specs, read_onnx
from exporters.int8 import calibration_files
from exporters.qdq_placement import PLACEMENTS
from exporters.shapes import dimensions_of
from exporters.source import ModelError, ModelSource
from profiler.processes.messages import Outcome, Report
from profiler.tables.numbers import count
from profiler.worker.prepare_model import check_source, refusals
from profiler.worker.reference_outputs import no_reference
from profiler.worker.task import Look, Prepared


def look_at_model(argument: tuple[ModelSource, bool], report: Report) -> Look:
    """The model's inputs, and what keeps it from being prepared as far as that shows without running it.

    A torch model is made on the meta device, where its weights take neither memory nor time, or as the run makes it
    where its code does not work there; the keys of a weights file are compared with its own. Of an ONNX file the header
    is read. The second argument says whether it is to be quantized, for which calibration data are looked at.

    Raises what preparing the model would raise for it: exporters.source.ModelError, engines.base.Unsupported.
    """
    source, quantized = argument
    check_source(source)
    specs = tuple(input_specs(source))
    failures = refusals(source, specs)
    if quantized and source.calibration is not None:
        try:
            calibration_files(source.calibration, specs)
        except ModelError as error:
            failures |= dict.fromkeys(PLACEMENTS, Outcome("failed", str(error)))
    seen = _open_header(source) if source.onnx is not None else _look_at_module(source, specs)
    return Look(Prepared(specs, failures=failures), f"{seen}; {described(specs)}")


def look_at_dimensions(source: ModelSource, report: Report) -> list[str]:
    """The names of sizes in the inputs of a library's model. Raises exporters.source.ModelError."""
    return dimensions_of(source)


def _look_at_module(source: ModelSource, specs: Sequence[TensorSpec]) -> str:
    model, how = _module(source)
    _check_signature(model, source, specs)
    size = count(sum(parameter.numel() for parameter in model.parameters()))
    seen = f"{how}, {size} parameters, forward has a place for each input"
    if source.weights is None:
        return seen
    with warnings.catch_warnings():  # Nothing is copied to the meta device, which torch warns of.
        warnings.simplefilter("ignore")
        fill(model, source)
    return f"{seen}, the keys of {source.weights.name} fit"


def _check_signature(model: nn.Module, source: ModelSource, specs: Sequence[TensorSpec]) -> None:
    """Raises ModelError where forward has no place for an input, or needs one that is not given."""
    if model._forward_pre_hooks:  # They may give it others.
        return
    try:
        signature = inspect.signature(model.forward)
    except (TypeError, ValueError):  # Of compiled code it may not be known.
        return
    positional, keywords = arguments(specs, [None] * len(specs))
    try:
        signature.bind(*positional, **keywords)
    except TypeError as error:
        wrong = TypeError(f"{type(model).__qualname__}.forward() {error}")
        raise no_reference(source, wrong, specs, list(signature.parameters)) from error


def _module(source: ModelSource) -> tuple[nn.Module, str]:
    """The network, and how it was made."""
    if source.factory is None:
        with torch.device("meta"):
            return structure(source), "the network"
    maker = "its library" if source.library else "its factory"
    with contextlib.suppress(ModelError), torch.device("meta"):
        return call_factory(source), f"{maker} was called, without memory for weights"
    # Its code may only need values, which there are none of on that device.
    return build(source), f"{maker} was called"


def _open_header(source: ModelSource) -> str:
    """The file's versions; a graph of these that does nothing is opened in the runtime that makes the reference."""
    import onnx
    import onnxruntime

    assert source.onnx is not None
    theirs = read_onnx(source.onnx)
    x, y = (onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [1]) for name in "xy")
    graph = onnx.helper.make_graph([onnx.helper.make_node("Identity", ["x"], ["y"])], "nothing", [x], [y])
    twin = onnx.helper.make_model(graph, opset_imports=theirs.opset_import, ir_version=theirs.ir_version)
    try:
        onnxruntime.InferenceSession(twin.SerializeToString(), providers=["CPUExecutionProvider"])
    except Exception as error:
        raise no_reference(source, error) from error
    opsets = [f"{each.domain or 'ai.onnx'} {each.version}" for each in theirs.opset_import]
    return f"its header was read: opset {', '.join(opsets)}"
