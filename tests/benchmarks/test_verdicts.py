"""The benchmark of verdicts: its job, and how labels are paired and judged."""

from __future__ import annotations

import json
import sys
from argparse import Namespace
from collections import Counter
from pathlib import Path

import polars as pl
import pytest

from benchmarks import verdicts
from profiler.job.config import load_config
from profiler.job.plan import make_plan
from profiler.results.columns import RESULTS
from tests.handmade import whole_row


@pytest.mark.parametrize(
    ("device", "pairs", "models"), [("cpu", 200, 5), ("cpu", 7, 1), ("cuda", 60, 5), ("cuda", 1, 2)]
)
def test_the_job_has_an_even_number_of_labels_and_pairs_enough(tmp_path, device, pairs, models):
    asked = Namespace(pairs=pairs, device=device, models=models, seconds=0.1)
    (tmp_path / "job.yaml").write_text(json.dumps(verdicts.job(asked)))
    plan = make_plan(load_config(tmp_path / "job.yaml", device), device)
    labels = Counter(
        (case.model, case.batch_size, case.variant.partition(".")[0]) for case in plan if "." in case.variant
    )
    assert {count % 2 for count in labels.values()} == {0}
    assert sum(labels.values()) >= 2 * pairs
    assert {case.model for case in plan} == set(list(verdicts.MODELS)[-models:])
    assert {which for *_, which in labels} == set(verdicts.ENGINES[device])


def write_run(folder: Path, last: float) -> Path:
    """Write a run of six labels in two engines, whose latencies are 1 ms ±3 % but for the last one's.

    Bases of five more models tell that processes hardly differ.
    """
    times = {"eager": 1.0, **{f"eager.{n}": 1.0 for n in range(4)}, "ort.0": 1.0, "ort.1": last}
    cases = [("net", variant, 0, ms) for variant, ms in times.items()]
    cases += [(f"net{m}", "eager", n, 1 + n / 1e5) for m in range(5) for n in range(3)]
    rows = [
        whole_row({
            "run_id": "run", "case_id": f"{model}/{variant}/inference/fp32/b1/r{number}", "model": model,
            "variant": variant, "engine": variant.partition(".")[0], "pass": "inference", "precision": "fp32",
            "batch_size": 1, "replicate": number, "setting": "", "is_base": variant == "eager", "status": "ok",
            "clock": "host", "latency_ms": ms, "latency_low_ms": 0.97 * ms, "latency_high_ms": 1.03 * ms,
            "warnings": [],
        })
        for model, variant, number, ms in cases
    ]  # fmt: skip
    (folder / "run").mkdir(parents=True)
    pl.DataFrame(rows, schema=RESULTS).write_parquet(folder / "run" / "results.parquet")
    return folder / "run"


def test_labels_of_a_configuration_are_paired_and_shares_count_them(tmp_path):
    pairs = verdicts.judged(write_run(tmp_path, last=1.5))
    assert sorted(pairs["which"]) == ["eager", "eager", "ort"], "each label is in one pair, the base in none"
    assert pairs.filter(which="eager")["factor"].to_list() == [1.0, 1.0]
    (ort,) = pairs.filter(which="ort").to_dicts()
    assert max(ort["factor"], 1 / ort["factor"]) == pytest.approx(1.5)
    assert ort["verdict"] == ("faster" if ort["factor"] > 1 else "slower")
    every, noisiest, *engines = verdicts.summary("0 busy", pairs)
    assert (every["which"], every["pairs"]) == ("all", 3)
    assert (noisiest["which"], noisiest["pairs"]) == ("noisiest fifth", 1 if pairs["noise"].n_unique() > 1 else 3)
    assert (every["held"], every["wrong"], every["equivalent"]) == pytest.approx((2 / 3, 1 / 3, 0.0))
    # Arms of 3 % on both sides of a ratio, added in squares.
    assert every["width"] == pytest.approx(0.03 * 2**0.5, rel=0.05)
    shares = {str(row["which"]): (row["held"], row["wrong"]) for row in engines}
    assert shares == {"eager, batch 1": (1.0, 0.0), "ort, batch 1": (0.0, 1.0)}
    two = verdicts.judged(tmp_path / "run", per_cell=2)
    assert two.select("which", "factor").rows() == [("eager", 1.0)], "ort's labels make one cell, which has no partner"


@pytest.mark.parametrize(("last", "code"), [(1.0, 0), (1.5, 1)])
def test_runs_that_are_there_are_judged_and_a_share_that_is_missed_gives_1(tmp_path, monkeypatch, capsys, last, code):
    write_run(tmp_path / "busy-0", last=1.0)
    write_run(tmp_path / "busy-1", last=last)
    monkeypatch.setattr(sys, "argv", ["verdicts", "--output", str(tmp_path), "--per-cell", "1"])
    monkeypatch.setattr(verdicts, "print_simulated", lambda console: False)
    assert verdicts.main() == code
    printed = capsys.readouterr().out
    assert "0 busy" in printed and "1 busy" in printed and "ort, batch 1" in printed
