"""Run training iterations of a module on its device, and read their gradients."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
import torch
from torch import Tensor

from engines.base import Array, Job, Mark, ignore
from engines.catalog import TorchOptions
from exporters.calls import call as call_module
from exporters.calls import trained_output
from exporters.gradients import of_reference_items, positions
from exporters.inputs import BATCH, first_items
from exporters.loss import prepare_to_train, seeded_target, start_of_backward
from exporters.source import ModelError

AUTOCAST = {"amp-fp16": torch.float16, "amp-bf16": torch.bfloat16}
LEARNING_RATE = 1e-6
"""So small that weights stay what they are over thousands of iterations on one batch: they neither overflow nor learn
it by heart, after which gradients would be zeros, with which a GPU draws less power. No time depends on it."""
SGD: Mapping[str, Any] = {"momentum": 0.9, "weight_decay": 1e-4}
ADAMW: Mapping[str, Any] = {"betas": (0.9, 0.999), "weight_decay": 0.01}
"""Torch's defaults."""
_HALVINGS = 32
"""Of a loss scale that starts at 65536."""


class TrainingStep:
    """One iteration: forward pass, backward pass and optimizer step, a mark behind each; it returns the loss.

    With the head "logits" it returns the network's first output. `call` runs the forward pass: the module, or what has
    been compiled of it. Gradients are left in the parameters, and in the inputs where they are asked for.
    """

    def __init__(
        self, job: Job[TorchOptions], model: torch.nn.Module, inputs: Sequence[Tensor], call: Callable[..., Any]
    ) -> None:
        self.head, self.device = job.training.head, job.device
        self.model, self.inputs, self.call, self.specs = model, inputs, call, job.specs
        self.outputs, self.batch = job.source.outputs, job.batch_size
        self._type = AUTOCAST.get(job.precision)
        with torch.no_grad(), self._autocast():
            # In eval mode, where one item will do and statistics stay as they are.
            first = self._trained(model.eval(), first_items(self.specs, inputs, 1))
        if first.dim() and len(first) != 1 and any(BATCH in spec.shape for spec in self.specs):
            shape = tuple(first.shape)
            raise ModelError(f"training starts from an output of shape {shape} for one item: name another in `outputs`")
        self.target = seeded_target(first, self.head, self.batch)
        prepare_to_train(model, job.training.dropout)
        for x in inputs:
            x.requires_grad_(job.training.input_gradient)
        self.optimizer = make_optimizer(job, model)
        # Nobody on the host has to wait and look for infinities: a fused optimizer skips such a step by itself. Where a
        # scaler is not enabled, it passes everything on, and its scale is 1.
        self.scaler = torch.amp.GradScaler(job.device, enabled=self._type == torch.float16)
        self._scale: float | None = None

    def __call__(self, mark: Mark) -> Tensor:
        if self._scale is None:
            self._scale = self._find_scale()
        result = self.forward_and_backward(self.call, self.inputs, self.target, mark)
        if self.optimizer is not None:
            self.scaler.step(self.optimizer)
            self.scaler.update()
            mark("step")
        return result

    def forward_and_backward(
        self, call: Callable[..., Any], inputs: Sequence[Tensor], target: Tensor | None, mark: Mark
    ) -> Tensor:
        """The loss (or output) of these items; parameters and inputs keep their gradients, times the loss scale."""
        self.model.zero_grad(set_to_none=True)
        for x in inputs:
            x.grad = None
        with self._autocast():
            first = self._trained(call, inputs)
        root, gradient = start_of_backward(first, target, self.head)
        mark("forward")
        if gradient is None:
            self.scaler.scale(root).backward()
        else:
            root.backward(self.scaler.scale(gradient))
        mark("backward")
        return root.detach()

    def few(self, items: int) -> None:
        """Forward and backward pass of the first items by the module itself, for whoever looks at its operators."""
        target = None if self.target is None else self.target[:items]
        inputs = first_items(self.specs, [x.detach() for x in self.inputs], items)
        inputs = [x.requires_grad_(own.requires_grad) for x, own in zip(inputs, self.inputs, strict=True)]
        self.forward_and_backward(self.model, inputs, target, ignore)

    def optimizer_bytes(self) -> int:
        """Of the optimizer's state, and of the loss scale."""
        states = self.optimizer.state.values() if self.optimizer is not None else ()
        tensors = [value for state in states for value in state.values() if isinstance(value, Tensor)]
        if self.scaler.is_enabled():
            tensors += [t for t in (self.scaler._scale, self.scaler._growth_tracker) if t is not None]
        return sum(t.nbytes for t in tensors)

    @torch.no_grad()
    def start_again(self, state: Mapping[str, Tensor], inputs: Sequence[Array], target: Array | None) -> None:
        """Copy weights, statistics and items into the very tensors that iterations use, as a captured graph needs."""
        self.model.load_state_dict(state)
        for own, array in zip(self.inputs, inputs, strict=True):
            own.copy_(torch.from_numpy(array))
        if self.target is not None:
            assert target is not None
            self.target.copy_(torch.from_numpy(target))
        if self._scale is not None:
            self.scaler.update(self._scale)

    def gradients(self, run: Callable[[], object]) -> dict[str, Array]:
        """Of `run`, one iteration: up to 4096 elements of each parameter's gradient, unscaled, as float32.

        An input's is of the first items, as if the batch were only these (`reference_items`). What has no gradient is
        left out. As in training, an iteration whose gradients overflowed is followed by one with half the loss scale.
        """
        for _ in range(_HALVINGS if self.scaler.is_enabled() else 1):
            scale = self.scaler.get_scale()
            run()
            sampled = {name: _sample(p.grad) for name, p in self.model.named_parameters() if p.grad is not None}
            # The optimizer unscales them where they are, unless it skipped its step.
            unscaled = sampled if self.optimizer is not None else {k: g / np.float32(scale) for k, g in sampled.items()}
            of_inputs = of_reference_items(self.specs, [x.grad for x in self.inputs], self.batch)
            unscaled |= {name: _sample(part) * np.float32(factor / scale) for name, part, factor in of_inputs}
            if self._is_finite():
                return unscaled
            self.scaler.update(scale / 2)
        return unscaled

    def _trained(self, call: Callable[..., Any], inputs: Sequence[Tensor]) -> Tensor:
        return trained_output(call_module(call, self.specs, inputs), self.outputs)

    def _find_scale(self) -> float:
        """The largest loss scale with which nothing overflows, so that no timed step is skipped for it."""
        for _ in range(_HALVINGS if self.scaler.is_enabled() else 0):
            self.forward_and_backward(self.call, self.inputs, self.target, ignore)
            if self._is_finite():
                break
            self.scaler.update(self.scaler.get_scale() / 2)
        return self.scaler.get_scale()

    def _is_finite(self) -> bool:
        gradients = [tensor.grad for tensor in (*self.model.parameters(), *self.inputs) if tensor.grad is not None]
        return all(bool(torch.isfinite(g).all()) for g in gradients)

    def _autocast(self) -> AbstractContextManager[Any]:
        return contextlib.nullcontext() if self._type is None else torch.autocast(self.device, self._type)


