"""Test the options of ONNX Runtime's providers, as far as they show without their devices, and plugins."""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path

import onnxruntime
import pytest

from engines.base import Job, Unsupported
from engines.catalog import ENGINES, foreign_hardware
from engines.options import OrtOptions, OrtTrtOptions, key_values
from engines.ort import session_options
from engines.ort_providers import PROVIDERS, load_plugin, load_tensorrt, plugin_device
from exporters.source import ModelSource
from profiler.machine import Target

pytestmark = pytest.mark.slow

TENSORRT = PROVIDERS["ort-trt", "cuda"]


def job(precision: str, **options: bool) -> Job[OrtTrtOptions]:
    return Job(ModelSource("net"), "inference", precision, 1, "cuda", OrtTrtOptions(**options), (), engine="ort-trt")


def test_the_tensorrt_provider_may_use_the_rows_type_and_keeps_nothing() -> None:
    def on(precision: str, **options: bool) -> set[str]:
        settings = TENSORRT.settings(job(precision, **options))
        return {name.removeprefix("trt_").removesuffix("_enable") for name, flag in settings.items() if flag == "True"}

    types = {"fp32": set(), "tf32": set(), "fp16": {"fp16"}, "bf16": {"bf16"}, "int8": {"int8"}}
    assert {precision: on(precision) for precision in types} == types
    assert on("fp32", cuda_graph=True) == {"cuda_graph"}
    assert [each.name for each in TENSORRT.chain()][1:] == ["CUDAExecutionProvider", "CPUExecutionProvider"]


def test_onnx_runtime_knows_the_options_of_its_tensorrt_provider() -> None:
    """Its parser runs only where TensorRT's libraries are; an option that it does not know is an error there."""
    library = next(Path(onnxruntime.__file__).parent.glob("capi/onnxruntime_pybind11_state*.so")).read_bytes()
    if b"Invalid TensorRT EP option" not in library:
        pytest.skip("this build has no TensorRT provider")
    for name in TENSORRT.settings(job("fp16")).keys() - {"device_id"}:
        assert b"\0" + name.encode() + b"\0" in library
        assert f"The value for the key '{name}' should be 'True' or 'False'".encode() in library


def test_the_switch_of_tf32_is_off_but_for_tf32(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NVIDIA_TF32_OVERRIDE", "1")
    load_tensorrt(job("fp32"))
    assert os.environ["NVIDIA_TF32_OVERRIDE"] == "0"
    load_tensorrt(job("tf32"))
    assert "NVIDIA_TF32_OVERRIDE" not in os.environ
    monkeypatch.setenv("NVIDIA_TF32_OVERRIDE", "0")  # Which is put back.


@pytest.mark.parametrize(("mask", "asked", "given"), [({0, 2}, 0, 2), ({0, 1, 2, 3}, 0, 0), ({0, 2}, 3, 3)])
def test_threads_stay_within_the_processes_mask(
    monkeypatch: pytest.MonkeyPatch, mask: set[int], asked: int, given: int
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: mask, raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 4)
    own = Job(ModelSource("net"), "inference", "fp32", 1, "cpu", OrtOptions(threads=asked), (), engine="ort")
    assert session_options(own).intra_op_num_threads == given


# Plugins: what cannot be loaded says why, and OpenVINO's, where it is installed, really runs


SHARED = str(Path(onnxruntime.__file__).parent / "capi" / "libonnxruntime_providers_shared.so")
has_openvino = importlib.util.find_spec("onnxruntime_ep_openvino") is not None


@pytest.fixture
def broken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with libraries that are none, and packages that do not say where theirs is."""
    (tmp_path / "text.so").write_text("no library")
    (tmp_path / "folder.so").mkdir()
    (tmp_path / "without_library.py").write_text("")
    (tmp_path / "elsewhere.py").write_text("def get_library_path(): return '/not/there.so'")
    (tmp_path / "fails.py").write_text("1 / 0")
    (tmp_path / "needs_more.py").write_text("import no_such_module")
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("library", "says"),
    [
        ("", "no library is named: give the plugin's package"),
        ("no_such_plugin", "no_such_plugin is not installed: pip install no-such-plugin"),
        ("without_library", "without_library cannot be imported: module 'without_library' has no attribute"),
        ("elsewhere", "library: /not/there.so is not a file"),
        ("fails", "fails cannot be imported: division by zero"),
        ("needs_more", "needs_more cannot be imported: No module named 'no_such_module'"),
        ("{}/folder.so", "folder.so is not a file"),
        ("{}/text.so", "text.so as a plugin: "),
        (SHARED, "libonnxruntime_providers_shared.so as a plugin: "),
    ],
)
def test_what_cannot_be_loaded_says_what_mends_it(broken: Path, library: str, says: str) -> None:
    before = onnxruntime.get_ep_devices()
    with pytest.raises(Unsupported) as caught:
        load_plugin(library.format(broken))
    assert says in str(caught.value)
    assert len(onnxruntime.get_ep_devices()) == len(before)
    sys.modules.pop(library, None)


@pytest.mark.skipif(not has_openvino, reason="no such plugin")
def test_a_plugin_without_the_device_says_what_it_has_and_openvinos_has_intels_processors() -> None:
    plugin = "onnxruntime_ep_openvino"
    if foreign_hardware(ENGINES["ort-openvino"], "cpu", Target("cpu").hardware):
        with pytest.raises(Unsupported, match="offers nothing on this machine, and no CPU"):
            plugin_device(plugin, "cpu")
        return
    assert plugin_device(plugin, "cpu").ep_name == "OpenVINOExecutionProvider"
    with pytest.raises(Unsupported, match="offers OpenVINOExecutionProvider on CPU on this machine, and no GPU"):
        plugin_device(plugin, "cuda")


def test_a_plugins_options() -> None:
    assert key_values("a=1; b = x=y ;") == {"a": "1", "b": "x=y"}
    assert key_values("") == {}
    for wrong in ("a", "=1", "a=1;b"):
        with pytest.raises(ValueError, match="key=value; key=value"):
            key_values(wrong)
