"""Files of weights that are damaged, or would run code, and how each ends that is given to a product of 3 and 4.

`WEIGHTS` has by name the file's suffix, who writes it, the status, and a pattern of the sentence that its row gets.
"""

from __future__ import annotations

import io
import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

W, B = torch.arange(12.0).reshape(3, 4), torch.ones(3)
Maker = Callable[[Path], object]


class Runs:
    """Create a file when unpickled."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> Any:
        return (Path.touch, (self.marker,))


def saved(weight: Any = W, **more: Any) -> Maker:
    return lambda path: torch.save({"weight": weight, "bias": B}, path, **more)


def of(content: bytes) -> Maker:
    return lambda path: path.write_bytes(content)


def with_code(path: Path) -> None:
    torch.save({"weight": Runs(path.with_name("code ran")), "bias": B}, path)


def with_code_as_long_ago(path: Path) -> None:
    torch.save({"weight": Runs(path.with_name("code ran"))}, path, _use_new_zipfile_serialization=False)


def headed(header: Any, data: int = 60, length: int | None = None) -> Maker:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return of(struct.pack("<Q", len(text) if length is None else length) + text + bytes(data))


def described(shape: list[int], bias_at: int = 48) -> dict[str, Any]:
    bias = {"dtype": "F32", "shape": [3], "data_offsets": [bias_at, bias_at + 12]}
    return {"weight": {"dtype": "F32", "shape": shape, "data_offsets": [0, 48]}, "bias": bias}


_CODE = r"not a readable state dict \(it holds [\w. ]+; only tensors are read: others could run code\)"
_TYPE = r"weight is torch.{}, not torch.float32"
_UNREADABLE = r"not a readable state dict \("
WEIGHTS: dict[str, tuple[str, Maker, str, str]] = {
    "good": (".pt", saved(), "ok", ""),
    "as long ago": (".pt", saved(_use_new_zipfile_serialization=False), "ok", ""),
    "half": (".pt", saved(W.half()), "ok", ""),
    "int8": (".pt", saved(W.to(torch.int8)), "failed", _TYPE.format("int8")),
    "complex": (".pt", saved(W * 1j), "failed", _TYPE.format("complex64")),
    "quantized": (".pt", saved(torch.quantize_per_tensor(W, 0.1, 0, torch.qint8)), "failed", _TYPE.format("qint8")),
    "code": (".pt", with_code, "failed", _CODE),
    "code as long ago": (".pt", with_code_as_long_ago, "failed", _CODE),
    "a whole module": (".pt", lambda path: torch.save(torch.nn.Linear(4, 3), path), "failed", _CODE),
    "a script": (".pt", lambda path: torch.jit.script(torch.nn.Linear(4, 3)).save(path), "failed", _CODE),
    "a list": (".pt", lambda path: torch.save([W, B], path), "failed", r"no state dict of tensors"),
    "cut off": (".pt", lambda path: path.write_bytes(good()[:-200]), "failed", _UNREADABLE),
    "empty": (".pt", of(b""), "failed", _UNREADABLE),
    "text": (".pt", of(b"hello"), "failed", _UNREADABLE),
    "garbage": (".pt", of(bytes(range(128, 228))), "failed", rf"{_UNREADABLE}it is damaged, or no checkpoint"),
    "safetensors": (".safetensors", lambda path: save_file({"weight": W, "bias": B}, path), "ok", ""),
    "safetensors cut off": (".safetensors", headed(described([3, 4]), 30), "failed", _UNREADABLE),
    "safetensors of 2^62": (".safetensors", headed(described([2**60, 4])), "failed", _UNREADABLE),
}


def good() -> bytes:
    file = io.BytesIO()
    torch.save({"weight": W, "bias": B}, file)
    return file.getvalue()


def with_a_spectrum() -> torch.nn.Module:
    """A model with complex weights, as of Fourier layers or rotary embeddings; what a factory is."""
    model = torch.nn.Linear(4, 3)
    model.register_buffer("spectrum", torch.ones(3) * 1j)
    return model
