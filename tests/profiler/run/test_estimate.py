"""How long a job takes is read off earlier runs of the machine, and guessed where there is none."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from exporters.source import ModelSource
from profiler.job.case import Budget, Case
from profiler.job.plan import estimate_seconds
from profiler.results.result import Result
from profiler.results.run_folder import RunFolder
from profiler.run.estimate import Basis, Estimate, Estimates

HERE = {"device": "cpu", "gpu": None, "cpu": "EPYC", "cpu_cores": 2}
PHASES = {"load": 1.0, "measure": 3.0, "check": 0.5}


def case(model: str = "alexnet", variant: str = "ort", precision: str = "fp32", batch: int = 1) -> Case:
    return Case(model, "ort", variant, "inference", precision, batch, "cpu", 0, ModelSource(model))


def result(ended: Case, phases: Mapping[str, float] = PHASES, status: Any = "ok") -> Result:
    return Result(ended.id, status, phases=dict(phases))


def earlier(folder: Path, name: str, *results: Result, seconds: float = 3.0, **facts: Any) -> RunFolder:
    """A run of that name, with a budget of so many seconds."""
    run = RunFolder(folder / name)
    run.path.mkdir(parents=True)
    (run.path / "bench.yaml").write_text(f"budget: {{seconds: {seconds}}}\n")
    run.write_environment({**HERE, "wall_seconds": {}, **facts})
    for each in results:
        run.append(each)
    return run


def estimates(folder: Path, seconds: float = 3.0) -> Estimates:
    return Estimates(folder, HERE, Budget(seconds=seconds))


def test_without_a_run_the_plan_guesses(tmp_path: Path) -> None:
    made = estimates(tmp_path / "nowhere")
    assert made.of(case()) == Estimate(estimate_seconds(case(), Budget()), Basis.GUESS)
    assert made.total([case()]) == estimate_seconds(case(), Budget())
    assert made.source([case()]) == f"a guess: {tmp_path / 'nowhere'} has no run of such cases on this machine"


def test_the_same_case_takes_what_it_took_in_the_latest_run(tmp_path: Path) -> None:
    earlier(tmp_path, "20260101T000000Z-a", result(case(), {"load": 9.0}))
    earlier(tmp_path, "20260102T000000Z-a", result(case()))
    assert estimates(tmp_path).of(case()) == Estimate(4.5, Basis.EARLIER)


@pytest.mark.parametrize(("seconds", "expected"), [(3.0, 4.5), (5.0, 6.5), (2.0, 3.5), (0.3, 2.5)])
def test_sampling_takes_as_much_longer_as_the_budget_is(tmp_path: Path, seconds: float, expected: float) -> None:
    """And a second at least: 1.5 s of the 4.5 were other phases."""
    earlier(tmp_path, "run", result(case()), seconds=3.0)
    assert estimates(tmp_path, seconds).of(case()) == Estimate(pytest.approx(expected), Basis.EARLIER)


@pytest.mark.parametrize(("fewest", "expected"), [(5, 4.5), (30, 4.5), (100, 11.5)])
def test_more_samples_take_longer_than_the_seconds_of_an_earlier_run(
    tmp_path: Path, fewest: int, expected: float
) -> None:
    """Of calls of 100 ms: 100 of them take 10 s in place of the 3 s that were sampled."""
    calls = Result(case().id, "ok", clock="host", samples={"host": [90.0, 100.0, 110.0]}, phases=dict(PHASES))
    earlier(tmp_path, "run", calls, seconds=3.0)
    made = Estimates(tmp_path, HERE, Budget(seconds=3.0, min_samples=fewest))
    assert made.of(case()) == Estimate(pytest.approx(expected), Basis.EARLIER)


@pytest.mark.parametrize(("factory", "item"), [("tst:make", (3, 64, 64)), ("unet:make", (3, 128, 128))])
def test_a_factorys_model_of_the_same_name_may_be_another_one(
    tmp_path: Path, factory: str, item: tuple[int, ...]
) -> None:
    own = replace(case("net"), source=ModelSource("net", factory="unet:make", input_shape=(3, 64, 64)))
    run = earlier(tmp_path, "run", result(own))
    models = '[{name: net, factory: "unet:make", input: [3, 64, 64]}]'
    (run.path / "bench.yaml").write_text(f"budget: {{seconds: 3}}\nmodels: {models}\n")
    assert estimates(tmp_path).of(own) == Estimate(4.5, Basis.EARLIER)
    other = replace(own, source=ModelSource("net", factory=factory, input_shape=item))
    assert estimates(tmp_path).of(other) == Estimate(4.5, Basis.SIMILAR)


def test_of_other_cases_the_nearest_tells(tmp_path: Path) -> None:
    known = [case(batch=1), case(batch=16), case("vgg16"), case("vgg16", precision="fp16")]
    earlier(tmp_path, "run", *(result(each, {"load": float(n)}) for n, each in enumerate(known, 1)))
    made = estimates(tmp_path)
    assert made.of(case(batch=8)) == Estimate(2.0, Basis.SIMILAR)
    assert made.of(case(batch=2)) == Estimate(1.0, Basis.SIMILAR)
    assert made.of(case("vgg16", precision="fp16", batch=4)) == Estimate(4.0, Basis.SIMILAR)
    assert made.of(case("vgg19")) == Estimate(2.0, Basis.SIMILAR), "the median of two at fp32 and batch 1"
    assert made.of(case(variant="ort-tuned")).basis is Basis.GUESS


@pytest.mark.parametrize("key", HERE)
def test_another_machine_tells_nothing(tmp_path: Path, key: str) -> None:
    earlier(tmp_path, "run", result(case()), **{key: "other"})
    assert estimates(tmp_path).of(case()).basis is Basis.GUESS


def test_a_case_that_failed_tells_nothing(tmp_path: Path) -> None:
    earlier(tmp_path, "run", result(case(), status="failed"))
    assert estimates(tmp_path).of(case()).basis is Basis.GUESS


@pytest.mark.parametrize(
    ("file", "content"),
    [("environment.json", "{"), ("environment.json", "[]"), ("bench.yaml", "a: ["), ("bench.yaml", "models: [a]")],
)
def test_a_run_that_cannot_be_read_is_none(tmp_path: Path, file: str, content: str) -> None:
    run = earlier(tmp_path, "run", result(case()))
    (run.path / file).write_text(content)
    assert estimates(tmp_path).of(case()).basis is Basis.GUESS


def test_a_run_is_more_than_its_cases(tmp_path: Path) -> None:
    """Preparing four models took 40 s: two of them take half of that."""
    models = ("alexnet", "vgg16", "resnet18", "resnet50")
    wall = {"prepare": 40.0, "roofs": 2.0, "write": 0.5, "rest": 0.5, "wait": 99.0, "load": 4.0}
    earlier(tmp_path, "run", *(result(case(name), {"load": 1.0}) for name in models), wall_seconds=wall)
    made = estimates(tmp_path)
    assert made.total([case("vgg16"), case("resnet18")]) == pytest.approx(1.0 + 1.0 + 20.0 + 3.0)
    guessed = estimate_seconds(case(variant="new"), Budget())
    assert made.total([case(), case(variant="new")]) == pytest.approx(1.0 + guessed + 10.0 + 3.0)


def test_the_words_say_how_many_cases_are_known(tmp_path: Path) -> None:
    earlier(tmp_path, "run", result(case()))
    words = estimates(tmp_path).source([case(), case(batch=2), case(batch=4), case(variant="new")])
    assert words.startswith("1 as in earlier runs, 2 like similar cases of earlier runs, 1 by a guess")
    assert str(tmp_path) in words
