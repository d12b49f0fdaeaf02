"""Write the pages, data and job to keep in docs/, of runs of one job on one kind of machine.

    python benchmarks/publish.py results/<run> results/<run> --into docs/results/h200

A job may have been split over several GPUs, one run each. Nothing that is written names the host or a folder of the
machine. Raw samples are not copied: the intervals on the pages were made from them.
"""

from __future__ import annotations

import argparse
import math
import os
import re
import shlex
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import polars as pl

from engines.base import Warning
from profiler.errors import ConfigError
from profiler.job.case import setting_words
from profiler.results import columns as declared
from profiler.results import configurations, sentences
from profiler.results.problems import not_measured, warned
from profiler.results.speedups import CONFIGURATION
from profiler.results.wall_time import describe
from profiler.results.warning_kinds import KINDS, without_factor
from profiler.stats.ratios import Verdict, label, legend
from profiler.submit.cleaning import Cleaner, Run, read_run, write_data
from profiler.tables import numbers

DOCS = Path(__file__).resolve().parents[1] / "docs"
MADE = "<!-- Made by benchmarks/publish.py; do not edit. -->"
MUST_AGREE = ("device", "gpu", *declared.names(declared.Group.VERSIONS), "cpu", "python", "platform")
MEMORY = [column.name for column in declared.columns(declared.Group.MEMORY) if column.part_of == "peak_memory_mib"]
IN_TRAINING = ("gradients_mib", "optimizer_mib")
"""Parts that only some rows have."""
LONGEST_REASON = 240

Line = Mapping[str, Any]
"""A row of configurations.summary with what `_more` adds."""
MACHINE = ("Part", "What")
"""Heads of the table of a machine's facts."""
Column = tuple[str, Callable[[Line], str]]
"""A heading, and a line's cell below it. A column that is empty for all lines is left out."""
Group = tuple[dict[str, Any], list[dict[str, Any]]]


@dataclass(frozen=True)
class SampledRun(Run):
    """With its raw samples, of which the intervals on the pages are made."""

    samples: pl.DataFrame


def main() -> None:
    """Publish the runs that the command line names. Exits where a file of theirs is missing."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="a run's folder")
    parser.add_argument("--into", required=True, type=Path, metavar="FOLDER", help="for example docs/results/h200")
    options = parser.parse_args()
    try:
        runs = [_read(folder) for folder in options.runs]
    except ConfigError as error:
        sys.exit(str(error))
    publish(runs, options.into)


def _read(folder: Path) -> SampledRun:
    run, samples = read_run(folder), folder / "samples.parquet"
    if not samples.is_file():
        raise ConfigError(f"{folder}: not a whole run: it lacks samples.parquet")
    return SampledRun(**vars(run), samples=pl.read_parquet(samples))


def publish(runs: Sequence[SampledRun], into: Path) -> None:
    """Write everything. Exits where the runs cannot be mixed in one table."""
    _check(runs)
    clean = Cleaner(runs)
    results = clean.results(pl.concat([run.results for run in runs]))
    samples = pl.concat([run.samples for run in runs])
    lines = configurations.summary(results, samples).join(
        _more(results), on=CONFIGURATION, how="left", maintain_order="left", nulls_equal=True
    )
    groups = sorted(configurations.groups(lines), key=lambda group: _order(group[0]))
    models = sorted(results["model"].unique(), key=_natural)
    environments = [clean.environment(run.environment) for run in runs]
    jobs: list[dict[str, Any]] = []
    for job in (clean.job(run.job) for run in runs):
        if job not in jobs:
            jobs.append(job)

    names = ["bench.yaml", *(f"bench-{number}.yaml" for number in range(2, len(jobs) + 1))]
    for old in (*into.glob("*.md"), *into.glob("bench-[0-9].yaml")):
        if old.suffix == ".yaml" or old.read_text().startswith(MADE):
            old.unlink()  # Of a model or a job that is no longer there.
    write_data(into, results, environments[0], dict(zip(names, jobs, strict=True)))
    rows = [run.results for run in runs]
    (into / "README.md").write_text(_readme(results, rows, environments, groups, models, names, into))
    for model in models:
        own = [group for group in groups if group[0]["model"] == model]
        (into / f"{model}.md").write_text(_page(model, own, results.filter(model=model), environments[0]))


def _check(runs: Sequence[SampledRun]) -> None:
    first = runs[0]
    for run in runs[1:]:
        for key in MUST_AGREE:
            if run.environment.get(key) != first.environment.get(key):
                ours, theirs = first.environment.get(key), run.environment.get(key)
                sys.exit(f"these runs cannot be mixed in one table: {key} is {ours} in one and {theirs} in another")
        if run.results.schema != first.results.schema:
            sys.exit("these runs were made by different versions of the profiler: their columns differ")
    counted = Counter(case_id for run in runs for case_id in run.results["case_id"])
    twice = [case_id for case_id, count in counted.items() if count > 1]
    if twice:
        sys.exit(f"{len(twice)} cases are in more than one of these runs, such as {twice[0]}; give each only once")


def _more(results: pl.DataFrame) -> pl.DataFrame:
    """What a page shows of a line beyond configurations.summary: medians over replicates too."""
    columns = ["tflops", *MEMORY]
    return results.filter(status="ok").group_by(CONFIGURATION).agg(pl.col(columns).median())


def _natural(name: str) -> list[Any]:
    """resnet50 before resnet101."""
    return [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", name)]


def _order(key: Mapping[str, Any]) -> tuple[Any, ...]:
    return key["pass"], _natural(key["model"]), key["batch_size"], key["extra"] or ""


# The cells.


def _figure(value: float | None, digits: int = 3) -> str:
    """So many significant digits, thousands apart, never an exponent."""
    if value is None or not math.isfinite(value):
        return ""
    places = digits - 1 - math.floor(math.log10(abs(value))) if value else 0
    return f"{round(value, places):,.{max(0, places)}f}"


def _percent(share: float | None) -> str:
    return "" if share is None else _figure(100 * share)


def _error(line: Line) -> str:
    return _known(numbers.error, line["rel_l2_error"])


def _known(form: Callable[[Any], str], value: Any) -> str:
    return "" if value is None else form(value)


def _spread(line: Line) -> str:
    """Half the width of the median's 95 % interval, in percent of the median."""
    (cell,) = numbers.spread(*([line[name]] for name in ("latency_ci_low_ms", "latency_ci_high_ms", "latency_ms")))
    return cell


