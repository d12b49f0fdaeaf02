"""The names of TensorRT's releases, read from real modules: 11.4's runtime, TensorRT for RTX, and 8.5 where it is."""

from __future__ import annotations

import functools
import importlib
import importlib.util
import inspect
from types import ModuleType

from engines.trt import library

RTX_ONLY = {"ComputeCapability", "DynamicShapesKernelSpecializationStrategy"}
"""Classes that TensorRT has not."""
OF_8_5 = {
    "NetworkDefinitionCreationFlag.EXPLICIT_BATCH",
    "ICudaEngine.create_execution_context_without_device_memory",
    "ICudaEngine.device_memory_size",
    "IExecutionContext.device_memory",
    "PreviewFeature.DISABLE_EXTERNAL_TACTIC_SOURCES_FOR_CORE_0805",
    *("BuilderFlag.FP16", "BuilderFlag.INT8", "TacticSource.CUBLAS", "TacticSource.JIT_CONVOLUTIONS"),
    *("OnnxParser.parse", "OnnxParser.supports_operator", "IBuilderConfig.set_tactic_sources"),
}
"""Names by which 8.5 alone is called."""


def names_of(module: ModuleType) -> set[str]:
    """List `Class`, `Class.member`, `function`: what a program may write after the module's name."""
    public = {name: value for name, value in vars(module).items() if not name.startswith("_")}
    found = {name for name, value in public.items() if not inspect.ismodule(value)}
    kinds = {name: value for name, value in public.items() if inspect.isclass(value)}
    return found | {f"{name}.{each}" for name, kind in kinds.items() for each in dir(kind) if not each.startswith("_")}


@functools.cache
def versions() -> dict[str, set[str]]:
    """Return the names of each release that is installed.

    TensorRT 11.4's builder and parser are in no wheel of its own: there TensorRT for RTX stands for them.
    """
    rtx = names_of(library("trt-rtx"))
    lean = names_of(importlib.import_module("tensorrt_lean_bindings"))
    built = {name for name in rtx if name.partition(".")[0] not in {*lean, *RTX_ONLY}}
    return {"TensorRT 11.4": lean | built, "TensorRT for RTX": rtx}
