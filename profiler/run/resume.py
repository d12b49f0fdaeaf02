"""Refuse to resume a run on another machine, and to go on with a model that has changed since it was measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from engines.catalog import ENGINES
from exporters.source import Identity
from profiler.errors import ConfigError
from profiler.job.case import Case
from profiler.job.config import Config
from profiler.results.run_folder import RunFolder
from profiler.run.fits import Tick, of_several
from profiler.run.prepare import Stages

_NAMES = {"gpu": "GPU", "cpu": "processor", "cpu_cores": "usable cores:", "torch_threads": "threads of torch:"}
"""What a message calls keys of environment.json; any other is called as it is."""


def check_machine(folder: Path, before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Raises ConfigError where the run's environment.json contradicts what this machine is `now`."""
    if not before:  # It is lost, which the user has been told.
        return
    here = _must_agree(now)
    for key, value in _must_agree(before).items():
        if value != here.get(key):
            raise ConfigError(
                f"--resume {folder}: the run was made with {_NAMES.get(key, key)} {value}, here it is {here.get(key)}; "
                "figures of the two cannot be mixed in one table: start a new run, or resume this one as it was made"
            )


def _must_agree(environment: Mapping[str, Any]) -> dict[str, Any]:
    """What all rows of a run have in common: the device, the processor, its threads, and every engine's version.

    A package that was not installed had no rows, so it is left out.
    """
    columns = [e.version.column for e in ENGINES.values() if e.version and e.version.packages]
    packages = [name for e in ENGINES.values() if e.version is None for name in e.packages]
    known = {**environment.get("packages", {}), **environment}
    keys = ("cpu", "cpu_cores", "torch_threads", *columns, *packages)
    common = {key: environment.get(key) for key in ("gpu", "device")}
    return common | {key: known[key] for key in keys if known.get(key) is not None}


def carried_on(before: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a resumed run keeps of the environment.json that it began with."""
    keys = ("roofs", "roofs_quiet", "wall_seconds", "spread")
    return {key: before[key] for key in keys if before.get(key)}


def check_measured_models(run: RunFolder, folder: Path, config: Config, cases: Sequence[Case], tick: Tick) -> None:
    """Raises ConfigError where a model that the run has measured, or compared one with, is another one now.

    A model without a measured row may have changed: that is how one is mended that failed.
    """
    measured = {case_id.model for case_id, result in run.results().items() if result.status == "ok"}
    compared = [case for case in cases if case.unsupported is None and case.model in measured]
    sources = {each.subject: each for case in compared for each in (case.reference, case.source) if each}
    stages = Stages(sources, config.budget, run.logs, config.path, tick)
    check_models(run, stages, f"--resume {folder}", "figures of two networks cannot be mixed in one table")


def check_models(run: RunFolder, stages: Stages, option: str, why: str) -> None:
    """Raises ConfigError where one of the models to prepare is not what the run's models.json says of it.

    `option` is what the user asked for, and `why` another network forbids it.
    """
    recorded = {name: model for name, model in run.read_models().items() if name in stages.sources}
    sources = {name: stages.sources[name] for name in recorded}
    now = replace(stages, sources=sources, tick=of_several(stages.tick, sources)).identities()
    for name, model in recorded.items():
        found = now[name]
        if not isinstance(found, Identity):
            raise ConfigError(
                f"{option}: model {name!r} cannot be had, so that it cannot be compared with what the run measured "
                f"({model.since}): {found}; call it again once that is mended, or start a new run"
            )
        if changes := model.identity.changes(found):
            raise ConfigError(
                f"{option}: model {name!r} has changed since the run measured it ({model.since}): "
                f"{', '.join(changes)}; {why}: start a new run, or restore the model as it was"
            )
