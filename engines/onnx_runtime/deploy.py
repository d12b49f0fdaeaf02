"""Write a folder that runs a graph in ONNX Runtime."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from engines.base import Job
from engines.deployment import Deployed, copy_graph, write_run
from engines.onnx_runtime.providers import PROVIDERS
from engines.onnx_runtime.session import symbol_sizes


def write_graph(job: Job[Any], folder: Path, built: Path | None) -> Deployed:
    """Write model.onnx and the settings with which it gets the figures that were measured."""
    provider = PROVIDERS[job.engine, job.device]
    settings = {
        "providers": [[each.name, each.settings(job)] for each in provider.chain()],
        "plugin": provider.library,
        "threads": job.options.threads,
        "optimize": job.options.optimize,
        "session": dict(provider.entries.get(job.precision, {})),
        "dimensions": symbol_sizes(job),
    }
    write_run(__file__, folder)
    return Deployed({**copy_graph(job, folder), "settings": settings}, "model.onnx is the model.")
