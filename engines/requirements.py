"""Find out what an engine lacks on this machine without importing it, and say how to install it."""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import os
import re
import shutil
from collections.abc import Sequence
from pathlib import Path

from engines.catalog import Engine, Requirement
from engines.options import Device
from exporters.packages import installed_version

_PIP = "pip install "


def missing(engine: Engine, device: Device, precision: str = "") -> list[Requirement]:
    """List the requirements of `engine` on `device` that this machine lacks; `precision` adds what quantizes for it."""
    needed = [r for r in engine.requirements if device in r.devices]
    quantizer = engine.quantizers.get(precision)
    if quantizer and quantizer.name not in [r.name for r in needed]:
        needed.append(quantizer)
    return list(filter(_fault, needed))


def explain(lacking: Sequence[Requirement]) -> str:
    """Say what is wrong, and the commands that mend it: one for all that pip installs."""
    commands: dict[str, list[Requirement]] = {}
    for requirement in lacking:
        is_plain = requirement.install.startswith(_PIP) and "&&" not in requirement.install
        commands.setdefault(_PIP if is_plain else requirement.install, []).append(requirement)
    sentences = []
    for command, group in commands.items():
        what = ", ".join(dict.fromkeys(filter(None, map(_fault, group))))
        if command == _PIP:  # Remarks in brackets come last.
            packages = dict.fromkeys(r.install.removeprefix(_PIP) for r in group)
            command += " ".join(sorted(packages, key=lambda words: "(" in words))
        sentences.append(f"{what}: {install_command(command)}")
    return "; ".join(sentences)


def _fault(requirement: Requirement) -> str | None:
    if requirement.kind == "program":
        is_there = any(c and shutil.which(c) for c in (os.environ.get("CXX", ""), requirement.name))
        return None if is_there else f"{requirement.name} is not installed"
    if requirement.kind == "file":
        module, _, file = requirement.name.partition("/")
        folders = package_folders(module)
        is_there = not folders or any((Path(folder) / file).exists() for folder in folders)
        return None if is_there else f"{Path(file).name} is missing from the installed {module}"
    if version := _too_old(requirement):
        return f"{requirement.name} {version} is too old ({requirement.least} or later is needed)"
    names = requirement.name.split("|")
    return None if any(map(_is_installed, names)) else f"{' or '.join(names)} is not installed"


def _too_old(requirement: Requirement) -> str | None:
    version = installed_version(*(requirement.packages or (requirement.name,))) if requirement.least else None
    return version if version and _numbers(version) < _numbers(requirement.least) else None


def _numbers(version: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", version.partition("+")[0])]


def install_command(install: str) -> str:
    """Fill in the CUDA that torch was built for, which its driver serves."""
    return install.replace("{cuda}", _cuda_of_torch())


@functools.cache
def _cuda_of_torch() -> str:
    """Read "cu12" or "cu13" from torch's version.py; "cu13" without torch or with a CPU build."""
    for folder in package_folders("torch"):
        with contextlib.suppress(OSError):
            if found := re.search(r"^cuda\b.*?= *'(\d+)\.", (Path(folder) / "version.py").read_text(), re.MULTILINE):
                return f"cu{found[1]}"
    return "cu13"


def _is_installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # Its parent package is missing.
        return False


def package_folders(module: str) -> Sequence[str]:
    """Return where a package is installed; empty where it is not."""
    spec = importlib.util.find_spec(module)
    return list(spec.submodule_search_locations or ()) if spec else []
