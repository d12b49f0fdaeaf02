"""Minibatch efficiency from results: the knee, the curve's bends, what takes more than twice, and what fits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import handmade
import polars as pl
import pytest

from profiler.results.batch_sweeps import curvature, efficiency, knees, largest, more_than_twice
from profiler.results.columns import RESULTS, SAMPLES
from profiler.results.reading import with_all_columns
from profiler.results.replicates import not_measured
from profiler.results.run_tables import latency, memory
from profiler.results.sentences import sweep_sentences
from profiler.results.speedups import summary


def row(batch: int, ms: float | None, role: str = "sweep=batch", settings: str = "", **other: Any) -> dict[str, Any]:
    """A row of alexnet's inference in eager; without `ms` one that ran out of memory."""
    extra = "/".join(filter(None, [settings, role])) or None
    place = {"machine": "H200", "model": "alexnet", "batch_size": batch, "device": "cuda", "extra": extra}
    if ms is None:
        ended = {"status": "oom", "reason": "CUDA out of memory. Tried to allocate 3 GiB"}
        return handmade.row("eager", ms=None, **place | ended | other)
    figures = {"clock": "event", "host_ms": None, "rel_l2_error": None, "throughput": 1000 * batch / ms}
    return handmade.row("eager", ms=ms, **place | figures | other)


def frame(rows: Sequence[Mapping[str, Any]]) -> pl.DataFrame:
    return with_all_columns(pl.DataFrame(rows, schema=RESULTS))


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


def test_replicates_are_one_point_with_the_widest_interval() -> None:
    ends = [(9.0, 11.0), (8.5, 10.0), (9.5, 12.0)]
    rows = [
        row(batch, ms, replicate=n, latency_ci_low_ms=low, latency_ci_high_ms=high)
        for batch in (1, 2)
        for n, (ms, (low, high)) in enumerate(zip((10.0, 9.0, 11.0), ends, strict=True))
    ]
    found = efficiency(frame(rows)).row(0, named=True)
    assert (found["latency_ms"], found["latency_low_ms"], found["latency_high_ms"]) == (10.0, 8.5, 12.0)
    rows[0]["latency_ci_low_ms"] = None
    assert efficiency(frame(rows)).row(0, named=True)["latency_low_ms"] is None


def test_what_has_a_single_batch_is_no_sweep() -> None:
    found = frame([row(16, 5.0, role=""), row(16, 5.0, role="", precision="fp16")])
    assert efficiency(found).is_empty()
    assert knees(found).is_empty()
    assert sweep_sentences(found) == []


def test_nothing_measured_says_nothing() -> None:
    assert sweep_sentences(frame([])) == []
    unsupported = [row(b, None, status="unsupported", reason="no") for b in (1, 2)]
    assert efficiency(frame(unsupported)).is_empty()
    assert sweep_sentences(frame(unsupported)) == []


def test_settings_keep_families_apart() -> None:
    rows = sweep(FALLING) + sweep(FALLING, settings="optimizer=sgd") + sweep(FALLING, settings="optimizer=adamw")
    assert knees(frame(rows))["settings"].to_list() == ["", "optimizer=sgd", "optimizer=adamw"]


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
    assert shapes(per_item) == {2: "concave-up"}  # Without intervals 1 % on a GPU: 0.1 against 0.099.
    assert shapes(per_item, clock="host") == {2: None}  # And 3 % on a CPU.

    def with_intervals(width: float) -> pl.DataFrame:
        rows = sweep(per_item)
        for one in rows:
            ends = {"latency_ci_low_ms": one["latency_ms"] - width, "latency_ci_high_ms": one["latency_ms"] + width}
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


def test_more_than_twice_is_the_studys_own_example() -> None:
    """VGG on a GTX 1080: "420.28 ms … for a 64-sample minibatch", "899.86 ms … for 128 samples, i.e. almost 60ms more
    than twice the previous value"."""
    times = {32: 230.0, 64: 420.28, 128: 899.86}
    found = more_than_twice(frame([row(b, ms, model="vgg16", **{"pass": "training"}) for b, ms in times.items()]))
    (only,) = found.to_dicts()
    assert (only["half"], only["batch_size"]) == (64, 128)
    assert only["excess_ms"] == pytest.approx(59.30)
    said = sweep_sentences(frame([row(b, ms, model="vgg16", **{"pass": "training"}) for b, ms in times.items()]))
    assert (
        "vgg16 training, eager fp32: a batch of 128 takes 899.86 ms, 59.30 ms more than twice the 420.28 ms of 64."
        in said
    )


