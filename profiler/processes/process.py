"""Call a function in a process of its own, and report how that ended.

A forkserver imports torch and onnxruntime once, without touching a device, and forks a process per call, so that no
figure leaks from one case to the next and no case pays the imports. Whatever happens to the process (an exception, a
signal, a hang, no memory left) is data for the caller.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import importlib
import multiprocessing
import multiprocessing.connection
import os
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from multiprocessing import forkserver, spawn
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NoReturn

from engines.base import Phase, Unsupported
from exporters.errors import chain, sentence
from exporters.source import ModelError
from profiler.machine import control_groups
from profiler.processes.messages import CaseEnded, Ended, Entered, Outcome, Part, Progress, Report, Salvage, Status

_CONTEXT = multiprocessing.get_context("forkserver")
_OUT_OF_MEMORY = (
    *("out of memory", "can't allocate memory", "not enough memory", "Failed to allocate memory"),
    *("CUDNN_STATUS_ALLOC_FAILED", "_ALLOCATION_FAILED", "CUBLAS_STATUS_ALLOC_FAILED"),
    *("std::bad_alloc", "OutOfMemory", "RESOURCE_EXHAUSTED"),
)
PRELOADED = "profiler.worker.preload"
"""What the forkserver imports."""
_PR_SET_PDEATHSIG = 1
_TICK_SECONDS = 0.2
_CLOSE_SECONDS = 30.0
"""How long a session may take to close, whatever the timeout: everything has been measured, and others wait."""


@dataclass(frozen=True)
class Call:
    """A function, written "package.module:function", that takes (argument, report); where its output goes; its limits.

    `timeout` bounds all phases together but for Phase.BUILD, each of which has `build_timeout`, and Phase.END, which is
    cut off by itself; both in seconds.
    """

    function: str
    argument: Any
    log: Path
    timeout: float = 300.0
    build_timeout: float = 900.0
    environment: Mapping[str, str] = field(default_factory=dict)
    path: tuple[str, ...] = ()
    """Folders put in front of sys.path, where a user's factories are found."""
    threads: int | None = None
    """How many torch computes with; None leaves it one a core, which calls side by side must not have."""
    option: str | None = None
    """What the user raises to give it longer; None is the job's budget."""


def start_forkserver(log: Path) -> None:
    """Start the forkserver if there is none, so that it warms up while the parent does other things."""
    # One thread: stray threads of a BLAS pool would not survive the fork.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    os.environ["PROFILER_FORKSERVER_LOG"] = str(log)
    # Python 3.11's forkserver ignores the parent's sys.path, and swallows the ImportError that follows.
    root = Path(__file__).resolve().parents[2]
    known = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    # What was installed it finds by itself, and of that, nothing should come before Python's own modules.
    if str(root) not in known and root.name not in ("site-packages", "dist-packages"):
        os.environ["PYTHONPATH"] = os.pathsep.join([str(root), *filter(None, known)])
    # A killed worker's semaphores are cleaned up by Python's resource tracker, which would say so on the terminal.
    os.environ.setdefault("PYTHONWARNINGS", "ignore::UserWarning:multiprocessing.resource_tracker")
    _CONTEXT.set_forkserver_preload([PRELOADED])
    # It must import this profiler, whatever lies in the folder in which it was called.
    safe = os.environ.get("PYTHONSAFEPATH")
    os.environ["PYTHONSAFEPATH"] = "1"
    forkserver.ensure_running()
    if safe is None:
        del os.environ["PYTHONSAFEPATH"]


