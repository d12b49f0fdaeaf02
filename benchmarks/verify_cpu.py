"""Compare our host clock with plain loops, torch.utils.benchmark and OpenVINO's benchmark_app, from 1 µs to 1 s a call.

A plain loop calls the runtime as its own documentation does, with a model that it loads itself, and takes the time of
some thousand calls together. So what differs is what our session and our clock add to a call.

Both are timed in one process in turn, round by round, and a cell's difference is the median over its rounds: what else
the machine does meets both alike. Exit code 1 if a cell differs by more than 2 % and by more than 0.3 µs.
In the engines of PyTorch `parity` is our error over numpy's own comparison of the plain call's outputs with the
reference; a factor of more than 2 gives 1, too.
Needs: pip install -e '.[openvino]'.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import polars as pl

from benchmarks.verify_plain import arrays, module_call, numpy_error
from profiler.job.case import Budget, Case, file_name, parse_only
from profiler.job.config import load_config
from profiler.job.plan import make_plan, only_of
from profiler.processes.holders import Holders
from profiler.processes.messages import Report
from profiler.processes.process import Call, run_one, start_forkserver
from profiler.run.prepare import failure, prepare
from profiler.worker.task import Task, make_job

HERE = Path(__file__).resolve().parent
SHARE, MICROSECONDS, PARITY_FACTOR, EXACT = 0.02, 0.3, 2.0, 1e-7
ROUNDS = 7
SECONDS = 0.3
"""Seconds of each tool in each round; at least one call."""
TOOLS = ("ours", "loop", "timer", "benchmark_app")


@dataclass(frozen=True)
class Row:
    """Medians over the rounds, in microseconds, by tool."""

    case: Case
    us: dict[str, float]
    difference_us: float
    """Ratios of ours to the plain loop of the same round."""
    parity: float | None = None
    """Our error over numpy's own, of an engine of PyTorch."""

    @property
    def share(self) -> float:
        return self.difference_us / self.us["loop"]

    @property
    def agrees(self) -> bool:
        near = self.parity is None or 1 / PARITY_FACTOR <= self.parity <= PARITY_FACTOR
        return near and (abs(self.share) <= SHARE or abs(self.difference_us) <= MICROSECONDS)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", action="append", default=[], help="cells, as in python -m profiler --only")
    parser.add_argument("--output", type=Path, default=Path("results"), help="folder for verify-cpu.csv and logs")
    options = parser.parse_args()
    logs = options.output / "verify-cpu-logs"
    logs.mkdir(parents=True, exist_ok=True)
    start_forkserver(logs / "forkserver.log")
    config = load_config(HERE / "verify_cpu.yaml", "cpu")
    cases = only_of(make_plan(config, "cpu"), parse_only(options.only))
    prepared = prepare(cases, config.budget, logs, tuple(map(str, config.import_from)), lambda *_: None, Holders())
    rows = []
    print(f"{'median µs per call':<24}" + "".join(f"{name:>14}" for name in (*TOOLS, "difference", "share", "parity")))
    for case in cases:
        if reason := case.unsupported or failure(case, prepared[case.model]):
            print(f"{_name(case):<24}  {reason}")
            continue
        call = Call("verify_cpu:time_cell", Task(case, prepared[case.model], config.budget),
                    logs / f"{file_name(case.id)}.log", 300.0, 900.0, {}, (str(HERE),))  # fmt: skip
        outcome = run_one(call)
        if outcome.status != "ok":
            print(f"{_name(case):<24}  {outcome.status}: {outcome.reason}")
            continue
        row = Row(case, *outcome.value)
        rows.append(row)
        cells = [f"{row.us[name]:,.2f}" if name in row.us else "" for name in TOOLS]
        cells += [f"{row.difference_us:+,.2f}", f"{row.share:+.1%}", "" if row.parity is None else f"{row.parity:.2f}"]
        print(f"{_name(case):<24}" + "".join(f"{cell:>14}" for cell in cells), flush=True)
    written = [
        {"case_id": str(r.case.id), **{f"{name}_us": r.us.get(name) for name in TOOLS}}
        | {"difference_us": r.difference_us, "share": r.share, "parity": r.parity}
        for r in rows
    ]
    pl.DataFrame(written, infer_schema_length=None).write_csv(options.output / "verify-cpu.csv")
    good = sum(row.agrees for row in rows)
    print(f"\n{good} of {len(rows)} cells agree with a plain loop within {SHARE:.0%} or {MICROSECONDS} µs")
    sys.exit(0 if good == len(cases) else 1)


