"""Measure two sides in turn, in fresh processes, until it is told whether the new one is slower than a limit allows.

A round is a process of each side for each cell, next to each other in time, so that what slows the machine slows both.
"""

from __future__ import annotations

import contextlib
import io
import math
import os
import subprocess
import tarfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree

import psutil
from rich.console import Console
from rich.text import Text

from engines.options import DEVICES, Device
from exporters.cache import check_root, default_root, most_bytes, trim
from profiler.compare.command import parse_limit
from profiler.errors import WHEN_IDLE, ConfigError
from profiler.job.case import Case, parse_only
from profiler.job.config import Config, JobFile
from profiler.machine import resolve_device
from profiler.options import Run as Options
from profiler.processes.forkserver import libraries, own_folder
from profiler.run.command import (
    begin,
    check_options,
    open_job,
    open_run,
    preloaded,
    read_job,
    read_seconds,
    resolved,
    write_results,
)
from profiler.run.model_job import ModelJob
from profiler.run.progress import Display
from profiler.run.runner import Runner, Supervisor
from profiler.stats.intervals import rounds_interval
from profiler.stats.samples import Interval
from profiler.tables.numbers import counted, duration, percent, relative
from profiler.worker.task import Task

REVISION = "git:"
_LIMIT, _WITHIN = "5%", "3m"
_SECONDS = 0.5
"""Sampling time of a process: processes differ more than a median of half a second is uncertain."""
_LOOK_SECONDS = 0.5
"""For which the load of the cores is looked at."""
_OF_MODULES: Mapping[Device, str] = {"cpu": "eager", "cuda": "eager-tuned"}
_OF_GRAPHS: Mapping[Device, str] = {"cpu": "ort", "cuda": "ort-tuned"}
"""Presets whose latency the device sets: launches from the host differ by a factor of two from process to process."""
_SLOWER, _UNTOLD = 1, 4
"""Exit codes."""


@dataclass
class Pair:
    """A cell that both sides have, and what was measured of it, as one of `tests` cells that one verdict is made of."""

    new: Case
    old: Case
    tests: int = 1
    logs: list[float] = field(default_factory=list)
    """By round the logarithm of how many times as long the new side took."""
    problem: str | None = None
    """Why the new side has no latency, or cannot be compared with the old one."""
    fails: bool = False
    """True where it is the new side that does not run."""
    seconds: float = 0.0
    """What the last round took."""

    @property
    def interval(self) -> Interval:
        return rounds_interval(self.logs, self.tests)

    def is_slower(self, limit: float) -> bool | None:
        """Tell whether the new side is slower than the limit allows; None while that cannot be told."""
        if self.problem is not None:
            return self.fails or None
        found = self.interval
        return True if found.low > 1 + limit else False if found.high <= 1 + limit else None

    @property
    def name(self) -> str:
        case = self.new
        parts = case.model, f"{case.variant} {case.precision}", case.pass_, f"batch {case.batch_size}", case.setting
        return ", ".join(filter(None, parts))

    def told(self, against: str, limit: float) -> str:
        """Say in words how the sides compare."""
        if self.problem is not None:
            return self.problem
        low, high = self.interval.low, self.interval.high
        if not math.isfinite(high):
            return f"no verdict yet against {against}: {len(self.logs)} of at least 3 rounds were measured"
        speed = 1 / math.sqrt(low * high)
        least = f"no verdict yet: so far this machine resolves {percent(math.sqrt(high / low) - 1)} %"
        words = {True: "over the limit of", False: "within the limit of", None: f"{least}, the limit is"}
        told = f"{words[self.is_slower(limit)]} {100 * limit:g} %"
        return f"{relative(speed, 1 / high, 1 / low)} against {against}, {len(self.logs)} processes each: {told}"


class _Side(NamedTuple):
    """The options and the job of a side."""

    options: Options
    job: JobFile | ModelJob


