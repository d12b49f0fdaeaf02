"""Look up which versions of distributions are installed, and where, without importing them."""

from __future__ import annotations

import contextlib
import functools
import importlib.metadata
import site
import sys
import sysconfig
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from pathlib import Path

_LIBRARIES = (
    *(sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")),
    *site.getsitepackages(),
    site.getusersitepackages(),
    *(str(Path(__file__).parents[1] / package) for package in ("engines", "exporters", "profiler")),
)


def installed_version(*distributions: str) -> str | None:
    """Return the version of the first installed distribution, or None."""
    for name in distributions:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            return importlib.metadata.version(name)
    return None


def versions(*distributions: str) -> list[str]:
    """Return words like "onnx 1.22.0", or "onnx None" if it is not installed."""
    return [f"{name} {installed_version(name)}" for name in distributions]


@functools.lru_cache(maxsize=1)
def _folders(path: tuple[str, ...]) -> frozenset[Path]:
    # An installer leaves its record next to the package, wherever PYTHONPATH or a .pth file points.
    installed = (folder for folder in path if next(Path(folder).glob("*.dist-info"), None))
    return frozenset(Path(folder).resolve() for folder in (*_LIBRARIES, *installed))


def library_folders() -> frozenset[Path]:
    """Return the folders of code that is not the user's: Python's, installed libraries', and this project's."""
    return _folders(tuple(sys.path))


def spec_of(module: str) -> ModuleSpec | None:
    """Find a module without importing its packages, unlike importlib.util.find_spec."""
    path: Sequence[str] | None = None
    spec, name = None, ""
    for part in module.split("."):
        if spec is not None and (path := spec.submodule_search_locations) is None:
            return None
        name = f"{name}.{part}".lstrip(".")
        spec = next((candidate for finder in sys.meta_path if (candidate := finder.find_spec(name, path))), None)
        if spec is None:
            return None
    return spec
