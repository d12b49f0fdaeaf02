"""Which of a job's `shapes` its models have, and the cases that come of them."""

from __future__ import annotations

from typing import Any

import pytest

from engines.tensorrt_engines.build import batch_shapes
from exporters.inputs import input_specs
from profiler.errors import ConfigError
from profiler.job.conditions import parse_only
from profiler.job.config import Config, config_of
from profiler.job.plan import make_plan
from profiler.run.shapes import with_shapes

TEXT = {
    "name": "words",
    "factory": "nets:words",
    "inputs": {"ids": {"shape": ["batch", "sequence"], "dtype": "int64", "range": [0, 9]}},
}
IMAGE = {"name": "conv", "factory": "nets:conv", "input": [3, 32, 32]}


def job(*models: Any, **more: Any) -> Config:
    return config_of({"models": list(models), "engines": ["eager"], **more})


def test_every_combination_is_a_case_and_each_model_has_its_own_dimensions():
    config = with_shapes(job(TEXT, IMAGE, shapes={"sequence": [8, 16], "height": [16, 32], "width": [16]}))
    assert [str(case.id) for case in make_plan(config, "cpu")] == [
        "words/eager/inference/fp32/b1/r0/sequence=8",
        "words/eager/inference/fp32/b1/r0/sequence=16",
        "conv/eager/inference/fp32/b1/r0/height=16/width=16",
        "conv/eager/inference/fp32/b1/r0/height=32/width=16",
    ]


def test_inputs_have_the_shape_and_know_which_axes_vary():
    config = with_shapes(job(IMAGE, shapes={"height": [16, 32], "width": [24]}))
    [spec] = input_specs(make_plan(config, "cpu")[0].source)
    assert spec.at(2) == (2, 3, 16, 24)
    assert [(axis.axis, axis.name) for axis in spec.named] == [(2, "height")], "one size of the width needs no symbol"
    assert (spec.end(2, largest=False), spec.end(2, largest=True)) == ((2, 3, 16, 24), (2, 3, 32, 24))


@pytest.mark.parametrize(
    ("models", "name", "expected"),
    [
        ([TEXT], "sequense", "words's inputs have no dimension 'sequense'; did you mean 'sequence'?"),
        ([TEXT, IMAGE], "heigth", "no model's inputs have a dimension 'heigth'; did you mean 'height'?"),
        (["vgg16"], "height", "vgg16 is fixed to images of 224 × 224, by its fully connected layers"),
    ],
)
def test_a_name_that_no_model_has_is_refused(models: list[Any], name: str, expected: str):
    shapes = {name: [8], **({"sequence": [8]} if TEXT in models else {})}
    with pytest.raises(ConfigError) as caught:
        with_shapes(job(*models, shapes=shapes))
    assert expected in str(caught.value)


def test_a_resnet_takes_other_images():
    config = with_shapes(job("resnet18", shapes={"height": [64], "width": [96]}))
    assert input_specs(make_plan(config, "cpu")[0].source)[0].at(1) == (1, 3, 64, 96)


@pytest.mark.parametrize("sizes", [0, "many", []])
def test_sizes_are_positive_numbers(sizes: Any):
    with pytest.raises(ConfigError, match=r"shapes\.sequence"):
        job(TEXT, shapes={"sequence": [sizes] if sizes != [] else []})


def test_a_size_without_a_number_is_refused():
    with pytest.raises(ConfigError, match=r"sequence has no size; give dimensions"):
        job(TEXT)


def test_a_size_that_is_given_twice_is_refused():
    with pytest.raises(ConfigError, match="sequence has 8 twice"):
        make_plan(with_shapes(job(TEXT, shapes={"sequence": [8, 8]})), "cpu")


def test_a_condition_chooses_a_shape():
    config = with_shapes(job(TEXT, shapes={"sequence": [8, 16]}))
    [case] = make_plan(config, "cpu", parse_only(["shape=sequence=16"]))
    assert case.shape == {"sequence": 16}


def test_an_optimization_profile_goes_over_the_range_of_sizes():
    [spec] = input_specs(make_plan(with_shapes(job(IMAGE, shapes={"height": [16, 32]})), "cpu")[0].source)
    assert batch_shapes([spec], (1, 4, 8)) == {"x": ((1, 3, 16, 32), (4, 3, 32, 32), (8, 3, 32, 32))}
