"""Quantize a model's fp32 graph by int8 Q/DQ pairs, at the places that an engine wants them."""

from __future__ import annotations

import contextlib
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np

from exporters.cache import Cache, check_room, code_of, file_sha256
from exporters.dataset import MOST_CALIBRATING, scored_count
from exporters.inputs import distinct_items, fixed_batch, input_specs, items_first, seeded_inputs
from exporters.onnx_export import Export, export_key, fp32_graph, note
from exporters.onnx_files import (
    external_tensors,
    file_inputs,
    graph_files,
    graph_inputs,
    in_order,
    read_onnx,
    without_unread,
)
from exporters.source import ModelError, ModelSource, TensorSpec, digest
from exporters.weights import identified

if TYPE_CHECKING:
    import onnx
    from numpy.typing import NDArray

WEIGHTED = ("Conv", "Gemm", "MatMul")
"""Operators that multiply. Transposed convolutions stay float: ONNX Runtime has none in int8."""
_OPTIONS = {
    # Zero points of 0, the only ones that TensorRT's parser accepts.
    "ActivationSymmetric": True,
    "WeightSymmetric": True,
    # An int32 bias behind a DequantizeLinear is refused by TensorRT's parser; ONNX Runtime makes its own.
    "QuantizeBias": False,
    # A pair for each reader: pairs that several share keep ONNX Runtime's CPU provider from int8.
    "DedicatedQDQPair": True,
}
_MEND = "the model must run in ONNX Runtime at fp32: try precisions: [fp32] with engines: [ort]"
_OPERANDS = (*WEIGHTED, "Add")
_PER_CHANNEL, _PLAIN_WEIGHTS = 13, 4
"""Opset whose DequantizeLinear has an axis, and IR version whose initializers need not be inputs
(https://github.com/onnx/onnx/blob/main/docs/Changelog.md and IR.md)."""


@dataclass(frozen=True)
class Placement:
    """Operators with pairs, and options, for ONNX Runtime's quantizer."""

    operators: tuple[str, ...]
    options: Mapping[str, object] = field(default_factory=lambda: _OPTIONS)
    operands_only: bool = False
    """Keep only pairs on operands of WEIGHTED, and on residuals added to their results."""
    suffix: str = ""
    """Suffix of the graph's origin."""


PLACEMENTS: Mapping[str, Placement] = {
    # For runtimes that look for operators between pairs, in chains: ONNX Runtime's CPU provider. OpenVINO (2026.4)
    # turns pairs around sums of embeddings into a node that lacks an input.
    # No softmax: onnxruntime gives it a zero point other than 0 whatever the options say.
    "int8": Placement(
        (*WEIGHTED, "Relu", "Clip", "Add", "Concat", "MaxPool", "AveragePool", "Reshape", "Flatten", "Transpose")
    ),
    # For TensorRT, whose convolutions have the bias, a residual, an activation and the next quantizing as epilogue:
    # https://docs.nvidia.com/deeplearning/tensorrt/latest/inference-library/quantized-types-explicit-quantization.html
    "int8-operands": Placement(
        _OPERANDS,
        {**_OPTIONS, "OpTypesToExcludeOutputQuantization": list(_OPERANDS)},
        operands_only=True,
        suffix=", operands only",
    ),
}
"""Placements by graph name; engines/catalog.py assigns one to each engine."""
DYNAMIC = "int8-dynamic"
"""The graph of int8 products whose activations get their ranges at every call: it needs no calibration."""
SEEDED_ITEMS = 8
"""Items to draw without calibration data: they fill the ranges, and more items would add nothing."""


def quantize(source: ModelSource, cache: Cache, graph: str = "int8") -> Export:
    """Quantize the model: symmetric, weights per channel, activations per tensor, with input and output in float32.

    An activation's range is its smallest and largest value over `source.calibration`, else over items of `source.data`
    that are not evaluated, else over SEEDED_ITEMS seeded items. `graph` is one of PLACEMENTS. Raises ModelError for the
    model or its calibration data.
    """
    source, placement = identified(source), PLACEMENTS[graph]
    specs = input_specs(source)
    files = [] if source.calibration is None else calibration_files(source.calibration, specs)
    data: list[Any] = [*map(file_sha256, files)] or [SEEDED_ITEMS, code_of("inputs.py", "dataset.py")]
    items = _calibration_starts(source, specs)

    def write(fp32: Path, path: Path) -> None:
        write_quantized(source, fp32, feeds(files, named(source, fp32, specs), items), placement, path)
        if not any(node.op_type == "QuantizeLinear" for node in read_onnx(path).graph.node):
            raise source.error("it has no operators that are computed in int8; measure it at fp32")

    way = f"quantized by ONNX Runtime{placement.suffix}"
    return _cached(source, cache, ["int8", asdict(placement), data], way, write)


