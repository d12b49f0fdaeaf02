"""Read what TensorRT reports: its log, a build's progress, and an engine's layers.

The library calls the logger and the monitor, sometimes from its own threads, so neither may raise.
"""

from __future__ import annotations

import contextlib
import json
import re
import sys
import time
from collections import Counter, deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from exporters.errors import cut

_PROGRESS_SECONDS = 0.3
_KEPT_ERRORS = 20
_SKIPPED = re.compile(r"skipping tactic|insuff?icient to use tactic", re.IGNORECASE)
"""Messages about a kernel that the builder tried and skipped, which is no failure."""
_NO_MEMORY = re.compile(r"out ?of ?memory|insufficient memory|allocat", re.IGNORECASE)
_NO_KERNEL_LEFT = "Could not find any implementation"
"""Logged if all kernels of a layer were skipped; the reasons for skipping then explain the failure."""
_NO_DRIVER = "catchCudaError"
"""Part of messages that follow the real error on a machine without a driver."""
_LOGGERS: list[tuple[Any, Any]] = []

_TYPES = {
    **dict.fromkeys(("float", "fp32", "float32"), "float32"),
    **dict.fromkeys(("half", "fp16", "float16"), "float16"),
    **dict.fromkeys(("bfloat16", "bf16"), "bfloat16"),
    **dict.fromkeys(("double", "fp64"), "float64"),
    "fp8": "float8",
    "fp4": "float4",
    **{name: name for name in ("int4", "int8", "uint8", "int32", "int64", "bool")},
}
"""The inspector's words for types, as in "Channel major FP16 format where channel % 8 == 0" or in plain "Half"."""
_OPERANDS = {
    # The single letters are cuBLAS's: nvjet_hsh_128x64_…, nvjet_sm100_tst_…, nvjet_qqtst_…
    **dict.fromkeys(("f16", "h"), "float16"),
    **dict.fromkeys(("bf16", "t"), "bfloat16"),
    **dict.fromkeys(("f32", "tf32", "s"), "float32"),
    **dict.fromkeys(("i8", "int8"), "int8"),
    **dict.fromkeys(("e4m3", "e5m2", "q"), "float8"),
    "f64": "float64",
}
_WORD = "tf32|f16|bf16|f32|f64|i8|i32|int8|e4m3|e5m2"
_TACTICS = tuple(
    re.compile(pattern.replace("T", _WORD))
    for pattern in (
        r"(?<![a-z0-9])(?:T)(?:T)_(T)(?:T)(?![a-z0-9])",
        r"(?<![a-z0-9])(T)_(?:T)_(?:T)(?![a-z0-9])",
        r"(?<![a-z0-9])(T)\1(?![a-z0-9])",
        r"^nvjet_(?:sm\d+_)?([htsq])",
    )
)
"""A kernel's name gives the types of its input and output, of its multiplier and accumulator, and of its epilogue:
sm80_xmma_fprop_implicit_gemm_f16f16_f16f32_f32_nhwckrsc_nhwc_…, with TF32 …_f32f32_tf32f32_f32_…,
and i8f32_i8i32_f32 for int8 with float output (github.com/NVIDIA/TransformerEngine/issues/1391). Other names have one
word for the operands, or the same one twice."""
_COMPUTING_TYPE = re.compile(r"conv(?!er)|correlation|gemm|matrixmultiply|matmul|fullyconnected", re.IGNORECASE)
_COMPUTING_KERNEL = re.compile(r"fprop|dgrad|gemm|winograd|cutlass|_mha_")
_COMPUTING_WORDS = {"Fc", "Conv", "Gemm", "Mha", "Matmul"}
"""Words in the names of Myelin's kernels, which list the fused operators: __myl_FcAddRelu_…"""
_NODE = re.compile(r"\[ONNX Layer: (.*?)\](?=[\s\x1e\x1f\[]|$)")
_PARTS = re.compile(r" \+ | \|\| |[(){}\[\],]\s*|\.\.\.")
"""Separators in a layer's name: node_Conv_292 + node_relu, PWN(node_sigmoid), {ForeignNode[node_a...node_b]}."""
_REFORMATS = "Reformatting CopyNode"
_ANY_OPERAND = {"float32", "float16", "bfloat16", "float64", "float8", "float4", "int8", "int4"}


