"""Write the pages of docs/results/suites from the data that lie there: every suite's tables over all machines.

    PYTHONPATH=. python benchmarks/publish_suites.py

`python -m profiler submit` writes the data: <machine>/<suite>/ with every row, the machine and the job. From them come
<suite>/published.md with its CSV files and pictures, <suite>/conclusions.md, and the README.md that leads to them.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median, median_low

import polars as pl

from benchmarks.publish import DOCS, MADE, commands, machine_table, statuses
from engines.catalog import Device
from profiler.bundled import jobs
from profiler.job.config import load_config
from profiler.job.plan import make_plan
from profiler.published.claims.evidence import Evidence
from profiler.published.command import write
from profiler.published.printed import MARKED
from profiler.published.studies import STUDIES
from profiler.published.tables import link, published_tables
from profiler.results.cells import OK
from profiler.results.problems import warned
from profiler.results.reading import read_runs
from profiler.results.wall_time import describe
from profiler.submit.cleaning import Run, read_run
from profiler.submit.command import label_of
from profiler.tables.numbers import compact, counted, listed, times
from profiler.tables.writers import markdown

SUITES = DOCS / "results" / "suites"
PAGES = ("published.md", "conclusions.md", "published-*.csv", "*.svg")
NAMED_CASES = 3
"""So many cases that a run lacks are named one by one."""
SAME_CASE = [
    *("model", "variant", "pass", "precision", "batch_size", "optimizer", "head", "dropout", "input_gradient"),
    *("torch_version", "onnxruntime_version"),
]
"""What rows of two suites must agree in to be the same case, measured again."""


@dataclass(frozen=True)
class Submitted:
    """One suite's run on one machine, as it lies in `folder`."""

    machine: str
    suite: str
    folder: Path
    run: Run

    @property
    def study(self) -> str:
        """The published benchmark whose tables show it."""
        return str(self.run.job["published"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", type=Path, default=SUITES, help="of the machines; docs/results/suites")
    publish(parser.parse_args().folder)


def publish(folder: Path) -> None:
    """Write every page anew."""
    runs = submitted(folder)
    for suite in sorted({run.suite for run in runs}):
        write_suite([run for run in runs if run.suite == suite], folder / suite)
    (folder / "README.md").write_text(index(runs))


def submitted(folder: Path) -> list[Submitted]:
    """What lies in the folder, by suite; of each the GPUs before the CPUs, and these by name."""
    found = []
    for path in folder.glob("*/*/results.parquet"):
        run = read_run(path.parent)
        found.append(Submitted(label_of(run) or path.parts[-3], path.parts[-2], path.parent, run))
    return sorted(found, key=lambda one: (one.suite, one.run.environment.get("device") == "cpu", one.machine))


def write_suite(runs: Sequence[Submitted], into: Path) -> None:
    """Write the suite's tables and conclusions over all its machines, and take away what was there before."""
    for old in (path for pattern in PAGES for path in into.glob(pattern)):
        old.unlink()
    read = read_runs([run.folder for run in runs])
    results, study = read.results.collect(), runs[0].study
    write(into, Evidence(study, results), published_tables(study, results, [run.environment for run in read.runs]))


def index(runs: Sequence[Submitted]) -> str:
    machines = {run.machine: [other for other in runs if other.machine == run.machine] for run in runs}
    page = [
        MADE.replace("publish.py", "publish_suites.py"),
        "# The published benchmarks, run today",
        f"On {len(machines)} machine{'s' if len(machines) > 1 else ''}: {', '.join(machines)}. Each suite has one page "
        "with its tables in the published form, the rows of all machines among the published ones (marked ▸; as CSV "
        "files in the same folder, too), and one with every comparison. [Add your machine](../../../CONTRIBUTING.md).",
        "\n".join(_suites(runs)),
        "\n".join(_answers(runs)),
        "## The runs",
        "The folder of a run has every row (`results.parquet`), the machine (`environment.json`) and the job "
        "(`bench.yaml`). Counted are the rows that the tables mark. Samples "
        "are the fewest of a row, and the median. What a suite got after a run is not among the cases that were run.",
        "\n".join(_runs(runs)),
        "## The machines",
    ]
    for machine, of_it in machines.items():
        known = machine_table({run.suite: run.run.environment for run in of_it})
        page += [f"### {machine}", markdown(known).rstrip(), *repeated(of_it)]
    return "\n\n".join(page) + "\n"


def _suites(runs: Sequence[Submitted]) -> list[str]:
    rows = []
    for suite in dict.fromkeys(run.suite for run in runs):
        of_it = [run for run in runs if run.suite == suite]
        pages = f"[{suite}]({suite}/published.md)", f"[conclusions]({suite}/conclusions.md)"
        rows.append([*pages, link(STUDIES[of_it[0].study]), ", ".join(run.machine for run in of_it)])
    return _table(["suite", "comparisons", "after", "machines"], rows)


def _answers(runs: Sequence[Submitted]) -> list[str]:
    """The first conclusion of each suite, as its page has it."""
    pages = {one.suite: one.folder.parents[1] / one.suite / "conclusions.md" for one in runs}
    first = {suite: re.search(r"^1\. (.+)$", page.read_text(), re.MULTILINE) for suite, page in pages.items()}
    return [f"- {suite}: {found[1]}" for suite, found in first.items() if found]


def _runs(runs: Sequence[Submitted]) -> list[str]:
    rows = []
    for one in runs:
        kinds = dict(warned(one.run.results).select("kind", "cases").rows())
        marks = ", ".join(f"{kinds[kind]} {kind}" for kind in MARKED if kind in kinds)
        took = one.run.environment.get("wall_seconds")
        folder = f"[{one.suite}]({'/'.join(one.folder.parts[-2:])})"
        rows.append(
            [
                *(folder, one.machine, statuses(one.run.results), _lacking(one), _samples(one.run.results), marks),
                *(commands(one.run.environment), describe(took) if took else "not recorded"),
            ]
        )
    heads = ["run", "machine", "rows", "of the suite's cases", "samples", "marked", "command", "wall time"]
    return _table(heads, rows)


def _samples(results: pl.DataFrame) -> str:
    """The fewest samples of a row, and the median."""
    samples = results.filter(OK)["samples"].drop_nulls().to_list()
    return f"{min(samples)} ({median_low(samples)})" if samples else ""


def _lacking(one: Submitted) -> str:
    """How many cases that today's suite has were run, and the networks and variants that are not among them."""
    device: Device = "cpu" if one.run.environment.get("device") == "cpu" else "cuda"
    suite = load_config(jobs()[one.suite], device)
    cases = make_plan(suite, device, hardware=one.run.environment.get("compute_capability"))
    # Not by their ids, to which versions add settings.
    keys = ["model", "variant", "pass", "precision", "batch_size"]
    planned = pl.DataFrame(
        [(c.model, c.variant, c.pass_, c.precision, c.batch_size) for c in cases], keys, orient="row"
    )
    planned, there = planned.unique(maintain_order=True), one.run.results
    lacks = planned.join(there, on=keys, how="anti")
    if lacks.is_empty():
        return "all"
    absent = [
        word
        for key in ("model", "variant")
        for word in lacks[key].unique(maintain_order=True)
        if word not in there[key]
    ]
    if lacks.height <= NAMED_CASES:
        absent = [" ".join(case) for case in lacks.select("model", "variant", "precision", "pass").rows()]
    count = f"{planned.height - lacks.height} of {planned.height}"
    return f"{count}; without {listed(absent)}" if absent else count


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """A GitHub table; a bar in a cell is escaped by whoever made it."""
    return [f"| {' | '.join(cells)} |" for cells in (heads, ["---"] * len(heads), *rows)]


def repeated(runs: Sequence[Submitted]) -> list[str]:
    """State how far apart the latencies of a case are that several suites measured on the machine."""
    rows = [one.run.results.filter(OK).with_columns(named=pl.lit(one.suite)) for one in runs]
    same = (
        pl.concat([found.select(*SAME_CASE, "named", "latency_ms") for found in rows])
        .sort("latency_ms")
        .group_by(SAME_CASE, maintain_order=True)
        .agg("named", pl.col("latency_ms").alias("ms"), apart=pl.col("latency_ms").max() / pl.col("latency_ms").min())
        .filter(pl.col("named").list.n_unique() > 1)
        .sort("apart", *SAME_CASE, descending=[True, *[False] * len(SAME_CASE)], nulls_last=True)
    )
    if same.is_empty():
        return []
    most = same.row(0, named=True)
    ends = (f"{compact(most['ms'][end])} ms in {most['named'][end]}" for end in (0, -1))
    case = f"{most['model']} {most['pass']}, {most['variant']} {most['precision']}, batch {most['batch_size']}"
    return [
        f"{counted(same.height, 'case')} ran in several suites here. The greatest of its latencies "
        f"is {times(median(same['apart'].to_list()))} the least in the median, and "
        f"{times(most['apart'])} at "
        f"most: {case}, took {' and '.join(ends)}."
    ]


if __name__ == "__main__":
    main()
