"""Hold what a case gave, as its journal line and as its row of the results."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, get_args

from engines.base import Proof, Warning
from engines.catalog import ENGINES
from exporters.source import shape_words
from profiler.job.case import Case, CaseId
from profiler.processes.messages import Outcome, Status
from profiler.results.ends import PARTS, WITH_ENDS, ends_of
from profiler.results.environment import flat_environment
from profiler.results.run_files import printable
from profiler.results.warning_kinds import DISTURBED
from profiler.stats import samples as statistics
from profiler.stats.intervals import CONTRADICTION, Spreads, figure_interval
from profiler.tables.numbers import milliseconds, times

Figures = dict[str, float | None]
"""By column; None is what was not measured."""

_LAYER = {"layer", "kind", "nodes", "ms"}
_OF_CASE = (
    *("model", "engine", "variant", "precision", "batch_size", "device", "replicate"),
    *("setting", "is_base", "calibrated"),
)
_OF_MACHINE = ("machine", "cloud", "instance", "usd_per_hour")
_OF_RESULT = ("status", "reason", "log", "graph", "reference")
"""Columns that are attributes by the same name."""

Finding = str | Warning | None
"""What a check found: why the row is failed, a warning, or nothing."""
LAYERS_AT_MOST = 1.5
"""Layers that add up to more times their case's latency are no parts of it: the profiler or other work slowed them."""


