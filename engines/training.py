"""Run training iterations of a module, or the three parts of a single layer's, and read their gradients."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from engines.base import Array, Job, Mark, Unsupported, ignore
from engines.options import PRECISION_TABLE, TorchOptions
from exporters.calls import call as call_module
from exporters.calls import prepare_to_train, sampled, stored
from exporters.gradients import of_reference_items, reference_items
from exporters.inputs import first_items
from exporters.losses import Objective, draw
from exporters.source import BATCH, ModelError

LEARNING_RATE = 1e-6
"""Too small to memorize the batch in thousands of iterations: its gradients would be zeros, on which a GPU draws less
power. No time depends on the rate."""
SGD: Mapping[str, Any] = {"momentum": 0.9, "weight_decay": 1e-4}
ADAMW: Mapping[str, Any] = {"betas": (0.9, 0.999), "weight_decay": 0.01}
Part = Callable[[Tensor, Tensor, Tensor], Any]
"""A layer's gradInput or gradWeight: a function of the output's gradient, the input and the weights."""
_ONE_VALUE = "Expected more than 1 value per channel when training"
_NO_INPUT = "None of the inputs have requires_grad=True"
"""torch's messages about batch normalization and a reentrant checkpoint (2.13)."""
_HALVINGS = 32
"""Most halvings of a loss scale that starts at 65536."""


