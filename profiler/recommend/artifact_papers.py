"""Write what goes with the files of an exported model: config.json, requirements.txt and README.txt."""

from __future__ import annotations

import json
import re
import textwrap
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from engines.catalog import ENGINES
from engines.deployment import Deployed
from exporters.weights import has_own_weights
from profiler.job.case import Case
from profiler.recommend.answer import Answer, Candidate
from profiler.results.reading import json_object
from profiler.results.reasons import amount

_COMMANDS = """To run it in a fresh environment:

    python -m venv venv
    venv/bin/pip install -r requirements.txt
    venv/bin/python run.py"""
_wrapped = partial(textwrap.fill, width=100, break_long_words=False, break_on_hyphens=False)


def write_papers(answer: Answer, row: Mapping[str, Any], case: Case, deployed: Deployed, folder: Path) -> None:
    """Write them, with the figures of the answer's winner, whose cell is `row`."""
    winner = answer.winner
    assert winner is not None
    footnotes = [
        note.model_dump(include={"kind", "meaning"})
        for note in answer.footnotes
        if {winner.name, case.model} & {*note.of}
    ]
    config = {
        **{key: getattr(case, key) for key in ("model", "engine", "variant", "device", "precision", "batch_size")},
        "options": dict(case.options),
        **deployed.config,
        "measured": {
            "gpu": row["gpu"],
            **winner.model_dump(include={"machine", "versions", "run_ids", "processes", "figures", "base", "factor"}),
            "footnotes": footnotes,
        },
    }
    (folder / "config.json").write_text(json.dumps(config, indent=2, ensure_ascii=False) + "\n")
    (folder / "requirements.txt").write_text(requirements(case, row))
    notes = [f"{note['kind']}: {note['meaning']}" for note in footnotes]
    (folder / "README.txt").write_text(_readme(winner, case, deployed.contents, notes))


def requirements(case: Case, row: Mapping[str, Any]) -> str:
    """The runtime in the version that was measured, and NumPy."""
    engine = ENGINES[case.engine]
    assert engine.deployment is not None
    proof = json_object(row["proof"])
    version = str(proof.get("library", "")).rpartition(" ")[2] or (engine.version and row[engine.version.column])
    releases = {"release": _release(version), "plugin": _release(proof.get("plugin"))}
    lines = [line.format(**releases) for line in engine.deployment.requirements[case.device]]
    return "\n".join([*lines, "numpy"]) + "\n"


def _release(version: object) -> str:
    # "torch 2.13.0+cpu", "openvino 2026.4.1-22100-b0d0e3b": no index has a release by the name of its build.
    release = re.split("[+-]", str(version))[0]
    return f"=={release}" if re.fullmatch(r"\d[\w.]*", release) else ""


def _readme(winner: Candidate, case: Case, contents: str, notes: Sequence[str]) -> str:
    engine, latency = ENGINES[case.engine], winner.figures["latency_ms"]
    drawn = case.source.kind in ("canonical", "layer") or case.source.library is not None
    paragraphs = [
        f"{case.model} in {case.precision} for {engine.name} ({engine.summary}), in batches of {case.batch_size}: "
        f"{amount('latency_ms', latency.value, latency.low, latency.high)} a call on {winner.machine}.",
        f"{contents.format(machine=winner.machine)} config.json has the options, the inputs and the figures. run.py is "
        "an example to start from: it takes inputs by --input x.npy and times calls by the host's clock.",
        "The weights are seeded, not trained: they predict nothing." * (drawn and not has_own_weights(case.source)),
        *(f"- {note}" for note in notes),
    ]
    wrapped = [_wrapped(text, subsequent_indent="  " * text.startswith("- ")) for text in paragraphs if text]
    return "\n\n".join([wrapped[0], _COMMANDS, *wrapped[1:]]) + "\n"
