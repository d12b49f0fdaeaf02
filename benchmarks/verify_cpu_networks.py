"""Networks whose calls take from a microsecond to a second on a CPU: one operator, many of it, a small transformer."""

from __future__ import annotations

import torch
from torch import nn


class Product(nn.Module):
    """`times` products of the batch with one `width` × `width` matrix, so that long calls need no more memory."""

    def __init__(self, width: int, times: int) -> None:
        super().__init__()
        self.linear = nn.Linear(width, width, bias=False)
        nn.init.orthogonal_(self.linear.weight)  # Values neither vanish nor explode.
        self.times = times

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for _ in range(self.times):
            x = self.linear(x)
        return x


class Encoder(nn.Module):
    """Two layers of a transformer's encoder, as a user would write them; a mask of padding keeps keys out.

    It has two inputs and two outputs.
    """

    def __init__(self, width: int = 128, heads: int = 4) -> None:
        super().__init__()
        self.heads = heads
        self.embedding = nn.Embedding(1000, width)
        self.attention = nn.ModuleList(nn.Linear(width, 4 * width) for _ in range(2))
        self.mixed = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(width), nn.Linear(width, width), nn.GELU()) for _ in range(2)
        )

    def forward(self, ids: torch.Tensor, mask: torch.Tensor) -> dict[str, torch.Tensor]:
        x, keep = self.embedding(ids), mask[:, None, None, :] > 0
        for attention, mixed in zip(self.attention, self.mixed, strict=True):
            q, k, v, gate = attention(x).unflatten(-1, (4 * self.heads, -1)).transpose(1, 2).chunk(4, dim=1)
            seen = nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=keep) * gate.sigmoid()
            x = mixed(x + seen.transpose(1, 2).flatten(2))
        return {"states": x, "pooled": x.mean(dim=1)}


def encoder() -> tuple[Encoder, dict[str, torch.Tensor]]:
    mask = (torch.arange(64) < torch.randint(1, 65, (4, 1))).long()
    return Encoder(), {"ids": torch.randint(1000, (4, 64)), "mask": mask}
