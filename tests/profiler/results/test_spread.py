"""How far processes differ: learned from replicated configurations by class, kept for later runs, given to rows."""

from __future__ import annotations

import math
from typing import Any

import handmade
import polars as pl
import pytest

from profiler.results.cells import cells
from profiler.results.spread import earlier_spread, keep_spread, learned, spread, together, with_spread

UNKNOWN = dict.fromkeys(handmade.KNOWN)


def process(number: int, ms: float, variant: str = "eager", model: str = "net", **more: Any) -> dict[str, Any]:
    """Make a row that knows no spread, and of its own latency 0.1 %."""
    ends = {"latency_low_ms": ms / 1.001, "latency_high_ms": ms * 1.001}
    return handmade.row(variant, ms=ms, model=model, replicate=number, **{**UNKNOWN, **ends, **more})


def replicated(models: int, reach: float = 0.02, **more: Any) -> list[dict[str, Any]]:
    """Make configurations of three processes, whose standard deviation is `reach`."""
    times = [math.exp(reach * at) for at in (-1, 0, 1)]
    return [process(n, ms, model=f"net{m}", **more) for m in range(models) for n, ms in enumerate(times)]


ON_DEVICE = {"clock": "event", "enqueue_ms": 0.1, "gpu_ms": 1.0}


@pytest.mark.parametrize(
    ("rows", "classes"),
    [
        ([process(0, 1.0), process(0, 2.0, "ort")], {}),
        (replicated(2), {"host/eager": 2}),
        ([*replicated(2), *replicated(3, variant="ort")], {"host/eager": 2, "host/ort": 3}),
        (replicated(2, **ON_DEVICE), {"device/eager": 2}),
        # What the host sets tells of the device by the device's own clock.
        (replicated(2, **ON_DEVICE | {"enqueue_ms": 0.9}), {"host/eager": 2, "device/eager": 2}),
        (replicated(2, **ON_DEVICE, warnings=["host-bound: 2 ms a call"]), {"host/eager": 2, "device/eager": 2}),
        # On both sides of the line: one that the host sets.
        ([process(0, 1.0, **ON_DEVICE | {"gpu_ms": None}), process(1, 1.1)], {"host/eager": 1}),
    ],
)
def test_replicated_configurations_tell_of_their_class(rows, classes):
    found = learned(handmade.frame(rows))
    assert {name: number for name, (_, number) in found.items()} == classes
    # By two degrees of freedom each the typical spread is a third above the root of the mean square.
    assert found.get("host/ort", (0.0267, 0))[0] == pytest.approx(0.0267, rel=0.02)


def test_a_process_beside_other_work_counts_only_where_none_was_quiet():
    rows, beside = replicated(2), {"warnings": ["disturbed: by others"]}
    assert learned(handmade.frame([*rows, process(3, 9.0, model="net0", **beside)])) == learned(handmade.frame(rows))
    noisy = [row | beside for row in rows]
    assert learned(handmade.frame(noisy)) == learned(handmade.frame(rows))
    assert learned(handmade.frame(noisy), calm=True) == {}


def test_a_class_with_few_configurations_leans_on_all_engines_and_few_of_all_say_nothing():
    known = learned(handmade.frame([*replicated(5), *replicated(2, reach=0.1, variant="ort")]))
    own, other = spread("host", "eager", known), spread("host", "ort", known)
    assert own and other and own.sd < other.sd < 3 * own.sd and own.free < other.free
    assert spread("device", "eager", known) is None
    assert spread("host", "eager", learned(handmade.frame(replicated(4)))) is None


def test_rows_get_what_they_and_earlier_runs_show_again_and_again_alike():
    rows = handmade.frame([*replicated(5), process(0, 2.0, "ort")])
    found = with_spread(rows)
    assert found["latency_spread"].null_count() == 0
    one = found.filter(variant="ort")
    assert 2.1 < one["latency_high_ms"].item() < 2.4
    again = with_spread(found)
    assert again["latency_high_ms"].to_list() == pytest.approx(found["latency_high_ms"].to_list())
    few = handmade.frame([*replicated(2), process(0, 2.0, "ort")])
    assert with_spread(few)["latency_spread"].null_count() == len(few)
    assert with_spread(few, {"host/eager": (0.02, 5.0), "host": (9.0, 2.0)})["latency_spread"].null_count() == 0
    lone = with_spread(found.filter(variant="ort"))
    assert lone["latency_high_ms"].item() == pytest.approx(2.002), "of what a run assumed nothing is left"


