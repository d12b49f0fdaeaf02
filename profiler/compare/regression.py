"""Find the cells of a comparison that are slower by more than a limit, such as 5%."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import polars as pl

from profiler.errors import ConfigError
from profiler.stats.ratios import BETWEEN, WITHIN
from profiler.tables.numbers import count, counted, percent, times

Row = Mapping[str, Any]

BROKEN = ("failed", "oom", "timeout", "crashed")
_CLOCKS = {"gpu": "device time", "host": "latency", "latency": "latency"}


def parse_limit(text: str) -> float:
    """ "5%" as 0.05; raises ConfigError for anything else."""
    found = re.fullmatch(r"(\d+(?:\.\d*)?|\.\d+) ?%", text.strip())
    if not found:
        raise ConfigError(f"--fail-on-regression: expected a percentage such as 5%, got '{text}'")
    return float(found[1]) / 100


@dataclass(frozen=True)
class Regression:
    """What the cells say of slow-downs by more than `limit` (0.05 is 5 %); each frame has rows of `compare`'s.

    `slower`: the whole interval lies beyond the limit. It is the interval between processes on the clock that is judged
    where there are three processes a side, else the headline clock's within processes. `broken`: the base ran the cell,
    and it failed on the side. `perhaps`: the ratio lies beyond the limit, its interval does not. `unknown`: there is no
    interval.
    """

    limit: float
    slower: pl.DataFrame
    broken: pl.DataFrame
    perhaps: pl.DataFrame
    unknown: pl.DataFrame

    @property
    def found(self) -> bool:
        """Whether there is a regression."""
        return not (self.slower.is_empty() and self.broken.is_empty())

    def lines(self, top: int) -> list[str]:
        """In words, of the slower and of the broken cells the worst `top`."""
        limit = f"{100 * self.limit:g} %"
        slower = f"{counted(self.slower.height, 'cell')} slower by more than {limit}:"
        lines = [f"No cell is certainly slower by more than {limit}." if self.slower.is_empty() else slower]
        lines += _listed(self.slower, top, _how_much)
        if self.broken.height:
            lines.append(f"{counted(self.broken.height, 'cell')} that the base ran failed:")
            lines += _listed(self.broken, top, lambda row: f"{row['side_status']}, {row['side_reason']}")
        if self.perhaps.height:
            cells = counted(self.perhaps.height, "cell")
            lines.append(f"{cells} may be slower by more, which more replicates would show.")
        if self.unknown.height:
            lines.append(f"{counted(self.unknown.height, 'cell')} could not be judged: there is no interval.")
        return lines


def find_regressions(cells: pl.DataFrame, limit: float) -> Regression:
    """Judges the cells of `compare`, the worst first. Raises ConfigError where none of them can be judged."""
    on_device = _is_judged_on_device()
    ratio, high = (pl.when(on_device).then(f"device_{name}").otherwise(name) for name in ("ratio", "ratio_high"))
    worst = cells.sort(ratio, nulls_last=True, maintain_order=True)
    beyond = 1 / (1 + limit)
    compared = worst.drop_nulls("ratio")
    found = Regression(
        limit,
        slower=compared.filter(high < beyond),
        broken=worst.filter(pl.col("base_status") == "ok", pl.col("side_status").is_in(BROKEN)),
        perhaps=compared.filter(ratio < beyond, high >= beyond),
        unknown=compared.filter(high.is_null()),
    )
    if found.unknown.height == compared.height and not found.found:
        why = next(iter(compared["why_no_verdict"].drop_nulls()), "no cell was measured on both sides")
        raise ConfigError(f"--fail-on-regression: no cell can be judged ({why}); measure with replicates: 3 or more")
    return found


def _is_judged_on_device() -> pl.Expr:
    """Between processes, where there is a device time: of calls that no gate can hold there is none."""
    return (pl.col("interval") == BETWEEN) & pl.col("device_ratio_high").is_not_null()


def _listed(cells: pl.DataFrame, top: int, text: Callable[[Row], str]) -> list[str]:
    """The first `top` cells, each with what is to say of it, and how many more there are."""
    lines = [f"{_name(row)}: {text(row)}" for row in cells.head(top).to_dicts()]
    return [*lines, f"and {count(cells.height - top)} more"] if cells.height > top else lines


def _name(row: Row) -> str:
    batch = row["batch_size"] and f"b{row['batch_size']}"
    parts = [row["model"], row["variant"], row["pass"], row["precision"], batch, row["extra"]]
    return f"{row['side']}: {'/'.join(filter(None, parts))}"


def _how_much(row: Row) -> str:
    """Like "7.1 % slower (6.2 to 8.0, between processes, on device time)"; from twice the time on "77× slower (…)"."""
    within = row["interval"] == WITHIN
    on_device = not within and row["device_ratio_high"] is not None
    name = "device_ratio" if on_device else "ratio"
    middle, least, most = (1 / row[f"{name}{end}"] for end in ("", "_high", "_low"))
    clock = _CLOCKS[row["judged_on"]] if on_device else "latency"
    kind = "within process" if within else f"between processes, on {clock}"
    if middle >= 2:
        return f"{times(middle, sign='× slower')} ({times(least)} to {times(most)}, {kind})"
    return f"{percent(middle - 1, 1)} % slower ({percent(least - 1, 1)} to {percent(most - 1, 1)}, {kind})"
