"""Build an ONNX graph with TensorRT, and keep the serialized engine in the cache.

The library, `tensorrt` or `tensorrt_rtx`, is an argument and never imported. TensorRT times kernels on the GPU while it
builds, so an engine is for that GPU; TensorRT for RTX needs no GPU, and builds for a list of compute capabilities.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engines.base import Building, Unsupported, Warning
from engines.catalog import ENGINES
from engines.trt_releases import (
    USUAL_LEVEL,
    configure,
    create_network,
    is_weakly_typed,
    place,
    product,
    resize_memory_with_shapes,
    targets,
    watch,
)
from engines.trt_reports import forget, joined, logged, logger_of
from exporters.cache import Cache, check_room, code_of, file_sha256
from exporters.onnx_files import graph_files, types_of
from exporters.opset17 import lowered
from exporters.source import ModelError, TensorSpec, digest

Shape = tuple[int, ...]

ALL_TARGETS = "all"
_CURRENT = "current"
"""The library's name for the present GPU."""
_OPERATORS = "https://github.com/onnx/onnx-tensorrt/blob/main/docs/operators.md"
_SHOWN_ERRORS = 5
_NO_KERNELS = r"turing_op_compatibility|Turing \(SM75\)|HW-specific datatypes"
"""TensorRT for RTX's errors about missing types: Turing has no fp32 matrix product and no bf16."""
_ERROR_CHARACTERS = 400
_OLD_DRIVER = re.compile(r"\berror: 35\b|CUDA driver version is insufficient")
"""cudaErrorInsufficientDriver: the library is for a newer CUDA than the driver's."""


@dataclass(frozen=True)
class BuildRequest:
    """A graph with its precision, shapes and target."""

    onnx: Path
    precision: str
    """Sets builder flags at tf32 and, in TensorRT 8, whose networks are weakly typed, at every precision."""
    shapes: Mapping[str, tuple[Shape, Shape, Shape]]
    """Smallest, most likely and largest shape of each input."""
    target: str | None = None
    """TensorRT for RTX: "sm89", several with commas between, or "all"."""
    gpu: str | None = None
    """TensorRT: the current GPU's name and compute capability."""
    level: int = USUAL_LEVEL


@dataclass(kw_only=True)
class Built(Building):
    """A serialized engine in the cache."""

    path: Path
    warnings: tuple[Warning, ...] = ()


def batch_shapes(specs: Sequence[TensorSpec], batch: int) -> dict[str, tuple[Shape, Shape, Shape]]:
    """Return every input's smallest, most likely and largest shape; the largest one counts as most likely."""
    largest = {spec.name: spec.end(batch, largest=True) for spec in specs}
    return {spec.name: (spec.end(batch, largest=False), largest[spec.name], largest[spec.name]) for spec in specs}


def built_for(library: Any, gpu: str, capability: str) -> dict[str, str]:
    """Return `BuildRequest`'s `target` (TensorRT for RTX) or `gpu` (TensorRT) for a GPU."""
    if targets(library):
        return {"target": f"sm{capability.replace('.', '')}"}
    return {"gpu": f"{gpu}, compute capability {capability}"}


def build_engine(
    library: Any, request: BuildRequest, cache: Cache, progress: Callable[[str], None], rebuild: bool = False
) -> Built:
    """Return the engine from the cache, or build it; `rebuild` builds in any case.

    `progress` is called a few times a second. Raises Unsupported for an unknown target and for a graph that the parser
    refuses (with node, operator and reason), ModelError for computed axes and misfit inputs, RuntimeError if the
    builder fails.
    """
    warnings: list[Warning] = []

    def produce(path: Path) -> None:
        _build(library, request, progress, path)

    def damaged(path: Path) -> None:
        warnings.append(Warning("engine-cache", "a damaged or foreign file was built again"))

    path, cached = cache.entry("engines", engine_key(library, request), ".engine", produce, rebuild, damaged)
    record = json.loads(path.with_suffix(".build").read_text())
    return Built(path=path, cached=cached, warnings=tuple(warnings), **record)


def engine_key(library: Any, request: BuildRequest) -> str:
    """Digest everything that the engine depends on. Raises ModelError for an unreadable ONNX file."""
    return digest(
        {
            "graph": [file_sha256(file) for file in graph_files(request.onnx).values() if file.is_file()],
            "library": f"{library.__name__} {library.__version__} parser {library.get_nv_onnx_parser_version()}",
            "device": request.target or request.gpu,
            "shapes": {name: list(shapes) for name, shapes in request.shapes.items()},
            "precision": request.precision,
            "level": request.level,
            "code": code_of("opset17.py", "../engines/trt_build.py", "../engines/trt_releases.py"),
        }
    )


