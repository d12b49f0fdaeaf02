"""Describe an error in one sentence, with the line in the user's code, and suggest near words."""

from __future__ import annotations

import difflib
import linecache
import re
import traceback
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from exporters.packages import library_folders

_ESCAPES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-_])")
"""Escape sequences that colour a terminal or set its title."""
_UNPRINTABLE = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
"""Control characters except line breaks and tabs, marks that reverse the direction of text, and surrogates."""
_SIGNATURE = re.compile(r"(?<!\S)/\S*?/onnxruntime/\S+ .*?\] (?=\w+ failure \d+)")
"""The C++ function and line that ONNX Runtime writes before an error's reason, in several hundred characters."""
_PLACE = re.compile(r'File "(?P<file>[^"\n]+)", line (?P<line>\d+)')
"""A stack frame, as Python writes it, and torch for traced or compiled code."""
_LINE_CHARACTERS = 80
_MESSAGE_CHARACTERS = 100_000
"""Some messages hold a tensor or a file: 48 MB took ten seconds to search."""
_TITLE_CHARACTERS = 40
"""A shorter paragraph is a title, such as "C++ compile error"."""


class ConfigError(Exception):
    """A config, file or argument that cannot be used: the message says where, and how to fix it. Exit code 2."""


def cut(text: str, characters: int) -> str:
    """Shorten the text to that many characters, ending in "…"."""
    return text if len(text) <= characters else f"{text[: characters - 1]}…"


def without_middle(text: str, characters: int) -> str:
    """Shorten the text to that many characters, with " … " in its middle: errors often end with the cause."""
    if len(text) <= characters:
        return text
    end = characters // 2
    return f"{text[: characters - end - 3].rstrip()} … {text[-end:].lstrip()}"


def shown(text: str, characters: int = 120) -> str:
    """Return a text's beginning on one line, with unprintable characters escaped."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in cut(text, characters))


def printable(value: Any) -> Any:
    """Escape the characters in a JSON value's texts that break tables, terminals or files."""
    if isinstance(value, str):
        return _UNPRINTABLE.sub(lambda match: match[0].encode("unicode_escape").decode(), value)
    if isinstance(value, dict):
        return {printable(key): printable(item) for key, item in value.items()}
    if isinstance(value, list | tuple) and not (value and isinstance(value[0], float)):  # Samples are many.
        return list(map(printable, value))
    return value


def closest(word: str, valid: Iterable[str], count: int = 1) -> list[str]:
    """Return up to `count` of the nearest valid words, else of the shortest ones that contain the word."""
    words = list(dict.fromkeys(valid))
    parts = sorted((candidate for candidate in words if word in candidate), key=len) if len(word) > 3 else []
    return difflib.get_close_matches(word, words, n=count, cutoff=0.7) or parts[:count]


def nearest(word: str, valid: Iterable[str], otherwise: str | None = None, count: int = 1) -> str:
    """Return a hint like "; did you mean 'eager'?"; else `otherwise`, or all valid words."""
    words = list(valid)
    if near := closest(word, words, count):
        return f"; did you mean {' or '.join(map(repr, near))}?"
    return f"; {otherwise or 'valid: ' + (', '.join(dict.fromkeys(words)) or 'none')}"


def sentence(error: BaseException, characters: int = 300) -> str:
    """Describe the root cause, like "ValueError: no luck at /home/me/stem.py:14 (`raise ValueError(text)`)".

    Libraries wrap the helpful error in others. If the user's code wraps it, the user's error leads:
    "RuntimeError: no stem, after KeyError: 'width' at …".
    """
    errors = _causes(error)
    ends = ((link, traceback.extract_tb(link.__traceback__)[-1:]) for link in errors)
    first, users = errors[-1], next((link for link, end in ends if end and _is_users(end[0].filename)), errors[-1])
    text, outer = _named(first, characters), _named(users, characters)
    is_repeated = text_of(first, characters) in outer  # Some libraries repeat the text in the outer error.
    return (outer if users is first or is_repeated else f"{outer}, after {text}") + place(error)


def place(error: BaseException) -> str:
    """Return the line of the user's code, like " at /home/me/stem.py:14 (`raise ValueError(text)`)", or ""."""
    errors = _causes(error)[::-1]
    return next(filter(None, (*map(_place_of, errors), *map(_place_named, errors))), "")


def place_in(frames: Iterable[traceback.FrameSummary]) -> str:
    """Return the deepest frame in the user's code, in the words of `place`."""
    lines = [(frame.filename, frame.lineno or 0) for frame in frames if _is_users(frame.filename)]
    return _at(*lines[-1]) if lines else ""


def _at(file: str, number: int) -> str:
    code = cut(linecache.getline(file, number).strip(), _LINE_CHARACTERS)
    return f" at {file}:{number}" + (f" (`{code}`)" if code else "")


def text_of(error: BaseException, characters: int = 300) -> str:
    """Return a message's first paragraph, or a compiler's title and first error, on one line of `characters`."""
    first, _, rest = _ESCAPES.sub("", message(error)).strip().partition("\n\n")
    if len(first) < _TITLE_CHARACTERS and rest:
        faults = [line for line in rest.splitlines() if "error: " in line]
        first = f"{first}: {faults[0] if faults else rest}"
    words = "".join(filter(str.isprintable, " ".join(first.split())))
    return without_middle(_SIGNATURE.sub("", words), characters)


def message(error: BaseException) -> str:
    """Return the error's text, shortened, or why it has no text."""
    try:
        return str(error)[:_MESSAGE_CHARACTERS]
    except BaseException as why:
        return f"(no text: {type(why).__name__})"


def chain(error: BaseException | None, hidden: bool = False) -> list[BaseException]:
    """Return the error and its causes, the root cause last; `hidden` includes those behind "from None"."""
    errors: list[BaseException] = []
    while error is not None and not any(error is earlier for earlier in errors):  # Some chains are cycles.
        errors.append(error)
        error = error.__cause__ or (error.__context__ if hidden or not error.__suppress_context__ else None)
    return errors


def _causes(error: BaseException) -> list[BaseException]:
    """Return the error's chain without torch.fx's searches for a module's name, which fail beside the cause."""
    errors = chain(error)
    ends = [traceback.extract_tb(link.__traceback__)[-1:] for link in errors]
    causes = [link for link, end in zip(errors, ends, strict=True) if not end or end[0].name != "path_of_module"]
    return causes or errors


def _named(error: BaseException, characters: int) -> str:
    return ": ".join(filter(None, (type(error).__name__, text_of(error, characters).rstrip("."))))


def _place_of(error: BaseException) -> str:
    if isinstance(error, SyntaxError) and error.filename and error.lineno:
        return _at(error.filename, error.lineno)
    return place_in(traceback.extract_tb(error.__traceback__))


def _place_named(error: BaseException) -> str:
    """Return the last line of the user's code in a message, or in a node that torch's exporter was converting."""
    nodes = (frame.f_locals.get("node") for frame, _ in traceback.walk_tb(error.__traceback__))
    metas = (meta for node in nodes if isinstance(meta := getattr(node, "meta", None), dict))
    for text in (message(error), *(str(meta.get("stack_trace") or "") for meta in metas)):
        if matches := [match for match in _PLACE.finditer(text) if _is_users(match["file"])]:
            return _at(matches[-1]["file"], int(matches[-1]["line"]))
    return ""


def _is_users(file: str) -> bool:
    path = Path(file).resolve()
    return path.is_file() and library_folders().isdisjoint(path.parents)
