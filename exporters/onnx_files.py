"""Make the graphs of other precisions of a model that comes as an .onnx file, and check the files that a job names."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from exporters.cache import Cache, check_room, code_of
from exporters.inputs import BATCH, TensorSpec, graph_specs, read_onnx
from exporters.onnx_export import Export, check_onnx, export_onnx, note
from exporters.packages import versions
from exporters.sound_graph import check_sound, every_node, graphs_in, loops
from exporters.source import ModelError, ModelSource, digest
from exporters.weights import external_tensors, graph_files, identified, source_key, tensors

MADE = ("fp32", "tf32", "fp16", "int8")
"""At which precisions a float32 file runs; of any other there is no converter."""
_INTEGER_OPERATORS = ("QLinear", "Quantize", "Dequantize", "DynamicQuantize", "ConvInteger", "MatMulInteger", "QGemm")
_FLOAT = 1  # onnx.TensorProto.FLOAT
_PART_BYTES = 2**26


def precisions_of(source: ModelSource, requested: Sequence[str]) -> list[str]:
    """At which precisions a model is measured: as requested, and where it has a file of its own. An .onnx file that is
    not float32 throughout, or cannot be read, has one, `native`."""
    as_it_is = source.onnx is not None and not is_float32(source.onnx)
    own = ["native"] if as_it_is else list(requested)
    return [*own, *(precision for precision in source.graphs if precision not in ("fp32", *own))]


def not_made(source: ModelSource, precision: str) -> str | None:
    """Why there is no graph of that precision of a model with a graph of its own; None if there is, or will be."""
    if source.own_graph is None or precision in (*MADE, "native", *source.graphs):
        return None
    return f"of an .onnx file no {precision} graph can be made; give one: variants: {{{precision}: FILE}}"


def is_float32(path: Path) -> bool:
    """Whether all floats of an .onnx file are float32 and nothing is quantized; False of a file that cannot be read."""
    return _looked_at(path)[0]


def loops_of(source: ModelSource) -> tuple[str, ...]:
    """The names of the loops in a user's graph, of which nobody can know before whether they end."""
    return () if source.onnx is None else _looked_at(source.onnx)[1]


def _looked_at(path: Path) -> tuple[bool, tuple[str, ...]]:
    """What `is_float32` and `loops_of` say of a file; of one that cannot be read whoever prepares it says why."""
    try:
        return _look(path, path.stat().st_mtime_ns)
    except (OSError, ModelError):
        return False, ()


@lru_cache(maxsize=64)
def _look(path: Path, changed: int) -> tuple[bool, tuple[str, ...]]:
    from onnx import TensorProto

    model = read_onnx(path)
    graphs = graphs_in(model)
    types = {value.type.tensor_type.elem_type for value in (*model.graph.input, *model.graph.output)}
    # A single double is a constant that PyTorch's exporter leaves; it makes no double model.
    held = [t for graph in graphs for t in tensors(graph)]
    types |= {t.data_type for t in held if t.data_type != TensorProto.DOUBLE or len(t.dims)}
    # One that is not UTF-8 is bytes.
    nodes = [node for graph in graphs for node in every_node(graph) if isinstance(node.op_type, str)]
    casts = {a.i for node in nodes if node.op_type == "Cast" for a in node.attribute if a.name == "to"}
    types |= casts - {TensorProto.DOUBLE}
    exact = {getattr(TensorProto, name) for name in ("FLOAT", "INT64", "INT32", "BOOL", "STRING", "UNDEFINED")}
    exact |= {TensorProto.UINT8}  # An image's bytes.
    quantized = any(node.op_type.startswith(_INTEGER_OPERATORS) for node in nodes)
    looping = tuple(loop.name for graph in graphs for loop in loops(graph))
    return _FLOAT in types and types <= exact and not quantized, looping


def fp32_graph(source: ModelSource, cache: Cache) -> Export:
    """The model's graph at fp32: the file that the job names, else an export. Raises ModelError."""
    if source.own_graph is None:
        return export_onnx(source, "fp32", cache)
    check_onnx(source.own_graph)
    return Export(source.own_graph)


def to_fp16(source: ModelSource, cache: Cache) -> Export:
    """The model's own graph in half precision, inputs and outputs too, by ONNX Runtime's converter, once for all runs.

    Operators that the converter's list says must stay float32 do, between casts; `Export.kept` names them. Raises
    ModelError for a graph that cannot be converted.
    """
    source = identified(source)
    assert source.own_graph is not None, "an export is made in its precision"
    graph = source.own_graph
    code = code_of("onnx_files.py"), versions("onnx", "onnxruntime", "onnxruntime-gpu")
    key = digest(["fp16", source_key(source), code])

    def produce(path: Path) -> None:
        check_room(path, sum(file.stat().st_size for file in graph_files(graph).values()) / 2)
        start = time.perf_counter()
        kept = _write_fp16(source, graph, path)
        note(path, time.perf_counter() - start, "the file, converted by ONNX Runtime", kept)

    return Export.read(*cache.entry("onnx", key, ".onnx", produce))


