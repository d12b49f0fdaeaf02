"""Measure how long compare and report take over 100,000 cases, in how much memory, and how fast a journal is written.

Two runs of one machine are made up: three processes a cell, a hundred raw samples a case, ten million in all. Each
command is run as a whole process on two cores, as a user would; the target is 10 s and 2 GB.

    python benchmarks/tables.py                 # --models 700 for a million cases
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from itertools import product
from pathlib import Path

import numpy as np
import polars as pl

from profiler.results.columns import RESULTS, SAMPLES
from profiler.results.result import Result
from profiler.results.run_folder import RunFolder

MODELS, BATCH_SIZES, REPLICATES = 70, (1, 2, 4, 8, 16, 32), 3
VARIANTS, PRECISIONS = ("eager", "eager-tuned", "compiled", "ort", "ort-tuned"), ("fp32", "tf32", "fp16", "bf16")
PASSES = ("inference", "training")
SAMPLES_PER_CASE = {"event": 40, "gpu": 20, "host": 20, "enqueue": 20}
SECONDS, MIB, CORES = 10.0, 2048.0, 2
_SPREAD, _NOISE, _FAILED = 0.003, 0.01, 0.01
"""Log standard deviations between processes' medians and of samples within one; the share of cases that failed."""
_TOLD = ("case_id", "engine", "is_base", "status", "reason", "warnings")


def make_runs(folder: Path, models: int = MODELS) -> list[Path]:
    """Write two runs inside `folder`, the second with other noise and some failed cells."""
    return [_make_run(folder / f"20260101T00000{n}Z-made-{n:04x}", n, models) for n in range(2)]


def _make_run(folder: Path, seed: int, models: int) -> Path:
    folder.mkdir(parents=True)
    rng = np.random.default_rng(seed)
    networks = [f"network{number:03d}" for number in range(models)]
    cells = product(networks, PASSES, BATCH_SIZES, PRECISIONS, VARIANTS, range(REPLICATES))
    keys = ["model", "pass", "batch_size", "precision", "variant", "replicate"]
    grid = pl.DataFrame([*cells], schema=keys, orient="row")
    # The same truth in both runs; every process has its own median.
    truth = np.exp(np.random.default_rng(99).normal(1.0, 1.0, grid.height // REPLICATES))
    medians = np.repeat(truth, REPLICATES) * np.exp(rng.normal(0, _SPREAD, grid.height))
    rows = _rows(grid.with_columns(ms=medians, ok=rng.random(grid.height) >= _FAILED), folder.name)
    rows.write_parquet(folder / "results.parquet")
    _samples(rows, medians, rng).write_parquet(folder / "samples.parquet")
    environment = {"gpu": "NVIDIA H200", "driver": "580.159.04", "cpu": "made up", "cpu_cores": 64, "device": "cuda"}
    (folder / "environment.json").write_text(json.dumps(environment))
    return folder


def _rows(cells: pl.DataFrame, run_id: str) -> pl.DataFrame:
    """Make rows as a GPU's run has them, from cells with a median `ms` and the flag `ok`."""
    proof = {"compute_types": {"float32": 53}, "cuda_graph": False, "library": "torch 2.11.0", "tf32": False}
    same = {
        "run_id": run_id, "suite": "made", "device": "cuda", "model_kind": "canonical", "options": "{}",
        "clock": "event", "stop_reason": "precision", "samples": SAMPLES_PER_CASE["event"],
        "proof": json.dumps(proof), "gpu": "NVIDIA H200", "machine": "NVIDIA H200", "driver": "580.159.04",
        "torch_version": "2.11.0", "onnxruntime_version": "1.31.1", "setting": "",
    }  # fmt: skip
    is_base = (pl.col("variant") == "eager") & (pl.col("precision") == "fp32")
    ms = pl.col("ms")
    measures = {
        "latency_ms": ms * 1.05, "latency_low_ms": ms * 1.044, "latency_high_ms": ms * 1.056, "gpu_ms": ms,
        "latency_spread": pl.lit(_SPREAD), "latency_spread_free": pl.lit(20.0),
        "host_ms": ms * 1.2, "enqueue_ms": ms * 0.4, "throughput": pl.col("batch_size") * 1000 / ms,
        "peak_memory_mib": 500 + ms, "weights_mib": pl.lit(100.0), "context_mib": pl.lit(400.0), "other_mib": ms,
        "build_s": pl.lit(12.0), "load_s": pl.lit(0.5), "rel_l2_error": pl.lit(1e-5), "floor_ms": ms / 2,
    }  # fmt: skip
    return cells.select(
        *("model", "variant", "pass", "precision", "batch_size", "replicate"),
        *(pl.lit(value).alias(name) for name, value in same.items()),
        *(pl.when("ok").then(measure).alias(name) for name, measure in measures.items()),
        *(pl.lit(None).alias(name) for name in RESULTS if name not in {*cells.columns, *same, *measures, *_TOLD}),
        case_id=pl.format("{}/{}/{}/{}/b{}/r{}", "model", "variant", "pass", "precision", "batch_size", "replicate"),
        engine=pl.col("variant").str.split("-").list.first(),
        is_base=is_base,
        status=pl.when("ok").then(pl.lit("ok")).otherwise(pl.lit("failed")),
        reason=pl.when("ok").then(None).otherwise(pl.lit("the outputs are not finite")),
        warnings=pl.when(pl.col("replicate") == 1).then(
            pl.lit(["outliers: 7 of 40 samples lie outside Tukey's fences"])
        ),
    ).select(pl.col(name).cast(dtype) for name, dtype in RESULTS.items())


def _samples(rows: pl.DataFrame, medians: np.ndarray, rng: np.random.Generator) -> pl.DataFrame:
    """Draw every case's samples on every clock, with the noise of a process around its median."""
    parts = []
    for clock, count in SAMPLES_PER_CASE.items():
        ms = (medians[:, None] * np.exp(rng.normal(0, _NOISE, (rows.height, count)))).ravel()
        ids = rows.select(pl.col("run_id", "case_id").repeat_by(count).explode())
        index = pl.Series("index", np.tile(np.arange(count), rows.height))
        parts.append(ids.with_columns(pl.lit(clock).alias("clock"), index, pl.Series("ms", ms)))
    return pl.concat(parts).select(pl.col(n).cast(d) for n, d in SAMPLES.items())


def measure(command: list[str], folder: Path) -> tuple[float, float, float, int]:
    """Return wall and CPU seconds, peak resident MiB and exit code of a whole process on two cores."""
    cores = sorted(os.sched_getaffinity(0))[:CORES]
    started = time.perf_counter()
    with (folder / "output.txt").open("w") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "profiler", *command],
            preexec_fn=lambda: os.sched_setaffinity(0, cores),
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, "POLARS_MAX_THREADS": str(CORES)},
        )
        _, status, usage = os.wait4(process.pid, 0)
    wall, cpu = time.perf_counter() - started, usage.ru_utime + usage.ru_stime
    return wall, cpu, usage.ru_maxrss / 1024, os.waitstatus_to_exitcode(status)


