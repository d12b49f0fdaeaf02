"""Models that break the device or never give it back: each is a row, and the good model after each has its figures."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from runs import Profiler, run_job

pytestmark = pytest.mark.gpu

MODELS = """
import os
import subprocess
import sys

import torch
from torch import nn


class Net(nn.Module):
    '''A product; on the GPU `spoil` gets its output first. On the CPU, where references are made, all is well.'''

    def __init__(self, spoil=lambda y: y):
        super().__init__()
        self.head, self.spoil = nn.Linear(64, 8), spoil

    def forward(self, x):
        y = self.head(x)
        return self.spoil(y) if y.is_cuda else y


def reads_an_illegal_address(y):
    bytes_ = torch._C._construct_storage_from_data_pointer(1 << 20, y.device, y.nbytes)
    return y + y.new_empty(0).set_(bytes_, 0, y.shape, y.stride())


def asserts(y):
    return y + nn.functional.embedding(torch.full((1,), 1 << 30, device=y.device), torch.ones(4, 8, device=y.device))


def takes_all_memory(y):
    return y + torch.empty(1 << 42, dtype=torch.uint8, device=y.device)[0]


def takes_all_memory_in_a_graph(y):
    return takes_all_memory(y) if torch.cuda.is_current_stream_capturing() else y


def never_ends(y):
    torch.cuda._sleep(1 << 62)
    return y


HOLDER = '''
import ctypes, time
cuda, context, held = ctypes.CDLL("libcuda.so.1"), ctypes.c_void_p(), ctypes.c_uint64()
assert cuda.cuInit(0) == cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == cuda.cuCtxSetCurrent(context) == 0
assert cuda.cuMemAlloc_v2(ctypes.byref(held), ctypes.c_size_t(1 << 30)) == 0
print("held", flush=True)
time.sleep(600)
'''


class Lingers:
    '''Another process, in a session of its own, holds a GiB of the device from the first call on.'''

    other = None

    def __call__(self, y):
        if self.other is None:
            command = [sys.executable, "-c", HOLDER]
            self.other = subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=True)
            assert self.other.stdout.readline() == b"held\\n"
            with open(os.environ["PID_OF_THE_HOLDER"], "w") as file:
                file.write(str(self.other.pid))
        return y


def good(): return Net()
def illegal_address(): return Net(reads_an_illegal_address)
def device_assert(): return Net(asserts)
def memory(): return Net(takes_all_memory)
def memory_in_graph(): return Net(takes_all_memory_in_a_graph)
def endless_kernel(): return Net(never_ends)
def lingers(): return Net(Lingers())
"""
BAD = {
    "illegal_address": ("failed", "illegal memory access"),
    "device_assert": ("failed", "device-side assert"),
    "memory": ("oom", "out of memory"),
    "memory_in_graph": ("oom", "out of memory"),
    "endless_kernel": ("timeout", "ended after 20 s in phase warm-up"),
    "lingers": ("ok", ""),
}
"""By factory the status that its row must get, and what the reason must say."""
ENGINE = {"memory_in_graph": "eager-tuned"}
"""Engine of a model, if not `eager`."""

Row = dict[str, Any]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("hostile")


@pytest.fixture(scope="module")
def rows(folder: Path, profiler: Profiler) -> list[Row]:
    (folder / "hostile_models.py").write_text(MODELS)
    names = ["good_first", *(name for bad in BAD for name in (bad, f"good_after_{bad}"))]
    factories = {name: "good" if name.startswith("good") else name for name in names}
    models = "".join(
        f'  - {{name: {name}, factory: "hostile_models:{factory}", input: [64]}}\n'
        for name, factory in factories.items()
    )
    tuned = [name for name in names if ENGINE.get(name.removeprefix("good_after_")) == "eager-tuned"]
    plain = [name for name in names if name not in tuned]
    job = (
        f"models:\n{models}engines: [eager, eager-tuned]\nbatch_sizes: [4]\ndevice: cuda\n"
        f"exclude:\n  - {{variant: eager, model: [{', '.join(tuned)}]}}\n"
        f"  - {{variant: eager-tuned, model: [{', '.join(plain)}]}}\n"
        "budget: {seconds: 0.2, min_samples: 5, timeout: 20, build_timeout: 60}\n"
    )
    run = run_job(profiler, folder, job, PID_OF_THE_HOLDER=str(folder / "pid"))
    found = pl.read_parquet(run / "results.parquet").to_dicts()
    assert sorted(row["model"] for row in found) == sorted(names)
    return found


@pytest.mark.parametrize("name", ["good_first", *BAD, *(f"good_after_{name}" for name in BAD)])
def test_a_model_that_breaks_the_device_gets_its_status_and_the_one_after_it_is_right(rows, name):
    status, reason = BAD.get(name, ("ok", ""))
    (row,) = (row for row in rows if row["model"] == name)
    assert row["status"] == status, row["reason"]
    assert reason in (row["reason"] or "")
    assert (row["latency_ms"] is not None) == (status == "ok")
    assert name in BAD or row["rel_l2_error"] < 1e-5


def test_what_a_model_started_gives_the_device_back(rows, folder):
    pid = int((folder / "pid").read_text())
    end = time.monotonic() + 10
    while (there := Path(f"/proc/{pid}").exists()) and time.monotonic() < end:
        time.sleep(0.1)
    assert not there, "a process in a session of its own outlived its case"
    (after,) = (row for row in rows if row["model"] == "good_after_lingers")
    assert after["baseline_mib"] - rows[0]["baseline_mib"] < 900, "its GiB is still taken"
