"""Define the zoo's models in plain torch, with random weights from torch's current seed."""

from __future__ import annotations

import itertools
import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

Examples = dict[str, Tensor]
"""Keyword arguments of a model, the batch first; the profiler measures them as they are."""


class Attention(nn.Module):
    """Attend from `x` to `context`, else to itself: (batch, tokens, width) in and out."""

    def __init__(self, width: int, heads: int, context: int | None = None) -> None:
        super().__init__()
        self.heads = heads
        self.query = nn.Linear(width, width)
        self.key_value = nn.Linear(context or width, 2 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x: Tensor, context: Tensor | None = None, mask: Tensor | None = None) -> Tensor:
        key, value = self.key_value(x if context is None else context).chunk(2, -1)
        query, key, value = (
            tensor.unflatten(-1, (self.heads, -1)).transpose(1, 2) for tensor in (self.query(x), key, value)
        )
        attended = F.scaled_dot_product_attention(query, key, value, attn_mask=mask)
        return self.out(attended.transpose(1, 2).flatten(2))


class Block(nn.Module):
    """A transformer layer, normalized before each part (https://arxiv.org/abs/2002.04745)."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.attention, self.norm1, self.norm2 = Attention(width, heads), nn.LayerNorm(width), nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        x = x + self.attention(self.norm1(x), mask=mask)
        return x + self.mlp(self.norm2(x))


class SentenceEncoder(nn.Module):
    """Map token ids and a padding mask to unit vectors: the mean of the last layer over a sentence's tokens."""

    def __init__(self, layers: int, width: int, heads: int, words: int, longest: int) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(words, width), nn.Embedding(longest, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        mask = attention_mask.bool()
        x = self.words(input_ids) + self.places(torch.arange(input_ids.shape[1], device=input_ids.device))
        for block in self.blocks:
            x = block(x, mask[:, None, None, :])
        weight = attention_mask[..., None].to(x.dtype)
        return F.normalize((self.norm(x) * weight).sum(1) / weight.sum(1), dim=-1)


def sentence_encoder(
    layers: int = 12, width: int = 384, heads: int = 12, words: int = 30522, longest: int = 512
) -> tuple[nn.Module, Examples, dict[str, Any]]:
    """Make a sentence encoder of MiniLM-L12's size, with examples of up to 64 tokens."""
    model = SentenceEncoder(layers, width, heads, words, longest)
    mask = (torch.arange(64) < torch.randint(1, 65, (64, 1))).long()
    examples = {"input_ids": torch.randint(words, (64, 64)), "attention_mask": mask}
    sequence = torch.export.Dim("sequence", max=longest)
    return model, examples, {name: {1: sequence} for name in examples}


class Residual(nn.Module):
    """Two convolutions with the time step between them, then attention to the text, as in a diffusion U-Net."""

    def __init__(self, before: int, after: int, time: int, text: int, heads: int) -> None:
        super().__init__()
        self.norm1, self.norm2, self.norm3 = (nn.GroupNorm(16, width) for width in (before, after, after))
        self.conv1, self.conv2 = nn.Conv2d(before, after, 3, padding=1), nn.Conv2d(after, after, 3, padding=1)
        self.time = nn.Linear(time, after)
        self.skip = nn.Conv2d(before, after, 1) if before != after else nn.Identity()
        self.self_attention, self.cross_attention = Attention(after, heads), Attention(after, heads, text)

    def forward(self, x: Tensor, time: Tensor, text: Tensor) -> Tensor:
        inner = self.conv1(F.silu(self.norm1(x))) + self.time(F.silu(time))[:, :, None, None]
        x = self.skip(x) + self.conv2(F.silu(self.norm2(inner)))
        pixels = self.norm3(x).flatten(2).transpose(1, 2)
        pixels = pixels + self.self_attention(pixels)
        pixels = pixels + self.cross_attention(pixels, text)
        return x + pixels.transpose(1, 2).unflatten(2, x.shape[2:])


class UNetStep(nn.Module):
    """Map noisy latents, a time step per item and a text's vectors to the noise, as a step of latent diffusion."""

    def __init__(self, widths: list[int], text: int, heads: int) -> None:
        super().__init__()
        self.first, self.time = nn.Conv2d(4, widths[0], 3, padding=1), nn.Linear(widths[0], 4 * widths[0])
        sizes = (4 * widths[0], text, heads)
        pairs = list(zip([widths[0], *widths], widths, strict=False))
        self.down = nn.ModuleList(Residual(before, after, *sizes) for before, after in pairs)
        self.pools = nn.ModuleList(nn.Conv2d(width, width, 3, 2, 1) for width in widths[:-1])
        self.middle = Residual(widths[-1], widths[-1], *sizes)
        self.up = nn.ModuleList(Residual(2 * after, before, *sizes) for before, after in reversed(pairs))
        self.last = nn.Conv2d(widths[0], 4, 3, padding=1)

    def forward(self, sample: Tensor, timestep: Tensor, encoder_hidden_states: Tensor) -> Tensor:
        half = self.time.in_features // 2
        rates = torch.exp(-math.log(10000) / half * torch.arange(half, device=timestep.device))
        angles = timestep[:, None] * rates
        time = self.time(torch.cat([angles.sin(), angles.cos()], -1).to(sample.dtype))
        x, skips = self.first(sample), []
        for level, block in enumerate(self.down):
            x = block(x, time, encoder_hidden_states)
            skips.append(x)
            if level < len(self.pools):
                x = self.pools[level](x)
        x = self.middle(x, time, encoder_hidden_states)
        for block in self.up:
            x = block(torch.cat([x, skips.pop()], 1), time, encoder_hidden_states)
            if skips:
                x = F.interpolate(x, scale_factor=2.0)
        return self.last(x)


def unet_step(
    widths: tuple[int, ...] = (320, 640, 1280), text: int = 768, heads: int = 8, side: int = 64
) -> tuple[nn.Module, Examples]:
    """Make Stable Diffusion 1's U-Net (https://arxiv.org/abs/2112.10752) with fewer blocks."""
    model, words = UNetStep(list(widths), text, heads), torch.randn(8, 77, text)
    sample, timestep = torch.randn(8, 4, side, side), torch.randint(1000, (8,))
    return model, {"sample": sample, "timestep": timestep, "encoder_hidden_states": words}


class UNet3d(nn.Module):
    """A U-Net of volumes (https://arxiv.org/abs/1606.06650): (batch, 1, depth, height, width) to classes by voxel."""

    def __init__(self, widths: list[int], classes: int) -> None:
        super().__init__()
        self.down = nn.ModuleList(_twice(b, a) for b, a in zip([1, *widths], widths, strict=False))
        self.grow = nn.ModuleList(nn.ConvTranspose3d(2 * w, w, 2, 2) for w in reversed(widths[:-1]))
        self.up = nn.ModuleList(_twice(2 * w, w) for w in reversed(widths[:-1]))
        self.last = nn.Conv3d(widths[0], classes, 1)

    def forward(self, x: Tensor) -> Tensor:
        skips = []
        for level, block in enumerate(self.down):
            x = block(F.max_pool3d(x, 2) if level else x)
            skips.append(x)
        skips.pop()
        for grow, block in zip(self.grow, self.up, strict=True):
            x = block(torch.cat([grow(x), skips.pop()], 1))
        return self.last(x)


def _twice(before: int, after: int) -> nn.Sequential:
    def layers(width: int) -> list[nn.Module]:
        return [nn.Conv3d(width, after, 3, padding=1), nn.InstanceNorm3d(after, affine=True), nn.ReLU()]

    return nn.Sequential(*layers(before), *layers(after))


def unet_3d(levels: int = 4, width: int = 32, classes: int = 4) -> nn.Module:
    return UNet3d([width * 2**level for level in range(levels)], classes)


class Lstm(nn.Module):
    """Map frames of a signal, (batch, frames, features), to classes by frame."""

    def __init__(self, features: int, width: int, layers: int, classes: int) -> None:
        super().__init__()
        self.lstm = nn.LSTM(features, width, layers, batch_first=True)
        self.last = nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.lstm(x)[0])


