"""Write a folder that runs an engine of TensorRT, or of TensorRT for RTX."""

from __future__ import annotations

import shutil
from pathlib import Path

from engines.base import Job
from engines.catalog import TrtOptions
from engines.deployment import Deployed, copy_graph, write_run
from engines.tensorrt_engines.session import library


def write_engine(job: Job[TrtOptions], folder: Path, built: Path | None) -> Deployed:
    """Write model.engine, which has been built, and the graph that it was made of."""
    assert built is not None, "an engine that builds gets what it built"
    graph = copy_graph(job, folder)
    shutil.copyfile(built, folder / "model.engine")
    write_run(__file__, folder)
    return Deployed(
        {**graph, "settings": {"module": library(job.engine).__name__}},
        "model.engine is for {machine} and this version of the library; it was made of model.onnx.",
    )
