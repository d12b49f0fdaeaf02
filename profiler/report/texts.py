"""What enters: `Data`. What leaves: what the report's sections say beside their charts and tables; `…` is code."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import polars as pl

from profiler.report.data import KEY, TICKS, Data
from profiler.results import lines as table
from profiler.results.wall_time import describe
from profiler.stats.ratios import MARGIN_WORDS, Verdict

THROUGHPUT = (
    "A point on the front has no other that both answers sooner and gets more done. Which point of it is right depends "
    "on how long an answer may take."
)
EFFICIENCY = (
    "What an item costs, by how many go at once. Where the curve is flat the device is full: a larger batch only "
    "lengthens the wait."
)
TRAINING = "An iteration is a forward and a backward pass, and where the job asks for an optimizer its step."
SETUP = (
    "What it takes until a runtime is at full speed: exporting the network, compiling or building it, loading it, and "
    "its first call. A line pays off where the seconds that it saves have made up for that."
)
METHOD = (
    "Every case runs in a process of its own, one at a time (the batch sizes of a sweep share one); exports and "
    "reference outputs are made beforehand.",
    "Latency is the median time of one call: on a GPU between CUDA events around calls that follow each other without "
    "synchronizing, on a CPU on the host's clock. Device time is that of one call whose launches were all queued "
    "before its first kernel began. Copies of inputs and outputs are in neither.",
    "Throughput is that of calls back to back for half a second or more, the last synchronize included.",
    "The interval of a median is a 95 % block bootstrap within one process. The interval of a speed-up is within one "
    "process a side, and from three replicates a side on between processes; only then there is a verdict: "
    f"{', '.join(Verdict)}. A difference of up to {MARGIN_WORDS} does not count. Outliers are counted and never "
    "dropped.",
    "fp32 is true fp32, with TF32 off everywhere; tf32 is the same network with it on. Each inference row is compared "
    "with fp32 eager on the CPU (a user's ONNX file with ONNX Runtime there, its optimizations off): the relative "
    "error is the largest L2 distance over the outputs.",
    "Memory on a GPU is the most that was in use above what was in use before, as the driver tells it; on a CPU it is "
    "the peak resident set.",
    "FLOPs are those of convolutions and matrix products, two a multiply-add. The roofs are rates that this very "
    "machine reached in products and in a copy.",
    "Where there are replicates, each of them a process, a figure is the median over them.",
)


def answer(data: Data) -> list[str]:
    """How to read the answer, and where to ask under limits."""
    lines = data.lines
    if lines.is_empty():
        return ["No case gave figures; below stands why."]
    text = ["The fastest line of each model and batch size."]
    if lines["precision"].n_unique() > 1:
        text[0] += " It may be one of a narrow precision: mind its error."
    runs = " ".join(shlex.quote(run.address) for run in data.runs.runs)
    command = f"python -m profiler recommend {runs} --model {shlex.quote(str(lines['model'][0]))}"
    if len(command) < 250 and "`" not in command:
        text.append(f"Under limits of latency, throughput, memory, error or cost: `{command}`")
    return text


def speedups(data: Data) -> list[str]:
    """What a speed-up is over, and what its interval holds."""
    lines = data.lines
    if lines["speedup"].count() == 0:
        none = "There is no base here, neither eager in fp32 nor, for an ONNX file, ort: so there are no speed-ups."
        return [] if lines.is_empty() else [none]
    text = [
        "A speed-up is the base's latency over the line's own. Rungs go from the base through the narrower precisions "
        "to the tuned, compiled and exported runtimes."
    ]
    kinds = set(lines["interval"].drop_nulls())
    if "between processes" in kinds:
        text.append("Bars are 95 % intervals between processes, from the replicates.")
    elif kinds:
        text.append(
            "Bars are 95 % intervals within one process a side. Between processes figures differ more, so there is no "
            "verdict; `replicates: 3` in the job gives one."
        )
    else:
        lost = "the raw samples are not with these results"
        why = lost if data.drawn.is_empty() else "that takes 30 independent samples a side"
        text.append(f"No speed-up has an interval: {why}.")
    return text


def latency(data: Data) -> list[str]:
    sizes = data.lines["batch_size"].unique()
    if sizes.len() == 1:
        return [f"All was measured at batch size {sizes[0]}, so there is no curve."]
    return ["How long one call takes, by how many items it has. Both scales are logarithmic."] if sizes.len() else []


def memory(data: Data) -> list[str]:
    """What the peak is, and which parts it has on this kind of device."""
    if data.lines["peak_memory_mib"].count() == 0:
        return []
    if data.lines["context_mib"].count() == 0:
        return [
            "On a CPU it is the peak resident set while measuring, above what the process was born with. It cannot be "
            "divided."
        ]
    return [
        "The peak, and what it is made of. Slack is what an allocator holds unused; library what no allocator knows "
        "of, such as loaded kernels."
    ]


def roofline(data: Data, drawn: bool) -> list[str]:
    """How to read the roofline, or why there is none."""
    if data.lines["tflops"].count() == 0:
        return []
    if drawn:
        return [
            "No call can be faster than its FLOPs at the rate that the device reaches, nor than its bytes at the "
            "memory's rate: the lines. A point far below its roof waits for something else, most often for launches. "
            "Weights that stay in the cache can put a point above the slanted roof."
        ]
    roofs = any(environment.get("roofs") for environment in data.environments.values())
    lacking = "how many bytes a call moves is" if roofs else "the rates that the device itself reached, its roofs, are"
    return [f"There is no chart: {lacking} not in these results. The table has what is known."]


def layers(data: Data) -> list[str]:
    if data.lines.is_empty():
        return []
    if not data.layers:
        return ["No case was taken apart. A run also times every layer with `python -m profiler bench.yaml --profile`."]
    return [
        "Layers were timed in calls of their own, with a profiler on. A row holds the exported nodes that some runtime "
        "runs as one, and the sum of each runtime's layers for them."
    ]


def samples(data: Data) -> list[str]:
    if data.lines.is_empty():
        return []
    if data.drawn.is_empty():
        return ["The raw samples are not with these results."]
    return [
        f"Up to {TICKS} samples a line, evenly spaced by rank, the fastest and the slowest among them. What lies "
        "beyond the scale is set on its edge."
    ]


def sentences(lines: pl.DataFrame) -> list[tuple[str, dict[str, Any]]]:
    """What table.sentence says of each group, with what the group is."""
    found = []
    for key, group in lines.group_by(KEY, maintain_order=True):
        named = dict(zip(KEY, key, strict=True))
        said = table.sentence(named, group.to_dicts())
        if said:
            more = [str(named[name]) for name in ("extra", "run") if named[name] and lines[name].n_unique() > 1]
            found.append((said + (f" [{', '.join(more)}]" if more else ""), named))
    return found


def wall_time(data: Data) -> list[str]:
    """What each run's time went into."""
    runs = data.runs.runs
    told = [(run.name, run.environment["wall_seconds"]) for run in runs if run.environment.get("wall_seconds")]
    return [f"{f'{name}: ' if len(runs) > 1 else ''}{describe(seconds)}." for name, seconds in told]


def code(data: Data, most: int = 5) -> list[tuple[str, str]]:
    """Titles and texts: the commands and the job of each run, of at most so many."""
    found = []
    for run in data.runs.runs[:most]:
        commands = [*(run.environment.get("earlier_commands") or []), run.environment.get("command")]
        said = "\n".join(shlex.join(map(str, words)) for words in commands if words)
        name = f" of {run.name}" if len(data.runs.runs) > 1 else ""
        if said:
            found.append((f"Command{name}", said))
        job = Path(run.address) / "bench.yaml"
        if "://" not in run.address and job.is_file():
            found.append((f"Job{name} (bench.yaml, as resolved)", job.read_text(encoding="utf-8", errors="replace")))
    return found
