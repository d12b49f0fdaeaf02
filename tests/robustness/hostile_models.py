"""Models that do what a model may do at its worst, at once or only while it is measured, and the status each must get.

A factory of this file is called by its name: `make(name, when)`. Which status is right for a model that disturbs what
measures it, but returns its outputs, is `ok`: its figures are its own affair, those of the next model are not.
"""

from __future__ import annotations

import atexit
import ctypes
import faulthandler
import gc
import locale
import multiprocessing
import os
import random
import resource
import signal
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn

AT_ONCE, MEASURED = "at once", "while it is measured"
MARK = "started-by-a-hostile-model"
Spoil = Callable[[torch.Tensor], object]
MODELS: dict[str, tuple[Spoil, tuple[str, ...]]] = {}
"""By name what is done to an output, and the statuses that are right for its row."""


def row(*statuses: str) -> Callable[[Spoil], Spoil]:
    def add(spoil: Spoil) -> Spoil:
        MODELS[spoil.__name__] = spoil, statuses
        return spoil

    return add


class Net(nn.Module):
    """A product; what spoils its output is called if it is time."""

    def __init__(self, spoil: Spoil, when: str) -> None:
        super().__init__()
        self.layer, self.spoil, self.when = nn.Linear(8, 4), spoil, when

    def forward(self, x: torch.Tensor) -> object:
        y = self.layer(x)
        return self.spoil(y) if self.when == AT_ONCE or _is_measured() else y


def _is_measured() -> bool:
    frame = sys._getframe()
    while frame is not None:
        if frame.f_code.co_name == "measure_case":
            return True
        frame = frame.f_back
    return False


def good() -> nn.Module:
    return Net(lambda y: y, AT_ONCE)


def make(name: str, when: str) -> nn.Module:
    return Net(MODELS[name][0], when)


def raises_when_built() -> nn.Module:
    raise ValueError("no")


def exits_when_built() -> nn.Module:
    sys.exit("no license")


def dies_when_built() -> nn.Module:
    os._exit(0)


def never_built() -> nn.Module:
    time.sleep(3600)
    raise AssertionError


def is_no_module() -> object:
    return {"weight": torch.ones(1)}


class _Claims(nn.Module):
    """Is an nn.Module by its name alone."""

    def __getattribute__(self, name: str) -> object:
        raise RuntimeError("nothing of me can be read")


def cannot_be_read() -> nn.Module:
    return _Claims.__new__(_Claims)


FEW = {
    *("exits_when_built", "dies_when_built", "cannot_be_read", "is_no_python", "deletes_its_file"),
    *("raises_what_cannot_be_printed", "raises_odd_characters", "recurses", "exits", "reads_null", "is_stopped"),
    *("takes_all_memory", "closes_outputs", "closes_every_file", "changes_the_folder", "changes_the_default_type"),
    *("takes_signals", "lowers_limits", "starts_a_daemon", "starts_processes", "keeps_a_thread_spinning"),
    *("writes_into_the_results", "replaces_torch", "changes_shape", "gives_itself", "hangs_at_its_end"),
}
"""What CI tries: of each kind of attack one or two that differ by more than what they say."""

WHEN_BUILT = {
    "raises_when_built": ("failed",),
    "exits_when_built": ("failed",),
    "dies_when_built": ("crashed",),
    "never_built": ("timeout",),
    "is_no_module": ("failed",),
    "cannot_be_read": ("failed",),
}
WHEN_IMPORTED = {
    "raises_when_imported": ("raise RuntimeError('not here')", ("failed",)),
    "exits_when_imported": ("import sys; sys.exit(7)", ("failed",)),
    "dies_when_imported": ("import os; os._exit(7)", ("crashed",)),
    "is_killed_when_imported": ("import os; os.kill(os.getpid(), 9)", ("crashed",)),
    "is_no_python": ("def make(:\n\x00", ("failed",)),
    "deletes_its_file": (
        "import os; os.unlink(__file__)\nfrom hostile_models import good as make",
        ("failed", "ok"),
    ),
}
"""By module what is in its file."""


@row("failed")
def raises(y):
    raise ValueError("no luck")


@row("failed")
def raises_an_interrupt(y):
    raise KeyboardInterrupt


@row("failed")
def raises_what_cannot_be_printed(y):
    class Odd(BaseException):
        def __str__(self):
            raise RuntimeError("and this neither")

        __repr__ = __str__

    raise Odd


@row("failed")
def raises_a_circle(y):
    first, second = ValueError("first"), ValueError("second")
    first.__cause__, second.__cause__ = second, first
    raise first


@row("failed")
def raises_odd_characters(y):
    raise ValueError("\ud800 \0 \x1b[31m \x9b \u202e \x07 | <script>" + chr(0x10FFFF))


@row("failed")
def raises_a_huge_text(y):
    raise ValueError("far too much " * 4_000_000)


@row("failed")
def recurses(y):
    return recurses(y)


@row("failed")
def exits(y):
    sys.exit(0)


@row("crashed")
def dies_in_silence(y):
    os._exit(0)


@row("crashed")
def aborts(y):
    os.abort()


@row("crashed")
def is_killed(y):
    os.kill(os.getpid(), signal.SIGKILL)


@row("crashed")
def reads_null(y):
    return ctypes.string_at(0)


@row("timeout")
def is_stopped(y):
    os.kill(os.getpid(), signal.SIGSTOP)
    return y


@row("timeout")
def loops(y):
    while True:
        pass


@row("timeout")
def waits_for_itself(y):
    lock = threading.Lock()
    lock.acquire()
    lock.acquire()


