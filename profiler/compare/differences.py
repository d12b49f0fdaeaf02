"""List what the environments of the sides do not have in common."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from engines.catalog import ENGINES
from profiler.results.columns import Group, names
from profiler.results.environment import flat, versions_of_others
from profiler.tables.numbers import compact

Environment = Mapping[str, Any]

_FIRST = (
    *("machine", "cloud", "instance", "usd_per_hour", "device"),
    *("gpu", "gpu_memory_mib", "compute_capability", "driver", "sm_clock_mhz", "cuda", "cudnn"),
    *("cpu", "cpu_cores", "memory_mib", "torch_threads"),
    *names(Group.VERSIONS),
)
"""What a reader looks for first; all else follows in the environments' order."""
_OF_THE_RUN = ("command", "earlier_commands", "wall_seconds", "measured_roofs", "older_rows", "untested")
"""Keys of environment.json that describe the run, not the machine."""
_TWICE = frozenset(f"packages.{package}" for e in ENGINES.values() if e.version for package in e.version.packages)
"""Packages whose versions have a key of their own."""
_CLOSE = 0.02
"""Figures closer together than this share are the same: roofs and clocks are measured again in every run."""


def differences(sides: Mapping[str, Sequence[Environment]]) -> list[dict[str, str]]:
    """One row a fact that the sides do not have in common: `what`, then under each side's name its value or values.

    A value that a run says it does not have is "none"; what it did not record is no difference, and "" in its side, as
    is the version of what no row of the side ran in, where the environment has `engines`.
    """
    flat = {name: [_flatten(run) for run in runs] for name, runs in sides.items()}
    known = [key for runs in flat.values() for run in runs for key in run if run[key] is not _PART]
    rows = []
    for key in dict.fromkeys([*(key for key in _FIRST if key in known), *known]):
        values = {
            name: _distinct(value for run in runs for value in _recorded(run, key)) for name, runs in flat.items()
        }
        if len(_distinct(value for found in values.values() for value in found)) > 1:
            rows.append({"what": key, **{name: ", ".join(map(_text, found)) for name, found in values.items()}})
    return rows


_PART = object()
"""In place of a mapping: what it does not hold, the run does not have; and of what is not the side's."""


def _flatten(environment: Environment) -> dict[str, Any]:
    facts = {key: _PART if isinstance(value, Mapping) else value for key, value in flat(environment)}
    others = dict.fromkeys(versions_of_others(environment.get("engines", ENGINES)), _PART)
    return {
        key: value
        for key, value in (facts | others).items()
        if key.partition(".")[0] not in _OF_THE_RUN
        and key not in _TWICE
        and (value is _PART or value is None or isinstance(value, str | int | float))
    }


def _recorded(run: Mapping[str, Any], key: str) -> list[Any]:
    """The value in a list, [None] where the run has none, [] where it says nothing of it."""
    if key in run:
        return [] if run[key] is _PART else [run[key]]
    parent = key.partition(".")[0]
    return [None] if run.get(parent) is _PART else []


def _distinct(values: Iterator[Any]) -> list[Any]:
    """The values that are not close to one before them."""
    found: list[Any] = []
    for value in values:
        if not any(_close(value, other) for other in found):
            found.append(value)
    return found


def _close(one: Any, other: Any) -> bool:
    if isinstance(one, float) and isinstance(other, float | int):
        return abs(one - other) <= _CLOSE * max(abs(one), abs(other))
    return bool(one == other)


def _text(value: Any) -> str:
    return "none" if value is None else compact(value, 5) if isinstance(value, float) else str(value)
