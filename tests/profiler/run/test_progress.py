from __future__ import annotations

import io
from dataclasses import replace

import pytest
from rich.console import Console

from exporters.source import ModelSource
from profiler.job.case import Case
from profiler.results.result import Result
from profiler.run.progress import LiveDisplay, PlainDisplay

CASE = Case("alexnet", "ort", "ort", "inference", "fp32", 1, "cpu", 0, ModelSource("alexnet"))


def test_the_line_of_a_case_has_the_median_that_its_row_has() -> None:
    result = Result(CASE.id, "ok", clock="host", samples={"host": [4.0, 1.0, 2.0, 3.0]})
    output = io.StringIO()
    PlainDisplay(Console(file=output, width=120)).ended(CASE, result)
    assert output.getvalue().split("  ")[-1] == "2.500 ms, 4 samples\n"


def test_a_repeat_that_does_not_count_has_a_line_too() -> None:
    output = io.StringIO()
    display = PlainDisplay(Console(file=output, width=120))
    display.measuring(CASE, "start", 1, 16, 0.0)
    display.ended(CASE, Result(CASE.id, "ok", clock="host", samples={"host": [4.0]}), counts=False)
    display.ended(CASE, Result(CASE.id, "timeout", ["too long"]), counts=False)
    assert output.getvalue().splitlines() == [
        f"[2/16] disturbed   {CASE.id}  no less disturbed: the earlier measurement stays",
        f"[2/16] timeout     {CASE.id}  too long: the earlier measurement stays",
    ]


def test_a_long_reason_is_said_once_and_then_by_the_first_case_that_has_it() -> None:
    output = io.StringIO()
    display = PlainDisplay(Console(file=output, width=120))
    cases = [replace(CASE, batch_size=batch) for batch in (1, 2, 4)]
    why = "model 'alexnet': its reference outputs cannot be made: IndexError: tuple index out of range at net.py:22"
    for case, reason, log in zip(cases, (why, why, "too long"), ("a.log", "a.log", "b.log"), strict=True):
        display.ended(case, Result(case.id, "failed", [reason], log=log))
        display.ended(replace(case, replicate=1), Result(case.id, "ok", clock="host", samples={"host": [4e9]}))
    said = [line.split("  ")[-1] for line in output.getvalue().splitlines()]
    assert said[::2] == [f"{why} (log: a.log)", f"as {CASE.id}", "too long (log: b.log)"]
    assert set(said[1::2]) == {"4,000,000,000.000 ms, 1 sample"}
    display.ended(cases[2], Result(cases[2].id, "failed", [why], log="c.log"))
    assert output.getvalue().endswith(f"  as {CASE.id} (log: c.log)\n")


def test_a_log_says_once_for_each_case_what_it_waits_for() -> None:
    output = io.StringIO()
    display = PlainDisplay(Console(file=output, width=120))
    for case in (1, 2):
        display.measuring(CASE, "start", case, 2, 0.0)
        for share in (48, 47, 12):
            display.waiting(f"waiting: other processes took {case}{share} %")
    assert output.getvalue().splitlines() == [f"waiting: other processes took {case}48 %" for case in (1, 2)]


def test_a_terminal_shows_what_is_waited_for_and_keeps_what_is_announced() -> None:
    output = io.StringIO()
    with LiveDisplay(Console(file=output, width=120, force_terminal=True)) as display:
        display.waiting("waiting: other processes took 48 %")
        display.announce("measuring 3 disturbed cases again, round 2")
    assert "waiting: other processes took 48 %" in output.getvalue()
    assert "measuring 3 disturbed cases again, round 2\n" in output.getvalue().replace("\r", "")


@pytest.mark.parametrize("display", [PlainDisplay, LiveDisplay])
def test_what_is_announced_fits_the_width(display: type[PlainDisplay] | type[LiveDisplay]) -> None:
    output = io.StringIO()
    display(Console(file=output, width=40)).announce("peak FLOP/s may be too low: " + "and other processes " * 9)
    assert max(map(len, output.getvalue().splitlines())) <= 40
