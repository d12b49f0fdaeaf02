"""Single layers on the GPU: outputs and gradients of every variant against fp64, and parts that add up to the whole."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch
from runs import Profiler, run_job
from sessions import switches_put_back

import engines
from engines.base import Job
from engines.catalog import ENGINES, Training
from engines.layers import record
from exporters.build_model import restore
from exporters.cache import Cache
from exporters.gradient_reference import cached_gradients
from exporters.gradients import Gradients, deviation, reference_items, tiled
from exporters.inputs import input_specs, seeded_inputs
from exporters.single_layers import Conv2d, Layer, Linear
from exporters.source import ModelSource
from exporters.weights import cached_state
from profiler import load
from profiler.results.layers import layer_rows
from profiler.stats.samples import median
from profiler.worker.clock import CudaClock

pytestmark = pytest.mark.gpu

PARTS = ("forward", "grad_input", "grad_weight")
BATCH = 4
LAYERS: dict[str, Layer] = {
    "plain": Conv2d((16, 20, 20), 32, (3, 3), padding=(1, 1)),
    "odd": Conv2d((6, 21, 30), 10, (5, 2), stride=(3, 2), padding=(2, 0), dilation=(1, 2), bias=False),
    "grouped": Conv2d((8, 17, 17), 12, (3, 3), padding=(1, 1), groups=4),
    "linear": Linear(96, 80),
}
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

    def start(engine: str, layer: Layer, precision: str = "fp32", batch: int = BATCH, **options: Any) -> Any:
        source = ModelSource("a-layer", layer=layer)
        inputs, state = tuple(seeded_inputs(input_specs(source), batch)), cached_state(source, cache)
        training = Training(head="logits")
        own = ENGINES[engine].options(**options)
        job = Job(source, "training", precision, batch, "cuda", own, inputs, state, training=training)
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


def truth(session: Any, layer: Layer, cache: Cache) -> dict[str, torch.Tensor]:
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
    layer: Layer, precision: str, engine: str, options: dict[str, Any], open_layer: Open, cache: Cache
) -> None:
    session = open_layer(engine, layer, precision, **options)
    found = errors(numbers(session), truth(session, layer, cache))
    print(found)
    assert max(found.values()) < ERRORS[precision], found
    if precision == "fp16":
        assert max(found.values()) > 1e-5, "computed in fp32"


@pytest.mark.parametrize("precision", ["tf32", "bf16"])
def test_other_precisions_are_as_far_off_as_they_should(precision: str, open_layer: Open, cache: Cache) -> None:
    # L3: whether TF32 is used, cuDNN decides, and for a layer as small as "plain" it may not.
    layer = Conv2d((128, 32, 32), 128, (9, 9))
    session = open_layer("eager", layer, precision)
    found = errors(numbers(session), truth(session, layer, cache))
    assert 1e-5 < max(found.values()) < ERRORS[precision], found


@variants
def test_check_replaces_weights_and_items_where_the_iteration_reads_them(
    engine: str, options: dict[str, Any], open_layer: Open, cache: Cache
) -> None:
    """As after a measurement: in a captured graph, too, the reference's items take the place of the batch."""
    layer, source = LAYERS["plain"], ModelSource("a-layer", layer=LAYERS["plain"])
    session, specs, items = open_layer(engine, layer, **options), input_specs(source), reference_items(BATCH)
    reference = Gradients.read(
        cached_gradients(source, specs, cached_state(source, cache), "logits", items, ["fp32"], cache).path
    )
    assert reference.target is not None
    with torch.no_grad():
        session.model.weight.mul_(2)
    inputs = [tiled(array, BATCH) for array in seeded_inputs(specs, items)]
    output, gradients = session.gradients(inputs, tiled(reference.target, BATCH, is_gradient=True))
    found = deviation(output[:items], gradients, reference)
    assert found.tensors.keys() == {"input", "weight", "bias"}
    assert max(found.result, *found.tensors.values()) < ERRORS["fp32"], found


def kernels(session: Any) -> set[str]:
    iterations = record(lambda: session.step(lambda name: None), "cuda").iterations
    return {kernel.name for iteration in iterations for kernel in iteration.kernels}


def test_without_cudnn_torchs_own_kernels_run(open_layer: Open) -> None:
    own = kernels(open_layer("eager", LAYERS["plain"], cudnn=False))
    assert any("im2col" in name for name in own), own
    assert any("col2im" in name for name in own), own
    assert not any("cudnn" in name.lower() for name in own), own
    cudnns = kernels(open_layer("eager", LAYERS["plain"]))
    assert not any("im2col" in name or "col2im" in name for name in cudnns), cudnns


@variants
def test_proof_says_what_ran(engine: str, options: dict[str, Any], open_layer: Open) -> None:
    proof = open_layer(engine, LAYERS["plain"], "fp16", **options).proof()
    assert proof.compute_types == {"float16": 3}
    assert proof.cudnn is options.get("cudnn", True)
    assert proof.details["channels_last"] is options.get("channels_last", False)
    if engine == "compiled":
        wanted = options.get("mode") != "default"
        assert (proof.cuda_graph, proof.cuda_graph_skips, proof.graph_breaks) == (wanted, 0, 0)
    else:
        assert proof.cuda_graph is options.get("cuda_graph", False)


