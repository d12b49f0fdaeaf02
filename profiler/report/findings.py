"""What enters: the lines of a report. What leaves: sentences, what each chart shows of a model and what all say."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import polars as pl

from profiler.job.case import setting_words
from profiler.report.chart_specs import MEMORY, TRAINING
from profiler.report.content import layer_rows
from profiler.report.data import KEY, Data
from profiler.tables.numbers import percent, rounded, significant, times

Row = Mapping[str, Any]
Finding = dict[str, Any]
"""`run`, `model`, `pass` and the `text` that holds for them."""


def headline(lines: pl.DataFrame) -> str:
    """Like "compiled fp16 is the fastest for 5 of 6 models and batch sizes"."""
    best = _inference_first(lines.filter(rank=1))
    if best.is_empty():
        return "No case gave figures"
    counts = Counter(best["line"]).most_common()
    name, count = counts[0]
    if best.height == 1:
        return f"{name} is the fastest"
    run = "run, " if best["run"].n_unique() > 1 else ""
    some = f"{count} of {best.height} {run.replace('run', 'runs')}models and batch sizes"
    of = f"every {run}model and batch size" if count == best.height else some
    return f"{name} is the fastest for {of}" + (" in inference" if lines["pass"].n_unique() > 1 else "")


def lead(lines: pl.DataFrame) -> list[str]:
    """What the fastest lines gain, by batch size: geometric means over the models, and the range."""
    rivals = lines.filter(pl.len().over(KEY) > 1)  # What ran alone is as fast as itself.
    best = _inference_first(rivals.filter(pl.col("speedup").is_not_null(), rank=1))
    said = []
    for (run, pass_, batch, _, setting, base), part in best.group_by(
        ["run", "pass", "batch_size", "extra", "setting", "base"], maintain_order=True
    ):
        ratios = part["speedup"].to_list()
        mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
        where = [f"batch {batch}"] + setting_words(str(setting)) + ([str(run)] if best["run"].n_unique() > 1 else [])
        over = f"geometric mean of {part.height} models" if part.height > 1 else str(part["model"][0])
        spread = f", which range from {times(min(ratios))} to {times(max(ratios))}" if part.height > 1 else ""
        training = "training, " if pass_ == "training" and best["pass"].n_unique() > 1 else ""
        said.append(f"{training}{', '.join(where)}: {times(mean)} as fast as {base}: {over}{spread}")
    return said


def findings(data: Data) -> dict[str, list[Finding]]:
    """By chart, a sentence for each run, model and pass that it can stand for."""
    found: dict[str, list[Finding]] = {name: [] for name in _SENTENCES}
    for (run, model, pass_), part in data.lines.group_by(["run", "model", "pass"], maintain_order=True):
        rows = part.to_dicts()
        for name, sentence in _SENTENCES.items():
            if said := sentence(rows):
                found[name].append({"run": run, "model": model, "pass": pass_, "text": said})
    return found | {"samples": _spreads(data), "layers": _longest_layers(data)}


def _inference_first(best: pl.DataFrame) -> pl.DataFrame:
    """Of inference alone where there is any: it is what gets deployed."""
    inference = best.filter(pl.col("pass") == "inference")
    return best if inference.is_empty() else inference


def _by_batch(rows: Sequence[Row]) -> dict[int, list[Row]]:
    found: dict[int, list[Row]] = {}
    for row in rows:
        found.setdefault(row["batch_size"], []).append(row)
    return found


def _ladder(rows: Sequence[Row]) -> str | None:
    """What every step brings at the largest batch: the precision in the base's engine, then each engine at its best."""
    # With several optimizers each has a base of its own; the chart shows one of them.
    rows = [row for row in rows if row["speedup"] is not None and row["extra"] == rows[0]["extra"]]
    batch, group = max(_by_batch(rows).items(), default=(0, []))
    base = next((row for row in group if row["is_base"]), None)
    if base is None or len(group) < 2:
        return None
    steps = [row for row in group if row["variant"] == base["variant"] and row is not base]
    engines: dict[str, Row] = {}
    for row in sorted(group, key=lambda row: row["rung"]):
        if row["variant"] != base["variant"]:
            known = engines.get(row["variant"])
            engines[row["variant"]] = row if known is None or row["latency_ms"] < known["latency_ms"] else known
    steps = sorted(steps, key=lambda row: row["rung"]) + list(engines.values())
    top = min(group, key=lambda row: row["latency_ms"])
    parts = [f"{row['line']} {times(row['speedup'])}" for row in steps]
    said = f"the top rung is {top['line']} at {times(top['speedup'])}" if top is not base else "no rung is above it"
    return f"Over {base['base']} at batch {batch}: {', '.join(parts)}; {said}."


