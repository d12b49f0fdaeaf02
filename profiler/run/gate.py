"""Measure two sides in turn, in fresh processes, until each cell has a verdict on the limit.

A round is a process of each side for each cell, next to each other in time: what slows the machine slows both.
"""

from __future__ import annotations

import contextlib
import io
import math
import subprocess
import tarfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree

from rich.console import Console

from engines.options import DEVICES, Device
from exporters.cache import check_root, default_root, most_bytes, trim
from profiler.compare.command import parse_limit
from profiler.errors import WHEN_IDLE, ConfigError
from profiler.job.case import Case, parse_only
from profiler.job.config import Config, JobFile
from profiler.machine.target import core_loads, on_cores, resolve_device, usable_cores
from profiler.options import Run as Options
from profiler.processes.forkserver import libraries, own_folder
from profiler.results.result import Result
from profiler.results.run_folder import writable
from profiler.results.warning_kinds import DISTURBED
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
from profiler.run.runner import Runner
from profiler.stats.intervals import rounds_interval
from profiler.stats.samples import Interval
from profiler.tables.numbers import BUSY, counted, duration, grouped, percent, relative
from profiler.tables.writers import say

REVISION = "git:"
_LIMIT, _WITHIN = "5%", "3m"
_SECONDS = 0.5
"""Sampling time of a process: the spread between processes exceeds the error of half a second's median."""
_MOST_NAMES = 3
_MODULE_PRESETS: Mapping[Device, str] = {"cpu": "eager", "cuda": "eager-tuned"}
_GRAPH_PRESETS: Mapping[Device, str] = {"cpu": "ort", "cuda": "ort-tuned"}
"""Default presets. The device sets their latency; launches from the host vary by a factor of two between processes."""
_QUIET_MINUTES = 25
"""Waiting takes at most 40 % of the time."""
_MOST_TIMES = 8
"""Advise no more than this many times the time of the gate."""
_ADVICE: Mapping[str, tuple[str, Callable[[float, float], str]]] = {
    "time": ("the time ended too soon", lambda times, within: f"--within {math.ceil(times * within)}s"),
    "quiet": ("other work ran during most rounds", lambda *_: f"{WHEN_IDLE} --within {_QUIET_MINUTES}m"),
    "limit": ("more rounds would not help", lambda high, _: f"--limit {math.ceil(100 * (high - 1))}%"),
}
"""Map each need of undecided cells to why, and to the option that helps, given the largest amount and --within."""
_SLOWER, _UNDECIDED = 1, 4
"""Exit codes."""


@dataclass
class Pair:
    """A cell of both sides and its rounds, one of the gate's `tests`."""

    new: Case
    old: Case
    tests: int = 1
    logs: list[float] = field(default_factory=list)
    """Logarithms of new over old latency, by round."""
    problem: str | None = None
    """Why the sides cannot be compared: one of them has no latency."""
    fails: bool = False
    """True if the new side does not run."""
    seconds: float = 0.0
    """Duration of all rounds."""
    disturbed: int = 0
    """Number of rounds beside other work."""
    next_seconds: float = 0.0
    """Expected duration of the next round: the last one's."""

    @property
    def interval(self) -> Interval:
        return rounds_interval(self.logs, self.tests)

    def is_slower(self, limit: float) -> bool | None:
        """Return whether the new side is slower than the limit allows; None without a verdict."""
        if self.problem is not None:
            return self.fails or None
        low, high = self.interval.low, self.interval.high
        return True if low > 1 + limit else False if high <= 1 + limit else None

    def need(self, limit: float, can_wait: bool) -> tuple[str, float]:
        """Return a key of _ADVICE and its amount, for a cell without a verdict."""
        rounds, high = len(self.logs), self.interval.high
        if not math.isfinite(high):
            return "time", 4 - rounds
        if can_wait and 2 * self.disturbed > rounds:
            return "quiet", 0.0
        alike = ((times, replace(self, logs=self.logs * times)) for times in range(2, _MOST_TIMES + 1))
        return next((("time", times) for times, cell in alike if cell.is_slower(limit) is not None), ("limit", high))

    @property
    def name(self) -> str:
        case = self.new
        parts = case.model, f"{case.variant} {case.precision}", case.pass_, f"batch {case.batch_size}", case.setting
        return ", ".join(filter(None, parts))

    def describe(self, against: str, limit: float) -> str:
        """Say how the sides compare."""
        if self.problem is not None:
            return self.problem
        low, high = self.interval.low, self.interval.high
        if not math.isfinite(high):
            return f"no verdict yet against {against}: {len(self.logs)} of at least 3 rounds were measured"
        speed = 1 / math.sqrt(low * high)
        resolution = f"no verdict yet: so far this machine resolves {percent(math.sqrt(high / low) - 1)} %"
        words = {True: "over the limit of", False: "within the limit of", None: f"{resolution}, the limit is"}
        verdict = f"{words[self.is_slower(limit)]} {100 * limit:g} %"
        factor = relative(speed, 1 / high, 1 / low)
        factor = "by an unknown factor, as other work ran," if factor == BUSY else factor
        return f"{factor} against {against}, {len(self.logs)} processes each: {verdict}"


