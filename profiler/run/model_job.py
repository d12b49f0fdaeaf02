"""Make a job of a model that the command line names, of the options that go with it, and of what is usual here."""

from __future__ import annotations

import importlib.util
import math
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any

import yaml

from engines.catalog import ENGINES, PRESETS, Device, Preset, unsupported
from engines.requirements import explain, missing
from exporters.catalog import CATALOG
from exporters.declared_inputs import BATCH, DTYPES, FILLS, is_integer
from exporters.errors import closest
from exporters.libraries.catalog import LIBRARIES, library_of, model_entry, not_installed
from exporters.onnx_files import is_float32
from exporters.source import ModelError, ModelSource
from profiler.errors import PROGRAM, ConfigError, nearest
from profiler.job.case import Budget
from profiler.job.config import Config, config_of
from profiler.job.yaml_lines import Location
from profiler.options import Run as Options
from profiler.results.run_folder import relative_to
from profiler.run.example_inputs import Example, named_entry

_USUAL: Mapping[Device, Mapping[str, Any]] = {
    "cpu": {"precisions": ["fp32"], "batch_sizes": [1, 16]},
    "cuda": {"precisions": ["fp32", "tf32", "fp16"], "batch_sizes": [1, 64]},
}
"""What is measured where the command line does not say: one item, and as many as keep the device busy."""
_BUDGET = {"seconds": 1.0}
"""Enough for a first answer, of which the first rows are there after seconds."""
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
"""What only a model goes with: by option its name in Options, and the places in a job that it fills."""
_OPTIONS = {place: flag for flag, (_, places) in _FLAGS.items() for place in places} | {("device",): "--device"}
_FORM = "[name=]shape[:dtype[:values]], such as 3,224,224 or ids=128:int64:0,30522"


@dataclass(frozen=True)
class ModelJob:
    """A job as data: the keys that the command line gives; what it leaves open depends on the device."""

    given: Mapping[str, Any]
    fixed_batch: int | None = None
    typed: Mapping[Location, str] = field(default_factory=dict)
    """By place in the job what was typed for it, as errors name it."""

    @property
    def _entry(self) -> Mapping[str, Any]:
        entry: Mapping[str, Any] = self.given["models"][0]
        return entry

    @property
    def _runs_as_it_is(self) -> bool:
        """Whether it is an .onnx file of which no other precisions are made."""
        return "onnx" in self._entry and not is_float32(Path(self._entry["onnx"]))

    def config(self, device: Device, more: Mapping[str, Any], hardware: str | None = None) -> Config:
        """The job on such a device, with `more` keys, checked as a YAML is. Raises ConfigError, which names options."""
        usual = dict(_USUAL[device])
        if self.fixed_batch is not None:
            usual["batch_sizes"] = [self.fixed_batch]
        if self._runs_as_it_is:
            del usual["precisions"]
        job = {"suite": self._entry["name"], **usual, "budget": _BUDGET, **self.given, **more}
        if "engines" not in job:
            job["engines"] = [preset.name for preset in self._usual_presets(job, device, hardware)[0]]
        keys = ("models", "engines", "passes", "precisions", "batch_sizes", "shapes")
        in_order = {key: job.pop(key) for key in keys if key in job}
        return config_of(in_order | job, self.typed)

    def not_installed(self, config: Config, device: Device, hardware: str | None) -> str | None:
        """What would be measured, too, if it were installed, and how to; None where nothing is lacking."""
        if "engines" in self.given:
            return None
        job = {"passes": config.passes, "precisions": config.precisions}
        lacking = dict.fromkeys(preset.engine for preset in self._usual_presets(job, device, hardware)[1])
        needs = [f"{name} ({explain(missing(ENGINES[name], device))})" for name in lacking]
        return f"Left out: {'; '.join(needs)}" if needs else None

    def _usual_presets(
        self, job: Mapping[str, Any], device: Device, hardware: str | None
    ) -> tuple[list[Preset], list[Preset]]:
        """The presets that can do some of the job on the device: those that are installed, and those that are not.

        What compiles for long comes last.
        """
        kind = "onnx" if "onnx" in self._entry else "factory"
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
    """The job that a model's name and the options describe. Raises ConfigError."""
    _check_source(word)
    given = _inputs(options.inputs)
    if ":" in word and not library_of(word):
        _check_factory_inputs(word, given)
    if word in CATALOG and given:
        raise ConfigError(f"--input {options.inputs[0]}: {word} has its own input shape; leave it out")
    # Nothing is saved: words hold no values.
    entry = {key: value for key, value in named_entry(word, given, Path(), "--input").items() if value}
    if word in CATALOG:
        del entry["network"]
    if options.step is not None:
        entry |= {**model_entry(word, options.step), "step": options.step}
    shapes = _shapes(options.shapes)
    if "factory" in entry:
        _check_sizes(given, shapes)
    fixed = _check_graph(entry, options.batch, shapes) if "onnx" in entry else None
    if "onnx" in entry and options.precision and not is_float32(entry["onnx"]):
        why = f"{word} is not float32 throughout, so that it runs as it is, with its own types; leave it out"
        raise ConfigError(f"--precision {options.precision}: {why}")
    lists: dict[str, Any] = {
        "shapes": shapes or None,
        "engines": [name for text in options.engine for name in _words(text)] or None,
        "passes": None if options.pass_ is None else _words(options.pass_),
        "precisions": None if options.precision is None else _words(options.precision),
        "batch_sizes": None if options.batch is None else [int(w) if w.isdigit() else w for w in _words(options.batch)],
    }
    said = {key: values for key, values in lists.items() if values is not None}
    job = {"models": [{k: str(v) if isinstance(v, Path) else v for k, v in entry.items()}], **said}
    return ModelJob(job, fixed, {("models", 0): word, **_OPTIONS})


