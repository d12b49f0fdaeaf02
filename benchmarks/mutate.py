"""Change the product in small ways, one at a time, and count how many of the changes its own tests notice.

    python benchmarks/mutate.py --tree . --jobs 16 --seed 1 --count 150 --json mutants.json

Each mutant is one changed expression or statement of exporters, engines or profiler, drawn from all that there are;
docstrings, type hints, messages and other strings are left alone. Its tests are those that mirror its file, run in a
copy of the tree: for `profiler/x/y.py` those of `tests/profiler/x/test_y.py`; where there is no such file, those in
that folder that import the module. A mutant is killed by a test that fails, a process that dies, or a hang; one without
tests survives.

Torch, ONNX Runtime and polars are imported once, and each mutant runs in a fork. Tests that fail without a mutant, and
those of the mark `gpu`, are left out. This file needs pytest and the tree's own dependencies, and nothing of the tree.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import gc
import importlib
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Any

PRODUCT = ("exporters", "engines", "profiler")
IMPORTED_ONCE = ("numpy", "torch", "onnx", "onnxruntime", "polars", "pydantic", "scipy.special", "rich", "pytest")
MOST_FILES = 3
"""Of the tests that import a module without mirroring it, so many of the smallest files are run."""
FLAT = 20
"""From so many files directly in profiler/ on, a tree is of the old layout, whose tests do not always mirror it."""
SLACK, SECONDS = 3.0, 60.0
"""A mutant's time limit: so many times what its tests take without it, and so many seconds more."""
UNMUTATED_SECONDS = 1200.0
NOT_THE_GPUS = "not gpu"


@dataclass(frozen=True, kw_only=True)
class Mutant:
    """One change of one file: bytes from `start` to `end` become `new`."""

    path: str
    line: int
    operator: str
    start: int
    end: int
    old: str
    new: str

    def applied(self, source: bytes) -> bytes:
        """The mutated source."""
        return source[: self.start] + self.new.encode() + source[self.end :]

    def __str__(self) -> str:
        old, new = (" ".join(text.split()) for text in (self.old, self.new))
        return f"{self.path}:{self.line} {self.operator}: {shortened(old)} → {shortened(new)}"


@dataclass(kw_only=True)
class Fate:
    """What became of a mutant: killed or not, by what, and which test files were run."""

    mutant: Mutant
    killed: bool
    by: str
    tests: list[str] = field(default_factory=list)
    seconds: float = 0.0


def shortened(text: str, most: int = 70) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"


# What can be changed

_COMPARISONS: dict[type[ast.cmpop], list[type[ast.cmpop]]] = {
    ast.Lt: [ast.LtE, ast.GtE],
    ast.LtE: [ast.Lt, ast.Gt],
    ast.Gt: [ast.GtE, ast.LtE],
    ast.GtE: [ast.Gt, ast.Lt],
    ast.Eq: [ast.NotEq],
    ast.NotEq: [ast.Eq],
    ast.Is: [ast.IsNot],
    ast.IsNot: [ast.Is],
    ast.In: [ast.NotIn],
    ast.NotIn: [ast.In],
}
_ARITHMETIC: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.Mult,
    ast.Pow: ast.Mult,
}


def mutants_of(path: str, source: bytes, random_numbers: random.Random) -> list[Mutant]:
    """Every place of a file that can be changed, with one change each."""
    starts = [0]
    for text in source.splitlines(keepends=True):
        starts.append(starts[-1] + len(text))
    found = []
    for node, operator, new in _changes(ast.parse(source), random_numbers):
        assert node.end_lineno is not None and node.end_col_offset is not None
        start = starts[node.lineno - 1] + node.col_offset
        end = starts[node.end_lineno - 1] + node.end_col_offset
        old = source[start:end].decode()
        found.append(Mutant(path=path, line=node.lineno, operator=operator, start=start, end=end, old=old, new=new))
    return found


