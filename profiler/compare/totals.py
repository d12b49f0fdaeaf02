"""Sum up a comparison: geometric means, and who is how many times faster, in words.

The sentences are worded like those of the published benchmarks: "Across all models, the Quadro M4000 is 1.05x to 1.25x
faster than Tesla K80".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import polars as pl

from profiler.results.speedups import geometric_mean
from profiler.stats.ratios import MARGINS, Verdict
from profiler.tables.numbers import percent, times


@dataclass(frozen=True, kw_only=True)
class Total:
    """What the cells of a side in one pass say together.

    `ratio`, `device_ratio` and `memory_ratio` are geometric means over the cells that both sides ran; `low` and `high`
    are the least and the greatest geometric mean of a model's ratios. Both ran `models`, of the `of` that either has.
    `verdicts` counts the cells, and `margin` is the difference that does not count.
    """

    base: str
    side: str
    pass_: str
    cells: int
    ratio: float
    device_ratio: float | None
    memory_ratio: float | None
    low: float
    high: float
    models: tuple[str, ...]
    of: int
    verdicts: Mapping[Verdict, int]
    margin: float

    def sentence(self, start: str = "") -> str:
        """Like "Across all models, B is 2.2× to 2.5× faster than A."; `start` comes first, such as "In training"."""
        if not self.models:  # They are the sides.
            return f"{start}, {self._relation()}." if start else f"{self._relation()}."
        where = "across all models" if self.of > 1 else f"for {self.models[0]}"
        if len(self.models) < self.of:
            where = f"across the {len(self.models)} models that both ran"
            where = where if len(self.models) > 1 else f"for {self.models[0]}, the one model that both ran"
        where = f"{start}, {where}" if start else where[0].upper() + where[1:]
        return f"{where}, {self._relation()}."

    def _relation(self) -> str:
        for verdict, count in self.verdicts.items():
            if count == self.cells and not verdict.differs:
                return f"{self.side} is {verdict.relation} {self.base} ({times_range(self.low, self.high)})"
        if 1 / (1 + self.margin) <= self.low and self.high <= 1 + self.margin:
            return f"{self.side} is within {percent(self.margin)} % of {self.base}"
        if self.low >= 1:
            return f"{self.side} is {times_range(self.low, self.high)} faster than {self.base}"
        if self.high <= 1:
            return f"{self.side} is {times_range(1 / self.high, 1 / self.low)} slower than {self.base}"
        ends = f"from {times(1 / self.low)} slower to {times(self.high)} faster"
        return f"{self.side} is {ends} than {self.base}"


def totals(cells: pl.DataFrame) -> list[Total]:
    """One for each side and pass in which a cell of `compare` has a ratio, in the cells' order.

    Cells that were disturbed do not count: their ratio is no ratio of these two.
    """
    cells = cells.filter(pl.col("disturbed").is_null())
    both = cells.group_by("base", "side").agg(pl.struct("pass", "model").unique())
    of = {(base, side): models for base, side, models in both.iter_rows()}
    found = []
    for (base, side, pass_), part in cells.drop_nulls("ratio").group_by("base", "side", "pass", maintain_order=True):
        models = part.group_by("model", maintain_order=True).agg(geometric_mean(pl.col("ratio")))
        verdicts = dict(part["verdict"].drop_nulls().value_counts().iter_rows())
        means = part.select(geometric_mean(pl.col(f"{what}ratio")) for what in ("", "device_", "memory_"))
        ratio, device, memory = means.row(0)
        found.append(
            Total(
                base=str(base),
                side=str(side),
                pass_=str(pass_ or ""),
                cells=part.height,
                ratio=ratio,
                device_ratio=device,
                memory_ratio=memory,
                low=min(models["ratio"]),
                high=max(models["ratio"]),
                models=tuple(map(str, models["model"].drop_nulls())),
                of=sum(row["pass"] == pass_ for row in of[base, side]),
                verdicts={verdict: verdicts.get(verdict, 0) for verdict in Verdict},
                margin=max(MARGINS[clock] for clock in part["judged_on"].unique()),
            )
        )
    return found


def sentences(found: list[Total]) -> list[str]:
    """One a total; the pass is named where there are several."""
    several = len({total.pass_ for total in found}) > 1
    return [total.sentence(f"In {total.pass_}" if several and total.pass_ else "") for total in found]


def times_range(low: float, high: float) -> str:
    """2.2× to 2.5×, or 2.2× where both are that."""
    ends = times(low), times(high)
    return ends[0] if ends[0] == ends[1] else " to ".join(ends)