def _speedup(line: Line) -> str:
    if line["disturbed"]:
        return "disturbed" if without_factor(line["warnings"]) else "base disturbed"
    low, high = line["speedup_low"], line["speedup_high"]
    return _figure(line["speedup"]) + (f" ({_figure(low)}–{_figure(high)})" if low is not None else "")


_TIED = {Verdict.EQUIVALENT: "≈", Verdict.UNCLEAR: "~"}
"""By verdict on the fastest and its runner-up what stands between their names."""


def _verdict(line: Line, clock: str) -> str:
    """Only of lines on this headline clock; on a GPU with the ratio that it judges."""
    verdict = label(line["verdict"])
    ratio = f"{_figure(line['device_speedup'])} " if clock == "event" else ""
    known = verdict and line["clock"] == clock and not line["disturbed"]
    return f"{ratio}{verdict}" if known else ""


def _split(line: Line) -> str:
    parts = [line[name] for name in MEMORY if name not in IN_TRAINING or line[name] is not None]
    return (
        " + ".join(_known(numbers.count, part) or "?" for part in parts)
        if any(part is not None for part in parts)
        else ""
    )


def _marks(line: Line) -> str:
    return " ".join(sorted(_mark(kind) or kind for kind in line["warnings"]))


def _name(line: Line) -> str:
    return f"{line['variant']} {line['precision']}"


COLUMNS: list[Column] = [
    ("Engine", lambda line: line["variant"]),
    ("Precision", lambda line: line["precision"]),
    ("Latency ms", lambda line: _figure(line["latency_ms"], 4)),
    ("± %", _spread),
    ("Device ms", lambda line: _figure(line["gpu_ms"], 4)),
    ("Forward ms", lambda line: _figure(line["forward_ms"])),
    ("Backward ms", lambda line: _figure(line["backward_ms"])),
    ("Step ms", lambda line: _figure(line["step_ms"])),
    ("Speed-up", _speedup),
    ("On device", lambda line: _verdict(line, "event")),
    ("Verdict", lambda line: _verdict(line, "host")),
    ("Items/s", lambda line: _figure(line["throughput"], 4)),
    ("TFLOP/s", lambda line: _figure(line["tflops"])),
    ("Of peak %", lambda line: _percent(line["fraction_of_peak"])),
    ("Memory MiB", lambda line: _known(numbers.count, line["peak_memory_mib"])),
    ("Split MiB", _split),
    ("Rel. error", _error),
    ("Top-1 %", lambda line: _percent(line["top1_agreement"])),
    ("Marks", _marks),
]
"""Of a model's page."""
FIGURES = re.compile(r".*( ms| %|/s|MiB|error)|ms|Batch|Rows|Run|Speed-up")
"""Heads of columns that are set to the right."""


