"""Write what a comparison found: as sections for a terminal or Markdown, and as data for JSON."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import polars as pl

from profiler.compare.cells import CELL
from profiler.compare.regression import Regression
from profiler.results.columns import field, verdict
from profiler.results.sentences import WITHIN_PROCESS
from profiler.results.speedups import geometric_mean
from profiler.results.warning_kinds import doubting, meaning
from profiler.stats.ratios import MARGINS, WITHIN, Verdict, legend
from profiler.tables import numbers
from profiler.tables.numbers import counted, each, grouped, listed, percent, products, significant, times, whole
from profiler.tables.table import Section, Table, figure, of_rows, prose, words
from profiler.tables.writers import left_out

_RATIO = "Ratio: the base's time over the side's, so above 1 the side is faster"
_MEMORY = "; memory: the side's over the base's"
_INTERVAL = " In parentheses: the 95 % interval."
_RANGE = "A range over models is of each model's geometric mean over its cells."
_DIFFERS = {"options": "the engine's options differ under one name", "model": "the models of one name differ in FLOPs"}
"""By a word of the column `differs`, what makes cells of one name not the same."""
_FACTORS = [f"{clock}ratio{end}" for clock in ("", "device_") for end in ("", "_low", "_high")] + ["verdict"]
"""What a table leaves out where either side of a cell was disturbed."""
_FOUR_DIGITS = each(lambda ms: significant(ms, 4))


@dataclass(frozen=True)
class Side:
    """One side of the comparison."""

    name: str
    runs: tuple[str, ...]
    machines: tuple[str, ...]
    rows: int

    @property
    def machine(self) -> str:
        return ", ".join(self.machines)


@dataclass(frozen=True)
class Comparison:
    """All that is printed: `cells` are profiler.compare's, `differences` the environments'; `regression` is what
    --fail-on-regression found, `models` those that are other networks under one name (`certain`) or may be."""

    sides: tuple[Side, ...]
    cells: pl.DataFrame
    differences: Sequence[Mapping[str, str]]
    regression: Regression | None = None
    notes: tuple[str, ...] = ()
    models: Sequence[Mapping[str, Any]] = ()

    @cached_property
    def totals(self) -> list[Total]:
        return totals(self.cells)

    @property
    def base(self) -> str:
        """The side that the others are compared with; several where models have different dimensions."""
        return ", ".join(self.pairs)

    @cached_property
    def pairs(self) -> dict[str, list[str]]:
        """By base the sides that are compared with it, in the order of the sides."""
        found = dict[str, set[str]]()
        for base, side in self.cells.select("base", "side").unique(maintain_order=True).iter_rows():
            found.setdefault(base, set()).add(side)
        return {base: [side.name for side in self.sides if side.name in names] for base, names in found.items()}


def sections(comparison: Comparison, top: int, width: int | None = None) -> list[Section]:
    """What is printed, in order; of each table of cells the `top` that changed most.

    The legend leaves out the columns that a terminal of `width` does without.
    """
    cells = [_cells(comparison, base, name, top) for base, names in comparison.pairs.items() for name in names]
    tables = [table for section in cells for table in section.tables]
    parts = [_sides(comparison), _conclusions(comparison), *cells]
    parts += [_legend(comparison, tables, width), _missing(comparison), _differences(comparison)]
    if comparison.regression:
        parts.append(Section("Regressions", comparison.regression.lines(top)))
    if comparison.notes:
        parts.append(Section("Notes", comparison.notes))
    return [part for part in parts if part.paragraphs or part.tables]


def data(comparison: Comparison) -> dict[str, Any]:
    texts = sentences(comparison.totals)
    regression = comparison.regression
    judged = {
        name: getattr(regression, name).select("side", *CELL).to_dicts()
        for name in ("slower", "broken", "perhaps", "lost", "unknown")
        if regression
    }
    return {
        "base": comparison.base,
        "sides": [{"name": s.name, "runs": s.runs, "machine": s.machine, "rows": s.rows} for s in comparison.sides],
        "totals": [
            {**{key.rstrip("_"): value for key, value in vars(total).items()}, **total.verdicts, "sentence": text}
            for total, text in zip(comparison.totals, texts, strict=True)
        ],
        "differences": list(comparison.differences),
        "models": list(comparison.models),
        "regression": {"limit": regression.limit, **judged} if regression else None,
        "notes": list(comparison.notes),
        "cells": comparison.cells.to_dicts(),
    }


def _sides(comparison: Comparison) -> Section:
    sides = comparison.sides
    named = any(side.machine != side.name for side in sides)
    fields = [
        words("Side", "side"),
        words("Machine", "machine"),
        figure("Runs", "runs", whole),
        figure("Rows", "rows", whole),
    ]
    rows = [(side.name, side.machine if named else "", len(side.runs), side.rows) for side in sides]
    title = "; ".join(f"{', '.join(names)} against {base}" for base, names in comparison.pairs.items())
    return Section(title, (), [of_rows("", fields, rows)])


def _conclusions(comparison: Comparison) -> Section:
    found = comparison.totals
    paragraphs = other_models(comparison)
    paragraphs += [f"{text} {_means(total)}" for text, total in zip(sentences(found), found, strict=True)]
    compared = comparison.cells.drop_nulls("ratio")
    reasons = compared.drop_nulls("why_no_verdict").group_by("why_no_verdict", maintain_order=True).len()
    paragraphs += [f"No verdict for {counted(count, 'cell')}: {reason}." for reason, count in reasons.iter_rows()]
    for side, lost in compared.drop_nulls("disturbed").group_by("side", maintain_order=True).len().iter_rows():
        left = f"{side}: {counted(lost, 'cell')} without a ratio of times, and left out of the means and ranges"
        paragraphs.append(f"{left}: column Disturbed says why, of either side or both. Measure again.")
    doubts = [pl.col(f"{side}_doubts").str.split(", ").fill_null([]) for side in ("base", "side")]
    doubted = compared.select(kind=pl.concat_list(doubts).list.unique()).explode("kind")["kind"].value_counts()
    cells = dict(doubted.iter_rows())
    for kind in filter(cells.get, doubting("latency")):
        paragraphs.append(f"Caution: {kind} ({counted(cells[kind], 'cell')}): {meaning(kind, otherwise=kind)}.")
    if WITHIN in compared["interval"]:
        paragraphs.append(WITHIN_PROCESS)
    return Section("", paragraphs or ["No cell was measured on both sides."])


def other_models(comparison: Comparison) -> list[str]:
    """Like "Not the same model in b as in a: net (its modules).": what comes before every factor."""
    keys = ("certain", "side", "base")
    others = grouped(((*(row[key] for key in keys), *row["differs"]), row["model"]) for row in comparison.models)
    return [
        f"{'Not' if certain else 'Maybe not'} the same model in {side} as in {base}: {listed(models)} "
        f"({', '.join(differs)})."
        for (certain, side, base, *differs), models in others.items()
    ]


def _means(total: Total) -> str:
    """Like "Geometric mean of 90 cells: 1.011× slower, 1.002× slower on device time. Verdicts: 90 slower."."""
    figures = [_faster(total.ratio)]
    if total.device_ratio is not None and _faster(total.device_ratio) != figures[0]:
        figures.append(f"{_faster(total.device_ratio)} on device time")
    if total.memory_ratio is not None:
        figures.append(f"memory {times(total.memory_ratio)}")
    counts = ", ".join(f"{numbers.count(count)} {verdict}" for verdict, count in total.verdicts.items() if count)
    verdicts = f" Verdicts: {counts}." if counts else ""
    return f"Geometric mean of {counted(total.cells, 'cell')}: {', '.join(figures)}.{verdicts}"


def _faster(ratio: float) -> str:
    """Like "1.012× faster" or "2.35× slower"."""
    return f"{numbers.ratio(max(ratio, 1 / ratio))}× {'faster' if ratio >= 1 else 'slower'}"


def _cells(comparison: Comparison, base: str, side: str, top: int) -> Section:
    """A table a pass; the slowest and the fastest, where there are more than `top`. Disturbed cells have no ratio."""
    compared = comparison.cells.filter(base=base, side=side).drop_nulls("ratio")
    certain = [pl.when(pl.col("disturbed").is_null()).then(name).alias(name) for name in _FACTORS]
    tables = []
    for (pass_,), part in compared.group_by("pass", maintain_order=True):
        title = ", ".join(filter(None, [f"{side} against {base}", pass_]))
        if part.height > top:
            title += f": of {numbers.count(part.height)} cells the {top} that changed most"
            part = part.sort("ratio", maintain_order=True)
            part = pl.concat([part.head(top - top // 2), part.tail(top // 2)])
        tables.append(_table(title, part.with_columns(certain)))
    return Section("", (), tables)


def _legend(comparison: Comparison, tables: Sequence[Table], width: int | None) -> Section:
    """What the tables' columns mean, as far as they are filled and shown."""
    compared = comparison.cells.filter(pl.col("disturbed").is_null()).drop_nulls("ratio")
    if compared.is_empty():
        return Section()
    shown = {
        column
        for table in tables
        for field, _ in table.columns()
        if width is None or field not in left_out(table, width)
        for column in field.columns
    }
    ratio = f"{_RATIO}{_MEMORY if 'memory_ratio' in shown else ''}."
    paragraphs = [ratio + (_INTERVAL if compared["ratio_low"].count() else "")]
    if any(total.cells > len(total.models) for total in comparison.totals):
        paragraphs.append(_RANGE)
    if compared["verdict"].count():
        clocks = compared.drop_nulls("verdict")["judged_on"].unique()
        on = " on device time" if "gpu" in clocks else ""
        paragraphs.append(f"Verdict{on}: {legend(f'{percent(max(MARGINS[clock] for clock in clocks))} %')}.")
    return Section("", paragraphs)


