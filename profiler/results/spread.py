"""Know how far processes of one configuration differ on this machine: measured on the bases of this and earlier runs.

The base of each model is measured three times in a run, spread over it. The relative spread of its medians is pooled
over models and batch sizes, apart for figures that the host sets and figures that the device sets (docs/method.md).
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from exporters.cache import default_root
from exporters.whole_file import write_whole
from profiler.job.case import Case
from profiler.results.result import Result, is_set_by_host
from profiler.results.run_files import read_json
from profiler.results.warning_kinds import retaken
from profiler.stats.intervals import UNMEASURED, Spreads, deviations, pooled
from profiler.stats.samples import median

Sums = Mapping[str, tuple[float, float]]
"""Summed squares and degrees of freedom of "host" and of "device"."""
_KINDS = ("host", "device")
_MOST_RUNS = 20


def spreads(*sums: Sums) -> Spreads:
    """Pool what this and earlier runs measured."""
    found = {}
    for kind in _KINDS:
        parts = [part.get(kind, (0.0, 0.0)) for part in sums]
        spread = pooled(sum(part[0] for part in parts), sum(part[1] for part in parts))
        found[kind] = spread or getattr(UNMEASURED, kind)
    return Spreads(**found)


def of_bases(results: Iterable[tuple[Case, Result]], calm: bool = False) -> Sums:
    """Sum up how far the processes of each base differ; `calm`: without those that should be measured again."""
    cells: dict[str, list[Result]] = {}
    for case, result in results:
        if not case.is_base or result.status != "ok" or (calm and retaken(result.warnings)):
            continue
        cells.setdefault(case.id.cell, []).append(result)
    medians: dict[str, list[list[float]]] = {kind: [] for kind in _KINDS}
    for processes in cells.values():
        # One base may be on both sides of the line: its processes belong together all the same.
        by_host = any(map(is_set_by_host, processes))
        headline = processes[0].clock or ""
        for kind, clock in {"host": headline, "device": "gpu"}.items() if by_host else [("device", headline)]:
            found = (median(result.samples.get(clock, [])) for result in processes)
            medians[kind].append([value for value in found if value])
    return {kind: deviations(values) for kind, values in medians.items()}


def earlier(environment: Mapping[str, Any]) -> Sums:
    """Add up what earlier runs on this machine left in the cache; nothing where that cannot be read."""
    runs = _kept().get(_machine(environment), {})
    parts = [part for part in runs.values() if isinstance(part, dict)]
    return {kind: (sum(part[kind][0] for part in parts), sum(part[kind][1] for part in parts)) for kind in _KINDS}


def keep(environment: Mapping[str, Any], run_id: str, sums: Sums) -> None:
    """Leave what this run measured to later ones; a cache that cannot be written keeps what it has."""
    if not any(free for _, free in sums.values()):
        return
    kept = _kept()
    runs = {**kept.get(_machine(environment), {}), run_id: {kind: list(pair) for kind, pair in sums.items()}}
    kept[_machine(environment)] = dict(sorted(runs.items())[-_MOST_RUNS:])
    with contextlib.suppress(OSError):
        default_root().mkdir(parents=True, exist_ok=True)
        write_whole(_file(), json.dumps(kept, indent=1) + "\n")


def _file() -> Path:
    return default_root() / "spread.json"


def _kept() -> dict[str, dict[str, Any]]:
    try:
        found = read_json(_file())
        runs = [sums[kind] for runs in found.values() for sums in runs.values() for kind in _KINDS]
        whole = all(len(pair) == 2 and all(number >= 0 for number in pair) for pair in runs)
        return dict(found) if whole else {}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}


def _machine(environment: Mapping[str, Any]) -> str:
    return " / ".join(str(environment.get(key)) for key in ("device", "gpu", "cpu", "cpu_cores"))
