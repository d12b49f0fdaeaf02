"""A module of given parts whose forward is a given function, for factories of few lines."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn


class Does(nn.Module):
    def __init__(self, forward: Callable[..., Any], **parts: Any) -> None:
        super().__init__()
        self.does = forward
        for name, part in parts.items():
            self.register_buffer(name, part) if type(part) is torch.Tensor else setattr(self, name, part)

    def forward(self, x: Any) -> Any:
        return self.does(self, x)
