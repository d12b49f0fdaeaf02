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


def cycle(graph: dict[str, set[str]]) -> list[str] | None:
    """A circle of imports, its first module again at the end; None if there is none."""
    done: set[str] = set()

    def visit(module: str, trail: list[str]) -> list[str] | None:
        if module in trail:
            return [*trail[trail.index(module) :], module]
        if module in done:
            return None
        for target in sorted(graph.get(module, set())):
            found = visit(target, [*trail, module])
            if found:
                return found
        done.add(module)
        return None

    return next((found for module in sorted(graph) if (found := visit(module, []))), None)


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


def test_the_finder_of_circles_finds_one():
    assert cycle({"a": {"b"}, "b": {"c", "d"}, "c": set(), "d": {"b"}}) == ["b", "d", "b"]
    assert cycle({"a": {"b", "c"}, "b": {"c"}, "c": set()}) is None


def test_the_sources_were_found():
    assert {
        "exporters.catalog",
        "engines.catalog",
        "profiler.worker.measure_case",
        "profiler",
        "exporters.networks",
    } <= set(MODULES)
    assert "benchmarks.publish" in MODULES


def test_every_module_has_its_own_room():
    """The room "profiler" is the public face alone; a new file or package is put into the order."""
    assert [module for module in MODULES if room(module) == "profiler"] == ["profiler"]


def test_every_room_exists():
    assert {room(module) for module in MODULES} == set(ORDER)


def test_a_room_imports_only_what_stands_before_it():
    place = {module: ORDER.index(room(module)) for module in MODULES}
    pairs = [(module, name) for module in MODULES for name in imports_of(module) & set(MODULES)]
    assert [f"{module} imports {name}" for module, name in pairs if place[name] > place[module]] == []


def test_the_sources_import_no_tests():
    assert [module for module in MODULES if "tests" in tops(module)] == []


@pytest.mark.parametrize("catalog", ["exporters.catalog", "engines.catalog"])
def test_a_catalog_is_data_without_torch(catalog):
    assert "torch" not in tops(catalog)


def test_tensorrt_and_its_drivers_are_imported_by_name_where_they_are_needed():
    libraries = {"tensorrt", "tensorrt_rtx", "tensorrt_rtx_bindings"}
    assert [module for module in MODULES if tops(module) & libraries] == []


def test_polars_is_imported_where_tables_are_made_and_nowhere_else():
    assert [module for module in MODULES if room(module) not in WITH_POLARS and "polars" in tops(module)] == []


def test_there_are_no_circles_not_even_of_types_or_inside_functions():
    graph = {module: imports_of(module) & set(MODULES) for module in MODULES}
    found = cycle(graph)
    assert found is None, " imports ".join(found or [])


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


def test_there_is_no_drawer_for_everything():
    assert [str(path) for path in FILES if path.stem in ("utils", "util", "helpers", "common", "misc")] == []


def test_no_file_is_named_after_a_library_that_it_imports():
    assert [module for module, path in MODULES.items() if path.stem in tops(module)] == []


def test_a_module_opens_with_a_sentence():
    trees = {module: parsed(path) for module, path in MODULES.items()}
    assert [module for module, tree in trees.items() if tree.body and not ast.get_docstring(tree)] == []


WRITERS = {"write_text", "write_bytes", "write_parquet", "write_csv", "write_json", "write_ipc"}
NOT_WHOLE = {
    # A file of a cache's entry or of an artifact is put into place with its folder, once all of it is there.
    **dict.fromkeys(("exporters.cache", "exporters.flops", "exporters.gradient_reference"), "entry"),
    **dict.fromkeys(("exporters.onnx_export", "exporters.factories", "exporters.inputs", "exporters.weights"), "entry"),
    "profiler.worker.parity": "entry",
    **dict.fromkeys(("engines.trt_build", "profiler.report.page"), "entry"),
    **dict.fromkeys(("engines.deployment", "profiler.recommend.artifact"), "artifact"),
    # Settings of the kernel.
    **dict.fromkeys(("profiler.worker.memory", "profiler.processes.process"), "proc"),
    # What is only ever appended to: a line that is cut off is known as such.
    **dict.fromkeys(("profiler.results.run_folder", "profiler.run.watch"), "log"),
    # Logs that nobody reads back; and the one place where the others write.
    **dict.fromkeys(("profiler.run.command", "profiler.cluster.part"), "log"),
    # Into the memory.
    "profiler.tables.writers": "bytes",
    "exporters.whole_file": "itself",
}
"""Modules that may write a file in place, and what it is."""


def writes_in_place(module: str) -> set[str]:
    """The calls with which a module writes a file: a path's or a frame's, and `open` to write or append."""
    found = set()
    for node in ast.walk(parsed(MODULES[module])):
        if isinstance(node, ast.Call):
            name = getattr(node.func, "attr", getattr(node.func, "id", ""))
            arguments = [*node.args, *(keyword.value for keyword in node.keywords)]
            if (name in WRITERS and arguments) or (name == "open" and any(map(_is_mode_to_write, arguments))):
                found.add(name)
    return found


