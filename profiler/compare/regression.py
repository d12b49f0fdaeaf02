"""Find the cells of a comparison that are slower by more than a limit, such as 5%."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import polars as pl

from profiler.errors import ConfigError
from profiler.stats.ratios import BETWEEN, WITHIN
from profiler.tables.numbers import count, counted, percent

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
        """In words, of the slower cells the worst `top`."""
        limit = f"{100 * self.limit:g} %"
        said = [f"{counted(self.slower.height, 'cell')} slower by more than {limit}:"]
        if self.slower.is_empty():
            said = [f"No cell is certainly slower by more than {limit}."]
        said += [f"{_name(row)}: {_how_much(row)}" for row in self.slower.head(top).to_dicts()]
        said += [f"and {count(self.slower.height - top)} more"] if self.slower.height > top else []
        if self.broken.height:
            said.append(f"{counted(self.broken.height, 'cell')} that the base ran failed:")
        said += [
            f"{_name(row)}: {row['side_status']}, {row['side_reason']}" for row in self.broken.head(top).to_dicts()
        ]
        said += [f"and {count(self.broken.height - top)} more"] if self.broken.height > top else []
        if self.perhaps.height:
            more = "may be slower by more, which more replicates would show"
            said.append(f"{counted(self.perhaps.height, 'cell')} {more}.")
        if self.unknown.height:
            said.append(f"{counted(self.unknown.height, 'cell')} could not be judged: there is no interval.")
        return said


def find_regressions(cells: pl.DataFrame, limit: float) -> Regression:
    """Judges the cells of `compare`, the worst first. Raises ConfigError where none of them can be judged."""
    between = pl.col("interval") == BETWEEN
    ratio, high = (pl.when(between).then(f"device_{name}").otherwise(name) for name in ("ratio", "ratio_high"))
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


def cell_key(row: Mapping[str, Any]) -> dict[str, Any]:
    """What names a cell and its side."""
    return {key: row[key] for key in ("side", "model", "variant", "pass", "precision", "batch_size", "extra")}


def _name(row: Mapping[str, Any]) -> str:
    key = cell_key(row)
    batch = key["batch_size"]
    parts = [*(key[name] for name in ("model", "variant", "pass", "precision")), batch and f"b{batch}", key["extra"]]
    return f"{key['side']}: {'/'.join(part for part in parts if part)}"


def _how_much(row: Mapping[str, Any]) -> str:
    """Like "7.1 % slower (6.2 to 8.0, between processes, on device time)"."""
    within = row["interval"] == WITHIN
    name = "ratio" if within else "device_ratio"
    middle, least, most = (percent(1 / row[f"{name}{end}"] - 1, 1) for end in ("", "_high", "_low"))
    kind = "within process" if within else f"between processes, on {_CLOCKS[row['judged_on']]}"
    return f"{middle} % slower ({least} to {most}, {kind})"
