"""List what each engine can do and needs, as data without torch.

A new engine is one module in this package and one row in ENGINES; see docs/extending.md.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import partial
from typing import Any, ClassVar, Literal

from engines.option_values import key_values, parse_batches

Device = Literal["cpu", "cuda"]
Pass = Literal["inference", "training"]
Optimizer = Literal["none", "sgd", "adamw"]
Head = Literal["cross-entropy", "logits"]

DEVICES: tuple[Device, ...] = ("cpu", "cuda")
PASSES: tuple[Pass, ...] = ("inference", "training")
PRECISIONS = ("fp32", "tf32", "fp16", "bf16", "amp-fp16", "amp-bf16", "int8", "fp8", "native")
"""`amp-fp16` and `amp-bf16` are training with fp32 weights under autocast, `amp-fp16` with a GradScaler. `native` is a
user's ONNX file as it is; a config does not ask for it, such a model has no other."""
EIGHT_BITS = ("int8", "fp8")
LEAST_CAPABILITY = {"fp8": (8, 9)}
"""Of the GPUs that have a precision, by torchao's own check (0.18)."""

CPU_VENDORS = {"GenuineIntel": "Intel", "AuthenticAMD": "AMD"}
"""By what /proc/cpuinfo calls them."""

OPTIMIZERS: tuple[Optimizer, ...] = ("none", "sgd", "adamw")
HEADS: tuple[Head, ...] = ("cross-entropy", "logits")


@dataclass(frozen=True)
class Training:
    """What a training iteration does besides its forward and backward pass.

    With the head "logits" the backward pass starts from a fixed gradient of the network's output, and no loss is
    computed, as convnet-benchmarks did. Dropout is off unless asked for: with it no gradient could be checked. With
    `input_gradient` the backward pass ends in the gradient of the network's input, which training does not need.
    """

    optimizer: Optimizer = "none"
    head: Head = "cross-entropy"
    dropout: bool = False
    input_gradient: bool = False


PLAIN = Training()
"""A forward and a backward pass of the loss, and nothing else."""


@dataclass(frozen=True)
class Option:
    """What a user must know of one option of an engine, as written next to its name in the YAML."""

    type: type
    default: object
    meaning: str
    choices: tuple[str, ...] = ()
    devices: tuple[Device, ...] = DEVICES
    range: tuple[int, int] | None = None
    """Least and largest value of a number."""
    check: Callable[[str], object] | None = None
    """Raises ValueError, which says why, for a text that is not of its form; the empty one is not asked."""
    is_code: bool = False
    """Whether its text names code that will be called: an installed package, or a file relative to the YAML."""


def option(default: Any, meaning: str, **facts: Any) -> Any:
    """Declare a field of Options: its type is its default's, the other facts are Option's."""
    return field(default=default, metadata={"option": Option(type(default), default, meaning, **facts)})


@dataclass(frozen=True)
class Options:
    """An engine's options, with their values; of an engine that has some, a dataclass derived from this one."""

    @classmethod
    def declared(cls) -> dict[str, Option]:
        """What there is to know of each option, by name."""
        return {f.name: f.metadata["option"] for f in fields(cls)}


@dataclass(frozen=True)
class Requirement:
    """Something that must be there before an engine can run.

    `kind` says what `name` is: a Python module (or several, any of which will do, separated by "|"), a program on the
    PATH, distributions whose versions must be the same where they are installed, separated by "=", distributions of
    which at most one may be installed, separated by "|", or a file that a module must have in its folder where it is
    installed ("module/folder/file"). {cuda} in `install` stands for the CUDA that torch was built for: "cu13".
    """

    name: str
    install: str
    kind: Literal["module", "program", "same version", "only one", "file"] = "module"
    devices: tuple[Device, ...] = DEVICES
    to_build: bool = True
    """Whether building ahead of time needs it too."""
    least: str = ""
    """Of a module the oldest version with which the code here works, where that is known."""
    packages: tuple[str, ...] = ()
    """The distributions that may bring it, where they have other names."""


@dataclass(frozen=True)
class Deployment:
    """How `recommend --export` writes a folder that runs without this project."""

    write: str
    """"module:function", which writes the model's files and run.py: see engines/deployment.py."""
    requirements: Mapping[Device, tuple[str, ...]]
    """Lines of its requirements.txt; {release} becomes "==" and the measured version, or nothing if none is known, and
    {plugin} the same of a plugin."""


