"""The golden run of an H200, published as two runs: its page and its rows."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import handmade
import polars as pl
import pytest

from benchmarks.publish import publish
from profiler.errors import ConfigError
from profiler.results.columns import RESULTS
from profiler.results.result import WITH_ENDS, ends_of

GOLDEN = Path(__file__).resolve().parents[1] / "golden" / "h200"
PARTS = (["alexnet", "resnet18"], ["resnet50"])
FAILED = "resnet50/ort/inference/fp16/b16/r0"


@pytest.fixture(scope="module")
def results() -> pl.DataFrame:
    failed = pl.col("case_id") == FAILED
    return pl.read_parquet(GOLDEN / "results.parquet").with_columns(
        status=pl.when(failed).then(pl.lit("failed")).otherwise("status"),
        reason=pl.when(failed).then(pl.lit("RuntimeError: <unknown> in /root/secret/x.py")).otherwise("reason"),
    )


@pytest.fixture(scope="module")
def runs(results: pl.DataFrame, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folders = []
    for number, models in enumerate(PARTS):
        folders.append(tmp_path_factory.mktemp("run"))
        part = results.filter(pl.col("model").is_in(models)).with_columns(run_id=pl.lit(f"run{number}"))
        part.write_parquet(folders[-1] / "results.parquet")
        facts = {"gpu": "NVIDIA H200", "device": "cuda", "cpu": "Xeon", "command": ["/x/__main__.py", "bench.yaml"]}
        (folders[-1] / "environment.json").write_text(json.dumps(facts))
        job = "models: [alexnet]\ndevice: cuda:3\nimport_from:\n- /root/secret\noutput: /scratch/runs\n"
        (folders[-1] / "bench.yaml").write_text(job)
    return folders


def test_two_runs_are_one_page_with_every_cell(runs, results, tmp_path):
    publish(runs, tmp_path)
    assert (tmp_path / "bench.yaml").read_text() == "models: [alexnet]\ndevice: cuda\n"
    rows = pl.read_parquet(tmp_path / "results.parquet")
    made_anew = {end for name in WITH_ENDS for end in ends_of(name)} | {*handmade.KNOWN}
    kept = [
        name for name in results.columns if name not in ("run_id", "reason", "host", "log") and name not in made_anew
    ]
    assert rows.columns == list(RESULTS)
    assert rows.select(kept).equals(results.select(kept))
    assert rows.select(*handmade.KNOWN).null_count().row(0) == (len(rows),) * 4, "these runs do not show any spread"
    text = (tmp_path / "README.md").read_text()
    assert text.count("`python -m profiler bench.yaml`: ") == 2
    ok = results.filter(status="ok")
    for (model, pass_), part in ok.group_by("model", "pass"):
        (table,) = re.findall(rf"<summary>{model}, {pass_}[^<]*</summary>\n\n(.*?)\n\n</details>", text, re.DOTALL)
        lines = [[cell.strip() for cell in line[2:-2].split(" | ")] for line in table.splitlines()[2:]]
        shown = {(line[0], int(line[1])): float(line[2].split()[0].replace(",", "")) for line in lines}
        known = {(f"{r['variant']} {r['precision']}", r["batch_size"]): r["latency_ms"] for r in part.to_dicts()}
        assert shown == pytest.approx(known, rel=5e-3)
    winners = text.split("## The lowest latency")[1].split("##")[0]
    assert winners.count("\n| ") == 2 + len(ok.select("model", "pass", "batch_size").unique())
    (failed,) = re.findall(r"\| failed \|.*", text)
    assert r"| ort | inference | fp16 | 16 | resnet50 | RuntimeError: \<unknown> in x.py |" in failed
    assert "are not kept" not in text
    assert re.findall(r"<summary>(\w+), inference", text) == ["alexnet", "resnet18", "resnet50"]


def test_a_page_names_a_reason_once_and_the_jobs_that_are_gone(results, runs, tmp_path):
    shutil.copytree(runs[0], tmp_path / "run")
    lacking = pl.col("engine") == "ort"
    rows = results.reverse().with_columns(
        status=pl.when(lacking).then(pl.lit("unsupported")).otherwise("status"),
        reason=pl.when(lacking).then(pl.lit("no such provider")).otherwise("reason"),
    )
    rows.write_parquet(tmp_path / "run" / "results.parquet")
    facts = json.loads((runs[0] / "environment.json").read_text())
    commands = [["/x/__main__.py", name] for name in ("first.yaml", "second.yaml")]
    facts |= {"earlier_commands": commands[:1], "command": commands[1]}
    (tmp_path / "run" / "environment.json").write_text(json.dumps(facts))
    publish([tmp_path / "run"], tmp_path / "page")
    text = (tmp_path / "page" / "README.md").read_text()
    variants, precisions = (set(results.filter(engine="ort")[name]) for name in ("variant", "precision"))
    absent = [line for line in text.splitlines() if "no such provider" in line]
    assert len(absent) == 1 and "| alexnet, resnet18, resnet50 |" in absent[0]
    assert all(word in absent[0] for word in variants | precisions)
    assert re.findall(r"<summary>(\w+), inference", text) == ["alexnet", "resnet18", "resnet50"]
    assert "`first.yaml` is [bench.yaml](bench.yaml) here; `second.yaml` are not kept." in text


def test_a_case_of_two_pythons_counts_where_it_was_measured(results, runs, tmp_path):
    moved = (pl.col("engine") == "ort") & (pl.col("status") == "ok")
    lacking = {"status": pl.when(moved).then(pl.lit("unsupported")).otherwise("status")}
    other = results.filter(moved).with_columns(python=pl.lit("3.10.13"), run_id=pl.lit("old"))
    for name, rows in (("new", results.with_columns(**lacking, run_id=pl.lit("new"))), ("old", other)):
        shutil.copytree(runs[0], tmp_path / name)
        rows.write_parquet(tmp_path / name / "results.parquet")
        facts = json.loads((runs[0] / "environment.json").read_text()) | {"python": name}
        (tmp_path / name / "environment.json").write_text(json.dumps(facts))
    publish([tmp_path / "new", tmp_path / "old"], tmp_path / "page")
    rows = pl.read_parquet(tmp_path / "page" / "results.parquet")
    assert rows.height == results.height
    assert set(rows.filter(engine="ort", status="ok")["python"]) == {"3.10.13"}
    text = (tmp_path / "page" / "README.md").read_text()
    assert "; ort in Python 3.10.13." in text
    best = text.split("## Each runtime at its best")[1].split("##")[0]
    (row,) = re.findall(r"\| resnet50 \| inference \| 16 \| ONNX Runtime \|.*", best)
    fastest = other.filter(model="resnet50", batch_size=16).sort("latency_ms").row(0, named=True)
    assert f"| ort{'-tuned' if 'tuned' in fastest['variant'] else ''} {fastest['precision']} |" in row


def test_runs_that_cannot_be_mixed_are_refused(runs, tmp_path):
    with pytest.raises(ConfigError, match="cases are in several of these runs, such as alexnet/"):
        publish([runs[0], runs[0]], tmp_path)
    facts = json.loads((runs[0] / "environment.json").read_text())
    (runs[0] / "environment.json").write_text(json.dumps(facts | {"gpu": "Another"}))
    with pytest.raises(ConfigError, match="cannot be mixed: gpu is Another and NVIDIA H200"):
        publish(runs, tmp_path)
