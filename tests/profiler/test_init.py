"""The public face: every name is there, whatever was imported before, and comes without being paid for by others."""

from __future__ import annotations

import pkgutil

import pytest

import profiler
import profiler.compare.cells
import profiler.query
import profiler.recommend.answer


@pytest.mark.parametrize("name", profiler.__all__)
def test_a_public_name_is_a_function_or_a_class(name: str) -> None:
    assert callable(getattr(profiler, name)), "a package of the same name would hide it"


def test_no_public_name_is_a_modules() -> None:
    assert set(profiler.__all__) & {module.name for module in pkgutil.iter_modules(profiler.__path__)} == set()


def test_the_verbs_are_those_of_the_packages() -> None:
    assert profiler.compare_runs is profiler.compare.cells.compare
    assert profiler.query_runs is profiler.query.query
    assert profiler.recommend_runs is profiler.recommend.answer.recommend


def test_another_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        profiler.nothing  # noqa: B018
