"""Export the winner: a folder with the model, config.json and run.py that runs without this project."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import textwrap
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

import engines
from engines.base import Array, Unsupported
from engines.catalog import ENGINES, engine_row
from engines.deployment import Deployed, save_examples
from engines.options import PRECISION_TABLE, Device
from exporters import named_files
from exporters.cache import Cache, default_root
from exporters.inputs import TensorSpec, at_shape, padding
from exporters.named_files import scratch_beside
from exporters.source import ModelError, ModelSource
from exporters.weights import cached_state, has_own_weights, identified, with_inputs
from profiler.commands.build import BuildTask, build, find_engine
from profiler.errors import ConfigError
from profiler.job.case import Budget, Case, file_name
from profiler.job.config import Config, ModelEntry, load_config
from profiler.processes.forkserver import libraries
from profiler.processes.messages import Outcome, Report
from profiler.processes.process import Call, run_one
from profiler.recommend.answer import stated
from profiler.results.cells import Row
from profiler.results.reading import Run, json_object
from profiler.results.reasons import amount
from profiler.results.run_folder import RunFolder, without_foreign_code, writable
from profiler.results.warning_kinds import NO_CUDA_GRAPH, meaning
from profiler.run.prepare import Stages, check_models, failure, prepare_graphs
from profiler.run.progress import Display
from profiler.worker.task import job_of

_README = """{model} in {precision} for {engine}, in batches of {batch}. A call on {machine}: {latency}.

    python -m venv venv
    venv/bin/pip install -r requirements.txt
    venv/bin/python run.py

{contents}
In your own service:

{service}

It takes {sizes}.
config.json has the options, the inputs and the figures. run.py is an example to start from.{usage}
"""
_USAGE = """
It times calls by the host's clock, and compares its outputs with expected.npz, if that file exists: the model's \
outputs at full precision on a CPU. `run.py --input {files}` takes inputs of your own, and `--seconds 10` times calls \
for longer."""
NO_EXPORT = "{} cannot be exported; choose among others, such as --only engine=ort"
_SEEDED = "The weights are seeded, not trained: they predict nothing."


class NotExported(Exception):
    """The artifact could not be made; nothing is left behind."""


def check_folder(folder: Path) -> None:
    """Raise ConfigError unless `folder` is new or empty."""
    if named_files.exists(folder) and (not folder.is_dir() or any(folder.iterdir())):
        raise ConfigError(f"--export {folder}: something is there already; give a new folder")


def export(cell: Row, run: Run, folder: Path, console: Console, trust_code: bool) -> str:
    """Write the artifact of the winning cell into `folder`, whole or not at all; return the sizes that it takes.

    Raises ConfigError if the run or this machine lacks something, or if the model has changed since it was measured,
    and NotExported if making it fails.
    """
    case, folders = _case(cell, run, trust_code)
    target = folder.resolve()
    scratch = scratch_beside(target)
    shutil.rmtree(scratch, ignore_errors=True)
    try:
        with writable(folder, "--export"):
            scratch.mkdir(parents=True)
            deployed = _make(case, folders, run, scratch, console)
            write_papers(cell, case, deployed, scratch)
            if target.is_dir():
                target.rmdir()
            os.replace(scratch, target)
            return _sizes(deployed)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _case(row: Row, run: Run, trust_code: bool) -> tuple[Case, tuple[str, ...]]:
    """Return the case by the run's job, and the folders of its factories."""
    path = Path(run.address) / "bench.yaml"
    if not engine_row(row["engine"]).deployment:
        raise ConfigError(f"--export: {NO_EXPORT.format(row['engine'])}")
    device: Device = "cuda" if row["device"] == "cuda" else "cpu"
    if not named_files.is_file(path):
        raise ConfigError(f"--export: {run.address} has no bench.yaml, which says where {row['model']} comes from")
    source, folders = _source(load_config(path, device), row, path, trust_code)
    options = json_object(row["options"])
    if options.get("cuda_graph") and NO_CUDA_GRAPH in row["footnotes"]:
        options["cuda_graph"] = False  # The measured session fell back; the exported program would fail.
    fields = {key: row[key] for key in ("model", "engine", "variant", "precision", "batch_size")}
    return Case(**fields, pass_="inference", device=device, replicate=0, source=source, options=options), folders