def _table(title: str, cells: pl.DataFrame) -> Table:
    clocks = {"ratio": "Ratio (95 %)"} | ({"device_ratio": "Device (95 %)"} if "gpu" in cells["judged_on"] else {})
    ratio, *device = (
        figure(heading, (name, f"{name}_low", f"{name}_high"), numbers.ratios, expendable=3 * (name != "ratio"))
        for name, heading in clocks.items()
    )
    fields = [
        *map(field, ("model", "variant", "precision", "batch_size", "extra")),
        figure("Base", "base_ms", _FOUR_DIGITS, unit="ms", expendable=2),
        figure("Side", "side_ms", _FOUR_DIGITS, unit="ms", expendable=1),
        ratio,
        *device,
        verdict(),
        figure("Memory ratio", "memory_ratio", numbers.aligned(most=2), expendable=4),
        words("Differs", "differs"),
        words("Disturbed", "disturbed"),
    ]
    return Table("", title, cells, fields)


def _missing(comparison: Comparison) -> Section:
    """The cells that one side ran and the other did not, by reason."""
    rows = []
    for here, there in (("base", "side"), ("side", "base")):
        keys = [here, f"{here}_status", f"{here}_reason"]
        lacking = comparison.cells.filter(pl.col(f"{there}_status") == "ok", pl.col(f"{here}_status").ne_missing("ok"))
        lacking = lacking.unique([*keys, *CELL], maintain_order=True)
        for (side, status, reason), part in lacking.group_by(keys, maintain_order=True):
            rows += [
                (side, status or "missing", math.prod(map(len, cells)), reason, _which(cells))
                for cells in products(part.select(CELL).rows())
            ]
    fields = [
        words("Side", "side"),
        words("Status", "status"),
        figure("Cells", "cells", whole),
        prose("Reason", "reason"),
        words("Which", "which"),
    ]
    return Section("Measured on one side only", (), [of_rows("", fields, rows)] if rows else [])