def refuse_model_options(options: Options, what: str) -> None:
    """Raises ConfigError for an option that only a model's name on the command line goes with."""
    given = [flag for flag, (name, _) in _FLAGS.items() if getattr(options, name)]
    if given:
        raise ConfigError(f"{given[0]} goes with a model, such as {PROGRAM} resnet50 {given[0]} …; {what}")


def check_new_file(path: Path) -> None:
    """Raises ConfigError for a file that is there already, or could not be written."""
    if path.exists():
        raise ConfigError(f"--write-yaml {path}: there is such a file already; give another name")
    if not path.resolve().parent.is_dir():
        raise ConfigError(f"--write-yaml {path}: there is no folder {path.parent}")


def write_job(config: Config, path: Path) -> None:
    """Write the YAML that says the same as the command line did; its paths are relative to it where they can be."""
    data = config.model_dump(mode="json", exclude_unset=True, exclude_none=True, by_alias=True, exclude={"suite"})
    data["engines"] = [each["name"] if each["name"] == each["label"] else each for each in data["engines"]]
    for each in data["models"] if data.get("shapes") else []:
        each.pop("shapes", None)  # Those of the job, which it was given (`with_shapes`).
    data["models"] = [_as_word(each) for each in data["models"]]
    usual = Budget()
    data["budget"] = {key: value for key, value in data["budget"].items() if value != getattr(usual, key)}
    if any("factory" in each for each in data["models"] if isinstance(each, dict)):
        data["import_from"] = list(config.path)
    here = relative_to(path.resolve().parent, data)
    said = {key: value for key, value in here.items() if value not in ({}, ["."])}
    text = yaml.safe_dump(said, sort_keys=False, default_flow_style=None, allow_unicode=True, width=110)
    path.write_text(f"# Run it with: {PROGRAM} {shlex.quote(path.name)}\n{text}")


def _as_word(entry: dict[str, Any]) -> Any:
    """A model's entry as the word that says it all, where there is one."""
    word = entry.get("network") or entry["name"]
    return word if model_entry(word) == entry else entry


def _words(text: str) -> list[str]:
    return [word.strip() for word in text.split(",") if word.strip()]


def _shapes(texts: Sequence[str]) -> dict[str, list[Any]]:
    """ "sequence=32,128" as sizes by name. Raises ConfigError."""
    shapes: dict[str, list[Any]] = {}
    for text in texts:
        name, equals, sizes = (part.strip() for part in text.partition("="))
        if not equals or not name or not _words(sizes):
            raise ConfigError(f"--shapes {text}: is not of the form NAME=SIZES, such as sequence=32,128")
        shapes.setdefault(name, []).extend(int(word) if word.isdigit() else word for word in _words(sizes))
    return shapes


def _check_sizes(given: Mapping[str | int, Example], shapes: Mapping[str, Sequence[Any]]) -> None:
    """Raises ConfigError for a named size in `--input` that `--shapes` has no sizes for."""
    named = dict.fromkeys(size for example in given.values() for size in example.item or () if isinstance(size, str))
    named.pop(BATCH, None)
    if lacking := [size for size in named if size not in shapes]:
        strays = [f"--shapes {name}: no input has that size; " for name in shapes if name not in named]
        options = " ".join(f"--shapes {size}=32,128" for size in lacking)
        raise ConfigError(f"--input: {', '.join(lacking)} has no size; {''.join(strays)}give {options}")


def _check_source(word: str) -> None:
    """Raises ConfigError for a library that is not installed, and for a source's name that is misspelt."""
    prefix, colon, name = word.partition(":")
    if library := library_of(word):
        if why := not_installed(library):
            raise ConfigError(f"{word} {why}")
        return
    sources = {library.package: library.prefix for library in LIBRARIES.values()} | {each: each for each in LIBRARIES}
    close = closest(prefix, sources) if colon else []
    is_own = (
        Path(f"{prefix}.py").exists()
        or Path(prefix).is_dir()
        or ("." not in prefix and prefix not in sources and importlib.util.find_spec(prefix) is not None)
    )
    if close and not is_own:
        raise ConfigError(f"'{word}': unknown source '{prefix}'; did you mean '{sources[close[0]]}:{name}'?")


