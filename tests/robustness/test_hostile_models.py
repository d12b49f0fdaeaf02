"""Each of 63 hostile models gets its status, and the good models between them their figures.

In CI these are those in `hostile_models.FEW`.
"""

from __future__ import annotations

import random
from pathlib import Path

import polars as pl
import pytest
from robustness.conftest import SIZE
from robustness.forked_runs import Runs

pytestmark = pytest.mark.slow
HERE = Path(__file__).parent
SECONDS = 800 if SIZE == 1 else 1200  # On cores that a soak keeps busy.


def models(rng: random.Random, few: bool) -> tuple[dict[str, tuple[str, ...]], str]:
    """The statuses that are right by model, and the job's models in running order, a good one after every fourth."""
    from robustness import hostile_models as hostile

    entries = [(name, f"hostile_models:{name}", "") for name in hostile.WHEN_BUILT]
    entries += [(name, f"{name}:make", "") for name in hostile.WHEN_IMPORTED]
    right = dict(hostile.WHEN_BUILT) | {name: statuses for name, (_, statuses) in hostile.WHEN_IMPORTED.items()}
    for name, (_, statuses) in hostile.MODELS.items():
        when = rng.choice((hostile.AT_ONCE, hostile.MEASURED))
        options = f', options: {{name: {name}, when: "{when}"}}'
        entries.append((name, "hostile_models:make", options))
        right[name] = statuses
    if few:
        assert {*right} >= hostile.FEW
        entries = [entry for entry in entries if entry[0] in hostile.FEW]
        right = {name: right[name] for name in hostile.FEW}
    rng.shuffle(entries)
    for place in range(len(entries) // 4):
        entries.insert(4 + 5 * place, (f"good{place}", "hostile_models:good", ""))
        right[f"good{place}"] = ("ok",)
    lines = [f'  - {{name: {name}, factory: "{factory}", input: [8]{more}}}' for name, factory, more in entries]
    return right, "\n".join(lines)


def workplace(folder: Path, rng: random.Random, few: bool) -> dict[str, tuple[str, ...]]:
    from robustness.hostile_models import WHEN_IMPORTED

    folder.mkdir()
    (folder / "hostile_models.py").write_text((HERE / "hostile_models.py").read_text())
    for name, (text, _) in WHEN_IMPORTED.items():
        (folder / f"{name}.py").write_text(text)
    right, listed = models(rng, few)
    (folder / "job.yaml").write_text(
        f"models:\n{listed}\nengines: [eager]\ndevice: cpu\nbatch_sizes: [2]\n"
        f"budget: {{seconds: 0.02, min_samples: 3, repeats: 0}}\n"
    )
    return right


def test_each_gets_its_status_and_good_ones_their_figures(soak, runs: Runs, tmp_path: Path) -> None:
    tried, wrong, tracebacks, orphans, hangs = 0, [], 0, 0, 0
    for rng in soak.trials(1, 0.08):
        folder = tmp_path / str(rng.trial)
        right = workplace(folder, rng, few=not soak.is_large)
        hanging = [name for name, statuses in right.items() if "timeout" in statuses]
        run = runs.start("job.yaml", cwd=folder, hanging=hanging, PROFILER_CACHE=str(folder / "cache"))
        hangs += (code := run.wait(SECONDS)) is None
        left = run.left_behind()
        orphans += len(left)
        tracebacks += "Traceback" in run.err
        print(rng.trial, code, left, run.err[-3000:], run.out[-300:])
        (path,) = folder.glob("results/*")
        rows = {row["model"]: row for row in pl.read_parquet(path / "results.parquet").to_dicts()}
        tried += len(right)
        for name, statuses in right.items():
            row = rows.get(name, {"status": "no row", "reason": None})
            is_right = row["status"] in statuses and (row["status"] == "ok" or row["reason"])
            if name.startswith("good"):
                is_right = is_right and row["latency_ms"] > 0 and row["rel_l2_error"] < 1e-5
            if not is_right:
                wrong.append(f"{rng.trial} {name}: {row['status']}, {str(row['reason'])[:300]}")
    print(*wrong, sep="\n")
    found = {"tracebacks": tracebacks, "orphans": orphans, "hangs": hangs}
    faults = [name for name in right if not name.startswith("good")]
    soak.count("hostile models, good ones between", tried, tried - len(wrong), faults, **found)
