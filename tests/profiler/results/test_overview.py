"""The table that a run of several models ends with, and a page begins with."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import handmade
import pytest
from rich.console import Console

from profiler.recommend.answer import Request, cells_of, decide
from profiler.recommend.command import conclude
from profiler.results.overview import overview
from profiler.results.reading import load
from profiler.tables.table import Table
from profiler.tables.writers import html, print_table

GOLDEN = Path(__file__).resolve().parents[2] / "golden"


def table_of(*rows: dict[str, Any]) -> Table:
    results = handmade.frame([{"peak_memory_mib": 1500.0} | row for row in rows])
    cells = cells_of(results)
    names = results["model"].unique(maintain_order=True)
    return overview([(f"{model}, b1", {"model": model}, decide(cells, Request(model))) for model in names])


def test_each_model_has_the_base_the_best_of_each_runtime_and_what_to_deploy():
    table = table_of(
        handmade.row("eager", ms=4.0),
        handmade.row("eager-tuned", ms=3.9),
        handmade.row("ort", ms=2.0),
        handmade.row("ort-tuned", ms=1.0, rel_l2_error_high=9e-4),
        handmade.row("openvino", ms=None),
        handmade.row("eager", ms=3.0, model="alone"),
        handmade.row("eager", ms=3.0, model="busy", latency_low_ms=0.1, latency_high_ms=9.0),
        handmade.row("ort", ms=1.0, model="busy"),
    )
    columns = {field.heading: cells for field, cells in table.columns()}
    assert columns == {
        "Model, and what to deploy": [
            "net, b1\n→ ort-tuned fp32",
            "alone, b1\n→ no recommendation yet",
            "busy, b1\n→ no recommendation yet",
        ],
        "eager fp32": ["4.00\n1,500 4e-4", "3.00\n1,500 4e-4", "busy\n1,500 4e-4"],
        "eager": ["3.90 1.03×\n1,500 4e-4", "", ""],
        "ort": ["1.00 4.0×\n1,500 9e-4", "", "1.00\n1,500 4e-4"],
    }
    assert "<td>net, b1<br>→ ort-tuned fp32</td>" in html(table)


def test_a_tie_is_called_one_and_what_is_not_told_apart_from_the_base_is_marked():
    near = [
        handmade.row(name, ms=ms, latency_low_ms=0.9, latency_high_ms=1.1)
        for name, ms in (("ort", 1.0), ("openvino", 0.99))
    ]
    deploy, _, ort, _ = (cells for _, cells in table_of(handmade.row("eager", ms=1.01), *near).columns())
    assert deploy == ["net, b1\n→ openvino fp32 or 2 more"]
    assert ort[0].startswith("1.00 ~1.01×")


def test_a_tie_of_another_batch_names_it():
    rates = {"latency_low_ms": 0.9, "latency_high_ms": 1.1, "throughput_low": 900.0, "throughput_high": 1100.0}
    rows = [
        handmade.row(name, ms=1.0, throughput=1000.0, batch_size=size, **rates)
        for name, size in (("ort", 1), ("openvino", 16))
    ]
    results = handmade.frame(rows)
    choice = decide(cells_of(results), Request("net", objective="throughput"))
    table = overview([("net", {"model": "net"}, choice)])
    (deploy,) = next(cells for field, cells in table.columns() if field.heading.startswith("Model"))
    assert deploy in ("net\n→ ort fp32 or openvino fp32 b16", "net\n→ openvino fp32 or ort fp32 b1")


@pytest.mark.parametrize("width", [40, 60, 80])
def test_a_narrow_terminal_keeps_the_figures_of_each_winner(width):
    times = {"eager": 4.0, "compiled": 2.0, "ort": 3.0, "openvino": 3.5, "trt": 2.5}
    models = {f"net{n}": times | {winner: 1.0} for n, winner in enumerate(("ort", "trt", "trt"))}
    rows = [handmade.row(name, ms=ms, model=model) for model, ms_of in models.items() for name, ms in ms_of.items()]
    page = io.StringIO()
    print_table(Console(file=page, width=width), table_of(*rows))
    assert page.getvalue().count(" 1.00 4.0×") == len(models)
    assert page.getvalue().count(" 4.00 ") == len(models), "the base stays, too"
    assert ("Left out for the width: " in page.getvalue()) == (" 3.50 " not in page.getvalue())


@pytest.mark.parametrize("golden", ["cpu", "h200"])
def test_a_job_of_three_models_ends_on_one_screen(golden):
    results = load(GOLDEN / golden)[0].collect()
    page = io.StringIO()
    conclude(Path("results/run"), results, Console(file=page, width=80))
    lines = page.getvalue().splitlines()
    assert len(lines) <= 40
    assert not [line for line in lines if len(line.rstrip()) > 80 and "python -m profiler" not in line]
    for model in results["model"].unique():
        assert sum(f" {model}, b1 " in line for line in lines) == 1
