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

_OWN = [str(Path(__file__).parents[1] / package) for package in ("engines", "exporters", "profiler")]
_INSTALLED = [sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")]
_KNOWN = (*_INSTALLED, *site.getsitepackages(), site.getusersitepackages(), *_OWN)


def installed_version(*distributions: str) -> str | None:
    """The version of the first that is installed; None where none is, as of a vendor's build under another name. Of
    several that are in different folders, as where one environment adds to another, the one that is imported counts."""
    found = []
    for name in distributions:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found.append(importlib.metadata.distribution(name))
    return min(found, key=_place).version if found else None


def versions(*distributions: str) -> list[str]:
    """Like "onnx 1.22.0", of each whether it is installed or not."""
    return [f"{name} {installed_version(name)}" for name in distributions]


def _place(distribution: importlib.metadata.Distribution) -> int:
    """Where in Python's path its folder is."""
    folder = Path(str(distribution.locate_file("")))
    return next((place for place, each in enumerate(sys.path) if Path(each) == folder), len(sys.path))


@functools.lru_cache(maxsize=1)
def _folders(path: tuple[str, ...]) -> frozenset[Path]:
    # An installer leaves its record next to what it installs, wherever PYTHONPATH or a .pth file has it.
    installed = (folder for folder in path if next(Path(folder).glob("*.dist-info"), None))
    return frozenset(Path(folder).resolve() for folder in (*_KNOWN, *installed))


def library_folders() -> frozenset[Path]:
    """Where code lies that is not the user's: Python's, what is installed, and this project's."""
    return _folders(tuple(sys.path))


def spec_of(module: str) -> ModuleSpec | None:
    """As importlib.util.find_spec, which imports the packages that a module is in, and believes sys.modules."""
    path: Sequence[str] | None = None
    spec, name = None, ""
    for part in module.split("."):
        if spec is not None and (path := spec.submodule_search_locations) is None:
            return None
        name = f"{name}.{part}".lstrip(".")
        spec = next((found for finder in sys.meta_path if (found := finder.find_spec(name, path))), None)
        if spec is None:
            return None
    return spec
