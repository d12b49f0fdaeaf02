"""Print what a job would do, and how long that takes; no model is made, and nothing is prepared or measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from profiler.errors import ConfigError
from profiler.job.case import Budget, Case
from profiler.job.plan import estimate_seconds
from profiler.results.run_folder import RunFolder, read_json
from profiler.tables.numbers import count, counted, duration
from profiler.tables.table import name, of_rows
from profiler.tables.writers import print_pairs, print_table

_RUNS = 10
"""The latest runs that are read."""
_SAME = ("device", "gpu", "cpu", "cpu_cores", "sampling_seconds")
"""Keys of environment.json in which an earlier run must agree."""


def earlier_seconds(folder: Path, environment: Mapping[str, Any], budget: Budget) -> dict[str, float]:
    """Read the wall time of each case id from the latest runs in a folder, on this machine with this sampling time."""
    here = {**environment, "sampling_seconds": budget.seconds}
    seconds: dict[str, float] = {}
    for path in sorted(folder.glob("*/environment.json"))[-_RUNS:]:  # Their names begin with the time.
        try:
            facts = read_json(path)
            if all(facts.get(key) == here.get(key) for key in _SAME):
                results = RunFolder(path.parent).results()
                seconds |= {id_: sum(each.phases.values()) for id_, each in results.items() if each.status == "ok"}
        except (OSError, ValueError, AttributeError, ConfigError):
            continue
    return seconds


def print_plan(
    console: Console,
    machine: str,
    cases: Sequence[Case],
    budget: Budget,
    earlier: Mapping[str, float],
    idle_minutes: float | None = None,
) -> int:
    """Print the cases with a time, or why they cannot run. Returns the exit code: 2 where no case can run."""
    runnable = [case for case in cases if case.unsupported is None]
    reasons = list(dict.fromkeys(case.unsupported for case in cases if case.unsupported))
    seconds = {case.id: earlier.get(case.id, estimate_seconds(case, budget)) for case in runnable}
    rows = []
    for case in cases:
        text = f"unsupported ({reasons.index(case.unsupported) + 1})" if case.unsupported else ""
        rows.append((case.id, text or f"{count(seconds[case.id])} s{'' if case.id in earlier else ' (guess)'}"))
    # Beside long names a third column would not fit.
    print_table(console, of_rows("", [name("Case", "case"), name("Time", "time")], rows))
    if reasons:
        console.print()
        print_pairs(console, [(Text(f"({n})", "yellow"), Text(str(why))) for n, why in enumerate(reasons, 1)], gap=1)
    text = f"\n{machine}: {len(runnable)} of {counted(len(cases), 'case')} can run here"
    if runnable:
        known = sum(case.id in earlier for case in runnable)
        source = f"{known} as in earlier runs here, {len(runnable) - known} guessed"
        text += f", in about {duration(sum(seconds.values()))} besides preparing the models ({source})"
        if idle_minutes is not None:
            text += f", plus up to {idle_minutes:g} min of waiting before each"
    console.print(Text(text), soft_wrap=True)
    return 0 if runnable else 2
