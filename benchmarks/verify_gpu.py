"""Our clocks beside other tools': NVBench, triton.testing.do_bench and torch.utils.benchmark time the same callable.

In the engines of PyTorch the column `plain` is a script's figure: the model loaded, captured and timed by its own code
(verify_plain.py) in a process of its own, as a program that deploys it would. `parity` is our error over numpy's own
comparison of its outputs with the reference, within a factor of 2. The script's figure must be within 2 % of ours where
the device sets the latency. Where the host does, in the rows that are warned of as `host-bound`, a latency is how fast
Python enqueues, which no two loops agree on: it is printed, and nothing is concluded.

The others time one session on one stream in one process, one cell of verify_gpu.yaml after the other, so what differs
is the tool. NVBench flushes the L2 cache before each call of its cold measurement and not in its batch measurement, so
each is compared with a gated measurement of ours under the same condition and taken right before or after it. Batches
are taken where a CUDA graph makes a call one launch: the others would overflow the launch queue that NVBench blocks.

At its power limit a card lowers its clocks the more, the less a tool lets it rest between calls. So the SM clock is
read while each tool runs, and printed for the cells that differ. Exit code 1 if a cell differs by more than that (from
NVBench by 1 %) although the card was not at its power limit. Needs: pip install -e
'.[verify,timm,hf]'; without NVBench (cuda-bench) its columns stay empty.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import statistics
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.verify_plain import arrays, event_ms, module_call, numpy_error, replayed_ms
from profiler.job.case import Budget, Case, file_name, parse_only
from profiler.job.config import load_config
from profiler.job.plan import make_plan, only_of
from profiler.machine.nvml import power_capped, visible_gpus
from profiler.processes.holders import Holders
from profiler.processes.messages import Entered, Outcome, Report
from profiler.processes.process import Call, run_one, start_forkserver
from profiler.run.prepare import failure, prepare
from profiler.run.watch import Watcher
from profiler.worker.sampling import host_bound
from profiler.worker.task import Task

HERE = Path(__file__).resolve().parent
TOLERANCE, PLAIN_TOLERANCE, PARITY_FACTOR = 0.01, 0.02, 2.0
REPEATED = ("resnet50/eager/inference/fp16/b16/r0", "resnet50/ort-tuned/inference/fp16/b16/r0")
TOOLS = ("plain", "ours", "do_bench", "torch_timer", "flushed", "nvbench", "again")
RATIOS = {
    "flushed": (("gpu_flushed", "nvbench_cold"), TOLERANCE),
    "warm": (("gpu_again", "nvbench_batch"), TOLERANCE),
    "plain off": (("event", "plain"), PLAIN_TOLERANCE),
}
"""Our gated time with a flush before each call to NVBench's cold one, without to that of its batch, our latency to the
plain script's; and how far off they may be."""
COLUMNS = (
    "event",
    "gpu",
    "plain",
    "do_bench",
    "torch_timer",
    "gpu_flushed",
    "nvbench_cold",
    "nvbench_batch",
    "gpu_again",
)


