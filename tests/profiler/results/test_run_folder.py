"""A run's folder: its journal after retries and crashes, its lock, its tables, and whose code is called."""

from __future__ import annotations

import errno
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import handmade
import numpy as np
import polars as pl
import pytest

from engines.base import Warning
from exporters.source import Identity, ModelSource
from profiler.errors import ConfigError
from profiler.job.case import Case
from profiler.job.config import Config, config_of, load_config
from profiler.job.plan import make_plan
from profiler.machine.target import host_and_user
from profiler.options import Run
from profiler.recommend.artifact import _source
from profiler.results.cells import cells
from profiler.results.columns import LARGEST_BATCH, RESULTS, SAMPLES
from profiler.results.reading import read_runs
from profiler.results.result import Result
from profiler.results.run_folder import RunFolder, append_line, write_tables, writing
from profiler.run.command import open_job, read_job

ROOT = Path(__file__).resolve().parents[3]


def case(model: str) -> Case:
    return Case(model, "eager", "eager", "inference", "fp32", 1, "cpu", 0, ModelSource(model))


def measured(model: str, *ms: float, **more: Any) -> Result:
    warnings = [Warning("outliers", "ü, of 3")]
    return Result(case(model).id, "ok", clock="host", samples={"host": list(ms)}, warnings=warnings, **more)


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    return RunFolder.create(tmp_path / "results")


def test_a_folder_is_named_by_time_host_and_four_digits(run, tmp_path):
    assert re.fullmatch(r"\d{8}T\d{6}Z-.+-[0-9a-f]{4}", run.run_id)
    assert run.logs.is_dir() and run.results() == {}
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match=r"file: cannot be written: .*--output"):
        RunFolder.create(tmp_path / "file")
    with pytest.raises(ConfigError, match="--resume"):
        RunFolder.resume(tmp_path)


def test_the_last_line_of_a_case_counts(run):
    run.append(Result(case("a").id, "failed", ["no luck"]))
    run.append(second := Result(case("b").id, "oom", ["no memory"], samples={"host": [3.0]}))
    run.append(again := measured("a", 2.0))
    assert run.results() == {again.case_id: again, second.case_id: second}


def test_a_line_keeps_where_it_was_measured(run):
    run.write_environment({"host": "first", "gpu": None, "driver": "1.0", "command": ["profiler"]})
    run.append(measured("a", 1.0))
    run.write_environment({"host": "second", "gpu": None, "driver": "2.0"})
    (result,) = run.results().values()
    assert result.environment == {"host": "first", "gpu": None, "driver": "1.0"}
    run.append(result)
    assert run.results()[result.case_id] == result


def test_models_are_recorded(run):
    first = Identity({"state": "1"})
    run.write_models({"mine": first})
    run.write_models({"other": Identity({})})
    assert run.read_models() == {"mine": first, "other": Identity({})}


@pytest.mark.parametrize("cut", [1, 20, 40, -1])
def test_a_line_cut_off_by_a_crash_costs_nothing_else(run, cut):
    run.append(first := measured("a", 1.0))
    with run.journal.open("a") as file:
        file.write(measured("b", 2.0).to_json()[:cut])
    assert run.results() == {first.case_id: first}
    run.append(third := measured("b", 3.0))
    assert run.results() == {first.case_id: first, third.case_id: third}


def test_an_interrupt_once_a_line_is_on_the_disk_loses_no_row(run, monkeypatch):
    def interrupt(_: int) -> None:
        raise KeyboardInterrupt

    run.append(first := measured("a", 1.0))
    monkeypatch.setattr("profiler.results.run_folder.os.fsync", interrupt)
    with pytest.raises(KeyboardInterrupt):
        run.append(second := measured("b", 2.0))
    assert run.results() == {first.case_id: first, second.case_id: second}


LINE = measured("a", 1.0).to_json()


@pytest.mark.parametrize(
    "line",
    [
        "{}",
        '{"case_id": "net/eager/inference/fp32/b1/r0"}',
        LINE.replace('{"case_id"', '{"unknown": 1, "case_id"'),
        LINE.replace('"figures": {', '"figures": {"cache_mib": 3.0'),
        LINE.replace('"figures": {', '"figures": {"flops_per_item": -32.0, '),
        LINE.replace('"host": [1.0]', '"host": ["x"]'),
        LINE.replace('"ok"', '"fine"'),
        LINE.replace('"warnings": [', '"warnings": [5, '),
    ],
)
def test_a_line_that_is_no_result_is_left_out(run, line):
    assert line != LINE
    append_line(run.journal, line)
    with run.journal.open("a") as file:
        file.write(f"null\n\n{'[' * 5000}\n")
    run.append(second := measured("b", 2.0))
    assert run.results() == {second.case_id: second}
    assert run.damaged == 1


