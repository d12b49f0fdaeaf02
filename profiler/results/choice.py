"""Choose among cells, by one rule for terminal, report and recommend.

docs/method.md ("Verdicts and the winner") states the rule.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import polars as pl

from engines.catalog import engine_row, unsupported
from engines.options import EIGHT_BITS, PRECISION_TABLE
from profiler.results.cells import FAULTS, GROUP, Row, compared
from profiler.results.columns import FIGURES
from profiler.results.losses import telling_error
from profiler.results.reasons import Reason
from profiler.results.result import JUDGED, RANGED, ends_of
from profiler.results.warning_kinds import DISTURBED, HOST_BOUND
from profiler.stats.intervals import Verdict, items_needed, margin, verdict
from profiler.stats.samples import PERCENTILE_NEEDS
from profiler.tables.numbers import is_busy, listed

HIGHER = frozenset(name for name, figure in FIGURES.items() if figure.better == "more")
MAX_ERROR = 1e-2
"""Default limit of the error in inference."""
TIES = "within 5 % the soonest start wins, among starts within a second the most exact precision"
"""The rule that decides a tie."""
ENOUGH = 5
"""More processes than this hardly narrow a cell's interval."""
_SPARE = 1.1
"""Factor on a sampling time, as calls are slower now and then."""
_LEAST_MS = 0.05
"""Shorter calls are timed in blocks of this length (worker/sampling.py)."""
_MOST_CONTENDERS = 3
_OPEN = 1.25
"""The choice is open if a cell may be better than the best by more than this factor."""
_MOST_NAMED = 3
_NEAR = 0.05
"""Figures that differ by less than this share are near."""
_SCREEN = 5
"""A cell without an interval is worse if it is this many margins behind."""
_NEAR_SECONDS = 1.0
"""Starts that differ by no more are alike."""
_PLACE = ("batch_size", "setting", "machine")
"""Columns that rivals share."""
_SPEEDS = ("latency_ms", "throughput", "usd_per_million_items")
"""A skipped case can only lose by these figures to the one that beat it."""
_CODES = {"faster": "worse", "slower": "better", None: "unclear"}
"""Map the verdict of the best against a cell to that cell's code."""


@dataclass(frozen=True)
class Limit:
    """The highest value that a figure may have, or the lowest if more is better; greater than 0."""

    figure: str
    value: float

    def holds(self, value: float) -> bool:
        return value >= self.value if self.figure in HIGHER else value <= self.value

    def excess(self, value: float | None) -> float:
        if value is None or (self.figure in HIGHER and not value):
            return math.inf
        return self.value / value - 1 if self.figure in HIGHER else value / self.value - 1

    def measured(self, cell: Row) -> float | None:
        """Return the figure that the limit applies to: an error's bound for a further item, a loss's upper end."""
        return cell.get(f"{self.figure}_high" if self.figure in ("error", "accuracy_loss") else self.figure)

    def missed(self, cell: Row) -> Reason | None:
        """Return why the cell misses the limit; None if it meets it."""
        value = self.measured(cell)
        if value is None and (percentile := FIGURES[self.figure].percentile):
            low, high = map(cell.get, ends_of("latency_ms"))
            if not self.holds(cell["latency_ms"]):  # A percentile that can be limited is at least the median.
                return Reason("over", cell["latency_ms"], self.value, low, high, figure="latency_ms")
            samples = cell["samples"] // max(1, cell["processes"])
            return Reason("unknown", _seconds_for(percentile, cell), figure=self.figure, have=samples)
        if value is None:
            lacks_base = self.figure == "accuracy_loss" and cell.get("accuracy") is not None
            return Reason("no-base" if lacks_base else "unknown", figure=self.figure)
        if self.holds(value):
            return None
        code = "under" if self.figure in HIGHER else "over"
        low, high = map(cell.get, ends_of(self.figure)) if self.figure in RANGED else (None, None)
        if self.figure == "accuracy_loss":
            loss, have = cell[self.figure], None
            if loss < self.value:
                items, error = cell["accuracy_items"], telling_error(cell)
                code, have = "too-wide", items_needed(items, loss, value, self.value, error)
            return Reason(code, loss, self.value, low, high, figure=self.figure, have=have)
        place = (cell.get("worst") or "") if self.figure == "error" else ""
        return Reason(code, value, self.value, low, high, figure=self.figure, text=place)


DEFAULT_LIMIT = Limit("error", MAX_ERROR)


def _seconds_for(percentile: int, cell: Row) -> int:
    """Return a sampling time that surely takes enough samples: a steady case stops after half of its clock's time."""
    share = 0.25 if cell["clock"] == "event" else 0.5
    ms = max(float(cell["latency_ms"]), _LEAST_MS)
    return math.ceil(_SPARE * PERCENTILE_NEEDS[percentile] * ms / 1000 / share)


