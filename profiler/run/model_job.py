"""Make a job of a model that is named in Python or on the command line: of its inputs, options, and what is usual."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from numbers import Integral
from pathlib import Path
from typing import Any

from engines.catalog import ENGINES, PRESETS, Preset, unsupported
from engines.options import Device
from engines.requirements import explain, missing
from exporters.catalog import CATALOG
from exporters.inputs import BATCH, DTYPES, FILLS, batch_symbols, fixed_batch, graph_specs, name_of, symbolic_shapes
from exporters.libraries import library_of, model_entry, not_installed
from exporters.onnx_files import file_inputs, is_float32
from exporters.source import ModelError, ModelSource
from profiler.errors import PROGRAM, ConfigError, nearest
from profiler.job.case import Budget
from profiler.job.config import Config, config_of
from profiler.job.mistakes import Location, to_yaml
from profiler.options import Run as Options
from profiler.results.run_folder import relative_to

DATA = "inputs.npz"
"""The file of the examples' integers, in the folder of what a run measures."""
_USUAL: Mapping[Device, Mapping[str, Any]] = {
    "cpu": {"precisions": ["fp32"], "batch_sizes": [1, 16]},
    "cuda": {"precisions": ["fp32", "tf32", "fp16"], "batch_sizes": [1, 64]},
}
"""Default batch sizes: one item, and enough to keep the device busy."""
_BUDGET = {"seconds": 1.0}
"""Enough for a first answer, with its first rows after seconds."""
_FLAGS: Mapping[str, tuple[str, Sequence[Location]]] = {
    "--batch": ("batch", [("batch_sizes",)]),
    "--shapes": ("shapes", [("shapes",)]),
    "--precision": ("precision", [("precisions",)]),
    "--engine": ("engine", [("engines",)]),
    "--pass": ("pass_", [("passes",)]),
    "--input": ("inputs", [("models", 0, "input"), ("models", 0, "inputs")]),
    "--step": ("step", [("models", 0, "step")]),
    "--write-yaml": ("write_yaml", []),
}
"""Options that only a model goes with: the name in Options, and the places in a job that they fill."""
_OPTIONS = {place: flag for flag, (_, places) in _FLAGS.items() for place in places} | {("device",): "--device"}
_FORM = "[name=]shape[:dtype[:values]], such as 3,224,224 or ids=128:int64:0,30522"


@dataclass(frozen=True)
class Example:
    """One input: the shape of an item, and of an example its number of items and numpy's name of their type."""

    item: tuple[int | str, ...] | None
    batch: int | None = None
    dtype: str = "float32"
    values: Any = field(default=None, compare=False, repr=False)
    """The example itself."""
    held: Mapping[str, Any] = field(default_factory=dict)
    """A range, a fill or data, as a job has them."""


Inputs = Mapping[str | int, Example]
"""By name, or by position."""


def examples(inputs: Any) -> dict[str | int, Example]:
    """Read a shape, an example, or several of them. Raises ConfigError."""
    if inputs is None:
        return {}
    if isinstance(inputs, Mapping):
        return {str(name): _example(value) for name, value in inputs.items()}
    several = isinstance(inputs, tuple | list) and inputs and not isinstance(inputs[0], Integral)
    return dict(enumerate(map(_example, inputs if several else [inputs])))


def _example(value: Any) -> Example:
    if isinstance(value, tuple | list) and value and all(isinstance(size, Integral) for size in value):
        return Example(tuple(map(int, value)))
    shape = tuple(map(int, getattr(value, "shape", ())))
    if not shape or not hasattr(value, "dtype"):
        raise ConfigError(
            "inputs: expected the shape of one item, such as (3, 224, 224), or a tensor or an array whose first "
            f"dimension is the batch, got {type(value).__name__}"
        )
    return Example(shape[1:], shape[0], str(value.dtype).removeprefix("torch."), value)


