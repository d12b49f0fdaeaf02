"""Read and check ONNX files with their external data, and list the precisions of each."""

from __future__ import annotations

import contextlib
import math
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from exporters.errors import text_of
from exporters.source import WEIGHTS, ModelError, ModelSource

if TYPE_CHECKING:
    import onnx
    import onnx_ir as ir
    from onnx.external_data_helper import ExternalDataInfo

MADE = ("fp32", "tf32", "fp16", "int8")
"""Precisions available for a float32 file."""
_POINTER = b"version https://git-lfs.github.com/spec/"
_MIB = 2**20
_LONGEST_NAME = 1000
_TOO_NEW = re.compile(r"max supported IR version: \d+|official support for domain \S+ is till opset \d+")
"""ONNX Runtime's messages about a file of a later ONNX."""
_UNSORTED = "must be topologically sorted"
"""The checker's words about nodes that come before their inputs."""
_KEEPS_INDICES = ("Cast", "Identity", "Unsqueeze", "Squeeze", "Reshape", "Where", "Add", "Mul")
"""Operators that may lie between an input and its table; Keras wraps negative indices by the last three."""
_QUANTIZED = re.compile(r"Q[A-Z]|.*([Qq]uantize|Integer|NBits|Bnb4)")
"""Operators on quantized numbers, such as QLinearConv, QAttention and MatMulNBits
(https://github.com/microsoft/onnxruntime/blob/main/docs/ContribOperators.md)."""


def read_onnx(path: Path) -> onnx.ModelProto:
    """Read the file's graph without external data. Raises ModelError for a missing file and for other formats."""
    import onnx

    if not path.is_file():
        raise ModelError(f"{path}: no such file")
    if path.stat().st_size >= 2**31:
        raise ModelError(f"{path}: larger than protobuf's limit of 2 GiB; save it with its weights in other files")
    refuse_pointer(path)
    mend = "export or copy it again"
    if path.suffix in WEIGHTS:
        mend = f"{path.name} is a PyTorch file: give it as weights, with network or factory"
    try:
        model = onnx.load(path, load_external_data=False)
    except Exception as error:  # protobuf's DecodeError has no common base with what onnx raises
        raise ModelError(f"{path}: no ONNX model, or a truncated one ({error}); {mend}") from error
    if not model.graph.output:  # protobuf reads an empty file as an empty message.
        raise ModelError(f"{path}: no ONNX model, or a truncated one (it has no outputs); {mend}")
    return model


def refuse_pointer(path: Path) -> None:
    """Raise ModelError for a Git LFS pointer."""
    with path.open("rb") as file:
        if file.read(len(_POINTER)) == _POINTER:
            raise ModelError(f"{path}: a pointer of Git LFS, not the file itself; fetch it by: git lfs pull")


def graph_inputs(graph: onnx.GraphProto) -> list[onnx.ValueInfoProto]:
    """Return the graph's inputs without initializers, which files of IR version 3 list among them."""
    initializers = {tensor.name for tensor in graph.initializer}
    return [value for value in graph.input if value.name not in initializers]


def file_inputs(path: Path) -> list[onnx.ValueInfoProto]:
    """Return the inputs of a file's graph. Raises ModelError for an unreadable file, and for inputs of other kinds."""
    from onnx import TensorProto

    inputs = graph_inputs(read_onnx(path).graph)
    names = [value.name for value in inputs]
    symbols = [dim.dim_param for value in inputs for dim in value.type.tensor_type.shape.dim]
    # protobuf returns bytes for text that is not UTF-8.
    damaged = [name for name in names + symbols if not isinstance(name, str) or len(name) > _LONGEST_NAME]
    if damaged := damaged or [name for name, count in Counter(names).items() if count > 1]:
        why = f"no text, too long or used twice ({damaged[0][:40]!r})"
        raise ModelError(f"{path}: an input's or a dimension's name is {why}: the file is damaged")
    numbers = set(TensorProto.DataType.values()) - {TensorProto.UNDEFINED, TensorProto.STRING}
    kinds = {value.name: value.type.tensor_type for value in inputs}
    if odd := [name for name, kind in kinds.items() if kind.elem_type not in numbers or not kind.HasField("shape")]:
        mend = "declare one, or cut off what takes it by onnx.utils.extract_model"
        raise ModelError(f"{path}: input {odd[0]!r} is not a tensor of numbers with a shape; {mend}")
    return inputs


