"""What enters: a YAML file. What leaves: a `Config`, or a `ConfigError` that says file, line, key and remedy."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, ValidationInfo, field_validator, model_validator
from pydantic_core import ErrorDetails, PydanticCustomError

from engines.catalog import ENGINES, HEADS, OPTIMIZERS, PASSES, PRECISIONS, PRESETS, Option, Training
from exporters.catalog import CATALOG
from exporters.single_layers import LAYERS, Conv2d, Linear
from exporters.source import ModelSource
from profiler.errors import ConfigError, Location, forget, nearest, read
from profiler.job.case import Budget

_WRITTEN = {"pass_": "pass"}
_REQUESTABLE = tuple(p for p in PRECISIONS if p != "native")
KINDS = ("models", "layers", "minibatch")
STUDIES = ("cnn-benchmarks", "cloud-gpus", "convnet-benchmarks", "gpu-study")
"""The published benchmarks, as references/*.csv name them."""
_EXPECTED = {
    "list_type": "must be a list: put it in [ ]",
    "tuple_type": "must be a list, such as [3, 224, 224]",
    "dict_type": "must be keys and values",
    "dataclass_type": "must be keys and values, such as {seconds: 1}",
    "model_type": "must be a name, or keys and values",
    "path_type": "must be a path",
    **dict.fromkeys(("int_type", "int_parsing", "int_from_float"), "must be a whole number"),
    **dict.fromkeys(("float_type", "float_parsing"), "must be a number"),
    "too_short": "must have at least one entry",
    "too_long": "must have fewer entries",
    "invalid_key": "a key must be a text",
    "bool_type": "must be true or false",
    "string_type": "must be a text",
}
"""What to say where pydantic would speak of Python's types, by its error's type."""
_FILTERS = ("model", "engine", "variant", "pass", "precision", "batch_size", "replicate", "optimizer")


BatchSizes = Annotated[list[Annotated[int, Field(gt=0)]], Field(min_length=1)]


class _Strict(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class ModelEntry(_Strict):
    """A model: a canonical network's name, a factory, or an ONNX file."""

    name: str
    factory: str | None = None
    onnx: Path | None = Field(default=None, strict=False)
    weights: Path | None = Field(default=None, strict=False)
    input: tuple[Annotated[int, Field(gt=0)], ...] | None = Field(default=None, strict=False)
    dimensions: dict[str, Annotated[int, Field(gt=0)]] = {}
    options: dict[str, Any] = {}
    calibration: Path | None = Field(default=None, strict=False)
    """A folder of inputs, as .npy files, from which int8 takes its ranges."""
    batch_sizes: BatchSizes | None = None
    """In place of the job's."""

    @field_validator("name")
    @classmethod
    def _no_slash(cls, name: str) -> str:
        return _check_name(name, "model")

    @field_validator("onnx", "weights")
    @classmethod
    def _file(cls, path: Path | None, info: ValidationInfo) -> Path | None:
        if path is None:
            return None
        full = (info.context or {}).get("folder", Path()) / path
        if not full.is_file():
            raise _error(f"there is no file {full}; paths are relative to the YAML")
        return Path(full)

    @field_validator("calibration")
    @classmethod
    def _folder(cls, path: Path | None, info: ValidationInfo) -> Path | None:
        if path is None:
            return None
        full = (info.context or {}).get("folder", Path()) / path
        if not any(full.glob("*.npy")):
            raise _error(f"there are no .npy files in {full}; paths are relative to the YAML")
        return Path(full)

    @field_validator("factory")
    @classmethod
    def _path(cls, factory: str | None) -> str | None:
        if factory is not None and [bool(part) for part in factory.split(":")] != [True, True]:
            raise _error(f"'{factory}' is not of the form package.module:function")
        return factory

    @model_validator(mode="after")
    def _one_kind(self) -> ModelEntry:
        if self.factory and self.onnx:
            raise _error("a model has a factory or an onnx file, not both")
        if self.factory and self.input is None:
            raise _error("a factory needs the shape of one item, for example input: [3, 224, 224]")
        if self.onnx and (self.weights or self.options or self.input):
            raise _error("an onnx file brings its own weights and input shapes: leave out weights, options and input")
        if self.onnx and self.calibration:
            raise _error("an onnx file runs as it is: leave out calibration, or give a file that has been quantized")
        if not self.factory and not self.onnx:
            _check_word(self.name, CATALOG, "model", "(or give the model a factory or an onnx file)")
            if self.input is not None:
                raise _error(f"{self.name} has its own input shape; leave out input")
        return self

    def source(self) -> ModelSource:
        return ModelSource(
            self.name, self.factory, self.onnx, self.weights, self.input, dict(self.dimensions), dict(self.options),
            self.calibration,
        )  # fmt: skip


class LayerEntry(_Strict):
    """A single layer: one of L1 to L5 by its name, a convolution or a fully connected layer."""

    name: str
    conv: Conv2d | None = None
    linear: Linear | None = None
    batch_sizes: BatchSizes | None = None
    """In place of the job's."""

    @field_validator("name")
    @classmethod
    def _no_slash(cls, name: str) -> str:
        return _check_name(name, "layer")

    @field_validator("conv", mode="before")
    @classmethod
    def _pairs(cls, data: Any) -> Any:
        """One number stands for height and width, as in torch."""
        if not isinstance(data, dict):
            return data
        pairs = ("kernel", "stride", "padding", "dilation")
        return {k: [v, v] if k in pairs and type(v) is int else v for k, v in data.items()}

    @model_validator(mode="after")
    def _one_kind(self) -> LayerEntry:
        if self.conv and self.linear:
            raise _error("a layer is a conv or a linear, not both")
        if not self.conv and not self.linear:
            _check_word(self.name, LAYERS, "layer", "(or give the layer conv or linear)")
        return self

    def source(self) -> ModelSource:
        return ModelSource(self.name, layer=self.conv or self.linear or LAYERS[self.name])


class Machine(_Strict):
    """What a run's machine is called and costs, for tables that compare machines."""

    label: str | None = None
    cloud: str | None = None
    instance: str | None = None
    usd_per_hour: Annotated[float, Field(gt=0, strict=False)] | None = None


class TrainingEntry(_Strict):
    """What training does beside forward and backward; each optimizer makes cases of its own."""

    optimizers: list[str] = Field(default=["none"], min_length=1)
    head: str = "cross-entropy"
    dropout: bool = False

    @field_validator("optimizers")
    @classmethod
    def _optimizers(cls, words: list[str]) -> list[str]:
        return [_check_word(w, OPTIMIZERS, "optimizer", at=i) for i, w in enumerate(words)]

    @field_validator("head")
    @classmethod
    def _head(cls, word: str) -> str:
        return _check_word(word, HEADS, "head")

    def settings(self) -> list[Training]:
        """One an optimizer."""
        head: Any = self.head
        return [Training(optimizer, head, self.dropout) for optimizer in self.optimizers]  # type: ignore[arg-type]


class LargestBatch(_Strict):
    """How the largest batch that fits is searched: up to `limit`, until its bounds are within `resolution`."""

    limit: Annotated[int, Field(gt=0)] = 65536
    resolution: Annotated[float, Field(gt=0, lt=1, strict=False)] = 0.05
    models: list[str] = []
    """Of these alone, where any is given; so with the passes."""
    passes: list[Literal["inference", "training"]] = []

    def covers(self, model: str, pass_: str) -> bool:
        """Whether this model's largest batch is searched in this pass."""
        return (not self.models or model in self.models) and (not self.passes or pass_ in self.passes)


class EngineEntry(BaseModel):
    """An engine with options under a label. What is no field here is an option of the engine."""

    model_config = ConfigDict(frozen=True, extra="allow", strict=True)
    name: str
    label: str

    @model_validator(mode="before")
    @classmethod
    def _label(cls, data: Any) -> Any:
        if isinstance(data, dict) and "label" not in data and len(data) > 1:
            raise _error("an engine with options needs a label, which names its rows, for example label: ort-nhwc")
        return {"label": data.get("name"), **data} if isinstance(data, dict) else data

    @field_validator("name")
    @classmethod
    def _known(cls, name: str) -> str:
        valid = {**PRESETS, **ENGINES}
        if name in valid:
            return name
        raise _error(f"unknown engine '{name}'{nearest(abbreviate(name), valid)}")

    @field_validator("label")
    @classmethod
    def _no_slash(cls, label: str) -> str:
        if not label or "/" in label:
            raise _error(f"a label is part of its rows' ids: '{label}' must be non-empty and without '/'")
        return label

    @model_validator(mode="after")
    def _options(self) -> EngineEntry:
        engine = PRESETS[self.name].engine if self.name in PRESETS else self.name
        for key, value in (self.model_extra or {}).items():
            _check_word(key, ENGINES[engine].options, f"option of {engine}", at=key)
            _check_option(key, value, ENGINES[engine].options[key])
        if self.label in PRESETS and self.label != self.name:
            raise _error(f"the label {self.label} is a preset's name; choose another")
        return self

    @property
    def options(self) -> dict[str, Any]:
        return dict(self.model_extra or {})


class Filter(BaseModel):
    """Conditions on a case, as in `--only`: values under one key are alternatives, several keys must all hold."""

    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True)
    model: list[str] | None = None
    engine: list[str] | None = None
    variant: list[str] | None = None
    pass_: list[str] | None = Field(default=None, alias="pass")
    precision: list[str] | None = None
    batch_size: list[int] | None = None
    replicate: list[int] | None = None
    optimizer: list[str] | None = None

    @model_validator(mode="before")
    @classmethod
    def _lists(cls, data: Any) -> Any:
        if not isinstance(data, dict) or not data:
            raise _error(
                f"expected conditions such as {{engine: compiled, pass: training}}; keys: {', '.join(_FILTERS)}"
            )
        return {k: v if isinstance(v, list) else [v] for k, v in data.items()}


class Config(_Strict):
    """The job. `cpu` and `cuda` hold what differs on that device; they have been merged in before validation."""

    suite: str = ""
    kind: str = "models"
    """What is measured: networks, single layers, or networks over many batch sizes."""
    models: list[ModelEntry] = []
    layers: list[LayerEntry] = []
    engines: list[EngineEntry] = Field(min_length=1)
    passes: list[Literal["inference", "training"]] = Field(default=["inference"], min_length=1)
    precisions: list[str] = Field(default=["fp32"], min_length=1)
    batch_sizes: BatchSizes = [1]
    training: TrainingEntry = TrainingEntry()
    largest_batch: LargestBatch | None = None
    published: str | None = None
    """The published benchmark whose figures stand beside the run's."""
    machine: Machine = Machine()
    device: str = "auto"
    replicates: Annotated[int, Field(gt=0)] = 1
    output: Path = Field(default=Path("results"), strict=False)
    budget: Budget = Budget()
    energy: bool = False
    profile: bool = False
    """Whether to take each measured case's layers apart afterwards."""
    exclude: list[Filter] = []
    import_from: list[Annotated[Path, Field(strict=False)]] = Field(default=[Path()], validate_default=True)
    """Folders where factories are found, relative to the YAML."""

    @field_validator("kind")
    @classmethod
    def _kind(cls, word: str) -> str:
        return _check_word(word, KINDS, "kind")

    @field_validator("published")
    @classmethod
    def _published(cls, word: str | None) -> str | None:
        return word and _check_word(word, STUDIES, "published benchmark")

    @field_validator("models", "layers", "engines", mode="before")
    @classmethod
    def _words(cls, entries: Any) -> Any:
        return [{"name": e} if isinstance(e, str) else e for e in entries] if isinstance(entries, list) else entries

    @field_validator("passes", mode="before")
    @classmethod
    def _passes(cls, words: Any) -> Any:
        return [_check_word(w, PASSES, "pass", at=i) for i, w in enumerate(words)] if isinstance(words, list) else words

    @field_validator("precisions")
    @classmethod
    def _precisions(cls, words: list[str]) -> list[str]:
        return [_check_word(w, _REQUESTABLE, "precision", at=i) for i, w in enumerate(words)]

    @field_validator("import_from")
    @classmethod
    def _folders(cls, folders: list[Path], info: ValidationInfo) -> list[Path]:
        return [((info.context or {}).get("folder", Path.cwd()) / folder).resolve() for folder in folders]

    @field_validator("output")
    @classmethod
    def _output(cls, folder: Path, info: ValidationInfo) -> Path:
        return Path((info.context or {}).get("folder", Path.cwd()) / folder)

    @model_validator(mode="after")
    def _subjects(self) -> Config:
        wanted, other = ("layers", "models") if self.kind == "layers" else ("models", "layers")
        if not getattr(self, wanted):
            raise _error(f"kind {self.kind} needs at least one entry here", at=wanted)
        if getattr(self, other):
            raise _error(f"kind {self.kind} measures {wanted}: leave this out, or give kind: {other}", at=other)
        if self.kind == "layers" and self.training != TrainingEntry():
            raise _error(
                "a layer's training pass is forward, gradInput and gradWeight; leave out training", at="training"
            )
        if self.largest_batch and self.kind != "minibatch":
            raise _error("only kind: minibatch searches for the largest batch", at="largest_batch")
        for name in self.largest_batch.models if self.largest_batch else []:
            _check_word(name, [entry.name for entry in self.models], "model", at="largest_batch")
        return self

    @property
    def subjects(self) -> Sequence[ModelEntry | LayerEntry]:
        """What is measured: the models, or the layers."""
        return self.layers if self.kind == "layers" else self.models

    @model_validator(mode="after")
    def _conditions(self) -> Config:
        for number, condition in enumerate(self.exclude):
            _check_conditions(self, condition, number)
        return self

    @field_validator("device")
    @classmethod
    def _device(cls, device: str) -> str:
        if not re.fullmatch(r"auto|cpu|cuda(:\d+)?", device):
            raise _error(f"'{device}' is no device; valid: auto, cpu, cuda, cuda:1")
        return device


def load_config(path: Path, device_kind: str = "", overrides: dict[str, Any] | None = None) -> Config:
    """Read and check `path`; the block named `device_kind` ("cpu" or "cuda") replaces top-level keys, then `overrides`.

    Raises ConfigError for a file that cannot be read, is no YAML, or does not describe a job.
    """
    data, lines = read(path)
    blocks = {kind: data.pop(kind, None) for kind in ("cpu", "cuda")}
    if blocks.get(device_kind) is not None:
        block = blocks[device_kind]
        if not isinstance(block, dict):
            raise ConfigError(f"{path}:{lines[(device_kind,)]}: {device_kind}: expected keys and values")
        for key, value in block.items():
            if key in blocks:
                raise ConfigError(f"{path}:{lines[device_kind, key]}: {device_kind}: '{key}' is a block of its own")
            merge = key == "budget" and isinstance(value, dict) and key in data
            if merge and not isinstance(data[key], dict):
                continue  # The mistake stands at the top: its own line is told.
            if not merge:
                forget(lines, (key,))
            lines.update({at[1:]: line for at, line in lines.items() if at[:2] == (device_kind, key)})
            data[key] = {**data[key], **value} if merge else value
    data.update(overrides or {})
    try:
        return Config.model_validate(data, context={"folder": path.resolve().parent})
    except ValidationError as error:
        problems = sorted({_explain(lines, e) for e in error.errors()})
        raise ConfigError("\n".join(f"{path}:{line}: {message}" for line, message in problems)) from None


def abbreviate(engine: str) -> str:
    """TensorRT as the catalog spells it, for what people write: tensorrt, tensort, TensorRT_RTX."""
    return re.sub(r"^tensor-?r?t", "trt", engine.lower()).replace("_", "-")


def parse_only(conditions: Sequence[str]) -> Filter | None:
    """`--only model=resnet50,precision=fp16` as a Filter; raises ConfigError for an unknown key."""
    wanted: dict[str, list[str]] = {}
    for condition in (c for cs in conditions for c in cs.split(",") if c):
        key, equals, value = condition.partition("=")
        if not equals or not value:
            raise ConfigError(f"--only: '{condition}' is not of the form key=value")
        if key not in _FILTERS:
            raise ConfigError(f"--only: unknown key '{key}'{nearest(key, _FILTERS)}")
        wanted.setdefault(key, []).append(value)
    if not wanted:
        if conditions:
            raise ConfigError("--only: no condition is given; write for example --only model=resnet50")
        return None
    try:
        return Filter.model_validate(wanted)
    except ValidationError as error:
        first = error.errors()[0]
        raise ConfigError(f"--only: {first['loc'][0]}: {_expected(first)}, got '{first['input']}'") from None


def parse_machine(text: str | None) -> dict[str, Any]:
    """`--machine label=H200,usd_per_hour=7.9` as Machine's keys; raises ConfigError for an unknown key or bad price."""
    given: dict[str, Any] = {}
    for part in (text or "").split(",") if text else []:
        key, equals, value = (piece.strip() for piece in part.partition("="))
        if not equals or not value:
            raise ConfigError(f"--machine: '{part}' is not of the form key=value; a comma parts the keys")
        if key not in Machine.model_fields:
            raise ConfigError(f"--machine: unknown key '{key}'{nearest(key, Machine.model_fields)}")
        given[key] = value
    try:
        return Machine.model_validate(given).model_dump(exclude_none=True)
    except ValidationError as error:
        first = error.errors()[0]
        raise ConfigError(f"--machine: {first['loc'][0]}: {_expected(first)}, got '{first['input']}'") from None


def _explain(lines: dict[Location, int], error: ErrorDetails) -> tuple[int, str]:
    """The line of a validation error, and what to say of it."""
    context = error.get("ctx", {})
    location = tuple(_WRITTEN.get(str(p), p) for p in error["loc"])
    if context.get("at") is not None:
        location = (*location, context["at"])
    known = next((location[:n] for n in range(len(location), 0, -1) if location[:n] in lines), ())
    where = "".join(f"[{p}]" if isinstance(p, int) else f".{p}" for p in location).lstrip(".")
    message = error["msg"]
    if error["type"] in ("extra_forbidden", "unexpected_keyword_argument"):
        valid = _keys_at(location[:-1])
        message = f"unknown key '{location[-1]}'{nearest(str(location[-1]), valid)}"
        where = "".join(f"[{p}]" if isinstance(p, int) else f".{p}" for p in location[:-1]).lstrip(".")
    elif error["type"] == "missing":
        message = f"this {'entry' if isinstance(location[-1], int) else 'key'} is missing"
    elif error["type"] == "value_error":
        message = str(context["error"])
    elif not context.get("own"):
        message = f"{_expected(error)}, got {_written(error['input'])}"
    return lines.get(known, 1), f"{where + ': ' if where else ''}{message}"


def _expected(error: ErrorDetails) -> str:
    return _EXPECTED.get(error["type"], error["msg"].replace("Input should", "must"))


def _written(value: Any) -> str:
    """A value as a YAML has it."""
    return "nothing" if value is None else str(value).lower() if isinstance(value, bool) else repr(value)


def _keys_at(location: Location) -> list[str]:
    owners = {
        "models": ModelEntry,
        "layers": LayerEntry,
        "exclude": Filter,
        "machine": Machine,
        "training": TrainingEntry,
        "largest_batch": LargestBatch,
    }
    owner: Any = owners.get(str(location[0]) if location else "", Config)
    if location[:1] == ("budget",):
        return list(Budget.__dataclass_fields__)
    if location[:1] == ("layers",) and location[2:]:
        return list((Conv2d if location[2] == "conv" else Linear).__dataclass_fields__)
    keys = [_WRITTEN.get(k, k) for k in owner.model_fields]
    return [*keys, "cpu", "cuda"] if owner is Config else keys


def _check_conditions(config: Config, condition: Filter, number: int) -> None:
    """A misspelt value would exclude nothing and say nothing."""
    labels = {entry.label: None for entry in config.engines}
    valid = {
        "model": {entry.name: None for entry in config.subjects} | dict.fromkeys(CATALOG) | dict.fromkeys(LAYERS),
        "engine": labels | dict.fromkeys(PRESETS) | dict.fromkeys(ENGINES),
        "variant": labels | dict.fromkeys(PRESETS) | dict.fromkeys(ENGINES),
        "pass_": dict.fromkeys(PASSES),
        "precision": dict.fromkeys(PRECISIONS),
        "optimizer": dict.fromkeys(OPTIMIZERS),
    }
    for key, words in valid.items():
        for word in getattr(condition, key) or []:
            _check_word(word, words, _WRITTEN.get(key, key), at=number)


def _check_name(name: str, what: str) -> str:
    if not name or "/" in name:
        raise _error(f"a {what}'s name is part of its rows' ids: '{name}' must be non-empty and without '/'")
    return name


def _check_word(word: Any, valid: Iterable[str], what: str, note: str = "", at: str | int | None = None) -> str:
    if word not in list(valid):
        raise _error(f"unknown {what} '{word}'{nearest(str(word), valid)}{' ' + note if note else ''}", at)
    return str(word)


def _check_option(key: str, value: Any, option: Option) -> None:
    if type(value) is not option.type:
        kind = {bool: "bool_type", int: "int_type", str: "string_type"}[option.type]
        raise _error(f"{_EXPECTED[kind]}, got {_written(value)}", key)
    if option.choices and value not in option.choices:
        raise _error(f"must be one of {', '.join(option.choices)}, got {_written(value)}", key)
    if isinstance(value, int) and option.range and not option.range[0] <= value <= option.range[1]:
        raise _error(f"must be from {option.range[0]} to {option.range[1]}, got {value}", key)
    if isinstance(value, str) and option.check and value:
        try:
            option.check(value)
        except ValueError as error:
            raise _error(str(error), key) from None


def _error(message: str, at: str | int | None = None) -> PydanticCustomError:
    """`at` is the key or index below the validated field that the message is about."""
    # Braces in a custom error's template would be read as fields.
    return PydanticCustomError("own", "{text}", {"text": message, "own": True, "at": at})