def is_other_code(mutant: Mutant, source: bytes) -> bool:
    """Whether the mutated source can be compiled, and is not what it was but for its looks."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            changed = ast.parse(mutant.applied(source))
    except SyntaxError:
        return False
    return ast.dump(changed) != ast.dump(ast.parse(source))


def _changes(tree: ast.Module, random_numbers: random.Random) -> Iterator[tuple[ast.expr | ast.stmt, str, str]]:
    """Nodes that can be replaced, by which operator, and the text in their place."""
    for node in _product_code(tree):
        if isinstance(node, ast.Compare):
            yield node, "comparison", _parenthesized(_compared(node, random_numbers))
        elif isinstance(node, ast.BinOp) and type(node.op) in _ARITHMETIC and not _makes_text(node):
            swapped = ast.BinOp(node.left, _ARITHMETIC[type(node.op)](), node.right)
            yield node, "arithmetic", _parenthesized(swapped)
        elif isinstance(node, ast.BoolOp):
            other = ast.Or() if isinstance(node.op, ast.And) else ast.And()
            yield node, "boolean", _parenthesized(ast.BoolOp(other, node.values))
        elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            yield node, "boolean", _parenthesized(node.operand)
        elif isinstance(node, ast.Constant) and isinstance(node.value, bool | int | float):
            yield node, "constant", repr(_other_constant(node.value, random_numbers))
        elif isinstance(node, ast.IfExp):
            yield node, "swapped branch", _parenthesized(ast.IfExp(node.test, node.orelse, node.body))
        elif isinstance(node, ast.If | ast.While) and not isinstance(node.test, ast.Constant):
            yield node.test, "swapped branch", f"(not ({ast.unparse(node.test)}))"
        elif isinstance(node, ast.Return) and not _is_nothing(node.value):
            yield node, "return value", "return None"
        elif _can_go(node):
            assert isinstance(node, ast.stmt)
            yield node, "removed statement", "pass"


def _product_code(node: ast.AST) -> Iterator[ast.AST]:
    """Every node whose change the program could notice: no type hints, decorators, errors' texts or f-strings."""
    hints = ("annotation", "returns", "type_params", "bases", "decorator_list")
    for name, value in ast.iter_fields(node):
        if name in hints or (isinstance(node, ast.Raise | ast.Assert) and name in ("exc", "cause", "msg")):
            continue
        for child in value if isinstance(value, list) else [value]:
            if not isinstance(child, ast.AST) or isinstance(child, ast.JoinedStr | ast.Import | ast.ImportFrom):
                continue
            if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
                continue
            yield child
            yield from _product_code(child)


def _compared(node: ast.Compare, random_numbers: random.Random) -> ast.Compare:
    other = random_numbers.choice(_COMPARISONS[type(node.ops[0])])
    return ast.Compare(node.left, [other(), *node.ops[1:]], node.comparators)


def _other_constant(value: bool | float, random_numbers: random.Random) -> bool | float:
    if isinstance(value, bool):
        return not value
    return value + 1 if isinstance(value, int) and random_numbers.random() < 0.5 else value * 2 or 1


def _makes_text(node: ast.BinOp) -> bool:
    """Whether it is text, or a list of it, that is put together."""
    texts = (ast.JoinedStr, ast.List, ast.ListComp, ast.Tuple)
    sides = (node.left, node.right)
    return any(isinstance(x, texts) or (isinstance(x, ast.Constant) and isinstance(x.value, str)) for x in sides)


def _is_nothing(value: ast.expr | None) -> bool:
    return value is None or (isinstance(value, ast.Constant) and value.value is None)


def _can_go(node: ast.AST) -> bool:
    """Whether a statement can be removed without a name being unknown after it, which any test would notice."""
    if isinstance(node, ast.Expr):
        return isinstance(node.value, ast.Call | ast.Await | ast.Yield)
    if isinstance(node, ast.Assign):
        return all(isinstance(target, ast.Attribute | ast.Subscript) for target in node.targets)
    return isinstance(node, ast.AugAssign | ast.Delete | ast.Continue | ast.Break)


def _parenthesized(node: ast.expr) -> str:
    return f"({ast.unparse(ast.fix_missing_locations(node))})"


