"""Make the tables of a report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import polars as pl

from profiler.job.case import setting_words
from profiler.report.data import CONFIGURATION_KEY, KEY, Data
from profiler.results.cells import CELLS
from profiler.results.choice import Choice, cell_name
from profiler.results.columns import FACTOR, Group, Shown, columns, factor, field, fields
from profiler.results.overview import overview
from profiler.results.warning_kinds import meaning
from profiler.tables import numbers
from profiler.tables.numbers import aligned, compact, whole
from profiler.tables.table import Field, Table, figure, prose, words

_FACTS = {
    "GPU": {"gpu": "{}", "gpu_memory_mib": "{:,.0f} MiB", "compute_capability": "compute capability {}"},
    "Driver": {"driver": "{}"},  # Before the others, as it belongs to the GPU.
    **{column.heading: {column.name: "{}"} for column in columns(Group.VERSIONS)},
    "CPU": {"cpu": "{}", "cpu_cores": "{} cores", "memory_mib": "{:,.0f} MiB"},
    "Host": {"host": "{}"},
    "Platform": {"platform": "{}"},
}
_ROOFS = {"copy_gb_s": "Memory bandwidth, measured", "cache_mib": "Last-level cache"}
_UNITS = {"tflops": "TFLOP/s", "gb_s": "GB/s", "mib": "MiB"}
_LATENCY = ("latency_ms", "latency_low_ms", "latency_high_ms")
_SPEEDUP = factor("Factor (95\u00a0%)", unit="×")
_MARGIN = ("margin", "margin_low", "margin_high")
_ANSWERED = [*_LATENCY, *FACTOR, "base", "error_high", "peak_memory_mib"]
_shown = partial(fields, shown=Shown.REPORT)
_FURTHER = (Group.CASE, Group.OUTCOME, Group.THROUGHPUT, Group.ACCURACY, Group.MACHINE, Group.PLACE)
"""Groups without a table of their own, whose columns stand beside the speed-ups."""
_ELSEWHERE = ("throughput", "rel_l2_error", "rel_l2_error_high", "loss_error", "gradient_error")
"""Columns of those groups that other fields show."""


def tables(data: Data) -> dict[str, Table]:
    """Return every table that is not empty, by name; a table has its section's name."""
    every = [_overview(data.choices), _answer(data.choices), *_of_cells(data.cells)]
    every += [_problems(data.problems), _warnings(data.warnings), environment_table(data.environments)]
    return {table.name: table for table in every if table.rows}


def _of_cells(cells: pl.DataFrame) -> list[Table]:
    """Return the tables of cells, each with the cells that have one of its needed figures."""
    latency, undivided = _latency(), figure("Undivided", "undivided_mib", whole, unit="MiB")
    sums = [field(name) for name in ("once_s", "start_s", "set_up_s")]
    further = [field(c.name) for c in columns(*_FURTHER, shown=Shown.REPORT) if c.name not in _ELSEWHERE]
    verdict = [words("over", "base"), words("Verdict", "verdict"), field("error"), field("error_high"), *further]
    verdict += [words("Footnotes", "footnotes")]
    rates = [
        figure("Items/s (95\u00a0%)", ("throughput", "throughput_low", "throughput_high"), numbers.ranges),
        field("peak_memory_mib"),
    ]
    roofline = [
        figure("GFLOPs an item", "gflops_per_item"),
        figure("FLOPs per byte", "intensity", aligned(max_places=1)),
        *_shown(Group.ROOFLINE),
        figure("Latency over floor", "over_floor", aligned(max_places=1), unit="×"),
    ]
    training = [
        *(_latency("Iteration (95\u00a0%)"), *_shown(Group.PARTS), field("throughput", format=numbers.rates)),
        *(_SPEEDUP, field("loss_error"), field("gradient_error")),
    ]
    clocks = [
        latency,
        *_shown(Group.LATENCY)[1:],
        *_shown(Group.CLOCKS),
        field("plain_run_ms"),
        figure("Processes", "processes", whole),
    ]
    energy = [*_shown(Group.ENERGY), field("usd_per_hour"), *_shown(Group.COST)]
    trained = cells.filter(pl.col("pass") == "training")
    declared: list[tuple[str, str, pl.DataFrame, Sequence[str], Sequence[Field]]] = [
        ("speedups", "Speed-up by configuration", cells, ["latency_ms"], [latency, _SPEEDUP, *verdict]),
        ("latency", "Latency on every clock", cells, ["latency_ms"], clocks),
        ("throughput", "Throughput and latency", cells, ["throughput"], [latency, *rates]),
        ("memory", "Memory", cells, ["peak_memory_mib"], [*_shown(Group.MEMORY), undivided]),
        ("roofline", "Roofline", cells, ["tflops"], roofline),
        ("training", "Training", trained, ["latency_ms"], training),
        ("setup", "Set-up", cells, ["set_up_s"], [*_shown(Group.SET_UP), *sums]),
        ("energy", "Energy and cost", cells, ["energy_mj_per_item", "usd_per_hour"], energy),
    ]
    tables = []
    for name, title, frame, needs, shown in declared:
        measured = frame.filter(pl.any_horizontal(pl.col(needs).is_not_null()))
        tables.append(Table(name, title, measured, [*_identity(measured), *shown], keys=CONFIGURATION_KEY))
    return tables


def environment_table(environments: Mapping[str, Mapping[str, Any]]) -> Table:
    """Return versions and machine, and then the measured roofs, with one column per label."""
    facts = [_facts(environment) for environment in environments.values()]
    parts = list(dict.fromkeys(part for texts in facts for part in texts))
    values = {f"v{n}": [texts.get(part) for part in parts] for n, texts in enumerate(facts)}
    columns = [words("Part", "part"), *(prose(label, f"v{n}") for n, label in enumerate(environments))]
    return Table("environment", "Machines and versions", {"part": parts, **values}, columns)


