"""Train a single layer, so that the three parts of its pass can be timed apart."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from engines.base import Job, Mark
from engines.catalog import TorchOptions
from engines.pytorch.training_step import TrainingStep

Part = Callable[[Tensor, Tensor, Tensor], Any]
"""gradInput or gradWeight: a function of the output's gradient, the input and the weights."""


class LayerStep(TrainingStep):
    """One iteration: forward, gradInput and gradWeight (with it the bias's gradient), a mark behind each.

    It starts from a fixed gradient of the output, the head "logits", and returns the output. The gradients lie where
    autograd would have put them, in `grad` of the input and of the parameters.
    """

    def __init__(
        self, job: Job[TorchOptions], model: nn.Module, inputs: Sequence[Tensor], call: Callable[..., Any]
    ) -> None:
        super().__init__(job, model, inputs, call)
        assert self.target is not None, "a layer's training pass starts from a gradient of its output"
        if job.options.channels_last and self.target.dim() == 4:
            self.target = self.target.to(memory_format=torch.channels_last)
        self.gradient = self.target
        self.plain = _convolution(model) if isinstance(model, nn.Conv2d) else _linear(model)
        self._grad_input, self._grad_weight = self.plain

    def compile_gradients(self, compiled: Callable[[Part], Part]) -> None:
        """Put what `compiled` makes of gradInput and of gradWeight in their place; `call` is the forward pass's."""
        # So that a CUDA graph that torch.compile records reads them where they are: else each replay copies them first.
        for tensor in (*self.inputs, self.gradient, *self.model.parameters()):
            torch._dynamo.mark_static_address(tensor)
        self._grad_input, self._grad_weight = map(compiled, self.plain)

    @torch.no_grad()
    def __call__(self, mark: Mark) -> Tensor:
        (x,), weight = self.inputs, self.model.get_parameter("weight")
        # Kept, the last iteration's gradients would lie next to this one's at the peak, and a graph that torch.compile
        # has recorded could not be replayed over them.
        x.grad = None
        self.model.zero_grad(set_to_none=True)
        output: Tensor = self.call(x)
        mark("forward")
        x.grad = self._grad_input(self.gradient, x, weight)
        mark("grad_input")
        weight.grad, of_bias = self._grad_weight(self.gradient, x, weight)
        mark("grad_weight")
        if of_bias is not None:
            self.model.get_parameter("bias").grad = of_bias
        return output

    @torch.no_grad()
    def few(self, items: int) -> None:
        """The three parts of the first items, not compiled."""
        x, gradient = self.inputs[0][:items], self.gradient[:items]
        self.model(x)
        for part in self.plain:
            part(gradient, x, self.model.get_parameter("weight"))


def _convolution(module: nn.Conv2d) -> tuple[Part, Part]:
    """Each gradient by a call of its own: autograd asks in one call, and cuDNN then computes one after the other."""
    bias_sizes = None if module.bias is None else [module.out_channels]

    def backward(gradient: Tensor, x: Tensor, weight: Tensor, mask: list[bool]) -> Any:
        geometry = (module.stride, module.padding, module.dilation, False, [0, 0], module.groups)
        return torch.ops.aten.convolution_backward(gradient, x, weight, bias_sizes, *geometry, mask)

    def grad_input(gradient: Tensor, x: Tensor, weight: Tensor) -> Any:
        return backward(gradient, x, weight, [True, False, False])[0]

    def grad_weight(gradient: Tensor, x: Tensor, weight: Tensor) -> Any:
        return backward(gradient, x, weight, [False, True, bias_sizes is not None])[1:]

    return grad_input, grad_weight


def _linear(module: nn.Module) -> tuple[Part, Part]:
    biased = module.bias is not None

    def grad_input(gradient: Tensor, x: Tensor, weight: Tensor) -> Any:
        return gradient @ weight

    def grad_weight(gradient: Tensor, x: Tensor, weight: Tensor) -> Any:
        return gradient.t() @ x, gradient.sum(0) if biased else None

    return grad_input, grad_weight
