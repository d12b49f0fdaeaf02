"""Reference gradients on a tiny network: against independent ones, at each precision, sampled, tiled and cached."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from sessions import cache_beside

from exporters import gradient_reference
from exporters.build_model import restore
from exporters.cache import Cache
from exporters.calls import prepare_to_train
from exporters.gradient_reference import cached_gradients, take_step
from exporters.gradients import (
    Deviation,
    GradientReference,
    Gradients,
    Step,
    deviation,
    is_exact,
    largest,
    of_reference_items,
    positions,
    reference_items,
)
from exporters.inputs import TensorSpec, input_specs, seeded_inputs
from exporters.source import ModelSource
from exporters.weights import cached_state

SHAPES = {"rows": ("batch", 3), "unused": ("batch",), "columns": (3, "batch"), "shared": (4,)}
FACTORIES = """
import random

import torch
from torch import nn

def tiny():
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, bias=False), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 3), nn.Tanh(), nn.Dropout(0.5),
        nn.Flatten(), nn.Linear(1152, 10),
    )

class Attends(nn.Module):
    '''Drops in an nn.Dropout, and in functions that take their probability from a module.'''
    def __init__(self):
        super().__init__()
        self.attention = nn.MultiheadAttention(16, 2, dropout=0.5, batch_first=True)
        self.lstm = nn.LSTM(16, 16, 2, dropout=0.5, batch_first=True)
        self.dropout, self.attention_dropout = nn.Dropout(0.5), 0.5
        self.last = nn.Linear(256, 4)
    def forward(self, x):
        x = self.lstm(self.attention(*[x.mean(1)] * 3)[0])[0]
        x = nn.functional.dropout(x, self.attention_dropout, training=self.training)
        return self.last(nn.functional.dropout(x, self.dropout.p, training=self.training).flatten(1))

def attends():
    return Attends()

class Odd(nn.Module):
    def __init__(self, how):
        super().__init__()
        self.how, self.stem, self.last = how, nn.Sequential(nn.Flatten(), nn.Linear(768, 16)), nn.Linear(16, 4)
        self.calls, self.generator, self.numbers = 0, torch.Generator().manual_seed(0), random.Random(0)
        self.norm = nn.BatchNorm1d(16)
        self.turn = nn.Parameter(torch.polar(torch.ones(8), torch.arange(8.0)))
        self.register_buffer("angles", torch.polar(torch.ones(8), torch.arange(8.0)))
    def forward(self, x):
        x = self.stem(x)
        if self.how == "dropout":
            x = nn.functional.dropout(x, 0.5, self.training)
        elif self.how == "noise":
            x = x * torch.randn_like(x).exp()
        elif self.how == "gumbel":
            x = nn.functional.gumbel_softmax(x)
        elif self.how == "depth" and self.training:
            x = x * (torch.rand(len(x), 1) > 0.5)
        elif self.how == "layers" and self.training and random.random() > 0.5:
            x = x * 2
        elif self.how == "for nothing":
            torch.rand([])
        elif self.how == "share":
            x = x / x.square().sum(0)
        elif self.how == "counter":
            self.calls += 1
            x = x * self.calls
        elif self.how == "own generator":
            x = x + torch.rand(16, generator=self.generator)
        elif self.how == "own numbers":
            x = x * self.numbers.random()
        elif self.how == "statistics":
            x = self.norm(x)
        elif self.how == "float":
            x = nn.functional.linear(x.float(), torch.eye(16)) + (x > 0).to(torch.float32) @ torch.ones(16, 16)
        elif self.how == "written":
            kept = torch.zeros(len(x), 16)
            kept[:, :8] = x[:, 8:].float()
            x = kept.add_(x) @ torch.ones(16, 16)
        elif self.how == "complex":
            x = torch.view_as_real(torch.view_as_complex(x.unflatten(1, (8, 2))) * self.angles * self.turn).flatten(1)
        elif self.how == "transformed":
            x = torch.func.vmap(self.last)(x) @ self.last.weight
        return self.last(x)

def odd(how):
    return Odd(how)
