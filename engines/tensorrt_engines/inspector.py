"""Read an engine's layers, and the types that they compute in, from EngineInspector's JSON.

Its format is documented by examples: https://docs.nvidia.com/deeplearning/tensorrt/10.16.1/inference-library/engine-tools.html.
TensorRT 11 split "Format/Datatype" in two and renamed the list of inputs and outputs:
https://docs.nvidia.com/deeplearning/tensorrt/11.4.0/api/migration/tensorrt-10x-to-11x-IEngineInspector.html
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

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
"""A kernel's name gives the types of the tensors, before and after, then those of multiplier and accumulator, then that
of what follows: sm80_xmma_fprop_implicit_gemm_f16f16_f16f32_f32_nhwckrsc_nhwc_…, with TF32 …_f32f32_tf32f32_f32_…,
and i8f32_i8i32_f32 of int8 that is dequantized (github.com/NVIDIA/TransformerEngine/issues/1391). In others there is
one word for the operands, or the same one twice."""
_COMPUTING_TYPE = re.compile(r"conv(?!er)|correlation|gemm|matrixmultiply|matmul|fullyconnected", re.IGNORECASE)
_COMPUTING_KERNEL = re.compile(r"fprop|dgrad|gemm|winograd|cutlass|_mha_")
_COMPUTING_WORDS = {"Fc", "Conv", "Gemm", "Mha", "Matmul"}
"""Of Myelin's generated kernels, whose names list what was fused: __myl_FcAddRelu_…"""
_NODE = re.compile(r"\[ONNX Layer: (.*?)\](?=[\s\x1e\x1f\[]|$)")
_ANY_OPERAND = {"float32", "float16", "bfloat16", "float64", "float8", "float4", "int8", "int4"}


@dataclass(frozen=True)
class EngineLayer:
    """One layer of an engine. Types are named as torch names them."""

    name: str
    kind: str
    """TensorRT's layer type; empty where the engine keeps only its layers' names."""
    nodes: tuple[str, ...] = ()
    """The ONNX nodes that it came from."""
    compute_type: str | None = None
    """Of the operands of a convolution or matrix product, "unknown" if the engine does not say it; else None."""
    tf32: bool = False
    output_type: str | None = None


def read_layers(text: str) -> list[EngineLayer]:
    """The layers in running order. Raises ValueError for a text that is not the inspector's JSON."""
    # Not strict: the separators between the nodes of "Metadata" are control characters, not always escaped.
    document = json.loads(text, strict=False)
    layers = document.get("Layers") if isinstance(document, dict) else None
    if not isinstance(layers, list):
        raise ValueError('the engine\'s information has no list "Layers"')
    return [_layer(entry) for entry in layers]


def compute_types(layers: Sequence[EngineLayer], products: Collection[str]) -> dict[str, int]:
    """How many convolutions and matrix products compute in each type.

    `products` are the names of the graph's own: those that no such layer names count as "unknown". They are in an
    opaque layer, or the engine does not say which nodes its layers came from.
    """
    computing = [layer for layer in layers if layer.compute_type is not None]
    counts = Counter(layer.compute_type or "" for layer in computing)
    named = {node for layer in computing for node in layer.nodes}
    unseen = sum(name not in named for name in products)
    if unseen and (named or not computing):
        counts["unknown"] += unseen
    return dict(counts)


def summarize(layers: Sequence[EngineLayer], products: Collection[str]) -> dict[str, Any]:
    """What a proof says of them: counts by layer type, by type of the result, and by compute type."""
    return {
        "compute_types": compute_types(layers, products),
        "layer_types": dict(Counter(layer.kind or "unknown" for layer in layers)),
        "output_types": dict(Counter(layer.output_type for layer in layers if layer.output_type)),
        "tf32_kernels": sum(layer.tf32 for layer in layers),
    }


def _layer(entry: Any) -> EngineLayer:
    if not isinstance(entry, dict):
        return EngineLayer(str(entry), "")
    kind, tactic = str(entry.get("LayerType", "")), str(entry.get("TacticName", ""))
    words = re.findall("[A-Z][a-z]*", tactic.split("_0x")[0]) if tactic.startswith("__myl_") else []
    computes = bool(
        _COMPUTING_TYPE.search(kind) or _COMPUTING_KERNEL.search(tactic) or not _COMPUTING_WORDS.isdisjoint(words)
    )
    outputs = _tensor_types(entry.get("Outputs"))
    return EngineLayer(
        name=str(entry.get("Name", "")),
        kind=kind,
        nodes=tuple(dict.fromkeys(_NODE.findall(str(entry.get("Metadata", ""))))),
        compute_type=_compute_type(entry, tactic) if computes else None,
        tf32=computes and "tf32" in tactic,
        output_type=outputs[0] if outputs else None,
    )


def _compute_type(entry: Mapping[str, Any], tactic: str) -> str:
    """What the kernel's name says, or else the type of the weights, which may be among the layer's constants.

    In this order, since what runs is the kernel: it may differ from the tensors it is given where a cast is fused. For
    that reason the inputs prove nothing.
    """
    for pattern in _TACTICS:
        if (operand := pattern.search(tactic.lower())) and operand[1] in _OPERANDS:
            return _OPERANDS[operand[1]]
    weights = entry.get("Weights")
    candidates = [_type(weights.get("Type"))] if isinstance(weights, dict) else []
    candidates += _tensor_types(entry.get("Constants"))
    return next((name for name in candidates if name in _ANY_OPERAND), "unknown")


def _tensor_types(tensors: Any) -> list[str]:
    types = []
    for tensor in tensors if isinstance(tensors, list) else []:
        words = [tensor.get(key) for key in ("Datatype", "DataType", "Format/Datatype", "Format", "Type")]
        types.append(next((name for word in words if (name := _type(word))), "unknown"))
    return types


def _type(words: Any) -> str | None:
    tokens = re.findall(r"[a-z0-9]+", str(words or "").lower())
    return next((_TYPES[token] for token in tokens if token in _TYPES), None)
