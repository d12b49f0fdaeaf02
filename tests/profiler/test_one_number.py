"""The same cell has the same latency, factor, interval and winner in a run's output, compare, recommend and report."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from rich.console import Console

from profiler.compare.command import Options, make_comparison, sections
from profiler.recommend.answer import Request, recommend
from profiler.recommend.command import headline
from profiler.report.data import Data, gather
from profiler.report.tables import tables
from profiler.results.cells import GROUP, OK, cells
from profiler.results.choice import Choice, cell_name, choose
from profiler.results.reading import load, read_runs
from profiler.run.summary import print_results
from profiler.tables.writers import markdown, markdown_section
from tests.handmade import row, run

GOLDEN = Path(__file__).resolve().parents[1] / "golden"
NOISY = {"eager": (87.8, 83.7, 0.263), "ort": (9.9, 10.1, 12.0), "openvino": (0.119, 0.1195, 0.12)}
"""Milliseconds of three processes a configuration; each process agrees with itself within 1 %."""
LATENCY = ("latency_ms", "latency_low_ms", "latency_high_ms")
FACTOR = ("factor", "factor_low", "factor_high")
Row = dict[str, Any]


def calm_and_busy() -> list[Row]:
    """Make rows of two models, of one with a disturbed fastest configuration; a runtime has its own version."""
    rtx = {"warnings": [], "tensorrt_version": "1.7"}
    rows = [row(name, ms=ms, model=model, tensorrt_version="11.4", warnings=kinds)
            for model, ort, kinds in (("calm", 1.0, []), ("busy", 0.04, ["disturbed: x", "inconsistent: y"]))
            for name, ms in (("eager", 2.0), ("ort", ort))]  # fmt: skip
    return [*rows, row("trt-rtx", ms=1.5, model="calm", **rtx), row("ort", "fp16", ms=None, model="calm")]


RUNS = {
    **{f"noisy, {n} processes": [row(name, ms=ms, replicate=i) for name, each in NOISY.items()
                                 for i, ms in enumerate(each[:n])] for n in (1, 3)},
    "disturbed": calm_and_busy(),
}  # fmt: skip


@pytest.fixture(scope="module", params=["cpu", "h200", *RUNS])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    if request.param not in RUNS:
        yield GOLDEN / request.param
        return
    path = tmp_path_factory.mktemp("run")
    for name, frame in zip(("results", "samples"), run(*RUNS[request.param]), strict=True):
        frame.write_parquet(path / f"{name}.parquet")
    yield path


def of(cell: Row, columns: tuple[str, ...]) -> list[float]:
    return [cell[name] for name in columns]


@pytest.fixture(scope="module")
def results(folder: Path) -> pl.DataFrame:
    return load(folder)[0].collect()


@pytest.fixture(scope="module")
def of_run(results: pl.DataFrame) -> pl.DataFrame:
    return cells(results)


@pytest.fixture(scope="module")
def reported(folder: Path) -> Data:
    return gather(read_runs([folder]))


@pytest.fixture(scope="module")
def answers(results: pl.DataFrame) -> list[tuple[Row, Choice]]:
    """Return recommend's answer for each group that the terminal has a table of."""
    groups = results.select(GROUP).unique(maintain_order=True).to_dicts()
    asked = [Request(of["model"], of["pass"], of["setting"], f"batch_size={of['batch_size']}") for of in groups]
    return [(keys, recommend(results, request)) for keys, request in zip(groups, asked, strict=True)]


def test_every_command_has_the_same_latency_factor_interval_and_verdict(of_run, reported, answers):
    of_run = {tuple(of(cell, (*GROUP, "variant", "precision"))): cell for cell in of_run.filter(OK).to_dicts()}
    of_report = reported.cells.to_dicts()
    assert len(of_report) == len(of_run)
    for cell in of_report:
        known = of_run[tuple(of(cell, (*GROUP, "variant", "precision")))]
        columns = (*LATENCY, *FACTOR, "verdict", "base", "footnotes")
        assert of(cell, columns) == of(known, columns)
    seen = 0
    for keys, answer in answers:
        for candidate in (answer.best, *(loser.cell for loser in answer.losers)):
            if candidate is None or not candidate["processes"]:
                continue
            known = of_run[(*keys.values(), candidate["variant"], candidate["precision"])]
            for columns in (LATENCY, FACTOR):
                assert of(candidate, columns) == (
                    pytest.approx(of(known, columns), rel=1e-9) if known[columns[0]] else [None] * 3
                )
            assert (candidate["verdict"], candidate["base"]) == (known["verdict"], known["base"])
            assert {*candidate["footnotes"]} - {"throttled"} == {*known["footnotes"]}
            seen += 1
    assert seen == len(of_run)