def _write_fp16(source: ModelSource, graph: Path, path: Path) -> str:
    """Convert and check the file; returns the operators that stay float32, like "Resize (2×), TopK (1×)"."""
    import onnx
    import onnx_ir as ir
    from onnxruntime.transformers.float16 import DEFAULT_OP_BLOCK_LIST, convert_float_to_float16

    mend = "convert it yourself and give the file: variants: {fp16: FILE}"
    with source.failing(f"converting {graph.name} to fp16", mend):
        external_tensors(graph)  # Refuses data elsewhere on the disk, which would be copied.
        check_sound(read_onnx(graph), graph)
        # Data in other files stay there: what is passed in memory has protobuf's limit of 2 GiB.
        inferred = onnx.shape_inference.infer_shapes(read_onnx(graph))
        kept = _blocked(inferred, DEFAULT_OP_BLOCK_LIST)
        places = _without_data(inferred)
        # The converter appends its casts at the end (onnxruntime 1.31).
        sorted_ = ir.from_proto(convert_float_to_float16(inferred, disable_shape_infer=True))
        sorted_.graph.sort()
        model = ir.to_proto(sorted_)
        _move_data(model, places, graph.parent, path)
        onnx.save(model, path)
        onnx.checker.check_model(str(path), full_check=True)
    return kept


def _without_data(model: Any) -> dict[str, Any]:
    """Empty the tensors whose data lie in other files, which the converter would read only to learn their shapes;
    returns copies of them by name."""
    outside = {tensor.name: type(tensor).FromString(tensor.SerializeToString()) for tensor in _outside(model)}
    for tensor in _outside(model):
        tensor.dims[:] = [0]
        tensor.ClearField("data_location")
        tensor.ClearField("external_data")
    return outside


def _outside(model: Any) -> list[Any]:
    return [tensor for tensor in tensors(model.graph) if tensor.external_data]


def _move_data(model: Any, outside: Mapping[str, Any], folder: Path, path: Path) -> None:
    """Copy the data of the tensors `outside` from files in `folder` into one next to `path`, a part at a time; in half
    precision where the model's tensor is now, by ONNX Runtime's own rule for what fp16 cannot hold."""
    from onnxruntime.transformers.float16 import convert_np_to_float16

    if not outside:
        return
    emptied = [v for v in model.graph.value_info if [d.dim_value for d in v.type.tensor_type.shape.dim] == [0]]
    for value in emptied:
        model.graph.value_info.remove(value)  # The shape of an emptied tensor, or of a cast of one.
    data_path = path.with_name(f"{path.name}.data")
    with data_path.open("wb") as target:
        for tensor in (each for each in tensors(model.graph) if each.name in outside):
            before = outside[tensor.name]
            entries = {entry.key: entry.value for entry in before.external_data}
            file = folder / entries["location"]
            # Of no values the file may be empty, and such a file cannot be mapped.
            stored = np.memmap(file, np.uint8, "r") if file.stat().st_size else np.zeros(0, np.uint8)
            stored = stored[int(entries.get("offset", 0)) :]
            stored = stored[: int(entries.get("length", stored.size))]
            start = target.tell()
            for place in range(0, stored.size, _PART_BYTES):
                part = stored[place : place + _PART_BYTES]
                halved = tensor.data_type != before.data_type
                target.write(np.asarray(convert_np_to_float16(part.view(np.float32)) if halved else part).data)
            tensor.dims[:] = before.dims
            tensor.data_location = before.data_location
            for key, value in (("location", data_path.name), ("offset", start), ("length", target.tell() - start)):
                tensor.external_data.add(key=key, value=str(value))


def _blocked(model: Any, operators: Sequence[str]) -> str:
    """The nodes with floats among those operators, counted."""
    values = (*model.graph.input, *model.graph.value_info, *model.graph.output)
    floats = {value.name for value in values if value.type.tensor_type.elem_type == _FLOAT}
    floats |= {tensor.name for tensor in model.graph.initializer if tensor.data_type == _FLOAT}
    found = Counter(
        node.op_type for node in model.graph.node if node.op_type in operators and floats & {*node.input, *node.output}
    )
    return ", ".join(f"{operator} ({count}×)" for operator, count in sorted(found.items()))


def refused_graphs(source: ModelSource, specs: Sequence[TensorSpec]) -> Mapping[str, str]:
    """By precision why a file of `source.graphs` cannot stand for the model whose inputs are `specs`."""
    reasons = {}
    for precision, path in source.graphs.items():
        try:
            check_onnx(path)
            theirs = {spec.name: spec for spec in graph_specs(source, path)}
            names = [spec.name for spec in specs]
            # By name where they are called so, else in their own order.
            if why := _unlike([theirs[n] for n in (names if set(theirs) == set(names) else theirs)], specs):
                reasons[precision] = f"model {source.name!r}: {path.name} at {precision}: {why}"
        except ModelError as error:
            reasons[precision] = str(error)
    return reasons


def _unlike(theirs: Sequence[TensorSpec], specs: Sequence[TensorSpec]) -> str | None:
    if len(theirs) != len(specs):
        return f"it has {len(theirs)} inputs, and the model {len(specs)}; export it again with the same"
    for its, own in zip(theirs, specs, strict=True):
        same = len(its.shape) == len(own.shape) and all(
            a == b or BATCH in (a, b) for a, b in zip(its.shape, own.shape, strict=True)
        )
        if not same:
            shapes = [str(list(spec.shape)).replace("'", "") for spec in (its, own)]
            return f"its input {its.name} has the shape {shapes[0]}, and the model's {own.name} {shapes[1]}"
    return None
