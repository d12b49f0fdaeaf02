"""The same cell has the same latency, speed-up and interval in a run's table, in compare, recommend and report."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from profiler.compare.command import Options, make_comparison
from profiler.compare.view import sections
from profiler.recommend.choice import Request, recommend
from profiler.report.data import gather
from profiler.report.findings import findings, headline, lead
from profiler.report.tables import tables
from profiler.results.reading import read_runs
from profiler.results.speedups import summary
from profiler.tables import numbers
from tests.handmade import row, run, thrice

NOISY = {"eager": (87.8, 83.7, 0.263), "ort": (9.9, 10.1, 12.0), "openvino": (0.119, 0.1195, 0.12)}
"""Milliseconds of three processes a configuration; each process agrees with itself within 1 %."""


def folder_of(results: pl.DataFrame, samples: pl.DataFrame, path: Path) -> str:
    results.write_parquet(path / "results.parquet")
    samples.write_parquet(path / "samples.parquet")
    return str(path)


def frames(times: dict[str, tuple[float, ...]]) -> tuple[pl.DataFrame, pl.DataFrame]:
    cases = [row(name, ms=ms, replicate=n) for name, each in times.items() for n, ms in enumerate(each)]
    return run(*cases)


@pytest.mark.parametrize("processes", [3, 2, 1])
def test_every_command_gives_one_number_a_cell(processes: int, tmp_path: Path) -> None:
    results, samples = frames({name: each[:processes] for name, each in NOISY.items()})
    folder = folder_of(results, samples, tmp_path)
    compared = make_comparison(Options(runs=(folder,), by="variant", base="eager")).cells
    table = summary(results, samples)
    lines = gather(read_runs([folder])).configurations
    candidates = {str(c.row["variant"]): c for c in recommend(results, Request("net")).candidates}
    for name, each in NOISY.items():
        (printed,) = table.filter(variant=name).to_dicts()
        (shown,) = lines.filter(variant=name).to_dicts()
        latency = float(np.median(each[:processes]))
        assert printed["latency_ms"] == shown["latency_ms"] == candidates[name].figures["latency_ms"] == latency
        names = ["speedup", "speedup_low", "speedup_high", "verdict", "latency_ci_low_ms", "latency_ci_high_ms"]
        assert [printed[column] for column in names] == [shown[column] for column in names]
        if name == "eager":
            continue
        (cell,) = compared.filter(side=name).to_dicts()
        assert (cell["base_ms"], cell["side_ms"]) == pytest.approx((np.median(NOISY["eager"][:processes]), latency))
        columns = ("ratio", "ratio_low", "ratio_high")
        assert [cell[column] for column in columns] == pytest.approx([printed[column] for column in names[:3]])
        assert cell["verdict"] == printed["verdict"]
        assert cell["ratio"] == pytest.approx(cell["base_ms"] / cell["side_ms"])
        if cell["ratio_low"] is not None:
            assert cell["ratio_low"] <= cell["ratio"] <= cell["ratio_high"]


def test_recommends_margin_is_the_ratio_of_the_latencies_and_compares_interval(tmp_path: Path) -> None:
    results, samples = frames(NOISY)
    folder = folder_of(results, samples, tmp_path)
    found = recommend(results, Request("net"))
    (eager,) = [loser for loser in found.losers if loser.candidate.row["variant"] == "eager"]
    cells = make_comparison(Options(runs=(folder,), by="variant", base="eager")).cells
    (cell,) = cells.filter(side="openvino").to_dicts()
    assert eager.margin is not None and eager.margin.interval is not None
    ends = (eager.margin.ratio, eager.margin.interval.low, eager.margin.interval.high)
    assert ends == pytest.approx((cell["ratio"], cell["ratio_low"], cell["ratio_high"]))
    assert eager.margin.ratio == pytest.approx(83.7 / 0.1195)


@pytest.mark.parametrize(
    ("each", "cell"),
    [((87.8, 83.7, 0.263), "too noisy"), ((99.0, 101.0), "1.0"), ((10.0, 10.1, 9.9), "2.5"), ((5.0,), "0.5")],
)
def test_the_spread_of_replicates_is_that_between_them(each: tuple[float, ...], cell: str) -> None:
    """Within each process the interval is less than 1 %; between three it is Student's, of two half their range."""
    (line,) = summary(*frames({"eager": each})).to_dicts()
    ends = [[line[name]] for name in ("latency_ci_low_ms", "latency_ci_high_ms", "latency_ms")]
    assert numbers.spread(*ends) == [cell]
    assert line["latency_ci_low_ms"] <= line["latency_ms"] <= line["latency_ci_high_ms"]


@pytest.mark.parametrize("kind", ["disturbed", "inconsistent"])
def test_no_command_names_the_factor_of_a_row_that_was_disturbed(kind: str, tmp_path: Path) -> None:
    """Of two models one was measured next to other work: only the other's speed-up of 2 is left."""

    def cases(model: str, slow: float, warnings: list[str]) -> list[Any]:
        rows = [*thrice(row, "eager", ms=slow), *({**one, "warnings": warnings} for one in thrice(row, "ort", ms=1.0))]
        return [{**one, "model": model, "case_id": f"{model}/{one['case_id']}"} for one in rows]

    results, samples = run(*cases("calm", 2.0, []), *cases("busy", 50.0, [f"{kind}: x"]))
    folder = folder_of(results, samples, tmp_path)
    comparison = make_comparison(Options(runs=(folder,), by="variant", base="eager"))
    (total,) = comparison.totals
    assert total.models == ("calm",) and total.ratio == pytest.approx(2.0)
    texts = [text for section in sections(comparison, 9) for text in section.paragraphs]
    left_out = "ort: 1 cell without a ratio of times, and left out of the means and ranges"
    assert f"{left_out}: column Disturbed says why, of either side or both." in " ".join(texts)
    (table,) = [table for section in sections(comparison, 9) for table in section.tables if "ratio" in table.frame]
    ratios = pl.DataFrame(table.frame).select("model", "ratio", "verdict", "disturbed").rows()
    assert ratios == [("calm", pytest.approx(2.0), "faster", None), ("busy", None, None, kind)]
    data = gather(read_runs([folder]))
    (found,) = lead(data.configurations)
    assert found.ratio == "2.0×"
    assert (
        headline(data.configurations)
        == "ort fp32 is the fastest for the 1 of 2 models and batch sizes that can be judged"
    )
    said = {finding["model"]: finding["text"] for finding in findings(data)["speedups"]}
    assert said["calm"].endswith("the fastest is ort fp32 at 2.0×.")
    was = f"was {kind}"
    assert said["busy"].endswith(f"the fastest is ort fp32, which {was}.")
    answer = tables(data)["answer"].frame.filter(pl.col("restricted_to").is_null())
    shown = pl.DataFrame(answer).select("model", "speedup", "margin").to_dicts()
    assert {r["model"]: (r["speedup"] is None, r["margin"] is None) for r in shown}["busy"] == (True, True)
