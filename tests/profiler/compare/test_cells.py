"""Cells of several sides: ratios, intervals, verdicts, what they come to together, and which are regressions."""

from __future__ import annotations

from typing import Any

import handmade
import numpy as np
import polars as pl
import pytest

from profiler.compare.cells import compare, find_regressions, resolution, totals
from profiler.compare.command import parse_limit
from profiler.errors import ConfigError
from profiler.stats.intervals import ratio_interval


def frame(*rows: dict[str, Any]) -> pl.DataFrame:
    usual = {
        "model": "resnet50", "variant": "eager", "pass": "inference", "precision": "fp32", "batch_size": 1,
        "status": "ok", "clock": "host", "options": "{}", "peak_memory_mib": 100.0,
    }  # fmt: skip
    return handmade.frame({**usual, **handmade.KNOWN, **row} for row in rows)


def processes(run_id: str, *medians: float, reach: float = 0.0, **columns: Any) -> list[dict[str, Any]]:
    return [
        {"run_id": run_id, "latency_ms": ms, "latency_low_ms": ms / (1 + reach), "latency_high_ms": ms * (1 + reach),
         "replicate": number, **columns}
        for number, ms in enumerate(medians)
    ]  # fmt: skip


def only(cells: pl.DataFrame) -> dict[str, Any]:
    assert cells.height == 1
    return cells.to_dicts()[0]


def test_a_ratio_is_the_bases_time_over_the_sides_with_the_interval_of_both():
    base = processes("a", 3.0, reach=0.02, gpu_ms=2.0, warnings=["drift: by 5 %"])
    side = processes("b", 2.0, reach=0.05, gpu_ms=1.0, peak_memory_mib=150.0)
    cell = only(compare(frame(*base, *side).lazy()))
    ends = ((3.0, 3.0 / 1.02, 3.0 * 1.02), (2.0, 2.0 / 1.05, 2.0 * 1.05))
    assert [cell[f"ratio{end}"] for end in ("", "_low", "_high")] == pytest.approx([*map(float, ratio_interval(*ends))])
    assert (cell["base"], cell["side"], cell["verdict"], cell["memory_ratio"]) == ("a", "b", "faster", 1.5)
    for number, which in enumerate(("base", "side")):
        figures = [cell[f"{which}_{name}"] for name in ("ms", "low_ms", "high_ms", "device_ms", "processes")]
        assert figures == pytest.approx([*ends[number], 2.0 - number, 1])
    assert (cell["base_footnotes"], cell["side_footnotes"]) == (["drift"], [])


@pytest.mark.parametrize("key", ["model", "variant", "pass", "precision", "batch_size", "setting"])
def test_only_equal_cells_are_compared(key):
    other = 2 if key == "batch_size" else "other"
    rows = frame(*processes("a", 1.0), *processes("b", 1.0), *processes("b", 9.0, **{key: other}))
    cells = compare(rows)
    assert cells.filter(pl.col("ratio").is_not_null())["side_ms"].to_list() == [1.0]
    alone = only(cells.filter(pl.col("ratio").is_null()))
    assert (alone[key], alone["base_status"], alone["side_status"]) == (other, None, "ok")


@pytest.mark.parametrize(
    ("by", "sides"),
    [
        ("shape", [("sequence=16", "sequence=16"), ("sequence=64", "sequence=64")]),
        ("shape", [("sequence=16", "head=logits/sequence=16"), ("sequence=64", "head=logits/sequence=64")]),
        ("optimizer", [("adamw", "optimizer=adamw/head=logits"), ("sgd", "optimizer=sgd/head=logits")]),
    ],
)
def test_a_side_may_be_a_part_of_the_setting(by, sides):
    (one, own), (two, other) = sides
    rows = frame(*processes("a", 3.0, **{by: one, "setting": own}), *processes("a", 1.0, **{by: two, "setting": other}))
    cell = only(compare(rows, by))
    assert (cell["base"], cell["side"], cell["ratio"]) == (one, two, pytest.approx(3.0))
    assert cell["setting"] == ("head=logits" if "head" in own else None)


def test_a_cell_that_failed_says_why_unless_another_process_gave_figures():
    failed = {"run_id": "b", "status": "crashed", "reason": "SIGSEGV", "replicate": 3}
    cell = only(compare(frame(*processes("a", 1.0), failed)))
    assert (cell["base_status"], cell["side_status"], cell["side_reason"]) == ("ok", "crashed", "SIGSEGV")
    assert (cell["ratio"], cell["verdict"], cell["side_processes"]) == (None, None, 0)
    cell = only(compare(frame(*processes("a", 1.0), failed, *processes("b", 1.0))))
    assert (cell["side_status"], cell["side_processes"], cell["verdict"]) == ("ok", 1, "equivalent")


