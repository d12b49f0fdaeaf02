"""Measure networks in deployment runtimes, and read the results.

The functions here are what other programs may rely on; docs/api.md teaches them.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from profiler.commands.query import query as query_runs
    from profiler.compare.cells import compare as compare_runs
    from profiler.errors import ConfigError
    from profiler.recommend.answer import Request
    from profiler.recommend.answer import recommend as recommend_runs
    from profiler.results.cells import cells as cells_of
    from profiler.results.choice import Choice, Limit
    from profiler.results.reading import load, load_largest_batches, load_layers, read_runs
    from profiler.run.measure import measure
    from profiler.stats.samples import effective_size, median_interval
else:
    _PLACES = {
        **dict.fromkeys(("load", "load_largest_batches", "load_layers", "read_runs"), "results.reading"),
        **dict.fromkeys(("effective_size", "median_interval"), "stats.samples"),
        **dict.fromkeys(("Choice", "Limit"), "results.choice"),
        "ConfigError": "errors",
        "measure": "run.measure",
        # Under other names, since profiler.compare is the package once it is imported.
        "cells_of": "results.cells:cells",
        "compare_runs": "compare.cells:compare",
        "query_runs": "commands.query:query",
        "Request": "recommend.answer",
        "recommend_runs": "recommend.answer:recommend",
    }

    def __getattr__(name: str) -> Any:
        """Import only the requested name, so that `python -m profiler --help` does not import polars."""
        if name not in _PLACES:
            raise AttributeError(f"module 'profiler' has no attribute {name!r}")
        module, _, own_name = _PLACES[name].partition(":")
        return getattr(import_module(f"profiler.{module}"), own_name or name)


__all__ = [
    "Choice",
    "ConfigError",
    "Limit",
    "Request",
    "cells_of",
    "compare_runs",
    "effective_size",
    "load",
    "load_largest_batches",
    "load_layers",
    "measure",
    "median_interval",
    "query_runs",
    "read_runs",
    "recommend_runs",
]
