"""Measure how often a run next to other work is right, marked, and mended by measuring again.

A job of many small cells (benchmarks/disturbed.yaml has 90) runs on a quiet machine; then next to a process that does
nothing but `while True: pass`, and next to one such process for each processor. These end when every cell has been
measured once, so that what is measured again may recover; with --keep-burning they last. A cell is wrong if its latency
differs by more than 10 % from the quiet run's. Exit code 1 if a cell is wrong and has no mark, or failed that was ok.
Needs a machine on which nothing else runs.

    PYTHONPATH=. python benchmarks/disturbed.py
    PYTHONPATH=. python benchmarks/disturbed.py --control            and once more on the quiet machine
    PYTHONPATH=. python benchmarks/disturbed.py --json figures.json --output DIR
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import polars as pl
from rich.console import Console

from engines.base import Warning
from profiler.machine import usable_cores
from profiler.results.warning_kinds import disturbances, doubting, is_remeasured
from profiler.tables.numbers import whole
from profiler.tables.table import figure, name, of_rows
from profiler.tables.writers import print_table

HERE = Path(__file__).resolve().parent
WRONG = 0.10
BURNER = "while True: pass"
QUIET = "nobody"


@dataclass
class Figures:
    """Of how many cells something holds, in the run next to `other_work`."""

    other_work: str
    cells: int
    """Those that the quiet run measured, undisturbed."""
    wrong_unmarked: int
    """Off by more than 10 %, without a mark of disturbance."""
    wrong_undoubted: int
    """Of those the ones without any warning that casts doubt on the latency."""
    failed: int
    marked: int
    """At first; with those that came right later."""
    recovered: int
    still_marked: int
    wrong_in_all: int
    """Off by more than 10 %, marked or not."""
    wrong: list[str]
    """The cells that are wrong and unmarked, with how far they are off."""

    @property
    def is_right(self) -> bool:
        return not self.wrong_unmarked and not self.failed


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", type=Path, default=HERE / "disturbed.yaml", help="a job of small cells on the CPU")
    parser.add_argument("--only", action="append", default=[], help="cells, as in python -m profiler --only")
    parser.add_argument(
        "--control", action="store_true", help="repeat the quiet run too: what differs without any work"
    )
    parser.add_argument("--keep-burning", action="store_true", help="the other work lasts to the end of each run")
    parser.add_argument("--json", type=Path, help="write the figures to this file too")
    parser.add_argument("--output", type=Path, help="a folder for the runs; by default they are not kept")
    options = parser.parse_args()
    every = usable_cores()
    loads = [
        *([(QUIET, 0)] if options.control else []),
        *((f"{n} of {every} processors", n) for n in sorted({1, every})),
    ]
    with tempfile.TemporaryDirectory() as temporary:
        output = options.output or Path(temporary)
        quiet = run(options, output / "quiet", 0, None)
        print(f"undisturbed in the quiet run: {len(undisturbed(quiet))} of {quiet.height} cells", flush=True)
        if undisturbed(quiet).is_empty():
            sys.exit("nothing to compare with: give it a machine on which nothing else runs")
        figures = []
        for what, burners in loads:
            rows = run(options, output / (f"{burners}-burners" if burners else "control"), burners, quiet.height)
            figures.append(judge(what, quiet, rows))
    show(figures)
    if options.json:
        options.json.write_text(json.dumps([asdict(each) for each in figures], indent=2) + "\n")
    return 0 if all(each.is_right for each in figures) else 1


def run(options: argparse.Namespace, output: Path, burners: int, cells: int | None) -> pl.DataFrame:
    """Run the job next to so many burners, until it has measured `cells` of them once; returns its rows."""
    if output.exists():
        sys.exit(f"{output}: there is a run already; give another folder")
    command = [sys.executable, "-m", "profiler", str(options.config), "--device", "cpu", "--output", str(output)]
    command += [word for condition in options.only for word in ("--only", condition)]
    print(*command, *([f"  (busy processes: {burners})"] if burners else []), flush=True)
    with burning(burners) as processes, tempfile.TemporaryFile("w+") as log:
        profiler = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
        try:
            while profiler.poll() is None:
                time.sleep(0.1)
                if not options.keep_burning and measured(output) >= (cells or 0):
                    end(processes)
        finally:
            profiler.kill()
        log.seek(0)
        if profiler.returncode not in (0, 1):
            sys.exit(f"exit code {profiler.returncode}\n{log.read()}")
    (folder,) = output.iterdir()
    return pl.read_parquet(folder / "results.parquet")


@contextmanager
def burning(number: int) -> Iterator[list[subprocess.Popen[bytes]]]:
    """So many processes, each of which keeps a processor busy."""
    processes = [subprocess.Popen([sys.executable, "-c", BURNER], start_new_session=True) for _ in range(number)]
    try:
        yield processes
    finally:
        end(processes)


def end(processes: Iterable[subprocess.Popen[bytes]]) -> None:
    for process in processes:
        process.kill()
        process.wait()


def measured(output: Path) -> int:
    """Of how many cells the journal has a row."""
    lines = [line for journal in output.glob("*/journal.jsonl") for line in journal.read_text().splitlines()]
    return len(lines)


def judge(other_work: str, quiet: pl.DataFrame, rows: pl.DataFrame) -> Figures:
    """What became of the cells of the quiet run."""
    right = dict(undisturbed(quiet).select("case_id", "latency_ms").iter_rows())
    pairs = [(row, right[row["case_id"]]) for row in rows.to_dicts() if row["case_id"] in right]
    ok = [(row, row["latency_ms"] / reference - 1) for row, reference in pairs if row["status"] == "ok"]
    off = [(row, share) for row, share in ok if abs(share) > WRONG]
    unmarked = [(row, share) for row, share in off if not mark(row)]
    recovered = sum(is_remeasured(warnings(row)) and not mark(row) for row, _ in ok)
    still = sum(mark(row) for row, _ in ok)
    doubts = doubting("latency")
    return Figures(
        other_work,
        cells=len(pairs),
        wrong_unmarked=len(unmarked),
        wrong_undoubted=sum(not any(w.kind in doubts for w in warnings(row)) for row, _ in unmarked),
        failed=len(pairs) - len(ok),
        marked=recovered + still,
        recovered=recovered,
        still_marked=still,
        wrong_in_all=len(off),
        wrong=[f"{row['case_id']} {share:+.0%}" for row, share in unmarked],
    )


def undisturbed(rows: pl.DataFrame) -> pl.DataFrame:
    """Those that are ok and carry no mark."""
    return rows.filter([row["status"] == "ok" and not mark(row) for row in rows.to_dicts()])


def warnings(row: dict[str, Any]) -> list[Warning]:
    return list(map(Warning.parse, row["warnings"]))


def mark(row: dict[str, Any]) -> bool:
    """Whether the row says that it was disturbed."""
    return bool(disturbances(warnings(row)))


def show(figures: Sequence[Figures]) -> None:
    """Print them, and the cells that are wrong."""
    headings = {
        "cells": "Cells",
        "wrong_unmarked": "Wrong, no mark",
        "wrong_undoubted": "nor doubt",
        "failed": "Failed",
        "marked": "Marked at first",
        "recovered": "Recovered",
        "still_marked": "Still marked",
        "wrong_in_all": "Wrong in all",
    }
    fields = [name("Next to", "other_work"), *(figure(heading, key, whole) for key, heading in headings.items())]
    rows = [[getattr(each, key) for key in ("other_work", *headings)] for each in figures]
    print()
    print_table(Console(width=120), of_rows("", fields, rows, every=True))
    for each in figures:
        for cell in each.wrong:
            print(f"   {each.other_work}: {cell}")


if __name__ == "__main__":
    sys.exit(main())