@dataclass(frozen=True)
class LibraryVersion:
    """Where the results have the version of an engine's library."""

    column: str
    packages: tuple[str, ...]
    """The distributions that may hold it; environment.json has the version of the first that is installed."""
    from_proof: bool = False
    """Whether a row has its proof's: several libraries share the column, or a vendor's distribution is installed."""


@dataclass(frozen=True)
class Reference:
    """How an engine makes the outputs that parity figures are relative to, on a GPU if the CPU cannot afford them."""

    names: Mapping[Device, str]
    """In the results' column `reference`."""
    precision: str
    options: Options
    module: str
    """Whose `__version__` they depend on."""


@dataclass(frozen=True, kw_only=True)
class Engine:
    """One runtime, with all that the rest of the program has to know of it."""

    name: str
    module: str
    """Has `open_session(job, options)`; engines/base.py says what a session is."""
    library: str
    """The runtime's name in tables."""
    summary: str
    needs: Literal["torch", "onnx"]
    precisions: Mapping[tuple[Pass, Device], frozenset[str]]
    """What it can do, by pass and device; whatever is missing here is an `unsupported` row."""
    reasons: Mapping[tuple[Device, str], str] = field(default_factory=dict)
    """Why not, by device and precision or pass, where a general sentence would say too little."""
    requirements: tuple[Requirement, ...] = ()
    options: type[Options] = Options
    spellings: tuple[str, ...] = ()
    """What people write when they mean it."""
    version: LibraryVersion | None = None
    """None where no column of the results has it."""
    packages: tuple[str, ...] = ()
    """Further distributions whose versions environment.json records."""
    compiles: bool = False
    """Whether it compiles in the process that measures, for the better part of a minute."""
    compile_cache: str = ""
    """The variable that names a folder in which the library keeps what it compiled for later processes."""
    uses_cudnn: bool = False
    quantizers: Mapping[str, Requirement] = field(default_factory=lambda: {"int8": _ORT})
    """By precision what quantizes its models; graphs ONNX Runtime does, whichever engine runs them."""
    int8_graph: Literal["int8", "int8-operands"] = "int8"
    """Which of the graphs of exporters/qdq_placement.py it runs at int8."""
    layers_are_modules: bool = False
    """Whether its profiled layers have the paths of PyTorch's modules as names."""
    hardware: Mapping[Device, tuple[str, ...]] = field(default_factory=dict)
    """By device the compute capabilities of the GPUs, or the vendors of the CPUs, that it runs on; without, the library
    decides."""
    builds: Literal["with a GPU", "anywhere"] | None = None
    """Whether `python -m profiler build` can have it build an engine ahead of time, and where."""
    deployment: Deployment | None = None
    """None where it cannot be exported."""
    reference: Reference | None = None
    """Of one engine that needs torch modules, and of one that needs graphs, for users' ONNX files."""


@dataclass(frozen=True)
class Preset:
    """A named set of options of one engine: for each device its options there, or why it does not run there."""

    name: str
    engine: str
    summary: str
    cpu: Mapping[str, object] | str
    cuda: Mapping[str, object] | str
    usual: bool = False
    """Whether a model that is named without engines is measured in it."""
    base_at: tuple[str, ...] = ()
    """The precisions at which it is what other cases' speed-ups are relative to."""

    @property
    def options(self) -> dict[Device, Mapping[str, object]]:
        return {on: own for on, own in zip(DEVICES, (self.cpu, self.cuda), strict=True) if not isinstance(own, str)}

    @property
    def reasons(self) -> dict[Device, str]:
        return {on: own for on, own in zip(DEVICES, (self.cpu, self.cuda), strict=True) if isinstance(own, str)}


_CUDA: tuple[Device, ...] = ("cuda",)
_CPU: tuple[Device, ...] = ("cpu",)
_NO_TF32_ON_CPU = "TF32 is a mode of NVIDIA's tensor cores; on the CPU ask for fp32"

_TORCH = Requirement("torch", "pip install 'torch>=2.11,<2.14'", least="2.11")
# https://docs.nvidia.com/deeplearning/tensorrt-rtx/latest/inference-library/cpu-engines.html
_RTX_CARDS = ("7.5", "8.0", "8.6", "8.9", "12.0", "12.1")
_NO_TF32_OF_PLUGINS = "whether a plugin rounds to TF32 is its own option, which nothing here can see"
_NO_FP8_GRAPH = "no fp8 graph is made: ask for int8, or for fp8 in eager or compiled"


