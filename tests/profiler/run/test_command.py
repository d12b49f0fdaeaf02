"""Whole runs on the CPU, `python -m profiler job.yaml` on tiny networks, good and broken."""

from __future__ import annotations

import functools
import importlib.util
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path
from subprocess import CompletedProcess
from types import SimpleNamespace
from typing import Any

import numpy as np
import polars as pl
import pytest
from matrix_product import write_product, write_text
from runs import Finished, Profiler, finish, on_console, until

from profiler.job import plan
from profiler.job.case import QUICK
from profiler.job.config import LargestBatch, load_config
from profiler.machine.nvml import visible_gpus
from profiler.machine.target import has_bf16
from profiler.options import Run as Options
from profiler.results.columns import RESULTS, SAMPLES
from profiler.results.result import ends_of
from profiler.results.run_folder import RunFolder, append_line
from profiler.run import command
from profiler.stats.intervals import typical_spread

ROOT = Path(__file__).resolve().parents[3]
OPENVINO = importlib.util.find_spec("openvino") is not None
COMPILER = any(c and shutil.which(c) for c in (os.environ.get("CXX", ""), "g++"))

TINY = """
import os
import time
from pathlib import Path

from torch import nn


def good(width=8):
    return nn.Sequential(
        nn.Conv2d(3, width, 3, bias=False), nn.BatchNorm2d(width), nn.ReLU(), nn.Conv2d(width, 8, 3), nn.ReLU(),
        nn.MaxPool2d(2), nn.Flatten(), nn.Linear(288, 10),
    )


def raising():
    raise ValueError("no luck with this one")


def is_measured():
    # By the log: a reference's process has another, and so has one that counts FLOPs.
    return ",eager," in os.readlink("/proc/self/fd/2")


class Flaky(nn.Module):
    def __init__(self, marker):
        super().__init__()
        self.model, self.marker, self.calls = good(), marker, 0

    def forward(self, x):
        self.calls += is_measured()
        if self.calls > 1 and Path(self.marker).exists():
            raise RuntimeError("the marker is there")
        return self.model(x)


class Waiting(Flaky):
    def forward(self, x):
        while len(x) > 1 and is_measured() and Path(self.marker).exists():
            time.sleep(0.01)
        return self.model(x)
"""

GOOD = '{name: good, factory: "tiny:good", input: [3, 16, 16]}'
RAISING = '{name: raising, factory: "tiny:raising", input: [3, 16, 16]}'
FAST = "{seconds: 0.05, min_samples: 3, repeats: 0}"


Run = Callable[..., Finished]


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module")
def run(profiler: Profiler, cache: Path) -> Run:
    """`run(folder, job, "--strict")` writes the job there, runs it, and finds the run's folder."""
    return functools.partial(finish, profiler, PROFILER_CACHE=str(cache))


def with_factories(folder: Path) -> Path:
    (folder / "tiny.py").write_text(TINY)
    return folder


@pytest.fixture
def workplace(tmp_path: Path) -> Path:
    return with_factories(tmp_path)


# One run with everything that can be measured on a CPU.

FULL = f"""
models: [{GOOD}]
engines: [eager, eager-tuned, ort, compiled{", openvino" if OPENVINO else ""}]
passes: [inference, training]
precisions: [fp32, bf16]
batch_sizes: [1, 2]
device: cpu
budget: {FAST}
exclude:
  - {{engine: [compiled, openvino], pass: training}}
  - {{engine: compiled, batch_size: 2}}
  - {{engine: compiled, precision: bf16}}
  - {{variant: [eager-tuned, openvino], batch_size: 1}}
  - {{variant: eager-tuned, precision: bf16}}
  - {{variant: eager, batch_size: 1, pass: training}}
  - {{variant: eager, batch_size: 1, precision: bf16}}
"""


@pytest.fixture(scope="module")
def full(tmp_path_factory: pytest.TempPathFactory, run: Run) -> Finished:
    return run(with_factories(tmp_path_factory.mktemp("full")), FULL, report=True)


