"""Say in sentences what a report's figures come to: the headline, the lead, and what each chart shows of a model."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import polars as pl

from profiler.job.case import setting_words
from profiler.report import charts, tables
from profiler.report.chart_specs import MEMORY, TRAINING
from profiler.report.data import KEY, Data
from profiler.results.speedups import geometric_mean
from profiler.results.warning_kinds import disturbed, was_disturbed, without_factor
from profiler.tables.numbers import counted, grouped, percent, rounded, significant, times

Row = Mapping[str, Any]
Claim = tuple[str, Sequence[Row]]
"""A sentence without its full stop, and the rows whose times it rests on."""
Finding = dict[str, Any]
"""`run`, `model`, `pass`, `shape` where there are several, and the `text` that holds for them."""


@dataclass(frozen=True)
class Lead:
    """What the fastest configurations gain at one batch size: where, how many times, and over what."""

    where: str
    ratio: str
    over: str

    def __str__(self) -> str:
        return f"{self.where}: {self.ratio} {self.over}"


def headline(configurations: pl.DataFrame) -> str:
    """Like "compiled fp16 is the fastest for 5 of 6 models and batch sizes"."""
    every = _inference_first(configurations.filter(rank=1))
    if every.is_empty():
        return "No case succeeded"
    best = every.filter(pl.col("disturbed").is_null())
    if best.is_empty():
        kinds = ", ".join(every["disturbed"]).split(", ")
        return f"No certain answer: what was fastest, or its base, {was_disturbed(kinds)}"
    lost = every.height - best.height
    ((name, count),) = Counter(best["configuration"]).most_common(1)
    doubt = f"; {lost} more cannot be judged" if lost and count < best.height else ""
    rivals = configurations.filter(pl.col("rank") > 1, pl.col("own_disturbed").is_not_null())
    if others := rivals.join(best, on=KEY, how="semi", nulls_equal=True).height:
        doubt += f"; {counted(others, 'configuration')} that {'was' if others == 1 else 'were'} disturbed may be faster"
    if every.height == 1:
        return f"{name} is the fastest{doubt}"
    run, shape = ("run, " if every["run"].n_unique() > 1 else ""), every["shape"].n_unique() > 1
    groups = f"{run.replace('run', 'runs')}models{', shapes' * shape} and batch sizes"
    if count < best.height:
        of = f"{count} of {best.height} {groups}"
    elif lost:
        of = f"the {count} of {every.height} {groups} that can be judged"
    else:
        of = f"every {run}model{', shape' * shape} and batch size"
    return (
        f"{name} is the fastest for {of}" + (" in inference" if configurations["pass"].n_unique() > 1 else "") + doubt
    )


def lead(configurations: pl.DataFrame) -> list[Lead]:
    """What the fastest configurations gain, by batch size: geometric means over the models, and the range."""
    rivals = configurations.filter((pl.len().over(KEY) > 1) | ~pl.col("is_base"))  # A base is as fast as itself.
    best = _inference_first(rivals.filter(pl.col("speedup").is_not_null(), pl.col("disturbed").is_null(), rank=1))
    leads = []
    for (run, pass_, batch, _, setting, base), part in best.group_by(
        ["run", "pass", "batch_size", "extra", "setting", "base"], maintain_order=True
    ):
        ratios = part["speedup"].to_list()
        mean = part.select(geometric_mean(pl.col("speedup"))).item()
        where = [f"batch {batch}", *setting_words(str(setting))] + ([str(run)] if best["run"].n_unique() > 1 else [])
        over = f"geometric mean of {part.height} models" if part.height > 1 else str(part["model"][0])
        spread = f", which range from {times(min(ratios))} to {times(max(ratios))}" if part.height > 1 else ""
        training = "training, " if pass_ == "training" and best["pass"].n_unique() > 1 else ""
        factor, than = times(mean), f"as fast as {base}: {over}{spread}"
        if part["is_base"].all():  # It is as fast as itself, which is no gain.
            factor, than = "nothing faster", f"than {base}: {over.replace('geometric mean of', 'all')}"
        leads.append(Lead(f"{training}{', '.join(where)}", factor, than))
    return leads


def findings(data: Data) -> dict[str, list[Finding]]:
    """By chart, a sentence for each run, model, pass and shape that it can show."""
    sizes = enumerate(charts.by_size(data.configurations).items())
    return {
        **{
            name: _of_each(data.configurations.drop_nulls(needs).to_dicts(), sentence, "shape")
            for name, (needs, sentence) in _SENTENCES.items()
        },
        "layers": _longest_layers(data),
        **{f"shapes-{number}-latency": _of_each(rows, partial(_over_sizes, name)) for number, (name, rows) in sizes},
    }


def _of_each(rows: Sequence[Row], sentence: Callable[[Sequence[Row]], Claim | None], *more: str) -> list[Finding]:
    """What the rows show of each run, model and pass, and of `more` keys."""
    keys = ("run", "model", "pass", *more)
    parts = grouped((tuple(row[key] for key in keys), row) for row in rows)
    claims = {key: claim for key, part in parts.items() if (claim := sentence(part))}
    return [
        {**dict(zip(keys, key, strict=True)), "text": f"{text}{_doubt(named)}."}
        for key, (text, named) in claims.items()
    ]


def _doubt(named: Sequence[Row]) -> str:
    """Which rows that a sentence rests on were disturbed, like "; ort fp32 at batch 1 was inconsistent"."""
    doubted = [row for row in named if row["own_disturbed"]]
    who = disturbed((f"{row['configuration']} at batch {row['batch_size']}", row["warnings"]) for row in doubted)
    return f"; {who}" if who else ""


def _inference_first(best: pl.DataFrame) -> pl.DataFrame:
    """Only the rows of inference where there are any: it is what gets deployed."""
    inference = best.filter(pl.col("pass") == "inference")
    return best if inference.is_empty() else inference


def _at(rows: Sequence[Row], batch: int) -> list[Row]:
    return [row for row in rows if row["batch_size"] == batch]


def _at_largest_batch(rows: Sequence[Row], by: str = "ranked_ms") -> tuple[int, list[Row]]:
    """The largest batch size and its rows, those with the least of a figure first."""
    batch = max(row["batch_size"] for row in rows)
    return batch, sorted(_at(rows, batch), key=lambda row: row[by])


def _speedups(rows: Sequence[Row]) -> Claim | None:
    """What every step brings at the largest batch: the precision in the base's engine, then each engine at its best."""
    # With several optimizers each has a base of its own; the chart shows one of them.
    batch, group = _at_largest_batch([row for row in rows if row["extra"] == rows[0]["extra"]])
    top, base = group[0], next((row for row in group if row["is_base"]), None)
    if top["base"] is None or (top is base and len(group) < 2):
        return None
    engines: dict[str, Row] = {}
    for row in group:  # The fastest first.
        engines.setdefault(row["variant"], row)
    variant = base["variant"] if base else None  # The base of a model with a reference is that one's.
    of_base = [row for row in group if row["variant"] == variant and row is not base]
    others = [row for name, row in engines.items() if name != variant]
    steps = sorted(of_base, key=lambda row: row["step"]) + sorted(others, key=lambda row: row["step"])

    def factor(row: Row, sign: str = "") -> str:
        if row["own_disturbed"]:
            return f" {was_disturbed(row['warnings'])}"
        return "" if row["disturbed"] else f" {sign}{times(row['speedup'])}"

    parts = [f"{row['configuration']}{factor(row)}" for row in steps]
    best = f"the fastest is {top['configuration']}{', which' if top['own_disturbed'] else ''}{factor(top, 'at ')}"
    best = best if top is not base else "nothing is faster"
    kinds = top["base_warnings"] or []
    doubt = f"; {disturbed([(top['base'], kinds)])}" if without_factor(kinds) else ""
    return f"Over {top['base']} at batch {batch}: {', '.join(parts)}; {best}{doubt}", []


