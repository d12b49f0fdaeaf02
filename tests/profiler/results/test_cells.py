"""Cells: replicates merged once, factors with intervals, and the one choice that all answers print."""

from __future__ import annotations

from typing import Any

import handmade
import polars as pl
import pytest

from profiler.results.cells import CELLS, cells, compared, largest
from profiler.results.choice import HIGHER, Limit, choose
from profiler.results.columns import FIGURES, LARGEST_BATCH, RESULTS
from profiler.results.reasons import Reason, bound
from profiler.results.result import RANGED, ends_of
from profiler.stats.intervals import spread_reach
from tests.handmade import whole_row


def row(variant: str = "eager", precision: str = "fp32", ms: float | None = 10.0, **more: Any) -> dict[str, Any]:
    """Make a row of one process whose interval is 10 % wide to either side, which is its spread between processes."""
    own: dict[str, Any] = {"machine": "host", "rel_l2_error": 1e-6, "samples": 100, "load_s": 1.0}
    own |= {"peak_memory_mib": 100.0, "latency_spread": 0.0365, "latency_spread_free": 6.0}
    own |= {"latency_low_ms": ms / 1.1, "latency_high_ms": ms * 1.1} if ms else {}
    return whole_row(handmade.row(variant, precision, ms, **own | more))


def frame(*rows: dict[str, Any]) -> pl.DataFrame:
    return pl.DataFrame(list(rows), schema=RESULTS)


def bases(*figures: float, **more: Any) -> list[dict[str, Any]]:
    return [row(ms=ms, replicate=number, **more) for number, ms in enumerate(figures)]


def only(found: pl.DataFrame, **cell: Any) -> dict[str, Any]:
    return found.filter(**cell).row(0, named=True)


def test_a_cell_has_every_figure_of_its_processes_and_a_factor_over_its_base():
    rows = [
        *bases(9.0, 10.0, 11.0),
        row("ort", ms=5.0, warnings=["drift: it moved", "outliers: 3 of 20"]),
        row("compiled", status="crashed", reason="SIGSEGV"),
    ]
    found = cells(frame(*rows))
    assert list(found.columns) == ["run_id", *CELLS]
    base, fast, lost = (only(found, variant=name) for name in ("eager", "ort", "compiled"))
    assert (base["processes"], base["latency_ms"], base["samples"], base["factor"]) == (3, 10.0, 300, 1.0)
    assert base["latency_low_ms"] > 10 / 1.15, "three processes are known better than one"
    assert fast["base"] == "eager fp32"
    assert fast["factor"] == pytest.approx(2.0)
    assert 1.7 < fast["factor_low"] < 2 < fast["factor_high"] < 2.4
    assert (fast["verdict"], fast["footnotes"]) == ("faster", ["drift", "outliers"])
    assert (lost["status"], lost["reason"], lost["failures"], lost["factor"]) == ("crashed", "SIGSEGV", 1, None)


def test_a_column_that_an_earlier_version_lacks_is_null():
    (cell,) = cells(frame(row()).drop("beaten_by", "energy_mj_per_item")).to_dicts()
    assert (cell["latency_ms"], cell["beaten_by"], cell["energy_mj_per_item"]) == (10.0, None, None)


@pytest.mark.parametrize(("device", "least"), [(None, 5.0), (4.0, 5.0), (9.0, 8.82), (10.5, 9.8)])
def test_no_call_is_faster_than_its_device(device, least):
    clocks = {"gpu_ms": device, "gpu_low_ms": device, "gpu_high_ms": device}
    found = cells(frame(row(ms=10.0, latency_low_ms=5.0, latency_high_ms=20.0, **clocks)))
    assert found["latency_low_ms"].item() == pytest.approx(least, rel=1e-3)
    assert found["latency_high_ms"].item() == pytest.approx(20.0, rel=1e-3)


@pytest.mark.parametrize(("fast", "slow", "high"), [(1, 1, 2.07), (5, 3, 2.0), (6, 1, 1.51), (8, 1, 1.2)])
def test_a_cell_holds_its_processes_figures_from_six_on_without_the_outermost(fast, slow, high):
    cell = only(cells(frame(*bases(*[1.0] * fast, *[2.0] * slow, variant="ort", latency_spread=0.001))), variant="ort")
    assert cell["latency_high_ms"] == pytest.approx(high, rel=0.03)


def test_a_price_is_of_the_rate_beside_it():
    found = cells(
        frame(*(row(replicate=n, usd_per_hour=3.6, throughput=rate) for n, rate in enumerate((100.0, 400.0))))
    )
    assert found.select("throughput", "usd_per_million_items", "items_per_usd").rows() == [(250.0, 4.0, 250_000.0)]


