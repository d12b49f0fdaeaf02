"""Batch sweeps and searches for the largest batch: whole runs on tiny networks, of which some do not fit."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from runs import Profiler

from exporters.source import ModelSource
from profiler.job.case import Budget, Case, CaseId, Role
from profiler.run.progress import PlainDisplay
from profiler.run.supervise import families
from profiler.worker.task import Prepared, Task

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


def greedy(**options):
    def raise_it():
        raise MemoryError("no more than that")

    return Bounded(raise_it, **options)


def killing(**options):
    return Bounded(lambda: os.kill(os.getpid(), signal.SIGKILL), **options)


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

FAST = "{seconds: 0.05, min_samples: 3}"


@dataclass
class Finished:
    """A run that has ended, and what it left behind."""

    output: str
    folder: Path

    @property
    def journal(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in (self.folder / "journal.jsonl").read_text().splitlines()]

    @property
    def rows(self) -> pl.DataFrame:
        return pl.read_parquet(self.folder / "results.parquet")

    def statuses(self, family: str, role: Role) -> dict[int, str]:
        """By batch, in the journal's order."""
        found = {CaseId.parse(line["case_id"]): line["status"] for line in self.journal}
        return {id_.batch_size: status for id_, status in found.items() if (id_.family, id_.role) == (family, role)}


SWEEP, PROBE = "sweep=batch", "probe=largest"


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


def calls(folder: Path, name: str) -> list[tuple[int, int, int]]:
    """Process, module and batch of every call of that model."""
    return [tuple(map(int, line.split())) for line in (folder / name).read_text().splitlines()]  # type: ignore[misc]


# A sweep with batches that do not fit.

BATCHES = [1, 32, 64, 16]
"""The next batch after one that does not fit is a larger, then a smaller one."""
BROKEN: dict[str, tuple[str, str]] = {
    "hungry": ("oom", "can't allocate memory"),
    "greedy": ("oom", "no more than that"),
    "killing": ("crashed", "SIGKILL"),
    "crashing": ("crashed", "SIGSEGV"),
    "short": ("failed", "33 bits"),
}


WIDE = [1, 1 << 25, 4]
"""At 4 MiB an item the second takes 128 TiB, which no machine gives."""


@pytest.fixture(scope="module")
def swept(tmp_path_factory: pytest.TempPathFactory, start: Callable[..., Finished]) -> Finished:
    folder = tmp_path_factory.mktemp("swept")
    models = [bounded(name, folder, 20) for name in BROKEN]
    job = f"""
kind: minibatch
models:
  - {{name: plain, factory: "tiny:plain", input: [3, 8, 8], batch_sizes: [2, 8, 3]}}
  - {{name: wide, factory: "tiny:wide", input: [1], batch_sizes: {WIDE}}}
  - {
        '''
  - '''.join(models)
    }
engines: [eager, ort]
passes: [inference, training]
batch_sizes: {BATCHES}
device: cpu
budget: {FAST}
exclude:
  - {{engine: ort, model: [{", ".join(BROKEN)}]}}
  - {{pass: training, model: [short, killing, crashing, greedy, wide]}}
"""
    return start(folder, job)


@pytest.mark.parametrize("model", BROKEN)
def test_a_batch_that_does_not_fit_is_a_row_and_the_next_one_runs(swept: Finished, model: str) -> None:
    status, words = BROKEN[model]
    found = swept.statuses(f"{model}/eager/inference/fp32/r0", Role.SWEEP)
    assert found == {1: "ok", 32: status, 64: status, 16: "ok"}
    bad = swept.rows.filter((pl.col("model") == model) & (pl.col("status") != "ok"))
    assert all(words in reason for reason in bad["reason"]), bad["reason"].to_list()
    assert bad["latency_ms"].null_count() == len(bad)


@pytest.mark.parametrize("model", ["hungry", "greedy"])
def test_the_process_is_alive_after_memory_ran_out(swept: Finished, model: str) -> None:
    of_sweep = [(process, batch) for process, _, batch in calls(swept.folder.parents[1], model) if batch in BATCHES]
    processes = {process for process, batch in of_sweep if batch == 16}
    assert {process for process, batch in of_sweep if batch in (32, 64)} == processes
    assert len(processes) == (2 if model == "hungry" else 1), "one for each pass"