@dataclass(frozen=True)
class Loser:
    """A cell that was not chosen, and why."""

    cell: Row
    reasons: tuple[Reason, ...]


@dataclass(frozen=True, kw_only=True)
class Choice:
    """The best among cells, and why each other cell is not.

    The best is the winner unless `doubt` says why that is unknown yet. `tied` are the cells that are not proven worse
    and whose factor is known, best first. `runner_up` is the best other cell, if possible of the same batch, and
    `margin` says how many times worse it is. `losers` are all other cells, best first. If nothing meets the limits,
    `nearest` misses its worst limit by the smallest share.
    """

    figure: str
    limits: tuple[Limit, ...]
    best: Row | None = None
    doubt: Reason | None = None
    tied: tuple[Row, ...] = ()
    runner_up: Row | None = None
    margin: Reason | None = None
    losers: tuple[Loser, ...] = ()
    nearest: Row | None = None

    @property
    def winner(self) -> Row | None:
        return self.best if self.doubt is None else None

    @property
    def status(self) -> Literal["deploy", "tie", "undecided", "nothing"]:
        if self.doubt is not None:
            return "undecided"
        return "nothing" if self.best is None else "tie" if self.tied else "deploy"

    @property
    def cells(self) -> list[Row]:
        """Return all cells, best first."""
        return [cell for cell in (self.best, *(loser.cell for loser in self.losers)) if cell]

    @property
    def leaders(self) -> list[Row]:
        """Return the best and its ties, best first."""
        return [cell for cell in (self.best, *self.tied) if cell]

    @property
    def names(self) -> str:
        """Name the best and its ties: "ort fp32 or openvino fp32"."""
        return listed(map(_name, self.leaders), "or", _MOST_NAMED)


def choose(
    cells: pl.DataFrame, figure: str = "latency_ms", limits: Sequence[Limit] = (), allow_uncalibrated: bool = False
) -> Choice:
    """Choose among cells of one model and pass; they may be of several batches and machines."""
    limits_quality = any(limit.figure in ("error", "accuracy_loss") for limit in limits)
    allow_uncalibrated = allow_uncalibrated or limits_quality
    default = [DEFAULT_LIMIT] if not limits_quality and "inference" in cells["pass"] else []
    limits = (*limits, *default)
    sign = -1 if figure in HIGHER else 1

    def rank(row: Row) -> tuple[Any, ...]:
        return row["status"] != "ok", row[figure] is None, sign * (row[figure] or 0.0), _start(row)

    rows = sorted(cells.to_dicts(), key=rank)
    judged = [Loser(row, _barred(row, figure, limits, allow_uncalibrated)) for row in rows]
    fit, barred = [loser.cell for loser in judged if not loser.reasons], [loser for loser in judged if loser.reasons]
    if not fit:
        timed = [row for row in rows if row["status"] == "ok"]
        measured = [row for row in timed if row[figure] is not None]

        def distance(row: Row) -> tuple[bool, float]:
            excess = max((limit.excess(limit.measured(row)) for limit in limits), default=0.0)
            return is_uncalibrated(row) and not allow_uncalibrated, excess

        nearest: Row | None = min(measured, key=distance, default=None)
        doubt = None
        if undecided := next((loser for loser in judged if all(reason.is_open for reason in loser.reasons)), None):
            nearest, doubt = undecided.cell, undecided.reasons[0]
        if waiting := sum(row["status"] == "waiting" for row in rows):
            doubt = Reason("unmeasured", waiting)
        if skipped := _unsettled(judged, figure):
            doubt = Reason("skipped", skipped)
        if timed and not measured:  # No further measurement of this job has the figure.
            doubt = Reason("unknown", figure=figure)
        return Choice(figure=figure, limits=limits, losers=tuple(barred), nearest=nearest, doubt=doubt)
    against_best = zip(fit, _against(fit, fit[0], figure), strict=True)
    tied = [(row, reason.value or 1.0) for row, reason in against_best if reason.code != "worse"]
    near = [row for row, factor in tied if factor < 1 + _NEAR]
    # A narrow interval may prove a cell better although both tie with the best.
    unbeaten = [row for row in near if "better" not in {reason.code for reason in _against(fit, row, figure)}]
    soon = min(_start(row)[0] for row in unbeaten) + _NEAR_SECONDS

    def preference(row: Row) -> tuple[float, float, float]:
        set_up, memory = _start(row)
        precision = PRECISION_TABLE.get(row["precision"])
        return max(set_up, soon), precision.usual_error if precision else math.inf, memory

    best = min(unbeaten, key=preference)
    against_best = zip(fit, _against(fit, best, figure), strict=True)
    beaten = [Loser(row, (reason,)) for row, reason in against_best if row is not best]
    rivals = [loser for loser in beaten if loser.cell["machine"] == best["machine"]]
    beside = [loser for loser in rivals if all(loser.cell[key] == best[key] for key in _PLACE)]
    runner_up = next(iter(beside or beaten), None)
    unknown = [loser.cell for loser in beaten if loser.reasons[0].is_busy]
    return Choice(
        figure=figure,
        limits=limits,
        best=best,
        doubt=_doubt(best, rivals, judged, figure),
        tied=tuple(row for row, _ in tied if row is not best and row not in unknown),
        runner_up=runner_up.cell if runner_up else None,
        margin=runner_up.reasons[0] if runner_up else None,
        losers=(*beaten, *barred),
    )