def declared(given: Inputs, names: Sequence[str], folder: Path) -> dict[str, Any] | list[Any]:
    """Make a job's `inputs` of the examples: by keyword, or in the order of positions.

    Values of integers and bools, which cannot be drawn, are saved into `folder` under `names`; floats are seeded.
    """
    import numpy as np

    arrays, tensors = {}, []
    for name, example in zip(names, given.values(), strict=True):
        tensor: dict[str, Any] = {} if example.item is None else {"shape": [BATCH, *example.item]}
        tensor |= ({"dtype": example.dtype} if example.dtype else {}) | dict(example.held)
        if example.values is not None and not example.dtype.startswith(("float", "bfloat")):
            arrays[name] = np.asarray(getattr(example.values, "cpu", lambda e=example: e.values)())
            tensor["data"] = str(folder / DATA)
        tensors.append(tensor)
    if arrays:
        folder.mkdir(exist_ok=True)
        np.savez(folder / DATA, **arrays)  # type: ignore[arg-type]
    return tensors if 0 in given else {str(key): tensor for key, tensor in zip(given, tensors, strict=True)}


def named_entry(word: str | Path, given: Inputs, folder: Path, option: str = "inputs") -> dict[str, Any]:
    """Make the entry of an .onnx file, a function "package.module:function", a network or a library's model.

    Examples' integers are saved into `folder`. Raises ConfigError, which names the `option` that gave the inputs.
    """
    if str(word).endswith(".onnx"):
        path = Path(word).resolve()
        if not path.is_file():
            there = sorted(each.name for each in path.parent.glob("*.onnx"))
            raise ConfigError(f"there is no file {word}{nearest(path.name, there, 'give its path')}")
        return {"name": path.stem, "onnx": path, **_taken_by_graph(path, given, folder, option)}
    named: dict[str, Any] = dict(model_entry(str(word)))
    if "factory" not in named:
        named = {"network": str(word), **named}
    return named | taken_by_module(given, folder)


def taken_by_module(given: Inputs, folder: Path) -> dict[str, Any]:
    """Make a job's keys for the inputs of a torch module."""
    if not given:
        return {}
    if list(given) == [0] and given[0].dtype in ("", "float32") and not given[0].held:
        return {"input": given[0].item}
    names = [name_of(key, len(given)) for key in given]
    return {"inputs": declared(given, names, folder)}


def _taken_by_graph(path: Path, given: Inputs, folder: Path, option: str) -> dict[str, Any]:
    """Make a job's keys for an ONNX file's inputs: sizes of symbolic dimensions, and values. Raises ConfigError."""
    if not given:
        return {}
    known = _known_inputs(path)
    by_name = zip(known, given.values(), strict=False) if 0 in given else given.items()
    named = {str(name): example for name, example in by_name}
    if len(named) != len(given) or (0 in given and len(given) != len(known)) or not set(named) <= set(known):
        raise ConfigError(f"{option}: {path.name} has the inputs {', '.join(known)}: give an example of each, or none")
    batches, sizes = batch_symbols(known), dict[str, int]()
    for name, example in named.items():
        shape = known[name] if example.item is None else (known[name][0], *example.item)
        if len(shape) != len(known[name]):
            raise ConfigError(f"{option}: {name} of {path.name} has the shape {known[name]}, which does not fit")
        pairs = [pair for pair in zip(known[name], shape, strict=True) if pair[0] not in batches]
        sizes |= {own: size for own, size in pairs if isinstance(own, str) and isinstance(size, int)}
    tensors: Any = declared(dict(enumerate(named.values())), list(named), folder)
    values = [{key: tensor[key] for key in ("range", "fill", "data") if key in tensor} for tensor in tensors]
    held = {name: each for name, each in zip(named, values, strict=True) if each}
    return {"dimensions": sizes, **({"inputs": held} if held else {})}


def _known_inputs(path: Path) -> dict[str, list[int | str]]:
    try:
        return symbolic_shapes(file_inputs(path))
    except ModelError as error:
        raise ConfigError(str(error)) from None


