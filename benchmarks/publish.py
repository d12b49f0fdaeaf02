"""Write the pages, data and job to keep in docs/, of runs of one job on one kind of machine.

    python benchmarks/publish.py results/<run> results/<run> --into docs/results/h200

A job may have been split over several GPUs, one run each. Nothing that is written names the host or a folder of the
machine. Raw samples are not copied: the intervals on the pages were made from them.
"""

from __future__ import annotations

import argparse
import os
import shlex
import sys
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

import polars as pl

from profiler.errors import ConfigError
from profiler.job.case import setting_words
from profiler.report.data import KEY, Data, gather
from profiler.report.findings import lead
from profiler.report.sections import METHOD, group_sentences
from profiler.report.tables import facts, own_warnings, problems_table, roofs, tables
from profiler.results.columns import Group, columns, field, latency_spread, names, verdict
from profiler.results.reading import read_runs
from profiler.results.speedups import certain
from profiler.results.wall_time import describe
from profiler.submit.cleaning import JOB, Cleaner, Run, read_run, write_data
from profiler.tables import numbers
from profiler.tables.table import Table, figure, of_rows, prose, words
from profiler.tables.writers import escape_markdown, markdown, parquet

DOCS = Path(__file__).resolve().parents[1] / "docs"
MADE = "<!-- Made by benchmarks/publish.py; do not edit. -->"
MUST_AGREE = ("device", "gpu", *names(Group.VERSIONS), "cpu", "platform")
FIELDS = [
    *(field("variant", "Engine"), field("precision"), field("latency_ms"), latency_spread(), field("gpu_ms")),
    *(field("forward_ms"), field("backward_ms"), field("step_ms")),
    figure("Speed-up (95 %)", ("speedup", "speedup_low", "speedup_high"), numbers.speedup, unit="×"),
    figure("On device", ("device_speedup", "device_speedup_low", "device_speedup_high"), numbers.speedup, unit="×"),
    *(verdict(), field("throughput", format=numbers.rates), field("tflops"), field("fraction_of_peak")),
    field("peak_memory_mib"),
    *(field(column.name) for column in columns(Group.MEMORY) if column.part_of == "peak_memory_mib"),
    *(field("rel_l2_error"), field("top1_agreement"), own_warnings(()), words("Note", "note")),
]
"""Of a model's page."""


