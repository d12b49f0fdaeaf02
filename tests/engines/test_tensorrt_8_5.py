"""TensorRT 8.5's real bindings without a GPU: names, flags, and what is said where no driver answers.

`make test-tensorrt` runs it in a Python 3.10, the last that 8.5 has bindings for.
"""

from __future__ import annotations

from operator import attrgetter
from types import SimpleNamespace
from typing import Any

import pytest

from engines.base import Unsupported
from engines.trt import library
from engines.trt_build import open_with_plugins
from engines.trt_releases import auxiliary_streams, configure, create_context, give_scratch, is_weakly_typed, product
from profiler.machine.nvml import visible_gpus

pytestmark = pytest.mark.slow
tensorrt: Any = pytest.importorskip("tensorrt")
if not tensorrt.__version__.startswith("8.5"):
    pytest.skip(f"TensorRT is {tensorrt.__version__}", allow_module_level=True)

OF_8_5 = {
    "NetworkDefinitionCreationFlag.EXPLICIT_BATCH",
    "ICudaEngine.create_execution_context_without_device_memory",
    "ICudaEngine.device_memory_size",
    "IExecutionContext.device_memory",
    "PreviewFeature.DISABLE_EXTERNAL_TACTIC_SOURCES_FOR_CORE_0805",
    *("BuilderFlag.FP16", "BuilderFlag.INT8", "TacticSource.CUBLAS", "TacticSource.JIT_CONVOLUTIONS"),
    *("OnnxParser.parse", "OnnxParser.supports_operator", "IBuilderConfig.set_tactic_sources"),
}
"""Names by which 8.5 alone is called."""


class Config(SimpleNamespace):
    """What IBuilderConfig keeps of flags; the real one takes a driver."""

    def __init__(self) -> None:
        super().__init__(flags={tensorrt.BuilderFlag.TF32}, sources=0, features=set())

    def set_flag(self, flag: Any) -> None:
        self.flags.add(flag)

    def clear_flag(self, flag: Any) -> None:
        self.flags.discard(flag)

    def set_tactic_sources(self, sources: int) -> None:
        self.sources = sources

    def set_preview_feature(self, feature: Any, on: bool) -> None:
        assert on
        self.features.add(feature)


def test_its_names_are_there():
    for name in OF_8_5:
        attrgetter(name)(tensorrt)
    assert library("trt") is tensorrt
    assert (is_weakly_typed(tensorrt), product(tensorrt)) == (True, "TensorRT 8.5.3.1")


@pytest.mark.parametrize(
    ("precision", "types", "flags"),
    [
        ("fp32", (), ()),
        ("tf32", (), ("TF32",)),
        ("fp16", (), ("FP16",)),
        ("int8", ("int8", "float32"), ("INT8", "FP16")),
        ("int8", ("float32",), ("FP16",)),
        ("native", ("float32",), ()),
        ("native", ("float16", "float32"), ("FP16",)),
        ("native", ("int8", "float32"), ("INT8",)),
    ],
)
def test_flags_allow_the_types_that_were_asked_for(precision, types, flags):
    config = Config()
    configure(tensorrt, config, precision, frozenset(types), 3)
    assert config.flags == {getattr(tensorrt.BuilderFlag, flag) for flag in flags}
    sources = tensorrt.TacticSource
    assert config.sources == 1 << int(sources.EDGE_MASK_CONVOLUTIONS) | 1 << int(sources.JIT_CONVOLUTIONS)
    assert config.features == {tensorrt.PreviewFeature.DISABLE_EXTERNAL_TACTIC_SOURCES_FOR_CORE_0805}
    assert config.profiling_verbosity == tensorrt.ProfilingVerbosity.DETAILED


def test_what_it_lacks_is_unsupported():
    with pytest.raises(Unsupported, match=r"TensorRT 8\.5\.3\.1 has no bf16; it has fp32, tf32, fp16, int8"):
        configure(tensorrt, Config(), "bf16", frozenset(), 3)
    with pytest.raises(Unsupported, match="no optimization levels"):
        configure(tensorrt, Config(), "fp32", frozenset(), 5)


def test_a_context_gets_its_memory_by_an_attribute():
    engine = SimpleNamespace(create_execution_context_without_device_memory=SimpleNamespace)
    context, kept = create_context(tensorrt, engine)
    give_scratch(context, 4096, 256)
    assert (context.device_memory, kept, auxiliary_streams(engine)) == (4096, None, 0)


@pytest.mark.skipif(bool(visible_gpus()), reason="a driver answers")
def test_without_a_driver_the_error_says_so():
    for make, what in ((tensorrt.Builder, "builder"), (tensorrt.Runtime, "runtime")):
        with pytest.raises((RuntimeError, Unsupported), match=rf"TensorRT 8.5.3.1 .*({what}|driver)"):
            open_with_plugins(tensorrt, make, what)
