"""Simulate machines whose configurations differ in spread, and count how often intervals hold the truth.

All of it uses the product's own functions; `benchmarks/verdicts.py --simulated` prints the tables of docs/verdicts.md.
"""

from __future__ import annotations

from functools import cache

import numpy as np
import polars as pl

from profiler.stats.intervals import (
    Processes,
    Spread,
    Verdict,
    processes_beyond,
    ratio_interval,
    typical_spread,
    verdict,
)
from profiler.stats.samples import Floats

TYPICAL = 0.01
"""Typical standard deviation of log medians between processes."""
LOG_SD = {"equal": 0.0, "lognormal": 0.7}
"""How far the standard deviations of configurations differ, on the log scale."""
_BASES, _REPLICATED = 10, 3
"""Configurations that a run has in three processes anyway."""
_FIFTH = 0.8
_CONTENDERS = 3


@cache
def simulated(
    kind: str, processes: int, configurations: int = 20, machines: int = 200, margin: float = 0.01, seed: int = 0
) -> dict[str, float]:
    """Simulate pairs of equal configurations; return the shares held, in the noisiest fifth too, and called falsely.

    `width` is the median half-width of a cell's interval in typical spreads, `noisy_width` that of the noisiest fifth.
    """
    rng, parts = np.random.default_rng(seed), []
    for _ in range(machines):
        sds = _spreads(rng, kind, configurations)
        known, sides = _learned(rng, kind), []
        for _ in range(2):
            logs = rng.normal(0.0, sds[:, None], (configurations, processes))
            sides.append(cells(logs, known))
        parts.append(_judged(sides, sds, margin))
    return _summary(pl.concat(parts))


def selected(kind: str, configurations: int, machines: int = 1000, seed: int = 1) -> float:
    """Return how often the interval of a run's winner holds the truth, of so many equal configurations.

    Those that lead by one process are measured in three more, which alone make their figures.
    """
    rng, held = np.random.default_rng(seed), 0
    for _ in range(machines):
        sds, known = _spreads(rng, kind, configurations), _learned(rng, kind)
        first = rng.normal(0.0, sds)
        leading = np.argsort(first)[:_CONTENDERS]
        further = rng.normal(0.0, sds[leading][:, None], (_CONTENDERS, _REPLICATED))
        found = cells(further, known, np.column_stack([first[leading], further]), _CONTENDERS)
        best = int(np.argmin(found.middle))
        low, high = found.interval()
        held += bool(low[best] <= 0 <= high[best])
    return held / machines


def cells(counted: Floats, known: Spread | None, seen: Floats | None = None, tests: int = 1) -> Processes:
    """Make cells of processes with these log medians, shape (cells, processes), that know nothing else of themselves.

    `seen` also has those that do not count for the figure.
    """
    number, count = counted.shape
    every, nothing = counted if seen is None else seen, np.zeros(number)
    at = max(0.0, processes_beyond(count)) / max(1, count - 1)
    return Processes(
        middle=np.median(counted, axis=1),
        count=np.full(number, float(count)),
        usable=np.full(number, float(every.shape[1])),
        variance=every.var(axis=1, ddof=1) if every.shape[1] > 1 else np.full(number, np.nan),
        lowest=np.quantile(counted, at, axis=1),
        highest=np.quantile(counted, 1 - at, axis=1),
        below=nothing,
        above=nothing,
        sd=np.full(number, known.sd if known else 0.0),
        free=np.full(number, known.free if known else 0.0),
        tests=np.full(number, float(tests)),
    )


def _spreads(rng: np.random.Generator, kind: str, number: int) -> Floats:
    return TYPICAL * np.exp(rng.normal(0.0, LOG_SD[kind], number))


def _learned(rng: np.random.Generator, kind: str) -> Spread | None:
    """Return what a run's replicated configurations tell of others."""
    logs = rng.normal(0.0, _spreads(rng, kind, _BASES)[:, None], (_BASES, _REPLICATED))
    free = np.full(_BASES, _REPLICATED - 1.0)
    return Spread.of_class(typical_spread(logs.var(axis=1, ddof=1), free), _BASES)


def _judged(sides: list[Processes], sds: Floats, margin: float) -> pl.DataFrame:
    ends = [side.interval() for side in sides]
    (base, own), (of_base, of_own) = ([np.exp(side.middle) for side in sides], [np.exp(end) for end in ends])
    _, low, high = ratio_interval((base, *of_base), (own, *of_own))
    read = [verdict(a, b, margin) for a, b in zip(low, high, strict=True)]
    return pl.DataFrame(
        {
            "sd": sds,
            "cell_held": (ends[0][0] <= 0) & (ends[0][1] >= 0),
            "held": (low <= 1) & (high >= 1),
            "false": [one in (Verdict.FASTER, Verdict.SLOWER) for one in read],
            "width": (ends[0][1] - ends[0][0]) / 2 / TYPICAL,
        }
    )


def _summary(pairs: pl.DataFrame) -> dict[str, float]:
    noisy = pairs.filter(pl.col("sd") >= pl.col("sd").quantile(_FIFTH))
    return {
        **{name: float(pairs[name].mean()) for name in ("cell_held", "held", "false")},  # type: ignore[arg-type]
        "noisy_held": float(noisy["held"].mean()),  # type: ignore[arg-type]
        "noisy_cell_held": float(noisy["cell_held"].mean()),  # type: ignore[arg-type]
        "noisy_false": float(noisy["false"].mean()),  # type: ignore[arg-type]
        "width": float(pairs["width"].median()),  # type: ignore[arg-type]
        "noisy_width": float(noisy["width"].median()),  # type: ignore[arg-type]
    }
