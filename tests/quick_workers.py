"""Make the workers of a test session quick: import what they need, and do at length or again what once is enough for.

The session's forkserver imports it after profiler.worker.preload, so that every worker is forked with it. What is
measured is real, but for less long; runs by `command_line` have none of this.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
from pathlib import Path
from typing import Any

import onnxruntime.quantization  # noqa: F401
import onnxscript.function_libs.torch_lib.ops  # noqa: F401
import torch.export
import torch.utils.flop_counter  # noqa: F401

from profiler.processes.messages import Report
from profiler.worker import roofline, sampling

FOLDER = Path(os.environ["PROFILER_FORKSERVER_LOG"]).parent
measure_roofs = roofline.measure_roofs


def remembered_roofs(argument: Any, report: Report) -> dict[str, float]:
    """The roofs as the first run of the session measured them."""
    key = "-".join(map(str, (argument, os.environ.get("CUDA_VISIBLE_DEVICES"))))
    file = FOLDER / f"roofs-{key.replace('/', '-')}.json"
    if not file.exists():
        file.write_text(json.dumps(measure_roofs(argument, report)))
    roofs: dict[str, float] = json.loads(file.read_text())
    return roofs


roofline.measure_roofs = remembered_roofs
sampling._THROUGHPUT_SECONDS = 0.05

with contextlib.suppress(ImportError, AttributeError):  # torch's own, which another version may have elsewhere.
    from torch.onnx._internal.exporter import _core  # noqa: F401
    from torch.onnx._internal.exporter._registration import ONNXRegistry

    # More than half of a small export is the translation of 500 operators to ONNX, which is each time the same.
    ONNXRegistry.from_torchlib = staticmethod(functools.cache(ONNXRegistry.from_torchlib))  # type: ignore[method-assign]
    ONNXRegistry.from_torchlib()