def test_more_than_twice_is_beyond_both_intervals() -> None:
    assert more_than_twice(frame([row(1, 10.0), row(2, 20.3)])).is_empty()
    assert more_than_twice(frame([row(1, 10.0), row(3, 99.0)])).is_empty(), "3 is not twice anything here"
    ends = {"latency_ci_low_ms": 20.29, "latency_ci_high_ms": 20.31}
    half = {"latency_ci_low_ms": 9.99, "latency_ci_high_ms": 10.01}
    assert len(more_than_twice(frame([row(1, 10.0, **half), row(2, 20.3, **ends)]))) == 1


PROBE = "probe=largest"


def probe(batch: int, mib: float | None, **other: Any) -> dict[str, Any]:
    return row(batch, None if mib is None else 1.0 * batch, PROBE, peak_memory_mib=mib, **other)


def test_the_largest_batch_is_the_probes_word() -> None:
    probes = [probe(32, 100.0), probe(512, None), probe(77, 230.0), probe(79, None)]
    (found,) = largest(frame([*sweep(FALLING), row(64, None), *probes])).to_dicts()
    assert (found["largest"], found["refused"], found["searched"]) == (77, 79, True)
    assert found["peak_memory_mib"] == 230.0
    assert (found["refused_status"], found["refused_reason"]) == ("oom", "CUDA out of memory. Tried to allocate 3 GiB")


def test_without_a_search_the_sweep_says_what_fits() -> None:
    (found,) = largest(frame([*sweep(FALLING), row(64, None), row(128, None)])).to_dicts()
    assert (found["largest"], found["refused"], found["searched"]) == (32, 64, False)
    assert found["peak_memory_mib"] is None
    assert largest(frame(sweep(FALLING))).is_empty(), "nothing is known of what does not fit"


@pytest.mark.parametrize(
    ("rows", "sentence"),
    [
        ([probe(7, 2345), probe(8, None)], "the largest batch that fits is 7 (2,345 MiB); 8 does not (out of memory)"),
        ([probe(64, 9.0)], "the largest batch that fits is 64 (9 MiB); none above it was tried"),
        ([probe(1, None)], "no batch fits, 1 does not (out of memory)"),
        ([row(1, 5.0), row(2, None)], "the largest batch of the sweep that fits is 1; 2 does not (out of memory)"),
        (
            [probe(64, 9.0), probe(66, None, reason="not tried: it would take about 20,000 MiB")],
            "the largest batch that fits is 64 (9 MiB); 66 does not (not tried: it would take about 20,000 MiB)",
        ),
        (
            [probe(64, 9.0), probe(66, None, status="failed", reason="an index needs 33 bits")],
            "the largest batch that fits is 64 (9 MiB); 66 does not (failed: an index needs 33 bits)",
        ),
    ],
)  # fmt: skip
def test_what_is_said_of_the_largest_batch(rows: list[dict[str, Any]], sentence: str) -> None:
    assert sweep_sentences(frame(rows))[-1] == f"alexnet, eager fp32: {sentence}."


def test_what_is_said_of_knee_and_curve() -> None:
    said = sweep_sentences(frame(sweep({1: 9.0, 2: 7.0, 4: 5.6, 8: 5.2, 16: 4.0, 32: 3.9}, settings="optimizer=sgd")))
    name = "alexnet, eager fp32, optimizer sgd"
    assert said == [
        f"{name}: a batch of 16 has 98 % of the throughput of the best, 256 items/s at batch 32, where the sweep ends.",
        f"{name}: time per item against minibatch size is concave-down at 8, concave-up at 2, 4 and 16; "
        "it turns at 8 and 16.",
    ]


def test_with_several_machines_each_sentence_names_its_own() -> None:
    said = sweep_sentences(frame(sweep(FALLING) + sweep(FALLING, machine="K40")))
    assert [sentence.partition(":")[0] for sentence in said] == [
        "alexnet, eager fp32, on H200",
        "alexnet, eager fp32, on K40",
    ]


def test_with_several_runs_of_a_machine_each_sentence_names_its_own() -> None:
    said = sweep_sentences(frame(sweep(FALLING) + sweep(FALLING, run_id="again")))
    assert [sentence.partition(":")[0] for sentence in said] == [
        "alexnet, eager fp32, run run",
        "alexnet, eager fp32, run again",
    ]


