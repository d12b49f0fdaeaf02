"""doctor: what it says of a machine, of engines by the rows of a tiny network, and of a real run."""

from __future__ import annotations

import compileall
import re
import sys
from dataclasses import replace
from typing import Any

import pytest

from engines.base import Proof, Warning
from engines.catalog import PRESETS
from exporters.source import ModelSource
from profiler.commands import doctor
from profiler.commands.doctor import of_engines, tiny_job
from profiler.job.case import Case
from profiler.job.plan import make_plan
from profiler.machine.nvml import Gpu
from profiler.machine.target import Target
from profiler.results.result import Result
from profiler.run.progress import Display

CPU, H200 = Target("cpu"), Target("cuda", Gpu(0, "GPU-1", "NVIDIA H200", 143_771.0, "580.1", "9.0"))


def result(variant: str, precision: str = "fp32", status: Any = "ok", **more: Any) -> tuple[Case, Result]:
    case = Case("tiny", variant, variant, "inference", precision, 2, "cpu", 0, ModelSource("tiny"))
    return case, Result(case.id, status, clock="event", **{"samples": {"event": [0.5]}, **more})


def test_the_job_has_every_usual_preset_of_the_device_that_is_installed(tmp_path):
    cases = [case for case in make_plan(tiny_job(CPU, tmp_path), "cpu") if not case.unsupported]
    assert {"eager", "compiled", "ort", "openvino"} <= {case.variant for case in cases}
    assert not {"trt", "eager-nocudnn"} & {case.variant for case in cases}
    assert {(c.variant, c.precision) for c in cases if c.pass_ == "training"} == {("eager", "fp32")}
    assert {case.precision for case in cases if case.variant == "compiled"} == {"fp32"}


def test_a_line_a_preset():
    rows = [
        result("eager", proof=Proof(library="torch 2")),
        result("ort", status="failed", reasons=["no kernel"]),
        result("trt", status="unsupported"),
        result("eager-tuned", samples={"event": [48.0]}),
        result("openvino", samples={"event": [48.0, 0.6, 48.0]}),  # By other work.
        result("compiled", warnings=[Warning("drift", "of a figure"), Warning("no-cuda-graph", "a branch")]),
    ]
    lines = {check.subject: (check.status, check.text) for check in of_engines(rows, CPU)}
    assert lines["eager"] == ("ok", "torch 2: fp32 0.5 ms")
    assert lines["ort"] == ("failed", "failed in fp32 inference: no kernel")
    assert lines["compiled"] == ("note", "compiled: fp32 0.5 ms; no-cuda-graph: a branch")
    assert lines["eager-tuned"] == (
        "note",
        "eager-tuned: fp32 48 ms; fp32 takes 96.0× what eager takes: too slow to be right",
    )
    assert lines["openvino"] == ("ok", "openvino: fp32 48 ms")
    assert lines["trt"] == ("note", PRESETS["trt"].reasons["cpu"])


def test_a_library_that_is_missing_comes_with_its_command(monkeypatch):
    monkeypatch.setattr(doctor, "missing", lambda engine, device: engine.requirements[0].install)
    (line,) = (check for check in of_engines([result("trt", status="unsupported")], H200) if check.subject == "trt")
    assert line.status == "missing"
    assert "pip install" in line.text


def test_what_only_shows_once_it_is_tried_is_no_silence(monkeypatch):
    monkeypatch.setattr(doctor, "missing", lambda engine, device: "")
    rows = [result("trt", each, status="unsupported", reasons=["error 35"]) for each in ("fp32", "fp16")]
    (line,) = (check for check in of_engines(rows, H200) if check.subject == "trt")
    assert (line.status, line.text) == ("failed", "unsupported in fp32 inference: error 35")


def test_a_preset_without_all_rows_is_unchecked_unless_one_failed():
    (bf16, _), unsupported = result("ort", "bf16"), result("ort", "fp16", status="unsupported")
    planned = replace(unsupported[0], unsupported="no fp16"), unsupported[1]
    for first, status in ((result("ort"), "unchecked"), (result("ort", status="failed"), "failed")):
        assert [check.status for check in of_engines([first, planned, (bf16, None)], CPU)] == [status]
    assert [check.status for check in of_engines([result("ort"), planned], CPU)] == ["ok"]


def test_a_cache_that_cannot_be_made_fails(monkeypatch, tmp_path):
    (tmp_path / "file").touch()
    monkeypatch.setattr(doctor, "default_root", lambda: tmp_path / "file" / "cache")
    (line,) = (check for check in doctor.of_host(CPU) if check.subject == "Cache")
    assert line.status == "failed"
    assert "PROFILER_CACHE" in line.text


@pytest.mark.parametrize(
    ("facts", "says"),
    [
        ({"cuda_available": False, "torch_cuda": None}, "torch was installed without CUDA"),
        ({"cuda_available": False, "torch_cuda": "13.0"}, "torch cannot use it"),
    ],
)
def test_a_card_that_torch_cannot_use_fails(facts, says, monkeypatch):
    monkeypatch.setattr(doctor, "visible_gpus", lambda: [H200.gpu])
    (check,) = (check for check in doctor._card(CPU, facts) if check.subject == "GPU")
    assert check.status == "failed"
    assert says in check.text


def test_a_machine_that_is_full_or_busy_is_noted(monkeypatch, tmp_path):
    monkeypatch.setattr(doctor, "other_work", lambda nvml: "other processes took 40 % of 2 processors")
    monkeypatch.setattr(doctor, "default_root", lambda: tmp_path / "not" / "yet")
    lines = {check.subject: check for check in doctor.of_host(CPU)}
    assert "40 % of 2 processors; a run with --wait-for-idle" in lines["Other work"].text
    assert "PROFILER_CACHE" in lines["Cache"].text


@pytest.mark.slow
def test_an_interrupt_blames_nothing(profiler, tmp_path, monkeypatch):
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(doctor, "PRESETS", {name: PRESETS[name] for name in ("eager", "ort", "ort-dynamic")})
    monkeypatch.setattr(Display, "ended", interrupt)  # After the first row.
    done = profiler("doctor", "--device", "cpu", cwd=tmp_path)
    assert done.returncode == 130, done.stdout + done.stderr
    assert re.findall(r"(unchecked|failed|ok) +(\w*eager|ort\S*) ", done.stdout)[-3:] == [
        ("unchecked", name) for name in ("eager", "ort", "ort-dynamic")
    ]
    assert "doctor-report" not in done.stdout


@pytest.mark.slow
def test_a_real_run(profiler, tmp_path, monkeypatch):
    monkeypatch.setattr(doctor, "PRESETS", {name: PRESETS[name] for name in ("eager", "ort", "trt")})
    in_fp32 = {"precisions": ["fp32"]}
    monkeypatch.setattr(doctor, "tiny_job", lambda *given: tiny_job(*given).model_copy(update=in_fp32))
    done = profiler("doctor", "--device", "cpu", "--output", str(tmp_path / "kept"), cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"ok +eager ", done.stdout)
    assert "training fp32" in done.stdout
    assert "onnxruntime" in done.stdout
    assert "Everything installed works; all findings and logs are in" in done.stdout
    assert "confirming" not in done.stdout
    (run,) = (tmp_path / "kept").iterdir()
    assert (run / "journal.jsonl").exists()


def test_bytecode_that_pytorch_lacks_is_noted(tmp_path, monkeypatch):
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "torch", raising=False)

    def start() -> list[str]:
        return [check.status for check in doctor.of_host(CPU) if check.subject == "Start"]

    assert start() == ["note"]
    compileall.compile_dir(tmp_path, quiet=1)
    assert start() == []
