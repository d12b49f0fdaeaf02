"""Call a function in a process of its own, and report how that ended.

A forkserver imports torch and onnxruntime once, without touching a device, and forks a process per call: no figure
leaks from one case to the next, and no case pays for the imports. Whatever happens to the process (an exception, a
signal, a hang, no memory left) is data for the caller.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import gc
import importlib
import math
import mmap
import multiprocessing
import os
import queue
import re
import shutil
import signal
import socket
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from multiprocessing import forkserver, resource_tracker, util
from multiprocessing.connection import Connection
from pathlib import Path
from random import SystemRandom
from types import ModuleType
from typing import Any, NoReturn

import psutil

from engines.base import Phase, Unsupported
from exporters.errors import chain, message, sentence, shown
from exporters.source import ModelError
from profiler.machine import control_groups
from profiler.processes.messages import Entered, Message, Outcome, Progress, Report, Salvage, Serves, is_sound

_CONTEXT = multiprocessing.get_context("forkserver")
_OUT_OF_MEMORY = re.compile(
    r"out of memory|(can't|cannot|failed to) allocate memory|not enough memory|_ALLOC(ATION)?_FAILED"
    r"|std::bad_alloc|OutOfMemory|RESOURCE_EXHAUSTED",
    re.IGNORECASE,
)
PRELOADED = "profiler.worker.preload"
LOG = "PROFILER_FORKSERVER_LOG"
_TERMINALS = (signal.SIGINT, signal.SIGHUP)
"""Signals that a terminal sends to all of its processes."""
_TICK_SECONDS = 0.2
_CLOSE_SECONDS = 30.0
"""How long a session may take to close, whatever the timeout: everything has been measured."""
_LATE_SECONDS, _CLOCKS_AGREE = 1.0, 1.1
"""Phases that differ by a second and a tenth are of clocks that contradict each other."""
_EXIT_SECONDS = 10.0
"""How long a process may take to go after its last word, or once it is killed."""
_UNKNOWN = 255
"""multiprocessing's exit code for a process whose forkserver has ended."""
_STARTS = 3
"""How often a process is started where the forkserver ends meanwhile."""
_LOOKS = 20
_THEIRS: set[int] = set()
"""This process's children before the forkserver was started."""
ORIGINS: dict[str, Server] = {}
"""What calls are forked from besides the forkserver, by name."""
_USUAL_THREADS: int | None = None
"""Threads of a call that asks for no number; None leaves one a core."""
_SURVIVING = ("jemalloc_bg_thd", "cuda0")
"""What native threads are called that a fork does without: pyarrow starts its own again, and NVML, which names its own
as CUDA does, answers without."""
_MOST_PAGES = 512
"""2 MiB, a huge page."""
_PLACED: list[mmap.mmap] = []
_RUNNING: set[int] = set()
"""The processes of calls that have not ended: the forkserver's other children are orphans."""
_FIRST_TO_GO = "1000"
"""A call's oom_score_adj, which its children inherit: man 5 proc_pid_oom_score_adj."""
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36


@dataclass(frozen=True)
class Call:
    """A function, written "package.module:function", that takes (argument, report); where its output goes; its limits.

    `timeout` bounds all phases together except Phase.BUILD, each of which has `build_timeout`, and Phase.END, which has
    a limit of its own; both in seconds.
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
    """Threads that torch computes with; None leaves one a core, which calls side by side must not have."""
    option: str | None = None
    """The option that gives it longer; None is the job's budget."""
    origin: str | None = None
    """Name of the process that it is forked from; without one of that name it is the forkserver."""
    returns: type = object
    """The function's return type."""
    deadline: float = math.inf
    """When all but Phase.END is over at the latest, on time.monotonic()."""


