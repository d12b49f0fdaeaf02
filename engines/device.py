"""Record CUDA graphs, and take device memory with pinned twins on the host."""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import math
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from engines.base import Array, Unsupported
from exporters.packages import installed_version

ALIGNMENT = 256
"""Bytes: what TensorRT asks of every address, and what CUDA's allocations have (CUDA C++ Programming Guide, 5.3.2)."""
_ABANDONED: list[torch.cuda.CUDAGraph] = []


def capture(enqueue: Callable[[], None]) -> torch.cuda.CUDAGraph:
    """Record what `enqueue` enqueues on torch's current stream; none of it runs.

    Raises RuntimeError where it cannot be recorded; the stream stays usable.
    """
    graph, pool = torch.cuda.CUDAGraph(), torch.cuda.graph_pool_handle()
    stream = torch.cuda.current_stream()
    # As in trtexec: another thread's work on the device meanwhile is no reason to fail.
    recording = torch.cuda.graph(graph, pool=pool, stream=stream, capture_error_mode="thread_local")
    try:
        with recording:
            enqueue()
    except RuntimeError:
        # If the driver has broken the recording off, torch's allocators go on as if it lasted: they keep a pointer to
        # the graph, and memory would never be given back (CUDAGraph::capture_end, torch 2.11).
        _ABANDONED.append(graph)
        # Private names. Where the recording did end, the first raises, and the graph goes on owning the pool.
        with contextlib.suppress(RuntimeError, AttributeError):
            torch._C._cuda_endAllocateToPool(torch.cuda.current_device(), pool)
            torch._C._cuda_releasePool(torch.cuda.current_device(), pool)
        raise
    return graph


class Driver:
    """NVIDIA's driver by cuda-bindings, whose functions return an error instead of raising it.

    https://nvidia.github.io/cuda-python/cuda-bindings/latest/module/driver.html
    """

    def __init__(self) -> None:
        """Load and initialize it. Raises Unsupported."""
        try:
            self._module: Any = importlib.import_module("cuda.bindings.driver")
        except ImportError as error:
            raise Unsupported(f"cuda-bindings does not load ({error}): pip install cuda-bindings") from error
        try:
            self.call("cuInit", 0)
        except RuntimeError as error:
            text = f"cuda-bindings finds no usable NVIDIA driver ({error}): update or reinstall the driver"
            raise Unsupported(text) from error
        self.version = f"cuda-bindings {installed_version('cuda-bindings')}"

    def call(self, function: str, *arguments: Any) -> Any:
        """Return what the driver's function gives. Raises RuntimeError, and MemoryError where no memory is left."""
        result, *values = getattr(self._module, function)(*arguments)
        if result == self._module.CUresult.CUDA_ERROR_OUT_OF_MEMORY:
            raise MemoryError(f"{function} failed: out of memory")
        if result != self._module.CUresult.CUDA_SUCCESS:
            raise RuntimeError(f"{function} failed: {getattr(result, 'name', result)}")
        return values[0] if values else None


class Buffers:
    """Memory in a GPU's primary context, which is the one that torch works in."""

    def __init__(self, driver: Driver, device: int) -> None:
        self._call = driver.call
        handle = self._call("cuDeviceGet", device)
        self._context = self._call("cuDevicePrimaryCtxRetain", handle)
        self._taken = contextlib.ExitStack()
        # Given back last of all, after the memory in it.
        self._taken.callback(self._call, "cuDevicePrimaryCtxRelease", handle)
        # Frees once nobody holds these buffers, if nobody did before.
        self._free = weakref.finalize(self, self._taken.close)
        self.size = 0
        """Bytes on the device that were asked for."""

    def block(self, size: int) -> int:
        """Return the address of `size` bytes on the device, aligned as cuMemAlloc aligns. Raises MemoryError."""
        with self._current():
            allocation = self._call("cuMemAlloc", max(size, 1))
        self._taken.callback(self._call, "cuMemFree", allocation)
        self.size += size
        return int(allocation)

    def tensor(self, shape: tuple[int, ...], dtype: torch.dtype, on_host: bool = False) -> Buffer:
        """Take memory for a contiguous tensor; `on_host` leaves it at the pinned twin."""
        size = math.prod(shape) * dtype.itemsize
        with self._current():
            pinned_at = int(self._call("cuMemAllocHost", max(size, 1)))
            self._taken.callback(self._call, "cuMemFreeHost", pinned_at)
        pinned = np.ctypeslib.as_array((ctypes.c_uint8 * max(size, 1)).from_address(pinned_at))[:size]
        return Buffer(self._call, shape, dtype, pinned_at if on_host else self.block(size), pinned, on_host)

    def free(self) -> None:
        """Free all of it, in the reverse order, and give the context back; a second call does nothing."""
        self._free()

    @contextlib.contextmanager
    def _current(self) -> Iterator[None]:
        self._call("cuCtxPushCurrent", self._context)
        try:
            yield
        finally:
            self._call("cuCtxPopCurrent")


@dataclass(frozen=True)
class Buffer:
    """A tensor's memory; `pinned` are its bytes on the host, `address` is where the device has it."""

    call: Callable[..., Any]
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
            self.call("cuMemcpyHtoD", self.address, self.pinned.ctypes.data, self.pinned.nbytes)

    def download(self) -> Array:
        """Return the tensor: floats as float32, integers and bools as they are. Its writer must have ended."""
        if not self.on_host and self.pinned.size:
            self.call("cuMemcpyDtoH", self.pinned.ctypes.data, self.address, self.pinned.nbytes)
        tensor = torch.empty(self.shape, dtype=self.dtype)
        tensor.reshape(-1).view(torch.uint8).numpy()[:] = self.pinned
        values: Array = (tensor.float() if tensor.is_floating_point() else tensor).numpy()
        return values