def _cached(
    source: ModelSource, cache: Cache, parts: list[Any], way: str, write: Callable[[Path, Path], None]
) -> Export:
    """Cache the graph that `write` makes of the fp32 one; `parts` and this code identify it."""
    import onnxruntime

    def produce(path: Path) -> None:
        fp32 = fp32_graph(source, cache)
        start = time.perf_counter()
        write(fp32.path, path)
        note(path, (fp32.seconds or 0.0) + time.perf_counter() - start, f"{fp32.origin}, {way}")

    key = digest([*parts, export_key(source, "fp32"), code_of("int8.py"), onnxruntime.__version__])
    return Export.read(*cache.entry("onnx", key, ".onnx", produce))


def quantize_dynamic(source: ModelSource, cache: Cache) -> Export:
    """Quantize the weights of products per channel, and activations at every call. Raises ModelError."""
    source = identified(source)

    def write(fp32: Path, path: Path) -> None:
        write_dynamic(source, fp32, path)
        if not any(node.op_type == "DynamicQuantizeLinear" for node in read_onnx(path).graph.node):
            raise source.error("it has no matrix product with weights, and only those are computed in int8")

    return _cached(source, cache, [DYNAMIC], "products quantized", write)


def write_dynamic(source: ModelSource, fp32: Path, path: Path, floats: Sequence[str] = ()) -> None:
    """Quantize the products except the nodes of the names `floats`."""
    import onnx
    from onnxruntime.quantization import QuantType
    from onnxruntime.quantization import quantize_dynamic as quantize_products

    with _simplified(source, fp32, path) as (simplified, external):
        model = read_onnx(simplified)
        weights = {tensor.name for tensor in model.graph.initializer}
        infos = [value for value in model.graph.value_info if value.name not in weights]
        del model.graph.value_info[:]
        model.graph.value_info.extend(infos)  # The quantizer transposes a Gemm's weights, but not their shapes.
        onnx.save(model, simplified)
        quantize_products(
            simplified,
            path,
            op_types_to_quantize=["MatMul", "Gemm"],
            nodes_to_exclude=list(floats),
            per_channel=True,
            weight_type=QuantType.QInt8,
            use_external_data_format=external,
            extra_options={"MatMulConstBOnly": True, "WeightSymmetric": True},
        )


def named(source: ModelSource, graph: Path, specs: Sequence[TensorSpec]) -> list[TensorSpec]:
    """Return the model's inputs under the names in its graph, which may be the user's."""
    names = [value.name for value in file_inputs(graph)]
    declared = {spec.name for spec in specs}
    if source.own_graph is None or declared == set(names):
        return list(specs)
    return [replace(spec, name=name) for spec, name in zip(specs, names, strict=True)]


def calibration_files(folder: Path, specs: Sequence[TensorSpec]) -> list[Path]:
    """Return the folder's .npy files of an item or a batch of items. Raises ModelError for a misfit."""
    if len(specs) > 1:
        names = ", ".join(spec.name for spec in specs)
        raise ModelError(
            f"calibration {folder}: its files hold one input, the model has {names}; give `data`, or examples"
        )
    files = sorted(file for file in folder.glob("*.npy") if file.is_file())  # Opening a pipe would wait for its writer.
    if not files:
        raise ModelError(f"calibration {folder}: no .npy file there; save inputs of the model by numpy.save")
    for file in files:
        opened(file, specs[0])
    return files