"""


cache = cache_beside("gradients_factories", FACTORIES)


def source(name: str) -> ModelSource:
    return ModelSource(name, factory=f"gradients_factories:{name}", input_shape=(3, 16, 16))


def reference(cache: Cache, name: str = "tiny", precision: str = "fp64", head: str = "cross-entropy", items: int = 2):
    model = source(name)
    arrays = seeded_inputs(input_specs(model), items)
    return take_step(model, [], cached_state(model, cache), Step(head, items), arrays, precision)


def plain(cache: Cache, name: str, items: int, target: np.ndarray):
    model = restore(source(name), cached_state(source(name), cache)).double().train()
    model[5].eval()
    x = torch.from_numpy(seeded_inputs(input_specs(source(name)), items)[0]).double().requires_grad_()
    loss = -(model(x).log_softmax(1)[range(items), torch.from_numpy(target)]).mean()
    loss.backward()
    return loss, {**dict(model.named_parameters()), "input": x}


@pytest.mark.parametrize(("items", "of_input"), [(1, False), (2, True)])
def test_the_reference_is_what_fp64_gives(cache, items, of_input):
    model = source("tiny")
    arrays = seeded_inputs(input_specs(model), items)
    step = Step("cross-entropy", items, of_input)
    found = take_step(model, [], cached_state(model, cache), step, arrays, "fp64")
    assert found.target is not None
    assert found.target.shape == (items,)
    loss, tensors = plain(cache, "tiny", items, found.target)
    assert float(found.result) == pytest.approx(loss.item(), rel=1e-12)
    assert list(found.samples) == [name for name in tensors if of_input or name != "input"]
    for name in found.samples:
        gradient = tensors[name].grad.flatten().numpy()
        np.testing.assert_allclose(found.samples[name], gradient[positions(gradient.size)], rtol=1e-9, atol=1e-15)
        assert found.norms[name] == pytest.approx(np.linalg.norm(gradient))


def test_of_a_batch_an_inputs_gradient_is_that_of_the_references_items():
    gradients = [np.ones((6, 3)), None, np.ones((3, 6)), np.ones(4)]
    specs = [TensorSpec(name, shape, "float32") for name, shape in SHAPES.items()]
    found = {name: (part.shape, factor) for name, part, factor in of_reference_items(specs, gradients, 6, 2)}
    assert found == {"input 1": ((2, 3), 3.0), "input 3": ((3, 2), 3.0), "input 4": ((4,), 1.0)}
    (alone,) = of_reference_items([], [np.ones((5, 2))], 5, 1)
    assert (alone[0], alone[1].shape, alone[2]) == ("input", (1, 2), 5.0)


@pytest.mark.parametrize(
    ("how", "doubt"),
    [
        *[(how, "random") for how in ("dropout", "noise", "gumbel", "depth", "layers")],
        ("share", "dependent"),
        *[(how, "stateful") for how in ("counter", "own generator", "own numbers")],
        *[(how, "") for how in ("plain", "for nothing", "statistics")],
        *[(how, "") for how in ("float", "written", "complex", "transformed")],
    ],
)
def test_a_step_that_no_row_can_repeat_says_why(cache, tmp_path, how, doubt):
    model = replace(source("odd"), options={"how": how})
    step = Step("cross-entropy", 2, precisions=["fp32"])
    reference = cached_gradients(model, input_specs(model), cached_state(model, cache), step, Cache(tmp_path))
    found = Gradients.read(reference.path)
    assert found.doubt == doubt
    assert bool(reference.deviations) == (doubt in ("", "dependent")), "another draw says nothing of what is usual"
    assert all(deviation.gradient < 1e-4 for deviation in reference.deviations.values())


@pytest.mark.parametrize("mode", ["off", "on"])
def test_what_modules_and_functions_drop_by_is_off_unless_asked_for(cache, mode):
    model = restore(source("attends"), cached_state(source("attends"), cache))
    prepare_to_train(model, dropout=mode == "on")
    assert model.training
    x = torch.ones(2, 3, 16, 16)
    assert torch.equal(model(x), model(x)) == (mode == "off")
    if mode == "off":
        assert torch.allclose(model(x), model.eval()(x), atol=1e-5)


@pytest.mark.parametrize("head", ["cross-entropy", "logits"])
@pytest.mark.parametrize(("items", "batch"), [(1, 11), (2, 6), (3, 9)])
def test_a_batch_of_repeated_items_has_the_same_gradients(cache, head, items, batch):
    found = reference(cache, head=head, items=items)
    assert reference_items(batch) == items
    model = source("tiny")
    arrays = seeded_inputs(input_specs(model), batch, items)
    again = take_step(model, [], cached_state(model, cache), Step(head, items), arrays, "fp64", found.target)
    assert again.target is not None and len(again.target) == batch
    result = again.result[:items] if head == "logits" else again.result
    assert deviation(result, again.samples, found).gradient < 1e-6, "a gradient is tiled in float32"
    assert deviation(result, again.samples, found).result < 1e-12


def test_narrower_types_lie_further_off(cache):
    truth = reference(cache)
    errors = {
        precision: deviation(found.result, found.samples, truth).gradient
        for precision in ("fp64", "fp32", "tf32", "fp16", "bf16", "amp-fp16", "amp-bf16")
        for found in [reference(cache, precision=precision)]
    }
    assert errors["fp64"] == 0
    assert 0 < errors["fp32"] < 1e-5
    assert 1e-4 < errors["tf32"] < errors["bf16"] / 3
    assert 1e-4 < errors["fp16"] < errors["bf16"] / 3
    assert 1e-3 < errors["bf16"] < 0.1
    assert errors["amp-bf16"] == pytest.approx(errors["bf16"], rel=0.7)


@pytest.mark.parametrize("shape", [(4096, 4096), (512, 512, 3, 3), (1000, 2048), (64, 65)])
def test_of_a_large_one_evenly_spaced_elements_of_all_rows_and_columns(shape):
    size = math.prod(shape)
    where = positions(size)
    assert len(np.unique(where)) == len(where) <= 4096
    assert where[0] == 0
    np.testing.assert_array_equal(positions(4096), np.arange(4096))
    assert size - where[-1] <= 2 * size / len(where)
    for axis, index in enumerate(np.unravel_index(where, shape)):
        assert len(np.unique(index)) > 0.6 * min(shape[axis], len(where)), f"axis {axis}"


def known(**samples: list[float]) -> Gradients:
    arrays = {name: np.array(values) for name, values in samples.items()}
    norms = {name: float(np.linalg.norm(values)) for name, values in arrays.items()}
    return Gradients(np.array(2.0), None, arrays, norms)


@pytest.mark.parametrize(
    ("a", "expected"),
    [
        ({"a": [3.3, 4.4]}, ({"a": pytest.approx(0.1), "b": 0.0}, pytest.approx(0.5 / 13), [])),
        ({"a": [0.0, 0.0]}, ({"a": 1.0, "b": 0.0}, pytest.approx(5 / 13), ["a"])),
        ({}, ({"a": 1.0, "b": 0.0}, pytest.approx(5 / 13), ["a"])),  # missing, which is as wrong as zeros
    ],
)
def test_a_known_deviation(a, expected):
    truth, samples = known(a=[3.0, 4.0], b=[0.0, 12.0]), {**a, "b": [0.0, 12.0]}
    found = deviation(np.array(2.1), {name: np.array(values) for name, values in samples.items()}, truth)
    assert found.result == pytest.approx(0.05)
    assert (found.tensors, found.gradient, found.zeros) == expected
    nothing = deviation(np.array(2.0), {"a": np.zeros(2)}, known(a=[0.0, 0.0]))
    assert (nothing.gradient, nothing.zeros) == (0.0, [])


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_what_is_not_finite_is_nan(bad):
    found = deviation(np.array(bad), {"a": np.array([bad, 4.0])}, known(a=[3.0, 4.0]))
    assert math.isnan(found.result)
    assert math.isnan(found.gradient)
    assert math.isnan(largest([found, Deviation(0.0, 0.0, {"a": 0.0})]).gradient)


@pytest.mark.parametrize(
    ("precision", "batch", "error"), [("fp16", 2, 0.1), ("fp16", 4, 0.3), ("bf16", 4, 0.2), ("bf16", 2, 0.2)]
)
def test_a_batch_that_was_not_prepared_takes_its_precisions_largest_error(precision, batch, error):
    errors = {"fp16 at batch 2": 0.1, "fp16 at batch 8": 0.3, "bf16": 0.2}
    known = GradientReference(Path(), {name: Deviation(each, each, {"a": each}) for name, each in errors.items()})
    assert known.deviation_at(precision, batch).tensors == {"a": error}


def test_each_step_is_computed_once(cache, monkeypatch, tmp_path):
    model, fresh = source("tiny"), Cache(tmp_path)
    specs, state = input_specs(model), cached_state(source("tiny"), cache)
    made: list[str] = []

    def counted(*arguments: object, **more: object) -> Gradients:
        made.append(str(arguments[5]))
        return take_step(*arguments, **more)

    monkeypatch.setattr(gradient_reference, "take_step", counted)

    def take(*arguments: object, of: ModelSource = model, **more: object) -> tuple[GradientReference, list[str]]:
        made.clear()
        head, items, *precisions = arguments
        step = Step(head, items, precisions=precisions, **more)
        return cached_gradients(of, specs, state, step, fresh), [*made]

    first, steps = take("cross-entropy", 2, "fp32")
    assert steps == [*["fp64"] * 3, *["fp32"] * 4], "one on a used module, one of a doubled batch"
    second, steps = take("cross-entropy", 2, "fp32", "bf16")
    assert (steps, second.path) == (["bf16"], first.path), "only what is new"
    third, steps = take("cross-entropy", 2, "fp32", "fp16", batches=[2, 8])
    assert steps == ["fp16", "fp16"], "one for each batch size"
    assert set(third.deviations) == {"fp32", "fp16 at batch 2", "fp16 at batch 8"}
    others = [take("logits", 2, "bf16"), take("cross-entropy", 1, "bf16")]
    others += [take("cross-entropy", 1, "bf16", of_input=True)]
    others += [take("cross-entropy", 2, "bf16", of=replace(model, outputs=("y",)))]
    assert [steps for _, steps in others] == [[*["fp64"] * 3, "bf16"]] * 4


@pytest.mark.parametrize(
    ("dtype", "exact"),
    [("int64", True), ("int32", True), ("bool", True), ("uint8", False), ("int8", False), ("float32", False)],
)
def test_ids_are_exact_and_images_are_not(dtype, exact):
    assert is_exact(np.zeros(1, dtype)) == exact
