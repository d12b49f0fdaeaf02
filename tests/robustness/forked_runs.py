"""Start the command without its imports, for tests that kill many of them: a process that has them all forks it.

What is forked is the command as it is, with workers, a forkserver and a resource tracker of its own: but those two are
forked, too, where an exec would follow in a user's run. `as_a_user` is without any of this: `python -m profiler`.
Started as a script, this is the process that forks.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    from exporters.cache import Cache

ROOT = Path(__file__).resolve().parents[2]
HANGING_SECONDS = 10


@dataclass
class Run:
    """A command that was started, in a folder of its own; `out` and `err` are what it printed."""

    pid: int
    folder: Path
    number: int

    @property
    def out(self) -> str:
        return self._printed("out")

    @property
    def err(self) -> str:
        return self._printed("err")

    def _printed(self, ending: str) -> str:
        file = self.folder / f"{self.number}.{ending}"
        return file.read_text(errors="replace") if file.exists() else ""  # It may be killed before it has opened one.

    @property
    def code(self) -> int | None:
        """Its exit code, negative for a signal; None while it runs."""
        file = self.folder / f"{self.number}.code"
        return int(file.read_text()) if file.exists() else None

    @property
    def ended(self) -> float:
        """When it ended, as time.time() has it."""
        return (self.folder / f"{self.number}.code").stat().st_mtime

    def wait(self, seconds: float) -> int | None:
        """The exit code; None if it has not ended by then."""
        end = time.monotonic() + seconds
        while (code := self.code) is None and time.monotonic() < end:
            time.sleep(0.01)
        return code

    def signal(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, number)

    def others(self) -> list[int]:
        """The processes that work in its folder: what it started, directly or not, and they live."""
        return [pid for pid in working_in(self.folder) if pid != self.pid]

    def part(self, pid: int) -> str:
        """What one of the others is, by its command line and its parent."""
        try:
            name = "".join(Path(f"/proc/{pid}/{each}").read_text() for each in ("comm", "cmdline"))
            parent = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        except OSError:
            return "a process that has just ended"
        if parent != self.pid:
            return "a worker"
        return next((f"the {each}" for each in ("tracker", "forkserver") if each in name), "another process")

    def left_behind(self, seconds: float = 300.0) -> list[int]:
        """Those that are still there so long after its end, which are killed now."""
        end = time.monotonic() + seconds
        while (left := working_in(self.folder)) and time.monotonic() < end:
            time.sleep(0.05)
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return left


def working_in(folder: Path) -> list[int]:
    """The processes whose current folder is in this one and that are no zombies."""
    found = []
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError, ValueError):
            # A zombie has no current folder.
            if entry.name.isdigit() and (entry / "cwd").readlink().is_relative_to(folder):
                found.append(int(entry.name))
    return found


class Runs:
    """The process that forks commands."""

    def __init__(self, folder: Path, exports: Cache) -> None:
        self._number, self._lock = 0, threading.Lock()
        self._process = subprocess.Popen(
            [sys.executable, __file__, str(exports.root)],
            env={
                **os.environ,
                "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "tests")]),
                "PROFILER_FORKSERVER_LOG": str(folder / "log"),
            },
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == "ready\n"

    def start(
        self, *arguments: str, cwd: Path, as_a_user: bool = False, hanging: Sequence[str] = (), **variables: str
    ) -> Run:
        """Start `python -m profiler ARGUMENTS` in that folder, which no other command's processes should be in.

        Of the models that are `hanging` each process ends HANGING_SECONDS after its phase began: what the job allows
        is for the others, on a busy machine too.
        """
        temporary = cwd / "tmp"
        temporary.mkdir(exist_ok=True)
        told = {
            "arguments": ["profiler", *arguments],
            "as_a_user": as_a_user,
            "hanging": hanging,
            "cwd": str(cwd),
            "environment": {"TMPDIR": str(temporary), **variables},
        }
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with self._lock:
            self._number += 1
            self._process.stdin.write(json.dumps(told | {"number": self._number}) + "\n")
            self._process.stdin.flush()
            return Run(int(self._process.stdout.readline()), cwd, self._number)

    def close(self) -> None:
        self._process.communicate()


@contextlib.contextmanager
def forked_runs(folder: Path, exports: Cache) -> Iterator[Runs]:
    runs = Runs(folder, exports)
    try:
        yield runs
    finally:
        runs.close()


# What follows is of the process that forks.


def _main() -> None:
    _import_all()
    outcome = os.dup(1)
    os.dup2(2, 1)
    os.write(outcome, b"ready\n")
    for line in sys.stdin:
        told = json.loads(line)
        ours, theirs = os.pipe()
        if os.fork() == 0:
            os.close(ours)
            os.close(outcome)
            os.close(0)
            if _keep(told, theirs):
                _become(told)
        os.close(theirs)
        os.write(outcome, os.read(ours, 100))
        os.close(ours)
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass


def _keep(told: dict[str, Any], pipe: int) -> bool:
    """Fork the command, in which this returns True; here tell its number, wait for its end and write its code."""
    pid = os.fork()
    if pid == 0:
        os.close(pipe)
        return True
    os.write(pipe, f"{pid}\n".encode())
    os.close(pipe)
    _, status = os.waitpid(pid, 0)
    file = Path(told["cwd"]) / f"{told['number']}.code"
    scratch = file.with_suffix(".code-new")
    scratch.write_text(str(os.waitstatus_to_exitcode(status)))
    scratch.rename(file)
    os._exit(0)


def _become(told: dict[str, Any]) -> NoReturn:
    signal.signal(signal.SIGINT, lambda *_: os._exit(130))  # As profiler.__main__ has it.
    from multiprocessing import util

    from profiler import cli

    os.setpgid(0, 0)
    os.chdir(told["cwd"])
    os.open(os.devnull, os.O_RDONLY)
    for number, ending in ((1, "out"), (2, "err")):
        file = os.open(f"{told['number']}.{ending}", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        os.dup2(file, number)
        os.close(file)
    os.environ.update(told["environment"])
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # The tests may be under nohup, which a run would heed.
    if told["as_a_user"]:
        os.execv(sys.executable, [sys.executable, "-m", *told["arguments"]])
    sys.argv = told["arguments"]
    util.spawnv_passfds = _fork_script
    _end_soon(told["hanging"])
    code: Any = 70
    try:
        cli.main()
    except SystemExit as end:
        code = end.code
    finally:
        # Not a script's whole end: destructors of what was loaded before the fork abort.
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(int(code or 0))


def _end_soon(models: list[str]) -> None:
    from profiler.processes.process import Child

    remaining = Child.remaining

    def sooner(child: Child) -> float:
        hangs = any(name in child.call.log.name for name in models)
        left = HANGING_SECONDS - (time.monotonic() - child._phase_started)
        return min(remaining(child), left) if hangs else remaining(child)

    Child.remaining = sooner  # type: ignore[method-assign]


def _fork_script(path: bytes, arguments: list[str], fds: list[int]) -> int:
    """Do what multiprocessing.util.spawnv_passfds does for `python -c CODE`, by a fork of this process alone."""
    ends = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGALRM)
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ends)  # An exec calls nothing of Python that a signal could end.
    pid = os.fork()
    if pid:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        return pid
    for number in ends:
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, before)
    kept = sorted({0, 1, 2, *fds})
    for low, high in zip(kept, [*kept[1:], os.sysconf("SC_OPEN_MAX")], strict=True):
        os.closerange(low + 1, high)
    code = 1
    try:
        Path("/proc/self/comm").write_text("tracker" if "resource_tracker" in arguments[-1] else "forkserver")
        exec(arguments[-1], {"__name__": "__main__"})
        code = 0
    except SystemExit as end:
        code = int(end.code or 0)
    finally:
        os._exit(code)


def _import_all() -> None:
    """What the command, the forkserver and a report import, but nothing that does something as it is imported."""
    import multiprocessing.forkserver
    import multiprocessing.resource_tracker  # noqa: F401

    import altair  # noqa: F401
    import onnxruntime  # noqa: F401
    import quick_exports
    import quick_workers  # noqa: F401
    import torch._dynamo
    import torch._inductor.compile_fx  # noqa: F401

    import profiler.report.command
    import profiler.run.command
    import profiler.worker.measure_case
    import profiler.worker.prepare_model  # noqa: F401
    from exporters.cache import Cache
    from profiler.run import watch

    quick_exports.bundle_once(Cache(Path(sys.argv[1])))
    watch.lock_folder = lambda: Path(os.devnull)  # Runs of tests that go on side by side do not wait.


if __name__ == "__main__":
    _main()
