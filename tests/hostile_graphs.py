"""Graphs of people who mean no good, or whose disks are damaged, and how each ends.

Every one is made in code. `GRAPHS` has by name who writes the file into a folder, returning its path, the status, and a
pattern of the sentence that its row gets.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper

HUGE = 2**62
Maker = Callable[[Path], Path]


def model(
    nodes: Sequence[Any],
    shape: Sequence[int | str] = ("batch", 4),
    initializers: Sequence[Any] = (),
    kind: int = TensorProto.FLOAT,
    functions: Sequence[Any] = (),
) -> Any:
    """An ONNX model from "x" to "y"."""
    x, y = (helper.make_tensor_value_info(n, kind, own) for n, own in (("x", shape), ("y", [None] * len(shape))))
    graph = helper.make_graph(list(nodes), "g", [x], [y], list(initializers))
    opsets = [helper.make_opsetid("", 20), helper.make_opsetid("own", 1)]
    return helper.make_model(graph, opset_imports=opsets, functions=list(functions), ir_version=9)


def good() -> Any:
    weight = onnx.numpy_helper.from_array(np.eye(4, dtype=np.float32), "w")
    return model([helper.make_node("MatMul", ["x", "w"], ["y"])], initializers=[weight])


def written(made: Any, folder: Path, name: str = "model.onnx") -> Path:
    path = folder / name
    path.write_bytes(made if isinstance(made, bytes) else made.SerializeToString())
    return path


def of(made: Callable[[], Any]) -> Maker:
    return lambda folder: written(made(), folder)


def sized(*shape: int | str) -> Maker:
    return of(lambda: model([helper.make_node("Relu", ["x"], ["y"])], shape))


def external(*locations: str, name: str = "w", length: int = 64, offset: int = 0) -> Any:
    """A model whose weight lies in another file."""
    made = good()
    tensor = made.graph.initializer[0]
    tensor.ClearField("raw_data")
    tensor.name = name
    tensor.data_location = TensorProto.EXTERNAL
    for location in locations:
        tensor.external_data.add(key="location", value=location)
    for key, value in (("offset", offset), ("length", length)):
        tensor.external_data.add(key=key, value=str(value))
    return made


def linked(folder: Path) -> Path:
    (folder / "w.bin").symlink_to("/etc/passwd")
    return written(external("w.bin"), folder)


def through_a_linked_folder(folder: Path) -> Path:
    (folder / "data").symlink_to("/etc")
    return written(external("data/passwd"), folder)


def said_twice(folder: Path) -> Path:
    """The first place is harmless, and the last one counts."""
    (folder / "w.bin").write_bytes(bytes(64))
    return written(external("w.bin", "../../../../../../etc/passwd"), folder)


def named_twice(folder: Path) -> Path:
    """Two tensors of one name, of which the second is harmless."""
    (folder / "w.bin").write_bytes(bytes(64))
    made = external("/etc/passwd", name="")
    made.graph.initializer.append(external("w.bin", name="").graph.initializer[0])
    made.graph.node[0].input[1] = "x"
    return written(made, folder)


def in_a_functions_default(folder: Path) -> Path:
    tensor = external("/etc/passwd").graph.initializer[0]
    default = helper.make_attribute("value", tensor)
    node = helper.make_node("Constant", [], ["c"])
    node.attribute.add(name="value", ref_attr_name="value", type=onnx.AttributeProto.TENSOR)
    add = helper.make_node("Add", ["a", "c"], ["b"])
    opset = [helper.make_opsetid("", 20)]
    function = helper.make_function("own", "f", ["a"], ["b"], [node, add], opset, attribute_protos=[default])
    return written(model([helper.make_node("f", ["x"], ["y"], domain="own")], functions=[function]), folder)


def past_the_end(folder: Path) -> Path:
    (folder / "w.bin").write_bytes(bytes(8))
    return written(external("w.bin"), folder)


def of_no_number(folder: Path) -> Path:
    (folder / "w.bin").write_bytes(bytes(64))
    made = external("w.bin")
    made.graph.initializer[0].external_data[1].value = "-1"
    return written(made, folder)


def a_pipe(folder: Path) -> Path:
    os.mkfifo(folder / "w.bin")
    return written(external("w.bin"), folder)


def endless(trips: int | None = None, true: bool = True) -> Any:
    """A Loop whose condition stays true, for all trips that there can be."""
    infos = {"go_on": (9, []), "b": (1, [None, 4]), "i": (7, []), "go": (9, []), "a": (1, [None, 4])}
    values = [helper.make_tensor_value_info(name, *info) for name, info in infos.items()]
    nodes = [helper.make_node("Identity", ["go"], ["go_on"]), helper.make_node("Relu", ["a"], ["b"])]
    if not true:  # What decides is computed, and true all the same.
        nodes[0] = helper.make_node("Equal", ["i", "i"], ["go_on"])
    body = helper.make_graph(nodes, "body", values[2:], values[:2])
    tensors = [onnx.numpy_helper.from_array(np.array(True), "yes")]
    if trips is not None:
        tensors.append(onnx.numpy_helper.from_array(np.array(trips, np.int64), "trips"))
    loop = helper.make_node("Loop", ["" if trips is None else "trips", "yes", "x"], ["y"], body=body, name="spin")
    return model([loop], initializers=tensors)


def bomb(depth: int = 40) -> Any:
    """Functions that each call the one before twice."""
    opset = [helper.make_opsetid("", 20), helper.make_opsetid("own", 1)]
    nodes = [helper.make_node("Relu", ["a"], ["b"])]
    functions = [helper.make_function("own", "f0", ["a"], ["b"], nodes, opset)]
    for level in range(1, depth):
        calls = [helper.make_node(f"f{level - 1}", [n], [m], domain="own") for n, m in (("a", "c"), ("c", "b"))]
        functions.append(helper.make_function("own", f"f{level}", ["a"], ["b"], calls, opset))
    return model([helper.make_node(f"f{depth - 1}", ["x"], ["y"], domain="own")], functions=functions)


def circle() -> Any:
    opset = [helper.make_opsetid("own", 1)]
    functions = [
        helper.make_function("own", name, ["a"], ["b"], [helper.make_node(other, ["a"], ["b"], domain="own")], opset)
        for name, other in (("f", "g"), ("g", "f"))
    ]
    return model([helper.make_node("f", ["x"], ["y"], domain="own")], functions=functions)


def grows(times: int) -> Any:
    """Every node doubles what it gets."""
    names = ["x", *(f"d{n}" for n in range(times - 1)), "y"]
    return model([helper.make_node("Concat", [a, a], [b], axis=1) for a, b in itertools.pairwise(names)])


def fills(size: int) -> Any:
    shape = onnx.numpy_helper.from_array(np.array([size], np.int64), "s")
    nodes = [helper.make_node("ConstantOfShape", ["s"], ["c"]), helper.make_node("ReduceSum", ["c"], ["r"], keepdims=0)]
    return model([*nodes, helper.make_node("Add", ["x", "r"], ["y"])], initializers=[shape])


def weight_of(*dims: int) -> Any:
    made = good()
    made.graph.initializer[0].dims[:] = dims
    return made


def of_a_type(kind: int) -> Any:
    return model([helper.make_node("Identity", ["x"], ["y"])], kind=kind)


def sequence() -> Any:
    made = good()
    made.graph.input[0].type.CopyFrom(helper.make_sequence_type_proto(helper.make_tensor_type_proto(1, [4])))
    return made


def long_name() -> Any:
    name = "y" * 100_000
    made = model([helper.make_node("Relu", ["x"], [name])])
    made.graph.output[0].name = name
    return made


def not_utf8(name: bytes) -> bytes:
    content: bytes = good().SerializeToString()
    return content.replace(name, name[:-1] + b"\xf9")


def too_large(folder: Path) -> Path:
    path = written(good(), folder)
    with path.open("r+b") as file:
        file.truncate(3 * 2**30)  # Takes no room: it is a hole.
    return path


_OUTSIDE = r"keeps its data at '.+', outside the model's folder; refused\."
GRAPHS: dict[str, tuple[Maker, str, str]] = {
    "good": (of(good), "ok", ""),
    "batch of 2^62": (
        sized(HUGE, 4),
        "failed",
        r"its batch is fixed to 4,611,686,018,427,387,904",
    ),
    "batch of 2^24": (sized(2**24, 1), "failed", r"its batch is fixed to 16,777,216, and at most"),
    "item of 2^62": (
        sized("batch", HUGE),
        "failed",
        r"\[batch, 4611686018427387904\] takes 1\.7e\+07 TiB",
    ),
    "items beyond 2^64": (sized("batch", HUGE, HUGE), "failed", r"takes .* TiB an item; correct its shape"),
    "negative size": (sized("batch", -5), "failed", r"input 'x' of .* has the size -5; export it again"),
    "no size": (sized("batch", 0), "failed", r"has dimensions of no fixed size: x\[1\]; give their sizes"),
    "data above": (of(lambda: external("../../../../../etc/passwd")), "failed", _OUTSIDE),
    "data at an absolute path": (of(lambda: external("/etc/passwd")), "failed", _OUTSIDE),
    "data in a device": (of(lambda: external("/dev/zero")), "failed", _OUTSIDE),
    "data behind a link": (linked, "failed", _OUTSIDE),
    "data behind a link to a folder": (through_a_linked_folder, "failed", _OUTSIDE),
    "data at two places": (said_twice, "failed", _OUTSIDE),
    "data of two tensors of one name": (named_twice, "failed", _OUTSIDE),
    "data of a function's default": (in_a_functions_default, "failed", _OUTSIDE),
    "data in a pipe": (a_pipe, "failed", r"tensor 'w' keeps its data in 'w.bin', which is missing"),
    "data nowhere": (
        of(lambda: external("nowhere.bin")),
        "failed",
        r"its data in 'nowhere.bin', which is missing",
    ),
    "data in the folder itself": (of(lambda: external("")), "failed", r"keeps its data in '', which is missing"),
    "data at a NUL": (of(lambda: external("a\0b")), "failed", r"which is no path \(embedded null byte\)"),
    "data at a long name": (
        of(lambda: external("a" * 5000)),
        "failed",
        r"a…', which is no path \(File name too long\)",
    ),
    "data past the end": (past_the_end, "failed", r"up to byte 64, and that file has 8"),
    "endless loop": (of(endless), "failed", r"its Loop 'spin' never ends: its condition stays true"),
    "loop of 2^62 rounds": (
        of(lambda: endless(HUGE)),
        "failed",
        r"its Loop 'spin' never ends: its condition stays true",
    ),
    "data at no number": (of_no_number, "failed", r"at an offset or of a length that is no number"),
    "loop of 5 rounds": (of(lambda: endless(5)), "ok", ""),
    "functions that double": (of(bomb), "failed", r"its functions unfold to 5.5e\+11 nodes, and at most 1,000,000 are"),
    "a few functions": (of(lambda: bomb(6)), "ok", ""),
    "functions in a circle": (of(circle), "failed", r"onnx.checker refuses it \(Cycle detected"),
    "nodes that double": (of(lambda: grows(45)), "failed|oom", r"its reference outputs cannot be made: "),
    "a constant of 2^45": (of(lambda: fills(2**45)), "oom|failed", r"its reference outputs cannot be made: "),
    "a constant of -3": (of(lambda: fills(-3)), "failed", r"must have non-negative elements"),
    "a weight beyond 2^64": (
        of(lambda: weight_of(2**40, 2**40)),
        "failed",
        r"refuses it \(Tensor dimension",
    ),
    "a weight of -4": (of(lambda: weight_of(-4, -4)), "failed", r"onnx.checker refuses it \(Negative dimension"),
    "a weight with too few bytes": (of(lambda: weight_of(5, 5)), "failed", r"onnx.checker refuses it .*too small"),
    "complex": (
        of(lambda: of_a_type(TensorProto.COMPLEX64)),
        "failed",
        r"outputs cannot be made: .*complex64",
    ),
    "texts": (of(lambda: of_a_type(TensorProto.STRING)), "failed", r"input 'x' of .* is no tensor of numbers"),
    "a type that there is not": (of(lambda: of_a_type(99)), "failed", r"input 'x' of .* is no tensor of numbers"),
    "no type": (of(lambda: of_a_type(0)), "failed", r"input 'x' of .* is no tensor of numbers"),
    "a sequence": (of(sequence), "failed", r"input 'x' of .* is no tensor of numbers"),
    "a name of 100,000 letters": (of(long_name), "ok", ""),
    "larger than protobuf's limit": (too_large, "failed", r"larger than protobuf's limit of 2 GiB"),
    "cut off": (of(lambda: good().SerializeToString()[:-30]), "failed", r"no ONNX model, or a truncated one"),
    "a name that is no text": (of(lambda: not_utf8(b"\x01x")), "failed", r"damaged: a name in it is not UTF-8; export"),
    "an operator that is no text": (
        of(lambda: not_utf8(b"MatMul")),
        "failed",
        r"refuses it \('utf-8' codec",
    ),
    "empty": (of(lambda: b""), "failed", r"no ONNX model, or a truncated one \(it holds no graph\)"),
    "garbage": (of(lambda: b"\0garbage" * 100), "failed", r"no ONNX model, or a truncated one"),
    "a program": (of(Path("/bin/sh").read_bytes), "failed", r"no ONNX model, or a truncated one"),
}
