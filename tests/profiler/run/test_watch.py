"""A GPU's readings, other runs on the device and other work: with processes that really hold locks and keep busy."""

from __future__ import annotations

import io
import itertools
import os
import signal
import subprocess
import sys
import types
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from rich.console import Console
from runs import Told, finish

from exporters.source import ModelSource
from profiler.job.case import Case
from profiler.machine import processor
from profiler.machine.nvml import Reading
from profiler.machine.processor import Load
from profiler.processes.process import Call
from profiler.results.result import Result
from profiler.run import progress, watch
from profiler.run.progress import Display
from profiler.run.watch import DeviceLock, Quiet, Watcher

ROOT = Path(__file__).resolve().parents[3]
HEAD = "seconds,memory_mib,power_w,sm_clock_mhz,temperature_c,reasons"


class Reader:
    """Stand for the process that writes telemetry.csv; the test writes the lines itself."""

    killed = False
    started = 0
    ended: str | None = None

    def __init__(self, call: Call) -> None:
        Reader.started += 1
        self.call = call
        assert call.timeout == float("inf"), "a run may last longer than a case"

    def poll(self) -> str | None:
        ended, Reader.ended = Reader.ended, None
        return ended

    def kill(self) -> None:
        Reader.killed = True


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(watch, "Child", Reader)
    return tmp_path / "telemetry.csv"


def test_a_case_gets_the_readings_of_its_own_time(path):
    with Watcher("GPU-1", path, path) as watcher, path.open("a") as file:
        file.writelines(f"{second},100,{200 + second},1980,40,0\n" for second in range(10))
        file.flush()
        assert [reading.power_w for reading in watcher.between(3.0, 5.0)] == [203.0, 204.0, 205.0]
        file.write("10,100,")
        file.flush()
        assert [reading.seconds for reading in watcher.between(8.0, 20.0)] == [8.0, 9.0]
        file.write(",1980,,4\nhalf a li\n")
        file.flush()
        assert watcher.between(10.0, 20.0) == [Reading(10.0, 100.0, None, 1980.0, None, 4)]
    assert path.read_text().splitlines()[0] == HEAD
    with Watcher("GPU-1", path, path) as watcher, path.open("a") as file:  # A resumed run goes on with its file.
        file.write("2,100,201,1980,40,0\n")
        file.flush()
        started, Reader.ended = Reader.started, "crashed"
        assert [reading.seconds for reading in watcher.between(0.0, 9.0)] == [2.0]
        assert Reader.started == started + 1, "one that has ended is started again"
    assert Reader.killed
    assert path.read_text().count(HEAD) == 1


def test_without_a_gpu_nothing_is_watched(tmp_path):
    with Watcher(None, tmp_path / "telemetry.csv", tmp_path / "log") as watcher:
        assert watcher.between(0.0, float("inf")) == []
    assert list(tmp_path.iterdir()) == []


# Other runs.

