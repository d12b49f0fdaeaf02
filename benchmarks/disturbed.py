"""Measure how often a run next to other work is right, marked, and mended by measuring again.

A job of many small cells (benchmarks/disturbed.yaml has 100) runs a few times on a quiet machine; then next to a
process that does nothing but `while True: pass`, and next to one such process for each processor. These end when every
cell has been measured once, so that what is measured again may recover; with --keep-burning they last. A cell is wrong
if its latency is more than 10 % outside the range of the quiet runs: two processes differ even where nobody disturbs
them, and the table's last line says how often. Exit code 1 if a cell is wrong and has no mark, or failed that was ok.
Needs a machine on which nothing else runs.

    PYTHONPATH=. python benchmarks/disturbed.py
    PYTHONPATH=. python benchmarks/disturbed.py --json figures.json --output DIR        runs that DIR has are used again
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
from pathlib import Path
from typing import Any

import polars as pl
from rich.console import Console

from engines.base import Warning
from profiler.machine import usable_cores
from profiler.results.warning_kinds import disturbances, doubting, is_remeasured
from profiler.tables.numbers import whole
from profiler.tables.table import Table, figure, name
from profiler.tables.writers import print_table

HERE = Path(__file__).resolve().parent
WRONG = 0.10
BURNER = "while True: pass"


Figures = dict[str, Any]
"""Of how many cells something holds, by the keys of HEADINGS; and the cells that are `wrong` and unmarked, with how far
outside they are."""
HEADINGS = {
    "cells": "Cells",  # That a quiet run measured, undisturbed.
    "wrong_unmarked": "Wrong, no mark",  # More than 10 % outside the quiet runs' range.
    "wrong_undoubted": "nor doubt",  # Of those the ones without any warning that casts doubt on the latency.
    "failed": "Failed",
    "marked": "Marked at first",  # With those that came right later.
    "recovered": "Recovered",
    "still_marked": "Still marked",
    "wrong_in_all": "Wrong in all",  # Marked or not.
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", type=Path, default=HERE / "disturbed.yaml", help="a job of small cells on the CPU")
    parser.add_argument("--only", action="append", default=[], help="cells, as in python -m profiler --only")
    parser.add_argument("--quiet-runs", type=int, default=2, help="how often the job runs on the quiet machine first")
    parser.add_argument("--keep-burning", action="store_true", help="the other work lasts to the end of each run")
    parser.add_argument("--json", type=Path, help="write the figures to this file too")
    parser.add_argument("--output", type=Path, help="a folder for the runs; by default they are not kept")
    options = parser.parse_args()
    every = usable_cores()
    with tempfile.TemporaryDirectory() as temporary:
        output = options.output or Path(temporary)
        quiet = [run(options, output / f"quiet-{n}", 0, None) for n in range(1, options.quiet_runs + 1)]
        latencies = ranges(quiet)
        if not latencies:
            sys.exit("nothing to compare with: give it a machine on which nothing else runs")
        figures = []
        for burners in sorted({1, every}):
            rows = run(options, output / f"{burners}-burners", burners, quiet[0].height)
            figures.append({"other_work": f"{burners} of {every} processors", **judge(latencies, rows)})
    show(figures)
    differ = sum(high / low - 1 > WRONG for low, high in latencies.values())
    print(f"{len(quiet)} quiet runs: {len(latencies)} cells undisturbed; of these {differ} differ by more than 10 %")
    if options.json:
        options.json.write_text(json.dumps(figures, indent=2) + "\n")
    return int(any(each["wrong_unmarked"] or each["failed"] for each in figures))


def run(options: argparse.Namespace, output: Path, burners: int, cells: int | None) -> pl.DataFrame:
    """Run the job next to so many burners, until it has measured `cells` of them once; returns its rows.

    A run that `output` already holds is not repeated.
    """
    if old := list(output.glob("*/results.parquet")):
        return pl.read_parquet(old[0])
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
    return sum(len(journal.read_text().splitlines()) for journal in output.glob("*/journal.jsonl"))


def ranges(runs: Iterable[pl.DataFrame]) -> dict[str, tuple[float, float]]:
    """The lowest and the highest latency in ms of each cell that a run measured undisturbed."""
    rows = pl.concat([undisturbed(run).select("case_id", "latency_ms") for run in runs])
    latency = pl.col("latency_ms")
    by_cell = rows.group_by("case_id").agg(low=latency.min(), high=latency.max())
    return {cell: (low, high) for cell, low, high in by_cell.iter_rows()}


def outside(latency: float, low: float, high: float) -> float:
    """How far it is outside the range, relative to the nearer end; 0 inside."""
    return min(latency / low - 1, 0.0) + max(latency / high - 1, 0.0)


def judge(quiet: dict[str, tuple[float, float]], rows: pl.DataFrame) -> Figures:
    """What became of the cells of the quiet runs."""
    pairs = [row for row in rows.to_dicts() if row["case_id"] in quiet]
    ok = [(row, outside(row["latency_ms"], *quiet[row["case_id"]])) for row in pairs if row["status"] == "ok"]
    off = [(row, share) for row, share in ok if abs(share) > WRONG]
    unmarked = [(row, share) for row, share in off if not mark(row)]
    recovered = sum(is_remeasured(warnings(row)) and not mark(row) for row, _ in ok)
    still = sum(mark(row) for row, _ in ok)
    doubts = doubting("latency")
    return {
        "cells": len(pairs),
        "wrong_unmarked": len(unmarked),
        "wrong_undoubted": sum(not any(w.kind in doubts for w in warnings(row)) for row, _ in unmarked),
        "failed": len(pairs) - len(ok),
        "marked": recovered + still,
        "recovered": recovered,
        "still_marked": still,
        "wrong_in_all": len(off),
        "wrong": [f"{row['case_id']} {share:+.0%}" for row, share in unmarked],
    }


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
    fields = [name("Next to", "other_work"), *(figure(heading, key, whole) for key, heading in HEADINGS.items())]
    print()
    print_table(Console(width=120), Table("", "", pl.DataFrame(figures), fields, every=True))
    for each in figures:
        for cell in each["wrong"]:
            print(f"   {each['other_work']}: {cell}")


if __name__ == "__main__":
    sys.exit(main())
