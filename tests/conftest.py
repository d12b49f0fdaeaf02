"""Run commands, in this process and as a user does, share one forkserver, and apply the rules of the mark `gpu`."""

from __future__ import annotations

import ast
import contextlib
import gc
import importlib
import importlib.abc
import importlib.machinery
import io
import multiprocessing.forkserver
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import ModuleType
from typing import Any

import polars as pl
import pytest
import vl_convert
from other_work import on_processors
from quick_exports import bundle_once, translate_once
from rich.console import Console

from exporters.cache import Cache
from exporters.source import ModelSource
from profiler import cli
from profiler.job import plan
from profiler.job.case import Budget
from profiler.job.config import Config, JobFile
from profiler.machine.nvml import visible_gpus
from profiler.machine.target import usable_cores
from profiler.processes import process
from profiler.run import watch
from profiler.run.progress import Display
from profiler.run.watch import DeviceLock, Quiet

ROOT = Path(__file__).resolve().parent.parent
# Before torch is imported, for this process and all that it starts: on a machine where test processes share the cores,
# threads that spin while they wait for one another take half of the time.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
# Workers of pytest-xdist have 80; the tables are tested as wide as in a pipe.
os.environ.pop("COLUMNS", None)
# The compiler need not be tried on each kind of vector that the processor has.
os.environ.setdefault("TORCHINDUCTOR_VEC_ISA_OK", "1")
# Two more processes of each base would take a third of the time; what is about them sets it back.
plan.BASE_PROCESSES, plan.CONFIRMING_PROCESSES = 1, 0
Profiler = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="session")
def forkserver(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Start the forkserver of this session, from which every worker is forked: torch is imported once, meanwhile.

    A worker gets the environment and the number of threads that the test asks for, not those of the forkserver's start.
    """
    start = process.Child.__init__

    def start_as_now(child: process.Child, call: process.Call) -> None:
        threads = call.threads or int(os.environ.get("OMP_NUM_THREADS", 0)) or None
        start(child, replace(call, environment={**os.environ, **call.environment}, threads=threads))

    preload = process._CONTEXT.set_forkserver_preload
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(process._CONTEXT, "set_forkserver_preload", lambda names: preload([*names, "quick_workers"]))
        patch.setenv("PYTHONPATH", str(ROOT / "tests"), prepend=os.pathsep)
        patch.setenv("QUICK_TEMPORARY", tempfile.gettempdir())
        patch.delenv("PYTHONUNBUFFERED", raising=False)  # It takes the buffer from C's stdout, too.
        multiprocessing.forkserver._forkserver._stop()  # One that a test without this fixture has started.
        process.start_forkserver(tmp_path_factory.mktemp("forkserver") / "log")
    process.Child.__init__ = start_as_now


@pytest.fixture(scope="session")
def profiler(forkserver: None) -> Profiler:
    """`profiler("job.yaml", cwd=folder)` does what `python -m profiler job.yaml` does there, but in this process.

    Its workers are forked from the session's forkserver, which spares each run some seconds of imports.
    """
    return _run_here


@pytest.fixture(scope="session")
def command() -> Profiler:
    """Like `profiler`, for commands that start no process."""
    return _run_here


@pytest.fixture(scope="session")
def command_line() -> Profiler:
    """`command_line("job.yaml", cwd=folder)` runs `python -m profiler job.yaml` there, as a user would."""
    return _run_as_a_user


def _run_here(*arguments: str, cwd: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a command in this process, whose folder, environment and signal handlers are put back afterwards."""
    output, errors, code = io.StringIO(), io.StringIO(), 0
    argv, environment, handlers = sys.argv, dict(os.environ), [signal.getsignal(each) for each in cli.SIGNALS]
    sys.argv = ["profiler", *arguments]
    os.environ.update(variables)
    try:
        with (
            contextlib.redirect_stdout(output),
            contextlib.redirect_stderr(errors),
            pytest.MonkeyPatch.context() as patch,
        ):
            patch.chdir(cwd)
            patch.setattr(JobFile, "config", _without_repeats)
            cli.main()
    except SystemExit as end:
        code = int(end.code or 0)
    finally:
        for number, handler in zip(cli.SIGNALS, handlers, strict=True):
            signal.signal(number, handler)
        sys.argv = argv
        os.environ.clear()
        os.environ.update(environment)
    return subprocess.CompletedProcess(list(arguments), code, output.getvalue(), errors.getvalue())


def _without_repeats(file: JobFile, *arguments: Any, config_of: Callable[..., Config] = JobFile.config) -> Config:
    """Measure disturbed cases again only if the job sets `budget.repeats`: tests keep the machine busy."""
    config = config_of(file, *arguments)
    if config.budget.repeats != Budget().repeats:
        return config
    return config.model_copy(update={"budget": replace(config.budget, repeats=0.0)})


def _run_as_a_user(*arguments: str, cwd: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    return subprocess.run(
        [sys.executable, "-m", "profiler", *arguments],
        cwd=cwd,
        env={**environment, **variables},
        capture_output=True,
        text=True,
        timeout=850,
        check=False,
    )


@pytest.fixture(scope="session", autouse=True)
def no_locks() -> Iterator[None]:
    """Keep tests that run side by side from noticing each other's runs."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(watch, "lock_folder", lambda: Path(os.devnull))
        yield


@pytest.fixture(autouse=True)
def same_environment() -> Iterator[None]:
    """Restore the environment after each test."""
    before = dict(os.environ)
    yield
    for name in {*before, *os.environ} - {"PYTEST_CURRENT_TEST"}:
        if name not in before:
            del os.environ[name]
        elif os.environ.get(name) != before[name]:
            os.environ[name] = before[name]


@pytest.fixture
def alone() -> Quiet:
    """Return a watch for other work that finds no other run and waits for nobody."""
    return Quiet(DeviceLock("cpu"), None, 0.0, Display(Console()))


HOSTILE = {
    "resnet18": "<script>window.hacked=1</script>",
    "resnet50": "</script><img src=x onerror=window.hacked=1> `|*_\\ & \"'",
    "alexnet": "${window.hacked=1}{{hacked}} <!-- datum.x]]> \u2028 var(--ink) 網路",
}
"""Names that a page, a chart or a Markdown file could mistake for its own syntax."""


@pytest.fixture(scope="session")
def hostile_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write the golden H200 run with hostile names, labels, reasons and warnings."""
    folder, golden = tmp_path_factory.mktemp("hostile"), ROOT / "tests" / "golden" / "h200"
    evil = HOSTILE["resnet18"]
    results = pl.read_parquet(golden / "results.parquet").with_columns(
        pl.col("model").replace(HOSTILE),
        variant=pl.col("variant").replace({"ort": f'"><b onload=1>{evil}', "compiled": "constructor"}),
    )
    failed = results["precision"] == "tf32"
    results = results.with_columns(
        status=pl.when(failed).then(pl.lit("failed")).otherwise("status"),
        reason=pl.when(failed).then(pl.lit(f"it said {evil}")),
        warnings=pl.lit([f"{evil}: odd"], pl.List(pl.String)),
        gpu=pl.lit(f"GPU {evil}"),
    )
    results.write_parquet(folder / "results.parquet")
    (folder / "samples.parquet").write_bytes((golden / "samples.parquet").read_bytes())
    (folder / "bench.yaml").write_text(f"models: ['{evil}']  # ```\n")
    return folder


FACTORIES = """
from torch import nn

def small(width=8):
    return nn.Sequential(
        nn.Conv2d(3, width, 3, bias=False), nn.BatchNorm2d(width), nn.ReLU(), nn.LocalResponseNorm(3),
        nn.MaxPool2d(2), nn.Flatten(), nn.Linear(width * 49, 5),
    )

def other():
    return {"a": 1}

def raising():
    raise ValueError("no luck")

def uncalled():
    return Branching

class Branching(nn.Module):
    def forward(self, x):
        return x + 1 if x.sum() > 0 else x
"""


@pytest.fixture
def factories(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Put the module `small_factories` on the path."""
    path = tmp_path / "small_factories.py"
    path.write_text(FACTORIES)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "small_factories", raising=False)
    return path


@pytest.fixture
def small(factories: Path) -> ModelSource:
    return ModelSource("mine", factory="small_factories:small", input_shape=(3, 16, 16))


@pytest.fixture
def everyones_folder() -> Iterator[Path]:
    """Make a folder that every user can enter; pytest's own admit their owner alone."""
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        yield Path(name)


@pytest.fixture(scope="session")
def exports(tmp_path_factory: pytest.TempPathFactory) -> Cache:
    """Share one cache among all workers, so that a network is exported once."""
    folder = tmp_path_factory.getbasetemp()
    return Cache((folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder) / "exports")


@pytest.fixture(scope="session", autouse=True)
def one_bundle(exports: Cache) -> Iterator[None]:
    """Bundle the pages' script once for all workers."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("vl_convert.javascript_bundle", vl_convert.javascript_bundle)  # So that it is put back.
        bundle_once(exports)
        yield


@pytest.fixture(scope="session")
def cache(exports: Cache) -> Cache:
    """Return the shared cache; a test file may override it."""
    return exports


@pytest.fixture(autouse=True)
def switches() -> Iterator[None]:
    """Put back torch's switches: a session sets its process's, which the tests after it would inherit."""
    if (torch := sys.modules.get("torch")) is None:
        yield
        return
    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    before = matmul.allow_tf32, cudnn.allow_tf32, cudnn.enabled, cudnn.benchmark
    yield
    # These set what torch's newer interface reads, too.
    matmul.allow_tf32, cudnn.allow_tf32, cudnn.enabled, cudnn.benchmark = before


@pytest.fixture
def busy_processors() -> Iterator[list[int]]:
    """Keep every processor of this process busy with processes that are not its children."""
    with on_processors(usable_cores()) as processes:
        yield processes


def pytest_sessionstart(session: pytest.Session) -> None:
    """Import this worker's share of the files before it collects them all and finds the others' shares rewritten.

    Of a fresh checkout each worker would rewrite all asserts at the same time, for longer than all other imports take.
    """
    worker, config = os.environ.get("PYTEST_XDIST_WORKER"), session.config
    if worker is None or sys.dont_write_bytecode or config.getoption("--fast") or config.args != ["tests"]:
        return
    paths = sorted((ROOT / "tests").rglob("test_*.py"))
    for path in paths[int(worker.removeprefix("gw")) :: int(os.environ["PYTEST_XDIST_WORKER_COUNT"])]:
        # What is wrong with it is said when it is collected.
        with contextlib.suppress(Exception, pytest.skip.Exception):
            importlib.import_module(".".join(path.relative_to(ROOT).with_suffix("").parts))


def pytest_collection_finish() -> None:
    if "torch" in sys.modules:
        translate_once()
    gc.freeze()  # What is imported by now is no garbage, and takes a collection half a second to visit.


# The fast part of the tests.

_GPU_SECONDS = 900
"""Time limit of a GPU test; a file's first one waits for a run of many cases."""
LONGEST = (
    *("robustness/test_odd_models.py", "profiler/run/test_command.py", "profiler/run/test_largest_batch.py"),
    *("profiler/cluster/test_cluster.py", "robustness/test_kills.py", "profiler/test_measure.py"),
    *("profiler/recommend/test_artifact.py", "test_wheel.py", "profiler/worker/test_measure_case.py"),
    *("profiler/commands/test_build.py", "engines/test_trt_build.py"),
    *("exporters/test_onnx_export.py", "exporters/test_catalog.py", "exporters/test_build_model.py"),
    *("engines/test_training.py", "browser/test_page.py", "profiler/run/test_watch.py"),
    *("profiler/run/test_resume.py", "exporters/test_flops.py"),
    *("exporters/test_int8.py", "profiler/run/test_layer_job.py", "engines/test_sessions.py"),
    *("profiler/published/test_suites.py", "profiler/run/test_shapes.py"),
    *("profiler/report/test_report.py", "profiler/recommend/test_recommend.py", "robustness/test_folders.py"),
    "test_architecture.py",
)
"""Files of 10 to 130 seconds, the folder that takes longest first: each is one worker's, and the last of them would
end alone."""
ONE_WORKERS = ("browser", "engines", "exporters", "robustness")
"""Folders whose files share what a process does once, for seconds: start a browser, a compiler, an exporter, a runtime,
or the process that forks commands."""
SLOW_FIXTURES = {"forkserver", "command_line", "tab", "busy_processors"}
"""A test that asks for one of these, itself or through another fixture, starts a process."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--fast", action="store_true", help="only tests that start no process and import no torch")
    parser.addoption("--require-gpu", action="store_true", help="fail if there is no GPU or no gpu test ran")


def _is_slow(file: Path) -> bool:
    """Return True if the file imports torch or marks all of its tests `slow` or `gpu`."""
    for statement in ast.parse(file.read_text()).body:
        match statement:
            case ast.Import(names) if any(name.name.partition(".")[0] == "torch" for name in names):
                return True
            case ast.ImportFrom(module) if (module or "").partition(".")[0] == "torch":
                return True
            case ast.Assign([ast.Name("pytestmark")], value) if _FILE_MARKS & set(map(ast.unparse, ast.walk(value))):
                return True
    return False


_FILE_MARKS = {"pytest.mark.slow", "pytest.mark.gpu"}


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """With --fast leave slow files unread, since reading them would import torch."""
    if config.getoption("--fast") and collection_path.match("test_*.py") and _is_slow(collection_path):
        return True
    return None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark what is slow and skip what has no GPU; long files come first, so that parallel workers end together."""
    slow = {path for path in {item.path for item in items} if _is_slow(path)}
    for item in items:
        if item.path in slow or SLOW_FIXTURES & set(getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.slow)
        if item.get_closest_marker("gpu"):
            item.add_marker(pytest.mark.timeout(_GPU_SECONDS))
            if not visible_gpus() and not config.getoption("--require-gpu"):
                item.add_marker(pytest.mark.skip(reason="no NVIDIA GPU answers"))
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    places = {ROOT / "tests" / name: place for place, name in enumerate(LONGEST)}
    items.sort(key=lambda item: (item.path not in slow, places.get(item.path, len(places))))
    if config.getoption("--fast"):
        config.hook.pytest_deselected(items=[item for item in items if item.get_closest_marker("slow")])
        items[:] = [item for item in items if not item.get_closest_marker("slow")]


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Give a worker whole files, and of the folders in ONE_WORKERS all of them."""
    if config.getoption("dist") != "loadfile":
        return None
    from xdist.scheduler import LoadFileScheduling

    class ByFolder(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            folder = nodeid.removeprefix("tests/").partition("/")[0]
            return folder if folder in ONE_WORKERS else super()._split_scope(nodeid)

    return ByFolder(config, log)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Fail a test that starts a process and is not marked `slow`."""

    def refuse(*arguments: object, **options: object) -> None:
        raise AssertionError("this test starts a process: mark it pytest.mark.slow")

    with pytest.MonkeyPatch.context() as patch:
        if not item.get_closest_marker("slow"):
            patch.setattr(subprocess.Popen, "__init__", refuse)
            patch.setattr(BaseProcess, "start", refuse)
        return (yield)


class _NoTorch(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Fail every import of torch, which can be found all the same."""

    def find_spec(self, name: str, path: object, target: object = None) -> importlib.machinery.ModuleSpec | None:
        if name != "torch":
            return None
        found = importlib.machinery.PathFinder.find_spec(name)
        return found and importlib.machinery.ModuleSpec(name, self, origin=found.origin)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> None:
        """Give exec_module an empty module."""

    def exec_module(self, module: ModuleType) -> None:
        raise AssertionError("this test imports torch: mark it, or its file, pytest.mark.slow")


class _GpuTestsRan:
    def __init__(self, config: pytest.Config) -> None:
        self.required = bool(config.getoption("--require-gpu"))
        self.collected = self.ran = 0

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        self.collected = sum(item.get_closest_marker("gpu") is not None for item in session.items)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" and "gpu" in report.keywords and report.outcome != "skipped":
            self.ran += 1

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        expected = self.required or (self.collected and visible_gpus())
        if expected and not self.ran and session.exitstatus in (0, 5):
            print("\nA GPU is there (or was required), and no test marked gpu ran.")
            session.exitstatus = 1


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "gpu: needs an NVIDIA GPU")
    config.addinivalue_line("markers", "slow: starts a process, imports torch, or simulates for seconds")
    if config.getoption("--fast"):
        sys.meta_path.insert(0, _NoTorch())
    config.pluginmanager.register(_GpuTestsRan(config))
