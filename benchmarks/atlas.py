"""Measure examples/atlas.yaml on all GPUs of a machine, prepared ahead on all of its cores, and write its page.

    python benchmarks/atlas.py measure --output results/atlas     again after a cut-off: goes on where it was
    python benchmarks/atlas.py page results/atlas/*/* --into docs/results/atlas

Where one stay at a GPU is too short for all of it, `--part 1/2` and another time `--part 2/2`, each with an output of
its own, measure half of the models each; the page takes the runs of both.

Each GPU has its share of the models and of the cores. All of them prepare first, so that nothing else runs while they
measure. The page needs timm, which knows the families.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import polars as pl

from profiler.job.config import load_config
from profiler.nvml import visible_gpus
from profiler.published.setups import marks
from profiler.results.columns import kind_of_warning
from profiler.results.replicates import OK, disturbed
from profiler.results.run_folder import RunFolder
from profiler.results.warning_kinds import meaning, qualifying
from profiler.submit.cleaning import Cleaner, read_run, write_data
from profiler.tables import numbers
from profiler.tables.table import Table, figure, name, prose
from profiler.tables.writers import markdown

ROOT = Path(__file__).resolve().parents[1]
MADE = "<!-- Made by benchmarks/atlas.py; do not edit. -->"
OPERATOR = re.compile(
    r"(?P<aten>aten[.:]+\w+)|an implementation for (?P<lacking>\w+)|while running (?P<running>\w+) node"
)
"""Where a reason names one: torch's, or ONNX Runtime's."""
FEW = 10
"""Up to so many models are named."""
KINDS = pl.col("warnings").list.eval(kind_of_warning(pl.element()))


def main() -> None:
    """Carry out the subcommand. Exits with 1 where a GPU's run did."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True, dest="command")
    given = commands.add_parser("measure")
    given.add_argument("--job", type=Path, default=ROOT / "examples" / "atlas.yaml")
    given.add_argument("--output", type=Path, default=Path("results/atlas"), help="a folder a device goes here")
    given.add_argument("--devices", help="cuda:0,cuda:1 or cpu; all GPUs if left out")
    given.add_argument("--part", type=part, default="1/1", metavar="K/N", help="the K-th of N shares of the models")
    given = commands.add_parser("page")
    given.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="a run's folder")
    given.add_argument("--into", required=True, type=Path, metavar="FOLDER")
    options = parser.parse_args()
    if options.command == "page":
        write_page(options.runs, families(), options.into)
        return
    devices = options.devices.split(",") if options.devices else [f"cuda:{n}" for n in range(len(visible_gpus()))]
    if not devices:
        sys.exit("atlas: no NVIDIA GPU answers here; give --devices cpu")
    sys.exit(measure(options.job, options.output, devices, options.part))


def part(text: str) -> slice:
    """What "2/3" takes of a list: of every three items the second."""
    number, of = (int(word) for word in text.split("/"))
    if not 1 <= number <= of:
        raise ValueError
    return slice(number - 1, None, of)


def measure(job: Path, output: Path, devices: Sequence[str], part: slice) -> int:
    """Prepare all shares side by side, then measure them side by side; returns the largest exit code."""
    models = [entry.name for entry in load_config(job).models][part]
    devices = devices[: len(models)]
    only = {device: ",".join(f"model={each}" for each in share) for device, share in shares(models, devices).items()}
    cores = shares(sorted(os.sched_getaffinity(0)), devices)
    prepared = output / "prepared"
    if not prepared.exists():
        output.mkdir(parents=True, exist_ok=True)
        common = [str(job), "--prepare", "--only"]
        _side_by_side({device: [*common, only[device], "--device", device] for device in devices}, cores, output)
        prepared.touch()
    return _side_by_side({device: _measuring(job, output, device, only[device]) for device in devices}, cores, output)


def shares(items: Sequence[Any], devices: Sequence[str]) -> dict[str, list[Any]]:
    """Every device's part, in turn; of cores that are fewer than devices all."""
    return {device: list(items[place :: len(devices)]) or list(items) for place, device in enumerate(devices)}


def _measuring(job: Path, output: Path, device: str, only: str) -> list[str]:
    """What measures a device's share, or goes on with it."""
    folder = output / device.replace(":", "")
    runs = sorted(path.parent for path in folder.glob("*/bench.yaml"))
    start = ["--resume", str(runs[-1])] if runs else [str(job), "--output", str(folder)]
    return [*start, "--device", device, "--only", only]


def _side_by_side(commands: dict[str, list[str]], cores: dict[str, list[int]], output: Path) -> int:
    """Run the profiler once a device, on that device's cores; what it prints is in `<device>.txt`."""
    # Compiled code is kept where the measuring processes find it, too.
    kept = {"TORCHINDUCTOR_CACHE_DIR": str((output / "inductor").resolve())}
    running = []
    for device, command in commands.items():
        with (output / f"{device.replace(':', '')}.txt").open("a") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "profiler", *command],
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**kept, **os.environ},
                preexec_fn=partial(os.sched_setaffinity, 0, cores[device]),
            )
        running.append(process)
    return max(process.wait() for process in running)


