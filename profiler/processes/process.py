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
import signal
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from multiprocessing import forkserver, resource_tracker, spawn, util
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NoReturn

from engines.base import Phase, Unsupported
from exporters.errors import chain, message, sentence
from exporters.source import ModelError
from profiler.machine import control_groups
from profiler.processes import trees
from profiler.processes.logs import BoundedLog, flush_output, redirect_output
from profiler.processes.messages import Entered, Message, Outcome, Progress, Report, Salvage
from profiler.processes.pipe import BrokenMessage, Receiver, Sender
from profiler.processes.temporary import OwnFolder

_CONTEXT = multiprocessing.get_context("forkserver")
_OUT_OF_MEMORY = (
    *("out of memory", "can't allocate memory", "not enough memory", "Failed to allocate memory"),
    *("CUDNN_STATUS_ALLOC_FAILED", "_ALLOCATION_FAILED", "CUBLAS_STATUS_ALLOC_FAILED"),
    *("std::bad_alloc", "OutOfMemory", "RESOURCE_EXHAUSTED"),
)
PRELOADED = "profiler.worker.preload"
"""What the forkserver imports."""
_TERMINALS = (signal.SIGINT, signal.SIGHUP)
"""What a terminal sends to all of its processes."""
_TICK_SECONDS = 0.2
_CLOSE_SECONDS = 30.0
"""How long a session may take to close, whatever the timeout: everything has been measured, and others wait."""
_EXIT_SECONDS = 10.0
"""How long a process may take to go after its last word, or once it is killed."""
_FIRST_START_SECONDS = 300.0
"""How long a forkserver may take to import what it preloads."""
_START_SECONDS = 60.0
"""How long it may take to fork a process then, which are milliseconds."""
_TRIES = 3
"""How often a process is started, where the forkserver ends meanwhile."""
_ANSWERED: set[int] = set()
"""Forkservers that have forked a process, and therefore have imported what they preload."""
_RUNNING: set[int] = set()
"""The processes of calls that have not ended: what else the forkserver has below it, those that have ended left."""
_FIRST_TO_GO = 1000
"""A call's oom_score_adj, which what it starts inherits: man 5 proc_pid_oom_score_adj."""
_WHILE: Mapping[str, str] = {
    Phase.FORK: " while starting",
    Phase.OPEN: "",  # All of a call that tells no phases.
    Phase.CONTEXT: " while opening the device",
    Phase.BUILD: " while building or compiling",
    Phase.LOAD: " while loading the model",
    Phase.WARM_UP: " while warming up",
    Phase.MEASURE: " while measuring",
    Phase.ENERGY: " while measuring energy",
    Phase.CHECK: " while checking what it computed",
    Phase.PROFILE: " while timing its layers",
    Phase.END: " while closing the session",
}
"""What a call was doing, at the end of a sentence."""


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
    root = Path(__file__).absolute().parents[2]
    known = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    # What was installed it finds by itself, and of that, nothing should come before Python's own modules.
    if str(root) not in known and root.name not in ("site-packages", "dist-packages"):
        os.environ["PYTHONPATH"] = os.pathsep.join([str(root), *filter(None, known)])
    # A killed worker's semaphores are cleaned up by Python's resource tracker, which would say so on the terminal.
    os.environ.setdefault("PYTHONWARNINGS", "ignore::UserWarning:multiprocessing.resource_tracker")
    _CONTEXT.set_forkserver_preload([PRELOADED])
    config: dict[str, Any] = multiprocessing.current_process()._config  # type: ignore[attr-defined]
    if "tempdir" not in config:  # Where its socket is: the next run sweeps it, if this process is killed.
        folder = OwnFolder(for_sockets=True)
        config["tempdir"] = folder.path
        util.Finalize(None, folder.remove, exitpriority=-100)  # As multiprocessing's own: not in what is forked.
    trees.adopt_orphans()  # Those of a forkserver that a model has ended.
    _ensure_forkserver()


