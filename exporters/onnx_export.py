"""Make a model's ONNX graph at a precision, a checked file in the cache: an export, or a user's file converted."""

from __future__ import annotations

import contextlib
import io
import json
import logging
import time
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from exporters.cache import Cache, check_room, code_of
from exporters.errors import sentence
from exporters.inputs import fixed_batch, input_specs, seeded_inputs, symbolic_shapes
from exporters.onnx_files import check_onnx, external_tensors, file_inputs, graph_files, in_order, read_onnx
from exporters.packages import versions
from exporters.source import BATCH, ModelSource, TensorSpec, digest
from exporters.weights import cached_state, checked, identified, source_key

if TYPE_CHECKING:
    from torch import nn

# Convolutions take bf16 from opset 22 on (https://onnx.ai/onnx/operators/onnx__Conv.html). The others stay at the
# version that the dynamo exporter generates: older runtimes read it, and nothing has to be converted.
OPSETS = {"fp32": 20, "fp16": 20, "bf16": 22}
MAX_BATCH = 1024
# protobuf's limit is 2 GiB for the whole file; the rest is room for the graph.
INLINE_BYTES = 1_900_000_000


@dataclass(frozen=True)
class Export:
    """A graph whose inputs and outputs have the model's names."""

    path: Path
    seconds: float | None = None
    """Seconds that exporting and checking took when the graph was made, in this call or an earlier one."""
    cached: bool = True
    in_float32: str = ""
    """Operators that stay float32 in a graph of fewer bits, like "Resize (2×)"."""
    origin: str = "the file"
    """Maker and batches, such as "torch.export, any batch"; "the file" is the user's own."""

    @classmethod
    def read(cls, path: Path, cached: bool) -> Export:
        """Read the facts that `note` wrote next to a graph in the cache."""
        return cls(path, cached=cached, **json.loads(path.with_suffix(".json").read_text()))


def note(path: Path, seconds: float, origin: str, in_float32: str = "") -> None:
    """Write an export's facts next to the graph."""
    path.with_suffix(".json").write_text(json.dumps({"seconds": seconds, "origin": origin, "in_float32": in_float32}))


def export_onnx(source: ModelSource, precision: str, cache: Cache, batch: int | None = None) -> Export:
    """Export a canonical network or a factory's model in fp32, fp16 or bf16; tf32 is the fp32 graph.

    The batch stays symbolic, and so do the dimensions in `source.varied`; with `batch` the graph is for that size
    only. Raises ModelError for a model that cannot be loaded or exported.
    """
    assert source.onnx is None, "an ONNX file needs no export"
    precision, source = "fp32" if precision == "tf32" else precision, identified(source)

    def produce(path: Path) -> None:
        import torch

        from exporters.build_model import restore

        model = restore(source, cached_state(source, cache))
        if any(isinstance(part, torch.jit.ScriptModule) for part in model.modules()):
            mend = "return the plain module, or give a graph of your own (`onnx: FILE`)"
            raise source.error(f"torch.jit modules cannot be exported to ONNX; {mend}")
        start = time.perf_counter()
        with source.failing("the export to ONNX", "change the code, or give a graph of your own (`onnx: FILE`)"):
            origin = write_onnx(model, input_specs(source), precision, path, batch)
        note(path, time.perf_counter() - start, origin)

    return Export.read(*cache.entry("onnx", export_key(source, precision, batch), ".onnx", checked(source, produce)))


def fp32_graph(source: ModelSource, cache: Cache) -> Export:
    """Return the model's fp32 graph: the job's file, else an export. Raises ModelError."""
    if source.own_graph is None:
        return export_onnx(source, "fp32", cache)
    check_onnx(source.own_graph)
    return Export(source.own_graph)


def export_key(source: ModelSource, precision: str, batch: int | None = None) -> str:
    code = code_of("onnx_export.py", "calls.py", "inputs.py"), versions("torch", "onnx", "onnxscript")
    return digest([source_key(source), precision, OPSETS[precision], batch, source.varied, code])


