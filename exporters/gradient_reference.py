"""Compute the gradients of a model's first training step on the CPU, once for all runs.

fp64 is the reference. A narrower precision is simulated in fp32: each leaf module's outputs and incoming gradients are
rounded to the type, as a runtime would store them; sums inside it stay fp32. fp32 itself is repeated with noise, as
large as the effect of another order of summation.
"""

from __future__ import annotations

import contextlib
import copy
import json
import random
import re
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map, tree_map_only

from exporters.build_model import restore
from exporters.cache import Cache, code_of
from exporters.calls import call, prepare_to_train, sampled, stored, typed
from exporters.gradients import (
    NOTABLE,
    Array,
    Deviation,
    GradientReference,
    Gradients,
    Step,
    corner,
    deviation,
    deviation_name,
    input_names,
    is_input,
    largest,
)
from exporters.inputs import arguments, fixed_batch, seeded_inputs
from exporters.losses import Objective
from exporters.packages import versions
from exporters.source import ModelSource, TensorSpec, digest
from exporters.weights import checked, code, identified, source_key

Round = Callable[[Tensor], Tensor]

_HALVES = {"fp16": torch.float16, "bf16": torch.bfloat16, "amp-fp16": torch.float16, "amp-bf16": torch.bfloat16}
_PRODUCTS = (nn.Linear, nn.modules.conv._ConvNd)
_SCALES = [2.0**power for power in range(16, -17, -1)]
"""Scales of the loss under amp-fp16, tried until nothing overflows; the first is torch's GradScaler's."""

_BLUR = 1e-6
"""Relative standard deviation of the noise: fp32 sums of some thousand products differ by about this between libraries.
It flips ReLUs and maxima that are nearly ties, and each flip moves the gradient by far more."""

_VERSIONS = 4
"""Repetitions of the step in fp32; the largest deviation counts. A single one depends on luck: AlexNet's is 1e-6, or
1e-2 if a maximum flips. At narrower precisions one step flips enough maxima."""
_DRAWS = 8
"""Repeated steps in the test for randomness: two may drop the same blocks by chance."""
_REPEAT_ERROR = 1e-3
"""Largest error between two steps that are equal in exact arithmetic; some modules compute parts in fp32."""
_WIDER: dict[Any, Any] = {
    torch.float32: torch.float64,
    torch.complex64: torch.complex128,
    Tensor.float: Tensor.double,
}
_WRITES = re.compile(r"^__(i|set)|[^_]_$")
"""Names of functions that write to their first argument."""
_CODE = ("gradient_reference.py", "gradients.py", "inputs.py", "calls.py", "losses.py")


def cached_gradients(
    source: ModelSource, specs: Sequence[TensorSpec], state: Path, step: Step, cache: Cache
) -> GradientReference:
    """Take the step in fp64 and, unless it is random, at its precisions, once for all runs."""
    source = identified(source)
    common: list[Any] = [source_key(source), step._replace(precisions=(), batches=()), source.outputs]
    common += [code_of(*_CODE), versions("torch"), code([step.head.partition(":")[0]]) if ":" in step.head else None]
    arrays = seeded_inputs(specs, step.items)
    take = partial(take_step, source, specs, state, step)

    def entry(name: str, suffix: str, produce: Callable[[Path], None]) -> Path:
        return cache.entry("gradients", digest([*common, name]), suffix, checked(source, produce))[0]

    def examined() -> Gradients:
        """Take the step, and check that it repeats, alone and on a used module, and that a doubled batch agrees."""
        before, first = _generators(), take(arrays, "fp64")
        # Random numbers may have no effect (a layer drop of 0), or drop the same blocks twice by chance.
        repeats = (take(arrays, "fp64", first.target) for _ in range(_DRAWS))
        if before != _generators() and not all(_is_same(repeat, first) for repeat in repeats):
            return replace(first, doubt="random")
        if not _is_same(take(arrays, "fp64", first.target, is_second=True), first):
            return replace(first, doubt="stateful")
        doubled = seeded_inputs(specs, step.items if fixed_batch(specs) else 2 * step.items, step.items)
        return first if _is_same(take(doubled, "fp64", first.target), first) else replace(first, doubt="dependent")

    path = entry("fp64", ".npz", lambda path: examined().save(path))
    truth = Gradients.read(path)
    if truth.doubt in ("random", "stateful"):
        return GradientReference(path, {})

    def deviation_at(precision: str, batch: int) -> Deviation:
        def produce(path: Path) -> None:
            blurs = range(_VERSIONS if precision == "fp32" else 1)
            try:
                repeats = [take(arrays, precision, truth.target, batch, blur) for blur in blurs]
            except RuntimeError:  # Transforms of torch.func refuse the noise's hooks.
                repeats = [take(arrays, precision, truth.target, batch)]
            path.write_text(json.dumps(asdict(largest([deviation(s.result, s.samples, truth) for s in repeats]))))

        return Deviation(**json.loads(entry(deviation_name(precision, batch), ".json", produce).read_text()))

    named = {deviation_name(*key): key for key in product(step.precisions, step.batches or (step.items,))}
    return GradientReference(path, {name: deviation_at(*key) for name, key in named.items()})


