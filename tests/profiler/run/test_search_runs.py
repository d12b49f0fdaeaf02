"""Searches for the largest batch: whole runs on tiny networks, of which some do not fit."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from runs import Profiler

from profiler import load_largest_batches
from profiler.job.case import CaseId
from profiler.run.progress import PlainDisplay

FACTORIES = """
import os
import signal
from pathlib import Path

import torch
from torch import nn


def plain():
    return nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(288, 10))


def wide():
    return nn.Linear(1, 1 << 20)


class Bounded(nn.Module):
    '''Does `what` for more items than `above`, where the file `marker` is or none is asked for; writes down each call.

    The reference has 8 items, so the bound is never below that.
    '''

    def __init__(self, what, above, trace, marker=None):
        super().__init__()
        self.model, self.what, self.above, self.trace, self.marker = plain(), what, above, trace, marker
        self.serial = int.from_bytes(os.urandom(6))

    def forward(self, x):
        with open(self.trace, "a") as file:
            print(os.getpid(), self.serial, len(x), file=file)
        if len(x) > self.above and (self.marker is None or Path(self.marker).exists()):
            self.what()
        return self.model(x)


def hungry(**options):
    return Bounded(lambda: torch.empty(1 << 50), **options)


def crashing(**options):
    return Bounded(lambda: os.kill(os.getpid(), signal.SIGSEGV), **options)


def short(**options):
    def raise_it():
        raise RuntimeError("an index needs 33 bits")

    return Bounded(raise_it, **options)


class Growing(nn.Module):
    '''Takes 4 MiB an item.'''

    def __init__(self):
        super().__init__()
        self.model = plain()

    def forward(self, x):
        room = torch.ones(len(x), 1 << 20)
        return self.model(x) + 0 * room[:, :10]
"""

Journals = tuple[list[dict[str, Any]], ...]
"""Of the cases, and of the tries."""
FAST = "{seconds: 0.05, min_samples: 3}"


@dataclass
class Finished:
    """A run that has ended, and what it left behind."""

    output: str
    folder: Path

    @property
    def journal(self) -> list[dict[str, Any]]:
        return self.lines("journal")

    @property
    def tries(self) -> list[dict[str, Any]]:
        return self.lines("largest_batch")

    def lines(self, name: str) -> list[dict[str, Any]]:
        file = self.folder / f"{name}.jsonl"
        return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []

    def statuses(self, family: str) -> dict[int, str]:
        """By batch that was tried, in order."""
        found = {CaseId.parse(line["case_id"]): line["status"] for line in self.tries}
        return {id_.batch_size: status for id_, status in found.items() if id_.family == family}


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module")
def start(profiler: Profiler, cache: Path) -> Callable[..., Finished]:
    """`start(folder, job, "--quick")` writes the job there, runs it, and finds the run's folder."""

    def start(folder: Path, job: str | None, *arguments: str, code: int = 0) -> Finished:
        if job is not None:
            (folder / "job.yaml").write_text(job)
            arguments = ("job.yaml", *arguments)
        (folder / "tiny.py").write_text(FACTORIES)
        variables = {"PROFILER_CACHE": str(cache), "OMP_NUM_THREADS": "1", "AS_IF_QUIET": "yes"}
        done = profiler(*arguments, cwd=folder, **variables)
        assert done.returncode == code, done.stdout + done.stderr
        (path,) = (folder / "results").iterdir()
        return Finished(done.stdout, path)

    return start


def bounded(name: str, folder: Path, above: int, marker: str = "") -> str:
    options = f"above: {above}, trace: {folder}/{name}" + (f", marker: {folder}/{marker}" if marker else "")
    return f'{{name: {name}, factory: "tiny:{name}", input: [3, 8, 8], options: {{{options}}}}}'


# The largest batch.


@pytest.fixture(scope="module")
def largest(tmp_path_factory: pytest.TempPathFactory, start: Callable[..., Finished]) -> Finished:
    folder = tmp_path_factory.mktemp("largest")
    job = f"""
models: [{bounded("hungry", folder, 20)}, {bounded("short", folder, 18)}, {bounded("crashing", folder, 1000)}]
engines: [eager, ort-tuned]
passes: [inference, training]
batch_sizes: [1, 16]
largest_batch: {{limit: 24, resolution: 0.001}}
training: {{optimizers: [sgd]}}
device: cpu
budget: {FAST}
exclude: [{{model: [short, crashing], pass: training}}]
"""
    return start(folder, job)


