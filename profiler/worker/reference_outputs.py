"""Take a model's reference outputs: on the CPU where it can afford them, else on the run's GPU, or over fewer items."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import inspect
import math
import os
import re
import time
import traceback
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

import engines
from engines.base import Array, Feedable, Job, Named, Session, Unsupported, ignore
from engines.catalog import Device, reference_of
from engines.memory_watch import HostMeter
from exporters.cache import Cache, CacheError, code_of, file_sha256, locked
from exporters.calls import TooLong, chosen, limited
from exporters.errors import chain, message, sentence
from exporters.inputs import (
    TensorSpec,
    described,
    distinct_items,
    fixed_batch,
    how_seeded,
    numpy_dtype,
    seeded_inputs,
)
from exporters.source import ModelError, ModelSource, digest
from exporters.weights import checked, source_key
from profiler.machine import available_memory_mib
from profiler.worker import outputs
from profiler.worker.outputs import read_facts, write_outputs
from profiler.worker.task import MOST_REFERENCE_ITEMS, REFERENCE_ITEMS, Taken, how_to_name_the_batch, usual_items

CPU_SECONDS = 60.0
"""What the reference outputs of a model may take on the CPU: all of a catalog's networks need less."""
_FURTHER_SECONDS = 10.0
"""What items beyond those of the first run may take."""
_FURTHER_BYTES = 2**27
"""Of the outputs of all items, where the first run's are not more by themselves."""
_MEMORY_SHARE = 0.8
"""Of the memory that is available: others are prepared at the same time."""
_OF_VALUES = re.compile(r"(?<!Dimension )out of (\w+ )?(range|bounds)|device-side assert", re.IGNORECASE)
"""What torch, numpy and ONNX Runtime say of an index that is too large: the inputs' values are at fault."""
_OF_SHAPES = re.compile(r"\b(shapes?|sizes?|dim|dims|dimensions?|channels?|[1-5]D)\b|broadcast", re.IGNORECASE)
_OF_META = re.compile(r"\b(meta|fake|device|uninitialized|strides?|symbol\w*)\b", re.IGNORECASE)
"""What else torch says of tensors without memory, with words of shapes in it."""
_OF_TYPES = re.compile(
    r"\b((?i:d?types?|integers?|indices)|(Byte|Char|Short|Int|Long|Half|Float|Double|Bool)(Tensor)?|u?int\d*|float\d*)\b"
)
"""What torch says of an input of a type that does not fit."""


@dataclass(frozen=True)
class _Outputs:
    """What a session returned in its first run and, by number, for further items; the seconds of that first run, and
    the MiB that it took on the CPU and gave back."""

    names: Sequence[str]
    arrays: Sequence[Array]
    further: Mapping[int, Array]
    changed: str
    taken: Taken
    seconds: float
    mib: float


