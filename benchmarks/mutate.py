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
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Any

PRODUCT = ("exporters", "engines", "profiler")
IMPORTED_ONCE = ("numpy", "torch", "onnx", "onnxruntime", "polars", "pydantic", "scipy.special", "rich", "pytest")
MOST_FILES = 3
"""Of the tests that import a module without mirroring it, so many of the smallest files are run."""
SLACK, SECONDS = 3.0, 60.0
"""A mutant's time limit: so many times what its tests take without it, and so many seconds more."""
UNMUTATED_SECONDS = 1200.0
NOT_THE_GPUS = "not gpu"
NO_TESTS = 5
"""pytest's exit code where none was left."""


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


Fate = tuple[Mutant, "Run"]
"""A mutant, and how the run of its tests ended."""


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
            other = random_numbers.choice(_COMPARISONS[type(node.ops[0])])
            compared = ast.Compare(node.left, [other(), *node.ops[1:]], node.comparators)
            yield node, "comparison", _parenthesized(compared)
        elif isinstance(node, ast.BinOp) and type(node.op) in _ARITHMETIC and not _makes_text(node):
            swapped = ast.BinOp(node.left, _ARITHMETIC[type(node.op)](), node.right)
            yield node, "arithmetic", _parenthesized(swapped)
        elif isinstance(node, ast.BoolOp):
            opposite = ast.Or() if isinstance(node.op, ast.And) else ast.And()
            yield node, "boolean", _parenthesized(ast.BoolOp(opposite, node.values))
        elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            yield node, "boolean", _parenthesized(node.operand)
        elif isinstance(node, ast.Constant) and isinstance(node.value, bool | int | float):
            yield node, "constant", repr(_other_constant(node.value, random_numbers))
        elif isinstance(node, ast.IfExp):
            yield node, "swapped branch", _parenthesized(ast.IfExp(node.test, node.orelse, node.body))
        elif isinstance(node, ast.If | ast.While) and not isinstance(node.test, ast.Constant):
            yield node.test, "swapped branch", f"(not ({ast.unparse(node.test)}))"
        elif isinstance(node, ast.Return) and ast.unparse(node) not in ("return", "return None"):
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


def _other_constant(value: bool | float, random_numbers: random.Random) -> bool | float:
    if isinstance(value, bool):
        return not value
    return value + 1 if isinstance(value, int) and random_numbers.random() < 0.5 else value * 2 or 1


def _makes_text(node: ast.BinOp) -> bool:
    """Whether it is text, or a list of it, that is put together."""
    texts = (ast.JoinedStr, ast.List, ast.ListComp, ast.Tuple)
    sides = (node.left, node.right)
    return any(isinstance(x, texts) or (isinstance(x, ast.Constant) and isinstance(x.value, str)) for x in sides)


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
    module = ".".join(place.with_suffix("").parts).removesuffix(".__init__")
    files = (file for file in (tree / "tests" / place.parent).glob("test_*.py") if module in _imported(file))
    importing = sorted(files, key=lambda file: file.stat().st_size)
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


@dataclass(kw_only=True)
class Run:
    """A run of test files in a copy of the tree, of a mutant or of none, and how it ended."""

    tests: list[str]
    seconds: float
    """Its time limit."""
    mutant: Mutant | None = None
    deselected: Sequence[str] = ()
    code: int | None = None
    """pytest's exit code, None for a hang, and below 0 a signal's number."""
    took: float = 0.0
    failed: list[str] = field(default_factory=list)
    foreign: list[str] = field(default_factory=list)
    """Modules of the product that were imported from elsewhere."""
    log: str = ""

    @property
    def killer(self) -> str:
        """What killed the mutant; empty where it survived."""
        if not self.tests or self.code in (0, NO_TESTS):
            return ""
        if self.code is None:
            return "a hang"
        if self.code < 0:
            return f"signal {-self.code}"
        return self.failed[0] if self.failed else f"pytest's exit code {self.code}"