def table_lines(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """A GitHub table without the columns that are empty."""
    rows = [[" ".join(cell.split()).replace("|", r"\|") for cell in row] for row in rows]
    kept = [i for i in range(len(heads)) if any(row[i] for row in rows)]
    rule = ["---:" if FIGURES.fullmatch(head) else "---" for head in heads]
    return [f"| {' | '.join(row[i] for i in kept)} |" for row in (heads, rule, *rows)]


def _page(model: str, groups: Sequence[Group], results: pl.DataFrame, environment: Mapping[str, Any]) -> str:
    found = [sentence for key, lines in groups if (sentence := sentences.group_sentence(key, lines))]
    text = [
        MADE,
        f"# {model}",
        "",
        f"{_machine(environment)}. [How to read this, and the other models](README.md)",
        "",
        *(f"- {sentence}" for sentence in found),
    ]
    for key, lines in groups:
        what = ", ".join([key["pass"].capitalize(), f"batch {key['batch_size']}", *setting_words(key["setting"])])
        text += ["", f"## {what}", ""]
        text += table_lines([head for head, _ in COLUMNS], [[cell(line) for _, cell in COLUMNS] for line in lines])
    kinds = {kind for _, lines in groups for line in lines for kind in line["warnings"]}
    if kinds:
        legend = (f"**{_mark(kind) or kind}** {_meaning(kind, results)}" for kind in sorted(kinds))
        text += ["", f"Marks: {'; '.join(legend)}."]
    absent = _absent(results)
    if absent:
        text += ["", "## Not measured", ""]
        text += [f"- {what}: **{status}**, {reason}" for status, reason, what in absent]
    return "\n".join(text) + "\n"


def _readme(
    results: pl.DataFrame,
    runs: Sequence[pl.DataFrame],
    environments: Sequence[Mapping[str, Any]],
    groups: Sequence[Group],
    models: Sequence[str],
    jobs: Sequence[str],
    into: Path,
) -> str:
    text = [
        MADE,
        f"# {_machine(environments[0])}",
        "",
        f"{statuses(results)}. One page a model: {', '.join(map(_link, models))}.",
    ]
    for what in dict.fromkeys(key["pass"] for key, _ in groups):
        text += ["", f"## {what.capitalize()}: the fastest line of each model and batch", ""]
        text += _winners([group for group in groups if group[0]["pass"] == what])
    text += ["", "## How to read it", "", *_explained([line for _, lines in groups for line in lines], into)]
    absent = _absent(results, models)
    text += ["", "## Not measured", ""]
    text += table_lines(["Status", "Reason", "What"], absent) if absent else ["Nothing: every case gave figures."]
    text += ["", "## Warnings", "", *_warnings(results)]
    text += ["", "## Machine", "", *table_lines(MACHINE, facts(environments[0]))]
    text += ["", "## Runs", "", *_runs(runs, environments)]
    links = ", ".join(f"[{name}]({name})" for name in jobs)
    text += [
        "",
        f"The job: {links}. Every row: [results.parquet](results.parquet). The machine in full: "
        "[environment.json](environment.json).",
    ]
    return "\n".join(text) + "\n"


def _winners(groups: Sequence[Group]) -> list[str]:
    heads = [
        "Model",
        "Batch",
        "fp32 eager ms",
        "Fastest",
        "ms",
        "Items/s",
        "Speed-up",
        "Rel. error",
        "Marks",
        "In fp32",
    ]
    rows = []
    for key, lines in groups:
        best = lines[0]
        base = next((line for line in lines if line["is_base"]), None)
        base_ms = "" if base is None else _figure(base["latency_ms"], 4)
        if base is not None and _name(base) != "eager fp32":
            base_ms += f" ({_name(base)})"
        tied = best["indistinguishable_from"]
        single = next((line for line in lines if line["precision"] == "fp32"), None)
        rows.append(
            [
                _link(key["model"]),
                ", ".join([str(key["batch_size"]), *setting_words(key["setting"])]),
                base_ms,
                _name(best) + (f" {_TIED[best['runner_up_verdict']]} {tied}" if tied else ""),
                _figure(best["latency_ms"], 4),
                _figure(best["throughput"], 4),
                _speedup(best),
                _error(best),
                _marks(best),
                "" if single is None else f"{single['variant']}, {_figure(single['latency_ms'], 4)} ms",
            ]
        )
    return table_lines(heads, rows)


def _explained(lines: Sequence[Line], into: Path) -> list[str]:
    clocks = {line["clock"] for line in lines}
    kinds = {line["interval"] for line in lines if line["interval"]}
    latency = "the median CUDA-event interval of one call" if "event" in clocks else "the median host time of one call"
    text = [f"- Latency is {latency}, ± half its 95 % interval (of replicates that between them)."]
    if "event" in clocks:
        text.append(
            "- Device ms is the same without gaps between launches. Where it is well below the latency the host is the"
            " bottleneck: a CUDA graph would help, a faster GPU would not."
        )
    intervals = {
        "between processes": "is between processes, from the replicates",
        "within process": "is within one process a side; between processes figures differ more",
    }
    how = "; ".join(text for kind, text in intervals.items() if kind in kinds)
    bases = " or ".join(dict.fromkeys(line["base"] for line in lines if line["base"]))
    if bases:
        text.append(
            f"- The speed-up is of latency, over {bases}"
            + (f"; its 95 % interval, where known, {how}." if how else ".")
        )
    if any(line["verdict"] for line in lines):
        where = "On device is the speed-up of device time, with a" if "event" in clocks else "The"
        text.append(f"- {where} verdict between processes; {legend()}. ≈: a tie; ~: unclear.")
    if any(line["fraction_of_peak"] is not None for line in lines):
        text.append("- Of peak is relative to the rate that the device itself reached at that precision (see Runs).")
    if any(map(_split, lines)):
        parts = "CUDA context + weights + activations with workspace + the rest"
        if any(line["gradients_mib"] is not None for line in lines):
            parts = parts.replace("weights +", "weights + in training gradients and the optimizer's state +")
        text.append(f"- Memory is the peak; its split: {parts}.")
    if any(map(_error, lines)):
        text.append(
            "- Rel. error is the relative L2 distance to the reference, for networks by name fp32 eager on the CPU."
        )
    if into.resolve().is_relative_to(DOCS.parent):
        pages = (f"[{name}]({os.path.relpath(DOCS / name, into.resolve())})" for name in ("method.md", "columns.md"))
        text.append(f"- More: {' and '.join(pages)}.")
    return text


def _warnings(results: pl.DataFrame) -> list[str]:
    kinds = warned(results).sort("cases", "kind", descending=[True, False]).select("kind", "cases")
    cells = [[_mark(kind), str(count), _meaning(kind, results)] for kind, count in kinds.iter_rows()]
    return table_lines(["Mark", "Rows", "What"], cells) if cells else ["None."]


def _meaning(kind: str, results: pl.DataFrame) -> str:
    """The kind, and what it says; of one that has no general words the first row's."""
    if kind in KINDS:
        return f"{kind}: {KINDS[kind].meaning}"
    return str(next(text for text in results["warnings"].explode() if text and Warning.parse(text).kind == kind))


def _mark(kind: str) -> str:
    """The sign of a kind; one that this version does not know has none."""
    return KINDS[kind].mark if kind in KINDS else ""


def _machine(environment: Mapping[str, Any]) -> str:
    what = environment.get("gpu") or environment.get("cpu")
    versions = [("torch", "torch_version"), ("ONNX Runtime", "onnxruntime_version"), ("driver", "driver")]
    return ", ".join([str(what), *(f"{name} {environment[key]}" for name, key in versions if environment.get(key))])


def facts(environment: Mapping[str, Any]) -> list[tuple[str, str]]:
    """What a reader compares with a machine of their own; what is null or missing is left out."""
    parts = {
        "GPU": {"gpu": "{}", "gpu_memory_mib": "{:,.0f} MiB", "compute_capability": "compute capability {}"},
        "Driver": {"driver": "{}"},  # Before the others, as it belongs to the GPU.
        **{column.heading: {column.name: "{}"} for column in declared.columns(declared.Group.VERSIONS)},
        "CPU": {"cpu": "{}", "cpu_cores": "{} cores", "memory_mib": "{:,.0f} MiB"},
        "Python": {"python": "{}"},
        "Platform": {"platform": "{}"},
    }
    facts = [
        (
            head,
            ", ".join(form.format(environment[key]) for key, form in forms.items() if environment.get(key) is not None),
        )
        for head, forms in parts.items()
    ]
    packages = (f"{name} {version}" for name, version in (environment.get("packages") or {}).items())
    return [fact for fact in (*facts, ("Packages", ", ".join(packages))) if fact[1]]


def _runs(runs: Sequence[pl.DataFrame], environments: Sequence[Mapping[str, Any]]) -> list[str]:
    """Commands, rows and seconds of each run, then the roofs of its device."""
    text = []
    for number, (results, environment) in enumerate(zip(runs, environments, strict=True), 1):
        wall = environment.get("wall_seconds")
        text.append(
            f"{number}. {commands(environment) or 'its command is not known'}: {statuses(results)}."
            + (f" {describe(wall)}." if wall else "")
        )
    names = list(dict.fromkeys(name for environment in environments for name in environment.get("roofs") or {}))
    if names:
        heads = ["Run", *(_roof(name) for name in names)]
        rows = [
            [str(number), *(_figure((environment.get("roofs") or {}).get(name)) for name in names)]
            for number, environment in enumerate(environments, 1)
        ]
        text += [
            "",
            "What each run's device reached in products (on a CPU in convolutions too) and in a copy, and its cache:",
            "",
            *table_lines(heads, rows),
        ]
    return text


def commands(environment: Mapping[str, Any]) -> str:
    """What a cleaned environment's run was started by; empty where that is not known."""
    every = [*environment.get("earlier_commands", []), environment.get("command")]
    return ", then ".join(f"`{shlex.join(words)}`" for words in every if words)


def _roof(name: str) -> str:
    """fp32_tflops as fp32 TFLOP/s."""
    for suffix, unit in (("_tflops", "TFLOP/s"), ("_gb_s", "GB/s"), ("_mib", "MiB")):
        if name.endswith(suffix):
            return f"{name.removesuffix(suffix)} {unit}"
    return name


def statuses(results: pl.DataFrame) -> str:
    counts = results["status"].value_counts(sort=True).iter_rows()
    return f"{results.height} cases: {', '.join(f'{count} {status}' for status, count in counts)}"


def _link(model: str) -> str:
    return f"[{model}]({quote(model)}.md)"


# What gave no figures.

Cell = tuple[Any, ...]


def _absent(results: pl.DataFrame, models: Sequence[str] = ()) -> list[tuple[str, str, str]]:
    """Status, reason and exactly what it holds for; with several `models` these too."""
    axes = ["variant", "precision", "pass", "batch_size", *(["model"] if models else [])]
    found = []
    cases = not_measured(results).explode("batch_size")
    for (status, reason), group in cases.group_by(["status", "reason"], maintain_order=True):
        for box in _boxes(dict.fromkeys(group.select(axes).iter_rows())):
            parts = [", ".join(map(str, values)) for values in box]
            parts[3] = f"batch {parts[3]}"
            if models and len(box[4]) == len(models) > 1:
                parts[4] = "every model"
            found.append((str(status), _shortened(str(reason)), " · ".join(parts)))
    return found


def _boxes(cells: Iterable[Cell]) -> list[list[list[Any]]]:
    """The cells as few products of lists of values, which together hold just these cells."""
    rests: dict[Any, list[Cell]] = {}
    for first, *rest in cells:
        rests.setdefault(first, []).append(tuple(rest))
    merged: dict[frozenset[Cell], list[Any]] = {}
    for first, found in rests.items():
        merged.setdefault(frozenset(found), []).append(first)
    boxes = ((firsts, _boxes(rests[firsts[0]]) if rests[firsts[0]][0] else [[]]) for firsts in merged.values())
    return [[firsts, *box] for firsts, below in boxes for box in below]


def _shortened(reason: str) -> str:
    """On one line, and without what Markdown would take for its own."""
    reason = " ".join(reason.split())
    reason = reason if len(reason) <= LONGEST_REASON else f"{reason[:LONGEST_REASON]}…"
    return re.sub(r"([<*`]|_(?=_)|(?<=_)_)", r"\\\1", reason)


if __name__ == "__main__":
    main()
