"""Check the options of `python -m profiler recommend`, and read from them what is requested of some results."""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Annotated, Any

import polars as pl
from pydantic import Field

from engines.catalog import PASSES, PRECISIONS
from profiler.errors import PROGRAM, ConfigError, check_choice, nearest
from profiler.job.conditions import Filter
from profiler.options import Recommend as Options
from profiler.results.choice import Limit
from profiler.results.columns import COLUMNS, LIMITED_BY
from profiler.results.reading import chosen as matching
from profiler.stats.samples import PERCENTILE_NEEDS

FORMATS = ("text", "md", "json")
OBJECTIVES = {column.objective: column.name for column in COLUMNS.values() if column.objective}
"""By objective the figure that is to be as good as possible."""
_RESTRICTED: Mapping[str, tuple[str, Callable[[Any], pl.Expr]]] = {
    "--batch": ("batch_sizes", pl.col("batch_size").is_in),
    "--precision": ("precisions", pl.col("precision").is_in),
    "--engine": ("engines", lambda names: matching(Filter(engine=list(names)))),
    "--exclude-engine": ("without_engines", lambda names: ~matching(Filter(engine=list(names)))),
    "--machine": ("machines", pl.col("machine").is_in),
}
"""By option the field of a request, and which rows its values leave."""


@dataclass(frozen=True)
class Request:
    """Ask what to deploy; of batch sizes, precisions, engines and machines those that are named, or all.

    `setting` is a training's or a shape's, as the column has it. `prices` are dollars an hour by machine, in place of
    what the runs say. `engines` and `without_engines` are names of engines or variants.
    """

    model: str
    pass_: Annotated[str, Field(serialization_alias="pass")] = "inference"
    batch_sizes: tuple[int, ...] = ()
    precisions: tuple[str, ...] = ()
    setting: str = ""
    limits: tuple[Limit, ...] = ()
    objective: str = "latency"
    prices: Mapping[str, float] = field(default_factory=dict)
    allow_uncalibrated: bool = False
    engines: tuple[str, ...] = ()
    without_engines: tuple[str, ...] = ()
    machines: tuple[str, ...] = ()

    @property
    def restrictions(self) -> list[str]:
        """Return the options that narrow the candidates down."""
        return [option for option, (name, _) in _RESTRICTED.items() if getattr(self, name)]

    def admitted(self) -> pl.Expr:
        """Return which rows the request leaves to choose from."""
        asked = [pl.col("model") == self.model, pl.col("pass") == self.pass_, pl.col("setting") == self.setting]
        narrowed = (_RESTRICTED[option] for option in self.restrictions)
        return pl.all_horizontal(*asked, *(leaves(getattr(self, name)) for name, leaves in narrowed))


def check(options: Options) -> tuple[Limit, ...]:
    """Return the limits. Raises ConfigError for what is wrong in any runs."""
    check_choice("--objective", options.objective, OBJECTIVES)
    check_choice("--format", options.format, FORMATS)
    check_choice("--pass", options.pass_, PASSES)
    if options.export is not None and options.pass_ != "inference":
        raise ConfigError("--export: an artifact runs inference; leave out --pass, or --export")
    limits = [_latency(text.strip()) for texts in options.max_latency_ms for text in texts.split(",")]
    for name, option in LIMITED_BY.items():
        value = getattr(options, option.strip("-").replace("-", "_"))
        if value is not None and option != "--max-latency-ms":
            limits.append(Limit(name, _positive(option, str(value), "another")))
    return tuple(limits)


def each_of(options: Options, results: pl.DataFrame) -> list[Options]:
    """Return the options for each model, and for each setting of one without a plain one; an export has one."""
    asked = list[Options]()
    by_model = results.filter(pl.col("model") == (options.model or pl.col("model"))).partition_by(
        "model", maintain_order=True
    )
    for rows in by_model if options.export is None else ():
        there = list(dict.fromkeys(rows.filter(pl.col("pass") == options.pass_)["setting"]))
        model = rows["model"][0] if len(by_model) > 1 else options.model
        settings = [options.setting] if options.setting or "" in there or len(there) < 2 else there
        asked += [replace(options, model=model, setting=setting) for setting in settings]
    return asked or [options]


def command_line(options: Options) -> str:
    """Return the command that asks `recommend` for this."""
    words = list(options.runs)
    for option in fields(options)[1:]:
        value, flag = getattr(options, option.name), f"--{option.name.strip('_').replace('_', '-')}"
        values = value if isinstance(value, list | tuple) else [value] * (value != option.default)
        words += [flag] if value is True else [word for one in values for word in (flag, str(one))]
    return f"{PROGRAM} recommend {shlex.join(words)}"


def make_request(options: Options, results: pl.DataFrame) -> Request:
    """Return the request to these results, one row a case. Raises ConfigError for what they do not hold."""
    limits = check(options)
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
    machines = rows["machine"].drop_nulls().unique(maintain_order=True)
    _check_there("--machine", options.machine, machines, f"{model} was not measured on that machine")
    request = Request(
        model,
        options.pass_,
        batches,
        precisions,
        setting=_setting(options, rows),
        limits=limits,
        objective=options.objective,
        prices=_prices(options.usd_per_hour, options.machine or machines.to_list()),
        allow_uncalibrated=options.allow_uncalibrated,
        engines=_engines("--engine", options.engine, model, rows),
        without_engines=_engines("--exclude-engine", options.exclude_engine, model, rows),
        machines=tuple(options.machine),
    )
    if rows.filter(request.admitted()).is_empty():
        given = request.restrictions  # They exclude each other, or everything.
        how = {1: "it", 2: "both"}.get(len(given), "all of them")
        raise ConfigError(f"{', '.join(given)}: no row of these runs meets {how}")
    _check_objective(request, rows)
    return request


def _engines(option: str, given: Sequence[str], model: str, rows: pl.DataFrame) -> tuple[str, ...]:
    names = tuple(name for text in given for name in _list(text))
    there = pl.concat([rows["engine"], rows["variant"]])
    _check_there(option, names, there, f"{model} was not measured with that engine")
    return names


def _latency(text: str) -> Limit:
    """Read a limit: "2" is of the median, "p99=2" of a percentile."""
    valid = f"a number, for the median, or {', '.join(f'p{q}=…' for q in PERCENTILE_NEEDS)}"
    figures = {"p50": "latency_ms", **{f"p{c.percentile}": c.name for c in COLUMNS.values() if c.percentile}}
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


def _setting(options: Options, rows: pl.DataFrame) -> str:
    """Return the setting to choose in: the plain one where none is named, or the only one."""
    there = rows["setting"].unique(maintain_order=True).to_list()
    known = ", ".join(setting or "plain" for setting in there)
    if options.setting is None:
        if "" not in there and len(there) > 1:
            raise ConfigError(f"--setting is missing: these runs have {known}; give one")
        return "" if "" in there else str(there[0])
    setting = "" if options.setting == "plain" else options.setting
    if setting not in there:
        raise ConfigError(f"--setting: no case has '{setting}'; these runs have {known}")
    return setting


def _prices(given: Sequence[str], machines: Sequence[str]) -> dict[str, float]:
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
