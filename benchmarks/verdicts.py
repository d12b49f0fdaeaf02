"""Measure how often an interval of a ratio holds the truth, on pairs of cells that are the same configuration.

One job measures small models in several engines, each under many labels. Two labels of one configuration are a pair
whose true ratio is 1: the interval should hold 1 in at least 93 % of the pairs, and at most 5 % may be called faster or
slower. The job runs on the quiet machine and then next to a busy process. Labels are put together at random, as
processes of one cell, in many draws; of several runs, such as of two days, each draw takes one. Simulated machines come
first. Exit code 1 if either share is missed.

    PYTHONPATH=. python benchmarks/verdicts.py --pairs 200                    on a CPU
    PYTHONPATH=. python benchmarks/verdicts.py --pairs 60 --device cuda       on a GPU
    PYTHONPATH=. python benchmarks/verdicts.py --runs monday tuesday          runs that were kept
    PYTHONPATH=. python benchmarks/verdicts.py --simulated                    nothing is measured
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import polars as pl
from rich.console import Console

from benchmarks.simulated_verdicts import LOG_SD, selected, simulated
from profiler.results.cells import OK, cells, compared
from profiler.results.reading import load
from profiler.results.spread import with_spread
from profiler.tables.numbers import ms, shares, whole
from profiler.tables.table import Table, figure, name, words
from profiler.tables.writers import print_table

HERE = Path(__file__).resolve().parent
MODELS = {"mlp": [512], "convnet": [3, 64, 64], "encoder": [64, 256], "recurrent": [32, 256], "resnet18": None}
ENGINES = {"cpu": ["eager", "ort"], "cuda": ["eager", "eager-tuned", "ort"]}
BATCHES = {"cpu": [1], "cuda": [1, 64]}
BURNER = "while True: pass"
LEAST_HELD, MOST_WRONG = 0.93, 0.05
SHARES = {"held": "Holds 1", "wrong": "Called wrongly", "equivalent": "Called equivalent", "width": "Half-width"}
SIMULATED = {
    "held": "Pairs held",
    "noisy_held": "Noisiest fifth",
    "false": "Called wrongly",
    "noisy_false": "Noisiest fifth",
    "cell_held": "Cells held",
}
NOISY = 0.8
"""From this quantile of configurations by spread on, they are the noisiest fifth."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=200)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--models", type=int, default=len(MODELS), help="use the last so many of the models")
    parser.add_argument("--seconds", type=float, default=0.3, help="sampling time of a case")
    parser.add_argument("--busy", type=int, nargs="*", default=[0, 1], help="numbers of busy processes to run next to")
    parser.add_argument("--per-cell", type=int, nargs="*", default=[1, 3, 9], help="processes that make a cell")
    parser.add_argument("--draws", type=int, default=20, help="how often labels are put together anew")
    parser.add_argument(
        "--runs", type=Path, nargs="*", default=[], help="judge these runs' folders, and measure nothing"
    )
    parser.add_argument("--output", type=Path, help="a folder for the runs; by default they are not kept")
    parser.add_argument("--simulated", action="store_true", help="only simulate")
    options = parser.parse_args()
    is_missed = print_simulated(Console(width=120))
    if options.simulated:
        return int(is_missed)
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.output or Path(temporary)
        runs = {"kept": options.runs} if options.runs else {}
        for busy in () if runs else options.busy:
            runs[f"{busy} busy"] = [run(options, folder / f"busy-{busy}", busy)]
        found = [
            (f"{what}, {number} a cell", drawn(paths, number, options.draws))
            for what, paths in runs.items()
            for number in options.per_cell
        ]
    rows = [row for what, pairs in found for row in summary(what, pairs)]
    fields = [
        name("Beside", "beside"),
        name("Configurations", "which"),
        figure("Pairs", "pairs", whole),
        figure("Without interval", "unknown", whole),
        *(figure(heading, column, shares, unit="%") for column, heading in SHARES.items()),
    ]
    frame = pl.DataFrame(rows)
    print_table(Console(width=120), Table("", "Pairs of equal configurations", frame, fields, every=True))
    every = frame.filter(which="all")
    return int(is_missed or (every["held"] < LEAST_HELD).any() or (every["wrong"] > MOST_WRONG).any())


def print_simulated(console: Console) -> bool:
    """Print how often intervals of simulated machines hold the truth; return whether too rarely."""
    pairs = [
        {"kind": kind, "processes": number, **simulated(kind, number)} for kind in LOG_SD for number in (1, 2, 3, 5, 9)
    ]
    winners = [
        {"kind": kind, "configurations": number, "held": selected(kind, number)}
        for kind in LOG_SD
        for number in (20, 60)
    ]
    widths = {"width": "Half-width", "noisy_width": "Noisiest fifth"}
    fields = [
        *(words("Spreads", "kind"), figure("Processes", "processes", whole)),
        *(figure(heading, column, shares, unit="%") for column, heading in SIMULATED.items()),
        *(figure(heading, column, ms, unit="σ") for column, heading in widths.items()),
    ]
    best = [words("Spreads", "kind"), figure("Equal configurations", "configurations", whole)]
    best += [figure("Winner's figure held", "held", shares, unit="%")]
    print_table(console, Table("", "Simulated pairs of equal configurations", pl.DataFrame(pairs), fields, every=True))
    print_table(console, Table("", "Simulated runs", pl.DataFrame(winners), best, every=True))
    held = [*pl.DataFrame(pairs)["held"], *pl.DataFrame(winners)["held"]]
    return bool(min(held) < LEAST_HELD or max(pl.DataFrame(pairs)["false"]) > MOST_WRONG)


