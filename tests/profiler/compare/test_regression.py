"""--fail-on-regression: what counts as slower, with which evidence, and what cannot be judged."""

from __future__ import annotations

import re
from typing import Any

import polars as pl
import pytest

from profiler.compare.cells import compare
from profiler.compare.regression import find_regressions, parse_limit
from profiler.errors import ConfigError
from profiler.results.columns import RESULTS
from profiler.results.reading import with_all_columns


def cells(*sides: list[dict[str, Any]]) -> pl.DataFrame:
    usual = {
        "model": "resnet50", "variant": "ort", "pass": "inference", "precision": "fp32", "batch_size": 1,
        "status": "ok", "clock": "host",
    }  # fmt: skip
    rows = [{**usual, "run_id": "ab"[i], **row} for i, side in enumerate(sides) for row in side]
    return compare(with_all_columns(pl.DataFrame(rows, schema=RESULTS)))


def replicated(*medians: float, **columns: Any) -> list[dict[str, Any]]:
    return [{"latency_ms": ms, **columns} for ms in medians]


def single(ms: float, reach: float = 0.001, **columns: Any) -> dict[str, Any]:
    ends = {"latency_ci_low_ms": ms * (1 - reach), "latency_ci_high_ms": ms * (1 + reach)}
    return {"latency_ms": ms, **ends, **columns}


BASE = replicated(1.0, 1.001, 0.999)


@pytest.mark.parametrize(
    ("text", "share"),
    [("5%", 0.05), ("5 %", 0.05), ("0.5%", 0.005), ("120%", 1.2), ("0%", 0.0), ("0.05", 0.05), (".1", 0.1), ("0", 0.0)],
)
def test_the_limit_is_a_percentage_or_a_share(text: str, share: float) -> None:
    assert parse_limit(text) == pytest.approx(share)


@pytest.mark.parametrize("text", ["5", "1.5", "1", "-0.05", "0.", "-5%", "five", "", "%", "5%%", "nan%", "1e2%"])
def test_any_other_limit_is_a_config_error(text: str) -> None:
    with pytest.raises(ConfigError, match="--fail-on-regression: expected a percentage such as 5%"):
        parse_limit(text)


@pytest.mark.parametrize(
    ("side", "verdict"),
    [
        (replicated(1.0, 1.001, 0.999), "none"),
        (replicated(1.04, 1.041, 1.039), "none"),  # Slower, but by less.
        (replicated(1.08, 1.081, 1.079), "slower"),
        (replicated(1.0, 1.3, 1.1), "perhaps"),
        (replicated(0.5, 0.5, 0.5), "none"),
    ],
)
def test_between_processes_the_whole_interval_must_lie_beyond_the_limit(side: Any, verdict: str) -> None:
    found = find_regressions(cells(BASE, side), 0.05)
    assert found.slower.height == (verdict == "slower")
    assert found.perhaps.height == (verdict == "perhaps")
    assert found.exit_code == {"none": 0, "slower": 1, "perhaps": 4}[verdict]


def test_on_a_gpu_device_time_decides() -> None:
    def rows(latency: float, device: float) -> list[dict[str, Any]]:
        return [{"latency_ms": latency, "gpu_ms": device * f, "clock": "event"} for f in (1.0, 1.001, 0.999)]

    assert find_regressions(cells(rows(1, 1), rows(2, 1)), 0.05).exit_code != 1
    found = find_regressions(cells(rows(1, 1), rows(1, 1.2)), 0.05)
    assert found.exit_code == 1
    assert "20.0 % slower (" in found.lines(9)[1]
    assert "between processes, on device time" in found.lines(9)[1]


def test_without_device_time_latency_decides() -> None:
    """A call whose launches no gate can hold has none."""
    slow = replicated(1.5, 1.501, 1.499, clock="event")
    found = find_regressions(cells(replicated(1.0, 1.001, 0.999, clock="event"), slow), 0.05)
    assert found.slower.height == 1
    assert found.unknown.is_empty()
    (_, line) = found.lines(top=5)
    assert line.endswith("between processes, on latency)")
    assert "50.0 % slower" in line


def test_under_three_processes_nothing_is_proven_and_nothing_passes() -> None:
    found = find_regressions(cells([single(1.0)], [single(1.1)]), 0.05)
    assert found.exit_code == 4
    assert found.lines(9) == [
        "No cell is certainly slower by more than 5 %.",
        "1 cell may be slower by more, which is not proven:",
        "b: resnet50/ort/inference/fp32/b1: 10.0 % slower (9.8 to 10.2, within process); "
        "1 and 1 processes: a verdict needs 3 a side",
    ]
    assert find_regressions(cells([single(1.0)], [single(1.04)]), 0.05).exit_code == 0