def _latency(rows: Sequence[Row]) -> Claim | None:
    ends = [end(row["batch_size"] for row in rows) for end in (min, max)]
    return _growth(rows, "batch_size", "batch", f"batch {ends[1]}", f"{ends[1] / ends[0]:g} times the items")


def _growth(rows: Sequence[Row], key: str, called: str, where: str, what: str) -> Claim | None:
    """What the fastest row `where` the key is largest takes there and where it is smallest, and how many times as much
    for `what`; without a factor where either was disturbed."""
    first, last = (end(row[key] for row in rows) for end in (min, max))
    best = min((row for row in rows if row[key] == last), key=lambda row: row["ranked_ms"])
    start = next((r for r in rows if r[key] == first and r["configuration"] == best["configuration"]), None)
    if first == last or start is None:
        return None
    a, b = start["latency_ms"], best["latency_ms"]
    calm = not (start["own_disturbed"] or best["own_disturbed"])
    factor = f": {times(b / a)} the time for {what}" if calm else ""
    text = f"{best['configuration']}, the fastest at {where}, takes {significant(a)} ms at {called} {first}"
    return f"{text} and {significant(b)} ms at {called} {last}{factor}", [start, best]


def _throughput(rows: Sequence[Row]) -> Claim | None:
    front = sorted((row for row in rows if row["front"]), key=lambda row: row["latency_ms"])
    if len(rows) < 2:
        return None

    def point(row: Row) -> str:
        figures = f"{significant(row['latency_ms'])} ms, {significant(1 / row['item_s'])} items/s"
        return f"{row['configuration']} at batch {row['batch_size']} ({figures})"

    if len(front) == 1:
        return f"One point has both the lowest latency and the highest throughput: {point(front[0])}", front
    return f"The front has {len(front)} of {len(rows)} points, from {point(front[0])} to {point(front[-1])}", front


