"""Evaluate a float32 graph in double precision, for references on which runtimes in fp32 do not agree."""

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
"""Largest file that is evaluated: in doubles its weights take twice as much."""


def evaluate(
    path: Path, feeds: Mapping[str, NDArray[Any]], seconds: float, double: bool = True
) -> dict[str, NDArray[Any]] | None:
    """Return the outputs by name, computed by onnx's reference evaluator in float64, or as the file says.

    None if that takes longer than `seconds`, if the evaluator lacks an operator, and for a file that is large or not
    float32 throughout.
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


@contextlib.contextmanager
def _limit(seconds: float) -> Iterator[None]:
    """Raise TimeoutError after `seconds`. Only a main thread can be interrupted."""
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
    """Make every float32 of the model a float64: tensors, declared types, and what casts and constants ask for."""
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
