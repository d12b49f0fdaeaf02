"""Call a module with its inputs, name the tensors that it returns, and set it up for training.

Measured iterations and the reference of their gradients share this module, so both differentiate the same thing.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.dropout import _DropoutNd
from torch.utils._python_dispatch import TorchDispatchMode, is_traceable_wrapper_subclass

from exporters.errors import nearest
from exporters.gradients import Array, positions
from exporters.inputs import arguments
from exporters.settings import KEEPS_DOUBLES
from exporters.source import ModelError, TensorSpec

Place = tuple[str | int, ...]
"""Path to a tensor in nested outputs: keys are words, positions numbers."""
_FUTURES = (("done", "result"), ("done", "wait"), ("ready", "get"))
"""Methods that poll and await the futures of concurrent.futures, torch and multiprocessing."""
_ITERATED = {tuple.__iter__, list.__iter__, dict.items, OrderedDict.items}


def call(model: Any, specs: Sequence[TensorSpec], tensors: Sequence[Tensor]) -> Any:
    """Call the module, or compiled code of it, with each tensor at its place."""
    positional, keywords = arguments(specs, tensors)
    return model(*positional, **keywords)


def typed(arrays: Iterable[Array], dtype: torch.dtype) -> tuple[Tensor, ...]:
    """Convert arrays to tensors, floats to `dtype`."""
    tensors = map(torch.from_numpy, arrays)
    return tuple(tensor.to(dtype) if tensor.is_floating_point() else tensor for tensor in tensors)


def cast(model: nn.Module, dtype: torch.dtype) -> nn.Module:
    """Cast the model's floats; complex numbers stay, and so do doubles at fp32 in a module that takes floats."""
    floats = {tensor.dtype for tensor in (*model.parameters(), *model.buffers()) if tensor.is_floating_point()}
    mixes = torch.float32 in floats or KEEPS_DOUBLES in vars(model)
    unchanged = {torch.float64} if dtype == torch.float32 and mixes else set()
    model._apply(lambda t: t.to(dtype) if t.is_floating_point() and t.dtype not in unchanged else t)
    return model


def in_eval_mode(model: nn.Module) -> nn.Module:
    """Set the mode of inference; a module from torch.export has one mode for good."""
    with contextlib.suppress(NotImplementedError):
        model.eval()
    return model


def named_outputs(result: Any) -> dict[str, Tensor]:
    """Name the tensors in a module's result, and skip everything else (None, a cache).

    A single tensor is "y", a tuple's are "y0", "y1"; keys name those in dicts and dataclasses; dots join the names of
    nested ones. Futures are awaited.
    """
    outputs = {}
    for (first, *rest), tensor in ((place or ("y",), tensor) for place, tensor in tensors_in(result)):
        outputs[".".join([f"y{first}" if isinstance(first, int) else first, *map(str, rest)])] = tensor
    return outputs


def tensors_in(result: Any, place: Place = ()) -> Iterator[tuple[Place, Tensor]]:
    """Yield the tensors in nested lists, mappings, dataclasses and futures, with their places."""
    if isinstance(result, Tensor):
        yield place, result
        return
    if wait := _wait_of(result):
        yield from tensors_in(wait(), place)
        return
    for key, part in parts_of(result) or ():
        yield from tensors_in(part, (*place, key))


def parts_of(result: Any) -> Iterable[tuple[str | int, Any]] | None:
    """Return the parts of a list, mapping or dataclass by key; None for any other object."""
    if isinstance(result, Mapping):
        return ((str(key), part) for key, part in result.items())
    if hasattr(result, "_fields"):
        return zip(result._fields, result, strict=True)
    if isinstance(result, list | tuple):
        return enumerate(result)
    if dataclasses.is_dataclass(result):
        return ((part.name, getattr(result, part.name)) for part in dataclasses.fields(result))
    return None


