"""Measure examples/atlas.yaml on all GPUs of a machine, prepared ahead on all of its cores, and write its page.

    python benchmarks/atlas.py measure --output results/atlas     again after a cut-off: goes on where it was
    python benchmarks/atlas.py page results/atlas/*/* --into docs/results/atlas

Where one stay at a GPU is too short for all of it, the page takes runs that were cut off, and keeps the models that it
has: another time `--without docs/results/atlas` measures the others, and again what failed, `--most 60` no more than
there is time for.

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
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import polars as pl

from exporters.named_files import write_whole
from profiler.job.config import load_config
from profiler.job.plan import make_plan
from profiler.machine.nvml import visible_gpus
from profiler.published.cleaning import clean, read_run, write_run
from profiler.results.cells import OK, compared, spread_of
from profiler.results.columns import Group, factor, names
from profiler.results.result import ends_of
from profiler.results.run_folder import RunFolder
from profiler.tables import numbers
from profiler.tables.table import Table, figure, name, prose
from profiler.tables.writers import markdown, parquet

ROOT = Path(__file__).resolve().parents[1]
MADE = "<!-- Made by benchmarks/atlas.py; do not edit. -->"
OPERATOR = re.compile(
    r"(?P<aten>aten[.:]+\w+)|an implementation for (?P<lacking>\w+)|while running (?P<running>\w+) node"
)
"""Find the operator that a reason names, torch's or ONNX Runtime's."""


def main() -> None:
    """Carry out the subcommand. Exits with 1 where a GPU's run did."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True, dest="command")
    given = commands.add_parser("measure")
    given.add_argument("--job", type=Path, default=ROOT / "examples" / "atlas.yaml")
    given.add_argument("--output", type=Path, default=Path("results/atlas"), help="a folder a device goes here")
    given.add_argument("--devices", help="cuda:0,cuda:1 or cpu; all GPUs if left out")
    given.add_argument("--without", type=Path, metavar="FOLDER", help="leave out this page's models, unless one failed")
    given.add_argument("--most", type=int, metavar="N", help="only so many models: on an H200 about 26 s each")
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
    known = set[str]()
    if options.without:
        page = pl.read_parquet(options.without / "results.parquet")
        known = set(page["model"]) - set(page.filter(~OK)["model"])
    models = [entry.name for entry in load_config(options.job).models if entry.name not in known]
    sys.exit(measure(options.job, options.output, devices, models[: options.most]))


def measure(job: Path, output: Path, devices: Sequence[str], models: Sequence[str]) -> int:
    """Measure all shares of the models side by side; returns the largest exit code."""
    devices = devices[: len(models)]
    only = {device: ",".join(f"model={each}" for each in share) for device, share in shares(models, devices).items()}
    cores = shares(sorted(os.sched_getaffinity(0)), devices)
    output.mkdir(parents=True, exist_ok=True)
    return _side_by_side({device: _measuring(job, output, device, only[device]) for device in devices}, cores, output)


def shares(items: Sequence[Any], devices: Sequence[str]) -> dict[str, list[Any]]:
    """Deal items to devices in turn; too few for all, every device gets all."""
    return {device: list(items[place :: len(devices)]) or list(items) for place, device in enumerate(devices)}


def _measuring(job: Path, output: Path, device: str, only: str) -> list[str]:
    """Return the command that measures a device's share, or resumes it."""
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
    """Return a function from a model's name to its timm family: the file that defines it."""
    from timm.models import _registry

    known: dict[str, str] = _registry._model_to_module
    return lambda model: known[model.partition(".")[0]]


def write_page(folders: Sequence[Path], family_of: Callable[[str], str], into: Path) -> None:
    """Write page, rows, seconds and job of the runs and of what is there. Exits where machines or versions differ."""
    runs = clean([read_run(folder) for folder in folders])
    rows, seconds = whole(pl.concat([run.results for run in runs])), seconds_of(folders)
    if (into / "results.parquet").exists():
        rows = added(pl.read_parquet(into / "results.parquet"), rows)
        seconds = added(pl.read_parquet(into / "seconds.parquet"), seconds)
    if mixed := [fact for fact in ("machine", *names(Group.VERSIONS)) if rows[fact].n_unique() > 1]:
        sys.exit(f"atlas: {', '.join(mixed)} differ between these runs, or from what {into} has; give another folder")
    seconds = seconds.join(rows, "model", how="semi")
    write_run(into, [replace(runs[0], results=rows)])
    write_whole(into / "seconds.parquet", parquet(seconds))
    of = len(load_config(folders[0] / "bench.yaml").models)
    family = pl.col("model").map_elements(family_of, pl.String)
    write_whole(into / "README.md", page(rows.with_columns(family=family), seconds, of))


def whole(rows: pl.DataFrame) -> pl.DataFrame:
    """Keep models with a row in every variant: a run that was cut off has begun one more."""
    return rows.filter(pl.col("variant").n_unique().over("model") == rows["variant"].n_unique())


def added(page: pl.DataFrame, measured: pl.DataFrame) -> pl.DataFrame:
    """Replace the page's rows of models that were measured again."""
    return pl.concat([page.join(measured, "model", how="anti"), measured], how="diagonal_relaxed")


