"""Change a module's inputs between calls, so that it cannot return remembered outputs."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Sequence
from itertools import chain, cycle
from typing import Any

import torch
from torch import Tensor

from exporters.inputs import arguments
from exporters.source import TensorSpec

Arguments = tuple[tuple[Any, ...], dict[str, Any]]
Change = Callable[[bool], object]
"""Changes values in place, far if the argument is True."""

_MOST_COPIES = 128
"""Most copies of small inputs to renew ahead."""
_MOST_COPIED = 2**18
"""Most bytes of these copies: a case's memory does not show them."""
_MOST_MOVED = 2**26
"""Most bytes of a block's inputs, a copy a call, and of inputs that move to a new copy."""
_DRAWN_FACTORS = (-0.9, -0.5), (0.5, 0.9)
"""Ranges of the factors of drawn floats, by turns."""
_USER_FACTORS = (0.980, 0.985), (0.992, 0.997)
"""Ranges of the factors of the user's floats: even in bf16 every turn changes most values."""
_FAR = 0.1
"""Factor of inputs whose outputs must differ from the job's."""
_LARGE, _LINE, _MOST_SHARES = 4096, 16, 256
"""Elements of a large item and of a line, and most shares. A large item changes by one share of at least 16 lines at a
time: fresh writes slow a call (a convolution of 224² pixels by 4 % on a CPU)."""
_FEWEST_SHUFFLED = 5
"""A shorter last axis may hold a pair or a box, whose order has a meaning."""


class Renewal:
    """Pass inputs to a module's calls, and give them new values in between.

    Drawn floats change sign and size; drawn integers are drawn again. The user's floats change by up to 4 %, with a
    factor per item, so that repeated items are not equal. The user's integers are shuffled along the last axis. Masks
    and sizes stay. Every process draws other numbers, so no cache on disk has the values.

    Consecutive calls get different tensors. Version counters show the change.
    """

    def __init__(self, specs: Sequence[TensorSpec], tensors: Sequence[Tensor]) -> None:
        self.specs, self.copies, self.nbytes = specs, [list(tensors)], sum(tensor.nbytes for tensor in tensors)
        self._changes: list[list[Change]] = []
        self._left = 0
        self.turn = self._in_turn(self.copies)

    def renew(self, calls: int) -> None:
        """Give the next calls new values; change small inputs ahead, since even this work slows a short call."""
        self._left -= calls
        if self._left >= 0:
            return
        if not self._changes:  # Not in __init__: making changes scales the items.
            self._changes = [_changes(self.specs, self.copies[0])]
        size = max(1, self.nbytes)
        copies = max(min(_MOST_COPIES, _MOST_COPIED // size), min(calls, _MOST_MOVED // size))
        if copies > len(self.copies):
            for _ in range(copies - len(self.copies)):
                self._copy()
            self.turn = self._in_turn(self.copies)
        for change in chain.from_iterable(self._changes):
            change(False)
        self._left = len(self.copies) - calls

    def move(self) -> None:
        """Let later calls read values far from the job's, in a new copy unless the inputs are large."""
        if self.nbytes <= _MOST_MOVED or not self._changes:
            self._copy()
        for change in self._changes[-1]:
            change(True)
        self.turn = self._in_turn(self.copies[-1:])

    def _copy(self) -> None:
        self.copies.append([tensor.clone() for tensor in self.copies[0]])
        self._changes.append(_changes(self.specs, self.copies[-1]))

    def _in_turn(self, copies: Sequence[Sequence[Tensor]]) -> Iterator[Arguments]:
        # Views, since inputs whose gradients a module requests could not change in place.
        views = [[tensor.detach() for tensor in copy] for copy in (copies if len(copies) > 1 else [*copies] * 2)]
        return cycle([arguments(self.specs, view) for view in views])


def _changes(specs: Sequence[TensorSpec], tensors: Sequence[Tensor]) -> list[Change]:
    draw = random.Random(random.SystemRandom().random())
    generator = torch.Generator(tensors[0].device).manual_seed(draw.getrandbits(63)) if tensors else torch.Generator()
    changes, shuffled = list[Change](), dict[torch.Size, list[Tensor]]()
    for spec, tensor in zip(specs, tensors, strict=bool(specs)):
        if spec.is_mask:
            continue
        if tensor.is_floating_point() or tensor.is_complex():
            changes.append(_scale(spec, tensor, draw, generator))
        elif not spec.data:
            changes.append(_draw_again(spec, tensor, generator))
        elif spec.batch_axis in range(tensor.dim() - 1) and tensor.shape[-1] >= _FEWEST_SHUFFLED:
            shuffled.setdefault(tensor.shape, []).append(tensor)
    return changes + [_shuffle(group, generator) for group in shuffled.values()]


def _scale(spec: TensorSpec, tensor: Tensor, draw: random.Random, generator: torch.Generator) -> Change:
    """Scale small items whole, and both ends and the next share of large items."""
    items = 1 if spec.batch_axis is None else tensor.shape[spec.batch_axis]
    if items > 1 and not spec.range:
        sizes = [items if axis == spec.batch_axis else 1 for axis in range(tensor.dim())]
        tensor.mul_(1 - 0.01 * torch.rand(sizes, generator=generator, device=tensor.device))
    size = tensor.numel() // items
    if size < _LARGE:
        return _Scaled(spec, tensor, draw)
    if spec.batch_axis:
        items, size = 1, tensor.numel()
    ends = _Scaled(spec, tensor.as_strided((items, 2, _LINE), (size, size - _LINE, 1)), draw)
    count = min(_MOST_SHARES, size // (16 * _LINE))
    lines = tensor.as_strided((tensor.numel() // (count * _LINE), count, _LINE), (count * _LINE, _LINE, 1))
    shares = [_Scaled(spec, share, draw) for share in lines.unbind(1)]
    turn = cycle(shares)

    def change(far: bool) -> None:
        ends(far)
        for share in shares if far else (next(turn),):
            share(far)

    return change


class _Scaled:
    """Scale floats about the middle of their range."""

    def __init__(self, spec: TensorSpec, tensor: Tensor, draw: random.Random) -> None:
        self.tensor, self.draw, self.factor, self.is_odd = tensor, draw, 1.0, False
        self.middle, self.ranges = sum(spec.range or (0.0, 0.0)) / 2, _USER_FACTORS if spec.data else _DRAWN_FACTORS

    def __call__(self, far: bool) -> None:
        self.is_odd = not self.is_odd
        factor = self.draw.uniform(*self.ranges[self.is_odd])
        change, self.factor = _FAR if far else factor / self.factor, factor
        self.tensor.mul_(change)
        if self.middle:
            self.tensor.add_(self.middle * (1 - change))


def _draw_again(spec: TensorSpec, tensor: Tensor, generator: torch.Generator) -> Change:
    first, last = map(math.ceil, spec.range or (0, 2))
    return lambda far: tensor.random_(first, max(last, first + 1), generator=generator)


def _shuffle(tensors: Sequence[Tensor], generator: torch.Generator) -> Change:
    """Shuffle the last axis of tensors of one shape, in one order for all."""

    def shuffle(far: bool) -> None:
        order = torch.rand(tensors[0].shape, generator=generator, device=generator.device).argsort(-1)
        for tensor in tensors:
            tensor.copy_(tensor.gather(-1, order))

    return shuffle
