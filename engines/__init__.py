"""Runtimes: what enters is a Job, what leaves is a Session that runs it."""

from __future__ import annotations

import importlib
import importlib.util
import os
import shutil
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
    session: Session = module.open_session(job)
    return session


def missing(engine: Engine, device: Device) -> list[Requirement]:
    """The requirements of `engine` on `device` that this machine does not have; imports nothing."""
    return [r for r in engine.requirements if device in r.devices and not _is_there(r)]


def _is_there(requirement: Requirement) -> bool:
    if requirement.kind == "program":
        candidates = [os.environ.get("CXX", ""), requirement.name]
        return any(c and shutil.which(c) for c in candidates)
    return importlib.util.find_spec(requirement.name) is not None
