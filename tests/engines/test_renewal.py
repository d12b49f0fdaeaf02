"""New values of a module's inputs: of the same kind, never the same twice, and other ones in every process."""

from __future__ import annotations

import pytest
import torch

from engines.renewal import Renewal
from exporters.inputs import TensorSpec

ROWS, BATCH, CALLS = 12, 4, 300
ONE_ITEM = torch.arange(1, ROWS + 1).repeat(BATCH, 1)


def drawn(dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(BATCH, ROWS).to(dtype)


def spec(dtype: str = "float32", shape: tuple[int | str, ...] = ("batch", ROWS), **more: object) -> TensorSpec:
    return TensorSpec("x", shape, dtype, **more)


def renewed(*inputs: tuple[TensorSpec, torch.Tensor], block: int = 1) -> list[list[torch.Tensor]]:
    renewal, seen = Renewal([one for one, _ in inputs], [tensor.clone() for _, tensor in inputs]), []
    for _ in range(CALLS // block):
        renewal.renew(block)
        seen += [[tensor.clone() for tensor in next(renewal.turn)[0]] for _ in range(block)]
    return seen


def share_distinct(tensors: list[torch.Tensor]) -> float:
    return len({tensor.float().numpy().tobytes() for tensor in tensors}) / len(tensors)


@pytest.mark.parametrize("block", [1, 5])
@pytest.mark.parametrize(
    ("one", "tensor", "low", "high"),
    [
        (spec(), drawn(), -9.0, 9.0),
        (spec(range=(2.0, 4.0)), 2 + 2 * torch.rand(BATCH, ROWS), 2.0, 4.0),
        (spec("int64", range=(3, 9)), torch.randint(3, 9, (BATCH, ROWS)), 3, 8),
        (spec("bool"), torch.ones(BATCH, ROWS).bool(), 0, 1),
        (spec(data="own"), torch.ones(BATCH, ROWS), 0.9, 1.0),
        (spec("bfloat16", data="own"), torch.rand(2, 2000).bfloat16(), 0.0, 1.0),
        (spec("int64", data="own"), ONE_ITEM, 1, ROWS),
        (spec(), torch.randn(2, 5000), -9.0, 9.0),
        (spec(), torch.randn(2, 40_000), -9.0, 9.0),
        (spec(), torch.randn(2, 3, 40, 50).to(memory_format=torch.channels_last), -9.0, 9.0),
        (spec("float32", (1000,), data="own"), torch.rand(1000), 0.0, 1.0),
    ],
)
def test_every_call_has_new_values_of_the_same_kind(one, tensor, low, high, block):
    found = [x for (x,) in renewed((one, tensor), block=block)]
    assert share_distinct(found) > 0.95  # Factors meet by chance: 84,000 of a float lie within half a percent.
    if one.dtype == "float32":
        assert share_distinct([x.flatten()[:3] for x in found]) > 0.95
        assert share_distinct([x.flatten()[-3:] for x in found]) > 0.95
        assert share_distinct([x[-1] for x in found]) > 0.95
    assert all(low <= x.min() and x.max() <= high and x.dtype == tensor.dtype for x in found)


@pytest.mark.parametrize(
    ("dtype", "tensor"),
    [("float32", torch.ones(BATCH, ROWS)), ("float32", torch.ones(BATCH, 5000)), ("int64", ONE_ITEM)],
)
def test_repeated_items_of_the_user_are_no_equal_rows_in_any_call(dtype, tensor):
    rows = [row.numpy().tobytes() for (x,) in renewed((spec(dtype, data="own"), tensor)) for row in x]
    assert len(set(rows)) >= 0.99 * len(rows)


def test_integers_of_the_user_keep_their_values_and_their_masks_places():
    ids, mask = spec("int64", data="ids"), spec("bool", data="mask")
    for x, is_kept in renewed((ids, ONE_ITEM), (mask, ONE_ITEM > 3)):
        assert torch.equal(x.sort().values, ONE_ITEM)
        assert torch.equal(is_kept, x > 3)


def test_masks_sizes_and_what_may_be_a_box_stay():
    inputs = [
        (spec("int64", is_mask=True), torch.ones(BATCH, ROWS, dtype=torch.int64)),
        (spec("int64", ("batch",), data="sizes"), torch.arange(BATCH)),
        (spec("int64", ("batch", 4), data="boxes"), torch.arange(4 * BATCH).reshape(BATCH, 4)),
        (spec("int64", (2, 30), data="edges"), torch.arange(60).reshape(2, 30)),
    ]
    for call in renewed(*inputs):
        assert all(torch.equal(x, tensor) for x, (_, tensor) in zip(call, inputs, strict=True))


@pytest.mark.parametrize("one", [spec(), spec(data="own"), spec("int64", range=(0, 9)), spec("int64", data="own")])
def test_every_process_draws_other_values_and_leaves_torchs_generator_alone(one):
    tensor, before = (ONE_ITEM if one.dtype == "int64" else drawn()), torch.get_rng_state()
    first, second = ({x.numpy().tobytes() for (x,) in renewed((one, tensor))} for _ in range(2))
    assert not first & second
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("size", [3, 2**18])
def test_no_call_has_the_tensor_of_the_one_before_and_its_version_moves(size):
    renewal, last, keys = Renewal([spec()], [torch.ones(BATCH, size)]), None, set[tuple[int, int]]()
    for _ in range(CALLS):
        renewal.renew(1)
        ((x,), _) = next(renewal.turn)
        assert x is not last
        last = x
        keys.add((x.data_ptr(), x._version))
    assert len(keys) == CALLS
    places = {tensor.data_ptr() for (tensor,) in renewal.copies}
    renewal.move()
    ((x,), _) = next(renewal.turn)
    assert x.data_ptr() not in places


def test_moved_floats_of_the_user_are_far_from_their_own():
    for size in (ROWS, 5000):
        renewal = Renewal([spec(data="own")], [torch.ones(BATCH, size)])
        renewal.renew(1)
        renewal.move()
        ((x,), _) = next(renewal.turn)
        assert (abs(x - 0.1) < 0.01).float().mean() > 0.98