def test_one_process_without_a_known_spread_has_no_interval_and_three_have_their_own():
    found = cells(with_spread(handmade.frame([*replicated(2), process(0, 2.0, "ort", model="net0")])))
    one = found.filter(variant="ort").row(0, named=True)
    assert [one[name] for name in ("latency_low_ms", "factor_high", "verdict", "latency_degrees")] == [None] * 3 + [0.0]
    assert one["factor"] == pytest.approx(0.5)
    assert found.filter(variant="eager")["latency_high_ms"].to_list() == pytest.approx([1.06] * 2, abs=0.01)


def test_one_process_that_other_work_makes_useless_is_busy_whatever_its_spread():
    rows = [process(0, 1.0, "ort", latency_low_ms=1 / reach, latency_high_ms=reach) for reach in (2.0, 4.0)]
    found = [cells(handmade.frame([row]))["latency_high_ms"].item() for row in rows]
    assert found == [None, pytest.approx(4.0)]
    cell = cells(handmade.frame([process(0, 2.0), rows[1]])).filter(variant="ort").row(0, named=True)
    assert cell["factor_high"] == pytest.approx(8.0), "nor does a factor rest on it"


def test_one_process_of_a_class_that_differs_too_much_has_no_interval():
    wide = {"latency_low_ms": 0.31, "latency_high_ms": 3.2, "latency_spread": 0.131, "latency_spread_free": 1.185}
    rows = [process(number, 1.0, **wide) for number in range(3)]
    of_one, of_three = (cells(handmade.frame(some))["latency_high_ms"].item() for some in (rows[:1], rows))
    assert of_one is None
    assert 1 < of_three < 2


def test_what_chose_a_cell_does_not_make_its_figure():
    rows = [process(0, 1.0, "ort"), *(process(n, 1.1, "ort", confirming=True) for n in (1, 2))]
    found = cells(handmade.frame(rows)).row(0, named=True)
    assert (found["latency_ms"], found["processes"], found["measured"]) == (pytest.approx(1.1), 2, 3)
    beside = [rows[0], *(row | {"warnings": ["disturbed: by others"]} for row in rows[1:])]
    assert cells(handmade.frame(beside))["latency_ms"].item() == 1.0, "a quiet process before others"


def test_several_that_are_confirmed_share_a_level():
    def rows(variant: str) -> list[dict[str, Any]]:
        return [process(n, ms, variant, confirming=n > 0) for n, ms in enumerate((1.0, 1.01, 1.02, 1.03))]

    alone, three = (
        handmade.frame([row | {"options": name} for name in of for row in rows(name)])
        for of in (["a"], ["a", "b", "c"])
    )
    high = cells(three)["latency_high_ms"][0]
    assert high > cells(alone)["latency_high_ms"][0]
    assert cells(three, ["options"])["latency_high_ms"][0] == high, "rivals differ in options and versions"


@pytest.mark.parametrize("damaged", ["", "{", '{"x": 1}'])
def test_earlier_runs_on_this_machine_count_and_others_do_not(damaged, tmp_path, monkeypatch):
    environment = {"device": "cuda", "gpu": "card", "cpu": "chip", "cpu_cores": 4}
    monkeypatch.setenv("PROFILER_CACHE", str(tmp_path))
    (tmp_path / "spreads.json").write_text(damaged)
    assert earlier_spread(environment) == {}
    keep_spread(environment, "run-00", {"host/eager": (0.9, 2.0)})
    assert earlier_spread(environment) == {"host/eager": (pytest.approx(0.9), 2.0)}
    for number in range(1, 21):
        keep_spread(environment, f"run-{number:02}", {"host/eager": (0.02, 2.0)})
    keep_spread(environment | {"gpu": "other"}, "run-99", {"host/eager": (5.0, 2.0)})
    assert earlier_spread(environment) == {"host/eager": (pytest.approx(0.02), 10.0)}, "the last 20 runs, as ten"
    both = together(earlier_spread(environment), {"host/eager": (0.04, 10.0), "host/ort": (0.1, 1.0)})
    assert both == {"host/eager": (pytest.approx(0.02 * 2**0.5), 20.0), "host/ort": (pytest.approx(0.1), 1.0)}


def test_a_row_without_figures_has_no_spread():
    rows = handmade.frame([*replicated(5), handmade.row("ort", ms=None)])
    assert with_spread(rows).filter(pl.col("status") != "ok")["latency_spread"].to_list() == [None]
