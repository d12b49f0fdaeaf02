"""Quantize a model: its fp32 graph, exported or the user's, with int8 Q/DQ pairs, an ONNX file in the cache.

int8 is a property of the graph, not a mode of an engine. There are two such graphs, of which an engine takes one: they
differ in where the pairs are, which is in exporters/qdq_placement.py.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np

from exporters.cache import Cache, check_room, code_of, file_sha256
from exporters.inputs import TensorSpec, file_inputs, fixed_batch, input_specs, seeded_inputs
from exporters.onnx_export import Export, export_key, note
from exporters.onnx_files import fp32_graph
from exporters.qdq_placement import PLACEMENTS, Placement, keep_operands, residuals
from exporters.source import ModelError, ModelSource, digest
from exporters.weights import external_tensors, graph_files, identified

if TYPE_CHECKING:
    from numpy.typing import NDArray

SEEDED_ITEMS = 8
"""Drawn where the user gives no calibration data: they fill the ranges, and no number of them would mean more."""


def quantize(source: ModelSource, cache: Cache, graph: str = "int8") -> Export:
    """The model in int8: symmetric, weights per channel, activations per tensor. An activation's range is the smallest
    and the largest value that the calibration data give it: `source.calibration`'s, else SEEDED_ITEMS seeded items,
    whose ranges are no real input's. Input and output stay float32. `graph` is one of PLACEMENTS.

    The seconds are those of the fp32 export and of quantizing it. The same model is quantized once for the same data;
    concurrent calls wait for the first. Raises ModelError for calibration data that do not fit and for a model that
    cannot be exported or quantized.
    """
    source, placement = identified(source), PLACEMENTS[graph]
    specs = input_specs(source)
    files = [] if source.calibration is None else calibration_files(source.calibration, specs)

    def produce(path: Path) -> None:
        fp32 = fp32_graph(source, cache)
        start = time.perf_counter()
        # The simplified graph is as large as the one in fp32, the quantized one a fourth of that.
        check_room(path, 1.25 * sum(file.stat().st_size for file in graph_files(fp32.path).values()))
        write_quantized(source, fp32.path, feeds(files, named(source, fp32.path, specs)), placement, path)
        how = f"{fp32.how}, quantized by ONNX Runtime{placement.made_for}"
        note(path, (fp32.seconds or 0.0) + time.perf_counter() - start, how)

    return Export.read(*cache.entry("onnx", quantized_key(source, files, placement), ".onnx", produce))


def named(source: ModelSource, graph: Path, specs: Sequence[TensorSpec]) -> list[TensorSpec]:
    """The model's inputs as its graph calls them, which a user's may do in its own way."""
    names = [value.name for value in file_inputs(graph)]
    own = {spec.name for spec in specs}
    if source.own_graph is None or own == set(names):
        return list(specs)
    return [replace(spec, name=name) for spec, name in zip(specs, names, strict=True)]


def quantized_key(source: ModelSource, files: list[Path], placement: Placement) -> str:
    import onnxruntime

    data: list[Any] = [*map(file_sha256, files)] or [SEEDED_ITEMS, code_of("inputs.py")]
    code = code_of("int8.py", "qdq_placement.py"), onnxruntime.__version__
    return digest(["int8", export_key(source, "fp32"), asdict(placement), data, code])


def calibration_files(folder: Path, specs: Sequence[TensorSpec]) -> list[Path]:
    """The folder's .npy files by name, each one item or a batch of items. Raises ModelError if one does not fit."""
    if len(specs) > 1:
        names = ", ".join(spec.name for spec in specs)
        raise ModelError(f"calibration {folder}: its files are of one input, not of {names}; give `data` to each")
    files = sorted(file for file in folder.glob("*.npy") if file.is_file())  # A pipe would be waited for.
    if not files:
        raise ModelError(
            f"calibration {folder}: no .npy file there; save some inputs of the model by numpy.save, each one item or "
            "a batch of them"
        )
    for file in files:
        opened(file, specs[0])
    return files


def opened(file: Path, spec: TensorSpec) -> NDArray[Any]:
    """The file's array as a batch, mapped from the disk. Raises ModelError for another type or shape."""
    item = tuple(spec.shape[1:])
    try:
        array = np.lib.format.open_memmap(file, mode="r")
    except (OSError, ValueError) as error:
        raise ModelError(f"calibration {file}: no .npy array, or a truncated one ({error}); save it again") from error
    batch: NDArray[Any] = array[None] if array.shape == item else array
    if array.dtype != np.float32 or batch.shape[1:] != item or not batch.size:
        raise ModelError(
            f"calibration {file}: {array.dtype} of shape {array.shape}, but an item is float32 of shape {item}, and a "
            "batch of them has one dimension more in front; save inputs as the model gets them, cropped and normalized"
        )
    return batch


def feeds(files: list[Path], specs: Sequence[TensorSpec]) -> Iterator[dict[str, NDArray[Any]]]:
    """Batches of one item, by input, read as they are asked for, so that calibration needs the memory of one item."""
    for file in files:
        for item in opened(file, specs[0]):
            if not np.isfinite(item).all():
                raise ModelError(f"calibration {file}: NaN or infinity in it, of which no range can be taken")
            yield {specs[0].name: np.ascontiguousarray(item)[None]}
    if not files:
        fixed = fixed_batch(specs)
        arrays = seeded_inputs(specs, SEEDED_ITEMS if fixed is None else fixed)
        for item in range(SEEDED_ITEMS if fixed is None else 1):
            yield {
                spec.name: array if spec.batch_axis is None else np.take(array, [item], spec.batch_axis)
                for spec, array in zip(specs, arrays, strict=True)
            }


def write_quantized(
    source: ModelSource, fp32: Path, batches: Iterator[dict[str, NDArray[Any]]], placement: Placement, path: Path
) -> None:
    """Calibrate, quantize and check the file. The graph is simplified by ONNX Runtime first, as its quantizer asks for.
    Symbolic shape inference is left out: the exporter wrote all shapes, the batch symbolic."""
    import onnx
    from onnxruntime.quantization import CalibrationMethod, QuantFormat, QuantType, quantize_static
    from onnxruntime.quantization.shape_inference import quant_pre_process

    # Beyond protobuf's 2 GiB the weights lie next to the graph, in the intermediate files too.
    external = bool(external_tensors(fp32))
    mend = "the model must run in ONNX Runtime at fp32: try precisions: [fp32] with engines: [ort]"
    with tempfile.TemporaryDirectory(dir=path.parent) as folder, source.failing("quantizing to int8", mend):
        simplified = Path(folder) / "simplified.onnx"
        quant_pre_process(
            fp32, simplified, skip_symbolic_shape=True, save_as_external_data=external, all_tensors_to_one_file=True
        )
        residual, others = residuals(simplified) if placement.operands_only else ({}, [])
        quantize_static(
            *(simplified, path),
            SimpleNamespace(get_next=lambda: next(batches, None)),  # A CalibrationDataReader.
            quant_format=QuantFormat.QDQ,
            op_types_to_quantize=list(placement.operators),
            nodes_to_exclude=others,
            per_channel=True,
            activation_type=QuantType.QInt8,
            weight_type=QuantType.QInt8,
            use_external_data_format=external,
            calibrate_method=CalibrationMethod.MinMax,
            extra_options=dict(placement.options),
        )
        if placement.operands_only:
            keep_operands(path, residual)
        onnx.checker.check_model(str(path), full_check=True)