def families() -> Callable[[str], str]:
    """What says of a model's name in which of timm's families it is: the file that has it."""
    from timm.models import _registry

    known: dict[str, str] = _registry._model_to_module
    return lambda model: known[model.partition(".")[0]]


def write_page(folders: Sequence[Path], family_of: Callable[[str], str], into: Path) -> None:
    """Write README.md, results.parquet and the job of the shares' runs."""
    runs = [read_run(folder) for folder in folders]
    clean = Cleaner(runs)
    rows = clean.results(pl.concat([run.results for run in runs])).with_columns(
        family=pl.col("model").map_elements(family_of, pl.String)
    )
    job = clean.job(runs[0].job)
    into.mkdir(parents=True, exist_ok=True)
    write_data(into, rows.drop("family"), clean.environment(runs[0].environment), {"bench.yaml": job})
    (into / "README.md").write_text(page(rows, seconds_of(folders)))


def seconds_of(folders: Sequence[Path]) -> pl.DataFrame:
    """Wall seconds of each case by phase, as journals have them: columns engine, phase, seconds."""
    results = [result for folder in folders for result in RunFolder(folder).results().values()]
    return pl.DataFrame(
        [(result.case_id.variant, phase, spent) for result in results for phase, spent in result.phases.items()],
        schema={"engine": pl.String, "phase": pl.String, "seconds": pl.Float64},
        orient="row",
    )


def page(rows: pl.DataFrame, seconds: pl.DataFrame) -> str:
    """The page as Markdown; `rows` are results with the column family."""
    models, of = rows["model"].n_unique(), rows["family"].n_unique()
    first = rows.row(0, named=True)
    ok = rows.filter(OK).height
    where = f"{first['machine']}, {first['precision']}, batch {first['batch_size']}"
    doubtful = rows.filter(OK & disturbed(KINDS).is_not_null())["model"].n_unique()
    left_out = f" Left out: {numbers.counted(doubtful, 'model')} with a row that was disturbed." if doubtful else ""
    parts = [
        MADE,
        "# Atlas of timm",
        f"{models} models of {of} of timm's families, with random weights: {where}. {ok} of {rows.height} cells were "
        "measured. The data is in [results.parquet](results.parquet), the job in [bench.yaml](bench.yaml).",
        *_section("How many run", passes(rows)),
        *_section("Why some do not, by operator", failures(rows)),
        *_section("What the rows warn of", warned(rows)),
        *_section(
            "The fastest runtime by family",
            fastest(rows),
            "Milliseconds of a call, the geometric mean over a family's models that ran undisturbed in all of them; "
            f"the ratio is that of the second fastest to the fastest. A ratio below 1.02 is no difference.{left_out}",
        ),
        *_section(
            "Seconds that a cell took, by phase",
            spent(seconds),
            "Mean wall seconds of a cell's own process. Graphs and references were prepared ahead, and so was what "
            "torch.compile keeps on disk: `build` is what it still has to do with that.",
        ),
        *_section("Every model", cells(rows), f"Milliseconds of a call; without one the row's status.\n\n{_legend()}"),
    ]
    return "\n\n".join(parts) + "\n"


def _section(title: str, table: Table, text: str = "") -> list[str]:
    return [f"## {title}", *([text] if text else []), markdown(table).strip() if table.rows else "None."]


def passes(rows: pl.DataFrame) -> Table:
    """By engine how many cells are of each status."""
    statuses = rows["status"].unique().sort().to_list()
    counts = rows.group_by("variant", maintain_order=True).agg(
        pl.len().alias("cells"),
        *((pl.col("status") == status).sum().alias(status) for status in statuses),
        share=OK.mean(),
    )
    fields = [
        name("Runtime", "variant"),
        figure("Cells", "cells", numbers.whole),
        *(figure(status, status, numbers.whole) for status in statuses),
        figure("ok, %", "share", numbers.each(numbers.percent)),
    ]
    return Table("passes", "", counts, fields)


def operator(reason: str) -> str:
    """The operator that a reason names, else how it begins."""
    if match := OPERATOR.search(reason):
        return match[str(match.lastgroup)]
    return re.split(r"[;.(]", re.sub(r"^model '[^']*': ", "", reason))[0][:80].strip()


