"""Test what a holder of a model does for libraries that look for a GPU."""

import pytest
import torch
from torch._dynamo.device_interface import get_interface_for_device

from profiler.machine.nvml import Gpu
from profiler.worker import prepare_model
from profiler.worker.prepare_model import described_gpus


def test_a_gpu_is_described_without_touching_it(monkeypatch):
    gpu = Gpu(0, "GPU-1", "NVIDIA H200", 143771.0, "580.1", "9.0")
    monkeypatch.setattr(prepare_model, "visible_gpus", lambda: [gpu])
    asked = get_interface_for_device("cuda").Worker.get_device_properties  # As torch's has_triton does.
    usual = torch.cuda.get_device_capability
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    with described_gpus():
        assert torch.cuda.get_device_capability() == (9, 0)
        assert asked().major == 9
    assert torch.cuda.get_device_capability is usual
    assert not torch.cuda.is_initialized()
    if not torch.backends.cuda.is_built():
        with pytest.raises((AssertionError, RuntimeError)):  # Nothing was remembered.
            asked()


def test_nothing_is_described_where_no_gpu_answers(monkeypatch):
    monkeypatch.setattr(prepare_model, "visible_gpus", list)
    usual = torch.cuda.current_device
    with described_gpus():
        assert torch.cuda.current_device is usual