@pytest.mark.parametrize(
    "side",
    [
        pytest.param([single(246.0)], id="one process"),
        pytest.param(replicated(246.0), id="no interval"),
        pytest.param(replicated(1.0, 246.0, 2000.0), id="noisy processes"),
        pytest.param(replicated(246.0, 246.1, 245.9), id="proven"),
    ],
)
@pytest.mark.parametrize("base", [[single(1.0)], replicated(1.0), BASE, replicated(0.1, 1.0, 40.0)])
def test_a_cell_that_is_246_times_slower_never_passes(base: Any, side: Any) -> None:
    assert find_regressions(cells(base, side), 0.05).exit_code in (1, 4)


def test_what_would_settle_an_unclear_cell_is_said() -> None:
    lines = find_regressions(cells(BASE, replicated(1.0, 1.3, 1.1)), 0.05).lines(9)
    assert lines[1] == "1 cell may be slower by more, which is not proven:"
    assert lines[2].startswith("b: resnet50/ort/inference/fp32/b1: 10.0 % slower (")
    assert re.search(r"; more than \d+ replicates a side may prove it$", lines[2])


def test_what_is_proven_wins_over_what_is_not() -> None:
    side = [*replicated(1.2, 1.201, 1.199), *replicated(2.0, model="vgg16")]
    found = find_regressions(cells([*BASE, *replicated(1.0, model="vgg16")], side), 0.05)
    assert (found.slower.height, found.perhaps.height, found.exit_code) == (1, 1, 1)


def test_a_cell_that_is_missing_or_cannot_be_any_more_is_named() -> None:
    base = [*BASE, {**BASE[0], "model": "vgg16"}, {**BASE[0], "model": "alexnet"}]
    found = find_regressions(
        cells(base, [*BASE, {"model": "vgg16", "status": "unsupported", "reason": "no library"}]), 0.05
    )
    assert found.exit_code == 4
    assert found.lines(9)[1:] == [
        "2 cells that the base ran cannot be compared; measure them, or leave them out by --only:",
        "b: vgg16/ort/inference/fp32/b1: unsupported, no library",
        "b: alexnet/ort/inference/fp32/b1: missing in b",
    ]
    # What only the new side has was never faster.
    assert find_regressions(cells(BASE, [*BASE, {**BASE[0], "model": "vgg16"}]), 0.05).exit_code == 0


def test_a_cell_that_ran_and_fails_now_is_a_regression() -> None:
    failed = {"model": "vgg16", "status": "crashed", "reason": "SIGSEGV"}
    found = find_regressions(cells([*BASE, {**BASE[0], "model": "vgg16"}], [*BASE, failed]), 0.05)
    assert found.exit_code == 1
    assert found.slower.is_empty()
    assert found.lines(9)[1:] == [
        "1 cell that the base ran failed:",
        "b: vgg16/ort/inference/fp32/b1: crashed, SIGSEGV",
    ]


def test_a_reason_of_several_cells_is_said_once_with_all_of_them() -> None:
    base = [{**BASE[0], "model": "vgg16", "batch_size": batch} for batch in (1, 2, 4)]
    side = [{**row, "status": "failed", "reason": "Error:\n  at net.py:22"} for row in base]
    side[1]["reason"] = "another"
    assert find_regressions(cells([*BASE, *base], [*BASE, *side]), 0.05).lines(9)[1:] == [
        "3 cells that the base ran failed:",
        "b: vgg16/ort/inference/fp32/b1, vgg16/ort/inference/fp32/b4: failed, Error:\n  at net.py:22",
        "b: vgg16/ort/inference/fp32/b2: failed, another",
    ]


@pytest.mark.parametrize("status", ["unsupported", "failed"])
def test_a_cell_that_failed_before_or_cannot_be_is_none(status: str) -> None:
    broken = {"model": "vgg16", "status": status}
    before = [*BASE, {**broken, "status": "failed"} if status == "failed" else {**BASE[0], "model": "vgg16"}]
    assert find_regressions(cells(before, [*BASE, broken]), 0.05).exit_code != 1


