"""Give every suite of faults one seed and one size, and add up what they tried in one table.

    def test_configs(soak):
        tried = raised = 0
        for rng in soak.trials(800):        # 800 in CI, 800 * N with PROFILER_SOAK=N; a random.Random of its own each
            tried += 1
            raised += prints_a_traceback(odd_config(rng))
        soak.count("configs", tried=tried, survived=tried - raised, tracebacks=raised)

`count` fails the test unless all survived and every other number is 0; assert what a message should name before it.
Trial i of a test has the same random numbers in every run of the same PROFILER_SEED; `rng.trial` is i. `make soak`
prints the table at its end and writes it to build/soak.md.
"""

from __future__ import annotations

import os
import random
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pytest

SIZE = int(os.environ.get("PROFILER_SOAK", "1"))
SEED = int(os.environ.get("PROFILER_SEED", "20261122"))
TABLE = Path(__file__).resolve().parents[2] / "build" / "soak.md"
_SECONDS = 900
"""Seconds that a test may take in CI."""
_PROPERTY = "soak"


@dataclass(frozen=True)
class Count:
    """Outcomes of the trials of a kind."""

    tried: int
    survived: int
    rows_lost: int = 0
    tracebacks: int = 0
    orphans: int = 0
    hangs: int = 0
    code_run: int = 0


class Trial(random.Random):
    """The random numbers of one trial of a test."""

    def __init__(self, test: str, trial: int) -> None:
        super().__init__(f"{SEED}/{test}/{trial}")
        self.trial = trial


class Soak:
    """The size of a test's part, its random numbers, and where it says what came of it."""

    def __init__(self, request: pytest.FixtureRequest) -> None:
        self._item = request.node
        self.is_large = SIZE > 1

    def times(self, few: int, soak: float | None = None) -> int:
        """Return `few` with the other tests; in a soak PROFILER_SOAK times as many, or times `soak`."""
        return few if not self.is_large else max(1, round((few if soak is None else soak) * SIZE))

    def trials(self, few: int, soak: float | None = None) -> Iterator[Trial]:
        """Yield random numbers for each trial."""
        return (Trial(self._item.name, number) for number in range(self.times(few, soak)))

    def count(
        self, kind: str, tried: int, survived: int | None = None, faults: Iterable[str] = (), **found: int
    ) -> None:
        """Add to the table's row of that kind; all are taken to have survived where that is not said."""
        count = Count(tried, tried if survived is None else survived, **found)
        self._item.user_properties.append((_PROPERTY, [kind, asdict(count), sorted(set(faults))]))
        assert count == Count(tried, tried), f"{kind}, seed {SEED}: {count}"


@pytest.fixture
def soak(request: pytest.FixtureRequest) -> Soak:
    return Soak(request)


@pytest.hookimpl(trylast=True)  # After the one that knows which files take long among all tests.
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if SIZE > 1:  # What takes longest begins first.
        items.sort(key=lambda item: item.path.stem != "test_kills")
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent) and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(_SECONDS * SIZE))


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Print the table; the process that prints has the properties of all tests, those of other processes too."""
    rows: dict[str, Counter[str]] = {}
    faults: dict[str, set[str]] = {}
    for reports in terminalreporter.stats.values():
        for report in reports:
            properties = getattr(report, "user_properties", []) if getattr(report, "when", "") == "call" else []
            for kind, count, names in (value for name, value in properties if name == _PROPERTY):
                rows.setdefault(kind, Counter()).update(count)
                faults.setdefault(kind, set()).update(names)
    if not rows:
        return
    table = _table(rows, faults)
    terminalreporter.section(f"What was tried: seed {SEED}, size {SIZE}")
    terminalreporter.write_line(table)
    if SIZE > 1:
        TABLE.parent.mkdir(exist_ok=True)
        TABLE.write_text(table)


def _table(rows: dict[str, Counter[str]], faults: dict[str, set[str]]) -> str:
    names = list(Count.__dataclass_fields__)
    lines = [["kind", "faults", *(name.replace("_", " ") for name in names)], ["---"] + ["---:"] * (len(names) + 1)]
    lines += [
        [kind, str(len(faults[kind]) or ""), *(f"{rows[kind][name]:,}" for name in names)] for kind in sorted(rows)
    ]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "".join(f"| {' | '.join(map(str.ljust, line, widths))} |\n" for line in lines)
