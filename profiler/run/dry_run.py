"""Say what a job would do, and what of it cannot run, from a look at its models; nothing is prepared or measured."""

from __future__ import annotations

import os
import shutil
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from rich.console import Console
from rich.text import Text

from engines.base import Unsupported
from exporters.inputs import input_specs
from exporters.qdq_placement import PLACEMENTS
from exporters.source import ModelSource
from profiler.errors import ConfigError
from profiler.job.case import Budget, Case
from profiler.processes.messages import Outcome, Status
from profiler.processes.process import Call
from profiler.processes.temporary import own_folder
from profiler.run.estimate import Estimates
from profiler.run.fits import Tick, of_several, side_by_side, weight_mib
from profiler.run.prepare import compared, failed, failure, models_of
from profiler.tables.numbers import count, counted, duration, listed
from profiler.tables.table import name, of_rows
from profiler.tables.writers import print_pairs, print_table
from profiler.worker.task import Look, Prepared, Task, check_inputs, graph_of

_SECONDS = 60.0
"""How long a look at one model may take."""
_REPORT_MIB, _CASE_MIB = 2.0, 0.1
"""What a run writes: its tables and its report, and a case of 5,000 samples."""
_NOT_LOOKED_AT = (
    "Not looked at: whether the models run, can be exported, compiled or built, how right their outputs are, and "
    "whether memory suffices."
)
Planned = tuple[Case, tuple[Status, str] | None]
"""A case, and how and why it cannot run if that is known."""


def look_at_models(
    cases: Sequence[Case], budget: Budget, path: tuple[str, ...], tick: Tick = lambda *_: None
) -> dict[str, Look]:
    """A look at each model of the runnable cases, side by side, each in a process of its own.

    A canonical network without options or weights of its own and a single layer need none. Factories are found in
    `path`; `tick(what, done, total)` is called a few times a second, for the display.
    """
    runnable, limit = [case for case in cases if case.unsupported is None], min(_SECONDS, budget.build_timeout)
    quantized = {case.subject for case in runnable if graph_of(case) in PLACEMENTS}
    references, sources = models_of(runnable)
    unknown = {model: each for model, each in sources.items() if not each.layer and each != ModelSource(each.name)}
    function = "profiler.worker.look_at_model:look_at_model"
    what = f"{_kinds(runnable, unknown)} looked at"
    with own_folder() as folder:
        calls = {
            model: Call(function, (source, model in quantized), folder / "log", limit, path=path, threads=1)
            for model, source in unknown.items()
        }
        outcomes = side_by_side(calls, map(weight_mib, unknown.values()), of_several(tick, calls), what)
    looks = {model: _look(outcome, limit < _SECONDS) for model, outcome in outcomes.items()}
    known = {model: source for model, source in sources.items() if model not in looks}
    looks |= {model: Look(Prepared(tuple(input_specs(source)))) for model, source in known.items()}
    for model, reference in references.items():
        own, other = looks[model], looks[reference.subject]
        if not own.unseen and not other.unseen:
            looks[model] = replace(own, prepared=compared(model, own.prepared, reference.subject, other.prepared))
    return looks


def print_plan(
    console: Console,
    machine: str,
    plan: Sequence[Planned],
    looks: Mapping[str, Look],
    estimates: Estimates,
    idle_minutes: float | None = None,
) -> int:
    """Print the cases with their estimates, why some cannot run, and what was looked at.

    Before each case a run waits up to `idle_minutes`. Returns the exit code: 2 where no case can run.
    """
    runnable = [case for case, refusal in plan if refusal is None]
    _print_cases(console, plan, estimates)
    if found := [(Text(f"  {model}"), Text(text)) for model, look in looks.items() if (text := _found(look))]:
        console.print(Text("\nLooked at", style="bold"))
        print_pairs(console, found)
    console.print(Text(f"\n{_NOT_LOOKED_AT}", style="dim"))
    what = f"\n{machine}: {len(runnable)} of {counted(len(plan), 'case')} can run here"
    if runnable:
        what += f", in about {duration(estimates.total(runnable))} ({estimates.source(runnable)})"
        if idle_minutes is not None:
            each = f"each of {len(runnable)} cases" if len(runnable) > 1 else "the case"
            what += f", plus up to {idle_minutes:g} min of waiting before {each}"
    console.print(Text(what), soft_wrap=True)
    return 0 if runnable else 2


def _print_cases(console: Console, plan: Sequence[Planned], estimates: Estimates) -> None:
    reasons = list(dict.fromkeys(refusal[1] for _, refusal in plan if refusal))
    rows: list[tuple[str, str]] = []
    for case, refusal in plan:
        if refusal is None:
            estimate = estimates.of(case)
            rows.append((str(case.id), f"{count(estimate.seconds)} s ({estimate.basis})"))
        else:
            rows.append((str(case.id), f"{refusal[0]} ({reasons.index(refusal[1]) + 1})"))
    # Beside long names a third column would not fit.
    print_table(console, of_rows("", [name("Case", "case"), name("Estimate", "estimate")], rows))
    if reasons:
        console.print()
        print_pairs(console, [(Text(f"({n})", style="yellow"), Text(text)) for n, text in enumerate(reasons, 1)], gap=1)


def check_output(folder: Path, cases: int) -> None:
    """Raise ConfigError where the folder of a run of that many cases could not be made in `folder`."""
    there = next(each for each in (folder.resolve(), *folder.resolve().parents) if each.exists())
    if not there.is_dir() or not os.access(there, os.W_OK):
        why = "cannot be written" if there.is_dir() else "is a file"
        raise ConfigError(f"output {folder}: {there} {why}; give another folder by --output")
    free, needs = shutil.disk_usage(there).free / 2**20, _REPORT_MIB + _CASE_MIB * cases
    if free < needs:
        raise ConfigError(
            f"output {folder}: a run of {counted(cases, 'case')} writes about {needs:.0f} MiB, and {free:.1f} MiB are "
            "free there; make room, or give another folder by --output"
        )


def _kinds(cases: Sequence[Case], subjects: Collection[str]) -> str:
    """What the subjects of cases are, like "models and references"; each shape of a model is one by itself."""
    own = {case.subject: case.model for case in cases}
    shapes = len(own) > len(set(own.values()))
    return listed(["models", *["shapes"] * shapes, *["references"] * any(each not in own for each in subjects)])


def _look(outcome: Outcome, as_in_a_run: bool) -> Look:
    """What the process found; `as_in_a_run` says whether its time limit was a run's, which then fails, too."""
    if outcome.status == "ok":
        look: Look = outcome.value
        return look
    if outcome.salvage is not None and outcome.status != "failed":
        found: Look = outcome.salvage
        return found
    if outcome.status == "timeout" and not as_in_a_run:
        return Look(unseen=f"not looked at: that took more than {_SECONDS:g} s")
    return Look(Prepared(failures={"model": failed(outcome)}))


def refusal(case: Case, looks: Mapping[str, Look], budget: Budget) -> tuple[Status, str] | None:
    """What keeps a case from running, as its row would say it."""
    if case.unsupported is not None:
        return "unsupported", case.unsupported
    prepared = looks[case.subject].prepared
    if why := failure(case, prepared):
        return why.status, str(why.reason)
    try:
        check_inputs(Task(case, prepared, budget))
    except Unsupported as error:
        return "unsupported", str(error)
    return None


def _found(look: Look) -> str:
    if look.prepared.failures:
        return f"{look.seen}; no {' and '.join(look.prepared.failures)}" if look.seen else ""
    return look.seen or look.unseen