def usual_range(graph: onnx.GraphProto, name: str) -> tuple[int, int]:
    """Return a safe range of an integer input, the end excluded: rows of its table, a compared number, or pixels."""
    import onnx
    from onnx.numpy_helper import to_array

    if "mask" in name.lower():
        return 1, 2
    makers = {output: node for node in graph.node for output in node.output}
    tensors = {tensor.name: tensor for tensor in graph.initializer}
    tensors |= {name: a.t for name, node in makers.items() for a in node.attribute if node.op_type == "Constant"}
    names = {name}
    for node in graph.node:  # In the order of computation.
        if not names.intersection(node.input):
            continue
        sources = [tensors[source] for source in node.input if source in tensors]
        if node.op_type in _KEEPS_INDICES:
            names.update(node.output)
        elif node.op_type == "Gather" and names.intersection(node.input[1:]):
            if maker := makers.get(node.input[0]):  # A table may be stored in fewer bits and widened first.
                sources += [tensors[source] for source in maker.input if source in tensors]
            if rows := max((tensor.dims[0] for tensor in sources if len(tensor.dims) > 1), default=0):
                return 0, rows
        elif node.op_type == "Equal" and sources and math.prod(sources[0].dims) == 1 and not sources[0].data_location:
            with contextlib.suppress(TypeError, ValueError):  # The checker reports a damaged tensor.
                number = int(to_array(sources[0]).item())
                return number, number + 1
    images = (value.name for value in graph.input if value.type.tensor_type.elem_type == onnx.TensorProto.UINT8)
    return (0, 256) if name in images else (0, 100)


def every_graph(*graphs: Any) -> Iterator[Any]:
    """Yield each GraphProto or FunctionProto, and the graphs inside its nodes."""
    waiting = list(reversed(graphs))
    while waiting:
        yield (current := waiting.pop())
        waiting += (inner for node in current.node for inner in graphs_of(node))


def graphs_of(node: Any) -> list[Any]:
    """Return the graphs in a node's attributes, such as a loop's body."""
    return [graph for attribute in node.attribute for graph in (attribute.g, *attribute.graphs) if graph.node]


def in_order(model: onnx.ModelProto) -> ir.Model:
    """Sort the nodes, as runtimes do: converters to fp16 append their casts. Raises ValueError for a cycle."""
    import onnx_ir as ir

    ordered = ir.from_proto(model)
    ordered.graph.sort()
    return ordered


