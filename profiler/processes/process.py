"""Call a function in its own process, and report how it ended.

A forkserver imports torch and onnxruntime once, without touching a device, and forks a process per call: no case
changes the figures of the next one, and none pays for the imports. The caller gets an exception, a signal, a hang or a
lack of memory as an Outcome.
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
from profiler.machine.target import control_groups
from profiler.processes.messages import Entered, Message, Outcome, Progress, Report, Salvage, Serves, is_sound

_CONTEXT = multiprocessing.get_context("forkserver")
_OUT_OF_MEMORY = re.compile(
    r"out of memory|(can't|cannot|failed to) allocate memory|not enough memory|_ALLOC(ATION)?_FAILED"
    r"|std::bad_alloc|OutOfMemory|RESOURCE_EXHAUSTED",
    re.IGNORECASE,
)
_NO_KERNEL = re.compile(r"^\"\w+\" not implemented for '(BFloat16|Half|Float8\w*)'")
"""How torch refuses an operator in a type of few bits."""
PRELOADED = "profiler.worker.preload"
LOG = "PROFILER_FORKSERVER_LOG"
_TERMINALS = (signal.SIGINT, signal.SIGHUP)
"""Signals that a terminal sends to all of its processes."""
_TICK_SECONDS = 0.2
_CLOSE_SECONDS = 30.0
"""Limit for closing a session, whatever the timeout: everything has been measured."""
_LATE_SECONDS, _CLOCKS_AGREE = 1.0, 1.1
"""Clocks contradict each other if their durations of a phase differ by more than a tenth plus a second."""
_EXIT_SECONDS = 10.0
"""Limit for a process to exit after its outcome or a kill."""
_UNKNOWN = 255
"""multiprocessing's exit code for a process whose forkserver has ended."""
_STARTS = 3
"""Attempts to start a process, in case the forkserver ends meanwhile."""
_SWEEPS = 20
_EARLIER_CHILDREN: set[int] = set()
"""This process's children before the forkserver was started."""
ORIGINS: dict[str, Server] = {}
"""Further processes to fork calls from, besides the forkserver, by name."""
_USUAL_THREADS: int | None = None
"""Default threads of a call; None leaves torch's, one a core."""
_SURVIVING = ("jemalloc_bg_thd", "cuda0")
"""Names of native threads that a fork can do without: pyarrow restarts its own, and NVML, which names its threads like
CUDA, answers without them."""
_MOST_PAGES = 512
"""2 MiB, a huge page."""
_PLACED: list[mmap.mmap] = []
"""Keeps the mapping of `_place_memory_anew` alive."""
_RUNNING: set[int] = set()
"""Processes of running calls; other children of the forkserver are orphans."""
_FIRST_TO_GO = "1000"
"""A call's oom_score_adj, inherited by its children: man 5 proc_pid_oom_score_adj."""
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36


@dataclass(frozen=True)
class Call:
    """A function "package.module:function", called with (argument, report), the log of its output, and its limits.

    `timeout` bounds all phases together except Phase.END, which has a fixed limit, and Phase.BUILD, which has
    `build_timeout` each time. Both are seconds.
    """

    function: str
    argument: Any
    log: Path
    timeout: float = 300.0
    build_timeout: float = 900.0
    environment: Mapping[str, str] = field(default_factory=dict)
    path: tuple[str, ...] = ()
    """Folders of a user's factories, put in front of sys.path."""
    threads: int | None = None
    """Threads of torch. None leaves one a core: too many for calls side by side."""
    option: str | None = None
    """The option that raises the limit; None means the job's budget."""
    origin: str | None = None
    """Name in ORIGINS of the process to fork from; by default the forkserver."""
    returns: type = object
    """The function's return type."""
    deadline: float = math.inf
    """Latest end of all phases but Phase.END, on time.monotonic()."""

    def is_late(self) -> bool:
        """Return whether the deadline has passed."""
        return self.deadline <= time.monotonic()