@dataclass(frozen=True)
class EagerOptions(Options):
    channels_last: bool = option(False, "weights and activations in NHWC memory order")
    cuda_graph: bool = option(False, "record one iteration and replay it", devices=_CUDA)
    cudnn: bool = option(True, "convolutions by cuDNN; false takes PyTorch's own kernels", devices=_CUDA)
    cudnn_benchmark: bool = option(False, "let cuDNN time its algorithms and keep the fastest", devices=_CUDA)


@dataclass(frozen=True)
class CompiledOptions(Options):
    mode: str = option(
        "reduce-overhead",
        "torch.compile's mode; reduce-overhead records CUDA graphs",
        choices=("default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs"),
    )
    channels_last: bool = option(False, "weights and activations in NHWC memory order")
    cudnn_benchmark: bool = option(False, "let cuDNN time its algorithms and keep the fastest", devices=_CUDA)
    # What only eager can be asked for:
    cuda_graph: ClassVar[bool] = False
    cudnn: ClassVar[bool] = True


TorchOptions = EagerOptions | CompiledOptions


@dataclass(frozen=True)
class OrtOptions(Options):
    prefer_nhwc: bool = option(False, "convolutions in NHWC memory order", devices=_CUDA)
    cuda_graph: bool = option(False, "record one run and replay it", devices=_CUDA)
    conv_search: str = option(
        "EXHAUSTIVE",
        "how cuDNN's convolution algorithm is chosen (the library's default is EXHAUSTIVE)",
        choices=("EXHAUSTIVE", "HEURISTIC", "DEFAULT"),
        devices=_CUDA,
    )
    fuse_conv_bias: bool = option(False, "bias and convolution in one cuDNN graph", devices=_CUDA)
    optimize: bool = option(True, "graph optimizations (fusions, constant folding, layout)")
    threads: int = option(0, "threads inside an operator; 0 is one per core", devices=_CPU)


@dataclass(frozen=True)
class OrtPackageOptions(Options):
    optimize: bool = option(True, "graph optimizations before the plugin gets its subgraphs")
    threads: int = option(0, "threads inside an operator; 0 lets the library choose", devices=_CPU)
    cuda_graph: ClassVar[bool] = False


@dataclass(frozen=True)
class OrtPluginOptions(OrtPackageOptions):
    library: str = option(
        "",
        "the plugin: its package, such as onnxruntime_ep_openvino, or the path of its .so, relative to the YAML",
        is_code=True,
    )
    provider_options: str = option("", 'the plugin\'s own options, "key=value; key=value"', check=key_values)


@dataclass(frozen=True)
class OrtTrtOptions(Options):
    cuda_graph: bool = option(False, "record one run and replay it", devices=_CUDA)
    optimize: bool = option(True, "graph optimizations before TensorRT gets its subgraphs")
    threads: ClassVar[int] = 0


@dataclass(frozen=True)
class TrtOptions(Options):
    cuda_graph: bool = option(False, "record one run and replay it", devices=_CUDA)
    optimization_level: int = option(
        -1, "the builder's optimization level, 0 to 5; -1 is the library's own", devices=_CUDA, range=(-1, 5)
    )
    workspace_mib: int = option(
        0, "most scratch memory of a layer; 0 is the whole card", devices=_CUDA, range=(0, 2**20)
    )
    batch_range: str = option(
        "",
        'an optimization profile for a range, "min:opt:max"; if empty, for one batch size only',
        devices=_CUDA,
        check=parse_batches,
    )
    rebuild: bool = option(False, "build even what the engine cache has", devices=_CUDA)


@dataclass(frozen=True)
class OpenVinoOptions(Options):
    threads: int = option(0, "inference threads; 0 lets OpenVINO choose", devices=_CPU)


_INSTALL_ORT = "pip install 'onnxruntime-gpu>=1.31'"
# Both distributions fill one folder, so that removing either breaks the other.
_REINSTALL_ORT = f"pip uninstall --yes onnxruntime onnxruntime-gpu && {_INSTALL_ORT}"
_ORT_PACKAGES = ("onnxruntime-gpu", "onnxruntime")
# On a GPU 1.24 is the first that says where each node runs.
_ORT_ON_CUDA = Requirement("onnxruntime", _INSTALL_ORT, devices=_CUDA, least="1.24", packages=_ORT_PACKAGES)
_ORT: Requirement = Requirement("onnxruntime", "pip install 'onnxruntime>=1.22'", least="1.22", packages=_ORT_PACKAGES)
_ANY_ORT = (replace(_ORT, devices=_CPU), _ORT_ON_CUDA)

