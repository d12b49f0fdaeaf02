"""Call a user's factory, read the example inputs that it returns, and save a live module as a factory."""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import inspect
import pickle
import pickletools
import random
import re
import sys
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import cloudpickle
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_flatten_with_path, tree_map, tree_unflatten

from exporters.errors import nearest, sentence
from exporters.libraries import build_from_library
from exporters.packages import spec_of
from exporters.source import ModelError, ModelSource

SEED = 0
MODULE = "measured_module"
"""Name of the factory's module that `save` writes, and of the file next to it."""
_FACTORY = '''"""Load the model that was saved next to this file; written by profiler.measure."""

from pathlib import Path

{imports}from exporters.factories import load_file

CODE = "{code}"
"""The sha256 of the classes that were saved with the model."""


def load():
    return load_file(Path(__file__).with_suffix(".pt"))
'''


@dataclass(frozen=True)
class Example:
    """One tensor of a factory's example inputs."""

    name: str
    place: str | int
    array: NDArray[Any]
    axes: dict[int, str]
    """Names of axes in `dynamic_shapes`, the batch's left out."""


def make(source: ModelSource) -> nn.Module:
    """Return a factory's or a library's module as it was made. Raises ModelError."""
    return _made(source)[0]


def examples(source: ModelSource) -> list[Example]:
    """Return the example inputs of a factory. Raises ModelError where it returns none."""
    found = _made(source)[1]
    if not found:
        raise source.error(
            "its inputs are not known: add `input: [3, 224, 224]`, the shape of one item, or let the factory return "
            "(module, example_inputs) as torch.export takes them"
        )
    return found


def _made(source: ModelSource) -> tuple[nn.Module, list[Example]]:
    states = random.getstate(), np.random.get_state()
    try:
        with torch.random.fork_rng(devices=[]):
            model, *more = call_factory(source)
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        if tensor.is_complex():
            raise source.error(f"{name} is complex, and fp32 would lose a part; keep two floats (torch.view_as_real)")
    return model, _examples(source, model, *more) if more and source.asks_code else []


def seed() -> None:
    """Seed the generators of torch, Python and NumPy, so that drawn weights are the same in every process."""
    torch.manual_seed(SEED)
    random.seed(SEED)
    np.random.seed(SEED)


def call_factory(source: ModelSource) -> tuple[nn.Module, *tuple[Any, ...]]:
    """Return the module, and the example inputs and dynamic shapes that the factory returns. Raises ModelError."""
    assert source.factory is not None
    seed()
    if source.library is not None:
        return (build_from_library(source),)
    module_name, _, function_name = source.factory.partition(":")
    if not module_name or not function_name:
        raise source.error(f"factory {source.factory!r} is not 'package.module:function'")
    try:
        module = importlib.import_module(module_name)
        factory = getattr(module, function_name, None)
        seed()  # Again, since only the first import of the module may draw.
        made = factory(**source.options) if factory is not None else None
    except (Exception, SystemExit) as error:
        if isinstance(error, ModuleNotFoundError) and f"{module_name}.".startswith(f"{error.name}."):
            why = f"there is no module {error.name!r}; add its folder to import_from, or install it"
            raise source.error(f"factory {source.factory!r}: {why}") from error
        raise source.error(f"factory {source.factory!r} raised {sentence(error)}") from error
    if factory is None:
        own = [name for name, value in vars(module).items() if getattr(value, "__module__", "") == module_name]
        raise source.error(f"{module_name} has no {function_name!r}{nearest(function_name, own)}")
    parts = made if isinstance(made, tuple) and len(made) in (2, 3) else (made,)
    if not isinstance(parts[0], nn.Module):
        raise source.error(
            f"factory {source.factory!r} returned {type(made).__module__}.{type(made).__qualname__}, not a "
            "torch.nn.Module; return the module itself, or (module, example_inputs)"
        )
    return parts


def _examples(source: ModelSource, model: nn.Module, given: Any, shapes: Any = None) -> list[Example]:
    """Read example inputs, a tuple of positional arguments or a mapping of keyword arguments, with their axes' names.

    A module whose arguments are nested, or hold more than tensors, takes the tensors alone from here on.
    """
    keywords = dict(given) if isinstance(given, Mapping) else {}
    positional = () if keywords else (given,) if isinstance(given, Tensor) else tuple(given)
    if isinstance(shapes, Mapping) and not keywords:
        shapes = [shapes.get(name) for name in inspect.signature(model.forward).parameters]
    leaves, _ = tree_flatten_with_path(keywords or positional)
    tensors = [(path, leaf) for path, leaf in leaves if isinstance(leaf, Tensor)]
    if not tensors or any(not leaf.ndim for _, leaf in tensors) or len({len(leaf) for _, leaf in tensors}) > 1:
        sizes = ", ".join(str(tuple(leaf.shape)) for _, leaf in tensors) or "none"
        raise source.error(f"the first dimension of every example is the batch, but the tensors' shapes are {sizes}")
    is_nested = len(tensors) < len(leaves) or any(len(path) > 1 for path, _ in tensors)
    if is_nested:
        _flatten(model, positional, keywords)
    found = []
    for number, (path, leaf) in enumerate(tensors):
        own, keys = shapes, []
        for key in path:
            own = None if own is None else key.get(own)
            keys.append(next(getattr(key, name) for name in ("idx", "key", "name") if hasattr(key, name)))
        name = ".".join(map(str, keys))
        name = name if keywords else "x" if len(tensors) == 1 else f"x{name}"
        array = (leaf.detach().float() if leaf.is_floating_point() else leaf.detach()).cpu().numpy()
        found.append(Example(name, number if is_nested else keys[0], np.ascontiguousarray(array), _axes(own)))
    return found


