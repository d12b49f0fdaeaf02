"""Modules in JAX give torch's values, gradients and statistics; a compiled program's text tells types and precision."""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from engines.base import Unsupported

pytest.importorskip("jax")


@pytest.fixture(autouse=True, scope="module")
def quick_compilation() -> Iterator[None]:
    import jax

    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", False)


class Does(nn.Module):
    """A function of the input and of one parameter, so that every gradient is seen."""

    def __init__(self, function: Any, *shape: int) -> None:
        super().__init__()
        self.function, self.weight = function, nn.Parameter(torch.randn(*(shape or (1,)), generator=seeded()))

    def forward(self, x: torch.Tensor) -> Any:
        return self.function(x, self.weight)


class Reshaping(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        parts = x.chunk(3, 1)  # Of 3, 3 and 2.
        first, second = torch.cat(parts[::-1], 1).split([1, 7], 1)
        y = torch.cat([second, first], 1).to(torch.float32).flatten(2).unflatten(1, (2, 4))
        y = torch.stack([y[:, 0], y[:, 1].flip(1)], 2).roll([2, -1], [0, 1])
        return F.pad(y.transpose(1, -1).repeat(1, 2, 1, 1)[:, 1:-2:3].permute(0, 2, 1, 3), (1, 2, -1, 3), value=0.5)


def seeded() -> torch.Generator:
    return torch.Generator().manual_seed(1)


IMAGES, LINES, VOLUMES = (2, 8, 9, 8), (2, 4, 9), (1, 2, 5, 6, 4)
GRID = torch.arange(8).flip(0).expand(2, 8, 9, 8)
MODULES: list[tuple[Any, tuple[int, ...]]] = [
    (nn.Conv2d(8, 6, 3, padding=1), IMAGES),
    (nn.Conv2d(8, 6, (3, 2), stride=(2, 1), padding=(1, 0), dilation=(1, 2), bias=False), IMAGES),
    (nn.Conv2d(8, 8, 3, stride=2, padding=1, groups=8), IMAGES),
    (nn.Conv2d(8, 6, (4, 3), padding="same"), IMAGES),
    (nn.Conv2d(8, 8, 3, padding=1, padding_mode="reflect", groups=2), IMAGES),
    (nn.Conv1d(4, 6, 3, stride=2, padding=1), LINES),
    (nn.Conv3d(2, 3, (3, 3, 2), padding=1), VOLUMES),
    (nn.Linear(8, 5), IMAGES),
    # Windows that reach over the border, at the end alone, and not at all.
    *((nn.MaxPool2d(3, s, p, ceil_mode=c), IMAGES) for s, p, c in [(2, 1, False), (2, 0, True), (3, 1, True)]),
    *((nn.AvgPool2d(k, s, p, c, n), IMAGES) for k, s, p, c, n in [
        (3, 2, 1, False, True), (3, 2, 1, False, False), (3, 2, 1, True, True), ((3, 2), (3, 2), 1, True, False),
    ]),
    (nn.MaxPool1d(3, 2, 1), LINES),
    (nn.AvgPool1d(3, 2, 1, ceil_mode=True), LINES),
    (nn.AvgPool3d((1, 3, 2), (1, 2, 2), (0, 1, 0)), VOLUMES),
    *((nn.AdaptiveAvgPool2d(size), IMAGES) for size in [1, (3, 4), (4, 3), (12, 8)]),
    (nn.LayerNorm([9, 8]), IMAGES),
    (nn.GroupNorm(2, 8), IMAGES),
    (nn.BatchNorm2d(8).eval(), IMAGES),
    (nn.BatchNorm2d(8), IMAGES),
    (nn.Softmax(1), IMAGES),
    (nn.LogSoftmax(-1), IMAGES),
    (nn.GELU("tanh"), IMAGES),
    *((kind(), IMAGES) for kind in (nn.GELU, nn.ReLU, nn.SiLU, nn.Hardswish, nn.Hardsigmoid, nn.ELU, nn.Sigmoid)),
    (nn.LeakyReLU(0.2), IMAGES),
    (nn.Hardtanh(-0.5, 0.7), IMAGES),
    (nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True), (2, 5, 8)),
    (Does(lambda x, w: F.scaled_dot_product_attention(x, x * w, x, is_causal=True), 8), (2, 3, 5, 8)),
    (Does(lambda x, w: torch.addmm(w, x[0, 0], x[0, 1].T, beta=0.5, alpha=3), 9), IMAGES),
    (Does(lambda x, w: torch.baddbmm(w.log(), x[0], x[1].mT * w, beta=0), 9), IMAGES),
    (Does(lambda x, w: torch.erf(x) + torch.sin(x) * w.exp() + x.abs().clamp(0.5)), IMAGES),
    (Does(lambda x, w: torch.rsub(torch.add(x, w, alpha=3), 1.5, alpha=2) ** 2 / 3.0), IMAGES),
    (Does(lambda x, w: torch.where(x > 0, x, w).masked_fill(x > 1, 7.0)), IMAGES),
    (Does(lambda x, w: x.mean([-1, -2], True) * w + x.amax([2, 3], True) + x.var(1, keepdim=True)), IMAGES),
    (Does(lambda x, w: x.cumsum(2).gather(3, GRID[:, :, : x.shape[2]]) * w), IMAGES),
    (Does(lambda x, w: F.embedding(torch.tensor([[4, 0], [4, 2]]), w) * x.sum(), 5, 3), (2, 2)),
    (Does(lambda x, w: torch.div(x, 0.7, rounding_mode="floor") * w + x.tanh()), IMAGES),
    (Does(lambda x, w: torch.div(x, -0.7, rounding_mode="trunc") * w + x), IMAGES),
    (Reshaping(), IMAGES),
]  # fmt: skip


