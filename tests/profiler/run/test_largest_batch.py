"""The search for the largest batch: on memory that is a function, and whole runs of which some batches do not fit."""

from __future__ import annotations

import functools
import os
import signal
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import polars as pl
import pytest
from runs import Finished, Profiler, finish

from exporters.inputs import TensorSpec
from exporters.source import ModelSource
from profiler import load_largest_batches
from profiler.job.case import Budget, Case
from profiler.job.config import LargestBatch
from profiler.processes.messages import Status
from profiler.run.largest_batch import Search, short
from profiler.run.progress import Display

pytestmark = pytest.mark.slow
CASE = Case("net", "eager", "eager", "inference", "fp32", 1, "cpu", 0, ModelSource("net"))


def tried(boundary: int, limit: int = 65536, resolution: float = 0.05, start: int = 1) -> dict[int, Status]:
    """Search where batches up to `boundary` fit; returns the tries in order."""
    search = Search(CASE, LargestBatch(limit=limit, resolution=resolution), {start: "ok"})
    while (batch := search.next_batch()) is not None:
        assert batch not in search.tried, "nothing is tried twice"
        search.tried[batch] = ("ok" if batch <= boundary else "oom"), None
    return {batch: status for batch, (status, _) in search.tried.items()}


@pytest.mark.parametrize("boundary", [0, 1, 2, 3, 17, 100, 1023, 1024, 54_321])
def test_the_boundary_is_found_by_doubling_and_halving(boundary):
    exact = tried(boundary, resolution=1e-9)
    assert max((batch for batch, status in exact.items() if status == "ok"), default=0) == boundary
    assert exact[boundary + 1] == "oom"
    known = tried(boundary)
    good = max((batch for batch, status in known.items() if status == "ok"), default=0)
    assert good <= boundary <= good + max(1, 0.05 * good)
    assert len(known) <= 2 + boundary.bit_length() + 6
    assert next(iter(tried(boundary, start=16))) == 16


@pytest.mark.parametrize(
    ("fixed", "per_item", "usable", "limit", "batches"),
    [
        (1000, 1050, 143_000, 65536, [1, 2, 32, 131, 137]),
        (1000, 1050, 143_000, 40, [1, 2, 32, 40]),
        (1000, 20_000, 143_000, 65536, [1, 2, 6, 7, 8]),
        (1000, 0, 143_000, 9, [1, 2, 4, 8, 9]),
        (1000, 1050, 70_000, 65536, [1, 2, 32, 131, 81, 56, 68, 62, 65]),  # The card is another's, too.
    ],
)
def test_on_a_gpu_the_memory_tells_where_to_look(fixed, per_item, usable, limit, batches):
    search = Search(CASE, LargestBatch(limit=limit), {1: "ok"}, gpu_mib=143_771.0)
    while (batch := search.next_batch()) is not None:
        mib = float(fixed + per_item * batch)
        search.tried[batch] = ("ok", mib) if mib <= usable else ("oom", None)
    assert list(search.tried) == batches


def test_a_search_ends_at_its_limit_and_where_a_smaller_batch_mends_nothing():
    assert [*tried(10**9, limit=40, start=16)] == [16, 32, 40]
    ends: dict[Status, int | None] = {"timeout": None, "unsupported": None, "crashed": 24}
    for status, batch in ends.items():
        tries: dict[int, tuple[Status, float | None]] = {16: ("ok", None), 32: (status, None)}
        assert Search(CASE, LargestBatch(limit=64), {1: "ok"}, tries).next_batch() == batch


@pytest.mark.parametrize(
    ("measured", "first"),
    [({1: "ok", 16: "ok", 32: "oom"}, 16), ({1: "oom"}, 1), ({1: "failed"}, None), ({}, None)],
)
def test_a_search_starts_at_the_largest_case_that_ran(measured, first):
    assert Search(CASE, LargestBatch(), measured).next_batch() == first
    assert short(Budget()).max_samples == 3