def execute(options: Options, console: Console) -> int:
    """Measure both sides in turn and say how they compare.

    Returns 1 where a cell is slower or no longer runs, 4 with --strict where one cannot be told, else 0. Raises
    ConfigError.
    """
    check_options(options)
    others: dict[str, object] = {
        "--resume": options.resume,
        "--replicates": options.replicates,
        "--dry-run": options.dry_run,
    }
    others |= {"--search": options.search, "--profile": options.profile, "--max-latency-ms": options.max_latency_ms}
    for name, given in others.items():
        if given:
            raise ConfigError(f"{name} and --against exclude each other: a gate measures as often as it takes")
    limit = parse_limit("--limit", options.limit or _LIMIT)
    within = read_seconds("--within", options.within or _WITHIN)
    check_root(default_root())
    against, started, interrupted = str(options.against), time.monotonic(), False
    with contextlib.ExitStack() as stack:
        sides, display = stack.enter_context(_sides(options)), stack.enter_context(Display(console))
        configs = [read_job(side.options, side.job, kind) for side in sides for kind in DEVICES]
        if taken := stack.enter_context(_off_busy_cores()):
            told = f"Other work keeps {counted(taken, 'core')} busy: both sides are measured on the rest"
            console.print(Text(told, style="dim"), soft_wrap=True)
        facts = stack.enter_context(libraries(preloaded(configs)))
        runners = []
        for side in sides:
            target = resolve_device(configs[0].device, facts)
            config = read_job(side.options, side.job, target.kind, target.hardware)
            start = resolved(side.options, console, config, target, facts, parse_only(options.only))
            runners.append(start.runner(stack.enter_context(open_run(start)), display))
            runners[-1].deadline = started + within
        runners[1].by_name = isinstance(sides[1].job, ModelJob)  # An old model that cannot be had is a mistake.
        cells, alone = pair(*(runner.chosen for runner in runners))
        try:
            _measure(runners[0], runners[1], cells, limit, started + within, against)
        except KeyboardInterrupt:
            interrupted = True
        for runner in runners:
            write_results(runner, Console(file=io.StringIO()), is_gate=True)
    trim(default_root(), most_bytes())
    if alone:
        console.print(Text(f"Not compared: {counted(alone, 'case')} that only one side has or can run", style="dim"))
    for cell in cells:
        console.print(Text(f"{cell.name}: {cell.told(against, limit)}"), soft_wrap=True)
    places = ", ".join(f"{of} {runner.run.path}" for of, runner in zip(("new", "old"), runners, strict=True))
    how = f"{'Interrupted after' if interrupted else 'Took'} {duration(time.monotonic() - started)}"
    console.print(Text(f"{how}; results: {places}", style="dim"), soft_wrap=True)
    if options.junit is not None:
        write_junit(options.junit, cells, against, limit)
    found = [cell.is_slower(limit) for cell in cells]
    if any(cell.problem is None and told is None for cell, told in zip(cells, found, strict=True)):
        option = WHEN_IDLE if taken else f"--within {2 * within / 60:.3g}m"
        console.print(Text(f"To settle what has no verdict yet: the same command with {option}"), soft_wrap=True)
    return 130 if interrupted else _SLOWER if True in found else _UNTOLD if None in found and options.strict else 0


@contextlib.contextmanager
def _off_busy_cores() -> Iterator[int]:
    """Leave other work as many cores as it keeps busy, since threads wait for the slowest of them; yields how many."""
    allowed = os.sched_getaffinity(0)
    busy = dict(enumerate(psutil.cpu_percent(_LOOK_SECONDS, percpu=True)))
    quietest = sorted(allowed, key=lambda core: busy.get(core, 0.0))
    taken = min(round(sum(busy.get(core, 0.0) for core in allowed) / 100), len(allowed) - 1)
    os.sched_setaffinity(0, quietest[: len(allowed) - taken])
    try:
        yield taken
    finally:
        os.sched_setaffinity(0, allowed)


