"""Test the options of ONNX Runtime's providers, as far as they show without their devices."""

from __future__ import annotations

import os
from pathlib import Path

import onnxruntime
import pytest

from engines.base import Job
from engines.options import OrtOptions, OrtTrtOptions
from engines.ort import session_options
from engines.ort_providers import PROVIDERS, load_tensorrt
from exporters.source import ModelSource

pytestmark = pytest.mark.slow

TENSORRT = PROVIDERS["ort-trt", "cuda"]


def job(precision: str, **options: bool) -> Job[OrtTrtOptions]:
    return Job(ModelSource("net"), "inference", precision, 1, "cuda", OrtTrtOptions(**options), (), engine="ort-trt")


def test_the_tensorrt_provider_may_use_the_rows_type_and_keeps_nothing():
    def on(precision: str, **options: bool) -> set[str]:
        settings = TENSORRT.settings(job(precision, **options))
        return {name.removeprefix("trt_").removesuffix("_enable") for name, flag in settings.items() if flag == "True"}

    types = {"fp32": set(), "tf32": set(), "fp16": {"fp16"}, "bf16": {"bf16"}, "int8": {"int8"}}
    assert {precision: on(precision) for precision in types} == types
    assert on("fp32", cuda_graph=True) == {"cuda_graph"}
    assert [each.name for each in TENSORRT.behind] == ["CUDAExecutionProvider", "CPUExecutionProvider"]


def test_onnx_runtime_knows_the_options_of_its_tensorrt_provider():
    """Its parser runs only where TensorRT's libraries are; an option that it does not know is an error there."""
    library = next(Path(onnxruntime.__file__).parent.glob("capi/onnxruntime_pybind11_state*.so")).read_bytes()
    if b"Invalid TensorRT EP option" not in library:
        pytest.skip("this build has no TensorRT provider")
    for name in TENSORRT.settings(job("fp16")).keys() - {"device_id"}:
        assert b"\0" + name.encode() + b"\0" in library
        assert f"The value for the key '{name}' should be 'True' or 'False'".encode() in library


def test_the_switch_of_tf32_is_off_but_for_tf32(monkeypatch):
    monkeypatch.setenv("NVIDIA_TF32_OVERRIDE", "1")
    load_tensorrt(job("fp32"))
    assert os.environ["NVIDIA_TF32_OVERRIDE"] == "0"
    load_tensorrt(job("tf32"))
    assert "NVIDIA_TF32_OVERRIDE" not in os.environ
    monkeypatch.setenv("NVIDIA_TF32_OVERRIDE", "0")  # Which is put back.


@pytest.mark.parametrize(("mask", "asked", "given"), [({0, 2}, 0, 2), ({0, 1, 2, 3}, 0, 0), ({0, 2}, 3, 3)])
def test_threads_stay_within_the_processes_mask(monkeypatch, mask, asked, given):
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: mask, raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 4)
    own = Job(ModelSource("net"), "inference", "fp32", 1, "cpu", OrtOptions(threads=asked), (), engine="ort")
    assert session_options(own).intra_op_num_threads == given
