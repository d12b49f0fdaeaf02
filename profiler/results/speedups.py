"""What enters: lines of a table and their samples. What leaves: how many times faster each is, and what is certain."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from profiler.stats.ratios import (
    REPLICATES_FOR_A_VERDICT,
    Side,
    Verdict,
    ratio_between,
    ratio_interval,
    verdict,
)
from profiler.stats.samples import Floats, Interval

GROUP = ["model", "pass", "batch_size", "extra"]

Line = dict[str, Any]
"""A row of table.summary: figures in milliseconds, `clock`, and as `case_id` the list of its replicates."""
Series = Mapping[tuple[str, str], Floats]
"""Samples in milliseconds by case and clock."""
Sides = Callable[[tuple[Any, ...], str, int], Side]
"""The samples of some cases on a clock, as a side of ratios with that seed."""

VERDICT_CLOCKS = {"event": ("gpu", 0.01), "host": ("host", 0.03)}
"""By headline clock the clock of verdicts, and the margin within which they see no difference.

On CUDA a verdict is on device time, which the host's launches do not blur; a CPU's figures differ more by themselves.
"""


@dataclass(frozen=True)
class Comparison:
    """How many times faster a line is than another, on the headline clock and on the verdict's, with 95 % intervals.

    The intervals are between processes where there are three replicates a side; only then there is a verdict, and the
    ratios are of geometric means, which lie within such an interval as ratios of medians need not.
    """

    ratio: float | None
    interval: Interval | None
    device_ratio: float | None
    device_interval: Interval | None
    between: bool
    verdict: Verdict | None

    def columns(self) -> Line:
        """As columns of table.summary."""
        headline, device = self.interval, self.device_interval
        kind = "between processes" if self.between else "within process"
        return {
            "speedup": self.ratio,
            "speedup_low": headline.low if headline else None,
            "speedup_high": headline.high if headline else None,
            "interval": kind if headline or device else None,
            "device_speedup": self.device_ratio,
            "device_speedup_low": device.low if device else None,
            "device_speedup_high": device.high if device else None,
            "verdict": self.verdict,
        }


def compare(base: Line, line: Line, sides: Sides) -> Comparison:
    """How many times faster `line` is than `base`."""
    between = _replicated(base, line)
    clock = line["clock"]
    device, margin = VERDICT_CLOCKS[clock]

    def on(clock: str, column: str) -> tuple[float | None, Interval | None]:
        of_base, of_line = sides(tuple(base["case_id"]), clock, 1), sides(tuple(line["case_id"]), clock, 1001)
        ratio = ratio_between(of_base, of_line) if between else None
        if ratio is None and None not in (base[column], line[column]):
            ratio = base[column] / line[column]
        return ratio, ratio_interval(of_base, of_line)

    ratio, headline = on(clock, "latency_ms")
    device_ratio, on_device = (ratio, headline) if device == clock else on(device, f"{device}_ms")
    judged = verdict(on_device, margin) if between and on_device else None
    return Comparison(ratio, headline, device_ratio, on_device, between, judged)


def speedups(lines: Sequence[Line], series: Series) -> list[Line]:
    """For each of `lines` its comparison with its group's base, as columns; nothing where the group has none.

    A group's fastest line says in `indistinguishable_from` whether replicates do not tell it from the runner-up.
    """

    @cache
    def sides(cases: tuple[str, ...], clock: str, seed: int) -> Side:
        return Side([series.get((case_id, clock), np.empty(0)) for case_id in cases], seed)

    found: list[Line] = [{} for _ in lines]
    groups: dict[tuple[Any, ...], list[int]] = {}
    for i, line in enumerate(lines):
        groups.setdefault(tuple(line[k] for k in GROUP), []).append(i)
    for members in groups.values():
        members.sort(key=lambda i: lines[i]["latency_ms"])
        base = next((lines[i] for i in members if lines[i]["is_base"]), None)
        if base is not None:
            for i in members:
                found[i] = _against_base(base, lines[i], sides)
        best, *others = (lines[i] for i in members)
        if others and _replicated(best, others[0]) and compare(others[0], best, sides).verdict == "indistinguishable":
            found[members[0]]["indistinguishable_from"] = f"{others[0]['variant']} {others[0]['precision']}"
    return found


def _replicated(*lines: Line) -> bool:
    return min(len(line["case_id"]) for line in lines) >= REPLICATES_FOR_A_VERDICT


def _against_base(base: Line, line: Line, sides: Sides) -> Line:
    name = f"{base['precision']} {base['variant']}"
    if line is base:
        return {"base": name, "speedup": 1.0, "device_speedup": 1.0}
    return {"base": name, **compare(base, line, sides).columns()}
