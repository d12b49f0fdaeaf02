"""Calls with new inputs against a session in virtual time that remembers, or does not."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from engines.base import Array, Mark
from exporters.inputs import TensorSpec, seeded_inputs
from profiler.results.result import Result
from profiler.worker.clock import Clock
from profiler.worker.fresh import Fresh

SPECS = (TensorSpec("x", ("batch", 3), "float32"), TensorSpec("ids", ("batch", 4), "int64", 1, range=(0, 9)))


class World(Clock):
    """A session and its clock: a call takes 5 ms, or 1 ms where it remembers equal inputs."""

    def __init__(self, own: Sequence[Array], remembers: bool) -> None:
        self.inputs, self.last, self.remembers, self.calls = list(own), list[Array](), remembers, 0

    def _nothing(self) -> Any:
        """What a session has beside it."""

    outputs = memory = proof = layers = close = _nothing

    def feed(self, inputs: Sequence[Array]) -> None:
        assert [array.shape for array in inputs] == [array.shape for array in self.inputs]
        assert all(new.dtype == old.dtype for new, old in zip(inputs, self.inputs, strict=True))
        assert sorted(inputs[1].flat) != [] and inputs[1].min() >= 0 and inputs[1].max() < 9, "ids of the same kind"
        self.inputs = list(inputs)

    def run(self, mark: Mark) -> None:
        self.calls += 1
        same = bool(self.last) and all(map(np.array_equal, self.inputs, self.last))
        self.last, self.took = [array.copy() for array in self.inputs], 1.0 if self.remembers and same else 5.0

    def time_synchronized(self, run: Any, calls: int) -> dict[str, list[float]]:
        run(lambda name: None)
        return {"host": [self.took]}


@pytest.mark.parametrize("batch", [1, 2, 64])
@pytest.mark.parametrize("remembers", [False, True])
def test_what_remembers_gets_the_figure_of_new_inputs(batch: int, remembers: bool) -> None:
    own = seeded_inputs(SPECS, batch)
    world: Any = World(own, remembers)
    result = Result("a", "ok", clock="event", samples={"event": [1.0] * 40, "host": [1.0 if remembers else 5.0] * 40})
    Fresh(world, world, SPECS, own, batch).judge(result, lambda calls: calls < 3)
    if not remembers:
        assert (world.calls, result.clock, result.warnings) == (3, "event", [])
        return
    assert (result.clock, set(result.samples), result.latency_ms) == ("host", {"host"}, 5.0)
    assert result.throughput == 200 * batch
    assert [warning.kind for warning in result.warnings] == ["inconsistent"]


def test_slower_calls_that_are_slow_with_the_same_inputs_too_say_nothing() -> None:
    own = seeded_inputs(SPECS, 2)
    world: Any = World(own, False)
    result = Result("a", "ok", clock="host", samples={"host": [1.0] * 40})
    Fresh(world, world, SPECS, own, 2).judge(result, lambda calls: not calls)
    assert (result.latency_ms, result.warnings) == (1.0, [])
    assert world.calls == 3 + 9 * 4


def test_a_single_slow_call_is_taken_again(monkeypatch: pytest.MonkeyPatch) -> None:
    own = seeded_inputs(SPECS, 2)
    world: Any = World(own, False)
    monkeypatch.setattr(world, "time_synchronized", lambda run, calls: {"host": [run(print) or 9.0 / world.calls]})
    result = Result("a", "ok", clock="host", samples={"host": [5.0] * 40})
    Fresh(world, world, SPECS, own, 2).judge(result, lambda calls: not calls)
    assert (world.calls, result.warnings) == (2, [])


@pytest.mark.parametrize(("slow", "marks"), [(3, ["inconsistent"]), (4, [])])
def test_three_slow_calls_with_the_same_inputs_are_chance(
    slow: int, marks: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    own = seeded_inputs(SPECS, 2)
    world: Any = World(own, False)
    same, new = [*[5.2] * slow, *[1.0] * (9 - slow)], [5.5] * 9
    taken = iter([*[5.5] * 3, *(call for turn in zip(same, new, strict=True) for call in turn)])
    monkeypatch.setattr(world, "time_synchronized", lambda run, calls: {"host": [next(taken)]})
    result = Result("a", "ok", clock="host", samples={"host": [1.0] * 40})
    Fresh(world, world, SPECS, own, 2).judge(result, lambda calls: calls < 3)
    assert ([warning.kind for warning in result.warnings], list(taken)) == (marks, [])


@pytest.mark.parametrize(("compared", "most"), [((), 3), ((1.0,), 3), ((5.0, 5.0), 0)])
def test_without_time_for_more_the_first_calls_are_believed(compared: tuple[float, ...], most: int) -> None:
    own = seeded_inputs(SPECS, 2)
    world: Any = World(own, True)
    result = Result("a", "ok", clock="host", samples={"host": [1.0] * 40})
    fresh = Fresh(world, world, SPECS, own, 2, taken=list(compared))
    fresh.judge(result, lambda calls: calls < most, lambda calls: False)
    assert (world.calls, result.latency_ms) == (most, 5.0)
    assert [warning.kind for warning in result.warnings] == ["inconsistent"]
