"""Runs on one device that notice each other: locks that other processes really hold."""

from __future__ import annotations

import fcntl
import os
import signal
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from profiler.run import device_lock
from profiler.run.device_lock import DeviceLock

ROOT = Path(__file__).resolve().parents[3]
OTHER = """
import sys
from pathlib import Path
from profiler.run import device_lock
device_lock.lock_folder = lambda: Path(sys.argv[1])
with device_lock.DeviceLock(sys.argv[2], Path("/a/run")) as lock:
    for line in sys.stdin:
        print(lock.other(measures=line == "measure\\n"), flush=True)
"""


class Other:
    """Another run, in a process of its own."""

    def __init__(self, folder: Path, device: str) -> None:
        command = [sys.executable, "-c", OTHER, str(folder), device]
        self.process = subprocess.Popen(
            command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
        )
        self.words = f"another run (process {self.process.pid}, into /a/run)"

    def looks(self, how: str = "measure") -> str:
        print(how, file=self.process.stdin, flush=True)
        return self.process.stdout.readline().strip()

    def end(self, signal_: int = signal.SIGKILL) -> None:
        self.process.send_signal(signal_)
        self.process.communicate()


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(device_lock, "lock_folder", lambda: tmp_path)
    return tmp_path


@pytest.fixture
def other(folder: Path) -> Iterator[Callable[..., Other]]:
    """`other()` is another run's process; it has not looked yet."""
    started: list[Other] = []

    def start(device: str = "cpu") -> Other:
        started.append(Other(folder, device))
        return started[-1]

    yield start
    for each in started:
        each.end()


pytestmark = pytest.mark.slow
OWN = f"another run (process {os.getpid()}, into /my/run)"


@pytest.fixture
def lock(folder: Path) -> Iterator[DeviceLock]:
    with DeviceLock("cpu", Path("/my/run")) as lock:
        yield lock


def test_a_run_that_began_first_is_noticed_until_it_is_killed(lock: DeviceLock, other: Callable[..., Other]) -> None:
    first = other()
    assert first.looks() == "None"
    assert lock.other() == first.words
    first.end(signal.SIGKILL)
    assert lock.other() is None
    assert other().looks() == OWN


def test_the_first_run_notices_the_ones_that_measure_although_it_does(lock, other: Callable[..., Other]) -> None:
    assert lock.other() is None
    second, third = other(), other()
    assert second.looks() == OWN
    assert lock.other() == second.words
    assert third.looks() == OWN
    second.end()
    assert lock.other() == third.words
    third.end()
    assert lock.other() is None


def test_a_run_that_waits_disturbs_nobody(lock: DeviceLock, other: Callable[..., Other]) -> None:
    assert lock.other() is None
    second = other()
    assert second.looks("wait") == OWN
    assert lock.other() is None
    assert second.looks("measure") == OWN
    assert second.looks("wait") == OWN
    assert lock.other() is None


def test_runs_on_two_devices_say_nothing(lock: DeviceLock, other: Callable[..., Other]) -> None:
    assert lock.other() is None
    second = other("GPU-1")
    assert second.looks() == "None"
    assert other("GPU-2").looks() == "None"
    assert lock.other() is None


def test_a_run_is_named_by_its_whole_path(folder: Path, other: Callable[..., Other], monkeypatch) -> None:
    monkeypatch.chdir(folder)
    with DeviceLock("cpu", Path("results/run")) as lock:
        assert lock.other() is None
        assert other().looks() == f"another run (process {os.getpid()}, into {folder}/results/run)"


def test_every_user_can_lock_the_files(lock: DeviceLock, folder: Path) -> None:
    lock.other()
    assert {stat.S_IMODE(file.stat().st_mode) for file in folder.iterdir()} == {0o666}


@pytest.mark.parametrize("content", ["", "{", "[]", '{"pid": 7}', "\x00\xff"])
def test_a_lock_that_does_not_say_whose_it_is_is_noticed(lock: DeviceLock, folder: Path, content: str) -> None:
    with (folder / "runtime-profiler-cpu.lock").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        held.write(content)
        held.flush()
        assert lock.other() == "another run"


def test_a_file_that_may_only_be_read_is_locked_all_the_same(folder: Path, other: Callable[..., Other]) -> None:
    first = other()
    assert first.looks() == "None"
    for file in folder.iterdir():
        file.chmod(0o444)
    with DeviceLock("cpu", Path("/my/run")) as lock:
        assert lock.other() == first.words


def test_a_folder_that_cannot_be_written_breaks_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_lock, "lock_folder", lambda: tmp_path / "is" / "not" / "there")
    with DeviceLock("cpu", Path("/my/run")) as lock:
        assert lock.other() is None
        assert lock.other(measures=False) is None


def test_a_file_system_without_locks_breaks_nothing(lock: DeviceLock, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_locks(file: int, how: int) -> None:
        raise OSError(37, "No locks available")

    monkeypatch.setattr(fcntl, "flock", no_locks)
    assert lock.other() is None
    assert lock.other(measures=False) is None
