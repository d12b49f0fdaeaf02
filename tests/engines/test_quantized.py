"""Linear layers quantized by torchao: which, what they compute in, what they hold; and that the compiler takes them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator

import pytest
import torch
from able_engines import needs
from sessions import error, outputs
from torch import nn

from engines.base import Job, Phase, Unsupported
from engines.compiled import CompiledSession
from engines.eager import EagerSession, _choose
from engines.options import CompiledOptions, EagerOptions
from exporters.cache import Cache
from exporters.inputs import input_specs, seeded_inputs
from exporters.source import ModelSource
from exporters.weights import cached_state

FACTORY = """
import torch
from torch import nn

class Tokens(nn.Module):
    def __init__(self):
        super().__init__()
        self.wide, self.narrow, self.head = nn.Linear(64, 96), nn.Linear(96, 64), nn.Linear(64, 10)

    def forward(self, x):
        x = x + self.narrow(torch.relu(self.wide(x)))
        return self.head((x @ x.mT).mean(1) @ x.mean(0))
"""
SOURCE = ModelSource("tokens", factory="to_quantize:Tokens", input_shape=(32, 64))
WEIGHTS, BIASES = 64 * 96 + 96 * 64 + 64 * 10, 96 + 64 + 10


@pytest.fixture(scope="module")
def make_job(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Job]]:
    pytest.importorskip("torchao")
    folder = tmp_path_factory.mktemp("quantize")
    (folder / "to_quantize.py").write_text(FACTORY)
    sys.path.insert(0, str(folder))
    state, specs = cached_state(SOURCE, Cache(folder / "cache")), tuple(input_specs(SOURCE))

    def make(precision: str, options: object = EagerOptions(), batch: int = 3, **more: object) -> Job:
        inputs = tuple(seeded_inputs(specs, batch))
        return Job(SOURCE, "inference", precision, batch, "cpu", options, inputs, state, specs=specs, **more)

    yield make
    sys.path.remove(str(folder))


def test_products_of_linear_layers_are_int8_and_so_are_the_weights(make_job):
    phases: list[Phase] = []
    session, plain = EagerSession(make_job("int8", phase=phases.append)), EagerSession(make_job("fp32"))
    assert phases == [Phase.BUILD, Phase.LOAD]
    assert 1e-5 < error(outputs(session), outputs(plain)) < 0.05
    proof = session.proof()
    assert proof.compute_types == {"int8": 3, "float32": 2}, "the model's own products stay float"
    assert (proof.details["linear_layers"], proof.details["quantized_layers"]) == (3, 3)
    assert proof.weight_types["int8"] >= 3
    assert not proof.tf32
    assert plain.memory().weights == 4 * (WEIGHTS + BIASES)
    # A scale and, as torchao has it, a zero point in int8 for each row.
    assert session.memory().weights == WEIGHTS + 4 * BIASES + 5 * (96 + 64 + 10)


@pytest.mark.slow
@needs("compiled")
def test_the_compiler_takes_quantized_layers_whole(make_job):
    session = CompiledSession(make_job("int8", CompiledOptions()))
    proof = session.proof()
    assert (proof.graph_breaks, proof.graph_break_reasons) == (0, ())
    assert proof.compute_types == {"int8": 3, "float32": 2}
    assert error(outputs(session), outputs(EagerSession(make_job("int8")))) < 1e-4


def test_on_a_gpu_layers_stay_float_that_its_integer_units_do_not_take():
    tokens, narrow, head = layers = [nn.Linear(64, 64), nn.Linear(64, 12), nn.Linear(64, 24)]

    def infer() -> None:
        x = tokens(torch.ones(4, 5, 64))
        narrow(x)
        head(input=x.mean(1))

    assert _choose(layers, "int8", "cpu", infer) == set(layers)
    assert _choose(layers, "int8", "cuda", infer) == {tokens}, "12 is no multiple of 8, and the head sees 4 rows"
    assert _choose(layers, "fp8", "cuda", infer) == {tokens}, "24 is no multiple of 16"
    with pytest.raises(Unsupported, match="multiples of 8 and inputs of 17 rows or more; none of the model's 2 has"):
        _choose(layers[1:], "int8", "cuda", infer)
    with pytest.raises(Unsupported, match="the model has none"):
        _choose([], "int8", "cpu", infer)
