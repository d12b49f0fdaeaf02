"""Run jobs, wait for what they do, and look at what goes to a console."""

from __future__ import annotations

import io
import time
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
