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
from profiler.tables import numbers
from profiler.tables.numbers import counted, duration, grouped
from profiler.tables.table import figure, name, of_rows, words
from profiler.tables.writers import print_table

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
    console: Console, machine: str, cases: Sequence[Case], budget: Budget, earlier: Mapping[str, float]
) -> int:
    """Print a row a model, variant and pass. Returns the exit code: 2 where no case can run."""
    seconds = {case.id: earlier.get(case.id, estimate_seconds(case, budget)) for case in cases}
    groups = grouped(((case.model, case.variant, case.pass_, case.unsupported), seconds[case.id]) for case in cases)
    rows = [
        (*key, len(times), f"unsupported: {why}" if why else duration(sum(times)))
        for (*key, why), times in groups.items()
    ]
    columns = [name("Model", "model"), name("Variant", "variant"), name("Pass", "pass")]
    print_table(console, of_rows("", [*columns, figure("Cases", "cases", numbers.whole), words("Time", "time")], rows))
    runnable = [case.id for case in cases if case.unsupported is None]
    text = f"\n{machine}: {len(runnable)} of {counted(len(cases), 'case')} can run here"
    if runnable:
        known = sum(id_ in earlier for id_ in runnable)
        total = duration(sum(seconds[id_] for id_ in runnable))
        text += f", in about {total} besides preparing the models ({known} as in earlier runs here, the others guessed)"
    console.print(Text(text), soft_wrap=True)
    return 0 if runnable else 2
