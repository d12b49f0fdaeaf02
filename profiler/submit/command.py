"""Check runs of suites, and write the folders that put their machine into the published tables."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from profiler.errors import ConfigError
from profiler.options import Submit as Options
from profiler.results.checked import first_line
from profiler.results.replicates import without_probes
from profiler.results.run_files import read_json
from profiler.submit.checks import label_of, notes, problems
from profiler.submit.cleaning import FILES, JOB, Cleaner, Run, read_run, write_data
from profiler.tables.numbers import counted
from profiler.tables.writers import slug

_SAME_MACHINE = ("gpu", "cpu", "device")
"""Of two runs that are called by one label, what they must agree in."""


@dataclass(frozen=True)
class Accepted:
    """A run, the folder that it lies in, and the one that it would be published in."""

    run: Run
    folder: Path
    target: Path


def execute(options: Options, console: Console) -> int:
    """Write what can be published of each run. Raises ConfigError with a line for everything that must be mended."""
    refused: list[str] = []
    accepted: list[Accepted] = []
    for folder in map(Path, options.runs):
        run = read_run(folder)
        wrong = problems(run, folder, Cleaner([run]), options.most_disturbed, options.incomplete)
        if not wrong:
            target = options.into / slug(label_of(run) or "") / slug(str(run.job["suite"]))
            wrong = _clashes(run, target, accepted)
            accepted += [] if wrong else [Accepted(run, folder, target)]
        refused += [f"{folder}: {sentence}" for sentence in wrong]
    for one in accepted:
        _write(one, console)
    if accepted:
        console.print(
            Text("In a checkout PYTHONPATH=. python benchmarks/publish_suites.py writes the pages from these.")
        )
    if refused:
        raise ConfigError("\n".join(refused))
    return 0


def _clashes(run: Run, target: Path, accepted: Sequence[Accepted]) -> list[str]:
    """Why the run cannot lie in `target`: another run, or another machine of this name, does."""
    if target in [other.target for other in accepted]:
        return [f"another of these runs is of {target.name} on {label_of(run)}, too: give one of the two"]
    there = {path.parent: _facts(path) for path in target.parent.glob("*/environment.json")}
    there |= {other.target: other.run.environment for other in accepted if other.target.parent == target.parent}
    for folder, environment in there.items():
        for key in _SAME_MACHINE:
            if folder != target and environment.get(key) != run.environment.get(key):
                return [
                    f"{label_of(run)} in {folder} is another machine ({key} {environment.get(key)}, here "
                    f"{run.environment.get(key)}): give this one another label by --resume and --machine"
                ]
    return []


def _facts(path: Path) -> dict[str, Any]:
    """What environment.json says of the machine. Raises ConfigError where it cannot be read."""
    try:
        return dict(read_json(path))
    except (OSError, ValueError, TypeError) as error:
        raise ConfigError(f"{path}: cannot be read: {first_line(error)}; remove it") from None


def _write(accepted: Accepted, console: Console) -> None:
    run, target = accepted.run, accepted.target
    cleaned = Cleaner([run]).run(run)
    # The first start's job does not know what --machine said at a later one.
    job = {**cleaned.job, "machine": cleaned.environment.get("machine") or {}}
    write_data(target, cleaned.results, cleaned.environment, {JOB: job})
    rows = without_probes(run.results)
    counts = rows["status"].value_counts(sort=True).iter_rows()
    size = sum((target / name).stat().st_size for name in FILES)
    listing = ", ".join(f"{number} {status}" for status, number in counts)
    console.print(Text(f"{target}: {counted(rows.height, 'row')} ({listing}), {size / 1024:.0f} KiB"))
    for note in notes(run, accepted.folder):
        console.print(Text(f"  {note}", style="dim"), soft_wrap=True)
