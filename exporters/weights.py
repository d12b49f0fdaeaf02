"""Key a model and its weights by content, and keep its state dict in the cache."""

from __future__ import annotations

import ast
import contextlib
import hashlib
import importlib.util
import inspect
import pprint
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any

from exporters.cache import Cache, check_room, code_of, file_sha256
from exporters.dataset import with_dataset
from exporters.inputs import input_specs
from exporters.libraries import LIBRARIES, files_of, folder_of
from exporters.onnx_files import graph_files
from exporters.packages import installed_version, library_folders, spec_of
from exporters.source import Identity, ModelError, ModelSource, digest, network_of

if TYPE_CHECKING:
    from torch import nn


def source_key(source: ModelSource) -> str:
    """Return a sha256 over everything that determines the model and its weights. Raises ModelError."""
    return identify(source).key


def identified(source: ModelSource) -> ModelSource:
    """Return the source with its identity and inputs, computed once. Raises ModelError."""
    source = with_inputs(source)
    return replace(source, identity=identify(source))


def with_inputs(source: ModelSource) -> ModelSource:
    """Return the source with its inputs, of the user's data if there are any, computed once. Raises ModelError."""
    if source.specs is not None:
        return source
    specs, labels = tuple(input_specs(source)), ""
    if source.data:
        specs, labels = with_dataset(source, specs)
    return replace(source, specs=specs, labels=labels)


def identify(source: ModelSource) -> Identity:
    """Return the source's identity, or compute it, which calls a user's factory. Raises ModelError."""
    if source.identity is not None:
        return source.identity
    parts = static_parts(source)
    if source.factory is None or source.library is not None:
        return Identity(parts)
    from exporters.factories import make

    model = make(source)
    classes = {type(module) for module in model.modules() if not type(module).__module__.startswith("torch.")}
    modules = {source.factory.partition(":")[0], *(cls.__module__ for cls in classes)}
    modules.add(str(source.options.get("made_in", "")))  # A function saved with its inputs.
    return Identity(parts | {"state": _state_digest(model), "code": code(modules)})


def static_parts(source: ModelSource) -> dict[str, Any]:
    """Return the parts of the identity that do not need the model itself."""
    # Texts, since JSON has neither sets nor numbers as keys; pprint sorts a set only if it is wider than a line.
    options = {name: pprint.pformat(value, width=1) for name, value in source.options.items()}
    source = with_inputs(source)
    parts: dict[str, Any] = {"kind": source.kind, "options": options, "inputs": repr(list(source.specs or ()))}
    if source.labels:
        modules = [source.metric.partition(":")[0]] if source.metric and ":" in source.metric else []
        parts["labels"] = [source.labels, source.metric, code(modules)]
    if source.graphs:
        parts["graphs"] = {precision: _file_hashes(path) for precision, path in source.graphs.items()}
    if source.onnx is not None:
        return parts | {"files": _file_hashes(source.onnx)}
    parts["torch"] = installed_version("torch")
    if source.weights is not None:
        if not source.weights.is_file():
            raise ModelError(f"weights {source.weights}: no such file")
        parts["weights"] = file_sha256(source.weights)
        if source.key is not None or source.prefix:
            parts["weights in the file"] = [source.key, source.prefix]
    if source.factory is not None:
        parts["factory"] = source.factory
        if source.library is not None:
            parts |= {"library": _library_parts(source), "step": source.step}
    elif source.layer is not None:
        parts |= {"layer": repr(source.layer), "code": code_of("build_model.py")}
    elif network := network_of(source):
        parts |= {"name": network.name, "code": code_of("networks.py", "build_model.py")}
    return parts


def has_own_weights(source: ModelSource) -> bool:
    """Return True if the weights are from a file, so that predictions may mean something."""
    in_folder = source.library is not None and folder_of(source.factory or "") is not None
    return source.onnx is not None or source.weights is not None or in_folder


def _file_hashes(path: Path) -> list[str]:
    try:
        return [file_sha256(file) for file in graph_files(path).values() if file.is_file()]
    except ModelError:
        return []