def without_unread(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return the model without nodes and constants that reach no output."""
    import onnx_ir as ir
    from onnx_ir.passes.common import RemoveUnusedNodesPass

    return ir.to_proto(RemoveUnusedNodesPass()(ir.from_proto(model)).model)


def _tensors(model: onnx.ModelProto) -> Iterator[Any]:
    """Yield all tensors of a model, including sparse ones, which onnx's helper leaves out."""
    from onnx.external_data_helper import _get_all_tensors

    yield from _get_all_tensors(model)
    for graph in every_graph(model.graph, *model.functions):
        attributes = (attribute.sparse_tensor for node in graph.node for attribute in node.attribute)
        for sparse in (*getattr(graph, "sparse_initializer", ()), *attributes):
            yield from (sparse.values, sparse.indices)


def external_tensors(path: Path) -> list[tuple[onnx.TensorProto, ExternalDataInfo]]:
    """Return the tensors with data in other files of the folder. Raises ModelError for data anywhere else."""
    from onnx.external_data_helper import ExternalDataInfo, uses_external_data

    # A cache may keep the file and its data elsewhere, under links, as Hugging Face's does.
    tensors, folders = [], {path.parent.resolve(), path.resolve().parent}
    for tensor in filter(uses_external_data, _tensors(read_onnx(path))):
        try:
            place = ExternalDataInfo(tensor)
            data = (path.parent / place.location).resolve()
            data.is_file()  # Fails for a name that no file can have.
        except (OSError, ValueError, RuntimeError) as error:  # RuntimeError: links that end nowhere.
            why = f"has no place for its data ({text_of(error, 200)})"
            raise ModelError(f"{path}: tensor {tensor.name!r} {why}; save it again") from error
        if not any(data.is_relative_to(folder) for folder in folders):
            raise ModelError(
                f"{path}: tensor {tensor.name!r} keeps its data at {place.location[:200]!r}, outside the model's "
                "folder; put the data next to the model and save it again with a relative location"
            )
        tensors.append((tensor, place))
    return tensors


def graph_files(path: Path) -> dict[str, Path]:
    """Map locations to an ONNX file and its data files, present or not. Raises ModelError."""
    locations = sorted({place.location for _, place in external_tensors(path)})
    return {path.name: path, **{location: path.parent / location for location in locations}}


def check_onnx(path: Path) -> None:
    """Raise ModelError if the file or its external data is missing, truncated or foreign."""
    import onnx
    import onnx_ir as ir
    from onnx.external_data_helper import uses_external_data

    for tensor, place in external_tensors(path):
        data = path.parent / place.location
        where = f"{path}: tensor {tensor.name!r} keeps its data in {place.location!r}"
        if not data.is_file():
            raise ModelError(f"{where}, which is missing; copy it next to the model")
        end, has = (place.offset or 0) + (place.length or _least_bytes(tensor)), data.stat().st_size
        if end > has:
            raise ModelError(f"{where} up to byte {end:,}, and that file has {has:,}: truncated; copy or save it again")
    model = read_onnx(path)
    if model.ir_version > onnx.IR_VERSION:
        raise ModelError(too_new(path, f"onnx {onnx.__version__}", f"max supported IR version: {onnx.IR_VERSION}"))
    whole = (tensor for tensor in model.graph.initializer if len(tensor.raw_data) == _least_bytes(tensor) > _MIB)
    # onnx refuses links to data, which is checked above, and copies whole data twice.
    for tensor in (*filter(uses_external_data, _tensors(model)), *whole):
        for name in ("external_data", "raw_data"):
            tensor.ClearField(name)
        tensor.data_location = onnx.TensorProto.DEFAULT
        tensor.dims[:] = [0]
    imported = {"", "ai.onnx", *(entry.domain for entry in model.opset_import)}
    domains = {node.domain for graph in every_graph(model.graph) for node in graph.node} - imported
    model.opset_import.extend(onnx.helper.make_opsetid(domain, 1) for domain in domains)  # Runtimes import their own.
    for value in model.graph.output:  # Only the checker misses a type or a shape.
        value.type.CopyFrom(onnx.helper.make_tensor_type_proto(onnx.TensorProto.FLOAT, ()))
    try:
        try:
            onnx.checker.check_model(model)
        except Exception as error:
            if _UNSORTED not in str(error):
                raise
            onnx.checker.check_model(ir.to_proto(in_order(model)))
    except Exception as error:
        raise ModelError(f"{path}: onnx.checker refuses it ({text_of(error)})") from error


def _least_bytes(tensor: onnx.TensorProto) -> int:
    """Return the bytes of a tensor's data; 0 for an unknown type."""
    import onnx_ir as ir

    with contextlib.suppress(TypeError, ValueError):  # The checker reports the type.
        bits: int = math.prod(tensor.dims) * ir.DataType(tensor.data_type).bitwidth
        return bits // 8
    return 0


def too_new(path: Path, taker: str, message: str) -> str | None:
    """Say that the taker refuses a newer file, if its message has the limit."""
    limit = _TOO_NEW.search(message)
    mend = "export it again with an older opset or IR version, or lower these by onnx.version_converter and ir_version"
    return limit and f"{path} is too new for {taker} ({limit[0]}); {mend}"


def is_float32(path: Path) -> bool:
    """Return True if all floats of a file are float32 and nothing is quantized; False for an unreadable file."""
    with contextlib.suppress(Exception):  # Preparing the model reports the error.
        types = types_of(path)
        return "float" in types and types <= {"float", "int64", "int32", "uint8", "bool", "string", "undefined"}
    return False


def types_of(path: Path) -> frozenset[str]:
    """Name ONNX's types in a graph; "int8" stands for a graph that quantizes. Raises ModelError."""
    return _types_of(path, path.stat().st_mtime_ns)


@lru_cache(maxsize=64)
def _types_of(path: Path, changed: int) -> frozenset[str]:
    from onnx import TensorProto

    model = read_onnx(path)
    # PyTorch's exporter leaves single doubles.
    inner = {t.data_type for t in _tensors(model) if t.data_type != TensorProto.DOUBLE or len(t.dims)}
    nodes = [node for graph in every_graph(model.graph, *model.functions) for node in graph.node]
    casts = {a.i for node in nodes if node.op_type == "Cast" for a in node.attribute if a.name == "to"}
    ends = {value.type.tensor_type.elem_type for value in (*model.graph.input, *model.graph.output)}
    types = ends | inner | (casts - {TensorProto.DOUBLE})
    quantizes = any(_QUANTIZED.match(node.op_type) for node in nodes)
    return frozenset([TensorProto.DataType.Name(kind).lower() for kind in types] + ["int8"] * quantizes)


def precisions_of(source: ModelSource, requested: Sequence[str]) -> list[str]:
    """Return the requested precisions and the model's own; an .onnx file of other types has `native`."""
    base = ["native"] if source.onnx and not is_float32(source.onnx) else list(requested)
    return [*base, *(precision for precision in source.graphs if precision not in ("fp32", *base))]


def not_made(source: ModelSource, precision: str) -> str | None:
    """Say why a model with its own graph has none at this precision; None if it has one."""
    if source.own_graph is None or precision in (*MADE, "native", *source.graphs):
        return None
    return f"no {precision} graph can be made from an .onnx file; give one: variants: {{{precision}: FILE}}"
