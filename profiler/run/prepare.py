"""Prepare what the cases need, models side by side: weights, reference outputs, exported graphs and gradients.

Everything is cached by content, so a second run prepares nothing. None of it runs next to a measurement.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from rich.console import Console
from rich.text import Text

from engines.catalog import ENGINES, Device
from exporters.cache import CacheError, check_root, default_root, most_bytes
from exporters.cost import Cost
from exporters.gradients import reference_items
from exporters.inputs import fixed_batch, input_specs, numpy_dtype
from exporters.int8 import calibration_files
from exporters.onnx_files import loops_of
from exporters.qdq_placement import PLACEMENTS
from exporters.source import Identity, ModelError, ModelSource
from profiler.errors import ConfigError
from profiler.job.case import Budget, Case, file_name
from profiler.job.config import Config
from profiler.machine import Target
from profiler.processes.messages import Outcome
from profiler.processes.process import Call
from profiler.run.fits import Key, Tick, side_by_side, too_large_to_prepare, weight_mib
from profiler.run.progress import open_display
from profiler.tables.numbers import counted, duration
from profiler.tables.writers import print_pairs
from profiler.worker.task import Prepared, Task, graph_of, graphs_of, has_checked_gradients, own_graphs, static_graph

_OK = Outcome("ok")
_COUNT_SECONDS = 60.0
"""For counting FLOPs, which a run can do without: ResNet-200 takes 2 s."""
_GRADIENT_SECONDS = 300.0
"""For a model's reference gradients, which a run can do without, too: on one core VGG-16's step in fp64 takes 10 s."""


def cache_limit() -> int:
    """Bytes that may be left in the cache at the end of a run. Raises ConfigError where the variable is no number."""
    try:
        return most_bytes()
    except ValueError as error:
        raise ConfigError(f"PROFILER_CACHE_GIB: {error}; give a number of GiB, such as 20") from None


def check_cache() -> None:
    """Raises ConfigError for a cache that has nothing and cannot be written, which no model could be prepared in."""
    try:
        check_root(default_root())
    except CacheError as error:
        raise ConfigError(str(error)) from None


def prepare(
    cases: Sequence[Case], budget: Budget, logs: Path, path: tuple[str, ...], tick: Tick, gpu: str | None = None
) -> dict[str, Prepared]:
    """Prepare every model of the runnable cases; what cannot be made is in `Prepared.failures`.

    Reference outputs that the CPU cannot afford are taken on the GPU of that UUID. `tick(what, done, total)` is called
    a few times a second, for the display.
    """
    runnable = [case for case in cases if case.unsupported is None]
    references, sources = models_of(runnable)
    stages = Stages(sources, budget, logs, path, tick, cases=runnable)
    prepared = stages.models(gpu)
    for name, reference in references.items():
        prepared[name] = compared(name, prepared[name], reference.subject, prepared[reference.subject])
    stages.exports()
    # After the exports, which show what of a model reaches an output.
    stages.costs()
    stages.gradients()
    return prepared


def models_of(cases: Sequence[Case]) -> tuple[dict[str, ModelSource], dict[str, ModelSource]]:
    """By subject what its errors are relative to, where that is another model; and all subjects that it takes."""
    references = {case.subject: case.reference for case in cases if case.reference}
    named = {each.subject: each for each in references.values()}
    return references, named | {case.subject: case.source for case in cases}


def prepare_graphs(
    cases: Sequence[Case], budget: Budget, logs: Path, path: tuple[str, ...], tick: Tick, option: str | None = None
) -> dict[str, Prepared]:
    """Prepare only the graphs, which is all that building an engine takes.

    `option` is what the user raises to give an export longer; None is the job's budget.
    """
    stages = Stages({case.subject: case.source for case in cases}, budget, logs, path, tick, option, cases)
    stages.prepared.update((name, Prepared(onnx=own_graphs(source))) for name, source in stages.sources.items())
    stages.exports()
    return stages.prepared


@dataclass(frozen=True)
class Stages:
    """The stages of preparing `sources`: the models by name, each shape of one by itself (`ModelSource.subject`). Each
    runs a process a thing, side by side, and adds to what is `prepared`."""

    sources: dict[str, ModelSource]
    budget: Budget
    logs: Path
    path: tuple[str, ...]
    tick: Tick
    option: str | None = None
    cases: Sequence[Case] = ()
    """Those that can run as far as the plan knows: what they need is prepared."""
    prepared: dict[str, Prepared] = field(default_factory=dict)

    def models(self, gpu: str | None = None) -> dict[str, Prepared]:
        """Identities, input shapes, weights and reference outputs. Later stages go by the identities.

        What the CPU's time or memory did not suffice for is tried once more with the references on the GPU.
        """
        what = "weights and reference outputs"
        devices: Sequence[Device] = ("cpu", "cuda") if gpu else ("cpu",)
        outcomes = self._run({name: self._model_call(name, devices, gpu) for name in self.sources}, what)
        slow = [name for name, outcome in outcomes.items() if outcome.status in ("oom", "timeout") and gpu]
        beyond = [name for name in slow if not loops_of(self.sources[name])]
        again = self._run({name: self._model_call(name, ("cuda",), gpu) for name in beyond}, what)
        outcomes |= {name: outcome for name, outcome in again.items() if outcome.status == "ok"}
        for name, outcome in outcomes.items():
            each = outcome.value if outcome.status == "ok" else Prepared(failures={"model": self._why(name, outcome)})
            self.prepared[name] = each
            self.sources[name] = replace(self.sources[name], identity=each.identity)
            for kind in each.rebuilt:
                self.tick(f"{name}'s {kind} again, which was damaged in the cache", len(outcomes), len(outcomes))
        return self.prepared

    def _why(self, name: str, outcome: Outcome) -> Outcome:
        spins = loops_of(self.sources[name]) if outcome.status == "timeout" else ()
        hint = f"; its Loop {spins[0]!r} may never end" if spins else ""
        return replace(failed(outcome), reason=f"{failed(outcome).reason}{hint}")

    def _model_call(self, name: str, devices: Sequence[Device], gpu: str | None) -> Call:
        # What may never end has a case's time; others are not cut off, whose weights may take long to read.
        most = self.budget.timeout if loops_of(self.sources[name]) else math.inf
        call = self._call("prepare_model", f"prepare-{name}", name, devices, most=most)
        return replace(call, environment={"CUDA_VISIBLE_DEVICES": gpu} if gpu else {})

    def identities(self) -> dict[str, Identity | str]:
        """What the models are; or why one cannot be had."""
        calls = {name: self._call("identify_model", f"identify-{name}", name) for name in self.sources}
        return {
            name: outcome.value if outcome.status == "ok" else str(failed(outcome).reason)
            for name, outcome in self._run(calls, "models compared with the run's").items()
        }

    def exports(self) -> None:
        """The graphs that the cases' engines need; int8's are made of fp32's."""
        of_graphs = [case for case in self.cases if ENGINES[case.engine].needs == "onnx"]
        needed = dict.fromkeys((c.subject, graph_of(c)) for c in of_graphs if self._lacks(c.subject, graph_of(c)))
        quantized = [key for key in needed if key[1] in PLACEMENTS]
        floats = [key for key in needed if key[1] not in PLACEMENTS]
        floats += [(name, "fp32") for name, _ in quantized if self._lacks(name, "fp32")]
        self._export(dict.fromkeys(floats), "exports to ONNX")
        self._export_by_shape()
        self._export_by_batch(of_graphs)
        for name, graph in quantized:
            model = self.prepared[name]
            if "fp32" in model.failures and static_graph("fp32") not in model.onnx:
                self._keep(name, graph, model.failures["fp32"])
        ready = [(name, graph) for name, graph in quantized if graph not in self.prepared[name].failures]
        self._export(ready, "graphs quantized to int8")

    def _lacks(self, name: str, graph: str) -> bool:
        model = self.prepared[name]
        return "model" not in model.failures and graph not in model.failures and graph not in model.onnx

    def _keep(self, name: str, graph: str, outcome: Outcome) -> None:
        """Put the graph that was made among the model's, or among its failures why there is none."""
        old, made = self.prepared[name], outcome.status == "ok"
        new = {"onnx": {**old.onnx, graph: outcome.value}} if made else {"failures": {**old.failures, graph: outcome}}
        self.prepared[name] = replace(old, **new)

    def _export_by_shape(self) -> None:
        """A graph a shape, of the models whose export with all sizes free failed."""
        calls: dict[tuple[str, str], Call] = {}
        for name, source in self.sources.items():
            failures = self.prepared[name].failures.items()
            failed_ = [g for g, why in failures if why.status == "failed" and g not in ("model", *PLACEMENTS)]
            if failed_ and any(least < largest for least, largest in source.varied.values()) and not source.own_graph:
                self.sources[name] = replace(source, varied={})
                calls |= {(name, g): self._call("prepare_export", f"export-{name}-{g}", name, g, None) for g in failed_}
        for (name, graph), outcome in self._run(calls, "exports to ONNX, each for a shape").items():
            if outcome.status != "ok":
                tries = f"{self.prepared[name].failures[graph].reason}; for this shape only: {failed(outcome).reason}"
                outcome = replace(failed(outcome), reason=tries)
            self._keep(name, static_graph(graph) if outcome.status == "ok" else graph, outcome)

    def _export_by_batch(self, cases: Sequence[Case]) -> None:
        """A graph a batch size, of the models whose export with a free one failed."""
        needed = dict.fromkeys(
            (case.subject, graph_of(case), case.batch_size)
            for case in cases
            if self.prepared[case.subject].failures.get(graph_of(case), _OK).status == "failed"
            and self.prepared[case.subject].graph(case) is None
            and case.precision != "int8"
            and case.source.own_graph is None
        )
        calls = {key: self._call("prepare_export", f"export-{key[0]}-{key[1]}-{key[2]}", *key) for key in needed}
        for (name, graph, batch), outcome in self._run(calls, "exports to ONNX, each for a batch size").items():
            if outcome.status != "ok":
                outcome = _neither(name, graph, batch, self.prepared[name].failures[graph], failed(outcome))
            self._keep(name, static_graph(graph, batch), outcome)

    def _export(self, graphs: Iterable[tuple[str, str]], what: str) -> None:
        """One process a model and graph; the shapes of a model share one, which is exported at the first of them."""
        sharing: dict[tuple[str, str], list[str]] = {}
        for name, graph in graphs:
            # One that is for its own shape only is quantized at that.
            own = name if static_graph("fp32") in self.prepared[name].onnx else self.sources[name].name
            sharing.setdefault((own, graph), []).append(name)
        calls = {}
        for (_, graph), names in sharing.items():
            first = next((name for name in names if graph in PLACEMENTS and self._is_calibrated(name)), names[0])
            calls[*names, graph] = self._call("prepare_export", f"export-{first}-{graph}", first, graph, None)
        for (*names, graph), outcome in self._run(calls, what).items():
            for name in names:
                self._keep(name, graph, failed(outcome))

    def _is_calibrated(self, name: str) -> bool:
        """Whether the user's calibration data are of the model's shape."""
        source = self.sources[name]
        try:
            return source.calibration is not None and bool(calibration_files(source.calibration, input_specs(source)))
        except ModelError:
            return False

    def costs(self) -> None:
        """FLOPs and bytes; a model that hangs while it is counted is measured all the same."""
        trained = {case.subject for case in self.cases if case.pass_ == "training"}
        to_input, calls = self._to_input(), dict[str, Call]()
        for name in (name for name in self.sources if "model" not in self.prepared[name].failures):
            arguments = self.prepared[name], name in trained, name in to_input
            calls[name] = self._call("prepare_cost", f"prepare-{name}", name, *arguments, most=_COUNT_SECONDS)
        for name, outcome in self._run(calls, "counts of FLOPs").items():
            cost: Cost = (outcome.value if outcome.status == "ok" else outcome.salvage) or Cost()
            self.prepared[name] = replace(self.prepared[name], cost=cost)
            call = calls[name]
            if outcome.status != "ok":
                reason = f"ended after {call.timeout:g} s" if outcome.status == "timeout" else outcome.reason
                with call.log.open("a") as log:
                    log.write(f"model {name!r}: FLOPs not counted: {reason}\n")
            planned = ["inference", "training"] if name in trained else ["inference"]
            missing = [pass_ for pass_ in planned if cost.flops(pass_) is None]
            if missing:
                what = f"no roofline of {name}'s {' and '.join(missing)}, whose FLOPs were not counted: see {call.log}"
                self.tick(what, len(calls), len(calls))

    def gradients(self) -> None:
        """What the first training step gives; a model of which that cannot be had is measured all the same."""
        needed: dict[tuple[str, str, int], list[Case]] = {}
        for case in self.cases:
            if has_checked_gradients(case) and "model" not in self.prepared[case.subject].failures:
                key = case.subject, case.training.head, reference_items(case.batch_size)
                needed.setdefault(key, []).append(case)
        calls, to_input = {}, self._to_input()
        for (name, head, items), own in needed.items():
            precisions, batches = (tuple({getattr(c, key): None for c in own}) for key in ("precision", "batch_size"))
            arguments = self.prepared[name], head, items, name in to_input, precisions, batches
            calls[name, head, items] = self._call(
                "prepare_gradients", f"gradients-{name}-{head}-{items}", name, *arguments, most=_GRADIENT_SECONDS
            )
        for (name, head, items), outcome in self._run(calls, "reference gradients").items():
            why = f"{outcome.reason}{f'; see {calls[name, head, items].log}' if outcome.log else ''}"
            known = self.prepared[name].gradients
            gradients = {**known, (head, items): outcome.value if outcome.status == "ok" else why}
            self.prepared[name] = replace(self.prepared[name], gradients=gradients)

    def _to_input(self) -> set[str]:
        """Models whose training goes on to the gradient of the input; a job says so of all of a model's cases."""
        return {case.subject for case in self.cases if case.training.input_gradient}

    def _call(self, function: str, log: str, model: str, *arguments: object, most: float = math.inf) -> Call:
        """A call of a function of prepare_model.py, with the model's source, `arguments` and the cache's folder."""
        limit = self.budget.build_timeout
        return Call(
            f"profiler.worker.prepare_model:{function}",
            (self.sources[model], *arguments, default_root()),
            self.logs / f"{file_name(log)}.log",
            timeout=min(most, limit),
            build_timeout=limit,
            path=self.path,
            option=self.option or ("budget.build_timeout" if limit <= most else None),
        )

    def _run(self, calls: Mapping[Key, Call], what: str) -> dict[Key, Outcome]:
        refused = {
            key: why
            for key, call in calls.items()
            if (why := too_large_to_prepare(call.function.partition(":")[2], call.argument, self._weights(call)))
        }
        calls = {key: call for key, call in calls.items() if key not in refused}
        return {**refused, **side_by_side(calls, map(self._weights, calls.values()), self.tick, what)}

    def _weights(self, call: Call) -> float | None:
        source = call.argument[0]
        return weight_mib(source, self.prepared.get(source.subject, Prepared()).state)