class _Side(NamedTuple):
    """The options and the job of a side."""

    options: Options
    job: JobFile | ModelJob

    def narrowed(self, engines: Mapping[Device, str]) -> _Side:
        """Default a bare model to one engine, precision and batch."""
        job = self.job
        return self._replace(job=job.narrowed(engines, {"seconds": _SECONDS}) if isinstance(job, ModelJob) else job)


def execute(options: Options, console: Console) -> int:
    """Measure both sides in turn and say how they compare.

    Returns 1 if a cell is slower or no longer runs, 4 with --strict if one has no verdict, else 0. Raises ConfigError.
    """
    check_options(options)
    limit = parse_limit("--limit", options.limit or _LIMIT)
    within = read_seconds("--within", options.within or _WITHIN)
    check_root(default_root())
    against, started, interrupted = str(options.against), time.monotonic(), False
    with contextlib.ExitStack() as stack:
        sides, display = stack.enter_context(_sides(options)), stack.enter_context(Display(console))
        configs = [read_job(side.options, side.job, kind) for side in sides for kind in DEVICES]
        if busy := busy_cores():  # Threads wait for the slowest one.
            stack.enter_context(on_cores(usable_cores() - busy))
            say(console, f"Other work keeps {counted(busy, 'core')} busy: both sides are measured on the rest", "dim")
        facts = stack.enter_context(libraries(preloaded(configs)))
        runners = []
        for side in sides:
            target = resolve_device(configs[0].device, facts)
            config = read_job(side.options, side.job, target.kind, target.hardware)
            start = resolved(side.options, console, config, target, facts, parse_only(options.only))
            is_old = side is sides[1]  # An old model that cannot be loaded is a mistake.
            by_name = is_old and isinstance(side.job, ModelJob)
            runners.append(start.runner(stack.enter_context(open_run(start)), display, by_name))
            runners[-1].started = started
            runners[-1].begin_in(within)
        cells, lost, added = pair(*(runner.chosen for runner in runners))
        try:
            _measure(runners[0], runners[1], cells, limit, against)
        except KeyboardInterrupt:
            interrupted = True
        for runner in runners:
            write_results(runner, Console(file=io.StringIO()), is_gate=True)
    trim(default_root(), most_bytes())
    for why, names in grouped((str(cell.problem), cell.name) for cell in (*lost, *added)).items():
        others = f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
        say(console, f"Not compared: {'; '.join(names[:_MOST_NAMES])}{others}: {why}", "dim")
    for cell in cells:
        say(console, f"{cell.name}: {cell.describe(against, limit)}")
    cells += lost  # Without a verdict.
    places = f"new {runners[0].run.path}, old {runners[1].run.path}"
    action = f"{'Interrupted after' if interrupted else 'Took'} {duration(time.monotonic() - started)}"
    say(console, f"{action}; results: {places}", "dim")
    if options.junit is not None:
        write_junit(options.junit, cells, against, limit)
    if interrupted:
        return 130
    verdicts = [cell.is_slower(limit) for cell in cells]
    undecided = [cell for cell in cells if cell.problem is None and cell.is_slower(limit) is None]
    needs = grouped(cell.need(limit, can_wait=options.wait_for_idle is None) for cell in undecided)
    for code, amounts in needs.items():
        why, option = _ADVICE[code]
        advice = f"{why}; repeat the command with {option(max(amounts), within)}"
        say(console, f"No verdict yet on {counted(len(amounts), 'cell')}: {advice}")
    if None in verdicts and True not in verdicts and not options.strict:
        say(console, "Cells without a verdict pass: the exit code is 0, with --strict 4")
    return _SLOWER if True in verdicts else _UNDECIDED if None in verdicts and options.strict else 0