def drawn(tree: Path, count: int, seed: int) -> list[Mutant]:
    """So many mutants of the tree, each of another place; the same ones for the same tree and seed."""
    random_numbers = random.Random(seed)
    files = sorted(path for package in PRODUCT for path in (tree / package).rglob("*.py"))
    sources = {path.relative_to(tree).as_posix(): path.read_bytes() for path in files}
    every = [mutant for path, source in sources.items() for mutant in mutants_of(path, source, random_numbers)]
    random_numbers.shuffle(every)
    return list(islice((one for one in every if is_other_code(one, sources[one.path])), count))


# Which tests are run


def mirrored(tree: Path, path: str) -> list[str]:
    """The test files of a product file; empty where there is none."""
    place = Path(path)
    mirror = Path("tests", place.parent, f"test_{place.stem}.py")
    if (tree / mirror).is_file():
        return [mirror.as_posix()]
    flat = len(list((tree / "profiler").glob("*.py"))) >= FLAT
    folder = tree / "tests" / (place.parts[0] if flat else place.parent)
    module = ".".join(place.with_suffix("").parts).removesuffix(".__init__")
    files = folder.rglob("test_*.py") if flat else folder.glob("test_*.py")
    importing = sorted((file for file in files if module in _imported(file)), key=lambda file: file.stat().st_size)
    if flat and not importing:
        elsewhere = (file for file in (tree / "tests").rglob("test_*.py") if module in _imported(file))
        importing = sorted(elsewhere, key=lambda file: file.stat().st_size)
    return [file.relative_to(tree).as_posix() for file in importing[:MOST_FILES]]


@cache
def _imported(file: Path) -> frozenset[str]:
    """What a test imports: `from a.b import c` is both a.b and a.b.c."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(file.read_bytes())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return frozenset(found)


# Running them in forks


class _Outcomes:
    """A plugin of pytest: which tests failed, and whether the tree's own modules were imported."""

    def __init__(self, root: Path) -> None:
        self.failed: list[str] = []
        self.foreign: list[str] = []
        self._root = root

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.failed and report.nodeid not in self.failed:
            self.failed.append(report.nodeid)

    def pytest_sessionfinish(self) -> None:
        for package in PRODUCT:
            file = getattr(sys.modules.get(package), "__file__", None)
            if file and not Path(file).is_relative_to(self._root):
                self.foreign.append(file)


@dataclass(frozen=True, kw_only=True)
class Task:
    """A run of tests in a copy of the tree, after `changed` files were written there."""

    tests: list[str]
    deselected: list[str]
    seconds: float
    first_failure: bool = True
    mutant: Mutant | None = None


@dataclass(kw_only=True)
class Ended:
    """How a run ended: pytest's exit code, None for a hang, and below 0 a signal's number."""

    code: int | None
    seconds: float
    failed: list[str]
    foreign: list[str]
    log: str

    @property
    def kills(self) -> str:
        """What killed the mutant; empty where it survived."""
        if self.code is None:
            return "a hang"
        if self.code < 0:
            return f"signal {-self.code}"
        if self.code == 0:
            return ""
        return self.failed[0] if self.failed else f"pytest's exit code {self.code}"


class Copy:
    """A copy of the tree in which one run of tests goes on at a time, each in a fork of this process."""

    def __init__(self, tree: Path, folder: Path) -> None:
        self.root, self._folder, self._original = folder / "tree", folder, b""
        hidden = shutil.ignore_patterns(".git", ".venv", ".*_cache", "__pycache__")
        shutil.copytree(tree, self.root, ignore=hidden, symlinks=True)

    def start(self, task: Task) -> Running:
        """Write the mutant and fork a process that runs its tests."""
        if task.mutant is not None:
            file = self.root / task.mutant.path
            self._original = file.read_bytes()
            file.write_bytes(task.mutant.applied(self._original))
        log, outcomes = self._folder / "log", self._folder / "outcomes.json"
        outcomes.unlink(missing_ok=True)
        sys.stdout.flush()
        pid = os.fork()
        if pid == 0:
            _run_tests(self.root, task, log, outcomes, self._folder)
        return Running(copy=self, task=task, pid=pid, started=time.monotonic(), log=log, outcomes=outcomes)

    def restore(self, task: Task) -> None:
        """Put the mutated file back, and throw away what the tests wrote."""
        if task.mutant is not None:
            (self.root / task.mutant.path).write_bytes(self._original)
        for name in ("temporary", "cache"):
            shutil.rmtree(self._folder / name, ignore_errors=True)


