"""Read a YAML file into a `Config`, the job; a mistake is a `ConfigError` with file, line, key and remedy."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Annotated, Any, ClassVar

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    PlainValidator,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)

from engines.catalog import ENGINES, PRESETS, Engine
from engines.options import DEVICES, HEADS, OPTIMIZERS, PASSES, PRECISIONS, Head, Optimizer, Option, Pass, Training
from exporters import named_files
from exporters.catalog import CATALOG, LARGEST, LAYERS, Count, Price, Replicates
from exporters.dataset import is_function
from exporters.libraries import LIBRARIES, folder_of, library_of, model_entry
from exporters.metrics import METRICS
from exporters.source import ModelSource
from profiler.errors import ConfigError
from profiler.job.case import Budget, Filter, read_option
from profiler.job.mistakes import EXPECTED, Location, Origin, check_word, mistake, read, yaml_text
from profiler.machine.target import DEVICE_WORDS, is_device
from profiler.published.studies import STUDIES


def _word(valid: Iterable[str], kind: str) -> BeforeValidator:
    return BeforeValidator(lambda word: check_word(word, valid, kind))


def _part_of_id(subject: str) -> AfterValidator:
    """Require characters that ids, tables and file names allow."""
    rule = f"{subject} is part of its rows' ids: '{{}}' must be printable, non-empty, and without '/' or ','"
    return _must(lambda name: name and not {"/", ","} & set(name) and name.isprintable(), rule)


def _below_yaml(path: Path, info: ValidationInfo) -> Path:
    # Resolve only parents: in Hugging Face's cache, model.onnx links to a file without a suffix.
    whole = _folder_of_yaml(info) / path
    return Path(os.path.realpath(whole.parent), whole.name) if ".." in whole.parts else whole


def _folder_of_yaml(info: ValidationInfo) -> Path:
    folder: Path = (info.context or {}).get("folder", Path.cwd())
    return folder


def _must(holds: Callable[[Any], bool], text: str) -> AfterValidator:
    """Return a validator that raises a mistake with the text unless `holds(value)`."""

    def check(value: Any) -> Any:
        try:
            is_right = holds(value)
        except ConfigError as error:  # A path may be unreadable.
            raise mistake(str(error)) from None
        if not is_right:
            raise mistake(text.format(value))
        return value

    return AfterValidator(check)


def _is_factory(name: str) -> bool:
    module, _, function = name.partition(":")
    return bool(module and function) and ":" not in function and not module.endswith(".py")


def _data(word: str, info: ValidationInfo) -> str:
    """Check the name of a function, or make a path absolute."""
    if is_function(word):
        if not _is_factory(word):
            raise mistake(f"'{word}' is not of the form package.module:function, without .py")
        return word
    path = _below_yaml(_folder_of_yaml(info) / word, info)
    if not (path.is_dir() or (path.suffix == ".npz" and named_files.is_file(path))):
        raise mistake(f"{path} is no folder and no .npz file; use numpy.savez(FILE, x=…, labels=…), or a function")
    return str(path)


def _library_folder(word: str, info: ValidationInfo) -> str:
    """Make the path absolute in the name of a library's model that is a folder, such as hf:../bert."""
    folder = folder_of(word, _folder_of_yaml(info))
    return word if folder is None else f"{word.partition(':')[0]}:{folder}"


def _filter(data: Any, info: ValidationInfo) -> Filter:
    """Validate conditions: a misspelt word would silently exclude nothing."""
    conditions = Filter.of(data)
    if not {"engines", "models", "layers"} <= info.data.keys():
        return conditions  # Their own mistakes come first.
    engines = [*(entry.label for entry in info.data["engines"]), *PRESETS, *ENGINES]
    subjects = [*info.data["models"], *info.data["layers"]]
    valid: dict[str, Iterable[str]] = {
        "model": [*(subject.name for subject in subjects), *CATALOG, *LAYERS],
        **dict.fromkeys(("engine", "variant"), engines),
        "pass": PASSES,
        "precision": PRECISIONS,
        "optimizer": OPTIMIZERS,
    }
    for key in conditions.conditions.keys() & valid:
        for word in conditions.conditions[key]:
            check_word(word, valid[key], key, at=(key,))
    return conditions


