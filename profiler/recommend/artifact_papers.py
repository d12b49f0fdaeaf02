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
from profiler.recommend.candidates import Candidate
from profiler.results.columns import Group, names
from profiler.results.environment import versions_of_others
from profiler.results.run_files import json_object
from profiler.results.sentences import unlike
from profiler.tables.numbers import significant

_COMMANDS = """To run it in a fresh environment:

    python -m venv venv
    venv/bin/pip install -r requirements.txt
    venv/bin/python run.py"""
_ELSEWHERE = re.compile(r"; (?:the log or )?the column `?warnings`?[^.]*(?:\.parquet[^.]*)?")
"""What a caution says of the run's own files, which do not go along."""
_wrapped = partial(textwrap.fill, width=100, break_long_words=False, break_on_hyphens=False)


def write_papers(candidate: Candidate, case: Case, deployed: Deployed, folder: Path, cautions: Sequence[str]) -> None:
    """Write them; `cautions` are sentences on how far the figures are to be relied on."""
    row, others = candidate.row, versions_of_others([case.engine])
    cautions = [_ELSEWHERE.sub("", caution) for caution in cautions]
    config = {
        **{key: getattr(case, key) for key in ("model", "engine", "variant", "device", "precision", "batch_size")},
        "options": dict(case.options),
        **deployed.config,
        "measured": {
            "machine": candidate.machine,
            **{name: row[name] for name in ("gpu", *names(Group.VERSIONS)) if name not in others},
            "run_ids": list(candidate.run_ids),
            "replicates": candidate.replicates,
            "figures": candidate.figures,
            "cautions": cautions,
        },
    }
    (folder / "config.json").write_text(json.dumps(config, indent=2, ensure_ascii=False) + "\n")
    (folder / "requirements.txt").write_text(requirements(case, row))
    (folder / "README.txt").write_text(_readme(candidate, case, deployed.contents, cautions))


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


def _readme(candidate: Candidate, case: Case, contents: str, cautions: Sequence[str]) -> str:
    engine, latency = ENGINES[case.engine], significant(candidate.figures["latency_ms"], 4)
    drawn = case.source.kind in ("canonical", "layer") or case.source.library is not None
    paragraphs = [
        f"{case.model} in {case.precision} for {engine.name} ({engine.summary}), in batches of {case.batch_size}: the "
        f"variant {case.variant}, measured on {candidate.machine} with {latency} ms per call at the median"
        f"{unlike(candidate.row['by_throughput_ms'])}.",
        f"{contents.format(machine=candidate.machine)} config.json has the options, the inputs and the figures.",
        "run.py is an example to start from: it takes inputs by --input x.npy, and times calls by the host's clock, "
        "until the result is there.",
        "The weights are seeded, not trained: they predict nothing." * (drawn and not has_own_weights(case.source)),
        *(f"- {caution}" for caution in cautions),
    ]
    indents = ("  " * text.startswith("- ") for text in paragraphs)
    wrapped = [
        _wrapped(text, subsequent_indent=indent) for text, indent in zip(paragraphs, indents, strict=True) if text
    ]
    return "\n\n".join([wrapped[0], _COMMANDS, *wrapped[1:]]) + "\n"
