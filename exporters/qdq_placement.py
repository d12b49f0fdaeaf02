"""Say where an int8 graph has its quantize and dequantize pairs (Q/DQ), and take out those in the way of a fusion."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

WEIGHTED = ("Conv", "Gemm", "MatMul")
"""What multiplies. Transposed convolutions stay float: ONNX Runtime has none in int8."""
_OPTIONS = {
    # Zero points of 0, the only ones that TensorRT's parser accepts.
    "ActivationSymmetric": True,
    "WeightSymmetric": True,
    # An int32 bias behind a DequantizeLinear is refused by TensorRT's parser; ONNX Runtime makes its own.
    "QuantizeBias": False,
    # A pair for each reader: pairs that several share keep ONNX Runtime's CPU provider from int8.
    "DedicatedQDQPair": True,
}
_OPERANDS = (*WEIGHTED, "Add")


@dataclass(frozen=True)
class Placement:
    """What ONNX Runtime's quantizer is told: which operators have pairs, and its options."""

    operators: tuple[str, ...]
    options: Mapping[str, object] = field(default_factory=lambda: _OPTIONS)
    operands_only: bool = False
    """Whether a pair stays only where it makes an operand of WEIGHTED int8, or what is added to the result of one."""
    made_for: str = ""
    """What is added to who made the graph."""


PLACEMENTS: Mapping[str, Placement] = {
    # Runtimes that look for an operator between pairs, and for a chain of them: ONNX Runtime's CPU provider, OpenVINO.
    # No softmax: onnxruntime gives it a zero point other than 0 whatever the options say.
    "int8": Placement(
        (*WEIGHTED, "Relu", "Clip", "Add", "Concat", "MaxPool", "AveragePool", "Reshape", "Flatten", "Transpose")
    ),
    # TensorRT, whose convolutions have the bias, a residual, an activation and the next one's quantizing as epilogue:
    # https://docs.nvidia.com/deeplearning/tensorrt/latest/inference-library/quantized-types-explicit-quantization.html
    "int8-operands": Placement(
        _OPERANDS,
        {**_OPTIONS, "OpTypesToExcludeOutputQuantization": list(_OPERANDS)},
        operands_only=True,
        made_for=" for TensorRT",
    ),
}
"""By the graph's name; engines/catalog.py says which engine runs which."""


def residuals(path: Path) -> tuple[dict[str, str], list[str]]:
    """By name of each Add that can be the epilogue of what multiplies ahead of it: the input that is not that result.

    Of two such results the one with more nodes ahead of it is the epilogue's: a projection of the shortcut comes
    earlier. Also returns the other Adds. Nodes without a name get one, in the file.
    """
    import onnx

    model = onnx.load(path, load_external_data=False)
    graph = model.graph
    for place, node in enumerate(graph.node):
        node.name = node.name or f"{node.op_type}_at_{place}"
    onnx.save(model, path)
    adds = [node for node in graph.node if node.op_type == "Add"]
    maker = {name: node for node in graph.node for name in node.output}
    readers = Counter([*(name for node in graph.node for name in node.input), *(value.name for value in graph.output)])
    constant = {tensor.name for tensor in graph.initializer}
    constant |= {name for name, node in maker.items() if node.op_type == "Constant"}
    depth: dict[str, int] = {}
    for node in graph.node:
        depth |= dict.fromkeys(node.output, 1 + max((depth.get(name, 0) for name in node.input), default=0))
    found = {}
    for add in adds:
        results = [t for t in add.input if t in maker and maker[t].op_type in WEIGHTED and readers[t] == 1]
        if results and not constant.intersection(add.input):
            epilogue = max(results, key=depth.__getitem__)
            found[add.name] = next(name for name in add.input if name != epilogue)
    return found, [node.name for node in adds if node.name not in found]


def keep_operands(path: Path, residual: Mapping[str, str]) -> None:
    """Take out of the file every pair but those that WEIGHTED reads and, by name of an Add, those of its residual. The
    quantizer puts one at each input of an Add, and gives a pair that one reader needs to the tensor's others, too."""
    import onnx
    import onnx_ir as ir
    from onnx_ir.passes.common import RemoveUnusedNodesPass

    model = onnx.load(path, load_external_data=False)
    graph = model.graph
    quantizers = {node.output[0]: node for node in graph.node if node.op_type == "QuantizeLinear"}
    pairs = {
        node.output[0]: quantizers[node.input[0]].input[0]
        for node in graph.node
        if node.op_type == "DequantizeLinear" and node.input[0] in quantizers
    }
    for node in graph.node:
        for place, name in enumerate(node.input):
            source = pairs.get(name)
            if source is not None and node.op_type not in WEIGHTED and residual.get(node.name) != source:
                node.input[place] = source
    # Of the pairs that nothing reads now, the constants go, too.
    onnx.save(ir.to_proto(RemoveUnusedNodesPass()(ir.from_proto(model)).model), path)
