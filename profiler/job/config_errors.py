"""Explain a mistake in a job: its line and key, what was expected, and the valid word that was probably meant."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, is_dataclass
from pathlib import Path
from typing import Any, TypeVar, get_args

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails, InitErrorDetails, PydanticCustomError

from engines.catalog import ENGINES
from exporters.bounds import MOST_NAME_BYTES
from exporters.errors import closest, nearest
from exporters.errors import shown as shown
from profiler.errors import ConfigError
from profiler.job.yaml_lines import Lines, Location

DEVICE_BLOCKS = ("cpu", "cuda")
"""Keys of a job that hold what differs on that device."""
EXPECTED = {
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
_YAML_KEYS = {"pass_": "pass"}
_MOST_PROBLEMS = 10
"""That are told at once."""
_LONGEST_NAME, _LONGEST_PATH = 255, 4095
"""Bytes that Linux takes."""
_Model = TypeVar("_Model", bound=BaseModel)


def mistake(message: str, *at: str | int) -> PydanticCustomError:
    """What a validator raises; `at` are the keys and indices below the validated field that the message is about."""
    # Braces in a custom error's template would be read as fields, and half of a pair is no text to it.
    return PydanticCustomError("own", "{text}", {"text": shown(message, 1000), "own": True, "at": at})


def check_part_of_id(name: str, what: str) -> str:
    """The name, if it can be part of ids."""
    if not name or "/" in name:
        raise mistake(f"{what} is part of its rows' ids: '{shown(name)}' must be non-empty and without '/'")
    return check_text(name)


def check_text(text: str) -> str:
    """The text, if tables and names of files can have it."""
    if not text.isprintable():
        raise mistake(f"'{shown(text)}' has a character that cannot be printed, or a line break")
    if (length := len(text.encode())) > MOST_NAME_BYTES:
        raise mistake(f"'{shown(text)}' is {length} bytes long; give a name of {MOST_NAME_BYTES} at most")
    return text


def check_path(path: Path) -> None:
    """Raise a mistake for what no file or folder can be called, or a link that leads to itself."""
    try:
        path.resolve()
        longest = max((len(os.fsencode(part)) for part in path.parts), default=0)
        is_long = longest > _LONGEST_NAME or len(os.fsencode(path)) > _LONGEST_PATH
        why = "its name is too long" if is_long else ""
    except (OSError, RuntimeError, ValueError) as error:  # RuntimeError is what a loop of links is to Python 3.11.
        why = getattr(error, "strerror", None) or str(error)
    if why:
        raise mistake(f"{shown(str(path))}: there can be no such file: {why}")


def check_word(word: Any, valid: Iterable[str], what: str, note: str = "", at: Location = ()) -> str:
    """The word, if it is one of the valid ones."""
    if word not in list(valid):
        raise mistake(
            f"unknown {what} '{shown(str(word))}'{nearest(str(word), valid)}{' ' + note if note else ''}", *at
        )
    return str(word)


def nearest_engine(word: str, valid: Iterable[str]) -> str:
    """`nearest`, which also knows what people write for an engine's name, such as TensorRT_RTX for trt-rtx."""
    words = list(valid)
    spellings = {spelling: e.name for e in ENGINES.values() if e.name in words for spelling in e.spellings}
    close = closest(word.lower().replace("_", "-"), [*words, *spellings])
    return nearest(spellings.get(close[0], close[0]) if close else word, words)


def yaml_text(value: Any) -> str:
    """A value as a YAML has it, or its beginning."""
    if value is None:
        return "nothing"
    return str(value).lower() if isinstance(value, bool) else shown(repr(value))


@dataclass(frozen=True)
class Origin:
    """Where a job comes from, for mistakes that show only once it has been read. Any two are equal."""

    path: Path | None = field(default=None, compare=False)
    lines: Lines = field(default_factory=dict, compare=False)
    typed: Mapping[Location, str] = field(default_factory=dict, compare=False)

    def error(self, message: str, at: Location) -> ConfigError:
        """The mistake at a place in the job, with its line or option, as `explain` says it."""
        details = InitErrorDetails(type=mistake(message), loc=at, input=None)
        error = ValidationError.from_exception_data("Config", [details])
        return explain(error, BaseModel, self.path, self.lines, self.typed)


