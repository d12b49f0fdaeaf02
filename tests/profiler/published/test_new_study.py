"""A published study is its figures, references/<name>.csv, and a row of profiler/published/studies.py."""

from __future__ import annotations

import io
import shutil
from pathlib import Path

import handmade
import pytest
from rich.console import Console

from profiler.job.config import load_config
from profiler.published import references
from profiler.published.command import Options, execute
from profiler.published.references import published_as_results
from profiler.published.studies import STUDIES, Study

FIGURES = """source,network,published_network,gpu,device,library,library_version,batch_size,pass,milliseconds
toy,resnet18,ResNet 18,Old Card,cuda,Darknet,2,16,forward,10.25
toy,resnet18,ResNet 18,Old Card,cuda,Darknet,2,16,backward,21.25
toy,resnet18,ResNet 18,Old Card,cuda,Darknet,2,16,total,31.5
toy,resnet18,ResNet 18,Older Card,cuda,Darknet,,16,total,63
"""
JOB = "published: toy\nmodels: [resnet18]\nengines: [eager]\npasses: [training]\n"


@pytest.fixture
def toy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder in which a run of the study's network lies."""
    shutil.copytree(references.FOLDER, tmp_path / "references")
    (tmp_path / "references" / "toy.csv").write_text(FIGURES)
    monkeypatch.setattr(references, "FOLDER", tmp_path / "references")
    monkeypatch.setitem(STUDIES, "toy", Study("A toy", "https://example.org/toy"))
    row = {
        "run_id": "run", "case_id": "resnet18/eager",
        "model": "resnet18", "engine": "eager", "variant": "eager", "precision": "fp32", "pass": "training",
        "batch_size": 16, "replicate": 0, "machine": "H200", "device": "cuda", "model_kind": "canonical",
        "head": "logits", "setting": "head=logits", "status": "ok", "torch_version": "2.11.0", "latency_ms": 3.15,
    }  # fmt: skip
    (tmp_path / "run").mkdir()
    handmade.frame([row]).write_parquet(tmp_path / "run" / "results.parquet")
    return tmp_path


def test_a_row_and_its_figures_are_all_that_a_study_takes(toy: Path) -> None:
    console = Console(file=io.StringIO(), width=120)
    assert execute(Options(runs=[str(toy / "run")], study="toy", into=toy / "tables"), console) == 0
    page = (toy / "tables" / "published.md").read_text()
    assert "Own rows are marked ▸; the others are [A toy](https://example.org/toy)'s. **Bold** is" in page
    assert page.splitlines()[-5:] == [
        "| GPU | Library | Forward (ms) | Backward (ms) | Total (ms) |",
        "| --- | --- | ---: | ---: | ---: |",
        "| ▸ H200 | PyTorch 2.11 eager fp32 |  |  | 3.15 |",
        "| Old Card | Darknet 2 | 10.25 | 21.25 | **31.50** |",
        "| Older Card | Darknet |  |  | 63.00 |",
    ]
    sentence = (
        "Across all models, the H200 with PyTorch 2.11 eager fp32 is {}10.0x{} faster than Old Card with Darknet 2."
    )
    assert sentence.format("**", "**") in (toy / "tables" / "conclusions.md").read_text()
    assert sentence.format("", "") in " ".join(console.file.getvalue().split())  # type: ignore[attr-defined]


def test_a_job_may_name_it_and_compare_reads_it(toy: Path) -> None:
    (toy / "job.yaml").write_text(JOB)
    assert load_config(toy / "job.yaml").published == "toy"
    assert published_as_results("toy").select("variant", "latency_ms").rows() == [("Darknet 2", 31.5), ("Darknet", 63)]