def busy_cores() -> int:
    """Return the number of cores that other work keeps busy, at most all but one."""
    loads = core_loads()
    return min(round(sum(loads.values())), len(loads) - 1)


def _measure(new: Runner, old: Runner, cells: Sequence[Pair], limit: float, against: str) -> None:
    """Measure rounds until every cell has a verdict or no further round fits into the time."""
    for runner in (new, old):
        begin(runner)
    with new.supervised():
        old.supervisor = replace(new.supervisor, logs=old.run.logs, path=old.config.path, cold={})
        try:  # First: a mistake in its name should show at once.
            old.prepare([cell.old for cell in cells])
        except ConfigError as error:
            raise ConfigError(f"--against {against}: {error}") from None
        new.prepare([cell.new for cell in cells])
        new.supervisor.holders.give_up()  # All forks of a holder would share its memory layout.
        for number in count():
            waiting = [cell for cell in cells if cell.problem is None and cell.is_slower(limit) is None]
            waiting = [cell for cell in waiting if not new.is_over(cell.next_seconds)]
            if not waiting:
                break
            for cell in waiting:
                if not new.is_over(cell.next_seconds):
                    began = time.monotonic()
                    _add_round(cell, number, new, old)
                    cell.next_seconds = time.monotonic() - began
                    cell.seconds += cell.next_seconds


def _replicate(runner: Runner, case: Case, number: int) -> Result | None:
    """Measure a replicate; return None if it did not end in time."""
    replicate = replace(case, replicate=number)
    runner.measure_each([replace(runner.tasks[case.id], case=replicate, scores=False)], is_estimated=False)
    return runner.run.results().get(replicate.id)


def _add_round(cell: Pair, number: int, new: Runner, old: Runner) -> None:
    """Measure a process of each side, alternating which is first. A round that the time ends does not count."""
    latencies, disturbed = dict[bool, float](), 0
    for is_new in (True, False) if number % 2 else (False, True):
        runner, case = (new, cell.new) if is_new else (old, cell.old)
        runner.display.label = f"[round {number + 1}, {'new' if is_new else 'old'}]"
        if (result := _replicate(runner, case, number)) is None:
            return
        if result.status != "ok" or result.latency_ms is None:
            why = f"{result.status}: {result.reason}"
            cell.problem, cell.fails = why if is_new else f"the old side: {why}", is_new
            return
        latencies[is_new], disturbed = result.latency_ms, disturbed or result.has(DISTURBED)
    cell.logs.append(math.log(latencies[True] / latencies[False]))
    cell.disturbed += disturbed


def pair(new: Sequence[Case], old: Sequence[Case]) -> tuple[list[Pair], list[Pair], list[Pair]]:
    """Pair the cells of both sides; return also those that only the old side has, and that only the new one can run.

    Names of models must agree, unless each side has only one model. Raises ConfigError if nothing can be paired.
    """
    is_single = all(len({case.model for case in side}) == 1 for side in (new, old))
    ours, theirs = (
        {replace(case, model="").id if is_single else case.id: case for case in side if not case.replicate}
        for side in (new, old)
    )
    runs_there = {key: case for key, case in theirs.items() if case.unsupported is None}
    shared = [key for key in runs_there if key in ours]
    if not shared:
        names = [", ".join(case.id for case in list(side.values())[:3]) or "nothing" for side in (ours, theirs)]
        raise ConfigError(f"--against: the sides have nothing in common that runs here: {names[0]}; and {names[1]}")
    pairs = []
    for key in shared:
        why = ours[key].unsupported
        pairs.append(Pair(ours[key], theirs[key], len(shared), problem=why, fails=why is not None))
    gone = [case for key, case in runs_there.items() if key not in ours]
    lost = [Pair(case, case, problem="the new side has no such case") for case in gone]
    added = []
    for key, case in ours.items():
        if case.unsupported is None and key not in runs_there:
            why = f"the old side: {theirs[key].unsupported}" if key in theirs else "the old side has no such case"
            added.append(Pair(case, case, problem=why))
    return pairs, lost, added


