"""How many times faster: one answer, whichever command is asked, and how ties and bases are named."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from polars.testing import assert_frame_equal

from profiler.compare.command import Options, make_comparison
from profiler.job.conditions import Filter
from profiler.recommend.choice import Request, recommend
from profiler.report.data import gather
from profiler.results.columns import RESULTS, SAMPLES
from profiler.results.reading import read_runs, with_all_columns
from profiler.results.speedups import spreads, summary
from profiler.stats.ratios import PRIOR_CONFIGURATIONS, Verdict

MODELS = 40


def simulated(clock: str, seed: int, gain: float = 0.04, spread: float = 0.012) -> pl.DataFrame:
    """Results of three processes of eager and of ort, which is faster by `gain`, for each of 40 models."""
    rng = np.random.default_rng(seed)
    rows: list[dict[str, Any]] = []
    for number in range(MODELS):
        own = spread * np.exp(rng.normal(0, 0.5))
        for variant, ms in (("eager", 1.0), ("ort", 1 / (1 + gain))):
            for replicate, noise in enumerate(rng.normal(size=3)):
                figure = ms * np.exp(own * noise)
                rows.append(
                    {
                        "run_id": "run", "case_id": f"net{number}/{variant}/inference/fp32/b1/r{replicate}",
                        "model": f"net{number}", "engine": variant, "variant": variant, "pass": "inference",
                        "precision": "fp32", "batch_size": 1, "replicate": replicate, "status": "ok", "clock": clock,
                        "device": "cuda" if clock == "event" else "cpu", "latency_ms": figure, "gpu_ms": figure,
                        "samples": 0, "warnings": [],
                    }
                )  # fmt: skip
    return with_all_columns(pl.DataFrame(rows, schema=RESULTS))


def by_model(frame: pl.DataFrame) -> dict[str, str]:
    return dict(frame.filter(variant="ort").select("model", "verdict").sort("model").iter_rows())


@pytest.mark.parametrize(("clock", "seed"), [("host", 0), ("host", 1), ("event", 2)])
def test_every_command_gives_the_same_verdict_on_the_same_processes(clock: str, seed: int, tmp_path: Path) -> None:
    """The table of a run, compare, report and recommend; each may be asked about a part of the run alone."""
    results = simulated(clock, seed)
    results.write_parquet(tmp_path / "results.parquet")
    pl.DataFrame(schema=SAMPLES).write_parquet(tmp_path / "samples.parquet")
    folder = str(tmp_path)

    def compared(*only: str) -> dict[str, str]:
        request = Options(runs=(folder,), by="variant", base="eager", only=only)
        return dict(make_comparison(request).cells.select("model", "verdict").sort("model").iter_rows())

    table = by_model(summary(results, pl.DataFrame(schema=SAMPLES)))
    assert len(table) == MODELS
    assert {*table.values()} >= {Verdict.FASTER, Verdict.UNCLEAR}, "the simulation tells nothing"
    assert compared() == table
    for model in ("net0", "net1", "net2", "net3"):
        expected = {model: table[model]}
        assert compared(f"model={model}") == expected
        assert by_model(gather(read_runs([folder]), Filter(model=[model])).configurations) == expected
        margin = recommend(results, Request(model)).margin
        assert margin is not None
        expected_word = Verdict(table[model])
        assert margin.verdict and margin.verdict.differs == expected_word.differs
        assert margin.verdict.ties == expected_word.ties


def test_a_runs_common_spread_needs_ten_configurations_and_leaves_other_runs_alone() -> None:
    many = simulated("host", 0)
    few = many.filter(pl.col("model").is_in([f"net{n}" for n in range(PRIOR_CONFIGURATIONS // 2 - 1)]))
    found = spreads(pl.concat([many, few.with_columns(run_id=pl.lit("few"))]))
    priors = dict(found.select("run_id", "latency_prior_free").iter_rows())
    assert priors["run"] > 0 == priors["few"]
    assert priors["run"] == pytest.approx(spreads(many)["latency_prior_free"][0])


def test_probes_and_failed_rows_are_not_in_a_common_spread() -> None:
    many = simulated("host", 0)
    probes = many.with_columns(
        extra=pl.lit("probe=largest"), setting=None, role=None, is_base=None, batch_size=pl.lit(9, pl.Int64)
    )
    failed = many.with_columns(status=pl.lit("failed"), batch_size=pl.lit(7, pl.Int64))
    noisy = pl.concat([with_all_columns(probes), failed]).with_columns(latency_ms=pl.col("latency_ms") ** 9)
    assert_frame_equal(spreads(pl.concat([many, noisy])), spreads(many))
