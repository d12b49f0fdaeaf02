"""Start the command as a user does, and look at it and at what it has started from outside."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import psutil

ROOT = Path(__file__).resolve().parents[2]
HANGING_SECONDS = 2
START = "from robustness.command_runs import end_soon; end_soon({}); from profiler.__main__ import start; start()"


class Run:
    """`python -m profiler ARGUMENTS` in a folder which no other command's processes should be in.

    Of the models that are `hanging` each process ends HANGING_SECONDS after its phase began: what the job allows is for
    the others, on a busy machine too.
    """

    def __init__(self, *arguments: str, cwd: Path, hanging: Sequence[str] = (), **variables: str) -> None:
        self.folder = cwd
        (cwd / "tmp").mkdir(exist_ok=True)
        number = len(list(cwd.glob("*.err")))
        self._files = [cwd / f"{number}.out", cwd / f"{number}.err"]
        path = os.pathsep.join([str(ROOT), *([str(ROOT / "tests")] if hanging else [])])
        # Files, since a pipe would be held open by whatever outlives it.
        with self._files[0].open("w") as out, self._files[1].open("w") as err:
            self._process = subprocess.Popen(
                [sys.executable, *(["-c", START.format(list(hanging))] if hanging else ["-m", "profiler"]), *arguments],
                cwd=cwd,
                env={**os.environ, "PYTHONPATH": path, "TMPDIR": str(cwd / "tmp"), **variables},
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                process_group=0,
                restore_signals=True,
            )
        self.pid = self._process.pid

    @property
    def out(self) -> str:
        return self._files[0].read_text(errors="replace")

    @property
    def err(self) -> str:
        return self._files[1].read_text(errors="replace")

    @property
    def code(self) -> int | None:
        """Its exit code, negative for a signal; None while it runs."""
        return self._process.poll()

    def wait(self, seconds: float) -> int | None:
        """Return the exit code; None if it has not ended by then."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self._process.wait(seconds)
        return None

    def others(self) -> list[int]:
        """Return the processes that work in its folder: what it started, directly or not, and they live."""
        return [pid for pid in working_in(self.folder) if pid != self.pid]

    def part(self, pid: int) -> str:
        """Name one of the others, by its command line and its parent."""
        try:
            process = psutil.Process(pid)
            command, parent = str(process.cmdline()), process.ppid()
        except psutil.Error:
            return "a process that has just ended"
        if parent != self.pid:
            return "a worker"
        return next((f"the {each}" for each in ("tracker", "forkserver") if each in command), "another process")

    def left_behind(self, seconds: float = 300.0) -> list[int]:
        """Return those that are still there so long after its end, and kill them."""
        end = time.monotonic() + seconds
        while (left := working_in(self.folder)) and time.monotonic() < end:
            time.sleep(0.05)
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return left


def working_in(folder: Path) -> list[int]:
    """Return the processes whose current folder is in this one and that are no zombies, which have none."""
    found = []
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError, ValueError):
            if entry.name.isdigit() and (entry / "cwd").readlink().is_relative_to(folder):
                found.append(int(entry.name))
    return found


def end_soon(models: list[str]) -> None:
    """Let the limits of these models' calls be over soon, in a command that is about to start.

    What has sent its outcome and does not exit is not waited for either.
    """
    from profiler.processes import process
    from profiler.processes.process import Child

    process._EXIT_SECONDS = HANGING_SECONDS
    remaining = Child.remaining

    def sooner(child: Child) -> float:
        hangs = any(name in child.call.log.name for name in models)
        left = HANGING_SECONDS - (time.monotonic() - child._phase_started)
        return min(remaining(child), left) if hangs else remaining(child)

    Child.remaining = sooner
