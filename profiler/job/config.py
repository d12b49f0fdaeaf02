"""Read a YAML file into a `Config`, the job; a mistake is a `ConfigError` with file, line, key and remedy."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PrivateAttr,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)

from engines.catalog import (
    ENGINES,
    HEADS,
    OPTIMIZERS,
    PASSES,
    PRECISIONS,
    PRESETS,
    Head,
    Optimizer,
    Option,
    Pass,
    Training,
)
from engines.options import is_path
from exporters.bounds import LARGEST, MOST_CASES, MOST_ENTRIES, Count, Price, Replicates
from exporters.catalog import CATALOG
from exporters.declared_inputs import InputMistake, declared_inputs, is_integer, name_of, no_values, symbols
from exporters.errors import closest
from exporters.libraries.catalog import LIBRARIES, folder_of, library_of, model_entry
from exporters.single_layers import LAYERS, Conv2d, Linear
from exporters.source import ModelSource
from profiler.errors import ConfigError, nearest
from profiler.job.case import Budget
from profiler.job.conditions import Filter
from profiler.job.config_errors import (
    DEVICE_BLOCKS,
    EXPECTED,
    Origin,
    check_part_of_id,
    check_path,
    check_text,
    check_word,
    explain,
    mistake,
    nearest_engine,
    read_option,
    shown,
    validate_option,
    yaml_text,
)
from profiler.job.yaml_lines import Lines, Location, read
from profiler.machine import DEVICES, is_device
from profiler.published.studies import STUDIES

_CHECKOUT = Path(__file__).resolve().parents[2]
KINDS = ("models", "layers")


def _word(valid: Iterable[str], what: str) -> BeforeValidator:
    """Requires one of the valid words."""
    return BeforeValidator(lambda word: check_word(word, valid, what))


def _part_of_id(what: str) -> AfterValidator:
    return AfterValidator(lambda name: check_part_of_id(name, what))


def _below_yaml(path: Path, info: ValidationInfo) -> Path:
    whole = _base(info) / path
    check_path(whole)
    if ".." not in whole.parts:
        return whole
    # A link's name counts: Hugging Face's cache has model.onnx as a link to a file without a suffix.
    return whole.resolve() if whole.name == ".." else whole.parent.resolve() / whole.name


def _base(info: ValidationInfo) -> Path:
    folder: Path = (info.context or {}).get("folder", Path.cwd())
    return folder


def _file(path: Path) -> Path:
    if not path.is_file():
        raise mistake(f"there is no file {path}; paths are relative to the YAML")
    return path


def _folder_of_arrays(path: Path) -> Path:
    if not any(path.glob("*.npy")):
        raise mistake(f"there are no .npy files in {path}; paths are relative to the YAML")
    return path


def _factory(name: str) -> str:
    module, _, function = name.partition(":")
    if module.endswith(".py"):
        module = module.removesuffix(".py").replace("/", ".").strip(".")
        raise mistake(f"'{name}': leave out .py: '{module}:{function or 'function'}'")
    if [bool(part) for part in name.split(":")] != [True, True]:
        owner, _, last = name.rpartition(".")
        hint = f"; did you mean '{owner}:{last}'?" if owner and last.isidentifier() and ":" not in name else ""
        raise mistake(f"'{shown(name)}' is not of the form package.module:function{hint}")
    return name


def _switch_or_names(data: Any) -> Any:
    if not isinstance(data, bool) and not (isinstance(data, list) and all(isinstance(name, str) for name in data)):
        raise mistake(f"must be true, false or a list of models' names, got {yaml_text(data)}")
    return data


def _library_folder(word: str, info: ValidationInfo) -> str:
    """A library's model in a folder, with the folder's whole path."""
    check_path(_base(info) / word)
    folder = folder_of(word, _base(info))
    return word if folder is None else f"{word.partition(':')[0]}:{folder}"


def _inputs(data: Any, info: ValidationInfo) -> Any:
    """What `declared_inputs` takes, files with their whole paths. Raises for what it refuses."""
    if data is None:
        return None
    folder = _base(info)
    try:
        declared_inputs(data, folder)
    except InputMistake as error:
        raise mistake(str(error), *error.at) from None
    return _with_paths(data, folder)


def _with_paths(data: Any, folder: Path, key: str = "data") -> Any:
    if isinstance(data, dict):
        return {each: _with_paths(part, folder, str(each)) for each, part in data.items()}
    if isinstance(data, list | tuple):
        return [_with_paths(part, folder, "") for part in data]
    return str(folder / data) if key == "data" and isinstance(data, str | Path) else data


def _known_engine(name: str) -> str:
    if name not in (valid := {**PRESETS, **ENGINES}):
        raise mistake(f"unknown engine '{name}'{nearest_engine(name, valid)}")
    return name


def _device(device: str) -> str:
    if not is_device(device):
        raise mistake(f"'{shown(device)}' is no device; valid: {DEVICES}")
    return device


_Some = Field(min_length=1, max_length=MOST_ENTRIES)
_Few = Field(max_length=MOST_ENTRIES)
Name = Annotated[str, AfterValidator(check_text)]
"""What tables and file names have of a job."""
BatchSizes = Annotated[list[Count], _Some]
Shapes = dict[str, BatchSizes]
"""By named dimension the sizes at which a model is measured."""
Passes = Annotated[list[Annotated[Pass, _word(PASSES, "pass")]], _Few]
Precision = Annotated[str, _word([p for p in PRECISIONS if p != "native"], "precision")]
Variant = Annotated[str, _word(("fp16", "bf16", "int8"), "precision")]
BelowYaml = Annotated[Path, Field(strict=False), AfterValidator(_below_yaml)]
"""A path that is relative to the YAML."""
File = Annotated[BelowYaml, AfterValidator(_file)]
Folder = Annotated[BelowYaml, AfterValidator(Path.resolve)]


class _Strict(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class ModelEntry(_Strict):
    """A model: a canonical network, a factory, or an ONNX file."""

    name: Annotated[str, _part_of_id("a model's name")]
    network: Annotated[str, AfterValidator(_library_folder)] | None = None
    """The canonical network, where it is to have another name; or a library's model, such as hf:BertModel."""
    step: str | None = None
    """A part of a library's model that is measured in place of the whole, such as decode."""
    factory: Annotated[str, AfterValidator(_factory)] | None = None
    onnx: File | None = None
    """The model, or next to a factory or a network the graph that engines of graphs run in place of an export."""
    variants: dict[Variant, File] = {}
    """By precision a file of the model that others made, such as a quantized one."""
    weights: File | None = None
    key: str | None = None
    """Under which a checkpoint has the state dict."""
    prefix: str = ""
    """What the state dict's keys begin with and the model's do not."""
    input: tuple[Count, ...] | None = Field(default=None, strict=False)
    """The shape of one item of the only input, of floats."""
    inputs: Annotated[Any, AfterValidator(_inputs)] = None
    """All inputs; of an ONNX file what they hold."""
    outputs: list[str | int] = []
    """Those that are compared, of which training takes the first, by name or place."""
    dimensions: dict[str, Count] = {}
    shapes: Shapes | None = None
    """In place of the job's."""
    options: dict[str, Any] = {}
    calibration: Annotated[BelowYaml, AfterValidator(_folder_of_arrays)] | None = None
    """A folder of inputs, as .npy files, from which int8 takes its ranges."""
    batch_sizes: BatchSizes | None = None
    """In place of the job's."""
    reference: str | None = None
    """Another model of the job, whose base and outputs this one is compared with in place of its own."""

    @model_validator(mode="before")
    @classmethod
    def _word(cls, data: Any) -> Any:
        """A library's model needs no other name than its own."""
        if not isinstance(data, dict):
            return data
        word = data.get("network", data.get("name"))
        if not isinstance(word, str) or not library_of(word):
            return data
        named = {"name": data["name"]} if data.get("name", word) != word else {}
        return {**data, **model_entry(word, data.get("step")), **named}

    @property
    def is_file(self) -> bool:
        """Whether the model is an .onnx file, with no torch module next to it."""
        return self.onnx is not None and not self.factory and not self.network

    @property
    def library(self) -> str | None:
        """The library whose model it is."""
        library = library_of(self.network or "")
        return library.prefix if library else None

    @model_validator(mode="after")
    def _one_kind(self) -> ModelEntry:
        if self.factory and self.network:
            raise mistake("a model has a factory or a network, only one of them")
        if self.input is not None and self.inputs is not None:
            raise mistake("input is short for inputs with one tensor of floats: give one of them")
        if self.factory:
            self._check_inputs()
        if self.is_file and (self.weights or self.options or self.input):
            raise mistake("an onnx file brings its own weights and input shapes: leave out weights, options and input")
        if self.dimensions and not self.onnx and not self.inputs and not self.library:
            raise mistake("dimensions are of an onnx file or of inputs with named sizes; leave them out")
        self._check_step()
        if (self.key or self.prefix) and not self.weights:
            raise mistake("key and prefix say how weights are read; give weights, or leave them out")
        if not self.factory and not self.is_file and not self.library:
            self._check_network()
        return self

    def _check_step(self) -> None:
        if self.step is None:
            return
        steps = LIBRARIES[self.library].steps if self.library else ()
        if not steps:
            raise mistake("a step is of a model of transformers, such as hf:GPT2LMHeadModel; leave it out", "step")
        check_word(self.step, steps, "step", at=("step",))

    def _check_network(self) -> None:
        if self.network is None:
            check_word(self.name, CATALOG, "model", "(or give the model a network, a factory or an onnx file)")
        else:
            check_word(self.network, CATALOG, "network", at=("network",))
            if self.name in CATALOG and self.name != self.network:
                raise mistake(f"{self.name} is another network's name; choose one for this {self.network}", "name")
        for key in ("input", "inputs"):
            if getattr(self, key) is not None:
                raise mistake(f"{self.network or self.name} has its own input shape; leave out {key}")

    def _check_inputs(self) -> None:
        """What can be said of a torch module's inputs without it."""
        if self.input is None and self.inputs is None:
            raise mistake(
                "a factory needs the shape of one item, for example input: [3, 224, 224], or its inputs, for example "
                "inputs: {input_ids: {shape: [batch, 128], dtype: int64, range: [0, 1000]}}"
            )
        if self.inputs is None:
            return
        declared = declared_inputs(self.inputs)
        for each in declared:
            name = name_of(each.place, len(declared))
            if each.shape is None and each.data is None:
                raise mistake(f"input {name} has no shape, for example shape: [batch, 128]", "inputs", *each.place)
            if is_integer(each.dtype or "") and not (each.range or each.fill or each.data):
                raise mistake(no_values(name, str(each.dtype)), "inputs", *each.place)
        sizes = symbols(declared)
        if strays := [name for name in self.dimensions if name not in sizes]:
            raise mistake(f"no input has a dimension {strays[0]}{nearest(strays[0], sizes)}", "dimensions", strays[0])

    def source(self) -> ModelSource:
        others = {"input", "inputs", "outputs", "batch_sizes", "shapes", "reference", "variants"}
        data = self.model_dump(exclude=others)
        data["graphs"] = dict(self.variants)
        if self.onnx and not self.is_file:
            data |= {"onnx": None, "graphs": {"fp32": self.onnx, **self.variants}}
        declared = () if self.inputs is None else declared_inputs(self.inputs)
        if self.library:
            data |= {"factory": self.network, "network": None, "library": self.library}
        return ModelSource(**data, input_shape=self.input, inputs=declared, outputs=tuple(self.outputs))