def computes_when_read(result: Any) -> bool:
    """Return True if reading a result may compute it: a tensor subclass, a future, a container's own iterator."""
    if isinstance(result, Tensor):
        return type(result) not in (Tensor, nn.Parameter)
    if _wait_of(result):
        return True
    kind = type(result)
    if isinstance(result, Mapping):
        return kind.items not in _ITERATED or any(map(computes_when_read, result.values()))
    if isinstance(result, list | tuple):
        return kind.__iter__ not in _ITERATED or any(map(computes_when_read, result))
    return dataclasses.is_dataclass(result) and any(
        isinstance(getattr(kind, part.name, None), property) or computes_when_read(getattr(result, part.name))
        for part in dataclasses.fields(result)
    )


def _wait_of(result: Any) -> Callable[[], Any] | None:
    """Return a future's blocking method, or None for any other object."""
    if isinstance(result, Mapping | list | tuple):
        return None
    kind = type(result)
    return next((getattr(result, wait) for asks, wait in _FUTURES if hasattr(kind, asks) and hasattr(kind, wait)), None)


def chosen(requested: Sequence[str], names: Collection[str]) -> list[int]:
    """Return the requested outputs' positions, all by default; a dict's name selects its tensors. Raises ModelError."""
    places: list[int] = []
    for word in requested:
        matches = [place for place, name in enumerate(names) if name == word or name.startswith(f"{word}.")]
        if not matches:
            raise ModelError(f"outputs: the model has no output {word!r}{nearest(word, names)}")
        places += matches
    return places if requested else list(range(len(names)))


def trained_output(result: Any, requested: Sequence[str] = ()) -> Tensor:
    """Return the first requested output, the start of the backward pass. Raises ModelError if it holds no floats."""
    outputs = named_outputs(result)
    if not outputs:
        raise ModelError(f"the model returned {type(result).__qualname__} without a tensor; return tensors")
    name, tensor = list(outputs.items())[chosen(requested, outputs)[0]]
    if not tensor.is_floating_point():
        floats = [key for key, value in outputs.items() if value.is_floating_point()]
        mend = f"write `outputs: [{floats[0]}]`" if floats else "no output holds floats"
        raise ModelError(f"training starts from output {name!r}, which is {tensor.dtype}: {mend}")
    return tensor