_Some = Field(min_length=1)
BatchSizes = Annotated[list[Count], _Some]
Number = Annotated[float, Field(ge=-(2.0**63), le=2.0**63)]
Size = Annotated[int, Field(ge=0, le=LARGEST)]
"""A dimension's; a cache may be empty."""
Shapes = dict[str, Annotated[list[Size], _Some]]
"""Measured sizes by named dimension."""
Passes = list[Annotated[Pass, _word(PASSES, "pass")]]
Precision = Annotated[str, _word([p for p in PRECISIONS if p != "native"], "precision")]
Variant = Annotated[str, _word(("fp16", "bf16", "int8"), "precision")]
BelowYaml = Annotated[Path, Field(strict=False), AfterValidator(_below_yaml)]
"""A path relative to the YAML."""
Exclusion = Annotated[Filter, PlainValidator(_filter), PlainSerializer(lambda excluded: dict(excluded.conditions))]
File = Annotated[BelowYaml, _must(named_files.is_file, "there is no file {}; paths are relative to the YAML")]
Arrays = Annotated[
    BelowYaml, _must(lambda path: named_files.exists(path) and any(path.glob("*.npy")), "there are no .npy files in {}")
]
Data = Annotated[str, AfterValidator(_data)]
_METRICS = f"'{{}}' is no metric; valid: {', '.join(METRICS)}, package.module:function"
Metric = Annotated[str, _must(lambda word: word in METRICS or _is_factory(word), _METRICS)]
Factory = Annotated[str, _must(_is_factory, "'{}' is not of the form package.module:function, without .py, or hf:NAME")]
Folder = Annotated[BelowYaml, AfterValidator(lambda path: Path(os.path.realpath(path)))]


