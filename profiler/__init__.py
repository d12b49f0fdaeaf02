"""The profiler: what enters is a YAML file, what leaves is a folder of results that can be trusted."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from profiler.store import load, load_layers

__all__ = ["load", "load_layers"]


def __getattr__(name: str) -> Any:
    """`from profiler import load` without making every import of the package pay for polars."""
    if name in __all__:
        from profiler import store

        return getattr(store, name)
    raise AttributeError(f"module 'profiler' has no attribute {name!r}")