@variants
def test_profile_has_layers(engine: str, options: dict[str, Any], open_layer: Open) -> None:
    layers = open_layer(engine, LAYERS["plain"], **options).layers()
    assert sum(layer.ms for layer in layers) > 0
    if engine == "eager":
        assert [layer.kind for layer in layers].count("convolution_backward") == 2


@variants
def test_parts_add_up_on_both_clocks(engine: str, options: dict[str, Any], open_layer: Open, clock: CudaClock) -> None:
    session = open_layer(engine, Conv2d((64, 48, 48), 64, (5, 5)), batch=32, **options)
    samples = clock.time_calls(session.run, 30)
    gated = clock.time_gated(session.run, 1.0, 15)
    assert gated is not None
    for whole, parts in (("event", PARTS), ("gpu", [f"gpu_{part}" for part in PARTS])):
        medians = {name: median((samples | gated)[name]) or 0 for name in (whole, *parts)}
        print(medians)
        assert sum(medians[part] for part in parts) == pytest.approx(medians[whole], rel=0.05)
        assert min(medians.values()) > 0


def test_nothing_is_kept_of_the_last_iteration(open_layer: Open) -> None:
    """Of input, output gradient, output and gradInput one each, and no gradient before it is computed."""
    before = torch.cuda.memory_allocated()
    layer = Conv2d((32, 64, 64), 32, (3, 3), padding=(1, 1), bias=False)
    session = open_layer("eager", layer, batch=16)
    image, weight = 16 * 32 * 64 * 64 * 4, layer.parameters * 4
    seen: dict[str, int] = {}
    session.run(lambda name: seen.update({name: torch.cuda.memory_allocated() - before}))
    expected = {"forward": 3 * image, "grad_input": 4 * image, "grad_weight": 4 * image + weight}
    assert seen == pytest.approx({name: size + weight for name, size in expected.items()}, rel=0.005)


def test_layer_that_does_not_fit_leaves_the_process_usable(open_layer: Open, cache: Cache) -> None:
    with pytest.raises(torch.cuda.OutOfMemoryError):
        open_layer("eager", Conv2d((1, 128, 128), 1024, (1, 1)), batch=8192)
    torch.cuda.empty_cache()
    session = open_layer("eager", LAYERS["plain"])
    assert max(errors(numbers(session), truth(session, LAYERS["plain"], cache)).values()) < ERRORS["fp32"]


JOB = """
kind: layers
layers:
  - L3
  - {name: odd, conv: {input: [48, 66, 57], out_channels: 96, kernel: [5, 2], stride: 2, padding: [2, 0], groups: 3}}
  - {name: fc, linear: {in_features: 8192, out_features: 8192}, batch_sizes: [512]}
engines: [eager, eager-nocudnn, eager-benchmark, eager-channels-last, eager-tuned, compiled, ort, ort-tuned]
passes: [inference, training]
precisions: [fp32, fp16]
batch_sizes: [128]
device: cuda
budget: {seconds: 0.5}
exclude:
  - {engine: compiled, model: odd}
"""


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory, profiler: Profiler) -> pl.DataFrame:
    folder: Path = tmp_path_factory.mktemp("layers")
    path = run_job(profiler, folder, JOB)
    return load(path)[0].collect()


def test_run_measures_and_checks_every_variant(results: pl.DataFrame) -> None:
    trained = results.filter(~pl.col("engine").eq("ort"), pl.col("pass") == "training")
    assert set(trained["status"]) == {"ok"}, trained.select("case_id", "status", "reason").rows()
    for row in trained.to_dicts():
        assert row["reference"] == "step-fp64-cpu"
        assert np.isfinite(row["gradient_error"])
        assert row["gradient_error"] < ERRORS[row["precision"]] * 2, row["case_id"]
        parts = [row["weights_mib"], row["gradients_mib"], row["activations_mib"]]
        assert all(part > 0 for part in parts), row["case_id"]


def test_run_makes_rows_on_the_devices_clock_that_add_up(results: pl.DataFrame) -> None:
    rows = layer_rows(results)
    print(rows)
    for row in rows.to_dicts():
        name = row["layer"], row["variant"], row["precision"]
        assert row["forward_ms"] > 0, name
        # Without cuDNN each item has launches of its own: more of them than any gate holds.
        assert row["clock"] == "gpu" or row["variant"] == "eager-nocudnn", name
        if row["engine"] == "ort":
            assert row["reason"], name
            assert row["total_ms"] is None, name
            continue
        assert row["forward_ms"] + row["backward_ms"] == pytest.approx(row["total_ms"], rel=0.05), name
        assert 0 < row["total_tflops"] < 1000, name
