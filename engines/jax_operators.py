"""Compute each ATen operator in JAX, torch's arguments in, torch's results out; read what XLA compiled of it.

torch decomposes other operators into these; engines/jax_xla.py names any that remain.
Dimensions are in torch's order (NCHW); XLA chooses the memory layout.
"""

from __future__ import annotations

import operator
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
from jax import lax
from torch._decomp import get_decompositions
from torch.nn import functional

from engines.base import Unsupported

Array = Any
"""jax.Array, which type checks without JAX do not know."""
Ints = Sequence[int]


def dtype_of(dtype: torch.dtype) -> Any:
    """Return JAX's type, which has 32 bits where 64 are not switched on."""
    return jax.dtypes.canonicalize_dtype(str(dtype).removeprefix("torch."))


def convolution(x: Array, weight: Array, bias: Array | None, *geometry: Any) -> Array:
    stride, padding, dilation, transposed, _, groups = geometry
    spatial = x.ndim - 2
    stride, padding, dilation = (_each(value, spatial) for value in (stride, padding, dilation))
    pads = [(p, p) for p in padding]
    if transposed:
        raise Unsupported("not translated to JAX: transposed convolution")
    out = lax.conv_general_dilated(x, weight, stride, pads, None, dilation, feature_group_count=groups)
    return _scaled(out, None, bias)


def max_pool(
    x: Array, kernel: Ints, stride: Ints = (), padding: Ints = (0,), dilation: Ints = (1,), *flags: bool
) -> Array:
    if set(dilation) != {1}:
        raise Unsupported("not translated to JAX: max_pool with dilation")
    lowest = -jnp.inf if jnp.issubdtype(x.dtype, jnp.floating) else jnp.iinfo(x.dtype).min
    return lax.reduce_window(x, np.array(lowest, x.dtype), lax.max, *_windows(x, kernel, stride, padding, *flags))


def average_pool(
    x: Array, kernel: Ints, stride: Ints = (), padding: Ints = (0,), ceil_mode: bool = False, *flags: bool
) -> Array:
    total = lax.reduce_window(x, np.zeros((), x.dtype), lax.add, *_windows(x, kernel, stride, padding, ceil_mode))
    # By torch, since XLA would sum windows of ones while it compiles, for minutes.
    pool: Any = functional.avg_pool2d if x.ndim == 4 else functional.avg_pool3d
    of_ones = partial(pool, torch.ones(1, 1, *x.shape[2:]), kernel, stride or None, padding, ceil_mode, *flags)
    return total / (of_ones(divisor_override=1) / of_ones()).numpy().astype(x.dtype)


def _windows(
    x: Array, kernel: Ints, stride: Ints, padding: Ints, ceil_mode: bool = False
) -> tuple[Ints, Ints, list[tuple[int, int]]]:
    """Return window, stride and padding of all dimensions; sizes rounded up pad the end."""
    spatial = x.ndim - 2
    pool = getattr(functional, f"max_pool{spatial}d")
    like = torch.empty(1, 1, *x.shape[2:], device="meta")
    counts = pool(like, kernel, stride or None, padding, ceil_mode=ceil_mode).shape[2:]
    kernel, padding = _each(kernel, spatial), _each(padding, spatial)
    stride = _each(stride, spatial) if len(stride) else kernel
    sizes = zip(x.shape[2:], counts, kernel, stride, padding, strict=True)
    pads = [(p, max((count - 1) * s + k - n - p, p)) for n, count, k, s, p in sizes]
    return (1, 1, *kernel), (1, 1, *stride), [(0, 0), (0, 0), *pads]


def batch_norm(
    x: Array, weight: Array | None, bias: Array | None, mean: Array, var: Array, training: bool, *factors: float
) -> tuple[Array | None, ...]:
    """Return the output, two results for torch's own backward pass, and the new statistics.

    Computes in float32 at least, as torch's kernels do.
    """
    momentum, eps = factors
    exact, old = x.astype(jnp.promote_types(x.dtype, jnp.float32)), (mean, var)
    if training:
        axes = (0, *range(2, x.ndim))
        mean, var = exact.mean(axes), exact.var(axes)
    scale = lax.rsqrt(var.astype(exact.dtype) + eps)
    out = _scaled((exact - _channels(mean, x)) * _channels(scale, x), weight, bias).astype(x.dtype)
    if not training:
        return out, None, None, *old
    items = x.size // x.shape[1]
    new = mean, var * (items / max(items - 1, 1))
    return out, None, None, *((1 - momentum) * o + momentum * s.astype(o.dtype) for o, s in zip(old, new, strict=True))


def group_norm(
    x: Array, groups: int, weight: Array | None = None, bias: Array | None = None, eps: float = 1e-5, *_: bool
) -> Array:
    grouped = x.astype(jnp.promote_types(x.dtype, jnp.float32)).reshape(len(x), groups, -1)
    mean, var = grouped.mean(-1, keepdims=True), grouped.var(-1, keepdims=True)
    return _scaled(((grouped - mean) * lax.rsqrt(var + eps)).reshape(x.shape), weight, bias).astype(x.dtype)