def test_a_damaged_try_costs_nothing_else(run):
    for batch in (1, 2):
        run.append_try(replace(case("a"), batch_size=batch), measured("a", 1.0))
        append_line(run.path / "largest_batch.jsonl", '{"batch_size": 3, "sta\x07}')
    assert run.largest_batches()["batch_size"].to_list() == [1, 2]


def test_what_no_reader_takes_is_a_failed_row_or_escaped(run):
    wrong = [{"samples": {"host": [float("nan")]}}, {"figures": {"load_s": "long"}}]
    for bad in (*wrong, {"figures": {"load_s": np.float32(1.0)}}):
        kept = run.append(Result(case("a").id, "ok", clock="host", **bad))
        assert kept.status == "failed" and "its figures cannot be kept: " in str(kept.reason)
        assert run.results() == {kept.case_id: kept}
    kept = run.append(Result(case("a").id, "failed", ["half \ud800, red \x1b[31m, two\nlines\u2028\x85"]))
    assert kept.reason == "half \\ud800, red \\x1b[31m, two\nlines\u2028\\x85"
    results, _ = run.write_parquet("t", [case("a")], {})
    assert results["reason"].to_list() == [kept.reason]
    for lost in ({"figures": {"cache_mib": 3.0}}, {"samples": {"host": [1.0], "sundial": [9.0]}}):
        with pytest.raises(KeyError, match=r"no column is called '(cache_mib|sundial_ms)'"):
            run.append(Result(case("a").id, "ok", clock="host", **lost))


def test_rows_are_in_the_plans_order_with_every_column(run):
    for model in "cab":
        run.append(measured(model, 3.0, 1.0, 2.0))
    run.append(Result(case("e").id, "timeout", ["ended after 8 s"], clock="host", samples={"host": [1.0, 2.0]}))
    cases = [case(model) for model in "abcde"]
    results, ended = run.write_parquet("suite", cases, {"host": "here", "gpu": None})
    samples = pl.read_parquet(run.path / "samples.parquet")
    assert [case_ for case_, _ in ended] == [cases[number] for number in (0, 1, 2, 4)]
    assert results["model"].to_list() == ["a", "b", "c", "e"], "a case without a line has not ended"
    assert (dict(results.schema), dict(samples.schema)) == (RESULTS, SAMPLES)
    assert results["latency_ms"].to_list() == [2.0, 2.0, 2.0, None]
    assert results["warnings"].to_list()[0] == ["outliers: ü, of 3"]
    own = samples.filter(pl.col("case_id") == str(cases[0].id))
    assert own.select("index", "ms").rows() == [(0, 3.0), (1, 1.0), (2, 2.0)]
    assert results.equals(pl.read_parquet(run.path / "results.parquet"))
    empty, none = RunFolder.create(run.path.parent).write_parquet("suite", cases, {})
    assert (empty.schema, len(empty), none) == (results.schema, 0, [])


@pytest.fixture
def begun(tmp_path: Path) -> RunFolder:
    """Make a run of two planned cases, of which one is measured; no table is written."""
    job = tmp_path / "job.yaml"
    job.write_text("{models: [alexnet, resnet18], engines: [eager], precisions: [fp32], device: cpu}")
    config = load_config(job, "cpu")
    run = RunFolder.create(tmp_path / "results")
    run.write_config(config)
    run.write_environment({"device": "cpu", "cpu": "a processor"})
    run.append(Result(make_plan(config, "cpu")[0].id, "ok", clock="host", samples={"host": [1.0, 2.0, 3.0]}))
    return run


def test_a_lock_goes_with_its_holder_and_a_full_disk_says_how_to_go_on(begun):
    for _ in range(2):
        with writing(begun.path):
            pass
    with pytest.raises(ConfigError) as raised, writing(begun.path):
        raise OSError(errno.ENOSPC, "No space left on device", "/a/results.parquet")
    assert str(raised.value).startswith("/a/results.parquet: No space left on device; ")
    assert f"--resume {begun.path}" in str(raised.value)
    with pytest.raises(FileNotFoundError), writing(begun.path):
        raise FileNotFoundError(errno.ENOENT, "No such file", "/a")