def write_onnx(
    model: nn.Module, specs: Sequence[TensorSpec], precision: str, path: Path, batch: int | None = None
) -> str:
    """Export the model and check types, shapes and operators' schemas. Return `Export.origin`."""
    import onnx
    import torch

    from exporters.calls import Flattened, cast, typed

    dtype = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}[precision]
    one_size = batch or fixed_batch(specs)  # Else two items, since torch.export specializes dimensions of size 1.
    example = typed(seeded_inputs(specs, one_size or 2), dtype)
    if any(tensor.is_complex() for tensor in example):
        raise ValueError("no runtime takes complex inputs; take their real and imaginary parts as floats")
    model = cast(model, dtype)
    shapes, size = _free_axes(specs), sum(tensor.nbytes for tensor in (*model.parameters(), *model.buffers()))
    check_room(path, size)
    flat = Flattened(model, specs)
    with quiet():
        program = to_program(
            flat,
            example,
            dynamo=True,
            dynamic_shapes=None if batch or not any(shapes) else (shapes,),
            input_names=[spec.name for spec in specs],
            opset_version=OPSETS[precision],
            verbose=False,
        )
        if len(flat.names()) != len(program.model.graph.outputs):  # Traced strictly: `forward` itself did not run.
            with torch.no_grad():
                flat(*example)
        name_outputs(program.model.graph, flat.names())
        if precision == "bf16":
            restore_folded_types(program.model)
        if not batch:
            forget_shapes(program.model.graph)
        program.save(path, external_data=size > INLINE_BYTES)
        # Checks from the file, which knows no size limit; `full_check` infers shapes strictly.
        onnx.checker.check_model(str(path), full_check=True)
        if batch is None:
            check_free(specs, path)
    named = dict.fromkeys(f"{axis.name} {axis.smallest} to {axis.largest}" for spec in specs for axis in spec.named)
    return f"torch.export, batch {one_size} only" if one_size else f"torch.export, {', '.join(['any batch', *named])}"


def to_program(model: nn.Module, example: tuple[Any, ...], **options: Any) -> Any:
    """Call torch.onnx.export, and again with plain attention if views of a fused kernel's result fail (torch 2.13)."""
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel

    with torch.no_grad():  # torch 2.11 can promote types wrongly behind a parameter that takes gradients (NFNet, fp16).
        try:
            return torch.onnx.export(model, example, **options)
        except Exception as error:
            if "Cannot view a tensor" not in sentence(error):
                raise
        with sdpa_kernel(SDPBackend.MATH):
            return torch.onnx.export(model, example, **options)


def _free_axes(specs: Sequence[TensorSpec]) -> tuple[dict[int, Any], ...]:
    import torch

    sizes = {BATCH: torch.export.Dim(BATCH, min=1, max=MAX_BATCH)}
    for axis in (axis for spec in specs for axis in spec.named):
        sizes[axis.name] = torch.export.Dim(axis.name, min=axis.smallest, max=axis.largest)
    return tuple({axis: sizes[name] for axis, name in spec.free_axes.items()} for spec in specs)


def check_free(specs: Sequence[TensorSpec], path: Path) -> None:
    """Raise ValueError if a free size became the example's, as in code that loops over items."""
    shapes = symbolic_shapes(file_inputs(path))
    for spec in specs:
        for name in (name for axis, name in spec.free_axes.items() if isinstance(shapes[spec.name][axis], int)):
            raise ValueError(
                f"the {name} of {spec.name} cannot stay free: the model's code depends on it, for example in a loop"
            )


def name_outputs(graph: Any, names: Sequence[str]) -> None:
    """Give a graph's outputs the model's names; rename inner values that have an input's name, a weight's or these."""
    used = {value.name for value in graph.inputs} | set(graph.initializers)
    for value in (value for node in graph.all_nodes() for value in node.outputs if value.name in used.union(names)):
        value.name += ".inner"
    for value, name in zip(graph.outputs, names, strict=True):
        if value.producer() is not None:  # Not an input, which is passed through.
            value.name = f"output.{name}" if name in used else name


