"""Make one row of a case's replicates, and list what went wrong: cases without figures, and others' warnings."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import polars as pl

from profiler.job.case import Role
from profiler.results.columns import COLUMNS, kind_of_warning
from profiler.results.reading import Frame
from profiler.results.warning_kinds import CONTRADICTION, INCONSISTENT, KINDS, doubting, without_factor

OK = pl.col("status") == "ok"
OUT_OF_MEMORY = "out of memory"
CELL = ("status", "model", "variant", "pass", "precision", "reason")


def merge(rows: pl.DataFrame, keys: Sequence[str], columns: Sequence[str], **more: pl.Expr) -> pl.DataFrame:
    """One row for all rows that agree in `keys`, in the order of their first ones: `as_one` of `columns`, and `more`.

    Probes are lines like others: give `without_probes(rows)` where they are not meant.
    """
    return rows.group_by(keys, maintain_order=True).agg(*as_one(rows.select(columns).schema), **more)


def as_one(schema: Mapping[str, pl.DataType]) -> list[pl.Expr]:
    """One value for each column of the replicates, and `replicates`, how many of them were measured (status ok).

    A figure is the median over the measured ones, of a percentile only where each of them has it: those that lack it
    took the fewest samples, and what the others say may lie below a lower percentile of all. `warnings` are the kinds
    that those carry, of kinds that forbid a factor only those of half of them: fewer hardly move the median, and an
    interval between processes holds them. `throttled` is whether any of them was, `samples` their sum. All else, such
    as status and reason, is the first measured one's, or the first one's where none was measured.
    """
    return [OK.sum().cast(pl.Int64).alias("replicates"), *(_one(name, kind) for name, kind in schema.items())]


def without_probes(results: Frame) -> Frame:
    """The rows that the job asked for: without those by which the largest batch was searched."""
    return results.filter(pl.col("role") != Role.PROBE)


def measured(results: Frame) -> Frame:
    """Of those the rows that have figures."""
    return without_probes(results).filter(OK)


def not_measured(results: Frame, by: Sequence[str] = CELL, *more: pl.Expr) -> Frame:
    """One row for all cases without figures that agree in `by`: their batch sizes, sorted, and `more`."""
    cases = without_probes(results).filter(~OK).group_by(by, maintain_order=True)
    return cases.agg(pl.col("batch_size").unique().sort(), *more)


def warned(results: pl.DataFrame) -> pl.DataFrame:
    """One row a kind of warning, in the order of the first: how many `cases` carry it, and their `case_ids`.

    `example` is the whole warning of the first, for a kind that only another version of the profiler knows.
    """
    given = measured(results).select("run_id", "case_id", example="warnings").explode("example").drop_nulls("example")
    return given.group_by(kind=kind_of_warning(pl.col("example")), maintain_order=True).agg(
        pl.struct("run_id", "case_id").n_unique().alias("cases"),
        pl.col("case_id").unique(maintain_order=True).alias("case_ids"),
        pl.first("example"),
    )


def why_not() -> pl.Expr:
    """Why a row, or all replicates of a line, have no figures; null where they have."""
    why = pl.format("{}: {}", "status", pl.col("reason").fill_null("no reason was given"))
    return pl.when(status="oom").then(pl.lit(OUT_OF_MEMORY)).when(~OK).then(why)


def of_half(carry: pl.Expr) -> pl.Expr:
    """Whether at least half of the measured rows carry something."""
    return (2 * carry.sum() >= OK.sum()) & carry.any()


def disturbed(kinds: pl.Expr) -> pl.Expr:
    """Of lists of kinds of warnings those that forbid to say by what factor a row wins, as text; null without any."""
    return _among(kinds, without_factor(KINDS))


def doubts(kinds: pl.Expr) -> pl.Expr:
    """Of such lists the other kinds that make a time unreliable, as text; null without any."""
    return _among(kinds, sorted({*doubting("latency")} - {*without_factor(KINDS)}))


def _among(kinds: pl.Expr, wanted: Sequence[str]) -> pl.Expr:
    text = kinds.list.set_intersection(pl.lit(wanted, pl.List(pl.String))).list.sort().list.join(", ")
    return pl.when(text != "").then(text)


def by_throughput_ms() -> pl.Expr:
    """Milliseconds of a call by the throughput, of a row whose `warnings` (kinds) and figures say that the two
    contradict each other; else null. Parts of an iteration that contradict it are of the same kind."""
    found = 1000 * pl.col("batch_size") / pl.col("throughput")
    unlike = (found / pl.col("latency_ms")).log().abs() > math.log(CONTRADICTION)
    return pl.when(pl.col("warnings").list.contains(INCONSISTENT) & unlike).then(found)


def ranked_ms() -> pl.Expr:
    """What decides which row is the fastest: the latency, or of two figures that contradict each other the worse."""
    return pl.max_horizontal("latency_ms", by_throughput_ms())


def ranked() -> dict[str, pl.Expr]:
    """The same by the figure that is to be the best or is limited: of the throughput, in items/s."""
    tails = {c.name: pl.max_horizontal(c.name, by_throughput_ms()) for c in COLUMNS.values() if c.percentile}
    rate = pl.when(by_throughput_ms().is_not_null()).then(1000 * pl.col("batch_size") / ranked_ms())
    return {"latency_ms": ranked_ms(), **tails, "throughput": pl.coalesce(rate, "throughput")}


def _one(name: str, kind: pl.DataType) -> pl.Expr:
    column = pl.col(name)
    known = column.filter(OK)
    match name:
        case "warnings":
            kinds = kind_of_warning(known.explode().drop_nulls()).unique(maintain_order=True)
            for doubt in without_factor(KINDS):
                carry = known.list.eval(kind_of_warning(pl.element())).list.contains(doubt)
                kinds = kinds.filter((kinds != doubt) | of_half(carry))
            return kinds.alias(name)
        case "throttled":
            return known.any()
        case "samples":
            return known.sum()
    if name in COLUMNS and COLUMNS[name].percentile:
        return pl.when(known.null_count() == 0).then(known.median()).alias(name)
    return known.median() if kind.is_float() else column.get(OK.cast(pl.UInt8).arg_max())
