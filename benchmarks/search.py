"""Hold a search's winner against an exhaustive grid of its options, and see that copies of one thing have no winner.

The grid has every combination of the values that a search tries, besides those that take minutes to build, in several
processes. A rule's regret is how much slower than the grid's best what it crowns is. Two rules are replayed on the
grid's own samples, 1,000 times with one process of each configuration: the least mean of the first 20 samples, as
NVIDIA's AITune 0.6 has it, and the least figure of one run, as a tuner has it that calls trtexec. Of them the mean
regret is told, and the share that crowns what is more than 1 % slower.

    PYTHONPATH=. python benchmarks/search.py regret resnet50 --batch 1 16 --precision fp16 --device cuda
    PYTHONPATH=. python benchmarks/search.py copies resnet18 --races 20
"""

from __future__ import annotations

import argparse
import itertools
import json
import random
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import polars as pl
from rich.console import Console

from engines.catalog import ENGINES, PRESETS
from profiler.job.plan import processes_of_winners
from profiler.machine.target import usable_cores
from profiler.results.cells import cells
from profiler.results.choice import MAX_ERROR, choices, contenders
from profiler.results.reading import load
from profiler.run.search import label
from profiler.tables.numbers import significant, whole
from profiler.tables.table import Table, figure, name
from profiler.tables.writers import print_table

DRAWS = 1000
COPIES, POOL = 80, 240


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["regret", "copies"])
    parser.add_argument("models", nargs="*", default=["resnet18"])
    parser.add_argument("--batch", type=int, nargs="*", default=[1])
    parser.add_argument("--precision", nargs="*", default=["fp32"])
    parser.add_argument("--skip", nargs="*", default=[], help="engines that neither has")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--within", default="150s", help="time of each search")
    parser.add_argument("--processes", type=int, default=3, help="processes of each configuration of the grid")
    parser.add_argument("--seconds", type=float, default=0.5, help="sampling time of a case of the grid")
    parser.add_argument("--races", type=int, default=20)
    parser.add_argument("--input", default="", help="shape of a model's input, as for the program itself")
    parser.add_argument("--output", type=Path, help="a folder for the runs; by default they are not kept")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.output or Path(temporary)
        return copies(options, folder) if options.what == "copies" else regret(options, folder)


def regret(options: argparse.Namespace, folder: Path) -> int:
    """Print how much slower than the grid's best each rule's winner is."""
    rows = []
    for model, batch in itertools.product(options.models, options.batch):
        place = folder / f"{model.replace(':', '-')}-{batch}"
        asked = [model, "--batch", str(batch), "--output", str(place / "search"), "--device", options.device]
        asked += ["--precision", ",".join(options.precision), "--engine", ",".join(usual(options.device, options.skip))]
        asked += ["--input", options.input] if options.input else []
        found = run([*asked, "--search", "--within", options.within], place / "search")
        job: dict[str, Any] = {
            "models": [entry(model, options.input)],
            "engines": grid(options.device, usual(options.device, options.skip).values()),
            "batch_sizes": [batch],
        }
        job |= {"precisions": options.precision, "replicates": options.processes, "device": options.device}
        job |= {"budget": {"seconds": options.seconds}, "passes": ["inference"]}
        place.joinpath("grid.yaml").write_text(json.dumps(job))
        every = run([str(place / "grid.yaml"), "--output", str(place / "grid")], place / "grid")
        rows.append({"model": model, "batch": batch, **judged(found, every)})
        print(json.dumps(rows[-1]), flush=True)
    fields = [name("Model", "model"), figure("Batch", "batch", whole)]
    fields += [name("Grid's best", "best"), name("Search's winner", "winner")]
    fields += [figure("Grid s", "grid_s", two), figure("Search s", "search_s", two)]
    rules = {"search": "Search", "mean20": "Mean of 20", "one_run": "One run"}
    rules |= {"mean20_wrong": "wrong", "one_run_wrong": "wrong"}
    fields += [figure(heading, column, two, unit="%") for column, heading in rules.items()]
    print_table(Console(width=160), Table("", "Slower than the grid's best", pl.DataFrame(rows), fields, every=True))
    return 0


def two(*columns: Sequence[float | None]) -> list[str]:
    return ["" if v is None else significant(v, 2) for (v,) in zip(*columns, strict=True)]


def entry(model: str, shape: str) -> dict[str, Any]:
    """Write a model of a job."""
    if ":" in model and model.split(":")[0] not in ("hf", "timm", "torchvision"):
        return {"name": "net", "factory": model, "input": [int(size) for size in shape.split(",")]}
    return {"name": "net", "network": model}


def usual(device: str, skip: Sequence[str]) -> dict[str, str]:
    """Name the usual presets of a device, each with its engine."""
    found = {preset.name: preset.engine for preset in PRESETS.values() if preset.usual and device in preset.options}
    return {preset: engine for preset, engine in found.items() if engine not in skip}


def grid(device: str, engines: Iterable[str]) -> list[dict[str, Any]]:
    """List every combination of the values that a search tries of engines, under the search's names."""
    found: list[dict[str, Any]] = []
    for engine in sorted({*engines}):
        declared = ENGINES[engine].options.declared()
        values: dict[str, list[Any]] = {
            key: [option.default, *option.search]
            for key, option in declared.items()
            if option.search and device in option.devices and not option.builds_long
        }
        if "threads" in values:
            values["threads"] = [v for v in values["threads"] if v < usable_cores()]
        for chosen in itertools.product(*values.values()):
            given = dict(zip(values, chosen, strict=True))
            found.append({"name": engine, "label": label(engine, given), **given})
    return found


