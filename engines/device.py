"""Record CUDA graphs, and take device memory with pinned twins on the host."""

from __future__ import annotations

import contextlib
import ctypes
import functools
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


def open_driver() -> Driver:
    """Initialize NVIDIA's driver: by pycuda where that is installed, else by cuda-bindings. Raises Unsupported."""
    failures = []
    for kind in (PyCuda, CudaBindings):
        try:
            return kind()
        except ImportError as error:
            failures.append(f"{kind.distribution} does not load ({error})")
        except RuntimeError as error:
            text = f"{kind.distribution} finds no usable NVIDIA driver ({error}): update or reinstall the driver"
            raise Unsupported(text) from error
    raise Unsupported(f"{' and '.join(failures)}: pip install cuda-bindings")


class PyCuda:
    """Device memory by pycuda (https://documen.tician.de/pycuda/driver.html)."""

    distribution = "pycuda"

    def __init__(self) -> None:
        """Raises ImportError, and RuntimeError where there is no driver."""
        self._cuda: Any = importlib.import_module("pycuda.driver")
        self.version = f"{self.distribution} {installed_version(self.distribution)}"
        try:
            self._cuda.init()
        except self._cuda.Error as error:
            raise RuntimeError(str(error)) from error

    def retain(self, number: int) -> Any:
        """Return the primary context of the device of that number."""
        return self._cuda.Device(number).retain_primary_context()

    def release(self, context: Any) -> None:
        context.detach()

    @contextlib.contextmanager
    def current(self, context: Any) -> Iterator[None]:
        """Make the context current; pycuda ends a process that ends while one of its own is."""
        context.push()
        try:
            yield
        finally:
            self._cuda.Context.pop()

    def take(self, size: int) -> Any:
        """Return memory on the device, whose int is its address. Raises MemoryError."""
        try:
            return self._cuda.mem_alloc(size)
        except self._cuda.MemoryError as error:
            raise MemoryError(f"cuMemAlloc of {size} bytes failed: out of memory") from error

    def free(self, allocation: Any) -> None:
        allocation.free()

    def pin(self, size: int) -> Array:
        """Return bytes on the host that the device can copy by itself."""
        pinned: Array = self._cuda.pagelocked_empty(size, "uint8")
        return pinned

    def unpin(self, pinned: Array) -> None:
        pinned.base.free()  # type: ignore[union-attr]

    def upload(self, address: int, pinned: Array) -> None:
        self._cuda.memcpy_htod(address, pinned)

    def download(self, pinned: Array, address: int) -> None:
        self._cuda.memcpy_dtoh(pinned, address)


class CudaBindings:
    """Device memory by cuda-bindings, which pip installs without a compiler.

    https://nvidia.github.io/cuda-python/cuda-bindings/latest/module/driver.html
    """

    distribution = "cuda-bindings"

    def __init__(self) -> None:
        self._cuda: Any = importlib.import_module("cuda.bindings.driver")
        self.version = f"{self.distribution} {installed_version(self.distribution)}"
        self.take = functools.partial(self._call, "cuMemAlloc")
        self.free = functools.partial(self._call, "cuMemFree")
        self._call("cuInit", 0)

    def _call(self, function: str, *arguments: Any) -> Any:
        result, *values = getattr(self._cuda, function)(*arguments)
        if result == self._cuda.CUresult.CUDA_ERROR_OUT_OF_MEMORY:
            raise MemoryError(f"{function} failed: out of memory")
        if result != self._cuda.CUresult.CUDA_SUCCESS:
            raise RuntimeError(f"{function} failed: {getattr(result, 'name', result)}")
        return values[0] if values else None

    def retain(self, number: int) -> Any:
        device = self._call("cuDeviceGet", number)
        return device, self._call("cuDevicePrimaryCtxRetain", device)

    def release(self, context: Any) -> None:
        self._call("cuDevicePrimaryCtxRelease", context[0])

    @contextlib.contextmanager
    def current(self, context: Any) -> Iterator[None]:
        self._call("cuCtxPushCurrent", context[1])
        try:
            yield
        finally:
            self._call("cuCtxPopCurrent")

    def pin(self, size: int) -> Array:
        address = int(self._call("cuMemAllocHost", size))
        return np.ctypeslib.as_array((ctypes.c_uint8 * size).from_address(address))

    def unpin(self, pinned: Array) -> None:
        self._call("cuMemFreeHost", pinned.ctypes.data)

    def upload(self, address: int, pinned: Array) -> None:
        self._call("cuMemcpyHtoD", address, pinned.ctypes.data, pinned.nbytes)

    def download(self, pinned: Array, address: int) -> None:
        self._call("cuMemcpyDtoH", pinned.ctypes.data, address, pinned.nbytes)


Driver = PyCuda | CudaBindings


class Buffers:
    """Memory in a GPU's primary context, which is the one that torch works in."""

    def __init__(self, driver: Driver, device: int) -> None:
        self._driver, self._context = driver, driver.retain(device)
        self._taken = contextlib.ExitStack()
        # Given back last of all, after the memory in it.
        self._taken.callback(driver.release, self._context)
        # Frees once nobody holds these buffers, if nobody did before.
        self._free = weakref.finalize(self, self._taken.close)
        self.size = 0
        """Bytes on the device that were asked for."""

    def block(self, size: int) -> int:
        """Return the address of `size` bytes on the device, aligned as cuMemAlloc aligns. Raises MemoryError."""
        with self._driver.current(self._context):
            allocation = self._driver.take(max(size, 1))
        self._taken.callback(self._driver.free, allocation)
        self.size += size
        return int(allocation)

    def tensor(self, shape: tuple[int, ...], dtype: torch.dtype, on_host: bool = False) -> Buffer:
        """Take memory for a contiguous tensor; `on_host` leaves it at the pinned twin."""
        size = math.prod(shape) * dtype.itemsize
        with self._driver.current(self._context):
            pinned = self._driver.pin(max(size, 1))
            self._taken.callback(self._driver.unpin, pinned)
        address = pinned.ctypes.data if on_host else self.block(size)
        return Buffer(self._driver, shape, dtype, address, pinned[:size], on_host)

    def free(self) -> None:
        """Free all of it, in the reverse order, and give the context back; a second call does nothing."""
        self._free()


@dataclass(frozen=True)
class Buffer:
    """A tensor's memory; `pinned` are its bytes on the host, `address` is where the device has it."""

    driver: Driver
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
            self.driver.upload(self.address, self.pinned)

    def download(self) -> Array:
        """Return the tensor: floats as float32, integers and bools as they are. Its writer must have ended."""
        if not self.on_host and self.pinned.size:
            self.driver.download(self.pinned, self.address)
        tensor = torch.empty(self.shape, dtype=self.dtype)
        tensor.reshape(-1).view(torch.uint8).numpy()[:] = self.pinned
        values: Array = (tensor.float() if tensor.is_floating_point() else tensor).numpy()
        return values
