"""The spread between processes on this machine: pooled over bases, kept for later runs, and put into rows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import pytest

from exporters.source import ModelSource
from profiler.job.case import Case
from profiler.results import spread
from profiler.results.result import Result
from profiler.stats.intervals import UNMEASURED

ENVIRONMENT = {"device": "cuda", "gpu": "card", "cpu": "chip", "cpu_cores": 4}


def process(
    number: int, event: float, gpu: float | None, enqueue: float, variant: str = "eager"
) -> tuple[Case, Result]:
    case = Case("net", variant, variant, "inference", "fp32", 1, "cuda", number, ModelSource("net"))
    samples = {"event": [event] * 5, "enqueue": [enqueue] * 5, **({"gpu": [gpu] * 5} if gpu else {})}
    return case, Result(case.id, "ok", clock="event", samples=samples)


def squares(values: Sequence[float]) -> float:
    logs = [math.log(value) for value in values]
    return sum((each - sum(logs) / len(logs)) ** 2 for each in logs)


def test_bases_that_the_host_sets_tell_of_both_and_those_that_the_device_sets_of_the_device():
    host = [
        process(number, event, gpu, event) for number, (event, gpu) in enumerate([(9.0, 2.0), (5.6, 2.01), (6.1, 2.0)])
    ]
    found = spread.of_bases([*host, process(0, 1.0, 1.0, 0.1, "ort")])
    assert found["host"] == pytest.approx((squares([9.0, 5.6, 6.1]), 2.0))
    assert found["device"] == pytest.approx((squares([2.0, 2.01, 2.0]), 2.0))
    device = [process(number, event, event, 0.1) for number, event in enumerate([8.0, 8.02])]
    assert spread.of_bases(device)["device"] == pytest.approx((squares([8.0, 8.02]), 1.0))
    assert spread.of_bases(device)["host"] == (0.0, 0.0)


def test_a_base_on_both_sides_of_the_line_is_one_that_the_host_sets():
    both = [process(0, 9.0, 2.0, 9.0), process(1, 5.0, 2.0, 0.1)]
    found = spread.of_bases(both)
    assert found["host"] == pytest.approx((squares([9.0, 5.0]), 1.0))
    assert found["device"] == pytest.approx((0.0, 1.0))


def test_earlier_runs_on_this_machine_count_and_others_do_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PROFILER_CACHE", str(tmp_path))
    assert spread.earlier(ENVIRONMENT) == {"host": (0, 0), "device": (0, 0)}
    assert spread.spreads(spread.earlier(ENVIRONMENT)) == UNMEASURED
    for number in range(25):
        spread.keep(ENVIRONMENT, f"run-{number:02}", {"host": (0.02, 2.0), "device": (0.0, 0.0)})
    spread.keep(ENVIRONMENT | {"gpu": "other"}, "run-99", {"host": (5.0, 2.0), "device": (0.0, 0.0)})
    kept = spread.earlier(ENVIRONMENT)
    assert kept["host"] == pytest.approx((0.4, 40.0)), "the last 20 runs"
    pooled = spread.spreads(kept, {"host": (0.0, 10.0), "device": (0.0, 0.0)})
    assert pooled.host.sd == pytest.approx(math.sqrt(0.4 / 50))
    assert pooled.device == UNMEASURED.device


@pytest.mark.parametrize("text", ["", "{", "[]", '{"a": 1}', '{"a": {"r": {"host": [1]}}}'])
def test_a_damaged_file_counts_as_none(text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PROFILER_CACHE", str(tmp_path))
    (tmp_path / "spread.json").write_text(text)
    assert spread.earlier(ENVIRONMENT) == {"host": (0, 0), "device": (0, 0)}