def _measure(new: Runner, old: Runner, cells: Sequence[Pair], limit: float, deadline: float, against: str) -> None:
    """Add round after round to the cells, of which each leaves once it is told, as long as one more fits in.

    Raises ConfigError for an old model by name that cannot be had.
    """
    for runner in (new, old):
        begin(runner)
    with new.supervised() as (measure, holders):
        of_new = new.prepare([cell.new for cell in cells], holders)[1]
        try:
            of_old = old.prepare([cell.old for cell in cells], holders)[1]
        except ConfigError as error:
            raise ConfigError(f"--against {against}: {error}") from None
        sides = [_Measured(new, of_new, measure), _Measured(old, of_old, replace(measure, runner=old, cold={}))]
        holders.give_up()  # What a holder has lies at one place for all that are forked from it.
        for number in count():
            waiting = [cell for cell in cells if cell.problem is None and cell.is_slower(limit) is None]
            waiting = [cell for cell in waiting if time.monotonic() + cell.seconds < deadline]
            if not waiting:
                break
            for cell in waiting:
                began = time.monotonic()
                if began + cell.seconds < deadline:
                    is_whole = _add_round(cell, number, *sides)
                    cell.seconds = time.monotonic() - began if is_whole else math.inf


class _Measured(NamedTuple):
    """What measures a side."""

    runner: Runner
    task: Callable[[Case], Task]
    measure: Supervisor

    def latency(self, case: Case) -> float | str | None:
        """Measure a case; return its median, or why there is none; None where it did not end in the time."""
        self.runner.measure_each([self.task(case)], self.measure, is_estimated=False)
        if (result := self.runner.run.results().get(case.id)) is None:
            return None
        found = result.median(result.clock) if result.status == "ok" else None
        return f"{result.status}: {result.reason}" if found is None else found


def _add_round(cell: Pair, number: int, new: _Measured, old: _Measured) -> bool:
    """Measure a process of each side; who comes first changes from round to round. Returns whether both ended."""
    found = dict[bool, float]()
    for is_new in (True, False) if number % 2 else (False, True):
        side, case = (new, cell.new) if is_new else (old, cell.old)
        side.runner.display.what = f"[round {number + 1}, {'new' if is_new else 'old'}]"
        latency = side.latency(replace(case, replicate=number))
        if latency is None:
            return False
        if isinstance(latency, str):
            cell.problem, cell.fails = latency if is_new else f"the old side: {latency}", is_new
            return False
        found[is_new] = latency
    cell.logs.append(math.log(found[True] / found[False]))
    return True


def pair(new: Sequence[Case], old: Sequence[Case]) -> tuple[list[Pair], int]:
    """Pair the cells of both sides, and count those that only one has or can run.

    Models have one name on both sides, unless each side has only one. Raises ConfigError where nothing can be paired.
    """
    of_one = all(len({case.model for case in side}) == 1 for side in (new, old))
    keyed: list[Mapping[str, Case]] = [
        {case.id.partition("/")[2] if of_one else case.id: case for case in side if not case.replicate}
        for side in (new, old)
    ]
    runnable = [{key for key, case in side.items() if case.unsupported is None} for side in keyed]
    shared = [key for key in keyed[1] if key in runnable[1] and key in keyed[0]]
    if not shared:
        names = [", ".join(list(side)[:3]) or "nothing" for side in keyed]
        raise ConfigError(f"--against: the sides have nothing in common that runs here: {names[0]}; and {names[1]}")
    found = []
    for key in shared:
        why = keyed[0][key].unsupported
        found.append(Pair(keyed[0][key], keyed[1][key], len(shared), problem=why, fails=why is not None))
    return found, len((runnable[0] | runnable[1]) - {*shared})


def write_junit(path: Path, cells: Sequence[Pair], against: str, limit: float) -> None:
    """Write a JUnit report, a test a cell: slower is a failure, and what cannot be told is skipped.

    Raises ConfigError where the file cannot be written.
    """
    suite = ElementTree.Element("testsuite", name=f"runtime-profiler against {against}", tests=str(len(cells)))
    found = [cell.is_slower(limit) for cell in cells]
    suite.attrib |= {"failures": str(found.count(True)), "skipped": str(found.count(None)), "errors": "0"}
    for cell, is_slower in zip(cells, found, strict=True):
        took = f"{cell.seconds * len(cell.logs) if cell.logs else 0.0:.3f}"  # By the last round's seconds.
        case = ElementTree.SubElement(suite, "testcase", classname=cell.new.model, name=cell.name, time=took)
        text = cell.told(against, limit)
        if is_slower is not False:
            ElementTree.SubElement(case, "failure" if is_slower else "skipped", message=text)
        ElementTree.SubElement(case, "system-out").text = text
    try:
        ElementTree.ElementTree(suite).write(path, encoding="utf-8", xml_declaration=True)
    except OSError as error:
        raise ConfigError(f"--junit {path}: {error.strerror}") from None


