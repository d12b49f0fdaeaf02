"""One run in two interpreters: this one, and one of its own folder of packages, which has what a worker needs and no
more; with models that end the worker, and the process that runs it."""

from __future__ import annotations

import importlib.metadata
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import polars as pl
import pytest

from engines.requirements import needed_by_worker
from profiler.errors import ConfigError
from profiler.job.config import load_config
from profiler.job.plan import make_plan
from profiler.processes import other_python
from profiler.processes.other_python import Unusable, look_at
from profiler.processes.process import Call
from profiler.results.own_runs import without_foreign_code
from profiler.results.reading import load
from profiler.run.interpreters import with_interpreters
from profiler.run.resume import carried_on, check_machine

pytestmark = pytest.mark.slow
NEEDED = ("numpy", "torch", "onnx")
"""What docs/config.md says, with what those need themselves."""
OLDER = Path(sys.prefix) / "older-onnxruntime"
"""Where `make test` installs another version of ONNX Runtime."""
MODELS = """
import os, signal, sys, time
from torch import nn

def small():
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, 5))

class Ending(nn.Module):
    def __init__(self, pid):
        super().__init__()
        self.inner, self.pid = small(), pid

    def forward(self, x):
        if sys.prefix.endswith("/there"):
            os.kill(self.pid(), signal.SIGKILL)
            time.sleep(600)  # Another call would kill the next one up.
        return self.inner(x)

def dying():
    return Ending(os.getpid)

def killing():
    return Ending(lambda: parent(parent(os.getpid())))

def parent(pid):
    return int(open(f"/proc/{pid}/stat").read().rpartition(")")[2].split()[1])
"""
SERVER = """
import os, pathlib, signal, sys, time
tried = pathlib.Path(__file__).with_name("tried")
if not tried.exists():
    tried.touch()
    os.kill(os.getpid(), signal.SIGKILL)
from profiler.processes.messages import Outcome
from profiler.processes.pipe import Receiver, Sender
calls, send = Receiver(int(sys.argv[3])), Sender(int(sys.argv[4]))
send({})
os.kill(os.getpid(), signal.SIGSTOP)
while True:
    for call in calls.messages():
        send(Outcome("ok", value=len(call.argument)))
    time.sleep(0.01)
"""
"""What runs calls in place of serve_calls.py: it dies once, and then is stopped before it takes any."""
JOB = """
models:
  - {{name: small, factory: "ending:small", input: [3, 8, 8]}}
  - {{name: dying, factory: "ending:dying", input: [3, 8, 8]}}
  - {{name: killing, factory: "ending:killing", input: [3, 8, 8]}}
engines:
  - ort
  - {{name: eager, label: eager-there, python: {python}}}
  - {{name: ort, label: ort-there, python: {python}}}
  - {{name: openvino, label: openvino-there, python: {python}}}
exclude: [{{model: dying, engine: ort}}, {{model: killing, engine: ort}}, {{model: dying, engine: openvino}},
          {{model: killing, engine: openvino}}]
budget: {{seconds: 0.05, max_samples: 20}}
profile: true
device: cpu
"""


def _top_folders(names: tuple[str, ...]) -> dict[str, Path]:
    """By name the folders and modules of distributions and of what they need, but for extras and other systems."""
    from packaging.requirements import Requirement

    waiting, seen, found = list(names), set[str](), dict[str, Path]()
    while waiting:
        name = waiting.pop()
        try:
            package = importlib.metadata.distribution(name)
        except importlib.metadata.PackageNotFoundError:  # Of another system.
            continue
        for file in package.files or ():
            if file.parts[0] not in ("..", "__pycache__"):
                found[file.parts[0]] = Path(str(package.locate_file(file.parts[0])))
        needs = [Requirement(line) for line in package.requires or ()]
        wanted = {each.name for each in needs if each.marker is None or each.marker.evaluate({"extra": ""})} - seen
        seen |= wanted
        waiting += wanted
    return found


@dataclass(frozen=True)
class There:
    python: Path
    run: Path
    rows: dict[tuple[str, str], dict]
    output: str


@pytest.fixture(scope="module")
def there(tmp_path_factory, profiler) -> There:
    """A run in both interpreters."""
    folder = tmp_path_factory.mktemp("two")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder / "there"], check=True)
    python = folder / "there" / "bin" / "python"
    packages = next((folder / "there" / "lib").glob("python*/site-packages"))
    runtime = {} if OLDER.is_dir() else _top_folders(("onnxruntime-gpu", "onnxruntime"))
    for name, place in {**runtime, **_top_folders(NEEDED)}.items():
        (packages / name).symlink_to(place)
    if OLDER.is_dir():
        (packages / "older.pth").write_text(f"{OLDER}\n")
    (folder / "ending.py").write_text(MODELS)
    (folder / "job.yaml").write_text(JOB.format(python="there/bin/python"))
    done = profiler("job.yaml", "--output", "results", cwd=folder)
    run = next((folder / "results").iterdir())
    rows = {(row["model"], row["variant"]): row for row in load(run)[0].collect().to_dicts()}
    return There(python, run, rows, done.stdout + done.stderr)


