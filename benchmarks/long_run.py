"""Measure how a run of 2,000 tiny cases grows: the parent's memory, and each case's time beyond its own measuring.

    python benchmarks/long_run.py [CASES]

Prints the parent's resident memory after the first hundred cases and after the last, and the median seconds of a case
outside its warm-up and sampling in the first hundred and in the last. Exit code 1 where the memory has grown by more
than 20 MB, or the last hundred took over 20 % more; on a busy machine only the memory can be relied on.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

from rich.console import Console

from profiler.job.config import load_config
from profiler.job.plan import make_plan
from profiler.machine.target import Target, describe
from profiler.processes.forkserver import libraries
from profiler.results.result import Result
from profiler.results.run_folder import RunFolder, writing
from profiler.run.command import measure_cases
from profiler.run.progress import Display
from profiler.run.runner import Runner

CASES, PART = 2000, 100
MOST_MB, MOST_RATIO = 20.0, 1.2
_JOB = """
models: [{{name: net, factory: "torch.nn:Linear", options: {{in_features: 8, out_features: 4}}, input: [8]}}]
engines: [eager]
device: cpu
batch_sizes: [1, 2, 3, 4]
replicates: {replicates}
budget: {{seconds: 0.001, min_samples: 3, repeats: 0}}
"""


class Watch(Display):
    """Keep when each case ended, and the parent's memory then."""

    def __init__(self, console: Console) -> None:
        super().__init__(console)
        self.seconds: list[float] = []
        self.megabytes: list[float] = []
        self._before = time.perf_counter()

    def measuring(self, *_: object) -> None:
        """Print nothing."""

    def ended(self, result: Result, counts: bool = True, where: str = "") -> None:
        if result.status != "ok":
            sys.exit(f"{result.case_id}: {result.status}: {result.reason}")
        now = time.perf_counter()
        own = sum(result.phases.get(phase, 0.0) for phase in ("warm-up", "measure"))
        self.seconds.append(now - self._before - own)
        self.megabytes.append(resident())
        self._before = now


def resident() -> float:
    """Return this process's memory in megabytes."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="?", type=int, default=CASES)
    cases = parser.parse_args().cases
    with tempfile.TemporaryDirectory() as place:
        watch, end = run(Path(place), cases)
    part = min(PART, cases // 2)
    first, last = (1000 * statistics.median(each) for each in (watch.seconds[1:part], watch.seconds[-part:]))
    before, after = watch.megabytes[part - 1], watch.megabytes[-1]
    print(f"{cases} cases: the parent had {before:.1f} MB after {part} cases, {after:.1f} MB after all", end=" ")
    print(f"({after - before:+.1f}), {end:.1f} MB with tables and report; beyond warm-up and sampling", end=" ")
    print(f"a case took {first:.0f} ms among the first {part}, {last:.0f} ms among the last ({last / first:.2f} times)")
    return int(after - before > MOST_MB or last / first > MOST_RATIO)


def write_job(place: Path, cases: int) -> Path:
    """Write a job of at least so many cases."""
    (place / "job.yaml").write_text(_JOB.format(replicates=-(-cases // 4)))
    return place / "job.yaml"


def run(place: Path, cases: int) -> tuple[Watch, float]:
    """Measure that many; return what was watched, and the megabytes at the run's end."""
    os.environ["PROFILER_CACHE"] = str(place / "cache")
    config = load_config(write_job(place, cases), "cpu")
    with libraries() as facts, (place / "out").open("w") as out:
        target, console = Target("cpu"), Console(file=out, width=120)
        folder, watch = RunFolder.create(place / "results"), Watch(console)
        with writing(folder.path):
            folder.write_config(config)
            environment = describe(target, facts) | {"machine": {}}
            plan = make_plan(config, "cpu")[:cases]
            measure_cases(Runner(folder, config, target, plan, plan, environment, watch), console)
    return watch, resident()


if __name__ == "__main__":
    sys.exit(main())
