"""Compare runs, machines or versions, and their environments; print the result or write it."""

from __future__ import annotations

import math
import re
from collections.abc import Container, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import polars as pl
from pydantic import BaseModel, ConfigDict, PlainSerializer
from rich.console import Console

from engines.catalog import ENGINES
from exporters.errors import printable
from exporters.source import COMPUTED
from profiler.compare.cells import REGRESSIONS, compare, find_regressions, resolution
from profiler.compare.cells import totals as totals_of
from profiler.errors import WHEN_IDLE, ConfigError, check_choice
from profiler.job.case import parse_only
from profiler.options import Compare as Options
from profiler.results.columns import field
from profiler.results.reading import Runs, check_only, chosen, flat, read_runs, versions_of_others
from profiler.results.run_folder import RunFolder
from profiler.results.warning_kinds import meaning
from profiler.stats.intervals import Verdict
from profiler.tables import numbers
from profiler.tables.numbers import compact, each, grouped, percent, significant, times, whole
from profiler.tables.table import Section, Table, figure, of_rows, prose, words
from profiler.tables.writers import markdown_section, print_section

FORMATS = ("text", "md", "json")
_LIMIT = re.compile(r"(\d+(?:\.\d*)?|\.\d+) ?%|(0?\.\d+|0)")
Frame = Annotated[pl.DataFrame, PlainSerializer(pl.DataFrame.to_dicts, return_type=list[dict[str, Any]])]
_FOUR_DIGITS = numbers.unless_busy(each(lambda ms: significant(ms, 4)))
_MEMORY = figure("Memory", "memory_ratio", each(times), expendable=4)
_OF_RUN = {"run_id", "command", "earlier_commands", "wall_seconds", "roofs_quiet", "untested", "label", "job_folder"}
"""Keys of environment.json that describe the run, not the machine."""
_TWICE = {f"packages.{package}" for e in ENGINES.values() if e.version for package in e.version.packages}
"""Packages whose versions have a key of their own."""
_CLOSE = 0.02
"""Figures within this share count as the same: every run measures roofs and clocks again."""


class OtherModel(BaseModel):
    """A model that differs between `base` and `side`; not `certain` if only its code differs."""

    model: str
    base: str
    side: str
    differs: list[str]
    certain: bool


class Comparison(BaseModel):
    """A comparison as --format json writes it.

    `sides` has each side's run ids. `cells`, `totals` and `regressions` are frames of profiler/compare/cells.py; the
    last is null without a limit. Half of the cells cannot resolve a difference smaller than the share `resolution`.
    """

    model_config = ConfigDict(frozen=True, arbitrary_types_allowed=True)
    base: str
    sides: dict[str, list[str]]
    other_models: list[OtherModel]
    totals: Frame
    resolution: float | None
    regressions: Frame | None
    differences: list[dict[str, str]]
    notes: list[str]
    cells: Frame

    @property
    def exit_code(self) -> int:
        """Return 1 for a regression or without a ratio, 4 for unclear or lost cells, else 0."""
        if self.totals.is_empty():
            return 1
        codes = () if self.regressions is None else self.regressions["code"].unique()
        return min((REGRESSIONS[code] for code in codes), default=0)


def execute(options: Options, console: Console) -> int:
    """Compare, print, and return the comparison's exit code. Raises ConfigError."""
    check_choice("--format", options.format, FORMATS)
    comparison = make_comparison(options)
    if options.format == "json":
        print(comparison.model_dump_json())
    elif options.format == "md":
        print("\n".join(map(markdown_section, sections(comparison, options.top))), end="")
    else:
        for section in sections(comparison, options.top):
            print_section(console, section)
    return comparison.exit_code