def _doubt(best: Row, rivals: Sequence[Loser], judged: Sequence[Loser], figure: str) -> Reason | None:
    """Return why the best of all `judged` cells is no winner yet; `rivals` share its machine."""
    cells = [loser.cell for loser in judged]
    measured = [cell for cell in cells if cell["status"] == "ok"]
    if skipped := _unsettled(judged, figure):
        return Reason("skipped", skipped, text=cell_name(best))
    waiting = sum(cell["status"] == "waiting" for cell in cells)
    if all(cell["is_base"] for cell in measured) and (waiting or not any(map(_was_tried, cells))):
        return Reason("only-base", waiting, text=cell_name(best))
    if FIGURES[figure].unit == "MiB":  # Other work takes our time, not our memory.
        return None
    if 2 * sum(DISTURBED in cell["footnotes"] for cell in measured) > len(measured):
        return Reason("disturbed", text=cell_name(best))
    if figure in JUDGED and best[ends_of(figure)[0]] is None:
        return Reason("one-process", have=best["measured"], text=cell_name(best))
    bases = [rival for rival in rivals if rival.cell["is_base"] and rival.cell["batch_size"] == best["batch_size"]]
    open_rivals = [rival for rival in rivals if _may_be_better(rival, best, figure)]
    ends = [tuple(map(best.get, ends_of(figure)))] if figure in JUDGED else []
    ends += [(rival.reasons[0].low, rival.reasons[0].high) for rival in (*bases, *open_rivals)]
    if any(is_busy(*pair) for pair in ends):
        return Reason("busy", text=cell_name(best))
    for rival in open_rivals:
        return replace(rival.reasons[0], code="open", text=_name(best), rival=_name(rival.cell))
    return None


def _may_be_better(rival: Loser, best: Row, figure: str) -> bool:
    """Return whether a rival may be better by more than _OPEN."""
    reason = rival.reasons[0]
    if reason.code != "unclear":
        return False
    # Without an interval of the factor, the best's own is the least that is unknown.
    worst = best.get(ends_of(figure)[figure not in HIGHER]) or best[figure]
    low = reason.low or (reason.value or 1.0) * min(worst / best[figure], best[figure] / worst)
    return _OPEN * low < 1


def _unsettled(judged: Sequence[Loser], figure: str) -> int:
    """Count skipped cells that may be better than the best: the cell that beat them is left out, but not too slow."""

    def is_settled(loser: Loser) -> bool:
        is_slow = any(r.code in ("over", "under") and r.figure in _SPEEDS for r in loser.reasons)
        return figure in _SPEEDS and (is_slow or not loser.reasons)

    cells = [loser.cell for loser in judged if is_settled(loser)]
    settled = {(*(cell[key] for key in _PLACE), cell_name(cell)) for cell in cells}
    skipped = [loser.cell for loser in judged if loser.cell["beaten_by"]]
    return sum((*(cell[key] for key in _PLACE), cell["beaten_by"]) not in settled for cell in skipped)


def _was_tried(cell: Row) -> bool:
    """Tell whether the cell's engine ran and failed, or runs here and refused this model."""
    if cell["status"] != "unsupported":
        return cell["status"] in FAULTS
    engine, place = engine_row(cell["engine"]), (cell["pass"], cell["device"], cell["precision"], cell["model_kind"])
    is_installed = engine.version is not None and cell[engine.version.column] is not None
    return is_installed and unsupported(engine, *place) is None


def choices(cells: pl.DataFrame, by: Sequence[str] = ("run_id",)) -> list[tuple[dict[str, Any], Choice]]:
    """Choose the lowest latency in every group of cells; return each group's key with its choice."""
    keys = [*by, *(name for name in GROUP if name not in by)]
    groups = cells.group_by(keys, maintain_order=True)
    return [(dict(zip(keys, key, strict=True)), choose(group)) for key, group in groups]