def _which(cells: Sequence[Sequence[object]]) -> str:
    """All combinations of the columns' values: "resnet50; ort, compiled; inference; fp32; batch 1, 16"."""
    parts = {key: ", ".join(str(x) for x in own if x is not None) for key, own in zip(CELL, cells, strict=True)}
    return "; ".join(filter(None, {**parts, "batch_size": f"batch {parts['batch_size']}"}.values()))


def _differences(comparison: Comparison) -> Section:
    names = ["what", *(side.name for side in comparison.sides)]
    fields = [words("What", "what"), *(words(name, name) for name in names[1:])]
    rows = [[row.get(name) for name in names] for row in comparison.differences]
    paragraphs = [
        f"{counted(count, 'cell')}: {why}"
        for word, why in _DIFFERS.items()
        if (count := comparison.cells.filter(pl.col("differs").str.contains(word)).height)
    ]
    if any(row["what"].startswith("roofs.") for row in comparison.differences):
        paragraphs.append("roofs: the peak rates that each run measured of its machine; no ratio rests on them.")
    if not rows:
        return Section("What differs", ["The environments do not differ.", *paragraphs])
    return Section("What differs", paragraphs, [of_rows("", fields, rows)])


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
        for judged, count in self.verdicts.items():
            if count == self.cells and not judged.differs:
                return f"{self.side} is {judged.relation} {self.base} ({times_range(self.low, self.high)})"
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
    """One a total, worded like those of the published benchmarks: "Across all models, the Quadro M4000 is 1.05x to
    1.25x faster than Tesla K80"; the pass is named where there are several."""
    several = len({total.pass_ for total in found}) > 1
    return [total.sentence(f"In {total.pass_}" if several and total.pass_ else "") for total in found]


def times_range(low: float, high: float) -> str:
    """2.2× to 2.5×, or 2.2× where both are that."""
    ends = times(low), times(high)
    return ends[0] if ends[0] == ends[1] else " to ".join(ends)