@pytest.mark.parametrize(
    "family",
    [
        "hungry/eager/inference/fp32/r0",
        "hungry/eager/training/fp32/r0/optimizer=sgd",
        "short/eager/inference/fp32/r0",
    ],
)
def test_the_largest_batch_is_found_to_the_item(largest: Finished, family: str) -> None:
    found = largest.statuses(family)
    boundary, status = (20, "oom") if family.startswith("hungry") else (18, "failed")
    assert max(batch for batch, how in found.items() if how == "ok") == boundary
    assert found[boundary + 1] == status
    assert set(found.values()) == {"ok", status}
    assert next(iter(found)) == 16, "the largest case that ran comes first, whose memory is not known"


def test_a_search_ends_at_its_limit(largest: Finished) -> None:
    found = largest.statuses("crashing/eager/inference/fp32/r0")
    assert found[24] == "ok"
    assert set(found.values()) == {"ok"}


def test_every_try_is_a_line_with_its_memory_and_a_process_of_its_own(largest: Finished) -> None:
    tries = load_largest_batches(largest.folder).collect()
    assert tries.height == len(largest.tries)
    for row in tries.to_dicts():
        assert (row["peak_memory_mib"] is not None) == (row["status"] == "ok"), row
        assert row["status"] == "ok" or row["reason"]
    assert all("fork" in line["entered"] for line in largest.tries)


def test_tries_are_no_cases(largest: Finished) -> None:
    assert {CaseId.parse(line["case_id"]).batch_size for line in largest.journal} == {1, 16}
    assert set(pl.read_parquet(largest.folder / "results.parquet")["batch_size"]) == {1, 16}
    assert "batch 20" not in largest.output


def test_the_largest_batch_has_a_table_of_its_own(largest: Finished) -> None:
    table = pl.read_csv(largest.folder / "tables" / "largest-batch.csv")
    found = table.filter(pl.col("model") != "crashing").select("model", "pass", "largest", "refused").rows()
    assert found == [
        *(("hungry", pass_, 20, 21) for pass_ in ("inference", "training")),
        ("short", "inference", 18, 19),
    ]
    assert "The largest batch that fits" in largest.output
    (line,) = (line.split() for line in largest.output.splitlines() if line.split()[:2] == ["hungry", "training"])
    assert line[2:6] == ["optimizer=sgd", "eager", "fp32", "20"] and line[7:] == ["21", "out", "of", "memory"]


def test_resuming_a_run_that_is_whole_measures_nothing(largest: Finished, start: Callable[..., Finished]) -> None:
    before = largest.journal, largest.tries
    again = start(largest.folder.parents[1], None, "--resume", str(largest.folder))
    assert (again.journal, again.tries) == before
    prepared = [line for line in again.output.splitlines() if line.startswith("prepare: ")]
    assert all("compared with the run's" in line for line in prepared), prepared


# Interrupted, resumed, retried.


def interrupt(start: Callable[..., Finished], folder: Path, journal: str, *arguments: str) -> None:
    """Start a run there, which gets SIGINT once a row in this journal is ok, while something is measured.

    From the display and not from another thread: a forkserver does not survive an interrupt between a process's being
    asked for and what it is asked with, and this one is the session's.
    """
    measuring = PlainDisplay.measuring

    def then(*arguments: Any) -> None:
        measuring(*arguments)
        if any('"ok"' in file.read_text() for file in folder.glob(f"results/*/{journal}")):
            os.kill(os.getpid(), signal.SIGINT)

    handler = signal.signal(signal.SIGINT, signal.default_int_handler)  # A shell's background job ignores it.
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(PlainDisplay, "measuring", then)
            output = start(folder, None, *arguments, code=130).output
            assert "--resume" in output
            assert "Traceback" not in output
    finally:
        signal.signal(signal.SIGINT, handler)