def start_forkserver(log: Path) -> None:
    """Start the forkserver if there is none, so that it warms up while the parent does other things."""
    # One thread: stray threads of a BLAS pool would not survive the fork.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    os.environ[LOG] = str(log)
    # Python 3.11's forkserver ignores the parent's sys.path, and swallows the ImportError that follows.
    root = Path(__file__).absolute().parents[2]
    known = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    # An installed package is found without it, and none of those may hide Python's own modules.
    if str(root) not in known and root.name not in ("site-packages", "dist-packages"):
        os.environ["PYTHONPATH"] = os.pathsep.join([str(root), *filter(None, known)])
    # Python's resource tracker cleans up a killed worker's semaphores, and would say so on the terminal.
    # Whoever makes errors of warnings means code of her own: torch itself warns as it is imported.
    os.environ["PYTHONWARNINGS"] = "ignore::UserWarning:multiprocessing.resource_tracker"
    _CONTEXT.set_forkserver_preload([PRELOADED])
    _THEIRS.update(child.pid for child in psutil.Process().children())
    adopt_orphans()  # What a call started is found even where the forkserver that would adopt it was killed.
    _ensure_forkserver()


def _ensure_forkserver() -> None:
    # Ctrl-C and a closed terminal are for the parent: the forkserver would answer with a traceback, or end too early.
    resource_tracker.ensure_running()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _TERMINALS)
    users = os.environ.get("PYTHONSAFEPATH")
    os.environ["PYTHONSAFEPATH"] = "1"  # It must import this profiler, whatever lies in the current folder.
    try:
        forkserver.ensure_running()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        del os.environ["PYTHONSAFEPATH"]
        if users is not None:
            os.environ["PYTHONSAFEPATH"] = users


class Server(forkserver.ForkServer):
    """A call's process that forks others, as the forkserver does. See `serve`."""

    def __init__(self, pid: int, address: str) -> None:
        super().__init__()
        self.pid = pid
        self._forkserver_address = address

    def ensure_running(self) -> None:
        """Send the forkserver's pipe along: each fork closes it."""
        self._forkserver_alive_fd = forkserver._forkserver._forkserver_alive_fd  # type: ignore[attr-defined]


@contextlib.contextmanager
def _forked_from(origin: str | None) -> Iterator[int]:
    """Have multiprocessing start its processes from this origin; gives its id. One that has ended is forgotten."""
    server, usual = ORIGINS.get(origin or ""), forkserver.connect_to_new_process
    if server is None:
        yield forkserver._forkserver._forkserver_pid  # type: ignore[attr-defined]
        return
    forkserver.connect_to_new_process = server.connect_to_new_process
    try:
        yield server.pid
    except (OSError, EOFError):
        ORIGINS.pop(origin or "", None)
        raise
    finally:
        forkserver.connect_to_new_process = usual


def _native_threads() -> list[str]:
    """Name the threads of this process besides the one that runs this."""
    tasks = Path("/proc/self/task")
    names = []
    for task in tasks.iterdir() if tasks.is_dir() else ():
        with contextlib.suppress(OSError):  # One that has just ended.
            names += [(task / "comm").read_text().strip()] if int(task.name) != threading.get_native_id() else []
    return [name for name in names if not name.startswith(_SURVIVING)]


def serve(report: Report, made: Any, threads: int) -> None:
    """Fork calls from this process until it is killed, and report what it `made`.

    torch computes with so many `threads` in calls that ask for no number. Returns at once where a fork would lack some
    of the process's threads.
    """
    global _USUAL_THREADS
    threads_here = [one.name for one in threading.enumerate()][1:] + _native_threads()
    if hasattr(forkserver.ForkServer(), "_forkserver_authkey"):
        print("nothing is forked from this process: Python 3.14 asks for a key", file=sys.stderr)
        return
    if threads_here:
        print(
            f"nothing is forked from this process, which has other threads: {', '.join(threads_here)}", file=sys.stderr
        )
        return
    _USUAL_THREADS = threads
    gc.freeze()
    never, _ = os.pipe()
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(Path(tempfile.mkdtemp(dir=util.get_temp_dir()), "socket")))
    listener.listen()
    report(Entered(Phase.SERVE))
    report(Serves(listener.getsockname(), made))
    forkserver.main(listener.detach(), never, [])


