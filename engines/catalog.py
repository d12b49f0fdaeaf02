"""What enters: nothing. What leaves: ENGINES and PRESETS, what each engine can do and needs, as data without torch.

A new engine is one module beside this file and one row in ENGINES; see docs/extending.md.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from engines.batch_range import parse_batches

Device = Literal["cpu", "cuda"]
Pass = Literal["inference", "training"]

DEVICES: tuple[Device, ...] = ("cpu", "cuda")
PASSES: tuple[Pass, ...] = ("inference", "training")
PRECISIONS = ("fp32", "tf32", "fp16", "bf16", "amp-fp16", "amp-bf16", "int8", "native")
"""`amp-fp16` and `amp-bf16` are training with fp32 weights under autocast, `amp-fp16` with a GradScaler. `native` is a
user's ONNX file as it is; a config does not ask for it, such a model has no other."""

OPTIMIZERS = ("none", "sgd", "adamw")
HEADS = ("cross-entropy", "logits")


@dataclass(frozen=True)
class Training:
    """What a training iteration does beside its forward and backward pass.

    With the head "logits" the backward pass starts from a fixed gradient of the network's output, and no loss is
    computed, as convnet-benchmarks did. Dropout is off unless asked for: with it no gradient could be checked.
    """

    optimizer: Literal["none", "sgd", "adamw"] = "none"
    head: Literal["cross-entropy", "logits"] = "cross-entropy"
    dropout: bool = False


BASES = (("eager", "fp32"), ("ort", "native"))
"""Variant and precision that speed-ups are relative to; the second is for a user's ONNX file."""

PLAIN = Training()
"""A forward and a backward pass of the loss, and nothing else."""


@dataclass(frozen=True)
class Option:
    """One option of an engine, as written beside its name in the YAML."""

    type: type
    default: object
    meaning: str
    choices: tuple[str, ...] = ()
    devices: tuple[Device, ...] = DEVICES
    range: tuple[int, int] | None = None
    """Least and largest value of a number."""
    check: Callable[[str], object] | None = None
    """Raises ValueError, which says why, for a text that is not of its form; the empty one is not asked."""


@dataclass(frozen=True)
class Requirement:
    """Something that must be there before an engine can run.

    `kind` says what `name` is: a Python module (or several, any of which will do, separated by "|"), a program on the
    PATH, or distributions whose versions must be the same where they are installed, separated by "=".
    """

    name: str
    install: str
    kind: Literal["module", "program", "same version"] = "module"
    devices: tuple[Device, ...] = DEVICES
    to_build: bool = True
    """Whether building ahead of time needs it too."""


@dataclass(frozen=True)
class Engine:
    """One runtime.

    `precisions` says what it can do, by pass and device; whatever is missing there is an `unsupported` row. `reasons`,
    by device and precision or by device and pass, explains it where a general sentence would say too little.
    """

    name: str
    module: str
    summary: str
    needs: Literal["torch", "onnx"]
    precisions: Mapping[tuple[Pass, Device], frozenset[str]]
    requirements: tuple[Requirement, ...]
    options: Mapping[str, Option] = field(default_factory=dict)
    reasons: Mapping[tuple[Device, str], str] = field(default_factory=dict)
    compute_capabilities: tuple[str, ...] | None = None
    """Of the GPUs that it runs on; None where the library decides."""
    builds: Literal["with a GPU", "anywhere"] | None = None
    """Whether `python -m profiler build` can have it build an engine ahead of time, and where."""
    layers_are_modules: bool = False
    """Whether its profiled layers are called by the paths of PyTorch's modules."""


@dataclass(frozen=True)
class Preset:
    """A named set of options of one engine. `reasons` says why a device is not in `options`."""

    name: str
    engine: str
    summary: str
    options: Mapping[Device, Mapping[str, object]]
    reasons: Mapping[Device, str] = field(default_factory=dict)


