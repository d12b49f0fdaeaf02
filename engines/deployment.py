"""Write what every deployed folder has, whatever its runtime, and say what config.json and README.txt state of it."""

from __future__ import annotations

import ast
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from engines import run_frame
from engines.base import Job
from exporters.inputs import TensorSpec, fixed_batch, graph_specs, input_specs, read_onnx, seeded_inputs
from exporters.onnx_export import check_onnx
from exporters.source import ModelSource
from exporters.weights import graph_files


@dataclass(frozen=True)
class Deployed:
    """What an engine's `Deployment.write` returns."""

    config: dict[str, Any]
    """Its part of config.json: `inputs`, `settings` and, of a graph, `outputs`."""
    contents: str
    """A sentence on the model's files for README.txt; {machine} is where they were measured."""


def described_inputs(specs: Sequence[TensorSpec], batch: int) -> list[dict[str, Any]]:
    """The inputs as config.json has them."""
    return [{"name": spec.name, "shape": list(spec.at(batch)), "dtype": spec.dtype} for spec in specs]


def save_inputs(source: ModelSource, batch: int, folder: Path) -> None:
    """Save the inputs that a job says the values of as inputs.npz, since run.py could not draw them."""
    specs = input_specs(source)
    if all(spec.range is None and spec.fill is None and spec.data is None for spec in specs):
        return
    drawn = zip(specs, seeded_inputs(specs, batch), strict=True)
    np.savez(folder / run_frame.INPUTS, **{spec.name: array for spec, array in drawn})  # type: ignore[arg-type]


def copy_graph(job: Job[Any], folder: Path) -> dict[str, Any]:
    """Copy the graph as model.onnx, with the data that it keeps in other files; its inputs and outputs for config.json.
    Raises ModelError for a file that ONNX cannot take, and for another batch than its fixed one."""
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


def write_run(module: str, folder: Path) -> None:
    """Write run.py: engines/run_frame.py and the run_example.py next to the file `module`, put into one script."""
    imports: set[str] = set()
    bodies, description = [], None
    for path in (Path(run_frame.__file__), Path(module).with_name("run_example.py")):
        source = path.read_text()
        tree = ast.parse(source)
        nodes = [node for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom)]
        imports |= {ast.unparse(node) for node in nodes}
        bodies.append("\n".join(source.splitlines()[nodes[-1].end_lineno :]).strip())
        description = ast.get_docstring(tree)
    ordered = sorted(imports, key=lambda line: (line.startswith("from"), line))
    package = {line: line.split()[1].partition(".")[0] for line in ordered}
    standard = "\n".join(line for line in ordered if package[line] in sys.stdlib_module_names)
    others = "\n".join(line for line in ordered if package[line] not in (*sys.stdlib_module_names, "engines"))
    frame, part = bodies
    (folder / "run.py").write_text(f'"""{description}"""\n\n{standard}\n\n{others}\n\n{frame}\n\n\n{part}\n')
