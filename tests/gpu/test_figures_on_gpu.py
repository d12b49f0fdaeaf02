"""Figures that must hold on a GPU whoever looks: memory seen from outside, energy, and the roofline."""

from __future__ import annotations

import json
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from runs import Profiler, run_job

from profiler import load
from profiler.machine.nvml import visible_gpus

pytestmark = pytest.mark.gpu

JOB = """
models: [resnet18]
engines: [eager, compiled, ort, {name: eager, label: eager-last}, {name: ort, label: ort-last}]
passes: [inference]
precisions: [fp16]
batch_sizes: [16]
device: cuda
energy: true
budget: {seconds: 0.5}
"""


class NvidiaSmi:
    """Device memory as nvidia-smi prints it, every 50 ms, with the time at which the line came."""

    def __init__(self) -> None:
        (gpu, *_) = visible_gpus()
        command = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits", f"--id={gpu.uuid}"]
        self.idle = float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
        self.seen: list[tuple[float, float]] = []
        self._process = subprocess.Popen([*command, "--loop-ms=50"], stdout=subprocess.PIPE, text=True)
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self.seen.append((time.monotonic(), float(line)))

    def peak_mib(self, start: float, end: float) -> tuple[float, float]:
        """Return the peak held for at least 150 ms, and the peak."""
        used = [used - self.idle for at, used in self.seen if start <= at <= end]
        return max(map(min, zip(used, used[1:], used[2:], strict=False))), max(used)

    def stop(self) -> None:
        self._process.kill()


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, profiler: Profiler) -> Iterator[tuple[Path, NvidiaSmi]]:
    outside = NvidiaSmi()
    path = run_job(profiler, tmp_path_factory.mktemp("figures"), JOB)
    outside.stop()
    yield path, outside


@pytest.fixture(scope="module")
def rows(run: tuple[Path, NvidiaSmi]) -> dict[str, dict[str, Any]]:
    found = load(run[0])[0].filter(pl.col("status") == "ok").collect().to_dicts()
    return {row["variant"]: row for row in found}


@pytest.mark.parametrize("variant", ["eager", "compiled", "ort"])
def test_the_peak_is_what_nvidia_smi_sees_from_outside(run, rows, variant):
    path, outside = run
    lines = [json.loads(line) for line in (path / "journal.jsonl").read_text().splitlines()]
    (entered,) = (line["entered"] for line in lines if line["case_id"] == rows[variant]["case_id"])
    lasting, highest = outside.peak_mib(entered["fork"], entered["check"])
    # nvidia-smi prints whole MiB, and so rounds twice. What is gone within 100 ms the profiler may miss.
    assert lasting - 2 <= rows[variant]["peak_memory_mib"] <= highest + 2, variant


@pytest.mark.parametrize("variant", ["eager", "ort"])
def test_memory_does_not_depend_on_what_ran_before(rows, variant):
    first, last = rows[variant], rows[f"{variant}-last"]
    for part in ("peak", "context", "weights", "activations", "other"):
        column = f"{part}_mib" if part != "peak" else "peak_memory_mib"
        assert last[column] == pytest.approx(first[column], rel=0.02), column


def test_the_parts_add_up_and_the_rest_has_names(rows):
    for row in rows.values():
        parts = [row[f"{part}_mib"] for part in ("context", "weights", "activations", "slack", "library")]
        assert sum(parts) == pytest.approx(row["peak_memory_mib"]), row["case_id"]
        assert row["slack_mib"] + row["library_mib"] == pytest.approx(row["other_mib"])
        assert min(parts) >= 0, (row["case_id"], parts)


def test_energy_is_power_times_time(rows):
    for row in rows.values():
        watts = row["energy_mj_per_item"] * row["throughput"] / 1000
        # The loop never rests, so it draws more than the sampling did; no H200 draws more than 700 W.
        assert 0.8 * row["power_w"] < watts < 735, row["case_id"]
