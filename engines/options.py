"""Define a user's choices: devices, passes, precisions, training, and the engines' options."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any, ClassVar, Literal, get_args

Device = Literal["cpu", "cuda"]
Pass = Literal["inference", "training"]
Optimizer = Literal["none", "sgd", "adamw", "sgd-foreach", "adamw-foreach"]
Head = Literal["cross-entropy", "mean-square", "logits"]

DEVICES: tuple[Device, ...] = get_args(Device)
PASSES: tuple[Pass, ...] = get_args(Pass)
OPTIMIZERS: tuple[Optimizer, ...] = get_args(Optimizer)
HEADS: tuple[Head, ...] = get_args(Head)
CUDA: tuple[Device, ...] = ("cuda",)
CPU: tuple[Device, ...] = ("cpu",)
THREADS = (1, 2, 4, 8, 16, 32)
"""Thread counts to try, up to the number of cores."""


@dataclass(frozen=True)
class Precision:
    """A precision and its consequences, with torch's names of types."""

    name: str
    type: str
    """Type of weights and inputs."""
    compute: str
    """Type of convolutions and products in proofs."""
    bits: int
    usual_error: float
    """Largest relative L2 error of outputs without a warning; it also breaks ties.

    int8's error grows with depth: every layer rounds its activations to 8 bits again. Measured with seeded weights and
    calibration, ONNX Runtime on the CPU: GoogLeNet 0.025, AlexNet 0.03, VGG-16 0.04, ResNet-18 0.03, ResNet-50 0.04,
    ResNet-152 0.11, ResNet-200 0.12. fp8 was only emulated on the CPU (e4m3, a scale a row, random weights, 12 blocks):
    BERT 0.04, ViT 0.11."""
    autocast: str | None = None
    """Type of autocast in training, with fp32 weights."""
    least_capability: tuple[int, int] | None = None
    """Minimum compute capability of GPUs (torchao 0.18's check)."""

    @property
    def roof(self) -> str:
        """Precision whose measured peak bounds this one."""
        return self.name.removeprefix("amp-")


PRECISION_TABLE: dict[str, Precision] = {
    row.name: row
    for row in (
        Precision("fp32", "float32", "float32", 32, 1e-4),
        Precision("tf32", "float32", "float32", 32, 1e-2),
        Precision("fp16", "float16", "float16", 16, 2e-2),
        Precision("bf16", "bfloat16", "bfloat16", 16, 1e-1),
        Precision("amp-fp16", "float32", "float16", 32, 2e-2, autocast="float16"),
        Precision("amp-bf16", "float32", "bfloat16", 32, 2e-2, autocast="bfloat16"),
        Precision("int8", "float32", "int8", 8, 2e-1),
        Precision("fp8", "float32", "float8", 8, 2e-1, least_capability=(8, 9)),
        # The types of a user's ONNX file; not selectable in a config.
        Precision("native", "float32", "", 32, 2e-2),
    )
}
PRECISIONS = tuple(PRECISION_TABLE)
EIGHT_BITS = tuple(name for name, precision in PRECISION_TABLE.items() if precision.bits == 8)


def float_part(precision: str, device: Device) -> str:
    """Name the precision of torchao's float parts: bf16 on a GPU, since its fp8 kernels write that; fp32 on a CPU."""
    return ("bf16" if device == "cuda" else "fp32") if precision in EIGHT_BITS else precision


@dataclass(frozen=True)
class Training:
    """Parts of a training iteration besides its forward and backward pass."""

    optimizer: Optimizer = "none"
    head: str = "cross-entropy"
    """One of HEADS, or a user's loss, "package.module:function". "logits" starts the backward pass from a fixed
    gradient of the network's output, without a loss, as convnet-benchmarks did."""
    dropout: bool = False
    """Off by default: with dropout no gradient could be checked."""
    input_gradient: bool = False
    """End the backward pass in the gradient of the network's input, which training does not need."""
    accumulation: int = 1
    """Number of equal parts of the batch, whose gradients add up."""
    frozen: tuple[str, ...] = ()
    """Parameters, or whole modules, that do not train."""


