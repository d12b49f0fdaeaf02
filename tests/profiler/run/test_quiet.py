"""Waiting for a quiet machine, and rows taken beside another run: with processes that really keep it busy."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import types
from collections.abc import Callable, Iterator
from pathlib import Path

import polars as pl
import pytest
from rich.console import Console
from runs import Profiler

from profiler import nvml as nvml_module
from profiler import processor
from profiler.errors import ConfigError
from profiler.job.case import CaseId
from profiler.options import Run
from profiler.processor import Load
from profiler.results.result import WAIT, Result, WallTime
from profiler.results.run_folder import read_lines
from profiler.results.warning_kinds import retaken
from profiler.run import device_lock, quiet
from profiler.run.command import execute
from profiler.run.device_lock import DeviceLock
from profiler.run.progress import PlainDisplay
from profiler.run.quiet import Quiet

pytestmark = pytest.mark.slow
ROOT = Path(__file__).resolve().parents[3]
JOB = """
models: [{name: net, factory: "tiny:net", input: [8]}]
engines: [eager, ort]
device: cpu
budget: {seconds: 0.05, min_samples: 3}
"""
HOLDER = """
import sys
from pathlib import Path
from profiler.run import device_lock
device_lock.lock_folder = lambda: Path(sys.argv[1])
with device_lock.DeviceLock("cpu", Path("/a/run")) as lock:
    print(lock.other(), flush=True)
    sys.stdin.read()
