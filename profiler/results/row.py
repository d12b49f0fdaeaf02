"""Make a result's row of results.parquet: figures, their 95 % intervals, and how far processes differ on this machine.

The spread of the bases' medians is pooled over models, batch sizes and earlier runs (docs/method.md).
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
from collections.abc import Iterable, Mapping
from typing import Any

from engines.base import Proof
from engines.catalog import ENGINES
from exporters.cache import default_root
from exporters.source import shape_words
from exporters.whole_file import write_whole
from profiler.job.case import Case
from profiler.results.columns import COLUMNS, Group, names, prices
from profiler.results.result import PARTS, WITH_ENDS, Result, ends_of, is_set_by_host
from profiler.results.warning_kinds import DISTURBED, retaken
from profiler.stats import samples as statistics
from profiler.stats.intervals import CONTRADICTION, UNMEASURED, Spread, Spreads, deviations, figure_interval, pooled

Row = dict[str, Any]
Sums = Mapping[str, tuple[float, float]]
"""Summed squares and degrees of freedom of "host" and of "device"."""
ENVIRONMENT = names(Group.PLACE, Group.VERSIONS)
_KINDS = ("host", "device")
_MOST_RUNS = 20
_MOST_EARLIER = 6.0
"""Most degrees of freedom that earlier runs get: their models may have been others."""


def flat_environment(environment: Mapping[str, Any], name: str | None = None) -> dict[str, Any]:
    """Flatten the machine's price and cloud into environment.json; `machine` is its label, GPU or processor."""
    machine = environment.get("machine")
    price = dict(machine) if isinstance(machine, dict) else {}
    name = name or price.pop("label", None) or environment.get("gpu") or environment.get("cpu")
    return {**environment, **price, "machine": name}


def row_of(
    result: Result, case: Case, run_id: str, suite: str, environment: Mapping[str, Any], spreads: Spreads
) -> Row:
    """Make the row; a column of a case, outcome or environment, the result's before the run's, is filled by name."""
    environment = flat_environment({**environment, **result.environment})
    proof = result.proof
    row: Row = {
        **dict.fromkeys(COLUMNS),
        **{name: getattr(case, name, None) for name in names(Group.CASE)},
        **{name: getattr(result, name, None) for name in names(Group.OUTCOME)},
        **{name: environment.get(name) for name in names(Group.MACHINE, Group.PLACE, Group.VERSIONS)},
        "run_id": run_id,
        "case_id": case.id,
        "suite": suite,
        "pass": case.pass_,
        "model_kind": case.source.kind,
        "network": case.source.catalog_name,
        "shape": "/".join(shape_words(case.shape)) or None,
        **(_training(case, proof) if case.pass_ == "training" else {}),
        "options": json.dumps(dict(case.options), sort_keys=True),
        "warnings": list(map(str, result.warnings)),
        "proof": json.dumps(proof.to_dict(), sort_keys=True) if proof else None,
    }
    version = ENGINES[case.engine].version
    if version and version.from_proof and proof and proof.library:
        row[version.column] = proof.library.rpartition(" ")[2]
    if result.status != "ok":
        return row
    figures = _figures(result, case.batch_size, row, spreads)
    return row | {name: None if _is_infinite(value) else value for name, value in figures.items()}


def _is_infinite(value: Any) -> bool:
    return isinstance(value, float) and not math.isfinite(value)


def _training(case: Case, proof: Proof | None) -> dict[str, Any]:
    """Return the settings of training, corrected by the proof."""
    ran = {"head": proof.head, "dropout": proof.dropout} if proof else {}
    settings = dataclasses.asdict(case.training) | {name: value for name, value in ran.items() if value is not None}
    return {name: value for name, value in settings.items() if name in COLUMNS}


def _figures(result: Result, batch_size: int, row: Row, spreads: Spreads) -> Row:
    found = result.figures | {name: statistics.median(values) for name, values in result.clocks.items()}
    found |= {name: getattr(result, name) for name in ("clock", "stop_reason", "throughput")}
    if result.throughput and row["usd_per_hour"]:
        found |= prices(result.throughput, row["usd_per_hour"])
    samples = result.samples.get(result.clock or "", [])
    if samples:
        found |= {
            "latency_ms": result.latency_ms,
            "latency_mean_ms": sum(samples) / len(samples),
            "latency_min_ms": min(samples),
            **{f"latency_p{q}_ms": statistics.percentile(samples, q) for q in statistics.PERCENTILE_NEEDS},
            "samples": len(samples),
        }
    return found | (_intervals(result, samples, result.latency_ms, batch_size, spreads) if result.latency_ms else {})