def _library_parts(source: ModelSource) -> list[str]:
    """Identify a library's model without making it, by versions and by hashes of code and files."""
    library = LIBRARIES[source.library or ""]
    folder = folder_of(source.factory or "")
    files = [_file_of_module(library.module), *(files_of(folder) if folder else [])]
    hashes = [*code_of("build_model.py", "factories.py", "inputs.py"), *map(file_sha256, filter(None, files))]
    return [f"{library.package} {installed_version(library.package)}", *hashes]


def _state_digest(model: nn.Module) -> str:
    """Return the sha256 of the model's state by name."""
    import torch

    from exporters.calls import content

    total = hashlib.sha256()
    for name, value in model.state_dict().items():
        if not isinstance(value, torch.Tensor):
            total.update(repr((name, value)).encode())
            continue
        total.update(repr((name, f"{value.dtype} {tuple(value.shape)}")).encode())
        total.update(content(value))  # Uncopied, since a table of embeddings has gigabytes.
    return total.hexdigest()


def code(modules: Iterable[str]) -> dict[str, str]:
    """Hash the files of these modules and their imports, by module; skip libraries and imports by computed names."""
    libraries, files = library_folders(), dict[str, Path]()
    waiting = [(name, True) for name in modules]
    while waiting:
        name, is_root = waiting.pop()
        path = None if name in files else _file_of_module(name)
        is_library = path is not None and not libraries.isdisjoint(path.parents)
        if path is None or (is_library and not is_root):
            continue
        files[name] = path
        if not is_library and path.suffix == ".py":
            waiting += [(imported, False) for imported in _imports(path, name)]
    return {name: file_sha256(path) for name, path in sorted(files.items())}


def _file_of_module(module: str) -> Path | None:
    """Find the file of a module without importing it."""
    with contextlib.suppress(ImportError, AttributeError, KeyError, ValueError, TypeError):  # Built in, or a namespace.
        spec = None if module in sys.modules else spec_of(module)
        file = inspect.getfile(sys.modules[module]) if module in sys.modules else spec.origin if spec else None
        return Path(file).resolve() if file and Path(file).is_file() else None
    return None


def _imports(path: Path, module: str) -> Iterator[str]:
    """Yield the modules that import statements anywhere in a source file name, and their packages."""
    package = module if path.name == "__init__.py" else module.rpartition(".")[0]
    names: list[str] = []
    with contextlib.suppress(SyntaxError, ValueError, RecursionError):  # No Python, or nested too deeply.
        for statement in ast.walk(ast.parse(path.read_bytes())):
            if isinstance(statement, ast.Import):
                names += [alias.name for alias in statement.names]
            elif isinstance(statement, ast.ImportFrom):
                with contextlib.suppress(ImportError):  # Relative to a missing parent.
                    base = importlib.util.resolve_name("." * statement.level + (statement.module or ""), package)
                    names += [base, *(f"{base}.{alias.name}" for alias in statement.names)]
    for name in names:
        if name and name.partition(".")[0] not in sys.stdlib_module_names:
            yield from accumulate(name.split("."), "{}.{}".format)


def checked(source: ModelSource, produce: Callable[[Path], object]) -> Callable[[Path], None]:
    """Follow `produce` by a check of the model's files, since people edit them meanwhile."""

    def produce_and_check(path: Path) -> None:
        produce(path)
        if source.identity is None:
            return
        parts = static_parts(source)
        if source.factory is not None and source.library is None:
            parts["code"] = code(source.identity.parts["code"])
        if changes := source.identity.changes(Identity(source.identity.parts | parts)):
            raise ModelError(
                f"model {source.name!r} changed while it was being prepared ({', '.join(changes)}); start the run again"
            )

    return produce_and_check


def cached_state(source: ModelSource, cache: Cache) -> Path:
    """Cache the state dict of `build_model.load` for `restore`, once for all shapes of inputs. Raises ModelError."""
    import torch

    from exporters.build_model import load

    key = digest({name: part for name, part in identify(source).parts.items() if name != "inputs"})

    def produce(path: Path) -> None:
        model = load(source)
        check_room(path, sum(weight.nbytes for weight in model.parameters()))
        torch.save(model.state_dict(), path)

    return cache.entry("state", key, ".pt", checked(source, produce))[0]
