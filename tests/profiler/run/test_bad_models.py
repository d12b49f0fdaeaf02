"""A bad model gets a row and the sentence of docs/config.md, and the good one next to it its figures."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from runs import Profiler, run_job

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[3]
GRAPHS = {"good", "control_flow", "operator"}
"""Those that run in `ort`, too."""
PRINTED = re.compile(r"\| `(\w+)`, (\w+) \| (\w+) \| (.*) \|\n")
CASES = [
    (name, variant, status, "" if says == "nothing" else says.replace("\\|", "|"))
    for name, variant, status, says in PRINTED.findall((ROOT / "docs" / "config.md").read_text())
]
"""Model, variant, status, and what is printed, the folder and the figure left out."""


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory, profiler: Profiler) -> dict[tuple[str, str], dict[str, Any]]:
    """By model and variant; the folder is taken out of what was printed."""
    folder = tmp_path_factory.mktemp("bad")
    factories = (ROOT / "tests" / "bad_models.py").read_text()
    (folder / "bad_models.py").write_text(factories)
    names = list(dict.fromkeys(name for name, *_ in CASES))
    assert {*names} == {*re.findall(r"^def (\w+)\(\):", factories, re.MULTILINE)}, "the page has each"
    models = "".join(f'  - {{name: {name}, factory: "bad_models:{name}", input: [3, 8, 8]}}\n' for name in names)
    without = [name for name in names if name not in GRAPHS]
    job = (
        f"models:\n{models}engines: [eager, ort]\nexclude: [{{engine: ort, model: [{', '.join(without)}]}}]\n"
        "batch_sizes: [2]\ndevice: cpu\nbudget: {seconds: 0.05, min_samples: 3}\n"
    )
    run = run_job(profiler, folder, job, PROFILER_CACHE=str(folder / "cache"))
    frame = pl.read_parquet(run / "results.parquet")
    texts = {(row["model"], row["variant"]): row for row in frame.to_dicts()}
    for row in texts.values():
        kept = [w for w in row["warnings"] if w.startswith(("inaccurate", "graph-breaks"))]
        said = (row["reason"] or next(iter(kept), "")).replace(f"{folder}/", "")
        row["said"] = re.sub(r"\d\.\de-?\d+", "…", said, count=1)
        row["printed"] = (run / row["log"]).read_text() if row["log"] else ""
    return texts


@pytest.mark.parametrize(("name", "variant", "status", "says"), CASES)
def test_each_gets_its_status_and_its_sentence(rows, name, variant, status, says):
    row = rows[name, variant]
    assert (row["status"], row["said"]) == (status, says)
    assert (row["latency_ms"] is not None) == (status == "ok")


def test_the_log_of_a_failed_export_has_every_try(rows):
    printed = rows["control_flow", "ort"]["printed"]
    for way in ("torch.export", "torch.export (strict)"):
        assert f"{way}, batch 2 only: " in printed
    assert "the graph for any batch, before this one: GuardOnDataDependent" in printed
    assert rows["good", "ort"]["graph"] == "torch.export, any batch"
    assert rows["good", "eager"]["graph"] is None
