"""Find out what an engine lacks on this machine, without importing it, and say how to install it."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import re
import shutil
from collections.abc import Sequence

from engines.catalog import Device, Engine, Requirement


def missing(engine: Engine, device: Device, to_build: bool = False) -> list[Requirement]:
    """The requirements of `engine` on `device` that this machine does not have.

    With `to_build` only those of building ahead of time.
    """
    needed = [r for r in engine.requirements if device in r.devices and (r.to_build or not to_build)]
    return [r for r in needed if not _is_there(r)]


def explain(lacking: Sequence[Requirement]) -> str:
    """What is missing or does not go together, and the commands that mend it, each once."""
    groups: dict[tuple[str, bool], list[Requirement]] = {}
    for requirement in lacking:
        groups.setdefault((requirement.install, requirement.kind == "same version"), []).append(requirement)
    sentences = []
    for (install, versions), group in groups.items():
        if versions:
            installed = " and ".join(f"{name} {_version(name)}" for r in group for name in r.name.split("="))
            sentences.append(f"{installed} are not of one version: {install}")
        else:
            names = [r.name.replace("|", " or ") for r in group]
            sentences.append(f"{' and '.join(names)} {'is' if len(names) == 1 else 'are'} not installed: {install}")
    return "; ".join(sentences)


def _is_there(requirement: Requirement) -> bool:
    if requirement.kind == "program":
        candidates = [os.environ.get("CXX", ""), requirement.name]
        return any(c and shutil.which(c) for c in candidates)
    if requirement.kind == "same version":
        versions = [version for name in requirement.name.split("=") if (version := _version(name))]
        # A post-release is the same build packed again.
        return len({re.sub(r"\.post\d+$", "", version) for version in versions}) <= 1
    return any(importlib.util.find_spec(name) is not None for name in requirement.name.split("|"))


def _version(distribution: str) -> str | None:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None