@dataclass(frozen=True)
class Row:
    """Medians in milliseconds by tool; nvbench_batch is a mean, the only figure that a batch has."""

    case: Case
    ms: dict[str, float]
    mhz: dict[str, float]
    """Median SM clock while each tool ran."""
    power_capped: bool

    @property
    def ratios(self) -> dict[str, float]:
        """Return by RATIOS how far off we are, where both were measured, and our L2 error over numpy's."""
        ms = dict(self.ms)
        if host_bound({name: [value] for name, value in ms.items()}):
            ms.pop("plain", None)
        there = {name: tools for name, (tools, _) in RATIOS.items() if set(tools) <= ms.keys()}
        found = {name: ms[own] / ms[other] - 1 for name, (own, other) in there.items()}
        return found | ({"parity": ms["our_error"] / ms["numpy_error"]} if ms.get("numpy_error") else {})

    @property
    def agrees(self) -> bool:
        ratios = self.ratios
        near = 1 / PARITY_FACTOR <= ratios.get("parity", 1.0) <= PARITY_FACTOR
        return near and all(abs(ratios.get(name, 0.0)) <= limit for name, (_, limit) in RATIOS.items())

    @property
    def words(self) -> dict[str, str]:
        """Return the ratios as printed."""
        return {name: f"{value:.2f}" if name == "parity" else f"{value:+.2%}" for name, value in self.ratios.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", action="append", default=[], help="cells, as in python -m profiler --only")
    parser.add_argument("--repeats", type=int, default=10, help="fresh processes for the spread between them")
    parser.add_argument("--output", type=Path, default=Path("results"), help="folder for verify-gpu.csv and logs")
    options = parser.parse_args()
    gpus = visible_gpus()
    if not gpus:
        sys.exit("verify-gpu: no NVIDIA GPU answers here")
    logs = options.output / "verify-gpu-logs"
    logs.mkdir(parents=True, exist_ok=True)
    start_forkserver(logs / "forkserver.log")
    config = load_config(HERE / "verify_gpu.yaml", "cuda")
    cases = only_of(make_plan(config, "cuda"), parse_only(options.only))
    prepared = prepare(cases, config.budget, logs, (), lambda *_: None, Holders(), gpus[0].uuid)
    tasks = [
        Task(case, prepared[case.model], config.budget, gpus[0].uuid)
        for case in cases
        if failure(case, prepared[case.model]) is None
    ]
    print(f"{gpus[0].name}, driver {gpus[0].driver}; medians in ms; {len(tasks)} cells", flush=True)
    with Watcher(gpus[0].uuid, logs / "telemetry.csv", logs / "telemetry.log") as watcher:
        rows = verify(tasks, logs, options.output / "verify-gpu.csv", watcher)
    repeated = [task for task in tasks if str(task.case.id) in REPEATED and options.repeats]
    spreads = [spread(task, options.repeats, logs) for task in repeated]
    bad = [row for row in rows if not row.agrees]
    compared = [row for row in rows if row.ratios.keys() & RATIOS.keys()]
    agree = f"{sum(row.agrees for row in compared)} of {len(compared)} compared cells agree"
    print(f"\n{agree}: NVBench within {TOLERANCE:.0%}, a script within {PLAIN_TOLERANCE:.0%}")
    for row in bad:
        print(f"  {row.case.id}: {', '.join(f'{name} {word}' for name, word in row.words.items())}")
        clocks = ", ".join(f"{tool} {mhz:.0f}" for tool, mhz in row.mhz.items())
        print(
            f"    {'at its power limit' if row.power_capped else 'not at its power limit'}; SM clock in MHz: {clocks}"
        )
    unexplained = [row for row in bad if not row.power_capped]
    sys.exit(1 if unexplained or len(rows) < len(cases) or not all(spreads) else 0)


def verify(tasks: Sequence[Task], logs: Path, output: Path, watcher: Watcher) -> list[Row]:
    """Measure a cell in two processes, the script's and the other tools'; print and write each row as it comes."""
    rows: list[Row] = []
    head = "".join(f"{name:>14}" for name in (*COLUMNS, *RATIOS, "parity"))
    print(f"{'':<38}{head}")
    with output.open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["case_id", *(f"{name}_ms" for name in COLUMNS), *RATIOS, "parity"])
        for task in tasks:
            outcomes = [run(task, function, logs) for function in functions_of(task)]
            if failed := [outcome for outcome in outcomes if outcome.status != "ok"]:
                print(f"{task.case.id!s:<38}  {failed[0].status}: {failed[0].reason}", flush=True)
                continue
            clocks = [_clocks(outcome.entered, watcher) for outcome in outcomes]
            row = Row(
                task.case,
                {name: ms for outcome in outcomes for name, ms in outcome.value.items()},
                {tool: mhz for clock, _ in clocks for tool, mhz in clock.items()},
                any(capped for _, capped in clocks),
            )
            rows.append(row)
            cells = [f"{row.ms[name]:.4f}" if name in row.ms else "" for name in COLUMNS]
            cells += [row.words.get(name, "") for name in (*RATIOS, "parity")]
            name = "/".join((row.case.model, row.case.variant, row.case.precision, f"b{row.case.batch_size}"))
            note = "" if "gpu" in row.ms else "  no gate could hold a call (gate-overrun)"
            print(f"{name:<38}" + "".join(f"{cell:>14}" for cell in cells) + note, flush=True)
            ratios = row.ratios
            figures = *(row.ms.get(name) for name in COLUMNS), *(ratios.get(name) for name in (*RATIOS, "parity"))
            table.writerow([row.case.id, *figures])
            file.flush()
    return rows