def drawn(folders: Sequence[Path], per_cell: int, draws: int) -> pl.DataFrame:
    """Judge pairs of many draws, each of one of the runs."""
    chosen = random.Random(0).choices(folders, k=draws if per_cell > 1 or len(folders) > 1 else 1)
    return pl.concat(judged(folder, per_cell, seed) for seed, folder in enumerate(chosen))


def run(options: argparse.Namespace, folder: Path, busy: int) -> Path:
    """Run the job next to so many busy processes; a run that the folder already holds is not repeated."""
    if not list(folder.glob("*/results.parquet")):
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / "job.yaml"
        path.write_text(json.dumps(job(options)))
        command = [sys.executable, "-m", "profiler", str(path), "--device", options.device, "--output", str(folder)]
        print(*command, f"(busy processes: {busy})", flush=True)
        with burning(busy), (folder / "log.txt").open("w") as log:
            code = subprocess.run(command, stdout=log, stderr=subprocess.STDOUT, check=False).returncode
        if code not in (0, 1):
            sys.exit(f"exit code {code}\n{(folder / 'log.txt').read_text()[-3000:]}")
    (found,) = (path.parent for path in folder.glob("*/results.parquet"))
    return found


def job(options: argparse.Namespace) -> dict[str, object]:
    models = list(MODELS.items())[-options.models :]
    engines, batches = ENGINES[options.device], BATCHES[options.device]
    labels = -(-2 * options.pairs // (len(models) * len(engines) * len(batches)))
    labels += labels % 2
    return {
        "models": [
            {"name": model, "factory": f"verdict_models:{model}", "input": shape} if shape else model
            for model, shape in models
        ],
        "engines": ["eager", *({"name": e, "label": f"{e}.{n}"} for e in engines for n in range(labels))],
        "precisions": ["fp32"],
        "batch_sizes": batches,
        "budget": {"seconds": options.seconds},
        "import_from": [str(HERE)],
    }


@contextmanager
def burning(number: int) -> Iterator[None]:
    """Keep so many processors busy."""
    processes = [subprocess.Popen([sys.executable, "-c", BURNER], start_new_session=True) for _ in range(number)]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


def judged(folder: Path, per_cell: int = 1, seed: int = 0) -> pl.DataFrame:
    """Put so many labels of each configuration together at random, pair such cells, and compare each pair.

    `noise` is the standard deviation of the configuration's log medians.
    """
    is_label, which = pl.col("variant").str.contains(".", literal=True), pl.col("variant").str.split(".").list.first()
    drawn = pl.int_range(pl.len()).shuffle(seed=seed).over("model", "batch_size", which, is_label)
    label = pl.when(is_label).then(pl.format("{}.{}", which, drawn // per_cell))
    replicate = pl.when(is_label).then(drawn % per_cell)
    rows = load(folder)[0].collect().filter(~is_label | (pl.col("replicate") == 0))  # What may win has more processes.
    rows = rows.with_columns(label.otherwise("variant").alias("variant"), replicate=replicate)
    noise = pl.col("latency_ms").log().std().over("model", "batch_size", which)
    noises = rows.filter(is_label).select("model", "batch_size", which=which, noise=noise).unique()
    found = cells(with_spread(rows)).filter(OK, is_label, processes=per_cell)
    shuffled = random.Random(seed).sample(range(found.height), found.height)
    found = found[shuffled].with_columns(which=pl.col("variant").str.split(".").list.first())
    place = pl.int_range(pl.len()).over("model", "batch_size", "which")
    found = found.with_columns(pair=place // 2, side=place % 2)
    keys = ["model", "batch_size", "which", "pair"]
    both = found.filter(side=0).join(found.filter(side=1), on=keys, suffix="_base")
    pairs = both.select(*keys, "latency_ms", "latency_ms_base").hstack(compared(both))
    return pairs.join(noises, on=keys[:3], maintain_order="left")


def summary(beside: str, pairs: pl.DataFrame) -> list[dict[str, object]]:
    """Return the shares of all pairs, of the noisiest configurations, and of each engine at each batch size."""
    groups = [("all", pairs), ("noisiest fifth", pairs.filter(pl.col("noise") >= pl.col("noise").quantile(NOISY)))]
    groups += [(f"{which}, batch {batch}", part) for (which, batch), part in pairs.group_by("which", "batch_size")]
    return [
        {
            "beside": beside,
            "which": which,
            "pairs": part.height,
            "unknown": part["factor_low"].null_count(),
            "held": (part["factor_low"].le(1) & part["factor_high"].ge(1)).mean(),
            "wrong": part["verdict"].is_in(["faster", "slower"]).mean(),
            "equivalent": part["verdict"].eq("equivalent").mean(),
            "width": part.select((pl.col("factor_high") / pl.col("factor_low")).sqrt().median() - 1).item(),
        }
        for which, part in sorted(groups, key=lambda group: group[0] != "all")
    ]


if __name__ == "__main__":
    sys.exit(main())