@dataclass
class Result:
    """How a case ended and what it gave. Raw samples are kept, in milliseconds; statistics are derived in `row`.

    `throughput` is in items per second.
    """

    case_id: CaseId
    status: Status
    reasons: list[str] = field(default_factory=list)
    """Why the status is not "ok"."""
    reference: str | None = None
    clock: str | None = None
    stop_reason: str | None = None
    throughput: float | None = None
    samples: dict[str, list[float]] = field(default_factory=dict)
    figures: Figures = field(default_factory=dict)
    """What was measured besides samples and throughput."""
    proof: Proof | None = None
    warnings: list[Warning] = field(default_factory=list)
    layers: list[dict[str, Any]] = field(default_factory=list)
    """In running order, with `layer`, `kind`, `nodes` and `ms` as in layers.parquet; empty without --profile."""
    phases: dict[str, float] = field(default_factory=dict)
    """Wall seconds by phase of the worker process, as its parent saw them."""
    entered: dict[str, float] = field(default_factory=dict)
    """When each phase was entered first, in seconds on the clock of telemetry.csv."""
    environment: dict[str, Any] = field(default_factory=dict)
    """What `measured_in` takes from environment.json, as it was when this was measured."""
    graph: str | None = None
    """Who made the ONNX graph that ran, and for which batches."""
    log: str | None = None
    """What a case that is not ok printed, traceback and all, as a path in the run's folder."""

    @property
    def reason(self) -> str | None:
        """The reasons as the column `reason` has them."""
        return "; ".join(self.reasons) or None

    def fail(self, reason: str) -> None:
        """Make the row `failed`, for one more reason."""
        self.status = "failed"
        self.reasons.append(reason)

    def take(self, finding: Finding) -> None:
        """Fail the row, or add the warning."""
        if isinstance(finding, Warning):
            self.warnings.append(finding)
        elif finding is not None:
            self.fail(finding)

    @property
    def clocks(self) -> dict[str, list[float]]:
        """The samples by the columns of their clocks; those of `event`, a headline clock, are in `latency_ms` alone."""
        return {f"{clock}_ms": values for clock, values in self.samples.items() if clock != "event"}

    def to_json(self) -> str:
        """Write the journal's line; its texts are `printable`."""
        special = {
            "case_id": str(self.case_id),
            "figures": {name: figure for name, figure in self.figures.items() if figure is not None},
            "proof": self.proof.to_dict() if self.proof else None,
            "warnings": list(map(str, self.warnings)),
        }
        return json.dumps(printable(vars(self) | special))

    @classmethod
    def from_json(cls, line: str) -> Result:
        """Raises ValueError, TypeError, KeyError or AttributeError for a line that `to_json` did not write."""
        values = dict(printable(json.loads(line)))
        proof = values["proof"]
        special = {
            "case_id": CaseId.parse(values["case_id"]),
            "proof": Proof.from_dict(proof) if proof is not None else None,
            "warnings": list(map(Warning.parse, values["warnings"])),
        }
        result = cls(**values | special)
        result._check()
        return result

    def _check(self) -> None:
        """Raises TypeError for a value that is none of its field's, as a line may have that somebody edited."""
        words: list[str | None]
        words = [self.status, self.reason, self.reference, self.clock, self.stop_reason, self.log, self.graph]
        words += [self.proof.library if self.proof else None, *(layer["kind"] for layer in self.layers)]
        numbers = [self.throughput, *self.figures.values(), *self.phases.values(), *self.entered.values()]
        samples = [ms for values in self.samples.values() for ms in values] + [each["ms"] for each in self.layers]
        names = [name for each in self.layers for name in (each["layer"], *each["nodes"])]
        if not all(isinstance(values, list) for values in self.samples.values()):
            raise TypeError(f"{self.case_id}: samples are no list")
        if self.status not in get_args(Status) or not all(word is None or isinstance(word, str) for word in words):
            raise TypeError(f"{self.case_id}: a status or text is none")
        if not all(number is None or isinstance(number, int | float) for number in numbers):
            raise TypeError(f"{self.case_id}: a figure is no number")
        if not all(isinstance(ms, int | float) and 0 <= ms < math.inf for ms in samples):
            raise TypeError(f"{self.case_id}: a sample is no time")
        if not all(isinstance(name, str) for name in names) or any(each.keys() != _LAYER for each in self.layers):
            raise TypeError(f"{self.case_id}: a layer is none")

    def row(
        self, run_id: str, suite: str, case: Case, environment: Mapping[str, Any], spreads: Spreads
    ) -> dict[str, Any]:
        """Make the row of results.parquet, its figures with intervals; columns that nothing fills are left out (null).

        `environment` is the run's; what the result's own says counts before it.
        """
        environment = flat_environment({**environment, **self.environment})
        row: dict[str, Any] = {
            "run_id": run_id,
            "case_id": str(case.id),
            "suite": suite,
            **{name: getattr(case, name) for name in _OF_CASE},
            "pass": case.pass_,
            "model_kind": case.source.kind,
            "network": case.source.catalog_name,
            "shape": "/".join(shape_words(case.shape)) or None,
            "reference_model": case.reference.name if case.reference else None,
            **(dataclasses.asdict(case.training) if case.pass_ == "training" else {}),
            "options": case.options_json,
            **{name: getattr(self, name) for name in _OF_RESULT},
            "warnings": list(map(str, self.warnings)),
            "proof": json.dumps(self.proof.to_dict(), sort_keys=True) if self.proof else None,
            **{column: environment.get(column) for column in (*_OF_MACHINE, *_columns_of_environment())},
        }
        version = ENGINES[case.engine].version
        if version and version.from_proof and self.proof and self.proof.library:
            row[version.column] = self.proof.library.rpartition(" ")[2]
        if self.status != "ok":
            return row
        return (
            row
            | self.figures
            | {name: statistics.median(values) for name, values in self.clocks.items()}
            | self._latency()
            | self._intervals(case.batch_size, spreads)
            | {name: getattr(self, name) for name in ("clock", "stop_reason", "throughput")}
            | _cost(self.throughput, row["usd_per_hour"])
        )

    def _intervals(self, batch_size: int, spreads: Spreads) -> dict[str, float]:
        """Give each figure that others are compared by its 95 % interval (profiler.stats.intervals)."""
        spread = spreads.host if is_set_by_host(self) else spreads.device
        samples = self.samples.get(self.clock or "", [])
        latency = statistics.median(samples)
        if not latency:
            return {}
        is_disturbed = any(warning.kind == DISTURBED for warning in self.warnings)
        beside_work = (self.figures.get("disturbance") or 0.0) if is_disturbed else None
        others = [ms for ms in self._other_latencies(batch_size) if max(ms / latency, latency / ms) > CONTRADICTION]
        found = {"latency_ms": figure_interval(latency, samples, spread.reach, others, beside_work)}
        rates = [1000 * batch_size / latency] if others else []
        if self.throughput:
            # What casts doubt on the latency casts it on the throughput, which was measured right after it.
            own = figure_interval(latency, samples, spread.reach, beside_work=beside_work)
            rates += [self.throughput * latency / end for end in (own.low, own.high)]
            found["throughput"] = figure_interval(self.throughput, [], spread.reach, rates)
        for column, values in self.clocks.items():
            middle = statistics.median(values)
            if column in WITH_ENDS and middle:
                reach = spreads.device.reach if column == "gpu_ms" else spread.reach
                # The share may be of the processors, which take no time from the device's own clock.
                had = 0.0 if is_disturbed and column == "gpu_ms" else beside_work
                found[column] = figure_interval(middle, values, reach, beside_work=had)
        ends = {name: (interval.low, interval.high) for name, interval in found.items()}
        known = {"latency_spread": spread, **({"gpu_spread": spreads.device} if "gpu_ms" in found else {})}
        return {
            **{end: value for name, pair in ends.items() for end, value in zip(ends_of(name), pair, strict=True)},
            **{name: one.sd for name, one in known.items()},
            **{f"{name}_free": one.free for name, one in known.items()},
        }

    def _other_latencies(self, batch_size: int) -> list[float]:
        """Return what a call takes by the throughput, and by the sum of an iteration's parts.

        Calls that are waited for one by one may take longer than in a loop, which contradicts nothing.
        """
        latency = statistics.median(self.samples.get(self.clock or "", [])) or 0.0
        found = [1000 * batch_size / self.throughput] if self.throughput else []
        waits = self.clock == "host" and "enqueue" in self.samples
        found = [ms for ms in found if not waits or ms > latency]
        parts = [statistics.median(values) or 0.0 for name, values in self.samples.items() if f"{name}_ms" in PARTS]
        return [*found, *([sum(parts)] if any(parts) else [])]

    def _latency(self) -> dict[str, Any]:
        """Statistics of the headline clock."""
        samples = self.samples.get(self.clock or "", [])
        if not samples:
            return {}
        return {
            "latency_ms": statistics.median(samples),
            "latency_mean_ms": sum(samples) / len(samples),
            "latency_min_ms": min(samples),
            **{f"latency_p{q}_ms": statistics.percentile(samples, q) for q in statistics.PERCENTILE_NEEDS},
            "samples": len(samples),
        }


