"""Test that the catalog's rows and reasons are consistent."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest

from engines import requirements
from engines.catalog import ENGINES, PRESETS, Engine, Requirement, engine_row, unsupported
from engines.options import DEVICES, PASSES, PRECISIONS
from engines.requirements import missing

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(
    ("engine", "pass_", "device", "precision", "kind", "words"),
    [
        # The kind of model comes before all else.
        ("eager", "inference", "cpu", "native", "onnx", ["eager", "torch module", "ONNX file"]),
        # A reason by device and pass.
        ("openvino", "inference", "cuda", "fp32", "canonical", ["no NVIDIA device"]),
        # Reasons by device and precision.
        ("eager", "inference", "cpu", "tf32", "canonical", ["TF32", "on the CPU ask for fp32"]),
        ("ort", "inference", "cpu", "fp16", "canonical", ["fp16", "compute in fp32"]),
        ("ort", "inference", "cuda", "bf16", "canonical", ["CUDA provider", "a part of its operators in bf16"]),
        ("ort", "inference", "cuda", "int8", "canonical", ["dequantize", "compute in float"]),
        ("eager", "inference", "cpu", "fp8", "canonical", ["GPUs only", "8.9"]),
        ("ort", "inference", "cpu", "fp8", "canonical", ["no fp8 graph", "eager or compiled"]),
        ("compiled", "training", "cuda", "int8", "canonical", ["compiled has no int8 training on cuda", "amp-bf16"]),
        ("eager", "training", "cpu", "amp-bf16", "layer", ["for a layer ask for bf16"]),
        # A pass that the engine does not have.
        ("ort", "training", "cpu", "fp32", "canonical", ["ort has no training"]),
        # A precision that it does not have, without a reason of its own: the others are named.
        ("eager", "training", "cpu", "fp16", "canonical", ["no fp16 training on cpu", "bf16, fp32"]),
    ],
)
def test_what_an_engine_cannot_has_a_reason(engine, pass_, device, precision, kind, words):
    reason = unsupported(ENGINES[engine], pass_, device, precision, kind)
    assert reason is not None
    for word in words:
        assert word in reason


def test_fp8_needs_a_gpu_that_has_it():
    def why(precision: str, capability: str | None) -> str | None:
        return unsupported(ENGINES["eager"], "inference", "cuda", precision, "canonical", capability)

    assert why("fp8", "8.6") == "fp8 needs compute capability 8.9 or more; this GPU has 8.6"
    assert [why("fp8", each) for each in ("8.9", "9.0", "10.0", None)] == [None] * 4
    assert why("int8", "8.0") is None


@pytest.mark.parametrize("engine", ENGINES.values(), ids=lambda engine: engine.name)
def test_engine_has_a_module_and_known_words(engine):
    assert (ROOT / (engine.module.replace(".", "/") + ".py")).is_file()
    assert ENGINES[engine.name] is engine
    assert engine.requirements
    assert all(requirement.install for requirement in engine.requirements)
    for (pass_, device), precisions in engine.precisions.items():
        assert pass_ in PASSES
        assert device in DEVICES
        assert precisions <= set(PRECISIONS)
    for device, what in engine.reasons:
        assert device in DEVICES
        assert what in (*PASSES, *PRECISIONS)
        assert not any(what in able for (_, on), able in engine.precisions.items() if on == device), (
            "a reason for a can"
        )


@pytest.mark.parametrize("preset", PRESETS.values(), ids=lambda preset: preset.name)
def test_preset_has_options_of_its_engine_or_a_reason_on_every_device(preset):
    engine = ENGINES[preset.engine]
    assert PRESETS[preset.name] is preset
    for device in DEVICES:
        assert (device in preset.options) != (device in preset.reasons)
        for name, value in preset.options.get(device, {}).items():
            option = engine.options.declared()[name]
            assert type(value) is type(option.default)
            assert device in option.devices
            assert not option.choices or value in option.choices


def made_up(*requirements: Requirement) -> Engine:
    return replace(engine_row("made-up"), requirements=requirements)


def test_missing_is_what_the_device_needs(monkeypatch):
    monkeypatch.delenv("CXX", raising=False)
    there = Requirement("json", "")
    module = Requirement("no_such_module_anywhere", "pip install it", devices=("cuda",))
    program = Requirement("no-such-program-anywhere", "apt-get install it", "program")
    engine = made_up(there, module, program)
    assert missing(engine, "cpu") == f"{program.name} is not installed: apt-get install it"
    assert missing(engine, "cuda") == f"{module.name} is not installed: pip install it; {missing(engine, 'cpu')}"


def test_versions_that_are_too_old_are_said_with_what_is_not_there(monkeypatch):
    installed = {"torch": "2.9.1+cpu"}
    monkeypatch.setattr(
        requirements, "installed_version", lambda *names: next(filter(None, map(installed.get, names)), None)
    )
    monkeypatch.setattr(requirements, "_is_installed", installed.__contains__)
    assert [missing(ENGINES[name], "cpu") for name in ("eager", "ort")] == [
        "torch 2.9.1+cpu is too old (2.11 or later is needed): pip install 'torch>=2.11,<2.14'",
        "onnxruntime is not installed: pip install 'onnxruntime>=1.24' (Python 3.11 or later)",
    ]
    installed |= {"torch": "2.11.0rc1", "onnxruntime": "1.24.1"}
    assert missing(ENGINES["eager"], "cpu") + missing(ENGINES["ort"], "cpu") == ""


@pytest.mark.slow
def test_compute_capabilities_are_the_librarys():
    from engines.trt import library
    from engines.trt_build import targets

    known = [f"{target[2:-1]}.{target[-1]}" for target in targets(library("trt-rtx"))]
    assert list(ENGINES["trt-rtx"].capabilities) == known


@pytest.fixture
def cpu_build(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder as the distribution `onnxruntime` has it; returns where the provider of `onnxruntime-gpu` would be."""
    provider = tmp_path / "onnxruntime" / "capi" / "libonnxruntime_providers_cuda.so"
    provider.parent.mkdir(parents=True)
    (tmp_path / "onnxruntime" / "__init__.py").write_text("raise ImportError('to be looked at, not to be imported')")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "onnxruntime", raising=False)
    return provider