@pytest.fixture(scope="module")
def resumed(tmp_path_factory: pytest.TempPathFactory, start: Callable[..., Finished]) -> list[Journals]:
    """Both journals after an interrupt of the cases, after one of the search, after --resume, and after --retry."""
    folder = tmp_path_factory.mktemp("resumed")
    (folder / "marker").touch()
    (folder / "job.yaml").write_text(
        f"models: [{bounded('hungry', folder, 20, 'marker')}]\nengines: [eager]\n"
        "batch_sizes: [1, 2, 4, 8, 16, 32]\nlargest_batch: {limit: 40, resolution: 0.001}\ndevice: cpu\n"
        "budget: {seconds: 0.3, min_samples: 3, repeats: 0}\n"
    )
    interrupt(start, folder, "journal.jsonl", "job.yaml")
    (path,) = (folder / "results").iterdir()
    run = Finished("", path)
    states = [(run.journal, run.tries)]
    interrupt(start, folder, "largest_batch.jsonl", "--resume", str(path))
    states.append((run.journal, run.tries))
    start(folder, None, "--resume", str(path))
    states.append((run.journal, run.tries))
    (folder / "marker").unlink()
    start(folder, None, "--resume", str(path), "--retry")
    return [*states, (run.journal, run.tries)]


def sizes(journal: list[dict[str, Any]], status: str = "") -> list[int]:
    return [CaseId.parse(line["case_id"]).batch_size for line in journal if status in line["status"]]


def test_a_resumed_run_measures_the_missing_batches_alone(resumed: list[Journals]) -> None:
    (first, none), (second, _), (whole, _), _ = resumed
    assert (1 <= len(first) < 6, none) == (True, []), "it was interrupted before the search"
    assert second[: len(first)] == first
    assert sizes(whole) == [1, 2, 4, 8, 16, 32]


def test_a_resumed_search_goes_on_with_the_next_try(resumed: list[Journals]) -> None:
    (_, second), (_, whole) = resumed[1], resumed[2]
    assert 1 <= len(second) < len(whole)
    assert whole[: len(second)] == second
    assert len(set(sizes(whole))) == len(whole), "nothing is tried twice"
    assert max(sizes(whole, "ok")) == 20


def test_retry_tries_what_did_not_fit_again(resumed: list[Journals]) -> None:
    cases, tries = (after[len(before) :] for before, after in zip(resumed[2], resumed[3], strict=True))
    assert sizes(cases) == [32]
    assert {line["status"] for line in (*cases, *tries)} == {"ok"}
    assert max(sizes(tries)) == 40


# Main memory as the bound.


def test_on_a_cpu_the_search_ends_before_memory_does(
    tmp_path: Path, cache: Path, profiler: Profiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Really measured, on a machine that says that it has 500 MiB."""
    monkeypatch.setattr("profiler.run.runner.available_memory_mib", lambda: 500.0)
    (tmp_path / "tiny.py").write_text(FACTORIES)
    (tmp_path / "job.yaml").write_text(
        'models: [{name: growing, factory: "tiny:Growing", input: [3, 8, 8]}]\nengines: [eager]\n'
        f"batch_sizes: [1]\nlargest_batch: {{}}\ndevice: cpu\nbudget: {FAST}\n"
    )
    done = profiler("job.yaml", "--strict", cwd=tmp_path, PROFILER_CACHE=str(cache), OMP_NUM_THREADS="1")
    assert done.returncode == 0, done.stdout + done.stderr
    (path,) = (tmp_path / "results").iterdir()
    rows = {row["batch_size"]: row for row in load_largest_batches(path).collect().to_dicts()}
    fitting = max(batch for batch, row in rows.items() if row["status"] == "ok")
    # At 4 MiB an item. 80 % is an estimate: a first process that takes 12 MiB more than the next ones, as some do,
    # makes an item look smaller, and 101 of them took 435 MiB.
    assert 60 < fitting < 115
    assert rows[fitting]["peak_memory_mib"] < 0.95 * 500
    refused = rows[min(batch for batch in rows if batch > fitting)]
    assert refused["status"] == "oom"
    assert refused["reason"].startswith("not tried: it would take about 4")
    assert "more than 80 % of the 500 MiB" in refused["reason"]
    (line,) = (line for line in Finished("", path).tries if f"/b{refused['batch_size']}/" in line["case_id"])
    assert line["phases"] == {}, "no process was started"