def test_integers_are_divided_as_integers() -> None:
    import jax.numpy as jnp

    from engines.jax_operators import divide

    assert divide(jnp.array([2**25 + 1, -7]), 1, "floor").tolist() == [2**25 + 1, -7]
    assert divide(jnp.array([7, -7]), 2, "floor").tolist() == [3, -4]


class All(nn.Module):
    """All modules of one input's shape: one program to trace and compile."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.each = nn.ModuleList(copy.deepcopy(module) for module, takes in MODULES if takes == shape)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return tuple(module(x) for module in self.each)


@pytest.mark.parametrize("shape", dict.fromkeys(shape for _, shape in MODULES))
def test_modules_have_torchs_values_gradients_and_statistics(shape: tuple[int, ...]) -> None:
    import jax

    from engines.jax_xla import trace

    module = All(shape)
    x = torch.randn(shape, generator=seeded()).requires_grad_()
    program = trace(copy.deepcopy(module), [x.detach().numpy()])
    weights = {name: weight.detach().numpy().copy() for name, weight in program.weights.items()}
    buffers = {name: np.array(buffer.numpy()) for name, buffer in program.buffers.items()}
    expected = module(x)
    back = [torch.randn(output.shape, generator=seeded()) for output in expected]
    torch.autograd.backward(expected, back)

    def forward(weights: Any, x: Any) -> Any:
        return program(weights, buffers, [x])

    def run(weights: Any, x: Any, back: Any) -> Any:
        found, pull, changed = jax.vjp(forward, weights, x, has_aux=True)
        return found, pull(type(found)(back)), changed

    found, (of_weights, of_x), changed = jax.jit(run)(weights, x.detach().numpy(), [each.numpy() for each in back])
    for kind, ours, torchs in zip(module.each, found, expected, strict=True):
        np.testing.assert_allclose(ours, torchs.detach(), rtol=1e-4, atol=1e-5, err_msg=str(kind))
    np.testing.assert_allclose(of_x, x.grad, rtol=1e-3, atol=1e-3)
    for name, parameter in module.named_parameters():
        np.testing.assert_allclose(of_weights[name], parameter.grad, rtol=1e-3, atol=1e-4, err_msg=name)
    for name, buffer in module.named_buffers():
        np.testing.assert_allclose(changed[name], buffer, rtol=1e-5, atol=1e-6, err_msg=name)


def test_a_model_of_bf16_has_products_of_bf16_alone() -> None:
    import jax

    from engines.jax_xla import trace

    attention = Does(lambda x, w: F.scaled_dot_product_attention(x, w, torch.baddbmm(w, w, x.mT @ w)), 2, 4, 16)
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(2), attention, nn.Flatten(), nn.Linear(64, 5))
    x = np.zeros((2, 3, 6, 6), np.float32)
    program = trace(model.bfloat16(), [x])
    weights, x = jax.tree.map(lambda each: jax.numpy.zeros(each.shape, "bfloat16"), (program.weights, x))
    text = jax.jit(lambda weights, x: program(weights, {}, [x])).lower(weights, x).as_text()
    products = re.findall(r".*(?:dot_general|convolution\().*", text)
    assert len(products) == 6
    assert not any("f32" in product for product in products), products


def test_dropout_is_not_translated() -> None:
    from engines.jax_xla import trace

    with pytest.raises(Unsupported, match="native_dropout"):
        trace(nn.Dropout(0.5).train(), [np.ones((2, 3), np.float32)])


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
    '{"algorithm":"ALG_UNSET","operand_precision":["@","@"]},"rhs_stride":"131072"}}'
)
HALVES = "%wrapped_transpose = f16[64,56,56,64]{3,2,1,0} transpose(%x)\n"


@pytest.mark.parametrize(
    ("text", "types", "below"),
    [
        *(
            (line.replace("@", precision), {"float32": 1}, below)
            for line in (CONVOLUTION, DOT)
            for precision, below in [
                ("operand_precision={highest,highest}, ", 0), ("operand_precision={high,high}, ", 1), ("", 1),
            ]
        ),
        (CUBLAS.replace("@", "HIGHEST"), {"float32": 1}, 0),
        (CUBLAS.replace("@", "DEFAULT"), {"float32": 1}, 1),
        (HALVES + CONVOLUTION.replace("@", ""), {"float16": 1}, 0),
    ],
)  # fmt: skip
def test_a_product_of_float32_may_be_tf32_unless_the_highest_precision_is_asked_for(
    text: str, types: dict[str, int], below: int
) -> None:
    from engines.jax_operators import products

    found = products(text)
    assert (found.types, found.below_float32) == (types, below)
