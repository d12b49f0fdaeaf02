"""SQL over runs: what it sees, how rows are printed, and which errors it explains."""

from __future__ import annotations

import io
import json
from pathlib import Path

import polars as pl
import pytest
from rich.console import Console
from runs import on_console

from profiler.commands.query import Options, execute, query
from profiler.errors import ConfigError
from profiler.results.columns import RESULTS
from profiler.results.reading import read_runs

GOLDEN = Path(__file__).resolve().parents[2] / "golden"
H200, CPU = str(GOLDEN / "h200"), str(GOLDEN / "cpu")


def run(sql: str, *runs: str) -> pl.DataFrame:
    return query(read_runs(runs or (H200,)), sql)


def shown(sql: str, width: int = 120, rows: int = 200) -> str:
    return on_console(lambda console: execute(Options(runs=(H200, sql), rows=rows), console), width=width)


def test_results_samples_and_environments_are_tables():
    assert run("select count(*) as n from results where status = 'ok'").item() == 120
    assert run("select count(*) as n from samples").item() == 141_494
    assert run("select value from environments where key = 'driver'").item() == "580.159.04"
    assert run("show tables").to_series().to_list() == [
        "cells",
        "environments",
        "layers",
        "results",
        "samples",
        "scores",
    ]
    found = run("select device, count(*) as n from results group by device order by device", H200, CPU)
    assert found.rows() == [("cpu", 25), ("cuda", 120)]
    found = run(
        "select r.case_id, r.latency_ms, median(s.ms) as ms from results r join samples s "
        "on r.run_id = s.run_id and r.case_id = s.case_id and r.clock = s.clock group by r.case_id, r.latency_ms"
    )
    assert found.height == 120
    assert found["ms"].to_list() == pytest.approx(found["latency_ms"].to_list()), "the samples' medians"


@pytest.mark.parametrize(
    ("sql", "said"),
    [
        ("select latncy_ms from results", "no column 'latncy_ms'; did you mean 'latency_ms'"),
        ("select plain_run_ms from results", "no column 'plain_run_ms'; the table cells has it"),
        ("select zebra from results", "activations_mib, backward_high_ms, "),
        ("select keyy from environments", "have no column 'keyy'; did you mean 'key'"),
        ("select * from samplez", "there is no table 'samplez'; did you mean 'samples'"),
        ("selct from", "query: .*for example: select"),
        ("select 1; drop table results", "query: "),
        (Options(runs=("results",)), "give runs, and then the query"),
        (Options(runs=(H200, "select 1"), format="csvv"), "did you mean 'csv'"),
    ],
)
def test_what_is_no_query_is_a_config_error_with_a_hint(sql, said):
    with pytest.raises(ConfigError, match=said):
        run(sql) if isinstance(sql, str) else execute(sql, Console(file=io.StringIO()))


def test_no_figure_is_cut_however_narrow_the_terminal():
    width = 60
    text = shown("select * from results where model = 'resnet18' and batch_size = 1 limit 3", width)
    assert max(map(len, text.splitlines())) <= width
    rows = run("select * from results where model = 'resnet18' and batch_size = 1 limit 3")
    for latency in rows["latency_ms"]:
        assert f"{latency:.6g}"[:6] in text
    assert "…" not in text
    assert all(name in text for name in RESULTS if len(name) <= 14), "every column is there"


def test_what_is_not_shown_is_said():
    assert "3 of 120 rows; --rows or --format csv" in shown("select case_id from results", rows=3)


@pytest.mark.parametrize("format_", ["csv", "json", "md"])
def test_rows_are_printed_for_programs(capsys, format_):
    sql = "select model, batch_size, latency_ms, warnings from results order by case_id limit 5"
    execute(Options(runs=(H200, sql), format=format_), Console(file=io.StringIO()))
    expected, printed = run(sql), capsys.readouterr().out
    if format_ == "csv":
        found = pl.read_csv(printed.encode()).select("model", "batch_size", "latency_ms")
        assert found.equals(expected.drop("warnings"))
    elif format_ == "json":
        assert json.loads(printed) == expected.to_dicts()
    else:
        head, *rows = printed.splitlines()
        assert (head, len(rows)) == (r"| model | batch_size | latency_ms | warnings |", 6)


def test_the_last_argument_is_the_query(profiler, tmp_path):
    done = profiler("query", H200, CPU, "select count(*) as n from results", "--format", "csv", cwd=tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, "n\n145\n", "")