def _inputs(texts: Sequence[str]) -> dict[str | int, Example]:
    """What `--input` says, by name or by place. Raises ConfigError."""
    read = [_input(text) for text in texts]
    names = [name for name, _ in read]
    if len({name is None for name in names}) > 1:
        raise ConfigError("--input: give every input a name, or none of them")
    if twice := next((name for name in names if name is not None and names.count(name) > 1), None):
        raise ConfigError(f"--input: {twice} is given twice; keep one")
    return {place if name is None else name: example for place, (name, example) in enumerate(read)}


def _input(text: str) -> tuple[str | None, Example]:
    """ "ids=128:int64:0,30522" as name and example."""
    name, equals, rest = text.rpartition("=")
    shape, dtype, values = (part.strip() for part in f"{rest}::".split(":", 3)[:3])
    sizes = _words(shape)
    if sizes[:1] == [BATCH]:
        sizes = sizes[1:]
    if (equals and not name) or not all(int(size) if size.isdigit() else size.isidentifier() for size in sizes):
        raise ConfigError(f"--input {text}: is not of the form {_FORM}; the batch is left out, and comes first")
    if dtype and dtype not in DTYPES:
        raise ConfigError(f"--input {text}: unknown type '{dtype}'{nearest(dtype, DTYPES)}")
    item = tuple(int(size) if size.isdigit() else size for size in sizes) if shape else None
    return name.strip() or None, Example(item, dtype=dtype, held=_held(text, values) if values else {})


def _held(text: str, values: str) -> dict[str, Any]:
    """What an input holds: a range, a fill or a file's array."""
    if values in FILLS:
        return {"fill": values}
    if Path(values).suffix in (".npy", ".npz"):
        return {"data": values}
    try:
        first, last = (float(word) if "." in word or "e" in word else int(word) for word in values.split(","))
    except ValueError:
        first, last = math.nan, math.nan
    if not first < last:
        raise ConfigError(
            f"--input {text}: '{values}' is no range such as 0,30522 (up to, but not including, the second number), "
            f"nor one of {', '.join(FILLS)}, nor a .npy or .npz file"
        )
    return {"range": [first, last]}


def _check_factory_inputs(word: str, given: Mapping[str | int, Example]) -> None:
    """Raises ConfigError where a factory's inputs are not known."""
    if not given:
        raise ConfigError(f"{word} needs the shape of one item, for example --input 3,224,224; several: {_FORM}")
    for name, example in given.items():
        typed = f"{name}=" if isinstance(name, str) else ""
        typed += ",".join(map(str, example.item or ()))
        if example.item is None and "data" not in example.held:
            raise ConfigError(f"--input {typed}: give a shape, for example {typed}128")
        if is_integer(example.dtype) and not example.held:
            why = "nothing says which values it may have"
            raise ConfigError(
                f"--input {typed}:{example.dtype}: {why}; for example --input {_integers(typed, example.dtype)}"
            )


def _integers(typed: str, dtype: str) -> str:
    return f"{typed}:{dtype}:{'lengths' if 'mask' in typed else '0,1000'}"


def _check_graph(entry: Mapping[str, Any], batch: str | None, varied: Mapping[str, Sequence[Any]]) -> int | None:
    """The only batch size of an ONNX file, or None if it is free. Raises ConfigError where more must be said of it."""
    from exporters.inputs import batch_symbols, file_inputs, fixed_batch, graph_dtype, graph_specs, symbolic_shapes

    path, held = entry["onnx"], entry.get("inputs", {})
    try:
        inputs = file_inputs(path)
        shapes = symbolic_shapes(inputs)
        batches, lacking = batch_symbols(shapes), []
        symbols = {size for shape in shapes.values() for size in shape}
        sizes = {**entry.get("dimensions", {}), **{name: own[0] for name, own in varied.items() if name in symbols}}
        for value in inputs:
            free = [s for s in shapes[value.name] if isinstance(s, str) and s not in batches and s not in sizes]
            dtype = graph_dtype(entry["name"], value, path)
            if free or (is_integer(dtype) and value.name not in held):
                items = [s if isinstance(s, int) else sizes.get(s, 128) for s in shapes[value.name] if s not in batches]
                typed = f"{value.name}={','.join(map(str, items))}"
                lacking.append(f"--input {_integers(typed, dtype) if is_integer(dtype) else typed}")
        if lacking:
            raise ConfigError(
                f"{path.name}: sizes or values of its inputs are not known; for example {' '.join(lacking)}"
            )
        fixed = fixed_batch(graph_specs(ModelSource(entry["name"], onnx=path, dimensions=sizes), path))
    except ModelError as error:
        raise ConfigError(str(error)) from None
    if fixed is not None and batch is not None and _words(batch) != [str(fixed)]:
        why = f"the batch of {path.name} is fixed to {fixed}; leave it out, or export the file with a free one"
        raise ConfigError(f"--batch {batch}: {why}")
    return fixed
