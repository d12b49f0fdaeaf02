"""Make the tensor from which a network's backward pass starts.

Measured iterations and the reference of their gradients share this module, so both differentiate the same thing.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.modules.dropout import _DropoutNd

SEED = 0
_DRAWN = 2
"""Items of a gradient, which repeat: a batch of a layer's outputs may fill a GPU, and is not to fill the host."""


def seeded_target(first: Tensor, head: str, batch: int) -> Tensor | None:
    """What the head needs for a batch of outputs like `first`, whose leading dimension is ignored; on its device.

    For the head "logits" the gradient of the output, (batch, classes or channels, …), of its type: of norm 1 over the
    channels, divided by the batch as a mean loss would. Else class labels, (batch,), where `first` holds logits,
    (items, classes), or None.
    """
    generator = torch.Generator().manual_seed(SEED)
    if head == "logits":
        drawn = min(batch, _DRAWN)
        gradient = torch.randn(drawn, *first.shape[1:], generator=generator)
        gradient /= batch * torch.linalg.vector_norm(gradient, dim=1, keepdim=True)
        return gradient.to(first.device, first.dtype)[torch.arange(batch, device=first.device) % drawn]
    if first.dim() != 2:
        return None
    return torch.randint(first.shape[1], (batch,), generator=generator).to(first.device)


def start_of_backward(first: Tensor, target: Tensor | None, head: str) -> tuple[Tensor, Tensor | None]:
    """The tensor to be differentiated and its gradient, None for a loss. Losses are computed in fp32 at least: cross
    entropy of logits; for any other output, its mean square. With the head "logits" it is the output itself."""
    if head == "logits":
        return first, target
    first = first.to(torch.promote_types(first.dtype, torch.float32))
    loss = first.square().mean() if target is None else nn.functional.cross_entropy(first, target)
    return loss, None


def prepare_to_train(model: nn.Module, dropout: bool) -> None:
    """Training mode; without `dropout` its modules pass everything on.

    So do those that hold a probability for a function to drop by (nn.MultiheadAttention.dropout, nn.LSTM.dropout,
    attention_dropout and layerdrop of transformers, drop_prob of timm), in an attribute with "drop" in its name.
    """
    model.train()
    if not dropout:
        for module in model.modules():
            if isinstance(module, _DropoutNd):
                module.eval()
                module.p = 0.0  # Attention hands it on where it is in training mode itself.
            for name, value in vars(module).items():
                if "drop" in name and isinstance(value, float):
                    setattr(module, name, 0.0)
