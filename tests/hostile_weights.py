"""Files of weights that are damaged, or would run code, and how each ends that is given to a product of 3 and 4.

`WEIGHTS` has by name the file's suffix, who writes it, the status, and a pattern of the sentence that its row gets.
"""

from __future__ import annotations

import io
import json
import pickle
import struct
import zipfile
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


def good() -> bytes:
    file = io.BytesIO()
    torch.save({"weight": W, "bias": B}, file)
    return file.getvalue()


def with_code(path: Path) -> None:
    torch.save({"weight": Runs(path.with_name("code ran")), "bias": B}, path)


def with_code_alone(path: Path) -> None:
    path.write_bytes(pickle.dumps(Runs(path.with_name("code ran"))))


def with_code_as_long_ago(path: Path) -> None:
    torch.save({"weight": Runs(path.with_name("code ran"))}, path, _use_new_zipfile_serialization=False)


def bomb(path: Path) -> None:
    """A quarter of a GiB in a file of 300 KB."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("archive/data.pkl", bytes(2**28))


def headed(header: Any, data: int = 60, length: int | None = None) -> Maker:
    """A .safetensors file."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return of(struct.pack("<Q", len(text) if length is None else length) + text + bytes(data))


def described(shape: list[int], bias_at: int = 48) -> dict[str, Any]:
    bias = {"dtype": "F32", "shape": [3], "data_offsets": [bias_at, bias_at + 12]}
    return {"weight": {"dtype": "F32", "shape": shape, "data_offsets": [0, 48]}, "bias": bias}


_CODE = r"not a readable state dict \(it holds [\w. ]+; only tensors are read, for others could run code\)"
_TYPE = r"1 of another type \(weight {} instead of float32\); a number means something else in another type"
_UNREADABLE = r"not a readable state dict \("
WEIGHTS: dict[str, tuple[str, Maker, str, str]] = {
    "good": (".pt", of(good()), "ok", ""),
    "as long ago": (".pt", saved(_use_new_zipfile_serialization=False), "ok", ""),
    "half": (".pt", saved(W.half()), "ok", ""),
    "double": (".pt", saved(W.double()), "ok", ""),
    "int8": (".pt", saved(W.to(torch.int8)), "failed", _TYPE.format("int8")),
    "bool": (".pt", saved(W > 0), "failed", _TYPE.format("bool")),
    "complex": (".pt", saved(W * 1j), "failed", _TYPE.format("complex64")),
    "sparse": (".pt", saved(W.to_sparse()), "failed", _TYPE.format("sparse_coo float32")),
    "quantized": (".pt", saved(torch.quantize_per_tensor(W, 0.1, 0, torch.qint8)), "failed", _TYPE.format("qint8")),
    "int8 in safetensors": (
        ".safetensors",
        lambda path: save_file({"weight": W.to(torch.int8), "bias": B}, path),
        "failed",
        _TYPE.format("int8"),
    ),
    "without values": (".pt", saved(W.to("meta")), "failed", r"weight is no array of numbers"),
    "nested": (".pt", saved(torch.nested.nested_tensor([W, W])), "failed", r"weight is no array of numbers"),
    "code": (".pt", with_code, "failed", _CODE),
    "nothing but code": (".pt", with_code_alone, "failed", _CODE),
    "code as long ago": (".pt", with_code_as_long_ago, "failed", _CODE),
    "a whole module": (".pt", lambda path: torch.save(torch.nn.Linear(4, 3), path), "failed", _CODE),
    "a list": (".pt", lambda path: torch.save([W, B], path), "failed", r"no state dict of tensors"),
    "numbers for keys": (".pt", lambda path: torch.save({1: W, 2: B}, path), "failed", r"no state dict of tensors"),
    "compressed": (".pt", bomb, "failed", r"data.pkl in it is compressed, which torch.save never does"),
    "cut off": (".pt", of(good()[:-200]), "failed", _UNREADABLE),
    "half a file": (".pt", of(good()[: len(good()) // 2]), "failed", _UNREADABLE),
    "empty": (".pt", of(b""), "failed", r"not a readable state dict \(EOFError\)"),
    "text": (".pt", of(b"hello"), "failed", _UNREADABLE),
    "safetensors cut off": (".safetensors", headed(described([3, 4]), 30), "failed", _UNREADABLE),
    "safetensors with half a header": (".safetensors", headed(b"{", 0, 16), "failed", _UNREADABLE),
    "safetensors with a header of 2^62": (".safetensors", headed(b"{}", 0, 2**62), "failed", _UNREADABLE),
    "safetensors whose tensors overlap": (".safetensors", headed(described([3, 4], 40), 52), "failed", _UNREADABLE),
    "safetensors of 2^62": (".safetensors", headed(described([2**60, 4])), "failed", _UNREADABLE),
    "safetensors of 100,000 levels": (".safetensors", headed(b"[" * 100_000), "failed", _UNREADABLE),
    "a .pt called .safetensors": (".safetensors", of(good() + b"\0"), "failed", _UNREADABLE),
}


def with_a_spectrum() -> torch.nn.Module:
    """A model with complex weights, as of Fourier layers or rotary embeddings; what a factory is."""
    model = torch.nn.Linear(4, 3)
    model.register_buffer("spectrum", torch.ones(3) * 1j)
    return model
