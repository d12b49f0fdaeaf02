"""Take aligned device memory with pinned twins on the host, and free it together.

The driver is an argument, since only engines/tensorrt_engines/session.py imports pycuda.
"""

from __future__ import annotations

import contextlib
import math
import weakref
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from engines.base import Array

ALIGNMENT = 256
"""Bytes. TensorRT asks for it of every address that it is given."""


class Buffers:
    """Memory in a GPU's primary context, which is the one that torch works in.

    The context is current to pycuda only while memory is taken or freed: torch has made the same one current in this
    thread, and pycuda ends the process if one of its own still is current when the process ends.
    """

    def __init__(self, driver: Any, device: int) -> None:
        self._driver = driver
        self._primary = driver.Device(device).retain_primary_context()
        self._taken = contextlib.ExitStack()
        # Last of all: pycuda lets memory leak without a word if its context was given back before.
        self._taken.callback(self._primary.detach)
        # Where nobody frees, this does once nobody holds these buffers: pycuda gives a primary context back wrongly.
        self._free = weakref.finalize(self, self._taken.close)
        self.size = 0
        """Bytes on the device that were asked for."""
        self.padding = 0
        """Bytes on the device that were taken beyond those, for the alignment."""

    def block(self, size: int) -> int:
        """The aligned address of `size` bytes on the device. Raises pycuda's MemoryError if there are not as many."""
        with self._current():
            address = self._take(max(size, 1))
            if address % ALIGNMENT:  # Not seen yet, and not ruled out: cuMemAlloc promises no figure.
                address = -(-self._take(size + ALIGNMENT) // ALIGNMENT) * ALIGNMENT
                self.padding += size + ALIGNMENT
        assert address % ALIGNMENT == 0
        self.size += size
        return address

    def tensor(self, shape: tuple[int, ...], dtype: torch.dtype, on_host: bool = False) -> Buffer:
        """Memory for a contiguous tensor; `on_host` leaves it at the pinned twin."""
        size = math.prod(shape) * dtype.itemsize
        with self._current():
            pinned = self._driver.pagelocked_empty(max(size, 1), "uint8")
            self._taken.callback(pinned.base.free)
        address = pinned.ctypes.data if on_host else self.block(size)
        return Buffer(self._driver, shape, dtype, int(address), pinned[:size], on_host)

    def free(self) -> None:
        """Free all of it, in the reverse order, and give the context back; nothing is left to do for a second call."""
        self._free()

    def _take(self, size: int) -> int:
        allocation = self._driver.mem_alloc(size)
        self._taken.callback(allocation.free)
        return int(allocation)

    @contextlib.contextmanager
    def _current(self) -> Iterator[None]:
        self._primary.push()
        try:
            yield
        finally:
            self._driver.Context.pop()


@dataclass(frozen=True)
class Buffer:
    """A tensor's memory; `pinned` are its bytes on the host, `address` is where the device has it."""

    driver: Any
    shape: tuple[int, ...]
    dtype: torch.dtype
    address: int
    pinned: Array
    on_host: bool

    def upload(self, array: Array) -> None:
        """Cast the array to the buffer's type and copy it. The copy has ended when this returns."""
        # torch reads neither bfloat16 nor float8 from numpy, whose ml_dtypes are of kind "V".
        tensor = torch.from_numpy(array.astype("float32") if array.dtype.kind == "V" else array)
        self.pinned[:] = tensor.to(self.dtype).contiguous().reshape(-1).view(torch.uint8).numpy()
        if not self.on_host and self.pinned.size:
            self.driver.memcpy_htod(self.address, self.pinned)

    def download(self) -> Array:
        """The tensor: floats as float32, integers and bools as they are. What writes it must have ended."""
        if not self.on_host and self.pinned.size:
            self.driver.memcpy_dtoh(self.pinned, self.address)
        tensor = torch.empty(self.shape, dtype=self.dtype)
        tensor.reshape(-1).view(torch.uint8).numpy()[:] = self.pinned
        values: Array = (tensor.float() if tensor.is_floating_point() else tensor).numpy()
        return values