def failure(case: Case, prepared: Prepared) -> Outcome | None:
    """How it ended that the prepare phase left nothing that `case` could run; None if it can."""
    if "model" in prepared.failures:
        return prepared.failures["model"]
    if ENGINES[case.engine].needs != "onnx" or prepared.graph(case) is not None:
        return None
    names = reversed(graphs_of(graph_of(case), case.batch_size))
    return next((prepared.failures[name] for name in names if name in prepared.failures), None)


def compared(name: str, own: Prepared, other: str, its: Prepared) -> Prepared:
    """The model with the outputs of the other one as what its errors are relative to, or with the reason why not."""
    if "model" in own.failures:
        return own
    if "model" in its.failures:
        outcome = its.failures["model"]
        reason = f"its reference {other} cannot be had: {outcome.reason}"
        return replace(own, failures={"model": replace(outcome, reason=reason)})
    batch = fixed_batch(own.specs) or fixed_batch(its.specs) or 1
    for what, ours, theirs in (
        ("inputs", _inputs(own, batch), _inputs(its, batch)),
        ("outputs", _outputs(own), _outputs(its)),
    ):
        if ours != theirs:
            why = f"reference {other} has the {what} {theirs}, not {ours}; name a model with the same, or leave it out"
            return replace(own, failures={"model": Outcome("failed", f"model {name!r}: {why}")})
    return replace(own, other=its)


