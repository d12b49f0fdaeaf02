"""Runs are found by folder, pattern and address, and what cannot be read is said."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import polars as pl
import pytest

sys.path.insert(0, str(Path(__file__).parent))
from object_store import bucket

from profiler import load, load_layers
from profiler.errors import ConfigError
from profiler.results.columns import LAYERS, RESULTS, SAMPLES
from profiler.results.reading import read_runs

ROOT = Path(__file__).resolve().parents[3]
GOLDEN = ROOT / "tests" / "golden"


def write_run(folder: Path, run_id: str | None = None, environment: Any = None, **columns: Any) -> Path:
    """A run of one row and three samples, written by this version."""
    folder.mkdir(parents=True)
    cell = {"model": "a", "engine": "ort", "variant": "ort", "pass": "inference", "precision": "fp32", "batch_size": 1}
    case = {"run_id": run_id or folder.name, "case_id": "a/b", **cell}
    row = {**case, "status": "ok", "latency_ms": 2.0, **columns}
    pl.DataFrame([{name: row.get(name) for name in RESULTS}], schema=RESULTS).write_parquet(folder / "results.parquet")
    sample = {"run_id": row["run_id"], "case_id": "a/b", "clock": "host", "index": 0, "ms": 2.0}
    pl.DataFrame([sample] * 3, schema=SAMPLES).write_parquet(folder / "samples.parquet")
    if environment is not None:
        (folder / "environment.json").write_text(json.dumps(environment))
    return folder


@pytest.fixture
def results(tmp_path: Path) -> Path:
    folder = tmp_path / "results"
    for name in ("first", "second"):
        write_run(folder / name, environment={"gpu": None, "cpu": "Xeon", "machine": {"label": name, "cloud": "here"}})
    return folder


@pytest.mark.parametrize("how", ["folders", "pattern", "slashes", "paths"])
def test_runs_become_one_table(results: Path, how: str) -> None:
    given: list[str | Path] = {
        "folders": [f"{results}/first", f"{results}/second"],
        "pattern": [f"{results}/*"],
        "slashes": [f"{results}/first/", f"{results}/second/"],
        "paths": [results / "first", results / "second"],
    }[how]
    runs = read_runs(given)
    assert runs.results.collect()["run_id"].to_list() == ["first", "second"]
    assert runs.samples.collect().height == 6
    assert [run.name for run in runs.runs] == ["first", "second"]
    assert runs.layers is None
    assert runs.notes == ()
    assert isinstance(runs.results, pl.LazyFrame)


def test_relative_patterns_are_relative_to_where_one_stands(results: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(results.parent)
    assert len(read_runs(["results/*"]).runs) == 2


def test_load_gives_results_and_samples(results: Path) -> None:
    rows, samples = load(f"{results}/*")
    assert (rows.collect().height, samples.collect().height) == (2, 6)


def test_columns_that_are_not_declared_are_left_out(results: Path) -> None:
    path = results / "second" / "results.parquet"
    pl.read_parquet(path).with_columns(pl.lit(1).alias("of_mine")).write_parquet(path)
    assert dict(read_runs([f"{results}/*"]).results.collect_schema()) == RESULTS


def test_a_table_that_lacks_a_column_is_refused(results: Path) -> None:
    path = results / "second" / "results.parquet"
    pl.read_parquet(path).drop("setting").write_parquet(path)
    with pytest.raises(ConfigError, match=r"second/results\.parquet: .*no column setting"):
        read_runs([f"{results}/*"])


def test_environments_are_given_by_run_id(results: Path) -> None:
    found = read_runs([f"{results}/*"]).environments
    assert found["second"]["cpu"] == "Xeon"
    assert found["second"]["machine"] == "second", "what the machine is called"
    assert found["second"]["cloud"] == "here"


def test_results_of_several_runs_in_one_folder_share_its_environment() -> None:
    runs = read_runs([ROOT / "docs" / "results" / "h200"])
    assert len(runs.runs) == 1
    assert len(runs.runs[0].run_ids) == len(runs.environments) == 4
    assert {environment["cpu_cores"] for environment in runs.environments.values()} == {64}
    assert runs.samples.collect().is_empty()
    assert any("samples.parquet" in note for note in runs.notes)


@pytest.mark.parametrize("text", ["{", "[1]", None])
def test_an_environment_that_cannot_be_read_is_said_and_the_columns_stand_in(tmp_path: Path, text: str | None) -> None:
    write_run(tmp_path / "run", driver="580.1")
    if text is not None:
        (tmp_path / "run" / "environment.json").write_text(text)
    runs = read_runs([tmp_path / "run"])
    assert runs.environments["run"]["driver"] == "580.1"
    assert [note for note in runs.notes if "environment.json: cannot be read" in note and "stand in" in note]


def test_a_run_that_is_given_twice_counts_once(results: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(results / "first", tmp_path / "copy")
    runs = read_runs([results / "first", copy, f"{results}/*"])
    assert runs.results.collect()["run_id"].to_list() == ["first", "second"]
    assert runs.samples.collect().height == 6
    assert [run.address for run in runs.runs] == [str(results / "first"), str(results / "second")]
    assert len([note for note in runs.notes if "first is given twice; it counts once" in note]) == 2


def test_of_a_folder_that_shares_a_run_the_rest_counts(results: Path, tmp_path: Path) -> None:
    both = write_run(tmp_path / "both")
    pl.concat([pl.read_parquet(results / name / "results.parquet") for name in ("first", "second")]).write_parquet(
        both / "results.parquet"
    )
    pl.concat([pl.read_parquet(results / name / "samples.parquet") for name in ("first", "second")]).write_parquet(
        both / "samples.parquet"
    )
    runs = read_runs([results / "first", both])
    assert runs.results.collect()["run_id"].to_list() == ["first", "second"]
    assert runs.samples.collect()["run_id"].value_counts(sort=True)["count"].to_list() == [3, 3]


def test_names_are_as_long_as_they_need_to_be(tmp_path: Path) -> None:
    for name in ("main/run", "branch/run", "other"):
        write_run(tmp_path / name, run_id=name)
    names = [run.name for run in read_runs([tmp_path / n for n in ("main/run", "branch/run", "other")]).runs]
    assert len(set(names)) == 3
    assert names[:2] == ["main/run", "branch/run"]


def test_layers_are_read_where_a_run_has_them(results: Path) -> None:
    row = {"run_id": "first", "case_id": "a/b", "order": 0, "layer": "conv", "kind": "Conv", "nodes": [], "ms": 1.0}
    row["share"] = 1.0
    pl.DataFrame([row], schema=LAYERS).write_parquet(results / "first" / "layers.parquet")
    layers = read_runs([f"{results}/*"]).layers
    assert layers is not None
    assert layers.collect()["layer"].to_list() == ["conv"]
    assert load_layers(f"{results}/*").collect().height == 1
    assert load_layers(results / "second").collect().is_empty()


def test_a_pattern_passes_over_what_is_no_finished_run(results: Path) -> None:
    (results / "unfinished").mkdir()
    (results / "unfinished" / "journal.jsonl").touch()
    (results / "unfinished" / "bench.yaml").write_text("{models: [alexnet], engines: [eager], device: cpu}")
    (results / "a file").touch()
    runs = read_runs([f"{results}/*"])
    assert len(runs.runs) == 2
    assert len(runs.notes) == 1
    assert "--resume" in runs.notes[0]


def damaged(tmp_path: Path, what: str) -> str:
    folder = tmp_path / "run"
    if what == "nothing matches":
        return f"{tmp_path}/nothing*"
    if what == "there is no folder":
        return f"{tmp_path}/missing"
    folder.mkdir()
    if what == "was ended":
        (folder / "journal.jsonl").touch()
        (folder / "bench.yaml").write_text("{models: [alexnet], engines: [eager], device: cpu}")
        (folder / "environment.json").write_text('{"device": "cpu"}')
    if what == "is empty":
        pl.DataFrame(schema=RESULTS).write_parquet(folder / "results.parquet")
    if what == "is damaged":
        (folder / "results.parquet").write_bytes(b"PAR1 and then nothing that can be read PAR1")
    if what == "is foreign":
        pl.DataFrame({"a": [1]}).write_parquet(folder / "results.parquet")
    return str(folder)


@pytest.mark.parametrize(
    ("what", "said"),
    [
        ("nothing matches", "no folder with a results.parquet matches"),
        ("there is no folder", "there is no such folder"),
        ("no run", r"not a run folder \(no results.parquet\)"),
        ("was ended", "ended before it had measured anything; finish it: .*--resume"),
        ("is empty", "this run is empty"),
        ("is damaged", "results.parquet: cannot be read"),
        ("is foreign", "no column run_id"),
    ],
)
def test_what_is_no_run_is_a_config_error_that_says_where_and_what_to_give(
    tmp_path: Path, what: str, said: str
) -> None:
    address = damaged(tmp_path, what)
    with pytest.raises(ConfigError, match=said) as error:
        read_runs([address])
    assert address in str(error.value)
    assert "give a run's folder" in str(error.value) or "--resume" in str(error.value)


def test_no_run_at_all_is_a_config_error() -> None:
    with pytest.raises(ConfigError, match="no run is given"):
        read_runs([])


@pytest.fixture
def store(results: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    with bucket(results.parent) as endpoint:
        for name, value in {
            "AWS_ENDPOINT_URL": endpoint,
            "AWS_ACCESS_KEY_ID": "a",
            "AWS_SECRET_ACCESS_KEY": "b",
            "AWS_REGION": "us-east-1",
            "AWS_ALLOW_HTTP": "true",
        }.items():
            monkeypatch.setenv(name, value)
        # Polars remembers within a process what an address held.
        yield f"s3://{results.parent.name.replace('_', '-')}/results"


@pytest.mark.parametrize("pattern", ["/*", "/first"])
def test_runs_are_read_from_an_object_store(store: str, pattern: str) -> None:
    runs = read_runs([f"{store}{pattern}"])
    names = ["first", "second"] if pattern == "/*" else ["first"]
    assert [run.name for run in runs.runs] == names
    assert runs.results.collect()["run_id"].to_list() == names
    assert runs.samples.collect().height == 3 * len(names)
    assert runs.environments["first"]["cpu"] == "Xeon"
    assert runs.notes == ()


def test_an_object_store_without_environment_is_read_all_the_same(store: str, results: Path) -> None:
    (results / "first" / "environment.json").unlink()
    (results / "first" / "samples.parquet").unlink()
    runs = read_runs([f"{store}/first"])
    assert runs.results.collect().height == 1
    assert runs.samples.collect().is_empty()
    assert sorted(note.split(": ")[0].removeprefix(f"{store}/first") for note in runs.notes) == [
        "",
        "/environment.json",
    ]


@pytest.mark.parametrize("address", ["/missing", "/missing/*"])
def test_an_address_that_holds_nothing_is_a_config_error(store: str, address: str) -> None:
    with pytest.raises(ConfigError, match=r"s3://.*/results/missing.*cannot be read"):
        read_runs([f"{store}{address}"])