def _scaled(x: Array, weight: Array | None, bias: Array | None) -> Array:
    x = x if weight is None else x * _channels(weight, x)
    return x if bias is None else x + _channels(bias, x)


def _channels(values: Array, x: Array) -> Array:
    return values.reshape(-1, *[1] * (x.ndim - 2))


def product_and_bias(bias: Array, x: Array, y: Array, beta: float = 1, alpha: float = 1) -> Array:
    """Multiply in the operands' type, which torch's decomposition would make float32 of 16 bits."""
    product = x @ y if alpha == 1 else alpha * (x @ y)
    return product if beta == 0 else product + (bias if beta == 1 else beta * bias)


def cast(x: Array, dtype: torch.dtype | None = None, **_: Any) -> Array:
    return x if dtype is None else x.astype(dtype_of(dtype))


def divide(x: Array, y: Any, rounding_mode: str | None = None) -> Array:
    if rounding_mode == "floor" and jnp.issubdtype(jnp.result_type(x, y), jnp.integer):
        return jnp.floor_divide(x, y)  # A quotient in float32 loses digits.
    out = x / y
    return out if rounding_mode is None else getattr(jnp, rounding_mode)(out).astype(jnp.result_type(x, y))


def _reduction(reduce: Callable[..., Array]) -> Callable[..., Array]:
    def reduced(x: Array, dim: Any = None, keepdim: bool = False, dtype: Any = None) -> Array:
        axes = None if dim is None or dim == [] else tuple(dim) if isinstance(dim, Sequence) else dim
        return reduce(x if dtype is None else x.astype(dtype_of(dtype)), axis=axes, keepdims=keepdim)

    return reduced


def variance_and_mean(x: Array, dim: Any = None, correction: float | None = 1, keepdim: bool = False) -> list[Array]:
    axes, lost = None if dim is None else tuple(dim), 1 if correction is None else correction
    return [jnp.var(x, axes, ddof=lost, keepdims=keepdim), x.mean(axes, keepdims=keepdim)]


def squeeze(x: Array, dim: Any = None) -> Array:
    dims = range(x.ndim) if dim is None else dim if isinstance(dim, Sequence) else [dim]
    return jnp.squeeze(x, tuple(d for d in dims if x.shape[d] == 1))


def expand(x: Array, size: Ints, implicit: bool = False) -> Array:
    aligned = (1,) * (len(size) - x.ndim) + x.shape
    return jnp.broadcast_to(x, [n if s == -1 else s for n, s in zip(aligned, size, strict=True)])


def pad(x: Array, pad: Ints, value: float = 0) -> Array:
    """Torch names the last dimension's sides first; negative ones cut off."""
    sides = [(pad[i], pad[i + 1], 0) for i in range(0, len(pad), 2)][::-1]
    return lax.pad(x, jnp.array(value, x.dtype), [(0, 0, 0)] * (x.ndim - len(sides)) + sides)


def _along(x: Array, dim: int, where: slice | int) -> Any:
    return (slice(None),) * (dim % x.ndim) + (where,)


def _each(value: Ints | int, count: int) -> Ints:
    values = [value] if isinstance(value, int) else list(value)
    return values * count if len(values) == 1 else values


