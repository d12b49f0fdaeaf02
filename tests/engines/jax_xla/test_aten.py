"""Each operator in JAX gives torch's values and torch's gradients."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from engines.base import Unsupported


@pytest.fixture(autouse=True, scope="module")
def quick_compilation() -> Iterator[None]:
    jax = pytest.importorskip("jax")  # Here and below, so that processes which run other files do without it.
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", False)


Case = tuple[str, Callable[..., Any], list[Any], dict[str, Any]]


def drawn(*shape: int, seed: int = 0) -> torch.Tensor:
    """No two elements alike, so that a maximum has one place and a gradient one way."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def image(*shape: int) -> torch.Tensor:
    return drawn(*shape, seed=1)


X = image(2, 4, 9, 8)
ATEN = torch.ops.aten

CASES: dict[str, Case] = {
    f"{name} {number}": (name, torch_function, arguments, options)
    for number, (name, torch_function, arguments, options) in enumerate(
        [
            *(
                ("convolution", ATEN.convolution, [x, weight, bias, s, p, d, transposed, e, g], {})
                for x, weight, bias, s, p, d, transposed, e, g in [
                    (X, drawn(6, 4, 3, 3), drawn(6), [1, 1], [1, 1], [1, 1], False, [0, 0], 1),
                    (X, drawn(6, 4, 3, 2), None, [2, 1], [1, 0], [1, 2], False, [0, 0], 1),
                    (X, drawn(8, 2, 3, 3), drawn(8), [2], [1], [1], False, [0], 2),
                    (X, drawn(4, 1, 3, 3), None, [1], [2], [2], False, [0], 4),
                    (image(2, 4, 9), drawn(6, 4, 3), drawn(6), [2], [1], [1], False, [0], 1),
                    (image(1, 2, 5, 6, 4), drawn(3, 2, 3, 3, 2), None, [1], [1], [1], False, [0], 1),
                    (X, drawn(4, 6, 3, 3), drawn(6), [2, 2], [1, 1], [1, 1], True, [1, 1], 1),
                    (X, drawn(4, 3, 3, 2), None, [1, 2], [0, 1], [2, 1], True, [0, 0], 2),
                ]
            ),
            ("linear", F.linear, [image(3, 7), drawn(5, 7), drawn(5)], {}),
            ("addmm", torch.addmm, [drawn(5), image(3, 7), drawn(7, 5)], {"beta": 0.5, "alpha": 2.0}),
            (
                "scaled_dot_product_attention",
                F.scaled_dot_product_attention,
                [drawn(2, 3, 5, 4, seed=s) for s in (1, 2, 3)],
                {"is_causal": True},
            ),
            # Windows that reach over the border, at the end alone, and not at all.
            ("max_pool2d", F.max_pool2d, [X, [3, 3], [2, 2], [1, 1]], {}),
            ("max_pool2d", F.max_pool2d, [X, [3, 3], [2, 2], [0, 0], [1, 1], True], {}),
            ("max_pool2d", F.max_pool2d, [X, [3, 2], [3, 2], [1, 1], [1, 1], True], {}),
            ("max_pool2d", F.max_pool2d, [X, [2, 2], [2, 2], [0, 0], [2, 2]], {}),
            ("max_pool2d", F.max_pool2d, [X, [3]], {}),
            ("avg_pool2d", F.avg_pool2d, [X, [3, 3], [2, 2], [1, 1]], {}),
            ("avg_pool2d", F.avg_pool2d, [X, [3, 3], [2, 2], [1, 1], False, False], {}),
            ("avg_pool2d", F.avg_pool2d, [X, [3, 3], [2, 2], [0, 0], True], {}),
            ("avg_pool2d", F.avg_pool2d, [X, [3, 3], [2, 2], [1, 1], True, True], {}),
            ("avg_pool2d", F.avg_pool2d, [X, [3, 2], [3, 2], [1, 1], True, False], {}),
            ("avg_pool2d", F.avg_pool2d, [X, [3, 3], [1, 1], [1, 1], False, True, 5], {}),
            ("avg_pool3d", F.avg_pool3d, [image(1, 2, 5, 6, 4), [1, 3, 2], [1, 2, 2], [0, 1, 0]], {}),
            ("adaptive_avg_pool2d", F.adaptive_avg_pool2d, [X, [1, 1]], {}),
            ("adaptive_avg_pool2d", F.adaptive_avg_pool2d, [X, [3, 4]], {}),
            ("adaptive_avg_pool2d", F.adaptive_avg_pool2d, [X, [4, 3]], {}),
            ("adaptive_avg_pool2d", F.adaptive_avg_pool2d, [X, [12, 8]], {}),
            ("layer_norm", F.layer_norm, [X, [9, 8], drawn(9, 8), drawn(9, 8, seed=2)], {}),
            ("group_norm", F.group_norm, [X, 2, drawn(4), drawn(4, seed=2)], {}),
            ("softmax", F.softmax, [X, 1], {}),
            ("log_softmax", F.log_softmax, [X, -1], {}),
            ("gelu", F.gelu, [X], {}),
            ("gelu", F.gelu, [X], {"approximate": "tanh"}),
            *((name, getattr(F, name), [X], {}) for name in ("relu", "silu", "hardswish", "hardsigmoid", "elu")),
            ("leaky_relu", F.leaky_relu, [X, 0.2], {}),
            ("hardtanh", F.hardtanh, [X, -0.5, 0.7], {}),
            ("clamp", torch.clamp, [X, -0.5], {}),
            *((name, getattr(torch, name), [X], {}) for name in ("sigmoid", "tanh", "erf", "sin", "exp", "abs")),
            ("add", torch.add, [X, drawn(4, 1, 8)], {"alpha": 3}),
            ("sub", torch.sub, [X, drawn(8)], {"alpha": 2}),
            ("rsub", torch.rsub, [X, 1.5], {"alpha": 2}),
            ("pow", torch.pow, [X, 2], {}),
            ("div", torch.div, [X, 3.0], {}),
            ("where", torch.where, [X > 0, X, drawn(2, 4, 9, 8)], {}),
            ("masked_fill", torch.masked_fill, [X, X > 0, 7.0], {}),
            ("mean", torch.mean, [X, [-1, -2], True], {}),
            ("sum", torch.sum, [X, [1]], {}),
            ("amax", torch.amax, [X, [2, 3]], {}),
            ("var", torch.var, [X, [1]], {"correction": 0, "keepdim": True}),
            ("cumsum", torch.cumsum, [X, 2], {}),
            ("cat", lambda *xs: torch.cat(xs, 1), [X, drawn(2, 3, 9, 8), drawn(2, 1, 9, 8)], {}),
            ("squeeze", torch.squeeze, [drawn(2, 1, 3, 1), [1, 2]], {}),
            ("expand", lambda x, size: x.expand(size), [drawn(3, 1), [2, -1, 4]], {}),
            ("select", torch.select, [X, -1, 3], {}),
            ("slice", ATEN.slice, [X, 2, 1, -2, 3], {}),
            ("constant_pad_nd", ATEN.constant_pad_nd, [X, [1, 2, -1, 3], 0.5], {}),
            ("roll", torch.roll, [X, [2, -1], [2, 3]], {}),
            ("flip", torch.flip, [X, [1, 3]], {}),
            ("repeat", lambda x, times: x.repeat(times), [X, [2, 1, 1, 3]], {}),
            ("transpose", torch.transpose, [X, 1, -1], {}),
            ("permute", torch.permute, [X, [0, 2, 3, 1]], {}),
            ("gather", torch.gather, [X, 3, torch.arange(8).flip(0).expand(2, 4, 9, 8)], {}),
            (
                "embedding",
                lambda weight, where: F.embedding(where, weight),
                [drawn(5, 3), torch.tensor([[4, 0], [4, 2]])],
                {},
            ),
        ]
    )
}


