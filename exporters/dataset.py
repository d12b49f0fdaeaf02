"""Read a user's items, inputs and labels, and put them into the cache; imports no torch."""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from exporters.errors import nearest
from exporters.inputs import item_axes, items_first, numpy_dtype, store
from exporters.source import BATCH, ModelSource, TensorSpec

LABELS = "labels"
MOST_BYTES = 2**31
"""Most bytes of a dataset's inputs; further items are not read."""
MOST_CALIBRATING = 64
"""Most items that calibrate int8, at most a tenth of all."""
_MEAN, _DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
"""ImageNet's, by channel: https://docs.pytorch.org/vision/stable/models.html"""
_SHORTER_SIDE = 256 / 224
"""Shorter side of an image before its center is cropped, as a multiple of the crop's."""
_IMAGES = (".bmp", ".jpeg", ".jpg", ".png", ".webp")
Inputs = Mapping[str, NDArray[Any]]
_FORMS = "DATA.npz, a folder of images with a folder a class, or package.module:function"


def is_function(word: str) -> bool:
    """Tell the name of a function from a path."""
    return ":" in word and not Path(word).exists()


def items_in(word: str) -> int | None:
    """Count a dataset's items without reading them; None for a function and for a file without labels."""
    if is_function(word):
        return None
    if Path(word).is_dir():
        return len(_image_files(Path(word)))
    with np.load(word) as file:
        return len(file[LABELS]) if LABELS in file.files else None


