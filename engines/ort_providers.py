"""List the execution providers of ONNX Runtime and their settings, and load those that are plugins."""

from __future__ import annotations

import ctypes
import functools
import importlib
import json
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import onnxruntime
import torch

from engines.base import Job, Unsupported
from engines.openvino_cpu import cpu_properties
from engines.options import Device, OrtOptions, is_path, key_values
from engines.requirements import package_folders
from exporters.errors import text_of

_BUILDER_FLAGS = {"fp16": "trt_fp16_enable", "bf16": "trt_bf16_enable", "int8": "trt_int8_enable"}
_TF32_SWITCH = "NVIDIA_TF32_OVERRIDE"
_TF32_IS_OFF = "Disabling TF32"
"""TensorRT's builder, of the switch (microsoft/onnxruntime#28177)."""
_TENSORRT = ("libnvinfer.so.10", "libnvinfer_plugin.so.10", "libnvonnxparser.so.10")
# On x86 the CPU provider multiplies uint8 by int8. It shifts a Q/DQ pair from int8 to uint8 if it has a single reader,
# and where a shifted pair meets an unshifted one the convolution stays float. In the graph every reader has a pair of
# its own, but as common subexpressions they would be merged. Measured (ONNX Runtime 1.31): with that, 20 of ResNet-50's
# 53 convolutions stay float; without it none, at half the latency.
_UNMERGED = {"int8": {"optimization.disable_specified_optimizers": "CommonSubexpressionElimination"}}
_HARDWARE = {"cpu": "CPU", "cuda": "GPU"}


@dataclass(frozen=True)
class Provider:
    """One provider on one kind of device."""

    name: str
    """ONNX Runtime's; empty for a plugin, whose library says it."""
    settings: Callable[[Job[Any]], dict[str, str]]
    """Its options for a job; a deployment gets them, too."""
    entries: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """Entries of the session's configuration, by precision."""
    library: str | None = None
    """A plugin's package; empty where the job's option `library` names it."""
    compiles: bool = False
    """It makes one node of a whole subgraph, whose types ONNX Runtime does not know, and which it cannot write."""
    on_stream: bool = False
    """It works on torch's current stream (`user_compute_stream`); else a call waits for it."""
    graph_option: str = ""
    """Its option that records CUDA graphs."""
    tf32: Callable[[Mapping[str, str], str], bool] = lambda options, log: False
    """Return True if it may round to TF32, by the session's options and the log since it was opened."""
    prepare: Callable[[Job[Any]], object] = lambda job: None
    """Runs before the session is opened."""
    behind: Provider | None = None
    """The provider that gets the nodes it does not take."""

    def chain(self) -> Iterator[Provider]:
        """Yield the provider, and those behind it."""
        yield self
        if self.behind is not None:
            yield from self.behind.chain()


def cuda_settings(precision: str, options: OrtOptions) -> dict[str, str]:
    """Give the CUDA provider's options."""
    return {
        "device_id": "0",
        # Growth by powers of two would count as the engine's need what is only the arena's slack.
        "arena_extend_strategy": "kSameAsRequested",
        "use_tf32": str(int(precision == "tf32")),
        "cudnn_conv_algo_search": options.conv_search,
        "prefer_nhwc": str(int(options.prefer_nhwc)),
        "enable_cuda_graph": str(int(options.cuda_graph)),
        "fuse_conv_bias": str(int(options.fuse_conv_bias)),
    }


def tensorrt_settings(job: Job[Any]) -> dict[str, str]:
    """Give the TensorRT provider's options.

    Its networks are weakly typed (1.31.1 calls createNetworkV2 with flags 0; microsoft/onnxruntime#18707): the builder
    has to be allowed a type. Neither engines nor timings are kept: each session builds, as the row says.
    """
    flags = {flag: str(job.precision == precision) for precision, flag in _BUILDER_FLAGS.items()}
    return {
        "device_id": "0",
        **flags,
        "trt_engine_cache_enable": "False",
        "trt_timing_cache_enable": "False",
        "trt_cuda_graph_enable": str(job.options.cuda_graph),
    }


def openvino_settings(job: Job[Any]) -> dict[str, str]:
    """Give OpenVINO's plugin the properties that the engine `openvino` sets."""
    properties = {key: str(value) for key, value in cpu_properties(job.options.threads).items()}
    return {"load_config": json.dumps({"CPU": properties})}


