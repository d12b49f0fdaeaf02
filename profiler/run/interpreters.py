"""Look at the other interpreters that a job names, before anything is measured in them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from engines.catalog import Device
from profiler.job.case import Case
from profiler.job.config import Config
from profiler.processes.other_python import Interpreter, Unusable, look_at
from profiler.results.columns import Group, columns
from profiler.tables.writers import print_pairs


def with_interpreters(
    config: Config, plan: Sequence[Case], chosen: Sequence[Case], device: Device
) -> tuple[list[Case], dict[str, Any]]:
    """The plan, a case `unsupported` where its interpreter lacks the engine's library, and what environment.json says
    of the interpreters of the `chosen` cases, by label under `interpreters`; nothing where there is none.

    It runs them, so that a run of others must have been trusted before. Raises ConfigError, with the line of the job,
    for one in which no worker could run.
    """
    labels, interpreters = {case.variant for case in chosen if case.python}, dict[str, Any]()
    known = dict[Path, Interpreter]()
    for number, entry in enumerate(config.engines):
        if entry.python is not None and entry.label in labels:
            workers = dict.fromkeys(_worker(case) for case in chosen if case.python == entry.python)
            try:
                found = known.get(entry.python) or look_at(entry.python, device, list(workers))
            except Unusable as error:
                raise config.error(str(error), "engines", number, "python") from None
            known[entry.python], interpreters[entry.label] = found, dict(found.facts)
    checked = []
    for case in plan:
        lacking = known[case.python].lacking.get(_worker(case)) if case.python in known else None
        why = case.unsupported or (f"{case.python}: {lacking}" if lacking else None)
        checked.append(replace(case, unsupported=why))
    return checked, {"interpreters": interpreters} if known else {}


def _worker(case: Case) -> str:
    return f"{case.engine} {case.precision}"


def print_interpreters(console: Console, environment: Mapping[str, Any]) -> None:
    """A line a label, like "ort-1.27  Python 3.11.7, torch 2.13.0, ONNX Runtime 1.27.0 of .venvs/ort127/bin/python"."""
    known = environment.get("interpreters") or {}
    lines = []
    for label, facts in known.items():
        versions = (f"{c.heading} {facts[c.name]}" for c in columns(Group.VERSIONS) if facts.get(c.name))
        lines.append((Text(f"  {label}"), Text(f"{', '.join(versions)} of {facts['path']}")))
    if lines:
        console.print(Text("Measured in other interpreters", style="bold"))
        print_pairs(console, lines)
