"""Write the pages, data and job to keep in docs/, of runs of one job on one kind of machine.

    python benchmarks/publish.py results/<run> results/<run> --into docs/results/h200

A job may have been split over several GPUs, one run each. Nothing that is written names the host or a folder of the
machine. Raw samples are not copied. A published folder can be given again, to write its pages anew.

    python benchmarks/publish.py docs/results/h200 docs/results/h200-vit --picture docs/results/speedups.svg

draws the README's picture.
"""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

import altair as alt
import polars as pl

from exporters.whole_file import write_whole
from profiler.errors import ConfigError
from profiler.job.case import setting_words
from profiler.report import palette
from profiler.report.chart_specs import Spec, finished, logarithmic
from profiler.report.tables import facts, roofs
from profiler.results.cells import GROUP, OK, cells
from profiler.results.choice import cell_name, choices
from profiler.results.columns import Group, columns, factor, field, names
from profiler.results.problems import not_measured, warned
from profiler.results.wall_time import describe
from profiler.results.warning_kinds import meaning
from profiler.submit.cleaning import JOB, Cleaner, Run, read_run, write_data
from profiler.tables import numbers
from profiler.tables.table import Table, figure, of_rows, prose, words
from profiler.tables.writers import escape_markdown, markdown

DOCS = Path(__file__).resolve().parents[1] / "docs"
MADE = "<!-- Made by benchmarks/publish.py; do not edit. -->"
MUST_AGREE = ("device", "gpu", *names(Group.VERSIONS), "cpu", "platform")
PICTURED_BATCH, PICTURED = 16, ("fp32", "tf32", "fp16")
FACTORS = ("model", "variant", "precision", "factor", "factor_low", "factor_high")
_LATENCY = figure("Latency (95 %)", ("latency_ms", "latency_low_ms", "latency_high_ms"), numbers.ranges, unit="ms")
_GROUP = [words("Model", "model", link="page"), *(field(name) for name in GROUP[1:])]
_FIGURES = (
    *("latency_ms", "latency_low_ms", "latency_high_ms", "throughput", "factor", "factor_low", "factor_high"),
    *("base", "error"),
)
FIELDS = [
    *(field("variant", "Engine"), field("precision"), _LATENCY, field("gpu_ms")),
    *(field("forward_ms"), field("backward_ms"), field("step_ms"), factor("Speed-up (95 %)", unit="×")),
    *(words("Verdict", "verdict"), field("throughput", format=numbers.rates), field("tflops")),
    *(field("fraction_of_peak"), field("peak_memory_mib")),
    *(field(column.name) for column in columns(Group.MEMORY) if column.part_of == "peak_memory_mib"),
    *(figure("Error", "error", numbers.errors), field("top1_agreement"), words("Warnings", "footnotes")),
]
"""Of a model's page."""
METHOD = (
    "Latency is the median of one call with its 95 % interval, within a process and between processes.",
    "Device is the same without gaps between launches. Where it is well below the latency the host is the bottleneck.",
    "The speed-up is of latency, over the base, with its 95 % interval.",
    "Memory is the peak; the columns after it add up to it.",
    "The error is the relative L2 distance to the reference, the median over items.",
)


