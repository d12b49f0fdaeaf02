"""Single layers on the GPU: outputs and gradients of every variant against fp64, and parts that add up to the whole."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from sessions import make_job, switches_put_back

import engines
from engines.options import Training
from exporters.build_model import restore
from exporters.cache import Cache
from exporters.catalog import Conv2d
from exporters.source import ModelSource
from exporters.weights import cached_state
from profiler.stats.samples import median
from profiler.worker.clock import CudaClock

pytestmark = pytest.mark.gpu

PARTS = ("forward", "grad_input", "grad_weight")
BATCH = 4
LAYERS = {"square": Conv2d((16, 20, 20), 32, (3, 3)), "odd": Conv2d((6, 21, 30), 10, (5, 2))}
EAGER: dict[str, dict[str, Any]] = {
    "plain": {},
    "nocudnn": {"cudnn": False},
    "benchmark": {"cudnn_benchmark": True},
    "channels_last": {"channels_last": True},
    "graph": {"cuda_graph": True},
    "tuned": {"channels_last": True, "cuda_graph": True},
    "nocudnn-graph": {"cudnn": False, "cuda_graph": True},
}
COMPILED: dict[str, dict[str, Any]] = {
    "reduce-overhead": {},
    "default": {"mode": "default"},
    "channels_last": {"channels_last": True},
}
VARIANTS = [pytest.param("eager", options, id=f"eager-{name}") for name, options in EAGER.items()] + [
    pytest.param("compiled", options, id=f"compiled-{name}") for name, options in COMPILED.items()
]
ERRORS = {"fp32": 1e-4, "tf32": 1e-2, "fp16": 1e-2, "bf16": 5e-2}
"""Relative; cuDNN may take Winograd's or Fourier's way, which lose a digit of fp32."""

Open = Callable[..., Any]
variants = pytest.mark.parametrize(("engine", "options"), VARIANTS)


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Cache:
    return Cache(tmp_path_factory.mktemp("layers"))


@pytest.fixture
def clock() -> CudaClock:
    """With a stream of its own, on which everything runs."""
    return CudaClock()


switches = switches_put_back()


@pytest.fixture(autouse=True)
def forgets_what_was_compiled() -> Iterator[None]:
    yield
    torch._dynamo.reset()


@pytest.fixture
def open_layer(cache: Cache, clock: CudaClock) -> Open:
    """`open_layer("eager", layer, "fp16", cuda_graph=True)`: the training pass, run often enough to be replayed."""

    def start(engine: str, layer: Conv2d, precision: str = "fp32", batch: int = BATCH, **options: Any) -> Any:
        source = ModelSource("a-layer", layer=layer)
        training = Training(head="logits")
        job = make_job(source, cache, engine, precision, "training", batch, training, "cuda", **options)
        session = engines.open_session(engine, job)
        for _ in range(3):
            session.run(clock.mark)
        clock.synchronize()
        return session

    return start


def numbers(session: Any) -> dict[str, torch.Tensor]:
    """Output and gradients as the session's own tensors hold them."""
    (x,) = session.inputs
    found = {"output": session.result, "input": x.grad}
    found |= {name: parameter.grad for name, parameter in session.model.named_parameters()}
    return {name: tensor.double().cpu().contiguous() for name, tensor in found.items()}


def truth(session: Any, layer: Conv2d, cache: Cache) -> dict[str, torch.Tensor]:
    """The same by autograd in fp64 on the CPU, of the session's own input and output gradient."""
    source = ModelSource("a-layer", layer=layer)
    module = restore(source, cached_state(source, cache)).double()
    x = session.inputs[0].detach().double().cpu().contiguous().requires_grad_()
    output = module(x)
    output.backward(session.training.gradient.double().cpu())
    found = {"output": output.detach(), "input": x.grad}
    found |= {name: parameter.grad for name, parameter in module.named_parameters()}
    return {name: tensor for name, tensor in found.items() if tensor is not None}


def errors(found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> dict[str, float]:
    assert found.keys() == expected.keys()
    return {name: float((found[name] - expected[name]).norm() / expected[name].norm()) for name in expected}


@variants
@pytest.mark.parametrize("precision", ["fp32", "fp16"])
@pytest.mark.parametrize("layer", LAYERS.values(), ids=LAYERS.keys())
def test_output_and_gradients_are_autograds_in_fp64(
    layer: Conv2d, precision: str, engine: str, options: dict[str, Any], open_layer: Open, cache: Cache
) -> None:
    session = open_layer(engine, layer, precision, **options)
    found = errors(numbers(session), truth(session, layer, cache))
    print(found)
    assert max(found.values()) < ERRORS[precision], found
    if precision == "fp16":
        assert max(found.values()) > 1e-5, "computed in fp32"
    proof = session.proof()
    assert proof.compute_types == {"float16" if precision == "fp16" else "float32": 3}
    assert proof.cudnn is options.get("cudnn", True)
    if engine == "compiled":
        wanted = options.get("mode") != "default"
        assert (proof.cuda_graph, proof.cuda_graph_skips, proof.graph_breaks) == (wanted, 0, 0)
    else:
        assert proof.cuda_graph is options.get("cuda_graph", False)


@variants
def test_parts_add_up_on_both_clocks(engine: str, options: dict[str, Any], open_layer: Open, clock: CudaClock) -> None:
    session = open_layer(engine, Conv2d((64, 48, 48), 64, (5, 5)), batch=32, **options)
    samples = clock.time_calls(session.run, 30)
    gated = clock.time_gated(session.run, 1.0, 15)
    assert gated is not None
    for whole, parts in (("event", PARTS), ("gpu", [f"gpu_{part}" for part in PARTS])):
        times = {name: (samples | gated)[name] for name in (whole, *parts)}
        # A captured graph's parts are read of fewer calls than its whole.
        sums = [sum(each) for each in zip(*(times[part] for part in parts), strict=True)]
        print(median(sums), median(times[whole]))
        assert median(sums) == pytest.approx(median(times[whole]), rel=0.05)
        assert min(map(min, times.values())) > 0
