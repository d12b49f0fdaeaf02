"""Publishing the golden run of the H200 as two runs: pages, data and job, without a trace of the machine's folders."""

from __future__ import annotations

import contextlib
import io
import json
import re
import runpy
import shutil
import sys
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import polars as pl
import pytest
import yaml

from profiler.job.config import load_config
from profiler.results.columns import RESULTS
from profiler.results.ends import WITH_ENDS, ends_of
from profiler.results.warning_kinds import KINDS

ROOT = Path(__file__).resolve().parents[2]
GOLDEN = ROOT / "tests" / "golden" / "h200"
HOST = "gpu-box-17.lab.example"
RUN_ID = "20261120T123125Z-gpu-box-17-8c8{}"
PARTS = (("alexnet", "resnet18"), ("resnet50",))
FAILED = "resnet50/ort/inference/fp16/b16/r0"
REASON = f"RuntimeError: <unknown> in __init__ on {HOST}, see /root/secret/results/{RUN_ID.format(1)}/logs/x.log"
SPEEDUP, LATENCY = "Speed-up (95 %), ×", "Latency (95 %), ms"
ABSOLUTE = re.compile(r"(?<![\w.~/<-])~?/\w[\w.-]*")


def publish(*runs: Path, into: Path) -> CompletedProcess[str]:
    """What the script does, in this process."""
    script, output, code, errors = str(ROOT / "benchmarks" / "publish.py"), io.StringIO(), 0, ""
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(output):
        patch.setattr(sys, "argv", [script, *map(str, runs), "--into", str(into)])
        try:
            runpy.run_path(script, run_name="__main__")
        except SystemExit as end:
            code, errors = 1, str(end.code)
    return CompletedProcess(sys.argv, code, output.getvalue(), errors)


def write_run(folder: Path, number: int, results: pl.DataFrame, samples: pl.DataFrame, **facts: Any) -> None:
    """A run's folder, as run number `number` of a job that lay in /root/secret."""
    folder.mkdir()
    results.write_parquet(folder / "results.parquet")
    samples.join(results.select("case_id"), on="case_id", how="semi").write_parquet(folder / "samples.parquet")
    environment = {
        **{key: results[key][0] for key in ("gpu", "cuda", "driver", "cudnn", "torch_version", "onnxruntime_version")},
        "host": HOST,
        "gpu_uuid": "GPU-secret",
        "device": "cuda",
        "cpu": "Some Processor",
        "python": "3.12.3",
        "platform": "Linux-6.8",
        "command": [
            *("/root/secret/profiler/__main__.py", "/root/secret/jobs/bench.yaml", "--output", "/scratch/runs"),
            *("--only", f"model={results['model'][0]}"),
        ],
        "earlier_commands": [["/root/secret/profiler/__main__.py", "/root/secret/jobs/first.yaml"]],
        "variables": {"CUDA_HOME": "/opt/cuda"},
        "roofs": {"fp32_tflops": 51.5, "copy_gb_s": 4123.0},
        "wall_seconds": {"measure": 30.0 + number, "rest": 10.0},
    }
    (folder / "environment.json").write_text(json.dumps({**environment, **facts}))
    job = {
        "suite": "bench",
        "models": ["alexnet", "resnet18", "resnet50"],
        "engines": ["eager", "ort"],
        "device": f"cuda:{number}",
        "output": "/scratch/runs",
        "import_from": ["/root/secret/jobs"],
    }
    (folder / "bench.yaml").write_text(yaml.safe_dump(job))


@pytest.fixture(scope="module")
def golden() -> tuple[pl.DataFrame, pl.DataFrame]:
    """The golden run on a host with a name of its own, with FLOPs, and with one case that failed."""
    results, samples = (pl.read_parquet(GOLDEN / f"{name}.parquet") for name in ("results", "samples"))
    failed, tflops = pl.col("case_id") == FAILED, 4.1 * pl.col("batch_size") / pl.col("latency_ms")
    return results.with_columns(
        host=pl.lit(HOST),
        tflops=tflops,
        fraction_of_peak=tflops / 500,
        status=pl.when(failed).then(pl.lit("failed")).otherwise("status"),
        reason=pl.when(failed).then(pl.lit(REASON)).otherwise("reason"),
    ), samples


