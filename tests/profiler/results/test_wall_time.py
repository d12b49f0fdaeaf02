"""What a run's time went into."""

from __future__ import annotations

from profiler.results import wall_time
from profiler.results.wall_time import WallTime, describe


def test_phases_are_summed_and_the_rest_is_named(monkeypatch) -> None:
    now = [100.0]
    monkeypatch.setattr(wall_time.time, "monotonic", lambda: now[0])
    wall = WallTime()
    with wall.span("prepare"):
        now[0] += 5
    wall.add({"fork": 1.0, "measure": 10.0})
    wall.add({"measure": 20.0})
    now[0] += 35
    assert wall.split() == {"measure": 30.0, "prepare": 5.0, "rest": 4.0, "fork": 1.0}
    assert list(wall.split()) == ["measure", "prepare", "rest", "fork"]


def test_what_came_before_counts_as_the_start(monkeypatch) -> None:
    now = [100.0]
    monkeypatch.setattr(wall_time.time, "monotonic", lambda: now[0])
    wall = WallTime()
    wall.count_from(70.0)
    now[0] += 10
    assert wall.split() == {"start": 30.0, "rest": 10.0}
    assert describe(wall.split()) == "Took 40 s (other 100 %: importing libraries and looking at the models 75 %)"


def test_a_span_is_counted_even_where_it_was_left_by_an_interrupt(monkeypatch) -> None:
    now = [0.0]
    monkeypatch.setattr(wall_time.time, "monotonic", lambda: now[0])
    wall = WallTime()
    try:
        with wall.span("prepare"):
            now[0] += 3
            raise KeyboardInterrupt
    except KeyboardInterrupt:
        pass
    assert wall.split()["prepare"] == 3.0


def test_the_sentence_adds_up_measuring_building_and_the_rest() -> None:
    text = describe({"measure": 50.0, "prepare": 25.0, "build": 20.0, "energy": 4.8, "write": 0.2})
    assert text == "Took 1 min 40 s (measuring 55 %, building 20 %, other 25 %: weights, references and exports 25 %)"
    text = describe({"measure": 26.0, "rest": 4.0, "load": 16.0, "profile": 30.0, "fork": 2.0})
    assert text == "Took 1 min 18 s (measuring 33 %, other 67 %: timing layers 38 %, loading 21 %)"


def test_a_run_without_a_case_has_a_sentence_too() -> None:
    assert describe({}) == "Took 0 s (other 0 %)"
