"""Count the FLOPs of one item of a model, and the weights that it reads; torch and onnx are imported inside functions.

Convolutions and matrix products count two FLOPs a multiply-add; everything else counts 0, like the roofline and the
published counts (MAC counts, doubled). A model's ONNX graph is counted if there is one: the exporter drops work that
reaches no output, and engines skip it, too. torch's counter handles training, and modules without a graph. The counts
are minima: a row that beats them is refused.
"""

from __future__ import annotations

import contextlib
import json
import math
import re
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from exporters.cache import Cache, code_of
from exporters.errors import sentence
from exporters.inputs import fixed_batch, seeded_inputs
from exporters.onnx_files import every_graph, graph_inputs, graphs_of, is_float32, read_onnx, without_unread
from exporters.packages import versions
from exporters.source import ModelSource, TensorSpec, digest
from exporters.weights import checked, code, identified, source_key

if TYPE_CHECKING:
    import numpy as np
    from onnx import GraphProto, ModelProto, NodeProto
    from torch import nn

    from exporters.tape import Storage

Counted = dict[str, Any]
"""Fields of a Cost."""
Shapes = dict[str, tuple[int, ...]]
"""Shapes by tensor; 0 is an unknown size."""
_ITEMS = 2
"""Items of a counted batch: batch normalization refuses one in training."""
_COMPUTES = re.compile("Conv|Gemm|MatMul|Attention|Einsum|LSTM|GRU|RNN|MoE|Search|EPContext")
"""Parts of the names of operators that multiply matrices, including ONNX Runtime's own."""
_DOMAINS = ("", "ai.onnx", "ai.onnx.ml", "com.microsoft")
"""Domains whose operators the pattern covers; operators of others may do anything."""
_LOOKUPS = re.compile("Embed|Gather|GridSample|Scatter|Slice|Resize|RoiAlign")
"""Parts of the names of ONNX's and ONNX Runtime's operators that may read few elements of a tensor."""
_VIEWS = (
    *("Cast", "DequantizeLinear", "Expand", "Flatten", "Identity"),
    *("QuantizeLinear", "Reshape", "Split", "Squeeze", "Transpose", "Unsqueeze"),
)
"""ONNX operators that read as much of their first input as is read of their outputs, or that engines fold into it."""
_SMALL = 1024
"""Elements of the largest initializer whose values shape inference may need: shapes, axes, paddings."""


@dataclass(frozen=True)
class Cost:
    """Least work of one item; None if unknown. An inference reads all weights, but few rows of embedding tables."""

    inference: int | None = None
    training: int | None = None
    """Forward and backward pass; with the gradient of the input for a layer, and for a network that computes it."""
    float_weights: int | None = None
    """Elements in the precision's type."""
    other_weight_bytes: int | None = None
    """Weights in a fixed type: integers, and everything in a user's ONNX file that keeps its types."""
    moved: tuple[str, ...] = ()
    """Inputs that an operator reads whole, and outputs that are no views of weights, inputs or other outputs."""

    def flops(self, pass_: str) -> int | None:
        """Return the FLOPs of one item in that pass."""
        return self.training if pass_ == "training" else self.inference

    def weight_bytes(self, bits: int) -> int | None:
        """Return the bytes of weights that a call reads at a precision's bits; AMP holds weights in 32."""
        if self.float_weights is None or self.other_weight_bytes is None:
            return None
        return self.float_weights * bits // 8 + self.other_weight_bytes