def _inputs(model: Prepared, batch: int) -> str:
    """Like "floats (1, 3, 224, 224)": seeded inputs of which this is the same hold the same values."""
    kinds = ["integers" if numpy_dtype(spec.dtype).kind in "biu" else "floats" for spec in model.specs]
    return ", ".join(f"{kind} {spec.at(batch)}" for kind, spec in zip(kinds, model.specs, strict=True))


def _outputs(model: Prepared) -> str:
    """Like "(batch, 1000)"."""
    return ", ".join(str(("batch", *shape[1:]) if shape else ()).replace("'", "") for shape in model.outputs)


def _neither(name: str, graph: str, batch: int, free: Outcome, fixed: Outcome) -> Outcome:
    """How it ended that there is a graph neither for any batch nor for this one; the last try's log tells of both."""
    whys = [str(outcome.salvage or outcome.reason) for outcome in (free, fixed)]
    what = f"model {name!r}: no ONNX graph in {graph}"
    reason = f"{what} for any batch: {whys[0]}; nor for batch {batch} only: {whys[1]}"
    if whys[0] == whys[1]:
        reason = f"{what}, neither for any batch nor for batch {batch} only: {whys[0]}"
    if fixed.log and free.log:
        with fixed.log.open("a") as log:
            log.write(f"the graph for any batch, before this one: {whys[0]}; see {free.log}\n")
    return replace(fixed, reason=reason)


