"""Engines as parameters of a test, skipped where they cannot run on this CPU."""

from __future__ import annotations

import pytest

from engines.catalog import ENGINES, foreign_hardware
from engines.requirements import explain, missing
from profiler.machine import Target


def needs(engine: str) -> pytest.MarkDecorator:
    """A test is skipped, with the reason, where a library of this engine is missing or the CPU is not for it."""
    row = ENGINES[engine]
    why = foreign_hardware(row, "cpu", Target("cpu").hardware) or explain(missing(row, "cpu"))
    return pytest.mark.skipif(bool(why), reason=why)


def if_able(engine: str, *more: object) -> object:
    """`engine`, with more parameters, skipped where it cannot run here."""
    return pytest.param(engine, *more, marks=needs(engine))
