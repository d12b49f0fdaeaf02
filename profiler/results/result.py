"""Hold a case's result, from its worker to its line in the journal. Workers import this without polars."""

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
"""A figure by column, or None if not measured."""
Finding = str | Warning | None
"""A check's reason to fail the row, its warning, or None."""
WRONG = 0.5
"""A relative L2 error so large that half of the output is noise: a wrong result, not rounding."""
PARTS = ("forward_ms", "backward_ms", "step_ms", "grad_input_ms", "grad_weight_ms")
"""Parts of an iteration on the headline clock."""
WITH_ENDS = ("latency_ms", "gpu_ms", "throughput", *PARTS)
"""Figures that have a 95 % interval."""
JUDGED = (*WITH_ENDS, "usd_per_million_items")
"""A cell's figures with a 95 % interval; a cost has the interval of its throughput."""
RANGED = (*WITH_ENDS, "accuracy_loss")
"""Figures with columns for the ends of an interval. An accuracy loss may be negative, so its interval is no ratio's."""


def ends_of(name: str) -> tuple[str, str]:
    """Return the columns of a figure's interval: latency_ms has latency_low_ms and latency_high_ms."""
    stem, unit = (name.removesuffix("_ms"), "_ms") if name.endswith("_ms") else (name, "")
    return f"{stem}_low{unit}", f"{stem}_high{unit}"


@dataclass
class Result:
    """A case's outcome: raw samples in ms, throughput in items/s; row.py derives statistics."""

    case_id: str
    status: Status
    reasons: list[str] = field(default_factory=list)
    """Why the status is not "ok"."""
    beaten_by: str | None = None
    """Configuration that a skipped case lost to."""
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
    scores: list[float] = field(default_factory=list)
    """Score from 0 to 1 of each scored item of the user's data, in the order of exporters.dataset.item_order."""
    data_items: int | None = None
    """Items of the user's data, with those that calibrate."""
    layers: list[dict[str, Any]] = field(default_factory=list)
    """Rows of layers.parquet with `layer`, `kind`, `nodes` and `ms`, in running order; empty without --profile."""
    phases: dict[str, float] = field(default_factory=dict)
    """Wall seconds of the worker by phase, on its parent's clock."""
    entered: dict[str, float] = field(default_factory=dict)
    """First entry into each phase, in seconds on the clock of telemetry.csv."""
    environment: dict[str, Any] = field(default_factory=dict)
    """Columns from environment.json at the time of measurement."""
    graph: str | None = None
    """Maker of the ONNX graph that ran, and its batches."""
    log: str | None = None
    """Path in the run's folder of a failed case's log, with its traceback."""

    @property
    def reason(self) -> str | None:
        return "; ".join(self.reasons) or None

    @property
    def clocks(self) -> dict[str, list[float]]:
        """Return the samples by column, without the headline clock `event`, which only `latency_ms` has."""
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
        """Set the status to `failed` and add a reason."""
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
        times = [ms for values in result.samples.values() for ms in values] + [layer["ms"] for layer in result.layers]
        if result.status not in get_args(Status) or not all(0 <= ms < math.inf for ms in times):
            raise ValueError(f"{result.case_id}: a sample is no time, or the status is unknown")
        return result


_HOST_SHARE = 0.8
"""The host sets a row's latency if enqueueing takes more than this share of the device's time."""


def set_by_host(call: float | None, gpu: float | None, enqueue: float | None) -> bool:
    """Return whether the host sets a CUDA row's latency or is close to it, by the medians of its clocks."""
    # If enqueueing is far faster, the device itself causes the gaps: it is slower with more work in its queue.
    return enqueue is None or enqueue > _HOST_SHARE * (gpu or call or 0.0)


class Stage(StrEnum):
    """Progress of a case whose Result a worker reports to be saved; after `COMPLETE` the session only has to close."""

    SAMPLED, FITTED, VERIFIED, CHECKED, COMPLETE = "sampled", "fitted", "verified", "checked", "complete"


@dataclass(frozen=True)
class Kept:
    """A Result saved from a worker before its end."""

    result: Result
    stage: Stage


def result_of(case_id: str, outcome: Outcome) -> Result:
    """Return the Result of a case whose process ended with this outcome."""
    saved = outcome.salvage if isinstance(outcome.salvage, Kept) else None
    if isinstance(outcome.value, Result):
        result = outcome.value
    elif saved and (warning := _loss(saved.stage, outcome)):
        result = saved.result
        result.warnings.append(warning)
    else:
        samples = saved.result.samples if saved else {}
        result = Result(case_id, outcome.status, [outcome.reason] if outcome.reason else [], samples=samples)
    if outcome.contradiction is not None:
        result.fail(outcome.contradiction)
    result.phases, result.entered = outcome.seconds, outcome.entered
    if result.status != "ok":
        result.log = log_name(outcome.log)
    return result


def log_name(log: Path | None) -> str | None:
    """Return a log's path in the run's folder, like "logs/export,mine,fp32.log"; None for an empty log."""
    return f"{log.parent.name}/{log.name}" if log and log.exists() and log.stat().st_size else None


def _loss(stage: Stage, outcome: Outcome) -> Warning | None:
    """Warn of the part that a process did not finish; return None if the figures are unfinished."""
    if stage is Stage.FITTED and outcome.status == "oom":
        return Warning("unchecked", f"no memory was left for the checks: {outcome.reason}")
    if stage is Stage.VERIFIED:
        return Warning("no-accuracy", str(outcome.reason))
    if stage is Stage.CHECKED:
        return Warning("no-layers", str(outcome.reason))
    return Warning("unclosed", str(outcome.reason)) if stage is Stage.COMPLETE else None


def sample_warnings(samples: Mapping[str, list[float]], clock: str) -> list[Warning]:
    """Warn if more than one sample in twenty is far from the median, and if the samples drift."""
    values, warnings = samples.get(clock, []), []
    count, change = statistics.outliers(values), statistics.drift(values)
    if count > len(values) / 20:
        warnings.append(Warning("outliers", f"{count} of {len(values)} samples are far from the median (Tukey's rule)"))
    if change is not None:
        word = f"{100 * abs(change):.1f} % {'slower' if change > 0 else 'faster'}"
        warnings.append(Warning("drift", f"the last third of the samples is {word} than the first"))
    return warnings