def _ensure_forkserver() -> None:
    """Start the forkserver where there is none or it has ended, and wake one that a model has stopped."""
    _signal_forkserver(signal.SIGCONT)
    # Ctrl-C and a closed terminal are this process's: that one would answer by a traceback, or end before the tables.
    resource_tracker.ensure_running()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _TERMINALS)
    # It must import this profiler, whatever lies in the folder in which it was called.
    own = {"PYTHONSAFEPATH": "1", trees.STARTED_FOR: str(os.getpid())}
    users = {name: os.environ[name] for name in own if name in os.environ}
    try:
        os.environ.update(own)
        forkserver.ensure_running()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        for name in own:
            del os.environ[name]
        os.environ.update(users)


def _forkserver_pid() -> int | None:
    """The forkserver's, if it lives."""
    pid: int | None = forkserver._forkserver._forkserver_pid  # type: ignore[attr-defined]
    with contextlib.suppress(ChildProcessError):
        if pid is not None and os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
            return pid
    return None


def _signal_forkserver(number: signal.Signals) -> None:
    if (pid := _forkserver_pid()) is not None:
        os.kill(pid, number)


@contextlib.contextmanager
def _within_the_time_of_a_start() -> Iterator[None]:
    """End a forkserver that forks nothing, for which multiprocessing would wait for ever."""
    pid = _forkserver_pid()
    seconds = _START_SECONDS if pid in _ANSWERED else _FIRST_START_SECONDS
    watchdog = threading.Timer(seconds, _signal_forkserver, (signal.SIGKILL,))
    watchdog.daemon = True
    watchdog.start()
    try:
        yield
    finally:
        watchdog.cancel()
    if pid is not None:
        _ANSWERED.add(pid)


def _is_of_a_call(pid: int) -> bool:
    """Tell whether a process came of this one's forkserver: whoever calls `measure` starts other processes too.

    A model may have emptied its environment, but not lowered how soon the kernel would end it, which is higher than
    this process's own.
    """
    with contextlib.suppress(OSError):
        own, its = (int(Path(f"/proc/{each}/oom_score_adj").read_text()) for each in (os.getpid(), pid))
        # Looked at first: one that ends has no environment left to read, and still has what it started below it.
        is_marked = own < its == _FIRST_TO_GO or (
            f"{trees.STARTED_FOR}={os.getpid()}".encode() in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        )
        return is_marked and os.getsid(pid) != os.getsid(0)
    return False


