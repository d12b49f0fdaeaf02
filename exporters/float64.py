"""Evaluate float32 graphs in float64, for references on which fp32 runtimes disagree."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from exporters.onnx_files import every_graph, graph_files, is_float32

if TYPE_CHECKING:
    import onnx
    from numpy.typing import NDArray

_MOST_BYTES = 2**28
"""Largest file to evaluate: in doubles its weights take twice as much."""
_SIGMOID = """<domain: "exact", opset_import: ["": {opset}]> Sigmoid (x) => (y) {{
    minus = Neg (x)  power = Exp (minus)  one = Constant <value = float {{1.0}}> ()  total = Add (power, one)
    y = Reciprocal (total)
}}"""


def evaluate(
    path: Path, feeds: Mapping[str, NDArray[Any]], seconds: float, double: bool = True
) -> dict[str, NDArray[Any]] | None:
    """Return the outputs by name from onnx's reference evaluator, in float64 or in the file's types.

    Returns None after `seconds`, for a missing operator, and for a file that is large or not float32 throughout.
    """
    import onnx
    from onnx.reference import ReferenceEvaluator

    if not is_float32(path) or sum(file.stat().st_size for file in graph_files(path).values()) > _MOST_BYTES:
        return None
    with contextlib.suppress(Exception), _limit(seconds):
        model = onnx.load(path)
        if double:
            feeds = {n: array.astype(np.float64) if array.dtype == np.float32 else array for n, array in feeds.items()}
            _double(model)
        results = ReferenceEvaluator(model).run(None, dict(feeds))
        return dict(zip((value.name for value in model.graph.output), map(np.asarray, results), strict=True))
    return None


def with_exact_sigmoids(path: Path, folder: Path) -> Path:
    """Write the graph with 1 / (1 + exp(-x)) for every sigmoid; return `path` itself if nothing changes.

    ONNX Runtime's sigmoid is off by 2e-7 however small its result, which was 10 % of a text detector's output.
    """
    import onnx

    if not is_float32(path) or path.stat().st_size > _MOST_BYTES or len(graph_files(path)) > 1:
        return path
    model = onnx.load(path)
    nodes = [node for graph in every_graph(model.graph) for node in graph.node]
    casts = (attribute.i for node in nodes if node.op_type == "Cast" for attribute in node.attribute)
    sigmoids = [node for node in nodes if node.op_type == "Sigmoid" and not node.domain]
    if not sigmoids or onnx.TensorProto.DOUBLE in casts:  # A sigmoid may take doubles.
        return path
    for node in sigmoids:
        node.domain = "exact"
    opset = next(opset.version for opset in model.opset_import if opset.domain in ("", "ai.onnx"))
    model.functions.append(onnx.parser.parse_function(_SIGMOID.format(opset=opset)))
    model.opset_import.add(domain="exact", version=1)
    model.ir_version = max(model.ir_version, 8)  # Since then files can have functions.
    onnx.save(model, folder / path.name)
    return folder / path.name


@contextlib.contextmanager
def _limit(seconds: float) -> Iterator[None]:
    """Raise TimeoutError after `seconds`, or at once outside the main thread, which alone can be interrupted."""
    if threading.current_thread() is not threading.main_thread():
        raise TimeoutError("no main thread")

    def stop(number: int, frame: object) -> None:
        raise TimeoutError(f"{seconds} s are over")

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def _double(model: onnx.ModelProto) -> None:
    """Make every float32 of the model a float64: tensors, declared types, targets of casts and constants."""
    from onnx import TensorProto, numpy_helper

    def doubled(tensor: onnx.TensorProto) -> None:
        if tensor.data_type == TensorProto.FLOAT:
            tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor).astype(np.float64), tensor.name))

    for graph in every_graph(model.graph):
        for tensor in graph.initializer:
            doubled(tensor)
        for value in (*graph.input, *graph.output, *graph.value_info):
            if value.type.tensor_type.elem_type == TensorProto.FLOAT:
                value.type.tensor_type.elem_type = TensorProto.DOUBLE
        for node in graph.node:
            for attribute in node.attribute:
                if attribute.HasField("t"):
                    doubled(attribute.t)
                if attribute.name in ("to", "dtype") and attribute.i == TensorProto.FLOAT:
                    attribute.i = TensorProto.DOUBLE
