"""Read from a program that XLA has compiled in which types its convolutions and matrix products compute."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field

_INSTRUCTION = re.compile(r"^\s*(?:ROOT )?%?([\w.-]+) = \(?(\w+)\[.*?[\])}] ([\w-]+)\((.*)")
_OPERAND = re.compile(r"%?([\w.-]+)[,)]")
_TARGET = re.compile(r'custom_call_target="([^"]+)"')
_PRECISION = re.compile(r"operand_precision=\{(\w+)|\"operand_precision\":\[\"(\w+)")
_LIBRARIES = re.compile(r"cudnn\$conv|cublas|onednn\$(?:matmul|conv)|cudnn\$norm|Dot|dot|Conv|conv")
_TYPES = {"f32": "float32", "f16": "float16", "bf16": "bfloat16", "f64": "float64", "s8": "int8"}


@dataclass
class Products:
    """What was found."""

    types: Counter[str] = field(default_factory=Counter)
    """Convolutions and matrix products by the type of their first operand."""
    calls: Counter[str] = field(default_factory=Counter)
    """By what computes them: a library's function, or XLA's own code."""
    below_float32: int = 0
    """Those of float32 that may be computed in less: on a GPU in TF32."""


def products(text: str) -> Products:
    """Read a program as `Compiled.as_text` gives it; an instruction's operands are named before it."""
    found, types = Products(), dict[str, str]()
    for line in text.splitlines():
        match = _INSTRUCTION.match(line)
        if match is None:
            continue
        name, of_result, kind, rest = match.groups()
        types[name] = of_result
        target = _TARGET.search(rest)
        if kind == "custom-call" and target is not None and _LIBRARIES.search(target[1]):
            kind = target[1]
        elif kind not in ("convolution", "dot"):
            continue
        operand = _OPERAND.search(rest)
        of_operand = types.get(operand[1] if operand else "", of_result)
        found.types[_TYPES.get(of_operand, of_operand)] += 1
        found.calls[kind] += 1
        precision = _PRECISION.search(rest)
        highest = precision is not None and "highest" in (precision[1] or precision[2]).lower()
        found.below_float32 += of_operand == "f32" and not highest and "algorithm=dot_f32_f32_f32" not in rest
    return found