def test_a_process_beside_other_work_counts_only_where_none_was_quiet():
    slow = [row(ms=ms, replicate=n, warnings=["disturbed: by others"]) for n, ms in enumerate((300.0, 310.0), 1)]
    for rows, expected in (((row(ms=10.0), *slow), (10.0, 1, [])), (slow, (305.0, 2, ["disturbed"]))):
        assert cells(frame(*rows)).select("latency_ms", "processes", "footnotes").row(0) == expected


THREE = [row("ort", ms=5.0, replicate=number, latency_high_ms=10.0) for number in range(3)]
ONE_OF_THREE = [row("ort", ms=5.0, replicate=n, latency_high_ms=10.0 if n == 2 else 5.4) for n in range(3)]


@pytest.mark.parametrize(
    ("rows", "high"),
    [
        ([row("ort", ms=5.0)], 5.5),
        ([row("ort", ms=5.0, latency_high_ms=8.0)], 8.0),
        (THREE, 10.0),  # A doubt that all processes share stays, and one of three counts a third.
        (ONE_OF_THREE, 5.0 * 2 ** (1 / 3)),
    ],
)
def test_a_cell_keeps_the_doubts_of_its_rows(rows, high):
    found = only(cells(frame(*rows)), variant="ort")
    assert found["latency_high_ms"] == pytest.approx(high, rel=0.02)
    assert float(spread_reach(0.0365, 6.0)) == pytest.approx(0.0893, abs=1e-3)


def test_replicates_of_integers_are_medians_and_percentiles_need_every_process():
    rows = [
        row("ort", replicate=number, error_items=items, latency_p99_ms=p99)
        for number, (items, p99) in enumerate([(8, 11.0), (10, 12.0), (64, None)])
    ]
    found = only(cells(frame(*rows)), variant="ort")
    assert (found["latency_p99_ms"], found["error_items"]) == (None, 82)
    assert only(cells(frame(*rows[:2])), variant="ort")["latency_p99_ms"] == 11.5


def test_sides_have_cells_and_bases_of_their_own():
    rows = [
        row(ms=10.0, machine="a"),
        row("ort", ms=5.0, machine="a"),
        row(ms=4.0, machine="b"),
        row("ort", ms=1.0, machine="b"),
    ]
    rows = [each | {"run_id": each["machine"]} for each in rows]
    found = cells(frame(*rows), ("machine",))
    assert found.filter(variant="ort")["factor"].to_list() == pytest.approx([2.0, 4.0])
    both = found.filter(variant="ort", machine="a").join(
        found.filter(variant="ort", machine="b"), on="variant", suffix="_base"
    )
    assert compared(both)["factor"].item() == pytest.approx(0.2)
    assert compared(both, figure="throughput")["factor"].item() == pytest.approx(0.2), "more throughput is better"


def on_event(
    variant: str, ms: float, load_s: float, low: float, high: float, precision: str = "fp32"
) -> dict[str, Any]:
    more = {"clock": "event", "latency_spread": 1e-4}
    return row(variant, precision, ms=ms, load_s=load_s, latency_low_ms=low, latency_high_ms=high, **more)


INT8 = [row(ms=10.0), row("ort", "int8", ms=1.0, calibrated=False, rel_l2_error=0.05)]
P99 = [row(ms=10.0), row("ort", ms=2.0), row("compiled", ms=3.0, latency_p99_ms=4.0)]