def lstm(features: int = 80, width: int = 1024, layers: int = 3, classes: int = 512) -> nn.Module:
    return Lstm(features, width, layers, classes)


class Recommender(nn.Module):
    """A recommender after DLRM (https://arxiv.org/abs/1906.00091) of dense features and one id per table."""

    pairs: Tensor
    starts: Tensor

    def __init__(self, tables: int, rows: int, width: int, dense: int) -> None:
        super().__init__()
        # One table holds all, so one lookup serves all ids.
        self.tables = nn.Embedding(tables * rows, width)
        self.register_buffer("starts", torch.arange(tables) * rows)
        self.register_buffer("pairs", torch.tril_indices(tables + 1, tables + 1, -1))
        self.bottom = _mlp([dense, 512, 256, width])
        self.top = _mlp([width + self.pairs.shape[1], 1024, 512, 256, 1])

    def forward(self, dense: Tensor, ids: Tensor) -> Tensor:
        bottom = self.bottom(dense)
        vectors = torch.cat([bottom[:, None], self.tables(ids + self.starts)], 1)
        products = torch.bmm(vectors, vectors.transpose(1, 2))[:, self.pairs[0], self.pairs[1]]
        return torch.sigmoid(self.top(torch.cat([bottom, products], 1)))


def _mlp(widths: list[int]) -> nn.Sequential:
    layers: list[nn.Module] = []
    for before, after in itertools.pairwise(widths):
        layers += [nn.Linear(before, after), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def recommender(
    tables: int = 26, rows: int = 100_000, width: int = 64, dense: int = 13, items: int = 2048
) -> tuple[nn.Module, Examples]:
    """Make a recommender for Criteo's 26 tables and 13 dense features: 0.7 GB of embeddings."""
    model = Recommender(tables, rows, width, dense)
    return model, {"dense": torch.randn(items, dense), "ids": torch.randint(rows, (items, tables))}


class Stack(nn.Module):
    """Transformer layers over vectors: (batch, tokens, width) in and out."""

    def __init__(self, layers: int, width: int, heads: int) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width)

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        return self.norm(x)


def large(layers: int = 12, width: int = 2048, heads: int = 16) -> nn.Module:
    """Make a model of 2.4 GB in fp32. A protobuf holds 2 GB, so its ONNX graph keeps the weights in another file."""
    return Stack(layers, width, heads)