def set_by_host(event: float | None, gpu: float | None, enqueue: float | None) -> bool:
    """Return whether the host sets a CUDA row's latency or is close to it, by the medians of its clocks.

    Where enqueueing is far faster than the device works, it is not the host that makes gaps between launches: the
    device itself is slower with more work in its queue.
    """
    return enqueue is None or enqueue > 0.8 * (gpu or event or 0.0)


def is_set_by_host(result: Result) -> bool:
    """Return whether the host sets the latency; always so on a CPU and for an engine with a queue of its own."""
    medians = (statistics.median(result.samples.get(name, [])) for name in ("event", "gpu", "enqueue"))
    return result.clock != "event" or set_by_host(*medians)


def measured_in(environment: Mapping[str, Any]) -> dict[str, Any]:
    """Return what of environment.json a result keeps: its columns of the results."""
    return {column: environment[column] for column in _columns_of_environment() if column in environment}


def _columns_of_environment() -> list[str]:
    versions = dict.fromkeys(e.version.column for e in ENGINES.values() if e.version)
    return ["gpu", "host", "cuda", "driver", "cudnn", "python", *versions]


def _cost(throughput: float | None, usd_per_hour: float | None) -> dict[str, float | None]:
    """What a million items cost, and how many a dollar buys, at full load and the machine's price."""
    if not throughput or not usd_per_hour:
        return {}
    items = throughput * 3600 / usd_per_hour
    return {"usd_per_million_items": 1e6 / items, "items_per_usd": items}


class Stage(StrEnum):
    """How far a case is whose Result a worker reports to be kept, in case its process ends before."""

    SAMPLED = "sampled"
    """Its samples are there, or some of them."""
    FITTED = "fitted"
    """All but the checks, which take memory of their own."""
    CHECKED = "checked"
    """All but the layers."""
    COMPLETE = "complete"
    """All that is left is to close its session, in which a runtime can abort."""


@dataclass(frozen=True)
class Kept:
    """A Result on its way."""

    result: Result
    stage: Stage


def result_of(case_id: CaseId, outcome: Outcome) -> Result:
    """What a process that ended so gives for its case."""
    if isinstance(outcome.value, Result):
        result = outcome.value
    elif isinstance(outcome.salvage, Kept) and (warning := _loss(outcome.salvage.stage, outcome)):
        result = outcome.salvage.result
        result.warnings.append(warning)
    else:
        samples = outcome.salvage.result.samples if isinstance(outcome.salvage, Kept) else {}
        result = Result(case_id, outcome.status, [outcome.reason] if outcome.reason else [], samples=samples)
    result.phases, result.entered = outcome.seconds, outcome.entered
    if result.status != "ok":
        result.log = log_name(outcome.log)
    return result


def log_name(log: Path | None) -> str | None:
    """As the column `log` has it, like "logs/export-mine-fp32.log"; None where nothing was printed."""
    return f"{log.parent.name}/{log.name}" if log and log.exists() and log.stat().st_size else None


def _loss(stage: Stage, outcome: Outcome) -> Warning | None:
    """What a Result lacks whose process ended at this stage; None if too much for a figure."""
    if stage is Stage.COMPLETE:
        return Warning("unclosed", str(outcome.reason))
    if stage is Stage.CHECKED:
        return Warning("no-layers", str(outcome.reason))
    if stage is Stage.FITTED and outcome.status == "oom":
        return Warning("unchecked", f"no memory was left for the checks: {outcome.reason}")
    return None


def layer_warnings(
    layers: Iterable[Mapping[str, Any]], samples: Mapping[str, list[float]], clock: str
) -> list[Warning]:
    """The warning that the layers take far longer than the case: on a GPU the device's time, where it is known."""
    together = sum(layer["ms"] for layer in layers)
    whole = statistics.median(samples.get("gpu") or samples.get(clock, []))
    if not whole or together <= LAYERS_AT_MOST * whole:
        return []
    text = f"together {milliseconds(together)}, {times(together / whole)} what the case takes without the profiler"
    return [Warning("slow-layers", text)]


def sample_warnings(samples: Mapping[str, list[float]], clock: str) -> list[Warning]:
    """Warnings where more than one sample in twenty is far from the median, and where the samples drift."""
    values = samples.get(clock, [])
    count = statistics.outliers(values)
    warnings = []
    if count > len(values) / 20:
        warnings.append(Warning("outliers", f"{count} of {len(values)} samples are far from the median (Tukey's rule)"))
    change = statistics.drift(values)
    if change is not None:
        how = f"{100 * abs(change):.1f} % {'slower' if change > 0 else 'faster'}"
        warnings.append(Warning("drift", f"the last third of the samples is {how} than the first"))
    return warnings
