"""Find the batch axis of each input, from the job and the model."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType

from exporters.errors import nearest
from exporters.source import ModelSource

Shapes = Mapping[str, Sequence[int | str]]
"""Sizes and symbols of inputs, by name."""
_NUMBERED = re.compile(r"unk__\d+|unk_\d+|dim_\d+|[a-z]?\d+", re.IGNORECASE)
"""Symbols that converters number, such as tf2onnx's unk__10: they have no meaning."""
_BATCH_WORDS = ("batch", "batch_size", "batchsize")


def batch_axes(source: ModelSource, shapes: Shapes) -> dict[str, int | None]:
    """Return the job's batch axes for the inputs with these shapes. Raises ModelError for axes that a file lacks."""
    if source.onnx is not None:  # A module's graph may give inputs other names.
        check_batch(source, shapes)
    return {name: axis for name, axis in source.batch.items() if name in shapes}


def check_batch(source: ModelSource, shapes: Shapes) -> None:
    """Raise ModelError if the job names an input or axis that the model lacks."""
    for name, axis in source.batch.items():
        if name not in shapes:
            raise source.error(f"batch: no input {name!r}{nearest(name, shapes)}")
        if axis is not None and axis >= len(shapes[name]):
            raise source.error(f"batch: {name!r} of shape {list(shapes[name])} has no axis {axis}; the first is 0")


def batch_symbols(shapes: Shapes, axes: Mapping[str, int | None] = MappingProxyType({})) -> set[str]:
    """Return the symbols for the batch in the shapes of a model's inputs; a fixed batch has none.

    They are the symbols at the job's `axes`, and "batch"; if the first input has neither, its leading symbol; then all
    leading symbols without a meaning. Other axes of the inputs in `axes` are never the batch.
    """
    at = {shapes[name][axis] for name, axis in axes.items() if axis is not None}
    others = {size for name, item_axis in axes.items() for axis, size in enumerate(shapes[name]) if axis != item_axis}
    words = {size for shape in shapes.values() for size in shape if str(size).lower() in _BATCH_WORDS}
    symbols = {size for size in at | (words - others) if isinstance(size, str)}
    leading = {name: shape[0] for name, shape in shapes.items() if shape and isinstance(shape[0], str)}
    first = next((name for name in shapes if axes.get(name, 0) is not None), None)
    if first in leading.keys() - axes.keys() and not symbols.intersection(shapes[first]):
        symbols |= {leading[first]} - others
    meaningless = {size for size in leading.values() if size.endswith("[0]") or _NUMBERED.fullmatch(size)}
    return symbols | (meaningless - others) if symbols else symbols


def batch_hint(shapes: Shapes, batch: Collection[str], names: Collection[str]) -> str:
    """Say how to name a free dimension as the batch, in a job and on the command line."""
    unbatched = [(name, shape) for name, shape in shapes.items() if not set(shape) & set(batch)]
    places = ((name, axis) for name, shape in unbatched for axis, size in enumerate(shape) if size in names)
    texts = (f"batch: {{{name}: {axis}}}    # or --batch-axis {name}={axis}" for name, axis in places)
    return next((f"\n  or, if that is the batch:\n    {text}" for text in texts), "")