@pytest.fixture(scope="module")
def measured(full: Finished) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = full.rows.filter(pl.col("status") == "ok").to_dicts()
    assert rows
    return rows


def test_what_can_run_on_a_cpu_ran(full):
    bad = full.rows.filter(~pl.col("status").is_in(["ok", "unsupported"]))
    assert bad.is_empty(), bad.select("case_id", "status", "reason").rows()
    expected = {
        *(f"eager/{pass_}/{p}/b2" for pass_ in ("inference", "training") for p in ("fp32", "bf16")),
        *(f"eager-tuned/{pass_}/fp32/b2" for pass_ in ("inference", "training")),
        *(f"{variant}/inference/fp32/b1" for variant in ("eager", "ort")),
        "ort/inference/fp32/b2",
        *(["openvino/inference/fp32/b2"] if OPENVINO else []),
        *(["openvino/inference/bf16/b2"] if OPENVINO and has_bf16() else []),
        *(["compiled/inference/fp32/b1"] if COMPILER else []),
    }
    ok = full.rows.filter(pl.col("status") == "ok")["case_id"]
    assert {case_id.removeprefix("good/").removesuffix("/r0") for case_id in ok} == expected


def test_measured_rows_are_complete(full, measured):
    samples = pl.read_parquet(full.folder / "samples.parquet").filter(pl.col("clock") == "host")
    medians = dict(samples.group_by("case_id").agg(pl.col("ms").median()).rows())
    counts = dict(samples.group_by("case_id").len().rows())
    assert medians == pytest.approx({row["case_id"]: row["latency_ms"] for row in measured})
    assert counts == {row["case_id"]: row["samples"] for row in measured}
    for row in measured:
        for column in ("latency_ms", "throughput", "peak_memory_mib", "load_s", "first_run_s"):
            assert row[column] > 0, (row["case_id"], column)
        assert row["latency_min_ms"] <= row["latency_ms"]
        for name in ("latency{}_ms", "throughput{}"):
            low, middle, high = (row[name.format(end)] for end in ("_low", "", "_high"))
            assert low <= middle <= high and low < high, row["case_id"]
        assert row["samples"] >= 3
        assert row["stop_reason"] in ("precision", "plateau", "budget", "max_samples")
        assert row["peak_memory_mib"] == row["host_peak_mib"]
        assert (row["clock"], row["host_ms"]) == ("host", row["latency_ms"])
        for column in ("gpu_ms", "enqueue_ms", "h2d_ms", "d2h_ms", "context_mib", "power_w", "gpu", "cuda", "driver"):
            assert row[column] is None, (row["case_id"], column)
        parts = [row["forward_ms"], row["backward_ms"]]
        assert all((part is not None) == (row["pass"] == "training") for part in parts), row["case_id"]
        assert (row["export_s"] is not None) == (row["engine"] in ("ort", "openvino")), row["case_id"]
        assert row["graph"] == ("torch.export, any batch" if row["export_s"] is not None else None)


def test_outputs_and_proofs_agree_with_what_was_asked_for(measured):
    types = {"fp32": "float32", "bf16": "bfloat16"}
    for row in measured:
        proof = json.loads(row["proof"])
        assert set(proof["compute_types"]) == {types[row["precision"]]}, row["case_id"]
        assert (proof["tf32"], proof["cuda_graph"]) == (False, False)
        if row["engine"] == "ort":
            assert set(proof["providers"]) == {"CPUExecutionProvider"}
        if row["variant"] == "eager-tuned":
            assert proof["channels_last"]
        if row["pass"] == "inference":
            assert row["reference"] == "eager-fp32-cpu"
            low, high = {"fp32": (0, 1e-5), "bf16": (1e-4, 5e-2)}[row["precision"]]
            assert low <= row["rel_l2_error"] < high, (row["case_id"], row["rel_l2_error"])
            assert row["rel_l2_error"] <= row["rel_l2_error_high"] and row["error_items"] > 1
            assert row["max_abs_error"] >= 0
            assert row["top1_agreement"] is None, "seeded weights say nothing of accuracy"


