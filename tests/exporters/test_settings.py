"""What a model's code sets in its process is seen, and put back where that can be done."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
CHANGES = {
    "flushing of denormals": "torch.set_flush_denormal(True)",
    "mkldnn.enabled": "torch.backends.mkldnn.enabled = False",
    "affinity": "os.sched_setaffinity(0, [min(os.sched_getaffinity(0))])",
    "nice": "os.nice(3)",
    "scheduler": "os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))",
    "default device": "torch.set_default_device('meta')",
    "mkldnn.deterministic": "torch.backends.mkldnn.deterministic = True",
    "detection of anomalies": "torch.autograd.set_detect_anomaly(True)",
    "garbage collection": "import gc; gc.disable()",
    "switch interval": "sys.setswitchinterval(1)",
    "plain attention": "torch.backends.cuda.enable_math_sdp(False)",
    "cuda.matmul.allow_fp16_reduced_precision_reduction":
        "torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = False",
    "number of threads": "torch.set_num_threads(1 + torch.get_num_threads())",
}  # fmt: skip
CODE = """
import os, sys, torch
from exporters import settings
for name, change in {changes!r}.items():
    before = settings.read()
    exec(change)
    print(name, *settings.changes(before), sep="; ")
    settings.put_back(before)
    print(*settings.changes(before), sep="; ")
    assert name in settings.UNDONE
"""


@pytest.mark.slow
def test_each_change_is_named_and_put_back():
    changes = {name: change for name, change in CHANGES.items() if name != "affinity" or os.cpu_count() != 1}
    done = subprocess.run(
        [sys.executable, "-c", CODE.format(changes=changes)], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[::2] == [f"{name}; {name}" for name in changes]
    assert set(lines[1::2]) <= {"", "nice"}, "who is not root may not be as urgent again"
