"""Look at a model without computing anything: what `--dry-run` finds out before anything is prepared."""

from __future__ import annotations

import contextlib
import inspect
import warnings
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import nn

from exporters.build_model import acts_as_in_training, call_factory, empty, fill, make
from exporters.calls import call
from exporters.errors import sentence
from exporters.inputs import TensorSpec, arguments, described, input_specs, read_onnx
from exporters.int8 import calibration_files
from exporters.qdq_placement import PLACEMENTS
from exporters.shapes import dimensions_of
from exporters.source import TRAINING_MODE, ModelError, ModelSource
from exporters.time_limit import limited
from profiler.processes.messages import Outcome, Report, Salvage
from profiler.tables.numbers import count
from profiler.worker.prepare_model import check_source, refusals
from profiler.worker.reference_outputs import is_of_meta, is_of_shapes, no_reference
from profiler.worker.task import Look, Prepared, usual_items

_FORWARD_SECONDS = 10.0
"""For forward without values: on a busy CPU ResNet-200 takes 2 s, a Mamba 9."""


def look_at_model(argument: tuple[ModelSource, bool], report: Report) -> Look:
    """The model's inputs, and what keeps it from being prepared as far as that shows without values.

    A torch model is made on the meta device, where its weights take neither memory nor time, or as the run makes it
    where its code does not work there; the keys of a weights file are compared with its own, and forward is called on
    that device. Of an ONNX file the header is read. The second argument says whether it is to be quantized, for which
    calibration data are looked at.

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
    prepared, inputs = Prepared(specs, failures=failures), described(specs)
    if source.onnx is not None:
        return Look(prepared, f"{_open_header(source)}; {inputs}")
    model, seen = _look_at_module(source, specs)
    look = Look(prepared, f"{seen}, but only a run shows whether it takes these shapes; {inputs}")
    report(Salvage(look))  # Compiled code may end a process that has it read a tensor without memory.
    return replace(look, seen=f"{seen}{found}; {inputs}") if (found := _run(model, source, specs)) else look


def look_at_dimensions(source: ModelSource, report: Report) -> list[str]:
    """The names of sizes in the inputs of a library's model. Raises exporters.source.ModelError."""
    return dimensions_of(source)


def _look_at_module(source: ModelSource, specs: Sequence[TensorSpec]) -> tuple[nn.Module, str]:
    """The network, and what was seen of it."""
    model, how = _module(source)
    _check_signature(model, source, specs)
    seen = f"{how}, {count(sum(parameter.numel() for parameter in model.parameters()))} parameters"
    if source.library is None and acts_as_in_training(model):
        seen += f", {TRAINING_MODE}"
    if source.weights is not None:
        with warnings.catch_warnings():  # Nothing is copied to the meta device, which torch warns of.
            warnings.simplefilter("ignore")
            fill(model, source)
        seen += f", the keys of {source.weights.name} fit"
    return model, f"{seen}, forward has a place for each input"


def _run(model: nn.Module, source: ModelSource, specs: Sequence[TensorSpec]) -> str:
    """What forward did with inputs of these shapes on the meta device, where nothing is computed; empty if unknown.

    Many do not run there for no fault of the user's: they ask for values, or make tensors on a device that they name.
    Another error may be of the model or of the device, and is quoted as what it is: seen there.
    Raises ModelError where it is a shape that does not fit.
    """
    items = usual_items(specs)
    try:
        with torch.device("meta"), torch.no_grad(), limited(_FORWARD_SECONDS):
            tensors = [torch.empty(spec.at(items), dtype=getattr(torch, spec.dtype)) for spec in specs]
            floats = [each.float() if each.is_floating_point() else each for each in tensors]
            call(model.to("meta", torch.float32).eval(), specs, floats)
    except Exception as error:
        if is_of_meta(error):
            return ""
        if is_of_shapes(error):
            raise no_reference(source, error, specs) from error
        return f", but on tensors without values it raised {sentence(error)}: a run shows whether it does with values"
    return " and takes these shapes"


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
        return empty(source), "the network"
    maker = "its library" if source.library else "its factory"
    with contextlib.suppress(ModelError), torch.device("meta"):
        return call_factory(source), f"{maker} was called, without memory for weights"
    # Its code may only need values, which there are none of on that device.
    return make(source), f"{maker} was called"


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
