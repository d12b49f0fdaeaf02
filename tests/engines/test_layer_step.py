"""Single layers through the CPU's engines: the three parts of a training pass, compared with autograd in fp64."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from able_engines import if_able
from sessions import make_job
from torch.utils._python_dispatch import TorchDispatchMode

import engines
from engines.base import Session
from engines.options import Training
from exporters.build_model import restore
from exporters.cache import Cache
from exporters.catalog import Conv2d
from exporters.source import ModelSource
from exporters.weights import cached_state

LAYERS = {"odd": Conv2d((6, 11, 14), 10, (5, 2)), "square": Conv2d((8, 9, 9), 12, (3, 3))}
BATCH = 4
PARTS = ["forward", "grad_input", "grad_weight"]


layers = pytest.mark.parametrize("layer", LAYERS.values(), ids=LAYERS.keys())


@pytest.fixture
def open_layer(cache: Cache) -> Callable[..., Any]:
    """`open_layer("eager", layer, channels_last=True)`: a session of the layer's training pass."""

    def start(engine: str, layer: Conv2d, precision: str = "fp32", pass_: Any = "training", **options: Any) -> Session:
        source = ModelSource("a-layer", layer=layer)
        job = make_job(source, cache, engine, precision, pass_, BATCH, Training(head="logits"), **options)
        return engines.open_session(engine, job)

    return start


def own_gradients(session: Any) -> list[torch.Tensor]:
    """Return the gradients of input, weight and bias where autograd leaves them."""
    gradients = [tensor.grad for tensor in (session.inputs[0], *session.model.parameters())]
    assert all(gradient is not None for gradient in gradients)
    return [gradient.double() for gradient in gradients if gradient is not None]


def true_gradients(session: Any, layer: Conv2d, cache: Cache) -> list[torch.Tensor]:
    source = ModelSource("a-layer", layer=layer)
    module = restore(source, cached_state(source, cache)).double()
    x = session.inputs[0].detach().double().contiguous().requires_grad_()
    module(x).backward(session.training.objectives[0].target.double())
    found = [tensor.grad for tensor in (x, *module.parameters())]
    return [gradient for gradient in found if gradient is not None]


def error(ours: torch.Tensor, truth: torch.Tensor) -> float:
    assert ours.shape == truth.shape
    return float((ours - truth).norm() / truth.norm())


@layers
@pytest.mark.parametrize("options", [{}, {"channels_last": True}], ids=["", "channels_last"])
def test_gradients_are_autograds(layer, options, open_layer, cache):
    session = open_layer("eager", layer, **options)
    for _ in range(2):
        marks: list[str] = []
        session.run(marks.append)
        assert marks == PARTS
        found, truth = own_gradients(session), true_gradients(session, layer, cache)
        assert len(found) == 3
        assert max(map(error, found, truth)) < 1e-5


@pytest.mark.parametrize("engine", [if_able("compiled")])
@pytest.mark.parametrize("layer", [LAYERS["odd"]])
def test_each_part_is_compiled(layer, engine, open_layer, cache):
    session = open_layer(engine, layer)
    marks: list[str] = []
    session.run(marks.append)
    assert marks == PARTS
    assert max(map(error, own_gradients(session), true_gradients(session, layer, cache))) < 1e-5
    proof = session.proof()
    assert (proof.details["compiled_graphs"], proof.graph_breaks) == (3, 0)


def test_each_part_is_marked_right_after_its_work_and_nothing_is_done_behind_them(open_layer):
    """So that what is timed of the parts adds up to the call."""
    session, marks, work = open_layer("eager", LAYERS["square"]), list[str](), list[tuple[int, str]]()

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            work.append((len(marks), func.__name__))
            return func(*args, **(kwargs or {}))

    with Watch():
        session.run(marks.append)
    assert marks == PARTS
    products = [(part, name) for part, name in work if "convolution" in name or "conv2d" in name]
    backward = "convolution_backward.default"
    assert products == [(0, products[0][1]), (1, backward), (2, backward)]
    assert max(part for part, _ in work) == 2