def start_forkserver(log: Path) -> None:
    """Start the forkserver unless it runs; it imports libraries while the parent goes on."""
    # One thread: stray threads of a BLAS pool would not survive the fork.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    os.environ[LOG] = str(log)
    # Python 3.11's forkserver ignores the parent's sys.path, and swallows the ImportError that follows.
    root = Path(__file__).absolute().parents[2]
    folders = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    # An installed package needs no entry, and its folder must not hide Python's own modules.
    if str(root) not in folders and root.name not in ("site-packages", "dist-packages"):
        os.environ["PYTHONPATH"] = os.pathsep.join([str(root), *filter(None, folders)])
    # Python's resource tracker cleans up a killed worker's semaphores, and would warn on the terminal.
    # A user's -W error is meant for other code: importing torch itself warns.
    os.environ["PYTHONWARNINGS"] = "ignore::UserWarning:multiprocessing.resource_tracker"
    _CONTEXT.set_forkserver_preload([PRELOADED])
    _EARLIER_CHILDREN.update(child.pid for child in psutil.Process().children())
    adopt_orphans()  # In case the forkserver, which would adopt them, is killed.
    _ensure_forkserver()


def _ensure_forkserver() -> None:
    # Only the parent handles Ctrl-C and a closed terminal: the forkserver would print a traceback, or end too early.
    resource_tracker.ensure_running()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _TERMINALS)
    users = os.environ.get("PYTHONSAFEPATH")
    os.environ["PYTHONSAFEPATH"] = "1"  # A profiler/ in the current folder must not hide this one.
    try:
        forkserver.ensure_running()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        del os.environ["PYTHONSAFEPATH"]
        if users is not None:
            os.environ["PYTHONSAFEPATH"] = users


class Server(forkserver.ForkServer):
    """A call's process that forks others like the forkserver. See `serve`."""

    def __init__(self, pid: int, address: str) -> None:
        super().__init__()
        self.pid = pid
        self._forkserver_address = address

    def ensure_running(self) -> None:
        """Pass the forkserver's pipe on: each fork closes it."""
        self._forkserver_alive_fd = forkserver._forkserver._forkserver_alive_fd  # type: ignore[attr-defined]


@contextlib.contextmanager
def _forked_from(origin: str | None) -> Iterator[int]:
    """Make multiprocessing fork from this origin, and yield its process id. Forget an origin that has ended."""
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
    names = []
    for task in Path("/proc/self/task").iterdir():
        with contextlib.suppress(OSError):  # A thread may have just ended.
            names += [(task / "comm").read_text().strip()] if int(task.name) != threading.get_native_id() else []
    return [name for name in names if not name.startswith(_SURVIVING)]


def serve(report: Report, value: Any, threads: int) -> None:
    """Report the value, then fork calls from this process until it is killed.

    `threads` is the default number of torch threads in those calls. Returns at once if a fork would lack some of the
    process's threads.
    """
    global _USUAL_THREADS
    other_threads = [thread.name for thread in threading.enumerate()][1:] + _native_threads()
    if hasattr(forkserver.ForkServer(), "_forkserver_authkey"):
        print("nothing is forked from this process: Python 3.14 asks for a key", file=sys.stderr)
        return
    if other_threads:
        names = ", ".join(other_threads)
        print(f"nothing is forked from this process, which has other threads: {names}", file=sys.stderr)
        return
    _USUAL_THREADS = threads
    gc.freeze()
    never, _ = os.pipe()
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(Path(tempfile.mkdtemp(dir=util.get_temp_dir()), "socket")))
    listener.listen()
    report(Entered(Phase.SERVE))
    report(Serves(listener.getsockname(), value))
    forkserver.main(listener.detach(), never, [])


