"""Put a report together: its sections in the order of reading, and what they say around their charts and tables.

In the texts of sections `…` is code.
"""

from __future__ import annotations

import contextlib
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import polars as pl

from profiler.errors import PROGRAM
from profiler.job.case import MARKS
from profiler.report import charts, findings
from profiler.report.charts import Chart
from profiler.report.data import KEY, TICKS, Data
from profiler.report.findings import Finding, Lead
from profiler.report.tables import tables
from profiler.results.reading import Runs
from profiler.results.run_files import read_text
from profiler.results.sentences import FIRST_CALL, RANKED, WITHIN_PROCESS, doubtful_roofs, group_sentence
from profiler.results.wall_time import describe
from profiler.results.warning_kinds import carried_by_all
from profiler.stats.ratios import Verdict, label, legend
from profiler.tables.numbers import count, counted
from profiler.tables.table import Table

_LATENCY = "The time of one call by its batch size. Both scales are logarithmic."
_THROUGHPUT = "No other point beats one on the front in both latency and throughput."
_LIMITS = (
    "The lines are limits: no call can be faster than its FLOPs at the device's measured peak, nor than its bytes at "
    "the memory's bandwidth."
)
_ROOFLINE = (
    "A point far below its roof waits for something else, most often for launches. Weights that stay in the cache can "
    "put a point above the slanted roof."
)
_NO_ROOFLINE = "No chart: the device's peaks, or how many bytes a call moves, are not in these results."
_EFFICIENCY = (
    "The time per item by batch size. Where the curve is flat the device is full: a larger batch only "
    "lengthens the wait."
)
_SHAPES = (
    "Each size of a dimension of the inputs, at one batch size and one size of any other dimension. Both scales are "
    "logarithmic."
)
_TRAINING = "An iteration is a forward and a backward pass, and the optimizer's step where the job asks for one."
_SETUP = (
    "The time until a runtime is at full speed: once to export the network and to build its engine, which are kept; at "
    "every start to load it and for its first call (torch.compile compiles then, too). The table says after how many "
    "items the faster calls have made up for either."
)
METHOD = (
    "Every case runs in a process of its own, one at a time (the batch sizes of a sweep share one); exports and "
    "reference outputs are made beforehand.",
    "Latency is the median time of one call: on a GPU between CUDA events around calls that follow each other without "
    "synchronizing, on a CPU by the host's clock. Device time is that of one call whose launches were all queued "
    "before its first kernel began. Copies of inputs and outputs are in neither.",
    "Throughput is measured over calls back to back for at least half a second, including the last synchronize.",
    "The interval of a median is a 95 % block bootstrap within one process. The interval of a speed-up covers noise "
    "within one process a side; from three replicates a side on it covers the differences between processes, and only "
    "then is there a verdict: "
    f"{', '.join(map(label, Verdict))} ({legend()}). Outliers are counted and never dropped.",
    "fp32 is true fp32, with TF32 off everywhere; tf32 is the same network with it on. Each inference row is compared "
    "with fp32 eager on the CPU (a user's ONNX file with ONNX Runtime, its optimizations off; a model that names a "
    "reference with that one): the relative error is the largest L2 distance over the outputs.",
    "Memory on a GPU is the most that was in use above what was in use before, as the driver reports it; on a CPU it "
    "is the peak resident set.",
    "FLOPs are those of convolutions and matrix products, two a multiply-add. The roofs are rates that this "
    "machine reached in matrix products and in a copy.",
    "Where there are replicates, each of them a process, a figure is the median over them.",
)
_MOST_JOBS = 5
"""Whose commands and files are in a report."""
About = Mapping[str, Any]
"""What of a run, model, pass and so on something is about, by column: a page hides it with their rows."""