class Child:
    """A running call. `poll` it until it returns an Outcome."""

    def __init__(self, call: Call) -> None:
        self.call = call
        self.phase: str = Phase.FORK
        self.progress = ""
        self.serves: tuple[str, Any] | None = None
        """The address from which it forks, and what it made before."""
        self._phase_started = time.monotonic()
        self._entered: dict[str, float] = {Phase.FORK: self._phase_started}
        self._seconds: dict[str, float] = {}
        self._at: float | None = None
        self._seen, self._awake = self._phase_started, 0.0
        self._contradiction: str | None = None
        self._salvage: Any = None
        self._oom_kills = _oom_kills()
        # A killed process clears nothing away; the run's folder, where the forkserver's log is, goes in the end.
        log = os.environ.get(LOG)
        self._folder = tempfile.mkdtemp(dir=Path(log).parent if log else None)
        ours, theirs = _CONTEXT.Pipe(duplex=False)
        self._messages: queue.SimpleQueue[Message | None] = queue.SimpleQueue()
        self._reader = threading.Thread(target=_receive, args=(ours, self._messages), daemon=True)
        self._reader.start()  # First: without a thread no process is started.
        self.process = _CONTEXT.Process(target=_enter, args=(theirs, call, self._folder))
        self._not_started = self._start()
        theirs.close()
        # No limit is on the time that a forkserver which was not there yet took.
        self._timed = self._phase_started - time.monotonic()

    def _start(self) -> Outcome | None:
        """Start the process; returns how that failed."""
        for tried in range(1, _STARTS + 1):
            try:
                _ensure_forkserver()
                with _forked_from(self.call.origin) as pid:
                    self._start_without_main()
            except (OSError, EOFError) as error:
                reason = sentence(error)
                time.sleep(tried * 0.1)  # A process that was killed closes its sockets before it counts as ended.
            else:
                self._origin = pid
                self._forkserver: int = forkserver._forkserver._forkserver_pid  # type: ignore[attr-defined]
                assert self.process.pid is not None
                _RUNNING.add(self.process.pid)
                return None
        return Outcome("crashed", f"no process could be started for it, tried {_STARTS} times: {reason}")

    def _start_without_main(self) -> None:
        """Keep the process from running the parent's main file first, which may be a user's script that measures."""
        main, sys.modules["__main__"] = sys.modules["__main__"], ModuleType("__main__")
        try:
            self.process.start()
        finally:
            sys.modules["__main__"] = main

    def poll(self, timeout: float = 0.0) -> Outcome | None:
        """Take what the child reported; wait up to `timeout` seconds for it. Returns the outcome once it has ended."""
        if self._not_started is not None:
            return self._finish(self._not_started)
        self._look_at_the_clock()
        if has_ended := not self.process.is_alive():
            self._reader.join(1.0)  # Where the forkserver was killed, the process ends a moment later.
            self._end_all()  # What it started may hold its pipe open, behind half a message.
            self._reader.join(_EXIT_SECONDS)
        wait = 0.0 if has_ended else max(0.0, min(timeout, self.remaining()))
        with contextlib.suppress(queue.Empty):
            while (message := self._messages.get(timeout=wait)) is not None:
                if (outcome := self._take(message)) is not None:
                    self.process.join(_EXIT_SECONDS)  # It leaves by itself; what it started (compiler pools) does not.
                    return self._finish(outcome)
                wait = 0.0
            has_ended = True
        if has_ended:
            return self._finish(self._post_mortem())
        return None if self.remaining() > 0 else self._finish(Outcome("timeout", self._over_the_limit()))

    def _take(self, message: Message) -> Outcome | None:
        if not is_sound(message):
            return Outcome("crashed", f"sent an invalid message: {type(message).__name__}")
        match message:
            case Entered(phase, at):
                self._compare_clocks(at)
                self._enter_phase(phase)
            case Progress(text):
                self.progress = shown(text)
            case Salvage(value):
                self._salvage = value
            case Serves(address, made) if isinstance(made, self.call.returns):
                self.serves = address, made
            case Outcome(status="ok", value=made) | Serves(made=made) if not isinstance(made, self.call.returns):
                return Outcome("crashed", f"returned {type(made).__name__}, not {self.call.returns.__name__}")
            case Outcome():
                return message
        return None

    def _look_at_the_clock(self) -> None:
        """Add to the phase the time since the last look; a look that comes late says that this process was stopped."""
        now = time.monotonic()
        self._awake += min(now - self._seen, _LATE_SECONDS)
        self._seen = now

    def _compare_clocks(self, at: float | None) -> None:
        """Hold what the phase took by the process's own clock against this one's."""
        self._look_at_the_clock()
        if at is not None and self._at is not None:
            own, spent = at - self._at, time.monotonic() - self._phase_started
            if own < self._awake / _CLOCKS_AGREE - _LATE_SECONDS or own > spent * _CLOCKS_AGREE + _LATE_SECONDS:
                took = f"{own:.1f} s by the clock that it measures by, and {spent:.1f} s by the profiler's own"
                self._contradiction = f"the model changed the clock: phase {self.phase} took {took}"
        self._at, self._awake = at, 0.0

    def kill(self) -> None:
        """End the process and every process that it started."""
        if self._not_started is None and self.phase != Phase.ENDED:
            self._end_all()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _end_all(self) -> None:
        until = time.monotonic()
        if (pid := self.process.pid) in _RUNNING:
            _RUNNING.remove(pid)
            # The group may outlive its leader. A child that leads none yet has started nothing either.
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(pid, signal.SIGKILL)
            self.process.kill()
            self.process.join(_EXIT_SECONDS)
            # A forkserver that ends closes its pipes a moment before its children are this process's.
            if self.process.exitcode == _UNKNOWN and self._origin == self._forkserver:
                until += _LATE_SECONDS
        end_below(self._origin, _RUNNING)
        while is_there := self._has_forkserver():
            if time.monotonic() >= until:
                break
            time.sleep(0.01)
        if not is_there:
            end_below(os.getpid(), _of_this_session())

    def _has_forkserver(self) -> bool:
        with contextlib.suppress(psutil.NoSuchProcess):
            found = psutil.Process(self._forkserver)
            return found.ppid() == os.getpid() and _is_alive(found)
        return False

    def remaining(self) -> float:
        """Return how many seconds its phase may still take, below 0 once that is over."""
        spent = time.monotonic() - self._phase_started
        if self.phase == Phase.END:
            return _CLOSE_SECONDS - spent
        limit = self.call.build_timeout if self.phase == Phase.BUILD else self.call.timeout - self._timed
        return min(limit - spent, self._left())

    def _left(self) -> float:
        return self.call.deadline - time.monotonic()

    def _over_the_limit(self) -> str:
        if self.phase == Phase.END:
            return f"closing the session took more than {_CLOSE_SECONDS:g} s"
        if self._left() <= 0:
            return f"ended with the time of the run{self._where()}"
        key = "build_timeout" if self.phase == Phase.BUILD else "timeout"
        limit, option = getattr(self.call, key), self.call.option or f"budget.{key}"
        return f"ended after {limit:g} s{self._where()}; raise {option} if it needs longer"

    def _where(self) -> str:
        return "" if self.phase == Phase.OPEN else f" in phase {self.phase}"  # All of a call that tells no phases.

    def _enter_phase(self, phase: str) -> None:
        now = time.monotonic()
        spent = now - self._phase_started
        self._seconds[self.phase] = self._seconds.get(self.phase, 0.0) + spent
        self._timed += 0.0 if self.phase in (Phase.BUILD, Phase.END) else spent
        self.phase, self.progress, self._phase_started = phase, "", now
        self._entered.setdefault(phase, now)

    def _finish(self, outcome: Outcome) -> Outcome:
        outcome.phase = self.phase
        self._enter_phase(Phase.EXIT)
        self.kill()
        self._enter_phase(Phase.ENDED)
        outcome.salvage, outcome.seconds, outcome.entered = self._salvage, self._seconds, self._entered
        outcome.contradiction = self._contradiction
        outcome.log = None if outcome.status == "ok" else self.call.log
        return outcome

    def _post_mortem(self) -> Outcome:
        """Tell why a process ended without a word."""
        self.process.join(_EXIT_SECONDS)
        code = self.process.exitcode
        if code is None:
            return Outcome("crashed", f"closed its pipe{self._where()} and still runs")
        if code == -signal.SIGKILL and _oom_kills() > self._oom_kills:
            return Outcome("oom", f"killed by the kernel{self._where()}: out of memory")
        name = next((each.name for each in signal.Signals if each == -code), f"signal {-code}")
        how = f"ended by {name}" if code < 0 else f"exited with code {code}"
        if code == _UNKNOWN:
            how += ", or ended with the forkserver"
        return Outcome("crashed", f"{how}{self._where()}")


