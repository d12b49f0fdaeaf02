"""Say in a sentence what an error was, at which line of the user's own code it came up, and which word was meant."""

from __future__ import annotations

import difflib
import linecache
import re
import traceback
from collections.abc import Iterable, Iterator
from pathlib import Path

from exporters.packages import library_folders

_ESCAPES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-_])")
"""What colours a terminal, or names its window."""
_SIGNATURE = re.compile(r"(?<!\S)/\S*?/onnxruntime/\S+ .*?\] (?=\w+ failure \d+)")
"""Where and in which C++ template ONNX Runtime failed, several hundred characters before it says how."""
_PLACE = re.compile(r'File "(?P<file>[^"\n]+)", line (?P<line>\d+)')
"""As Python writes a frame, and torch those of the code that it traced or compiled."""
_LINE_CHARACTERS = 80
_WORD_CHARACTERS = 200
"""Of a word that is compared with others, which takes the square of their number."""
_MESSAGE_CHARACTERS = 100_000
"""Some have a tensor or a file's content in them: 48 MB of it took ten seconds to look through."""
_TITLE_CHARACTERS = 40
"""A paragraph that is shorter is no more than a title, such as "C++ compile error"."""


def cut(text: str, characters: int) -> str:
    """The text, or its beginning of that many characters, which ends in "…"."""
    return text if len(text) <= characters else f"{text[: characters - 1]}…"


def shown(text: str, characters: int = 120) -> str:
    """A text's beginning, on one line: what a terminal would not print becomes its escape."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in cut(text, characters))


def closest(word: str, valid: Iterable[str], count: int = 1) -> list[str]:
    """The valid words, `count` at most, of which one was probably meant."""
    return difflib.get_close_matches(word[:_WORD_CHARACTERS], list(dict.fromkeys(valid)), n=count, cutoff=0.7)


def nearest(word: str, valid: Iterable[str], otherwise: str | None = None, count: int = 1) -> str:
    """A hint behind a sentence, like "; did you mean 'eager'?"; else `otherwise`, or all of the valid words."""
    words = list(valid)
    if near := closest(word, words, count):
        return f"; did you mean {' or '.join(map(repr, near))}?"
    return f"; {otherwise or 'valid: ' + (', '.join(dict.fromkeys(words)) or 'none')}"


def sentence(error: BaseException, characters: int = 300) -> str:
    """Like "ValueError: no luck at /home/me/stem.py:14 (`raise ValueError(text)`)": the error that came first.

    Libraries wrap the error that helps into others that do not. What the user's own code made of it comes before it:
    "RuntimeError: no stem, after KeyError: 'width' at …".
    """
    errors = chain(error)
    ends = ((each, traceback.extract_tb(each.__traceback__)[-1:]) for each in errors)
    first, own = errors[-1], next((each for each, end in ends if end and _is_users(end[0].filename)), errors[-1])
    text = _named(first, characters)
    if own is not first:
        text = f"{_named(own, characters)}, after {text}"
    return text + place(error)


def place(error: BaseException) -> str:
    """Like " at /home/me/stem.py:14 (`raise ValueError(text)`)", a line of the user's own code; empty without one."""
    errors = chain(error)
    found = next(filter(None, map(_frame_of_user, reversed(errors))), None)
    found = found or next(filter(None, map(_line_named, reversed(errors))), None)
    return "" if found is None else _at(*found)


def place_in(frames: Iterable[traceback.FrameSummary]) -> str:
    """Like `place`, of the deepest of these frames that is in the user's own code."""
    own = [(frame.filename, frame.lineno or 0) for frame in frames if _is_users(frame.filename)]
    return _at(*own[-1]) if own else ""


def _at(file: str, number: int) -> str:
    code = cut(linecache.getline(file, number).strip(), _LINE_CHARACTERS)
    return f" at {file}:{number}" + (f" (`{code}`)" if code else "")


def text_of(error: BaseException, characters: int = 300) -> str:
    """An error's message on one line of at most that many characters, without what is meant for a terminal. Of several
    paragraphs the first, which says what is wrong. Of a compiler's output its first error, too."""
    first, _, more = _ESCAPES.sub("", message(error)).strip().partition("\n\n")
    if len(first) < _TITLE_CHARACTERS and more:
        faults = [line for line in more.splitlines() if "error: " in line]
        first = f"{first}: {faults[0] if faults else more}"
    words = " ".join(first.split())
    return cut(_SIGNATURE.sub("", "".join(filter(str.isprintable, words))), characters)


def message(error: BaseException) -> str:
    """Its text, as much as one can read; of one that cannot be printed, why not."""
    try:
        return str(error)[:_MESSAGE_CHARACTERS]
    except BaseException as why:
        return f"(its text cannot be had: {type(why).__name__})"


def chain(error: BaseException | None, hidden: bool = False) -> list[BaseException]:
    """The error and those that it followed, the one that came first at the end; also those `hidden` by "from None"."""
    found: list[BaseException] = []
    while error is not None and not any(error is each for each in found):  # Some go round in circles.
        found.append(error)
        error = error.__cause__ or (error.__context__ if hidden or not error.__suppress_context__ else None)
    return found


def _named(error: BaseException, characters: int) -> str:
    return ": ".join(filter(None, (type(error).__name__, text_of(error, characters).rstrip("."))))


def _frame_of_user(error: BaseException) -> tuple[str, int] | None:
    """File and line of the deepest frame in the user's own code."""
    if isinstance(error, SyntaxError) and error.filename and error.lineno:
        return error.filename, error.lineno
    frames = traceback.extract_tb(error.__traceback__)
    own = [(frame.filename, frame.lineno or 0) for frame in frames if _is_users(frame.filename)]
    return own[-1] if own else None


def _line_named(error: BaseException) -> tuple[str, int] | None:
    """The last line of the user's own code that a message names, or the node of a graph that was being converted."""
    for text in (message(error), *_stacks(error)):
        places = [(match["file"], int(match["line"])) for match in _PLACE.finditer(text)]
        own = [place for place in places if _is_users(place[0])]
        if own:
            return own[-1]
    return None


def _stacks(error: BaseException) -> Iterator[str]:
    """Where the nodes come from that torch's exporter was at: only its own frames know that."""
    for frame, _ in traceback.walk_tb(error.__traceback__):
        meta = getattr(frame.f_locals.get("node"), "meta", None)
        if isinstance(meta, dict):
            yield str(meta.get("stack_trace") or "")


def _is_users(file: str) -> bool:
    """Whether a source file is neither a library's nor this project's."""
    path = Path(file).resolve()
    return path.is_file() and library_folders().isdisjoint(path.parents)