def test_sides_may_be_machines_variants_or_several_runs():
    machines = [
        *processes("r1", 1.0, machine="A"),
        *processes("r2", 1.02, 0.98, machine="A"),
        *processes("r3", 2.0, machine="B"),
    ]
    cell = only(compare(frame(*machines), by="machine"))
    assert (cell["base"], cell["side"], cell["base_processes"], cell["verdict"]) == ("A", "B", 3, "slower")
    variants = [
        *processes("r", 2.0, options="1"), *processes("r", 1.0, variant="ort", options="2"),
        *processes("r", 4.0, precision="fp16"),
    ]  # fmt: skip
    cells = compare(frame(*variants), by="variant").select("base", "side", "variant", "precision", "ratio", "differs")
    assert cells.rows() == [("eager", "ort", None, "fp32", 2.0, None), ("eager", "ort", None, "fp16", None, None)]
    runs = frame(*processes("a", 1.0), *processes("b", 2.0), *processes("c", 4.0))
    assert compare(runs).select("side", "ratio").rows() == [("b", 0.5), ("c", 0.25)]
    assert compare(runs, base="c").select("side", "ratio").rows() == [("a", 4.0), ("b", 2.0)]


def test_what_makes_two_cells_of_one_name_not_the_same_is_said():
    for options, differs in (('{"a": 1}', "options"), ("{}", None)):
        rows = frame(*processes("a", 1.0), *processes("b", 1.0, options=options))
        assert only(compare(rows))["differs"] == differs


@pytest.mark.parametrize(
    ("rows", "options", "said"),
    [
        (processes("a", 1.0), {}, "only one side"),
        (processes("a", 1.0) + processes("b", 1.0), {"by": "machin"}, "did you mean 'machine'"),
        (processes("a", 1.0) + processes("b", 1.0), {"by": "batch_size"}, "no text column"),
        (processes("a", 1.0) + processes("b", 1.0), {"by": "driver"}, "that column is empty"),
        (processes("a", 1.0) + processes("b", 1.0), {"base": "c"}, "no side is called 'c'"),
        (processes("a", 1.0) + processes("b", 1.0), {"only": pl.col("model") == "x"}, "no row of these runs"),
        (processes("a", 1.0) + processes("b", 1.0, model="other"), {}, "on both sides: a, b share no model,"),
    ],
)  # fmt: skip
def test_what_cannot_be_compared_is_a_config_error(rows, options, said):
    with pytest.raises(ConfigError, match=said):
        compare(frame(*rows), **options)


@pytest.mark.parametrize(("zero", "lost"), [("peak_memory_mib", "memory_ratio"), ("latency_ms", "ratio")])
def test_a_figure_of_0_gives_no_infinite_ratio(zero, lost):
    cell = only(compare(frame(*processes("a", 1.0), *processes("b", 1.0, **{zero: 0.0}))))
    assert [name for name, value in cell.items() if isinstance(value, float) and not np.isfinite(value)] == []
    assert cell[lost] is None


# What cells say together.


def sides(times_ms: dict[str, tuple[float | None, ...]], **columns: Any) -> pl.DataFrame:
    """A comparison of sides with one time a model; None is a cell that failed."""
    rows = [
        row if ms else {**row, "status": "failed"}
        for side, times in times_ms.items()
        for number, ms in enumerate(times)
        for row in processes(side, ms or 1.0, model=f"m{number}", **columns)
    ]
    return compare(frame(*rows))


def test_totals_are_geometric_means_over_the_cells_that_both_ran():
    given = {"A": (4.0, 1.0, 1.0), "B": (1.0, 1.0, None), "C": (None, None, None)}
    cells = pl.concat([sides(given, precision=precision) for precision in ("fp32", "fp16")])
    (total,) = totals(cells).to_dicts()
    assert [total[name] for name in ("side", "cells")] == ["B", 4]
    assert [total[name] for name in ("ratio", "low", "high", "memory_ratio")] == pytest.approx([2.0, 2.0, 2.0, 1.0])
    assert [total[name] for name in ("faster", "slower", "equivalent", "unclear")] == [2, 0, 2, 0]
    assert resolution(cells) == pytest.approx(0, abs=1e-6)


