"""Run jobs and look at what goes to a console."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

from rich.console import Console

Profiler = Callable[..., CompletedProcess[str]]
"""The fixtures `profiler`, `command` and `command_line`: words of a command line, folder, environment."""


def run_job(profiler: Profiler, folder: Path, job: str, **variables: str) -> Path:
    """Run a job in a folder, as its first one, without an error; returns the run's folder."""
    (folder / "job.yaml").write_text(job)
    done = profiler("job.yaml", cwd=folder, **variables)
    print(done.stdout)
    assert done.returncode == 0, done.stdout + done.stderr
    (run,) = (folder / "results").iterdir()
    return run


def on_console(show: Callable[..., object], *arguments: Any, width: int = 120, **options: Any) -> str:
    """Return what `show(console, …)` prints on a terminal of that width."""
    page = io.StringIO()
    show(Console(file=page, width=width), *arguments, **options)
    return page.getvalue()