@dataclass(kw_only=True)
class Running:
    """A run under way."""

    copy: Copy
    task: Task
    pid: int
    started: float
    log: Path
    outcomes: Path

    def ended(self) -> Ended | None:
        """How it ended; None while it goes on. A run beyond its time is killed with all that it started."""
        done, status = os.waitpid(self.pid, os.WNOHANG)
        seconds = time.monotonic() - self.started
        if not done and seconds <= self.task.seconds:
            return None
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        if not done:
            os.waitpid(self.pid, 0)
        facts = json.loads(self.outcomes.read_text()) if self.outcomes.exists() else {}
        log = self.log.read_text(errors="replace")
        self.copy.restore(self.task)
        code = os.waitstatus_to_exitcode(status) if done else None
        return Ended(
            code=code, seconds=seconds, failed=facts.get("failed", []), foreign=facts.get("foreign", []), log=log
        )


def _run_tests(root: Path, task: Task, log: Path, outcomes: Path, folder: Path) -> None:
    """Run pytest in this fork, which ends here."""
    code = 70
    try:
        os.setsid()
        output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        for stream in (1, 2):
            os.dup2(output, stream)
        os.chdir(root)
        sys.path[0] = str(root)
        sys.dont_write_bytecode = True
        os.environ |= {
            "PYTHONPATH": str(root),
            "PYTHONDONTWRITEBYTECODE": "1",
            "PROFILER_CACHE": str(folder / "cache"),
        }
        import pytest

        plugin = _Outcomes(root)
        options = ["-q", "--no-header", "-p", "no:cacheprovider", "-m", NOT_THE_GPUS]
        options += [f"--basetemp={folder / 'temporary'}", "--rootdir", str(root)]
        options += ["-x"] if task.first_failure else []
        options += [text for nodeid in task.deselected for text in ("--deselect", nodeid)]
        code = int(pytest.main([*options, *task.tests], plugins=[plugin]))
        outcomes.write_text(json.dumps({"failed": plugin.failed, "foreign": plugin.foreign}))
        sys.stdout.flush()
    finally:
        os._exit(code)  # What a mutant left running, a thread or a handler at exit, cannot keep it.


def run_all(tasks: Sequence[Task], copies: Sequence[Copy], on_end: Callable[[int, Ended], None]) -> None:
    """Run every task, as many at a time as there are copies; `on_end` gets each task's number and its end."""
    free, waiting = list(copies), list(enumerate(tasks))[::-1]
    running: list[tuple[int, Running]] = []
    try:
        while waiting or running:
            while free and waiting:
                number, task = waiting.pop()
                running.append((number, free.pop().start(task)))
            for number, run in list(running):
                if (end := run.ended()) is not None:
                    running.remove((number, run))
                    free.append(run.copy)
                    on_end(number, end)
            time.sleep(0.02)
    finally:
        for _, run in running:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(run.pid, signal.SIGKILL)


def unmutated(files: Sequence[str], copies: Sequence[Copy]) -> dict[str, Ended]:
    """How each test file ends without a mutant: which of its tests fail anyway, and how long it takes."""
    found: dict[str, Ended] = {}

    def on_end(number: int, end: Ended) -> None:
        found[files[number]] = end
        print(f"  {files[number]}: {end.seconds:.0f} s{f', {len(end.failed)} fail' if end.failed else ''}", flush=True)
        if end.foreign:
            sys.exit(f"the tests imported {end.foreign[0]}, which is not in the copy of the tree")
        if end.code not in (0, 1, 5):
            print(end.log[-2000:], file=sys.stderr)
            print(f"{files[number]} cannot be run without a mutant, so it is left out", file=sys.stderr)

    tasks = [Task(tests=[file], deselected=[], seconds=UNMUTATED_SECONDS, first_failure=False) for file in files]
    run_all(tasks, copies, on_end)
    return {file: end for file, end in found.items() if end.code in (0, 1, 5)}


