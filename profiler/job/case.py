"""Define a case, the work of one process: its id, its budget, and filters that select cases."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from engines.catalog import ENGINES, is_base
from engines.options import EIGHT_BITS, PLAIN, Device, Pass, Training
from exporters.catalog import Repeats, Samples, Seconds
from exporters.errors import closest
from exporters.source import ModelSource, shape_words
from profiler.errors import ConfigError, nearest

KEYS = ("model", "engine", "variant", "pass", "precision", "batch_size", "shape", "replicate", "optimizer")
"""Keys of `--only` and `exclude`."""
_LONGEST_FILE_NAME = 180
"""Bytes. Linux allows 255, but suffixes are added later."""


@dataclass(frozen=True)
class Budget:
    """Limit one case: sampling time, sample counts, and the seconds until its process is killed.

    Sampling goes on past `seconds` until it has `min_samples`, but for at most half of the remaining `timeout`. It may
    end early once the median has an interval, which needs 30 samples. `repeats` limits the time for second takes of
    rough cases, as a share of the time for all first takes; 0 disables them.
    """

    __pydantic_config__ = {"extra": "forbid", "strict": False}  # noqa: RUF012 -- read by pydantic

    seconds: Seconds = 3.0
    min_samples: Samples = 3
    max_samples: Samples = 5000
    timeout: Seconds = 300.0
    build_timeout: Seconds = 900.0
    repeats: Repeats = 0.5


QUICK = {"seconds": 0.3, "min_samples": 3}
"""The budget's keys that --quick sets."""


@dataclass(frozen=True)
class Case:
    """The work of one process. `engine` is the catalog's key, `variant` the preset's name or the label in the config.

    `options` are the engine's, resolved for the device. `unsupported` is the reason why the case cannot run.
    """

    model: str
    engine: str
    variant: str
    pass_: Pass
    precision: str
    batch_size: int
    device: Device
    replicate: int
    source: ModelSource
    options: Mapping[str, Any] = field(default_factory=dict)
    training: Training = PLAIN
    unsupported: str | None = None

    @property
    def id(self) -> str:
        """The readable id, such as `resnet50/ort-tuned/inference/fp16/b16/r0/sequence=128`."""
        axes = (self.model, self.variant, self.pass_, self.precision, f"b{self.batch_size}", f"r{self.replicate}")
        return "/".join(filter(None, (*axes, self.setting)))

    @property
    def setting(self) -> str:
        """The shape, and training options that are not default, such as "optimizer=sgd/sequence=128"."""
        training = asdict(self.training) if self.source.layer is None else {}
        defaults = asdict(PLAIN)
        words = [f"{key}={_word(value)}" for key, value in training.items() if value != defaults[key]]
        return "/".join([*words, *shape_words(self.source.shape)])

    @property
    def family(self) -> str:
        """The id with batch size 0, which cases of all batch sizes share."""
        return replace(self, batch_size=0).id

    @property
    def is_base(self) -> bool:
        """True if other cases' factors are relative to this one."""
        return is_base(self.variant, self.precision, self.source.kind)

    @property
    def subject(self) -> str:
        """The name under which the model is prepared, with its shape if the job varies it."""
        return self.source.subject

    @property
    def calibrated(self) -> bool | None:
        """True if 8-bit ranges come from the user's data or a quantized file; None for other precisions."""
        if self.precision not in EIGHT_BITS:
            return None
        engine, source = ENGINES[self.engine], self.source
        if engine.needs == "torch" or engine.int8_graph == "int8-dynamic":  # Every call derives its ranges.
            return source.data is not None
        return source.calibration is not None or source.data is not None or "int8" in source.graphs

    def value(self, column: str) -> Any:
        """Return the value under one of KEYS."""
        if column == "shape":
            return "/".join(shape_words(self.source.shape))
        owner = self.training if column == "optimizer" else self
        return getattr(owner, "pass_" if column == "pass" else column)


def _word(value: Any) -> str:
    return "on" if value is True else "+".join(value) if isinstance(value, tuple) else str(value)


def file_name(words: str) -> str:
    """Turn an id into a file's name, with commas since names have none; replace the end of a long one by a digest."""
    name = words.replace("/", ",")
    if len(name.encode()) <= _LONGEST_FILE_NAME:
        return name
    digest = hashlib.sha256(words.encode()).hexdigest()[:12]
    return f"{name.encode()[: _LONGEST_FILE_NAME - 13].decode(errors='ignore')}-{digest}"