def _source(config: Config, row: Row, path: Path, trust_code: bool) -> tuple[ModelSource, tuple[str, ...]]:
    entry = next((entry for entry in config.subjects if entry.name == row["model"]), None)
    if entry is None:
        raise ConfigError(f"--export: {path} has no model {row['model']}, though the results do")
    # Keep only this model, so that no other model's code is called.
    single = config.model_copy(update={"models": [entry] if isinstance(entry, ModelEntry) else [], "engines": []})
    config = without_foreign_code(single, path.parent, "--export", trust_code)
    shape = {name: int(size) for name, size in (part.split("=") for part in (row["shape"] or "").split("/") if part)}
    source = at_shape(entry.source(), shape, getattr(entry, "shapes", None) or {})  # A layer has none.
    return source, config.path


def write_files(argument: tuple[Case, Path, Path | None, Path | None], report: Report) -> Deployed:
    """Write the engine's files into a folder, given a graph and a build, in a process of its own.

    Raises what `engines.deploy` raises.
    """
    case, folder, onnx, built = argument
    deployed = engines.deploy(case.engine, job_of(case, inputs=(), onnx=onnx), folder, built)
    specs = with_inputs(case.source).specs or ()
    expected: dict[str, Array] = {}
    with contextlib.suppress(ModelError, Unsupported):  # The row's outputs were not checked either.
        expected, axes = _expected(case, specs, deployed.config.get("outputs"))
        deployed.config.update({"items_axes": axes} if any(axes.values()) else {})
    save_examples(specs, case.batch_size, expected, folder)
    return deployed


def _expected(
    case: Case, specs: Sequence[TensorSpec], outputs: Sequence[str] | None
) -> tuple[dict[str, Array], dict[str, int]]:
    """Return up to eight items of each reference output, NaN at padding, and its axis of items, both by position."""
    from exporters.gradients import is_exact
    from profiler.worker.parity import Outputs  # Imports torch.
    from profiler.worker.prepare_model import cached_reference

    cache, source = Cache(), identified(case.source)
    state = None if source.kind == "onnx" else cached_state(source, cache)
    reference = Outputs.read(cached_reference(source, specs, state, cache, case.batch_size))
    references = list(reference.arrays)
    names = outputs if outputs and {*outputs} <= {*references} else references
    expected, axes = dict[str, Array](), dict[str, int]()
    for place, name in enumerate(names):
        if (rows := reference.rows(name)) is not None and rows[0].size:
            rows = rows[:8] if is_exact(rows) else rows[:8].astype("float64")
            if not is_exact(rows):
                rows[padding(specs, rows.shape)] = np.nan
            expected[str(place)], axes[str(place)] = rows, reference.axes.get(name, 0)
    return expected, axes


def _make(case: Case, folders: tuple[str, ...], run: Run, folder: Path, console: Console) -> Deployed:
    engine = ENGINES[case.engine]
    logs = default_root() / "logs"
    logs.mkdir(parents=True, exist_ok=True)
    log, limit = logs / f"{file_name(f'artifact/{case.id}')}.log", Budget().build_timeout
    task = _build_task(case, run) if engine.builds else None
    onnx = built = None
    with libraries(), Display(console) as display:
        why, folder_of_run = "it is not the model that was measured", RunFolder(Path(run.address))
        stages = Stages({case.subject: case.source}, Budget(), logs, folders, display.doing)
        check_models(folder_of_run, stages, "--export", why)
        if engine.needs == "onnx":
            prepared = prepare_graphs([case], Budget(), logs, folders, display.doing)[case.subject]
            if why_not := failure(case, prepared):
                _value(why_not)  # Raises NotExported.
            graph = prepared.graph(case)
            onnx = graph.path if graph else None
        if task is not None:
            gpu, step = find_engine(engine.name, task.target)[1], f"build: {task.name}"
            built = _value(build(replace(task, onnx=onnx), gpu, log, lambda: display.doing(step))).path
        argument, no_gpu = (case, folder, onnx, built), {"CUDA_VISIBLE_DEVICES": ""}
        call = Call("profiler.recommend.artifact:write_files", argument, log, limit, limit, no_gpu, folders)
        outcome = run_one(call, lambda child: display.doing(f"{case.model} for {engine.name}"))
    deployed: Deployed = _value(outcome)
    return deployed