def test_each_case_has_a_row_whatever_ended_its_process(there):
    found = {name: row["status"] for name, row in there.rows.items()}
    assert found == {
        ("small", "ort"): "ok",
        ("small", "eager-there"): "ok",
        ("small", "ort-there"): "ok",
        ("small", "openvino-there"): "unsupported",
        ("killing", "eager-there"): "crashed",
        ("dying", "eager-there"): "crashed",
    }
    assert (
        f"{there.python}, which runs its processes, ended by SIGKILL while"
        in (there.rows["killing", "eager-there"]["reason"])
    )
    assert there.rows["dying", "eager-there"]["reason"].startswith("ended by SIGKILL while")
    lacking = f"openvino is not installed: {there.python} -m pip install"
    assert lacking in there.rows["small", "openvino-there"]["reason"]
    assert f"of{there.python}" in "".join(there.output.split())  # Wherever a line of it ends.


def test_the_worker_needs_little(there):
    lacking = {"polars", "pydantic", "rich", "typer", "yaml", "altair", "safetensors", "scipy", "annotated_types"}
    code = f"import importlib.util as u; print([n for n in {sorted(lacking)} if u.find_spec(n)])"
    asked = subprocess.run([there.python, "-c", code], capture_output=True, text=True, check=True)
    assert asked.stdout.strip() == "[]"  # And the rows are there all the same.


def test_rows_have_the_versions_of_their_interpreter(there):
    of = {variant: row for (model, variant), row in there.rows.items() if model == "small"}
    here, other = (of[name]["onnxruntime_version"] for name in ("ort", "ort-there"))
    if OLDER.is_dir():
        assert here != other
        assert other == next(OLDER.glob("onnxruntime-*.dist-info")).name.split("-")[1].removesuffix(".dist")
    else:
        assert here == other
    # Not installed there, which is another answer than that of the interpreter that runs the profiler.
    assert of["eager-there"]["openvino_version"] is None
    assert of["ort"]["openvino_version"] == importlib.metadata.version("openvino")
    assert {row["python"] for row in of.values()} == {".".join(map(str, sys.version_info[:3]))}


def test_both_have_the_outputs_of_one_reference_and_their_layers(there):
    layers = pl.read_parquet(there.run / "layers.parquet").filter(pl.col("case_id").str.contains("/ort"))
    assert there.rows["small", "ort-there"]["rel_l2_error"] < 1e-5
    assert layers["case_id"].n_unique() == 2


def test_compare_says_what_differs_between_two_variants(there, command):
    text = command("compare", str(there.run), "--by", "variant", "--base", "ort", cwd=there.run).stdout
    assert "ort-there" in text and "interpreters" not in text
    assert ("onnxruntime_version" in text) == OLDER.is_dir()
    assert "openvino_version" not in text, "nothing ran in it on either side"


