"""List the engines and presets as data, without torch.

A new engine is one module in this package and one row in ENGINES; see docs/extending.md.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Literal

from engines.options import (
    CPU,
    CUDA,
    DEVICES,
    EIGHT_BITS,
    PASSES,
    PRECISION_TABLE,
    CompiledOptions,
    Device,
    EagerOptions,
    OpenVinoOptions,
    Options,
    OrtOptions,
    OrtTrtOptions,
    Pass,
    TrtOptions,
)


@dataclass(frozen=True)
class Requirement:
    """Something that must be there before an engine can run.

    `name` is a Python module ("a|b" accepts either), a program on the PATH, or a file in an installed module's folder
    ("module/folder/file"), depending on `kind`.
    """

    name: str
    install: str
    kind: Literal["module", "program", "file"] = "module"
    devices: tuple[Device, ...] = DEVICES
    minimum: str = ""
    """Oldest module version that this code works with."""
    packages: tuple[str, ...] = ()
    """Distributions that provide it, if their names differ."""


@dataclass(frozen=True)
class LibraryVersion:
    """Column with the version of an engine's library."""

    column: str
    packages: tuple[str, ...]
    """Distributions that may hold it; environment.json has the version of the first installed one."""
    from_proof: bool = False
    """Take the version from the proof: several libraries share the column, or a vendor's build may be installed."""


@dataclass(frozen=True)
class Reference:
    """An engine's settings for the reference outputs of parity."""

    name: str
    """Value of the results' column `reference`."""
    precision: str
    options: Options
    module: str
    """Module whose `__version__` the outputs depend on."""
    requirement: Requirement


@dataclass(frozen=True, kw_only=True)
class Engine:
    """Everything that the rest of the program knows about a runtime."""

    name: str
    module: str
    """Has `open_session(job)`, which returns a session of engines/base.py; with `deployment` also `deploy`."""
    library: str
    """The runtime's name in tables."""
    summary: str
    needs: Literal["torch", "onnx"]
    precisions: Mapping[tuple[Pass, Device], frozenset[str]]
    """Supported precisions; anything missing here becomes an `unsupported` row."""
    reasons: Mapping[tuple[Device, str], str] = field(default_factory=dict)
    """Reasons that replace the general message, by device and precision or pass."""
    requirements: tuple[Requirement, ...] = ()
    options: type[Options] = Options
    spellings: tuple[str, ...] = ()
    """Other names that people type for it."""
    version: LibraryVersion | None = None
    packages: tuple[str, ...] = ()
    """Further distributions whose versions environment.json records."""
    compiles: bool = False
    """Compiles in the measuring process, for up to a minute."""
    shares_kernels: bool = False
    """Caches compiled code by content, so several cases can compile in parallel before they run."""
    uses_cudnn: bool = False
    quantizers: Mapping[str, Requirement] = field(default_factory=lambda: {"int8": _ANY_ORT})
    """Package that quantizes its modules, by precision; ONNX Runtime quantizes all graphs."""
    int8_graph: Literal["int8", "int8-operands", "int8-dynamic"] = "int8"
    """Graph of exporters/int8.py that it runs at int8."""
    switches: tuple[str, ...] = ("tf32",)
    """Precisions that switch the engine, which then runs the fp32 graph."""
    layers_are_modules: bool = False
    """Names profiled layers by the paths of PyTorch's modules."""
    capabilities: tuple[str, ...] = ()
    """Supported compute capabilities; empty if the library decides."""
    uses_pycuda: bool = False
    """Takes its stream and buffers from pycuda if that is installed."""
    builds: Literal["with a GPU", "anywhere"] | None = None
    """Machine on which `python -m profiler build` can build an engine ahead of time."""
    deployment: Mapping[Device, tuple[str, ...]] = field(default_factory=dict)
    """Lines of an exported folder's requirements.txt; {release} becomes "==" and the measured version or nothing."""
    reference: Reference | None = None
    """Set by one engine that needs torch modules, and by one that needs graphs."""


