"""Make a result's row of results.parquet: its figures, and their intervals by its process alone."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping
from typing import Any

from engines.base import Proof
from engines.catalog import ENGINES
from profiler.job.case import Case
from profiler.results.columns import COLUMNS, Group, names, prices
from profiler.results.result import PARTS, WITH_ENDS, Result, ends_of
from profiler.results.warning_kinds import DISTURBED
from profiler.stats import samples as statistics
from profiler.stats.intervals import CONTRADICTION, figure_interval

Row = dict[str, Any]
ENVIRONMENT = names(Group.PLACE, Group.VERSIONS)


def flat_environment(environment: Mapping[str, Any], name: str | None = None) -> dict[str, Any]:
    """Return environment.json with the machine's price and cloud; `machine` is its label, GPU or processor."""
    machine = environment.get("machine")
    price = dict(machine) if isinstance(machine, dict) else {}
    name = name or price.pop("label", None) or environment.get("gpu") or environment.get("cpu")
    return {**environment, **price, "machine": name}


def row_of(
    result: Result, case: Case, run_id: str, suite: str, environment: Mapping[str, Any], confirming: bool = False
) -> Row:
    """Make the row of a process; `confirming` if earlier processes chose its case.

    Columns of the case, outcome and environment (the result's before the run's) are filled by name.
    """
    environment, proof = flat_environment({**environment, **result.environment}), result.proof
    row: Row = {
        **dict.fromkeys(COLUMNS),
        **{name: getattr(case, name, None) for name in names(Group.CASE)},
        **{name: getattr(result, name, None) for name in names(Group.OUTCOME)},
        **{name: environment.get(name) for name in names(Group.MACHINE, Group.PLACE, Group.VERSIONS)},
        "run_id": run_id,
        "case_id": case.id,
        "confirming": confirming,
        "suite": suite,
        "pass": case.pass_,
        "model_kind": case.source.kind,
        "network": case.source.catalog_name,
        "shape": case.value("shape") or None,
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
    figures = _figures(result, case.batch_size, row)
    infinite = {name for name, value in figures.items() if isinstance(value, float) and not math.isfinite(value)}
    return row | figures | dict.fromkeys(infinite)


def _training(case: Case, proof: Proof | None) -> dict[str, Any]:
    """Return the settings of training, corrected by the proof."""
    ran = {"head": proof.head, "dropout": proof.dropout} if proof else {}
    settings = dataclasses.asdict(case.training) | {name: value for name, value in ran.items() if value is not None}
    return {name: value for name, value in settings.items() if name in COLUMNS}


def _figures(result: Result, batch_size: int, row: Row) -> Row:
    figures: Row = result.figures | {name: statistics.median(values) for name, values in result.clocks.items()}
    figures |= {name: getattr(result, name) for name in ("clock", "stop_reason", "throughput")}
    if result.throughput and row["usd_per_hour"]:
        figures |= prices(result.throughput, row["usd_per_hour"])
    samples = result.samples.get(result.clock or "", [])
    if samples:
        figures |= {
            "latency_ms": result.latency_ms,
            "latency_mean_ms": sum(samples) / len(samples),
            "latency_min_ms": min(samples),
            **{f"latency_p{q}_ms": statistics.percentile(samples, q) for q in statistics.PERCENTILE_NEEDS},
            "samples": len(samples),
        }
    if result.scores:
        figures |= {"accuracy": sum(result.scores) / len(result.scores), "accuracy_items": len(result.scores)}
    return figures | (_intervals(result, samples, result.latency_ms, batch_size) if result.latency_ms else {})


def _intervals(result: Result, samples: list[float], latency: float, batch_size: int) -> dict[str, float]:
    beside_work = (result.figures.get("disturbance") or 0.0) if result.has(DISTURBED) else None
    # The throughput and the sum of an iteration's parts also measure a call's time.
    by_rate = 1000 * batch_size / result.throughput if result.throughput else 0.0
    by_parts = sum(statistics.median(values) or 0.0 for name, values in result.clocks.items() if name in PARTS)
    others = [ms for ms in (by_rate, by_parts) if ms and max(ms / latency, latency / ms) > CONTRADICTION]
    intervals = {"latency_ms": figure_interval(latency, samples, others, beside_work)}
    if result.throughput:
        # Doubt about the latency is doubt about the throughput, which was measured right after it.
        alone = figure_interval(latency, samples, beside_work=beside_work)
        rates = [1000 * batch_size / latency] if others else []
        rates += [result.throughput * latency / end for end in (alone.low, alone.high)]
        intervals["throughput"] = figure_interval(result.throughput, [], rates)
    for column, values in result.clocks.items():
        middle = statistics.median(values)
        if column in WITH_ENDS and middle:
            # The share may be of the processors. Other work there adds nothing to the device's time.
            share = 0.0 if column == "gpu_ms" and beside_work is not None else beside_work
            intervals[column] = figure_interval(middle, values, beside_work=share)
    ends = (zip(ends_of(name), (interval.low, interval.high), strict=True) for name, interval in intervals.items())
    return {end: value for pair in ends for end, value in pair}
