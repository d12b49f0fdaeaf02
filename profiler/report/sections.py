"""Put a report together: its title, its sections in the order of reading, and the texts of these.

In the texts of sections `…` is code.
"""

from __future__ import annotations

import contextlib
import shlex
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from profiler.errors import PROGRAM
from profiler.report import charts
from profiler.report.charts import Chart
from profiler.report.data import Data
from profiler.report.tables import tables
from profiler.results.choice import MAX_ERROR, Choice, cell_name
from profiler.results.reading import Runs, describe
from profiler.results.run_folder import read_text
from profiler.tables.numbers import count, error, times
from profiler.tables.table import Table

_TITLES = {
    "answer": "What to deploy",
    "speedups": "Speed-up by configuration",
    "latency": "Latency by batch size and shape",
    "throughput": "Throughput against latency",
    "memory": "Memory",
    "roofline": "Roofline",
    "training": "Training",
    "layers": "Layer by layer",
    "setup": "Set-up",
    "energy": "Energy and cost",
    "not-measured": "Not measured",
    "warnings": "Warnings",
    "environment": "Machine and versions",
    "method": "Method",
}
"""The sections in the order of reading; names of charts and tables begin with their section's."""
_OPEN = ("answer", "not-measured", "warnings", "environment")
_ANSWER = (
    "The lowest latency of each model and batch size among configurations whose error bound is at most "
    f"{error(MAX_ERROR)}. Tied ones are not told apart from it; a tie goes to the cheaper start."
)
_SET_UP = (
    "Once: export and build, which are kept. Every start: loading and the first call, and compiling where the engine "
    "does so in its process."
)
_METHOD = (
    "Every case runs in a process of its own, one at a time. Latency is the median time of one call: on a GPU between "
    "CUDA events, on a CPU by the host's clock; copies of inputs and outputs are not in it. fp32 is true fp32.",
    "An interval holds 95 %: the hull of sampling noise, the spread between processes on this machine, clocks that "
    "contradict each other, movement while sampling, and other work. Factors and verdicts follow from these intervals.",
)
_MOST_JOBS = 5
"""Whose commands and files are in a report."""


@dataclass(frozen=True)
class Section:
    """One part: its text, its charts and its tables.

    With `open` its tables are shown at once; otherwise a reader unfolds them. `code` are titles, and texts that can be
    unfolded below them, letter by letter.
    """

    name: str
    title: str
    text: Sequence[str] = ()
    charts: Sequence[Chart] = ()
    tables: Sequence[Table] = ()
    open: bool = False
    code: Sequence[tuple[str, str]] = ()


@dataclass(frozen=True)
class Report:
    """All that a report says, and the rows that its charts draw, by data set.

    `machine` is what was measured, and how many cases; `notes` are what was left out.
    """

    title: str
    machine: str
    sections: Sequence[Section]
    rows: Mapping[str, Sequence[Mapping[str, Any]]]
    notes: Sequence[str]

    @property
    def tables(self) -> list[Table]:
        return [table for section in self.sections for table in section.tables]

    @property
    def charts(self) -> list[Chart]:
        return [chart for section in self.sections for chart in section.charts]


def compose(data: Data) -> Report:
    rows, made = charts.rows(data), tables(data)
    drawn = {name: chart for name, chart in charts.make(charts.domains(data.cells)).items() if _has_rows(chart, rows)}
    texts = {
        "answer": [_ANSWER, *_command(data.runs)],
        "setup": [_SET_UP] if "setup" in made else [],
        "not-measured": [] if "not-measured" in made else ["Every case succeeded."],
        "warnings": [] if "warnings" in made else ["No warnings."],
        "environment": [*wall_time(data.runs), *data.runs.notes],
        "method": _METHOD,
    }
    sections = [
        Section(
            name,
            title,
            texts.get(name, ()),
            [drawn[key] for key in _own(name, drawn)],
            [made[key] for key in _own(name, made)],
            name in _OPEN,
            code(data.runs) if name == "environment" else (),
        )
        for name, title in _TITLES.items()
    ]
    shown = [section for section in sections if section.text or section.charts or section.tables]
    return Report(headline(data.choices), _machine(data), shown, rows, data.notes)


def headline(choices: Sequence[tuple[Mapping[str, Any], Choice]]) -> str:
    """Return the answer in short, like "Deploy compiled fp16 for 5 of 6 models and batch sizes"."""
    winners = [(key, choice.winner) for key, choice in choices if choice.winner is not None]
    # Inference is what gets deployed.
    winners = [(key, cell) for key, cell in winners if key["pass"] == "inference"] or winners
    if not winners:
        return "No configuration can be deployed" if choices else "No case succeeded"
    if len(winners) == 1:
        ((_, cell),) = winners
        if cell["is_base"]:
            return f"Deploy {cell_name(cell)}: nothing is faster"
        factor = cell["factor"] and times(*(cell[name] for name in ("factor", "factor_low", "factor_high")))
        return f"Deploy {cell_name(cell)}" + (f": {factor} {cell['base']}" if factor else "")
    ((name, number),) = Counter(cell_name(cell) for _, cell in winners).most_common(1)
    several = {key: len({group[key] for group, _ in winners}) > 1 for key in ("run", "setting")}
    words = [*(["runs"] if several["run"] else []), "models", *(["settings"] if several["setting"] else [])]
    groups = f"{', '.join(words)} and batch sizes"
    every = groups.replace("runs", "run").replace("models", "model").replace("settings", "setting")
    where = f"every {every.removesuffix('s')}" if number == len(winners) else f"{number} of {len(winners)} {groups}"
    return f"Deploy {name} for {where}"


def _has_rows(chart: Chart, rows: Mapping[str, Sequence[Mapping[str, Any]]]) -> bool:
    main, *others = chart.data
    return any(row[field] is not None for row in rows[main] for field in chart.needs) and all(rows[o] for o in others)


def _own(section: str, names: Iterable[str]) -> list[str]:
    return [name for name in names if name == section or name.startswith(f"{section}-")]


def _machine(data: Data) -> str:
    names = list(data.environments)
    machines = ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")
    counts = ", ".join(f"{count(number)} {status}" for status, number in data.statuses.items())
    return f"{machines} · {count(sum(data.statuses.values()))} cases: {counts}"


def _command(runs: Runs) -> list[str]:
    """Say where to ask under limits, unless the runs' addresses are too long or hold a backtick."""
    command = shlex.join(["recommend", *(run.address for run in runs.runs)])
    text = f"To choose under limits of latency, throughput, memory, error or cost: `{PROGRAM} {command}`"
    return [text] if len(text) < 300 and "`" not in command else []


def wall_time(runs: Runs) -> list[str]:
    times = [(run.name, run.environment["wall_seconds"]) for run in runs.runs if run.environment.get("wall_seconds")]
    return [f"{f'{name}: ' if len(runs.runs) > 1 else ''}{describe(seconds)}." for name, seconds in times]


def code(runs: Runs) -> list[tuple[str, str]]:
    """Return titles and texts: the commands and the job of each run."""
    found: list[tuple[str, str]] = []
    for run in runs.runs[:_MOST_JOBS]:
        commands = [*(run.environment.get("earlier_commands") or []), run.environment.get("command")]
        text = "\n".join(shlex.join(map(str, words)) for words in commands if words)
        name = f" of {run.name}" if len(runs.runs) > 1 else ""
        if text:
            found.append((f"Command{name}", text))
        with contextlib.suppress(OSError):  # There may be none, as at an object store's address.
            found.append((f"Job{name} (bench.yaml, as resolved)", read_text(Path(run.address) / "bench.yaml")))
    return found
