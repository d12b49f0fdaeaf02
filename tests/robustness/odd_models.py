"""Models that do what a model may do at its worst, at once or only while it is measured, and the status each must get.

A factory of this file is called by its name: `make(name, when)`. A model that disturbs what measures it, but returns
its outputs, is `ok`: its figures are its own affair, those of the next model are not.
"""

from __future__ import annotations

import atexit
import ctypes
import multiprocessing
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
import onnx.parser
import torch
from torch import nn

from profiler.processes import messages

AT_ONCE, MEASURED = "at once", "while it is measured"
MODELS: dict[str, tuple[Callable[[Any], Any], tuple[str, ...]]] = {}
"""By name what is done to an output, and the statuses that are right for its row."""


def row(*statuses: str) -> Callable[[Any], Any]:
    def add(spoil: Any) -> Any:
        MODELS[spoil.__name__] = spoil, statuses
        return spoil

    return add


class Net(nn.Module):
    """A product; what spoils its output is called if it is time."""

    def __init__(self, spoil: Any, when: str) -> None:
        super().__init__()
        self.layer, self.spoil, self.when = nn.Linear(8, 4), spoil, when

    def forward(self, x: torch.Tensor) -> object:
        y = self.layer(x)
        return self.spoil(y) if self.when == AT_ONCE or _is_measured() else y


def _is_measured() -> bool:
    frame: Any = sys._getframe()
    while frame is not None and frame.f_code.co_name != "measure_case":
        frame = frame.f_back
    return frame is not None


_DONE: set[str] = set()


def _first(name: str) -> bool:
    """Tell whether this process does that for the first time."""
    return name not in _DONE and not _DONE.add(name)


def good() -> nn.Module:
    return Net(lambda y: y, AT_ONCE)


def make(name: str, when: str) -> nn.Module:
    return Net(MODELS[name][0], when)


def write_graphs(folder: Path) -> None:
    parse = """<ir_version: 10, opset_import: ["" : 20]>
    endless (float[N, 8] x) => (float[N, 8] y) <int64 trips = {9223372036854775807}, bool goes_on = {1}> {
        y = Loop (trips, goes_on, x) <body = one (int64 i, bool c, float[N, 8] a) => (bool d, float[N, 8] b) {
            d = Identity (c)
            b = Abs (a)
        }>
    }"""
    content = onnx.parser.parse_model(parse).SerializeToString()
    (folder / "endless_graph.onnx").write_bytes(content)
    (folder / "half_a_graph.onnx").write_bytes(content[: len(content) // 2])


def dies_when_built() -> nn.Module:
    os._exit(0)


def never_built() -> nn.Module:
    time.sleep(3600)
    raise AssertionError


WHEN_BUILT = {"dies_when_built": ("crashed",), "never_built": ("timeout",)}
IN_A_GRAPH = {"endless_graph": ("timeout",), "half_a_graph": ("failed",)}
"""A Loop that never ends, as an .onnx file, and half of that file."""
WHEN_IMPORTED = {
    "exits_when_imported": ("import sys; sys.exit(7)", ("failed",)),
    "dies_when_imported": ("import os; os._exit(7)", ("crashed",)),
    "is_no_python": ("def make(:\n\x00", ("failed",)),
}
"""By module what is in its file."""
SAYS = {
    **dict.fromkeys(("never_built", "endless_graph"), "ended after 500 s"),
    **dict.fromkeys(("is_stopped", "loops"), "ended after [56]00 s"),
    "reads_null": "ended by SIGSEGV",
    "takes_all_memory": "allocate",
    "half_a_graph": "no ONNX model, or a truncated one",
}
"""By model a pattern of its reason; the job allows 500 s to build and 600 s to measure."""


@row("failed")
def raises_what_cannot_be_printed(y):
    class Odd(BaseException):
        def __str__(self):
            raise RuntimeError("and this neither")

        __repr__ = __str__

    raise Odd


@row("failed")
def raises_odd_characters(y):
    raise ValueError("\ud800 \0 \x1b[31m \x9b \u202e \x07 | <script>" + chr(0x10FFFF))


@row("failed")
def recurses(y):
    return recurses(y)


@row("crashed")
def dies_in_silence(y):
    os._exit(0)


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


@row("oom")
def takes_all_memory(y):
    size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (size + (256 << 20), resource.RLIM_INFINITY))
    held = []
    while True:
        held.append(torch.ones(1 << 20))


@row("ok")
def prints_200_megabytes(y):
    for _ in range(200 if _first("prints") else 0):
        os.write(1, b"x" * (1 << 20))
    return y


@row("ok")
def changes_the_folder(y):
    os.chdir("/")
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
def starts_processes(y):
    context = multiprocessing.get_context("fork")
    for _ in range(5 if _first("processes") else 0):
        context.Process(target=time.sleep, args=(900,), daemon=False).start()
        subprocess.Popen([sys.executable, "-c", "import time; time.sleep(900)"], start_new_session=True)
    return y


def _report():
    """Find what a worker reports by."""
    frame: Any = sys._getframe()
    while "report" not in frame.f_locals:
        frame = frame.f_back
    return frame.f_locals["report"]


@row("crashed")
def sends_an_odd_message(y):
    _report()(messages.Entered("measure", at="soon"))
    return y


@row("crashed")
def ends_with_nothing_measured(y):
    _report()(messages.Outcome("ok"))
    time.sleep(900)


@row("failed")
def gives_itself(y):
    answer = [y]
    answer.append(answer)
    return answer


@row("ok")
def hangs_at_its_end(y):
    atexit.register(time.sleep, 900)
    return y
