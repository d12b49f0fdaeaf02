"""Mutants: what is changed and what never is, which tests are run, and what kills one."""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.mutate import MOST_FILES, Mutant, drawn, mirrored, mutants_of

ROOT = Path(__file__).resolve().parents[2]
CODE = '''"""A docstring with 1 + 1."""
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    import numpy

LIMIT: Literal[3] = 7


def f(n: int = 2) -> "Literal[5] | None":
    """Another, of n < 3."""
    if n < 4 and not n == 5:
        raise ValueError(f"{n + 1} is more than {2 * 3}" + " items")
    g.calls += 1
    print(n)
    return "é" if n else n + LIMIT
'''


def mutants(code: str = CODE) -> list[Mutant]:
    return mutants_of("a.py", code.encode(), random.Random(0))


def test_every_operator_changes_what_it_should() -> None:
    found = {(mutant.operator, " ".join(mutant.old.split()), mutant.new) for mutant in mutants()}
    assert ("boolean", "n < 4 and not n == 5", "(n < 4 or not n == 5)") in found
    assert ("comparison", "n == 5", "(n != 5)") in found
    assert ("arithmetic", "n + LIMIT", "(n - LIMIT)") in found
    assert ("removed statement", "g.calls += 1", "pass") in found
    assert ("removed statement", "print(n)", "pass") in found
    assert ("swapped branch", '"é" if n else n + LIMIT', "(n + LIMIT if n else 'é')") in found
    assert any(operator == "return value" and new == "return None" for operator, _, new in found)
    assert {old for operator, old, _ in found if operator == "constant"} == {"7", "2", "4", "5", "1"}


def test_docstrings_hints_and_messages_are_left_alone() -> None:
    lines = CODE.splitlines()
    changed = {lines[mutant.line - 1].strip() for mutant in mutants()}
    assert not any(line.startswith(('"""', "if TYPE_CHECKING", "raise")) for line in changed)
    assert "3" not in {mutant.old for mutant in mutants()}, "of the hint"


def test_every_mutant_is_other_code_that_compiles_and_a_seed_draws_them_again(tmp_path: Path) -> None:
    (tmp_path / "profiler").mkdir()
    shutil.copy(ROOT / "profiler" / "stats" / "samples.py", tmp_path / "profiler")
    found = drawn(tmp_path, 40, seed=1)
    assert len({(mutant.path, mutant.start, mutant.end, mutant.operator) for mutant in found}) == 40
    for mutant in found:
        source = (tmp_path / mutant.path).read_bytes()
        assert source[mutant.start : mutant.end].decode() == mutant.old
        compile(mutant.applied(source), mutant.path, "exec")
    assert found == drawn(tmp_path, 40, seed=1)
    assert found != drawn(tmp_path, 40, seed=2)


def tree_of(folder: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


def test_tests_are_those_that_mirror_the_file_or_import_it_in_that_folder(tmp_path: Path) -> None:
    imports = {f"tests/profiler/x/test_{n}.py": "from profiler.x import z" + "\n" * n for n in range(MOST_FILES + 1)}
    tree = tree_of(tmp_path, {"tests/profiler/x/test_y.py": "", "tests/test_z.py": "import profiler.x.z", **imports})
    assert mirrored(tree, "profiler/x/y.py") == ["tests/profiler/x/test_y.py"]
    assert mirrored(tree, "profiler/x/z.py") == [*imports][:MOST_FILES], "the smallest"
    assert mirrored(tree, "profiler/x/w.py") == []


PRODUCT = """from time import sleep
def slower(a):
    while sleep(0.001) or a < 3:  # A mutant that never ends need not take a processor meanwhile.
        a += 1
    return a


def untested(a):
    return a + 1
"""
TESTS = """
import time
from pathlib import Path
import pytest
from profiler import x
from profiler.x import slower

def test_it(monkeypatch):
    naps = []
    def nap(seconds):
        naps.append(seconds)
        if len(naps) > 100:
            Path("hangs").touch()
        time.sleep(seconds)
    monkeypatch.setattr(x, "sleep", nap)
    assert slower(1) == 3

def test_that_fails_anyway():
    assert False

@pytest.mark.gpu
def test_of_a_gpu():
    assert False
"""
RUNNER = """
import sys
sys.path[0] = sys.argv.pop(1)
import mutate

has_ended = mutate.Copy.has_ended

def once_it_hangs(copy):
    hangs = copy.root / "hangs"
    if hangs.exists():
        copy.run.seconds = 0.0
    if ended := has_ended(copy):
        hangs.unlink(missing_ok=True)
    return ended

mutate.Copy.has_ended = once_it_hangs
mutate.IMPORTED_ONCE = ("pytest",)
sys.exit(mutate.main())
"""
"""The time of a mutant that hangs is over then; the others have what they need on a busy machine."""


@pytest.mark.slow
def test_a_run_says_which_mutants_survive(tmp_path: Path) -> None:
    files = {f"{package}/__init__.py": "" for package in ("exporters", "engines", "profiler")}
    settings = "[tool.pytest.ini_options]\nmarkers = ['gpu']\n"
    product = {"profiler/x.py": PRODUCT, "engines/y.py": "A = 1\n", "tests/profiler/test_x.py": TESTS}
    tree = tree_of(tmp_path / "tree", {**files, **product, "pyproject.toml": settings})
    command = [sys.executable, "-c", RUNNER, str(ROOT / "benchmarks"), "--tree", str(tree), "--jobs", "2"]
    command += ["--seconds", "600", "--json", str(tmp_path / "found.json")]
    without_plugins = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    done = subprocess.run(command, env=without_plugins, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    fates = {
        (mutant["mutant"]["operator"], mutant["mutant"]["line"]): (mutant["killed"], mutant["by"])
        for mutant in json.loads((tmp_path / "found.json").read_text())["mutants"]
        if mutant["mutant"]["path"] == "profiler/x.py"
    }
    assert fates["removed statement", 4] == (True, "a hang")
    assert fates["comparison", 3] == (True, "tests/profiler/test_x.py::test_it")
    assert fates["return value", 5] == (True, "tests/profiler/test_x.py::test_it")
    assert fates["return value", 9] == fates["arithmetic", 9] == (False, "")
    assert "profiler/x.py:9 arithmetic: a + 1 → (a - 1)" in done.stdout.partition("survivors:")[2]
    assert "engines/y.py (1)" in done.stdout.partition("no mirrored test:")[2]
    assert (tree / "profiler" / "x.py").read_text() == PRODUCT, "only copies are changed"