class _Strict(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class GraphInput(_Strict):
    """Fill an input of an ONNX file: numbers in a range, or an array of real values, the batch first."""

    range: tuple[Number, Number] | None = Field(default=None, strict=False)
    """The first number, and the excluded end."""
    data: File | None = None

    @model_validator(mode="after")
    def _one(self) -> GraphInput:
        if (self.range is None) == (self.data is None) or (self.range and self.range[0] >= self.range[1]):
            raise mistake("must be {range: [0, 30522]}, whose end is excluded, or {data: FILE.npy}")
        return self


class ModelEntry(_Strict):
    """A model, with the keys of ModelSource; its shapes and batch sizes override the job's."""

    name: Annotated[str, _part_of_id("a model's name")]
    network: Annotated[str, AfterValidator(_library_folder)] | None = None
    """The canonical network of a renamed entry, or a library's model, such as hf:BertModel."""
    step: str | None = None
    factory: Factory | None = None
    onnx: File | None = None
    """The model itself; next to a factory or a network, the graph to use instead of an export."""
    variants: dict[Variant, File] = {}
    """Files of the model by precision, such as a quantized one."""
    weights: File | None = None
    key: str | None = None
    prefix: str = ""
    input: tuple[Count, ...] | None = Field(default=None, strict=False)
    inputs: dict[str, GraphInput] = {}
    outputs: list[str] = []
    dimensions: dict[str, Size] = {}
    batch: dict[str, Annotated[int, Field(ge=0)] | None] = {}
    shapes: Shapes | None = None
    options: dict[str, Any] = {}
    calibration: Arrays | None = None
    data: Data | None = None
    metric: Metric | None = None
    batch_sizes: BatchSizes | None = None

    @model_validator(mode="before")
    @classmethod
    def _word(cls, data: Any) -> Any:
        word = data.get("network", data.get("name")) if isinstance(data, dict) else None
        if not isinstance(word, str) or not library_of(word):
            return data
        named = {"name": data["name"]} if data.get("name", word) != word else {}
        return {**data, **model_entry(word, data.get("step")), **named}

    @property
    def is_file(self) -> bool:
        """True for an .onnx file without a torch module."""
        return self.onnx is not None and not self.factory and not self.network

    @property
    def library(self) -> str | None:
        """The prefix of the model's library."""
        library = library_of(self.network or "")
        return library.prefix if library else None

    @model_validator(mode="after")
    def _one_kind(self) -> ModelEntry:
        if self.factory and self.network:
            raise mistake("a model has a factory or a network, not both")
        if self.input is not None and not self.factory:
            name = self.network or self.name
            raise mistake(f"{name} knows its input's shape: leave out input, or set dimensions instead")
        if self.inputs and not self.is_file:
            raise mistake("inputs need an .onnx file; a factory returns its inputs: (module, example_inputs)", "inputs")
        if self.metric and not self.data:
            raise mistake("a metric needs data with labels", "metric")
        if self.batch and not self.is_file and (not self.factory or self.input is not None):
            raise mistake("the inputs are known: the batch is their first axis; leave batch out", "batch")
        if self.is_file and (self.weights or self.options):
            raise mistake("an onnx file brings its own weights: leave out weights and options")
        if self.step is not None:
            steps = LIBRARIES[self.library].steps if self.library else ()
            check_word(self.step, steps, "step", "(a step is of a model such as hf:GPT2LMHeadModel)", at=("step",))
        if self.network is not None and not self.library:
            check_word(self.network, CATALOG, "network", at=("network",))
        elif not (self.network or self.factory or self.onnx):
            check_word(self.name, CATALOG, "model", "(or give the model a network, a factory or an onnx file)")
        return self

    def source(self) -> ModelSource:
        data = self.model_dump(exclude={"input", "inputs", "outputs", "batch_sizes", "shapes", "variants"})
        data["graphs"] = dict(self.variants)
        if self.onnx and not self.is_file:
            data |= {"onnx": None, "graphs": {"fp32": self.onnx, **self.variants}}
        inputs: dict[str, Any] = {name: value.data or value.range for name, value in self.inputs.items()}
        if self.library:
            data |= {"factory": self.network, "network": None, "library": self.library}
        return ModelSource(**data, input_shape=self.input, inputs=inputs, outputs=tuple(self.outputs))


class LayerEntry(_Strict):
    """A single layer by its name, such as L1."""

    name: Annotated[str, _word(LAYERS, "layer")]
    shapes: ClassVar[None] = None
    batch_sizes: BatchSizes | None = None

    def source(self) -> ModelSource:
        return ModelSource(self.name, layer=LAYERS[self.name])


class Machine(_Strict):
    """Name and price a run's machine, for tables that compare machines."""

    label: str | None = None
    cloud: str | None = None
    instance: str | None = None
    usd_per_hour: Annotated[Price, Field(strict=False)] | None = None
    price_source: str | None = None
    """Source and date of the price, which tables print."""


class DeviceEntry(Machine):
    """A kind of device of a Ray cluster: cpu, an accelerator's type such as H100, or a resource of the cluster."""

    kind: Annotated[str, _part_of_id("a kind of device")]

    @model_validator(mode="before")
    @classmethod
    def _word(cls, data: Any) -> Any:
        return {"kind": data} if isinstance(data, str) else data


class TrainingEntry(_Strict):
    """Configure training beyond forward and backward; each optimizer has cases of its own."""

    optimizers: Annotated[list[Annotated[Optimizer, _word(OPTIMIZERS, "optimizer")]], _Some] = ["none"]
    head: Annotated[Head, _word(HEADS, "head")] = "cross-entropy"
    loss: str | dict[str, str] = {}
    """A user's loss instead of the head's, for all models or by model."""
    dropout: bool = False
    input_gradient: bool | list[str] = False
    """Compute the gradient of the input, for all models or for those named."""
    accumulation: Annotated[list[Count], _Some, BeforeValidator(lambda n: [n] if isinstance(n, int) else n)] = [1]
    """Number of parts of the batch whose gradients add up; each number has cases of its own."""
    frozen: list[str] | dict[str, list[str]] = []
    """Parameters that are not trained, in all models or by model."""

    @model_validator(mode="after")
    def _check_words(self) -> TrainingEntry:
        for word in self.losses:
            if not _is_factory(word):
                raise mistake(f"'{word}' is not of the form package.module:function, without .py", "loss")
        frozen = [self.frozen] if isinstance(self.frozen, list) else self.frozen.values()
        if strange := [word for words in frozen for word in words if not word or {"/", ",", "+"} & set(word)]:
            expected = "the name of a parameter or module, or a pattern such as '*.bias'"
            raise mistake(f"'{strange[0]}' is not {expected}", "frozen")
        return self

    def settings(self, model: str) -> list[Training]:
        """Return a model's settings, one for each optimizer and accumulation."""
        names, losses = self.input_gradient, self.loss
        with_input = names if isinstance(names, bool) else model in names
        head = losses if isinstance(losses, str) else losses.get(model, self.head)
        frozen = tuple(self.frozen if isinstance(self.frozen, list) else self.frozen.get(model, ()))
        axes = product(self.optimizers, self.accumulation)
        return [Training(optimizer, head, self.dropout, with_input, parts, frozen) for optimizer, parts in axes]

    @property
    def losses(self) -> list[str]:
        return [self.loss] if isinstance(self.loss, str) else list(self.loss.values())


class LargestBatch(_Strict):
    """Search the largest batch that fits up to `limit`, until its bounds are within `resolution`."""

    limit: Count = 65536
    resolution: Annotated[float, Field(gt=0, lt=1, strict=False)] = 0.05
    models: list[str] = []
    """Search only these models, and only these passes; empty means all."""
    passes: Passes = []

    def covers(self, model: str, pass_: str) -> bool:
        """Return whether this model's largest batch is searched in this pass."""
        return (not self.models or model in self.models) and (not self.passes or pass_ in self.passes)


class EngineEntry(BaseModel):
    """An engine with options under a label. Other keys are options of the engine."""

    model_config = ConfigDict(frozen=True, extra="allow", strict=True)
    name: Annotated[str, BeforeValidator(lambda name: check_word(name, (*PRESETS, *ENGINES), "engine"))]
    label: Annotated[str, _part_of_id("a label")]

    @model_validator(mode="before")
    @classmethod
    def _label(cls, data: Any) -> Any:
        if isinstance(data, dict) and "label" not in data and len(data) > 1:
            raise mistake("an engine with options needs a label, which names its rows, for example label: ort-nhwc")
        return {"label": data.get("name"), **data} if isinstance(data, dict) else data

    @model_validator(mode="after")
    def _options(self) -> EngineEntry:
        declared = self.engine.options.declared()
        for key, value in self.options.items():
            check_word(key, declared, f"option of {self.name}", at=(key,))
            _check_option(key, value, declared[key])
        if self.label in PRESETS and self.label != self.name:
            raise mistake(f"the label {self.label} is a preset's name; choose another")
        return self

    @property
    def engine(self) -> Engine:
        return ENGINES[PRESETS[self.name].engine if self.name in PRESETS else self.name]

    @property
    def options(self) -> dict[str, Any]:
        return dict(self.model_extra or {})


class Config(_Strict):
    """The job. Its blocks `cpu` and `cuda` are merged before validation."""

    suite: str = ""
    models: list[ModelEntry] = []
    layers: list[LayerEntry] = []
    engines: Annotated[list[EngineEntry], _Some]
    passes: Annotated[Passes, Field(min_length=1)] = ["inference"]
    precisions: Annotated[list[Precision], _Some] = ["fp32"]
    batch_sizes: BatchSizes = [1]
    shapes: Shapes = {}
    """Sizes by named dimension; a model is measured at every combination of the dimensions that its inputs have."""
    training: TrainingEntry = TrainingEntry()
    largest_batch: LargestBatch | None = None
    search: bool = False
    """Try the engines' options on the best configurations, and confirm the winner."""
    published: Annotated[str, _word(STUDIES, "published benchmark")] | None = None
    """The published benchmark to show next to the run's figures."""
    machine: Machine = Machine()
    devices: Annotated[
        list[DeviceEntry], _must(lambda d: len({e.kind for e in d}) == len(d), "a kind of device is listed twice")
    ] = []
    """Kinds of devices of a Ray cluster, for --ray; each measures the whole job."""
    device: Annotated[str, _must(is_device, f"'{{}}' is not a device; valid: {DEVICE_WORDS}")] = "auto"
    replicates: Replicates = 1
    output: BelowYaml = Path("results")
    budget: Budget = Budget()
    energy: bool = False
    profile: bool = False
    """Time each layer of the measured cases afterwards."""
    skip: bool = False
    """Measure in waves, and skip cases that tell nothing new (run/search.py)."""
    exclude: list[Exclusion] = []
    import_from: list[Folder] = Field(default=[Path()], validate_default=True)
    """Folders of factories, relative to the YAML."""

    @field_validator("models", "layers", "engines", mode="before")
    @classmethod
    def _words(cls, entries: Any, info: ValidationInfo) -> Any:
        entry = model_entry if info.field_name == "models" else lambda word: {"name": word}
        return [entry(e) if isinstance(e, str) else e for e in entries] if isinstance(entries, list) else entries

    @model_validator(mode="after")
    def _check_subjects(self) -> Config:
        if not self.subjects:
            raise mistake("must have at least one entry", "models")
        if self.models and self.layers:
            raise mistake("leave this out: a job has models or layers, not both", "models")
        return self

    @property
    def path(self) -> tuple[str, ...]:
        """The folders of factories, to put in front of sys.path."""
        return tuple(map(str, self.import_from))

    @property
    def subjects(self) -> Sequence[ModelEntry | LayerEntry]:
        """The measured models or layers."""
        return self.layers or self.models


_OPTIONS = {"budget": "--seconds", "machine": "--machine"}
"""Options that set some keys of a block."""


class JobFile:
    """A job's file, read once. Raises ConfigError if it cannot be read or is not YAML."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._data, self._lines = read(path)

    def config(
        self, device_kind: str = "", overrides: Mapping[str, Any] | None = None, hardware: str | None = None
    ) -> Config:
        """Validate the job; the block named `device_kind` replaces keys, then `overrides` do.

        Ignores `hardware`, which ModelJob.config needs. Raises ConfigError for a mistake.
        """
        typed: dict[Location, str] = {}
        for key, value in (overrides or {}).items():
            is_block = key in _OPTIONS
            typed |= {(key, leaf): _OPTIONS[key] for leaf in value} if is_block else {(key,): f"--{key}"}
        data, origin = dict(self._data), Origin(self.path, self._lines, typed, block=device_kind)
        blocks: dict[str, Any] = {kind: data.pop(kind, None) for kind in DEVICES}
        block = blocks.get(device_kind) or {}
        if not isinstance(block, dict):
            raise origin.error("expected keys and values", (device_kind,))
        defaults = {"suite": self.path.stem}
        return _checked(merged(defaults, data, block, overrides or {}), origin, self.path.resolve().parent)


def merged(*jobs: Mapping[str, Any]) -> dict[str, Any]:
    """Merge jobs; later keys win, and budgets and machines merge key by key."""
    whole: dict[str, Any] = {}
    for job in jobs:
        for key, value in job.items():
            parts = (whole.get(key), value)
            merges = key in ("budget", "machine") and all(isinstance(part, Mapping) for part in parts)
            whole[key] = {**whole[key], **value} if merges else value
    return whole


def load_config(path: Path, device_kind: str = "", overrides: Mapping[str, Any] | None = None) -> Config:
    """Read and validate a job's file. Raises ConfigError."""
    return JobFile(path).config(device_kind, overrides)


def config_of(job: Mapping[str, Any], typed: Mapping[Location, str] | None = None) -> Config:
    """Validate a job given as data; paths are relative to the current folder. Errors name the `typed` options."""
    return _checked(job, Origin(typed=typed or {}), Path.cwd())


def _checked(job: Mapping[str, Any], origin: Origin, folder: Path) -> Config:
    try:
        return Config.model_validate(job, context={"folder": folder})
    except ValidationError as error:
        raise origin.explain(error, Config) from None
    except UnicodeEncodeError:
        raise ConfigError(f"{origin.path}: a text has an unpaired surrogate; write it as UTF-8") from None


def machine_keys(text: str | None) -> dict[str, str]:
    """Parse `--machine label=H200,usd_per_hour=7.9`. Raises ConfigError."""
    return dict(read_option("--machine", text or "", Machine.model_fields))


def _check_option(key: str, value: Any, option: Option) -> None:
    if type(value) is not (kind := type(option.default)):
        expected = EXPECTED[{bool: "bool_type", int: "int_type", str: "string_type"}[kind]]
        raise mistake(f"{expected}, got {yaml_text(value)}", key)
    if option.choices and value not in option.choices:
        raise mistake(f"must be one of {', '.join(option.choices)}, got {yaml_text(value)}", key)
    if isinstance(value, int) and abs(value) > LARGEST:
        raise mistake(f"must be from {-LARGEST} to {LARGEST}, got {value}", key)
