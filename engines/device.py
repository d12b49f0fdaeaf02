"""Record CUDA graphs on torch's current stream; take streams, device memory and pinned memory."""

from __future__ import annotations

import contextlib
import functools
import importlib
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from engines.base import Array
from engines.options import Device
from exporters.packages import installed_version

_ABANDONED: list[torch.cuda.CUDAGraph] = []
_STREAMS: list[Any] = []
"""pycuda's streams, kept until the process ends."""


def capture(enqueue: Callable[[], None]) -> torch.cuda.CUDAGraph:
    """Record the work that `enqueue` puts on torch's current stream. Raises RuntimeError; the stream stays usable."""
    graph, pool = torch.cuda.CUDAGraph(), torch.cuda.graph_pool_handle()
    stream = torch.cuda.current_stream()
    # As in trtexec: tolerate another thread's work on the device.
    recording = torch.cuda.graph(graph, pool=pool, stream=stream, capture_error_mode="thread_local")
    try:
        with recording:
            enqueue()
    except RuntimeError:
        # If the driver broke the recording off, torch's allocators keep a pointer to the graph, and would never return
        # memory (CUDAGraph::capture_end, torch 2.11).
        _ABANDONED.append(graph)
        # Private names. If the recording did end, the first raises, and the graph still owns the pool.
        with contextlib.suppress(RuntimeError, AttributeError):
            torch._C._cuda_endAllocateToPool(torch.cuda.current_device(), pool)
            torch._C._cuda_releasePool(torch.cuda.current_device(), pool)
        raise
    return graph


@functools.cache
def pycuda() -> Any:
    """Return pycuda's driver module, or None if it is missing or does not load."""
    try:
        driver = importlib.import_module("pycuda.driver")
    except ImportError:
        return None
    driver.init()
    return driver


@contextlib.contextmanager
def _primary_context(driver: Any) -> Iterator[None]:
    """Make the GPU's primary context, which torch uses, pycuda's current one.

    pycuda aborts a process that exits while a context of its own is current.
    """
    _retained(driver, torch.cuda.current_device()).push()
    try:
        yield
    finally:
        driver.Context.pop()


@functools.cache
def _retained(driver: Any, number: int) -> Any:
    return driver.Device(number).retain_primary_context()


def new_stream(by_pycuda: bool = False) -> torch.cuda.Stream:
    """Make a stream, by pycuda if requested and installed."""
    driver = pycuda() if by_pycuda else None
    if driver is None:
        return torch.cuda.Stream()
    with _primary_context(driver):
        pycuda_stream = driver.Stream()
    stream = torch.cuda.ExternalStream(pycuda_stream.handle)
    _STREAMS.append(pycuda_stream)  # torch holds no reference to it.
    return stream


class _Block:
    """pycuda's device memory as a tensor for torch (numba.readthedocs.io, CUDA Array Interface)."""

    def __init__(self, driver: Any, size: int) -> None:
        try:
            with _primary_context(driver):
                self._allocation = driver.mem_alloc(size)
        except driver.MemoryError as error:
            raise torch.OutOfMemoryError(f"out of memory: pycuda could not allocate {size} bytes") from error
        self.__cuda_array_interface__ = {
            "shape": (size,),
            "typestr": "|u1",
            "data": (int(self._allocation), False),
            "version": 3,
        }


def tensor_of(array: Array) -> torch.Tensor:
    """Return the array as a tensor; bfloat16 and float8 as float32, since torch reads no ml_dtypes (kind "V")."""
    return torch.from_numpy(array.astype("float32") if array.dtype.kind == "V" else array)


@dataclass(frozen=True)
class Buffer:
    """A tensor that an engine reads or writes, and its pinned twin on the host, for copies."""

    bound: torch.Tensor
    twin: torch.Tensor

    def upload(self, array: Array) -> None:
        """Enqueue a copy of the array, cast to the buffer's type. The previous copy must have ended."""
        self.twin.copy_(tensor_of(array))
        self.bound.copy_(self.twin, non_blocking=True)

    def download(self) -> Array:
        """Return the tensor: floats as float32, integers and bools as they are."""
        self.twin.copy_(self.bound)
        return (self.twin.float() if self.twin.is_floating_point() else self.twin).numpy().copy()


class Allocator:
    """Takes device memory, and pinned memory on the host, from pycuda where it is installed, else from torch."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._driver = pycuda() if device == "cuda" else None
        self.name = f"pycuda {installed_version('pycuda')}" if self._driver else f"torch {torch.__version__}"
        self.size = 0
        """Bytes of device memory allocated so far."""

    def block(self, size: int) -> torch.Tensor:
        """Return `size` bytes of device memory, aligned to 256. Raises torch.OutOfMemoryError."""
        if self._driver is None:
            block = torch.empty(size, dtype=torch.uint8, device=self._device)
        else:
            block = torch.as_tensor(_Block(self._driver, size), device=self._device)
        self.size += size
        return block

    def buffer(self, shape: tuple[int, ...], dtype: torch.dtype, on_host: bool = False) -> Buffer:
        """Return a contiguous tensor of unknown values with its twin; `on_host` leaves the tensor there, too."""
        size = math.prod(shape) * dtype.itemsize
        # At least a byte: an empty tensor needs an address, too.
        twin = self._pinned(max(size, 1))
        memory = twin if on_host else self.block(max(size, 1))
        return Buffer(*(block[:size].view(dtype).view(shape) for block in (memory, twin)))

    @property
    def slack(self) -> int:
        """Return the bytes that torch's allocator holds in reserve."""
        return max(torch.cuda.memory_reserved() - (0 if self._driver else self.size), 0)

    def _pinned(self, size: int) -> torch.Tensor:
        if self._driver is None:
            return torch.empty(size, dtype=torch.uint8, pin_memory=self._device == "cuda")
        with _primary_context(self._driver):
            return torch.from_numpy(self._driver.pagelocked_empty(size, "uint8"))