def journalled(folder: Path) -> float:
    """Return how many results a second are appended to a journal."""
    run, rows, samples = RunFolder.create(folder), 500, {clock: [1.234] * n for clock, n in SAMPLES_PER_CASE.items()}
    started = time.perf_counter()
    for number in range(rows):
        run.append(Result(f"net/eager/inference/fp32/b1/r{number}", "ok", clock="event", samples=samples))
    return rows / (time.perf_counter() - started)


def main() -> int:
    parser = argparse.ArgumentParser(description="Measures compare and report over 100,000 cases.")
    parser.add_argument("--make", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--models", type=int, default=MODELS)
    options = parser.parse_args()
    if options.make:
        make_runs(options.make, options.models)
        return 0
    over = 0
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        # In a process of its own: a child's peak counts what its parent had when it was born.
        made = ["--make", str(folder), "--models", str(options.models)]
        subprocess.run([sys.executable, __file__, *made], check=True)
        runs = sorted(str(path) for path in folder.iterdir() if path.is_dir())
        for command in (
            ["compare", *runs],
            ["compare", *runs, "--format", "json"],
            ["report", *runs, "--output", str(folder / "report.html")],
        ):
            wall, cpu, mib, code = measure(command, folder)
            good = code == 0 and wall <= SECONDS and mib <= MIB
            verdict = "" if good else f"exit code {code}" if code else "over the target"
            name = " ".join(word for word in command if str(folder) not in word)
            print(f"{name:24} {wall:6.1f} s ({cpu:5.1f} s of CPU) {mib:6.0f} MiB {verdict}", flush=True)
            if code:
                print((folder / "output.txt").read_text()[-500:])
            over += not good
        print(f"journal                  {journalled(folder):6.0f} rows/s, each on the disk, with 100 samples")
    return int(over > 0)


if __name__ == "__main__":
    sys.exit(main())
