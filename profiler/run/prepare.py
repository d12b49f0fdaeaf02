"""Prepare models side by side: weights, reference outputs, exported graphs and gradients.

Everything is cached by content, so a second run prepares nothing. Nothing is prepared next to a measurement.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from engines.catalog import ENGINES
from engines.options import Training
from exporters.cache import default_root
from exporters.flops import Cost
from exporters.gradients import GradientReference, Step, reference_items
from exporters.inputs import dimensions_of, why_fixed
from exporters.int8 import DYNAMIC, PLACEMENTS, calibration_files
from exporters.onnx_export import Export
from exporters.source import Identity, ModelError, ModelSource
from profiler.errors import ConfigError, nearest
from profiler.job.case import Budget, Case, file_name
from profiler.job.config import Config
from profiler.machine.target import available_memory_mib, usable_cores
from profiler.processes.forkserver import own_folder
from profiler.processes.holders import Holders, origin_of
from profiler.processes.messages import Outcome
from profiler.processes.process import Call, run_all
from profiler.results.run_folder import RunFolder
from profiler.worker.task import (
    HeldModel,
    Prepared,
    batch_failure,
    graph_of,
    has_checked_gradients,
    microbatch,
    own_graphs,
    static_graph,
)

Key = TypeVar("Key", bound=Hashable)
Part = Iterable[tuple[Call, Callable[[Outcome], None]]]
"""Calls, each with the receiver of its outcome."""
Tick = Callable[[str, int, int], None]
"""Called with a step's name, how many of its calls have ended, and their number."""
_MIB_PER_CALL = 4096
"""Memory that a preparation may take: VGG-16's export peaks at 3.5 GB."""
_SHAPES_SECONDS = 120.0
"""For importing a library of models."""
_QUANTIZED = (*PLACEMENTS, DYNAMIC)
"""Graphs that are made from fp32's."""
_COUNT_SECONDS = 60.0
"""For counting FLOPs, which a run can do without: ResNet-200 takes 2 s."""
_COUNT_SHARE = 0.1
"""Most of the time until the deadline that counting FLOPs may take."""
_GRADIENT_SECONDS = 300.0
"""For a model's reference gradients, which a run can do without: VGG-16's step in fp64 takes one core 10 s."""
_RETURNS: Mapping[str, type] = {
    "hold_model": HeldModel,
    "prepare_model": Prepared,
    "prepare_reference": Path,
    "identify_model": Identity,
    "prepare_export": Export,
    "prepare_cost": Cost,
    "prepare_gradients": GradientReference,
}
"""Return types of the functions of prepare_model.py."""


def _slots(calls: int) -> int:
    return max(1, min(usable_cores(), int(available_memory_mib() / _MIB_PER_CALL), calls))


