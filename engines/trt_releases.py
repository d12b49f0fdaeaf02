"""Hide the API differences between TensorRT 8.5 to 11 and TensorRT for RTX.

8.5 builds weakly typed networks, whose types the builder chooses within its flags; from 10 on a network has its graph's
types. The library, `tensorrt` or `tensorrt_rtx`, is an argument. TensorRT 8.5.3.1 has run on an H200; tests only
compare the names of 10.13 to 11.4.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from engines.base import Unsupported
from engines.trt_reports import new_monitor

USUAL_LEVEL = 3
"""Default optimization level of the builder."""
_FLAGS = {"fp32": (), "tf32": ("TF32",), "fp16": ("FP16",), "int8": ("INT8", "FP16")}
"""Builder flags of a weakly typed network. At int8, layers without quantized operands may run in fp16; a graph that
quantizes nothing goes without INT8, which would ask for a calibrator."""


def targets(library: Any) -> tuple[str, ...]:
    """List the compute capabilities that TensorRT for RTX builds for ("sm75"); empty for TensorRT."""
    capabilities = getattr(library, "ComputeCapability", None)
    if capabilities is None:
        return ()
    return tuple(name.lower() for name in capabilities.__members__ if name.startswith("SM"))


def product(library: Any) -> str:
    """Name the library and its version for errors."""
    return f"TensorRT{' for RTX' if targets(library) else ''} {library.__version__}"


def is_weakly_typed(library: Any) -> bool:
    """Return True if the release's networks leave types to the builder, like TensorRT 8."""
    return not hasattr(library.NetworkDefinitionCreationFlag, "STRONGLY_TYPED")


def create_network(library: Any, builder: Any) -> Any:
    """Make a network with a batch dimension and, if the release can, its graph's types."""
    flags = library.NetworkDefinitionCreationFlag
    flag = flags.EXPLICIT_BATCH if is_weakly_typed(library) else flags.STRONGLY_TYPED
    return builder.create_network(1 << int(flag))


def configure(library: Any, config: Any, precision: str, types: frozenset[str], level: int) -> None:
    """Set the builder's flags and level.

    `types` are the graph's, which choose a weakly typed network's flags at `native` and int8. Raises Unsupported for a
    precision or a level that the release lacks.
    """
    config.profiling_verbosity = library.ProfilingVerbosity.DETAILED
    if hasattr(config, "builder_optimization_level"):
        config.builder_optimization_level = level
    elif level != USUAL_LEVEL:
        raise Unsupported(f"{product(library)} has no optimization levels; leave out `level`")
    config.clear_flag(library.BuilderFlag.TF32)  # On by default.
    flags: tuple[str, ...] = ("TF32",) if precision == "tf32" else ()
    if is_weakly_typed(library):
        flags = _weak_flags(library, precision, types)
        _without_external_tactics(library, config)
    for flag in flags:
        config.set_flag(getattr(library.BuilderFlag, flag))


def _weak_flags(library: Any, precision: str, types: frozenset[str]) -> tuple[str, ...]:
    if precision != "native":
        if precision not in _FLAGS:
            raise Unsupported(f"{product(library)} has no {precision}; it has {', '.join(_FLAGS)}")
        return tuple(flag for flag in _FLAGS[precision] if flag != "INT8" or "int8" in types)
    return tuple(flag for name, flag in (("float16", "FP16"), ("int8", "INT8")) if name in types)


def _without_external_tactics(library: Any, config: Any) -> None:
    """Leave out cuBLAS's and cuDNN's kernels, like TensorRT 10 and later."""
    sources = [name for name in library.TacticSource.__members__ if not name.startswith(("CUBLAS", "CUDNN"))]
    config.set_tactic_sources(sum(1 << int(getattr(library.TacticSource, name)) for name in sources))
    feature = getattr(library.PreviewFeature, "DISABLE_EXTERNAL_TACTIC_SOURCES_FOR_CORE_0805", None)
    if feature is not None:  # Without it the core goes on loading both libraries.
        config.set_preview_feature(feature, True)


def resize_memory_with_shapes(library: Any, config: Any) -> None:
    """Fit a context's memory to its shapes instead of the largest ones (NvInfer.h, PreviewFeature)."""
    feature = getattr(library.PreviewFeature, "RUNTIME_ACTIVATION_RESIZE_10_10", None)
    if feature is not None:
        config.set_preview_feature(feature, True)


def watch(library: Any, config: Any, report: Callable[[str], None]) -> None:
    """Report the build's steps, if the release can."""
    if hasattr(library, "IProgressMonitor"):
        config.progress_monitor = new_monitor(library, report)


def place(refusal: Any, nodes: Sequence[Any]) -> str:
    """Name the refused node among the graph's `nodes`; return "" if the parser refused the whole graph."""
    number = refusal.node()
    if number < 0:
        return ""
    if hasattr(refusal, "node_operator"):
        return f"node {number} '{refusal.node_name()}' ({refusal.node_operator()}): "
    return f"node {number} '{nodes[number].name}' ({nodes[number].op_type}): "


def create_context(library: Any, engine: Any) -> tuple[Any, Any]:
    """Return an execution context without memory, or None, and its configuration, which must outlive it.

    TensorRT for RTX compiles its kernels at once: by default it runs fallback kernels, which a CUDA graph would record,
    until others are compiled.
    """
    strategies = getattr(library, "ExecutionContextAllocationStrategy", None)
    if strategies is None:
        return engine.create_execution_context_without_device_memory(), None
    kernels = getattr(library, "DynamicShapesKernelSpecializationStrategy", None)
    if kernels is None:
        return engine.create_execution_context(strategies.USER_MANAGED), None
    runtime_config = engine.create_runtime_config()
    runtime_config.set_execution_context_allocation_strategy(strategies.USER_MANAGED)
    assert hasattr(runtime_config, "dynamic_shapes_kernel_specialization_strategy")
    runtime_config.dynamic_shapes_kernel_specialization_strategy = kernels.EAGER
    return engine.create_execution_context(runtime_config), runtime_config


def scratch_bytes(engine: Any, context: Any) -> int:
    """Return the bytes for activations and scratch of a context with all shapes set."""
    if not hasattr(engine, "device_memory_size_v2"):
        return int(engine.device_memory_size)
    # 0 may also mean that the library does not know, and it refuses a context that lacks memory.
    return int(context.update_device_memory_size_for_shapes() or engine.device_memory_size_v2)


def give_scratch(context: Any, address: int, size: int) -> None:
    """Give a context its memory; TensorRT only logs a misfit."""
    if hasattr(context, "set_device_memory"):
        context.set_device_memory(address, size)
    else:
        context.device_memory = address


def weight_bytes(library: Any, engine: Any) -> int | None:
    """Return the size of the engine's weights, or None in releases without it."""
    statistics = getattr(library, "EngineStat", None)
    if statistics is None or not hasattr(engine, "get_engine_stat"):
        return None
    return int(engine.get_engine_stat(statistics.TOTAL_WEIGHTS_SIZE))


def auxiliary_streams(engine: Any) -> int:
    """Return the number of further streams that the engine uses; TensorRT 8.5 has none."""
    return int(getattr(engine, "num_aux_streams", 0))
