"""Prepare what the cases need, models side by side: weights, reference outputs, exported graphs and gradients.

Everything is cached by content, so a second run prepares nothing. None of it runs next to a measurement.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TypeVar

from engines.catalog import ENGINES
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
from profiler.machine import available_memory_mib, usable_cores
from profiler.processes.forkserver import own_folder
from profiler.processes.holders import Holders, origin_of
from profiler.processes.messages import Outcome
from profiler.processes.process import Call, run_all
from profiler.results.run_folder import RunFolder
from profiler.worker.task import (
    Held,
    Prepared,
    batch_failure,
    graph_of,
    has_checked_gradients,
    microbatch,
    own_graphs,
    static_graph,
)

Key = TypeVar("Key", bound=Hashable)
Part = list[tuple[Call, Callable[[Outcome], None]]]
"""Calls, each with what takes its outcome."""
Tick = Callable[[str, int, int], None]
"""Called with what is being made, how many of it are done, and of how many."""
_MIB_EACH = 4096
"""Memory that one preparation may take: VGG-16's export peaks at 3.5 GB."""
_SHAPES_SECONDS = 120.0
"""For importing a library of models."""
_OK = Outcome("ok")
_QUANTIZED = (*PLACEMENTS, DYNAMIC)
"""Graphs that are made of fp32's."""
_COUNT_SECONDS = 60.0
"""For counting FLOPs, which a run can do without: ResNet-200 takes 2 s."""
_GRADIENT_SECONDS = 300.0
"""For a model's reference gradients, which a run can do without, too: on one core VGG-16's step in fp64 takes 10 s."""


_RETURNS: Mapping[str, type] = {
    "hold_model": Held,
    "prepare_model": Prepared,
    "prepare_reference": Path,
    "identify_model": Identity,
    "prepare_export": Export,
    "prepare_cost": Cost,
    "prepare_gradients": GradientReference,
}
"""Return types of the functions of prepare_model.py."""


def _slots(calls: int) -> int:
    return max(1, min(usable_cores(), int(available_memory_mib() / _MIB_EACH), calls))