@dataclass(frozen=True)
class Preset:
    """A named set of options of one engine: its options by device, or why it does not run there."""

    name: str
    engine: str
    summary: str
    cpu: Mapping[str, object] | str
    cuda: Mapping[str, object] | str
    usual: bool = False
    """Measured if a model is named without engines."""
    base_at: tuple[str, ...] = ()
    """Precisions whose factors are relative to this preset."""
    first: tuple[Device, ...] = ()
    """Devices on which it often wins, so that a model's run measures it before others."""

    @property
    def options(self) -> dict[Device, Mapping[str, object]]:
        return {d: row for d, row in zip(DEVICES, (self.cpu, self.cuda), strict=True) if not isinstance(row, str)}

    @property
    def reasons(self) -> dict[Device, str]:
        return {d: row for d, row in zip(DEVICES, (self.cpu, self.cuda), strict=True) if isinstance(row, str)}


_NO_OPENVINO_ON_CUDA = "OpenVINO has no NVIDIA device"
_NO_OPENVINO_FP16 = "OpenVINO's CPU plugin computes an fp16 graph in fp32 or bf16, whichever the processor has"
_DYNAMIC_ON_CUDA = "ONNX Runtime's CUDA provider has no int8 products"
_TRT_NEEDS_A_GPU = "TensorRT runs only on NVIDIA GPUs"


def _never(device: Device, reason: str) -> dict[tuple[Device, str], str]:
    return dict.fromkeys(((device, pass_) for pass_ in PASSES), reason)


_TORCH = Requirement("torch", "pip install 'torch>=2.11,<2.14'", minimum="2.11")
_ORT_PACKAGES = ("onnxruntime-gpu", "onnxruntime")
# From 1.24 on it reports every node's provider; 1.23 is Python 3.10's last, and makes graphs and references.
_INSTALL_ORT = "pip install 'onnxruntime>=1.24' (Python 3.11 or later)"
_ORT: Requirement = Requirement("onnxruntime", _INSTALL_ORT, minimum="1.24", packages=_ORT_PACKAGES)
_ANY_ORT: Requirement = replace(_ORT, install="pip install 'onnxruntime>=1.22'", minimum="1.22")
_INSTALL_ORT_GPU = "pip install 'onnxruntime-gpu>=1.31'"
_ORT_ON_CUDA = replace(_ORT, install=_INSTALL_ORT_GPU, devices=CUDA)


def _provider(name: str) -> Requirement:
    # Both distributions fill one folder, so that removing either breaks the other.
    reinstall = f"pip uninstall --yes onnxruntime onnxruntime-gpu && {_INSTALL_ORT_GPU}"
    return Requirement(f"onnxruntime/capi/libonnxruntime_providers_{name}.so", reinstall, "file", devices=CUDA)


# libonnxruntime_providers_tensorrt.so of 1.31 needs libnvinfer.so.10 and was compiled against 10.14.1, for CUDA 13.
_INSTALL_TRT_10 = "pip install 'tensorrt-cu13>=10.14,<11' (it fetches its libraries from NVIDIA, several GB)"
_INSTALL_TRT = (
    "pip install 'tensorrt-cu13>=10.13' (tensorrt-cu12 where torch is for CUDA 12)"
    if sys.version_info >= (3, 11)
    else "pip install tensorrt==8.5.3.1"
)
_INSTALL_RTX = (
    "pip install 'tensorrt-rtx-cu13-libs>=1.7' 'tensorrt-rtx-cu13-bindings>=1.7' (-cu12- where torch is for CUDA 12)"
)
_TRT_PACKAGES = ("tensorrt", "tensorrt-cu13", "tensorrt-cu12")
_RTX_PACKAGES = ("tensorrt-rtx-cu13-bindings", "tensorrt-rtx-cu13-libs")
# https://docs.nvidia.com/deeplearning/tensorrt-rtx/latest/inference-library/cpu-engines.html
_RTX_CARDS = ("7.5", "8.0", "8.6", "8.9", "12.0", "12.1")


def _can(words: str) -> frozenset[str]:
    return frozenset(words.split())