@dataclass(frozen=True)
class _Maker:
    """Runs a model in the engine that the catalog names for references."""

    source: ModelSource
    specs: Sequence[TensorSpec]
    state: Path | None

    def take(self, devices: Sequence[Device], lock: Path) -> _Outputs:
        """The outputs, from where and over as many items as can be; one at a time, under `lock`, on the GPU."""
        usual = items = usual_items(self.specs)
        least = fixed_batch(self.specs) or 1
        first = None
        if "cpu" in devices:
            try:
                first = self.run("cpu", least, CPU_SECONDS if "cuda" in devices else math.inf, goes_on=least == usual)
                items = min(usual, affordable(first.seconds, first.mib, available_memory_mib()))
            except TooLong:
                items = 0
            except Exception:
                pass  # All items together say why; some models cannot run a single one.
        if "cuda" in devices and (items < usual or "cpu" not in devices):
            with locked(lock), deterministic():
                found = self._on_gpu()
            if found is not None:  # What the module changes is seen on the CPU only.
                return found if first is None else replace(found, changed=first.changed)
            if "cpu" not in devices:
                raise self.source.error("its reference outputs cannot be made on the GPU either")
        items = max(items, least)
        return first if first is not None and items == least else self.run("cpu", items, goes_on=items > least)

    def run(self, device: Device, batch: int, limit: float = math.inf, goes_on: bool = True) -> _Outputs:
        """Run a batch, and further ones where `goes_on`. Raises ModelError where the model does not run, and TooLong
        where the first batch takes more than `limit` seconds."""
        engine, reference = reference_of(self.source.kind)
        inputs = tuple(seeded_inputs(self.specs, batch))
        job = Job(
            *(self.source, "inference", reference.precision, batch, device, reference.options, inputs),
            *(self.state, self.source.onnx),
            specs=tuple(self.specs),
        )
        session: Session | None = None
        try:
            with limited(limit):
                session = engines.open_session(engine, job)
                meter = HostMeter()
                is_measured, start = meter.start_measuring(), time.perf_counter()
                session.run(ignore)
                arrays = session.outputs()  # Waits for the GPU.
                seconds = time.perf_counter() - start
            mib = _given_back(meter) if is_measured else 0.0
            names = session.output_names() if isinstance(session, Named) else [f"y{n}" for n in range(len(arrays))]
            if not arrays:
                raise self.source.error("it returns no tensor; return one, or some in a tuple or a dict")
            chosen(self.source.outputs, names)
        except (ModelError, Unsupported, TooLong):
            raise
        except Exception as error:
            model = getattr(session, "model", None)
            taken = list(inspect.signature(model.forward).parameters) if isinstance(model, torch.nn.Module) else []
            raise no_reference(self.source, error, self.specs, taken) from error
        changed = self._changed(inputs, batch)
        arrays = [array.copy() for array in arrays]  # On the CPU they may be where the next run writes.
        further = self._further(session, arrays, batch, seconds) if goes_on and not changed else {}
        items = batch + next((len(rows) for rows in further.values()), 0)
        return _Outputs(names, arrays, further, changed, Taken(device, items, batch), seconds, mib)

    def _further(self, session: Session, arrays: Sequence[Array], batch: int, seconds: float) -> dict[int, Array]:
        """The outputs of further items by number, of those that have their items first; none where a shape varies."""
        assert isinstance(session, Feedable), "an engine that makes references takes other inputs"
        runs = _runs(batch, seconds, sum(array.nbytes for array in arrays), distinct_items(self.specs))
        by_item = [place for place, array in enumerate(arrays) if array.shape[:1] == (batch,)]
        rows: dict[int, list[Array]] = {place: [] for place in by_item}
        try:
            for first in range(batch, runs * batch if by_item else 0, batch):
                session.feed(seeded_inputs(self.specs, batch, first=first))
                session.run(ignore)
                outputs = session.outputs()
                if [array.shape for array in outputs] != [array.shape for array in arrays]:
                    return {}
                for place in by_item:
                    rows[place].append(outputs[place].copy())
        except Exception:  # Those of the first run are there.
            traceback.print_exc()
            return {}
        return {place: np.concatenate(own) for place, own in rows.items() if own}

    def _changed(self, inputs: Sequence[Array], items: int) -> str:
        """The inputs that the module changed, by name: on the CPU the session's are these very arrays."""
        given = zip(self.specs, inputs, seeded_inputs(self.specs, items), strict=True)
        return ", ".join(
            spec.name for spec, now, then in given if not np.array_equal(now, then, equal_nan=now.dtype.kind == "f")
        )

    def _on_gpu(self) -> _Outputs | None:
        """Over as many items as the GPU's memory holds; None where the model does not run there."""
        items = usual_items(self.specs)
        while True:
            try:
                with torch.cuda.stream(torch.cuda.Stream()):  # ONNX Runtime takes no default stream.
                    return self.run("cuda", items)
            except Exception:
                traceback.print_exc()
            gc.collect()
            torch.cuda.empty_cache()
            if items == 1 or fixed_batch(self.specs) is not None:
                return None
            items //= 2


def cached_reference(
    source: ModelSource, specs: Sequence[TensorSpec], state: Path | None, devices: Sequence[Device], cache: Cache
) -> Path:
    """The file of the reference outputs, made once for all runs; one of fewer items is made again where `devices` has a
    GPU. Raises ModelError, and Unsupported where the engine that makes them cannot run."""
    maker = _Maker(source, specs, state)
    code = [*code_of("inputs.py", "calls.py"), file_sha256(Path(outputs.__file__))]
    engine = importlib.import_module(reference_of(source.kind)[1].module)
    key = digest([source_key(source), *code, str(REFERENCE_ITEMS), str(MOST_REFERENCE_ITEMS), str(engine.__version__)])

    def produce(path: Path) -> None:
        found = maker.take(devices, cache.root / "reference.lock")
        write_outputs(path, found.names, found.arrays, found.changed, found.taken, found.further)

    place = "reference", key, ".npz", checked(source, produce)
    path, was_there = cache.entry(*place)
    _, taken = read_facts(path)
    if was_there and "cuda" in devices and taken.device == "cpu" and (taken.items or 0) < usual_items(specs):
        with contextlib.suppress(CacheError):  # Of a cache that may only be read, what there is.
            path, _ = cache.entry(*place, again=True)
    return path