class Child:
    """A running call. `poll` it until it returns an Outcome."""

    def __init__(self, call: Call) -> None:
        self.call = call
        self.phase: str = Phase.FORK
        self.progress = ""
        """How far the phase is, in words; empty where the child says nothing."""
        self._phase_started = time.monotonic()
        self._entered: dict[str, float] = {Phase.FORK: self._phase_started}
        self.parts: list[Part] = []
        """The cases that have ended, of a call that runs several; limits, phases and salvage begin again."""
        self._seconds: dict[str, float] = {}
        self._salvage: Any = None
        self._oom_kills = _oom_kills()
        # A process that is killed, or leaves without its exit handlers, clears nothing away.
        self._temporary = tempfile.mkdtemp(prefix="profiler-")
        self._connection, theirs = _CONTEXT.Pipe(duplex=False)
        self.process = _CONTEXT.Process(target=_enter, args=(theirs, call, self._temporary))
        with _without_main():
            self.process.start()
        theirs.close()

    def poll(self, timeout: float = 0.0) -> Outcome | None:
        """Take what the child reported; wait up to `timeout` seconds for it. Returns the outcome once it has ended."""
        multiprocessing.connection.wait([self._connection], max(0.0, min(timeout, self._remaining())))
        try:
            while self._connection.poll():
                match self._connection.recv():
                    case Entered(phase):
                        self._enter_phase(phase)
                    case Progress(text):
                        self.progress = text
                    case Salvage(value):
                        self._salvage = value
                    case CaseEnded(value):
                        self._end_part(value)
                    case Ended(outcome):
                        return self._finish(outcome)
        except (EOFError, ConnectionResetError):
            return self._finish(self._post_mortem())
        if self._remaining() > 0:
            return None
        return self._finish(Outcome("timeout", self._over_the_limit()))

    @property
    def is_closing(self) -> bool:
        """Whether the last case of several has a session that may still be closed."""
        return bool(self.parts) and self.phase == Phase.END

    @property
    def doing(self) -> str:
        """The progress, or else the phase."""
        return self.progress or self.phase

    def kill(self) -> None:
        """End the process and every process that it started."""
        assert self.process.pid is not None
        # The group may outlive its leader. A child that leads none yet has started nothing either.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signal.SIGKILL)
        if self.process.is_alive():
            self.process.kill()
        self.process.join()
        self._connection.close()
        shutil.rmtree(self._temporary, ignore_errors=True)

    def _remaining(self) -> float:
        spent = time.monotonic() - self._phase_started
        if self.phase == Phase.BUILD:
            return self.call.build_timeout - spent
        if self.phase == Phase.END:
            return _CLOSE_SECONDS - spent
        apart = (Phase.BUILD, Phase.END)
        return self.call.timeout - spent - sum(s for phase, s in self._seconds.items() if phase not in apart)

    def _over_the_limit(self) -> str:
        if self.phase == Phase.END:
            return f"closing the session took more than {_CLOSE_SECONDS:g} s"
        key = "build_timeout" if self.phase == Phase.BUILD else "timeout"
        limit, option = getattr(self.call, key), self.call.option or f"budget.{key}"
        return f"ended after {limit:g} s, in phase {self.phase}; raise {option} if it needs longer"

    def _enter_phase(self, phase: str) -> None:
        now = time.monotonic()
        self._seconds[self.phase] = self._seconds.get(self.phase, 0.0) + now - self._phase_started
        self.phase, self.progress, self._phase_started = phase, "", now
        self._entered.setdefault(phase, now)

    def _end_part(self, value: Any) -> None:
        entered = dict(self._entered)
        self._enter_phase(Phase.END)
        self.parts.append(Part(value, self._seconds, entered))
        self._seconds, self._salvage, self._entered = {}, None, {Phase.END: self._phase_started}

    def _finish(self, outcome: Outcome) -> Outcome:
        outcome.phase = self.phase
        self._enter_phase(Phase.EXIT)
        if outcome.status == "timeout":
            self.kill()
        else:
            # A process that has reported its end leaves by itself; what it started (compiler pools) does not.
            self.process.join(timeout=10)
            self.kill()
        self._enter_phase(Phase.ENDED)
        outcome.salvage, outcome.parts = self._salvage, self.parts
        outcome.seconds, outcome.entered = self._seconds, self._entered
        outcome.log = None if outcome.status == "ok" else self.call.log
        return outcome

    def _post_mortem(self) -> Outcome:
        """Why a process ended without a word."""
        self.process.join(timeout=10)
        code = self.process.exitcode
        if code is None:
            return Outcome("crashed", f"closed its pipe in phase {self.phase} but is still running")
        if code >= 0:
            return Outcome("crashed", f"exited with code {code} in phase {self.phase}")
        name = signal.Signals(-code).name
        if name == "SIGKILL" and _oom_kills() > self._oom_kills:
            return Outcome("oom", f"killed by the kernel in phase {self.phase}: out of memory")
        return Outcome("crashed", f"ended by {name} in phase {self.phase}")


def run_one(call: Call, tick: Callable[[Child], None] = lambda child: None) -> Outcome:
    """Run a call to its end; `tick` gets the child a few times a second while it runs."""
    child = Child(call)
    try:
        while (outcome := child.poll(_TICK_SECONDS)) is None:
            tick(child)
    finally:
        child.kill()
    return outcome