def failed(outcome: Outcome) -> Outcome:
    if outcome.status in ("crashed", "timeout"):
        return replace(outcome, reason=f"the model could not be prepared: {outcome.reason}")
    return outcome


def compile_caches() -> set[str]:
    """The variables of `Engine.compile_cache` by which the user names a folder; a run itself sets them to others."""
    return {engine.compile_cache for engine in ENGINES.values() if os.environ.get(engine.compile_cache)}


def prepare_ahead(config: Config, target: Target, cases: Sequence[Case], caches: set[str], console: Console) -> int:
    """Fill the caches with what the cases need, and print what cannot be had; returns 0, or 1 where nothing can.

    Weights, references and graphs are kept in the profiler's cache; what an engine compiles where its own library
    keeps it, if that is one of `caches`.
    """
    started, logs, path = time.monotonic(), default_root() / "logs", config.path
    logs.mkdir(parents=True, exist_ok=True)
    runnable = [case for case in cases if case.unsupported is None]
    uuid = target.gpu.uuid if target.gpu else None
    with open_display(console) as display:
        prepared = prepare(runnable, config.budget, logs, path, display.preparing, uuid)
        outcomes = {case.id: failure(case, prepared[case.subject]) for case in runnable}
        ready = [case for case in runnable if outcomes[case.id] is None]
        kept = [case for case in ready if ENGINES[case.engine].compile_cache in caches]
        tasks = [Task(case, prepared[case.subject], config.budget, uuid) for case in kept]
        calls = {}
        for task in tasks:
            log = logs / f"compile-{task.case.id.file_name}.log"
            limits, visible = (config.budget.timeout, config.budget.build_timeout), {"CUDA_VISIBLE_DEVICES": uuid or ""}
            calls[task.case.id] = Call("profiler.worker.prepare_model:open_ahead", task, log, *limits, visible, path)
        weights = (weight_mib(task.case.source, task.prepared.state) for task in tasks)
        outcomes |= side_by_side(calls, weights, display.preparing, "compilations")
    failed = {id_: outcome for id_, outcome in outcomes.items() if outcome is not None and outcome.status != "ok"}
    print_pairs(console, [(Text(f"  {id_}", "yellow"), Text(str(why.reason))) for id_, why in failed.items()])
    console.print(Text(_ahead_summary(runnable, len(failed), len(tasks), time.monotonic() - started)), soft_wrap=True)
    return int(bool(runnable) and len(failed) == len(runnable))


def _ahead_summary(cases: Sequence[Case], failed: int, compiled: int, seconds: float) -> str:
    models = counted(len({case.model for case in cases}), "model")
    text = f"\nPrepared {models} in {duration(seconds)}: {len(cases) - failed} of {counted(len(cases), 'case')} can run"
    if compiled:
        return f"{text}, {compiled} of them compiled"
    variables = " and ".join(sorted({ENGINES[case.engine].compile_cache for case in cases} - {""}))
    return f"{text}; what is compiled is kept only where {variables} names a folder" if variables else text
