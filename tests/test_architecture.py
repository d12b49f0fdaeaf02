"""The order of the packages, read from the sources, and what a fresh interpreter really imports."""

from __future__ import annotations

import ast
import functools
import importlib
import importlib.util
import re
import subprocess
import sys
import typing
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
ORDER = (
    *("exporters", "engines.options", "engines.catalog", "engines"),
    *("profiler.errors", "profiler.options", "profiler.bundled", "profiler.machine"),
    *("profiler.stats", "profiler.tables"),
    # From a job to its results:
    *("profiler.published.studies", "profiler.job", "profiler.processes", "profiler.results", "profiler.worker"),
    # From results to answers. A run ends with a published benchmark's tables and with a report, and what is recommended
    # is exported by what prepares a run and builds an engine.
    *("profiler.published", "profiler.compare", "profiler.report", "profiler.run"),
    *("profiler.cluster", "profiler.commands.build", "profiler.recommend", "profiler.commands"),
    *("profiler.cli", "profiler.__main__", "profiler", "benchmarks"),
)
"""The rooms: packages and loose modules. Each imports only itself and those before it, inside functions too."""
WITH_POLARS = (
    *("profiler.stats", "profiler.tables", "profiler.results", "profiler.published", "profiler.compare"),
    *("profiler.report", "profiler.run", "profiler.cluster", "profiler.recommend", "profiler.commands", "benchmarks"),
)
"""The rooms in which tables are made or read. What measures, and what plans or builds, does without polars."""
TENSORRT = {"tensorrt", "tensorrt_rtx", "tensorrt_rtx_bindings"}
MOST_LOOSE_FILES = 5
FILES = sorted(
    path for package in ("exporters", "engines", "profiler", "benchmarks") for path in (ROOT / package).rglob("*.py")
)


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_name(path): path for path in FILES}


@functools.cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


@pytest.fixture(scope="module", autouse=True)
def forget() -> Iterator[None]:
    """The trees of all files are many objects, which each collection of garbage would visit."""
    yield
    parsed.cache_clear()


def room(module: str) -> str:
    """The room that a module is in: the longest one that its name begins with."""
    return max((name for name in ORDER if f"{module}.".startswith(f"{name}.")), key=len)


