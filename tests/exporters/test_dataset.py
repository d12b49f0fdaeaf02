"""A user's items come from a file, a folder of images or a function, and calibrate int8 apart from what is scored."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader, TensorDataset

from exporters.dataset import evaluated, items_in, places, with_dataset
from exporters.inputs import seeded_inputs, stored
from exporters.source import ModelError, ModelSource, TensorSpec

IMAGE = TensorSpec("x", ("batch", 2), "float32")
TWO = (TensorSpec("ids", (5, "batch"), "int64"), TensorSpec("mask", ("batch", 5), "float32", place=1))
X, Y = np.arange(48, dtype=np.float32).reshape(24, 2), np.arange(24)


def of(*specs: TensorSpec, data: Any, metric: str | None = None) -> tuple[list[Any], Any]:
    """Return all evaluated items by input, and their labels."""
    filled, labels = with_dataset(ModelSource("mine", data=str(data), metric=metric), specs)
    count = evaluated(24)
    return seeded_inputs(filled, count), stored(labels)[:count] if labels else None


def items() -> Iterator[Any]:
    return iter(TensorDataset(torch.from_numpy(X), torch.from_numpy(Y)))


def batches() -> DataLoader[Any]:
    return DataLoader(TensorDataset(torch.from_numpy(X), torch.from_numpy(Y)), batch_size=5)


def by_name() -> Iterator[Any]:
    for n in range(24):
        yield {"mask": np.full(5, n, np.float32), "ids": np.full(5, n)}, n


def test_a_tenth_of_the_items_calibrates_and_is_never_scored() -> None:
    order = places(24)
    assert sorted(order) == list(range(24)) and evaluated(24) == 22
    assert set(order[22:]) == {0, 12}
    assert evaluated(9) == 9 and evaluated(100_000) == 100_000 - 64


@pytest.mark.parametrize("data", ["file", f"{__name__}:items", f"{__name__}:batches"])
def test_file_dataset_and_loader_give_the_same_items(data: str, tmp_path: Path) -> None:
    np.savez(tmp_path / "data.npz", x=X, labels=Y)
    (x,), labels = of(IMAGE, data=tmp_path / "data.npz" if data == "file" else data)
    scored = places(24)[:22]
    assert np.array_equal(x, X[scored]) and np.array_equal(labels, scored)


@pytest.mark.parametrize("data", ["file", f"{__name__}:by_name"])
def test_inputs_by_name_keep_their_axis_of_items(data: str, tmp_path: Path) -> None:
    ids = np.tile(np.arange(24), (5, 1))  # As the model takes them: the batch comes second.
    np.savez(tmp_path / "data.npz", ids=ids, mask=ids.T.astype(np.float32), labels=Y)
    (first, second), labels = of(*TWO, data=tmp_path / "data.npz" if data == "file" else data)
    assert first.shape == (5, 22) and second.shape == (22, 5)
    assert np.array_equal(first[0], labels) and np.array_equal(second[:, 0], labels)


def test_images_are_read_by_class_resized_and_normalized(tmp_path: Path) -> None:
    for number, name in enumerate(("cat", "dog")):
        (tmp_path / name / "more").mkdir(parents=True)
        for n in range(12):
            pixels = np.full((10, 14, 3), 100 * number, np.uint8)
            Image.fromarray(pixels).save(tmp_path / name / "more" / f"{n:02}.png")
    assert items_in(str(tmp_path)) == 24
    (x,), labels = of(TensorSpec("x", ("batch", 3, 8, 6), "float32"), data=tmp_path)
    assert x.shape == (22, 3, 8, 6) and labels.tolist() == [0] * 11 + [1] * 11
    expected = (np.array([0.0, 100 / 255])[:, None] - (0.485, 0.456, 0.406)) / (0.229, 0.224, 0.225)
    assert np.allclose(x[[0, -1], :, 4, 3], expected, atol=1e-6)


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"x": X, "labels": Y[:3]}, "24 of x, 3 of labels"),
        ({"x": X[:, :1], "labels": Y}, r"float32 of shape \(1,\), the model takes \(2,\)"),
        ({"x": X, "z": X, "labels": Y}, "no input 'z'"),
        ({"x": np.full_like(X, np.nan), "labels": Y}, "NaN"),
        ({"labels": Y}, "no array for input 'x'"),
        ({"x": X[:0], "labels": Y[:0]}, "at least one"),
        ({"x": X.astype(str), "labels": Y}, "the model takes float32"),
    ],
)
def test_misfits_are_refused(arrays: dict[str, Any], message: str, tmp_path: Path) -> None:
    np.savez(tmp_path / "data.npz", **arrays)
    with pytest.raises(ModelError, match=message):
        of(IMAGE, data=tmp_path / "data.npz")


def test_a_metric_needs_labels_and_a_file_must_be_one(tmp_path: Path) -> None:
    np.savez(tmp_path / "data.npz", anything=X)
    assert of(IMAGE, data=tmp_path / "data.npz")[1] is None
    with pytest.raises(ModelError, match="has no labels"):
        of(IMAGE, data=tmp_path / "data.npz", metric="top1")
    (tmp_path / "data.npz").write_bytes(b"PK damaged")
    with pytest.raises(ModelError, match=r"reading .*data.npz failed"):
        of(IMAGE, data=tmp_path / "data.npz")
    with pytest.raises(ModelError, match="reading nowhere:function failed"):
        of(IMAGE, data="nowhere:function")
