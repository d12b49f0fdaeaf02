"""Build an ONNX graph with TensorRT, and keep the serialized engine in the cache.

The library, `tensorrt` or `tensorrt_rtx`, is handed in: nothing here imports it. Networks are strongly typed: the types
are the graph's, and the TF32 flag is the one switch of precision. TensorRT times kernels on the GPU while it builds, so
an engine is for that GPU; TensorRT for RTX needs none, and builds for the compute capabilities that it is given.
"""

from __future__ import annotations

import functools
import json
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

from engines.base import Building, Unsupported, Warning
from engines.catalog import ENGINES, TrtOptions
from engines.requirements import install_command
from engines.tensorrt_engines.build_monitor import check, forget, logged, logger_of, new_monitor, reasons, watch_memory
from engines.tensorrt_engines.timing_cache import attach_timings, keep_timings
from exporters.cache import Cache, check_room, file_sha256
from exporters.inputs import TensorSpec
from exporters.source import ModelError, digest
from exporters.weights import graph_files

Shape = tuple[int, ...]

ALL_TARGETS = "all"
_CURRENT = "current"
"""The library's word for whichever GPU is there."""
_OPERATORS = "https://github.com/onnx/onnx-tensorrt/blob/main/docs/operators.md"
_SHOWN_ERRORS = 5
_NO_KERNELS = r"turing_op_compatibility|Turing \(SM75\)|HW-specific datatypes"
"""What TensorRT for RTX says of types that a target does not have: Turing has no fp32 matrix product and no bf16."""
_ERROR_CHARACTERS = 400
_OLD_DRIVER = re.compile(r"\berror: 35\b|CUDA driver version is insufficient")
"""cudaErrorInsufficientDriver: the library is for a newer CUDA than the driver's."""


@dataclass(frozen=True)
class BuildRequest:
    """What to build."""

    onnx: Path
    precision: str
    """tf32 sets the TF32 flag, every other clears it."""
    shapes: Mapping[str, tuple[Shape, Shape, Shape]]
    """By input: the least, the most likely and the largest shape that the engine is for."""
    options: TrtOptions = field(default_factory=TrtOptions)
    target: str | None = None
    """TensorRT for RTX: "sm89", several with commas between, or "all"."""
    gpu: str | None = None
    """TensorRT: the current GPU's name and compute capability."""


@dataclass(kw_only=True)
class Built(Building):
    """A serialized engine in the cache. Seconds and peaks (the host's above its start) are of its build."""

    path: Path
    warnings: tuple[Warning, ...] = ()


def batch_shapes(specs: Sequence[TensorSpec], batches: tuple[int, int, int]) -> dict[str, tuple[Shape, Shape, Shape]]:
    """Every input's shape at the least, the most likely and the largest batch: an optimization profile.

    Dimensions that the job varies go from their least to their largest size, for which the engine is optimized, so that
    one engine serves all shapes.
    """
    least, likely, largest = batches
    return {
        s.name: (s.end(least, largest=False), s.end(likely, largest=True), s.end(largest, largest=True)) for s in specs
    }


def built_for(library: Any, gpu: str, capability: str) -> dict[str, str]:
    """`BuildRequest`'s `gpu` or `target` for a GPU: the same one for building ahead of time and for running. TensorRT
    for RTX builds for a compute capability, so that an engine built elsewhere for "sm89" is found here."""
    if targets(library):
        return {"target": f"sm{capability.replace('.', '')}"}
    return {"gpu": f"{gpu}, compute capability {capability}"}


def build_engine(
    library: Any, request: BuildRequest, cache: Cache, progress: Callable[[str], None], rebuild: bool = False
) -> Built:
    """The engine from the cache, or built now; `rebuild` builds in any case, with the timings of earlier builds.

    `progress` is called a few times a second. Raises ModelError for a graph that the library's parser refuses (with
    node, operator and reason), Unsupported for a target that it does not have, RuntimeError where the builder fails.
    """
    warnings: list[Warning] = []

    def produce(path: Path) -> None:
        warnings.extend(_build(library, request, cache, progress, path))

    def damaged(path: Path) -> None:
        warnings.append(Warning("engine-cache", "a damaged or foreign file was built again"))

    path, cached = cache.entry("engines", engine_key(library, request), ".engine", produce, rebuild, damaged)
    record = json.loads(record_of(path).read_text())
    return Built(path=path, cached=cached, warnings=tuple(warnings), **record)


def record_of(path: Path) -> Path:
    return path.with_suffix(".build")


def engine_key(library: Any, request: BuildRequest) -> str:
    """Everything that the engine depends on. Raises ModelError for an ONNX file that cannot be read."""
    return digest(
        {
            "graph": [file_sha256(file) for file in graph_files(request.onnx).values() if file.is_file()],
            "library": _versions(library),
            "device": request.target or request.gpu,
            "shapes": {name: list(shapes) for name, shapes in request.shapes.items()},
            "options": [request.precision, request.options.optimization_level, request.options.workspace_mib],
            "code": file_sha256(Path(__file__)),
        }
    )


