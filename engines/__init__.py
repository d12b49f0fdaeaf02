"""Open, build or deploy a job in the engine of a given name."""

from __future__ import annotations

from dataclasses import replace
from importlib import import_module
from typing import TYPE_CHECKING, Any

from engines.catalog import ENGINES

if TYPE_CHECKING:
    from pathlib import Path

    from engines.base import BuiltAhead, Job, Session
    from engines.deployment import Deployed

__all__ = ["build", "deploy", "open_session"]


def open_session(engine: str, job: Job[Any]) -> Session:
    """Open `job` in an engine. Raises engines.base.Unsupported and whatever the runtime itself raises."""
    session: Session = import_module(ENGINES[engine].module).open_session(replace(job, engine=engine))
    return session


def build(engine: str, job: Job[Any]) -> BuiltAhead:
    """Build with an engine of `Engine.builds` into its cache. Raises the errors of `open_session`."""
    built_ahead: BuiltAhead = import_module(ENGINES[engine].module).build(replace(job, engine=engine))
    return built_ahead


def deploy(engine: str, job: Job[Any], folder: Path, built: Path | None) -> Deployed:
    """Write a folder that runs `job` without this project; `built` is the file of an engine that builds."""
    module = import_module(ENGINES[engine].module)
    deployed: Deployed = module.deploy(replace(job, engine=engine), folder, built)
    return deployed