@dataclass(frozen=True)
class Section:
    """One part: its text, its charts, its tables, and sentences with the group that each is about.

    `plain`: text after the other, in which nothing is markup. `open`: its tables are shown at once; otherwise a reader
    unfolds them. `code`: titles, what can be unfolded below them, letter by letter, and what each is about.
    """

    name: str
    title: str
    text: Sequence[str] = ()
    plain: Sequence[str] = ()
    charts: Sequence[Chart] = ()
    tables: Sequence[Table] = ()
    open: bool = False
    sentences: Sequence[tuple[str, About]] = ()
    code: Sequence[tuple[str, str, About]] = ()


@dataclass(frozen=True)
class Report:
    """All that a report says, and the rows that its charts draw, by data set.

    `machine` is what was measured, and how many cases; `notes` are what was left out.
    """

    title: str
    machine: str
    lead: Sequence[Lead]
    sections: Sequence[Section]
    findings: Mapping[str, Sequence[Finding]]
    rows: Mapping[str, Sequence[Mapping[str, Any]]]
    notes: Sequence[str]

    @property
    def tables(self) -> list[Table]:
        return [table for section in self.sections for table in section.tables]

    @property
    def charts(self) -> list[Chart]:
        return [chart for section in self.sections for chart in section.charts]


def compose(data: Data) -> Report:
    rows, every = charts.rows(data), pl.concat([data.configurations, data.failed], how="diagonal_relaxed")
    drawn = {
        name: chart
        for name, chart in charts.make(charts.domains(every)).items()
        if data.statuses.get("ok") and charts.select(chart, rows[chart.data[0]]) and all(rows[o] for o in chart.data)
    }
    sections = _sections(data, drawn)
    shown = {chart.name for section in sections for chart in section.charts}
    assert shown == set(drawn), f"{set(drawn) - shown}: a chart's name begins with that of its section"
    return Report(
        findings.headline(data.configurations),
        _machine(data),
        findings.lead(data.configurations),
        [section for section in sections if section.text or section.charts or section.tables],
        findings.findings(data),
        rows,
        data.notes,
    )


def _section(
    drawn: Mapping[str, Chart], made: Mapping[str, Table], name: str, title: str, text: Sequence[str] = (), **more: Any
) -> Section:
    """With the charts and tables of that name ("latency", "latency-…") that there are, and of `other`."""
    names = [name, more.pop("other", name)]

    def own(among: Iterable[str]) -> Iterable[str]:
        return dict.fromkeys(key for part in names for key in among if key == part or key.startswith(f"{part}-"))

    return Section(
        name, title, text, charts=[drawn[n] for n in own(drawn)], tables=[made[n] for n in own(made)], **more
    )


def _when(condition: object, text: str) -> list[str]:
    return [text] if condition else []


