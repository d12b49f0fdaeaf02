"""Estimate how long a job takes: as earlier runs of this machine did, else as the plan guesses."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import islice
from pathlib import Path
from typing import Any

from engines.base import Phase
from profiler.errors import ConfigError
from profiler.job.case import Budget, Case, CaseId
from profiler.job.plan import estimate_seconds
from profiler.job.yaml_lines import read as read_yaml
from profiler.results.result import Result
from profiler.results.run_folder import RunFolder, check_readable, read_json
from profiler.stats.samples import median

_RUNS = 10
"""So many runs are read, the latest ones."""
_MACHINE = ("device", "gpu", "cpu", "cpu_cores")
"""Keys of environment.json: runs that agree in these are of one machine."""
_SAMPLING = (Phase.WARM_UP, Phase.MEASURE)
"""What takes as long as `budget.seconds` allow."""
_LEAST_SECONDS = 1.0
"""What warm-up and throughput take however short the budget is."""
_AROUND = ("prepare", "roofs", "write", "rest")
"""Phases of a run, as environment.json has them, that are no case's."""


class Basis(StrEnum):
    """Where an estimate comes from."""

    EARLIER = "earlier run"
    """The same case was measured before."""
    SIMILAR = "similar case"
    """Another one of the same engine and pass was."""
    GUESS = "guess"


@dataclass(frozen=True)
class Estimate:
    """A case's wall time in seconds."""

    seconds: float
    basis: Basis


_Made = tuple[str | None, tuple[int, ...] | None]
"""A user's factory and the shape of its item, None of other models: what is called alike may be another model."""


@dataclass(frozen=True)
class _Run:
    """An earlier run: the seconds by phase of its cases, and before, between and after them; the seconds of one call of
    each; its `budget.seconds`; of what its models were made."""

    cases: Mapping[CaseId, Mapping[str, float]]
    calls: Mapping[CaseId, float]
    around: Mapping[str, float]
    sampled: float
    made: Mapping[str, _Made]

    @property
    def models(self) -> set[str]:
        return {case_id.model for case_id in self.cases}

    def seconds(self, case_id: CaseId, budget: Budget) -> float:
        """Estimate the case with this budget: sampling takes as much longer or shorter as that is, and at least as long
        as `min_samples` calls."""
        phases = self.cases[case_id]
        before = sum(phases.get(phase, 0.0) for phase in _SAMPLING)
        least = max(min(before, _LEAST_SECONDS), budget.min_samples * self.calls.get(case_id, 0.0))
        now = max(before + budget.seconds - self.sampled, least)
        return sum(phases.values()) + now - before


class Estimates:
    """Estimates of cases with this budget, from the runs in `folder` whose machine is that of `environment`."""

    def __init__(self, folder: Path, environment: Mapping[str, Any], budget: Budget) -> None:
        self._folder, self._budget = folder, budget
        self._runs = list(islice(_read(folder, environment), _RUNS))
        self._alike: dict[tuple[str, str], list[tuple[CaseId, _Made, float]]] = {}
        for run, case_id in ((each, case_id) for each in self._runs for case_id in each.cases):
            made = run.made.get(case_id.model, (None, None))
            self._alike.setdefault(_alike(case_id), []).append((case_id, made, run.seconds(case_id, budget)))

    def of(self, case: Case) -> Estimate:
        """What the case took in the latest run that had it, else the median of the nearest of its engine and pass."""
        alike = self._alike.get(_alike(case.id))
        if not alike:
            return Estimate(estimate_seconds(case, self._budget), Basis.GUESS)
        distances = [_distance(case, other, made) for other, made, _ in alike]
        least = min(distances)
        nearest = [seconds for (*_, seconds), distance in zip(alike, distances, strict=True) if distance == least]
        if not any(least):
            return Estimate(nearest[0], Basis.EARLIER)
        return Estimate(statistics.median(nearest), Basis.SIMILAR)

    def total(self, cases: Sequence[Case]) -> float:
        """Seconds that a run of these cases takes, with what is done before and after them."""
        return sum(self.of(case).seconds for case in cases) + self._around(cases)

    def source(self, cases: Sequence[Case]) -> str:
        """Where the estimates of these cases come from, in words."""
        counts = Counter(self.of(case).basis for case in cases)
        if counts.keys() <= {Basis.GUESS}:
            return f"a guess: {self._folder} has no run of such cases on this machine"
        words = ("as in earlier runs", "like similar cases of earlier runs", "by a guess")
        parts = [f"{counts[basis]} {what}" for basis, what in zip(Basis, words, strict=True) if counts[basis]]
        return f"{', '.join(parts)}; runs of this machine in {self._folder}"

    def _around(self, cases: Sequence[Case]) -> float:
        """Preparing, the roofs and the rest, as in the run that had most of these models; a model's share of it."""
        models = {case.model for case in cases}
        run = max(self._runs, key=lambda run: len(run.models & models), default=None)
        if run is None:
            return 0.0
        share = len(models) / len(run.models)
        return sum(seconds * (share if phase == "prepare" else 1.0) for phase, seconds in run.around.items())


def _alike(case_id: CaseId) -> tuple[str, str]:
    """What a case must have in common with another one for its time to be an estimate."""
    return case_id.variant, case_id.pass_


def _distance(case: Case, other: CaseId, made: _Made) -> tuple[bool, bool, bool, bool, float]:
    own, source = case.id, case.source
    model, setting, precision = (getattr(own, p) != getattr(other, p) for p in ("model", "setting", "precision"))
    is_other = made != (None if source.library else source.factory, source.input_shape)
    return model, is_other, setting, precision, abs(math.log2(own.batch_size / other.batch_size))


def _made(models: Sequence[Mapping[str, Any]]) -> dict[str, _Made]:
    """Of what the models of a run's bench.yaml are made, by name."""
    return {each["name"]: (each.get("factory"), tuple(each["input"]) if each.get("input") else None) for each in models}


def _read(folder: Path, environment: Mapping[str, Any]) -> Iterator[_Run]:
    """The runs of that machine, the last one first; what cannot be read is none."""
    for path in sorted(folder.glob("*/environment.json"), reverse=True):  # Their names begin with the time.
        try:
            facts = read_json(path)
            if any(facts.get(key) != environment.get(key) for key in _MACHINE):
                continue
            check_readable(path.with_name("bench.yaml"))
            job = read_yaml(path.with_name("bench.yaml"))[0]
            sampling, made = float(job["budget"]["seconds"]), _made(job.get("models") or [])
            around = {phase: float(facts["wall_seconds"].get(phase, 0.0)) for phase in _AROUND}
            results = RunFolder(path.parent).results()
        except (OSError, ValueError, KeyError, TypeError, AttributeError, ConfigError):
            continue
        ok = {case_id: each.phases for case_id, each in results.items() if each.status == "ok" and each.phases}
        if ok:
            calls = {case_id: _call_seconds(results[case_id]) for case_id in ok}
            yield _Run(ok, calls, around, sampling, made)


def _call_seconds(result: Result) -> float:
    return (median(result.samples.get(result.clock or "", [])) or 0.0) / 1000