def seconds_of(folders: Sequence[Path]) -> pl.DataFrame:
    """Wall seconds of each case by phase, as journals have them: columns model, engine, phase, seconds."""
    found = []
    for folder in folders:
        results = RunFolder(folder).results()
        plan = make_plan(load_config(folder / "bench.yaml"), "cpu")
        found += [(case, results[case.id]) for case in plan if case.id in results]
    return pl.DataFrame(
        [(case.model, case.variant, phase, spent) for case, result in found for phase, spent in result.phases.items()],
        schema={"model": pl.String, "engine": pl.String, "phase": pl.String, "seconds": pl.Float64},
        orient="row",
    )


def page(rows: pl.DataFrame, seconds: pl.DataFrame, job: int) -> str:
    """Write the page; `rows` are results with the column family, `job` counts the job's models."""
    models, families = rows["model"].n_unique(), rows["family"].n_unique()
    left = f" The other {job - models} of the job's {job} models have not been measured yet." if job > models else ""
    first = rows.row(0, named=True)
    ok = rows.filter(OK).height
    where = f"{first['machine']}, {first['precision']}, batch {first['batch_size']}"
    parts = [
        MADE,
        "# Atlas of timm",
        f"{models} models of {families} of timm's families, with random weights: {where}. {ok} of {rows.height} cells "
        f"were measured.{left} The data is in [results.parquet](results.parquet), the job in [bench.yaml](bench.yaml).",
        *_section("How many run", passes(rows)),
        *_section("Why some do not, by operator", failures(rows)),
        *_section(
            "The fastest runtime by family",
            fastest(rows, "latency_ms"),
            "Milliseconds of a call, the geometric mean over a family's models that ran in all of them; the ratio is "
            "that of the second fastest to the fastest, with its 95 % interval.",
        ),
        *_section(
            "By the device's time",
            fastest(rows, "gpu_ms"),
            "The same without the gaps in which the device waits for the host. They are most of a call that is "
            "host-bound, and torch.compile's CUDA graph has none; nor would eager-tuned or ort-tuned have any.",
        ),
        *_section(
            "Seconds that a cell took, by phase",
            spent(seconds),
            "Mean wall seconds of a cell's own process. Graphs and references were prepared ahead, and so was what "
            "torch.compile keeps on disk: `build` is what it still has to do with that.",
        ),
        *_section("Every model", cells(rows), "Milliseconds of a call; without one the row's status."),
    ]
    return "\n\n".join(parts) + "\n"


def _section(title: str, table: Table, text: str = "") -> list[str]:
    return [f"## {title}", *([text] if text else []), markdown(table).strip() if table.rows else "None."]


def passes(rows: pl.DataFrame) -> Table:
    """Count the cells of each status by runtime."""
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
    """Extract the operator that a reason names, else its beginning."""
    if match := OPERATOR.search(reason):
        return match[str(match.lastgroup)]
    return re.split(r"[;.,(]", re.sub(r"^(model '[^']*'|\w*Error): ", "", reason))[0][:80].strip()


def failures(rows: pl.DataFrame) -> Table:
    """Group failures by runtime and operator, with one whole reason."""
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


def fastest(rows: pl.DataFrame, column: str) -> Table:
    """Show each family's geometric mean milliseconds by variant, over models that ran in all, and who leads."""
    ends = ends_of(column)
    whole = (OK & pl.col(column).is_not_null()).all().over("model")
    is_known = pl.col(spread_of(column)).null_count() == 0
    arms = {name: (pl.col(name) / pl.col(column)).log() for name in ends}
    spans = {name: pl.when(is_known).then((arm**2).sum().sqrt() / pl.len()) for name, arm in arms.items()}
    means = (
        rows.filter(whole)
        .group_by("family", "variant")
        .agg(pl.col("model").n_unique(), pl.col("clock").first(), pl.col(column).log().mean().exp(), **spans)
    )
    low, high = (pl.col(column) * (sign * pl.col(name)).exp() for sign, name in zip((-1, 1), ends, strict=True))
    means = means.with_columns(low.alias(ends[0]), high.alias(ends[1])).sort("family", column, "variant")
    first, second = (
        means.group_by("family", maintain_order=True).agg(pl.all().get(n, null_on_oob=True)) for n in (0, 1)
    )
    both = first.join(second, "family", suffix="_base", maintain_order="left")
    winners = both.select("family", "model", winner="variant").hstack(compared(both, figure=column))
    table = means.pivot("variant", index="family", values=column).join(winners, "family")
    fields = [
        name("Family", "family"),
        figure("Models", "model", numbers.whole),
        *(
            figure(variant, variant, numbers.each(lambda value: numbers.ms([value])[0]))
            for variant in rows["variant"].unique(maintain_order=True)
        ),
        name("Fastest", "winner"),
        factor("Ratio"),
    ]
    return Table("fastest", "", table.sort("winner", "family"), fields)


def spent(seconds: pl.DataFrame) -> Table:
    """Average the seconds of a cell by phase and variant, with their sums."""
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
    """List every model with each variant's milliseconds, or its status."""
    variants = rows["variant"].unique(maintain_order=True).to_list()
    ms = pl.col("latency_ms").map_elements(lambda value: numbers.ms([value])[0], pl.String)
    cell = pl.when(OK).then(ms).otherwise("status")
    wide = rows.with_columns(cell=cell).pivot(
        "variant", index=["family", "model"], values="cell", aggregate_function="first"
    )
    fields = [name("Family", "family"), name("Model", "model"), *(name(variant, variant) for variant in variants)]
    return Table("cells", "", wide.sort("family", "model"), fields)


if __name__ == "__main__":
    main()