def _generators() -> tuple[Any, ...]:
    """Return the states of the generators that a model may draw from."""
    return torch.get_rng_state().tolist(), random.getstate(), repr(np.random.get_state())


def _is_same(repeat: Gradients, first: Gradients) -> bool:
    """Return True if two steps agree in the result and in the large gradients of parameters."""
    norms = {name: norm for name, norm in first.norms.items() if not is_input(name)}
    large = NOTABLE * float(np.linalg.norm(list(norms.values())))
    parameters = replace(first, norms=norms, samples={name: first.samples[name] for name in norms})
    error = deviation(corner(repeat.result, first.result.shape), repeat.samples, parameters)
    errors = [error.result, *(error.tensors[name] for name, norm in norms.items() if norm >= large)]
    return not any(value > _REPEAT_ERROR for value in errors)


def take_step(
    source: ModelSource,
    specs: Sequence[TensorSpec],
    state: Path,
    step: Step,
    arrays: Sequence[Array],
    precision: str,
    target: Array | None = None,
    batch: int | None = None,
    blur: int = 0,
    is_second: bool = False,
) -> Gradients:
    """Take one step of the model in training mode, without dropout, on these items.

    `precision` may also be "fp64". A missing `target` is drawn; a smaller batch's is repeated. At fp16 the gradients of
    activations are scaled like those of a mean loss over `batch` items. `blur` seeds the noise in fp32; 0 adds none. A
    second step has another before it, after which the state dict is restored. A single layer's input always gets a
    gradient. Without `specs` all inputs are positional. Raises ModelError and the model's own errors.
    """
    dtype = torch.float64 if precision == "fp64" else torch.float32  # Rounding simulates narrower precisions.
    model, inputs = _cast(restore(source, state), dtype), typed(arrays, dtype)
    prepare_to_train(model, False, step.of_input, step.frozen)
    _add_rounding(model, precision, blur)
    trained: dict[str, Tensor] = dict(model.named_parameters())
    if step.of_input or source.layer is not None:
        floats = {name: x for name, x in zip(input_names(len(inputs)), inputs, strict=True) if x.is_floating_point()}
        trained |= {name: x.requires_grad_() for name, x in floats.items()}
    axes = zip(inputs, [spec.batch_axis for spec in specs] or [0], strict=False)
    items = next((x.shape[axis] for x, axis in axes if axis is not None), fixed_batch(specs) or 1)
    objective = Objective(step.head, source.outputs, [spec.name for spec in specs], target)

    def start(scale: float) -> tuple[Tensor, Tensor | None]:
        with _Doubles() if precision == "fp64" else contextlib.nullcontext():
            return objective.start(_forward(model, specs, inputs, precision, scale), inputs)

    if is_second:
        before = copy.deepcopy(model.state_dict())
        start(1.0)
        model.load_state_dict(before)
    for scale in _SCALES if precision == "amp-fp16" else [items / (batch or items) if precision == "fp16" else 1.0]:
        for tensor in trained.values():
            tensor.grad = None
        root, gradient = start(scale)  # A model may call backward() itself.
        root.backward((torch.ones_like(root) if gradient is None else gradient) * scale)
        gradients = {name: p.grad / scale for name, p in trained.items() if p.grad is not None}
        if all(stored(g)[0].isfinite().all() for g in gradients.values()):
            break
    values = {name: stored(g.coalesce() if g.is_sparse else g)[0] for name, g in gradients.items()}
    return Gradients(
        root.detach().numpy(),
        None if objective.target is None else objective.target.numpy(),
        {name: sampled(g).numpy() for name, g in gradients.items()},
        {name: float(x.to(torch.promote_types(x.dtype, torch.float64)).norm()) for name, x in values.items()},
    )


