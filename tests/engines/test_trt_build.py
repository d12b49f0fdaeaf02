"""The build half of TensorRT, by the real builder and parser of TensorRT for RTX, which need no GPU."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from matrix_product import write_text
from thin_networks import thin_source

from engines.base import Unsupported
from engines.trt import library
from engines.trt_build import (
    BuildRequest,
    Built,
    _configure,
    batch_shapes,
    build_engine,
    built_for,
    engine_key,
    targets,
)
from engines.trt_reports import forget, logged, logger_of
from exporters import build_model
from exporters.cache import Cache
from exporters.inputs import TensorSpec, input_specs
from exporters.onnx_export import export_onnx
from exporters.source import ModelError, ModelSource

pytestmark = pytest.mark.slow

MIB = 2**20


@pytest.fixture(scope="session")
def rtx() -> Any:
    return library("trt-rtx")


@pytest.fixture(scope="session")
def plain(rtx: Any) -> Any:
    """TensorRT for RTX without what it has beyond TensorRT: `build_engine` then takes TensorRT's way."""

    class Plain:
        def __getattr__(self, name: str) -> Any:
            if name == "ComputeCapability":
                raise AttributeError(name)
            return getattr(rtx, name)

    return Plain()


def silent(words: str) -> None:
    pass


def write_graph(path: Path, nodes: str, channels: int = 8, **weights: Any) -> Path:
    ends = f"(float[batch, 3, 16, 16] x) => (float[batch, {channels}, 16, 16] y)"
    return write_text(path, f"g {ends} {{ {nodes} }}", **weights)


def convolution(name: str, source: str, target: str, weight: str) -> str:
    return f"[{name}] {target} = Conv <pads = [1, 1, 1, 1]> ({source}, {weight})"


def random_weight(*shape: int) -> Any:
    return np.random.default_rng(0).standard_normal(shape, dtype=np.float32)


@pytest.fixture
def small(tmp_path: Path) -> BuildRequest:
    nodes = f"{convolution('c1', 'x', 'a', 'w1')}  b = Relu (a)  {convolution('c2', 'b', 'y', 'w2')}"
    path = write_graph(tmp_path / "small.onnx", nodes, w1=random_weight(8, 3, 3, 3), w2=random_weight(8, 8, 3, 3))
    return BuildRequest(path, "fp32", at_batch(4), target="sm89")


@pytest.fixture
def cache(tmp_path: Path) -> Cache:
    return Cache(tmp_path / "cache")


def at_batch(size: int) -> Any:
    return batch_shapes([TensorSpec("x", ("batch", 3, 16, 16), "float32")], size)


def built(rtx: Any, request: BuildRequest, cache: Cache, rebuild: bool = False) -> Built:
    return build_engine(rtx, request, cache, silent, rebuild)


# Networks.


THIN = {"googlenet": "fp32", "alexnet": "bf16", "resnet200": "fp16"}
"""Networks whose thin versions have every operator: grouped convolutions, concatenations, sums,
normalization ahead of a convolution. The others of the catalog have the same blocks."""


@pytest.mark.parametrize(("name", "precision"), THIN.items())
def test_canonical_network(name, precision, rtx, cache, exports):
    source = thin_source(name)
    path = export_onnx(source, precision, exports).path
    request = BuildRequest(path, precision, batch_shapes(input_specs(source), 4), target="sm89", level=0)
    ctypes.CDLL(None).malloc_trim(0)  # Where this process has memory free, a small network needs no more.
    first, second = built(rtx, request, cache), built(rtx, request, cache)
    assert (first.cached, second.cached) == (False, True)
    assert second == replace(first, cached=True)
    assert first.warnings == ()
    weights = parameters_of(source) * {"fp32": 4, "fp16": 2, "bf16": 2}[precision]
    # Its weights are in it, in that type; what else there is are kernels, a few hundred kilobytes.
    assert weights * 0.98 < first.path.stat().st_size < weights * 1.05 + 4 * MIB
    assert first.seconds > 0


def parameters_of(source: ModelSource) -> int:
    return sum(parameter.numel() for parameter in build_model.build(source).parameters())


# What an engine is for.


