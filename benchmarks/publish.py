"""Publish runs of one job on one kind of machine: their rows, machine and job, without its private facts, and a page.

    python benchmarks/publish.py results/<run> results/<run> --into docs/results/h200

A job may have been split over several GPUs or Pythons, one run each: of a case that only one of them could measure its
figures are taken. A published folder can be given again for a new page.
"""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import polars as pl

from exporters.named_files import write_whole
from profiler.errors import ConfigError
from profiler.job.case import setting_words
from profiler.published.cleaning import SubmittedRun, clean, commands_of, read_run, write_run
from profiler.results.cells import GROUP, OK, cells, not_measured
from profiler.results.choice import MAX_ERROR, cell_name, choices
from profiler.results.columns import Group, factor, field, names
from profiler.results.overview import best_of_runtimes
from profiler.tables import numbers
from profiler.tables.table import Field, Table, figure, prose, words
from profiler.tables.writers import escape_markdown, markdown

MADE = "<!-- Made by benchmarks/publish.py; do not edit. -->"
MAY_DIFFER = ("python", "onnxruntime_version", "tensorrt_version")
"""Versions that two Pythons of one machine differ in; the page says which engine ran in which Python."""
MUST_AGREE = ("device", "gpu", *(set(names(Group.VERSIONS)) - set(MAY_DIFFER)), "cpu", "platform")
RUNTIMES = {
    "base": "PyTorch, fp32",
    "eager": "PyTorch, best",
    "compiled": "torch.compile",
    "ort": "ONNX Runtime",
    "trt": "TensorRT",
}
_IS_RIGHT = (pl.col("pass") != "inference") | (pl.col("error") <= MAX_ERROR)
_NATURAL = pl.col("model").map_elements(numbers.natural, return_dtype=pl.String)
_LATENCY = figure("Latency (95 %)", ("latency_ms", "latency_low_ms", "latency_high_ms"), numbers.ranges, unit="ms")
_SPEED = factor("Speed-up (95 %)", unit="×")
_ERROR = figure("Error", "error", numbers.errors)
_RATE = field("throughput", format=numbers.rates)
RUNTIME = [
    *(words(name.capitalize(), name) for name in ("model", "pass")),
    *(*(field(name) for name in GROUP[2:]), words("Runtime", "runtime"), words("Configuration", "configuration")),
    *(_LATENCY, _SPEED, field("peak_memory_mib"), _ERROR),
]
WINNERS = [
    *(
        words("Model", "model"),
        *(field(name) for name in GROUP[1:]),
        words("Lowest latency", "configuration"),
        _LATENCY,
    ),
    *(_RATE, _SPEED, words("Over", "base"), _ERROR, words("Not told apart from", "tied")),
    words("Runner-up", "second"),
]
EVERY = [
    *(words("Configuration", "configuration"), field("batch_size"), _LATENCY, field("gpu_ms"), _SPEED, _RATE),
    *(field("forward_ms"), field("backward_ms"), field("step_ms"), field("peak_memory_mib"), _ERROR),
    words("Footnotes", "footnotes"),
]
NOT_MEASURED = [
    *(words(name.capitalize(), name) for name in ("status", "variant", "pass", "precision")),
    *(words("Batches", "batch_size"), prose("Models", "model"), prose("Reason", "reason")),
]
METHOD = (
    "Latency is the median of one call with its 95 % interval; device is the same without gaps between launches. "
    "The speed-up is over the base. Memory is the peak. The error is the relative L2 distance to the reference, the "
    "median over items."
)


