"""Learn the spread between a configuration's processes on a machine, and widen the rows' intervals by it.

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
from filelock import FileLock, Timeout

from exporters.cache import default_root
from exporters.named_files import write_whole
from profiler.results.cells import CONFIGURATION, OK, QUIET, own_arms, spread_of
from profiler.results.columns import kind_of_warning
from profiler.results.result import WITH_ENDS, ends_of, set_by_host
from profiler.results.warning_kinds import HOST_BOUND, KINDS
from profiler.stats.intervals import Spread, spread_reach, typical_spread

Learned = Mapping[str, tuple[float, float]]
"""Map a class, such as "host/ort", to its typical spread and its number of configurations."""
_KEYS = ["run_id", *CONFIGURATION, "engine"]
_HOST, _DEVICE = "host", "device"
_MOST_RUNS = 20
_LOCK_SECONDS = 10
_MOST_EARLIER = 10.0
"""Earlier runs count as at most this many configurations: they measured other models."""


def learned(rows: pl.DataFrame, calm: bool = False) -> Learned:
    """Learn from the replicated configurations of runs on one machine.

    Disturbed processes count only if no process was quiet; `calm` drops rows that are to be measured again.
    """
    retaken = [kind.kind for kind in KINDS.values() if kind.retake]
    is_rough = pl.col("warnings").list.eval(kind_of_warning(pl.element()).is_in(retaken)).list.any()
    ok = rows.filter(OK, ~is_rough | pl.lit(not calm))
    ok = ok.filter(QUIET | ~QUIET.any().over(_KEYS))
    ok = ok.with_columns(_by_host(ok)).with_columns(pl.col("by_host").any().over(_KEYS))
    of_device = ok.filter(~pl.col("by_host")).select(*_KEYS, figure="latency_ms", kind=pl.lit(_DEVICE))
    kinds = {"latency_ms": _HOST, "gpu_ms": _DEVICE}
    of_host = [ok.filter("by_host").select(*_KEYS, figure=name, kind=pl.lit(kind)) for name, kind in kinds.items()]
    cells = pl.concat([*of_host, of_device]).filter(pl.col("figure") > 0).group_by(*_KEYS, "kind")
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
    """Pool the spreads of several runs, class by class."""
    names = dict.fromkeys(name for run in runs for name in run)
    return {name: pooled(run[name] for run in runs if name in run) for name in names}


def spread(kind: str, engine: str, classes: Learned) -> Spread | None:
    """Return the spread of the engine's class, or of all engines if its class has too few configurations."""
    all_engines = pooled(pair for name, pair in classes.items() if name.startswith(f"{kind}/"))
    return Spread.of_class(*classes.get(f"{kind}/{engine}", (1.0, 0.0))) or Spread.of_class(*all_engines)


def with_spread(rows: pl.DataFrame, earlier: Learned | None = None) -> pl.DataFrame:
    """Add the spread that one machine's rows and `earlier` runs show, and widen the intervals by it.

    If it is unknown, its columns are null and each interval is of its process alone.
    """
    classes, engines = together(learned(rows), earlier or {}), rows["engine"].unique().to_list()
    priors = {(kind, engine): spread(kind, engine, classes) for kind in (_HOST, _DEVICE) for engine in engines}
    by_host = rows.with_columns(_by_host(rows)).select(pl.col("by_host").any().over("run_id", *CONFIGURATION))
    kinds = {"latency_ms": [_HOST if is_host else _DEVICE for is_host in by_host.to_series()]}
    kinds["gpu_ms"] = [_DEVICE] * len(rows)
    arms, columns = own_arms(rows), dict[str, pl.Series]()
    for figure, of_rows in kinds.items():
        cases, name = zip(of_rows, rows["engine"], rows[ends_of(figure)[0]], strict=True), spread_of(figure)
        spreads = [None if low is None else priors[kind, engine] for kind, engine, low in cases]
        columns[name] = pl.Series(name, [prior and prior.sd for prior in spreads], pl.Float64)
        columns[f"{name}_free"] = pl.Series(f"{name}_free", [prior and prior.free for prior in spreads], pl.Float64)
    for name in WITH_ENDS:
        reach = spread_reach(*(columns[f"{spread_of(name)}{end}"].fill_null(0.0).to_numpy() for end in ("", "_free")))
        for end, arm, sign in zip(ends_of(name), arms[name], (-1, 1), strict=True):
            widened = rows[name] * np.exp(sign * np.hypot(reach, arm))
            columns[end] = pl.select(pl.when(rows[end].is_not_null()).then(widened)).to_series().alias(end)
    return rows.with_columns(columns.values())


def _by_host(rows: pl.DataFrame) -> pl.Series:
    """Return whether the host sets each row's latency."""
    is_host_bound = pl.col("warnings").list.eval(kind_of_warning(pl.element()) == HOST_BOUND).list.any()
    clocks = rows.select("latency_ms", "gpu_ms", "enqueue_ms", is_host_bound.fill_null(value=False)).rows()
    return pl.Series("by_host", [warned or set_by_host(*medians) for *medians, warned in clocks], pl.Boolean)


def earlier_spread(environment: Mapping[str, Any]) -> Learned:
    """Pool the spreads of this machine's earlier runs, from the cache if it can be read."""
    runs = together(*_cached().get(_machine(environment), {}).values())
    return {name: (typical, min(number, _MOST_EARLIER)) for name, (typical, number) in runs.items()}


def keep_spread(environment: Mapping[str, Any], run_id: str, classes: Learned) -> None:
    """Cache this run's spreads for later runs, if the cache can be written."""
    if not classes:
        return
    machine = _machine(environment)
    with contextlib.suppress(OSError, Timeout):
        default_root().mkdir(parents=True, exist_ok=True)
        with FileLock(default_root() / "spreads.json.lock", timeout=_LOCK_SECONDS):
            machines = _cached()
            runs = {**machines.get(machine, {}), run_id: {name: list(pair) for name, pair in classes.items()}}
            machines[machine] = dict(sorted(runs.items())[-_MOST_RUNS:])
            write_whole(default_root() / "spreads.json", json.dumps(machines, indent=1) + "\n")


def _cached() -> dict[str, dict[str, Any]]:
    with contextlib.suppress(OSError, ValueError):
        return dict(json.loads((default_root() / "spreads.json").read_bytes()))
    return {}


def _machine(environment: Mapping[str, Any]) -> str:
    return " / ".join(str(environment.get(key)) for key in ("device", "gpu", "cpu", "cpu_cores"))