@dataclass(frozen=True)
class ModelJob:
    """A job as data: the keys that the command line gives; the rest depends on the device."""

    given: Mapping[str, Any]
    fixed_batch: int | None = None
    typed: Mapping[Location, str] = field(default_factory=dict)
    """By place in the job what was typed for it, as errors name it."""

    @property
    def _runs_as_it_is(self) -> bool:
        """Return True for a file that is never converted to other precisions."""
        path = self.given["models"][0].get("onnx")
        return path is not None and not is_float32(Path(path))

    def config(self, device: Device, more: Mapping[str, Any], hardware: str | None = None) -> Config:
        """Check the job on such a device, with `more` keys. Raises ConfigError, which names options."""
        usual = dict(_USUAL[device])
        if self.fixed_batch is not None:
            usual["batch_sizes"] = [self.fixed_batch]
        if self._runs_as_it_is:
            del usual["precisions"]
        job = {"suite": self.given["models"][0]["name"], **usual, "budget": _BUDGET, **self.given, **more}
        if "engines" not in job:
            job["engines"] = [preset.name for preset in self._usual_presets(job, device, hardware)[0]]
        return config_of(job, self.typed)

    def not_installed(self, config: Config, device: Device, hardware: str | None) -> str | None:
        """Name the engines that would be measured if they were installed, and how to; None if there are none."""
        if "engines" in self.given:
            return None
        job = {"passes": config.passes, "precisions": config.precisions}
        lacking = dict.fromkeys(preset.engine for preset in self._usual_presets(job, device, hardware)[1])
        needs = "; ".join(f"{name} ({explain(missing(ENGINES[name], device))})" for name in lacking)
        return f"Left out: {needs}" if needs else None

    def _usual_presets(
        self, job: Mapping[str, Any], device: Device, hardware: str | None
    ) -> tuple[list[Preset], list[Preset]]:
        """Select the presets that can do some of the job: those installed, and those not. Slow compilers come last."""
        kind = "onnx" if "onnx" in self.given["models"][0] else "factory"
        precisions = ["native"] if self._runs_as_it_is else job["precisions"]
        cells = list(product(job.get("passes", ["inference"]), precisions))

        def does(preset: Preset) -> bool:
            engine = ENGINES[preset.engine]
            return any(unsupported(engine, p, device, precision, kind, hardware) is None for p, precision in cells)

        usual = [preset for preset in PRESETS.values() if preset.usual and device in preset.options]
        # Where an unknown word leaves none, the word is the mistake.
        able = [preset for preset in usual if does(preset)] or usual
        able.sort(key=lambda preset: ENGINES[preset.engine].compiles)
        here = [preset for preset in able if not missing(ENGINES[preset.engine], device)]
        return here, [preset for preset in able if preset not in here]


def model_job(word: str, options: Options) -> ModelJob:
    """Make the job that a model's name and the options describe. Raises ConfigError."""
    if (library := library_of(word)) and (why := not_installed(library)):
        raise ConfigError(f"{word} {why}")
    given = _inputs(options.inputs)
    # Nothing is saved: words hold no values.
    entry = {key: value for key, value in named_entry(word, given, Path(), "--input").items() if value}
    if word in CATALOG:
        del entry["network"]
    if options.step is not None:
        entry |= {**model_entry(word, options.step), "step": options.step}
    shapes = _shapes(options.shapes)
    fixed = _fixed_batch(entry, shapes) if "onnx" in entry else None
    lists: dict[str, Any] = {
        "engines": [name for text in options.engine for name in _words(text)],
        "passes": options.pass_ and _words(options.pass_),
        "precisions": options.precision and _words(options.precision),
        "batch_sizes": options.batch and _numbers(options.batch),
        "shapes": shapes,
    }
    job = {"models": [{k: str(v) if isinstance(v, Path) else v for k, v in entry.items()}]}
    job |= {key: values for key, values in lists.items() if values}
    return ModelJob(job, fixed, {("models", 0): word, **_OPTIONS})


def refuse_model_options(options: Options, what: str) -> None:
    """Raise ConfigError for an option that goes only with a model's name on the command line."""
    given = [flag for flag, (name, _) in _FLAGS.items() if getattr(options, name)]
    if given:
        raise ConfigError(f"{given[0]} goes with a model, such as {PROGRAM} resnet50 {given[0]} …; {what}")


