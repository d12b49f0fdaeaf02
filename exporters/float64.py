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
    from onnx import TensorProto
    from onnx.helper import make_node, make_tensor

    if not is_float32(path) or path.stat().st_size > _MOST_BYTES or len(graph_files(path)) > 1:
        return path
    model = onnx.load(path)
    graphs = list(every_graph(model.graph))
    casts = (a.i for graph in graphs for node in graph.node if node.op_type == "Cast" for a in node.attribute)
    sigmoids = [
        [place for place, node in enumerate(graph.node) if node.op_type == "Sigmoid" and not node.domain]
        for graph in graphs
    ]
    if not any(sigmoids) or TensorProto.DOUBLE in casts:  # A sigmoid may take doubles.
        return path
    for graph, places in zip(graphs, sigmoids, strict=True):
        for place in reversed(places):
            node = graph.node[place]
            minus, power, unit, total = (f"{node.output[0]} {word}" for word in ("minus", "power", "1", "total"))
            parts = [
                make_node("Neg", node.input, [minus]),
                make_node("Exp", [minus], [power]),
                make_node("Constant", [], [unit], value=make_tensor(unit, TensorProto.FLOAT, [], [1.0])),
                make_node("Add", [power, unit], [total]),
                make_node("Reciprocal", [total], node.output),
            ]
            del graph.node[place]
            for number, part in enumerate(parts):
                graph.node.insert(place + number, part)
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