def cached_cost(
    source: ModelSource,
    specs: Sequence[TensorSpec],
    cache: Cache,
    graph: Path | None = None,
    trains: bool = False,
    of_input: bool = False,
    frozen: Sequence[str] = (),
    head: str = "cross-entropy",
) -> Cost:
    """Count the passes; leave out one that cannot be counted.

    The training pass starts from the loss of that `head`, and with `of_input` computes also a network's input gradient.
    """
    source, counted = identified(source), Counted()

    def add(name: str, extra_key: object, count: Callable[[], Counted]) -> None:
        files = code_of("flops.py", "inputs.py", "tape.py")
        key = digest([source_key(source), files, versions("torch", "onnx"), name, extra_key])
        produce = checked(source, lambda path: path.write_text(json.dumps(count())))
        try:
            counted.update(json.loads(cache.entry("cost", key, ".json", produce)[0].read_text()))
        except Exception as error:
            print(f"model {source.name!r}: {name} not counted: {sentence(error)}", file=sys.stderr)

    add("inference", graph and graph.name, lambda: _inference(source, specs, source.onnx or graph))
    if trains and source.onnx is None:
        wrt_input = of_input or source.layer is not None
        count = partial(_count_module, source, specs, "training", wrt_input, frozen, head)
        loss = [head, code([head.partition(":")[0]]) if ":" in head else None, code_of("losses.py", "calls.py")]
        add("training", [source.outputs, wrt_input, frozen, loss], count)
    return Cost(**counted | {"moved": tuple(counted.get("moved", ()))})


def _inference(source: ModelSource, specs: Sequence[TensorSpec], graph: Path | None) -> Counted:
    if graph is not None:
        try:
            return _count_graph(graph, specs, keeps_types=source.onnx is not None and not is_float32(graph))
        except ValueError as error:
            if source.onnx is not None:
                raise
            print(f"model {source.name!r}: its graph cannot be counted: {error}", file=sys.stderr)
    return _count_module(source, specs)


def _count_module(
    source: ModelSource,
    specs: Sequence[TensorSpec],
    pass_: str = "inference",
    wrt_input: bool = False,
    frozen: Sequence[str] = (),
    head: str = "cross-entropy",
) -> Counted:
    """Count the eager module on the meta device, which computes only shapes, else on the CPU."""
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.utils.flop_counter import FlopCounterMode

    from exporters.build_model import build, empty
    from exporters.calls import call, freeze, named_outputs
    from exporters.losses import Objective
    from exporters.tape import Tape, moved, storages, weights_read

    trains = pass_ == "training"

    def needed(model: nn.Module, device: str, built: dict[str, Storage], batch: int) -> tuple[int, Counted]:
        arrays = [torch.from_numpy(array).to(device) for array in seeded_inputs(specs, batch)]
        items = [item.requires_grad_(wrt_input and item.is_floating_point()) for item in arrays]
        counter = FlopCounterMode(display=False, custom_mapping={torch.ops.aten.convolution_backward: _backward_flops})
        tape = Tape(counter)
        # Attention and LSTMs run in parts; torch would take one kernel for either.
        parts = torch.backends.mkldnn.flags(enabled=False), sdpa_kernel(SDPBackend.MATH)
        with warnings.catch_warnings(), parts[0], parts[1], counter, tape:
            warnings.simplefilter("ignore")  # mkldnn warns of Intel's GPUs.
            result = call(model.train(trains), specs, items)
            if trains:
                root, gradient = Objective(head, source.outputs, [spec.name for spec in specs]).start(result, items)
                model.zero_grad()
                root.backward(gradient)
        buffers = list(model.buffers())  # A step may update them by products.
        if trains:
            return tape.needed([root, *(x.grad for x in (*model.parameters(), *items)), *buffers])[0], {}
        inputs, outputs = dict(zip((spec.name for spec in specs), items, strict=True)), named_outputs(result)
        flops, read = tape.needed([*outputs.values(), *buffers])
        return flops, weights_read(model, built, read) | {"moved": moved(model, inputs, outputs, read)}

    def count(model: nn.Module, device: str, built: dict[str, Storage]) -> Counted:
        freeze(model, frozen)
        passes = list[tuple[int, Counted]]()

        def flops(batch: int) -> int:
            passes.append(needed(model, device, built, batch))
            return passes[-1][0]

        return {pass_: _of_one_item(flops, specs)} | passes[0][1]

    try:
        model = build(source) if source.factory else empty(source)
        built = storages(model)
        return count(model.to("meta"), "meta", built)
    except Exception as error:
        print(f"model {source.name!r}: not counted on the meta device: {error!r}", file=sys.stderr)
    return count(model := build(source), "cpu", storages(model))