def test_shapes_that_do_not_fit_the_graph(rtx, small, cache):
    for shape in ((4, 5, 16, 16), (4, 3, 16)):
        with pytest.raises(
            ModelError, match=r"input 'x' is of shape \(-1, 3, 16, 16\) .* not " + re.escape(str(shape))
        ):
            built(rtx, replace(small, shapes={"x": (shape,) * 3}), cache)
    with pytest.raises(ModelError, match="input 'x'"):
        built(rtx, replace(small, shapes={}), cache)
    with pytest.raises(RuntimeError, match="no optimization profile"):
        built(rtx, replace(small, shapes={"x": ((8, 3, 16, 16), (4, 3, 16, 16), (8, 3, 16, 16))}), cache)


def test_static_graph_needs_no_profile(rtx, tmp_path, cache):
    path = write_graph(tmp_path / "s.onnx", convolution("c", "x", "y", "w"), w=random_weight(8, 3, 3, 3))
    model = onnx.load(path)
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.shape.dim[0].dim_value = 2
    onnx.save(model, path)
    assert not built(rtx, BuildRequest(path, "native", {}, target="sm89"), cache).cached
    with pytest.raises(ModelError, match=r"not .*4, 3, 16, 16"):
        built(rtx, BuildRequest(path, "native", at_batch(4), target="sm89"), cache)


@pytest.mark.parametrize(("precision", "on"), [("fp32", False), ("tf32", True), ("fp16", False), ("native", False)])
def test_tf32_flag(rtx, small, precision, on):
    config = rtx.Builder(logger_of(rtx)).create_builder_config()
    assert config.get_flag(rtx.BuilderFlag.TF32), "it is the library's default"
    _configure(rtx, config, replace(small, precision=precision))
    assert config.get_flag(rtx.BuilderFlag.TF32) == on


def test_options_reach_the_builder(rtx, small):
    config = rtx.Builder(logger_of(rtx)).create_builder_config()
    _configure(rtx, config, replace(small, target="sm80,sm89", level=5))
    assert config.builder_optimization_level == 5
    assert config.profiling_verbosity == rtx.ProfilingVerbosity.DETAILED
    assert config.get_flag(rtx.BuilderFlag.REQUIRE_USER_ALLOCATION)
    assert [config.get_compute_capability(n).name for n in range(config.num_compute_capabilities)] == ["SM80", "SM89"]


def test_what_a_gpu_is_built_for(rtx, plain, small, cache):
    """TensorRT for RTX takes what was built ahead of time for the card's compute capability."""
    ahead = built(rtx, replace(small, target="sm89"), cache)
    found = built(rtx, replace(small, **{"target": None, **built_for(rtx, "a card", "8.9")}), cache)
    assert found.cached and found.path == ahead.path
    assert built_for(plain, "a card", "8.9") == {"gpu": "a card, compute capability 8.9"}
    with pytest.raises(Unsupported, match="no target ''; valid: sm75"):
        built(rtx, replace(small, target=None, gpu="a card"), cache)


def test_what_a_library_does_not_have_is_unsupported(rtx, plain, small, cache):
    for target in ("sm90", "SM89", "", "sm89,sm90", "89"):
        with pytest.raises(Unsupported, match=r"has no target .*; valid: sm75, .*sm89, .*all"):
            built(rtx, replace(small, target=target), cache)
    assert targets(plain) == ()
    with pytest.raises(Unsupported, match="leave out the target"):
        built(plain, small, cache)


def test_a_target_without_these_types_is_unsupported(rtx, tmp_path, cache):
    """Turing has no fp32 matrix product."""
    path = write_graph(tmp_path / "product.onnx", "f = Flatten (x)  y = Gemm (f, w)", w=random_weight(768, 8))
    request = BuildRequest(path, "fp32", at_batch(4), target="sm75")
    with pytest.raises(Unsupported, match=r"cannot build product.onnx for sm75: .*SM75"):
        built(rtx, request, cache)
    assert not built(rtx, replace(request, target="sm89"), cache).cached


# Broken graphs.


def test_unknown_operators_are_told_with_their_nodes(rtx, tmp_path, cache):
    odd = [f"[odd_{n}] t{n + 1} = Wobble (t{n})" for n in range(6)]
    nodes = "  ".join(["[fine] t0 = Relu (x)", *odd, "[odd_6] y = Wobble (t6)"])
    path = write_graph(tmp_path / "unknown.onnx", nodes)
    with pytest.raises(Unsupported) as raised:
        built(rtx, BuildRequest(path, "native", at_batch(4), target="sm89"), cache)
    message = str(raised.value)
    assert message.startswith(f"{path}: refused by TensorRT for RTX ")
    assert "node 1 'odd_0' (Wobble): " in message
    assert "Plugin not found" in message
    assert "'fine'" not in message
    assert "\n" not in message
    assert len(message) < 3000
    assert not list(cache.root.rglob("*.engine"))