def test_a_batch_beyond_the_main_memory_is_not_tried():
    search, specs = Search(CASE, LargestBatch(), {1: "ok"}), [TensorSpec("x", ("batch", 1 << 18), "float32")]
    search.tried[1] = "ok", 100.0
    assert search.refuse(2, specs, 1000.0) is None
    search.tried[2] = "ok", 104.0
    assert search.refuse(100, specs, 1000.0) is None
    refused = search.refuse(200, specs, 1000.0)
    assert refused is not None
    assert (refused.status, refused.case_id) == ("oom", "net/eager/inference/fp32/b200/r0")
    assert str(refused.reason).startswith("not tried: it would take about 896 MiB, more than 80 % of the 1,000 MiB")


# Whole runs.

FACTORIES = """
from pathlib import Path

import torch
from torch import nn


def plain():
    return nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(288, 10))


class Bounded(nn.Module):
    '''Does `what` for more items than `above`, where the file `marker` is or none is asked for.

    The reference has 7 items, so the bound is never below that.
    '''

    def __init__(self, what, above, marker=None):
        super().__init__()
        self.model, self.what, self.above, self.marker = plain(), what, above, marker

    def forward(self, x):
        if len(x) > self.above and (self.marker is None or Path(self.marker).exists()):
            self.what()
        return self.model(x)


def hungry(**options):
    return Bounded(lambda: torch.empty(1 << 50), **options)


def short(**options):
    def raise_it():
        raise RuntimeError("an index needs 33 bits")

    return Bounded(raise_it, **options)
"""

FAST = "{seconds: 0.05, min_samples: 3}"
Rows = list[dict[str, Any]]


Start = Callable[..., Finished]


@pytest.fixture(scope="module")
def start(profiler: Profiler, tmp_path_factory: pytest.TempPathFactory) -> Start:
    """`start(folder, job, "--quick")` writes the job there, runs it, and finds the run's folder."""
    cache = str(tmp_path_factory.mktemp("cache"))
    return functools.partial(finish, profiler, PROFILER_CACHE=cache, OMP_NUM_THREADS="1", AS_IF_QUIET="yes")


def journals(run: Finished) -> tuple[Rows, Rows]:
    return run.lines(), run.lines("largest_batch")


def bounded(name: str, folder: Path, above: int, marker: str = "") -> str:
    options = f"above: {above}" + (f", marker: {folder}/{marker}" if marker else "")
    return f'{{name: {name}, factory: "tiny:{name}", input: [3, 8, 8], options: {{{options}}}}}'


@pytest.fixture(scope="module")
def largest(tmp_path_factory: pytest.TempPathFactory, start: Start) -> Finished:
    folder = tmp_path_factory.mktemp("largest")
    (folder / "tiny.py").write_text(FACTORIES)
    job = f"""
models: [{bounded("hungry", folder, 20)}, {bounded("short", folder, 18)}]
engines: [eager]
passes: [inference, training]
training: {{optimizers: [sgd]}}
batch_sizes: [1, 16]
largest_batch: {{limit: 24, resolution: 0.001}}
device: cpu
budget: {FAST}
exclude: [{{model: short, pass: training}}, {{model: short, batch_size: 1}}, {{pass: training, batch_size: 1}}]
"""
    return start(folder, job)


def test_the_largest_batch_is_found_to_the_item(largest):
    tries = load_largest_batches(largest.folder).collect()
    found = {
        key: dict(zip(rows["batch_size"], rows["status"], strict=True))
        for key, rows in tries.group_by("model", "pass", "setting", maintain_order=True)
    }
    same = {16: "ok", 20: "ok", 21: "oom", 22: "oom", 24: "oom"}
    assert found[("hungry", "inference", "")].items() <= same.items()
    assert found[("hungry", "training", "optimizer=sgd")] == found[("hungry", "inference", "")]
    assert found[("short", "inference", "")].items() >= {18: "ok", 19: "failed"}.items()
    for row in tries.to_dicts():
        assert (row["peak_memory_mib"] is not None) == (row["status"] == "ok"), row
        assert row["status"] == "ok" or row["reason"]


