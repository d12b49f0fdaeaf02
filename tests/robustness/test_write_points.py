"""Every step that writes into a run's folder fails, or is the last before a kill: what was there is there."""

from __future__ import annotations

import contextlib
import errno
import itertools
import json
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from rich.console import Console

from profiler.errors import ConfigError
from profiler.job.config import load_config
from profiler.job.plan import make_plan
from profiler.machine.target import Target
from profiler.results.result import Result
from profiler.results.run_folder import RunFolder, writing
from profiler.run.command import write_results
from profiler.run.progress import Display
from profiler.run.runner import Runner

pytestmark = pytest.mark.slow
JOB = "{models: [alexnet, resnet18], engines: [eager], precisions: [fp32], batch_sizes: [1, 2], device: cpu}"
ROWS = 4
STRIDE = 5
"""In CI one step of so many fails, which differs by file: a file takes four. In a soak each does."""
KILL, FULL, BROKEN = "kill", "full from then on", "broken once"


class Killed(BaseException):
    """The process is no more: from here on it does nothing."""


class Disk:
    """The steps by which this process changes a folder, of which the one at `at` has the fault."""

    def __init__(self, folder: Path, at: int, fault: str) -> None:
        self.folder, self.at, self.fault, self.steps, self.dead = folder, at, fault, 0, False

    def step(self, path: Path, half: Callable[[], object] = lambda: None, takes_room: bool = True) -> None:
        """Count a step, after `half` of which its fault comes."""
        if self.dead:
            raise Killed
        number, self.steps = self.steps, self.steps + 1
        if number < self.at or (number > self.at and not (self.fault == FULL and takes_room)):
            return
        if number == self.at:
            half()
        if self.fault == KILL:
            self.dead = True
            raise Killed
        if self.fault == BROKEN or takes_room:
            code = errno.ENOSPC if self.fault == FULL else errno.EIO
            raise OSError(code, os.strerror(code), str(path))

    def has(self, path: Path) -> bool:
        return Path(path).is_relative_to(self.folder)


