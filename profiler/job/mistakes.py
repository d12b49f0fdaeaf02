"""Read a job's YAML, and explain a mistake: its line and key, the expected value, and the nearest valid word."""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, is_dataclass
from pathlib import Path
from typing import Any, get_args

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails, PydanticCustomError
from ruamel.yaml import YAML
from ruamel.yaml.constructor import RoundTripConstructor

from engines.options import DEVICES
from exporters.errors import shown
from exporters.named_files import read_bytes
from profiler.errors import ConfigError, nearest
from profiler.job.case import suggestion

Location = tuple[str | int, ...]
"""The keys and list positions that lead to a value."""
Lines = dict[Location, int]
EXPECTED = {
    "list_type": "must be a list: put it in [ ]",
    "tuple_type": "must be a list, such as [3, 224, 224]",
    **dict.fromkeys(("dict_type", "dataclass_type", "model_type"), "must be keys and values"),
    "path_type": "must be a path",
    **dict.fromkeys(("int_type", "int_parsing", "int_from_float"), "must be a whole number"),
    **dict.fromkeys(("float_type", "float_parsing"), "must be a number"),
    "too_short": "must have at least one entry",
    "too_long": "must have fewer entries",
    "bool_type": "must be true or false",
    "string_type": "must be text",
}
"""Texts by type of error, since pydantic's name Python's types."""
_MOST_PROBLEMS = 10
_MOST_BYTES, _MOST_VALUES = 2**19, 20_000
"""Limits of a job's file."""


@dataclass(frozen=True)
class Origin:
    """The source of a job's keys: the lines of a file, and options `typed` on the command line.

    Keys of a device's `block` replace the job's.
    """

    path: Path | None = None
    lines: Lines = field(default_factory=dict)
    typed: Mapping[Location, str] = field(default_factory=dict)
    block: str = ""

    def error(self, message: str, at: Location) -> ConfigError:
        """Make the error for a mistake at a place in the job."""
        # A block replaces the job's keys; in its budget and machine, key by key.
        whole = (self.block, *at) if (self.block, *at[:2]) in self.lines else at
        path = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in whole).lstrip(".")
        option = next((self.typed[at[:n]] for n in range(len(at), 0, -1) if at[:n] in self.typed), None)
        line = f"{self.path}:{self.line(at)}: " if self.path and not option else ""
        place = option or path
        return ConfigError(f"{line}{shown(f'{place}: {message}' if place else message, 1000)}")

    def line(self, at: Location) -> int:
        """Return the line of a place, or of the nearest place around it."""
        places = (place for n in range(len(at), 0, -1) for place in ((self.block, *at[:n]), at[:n]))
        return next((self.lines[place] for place in places if place in self.lines), 1)

    def explain(self, error: ValidationError, model: type[BaseModel]) -> ConfigError:
        """Explain the first mistakes that pydantic reported, one a line."""
        problems = sorted(error.errors(), key=lambda problem: self.line(_location(problem)))
        texts = dict.fromkeys(str(self.error(*_problem(problem, model))) for problem in problems[:_MOST_PROBLEMS])
        return ConfigError("\n".join(texts))


class _Constructor(RoundTripConstructor):
    """Leaves dates as text."""


_Constructor.add_constructor("tag:yaml.org,2002:timestamp", RoundTripConstructor.construct_scalar)


def read(path: Path) -> tuple[dict[str, Any], Lines]:
    """Read the file's data, and the line of every key and item. Raises ConfigError."""
    lines: Lines = {}
    yaml = YAML()
    yaml.Constructor = _Constructor
    text = read_bytes(path, _MOST_BYTES)
    try:
        data = _plain(yaml.load(text.decode("utf-8")), (), lines)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None
    except Exception as error:  # ruamel raises Python's errors for odd tags and keys.
        mark = getattr(error, "problem_mark", None)
        why = getattr(error, "problem", None) or str(error).partition("\n")[0]
        raise ConfigError(f"{path}:{mark.line + 1 if mark else 1}: invalid YAML: {shown(why, 300)}") from None
    if not isinstance(data, dict):
        raise ConfigError(f"{path}:1: expected keys such as models and engines; see bench.yaml")
    return data, lines