def opened(file: Path, spec: TensorSpec) -> NDArray[Any]:
    """Map the file's array from the disk, as a batch. Raises ModelError for another type or shape."""
    axis = spec.batch_axis or 0
    item = tuple(size for place, size in enumerate(spec.shape) if place != axis)
    try:
        array = np.lib.format.open_memmap(file, mode="r")
    except (OSError, ValueError) as error:
        raise ModelError(f"calibration {file}: no .npy array, or a truncated one ({error}); save it again") from error
    batch: NDArray[Any] = array[None] if array.shape == item else items_first(array, axis)
    if array.dtype != np.float32 or batch.shape[1:] != item or not batch.size:
        actual = f"{array.dtype} of shape {array.shape}, but an item is float32 of shape {item}"
        raise ModelError(f"calibration {file}: {actual}; save items, or batches of them, as the model gets them")
    return batch


def _calibration_starts(source: ModelSource, specs: Sequence[TensorSpec]) -> Sequence[int]:
    """Return where each calibrating batch starts, among unscored items of the data.

    Raises ModelError if there are too few.
    """
    fixed, total = fixed_batch(specs), distinct_items(specs)
    if source.data is None or total is None or source.calibration is not None:
        return range(SEEDED_ITEMS if fixed is None else 1)
    size = fixed or 1
    items = range(scored_count(total), total - size + 1, size)
    if not items:
        count = f"{total - scored_count(total)} items, a tenth of the data and at most {MOST_CALIBRATING}"
        raise source.error(f"int8 calibrates on {count}, and a batch has {size}; give more data, or `calibration`")
    return items


def feeds(files: list[Path], specs: Sequence[TensorSpec], items: Sequence[int]) -> Iterator[dict[str, NDArray[Any]]]:
    """Yield batches of one item, by input, to save memory, from the files or else from `items` on."""
    for file in files:
        for item in opened(file, specs[0]):
            if not np.isfinite(item).all():
                raise ModelError(f"calibration {file}: it holds NaN or infinity, so it has no range")
            yield {specs[0].name: np.expand_dims(np.ascontiguousarray(item), specs[0].batch_axis or 0)}
    if not files:
        size = fixed_batch(specs) or 1
        for item in items:
            yield dict(zip((spec.name for spec in specs), seeded_inputs(specs, size, first=item), strict=True))


def write_quantized(
    source: ModelSource, fp32: Path, batches: Iterator[dict[str, NDArray[Any]]], placement: Placement, path: Path
) -> None:
    """Calibrate, quantize and check the file."""
    import onnx
    import onnx_ir as ir
    from onnxruntime.quantization import CalibrationMethod, QuantFormat, QuantType, quantize_static

    with _simplified(source, fp32, path) as (simplified, external):
        residual, others = residuals(simplified) if placement.operands_only else ({}, [])
        quantize_static(
            simplified,
            path,
            SimpleNamespace(get_next=lambda: next(batches, None)),  # A CalibrationDataReader.
            quant_format=QuantFormat.QDQ,
            op_types_to_quantize=list(placement.operators),
            nodes_to_exclude=others,
            per_channel=True,
            activation_type=QuantType.QInt8,
            weight_type=QuantType.QInt8,
            use_external_data_format=external,
            calibrate_method=CalibrationMethod.MinMax,
            # The quantizer (1.31) adjusts weights to biases, and expects one value a channel.
            extra_options={**placement.options, "QDQDisableWeightAdjustForInt32Bias": _has_wide_bias(simplified)},
        )
        if placement.operands_only:
            keep_operands(path, residual)
        # Sorting nodes, the quantizer ignores the values that branches and bodies read (onnxruntime 1.31).
        onnx.save(ir.to_proto(in_order(read_onnx(path))), path)
        onnx.checker.check_model(str(path), full_check=True)


def _has_wide_bias(path: Path) -> bool:
    """Return True if a product's bias has several dimensions, like scikit-learn's, or one value for all."""
    graph = read_onnx(path).graph
    shapes = {tensor.name: tuple(tensor.dims) for tensor in graph.initializer}
    biases = [shapes[node.input[2]] for node in graph.node if node.op_type == "Gemm" and shapes.keys() & node.input[2:]]
    return any(len(shape) != 1 or shape == (1,) for shape in biases)


