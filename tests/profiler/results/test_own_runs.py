"""Code that a run names is called where this user made the run, and else only when told to."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from profiler.errors import ConfigError
from profiler.job.config import config_of, load_config
from profiler.options import Recommend, Run
from profiler.recommend.artifact import _source
from profiler.results import own_runs
from profiler.results.own_runs import is_own, without_foreign_code
from profiler.results.run_folder import RunFolder
from profiler.run.command import _open_job

FACTORY = {"name": "mine", "factory": "evil:make", "input": [8]}


@pytest.fixture
def key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where this user's key is, once there is one."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path / "state" / "cnn-profiler" / "key"


@pytest.fixture
def run(tmp_path: Path, key: Path) -> RunFolder:
    """A run of a factory whose code, a saved module, is in its folder."""
    run = RunFolder(tmp_path / "results" / "run")
    (run.path / "model").mkdir(parents=True)
    (run.path / "model" / "evil.py").write_text("def make(): pass\n")
    job = {"models": [FACTORY], "engines": ["eager"], "device": "cpu", "import_from": [run.path / "model"]}
    run.write_config(config_of(job))
    return run


def test_a_run_is_its_users_wherever_it_lies(run: RunFolder, key: Path, tmp_path: Path) -> None:
    assert is_own(run.path)
    moved = Path(shutil.copytree(run.path, tmp_path / "moved"))
    assert is_own(moved)
    assert key.stat().st_mode & 0o777 == 0o600
    assert len(key.read_bytes()) == 32
    assert list(key.parent.iterdir()) == [key]


def test_a_key_once_made_stays(run: RunFolder, key: Path) -> None:
    before = key.read_bytes()
    run.write_config(load_config(run.path / "bench.yaml"))
    assert key.read_bytes() == before
    assert is_own(run.path)


_CHANGES = ["another user", "the job", "the code", "more code", "no signature", "a key for all", "a link"]


@pytest.mark.parametrize("what", _CHANGES)
def test_a_run_that_somebody_else_made_or_changed_is_not(run: RunFolder, key: Path, what: str) -> None:
    job, code = run.path / "bench.yaml", run.path / "model" / "evil.py"
    match what:
        case "another user":
            key.write_bytes(bytes(32))
        case "the job":
            job.write_text(job.read_text().replace("evil:make", "subprocess:run"))
        case "the code":
            code.write_text("def make(): print('evil')\n")
        case "more code":
            (code.parent / "torch.py").write_text("")
        case "no signature":
            job.write_text(job.read_text().partition("# signed")[0])
        case "a key for all":
            key.chmod(0o644)
        case "a link":
            code.parent.rename(run.path / "elsewhere")
            code.parent.symlink_to("elsewhere")
    assert not is_own(run.path)


@pytest.mark.parametrize("place", ["model", "model/package"])
def test_compiled_code_next_to_what_was_signed_is_not_believed(run: RunFolder, place: str) -> None:
    (run.path / place).mkdir(exist_ok=True)
    config = load_config(run.path / "bench.yaml")
    run.write_config(config)
    cache = run.path / place / "__pycache__"
    cache.mkdir()
    (cache / "evil.cpython-311.pyc").write_bytes(b"other code")
    assert is_own(run.path)
    assert cache.exists(), "it was only asked"
    assert without_foreign_code(config, run.path, "--resume", trusted=False) is config
    assert not cache.exists()


def test_compiled_code_that_cannot_be_removed_makes_a_run_a_foreign_one(run: RunFolder, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (run.path / "model" / "__pycache__").symlink_to(tmp_path / "elsewhere")
    config = load_config(run.path / "bench.yaml")
    with pytest.raises(ConfigError, match="--trust-code"):
        without_foreign_code(config, run.path, "--resume", trusted=False)


def test_without_a_home_a_run_is_written_all_the_same(run: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", "/dev/null")
    run.write_config(load_config(run.path / "bench.yaml"))
    assert "# signed" not in (run.path / "bench.yaml").read_text()
    assert not is_own(run.path)


def test_only_trust_code_resumes_another_ones_run(run: RunFolder, key: Path) -> None:
    assert _open_job(Run(resume=run.path)).read("cpu").import_from == [run.path / "model"]
    key.unlink()
    with pytest.raises(ConfigError, match=r"made elsewhere.*evil:make \(of mine\), from .*model.*--trust-code"):
        _open_job(Run(resume=run.path)).read("cpu")
    assert _open_job(Run(resume=run.path, trust_code=True)).read("cpu").models[0].factory == "evil:make"


def test_another_ones_run_without_factories_brings_no_folder_of_code(run: RunFolder, key: Path) -> None:
    run.write_config(config_of({"models": ["resnet18"], "engines": ["eager"], "import_from": [run.path / "model"]}))
    key.unlink()
    config = _open_job(Run(resume=run.path)).read("cpu")
    assert (config.import_from, config.models[0].name) == ([], "resnet18")


def test_another_ones_library_is_not_loaded(run: RunFolder, key: Path, tmp_path: Path) -> None:
    plugins = [{"name": "ort-plugin", "label": name, "library": name} for name in ("evil_package", "evil.so")]
    run.write_config(config_of({"models": ["resnet18"], "engines": [*plugins, "ort-openvino"]}))
    resume = Run(resume=run.path)
    assert _open_job(resume).read("cpu").engines[0].code == ["evil_package"]
    key.unlink()
    named = rf"evil_package \(of evil_package\), {Path.cwd()}/evil.so \(of evil.so\), from .*--trust-code"
    with pytest.raises(ConfigError, match=named):
        _open_job(resume).read("cpu")
    assert _open_job(Run(resume=run.path, trust_code=True)).read("cpu").engines[1].code == [str(Path.cwd() / "evil.so")]


def test_an_export_asks_for_the_code_of_its_own_model_alone(run: RunFolder, key: Path) -> None:
    run.write_config(config_of({"models": [FACTORY, "resnet18"], "engines": ["eager"], "import_from": [run.path]}))
    path, row = run.path / "bench.yaml", {"model": "mine", "shape": None, "variant": "eager", "engine": "eager"}
    assert _source(load_config(path), row, path, trust_code=False)[1] == (str(run.path),)
    key.unlink()
    with pytest.raises(ConfigError, match=r"--export: this run was made elsewhere.*evil:make"):
        _source(load_config(path), row, path, trust_code=False)
    assert _source(load_config(path), row, path, trust_code=True)[0].factory == "evil:make"
    assert _source(load_config(path), {**row, "model": "resnet18"}, path, trust_code=False)[1] == ()


def test_trust_code_is_of_a_run_that_is_resumed() -> None:
    with pytest.raises(ConfigError, match="--trust-code goes with --resume"):
        _open_job(Run(config=Path("resnet18"), trust_code=True))
    assert Recommend(runs=["a"]).trust_code is False


def test_the_first_of_two_processes_makes_the_key(key: Path) -> None:
    own_runs._make_key(key)
    first = key.read_bytes()
    own_runs._make_key(key)
    assert key.read_bytes() == first


def test_a_trusted_job_stays_as_it_is(run: RunFolder, key: Path) -> None:
    config = load_config(run.path / "bench.yaml")
    key.unlink()
    assert without_foreign_code(config, run.path, "--resume", trusted=True) is config