def test_folder_holds_everything(full):
    assert list(full.rows.schema.items()) == list(RESULTS.items())
    assert dict(pl.scan_parquet(full.folder / "samples.parquet").collect_schema()) == SAMPLES
    for row in full.rows.to_dicts():
        assert (row["run_id"], row["suite"], row["device"]) == (full.folder.name, "job", "cpu")
        assert all(row[name] for name in ("host", "torch_version", "onnxruntime_version"))
        assert row["status"] == "ok" or row["reason"], row["case_id"]
    files = {file.name for file in full.folder.iterdir()}
    assert files >= {"bench.yaml", "environment.json", "journal.jsonl", "results.parquet", "samples.parquet", "tables"}
    assert "report.html" in files
    tables = {file.name for file in (full.folder / "tables").iterdir()}
    assert tables >= {f"{name}.csv" for name in ("latency", "memory", "speedup")}
    environment = json.loads((full.folder / "environment.json").read_text())
    assert environment["device"] == "cpu"
    assert environment["cpu"]
    assert environment["packages"]["torch"]
    assert sorted(line["case_id"] for line in full.lines()) == sorted(full.rows["case_id"])


def test_terminal_has_the_tables_and_nothing_of_the_libraries(full):
    output = full.done.stdout
    assert full.done.stderr == ""
    assert re.search(rf"\nWhy not the others: python -m profiler recommend \S+{full.folder.name}( .*)?\n$", output)
    assert "Traceback" not in output
    assert "Warning:" not in output
    assert "good, inference, batch 2" in output
    assert "\nTook " in output
    assert [line for line in output.splitlines() if len(line) > 120 and full.folder.name not in line] == []


def test_a_base_has_three_processes_and_all_answers_name_one_configuration(
    run, profiler, cache, workplace, monkeypatch
):
    monkeypatch.setattr(plan, "BASE_PROCESSES", 3)
    monkeypatch.setattr(plan, "CONFIRMING_PROCESSES", 3)
    job = f"models: [{GOOD}]\nengines: [eager, ort]\ndevice: cpu\nbudget: {FAST}\n"
    finished = run(workplace, job, report=True, AS_IF_QUIET="yes")
    processes = dict(finished.rows.group_by("variant").agg(pl.col("replicate").sort()).rows())
    assert processes["eager"] in ([*range(3)], [*range(6)])  # More if the first ones disagree.
    assert processes["ort"] in ([0], [0, 1, 2, 3])
    for row in finished.rows.to_dicts():
        for name in ("latency_ms", "throughput"):
            low, high = ends_of(name)
            assert row[low] <= row[name] <= row[high] and row[low] < row[high]
    assert finished.rows.filter("confirming", variant="ort")["replicate"].to_list() in ([], [1, 2, 3])
    (kept,) = (runs[finished.folder.name] for runs in json.loads((cache / "spreads.json").read_text()).values())
    logs = finished.rows.filter(variant="eager")["latency_ms"].log()
    assert kept["host/eager"] == [pytest.approx(typical_spread([logs.var()], [len(logs) - 1])), 1.0]
    asked = profiler("recommend", str(finished.folder), cwd=workplace)
    title = re.search("<h1>(.*?)</h1>", (finished.folder / "report.html").read_text())
    assert title
    texts = [finished.done.stdout, asked.stdout, title[1]]
    told = r"No recommendation yet|Deploy (?:\S+ \S+?(?:,| or|:) )+"
    named = {" ".join(re.findall(told, text)).replace(",", ":").replace("batch 1: ", "") for text in texts}
    assert len(named) == 1 and named != {""}, texts
    if won := re.search("Deploy (\\S+)", title[1]):
        assert len(processes[won[1]]) >= 3, "what wins is as well known as the base"