def _cast(model: nn.Module, dtype: torch.dtype) -> nn.Module:
    """Cast floats, and complex numbers to pairs of such floats; Module.to drops imaginary parts."""
    pairs = dtype.to_complex()
    model._apply(lambda x: x.to(pairs if x.is_complex() else dtype if x.is_floating_point() else x.dtype))
    return model


class _Doubles(TorchFunctionMode):
    """Widen float32 tensors that a model makes itself, as by `torch.zeros(n)` or `x.float()`, and its constants."""

    def __enter__(self) -> Any:
        self.default = torch.get_default_dtype()
        torch.set_default_dtype(torch.float64)
        return super().__enter__()  # type: ignore[no-untyped-call]

    def __exit__(self, *error: Any) -> None:
        torch.set_default_dtype(self.default)
        super().__exit__(*error)  # type: ignore[no-untyped-call]

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        # A function in place must get the tensor itself.
        first = int(_WRITES.search(function.__name__) is not None)
        widened = tree_map(_widened, (args[first:], kwargs or {}))
        return _WIDER.get(function, function)(*args[:first], *widened[0], **widened[1])


def _widened(value: Any) -> Any:
    if isinstance(value, Tensor) and not isinstance(value, nn.Parameter):
        with torch._C.DisableTorchFunction():
            return value.to(_WIDER.get(value.dtype, value.dtype))
    return _WIDER.get(value, value) if isinstance(value, torch.dtype) else value


def _forward(
    model: nn.Module, specs: Sequence[TensorSpec], inputs: Sequence[Tensor], precision: str, scale: float
) -> Any:
    """Call the model with rounded inputs and weights. Gradients come back times `scale`.

    Weights' gradients are rounded without the scale, unless it is a loss scale.
    """
    every = precision in ("fp16", "bf16")  # AMP and TF32 round only weights of convolutions and products.
    if precision == "tf32":
        rounds: tuple[Round, Round] = _to_tf32, torch.clone
    elif precision in _HALVES:
        half = _through(_HALVES[precision])
        rounds = half, (lambda gradient: half(gradient / scale) * scale) if every else half
        inputs = _round(inputs, half, half)
    else:
        return call(model, specs, inputs)
    parameters: dict[str, Tensor] = dict(model.named_parameters())
    for path, module in model.named_modules():
        for name, parameter in module.named_parameters(path, recurse=False):
            is_rounded = isinstance(module, _PRODUCTS) and (precision != "tf32" or name.endswith("weight"))
            if name in parameters and (every or is_rounded):
                parameters[name] = _round(parameter, *rounds)
    return functional_call(model, parameters, *arguments(specs, inputs))


def _add_rounding(model: nn.Module, precision: str, blur: int) -> None:
    """Add hooks that round: at TF32 the operands of convolutions and products, forward and backward; at half precision,
    or to blur, the outputs and incoming gradients of all leaf modules."""
    generator = torch.Generator().manual_seed(blur)
    narrow: Round | None = (lambda x: x + x * torch.randn(x.shape, generator=generator) * _BLUR) if blur else None
    if precision in _HALVES:
        narrow = _through(_HALVES[precision])
    for module in model.modules():
        if precision == "tf32" and isinstance(module, _PRODUCTS):
            module.register_forward_pre_hook(lambda _, inputs: _round(inputs, _to_tf32, torch.clone))
            module.register_forward_hook(lambda _, inputs, output: _round(output, torch.clone, _to_tf32))
        elif narrow is not None and not list(module.children()):
            module.register_forward_hook(lambda _, inputs, output: _round(output, narrow, narrow))


class _Rounded(torch.autograd.Function):
    """Round a tensor, and its incoming gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, forward: Round, backward: Round) -> Tensor:
        ctx.backward_round = backward
        return forward(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        return ctx.backward_round(gradient), None, None


def _round(tensors: Any, forward: Round, backward: Round) -> Any:
    """Round the floats among the tensors in a nested value."""

    def rounded(x: Tensor) -> Any:
        return _Rounded.apply(x, forward, backward) if x.is_floating_point() else x  # type: ignore[no-untyped-call]

    return tree_map_only(Tensor, rounded, tensors)


def _through(dtype: torch.dtype) -> Round:
    return lambda x: x.to(dtype).to(x.dtype)


def _to_tf32(x: Tensor) -> Tensor:
    """Round fp32 to 10 instead of 23 bits of mantissa, to nearest."""
    return ((x.view(torch.int32) + 0x1000) & ~0x1FFF).view(torch.float32)