def restore_folded_types(model: Any) -> None:
    """Cast weights with a folded batch normalization back to bf16: onnxscript 0.7 leaves fp32, an invalid graph."""
    import onnx_ir as ir

    for node in model.graph:
        if node.op_type not in ("Conv", "ConvTranspose", "Gemm") or node.inputs[0].dtype != ir.DataType.BFLOAT16:
            continue
        for value in node.inputs[1:]:
            if value is not None and value.const_value is not None and value.dtype == ir.DataType.FLOAT:
                folded = value.const_value.numpy().astype(ir.DataType.BFLOAT16.numpy())
                value.const_value = ir.tensor(folded, name=value.name)
                value.dtype = ir.DataType.BFLOAT16


def forget_shapes(graph: Any) -> None:
    """Remove the shapes of inner values: behind an LSTM they are the example's (torch 2.13), and ORT trusts them."""
    outputs = set(graph.outputs)
    for value in (value for node in graph.all_nodes() for value in node.outputs if value not in outputs):
        value.shape = None


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Keep the exporter's banners and warnings off the terminal; its errors are raised anyway."""
    output, disabled = io.StringIO(), logging.root.manager.disable
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        logging.disable(logging.WARNING)
        try:
            yield
        finally:
            logging.disable(disabled)


def to_fp16(source: ModelSource, cache: Cache) -> Export:
    """Convert the user's graph to half precision, inputs and outputs too, by ONNX Runtime's converter.

    Operators in the converter's list stay float32 between casts. Raises ModelError.
    """
    source = identified(source)
    assert source.own_graph is not None, "an export is made in its precision"
    graph = source.own_graph
    code = code_of("onnx_export.py"), versions("onnx", "onnxruntime", "onnxruntime-gpu")
    key = digest(["fp16", source_key(source), code])

    def produce(path: Path) -> None:
        check_room(path, sum(file.stat().st_size for file in graph_files(graph).values()) / 2)
        start = time.perf_counter()
        with source.failing(f"converting {graph.name} to fp16", "convert it yourself: variants: {fp16: FILE}"):
            in_float32 = _write_fp16(graph, path)
        note(path, time.perf_counter() - start, "the file, converted by ONNX Runtime", in_float32)

    return Export.read(*cache.entry("onnx", key, ".onnx", produce))


def _write_fp16(graph: Path, path: Path) -> str:
    """Convert and check the file; return the operators that stay float32, like "Resize (2×), TopK (1×)"."""
    import onnx
    import onnx_ir as ir
    from onnxruntime.transformers.float16 import DEFAULT_OP_BLOCK_LIST, convert_float_to_float16

    is_large = bool(external_tensors(graph))  # Refuses data outside the folder, which would be copied.
    # Infer shapes without external data, since models in memory are limited to 2 GiB by protobuf.
    model = onnx.shape_inference.infer_shapes(read_onnx(graph))
    values = (*model.graph.input, *model.graph.value_info, *model.graph.output)
    floats = {value.name for value in values if value.type.tensor_type.elem_type == onnx.TensorProto.FLOAT}
    blocked = (node for node in model.graph.node if node.op_type in DEFAULT_OP_BLOCK_LIST)
    in_float32 = Counter(node.op_type for node in blocked if floats & {*node.input, *node.output})
    onnx.load_external_data_for_model(model, str(graph.parent))
    converted = in_order(convert_float_to_float16(model, disable_shape_infer=True))
    ir.save(converted, path, external_data=f"{path.name}.data" if is_large else None)
    onnx.checker.check_model(str(path), full_check=True)
    return ", ".join(f"{operator} ({count}×)" for operator, count in sorted(in_float32.items()))