class Child:
    """A running call. Call `poll` until it returns an Outcome."""

    def __init__(self, call: Call) -> None:
        self.call = call
        self.phase: str = Phase.FORK
        self.progress = ""
        self.serves: tuple[str, Any] | None = None
        """The address and the value that the call serves; None for a call that ends by itself."""
        self._phase_started = time.monotonic()
        self._entered: dict[str, float] = {Phase.FORK: self._phase_started}
        self._seconds: dict[str, float] = {}
        self._at: float | None = None
        self._seen, self._awake = self._phase_started, 0.0
        self._contradiction: str | None = None
        self._salvage: Any = None
        self._oom_kills = _oom_kills()
        # A killed process removes nothing; the run removes the forkserver's folder.
        log = os.environ.get(LOG)
        self._folder = tempfile.mkdtemp(dir=Path(log).parent if log else None)
        ours, theirs = _CONTEXT.Pipe(duplex=False)
        self._messages: queue.SimpleQueue[Message | None] = queue.SimpleQueue()
        self._reader = threading.Thread(target=_receive, args=(ours, self._messages), daemon=True)
        self._reader.start()  # First: if no thread can start, start no process.
        self.process = _CONTEXT.Process(target=_enter, args=(theirs, call, self._folder))
        self._not_started = self._start()
        theirs.close()
        # The start of the forkserver counts against no limit.
        self._timed = self._phase_started - time.monotonic()

    def _start(self) -> Outcome | None:
        for attempt in range(1, _STARTS + 1):
            try:
                _ensure_forkserver()
                with _forked_from(self.call.origin) as pid:
                    self._start_without_main()
            except (OSError, EOFError) as error:
                reason = sentence(error)
                time.sleep(attempt * 0.1)  # A killed process closes its sockets before it counts as ended.
            else:
                self._origin = pid
                self._forkserver: int = forkserver._forkserver._forkserver_pid  # type: ignore[attr-defined]
                assert self.process.pid is not None
                _RUNNING.add(self.process.pid)
                return None
        return Outcome("crashed", f"no process could be started for it, tried {_STARTS} times: {reason}")

    def _start_without_main(self) -> None:
        """Start the process without the parent's main file: a user's script would measure again."""
        main, sys.modules["__main__"] = sys.modules["__main__"], ModuleType("__main__")
        try:
            self.process.start()
        finally:
            sys.modules["__main__"] = main

    def poll(self, timeout: float = 0.0) -> Outcome | None:
        """Handle the child's messages, waiting up to `timeout` seconds; return the outcome once it has ended."""
        if self._not_started is not None:
            return self._finish(self._not_started)
        self._look_at_the_clock()
        if has_ended := not self.process.is_alive():
            self._reader.join(1.0)  # If the forkserver was killed, the process ends a moment later.
            self._end_all()  # Its children may hold its pipe open, behind half a message.
            self._reader.join(_EXIT_SECONDS)
        wait = 0.0 if has_ended else max(0.0, min(timeout, self.remaining()))
        with contextlib.suppress(queue.Empty):
            while (message := self._messages.get(timeout=wait)) is not None:
                if (outcome := self._take(message)) is not None:
                    self.process.join(_EXIT_SECONDS)  # It leaves by itself; its compiler pools do not.
                    return self._finish(outcome)
                wait = 0.0
            has_ended = True
        if has_ended:
            return self._finish(self._post_mortem())
        return None if self.remaining() > 0 else self._finish(Outcome("timeout", self._timeout_reason()))

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
            case Serves(address, value) if isinstance(value, self.call.returns):
                self.serves = address, value
            case Outcome(status="ok", value=value) | Serves(value=value) if not isinstance(value, self.call.returns):
                return Outcome("crashed", f"returned {type(value).__name__}, not {self.call.returns.__name__}")
            case Outcome():
                return message
        return None

    def _look_at_the_clock(self) -> None:
        """Add the time since the last look to the phase, at most a second: this process may have been stopped."""
        now = time.monotonic()
        self._awake += min(now - self._seen, _LATE_SECONDS)
        self._seen = now

    def _compare_clocks(self, at: float | None) -> None:
        """Compare the phase's duration on the process's clock with this one's."""
        self._look_at_the_clock()
        if at is not None and self._at is not None:
            child, parent = at - self._at, time.monotonic() - self._phase_started
            if child < self._awake / _CLOCKS_AGREE - _LATE_SECONDS or child > parent * _CLOCKS_AGREE + _LATE_SECONDS:
                took = f"{child:.1f} s by the clock that it measures by, and {parent:.1f} s by the profiler's own"
                self._contradiction = f"the model changed the clock: phase {self.phase} took {took}"
        self._at, self._awake = at, 0.0

    def kill(self) -> None:
        """Kill the process and every process that it started."""
        if self._not_started is None and self.phase != Phase.ENDED:
            self._end_all()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _end_all(self) -> None:
        until = time.monotonic()
        if (pid := self.process.pid) in _RUNNING:
            _RUNNING.remove(pid)
            # The group may outlive its leader. A child that leads no group yet has started nothing.
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(pid, signal.SIGKILL)
            self.process.kill()
            self.process.join(_EXIT_SECONDS)
            # An ending forkserver closes its pipes a moment before this process inherits its children.
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
            process = psutil.Process(self._forkserver)
            return process.ppid() == os.getpid() and _is_alive(process)
        return False

    def remaining(self) -> float:
        """Return the seconds that the call's phase may still take; negative after the limit."""
        spent = time.monotonic() - self._phase_started
        if self.phase == Phase.END:
            return _CLOSE_SECONDS - spent
        limit = self.call.build_timeout if self.phase == Phase.BUILD else self.call.timeout - self._timed
        return min(limit - spent, self.call.deadline - time.monotonic())

    def _timeout_reason(self) -> str:
        if self.phase == Phase.END:
            return f"closing the session took more than {_CLOSE_SECONDS:g} s"
        if self.call.is_late():
            return f"stopped{self._where()}: --within expired"
        key = "build_timeout" if self.phase == Phase.BUILD else "timeout"
        limit, option = getattr(self.call, key), self.call.option or f"budget.{key}"
        return f"ended after {limit:g} s{self._where()}; raise {option} if it needs longer"

    def _where(self) -> str:
        return "" if self.phase in (Phase.FORK, Phase.OPEN) else f" in phase {self.phase}"  # Of a call without phases.

    def _enter_phase(self, phase: str) -> None:
        now = time.monotonic()
        spent = now - self._phase_started
        self._seconds[self.phase] = self._seconds.get(self.phase, 0.0) + spent
        self._timed += 0.0 if self.phase in (Phase.BUILD, Phase.END) else spent
        self.phase, self.progress, self._phase_started = phase, "", now
        self._entered.setdefault(phase, now)

    def _finish(self, outcome: Outcome) -> Outcome:
        self._enter_phase(Phase.EXIT)
        self.kill()
        self._enter_phase(Phase.ENDED)
        outcome.salvage, outcome.seconds, outcome.entered = self._salvage, self._seconds, self._entered
        outcome.contradiction = self._contradiction
        outcome.log = None if outcome.status == "ok" else self.call.log
        return outcome

    def _post_mortem(self) -> Outcome:
        self.process.join(_EXIT_SECONDS)
        code = self.process.exitcode
        if code is None:
            return Outcome("crashed", f"closed its pipe{self._where()} and still runs")
        if code == -signal.SIGKILL and _oom_kills() > self._oom_kills:
            return Outcome("oom", f"killed by the kernel{self._where()}: out of memory")
        name = next((number.name for number in signal.Signals if number == -code), f"signal {-code}")
        end = f"ended by {name}" if code < 0 else f"exited with code {code}"
        if code == _UNKNOWN:
            end += ", or ended with the forkserver"
        return Outcome("crashed", f"{end}{self._where()}")


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
    adopt: Callable[[int, Child], Outcome | None] = lambda number, child: None,
) -> list[Outcome]:
    """Run the calls side by side, `slots` at a time; return outcomes in their order. A crashed call runs once more.

    `tick` is called a few times a second with the number of calls that have ended. The caller owns a running call once
    `adopt` returns an outcome for it.
    """
    waiting, again = list(enumerate(calls)), set[int]()
    children, outcomes = dict[int, Child](), dict[int, Outcome]()
    try:
        while waiting or children:
            while waiting and len(children) < slots:
                index, call = waiting.pop(0)
                children[index] = Child(call)
            for index, child in list(children.items()):
                outcome = child.poll(0.05) or adopt(index, child)
                if outcome is not None and outcome.status == "crashed" and index not in again:
                    again.add(index)
                    children[index] = Child(child.call)
                elif outcome is not None:
                    outcomes[index] = outcome
                    del children[index]
            tick(len(outcomes))
    finally:
        for child in children.values():
            child.kill()
    return [outcomes[index] for index in sorted(outcomes)]