class LayerEntry(_Strict):
    """A single layer: one of L1 to L5 by its name, a convolution or a fully connected layer."""

    name: Annotated[str, _part_of_id("a layer's name")]
    conv: Conv2d | None = None
    linear: Linear | None = None
    batch_sizes: BatchSizes | None = None
    """In place of the job's."""

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
            raise mistake("a layer is a conv or a linear, not both")
        if not self.conv and not self.linear:
            check_word(self.name, LAYERS, "layer", "(or give the layer conv or linear)")
        return self

    def source(self) -> ModelSource:
        return ModelSource(self.name, layer=self.conv or self.linear or LAYERS[self.name])


class Machine(_Strict):
    """What a run's machine is called and costs, for tables that compare machines."""

    label: Name | None = None
    cloud: Name | None = None
    instance: Name | None = None
    usd_per_hour: Annotated[Price, Field(strict=False)] | None = None
    price_source: Name | None = None
    """Whose price that is, and of which day: printed with it."""


class TrainingEntry(_Strict):
    """What training does besides forward and backward; each optimizer makes cases of its own."""

    optimizers: Annotated[list[Annotated[Optimizer, _word(OPTIMIZERS, "optimizer")]], _Some] = ["none"]
    head: Annotated[Head, _word(HEADS, "head")] = "cross-entropy"
    dropout: bool = False
    input_gradient: Annotated[bool | list[str], BeforeValidator(_switch_or_names)] = False
    """Whether the gradient of the network's input is computed too, or the names of the models of which it is."""

    def settings(self, model: str) -> list[Training]:
        """A model's, one an optimizer."""
        names = self.input_gradient
        with_input = names if isinstance(names, bool) else model in names
        return [Training(optimizer, self.head, self.dropout, with_input) for optimizer in self.optimizers]