def test_tries_are_no_cases_and_have_a_table_of_their_own(largest):
    assert set(pl.read_parquet(largest.folder / "results.parquet")["batch_size"]) == {1, 16}
    assert len(largest.lines()) == 4
    table = pl.read_csv(largest.folder / "tables" / "largest-batch.csv")
    assert table.select("model", "pass", "largest", "refused").rows() == [
        *(("hungry", pass_, 20, 21) for pass_ in ("inference", "training")),
        ("short", "inference", 18, 19),
    ]
    assert "The largest batch that fits" in largest.done.stdout


def test_resuming_a_run_that_is_whole_measures_nothing(largest, start):
    before = journals(largest)
    again = start(largest.folder.parents[1], None, "--resume", str(largest.folder))
    assert journals(again) == before
    prepared = [line for line in again.done.stdout.splitlines() if line.startswith("preparing ")]
    assert all("compared with the run's" in line for line in prepared), prepared


def interrupt(start: Start, folder: Path, journal: str, *arguments: str) -> None:
    """Start a run there, which gets SIGINT once a row in this journal is ok, while something is measured.

    From the display and not from another thread: a forkserver does not survive an interrupt between a process's being
    asked for and what it is asked with, and this one is the session's.
    """
    measuring = Display.measuring

    def then(*arguments: Any) -> None:
        measuring(*arguments)
        if any('"ok"' in file.read_text() for file in folder.glob(f"results/*/{journal}")):
            os.kill(os.getpid(), signal.SIGINT)

    handler = signal.signal(signal.SIGINT, signal.default_int_handler)  # A shell's background job ignores it.
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Display, "measuring", then)
            output = start(folder, None, *arguments, code=130).done.stdout
            assert "--resume" in output
            assert "Traceback" not in output
    finally:
        signal.signal(signal.SIGINT, handler)


@pytest.fixture(scope="module")
def resumed(tmp_path_factory: pytest.TempPathFactory, start: Start) -> list[tuple[Rows, Rows]]:
    """Both journals after an interrupt of the cases, after one of the search, after --resume, and after --retry."""
    folder = tmp_path_factory.mktemp("resumed")
    (folder / "marker").touch()
    (folder / "tiny.py").write_text(FACTORIES)
    (folder / "job.yaml").write_text(
        f"models: [{bounded('hungry', folder, 20, 'marker')}]\nengines: [eager]\n"
        "batch_sizes: [1, 16, 32]\nlargest_batch: {limit: 40, resolution: 0.001}\ndevice: cpu\n"
        "budget: {seconds: 0.3, min_samples: 3, repeats: 0}\n"
    )
    interrupt(start, folder, "journal.jsonl", "job.yaml")
    (path,) = (folder / "results").iterdir()
    run = Finished(CompletedProcess([], 130), path)
    states = [journals(run)]
    interrupt(start, folder, "largest_batch.jsonl", "--resume", str(path))
    states.append(journals(run))
    states.append(journals(start(folder, None, "--resume", str(path))))
    (folder / "marker").unlink()
    return [*states, journals(start(folder, None, "--resume", str(path), "--retry"))]


def test_interrupted_cases_and_searches_go_on_and_retry_tries_what_did_not_fit_again(resumed):
    (first, none), (second, some), (whole, tries), (all_cases, all_tries) = resumed
    assert (1 <= len(first) < 3, none) == (True, []), "it was interrupted before the search"
    assert second[: len(first)] == first
    assert [line["case_id"].split("/")[4] for line in whole] == ["b1", "b16", "b32"]
    assert [line["status"] for line in whole] == ["ok", "ok", "oom"], [line["reasons"] for line in whole]
    assert 1 <= len(some) < len(tries)
    assert tries[: len(some)] == some
    sizes = [row["batch_size"] for row in tries]
    assert len(set(sizes)) == len(sizes), "nothing is tried twice"
    assert max(row["batch_size"] for row in tries if row["status"] == "ok") == 20
    cases, more = all_cases[len(whole) :], all_tries[len(tries) :]
    assert [line["case_id"].split("/")[4] for line in cases] == ["b32"], [
        w for line in whole for w in line["warnings"] if "inconsistent" in w
    ]
    assert {line["status"] for line in (*cases, *more)} == {"ok"}
    assert max(row["batch_size"] for row in more) == 40