class Flattened(nn.Module):
    """Take a module's inputs by position and return a tuple of tensors, as exporters want it; names and hooks stay."""

    def __init__(self, model: nn.Module, specs: Sequence[TensorSpec]) -> None:
        super().__init__()
        self.__dict__.update({name: model.__dict__[name] for name in ("_parameters", "_buffers", "_modules")})
        self.training = model.training
        names: list[str] = []

        def run(tensors: Sequence[Tensor]) -> tuple[Tensor, ...]:
            outputs = named_outputs(call(model, specs, tensors))
            names[:] = outputs
            return tuple(outputs.values())

        # Functions, since torch.export restores lists and modules among the attributes.
        self._run: Callable[[Sequence[Tensor]], tuple[Tensor, ...]] = run
        self.names: Callable[[], list[str]] = lambda: names
        """Names the outputs, once the module has run."""

    def forward(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        return self._run(tensors)


class Watch(TorchDispatchMode):
    """Call `see` with each torch operator about to run, its arguments and keyword arguments."""

    supports_higher_order_operators = True

    def __init__(self, see: Callable[[Any, tuple[Any, ...], dict[str, Any]], object]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.see = see

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.see(getattr(func, "overloadpacket", func), args, kwargs or {})
        return func(*args, **(kwargs or {}))


def freeze(model: nn.Module, frozen: Sequence[str]) -> None:
    """Freeze parameters by name, by a pattern such as "*.bias", or by their module's name. Raises ModelError."""
    parameters = dict(model.named_parameters())
    for word in frozen:
        matched = [name for name in parameters if name.startswith(f"{word}.") or fnmatchcase(name, word)]
        if not matched:
            valid = [*(name for name, _ in model.named_modules() if name), *parameters]
            raise ModelError(
                f"frozen: the model has no parameter {word!r}{nearest(word, valid, 'see model.named_parameters()')}"
            )
        for name in matched:
            parameters[name].requires_grad_(False)


def prepare_to_train(model: nn.Module, dropout: bool, of_input: bool = False, frozen: Sequence[str] = ()) -> None:
    """Set training mode. Without `dropout`, set every probability in an attribute with "drop" in its name to 0
    (nn.LSTM.dropout, transformers' layerdrop, timm's drop_prob).

    Raises ModelError if nothing can train, unless the gradient of the input is asked for.
    """
    try:
        model.train()  # May freeze or free parameters.
    except NotImplementedError as error:  # From torch.export.
        raise ModelError(
            "a module from torch.export has no training mode; give the module it was exported from"
        ) from error
    freeze(model, frozen)
    parameters = list(model.parameters())
    if not of_input and not any(parameter.requires_grad for parameter in parameters):
        all_frozen = f"all {len(parameters)} parameters are frozen: set requires_grad of those that train"
        raise ModelError(all_frozen if parameters else "the model has no parameters to train")
    if not dropout:
        for module in model.modules():
            if isinstance(module, _DropoutNd):
                module.eval()
                module.p = 0.0  # Attention reads it in its own training mode.
            for name, value in vars(module).items():
                if "drop" in name and isinstance(value, float):
                    setattr(module, name, 0.0)


def sampled(gradient: Tensor) -> Tensor:
    """Return the elements of a gradient at `positions`; an embedding's may have sparse rows.

    A complex gradient's real and imaginary parts are elements.
    """
    if gradient.is_complex():
        gradient = torch.view_as_real(gradient.resolve_conj())
    where = torch.from_numpy(positions(gradient.numel())).to(gradient.device)
    # Not flattened first: that would copy a gradient in another memory order.
    places = torch.unravel_index(where, gradient.shape)
    if not gradient.is_sparse:
        return gradient[places]
    gradient = gradient.coalesce()
    rows, values = gradient.indices()[0], gradient.values()
    if not len(rows):
        return values.new_zeros(len(where))
    row = torch.searchsorted(rows, places[0].contiguous()).clamp(max=len(rows) - 1)
    return torch.where(rows[row] == places[0], values[(row, *places[1:])], 0)


def content(tensor: Tensor) -> memoryview:
    """Return a tensor's values as bytes, uncopied if it is a plain one on the CPU; NumPy has no bfloat16."""
    if is_traceable_wrapper_subclass(tensor):
        return memoryview(b"".join(map(content, inner_tensors([tensor]))))
    tensor = tensor.detach().cpu()
    tensor = dense(tensor.int_repr() if tensor.is_quantized else tensor)
    tensor = torch.view_as_real(tensor) if tensor.is_complex() else tensor
    return tensor.contiguous().reshape(-1).view(torch.uint8).numpy().data


def dense(tensor: Tensor) -> Tensor:
    """Return a tensor that NumPy can read: dense, padded, dequantized, and without a pending conjugation or sign."""
    tensor = torch.nested.to_padded_tensor(tensor, 0.0) if tensor.is_nested else tensor
    tensor = tensor.to_dense() if tensor.layout != torch.strided else tensor
    tensor = tensor.dequantize() if tensor.is_quantized else tensor
    return tensor.resolve_conj().resolve_neg()


def inner_tensors(tensors: Iterable[Tensor]) -> Iterator[Tensor]:
    """Yield the tensors with memory: a weight that torchao quantized wraps integers and scales."""
    for tensor in tensors:
        if is_traceable_wrapper_subclass(tensor):
            yield from inner_tensors(getattr(tensor, name) for name in tensor.__tensor_flatten__()[0])
        else:
            yield tensor


def stored(tensor: Tensor) -> tuple[Tensor, ...]:
    """Return the tensors that hold a gradient: the values and the indices of a sparse one."""
    return (tensor._values(), tensor._indices()) if tensor.is_sparse else (tensor,)
