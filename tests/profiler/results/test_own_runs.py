"""Code that a run names is called where this user made the run on this host, and else only when told to."""

from __future__ import annotations

import getpass
import os
from pathlib import Path

import pytest

from profiler.errors import ConfigError
from profiler.job.config import config_of, load_config
from profiler.machine import host_and_user
from profiler.options import Recommend, Run
from profiler.recommend.artifact import _source
from profiler.results.run_folder import RunFolder
from profiler.run.command import _open_job

FACTORY = {"name": "mine", "factory": "evil:make", "input": [8]}


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    """An own run of a factory whose code, a saved module, is in its folder."""
    run = RunFolder(tmp_path / "results" / "run")
    (run.path / "model").mkdir(parents=True)
    job = {"models": [FACTORY], "engines": ["eager"], "device": "cpu", "import_from": [run.path / "model"]}
    run.write_config(config_of(job))
    run.write_environment(host_and_user())
    return run


def give_away(run: RunFolder) -> None:
    run.write_environment({**host_and_user(), "user": "somebody else"})


@pytest.mark.parametrize("changed", [{"host": "elsewhere"}, {"user": "somebody else"}, {"user": None}])
def test_only_trust_code_resumes_another_ones_run(run: RunFolder, changed: dict[str, str | None]) -> None:
    assert _open_job(Run(resume=run.path)).read("cpu").import_from == [run.path / "model"]
    run.write_environment({**host_and_user(), **changed})
    with pytest.raises(ConfigError, match=r"another host or user .*evil:make \(of mine\) from .*model; .*--trust-code"):
        _open_job(Run(resume=run.path)).read("cpu")
    trusted = _open_job(Run(resume=run.path, trust_code=True)).read("cpu")
    assert (trusted.models[0].factory, trusted.import_from) == ("evil:make", [run.path / "model"])


def test_a_run_without_environment_is_another_ones(run: RunFolder) -> None:
    (run.path / "environment.json").unlink()
    with pytest.raises(ConfigError, match="--trust-code"):
        _open_job(Run(resume=run.path)).read("cpu")


def test_another_ones_run_without_factories_brings_no_folder_of_code(run: RunFolder) -> None:
    run.write_config(config_of({"models": ["resnet18"], "engines": ["eager"], "import_from": [run.path / "model"]}))
    give_away(run)
    config = _open_job(Run(resume=run.path)).read("cpu")
    assert (config.import_from, config.models[0].name) == ([], "resnet18")


def test_another_ones_library_is_not_loaded(run: RunFolder) -> None:
    plugins = [{"name": "ort-plugin", "label": name, "library": name} for name in ("evil_package", "evil.so")]
    run.write_config(config_of({"models": ["resnet18"], "engines": [*plugins, "ort-openvino"]}))
    resume = Run(resume=run.path)
    assert _open_job(resume).read("cpu").engines[0].code == ["evil_package"]
    give_away(run)
    named = rf"evil_package \(of evil_package\), {Path.cwd()}/evil.so \(of evil.so\) from .*--trust-code"
    with pytest.raises(ConfigError, match=named):
        _open_job(resume).read("cpu")
    assert _open_job(Run(resume=run.path, trust_code=True)).read("cpu").engines[1].code == [str(Path.cwd() / "evil.so")]


def test_an_export_asks_for_the_code_of_its_own_model_alone(run: RunFolder) -> None:
    run.write_config(config_of({"models": [FACTORY, "resnet18"], "engines": ["eager"], "import_from": [run.path]}))
    path, row = run.path / "bench.yaml", {"model": "mine", "shape": None, "variant": "eager", "engine": "eager"}
    assert _source(load_config(path), row, path, trust_code=False)[1] == (str(run.path),)
    give_away(run)
    with pytest.raises(ConfigError, match=r"--export: another host or user made this run.*evil:make"):
        _source(load_config(path), row, path, trust_code=False)
    assert _source(load_config(path), row, path, trust_code=True)[0].factory == "evil:make"
    assert _source(load_config(path), {**row, "model": "resnet18"}, path, trust_code=False)[1] == ()


def test_trust_code_is_of_a_run_that_is_resumed() -> None:
    with pytest.raises(ConfigError, match="--trust-code goes with --resume"):
        _open_job(Run(config=Path("resnet18"), trust_code=True))
    assert Recommend(runs=["a"]).trust_code is False


def test_a_user_without_a_name_has_a_number(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("LOGNAME", "USER", "LNAME", "USERNAME"):
        monkeypatch.delenv(name, raising=False)
    assert host_and_user()["user"] == getpass.getuser()

    monkeypatch.setattr(os, "getuid", lambda: 2**31 - 9)
    assert host_and_user()["user"] == str(2**31 - 9)
