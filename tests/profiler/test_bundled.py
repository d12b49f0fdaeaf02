"""Jobs of the project run by their names, and a version that was not tested is said."""

from __future__ import annotations

from pathlib import Path

import pytest

from profiler import machine
from profiler.bundled import bundled, job_file, jobs
from profiler.errors import ConfigError

ROOT = Path(__file__).resolve().parents[2]


def test_the_default_job_and_every_suite_have_a_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert jobs() == {path.stem: path for path in (ROOT / "bench.yaml", *(ROOT / "suites").glob("*.yaml"))}
    assert job_file("gpu-study") == ROOT / "suites" / "gpu-study.yaml"
    Path("gpu-study").write_text("models: [alexnet]\n")
    assert job_file("gpu-study") == Path("gpu-study"), "a file of the user's own comes first"
    with pytest.raises(
        ConfigError, match="neither a file nor a model nor a suite nor a command; did you mean 'cloud-gpus'"
    ):
        job_file("cloud-gpu")


def test_what_a_wheel_carries_comes_before_the_checkouts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("profiler.bundled._FOLDER", tmp_path)
    (tmp_path / "suites").mkdir()
    assert bundled("suites") == tmp_path / "suites"
    assert bundled("references") == tmp_path.parents[1] / "references"


def test_a_version_that_was_not_tested_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    installed = {"torch": "2.15.0+cu130", "onnxruntime": "1.31.2"}
    monkeypatch.setattr(machine, "installed_version", installed.get)
    note = "torch 2.15.0+cu130 was not tested with this version of the profiler; <2.14,>=2.11 was"
    assert machine.untested() == [note]
    installed["torch"] = "2.13.0+cpu"
    assert machine.untested() == []
