"""Another process on the GPU is waited for, and a case beside it is disturbed."""

from __future__ import annotations

import contextlib
import time

import polars as pl
import pytest
from other_work import on_gpu
from runs import Told, run_job

from profiler.machine.nvml import Nvml, visible_gpus
from profiler.run.watch import DeviceLock, Quiet

pytestmark = pytest.mark.gpu


def test_a_process_that_computes_on_the_gpu_is_waited_for_until_it_has_ended():
    uuid = visible_gpus()[0].uuid
    nvml, told = Nvml(uuid), Told()
    # NVML's utilization is over the last second, in which another test may have computed.
    end = time.monotonic() + 20
    while nvml.pids() or nvml.utilization():
        assert time.monotonic() < end, "the GPU is not idle: nothing can be tested on it"
        time.sleep(0.5)
    with DeviceLock(uuid) as lock:
        looks = Quiet(lock, uuid, 0.1, told)
        with on_gpu():
            looks.start()
            seen = len(nvml.pids() or ()), nvml.utilization()
        # In a container NVML may not list processes; then the GPU's being busy is what tells.
        words = ("other processes on the GPU: 1", "the GPU is busy for ")
        assert told.waited, seen
        assert all(any(word in what for word in words) for what in told.waited), told.waited
        assert len(told.announced) == 1
        Quiet(lock, uuid, 1.0, told).start()
        assert len(told.announced) == 1, "the machine is quiet within a minute"


JOB = """
models: [alexnet]
engines: [eager]
precisions: [fp32]
batch_sizes: [16]
device: cuda
budget: {seconds: 1, repeats: 0}
"""


@pytest.mark.parametrize("busy", [True, False])
def test_a_case_is_disturbed_beside_another_process_and_alone_it_is_not(busy, profiler, tmp_path):
    with on_gpu() if busy else contextlib.nullcontext():
        run = run_job(profiler, tmp_path, JOB)
    (warnings,) = pl.read_parquet(run / "results.parquet")["warnings"].to_list()[:1]
    assert any(w.startswith("disturbed") and "of the GPU's time" in w for w in warnings) is busy
