"""List the execution providers of ONNX Runtime and their settings."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from engines.base import Job
from engines.options import Device, OrtOptions
from engines.requirements import package_folders

_BUILDER_FLAGS = {"fp16": "trt_fp16_enable", "bf16": "trt_bf16_enable", "int8": "trt_int8_enable"}
_TF32_SWITCH = "NVIDIA_TF32_OVERRIDE"
_TF32_IS_OFF = "Disabling TF32"
"""TensorRT's builder logs this if the switch is off (microsoft/onnxruntime#28177)."""
_TENSORRT = ("libnvinfer.so.10", "libnvinfer_plugin.so.10", "libnvonnxparser.so.10")
# On x86 the CPU provider multiplies uint8 by int8. It shifts a Q/DQ pair from int8 to uint8 if the pair has a single
# reader; where a shifted pair meets an unshifted one, the convolution stays float. The graph gives every reader its own
# pair, but ONNX Runtime would merge them as common subexpressions. Measured (1.31): with merging 20 of ResNet-50's 53
# convolutions stay float; without it none, at half the latency.
_UNMERGED = {"int8": {"optimization.disable_specified_optimizers": "CommonSubexpressionElimination"}}


@dataclass(frozen=True)
class Provider:
    """One provider on one kind of device."""

    name: str
    settings: Callable[[Job[Any]], dict[str, str]]
    """Options for a job; a deployment gets them, too."""
    entries: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """Entries of the session's configuration, by precision."""
    compiles: bool = False
    """Fuses subgraphs into nodes that hide their types; ONNX Runtime cannot write such a graph."""
    on_stream: bool = False
    """Works on torch's current stream (`user_compute_stream`); else every call waits for its results."""
    graph_option: str = ""
    """Option that records CUDA graphs."""
    tf32: Callable[[Mapping[str, str], str], bool] = lambda options, log: False
    """Return True if it may round to TF32, by the session's options and its log."""
    prepare: Callable[[Job[Any]], object] = lambda job: None
    """Runs before the session opens."""
    behind: tuple[Provider, ...] = ()
    """Providers of the remaining nodes, in this order."""


def cuda_settings(precision: str, options: OrtOptions) -> dict[str, str]:
    """Return the CUDA provider's options."""
    return {
        "device_id": "0",
        # With growth by powers of two the arena's slack would count as the engine's memory.
        "arena_extend_strategy": "kSameAsRequested",
        "use_tf32": str(int(precision == "tf32")),
        "cudnn_conv_algo_search": options.conv_search,
        "prefer_nhwc": str(int(options.prefer_nhwc)),
        "enable_cuda_graph": str(int(options.cuda_graph)),
        "fuse_conv_bias": str(int(options.fuse_conv_bias)),
    }


def tensorrt_settings(job: Job[Any]) -> dict[str, str]:
    """Return the TensorRT provider's options.

    Its networks are weakly typed (1.31.1 calls createNetworkV2 with flags 0; microsoft/onnxruntime#18707): flags allow
    the builder a type. Without caches of engines or timings every session builds, as the row says.
    """
    flags = {flag: str(job.precision == precision) for precision, flag in _BUILDER_FLAGS.items()}
    return {
        "device_id": "0",
        **flags,
        "trt_engine_cache_enable": "False",
        "trt_timing_cache_enable": "False",
        "trt_cuda_graph_enable": str(job.options.cuda_graph),
    }


def load_tensorrt(job: Job[Any]) -> None:
    """Load TensorRT's libraries from pip's folder, which the loader does not search; allow TF32 only at tf32.

    TensorRT reads the switch once, when its first library opens (microsoft/onnxruntime#26029).
    """
    os.environ.pop(_TF32_SWITCH, None)
    if job.precision != "tf32":
        os.environ[_TF32_SWITCH] = "0"
    for folder in package_folders("tensorrt_libs"):
        for name in _TENSORRT:
            if (Path(folder) / name).exists():
                ctypes.CDLL(str(Path(folder) / name), ctypes.RTLD_GLOBAL)


_CPU = Provider("CPUExecutionProvider", lambda job: {}, _UNMERGED)
_CUDA = Provider(
    "CUDAExecutionProvider",
    lambda job: cuda_settings(job.precision, job.options),
    on_stream=True,
    graph_option="enable_cuda_graph",
    tf32=lambda options, log: options.get("use_tf32") == "1",
    behind=(_CPU,),
)
PROVIDERS: Mapping[tuple[str, Device], Provider] = {
    ("ort", "cpu"): _CPU,
    ("ort-dynamic", "cpu"): _CPU,
    ("ort", "cuda"): _CUDA,
    ("ort-trt", "cuda"): Provider(
        "TensorrtExecutionProvider",
        tensorrt_settings,
        compiles=True,
        on_stream=True,
        graph_option="trt_cuda_graph_enable",
        tf32=lambda options, log: _TF32_IS_OFF not in log and torch.cuda.get_device_capability() >= (8, 0),
        prepare=load_tensorrt,
        behind=(replace(_CUDA, settings=lambda job: cuda_settings(job.precision, OrtOptions())), _CPU),
    ),
}
"""Providers by engine and device."""
