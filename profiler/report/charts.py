"""What enters: what the scales must hold. What leaves: every chart of a report, and which rows it is drawn from."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from profiler.report import chart_specs as specs
from profiler.report.chart_specs import MEMORY, SETUP, TRAINING, Domains, Row, Spec

MARGIN = 16
"""Pixels above the first row and below the last."""
_MODEL = {"run": 1, "pass": 1, "model": 1}
_ONE = {**_MODEL, "extra": 1}
_LARGEST = {**_MODEL, "batch_size": -1}
_BAR = (20, ("line", "batch_size"))


@dataclass(frozen=True)
class Chart:
    """One chart, drawn from the rows of its data set that have one of the fields `needs`.

    `keep`: of how many values of a key rows can stand in it together; of more those are kept that spread over them, or
    the last ones where it is negative. `data` names the set that it draws, and sets that it draws beside it. `step` are
    the pixels that each row of it takes, and the fields that tell these apart; None where the height is fixed.
    """

    name: str
    title: str
    spec: Spec
    needs: Sequence[str]
    keep: Mapping[str, int]
    step: tuple[int, Sequence[str]] | None = None
    data: Sequence[str] = ("lines",)


def make(domains: Domains) -> dict[str, Chart]:
    """Every chart, by name."""
    memory = specs.stacked(domains, MEMORY, "_mib", "Peak memory, MiB", "peak_memory_mib")
    training = specs.stacked(domains, TRAINING, "_ms", "One iteration, ms", "latency_ms")
    setup = specs.stacked(domains, SETUP, "_s", "Until the second call, s", "setup_s")
    each, sizes = {"run": 1, "pass": 1, "extra": 1}, {**_MODEL, "batch_size": 3}
    node = {**_ONE, "precision": 1, "batch_size": -1}
    over = specs.over_batches
    charts = [
        Chart(
            "overview", "The fastest of each", specs.overview(domains), ["speedup"], each, (20, ("model", "batch_size"))
        ),
        Chart("ladder", "Speed-ups", specs.ladder(), ["speedup"], {**sizes, "extra": 1}, (13, ("line", "batch_size"))),
        Chart(
            "latency", "Latency against batch size", over(domains, "latency_ms", "Latency, ms"), ["latency_ms"], _ONE
        ),
        Chart("throughput", "Throughput against latency", specs.throughput(domains), ["item_s"], _ONE),
        Chart("memory", "Parts of the peak", memory, ["peak_memory_mib"], _LARGEST, _BAR),
        Chart("roofline", "Roofline", specs.roofline(domains), ["intensity"], _ONE, None, ("lines", "roofs")),
        Chart("efficiency", "Time per item", over(domains, "item_ms", "Time per item, ms"), ["item_ms"], _ONE),
        Chart("training", "Parts of an iteration", training, TRAINING, sizes, _BAR),
        Chart("layers", "The longest", specs.layers(domains), ["ms"], node, (9, ("nodes", "variant")), ("layers",)),
        Chart("samples", "Samples", specs.samples(domains), ["ticks"], _LARGEST, _BAR),
        Chart("setup", "Seconds until the second call", setup, ["setup_s"], _LARGEST, _BAR),
        Chart("break-even", "When the set-up pays off", specs.break_even(domains), ["setup_s"], _LARGEST),
    ]
    curves = ("latency", "efficiency") if len(domains.batches) < 2 else ()
    return {chart.name: chart for chart in charts if chart.name not in curves}


def select(chart: Chart, rows: Iterable[Row]) -> list[Row]:
    """The rows that stand in the chart together, just as the page's script chooses them."""
    left = [row for row in rows if any(row[field] is not None for field in chart.needs)]
    for key, most in chart.keep.items():
        values = list(dict.fromkeys(row[key] for row in left))
        if key == "batch_size":
            values.sort()
        if len(values) > abs(most):
            kept = values[most:] if most < 0 else [values[place] for place in _spread(len(values), most)]
            left = [row for row in left if row[key] in kept]
    return left


def height(chart: Chart, rows: Iterable[Row]) -> int | None:
    """In pixels, where the rows make it."""
    if chart.step is None:
        return None
    pixels, fields = chart.step
    return pixels * len({tuple(row[field] for field in fields) for row in rows}) + MARGIN


def _spread(count: int, most: int) -> list[int]:
    return [i * (count - 1) // (most - 1) for i in range(most)] if most > 1 else [0]