@pytest.mark.parametrize(
    ("rows", "limits", "uncalibrated", "best", "tied", "losers"),
    [
        # What is much faster by its median is not given up for a cheaper start.
        ([row("compiled", ms=4.0, load_s=60.0), row("ort", ms=4.9, latency_low_ms=2.0)], [], False, "compiled",
         ["ort"], {"ort": "unclear"}),
        # What is far behind may still be better.
        ([row("compiled", ms=4.0, load_s=60.0), row("ort", ms=5.1, latency_low_ms=2.0)], [], False, "compiled",
         ["ort"], {"ort": "unclear"}),
        # A cheaper start wins no tie against one that is proven faster.
        ([on_event("compiled", 4.9, 60.0, 4.0, 6.0), on_event("jax", 5.0, 30.0, 4.99, 5.01),
          on_event("ort", 5.12, 1.0, 5.11, 5.13)], [], False, "jax", ["compiled", "ort"],
         {"compiled": "unclear", "ort": "worse"}),
        # Nor does it decide which starts are alike: of the two others fp32 wins.
        ([on_event("compiled", 4.9, 3.0, 4.0, 6.0), on_event("jax", 5.0, 2.5, 4.99, 5.01, "bf16"),
          on_event("ort", 5.12, 1.0, 5.11, 5.13)], [], False, "compiled", ["jax", "ort"],
         {"jax": "unclear", "ort": "unclear"}),
        (INT8, [Limit("error", 0.1)], False, "ort", [], {"eager": "worse"}),
        (INT8, [Limit("error", 0.1)], True, "ort", [], {"eager": "worse"}),
        (INT8, [], True, "eager", [], {"ort": "over"}),
        (INT8, [], False, "eager", [], {"ort": "uncalibrated"}),
        (P99, [Limit("latency_p99_ms", 5.0)], False, "compiled", [], {"eager": "over", "ort": "unknown"}),
        (P99, [Limit("latency_ms", 1.0)], False, None, [], {"eager": "over", "ort": "over", "compiled": "over"}),
    ],
)  # fmt: skip
def test_a_choice(rows, limits, uncalibrated, best, tied, losers):
    found = choose(cells(frame(*rows)), limits=limits, allow_uncalibrated=uncalibrated)
    assert (found.best and found.best["variant"]) == best
    assert sorted(cell["variant"] for cell in found.tied) == tied
    assert {loser.cell["variant"]: loser.reasons[0].code for loser in found.losers} == losers
    assert best or (found.nearest and found.nearest["variant"] == "ort"), "misses the limit by the least"


@pytest.fixture(scope="module")
def one_cell() -> dict[str, Any]:
    return only(cells(frame(row("ort"))), variant="ort")


@pytest.mark.parametrize("name", [name for name, column in FIGURES.items() if column.better])
def test_a_limit_of_any_figure_works_where_it_is_met_missed_and_unknown(one_cell, name):
    more, bounded = name in HIGHER, "error_high" if name == "error" else name
    cell = {**one_cell, name: 10.0, bounded: 10.0}
    cell |= dict.fromkeys(ends_of(name) if name in RANGED else (), 10.0)
    met, missed = (Limit(name, value) for value in ((5.0, 20.0) if more else (20.0, 5.0)))
    assert met.missed(cell) is None
    found = [missed.missed(cell), Reason("worse", value=2.0, figure=name)]
    unknown = met.missed({**cell, name: None, bounded: None, f"{name}_high": None})
    if unknown:
        found.append(unknown)
    assert [reason.code for reason in found if reason][:1] == ["under" if more else "over"]
    assert all(str(reason) for reason in found if reason)
    assert bound(name, 2.0)


SET_UP = {"export_s": 2.0, "build_s": 40.0, "load_s": 1.0, "first_run_s": 0.5}


@pytest.mark.parametrize(
    ("engine", "seconds", "together", "once", "start"),
    [
        ("trt", SET_UP, 43.5, 42.0, 1.5),
        ("eager", {"load_s": 1.0}, 1.0, 0.0, 1.0),
        ("ort", {"export_s": 2.0, "load_s": None}, 2.0, 2.0, 0.0),
        ("eager", {"load_s": None}, None, None, None),
        # It compiles in the process that runs the model: nothing is kept.
        ("compiled", {"build_s": 40.0, "load_s": 1.0, "first_run_s": 0.5}, 41.5, 0.0, 41.5),
    ],
)
def test_set_up_is_everything_until_the_second_call_some_of_it_once(engine, seconds, together, once, start):
    found = only(cells(frame(row(engine, **seconds))), variant=engine)
    assert [found[name] for name in ("set_up_s", "once_s", "start_s")] == [together, once, start]


def tried(batch: int, mib: float | None, **other: Any) -> dict[str, Any]:
    search = {"run_id": "run", "model": "net", "variant": "eager", "pass": "inference", "precision": "fp32"}
    ended = {"status": "oom" if mib is None else "ok", "reason": "CUDA out of memory" if mib is None else None}
    return {**search, "setting": "", "batch_size": batch, "peak_memory_mib": mib, **ended, **other}