class TrainingStep:
    """One iteration: forward pass, backward pass and optimizer step, with a mark after each; it returns the loss.

    With the head "logits" it returns the network's first output. `call` is the module or its compiled code. Gradients
    stay in the parameters, and in the inputs if requested.
    """

    def __init__(
        self, job: Job[TorchOptions], model: torch.nn.Module, inputs: Sequence[Tensor], call: Callable[..., Any]
    ) -> None:
        self.device, self.batch = job.device, job.batch_size
        self.model, self.inputs, self.call, self.specs = model, inputs, call, job.specs
        training = job.training
        self.new_objective = partial(Objective, training.head, job.source.outputs, [spec.name for spec in job.specs])
        self.parts = training.accumulation
        self.items = self.batch // self.parts
        self.objectives = [self.new_objective() for _ in range(self.parts)]
        if self.parts > 1 and job.specs and not any(BATCH in spec.shape for spec in job.specs):
            raise Unsupported("accumulation divides the batch, but this model's batch is fixed")
        autocast = PRECISION_TABLE[job.precision].autocast
        self._type: torch.dtype | None = getattr(torch, autocast) if autocast else None
        prepare_to_train(model, training.dropout, training.input_gradient, training.frozen)
        floats = [x for x in inputs if x.is_floating_point()]
        if training.input_gradient and not floats:
            raise Unsupported("input_gradient: the model has no input of floats; list the models that have one")
        for x in floats:
            x.requires_grad_(training.input_gradient)
        self.optimizer = make_optimizer(job, model)
        # A fused optimizer skips a step with infinities itself, so the host never waits to look. A disabled scaler has
        # scale 1 and changes nothing.
        self.scaler = torch.amp.GradScaler(job.device, enabled=self._type == torch.float16)
        self._scale: float | None = None

    def __call__(self, mark: Mark) -> Tensor:
        is_first = self._scale is None
        if is_first:
            with self._first():
                self._scale = self._find_scale()
        with self._first() if is_first else contextlib.nullcontext():
            result = self.forward_and_backward(self.call, self.inputs, self.objectives, mark)
        if self.optimizer is not None:
            self.scaler.step(self.optimizer)
            self.scaler.update()
            mark("step")
        return result

    def forward_and_backward(
        self, call: Callable[..., Any], inputs: Sequence[Tensor], objectives: Sequence[Objective], mark: Mark
    ) -> Tensor:
        """Run a part of the batch for every objective; return the last loss or output.

        Gradients are a mean over the parts, times the loss scale.
        """
        size = -(-self.batch // len(objectives))
        self.model.zero_grad(set_to_none=True)
        for x in inputs:
            x.grad = None
        for number, objective in enumerate(objectives):
            part = inputs if len(objectives) == 1 else first_items(self.specs, inputs, size, number * size)
            with self._autocast():
                result = call_module(call, self.specs, part)
            root, gradient = objective.start(result, part)
            if not root.requires_grad:
                subject = "loss" if ":" in objective.head else "output"
                raise ModelError(
                    f"the {subject} has no gradient: it was detached, or made under torch.no_grad; if another output "
                    "trains, name it: outputs: [NAME]"
                )
            mark("forward")
            start = root if gradient is None else gradient
            start = self.scaler.scale(start if len(objectives) == 1 else start / len(objectives))
            if gradient is None:
                start.backward()
            else:
                root.backward(start)
            mark("backward")
        return root.detach()

    def few(self, items: int) -> None:
        """Run the first items through the plain module, so that a watch sees its operators."""
        inputs = first_items(self.specs, [x.detach() for x in self.inputs], items)
        inputs = [x.requires_grad_(original.requires_grad) for x, original in zip(inputs, self.inputs, strict=True)]
        self.forward_and_backward(self.model, inputs, [self.new_objective()], ignore)

    def optimizer_bytes(self) -> int:
        """Count the optimizer's state and the loss scale."""
        states = self.optimizer.state.values() if self.optimizer is not None else ()
        tensors = [value for state in states for value in state.values() if isinstance(value, Tensor)]
        if self.scaler.is_enabled():
            tensors += [t for t in (self.scaler._scale, self.scaler._growth_tracker) if t is not None]
        return sum(t.nbytes for t in tensors)

    @torch.no_grad()
    def start_again(self, state: Mapping[str, Tensor], inputs: Sequence[Array], target: Array | None) -> None:
        """Copy weights, statistics and items into the tensors that iterations use, as a captured graph needs."""
        self.model.load_state_dict(state)
        for tensor, array in zip(self.inputs, inputs, strict=True):
            tensor.copy_(torch.from_numpy(array))
        for objective in self.objectives:
            objective.refill(target)
        if self._scale is not None:
            self.scaler.update(self._scale)

    def gradients(self, run: Callable[[], object]) -> dict[str, Array]:
        """Sample every parameter's gradient after `run`, one iteration: up to 4096 elements, unscaled, as float32.

        An input's gradient is scaled to a batch of only the first items (`reference_items`). After an overflow another
        iteration runs at half the loss scale.
        """
        items = reference_items(self.items)
        for _ in range(_HALVINGS if self.scaler.is_enabled() else 1):
            scale = self.scaler.get_scale()
            run()
            # The optimizer unscales gradients in place, unless it skipped its step.
            factor = np.float32(1 / scale if self.optimizer is None else 1)
            parameters = ((name, p.grad) for name, p in self.model.named_parameters() if p.grad is not None)
            gradients = {name: _sample(gradient) * factor for name, gradient in parameters}
            of_inputs = of_reference_items(self.specs, [x.grad for x in self.inputs], self.batch, items)
            gradients |= {name: _sample(part) * np.float32(share / scale) for name, part, share in of_inputs}
            if self._is_finite():
                break
            self.scaler.update(scale / 2)
        return gradients

    @contextlib.contextmanager
    def _first(self) -> Iterator[None]:
        """Raise ModelError or Unsupported if the first iteration cannot be measured."""
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            try:
                yield
            except ValueError as error:
                if _ONE_VALUE not in str(error):
                    raise
                raise ModelError(
                    "batch normalization sees one value per channel, which has no variance: train with a larger batch"
                ) from error
        for warning in caught:
            warnings.warn_explicit(warning.message, warning.category, warning.filename, warning.lineno)
        trained = {name: p for name, p in self.model.named_parameters() if p.requires_grad}
        if any(_NO_INPUT in str(warning.message) for warning in caught):
            lost = sum(p.grad is None for p in trained.values())
            raise ModelError(
                f"reentrant checkpointing lost the gradients of {lost} of {len(trained)} parameters, since no input of "
                "a checkpoint requires one: pass use_reentrant=False"
            )
        sparse = [name for name, p in trained.items() if p.grad is not None and p.grad.is_sparse]
        if sparse and self.optimizer is not None:
            layer = sparse[0].rpartition(".")[0] or sparse[0]
            kind = "SGD with weight decay" if isinstance(self.optimizer, torch.optim.SGD) else "AdamW"
            raise Unsupported(
                f"torch's {kind} takes no sparse gradients, which {layer} has: make it with sparse=False, or ask for "
                "optimizers: [none]"
            )

    def _find_scale(self) -> float:
        """Find the largest loss scale without overflow, so that no timed step is skipped."""
        for _ in range(_HALVINGS if self.scaler.is_enabled() else 0):
            self.forward_and_backward(self.call, self.inputs, self.objectives, ignore)
            if self._is_finite():
                break
            self.scaler.update(self.scaler.get_scale() / 2)
        return self.scaler.get_scale()

    def _is_finite(self) -> bool:
        gradients = [tensor.grad for tensor in (*self.model.parameters(), *self.inputs) if tensor.grad is not None]
        return all(bool(torch.isfinite(stored(g)[0]).all()) for g in gradients)

    def _autocast(self) -> AbstractContextManager[Any]:
        return contextlib.nullcontext() if self._type is None else torch.autocast(self.device, self._type)


class LayerStep(TrainingStep):
    """One iteration: forward, gradInput and gradWeight (with the bias's gradient), with a mark after each.

    It starts from a fixed gradient of the output, the head "logits", and returns the output. Gradients go to `grad` of
    the input and the parameters, like autograd's.
    """

    def __init__(
        self, job: Job[TorchOptions], model: nn.Module, inputs: Sequence[Tensor], call: Callable[..., Any]
    ) -> None:
        super().__init__(job, model, inputs, call)
        assert isinstance(model, nn.Conv2d)
        with torch.no_grad(), self._autocast():
            first = model(inputs[0][:1])
        target = draw("logits", (self.batch, *first.shape[1:]))
        assert target is not None
        order = torch.channels_last if job.options.channels_last else torch.contiguous_format
        (objective,) = self.objectives
        self.gradient = objective.target = target.to(first.device, first.dtype, memory_format=order)
        objective.name = "logits"
        self.plain = _gradients(model)
        self._grad_input, self._grad_weight = self.plain

    def compile_gradients(self, compiled: Callable[[Part], Part]) -> None:
        """Compile gradInput and gradWeight with `compiled`; `call` covers the forward pass."""
        # Otherwise every replay of torch.compile's CUDA graph would copy them first.
        for tensor in (*self.inputs, self.gradient, *self.model.parameters()):
            torch._dynamo.mark_static_address(tensor)
        self._grad_input, self._grad_weight = map(compiled, self.plain)

    @torch.no_grad()
    def __call__(self, mark: Mark) -> Tensor:
        (x,), weight = self.inputs, self.model.get_parameter("weight")
        # Old gradients would add to the peak, and keep torch.compile from replaying a recorded graph over them.
        x.grad = None
        self.model.zero_grad(set_to_none=True)
        output: Tensor = self.call(x)
        mark("forward")
        x.grad = self._grad_input(self.gradient, x, weight)
        mark("grad_input")
        weight.grad, of_bias = self._grad_weight(self.gradient, x, weight)
        mark("grad_weight")
        self.model.get_parameter("bias").grad = of_bias
        return output

    @torch.no_grad()
    def few(self, items: int) -> None:
        """Run the three parts on the first items, not compiled."""
        x, gradient = self.inputs[0][:items], self.gradient[:items]
        self.model(x)
        for part in self.plain:
            part(gradient, x, self.model.get_parameter("weight"))


def _gradients(module: nn.Conv2d) -> tuple[Part, Part]:
    """Return a function for each gradient; autograd computes both in one call."""

    def backward(gradient: Tensor, x: Tensor, weight: Tensor, mask: list[bool]) -> Any:
        geometry = (module.stride, module.padding, module.dilation, False, [0, 0], module.groups)
        return torch.ops.aten.convolution_backward(gradient, x, weight, [module.out_channels], *geometry, mask)

    def grad_input(gradient: Tensor, x: Tensor, weight: Tensor) -> Any:
        return backward(gradient, x, weight, [True, False, False])[0]

    def grad_weight(gradient: Tensor, x: Tensor, weight: Tensor) -> Any:
        return backward(gradient, x, weight, [False, True, True])[1:]

    return grad_input, grad_weight


def make_optimizer(job: Job[TorchOptions], model: torch.nn.Module) -> torch.optim.Optimizer | None:
    """Make an optimizer, `fused` unless its name ends in "foreach", or None; a CUDA graph can capture it."""
    parameters = [p for p in model.parameters() if p.requires_grad]
    name, _, way = job.training.optimizer.partition("-")
    options: dict[str, Any] = {"lr": LEARNING_RATE, way or "fused": True}
    if name == "sgd":
        sgd = torch.optim.SGD(parameters, **SGD, **options)
        for p in parameters:
            # The fused step would leave it uninitialized if it skips the very first step (torch 2.13).
            sgd.state[p]["momentum_buffer"] = torch.zeros_like(p, memory_format=torch.preserve_format)
        return sgd
    if name == "adamw":
        # In fp16 squares of gradients below 0.008 underflow, and 1e-8 would divide by nearly nothing.
        captured, eps = job.options.cuda_graph, 1e-3 if job.precision == "fp16" else 1e-8
        return torch.optim.AdamW(parameters, eps=eps, **ADAMW, **options, capturable=captured)
    return None


def _sample(gradient: Tensor) -> Array:
    array: Array = sampled(gradient).float().cpu().numpy()
    return array