def test_no_process_outlives_a_run_as_a_user_starts_it(resumed):
    """And interrupts it."""
    mark = f"TEST_RUN={resumed.key}".encode()

    def carries_mark(process: Path) -> bool:
        try:
            return mark in (process / "environ").read_bytes()
        except OSError:
            return False

    # The forkserver notices that its parent has gone, and leaves by itself.
    until(lambda: not any(map(carries_mark, Path("/proc").glob("[0-9]*"))))


def test_second_run_prepares_nothing(full, run, workplace, cache):
    def made() -> dict[Path, int]:
        # Without manifests, which are touched when their entry is used.
        files = (f for f in cache.rglob("*") if f.is_file() and f.suffix != ".lock" and not f.with_suffix("").exists())
        return {f: f.stat().st_mtime_ns for f in files}

    before = made()
    assert any(file.suffix == ".onnx" for file in before)
    # The factory's file lies in another folder now, and has the same content.
    again = run(workplace, FULL, "--only", "engine=ort,precision=fp32,batch_size=2", "--strict")
    assert made() == before
    case_id = "good/ort/inference/fp32/b2/r0"
    assert again.rows["status"].to_list() == ["ok", "unsupported"], "and an unsupported case is no failed one"
    assert again.row(case_id)["export_s"] == full.row(case_id)["export_s"]


def test_exit_codes_of_failed_rows(run, workplace, tmp_path):
    job = f"models: [{RAISING}, {GOOD}]\nengines: [eager, ort-tuned]\ndevice: cpu\nbudget: {FAST}\n"
    finished = run(workplace, job, "--strict", code=1)
    assert set(finished.rows["status"]) == {"failed", "ok", "unsupported"}
    shutil.rmtree(tmp_path / "results")
    finished = run(workplace, f"models: [{RAISING}]\nengines: [eager]\ndevice: cpu\nbudget: {FAST}\n", code=1)
    assert finished.rows["status"].to_list() == ["failed"]
    assert finished.rows["log"].to_list() == ["logs/prepare,raising.log"]
    printed = (finished.folder / "logs" / "prepare,raising.log").read_text()
    assert all(word in printed for word in ("Traceback", "tiny.py", "no luck with this one"))
    assert "no luck with this one" in finished.done.stdout
    assert "Traceback" not in finished.done.stdout


# A user's ONNX files.


def listed(count: int, step: float) -> str:
    return ", ".join(str(step * number) for number in range(count))


TWO = f"""
two (float[n, length, 4] x, int64[n, length] ids) => (float[n, length, 3] y)
<float[2, 4] table = {{{listed(8, 0.5)}}}, float[4, 3] w = {{{listed(12, 0.1)}}}>
{{ e = Gather (table, ids) s = Add (x, e) y = MatMul (s, w) }}
"""
"""Inputs of floats and of indices; n and length are free."""
TWICE = """
import torch
from torch import nn

def twice(times=2):
    model = nn.Linear(3, 2, bias=False)
    model.weight = nn.Parameter(times * torch.arange(6.0).reshape(3, 2).T)
    return nn.Sequential(model, nn.Dropout())
"""
# Gives twice what free.onnx does.


@pytest.fixture(scope="module")
def users(tmp_path_factory: pytest.TempPathFactory, run: Run) -> Finished:
    folder = tmp_path_factory.mktemp("users")
    write_text(folder / "two.onnx", TWO)
    weight = np.arange(6, dtype=np.float32).reshape(3, 2)
    write_product(folder / "fixed.onnx", weight, batch=2)
    write_product(folder / "free.onnx", weight)
    (folder / "nets.py").write_text(TWICE)
    job = f"""
models:
  - {{name: two, onnx: two.onnx, dimensions: {{length: 5}}, inputs: {{ids: {{range: [0, 2]}}}}}}
  - {{name: fixed, onnx: fixed.onnx}}
  - {{name: pair, factory: "nets:twice", options: {{times: 1}}, input: [3], onnx: free.onnx}}
  - {{name: unlike, factory: "nets:twice", input: [3], onnx: free.onnx}}
engines: [eager, ort{", openvino" if OPENVINO else ""}]
precisions: [fp32, bf16]
batch_sizes: [1, 2]
device: cpu
budget: {FAST}
exclude:
  - {{model: [two, pair, unlike], batch_size: 1}}
  - {{model: [pair, unlike], precision: bf16}}
  - {{model: [pair, unlike], engine: openvino}}
"""
    return run(folder, job)