def _is_mode_to_write(argument: ast.expr) -> bool:
    return (
        isinstance(argument, ast.Constant)
        and re.fullmatch(r"[rwaxbt+]*[wax+][rwaxbt+]*", str(argument.value)) is not None
    )


def test_files_are_replaced_whole():
    packages = ("exporters", "engines", "profiler")
    writing = {module for module in MODULES if module.partition(".")[0] in packages and writes_in_place(module)}
    assert writing <= set(NOT_WHOLE)
    assert set(NOT_WHOLE) <= set(MODULES)


UNPICKLING = {
    # What profiler.measure saved of a live module, for its own workers.
    "exporters.factories": {"torch.load(path, map_location='cpu', weights_only=False)"},
}
"""By module the calls that may run code out of a file; nothing that somebody gives as weights or data may."""
_PICKLES = {"pickle", "_pickle", "cloudpickle", "dill", "joblib", "marshal", "shelve"}


def unpickles(tree: ast.Module) -> set[str]:
    """The calls that would run code that a file has: torch.load but for weights alone, numpy's pickles, and pickle's
    own readers, and what is derived from one."""
    names = {name.name: name.asname or name.name for name in ast.walk(tree) if isinstance(name, ast.alias)}
    loaders = {names[each] for each in ("load", "loads", "Unpickler") if each in names and _imports_pickle(tree, each)}
    bases = {ast.unparse(base) for node in ast.walk(tree) if isinstance(node, ast.ClassDef) for base in node.bases}
    derived = {base for base in bases if base in loaders or base.endswith("pickle.Unpickler")}
    calls = {ast.unparse(node) for node in ast.walk(tree) if isinstance(node, ast.Call) and _runs_code(node, loaders)}
    return calls | derived


def _imports_pickle(tree: ast.AST, name: str) -> bool:
    imported = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    return any(node.module in {*_PICKLES, "torch"} and name in {each.name for each in node.names} for node in imported)


def _runs_code(call: ast.Call, loaders: set[str]) -> bool:
    given = {keyword.arg: ast.unparse(keyword.value) for keyword in call.keywords}
    base, _, name = ast.unparse(call.func).rpartition(".")
    if given.get("allow_pickle", "False") != "False":
        return True
    if base == "torch" and name == "load":
        return given.get("weights_only") != "True"
    return (base in _PICKLES and name in ("load", "loads", "Unpickler", "open")) or (not base and name in loaders)


@pytest.mark.parametrize(
    "call",
    [
        *("torch.load(p)", "torch.load(p, weights_only=False)", "np.load(p, allow_pickle=True)", "pickle.load(f)"),
        *("from pickle import loads as l\nl(b)", "from torch import load\nload(p)", "np.load(p, allow_pickle=x)"),
        "class U(pickle.Unpickler): pass",
    ],
)
def test_the_reader_of_unpickling_sees_it(call):
    assert len(unpickles(ast.parse(call))) == 1


def test_no_file_runs_code():
    harmless = "torch.load(p, weights_only=True); np.load(p, allow_pickle=False); json.load(f)"
    assert unpickles(ast.parse(harmless)) == set()
    found = {module: unpickles(parsed(path)) for module, path in MODULES.items()}
    assert {module: calls for module, calls in found.items() if calls} == UNPICKLING


LOADED = ("exporters.catalog", "engines.catalog", "profiler", "profiler.cli")
"""Modules that must import fast, the lightest first."""
PARENT = (
    *("job.plan", "commands.listings", "commands.build", "commands.layers", "commands.query", "run.runner"),
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


@pytest.mark.slow
@pytest.mark.parametrize("name", ["cli", *PARENT])
def test_the_parent_process_imports_no_framework(loaded, name):
    frameworks = {
        "torch",
        "onnxruntime",
        "tensorrt",
        "tensorrt_rtx",
        "tensorrt_rtx_bindings",
        "openvino",
        "onnx",
    }
    assert loaded[f"profiler.{name}"] & frameworks == set()


@pytest.mark.slow
@pytest.mark.parametrize("module", ["profiler.cli", "profiler"])
def test_help_loads_nothing_that_is_slow(loaded, module):
    assert loaded[module] & {"polars", "pydantic", "numpy", "torch"} == set()


@pytest.mark.slow
@pytest.mark.parametrize("catalog", ["exporters.catalog", "engines.catalog"])
def test_importing_a_catalog_loads_no_library(loaded, catalog):
    assert loaded[catalog] & {"torch", "numpy", "onnx", "onnxruntime", "polars", "pydantic"} == set()


@pytest.mark.slow
def test_help_answers():
    done = subprocess.run([sys.executable, "-m", "profiler", "--help"], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0
    assert "bench.yaml" in done.stdout
