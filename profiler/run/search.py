"""Search for configurations that are faster than the presets, from the best of each engine to its neighbours."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from dataclasses import asdict, replace
from typing import Any

import polars as pl

from engines.catalog import ENGINES
from profiler.job.case import Case
from profiler.job.plan import builds_long
from profiler.machine import usable_cores
from profiler.results.choice import Choice, cell_name, choices
from profiler.tables.numbers import listed, times

_REACH = 1.5
"""An engine whose best is this many times slower than the best of all is left: no option of its own makes that up."""

_MEASURED = {"worse", "better", "equivalent", "unclear"}
"""Codes of cells that lost by their figure, not by a limit."""

Row = Mapping[str, Any]


def next_trials(cells: pl.DataFrame, plan: Iterable[Case], ended: Container[str]) -> list[Case]:
    """Return what is to be tried next: in each group, of every engine that may still win, its best's neighbours.

    Cases that `ended` has the id of were tried. What takes minutes to build comes when nothing else is left.
    """
    by_id = {case.id: case for case in plan}
    tried = {_identity(case) for case in by_id.values() if case.id in ended}
    found = dict[Any, Case]()
    for _, choice in choices(cells):
        fastest = _fastest_of_engines(choice)
        for cell in fastest:
            if cell["latency_ms"] <= _REACH * fastest[0]["latency_ms"]:
                for case in neighbours(by_id[cell["case_ids"][0]]):
                    found.setdefault(_identity(case), case)
    new = [case for identity, case in found.items() if identity not in tried]
    return [case for case in new if not builds_long(case)] or new


def neighbours(case: Case) -> list[Case]:
    """Return the case with each option changed that a search tries, at the default and the values that are declared."""
    return [
        _with(case, name, value)
        for name, option in ENGINES[case.engine].options.declared().items()
        if option.search and case.device in option.devices
        for value in (option.default, *option.search)
        if value != _options(case)[name] and not (name == "threads" and int(str(value)) >= usable_cores())
    ]


def label(engine: str, options: Mapping[str, Any]) -> str:
    """Name a configuration by its engine and its options that are not the default: "compiled+channels_last"."""
    declared = ENGINES[engine].options.declared()
    differs = {
        name: options[name] for name in declared if options.get(name, declared[name].default) != declared[name].default
    }
    return "+".join([engine, *(name if value is True else f"{name}={value}" for name, value in differs.items())])


def trials_of(journal: Iterable[str], plan: Iterable[Case]) -> list[Case]:
    """Return the trials among the journal's cases, which no plan has, by what their names say."""
    planned = {case.id: case for case in plan}
    names, found = [id_ for id_ in journal if "+" in id_ and id_ not in planned], dict[str, Case]()
    for case in planned.values() if names else ():
        start = f"{case.model}/{case.engine}"
        end = case.id.removeprefix(f"{case.model}/{case.variant}")
        for id_ in names:
            if id_.startswith(f"{start}+") and id_.endswith(end) and not case.replicate:
                name = id_.removesuffix(end).removeprefix(f"{case.model}/")
                found[id_] = replace(case, variant=name, options=_read(case.engine, name))
    return list(found.values())


def _read(engine: str, name: str) -> dict[str, Any]:
    declared, options = ENGINES[engine].options.declared(), {}
    for word in name.split("+")[1:]:
        key, _, value = word.partition("=")
        kind = declared[key].type
        options[key] = value != "False" if kind is bool else kind(value)
    return options


def contributions(cells: pl.DataFrame, plan: Iterable[Case]) -> list[str]:
    """Say of each group's winner how many times slower it is without each of its options, where that was tried, and
    of which engines no option was tried."""
    by_id, lines = {case.id: case for case in plan}, []
    for key, choice in choices(cells):
        if choice.winner is None:
            continue
        won, told = by_id[choice.winner["case_ids"][0]], []
        reasons = {_identity(by_id[loser.cell["case_ids"][0]]): loser.reasons[0] for loser in choice.losers}
        for name, option in ENGINES[won.engine].options.declared().items():
            reason = reasons.get(_identity(_with(won, name, option.default)))
            if _options(won)[name] != option.default and reason and reason.code == "worse" and reason.value:
                told.append(f"{name}: {times(reason.value, reason.low, reason.high)}")
        is_whole = all(one in reasons and reasons[one].code in _MEASURED for one in _around(won))
        end = "no option makes a difference beyond doubt" if is_whole else "not all of its options were measured"
        end = f"slower without {listed(told)}" if told else end
        lines.append(f"{key['model']}, batch {key['batch_size']}, {cell_name(choice.winner)}: {end}")
        tried = {case.engine for case in by_id.values() if case.variant.startswith(f"{case.engine}+")}
        fastest, least = _fastest_of_engines(choice), choice.winner["latency_ms"]
        others = [c for c in fastest if c["engine"] not in {*tried, won.engine} and _around(by_id[c["case_ids"][0]])]
        if names := [f"{c['engine']} ({times(c['latency_ms'] / least)} slower)" for c in others]:
            lines.append(f"  options not tried of {listed(names)}")
    return lines


def _around(case: Case) -> set[tuple[object, ...]]:
    return {_identity(each) for each in neighbours(case)}


def _with(case: Case, name: str, value: object) -> Case:
    options = {**case.options, name: value}
    return replace(case, variant=label(case.engine, options), options=options, replicate=0)


def _options(case: Case) -> dict[str, Any]:
    return asdict(ENGINES[case.engine].options(**case.options))


def _identity(case: Case) -> tuple[object, ...]:
    """Return what two cases have in common that are one configuration under two names."""
    axes = case.model, case.engine, case.pass_, case.precision, case.batch_size, case.setting
    return (*axes, *sorted((name, str(value)) for name, value in _options(case).items()))


def _fastest_of_engines(choice: Choice) -> list[Row]:
    """Return the fastest cell of each engine that may be chosen, the fastest engine first."""
    able = [choice.best] if choice.best else []
    able += [one.cell for one in choice.losers if {reason.code for reason in one.reasons} <= _MEASURED]
    able.sort(key=lambda cell: cell["latency_ms"])
    best: dict[str, Row] = {}
    for cell in able:
        best.setdefault(cell["engine"], cell)
    return list(best.values())