def _latency(rows: Sequence[Row]) -> str | None:
    sizes = _by_batch(rows)
    if len(sizes) < 2:
        return None
    first, last = min(sizes), max(sizes)
    name = min(sizes[last], key=lambda row: row["latency_ms"])["line"]
    ends = [next((row for row in sizes[size] if row["line"] == name), None) for size in (first, last)]
    if ends[0] is None or ends[1] is None:
        return None
    a, b = (end["latency_ms"] for end in ends if end)
    return (
        f"{name}, the fastest at batch {last}, takes {significant(a)} ms at batch {first} and {significant(b)} ms at "
        f"batch {last}: {times(b / a)} the time for {last / first:g} times the items."
    )


def _throughput(rows: Sequence[Row]) -> str | None:
    front = sorted((row for row in rows if row["front"]), key=lambda row: row["latency_ms"])
    if len(rows) < 2:
        return None

    def point(row: Row) -> str:
        figures = f"{significant(row['latency_ms'])} ms, {significant(1 / row['item_s'])} items/s"
        return f"{row['line']} at batch {row['batch_size']} ({figures})"

    if len(front) == 1:
        return f"One point beats all others in both: {point(front[0])}."
    return f"The front has {len(front)} of {len(rows)} points, from {point(front[0])} to {point(front[-1])}."


def _memory(rows: Sequence[Row]) -> str | None:
    known = [row for row in rows if row["peak_memory_mib"] is not None]
    if not known:
        return None
    batch = max(row["batch_size"] for row in known)
    group = sorted((row for row in known if row["batch_size"] == batch), key=lambda row: row["peak_memory_mib"])
    least, most = group[0], group[-1]
    said = f"At batch {batch} {least['line']} needs least, {significant(least['peak_memory_mib'])} MiB"
    if most is not least:
        said += f", and {most['line']} most, {significant(most['peak_memory_mib'])} MiB"
    parts = {name: least[name] for name in MEMORY[:-1] if least[name] is not None}
    if parts:
        largest = max(parts, key=lambda name: parts[name])
        what = {"context_mib": "CUDA context", "library_mib": "libraries' own"}.get(largest, largest[:-4])
        said += f"; the largest part of the least is the {what}, {significant(parts[largest])} MiB"
    return said + "."


def _roofline(rows: Sequence[Row]) -> str | None:
    known = [row for row in rows if row["fraction_of_peak"] is not None]
    if not known:
        return None
    best = max(known, key=lambda row: row["fraction_of_peak"])
    low = min(known, key=lambda row: row["fraction_of_peak"])
    return (
        f"{best['line']} at batch {best['batch_size']} comes closest to its roof, with "
        f"{significant(100 * best['fraction_of_peak'])} % of it; {low['line']} at batch {low['batch_size']} reaches "
        f"{significant(100 * low['fraction_of_peak'])} %."
    )


def _efficiency(rows: Sequence[Row]) -> str | None:
    sizes = _by_batch(rows)
    if len(sizes) < 2:
        return None
    best = min(rows, key=lambda row: row["item_ms"])
    alone = [row for row in sizes[min(sizes)] if row["line"] == best["line"]]
    gain = f", {times(alone[0]['item_ms'] / best['item_ms'])} less than at batch {min(sizes)}" if alone else ""
    gain = "" if alone and alone[0] is best else gain
    ms = significant(best["item_ms"])
    return f"An item costs least with {best['line']} at batch {best['batch_size']}: {ms} ms{gain}."