def _memory(rows: Sequence[Row]) -> Claim:
    batch, group = _at_largest_batch(rows, "peak_memory_mib")
    least, most = group[0], group[-1]
    parts = {name: least[name] for name in MEMORY[:-1] if least[name] is not None}
    part = ""
    if parts:
        largest = max(parts, key=lambda name: parts[name])
        what = {"context_mib": "CUDA context", "library_mib": "libraries' own"}.get(largest, largest[:-4])
        part = f" ({what}, its largest part: {significant(parts[largest])} MiB)"
    others = (
        f"; {most['configuration']} needs most, {significant(most['peak_memory_mib'])} MiB" if most is not least else ""
    )
    peak = f"{significant(least['peak_memory_mib'])} MiB"
    return f"At batch {batch} {least['configuration']} needs least memory, {peak}{part}{others}", []


def _roofline(rows: Sequence[Row]) -> Claim:
    low, best = (end(rows, key=lambda row: row["fraction_of_peak"]) for end in (min, max))
    closest, lowest = (f"{row['configuration']} at batch {row['batch_size']}" for row in (best, low))
    shares = [f"{significant(100 * row['fraction_of_peak'])} %" for row in (best, low)]
    text = f"{closest} comes closest to its roof, with {shares[0]} of it; {lowest} reaches {shares[1]}"
    return text, [best, low]


def _efficiency(rows: Sequence[Row]) -> Claim | None:
    first, best = min(row["batch_size"] for row in rows), min(rows, key=lambda row: row["item_ms"])
    if all(row["batch_size"] == first for row in rows):
        return None
    smallest = next((row for row in _at(rows, first) if row["configuration"] == best["configuration"]), best)
    calm = smallest is not best and not (smallest["own_disturbed"] or best["own_disturbed"])
    gain = f", {times(smallest['item_ms'] / best['item_ms'])} faster than at batch {first}" if calm else ""
    ms = significant(best["item_ms"])
    text = f"The time per item is lowest with {best['configuration']} at batch {best['batch_size']}: {ms} ms{gain}"
    return text, [best, smallest]