def spread(task: Task, repeats: int, logs: Path) -> bool:
    """Print the median absolute deviation of a cell's medians in fresh processes; return False if one failed."""
    found = []
    for _ in range(repeats):
        outcome = run(task, "time_ours", logs)
        if outcome.status != "ok":
            print(f"\n{task.case.id}: {outcome.status}: {outcome.reason}", flush=True)
            return False
        found.append(outcome.value.get("gpu", outcome.value["event"]))
    middle = statistics.median(found)
    deviation = statistics.median(abs(value - middle) for value in found) / middle
    print(f"\n{task.case.id}, {repeats} fresh processes:")
    print(
        f"median {middle:.4f} ms, median absolute deviation {deviation:.2%}, range {min(found):.4f}–{max(found):.4f}",
        flush=True,
    )
    return True


def run(task: Task, function: str, logs: Path) -> Outcome:
    log = logs / f"{file_name(task.case.id)}.log"
    environment = {"CUDA_VISIBLE_DEVICES": task.gpu or ""}
    return run_one(Call(f"verify_gpu:{function}", task, log, 300.0, 900.0, environment, (str(HERE),)))


def _clocks(entered: dict[str, float], watcher: Watcher) -> tuple[dict[str, float], bool]:
    """Return the median SM clock while each tool ran, and True if the card was at its power limit."""
    names = [name for name in entered if name in TOOLS]
    mhz, capped = {}, False
    for name, end in zip(names, [*(entered[name] for name in names[1:]), entered["exit"]], strict=True):
        readings = [r for r in watcher.between(entered[names[0]], end) if r.seconds >= entered[name]]
        clocks = [r.sm_clock_mhz for r in readings if r.sm_clock_mhz is not None]
        if clocks:
            mhz[name] = statistics.median(clocks)
        capped = capped or any(power_capped(r.reasons or 0) for r in readings)
    return mhz, capped


def functions_of(task: Task) -> Sequence[str]:
    """Name the functions that run for a cell, each in its own process; the script needs a module to time."""
    plain = task.case.engine in ("eager", "compiled") and task.prepared.reference(task.case) is not None
    return ("time_plain", "time_cell") if plain else ("time_cell",)


def time_ours(task: Task, report: Report) -> dict[str, float]:
    """Time the cell on our own clocks alone."""
    session, clock, call_ms = _open(task)
    return _ours(session, clock, task.budget, call_ms)


def time_cell(task: Task, report: Report) -> dict[str, float]:
    """Time one session with every tool; ours first and, once more, last."""
    import torch
    import triton
    from torch.utils.benchmark import Timer

    session, clock, call_ms = _open(task)

    def call() -> None:
        session.run(lambda name: None)

    report(Entered("ours"))
    found = _ours(session, clock, task.budget, call_ms)
    found["our_error"] = _error(task, session)
    report(Entered("do_bench"))
    found["do_bench"] = triton.testing.do_bench(call, warmup=50, rep=200, return_mode="median")
    report(Entered("torch_timer"))
    found["torch_timer"] = Timer("call()", globals={"call": call}).blocked_autorange(min_run_time=0.2).median * 1e3
    cache = torch.empty(torch.cuda.get_device_properties(0).L2_cache_size, dtype=torch.uint8, device="cuda")
    clock.before_gated = cache.zero_
    report(Entered("flushed"))
    found |= _gated("gpu_flushed", session, clock, found)
    clock.before_gated = lambda: None
    one_launch = bool(task.case.options.get("cuda_graph")) or task.case.engine == "compiled"
    report(Entered("nvbench"))
    with contextlib.suppress(ImportError):
        found |= _nvbench(call, clock.stream, one_launch)
    report(Entered("again"))
    found |= _gated("gpu_again", session, clock, found)
    return found