def run_one(call: Call, tick: Callable[[Child], None] = lambda child: None) -> Outcome:
    """Run a call to its end; `tick` gets the child a few times a second while it runs."""
    child = Child(call)
    try:
        while (outcome := child.poll(_TICK_SECONDS)) is None:
            tick(child)
    finally:
        child.kill()
    return outcome


def run_all(
    calls: Iterable[Call],
    slots: int,
    tick: Callable[[int], None] = lambda done: None,
    kept: Callable[[int, Child], Outcome | None] = lambda number, child: None,
) -> list[Outcome]:
    """Run the calls side by side, `slots` at a time; outcomes in the order of the calls. A crashed one runs once more.

    `tick` is called a few times a second with the number of calls that have ended. A running call for which `kept`
    returns an outcome is left to the caller.
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
                outcome = child.poll(0.05) or kept(index, child)
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


def end_below(root: int | None, spared: Collection[int] = ()) -> None:
    """End every process below `root`, except its `spared` children and what is below those."""
    before: set[psutil.Process] | None = None
    for _ in range(_LOOKS):  # No look is of one moment: what is started or left to `root` meanwhile is found next.
        found = set[psutil.Process]()
        for child in _children(root):
            if child.pid not in spared:
                found |= {child, *_children(child, recursive=True)}
        for process in found:  # Also one that counts as ended: its first thread may have ended before others.
            with contextlib.suppress(psutil.Error):
                process.kill()
        living = list(filter(_is_alive, found))
        if not living and found == before:
            return
        before = found
        psutil.wait_procs(living, timeout=0.5)


def _children(of: psutil.Process | int | None, recursive: bool = False) -> list[psutil.Process]:
    with contextlib.suppress(psutil.NoSuchProcess):
        if of is not None:
            return (psutil.Process(of) if isinstance(of, int) else of).children(recursive)
    return []


def _of_this_session() -> set[int]:
    """Return the children that no call left: each call leads a session, which what it started shares or left."""
    spared = set(_THEIRS)
    for child in psutil.Process().children():
        with contextlib.suppress(ProcessLookupError):
            spared |= {child.pid} if os.getsid(child.pid) == os.getsid(0) else set()
    return spared


def _is_alive(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.NoSuchProcess):
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    return False


def end_with_parent(end: bool = True) -> None:
    """Have the kernel kill this process as soon as the thread that started it ends, or no longer."""
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL if end else 0)


def adopt_orphans(adopt: bool = True) -> None:
    """Become the parent of every process below this one whose own parent ends, to find and end it; or no longer."""
    _prctl(_PR_SET_CHILD_SUBREAPER, int(adopt))


def _prctl(option: int, value: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(option, ctypes.c_ulong(value))


def redirect_output(log: Path) -> None:
    """Send both outputs, those of C libraries too, into a log: the terminal belongs to the parent."""
    flush_output()
    target = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(target, 1)
    os.dup2(target, 2)
    os.close(target)


def flush_output() -> None:
    """Write out what Python and C have buffered."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
    ctypes.CDLL(None).fflush(None)


