"""Carry out `python -m profiler doctor`."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.status import Status
from rich.text import Text

from engines.catalog import ENGINES
from engines.requirements import missing
from profiler.doctor.machine import STYLES, Check, of_machine
from profiler.doctor.tiny_runs import TENSORRT, of_engines, tiny_job
from profiler.errors import PROGRAM
from profiler.job.case import Case
from profiler.machine import Target, check_device, resolve_device
from profiler.options import Doctor as Options
from profiler.processes.forkserver import libraries
from profiler.processes.temporary import own_folder
from profiler.results.run_folder import RunFolder
from profiler.results.run_lock import writing
from profiler.run.measure import run_job
from profiler.run.progress import PlainDisplay
from profiler.tables.writers import print_pairs

_TRYING = "A tiny network goes through every engine"


class Spinner(PlainDisplay):
    """Name what is tried on a spinner."""

    def __init__(self, spinner: Status, console: Console) -> None:
        super().__init__(console)
        self._spinner = spinner

    def measuring(self, case: Case, phase: str, done: int, total: int, seconds_left: float) -> None:
        self._spinner.update(f"{_TRYING}: {case.variant} {case.precision} {case.pass_}, {done + 1} of {total}")


def execute(options: Options, console: Console) -> int:
    """Print what works here and what does not; returns 1 where something that is there fails. Raises ConfigError."""
    kept = contextlib.nullcontext(options.output.resolve()) if options.output else own_folder()
    with libraries() as facts, kept as folder:
        target = resolve_device(check_device(options.device), facts)
        machine = of_machine(target, facts)
        _print(console, "Machine", machine)
        run = RunFolder.create(folder)
        config = tiny_job(target, folder)
        with writing(run.path), console.status(f"{_TRYING}, which takes a minute or two") as spinner:
            quiet = Console(quiet=True)
            interrupted = run_job(run, config, target, facts, quiet, report=False, display=Spinner(spinner, quiet))
        engines = of_engines(list(run.results().values()), target)
        _print(console, "Engines, each with a tiny network", engines)
        checks = [*machine, *engines]
        console.print(Text(_conclusion(checks, target, run.path if options.output else None)), soft_wrap=True)
    return 130 if interrupted else int(any(check.status == "failed" for check in checks))


def _print(console: Console, title: str, checks: Sequence[Check]) -> None:
    console.print(Text(f"\n{title}", style="bold"))
    widest = max((len(check.what) for check in checks), default=0)
    print_pairs(
        console,
        [
            (Text.assemble("  ", (f"{each.status:<8}", STYLES[each.status]), each.what.ljust(widest)), Text(each.text))
            for each in checks
        ],
    )


def _conclusion(checks: Sequence[Check], target: Target, kept: Path | None) -> str:
    failed = [check.what.strip() for check in checks if check.status == "failed"]
    text = f"\nDoes not work: {', '.join(dict.fromkeys(failed))}" if failed else "\nWhat is installed works"
    if kept is not None:
        return f"{text}. Everything that was found is in {kept}, with logs"
    with_tensorrt = target.kind == "cuda" and any(not missing(ENGINES[name], "cuda") for name in TENSORRT)
    if failed or with_tensorrt:
        text += f". To report it: {PROGRAM} doctor --output doctor-report, and send that folder"
    return text
