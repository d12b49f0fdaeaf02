"""Hold what a case gave, from its worker to its line in the journal. Workers read this without polars."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_args

from engines.base import Proof, Warning
from exporters.errors import printable
from exporters.python310 import StrEnum
from profiler.processes.messages import Outcome, Status
from profiler.stats import samples as statistics

Figures = dict[str, float | None]
"""By column; None is what was not measured."""
Finding = str | Warning | None
"""A check's finding: why the row is failed, a warning, or nothing."""
PARTS = ("forward_ms", "backward_ms", "step_ms", "grad_input_ms", "grad_weight_ms")
"""Parts of an iteration on the headline clock."""
WITH_ENDS = ("latency_ms", "gpu_ms", "throughput", *PARTS)
"""Figures that have a 95 % interval."""


def ends_of(name: str) -> tuple[str, str]:
    """Return the columns of a figure's interval: latency_ms has latency_low_ms and latency_high_ms."""
    stem, unit = (name.removesuffix("_ms"), "_ms") if name.endswith("_ms") else (name, "")
    return f"{stem}_low{unit}", f"{stem}_high{unit}"


@dataclass
class Result:
    """How a case ended and what it gave: raw samples in ms, throughput in items/s; row.py derives statistics."""

    case_id: str
    status: Status
    reasons: list[str] = field(default_factory=list)
    """Why the status is not "ok"."""
    reference: str | None = None
    worst: str | None = None
    """Output, channels and item with the largest error."""
    drawn: str | None = None
    """Names of the inputs that are drawn at random."""
    clock: str | None = None
    stop_reason: str | None = None
    throughput: float | None = None
    samples: dict[str, list[float]] = field(default_factory=dict)
    figures: Figures = field(default_factory=dict)
    """Figures besides samples and throughput."""
    proof: Proof | None = None
    warnings: list[Warning] = field(default_factory=list)
    layers: list[dict[str, Any]] = field(default_factory=list)
    """In running order, with `layer`, `kind`, `nodes` and `ms` as in layers.parquet; empty without --profile."""
    phases: dict[str, float] = field(default_factory=dict)
    """Wall seconds by phase of the worker process, as its parent saw them."""
    entered: dict[str, float] = field(default_factory=dict)
    """When each phase was entered first, in seconds on the clock of telemetry.csv."""
    environment: dict[str, Any] = field(default_factory=dict)
    """Columns from environment.json as they were when this was measured."""
    graph: str | None = None
    """Maker of the ONNX graph that ran, and its batches."""
    log: str | None = None
    """Log of a case that is not ok, traceback included, as a path in the run's folder."""

    @property
    def reason(self) -> str | None:
        return "; ".join(self.reasons) or None

    @property
    def clocks(self) -> dict[str, list[float]]:
        """Return the samples by their clocks' columns; `event`, a headline clock, is in `latency_ms` alone."""
        return {f"{clock}_ms": values for clock, values in self.samples.items() if clock != "event"}

    def median(self, clock: str | None) -> float | None:
        """Return the median on a clock, or None without samples."""
        return statistics.median(self.samples.get(clock or "", []))

    @property
    def latency_ms(self) -> float | None:
        return self.median(self.clock)

    def has(self, kind: str) -> bool:
        """Return whether a warning of this kind was given."""
        return any(warning.kind == kind for warning in self.warnings)

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

    def to_json(self) -> str:
        """Write the journal's line; its texts are `printable`."""
        special = {
            "figures": {name: figure for name, figure in self.figures.items() if figure is not None},
            "proof": self.proof.to_dict() if self.proof else None,
            "warnings": list(map(str, self.warnings)),
        }
        return json.dumps(printable(vars(self) | special))

    @classmethod
    def from_json(cls, line: str) -> Result:
        """Read what `to_json` wrote. Raises ValueError, TypeError, KeyError or AttributeError for anything else."""
        values = json.loads(line)
        special = {
            "proof": None if values["proof"] is None else Proof.from_dict(values["proof"]),
            "warnings": list(map(Warning.parse, values["warnings"])),
        }
        result = cls(**values | special)
        times = [ms for each in result.samples.values() for ms in each] + [layer["ms"] for layer in result.layers]
        if result.status not in get_args(Status) or not all(0 <= ms < math.inf for ms in times):
            raise ValueError(f"{result.case_id}: a sample is no time, or the status is unknown")
        return result


HOST_SHARE = 0.8
"""Enqueueing takes more than this share of the device's time where the host sets a row's latency."""


def set_by_host(call: float | None, gpu: float | None, enqueue: float | None) -> bool:
    """Return whether the host sets a CUDA row's latency or is close to it, by the medians of its clocks."""
    # With far faster enqueueing gaps between launches are the device's: it is slower with more work in its queue.
    return enqueue is None or enqueue > HOST_SHARE * (gpu or call or 0.0)


class Stage(StrEnum):
    """How far a case is whose Result a worker reports to be kept; after `COMPLETE` only closing the session is left."""

    SAMPLED, FITTED, CHECKED, COMPLETE = "sampled", "fitted", "checked", "complete"


@dataclass(frozen=True)
class Kept:
    """A Result on its way."""

    result: Result
    stage: Stage


def result_of(case_id: str, outcome: Outcome) -> Result:
    """Return what a process that ended so gives for its case."""
    kept = outcome.salvage if isinstance(outcome.salvage, Kept) else None
    if isinstance(outcome.value, Result):
        result = outcome.value
    elif kept and (warning := _loss(kept.stage, outcome)):
        result = kept.result
        result.warnings.append(warning)
    else:
        samples = kept.result.samples if kept else {}
        result = Result(case_id, outcome.status, [outcome.reason] if outcome.reason else [], samples=samples)
    if outcome.contradiction is not None:
        result.fail(outcome.contradiction)
    result.phases, result.entered = outcome.seconds, outcome.entered
    if result.status != "ok":
        result.log = log_name(outcome.log)
    return result


def log_name(log: Path | None) -> str | None:
    """Name a log as the column `log` does, like "logs/export-mine-fp32.log"; None where nothing was printed."""
    return f"{log.parent.name}/{log.name}" if log and log.exists() and log.stat().st_size else None


def _loss(stage: Stage, outcome: Outcome) -> Warning | None:
    """Return what a Result lacks whose process ended at this stage; None if too much for a figure."""
    if stage is Stage.FITTED and outcome.status == "oom":
        return Warning("unchecked", f"no memory was left for the checks: {outcome.reason}")
    if stage is Stage.CHECKED:
        return Warning("no-layers", str(outcome.reason))
    return Warning("unclosed", str(outcome.reason)) if stage is Stage.COMPLETE else None


def sample_warnings(samples: Mapping[str, list[float]], clock: str) -> list[Warning]:
    """Warn where more than one sample in twenty is far from the median, and where the samples drift."""
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
