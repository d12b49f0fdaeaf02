"""A bad model gets a row with a reason that names the mistake, and the good one next to it its figures."""

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
CASES = [
    ("raises", "eager", "failed", r"raised TypeError: .* at bad_models.py:\d+"),
    ("exits", "eager", "failed", "raised SystemExit: no license"),
    ("no_module", "eager", "failed", "OrderedDict"),
    ("wrong_shape", "eager", "failed", r"cannot be multiplied .* float32 \[batch, 3, 8, 8\]"),
    ("missing_input", "eager", "failed", "'mask'.* image, mask"),
    ("no_tensor", "eager", "failed", "no tensor"),
    ("nan", "eager", "failed", "reference itself is not finite"),
    ("good", "eager", "ok", "^$"),
    ("good", "ort", "ok", "^$"),
    ("other_device", "eager", "failed", r"bad_models.py:\d+"),
    ("training_mode", "eager", "ok", "no-parity: items depend on each other"),
    ("control_flow", "eager", "ok", "^$"),
    ("control_flow", "ort", "failed", r"export to ONNX failed: .* at bad_models.py:\d+"),
    ("operator", "eager", "ok", "^$"),
    ("operator", "ort", "failed", "prims.bessel_j0"),
    ("remembers", "eager", "ok", "unchecked-outputs: "),
    ("half", "eager", "ok", "^$"),
    ("no_parameters", "eager", "ok", "^$"),
]
"""Model, variant, status, and a pattern of the reason or warning."""


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory, profiler: Profiler) -> dict[tuple[str, str], dict[str, Any]]:
    """Return the rows by model and variant, with what was said of each."""
    folder = tmp_path_factory.mktemp("bad")
    factories = (ROOT / "tests" / "bad_models.py").read_text()
    (folder / "bad_models.py").write_text(factories)
    names = list(dict.fromkeys(name for name, *_ in CASES))
    assert {*names} == {*re.findall(r"^def (\w+)\(\):", factories, re.MULTILINE)}, "the table has each"
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
        kept = [
            w for w in row["warnings"] if w.startswith(("inaccurate", "graph-breaks", "unchecked-outputs", "no-parity"))
        ]
        said = (row["reason"] or next(iter(kept), "")).replace(f"{folder}/", "")
        row["said"] = said
        row["printed"] = (run / row["log"]).read_text() if row["log"] else ""
    return texts


@pytest.mark.parametrize(("name", "variant", "status", "says"), CASES)
def test_each_gets_its_status_and_its_sentence(rows, name, variant, status, says):
    row = rows[name, variant]
    assert row["status"] == status
    assert re.search(says, row["said"]), row["said"]
    assert (row["latency_ms"] is not None) == (status == "ok")
    assert "\n" not in row["said"]


def test_the_log_of_a_failed_export_says_what_was_tried(rows):
    assert "y.sum() > 0" in rows["control_flow", "ort"]["printed"]
    assert rows["raises", "eager"]["log"] == "logs/prepare-raises.log"
    assert all(word in rows["raises", "eager"]["printed"] for word in ("Traceback", "bad_models.py"))
    assert rows["good", "ort"]["graph"] == "torch.export, any batch"
    assert rows["good", "eager"]["graph"] is None