def main() -> None:
    """Publish the runs that the command line names. Exits where they cannot be used."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="a run's folder")
    parser.add_argument("--into", type=Path, required=True, metavar="FOLDER", help="for example docs/results/h200")
    options = parser.parse_args()
    try:
        publish(options.runs, options.into)
    except ConfigError as error:
        sys.exit(str(error))


def publish(folders: Sequence[Path], into: Path) -> None:
    """Write everything. Raises ConfigError for a missing file, and for runs that cannot be mixed in one table."""
    read = [read_run(folder) for folder in folders]
    _check(read)
    runs = clean(_measured(read))
    write_run(into, runs)
    write_whole(into / "README.md", page(runs))


def _check(runs: Sequence[SubmittedRun]) -> None:
    for key in MUST_AGREE:
        if len(values := {str(run.environment[key]) for run in runs if run.environment.get(key)}) > 1:
            raise ConfigError(f"these runs cannot be mixed: {key} is {' and '.join(sorted(values))}")
    cases = pl.concat([run.results.filter(OK).select("case_id") for run in runs])
    if twice := cases.filter(cases.is_duplicated())["case_id"].unique(maintain_order=True).to_list():
        raise ConfigError(f"{len(twice)} cases are in several of these runs, such as {twice[0]}; give each once")


def _measured(runs: Sequence[SubmittedRun]) -> list[SubmittedRun]:
    """Leave out of each run what it could not measure and another did, or said first."""
    order = pl.concat([run.results.select("case_id", "status", of=pl.lit(n)) for n, run in enumerate(runs)])
    first = order.sort(~OK, maintain_order=True).unique("case_id", keep="first", maintain_order=True)
    kept = [first.filter(of=number)["case_id"].to_list() for number in range(len(runs))]
    return [
        replace(run, results=run.results.filter(pl.col("case_id").is_in(own)))
        for run, own in zip(runs, kept, strict=True)
    ]


def page(runs: Sequence[SubmittedRun]) -> str:
    """Write what is fastest, every configuration, what was not measured, the machine and the runs."""
    facts, results = runs[0].environment, pl.concat([run.results for run in runs])
    found = cells(results, by=()).sort(_NATURAL, "pass", "batch_size", maintain_order=True)
    found = found.with_columns(configuration=pl.format("{} {}", "variant", "precision"))
    parts = [
        *(MADE, f"# {escape_markdown(str(runs[0].label or facts.get('gpu') or facts.get('cpu')))}", METHOD),
        "The job: [bench.yaml](bench.yaml). Every row: [results.parquet](results.parquet). The machine in full: "
        "[environment.json](environment.json).",
        *("## Each runtime at its best", f"The fastest of each whose error is at most {numbers.error(MAX_ERROR)}."),
        _table(_runtimes(found), RUNTIME),
        *("## The lowest latency of each model and batch", _table(_winners(found), WINNERS)),
        "## Every configuration",
    ]
    for (model, pass_, setting), rows in found.filter(OK).group_by("model", "pass", "setting", maintain_order=True):
        what = ", ".join([escape_markdown(str(model)), str(pass_), *setting_words(str(setting))])
        rows = rows.sort("batch_size", "latency_ms", nulls_last=True, maintain_order=True)
        parts += [f"<details><summary>{what}</summary>", _table(rows, EVERY), "</details>"]
    absent = _absent(results)
    parts += ["## Not measured", _table(absent, NOT_MEASURED) if absent.height else "Every case gave figures."]
    versions = [f"{name.removesuffix('_version')} {facts[name]}" for name in names(Group.VERSIONS) if facts.get(name)]
    cards = [str(facts[name]) for name in ("gpu", "cpu") if facts.get(name)]
    parts += [
        "## The machine and the runs",
        f"{'; '.join(cards)}, {facts.get('cpu_cores')} cores; {', '.join(versions)}.",
    ]
    parts += _pythons(results, facts.get("python"))
    parts.append("\n".join(f"{number}. {_run(run)}" for number, run in enumerate(runs, 1)))
    parts += _jobs(runs)
    return "\n\n".join(parts) + "\n"


def _runtimes(found: pl.DataFrame) -> pl.DataFrame:
    """Return eager fp32 and the best right cell of each runtime, by model, pass, batch size and setting."""
    rows = []
    for _, choice in choices(found, by=()):
        cells_of = best_of_runtimes(choice)
        rows += [{**cells_of[engine], "runtime": name} for engine, name in RUNTIMES.items() if engine in cells_of]
    return pl.DataFrame(rows, {**found.schema, "runtime": pl.String()}).filter(_IS_RIGHT)


def _winners(found: pl.DataFrame) -> pl.DataFrame:
    rows = []
    for _, choice in choices(found, by=()):
        if (best := choice.best) is not None:
            second = f"{cell_name(choice.runner_up)}: {choice.margin}" if choice.runner_up else ""
            rows.append({**best, "tied": ", ".join(map(cell_name, choice.tied)), "second": second})
    schema = {**found.schema, "tied": pl.String(), "second": pl.String()}
    return pl.DataFrame(rows, schema)


def _absent(results: pl.DataFrame) -> pl.DataFrame:
    """Return one row for all cases without figures that share a reason: models, precisions and variants together."""
    lists = ("model", "precision", "variant")
    rows = not_measured(results).sort(_NATURAL, maintain_order=True)
    for name in lists:
        keys = [column for column in rows.columns if column != name]
        rows = rows.group_by(keys, maintain_order=True).agg(name)
    return rows


def _pythons(results: pl.DataFrame, usual: str | None) -> list[str]:
    """Say which engines ran in which Python, where there are several; a row of an older version has the usual one."""
    rows = results.filter(OK).group_by(pl.col("python").fill_null(pl.lit(usual)), maintain_order=True)
    engines = rows.agg(pl.col("engine").unique(maintain_order=True)).rows()
    each = [f"{numbers.listed(names)} in Python {python}" for python, names in engines]
    return [f"One run each: {'; '.join(each)}."] if len(each) > 1 else []


def _table(frame: pl.DataFrame, fields: Sequence[Field]) -> str:
    return markdown(Table("", "", frame, fields)).rstrip()


def _jobs(runs: Sequence[SubmittedRun]) -> list[str]:
    """Say which job file is here, and which are gone."""
    files = [word for run in runs for words in commands_of(run.environment) for word in words if word.endswith(".yaml")]
    first, *others = dict.fromkeys(files) or ["bench.yaml"]
    said = [f"`{first}` is [bench.yaml](bench.yaml) here"] * (first != "bench.yaml")
    said += [f"{numbers.listed(f'`{name}`' for name in others)} are not kept"] * bool(others)
    return [f"{'; '.join(said)}."] if said else []


def _run(run: SubmittedRun) -> str:
    """Write its commands and how many cases are of each status."""
    commands = ", then ".join(f"`{shlex.join(words)}`" for words in commands_of(run.environment))
    counts = run.results["status"].value_counts(sort=True).rows()
    return f"{commands or 'Its command is not known'}: {', '.join(f'{count} {status}' for status, count in counts)}."


if __name__ == "__main__":
    main()
