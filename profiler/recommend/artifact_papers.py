"""What enters: the chosen candidate and the files of its model. What leaves: the papers that go with them."""

from __future__ import annotations

import json
import re
import shutil
import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from engines.catalog import ENGINES, Engine
from profiler.job.case import Case
from profiler.recommend.candidates import Candidate
from profiler.results.columns import Group, names

EXAMPLES = {
    "eager": "module",
    "compiled": "module",
    "ort": "ort",
    "openvino": "ov",
    "trt": "trt",
    "trt-rtx": "trt",
}
"""By engine the module of profiler/recommend/examples that becomes run.py."""


def write_papers(candidate: Candidate, case: Case, made: Mapping[str, Any], folder: Path) -> None:
    """Write config.json, run.py, requirements.txt and README.txt; `made` is what `write_files` returned."""
    row = candidate.row
    config = {
        "model": case.model,
        "engine": case.engine,
        "variant": case.variant,
        "device": case.device,
        "precision": case.precision,
        "batch_size": case.batch_size,
        "options": dict(case.options),
        **made,
        "measured": {
            "machine": candidate.machine,
            **{name: row[name] for name in ("gpu", *names(Group.VERSIONS))},
            "run_ids": list(candidate.run_ids),
            "replicates": candidate.replicates,
            "figures": candidate.figures,
        },
    }
    (folder / "config.json").write_text(json.dumps(config, indent=2, ensure_ascii=False) + "\n")
    example = Path(__file__).parent / "examples" / f"{EXAMPLES[case.engine]}.py"
    shutil.copyfile(example, folder / "run.py")
    (folder / "requirements.txt").write_text(requirements(case, row))
    (folder / "README.txt").write_text(_readme(candidate, case))


def requirements(case: Case, row: Mapping[str, Any]) -> str:
    """The runtime in the version that was measured, and NumPy."""
    # "torch 2.13.0+cpu": the local part names a build that no index has under that name.
    told = str(json.loads(row["proof"] or "{}").get("library", "")).rpartition(" ")[2]
    column = {"eager": "torch_version", "compiled": "torch_version", "ort": "onnxruntime_version"}.get(case.engine)
    version = (told or (row[column] if column else "") or "").partition("+")[0]
    release = f"=={version}" if re.fullmatch(r"\d[\w.]*", version) else ""
    cuda = case.device == "cuda"
    lines = {
        "ort": [f"onnxruntime-gpu[cuda,cudnn]{release}" if cuda else f"onnxruntime{release}"],
        "openvino": [f"openvino{release}"],
        "eager": [f"torch{release}"],
        "compiled": [f"torch{release}"],
        "trt": [f"tensorrt{release}", "cuda-python"],
        "trt-rtx": [f"tensorrt-rtx-cu13-bindings{release}", f"tensorrt-rtx-cu13-libs{release}", "cuda-python"],
    }[case.engine]
    if case.engine in ("eager", "compiled") and not cuda:
        lines = ["# PyTorch's own index has a build for the CPU alone, which is far smaller.", *lines]
    return "\n".join([*lines, "numpy"]) + "\n"


def _readme(candidate: Candidate, case: Case) -> str:
    """One paragraph."""
    engine, latency = ENGINES[case.engine], candidate.figures["latency_ms"]
    seeded = case.source.kind in ("canonical", "layer") and case.source.weights is None
    sentences = [
        f"{case.model} in {case.precision} for {engine.name} ({engine.summary}), in batches of {case.batch_size}: the "
        f"variant {case.variant}, measured on {candidate.machine} with {latency:.4g} ms a call at the median.",
        f"{_contents(engine, case, candidate.machine)} config.json has the options, the inputs and the figures.",
        "run.py is an example to start from: it takes inputs by --input x.npy, and times calls by the host's clock, "
        "until the result is there.",
        "The weights are seeded, not trained: they predict nothing." if seeded else "",
        "To run it in a fresh environment: python -m venv venv && venv/bin/pip install -r requirements.txt && "
        "venv/bin/python run.py",
    ]
    return textwrap.fill(" ".join(filter(None, sentences)), 100, break_long_words=False, break_on_hyphens=False) + "\n"


def _contents(engine: Engine, case: Case, machine: str) -> str:
    if engine.needs == "torch":
        return (
            f"model.pt2 is a program with its weights, for batches of {case.batch_size} alone; weights.safetensors has "
            "the weights for other uses."
        )
    if engine.builds:
        return f"model.engine is for {machine} and this version of the library; it was made of model.onnx."
    return "model.onnx is the model."
