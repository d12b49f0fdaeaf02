"""The file between the process that reads a GPU and the run that takes a case's readings out of it."""

from __future__ import annotations

import types
from pathlib import Path

import pytest

from profiler import nvml
from profiler.nvml import Reading
from profiler.processes.messages import Outcome
from profiler.processes.process import Call
from profiler.run import telemetry
from profiler.run.telemetry import Watcher


class Reader:
    """Stands for the process that writes telemetry.csv; the test writes the lines itself."""

    ended = False
    lives = True

    def __init__(self, call: Call) -> None:
        assert call.timeout == float("inf"), "a run may last longer than a case"

    def poll(self) -> Outcome | None:
        return None if self.lives else Outcome("crashed", "the disk is full")

    def kill(self) -> None:
        Reader.ended = True


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(telemetry, "Child", Reader)
    return tmp_path / "telemetry.csv"


def test_a_case_gets_the_readings_of_its_own_time(path: Path) -> None:
    with Watcher("GPU-1", path, path) as watcher, path.open("a") as file:
        file.writelines(f"{second},100,{200 + second},1980,40,0\n" for second in range(10))
        file.flush()
        assert [reading.power_w for reading in watcher.between(3.0, 5.0)] == [203.0, 204.0, 205.0]
        file.write("10,100,")
        file.flush()
        assert [reading.seconds for reading in watcher.between(8.0, 20.0)] == [8.0, 9.0]
        file.write(",1980,,4\n")
        file.flush()
        assert watcher.between(10.0, 20.0) == [Reading(10.0, 100.0, None, 1980.0, None, 4)]
    assert Reader.ended
    assert path.read_text().splitlines()[0] == "seconds,memory_mib,power_w,sm_clock_mhz,temperature_c,reasons"


def test_a_resumed_run_goes_on_with_its_file(path: Path) -> None:
    path.write_text("seconds,memory_mib,power_w,sm_clock_mhz,temperature_c,reasons\n1,100,200,1980,40,0\n")
    with Watcher("GPU-1", path, path) as watcher, path.open("a") as file:
        file.write("2,100,201,1980,40,0\n")
        file.flush()
        assert [reading.seconds for reading in watcher.between(0.0, 9.0)] == [2.0]
    assert len(path.read_text().splitlines()) == 3


def test_a_reader_that_ended_is_noticed_and_another_goes_on(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Watcher("GPU-1", path, path) as watcher, path.open("a") as file:
        assert not watcher.ended()
        monkeypatch.setattr(Reader, "lives", False)
        assert watcher.ended()
        monkeypatch.setattr(Reader, "lives", True)
        assert not watcher.ended()
        file.write("1,100,20")  # The first one's last word, in which the second one's first begins.
        file.write("2,100,202,1980,40,0\n3,100,203,1980,40,0\n")
        file.flush()
        assert [reading.power_w for reading in watcher.between(0.0, 9.0)] == [203.0]


def test_readers_that_end_again_and_again_are_given_up(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Reader, "lives", False)
    with Watcher("GPU-1", path, path) as watcher:
        for _ in range(telemetry._MOST_STARTS):
            assert watcher.ended()
        monkeypatch.setattr(telemetry, "Child", lambda call: pytest.fail("started once more"))
        assert watcher.ended()


def test_watching_writes_lines_that_can_be_read(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    driver = types.SimpleNamespace(
        NVMLError=RuntimeError,
        NVML_CLOCK_SM=1,
        NVML_TEMPERATURE_GPU=0,
        nvmlDeviceGetHandleByUUID=lambda uuid: uuid,
        nvmlDeviceGetPowerUsage=lambda handle: 90_500,
    )
    monkeypatch.setattr(nvml, "_nvml", lambda: driver)
    rounds = iter(range(3))

    def sleep(seconds: float) -> None:
        assert seconds <= 0.1
        if next(rounds, None) is None:
            raise KeyboardInterrupt

    monkeypatch.setattr(telemetry.time, "sleep", sleep)
    with Watcher("GPU-1", path, path) as watcher:
        with pytest.raises(KeyboardInterrupt):
            telemetry.watch(("GPU-1", path), lambda message: None)
        readings = watcher.between(0.0, float("inf"))
    assert [reading.power_w for reading in readings] == [90.5] * 4
    assert {reading.reasons for reading in readings} == {None}


def test_without_a_gpu_nothing_is_watched(tmp_path: Path) -> None:
    with Watcher(None, tmp_path / "telemetry.csv", tmp_path / "log") as watcher:
        assert watcher.between(0.0, float("inf")) == []
    assert list(tmp_path.iterdir()) == []