def main() -> None:
    """Publish the runs that the command line names. Exits where a file of theirs is missing."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="a run's folder")
    parser.add_argument("--into", required=True, type=Path, metavar="FOLDER", help="for example docs/results/h200")
    options = parser.parse_args()
    try:
        publish(options.runs, options.into)
    except ConfigError as error:
        sys.exit(str(error))


def publish(folders: Sequence[Path], into: Path) -> None:
    """Write everything. Raises ConfigError where a file is missing, and for runs that cannot be mixed in one table."""
    read = [read_run(folder) for folder in folders]
    if lacking := [folder for folder in folders if not (folder / "samples.parquet").is_file()]:
        raise ConfigError(f"{lacking[0]}: not a whole run: it lacks samples.parquet")
    _check(read)
    clean = Cleaner(read)
    runs = [clean.run(run) for run in read]
    data = _gathered(runs, folders, clean)
    jobs = [run.job for place, run in enumerate(runs) if run.job not in [other.job for other in runs[:place]]]
    named = {f"bench-{number}.yaml" if number > 1 else JOB: job for number, job in enumerate(jobs, 1)}
    for old in (*into.glob("*.md"), *into.glob("bench-[0-9].yaml")):
        if old.suffix == ".yaml" or old.read_text().startswith(MADE):
            old.unlink()  # Of a model or a job that is no longer there.
    write_data(into, pl.concat([run.results for run in runs]), runs[0].environment, named)
    (into / "README.md").write_text(_readme(data, runs, list(named), into))
    for model in _models(runs):
        (into / f"{model}.md").write_text(_page(model, data))


def _check(runs: Sequence[Run]) -> None:
    """Raises ConfigError for runs that cannot be mixed."""
    first = runs[0]
    for run in runs[1:]:
        for key in MUST_AGREE:
            ours, theirs = first.environment.get(key), run.environment.get(key)
            if ours != theirs:
                raise ConfigError(
                    f"these runs cannot be mixed in one table: {key} is {ours} in one and {theirs} in another"
                )
        if run.results.schema != first.results.schema:
            raise ConfigError("these runs were made by different versions of the profiler: their columns differ")
    counted = Counter(case_id for run in runs for case_id in run.results["case_id"])
    if twice := [case_id for case_id, count in counted.items() if count > 1]:
        raise ConfigError(
            f"{len(twice)} cases are in more than one of these runs, such as {twice[0]}; give each only once"
        )


def _gathered(runs: Sequence[Run], folders: Sequence[Path], clean: Cleaner) -> Data:
    """What a report shows of the cleaned runs, whose samples lie in the folders."""
    with tempfile.TemporaryDirectory() as scratch:
        cleaned = [Path(scratch, str(number)) for number in range(len(runs))]
        for run, folder, copy in zip(runs, folders, cleaned, strict=True):
            write_data(copy, run.results, run.environment, {})
            samples = pl.read_parquet(folder / "samples.parquet")
            ids = {run_id: clean(run_id) for run_id in samples["run_id"].unique()}
            (copy / "samples.parquet").write_bytes(parquet(samples.with_columns(pl.col("run_id").replace(ids))))
        return gather(read_runs(cleaned), most_configurations=None)


def _models(runs: Sequence[Run]) -> list[str]:
    return sorted({model for run in runs for model in run.results["model"]}, key=numbers.natural)


def _page(model: str, data: Data) -> str:
    """Every configuration of a model, a table a group, and what of it was not measured."""
    own = data.configurations.filter(model=model)
    parts = [MADE, f"# {escape_markdown(model)}", f"{_machine(data)}. [How to read this, and the others](README.md)"]
    parts.append("\n".join(f"- {escape_markdown(text)}" for text, _ in group_sentences(own)))
    for _, group in certain(own).group_by(KEY, maintain_order=True):
        one = group.row(0, named=True)
        what = ", ".join([one["pass"].capitalize(), f"batch {one['batch_size']}", *setting_words(one["setting"])])
        parts += [f"## {what}", markdown(Table("", "", group, FIELDS)).rstrip()]
    absent = data.problems.filter(pl.col("model").list.contains(model))
    parts += [] if absent.is_empty() else ["## Not measured", markdown(problems_table(absent)).rstrip()]
    return "\n\n".join(filter(None, parts)) + "\n"


def _readme(data: Data, runs: Sequence[Run], jobs: Sequence[str], into: Path) -> str:
    """What is fastest, how to read the pages, what was not measured, the warnings, the machine and the runs."""
    made, results = tables(data), pl.concat([run.results for run in runs])
    pages = ", ".join(f"[{escape_markdown(model)}]({quote(model)}.md)" for model in _models(runs))
    environments = {str(number): run.environment for number, run in enumerate(runs, 1)}
    parts = [MADE, f"# {_machine(data)}", f"{statuses(results)}. One page a model: {pages}."]
    parts.append("\n".join(f"- {escape_markdown(str(one))}" for one in lead(data.configurations)))
    if answer := made.get("answer"):
        parts += ["## The fastest of each model and batch", markdown(_with_base(answer, data)).rstrip()]
    method = [f"- {text}" for text in METHOD]
    if into.resolve().is_relative_to(DOCS.parent):
        links = (f"[{name}]({os.path.relpath(DOCS / name, into.resolve())})" for name in ("method.md", "columns.md"))
        method.append(f"- More: {' and '.join(links)}.")
    parts += ["## How to read it", "\n".join(method)]
    for name, title, none in (
        ("not-measured", "Not measured", "Nothing: every case gave figures."),
        ("warnings", "Warnings", "None."),
    ):
        parts += [f"## {title}", markdown(made[name]).rstrip() if name in made else none]
    parts += ["## Machine", markdown(machine_table(environments, roofs)).rstrip(), "## Runs"]
    parts.append("\n".join(f"{number}. {_run(run)}" for number, run in enumerate(runs, 1)))
    job = ", ".join(f"[{name}]({name})" for name in jobs)
    parts.append(
        f"The job: {job}. Every row: [results.parquet](results.parquet). The machine in full: "
        "[environment.json](environment.json)."
    )
    return "\n\n".join(filter(None, parts)) + "\n"


def _with_base(answer: Table, data: Data) -> Table:
    """The report's answer with each model's page, and what the base takes."""
    assert isinstance(answer.frame, pl.DataFrame)
    bases = data.configurations.filter("is_base").select(*KEY, base_ms="latency_ms")
    frame = answer.frame.join(bases, on=KEY, how="left", nulls_equal=True, maintain_order="left")
    frame = frame.with_columns(page=pl.col("model").map_elements(lambda model: f"{quote(model)}.md", pl.String))
    own = [replace(one, link="page") if one.columns == ("model",) else one for one in answer.fields]
    return replace(answer, frame=frame, fields=[*own, words("Base", "base"), figure("Base", "base_ms", unit="ms")])


def _machine(data: Data) -> str:
    return escape_markdown(", ".join(data.environments))


def machine_table(environments: Mapping[str, Mapping[str, Any]], *more: Any) -> Table:
    """The machine's facts; what differs between its runs, such as the cores that they were given, with their names."""
    found: dict[str, dict[str, list[str]]] = {}
    for run, environment in environments.items():
        for read in (facts, *more):
            for part, what in read(environment).items():
                found.setdefault(part, {}).setdefault(what, []).append(run)
    rows = [
        (part, "; ".join(what if len(values) == 1 else f"{what} ({', '.join(who)})" for what, who in values.items()))
        for part, values in found.items()
    ]
    return of_rows("", [words("Part", "part"), prose("What", "what")], rows)


def _run(run: Run) -> str:
    """Its commands, rows and seconds."""
    wall = run.environment.get("wall_seconds")
    took = f" {describe(wall)}." if wall else ""
    return f"{commands(run.environment) or 'its command is not known'}: {statuses(run.results)}.{took}"


def commands(environment: Mapping[str, Any]) -> str:
    """What a cleaned environment's run was started by; empty where that is not known."""
    every = [*environment.get("earlier_commands", []), environment.get("command")]
    return ", then ".join(f"`{shlex.join(words)}`" for words in every if words)


def statuses(results: pl.DataFrame) -> str:
    counts = results["status"].value_counts(sort=True).iter_rows()
    return f"{results.height} cases: {', '.join(f'{count} {status}' for status, count in counts)}"


if __name__ == "__main__":
    main()
