"""Check an engine's requirements without importing it, and say how to install the missing ones."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
from collections.abc import Sequence
from pathlib import Path

from engines.catalog import Engine, Requirement
from engines.options import Device
from exporters.packages import installed_version


def missing(engine: Engine, device: Device, precision: str = "") -> str:
    """Explain what `engine` lacks on this machine, "" if nothing; `precision` adds its quantizer."""
    needed = {r.name: r for r in engine.requirements if device in r.devices}
    if quantizer := engine.quantizers.get(precision):
        needed.setdefault(quantizer.name, quantizer)
    return explain(*needed.values())


def explain(*requirements: Requirement) -> str:
    """Name every fault with the command that mends it; "" without a fault."""
    faults: dict[str, list[str]] = {}
    for requirement in requirements:
        if fault := _fault(requirement):
            faults.setdefault(requirement.install, []).append(fault)
    return "; ".join(f"{', '.join(reasons)}: {install}" for install, reasons in faults.items())


def _fault(requirement: Requirement) -> str | None:
    names, minimum = requirement.name.split("|"), requirement.minimum
    if requirement.kind == "file":
        module, _, file = requirement.name.partition("/")
        folders = package_folders(module)
        is_there = not folders or any((Path(folder) / file).exists() for folder in folders)
        return None if is_there else f"{Path(file).name} is missing from the installed {module}"
    if requirement.kind == "program":
        is_there = any(c and shutil.which(c) for c in (os.environ.get("CXX", ""), requirement.name))
    else:
        is_there = any(map(_is_installed, names))
    if not is_there:
        return f"{' or '.join(names)} is not installed"
    version = installed_version(*(requirement.packages or names)) if minimum else None
    if version and _numbers(version) < _numbers(minimum):
        return f"{requirement.name} {version} is too old ({minimum} or later is needed)"
    return None


def _numbers(version: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", version.partition("+")[0])]


def _is_installed(module: str) -> bool:
    return importlib.util.find_spec(module) is not None


def package_folders(module: str) -> Sequence[str]:
    """Return a package's folders, or nothing if it is not installed."""
    spec = importlib.util.find_spec(module)
    return list(spec.submodule_search_locations or ()) if spec else []
