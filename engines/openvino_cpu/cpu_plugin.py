"""Say what is known of OpenVINO's CPU plugin, whoever has loaded it: its properties, and its words for what it runs."""

from __future__ import annotations

_COMPUTE = ("Convolution", "FullyConnected", "MatMul", "GroupConvolution")
"""How kinds of its nodes begin that are convolutions and products, such as FullyConnectedQuantizedLegacy."""
_TYPES = {"f32": "float32", "f16": "float16", "bf16": "bfloat16", "i8": "int8", "u8": "int8"}
"""By the type of the activations: uint8 times int8 is int8's arithmetic."""


def compute_type(kind: str, precision: str) -> str | None:
    """The type in which a convolution or product computes, by its precision or its kernel's name, which ends with that
    ("brgconv_avx512_amx_bf16"); None for a node of another kind."""
    word = precision.rpartition("_")[2]
    return _TYPES.get(word, word) if kind.startswith(_COMPUTE) else None


def cpu_properties(threads: int) -> dict[str, str | int]:
    """The properties with which a deployment gets the figures measured here; 0 threads let OpenVINO choose."""
    return {
        # The hint's default lets the plugin compute an fp32 graph in bf16 where the processor can.
        "INFERENCE_PRECISION_HINT": "f32",
        "PERFORMANCE_HINT": "LATENCY",
        "INFERENCE_NUM_THREADS": threads,
    }
