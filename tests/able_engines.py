"""Engines as parameters of a test, skipped where they cannot run on this CPU."""

from __future__ import annotations

import pytest

from engines.catalog import ENGINES
from engines.requirements import missing


def needs(engine: str) -> pytest.MarkDecorator:
    """A test is skipped, with the reason, where a library of this engine is missing."""
    why = missing(ENGINES[engine], "cpu")
    return pytest.mark.skipif(bool(why), reason=why)


def if_able(engine: str, *more: object) -> object:
    """`engine`, with more parameters, skipped where it cannot run here."""
    return pytest.param(engine, *more, marks=needs(engine))
