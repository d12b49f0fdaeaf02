"""Runtimes: what enters is a Job, what leaves is a Session that runs it."""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import os
import shutil
from dataclasses import replace
from typing import TYPE_CHECKING

from engines.catalog import ENGINES, Device, Engine, Requirement

if TYPE_CHECKING:
    from engines.base import Job, Session

__all__ = ["missing", "open_session"]


def open_session(engine: str, job: Job) -> Session:
    """Open `job` in the engine of that name.

    Raises engines.base.Unsupported where this machine or build cannot do it, and whatever the runtime itself raises.
    """
    module = importlib.import_module(ENGINES[engine].module)
    session: Session = module.open_session(replace(job, engine=engine))
    return session


def missing(engine: Engine, device: Device) -> list[Requirement]:
    """The requirements of `engine` on `device` that this machine does not have; imports nothing."""
    return [r for r in engine.requirements if device in r.devices and not _is_there(r)]


def _is_there(requirement: Requirement) -> bool:
    if requirement.kind == "program":
        candidates = [os.environ.get("CXX", ""), requirement.name]
        return any(c and shutil.which(c) for c in candidates)
    if requirement.kind == "same version":
        return len({_version(name) for name in requirement.name.split("=")} - {None}) <= 1
    return any(importlib.util.find_spec(name) is not None for name in requirement.name.split("|"))


def _version(distribution: str) -> str | None:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None