def is_type_checking(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and ast.unparse(node.test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING")


def import_nodes(node: ast.AST, typing: bool) -> Iterator[ast.Import | ast.ImportFrom]:
    """Every import below `node`, functions included; those for type checkers only with `typing`."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import | ast.ImportFrom):
            yield child
        elif is_type_checking(child) and not typing:
            for other in child.orelse:
                yield from import_nodes(ast.Module([other], []), typing)
        else:
            yield from import_nodes(child, typing)


def imports(tree: ast.Module, package: str, typing: bool = True) -> set[str]:
    """The modules that a file in `package` imports; `from a import b` is a.b where that is a module."""
    found = set()
    for node in import_nodes(tree, typing):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
            continue
        base = importlib.util.resolve_name("." * node.level + (node.module or ""), package)
        names = {f"{base}.{alias.name}" for alias in node.names}
        found |= {name for name in names if name in MODULES}
        if any(name not in MODULES for name in names):
            found.add(base)
    return found


@functools.cache
def imports_of(module: str, typing: bool = True) -> set[str]:
    path = MODULES[module]
    package = module if path.name == "__init__.py" else module.rpartition(".")[0]
    return imports(parsed(path), package, typing)


def tops(module: str) -> set[str]:
    return {name.partition(".")[0] for name in imports_of(module)}


def test_the_reader_of_imports_sees_them_all():
    source = """
import a.b, c
from d import e
from engines import catalog, missing
from .case import Case
if TYPE_CHECKING:
    import typed
else:
    import untyped
def f():
    with x:
        import inner
"""
    seen = {"a.b", "c", "d", "engines.catalog", "engines", "profiler.case", "untyped", "inner"}
    assert imports(ast.parse(source), "profiler", typing=False) == seen
    assert imports(ast.parse(source), "profiler") == seen | {"typed"}


def test_every_module_has_its_own_room():
    """The room "profiler" is the public face alone; a new file or package is put into the order."""
    assert [module for module in MODULES if room(module) == "profiler"] == ["profiler"]
    assert {room(module) for module in MODULES} == set(ORDER)


def test_a_room_imports_only_what_stands_before_it():
    place = {module: ORDER.index(room(module)) for module in MODULES}
    pairs = [(module, name) for module in MODULES for name in imports_of(module) & set(MODULES)]
    assert [f"{module} imports {name}" for module, name in pairs if place[name] > place[module]] == []


@pytest.mark.parametrize(("packages", "rooms"), [({"tests"}, ()), (TENSORRT, ()), ({"polars"}, WITH_POLARS)])
def test_these_packages_are_imported_in_few_rooms_or_by_name_alone(packages, rooms):
    assert [module for module in MODULES if room(module) not in rooms and tops(module) & packages] == []


def test_there_are_no_circles_not_even_of_types_or_inside_functions():
    graph = {module: imports_of(module) & set(MODULES) for module in MODULES}
    TopologicalSorter(graph).prepare()  # Raises CycleError, which names the circle.


def test_few_files_lie_loose_in_the_profiler():
    assert len(list((ROOT / "profiler").glob("*.py"))) <= MOST_LOOSE_FILES


def test_a_function_named_by_a_text_exists():
    """A process is told what to call as "package.module:function", which neither mypy nor the import rules see."""
    texts = {node.value for path in FILES for node in ast.walk(parsed(path)) if _is_text(node)}
    named = {text: re.fullmatch(r"((?:exporters|engines|profiler)[\w.]*):(\w+)", text) for text in texts}
    assert [text for text, found in named.items() if found and found[2] not in _defined(found[1])] == []


@pytest.mark.slow
def test_the_parent_needs_no_framework_for_what_a_call_returns():
    """It unpickles that, and so imports the modules of the classes: torch would take 3 s of every run."""
    modules = set[str]()
    for module, path in MODULES.items():
        for node in parsed(path).body:
            if isinstance(node, ast.FunctionDef) and [each.arg for each in node.args.args][1:] == ["report"]:
                kind = typing.get_type_hints(getattr(importlib.import_module(module), node.name))["return"]
                modules |= {kind.__module__} if isinstance(kind, type) else set()
    assert {"profiler.worker.task", "profiler.results.result"} <= modules
    code = f"import sys, {', '.join(modules)}; print(*sys.modules)"
    assert "torch" not in subprocess.check_output([sys.executable, "-c", code], text=True, cwd=ROOT).split()


def _is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


@functools.cache
def _defined(module: str) -> set[str]:
    body = parsed(MODULES[module]).body
    return {item.name for item in body if isinstance(item, ast.FunctionDef | ast.ClassDef)}


def test_a_module_opens_with_a_sentence():
    trees = {module: parsed(path) for module, path in MODULES.items()}
    assert [module for module, tree in trees.items() if tree.body and not ast.get_docstring(tree)] == []


def test_only_what_the_program_saved_for_its_own_workers_is_unpickled():
    calls = [(module, ast.unparse(node)) for module, path in MODULES.items()
             for node in ast.walk(parsed(path)) if isinstance(node, ast.Call)]  # fmt: skip
    loads = [(module, text) for module, text in calls if re.match(r"(torch|\w*pickle|joblib|dill)\.load", text)]
    assert [module for module, text in loads if "weights_only=True" not in text] == ["exporters.factories"]
    assert [module for module, text in calls if "allow_pickle=True" in text or "Unpickler(" in text] == []


LOADED = ("exporters.catalog", "engines.catalog", "profiler", "profiler.cli")
"""Modules that must import fast, the lightest first."""
PARENT = (
    *("job.plan", "commands.listings", "commands.build", "commands.layers", "commands.explain", "commands.query"),
    "run.runner",
    *(f"{room}.command" for room in ("published", "compare", "report", "run", "recommend")),
)
"""Modules that run in the parent process: every command."""


@pytest.fixture(scope="module")
def loaded() -> dict[str, set[str]]:
    """The top-level modules in a fresh interpreter after the import of that module, and of those before it."""
    modules = [*LOADED, *(f"profiler.{name}" for name in PARENT)]
    code = "".join(
        f"import {module}; print({module!r}, *{{name.partition('.')[0] for name in sys.modules}})\n"
        for module in modules
    )
    command = [sys.executable, "-c", f"import sys\n{code}"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    lines = [line.split() for line in done.stdout.splitlines()]
    return {module: set(names) for module, *names in lines}


SLOW = {"polars", "pydantic", "numpy", "torch"}
FRAMEWORKS = {"torch", "onnx", "onnxruntime"}
UNLOADED = [
    *((f"profiler.{name}", {"openvino", *FRAMEWORKS, *TENSORRT}) for name in ("cli", *PARENT)),
    *((name, SLOW) for name in ("profiler.cli", "profiler")),
    *((name, SLOW | FRAMEWORKS) for name in ("exporters.catalog", "engines.catalog")),
]
"""What neither a command, nor its help, nor a catalog loads."""


@pytest.mark.slow
@pytest.mark.parametrize(("module", "libraries"), UNLOADED)
def test_a_module_loads_no_library_before_it_is_needed(loaded, module, libraries):
    assert loaded[module] & libraries == set()