def _training(rows: Sequence[Row]) -> Claim:
    batch, (best, *_) = _at_largest_batch(rows)
    parts = {name: best[name] for name in TRAINING if best[name] is not None}
    total = sum(parts.values())
    shares = ", ".join(f"{name[:-3].replace('_', ' ')} {percent(ms / total)} %" for name, ms in parts.items())
    return f"{best['configuration']}, the fastest at batch {batch}, takes {significant(total)} ms: {shares}", [best]


def _samples(rows: Sequence[Row]) -> Claim:
    """The widest and the narrowest of the largest batch."""

    def width(row: Row) -> float:
        return float((row["ms_p75"] - row["ms_p25"]) / row["latency_ms"])

    batch, group = _at_largest_batch(rows)
    narrow, wide = min(group, key=width), max(group, key=width)
    share = f"{percent(width(wide), 1)} % of the median"
    text = f"At batch {batch} the middle half of the samples of {wide['configuration']} spans {share}"
    text += f", that of {narrow['configuration']} {percent(width(narrow), 1)} %" if len(group) > 1 else ""
    return text, [wide, narrow]


def _setup(rows: Sequence[Row]) -> Claim:
    batch, (best, *_) = _at_largest_batch(rows)
    once, start = significant(best["once_s"]), significant(best["start_s"])
    needs = f"needs {once} s once and {start} s at every start"
    return f"{best['configuration']}, the fastest at batch {batch}, {needs}", [best]


def _break_even(rows: Sequence[Row]) -> Claim:
    batch = max(row["batch_size"] for row in rows)
    steps = [row for row in _at(rows, batch) if row["best_from_items"] is not None]
    first, *more = sorted(steps, key=lambda row: row["best_from_items"])
    if not more:
        return f"At batch {batch} {first['configuration']} is done first with any number of items", steps
    parts = [f"{row['configuration']} from {rounded(row['best_from_items'])} items on" for row in more]
    return f"At batch {batch} {first['configuration']} is done first with few items, {', '.join(parts)}", steps


def _over_sizes(name: str, rows: Sequence[Row]) -> Claim | None:
    batch = min(row["batch_size"] for row in rows)
    rows = [row for row in rows if row["batch_size"] == batch and row["rest"] == rows[0]["rest"]]
    first, last = (end(row["size"] for row in rows) for end in (min, max))
    claim = _growth(rows, "size", name, f"{name} {last} and batch {batch}", f"{last / first:g} times the size")
    if claim is None:
        return None
    text, named = claim
    return text, [{**row, "configuration": f"{row['configuration']}, {name} {row['size']},"} for row in named]


def _longest_layers(data: Data) -> list[Finding]:
    """Of each model the group of nodes that takes longest, in the first of its cells, which the chart shows."""
    longest: dict[tuple[Any, ...], Finding] = {}
    for cell in data.layers:
        key = {name: cell[0].row[name] for name in ("run", "model", "pass", "shape")}
        every = [(layer, variant) for layer in tables.layers(cell) for variant in layer.ms]
        if tuple(key.values()) in longest or not every:
            continue
        layer, variant = max(every, key=lambda of: of[0].ms[of[1]])
        ms, total = layer.ms[variant], next(case.ms for case in cell if case.row["variant"] == variant)
        if not total:  # As in a damaged table.
            continue
        share = f"{significant(100 * ms / total)} % of the sum of its layers"
        text = f"{layer.nodes} takes longest: {significant(ms)} ms in {variant}, {share}."
        longest[tuple(key.values())] = {**key, "text": text}
    return list(longest.values())


_SENTENCES: dict[str, tuple[str, Callable[[Sequence[Row]], Claim | None]]] = {
    "speedups": ("speedup", _speedups),
    "latency": ("latency_ms", _latency),
    "throughput": ("item_s", _throughput),
    "memory": ("peak_memory_mib", _memory),
    "efficiency": ("item_ms", _efficiency),
    "training": ("forward_ms", _training),
    "samples": ("taken", _samples),
    "setup": ("set_up_s", _setup),
    "break-even": ("set_up_s", _break_even),
    "roofline": ("fraction_of_peak", _roofline),
}
"""By chart the figure that a row needs to be drawn, and the sentence of such rows."""
