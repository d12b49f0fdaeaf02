"""Damaged .onnx files, and files whose data lie elsewhere, and how each ends.

`GRAPHS` has by name who writes the file into a folder, returning its path, the status, and a pattern of the sentence
that its row gets.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper

Maker = Callable[[Path], Path]


def model(nodes: Sequence[Any], initializers: Sequence[Any] = (), kind: int = TensorProto.FLOAT) -> Any:
    x, y = (helper.make_tensor_value_info(n, kind, own) for n, own in (("x", ["batch", 4]), ("y", [None, None])))
    graph = helper.make_graph(list(nodes), "g", [x], [y], list(initializers))
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)


def good() -> Any:
    weight = onnx.numpy_helper.from_array(np.eye(4, dtype=np.float32), "w")
    return model([helper.make_node("MatMul", ["x", "w"], ["y"])], [weight])


def written(made: Any, folder: Path) -> Path:
    path = folder / "model.onnx"
    path.write_bytes(made if isinstance(made, bytes) else made.SerializeToString())
    return path


def of(made: Callable[[], Any]) -> Maker:
    return lambda folder: written(made(), folder)


def external(*locations: str, length: str = "64") -> Any:
    made = good()
    tensor = made.graph.initializer[0]
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    for location in locations:
        tensor.external_data.add(key="location", value=location)
    if length:
        tensor.external_data.add(key="length", value=length)
    return made


def linked(folder: Path) -> Path:
    (folder / "w.bin").symlink_to("/etc/passwd")
    return written(external("w.bin"), folder)


def circular(folder: Path) -> Path:
    (folder / "w.bin").symlink_to("w.bin")
    return written(external("w.bin"), folder)


def said_twice(folder: Path) -> Path:
    """The first place is harmless, and the last one counts."""
    (folder / "w.bin").write_bytes(bytes(64))
    return written(external("w.bin", "../../../../../../etc/passwd"), folder)


def past_the_end(folder: Path) -> Path:
    (folder / "w.bin").write_bytes(bytes(8))
    return written(external("w.bin"), folder)


def cut_off_without_length(folder: Path) -> Path:
    """PyTorch's first exporter writes a file for each large weight, and no length."""
    (folder / "w.bin").write_bytes(bytes(8))
    return written(external("w.bin", length=""), folder)


def a_pipe(folder: Path) -> Path:
    os.mkfifo(folder / "w.bin")
    return written(external("w.bin"), folder)


def weight_of(*dims: int) -> Any:
    made = good()
    made.graph.initializer[0].dims[:] = dims
    return made


def texts() -> Any:
    return model([helper.make_node("Identity", ["x"], ["y"])], kind=TensorProto.STRING)


def later_type() -> Any:
    return model([helper.make_node("Relu", ["x"], ["y"])], kind=77)


def without_outputs() -> Any:
    made = good()
    made.graph.ClearField("output")
    return made


def too_large(folder: Path) -> Path:
    path = written(good(), folder)
    with path.open("r+b") as file:
        file.truncate(3 * 2**30)  # Takes no room: it is a hole.
    return path


_OUTSIDE = r"keeps its data at '.+', outside the model's folder"
_TRUNCATED = "no ONNX model, or a truncated one"
GRAPHS: dict[str, tuple[Maker, str, str]] = {
    "good": (of(good), "ok", ""),
    "data above": (of(lambda: external("../../../../../etc/passwd")), "failed", _OUTSIDE),
    "data in a device": (of(lambda: external("/dev/zero")), "failed", _OUTSIDE),
    "data behind a link": (linked, "failed", _OUTSIDE),
    "data behind a circle of links": (
        circular,
        "failed",
        "'w' (has no place for its data|keeps its data in 'w.bin', which is missing)",
    ),
    "data at two places": (said_twice, "failed", _OUTSIDE),
    "data at a NUL": (of(lambda: external("a\0b")), "failed", "embedded null byte"),
    "data in a pipe": (a_pipe, "failed", "keeps its data in 'w.bin', which is missing"),
    "data nowhere": (of(lambda: external("nowhere.bin")), "failed", "in 'nowhere.bin', which is missing"),
    "data past the end": (
        past_the_end,
        "failed",
        "byte 64, and that file has 8: truncated; copy or save it again",
    ),
    "data cut off, without a length": (
        cut_off_without_length,
        "failed",
        "byte 64, and that file has 8: truncated; copy or save it again",
    ),
    "a weight with too few bytes": (of(lambda: weight_of(5, 5)), "failed", "onnx.checker refuses it .*too small"),
    "texts": (of(texts), "failed", "input 'x' is not a tensor of numbers"),
    "numbers of a later type": (of(later_type), "failed", "input 'x' is not a tensor of numbers"),
    "no outputs": (of(without_outputs), "failed", _TRUNCATED),
    "larger than protobuf's limit": (too_large, "failed", "larger than protobuf's limit of 2 GiB"),
    "cut off": (of(lambda: good().SerializeToString()[:-30]), "failed", _TRUNCATED),
    "empty": (of(lambda: b""), "failed", _TRUNCATED),
    "garbage": (of(lambda: b"\0garbage" * 100), "failed", _TRUNCATED),
    "a program": (of(Path("/bin/sh").read_bytes), "failed", _TRUNCATED),
}