def _build_task(case: Case, run: Run) -> BuildTask:
    """Build for the measured GPU. Raises ConfigError if this machine cannot."""
    capability, measured = map(run.environment.get, ("compute_capability", "gpu"))
    engine = ENGINES[case.engine]
    target = f"sm{capability.replace('.', '')}" if capability and engine.builds == "anywhere" else None
    _, gpu = find_engine(engine.name, target, "--export")
    if gpu is not None and gpu.name != measured:
        raise ConfigError(f"--export: {engine.name} builds for the GPU here, {gpu.name}; export on the {measured}")
    return BuildTask(case=case, target=target)


def _value(outcome: Outcome) -> Any:
    """Return a process's result. Raises NotExported if it failed."""
    if outcome.status != "ok":
        raise NotExported(f"{outcome.reason} (its output is in {outcome.log})")
    return outcome.value


def write_papers(row: Row, case: Case, deployed: Deployed, folder: Path) -> None:
    """Write config.json, requirements.txt and README.txt of the measured cell `row`."""
    engine = ENGINES[case.engine]
    config = {
        **{key: getattr(case, key) for key in ("model", "engine", "variant", "device", "precision", "batch_size")},
        "options": dict(case.options),
        **deployed.config,
        "usual_error": max(PRECISION_TABLE[case.precision].usual_error, row.get("rel_l2_error_high") or 0.0),
        "measured": stated(row),
    }
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")  # ASCII, for any locale.
    proof = json_object(row["proof"])
    version = row[engine.version.column] if engine.version else str(proof.get("library")).rpartition(" ")[2]
    lines = [line.format(release=_release(version)) for line in engine.deployment[case.device]]
    (folder / "requirements.txt").write_text("\n".join([*lines, "numpy"]) + "\n")
    notes = [f"{kind}: {meaning(kind)}" for kind in row["footnotes"]]
    drawn = case.source.kind in ("canonical", "layer") or case.source.library is not None
    notes += [_SEEDED] if drawn and not has_own_weights(case.source) else []
    readme = _README.format(
        model=case.model,
        precision=case.precision,
        engine=engine.name,
        batch=case.batch_size,
        machine=row["machine"],
        latency=amount("latency_ms", row["latency_ms"], row["latency_low_ms"], row["latency_high_ms"]),
        contents=deployed.contents.format(machine=row["machine"]),
        service=_service(deployed),
        sizes=_sizes(deployed),
        usage=_USAGE.format(files=" ".join(f"{spec['name']}=FILE.npy" for spec in deployed.config["inputs"]))
        if (folder / "frame.py").is_file()
        else "",
    )
    text = "\n".join([readme, *(f"- {note}" for note in notes)]).rstrip()
    lines = [line if line.startswith("    ") else _filled(line) for line in text.split("\n")]
    (folder / "README.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")


_filled = partial(textwrap.fill, width=120, break_long_words=False, break_on_hyphens=False)


def _sizes(deployed: Deployed) -> str:
    specs = deployed.config["inputs"]
    inputs = ", ".join(f"{spec['name']} {tuple(spec['shape'])} {spec['dtype']}" for spec in specs)
    return f"{inputs}, in exactly these sizes"


def _service(deployed: Deployed) -> str:
    """Write the lines that call the model, with a variable for each input."""
    names = [spec["name"] for spec in deployed.config["inputs"]]
    variables = ["x"] if len(names) == 1 else [f"x{number}" for number in range(len(names))]
    feeds = ", ".join(f"{json.dumps(name)}: {variable}" for name, variable in zip(names, variables, strict=True))
    lines = deployed.usage.replace("{feeds}", f"{{{feeds}}}").replace("{variables}", ", ".join(variables))
    return "\n".join(f"    {line}" for line in lines.splitlines())


def _release(version: object) -> str:
    # Drop the build from "2.13.0+cpu" or "2026.4.1-22100-b0d0e3b": a package index has releases only.
    release = re.split("[+-]", str(version))[0]
    return f"=={release}" if re.fullmatch(r"\d[\w.]*", release) else ""
