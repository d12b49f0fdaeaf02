"""Open what TensorRT makes of a logger, its builder and its runtime, and say what is wrong where neither opens."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from engines.base import Unsupported
from engines.catalog import ENGINES
from engines.requirements import install_command
from engines.tensorrt_engines.build_monitor import check, forget, logged, logger_of

_ERROR_CHARACTERS = 400
_OLD_DRIVER = re.compile(r"\berror: 35\b|CUDA driver version is insufficient")
"""cudaErrorInsufficientDriver: the library is for a newer CUDA than the driver's."""


def open_with_plugins(library: Any, make: Callable[[Any], Any], what: str) -> Any:
    """`make`, which is the library's Builder or Runtime, called with the process's logger.

    TensorRT's own plugins are registered first: graphs and engines may have operators of theirs. (A second call
    registers nothing again: github.com/NVIDIA/TensorRT, plugin/api/inferPlugin.cpp.) Raises Unsupported for a driver
    that is too old for the library, RuntimeError with what the library logged.
    """
    logger = logger_of(library)
    forget(logger)
    library.init_libnvinfer_plugins(logger, "")
    try:
        return make(logger)
    except Exception as error:
        # Without a driver the bindings raise a TypeError about a factory that returned a null pointer.
        why = logged(logger, _ERROR_CHARACTERS, str(error))
        if _OLD_DRIVER.search(" ".join(logger.errors)):
            raise Unsupported(
                f"{product(library)} is for a newer CUDA than this driver's: update the driver, or install the one for "
                f"torch's CUDA: {_anew(library)}"
            ) from error
        raise RuntimeError(f"{product(library)} could not open its {what}: {why}") from error
    finally:
        check(logger)


def targets(library: Any) -> tuple[str, ...]:
    """The compute capabilities that the library can build for without such a GPU: "sm75", …; none for TensorRT."""
    known = getattr(library, "ComputeCapability", None)
    return () if known is None else tuple(name.lower() for name in known.__members__ if name.startswith("SM"))


def product(library: Any) -> str:
    """The library's name and version, as errors say it."""
    return f"TensorRT{' for RTX' if targets(library) else ''} {library.__version__}"


def _anew(library: Any) -> str:
    """The command that removes the library and installs the one for torch's CUDA."""
    requirements = ENGINES["trt-rtx" if targets(library) else "trt"].requirements
    return install_command(next(r.install for r in requirements if r.kind == "only one"))
