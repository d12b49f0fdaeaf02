"""Other work beside a test: processes that keep processors or the GPU busy, and end themselves should nobody do it."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Iterator

from profiler.processes.process import adopt_orphans

_PR_GET_CHILD_SUBREAPER = 37
SPIN = [sys.executable, "-c", "import time; end = time.monotonic() + 900\nwhile time.monotonic() < end: pass"]
_SPIN_ON_GPU = """
import time
import torch
a = torch.randn(4096, 4096, device="cuda")
a @ a
torch.cuda.synchronize()
print("ready", flush=True)
end = time.monotonic() + 900
while time.monotonic() < end:
    for _ in range(10):
        a @ a
    torch.cuda.synchronize()
"""


@contextlib.contextmanager
def on_processors(count: int) -> Iterator[list[int]]:
    """The numbers of so many processes that spin, which are nobody's children: their shell has ended."""
    adopts = ctypes.c_int()  # A process with a forkserver adopts them, and their work were its own.
    ctypes.CDLL(None).prctl(_PR_GET_CHILD_SUBREAPER, ctypes.byref(adopts))
    adopt_orphans(False)
    script = 'n=$1; shift; while [ $n -gt 0 ]; do "$@" >/dev/null 2>&1 & echo $!; n=$((n - 1)); done'
    command = ["sh", "-c", script, "sh", str(count), *SPIN]
    try:
        started = subprocess.run(command, capture_output=True, text=True, check=True)
    finally:
        adopt_orphans(bool(adopts.value))
    processes = list(map(int, started.stdout.split()))
    try:
        yield processes
    finally:
        for pid in processes:
            with contextlib.suppress(ProcessLookupError):  # The test may have ended it.
                os.kill(pid, signal.SIGKILL)


@contextlib.contextmanager
def on_gpu() -> Iterator[None]:
    with subprocess.Popen([sys.executable, "-c", _SPIN_ON_GPU], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            yield
        finally:
            process.kill()