_NO_TF32_ON_CPU = "TF32 is a mode of NVIDIA's tensor cores; on the CPU ask for fp32"
_TORCH = Requirement("torch", "pip install 'torch>=2.11,<2.14'")
_TORCH_PRECISIONS: Mapping[tuple[Pass, Device], frozenset[str]] = {
    ("inference", "cpu"): frozenset({"fp32", "fp16", "bf16"}),
    ("inference", "cuda"): frozenset({"fp32", "tf32", "fp16", "bf16"}),
    ("training", "cpu"): frozenset({"fp32", "bf16", "amp-bf16"}),
    ("training", "cuda"): frozenset({"fp32", "tf32", "fp16", "bf16", "amp-fp16", "amp-bf16"}),
}
_NO_INT8_IN_TORCH = (
    "int8 is a graph with quantize and dequantize nodes, for runtimes that read ONNX; PyTorch has its own quantizers, "
    "whose result would be another network"
)
_TORCH_REASONS: Mapping[tuple[Device, str], str] = {
    ("cpu", "tf32"): _NO_TF32_ON_CPU,
    ("cpu", "int8"): _NO_INT8_IN_TORCH,
    ("cuda", "int8"): _NO_INT8_IN_TORCH,
}
_CHANNELS_LAST = Option(bool, False, "weights and activations in NHWC memory order")
_CUDNN_BENCHMARK = Option(bool, False, "let cuDNN time its algorithms and keep the fastest", devices=("cuda",))

_TRT_PRECISIONS: Mapping[tuple[Pass, Device], frozenset[str]] = {
    ("inference", "cuda"): frozenset({"fp32", "tf32", "fp16", "bf16", "int8", "native"}),
}
_INSTALL_TRT = "pip install 'tensorrt>=10.13' (it fetches its libraries from NVIDIA)"
_INSTALL_RTX = "pip install 'tensorrt-rtx-cu13-libs>=1.7' 'tensorrt-rtx-cu13-bindings>=1.7'"
_PYCUDA = Requirement(
    "pycuda", "pip install pycuda (it is compiled: the CUDA toolkit's headers must be there)", to_build=False
)
_TRT_NEEDS_A_GPU = "TensorRT runs on NVIDIA GPUs alone"
_TRT_REASONS: Mapping[tuple[Device, str], str] = {
    ("cpu", "inference"): _TRT_NEEDS_A_GPU,
    ("cpu", "training"): _TRT_NEEDS_A_GPU,
}
_TRT_OPTIONS: Mapping[str, Option] = {
    "cuda_graph": Option(bool, False, "record one run and replay it", devices=("cuda",)),
    "optimization_level": Option(
        int, -1, "the builder's optimization level, 0 to 5; -1 is the library's own", devices=("cuda",), range=(-1, 5)
    ),
    "workspace_mib": Option(
        int, 0, "most scratch memory a layer may use; 0 is the whole card", devices=("cuda",), range=(0, 2**20)
    ),
    "batch_range": Option(
        str,
        "",
        'an optimization profile for a range, "min:opt:max"; empty is the batch alone',
        devices=("cuda",),
        check=parse_batches,
    ),
    "rebuild": Option(bool, False, "build even what the engine cache has", devices=("cuda",)),
}