OPERATORS: dict[str, Callable[..., Any]] = {
    "convolution": convolution,
    **dict.fromkeys(("max_pool1d", "max_pool2d", "max_pool3d"), max_pool),
    **dict.fromkeys(("avg_pool2d", "avg_pool3d"), average_pool),
    "_native_batch_norm_legit_no_training": lambda *args: batch_norm(*args[:5], False, *args[5:]),
    "_native_batch_norm_legit_functional": batch_norm,
    "div": divide,
    "var_mean": variance_and_mean,
    "var": lambda *args, **kwargs: variance_and_mean(*args, **kwargs)[0],
    "group_norm": group_norm,
    "roll": lambda x, shifts, dims=(): jnp.roll(x, tuple(shifts), tuple(dims)) if dims else jnp.roll(x, shifts[0]),
    "squeeze": squeeze,
    "expand": expand,
    "constant_pad_nd": pad,
    **dict.fromkeys(("mm", "bmm", "matmul"), operator.matmul),
    **dict.fromkeys(("addmm", "baddbmm"), product_and_bias),
    **{name: getattr(operator, name) for name in ("eq", "ne", "lt", "le", "gt", "ge", "mul", "neg")},
    **{
        name: getattr(jnp, name)
        for name in (
            *("exp", "expm1", "log", "log1p", "sqrt", "reciprocal", "sin", "cos", "tanh", "abs", "floor", "round"),
            *("where", "minimum", "maximum", "logical_not", "logical_and"),
        )
    },
    "erf": lax.erf,
    "rsqrt": lax.rsqrt,
    "sigmoid": jax.nn.sigmoid,
    "relu": lambda x: jnp.maximum(x, 0),
    "clamp": lambda x, min=None, max=None: jnp.clip(x, min, max),
    **dict.fromkeys(("_to_copy", "to", "convert_element_type"), cast),
    "add": lambda x, y, alpha=1: x + (y if alpha == 1 else alpha * y),
    "sub": lambda x, y, alpha=1: x - (y if alpha == 1 else alpha * y),
    "pow": lambda x, y: x**y,
    "bitwise_and": operator.and_,
    "bitwise_not": operator.invert,
    "bitwise_or": operator.or_,
    **{name: _reduction(getattr(jnp, name)) for name in ("mean", "sum", "amax", "amin", "any", "argmax")},
    "cumsum": lambda x, dim, dtype=None: jnp.cumsum(x, dim),
    **dict.fromkeys(("view", "reshape", "_unsafe_view"), lambda x, shape: x.reshape(shape)),
    "slice": lambda x, dim=0, start=None, end=None, step=1: x[_along(x, dim, slice(start, end, step))],
    "select": lambda x, dim, index: x[_along(x, dim, index)],
    "split_with_sizes": lambda x, sizes, dim=0: jnp.split(x, np.cumsum(sizes[:-1]), dim),
    "index": lambda x, indices: x[tuple(slice(None) if i is None else i for i in indices)],
    "permute": jnp.transpose,
    "transpose": jnp.swapaxes,
    "t": lambda x: x.T,
    "unsqueeze": jnp.expand_dims,
    "cat": lambda xs, dim=0: jnp.concatenate(xs, dim),
    "unbind": lambda x, dim=0: list(jnp.moveaxis(x, dim, 0)),
    "flip": jnp.flip,
    "repeat": jnp.tile,
    "embedding": lambda weight, indices, *_: weight[indices],
    "gather": lambda x, dim, where: jnp.take_along_axis(x, where, dim),
    "arange": lambda *bounds, dtype=None, **_: jnp.arange(*bounds, dtype=dtype and dtype_of(dtype)),
    "scalar_tensor": lambda value, dtype=None, **_: jnp.array(value, dtype and dtype_of(dtype)),
    "full_like": lambda x, value, **_: jnp.full_like(x, value),
    "full": lambda size, value, dtype=None, **_: jnp.full(size, value, dtype and dtype_of(dtype)),
    **dict.fromkeys(("clone", "detach", "alias", "lift_fresh_copy"), lambda x, **_: x),
    "_assert_tensor_metadata": lambda *_, **__: None,  # As it was when it was traced.
    "getitem": operator.getitem,
}
"""Implementations by ATen operator, for all its overloads."""
_ATEN = torch.ops.aten
DECOMPOSED = get_decompositions(
    [
        *(_ATEN.native_layer_norm, _ATEN._adaptive_avg_pool2d),
        *(_ATEN.gelu, _ATEN.silu, _ATEN.elu, _ATEN.leaky_relu, _ATEN.hardswish, _ATEN.hardsigmoid, _ATEN.hardtanh),
        *(_ATEN._softmax, _ATEN._log_softmax, _ATEN.rsub, _ATEN.masked_fill, _ATEN.stack),
    ]
)
"""Operators to decompose beyond torch.export's default."""

_INSTRUCTION = re.compile(r"^\s*(?:ROOT )?%?([\w.-]+) = \(?(\w+)\[.*?[\])}] ([\w-]+)\((.*)")
_OPERAND = re.compile(r"%?([\w.-]+)[,)]")
_TARGET = re.compile(r'custom_call_target="([^"]+)"')
_PRECISION = re.compile(r"operand_precision=\{(\w+)|\"operand_precision\":\[\"(\w+)")
_LIBRARIES = re.compile(r"cudnn\$conv|cublas|onednn\$(?:matmul|conv)|cudnn\$norm|Dot|dot|Conv|conv")
_TYPES = {"f32": "float32", "f16": "float16", "bf16": "bfloat16", "f64": "float64", "s8": "int8"}


@dataclass
class Products:
    """The convolutions and matrix products of a compiled program."""

    types: Counter[str] = field(default_factory=Counter)
    """Counts by the first operand's type."""
    below_float32: int = 0
    """Number of float32 ones that may run at lower precision, such as TF32 on a GPU."""


def products(text: str) -> Products:
    """Count the products in the text of `Compiled.as_text`, where operands precede their instruction."""
    counted, types = Products(), dict[str, str]()
    for line in text.splitlines():
        match = _INSTRUCTION.match(line)
        if match is None:
            continue
        name, of_result, kind, rest = match.groups()
        types[name] = of_result
        target = _TARGET.search(rest)
        if kind == "custom-call":
            kind = "product" if target is not None and _LIBRARIES.search(target[1]) else ""
        if kind not in ("product", "convolution", "dot"):
            continue
        operand = _OPERAND.search(rest)
        of_operand = types.get(operand[1] if operand else "", of_result)
        counted.types[_TYPES.get(of_operand, of_operand)] += 1
        precision = _PRECISION.search(rest)
        highest = precision is not None and "highest" in (precision[1] or precision[2]).lower()
        counted.below_float32 += of_operand == "f32" and not highest and "algorithm=dot_f32_f32_f32" not in rest
    return counted