def _axes(shape: Any) -> dict[int, str]:
    pairs = shape.items() if isinstance(shape, Mapping) else enumerate(shape or ())
    return {axis: size.__name__ for axis, size in pairs if axis and hasattr(size, "__name__")}


def _flatten(model: nn.Module, positional: tuple[Any, ...], keywords: dict[str, Any]) -> None:
    """Have the module take the tensors of its arguments by position, wherever they are nested.

    Its class is another one then, so that a deep copy of the module calls its own weights.
    """
    leaves, tree = tree_flatten((positional, keywords))
    places = [place for place, leaf in enumerate(leaves) if isinstance(leaf, Tensor)]
    constants = [None if isinstance(leaf, Tensor) else leaf for leaf in leaves]
    original = type(model)

    def forward(self: Any, *tensors: Tensor) -> Any:
        parts = list(constants)
        for place, tensor in zip(places, tensors, strict=True):
            parts[place] = tensor
        args, kwargs = tree_unflatten(parts, tree)
        return original.forward(self, *args, **kwargs)

    model.__class__ = type(original.__name__, (original,), {"forward": forward, "__module__": original.__module__})


def save(model: nn.Module | Callable[[], nn.Module], folder: Path, inputs: Any = None) -> str:
    """Save the model, with example inputs if given, and return the factory, "module:function", that makes it again.

    Code that another process can import is saved by its name, as pickle does it; that of a notebook, a script or a
    function is saved itself, by cloudpickle. A factory's key follows its source files: the one that is written here
    imports the modules that the saved code names, and has a hash of the code itself. Raises ModelError.
    """
    module = sys.modules.get(getattr(model, "__module__", ""))
    name = getattr(model, "__qualname__", "")
    is_named = name and getattr(module, name, None) is model
    if module and inputs is None and is_named and _can_be_imported(module.__name__):
        return f"{module.__name__}:{name}"
    path = folder / f"{MODULE}.pt"
    parts = model.modules() if isinstance(model, nn.Module) else [model]
    tensors = tree_map(lambda leaf: torch.from_numpy(leaf) if isinstance(leaf, np.ndarray) else leaf, inputs)
    try:
        with _by_value({getattr(part, "__module__", "__main__") for part in parts}):
            torch.save(model if inputs is None else (model, tensors), path, cloudpickle, pickle.HIGHEST_PROTOCOL)
    except Exception as error:
        raise ModelError(
            f"the model cannot be saved for the processes that measure it: {sentence(error)}; "
            "give a function that makes it, or export it to ONNX and give the file's path"
        ) from error
    with zipfile.ZipFile(path) as file:
        code = file.read(f"{MODULE}/data.pkl")  # All but the weights.
    words = {word for _, word, _ in pickletools.genops(code) if isinstance(word, str) and word in sys.modules}
    known = {*sys.stdlib_module_names, "torch", "cloudpickle"}
    own = (word for word in sorted(words) if word.partition(".")[0] not in known and _can_be_imported(word))
    # cloudpickle numbers classes at random, by 32 digits.
    digest = hashlib.sha256(re.sub(rb"[0-9a-f]{32}", b"", code)).hexdigest()
    imports = "".join(f"import {word}\n" for word in own)
    (folder / f"{MODULE}.py").write_text(_FACTORY.format(imports=imports, code=digest))
    return f"{MODULE}:load"


def load_file(path: Path) -> Any:
    """Return the module that was saved in this file, or what the function returns that was; with examples a pair."""
    saved = torch.load(path, map_location="cpu", weights_only=False)
    saved, *inputs = saved if isinstance(saved, tuple) else (saved,)
    made = saved if isinstance(saved, nn.Module) else saved()
    model = made[0] if isinstance(made, tuple) else made
    parts = model.modules() if isinstance(model, nn.Module) else ()
    for each in {each for part in parts for each in type(part).__mro__}:
        for value in filter(callable, vars(each).values()):
            _name_scope(getattr(inspect.unwrap(value), "__globals__", {}))
    return (model, *inputs) if inputs else made


def _name_scope(scope: dict[str, Any]) -> None:
    """Put the globals of code that was saved itself into the module of their name: torch.compile looks there."""
    name = scope.get("__name__")
    if name is None or vars(module := sys.modules.setdefault(name, ModuleType(name))) is scope:
        return
    vars(module).update({key: value for key, value in scope.items() if not key.startswith("__")})


@contextlib.contextmanager
def _by_value(names: Iterable[str]) -> Iterator[None]:
    """Have cloudpickle save the code itself of modules that another process does not find."""
    hidden = [sys.modules[name] for name in names if name in sys.modules and not _can_be_imported(name)]
    for module in hidden:
        cloudpickle.register_pickle_by_value(module)
    try:
        yield
    finally:
        for module in hidden:
            cloudpickle.unregister_pickle_by_value(module)


def _can_be_imported(name: str) -> bool:
    """Tell whether another process with this one's path finds the module, and in the same file."""
    spec = spec_of(name)
    known = getattr(sys.modules.get(name), "__file__", None)
    return name != "__main__" and spec is not None and (known is None or spec.origin in (known, None))