class LargestBatch(_Strict):
    """How the largest batch that fits is searched: up to `limit`, until its bounds are within `resolution`."""

    limit: Count = 65536
    resolution: Annotated[float, Field(gt=0, lt=1, strict=False)] = 0.05
    models: list[str] = []
    """Only of these, where any is given; so with the passes."""
    passes: Passes = []

    def covers(self, model: str, pass_: str) -> bool:
        """Whether this model's largest batch is searched in this pass."""
        return (not self.models or model in self.models) and (not self.passes or pass_ in self.passes)


class EngineEntry(BaseModel):
    """An engine with options under a label. What is no field here is an option of the engine."""

    model_config = ConfigDict(frozen=True, extra="allow", strict=True)
    name: Annotated[str, AfterValidator(_known_engine)]
    label: Annotated[str, _part_of_id("a label")]

    @model_validator(mode="before")
    @classmethod
    def _label(cls, data: Any) -> Any:
        if isinstance(data, dict) and "label" not in data and len(data) > 1:
            raise mistake("an engine with options needs a label, which names its rows, for example label: ort-nhwc")
        return {"label": data.get("name"), **data} if isinstance(data, dict) else data

    @model_validator(mode="after")
    def _options(self, info: ValidationInfo) -> EngineEntry:
        extra, declared = self.model_extra or {}, self._declared()
        for key, value in extra.items():
            check_word(key, declared, f"option of {self._engine()}", at=(key,))
            _check_option(key, value, declared[key])
            if declared[key].is_code and is_path(value):
                extra[key] = str(_below_yaml(Path(value), info))
        if self.label in PRESETS and self.label != self.name:
            raise mistake(f"the label {self.label} is a preset's name; choose another")
        return self

    def _engine(self) -> str:
        return PRESETS[self.name].engine if self.name in PRESETS else self.name

    def _declared(self) -> dict[str, Option]:
        return ENGINES[self._engine()].options.declared()

    @property
    def options(self) -> dict[str, Any]:
        return dict(self.model_extra or {})

    @property
    def code(self) -> list[str]:
        """List the packages and files that the entry has loaded."""
        declared = self._declared()
        return [value for key, value in self.options.items() if declared[key].is_code]