def _of_one_item(flops: Callable[[int], int], specs: Sequence[TensorSpec]) -> int:
    """Return the least FLOPs that an item adds to a batch, which may share work, such as a product of weights."""
    if fixed := fixed_batch(specs):
        return flops(fixed) // fixed
    counted = added = flops(_ITEMS)
    with contextlib.suppress(Exception):  # It may run only at one size.
        added = flops(2 * _ITEMS) - counted
    return max(min(counted, added), 0) // _ITEMS


def _backward_flops(
    gradient: Sequence[int], x: Sequence[int], weight: Sequence[int], *others: Any, out_shape: Any = None, **_: Any
) -> int:
    """Count a convolution's gradients from its arguments' shapes; each costs the FLOPs of the forward pass.

    torch 2.13 counts the weights' gradient of a grouped convolution like one group's, AlexNet's twice too high
    (https://github.com/pytorch/pytorch/pull/183405).
    """
    transposed, output_mask = others[4], others[7]
    positions = math.prod((x if transposed else gradient)[2:])
    return 2 * x[0] * positions * math.prod(weight) * sum(map(bool, output_mask[:2]))


def _count_graph(path: Path, specs: Sequence[TensorSpec], keeps_types: bool) -> Counted:
    """Count an ONNX graph from its shapes. Its floats take the row's precision, unless it `keeps_types`."""
    from onnx import ModelProto
    from onnx.inliner import inline_local_functions

    model = read_onnx(path)
    for tensor in model.graph.initializer:  # Shape inference copies the model and needs no values.
        if math.prod(tensor.dims) > _SMALL:
            for name in ("raw_data", "float_data", "int32_data", "int64_data", "double_data", "uint64_data"):
                tensor.ClearField(name)
    model = inline_local_functions(model) if model.functions else model
    model = without_unread(model)

    def flops(batch: int) -> int:
        (sized := ModelProto()).CopyFrom(model)
        nodes, shapes = _sized(sized, specs, batch)
        return sum(node_flops(node, shapes) for node in nodes if constants.isdisjoint(node.output))

    constants = _constants(model.graph)
    weights = graph_weights(model, constants)
    others = {dtype: elements for dtype, elements in weights.items() if keeps_types or dtype.kind in "biu"}
    return {
        "inference": _of_one_item(flops, specs),
        "float_weights": weights.total() - sum(others.values()),
        "other_weight_bytes": sum(dtype.itemsize * elements for dtype, elements in others.items()),
        "moved": _moved(model.graph),
    }


def _moved(graph: GraphProto) -> list[str]:
    """Name the inputs that a node reads whole, and the outputs that are no views of something else that is held."""
    read, inputs = _read_whole(graph), [value.name for value in graph_inputs(graph)]
    bases = {"", *inputs, *(tensor.name for tensor in graph.initializer)}
    origins = dict[str, str]()
    for node in graph.node:
        if node.op_type == "Expand" or not node.input:
            origins |= dict.fromkeys(node.output, "")
        elif node.op_type in _VIEWS or _LOOKUPS.search(node.op_type):
            origins |= dict.fromkeys(node.output, origins.get(node.input[0], node.input[0]))
    moved = [name for name in inputs if name in read]
    for value in graph.output:
        origin = origins.get(value.name, value.name)
        moved += [value.name] * (origin not in bases)
        bases.add(origin)
    return moved


def _read_whole(graph: GraphProto, constants: Collection[str] = ()) -> set[str]:
    """Name the tensors that a node reads, itself or through views; lookups and what computes `constants` do not."""
    read = set[str]()
    for node in reversed(graph.node):  # Readers come last.
        if node.op_type in _VIEWS:
            reads = not read.isdisjoint(node.output)
        else:
            reads = not _LOOKUPS.search(node.op_type) and not any(name in constants for name in node.output)
        read.update(node.input if reads else ())
    return read


