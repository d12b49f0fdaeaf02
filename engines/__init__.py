"""Runtimes: what enters is a Job, what leaves is a Session that runs it."""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import os
import re
import shutil
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from engines.catalog import ENGINES, Device, Engine, Requirement

if TYPE_CHECKING:
    from engines.base import Job, Session

__all__ = ["build", "explain", "missing", "open_session"]


def open_session(engine: str, job: Job) -> Session:
    """Open `job` in the engine of that name.

    Raises engines.base.Unsupported where this machine or build cannot do it, and whatever the runtime itself raises.
    """
    module = importlib.import_module(ENGINES[engine].module)
    session: Session = module.open_session(replace(job, engine=engine))
    return session


def build(engine: str, job: Job) -> dict[str, Any]:
    """Have an engine that builds (`Engine.builds`) do so into its cache, for a session that is opened later.

    Returns `cached`, whether it was there already, and `warnings`. Raises as `open_session` does.
    """
    made: dict[str, Any] = importlib.import_module(ENGINES[engine].module).build(replace(job, engine=engine))
    return made


def missing(engine: Engine, device: Device, to_build: bool = False) -> list[Requirement]:
    """The requirements of `engine` on `device` that this machine does not have; imports nothing.

    With `to_build` those of building ahead of time alone.
    """
    needed = [r for r in engine.requirements if device in r.devices and (r.to_build or not to_build)]
    return [r for r in needed if not _is_there(r)]


def explain(lacking: Sequence[Requirement]) -> str:
    """What is missing or does not go together, and how to mend it; what one command mends is told together."""
    groups: dict[tuple[str, bool], list[Requirement]] = {}
    for requirement in lacking:
        groups.setdefault((requirement.install, requirement.kind == "same version"), []).append(requirement)
    told = []
    for (install, versions), group in groups.items():
        if versions:
            found = " and ".join(f"{name} {_version(name)}" for r in group for name in r.name.split("="))
            told.append(f"{found} are not of one version: {install}")
        else:
            names = [r.name.replace("|", " or ") for r in group]
            told.append(f"{' and '.join(names)} {'is' if len(names) == 1 else 'are'} not installed: {install}")
    return "; ".join(told)


def _is_there(requirement: Requirement) -> bool:
    if requirement.kind == "program":
        candidates = [os.environ.get("CXX", ""), requirement.name]
        return any(c and shutil.which(c) for c in candidates)
    if requirement.kind == "same version":
        found = [version for name in requirement.name.split("=") if (version := _version(name))]
        # A post-release is the same build packed again.
        return len({re.sub(r"\.post\d+$", "", version) for version in found}) <= 1
    return any(importlib.util.find_spec(name) is not None for name in requirement.name.split("|"))


def _version(distribution: str) -> str | None:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None