def logger_of(library: Any) -> Any:
    """Return the process's only logger: it prints warnings and errors to stderr and stores the last errors.

    The library uses its first logger while any object made with it lives.
    """
    for module, logger in _LOGGERS:
        if module is library:
            return logger
    _LOGGERS.append((library, _new_logger(library)))
    return _LOGGERS[-1][1]


def _new_logger(library: Any) -> Any:
    class Logger(library.ILogger):  # type: ignore[misc]
        def __init__(self) -> None:
            library.ILogger.__init__(self)
            self.errors: deque[str] = deque(maxlen=_KEPT_ERRORS)
            self.skipped: deque[str] = deque(maxlen=_KEPT_ERRORS)
            """Messages about kernels that a build skipped."""

        def log(self, severity: Any, message: str) -> None:
            with contextlib.suppress(Exception):
                is_error = severity in (library.ILogger.ERROR, library.ILogger.INTERNAL_ERROR)
                self._store(is_error, message)
                if is_error or severity == library.ILogger.WARNING:
                    print(f"{library.__name__}: {message}", file=sys.stderr)

        def _store(self, is_error: bool, message: str) -> None:
            if _SKIPPED.search(message):
                # The log has the error of a failed allocation just before the warning about its skipped kernel.
                if self.errors and _NO_MEMORY.search(self.errors[-1]):
                    self.skipped.append(self.errors.pop())
                self.skipped.append(message)
            elif is_error:
                self.errors.append(message)

    return Logger()


def logged(logger: Any, limit: int, *messages: str) -> str:
    """Say why the library failed; mention skipped kernels only if a layer has no kernel left."""
    errors = list(logger.errors)
    skipped = list(logger.skipped) if any(_NO_KERNEL_LEFT in error for error in errors) else []
    return joined([*messages, *skipped, *errors], limit)


def forget(logger: Any) -> None:
    """Clear the logged errors, so that they cannot explain a later failure."""
    logger.errors.clear()
    logger.skipped.clear()


def joined(messages: list[str], limit: int) -> str:
    """Join messages on one line of at most `limit` characters, newest first: that one is the cause."""
    lines = dict.fromkeys(" ".join(line.split()) for message in reversed(messages) for line in message.splitlines())
    return cut("; ".join([line for line in lines if line and _NO_DRIVER not in line] or lines), limit)


def new_monitor(library: Any, report: Callable[[str], None]) -> Any:
    """Make a progress monitor that reports the step of the phase a few times a second."""

    class Monitor(library.IProgressMonitor):  # type: ignore[misc]
        def __init__(self) -> None:
            library.IProgressMonitor.__init__(self)
            self._reported = 0.0

        def phase_start(self, phase_name: str, parent_phase: str | None, num_steps: int) -> None:
            """Required by the interface."""

        def step_complete(self, phase_name: str, step: int) -> bool:
            with contextlib.suppress(Exception):
                if time.monotonic() - self._reported >= _PROGRESS_SECONDS:
                    self._reported = time.monotonic()
                    report(f"building: {phase_name}, step {step + 1}")
            return True

        def phase_finish(self, phase_name: str) -> None:
            """Required by the interface."""

    return Monitor()


@dataclass(frozen=True)
class EngineLayer:
    """One layer of an engine. Types are named as torch names them."""

    name: str
    kind: str
    """TensorRT's layer type; empty if the engine has only its layers' names."""
    nodes: tuple[str, ...] = ()
    """The ONNX nodes of its origin."""
    compute_type: str | None = None
    """Type of a convolution's or product's operands, "unknown" if the engine hides it; None for other layers."""
    tf32: bool = False