def setting_words(setting: str) -> list[str]:
    """Split a setting into words, like ["optimizer sgd", "head logits"]."""
    return [part.replace("=", " ", 1) for part in setting.split("/") if part]


@dataclass(frozen=True)
class Filter:
    """Conditions on cases: one value of each key must match."""

    conditions: Mapping[str, Sequence[Any]]

    @classmethod
    def of(cls, data: Any) -> Filter:
        """Validate the conditions of a job or an option. Raises ValueError."""
        if not isinstance(data, Mapping) or not data:
            raise ValueError(f"expected conditions, such as {{engine: compiled}}; keys: {', '.join(KEYS)}")
        conditions: dict[str, list[Any]] = {}
        for key, values in data.items():
            if key not in KEYS:
                raise ValueError(f"unknown key '{key}'{nearest(str(key), KEYS)}")
            conditions[key] = list(values) if isinstance(values, list | tuple) else [values]
            if key in ("batch_size", "replicate"):
                conditions[key] = [_whole(key, value) for value in conditions[key]]
        return cls(conditions)

    def __str__(self) -> str:
        return ",".join(f"{key}={value}" for key, values in self.conditions.items() for value in values)

    def without(self, *keys: str) -> Filter:
        return Filter({key: values for key, values in self.conditions.items() if key not in keys})

    def tests(self) -> Iterator[tuple[tuple[str, ...], Sequence[Any]]]:
        """Yield each condition as columns and values; a case meets it if any column has any of the values."""
        for key, values in self.conditions.items():
            # Users write a variant's name for its engine.
            yield ("engine", "variant") if key == "engine" else (key,), values

    def matches(self, case: Case) -> bool:
        return all(any(case.value(column) in values for column in columns) for columns, values in self.tests())

    def check(self, values_of: Callable[[str], Iterable[Any]], absent: str) -> None:
        """Raise ConfigError, which says `absent`, for a value that is missing from the column's `values_of`."""
        for columns, values in self.tests():
            valid = list(dict.fromkeys(str(value) for column in reversed(columns) for value in values_of(column)))
            for word in map(str, values):
                if word not in valid:
                    raise ConfigError(f"--only {columns[0]}={word}: {absent}{suggestion(word, valid)}")


def _whole(key: str, value: Any) -> int:
    if isinstance(value, int) or (isinstance(value, str) and value.isdecimal()):
        return int(value)
    raise ValueError(f"{key}: must be a whole number, got '{value}'")


def parse_only(options: Sequence[str]) -> Filter | None:
    """Parse `--only model=resnet50,precision=fp16,tf32`; None without any. Raises ConfigError."""
    conditions: dict[str, list[str]] = {}
    for option in options:
        for key, value in read_option("--only", option, KEYS):
            conditions.setdefault(key, []).extend(map(str.strip, value.split(",")))
    if not options:
        return None
    try:
        return Filter.of(conditions)
    except ValueError as error:
        raise ConfigError(f"--only: {error}") from None


def read_option(option: str, text: str, valid: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Split "label=H200,price_source=a list, of May" into keys and values. Raises ConfigError.

    In "shape=sequence=32,sequence=128" the second part is another value of `shape`.
    """
    key_before = ""
    for part in filter(None, re.split(r",(?=\s*\w+\s*=)", text)):
        key, equals, value = (piece.strip(" ,") for piece in part.partition("="))
        if key not in valid and key_before == "shape":
            key, value = key_before, part.strip(" ,")
        if not equals or not value:
            raise ConfigError(f"{option}: '{part}' is not of the form key=value")
        if key not in valid:
            raise ConfigError(f"{option}: unknown key '{key}'{nearest(key, valid)}")
        key_before = key
        yield key, value


def suggestion(word: str, valid: Iterable[str]) -> str:
    """Suggest the nearest word; TensorRT_RTX and other spellings suggest an engine."""
    words = list(valid)
    spellings = {spelling: e.name for e in ENGINES.values() if e.name in words for spelling in e.spellings}
    close = closest(word, [*words, *spellings]) or closest(word.lower().replace("_", "-"), [*words, *spellings])
    return nearest(spellings.get(close[0], close[0]) if close else word, words)
