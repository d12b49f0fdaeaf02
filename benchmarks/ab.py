"""Measure how often `compare` is right about real runs of one machine.

Three runs of benchmarks/ab.yaml, three replicates each: A, B, which is the same again, and C, every call of which is
slowed on purpose (benchmarks/slowed). B should not differ from A, and C be slower, each in 95 % of the cells.

    PYTHONPATH=. python benchmarks/ab.py [--output DIR]      the runs take turns: A B C, C B A, A B C
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

import polars as pl

from benchmarks.slowed.sitecustomize import key_of
from profiler.compare.cells import compare
from profiler.results.reading import read_runs
from profiler.stats.intervals import Verdict, margin

HERE = Path(__file__).resolve().parent
REPLICATES = 3
SIDES = ("A", "B", "C")
SHARES = {"cuda": 0.05, "cpu": 0.10}
"""How much C is slowed by."""
ASKED = 0.95


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda or cuda:1")
    parser.add_argument("--output", type=Path, help="a folder for the runs; by default they are not kept")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        output = options.output or Path(temporary)
        if any((output / side).exists() for side in SIDES):
            sys.exit(f"{output}: there are runs already; give another folder")
        runs: dict[str, Path] = {}
        for side, replicate in turns():
            run_turn(options, output, side, replicate, runs)
        return 0 if judge(runs) else 1


def turns() -> list[tuple[str, int]]:
    """Return which side measures which replicate, in order; the order of the sides turns round."""
    return [(side, n) for n in range(REPLICATES) for side in (SIDES[::-1] if n % 2 else SIDES)]


def run_turn(options: argparse.Namespace, output: Path, side: str, replicate: int, runs: dict[str, Path]) -> None:
    """Start the side's run, or go on with it."""
    command = [sys.executable, "-m", "profiler"]
    if side in runs:
        command += ["--resume", str(runs[side]), "--device", options.device]
    else:
        command += [str(HERE / "ab.yaml"), "--device", options.device, "--output", str(output / side)]
    command += ["--machine", f"label={side}", "--only", f"replicate={replicate}"]
    print(" ".join(command), flush=True)
    variables = slowing(output, runs) if side == "C" else {}
    done = subprocess.run(command, env=os.environ | variables, check=False, stdout=subprocess.PIPE, text=True)
    if done.returncode:
        sys.exit(f"exit code {done.returncode}\n{done.stdout}")
    (runs[side],) = (output / side).iterdir()


def slowing(output: Path, runs: Mapping[str, Path]) -> dict[str, str]:
    """Return the environment in which every session is slowed, by a share of the device times of A."""
    rows = pl.read_parquet(runs["A"] / "results.parquet").filter(status="ok")
    times = {
        key_of({**row, "options": json.loads(row["options"])}): row["gpu_ms"] or row["latency_ms"]
        for row in rows.to_dicts()
    }
    table = output / "device-times.json"
    table.write_text(json.dumps(times))
    share = SHARES[rows["device"][0]]
    path = [str(HERE / "slowed"), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {"PYTHONPATH": os.pathsep.join(path), "SLOWED_BY": str(share), "SLOWED_FROM": str(table)}


def judge(runs: Mapping[str, Path]) -> bool:
    """Print what compare says of B and of C; return True if it says so often enough."""
    results = read_runs([runs[side] for side in SIDES]).results.collect()
    cells = compare(results, by="machine", base="A").drop_nulls("ratio")
    device = str(results["device"][0])
    if {*cells["side"]} != {"B", "C"}:
        sys.exit("there is nothing to compare: B or C has no cell that was measured in A, too")
    card = ", ".join(results["gpu"].drop_nulls().unique()) or device
    print(f"\n{card}, margin {margin(results['clock'].drop_nulls()[0]):.0%}")
    right = True
    for side, verdicts in (("B", (Verdict.EQUIVALENT, Verdict.UNCLEAR)), ("C", (Verdict.SLOWER,))):
        part = cells.filter(side=side)
        expected = pl.col("verdict").is_in(verdicts)
        said = part.filter(expected).height
        ratio = math.exp(part["ratio"].log().mean())  # type: ignore[arg-type]
        spread = 100 * (part["ratio"].log().std() or 0)
        slowed = f", slowed by {SHARES[device]:.0%}" if side == "C" else ""
        print(
            f"{side}{slowed}: {said} of {part.height} cells are {' or '.join(verdicts)} ({said / part.height:.1%}); "
            f"A's time over its: geometric mean {ratio:.4f}, spread between cells {spread:.2f} %"
        )
        for row in part.filter(~expected).to_dicts():
            interval = f"{row['ratio']:.3f} ({row['ratio_low']:.3f} to {row['ratio_high']:.3f})"
            cell = f"{row['model']} {row['variant']} {row['precision']} b{row['batch_size']}"
            print(f"   {cell}: {row['verdict']}, {interval}")
        right &= said >= ASKED * part.height
    return right


if __name__ == "__main__":
    sys.exit(main())
