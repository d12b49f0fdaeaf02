"""Key a model and its weights by content, and keep its state dict in the cache."""

from __future__ import annotations

import hashlib
import inspect
import json
import re
import sys
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from exporters.cache import Cache, file_sha256
from exporters.catalog import architecture
from exporters.inputs import input_specs, read_onnx
from exporters.source import ModelError, ModelSource

if TYPE_CHECKING:
    from torch import nn

PACKAGE = Path(__file__).parent


def source_key(source: ModelSource) -> str:
    """A sha256 in hexadecimal over everything that determines the model and its weights, at any precision.

    Canonical: the sources of its family and of build_model.py (which seeds), options, input shape and torch's version;
    no torch is imported. A layer: its numbers, build_model.py and torch's version. With a weights file: its bytes too.
    A factory: its state dict, which means calling it, and the source files of its modules' classes. An ONNX file: its
    bytes and those of its external data.

    Raises ModelError if the model or a file of it cannot be had.
    """
    parts: dict[str, Any] = {"kind": source.kind, "options": source.options, "inputs": repr(input_specs(source))}
    if source.onnx is not None:
        parts["files"] = [file_sha256(path) for path in graph_files(source.onnx).values() if path.is_file()]
        return digest(parts)
    parts["torch"] = version("torch")
    if source.weights is not None:
        if not source.weights.is_file():
            raise ModelError(f"weights {source.weights}: no such file")
        parts["weights"] = file_sha256(source.weights)
    if source.factory is not None:
        parts["factory"] = source.factory
        parts["model"] = factory_key(source)
    elif source.layer is not None:
        parts["layer"] = repr(source.layer)
        parts["code"] = [file_sha256(PACKAGE / "build_model.py")]
    else:
        row = architecture(source.name)
        parts["name"] = row.name
        modules = (f"models/{row.family}.py", "models/normalization.py", "models/plain.py", "build_model.py")
        parts["code"] = [file_sha256(PACKAGE / module) for module in modules]
    return digest(parts)


def digest(parts: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(parts, sort_keys=True, default=repr).encode()).hexdigest()


def factory_key(source: ModelSource) -> str:
    """Of the state dict that the factory makes under the fixed seed, and of the code of its modules."""
    from exporters.build_model import build

    model = build(source)
    total = hashlib.sha256()
    for name, tensor in model.state_dict().items():
        total.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        total.update(tensor.numpy(force=True).tobytes())
    assert source.factory is not None
    for path in code_files(model, source.factory.partition(":")[0]):
        total.update(file_sha256(path).encode())
    # Options that change the forward pass without a parameter (a stride, an activation) are in the module's text;
    # addresses in it would make the key another one in each process.
    total.update(re.sub(r"0x[0-9a-f]+", "", repr(model)).encode())
    return total.hexdigest()


def code_files(model: nn.Module, factory_module: str) -> list[Path]:
    """Source files of the factory and of its modules' classes, torch's left out: torch's version is in the key."""
    names = {type(module).__module__ for module in model.modules()} | {factory_module}
    files = set()
    for name in names:
        if name.partition(".")[0] == "torch" or name not in sys.modules:
            continue
        try:
            file = inspect.getsourcefile(sys.modules[name])
        except TypeError:  # built in, or made in an interactive session
            continue
        if file and Path(file).is_file():
            files.add(Path(file))
    return sorted(files)


def external_locations(path: Path) -> dict[str, str]:
    """Where an ONNX file says that the data of its external tensors lie, by the tensors' names.

    Raises ModelError for an unreadable file.
    """
    model = read_onnx(path)
    graphs: list[Any] = [model.graph, *model.functions]
    return {
        tensor.name: next((entry.value for entry in tensor.external_data if entry.key == "location"), "")
        for graph in graphs
        for tensor in tensors(graph)
        if tensor.external_data
    }


def graph_files(path: Path) -> dict[str, Path]:
    """An ONNX file and those with its external data, whether they are there or not, by their places next to it.

    Raises ModelError for an unreadable file.
    """
    locations = sorted(set(external_locations(path).values()))
    return {path.name: path, **{location: path.parent / location for location in locations}}


def tensors(graph: Any) -> Iterator[Any]:
    """Every onnx.TensorProto of a GraphProto or FunctionProto, those of its nodes' subgraphs included."""
    yield from getattr(graph, "initializer", ())
    for sparse in getattr(graph, "sparse_initializer", ()):
        yield from (sparse.values, sparse.indices)
    for attribute in (attribute for node in graph.node for attribute in node.attribute):
        yield from (attribute.t, *attribute.tensors)
        yield from (attribute.sparse_tensor.values, attribute.sparse_tensor.indices)
        for subgraph in (attribute.g, *attribute.graphs):
            yield from tensors(subgraph)


def cached_state(source: ModelSource, cache: Cache) -> Path:
    """The state dict of `exporters.build_model.load`, made once: `exporters.build_model.restore` takes it.

    Raises ModelError.
    """
    from exporters.build_model import load, save_state

    return cache.entry("state", source_key(source), ".pt", lambda path: save_state(load(source), path))[0]
