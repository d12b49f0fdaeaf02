"""Find the state that a module keeps between calls."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

_PLAIN = (int, float, str, bool, bytes, type(None))


class HeldState(NamedTuple):
    """Values of a module's buffers and attributes, by their paths."""

    values: Mapping[str, list[Any]]

    def changes(self, before: HeldState) -> list[str]:
        """Return the places whose values differ from `before`."""
        names = dict.fromkeys((*before.values, *self.values))
        return [name for name in names if not _alike(self.values.get(name), before.values.get(name))]


def held_state(model: object) -> HeldState:
    """Copy a module's buffers, tensors and numbers, but no parameters; other objects have no state."""
    values: dict[str, list[Any]] = {}
    for path, module in model.named_modules() if isinstance(model, nn.Module) else ():
        attributes = {n: v for n, v in vars(module).items() if not n.startswith("_")}
        for name, value in {**module._buffers, **attributes}.items():
            leaves = [leaf for leaf in tree_leaves(value) if isinstance(leaf, (Tensor, *_PLAIN))]
            values[f"{path}.{name}".lstrip(".")] = list(map(_copy, leaves))
    return HeldState(values)


def _copy(leaf: Any) -> Any:
    if not isinstance(leaf, Tensor):
        return leaf
    leaf = leaf.detach()
    return leaf.clone() if leaf.layout == torch.strided else leaf.to_dense()


def _alike(now: list[Any] | None, before: list[Any] | None) -> bool:
    if now is None or before is None or len(now) != len(before):
        return now is before
    return all(
        torch.equal(a, b) if isinstance(a, Tensor) and isinstance(b, Tensor) else type(a) is type(b) and a == b
        for a, b in zip(now, before, strict=True)
    )