def test_what_replicates_differ_by_is_noise() -> None:
    smooth = {batch: 0.1 + 1 / batch for batch in (1, 2, 4, 8, 16, 32, 64)}
    scatter = [(1.1, 1.3, 0.9), (0.9, 1.2, 0.7)]  # Medians 10 % up and down in turn.

    def measured(spread: bool) -> pl.DataFrame:
        factors = [turn if spread else (turn[0],) * 3 for turn in scatter]
        replicates = [{b: ms * factors[i % 2][n] for i, (b, ms) in enumerate(smooth.items())} for n in range(3)]
        return frame([row for n, per_item in enumerate(replicates) for row in sweep(per_item, replicate=n)])

    assert "concave-down" in set(curvature(measured(spread=False))["shape"])
    assert "concave-down" not in set(curvature(measured(spread=True))["shape"])


def test_probes_disturb_neither_the_curves_nor_the_ordinary_tables() -> None:
    own = frame(sweep(FALLING))
    probes = frame([probe(32, 100.0), probe(77, 230.0), probe(79, None), probe(90, None, reason="of another kind")])
    both, samples = pl.concat([own, probes]), pl.DataFrame(schema=SAMPLES)
    assert efficiency(both).equals(efficiency(own))
    for table in (latency, memory, not_measured):
        assert table(both).equals(table(own))
    assert summary(both, samples).equals(summary(own, samples))


def test_what_rests_on_a_disturbed_batch_says_so_in_the_same_sentence() -> None:
    rows = sweep({1: 9.0, 2: 7.0, 4: 5.6, 8: 5.2, 16: 4.0, 32: 3.9})
    rows[2]["warnings"], rows[5]["warnings"] = ["inconsistent: a"], ["disturbed: b", "drift: c"]
    knee, curve = sweep_sentences(frame(rows))
    doubt = "; batch 4 was inconsistent and batch 32 was disturbed."
    assert knee.endswith(f", where the sweep ends{doubt}")
    assert curve.endswith(f"it turns at 8 and 16{doubt}")
    (fits,) = [s for s in sweep_sentences(frame([*rows, row(64, None)])) if "largest batch" in s]
    assert "disturbed" not in fits, "memory is what it is"


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
    said = sweep_sentences(frame(rows))[0]
    assert said.startswith("alexnet, eager fp32: a batch of 2 has 93 % of the throughput of the best, 400 items/s")
    assert said.endswith("; 4 of 6 batches are host-bound: by the device's own time.")


def test_a_batch_of_which_only_the_hosts_time_is_known_is_left_out() -> None:
    rows = held_up(HOSTS, {1: None, 2: None, 4: 2.65, 8: 2.62, 16: 2.6, 32: 2.5})
    said = sweep_sentences(frame(rows))[0]
    assert "a batch of 4 has 94 %" in said
    assert said.endswith("; 4 of 6 batches are host-bound: by the device's own time, without 1 and 2.")
    assert curvature(frame(rows))["batch_size"].to_list() == [8, 16]


def test_the_curve_and_what_takes_more_than_twice_are_the_devices_too() -> None:
    device = {1: 8.0, 2: 5.0, 4: 3.5, 8: 2.8, 16: 2.6, 32: 2.5}
    busy_host = {**device, 4: 9.0}
    assert "concave-down" in shapes(busy_host).values()
    assert more_than_twice(frame(sweep(busy_host)))["batch_size"].to_list() == [4]
    rows = frame(held_up(busy_host, device))
    assert "concave-down" not in curvature(rows)["shape"].to_list()
    assert more_than_twice(rows).is_empty()


def test_where_the_host_limits_nothing_the_latency_counts() -> None:
    rows = [row(batch, ms * batch, gpu_ms=9.9) for batch, ms in FALLING.items()]
    assert knees(frame(rows)).equals(knees(frame(sweep(FALLING))))
    assert curvature(frame(rows)).equals(curvature(frame(sweep(FALLING))))


def test_each_shape_has_a_sweep_of_its_own() -> None:
    lengths = {16: {1: 8.0, 2: 4.0, 4: 4.0}, 64: {1: 16.0, 2: 11.0, 4: 8.0}}
    rows = [one for length, ms in lengths.items() for one in sweep(ms, settings=f"sequence={length}")]
    assert efficiency(frame(rows))["efficiency"].to_list() == pytest.approx([0.5, 1.0, 1.0, 0.5, 8 / 11, 1.0])
    short, long = sweep_sentences(frame(rows))
    assert short.startswith("alexnet, eager fp32, sequence 16: ") and short.endswith(" at batch 2.")
    assert long.startswith("alexnet, eager fp32, sequence 64: ") and long.endswith(" at batch 4, where the sweep ends.")