@pytest.mark.parametrize("case", CASES)
def test_an_operator_gives_torchs_values_and_gradients(case: str) -> None:
    import jax

    from engines.jax_operators import OPERATORS

    name, torch_function, arguments, options = CASES[case]
    own = [a.clone().requires_grad_(a.is_floating_point()) if isinstance(a, torch.Tensor) else a for a in arguments]
    expected = torch_function(*own, **options)
    back = drawn(*expected.shape, seed=5)
    expected.backward(back)
    where = [i for i, a in enumerate(own) if isinstance(a, torch.Tensor) and a.requires_grad]
    given = [a.numpy() if isinstance(a, torch.Tensor) else a for a in arguments]
    given = [jax.numpy.asarray(a) if isinstance(a, np.ndarray) else a for a in given]

    def ours(*floats: Any) -> Any:
        filled = list(given)
        for i, value in zip(where, floats, strict=True):
            filled[i] = value
        return OPERATORS[name](filled, 1) if name == "cat" else OPERATORS[name](*filled, **options)

    def both(floats: Any, back: Any) -> Any:
        found, pull = jax.vjp(ours, *floats)
        return found, pull(back)

    found, gradients = jax.jit(both)([given[i] for i in where], back.numpy())
    np.testing.assert_allclose(found, expected.detach(), rtol=1e-4, atol=1e-5)
    for i, gradient in zip(where, gradients, strict=True):
        np.testing.assert_allclose(gradient, own[i].grad, rtol=1e-3, atol=2e-5)


