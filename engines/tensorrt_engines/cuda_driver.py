"""Import what takes TensorRT's buffers: pycuda's driver API or, where that is not installed, cuda-bindings'.

`CudaBindings` has pycuda.driver's names, as far as buffers.py uses them, over NVIDIA's own bindings, which pip installs
without a compiler (https://nvidia.github.io/cuda-python/cuda-bindings/latest/module/driver.html).
"""

from __future__ import annotations

import ctypes
import importlib
from types import SimpleNamespace
from typing import Any

import numpy as np

from engines.base import Array, Unsupported
from engines.catalog import CUDA_DRIVERS, ENGINES
from exporters.packages import installed_version


def load(engine: str) -> tuple[Any, str]:
    """The driver's module, initialized, and its distribution's name and version. Raises Unsupported."""
    install = next(r.install for r in ENGINES[engine].requirements if "cuda.bindings" in r.name)
    found: list[str] = []
    for module, distribution in CUDA_DRIVERS.items():
        try:
            driver: Any = importlib.import_module(f"{module}.driver")
        except ImportError as error:
            how = "is not installed" if isinstance(error, ModuleNotFoundError) else f"does not load ({error})"
            found.append(f"{distribution} {how}")
            continue
        if module == "cuda.bindings":
            driver = CudaBindings(driver)
        try:
            driver.init()
        except driver.Error as error:
            text = f"{distribution} finds no usable NVIDIA driver ({error}): update or reinstall the driver"
            raise Unsupported(text) from error
        return driver, f"{distribution} {installed_version(distribution)}"
    raise Unsupported(f"what holds TensorRT's buffers: {' and '.join(found)}: {install}")


class CudaBindings:
    """pycuda.driver's part that buffers.py uses, by cuda.bindings.driver, whose functions return what went wrong."""

    class Error(Exception):
        """What the driver answered in place of doing it."""

    def __init__(self, driver: Any) -> None:
        self._driver = driver
        self.Context = SimpleNamespace(pop=lambda: self.call("cuCtxPopCurrent"))

    def init(self) -> None:
        """Raises Error where there is no driver or no device."""
        try:
            self.call("cuInit", 0)
        except RuntimeError as error:  # The driver's library cannot be loaded.
            raise self.Error(str(error)) from error

    def Device(self, number: int) -> Any:
        """The device of that number, as CUDA counts: with `retain_primary_context`, which gives its primary context."""

        def retain() -> Any:
            context = self.call("cuDevicePrimaryCtxRetain", device)
            return _Primary(
                context=context,
                push=lambda: self.call("cuCtxPushCurrent", context),
                detach=lambda: self.call("cuDevicePrimaryCtxRelease", device),
            )

        device = self.call("cuDeviceGet", number)
        return SimpleNamespace(retain_primary_context=retain)

    def mem_alloc(self, size: int) -> _Allocation:
        """Memory on the device, in the current context. Raises MemoryError."""
        return _Allocation(self, self.call("cuMemAlloc", size))

    def pagelocked_empty(self, size: int, dtype: str) -> Array:
        """Bytes on the host that the device can copy by itself; freed by `.base.free()`."""
        address = int(self.call("cuMemAllocHost", size))
        free = self.call

        class Pinned(ctypes.c_uint8 * size):  # type: ignore[misc]
            def free(self) -> None:
                free("cuMemFreeHost", address)

        return np.ndarray(size, dtype, buffer=Pinned.from_address(address))

    def memcpy_htod(self, destination: int, source: Array) -> None:
        """Copy an array to the device; it has arrived when this returns."""
        self.call("cuMemcpyHtoD", destination, source.ctypes.data, source.nbytes)

    def memcpy_dtoh(self, destination: Array, source: int) -> None:
        """Copy from the device into an array."""
        self.call("cuMemcpyDtoH", destination.ctypes.data, source, destination.nbytes)

    def call(self, function: str, *arguments: Any) -> Any:
        """What the driver's function gives. Raises Error, and MemoryError where there is no memory left."""
        result, *values = getattr(self._driver, function)(*arguments)
        if result == self._driver.CUresult.CUDA_ERROR_OUT_OF_MEMORY:
            raise MemoryError(f"{function} failed: out of memory")
        if result != self._driver.CUresult.CUDA_SUCCESS:
            raise self.Error(f"{function} failed: {getattr(result, 'name', result)}")
        return values[0] if values else None


class _Primary(SimpleNamespace):
    @property
    def handle(self) -> int:
        return int(self.context)


class _Allocation:
    def __init__(self, driver: CudaBindings, address: Any) -> None:
        self._driver, self._address = driver, address

    def __int__(self) -> int:
        return int(self._address)

    def free(self) -> None:
        self._driver.call("cuMemFree", self._address)