def run_all(calls: Iterable[Call], slots: int, tick: Callable[[int], None] = lambda done: None) -> list[Outcome]:
    """Run the calls side by side, `slots` at a time; outcomes in the order of the calls.

    `tick` is called a few times a second with the number of calls that have ended.
    """
    waiting = list(enumerate(calls))
    running: dict[int, Child] = {}
    outcomes: dict[int, Outcome] = {}
    try:
        while waiting or running:
            while waiting and len(running) < slots:
                index, call = waiting.pop(0)
                running[index] = Child(call)
            for index, child in list(running.items()):
                outcome = child.poll(0.05)
                if outcome is not None:
                    outcomes[index] = outcome
                    del running[index]
            tick(len(outcomes))
    finally:
        for child in running.values():
            child.kill()
    return [outcomes[index] for index in sorted(outcomes)]


@contextlib.contextmanager
def _without_main() -> Iterator[None]:
    """Keep a process from running the parent's main file first, which may be a user's script that measures."""
    prepare = spawn.get_preparation_data

    def prepare_without(name: str) -> dict[str, Any]:
        return {key: value for key, value in prepare(name).items() if not key.startswith("init_main")}

    spawn.get_preparation_data = prepare_without
    try:
        yield
    finally:
        spawn.get_preparation_data = prepare


def _enter(connection: Connection, call: Call, temporary: str) -> NoReturn:
    """The child's first and last function."""
    os.setsid()
    # This process is to end with the forkserver, and the forkserver with the parent: it does once nobody else holds the
    # pipe by which it knows that the parent lives, and every child has been given a copy of that.
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    os.close(forkserver._forkserver._forkserver_alive_fd)  # type: ignore[attr-defined]
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")
    redirect_output(call.log)
    faulthandler.enable()  # A crash in C leaves the Python stack in the log.
    os.environ.update(call.environment)
    os.environ["TMPDIR"] = tempfile.tempdir = temporary
    sys.path[:0] = [folder for folder in call.path if folder not in sys.path]
    sys.path.append(str(Path.cwd()))
    if call.threads is not None and "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(call.threads)

    report: Report = connection.send
    try:
        report(Entered(Phase.OPEN))
        module, _, name = call.function.partition(":")
        outcome = Outcome("ok", value=getattr(importlib.import_module(module), name)(call.argument, report))
    except BaseException as error:
        # Here, where its frames still hold what they held: a runtime can abort while it frees a session.
        _leave(report, explain(error))
    _leave(report, outcome)


def _leave(report: Report, outcome: Outcome) -> NoReturn:
    """Report the outcome and end the process without exit handlers or destructors: runtimes abort or hang in them.

    Whoever reports from an exit handler, as coverage does, therefore reports nothing of a child.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    ctypes.CDLL(None).fflush(None)
    try:
        report(Ended(outcome))
    except Exception as error:
        report(Ended(Outcome("failed", f"its result cannot be sent: {type(error).__name__}: {error}")))
    os._exit(0)


def explain(error: BaseException) -> Outcome:
    """What an error means for the case in which it was raised; the traceback goes into the log."""
    if isinstance(error, Unsupported):
        return Outcome("unsupported", str(error))
    out_of_memory = _out_of_memory(error)
    status: Status = "oom" if out_of_memory else "failed"
    if isinstance(error, ModelError):
        if error.__cause__ is not None:
            traceback.print_exception(error)
        return Outcome(status, str(error))
    traceback.print_exception(error)
    return Outcome(status, sentence(out_of_memory or error))


def _out_of_memory(error: BaseException) -> BaseException | None:
    """The error, or one that it followed, that means that memory ran out: a type for it is not what every library has.

    What is cleaned up after such an error may raise another one, as the end of a CUDA graph's recording does.
    """
    for each in chain(error, hidden=True):
        if isinstance(each, MemoryError) or any(sign in str(each) for sign in _OUT_OF_MEMORY):
            return each
    return None


def redirect_output(log: Path) -> None:
    """Send both outputs, those of C libraries too, into a log: the terminal belongs to the parent."""
    sys.stdout.flush()
    sys.stderr.flush()
    target = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(target, 1)
    os.dup2(target, 2)
    os.close(target)


def _oom_kills() -> int:
    """How many processes of this control group (version 2 or 1) the kernel has killed because memory ran out."""
    for file in (folder / name for folder in control_groups() for name in ("memory.events", "memory.oom_control")):
        with contextlib.suppress(OSError, ValueError):
            return int(dict(line.split() for line in file.read_text().splitlines()).get("oom_kill", 0))
    return 0
