"""Write the parts of a deployed folder that all runtimes share: the graph, the inputs and run.py."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from engines.base import Array, Job
from exporters.inputs import first_items, fixed_batch, graph_specs, seeded_inputs
from exporters.onnx_files import check_onnx, every_graph, graph_files, read_onnx
from exporters.source import TensorSpec

_ITEMS = 8
_TEMPLATES = Path(__file__).with_name("deployed")


@dataclass(frozen=True)
class Deployed:
    """Result of an engine's `deploy`."""

    config: dict[str, Any]
    """Its part of config.json: `inputs`, `settings` and, for a graph, `outputs`."""
    contents: str
    """A sentence on the model's files for README.txt; {machine} is the measuring machine."""
    usage: str = ""
    """Lines of Python that call the model; {feeds} maps inputs to variables, {variables} lists these."""


def described_inputs(specs: Sequence[TensorSpec], batch: int) -> list[dict[str, Any]]:
    """Describe the inputs for config.json."""
    return [{"name": spec.name, "shape": list(spec.at(batch)), "dtype": spec.dtype} for spec in specs]


def save_examples(specs: Sequence[TensorSpec], batch: int, expected: Mapping[str, Array], folder: Path) -> None:
    """Save a few items' inputs as inputs.npz, and their outputs as expected.npz, with NaN for unknown values."""
    items = min([batch, _ITEMS, *map(len, expected.values())])
    drawn = first_items(specs, seeded_inputs(specs, batch), items)
    arrays = (array.astype("float32") if array.dtype.kind == "V" else array for array in drawn)  # bfloat16
    np.savez(folder / "inputs.npz", **dict(zip((spec.name for spec in specs), arrays, strict=True)))
    if expected:
        few: dict[str, Any] = {place: array[:items] for place, array in expected.items()}
        np.savez(folder / "expected.npz", **few)


def copy_graph(job: Job[Any], folder: Path) -> dict[str, Any]:
    """Copy the graph and its external data as model.onnx; return its inputs and outputs. Raises ModelError."""
    specs = graph_specs(job.source, job.graph)
    if job.source.own_graph is not None:
        check_onnx(job.graph)
        if (fixed := fixed_batch(specs)) not in (None, job.batch_size):
            raise job.source.error(f"its batch is fixed to {fixed}, and {job.batch_size} was measured")
    for place, file in graph_files(job.graph).items():
        target = folder / ("model.onnx" if file == job.graph else place)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, target)
    model = read_onnx(job.graph)
    if job.source.own_graph is None:
        _forget_code(model)
        (folder / "model.onnx").write_bytes(model.SerializeToString())
    outputs = [value.name for value in model.graph.output]
    return {"inputs": described_inputs(specs, job.batch_size), "outputs": outputs}


def _forget_code(model: Any) -> None:
    """Remove the paths, lines and names of the traced code, which the exporter stores."""
    for graph in every_graph(model.graph, *model.functions):
        for part in (graph, *graph.node, *graph.value_info, *getattr(graph, "initializer", ())):
            del part.metadata_props[:]


def copy_run(template: str, folder: Path) -> None:
    """Copy engines/deployed/`template` as run.py, with the frame that it imports."""
    shutil.copyfile(_TEMPLATES / template, folder / "run.py")
    shutil.copyfile(_TEMPLATES / "frame.py", folder / "frame.py")
