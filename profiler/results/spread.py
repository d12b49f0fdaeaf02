"""Learn how far processes of one configuration differ on a machine, and widen the rows' intervals by that.

Replicated configurations show the spread of their class: an engine, and whether the host or the device sets the figure.
The cache keeps it for later runs (docs/method.md).
"""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import polars as pl

from exporters.cache import default_root
from exporters.whole_file import write_whole
from profiler.results.cells import CONFIGURATION, OK, QUIET, own_arms, spread_of
from profiler.results.columns import kind_of_warning
from profiler.results.result import HOST_SHARE, WITH_ENDS, ends_of
from profiler.results.warning_kinds import HOST_BOUND, KINDS
from profiler.stats.intervals import Spread, spread_reach, typical_spread

Learned = Mapping[str, tuple[float, float]]
"""Map a class, such as "host/ort", to its typical spread and its number of configurations."""
_KEYS = ["run_id", *CONFIGURATION, "engine"]
_HOST, _DEVICE = "host", "device"
_MOST_RUNS = 20
_MOST_EARLIER = 10.0
"""Earlier runs count as at most this many configurations: they measured other models."""
_KIND = kind_of_warning(pl.element())


def learned(rows: pl.DataFrame, calm: bool = False) -> Learned:
    """Learn from the replicated configurations of runs on one machine.

    Disturbed processes count only if none was quiet; `calm` leaves out all rows with a cause to be measured again.
    """
    retaken = [kind.kind for kind in KINDS.values() if kind.retake]
    is_calm = ~pl.col("warnings").list.eval(_KIND.is_in(retaken)).list.any()
    ok = rows.filter(OK, is_calm if calm else pl.lit(value=True))
    ok = ok.filter(QUIET | ~QUIET.any().over(_KEYS)).with_columns(by_host=_by_host().any().over(_KEYS))
    parts = [("latency_ms", _HOST, True), ("gpu_ms", _DEVICE, True), ("latency_ms", _DEVICE, False)]
    figures = [
        ok.filter(by_host=by_host).select(*_KEYS, figure=name, kind=pl.lit(kind)) for name, kind, by_host in parts
    ]
    cells = pl.concat(figures).filter(pl.col("figure") > 0).group_by(*_KEYS, "kind")
    replicated = cells.agg(variance=pl.col("figure").log().var(), free=pl.len() - 1).filter(pl.col("free") > 0)
    classes = replicated.sort(pl.all()).group_by("kind", "engine", maintain_order=True)
    return {
        f"{kind}/{engine}": (typical_spread(part["variance"], part["free"]), float(part.height))
        for (kind, engine), part in classes
    }


def pooled(parts: Iterable[tuple[float, float]]) -> tuple[float, float]:
    """Average typical spreads on the log scale, weighted by their numbers of configurations."""
    parts = list(parts)
    number = sum(weight for _, weight in parts)
    logs = sum(weight * math.log(typical) for typical, weight in parts if typical > 0)
    return math.exp(logs / max(number, 1.0)), number


def together(*runs: Learned) -> Learned:
    """Pool what several runs learned, class by class."""
    names = dict.fromkeys(name for run in runs for name in run)
    return {name: pooled(run[name] for run in runs if name in run) for name in names}


def spread(kind: str, engine: str, classes: Learned) -> Spread | None:
    """Return the spread of the engine's class, or of all engines if its class has too few configurations."""
    of_kind = pooled(pair for name, pair in classes.items() if name.startswith(f"{kind}/"))
    return Spread.of_class(*classes.get(f"{kind}/{engine}", (1.0, 0.0))) or Spread.of_class(*of_kind)


def with_spread(rows: pl.DataFrame, earlier: Learned | None = None) -> pl.DataFrame:
    """Add the spread that one machine's rows and `earlier` runs show, and widen the intervals by it.

    If it is unknown, its columns are null and each interval is of its process alone.
    """
    classes, engines = together(learned(rows), earlier or {}), rows["engine"].unique().to_list()
    priors = {(kind, engine): spread(kind, engine, classes) for kind in (_HOST, _DEVICE) for engine in engines}
    by_host = rows.select(_by_host().any().over("run_id", *CONFIGURATION)).to_series().fill_null(value=True)
    kinds = {"latency_spread": [_HOST if is_host else _DEVICE for is_host in by_host]}
    kinds["gpu_spread"] = [_DEVICE] * len(rows)
    measured = {"latency_spread": rows["latency_low_ms"].is_not_null(), "gpu_spread": rows["gpu_low_ms"].is_not_null()}
    arms, columns = own_arms(rows), dict[str, pl.Series]()
    for name, of_rows in kinds.items():
        cases = zip(of_rows, rows["engine"], measured[name], strict=True)
        spreads = [priors[kind, engine] if is_measured else None for kind, engine, is_measured in cases]
        columns[name] = pl.Series(name, [prior and prior.sd for prior in spreads], pl.Float64)
        columns[f"{name}_free"] = pl.Series(f"{name}_free", [prior and prior.free for prior in spreads], pl.Float64)
    for name in WITH_ENDS:
        reach = spread_reach(*(columns[f"{spread_of(name)}{end}"].fill_null(0.0).to_numpy() for end in ("", "_free")))
        for end, arm, sign in zip(ends_of(name), arms[name], (-1, 1), strict=True):
            widened = rows[name] * np.exp(sign * np.hypot(reach, arm))
            columns[end] = pl.select(pl.when(rows[end].is_not_null()).then(widened)).to_series().alias(end)
    return rows.with_columns(columns.values())


def _by_host() -> pl.Expr:
    """Tell whether the host sets a row's latency, as `set_by_host` does."""
    device = pl.coalesce("gpu_ms", "latency_ms", 0.0)
    enqueues = (pl.col("enqueue_ms") > HOST_SHARE * device).fill_null(value=True)
    return pl.col("warnings").list.eval(_KIND == HOST_BOUND).list.any() | enqueues


def earlier_spread(environment: Mapping[str, Any]) -> Learned:
    """Pool what earlier runs on this machine left in the cache; nothing where that cannot be read."""
    runs = together(*_kept().get(_machine(environment), {}).values())
    return {name: (typical, min(number, _MOST_EARLIER)) for name, (typical, number) in runs.items()}


def keep_spread(environment: Mapping[str, Any], run_id: str, classes: Learned) -> None:
    """Keep this run's spreads for later runs; ignore a cache that cannot be written."""
    if not classes:
        return
    machines, machine = _kept(), _machine(environment)
    runs = {**machines.get(machine, {}), run_id: {name: list(pair) for name, pair in classes.items()}}
    machines[machine] = dict(sorted(runs.items())[-_MOST_RUNS:])
    with contextlib.suppress(OSError):
        default_root().mkdir(parents=True, exist_ok=True)
        write_whole(default_root() / "spreads.json", json.dumps(machines, indent=1) + "\n")


def _kept() -> dict[str, dict[str, Any]]:
    with contextlib.suppress(OSError, ValueError):
        return dict(json.loads((default_root() / "spreads.json").read_bytes()))
    return {}


def _machine(environment: Mapping[str, Any]) -> str:
    return " / ".join(str(environment.get(key)) for key in ("device", "gpu", "cpu", "cpu_cores"))