def side_by_side(calls: Mapping[Key, Call], tick: Tick, what: str) -> dict[Key, Outcome]:
    """Run calls, one a core as far as the memory allows; `tick` is called a few times a second, for the display."""
    slots = _slots(len(calls))
    # Ten processes with a thread a core each, on 64 cores, took minutes for what takes seconds.
    shared = [replace(call, threads=call.threads or max(1, usable_cores() // slots)) for call in calls.values()]
    outcomes = run_all(shared, slots, lambda done: tick(f"preparing {what}", done, len(calls)))
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
    """Prepare every model of the runnable cases; what cannot be made by the deadline is in `Prepared.failures`.

    `tick(what, done, total)` is called a few times a second, for the display. Torch modules are made once, in
    `holders`, from which all that needs them is forked.
    """
    runnable = [case for case in cases if case.unsupported is None]
    sources = {case.subject: case.source for case in runnable}
    stages = Stages(sources, budget, logs, path, tick, runnable, deadline=deadline)
    stages.hold(holders, gpu)
    stages.models(gpu)
    return stages.prepared


def prepare_graphs(
    cases: Sequence[Case], budget: Budget, logs: Path, path: tuple[str, ...], tick: Tick
) -> dict[str, Prepared]:
    """Prepare only the graphs, which is all that building an engine takes."""
    stages = Stages({case.subject: case.source for case in cases}, budget, logs, path, tick, cases)
    stages.prepared.update((name, Prepared(onnx=own_graphs(source))) for name, source in stages.sources.items())
    stages.exports()
    return stages.prepared


@dataclass(frozen=True)
class Stages:
    """The stages of preparing `sources`, by subject: a model, or one at a shape. Each adds to what is `prepared`."""

    sources: dict[str, ModelSource]
    budget: Budget
    logs: Path
    path: tuple[str, ...]
    tick: Tick
    cases: Sequence[Case] = ()
    prepared: dict[str, Prepared] = field(default_factory=dict)
    deadline: float = math.inf
    """On time.monotonic()."""

    def hold(self, holders: Holders, gpu: str | None = None) -> None:
        """Make the torch modules, each once for all of its shapes, with their identities and weights."""
        subjects: dict[str, list[str]] = {}
        for name, source in self.sources.items():
            if source.kind != "onnx":
                subjects.setdefault(source.name, []).append(name)
        asked = {model: self._call("hold_model", f"prepare-{model}", own[0]) for model, own in subjects.items()}
        lasting = (replace(call, timeout=math.inf, environment=_visible(gpu)) for call in asked.values())
        calls = {str(call.origin): call for call in lasting}
        done = holders.start(calls, _slots(len(calls)), lambda done: self.tick("loading models", done, len(calls)))
        for model, outcome in zip(asked, done.values(), strict=True):
            for name in subjects[model]:
                if outcome.status != "ok":
                    self.prepared[name] = Prepared(failures={"model": failed(outcome)})
                elif len(subjects[model]) == 1:
                    self.sources[name] = source = outcome.value.source
                    self.prepared[name] = Prepared(source.specs, outcome.value.state, identity=source.identity)

    def models(self, gpu: str | None = None) -> None:
        """Make all that the cases need; for models that are held side by side."""
        others = [name for name in self.sources if name not in self.prepared or self.sources[name].graphs]
        self._run_parts("models", self._looks(others, gpu))
        held = [name for name, one in self.prepared.items() if "model" not in one.failures]
        more = [] if self._needs_graphs else [self._costs()]
        parts = self._references(held, gpu), self._floats(), self._gradients()
        self._run_parts("reference outputs and graphs", *parts, *more)
        self.exports()
        if self._needs_graphs:  # Which show what of a model reaches an output.
            self._run_parts("counts of FLOPs", self._costs())

    @property
    def _needs_graphs(self) -> bool:
        return any(ENGINES[case.engine].needs == "onnx" for case in self.cases)

    def _run_parts(self, what: str, *parts: Part) -> None:
        """Run the calls of several parts side by side, then take their outcomes."""
        every = [pair for part in parts for pair in part]
        outcomes = side_by_side({n: call for n, (call, _) in enumerate(every)}, self.tick, what)
        for n, (_, take) in enumerate(every):
            take(outcomes[n])

    def _looks(self, names: Sequence[str], gpu: str | None) -> Part:
        """Look at users' graphs, and at models with several shapes."""
        calls = {name: self._call("prepare_model", f"prepare-{name}", name) for name in names}
        visible = _visible(gpu)
        return [(replace(call, environment=visible), partial(self._take_model, name)) for name, call in calls.items()]

    def _take_model(self, name: str, outcome: Outcome) -> None:
        made = outcome.value if outcome.status == "ok" else Prepared(failures={"model": failed(outcome)})
        self.prepared[name] = made
        self.sources[name] = replace(self.sources[name], identity=made.identity, specs=made.specs or None)

    def _references(self, names: Sequence[str], gpu: str | None) -> Part:
        """Make one reference for each batch size of inference."""
        needed = dict.fromkeys((c.subject, c.batch_size) for c in self.cases if c.pass_ == "inference")
        part: Part = []
        for name, batch in (pair for pair in needed if pair[0] in names):
            call = self._call("prepare_reference", f"reference-{name}-{batch}", name, self.prepared[name].state, batch)
            part.append((replace(call, environment=_visible(gpu)), partial(self._take_reference, name, batch)))
        return part

    def _take_reference(self, name: str, batch: int, outcome: Outcome) -> None:
        old = self.prepared[name]
        if outcome.status == "ok":
            self.prepared[name] = replace(old, references={**old.references, batch: outcome.value})
        else:
            failures = {**old.failures, batch_failure(batch): failed(outcome)}
            self.prepared[name] = replace(old, failures=failures)

    def identities(self) -> dict[str, Identity | str]:
        """Identify the models, or say why one cannot be had."""
        calls = {name: self._call("identify_model", f"identify-{name}", name) for name in self.sources}
        return {
            name: outcome.value if outcome.status == "ok" else str(failed(outcome).reason)
            for name, outcome in side_by_side(calls, self.tick, "models compared with the run's").items()
        }

    def exports(self) -> None:
        """Export the graphs that the cases' engines need; int8's are made of fp32's."""
        self._run_parts("exports to ONNX", self._floats())
        self._export_by_batch(self._of_graphs())
        quantized = [key for key in self._lacking() if key[1] in _QUANTIZED]
        for name, graph in quantized:
            model = self.prepared[name]
            if "fp32" in model.failures:
                self._keep(name, graph, model.failures["fp32"])
        ready = [(name, graph) for name, graph in quantized if graph not in self.prepared[name].failures]
        self._run_parts("graphs quantized to int8", self._exports(ready))

    def _of_graphs(self) -> list[Case]:
        return [case for case in self.cases if ENGINES[case.engine].needs == "onnx"]

    def _lacking(self) -> list[tuple[str, str]]:
        needed = dict.fromkeys((case.subject, graph_of(case)) for case in self._of_graphs())
        return [(name, graph) for name, graph in needed if self._lacks(name, graph)]

    def _floats(self) -> Part:
        lacking = self._lacking()
        floats = [key for key in lacking if key[1] not in _QUANTIZED]
        floats += [(name, "fp32") for name, graph in lacking if graph in _QUANTIZED and self._lacks(name, "fp32")]
        return self._exports(dict.fromkeys(floats))

    def _lacks(self, name: str, graph: str) -> bool:
        model = self.prepared[name]
        return "model" not in model.failures and graph not in model.failures and graph not in model.onnx

    def _keep(self, name: str, graph: str, outcome: Outcome) -> None:
        old, made = self.prepared[name], outcome.status == "ok"
        new = {"onnx": {**old.onnx, graph: outcome.value}} if made else {"failures": {**old.failures, graph: outcome}}
        self.prepared[name] = replace(old, **new)

    def _export_by_batch(self, cases: Sequence[Case]) -> None:
        """Export a graph a shape and batch size of the models whose export with free ones failed."""
        needed = dict.fromkeys(
            (case.subject, graph_of(case), case.batch_size)
            for case in cases
            if self.prepared[case.subject].failures.get(graph_of(case), _OK).status == "failed"
            and self.prepared[case.subject].graph(case) is None
            and case.precision != "int8"
            and case.source.own_graph is None
        )
        self.sources.update((name, replace(self.sources[name], varied={})) for name, *_ in needed)
        calls = {key: self._call("prepare_export", f"export-{key[0]}-{key[1]}-{key[2]}", *key) for key in needed}
        outcomes = side_by_side(calls, self.tick, "exports to ONNX, each for a batch size")
        for (name, graph, batch), outcome in outcomes.items():
            if outcome.status != "ok":
                why, free = failed(outcome).reason, self.prepared[name].failures[graph].reason
                reason = (
                    f"{free}; for one batch size it fails alike" if why == free else f"{free}; at batch {batch}: {why}"
                )
                outcome = replace(failed(outcome), reason=reason)
            self._keep(name, static_graph(graph, batch), outcome)

    def _exports(self, graphs: Iterable[tuple[str, str]]) -> Part:
        """Export each graph once a model, whose shapes share it: at the first that its calibration data fit, if any."""
        sharing: dict[tuple[str, str], list[str]] = {}
        for name, graph in graphs:
            sharing.setdefault((self.sources[name].name, graph), []).append(name)
        part: Part = []
        for (_, graph), names in sharing.items():
            first = next(filter(self._is_calibrated, names), names[0]) if graph in PLACEMENTS else names[0]
            call = self._call("prepare_export", f"export-{first}-{graph}", first, graph, None)
            part.append((call, partial(self._take_export, names, graph)))
        return part

    def _take_export(self, names: Sequence[str], graph: str, outcome: Outcome) -> None:
        for name in names:
            self._keep(name, graph, failed(outcome))

    def _is_calibrated(self, name: str) -> bool:
        source = self.sources[name]
        with contextlib.suppress(ModelError):
            return bool(source.calibration and source.specs and calibration_files(source.calibration, source.specs))
        return False

    def _costs(self) -> Part:
        """Count FLOPs and bytes; a model that hangs while it is counted is measured all the same."""
        trained = {case.subject for case in self.cases if case.pass_ == "training"}
        to_input, frozen, part = self._to_input(), self._frozen(), Part()
        for name in (name for name in self.sources if "model" not in self.prepared[name].failures):
            arguments = self.prepared[name], name in trained, name in to_input, frozen.get(name, ())
            call = self._call("prepare_cost", f"prepare-{name}", name, *arguments, most=_COUNT_SECONDS)
            part.append((call, partial(self._take_cost, name)))
        return part

    def _take_cost(self, name: str, outcome: Outcome) -> None:
        if outcome.status == "ok":
            self.prepared[name] = replace(self.prepared[name], cost=outcome.value)
        else:
            reason = f"{outcome.status}: {outcome.reason}"
            self.tick(f"no roofline of {name}: its FLOPs were not counted: {reason}", 1, 1)

    def _gradients(self) -> Part:
        """Take the first training step in fp64; where that fails, the model is measured all the same."""
        needed: dict[tuple[str, str, int], list[Case]] = {}
        for case in self.cases:
            if has_checked_gradients(case) and "model" not in self.prepared[case.subject].failures:
                key = case.subject, case.training.head, reference_items(microbatch(case))
                needed.setdefault(key, []).append(case)
        to_input, frozen, part = self._to_input(), self._frozen(), Part()
        for (name, head, items), own in needed.items():
            precisions, batches = (tuple({getattr(c, key): None for c in own}) for key in ("precision", "batch_size"))
            step = Step(head, items, name in to_input, precisions, batches, frozen[name])
            log = f"gradients-{name}-{head}-{items}"
            call = self._call("prepare_gradients", log, name, self.prepared[name], step, most=_GRADIENT_SECONDS)
            part.append((call, partial(self._take_gradients, name, (head, items))))
        return part

    def _take_gradients(self, name: str, key: tuple[str, int], outcome: Outcome) -> None:
        why = f"{outcome.reason}{f'; see {outcome.log}' if outcome.log else ''}"
        found = {key: outcome.value if outcome.status == "ok" else why}
        self.prepared[name] = replace(self.prepared[name], gradients={**self.prepared[name].gradients, **found})

    def _to_input(self) -> set[str]:
        """Find the models whose training goes on to the gradient of the input."""
        return {case.subject for case in self.cases if case.training.input_gradient}

    def _frozen(self) -> dict[str, tuple[str, ...]]:
        """Name by model what training leaves out."""
        return {case.subject: case.training.frozen for case in self.cases if case.pass_ == "training"}

    def _call(self, function: str, log: str, model: str, *arguments: object, most: float = math.inf) -> Call:
        """Call a function of prepare_model.py with the model's source, `arguments` and the cache's folder."""
        limit = self.budget.build_timeout
        return Call(
            f"profiler.worker.prepare_model:{function}",
            (self.sources[model], *arguments, default_root()),
            self.logs / f"{file_name(log)}.log",
            timeout=min(most, limit),
            build_timeout=limit,
            deadline=self.deadline,
            path=self.path,
            option="budget.build_timeout" if limit <= most else None,
            origin=origin_of(self.logs, self.sources[model].name),
            returns=_RETURNS[function],
        )


def _visible(gpu: str | None) -> dict[str, str]:
    return {"CUDA_VISIBLE_DEVICES": gpu} if gpu else {}


def failure(case: Case, prepared: Prepared) -> Outcome | None:
    """Find why preparing left nothing that the case could run; None if it can run."""
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
    """Raise ConfigError where one of the models to prepare is not what the run's models.json says of it.

    `option` is what the user asked for, and `why` another network forbids it.
    """
    recorded = {name: model for name, model in run.read_models().items() if name in stages.sources}
    now = replace(stages, sources={name: stages.sources[name] for name in recorded}).identities()
    for name, model in recorded.items():
        found = now[name]
        if not isinstance(found, Identity):
            raise ConfigError(f"{option}: model {name!r} cannot be had: {found}; mend that, or start a new run")
        if changes := model.changes(found):
            raise ConfigError(
                f"{option}: model {name!r} has changed since the run measured it: "
                f"{', '.join(changes)}; {why}: start a new run, or restore the model as it was"
            )


def with_shapes(config: Config, tick: Tick = lambda *_: None) -> Config:
    """Give each model those of the job's `shapes` that its inputs have, so that the run writes down what it measures.

    Raises ConfigError for a name that no model has, and for one of a model's own that its inputs lack.
    """
    own = (config.shapes if entry.shapes is None else entry.shapes for entry in config.models)
    given = {n: shapes for n, shapes in enumerate(own) if shapes}
    every = _dimensions({n: config.models[n].source() for n in given}, config.path, tick)
    known, models = {name for names in every.values() for name in names}, list(config.models)
    for n, shapes in given.items():
        is_own = models[n].shapes is not None
        whose, place, valid = ("its", f"models[{n}].", set(every[n])) if is_own else ("no model's", "", known)
        for name in shapes.keys() - valid:
            lacks = f"{whose} inputs have {'no' if is_own else 'a'} dimension '{name}'{nearest(name, valid)}"
            raise ConfigError(f"{place}shapes.{name}: {lacks if valid else why_fixed(models[n].source())}")
        kept = {name: sizes for name, sizes in shapes.items() if name in every[n]}
        models[n] = models[n].model_copy(update={"shapes": kept})
    return config.model_copy(update={"models": models})


def _dimensions(sources: Mapping[int, ModelSource], path: tuple[str, ...], tick: Tick) -> dict[int, list[str]]:
    """Name each model's dimensions; what only a library or a factory knows is asked in another process."""
    with own_folder() as folder:
        function, log = "profiler.worker.prepare_model:look_at_dimensions", folder / "log"
        foreign = {n: source for n, source in sources.items() if source.asks_code}
        calls = {
            n: Call(function, source, log, _SHAPES_SECONDS, path=path, returns=list) for n, source in foreign.items()
        }
        outcomes = side_by_side(calls, tick, "models asked for their inputs") if calls else {}
    if bad := next((outcome for outcome in outcomes.values() if outcome.status != "ok"), None):
        raise ConfigError(f"shapes: {bad.reason}")
    return {n: outcomes[n].value if n in outcomes else dimensions_of(source) for n, source in sources.items()}