def contenders(cells: pl.DataFrame, with_equals: bool = True) -> list[list[Row]]:
    """Return the likely winners of each group: the best, and up to two others that may be better.

    These lie within the fastest one's interval, or are so uncertain that they leave the choice open. Without equals,
    leave out cells proven equivalent to the best.
    """
    groups = []
    for _, choice in choices(cells):
        if best := choice.best:
            limit = min(choice.leaders, key=lambda cell: float(cell["latency_ms"]))["latency_high_ms"] or math.inf
            near = [cell for cell in choice.tied if cell["latency_ms"] <= limit]
            likely = [t for t in choice.losers if t.cell in near or _may_be_better(t, best, choice.figure)]
            others = [loser.cell for loser in likely if with_equals or loser.reasons[0].code != "equivalent"]
            groups.append([best, *others[: _MOST_CONTENDERS - 1]])
    return groups


def wide_bases(cells: pl.DataFrame) -> list[Row]:
    """Return the bases whose own intervals leave the best of their group without a factor."""
    return [
        cell
        for _, choice in choices(cells)
        if choice.best and choice.doubt and choice.doubt.code == "busy"
        for cell in choice.cells
        if cell["is_base"] and is_busy(*map(cell.get, ends_of("latency_ms")))
    ]


def cell_name(cell: Row) -> str:
    """Return a cell's configuration, like "compiled fp16"."""
    return f"{cell['variant']} {cell['precision']}"


def _name(cell: Row) -> str:
    return cell.get("name") or cell_name(cell)


def is_uncalibrated(cell: Row) -> bool:
    """Tell whether a cell has 8-bit ranges without the user's data, so that its error on that data is unknown."""
    return cell["precision"] in EIGHT_BITS and not cell["calibrated"]


def _barred(row: Row, figure: str, limits: Sequence[Limit], allow_uncalibrated: bool) -> tuple[Reason, ...]:
    """Return why a cell may not be chosen."""
    if row["status"] != "ok":
        return (Reason("not-measured", text=f"{row['status']}: {row['reason'] or 'no reason'}"),)
    if row[figure] is None:
        return (Reason("unknown", figure=figure),)
    missed = [limit.missed(row) for limit in limits]
    barred = [Reason("uncalibrated")] if is_uncalibrated(row) and not allow_uncalibrated else []
    return tuple(reason for reason in (*barred, *missed) if reason is not None)


def _against(rows: Sequence[Row], best: Row, figure: str) -> list[Reason]:
    """Judge each row against the best: "worse", "better", "equivalent" or "unclear", and how many times worse it is.

    Without an interval, only a difference of several margins counts, from the other side's interval if it has one.
    """
    ends = ends_of(figure) if figure in JUDGED else ()
    has_ends = bool(ends) or FIGURES[figure].unit == "MiB"  # Memory is exact.
    names = [figure, *ends, "clock"]
    sides = {"": rows, "_best": [best] * len(rows)}
    both = pl.DataFrame({f"{name}{of}": [row[name] for row in side] for of, side in sides.items() for name in names})
    # The best is the side and each row its base, so a factor tells how many times worse the row is.
    factors = compared(both, base="", side="_best", figure=figure)
    filled = both.with_columns(pl.col(f"{end}{of}").fill_null(pl.col(f"{figure}{of}")) for of in sides for end in ends)
    by_one_end = compared(filled, base="", side="_best", figure=figure).select("factor_low", "factor_high")
    reasons = []
    for row, (factor, low, high, outcome), (bottom, top) in zip(
        rows, factors.iter_rows(), by_one_end.iter_rows(), strict=True
    ):
        if factor and (outcome is None or not has_ends):
            is_host = HOST_BOUND in {*row["footnotes"], *best["footnotes"]}
            screened = verdict(bottom, top, _SCREEN * margin(None if is_host else row["clock"]))
            outcome = None if screened is Verdict.EQUIVALENT else str(screened)
        reasons.append(Reason(_CODES.get(outcome, outcome), factor, None, low, high, figure=figure))
    return reasons


def surpasses(cell: Row, best: Row, figure: str) -> bool:
    """Return whether the cell is proven better than the best of those that meet the limits."""
    return _against([cell], best, figure)[0].code == "better"


def _start(row: Row) -> tuple[float, float]:
    """Return a row's set-up seconds and peak memory, infinite if unknown."""
    set_up, memory = (math.inf if row[name] is None else row[name] for name in ("set_up_s", "peak_memory_mib"))
    return set_up, memory