class Config(_Strict):
    """The job. `cpu` and `cuda` hold what differs on that device; they have been merged in before validation."""

    suite: Name = ""
    kind: Annotated[str, _word(KINDS, "kind")] = "models"
    """What is measured: networks or single layers."""
    models: Annotated[list[ModelEntry], _Few] = []
    layers: Annotated[list[LayerEntry], _Few] = []
    engines: Annotated[list[EngineEntry], _Some]
    passes: Annotated[Passes, Field(min_length=1)] = ["inference"]
    precisions: Annotated[list[Precision], _Some] = ["fp32"]
    batch_sizes: BatchSizes = [1]
    shapes: Shapes = {}
    """By named dimension of the inputs the sizes that are measured, every combination; of a model those that it has."""
    training: TrainingEntry = TrainingEntry()
    largest_batch: LargestBatch | None = None
    published: Annotated[str, _word(STUDIES, "published benchmark")] | None = None
    """The published benchmark whose figures are shown next to the run's."""
    machine: Machine = Machine()
    device: Annotated[str, AfterValidator(_device)] = "auto"
    replicates: Replicates = 1
    output: BelowYaml = Path("results")
    budget: Budget = Budget()
    energy: bool = False
    profile: bool = False
    """Whether to time each layer of the measured cases afterwards."""
    exclude: Annotated[list[Filter], _Few] = []
    import_from: Annotated[list[Folder], _Few] = Field(default=[Path()], validate_default=True)
    """Folders where factories are found, relative to the YAML."""
    _origin: Origin = PrivateAttr(default_factory=Origin)

    def error(self, message: str, *at: str | int) -> ConfigError:
        """A mistake that shows only once the job has been read, with the line, or the option, of its place there."""
        return self._origin.error(message, at)

    @field_validator("models", "layers", "engines", mode="before")
    @classmethod
    def _words(cls, entries: Any, info: ValidationInfo) -> Any:
        entry = model_entry if info.field_name == "models" else lambda word: {"name": word}
        return [entry(e) if isinstance(e, str) else e for e in entries] if isinstance(entries, list) else entries

    @model_validator(mode="after")
    def _consistent(self) -> Config:
        self._check_subjects()
        self._check_references()
        self._check_sizes()
        self._check_factories()
        if why := self.too_many():
            raise mistake(why)
        names, labels = [subject.name for subject in self.subjects], [entry.label for entry in self.engines]
        for number, condition in enumerate(self.exclude):
            condition.check_words(names, labels, at=("exclude", number))
        return self

    def _check_subjects(self) -> None:
        wanted, other = ("layers", "models") if self.kind == "layers" else ("models", "layers")
        if not getattr(self, wanted):
            raise mistake(f"kind {self.kind} needs at least one entry here", wanted)
        if getattr(self, other):
            raise mistake(f"kind {self.kind} measures {wanted}: leave this out, or give kind: {other}", other)
        if self.kind == "layers" and self.training != TrainingEntry():
            why = "a layer's training pass is forward, gradInput and gradWeight; leave out training"
            raise mistake(why, "training")
        if self.largest_batch and self.kind == "layers":
            raise mistake("only of models is the largest batch searched; leave this out", "largest_batch")
        names = [entry.name for entry in self.models]
        for number, name in enumerate(self.largest_batch.models if self.largest_batch else []):
            check_word(name, names, "model", at=("largest_batch", "models", number))
        with_input = self.training.input_gradient
        for number, name in enumerate([] if isinstance(with_input, bool) else with_input):
            # Of networks that a device's block leaves out, too.
            check_word(name, dict.fromkeys([*names, *CATALOG]), "model", at=("training", "input_gradient", number))

    def _check_references(self) -> None:
        for number, entry in enumerate(self.models):
            if entry.reference is None:
                continue
            place = ("models", number, "reference")
            if entry.reference == entry.name:
                raise mistake("a model is compared with its own base anyway; leave reference out", *place)
            check_word(entry.reference, [other.name for other in self.models], "model", at=place)
            reference = self.reference_of(entry)
            if reference is not None and reference.reference is not None:
                raise mistake(f"{entry.reference} has a reference itself; name the model that is compared with", *place)

    def _check_sizes(self) -> None:
        """Every named size of a factory's inputs has numbers, from the model or from the job."""
        for number, entry in enumerate(self.models):
            given = {**entry.dimensions, **(self.shapes if entry.shapes is None else entry.shapes)}
            declared = declared_inputs(entry.inputs) if entry.factory and entry.inputs is not None else ()
            if lacking := [size for size in symbols(declared) if size not in given]:
                example = ", ".join(f"{size}: 128" for size in lacking)
                typos = [name for name in given if name not in symbols(declared) and closest(name, lacking)]
                meant = f" ({', '.join(typos)} has one: a typo?)" if typos else ""
                text = f"{', '.join(lacking)} has no size{meant}; give dimensions: {{{example}}}"
                raise mistake(f"{text}, or shapes: {{{lacking[0]}: [128, 512]}}", "models", number, "inputs")
        if "batch" in self.shapes:
            raise mistake("the sizes of the batch are in batch_sizes", "shapes", "batch")

    def _check_factories(self) -> None:
        for entry in self.models:
            module = (entry.factory or "").partition(":")[0].partition(".")[0]
            for folder in self.import_from if module in ("engines", "exporters", "profiler") else []:
                if folder != _CHECKOUT and ((folder / module).is_dir() or (folder / f"{module}.py").is_file()):
                    text = f"factory {entry.factory}: the profiler has a package '{module}' itself; rename yours"
                    raise mistake(text, "models")

    def reference_of(self, entry: ModelEntry | LayerEntry) -> ModelEntry | None:
        """The model that an entry is compared with, where it names another one."""
        name = entry.reference if isinstance(entry, ModelEntry) else None
        return next((other for other in self.models if other.name == name), None)

    @property
    def path(self) -> tuple[str, ...]:
        """Where a process finds factories, in front of sys.path."""
        return tuple(map(str, self.import_from))

    @property
    def subjects(self) -> Sequence[ModelEntry | LayerEntry]:
        """What is measured: the models, or the layers."""
        return self.layers if self.kind == "layers" else self.models

    def too_many(self) -> str:
        """That the job has more cases than a run can, as far as is known (`with_shapes`); empty if it has not."""
        trainings = len(self.training.optimizers)
        passes = sum(trainings if each == "training" else 1 for each in self.passes)
        each = len(self.engines) * len(self.precisions) * passes * self.replicates
        count = each * sum(
            len(subject.batch_sizes or self.batch_sizes)
            * math.prod(len(sizes) for sizes in (getattr(subject, "shapes", None) or {}).values())
            for subject in self.subjects
        )
        if count <= MOST_CASES:
            return ""
        return f"{count:,} cases, while a run has {MOST_CASES:,} at most: leave some out, or make several jobs of it"


