"""The largest batch on the GPU: memory really runs out there."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from runs import Profiler, run_job

from profiler import load_largest_batches
from profiler.results.cells import largest

pytestmark = pytest.mark.gpu

FACTORIES = """
from torch import nn


class Ladder(nn.Module):
    '''Holds 65 maps of 16 MiB an item at once, in whatever order its operators run: the way back needs all of them.'''

    def __init__(self):
        super().__init__()
        self.down = nn.ModuleList(nn.Conv2d(3 if i == 0 else 16, 16, 1) for i in range(65))
        self.head = nn.Linear(16, 10)

    def forward(self, x):
        maps = []
        for step in self.down:
            maps.append(step(maps[-1] if maps else x))
        total = maps[-1]
        for one in reversed(maps[:-1]):
            total = total + one
        return self.head(total.mean((2, 3)))
"""
MIB_AN_ITEM = 65 * 16 + 3
TOO_LARGE = 384
"""More than 384 GiB, in tensors of fewer elements than 32 bits count."""
RESOLUTION = 0.05

LARGEST = f"""
models: [{{name: ladder, factory: "largest_batch_models:Ladder", input: [3, 512, 512]}}]
engines: [ENGINE, ENGINE-tuned]
passes: [inference, training]
exclude: [{{engine: ort, pass: training}}]
batch_sizes: [1, {TOO_LARGE}, 2]
largest_batch: {{limit: {TOO_LARGE}, resolution: {RESOLUTION}}}
device: cuda
budget: {{seconds: 0.1, min_samples: 5}}
"""


def start(profiler: Profiler, folder: Path, job: str) -> Path:
    (folder / "largest_batch_models.py").write_text(FACTORIES)
    return run_job(profiler, folder, job)


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (path / "largest_batch.jsonl").read_text().splitlines()]


@pytest.fixture(scope="module")
def ladder(tmp_path_factory: pytest.TempPathFactory, profiler: Profiler) -> Callable[[str], Path]:

    @cache
    def of(engine: str) -> Path:
        return start(profiler, tmp_path_factory.mktemp("ladder"), LARGEST.replace("ENGINE", engine))

    return of


FAMILIES = [
    ("eager", "eager", "inference"),
    ("eager", "eager-tuned", "inference"),
    ("eager", "eager", "training"),
    ("eager", "eager-tuned", "training"),
    ("ort", "ort", "inference"),
    ("ort", "ort-tuned", "inference"),
]


@pytest.mark.parametrize(("engine", "variant", "pass_"), FAMILIES)
def test_the_largest_batch_fits_and_the_next_does_not(ladder, engine, variant, pass_):
    own = [line for line in lines(ladder(engine)) if (line["variant"], line["pass"]) == (variant, pass_)]
    told = [(line["batch_size"], line["status"], line["reason"]) for line in own]
    good = max(batch for batch, status, _ in told if status == "ok")
    bad, status, reason = min(one for one in told if one[0] > good)
    # Recording its CUDA graph ends in an error of CUDA's, which does not speak of memory.
    assert status == "oom" or (variant == "ort-tuned" and status == "failed" and "CUDA" in reason), reason
    assert bad - good <= max(1, RESOLUTION * good), told
    assert len(own) <= 18, told


@pytest.mark.parametrize("engine", ["eager", "ort"])
def test_the_largest_batch_fills_the_card(ladder, engine):
    card = json.loads((ladder(engine) / "environment.json").read_text())["gpu_memory_mib"]
    found = largest(load_largest_batches(ladder(engine)).collect())
    assert len(found) == [one for one, *_ in FAMILIES].count(engine)
    for row in found.to_dicts():
        assert 0.85 < row["peak_memory_mib"] / card <= 1.0, row
        if row["variant"] == "ort-tuned":
            continue  # Half of it and more is workspace.
        # Of the context and the library's kernels there are some hundreds of MiB, of gradients at most a few maps.
        assert 0.95 < row["peak_memory_mib"] / (row["largest"] * MIB_AN_ITEM) < 1.3, row
