"""What enters: a `ModelSource` and its inputs. What leaves: `Cost`: the FLOPs of one item, and the weights it reads.

Convolutions and matrix products are counted, two FLOPs a multiply-add; what else a network does counts 0. That is the
convention of the roofline and of the published counts (MAC counts, doubled), and it never counts too much.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import math
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from exporters.cache import Cache, file_sha256
from exporters.graph_cost import drop_data, graph_flops, graph_weights
from exporters.inputs import TensorSpec, fixed_batch, read_onnx, seeded_inputs
from exporters.source import ModelSource
from exporters.state import source_key

if TYPE_CHECKING:
    from torch import nn

_HALF = ("fp16", "bf16")
_BATCHES = (2, 3)
"""Two sizes, to see that the count grows with the batch; not 1, which batch normalization refuses in training."""


@dataclass(frozen=True)
class Cost:
    """What a model must compute and read at least. None is unknown.

    FLOPs are those of one item; weights are parameters and buffers that an inference reads, tables of which it only
    looks up rows left out.
    """

    inference_flops: int | None = None
    training_flops: int | None = None
    """Forward and backward pass; the gradient of the network's input is not computed and not counted."""
    parameters: int | None = None
    float_weights: int | None = None
    """Elements that are held in the precision's type."""
    other_weight_bytes: int = 0
    """Weights whose type no precision changes: integers, and everything in a user's ONNX file."""

    def flops(self, pass_: str) -> int | None:
        """FLOPs of one item in that pass."""
        return self.training_flops if pass_ == "training" else self.inference_flops

    def weight_bytes(self, precision: str) -> int | None:
        """Bytes of the weights that one call reads; under AMP they are fp32."""
        if self.float_weights is None:
            return None
        return self.float_weights * (2 if precision in _HALF else 4) + self.other_weight_bytes


def cached_cost(source: ModelSource, specs: Sequence[TensorSpec], cache: Cache) -> Cost:
    """`count`, made once: ResNet-200 takes 2 s."""
    parts = [source_key(source), file_sha256(Path(__file__)), *map(version, ("torch", "onnx"))]
    key = hashlib.sha256("\n".join(parts).encode()).hexdigest()

    def produce(path: Path) -> None:
        path.write_text(json.dumps(asdict(count(source, specs))))

    return Cost(**json.loads(cache.entry("cost", key, ".json", produce)[0].read_text()))


def count(source: ModelSource, specs: Sequence[TensorSpec]) -> Cost:
    """What cannot be counted is None, with the reason on stderr; nothing that the model does raises here."""
    return count_module(source, specs) if source.onnx is None else count_file(source.onnx, specs)


def count_module(source: ModelSource, specs: Sequence[TensorSpec]) -> Cost:
    """Runs the eager module on the meta device, which computes shapes alone; where it cannot run there, on the CPU."""
    from exporters.load import build

    found: dict[str, Any] = {}
    makers: tuple[Callable[[ModelSource], nn.Module], ...] = (meta_module, build)
    for make in makers:
        with reported(f"model {source.name!r}: not counted with {make.__name__}"):
            model = make(source)
            found.setdefault("parameters", sum(parameter.numel() for parameter in model.parameters()))
            if "inference_flops" not in found:
                found["inference_flops"] = per_item(lambda n: forward_flops(model, specs, n))  # noqa: B023
                found |= weights_read(model, specs)
            found["training_flops"] = per_item(lambda n: training_flops(model, specs, n))  # noqa: B023
            break
    return Cost(**found)


def meta_module(source: ModelSource) -> nn.Module:
    """The structure without data. A factory is called as ever, since it may not expect to build on another device."""
    import torch

    from exporters.load import build, canonical

    if source.factory:
        return build(source).to("meta")
    with torch.device("meta"):
        return canonical(source).eval()


def per_item(flops: Callable[[int], int], batches: Sequence[int] = _BATCHES) -> int:
    """The FLOPs of one item. Raises ValueError where they are not proportional to the batch."""
    counts = [flops(batch) for batch in batches]
    if any(total * batches[0] != counts[0] * batch for batch, total in zip(batches, counts, strict=True)):
        raise ValueError(f"batches of {batches} cost {counts} FLOPs: no cost of one item follows from that")
    return counts[0] // batches[0]


