"""Hold what a comparison found, and show it as sections of a terminal or of Markdown."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import polars as pl
from pydantic import BaseModel, ConfigDict, PlainSerializer

from profiler.compare.cells import REGRESSIONS, cell_name
from profiler.results.columns import field
from profiler.results.warning_kinds import meaning
from profiler.stats.intervals import MARGINS, Verdict
from profiler.tables import numbers
from profiler.tables.numbers import each, grouped, listed, percent, significant, times, whole
from profiler.tables.table import Section, Table, figure, of_rows, prose, words

Frame = Annotated[pl.DataFrame, PlainSerializer(pl.DataFrame.to_dicts, return_type=list[dict[str, Any]])]
_FOUR_DIGITS = each(lambda ms: significant(ms, 4))
_MEMORY = figure("Memory", "memory_ratio", each(times), expendable=4)


class Comparison(BaseModel):
    """All that a comparison found, as --format json writes it.

    `sides` has each side's run ids. `cells` are those of profiler.compare_runs; profiler/compare/cells.py tells the
    columns of `totals` and of `regressions`, which is null without a limit. In half of the cells differences below the
    share `resolution` cannot be told; `next` are commands that measure with enough replicates to tell them.
    """

    model_config = ConfigDict(frozen=True, arbitrary_types_allowed=True)
    base: str
    sides: dict[str, list[str]]
    other_models: list[dict[str, Any]]
    totals: Frame
    resolution: float | None
    regressions: Frame | None
    differences: list[dict[str, str]]
    notes: list[str]
    next: list[str]
    cells: Frame

    @property
    def exit_code(self) -> int:
        """Return 1 for a regression or without a ratio, 4 for what is unclear or lost, else 0."""
        if self.totals.is_empty():
            return 1
        codes = () if self.regressions is None else self.regressions["code"].unique()
        return min((REGRESSIONS[code] for code in codes), default=0)


def sections(comparison: Comparison, top: int) -> list[Section]:
    """Return what is printed, in order; each table of cells has the `top` that changed most."""
    parts = [_conclusions(comparison), _cells(comparison, top), _footnotes(comparison), _missing(comparison)]
    parts += [_differences(comparison), regressions(comparison, top), Section("Notes", comparison.notes)]
    return [part for part in parts if part.paragraphs or part.tables]


def regressions(comparison: Comparison, top: int) -> Section:
    """Return the cells that are worse than the limit allows, the `top` worst."""
    if comparison.regressions is None:
        return Section()
    counts = comparison.regressions["code"].value_counts(sort=True)
    text = ", ".join(f"{numbers.count(number)} {code}" for code, number in counts.iter_rows())
    fields = [
        *(words(name.title(), name) for name in ("code", "side", "cell")),
        figure("Factor", ("ratio", "low", "high"), numbers.relatives),
        prose("Reason", "reason"),
    ]
    tables = [Table("", "", comparison.regressions.head(top), fields)] if text else []
    return Section("Regressions", [f"Cells: {text or 'none'}."], tables)


def _conclusions(comparison: Comparison) -> Section:
    """Say which models are others before any factor, then how the sides compare, and what can be told."""
    pairs = comparison.cells.group_by("base", maintain_order=True).agg(pl.col("side").unique(maintain_order=True))
    title = "; ".join(f"{', '.join(sides)} against {base}" for base, sides in pairs.iter_rows())
    paragraphs = other_models(comparison)
    if comparison.totals.is_empty():
        return Section(title, [*paragraphs, "No cell was measured on both sides."])
    several = comparison.totals["pass"].n_unique() > 1
    paragraphs += [sentence(total, several) for total in comparison.totals.iter_rows(named=True)]
    if comparison.resolution:
        share = percent(comparison.resolution, 0 if comparison.resolution >= 0.1 else 1)
        paragraphs.append(f"Differences below {share} % cannot be told here.")
    paragraphs += [f"To tell more: {command}" for command in comparison.next]
    fields = [
        *(words(name.title(), name) for name in ("side", "pass")),
        figure("Cells", "cells", whole),
        figure("Geometric mean", "ratio", each(numbers.relative)),
        _MEMORY,
        *(figure(verdict.title(), verdict, whole) for verdict in Verdict),
    ]
    return Section(title, paragraphs, [Table("", "", comparison.totals, fields)])


def other_models(comparison: Comparison) -> list[str]:
    """Say which models are others, like "Not the same model in b as in a: net (its modules)."."""
    keys = ("certain", "side", "base")
    others = grouped(((*(row[key] for key in keys), *row["differs"]), row["model"]) for row in comparison.other_models)
    return [
        f"{'Not' if certain else 'Maybe not'} the same model in {side} as in {base}: {listed(models)} "
        f"({', '.join(differs)})."
        for (certain, side, base, *differs), models in others.items()
    ]


def sentence(total: Mapping[str, Any], names_pass: bool = False) -> str:
    """Word a row of `totals` like the published: "Across all models, B is 2.2× to 2.5× faster than A."."""
    models, of = total["models"], total["of"]
    where = "across all models" if of > 1 else f"for {listed(models)}" if models else ""
    if 0 < len(models) < of:
        several = f"across the {len(models)} models that both ran"
        where = several if len(models) > 1 else f"for {models[0]}, the one model that both ran"
    start = ", ".join(filter(None, (f"in {total['pass']}" if names_pass and total["pass"] else "", where)))
    relation = f"{total['side']} is {_relation(total['low'], total['high'])} {total['base']}."
    return f"{start[0].upper()}{start[1:]}, {relation}" if start else relation


def _relation(low: float, high: float) -> str:
    margin = MARGINS["host"]
    if 1 / (1 + margin) <= low and high <= 1 + margin:
        return f"within {percent(margin)} % of"
    if low < 1 < high:
        return f"from {times(1 / low)} slower to {times(high)} faster than"
    ends, word = ((low, high), "faster") if low >= 1 else ((1 / high, 1 / low), "slower")
    return f"{' to '.join(dict.fromkeys(map(times, ends)))} {word} than"


def _cells(comparison: Comparison, top: int) -> Section:
    """Return a table a side and pass: the slowest and the fastest, where there are more than `top`."""
    fields = [
        *map(field, ("model", "variant", "precision", "batch_size", "setting")),
        figure("Base", "base_ms", _FOUR_DIGITS, unit="ms", expendable=2),
        figure("Side", "side_ms", _FOUR_DIGITS, unit="ms", expendable=1),
        figure("Factor (95 %)", ("ratio", "ratio_low", "ratio_high"), numbers.relatives),
        words("Verdict", "verdict"),
        _MEMORY,
        words("Differs", "differs"),
    ]
    tables = []
    compared = comparison.cells.drop_nulls("ratio")
    for (base, side, pass_), part in compared.group_by("base", "side", "pass", maintain_order=True):
        title = ", ".join(filter(None, [f"{side} against {base}", pass_]))
        if part.height > top:
            title += f": of {numbers.count(part.height)} cells the {top} that changed most"
            part = part.sort("ratio", maintain_order=True)
            part = pl.concat([part.head(top - top // 2), part.tail(top // 2)])
        tables.append(Table("", title, part, fields))
    return Section("", (), tables)


def _footnotes(comparison: Comparison) -> Section:
    """Explain each kind of warning that compared cells carry, the most frequent first."""
    both = pl.concat_list(pl.col(f"{side}_footnotes").fill_null([]) for side in ("base", "side")).list.unique()
    compared = comparison.cells.drop_nulls("ratio")
    kinds = compared.select(kind=both).explode("kind").drop_nulls()["kind"]
    counts = kinds.value_counts(sort=True).head(compared.height)
    rows = [(kind, count, meaning(kind, otherwise=kind)) for kind, count in counts.iter_rows()]
    fields = [words("Footnote", "kind"), figure("Cells", "count", whole), prose("Meaning", "meaning")]
    return Section("", (), [of_rows("", fields, rows)] if rows else [])


def _missing(comparison: Comparison) -> Section:
    """Count the cells that one side ran and the other did not, by reason, with the first ones' names."""
    parts = []
    for here, there in (("base", "side"), ("side", "base")):
        status, reason = (pl.col(f"{here}_{name}") for name in ("status", "reason"))
        lacking = comparison.cells.filter(pl.col(f"{there}_status") == "ok", status.ne_missing("ok"))
        named = lacking.select(side=here, status=status.fill_null("missing"), reason=reason, cell=cell_name()).unique()
        by_reason = named.sort("cell").group_by("side", "status", "reason", maintain_order=True)
        parts.append(by_reason.agg(pl.len().alias("cells"), pl.col("cell").head(3)))
    fields = [
        *(words(name.title(), name) for name in ("side", "status")),
        figure("Cells", "cells", whole),
        prose("Reason", "reason"),
        words("Such as", "cell"),
    ]
    found = pl.concat(parts)
    return Section("Measured on one side only", (), [] if found.is_empty() else [Table("", "", found, fields)])


def _differences(comparison: Comparison) -> Section:
    if not comparison.differences:
        return Section("What differs", ["The environments do not differ."])
    names = ["what", *comparison.sides]
    rows = [[row.get(name) for name in names] for row in comparison.differences]
    return Section("What differs", (), [of_rows("", [words(name, name) for name in names], rows)])