def end_below(root: int | None, spared: Collection[int] = ()) -> None:
    """Kill every process below `root`, except its `spared` children and their descendants."""
    before: set[psutil.Process] | None = None
    for _ in range(_SWEEPS):  # Processes may start, or be orphaned, during a sweep.
        doomed = set[psutil.Process]()
        for child in _children(root):
            if child.pid not in spared:
                doomed |= {child, *_children(child, recursive=True)}
        for process in doomed:  # Zombies too: the first thread may have ended before others.
            with contextlib.suppress(psutil.Error):
                process.kill()
        living = list(filter(_is_alive, doomed))
        if not living and doomed == before:
            return
        before = doomed
        psutil.wait_procs(living, timeout=0.5)


def _children(of: psutil.Process | int | None, recursive: bool = False) -> list[psutil.Process]:
    with contextlib.suppress(psutil.NoSuchProcess):
        if of is not None:
            return (psutil.Process(of) if isinstance(of, int) else of).children(recursive)
    return []


def _of_this_session() -> set[int]:
    """Return this session's children: no call started them, since each call leads a session of its own."""
    spared = set(_EARLIER_CHILDREN)
    for child in psutil.Process().children():
        with contextlib.suppress(ProcessLookupError):
            spared |= {child.pid} if os.getsid(child.pid) == os.getsid(0) else set()
    return spared