@pytest.fixture(scope="module")
def runs(golden: tuple[pl.DataFrame, pl.DataFrame], tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Two runs, split by model."""
    results, samples = golden
    root = tmp_path_factory.mktemp("runs")
    for number, models in enumerate(PARTS):
        part = results.filter(pl.col("model").is_in(models)).with_columns(run_id=pl.lit(RUN_ID.format(number)))
        write_run(root / str(number), number, part, samples)
    return [root / "0", root / "1"]


@pytest.fixture(scope="module")
def published(runs: list[Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    into = tmp_path_factory.mktemp("published") / "docs" / "h200"
    done = publish(*runs, into=into)
    assert done.returncode == 0, done.stderr
    return into


def tables(page: str) -> dict[str, list[dict[str, str]]]:
    """Every table's rows by its heads, under the heading above it."""
    found: dict[str, list[dict[str, str]]] = {}
    heading, heads = "", None
    for text in page.splitlines():
        if text.startswith("#"):
            heading, heads = text.lstrip("# "), None
        if text.startswith("| "):
            cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", text)[1:-1]]
            if heads is None:
                heads = cells
            elif not set("".join(cells)) <= set("-:"):
                found.setdefault(heading, []).append(dict(zip(heads, cells, strict=True)))
    return found


def number(cell: str) -> float:
    return float(cell.replace(",", "").split()[0])


def test_every_written_file_is_named(published):
    names = {path.name for path in published.iterdir()}
    pages = {f"{model}.md" for models in PARTS for model in models}
    assert names == pages | {"README.md", "environment.json", "bench.yaml", "results.parquet"}


def test_the_readme_names_every_model_and_its_fastest_line(published, golden):
    text = (published / "README.md").read_text()
    found = tables(text)
    ok = golden[0].filter(status="ok")
    every = found["The fastest of each model and batch"]
    for what in ("inference", "training"):
        rows = [row for row in every if row["Pass"] == what]
        assert [row["Model"] for row in rows] == [f"[{m}]({m}.md)" for models in PARTS for m in models for _ in "12"]
        for row in rows:
            group = ok.filter(model=row["Model"][1:].split("]")[0], batch_size=int(row["Batch"])).filter(
                pl.col("pass") == what
            )
            best = group.filter(pl.format("{} {}", "variant", "precision") == row["Fastest"]).row(0, named=True)
            assert best["latency_ms"] < 1.05 * group["latency_ms"].min()
            base = group.row(by_predicate=(pl.col("variant") == "eager") & (pl.col("precision") == "fp32"), named=True)
            assert row["Over"] == "eager fp32"
            assert number(row[LATENCY]) == pytest.approx(best["latency_ms"], rel=5e-3)
            assert number(row[SPEEDUP]) == pytest.approx(base["latency_ms"] / best["latency_ms"], rel=3e-2)
            assert number(row["Items/s"]) == pytest.approx(best["throughput"], rel=5e-4)


def test_the_figures_of_a_page_are_the_parquets(published, golden):
    exact = {
        LATENCY: "latency_ms",
        "Device, ms": "gpu_ms",
        "Items/s": "throughput",
        "TFLOP/s": "tflops",
        "Memory, MiB": "peak_memory_mib",
        "Forward, ms": "forward_ms",
        "Backward, ms": "backward_ms",
    }
    parts = ("Context", "Weights", "Activations", "Other")
    seen = set()
    for model in (model for models in PARTS for model in models):
        for heading, rows in tables((published / f"{model}.md").read_text()).items():
            if heading == "Not measured":
                continue
            what, batch = heading.lower().split(", batch ")
            figures = [number(row[LATENCY]) for row in rows]
            assert figures == sorted(figures)
            for row in rows:
                precision = row["Precision"]
                case = golden[0].row(
                    by_predicate=pl.col("case_id") == f"{model}/{row['Engine']}/{what}/{precision}/b{batch}/r0",
                    named=True,
                )
                seen.add(case["case_id"])
                for head, column in exact.items():
                    if case[column] is None:
                        assert not row.get(head)
                    else:
                        near = (
                            {"rel": 5e-2} if "e-" in row[head] else {"rel": 5e-3, "abs": 0.51 * (head == "Memory, MiB")}
                        )
                        assert number(row[head]) == pytest.approx(case[column], **near)
                split = [number(row[f"{part}, MiB"]) for part in parts]
                assert split == pytest.approx([case[f"{part.lower()}_mib"] for part in parts], abs=0.51)
                assert number(row["Of peak, %"]) == pytest.approx(100 * case["fraction_of_peak"], abs=0.051)
                kinds = {text.partition(":")[0] for text in case["warnings"]}
                assert set(filter(None, row.get("Warnings", "").split(", "))) == kinds
    assert seen == set(golden[0].filter(status="ok")["case_id"])


def test_a_page_is_compact_and_the_readme_explains_its_warnings(published):
    assert len((published / "resnet50.md").read_text().splitlines()) < 100
    meant = {row["Warning"]: row["Meaning"] for row in tables((published / "README.md").read_text())["Warnings"]}
    assert {kind: meant[kind] for kind in ("host-bound", "outliers")} == {
        kind: KINDS[kind].meaning for kind in ("host-bound", "outliers")
    }


def test_what_failed_stands_on_both_pages_as_it_would_be_read(published):
    reason = r"RuntimeError: \<unknown> in \_\_init\_\_ on host, see results/20261120T123125Z-8c81/logs/x.log"
    for page in ("README.md", "resnet50.md"):
        (row,) = tables((published / page).read_text())["Not measured"]
        assert (row["Status"], row["Reason"]) == ("failed", reason)
        assert [row[key] for key in ("Variant", "Precision", "Pass", "Model", "Batches")] == (
            ["ort", "fp16", "inference", "resnet50", "16"]
        )
    assert "Not measured" not in (published / "alexnet.md").read_text()


def test_nothing_names_the_host_or_a_folder_of_the_machine(published):
    strings = pl.read_parquet(published / "results.parquet").with_columns(pl.col("warnings").list.join("\n"))
    texts = {path.name: path.read_text() for path in published.iterdir() if path.suffix != ".parquet"}
    texts["results.parquet"] = strings.select(pl.col(pl.String)).write_csv()
    for name, text in texts.items():
        for word in ("gpu-box-17", "secret", "scratch", "CUDA_HOME"):
            assert word not in text, name
        assert ABSOLUTE.findall(text) == [], name


def test_the_parquet_holds_the_rows_of_both_runs_and_their_columns(published, golden):
    results = pl.read_parquet(published / "results.parquet")
    assert results.height == golden[0].height
    assert results.schema == golden[0].schema
    cleaned = ["run_id", "host", "reason"]
    assert results.drop(cleaned).equals(golden[0].drop(cleaned))
    assert results["host"].null_count() == results.height
    assert set(results["run_id"]) == {"20261120T123125Z-8c80", "20261120T123125Z-8c81"}


def test_the_runs_are_told_with_commands_seconds_and_roofs(published, golden):
    text = (published / "README.md").read_text()
    assert "`python -m profiler jobs/bench.yaml --only model=alexnet`" in text
    assert "`python -m profiler jobs/bench.yaml --only model=resnet50`" in text
    assert "1. `python -m profiler jobs/first.yaml`, then `python -m profiler jobs/bench.yaml" in text
    assert "Took 40 s (measuring" in text
    assert "Took 41 s (measuring" in text
    assert f"120 cases: {golden[0].filter(status='ok').height} ok, 1 failed" in text
    machine = {row["Part"]: row["What"] for row in tables(text)["Machine"]}
    assert machine["Driver"] == golden[0]["driver"][0]
    assert machine["fp32 peak, measured"] == "51.5 TFLOP/s"


def test_the_environment_and_the_job_are_those_of_the_runs(published):
    environment = json.loads((published / "environment.json").read_text())
    assert environment["gpu"] == "NVIDIA H200"
    assert environment["command"][:4] == ["python", "-m", "profiler", "jobs/bench.yaml"]
    assert environment["earlier_commands"] == [["python", "-m", "profiler", "jobs/first.yaml"]]
    assert environment.keys().isdisjoint({"host", "variables"})
    # Runs that differ in their GPU only are one job, which can be run again.
    assert yaml.safe_load((published / "bench.yaml").read_text()).keys().isdisjoint({"output", "import_from"})
    config = load_config(published / "bench.yaml", "cuda")
    assert [model.name for model in config.models] == ["alexnet", "resnet18", "resnet50"]
    assert config.device == "cuda"


def test_publishing_again_takes_away_pages_that_no_run_has_any_more(runs, published, tmp_path):
    into = tmp_path / "h200"
    shutil.copytree(published, into)
    (into / "notes.md").write_text("by hand")
    assert publish(runs[1], into=into).returncode == 0
    assert {path.name for path in into.glob("*.md")} == {"README.md", "resnet50.md", "notes.md"}


def test_a_published_folder_gives_its_own_pages_and_replicates_are_one_line(golden, published, tmp_path):
    before = {path.name: path.read_text() for path in published.glob("*.md")}
    shutil.copytree(published, tmp_path / "again")
    assert publish(tmp_path / "again", into=tmp_path / "again").returncode == 0
    again = {path.name: path.read_text() for path in (tmp_path / "again").glob("*.md")}
    assert {name for name, text in again.items() if text != before[name]} == {"README.md"}, "it was two runs"
    results = golden[0].filter(pl.col("case_id").str.starts_with("resnet50/eager/inf"), batch_size=1)
    many = [
        results.with_columns(
            pl.col("case_id").str.replace("/r0", f"/r{i}"), pl.col("latency_ms") * factor, replicate=pl.lit(i, pl.Int64)
        )
        for i, factor in enumerate((0.98, 1.0, 1.02))
    ]
    write_run(tmp_path / "run", 0, pl.concat(many), golden[1])
    assert publish(tmp_path / "run", into=tmp_path / "into").returncode == 0
    rows = tables((tmp_path / "into" / "resnet50.md").read_text())["Inference, batch 1"]
    ms = dict(results.select("precision", "latency_ms").iter_rows())
    assert {row["Precision"]: number(row[LATENCY]) for row in rows} == pytest.approx(ms, rel=5e-3)
    assert all("(" in row[LATENCY] for row in rows), "with the interval between processes"


def test_runs_that_do_not_belong_together_are_refused(runs, golden, tmp_path):
    results, samples = golden
    write_run(tmp_path / "other", 1, results.filter(model="resnet50"), samples, driver="999.1")
    for refused, why in [
        ([runs[0], tmp_path / "other"], "driver is 580.159.04 in one and 999.1 in another"),
        ([runs[0], runs[0]], "80 cases are in more than one of these runs"),
        ([runs[0], tmp_path / "none"], "lacks results.parquet"),
    ]:
        done = publish(*refused, into=tmp_path / "into")
        assert done.returncode == 1
        assert why in done.stderr
        assert not (tmp_path / "into").exists()


def test_what_is_published_has_todays_columns_and_an_interval_for_each_figure() -> None:
    paths = sorted((ROOT / "docs" / "results").glob("**/results.parquet"))
    assert len(paths) >= 18
    for path in paths:
        rows = pl.read_parquet(path)
        assert list(rows.schema.items()) == list(RESULTS.items()), path
        assert not rows.select("setting", "is_base", "machine").null_count().sum_horizontal().item(), path
        assert set(rows["warnings"].explode().drop_nulls().str.split(":").list.first()) <= set(KINDS), path
        for name in WITH_ENDS:
            low, high = map(pl.col, ends_of(name))
            known = rows.filter(pl.col(name).is_not_null(), status="ok")
            assert known.filter(low <= pl.col(name), pl.col(name) <= high).height == known.height, (path, name)