def _receive(connection: Connection, messages: queue.SimpleQueue[Message | None]) -> None:
    """Take a child's messages until its pipe is closed or holds what cannot be read; None is the last.

    In a thread, since only half a message may come.
    """
    with contextlib.suppress(BaseException), connection:  # Unpickling may raise anything.
        while True:
            messages.put(connection.recv())
    messages.put(None)


def _enter(connection: Connection, call: Call, temporary: str) -> NoReturn:
    """Run the call: the child's first and last function."""
    os.setsid()
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _TERMINALS)
    # The forkserver ends with the parent once nobody else holds the pipe that tells it so; every child has a copy.
    end_with_parent()
    os.close(forkserver._forkserver._forkserver_alive_fd)  # type: ignore[attr-defined]
    adopt_orphans()  # So that the forkserver's are those of calls that have ended.
    report: Report = connection.send
    try:
        with contextlib.suppress(OSError):
            Path("/proc/self/oom_score_adj").write_text(_FIRST_TO_GO)
        redirect_output(call.log)
        _place_memory_anew()
        faulthandler.enable()  # A crash in C leaves the Python stack in the log.
        os.environ.update(call.environment)
        os.environ["TMPDIR"] = tempfile.tempdir = temporary
        sys.path[:0] = [folder for folder in call.path if folder not in sys.path]
        sys.path.append(str(Path.cwd()))
        threads = call.threads or _USUAL_THREADS
        if threads is not None and "torch" in sys.modules:
            sys.modules["torch"].set_num_threads(threads)
        report(Entered(Phase.OPEN))
        module, _, name = call.function.partition(":")
        outcome = Outcome("ok", value=getattr(importlib.import_module(module), name)(call.argument, report))
    except BaseException as error:
        # Here, where its frames still hold what they held: a runtime can abort while it frees a session.
        _leave(report, explain(error))
    _leave(report, outcome)


