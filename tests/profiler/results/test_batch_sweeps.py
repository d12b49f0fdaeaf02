"""Minibatch efficiency from results: the knee, the curve's bends, and what takes more than twice."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import handmade
import polars as pl
import pytest

from profiler.results.batch_sweeps import curvature, efficiency, knees
from profiler.results.columns import RESULTS, whole_row


def row(batch: int, ms: float | None, settings: str = "", **other: Any) -> dict[str, Any]:
    """A row of alexnet's inference in eager; without `ms` one that ran out of memory."""
    place = {"machine": "H200", "model": "alexnet", "batch_size": batch, "device": "cuda", "setting": settings}
    if ms is None:
        ended = {"status": "oom", "reason": "CUDA out of memory. Tried to allocate 3 GiB"}
        return handmade.row("eager", ms=None, **place | ended | other)
    figures = {"clock": "event", "host_ms": None, "rel_l2_error": None, "throughput": 1000 * batch / ms}
    return handmade.row("eager", ms=ms, **place | figures | other)


def frame(rows: Sequence[Mapping[str, Any]]) -> pl.DataFrame:
    return pl.DataFrame([whole_row(row) for row in rows], schema=RESULTS)


def sweep(per_item: Mapping[int, float], **other: Any) -> list[dict[str, Any]]:
    """A sweep with these milliseconds per item."""
    return [row(batch, ms * batch, **other) for batch, ms in per_item.items()]


FALLING = {1: 8.0, 2: 5.0, 4: 3.5, 8: 2.8, 16: 2.6, 32: 2.5}


def test_efficiency_is_the_share_of_the_best_throughput() -> None:
    found = efficiency(frame(sweep(FALLING)))
    assert found["batch_size"].to_list() == list(FALLING)
    assert found["ms_per_item"].to_list() == pytest.approx(list(FALLING.values()))
    assert found["efficiency"].to_list() == pytest.approx([2.5 / ms for ms in FALLING.values()])
    assert found["note"].null_count() == len(FALLING)


def test_a_batch_that_does_not_fit_is_a_blank_with_out_of_memory() -> None:
    rows = [*sweep(FALLING), row(64, None), row(128, None, status="crashed", reason="ended by SIGSEGV")]
    found = efficiency(frame(rows)).filter(pl.col("batch_size") > 32)
    assert found["note"].to_list() == ["out of memory", "crashed: ended by SIGSEGV"]
    for column in ("latency_ms", "ms_per_item", "throughput", "efficiency"):
        assert found[column].to_list() == [None, None]


def test_batches_stand_in_rising_order_and_families_in_the_plans() -> None:
    rows = [row(b, 5.0 * b, model=model) for b in (16, 1, 4) for model in ("vgg16", "alexnet")]
    found = efficiency(frame(rows))
    assert found.select("model", "batch_size").rows() == [(m, b) for m in ("vgg16", "alexnet") for b in (1, 4, 16)]


def test_what_has_two_batches_or_is_a_layer_has_no_curve() -> None:
    layer = [row(batch, 5.0, model="L1", model_kind="layer") for batch in (1, 2, 4)]
    found = frame([row(16, 5.0), row(32, 5.0), row(16, 5.0, precision="fp16"), *layer])
    assert efficiency(found).is_empty()
    assert knees(found).is_empty()


def test_nothing_measured_says_nothing() -> None:
    unsupported = [row(b, None, status="unsupported", reason="no") for b in (1, 2)]
    assert efficiency(frame(unsupported)).is_empty()


def test_settings_keep_families_apart() -> None:
    rows = sweep(FALLING) + sweep(FALLING, settings="optimizer=sgd") + sweep(FALLING, settings="optimizer=adamw")
    assert knees(frame(rows))["setting"].to_list() == ["", "optimizer=sgd", "optimizer=adamw"]


def test_the_knee_is_the_smallest_batch_with_nine_tenths_of_the_best() -> None:
    found = knees(frame(sweep(FALLING))).row(0, named=True)
    assert (found["knee"], found["best_batch"], found["open_ended"]) == (16, 32, True)
    assert 2.5 / 2.8 < 0.9 < 2.5 / 2.6
    found = knees(frame(sweep({**FALLING, 64: 3.0}))).row(0, named=True)
    assert (found["knee"], found["best_batch"], found["open_ended"]) == (16, 32, False)


def test_the_knee_leaves_out_what_did_not_fit() -> None:
    found = knees(frame([*sweep(FALLING), row(64, None)])).row(0, named=True)
    assert (found["best_batch"], found["open_ended"]) == (32, True)


def shapes(per_item: Mapping[int, float], **other: Any) -> dict[int, str | None]:
    found = curvature(frame(sweep(per_item, **other)))
    return dict(found.select("batch_size", "shape").rows())


def test_a_curve_that_flattens_is_concave_up() -> None:
    assert shapes(FALLING) == dict.fromkeys((2, 4, 8, 16), "concave-up")


def test_a_bump_is_concave_down_and_the_sign_changes_there() -> None:
    """As the study says of the Tesla K40: a concave-down curvature at minibatch size 8."""
    per_item = {1: 9.0, 2: 7.0, 4: 5.6, 8: 5.2, 16: 4.0, 32: 3.4}
    found = curvature(frame(sweep(per_item)))
    assert found["shape"].to_list() == ["concave-up", "concave-up", "concave-down", "concave-up"]
    assert found.filter("changes")["batch_size"].to_list() == [8, 16]
    assert found["curvature"].to_list() == pytest.approx([0.6, 1.0, -0.8, 0.6])


