"""Call a user's factory, read its example inputs, and save a live module as a factory."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import inspect
import random
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.utils._pytree import (
    register_dataclass,
    tree_flatten,
    tree_flatten_with_path,
    tree_leaves,
    tree_map,
    tree_unflatten,
)

from exporters import settings
from exporters.cache import file_sha256
from exporters.errors import nearest, sentence
from exporters.libraries import build_from_library
from exporters.packages import spec_of
from exporters.source import LABELS, ModelError, ModelSource, batch_symbols, check_batch

SEED = 0
_REUSED: dict[str, tuple[nn.Module, list[Example]]] | None = None


@dataclass(frozen=True)
class Example:
    """One tensor of a factory's example inputs."""

    name: str
    place: str | int
    array: NDArray[Any]
    axes: dict[int, str]
    """Names of axes in `dynamic_shapes`, except the batch."""
    batch_axis: int | None = 0
    """Axis of the items; None for an input that all items share."""


def make(source: ModelSource) -> nn.Module:
    """Return the module of a factory or a library. Raises ModelError."""
    return _make(source)[0]


def examples(source: ModelSource) -> list[Example]:
    """Return the example inputs of a factory. Raises ModelError if it returns no inputs."""
    inputs = _make(source)[1]
    if not inputs:
        raise source.error(
            "its inputs are unknown: add `input: [3, 224, 224]` (or --input 3,224,224), the shape of one item, or a "
            ".npz file as data, or let the factory return (module, example_inputs) as torch.export takes them"
        )
    return inputs


@contextlib.contextmanager
def called_once() -> Iterator[None]:
    """Call each factory only once in this context, and reuse its module."""
    global _REUSED
    _REUSED = {}
    try:
        yield
    finally:
        _REUSED = None


def _make(source: ModelSource) -> tuple[nn.Module, list[Example]]:
    key = f"{source.factory} {source.options} {source.batch} {source.data}"
    if _REUSED is not None and key in _REUSED:
        return _REUSED[key]
    states, before = (random.getstate(), np.random.get_state()), settings.read()
    try:
        with torch.random.fork_rng(devices=[]):
            module, *example_inputs = call_factory(source)
            model = _plain(module)
            _copy_tensors(source, model)
            example_inputs = example_inputs or _first_items(source)
            inputs = _examples(source, model, *example_inputs) if example_inputs and source.asks_code else []
            _initialize_lazy(source, model, inputs)
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])
        settings.put_back(before)
    if _REUSED is not None and source.library is None:
        _REUSED[key] = model, inputs
    return model, inputs


def _first_items(source: ModelSource) -> list[Any]:
    """Return a factory's example inputs from the arrays of its .npz file, if their items come first."""
    if source.library or source.input_shape or source.batch or Path(source.data or "").suffix != ".npz":
        return []
    with source.failing(f"reading {source.data}", "save arrays by numpy.savez"), np.load(str(source.data)) as file:
        # A lazy batch norm fails on one item; a view instead of a copy would hold the whole array.
        arrays = {name: torch.tensor(file[name][:2]) for name in file.files if name != LABELS}
    return [arrays if len(arrays) > 1 else tuple(arrays.values())] if arrays else []


def unwrapped(model: Any) -> Any:
    """Undo torch.compile of a whole module, but not of a part that a wrapper's `__getattr__` reaches."""
    while isinstance(model, nn.Module) and "_orig_mod" in model._modules:
        model = model._modules["_orig_mod"]
    return model


def _plain(model: nn.Module) -> nn.Module:
    """Undo torch.compile of the module and its parts, else compiled code would be timed as eager."""
    model = unwrapped(model)
    for module in model.modules():
        module._compiled_call_impl = None  # module.compile() sets it.
        forward = getattr(vars(module).get("forward"), "_torchdynamo_orig_callable", None)
        if forward is not None:
            module.forward = forward
        for name, part in module._modules.items():
            if unwrapped(part) is not part:
                module._modules[name] = unwrapped(part)
    return model