_PROVIDER_FILE = "onnxruntime/capi/libonnxruntime_providers_{}.so"
_ORT_VERSION = LibraryVersion("onnxruntime_version", _ORT_PACKAGES, from_proof=True)
# libonnxruntime_providers_tensorrt.so of 1.31 needs libnvinfer.so.10 and was compiled against 10.14.1, for CUDA 13.
_INSTALL_TRT_10 = "pip install 'tensorrt-cu13>=10.14,<11' (it fetches its libraries from NVIDIA, several GB)"

_INSTALL_TRT = "pip install 'tensorrt-{cuda}>=10.13' (it fetches its libraries from NVIDIA)"
_INSTALL_RTX = "pip install 'tensorrt-rtx-{cuda}-libs>=1.7' 'tensorrt-rtx-{cuda}-bindings>=1.7'"
CUDA_DRIVERS = {"pycuda": "pycuda", "cuda.bindings": "cuda-bindings"}
"""Modules that give TensorRT's buffers their memory, the preferred one first, with their distributions."""
_CUDA_DRIVER = Requirement("|".join(CUDA_DRIVERS), "pip install cuda-bindings", to_build=False)
_INSTALL_JAX_CUDA = "pip install 'jax[cuda13]>=0.10'"


def _of_one_cuda(product: str, install: str, packages: tuple[str, ...] = ()) -> tuple[Requirement, ...]:
    """Bindings and libraries of one version, and of one CUDA: those of CUDA 12 and of 13 fill the same folders. What
    mends the second begins with removing both, for which `packages` are what there is beside them."""
    parts = {cuda: [f"{product}-{cuda}-{part}" for part in ("bindings", "libs")] for cuda in ("cu12", "cu13")}
    upgrade = install.replace("install", "install --upgrade", 1)
    reinstall = f"pip uninstall --yes {' '.join([*packages, *parts['cu12'], *parts['cu13']])} && {install}"
    same = [Requirement("=".join(names), upgrade, "same version") for names in parts.values()]
    both = [Requirement("|".join(names), reinstall, "only one") for names in zip(*parts.values(), strict=True)]
    return *same, *both


_NO_OPENVINO_ON_CUDA = "OpenVINO has no NVIDIA device"
_OPENVINO_REASONS: Mapping[tuple[Device, str], str] = {
    ("cpu", "fp16"): "OpenVINO's CPU plugin computes an fp16 graph in fp32 or bf16, whichever the processor has",
    ("cpu", "bf16"): "OpenVINO chooses bf16 by an inference hint, not by the graph's type",
    **dict.fromkeys((("cuda", each) for each in PASSES), _NO_OPENVINO_ON_CUDA),
}
_TRT_NEEDS_A_GPU = "TensorRT runs only on NVIDIA GPUs"
_TRT_REASONS: Mapping[tuple[Device, str], str] = dict.fromkeys((("cpu", each) for each in PASSES), _TRT_NEEDS_A_GPU)

_torch_engine = partial(
    Engine,
    library="PyTorch",
    needs="torch",
    precisions={
        ("inference", "cpu"): frozenset({"fp32", "fp16", "bf16", "int8"}),
        ("inference", "cuda"): frozenset({"fp32", "tf32", "fp16", "bf16", "int8", "fp8"}),
        ("training", "cpu"): frozenset({"fp32", "bf16", "amp-bf16"}),
        ("training", "cuda"): frozenset({"fp32", "tf32", "fp16", "bf16", "amp-fp16", "amp-bf16"}),
    },
    reasons={("cpu", "fp8"): "torchao computes fp8 on GPUs only, from compute capability 8.9 on"},
    quantizers=dict.fromkeys(EIGHT_BITS, Requirement("torchao", "pip install 'torchao>=0.18' (3 MB)", least="0.18")),
    version=LibraryVersion("torch_version", ("torch",)),
    uses_cudnn=True,
    deployment=Deployment(
        "engines.pytorch.eager:write_program",
        {
            "cpu": ("# PyTorch's own index has a build for the CPU only, which is far smaller.", "torch{release}"),
            "cuda": ("torch{release}",),
        },
    ),
)
_ort_engine = partial(
    Engine, module="engines.onnx_runtime.session", library="ONNX Runtime", needs="onnx", version=_ORT_VERSION
)
_trt_engine = partial(
    Engine,
    module="engines.tensorrt_engines.session",
    needs="onnx",
    precisions={("inference", "cuda"): frozenset({"fp32", "tf32", "fp16", "bf16", "int8", "native"})},
    reasons=_TRT_REASONS,
    options=TrtOptions,
    int8_graph="int8-operands",
)

