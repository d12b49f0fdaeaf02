"""Measure networks in deployment runtimes, and read what runs measured.

The functions here are what other programs may rely on; docs/api.md teaches them.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from profiler.compare.cells import compare as compare_runs
    from profiler.errors import ConfigError
    from profiler.published.references import published_as_results
    from profiler.query import query as query_runs
    from profiler.recommend.choice import Limit, Request
    from profiler.recommend.choice import recommend as recommend_runs
    from profiler.results.reading import load, load_layers, read_runs
    from profiler.results.speedups import summary
    from profiler.run.measure import measure
    from profiler.stats.samples import effective_size, median_interval

__all__ = [
    "ConfigError",
    "Limit",
    "Request",
    "compare_runs",
    "effective_size",
    "load",
    "load_layers",
    "measure",
    "median_interval",
    "published_as_results",
    "query_runs",
    "read_runs",
    "recommend_runs",
    "summary",
]
_PLACES = {
    **dict.fromkeys(("load", "load_layers", "read_runs"), "results.reading"),
    **dict.fromkeys(("Limit", "Request"), "recommend.choice"),
    **dict.fromkeys(("effective_size", "median_interval"), "stats.samples"),
    "ConfigError": "errors",
    "measure": "run.measure",
    "published_as_results": "published.references",
    "summary": "results.speedups",
    # Not by their own names: profiler.compare, once it is imported, is the package.
    "compare_runs": "compare.cells:compare",
    "query_runs": "query:query",
    "recommend_runs": "recommend.choice:recommend",
    # What Request was called before.
    "Wanted": "recommend.choice:Request",
}


def __getattr__(name: str) -> Any:
    """Import what is asked for, and only that: `python -m profiler --help` does not pay for polars."""
    if name not in _PLACES:
        raise AttributeError(f"module 'profiler' has no attribute {name!r}")
    module, _, own_name = _PLACES[name].partition(":")
    return getattr(import_module(f"profiler.{module}"), own_name or name)
