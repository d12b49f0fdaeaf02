"""Read a user's items, inputs and labels, and put them into the cache; imports no torch."""

from __future__ import annotations

import contextlib
import importlib
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from exporters.inputs import SEED, described, item_axes, items_first, numpy_dtype, store
from exporters.metrics import IGNORED
from exporters.source import BATCH, LABELS, ModelError, ModelSource, TensorSpec

MOST_BYTES = 2**31
"""Most bytes of a dataset's inputs."""
MOST_CALIBRATING = 64
"""Most items that calibrate int8, at most a tenth of all."""
_MEAN, _DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
"""ImageNet's, by channel: https://docs.pytorch.org/vision/stable/models.html"""
_SHORTER_SIDE = 256 / 224
"""Shorter side of an image before its center is cropped, as a multiple of the crop's."""
_IMAGES = (".bmp", ".jpeg", ".jpg", ".png", ".webp")
Array = NDArray[Any]
Items = tuple[Mapping[str, Array], Array | None]
"""Inputs by name, items first, and labels."""


def is_function(word: str) -> bool:
    """Tell the name of a function from a path, without a look at the files."""
    return ":" in word and "/" not in word


def labels_in(word: str) -> int | None:
    """Count a dataset's labels without reading its items; None if that is unknown."""
    if not is_function(word):
        with contextlib.suppress(Exception):  # Preparing the model reports faults.
            if Path(word).is_dir():
                return len(_image_files(Path(word))) or None
            if _unpacked_bytes(word) <= MOST_BYTES:
                with np.load(word) as file:
                    return len(file[LABELS]) if LABELS in file.files else 0
    return None


