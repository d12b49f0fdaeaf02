"""Start a backward pass: from a loss of a module's result, or from a fixed gradient of an output.

Measured iterations and the reference of their gradients share this module, so both differentiate the same thing.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from exporters.calls import named_outputs, trained_output
from exporters.errors import sentence
from exporters.gradients import Array, tiled
from exporters.source import ModelError

SEED = 0
MODEL_LOSS = "own"
"""The head of a module that returns its loss under the name "loss"."""
Loss = Callable[[Any, Sequence[Tensor]], Tensor]
"""Takes a module's result and its inputs."""
_FORMS = {
    2: ("cross-entropy", 1),
    3: ("token-cross-entropy", 2),
    4: ("pixel-cross-entropy", 1),
    5: ("pixel-cross-entropy", 1),
}
"""Forms of cross entropy and their axis of classes, by the number of the output's dimensions."""
_DRAWN = 2
"""Distinct rows of a drawn gradient: a layer's outputs may fill a GPU, but should not fill the host."""


def form(head: str, shape: Sequence[int]) -> str:
    """Name the head's form for an output of this shape: cross entropy has several, and needs two classes."""
    if head != "cross-entropy":
        return head
    name, axis = _FORMS.get(len(shape), ("mean-square", 0))
    return name if shape and shape[axis] > 1 else "mean-square"


def draw(name: str, shape: Sequence[int]) -> Tensor | None:
    """Draw a form's target for an output of this shape: classes, a gradient for "logits", None for "mean-square".

    The gradient has norm 1 over axis 1, divided by the rows as a mean loss would.
    """
    generator = torch.Generator().manual_seed(SEED)
    if name == "mean-square":
        return None
    if name != "logits":
        axis = _FORMS[len(shape)][1]
        return torch.randint(shape[axis], (*shape[:axis], *shape[axis + 1 :]), generator=generator)
    if not shape:
        return torch.ones(())
    rows, drawn = shape[0], min(shape[0], _DRAWN)
    gradient = torch.randn(drawn, *shape[1:], generator=generator)
    norm = gradient.abs() if len(shape) == 1 else torch.linalg.vector_norm(gradient, dim=1, keepdim=True)
    return (gradient / (rows * norm))[torch.arange(rows) % drawn]


class Objective:
    """Start the backward pass of results of one shape.

    The first result sets `name`, the form of the head, and `target`, drawn or repeated from a smaller batch's.
    """

    def __init__(
        self, head: str, outputs: Sequence[str] = (), inputs: Sequence[str] = (), small_target: Array | None = None
    ) -> None:
        self.head, self.outputs, self.small_target = head, outputs, small_target
        self.name = ""
        self.target: Tensor | None = None
        self._loss = user_loss(head, inputs) if ":" in head else None

    def start(self, result: Any, inputs: Sequence[Tensor]) -> tuple[Tensor, Tensor | None]:
        """Return the tensor to differentiate, and its gradient for the head "logits"; a loss is at least in fp32."""
        if self._loss is not None:
            self.name = self.head
            return self._loss(result, inputs), None
        if not self.name and self.head == "cross-entropy" and self.outputs[:1] in ((), ("loss",)):
            loss = named_outputs(result).get("loss")
            self.name = MODEL_LOSS if loss is not None and loss.is_floating_point() else ""
        if self.name == MODEL_LOSS:
            return named_outputs(result)["loss"].mean(), None
        first = trained_output(result, self.outputs)
        if not self.name:
            self._begin(first)
        if self.name == "logits":
            return first, self.target
        first = first.to(torch.promote_types(first.dtype, torch.float32))
        if self.target is None:
            return first.square().mean(), None
        if self.name == "token-cross-entropy":
            return cross_entropy(first.flatten(0, 1), self.target.flatten()), None
        return cross_entropy(first, self.target), None

    @torch.no_grad()
    def refill(self, small_target: Array | None) -> None:
        """Copy a smaller batch's target into the tensor that iterations read, as a captured graph needs."""
        self.small_target = small_target
        if self.target is not None:
            assert small_target is not None
            self.target.copy_(torch.from_numpy(tiled(small_target, self.target.shape, self.name == "logits")))

    def _begin(self, first: Tensor) -> None:
        self.name = form(self.head, first.shape)
        target = draw(self.name, first.shape)
        if target is not None:
            dtype = first.dtype if self.name == "logits" else target.dtype
            is_nhwc = target.dim() == 4 and first.is_contiguous(memory_format=torch.channels_last)
            order = torch.channels_last if is_nhwc and not first.is_contiguous() else torch.contiguous_format
            self.target = target.to(first.device, dtype, memory_format=order)
            if self.small_target is not None:
                self.refill(self.small_target)
            elif target.dtype == torch.long:  # The loss of a masked class is infinite.
                axis = _FORMS[first.dim()][1]
                is_masked = first.gather(axis, self.target.unsqueeze(axis)).squeeze(axis).isneginf()
                self.target = torch.where(is_masked, first.argmax(axis), self.target)


def user_loss(word: str, names: Sequence[str]) -> Loss:
    """Import a loss, a function of the result and of the inputs that its parameters name. Raises ModelError.

    If the names do not match, it takes the first inputs; `*inputs` takes all of them.
    """
    module, _, name = word.partition(":")
    try:
        function = getattr(importlib.import_module(module), name)
        # A module's own signature is (*args, **kwargs).
        parameters = list(inspect.signature(getattr(function, "forward", function)).parameters.values())[1:]
    except Exception as error:
        raise ModelError(f"loss {word!r} cannot be imported: {sentence(error)}") from error
    takes_all = any(p.kind is p.VAR_POSITIONAL for p in parameters)
    takes_names = any(p.kind is p.VAR_KEYWORD for p in parameters)
    parameters = [p for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    required = [p.name for p in parameters if p.default is p.empty]

    def loss(result: Any, inputs: Sequence[Tensor]) -> Tensor:
        named = dict(zip(names, inputs, strict=False))
        if takes_all:
            value = function(result, *inputs)
        elif named.keys() >= set(required):
            arguments = named if takes_names else {p.name: named[p.name] for p in parameters if p.name in named}
            value = function(result, **arguments)
        else:
            value = function(result, *inputs[: len(required)])
        if not isinstance(value, Tensor) or value.numel() != 1 or not value.is_floating_point():
            kind = f"a tensor of shape {tuple(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
            raise ModelError(f"loss {word!r} returned {kind}: return one number, a tensor of floats")
        return value

    return loss