@pytest.mark.parametrize("engine", ["eager", "ort"])
def test_an_engine_goes_on_after_its_allocator_gave_nothing(swept: Finished, engine: str) -> None:
    found = swept.statuses(f"wide/{engine}/inference/fp32/r0", Role.SWEEP)
    assert found == dict(zip(WIDE, ("ok", "oom", "ok"), strict=True))
    own = [line for line in swept.journal if line["case_id"].startswith(f"wide/{engine}/")]
    assert ["fork" in line["phases"] for line in own] == [True, False, False]


@pytest.mark.parametrize("model", ["killing", "crashing", "short"])
def test_another_process_goes_on_where_one_has_ended(swept: Finished, model: str) -> None:
    found = [(process, batch) for process, _, batch in calls(swept.folder.parents[1], model) if batch in BATCHES[1:]]
    by_batch = {batch: {process for process, of in found if of == batch} for batch in BATCHES[1:]}
    assert by_batch[64].isdisjoint(by_batch[32]), "the process of 32 is gone"
    assert by_batch[16].isdisjoint(by_batch[64])


def test_eager_keeps_its_module_from_batch_to_batch(swept: Finished) -> None:
    """Up to the batch that does not fit: then the session may be broken, and is opened anew in the same process."""
    found = calls(swept.folder.parents[1], "hungry")
    processes = {process for process, _, batch in found if batch == 32}
    assert len(processes) == 2, "one for each pass"
    for process in processes:
        modules = {batch: {module for of, module, b in found if (of, b) == (process, batch)} for batch in BATCHES}
        assert modules[1] >= modules[32] != set()
        assert len({*modules[32], *modules[64], *modules[16]}) == 3


def test_a_sweeps_rows_are_rows_like_others_without_memory(swept: Finished) -> None:
    rows = swept.rows.filter(model="plain", status="ok").to_dicts()
    own = [("eager", "inference"), ("ort", "inference"), ("eager", "training")]
    expected = [(*key, batch) for batch in (2, 8, 3) for key in own]
    assert [(row["variant"], row["pass"], row["batch_size"]) for row in rows] == expected
    for row in rows:
        assert row["extra"] == "sweep=batch"
        for column in ("latency_ms", "throughput", "first_run_s", "samples"):
            assert row[column] > 0, (row["case_id"], column)
        # What a call moves is computed, not memory in use.
        for column in (name for name in row if name.endswith("_mib") and name != "moved_mib"):
            assert row[column] is None, (row["case_id"], column)
        error = "rel_l2_error" if row["pass"] == "inference" else "gradient_error"
        assert row[error] < 1e-5, row["case_id"]
        assert json.loads(row["proof"])["compute_types"].keys() == {"float32"}, row["case_id"]
        assert row["load_s"] is None if row["batch_size"] != 2 and row["variant"] == "eager" else row["load_s"] > 0


def test_each_batch_has_the_phases_of_its_own(swept: Finished) -> None:
    for line in (line for line in swept.journal if line["case_id"].startswith("plain/eager/")):
        first = CaseId.parse(line["case_id"]).batch_size == 2
        assert ("fork" in line["phases"]) == first
        assert line["phases"].keys() >= {"open", "load", "warm-up", "measure", "check"}
        times = list(line["entered"].values())
        assert times == sorted(times)


def test_the_display_tells_of_every_batch_once_and_in_order(swept: Finished) -> None:
    told = [line for line in swept.output.splitlines() if line.startswith("[")]
    own = [line for line in told if "unsupported" not in line]
    assert [line.split("]")[0] for line in own] == [f"[{n + 1}/{len(own)}" for n in range(len(own))]
    assert len(own) == 4 * (len(BROKEN) + 1) + 3 * 3 + 3 * 2


def test_a_family_has_one_log(swept: Finished) -> None:
    logs = {file.name for file in (swept.folder / "logs").iterdir()}
    assert "crashing-eager-inference-fp32-r0-sweep.log" in logs
    assert not any(name.startswith("crashing-eager-inference-fp32-b") for name in logs)


# The largest batch.


