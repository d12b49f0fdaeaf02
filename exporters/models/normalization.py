"""Normalize activations (batch, channels, height, width) across channels."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn


class LocalResponseNorm(nn.LocalResponseNorm):
    """`torch.nn.LocalResponseNorm` that exports as one ONNX LRN node, with the same mathematics and no parameters.

    Left alone, torch decomposes it into ten nodes around a three-dimensional AveragePool, which has no fp16 or bf16
    kernel on the CPU and hides the layer from runtimes that fuse LRN (ORT's CUDA provider and TensorRT each have it as
    one kernel). ONNX's alpha is divided by the window's size as torch's is.
    """

    def forward(self, input: Tensor) -> Tensor:
        if torch.onnx.is_in_onnx_export():
            attributes: dict[str, Any] = {"alpha": self.alpha, "beta": self.beta, "bias": self.k, "size": self.size}
            # LRN-13 is the operator's newest version: https://onnx.ai/onnx/operators/onnx__LRN.html
            dtype, shape = input.dtype, input.shape
            return torch.onnx.ops.symbolic("LRN", (input,), attributes, dtype=dtype, shape=shape, version=13)
        return super().forward(input)