def scored_count(items: int) -> int:
    """Return how many of a dataset's items are scored; the others calibrate int8."""
    return items - min(MOST_CALIBRATING, items // 10)


def item_order(items: int) -> NDArray[np.int64]:
    """Order the items' indices at random: scored items first, then those that calibrate int8."""
    return np.random.default_rng(SEED).permutation(items)


def with_dataset(source: ModelSource, specs: Sequence[TensorSpec]) -> tuple[tuple[TensorSpec, ...], str]:
    """Fill the inputs with the user's items in `item_order`; return them and the labels' key in the cache, or "".

    Raises ModelError for data that cannot be read or do not fit the inputs.
    """
    assert source.data is not None
    by_item = [spec for spec, axis in zip(specs, item_axes(specs), strict=True) if axis is not None]
    if not by_item:
        raise source.error(f"data: the model has no input with items: {described(specs)}")
    mend = "mend the function" if is_function(source.data) else "save arrays by numpy.savez, or images by class"
    with source.failing(f"reading {source.data}", mend):
        inputs, labels = _read(source, by_item)
    names = [spec.name for spec in by_item]
    arrays = {**inputs, **({} if labels is None else {LABELS: labels})}
    if inputs.keys() != {*names}:
        raise source.error(f"{source.data} has {', '.join(arrays)}; give arrays {', '.join([*names, LABELS])}")
    counts = {name: len(array) if array.ndim else 0 for name, array in arrays.items()}
    if len({*counts.values()}) > 1 or 0 in counts.values():
        sizes = ", ".join(f"{count:,} of {name}" for name, count in counts.items())
        raise source.error(f"{source.data} has {sizes}; give as many of each, and at least one")
    for spec in by_item:
        _check(source, spec, inputs[spec.name])
    if labels is not None and (labels.dtype.kind not in "biuf" or not np.isfinite(labels).all()):
        raise source.error(
            f"{source.data}: labels must be finite numbers, such as a class's number, not {labels.dtype}"
        )
    if labels is not None and (unlabelled := (labels == IGNORED).reshape(len(labels), -1).all(axis=1)).any():
        raise source.error(f"{source.data}: item {unlabelled.argmax()} has no label but {IGNORED}; leave it out")
    if source.metric and labels is None:
        raise source.error(f"{source.data} has no labels, and metric {source.metric!r} needs them")
    order = item_order(counts[names[0]])
    data = {name: store(array[order]) for name, array in inputs.items()}
    filled = tuple(replace(spec, data=data.get(spec.name, spec.data)) for spec in specs)
    return filled, "" if labels is None else store(labels[order])


def _check(source: ModelSource, spec: TensorSpec, array: Array) -> None:
    """Raise ModelError for items of another shape or type, and for values that the input's type cannot hold."""
    axis, free = spec.item_axis, {named.axis for named in spec.named}
    shape = [None if place in free else size for place, size in enumerate(spec.shape) if place != axis]
    actual = f"{source.data}: an item of input {spec.name!r} is {array.dtype} of shape {array.shape[1:]}"
    if len(shape) != array.ndim - 1 or any(a not in (None, b) for a, b in zip(shape, array.shape[1:], strict=True)):
        expected = tuple(size for place, size in enumerate(spec.shape) if place != axis)
        varies = "; `shapes` sets sizes that vary" if len(shape) == array.ndim - 1 else ""
        raise source.error(f"{actual}, the model takes {expected}{varies}")
    dtype = numpy_dtype(spec.dtype)
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        bad = int(np.isfinite(array).reshape(len(array), -1).all(axis=1).argmin())
        raise source.error(f"{source.data}: item {bad} of input {spec.name!r} holds NaN or infinity")
    if array.dtype.kind not in "biuf" or (array.dtype.kind == "f" and dtype.kind in "biu"):
        raise source.error(f"{actual}, the model takes {spec.dtype}")
    with np.errstate(over="ignore"):
        cast = array.astype(dtype)
    if not (np.array_equal(cast, array) if dtype.kind in "biu" else np.isfinite(cast.astype(np.float64)).all()):
        raise source.error(f"{actual}, with values that {spec.dtype} does not hold")


def _read(source: ModelSource, specs: Sequence[TensorSpec]) -> Items:
    word = str(source.data)
    if is_function(word):
        from exporters.factories import seed

        module, _, name = word.partition(":")
        make = getattr(importlib.import_module(module), name)
        seed()  # A DataLoader may shuffle, and a resumed run needs the same items.
        return _stacked(source, make(), specs)
    if Path(word).is_dir():
        return _images(source, Path(word), specs)
    if _unpacked_bytes(word) > MOST_BYTES:
        raise _too_large(source)
    with np.load(word) as file:
        arrays = {name: file[name] for name in file.files}
    labels = arrays.pop(LABELS, None)
    if len(arrays) == len(specs) == 1:
        arrays = {specs[0].name: arrays.popitem()[1]}
    axes = {spec.name: spec.item_axis for spec in specs}
    return {name: items_first(array, axes.get(name)) for name, array in arrays.items()}, labels


def _unpacked_bytes(word: str) -> int:
    with zipfile.ZipFile(word) as file:
        return sum(member.file_size for member in file.infolist())


def _too_large(source: ModelSource) -> ModelError:
    return source.error(f"{source.data}: the inputs are over {MOST_BYTES // 2**30} GiB; give fewer items")


def _stacked(source: ModelSource, elements: Iterable[Any], specs: Sequence[TensorSpec]) -> Items:
    """Stack what torch's Dataset or DataLoader yields: inputs and labels as a pair or in a dict, or inputs alone."""
    inputs: dict[str, list[Array]] = {spec.name: [] for spec in specs}
    labels, size = list[Array](), 0
    for element in elements:
        values, label = element if isinstance(element, tuple | list) and len(element) == 2 else (element, None)
        if isinstance(element, Mapping) and LABELS not in inputs:
            label = element.get(LABELS)
        listed = values if isinstance(values, tuple | list) else [values]
        if not isinstance(values, Mapping) and len(listed) != len(specs):
            expected = f"(inputs, labels), with inputs {', '.join(inputs)} as a tuple or a dict"
            raise source.error(f"{source.data}: an element has {len(listed)} inputs; yield {expected}")
        named = values if isinstance(values, Mapping) else dict(zip(inputs, listed, strict=True))
        if absent := [name for name in inputs if name not in named]:
            raise source.error(f"{source.data}: an element lacks input {absent[0]!r}; it has {', '.join(named)}")
        is_item = False
        for spec in specs:
            array = _array(named[spec.name])
            is_item = array.ndim < len(spec.shape)
            inputs[spec.name].append(array[None] if is_item else items_first(array, spec.item_axis))
            size += array.nbytes
        if label is not None:
            labels.append(_array(label)[None] if is_item else _array(label))
        if size > MOST_BYTES:
            raise _too_large(source)
    if not size:
        raise source.error(f"{source.data} yielded no items")
    joined = {name: _joined(source, name, parts) for name, parts in inputs.items()}
    return joined, _joined(source, LABELS, labels) if labels else None


def _joined(source: ModelSource, name: str, parts: Sequence[Array]) -> Array:
    """Join batches of items. Raises ModelError if the items differ in shape."""
    shapes = list(dict.fromkeys(part.shape[1:] for part in parts))
    if len(shapes) > 1:
        raise source.error(
            f"{source.data}: items of {name} differ in shape, like {shapes[0]} and {shapes[1]}; pad all to one"
        )
    return np.concatenate(parts)


def _array(value: Any) -> Array:
    if hasattr(value, "detach"):  # A tensor; NumPy has no bfloat16.
        value = value.detach().cpu()
        value = value.float() if value.is_floating_point() else value
    return np.asarray(value)


def _images(source: ModelSource, folder: Path, specs: Sequence[TensorSpec]) -> Items:
    """Read images, one folder a class in the order of names: resized, center-cropped, with ImageNet's mean."""
    try:
        from PIL import Image, ImageOps
    except ImportError:
        raise source.error(f"{folder}: a folder of images needs Pillow: pip install pillow") from None
    shape = [size for size in specs[0].shape if size != BATCH][-3:]
    if len(specs) != 1 or len(shape) != 3 or shape[0] not in (1, 3):
        raise source.error(f"{folder}: images fit a single input of 1 or 3 channels; give a .npz file or a function")
    channels, height, width = map(int, shape)
    files = _image_files(folder)
    if not files:
        raise source.error(f"{folder}: there are no images ({', '.join(_IMAGES)}) in subfolders, one for each class")
    if 4 * len(files) * channels * height * width > MOST_BYTES:
        raise _too_large(source)
    images = np.empty((len(files), channels, height, width), np.float32)
    for number, (file, _) in enumerate(files):
        with source.failing(f"reading {file}", "remove it, or save it again"), Image.open(file) as image:
            upright = ImageOps.exif_transpose(image).convert("RGB" if channels == 3 else "L")
            images[number] = _prepared(upright, height, width, Image.Resampling.BILINEAR)
    return {specs[0].name: images}, np.array([label for _, label in files])


def _image_files(folder: Path) -> list[tuple[Path, int]]:
    """List the images with the places of their classes; a folder without images is no class."""
    folders = sorted(path for path in folder.iterdir() if not path.name.startswith("."))
    listed = [sorted(file for file in path.rglob("*") if file.suffix.lower() in _IMAGES) for path in folders]
    return [(file, number) for number, files in enumerate(filter(None, listed)) for file in files]


def _prepared(image: Any, height: int, width: int, resampling: int) -> Array:
    """Resize, crop and normalize an image to [channels, height, width]."""
    scale = _SHORTER_SIDE * max(height / image.height, width / image.width)
    size = max(width, round(image.width * scale)), max(height, round(image.height * scale))
    image = image.resize(size, resampling)
    x, y = (image.width - width) // 2, (image.height - height) // 2
    pixels = np.asarray(image.crop((x, y, x + width, y + height)), np.float32) / 255
    pixels = pixels.transpose(2, 0, 1) if pixels.ndim == 3 else pixels[None]
    channels = slice(None if len(pixels) == 3 else 1)
    mean, deviation = (np.array(v[channels], np.float32)[:, None, None] for v in (_MEAN, _DEVIATION))
    return np.asarray((pixels - mean) / deviation, np.float32)