@pytest.mark.parametrize(
    ("rows", "ends", "why"),
    [
        ([tried(64, 9.0)], (64, None), None),
        ([tried(1, None)], (None, 1), "out of memory"),
        ([tried(7, 9.0), tried(8, None, reason="not tried: 20 MiB")], (7, 8), "not tried: 20 MiB"),
        ([tried(7, 9.0), tried(8, None, status="failed", reason="33 bits")], (7, 8), "33 bits"),
        # What does not fit below the largest that does says nothing.
        ([tried(32, 9.0), tried(512, None), tried(77, 23.0), tried(79, None), tried(40, None)], (77, 79),
         "out of memory"),
    ],
)  # fmt: skip
def test_the_largest_batch_that_fits_and_why_no_more_does(rows, ends, why):
    others = [tried(3, 1.0, setting="x=y"), tried(3, 1.0, run_id="other")]
    found, *rest = largest(pl.DataFrame([*rows, *others], schema=LARGEST_BATCH)).to_dicts()
    assert ((found["largest"], found["refused"]), found["why"]) == (ends, why)
    assert [each["largest"] for each in rest] == [3, 3]


@pytest.mark.parametrize(
    ("reason", "words"),
    [
        (Reason("worse", value=4.83, low=4.5, high=5.6, figure="latency_ms"), "4.8× slower (4.5–5.6)"),
        (Reason("worse", value=4.83, low=4.81, high=4.84, figure="latency_ms"), "4.8× slower"),
        (Reason("worse", value=4.0, low=1.1, high=40.0, figure="latency_ms"), "slower by an unknown factor"),
        (Reason("unclear", value=4.0, low=0.5, high=40.0, figure="latency_ms"), "busy, not told apart"),
        (Reason("unclear", value=1.05, low=0.9, high=1.2, figure="throughput"),
         "1.05× lower throughput (0.90–1.20), not told apart"),
        (Reason("skipped", 2, text="ort fp16"),
         "ort fp16 leads, but 2 skipped cases lost only to a cell that is left out here"),
        (Reason("disturbed", text="ort fp16"), "most figures were taken beside other work; ort fp16 leads"),
        (Reason("busy", text="ort fp16"),
         "ort fp16 leads, by an unknown factor: other work made an interval too wide"),
        (Reason("one-process", text="ort fp16", have=3),
         "ort fp16 leads, by the only quiet one of 3 processes; its spread was not measured on this machine"),
        (Reason("equivalent", value=1.002, low=0.999, high=1.005, figure="latency_ms"), "as good (1.00×)"),
        (Reason("only-left", text="eager fp32"),
         "--only leaves only the base, eager fp32; widen it, or measure other engines"),
        (Reason("open", value=1.42, figure="latency_ms", text="openvino fp32", rival="ort fp32"),
         "openvino fp32 leads, but ort fp32, 1.42× slower ±?, may be better"),
        (Reason("over", value=1810.0, limit=1500.0, figure="peak_memory_mib"),
         "memory 1,810 MiB, over the limit of 1,500 MiB"),
        (Reason("unknown", 6, figure="latency_p99_ms", have=100),
         "p99 needs 662 samples, has 100: --seconds 6 takes them"),
        (Reason("over", value=3.0, limit=2.0, low=0.1, high=90.0, figure="latency_ms"),
         "latency seems over the limit of 2 ms, but other work made its interval too wide"),
        (Reason("over", value=0.02, limit=0.01, low=-0.01, high=0.05, figure="accuracy_loss"),
         "accuracy loss 2.00 % (-1.00 to 5.00), over the limit of 1 %"),
        (Reason("over", value=2e-2, limit=1e-2, figure="error"), "error bound 2.0e-2, over the limit of 1.0e-2"),
        (Reason("over", value=0.01036, limit=1e-2, figure="error"), "error bound 1.04e-2, over the limit of 1.0e-2"),
        (
            Reason("uncalibrated"),
            "8 bits measured without your data: give --data, or admit them with --allow-uncalibrated",
        ),
        (Reason("not-measured", text="oom: out of memory"), "not measured: oom: out of memory"),
        # Also after Ctrl-C, so the time is no reason.
        (Reason("unmeasured", 2), "the run did not reach 2 cases"),
        (Reason("only-base", 1, text="eager fp32"),
         "only the base, eager fp32, was measured; the run did not reach 1 other"),
    ],
)  # fmt: skip
def test_a_reason_has_one_template(reason, words):
    assert str(reason) == words


@pytest.mark.parametrize(("ratio", "ms"), [("1.5", 3.0), ("0.8", 1.6), ("1.05", None), (None, None)])
def test_a_plain_run_has_a_figure_where_it_takes_another_time(ratio, ms):
    proof = f'{{"library": "onnxruntime 1.31", "plain_run": {ratio}}}' if ratio else None
    found = only(cells(frame(row("ort", ms=2.0, proof=proof))), variant="ort")["plain_run_ms"]
    assert found == (ms and pytest.approx(ms))
