"""Record the operators of a call, and tell which of their work, and how much of their tensors, its results need."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode

_LOOKUPS = re.compile("embedding|gather|grid_sampl|index|scatter|take|bucketize|searchsorted|upsample")
"""Parts of the names of operators that may read few elements of a tensor."""


class Storage(NamedTuple):
    """A storage. No other one has its address while it is held."""

    address: int
    bytes: int


class _Operation(NamedTuple):
    flops: int
    inputs: set[int]
    outputs: set[int]
    read: dict[int, int]
    """Bytes read by address; none by views and lookups."""


class Tape(TorchDispatchMode):
    """Record each operator with the FLOPs that an outer `counter` counts for it; tensors are known by their storage."""

    supports_higher_order_operators = True

    def __init__(self, counter: FlopCounterMode) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.counter = counter
        self.operations: list[_Operation] = []
        self._held: list[Any] = []  # Else another storage could get the address of one that was freed.

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        inputs = list(_strided(tree_leaves((args, kwargs))))
        before = self.counter.get_total_flops()
        result = func(*args, **(kwargs or {}))
        outputs = list(_strided(tree_leaves(result)))
        self._held += [tensor.untyped_storage() for tensor in outputs]
        read = Counter[int]()
        if not getattr(func, "is_view", False) and not _LOOKUPS.search(str(func)):
            for tensor in inputs:
                read[_address(tensor)] = max(read[_address(tensor)], distinct(tensor) * tensor.itemsize)
        flops = self.counter.get_total_flops() - before
        self.operations.append(_Operation(flops, set(map(_address, inputs)), set(map(_address, outputs)), read))
        return result

    def needed(self, results: Iterable[Tensor | None]) -> tuple[int, Counter[int]]:
        """Return the FLOPs that the results need, and the most bytes that one operator read of each storage for them.

        An operator without tensors as results may steer the call.
        """
        needed, flops, read = set(map(_address, _strided(results))), 0, Counter[int]()
        for operation in reversed(self.operations):
            if not operation.outputs or operation.outputs & needed:
                needed |= operation.inputs
                flops += operation.flops
                read |= Counter(operation.read)
        return flops, read


def distinct(tensor: Tensor) -> int:
    """Return the number of elements without those that an expanded axis repeats."""
    return math.prod(size for size, stride in zip(tensor.shape, tensor.stride(), strict=True) if stride)


def storages(model: nn.Module) -> dict[str, Storage]:
    """Return the weights' storages: moving a model to another device parts those that share one."""
    return {name: Storage(_address(w), w.untyped_storage().nbytes()) for name, w in _weights(model).items()}


def weights_read(model: nn.Module, built: Mapping[str, Storage], read: Mapping[int, int]) -> dict[str, int]:
    """Count the elements and bytes read of the weights, by the storages of the `built` model."""
    tensors, largest, types = _weights(model), Counter[int](), dict[int, Tensor]()
    for name in built.keys() & tensors.keys():  # A call may add and remove tensors.
        address, size = built[name]
        largest[address] = max(largest[address], min(read.get(_address(tensors[name]), 0), size))
        types[address] = tensors[name]
    floats = [address for address in largest if types[address].is_floating_point()]
    return {
        "float_weights": sum(largest[address] // types[address].itemsize for address in floats),
        "other_weight_bytes": largest.total() - sum(largest[address] for address in floats),
    }


def moved(
    model: nn.Module, inputs: Mapping[str, Tensor], outputs: Mapping[str, Tensor], read: Mapping[int, int]
) -> list[str]:
    """Name the inputs that an operator read whole, and the outputs that neither repeat elements nor share a storage."""
    unmoved = {name for name, tensor in inputs.items() if read.get(_address(tensor), 0) < tensor.nbytes}
    bases = set(map(_address, (*inputs.values(), *_weights(model).values())))
    for name, tensor in outputs.items():
        is_written = tensor.layout == torch.strided and distinct(tensor) == tensor.numel()
        if not is_written or _address(tensor) in bases or tensor.nbytes > tensor.untyped_storage().nbytes():
            unmoved.add(name)
        else:
            bases.add(_address(tensor))
    return [name for name in (*inputs, *outputs) if name not in unmoved]


def _weights(model: nn.Module) -> dict[str, Tensor]:
    named = (*model.named_parameters(remove_duplicate=False), *model.named_buffers(remove_duplicate=False))
    return {name: tensor for name, tensor in named if tensor.layout == torch.strided}


def _strided(values: Iterable[Any]) -> Iterator[Tensor]:
    return (value for value in values if isinstance(value, Tensor) and value.layout == torch.strided)


def _address(tensor: Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)
