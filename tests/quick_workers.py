"""Make the workers of a test session quick: import once what they need, and remember what one of them has made.

The session's forkserver imports it after profiler.worker.preload, so that every worker is forked with it. What is
measured is real, but for less long; runs by `command_line` have none of this.
"""

from __future__ import annotations

import gc
import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import onnxruntime.quantization  # noqa: F401
import onnxscript.function_libs.torch_lib.ops  # noqa: F401
import torch._inductor.codecache
import torch._inductor.compile_fx
import torch.utils.flop_counter
from quick_exports import export_ahead, translate_once

from exporters import named_files
from profiler.machine.nvml import visible_gpus
from profiler.processes.messages import Report
from profiler.worker import disturbance, roofline, sampling

FOLDER = Path(os.environ["PROFILER_FORKSERVER_LOG"]).parent
if "PYTEST_XDIST_WORKER" in os.environ:
    FOLDER = FOLDER.parents[1]  # Of the whole session.
measure_roofs = roofline.measure_roofs


def remembered_roofs(argument: Any, report: Report) -> roofline.Measured:
    """The roofs as the first run of the session measured them, for however long that took and in every precision."""
    device, precisions, seconds = argument
    every = dict.fromkeys((*precisions, "fp16", "bf16")) if device == "cpu" else precisions
    file = FOLDER / f"roofs-{device}-{os.environ.get('CUDA_VISIBLE_DEVICES')}.json".replace("/", "-")
    if not file.exists():
        named_files.write_whole(file, json.dumps(vars(measure_roofs((device, tuple(every), seconds), report))))
    found = roofline.Measured(**json.loads(file.read_text()))
    others = {f"{name}_tflops" for name in every if name not in precisions}
    return replace(found, roofs={name: roof for name, roof in found.roofs.items() if name not in others})


roofline.measure_roofs = remembered_roofs


def unless_quiet(judge: Callable[..., Any]) -> Callable[..., Any]:
    """Find nothing where a run has AS_IF_QUIET in its environment: --retry measures again what others disturbed, and
    what they do a test cannot choose."""
    return lambda *given: [] if "AS_IF_QUIET" in os.environ else judge(*given)


disturbance.warnings_of = unless_quiet(disturbance.warnings_of)
sampling.inconsistent = unless_quiet(sampling.inconsistent)
# Of a compilation's 10 s its headers take 8: they are those that the tests' own processes have compiled, or will use.
own_headers = Path(torch._inductor.codecache._HEADER_DIR)
if "QUICK_TEMPORARY" in os.environ and not own_headers.exists():
    shared_headers = Path(os.environ["QUICK_TEMPORARY"], *own_headers.parts[-2:])
    for folder in (shared_headers, own_headers.parent):
        folder.mkdir(parents=True, exist_ok=True)
    own_headers.symlink_to(shared_headers)
translate_once()  # Before anything is exported: what is forked later has the operators translated.
if not visible_gpus():  # What the GPU's tests say of figures is of those that a user gets.
    sampling._THROUGHPUT_SECONDS = 0.05
    export_ahead()  # Where there is a GPU it would begin to use it, which no process can that is forked from this one.
gc.freeze()
