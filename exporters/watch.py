"""See the operators of torch that run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch.utils._python_dispatch import TorchDispatchMode


class Watch(TorchDispatchMode):
    """Inside, `see` gets each operator that is about to run, its arguments, and those by keyword."""

    supports_higher_order_operators = True

    def __init__(self, see: Callable[[Any, tuple[Any, ...], dict[str, Any]], object]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.see = see

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.see(getattr(func, "overloadpacket", func), args, kwargs or {})
        return func(*args, **(kwargs or {}))
