"""Check what a results folder holds, as nothing says who made it: what no run writes is left out, which a note says."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, get_args

import polars as pl

from engines.catalog import DEVICES, PASSES, PRECISIONS
from exporters.source import Kind
from profiler.errors import ConfigError
from profiler.job.case import Role
from profiler.processes.messages import Status
from profiler.results.columns import COLUMNS, LAYERS, RESULTS, SAMPLES, TEXT
from profiler.results.run_files import MOST_TEXT, UNPRINTABLE
from profiler.tables.numbers import counted, listed

UNREADABLE = (pl.exceptions.PolarsError, pl.exceptions.PanicException, OSError)
"""What polars raises for a file that it cannot read; damaged bytes make some of its readers panic."""
_CONTROL = UNPRINTABLE.format("")
_INTEGERS = (*(pl.Int8, pl.Int16, pl.Int32, pl.Int64), *(pl.UInt8, pl.UInt16, pl.UInt32, pl.UInt64))
_TAKEN: dict[pl.DataType, tuple[Any, ...]] = {
    TEXT: (pl.String, pl.Categorical, pl.Enum),
    pl.Int64(): _INTEGERS,
    pl.Float64(): (pl.Float32, pl.Float64, *_INTEGERS),
    pl.Boolean(): (pl.Boolean,),
    pl.List(TEXT): (pl.List(pl.String), pl.List(pl.Null)),
}
"""By type of a column those that a file may have in its place."""
_LEAST, _MOST = 1e-9, 1e18
"""Of figures: what is less is nothing, and what is more would overflow in what is made of it."""
_MOST_COUNT = 2**53
_SIGNED = {column.name for column in COLUMNS.values() if column.unit in ("MiB", "°C")}
"""Figures of which less than nothing is possible: the rest of the memory is a difference."""
_SETTING = r"^[^/=]+=[^/]*(/[^/=]+=[^/]*)*$"
_SCHEMAS = {"results": RESULTS, "samples": SAMPLES, "layers": LAYERS}
_NEVER_NULL = {
    "results": ("run_id", "case_id", "model", "engine", "variant", "pass", "precision", "batch_size", "status"),
    "samples": ("run_id", "case_id", "clock", "ms"),
    "layers": ("run_id", "case_id", "order", "layer", "nodes", "ms", "share"),
}
_WORDS: dict[str, tuple[str, ...]] = {
    "pass": PASSES,
    "precision": PRECISIONS,
    "device": DEVICES,
    "status": get_args(Status),
    "role": tuple(Role),
    "model_kind": get_args(Kind),
}
"""Columns that have one of a few words."""
_DIVISORS = {
    *(name for name in RESULTS if name.startswith("latency_")),
    *("gpu_ms", "host_ms", "throughput", "usd_per_million_items", "items_per_usd"),
}
"""Figures that others are divided by, or whose logarithm is drawn."""
_SETTINGS = ("extra", "setting", "shape")
"""Columns of what distinguishes a case: key=value, with slashes between."""


def check_types(path: str, there: Mapping[str, pl.DataType], schema: Mapping[str, pl.DataType]) -> None:
    """Raises ConfigError for a column that is of another kind than its name says."""
    for name, dtype in schema.items():
        found = there.get(name, pl.Null())
        if found not in (pl.Null(), *_TAKEN[dtype]):
            raise ConfigError(f"{path}: the column {name} is of type {found}, not {dtype}; give another run")


def checked(table: str, frame: pl.LazyFrame, where: str, notes: list[str]) -> pl.LazyFrame:
    """The rows of a table ("results", "samples" or "layers") that a run could have written, with printable texts.

    All of it is read once, so that nothing fails later. Raises ConfigError where it cannot be.
    """
    rules = _rules(table)
    sound = pl.all_horizontal(*rules.values()).fill_null(value=False)
    try:
        bad, odd = frame.select(bad=(~sound).sum(), odd=_odd(table)).collect(engine="streaming").row(0)
        if bad:
            broken = frame.select((~rule.fill_null(value=False)).any().alias(name) for name, rule in rules.items())
            wrong = [name for name, is_broken in broken.collect(engine="streaming").to_dicts()[0].items() if is_broken]
            what = f"{where}: {counted(bad, 'row')} left out, for values that no run writes: {listed(wrong)}"
            notes.append(what)
            frame = frame.filter(sound)
        if odd:
            frame = frame.with_columns(printable_texts(frame.collect_schema()))
        if table != "results":
            return frame
        rows = frame.collect()
        if bad and rows.is_empty():
            raise ConfigError(f"{what}; nothing is left, give another run")
    except UNREADABLE as error:
        raise ConfigError(f"{where}: cannot be read: {first_line(error)}; give another run") from None
    once = rows.unique(["run_id", "case_id"], keep="first", maintain_order=True)
    if twice := rows.height - once.height:
        notes.append(f"{where}: {counted(twice, 'row')} left out, of cases that have one already")
    return once.lazy()


def first_line(error: BaseException) -> str:
    """What an error says, on one line."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return next(iter(str(error).strip().splitlines()), type(error).__name__)


