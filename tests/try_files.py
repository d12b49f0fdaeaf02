"""Prepare many models in one process, and look at each as the parent of a run does before it; a worker runs this."""

from __future__ import annotations

import contextlib
from pathlib import Path

from engines.base import Phase
from exporters.cache import Cache
from exporters.flops import cached_cost
from exporters.inputs import fixed_batch
from exporters.onnx_export import to_fp16
from exporters.onnx_files import is_float32
from exporters.source import ModelError, ModelSource
from profiler.errors import ConfigError
from profiler.processes.messages import Entered, Report
from profiler.processes.process import explain
from profiler.run.model_job import _fixed_batch
from profiler.worker.prepare_model import prepare_model, prepare_reference


def try_one(argument: tuple[ModelSource, Path], report: Report) -> tuple[str, str]:
    """Return the status and the reason of a model; where the parent of a run would end in a traceback, "raised …"."""
    source, folder = argument
    cache = Cache(folder / "cache")
    report(Entered(Phase.OPEN))
    try:
        prepared = prepare_model((source, cache.root), report)
        prepare_reference((source, prepared.state, fixed_batch(prepared.specs) or 2, cache.root), report)
    except Exception as error:
        outcome = explain(error)
        return outcome.status, f"{outcome.reason}{_in_the_parent(source)}"
    if source.onnx is not None:
        cached_cost(source, prepared.specs, cache)
        if is_float32(source.onnx):
            with contextlib.suppress(ModelError):
                to_fp16(source, cache)
    return "ok", _in_the_parent(source)


def _in_the_parent(source: ModelSource) -> str:
    """Exceptions of the parent besides errors in words."""
    if source.onnx is None:
        return ""
    try:
        is_float32(source.onnx)
        _fixed_batch({"onnx": source.onnx}, {})
    except ConfigError:
        return ""
    except Exception as error:
        return f"; raised {error!r}"
    return ""