_torch_engine = partial(
    Engine,
    library="PyTorch",
    needs="torch",
    precisions={
        ("inference", "cpu"): _can("fp32 fp16 bf16 int8"),
        ("inference", "cuda"): _can("fp32 tf32 fp16 bf16 int8 fp8"),
        ("training", "cpu"): _can("fp32 bf16 amp-bf16"),
        ("training", "cuda"): _can("fp32 tf32 fp16 bf16 amp-fp16 amp-bf16"),
    },
    reasons={("cpu", "fp8"): "torchao computes fp8 on GPUs only, from compute capability 8.9 on"},
    quantizers=dict.fromkeys(EIGHT_BITS, Requirement("torchao", "pip install 'torchao>=0.18' (3 MB)", minimum="0.18")),
    version=LibraryVersion("torch_version", ("torch",)),
    uses_cudnn=True,
    deployment={
        "cpu": ("# PyTorch's own index has a build for the CPU only, which is far smaller.", "torch{release}"),
        "cuda": ("torch{release}",),
    },
)
_ort_engine = partial(
    Engine,
    module="engines.ort",
    library="ONNX Runtime",
    needs="onnx",
    version=LibraryVersion("onnxruntime_version", _ORT_PACKAGES, from_proof=True),
)
_trt_engine = partial(
    Engine,
    module="engines.trt",
    needs="onnx",
    precisions={("inference", "cuda"): _can("fp32 tf32 fp16 bf16 int8 native")},
    reasons=_never("cpu", _TRT_NEEDS_A_GPU),
    options=TrtOptions,
    int8_graph="int8-operands",
    uses_pycuda=True,
)

ENGINES: dict[str, Engine] = {
    engine.name: engine
    for engine in (
        _torch_engine(
            name="eager",
            module="engines.eager",
            summary="PyTorch, one kernel launch an operator",
            layers_are_modules=True,
            requirements=(_TORCH,),
            options=EagerOptions,
            packages=("torchao",),
            reference=Reference("eager-fp32-cpu", "fp32", EagerOptions(), "torch", _TORCH),
        ),
        _torch_engine(
            name="compiled",
            module="engines.compiled",
            summary="torch.compile with TorchInductor",
            requirements=(
                _TORCH,
                Requirement("triton", "pip install triton", devices=CUDA),
                Requirement("g++", "apt-get install g++ (or set CXX to a C++ compiler)", "program", devices=CPU),
            ),
            options=CompiledOptions,
            packages=("triton", "torchao"),
            compiles=True,
            shares_kernels=True,
        ),
        _ort_engine(
            name="ort",
            summary="ONNX Runtime: CUDA provider on a GPU, CPU provider elsewhere",
            precisions={
                ("inference", "cpu"): _can("fp32 int8 native"),
                ("inference", "cuda"): _can("fp32 tf32 fp16 native"),
            },
            reasons={
                ("cpu", "fp16"): "ONNX Runtime's CPU provider would cast an fp16 graph and compute in fp32",
                ("cpu", "bf16"): "ONNX Runtime's CPU provider does not compute in bf16",
                ("cuda", "bf16"): "ONNX Runtime's CUDA provider computes only a part of its operators in bf16",
                ("cuda", "int8"): "ONNX Runtime's CUDA provider would dequantize an int8 graph and compute in float",
            },
            requirements=(replace(_ORT, devices=CPU), _ORT_ON_CUDA, _provider("cuda")),
            options=OrtOptions,
            uses_cudnn=True,
            deployment={"cpu": ("onnxruntime{release}",), "cuda": ("onnxruntime-gpu[cuda,cudnn]{release}",)},
            # With all graph optimizations off.
            reference=Reference("ort-cpu-unoptimized", "native", OrtOptions(optimize=False), "onnxruntime", _ANY_ORT),
        ),
        _ort_engine(
            name="ort-dynamic",
            summary="ONNX Runtime on the CPU, int8 products with ranges computed at every call",
            precisions={("inference", "cpu"): _can("int8")},
            reasons=_never("cuda", _DYNAMIC_ON_CUDA),
            requirements=(_ORT,),
            options=OrtOptions,
            int8_graph="int8-dynamic",
            deployment={"cpu": ("onnxruntime{release}",)},
        ),
        _ort_engine(
            name="ort-trt",
            summary="ONNX Runtime on TensorRT, its TensorRT provider",
            precisions={("inference", "cuda"): _can("fp32 tf32 fp16 bf16 int8")},
            reasons={
                **_never("cpu", _TRT_NEEDS_A_GPU),
                ("cuda", "native"): "ONNX Runtime's TensorRT provider does not take types from the file; trt does",
            },
            requirements=(
                _ORT_ON_CUDA,
                _provider("cuda"),
                _provider("tensorrt"),
                Requirement("tensorrt_libs", _INSTALL_TRT_10),
                Requirement("tensorrt_libs/libnvinfer.so.10", _INSTALL_TRT_10, "file"),
            ),
            options=OrtTrtOptions,
            int8_graph="int8-operands",
            packages=("tensorrt-cu13-libs",),
            compiles=True,
        ),
        _trt_engine(
            name="trt",
            library="TensorRT",
            summary="TensorRT: an engine built for this GPU",
            requirements=(Requirement("tensorrt", _INSTALL_TRT, minimum="8.5", packages=_TRT_PACKAGES),),
            spellings=("tensorrt", "tensort"),
            version=LibraryVersion("tensorrt_version", ("tensorrt",), from_proof=True),
            packages=("pycuda",),
            builds="with a GPU",
            deployment={"cuda": ("tensorrt{release}", "cuda-python")},
        ),
        _trt_engine(
            name="trt-rtx",
            library="TensorRT for RTX",
            summary="TensorRT for RTX: an engine built ahead of time for GeForce and RTX GPUs",
            requirements=(
                Requirement(
                    "tensorrt_rtx|tensorrt_rtx_bindings",
                    _INSTALL_RTX,
                    minimum="1.7",
                    packages=(_RTX_PACKAGES[0], "tensorrt-rtx-cu12-bindings"),
                ),
                Requirement("tensorrt_rtx|tensorrt_rtx_libs", _INSTALL_RTX),
            ),
            spellings=("tensorrt-rtx", "tensort-rtx"),
            version=LibraryVersion("tensorrt_version", (), from_proof=True),
            packages=(*_RTX_PACKAGES, "pycuda"),
            capabilities=_RTX_CARDS,
            builds="anywhere",
            deployment={"cuda": (*(f"{package}{{release}}" for package in _RTX_PACKAGES), "cuda-python")},
        ),
        Engine(
            name="openvino",
            module="engines.openvino_cpu",
            library="OpenVINO",
            summary="OpenVINO on the CPU",
            needs="onnx",
            precisions={("inference", "cpu"): _can("fp32 bf16 int8 native")},
            reasons={("cpu", "fp16"): _NO_OPENVINO_FP16, **_never("cuda", _NO_OPENVINO_ON_CUDA)},
            switches=("tf32", "bf16"),
            int8_graph="int8-operands",
            requirements=(Requirement("openvino", "pip install 'openvino>=2026.0'"),),
            options=OpenVinoOptions,
            version=LibraryVersion("openvino_version", ("openvino",)),
            deployment={"cpu": ("openvino{release}",)},
        ),
    )
}

