"""A user's items come from a file, a folder of images or a function, and calibrate int8 apart from what is scored."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader, TensorDataset

from exporters import dataset
from exporters.dataset import item_order, labels_in, scored_count, with_dataset
from exporters.inputs import seeded_inputs, stored
from exporters.source import ModelError, ModelSource, TensorSpec

IMAGE = TensorSpec("x", ("batch", 2), "float32")
TWO = (TensorSpec("ids", (5, "batch"), "int64"), TensorSpec("mask", ("batch", 5), "float32", place=1))
X, Y = np.arange(48, dtype=np.float32).reshape(24, 2), np.arange(24)


def of(*specs: TensorSpec, data: Any, metric: str | None = None) -> tuple[list[Any], Any]:
    """Return all evaluated items by input, and their labels."""
    filled, labels = with_dataset(ModelSource("mine", data=str(data), metric=metric), specs)
    count = scored_count(24)
    return seeded_inputs(filled, count), stored(labels)[:count] if labels else None


def items() -> Iterator[Any]:
    return iter(TensorDataset(torch.from_numpy(X), torch.from_numpy(Y)))


def batches() -> DataLoader[Any]:
    return DataLoader(TensorDataset(torch.from_numpy(X), torch.from_numpy(Y)), batch_size=5)


def shuffled() -> DataLoader[Any]:
    return DataLoader(TensorDataset(torch.from_numpy(X), torch.from_numpy(Y)), batch_size=5, shuffle=True)


def by_name() -> Iterator[Any]:
    for n in range(24):
        yield {"mask": np.full(5, n, np.float32), "ids": np.full(5, n)}, n


def test_a_random_tenth_of_the_items_calibrates_and_is_never_scored():
    assert sorted(item_order(24)) == list(range(24)) and scored_count(24) == 22
    assert scored_count(9) == 9 and scored_count(100_000) == 100_000 - 64
    # Ten classes in turn, as sets of digits have them: a stride of ten would calibrate on one of them.
    assert len({*(item_order(600)[scored_count(600) :] % 10)}) == 10


@pytest.mark.parametrize("data", ["file", f"{__name__}:items", f"{__name__}:batches"])
def test_file_dataset_and_loader_give_the_same_items(data, tmp_path):
    np.savez(tmp_path / "data.npz", x=X, labels=Y)
    (x,), labels = of(IMAGE, data=tmp_path / "data.npz" if data == "file" else data)
    scored = item_order(24)[:22]
    assert np.array_equal(x, X[scored]) and np.array_equal(labels, scored)


def test_a_loader_shuffles_alike_in_every_process():
    first, second = ((torch.seed(), of(IMAGE, data=f"{__name__}:shuffled"))[1] for _ in range(2))
    assert np.array_equal(first[0][0], second[0][0]) and np.array_equal(first[1], second[1])
    assert np.array_equal(first[0][0], X[first[1]]) and not np.array_equal(first[1], item_order(24)[:22])


@pytest.mark.parametrize("data", ["file", f"{__name__}:by_name"])
def test_inputs_by_name_keep_their_axis_of_items(data, tmp_path):
    ids = np.tile(np.arange(24), (5, 1))  # As the model takes them: the batch comes second.
    np.savez(tmp_path / "data.npz", ids=ids, mask=ids.T.astype(np.float32), labels=Y)
    (first, second), labels = of(*TWO, data=tmp_path / "data.npz" if data == "file" else data)
    assert first.shape == (5, 22) and second.shape == (22, 5)
    assert np.array_equal(first[0], labels) and np.array_equal(second[:, 0], labels)


def test_images_are_read_by_class_resized_and_normalized(tmp_path):
    for number, name in enumerate(("cat", "dog")):
        (tmp_path / name / "more").mkdir(parents=True)
        for n in range(12):
            pixels = np.full((10, 14, 3), 100 * number, np.uint8)
            Image.fromarray(pixels).save(tmp_path / name / "more" / f"{n:02}.png")
    for stray in (".checkpoints", "bird"):  # Neither a hidden folder nor an empty one is a class.
        (tmp_path / stray).mkdir()
    assert labels_in(str(tmp_path)) == 24
    (x,), labels = of(TensorSpec("x", ("batch", 3, 8, 6), "float32"), data=tmp_path)
    assert x.shape == (22, 3, 8, 6) and {*labels} == {0, 1}
    expected = (labels[:, None] * 100 / 255 - (0.485, 0.456, 0.406)) / (0.229, 0.224, 0.225)
    assert np.allclose(x[:, :, 4, 3], expected, atol=1e-6)


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"x": X, "labels": Y[:3]}, "24 of x, 3 of labels"),
        ({"x": X[:, :1], "labels": Y}, r"float32 of shape \(1,\), the model takes \(2,\); `shapes` sets sizes"),
        ({"x": X, "z": X, "labels": Y}, "has x, z, labels; give arrays x, labels"),
        ({"x": np.where(np.arange(48).reshape(24, 2) == 11, np.nan, X), "labels": Y}, "item 5 of input 'x' holds NaN"),
        ({"x": X, "labels": Y.astype(str)}, "such as a class's number, not <U"),
        ({"x": X, "labels": np.where(Y == 7, -100, Y)}, "item 7 has no label but -100"),
        ({"x": X, "labels": np.full(24, np.nan)}, "finite numbers"),
        ({"x": X, "labels": np.int64(3)}, "0 of labels"),
        ({"labels": Y}, "has labels; give arrays x, labels"),
        ({"y": X, "z": X}, "has y, z; give arrays x, labels"),
        ({"x": X[:0], "labels": Y[:0]}, "at least one"),
        ({"x": X.astype(str), "labels": Y}, "the model takes float32"),
        ({"x": -X.astype(np.int64), "labels": Y}, "values that uint8 does not hold"),
        ({"x": 1e5 * X, "labels": Y}, "values that float16 does not hold"),
    ],
)
def test_misfits_are_refused(arrays, message, tmp_path):
    np.savez(tmp_path / "data.npz", **arrays)
    dtype = next((kind for kind in ("uint8", "float16") if kind in message), IMAGE.dtype)
    with pytest.raises(ModelError, match=message):
        of(replace(IMAGE, dtype=dtype), data=tmp_path / "data.npz")


def test_a_metric_needs_labels_and_a_file_must_be_one(tmp_path):
    np.savez(tmp_path / "data.npz", anything=X)
    assert of(IMAGE, data=tmp_path / "data.npz")[1] is None and labels_in(str(tmp_path / "data.npz")) == 0
    with pytest.raises(ModelError, match="has no labels"):
        of(IMAGE, data=tmp_path / "data.npz", metric="top1")
    (tmp_path / "data.npz").write_bytes(b"PK damaged")
    with pytest.raises(ModelError, match=r"reading .*data.npz failed"):
        of(IMAGE, data=tmp_path / "data.npz")
    with pytest.raises(ModelError, match="reading nowhere:function failed"):
        of(IMAGE, data="nowhere:function")


def triples() -> Iterator[Any]:
    return iter([(X[0], 0, "path")])


def halves() -> Iterator[Any]:
    return iter([{"x": torch.ones(2, dtype=torch.bfloat16, requires_grad=True), "labels": 1}] * 24)


def texts() -> Iterator[Any]:
    return iter([(np.zeros(3), 0), (np.zeros(5), 1)])


def others() -> Iterator[Any]:
    return iter([({"z": X[0]}, 0)])


def test_a_function_says_what_it_should_yield():
    with pytest.raises(ModelError, match=r"3 inputs; yield \(inputs, labels\), with inputs x"):
        of(IMAGE, data=f"{__name__}:triples")
    with pytest.raises(ModelError, match="lacks input 'x'; it has z"):
        of(IMAGE, data=f"{__name__}:others")
    with pytest.raises(ModelError, match="yielded no items"):
        of(IMAGE, data="builtins:list")
    with pytest.raises(ModelError, match=r"items of ids differ in shape, like \(3,\) and \(5,\); pad all to one"):
        of(replace(IMAGE, name="ids", shape=("batch", 5)), data=f"{__name__}:texts")
    (x,), labels = of(IMAGE, data=f"{__name__}:halves")
    assert x.shape == (22, 2) and labels.tolist() == [1] * 22
    assert labels_in(f"{__name__}:halves") is None


def test_large_data_are_refused_before_they_are_read(tmp_path, monkeypatch):
    monkeypatch.setattr(dataset, "MOST_BYTES", 100)
    np.savez_compressed(tmp_path / "data.npz", x=X, labels=Y)
    for data in (tmp_path / "data.npz", f"{__name__}:items"):
        with pytest.raises(ModelError, match="give fewer items"):
            of(IMAGE, data=data)
    assert labels_in(str(tmp_path / "data.npz")) is None