ENGINES: dict[str, Engine] = {
    engine.name: engine
    for engine in (
        Engine(
            name="eager",
            module="engines.pytorch.eager",
            summary="PyTorch, one kernel launch an operator",
            needs="torch",
            layers_are_modules=True,
            precisions=_TORCH_PRECISIONS,
            requirements=(_TORCH,),
            options={
                "channels_last": _CHANNELS_LAST,
                "cuda_graph": Option(bool, False, "record one iteration and replay it", devices=("cuda",)),
                "cudnn": Option(
                    bool, True, "convolutions by cuDNN; false takes PyTorch's own kernels", devices=("cuda",)
                ),
                "cudnn_benchmark": _CUDNN_BENCHMARK,
            },
            reasons=_TORCH_REASONS,
        ),
        Engine(
            name="compiled",
            module="engines.pytorch.compiled",
            summary="torch.compile with TorchInductor",
            needs="torch",
            precisions=_TORCH_PRECISIONS,
            requirements=(
                _TORCH,
                Requirement("triton", "pip install triton", devices=("cuda",)),
                Requirement("g++", "apt-get install g++ (or set CXX to a C++ compiler)", "program", devices=("cpu",)),
            ),
            options={
                "mode": Option(
                    str,
                    "reduce-overhead",
                    "torch.compile's mode; reduce-overhead records CUDA graphs",
                    choices=("default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs"),
                ),
                "channels_last": _CHANNELS_LAST,
                "cudnn_benchmark": _CUDNN_BENCHMARK,
            },
            reasons=_TORCH_REASONS,
        ),
        Engine(
            name="ort",
            module="engines.onnx_runtime.session",
            summary="ONNX Runtime: CUDA provider on a GPU, CPU provider elsewhere",
            needs="onnx",
            precisions={
                ("inference", "cpu"): frozenset({"fp32", "int8", "native"}),
                ("inference", "cuda"): frozenset({"fp32", "tf32", "fp16", "native"}),
            },
            requirements=(Requirement("onnxruntime", "pip install 'onnxruntime-gpu>=1.31'"),),
            options={
                "prefer_nhwc": Option(bool, False, "convolutions in NHWC memory order", devices=("cuda",)),
                "cuda_graph": Option(bool, False, "record one run and replay it", devices=("cuda",)),
                "conv_search": Option(
                    str,
                    "EXHAUSTIVE",
                    "how cuDNN's convolution algorithm is chosen (the library's default is EXHAUSTIVE)",
                    choices=("EXHAUSTIVE", "HEURISTIC", "DEFAULT"),
                    devices=("cuda",),
                ),
                "fuse_conv_bias": Option(bool, False, "bias and convolution in one cuDNN graph", devices=("cuda",)),
                "optimize": Option(bool, True, "graph optimizations (fusions, constant folding, layout)"),
                "threads": Option(int, 0, "threads inside an operator; 0 is one per core", devices=("cpu",)),
            },
            reasons={
                ("cpu", "tf32"): _NO_TF32_ON_CPU,
                (
                    "cpu",
                    "fp16",
                ): "ONNX Runtime's CPU provider has no fp16 convolution: it would insert casts and compute in fp32",
                ("cpu", "bf16"): "ONNX Runtime's CPU provider has no bf16 convolution",
                ("cuda", "bf16"): "ONNX Runtime's CUDA provider has no bf16 convolution",
                (
                    "cuda",
                    "int8",
                ): "ONNX Runtime's CUDA provider has no int8 convolution: it would dequantize and compute in float",
            },
        ),
        Engine(
            name="trt",
            module="engines.tensorrt_engines.session",
            summary="TensorRT: an engine built for this GPU",
            needs="onnx",
            precisions=_TRT_PRECISIONS,
            requirements=(
                Requirement("tensorrt", _INSTALL_TRT),
                Requirement(
                    "tensorrt-cu13-bindings=tensorrt-cu13-libs",
                    _INSTALL_TRT.replace("install", "install --upgrade"),
                    "same version",
                ),
                Requirement(
                    "tensorrt-cu12-bindings=tensorrt-cu12-libs",
                    _INSTALL_TRT.replace("install", "install --upgrade"),
                    "same version",
                ),
                _PYCUDA,
            ),
            options=_TRT_OPTIONS,
            reasons=_TRT_REASONS,
            builds="with a GPU",
        ),
        Engine(
            name="trt-rtx",
            module="engines.tensorrt_engines.session",
            summary="TensorRT for RTX: an engine built ahead of time for GeForce and RTX GPUs",
            needs="onnx",
            precisions=_TRT_PRECISIONS,
            requirements=(
                Requirement("tensorrt_rtx|tensorrt_rtx_bindings", _INSTALL_RTX),
                Requirement("tensorrt_rtx|tensorrt_rtx_libs", _INSTALL_RTX),
                Requirement(
                    "tensorrt-rtx-cu13-bindings=tensorrt-rtx-cu13-libs",
                    _INSTALL_RTX.replace("install", "install --upgrade"),
                    "same version",
                ),
                _PYCUDA,
            ),
            options=_TRT_OPTIONS,
            reasons=_TRT_REASONS,
            # https://docs.nvidia.com/deeplearning/tensorrt-rtx/latest/inference-library/cpu-engines.html
            compute_capabilities=("7.5", "8.0", "8.6", "8.9", "12.0", "12.1"),
            builds="anywhere",
        ),
        Engine(
            name="openvino",
            module="engines.openvino_cpu",
            summary="OpenVINO on the CPU",
            needs="onnx",
            precisions={("inference", "cpu"): frozenset({"fp32", "int8", "native"})},
            requirements=(Requirement("openvino", "pip install 'cnn-runtime-profiler[openvino]'"),),
            options={
                "threads": Option(int, 0, "inference threads; 0 lets OpenVINO choose", devices=("cpu",)),
            },
            reasons={
                ("cpu", "tf32"): _NO_TF32_ON_CPU,
                (
                    "cpu",
                    "fp16",
                ): "OpenVINO's CPU plugin computes an fp16 graph in fp32 or bf16, whichever the processor has",
                ("cpu", "bf16"): "OpenVINO chooses bf16 by an inference hint, not by the graph's type",
                ("cuda", "inference"): "OpenVINO has no NVIDIA device",
                ("cuda", "training"): "OpenVINO has no NVIDIA device",
            },
        ),
    )
}

