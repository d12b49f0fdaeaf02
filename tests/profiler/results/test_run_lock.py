"""Who may write into a run's folder, and what readers are told meanwhile: locks that other processes really hold."""

from __future__ import annotations

import errno
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from profiler import load
from profiler.errors import ConfigError
from profiler.job.config import load_config
from profiler.job.plan import make_plan
from profiler.results.reading import read_runs
from profiler.results.result import Result
from profiler.results.run_folder import RunFolder
from profiler.results.run_lock import writer, writing

ROOT = Path(__file__).resolve().parents[3]
JOB = "{models: [alexnet, resnet18], engines: [eager], precisions: [fp32], device: cpu}"
HOLD = """
import sys
from pathlib import Path
from profiler.results.run_lock import writing
with writing(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    """Two cases are planned, one is measured; no table is written."""
    job = tmp_path / "job.yaml"
    job.write_text(JOB)
    config = load_config(job, "cpu")
    run = RunFolder.create(tmp_path / "results")
    run.write_config(config)
    run.write_environment({"device": "cpu", "cpu": "a processor"})
    first = make_plan(config, "cpu")[0]
    run.append(Result(first.id, "ok", clock="host", samples={"host": [1.0, 2.0, 3.0]}))
    return run


@pytest.fixture
def other(run: RunFolder) -> Iterator[subprocess.Popen[str]]:
    """Another process that measures into the run's folder."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(run.path)], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    yield process
    process.kill()
    process.communicate()


def test_a_run_that_was_ended_early_is_read_as_far_as_it_is(run: RunFolder) -> None:
    results, samples = load(run.path)
    assert results.collect()["latency_ms"].to_list() == [2.0]
    assert samples.collect()["ms"].to_list() == [1.0, 2.0, 3.0]
    (note,) = read_runs([run.path]).notes
    assert "ended early, after 1 of 2 cases; finish it" in note
    assert f"--resume {run.path}" in note


def test_a_run_of_which_only_the_tables_are_missing_says_so(run: RunFolder) -> None:
    plan = make_plan(load_config(run.path / "bench.yaml"), "cpu")
    run.append(Result(plan[1].id, "failed", ["why"]))
    assert load(run.path)[0].collect()["status"].to_list() == ["ok", "failed"]
    (missing,) = read_runs([run.path]).notes
    assert "all of 2 cases have been measured, only the tables are missing; write them: " in missing


def test_a_run_that_lost_its_environment_is_read_too(run: RunFolder) -> None:
    (run.path / "environment.json").unlink()
    assert load(run.path)[0].collect()["device"].to_list() == ["cpu"]
    assert any("environment.json: cannot be read" in note for note in read_runs([run.path]).notes)


def test_damage_of_the_journal_is_told_to_readers(run: RunFolder) -> None:
    with run.journal.open("ab") as file:
        file.write(b"\xff\n")
    assert any("1 line cannot be read" in note for note in read_runs([run.path]).notes)


def test_a_lock_is_the_holders_own_and_goes_with_it(run: RunFolder) -> None:
    with writing(run.path):
        assert writer(run.path) is None
    with writing(run.path):
        pass


def test_a_disk_that_takes_no_more_says_how_to_go_on(run: RunFolder) -> None:
    with pytest.raises(ConfigError) as raised, writing(run.path):
        raise OSError(errno.ENOSPC, "No space left on device", "/a/results.parquet")
    assert str(raised.value).startswith("/a/results.parquet: No space left on device; ")
    assert f"--resume {run.path}" in str(raised.value)


def test_another_error_of_a_file_is_not_taken_for_that(run: RunFolder) -> None:
    with pytest.raises(FileNotFoundError), writing(run.path):
        raise FileNotFoundError(errno.ENOENT, "No such file", "/a")


@pytest.mark.slow
def test_while_another_process_measures_readers_read_and_nobody_else_writes(
    run: RunFolder, other: subprocess.Popen[str], profiler, tmp_path: Path
) -> None:
    (note,) = read_runs([run.path]).notes
    assert f"process {other.pid}, since 20" in note
    assert "these are 1 of 2 cases" in note
    refused = profiler("--resume", str(run.path), cwd=tmp_path)
    assert refused.returncode == 2
    assert f"process {other.pid}, since 20" in refused.stderr
    assert "wait until that ends" in refused.stderr
    other.kill()
    other.wait()
    assert writer(run.path) is None
    with writing(run.path):
        pass