def _copy_tensors(source: ModelSource, model: nn.Module) -> None:
    """Replace inference tensors by normal ones, and meta tensors by zeros for the weights' file; tied ones stay tied.

    Raises ModelError if no file gives a meta tensor its values.
    """
    states = model.state_dict() if source.weights else {}
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        if tensor.is_meta and not is_lazy(tensor) and name not in states:
            mend = "build it on the CPU" if source.weights else "build it on the CPU, or add `weights: FILE`"
            raise source.error(f"factory {source.factory!r} leaves {name} on the meta device, without values; {mend}")
    copies: dict[Tensor, Any] = {}
    tensors: dict[str, Any]
    for module in model.modules():
        for tensors, wrap in ((module._parameters, nn.Parameter), (module._buffers, lambda copy, _: copy)):
            for key, old in tensors.items():
                if old is None or is_lazy(old) or not (old.is_meta or old.is_inference()):
                    continue
                if old not in copies:
                    copy = torch.zeros_like(old, device="cpu") if old.is_meta else old.clone()
                    copies[old] = wrap(copy, old.requires_grad)
                tensors[key] = copies[old]


def _initialize_lazy(source: ModelSource, model: nn.Module, inputs: list[Example]) -> None:
    """Set the sizes of lazy layers by one call, if the inputs are known."""
    if not (inputs or source.input_shape) or not any(map(is_lazy, (*model.parameters(), *model.buffers()))):
        return
    tensors = {example.place: torch.from_numpy(example.array) for example in inputs}
    tensors = tensors or {0: torch.zeros(2, *(source.input_shape or ()))}
    keywords = {place: tensor for place, tensor in tensors.items() if isinstance(place, str)}
    with torch.no_grad():
        model(*([] if keywords else tensors.values()), **keywords)


def seed() -> None:
    """Seed the generators of torch, Python and NumPy, so that drawn weights are the same in every process."""
    torch.manual_seed(SEED)
    random.seed(SEED)
    np.random.seed(SEED)


def call_factory(source: ModelSource) -> tuple[Any, ...]:
    """Return the module, then the factory's example inputs and dynamic shapes. Raises ModelError."""
    assert source.factory is not None
    seed()
    if source.library is not None:
        return (build_from_library(source),)
    module_name, _, function_name = source.factory.partition(":")
    try:
        module = importlib.import_module(module_name)
        factory = getattr(module, function_name, None)
        seed()  # Again: only the first import of the module may draw.
        result = factory(**source.options) if factory is not None else None
    except (Exception, SystemExit) as error:
        if isinstance(error, ModuleNotFoundError) and f"{module_name}.".startswith(f"{error.name}."):
            raise source.without_module(str(error.name)) from error
        raise source.error(f"factory {source.factory!r} raised {sentence(error)}") from error
    if factory is None:
        defined = [name for name, value in vars(module).items() if getattr(value, "__module__", "") == module_name]
        raise source.error(f"{module_name} has no {function_name!r}{nearest(function_name, defined)}")
    parts = result if isinstance(result, tuple) and len(result) in (2, 3) else (result,)
    if isinstance(parts[0], torch.export.ExportedProgram):
        parts = (parts[0].module(), *parts[1:])
    if not isinstance(parts[0], nn.Module):
        article, kind = ("the class ", result) if isinstance(result, type) else ("", type(parts[0]))
        raise source.error(
            f"factory {source.factory!r} returned {article}{kind.__module__}.{kind.__qualname__}, not a "
            "torch.nn.Module; return the module itself, or (module, example_inputs)"
        )
    return parts