def _constants(graph: GraphProto) -> set[str]:
    """Name the tensors that depend on no input: engines compute them once, while they load."""
    constants = {tensor.name for tensor in graph.initializer} | {""}
    for node in graph.node:
        if constants.issuperset(node.input) and not graphs_of(node):
            constants.update(node.output)
    return constants - {""}


def graph_weights(model: ModelProto, constants: Collection[str] = ()) -> Counter[np.dtype[Any]]:
    """Count by type the elements of initializers that are read whole, rather than gathered by row.

    Nodes that compute `constants` read nothing.
    """
    import onnx

    read = _read_whole(model.graph, constants)
    elements: Counter[np.dtype[Any]] = Counter()
    for tensor in model.graph.initializer:
        if tensor.name in read:
            elements[onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type)] += math.prod(tensor.dims)
    return elements


def computes(node: NodeProto) -> bool:
    """Return True if the node, or a node in its branches or loops, may multiply matrices."""
    inner = (child for graph in every_graph(*graphs_of(node)) for child in graph.node)
    return any(n.domain not in _DOMAINS or _COMPUTES.search(n.op_type) for n in (node, *inner))


def _sized(model: ModelProto, specs: Sequence[TensorSpec], batch: int) -> tuple[Sequence[NodeProto], Shapes]:
    """Return the nodes, and the tensors' inferred shapes; sizes the model's inputs."""
    import onnx

    symbols, by_name = dict[str, int](), {spec.name: spec for spec in specs}
    for value in graph_inputs(model.graph):
        for dim, size in zip(value.type.tensor_type.shape.dim, by_name[value.name].at(batch), strict=True):
            if dim.dim_param:
                symbols[dim.dim_param] = size
            dim.dim_value = size
    for value in (*model.graph.output, *model.graph.value_info):
        for dim in value.type.tensor_type.shape.dim:
            if dim.dim_param in symbols:
                dim.dim_value = symbols[dim.dim_param]
            if dim.dim_value < 0:  # Old converters write -1 for a free size.
                dim.Clear()
    graph = onnx.shape_inference.infer_shapes(model, data_prop=True).graph
    shapes = {t.name: tuple(t.dims) for t in graph.initializer}
    for value in (*graph.input, *graph.value_info, *graph.output):
        if value.type.tensor_type.HasField("shape"):  # A scalar has a shape without dimensions.
            shapes[value.name] = tuple(dim.dim_value for dim in value.type.tensor_type.shape.dim)
    return model.graph.node, shapes


def node_flops(node: NodeProto, shapes: Shapes) -> int:
    """Count two FLOPs per multiply-add of a node's products; https://onnx.ai/onnx/operators has their inputs' order.

    Raises ValueError for another operator that computes, and for unknown shapes.
    """
    if not computes(node):
        return 0
    named = f"{node.domain or 'ai.onnx'}'s {node.op_type} {node.name!r}"
    kind = node.op_type if node.domain in ("", "ai.onnx") else ""
    if kind not in ("Conv", "ConvInteger", "ConvTranspose", "Gemm", "MatMul", "MatMulInteger"):
        raise ValueError(f"cannot count {named}")
    x, weight, y = (shapes.get(tensor, (0,)) for tensor in (*node.input[:2], node.output[0]))
    if min((*x, *weight, *y), default=1) < 1:
        raise ValueError(f"the shapes of {named} are unknown")
    if kind.startswith("Conv"):  # A transposed one multiplies each input element by its channel's weights.
        return 2 * math.prod(x if kind == "ConvTranspose" else y) * math.prod(weight[1:])
    is_transposed = any(attribute.name == "transA" and attribute.i for attribute in node.attribute)
    return 2 * math.prod(y) * (x[-2] if is_transposed else x[-1])