def _is_alive(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.NoSuchProcess):
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    return False


def end_with_parent(end: bool = True) -> None:
    """Make the kernel kill this process when the thread that started it ends; False undoes that."""
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL if end else 0)


def adopt_orphans(adopt: bool = True) -> None:
    """Become the parent of orphans below this process, to find and kill them; False undoes that."""
    _prctl(_PR_SET_CHILD_SUBREAPER, int(adopt))


def _prctl(option: int, value: int) -> None:
    ctypes.CDLL(None).prctl(option, ctypes.c_ulong(value))


def redirect_output(log: Path) -> None:
    """Send stdout and stderr, C libraries' too, into a log: the terminal belongs to the parent."""
    flush_output()
    target = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(target, 1)
    os.dup2(target, 2)
    os.close(target)


def flush_output() -> None:
    """Flush the buffers of Python and C."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
    ctypes.CDLL(None).fflush(None)


def _receive(connection: Connection, messages: queue.SimpleQueue[Message | None]) -> None:
    """Queue a child's messages, then None; in a thread, since half a message would block."""
    with contextlib.suppress(BaseException), connection:  # Unpickling may raise anything.
        while True:
            messages.put(connection.recv())
    messages.put(None)


def _enter(connection: Connection, call: Call, temporary: str) -> NoReturn:
    """Run the call: the child's first and last function."""
    os.setsid()
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _TERMINALS)
    # The forkserver ends with the parent once every copy of this pipe is closed; each child has one.
    end_with_parent()
    os.close(forkserver._forkserver._forkserver_alive_fd)  # type: ignore[attr-defined]
    adopt_orphans()  # Until this call ends; then they are the forkserver's.
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
        # Here, while its frames keep the session alive: a runtime can abort while it frees one.
        _leave(report, explain(error))
    _leave(report, outcome)


def _place_memory_anew() -> None:
    """Shift later allocations by random numbers of pages, as the kernel does when it starts a program.

    Forks share their parent's layout, which may change a convolution's time by a quarter: their figures would agree,
    and all be wrong (Mytkowicz et al., "Producing wrong data without doing anything obviously wrong", ASPLOS 2009).
    """
    random, libc = SystemRandom(), ctypes.CDLL(None)
    libc.sbrk.argtypes, libc.sbrk.restype = [ctypes.c_long], ctypes.c_void_p
    libc.sbrk(mmap.PAGESIZE * random.randrange(_MOST_PAGES))
    _PLACED.append(mmap.mmap(-1, mmap.PAGESIZE * random.randrange(1, _MOST_PAGES)))


def _leave(report: Report, outcome: Outcome) -> NoReturn:
    """Report the outcome and exit without handlers or destructors: runtimes abort or hang in them."""
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
    """Turn an error into its call's outcome, and print the traceback into the log."""
    if isinstance(error, Unsupported):
        return Outcome("unsupported", str(error))
    # Cleaning up, such as ending a CUDA graph's recording, may raise another error that hides the one of memory.
    out_of_memory = _cause(chain(error, hidden=True), _OUT_OF_MEMORY, MemoryError)
    if not isinstance(error, ModelError) or error.__cause__ is not None:
        with contextlib.suppress(Exception):
            traceback.print_exception(error)
    # A model that handles a refusal and then raises has an error of its own.
    stated = [link for link in chain(error) if link is error or any(e.__cause__ is link for e in chain(error))]
    if refusal := _cause(stated, _NO_KERNEL):
        return Outcome("unsupported", f"torch: {message(refusal)}")
    text = str(error) if isinstance(error, ModelError) else sentence(out_of_memory or error)
    return Outcome("oom" if out_of_memory else "failed", text)


def _cause(
    errors: Iterable[BaseException], pattern: re.Pattern[str], *types: type[BaseException]
) -> BaseException | None:
    """Find an error by its type, or by its text where libraries have no type for it."""
    return next((e for e in errors if isinstance(e, types) or pattern.search(message(e))), None)


def _oom_kills() -> int:
    """Count the out-of-memory kills in this control group (version 2 or 1)."""
    for file in (folder / name for folder in control_groups() for name in ("memory.events", "memory.oom_control")):
        with contextlib.suppress(OSError, ValueError):
            return int(dict(line.split() for line in file.read_text().splitlines()).get("oom_kill", 0))
    return 0