def _sections(data: Data, drawn: Mapping[str, Chart]) -> list[Section]:
    made, configurations = tables(data), data.configurations
    section = partial(_section, drawn, made)
    measured = not configurations.is_empty()
    trained, walked = "training" in configurations["pass"], configurations["first_call_ms"].count()
    environment = [*wall_time(data.runs), *data.runs.notes]
    doubt = doubtful_roofs({label: run.get("roofs_disturbance") for label, run in data.environments.items()})
    roofline = f"{doubt or _LIMITS} {_ROOFLINE}" if "roofline" in drawn else f"{_NO_ROOFLINE} {doubt or ''}".strip()
    lost, sentences = _when(measured and data.lost, data.lost or ""), group_sentences(configurations)
    ranked = _when(configurations["by_throughput_ms"].count(), RANKED)
    latency, shapes = "latency" in drawn, charts.dimensions(configurations)
    answer = {"plain": lost, "sentences": sentences, "open": True}
    every, machine = _when("not-measured" not in made, "Every case succeeded."), code(data.runs, data.labels)
    return [
        section("answer", "What to deploy", [*_answer(data), *ranked, *_command(data)], other="overview", **answer),
        section("speedups", "Speed-up by configuration", _speedups(configurations)),
        section("latency", "Latency against batch size", [*_when(latency, _LATENCY), *(ranked if latency else [])]),
        section("shapes", "Latency and throughput by shape", [*_when(shapes, _SHAPES), *(ranked if shapes else [])]),
        section("throughput", "Throughput against latency", _when(measured, _THROUGHPUT)),
        section("memory", "Memory", _memory(configurations)),
        section("roofline", "Roofline", _when(configurations["tflops"].count(), roofline)),
        section("efficiency", "Minibatch efficiency", _when("efficiency" in made, _EFFICIENCY), other="largest-batch"),
        section("training", "Training", _when(trained, _TRAINING)),
        section("layers", "Layer by layer", _when(measured, _layers(data))),
        section("samples", "Raw samples", _when(measured, _samples(configurations))),
        section(
            "setup", "Set-up and break-even", [*_when(measured, _SETUP), *_when(walked, FIRST_CALL)], other="break-even"
        ),
        section("energy", "Energy and cost"),
        section("not-measured", "Not measured", every, open=True),
        section("warnings", "Warnings", _warnings(configurations, "warnings" in made), open=True),
        section("environment", "Machine and versions", environment, open=True, code=machine),
        section("method", "Method", METHOD),
    ]


def _machine(data: Data) -> str:
    names = list(data.environments)
    machines = ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")
    counts = ", ".join(f"{count(number)} {status}" for status, number in data.statuses.items())
    return f"{machines} · {count(sum(data.statuses.values()))} cases: {counts}"


def _answer(data: Data) -> list[str]:
    """How to read the answer."""
    configurations = data.configurations
    if configurations.is_empty():
        return ["No case succeeded; reasons below."]
    shape = ", shape" if charts.dimensions(configurations) else ""
    text = [f"The fastest configuration (an engine at a precision) of each model{shape} and batch size."]
    if configurations["precision"].n_unique() > 1:
        text[0] += " Where its precision is narrow, check its error."
    if data.failed.height or configurations["disturbed"].count():
        text.append(
            "A cross at the left of the chart has no factor; point at it for the reason, or see the tables below."
        )
    if configurations["rank"].has_nulls():
        text[0] += " Left out: int8 and fp8 without calibration data, whose error on your data nobody knows."
    return text


def _command(data: Data) -> list[str]:
    """Where to ask under limits, of each model."""
    command = shlex.join(["recommend", *(run.address for run in data.runs.runs)])
    text = f"To choose under limits of latency, throughput, memory, error or cost: `{PROGRAM} {command}`"
    return _when(len(text) < 300 and "`" not in command, text)


def group_sentences(configurations: pl.DataFrame) -> list[tuple[str, dict[str, Any]]]:
    """What the terminal says of each group, with what the group is."""
    sentences, everywhere = [], carried_by_all(configurations["warnings"])
    for key, group in configurations.group_by(KEY, maintain_order=True):
        about = {**dict(zip(KEY, key, strict=True)), "shape": group["shape"][0]}
        if text := group_sentence(about, group.drop_nulls("rank").to_dicts(), everywhere):
            # The sentence has the setting; a batch of a sweep differs from an ordinary case by its role.
            role = MARKS.get(group["role"][0]) if configurations["role"].n_unique() > 1 else None
            more = [role] if role else []
            more += [str(about["run"])] if about["run"] and configurations["run"].n_unique() > 1 else []
            sentences.append((text + (f" [{', '.join(more)}]" if more else ""), about))
    return sentences


def _warnings(configurations: pl.DataFrame, some: bool) -> list[str]:
    """Which of them every row carries, as its tables do not say again."""
    if not some:
        return ["No warnings."]
    of_all = carried_by_all(configurations["warnings"])
    return [f"On every row, and not in the tables again: {', '.join(sorted(of_all))}."] if of_all else []


