"""The public face: every name is there, whatever was imported before, and no package of its name hides it."""

from __future__ import annotations

import pkgutil

import pytest

import profiler
import profiler.commands.query
import profiler.compare.cells
import profiler.recommend.answer


def test_public_names_are_functions_or_classes_and_no_modules():
    assert all(callable(getattr(profiler, name)) for name in profiler.__all__)
    assert set(profiler.__all__) & {module.name for module in pkgutil.iter_modules(profiler.__path__)} == set()
    assert profiler.compare_runs is profiler.compare.cells.compare
    assert profiler.query_runs is profiler.commands.query.query
    assert profiler.recommend_runs is profiler.recommend.answer.recommend
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        profiler.nothing  # noqa: B018
