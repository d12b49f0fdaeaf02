"""Count how often `--against` calls a model slower: than itself, and than one with a sixth and two thirds less work.

Each gate is a command of its own. The model against itself may be called slower once in 20 times, the one with 17 %
more work must be in 18 of 20, the one with 67 % in all. Exit code 1 if a share is missed.

    PYTHONPATH=. python benchmarks/gate.py --trials 20 --busy 0 1
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import polars as pl
from rich.console import Console

from benchmarks.verdicts import HERE, burning
from profiler.tables.numbers import significant, whole
from profiler.tables.table import Table, figure, name
from profiler.tables.writers import print_table

SHARES = {"six": (0.0, 0.05), "seven": (0.9, 1.0), "ten": (1.0, 1.0)}
"""The least and the most share of alarms by the new model; the old one is always `six`."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=20)
    parser.add_argument("--busy", type=int, nargs="*", default=[0, 1], help="numbers of busy processes to run next to")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--within", default="3m")
    parser.add_argument("--models", nargs="*", choices=SHARES, default=list(SHARES))
    options = parser.parse_args()
    rows = [judged(model, busy, options) for busy in options.busy for model in options.models]
    fields = [name("Against six", "model"), name("Busy", "busy"), figure("Gates", "gates", whole)]
    fields += [figure(heading, heading.lower(), whole) for heading in ("Alarms", "Untold")]
    fields += [
        figure("Seconds", "seconds", lambda *columns: [significant(v, 2) for (v,) in zip(*columns, strict=True)])
    ]
    print_table(Console(width=100), Table("", "Gates", pl.DataFrame(rows), fields, every=True))
    return int(any(row["missed"] for row in rows))


def judged(model: str, busy: int, options: argparse.Namespace) -> dict[str, object]:
    """Run gates of a model; count their alarms and those that could not tell."""
    codes, seconds = [], []
    with tempfile.TemporaryDirectory() as folder, burning(busy):
        for _ in range(options.trials):
            started = time.monotonic()
            command = [sys.executable, "-m", "profiler", f"gate_models:{model}", "--against", "gate_models:six"]
            command += ["--input", "64,56,56", "--strict", "--within", options.within, "--device", options.device]
            done = subprocess.run(
                [*command, "--output", str(Path(folder, "runs"))], cwd=HERE, capture_output=True, text=True, check=False
            )
            if done.returncode not in (0, 1, 4):
                sys.exit(f"exit code {done.returncode}\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
            codes.append(done.returncode)
            seconds.append(time.monotonic() - started)
            print(
                f"{model} beside {busy}:",
                next(line for line in done.stdout.splitlines() if "against" in line),
                flush=True,
            )
    alarms, (least, most) = codes.count(1), SHARES[model]
    missed = not least * options.trials <= alarms <= most * options.trials
    middle = sorted(seconds)[len(seconds) // 2]
    return {
        "model": model,
        "busy": str(busy),
        "gates": len(codes),
        "alarms": alarms,
        "untold": codes.count(4),
        "seconds": middle,
        "missed": missed,
    }


if __name__ == "__main__":
    sys.exit(main())