def make_comparison(options: Options) -> Comparison:
    """Compare as the options ask. Raises ConfigError."""
    text = options.fail_on_regression
    limit = None if text is None else parse_limit("--fail-on-regression", text)
    only, runs, by = parse_only(options.only), read_runs(options.runs), options.by or "run"
    results = runs.results.with_columns(run=pl.col("run_id").replace_strict(runs.labels, return_dtype=pl.String))
    is_selected = pl.lit(value=True)
    if only is not None:
        check_only(only, results)
        replicates = only.conditions.get("replicate")
        results = results.filter(pl.col("replicate").is_in(replicates)) if replicates else results
        is_selected = chosen(only.without("replicate"))
    rows = results.collect()
    cells = compare(rows, by, options.base, is_selected)
    rows = rows.filter(is_selected, pl.col(by).is_not_null())
    sides = dict(rows.group_by(by, maintain_order=True).agg(pl.col("run_id").unique(maintain_order=True)).iter_rows())
    base_first = dict(sorted(sides.items(), key=lambda side: side[0] != options.base))
    return Comparison(
        base=", ".join(cells["base"].unique(maintain_order=True)),
        sides=sides,
        other_models=other_models(runs, base_first, rows["model"].unique()),
        totals=totals_of(cells),
        resolution=resolution(cells),
        regressions=None if limit is None else find_regressions(cells, limit),
        differences=differences({name: _environments(rows.filter(pl.col(by) == name), runs) for name in sides}),
        notes=list(runs.notes),
        cells=cells,
    )


def parse_limit(option: str, text: str) -> float:
    """Read "5%" or "0.05" as 0.05. Raises ConfigError for anything else."""
    match = _LIMIT.fullmatch(text.strip())
    if not match:
        raise ConfigError(f"{option}: expected a percentage such as 5%, or a share, got '{text}'")
    return float(match[1]) / 100 if match[1] else float(match[2])


def other_models(runs: Runs, sides: Mapping[str, Sequence[str]], models: Container[str]) -> list[OtherModel]:
    """Return the models that may differ from the first side's; `sides` has each side's run ids."""
    recorded = {run_id: RunFolder(Path(run.address)).read_models() for run in runs.runs for run_id in run.run_ids}
    (base, base_ids), *others = sides.items()
    first = {subject: identity for run_id in reversed(base_ids) for subject, identity in recorded[run_id].items()}
    changes = grouped(
        ((side, subject.partition("/")[0]), word)  # A model with several shapes has a subject for each.
        for side, run_ids in others
        for subject, now in (item for run_id in run_ids for item in recorded[run_id].items())
        if subject in first
        for word in dict.fromkeys(printable(first[subject].changes(now)))
    )
    return [
        OtherModel(model=name, base=base, side=side, differs=words, certain=any(w.startswith(COMPUTED) for w in words))
        for (side, name), words in changes.items()
        if name in models
    ]


def _environments(rows: pl.DataFrame, runs: Runs) -> list[dict[str, Any]]:
    """List the environments of a side's runs, with their rows' median SM clock, without unused libraries' versions."""
    environments = []
    for (run_id,), part in rows.group_by("run_id", maintain_order=True):
        unused = dict.fromkeys(versions_of_others(part["engine"].unique()))
        clock = {"sm_clock_mhz": part["sm_clock_mhz"].median()}
        environments.append(runs.environments[str(run_id)] | unused | clock)
    return environments


def differences(sides: Mapping[str, Sequence[Mapping[str, Any]]]) -> list[dict[str, str]]:
    """Return one row per fact that all sides recorded differently: `what`, then each side's values under its name."""
    flattened = {name: [dict(flat(environment)) for environment in runs] for name, runs in sides.items()}
    rows = []
    for key in dict.fromkeys(key for runs in flattened.values() for run in runs for key in run):
        if key.partition(".")[0] in _OF_RUN or key in _TWICE:
            continue
        facts = {name: [run.get(key) for run in runs] for name, runs in flattened.items()}
        values = {name: _distinct(v for v in of if isinstance(v, str | int | float)) for name, of in facts.items()}
        if all(values.values()) and len(_distinct(value for side in values.values() for value in side)) > 1:
            texts = {
                name: [compact(v, 5) if isinstance(v, float) else str(v) for v in of] for name, of in values.items()
            }
            rows.append({"what": key, **{name: ", ".join(side) for name, side in texts.items()}})
    return rows


def _distinct(values: Iterable[Any]) -> list[Any]:
    """List the values that are not close to an earlier one."""
    distinct: list[Any] = []
    for value in values:
        close = (math.isclose(value, old, rel_tol=_CLOSE) for old in distinct if isinstance(old, float))
        if value not in distinct and not (isinstance(value, float) and any(close)):
            distinct.append(value)
    return distinct


def sections(comparison: Comparison, top: int) -> list[Section]:
    """Return the printed sections; each table of cells has the `top` that changed most."""
    names, rows = ["what", *comparison.sides], comparison.differences
    table = Table("", "", {name: [row[name] for row in rows] for name in names}, [words(name, name) for name in names])
    differs = Section("What differs", [] if rows else ["The environments do not differ."], [table] if rows else [])
    parts = [_totals(comparison), _cells(comparison, top), differs]
    parts += [_regressions(comparison, top), Section("Notes", comparison.notes)]
    return [part for part in parts if part.paragraphs or part.tables]