_NO_CUDNN = "there is no cuDNN on the CPU"
_NO_NHWC = "NHWC and CUDA graphs are options of ONNX Runtime's CUDA provider"
_NHWC: dict[str, object] = {"channels_last": True}
_GRAPH: dict[str, object] = {"cuda_graph": True}
_BENCHMARK: Mapping[str, object] = {"cudnn_benchmark": True}
_ORT_TUNED = {"prefer_nhwc": True, **_GRAPH, "conv_search": "EXHAUSTIVE"}

PRESETS: dict[str, Preset] = {
    preset.name: preset
    for preset in (
        Preset("eager", "eager", "PyTorch eager with defaults", {}, {}, usual=True, base_at=("fp32",)),
        Preset("eager-tuned", "eager", "NHWC; on a GPU a CUDA graph", _NHWC, _NHWC | _GRAPH, usual=True, first=CUDA),
        Preset("eager-nocudnn", "eager", "PyTorch eager without cuDNN", _NO_CUDNN, {"cudnn": False}),
        Preset("eager-benchmark", "eager", "PyTorch eager with cuDNN's algorithm search", _NO_CUDNN, _BENCHMARK),
        Preset("eager-channels-last", "eager", "channels_last only", _NHWC, _NHWC),
        Preset("compiled", "compiled", "torch.compile, mode reduce-overhead", {}, {}, usual=True, first=CUDA),
        Preset("compiled-tuned", "compiled", "the same in NHWC", _NHWC, _NHWC, usual=True),
        # The base for a user's ONNX file, which eager cannot run.
        Preset("ort", "ort", "ONNX Runtime with defaults", {}, {}, usual=True, base_at=("native", "fp32"), first=CPU),
        Preset("ort-tuned", "ort", "NHWC, CUDA graph, exhaustive convolution search", _NO_NHWC, _ORT_TUNED, usual=True),
        Preset("ort-dynamic", "ort-dynamic", "ONNX Runtime, dynamic int8", {}, _DYNAMIC_ON_CUDA, usual=True),
        Preset("ort-trt", "ort-trt", "ONNX Runtime on TensorRT with a CUDA graph", _TRT_NEEDS_A_GPU, _GRAPH),
        Preset("trt", "trt", "TensorRT with a CUDA graph", _TRT_NEEDS_A_GPU, _GRAPH, usual=True, first=CUDA),
        Preset("trt-rtx", "trt-rtx", "TensorRT for RTX, CUDA graph", _TRT_NEEDS_A_GPU, _GRAPH, usual=True, first=CUDA),
        Preset("openvino", "openvino", "OpenVINO with defaults", {}, _NO_OPENVINO_ON_CUDA, usual=True, first=CPU),
    )
}