def test_cells_that_cannot_be_judged_are_named_with_both_medians_whatever_they_say() -> None:
    busy = {"warnings": ["disturbed: a", "inconsistent: by 3"]}
    base = [*BASE, *replicated(1.0, model="few"), single(1.0, model="slow", **busy), *replicated(1.0, model="same")]
    side = [*BASE, *replicated(1.0, model="few"), single(77.0, model="slow"), single(1.0, model="same", **busy)]
    side += [single(0.5, model="fast", **busy)]
    found = find_regressions(cells([*base, single(1.0, model="fast")], side), 0.05)
    assert found.exit_code == 4
    could_not = "slower by more than 5 %, by the medians alone); measure again:"
    cell, why = "/ort/inference/fp32/b1", "either side was disturbed and inconsistent"
    assert found.lines(9) == [
        "No cell is certainly slower by more than 5 %.",
        f"1 cell could not be judged ({could_not}",
        f"b: slow{cell}: 1 ms in a, 77 ms in b; {why}",
        f"3 cells could not be judged (not {could_not}",
        f"b: few{cell}: 1 ms in a, 1 ms in b; 1 and 1 processes: a verdict needs 3 a side; "
        "too few samples for an interval, too",
        f"b: same{cell}: 1 ms in a, 1 ms in b; {why}",
        f"b: fast{cell}: 1 ms in a, 0.5 ms in b; {why}",
    ]


@pytest.mark.parametrize("busy", [replicated(1.0), replicated(1.0, 1.001, 0.999)])
def test_disturbed_cells_that_are_not_slower_never_pass_in_silence(busy: Any) -> None:
    busy = [{**row, "model": "vgg16", "warnings": ["inconsistent: by 3"]} for row in busy]
    found = find_regressions(cells([*BASE, *busy], [*BASE, *busy]), 0.05)
    assert (found.exit_code, found.unknown["model"].to_list()) == (0, ["vgg16"])
    if len(busy) < 3:
        with pytest.raises(ConfigError, match=r"no cell can be judged \(either side was inconsistent\)"):
            find_regressions(cells(busy, busy), 0.05)


def test_where_no_cell_can_be_judged_the_check_does_not_pass_in_silence() -> None:
    with pytest.raises(
        ConfigError, match=r"no cell can be judged \(1 and 1 processes.*; measure again, with replicates: 3"
    ):
        find_regressions(cells(replicated(1.0), replicated(1.0)), 0.05)


def test_the_worst_come_first_and_the_rest_is_counted() -> None:
    models = {"a": 1.2, "b": 1.5, "c": 1.3}
    base = [row for model in models for row in replicated(1.0, 1.001, 0.999, model=model)]
    side = [row for model, f in models.items() for row in replicated(f, f * 1.001, f * 0.999, model=model)]
    lines = find_regressions(cells(base, side), 0.05).lines(2)
    assert [line.split("/")[0] for line in lines[1:3]] == ["b: b", "b: c"]
    assert lines[3] == "and 1 more"


def test_from_twice_the_time_on_a_cell_is_slower_by_a_factor() -> None:
    found = find_regressions(cells(replicated(1.0, 1.001, 0.999), replicated(77.0, 77.1, 76.9)), 0.05)
    (_, line) = found.lines(top=5)
    assert "77.0× slower (" in line and "%" not in line


@pytest.mark.parametrize("disturbed", [0, 1])
@pytest.mark.parametrize("kind", ["disturbed", "inconsistent"])
def test_a_disturbed_cell_is_no_proof_and_its_factor_is_not_named(kind: str, disturbed: int) -> None:
    sides = [replicated(1.0, 1.001, 0.999), replicated(77.0, 77.1, 76.9)]
    sides[disturbed][1]["warnings"] = [f"{kind}: a"]
    found = find_regressions(cells(*sides), 0.05)
    assert found.exit_code == 4
    medians = "1 ms in a, 77 ms in b"
    why = f"{medians}; either side was {kind}"
    assert found.lines(9)[2:] == [f"b: resnet50/ort/inference/fp32/b1: {why}"]


def test_a_verdict_on_doubted_rows_stays_and_names_their_warnings_and_sides() -> None:
    base, side = replicated(1.0, 1.001, 0.999), replicated(1.5, 1.501, 1.499)
    base[0]["warnings"] = ["unsteady: by 4 %"]
    side[1]["warnings"] = ["unsteady: by 3 %", "drift: by 5 %", "short-calls: 4 a block"]
    found = find_regressions(cells(base, side), 0.05)
    assert found.exit_code == 1
    (_, line) = found.lines(9)
    assert line.endswith(", between processes, on latency; unsteady in a; drift, unsteady in b)")
    (*_, line) = find_regressions(cells(base[:1], [single(1.5)]), 0.05).lines(9)
    assert "50.0 % slower, without an interval; unsteady in a; 1 and 1 processes" in line