def test_compare_has_the_factor_over_the_base_that_the_run_prints(folder, of_run):
    lines = of_run.filter(OK, ~pl.col("is_base"), pl.col("factor").is_not_null(), precision="fp32").to_dicts()
    compared = make_comparison(Options(runs=(str(folder),), by="variant", base="eager", only=("precision=fp32",)))
    found = {tuple(of(one, ("model", "pass", "batch_size", "side"))): one for one in compared.cells.to_dicts()}
    assert lines
    for line in lines:
        one = found[tuple(of(line, ("model", "pass", "batch_size", "variant")))]
        assert [one["side_ms"], one["side_low_ms"], one["side_high_ms"]] == pytest.approx(of(line, LATENCY))
        assert [one["ratio"], one["ratio_low"], one["ratio_high"]] == pytest.approx(of(line, FACTOR))
        assert one["verdict"] == line["verdict"]
        assert one["ratio"] == pytest.approx(one["base_ms"] / one["side_ms"])
        assert one["ratio_low"] <= one["ratio"] <= one["ratio_high"]


def test_the_winner_and_its_runner_up_are_the_same_everywhere(of_run, reported, answers):
    by_group = dict(of_run.group_by(GROUP, maintain_order=True))
    told = tables(reported)["answer"].frame
    for keys, answer in answers:
        choice = choose(by_group[tuple(keys.values())])
        (shown,) = pl.DataFrame(told).filter(pl.col(key) == value for key, value in keys.items()).to_dicts()
        assert answer.best is not None and choice.best is not None
        assert answer.best["name"] == cell_name(choice.best)
        assert (answer.status, str(answer.doubt)) == (choice.status, str(choice.doubt))
        assert shown["deploy"] == ("none yet" if choice.doubt else cell_name(choice.best))
        second = answer.runner_up and answer.runner_up["name"]
        assert second == shown["runner_up"] == (choice.runner_up and cell_name(choice.runner_up))
        assert of(shown, FACTOR) == of(choice.best, FACTOR)
        if choice.margin and answer.margin:
            margin = (choice.margin.value, choice.margin.low, choice.margin.high)
            assert (answer.margin.value, answer.margin.low, answer.margin.high) == pytest.approx(margin)
            assert tuple(of(shown, ("margin", "margin_low", "margin_high"))) == margin


def test_every_command_prints_it_in_the_same_words(tmp_path):
    each = {"eager": (6.0, 6.3, 6.2), "ort": (2.0, 2.5, 2.9)}
    made = run(*(row(name, ms=ms, replicate=i) for name, times in each.items() for i, ms in enumerate(times)))
    for name, frame in zip(("results", "samples"), made, strict=True):
        frame.write_parquet(tmp_path / f"{name}.parquet")
    results, page = load(tmp_path)[0].collect(), io.StringIO()
    print_results(Console(file=page, width=120), results, cells(results))
    compared = make_comparison(Options(runs=(str(tmp_path),), by="variant", base="eager"))
    of_report = tables(gather(read_runs([tmp_path])))
    factor, latency = r"2.5×? (?:faster |eager fp32 )?\(1.8–3.3\)", r"2.50 (?:ms a call )?\(1.86–3.36\)"
    printed = {
        "terminal": page.getvalue(),
        "compare": "".join(map(markdown_section, sections(compared, 9))),
        "recommend": headline(recommend(results, Request("net"))),
        "answer": markdown(of_report["answer"]),
        "speedups": markdown(of_report["speedups"]),
    }
    assert [name for name, text in printed.items() if len(re.findall(factor, text)) == 0] == []
    assert [name for name, text in printed.items() if len(re.findall(latency, text)) == 0] == ["compare"]
