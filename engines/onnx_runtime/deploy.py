"""Write a folder that runs a graph in ONNX Runtime."""

from __future__ import annotations

from pathlib import Path

from engines.base import Job
from engines.catalog import OrtOptions
from engines.deployment import Deployed, copy_graph, write_run
from engines.onnx_runtime.session import cuda_settings, session_entries, symbol_sizes


def write_graph(job: Job[OrtOptions], folder: Path, built: Path | None) -> Deployed:
    """Write model.onnx and the settings with which it gets the figures that were measured."""
    cuda = [["CUDAExecutionProvider", cuda_settings(job.precision, job.options)]] if job.device == "cuda" else []
    settings = {
        "providers": [*cuda, ["CPUExecutionProvider", {}]],
        "threads": job.options.threads,
        "optimize": job.options.optimize,
        "session": session_entries(job.precision, job.device),
        "dimensions": symbol_sizes(job),
    }
    write_run(__file__, folder)
    return Deployed({**copy_graph(job, folder), "settings": settings}, "model.onnx is the model.")
