"""What a compiled program's text says of the types and precision of its convolutions and products."""

from __future__ import annotations

import pytest

from engines.jax_operators import products

# Shortened from what XLA of JAX 0.11 printed on an H100.
CONVOLUTION = (
    "%cudnn-conv.1 = (f32[64,56,56,64]{3,2,1,0}, u8[131]{0}) custom-call(%wrapped_transpose, %wrapped_transpose.1), "
    'window={size=3x3 pad=1_1x1_1}, dim_labels=b01f_o01i->b01f, @custom_call_target="__cudnn$convForward", '
    'backend_config={"cudnn_conv_backend_config":{"algorithm":{"algo_id":"67","math_type":"DEFAULT_MATH"}}}'
)
DOT = (
    "ROOT %dot.1 = f32[8,512,512]{2,1,0} dot(%parameter_0, %parameter_1), lhs_batch_dims={1}, "
    'lhs_contracting_dims={2}, @metadata={op_name="jit(matmul)/dot_general"}, backend_config={"sizes":["32"]}'
)
CUBLAS = (
    "%custom-call.1 = (f32[8,512,512]{2,1,0}, s8[33554432]{0}) custom-call(%bitcast.1.0, %bitcast.2), "
    'custom_call_target="__cublas$lt$matmul", backend_config={"gemm_backend_config":{"precision_config":'
    '{"algorithm":"ALG_UNSET","operand_precision":["HIGHEST","HIGHEST"]},"rhs_stride":"131072"}}'
)


@pytest.mark.parametrize("line", [CONVOLUTION, DOT])
@pytest.mark.parametrize(
    ("precision", "below"),
    [("operand_precision={highest,highest}, ", 0), ("operand_precision={high,high}, ", 1), ("", 1)],
)
def test_a_product_of_float32_is_tf32_unless_the_highest_precision_is_asked_for(
    line: str, precision: str, below: int
) -> None:
    found = products(line.replace("@", precision))
    assert found.types == {"float32": 1}
    assert found.below_float32 == below


def test_a_product_by_cublas_has_its_precision_in_its_configuration() -> None:
    found = products(CUBLAS)
    assert found.calls == {"__cublas$lt$matmul": 1}
    assert found.below_float32 == 0
    assert products(CUBLAS.replace("HIGHEST", "DEFAULT")).below_float32 == 1


def test_the_type_is_the_operands_where_the_result_has_another() -> None:
    halves = "%wrapped_transpose = f16[64,56,56,64]{3,2,1,0} transpose(%x)\n"
    found = products(halves + CONVOLUTION.replace("@", ""))
    assert found.types == {"float16": 1}
    assert found.below_float32 == 0