def test_onnx_runtime_for_the_cpu_lacks_only_what_cuda_needs(cpu_build):
    assert missing(ENGINES["ort"], "cpu") == ""
    assert missing(ENGINES["ort"], "cuda") == (
        "libonnxruntime_providers_cuda.so is missing from the installed onnxruntime: "
        "pip uninstall --yes onnxruntime onnxruntime-gpu && pip install 'onnxruntime-gpu>=1.31'"
    )
    cpu_build.touch()
    assert missing(ENGINES["ort"], "cuda") == ""


def test_int8_needs_what_quantizes():
    quantizer = Requirement("no_such_quantizer", "pip install it")
    module = Requirement("no_such_module_anywhere", "pip install it")
    engine = replace(made_up(module), quantizers={"int8": quantizer})
    both = "no_such_module_anywhere is not installed, no_such_quantizer is not installed: pip install it"
    assert missing(engine, "cuda", precision="int8") == both
    alone = replace(engine, requirements=(quantizer,))
    assert missing(alone, "cuda", precision="int8") == "no_such_quantizer is not installed: pip install it"
    assert missing(engine, "cuda", precision="fp16") == "no_such_module_anywhere is not installed: pip install it"
    by_needs = {(engine.needs, engine.quantizers["int8"].name) for engine in ENGINES.values()}
    assert by_needs == {("torch", "torchao"), ("onnx", "onnxruntime")}


def test_onnx_runtime_on_tensorrt_needs_tensorrt_10(cpu_build):
    folder = cpu_build.parents[2] / "tensorrt_libs"
    folder.mkdir()
    (folder / "__init__.py").touch()
    (folder / "libnvinfer.so.11").touch()
    says = "libnvinfer.so.10 is missing from the installed tensorrt_libs: pip install 'tensorrt-cu13>=10.14,<11'"
    assert says in missing(ENGINES["ort-trt"], "cuda")
    (folder / "libnvinfer.so.10").touch()
    assert "libnvinfer" not in missing(ENGINES["ort-trt"], "cuda")