def time_plain(task: Task, report: Report) -> dict[str, float]:
    """Return the plain script's latency of a module, and numpy's error of its outputs."""
    import torch

    from profiler.worker.task import make_job

    reference = task.prepared.reference(task.case)
    assert reference is not None
    report(Entered("plain"))
    # All of the script on one stream, as a case is: replays are slower once two have been used (docs/verification.md).
    torch.cuda.set_stream(torch.cuda.Stream())
    call = module_call(make_job(task, lambda phase: None), compiled=task.case.engine == "compiled")
    is_graph = bool(task.case.options.get("cuda_graph"))
    ms = replayed_ms(call) if is_graph else event_ms(call)
    return {"plain": ms, "numpy_error": numpy_error(arrays(call()), reference)}


def _error(task: Task, session: Any) -> float:
    """Return our relative L2 error of the session's outputs; 0 without a reference."""
    from profiler.results.result import Result
    from profiler.worker import checks

    result = Result(task.case.id, "ok")
    checks.verify(task, session, session.outputs(), result)
    return result.figures.get("rel_l2_error") or 0.0


def _open(task: Task) -> tuple[Any, Any, float]:
    import engines
    from profiler.worker.clock import CudaClock
    from profiler.worker.sampling import first_run, warm_up
    from profiler.worker.task import make_job

    clock = CudaClock()
    session = engines.open_session(task.case.engine, make_job(task, lambda phase: None, lambda: None))
    first_run(session, clock)
    return session, clock, warm_up(session, clock, task.budget)[0]


def _ours(session: Any, clock: Any, budget: Budget, call_ms: float) -> dict[str, float]:
    from profiler.worker.sampling import measure

    samples = measure(session, clock, budget, call_ms).samples
    return {name: statistics.median(samples[name]) for name in ("event", "gpu", "enqueue") if samples.get(name)}


def _gated(name: str, session: Any, clock: Any, found: dict[str, float]) -> dict[str, float]:
    """Time about 0.2 s on the gated clock, under that name; nothing where no gate could hold a call."""
    if "gpu" not in found:
        return {}
    calls = max(10, int(200 / (2 * found["enqueue"] + found["gpu"])))
    samples = clock.time_gated(session.run, found["enqueue"], calls)
    return {name: statistics.median(samples["gpu"])} if samples else {}


def _nvbench(call: Callable[[], None], stream: Any, one_launch: bool) -> dict[str, float]:
    from cuda import bench
    from cuda.bench.results import BenchmarkResult

    class OurStream:
        def __cuda_stream__(self) -> tuple[int, int]:
            return 0, stream.cuda_stream

    def cell(state: Any) -> None:
        state.set_stream(OurStream())
        state.exec(lambda launch: call(), batched=one_launch)

    bench.register(cell)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "result.json"
        bench.run_all_benchmarks(["nvbench", "--jsonbin", str(path)])
        result = BenchmarkResult.from_json(path)
        (state,) = next(iter(result.values())).states
        if state.is_skipped or state.samples is None:
            raise RuntimeError(f"NVBench gave no samples: {state.skip_reason}")
        found = {"nvbench_cold": statistics.median(state.samples) * 1e3}
        if one_launch:
            found["nvbench_batch"] = float(state.summaries["nv/batch/time/gpu/mean"].value) * 1e3
    return found


if __name__ == "__main__":
    main()
