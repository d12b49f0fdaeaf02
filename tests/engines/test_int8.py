"""The int8 graph in the CPU's engines: near fp32's outputs, and a proof that integers were multiplied."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from able_engines import if_able
from matrix_product import write_text
from sessions import cache_beside, error, outputs

import engines
from engines.base import Job, Session
from engines.catalog import ENGINES
from engines.options import OrtOptions
from exporters.cache import Cache
from exporters.inputs import input_specs, seeded_inputs
from exporters.int8 import quantize, quantize_dynamic
from exporters.onnx_export import export_onnx
from exporters.source import ModelError, ModelSource

pytestmark = pytest.mark.slow

FACTORY = """
from torch import nn

class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Conv2d(8, 8, 3, padding=1), nn.Conv2d(8, 8, 3, padding=1)

    def forward(self, x):
        return nn.functional.relu(x + self.b(nn.functional.relu(self.a(x))))

def convolution():
    return nn.Conv2d(3, 8, 3)

def residual():
    return nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), Block(), Block(), nn.Flatten(), nn.Linear(1568, 10))
"""
SOURCE = ModelSource("residual", factory="net_for_int8:residual", input_shape=(3, 16, 16))
BATCH = 2
PRODUCTS = 6


cache = cache_beside("net_for_int8", FACTORY)


@pytest.fixture
def open_session(cache: Cache) -> Callable[..., Session]:
    def start(engine: str, precision: str = "int8", **options: Any) -> Session:
        inputs = tuple(seeded_inputs(input_specs(SOURCE), BATCH))
        graph = quantize(SOURCE, cache) if precision == "int8" else export_onnx(SOURCE, precision, cache)
        own = ENGINES[engine].options(**options)
        return engines.open_session(
            engine, Job(SOURCE, "inference", precision, BATCH, "cpu", own, inputs, onnx=graph.path)
        )

    return start


@pytest.mark.parametrize("engine", [*map(if_able, ("ort", "openvino"))])
def test_every_convolution_and_product_is_int8(engine, open_session):
    session, expected = open_session(engine), outputs(open_session("ort", "fp32"))
    # Without VNNI two products of 8 bits are added in 16, which end at 32,767.
    assert 1e-3 < error(outputs(session), expected) < (0.1 if torch.cpu._is_vnni_supported() else 0.25)
    # Blocks whose input has two readers are where ONNX Runtime would leave convolutions in float.
    assert session.proof().compute_types == {"int8": PRODUCTS}


def test_without_optimizations_onnx_runtime_computes_in_float_and_the_proof_says_so(open_session):
    session, expected = open_session("ort", optimize=False), outputs(open_session("ort", "fp32"))
    assert 1e-3 < error(outputs(session), expected) < 0.1, "the graph's own error, on every processor"
    assert session.proof().compute_types == {"float32": PRODUCTS}


def test_products_alone_are_int8_where_ranges_are_taken_at_every_call(open_session, cache):
    inputs = tuple(seeded_inputs(input_specs(SOURCE), BATCH))
    graph, own = quantize_dynamic(SOURCE, cache), OrtOptions()
    job = Job(SOURCE, "inference", "int8", BATCH, "cpu", own, inputs, onnx=graph.path)
    session, expected = engines.open_session("ort-dynamic", job), outputs(open_session("ort", "fp32"))
    assert 1e-4 < error(outputs(session), expected) < 0.1
    assert session.proof().compute_types == {"float32": PRODUCTS - 1, "int8": 1}
    source = replace(SOURCE, factory="net_for_int8:convolution", input_shape=(3, 8, 8))
    with pytest.raises(ModelError, match="no matrix product with weights"):
        quantize_dynamic(source, cache)


def test_weights_take_a_quarter(open_session):
    floats, integers = (open_session("ort", precision).memory().weights for precision in ("fp32", "int8"))
    assert floats is not None
    assert integers is not None
    assert 0.25 < integers / floats < 0.4


def test_proof_of_products_of_integers_that_a_users_file_may_hold(tmp_path):
    """As dynamic quantization makes them: ONNX Runtime fuses some into operators of its own."""
    text = f"""
    theirs (float[N, 4] x) => (int32[N, 4] y) <uint8[4, 4] w = {{{", ".join("1" * 16)}}}, float w_scale = {{0.5}}> {{
        q, q_scale, q_zero = DynamicQuantizeLinear (x)
        i = MatMulInteger (q, w, q_zero)
        f = Cast <to = 1> (i)
        scale = Mul (q_scale, w_scale)
        h = Mul (f, scale)
        r, r_scale, r_zero = DynamicQuantizeLinear (h)
        y = MatMulInteger (r, w, r_zero)
    }}"""
    path = write_text(tmp_path / "theirs.onnx", text)
    source = ModelSource("theirs", onnx=path)
    inputs = tuple(seeded_inputs(input_specs(source), 2))
    job = Job(source, "inference", "native", 2, "cpu", OrtOptions(), inputs, onnx=path)
    session: Any = engines.open_session("ort", job)
    session.run(lambda name: None)
    assert session.proof().compute_types == {"int8": 2}
    assert "DynamicQuantizeMatMul" in {node.op_type for node in session._optimized_graph().node}
