"""Jobs of the project run by their names."""

from __future__ import annotations

from pathlib import Path

import pytest

from profiler.bundled import bundled, job_file, suites
from profiler.errors import ConfigError

ROOT = Path(__file__).resolve().parents[2]


def test_the_default_job_has_a_name_and_a_suite_a_command(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert suites() == {path.stem: path for path in (ROOT / "suites").glob("*.yaml")}
    assert job_file("bench") == ROOT / "bench.yaml"
    with pytest.raises(ConfigError, match=r"neither a file nor a model nor a command: .* suites run gpu-study"):
        job_file("gpu-study")
    Path("gpu-study").write_text("models: [alexnet]\n")
    assert job_file("gpu-study") == Path("gpu-study"), "a file of the user's own comes first"
    Path("resnet18").mkdir()
    assert job_file("resnet18") is None, "a network's name means the network"
    Path("bert").mkdir()
    with pytest.raises(ConfigError, match=r"bert is a folder; give hf:bert .* or --resume bert for a run"):
        job_file("bert")


def test_what_a_wheel_carries_comes_before_the_checkouts(tmp_path, monkeypatch):
    monkeypatch.setattr("profiler.bundled._FOLDER", tmp_path)
    (tmp_path / "suites").mkdir()
    assert bundled("suites") == tmp_path / "suites"
    assert bundled("references") == tmp_path.parents[1] / "references"