def read_layers(text: str, nodes: Collection[str] = ()) -> list[EngineLayer]:
    """Read EngineInspector's JSON, in running order. Raises ValueError for other texts.

    `nodes` are the graph's: TensorRT 8.5 has a layer's nodes only in its name. The format is documented by examples;
    TensorRT 11 split "Format/Datatype" in two and renamed the list of inputs:
    https://docs.nvidia.com/deeplearning/tensorrt/11.4.0/api/migration/tensorrt-10x-to-11x-IEngineInspector.html
    """
    # Not strict: the separators between the nodes of "Metadata" are control characters, not always escaped.
    document = json.loads(text, strict=False)
    layers = document.get("Layers") if isinstance(document, dict) else None
    if not isinstance(layers, list):
        raise ValueError('the engine\'s information has no list "Layers"')
    return [_layer(entry, nodes) for entry in layers]


def compute_types(layers: Sequence[EngineLayer], products: Collection[str]) -> dict[str, int]:
    """Count convolutions and matrix products by computed type.

    `products` are the graph's convolutions and products by name; without a computing layer they are "unknown": an
    opaque layer holds them, or the engine does not name its layers' nodes.
    """
    computing = [layer for layer in layers if layer.compute_type is not None]
    counts = Counter(layer.compute_type or "" for layer in computing)
    named = {node for layer in computing for node in layer.nodes}
    unseen = sum(name not in named for name in products)
    if unseen and (named or not computing):
        counts["unknown"] += unseen
    return dict(counts)


def summarize(layers: Sequence[EngineLayer], products: Collection[str]) -> dict[str, Any]:
    """Count the layers for a proof: by compute type, by layer type, and those with TF32 kernels."""
    return {
        "compute_types": compute_types(layers, products),
        "layer_types": dict(Counter(layer.kind or "unknown" for layer in layers)),
        "tf32_kernels": sum(layer.tf32 for layer in layers),
    }


def _layer(entry: Any, nodes: Collection[str]) -> EngineLayer:
    if not isinstance(entry, dict):
        return EngineLayer(str(entry), "")
    kind, tactic = str(entry.get("LayerType", "")), str(entry.get("TacticName", ""))
    words = re.findall("[A-Z][a-z]*", tactic.split("_0x")[0]) if tactic.startswith("__myl_") else []
    computes = bool(
        _COMPUTING_TYPE.search(kind) or _COMPUTING_KERNEL.search(tactic) or not _COMPUTING_WORDS.isdisjoint(words)
    )
    return EngineLayer(
        name=str(entry.get("Name", "")),
        kind=kind,
        nodes=tuple(dict.fromkeys(_nodes(entry, nodes))),
        compute_type=_compute_type(entry, tactic) if computes else None,
        tf32=computes and "tf32" in tactic,
    )


def _nodes(entry: Mapping[str, Any], nodes: Collection[str]) -> list[str]:
    if "Metadata" in entry:
        return _NODE.findall(str(entry["Metadata"]))
    name = str(entry.get("Name", ""))
    return [] if name.startswith(_REFORMATS) else [part for part in _PARTS.split(name) if part in nodes]


def _compute_type(entry: Mapping[str, Any], tactic: str) -> str:
    """Read the type off the kernel's name, else off the weights, which may be among the layer's constants.

    Inputs prove nothing: a kernel with a fused cast computes in another type.
    """
    for pattern in _TACTICS:
        if (operand := pattern.search(tactic.lower())) and operand[1] in _OPERANDS:
            return _OPERANDS[operand[1]]
    weights = entry.get("Weights") or entry.get("ConvWeights")  # The latter in 8.5's CaskConvActPool.
    candidates = [_type(weights.get("Type"))] if isinstance(weights, dict) else []
    candidates += _tensor_types(entry.get("Constants"))
    return next((name for name in candidates if name in _ANY_OPERAND), "unknown")


def _tensor_types(tensors: Any) -> list[str]:
    types = []
    for described in tensors if isinstance(tensors, list) else []:
        words = [described.get(key) for key in ("Datatype", "DataType", "Format/Datatype", "Format", "Type")]
        types.append(next((name for word in words if (name := _type(word))), "unknown"))
    return types


def _type(words: Any) -> str | None:
    tokens = re.findall(r"[a-z0-9]+", str(words or "").lower())
    return next((_TYPES[token] for token in tokens if token in _TYPES), None)