def explain(
    error: ValidationError,
    model: type[BaseModel],
    path: Path | None = None,
    lines: Lines | None = None,
    typed: Mapping[Location, str] | None = None,
) -> ConfigError:
    """Every mistake in the job, a line each, with its place in the file `path` if it comes from one, or with what was
    `typed` there."""
    known = lines or {}
    found = sorted(error.errors(), key=lambda details: known.get(_known_place(_location(details), known), 1))
    problems = sorted({_problem(details, model, known, typed or {}) for details in found[:_MOST_PROBLEMS]})
    texts = [f"{path}:{line}: {message}" if path else message for line, message in problems]
    more = len(found) - _MOST_PROBLEMS
    return ConfigError("\n".join([*texts, *([f"and {more:,} more of them"] if more > 0 else [])]))


def read_option(option: str, text: str, valid: Iterable[str]) -> Iterator[tuple[str, str]]:
    """The keys and values of an option such as `--only model=resnet50,precision=fp16`. Raises ConfigError."""
    for part in filter(None, text.split(",")):
        key, equals, value = (piece.strip() for piece in part.partition("="))
        if not equals or not value:
            raise ConfigError(f"{option}: '{part}' is not of the form key=value; separate several by commas")
        if key not in valid:
            raise ConfigError(f"{option}: unknown key '{key}'{nearest(key, valid)}")
        yield key, value


def validate_option(option: str, model: type[_Model], given: Mapping[str, Any]) -> _Model:
    """What was given on the command line, as a `model`. Raises ConfigError."""
    try:
        return model.model_validate(given)
    except ValidationError as error:
        first = error.errors()[0]
        raise ConfigError(f"{option}: {first['loc'][0]}: {_expected(first)}, got '{first['input']}'") from None


def _problem(
    error: ErrorDetails, model: type[BaseModel], lines: Lines, typed: Mapping[Location, str]
) -> tuple[int, str]:
    """The line of a validation error, and what to say of it."""
    context, location = error.get("ctx", {}), _location(error)
    known = _known_place(location, lines)
    where, message = location, error["msg"]
    if error["type"] != "missing" and all(isinstance(part, int) for part in location[len(known) :]):
        where = known or location  # One value where a list may be.
    if error["type"] in ("extra_forbidden", "unexpected_keyword_argument"):
        where = location[:-1]
        message = f"unknown key '{location[-1]}'{nearest(str(location[-1]), _keys_at(where, model))}"
    elif error["type"] == "missing":
        message = f"this {'entry' if isinstance(location[-1], int) else 'key'} is missing"
    elif error["type"] == "value_error":
        message = str(context["error"])
    elif not context.get("own"):
        message = f"{_expected(error)}, got {yaml_text(error['input'])}"
    path = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in where).lstrip(".")
    path = next((typed[location[:n]] for n in range(len(location), 0, -1) if location[:n] in typed), path)
    return lines.get(known, 1), shown(f"{path + ': ' if path else ''}{message}", 1000)


def _location(error: ErrorDetails) -> Location:
    location = tuple(_YAML_KEYS.get(str(part), part) for part in error["loc"])
    return location + tuple(error.get("ctx", {}).get("at", ()))


def _known_place(location: Location, lines: Lines) -> Location:
    """The place itself, or the nearest around it that has a line."""
    return next((location[:n] for n in range(len(location), 0, -1) if location[:n] in lines), ())


def _expected(error: ErrorDetails) -> str:
    return EXPECTED.get(error["type"], error["msg"].replace("Input should", "must"))


def _keys_at(location: Location, model: type[BaseModel]) -> list[str]:
    """The keys that the model has at this place."""
    owner: Any = model
    for part in location:
        if isinstance(part, str):
            owner = next(_with_fields(owner.model_fields[part].annotation))
    if is_dataclass(owner):
        return list(owner.__dataclass_fields__)
    keys = [_YAML_KEYS.get(key, key) for key in owner.model_fields]
    return keys if location else [*keys, *DEVICE_BLOCKS]


def _with_fields(annotation: Any) -> Iterator[Any]:
    """The models and dataclasses that an annotation such as list[ModelEntry] or Conv2d | None names."""
    if isinstance(annotation, type) and (issubclass(annotation, BaseModel) or is_dataclass(annotation)):
        yield annotation
    for argument in get_args(annotation):
        yield from _with_fields(argument)