def switch_tf32(job: Job[Any]) -> None:
    """Let NVIDIA's libraries round to TF32 at tf32 only, for a provider without an option for it.

    They read the variable once, when the first of them is opened (microsoft/onnxruntime#26029).
    """
    os.environ.pop(_TF32_SWITCH, None)
    if job.precision != "tf32":
        os.environ[_TF32_SWITCH] = "0"


def load_tensorrt(job: Job[Any]) -> None:
    """Load TensorRT's libraries from pip's folder, where the loader does not look, and set TF32's switch."""
    switch_tf32(job)
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
    behind=_CPU,
)
_PLUGIN = Provider("", lambda job: key_values(job.options.provider_options), library="", compiles=True)
PROVIDERS: Mapping[tuple[str, Device], Provider] = {
    ("ort", "cpu"): _CPU,
    ("ort", "cuda"): _CUDA,
    ("ort-trt", "cuda"): Provider(
        "TensorrtExecutionProvider",
        tensorrt_settings,
        compiles=True,
        on_stream=True,
        graph_option="trt_cuda_graph_enable",
        tf32=lambda options, log: _TF32_IS_OFF not in log and torch.cuda.get_device_capability() >= (8, 0),
        prepare=load_tensorrt,
        behind=replace(_CUDA, settings=lambda job: cuda_settings(job.precision, OrtOptions())),
    ),
    ("ort-openvino", "cpu"): Provider("", openvino_settings, library="onnxruntime_ep_openvino", compiles=True),
    ("ort-plugin", "cpu"): _PLUGIN,
    ("ort-plugin", "cuda"): replace(_PLUGIN, prepare=switch_tf32),
    ("ort-trt-rtx", "cuda"): Provider(
        "", lambda job: {}, library="onnxruntime_ep_nv_tensorrt_rtx", compiles=True, prepare=switch_tf32
    ),
}
"""By engine and device. A plugin that comes as a package is one more row here, and one in engines/catalog.py."""


def plugin_device(library: str, device: Device) -> Any:
    """Return the plugin's first OrtEpDevice of that kind. Raises Unsupported."""
    devices, kind = load_plugin(library), _HARDWARE[device]
    if found := [each for each in devices if each.device.type.name == kind]:
        return found[0]
    here = ", ".join(dict.fromkeys(f"{each.ep_name} on {each.device.type.name}" for each in devices)) or "nothing"
    raise Unsupported(f"{library} offers {here} on this machine, and no {kind}")


@functools.cache
def load_plugin(library: str) -> tuple[Any, ...]:
    """Have ONNX Runtime load a plugin, a package's or a file, once a process; return its OrtEpDevices.

    Raises Unsupported. See https://onnxruntime.ai/docs/execution-providers/plugin-ep-libraries/usage.html.
    """
    if not library:
        raise Unsupported("no library is named: give the plugin's package, or the path of its .so, as `library`")
    path, names = (Path(library), []) if is_path(library) else _of_package(library)
    if not path.is_file():
        raise Unsupported(f"library: {path} is not a file: give the plugin's .so")
    before = {(each.ep_name, each.device.type.name) for each in onnxruntime.get_ep_devices()}
    try:
        onnxruntime.register_execution_provider_library(path.stem, str(path))
    except Exception as error:  # Its own classes, which have no other base.
        raise Unsupported(
            f"ONNX Runtime {onnxruntime.__version__} cannot load {path} as a plugin: {text_of(error)}; install a "
            "version for this ONNX Runtime"
        ) from error
    new = [each for each in onnxruntime.get_ep_devices() if (each.ep_name, each.device.type.name) not in before]
    return tuple(each for each in new if not names or each.ep_name in names)


def _of_package(name: str) -> tuple[Path, list[str]]:
    """Return a package's library and, as far as it says them, the names of its providers. Raises Unsupported."""
    try:
        package = importlib.import_module(name)
        return Path(package.get_library_path()), [package.get_ep_name()] if hasattr(package, "get_ep_name") else []
    except Exception as error:
        if isinstance(error, ModuleNotFoundError) and error.name == name.partition(".")[0]:
            raise Unsupported(f"{name} is not installed: pip install {error.name.replace('_', '-')}") from error
        raise Unsupported(f"{name} cannot be imported: {text_of(error)}; give its .so's path as library") from error