def write_junit(path: Path, cells: Sequence[Pair], against: str, limit: float) -> None:
    """Write a JUnit report: slower cells fail, cells without a verdict are skipped. Raises ConfigError."""
    suite = ElementTree.Element("testsuite", name=f"runtime-profiler against {against}", tests=str(len(cells)))
    verdicts = [cell.is_slower(limit) for cell in cells]
    suite.attrib |= {"failures": str(verdicts.count(True)), "skipped": str(verdicts.count(None)), "errors": "0"}
    for cell, is_slower in zip(cells, verdicts, strict=True):
        seconds = f"{cell.seconds:.3f}"
        case = ElementTree.SubElement(suite, "testcase", classname=cell.new.model, name=cell.name, time=seconds)
        text = cell.describe(against, limit)
        if is_slower is not False:
            ElementTree.SubElement(case, "failure" if is_slower else "skipped", message=text)
        ElementTree.SubElement(case, "system-out").text = text
    with writable(path, "--junit"):
        ElementTree.ElementTree(suite).write(path, encoding="utf-8", xml_declaration=True)


@contextlib.contextmanager
def _sides(options: Options) -> Iterator[list[_Side]]:
    word, new = str(options.against), _Side(options, open_job(options))
    with contextlib.ExitStack() as stack:
        if word.startswith(REVISION):
            old = _side_of_revision(word, new, stack.enter_context(own_folder()).resolve() / "revision")
        else:
            shapes = () if Path(word).suffix == ".onnx" else options.inputs  # A file has its own shapes.
            inputs = [*shapes] or [text for text in options.inputs if "=" in text]
            old_options = replace(options, config=Path(word), inputs=inputs)
            old = _Side(old_options, open_job(old_options))
        is_onnx = any(isinstance(side.job, ModelJob) and side.job.is_onnx for side in (new, old))
        yield [side.narrowed(_GRAPH_PRESETS if is_onnx else _MODULE_PRESETS) for side in (new, old)]


def _side_of_revision(word: str, new: _Side, folder: Path) -> _Side:
    """Check a revision out into the folder, and open the new side's job there. Raises ConfigError."""
    _check_out(word.removeprefix(REVISION), folder)
    config = new.options.config
    if config is not None and config.is_file():
        config = folder / config
        if not config.resolve().is_relative_to(folder):
            raise ConfigError(f"--against {word}: {new.options.config} is not in this folder")
    output = read_job(new.options, new.job, "cpu").output.resolve()
    options = replace(new.options, config=config, output=output)
    job = open_job(options)
    if isinstance(job, ModelJob):
        job = replace(job, keys={**job.keys, "import_from": [str(folder)]})
    _check_inside(word, read_job(options, job, "cpu"), folder, isinstance(job, ModelJob))
    return _Side(options, job)


def _check_inside(word: str, config: Config, folder: Path, is_bare: bool) -> None:
    """Raise ConfigError for a model without a file in the revision's folder: both sides would measure the same.

    A job may also name networks of the catalog; a bare model may not be one.
    """
    for entry in config.models:
        paths = [path for path in (entry.onnx, entry.weights) if path is not None]
        if entry.factory is not None:
            parts = entry.factory.partition(":")[0].split(".")
            paths += [Path(place, *parts) for place in config.import_from]
        inside = any(p.is_relative_to(folder) and (p.exists() or p.with_suffix(".py").exists()) for p in paths)
        if (paths or is_bare) and not inside:
            raise ConfigError(f"--against {word}: model {entry.name!r} has no file in this folder at that revision")


def _check_out(revision: str, folder: Path) -> None:
    """Extract a git revision of this folder into another one. Raises ConfigError."""
    if not revision or revision.startswith("-"):
        raise ConfigError(f"--against {REVISION}{revision}: not a git revision")
    try:
        archive = subprocess.run(["git", "archive", "--format=tar", revision], capture_output=True, check=True)
        with tarfile.open(fileobj=io.BytesIO(archive.stdout)) as files:
            files.extractall(folder, filter="data")
    except (OSError, tarfile.TarError, subprocess.CalledProcessError) as error:
        why = getattr(error, "stderr", b"").decode(errors="replace").strip() or f"git cannot check it out: {error}"
        raise ConfigError(f"--against {REVISION}{revision}: {why}") from None