class Copy:
    """A copy of the tree in which one run goes on at a time, in a fork of this process."""

    run: Run

    def __init__(self, tree: Path, folder: Path) -> None:
        self.root, self._folder, self._outcomes = folder / "tree", folder, folder / "outcomes.json"
        hidden = shutil.ignore_patterns(".git", ".venv", ".*_cache", "__pycache__")
        shutil.copytree(tree, self.root, ignore=hidden, symlinks=True)

    def start(self, run: Run) -> None:
        """Write the mutant and fork a process that runs its tests."""
        self.run = run
        if run.mutant is not None:
            self._file = self.root / run.mutant.path
            self._original = self._file.read_bytes()
            self._file.write_bytes(run.mutant.applied(self._original))
        self._outcomes.unlink(missing_ok=True)
        sys.stdout.flush()
        self._started, self._pid = time.monotonic(), os.fork()
        if self._pid == 0:
            self._run_tests()

    def has_ended(self) -> bool:
        """Whether the run has, and knows how. One beyond its time is killed with all that it started."""
        run, (done, status) = self.run, os.waitpid(self._pid, os.WNOHANG)
        run.took = time.monotonic() - self._started
        if not done and run.took <= run.seconds:
            return False
        self.kill()
        if not done:
            os.waitpid(self._pid, 0)
        run.code = os.waitstatus_to_exitcode(status) if done else None
        outcomes = json.loads(self._outcomes.read_text()) if self._outcomes.exists() else {}
        run.failed, run.foreign = outcomes.get("failed", []), outcomes.get("foreign", [])
        run.log = (self._folder / "log").read_text(errors="replace")
        if run.mutant is not None:
            self._file.write_bytes(self._original)
        for name in ("temporary", "cache"):
            shutil.rmtree(self._folder / name, ignore_errors=True)
        return True

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._pid, signal.SIGKILL)

    def _run_tests(self) -> None:
        """Run pytest in this fork, which ends here."""
        code, root, cache = 70, str(self.root), str(self._folder / "cache")
        try:
            os.setsid()
            output = os.open(self._folder / "log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            for stream in (1, 2):
                os.dup2(output, stream)
            os.chdir(root)
            sys.path[0] = root
            sys.dont_write_bytecode = True
            os.environ |= {"PYTHONPATH": root, "PYTHONDONTWRITEBYTECODE": "1", "PROFILER_CACHE": cache}
            import pytest

            options = ["-q", "--no-header", "-p", "no:cacheprovider", "-m", NOT_THE_GPUS, "--rootdir", root]
            options += [f"--basetemp={self._folder / 'temporary'}", *(["-x"] if self.run.mutant else [])]
            options += [text for nodeid in self.run.deselected for text in ("--deselect", nodeid)]
            failed = _Failed()
            code = int(pytest.main([*options, *self.run.tests], plugins=[failed]))
            files = [getattr(sys.modules.get(package), "__file__", None) for package in PRODUCT]
            foreign = [file for file in files if file and not Path(file).is_relative_to(self.root)]
            self._outcomes.write_text(json.dumps({"failed": failed.tests, "foreign": foreign}))
            sys.stdout.flush()
        finally:
            os._exit(code)  # What a mutant left running, a thread or a handler at exit, cannot keep it.


class _Failed:
    """A plugin of pytest: which tests failed."""

    def __init__(self) -> None:
        self.tests: list[str] = []

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.failed and report.nodeid not in self.tests:
            self.tests.append(report.nodeid)


def ended(runs: Sequence[Run], copies: Sequence[Copy]) -> Iterator[Run]:
    """Every run as it ends, as many at a time as there are copies."""
    waiting, free, busy = list(runs)[::-1], list(copies), list[Copy]()
    try:
        while waiting or busy:
            while waiting and free:
                busy.append(free.pop())
                busy[-1].start(waiting.pop())
            for copy in [copy for copy in busy if copy.has_ended()]:
                busy.remove(copy)
                free.append(copy)
                yield copy.run
            time.sleep(0.02)
    finally:
        for copy in busy:
            copy.kill()


def unmutated(files: Sequence[str], copies: Sequence[Copy]) -> dict[str, Run]:
    """How each test file ends without a mutant: which of its tests fail anyway, and how long it takes."""
    found: dict[str, Run] = {}
    for run in ended([Run(tests=[file], seconds=UNMUTATED_SECONDS) for file in files], copies):
        (file,) = run.tests
        print(f"  {file}: {run.took:.0f} s{f', {len(run.failed)} fail' if run.failed else ''}", flush=True)
        if run.foreign:
            sys.exit(f"the tests imported {run.foreign[0]}, which is not in the copy of the tree")
        if run.code in (0, 1, NO_TESTS):
            found[file] = run
        else:
            print(
                run.log[-2000:], f"{file} cannot be run without a mutant, so it is left out", sep="\n", file=sys.stderr
            )
    return found


def judge(mutants: Sequence[Mutant], copies: Sequence[Copy], more: float = SECONDS) -> list[Fate]:
    """The run of each mutant, in their order; without tests where there are none."""
    tests = {path: mirrored(copies[0].root, path) for path in {mutant.path for mutant in mutants}}
    files = sorted({file for each in tests.values() for file in each})
    print(f"{len(mutants)} mutants, {len(files)} test files, which are run without a mutant first:", flush=True)
    known, runs = unmutated(files, copies), []
    for mutant in mutants:
        own = [file for file in tests[mutant.path] if file in known]
        seconds = SLACK * sum(known[file].took for file in own) + more
        failing = [nodeid for file in own for nodeid in known[file].failed]
        runs.append(Run(tests=own, deselected=failing, seconds=seconds, mutant=mutant))
    tested = [run for run in runs if run.tests]
    for number, run in enumerate(ended(tested, copies), len(runs) - len(tested) + 1):
        print(f"{number}/{len(runs)} {'killed' if run.killer else 'SURVIVED'} {run.mutant}", flush=True)
    return list(zip(mutants, runs, strict=True))


# The report


def report(fates: Sequence[Fate]) -> str:
    """The share that was killed, in all and by operator and package, and every survivor."""
    lines = [_share("killed", fates)]
    keys: dict[str, Callable[[Mutant], str]] = {
        "operator": lambda mutant: mutant.operator,
        "package": lambda mutant: mutant.path.rpartition("/")[0],
    }
    for what, key in keys.items():
        names = sorted({key(mutant) for mutant, _ in fates})
        lines += ["", f"by {what}:", *(_share(f"  {name}", [f for f in fates if key(f[0]) == name]) for name in names)]
    if untested := Counter(mutant.path for mutant, run in fates if not run.tests):
        lines += ["", "no mirrored test:", *(f"  {path} ({count})" for path, count in sorted(untested.items()))]
    if survivors := [mutant for mutant, run in fates if run.tests and not run.killer]:
        lines += ["", "survivors:", *(f"  {mutant}" for mutant in survivors)]
    return "\n".join(lines)


def _share(name: str, fates: Sequence[Fate]) -> str:
    killed = sum(bool(run.killer) for _, run in fates)
    return f"{name}: {killed} of {len(fates)} ({100 * killed / max(len(fates), 1):.0f} %)"


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
    for name in IMPORTED_ONCE:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    gc.freeze()  # The forks share these pages as long as nobody writes to them.
    with tempfile.TemporaryDirectory(prefix="mutants-") as scratch:
        copies = [Copy(tree, Path(scratch, str(number))) for number in range(max(1, options.jobs))]
        mutants = drawn(copies[0].root, options.count, options.seed)
        fates = judge(mutants, copies, options.seconds)
    print(f"\n{report(fates)}")
    if options.json:
        ends: list[dict[str, Any]] = [
            {"killed": bool(run.killer), "by": run.killer, "tests": run.tests} for _, run in fates
        ]
        found = [{"mutant": asdict(mutant), **end} for mutant, end in zip(mutants, ends, strict=True)]
        data = {"tree": str(tree), "seed": options.seed, "killed": sum(end["killed"] for end in ends), "mutants": found}
        options.json.write_text(json.dumps(data, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