def _examples(source: ModelSource, model: nn.Module, inputs: Any, shapes: Any = None) -> list[Example]:
    """Read the example inputs and their axes' names; change a module with nested arguments to take only the tensors."""
    inputs = tree_map(lambda leaf: torch.from_numpy(leaf) if isinstance(leaf, np.ndarray) else leaf, inputs)
    keywords = dict(inputs) if isinstance(inputs, Mapping) else {}
    positional = () if keywords else (inputs,) if isinstance(inputs, Tensor) else tuple(inputs)
    if isinstance(shapes, Mapping) and not keywords:
        shapes = [shapes.get(name) for name in inspect.signature(model.forward).parameters]
    for kind in {type(leaf) for leaf in tree_leaves(keywords or positional) if dataclasses.is_dataclass(leaf)}:
        register_dataclass(kind)
    leaves, _ = tree_flatten_with_path(keywords or positional)
    tensors = [(path, leaf) for path, leaf in leaves if isinstance(leaf, Tensor)]
    if not any(leaf.ndim for _, leaf in tensors):
        raise source.error("no example is a tensor with a dimension; the first tensor's first dimension is the batch")
    if not any(leaf.dtype == torch.float64 for _, leaf in tensors):
        vars(model)[settings.KEEPS_DOUBLES] = True
    argument_names = dict(enumerate(_positional_names(model)))
    is_nested = len(tensors) < len(leaves) or any(len(path) > 1 for path, _ in tensors)
    if is_nested:
        _flatten(model, positional, keywords)
    result = []
    for number, (path, leaf) in enumerate(tensors):
        shape, keys = shapes, []
        for key in path:
            shape = None if shape is None else key.get(shape)
            keys.append(next(getattr(key, name) for name in ("idx", "key", "name") if hasattr(key, name)))
        place, *inner = keys
        name = ".".join(map(str, [place if keywords else argument_names.get(place, f"x{place}"), *inner]))
        name = name if keywords or len(tensors) > 1 else "x"
        with source.failing(f"reading example {name!r}", "give a dense tensor with values; convert it in forward"):
            array = (leaf.detach().float() if leaf.is_floating_point() else leaf.detach()).numpy(force=True)
        where = number if is_nested else place
        result.append(Example(name, where, np.require(array, requirements="C"), _axes(shape)))
    batch = dict(source.batch)
    if len(result) == 1 and argument_names.get(0, "") in batch:  # The job may give the argument's name instead of "x".
        batch[result[0].name] = batch.pop(argument_names[0])
    return _with_batch(replace(source, batch=batch), result)


def _with_batch(source: ModelSource, inputs: Sequence[Example]) -> list[Example]:
    """Find each example's batch axis: the job's, else the one named in `dynamic_shapes`, else a first axis that fits.

    Raises ModelError if two batch axes differ in size.
    """
    shapes = {e.name: [e.axes.get(axis, size) for axis, size in enumerate(e.array.shape)] for e in inputs}
    check_batch(source, shapes)
    symbols = batch_symbols(shapes, source.batch)
    axes = {name: next((n for n, size in enumerate(shape) if size in symbols), None) for name, shape in shapes.items()}
    axes |= source.batch
    sizes = [(e.name, e.array.shape[axis]) for e in inputs if (axis := axes[e.name]) is not None]
    sizes += [(e.name, len(e.array)) for e in inputs if e.array.ndim and e.name not in source.batch]
    if sizes and not sizes[0][1]:
        raise source.error(f"batch: example {sizes[0][0]!r} holds no items; give at least one")
    result = []
    for example in inputs:
        axis, shape = axes[example.name], example.array.shape
        is_named = example.name in source.batch or (symbols and 0 in example.axes)
        if axis is None and not is_named and shape and shape[0] == sizes[0][1]:
            axis = 0
        if axis is not None and shape[axis] != sizes[0][1]:
            first, items = sizes[0]
            raise source.error(
                f"batch: axis {axis} of {example.name!r} has size {shape[axis]}, {first!r} has {items} items"
            )
        other_axes = {n: name for n, name in example.axes.items() if n != axis}
        result.append(replace(example, batch_axis=axis, axes=other_axes))
    return result


