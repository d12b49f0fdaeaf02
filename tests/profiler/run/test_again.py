"""Which of two takes of a case counts."""

from __future__ import annotations

from dataclasses import replace

import pytest

from engines.base import Warning
from exporters.source import ModelSource
from profiler.job.case import Case, CaseId
from profiler.processes.messages import Status
from profiler.results.result import Result
from profiler.run.again import Takes, is_better
from profiler.run.command import to_measure

ID = CaseId(model="net", variant="ort", pass_="inference", precision="fp32", batch_size=1, replicate=0)


def take(disturbance: float | None = None, status: Status = "ok", ms: float = 1.0, doubtful: bool = True) -> Result:
    warnings = [Warning("disturbed", f"other processes took {disturbance}")] if doubtful else []
    return Result(
        ID, status, clock="host", samples={"host": [ms]}, figures={"disturbance": disturbance}, warnings=warnings
    )


@pytest.mark.parametrize(
    ("first", "second", "counts"),
    [
        (take(0.4), take(0.5), False),
        (take(0.5), take(0.4), True),
        (take(0.4, ms=1.0), take(0.5, ms=0.5), False),
        (take(0.5, ms=0.5), take(0.4, ms=1.0), True),
        (take(0.1), take(0.2, doubtful=False), True),
        (take(0.4), take(None), False),
        (take(1.0), take(1.0), False),
        (take(None), take(0.4), True),
        (take(None), take(None), True),
        (take(0.4), take(0.0, "failed", doubtful=False), False),
        (take(0.4, "failed"), take(0.9), True),
        (take(0.4, "failed"), take(0.0, "failed", doubtful=False), True),
    ],
)
def test_the_less_disturbed_take_counts_and_never_the_faster_one(first: Result, second: Result, counts: bool) -> None:
    assert is_better(second, first) == counts


def test_a_take_says_what_disturbed_the_first_one_though_others_were_between() -> None:
    takes = Takes({}, share=1.0)
    counted = [takes.add(take(share)) for share in (0.48, 0.3, 0.9, 0.2)]
    assert counted == [True, True, False, True]
    last = take(0.0, doubtful=False)
    assert takes.add(last)
    assert [str(warning) for warning in last.warnings] == [
        "remeasured: the first take was disturbed: other processes took 0.48"
    ]
    assert not takes.doubtful


def test_what_a_resumed_run_measures_a_third_time_replaces_only_what_was_disturbed_more() -> None:
    second = take(0.3)
    second.warnings.append(Warning("remeasured", "the first take was disturbed: other processes took 0.5"))
    takes = Takes({ID: second}, share=1.0)
    assert not takes.add(take(0.4))
    assert takes.add(take(0.0, doubtful=False))


@pytest.mark.parametrize("status", ["failed", "crashed", "unsupported"])
def test_what_failed_is_not_measured_again_though_it_was_disturbed(status: Status) -> None:
    takes = Takes({}, share=1.0)
    assert takes.add(take(0.5, status))
    assert not takes.doubtful


def test_after_two_takes_in_vain_no_case_is_due() -> None:
    others = [replace(ID, batch_size=batch) for batch in (2, 4, 8, 16)]
    takes = Takes({}, share=9.0)
    for id_ in others:
        takes.add(replace(take(0.9), case_id=id_, phases={"measure": 1.0}))
    for share in (0.85, 0.3, 0.95):  # The second one found the machine quieter.
        takes.add(replace(take(share), case_id=others[0]))
        assert all(takes.is_due(id_) for id_ in others)
    takes.add(replace(take(0.9), case_id=others[1]))
    assert takes.is_in_vain
    assert not any(takes.is_due(id_) for id_ in others)


def test_a_resumed_run_measures_a_disturbed_case_again_once_whatever_the_time() -> None:
    takes = Takes({ID: take(0.9)}, share=0.0)
    assert takes.is_due(ID)
    takes.add(replace(take(0.8), phases={"measure": 1.0}))
    takes.share = 9.0
    assert set(takes.doubtful) == {ID}
    assert not takes.is_due(ID)


def test_a_long_run_keeps_no_samples_of_what_was_disturbed() -> None:
    takes = Takes({}, share=1.0)
    result = take(0.4)
    takes.add(result)
    assert set(takes.doubtful) == {ID}
    assert not any(each.samples for kept in (takes._counted, takes._first) for each in kept.values())
    assert result.samples == {"host": [1.0]}


def test_a_resumed_run_says_what_is_left_and_what_is_measured_again() -> None:
    source = ModelSource("net")
    cases = [Case("net", "ort", "ort", "inference", "fp32", batch, "cpu", 0, source) for batch in range(1, 19)]
    done = {case.id: take(doubtful=False) for case in cases[:2]} | {case.id: take(0.4) for case in cases[2:9]}
    assert to_measure({}, cases, cases) == "18 cases"
    lacking = [replace(case, unsupported="not installed") for case in cases[:2]]
    assert to_measure({}, lacking, lacking) == "2 cases, 2 of them unsupported here"
    assert to_measure(done, cases, cases[2:]) == "9 of 18 cases are left; 7 disturbed ones are measured again"
    assert to_measure(done, cases[:9], cases[2:9]) == (
        "nothing is left of 9 cases; 7 disturbed ones are measured again"
    )
    failed = done | {cases[0].id: take(status="failed")}
    assert to_measure(failed, cases[:10], [cases[0], cases[9]]) == (
        "1 of 10 cases is left; 1 that is not ok is measured again"
    )
    assert to_measure(done, cases[:9], []).startswith("Nothing is left to measure of 9 cases; --retry")