class Child:
    """A running call. `poll` it until it returns an Outcome."""

    def __init__(self, call: Call) -> None:
        self.call = call
        self.phase: str = Phase.FORK
        self.progress = ""
        """How far the phase is, in words; empty where the child says nothing."""
        self._phase_started = time.monotonic()
        self._entered: dict[str, float] = {Phase.FORK: self._phase_started}
        self._seconds: dict[str, float] = {}
        self._salvage: Any = None
        self._oom_kills = _oom_kills()
        # A process that is killed, or leaves without its exit handlers, clears nothing away.
        self._folder = OwnFolder()
        self._log = BoundedLog(call.log)
        self._connection, theirs = _CONTEXT.Pipe(duplex=False)
        self._receiver = Receiver(self._connection.fileno())
        self.process = _CONTEXT.Process(target=_enter, args=(theirs, call, self._folder.path))
        self._not_started = self._start()
        theirs.close()
        self._started = time.monotonic() - self._phase_started
        """The seconds that a forkserver which was not there yet took, too: no limit is on them."""

    def _start(self) -> Outcome | None:
        """Start the process; returns how that failed."""
        for tried in range(1, _TRIES + 1):
            try:
                _ensure_forkserver()
                with _without_main(), _within_the_time_of_a_start():
                    self.process.start()
            except (OSError, EOFError) as error:
                reason = sentence(error)
                time.sleep(tried * 0.1)  # A process that was killed closes its sockets before it counts as ended.
            else:
                assert self.process.pid is not None
                _RUNNING.add(self.process.pid)
                return None
        return Outcome("crashed", f"no process could be started for it, tried {_TRIES} times: {reason}")

    def poll(self, timeout: float = 0.0) -> Outcome | None:
        """Take what the child reported; wait up to `timeout` seconds for it. Returns the outcome once it has ended."""
        if self._not_started is not None:
            return self._finish(self._not_started)
        self._log.trim()
        # What it has forked may hold its pipe open.
        sources: list[Any] = [self._connection, self.process.sentinel]
        ready = multiprocessing.connection.wait(sources, max(0.0, min(timeout, self.remaining())))
        has_ended = self.process.sentinel in ready
        try:
            for message in self._receiver.messages():
                if (outcome := self._take(message)) is not None:
                    # It leaves by itself; what it started (compiler pools) does not.
                    self._await_exit()
                    return self._finish(outcome)
        except EOFError:
            has_ended = True
        except BrokenMessage as error:
            return self._finish(Outcome("crashed", f"{error}{self._while()}"))
        if has_ended:
            return self._finish(self._post_mortem())
        if self.remaining() > 0:
            return None
        return self._finish(Outcome("timeout", self._over_the_limit()))

    def _take(self, message: Message) -> Outcome | None:
        match message:
            case Entered(phase):
                self._enter_phase(phase)
            case Progress(text):
                self.progress = text
            case Salvage(value):
                self._salvage = value
            case Outcome():
                return message
        return None

    @property
    def doing(self) -> str:
        """The progress, or else the phase."""
        return self.progress or self.phase

    def kill(self) -> None:
        """End the process and every process that it started."""
        if (pid := self.process.pid) in _RUNNING:
            # The group may outlive its leader. A child that leads none yet has started nothing either.
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(pid, signal.SIGKILL)
            if self.process.is_alive():
                self.process.kill()
            self._await_exit()
            _RUNNING.remove(pid)
            # What it left behind is below the forkserver, or below this process where that ended too.
            if (server := _forkserver_pid()) is not None:
                trees.end_below(server, _RUNNING)
            else:
                trees.end_below(os.getpid(), meant=_is_of_a_call)
            self._log.trim(done=True)
        self._connection.close()
        self._folder.remove()

    def _await_exit(self) -> None:
        """Wait until the process has ended, unless that takes too long."""
        _signal_forkserver(signal.SIGCONT)  # It is the one that knows.

        def wait(seconds: float) -> None:
            self.process.join(seconds)
            self._log.trim()

        trees.waited_for(lambda: self.process.exitcode is not None, _EXIT_SECONDS, _TICK_SECONDS, wait)

    def remaining(self) -> float:
        """Return how many seconds its phase may still take, below 0 once that is over."""
        spent = time.monotonic() - self._phase_started - (self._started if self.phase == Phase.FORK else 0.0)
        if self.phase == Phase.BUILD:
            return self.call.build_timeout - spent
        if self.phase == Phase.END:
            return _CLOSE_SECONDS - spent
        apart = (Phase.BUILD, Phase.END)
        before = sum(seconds for phase, seconds in self._seconds.items() if phase not in apart)
        return self.call.timeout - spent - before + (self._started if Phase.FORK in self._seconds else 0.0)

    def _over_the_limit(self) -> str:
        if self.phase == Phase.END:
            return f"closing the session took more than {_CLOSE_SECONDS:g} s"
        key = "build_timeout" if self.phase == Phase.BUILD else "timeout"
        limit, option = getattr(self.call, key), self.call.option or f"budget.{key}"
        return f"ended after {limit:g} s{self._while()}; raise {option} if it needs longer"

    def _while(self) -> str:
        return _WHILE.get(self.phase, f" in phase {self.phase}")

    def _enter_phase(self, phase: str) -> None:
        now = time.monotonic()
        self._seconds[self.phase] = self._seconds.get(self.phase, 0.0) + now - self._phase_started
        self.phase, self.progress, self._phase_started = phase, "", now
        self._entered.setdefault(phase, now)

    def _finish(self, outcome: Outcome) -> Outcome:
        outcome.phase = self.phase
        self._enter_phase(Phase.EXIT)
        self.kill()
        self._enter_phase(Phase.ENDED)
        outcome.salvage, outcome.seconds, outcome.entered = self._salvage, self._seconds, self._entered
        outcome.log = None if outcome.status == "ok" else self.call.log
        return outcome

    def _post_mortem(self) -> Outcome:
        """Why a process ended without a word."""
        self._await_exit()
        code = self.process.exitcode
        # So multiprocessing calls what it cannot know; the kernel closes what a process has open before that has ended.
        if code == 255 and trees.waited_for(lambda: _forkserver_pid() is None, 1.0):
            return Outcome("crashed", f"ended{self._while()} with the forkserver, which forks every process")
        if code is None:
            return Outcome("crashed", f"closed its pipe{self._while()} but is still running")
        if code == -signal.SIGKILL and _oom_kills() > self._oom_kills:
            return Outcome("oom", f"killed by the kernel{self._while()}: out of memory")
        name = next((each.name for each in signal.Signals if each == -code), f"signal {-code}")
        how = f"ended by {name}" if code < 0 else f"exited with code {code}"
        return Outcome("crashed", f"{how}{self._while()}")


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
    """Run the calls side by side, `slots` at a time; outcomes in the order of the calls. One that crashes, as what
    somebody kills does, runs once more.

    `tick` is called a few times a second with the number of calls that have ended.
    """
    waiting, again = list(enumerate(calls)), set[int]()
    running: dict[int, Child] = {}
    outcomes: dict[int, Outcome] = {}
    try:
        while waiting or running:
            while waiting and len(running) < slots:
                index, call = waiting.pop(0)
                running[index] = Child(call)
            for index, child in list(running.items()):
                outcome = child.poll(0.05)
                if outcome is not None and outcome.status == "crashed" and index not in again:
                    again.add(index)
                    running[index] = Child(child.call)
                elif outcome is not None:
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
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _TERMINALS)
    # This process is to end with the forkserver, and the forkserver with the parent: it does once nobody else holds the
    # pipe by which it knows that the parent lives, and every child has been given a copy of that.
    trees.end_with_parent()
    os.close(forkserver._forkserver._forkserver_alive_fd)  # type: ignore[attr-defined]
    trees.adopt_orphans()  # So that those of a call that has ended are known: they alone are the forkserver's.
    report: Report = Sender(connection.fileno())
    try:
        with contextlib.suppress(OSError):
            Path("/proc/self/oom_score_adj").write_text(str(_FIRST_TO_GO))
        redirect_output(call.log)
        faulthandler.enable()  # A crash in C leaves the Python stack in the log.
        os.environ.update(call.environment)
        os.environ["TMPDIR"] = tempfile.tempdir = temporary
        sys.path[:0] = [folder for folder in call.path if folder not in sys.path]
        sys.path.append(str(Path.cwd()))
        if call.threads is not None and "torch" in sys.modules:
            sys.modules["torch"].set_num_threads(call.threads)
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
    code = 1
    try:
        try:
            report(outcome)
        except Exception as error:
            report(Outcome("failed", f"its result cannot be sent: {type(error).__name__}: {error}"))
        code = 0
    finally:  # Whatever a model has made of its outputs, the outcome is told.
        flush_output()
        ctypes.CDLL(None).fflush(None)
        os._exit(code)


