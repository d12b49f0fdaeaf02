"""Check the options of `python -m profiler recommend`, and read from them what is requested of some results."""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Sequence
from dataclasses import fields, replace

import polars as pl

from engines.catalog import PASSES, PRECISIONS
from profiler.errors import PROGRAM, ConfigError, check_choice, nearest
from profiler.options import Recommend as Options
from profiler.recommend.candidates import FIGURES, machine_name
from profiler.recommend.choice import LIMITED_BY, OBJECTIVES, Limit, Request, rows_of
from profiler.results.replicates import without_probes
from profiler.stats.samples import PERCENTILE_NEEDS

FORMATS = ("text", "md", "json")


def check(options: Options) -> tuple[Limit, ...]:
    """Return the limits. Raises ConfigError for what is wrong in any runs."""
    check_choice("--objective", options.objective, OBJECTIVES)
    check_choice("--format", options.format, FORMATS)
    check_choice("--pass", options.pass_, PASSES)
    if options.export is not None and options.pass_ != "inference":
        raise ConfigError("--export: an artifact runs inference; leave out --pass, or --export")
    most = {"peak_memory_mib": options.max_memory_mib, "error": options.max_error}
    given = {name: value for name, value in {"throughput": options.min_throughput, **most}.items() if value is not None}
    limits = [_latency(text.strip()) for texts in options.max_latency_ms for text in texts.split(",")]
    limits += [Limit(name, _positive(LIMITED_BY[name], str(value), "another")) for name, value in given.items()]
    return tuple(limits)


def each_of(options: Options, results: pl.DataFrame) -> list[Options]:
    """The options for each of the models, and each work, where they do not say which; one is exported, as they say."""
    asked = list[Options]()
    cells = without_probes(results).filter(pl.col("model") == (options.model or pl.col("model")))
    by_model = cells.partition_by("model", maintain_order=True)
    for rows in by_model if options.export is None else ():
        works = dict.fromkeys(rows.filter(pl.col("pass") == options.pass_)["setting"])
        model = rows["model"][0] if len(by_model) > 1 else options.model
        extras = [options.extra] if options.extra or "" in works or not works else works
        asked += [replace(options, model=model, extra=extra) for extra in extras]
    return asked or [options]


def command_line(options: Options) -> str:
    """The command that asks `recommend` for this, as text."""
    words = list(options.runs)
    for option in fields(options)[1:]:
        value, flag = getattr(options, option.name), f"--{option.name.strip('_').replace('_', '-')}"
        values = value if isinstance(value, list | tuple) else [value] * (value != option.default)
        words += [flag] if value is True else [word for one in values for word in (flag, str(one))]
    return f"{PROGRAM} recommend {shlex.join(words)}"


def make_request(options: Options, results: pl.DataFrame) -> Request:
    """The request to these results, one row a case. Raises ConfigError for what they do not hold."""
    limits = check(options)
    results = without_probes(results)
    model = _model(options.model, results)
    rows = results.filter(model=model)
    _check_there("--pass", [options.pass_], rows["pass"], f"{model} was not measured in that pass")
    rows = rows.filter(pl.col("pass") == options.pass_)
    precisions = _list(options.precision)
    for word in precisions:
        check_choice("--precision", word, PRECISIONS)
    _check_there("--precision", precisions, rows["precision"], f"{model} was not measured at that precision")
    batches = _batches(options.batch)
    _check_there("--batch", batches, rows["batch_size"], f"{model} was not measured at that size")
    machines = rows.select(machine_name()).to_series().unique(maintain_order=True)
    _check_there("--machine", options.machine, machines, f"{model} was not measured on that machine")
    request = Request(
        model,
        options.pass_,
        batches,
        precisions,
        work=_work(options, rows),
        limits=limits,
        objective=options.objective,
        prices=_prices(options.usd_per_hour, options.machine or machines.to_list()),
        allow_uncalibrated=options.allow_uncalibrated,
        engines=_engines("--engine", options.engine, model, rows),
        without_engines=_engines("--exclude-engine", options.exclude_engine, model, rows),
        machines=tuple(options.machine),
    )
    if rows_of(results, request).is_empty():
        given = list(request.restrictions)  # They exclude each other, or everything.
        how = {1: "it", 2: "both"}.get(len(given), "all of them")
        raise ConfigError(f"{', '.join(given)}: no row of these runs meets {how}")
    _check_objective(request, rows)
    return request


