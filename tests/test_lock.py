"""requirements.lock has what pyproject.toml asks for."""

import re
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

tomllib = pytest.importorskip("tomllib", reason="Python 3.11 and later read TOML")
ROOT = Path(__file__).resolve().parents[1]
LOCKED = ("test", "docs", "openvino", "ray", "tensorrt-rtx", "verify")
"""Extras in the lock, like in the Makefile's target `lock`."""


def test_the_lock_meets_every_requirement():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    asked = [
        Requirement(line) for line in (*project["dependencies"], *(line for name in LOCKED for line in extras[name]))
    ]
    locked: dict[str, list[str]] = {}
    for name, version in re.findall(r"^([\w.-]+)==([\w.]+)", (ROOT / "requirements.lock").read_text(), re.MULTILINE):
        locked.setdefault(canonicalize_name(name), []).append(version)
    missing = [
        str(need)
        for need in asked
        if not any(map(need.specifier.contains, locked.get(canonicalize_name(need.name), ())))
    ]
    assert missing == [], "make lock"