class Composed(torch.nn.Module):
    """Operators that torch says in others."""

    def __init__(self) -> None:
        super().__init__()
        self.same = torch.nn.Conv2d(4, 6, (4, 3), padding="same")
        self.reflecting = torch.nn.Conv2d(6, 8, 3, padding=1, padding_mode="reflect")
        self.dropout = torch.nn.Dropout(0.5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        parts = self.dropout(self.reflecting(self.same(x))).chunk(3, 1)  # Of 3, 3 and 2.
        first, second = torch.cat(parts[::-1], 1).split([1, 7], 1)
        return torch.cat([second, first], 1).to(torch.float32).flatten(2).unflatten(1, (2, 4))


def test_what_torch_says_in_other_operators_is_translated_but_dropout() -> None:
    import jax

    from engines.jax_xla import trace

    model = Composed()
    program = trace(model.eval(), [X.numpy()])
    weights = {name: weight.detach().numpy() for name, weight in program.weights.items()}
    (found,), _ = jax.jit(lambda *given: program(*given))(weights, {}, [X.numpy()])
    np.testing.assert_allclose(found, model(X).detach(), rtol=1e-4, atol=1e-5)
    with pytest.raises(Unsupported, match="not translated to JAX: native_dropout"):
        trace(model.train(), [X.numpy()])


@pytest.mark.parametrize("mode", [None, "floor", "trunc"])
def test_division_rounds_as_torchs(mode: str | None) -> None:
    import jax

    from engines.jax_operators import OPERATORS

    x, y = torch.tensor([7.0, -7.0, 3.5, -0.5]), torch.tensor([2.0, 2.0, -1.0, 3.0])
    found = OPERATORS["div"](jax.numpy.asarray(x.numpy()), jax.numpy.asarray(y.numpy()), rounding_mode=mode)
    np.testing.assert_allclose(found, torch.div(x, y, rounding_mode=mode))


@pytest.mark.parametrize("training", [False, True])
def test_batch_normalization_has_torchs_values_gradients_and_statistics(training: bool) -> None:
    import jax

    from engines.jax_operators import OPERATORS

    weight, bias, mean, var = drawn(4), drawn(4, seed=2), drawn(4, seed=3), drawn(4, seed=4).abs()
    own = [t.clone().requires_grad_() for t in (X, weight, bias)]
    new = [mean.clone(), var.clone()]
    expected = F.batch_norm(own[0], *new, *own[1:], training, 0.1, 1e-5)
    back = drawn(*X.shape, seed=5)
    expected.backward(back)
    statistics = [jax.numpy.asarray(t.numpy()) for t in (mean, var)]

    def ours(x: Any, weight: Any, bias: Any) -> Any:
        out, _, _, *changed = OPERATORS["_native_batch_norm_legit_functional"](
            x, weight, bias, *statistics, training, 0.1, 1e-5
        )
        return out, changed

    def all_of(back: Any, *given: Any) -> Any:
        found, pull, changed = jax.vjp(ours, *given, has_aux=True)
        return found, pull(back), changed

    found, gradients, changed = jax.jit(all_of)(back.numpy(), *(t.detach().numpy() for t in own))
    np.testing.assert_allclose(found, expected.detach(), rtol=1e-4, atol=1e-5)
    for gradient, tensor in zip(gradients, own, strict=True):
        np.testing.assert_allclose(gradient, tensor.grad, rtol=1e-3, atol=2e-5)
    for ours_after, torchs in zip(changed, new, strict=True):
        np.testing.assert_allclose(ours_after, torchs, rtol=1e-5, atol=1e-6)