def _engines(option: str, given: Sequence[str], model: str, rows: pl.DataFrame) -> tuple[str, ...]:
    """Names of engines or variants, all of which the rows have."""
    names = tuple(name for text in given for name in _list(text))
    there = pl.concat([rows["engine"], rows["variant"]])
    _check_there(option, names, there, f"{model} was not measured with that engine")
    return names


def _latency(text: str) -> Limit:
    """ "2" is the median, "p99=2" a percentile."""
    valid = f"a number, for the median, or {', '.join(f'p{q}=…' for q in PERCENTILE_NEEDS)}"
    figures = {"p50": "latency_ms", **{f"p{c.percentile}": c.name for c in FIGURES.values() if c.percentile}}
    name, equals, number = text.rpartition("=")
    if equals and name not in figures:
        raise ConfigError(f"--max-latency-ms: unknown '{name}'; give {valid}")
    return Limit(figures[name] if equals else "latency_ms", _positive("--max-latency-ms", number, valid))


def _positive(option: str, text: str, valid: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not 0 < number < math.inf:
        raise ConfigError(f"{option}: '{text}' is not a number greater than 0; give {valid}")
    return number


def _check_there(option: str, requested: Sequence[object], column: pl.Series, why: str) -> None:
    there = set(column)
    for value in requested:
        if value not in there:
            listed = ", ".join(map(str, sorted(there)))
            raise ConfigError(f"{option} {value}: {why} in these runs; they have {listed}")


def _model(name: str | None, results: pl.DataFrame) -> str:
    there = list(results["model"].unique(maintain_order=True))
    if name is None:
        if len(there) > 1:
            raise ConfigError(f"--model is missing: the runs have {len(there)}: {', '.join(there)}")
        return str(there[0])
    if name not in there:
        raise ConfigError(f"--model: '{name}' is not in these runs{nearest(name, there)}")
    return name


def _list(text: str | None) -> tuple[str, ...]:
    return tuple(dict.fromkeys(word.strip() for word in text.split(",") if word.strip())) if text else ()


def _batches(text: str | None) -> tuple[int, ...]:
    words = _list(text)
    if words == ("all",):
        return ()
    for word in words:
        if not re.fullmatch(r"[1-9]\d*", word):
            raise ConfigError(f"--batch: '{word}' is not a batch size; give numbers such as 1,16, or all")
    return tuple(map(int, words))


def _work(options: Options, rows: pl.DataFrame) -> str:
    """Which of the settings of training; the plain one where none is named, or the only one."""
    there = rows["setting"].unique(maintain_order=True).to_list()
    listed = ", ".join(setting or "plain" for setting in there)
    if options.extra is None:
        if "" not in there and len(there) > 1:
            raise ConfigError(f"--extra is missing: these runs have {listed}, which do different work")
        return "" if "" in there else str(there[0])
    work = "" if options.extra == "plain" else options.extra
    if work not in there:
        raise ConfigError(f"--extra: no case has '{work}'; these runs have {listed}")
    return work


def _prices(given: Sequence[str], machines: Sequence[str]) -> dict[str, float]:
    """Dollars an hour by machine."""
    prices: dict[str, float] = {}
    for text in given:
        label, equals, number = text.rpartition("=")
        price = _positive("--usd-per-hour", number, "3.5, or LABEL=3.5")
        if not equals and len(machines) > 1:
            listed = ", ".join(f"'{machine}=…'" for machine in machines)
            raise ConfigError(f"--usd-per-hour {text}: give the machine, since the runs are of several: {listed}")
        if equals and label not in machines:
            raise ConfigError(f"--usd-per-hour: no run is of the machine '{label}'{nearest(label, machines)}")
        prices |= {label: price} if equals else dict.fromkeys(machines, price)
    return prices


def _check_objective(request: Request, rows: pl.DataFrame) -> None:
    """Refuse what no row could be judged by."""
    measured = rows.filter(status="ok")
    if measured.is_empty():
        return
    if request.objective == "energy" and not measured["energy_mj_per_item"].count():
        raise ConfigError(
            "--objective energy: no row has energy_mj_per_item; measure on a GPU with `energy: true` in the job"
        )
    if request.objective == "cost" and not request.prices and not measured["usd_per_hour"].count():
        raise ConfigError(
            "--objective cost: the runs have no price; give --usd-per-hour 3.5, or a job `machine: {usd_per_hour: 3.5}`"
        )