def test_onnx_files_run_as_they_are_where_graphs_run(users):
    files = users.rows.filter(pl.col("model").is_in(["two", "fixed"]))
    assert set(files["precision"]) == {"fp32", "bf16"}
    for row in files.to_dicts():
        expected = "unsupported"
        if (
            row["engine"] != "eager"
            and (row["precision"] == "fp32" or (row["engine"] == "openvino" and has_bf16()))
            and (row["model"], row["batch_size"]) != ("fixed", 1)
        ):
            expected = "ok"
            assert row["reference"] == "ort-cpu-unoptimized"
            assert row["rel_l2_error"] < (1e-5 if row["precision"] == "fp32" else 1e-1)
            compute = {"fp32": "float32", "bf16": "bfloat16"}[row["precision"]]
            assert set(json.loads(row["proof"])["compute_types"]) == {compute}
        assert row["status"] == expected, (row["case_id"], row["reason"])
    assert "fixed batch of 2" in users.row("fixed/ort/inference/fp32/b1/r0")["reason"]
    assert "torch module" in users.row("fixed/eager/inference/fp32/b2/r0")["reason"]


def test_factors_of_files_are_over_ort(users):
    table = pl.read_csv(users.folder / "tables" / "speedup.csv")
    own = table.filter(pl.col("model").is_in(["two", "fixed"]), variant="ort")
    assert own["factor"].to_list() == [1.0] * 2


def test_a_module_and_its_hand_made_graph_have_one_reference(users):
    for engine in ("eager", "ort"):
        row, unlike = (users.row(f"{model}/{engine}/inference/fp32/b2/r0") for model in ("pair", "unlike"))
        assert (row["status"], row["reference"], row["export_s"]) == ("ok", "eager-fp32-cpu", None), row["reason"]
        assert row["rel_l2_error"] < 1e-6
        assert unlike["status"] == ("ok" if engine == "eager" else "failed"), "its graph is of other weights"


# Interrupted, resumed, retried.

CASES = [f"{model}/eager/inference/fp32/b{batch}/r0" for model in ("flaky", "good") for batch in (1, 2)]


@dataclass
class State:
    """A run's folder at one time."""

    code: int
    output: str
    journal: list[dict[str, Any]]
    rows: pl.DataFrame

    @property
    def of_eager(self) -> list[str]:
        return [line["case_id"] for line in self.journal if "/eager/" in line["case_id"]]


@dataclass
class Resumed:
    """The same run after its terminal closed, after --resume, and after --resume --retry."""

    folder: Path
    key: str
    """In the environment of what was interrupted."""
    interrupted: State
    resumed: State
    retried: State