def affordable(seconds: float, mib: float, available_mib: float | None) -> int:
    """Return the batch size that the CPU can afford, if an item takes so many seconds and MiB: 8, 4, 2, or 1."""
    items, most = REFERENCE_ITEMS, _MEMORY_SHARE * (math.inf if available_mib is None else available_mib)
    while items > 1 and (items * seconds > CPU_SECONDS or items * mib > most):
        items //= 2
    return items


def _runs(batch: int, seconds: float, size: int, distinct: int | None) -> int:
    """How many batches of so many seconds and bytes are affordable: 64 items, or half as often 32, 16 and so on."""
    runs = max(min(MOST_REFERENCE_ITEMS, distinct or MOST_REFERENCE_ITEMS) // batch, 1)
    while runs > 1 and (runs * seconds > _FURTHER_SECONDS or runs * size > _FURTHER_BYTES):
        runs //= 2
    return runs


@contextlib.contextmanager
def deterministic() -> Iterator[None]:
    """Have torch and cuBLAS take algorithms that sum in the same order every time, where they have some."""
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    before = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    switches: Any = torch.utils.deterministic
    filled = switches.fill_uninitialized_memory
    torch.use_deterministic_algorithms(True, warn_only=True)
    switches.fill_uninitialized_memory = False  # With NaN, which no other run does.
    try:
        yield
    finally:
        switches.fill_uninitialized_memory = filled
        torch.use_deterministic_algorithms(before[0], warn_only=before[1])


def is_of_shapes(error: Exception) -> bool:
    """Whether torch, or the model's own check, says that shapes do not fit."""
    text = message(error)
    return (
        type(error) in (RuntimeError, ValueError, AssertionError)
        and bool(_OF_SHAPES.search(text))
        and not _OF_META.search(text)
    )


def is_of_meta(error: Exception) -> bool:
    """Whether what forward raised on the meta device, or took too long for, may come of that device only."""
    return any(
        isinstance(each, (NotImplementedError, TooLong)) or _OF_META.search(message(each))
        for each in chain(error, hidden=True)
    )


def no_reference(
    source: ModelSource, error: Exception, specs: Sequence[TensorSpec] = (), taken: Sequence[str] = ()
) -> ModelError:
    """The error that the model does not run where its reference outputs are made; `taken` are forward's parameters."""
    has_integers = any(numpy_dtype(spec.dtype).kind in "biu" for spec in specs)
    why = sentence(error)
    if has_integers and _OF_VALUES.search(why + message(error)):
        why += f"; {how_seeded(specs)}"
    if "device" in message(error):
        why += "; a tensor that is neither parameter nor buffer stays where it was made: use register_buffer"
    elif specs and is_of_shapes(error):
        items = "" if fixed_batch(specs) else f", run with up to {REFERENCE_ITEMS} items"
        why += f"; given: {described(specs)}{items}: correct the inputs in the job, or the model"
    elif source.inputs:
        why += f"; given: {described(specs)}"
        why += f", and forward takes {', '.join(taken)}" if taken and isinstance(error, TypeError) else ""
    elif len(taken) > 1 and isinstance(error, TypeError):
        why += (
            f"; forward takes {', '.join(taken)}: give `inputs` for each (on the command line --input, once for each)"
        )
    elif specs and source.input_shape and not isinstance(error, TypeError):
        why += f"; given: {described(specs)}"
        why += ": write `inputs` for another type" if _OF_TYPES.search(message(error)) else ""
    why += how_to_name_the_batch(source, specs)
    if len(source.input_shape or ()) == 4:  # Right for convolutions in three dimensions only.
        why += f"; `input: {list(source.input_shape or ())}` must be the shape of one item, without the batch"
    return source.error(f"its reference outputs cannot be made: {why}")


def _given_back(meter: HostMeter) -> float:
    """MiB that a call had at its peak and no longer has, which is what more items would take more of; weights that it
    read for the first time, mapped from a file, stay."""
    with contextlib.suppress(AttributeError):  # The C library keeps small blocks otherwise; not each has this.
        ctypes.CDLL(None).malloc_trim(0)
    peak, now = meter.peak_mib(), meter.now_mib()
    return 0.0 if peak is None or now is None else max(peak - now, 0.0)
