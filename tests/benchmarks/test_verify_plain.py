"""Test the numpy comparison that verifies our figures, on numbers worked out by hand."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn.modules.module import register_module_forward_hook

from benchmarks.verify_plain import module_call, numpy_error
from engines.base import Job
from engines.options import EagerOptions
from exporters.build_model import build
from exporters.inputs import input_specs, seeded_inputs
from exporters.source import ModelSource
from profiler.worker.parity import Outputs

pytestmark = pytest.mark.slow


def test_the_largest_relative_error_over_the_items_that_both_have(tmp_path: Path) -> None:
    truth = [np.array([[3.0, 4.0], [0.0, 0.0]]), np.array([[2.0], [9.0]])]
    further = [np.array([[7.0, 7.0]] * 2), np.array([[1.0]] * 2)]
    Outputs.of_runs(["logits", "pooled"], [truth, further], 2).save(tmp_path / "reference.npz")
    outputs = [np.array([[3.0, 4.5]], np.float32), np.array([[2.0]], np.float32)]
    assert numpy_error(outputs, tmp_path / "reference.npz") == pytest.approx(0.5 / 5)
    with pytest.raises(ValueError, match="zip"):
        numpy_error(outputs[:1], tmp_path / "reference.npz")


def test_the_plain_script_takes_the_options_of_the_case(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", False)
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", True)
    monkeypatch.syspath_prepend(Path(__file__).parents[1])
    net, state = ModelSource("net", "bad_models:good", input_shape=(3, 8, 8)), tmp_path / "state.pt"
    torch.save(build(net).state_dict(), state)
    specs, seen, results = input_specs(net), [], []
    hook = register_module_forward_hook(lambda module, taken, given: seen.append((module, *taken)))
    for options in (EagerOptions(), EagerOptions(channels_last=True, cudnn_benchmark=True)):
        seen.clear()
        inputs = tuple(seeded_inputs(specs, 2))
        call = module_call(Job(net, "inference", "fp32", 2, "cpu", options, inputs, state, specs=tuple(specs)))
        results.append(call())
        for tensor in (seen[0][0].weight, seen[0][1]):
            assert tensor.is_contiguous(memory_format=torch.channels_last) == options.channels_last
        assert torch.backends.cudnn.benchmark == options.cudnn_benchmark
        assert not torch.backends.cudnn.allow_tf32
    hook.remove()
    assert torch.allclose(*results, atol=1e-6)