@contextlib.contextmanager
def _sides(options: Options) -> Iterator[tuple[_Side, _Side]]:
    """Open the new and the old side. Raises ConfigError."""
    word, new = str(options.against), _Side(options, open_job(options))
    if not word.startswith(REVISION):
        shapes = () if Path(word).suffix == ".onnx" else options.inputs  # A file has its own shapes.
        old = replace(options, config=Path(word), inputs=[*shapes] or [text for text in options.inputs if "=" in text])
        yield _alike(new, _Side(old, open_job(old)))
        return
    with own_folder() as place:
        folder = place.resolve() / "revision"
        folder.mkdir()
        _check_out(word.removeprefix(REVISION), folder)
        is_file = options.config is not None and options.config.is_file()
        if is_file and not (folder / str(options.config)).resolve().is_relative_to(folder):
            raise ConfigError(f"--against {word}: {options.config} is not in this folder")
        output = read_job(new.options, new.job, "cpu").output.resolve()
        old = replace(options, config=folder / str(options.config) if is_file else options.config, output=output)
        job = open_job(old)
        if isinstance(job, ModelJob):
            job = replace(job, given={**job.given, "import_from": [str(folder)]})
        _check_inside(word, read_job(old, job, "cpu"), folder, isinstance(job, ModelJob))
        yield _alike(new, _Side(old, job))


def _check_inside(word: str, config: Config, folder: Path, is_alone: bool) -> None:
    """Raise ConfigError for a model that is not of the revision that lies in the folder: it would be the new one.

    Networks by name may be in a job, and not be all that is compared.
    """
    for entry in config.models:
        found: list[Path] = [path for path in (entry.onnx, entry.weights) if path is not None]
        if entry.factory is not None:
            parts = entry.factory.partition(":")[0].split(".")
            found += [Path(place, *parts) for place in config.import_from]
        there = (p for p in found if p.is_relative_to(folder) and (p.exists() or p.with_suffix(".py").exists()))
        if (found or is_alone) and next(there, None) is None:
            raise ConfigError(f"--against {word}: model {entry.name!r} is no file of this folder in that revision")


def _check_out(revision: str, folder: Path) -> None:
    """Put this folder as it was in a revision of its repository into another one. Raises ConfigError."""
    if not revision or revision.startswith("-"):
        raise ConfigError(f"--against {REVISION}{revision}: is no revision")
    try:
        done = subprocess.run(["git", "archive", "--format=tar", revision], capture_output=True, check=True)
        with tarfile.open(fileobj=io.BytesIO(done.stdout)) as archive:
            archive.extractall(folder, filter="data")
    except subprocess.CalledProcessError as error:
        why = error.stderr.decode(errors="replace").strip()
        raise ConfigError(f"--against {REVISION}{revision}: {why}") from None
    except (OSError, tarfile.TarError) as error:
        raise ConfigError(f"--against {REVISION}{revision}: git cannot check it out: {error}") from None


def _alike(new: _Side, old: _Side) -> tuple[_Side, _Side]:
    """Have models by name measured in one engine, precision and batch, as far as none was asked for."""
    jobs = [side.job for side in (new, old) if isinstance(side.job, ModelJob)]
    engines = _OF_GRAPHS if any(job.is_onnx for job in jobs) else _OF_MODULES
    budget = {"seconds": _SECONDS}
    sides = [
        _Side(side.options, side.job.narrowed(engines, budget) if isinstance(side.job, ModelJob) else side.job)
        for side in (new, old)
    ]
    return sides[0], sides[1]