@pytest.fixture(scope="module")
def largest(tmp_path_factory: pytest.TempPathFactory, start: Callable[..., Finished]) -> Finished:
    folder = tmp_path_factory.mktemp("largest")
    job = f"""
kind: minibatch
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
    found = largest.statuses(family, Role.PROBE)
    boundary, status = (20, "oom") if family.startswith("hungry") else (18, "failed")
    assert max(batch for batch, how in found.items() if how == "ok") == boundary
    assert found[boundary + 1] == status
    assert set(found.values()) == {"ok", status}
    assert next(iter(found)) == 16, "the sweep's largest first, whose memory is not known"


def test_a_search_ends_at_its_limit(largest: Finished) -> None:
    found = largest.statuses("crashing/eager/inference/fp32/r0", Role.PROBE)
    assert found[24] == "ok"
    assert set(found.values()) == {"ok"}


def test_every_probe_is_a_row_with_its_memory_and_a_process_of_its_own(largest: Finished) -> None:
    probes = largest.rows.filter(pl.col("extra").str.contains("probe="))
    assert sorted(probes["case_id"]) == sorted(line["case_id"] for line in largest.journal if PROBE in line["case_id"])
    for row in probes.to_dicts():
        assert (row["peak_memory_mib"] is not None) == (row["status"] == "ok"), row["case_id"]
        assert row["status"] == "ok" or row["reason"]
        assert row["batch_size"] == CaseId.parse(row["case_id"]).batch_size
    of_probes = {line["case_id"]: line["entered"] for line in largest.journal if PROBE in line["case_id"]}
    assert all("fork" in entered for entered in of_probes.values())


def test_probes_are_in_none_of_the_tables(largest: Finished) -> None:
    for name in ("latency", "memory", "speedup", "not-measured"):
        assert "probe=" not in (largest.folder / "tables" / f"{name}.csv").read_text(), name
    assert "batch 20" not in largest.output


def test_the_largest_batch_has_a_table_and_a_sentence_of_its_own(largest: Finished) -> None:
    table = pl.read_csv(largest.folder / "tables" / "largest-batch.csv")
    found = table.filter(pl.col("model") != "crashing").select("model", "pass", "largest", "refused").rows()
    assert found == [
        *(("hungry", pass_, 20, 21) for pass_ in ("inference", "training")),
        ("short", "inference", 18, 19),
    ]
    told = " ".join(largest.output.split())
    assert "hungry training, eager fp32, optimizer sgd: the largest batch that fits is 20 (" in told
    assert "21 does not (out of memory)." in told
    assert "crashing, eager fp32: the largest batch that fits is 24 (" in told


def test_resuming_a_run_that_is_whole_measures_nothing(largest: Finished, start: Callable[..., Finished]) -> None:
    before = largest.journal
    again = start(largest.folder.parents[1], None, "--resume", str(largest.folder))
    assert again.journal == before
    prepared = [line for line in again.output.splitlines() if line.startswith("prepare: ")]
    assert all("compared with the run's" in line for line in prepared), prepared


# Interrupted, resumed, retried.


def interrupt(start: Callable[..., Finished], folder: Path, happened: Callable[[str], bool], *arguments: str) -> None:
    """Start a run there, which gets SIGINT once the journal is such, while something is measured.

    From the display and not from another thread: a forkserver does not survive an interrupt between a process's being
    asked for and what it is asked with, and this one is the session's.
    """
    measuring = PlainDisplay.measuring

    def then(*arguments: Any) -> None:
        measuring(*arguments)
        if any(happened(file.read_text()) for file in folder.glob("results/*/journal.jsonl")):
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
def resumed(tmp_path_factory: pytest.TempPathFactory, start: Callable[..., Finished]) -> list[list[dict[str, Any]]]:
    """The journal after an interrupt of the sweep, after one of the search, after --resume, and after --retry."""
    folder = tmp_path_factory.mktemp("resumed")
    (folder / "marker").touch()
    (folder / "job.yaml").write_text(
        f"kind: minibatch\nmodels: [{bounded('hungry', folder, 20, 'marker')}]\nengines: [eager]\n"
        "batch_sizes: [1, 2, 4, 8, 16, 32]\nlargest_batch: {limit: 40, resolution: 0.001}\ndevice: cpu\n"
        "budget: {seconds: 0.3, min_samples: 3, repeats: 0}\n"
    )
    interrupt(start, folder, lambda journal: '"ok"' in journal, "job.yaml")
    (path,) = (folder / "results").iterdir()
    run = Finished("", path)
    states = [run.journal]
    interrupt(start, folder, lambda journal: "probe=" in journal, "--resume", str(path))
    states.append(run.journal)
    states.append(start(folder, None, "--resume", str(path)).journal)
    (folder / "marker").unlink()
    states.append(start(folder, None, "--resume", str(path), "--retry").journal)
    return states


def ids(journal: list[dict[str, Any]]) -> list[str]:
    return [line["case_id"] for line in journal]


def test_a_resumed_sweep_measures_the_missing_batches_alone(resumed: list[list[dict[str, Any]]]) -> None:
    first, second, whole, _ = map(ids, resumed)
    assert 1 <= len(first) < 6, "it was interrupted in the sweep"
    assert second[: len(first)] == first
    assert [CaseId.parse(id_).batch_size for id_ in whole if id_.endswith(SWEEP)] == [1, 2, 4, 8, 16, 32]


def test_a_resumed_search_goes_on_with_the_next_probe(resumed: list[list[dict[str, Any]]]) -> None:
    _, second, whole, _ = map(ids, resumed)
    assert 1 <= sum(id_.endswith(PROBE) for id_ in second) < sum(id_.endswith(PROBE) for id_ in whole)
    assert whole[: len(second)] == second
    assert len(set(whole)) == len(whole), "nothing is measured twice"
    fitting = [
        CaseId.parse(line["case_id"]).batch_size
        for line in resumed[2]
        if PROBE in line["case_id"] and line["status"] == "ok"
    ]
    assert max(fitting) == 20


def test_retry_tries_what_did_not_fit_again(resumed: list[list[dict[str, Any]]]) -> None:
    whole, retried = resumed[2], resumed[3]
    more = retried[len(whole) :]
    assert [CaseId.parse(id_).batch_size for id_ in ids(more) if id_.endswith(SWEEP)] == [32]
    assert {line["status"] for line in more} == {"ok"}
    assert max(CaseId.parse(id_).batch_size for id_ in ids(more) if id_.endswith(PROBE)) == 40


# Main memory as the bound.


def test_on_a_cpu_the_search_ends_before_memory_does(
    tmp_path: Path, cache: Path, profiler: Profiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Really measured, on a machine that says that it has 500 MiB."""
    monkeypatch.setattr("profiler.run.runner.available_memory_mib", lambda: 500.0)
    (tmp_path / "tiny.py").write_text(FACTORIES)
    (tmp_path / "job.yaml").write_text(
        'kind: minibatch\nmodels: [{name: growing, factory: "tiny:Growing", input: [3, 8, 8]}]\nengines: [eager]\n'
        f"batch_sizes: [1]\nlargest_batch: {{}}\ndevice: cpu\nbudget: {FAST}\n"
    )
    done = profiler("job.yaml", "--strict", cwd=tmp_path, PROFILER_CACHE=str(cache), OMP_NUM_THREADS="1")
    assert done.returncode == 0, done.stdout + done.stderr
    (path,) = (tmp_path / "results").iterdir()
    rows = {row["batch_size"]: row for row in Finished("", path).rows.to_dicts() if row["extra"] == PROBE}
    fitting = max(batch for batch, row in rows.items() if row["status"] == "ok")
    # At 4 MiB an item. 80 % is an estimate: a first process that takes 12 MiB more than the next ones, as some do,
    # makes an item look smaller, and 101 of them took 435 MiB.
    assert 60 < fitting < 115
    assert rows[fitting]["peak_memory_mib"] < 0.95 * 500
    refused = rows[min(batch for batch in rows if batch > fitting)]
    assert refused["status"] == "oom"
    assert refused["reason"].startswith("not tried: it would take about 4")
    assert "more than 80 % of the 500 MiB" in refused["reason"]
    (line,) = (line for line in Finished("", path).journal if line["case_id"] == refused["case_id"])
    assert line["phases"] == {}, "no process was started"


def case(batch: int, model: str = "alexnet", **other: Any) -> Case:
    """A batch of a sweep."""
    one = Case(model, "eager", "eager", "inference", "fp32", batch, "cpu", 0, ModelSource(model), role=Role.SWEEP)
    return replace(one, **other)


def test_families_run_where_their_first_case_stands() -> None:
    order = [
        case(1), case(1, "vgg16"), case(1, pass_="training"), case(1, replicate=1), case(2), case(2, "vgg16"),
        case(1, "resnet18", role=Role.CELL), case(2, "resnet18", role=Role.CELL),
    ]  # fmt: skip
    found = families([Task(one, Prepared(), Budget()) for one in order])
    assert [[task.case for task in family] for family in found] == [
        [order[0], order[4]], [order[1], order[5]], [order[2]], [order[3]], [order[6]], [order[7]],
    ]  # fmt: skip