ENGINES: dict[str, Engine] = {
    engine.name: engine
    for engine in (
        _torch_engine(
            name="eager",
            module="engines.pytorch.eager",
            summary="PyTorch, one kernel launch an operator",
            layers_are_modules=True,
            requirements=(_TORCH,),
            options=EagerOptions,
            packages=("torchao",),
            reference=Reference(
                {"cpu": "eager-fp32-cpu", "cuda": "eager-fp32-cuda"}, "fp32", EagerOptions(), module="torch"
            ),
        ),
        _torch_engine(
            name="compiled",
            module="engines.pytorch.compiled",
            summary="torch.compile with TorchInductor",
            requirements=(
                _TORCH,
                Requirement("triton", "pip install triton", devices=_CUDA),
                Requirement("g++", "apt-get install g++ (or set CXX to a C++ compiler)", "program", devices=_CPU),
            ),
            options=CompiledOptions,
            packages=("triton", "torchao"),
            compiles=True,
            compile_cache="TORCHINDUCTOR_CACHE_DIR",
        ),
        _ort_engine(
            name="ort",
            summary="ONNX Runtime: CUDA provider on a GPU, CPU provider elsewhere",
            precisions={
                ("inference", "cpu"): frozenset({"fp32", "int8", "native"}),
                ("inference", "cuda"): frozenset({"fp32", "tf32", "fp16", "native"}),
            },
            reasons={
                ("cpu", "fp16"): (
                    "ONNX Runtime's CPU provider has no fp16 convolution: it would insert casts and compute in fp32"
                ),
                ("cpu", "bf16"): "ONNX Runtime's CPU provider has no bf16 convolution",
                ("cuda", "bf16"): "ONNX Runtime's CUDA provider has no bf16 convolution",
                ("cuda", "int8"): (
                    "ONNX Runtime's CUDA provider has no int8 convolution: it would dequantize and compute in float"
                ),
            },
            requirements=(*_ANY_ORT, Requirement(_PROVIDER_FILE.format("cuda"), _REINSTALL_ORT, "file", devices=_CUDA)),
            options=OrtOptions,
            uses_cudnn=True,
            deployment=Deployment(
                "engines.onnx_runtime.session:write_graph",
                {"cpu": ("onnxruntime{release}",), "cuda": ("onnxruntime-gpu[cuda,cudnn]{release}",)},
            ),
            # With all graph optimizations off; on a GPU by one algorithm of cuDNN's, the same every time.
            reference=Reference(
                {"cpu": "ort-cpu-unoptimized", "cuda": "ort-cuda-unoptimized"},
                *("native", OrtOptions(optimize=False, conv_search="DEFAULT")),
                module="onnxruntime",
            ),
        ),
        _ort_engine(
            name="ort-trt",
            summary="ONNX Runtime on TensorRT, its TensorRT provider",
            precisions={("inference", "cuda"): frozenset({"fp32", "tf32", "fp16", "bf16", "int8"})},
            reasons={
                **_TRT_REASONS,
                ("cuda", "native"): (
                    "ONNX Runtime's TensorRT provider is told which types it may use, and does not take them from the "
                    "file: trt does"
                ),
            },
            requirements=(
                _ORT_ON_CUDA,
                *(Requirement(_PROVIDER_FILE.format(each), _REINSTALL_ORT, "file") for each in ("cuda", "tensorrt")),
                Requirement("tensorrt_libs", _INSTALL_TRT_10),
                Requirement("tensorrt_libs/libnvinfer.so.10", _INSTALL_TRT_10, "file"),
            ),
            options=OrtTrtOptions,
            int8_graph="int8-operands",
            packages=("tensorrt-cu13-libs",),
            compiles=True,
        ),
        _ort_engine(
            name="ort-openvino",
            summary="ONNX Runtime on OpenVINO's CPU, by OpenVINO's plugin",
            precisions={("inference", "cpu"): frozenset({"fp32", "int8", "native"})},
            reasons=_OPENVINO_REASONS,
            requirements=(_ORT, Requirement("onnxruntime_ep_openvino", "pip install 'onnxruntime-ep-openvino>=1.8'")),
            options=OrtPackageOptions,
            packages=("onnxruntime-ep-openvino",),
            hardware={"cpu": ("GenuineIntel",)},  # GetSupportedDevices in its ov_factory.cc (1.8).
            deployment=Deployment(
                "engines.onnx_runtime.session:write_graph",
                {"cpu": ("onnxruntime{release}", "onnxruntime-ep-openvino{plugin}")},
            ),
        ),
        _ort_engine(
            name="ort-plugin",
            summary="ONNX Runtime on a plugin that you name: a package, or a library's path",
            precisions={
                ("inference", "cpu"): frozenset({"fp32", "fp16", "bf16", "int8", "native"}),
                ("inference", "cuda"): frozenset({"fp32", "fp16", "bf16", "int8", "native"}),
            },
            reasons={("cuda", "tf32"): _NO_TF32_OF_PLUGINS},
            requirements=_ANY_ORT,
            options=OrtPluginOptions,
        ),
        _ort_engine(
            name="ort-trt-rtx",
            summary="ONNX Runtime on TensorRT for RTX, by NVIDIA's plugin",
            precisions={("inference", "cuda"): frozenset({"fp32", "fp16", "bf16", "int8", "native"})},
            reasons={**_TRT_REASONS, ("cuda", "tf32"): _NO_TF32_OF_PLUGINS},
            requirements=(
                _ORT_ON_CUDA,
                # It brings TensorRT for RTX: 147 MB to load, 315 MB on the disk (0.5.0, for CUDA 13).
                Requirement(
                    "onnxruntime_ep_nv_tensorrt_rtx",
                    "pip install 'onnxruntime-ep-nv-tensorrt-rtx-{cuda}>=0.5' (147 MB)",
                ),
            ),
            options=OrtPackageOptions,
            int8_graph="int8-operands",
            packages=("onnxruntime-ep-nv-tensorrt-rtx-cu13", "onnxruntime-ep-nv-tensorrt-rtx-cu12"),
            hardware={"cuda": _RTX_CARDS[1:]},  # Its README begins with Ampere.
            compiles=True,
        ),
        _trt_engine(
            name="trt",
            library="TensorRT",
            summary="TensorRT: an engine built for this GPU",
            requirements=(
                Requirement("tensorrt", _INSTALL_TRT),
                *_of_one_cuda("tensorrt", _INSTALL_TRT, ("tensorrt", "tensorrt-cu12", "tensorrt-cu13")),
                _CUDA_DRIVER,
            ),
            spellings=("tensorrt", "tensort"),
            version=LibraryVersion("tensorrt_version", ("tensorrt",), from_proof=True),
            packages=tuple(CUDA_DRIVERS.values()),
            builds="with a GPU",
            deployment=Deployment(
                "engines.tensorrt_engines.session:write_engine", {"cuda": ("tensorrt{release}", "cuda-python")}
            ),
        ),
        _trt_engine(
            name="trt-rtx",
            library="TensorRT for RTX",
            summary="TensorRT for RTX: an engine built ahead of time for GeForce and RTX GPUs",
            requirements=(
                Requirement("tensorrt_rtx|tensorrt_rtx_bindings", _INSTALL_RTX),
                Requirement("tensorrt_rtx|tensorrt_rtx_libs", _INSTALL_RTX),
                *_of_one_cuda("tensorrt-rtx", _INSTALL_RTX),
                _CUDA_DRIVER,
            ),
            spellings=("tensorrt-rtx", "tensort-rtx"),
            version=LibraryVersion("tensorrt_version", (), from_proof=True),
            packages=("tensorrt-rtx-cu13-bindings", "tensorrt-rtx-cu13-libs", *CUDA_DRIVERS.values()),
            hardware={"cuda": _RTX_CARDS},
            builds="anywhere",
            deployment=Deployment(
                "engines.tensorrt_engines.session:write_engine",
                {"cuda": ("tensorrt-rtx-cu13-bindings{release}", "tensorrt-rtx-cu13-libs{release}", "cuda-python")},
            ),
        ),
        Engine(
            name="openvino",
            module="engines.openvino_cpu.session",
            library="OpenVINO",
            summary="OpenVINO on the CPU",
            needs="onnx",
            precisions={("inference", "cpu"): frozenset({"fp32", "int8", "native"})},
            reasons=_OPENVINO_REASONS,
            requirements=(Requirement("openvino", "pip install 'openvino>=2026.0'"),),
            options=OpenVinoOptions,
            version=LibraryVersion("openvino_version", ("openvino",)),
            deployment=Deployment("engines.openvino_cpu.session:write_graph", {"cpu": ("openvino{release}",)}),
        ),
        Engine(
            name="jax",
            module="engines.jax_xla.session",
            library="JAX",
            summary="JAX: the torch module's graph, compiled by XLA; timed on the host",
            needs="torch",
            precisions={
                ("inference", "cpu"): frozenset({"fp32"}),
                ("inference", "cuda"): frozenset({"fp32", "tf32", "fp16", "bf16"}),
                ("training", "cpu"): frozenset({"fp32"}),
                ("training", "cuda"): frozenset({"fp32", "tf32", "fp16", "bf16"}),
            },
            requirements=(
                Requirement("jax", "pip install 'jax>=0.10'", devices=_CPU),
                Requirement("jax", _INSTALL_JAX_CUDA, devices=_CUDA),
                Requirement("jax_cuda13_plugin|jax_cuda12_plugin", _INSTALL_JAX_CUDA, devices=_CUDA),
            ),
            spellings=("xla", "flax"),
            version=LibraryVersion("jax_version", ("jax",)),
            packages=("jaxlib", "jax-cuda13-plugin", "jax-cuda12-plugin"),
            compiles=True,
            uses_cudnn=True,
            deployment=Deployment(
                "engines.jax_xla.session:write_program", {"cpu": ("jax{release}",), "cuda": ("jax[cuda13]{release}",)}
            ),
        ),
    )
}

