"""The profiler: what enters is a YAML file, what leaves is a folder of results that can be trusted."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from profiler.results.reading import load, load_layers, read_runs

__all__ = ["load", "load_layers", "read_runs"]


def __getattr__(name: str) -> Any:
    """`from profiler import load` without making every import of the package pay for polars."""
    if name in __all__:
        from profiler.results import reading

        return getattr(reading, name)
    raise AttributeError(f"module 'profiler' has no attribute {name!r}")
