"""Make a job from a model named in Python or on the command line: its inputs, its options, and defaults."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path
from typing import Any

from engines.catalog import ENGINES, PRESETS, unsupported
from engines.options import Device
from engines.requirements import missing
from exporters import named_files
from exporters.catalog import CATALOG
from exporters.inputs import dimensions_of, file_specs, fixed_batch, open_options
from exporters.libraries import library_of, model_entry, not_installed
from exporters.onnx_files import is_float32
from exporters.source import ModelError, ModelSource
from profiler.errors import PROGRAM, ConfigError, nearest
from profiler.job.config import Config, config_of, merged
from profiler.job.mistakes import Location
from profiler.machine.target import has_bf16
from profiler.options import Run as Options

_USUAL: Mapping[Device, Mapping[str, Any]] = {
    "cpu": {"precisions": ["fp32"], "batch_sizes": [1, 16]},
    "cuda": {"precisions": ["fp32", "tf32", "fp16"], "batch_sizes": [1, 64]},
}
"""Default batch sizes: one item, and enough to keep the device busy."""
_BUDGET = {"seconds": 1.0}
"""Enough for a first answer within seconds."""
_FLAGS: Mapping[str, tuple[str, Sequence[Location]]] = {
    "--batch": ("batch", [("batch_sizes",)]),
    "--batch-axis": ("batch_axis", [("models", 0, "batch")]),
    "--shapes": ("shapes", [("shapes",)]),
    "--precision": ("precision", [("precisions",)]),
    "--engine": ("engine", [("engines",)]),
    "--pass": ("pass_", [("passes",)]),
    "--input": ("inputs", [("models", 0, "input"), ("models", 0, "inputs")]),
    "--data": ("data", [("models", 0, "data")]),
    "--metric": ("metric", [("models", 0, "metric")]),
}
"""Options that need a model's name on the command line: the field of Options, and the places in a job that it fills."""
_OPTIONS = {place: flag for flag, (_, places) in _FLAGS.items() for place in places} | {("machine",): "--machine"}


def named_entry(word: str | Path) -> dict[str, Any]:
    """Make the entry of an .onnx file, a function "package.module:function", a network or a library's model.

    Raises ConfigError for a missing file.
    """
    entry = model_entry(str(word))
    if "onnx" in entry:
        path = Path(word).absolute()  # Follows no link: external data lie beside it.
        if not named_files.is_file(path):
            files = sorted(file.name for file in path.parent.glob("*.onnx") if file.is_file())
            raise ConfigError(f"there is no file {word}{nearest(path.name, files, 'give its path')}")
        return {**entry, "onnx": str(path)}
    return entry if "factory" in entry else {"network": str(word), **entry}


@dataclass(frozen=True)
class ModelJob:
    """A job as data: keys from the command line; the rest depends on the device."""

    keys: Mapping[str, Any]
    fixed_batch: int | None = None
    typed: Mapping[Location, str] = field(default_factory=dict)
    """Words typed for places in the job, which errors name."""
    usual: Mapping[Device, Mapping[str, Any]] = field(default_factory=dict)
    """Other defaults for keys that the command line may give."""

    @property
    def is_onnx(self) -> bool:
        return "onnx" in self.keys["models"][0]

    @property
    def _runs_as_it_is(self) -> bool:
        """True for an .onnx file that is not float32: it runs only at `native`."""
        return self.is_onnx and not is_float32(Path(self.keys["models"][0]["onnx"]))

    def narrowed(self, engines: Mapping[Device, str], budget: Mapping[str, Any]) -> ModelJob:
        """Default the job to one cell, in the engine that `engines` has for the device."""
        usual: dict[str, Any] = {"budget": budget}
        usual |= {} if self.fixed_batch is not None else {"batch_sizes": [1]}
        usual |= {} if self._runs_as_it_is else {"precisions": ["fp32"]}
        return replace(self, usual={device: {"engines": [name], **usual} for device, name in engines.items()})

    def config(self, device: Device, overrides: Mapping[str, Any], hardware: str | None = None) -> Config:
        """Validate the job for a device. Raises ConfigError, which names the command's options."""
        usual = {"suite": self.keys["models"][0]["name"], **_USUAL[device], "budget": _BUDGET, "skip": True}
        if device == "cpu" and has_bf16():
            usual["precisions"] = ["fp32", "bf16"]
        if self.fixed_batch is not None:
            usual["batch_sizes"] = [self.fixed_batch]
        if self._runs_as_it_is:
            del usual["precisions"]
        usual |= self.usual.get(device, {})
        job = merged(usual, self.keys, overrides)
        kind = "onnx" if self.is_onnx else "factory"
        precisions = ["native"] if self._runs_as_it_is else job["precisions"]
        cells = list(product(job.get("passes", ["inference"]), precisions))

        def able(name: str) -> list[tuple[Any, str]]:
            """Return the passes and precisions that a preset or an engine supports."""
            engine = ENGINES.get(PRESETS[name].engine if name in PRESETS else name)
            return [
                (pass_, precision)
                for pass_, precision in cells
                if engine is None or unsupported(engine, pass_, device, precision, kind, hardware) is None
            ]

        if "engines" not in job:
            job["engines"] = usual_engines(device, able)
        if not {"engines", "precisions"} <= self.keys.keys():  # Default cells that cannot run get no row.
            job["exclude"] = [
                {"variant": name, "pass": pass_, "precision": precision}
                for name in job["engines"]
                if (can := able(name))
                for pass_, precision in cells
                if (pass_, precision) not in can
            ]
        return config_of(job, self.typed)