def main() -> None:
    """Publish the runs that the command line names. Exits where a file of theirs is missing."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="a run's folder")
    made = parser.add_mutually_exclusive_group(required=True)
    made.add_argument("--into", type=Path, metavar="FOLDER", help="for example docs/results/h200")
    made.add_argument("--picture", type=Path, metavar="FILE", help="for example docs/results/speedups.svg")
    options = parser.parse_args()
    try:
        if options.picture:
            draw(options.runs, options.picture)
        else:
            publish(options.runs, options.into)
    except ConfigError as error:
        sys.exit(str(error))


def publish(folders: Sequence[Path], into: Path) -> None:
    """Write everything. Raises ConfigError where a file is missing, and for runs that cannot be mixed in one table."""
    read = [read_run(folder) for folder in folders]
    _check(read)
    clean = Cleaner(read)
    runs = [clean.run(run) for run in read]
    found = cells(pl.concat([run.results for run in runs]), by=())
    jobs = [run.job for place, run in enumerate(runs) if run.job not in [other.job for other in runs[:place]]]
    named = {f"bench-{number}.yaml" if number > 1 else JOB: job for number, job in enumerate(jobs, 1)}
    for old in (*into.glob("*.md"), *into.glob("bench-[0-9].yaml")):
        if old.suffix == ".yaml" or old.read_text().startswith(MADE):
            old.unlink()  # Of a model or a job that is no longer there.
    write_data(into, pl.concat([run.results for run in runs]), runs[0].environment, named)
    (into / "README.md").write_text(_readme(found, runs, list(named), into))
    for model in _models(found):
        page = _page(model, _machine(runs), found, pl.concat([run.results for run in runs]))
        (into / f"{model}.md").write_text(page)


def draw(folders: Sequence[Path], file: Path) -> None:
    """Draw the speed-up of each configuration at batch PICTURED_BATCH as an SVG file. Raises ConfigError."""
    import vl_convert

    found = [cells(read_run(folder).results, by=()).filter(OK, batch_size=PICTURED_BATCH) for folder in folders]
    models = [model for each in found for model in _models(each)]
    drawn = pl.concat(found).filter(pl.col("precision").is_in(PICTURED)).select(FACTORS)
    spec = _picture(models, drawn["variant"].unique(maintain_order=True).to_list())
    note = "Inference, with 95 % intervals; plain PyTorch in fp32 is 1."
    spec = palette.on_paper(spec, {"rows": drawn.to_dicts()}, f"Speed-up at batch {PICTURED_BATCH}", note, offset=12)
    write_whole(file, vl_convert.vegalite_to_svg(spec | {"width": 760, "height": {"step": 26}}))


def _picture(models: Sequence[str], variants: Sequence[str]) -> Spec:
    """Specify a row for each model, with a dot and an interval for each configuration."""
    shapes = dict(zip(PICTURED, ("circle", "square", "triangle-up"), strict=True))
    rows = alt.Chart(alt.NamedData("rows")).encode(
        x=alt.X(**logarithmic("factor", "Speed-up over eager fp32, ×")),
        y=alt.Y("model:N", title=None, sort=list(models), axis=alt.Axis(domain=False, ticks=False, grid=True)),
        color=alt.Color("variant:N", title="Engine", scale=alt.Scale(domain=list(variants))),
    )
    shape = alt.Scale(domain=list(shapes), range=list(shapes.values()))
    dots = rows.mark_point().encode(shape=alt.Shape("precision:N", title="Precision", scale=shape))
    ends = rows.mark_rule(strokeWidth=1.5, aria=False)
    ends = ends.encode(x=alt.X("factor_low:Q"), x2="factor_high:Q")
    unity = alt.Chart(alt.InlineData([{}])).mark_rule(strokeDash=[4, 3], aria=False).encode(x=alt.datum(1))
    return finished(alt.layer(unity, ends, dots))


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
    counted = Counter(case_id for run in runs for case_id in run.results["case_id"])
    if twice := [case_id for case_id, count in counted.items() if count > 1]:
        raise ConfigError(
            f"{len(twice)} cases are in more than one of these runs, such as {twice[0]}; give each only once"
        )


def _models(found: pl.DataFrame) -> list[str]:
    return sorted(found["model"].unique(), key=numbers.natural)


def _page(model: str, machine: str, found: pl.DataFrame, results: pl.DataFrame) -> str:
    """Write every cell of a model, a table a group, and what of it was not measured."""
    own = found.filter(OK, model=model).sort("latency_ms", nulls_last=True, maintain_order=True)
    parts = [MADE, f"# {escape_markdown(model)}", f"{machine}. [How to read this, and the others](README.md)"]
    for (pass_, batch, setting), group in own.group_by(GROUP[1:], maintain_order=True):
        what = ", ".join([str(pass_).capitalize(), f"batch {batch}", *setting_words(str(setting))])
        parts += [f"## {what}", markdown(Table("", "", group, FIELDS)).rstrip()]
    absent = results.filter(model=model)
    return "\n\n".join([*parts, *_not_measured(absent)]) + "\n"


def _readme(found: pl.DataFrame, runs: Sequence[Run], jobs: Sequence[str], into: Path) -> str:
    """Write what is fastest, how to read the pages, what was not measured, the warnings, the machine and the runs."""
    results = pl.concat([run.results for run in runs])
    pages = ", ".join(f"[{escape_markdown(model)}]({quote(model)}.md)" for model in _models(found))
    environments = {str(number): run.environment for number, run in enumerate(runs, 1)}
    parts = [MADE, f"# {_machine(runs)}", f"{statuses(results)}. One page a model: {pages}."]
    parts += ["## The fastest of each model and batch", markdown(_winners(found)).rstrip()]
    method = list(METHOD)
    if into.resolve().is_relative_to(DOCS.parent):
        links = (f"[{name}]({os.path.relpath(DOCS / name, into.resolve())})" for name in ("method.md", "columns.md"))
        method.append(f"More: {' and '.join(links)}.")
    parts += ["## How to read it", "\n".join(f"- {text}" for text in method)]
    parts += _not_measured(results) or ["## Not measured", "Nothing: every case gave figures."]
    warnings = warned(results).with_columns(
        meaning=pl.struct("kind", "example").map_elements(lambda one: meaning(one["kind"], one["example"]), pl.String)
    )
    fields = [words("Warning", "kind"), figure("Cases", "cases", numbers.whole), prose("Meaning", "meaning")]
    parts += ["## Warnings", markdown(Table("", "", warnings, fields)).rstrip() if warnings.height else "None."]
    parts += ["## Machine", markdown(machine_table(environments, roofs)).rstrip(), "## Runs"]
    parts.append("\n".join(f"{number}. {_run(run)}" for number, run in enumerate(runs, 1)))
    job = ", ".join(f"[{name}]({name})" for name in jobs)
    parts.append(
        f"The job: {job}. Every row: [results.parquet](results.parquet). The machine in full: "
        "[environment.json](environment.json)."
    )
    return "\n\n".join(parts) + "\n"


def _winners(found: pl.DataFrame) -> Table:
    """The winner of each group, what is tied with it, and the best other one."""
    rows = []
    for _, choice in choices(found, by=()):
        if (best := choice.winner) is not None:
            second = [cell_name(choice.runner_up), str(choice.margin)] if choice.runner_up else []
            rows.append(
                {
                    **{field.columns[0]: best[field.columns[0]] for field in _GROUP},
                    **{name: best[name] for name in _FIGURES},
                    "page": f"{quote(best['model'])}.md",
                    "configuration": cell_name(best),
                    "tied": ", ".join(map(cell_name, choice.tied)),
                    "second": ": ".join(second),
                }
            )
    fields = [
        *_GROUP,
        words("Fastest", "configuration"),
        _LATENCY,
        field("throughput", format=numbers.rates),
        factor("Speed-up (95 %)", unit="×"),
        words("Over", "base"),
        figure("Error", "error", numbers.errors),
        words("Tied with", "tied"),
        words("Runner-up", "second"),
    ]
    return Table("", "", pl.DataFrame(rows, infer_schema_length=None), fields)


def _not_measured(results: pl.DataFrame) -> list[str]:
    absent = not_measured(results)
    fields = [
        *(words(heading, heading.lower()) for heading in ("Status", "Model", "Variant", "Pass", "Precision")),
        words("Batches", "batch_size"),
        prose("Reason", "reason"),
    ]
    return ["## Not measured", markdown(Table("", "", absent, fields)).rstrip()] if absent.height else []


def _machine(runs: Sequence[Run]) -> str:
    environment = runs[0].environment
    label = environment.get("machine")
    named = label.get("label") if isinstance(label, dict) else label
    return escape_markdown(str(named or environment.get("gpu") or environment.get("cpu")))


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
