"""Count the FLOPs of one item of a model, and the weights that it reads.

Convolutions and matrix products are counted, two FLOPs a multiply-add; what else a network does counts 0. That is the
convention of the roofline and of the published counts (MAC counts, doubled), and it never counts too much but for a
causal mask, which saves nothing in it.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import math
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves, tree_map_only
from torch.utils.flop_counter import FlopCounterMode

from exporters.build_model import build, empty
from exporters.cache import Cache, code_of
from exporters.calls import call, trained_output
from exporters.cost import Cost, Flops
from exporters.errors import message
from exporters.graph_flops import graph_flops, graph_weights
from exporters.graph_shapes import drop_data
from exporters.inputs import TensorSpec, fixed_batch, read_onnx, seeded_inputs
from exporters.onnx_files import is_float32
from exporters.packages import versions
from exporters.source import ModelSource, digest
from exporters.watch import Watch
from exporters.weights import checked, identified, source_key

Part = Callable[[], dict[str, Any]]
"""Counts some of a Cost's fields."""

_CODE = ("cost.py", "flops.py", "graph_flops.py", "graph_shapes.py", "inputs.py", "watch.py")
"""What a count depends on besides the model, which holds the rest in its key."""
_COMPUTES = re.compile(
    r"(?:^|_)(?:\w*mm|\w*mv|v?dot|matmul|linear|attention|lstm|gru|rnn|transformer|einsum"
    r"|conv(?:olution|\dd|_\w+)?|conv_transpose\dd)(?:_|$)"
)
"""Parts of the names of torch's operators that multiply matrices."""
_BATCHES = (2, 3)
"""Two sizes, to see that the count grows with the batch; not 1, which batch normalization refuses in training."""
_MORE_BATCHES = (4, 5)
"""Where it grows otherwise."""


def cached_cost(
    source: ModelSource,
    specs: Sequence[TensorSpec],
    cache: Cache,
    graph: Path | None = None,
    trains: bool = False,
    report: Callable[[Cost], None] = lambda cost: None,
    of_input: bool = False,
) -> Cost:
    """Each part counted once for all runs; `report` gets what is known after each, should the next one never end.

    `graph` is an export of the model, in which work that reaches no output is left out, as engines do. `of_input` says
    whether training computes the gradient of a network's input. What cannot be counted is None, with the reason on
    stderr, and is tried again by the next run; nothing that the model does raises here.
    """
    source = identified(source)
    common = [source_key(source), code_of(*_CODE), versions("torch", "onnx")]
    known: dict[str, Any] = {}
    for name, part in parts(source, specs, graph, trains, of_input).items():
        # An export's file is named after all that it depends on.
        own = {"graph": graph and graph.name, "training": (source.outputs, of_input)}.get(name)

        def produce(path: Path, part: Part = part) -> None:
            path.write_text(json.dumps(part()))

        kept = checked(source, produce, runs=False)
        try:
            counted = json.loads(cache.entry("cost", digest([*common, name, own]), ".json", kept)[0].read_text())
            counted |= {name: Flops(*counted[name]) for name in ("inference", "training") if name in counted}
            known |= {field: min(value, known.get(field, value)) for field, value in counted.items()}
        except Exception as error:
            # A worker keeps stderr as its log.
            why = f"{type(error).__name__}: {message(error)}"
            print(f"model {source.name!r}: {name} not counted: {why}", file=sys.stderr)
        report(Cost(**known))
    return Cost(**known)


def parts(
    source: ModelSource, specs: Sequence[TensorSpec], graph: Path | None, trains: bool, of_input: bool
) -> dict[str, Part]:
    """How to count each part of a Cost; a part that cannot be counted raises. Of a field that two parts know the
    smaller value holds. Training comes last: it is the slowest, and the likeliest to fail."""
    if source.onnx is not None:
        file = source.onnx
        return {"file": lambda: count_graph(file, specs, keeps_types=not is_float32(file))}
    ways: dict[str, Part] = {"inference": partial(count_module, source, inference_part, specs)}
    if graph is not None:
        ways["graph"] = partial(count_graph, graph, specs, keeps_types=False)
    if trains:
        wrt_input = of_input or source.layer is not None
        ways["training"] = partial(count_module, source, training_part, specs, wrt_input, source.outputs)
    return ways


def count_module(source: ModelSource, part: Callable[..., dict[str, Any]], *arguments: Any) -> dict[str, Any]:
    """Run the eager module on the meta device, which computes only shapes; where it cannot run there, on the CPU."""
    try:
        # A factory is called as always, since it may not expect to build on another device.
        return part(build(source).to("meta") if source.factory else empty(source), *arguments)
    except Exception as error:
        print(f"model {source.name!r}: not counted on the meta device: {error!r}", file=sys.stderr)
    return part(build(source), *arguments)