class _File:
    """A file that is open to be written, and whose writes are steps."""

    def __init__(self, file: Any, path: Path, disk: Disk) -> None:
        self._file, self._path, self._disk = file, path, disk

    def write(self, data: Any) -> int:
        def half() -> None:
            self._file.write(data[: len(data) // 2])
            self._file.flush()

        self._disk.step(self._path, half)
        return self._file.write(data)

    def __enter__(self) -> _File:
        return self

    def __exit__(self, *error: object) -> None:
        self._file.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


@contextlib.contextmanager
def faulty(disk: Disk) -> Iterator[None]:
    """Have this process write through `disk`."""
    plain = {name: getattr(Path, name) for name in ("open", "replace", "rename", "unlink", "mkdir")}
    sync = os.fsync

    def opened(path: Path, mode: str = "r", *arguments: Any, **more: Any) -> Any:
        if not disk.has(path) or not set(mode) & set("wax+"):
            return plain["open"](path, mode, *arguments, **more)
        disk.step(path)
        return _File(plain["open"](path, mode, *arguments, **more), path, disk)

    def changed(name: str) -> Callable[..., Any]:
        def call(path: Path, *arguments: Any, **more: Any) -> Any:
            if disk.has(path):
                disk.step(path, takes_room=name == "mkdir")
            return plain[name](path, *arguments, **more)

        return call

    def synced(file: int) -> None:
        disk.step(Path(f"/proc/self/fd/{file}").readlink())
        sync(file)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Path, "open", opened)
        for name in ("replace", "rename", "unlink", "mkdir"):
            patch.setattr(Path, name, changed(name))
        patch.setattr(os, "fsync", synced)
        yield


class Job:
    """Write what a resumed run writes while it measures the last rows, with figures made by hand."""

    def __init__(self, folder: Path) -> None:
        file = folder / "job.yaml"
        file.write_text(JOB)
        self.config = load_config(file, "cpu")
        self.plan = make_plan(self.config, "cpu")
        assert len(self.plan) == ROWS

    def begin(self, path: Path) -> None:
        path.mkdir()
        (path / "logs").mkdir()
        self.go_on(path, self.plan[: ROWS // 2])

    def go_on(self, path: Path, cases: Any = None) -> None:
        """Resume it, as the command does, but for the measuring."""
        run = RunFolder(path)
        with writing(path):
            run.write_config(self.config)
            environment = run.read_environment() | {"device": "cpu", "cpu": "a processor"}
            run.write_environment(environment)
            run.write_models({})
            known = run.results()
            for case in cases or self.plan:
                if case.id not in known:
                    run.append(Result(case.id, "ok", clock="host", samples={"host": [1.0, 2.0, 3.0]}, throughput=1.0))
            console = Console(quiet=True)
            runner = Runner(run, self.config, Target("cpu"), self.plan, self.plan, environment, Display(console))
            write_results(runner, console)


def rows(path: Path) -> set[str]:
    """Read the journal without knowing how it is written."""
    found = set()
    for line in (path / "journal.jsonl").read_bytes().splitlines():
        with contextlib.suppress(ValueError):
            found.add(json.loads(line)["case_id"])
    return found


def damaged(path: Path, before: Path) -> list[str]:
    """The files that are neither whole nor as they were, and those that are gone."""
    names = [file.relative_to(before) for file in before.rglob("*")]
    found = [f"{name} is gone" for name in names if not (path / name).exists()]
    for file in (each for each in path.rglob("*") if each.is_file() and not each.name.endswith(".tmp")):
        try:
            match file.suffix:
                case ".json":
                    json.loads(file.read_bytes())
                case ".parquet":
                    pl.read_parquet(file)
                case ".csv" | ".md" | ".yaml":
                    assert file.read_text().endswith("\n")
        except Exception as error:
            found.append(f"{file.name}: {type(error).__name__}")
    return found


def attempt(job: Job, path: Path, disk: Disk) -> str | None:
    """Go on with the run on that disk; returns what was wrong with how it ended."""
    try:
        with faulty(disk):
            job.go_on(path)
    except Killed:
        return None
    except ConfigError as error:
        text = str(error)
        said = disk.fault != KILL and "--resume" in text and ("No space left" in text or "Input/output" in text)
        return None if said else f"says {text}"
    except BaseException as error:
        return f"raises {error!r}"
    return None


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Job:
    return Job(tmp_path_factory.mktemp("job"))


@pytest.fixture(scope="module")
def begun(job: Job, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("begun") / "run"
    job.begin(path)
    return path


def test_no_step_that_fails_costs_what_was_there(soak, job, begun, tmp_path):
    counting = Disk(tmp_path, -1, "none")
    shutil.copytree(begun, tmp_path / "counted")
    assert attempt(job, tmp_path / "counted", counting) is None
    assert rows(tmp_path / "counted") == {str(case.id) for case in job.plan}
    assert counting.steps > 50
    tried, wrong, lost = 0, [], 0
    steps = range(0, counting.steps, 1 if soak.is_large else STRIDE)
    for rng, at in itertools.product(soak.trials(1, 0.2), steps):
        path, fault = tmp_path / "run", rng.choice((KILL, FULL, BROKEN))
        shutil.copytree(begun, path)
        tried += 1
        problems = [attempt(job, path, Disk(path, at, fault)), *damaged(path, begun)]
        kept, before = rows(path), rows(begun)
        job.go_on(path)
        ended = set(pl.read_parquet(path / "results.parquet")["case_id"])
        lost += len(before - kept) + len(kept - ended) + ROWS - len(ended)
        problems += [str(left) for left in path.rglob("*.tmp") if fault != KILL]
        wrong += [f"step {at}, {fault}: {each}" for each in problems if each]
        shutil.rmtree(path)
    print(*wrong, sep="\n")
    faults = (KILL, FULL, BROKEN)
    soak.count("write points that fail or are the last", tried, tried - len(wrong), faults, rows_lost=lost)
