"""What enters: nothing. What leaves: `Prepared` and `Task`, what the parent hands to a worker; no torch in them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from exporters.flops import Cost
from exporters.gradients import GradientReference
from exporters.inputs import TensorSpec
from profiler.job.case import Budget, Case
from profiler.processes.messages import Status


@dataclass(frozen=True)
class Prepared:
    """What the prepare phase made of one model, by content in the cache. `onnx` and `export_s` are by graph."""

    specs: tuple[TensorSpec, ...] = ()
    state: Path | None = None
    reference: Path | None = None
    onnx: Mapping[str, Path] = field(default_factory=dict)
    export_s: Mapping[str, float] = field(default_factory=dict)
    failures: Mapping[str, tuple[Status, str]] = field(default_factory=dict)
    """How and why something could not be made: "model" for all of it, or a graph's name."""
    cost: Cost = field(default_factory=Cost)
    gradients: Mapping[tuple[str, int], GradientReference | str] = field(default_factory=dict)
    """By head and number of items; or why there is none."""


@dataclass(frozen=True)
class Task:
    """One case to be measured, on the GPU of that UUID if there is one."""

    case: Case
    prepared: Prepared
    budget: Budget
    gpu: str | None = None
    energy: bool = False
    """Whether to add the loop without which the energy counter says nothing."""
    profile: bool = False
    """Whether to take the layers apart once everything has been measured."""
    roofs: Mapping[str, float] = field(default_factory=dict)
    """The device's, as profiler.worker.roofline names them; without what could not be measured."""


def graph_of(precision: str) -> str:
    """Which exported graph a precision runs: TF32 is a switch of the engine, not a type of the graph."""
    return "fp32" if precision == "tf32" else precision