"""
BUSY_FOR_A_MOMENT = 0.03
"""Minutes."""
WAITING = "waiting for the machine to be quiet, until HH:MM at most"


class Told:
    """A display that keeps what it is told."""

    def __init__(self) -> None:
        self.announced: list[str] = []
        self.waited: list[str] = []

    def announce(self, what: str) -> None:
        self.announced.append(what)

    def waiting(self, what: str) -> None:
        self.waited.append(re.sub(r"until \d\d:\d\d at", "until HH:MM at", what))


@pytest.fixture
def locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder for locks which this process shares with the other run."""
    folder = tmp_path / "locks"
    folder.mkdir()
    monkeypatch.setattr(device_lock, "lock_folder", lambda: folder)
    return folder


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> str:
    """One for all runs, so that none but the first prepares the network."""
    return str(tmp_path_factory.mktemp("cache"))


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A folder with a job and its network."""
    (tmp_path / "job.yaml").write_text(JOB)
    (tmp_path / "tiny.py").write_text("from torch import nn\n\ndef net():\n    return nn.Linear(8, 8)\n")
    return tmp_path


@pytest.fixture
def other_run(locks: Path) -> Iterator[subprocess.Popen[str]]:
    """Another run on the CPU, which holds the lock until it is ended."""
    command = [sys.executable, "-c", HOLDER, str(locks)]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "None\n"
        yield process
        process.kill()


@pytest.fixture
def waiting(tmp_path: Path) -> Iterator[Callable[..., tuple[Quiet, Told, WallTime]]]:
    """`waiting(minutes)` is what looks at the machine for a run."""
    locks: list[DeviceLock] = []

    def make(minutes: float | None, gpu: str | None = None) -> tuple[Quiet, Told, WallTime]:
        locks.append(DeviceLock("cpu", tmp_path / "run"))
        told, wall = Told(), WallTime()
        return Quiet(locks[-1], gpu, minutes, told, wall), told, wall

    yield make
    for lock in locks:
        lock.__exit__()


def test_a_busy_machine_is_waited_for_and_then_measured_as_it_is(
    busy_processors: list[int], waiting: Callable[..., object]
) -> None:
    looks, told, wall = waiting(BUSY_FOR_A_MOMENT)
    looks.begin()
    looks.start()
    looks.start()
    assert told.waited
    assert all(f"{WAITING}: " in what and " processes took " in what for what in told.waited), told.waited
    (said,) = told.announced
    assert said.startswith("the machine is not quiet after 0.0300 minutes of waiting, and is measured as it is: ")
    assert wall.seconds[WAIT] > 0


def play(monkeypatch: pytest.MonkeyPatch, *others: float) -> list[float]:
    """Let other processes have these shares of two processors, a second each; returns those that are still to come."""
    left = list(others)
    reading = types.SimpleNamespace(since=lambda before: Load(1.0, 2, others=left.pop(0)))
    monkeypatch.setattr(processor, "read", lambda: reading)
    monkeypatch.setattr(quiet, "_SECONDS", 0.0)
    return left


def test_measuring_starts_as_soon_as_the_machine_is_quiet(monkeypatch, waiting: Callable[..., object]) -> None:
    left = play(monkeypatch, 0.48, 0.11, 0.01, 0.9)
    looks, told, _ = waiting(10.0)
    looks.start()
    start = f"{WAITING}: other processes took"
    assert told.waited == [f"{start} 48 % of 2 processors", f"{start} 11 % of 2 processors"]
    assert told.announced == []
    assert left == [0.9]


def test_who_waits_for_days_is_told_the_date(monkeypatch, waiting: Callable[..., object]) -> None:
    play(monkeypatch, 0.48, 0.01)
    looks, told, _ = waiting(float("inf"))
    looks.start()
    (said,) = told.waited
    assert re.search(r", until 20\d\d-\d\d-\d\d at most: other", said)


def test_nobody_waits_who_was_not_asked_to(monkeypatch, waiting: Callable[..., object]) -> None:
    left = play(monkeypatch, 0.48)
    looks, told, wall = waiting(None)
    looks.begin()
    looks.start()
    assert (left, told.waited, told.announced, dict(wall.seconds)) == ([0.48], [], [], {})


def test_a_gpu_that_others_use_is_waited_for(monkeypatch, waiting: Callable[..., object]) -> None:
    """With a simulated driver."""
    play(monkeypatch, *[0.0] * 9)
    users, utilization = [2, 1, 0, 0], [37, 4]
    driver = types.SimpleNamespace(
        NVMLError=RuntimeError,
        nvmlDeviceGetHandleByUUID=lambda uuid: uuid,
        nvmlDeviceGetComputeRunningProcesses=lambda handle: ["a process"] * users.pop(0),
        nvmlDeviceGetUtilizationRates=lambda handle: types.SimpleNamespace(gpu=utilization.pop(0)),
    )
    monkeypatch.setattr(nvml_module, "_nvml", lambda: driver)
    looks, told, _ = waiting(10.0, gpu="GPU-1")
    looks.start()
    whys = ("other processes on the GPU: 2", "other processes on the GPU: 1", "the GPU is busy for 37 % of the time")
    assert told.waited == [f"{WAITING}: {why}" for why in whys]
    assert (users, utilization) == ([], [])


def test_another_run_is_waited_for(monkeypatch, other_run, waiting: Callable[..., object]) -> None:
    play(monkeypatch, *[0.0] * 99)
    looks, told, _ = waiting(10.0)

    def waiting_for(what: str) -> None:
        Told.waiting(told, what)
        other_run.kill()
        other_run.wait()

    told.waiting = waiting_for
    looks.begin()
    who = f"another run (process {other_run.pid}, into /a/run)"
    assert told.waited == [f"{WAITING}: {who} measures on this device"]
    assert told.announced == []


def test_a_run_beside_another_says_so_and_all_of_its_rows_do(
    place: Path, cache: str, other_run: subprocess.Popen[str], profiler: Profiler
) -> None:
    done = profiler("job.yaml", cwd=place, PROFILER_CACHE=cache)
    assert done.returncode == 0, done.stdout + done.stderr
    who = f"another run (process {other_run.pid}, into /a/run)"
    assert f"{who} measures on this device: figures will be disturbed; " in done.stdout
    (run,) = (place / "results").iterdir()
    rows = pl.read_parquet(run / "results.parquet")
    assert rows["status"].to_list() == ["ok", "ok"]
    for warnings in rows["warnings"]:
        assert f"disturbed: {who} measured on the same device" in warnings


def test_an_interrupt_ends_a_run_that_waits(
    place: Path, cache: str, monkeypatch: pytest.MonkeyPatch, profiler: Profiler
) -> None:
    reading = types.SimpleNamespace(since=lambda before: Load(1.0, 2, others=0.9))
    monkeypatch.setattr(processor, "read", lambda: reading)
    monkeypatch.setattr(PlainDisplay, "waiting", lambda display, what: os.kill(os.getpid(), signal.SIGINT))
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # A shell's background job ignores it.
    try:
        done = profiler("job.yaml", "--wait-for-idle", "10", cwd=place, PROFILER_CACHE=cache)
    finally:
        signal.signal(signal.SIGINT, before)
    assert done.returncode == 130
    assert "Interrupted; go on with: python -m profiler --resume " in done.stdout
    assert done.stdout.rstrip().endswith("--wait-for-idle 10")


def test_what_was_disturbed_is_measured_again_once_the_other_work_has_ended(
    place: Path,
    cache: str,
    monkeypatch: pytest.MonkeyPatch,
    busy_processors: list[int],
    profiler: Profiler,
) -> None:
    announce = PlainDisplay.announce

    def end_other_work(display: PlainDisplay, what: str) -> None:
        announce(display, what)
        for pid in busy_processors if " again" in what else []:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    monkeypatch.setattr(PlainDisplay, "announce", end_other_work)
    (place / "job.yaml").write_text(JOB.replace("seconds: 0.05", "seconds: 0.3, repeats: 3"))
    done = profiler("job.yaml", cwd=place, PROFILER_CACHE=cache)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "\nmeasuring 2 cases again\n" in done.stdout
    (run,) = (place / "results").iterdir()
    takes: dict[CaseId, list[Result]] = {}
    for line in read_lines(run / "journal.jsonl")[0]:
        result = Result.from_json(line)
        takes.setdefault(result.case_id, []).append(result)
    # On a machine that others keep busy, too, a later take may be no less disturbed, and then it does not count.
    assert len(takes) == 2
    for first, *others in takes.values():  # An inconsistent one may have more reasons.
        (why,) = (warning.text for warning in first.warnings if warning.kind == "disturbed")
        shares = [result.figures["disturbance"] for result in (first, *others) if retaken(result.warnings)]
        assert shares == sorted(shares, reverse=True), "each that counted was less disturbed than the one before"
        for result in others:
            (reason,) = (warning.text for warning in result.warnings if warning.kind == "remeasured")
            assert reason.startswith("the first take was ")
            assert f"disturbed: {why}" in reason


def test_a_wait_of_seconds_is_refused_as_minutes() -> None:
    with pytest.raises(ConfigError, match=r"--wait-for-idle 0.05: it is in minutes; give 0.1 or more"):
        execute(Run(config="resnet18", wait_for_idle=0.05), Console())