def write_job(config: Config, path: Path) -> None:
    """Write the YAML that says the same as the command line did; its paths are relative to it where they can be."""
    data = config.model_dump(mode="json", exclude_unset=True, exclude_none=True, by_alias=True, exclude={"suite"})
    data["engines"] = [each["name"] if each["name"] == each["label"] else each for each in data["engines"]]
    for each in data["models"] if data.get("shapes") else []:
        each.pop("shapes", None)  # Those of the job, which it was given (`with_shapes`).
    words = [each.get("network") or each["name"] for each in data["models"]]
    data["models"] = [w if model_entry(w) == each else each for w, each in zip(words, data["models"], strict=True)]
    usual = Budget()
    data["budget"] = {key: value for key, value in data["budget"].items() if value != getattr(usual, key)}
    if any("factory" in each for each in data["models"] if isinstance(each, dict)):
        data["import_from"] = list(config.path)
    here = relative_to(path.resolve().parent, data)
    said = {key: value for key, value in here.items() if value not in ({}, ["."])}
    path.write_text(f"# Run it with: {PROGRAM} {shlex.quote(path.name)}\n{to_yaml(said)}")


def _words(text: str) -> list[str]:
    return [word.strip() for word in text.split(",") if word.strip()]


def _numbers(text: str) -> list[int | str]:
    return [int(word) if word.isdigit() else word for word in _words(text)]


def _shapes(texts: Sequence[str]) -> dict[str, list[Any]]:
    """Read "sequence=32,128" as sizes by name. Raises ConfigError."""
    shapes: dict[str, list[Any]] = {}
    for text in texts:
        name, equals, sizes = (part.strip() for part in text.partition("="))
        if not equals or not name or not _words(sizes):
            raise ConfigError(f"--shapes {text}: is not of the form NAME=SIZES, such as sequence=32,128")
        shapes.setdefault(name, []).extend(_numbers(sizes))
    return shapes


def _inputs(texts: Sequence[str]) -> dict[str | int, Example]:
    """Read `--input` by name or by place. Raises ConfigError."""
    read = [_input(text) for text in texts]
    if len({name is None for name, _ in read}) > 1:
        raise ConfigError("--input: give every input a name of its own, or none of them")
    return {place if name is None else name: example for place, (name, example) in enumerate(read)}


def _input(text: str) -> tuple[str | None, Example]:
    """Read "ids=128:int64:0,30522" as name and example."""
    name, _, rest = text.rpartition("=")
    shape, dtype, values = (part.strip() for part in f"{rest}::".split(":", 3)[:3])
    sizes, held = [size for size in _numbers(shape) if size != BATCH], _held(values)
    if held is None or not all(size if isinstance(size, int) else size.isidentifier() for size in sizes):
        raise ConfigError(f"--input {text}: is not of the form {_FORM}; the batch is left out, and comes first")
    if dtype and dtype not in DTYPES:
        raise ConfigError(f"--input {text}: unknown type '{dtype}'{nearest(dtype, DTYPES)}")
    return name.strip() or None, Example(tuple(sizes) if shape else None, dtype=dtype, held=held)


def _held(values: str) -> dict[str, Any] | None:
    """Read what an input holds: a range, a fill or a file's array; None for anything else."""
    if not values or values in FILLS:
        return {"fill": values} if values else {}
    if Path(values).suffix in (".npy", ".npz"):
        return {"data": values}
    try:
        first, last = (float(word) if "." in word or "e" in word else int(word) for word in values.split(","))
    except ValueError:
        return None
    return {"range": [first, last]}


def _fixed_batch(entry: Mapping[str, Any], varied: Mapping[str, Sequence[Any]]) -> int | None:
    """Return the only batch size of an ONNX file, or None if it is free.

    Raises ConfigError where the sizes of its inputs are not known.
    """
    path = entry["onnx"]
    symbols = {size for shape in _known_inputs(path).values() for size in shape}
    sizes = {**entry.get("dimensions", {}), **{name: own[0] for name, own in varied.items() if name in symbols}}
    try:
        return fixed_batch(graph_specs(ModelSource(entry["name"], onnx=path, dimensions=sizes), path))
    except ModelError as error:
        raise ConfigError(f"{error}\n  or on the command line: --input {_FORM}") from None