def _plain(node: Any, at: Location, lines: Lines) -> Any:
    """Convert ruamel's objects to plain data; note the line of each key and item."""
    if isinstance(node, dict | list):
        lines.update({(*at, key): place[0] + 1 for key, place in (node.lc.data or {}).items()})  # type: ignore[union-attr]
        if len(lines) > _MOST_VALUES:  # Here aliases multiply.
            raise ConfigError(f"has over {_MOST_VALUES:,} values, those behind aliases included; split the job")
    if isinstance(node, dict):
        return {key: _plain(value, (*at, key), lines) for key, value in node.items()}
    if isinstance(node, list):
        return [_plain(value, (*at, number), lines) for number, value in enumerate(node)]
    if node is None or isinstance(node, bool):
        return node
    if isinstance(node, int | float):
        return int(node) if isinstance(node, int) else float(node)
    return str(node)


def to_yaml(data: Any) -> str:
    yaml, text = YAML(), io.StringIO()
    yaml.default_flow_style, yaml.width = None, 110
    yaml.dump(data, text)
    return text.getvalue()


def mistake(message: str, *at: str | int) -> PydanticCustomError:
    """Make an error for a validator to raise; `at` leads from the validated field to the mistake."""
    # Braces in a custom error's template would be read as fields.
    return PydanticCustomError("mistake", "{text}", {"text": shown(message, 1000), "at": at})


def check_word(word: Any, valid: Iterable[str], kind: str, note: str = "", at: Location = ()) -> str:
    """Return a valid word; raise a mistake with the nearest word for any other."""
    if word not in list(valid):
        hint = suggestion(str(word), valid) + (f" {note}" if note else "")
        raise mistake(f"unknown {kind} '{shown(str(word))}'{hint}", *at)
    return str(word)


def yaml_text(value: Any) -> str:
    if value is None:
        return "nothing"
    return str(value).lower() if isinstance(value, bool) else shown(repr(value))


def _location(error: ErrorDetails) -> Location:
    return tuple(error["loc"]) + tuple(error.get("ctx", {}).get("at", ()))


def _problem(error: ErrorDetails, model: type[BaseModel]) -> tuple[str, Location]:
    at, kind = _location(error), error["type"]
    if kind in ("extra_forbidden", "unexpected_keyword_argument"):
        valid = [key for key in _keys_at(at[:-1], model) if key != at[-1]]  # A device's block has no blocks.
        return f"unknown key '{at[-1]}'{nearest(str(at[-1]), valid)}", at
    if kind == "missing":
        return f"this {'entry' if isinstance(at[-1], int) else 'key'} is missing", at
    if kind in ("mistake", "value_error"):
        return error["msg"].removeprefix("Value error, "), at
    expected = EXPECTED.get(kind, error["msg"].replace("Input should", "must"))
    if kind == "model_type" and at[0] in ("models", "engines"):
        expected = "must be a name, or keys and values"
    return f"{expected}, got {yaml_text(error['input'])}", at


def _keys_at(location: Location, model: type[BaseModel]) -> list[str]:
    owner: Any = model
    for part in location:
        if isinstance(part, str) and part in getattr(owner, "model_fields", ()):
            owner = next(_with_fields(owner.model_fields[part].annotation))
    fields = owner.__dataclass_fields__ if is_dataclass(owner) else owner.model_fields
    return [*fields, *(() if location else DEVICES)]


def _with_fields(annotation: Any) -> Iterator[Any]:
    """Yield the models and dataclasses in an annotation such as list[ModelEntry] or Conv2d | None."""
    if isinstance(annotation, type) and (issubclass(annotation, BaseModel) or is_dataclass(annotation)):
        yield annotation
    for argument in get_args(annotation):
        yield from _with_fields(argument)
