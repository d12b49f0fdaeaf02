"""Export a model to ONNX at a precision: a checked file in the cache, its batch symbolic."""

from __future__ import annotations

import contextlib
import io
import logging
import time
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from exporters.cache import Cache, file_sha256, key_of
from exporters.errors import sentence, text_of
from exporters.inputs import BATCH, TensorSpec, input_specs, seeded_inputs
from exporters.packages import installed_version
from exporters.source import ModelError, ModelSource
from exporters.weights import cached_state, checked, external_locations, identified, source_key

if TYPE_CHECKING:
    from torch import nn

# Convolutions know bf16 from opset 22 on (https://onnx.ai/onnx/operators/onnx__Conv.html). The others stay at the
# version that the dynamo exporter generates itself: older runtimes read it, and nothing has to be converted.
OPSETS = {"fp32": 20, "fp16": 20, "bf16": 22}
MAX_BATCH = 1024
# protobuf's limit is 2 GiB for the whole file; the rest is room for the graph.
INLINE_BYTES = 1_900_000_000


@dataclass(frozen=True)
class Export:
    """An exported graph: inputs "x" (or "x0", "x1", …), output "y"."""

    path: Path
    seconds: float
    """What exporting and checking took when the graph was made, in this call or in an earlier one."""
    cached: bool


def export_onnx(source: ModelSource, precision: str, cache: Cache) -> Export:
    """Export a canonical network or a factory's model in the type that `precision` names: fp32, fp16 or bf16.

    tf32 is the fp32 graph. The same model is exported once; concurrent calls wait for the first.

    Raises ModelError for a model that cannot be loaded or exported, and for an ONNX file, which needs no export.
    """
    precision = "fp32" if precision == "tf32" else precision
    if precision not in OPSETS:
        raise ModelError(f"model {source.name!r}: no export in {precision!r}; known: {', '.join(OPSETS)}, tf32")
    if source.onnx is not None:
        raise ModelError(f"model {source.name!r} is an ONNX file already: {source.onnx}")

    source = identified(source)

    def produce(path: Path) -> None:
        from exporters.build_model import restore

        model = restore(source, cached_state(source, cache))
        start = time.perf_counter()
        write_onnx(source.name, model, input_specs(source), precision, path)
        # A file of its own in the cache's entry: the next run wants to know too.
        seconds_of(path).write_text(str(time.perf_counter() - start))

    path, cached = cache.entry("onnx", export_key(source, precision), ".onnx", checked(source, produce))
    return Export(path, float(seconds_of(path).read_text()), cached)


def seconds_of(path: Path) -> Path:
    return path.with_suffix(".seconds")


def export_key(source: ModelSource, precision: str) -> str:
    parts = [source_key(source), precision, str(OPSETS[precision]), file_sha256(Path(__file__))]
    parts += [f"{package} {installed_version(package)}" for package in ("torch", "onnx", "onnxscript")]
    return key_of(*parts)


def write_onnx(name: str, model: nn.Module, specs: list[TensorSpec], precision: str, path: Path) -> None:
    """Export the model and checks the file: types, shapes and the operators' schemas."""
    import onnx
    import torch

    dtype = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}[precision]
    model = model.to(dtype)
    # Two items, since torch.export specializes dimensions of size 1.
    items = [torch.from_numpy(array) for array in seeded_inputs(specs, batch=2)]
    example = tuple(item.to(dtype) if item.is_floating_point() else item for item in items)
    names = ["x"] if len(specs) == 1 else [f"x{index}" for index in range(len(specs))]
    batch = torch.export.Dim(BATCH, min=1, max=MAX_BATCH)
    size = sum(tensor.numel() * tensor.element_size() for tensor in model.state_dict().values())
    with quiet():
        try:
            program = torch.onnx.export(
                model,
                example,
                dynamo=True,
                dynamic_shapes=tuple({spec.shape.index(BATCH): batch} for spec in specs),
                input_names=names,
                output_names=["y"],
                opset_version=OPSETS[precision],
                verbose=False,
            )
            assert program is not None
            if precision == "bf16":
                restore_folded_types(program.model)
            program.save(path, external_data=size > INLINE_BYTES)
            # Checks from the file, which knows no size limit; `full_check` infers shapes strictly.
            onnx.checker.check_model(str(path), full_check=True)
        except Exception as error:
            # The class is not public.
            is_captured = type(error).__name__ != "TorchExportError"
            hint = "" if is_captured else f"; torch.export must take the model at batch sizes of 1 to {MAX_BATCH}"
            raise ModelError(
                f"model {name!r}: the export to ONNX in {precision} failed: {sentence(error)}{hint}"
            ) from error


def restore_folded_types(model: Any) -> None:
    """Cast weights that onnxscript folded a batch normalization into back to bf16.

    It folds in numpy, where bf16 becomes fp32, and leaves the result so: an invalid graph (onnxscript 0.7).
    """
    import onnx_ir as ir

    for node in model.graph:
        if node.op_type not in ("Conv", "ConvTranspose", "Gemm") or node.inputs[0].dtype != ir.DataType.BFLOAT16:
            continue
        for value in node.inputs[1:]:
            if value is not None and value.const_value is not None and value.dtype == ir.DataType.FLOAT:
                folded = value.const_value.numpy().astype(ir.DataType.BFLOAT16.numpy())
                value.const_value = ir.tensor(folded, name=value.name)
                value.dtype = ir.DataType.BFLOAT16


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Keep the exporter's banners and warnings off the terminal; its errors are raised anyway."""
    output = io.StringIO()
    loggers = [logging.getLogger(name) for name in ("torch.onnx", "torch.export", "onnxscript", "onnx_ir")]
    levels = [logger.level for logger in loggers]
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for logger in loggers:
            logger.setLevel(logging.ERROR)
        try:
            yield
        finally:
            for logger, level in zip(loggers, levels, strict=True):
                logger.setLevel(level)


def check_onnx(path: Path) -> None:
    """Refuse an ONNX file that no runtime could load.

    Raises ModelError for a missing, truncated or foreign file, for missing external data, for external data outside the
    file's folder (a model must not read other files of this machine), and for what onnx.checker finds.
    """
    import onnx

    folder = path.parent.resolve()
    for tensor, location in external_locations(path).items():
        data = (folder / location).resolve()
        if not data.is_relative_to(folder):
            raise ModelError(
                f"{path}: tensor {tensor!r} keeps its data at {location!r}, outside the model's folder; refused. Put "
                "the data next to the model and save it again with a relative location"
            )
        if not data.is_file():
            raise ModelError(f"{path}: tensor {tensor!r} keeps its data in {location!r}, which is missing")
    try:
        onnx.checker.check_model(str(path))
    except Exception as error:
        raise ModelError(f"{path}: onnx.checker refuses it ({text_of(error)})") from error
