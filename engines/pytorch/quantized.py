"""Quantize a module's linear layers by torchao, to int8 or fp8, with scales of each call's own activations.

Weights have a scale a row, activations one a token: torchao's "dynamic" configurations, whose products are computed in
8 bits. Its weight-only ones, which widen the weights and multiply in float, are not used. What is no linear layer stays
in `engines.catalog.float_part`'s type.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Any, TypeGuard

import torch
from torch import Tensor, nn
from torch.nn.modules.linear import NonDynamicallyQuantizableLinear
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from engines.base import Unsupported
from engines.catalog import Device

_MULTIPLE_OF = {("int8", "cuda"): 8, ("fp8", "cuda"): 16}
"""What both sizes of a layer must be multiples of: else torchao 0.18 multiplies int8 as int32 on the CPU, and leaves
what was to be fp8 as it is."""
_LEAST_ROWS = {("int8", "cuda"): 17}
"""What a layer's input must have: torch._int_mm refuses fewer on a GPU, and torchao falls back to float32 in eager."""


def quantize(model: nn.Module, precision: str, device: Device, infer: Callable[[], object]) -> dict[str, Any]:
    """Quantize the linear layers of `model`, in place; returns how many, by what, for the proof. `infer` runs the model
    once. Raises Unsupported where no layer can be quantized."""
    import torchao
    from torchao.quantization import quantize_

    layers = [part for part in model.modules() if _is_linear(part)]
    chosen = _choose(layers, precision, device, infer)
    config = _config(precision, device)
    quantize_(model, config, lambda part, name: part in chosen and not is_traceable_wrapper_subclass(part.weight))
    torch.backends.mha.set_fastpath_enabled(False)  # torch's fused transformer layer reads plain weights.
    if device == "cuda":  # What was held before is no need of what runs from here on.
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    quantized = sum(is_traceable_wrapper_subclass(part.weight) for part in layers)
    return {
        "linear_layers": len(layers),
        "quantized_layers": quantized,
        "quantized_by": f"torchao {torchao.__version__}, {type(config).__name__}",
    }


def _choose(
    layers: Sequence[nn.Linear], precision: str, device: Device, infer: Callable[[], object]
) -> Collection[nn.Module]:
    """The layers that torchao computes in 8 bits on the device. Raises Unsupported where there is none."""
    if not layers:
        raise Unsupported(f"{precision}: torchao quantizes linear layers (nn.Linear), of which the model has none")
    step, least = (table.get((precision, device), 1) for table in (_MULTIPLE_OF, _LEAST_ROWS))
    chosen: set[nn.Module] = {part for part in layers if part.in_features % step == part.out_features % step == 0}
    if least > 1:
        chosen = {part for part, rows in _rows(chosen, infer).items() if rows >= least}
    if not chosen:
        needs = f"sizes that are multiples of {step}" + (f" and inputs of {least} rows or more" if least > 1 else "")
        raise Unsupported(f"{precision}: on a GPU a linear layer needs {needs}; none of the model's {len(layers)} has")
    return chosen


def stored(tensors: Iterable[Tensor]) -> Iterator[Tensor]:
    """The tensors that have memory: of a quantized weight its integers and scales."""
    for tensor in tensors:
        if is_traceable_wrapper_subclass(tensor):
            yield from stored(getattr(tensor, name) for name in tensor.__tensor_flatten__()[0])
        else:
            yield tensor


def _config(precision: str, device: Device) -> Any:
    from torchao.quantization import (
        Float8DynamicActivationFloat8WeightConfig,
        Int8DynamicActivationInt8WeightConfig,
        PerRow,
    )
    from torchao.utils import should_reduce_range

    if precision == "fp8":
        return Float8DynamicActivationFloat8WeightConfig(granularity=PerRow())
    return Int8DynamicActivationInt8WeightConfig(reduce_range=should_reduce_range(torch.device(device)))


def _is_linear(part: nn.Module) -> TypeGuard[nn.Linear]:
    """Whether it multiplies by itself: the projection of nn.MultiheadAttention only lends its weights."""
    return isinstance(part, nn.Linear) and not isinstance(part, NonDynamicallyQuantizableLinear)


def _rows(layers: Iterable[nn.Module], infer: Callable[[], object]) -> dict[nn.Module, float]:
    """The fewest rows that each layer's input has in a call; a layer that is not called is left out."""
    fewest: dict[nn.Module, float] = {}

    def note(layer: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        given: Tensor = next(iter((*args, *kwargs.values())))
        fewest[layer] = min(given.numel() // given.shape[-1], fewest.get(layer, math.inf))

    hooks = [layer.register_forward_pre_hook(note, with_kwargs=True) for layer in layers]
    try:
        infer()
    finally:
        for hook in hooks:
            hook.remove()
    return fewest
