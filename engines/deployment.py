"""Write the parts of a deployed folder that all runtimes share: the graph, the inputs and run.py."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from engines.base import Job
from exporters.inputs import TensorSpec, fixed_batch, graph_specs, input_specs, seeded_inputs
from exporters.onnx_files import check_onnx, graph_files, read_onnx
from exporters.source import ModelSource

_TEMPLATES = Path(__file__).with_name("deployed")


@dataclass(frozen=True)
class Deployed:
    """Result of an engine's `deploy`."""

    config: dict[str, Any]
    """Its part of config.json: `inputs`, `settings` and, of a graph, `outputs`."""
    contents: str
    """A sentence on the model's files for README.txt; {machine} is where they were measured."""


def described_inputs(specs: Sequence[TensorSpec], batch: int) -> list[dict[str, Any]]:
    """Describe the inputs for config.json."""
    return [{"name": spec.name, "shape": list(spec.at(batch)), "dtype": spec.dtype} for spec in specs]


def save_inputs(source: ModelSource, batch: int, folder: Path) -> None:
    """Save inputs whose values the job gives as inputs.npz; run.py draws any others itself."""
    specs = input_specs(source)
    if not any(spec.range or spec.is_mask or spec.data for spec in specs):
        return
    drawn = zip(specs, seeded_inputs(specs, batch), strict=True)
    np.savez(folder / "inputs.npz", **{spec.name: array for spec, array in drawn})  # type: ignore[arg-type]


def copy_graph(job: Job[Any], folder: Path) -> dict[str, Any]:
    """Copy the graph and its external data as model.onnx; return its inputs and outputs for config.json.

    Raises ModelError for a file that ONNX cannot take, and for a batch other than the graph's fixed one.
    """
    if job.source.own_graph is not None:
        check_onnx(job.graph)
    specs = graph_specs(job.source, job.graph)
    fixed = fixed_batch(specs)
    if fixed not in (None, job.batch_size):
        raise job.source.error(f"its batch is fixed to {fixed}, and {job.batch_size} was measured")
    for place, file in graph_files(job.graph).items():
        target = folder / ("model.onnx" if file == job.graph else place)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, target)
    outputs = [value.name for value in read_onnx(job.graph).graph.output]
    return {"inputs": described_inputs(specs, job.batch_size), "outputs": outputs}


def copy_run(template: str, folder: Path) -> None:
    """Copy engines/deployed/`template` as run.py, with the frame that it imports."""
    shutil.copyfile(_TEMPLATES / template, folder / "run.py")
    shutil.copyfile(_TEMPLATES / "frame.py", folder / "frame.py")
