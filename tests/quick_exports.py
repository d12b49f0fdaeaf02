"""Let processes prepare once what is always the same: torch's exporter to ONNX, and the script of the pages."""

from __future__ import annotations

import contextlib
import functools
from pathlib import Path

import vl_convert

from exporters.cache import Cache
from exporters.source import digest


def translate_once() -> None:
    """Keep the registry of 500 translated operators, which is always the same: half of a small export's time."""
    with contextlib.suppress(ImportError, AttributeError):  # torch's own, which another version may have elsewhere.
        from torch.onnx._internal.exporter._registration import ONNXRegistry

        if not hasattr(ONNXRegistry.from_torchlib, "cache_info"):
            ONNXRegistry.from_torchlib = staticmethod(functools.cache(ONNXRegistry.from_torchlib))


def bundle_once(shared: Cache) -> None:
    """Keep what vl_convert makes of Vega, which takes it 2.5 s for each cache that a test gives its runs."""
    bundle = vl_convert.javascript_bundle

    def bundled(snippet: str) -> str:
        path, _ = shared.entry("bundle", digest([snippet]), ".js", lambda path: write(path, bundle(snippet)))
        return path.read_text(encoding="utf-8")

    def write(path: Path, text: str) -> None:
        path.write_text(text, encoding="utf-8")

    vl_convert.javascript_bundle = bundled


def export_ahead() -> None:
    """Export a layer for any batch size, so that processes forked later have what torch imports and translates for it.

    It runs no kernel, and tqdm is kept from its monitor: a fork would lack their threads.
    """
    import tempfile

    from torch import nn

    from exporters.inputs import TensorSpec
    from exporters.onnx_export import write_onnx

    with contextlib.suppress(ImportError):
        from tqdm import tqdm

        tqdm.monitor_interval = 0
    with tempfile.TemporaryDirectory() as folder:
        specs = [TensorSpec("x", ("batch", 1), "float32")]
        write_onnx(nn.Linear(1, 1), specs, "fp32", Path(folder) / "ahead.onnx")