@pytest.fixture
def stubs(tmp_path) -> Path:
    """An interpreter with modules that do nothing, next to its `bin` in `modules`."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path], check=True)
    (tmp_path / "modules").mkdir()
    for name in ("numpy", "torch", "onnx", "onnxruntime"):
        (tmp_path / "modules" / f"{name}.py").write_text("print('so much')")
    next((tmp_path / "lib").glob("python*/site-packages")).joinpath("own.pth").write_text(f"{tmp_path / 'modules'}\n")
    return tmp_path / "bin" / "python"


def test_an_interpreter_that_lacks_what_every_worker_needs_is_refused_with_one_command_for_all(stubs):
    modules = stubs.parents[1] / "modules"
    for name in ("torch", "onnx", "onnxruntime"):
        (modules / f"{name}.py").unlink()
    (modules / "numpy-1.26.dist-info").mkdir()
    (modules / "numpy-1.26.dist-info" / "METADATA").write_text("Name: numpy\nVersion: 1.26\n")
    with pytest.raises(Unusable) as caught:
        look_at(stubs, "cpu", ["ort fp32", "openvino fp32"])
    assert str(caught.value) == (
        f"{stubs}: numpy 1.26 is too old (2 or later is needed), torch, onnx, onnxruntime and openvino are not "
        f"installed: {stubs} -m pip install 'numpy>=2' 'torch>=2.11,<2.14' 'onnx>=1.22' 'onnxruntime>=1.22' "
        "'openvino>=2026.0'"
    )


def test_what_is_installed_but_cannot_be_imported_is_said_before_anything_is_measured(stubs):
    module = stubs.parents[1] / "modules" / "onnxruntime.py"
    assert look_at(stubs, "cpu", ["ort fp32", "eager fp32"]).lacking == {}
    module.write_text("raise ImportError('libfoo.so: cannot open')")
    why = "onnxruntime is installed, but cannot be imported: ImportError: libfoo.so: cannot open"
    assert look_at(stubs, "cpu", ["ort fp32", "eager fp32"]).lacking["ort fp32"].startswith(why)
    module.write_text("import os, sys; print('bad luck', file=sys.stderr, flush=True); os.abort()")
    with pytest.raises(Unusable, match=f"{stubs} ended by SIGABRT while importing onnxruntime: bad luck"):
        look_at(stubs, "cpu", ["ort fp32"])
    module.with_name("torch.py").write_text("1 / 0")
    with pytest.raises(Unusable, match="torch is installed, but cannot be imported: ZeroDivisionError"):
        look_at(stubs, "cpu", ["ort fp32"])


def test_a_process_there_that_dies_while_it_loads_starts_again_and_takes_a_long_call_though_stopped(tmp_path):
    python = tmp_path / "python"
    python.write_text(f"#!{sys.executable}\n{SERVER}")
    python.chmod(0o755)
    other = other_python.OtherPython(python, tmp_path / "log", tmp_path)
    try:
        call = Call("builtins:len", b"0" * 2**20, tmp_path / "log")
        assert "ended by SIGKILL" in str(other.run(call, lambda child: None).reason)
        assert other.run(call, lambda child: None).value == 2**20
    finally:
        other.close()


@pytest.mark.parametrize(
    ("script", "why"),
    [
        ("#!/bin/sh\necho hello", "does not work as a Python interpreter: it printed something else"),
        ("#!/bin/sh\nexec sleep 6000", "does not work as a Python interpreter: it did not answer within 1 s"),
        ("#!/bin/sh\necho 'OLD 3.9.1' >&2; exit 1", r"is Python 3\.9\.1; 3\.11 or newer is needed"),
        ("no program", "does not work as a Python interpreter: Exec format error"),
    ],
)
def test_what_is_no_interpreter_is_refused(script, why, tmp_path, monkeypatch):
    if "sleep" in script:
        monkeypatch.setattr(other_python, "_LOOK_SECONDS", 1.0)
    program = tmp_path / "python"
    program.write_text(script)
    program.chmod(0o755)
    with pytest.raises(Unusable, match=why):
        look_at(program, "cpu", [])


def _job(folder: Path, python: str) -> Path:
    path = folder / "job.yaml"
    path.write_text(f"models: [resnet18]\nengines:\n  - ort\n  - {{name: ort, label: other, python: {python}}}\n")
    return path


@pytest.mark.parametrize(
    ("path", "why"),
    [
        ("bin/python", "there is no file .*/bin/python; paths are relative to the YAML"),
        (".", ".* is a folder; write the interpreter in it, such as .*/bin/python"),
        ("notes.txt", ".*notes.txt does not work as a Python interpreter: Permission denied"),
    ],
)
def test_a_path_is_relative_to_the_yaml_and_must_be_a_program_where_it_is_measured_in(path, why, tmp_path):
    (tmp_path / "notes.txt").write_text("")
    config = load_config(_job(tmp_path, path))
    own, _ = plan = make_plan(config, "cpu")
    with pytest.raises(ConfigError, match=rf"job.yaml:4: engines\[1\].python: {why}"):
        with_interpreters(config, plan, plan, "cpu")
    assert with_interpreters(config, plan, [own], "cpu") == (plan, {})


def test_a_case_knows_its_interpreter_by_the_path_as_it_was_given(tmp_path):
    (tmp_path / "python").symlink_to(sys.executable)  # A virtual environment's is such a link.
    config = load_config(_job(tmp_path, "python"))
    assert [case.python for case in make_plan(config, "cpu")] == [None, tmp_path / "python"]


def test_a_run_of_others_starts_no_interpreter_unless_it_is_trusted(tmp_path):
    config = load_config(_job(tmp_path, sys.executable))
    with pytest.raises(ConfigError, match=f"code of its own: {sys.executable} .of other., .*--trust-code"):
        without_foreign_code(config, tmp_path, "--resume run", trusted=False)
    assert without_foreign_code(config, tmp_path, "--resume run", trusted=True) == config


def test_only_torchs_engines_quantize_in_the_other_interpreter():
    def needs_torchao(*worker: str) -> bool:
        return "torchao" in [each.name for each in needed_by_worker("cpu", *worker)]

    assert needs_torchao("eager", "int8") and not needs_torchao("eager", "fp32")
    assert not needs_torchao("ort", "int8")  # Whose graphs are made by the profiler's own interpreter.


def test_a_run_is_resumed_with_the_versions_that_it_began_with():
    before, now = ({"interpreters": {"old": {"onnxruntime_version": version}}} for version in ("1.22.1", "1.23.0"))
    with pytest.raises(ConfigError, match=r"onnxruntime_version of old 1\.22\.1, here it is 1\.23\.0"):
        check_machine(Path("run"), before, now)
    # With --only nobody asks the interpreters of what is left out, and the run still says what they were.
    check_machine(Path("run"), before, {})
    new = {"interpreters": {"new": {"onnxruntime_version": "1.31.1"}}}
    check_machine(Path("run"), before, new)
    assert carried_on(before, new) == {"interpreters": before["interpreters"] | new["interpreters"]}
    assert carried_on({}, {}) == {}
