"""Import torch and onnxruntime in the forkserver as it starts, without touching a device.

Only the forkserver imports this module. Its output goes to a log, and the probe reports a failed import, which the
forkserver would swallow.
"""

from __future__ import annotations

import atexit
import contextlib
import faulthandler
import gc
import importlib
import os
import sys
import tempfile
import traceback
import warnings
from pathlib import Path
from typing import Any

from profiler.processes.messages import Report
from profiler.processes.process import LOG, adopt_orphans, end_below, end_with_parent, redirect_output

PID = os.getpid()
ERROR: str | None = None

adopt_orphans()
atexit.register(lambda: end_below(PID) if os.getpid() == PID else None)
warnings.filters[:] = [entry for entry in warnings.filters if entry[0] != "error"]  # type: ignore[index]  # Python's -W error.
warnings.filterwarnings("ignore", "forkserver: waitpid returned unexpected pid", UserWarning)  # Of an orphan.
end_with_parent()  # The forkserver watches its parent only after its imports.
try:
    redirect_output(Path(os.environ.get(LOG, os.devnull)))
except FileNotFoundError:  # Its parent was interrupted, and has removed the log's folder.
    os._exit(0)
faulthandler.enable()  # The log shows where a library's import aborts.
if log := os.environ.get(LOG):
    # Libraries that write into the temporary folder, or remember its name, must use the run's.
    os.environ["TMPDIR"] = tempfile.tempdir = str(Path(log).parent)

# Imports below ask torch for a GPU. NVML answers without touching a device, which a fork could not share.
os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")

try:
    # torch first: it loads the CUDA libraries that onnxruntime then finds.
    import torch

    # Setting a seed or a dispatch mode imports it anyway.
    import torch._dynamo

    with contextlib.suppress(ImportError):
        import onnxruntime  # noqa: F401

    import engines.layers  # noqa: F401
    import profiler.worker.measure_case
    import profiler.worker.prepare_model  # noqa: F401
    from exporters import settings

    _usual = settings.read()
    for _module in filter(None, os.environ.get("PROFILER_PRELOAD", "").split(",")):
        with contextlib.suppress(Exception):  # Its user reports the failure.
            importlib.import_module(_module)
    if "torch._inductor.codecache" in sys.modules:
        # Each compiled case would hash the sources of torch and triton for half a second.
        with contextlib.suppress(ImportError, RuntimeError):
            from torch._inductor.codecache import torch_key
            from torch._inductor.runtime.triton_compat import triton_key

            torch_key()
            triton_key()
    settings.put_back(_usual)

    # Nothing here is garbage, and a worker's collection would visit, and so copy, all of it in 0.4 s.
    gc.freeze()
except Exception:
    ERROR = traceback.format_exc()
    traceback.print_exc(file=sys.stderr)
finally:
    end_with_parent(False)  # The thread that started it may end before the last call.


def probe(_: None, report: Report) -> dict[str, Any]:
    """Return the libraries' versions and devices, in a forked process. Raises RuntimeError if the preload failed."""
    if ERROR is not None:
        raise RuntimeError(f"the forkserver failed to preload modules:\n{ERROR}")
    if os.getpid() == PID:
        raise RuntimeError("the forkserver preloaded nothing: torch was imported in the worker")
    facts: dict[str, Any] = {
        "torch_cuda": torch.version.cuda,
        "cudnn": None,
        "cuda_available": torch.cuda.is_available(),
        "torch_threads": torch.get_num_threads(),
    }
    if facts["cuda_available"]:
        facts["cudnn"] = str(torch.backends.cudnn.version())
        facts["compute_capability"] = ".".join(map(str, torch.cuda.get_device_capability(0)))
    return facts
