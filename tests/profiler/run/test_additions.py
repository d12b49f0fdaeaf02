"""A case that takes the device longer than eager is warned of, with the kernels that differ."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from engines.base import Warning
from exporters.source import ModelSource
from profiler.job.case import Budget, Case, CaseId
from profiler.processes.messages import Outcome
from profiler.results.result import Result
from profiler.run.additions import add_reasons, kernels_that_differ, slower_than_eager
from profiler.worker.task import Prepared, Task

NET = ModelSource("net", "bad_models:good", input_shape=(3, 8, 8))


def task(variant: str, precision: str = "fp16", device: str = "cuda", python: Path | None = None) -> Task:
    engine, _, name = variant.partition("-")
    options = {"channels_last": True} if name == "tuned" else {}
    case = Case("net", engine, variant, "inference", precision, 1, device, 0, NET, options, python=python)
    return Task(case, Prepared(), Budget())


def measured(*gpu_ms: tuple[Task, float]) -> dict[CaseId, Result]:
    return {t.case.id: Result(t.case.id, "ok", samples={"gpu": [ms] * 5}) for t, ms in gpu_ms}


EAGER, TUNED, COMPILED, PLAIN = task("eager"), task("eager-tuned"), task("compiled"), task("compiled", "fp32")
KERNELS = {
    EAGER.case.id: {"flash_attention": 0.4, "gemm": 0.9},
    TUNED.case.id: {"attention_math": 1.5, "mask": 0.45, "gemm": 0.9},
}


def test_the_kernels_in_which_the_time_goes_are_named():
    results = measured((EAGER, 1.3), (TUNED, 2.86), (COMPILED, 1.4), (PLAIN, 9.0))
    asked: list[CaseId] = []

    def profile(task: Task) -> Outcome:
        asked.append(task.case.id)
        return Outcome("ok", value=KERNELS[task.case.id])

    (row,) = add_reasons([EAGER, TUNED, COMPILED, PLAIN], results, profile)
    assert row.case_id == TUNED.case.id
    assert asked == [TUNED.case.id, EAGER.case.id], "nothing is profiled of what is no slower"
    (warning,) = row.warnings
    assert str(warning) == (
        "slower-kernels: the device takes 2.2× what it takes in eager at fp16: attention_math 1.5 ms, mask 0.45 ms "
        "where eager runs flash_attention 0.4 ms"
    )
    again = {**results, row.case_id: row}
    assert add_reasons([EAGER, TUNED], again, profile) == [], "a resumed run does not ask again"


def test_what_cannot_be_profiled_is_warned_of_and_what_was_disturbed_is_not():
    results = measured((EAGER, 1.0), (TUNED, 2.0))
    (row,) = add_reasons([EAGER, TUNED], results, lambda task: Outcome("failed", "CUPTI could not be loaded"))
    assert row.warnings[0].text.endswith("in eager at fp16: not named: CUPTI could not be loaded")
    disturbed = {**results, EAGER.case.id: replace(results[EAGER.case.id], warnings=[Warning("disturbed", "others")])}
    assert add_reasons([EAGER, TUNED], disturbed, lambda task: Outcome("ok", value={})) == []


def test_rows_of_one_interpreter_are_compared():
    there = Path("there/bin/python")
    slow, twin, only = (
        task("eager-there", python=there),
        task("compiled-there", python=there),
        task("ort-2", python=there.parent),
    )
    results = measured((EAGER, 1.0), (slow, 2.0), (twin, 2.1), (only, 9.0))
    assert slower_than_eager([EAGER, slow, twin, only], results) == []
    results |= measured((twin, 3.0))
    assert slower_than_eager([EAGER, slow, twin, only], results) == [(twin, slow, 1.5)]


def test_long_names_are_cut_and_equal_kernels_are_said_to_be_so():
    assert kernels_that_differ({"k" * 300: 1.0}, {}) == f"{'k' * 59}… 1 ms where eager runs none"
    assert kernels_that_differ({"gemm": 1.0}, {"gemm": 1.0}) == "the same kernels, no slower while they were profiled"


def test_eagers_kernels_are_named_where_all_of_them_run_here_too():
    # A model that computes once more in fp32 while a graph is captured, as an H200 ran it.
    eager = {"nvjet_hsh_256x128": 0.024}
    captured = {**eager, "cutlass_80_simt_sgemm": 2.73, "unrolled_elementwise": 0.221}
    told = "cutlass_80_simt_sgemm 2.73 ms, unrolled_elementwise 0.221 ms where eager runs nvjet_hsh_256x128 0.024 ms"
    assert kernels_that_differ(captured, eager) == told
    assert kernels_that_differ({"gemm": 2.0}, {"gemm": 1.5}) == "gemm 2 ms where eager runs gemm 1.5 ms"


@pytest.mark.slow
def test_a_profiled_pass_on_the_cpu_names_torchs_operators(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from exporters.cache import Cache
    from exporters.inputs import input_specs
    from exporters.weights import cached_state
    from profiler.worker.extra_calls import kernel_times

    monkeypatch.syspath_prepend(Path(__file__).parents[2])
    prepared = Prepared(tuple(input_specs(NET)), cached_state(NET, Cache(tmp_path)))
    found = kernel_times(replace(task("eager", "fp32", "cpu"), prepared=prepared), lambda message: None)
    assert {"conv2d", "relu", "mean", "linear"} <= set(found)
    assert all(ms > 0 for ms in found.values())
