"""Look up which versions of distributions are installed, and where, without importing them."""

from __future__ import annotations

import functools
import importlib.metadata
import site
import sys
import sysconfig
from pathlib import Path

_OWN = [str(Path(__file__).parents[1] / package) for package in ("engines", "exporters", "profiler")]
_INSTALLED = [sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")]
_KNOWN = (*_INSTALLED, *site.getsitepackages(), site.getusersitepackages(), *_OWN)


def installed_version(*distributions: str) -> str | None:
    """The version of the first that is installed; None where none is, as of a vendor's build under another name."""
    for name in distributions:
        try:
            return importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return None


@functools.lru_cache(maxsize=1)
def _folders(path: tuple[str, ...]) -> frozenset[Path]:
    # An installer leaves its record next to what it installs, wherever PYTHONPATH or a .pth file has it.
    installed = (folder for folder in path if next(Path(folder).glob("*.dist-info"), None))
    return frozenset(Path(folder).resolve() for folder in (*_KNOWN, *installed))


def library_folders() -> frozenset[Path]:
    """Where code lies that is not the user's: Python's, what is installed, and this project's."""
    return _folders(tuple(sys.path))