@contextlib.contextmanager
def _simplified(source: ModelSource, fp32: Path, path: Path) -> Iterator[tuple[Path, bool]]:
    """Simplify the graph for ONNX Runtime's quantizer, and name its nodes; yield it, and True if its weights lie
    next to it."""
    import onnx
    from onnxruntime.quantization.shape_inference import quant_pre_process

    # The simplified graph is as large as the one in fp32, the quantized one a fourth of that.
    check_room(path, 1.25 * sum(file.stat().st_size for file in graph_files(fp32).values()))
    # Beyond protobuf's 2 GiB the weights lie next to the graph, in the intermediate files too.
    external = bool(external_tensors(fp32))
    with tempfile.TemporaryDirectory(dir=path.parent) as folder, source.failing("quantizing to int8", _MEND):
        simplified = Path(folder) / "simplified.onnx"
        renewed = _renewed(fp32, Path(folder) / "renewed.onnx")
        quant_pre_process(
            renewed, simplified, skip_symbolic_shape=True, save_as_external_data=external, all_tensors_to_one_file=True
        )
        model = read_onnx(simplified)
        for place, node in enumerate(model.graph.node):
            node.name = node.name or f"{node.op_type}_at_{place}"
        onnx.save(model, simplified)
        yield simplified, external


def _renewed(path: Path, copy: Path) -> Path:
    """Copy a file that cannot hold scales per channel (opset 13) or weights that are no inputs (IR version 4)."""
    import onnx

    model = read_onnx(path)
    opset = next(opset.version for opset in model.opset_import if opset.domain in ("", "ai.onnx"))
    if opset >= _PER_CHANNEL and model.ir_version >= _PLAIN_WEIGHTS:
        return path
    model = onnx.version_converter.convert_version(onnx.load(path), max(opset, _PER_CHANNEL))
    model.ir_version = max(model.ir_version, _PLAIN_WEIGHTS)
    inputs = graph_inputs(model.graph)
    del model.graph.input[:]
    model.graph.input.extend(inputs)
    onnx.save(model, copy)
    return copy


def float_weights(source: ModelSource, fp32: Path, path: Path) -> dict[str, onnx.TensorProto]:
    """Return the weights of the graph that was quantized, by name; use the folder of `path` meanwhile."""
    import onnx

    with _simplified(source, fp32, path) as (simplified, _):
        return {tensor.name: tensor for tensor in onnx.load(simplified).graph.initializer}


def residuals(path: Path) -> tuple[dict[str, str], list[str]]:
    """Map each Add that can be a product's epilogue to its other input, by name; and name the other Adds.

    If an Add joins two products, the deeper one has the epilogue: a projection of the shortcut comes earlier.
    """
    graph = read_onnx(path).graph
    adds = [node for node in graph.node if node.op_type == "Add"]
    maker = {name: node for node in graph.node for name in node.output}
    readers = Counter([*(name for node in graph.node for name in node.input), *(value.name for value in graph.output)])
    constant = {tensor.name for tensor in graph.initializer}
    constant |= {name for name, node in maker.items() if node.op_type == "Constant"}
    depth: dict[str, int] = {}
    for node in graph.node:
        depth |= dict.fromkeys(node.output, 1 + max((depth.get(name, 0) for name in node.input), default=0))
    residual = {}
    for add in adds:
        results = [t for t in add.input if t in maker and maker[t].op_type in WEIGHTED and readers[t] == 1]
        if results and not constant.intersection(add.input):
            epilogue = max(results, key=depth.__getitem__)
            residual[add.name] = next(name for name in add.input if name != epilogue)
    return residual, [node.name for node in adds if node.name not in residual]


def keep_operands(path: Path, residual: Mapping[str, str]) -> None:
    """Remove the quantizer's pairs except on operands of WEIGHTED and on every Add's `residual` input."""
    import onnx

    model = read_onnx(path)
    pairs = pairs_of(model.graph)
    for node in model.graph.node:
        for place, name in enumerate(node.input):
            source = pairs.get(name)
            if source is not None and node.op_type not in WEIGHTED and residual.get(node.name) != source:
                node.input[place] = source
    onnx.save(without_unread(model), path)  # Unread pairs go with their constants.


def pairs_of(graph: onnx.GraphProto) -> dict[str, str]:
    """Map the result of each Q/DQ pair to the value that it rounds."""
    quantizers = {node.output[0]: node.input[0] for node in graph.node if node.op_type == "QuantizeLinear"}
    dequantizers = (node for node in graph.node if node.op_type == "DequantizeLinear")
    return {node.output[0]: quantizers[node.input[0]] for node in dequantizers if node.input[0] in quantizers}
