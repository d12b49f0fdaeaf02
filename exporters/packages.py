"""Look up which versions of distributions are installed, without importing them."""

from __future__ import annotations

import importlib.metadata


def installed_version(*distributions: str) -> str | None:
    """The version of the first that is installed; None where none is, as of a vendor's build under another name."""
    for name in distributions:
        try:
            return importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return None