def _speedups(configurations: pl.DataFrame) -> list[str]:
    """What a speed-up is relative to, and what its interval holds."""
    if configurations.is_empty():
        return []
    if configurations["speedup"].count() == 0:
        return ["No speed-ups: their base, eager in fp32 or for an ONNX file ort, was not measured."]
    calm = configurations.filter(pl.col("disturbed").is_null(), ~pl.col("is_base"), pl.col("speedup").is_not_null())
    kinds = set(calm["interval"].drop_nulls())
    if "between processes" in kinds:
        intervals = "Bars are 95 % intervals between processes, from the replicates."
    elif kinds:
        intervals = f"Bars are 95 % intervals. {WITHIN_PROCESS}"
    elif calm.is_empty():
        intervals = ""
    elif configurations["taken"].count():
        intervals = "No intervals: fewer than 30 independent samples. Raise `budget.seconds`."
    else:
        intervals = "No intervals: the raw samples are not with these results."
    lost = configurations.filter(pl.col("speedup").is_not_null(), pl.col("disturbed").is_not_null()).height
    of = counted(configurations["speedup"].count(), "configuration")
    not_drawn = f"Without a factor: {count(lost)} of {of}, disturbed or inconsistent, or their base was (column Note)."
    return [
        "A speed-up is the base's latency over the configuration's own. The steps go from the base through the "
        "narrower precisions to the tuned, compiled and exported runtimes.",
        *_when(intervals, intervals),
        *([not_drawn] if lost else []),
    ]


def _memory(configurations: pl.DataFrame) -> list[str]:
    """What the peak is, and which parts it has on this kind of device."""
    if configurations["peak_memory_mib"].count() == 0:
        return []
    if configurations["context_mib"].count() == 0:
        return [
            "On a CPU memory is the peak resident set while measuring, above what the process started with. It "
            "cannot be divided."
        ]
    return [
        "The peak, and what it is made of. Slack is what an allocator holds unused; library what no allocator knows "
        "of, such as loaded kernels."
    ]


def _layers(data: Data) -> str:
    if not data.layers:
        return f"No layers were timed; a run with `{PROGRAM} bench.yaml --profile` times each."
    return (
        "Layers were timed in calls of their own, with a profiler on. A row holds the exported nodes that some runtime "
        "runs as one, and the sum of each runtime's layers for them."
    )


def _samples(configurations: pl.DataFrame) -> str:
    if configurations["taken"].count() == 0:
        return "The raw samples are not with these results."
    return (
        f"Up to {TICKS} samples of each configuration, evenly spaced by rank, with the fastest and the slowest. "
        "Samples beyond the scale are drawn at its edge."
    )


def wall_time(runs: Runs) -> list[str]:
    times = [(run.name, run.environment["wall_seconds"]) for run in runs.runs if run.environment.get("wall_seconds")]
    return [f"{f'{name}: ' if len(runs.runs) > 1 else ''}{describe(seconds)}." for name, seconds in times]


def code(runs: Runs, labels: Mapping[str, str]) -> list[tuple[str, str, About]]:
    """Titles and texts: the commands and the job of each run; `labels` are what the rows call runs, by their ids."""
    found: list[tuple[str, str, About]] = []
    for run in runs.runs[:_MOST_JOBS]:
        called = {labels[run_id] for run_id in run.run_ids if run_id in labels}
        about = {"run": called.pop()} if len(called) == 1 else {}
        commands = [*(run.environment.get("earlier_commands") or []), run.environment.get("command")]
        text = "\n".join(shlex.join(map(str, words)) for words in commands if words)
        name = f" of {run.name}" if len(runs.runs) > 1 else ""
        if text:
            found.append((f"Command{name}", text, about))
        with contextlib.suppress(OSError):  # There may be none, as at an object store's address.
            job = read_text(Path(run.address) / "bench.yaml")
            found.append((f"Job{name} (bench.yaml, as resolved)", job, about))
    return found
