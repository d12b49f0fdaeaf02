"""What a process of its own costs each case: forked from the forkserver, and beside it a fresh interpreter.

Prints seconds per case as minimum, median and maximum. On a GPU the CUDA context's creation and end are in the figure.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from profiler.machine import cpu_model
from profiler.nvml import visible_gpus
from profiler.processes.messages import Report
from profiler.processes.process import Call, run_one, start_forkserver

FORKS, FRESH = 20, 5


def main() -> None:
    gpus = visible_gpus()
    device, name = ("cuda", gpus[0].name) if gpus else ("cpu", cpu_model())
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log"
        start_forkserver(log)
        call = Call("overhead:no_op", device, log, path=(str(Path(__file__).resolve().parent),))
        seconds = []
        for _ in range(FORKS + 1):
            start = time.perf_counter()
            outcome = run_one(call)
            seconds.append(time.perf_counter() - start)
            if outcome.status != "ok":
                sys.exit(f"{outcome.status}: {outcome.reason}\n{log.read_text()}")
    touch = "torch.zeros(1, device='cuda'); torch.cuda.synchronize()" if gpus else ""
    fresh = []
    for _ in range(FRESH):
        start = time.perf_counter()
        subprocess.run([sys.executable, "-c", f"import torch, onnxruntime; {touch}"], check=True)
        fresh.append(time.perf_counter() - start)
    print(f"{name}, seconds per case: minimum / median / maximum")
    print(
        f"  forked from the forkserver, {FORKS} cases: {row(seconds[1:])}"
        f"   (the first, which waits for it: {seconds[0]:.2f})"
    )
    print(f"  fresh interpreter, {FRESH} cases:          {row(fresh)}")
    print(f"  ratio of the medians: {statistics.median(fresh) / statistics.median(seconds[1:]):.0f}")


def no_op(device: str, report: Report) -> None:
    """A no-op case, with a context on `device`."""
    if device == "cuda":
        import torch

        torch.zeros(1, device="cuda")
        torch.cuda.synchronize()


def row(seconds: list[float]) -> str:
    return f"{min(seconds):.3f} / {statistics.median(seconds):.3f} / {max(seconds):.3f}"


if __name__ == "__main__":
    main()