def time_cell(task: Task, report: Report) -> tuple[dict[str, float], float, float | None]:
    """Return each tool's median in microseconds, our median difference to the plain loop, and parity."""
    import torch
    from torch.utils.benchmark import Timer

    import engines
    from profiler.worker.clock import CpuClock
    from profiler.worker.sampling import first_run, measure, warm_up

    clock, budget = CpuClock(), Budget(seconds=SECONDS, min_samples=1)
    job = make_job(task, lambda phase: None)
    session = engines.open_session(task.case.engine, job)
    first_run(session, clock)
    call_ms, _ = warm_up(session, clock, task.budget)
    plain = PLAIN[task.case.engine](job)
    timer = Timer("plain()", globals={"plain": plain}, num_threads=torch.get_num_threads())

    def ours() -> float:
        return statistics.median(measure(session, clock, budget, call_ms).samples["host"])

    tools: dict[str, Callable[[], float]] = {
        "ours": ours,
        "loop": lambda: _loop(plain, call_ms),
        "timer": lambda: timer.blocked_autorange(min_run_time=SECONDS).median * 1e3,
    }
    # Every second round the other way round.
    rounds = [{name: 1e3 * tools[name]() for name in list(tools)[:: (-1) ** turn]} for turn in range(ROUNDS)]
    us = {name: statistics.median(r[name] for r in rounds) for name in tools}
    if task.case.engine == "openvino":
        us["benchmark_app"] = _benchmark_app(task)
    return us, statistics.median(r["ours"] - r["loop"] for r in rounds), _parity(task, session, plain())


def _parity(task: Task, session: Any, outputs: Any) -> float | None:
    """Return our relative L2 error over the plain call's in numpy; None in engines whose call returns no outputs."""
    from profiler.results.result import Result
    from profiler.worker import checks

    result, reference = Result(task.case.id, "ok"), task.prepared.reference(task.case)
    checks.verify(task, session, session.outputs(), result)
    if task.case.engine not in ("eager", "compiled") or reference is None:
        return None
    theirs, ours = numpy_error(arrays(outputs), reference), result.figures["rel_l2_error"] or 0.0
    # Two sums in another order differ in the last place, and an error of 0 has no factor.
    return 1.0 if max(theirs, ours) < EXACT else ours / max(theirs, EXACT)


def _loop(call: Callable[[], Any], call_ms: float) -> float:
    """Time a call in milliseconds: the median over blocks of calls that last half a millisecond, or of single ones."""
    size = max(1, round(0.5 / call_ms))
    found, end = [], time.perf_counter() + SECONDS
    while True:
        start = time.perf_counter_ns()
        for _ in range(size):
            call()
        found.append((time.perf_counter_ns() - start) / size / 1e6)
        if time.perf_counter() >= end:
            return statistics.median(found)


def _ort(job: Any) -> Callable[[], Any]:
    import onnxruntime

    session = onnxruntime.InferenceSession(job.onnx, providers=["CPUExecutionProvider"])
    binding = session.io_binding()
    feeds = {spec.name: array for spec, array in zip(job.specs, job.inputs, strict=True)}
    for name, array in feeds.items():
        binding.bind_ortvalue_input(name, onnxruntime.OrtValue.ortvalue_from_numpy(array))
    for node, array in zip(session.get_outputs(), session.run(None, feeds), strict=True):
        value = onnxruntime.OrtValue.ortvalue_from_shape_and_type(array.shape, "float32")
        binding.bind_ortvalue_output(node.name, value)
    return lambda: session.run_with_iobinding(binding)


def _openvino(job: Any) -> Callable[[], Any]:
    import openvino

    model = openvino.Core().read_model(job.onnx)
    model.reshape({port: list(array.shape) for port, array in zip(model.inputs, job.inputs, strict=True)})
    compiled = openvino.compile_model(model, "CPU", {"PERFORMANCE_HINT": "LATENCY", "INFERENCE_PRECISION_HINT": "f32"})
    request = compiled.create_infer_request()
    for number, array in enumerate(job.inputs):
        request.set_input_tensor(number, openvino.Tensor(array))
    call: Callable[[], Any] = request.infer
    return call


PLAIN: dict[str, Callable[[Any], Callable[[], Any]]] = {
    "eager": module_call,
    "compiled": partial(module_call, compiled=True),
    "ort": _ort,
    "openvino": _openvino,
}
"""By engine, a call of it as its own documentation writes it."""


def _benchmark_app(task: Task) -> float:
    """Return the mean microseconds of OpenVINO's own tool; its median has only two decimals of a millisecond."""
    shapes = ",".join(f"[{task.case.batch_size},{','.join(map(str, spec.shape[1:]))}]" for spec in task.prepared.specs)
    with tempfile.TemporaryDirectory() as folder:
        command = ["benchmark_app", "-m", str(task.prepared.onnx["fp32"].path), "-d", "CPU", "-api", "sync", "-t", "2",
                   "-shape", shapes, "-infer_precision", "f32", "-json_stats", "-report_type", "no_counters",
                   "-report_folder", folder]  # fmt: skip
        program = Path(sys.executable).with_name(command[0])
        subprocess.run([program, *command[1:]], check=True, capture_output=True, text=True)
        found = json.loads(next(Path(folder).glob("*.json")).read_text())["execution_results"]
    return 1e3 * float(found["total execution time (ms)"]) / float(found["total number of iterations"])


def _name(case: Case) -> str:
    return f"{case.model} {case.variant}, batch {case.batch_size}"


if __name__ == "__main__":
    main()