def close_terminal_after_first_ok(folder: Path, cache: Path, key: str) -> CompletedProcess[str]:
    """Start job.yaml there as a user does, and close its terminal once a measured case is in the journal.

    With a reader that left after a line, and with temporary files in a folder whose name is too
    long for sockets; a shell and the kernel send SIGHUP each.
    """
    temporary = folder / ("l" * 100)
    temporary.mkdir()
    own = {"PYTHONPATH": str(ROOT), "PROFILER_CACHE": str(cache), "TEST_RUN": key, "TMPDIR": str(temporary)}
    with subprocess.Popen(
        [sys.executable, "-m", "profiler", "job.yaml"],
        cwd=folder,
        env={**os.environ, **own},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # A shell's background job ignores SIGINT, and so would its children.
        preexec_fn=lambda: [signal.signal(each, signal.SIG_DFL) for each in (signal.SIGINT, signal.SIGHUP)],
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.readline()
        process.stdout.close()

        def has_measured() -> bool:
            return any('"status": "ok"' in file.read_text() for file in folder.glob("results/*/journal.jsonl"))

        until(lambda: has_measured() or process.poll() is not None)
        for _ in range(2):
            process.send_signal(signal.SIGHUP)
            time.sleep(0.05)
        errors = process.stderr.read()
        return CompletedProcess([], process.wait(), "", errors)


@pytest.fixture(scope="module")
def resumed(tmp_path_factory: pytest.TempPathFactory, run: Run, cache: Path) -> Resumed:
    folder = with_factories(tmp_path_factory.mktemp("resume"))
    (folder / "marker").touch()
    (folder / "until-interrupted").touch()
    models = [
        f"{{name: {name}, factory: 'tiny:{factory}', input: [3, 16, 16], options: {{marker: '{folder}/{marker}'}}}}"
        for name, factory, marker in (("flaky", "Flaky", "marker"), ("good", "Waiting", "until-interrupted"))
    ]
    (folder / "job.yaml").write_text(
        f"models: [{', '.join(models)}]\nengines: [eager, ort-tuned]\nbatch_sizes: [1, 2]\ndevice: cpu\n"
        f"budget: {FAST}\nexclude: [{{replicate: [1, 2]}}]\n"
    )
    key = uuid.uuid4().hex
    done = close_terminal_after_first_ok(folder, cache, key)
    (folder / "until-interrupted").unlink()
    (path,) = (folder / "results").iterdir()

    def state(done: CompletedProcess[str]) -> State:
        now = Finished(done, path)
        return State(done.returncode, done.stdout + done.stderr, now.lines(), now.rows)

    first = state(done)
    quiet = {"AS_IF_QUIET": "yes"}
    second = state(run(folder, None, "--resume", str(path), **quiet).done)
    (folder / "marker").unlink()
    return Resumed(path, key, first, second, state(run(folder, None, "--resume", str(path), "--retry", **quiet).done))


def test_a_terminal_that_closes_gives_130_and_what_there_is_is_written(resumed):
    state = resumed.interrupted
    assert (state.code, state.output) == (130, "")
    assert 3 <= len(state.of_eager) < len(CASES)
    assert sorted(state.rows.filter(pl.col("status") != "waiting")["case_id"]) == sorted(
        line["case_id"] for line in state.journal
    )
    assert state.rows["case_id"].n_unique() == 8, "none is missing"
    assert (resumed.folder / "tables" / "latency.csv").exists()
    assert (resumed.folder / "report.html").exists()


def test_resume_measures_what_is_missing_and_that_alone(resumed):
    before, after = resumed.interrupted, resumed.resumed
    assert after.journal[: len(before.journal)] == before.journal
    assert sorted(after.of_eager) == sorted(CASES), "one line a case"
    status = dict(after.rows.select("case_id", "status").rows())
    assert [status[case] for case in CASES] == ["failed"] * 2 + ["ok"] * 2
    assert len({line["case_id"] for line in after.journal}) == len(after.journal) == 2 * len(CASES)
    assert [case for case in after.rows["case_id"] if "/eager/" in case] == CASES, "in the plan's order"
    assert set(before.rows["suite"]) == set(after.rows["suite"]) == {"job"}


def test_retry_measures_what_failed_again_and_that_alone(resumed):
    before, after = resumed.resumed, resumed.retried
    assert after.journal[: len(before.journal)] == before.journal
    again, failed = after.of_eager[len(CASES) :], CASES[:2]
    # What was measured before the interrupt may have been disturbed, and may be less so now.
    assert {*failed} <= {*again} <= {*failed, *resumed.interrupted.of_eager}
    assert len({*again}) == len(again)
    eager = after.rows.filter(pl.col("variant") == "eager")
    assert sorted(eager["case_id"]) == sorted(CASES)
    assert set(eager["status"]) == {"ok"}


def test_resumed_sessions_are_added_up_in_the_environment(resumed):
    environment = json.loads((resumed.folder / "environment.json").read_text())
    first, second = environment["earlier_commands"][:2]
    assert first[1:] == ["job.yaml"]
    assert "--resume" in second


def test_resume_with_only_keeps_the_other_rows(resumed, run):
    workplace = resumed.folder.parents[1]
    append_line(resumed.folder / "journal.jsonl", "{half a li}")
    finished = run(workplace, None, "--resume", str(resumed.folder), "--only", "model=good,variant=eager,batch_size=1")
    assert len(finished.rows) == 2 * len(CASES)
    assert "0 of 1 case to try" in finished.done.stdout
    assert "\nIgnored 1 damaged line of journal.jsonl; their cases will be measured again" in finished.done.stdout


def test_replicates_added_by_resume_confirm_the_chosen_cells_alone(run, workplace):
    first = run(workplace, f"models: [{GOOD}]\nengines: [eager, ort]\ndevice: cpu\nbudget: {FAST}\n")
    measured = first.rows["case_id"].to_list()
    only = "variant=ort,precision=fp32"
    resumed = run(workplace, None, "--resume", str(first.folder), "--replicates", "6", "--only", only)
    added = resumed.rows.filter(~pl.col("case_id").is_in(measured))
    assert added["case_id"].to_list()[-2:] == [f"good/ort/inference/fp32/b1/r{n}" for n in (4, 5)]
    assert {*added["variant"]} == {"ort"} and added["confirming"].all()


# Options.


def test_only_output_quick_and_device(profiler, cache, workplace):
    # Without --quick this would take a million samples.
    budget = "{seconds: 3600, min_samples: 1000000, max_samples: 1000000, timeout: 9999}"
    (workplace / "job.yaml").write_text(
        f"models: [{GOOD}]\nengines: [eager, eager-tuned]\nbatch_sizes: [1, 2]\nbudget: {budget}\n"
    )
    arguments = ["--only", "variant=eager", "--only", "batch_size=2", "--output", "elsewhere", "--quick"]
    done = profiler("job.yaml", *arguments, "--device", "cpu", cwd=workplace, PROFILER_CACHE=str(cache))
    assert done.returncode == 0, done.stdout + done.stderr
    assert not (workplace / "results").exists()
    (folder,) = (workplace / "elsewhere").iterdir()
    finished = Finished(done, folder)
    assert finished.rows.select("case_id", "device", "status").rows() == [
        ("good/eager/inference/fp32/b2/r0", "cpu", "ok")
    ]
    resolved = load_config(folder / "bench.yaml")
    assert resolved.device == "cpu"
    assert resolved.budget.seconds < 3600, "what --resume adds must be sampled as long as the rest"
    assert json.loads((folder / "environment.json").read_text())["sampling_seconds"] == 0.3


def test_a_limit_of_a_percentile_takes_the_samples_that_it_needs():
    for limits, samples in ((["2"], None), (["p90=2"], 64), (["3", "p90=2", "p99=4"], 662)):
        asked = Options(config=Path("net"), quick=True, max_latency_ms=limits)
        assert command._overrides(asked)["budget"]["min_samples"] == (samples or 3)


def test_seconds_that_are_given_win_over_quicks():
    found = [command._overrides(Options(config=Path("net"), quick=True, seconds=s))["budget"] for s in (9.0, None)]
    assert found == [{"seconds": 9.0, "min_samples": 3}, {"seconds": 0.3, "min_samples": 3}]
    (said,) = [field.metadata["typer"].help for field in fields(Options) if field.name == "quick"]
    assert f"{QUICK['seconds']} s" in said and "--seconds overrides" in said


def test_a_report_that_fails_is_one_line_that_says_how_to_try_again():
    said = on_console(lambda console: command.write_report(Path("a run"), pl.DataFrame(), console))
    assert re.fullmatch(r"no report: .+; try again: python -m profiler report 'a run'\n", said), said


def test_what_is_left_is_gone_on_with_as_it_was_begun(workplace):
    options = Options(only=["model=good"], wait_for_idle=10.0, strict=True)
    start: Any = SimpleNamespace(options=options, config=SimpleNamespace(largest_batch=LargestBatch()))
    left = command._what_is_left(start, RunFolder(workplace))
    assert left.endswith(f"--resume {workplace} --only model=good --wait-for-idle 10 --strict")


def test_dry_run_prints_every_case_and_makes_nothing(profiler, workplace):
    (workplace / "job.yaml").write_text(FULL)
    before = sorted(workplace.iterdir())
    done = profiler("job.yaml", "--dry-run", cwd=workplace, PROFILER_CACHE=str(workplace / "cache"))
    assert (done.returncode, done.stderr) == (0, "")
    assert "in about" in done.stdout
    assert re.search(r"good +ort +inference +\d +unsupported: .*bf16", done.stdout)
    assert [path for path in sorted(workplace.iterdir()) if path.name != "__pycache__"] == before


@pytest.mark.parametrize("options", [["--dry-run"], ["--quick"]])
def test_a_module_that_is_nowhere_is_told_alike_whether_or_not_it_runs(profiler, workplace, options):
    done = profiler("nowhere.at:all", "--engine", "eager", *options, cwd=workplace)
    assert done.returncode == 2
    assert "'nowhere.at:all': there is no module 'nowhere'; add its folder" in done.stdout + done.stderr


JOB = f"models: [{GOOD}]\nengines: [eager]\ndevice: cpu\n"

WRONG: list[tuple[str | None, list[str], list[str]]] = [
    (JOB, ["job.yaml", "--only", "model=other"], ["--only model=other: the config has none; valid: good"]),
    (None, ["--resume", "nowhere"], ["--resume nowhere", "no run was written there"]),
    (JOB, ["job.yaml", "--resume", "nowhere"], ["a job and --resume exclude each other"]),
    (JOB, ["--resume", ".", "--seconds", "9"], ["--seconds and --resume exclude each other"]),
    (JOB, ["--resume", ".", "--ray", "local", "--replicates", "3"], ["--replicates of a resumed run and --ray"]),
    (JOB, ["job.yaml", "--device", "gpu"], ["--device", "gpu", "auto, cpu, cuda"]),
    (JOB, ["job.yaml", "--output", "job.yaml"], ["output", "job.yaml", "--output"]),
    (JOB, ["job.yaml", "--retry", "--dry-run"], ["--retry", "--resume"]),
    (JOB, ["job.yaml", "--wait-for-idle", "0.05"], ["--wait-for-idle", "0.1"]),
    (JOB, ["job.yaml", "--bogus"], ["--bogus"]),
    *([] if visible_gpus() else [(JOB, ["job.yaml", "--device", "cuda"], ["GPU", "cpu"])]),
]


@pytest.mark.parametrize(("job", "arguments", "words"), WRONG)
def test_what_cannot_be_used_gives_2_and_one_message(profiler, workplace, job, arguments, words):
    if job is not None:
        (workplace / "job.yaml").write_text(job)
    done = profiler(*arguments, cwd=workplace)
    assert done.returncode == 2, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""
    assert [word for word in words if word not in done.stderr] == [], done.stderr
    assert not (workplace / "results").exists()


def test_the_command_that_continues_a_run_has_every_option_that_it_needs():
    options = Options(only=["model=a b"], wait_for_idle=10.0, strict=True, replicates=3)
    words = shlex.split(command.going_on(options, Path("run")))
    assert words[-6:] == ["run", "--only", "model=a b", "--wait-for-idle", "10", "--strict"]
    resumed = Options(resume=Path("run"), trust_code=True, retry=True, replicates=5)
    words = shlex.split(command.going_on(resumed, Path("run")))
    assert words[-5:] == ["run", "--replicates", "5", "--retry", "--trust-code"]