def judge(mutants: Sequence[Mutant], copies: Sequence[Copy], more: float = SECONDS) -> list[Fate]:
    """The fate of each mutant, in their order."""
    tests = {path: mirrored(copies[0].root, path) for path in {mutant.path for mutant in mutants}}
    files = sorted({file for each in tests.values() for file in each})
    print(f"{len(mutants)} mutants, {len(files)} test files, which are run without a mutant first:", flush=True)
    known = unmutated(files, copies)
    fates: dict[int, Fate] = {}
    tasks: list[Task] = []
    numbers: list[int] = []
    for number, mutant in enumerate(mutants):
        own = [file for file in tests[mutant.path] if file in known]
        if not own:
            fates[number] = Fate(mutant=mutant, killed=False, by="no mirrored test")
            continue
        seconds = SLACK * sum(known[file].seconds for file in own) + more
        failing = [nodeid for file in own for nodeid in known[file].failed]
        tasks.append(Task(tests=own, deselected=failing, seconds=seconds, mutant=mutant))
        numbers.append(number)

    def on_end(place: int, end: Ended) -> None:
        task, number = tasks[place], numbers[place]
        assert task.mutant is not None
        by = "" if end.code == 5 else end.kills
        fates[number] = Fate(
            mutant=task.mutant, killed=bool(by), by=by, tests=list(task.tests), seconds=round(end.seconds, 1)
        )
        print(f"{len(fates)}/{len(mutants)} {'killed' if by else 'SURVIVED'} {task.mutant}", flush=True)

    run_all(tasks, copies, on_end)
    return [fates[number] for number in range(len(mutants))]


# The report


def report(fates: Sequence[Fate]) -> str:
    """The share that was killed, in all and by operator and package, and every survivor."""
    lines = [_share("killed", fates)]
    for what, key in (("operator", lambda fate: fate.mutant.operator), ("package", _package)):
        names = sorted({key(fate) for fate in fates})
        lines += ["", f"by {what}:", *(_share(f"  {name}", [f for f in fates if key(f) == name]) for name in names)]
    untested = Counter(fate.mutant.path for fate in fates if fate.by == "no mirrored test")
    if untested:
        lines += ["", "no mirrored test:", *(f"  {path} ({count})" for path, count in sorted(untested.items()))]
    survivors = [fate for fate in fates if not fate.killed and fate.by != "no mirrored test"]
    lines += ["", "survivors:", *(f"  {fate.mutant}" for fate in survivors)] if survivors else []
    return "\n".join(lines)


def _package(fate: Fate) -> str:
    return fate.mutant.path.rpartition("/")[0]


def _share(name: str, fates: Sequence[Fate]) -> str:
    killed = sum(fate.killed for fate in fates)
    return f"{name}: {killed} of {len(fates)} ({100 * killed / max(len(fates), 1):.0f} %)"


def _import_once(names: Iterable[str]) -> None:
    for name in names:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    gc.freeze()  # The forks share these pages as long as nobody writes to them.


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tree", type=Path, default=Path(__file__).resolve().parents[1], help="a checkout")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="so many mutants at a time")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--count", type=int, default=150, help="how many mutants")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="how much longer a mutant's tests may take")
    parser.add_argument("--json", type=Path, help="a file for everything that was found")
    options = parser.parse_args()
    tree = options.tree.resolve()
    if not all((tree / name).is_dir() for name in (*PRODUCT, "tests")):
        sys.exit(f"--tree {tree}: there is no {', '.join(PRODUCT)} and tests; give a checkout of this project")
    for name in ("OMP_NUM_THREADS", "POLARS_MAX_THREADS"):
        os.environ.setdefault(name, "1")
    _import_once(IMPORTED_ONCE)
    with tempfile.TemporaryDirectory(prefix="mutants-") as scratch:
        copies = [Copy(tree, Path(scratch, str(number))) for number in range(max(1, options.jobs))]
        mutants = drawn(copies[0].root, options.count, options.seed)
        fates = judge(mutants, copies, options.seconds)
    print(f"\n{report(fates)}")
    if options.json:
        data = {"tree": str(tree), "seed": options.seed, "killed": sum(fate.killed for fate in fates)}
        options.json.write_text(json.dumps({**data, "mutants": [asdict(fate) for fate in fates]}, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
