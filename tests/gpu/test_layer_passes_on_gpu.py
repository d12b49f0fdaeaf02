"""Single layers on the GPU: what each variant ran as, and parts that add up to the whole on both clocks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from sessions import make_job

import engines
from engines.options import Training
from exporters.cache import Cache
from exporters.catalog import Conv2d
from exporters.source import ModelSource
from profiler.stats.samples import median
from profiler.worker.clock import CudaClock

pytestmark = pytest.mark.gpu

PARTS = ("forward", "grad_input", "grad_weight")
BATCH = 4
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

variants = pytest.mark.parametrize(("engine", "options"), VARIANTS)


@pytest.fixture
def clock() -> CudaClock:
    return CudaClock()


@pytest.fixture(autouse=True)
def forgets_what_was_compiled() -> Iterator[None]:
    yield
    torch._dynamo.reset()


@pytest.fixture
def open_layer(cache: Cache, clock: CudaClock) -> Callable[..., Any]:
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


@variants
def test_parts_add_up_on_both_clocks(engine, options, open_layer, clock):
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
    proof = session.proof()
    assert proof.cudnn is options.get("cudnn", True)
    if engine == "compiled":
        is_recorded = options.get("mode") != "default"
        assert (proof.cuda_graph, proof.cuda_graph_skips, proof.graph_breaks) == (is_recorded, 0, 0)
    else:
        assert proof.cuda_graph is options.get("cuda_graph", False)