HOLDER = """
import sys
from pathlib import Path
from profiler.run import watch
watch.lock_folder = lambda: Path(sys.argv[1])
with watch.DeviceLock("cpu") as lock:
    print(lock.is_taken(), flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "locks"
    folder.mkdir()
    monkeypatch.setattr(watch, "lock_folder", lambda: folder)
    return folder


@pytest.fixture
def other_run(locks: Path) -> Iterator[subprocess.Popen[str]]:
    """Another run on the CPU, which holds the lock until it is ended."""
    command = [sys.executable, "-c", HOLDER, str(locks)]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stdout.readline() == "False\n"
        yield process
        process.kill()


@pytest.mark.slow
def test_a_run_on_the_device_is_noticed_until_it_is_killed(other_run):
    with DeviceLock("cpu") as lock, DeviceLock("GPU-1") as gpu:
        assert lock.is_taken()
        assert not gpu.is_taken()
        other_run.kill()
        other_run.wait()
        assert [lock.is_taken(), lock.is_taken()] == [False, False]
        with DeviceLock("cpu") as second:
            assert second.is_taken()


def test_a_folder_that_cannot_be_written_breaks_nothing(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setattr(watch, "lock_folder", lambda: tmp_path / "file" / "is" / "no" / "folder")
    with DeviceLock("cpu") as lock:
        assert not lock.is_taken()


def test_another_users_run_can_open_the_lock_whatever_the_umask(locks):
    before = os.umask(0o077)
    try:
        with DeviceLock("cpu") as lock:
            assert not lock.is_taken()
    finally:
        os.umask(before)
    (file,) = locks.iterdir()
    assert file.stat().st_mode & 0o777 == 0o644


# Waiting.

WAITING = "waiting up to 10 min 0 s for the machine to be quiet"
OTHER_RUN = "another run measures on this device"


Waiting = Callable[..., tuple[Quiet, Told]]


@pytest.fixture
def waiting() -> Iterator[Waiting]:
    """`waiting(minutes)` is what looks at the machine for a run."""
    locks: list[DeviceLock] = []

    def make(minutes: float, gpu: str | None = None, **patience: float) -> tuple[Quiet, Told]:
        locks.append(DeviceLock("cpu"))
        told = Told()
        return Quiet(locks[-1], gpu, minutes, told, **patience), told

    yield make
    for lock in locks:
        lock.__exit__()


def play(monkeypatch: pytest.MonkeyPatch, *others: float) -> list[float]:
    """Let other processes have these shares of two processors, a second each; returns those that are still to come."""
    left = list(others)
    reading = types.SimpleNamespace(since=lambda before: Load(1.0, 2, others=left.pop(0)))
    monkeypatch.setattr(processor, "read", lambda: reading)
    monkeypatch.setattr(watch, "UTILIZATION_SECONDS", 0.0)
    return left


@pytest.mark.slow
def test_a_busy_machine_is_waited_for_and_then_measured_as_it_is(busy_processors, waiting):
    assert watch.busy_share() > 0.1
    looks, told = waiting(0.03)
    looks.start()
    looks.start()
    assert told.waited
    assert all(what.startswith("waiting up to 2 s") and " took " in what for what in told.waited), told.waited
    (said,) = told.announced
    assert said.startswith("measuring beside other work: ")


def test_measuring_starts_as_soon_as_the_machine_is_quiet(monkeypatch, waiting):
    left = play(monkeypatch, 0.48, 0.11, 0.01, 0.9)
    looks, told = waiting(10.0)
    looks.start()
    assert told.waited == [f"{WAITING}: other processes took 48 % of the processors' time"] * 2
    looks, told = waiting(0.0)  # Nobody waits who was not asked to.
    looks.start()
    assert (left, told.waited, told.announced) == ([0.9], [], [])


def test_all_waits_together_end_with_the_patience(monkeypatch, waiting):
    left = play(monkeypatch, *[0.48] * 9)
    now = itertools.count(0.0, 1.0)
    monkeypatch.setattr(watch.time, "monotonic", lambda: next(now))
    looks, told = waiting(10.0, patience=6.0)
    for _ in range(3):
        looks.start()
    assert told.waited[0].startswith("waiting up to 6 s")
    assert (len(told.waited), len(left)) == (5, 1), "the later ones look once"


def test_a_gpu_that_others_use_is_waited_for(monkeypatch, waiting):
    play(monkeypatch, *[0.0] * 9)
    users, utilization = [2, 1, 0, 0], [0.37, 0.04]
    nvml = types.SimpleNamespace(pids=lambda: range(users.pop(0)), utilization=lambda: utilization.pop(0))
    monkeypatch.setattr(watch, "Nvml", lambda uuid: nvml)
    looks, told = waiting(10.0, gpu="GPU-1")
    looks.start()
    assert told.waited == [f"{WAITING}: other processes on the GPU: 2"] * 3
    assert (users, utilization) == ([], [])


@pytest.mark.parametrize(
    ("others", "had", "share"), [(0.4, 0.5, 0.5), (0.0, 0.5, 0.0), (0.4, 1.0, 0.0), (None, 0.5, 0.5)]
)
def test_a_machine_is_busy_where_others_take_what_threads_could_have(monkeypatch, others, had, share):
    cores = watch.usable_cores()
    load = Load(2.0, cores, others=others)
    monkeypatch.setattr(processor, "read", lambda: types.SimpleNamespace(since=lambda before: load))
    monkeypatch.setattr(watch, "_LOOK_SECONDS", 0.0)
    monkeypatch.setattr(watch.time, "thread_time", lambda: 2.0 * had)
    assert watch.busy_share() == pytest.approx(share)


@pytest.mark.parametrize(
    ("is_live", "looks", "waited", "announced"),
    [
        (True, [False], 0, []),
        (True, [True, True, False], 2, ["figures would be useless"]),
        (True, [True] * 99, 29, ["useless", "figures would be useless; --wait-for-idle 10 waits for its end"]),
        (False, [True], 0, ["figures would be useless; --wait-for-idle 10 waits for its end"]),
        (True, [True, KeyboardInterrupt(signal.SIGINT)], 1, ["useless", "Measuring beside other work"]),
    ],
)
def test_a_busy_machine_is_waited_for_a_minute_where_somebody_looks(monkeypatch, is_live, looks, waited, announced):
    now = [0.0]

    def look() -> bool:
        now[0] += 2.0
        if isinstance(found := looks.pop(0), BaseException):
            raise found
        return bool(found)

    monkeypatch.setattr(watch, "busy_share", look)
    monkeypatch.setattr(watch, "time", types.SimpleNamespace(monotonic=lambda: now[0], sleep=lambda seconds: None))
    monkeypatch.setattr(Told, "is_live", is_live)
    watch.await_quiet(told := Told())
    assert len(told.waited) == waited
    assert {*told.waited} <= {"waiting up to 60 s for a quiet machine, Ctrl-C to measure anyway"}
    assert [text[-len(end) :] for text, end in zip(told.announced, announced, strict=True)] == announced


def test_what_ends_the_program_ends_the_wait(monkeypatch):
    def terminated() -> bool:
        raise KeyboardInterrupt(signal.SIGTERM)

    monkeypatch.setattr(watch, "busy_share", terminated)
    with pytest.raises(KeyboardInterrupt):
        watch.await_quiet(Told())


@pytest.mark.slow
def test_another_run_is_waited_for(monkeypatch, other_run, waiting):
    left = play(monkeypatch, *[0.0] * 3)
    looks, told = waiting(10.0)

    def end_it(what: str) -> None:
        Told.doing(told, what)
        other_run.kill()
        other_run.wait()

    monkeypatch.setattr(told, "doing", end_it)
    looks.start()
    assert (told.waited, told.announced) == ([f"{WAITING}: {OTHER_RUN}"], [])
    assert left == [0.0], "each look takes its second"


# Real runs.

JOB = """
models: [{name: net, factory: "tiny:net", input: [8]}]
engines: [eager, ort]
device: cpu
budget: {seconds: 0.05, min_samples: 3}
"""


@pytest.mark.slow
@pytest.mark.usefixtures("other_run")
def test_a_run_beside_another_says_so_and_all_of_its_rows_do(tmp_path, profiler):
    (tmp_path / "tiny.py").write_text("from torch import nn\n\ndef net():\n    return nn.Linear(8, 8)\n")
    run = finish(profiler, tmp_path, JOB, PROFILER_CACHE=str(tmp_path / "cache"))
    assert f"measuring beside other work: {OTHER_RUN}; " in run.done.stdout
    assert run.rows["status"].to_list() == ["ok", "ok"]
    assert all("disturbed: another run measured on the same device" in warnings for warnings in run.rows["warnings"])


# How a run's progress is shown.

CASE = Case("alexnet", "ort", "ort", "inference", "fp32", 1, "cpu", 0, ModelSource("alexnet"))


def test_a_log_has_a_line_an_ended_case_and_one_a_wait():
    output = io.StringIO()
    display = Display(Console(file=output, width=120))
    for _ in range(2):
        display.doing("waiting: other processes took 48 %")
    display.measuring(CASE, "start", 2, 16, 0.0)
    display.ended(Result(CASE.id, "ok", clock="host", samples={"host": [4.0, 1.0, 2.0, 3.0]}))
    for log in ("a.log", "b.log"):  # Two cases of a model that cannot be loaded.
        display.ended(Result(CASE.id, "failed", ["no luck"], log=log))
    for _ in range(2):
        display.ended(Result(CASE.id, "timeout", ["too long"], phases={"measure": 9.0}), counts=False)
    assert output.getvalue().splitlines() == [
        "waiting: other processes took 48 %",
        f"[3/16] ok          {CASE.id}  2.500 ms, 4 samples",
        f"[3/16] failed      {CASE.id}  no luck (log: a.log)",
        *[f"[3/16] timeout     {CASE.id}  too long: the earlier measurement was quieter and stays"] * 2,
    ]


def test_a_silent_log_gets_a_line_after_five_seconds_and_the_same_one_after_a_minute(monkeypatch):
    output, now = io.StringIO(), [0.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    display = Display(Console(file=output, width=120))
    display.doing("measuring", 0, 24)
    for second in range(1, 90):
        now[0] = second
        display.doing("measuring", second // 80, 24)
    lines = ["measuring", "  measuring, 0 of 24", "  measuring, 0 of 24", "  measuring, 1 of 24"]
    assert output.getvalue().splitlines() == lines


def test_a_terminal_shows_what_is_waited_for_and_keeps_what_is_announced():
    output = io.StringIO()
    with Display(Console(file=output, width=120, force_terminal=True)) as display:
        display.doing("waiting: other processes took 48 %")
        display.announce("measuring 3 cases again")
    assert "waiting: other processes took 48 %" in output.getvalue()
    assert "measuring 3 cases again\n" in output.getvalue().replace("\r", "")
