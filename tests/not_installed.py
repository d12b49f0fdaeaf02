"""Hide distributions and modules from the Python processes of a test."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

_SITE = """
'''This process finds neither these distributions nor these modules.'''
import importlib.machinery
import importlib.metadata

PathFinder, MetadataPathFinder = importlib.machinery.PathFinder, importlib.metadata.MetadataPathFinder
find_spec, find_distributions = PathFinder.find_spec, MetadataPathFinder.find_distributions


def spec(name, path=None, target=None):
    return None if name in {modules} else find_spec(name, path, target)


def distributions(context=importlib.metadata.DistributionFinder.Context()):
    return (found for found in find_distributions(context) if found.metadata["Name"] not in {distributions})


PathFinder.find_spec, MetadataPathFinder.find_distributions = staticmethod(spec), distributions
"""


def hide(distributions: Sequence[str], modules: Sequence[str], folder: Path) -> None:
    """Hide them from each process that has the folder on its path as it starts."""
    text = _SITE.format(distributions=repr(tuple(distributions)), modules=repr(tuple(modules)))
    (folder / "sitecustomize.py").write_text(text)
