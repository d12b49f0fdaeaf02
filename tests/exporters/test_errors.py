"""An error's words name the first error and the line of the user's own code."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

from exporters.errors import sentence

LIBRARY = """
class Wrapped(Exception):
    pass

def checked(value):
    if value < 0:
        raise ValueError("a size must be positive")
    return value

def call(function):
    try:
        return function()
    except Exception as error:
        raise Wrapped("Failed to export the model. See above for more.") from error

def convert(node):
    raise LookupError(f"no counterpart of {node.name}")

def export(node):
    return call(lambda: convert(node))

def path_of_module():
    raise NameError("module is not installed as a submodule")

def trace(function):
    try:
        return path_of_module()
    except NameError:
        return function()
"""
MODEL = """
import somelib

def width(sizes):
    return sizes["width"]

def stem(sizes):
    return width(sizes)

def missing():
    return stem({})

def negative():
    return somelib.checked(-3)

def wrapped_by_library():
    return somelib.call(missing)

def wrapped_by_user():
    try:
        return missing()
    except KeyError as error:
        raise RuntimeError("no stem") from error

def replaced_by_user():
    try:
        return missing()
    except KeyError:
        raise RuntimeError("no stem") from None

def traced():
    return somelib.trace(missing)

def nameless():
    return somelib.path_of_module()

def repeated():
    try:
        raise RuntimeError("no stem")
    except RuntimeError as error:
        raise ValueError(f"failed: {error}") from error
"""
WIDTH = "KeyError: 'width' at {file}:5 (`return sizes[\"width\"]`)"
SAID = {
    "traced": WIDTH,
    "nameless": "NameError: module is not installed as a submodule at {file}:35 (`return somelib.path_of_module()`)",
    "repeated": 'ValueError: failed: no stem at {file}:39 (`raise RuntimeError("no stem")`)',
    "missing": WIDTH,
    "negative": "ValueError: a size must be positive at {file}:14 (`return somelib.checked(-3)`)",
    "wrapped_by_library": WIDTH,
    "wrapped_by_user": f"RuntimeError: no stem, after {WIDTH}",
    "replaced_by_user": 'RuntimeError: no stem at {file}:29 (`raise RuntimeError("no stem") from None`)',
}


@pytest.fixture
def users(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    installed, own = tmp_path / "site", tmp_path / "own"
    for folder in (installed / "somelib-1.0.dist-info", own):
        folder.mkdir(parents=True)
    (installed / "somelib.py").write_text(LIBRARY)
    (own / "users_model.py").write_text(MODEL)
    for folder in (installed, own):
        monkeypatch.syspath_prepend(folder)
    for name in ("somelib", "users_model"):
        monkeypatch.setitem(sys.modules, name, sys)  # After the test it is out again, whichever it was.
        del sys.modules[name]
    return importlib.import_module("users_model")


def raised(function: Callable[[], object]) -> Exception:
    """As a library's frame would catch it, with no frame of the test's own."""
    try:
        function()
    except Exception as error:
        assert error.__traceback__ is not None
        return error.with_traceback(error.__traceback__.tb_next)
    raise AssertionError("nothing was raised")


@pytest.mark.parametrize("name", SAID)
def test_the_first_error_is_said_with_the_users_deepest_line(users, name):
    assert sentence(raised(getattr(users, name))) == SAID[name].format(file=users.__file__)


COMPILER = "ValueError: C++ compile error: a.h:2: fatal error: omp.h: none"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("\x1b[31mred\x1b[0m\n  and\tmore\x07", "ValueError: red and more"),
        ("\x1b]0;a window's title\x07no luck.", "ValueError: no luck"),
        ("", "ValueError"),
        (f"{'what is wrong ' * 4}\n\nWhat to do:\n - this", f"ValueError: {('what is wrong ' * 4).strip()}"),
        (
            "C++ compile error\n\nCommand:\ng++ -x\n\nOutput:\na.h:1: note: x\na.h:2: fatal error: omp.h: none\n",
            COMPILER,
        ),
        ("two\n\nparagraphs", "ValueError: two: paragraphs"),
        ("x" * 300 + "end", f"ValueError: {'x' * 147} … {'x' * 147}end"),
    ],
)
def test_a_message_is_one_short_line_of_plain_text(text, said):
    assert sentence(ValueError(text)) == said
