"""A run's folder: what its journal says after retries and crashes, and runs read back as one table."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest

from engines.base import Warning
from exporters.source import Identity, ModelSource
from profiler.errors import ConfigError
from profiler.job.case import Case
from profiler.results import journal
from profiler.results.columns import RESULTS, SAMPLES
from profiler.results.result import Result
from profiler.results.run_folder import RunFolder


def case(model: str) -> Case:
    return Case(model, "eager", "eager", "inference", "fp32", 1, "cpu", 0, ModelSource(model))


def measured(model: str, *ms: float) -> Result:
    return Result(
        case(model).id, "ok", clock="host", samples={"host": list(ms)}, warnings=[Warning("outliers", "ü, of 3")]
    )


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    return RunFolder.create(tmp_path / "results")


def test_folder_is_named_by_time_host_and_four_digits(run: RunFolder) -> None:
    time, *host, digits = run.run_id.split("-")
    assert time.endswith("Z")
    assert host
    assert int(digits, 16) < 16**4
    assert run.logs.is_dir()


def test_folder_that_cannot_be_made_is_a_config_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match=r"output .*file: .*--output"):
        RunFolder.create(tmp_path / "file")


def test_resume_of_a_folder_without_a_run_is_a_config_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--resume"):
        RunFolder.resume(tmp_path)


def test_journal_gives_back_what_was_appended(run: RunFolder) -> None:
    run.append(first := measured("a", 1.0, 2.0))
    run.append(second := Result(case("b").id, "oom", ["no memory"], samples={"host": [3.0]}))
    assert run.results() == {first.case_id: first, second.case_id: second}


def test_a_journal_is_parsed_once_until_somebody_writes_into_it(run: RunFolder) -> None:
    run.append(measured("a", 1.0))
    first, second = (run.results()[case("a").id] for _ in range(2))
    assert first is second
    run.append(measured("b", 1.0))
    assert run.results()[case("a").id] is not first
    assert len(run.results()) == 2
    before = run.results()
    RunFolder(run.path).append(measured("c", 1.0))
    assert run.results().keys() - before == {case("c").id}


def test_journal_of_a_new_run_is_empty(run: RunFolder) -> None:
    assert run.results() == {}


def test_what_is_recorded_of_a_model_stays_while_it_does_not_change(run: RunFolder) -> None:
    first = Identity({"state": "1"}, repeatable=False, remarks=("weights random",))
    run.write_models({"mine": first})
    run.write_models({"mine": first, "other": Identity({})})
    assert {name: one.identity for name, one in run.read_models().items()} == {"mine": first, "other": Identity({})}


def test_last_line_of_a_case_counts(run: RunFolder) -> None:
    run.append(Result(case("a").id, "failed", ["no luck"]))
    run.append(measured("b", 1.0))
    run.append(again := measured("a", 2.0))
    assert len(run.journal.read_text().splitlines()) == 3
    assert run.results()[again.case_id] == again


@pytest.mark.parametrize("cut", [1, 20, -1])
def test_line_cut_off_by_a_crash_is_ignored(run: RunFolder, cut: int) -> None:
    run.append(first := measured("a", 1.0))
    with run.journal.open("a") as file:
        file.write(measured("b", 2.0).to_json()[:cut])
    assert run.results() == {first.case_id: first}


def test_what_comes_after_a_cut_off_line_counts(run: RunFolder) -> None:
    run.append(measured("a", 1.0))
    with run.journal.open("a") as file:
        file.write(measured("b", 2.0).to_json()[:40])
    run.append(third := measured("b", 3.0))
    assert run.results()[third.case_id] == third


@pytest.mark.parametrize("damage", [b"\xff", b"5", b'"', b"}"])
def test_a_damaged_byte_costs_its_own_line_alone(run: RunFolder, damage: bytes) -> None:
    run.append(first := measured("a", 1.0))
    end = run.journal.stat().st_size
    run.append(measured("b", 2.0))
    run.append(third := measured("c", 3.0))
    written = bytearray(run.journal.read_bytes())
    written[end + 30 : end + 31] = damage
    run.journal.write_bytes(written)
    assert run.results() == {first.case_id: first, third.case_id: third}
    assert run.unreadable_lines() == 1


def test_a_digit_that_flipped_is_noticed(run: RunFolder) -> None:
    run.append(measured("a", 1.25))
    run.journal.write_text(run.journal.read_text().replace("1.25", "1.35"))
    assert run.results() == {}
    assert run.unreadable_lines() == 1


LINE = measured("a", 1.0).to_json()


@pytest.mark.parametrize(
    "line",
    [
        "{}",
        '{"case_id": "net/eager/inference/fp32/b1/r0"}',
        LINE.replace('"case_id": "a/', '"case_id": "/'),
        LINE.replace('{"case_id"', '{"unknown": 1, "case_id"'),
        LINE.replace('"figures": {', '"figures": {"cache_mib": 3.0'),
        LINE.replace('"host": [1.0]', '"host": ["x"]'),
        LINE.replace('"host": [1.0]', '"host": 7'),
        LINE.replace('"ok"', '"fine"'),
        LINE.replace('"warnings": [', '"warnings": [5, '),
    ],
)
def test_a_line_that_is_no_result_is_left_out(run: RunFolder, line: str) -> None:
    assert line != LINE
    journal.append(run.journal, line)
    run.append(second := measured("b", 2.0))
    assert run.results() == {second.case_id: second}
    assert run.unreadable_lines() == 1


@pytest.mark.parametrize("line", [LINE, "null", "[" * 5000, ""])
def test_a_line_without_its_checksum_is_left_out(run: RunFolder, line: str) -> None:
    run.journal.write_text(line + "\n")
    run.append(second := measured("b", 2.0))
    assert run.results() == {second.case_id: second}
    assert run.unreadable_lines() == bool(line)


def test_texts_that_no_table_can_take_are_escaped(run: RunFolder) -> None:
    kept = run.append(Result(case("a").id, "failed", ["half \ud800, red \x1b[31m, two\nlines"]))
    assert kept.reason == "half \\ud800, red \\x1b[31m, two\nlines"
    results, _ = run.write_parquet("t", [case("a")], {})
    assert results["reason"].to_list() == [kept.reason]


def test_a_row_that_cannot_be_written_is_a_failed_one(run: RunFolder) -> None:
    run.append(measured("a", 1.0))
    run.append(Result(case("b").id, "ok", clock="host", samples={"host": [2.0]}, figures={"flops_per_item": 1e300}))
    odd = Result(case("b").id, "ok", clock="host", samples={"host": [2.0]}, environment={"driver": {"a": 1}})
    run.append(odd)
    results, _ = run.write_parquet("t", [case("a"), case("b")], {})
    assert results["status"].to_list() == ["ok", "failed"]
    assert "cannot be written as a row" in results["reason"][1]


def test_rows_are_in_the_plans_order_with_every_column(run: RunFolder) -> None:
    for model in "cab":
        run.append(measured(model, 3.0, 1.0, 2.0))
    cases = [case(model) for model in "abcd"]
    results, samples = run.write_parquet("suite", cases, {"host": "here", "gpu": None})
    assert results["model"].to_list() == ["a", "b", "c"], "a case without a line has not ended"
    assert dict(results.schema) == RESULTS
    assert dict(samples.schema) == SAMPLES
    assert results["latency_ms"].to_list() == [2.0] * 3
    assert results["warnings"].to_list() == [["outliers: ü, of 3"]] * 3
    assert samples.filter(pl.col("case_id") == str(cases[0].id)).select("index", "ms").rows() == [
        (0, 3.0),
        (1, 1.0),
        (2, 2.0),
    ]
    assert results.equals(pl.read_parquet(run.path / "results.parquet"))


@pytest.mark.parametrize("lost", [{"figures": {"cache_mib": 3.0}}, {"samples": {"host": [1.0], "sundial": [9.0]}}])
def test_what_has_no_column_is_an_error_before_the_next_case_starts(run: RunFolder, lost) -> None:
    with pytest.raises(KeyError, match=r"no column is called '(cache_mib|sundial_ms)'"):
        run.append(Result(case("a").id, "ok", clock="host", **lost))


def test_samples_of_a_failed_case_are_kept_but_give_no_latency(run: RunFolder) -> None:
    run.append(Result(case("a").id, "timeout", ["ended after 8 s"], clock="host", samples={"host": [1.0, 2.0]}))
    results, samples = run.write_parquet("suite", [case("a")], {})
    assert results.select("status", "reason", "latency_ms").rows() == [("timeout", "ended after 8 s", None)]
    assert samples["ms"].to_list() == [1.0, 2.0]


def test_run_without_rows_still_has_the_columns(run: RunFolder) -> None:
    results, samples = run.write_parquet("suite", [case("a")], {})
    assert (len(results), len(samples)) == (0, 0)
    assert dict(pl.read_parquet_schema(run.path / "results.parquet")) == RESULTS
    assert dict(pl.read_parquet_schema(run.path / "samples.parquet")) == SAMPLES