def explain(error: BaseException) -> Outcome:
    """What an error means for the case in which it was raised; the traceback goes into the log."""
    if isinstance(error, Unsupported):
        return Outcome("unsupported", str(error))
    out_of_memory = _out_of_memory(error)
    if not isinstance(error, ModelError) or error.__cause__ is not None:
        _print(error)
    text = str(error) if isinstance(error, ModelError) else sentence(out_of_memory or error)
    return Outcome("oom" if out_of_memory else "failed", text)


def _out_of_memory(error: BaseException) -> BaseException | None:
    """The error, or one that it followed, that means that memory ran out: a type for it is not what every library has.

    What is cleaned up after such an error may raise another one, as the end of a CUDA graph's recording does.
    """
    for each in chain(error, hidden=True):
        if isinstance(each, MemoryError) or any(sign in message(each) for sign in _OUT_OF_MEMORY):
            return each
    return None


def _print(error: BaseException) -> None:
    """Its traceback, into the log, wherever a model has sent what is printed."""
    for file in (sys.__stderr__, sys.stderr):
        with contextlib.suppress(Exception):
            traceback.print_exception(error, file=file)
            return


def _oom_kills() -> int:
    """How many processes of this control group (version 2 or 1) the kernel has killed because memory ran out."""
    for file in (folder / name for folder in control_groups() for name in ("memory.events", "memory.oom_control")):
        with contextlib.suppress(OSError, ValueError):
            return int(dict(line.split() for line in file.read_text().splitlines()).get("oom_kill", 0))
    return 0
