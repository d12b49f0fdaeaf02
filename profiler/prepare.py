"""What enters: the Cases. What leaves: per model its weights, reference outputs and exported graphs, made side by side.

Everything is cached by content, so a second run prepares nothing. Nothing of this runs beside a measurement.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from engines.catalog import ENGINES
from exporters.cache import default_root
from exporters.catalog import CATALOG
from exporters.cost import Cost
from exporters.source import ModelSource
from profiler.case import Budget, Case
from profiler.environment import available_memory_mib, usable_cores
from profiler.process import Call, Outcome, Status, run_all
from profiler.task import Prepared, graph_of

_EXPORT_BYTES_A_PARAMETER = 26
"""VGG-16's export, the largest, peaks at 3.5 GB for 138 million parameters."""
_EXPORT_BASE_MIB = 700
_UNKNOWN_PARAMETERS = 100_000_000
_COUNT_SECONDS = 60.0
"""For counting FLOPs, which a run can do without: ResNet-200 takes 2 s."""


def prepare(
    cases: Sequence[Case], budget: Budget, logs: Path, path: tuple[str, ...], tick: Callable[[str, int, int], None]
) -> dict[str, Prepared]:
    """Prepare every model of the runnable cases; what cannot be made is in `Prepared.failures`.

    `tick(what, done, total)` is called a few times a second, for the display.
    """
    runnable = [case for case in cases if case.unsupported is None]
    sources = {case.model: case.source for case in runnable}
    cache = default_root()

    def call(function: str, argument: object, name: str) -> Call:
        log = logs / f"{name.replace('/', '-')}.log"
        return Call(f"profiler.worker:{function}", argument, log, budget.build_timeout, budget.build_timeout, path=path)

    prepared: dict[str, Prepared] = {}
    calls = [call("prepare_model", (source, cache), f"prepare-{name}") for name, source in sources.items()]
    outcomes = run_all(
        calls, _slots(list(sources.values())), lambda done: tick("weights and reference outputs", done, len(calls))
    )
    for name, outcome in zip(sources, outcomes, strict=True):
        prepared[name] = outcome.value if outcome.status == "ok" else Prepared(failures={"model": _failed(outcome)})

    wanted = dict.fromkeys(
        (case.model, graph_of(case.precision))
        for case in runnable
        if ENGINES[case.engine].needs == "onnx" and case.source.kind != "onnx" and not prepared[case.model].failures
    )
    exports = [
        call("prepare_export", (sources[name], graph, cache), f"export-{name}-{graph}") for name, graph in wanted
    ]
    slots = _slots([sources[name] for name, _ in wanted])
    for (name, graph), outcome in zip(
        wanted, run_all(exports, slots, lambda done: tick("exports to ONNX", done, len(exports))), strict=True
    ):
        old = prepared[name]
        if outcome.status == "ok":
            onnx, seconds = outcome.value
            prepared[name] = replace(old, onnx={**old.onnx, graph: onnx}, export_s={**old.export_s, graph: seconds})
        else:
            prepared[name] = replace(old, failures={**old.failures, graph: _failed(outcome)})

    # In processes of their own: a model that crashes or hangs while it is counted is measured all the same. After the
    # exports, which show what of the model reaches an output.
    trained = {case.model for case in runnable if case.pass_ == "training"}
    counted = [name for name in sources if "model" not in prepared[name].failures]
    counts = [
        call("prepare_cost", (sources[name], prepared[name], name in trained, cache), f"prepare-{name}")
        for name in counted
    ]
    counts = [replace(count, timeout=min(_COUNT_SECONDS, count.timeout)) for count in counts]
    slots = _slots([sources[name] for name in counted])
    outcomes = run_all(counts, slots, lambda done: tick("counts of FLOPs", done, len(counts)))
    for name, count, outcome in zip(counted, counts, outcomes, strict=True):
        cost = outcome.value if outcome.status == "ok" else outcome.partial.get("cost", Cost())
        prepared[name] = replace(prepared[name], cost=cost)
        if outcome.status != "ok":
            reason = f"ended after {count.timeout:g} s" if outcome.status == "timeout" else outcome.reason
            with count.log.open("a") as log:
                log.write(f"model {name!r}: FLOPs not counted: {reason}\n")
        missing = [
            pass_
            for pass_, planned in (("inference", True), ("training", name in trained))
            if planned and cost.flops(pass_) is None
        ]
        if missing:
            what = f"no roofline of {name}'s {' and '.join(missing)}, whose FLOPs were not counted: see {count.log}"
            tick(what, len(counts), len(counts))
    return prepared


def failure(case: Case, prepared: Prepared) -> tuple[Status, str] | None:
    """How and why the prepare phase left nothing that `case` could run; None if it can."""
    if "model" in prepared.failures:
        return prepared.failures["model"]
    return prepared.failures.get(graph_of(case.precision)) if ENGINES[case.engine].needs == "onnx" else None


def _failed(outcome: Outcome) -> tuple[Status, str]:
    reason = outcome.reason or ""
    if outcome.status in ("crashed", "timeout"):
        reason = f"the model could not be prepared: {reason}"
    return outcome.status, reason


def _slots(sources: Sequence[ModelSource]) -> int:
    """How many preparations fit beside each other: one a core, and as the largest of them fits into memory."""
    largest = max((_memory_mib(source) for source in sources), default=0.0)
    available = available_memory_mib()
    by_memory = int(available * 0.8 / largest) if available and largest else usable_cores()
    return max(1, min(usable_cores(), by_memory))


def _memory_mib(source: ModelSource) -> float:
    parameters = CATALOG[source.name].parameters if source.kind == "canonical" else _UNKNOWN_PARAMETERS
    return _EXPORT_BASE_MIB + parameters * _EXPORT_BYTES_A_PARAMETER / 2**20
