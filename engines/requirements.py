"""Find out what an engine lacks on this machine, without importing it, and say how to install it."""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import os
import re
import shutil
from collections.abc import Sequence
from pathlib import Path

from engines.catalog import Device, Engine, Requirement
from exporters.packages import installed_version

_PIP = "pip install "


def missing(engine: Engine, device: Device, to_build: bool = False, precision: str = "") -> list[Requirement]:
    """The requirements of `engine` on `device` that this machine does not have. With `to_build` only those of building
    ahead of time; with `precision` also what quantizes for it."""
    needed = [r for r in engine.requirements if device in r.devices]
    quantizer = engine.quantizers.get(precision)
    if quantizer and quantizer.name not in [r.name for r in needed]:
        needed.append(quantizer)
    return [r for r in needed if (r.to_build or not to_build) and _fault(r)]


def explain(lacking: Sequence[Requirement]) -> str:
    """Say what is wrong with each, and the commands that mend it: one for all that pip installs."""
    commands: dict[str, list[Requirement]] = {}
    for requirement in lacking:
        is_plain = requirement.install.startswith(_PIP) and "&&" not in requirement.install
        commands.setdefault(_PIP if is_plain else requirement.install, []).append(requirement)
    sentences = []
    for command, group in commands.items():
        subjects: dict[str, list[str]] = {}
        for names, wrong in filter(None, map(_fault, group)):
            subjects.setdefault(wrong, []).extend(names)
        what = [f"{_listed(s)} {'is' if len(s) == 1 else 'are'} {wrong}" for wrong, s in subjects.items()]
        if command == _PIP:  # What is noted in brackets comes last.
            packages = dict.fromkeys(r.install.removeprefix(_PIP) for r in group)
            command += " ".join(sorted(packages, key=lambda words: "(" in words))
        sentences.append(f"{', '.join(what)}: {install_command(command)}")
    return "; ".join(sentences)


def _listed(names: Sequence[str]) -> str:
    return re.sub(" and (?=.* and )", ", ", " and ".join(dict.fromkeys(names)))


def _fault(requirement: Requirement) -> tuple[list[str], str] | None:
    """What there is something wrong with, and what that is; None where all is as it must be."""
    match requirement.kind:
        case "program":
            is_there = any(c and shutil.which(c) for c in (os.environ.get("CXX", ""), requirement.name))
            return None if is_there else ([requirement.name], "not installed")
        case "same version":
            installed = {name: version for name in requirement.name.split("=") if (version := installed_version(name))}
            # A post-release is the same build packed again.
            builds = {re.sub(r"\.post\d+$", "", version) for version in installed.values()}
            named = [f"{name} {version}" for name, version in installed.items()]
            return (named, "not of one version") if len(builds) > 1 else None
        case "only one":
            names = list(filter(installed_version, requirement.name.split("|")))
            return (names, "in the same folders, only one may be installed") if len(names) > 1 else None
        case "file":
            module, _, file = requirement.name.partition("/")
            folders = package_folders(module)
            is_there = not folders or any((Path(folder) / file).exists() for folder in folders)
            return None if is_there else ([Path(file).name], f"missing from the installed {module}")
    if version := _too_old(requirement):
        return [f"{requirement.name} {version}"], f"too old ({requirement.least} or later is needed)"
    names = requirement.name.split("|")
    return None if any(map(_is_installed, names)) else ([" or ".join(names)], "not installed")


def _too_old(requirement: Requirement) -> str | None:
    """The version that is installed, if it is too old."""
    version = installed_version(*(requirement.packages or (requirement.name,))) if requirement.least else None
    return version if version and _numbers(version) < _numbers(requirement.least) else None


def _numbers(version: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", version.partition("+")[0])]


def install_command(install: str) -> str:
    """A command that installs, for the CUDA that torch was built for: torch's driver serves that one."""
    return install.replace("{cuda}", _cuda_of_torch())


@functools.cache
def _cuda_of_torch() -> str:
    """ "cu12" or "cu13", read from torch's version.py; "cu13" where torch is not installed or is for the CPU."""
    for folder in package_folders("torch"):
        with contextlib.suppress(OSError):
            if found := re.search(r"^cuda\b.*?= *'(\d+)\.", (Path(folder) / "version.py").read_text(), re.MULTILINE):
                return f"cu{found[1]}"
    return "cu13"


def _is_installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # The package that it is in.
        return False


def package_folders(module: str) -> Sequence[str]:
    """Where a package is installed; empty where it is not."""
    spec = importlib.util.find_spec(module)
    return list(spec.submodule_search_locations or ()) if spec else []