def test_a_kernel_that_was_skipped_is_a_reason_only_where_none_was_left(rtx):
    def said(*messages: tuple[str, str]) -> str:
        logger = logger_of(rtx)
        forget(logger)
        for severity, text in messages:
            logger.log(getattr(rtx.ILogger, severity), text)
        return logged(logger, 2000)

    cause = ("ERROR", "Error Code 4: Internal Error (a shape is missing)")
    skipped = [("ERROR", NO_MEMORY), ("WARNING", SKIPPED)] * 30
    assert said(*skipped, cause) == said(cause, *skipped) == cause[1]
    assert said(*skipped[:2], ("ERROR", NONE_LEFT)) == f"{NONE_LEFT}; {SKIPPED}; {NO_MEMORY}"
    assert said(("WARNING", "a warning"), ("ERROR", NO_MEMORY)) == NO_MEMORY


NO_MEMORY = "[virtualMemoryBuffer.cpp::resizePhysical::140] Error Code 2: OutOfMemory (Requested size was 9000 bytes.)"
SKIPPED = "UNSUPPORTED_STATE: Skipping tactic 4 due to insufficient memory on requested size of 9000 detected"
NONE_LEFT = "Error Code 10: Internal Error (Could not find any implementation for node conv1.)"


# The cache.


def test_key_tells_apart_what_differs(rtx, small, tmp_path):
    other = tmp_path / "elsewhere.onnx"
    other.write_bytes(small.onnx.read_bytes())
    assert engine_key(rtx, replace(small, onnx=other)) == engine_key(rtx, small), "the path says nothing"
    model = onnx.load(small.onnx)
    model.graph.node[0].name = "renamed"
    onnx.save(model, other)
    requests = [
        small,
        replace(small, onnx=other),
        replace(small, precision="tf32"),
        replace(small, shapes=at_batch(5)),
        replace(small, level=5),
        replace(small, target="sm80"),
        replace(small, target=None, gpu="one, compute capability 8.9"),
        replace(small, target=None, gpu="other, compute capability 8.9"),
    ]
    assert len({engine_key(rtx, request) for request in requests}) == len(requests)


def test_data_beside_the_graph(rtx, tmp_path, cache):
    """It is found, and part of the key."""
    weight = random_weight(64, 3, 7, 7)

    def build(folder: str, scale: float) -> Built:
        (tmp_path / folder).mkdir()
        node = "[c] y = Conv <pads = [3, 3, 3, 3]> (x, w)"
        path = write_graph(tmp_path / folder / "m.onnx", node, 64, w=weight * scale)
        onnx.save(onnx.load(path), path, save_as_external_data=True, location="m.data")
        assert path.stat().st_size < weight.nbytes < path.with_name("m.data").stat().st_size + 1
        return built(rtx, BuildRequest(path, "native", at_batch(4), target="sm89"), cache)

    first, other, same = build("a", 1), build("b", 2), build("c", 1)
    assert first.path != other.path
    assert (same.path, same.cached) == (first.path, True)


# Progress, and ends before the end.


def test_a_build_tells_its_progress(rtx, small, cache):
    told: list[str] = []
    build_engine(rtx, replace(small, target="sm80"), cache, told.append)
    assert told and all(re.fullmatch(r"building: .*, step \d+", words) for words in told)


def test_no_builder_outlives_its_build(rtx, small, cache, tmp_path, capfd):
    """As long as one lives, the library ignores every other logger, and says so."""
    gc.collect()  # What earlier tests left.
    odd = write_graph(tmp_path / "odd.onnx", "y = Wobble (x)")
    for request, error in (
        (small, None),
        (replace(small, onnx=odd), Unsupported),
        (replace(small, target="current"), RuntimeError),
    ):
        with pytest.raises(error) if error else contextlib.nullcontext():
            build_engine(rtx, request, cache, silent, rebuild=True)
        capfd.readouterr()
        rtx.Builder(rtx.Logger())
        assert "differs from one already registered" not in "".join(capfd.readouterr())