PRESETS: dict[str, Preset] = {
    preset.name: preset
    for preset in (
        Preset("eager", "eager", "PyTorch eager as it comes", {"cpu": {}, "cuda": {}}),
        Preset(
            "eager-tuned",
            "eager",
            "channels_last, and on a GPU a CUDA graph",
            {"cpu": {"channels_last": True}, "cuda": {"channels_last": True, "cuda_graph": True}},
        ),
        Preset(
            "eager-nocudnn",
            "eager",
            "PyTorch eager without cuDNN",
            {"cuda": {"cudnn": False}},
            {"cpu": "there is no cuDNN on the CPU"},
        ),
        Preset(
            "eager-benchmark",
            "eager",
            "PyTorch eager with cuDNN's algorithm search",
            {"cuda": {"cudnn_benchmark": True}},
            {"cpu": "there is no cuDNN on the CPU"},
        ),
        Preset(
            "eager-channels-last",
            "eager",
            "channels_last alone",
            {"cpu": {"channels_last": True}, "cuda": {"channels_last": True}},
        ),
        Preset("compiled", "compiled", "torch.compile, mode reduce-overhead", {"cpu": {}, "cuda": {}}),
        Preset("ort", "ort", "ONNX Runtime as it comes", {"cpu": {}, "cuda": {}}),
        Preset(
            "ort-tuned",
            "ort",
            "NHWC, CUDA graph, exhaustive convolution search",
            {"cuda": {"prefer_nhwc": True, "cuda_graph": True, "conv_search": "EXHAUSTIVE"}},
            {"cpu": "NHWC and CUDA graphs are options of ONNX Runtime's CUDA provider"},
        ),
        Preset("trt", "trt", "TensorRT with a CUDA graph", {"cuda": {"cuda_graph": True}}, {"cpu": _TRT_NEEDS_A_GPU}),
        Preset(
            "trt-rtx",
            "trt-rtx",
            "TensorRT for RTX with a CUDA graph",
            {"cuda": {"cuda_graph": True}},
            {"cpu": _TRT_NEEDS_A_GPU},
        ),
        Preset("openvino", "openvino", "OpenVINO as it comes", {"cpu": {}}, {"cuda": "OpenVINO has no NVIDIA device"}),
    )
}


def unsupported(
    engine: Engine, pass_: str, device: Device, precision: str, kind: str, capability: str | None = None
) -> str | None:
    """The reason why `engine` cannot do this, from the catalog alone; None if it can.

    `kind` is the model source's: a user's ONNX file cannot run in an engine that needs a torch module. `capability` is
    the GPU's compute capability, such as "9.0", where it is known.
    """
    if engine.needs == "torch" and kind == "onnx":
        return f"{engine.name} needs a torch module; an ONNX file has none"
    if kind == "layer" and precision.startswith("amp-"):
        return f"AMP chooses types by operator; a layer is a single one: ask for {precision.removeprefix('amp-')}"
    if reason := foreign_capability(engine, device, capability):
        return reason
    able = {p for (of_pass, on), ps in engine.precisions.items() if of_pass == pass_ and on == device for p in ps}
    if engine.needs == "torch":
        able = able - {"native"}
    if precision in able:
        return None
    if (device, pass_) in engine.reasons:
        return engine.reasons[device, pass_]
    if not able:
        passes = sorted({p for p, on in engine.precisions if on == device})
        return f"{engine.name} does {' and '.join(passes) or 'nothing'} on {device}, no {pass_}"
    if (device, precision) in engine.reasons:
        return engine.reasons[device, precision]
    return f"{engine.name} has no {precision} {pass_} on {device}; it has {', '.join(sorted(able))}"


def foreign_capability(engine: Engine, device: Device, capability: str | None) -> str | None:
    """The reason why `engine` runs on no GPU of this compute capability; None if it does, or if it is not known."""
    supported = engine.compute_capabilities
    if device == "cpu" or supported is None or capability is None or capability in supported:
        return None
    return f"{engine.name} does not support this GPU's compute capability {capability}; it has {', '.join(supported)}"