def test_a_straight_line_has_no_shape() -> None:
    assert shapes({1: 5.0, 2: 4.0, 4: 3.0, 8: 2.0}) == {2: None, 4: None}


def test_batches_need_not_be_doublings() -> None:
    """On a parabola in log2 of the batch the second derivative is the same everywhere."""
    import math

    found = curvature(frame(sweep({b: 20 + math.log2(b) ** 2 for b in (1, 3, 4, 12, 64)})))
    assert found["curvature"].to_list() == pytest.approx([2.0] * 3)


def test_what_lies_within_the_noise_has_no_shape() -> None:
    per_item = {1: 5.0, 2: 4.0, 4: 3.1}  # A second difference of 0.1.

    def with_intervals(width: float) -> pl.DataFrame:
        rows = sweep(per_item)
        for one in rows:
            ends = {"latency_low_ms": one["latency_ms"] - width, "latency_high_ms": one["latency_ms"] + width}
            one.update(ends)
        return curvature(frame(rows))

    (narrow,), (wide,) = with_intervals(0.01).to_dicts(), with_intervals(0.2).to_dicts()
    assert narrow["shape"] == "concave-up"
    assert wide["shape"] is None
    # 0.2 ms of the batch are 0.2, 0.1 and 0.05 ms of an item, the middle one twice in the difference.
    assert wide["noise"] == pytest.approx((0.2**2 + 0.2**2 + 0.05**2) ** 0.5)


def test_a_batch_that_did_not_fit_breaks_no_curve() -> None:
    rows = [*sweep({1: 9.0, 2: 7.0, 8: 5.0}), row(4, None)]
    assert curvature(frame(rows))["batch_size"].to_list() == [2]


def test_what_replicates_differ_by_is_noise() -> None:
    smooth = {batch: 0.1 + 1 / batch for batch in (1, 2, 4, 8, 16, 32, 64)}
    scatter = [(1.1, 1.3, 0.9), (0.9, 1.2, 0.7)]  # Medians 10 % up and down in turn.

    def measured(spread: bool) -> pl.DataFrame:
        factors = [turn if spread else (turn[0],) * 3 for turn in scatter]
        replicates = [{b: ms * factors[i % 2][n] for i, (b, ms) in enumerate(smooth.items())} for n in range(3)]
        return frame([row for n, per_item in enumerate(replicates) for row in sweep(per_item, replicate=n)])

    assert "concave-down" in set(curvature(measured(spread=False))["shape"])
    assert "concave-down" not in set(curvature(measured(spread=True))["shape"])


def held_up(per_item: Mapping[int, float], gpu_per_item: Mapping[int, float | None]) -> list[dict[str, Any]]:
    """A sweep of which the host limits every batch whose device time is another, or unknown."""
    return [
        row(batch, ms * batch, gpu_ms=gpu and gpu * batch, warnings=["host-bound: a"] if gpu != ms else [])
        for (batch, ms), gpu in zip(per_item.items(), gpu_per_item.values(), strict=True)
    ]


HOSTS = {1: 32.0, 2: 16.0, 4: 8.0, 8: 4.0, 16: 2.6, 32: 2.5}
"""Each call takes 32 ms of the host's, until the device takes longer."""


def test_a_knee_is_the_devices_and_not_the_hosts() -> None:
    rows = held_up(HOSTS, {1: 5.0, 2: 2.7, 4: 2.65, 8: 2.62, 16: 2.6, 32: 2.5})
    found = knees(frame(rows)).row(0, named=True)
    assert (found["knee"], found["knee_throughput"]) == (2, pytest.approx(1000 / 2.7)), "16 by the host's time"
    assert efficiency(frame(rows))["efficiency"].to_list() == pytest.approx([2.5 / ms for ms in HOSTS.values()])
    assert efficiency(frame(rows))["on_device"].all()


def test_a_batch_of_which_only_the_hosts_time_is_known_is_left_out() -> None:
    rows = held_up(HOSTS, {1: None, 2: None, 4: 2.65, 8: 2.62, 16: 2.6, 32: 2.5})
    assert knees(frame(rows))["knee"].to_list() == [4]
    assert efficiency(frame(rows))["judged_ms"].null_count() == 2
    assert curvature(frame(rows))["batch_size"].to_list() == [8, 16]


def test_the_curve_is_the_devices_too() -> None:
    device = {1: 8.0, 2: 5.0, 4: 3.5, 8: 2.8, 16: 2.6, 32: 2.5}
    busy_host = {**device, 4: 9.0}
    assert "concave-down" in shapes(busy_host).values()
    rows = frame(held_up(busy_host, device))
    assert "concave-down" not in curvature(rows)["shape"].to_list()


def test_where_the_host_limits_nothing_the_latency_counts() -> None:
    rows = [row(batch, ms * batch, gpu_ms=9.9) for batch, ms in FALLING.items()]
    assert knees(frame(rows)).equals(knees(frame(sweep(FALLING))))
    assert curvature(frame(rows)).equals(curvature(frame(sweep(FALLING))))


def test_each_shape_has_a_sweep_of_its_own() -> None:
    lengths = {16: {1: 8.0, 2: 4.0, 4: 4.0}, 64: {1: 16.0, 2: 11.0, 4: 8.0}}
    rows = [one for length, ms in lengths.items() for one in sweep(ms, settings=f"sequence={length}")]
    assert efficiency(frame(rows))["efficiency"].to_list() == pytest.approx([0.5, 1.0, 1.0, 0.5, 8 / 11, 1.0])
    assert knees(frame(rows))["knee"].to_list() == [2, 4]