def _positional_names(model: nn.Module) -> list[str]:
    with contextlib.suppress(ValueError):  # Scripted modules have no signature.
        parameters = inspect.signature(model.forward).parameters.values()
        return [parameter.name for parameter in parameters if parameter.kind is parameter.POSITIONAL_OR_KEYWORD]
    return []


def _axes(shape: Any) -> dict[int, str]:
    """Name the axes of a tensor's `dynamic_shapes`: torch.export.Dim's, or plain names."""
    pairs = shape.items() if isinstance(shape, Mapping) else enumerate(shape or ())
    names = ((axis, size if isinstance(size, str) else getattr(size, "__name__", "")) for axis, size in pairs)
    return {axis: name for axis, name in names if name}


def _flatten(model: nn.Module, positional: tuple[Any, ...], keywords: dict[str, Any]) -> None:
    """Give the module a class whose call takes the tensors by position: deep copies keep a class."""
    leaves, tree = tree_flatten((positional, keywords))
    places = [place for place, leaf in enumerate(leaves) if isinstance(leaf, Tensor)]
    constants = [None if isinstance(leaf, Tensor) else leaf for leaf in leaves]
    original = type(model)

    def called(self: Any, *tensors: Tensor) -> Any:
        parts = list(constants)
        for place, tensor in zip(places, tensors, strict=True):
            parts[place] = tensor
        args, kwargs = tree_unflatten(parts, tree)
        return original.__call__(self, *args, **kwargs)  # Not `forward`: hooks see the original call.

    model.__class__ = type(original.__name__, (original,), {"__call__": called, "__module__": original.__module__})


def save(model: nn.Module | Callable[[], nn.Module], folder: Path, inputs: Any = None) -> dict[str, Any]:
    """Save a live module or a function in `folder`; return a job's keys. Raises ModelError for unimportable code."""
    parts: set[Any] = {type(part) for part in model.modules()} if isinstance(model, nn.Module) else {model}
    for part in parts:
        name, module = getattr(part, "__qualname__", ""), getattr(part, "__module__", "__main__")
        if module == "__main__" or spec_of(module) is None or (part is model and not name.isidentifier()):
            raise ModelError(
                f"{name or part!r}: no other process can import this; put it in a module of its own, and import it"
            )
    if inputs is None and not isinstance(model, nn.Module):
        return {"factory": f"{model.__module__}:{model.__qualname__}"}
    tensors = [*model.named_parameters(), *model.named_buffers()] if isinstance(model, nn.Module) else []
    if hooked := [name for name, tensor in tensors if tensor._backward_hooks or tensor._post_accumulate_grad_hooks]:
        raise ModelError(
            f"{hooked[0]} has a hook, which a copy for another process would lose: give a function in a file that "
            "makes the model and registers its hooks"
        )
    path = folder / "module.pt"
    try:
        torch.save((model, inputs), path)
    except Exception as error:
        raise ModelError(
            f"the model cannot be saved for the processes that measure it: {sentence(error)}; "
            "give a function in a file that makes it, or export it to ONNX and give the file's path"
        ) from error
    # A name by content, so that the next run of the same module finds its cached files.
    file = path.rename(folder / f"module-{file_sha256(path)[:16]}.pt").name
    made_in = {} if isinstance(model, nn.Module) else {"made_in": model.__module__}
    return {"factory": f"{__name__}:load_saved", "options": {"file": file, **made_in}}


def load_saved(file: str, made_in: str = "") -> Any:
    """Load a saved module and its inputs from a folder on Python's path.

    `made_in`, a saved function's module, makes that module's code a part of the model's identity.
    """
    path = next(Path(folder, file) for folder in sys.path if Path(folder, file).is_file())
    model, inputs = torch.load(path, map_location="cpu", weights_only=False)
    model = model if isinstance(model, nn.Module) else model()
    return model if inputs is None else (model, inputs)