def is_base(variant: str, precision: str, kind: str) -> bool:
    """Return True if factors of this kind of model source are relative to the preset."""
    preset = PRESETS.get(variant)
    return preset is not None and precision in preset.base_at and ENGINES[preset.engine].needs == _form(kind)


def reference_of(kind: str) -> tuple[str, Reference]:
    """Return the engine and settings that compute the reference outputs for a kind of model source."""
    return next((e.name, e.reference) for e in ENGINES.values() if e.reference is not None and e.needs == _form(kind))


def _form(kind: str) -> str:
    return "onnx" if kind == "onnx" else "torch"


def engine_row(name: str) -> Engine:
    """Return the engine's row, empty for an engine that this version lacks, such as "jax" in published runs."""
    empty = Engine(name=name, module="", library=name.upper(), summary="", needs="onnx", precisions={})
    return ENGINES.get(name, empty)


def unsupported(
    engine: Engine, pass_: Pass, device: Device, precision: str, kind: str, hardware: str | None = None
) -> str | None:
    """Return why the catalog says that `engine` cannot run this; None if it can.

    `kind` is the model source's. `hardware` is the GPU's compute capability ("9.0"), if known.
    """
    if engine.needs == "torch" and kind == "onnx":
        return f"{engine.name} needs a torch module; an ONNX file has none"
    if kind == "layer" and precision.startswith("amp-"):
        return f"AMP chooses types by operator; for a layer ask for {precision.removeprefix('amp-')}"
    if reason := foreign_hardware(engine, device, hardware):
        return reason
    supported = engine.precisions.get((pass_, device), frozenset())
    if precision in supported:
        minimum = PRECISION_TABLE[precision].least_capability
        if device == "cuda" and minimum and hardware and tuple(map(int, hardware.split("."))) < minimum:
            return f"{precision} needs compute capability {minimum[0]}.{minimum[1]} or more; this GPU has {hardware}"
        return None
    if not supported:
        return engine.reasons.get((device, pass_)) or f"{engine.name} has no {pass_} on {device}"
    reasons = {("cpu", "tf32"): "TF32 is a mode of NVIDIA's tensor cores; on the CPU ask for fp32", **engine.reasons}
    if engine.needs == "onnx":
        reasons[device, "fp8"] = "no fp8 graph is made: ask for int8, or for fp8 in eager or compiled"
    general = f"{engine.name} has no {precision} {pass_} on {device}; it has {', '.join(sorted(supported))}"
    return reasons.get((device, precision), general)


def foreign_hardware(engine: Engine, device: Device, hardware: str | None) -> str | None:
    """Return why `engine` does not run on this compute capability; None if it does, or if that is unknown."""
    supported = engine.capabilities
    if device == "cpu" or not supported or hardware is None or hardware in supported:
        return None
    return f"{engine.name} does not support this GPU's compute capability {hardware}; it has {', '.join(supported)}"