def _rules(table: str) -> dict[str, pl.Expr]:
    """By column what its values must be."""
    schema, many = _SCHEMAS[table], table == "samples"  # Whose texts nobody prints.
    rules = {name: _rule(name, dtype) for name, dtype in schema.items() if not (many and dtype == TEXT)}
    if table == "results":
        rules["latency_ms"] &= (pl.col("status") != "ok") | pl.col("latency_ms").is_not_null()
    for name in _NEVER_NULL[table]:
        rules[name] = rules.get(name, pl.lit(value=True)) & pl.col(name).is_not_null()
    return rules


def _rule(name: str, dtype: pl.DataType) -> pl.Expr:
    """What a column's value must be."""
    column = pl.col(name)
    if name in _WORDS:
        return column.is_null() | column.is_in(_WORDS[name])
    if name in _SETTINGS:
        return _short(name) & ((column.fill_null("") == "") | column.str.contains(_SETTING))
    if dtype == TEXT:
        return _short(name)
    if dtype == pl.Int64():
        return _is_count(name, 1 if name == "batch_size" else 0)
    if dtype == pl.Float64():
        return _in_range(name, _LEAST if name in _DIVISORS else -_MOST if name in _SIGNED else 0.0)
    return _items(name) if dtype == pl.List(TEXT) else pl.lit(value=True)


def _in_range(name: str, least: float = 0.0) -> pl.Expr:
    return pl.col(name).is_null() | (pl.col(name).is_finite() & pl.col(name).is_between(least, _MOST))


def _is_count(name: str, least: int = 0) -> pl.Expr:
    return pl.col(name).is_null() | pl.col(name).is_between(least, _MOST_COUNT)


def _short(name: str) -> pl.Expr:
    return pl.col(name).is_null() | (pl.col(name).str.len_chars() <= MOST_TEXT)


def _items(name: str) -> pl.Expr:
    """A list of short texts, none of them null."""
    items = pl.col(name)
    lengths = items.list.eval(pl.element().str.len_chars().fill_null(MOST_TEXT + 1)).list.max()
    return items.is_null() | (lengths.fill_null(0) <= MOST_TEXT)


def _odd(table: str) -> pl.Expr:
    """Whether a text has characters that a terminal would obey; samples have none that is printed."""
    if table == "samples":
        return pl.lit(value=False)
    texts = [pl.col(name).str.contains(_CONTROL) for name, dtype in _SCHEMAS[table].items() if dtype == TEXT]
    (items,) = (pl.col(name) for name, dtype in _SCHEMAS[table].items() if dtype == pl.List(TEXT))
    texts.append(items.list.eval(pl.element().str.contains(_CONTROL)).list.any())
    return pl.any_horizontal(text.any() for text in texts)


def printable_texts(schema: Mapping[str, pl.DataType]) -> list[pl.Expr]:
    """The columns of texts, in which what a terminal would obey is shown as �."""
    lists = {name: pl.col(name).list.eval(_shown(pl.element())) for name in schema if schema[name] == pl.List(TEXT)}
    texts = {name: _shown(pl.col(name)) for name in schema if schema[name] == TEXT}
    return [column.alias(name) for name, column in {**lists, **texts}.items()]


def _shown(text: pl.Expr) -> pl.Expr:
    return text.str.replace_all(_CONTROL, "�")