def make_optimizer(job: Job[TorchOptions], model: torch.nn.Module) -> torch.optim.Optimizer | None:
    """One kernel a step (`fused`), whose work on a GPU can be captured. SGD with momentum and weight decay, AdamW with
    torch's defaults."""
    parameters = [p for p in model.parameters() if p.requires_grad]
    if job.training.optimizer == "sgd":
        sgd = torch.optim.SGD(parameters, lr=LEARNING_RATE, **SGD, fused=True)
        for p in parameters:
            # Left to itself the fused step keeps it uninitialized when the first step of all is skipped (torch 2.13).
            sgd.state[p]["momentum_buffer"] = torch.zeros_like(p, memory_format=torch.preserve_format)
        return sgd
    if job.training.optimizer == "adamw":
        captured, eps = job.options.cuda_graph, epsilon(job.precision)
        return torch.optim.AdamW(parameters, lr=LEARNING_RATE, eps=eps, **ADAMW, fused=True, capturable=captured)
    return None


def epsilon(precision: str) -> float:
    """AdamW's. In fp16 squares of gradients below 0.008 underflow in its state: 1e-8 would divide by nearly nothing."""
    return 1e-3 if precision == "fp16" else 1e-8


def _sample(gradient: Tensor) -> Array:
    where = torch.from_numpy(positions(gradient.numel())).to(gradient.device)
    # Not flattened first: that would copy a gradient whose memory order is another one.
    sampled: Array = gradient[torch.unravel_index(where, gradient.shape)].float().cpu().numpy()
    return sampled