def inference_part(model: nn.Module, specs: Sequence[TensorSpec]) -> dict[str, Any]:
    def flops(batch: int) -> int:
        # With gradients: without them torch takes a fused kernel for a transformer's layer, which no counter sees into.
        with counting() as counter:
            call(model.eval(), specs, tensors(model, specs, batch))
        return int(counter.get_total_flops())

    return {"inference": per_item(flops, specs), **weights_read(model, specs)}


def training_part(
    model: nn.Module, specs: Sequence[TensorSpec], wrt_input: bool, outputs: Sequence[str | int]
) -> dict[str, Any]:
    def flops(batch: int) -> int:
        model.train().zero_grad(set_to_none=True)
        items = [item.requires_grad_(wrt_input and item.is_floating_point()) for item in tensors(model, specs, batch)]
        with counting() as counter:
            trained_output(call(model, specs, items), outputs).float().square().mean().backward()
        return int(counter.get_total_flops())

    return {"training": per_item(flops, specs)}


def _batches(specs: Sequence[TensorSpec]) -> tuple[int, ...]:
    fixed = fixed_batch(specs)
    return _BATCHES if fixed is None else (fixed,)


def per_item(flops: Callable[[int], int], specs: Sequence[TensorSpec]) -> Flops:
    """Raises ValueError where the counts of four batches follow no law of this form."""
    batches = _batches(specs)
    counts = [flops(batch) for batch in batches]
    if all(total * batches[0] == counts[0] * batch for batch, total in zip(batches, counts, strict=True)):
        return Flops(counts[0] // batches[0])
    batches = (*batches, *_MORE_BATCHES)  # 2, 3, 4, 5: the second differences of a square are twice its factor
    counts += [flops(batch) for batch in _MORE_BATCHES]
    first = [after - before for before, after in itertools.pairwise(counts)]
    pair, odd = divmod(first[1] - first[0], 2)
    item = first[0] - pair * (batches[0] + batches[1])
    fixed = counts[0] - item * batches[0] - pair * batches[0] ** 2
    if odd or first[2] - first[1] != first[1] - first[0] or min(item, pair, fixed) < 0:
        raise ValueError(f"batches of {batches} cost {counts} FLOPs: no cost of one item follows from that")
    return Flops(item, pair, fixed)


@contextlib.contextmanager
def counting() -> Iterator[FlopCounterMode]:
    """torch's counter, with attention, transformers' layers and LSTMs taken apart into products, which torch would run
    as one kernel each, and with formulas of our own.

    torch 2.13 counts the weights' gradient of a grouped convolution as if it had one group, AlexNet's twice too much
    and a depthwise one by its number of channels (https://github.com/pytorch/pytorch/pull/183405). Raises ValueError
    for an operator that multiplies matrices and has no formula.
    """
    counter = FlopCounterMode(display=False, custom_mapping=_formulas())

    def refuse(operator: Any, *_: Any) -> None:
        """Of what the counter leaves whole, what it would take for nothing."""
        if operator not in counter.flop_registry and _COMPUTES.search(operator.__name__):
            raise ValueError(f"there is no count of torch's operator {operator}")

    mha, mkldnn = torch.backends.mha, torch.backends.mkldnn
    fast = mha.get_fastpath_enabled()
    mha.set_fastpath_enabled(False)
    enabled, *_ = mkldnn.set_flags(_enabled=False, _fp32_precision=None)
    try:
        with KnownValues(), sdpa_kernel(SDPBackend.MATH), Watch(refuse), counter:
            yield counter
    finally:
        mha.set_fastpath_enabled(fast)
        mkldnn.set_flags(_enabled=enabled, _fp32_precision=None)


def _formulas() -> dict[Any, Any]:
    """Counts by operator, from the shapes of its arguments; those of attention for a model that chooses its kernel."""
    aten = torch.ops.aten
    fused = [f"_scaled_dot_product_{kind}" for kind in ("flash_attention", "efficient_attention", "cudnn_attention")]
    fused += ["_scaled_dot_product_flash_attention_for_cpu", "_scaled_dot_product_fused_attention_overrideable"]
    return {
        aten.convolution_backward: convolution_backward_flops,
        **{getattr(aten, name): attention_flops for name in fused},
        # Each of the two products has two gradients; the scores that a kernel computes again count 0.
        **{getattr(aten, f"{n}_backward"): lambda _, *shapes, **__: 2 * attention_flops(*shapes[:3]) for n in fused},
        **dict.fromkeys((aten.mv, aten.dot, aten.vdot, aten._int_mm), product_flops),
        **dict.fromkeys((aten.addmv, aten.addbmm), lambda added, *factors, **_: product_flops(*factors)),
    }


def product_flops(x: Sequence[int], other: Sequence[int], *_: Any, **__: Any) -> int:
    """Of matrices, of stacks of them, and of vectors: (…, n, k) times (…, k, m), (n, k) times (k), (k) times (k)."""
    return 2 * math.prod(x) * (other[-1] if len(other) > 1 else 1)


def attention_flops(query: Sequence[int], key: Sequence[int], value: Sequence[int], *_: Any, **__: Any) -> int:
    """Arguments are shapes (items, heads, length, size). Two products, with or without a mask: a causal one, of which
    fused kernels skip nearly half, costs as much as where it is written out."""
    return 2 * math.prod(query[:-1]) * key[-2] * (query[-1] + value[-1])


def convolution_backward_flops(
    gradient: Sequence[int], x: Sequence[int], weight: Sequence[int], *others: Any, out_shape: Any = None, **_: Any
) -> int:
    """Arguments are shapes, those of aten.convolution_backward. Each of the two gradients that are asked for takes as
    many multiply-adds as the forward pass: every weight meets every position of the output (if transposed, of the
    input) once."""
    transposed, output_mask = others[4], others[7]
    positions = math.prod((x if transposed else gradient)[2:])
    return 2 * x[0] * positions * math.prod(weight) * sum(map(bool, output_mask[:2]))


def weights_read(model: nn.Module, specs: Sequence[TensorSpec]) -> dict[str, int]:
    """The fields `float_weights` and `other_weight_bytes`, of the tensors that a forward pass uses as a whole."""
    aten = torch.ops.aten
    lookups = (aten.embedding, aten._embedding_bag, aten.index, aten.index_select, aten.gather)
    used: set[int] = set()

    def note(operator: Any, *given: Any) -> None:
        if operator not in lookups:
            used.update(id(leaf) for leaf in tree_leaves(given) if isinstance(leaf, torch.Tensor))

    with KnownValues(), Watch(note):
        call(model.eval(), specs, tensors(model, specs, _batches(specs)[0]))
    weights = [tensor for tensor in (*model.parameters(), *model.buffers()) if id(tensor) in used]
    return {
        "float_weights": sum(weight.numel() for weight in weights if weight.is_floating_point()),
        "other_weight_bytes": sum(weight.nbytes for weight in weights if not weight.is_floating_point()),
    }


def tensors(model: nn.Module, specs: Sequence[TensorSpec], batch: int) -> list[Any]:
    """Floats on the model's device; token ids and masks keep their values next to a model on the meta device."""
    weight = next(itertools.chain(model.parameters(), model.buffers()), None)
    device = "cpu" if weight is None else weight.device
    made = [torch.from_numpy(array) for array in seeded_inputs(specs, batch)]
    return [item.to(device) if item.is_floating_point() or str(device) != "meta" else item for item in made]


class KnownValues(TorchFunctionMode):
    """A mode in which what depends on no weight is computed, and all else is on the meta device, with shapes alone.

    Transformers look whether a mask hides anything before they use it, which a mask without values cannot answer.
    Raises RuntimeError where a tensor with values would be overwritten by one without.
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs, name, first = kwargs or {}, getattr(func, "__name__", ""), args[0] if args else None
        kinds = {leaf.device.type for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)}
        if name == "to" and isinstance(first, torch.Tensor) and (first.is_meta or not first.is_floating_point()):
            args, kwargs = tree_map_only((torch.device, str), lambda _: first.device, (args, kwargs))
        elif name == "arange" and str(kwargs.get("device")) == "meta":
            kwargs = {**kwargs, "device": "cpu"}
        elif kinds == {"cpu", "meta"}:
            is_written = name == "__setitem__" or (name.endswith("_") and not name.endswith("__"))
            if "out" in kwargs or (is_written and isinstance(first, torch.Tensor) and not first.is_meta):
                raise RuntimeError(f"{name} overwrites values by others that are not known")
            args, kwargs = tree_map_only(torch.Tensor, lambda leaf: leaf.to("meta"), (args, kwargs))
        return func(*args, **kwargs)


def count_graph(path: Path, specs: Sequence[TensorSpec], keeps_types: bool) -> dict[str, Any]:
    """An ONNX graph, from the shapes in it. Its floats are of the row's precision, unless it `keeps_types`."""
    model = read_onnx(path)
    drop_data(model)
    flops = per_item(lambda batch: graph_flops(model, specs, batch), specs)
    weights = graph_weights(model)
    others = {dtype: elements for dtype, elements in weights.items() if keeps_types or dtype.kind in "biu"}
    return {
        "inference": flops,
        "float_weights": weights.total() - sum(others.values()),
        "other_weight_bytes": sum(dtype.itemsize * elements for dtype, elements in others.items()),
    }
