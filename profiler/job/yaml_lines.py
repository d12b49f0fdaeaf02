"""Read a YAML file with the line of every key and list item."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from exporters.source import WEIGHTS
from profiler.errors import ConfigError

Location = tuple[str | int, ...]
"""The keys and list positions that lead to a value."""
Lines = dict[Location, int]


class _Loader(yaml.SafeLoader):
    """Dates stay text: no key wants one, and 2020-13-45 would be a ValueError without a line."""

    yaml_implicit_resolvers = {  # noqa: RUF012
        first: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:timestamp"]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }


def read(path: Path) -> tuple[dict[str, Any], Lines]:
    """The file's data and its lines. Raises ConfigError for a file that cannot be read or does not hold keys."""
    if path.suffix == ".py" and path.is_file():
        name = path.stem if path.is_absolute() else ".".join(path.with_suffix("").parts)
        raise ConfigError(f"{path}: name the function in it that returns the model: {name}:make --input 3,224,224")
    if path.suffix in (".onnx", *WEIGHTS) and path.is_file():
        raise ConfigError(f"{path}: a job is a YAML file that names it (README, 'Your own model')")
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise ConfigError(f"{path}: cannot be read: {why}; give the path of a YAML file such as bench.yaml") from None
    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
        data = yaml.load(text, Loader=_Loader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = mark.line + 1 if mark else 1
        why = getattr(error, "problem", None) or str(error).splitlines()[0]
        raise ConfigError(f"{path}:{line}: no valid YAML: {why}") from None
    if not isinstance(data, dict):
        raise ConfigError(
            f"{path}:1: expected keys such as models and engines; see the bench.yaml that comes with the project"
        )
    lines: Lines = {}
    _note_lines(path, root, (), lines)
    return data, lines


def _note_lines(path: Path, node: yaml.Node | None, at: Location, lines: Lines) -> None:
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            where = (*at, int(key.value) if key.tag == "tag:yaml.org,2002:int" else key.value)
            if where in lines:
                raise ConfigError(f"{path}:{key.start_mark.line + 1}: '{key.value}' is given twice; keep one")
            lines[where] = key.start_mark.line + 1
            _note_lines(path, value, where, lines)
    elif isinstance(node, yaml.SequenceNode):
        for index, item in enumerate(node.value):
            lines[(*at, index)] = item.start_mark.line + 1
            _note_lines(path, item, (*at, index), lines)