def _versions(library: Any) -> list[str]:
    """Of the bindings, and of the library behind them as far as it tells: by its parser and by its package."""
    rtx = bool(targets(library))
    libraries = [f"{name} {version}" for name, version in _installed_libraries().items() if ("rtx" in name) == rtx]
    bindings = f"{library.__name__} {library.__version__} parser {library.get_nv_onnx_parser_version()}"
    return [bindings, *sorted(libraries)]


@functools.cache
def _installed_libraries() -> dict[str, str]:
    """By name the versions of the packages with TensorRT's libraries, of all that are installed."""
    names = ((str(own.metadata["Name"]).lower().replace("_", "-"), own) for own in distributions())
    return {name: own.version for name, own in names if re.match(r"tensorrt.*-libs", name)}


def _build(
    library: Any, request: BuildRequest, cache: Cache, progress: Callable[[str], None], path: Path
) -> list[Warning]:
    """Build and serialize to `path`, and write the rest of `Built` next to it."""
    # The weights are about as large as in the graph, whose int8 ones are still in fp32.
    weights = sum(file.stat().st_size for file in graph_files(request.onnx).values())
    check_room(path, weights / (4 if request.precision == "int8" else 1))
    started, warnings = time.perf_counter(), list[Warning]()
    logger, monitor = logger_of(library), new_monitor(library, progress)
    # TensorRT for RTX measures nothing, and with a timing cache it would look for a GPU.
    timings = None if targets(library) else cache.root / "timings" / digest({"of": [_versions(library), request.gpu]})
    with watch_memory(device=request.target is None) as peaks:
        builder = open_with_plugins(library, library.Builder, "builder")
        # TensorRT 10 needs the flag; 11 and TensorRT for RTX know no other networks and ignore it.
        flag = getattr(library.NetworkDefinitionCreationFlag, "STRONGLY_TYPED", None)
        network = builder.create_network(0 if flag is None else 1 << int(flag))
        # Kept until the engine is built: the network's weights lie in it.
        parser = library.OnnxParser(network, logger)
        _parse(library, parser, request.onnx)
        config = builder.create_builder_config()
        _configure(library, config, request)
        _add_profile(builder, network, config, request)
        if timings is not None:
            warnings += attach_timings(config, timings)
        config.progress_monitor = monitor
        plan = builder.build_serialized_network(network, config)
        check(logger)
        check(monitor)
        if plan is None:
            raise _failure(library, request, logger)
        forget(logger)
        seconds = time.perf_counter() - started
        if timings is not None:
            warnings += keep_timings(config, timings)
        path.write_bytes(plan)
    # A file of its own in the cache's entry: the next run needs it too.
    record = {"seconds": seconds, "peak_host_mib": peaks.host_mib, "peak_device_mib": peaks.device_mib}
    record_of(path).write_text(json.dumps(record))
    return warnings


def _failure(library: Any, request: BuildRequest, logger: Any) -> Exception:
    """What to raise where the builder gives no engine."""
    why = logged(logger, 2 * _ERROR_CHARACTERS)
    if re.search(_NO_KERNELS, " ".join(logger.errors)):
        return Unsupported(f"{product(library)} has no kernels of this graph for {request.target}: {why}")
    return RuntimeError(f"{product(library)} cannot build {request.onnx.name}: {why}")


def _parse(library: Any, parser: Any, onnx: Path) -> None:
    # From the file, so that data next to it is read.
    if parser.parse_from_file(str(onnx)):
        return
    refusals = [parser.get_error(number) for number in range(parser.num_errors)]
    shown = [_explain(refusal) for refusal in refusals[:_SHOWN_ERRORS]]
    more = [f"and {len(refusals) - _SHOWN_ERRORS} more"] if len(refusals) > _SHOWN_ERRORS else []
    why = "; ".join([*shown, *more])
    raise ModelError(f"{onnx}: refused by {product(library)}'s ONNX parser: {why}. What it takes: {_OPERATORS}")


def _explain(refusal: Any) -> str:
    """One of the parser's errors: the node, its operator, and why."""
    why = reasons([refusal.desc()], _ERROR_CHARACTERS)
    if refusal.node() < 0:  # It is about the file.
        return why
    return f"node {refusal.node()} '{refusal.node_name()}' ({refusal.node_operator()}): {why}"