PLAIN = Training()
"""A forward and a backward pass of the loss, and nothing else."""


@dataclass(frozen=True)
class Option:
    """One option of an engine, as written next to its name in the YAML."""

    default: object
    meaning: str
    choices: tuple[str, ...] = ()
    devices: tuple[Device, ...] = DEVICES
    search: tuple[object, ...] = ()
    """Values that --search tries besides the default."""
    builds_long: bool = False
    """These values take minutes to build and are tried last."""


def option(default: Any, meaning: str, **facts: Any) -> Any:
    """Declare a field of Options; its type is its default's, `facts` are further fields of Option."""
    return field(default=default, metadata={"option": Option(default, meaning, **facts)})


@dataclass(frozen=True)
class Options:
    """An engine's option values; engines with options derive a dataclass from this."""

    @classmethod
    def declared(cls) -> dict[str, Option]:
        return {f.name: f.metadata["option"] for f in fields(cls)}


@dataclass(frozen=True)
class EagerOptions(Options):
    channels_last: bool = option(False, "weights and activations in NHWC memory order", search=(True,))
    cuda_graph: bool = option(False, "record one iteration and replay it", devices=CUDA, search=(True,))
    cudnn: bool = option(True, "convolutions by cuDNN; false takes PyTorch's own kernels", devices=CUDA)
    cudnn_benchmark: bool = option(False, "cuDNN times its algorithms first", devices=CUDA, search=(True,))


@dataclass(frozen=True)
class CompiledOptions(Options):
    mode: str = option(
        "reduce-overhead",
        "torch.compile's mode; reduce-overhead records CUDA graphs",
        choices=("default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs"),
        search=("max-autotune",),
        builds_long=True,
    )
    channels_last: bool = option(False, "weights and activations in NHWC memory order", search=(True,))
    cudnn_benchmark: bool = option(False, "cuDNN times its algorithms first", devices=CUDA, search=(True,))
    # Options of eager alone:
    cuda_graph: ClassVar[bool] = False
    cudnn: ClassVar[bool] = True


TorchOptions = EagerOptions | CompiledOptions


@dataclass(frozen=True)
class OrtOptions(Options):
    prefer_nhwc: bool = option(False, "convolutions in NHWC memory order", devices=CUDA, search=(True,))
    cuda_graph: bool = option(False, "record one run and replay it", devices=CUDA, search=(True,))
    conv_search: str = option(
        "EXHAUSTIVE",
        "how cuDNN's convolution algorithm is chosen (the library's default is EXHAUSTIVE)",
        choices=("EXHAUSTIVE", "HEURISTIC", "DEFAULT"),
        devices=CUDA,
        search=("HEURISTIC",),
    )
    fuse_conv_bias: bool = option(False, "bias and convolution in one cuDNN graph", devices=CUDA, search=(True,))
    optimize: bool = option(True, "graph optimizations (fusions, constant folding, layout)")
    threads: int = option(0, "threads inside an operator; 0 is one per core", devices=CPU, search=THREADS)


@dataclass(frozen=True)
class OrtTrtOptions(Options):
    cuda_graph: bool = option(False, "record one run and replay it", devices=CUDA)
    optimize: bool = option(True, "graph optimizations before TensorRT gets its subgraphs")
    threads: ClassVar[int] = 0


@dataclass(frozen=True)
class TrtOptions(Options):
    cuda_graph: bool = option(False, "record one run and replay it", devices=CUDA)
    level: int = option(3, "the builder's optimization level, 0 to 5", devices=CUDA, search=(5,), builds_long=True)
    rebuild: bool = option(False, "build again, whatever the engine cache has", devices=CUDA)


@dataclass(frozen=True)
class OpenVinoOptions(Options):
    threads: int = option(0, "inference threads; 0 lets OpenVINO choose", devices=CPU, search=THREADS)
