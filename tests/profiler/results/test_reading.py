"""Runs are found by folder, pattern and address, and what cannot be read is said."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import handmade
import polars as pl
import pytest

from profiler import load, load_layers
from profiler.errors import ConfigError
from profiler.results.columns import LAYERS, RESULTS, SAMPLES
from profiler.results.reading import read_runs

ROOT = Path(__file__).resolve().parents[3]


def write_run(folder: Path, run_id: str | None = None, environment: Any = None, **columns: Any) -> Path:
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


@pytest.mark.parametrize("given", [["first", "second"], ["*"], ["first/", "second/"], ["./*"]])
def test_runs_become_one_table(results, given, monkeypatch):
    path = results / "second" / "results.parquet"
    pl.read_parquet(path).with_columns(pl.lit(1).alias("of_mine")).write_parquet(path)
    monkeypatch.chdir(results)
    runs = read_runs(given)
    assert dict(runs.results.collect_schema()) == RESULTS, "columns that are not declared are left out"
    assert runs.results.collect()["run_id"].to_list() == ["first", "second"]
    assert runs.samples.collect().height == 6
    assert [run.name for run in runs.runs] == ["first", "second"]
    assert runs.layers.collect().is_empty()
    assert runs.notes == ()
    second = runs.environments["second"]
    assert (second["cpu"], second["machine"], second["cloud"]) == ("Xeon", "second", "here")
    rows, samples = load(*given)
    assert (rows.collect().height, samples.collect().height) == (2, 6)


def test_results_of_several_runs_in_one_folder_share_its_environment():
    runs = read_runs([ROOT / "docs" / "results" / "h200"])
    assert len(runs.runs) == 1
    assert len(runs.runs[0].run_ids) == len(runs.environments) == 2
    assert {environment["cpu_cores"] for environment in runs.environments.values()} == {16}
    assert runs.samples.collect().is_empty()


def test_the_columns_stand_in_for_an_environment_that_is_missing(tmp_path):
    path = write_run(tmp_path / "run", driver="580.1") / "environment.json"
    assert read_runs([path.parent]).environments["run"]["driver"] == "580.1"
    for text in ("{", "[1]"):
        path.write_text(text)
        with pytest.raises(ConfigError, match=r"environment\.json: cannot be read"):
            read_runs([path.parent])


def test_a_run_that_is_given_twice_counts_once(results, tmp_path):
    copy, both = shutil.copytree(results / "first", tmp_path / "copy"), write_run(tmp_path / "both")
    for file in ("results.parquet", "samples.parquet"):
        pl.concat([pl.read_parquet(results / name / file) for name in ("first", "second")]).write_parquet(both / file)
    for given in ([results / "first", copy, f"{results}/*"], [results / "first", copy, both]):
        runs = read_runs(given)
        assert runs.results.collect()["run_id"].to_list() == ["first", "second"]
        assert runs.samples.collect()["run_id"].value_counts(sort=True)["count"].to_list() == [3, 3]
        assert len([note for note in runs.notes if "first is given twice; it counts once" in note]) == 2


def test_layers_are_read_where_a_run_has_them(results):
    row = {"run_id": "first", "case_id": "a/b", "order": 0, "layer": "conv", "kind": "Conv", "nodes": [], "ms": 1.0}
    row["share"] = 1.0
    pl.DataFrame([row], schema=LAYERS).write_parquet(results / "first" / "layers.parquet")
    layers = read_runs([f"{results}/*"]).layers
    assert layers.collect()["layer"].to_list() == ["conv"]
    assert load_layers(f"{results}/*").collect().height == 1
    assert load_layers(results / "second").collect().is_empty()


def test_a_pattern_passes_over_what_is_no_finished_run(results):
    (results / "unfinished").mkdir()
    (results / "unfinished" / "journal.jsonl").touch()
    (results / "unfinished" / "bench.yaml").write_text("{models: [alexnet], engines: [eager], device: cpu}")
    (results / "a file").touch()
    (results / "nothing").mkdir()
    empty(**RESULTS)(results / "nothing")
    runs = read_runs([f"{results}/*"])
    assert len(runs.runs) == 2
    left_out, no_rows = runs.notes
    assert "--resume" in left_out
    assert "this run is empty" in no_rows


def empty(**schema: Any) -> Callable[[Path], object]:
    return lambda folder: pl.DataFrame(schema=schema).write_parquet(folder / "results.parquet")


DAMAGES: dict[str, tuple[Callable[[Path], object], str]] = {
    "no folder": (Path.rmdir, "no run's folder"),
    "no run": (lambda _: None, "no run's folder"),
    "ended": (lambda run: (run / "bench.yaml").touch(), "no results yet; finish it: .*--resume"),
    "empty": (empty(**RESULTS), "this run is empty"),
    "damaged": (lambda run: (run / "results.parquet").write_bytes(b"PAR1 none PAR1"), "parquet: cannot be read"),
    "foreign": (empty(**RESULTS | {"setting": pl.Int64()}), "column setting is not of type String"),
    "lacking": (empty(a=pl.Int64()), "column run_id"),
}


def test_columns_that_an_earlier_version_lacked_are_null(tmp_path):
    results, _ = handmade.run(handmade.row("ort"))
    results.drop("worst", "drawn").write_parquet(tmp_path / "results.parquet")
    (tmp_path / "bench.yaml").touch()
    found = read_runs([tmp_path]).results.collect()
    assert found.equals(results.select(found.columns)), "those are null in it, too"


@pytest.mark.parametrize("what", DAMAGES)
def test_what_is_no_run_is_a_config_error_that_says_where_and_what_to_give(tmp_path, what):
    damage, said = DAMAGES[what]
    (tmp_path / "run").mkdir()
    damage(tmp_path / "run")
    with pytest.raises(ConfigError, match=said) as error:
        read_runs([tmp_path / "run"])
    assert str(tmp_path / "run") in str(error.value)
    assert "give a run's folder" in str(error.value) or "--resume" in str(error.value)


@pytest.mark.parametrize(("given", "said"), [([], "no run is given"), (["nothing*"], "no run's folder")])
def test_no_run_at_all_is_a_config_error(given, said):
    with pytest.raises(ConfigError, match=f"{said}.*; give a run's folder"):
        read_runs(given)


def test_a_csv_file_holds_cells(tmp_path):
    rows = [handmade.row("eager", replicate=n, warnings=["drift: it moved", "outliers: many"]) for n in range(2)]
    handmade.frame(rows).write_parquet(tmp_path / "results.parquet")
    cells = load(str(tmp_path), cells=True)[0].collect()
    assert cells["footnotes"].to_list() == ["drift, outliers"]
    assert pl.read_csv(cells.write_csv().encode())["case_ids"][0].count(", ") == 1
