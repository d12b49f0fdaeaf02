"""Run jobs, wait for what they do, and look at what goes to a console or a display."""

from __future__ import annotations

import io
import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import polars as pl
from rich.console import Console

from profiler.job.case import Case
from profiler.results.result import Result
from profiler.run.progress import Display

Profiler = Callable[..., CompletedProcess[str]]
"""The fixtures `profiler`, `command` and `command_line`: words of a command line, folder, environment."""


@dataclass
class Finished:
    """A run that has ended, and what it left behind."""

    done: CompletedProcess[str]
    folder: Path

    @property
    def rows(self) -> pl.DataFrame:
        return pl.scan_parquet(self.folder / "results.parquet").collect()

    def row(self, case_id: str) -> dict[str, Any]:
        return self.rows.row(by_predicate=pl.col("case_id") == case_id, named=True)

    def lines(self, name: str = "journal") -> list[dict[str, Any]]:
        file = self.folder / f"{name}.jsonl"
        return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def finish(
    profiler: Profiler,
    folder: Path,
    job: str | None,
    *arguments: str,
    code: int = 0,
    report: bool = False,
    **variables: str,
) -> Finished:
    """Write the job into a folder, unless it is None, and run it there; the folder then holds one run.

    A report takes as long as a case: only tests that read it ask for one.
    """
    if job is not None:
        (folder / "job.yaml").write_text(job)
        arguments = ("job.yaml", *arguments)
    done = profiler(*arguments, *([] if report else ["--no-report"]), cwd=folder, **variables)
    print(done.stdout)
    assert done.returncode == code, done.stdout + done.stderr
    (run,) = (folder / "results").iterdir()
    return Finished(done, run)


def run_job(profiler: Profiler, folder: Path, job: str | None, *arguments: str, **variables: str) -> Path:
    """Run a job like `finish`; return the run's folder."""
    return finish(profiler, folder, job, *arguments, **variables).folder


def until(holds: Callable[[], Any], seconds: float = 600) -> Any:
    """Wait for what must come true; return it."""
    end = time.monotonic() + seconds
    while not (found := holds()):
        assert time.monotonic() < end
        time.sleep(0.05)
    return found


def on_console(show: Callable[..., object], *arguments: Any, width: int = 120, **options: Any) -> str:
    """Return what `show(console, …)` prints on a terminal of that width."""
    page = io.StringIO()
    show(Console(file=page, width=width), *arguments, **options)
    return page.getvalue()


class Told(Display):
    """Keep what is shown: which cases ended and count, which were measured again and stayed, and all other texts."""

    def __init__(self) -> None:
        super().__init__(Console(quiet=True))
        self.told: list[str] = []
        self.stayed: list[str] = []
        self.announced: list[str] = []
        self.waited: list[str] = []
        self.left: list[float] = []
        self.counted: list[tuple[int, int]] = []

    def measuring(self, case: Case, phase: str, done: int, total: int, seconds_left: float) -> None:
        self.left.append(seconds_left)
        self.counted.append((done, total))

    def announce(self, text: str) -> None:
        self.announced.append(text)

    def doing(self, text: str, done: int = 0, total: int = 1) -> None:
        self.waited.append(text)

    def ended(self, result: Result, counts: bool = True, where: str = "") -> None:
        (self.told if counts else self.stayed).append(result.case_id)
