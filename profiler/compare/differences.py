"""Tell what the environments and models of several sides do not have in common."""

from __future__ import annotations

import math
from collections.abc import Container, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from engines.catalog import ENGINES
from exporters.source import MAY_COMPUTE_THE_SAME, Identity
from profiler.errors import ConfigError
from profiler.results.columns import Group, names
from profiler.results.reading import Runs, flat, versions_of_others
from profiler.results.result import printable
from profiler.results.run_folder import RunFolder
from profiler.tables.numbers import compact

Environment = Mapping[str, Any]
_FIRST = (
    *("machine", "cloud", "instance", "usd_per_hour", "device"),
    *("gpu", "gpu_memory_mib", "compute_capability", "driver", "sm_clock_mhz", "cuda", "cudnn"),
    *("cpu", "cpu_cores", "memory_mib", "torch_threads"),
    *names(Group.VERSIONS),
)
"""What a reader looks for first; all else follows in the environments' order."""
_OF_THE_RUN = ("command", "earlier_commands", "wall_seconds", "roofs_quiet", "older_rows", "untested")
"""Keys of environment.json that describe the run, not the machine."""
_TWICE = frozenset(f"packages.{package}" for e in ENGINES.values() if e.version for package in e.version.packages)
"""Packages whose versions have a key of their own."""
_CLOSE = 0.02
"""Figures closer together than this share are the same: roofs and clocks are measured again in every run."""
_PART = object()
"""Stands for a mapping: the run does not have what it does not hold. Also marks what is not the side's."""


def changed_models(
    runs: Runs, sides: Mapping[str, Sequence[str]], models: Container[str]
) -> tuple[list[dict[str, Any]], list[str]]:
    """Return the models that may be another network than in the first side that recorded them, and notes.

    `sides` has each side's run ids. A model is `certain` to be another unless only code differs, which may compute the
    same; `differs` names its parts. Notes say which run's models.json cannot be read.
    """
    recorded, notes = _recorded_models(runs)
    processors = {run_id: run.environment.get("cpu") for run in runs.runs for run_id in run.run_ids}
    first: dict[str, tuple[str, str, Identity]] = {}
    changes: dict[tuple[str, str, str], dict[str, None]] = {}
    for side, run_ids in sides.items():
        for run_id, subject, now in ((of, *each) for of in run_ids for each in recorded.get(of, {}).items()):
            name = subject.partition("/")[0]  # At several shapes it is recorded as several.
            base, base_run, before = first.setdefault(subject, (side, run_id, now))
            if base == side or name not in models:
                continue
            # Another processor or version of torch rounds otherwise, and outputs are recorded bit by bit.
            here = processors.get(run_id), now.parts.get("torch")
            rounds_alike = None not in here and here == (processors.get(base_run), before.parts.get("torch"))
            words = printable(before.changes(now, *([] if rounds_alike else ["outputs"])))
            changes.setdefault((name, base, side), {}).update(dict.fromkeys(words))
    return [
        {
            "model": name,
            "base": base,
            "side": side,
            "differs": [*words],
            "certain": not all(word.startswith(MAY_COMPUTE_THE_SAME) for word in words),
        }
        for (name, base, side), words in changes.items()
        if words
    ], notes


def _recorded_models(runs: Runs) -> tuple[dict[str, dict[str, Identity]], list[str]]:
    found: dict[str, dict[str, Identity]] = {}
    notes = []
    for run in runs.runs:
        try:
            models = RunFolder(Path(run.address)).read_models()
            identities = {subject: model.identity for subject, model in models.items()}
            found |= dict.fromkeys(run.run_ids, identities)
        except ConfigError:
            notes.append(f"{run.address}/models.json cannot be read; its models may be other networks")
    return found, notes


def differences(sides: Mapping[str, Sequence[Environment]]) -> list[dict[str, str]]:
    """Return one row a fact that the sides do not have in common: `what`, then each side's values under its name.

    A value that a run says it does not have is "none". What a run did not record is no difference, and "" in its side;
    so is the version of a library in which no row of the side ran, where the environment has `engines`.
    """
    flat = {name: [_flatten(run) for run in runs] for name, runs in sides.items()}
    known = [key for runs in flat.values() for run in runs for key in run if run[key] is not _PART]
    rows = []
    for key in dict.fromkeys([*(key for key in _FIRST if key in known), *known]):
        values = {
            name: _distinct(value for run in runs for value in _recorded(run, key)) for name, runs in flat.items()
        }
        if len(_distinct(value for found in values.values() for value in found)) > 1:
            rows.append({"what": key, **{name: ", ".join(map(_in_text, found)) for name, found in values.items()}})
    return rows


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
    """List the run's value: [None] where the run has none, [] where it says nothing of it."""
    if key in run:
        return [] if run[key] is _PART else [run[key]]
    parent = key.partition(".")[0]
    return [None] if run.get(parent) is _PART else []


def _distinct(values: Iterable[Any]) -> list[Any]:
    """List the values that are not close to an earlier one."""
    found: list[Any] = []
    for value in values:
        if not any(_is_close(value, other) for other in found):
            found.append(value)
    return found


def _is_close(one: Any, other: Any) -> bool:
    both = isinstance(one, float) and isinstance(other, float | int)
    return math.isclose(one, other, rel_tol=_CLOSE) if both else bool(one == other)


def _in_text(value: Any) -> str:
    return "none" if value is None else compact(value, 5) if isinstance(value, float) else str(value)