_NO_CUDNN = "there is no cuDNN on the CPU"
_NHWC: Mapping[str, object] = {"channels_last": True}
_GRAPH: Mapping[str, object] = {"cuda_graph": True}
_BENCHMARK: Mapping[str, object] = {"cudnn_benchmark": True}
_ORT_TUNED = {"prefer_nhwc": True, **_GRAPH, "conv_search": "EXHAUSTIVE"}
_NO_NHWC = "NHWC and CUDA graphs are options of ONNX Runtime's CUDA provider"

PRESETS: dict[str, Preset] = {
    preset.name: preset
    for preset in (
        Preset("eager", "eager", "PyTorch eager as it comes", {}, {}, usual=True, base_at=("fp32",)),
        Preset(
            "eager-tuned", "eager", "channels_last, and on a GPU a CUDA graph", _NHWC, {**_NHWC, **_GRAPH}, usual=True
        ),
        Preset("eager-nocudnn", "eager", "PyTorch eager without cuDNN", _NO_CUDNN, {"cudnn": False}),
        Preset("eager-benchmark", "eager", "PyTorch eager with cuDNN's algorithm search", _NO_CUDNN, _BENCHMARK),
        Preset("eager-channels-last", "eager", "channels_last only", _NHWC, _NHWC),
        Preset("compiled", "compiled", "torch.compile, mode reduce-overhead", {}, {}, usual=True),
        # A user's ONNX file, for which there is no eager.
        Preset("ort", "ort", "ONNX Runtime as it comes", {}, {}, usual=True, base_at=("native", "fp32")),
        Preset("ort-tuned", "ort", "NHWC, CUDA graph, exhaustive convolution search", _NO_NHWC, _ORT_TUNED, usual=True),
        Preset("ort-openvino", "ort-openvino", "ONNX Runtime on OpenVINO, by its plugin", {}, _NO_OPENVINO_ON_CUDA),
        Preset("ort-trt", "ort-trt", "ONNX Runtime on TensorRT with a CUDA graph", _TRT_NEEDS_A_GPU, _GRAPH),
        Preset("ort-trt-rtx", "ort-trt-rtx", "ONNX Runtime on TensorRT for RTX, by its plugin", _TRT_NEEDS_A_GPU, {}),
        Preset("trt", "trt", "TensorRT with a CUDA graph", _TRT_NEEDS_A_GPU, _GRAPH, usual=True),
        Preset("trt-rtx", "trt-rtx", "TensorRT for RTX with a CUDA graph", _TRT_NEEDS_A_GPU, _GRAPH, usual=True),
        Preset("openvino", "openvino", "OpenVINO as it comes", {}, _NO_OPENVINO_ON_CUDA, usual=True),
        Preset("jax", "jax", "JAX, compiled by XLA", {}, {}, usual=True),
    )
}


