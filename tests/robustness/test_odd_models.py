"""Each odd model gets its status, and the good models between them their figures."""

from __future__ import annotations

import random
import re
import resource
from pathlib import Path

import polars as pl
import pytest
from robustness import odd_models as odd
from robustness.command_runs import Run
from robustness.conftest import SIZE

pytestmark = pytest.mark.slow
HERE = Path(__file__).parent
SECONDS = 800 if SIZE == 1 else 1200  # On cores that a soak keeps busy.
OPEN_FILES = 64
"""Each process may have so many open at once, which is enough."""


def workplace(folder: Path, rng: random.Random) -> dict[str, tuple[str, ...]]:
    """Write a job of all models, a good one after every eighth; returns by model the statuses that are right."""
    entries = {name: f'"odd_models:{name}"' for name in odd.WHEN_BUILT}
    entries |= {name: f'"{name}:make"' for name in odd.WHEN_IMPORTED}
    right = {**odd.WHEN_BUILT, **odd.IN_A_GRAPH}
    for source in (odd.WHEN_IMPORTED, odd.MODELS):
        right |= {name: statuses for name, (_, statuses) in source.items()}
    for name in odd.MODELS:
        when = rng.choice((odd.AT_ONCE, odd.MEASURED))
        entries[name] = f'"odd_models:make", options: {{name: {name}, when: "{when}"}}'
    order = rng.sample([*entries], len(entries))
    for place in range(len(entries) // 8):
        order.insert(8 + 9 * place, f"good{place}")
        entries[f"good{place}"], right[f"good{place}"] = '"odd_models:good"', ("ok",)
    folder.mkdir()
    (folder / "odd_models.py").write_text((HERE / "odd_models.py").read_text())
    for name, (text, _) in odd.WHEN_IMPORTED.items():
        (folder / f"{name}.py").write_text(text)
    odd.write_graphs(folder)
    listed = "\n".join(f"  - {{name: {name}, input: [8], factory: {entries[name]}}}" for name in order)
    graphs = ", ".join(odd.IN_A_GRAPH)
    listed += "".join(f"\n  - {{name: {name}, onnx: {name}.onnx}}" for name in odd.IN_A_GRAPH)
    (folder / "job.yaml").write_text(
        f"models:\n{listed}\nengines: [eager, ort]\ndevice: cpu\nbatch_sizes: [2]\n"
        f"exclude: [{{engine: eager, model: [{graphs}]}}, {{engine: ort, model: [{', '.join(order)}]}},"
        " {replicate: [1, 2]}]\n"
        f"budget: {{seconds: 0.02, min_samples: 3, repeats: 0, timeout: 600, build_timeout: 500}}\n"
    )
    return right


def test_each_gets_its_status_and_good_ones_their_figures(soak, tmp_path):
    tried, wrong, found = 0, [], {"tracebacks": 0, "orphans": 0, "hangs": 0}
    for rng in soak.trials(1, 0.08):
        folder = tmp_path / str(rng.trial)
        right = workplace(folder, rng)
        hanging = [name for name, statuses in right.items() if "timeout" in statuses]
        run = Run("job.yaml", "--no-report", cwd=folder, hanging=hanging, PROFILER_CACHE=str(folder / "cache"))
        resource.prlimit(run.pid, resource.RLIMIT_NOFILE, (OPEN_FILES, OPEN_FILES))
        found["hangs"] += (code := run.wait(SECONDS)) is None
        found["orphans"] += len(left := run.left_behind())
        found["tracebacks"] += "Traceback" in run.err
        print(rng.trial, code, left, run.err[-3000:], run.out[-300:])
        (path,) = folder.glob("results/*")
        rows = {row["model"]: row for row in pl.read_parquet(path / "results.parquet").to_dicts()}
        tried += len(right)
        for name, statuses in right.items():
            row = rows.get(name, {"status": "no row", "reason": None})
            is_right = row["status"] in statuses and (row["status"] == "ok" or row["reason"])
            is_right = is_right and re.search(odd.SAYS.get(name, ""), row["reason"] or "")
            if name.startswith("good"):
                is_right = is_right and row["latency_ms"] > 0 and row["rel_l2_error"] < 1e-5
            if not is_right:
                wrong.append(f"{rng.trial} {name}: {row['status']}, {str(row['reason'])[:300]}")
    print(*wrong, sep="\n")
    faults = [name for name in right if not name.startswith("good")]
    soak.count("odd models, good ones between", tried, tried - len(wrong), faults, **found)