def _intervals(
    result: Result, samples: list[float], latency: float, batch_size: int, spreads: Spreads
) -> dict[str, float]:
    """Give each figure that others are compared by its 95 % interval (profiler.stats.intervals)."""
    spread = spreads.host if is_set_by_host(result) else spreads.device
    beside_work = (result.figures.get("disturbance") or 0.0) if result.has(DISTURBED) else None
    others = [ms for ms in _other_latencies(result, batch_size) if max(ms / latency, latency / ms) > CONTRADICTION]
    found = {"latency_ms": figure_interval(latency, samples, spread.reach, others, beside_work)}
    if result.throughput:
        # What casts doubt on the latency casts it on the throughput, which was measured right after it.
        own = figure_interval(latency, samples, spread.reach, beside_work=beside_work)
        rates = [1000 * batch_size / latency] if others else []
        rates += [result.throughput * latency / end for end in (own.low, own.high)]
        found["throughput"] = figure_interval(result.throughput, [], spread.reach, rates)
    known: dict[str, Spread] = {"latency_spread": spread}
    for column, values in result.clocks.items():
        middle = statistics.median(values)
        if column not in WITH_ENDS or not middle:
            continue
        reach, had = spread.reach, beside_work
        if column == "gpu_ms":
            # The share may be of the processors, which take no time from the device's own clock.
            reach, had = spreads.device.reach, None if beside_work is None else 0.0
            known["gpu_spread"] = spreads.device
        found[column] = figure_interval(middle, values, reach, beside_work=had)
    ends = (zip(ends_of(name), (interval.low, interval.high), strict=True) for name, interval in found.items())
    row = {end: value for pair in ends for end, value in pair}
    row |= {name: one.sd for name, one in known.items()}
    return row | {f"{name}_free": one.free for name, one in known.items()}


def _other_latencies(result: Result, batch_size: int) -> list[float]:
    """Return what a call takes by the throughput, and by the sum of an iteration's parts."""
    # Calls that are waited for one by one may take longer than in a loop, which contradicts nothing.
    by_rate = 1000 * batch_size / result.throughput if result.throughput else 0.0
    waits = result.clock == "host" and "enqueue" in result.samples
    if waits and by_rate <= (result.latency_ms or 0.0):
        by_rate = 0.0
    parts = sum(statistics.median(values) or 0.0 for name, values in result.clocks.items() if name in PARTS)
    return [ms for ms in (by_rate, parts) if ms]


def all_spreads(*sums: Sums) -> Spreads:
    """Pool what this and earlier runs measured."""
    found = {}
    for kind in _KINDS:
        squares, free = zip(*(part.get(kind, (0.0, 0.0)) for part in sums), strict=True)
        found[kind] = pooled(sum(squares), sum(free)) or getattr(UNMEASURED, kind)
    return Spreads(**found)


def spread_of_bases(results: Iterable[tuple[Case, Result]], calm: bool = False) -> Sums:
    """Sum up how far the processes of each base differ, as cells merge them; `calm`: without what is to be retaken."""
    cells: dict[str, list[Result]] = {}
    for case, result in results:
        if case.is_base and result.status == "ok" and not (calm and retaken(result.warnings)):
            cells.setdefault(dataclasses.replace(case, replicate=0).id, []).append(result)
    cells = {id_: [one for one in of if not one.has(DISTURBED)] or of for id_, of in cells.items()}
    medians: dict[str, list[list[float]]] = {kind: [] for kind in _KINDS}
    for processes in cells.values():
        # One base may be on both sides of the line: its processes belong together all the same.
        by_host = any(map(is_set_by_host, processes))
        headline = processes[0].clock or ""
        for kind, clock in {"host": headline, "device": "gpu"}.items() if by_host else [("device", headline)]:
            medians[kind].append([value for result in processes if (value := result.median(clock))])
    return {kind: deviations(values) for kind, values in medians.items()}


def earlier_spread(environment: Mapping[str, Any]) -> Sums:
    """Pool what earlier runs on this machine left in the cache; nothing where that cannot be read."""
    found, runs = dict[str, tuple[float, float]](), _kept().get(_machine(environment), {}).values()
    for kind in _KINDS:
        squares, free = (sum(part[kind][at] for part in runs) for at in (0, 1))
        share = _MOST_EARLIER / max(free, _MOST_EARLIER)
        found[kind] = squares * share, free * share
    return found


def keep_spread(environment: Mapping[str, Any], run_id: str, sums: Sums) -> None:
    """Leave what this run measured to later ones; a cache that cannot be written keeps what it has."""
    if not any(free for _, free in sums.values()):
        return
    kept, machine = _kept(), _machine(environment)
    runs = {**kept.get(machine, {}), run_id: {kind: list(pair) for kind, pair in sums.items()}}
    kept[machine] = dict(sorted(runs.items())[-_MOST_RUNS:])
    with contextlib.suppress(OSError):
        default_root().mkdir(parents=True, exist_ok=True)
        write_whole(default_root() / "spread.json", json.dumps(kept, indent=1) + "\n")


def _kept() -> dict[str, dict[str, Any]]:
    with contextlib.suppress(OSError, ValueError):
        return dict(json.loads((default_root() / "spread.json").read_bytes()))
    return {}


def _machine(environment: Mapping[str, Any]) -> str:
    return " / ".join(str(environment.get(key)) for key in ("device", "gpu", "cpu", "cpu_cores"))
