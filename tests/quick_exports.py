"""Let a process translate torch's operators to ONNX once, not for every export."""

from __future__ import annotations

import contextlib
import functools


def translate_once() -> None:
    """Keep the registry of 500 translated operators, which is always the same: half of a small export's time."""
    with contextlib.suppress(ImportError, AttributeError):  # torch's own, which another version may have elsewhere.
        from torch.onnx._internal.exporter._registration import ONNXRegistry

        if not hasattr(ONNXRegistry.from_torchlib, "cache_info"):
            ONNXRegistry.from_torchlib = staticmethod(functools.cache(ONNXRegistry.from_torchlib))  # type: ignore[method-assign]