def run(words: Sequence[str], output: Path) -> dict[str, Any]:
    """Run the profiler; return its cells, samples and seconds."""
    started = time.monotonic()
    done = subprocess.run([sys.executable, "-m", "profiler", *words], capture_output=True, text=True, check=False)
    seconds = time.monotonic() - started
    (output.parent / f"{output.name}.log").write_text(done.stdout + done.stderr)
    if done.returncode not in (0, 1):
        sys.exit(f"{shlex.join(words)}: exit code {done.returncode}\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    results, samples = load(str(output / "*"))
    return {"results": results.collect(), "samples": samples.collect(), "seconds": seconds}


def judged(search: Mapping[str, Any], every: Mapping[str, Any]) -> dict[str, Any]:
    """Say how much slower than the best the winners are, in percent of it, by the grid's figures."""
    of_grid = cells(every["results"]).filter(status="ok").filter(pl.col("error").fill_null(0.0) <= MAX_ERROR)
    known = {(row["variant"], row["precision"]): row["latency_ms"] for row in of_grid.iter_rows(named=True)}
    best = min(known, key=known.__getitem__)

    def percents(key: tuple[str, str]) -> float | None:
        return 100 * (known[key] / known[best] - 1) if key in known else None

    (choice,) = [choice for _, choice in choices(cells(search["results"]))]
    winner = choice.winner or {}
    options = json.loads(winner.get("options") or "{}")
    won = label(winner["engine"], options), winner["precision"]
    means, medians = one_of_each(every, known)
    found = {"best": " ".join(best), "winner": " ".join(won), "best_ms": known[best], "winner_ms": winner["latency_ms"]}
    found |= {"grid_s": every["seconds"], "search_s": search["seconds"], "search": percents(won)}
    for rule, figures in (("mean20", means), ("one_run", medians)):
        crowned = [100 * (known[draw(figures, random.Random(seed))] / known[best] - 1) for seed in range(DRAWS)]
        found[rule] = sum(crowned) / DRAWS
        found[f"{rule}_wrong"] = 100 * sum(each > 1 for each in crowned) / DRAWS
    return found


def one_of_each(every: Mapping[str, Any], known: Mapping[tuple[str, str], float]) -> tuple[dict[Any, list[float]], ...]:
    """Return the mean of the first 20 samples, and the median, of each process of each configuration."""
    rows = every["results"].filter(status="ok").select("case_id", "variant", "precision", "clock")
    first = every["samples"].join(rows, on=["case_id", "clock"]).sort("index")
    each = first.group_by("variant", "precision", "case_id").agg(
        mean=pl.col("ms").head(20).mean(), median=pl.col("ms").median()
    )
    means: dict[Any, list[float]] = {}
    medians: dict[Any, list[float]] = {}
    for variant, precision, _, mean, median in each.iter_rows():
        if (variant, precision) in known:
            means.setdefault((variant, precision), []).append(mean)
            medians.setdefault((variant, precision), []).append(median)
    return means, medians


def draw(figures: Mapping[Any, Sequence[float]], chance: random.Random) -> Any:
    """Crown the least figure, of one process each."""
    return min(figures, key=lambda key: chance.choice(figures[key]))


def copies(options: argparse.Namespace, folder: Path) -> int:
    """Count the races of copies, drawn from the processes of one configuration, in which one is called the winner."""
    job: dict[str, Any] = {"models": [entry(options.models[0], options.input)], "batch_sizes": options.batch[:1]}
    job |= {"engines": [{"name": "eager", "label": f"copy{n}"} for n in range(COPIES)], "precisions": ["fp32"]}
    job |= {"replicates": POOL // COPIES, "budget": {"seconds": options.seconds}, "device": options.device}
    job |= {"passes": ["inference"]}
    folder.mkdir(parents=True, exist_ok=True)
    folder.joinpath("copies.yaml").write_text(json.dumps(job))
    pool = run([str(folder / "copies.yaml"), "--output", str(folder / "copies")], folder / "copies")["results"]
    won = [race(pool.filter(status="ok"), random.Random(seed)) for seed in range(options.races)]
    print(f"{sum(won)} of {options.races} races of {COPIES} copies had a winner, over {pool.height} processes")
    return int(sum(won) > options.races // 20)


def race(pool: pl.DataFrame, chance: random.Random) -> bool:
    """Race copies as a search does; tell whether one is better than all others beyond doubt."""
    drawn = iter(chance.sample(range(pool.height), pool.height))
    columns = {"variant": pl.String, "replicate": pl.Int64}

    def rows(names: Sequence[str], replicate: int) -> pl.DataFrame:
        found = pool[[next(drawn) for _ in names]]
        return found.with_columns(variant=pl.Series(names), replicate=pl.lit(replicate, columns["replicate"]))

    field = rows([f"copy{n}" for n in range(COPIES)], 0)
    measured = {f"copy{n}": 1 for n in range(COPIES)}
    for most in processes_of_winners(is_search=True):
        (group,) = contenders(cells(field))
        if len(group) < 2:
            break
        for cell in group:
            own = cell["variant"]
            while measured[own] < most:
                field = pl.concat([field, rows([own], measured[own])])
                measured[own] += 1
    ((_, choice),) = choices(cells(field))
    return choice.margin is not None and choice.margin.code == "worse"


if __name__ == "__main__":
    sys.exit(main())