def _configure(library: Any, config: Any, request: BuildRequest) -> None:
    config.profiling_verbosity = library.ProfilingVerbosity.DETAILED
    if request.precision == "tf32":
        config.set_flag(library.BuilderFlag.TF32)
    else:
        config.clear_flag(library.BuilderFlag.TF32)
    own_memory = getattr(library.BuilderFlag, "REQUIRE_USER_ALLOCATION", None)
    if own_memory is not None:  # Without it TensorRT for RTX allocates while it runs: no CUDA graph could hold that.
        config.set_flag(own_memory)
    if any(least != largest for least, _, largest in request.shapes.values()):
        # Else a context wants the largest batch's memory at every batch (NvInfer.h, PreviewFeature).
        config.set_preview_feature(library.PreviewFeature.RUNTIME_ACTIVATION_RESIZE_10_10, True)
    if request.options.workspace_mib:
        config.set_memory_pool_limit(library.MemoryPoolType.WORKSPACE, request.options.workspace_mib * 2**20)
    if (level := request.options.optimization_level) >= 0:
        config.builder_optimization_level = level
        if config.builder_optimization_level != level:  # It is clipped in silence.
            raise Unsupported(f"optimization_level {level}: {product(library)} has 0 to 5")
    if targets(library):
        _set_targets(library, config, request)
    elif request.target is not None:
        raise Unsupported(f"{product(library)} builds only for the GPU that it runs on; leave out the target")


def _set_targets(library: Any, config: Any, request: BuildRequest) -> None:
    known = targets(library)
    valid = f"valid: {', '.join([*known, ALL_TARGETS])}"
    if request.target is None:
        raise Unsupported(f"{product(library)} needs a target; {valid}")
    words = list(dict.fromkeys(request.target.split(",")))
    unknown = [word for word in words if word not in (*known, ALL_TARGETS, _CURRENT)]
    if unknown:
        raise Unsupported(f"{product(library)} has no target '{unknown[0]}'; {valid}")
    requested = list(known) if ALL_TARGETS in words else words
    assert hasattr(library, "ComputeCapability")
    assert hasattr(config, "num_compute_capabilities") and hasattr(config, "set_compute_capability")
    config.num_compute_capabilities = len(requested)
    for number, word in enumerate(requested):
        config.set_compute_capability(library.ComputeCapability.__members__[word.upper()], number)


def _add_profile(builder: Any, network: Any, config: Any, request: BuildRequest) -> None:
    """One optimization profile with the shapes of every input that is not static."""
    profile, dynamic = builder.create_optimization_profile(), False
    for tensor in [network.get_input(number) for number in range(network.num_inputs)]:
        if tensor.is_shape_tensor:
            raise Unsupported(f"input '{tensor.name}' is a shape, of which a profile would need the values")
        sizes = tuple(tensor.shape)
        shapes = request.shapes.get(tensor.name, (sizes,) * 3)
        if any(not _fits(shape, sizes) for shape in shapes):
            shown = " or ".join(map(str, dict.fromkeys(shapes)))
            raise ModelError(f"{request.onnx}: input '{tensor.name}' is of shape {sizes} (-1 is free), not {shown}")
        if -1 in sizes:
            profile.set_shape(tensor.name, *shapes)
            dynamic = True
    if dynamic and config.add_optimization_profile(profile) < 0:
        raise RuntimeError(f"{request.onnx.name}: no optimization profile can be made of {dict(request.shapes)}")


def _fits(shape: Shape, sizes: Shape) -> bool:
    """Whether `shape`, which leaves nothing free, is one of an input of these sizes."""
    return len(shape) == len(sizes) and all(s in (-1, own) and own >= 0 for own, s in zip(shape, sizes, strict=True))


def open_with_plugins(library: Any, make: Callable[[Any], Any], what: str) -> Any:
    """`make`, which is the library's Builder or Runtime, called with the process's logger.

    TensorRT's own plugins are registered first: graphs and engines may have operators of theirs. (A second call
    registers nothing again: github.com/NVIDIA/TensorRT, plugin/api/inferPlugin.cpp.) Raises Unsupported for a driver
    that is too old for the library, RuntimeError with what the library logged.
    """
    logger = logger_of(library)
    forget(logger)
    library.init_libnvinfer_plugins(logger, "")
    try:
        return make(logger)
    except Exception as error:
        # Without a driver the bindings raise a TypeError about a factory that returned a null pointer.
        why = logged(logger, _ERROR_CHARACTERS, str(error))
        if _OLD_DRIVER.search(" ".join(logger.errors)):
            requirements = ENGINES["trt-rtx" if targets(library) else "trt"].requirements
            reinstall = next(r.install for r in requirements if r.kind == "only one")  # It removes the library first.
            raise Unsupported(
                f"{product(library)} is for a newer CUDA than this driver's: update the driver, or install the one for "
                f"torch's CUDA: {install_command(reinstall)}"
            ) from error
        raise RuntimeError(f"{product(library)} could not open its {what}: {why}") from error
    finally:
        check(logger)


def targets(library: Any) -> tuple[str, ...]:
    """The compute capabilities that the library can build for without such a GPU: "sm75", …; none for TensorRT."""
    known = getattr(library, "ComputeCapability", None)
    return () if known is None else tuple(name.lower() for name in known.__members__ if name.startswith("SM"))


def product(library: Any) -> str:
    """The library's name and version, as errors say it."""
    return f"TensorRT{' for RTX' if targets(library) else ''} {library.__version__}"