HOLD = """
import sys
from pathlib import Path
from profiler.results.run_folder import writing
with writing(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.mark.slow
def test_while_another_process_measures_nobody_else_writes(begun, profiler, tmp_path):
    command = [sys.executable, "-c", HOLD, str(begun.path)]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, cwd=ROOT, stdin=pipe, stdout=pipe, text=True) as other:
        try:
            assert other.stdout is not None and other.stdout.readline() == "held\n"
            with pytest.raises(ConfigError, match=r"no results yet; finish it: .*--resume"):
                read_runs([begun.path])
            refused = profiler("--resume", str(begun.path), cwd=tmp_path)
            assert refused.returncode == 2
            assert "another process measures into it; wait until that ends" in refused.stderr
        finally:
            other.kill()
    with writing(begun.path):
        pass


FACTORY = {"name": "mine", "factory": "evil:make", "input": [8]}


def own(folder: Path, **job: Any) -> RunFolder:
    """Make an own run whose code, a saved module, is in its folder."""
    run = RunFolder(folder / "results" / "run")
    (run.path / "model").mkdir(parents=True, exist_ok=True)
    run.write_config(config_of({"device": "cpu", "engines": ["eager"], "import_from": [run.path / "model"], **job}))
    run.write_environment(host_and_user())
    return run


def read(options: Run) -> Config:
    return read_job(options, open_job(options), "cpu")


@pytest.mark.parametrize("changed", [{"host": "elsewhere"}, {"user": "somebody else"}, {"user": None}, None])
@pytest.mark.parametrize(
    ("job", "named"),
    [
        ({"models": [FACTORY]}, r"evil:make \(of mine\) from .*model"),
        ({"models": ["resnet18"]}, None),
    ],
)
def test_only_trust_code_resumes_another_ones_run(tmp_path, changed, job, named):
    run = own(tmp_path, **job)
    assert read(Run(resume=run.path)).import_from == [run.path / "model"]
    if changed is None:
        (run.path / "environment.json").unlink()
    else:
        run.write_environment({**host_and_user(), **changed})
    if named is None:
        assert read(Run(resume=run.path)).import_from == [], "no folder of code comes with it"
        return
    with pytest.raises(ConfigError, match=rf"another host or user .*{named}.*--trust-code"):
        read(Run(resume=run.path))
    trusted = read(Run(resume=run.path, trust_code=True))
    assert trusted.import_from == [run.path / "model"]


def test_an_export_asks_for_the_code_of_its_own_model_alone(tmp_path):
    run = own(tmp_path, models=[FACTORY, "resnet18"])
    path, row = run.path / "bench.yaml", {"model": "mine", "shape": None, "variant": "eager", "engine": "eager"}
    assert _source(load_config(path), row, path, trust_code=False)[1] == (str(run.path / "model"),)
    run.write_environment({**host_and_user(), "user": "somebody else"})
    with pytest.raises(ConfigError, match=r"--export: another host or user made this run.*evil:make"):
        _source(load_config(path), row, path, trust_code=False)
    assert _source(load_config(path), row, path, trust_code=True)[0].factory == "evil:make"
    assert _source(load_config(path), {**row, "model": "resnet18"}, path, trust_code=False)[1] == ()


def test_tables_are_csv_with_all_digits(tmp_path):
    row = handmade.row
    results, _ = handmade.run(
        row("eager", ms=6.123456789, warnings=["outliers: 3", "host-bound: a; b"]),
        row("ort", ms=3.0, rel_l2_error=3.2e-7, peak_memory_mib=123.4),
        row("ort", "tf32", ms=None, status="unsupported", reason="no TF32"),
        row("compiled", ms=None, reason="expected Tensor | None,\nwhich is a long story: " + "x" * 1500),
        row("eager", model="L1", model_kind="layer", **{"pass": "training"}, forward_ms=1.0, machine="here"),
    )
    tried = {"run_id": "run", "model": "net", "variant": "eager", "status": "ok", "batch_size": 7}
    write_tables(tmp_path, results, cells(results), pl.DataFrame([tried], schema=LARGEST_BATCH))
    read = {path.stem: pl.read_csv(path) for path in tmp_path.glob("*.csv")}
    assert {name: len(frame) for name, frame in read.items()} == {
        "latency": 3,
        "memory": 3,
        "speedup": 3,
        "not-measured": 2,
        "layer-passes": 1,
        "largest-batch": 1,
    }
    assert read["latency"]["latency_ms"].to_list()[:2] == [6.123456789, 3.0]
    assert read["latency"]["warnings"][0] == "outliers: 3; host-bound: a; b"
    assert read["speedup"]["factor"][1] == pytest.approx(6.123456789 / 3)
    assert "x" * 1500 in read["not-measured"]["reason"][1]
    assert read["latency"]["rel_l2_error"][1] == 3.2e-7
    nothing, _ = handmade.run(row("ort", ms=None, reason="no"))
    write_tables(tmp_path, nothing, cells(nothing))
    assert [pl.read_csv(tmp_path / f"{name}.csv").height for name in ("latency", "not-measured")] == [0, 1]