def failures(rows: pl.DataFrame) -> Table:
    """What is not ok, by runtime and operator, with one whole reason."""
    bad = rows.filter(~OK).with_columns(
        pl.col("reason").fill_null(""), operator=pl.col("reason").fill_null("").map_elements(operator, pl.String)
    )
    groups = bad.group_by("variant", "status", "operator", maintain_order=True).agg(
        pl.len().alias("cells"), pl.col("model").unique().sort().str.join(", "), pl.col("reason").first()
    )
    fields = [
        name("Runtime", "variant"),
        name("Status", "status"),
        name("Operator", "operator"),
        figure("Cells", "cells", numbers.whole),
        prose("Models", "model"),
        prose("A reason", "reason"),
    ]
    return Table("failures", "", groups.sort("cells", descending=True, maintain_order=True), fields)


def warned(rows: pl.DataFrame) -> Table:
    """By kind of warning how many of a variant's rows with figures carry it, and whose they are where those are few."""
    variants = rows["variant"].unique(maintain_order=True).to_list()
    carried = rows.filter(OK).select("model", "variant", kind=KINDS.list.unique()).explode("kind").drop_nulls("kind")
    models = pl.col("model").unique().sort()
    counts = carried.group_by("kind").agg(
        *((pl.col("variant") == variant).sum().alias(variant) for variant in variants),
        models=pl.when(models.len() <= FEW).then(models.str.join(", ")),
    )
    meanings = pl.col("kind").map_elements(lambda kind: meaning(kind, ""), pl.String)
    figures = (figure(variant, variant, numbers.whole) for variant in variants)
    fields = [name("Warning", "kind"), *figures, prose("Models", "models"), prose("Meaning", "meaning")]
    return Table("warned", "", counts.with_columns(meaning=meanings).sort("kind"), fields)


def fastest(rows: pl.DataFrame) -> Table:
    """By family the geometric mean of each variant, over models that ran in all undisturbed, the fastest, and by how
    much."""
    variants = rows["variant"].unique(maintain_order=True).to_list()
    ms = pl.when(OK & disturbed(KINDS).is_null()).then("latency_ms")
    index = ["family", "model"]
    wide = rows.with_columns(ms=ms).pivot("variant", index=index, values="ms", aggregate_function="median")
    means = (
        wide.drop_nulls(variants)
        .group_by("family")
        .agg(pl.len().alias("models"), *(pl.col(variant).log().mean().exp() for variant in variants))
        .with_columns(least=pl.min_horizontal(variants), ordered=pl.concat_list(variants).list.sort())
    )
    winner = pl.coalesce(pl.when(pl.col(v) == pl.col("least")).then(pl.lit(v)) for v in variants)
    second = pl.col("ordered").list.get(1, null_on_oob=True)
    table = means.with_columns(winner=winner, ratio=second / pl.col("least")).sort("winner", "family")
    fields = [
        name("Family", "family"),
        figure("Models", "models", numbers.whole),
        *(figure(variant, variant) for variant in variants),
        name("Fastest", "winner"),
        figure("Ratio", "ratio", numbers.each(lambda value: numbers.decimals(value, 2))),
    ]
    return Table("fastest", "", table, fields)


def spent(seconds: pl.DataFrame) -> Table:
    """By phase the mean seconds of a cell in each variant, and their sums."""
    variants = seconds["engine"].unique(maintain_order=True).to_list()
    cells_of = dict(seconds.filter(phase="open").group_by("engine").len().iter_rows())
    sums = seconds.group_by("engine", "phase", maintain_order=True).agg(pl.col("seconds").sum())
    means = sums.with_columns(pl.col("seconds") / pl.col("engine").replace_strict(cells_of, default=None))
    wide = means.pivot("engine", index="phase", values="seconds")
    total = wide.select(pl.lit("all").alias("phase"), *(pl.col(variant).sum() for variant in variants))
    two = numbers.each(lambda value: numbers.decimals(value, 2))
    fields = [name("Phase", "phase"), *(figure(variant, variant, two) for variant in variants)]
    return Table("spent", "", pl.concat([wide.select(total.columns), total]), fields, totals=1)


def cells(rows: pl.DataFrame) -> Table:
    """A row a model: of each variant the milliseconds with their marks, or the status."""
    variants = rows["variant"].unique(maintain_order=True).to_list()
    ms = pl.col("latency_ms").map_elements(lambda value: numbers.ms([value])[0], pl.String)
    cell = pl.when(OK).then(pl.concat_str(ms, marks(KINDS), separator=" ", ignore_nulls=True)).otherwise("status")
    wide = rows.with_columns(cell=cell).pivot(
        "variant", index=["family", "model"], values="cell", aggregate_function="first"
    )
    fields = [name("Family", "family"), name("Model", "model"), *(name(variant, variant) for variant in variants)]
    return Table("cells", "", wide.sort("family", "model"), fields)


def _legend() -> str:
    return "\n".join(f"- `{kind.mark}` {kind.kind}: {kind.meaning}" for kind in qualifying())


if __name__ == "__main__":
    main()