def _build(library: Any, request: BuildRequest, progress: Callable[[str], None], path: Path) -> None:
    """Build and serialize to `path`, and write the rest of `Built` next to it."""
    # The weights are about as large as in the graph, which holds int8's in fp32.
    weights = sum(file.stat().st_size for file in graph_files(request.onnx).values())
    check_room(path, weights / (4 if request.precision == "int8" else 1))
    started = time.perf_counter()
    logger = logger_of(library)
    builder = open_with_plugins(library, library.Builder, "builder")
    config = builder.create_builder_config()
    _configure(library, config, request)  # First: a precision missing in the release is no fault of the graph.
    network = create_network(library, builder)
    # It holds the network's weights until the engine is built.
    parser = open_with_plugins(library, lambda logger: library.OnnxParser(network, logger), "parser")
    _parse(library, parser, request.onnx)
    _add_profile(builder, network, config, request)
    watch(library, config, progress)
    plan = builder.build_serialized_network(network, config)
    if plan is None:
        why = logged(logger, 2 * _ERROR_CHARACTERS)
        error = Unsupported if re.search(_NO_KERNELS, " ".join(logger.errors)) else RuntimeError
        place = request.target or "this GPU"
        raise error(f"{product(library)} cannot build {request.onnx.name} for {place}: {why}")
    forget(logger)
    seconds = time.perf_counter() - started
    path.write_bytes(plan)
    # A file of its own in the cache's entry: the next run needs it too.
    path.with_suffix(".build").write_text(json.dumps({"seconds": seconds}))


def _parse(library: Any, parser: Any, onnx: Path) -> None:
    nodes: Sequence[Any] = ()
    if is_weakly_typed(library):
        model = lowered(onnx, parser.supports_operator)
        nodes = model.graph.node
        parsed = parser.parse(model.SerializeToString(), str(onnx))
    else:  # From the file, so that data next to it is read.
        parsed = parser.parse_from_file(str(onnx))
    if parsed:
        return
    errors = [parser.get_error(number) for number in range(min(parser.num_errors, _SHOWN_ERRORS))]
    why = "; ".join(place(refusal, nodes) + joined([refusal.desc()], _ERROR_CHARACTERS) for refusal in errors)
    raise Unsupported(f"{onnx}: refused by {product(library)}'s ONNX parser: {why}. Supported operators: {_OPERATORS}")


def _configure(library: Any, config: Any, request: BuildRequest) -> None:
    types = types_of(request.onnx) if request.precision in ("native", "int8") else frozenset()
    configure(library, config, request.precision, types, request.level)
    own_memory = getattr(library.BuilderFlag, "REQUIRE_USER_ALLOCATION", None)
    if own_memory is not None:  # Without it TensorRT for RTX allocates while it runs: no CUDA graph could hold that.
        config.set_flag(own_memory)
    if any(smallest != largest for smallest, _, largest in request.shapes.values()):
        resize_memory_with_shapes(library, config)
    if targets(library):
        _set_targets(library, config, request)
    elif request.target is not None:
        raise Unsupported(f"{product(library)} builds only for the GPU that it runs on; leave out the target")


def _set_targets(library: Any, config: Any, request: BuildRequest) -> None:
    supported = targets(library)
    words = list(dict.fromkeys((request.target or "").split(",")))
    if unknown := [word for word in words if word not in (*supported, ALL_TARGETS, _CURRENT)]:
        valid = ", ".join([*supported, ALL_TARGETS])
        raise Unsupported(f"{product(library)} has no target '{unknown[0]}'; valid: {valid}")
    requested = list(supported) if ALL_TARGETS in words else words
    assert hasattr(library, "ComputeCapability")
    assert hasattr(config, "num_compute_capabilities") and hasattr(config, "set_compute_capability")
    config.num_compute_capabilities = len(requested)
    for number, word in enumerate(requested):
        config.set_compute_capability(library.ComputeCapability.__members__[word.upper()], number)


def _add_profile(builder: Any, network: Any, config: Any, request: BuildRequest) -> None:
    """Add one optimization profile with the shapes of all dynamic inputs."""
    profile, dynamic = builder.create_optimization_profile(), False
    for tensor in [network.get_input(number) for number in range(network.num_inputs)]:
        if tensor.is_shape_tensor:
            raise Unsupported(f"input '{tensor.name}' is a shape tensor; a profile would need its values")
        sizes = tuple(tensor.shape)
        shapes = request.shapes.get(tensor.name, (sizes,) * 3)
        static = {(number, size) for number, size in enumerate(sizes) if size >= 0}
        if any(len(s) != len(sizes) or min(s, default=0) < 0 or static - set(enumerate(s)) for s in shapes):
            raise ModelError(f"{request.onnx}: input '{tensor.name}' is of shape {sizes} (-1 is free), not {shapes[0]}")
        if -1 in sizes:
            profile.set_shape(tensor.name, *shapes)
            dynamic = True
    if dynamic and config.add_optimization_profile(profile) < 0:
        raise RuntimeError(f"{request.onnx.name}: no optimization profile can be made of {dict(request.shapes)}")


def open_with_plugins(library: Any, make: Callable[[Any], Any], role: str) -> Any:
    """Call `make`, the library's Builder or Runtime, with the process's logger and TensorRT's own plugins registered.

    Registering them again changes nothing (github.com/NVIDIA/TensorRT, plugin/api/inferPlugin.cpp). Raises Unsupported
    for a driver too old for the library, RuntimeError with the library's log.
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
            install = ENGINES["trt-rtx" if targets(library) else "trt"].requirements[0].install
            raise Unsupported(
                f"{product(library)} is for a newer CUDA than this driver's: update the driver, or remove the library "
                f"and install the one for torch's CUDA: {install}"
            ) from error
        raise RuntimeError(f"{product(library)} could not open its {role}: {why}") from error
