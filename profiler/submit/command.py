"""Check runs of suites for what would mislead a reader of their published figures, and write the folders that put their
machine into the published tables."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl
from rich.console import Console
from rich.text import Text

from engines.catalog import Device, known
from profiler.bundled import bundled, jobs
from profiler.errors import PROGRAM, ConfigError, measuring_again, resuming
from profiler.job.config import load_config
from profiler.job.plan import make_plan
from profiler.options import Submit as Options
from profiler.published.printed import MARKED
from profiler.published.references import networks
from profiler.published.studies import STUDIES
from profiler.results.cells import OK
from profiler.results.columns import kind_of_warning
from profiler.results.run_files import first_line, read_json
from profiler.results.warning_kinds import DISTURBED
from profiler.submit.cleaning import FILES, JOB, Cleaner, Run, read_run, write_data
from profiler.tables.numbers import counted, listed, percent
from profiler.tables.writers import slug

_SAME_MACHINE = ("gpu", "cpu", "device")
"""Of two runs that are called by one label, what they must agree in."""
_FACTS = {"cuda": ("gpu", "driver", "cuda", "cpu", "python"), "cpu": ("cpu", "cpu_cores", "python")}
"""What environment.json must say of the machine, by its device."""


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
    rows = run.results
    counts = rows["status"].value_counts(sort=True).iter_rows()
    size = sum((target / name).stat().st_size for name in FILES)
    listing = ", ".join(f"{number} {status}" for status, number in counts)
    console.print(Text(f"{target}: {counted(rows.height, 'row')} ({listing}), {size / 1024:.0f} KiB"))
    for note in notes(run, accepted.folder):
        console.print(Text(f"  {note}", style="dim"), soft_wrap=True)


def label_of(run: Run) -> str | None:
    """What the user calls the machine."""
    machine = run.environment.get("machine")
    return (machine.get("label") if isinstance(machine, dict) else machine) or None


def problems(run: Run, folder: Path, clean: Cleaner, most_disturbed: float, incomplete: bool = False) -> list[str]:
    """One sentence for everything that must be mended before the run, which lies in `folder`, can be published.

    A few disturbed rows do no harm, since their intervals are wide; where they are a larger share of the rows than
    `most_disturbed`, the machine was in use, and rows that no check caught are wrong, too. Cases without a row are
    no problem where the run may be `incomplete`: the list of the published runs names them.
    """
    if str(run.job.get("published")) not in STUDIES:
        return [
            f"no published benchmark has a table for it: run a suite, which {PROGRAM} suites lists, or give the job "
            f"the key `published` ({', '.join(STUDIES)})"
        ]
    suites = sorted(path.stem for path in bundled("suites").glob("*.yaml"))
    if (suite := str(run.job.get("suite"))) not in suites:
        return [f"its job '{suite}' is no suite, so its rows have no page: run one of {', '.join(suites)}"]
    # What is to be measured anew needs no gaps filled.
    found = [*_rough(run)] or [*_incomplete(run, folder, incomplete), *_disturbed(run, folder, most_disturbed)]
    found += [*_nameless(run, folder), *_without_versions(run)]
    if left := clean.left(clean.run(run)):
        found.append(f"after cleaning it still names {listed(left)}: take that out of the job, and measure again")
    return found


def notes(run: Run, folder: Path) -> list[str]:
    """What the tables will mark, and how it could be had better."""
    rows = run.results.filter(OK)
    found = []
    for kind in MARKED:
        if number := _carrying(rows, kind):
            # What was submitted before has no journal to go on with.
            can_go_on = kind == DISTURBED and (folder / "journal.jsonl").is_file()
            mend = f"; to measure those again: {measuring_again(folder)}" if can_go_on else ""
            found.append(f"{number} of {counted(rows.height, 'row')} {kind}, which the tables mark{mend}")
    return found


def _incomplete(run: Run, folder: Path, may_lack: bool) -> Iterator[str]:
    """Cases of the job without a row, and a run in which nothing could be measured."""
    try:
        device, config = _device(run), load_config(folder / "bench.yaml", _device(run))
        cases = make_plan(config, device, hardware=run.environment.get("compute_capability"))
    except ConfigError as error:
        yield f"its job cannot be planned by this version ({error}): submit it with the version that measured it"
        return
    measured = set(run.results["case_id"])
    missing = [str(case.id) for case in cases if str(case.id) not in measured]
    if missing and not may_lack:
        yield (
            f"{len(missing)} of {counted(len(cases), 'case')} have no row, such as {missing[0]}: "
            f"measure them by {resuming(folder)}, or submit what there is by --incomplete"
        )
    if not run.results.filter(OK).height:
        yield f"no row has figures: see why in its tables, then {resuming(folder)} --retry"


def _disturbed(run: Run, folder: Path, most: float) -> Iterator[str]:
    rows = run.results.filter(OK)
    number = _carrying(rows, DISTURBED)
    if number > most * rows.height:
        yield (
            f"{number} of {counted(rows.height, 'row')} were disturbed by other work, more than "
            f"{percent(most)} %: measure them again by {measuring_again(folder)}"
        )


def _rough(run: Run) -> Iterator[str]:
    """A shipped suite that was sampled for less than it says, as by --quick."""
    suite, seconds = str(run.job.get("suite")), (run.job.get("budget") or {}).get("seconds")
    if seconds is None:
        return
    asked = load_config(jobs()[suite], _device(run)).budget.seconds
    if seconds < asked:
        yield (
            f"its cases were sampled for {seconds:g} s, the suite asks for {asked:g}: "
            f"measure it by {PROGRAM} {suite} without --quick or --seconds"
        )


def _nameless(run: Run, folder: Path) -> Iterator[str]:
    name = label_of(run)
    again = f"{resuming(folder)} --machine {shlex.quote(f'label={_usual_name(run)}')}"
    taken = networks(str(run.job["published"]))["machine"].unique().str.strip_prefix("CPU: ").to_list()
    if not name or not slug(name):
        yield f"its machine has no name: give one, without measuring again, by {again}"
    elif name in taken or slug(name) in map(slug, (*taken, *jobs())):
        yield f"'{name}' is a published machine or a suite, so its rows could not be told apart: rename it by {again}"


def _usual_name(run: Run) -> str:
    """What people call its GPU or processor: "NVIDIA H200" is H200, "Intel(R) Xeon(R) CPU @ 2.70GHz" is Xeon."""
    name = run.environment.get("gpu" if _device(run) == "cuda" else "cpu") or "NAME"
    without = re.sub(r"\((?:R|TM)\)|\b(?:NVIDIA|Intel|AMD|CPU|Processor|\d+-Core)\b|@.*|,", " ", str(name))
    return " ".join(without.split()) or "NAME"


def _without_versions(run: Run) -> Iterator[str]:
    """Facts of the machine, and versions of what ran, that the run does not say."""
    unknown = [fact for fact in _FACTS[_device(run)] if run.environment.get(fact) is None]
    for engine in run.results.filter(OK)["engine"].unique(maintain_order=True):
        version = known(engine).version
        if version and run.results.filter(OK, engine=engine)[version.column].null_count():
            unknown.append(version.column)
    if unknown:
        yield (
            f"it does not say what {listed(dict.fromkeys(unknown))} it ran on: measure it again with an installed "
            f"copy of this version ({PROGRAM} environment prints what is recorded)"
        )


def _device(run: Run) -> Device:
    device = run.environment.get("device") or run.results["device"].drop_nulls().first()
    return "cpu" if device == "cpu" else "cuda"


def _carrying(rows: pl.DataFrame, kind: str) -> int:
    """Count the rows that carry a warning of the kind."""
    return int(rows["warnings"].list.eval(kind_of_warning(pl.element())).list.contains(kind).sum())