def usual_engines(device: Device, able: Callable[[str], object]) -> list[str]:
    """Return the installed presets that support a part of the job, compilers last."""
    usual = [preset for preset in PRESETS.values() if preset.usual and device in preset.options]
    usual = [preset for preset in usual if not missing(ENGINES[preset.engine], device)]
    # If the job has an unknown word, no preset supports it; validation reports the word.
    supported = [preset for preset in usual if able(preset.name)] or usual
    return [preset.name for preset in sorted(supported, key=lambda preset: ENGINES[preset.engine].compiles)]


def not_tried(job: ModelJob, device: Device) -> list[str]:
    """Say how to install each usual runtime that is missing, unless engines were named."""
    usual = [preset for preset in PRESETS.values() if preset.usual and device in preset.options]
    engines = {} if "engines" in job.keys else dict.fromkeys(preset.engine for preset in usual)
    missing_by_name = {name: missing(ENGINES[name], device) for name in engines}
    return [f"Not tried: {name}: {needs}" for name, needs in missing_by_name.items() if needs]


def model_job(word: str, options: Options) -> ModelJob:
    """Make a job from a model's name and the options. Raises ConfigError."""
    if (library := library_of(word)) and (why := not_installed(library)):
        raise ConfigError(f"{word} {why}")
    entry = named_entry(word) | _inputs(options.inputs)
    if word in CATALOG:
        del entry["network"]
    shapes, batch = _shapes(options.shapes), _axes(options.batch_axis)
    entry |= {"batch": batch} if batch else {}
    entry |= {key: word for key in ("data", "metric") if (word := getattr(options, key))}
    fixed = _fixed_batch(entry, shapes) if "onnx" in entry else None
    lists: dict[str, Any] = {
        "engines": [name for text in options.engine for name in _words(text)],
        "passes": options.pass_ and _words(options.pass_),
        "precisions": options.precision and _words(options.precision),
        "batch_sizes": options.batch and numbers(options.batch),
        "shapes": shapes,
    }
    job = {"models": [entry], **{key: values for key, values in lists.items() if values}}
    return ModelJob(job, fixed, {("models", 0): word, **_OPTIONS})


def refuse_model_options(options: Options, advice: str) -> None:
    """Raise ConfigError for an option that needs a model's name on the command line."""
    for flag in [flag for flag, (name, _) in _FLAGS.items() if getattr(options, name)]:
        raise ConfigError(f"{flag} goes with a model, such as {PROGRAM} resnet50 {flag} …; {advice}")


def _words(text: str) -> list[str]:
    return [word.strip() for word in text.split(",") if word.strip()]


def numbers(text: str) -> list[int | float | str]:
    """Read comma-separated numbers; other words stay, for the config to refuse."""
    return list(map(_number, _words(text)))


def _number(word: str) -> int | float | str:
    for read in (int, float):
        with contextlib.suppress(ValueError):
            return read(word)
    return word


def _shapes(texts: Sequence[str]) -> dict[str, list[Any]]:
    """Read "sequence=32,128" as sizes by name. Raises ConfigError."""
    shapes: dict[str, list[Any]] = {}
    for text in texts:
        name, equals, sizes = (part.strip() for part in text.partition("="))
        if not equals or not name or not _words(sizes):
            raise ConfigError(f"--shapes {text}: is not of the form NAME=SIZES, such as sequence=32,128")
        shapes.setdefault(name, []).extend(numbers(sizes))
    return shapes


def _axes(texts: Sequence[str]) -> dict[str, int | None]:
    """Read "state=1" and "mask=none" as the axis of the batch by input. Raises ConfigError."""
    axes = dict[str, int | None]()
    for text in texts:
        name, _, axis = text.rpartition("=")
        if not name or not (axis.isdecimal() or axis == "none"):
            raise ConfigError(f"--batch-axis {text}: is not of the form NAME=AXIS, such as state=1 or mask=none")
        axes[name] = None if axis == "none" else int(axis)
    return axes


def _inputs(texts: Sequence[str]) -> dict[str, Any]:
    """Read `--input` as a job's keys: the shape of a factory's item, as 3,64,64 or 3x64x64, or values by name."""
    keys: dict[str, Any] = {}
    for text in texts:
        name, equals, words = text.rpartition("=")
        if not equals:
            keys["input"] = numbers(re.sub(r"(?<=\d)x(?=\d)", ",", words))
        elif words.endswith(".npy"):
            keys.setdefault("inputs", {})[name] = {"data": str(Path(words).resolve())}
        else:
            if len(ends := numbers(words)) != 2:
                advice = "shapes of several inputs come from a factory, which returns (module, example_inputs)"
                advice = advice if len(ends) > 2 else f"give such as {name}=0,100, or {name}=FILE.npy"
                raise ConfigError(f"--input {name}: LOW,HIGH is a range of values; {advice}")
            keys.setdefault("inputs", {})[name] = {"range": ends}
    return keys


def _fixed_batch(entry: Mapping[str, Any], varied: Mapping[str, Sequence[Any]]) -> int | None:
    """Return the only batch size of an ONNX file; None if it is free. Raises ConfigError for unknown inputs."""
    path, names, inputs = Path(entry["onnx"]), list[str](), dict(entry.get("inputs", {}))
    batch, data = dict(entry.get("batch", {})), entry.get("data")
    source = ModelSource(path.stem, onnx=path, batch=batch, inputs=inputs, data=data)
    try:
        names = dimensions_of(source)
        if varied.keys() - names:
            return None  # `with_shapes` refuses these.
        source = replace(source, dimensions={name: varied[name][0] for name in names if name in varied})
        names = sorted(set(names) - source.dimensions.keys())
        return fixed_batch(file_specs(source))
    except ModelError as error:
        advice = f"\n  or on the command line: {open_options(source)}" if names else ""
        raise ConfigError(f"{error}{advice}") from None