def side_by_side(calls: Mapping[Key, Call], tick: Tick, step: str) -> dict[Key, Outcome]:
    """Run calls, one a core if the memory allows; `tick` is called a few times a second."""
    slots = _slots(len(calls))
    # Ten processes with a thread a core, on 64 cores, took minutes for seconds of work.
    shared = [replace(call, threads=call.threads or max(1, usable_cores() // slots)) for call in calls.values()]
    outcomes = run_all(shared, slots, lambda done: tick(f"preparing {step}", done, len(calls)))
    return dict(zip(calls, outcomes, strict=True))


def prepare(
    cases: Sequence[Case],
    budget: Budget,
    logs: Path,
    path: tuple[str, ...],
    tick: Tick,
    holders: Holders,
    gpu: str | None = None,
    deadline: float = math.inf,
) -> dict[str, Prepared]:
    """Prepare every model of the runnable cases, by subject; failures are in `Prepared.failures`.

    `tick(step, done, total)` is called a few times a second. Torch modules are made once, in `holders`; later processes
    are forked from them.
    """
    runnable = [case for case in cases if case.unsupported is None]
    sources = {case.subject: case.source for case in runnable}
    stages = Stages(sources, budget, logs, path, tick, runnable, deadline=deadline, gpu=gpu)
    stages.hold(holders)
    stages.make()
    return stages.prepared


def prepare_graphs(
    cases: Sequence[Case], budget: Budget, logs: Path, path: tuple[str, ...], tick: Tick
) -> dict[str, Prepared]:
    """Prepare only the graphs, enough to build an engine."""
    stages = Stages({case.subject: case.source for case in cases}, budget, logs, path, tick, cases)
    stages.prepared.update((name, Prepared(onnx=own_graphs(source))) for name, source in stages.sources.items())
    stages.exports()
    return stages.prepared


@dataclass(frozen=True)
class Stages:
    """The stages of preparing `sources`, by subject: a model, or a model at a shape."""

    sources: dict[str, ModelSource]
    budget: Budget
    logs: Path
    path: tuple[str, ...]
    tick: Tick
    cases: Sequence[Case] = ()
    prepared: dict[str, Prepared] = field(default_factory=dict)
    deadline: float = math.inf
    """On time.monotonic()."""
    gpu: str | None = None

    def hold(self, holders: Holders) -> None:
        """Make each torch module once for all of its shapes, with its identity and weights."""
        subjects: dict[str, list[str]] = {}
        for name, source in self.sources.items():
            if source.kind != "onnx":
                subjects.setdefault(source.name, []).append(name)
        calls = {}
        for model, names in subjects.items():
            call = self._call("hold_model", f"prepare/{model}", names[0], on_gpu=True)
            calls[str(call.origin)] = replace(call, timeout=math.inf)
        outcomes = holders.start(calls, _slots(len(calls)), lambda done: self.tick("loading models", done, len(calls)))
        for names, outcome in zip(subjects.values(), outcomes.values(), strict=True):
            for name in names:
                if outcome.status != "ok":
                    self.prepared[name] = Prepared(failures={"model": failed(outcome)})
                elif len(names) == 1:
                    self.sources[name] = source = outcome.value.source
                    facts: dict[str, Any] = {"identity": source.identity, "labels": source.labels}
                    facts["has_images"] = outcome.value.has_images
                    self.prepared[name] = Prepared(source.specs, outcome.value.state, **facts)

    def make(self) -> None:
        """Make everything that the cases need."""
        # Holders prepared torch modules with one shape; users' graphs still need a check.
        names = [name for name in self.sources if name not in self.prepared or self.sources[name].graphs]
        calls = [self._call("prepare_model", f"prepare/{name}", name, on_gpu=True) for name in names]
        self._run_parts("models", list(zip(calls, (partial(self._take_model, name) for name in names), strict=True)))
        needs_graphs = any(ENGINES[case.engine].needs == "onnx" for case in self.cases)
        costs = [] if needs_graphs else [self._costs()]
        self._run_parts("reference outputs and graphs", self._references(), self._floats(), self._gradients(), *costs)
        self.exports()
        if needs_graphs:  # Graphs show which parts of a model reach an output.
            self._run_parts("counts of FLOPs", self._costs())

    def _run_parts(self, step: str, *parts: Part) -> None:
        pairs = [pair for part in parts for pair in part]
        outcomes = side_by_side({n: call for n, (call, _) in enumerate(pairs)}, self.tick, step)
        for n, (_, take) in enumerate(pairs):
            take(outcomes[n])

    def _keep(self, name: str, kind: str, key: object, failure_key: str, outcome: Outcome) -> None:
        """Store the value under `key` in the model's field `kind`, or the failure under `failure_key`."""
        model = self.prepared[name]
        place, key, value = (kind, key, outcome.value) if outcome.status == "ok" else ("failures", failure_key, outcome)
        changes: dict[str, Any] = {place: {**getattr(model, place), key: value}}
        self.prepared[name] = replace(model, **changes)

    def _take(self, names: Sequence[str], kind: str, key: object, failure_key: str, outcome: Outcome) -> None:
        for name in names:
            self._keep(name, kind, key, failure_key, failed(outcome))

    def _take_model(self, name: str, outcome: Outcome) -> None:
        model = outcome.value if outcome.status == "ok" else Prepared(failures={"model": failed(outcome)})
        self.prepared[name] = model
        facts: dict[str, Any] = {"identity": model.identity, "labels": model.labels}
        self.sources[name] = replace(self.sources[name], specs=model.specs or None, **facts)

    def _usable(self) -> list[str]:
        return [name for name, model in self.prepared.items() if "model" not in model.failures]

    def _references(self) -> Part:
        needed = dict.fromkeys((c.subject, c.batch_size) for c in self.cases if c.pass_ == "inference")
        usable = self._usable()
        for name, batch in (key for key in needed if key[0] in usable):
            arguments = self.prepared[name].state, batch
            call = self._call("prepare_reference", f"reference/{name}/{batch}", name, *arguments, on_gpu=True)
            yield call, partial(self._take, [name], "references", batch, batch_failure(batch))

    def identities(self) -> dict[str, Identity | str]:
        """Return each model's identity, or why it cannot be loaded."""
        calls = {name: self._call("identify_model", f"identify/{name}", name) for name in self.sources}
        return {
            name: outcome.value if outcome.status == "ok" else str(failed(outcome).reason)
            for name, outcome in side_by_side(calls, self.tick, "models compared with the run's").items()
        }

    def exports(self) -> None:
        """Export the graphs that the cases' engines need; int8's are made from fp32's."""
        self._run_parts("exports to ONNX", self._floats())
        self._export_by_batch()
        quantized = [key for key in self._needed() if key[1] in _QUANTIZED]
        for name, graph in quantized:
            if self._lacks(name, graph) and (why := self.prepared[name].failures.get("fp32")):
                self._keep(name, "onnx", graph, graph, why)
        self._run_parts("graphs quantized to int8", self._exports(quantized))

    def _of_graphs(self) -> list[Case]:
        return [case for case in self.cases if ENGINES[case.engine].needs == "onnx"]

    def _needed(self) -> list[tuple[str, str]]:
        return list(dict.fromkeys((case.subject, graph_of(case)) for case in self._of_graphs()))

    def _floats(self) -> Part:
        missing = [key for key in self._needed() if self._lacks(*key)]
        return self._exports((name, "fp32" if graph in _QUANTIZED else graph) for name, graph in missing)

    def _lacks(self, name: str, graph: str) -> bool:
        model = self.prepared[name]
        return "model" not in model.failures and graph not in model.failures and graph not in model.onnx

    def _export_by_batch(self) -> None:
        """Export each shape and batch size alone where the export with free sizes failed."""
        needed = dict.fromkeys(
            (case.subject, graph_of(case), case.batch_size)
            for case in self._of_graphs()
            if self.prepared[case.subject].failures.get(graph_of(case), Outcome("ok")).status == "failed"
            and self.prepared[case.subject].graph(case) is None
            and case.precision != "int8"
            and case.source.own_graph is None
        )
        self.sources.update((name, replace(self.sources[name], varied={})) for name, *_ in needed)
        calls = {key: self._call("prepare_export", f"export/{key[0]}/{key[1]}/{key[2]}", *key) for key in needed}
        outcomes = side_by_side(calls, self.tick, "exports to ONNX, each for a batch size")
        for (name, graph, batch), outcome in outcomes.items():
            if outcome.status != "ok":
                why, free = failed(outcome).reason, self.prepared[name].failures[graph].reason
                outcome = replace(outcome, reason=free if why == free else f"{free}; at batch {batch}: {why}")
            self._keep(name, "onnx", graph := static_graph(graph, batch), graph, outcome)

    def _exports(self, graphs: Iterable[tuple[str, str]]) -> Part:
        """Export each graph of a model once for all shapes; calibrate it at the first shape that the data fit."""
        sharing: dict[tuple[str, str], list[str]] = {}
        for name, graph in dict.fromkeys(key for key in graphs if self._lacks(*key)):
            sharing.setdefault((self.sources[name].name, graph), []).append(name)
        for (_, graph), names in sharing.items():
            first = next(filter(self._is_calibrated, names), names[0]) if graph in PLACEMENTS else names[0]
            call = self._call("prepare_export", f"export/{first}/{graph}", first, graph, None)
            yield call, partial(self._take, names, "onnx", graph, graph)

    def _is_calibrated(self, name: str) -> bool:
        source = self.sources[name]
        with contextlib.suppress(ModelError):
            return bool(source.calibration and source.specs and calibration_files(source.calibration, source.specs))
        return False

    def _costs(self) -> Part:
        """Count FLOPs and bytes; a failure only costs the roofline."""
        trainings = self._trainings()
        for name in self._usable():
            arguments = self.prepared[name], trainings.get(name)
            limit = min(_COUNT_SECONDS, _COUNT_SHARE * (self.deadline - time.monotonic()))
            call = self._call("prepare_cost", f"prepare/{name}", name, *arguments, limit=limit)
            yield call, partial(self._take_cost, name)

    def _take_cost(self, name: str, outcome: Outcome) -> None:
        if outcome.status == "ok":
            self.prepared[name] = replace(self.prepared[name], cost=outcome.value)
        elif math.isinf(self.deadline) or outcome.status != "timeout":  # Short of time, rows come first.
            reason = f"{outcome.status}: {outcome.reason}"
            self.tick(f"no roofline of {name}: its FLOPs were not counted: {reason}", 1, 1)

    def _gradients(self) -> Part:
        """Take the first training step in fp64; a failure only leaves gradients unchecked."""
        needed: dict[tuple[str, str, int], list[Case]] = {}
        for case in self.cases:
            if has_checked_gradients(case) and "model" not in self.prepared[case.subject].failures:
                key = case.subject, case.training.head, reference_items(microbatch(case))
                needed.setdefault(key, []).append(case)
        trainings = self._trainings()
        for (name, head, items), cases in needed.items():
            precisions, batches = (tuple({getattr(c, key): None for c in cases}) for key in ("precision", "batch_size"))
            step = Step(head, items, trainings[name].input_gradient, precisions, batches, trainings[name].frozen)
            arguments = self.prepared[name], step
            log = f"gradients/{name}/{head}/{items}"
            call = self._call("prepare_gradients", log, name, *arguments, limit=_GRADIENT_SECONDS)
            yield call, partial(self._take_gradients, name, (head, items))

    def _take_gradients(self, name: str, key: tuple[str, int], outcome: Outcome) -> None:
        why = f"{outcome.reason}{f'; see {outcome.log}' if outcome.log else ''}"
        model, reference = self.prepared[name], outcome.value if outcome.status == "ok" else why
        self.prepared[name] = replace(model, gradients={**model.gradients, key: reference})

    def _trainings(self) -> dict[str, Training]:
        """Return one training setting of each model: its settings share input gradient and frozen parameters."""
        return {case.subject: case.training for case in self.cases if case.pass_ == "training"}

    def _call(
        self, function: str, log: str, model: str, *arguments: object, limit: float = math.inf, on_gpu: bool = False
    ) -> Call:
        """Call a function of prepare_model.py with the model's source, `arguments` and the cache's folder."""
        timeout = self.budget.build_timeout
        return Call(
            f"profiler.worker.prepare_model:{function}",
            (self.sources[model], *arguments, default_root()),
            self.logs / f"{file_name(log)}.log",
            timeout=min(limit, timeout),
            build_timeout=timeout,
            deadline=self.deadline,
            environment={"CUDA_VISIBLE_DEVICES": self.gpu} if self.gpu and on_gpu else {},
            path=self.path,
            option="budget.build_timeout" if timeout <= limit else None,
            origin=origin_of(self.logs, self.sources[model].name),
            returns=_RETURNS[function],
        )


def failure(case: Case, prepared: Prepared) -> Outcome | None:
    """Return why the case cannot run after preparing; None if it can."""
    for name in ("model", *([batch_failure(case.batch_size)] if case.pass_ == "inference" else [])):
        if name in prepared.failures:
            return prepared.failures[name]
    if ENGINES[case.engine].needs != "onnx" or prepared.graph(case) is not None:
        return None
    graph = graph_of(case)
    return prepared.failures.get(static_graph(graph, case.batch_size)) or prepared.failures.get(graph)


def failed(outcome: Outcome) -> Outcome:
    if outcome.status in ("crashed", "timeout"):
        return replace(outcome, reason=f"the model could not be prepared: {outcome.reason}")
    return outcome


def check_models(run: RunFolder, stages: Stages, option: str, why: str) -> None:
    """Raise ConfigError if a model has changed since the run recorded it.

    `option` names the user's request, and `why` is the reason against another network.
    """
    recorded = {name: model for name, model in run.read_models().items() if name in stages.sources}
    now = replace(stages, sources={name: stages.sources[name] for name in recorded}).identities()
    for name, model in recorded.items():
        identity = now[name]
        if not isinstance(identity, Identity):
            raise ConfigError(f"{option}: model {name!r} cannot be loaded: {identity}; fix that, or start a new run")
        if changes := model.changes(identity):
            raise ConfigError(
                f"{option}: model {name!r} has changed since the run measured it: "
                f"{', '.join(changes)}; {why}: start a new run, or restore the model as it was"
            )


def with_shapes(config: Config, tick: Tick = lambda *_: None) -> Config:
    """Give each model the job's `shapes` that its inputs have, so that the run's bench.yaml holds them.

    Raises ConfigError for a dimension that no model has, or one in a model's own `shapes` that its inputs lack.
    """
    asked = (config.shapes if entry.shapes is None else entry.shapes for entry in config.models)
    shapes_of = {n: shapes for n, shapes in enumerate(asked) if shapes}
    names_of = _dimensions({n: config.models[n].source() for n in shapes_of}, config.path, tick)
    all_names, models = [name for names in names_of.values() for name in names], list(config.models)
    for n, shapes in shapes_of.items():
        is_own = models[n].shapes is not None
        whose, place, valid = ("its", f"models[{n}].", names_of[n]) if is_own else ("no model's", "", all_names)
        for name in shapes.keys() - valid:
            lacks = f"{whose} inputs have {'no' if is_own else 'a'} dimension '{name}'{nearest(name, valid)}"
            raise ConfigError(f"{place}shapes.{name}: {lacks if valid else why_fixed(models[n].source())}")
        shapes = {name: sizes for name, sizes in shapes.items() if name in names_of[n]}
        models[n] = models[n].model_copy(update={"shapes": shapes})
    return config.model_copy(update={"models": models})


def _dimensions(sources: Mapping[int, ModelSource], path: tuple[str, ...], tick: Tick) -> dict[int, list[str]]:
    """Return the names of each model's dimensions; ask libraries and factories in another process."""
    with own_folder() as folder:
        function, log = "profiler.worker.prepare_model:look_at_dimensions", folder / "log"
        calls = {
            n: Call(function, source, log, _SHAPES_SECONDS, path=path, returns=list)
            for n, source in sources.items()
            if source.asks_code
        }
        outcomes = side_by_side(calls, tick, "models asked for their inputs") if calls else {}
    if bad := next((outcome for outcome in outcomes.values() if outcome.status != "ok"), None):
        raise ConfigError(f"shapes: {bad.reason}")
    return {n: outcomes[n].value if n in outcomes else dimensions_of(source) for n, source in sources.items()}