@row("oom")
def takes_all_memory(y):
    size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (size + (256 << 20),) * 2)
    held = []
    while True:
        held.append(torch.ones(1 << 20))


@row("ok")
def raises_in_a_thread(y):
    def fail():
        raise RuntimeError("in a thread")

    thread = threading.Thread(target=fail)
    thread.start()
    thread.join()
    return y


_DONE: set[str] = set()


def _first(name: str) -> bool:
    """Whether this process does that for the first time."""
    return name not in _DONE and not _DONE.add(name)


@row("ok")
def prints_200_megabytes(y):
    if _first("prints"):
        for _ in range(200):
            os.write(1, b"x" * (1 << 20))
    return y


@row("ok")
def closes_outputs(y):
    if _first("closed"):  # Later, other files may have these numbers.
        os.closerange(1, 3)
    return y


@row("ok")
def removes_outputs(y):
    sys.stdout = sys.stderr = sys.__stdout__ = sys.__stderr__ = None
    return y


@row("ok")
def outputs_that_raise(y):
    class Broken:
        def write(self, text):
            raise OSError("full")

        flush = fileno = isatty = write

    sys.stdout = sys.stderr = Broken()
    return y


@row("crashed", "failed")
def closes_every_file(y):
    os.closerange(0, 1024)
    return y


@row("ok")
def changes_the_folder(y):
    os.chdir("/")
    return y


@row("ok", "failed")
def is_in_a_folder_that_is_gone(y):
    folder = Path(os.environ["TMPDIR"]) / f"gone-{time.monotonic_ns()}"
    folder.mkdir()
    os.chdir(folder)
    folder.rmdir()
    return y


@row("ok", "failed")
def clears_the_environment(y):
    os.environ.clear()
    return y


@row("ok")
def changes_the_locale(y):
    locale.setlocale(locale.LC_ALL, "C")
    time.tzset()
    return y


@row("ok")
def changes_seeds(y):
    torch.manual_seed(time.monotonic_ns() % 1000)
    random.seed(1)
    torch.use_deterministic_algorithms(True, warn_only=True)
    return y


@row("ok")
def changes_the_default_type(y):
    torch.set_default_dtype(torch.float64)
    return y


@row("ok", "failed")
def changes_the_default_device(y):
    torch.set_default_device("meta")
    return y


@row("ok")
def changes_threads(y):
    torch.set_num_threads(3)
    return y


@row("ok")
def turns_warnings_into_errors(y):
    warnings.simplefilter("error")
    return y


@row("ok")
def takes_signals(y):
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD):
        signal.signal(number, signal.SIG_IGN)
    return y


@row("ok", "failed", "crashed")
def lowers_limits(y):
    resource.setrlimit(resource.RLIMIT_NOFILE, (4, 4))
    faulthandler.disable()
    gc.disable()
    return y


@row("ok", "failed")
def allows_no_recursion(y):
    sys.setrecursionlimit(max(60, len(threading._active) + 60))
    return y


@row("ok")
def starts_a_daemon(y):
    if _first("daemon") and os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            time.sleep(900)
        os._exit(0)
    return y


@row("ok")
def starts_a_program_of_its_own(y):
    command = [sys.executable, "-c", f"import time; time.sleep(900)  # {MARK}"]
    if _first("program"):
        subprocess.Popen(command, start_new_session=True)
    return y


@row("ok")
def starts_processes(y):
    context = multiprocessing.get_context("fork")
    for number in range(5):
        if _first(f"process {number}"):
            context.Process(target=time.sleep, args=(900,), daemon=False).start()
    return y


@row("ok")
def keeps_a_thread_spinning(y):
    def spin():
        end = time.monotonic() + 2
        while time.monotonic() < end:
            pass

    if _first("thread"):
        threading.Thread(target=spin).start()
    return y


@row("ok")
def writes_into_the_results(y):
    for folder in Path().glob("results/*/logs") if _first("results") else ():
        with (folder.parent / "journal.jsonl").open("ab") as file:
            file.write(b'{"case_id": "x", \xff\n{}\n[]\n\n')
        (folder.parent / "mine.txt").write_text("mine")
    return y


@row("ok", "failed", "crashed", "timeout")
def replaces_time(y):
    time.perf_counter = time.monotonic = time.perf_counter_ns = time.time = lambda: 0
    return y


@row("ok", "failed", "crashed")
def replaces_json(y):
    import json

    json.dumps = json.loads = None
    return y


@row("ok", "failed", "crashed")
def replaces_torch(y):
    torch.equal = torch.Tensor.float = torch.no_grad = torch.linalg.vector_norm = None
    return y


@row("failed", "ok")
def changes_shape(y):
    changes_shape.calls = getattr(changes_shape, "calls", 0) + 1
    return y.repeat(1, changes_shape.calls)


@row("failed")
def gives_nan(y):
    return y * float("nan")


@row("failed", "ok")
def gives_infinity(y):
    return y / 0


@row("failed")
def gives_text(y):
    return "cat"


@row("failed")
def gives_itself(y):
    answer = [y]
    answer.append(answer)
    return answer


@row("failed", "ok")
def gives_nothing(y):
    return y[:0]


@row("ok", "failed")
def leaks(y):
    held = leaks.__dict__.setdefault("held", [])
    held.append(torch.ones(1 << 10))
    return y


@row("ok")
def traces_everything(y):
    sys.setprofile(lambda *_: None)
    threading.setprofile(lambda *_: None)
    return y


@row("ok")
def hangs_at_its_end(y):
    atexit.register(time.sleep, 900)
    return y