def _facts(environment: Mapping[str, Any]) -> dict[str, str]:
    """Describe the machine, its software and roofs, by part."""
    facts = {}
    for part, forms in _FACTS.items():
        values = {key: value for key in forms if (value := environment.get(key)) is not None}
        facts[part] = ", ".join(forms[key].format(value) for key, value in values.items())
    facts["Packages"] = ", ".join(f"{name} {version}" for name, version in (environment.get("packages") or {}).items())
    for name, value in (environment.get("roofs") or {}).items():
        precision, _, unit = name.partition("_")
        facts[_ROOFS.get(name, f"{precision} peak, measured")] = f"{compact(value)} {_UNITS.get(unit, unit)}"
    return {part: text for part, text in facts.items() if text}


def _overview(choices: Sequence[tuple[Mapping[str, Any], Choice]]) -> Table:
    runs = {key["run"] for key, _ in choices}

    def subject(key: Mapping[str, Any]) -> str:
        first = [key["model"], "training" * (key["pass"] == "training"), key["run"] * (len(runs) > 1)]
        return ", ".join([" ".join(filter(None, first)), f"b{key['batch_size']}", *setting_words(key["setting"] or "")])

    return overview([(subject(key), {name: key[name] for name in KEY}, choice) for key, choice in choices])


def _answer(choices: Sequence[tuple[Mapping[str, Any], Choice]]) -> Table:
    """List the choice in each group, or the reason against one."""
    rows = [_answered(key, choice) for key, choice in choices if choice.best or choice.nearest or choice.doubt]
    schema = {name: CELLS.get(name, pl.Float64()) for name in (*KEY, *_ANSWERED, *_MARGIN)}
    schema |= dict.fromkeys(("run", "deploy", "tied_or_why", "runner_up"), pl.String())
    frame = pl.DataFrame(rows, {**schema, "footnotes": pl.List(pl.String)})
    bases = frame["base"].drop_nulls().unique()
    columns = [
        *_identity(frame, configuration=False),
        words("Deploy", "deploy"),
        _latency(),
        factor(f"× {bases[0]} (95\u00a0%)" if bases.len() == 1 else "Factor (95\u00a0%)"),
        *[words("of", "base")][: bases.len() > 1],
        prose("Tied with, or why none", "tied_or_why"),
        words("Runner-up", "runner_up"),
        figure("× slower", _MARGIN, numbers.factors),
        field("error_high"),
        field("peak_memory_mib"),
        words("Footnotes", "footnotes"),
    ]
    return Table("answer", "How sure that is", frame, columns, keys=KEY)


def _answered(key: Mapping[str, Any], choice: Choice) -> dict[str, Any]:
    cell, runner, margin = choice.best, choice.runner_up, choice.margin
    if cell is None:
        reasons = [reason for loser in choice.losers if loser.cell is choice.nearest for reason in loser.reasons]
        nearest = f"{cell_name(choice.nearest)}: {'; '.join(map(str, reasons))}" if choice.nearest else ""
        return {**key, "deploy": "none yet" if choice.doubt else "nothing", "tied_or_why": str(choice.doubt or nearest)}
    base = next((loser.cell for loser in choice.losers if loser.cell["is_base"]), cell)
    return {
        **key,
        **{name: cell[name] for name in _ANSWERED},
        "deploy": "none yet" if choice.doubt else cell_name(cell),
        "tied_or_why": str(choice.doubt or ", ".join(map(cell_name, choice.tied))),
        "runner_up": cell_name(runner) if runner else None,
        **(dict(zip(_MARGIN, (margin.value, margin.low, margin.high), strict=True)) if margin else {}),
        "footnotes": list(dict.fromkeys(kind for shown in (cell, base, runner or cell) for kind in shown["footnotes"])),
    }


def _identity(frame: pl.DataFrame, configuration: bool = True) -> list[Field]:
    """Return the fields that identify a row, without the run and pass if all rows share them."""
    several = {name for name in ("run", "pass") if frame[name].n_unique() > 1}
    return [
        *([words("Run", "run")] if "run" in several else []),
        field("model"),
        *([field("pass")] if "pass" in several else []),
        field("batch_size"),
        field("setting"),
        *([field("variant", "Engine"), field("precision")] if configuration else []),
    ]


def _latency(heading: str = "Latency (95\u00a0%)") -> Field:
    return figure(heading, _LATENCY, numbers.ranges, unit="ms")


def _problems(problems: pl.DataFrame) -> Table:
    runs = [words("Run", "run")] if problems["run"].n_unique() > 1 else []
    columns = [field("status"), prose("Reason", "reason"), field("variant", "Engine"), field("precision")]
    columns += [field("pass"), prose("Models", "model"), words("Batches", "batch_size")]
    columns += [figure("Cases", "cases", whole)]
    keys = ["run", "pass", "precision", "model", "batch_size"]
    return Table("not-measured", "Not measured", problems, [*runs, *columns], keys=keys)


def _warnings(warnings: pl.DataFrame) -> Table:
    meanings = [meaning(kind, otherwise=text) for kind, text in warnings.select("kind", "example").iter_rows()]
    frame = warnings.with_columns(pl.Series("meaning", meanings, pl.String))
    columns = [words("Warning", "kind"), figure("Cases", "cases", whole)]
    columns += [prose("Meaning", "meaning"), prose("Example", "example")]
    return Table("warnings", "Warnings", frame, columns)
