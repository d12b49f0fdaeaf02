"""Read a YAML file with the line of every key and list item, in bounded time and memory whatever it holds."""

from __future__ import annotations

import functools
import math
import re
from pathlib import Path
from typing import Any

import yaml

from exporters.errors import cut
from exporters.source import WEIGHTS
from exporters.whole_file import open_regular
from profiler.errors import ConfigError

Location = tuple[str | int, ...]
"""The keys and list positions that lead to a value."""
Lines = dict[Location, int]
_MOST_BYTES = 1 << 20
_MOST_VALUES = 10_000
"""Keys and values of a file, those that an alias stands for counted where it is; they take half a second."""
_DEEPEST = 50
_LARGEST = 2**64
"""What the types of inputs and options can hold."""
_TAG = "tag:yaml.org,2002:"
_KINDS = {"str": "text", "int": "whole number", "float": "number", "bool": "true or false", "null": "nothing"}
_HOLDERS = ("seq", "map")
_NO_TEXT = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")
"""Control characters but line breaks and tabs, and halves of a pair: no name, path or table can hold them."""


class _Refused(yaml.MarkedYAMLError):
    """What is YAML, but cannot be in a job."""


class _Loader(yaml.SafeLoader):
    """Text, numbers, true and false, nothing, lists and keys, as JSON has them; where YAML has more, there is a line.

    Dates stay text: no key wants one, and 2020-13-45 would be a ValueError. So does 1:30, a number to the base of 60.
    """

    yaml_implicit_resolvers = {  # noqa: RUF012
        first: [(tag, pattern) for tag, pattern in resolvers if tag not in (f"{_TAG}timestamp", f"{_TAG}value")]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._values = self._depth = 0

    def resolve(self, kind: type[yaml.Node], value: str | None, implicit: tuple[bool, bool]) -> str:
        tag: str = super().resolve(kind, value, implicit)  # type: ignore[no-untyped-call]
        is_clock = kind is yaml.ScalarNode and implicit[0] and ":" in (value or "")
        return f"{_TAG}str" if is_clock and tag in (f"{_TAG}int", f"{_TAG}float") else tag

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        """Stop where a file would take too long, or Python's stack."""
        self._values += 1
        self._depth += 1
        if self._values > _MOST_VALUES or self._depth > _DEEPEST:
            mark = self.peek_event().start_mark  # type: ignore[no-untyped-call]
            raise _Refused(problem=_too_much(self._depth), problem_mark=mark)
        node: yaml.Node | None = super().compose_node(parent, index)
        self._depth -= 1
        return node

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        try:
            value = super().construct_object(node, deep)
        except (ValueError, LookupError):
            kind = _KINDS.get(node.tag.removeprefix(_TAG), "value")
            raise _Refused(problem=f"{_short(node.value)} is no {kind}", problem_mark=node.start_mark) from None
        if why := _why_not(value):
            raise _Refused(problem=f"{_short(node.value)} {why}", problem_mark=node.start_mark)
        return value

    def construct_undefined(self, node: yaml.Node) -> Any:
        problem = f"nothing in a job has the tag {_short(node.tag)}; leave it out, or put the text in quotes"
        raise _Refused(problem=problem, problem_mark=node.start_mark)

    yaml_constructors = {  # noqa: RUF012
        **{f"{_TAG}{kind}": yaml.SafeLoader.yaml_constructors[f"{_TAG}{kind}"] for kind in (*_KINDS, *_HOLDERS)},
        None: construct_undefined,
    }


def read(path: Path) -> tuple[dict[str, Any], Lines]:
    """The file's data and its lines. Raises ConfigError for a file that cannot be read or does not hold keys."""
    if path.suffix == ".py" and path.is_file():
        name = path.stem if path.is_absolute() else ".".join(path.with_suffix("").parts)
        raise ConfigError(f"{path}: name the function in it that returns the model: {name}:make --input 3,224,224")
    if path.suffix in (".onnx", *WEIGHTS) and path.is_file():
        key = "onnx" if path.suffix == ".onnx" else 'factory: "net:make", input: [3, 224, 224], weights'
        entry = f"{{name: mine, {key}: {path}}}"
        raise ConfigError(f"{path}: is no job; give a YAML file whose `models` have it, as {entry} (docs/config.md)")
    try:
        loader, root, lines = _composed(_text(path))
        data = loader.construct_document(root) if root else None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = mark.line + 1 if mark else 1
        why = getattr(error, "problem", None) or str(error).splitlines()[0]
        kind = "" if isinstance(error, _Refused) else "no valid YAML: "
        raise ConfigError(f"{path}:{line}: {kind}{cut(why, 300)}") from None
    if not isinstance(data, dict):
        raise ConfigError(
            f"{path}:1: expected keys such as models and engines; see the bench.yaml that comes with the project"
        )
    return data, dict(lines)


def _text(path: Path) -> str:
    """The file's text. Raises ConfigError, also for what has no end or makes its reader wait, such as a pipe."""
    try:
        with open_regular(path, _MOST_BYTES) as file:
            return file.read(_MOST_BYTES).decode()
    except (OSError, ValueError) as error:  # Of a path that no file can have, too.
        why = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
    where = cut(str(path), 300)
    raise ConfigError(f"{where}: cannot be read: {why}; give the path of a YAML file such as bench.yaml")


@functools.lru_cache(maxsize=1)
def _composed(text: str) -> tuple[_Loader, yaml.Node | None, Lines]:
    """The file's nodes, and what makes data of them: a run reads its job for each kind of device."""
    loader = _Loader(text)
    root: yaml.Node | None = loader.get_single_node()
    lines: Lines = {}
    if root is not None:
        _note_lines(loader, root, (), lines)
    return loader, root, lines


def _note_lines(loader: _Loader, node: yaml.Node, at: Location, lines: Lines) -> None:
    """Note the lines of all that is below a node. Raises _Refused where aliases stand for too much, or for themselves.

    What they stand for is here as long as it will be; what merges it has its keys.
    """
    if len(lines) > _MOST_VALUES or len(at) > _DEEPEST:
        raise _Refused(problem=_too_much(len(at)), problem_mark=node.start_mark)
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            if not isinstance(key, yaml.ScalarNode):
                raise _Refused(problem="a key must be a text", problem_mark=key.start_mark)
            word = key.value if key.tag == f"{_TAG}merge" else loader.construct_object(key)
            if type(word) not in (str, int):
                raise _Refused(problem=f"a key must be a text, got {_short(key.value)}", problem_mark=key.start_mark)
            where = (*at, word)
            if where in lines:
                raise _Refused(problem=f"{_short(key.value)} is given twice; keep one", problem_mark=key.start_mark)
            lines[where] = key.start_mark.line + 1
            _note_lines(loader, value, where, lines)
    elif isinstance(node, yaml.SequenceNode):
        for index, item in enumerate(node.value):
            lines[(*at, index)] = item.start_mark.line + 1
            _note_lines(loader, item, (*at, index), lines)


def _too_much(depth: int) -> str:
    if depth > _DEEPEST:
        return f"more than {_DEEPEST} levels, or an alias in what it stands for"
    return f"more than {_MOST_VALUES:,} values, aliases counted with what they stand for; make several jobs of it"


def _why_not(value: Any) -> str:
    """Why no part of a job can be such a text or number."""
    if isinstance(value, str) and _NO_TEXT.search(value):
        return "holds a control character or half of a surrogate pair"
    if isinstance(value, int) and abs(value) > _LARGEST:
        return "is larger than 2^64"
    return "must be finite" if isinstance(value, float) and not math.isfinite(value) else ""


def _short(value: Any) -> str:
    """A value as a file has it, on one line, in quotes, and not much of it."""
    return cut(repr(value), 80) if isinstance(value, str) else "this"
