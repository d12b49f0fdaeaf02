"""`--only` says what it does not understand, and conditions mean the same for cases and for rows of results."""

from __future__ import annotations

from dataclasses import replace

import polars as pl
import pytest

from engines.catalog import Training
from exporters.source import ModelSource
from profiler.errors import ConfigError
from profiler.job.case import Case
from profiler.job.conditions import Filter, parse_only
from profiler.results.reading import chosen

CASE = Case("alexnet", "ort", "ort-tuned", "inference", "fp32", 1, "cpu", 0, ModelSource("alexnet"))
CASES = [
    CASE,
    replace(CASE, model="vgg16", batch_size=16),
    replace(CASE, engine="eager", variant="eager", replicate=1),
    replace(CASE, variant="ort", precision="bf16"),
    replace(CASE, engine="eager", variant="eager", pass_="training", training=Training("sgd")),
    replace(CASE, engine="eager", variant="eager", pass_="training"),
]
ROWS = pl.DataFrame(
    {
        "model": case.model,
        "engine": case.engine,
        "variant": case.variant,
        "pass": case.pass_,
        "precision": case.precision,
        "batch_size": case.batch_size,
        "replicate": case.replicate,
        "optimizer": case.training.optimizer if case.pass_ == "training" else None,
    }
    for case in CASES
)


@pytest.mark.parametrize(
    ("condition", "left"),
    [
        ("model=alexnet", [0, 2, 3, 4, 5]),
        ("model=alexnet,model=vgg16,batch_size=1", [0, 2, 3, 4, 5]),
        ("engine=ort", [0, 1, 3]),
        ("engine=ort-tuned", [0, 1]),
        ("variant=ort", [3]),
        ("engine=ort-three", []),
        ("pass=training", [4, 5]),
        ("precision=bf16,precision=fp32,replicate=1", [2]),
        ("optimizer=sgd", [4]),
    ],
)
def test_conditions_choose_the_same_cases_and_rows(condition: str, left: list[int]) -> None:
    conditions = parse_only([condition])
    assert conditions is not None
    assert [number for number, case in enumerate(CASES) if conditions.matches(case)] == left
    assert ROWS.with_row_index("row").filter(chosen(conditions))["row"].to_list() == left


def test_conditions_are_written_as_they_are_given() -> None:
    assert (
        str(parse_only(["model=a,pass=training", "batch_size=4,model=b"]))
        == "model=a,model=b,pass=training,batch_size=4"
    )
    assert str(Filter.model_validate({"engine": "ort"})) == "engine=ort"


def test_only_without_conditions_lets_everything_through():
    assert parse_only([]) is None


@pytest.mark.parametrize(
    ("condition", "says"),
    [
        ("modl=alexnet", "unknown key 'modl'; did you mean 'model'?"),
        ("zzz=1", "valid: model, engine, variant, pass, precision, batch_size, shape, replicate"),
        ("alexnet", "'alexnet' is not of the form key=value"),
        ("model=", "'model=' is not of the form key=value"),
        ("model=alexnet,vgg16", "'vgg16' is not of the form key=value"),
        ("batch_size=many", "batch_size: must be a whole number, got 'many'"),
    ],
)
def test_only_refuses_what_it_does_not_understand(condition, says):
    with pytest.raises(ConfigError, match=r"^--only: ") as caught:
        parse_only([condition])
    assert says in str(caught.value)