def float_part(precision: str, device: Device) -> str:
    """The precision of what torchao leaves in float: bf16 on a GPU, which is what its fp8 kernels with a scale a row
    write, fp32 on a CPU. Any other precision is its own."""
    return ("bf16" if device == "cuda" else "fp32") if precision in EIGHT_BITS else precision


def is_base(variant: str, precision: str, kind: str) -> bool:
    """Whether speed-ups of a model source of that kind are relative to the preset: PyTorch's of a torch module, ONNX
    Runtime's of a user's .onnx file."""
    preset = PRESETS.get(variant)
    needs = "onnx" if kind == "onnx" else "torch"
    return preset is not None and precision in preset.base_at and ENGINES[preset.engine].needs == needs


def reference_of(kind: str) -> tuple[str, Reference]:
    """The engine that makes the reference outputs of a model source of that kind, and how."""
    needs = "onnx" if kind == "onnx" else "torch"
    return next((e.name, e.reference) for e in ENGINES.values() if e.reference is not None and e.needs == needs)


def known(name: str) -> Engine:
    """The row of that name; an empty one for an engine in the results of another version of this program."""
    nothing = Engine(name=name, module="", library=name, summary="", needs="onnx", precisions={})
    return ENGINES.get(name, nothing)


def unsupported(
    engine: Engine, pass_: str, device: Device, precision: str, kind: str, hardware: str | None = None
) -> str | None:
    """The reason why `engine` cannot do this, from the catalog only; None if it can.

    `kind` is the model source's: a user's ONNX file cannot run in an engine that needs a torch module. `hardware` is
    the GPU's compute capability, such as "9.0", or the CPU's vendor, such as "GenuineIntel", where it is known.
    """
    if engine.needs == "torch" and kind == "onnx":
        return f"{engine.name} needs a torch module; an ONNX file has none"
    if kind == "layer" and precision.startswith("amp-"):
        return f"AMP chooses types by operator; a layer is a single one: ask for {precision.removeprefix('amp-')}"
    if reason := foreign_hardware(engine, device, hardware):
        return reason
    able = {p for (of_pass, on), ps in engine.precisions.items() if of_pass == pass_ and on == device for p in ps}
    if engine.needs == "torch":
        able = able - {"native"}
    if precision in able:
        least = LEAST_CAPABILITY.get(precision)
        if device == "cuda" and least and hardware and tuple(map(int, hardware.split("."))) < least:
            return f"{precision} needs compute capability {least[0]}.{least[1]} or more; this GPU has {hardware}"
        return None
    if (device, pass_) in engine.reasons:
        return engine.reasons[device, pass_]
    if not able:
        passes = sorted({p for p, on in engine.precisions if on == device})
        return f"{engine.name} does {' and '.join(passes) or 'nothing'} on {device}, no {pass_}"
    general = {"tf32": _NO_TF32_ON_CPU} if device == "cpu" else {}
    general |= {"fp8": _NO_FP8_GRAPH} if engine.needs == "onnx" else {}
    if reason := engine.reasons.get((device, precision), general.get(precision)):
        return reason
    return f"{engine.name} has no {precision} {pass_} on {device}; it has {', '.join(sorted(able))}"


def foreign_hardware(engine: Engine, device: Device, hardware: str | None) -> str | None:
    """The reason why `engine` runs on no GPU of this compute capability, or no CPU of this vendor; None if it does, or
    if that is not known."""
    supported = engine.hardware.get(device)
    if supported is None or hardware is None or hardware in supported:
        return None
    if device == "cpu":
        makers = " and ".join(CPU_VENDORS[each] for each in supported)
        return f"{engine.name} runs only on {makers}'s processors; this one is of {CPU_VENDORS.get(hardware, hardware)}"
    return f"{engine.name} does not support this GPU's compute capability {hardware}; it has {', '.join(supported)}"