def load_config(path: Path, device_kind: str = "", overrides: dict[str, Any] | None = None) -> Config:
    """Read and check `path`; the block named `device_kind` ("cpu" or "cuda") replaces top-level keys, then `overrides`.

    Raises ConfigError for a file that cannot be read, is no YAML, or does not describe a job.
    """
    data, lines = read(path)
    blocks = {kind: data.pop(kind, None) for kind in DEVICE_BLOCKS}
    if blocks.get(device_kind) is not None:
        _merge_block(path, data, lines, device_kind, blocks[device_kind])
    data.update(overrides or {})
    try:
        config = Config.model_validate(data, context={"folder": path.resolve().parent})
    except ValidationError as error:
        raise explain(error, Config, path, lines) from None
    config._origin = Origin(path, lines)
    return config


def config_of(job: dict[str, Any], typed: Mapping[Location, str] | None = None) -> Config:
    """Check a job that is data already, of which paths are relative to the current folder.

    Raises ConfigError, which names what was `typed` for a place in the job, where that is known.
    """
    try:
        config = Config.model_validate(job)
    except ValidationError as error:
        raise explain(error, Config, typed=typed) from None
    config._origin = Origin(typed=typed or {})
    return config


def _merge_block(path: Path, data: dict[str, Any], lines: Lines, kind: str, block: Any) -> None:
    """Put what the device's block has in place of the job's own keys, and their lines."""
    if not isinstance(block, dict):
        raise ConfigError(f"{path}:{lines[(kind,)]}: {kind}: expected keys and values")
    for key, value in block.items():
        if key in DEVICE_BLOCKS:
            raise ConfigError(f"{path}:{lines[kind, key]}: {kind}: '{key}' is a block of its own")
        merge = key == "budget" and isinstance(value, dict) and key in data
        if merge and not isinstance(data[key], dict):
            continue  # The job's own budget is wrong, and its line is the one to name.
        if not merge:
            for at in [at for at in lines if at[0] == key]:
                del lines[at]
        lines.update({at[1:]: line for at, line in lines.items() if at[:2] == (kind, key)})
        data[key] = {**data[key], **value} if merge else value


def parse_machine(text: str | None) -> dict[str, Any]:
    """`--machine label=H200,usd_per_hour=7.9` as Machine's keys; raises ConfigError for an unknown key or bad price."""
    given = dict(read_option("--machine", text or "", Machine.model_fields))
    return validate_option("--machine", Machine, given).model_dump(exclude_none=True)


def _check_option(key: str, value: Any, option: Option) -> None:
    if type(value) is not option.type:
        kind = {bool: "bool_type", int: "int_type", str: "string_type"}[option.type]
        raise mistake(f"{EXPECTED[kind]}, got {yaml_text(value)}", key)
    if option.choices and value not in option.choices:
        raise mistake(f"must be one of {', '.join(option.choices)}, got {yaml_text(value)}", key)
    least, most = option.range or (-LARGEST, LARGEST)
    if isinstance(value, int) and not least <= value <= most:
        raise mistake(f"must be from {least} to {most}, got {value}", key)
    if isinstance(value, str) and option.check and value:
        try:
            option.check(value)
        except ValueError as error:
            raise mistake(str(error), key) from None