def _place_memory_anew() -> None:
    """Move the places of what is allocated from here on by random numbers of pages, as the kernel does when it starts a
    program.

    Processes that are forked from one parent have its layout, by which a convolution may differ by a quarter: their
    figures would agree, and be wrong together (Mytkowicz et al., "Producing wrong data without doing anything obviously
    wrong", ASPLOS 2009).
    """
    random, libc = SystemRandom(), ctypes.CDLL(None)
    if hasattr(libc, "sbrk"):
        libc.sbrk.argtypes, libc.sbrk.restype = [ctypes.c_long], ctypes.c_void_p
        libc.sbrk(mmap.PAGESIZE * random.randrange(_MOST_PAGES))
    _PLACED.append(mmap.mmap(-1, mmap.PAGESIZE * random.randrange(1, _MOST_PAGES)))


def _leave(report: Report, outcome: Outcome) -> NoReturn:
    """Report the outcome and end the process without exit handlers or destructors: runtimes abort or hang in them."""
    code = 1
    try:
        try:
            report(outcome)
        except Exception as error:
            report(Outcome("failed", f"its result cannot be sent: {type(error).__name__}: {error}"))
        code = 0
    finally:
        flush_output()
        os._exit(code)


def explain(error: BaseException) -> Outcome:
    """Turn an error into the outcome of its call; the traceback goes into the log."""
    if isinstance(error, Unsupported):
        return Outcome("unsupported", str(error))
    out_of_memory = _out_of_memory(error)
    if not isinstance(error, ModelError) or error.__cause__ is not None:
        with contextlib.suppress(Exception):
            traceback.print_exception(error)
    text = str(error) if isinstance(error, ModelError) else sentence(out_of_memory or error)
    return Outcome("oom" if out_of_memory else "failed", text)


def _out_of_memory(error: BaseException) -> BaseException | None:
    """Return the error, or one that it followed, that means that memory ran out; not every library has a type for it.

    What is cleaned up after such an error may raise another one, as the end of a CUDA graph's recording does.
    """
    for each in chain(error, hidden=True):
        if isinstance(each, MemoryError) or _OUT_OF_MEMORY.search(message(each)):
            return each
    return None


def _oom_kills() -> int:
    """Count the processes of this control group (version 2 or 1) that the kernel killed because memory ran out."""
    for file in (folder / name for folder in control_groups() for name in ("memory.events", "memory.oom_control")):
        with contextlib.suppress(OSError, ValueError):
            return int(dict(line.split() for line in file.read_text().splitlines()).get("oom_kill", 0))
    return 0