def evaluated(items: int) -> int:
    """Return how many of a dataset's items are evaluated; the others calibrate int8."""
    return items - min(MOST_CALIBRATING, items // 10)


def places(items: int) -> NDArray[np.int64]:
    """Return the items' places in the user's order: first those to evaluate, then the evenly spaced others."""
    calibrating = np.linspace(0, items, items - evaluated(items), endpoint=False, dtype=np.int64)
    return np.concatenate([np.setdiff1d(np.arange(items), calibrating), calibrating])


def with_dataset(source: ModelSource, specs: Sequence[TensorSpec]) -> tuple[tuple[TensorSpec, ...], str]:
    """Give the inputs the user's items, in the order of `places`; return also the labels' key in the cache, or "".

    Raises ModelError for data that cannot be read or do not fit the inputs.
    """
    assert source.data is not None
    holding = [spec for spec, axis in zip(specs, item_axes(specs), strict=True) if axis is not None]
    with source.failing(f"reading {source.data}", f"give {_FORMS}"):
        inputs, labels = _read(source, holding)
    names = [spec.name for spec in holding]
    if strays := [name for name in inputs if name not in names]:
        raise source.error(f"{source.data}: the model has no input {strays[0]!r}{nearest(strays[0], names)}")
    if missing := [name for name in names if name not in inputs]:
        raise source.error(f"{source.data} has no array for input {missing[0]!r}; it has {', '.join(inputs)}")
    counts = {name: len(array) for name, array in inputs.items()} | ({} if labels is None else {LABELS: len(labels)})
    if len({*counts.values()}) > 1 or 0 in counts.values():
        sizes = ", ".join(f"{count:,} of {name}" for name, count in counts.items())
        raise source.error(f"{source.data} has {sizes}: give as many of each, and at least one")
    if source.metric and labels is None:
        raise source.error(f"{source.data} has no labels, and metric {source.metric!r} needs them")
    order = places(min(counts[names[0]], _most(inputs)))
    for spec in holding:
        _check(source, spec, inputs[spec.name])
    data = {name: store(array[order]) for name, array in inputs.items()}
    filled = tuple(replace(spec, data=data.get(spec.name, spec.data)) for spec in specs)
    return filled, "" if labels is None else store(labels[order])


def _most(inputs: Mapping[str, NDArray[Any]]) -> int:
    """Return how many items fit into MOST_BYTES."""
    return max(1, MOST_BYTES // max(1, sum(array.nbytes // len(array) for array in inputs.values())))


def _check(source: ModelSource, spec: TensorSpec, array: NDArray[Any]) -> None:
    """Raise ModelError for items of another shape or type, and for values that are not finite."""
    axis, free = _axis(spec), {named.axis for named in spec.named}
    shape = [None if place in free else size for place, size in enumerate(spec.shape) if place != axis]
    actual = f"{array.dtype} of shape {array.shape[1:]}"
    if len(shape) != array.ndim - 1 or any(a not in (None, b) for a, b in zip(shape, array.shape[1:], strict=True)):
        expected = tuple(size for place, size in enumerate(spec.shape) if place != axis)
        raise source.error(f"{source.data}: an item of input {spec.name!r} is {actual}, the model takes {expected}")
    kind = numpy_dtype(spec.dtype).kind
    if array.dtype.kind not in "biuf" or (array.dtype.kind == "f" and kind in "biu"):
        raise source.error(f"{source.data}: an item of input {spec.name!r} is {actual}, the model takes {spec.dtype}")
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        raise source.error(f"{source.data}: input {spec.name!r} holds NaN or infinity")


def _read(source: ModelSource, specs: Sequence[TensorSpec]) -> tuple[Inputs, NDArray[Any] | None]:
    """Return the inputs with their items first, and the labels."""
    word = str(source.data)
    if is_function(word):
        module, _, name = word.partition(":")
        return _stacked(getattr(importlib.import_module(module), name)(), specs)
    if Path(word).is_dir():
        return _images(source, Path(word), specs)
    with np.load(word) as file:
        arrays = {name: file[name] for name in file.files}
    labels = arrays.pop(LABELS, None)
    if len(arrays) == len(specs) == 1:
        arrays = {specs[0].name: arrays.popitem()[1]}
    axes = {spec.name: _axis(spec) for spec in specs}
    return {name: items_first(array, axes.get(name)) for name, array in arrays.items()}, labels


def _axis(spec: TensorSpec) -> int | None:
    return spec.fixed_axis if spec.batch_axis is None else spec.batch_axis


def _stacked(pairs: Iterable[Any], specs: Sequence[TensorSpec]) -> tuple[Inputs, NDArray[Any] | None]:
    """Stack what torch's Dataset or DataLoader yields: pairs of inputs and labels, or inputs alone."""
    inputs: dict[str, list[NDArray[Any]]] = {spec.name: [] for spec in specs}
    labels, size = list[NDArray[Any]](), 0
    for pair in pairs:
        values, label = pair if isinstance(pair, tuple | list) and len(pair) == 2 else (pair, None)
        listed = values if isinstance(values, tuple | list) else [values]
        named = values if isinstance(values, Mapping) else dict(zip(inputs, listed, strict=True))
        is_item = False
        for spec in specs:
            array = _array(named[spec.name])
            is_item = array.ndim < len(spec.shape)
            inputs[spec.name].append(array[None] if is_item else items_first(array, _axis(spec)))
            size += array.nbytes
        if label is not None:
            labels.append(_array(label)[None] if is_item else _array(label))
        if size > MOST_BYTES:
            break
    arrays = {name: np.concatenate(parts) for name, parts in inputs.items() if parts}
    return arrays, np.concatenate(labels) if labels else None


def _array(value: Any) -> NDArray[Any]:
    return np.asarray(value.detach().cpu() if hasattr(value, "detach") else value)


def _images(source: ModelSource, folder: Path, specs: Sequence[TensorSpec]) -> tuple[Inputs, NDArray[Any]]:
    """Read images, one folder a class in the order of names: resized, center-cropped, with ImageNet's mean."""
    try:
        from PIL import Image
    except ImportError:
        raise source.error(f"{folder}: a folder of images needs Pillow: pip install pillow") from None
    shape = [size for size in specs[0].shape if size != BATCH][-3:]
    if len(specs) != 1 or len(shape) != 3 or shape[0] not in (1, 3):
        raise source.error(f"{folder}: images fit a single input of 1 or 3 channels; give DATA.npz or a function")
    channels, height, width = map(int, shape)
    files = _image_files(folder)
    if not files:
        raise source.error(f"{folder}: no images ({', '.join(_IMAGES)}) in folders of it, one folder a class")
    count = min(len(files), MOST_BYTES // (4 * channels * height * width))
    chosen = [files[n] for n in np.linspace(0, len(files), count, endpoint=False, dtype=int)]
    images = np.empty((count, channels, height, width), np.float32)
    for number, (file, _) in enumerate(chosen):
        with Image.open(file) as image:
            images[number] = _prepared(image.convert("RGB" if channels == 3 else "L"), height, width)
    return {specs[0].name: images}, np.array([label for _, label in chosen])


def _image_files(folder: Path) -> list[tuple[Path, int]]:
    """List the images with the places of their classes."""
    classes = sorted(path for path in folder.iterdir() if path.is_dir())
    return [(f, n) for n, c in enumerate(classes) for f in sorted(c.rglob("*")) if f.suffix.lower() in _IMAGES]


def _prepared(image: Any, height: int, width: int) -> NDArray[np.float32]:
    """Resize, crop and normalize an image to [channels, height, width]."""
    scale = _SHORTER_SIDE * max(height / image.height, width / image.width)
    image = image.resize((max(width, round(image.width * scale)), max(height, round(image.height * scale))))
    x, y = (image.width - width) // 2, (image.height - height) // 2
    pixels = np.asarray(image.crop((x, y, x + width, y + height)), np.float32) / 255
    pixels = pixels.transpose(2, 0, 1) if pixels.ndim == 3 else pixels[None]
    channels = slice(None if len(pixels) == 3 else 1)
    mean, deviation = (np.array(v[channels], np.float32)[:, None, None] for v in (_MEAN, _DEVIATION))
    return np.asarray((pixels - mean) / deviation, np.float32)