def forward_flops(model: nn.Module, specs: Sequence[TensorSpec], batch: int) -> int:
    # With gradients: without them torch takes a fused kernel for a transformer's layer, into which no counter looks.
    with counting() as counter:
        model.eval()(*tensors(model, specs, batch))
    return int(counter.get_total_flops())


def training_flops(model: nn.Module, specs: Sequence[TensorSpec], batch: int) -> int:
    from torch.utils._pytree import tree_leaves

    model.train().zero_grad(set_to_none=True)
    with counting() as counter:
        tree_leaves(model(*tensors(model, specs, batch)))[0].float().square().mean().backward()
    return int(counter.get_total_flops())


@contextlib.contextmanager
def counting() -> Iterator[Any]:
    """torch's counter, with attention taken apart into products, and with a formula of our own for one operator.

    torch 2.13 counts the weights' gradient of a grouped convolution as if it had one group, AlexNet's twice too much
    and a depthwise one by its number of channels (https://github.com/pytorch/pytorch/pull/183405).
    """
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.utils.flop_counter import FlopCounterMode

    formulas = {torch.ops.aten.convolution_backward: convolution_backward_flops}
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False, custom_mapping=formulas) as counter:
        yield counter


def convolution_backward_flops(
    gradient: Sequence[int], x: Sequence[int], weight: Sequence[int], *others: Any, out_shape: Any = None, **_: Any
) -> int:
    """Arguments are shapes, those of aten.convolution_backward. Each of the two gradients that is asked for, the
    input's and the weights', takes as many multiply-adds as the forward pass: every weight meets every position of the
    output (of the input, if transposed) once.
    """
    transposed, output_mask = others[4], others[7]
    positions = math.prod((x if transposed else gradient)[2:])
    return 2 * x[0] * positions * math.prod(weight) * sum(map(bool, output_mask[:2]))


def weights_read(model: nn.Module, specs: Sequence[TensorSpec]) -> dict[str, int]:
    """The fields `float_weights` and `other_weight_bytes`, of the tensors that a forward pass uses as a whole."""
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils._pytree import tree_leaves

    aten = torch.ops.aten
    lookups = (aten.embedding, aten._embedding_bag, aten.index, aten.index_select, aten.gather)
    used: set[int] = set()

    class Observer(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if func.overloadpacket not in lookups:
                used.update(id(leaf) for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor))
            return func(*args, **(kwargs or {}))

    with Observer():  # type: ignore[no-untyped-call]
        model.eval()(*tensors(model, specs, _BATCHES[0]))
    weights = [tensor for tensor in (*model.parameters(), *model.buffers()) if id(tensor) in used]
    return {
        "float_weights": sum(weight.numel() for weight in weights if weight.is_floating_point()),
        "other_weight_bytes": sum(weight.nbytes for weight in weights if not weight.is_floating_point()),
    }


def tensors(model: nn.Module, specs: Sequence[TensorSpec], batch: int) -> list[Any]:
    """Inputs on the model's device."""
    import torch

    weight = next(itertools.chain(model.parameters(), model.buffers()), None)
    device = "cpu" if weight is None else weight.device
    return [torch.from_numpy(array).to(device) for array in seeded_inputs(specs, batch)]


def count_file(path: Path, specs: Sequence[TensorSpec]) -> Cost:
    """A user's ONNX file, from the shapes in its graph."""
    found: dict[str, Any] = {}
    with reported(f"{path}: not counted"):
        model = read_onnx(path)
        drop_data(model)
        found["parameters"], weight_bytes = graph_weights(model)
        fixed = fixed_batch(specs)
        batches = _BATCHES if fixed is None else (fixed,)
        found["inference_flops"] = per_item(lambda n: graph_flops(model, specs, n), batches)
        found |= {"float_weights": 0, "other_weight_bytes": weight_bytes}
    return Cost(**found)


@contextlib.contextmanager
def reported(what: str) -> Iterator[None]:
    """Says on stderr, which a worker keeps as its log, what the block raised, and goes on after it."""
    try:
        yield
    except Exception as error:
        print(f"{what}: {type(error).__name__}: {error}", file=sys.stderr)