def _training(rows: Sequence[Row]) -> str | None:
    known = [row for row in rows if row["pass"] == "training" and row["forward_ms"]]
    if not known:
        return None
    best = min(known, key=lambda row: (-row["batch_size"], row["latency_ms"]))
    parts = {name: best[name] for name in TRAINING if best[name] is not None}
    total = sum(parts.values())
    shares = ", ".join(f"{name[:-3].replace('_', ' ')} {percent(ms / total)} %" for name, ms in parts.items())
    return (
        f"{best['line']}, the fastest at batch {best['batch_size']}, spends its {significant(total)} ms so: {shares}."
    )


def _setup(rows: Sequence[Row]) -> str | None:
    known = [row for row in rows if row["setup_s"] is not None]
    if not known:
        return None
    batch = max(row["batch_size"] for row in known)
    best = min((row for row in known if row["batch_size"] == batch), key=lambda row: row["latency_ms"])
    return (
        f"{best['line']}, the fastest at batch {batch}, needs {significant(best['setup_s'])} s before its second call."
    )


def _break_even(rows: Sequence[Row]) -> str | None:
    known = [row for row in rows if row["setup_s"] is not None]
    if not known:
        return None
    batch = max(row["batch_size"] for row in known)
    steps = [row for row in known if row["batch_size"] == batch and row["best_from_items"] is not None]
    steps.sort(key=lambda row: row["best_from_items"])
    if len(steps) == 1:
        return f"At batch {batch} {steps[0]['line']} is the quickest to any number of items."
    parts = [f"from {rounded(row['best_from_items'])} items on {row['line']}" for row in steps[1:]]
    return f"At batch {batch} {steps[0]['line']} is done first with few items, {', '.join(parts)}."


def _spreads(data: Data) -> list[Finding]:
    """Of each model the widest and the narrowest line at its largest batch."""
    found = []
    drawn = data.lines.join(
        data.drawn, on=[*KEY, "variant", "precision"], how="inner", nulls_equal=True, maintain_order="left"
    )
    for (run, model, pass_), part in drawn.group_by(["run", "model", "pass"], maintain_order=True):
        rows = part.filter(pl.col("batch_size") == pl.col("batch_size").max()).with_columns(
            width=(pl.col("ms_p75") - pl.col("ms_p25")) / pl.col("latency_ms")
        )
        narrow, wide = (rows.sort("width").row(place, named=True) for place in (0, -1))
        said = f"At batch {wide['batch_size']} the middle half of the samples of {wide['line']} spans"
        said += f" {percent(wide['width'], 1)} % of the median"
        if rows.height > 1:
            said += f", that of {narrow['line']} {percent(narrow['width'], 1)} %"
        found.append({"run": run, "model": model, "pass": pass_, "text": f"{said}."})
    return found


def _longest_layers(data: Data) -> list[Finding]:
    """Of each model the group of nodes that takes longest, in that of its cells which the chart shows."""
    found: dict[tuple[Any, ...], Finding] = {}
    for cell in data.layers:
        row = cell[0].row
        key = (row["run"], row["model"], row["pass"])
        groups = layer_rows(cell)
        if key in found or not groups:
            continue
        times = [(name, ms, group) for group in groups for name, ms in group.items() if name.startswith("ms_")]
        name, ms, group = max(times, key=lambda of: of[1])
        case = next(case for case in cell if f"ms_{case.row['variant']}" == name)
        longest = f"{group['nodes']} takes longest: {significant(ms)} ms in {case.row['variant']}"
        said = f"{longest}, {significant(100 * ms / case.ms)} %"
        found[key] = {"run": key[0], "model": key[1], "pass": key[2], "text": f"{said} of the sum of its layers."}
    return list(found.values())


_SENTENCES: dict[str, Callable[[Sequence[Row]], str | None]] = {
    "ladder": _ladder,
    "latency": _latency,
    "throughput": _throughput,
    "memory": _memory,
    "roofline": _roofline,
    "efficiency": _efficiency,
    "training": _training,
    "setup": _setup,
    "break-even": _break_even,
}