def test_a_total_is_known_better_than_its_cells_and_only_where_all_are():
    rows = [row for n in range(4) for run in "ab" for row in processes(run, 1.0, reach=0.05, model=f"net{n}")]
    (total,) = totals(compare(frame(*rows))).to_dicts()
    half = np.log(1.05) / np.sqrt(2)  # Each ratio has √2 times a side's arm, and the mean of four half of that.
    assert [total["low"], total["high"]] == pytest.approx([np.exp(-half), np.exp(half)])
    unknown = processes("a", 1.0, model="net9", latency_spread=None, latency_spread_free=None)
    (total,) = totals(compare(frame(*rows, *unknown, *processes("b", 1.0, model="net9")))).to_dicts()
    assert (total["low"], total["high"], total["cells"]) == (None, None, 5)


# Regressions.


def test_the_limit_is_a_percentage_or_a_share():
    for text, share in {"5%": 0.05, "5 %": 0.05, "0.5%": 0.005, "120%": 1.2, "0.05": 0.05, ".1": 0.1, "0": 0.0}.items():
        assert parse_limit("--fail-on-regression", text) == pytest.approx(share)
    for text in ("5", "1.5", "1", "-0.05", "0.", "-5%", "five", "", "%", "5%%", "nan%", "1e2%"):
        with pytest.raises(ConfigError, match="--fail-on-regression: expected a percentage such as 5%"):
            parse_limit("--fail-on-regression", text)


def test_many_cells_raise_no_more_false_alarms_than_one():
    """Three processes each are slower by 7 %, hardly for certain beyond 5 %; beside forty others it is not told."""
    slow = [*processes("a", 1.0, 1.0001, 0.9999), *processes("b", 1.07, 1.072, 1.074)]
    others = [row for n in range(40) for run in "ab" for row in processes(run, 1.0, 1.001, 0.999, model=f"net{n}")]
    for rows, code in ((slow, "slower"), ([*slow, *others], "unclear")):
        assert find_regressions(compare(frame(*rows)), 0.05)["code"].to_list() == [code]


FAILED = {"run_id": "b", "reason": "no luck"}


@pytest.mark.parametrize(
    ("side", "code"),
    [
        (processes("b", 1.08, reach=0.01), "slower"),  # One process a side is enough where its interval says so.
        (processes("b", 1.08, 1.081, 1.079), "slower"),
        (processes("b", 1.08, reach=0.1), "unclear"),
        (processes("b", 1.0, 1.3, 1.1), "unclear"),
        (processes("b", 1.04, reach=0.1), None),  # Slower by less, and what could be more is not held against it.
        (processes("b", 0.5, reach=0.1), None),
        *(([{**FAILED, "status": status}], "failed") for status in ("failed", "oom", "timeout", "crashed")),
        ([{**FAILED, "status": "unsupported"}], "lost"),
        ([], "lost"),
    ],
)
def test_a_regression_is_read_off_the_interval_and_the_status(side, code):
    other = [*processes("a", 1.0, model="same"), *processes("b", 1.0, model="same")]
    cells = compare(frame(*processes("a", 1.0, reach=0.001), *side, *other))
    found = find_regressions(cells, 0.05)
    assert found["code"].to_list() == ([code] if code else [])
    if code:
        row, cell = only(found), only(cells.filter(model="resnet50"))
        assert (row["cell"], row["side"], row["limit"]) == ("resnet50/eager/inference/fp32/b1", "b", 0.05)
        assert [row[name] for name in ("ratio", "low", "high")] == [cell[f"ratio{e}"] for e in ("", "_low", "_high")]
        failed = side[0].get("status") if side else None
        assert row["reason"] == (f"{failed}: no luck" if failed else None if side else "this side has no such case")


def test_the_worst_come_first_and_what_only_failed_before_is_none():
    times = {"m0": (1.2, 0.01), "m1": (1.5, 0.01), "m2": (1.5, 0.9)}
    side = [row for model, (ms, reach) in times.items() for row in processes("b", ms, reach=reach, model=model)]
    base = [row for model in times for row in processes("a", 1.0, model=model)]
    before = [{**FAILED, "run_id": "a", "status": "failed", "model": "gone"}, *processes("b", 1.0, model="new")]
    broken = [*processes("a", 1.0, model="m3"), {**FAILED, "status": "oom", "model": "m3"}]
    found = find_regressions(compare(frame(*base, *side, *before, *broken)), 0.05)
    models = [cell.partition("/")[0] for cell in found["cell"]]
    assert [*zip(found["code"], models, strict=True)] == [
        ("slower", "m1"), ("slower", "m0"), ("failed", "m3"), ("unclear", "m2")
    ]  # fmt: skip