def _totals(comparison: Comparison) -> Section:
    """State differences between models, then compare the sides, with the resolution."""
    paragraphs = [
        f"{'Not' if other.certain else 'Maybe not'} the same model in {other.side} as in {other.base}: {other.model} "
        f"({', '.join(other.differs)})."
        for other in comparison.other_models
    ]
    title = f"{', '.join(comparison.cells['side'].unique(maintain_order=True))} against {comparison.base}"
    ran = [pl.col(f"{of}_status").eq_missing(pl.lit("ok")) for of in ("base", "side")]
    if alone := comparison.cells.filter(ran[0] != ran[1]).height:
        paragraphs.append(f"Cells that ran on one side only: {numbers.count(alone)}; --format json has their reasons.")
    if comparison.totals.is_empty():
        return Section(title, [*paragraphs, "No cell was measured on both sides."])
    if comparison.resolution:
        share = percent(comparison.resolution, 0 if comparison.resolution >= 0.1 else 1)
        is_busy = numbers.is_busy(1, (1 + comparison.resolution) ** 2)
        which = "Most differences" if is_busy else f"Differences below {share} %"
        advice = f"more --replicates, or {WHEN_IDLE} if other work ran, would resolve them"
        paragraphs.append(f"{which} cannot be resolved; {advice}.")
    fields = [
        *(words(name.title(), name) for name in ("side", "pass")),
        figure("Cells", "cells", whole),
        figure("Geometric mean (95 %)", ("ratio", "low", "high"), numbers.relatives),
        _MEMORY,
        *(figure(verdict.title(), verdict, whole) for verdict in Verdict),
    ]
    return Section(title, paragraphs, [Table("", "", comparison.totals, fields)])


def _cells(comparison: Comparison, top: int) -> Section:
    """Return one table per side and pass, with at most `top` cells: the slowest and the fastest."""
    fields = [
        *map(field, ("model", "variant", "precision", "batch_size", "setting")),
        figure("Base", ("base_ms", "base_low_ms", "base_high_ms"), _FOUR_DIGITS, unit="ms", expendable=2),
        figure("Side", ("side_ms", "side_low_ms", "side_high_ms"), _FOUR_DIGITS, unit="ms", expendable=1),
        figure("Factor (95 %)", ("ratio", "ratio_low", "ratio_high"), numbers.relatives),
        words("Verdict", "verdict"),
        _MEMORY,
        words("Differs", "differs"),
    ]
    tables, compared = [], comparison.cells.drop_nulls("ratio")
    for (base, side, pass_), part in compared.group_by("base", "side", "pass", maintain_order=True):
        title = ", ".join(filter(None, [f"{side} against {base}", pass_]))
        if part.height > top:
            title += f": of {numbers.count(part.height)} cells the {top} that changed most"
            part = part.sort("ratio", maintain_order=True)
            part = pl.concat([part.head(top - top // 2), part.tail(top // 2)])
        tables.append(Table("", title, part, fields))
    kinds = pl.concat_list(pl.col(f"{side}_footnotes").fill_null([]) for side in ("base", "side")).list.unique()
    counts = compared.select(kind=kinds).explode("kind").drop_nulls()["kind"].value_counts(sort=True)
    rows = [(kind, count, meaning(kind, otherwise=kind)) for kind, count in counts.iter_rows()]
    notes = [words("Footnote", "kind"), figure("Cells", "count", whole), prose("Meaning", "meaning")]
    return Section("", (), [*tables, *([of_rows("", notes, rows)] if rows else [])])


def _regressions(comparison: Comparison, top: int) -> Section:
    if comparison.regressions is None:
        return Section()
    counts = comparison.regressions["code"].value_counts(sort=True)
    text = ", ".join(f"{numbers.count(number)} {code}" for code, number in counts.iter_rows())
    fields = [words(name.title(), name) for name in ("code", "side", "cell")]
    fields += [figure("Factor", ("ratio", "low", "high"), numbers.relatives), prose("Reason", "reason")]
    tables = [Table("", "", comparison.regressions.head(top), fields)] if text else []
    return Section("Regressions", [f"Cells: {text or 'none'}."], tables)
