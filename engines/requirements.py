"""Find out what an engine lacks on this machine, without importing it, and say how to install it."""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import os
import re
import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path

from engines.catalog import (
    GRAPH_WORKER_REQUIREMENTS,
    WORKER_REQUIREMENTS,
    Device,
    Engine,
    Requirement,
)
from exporters.packages import installed_version


def missing(engine: Engine, device: Device, to_build: bool = False, precision: str = "") -> list[Requirement]:
    """The requirements of `engine` on `device` that this machine does not have.

    With `to_build` only those of building ahead of time; with `precision` also what quantizes for it.
    """
    needed = [r for r in engine.requirements if device in r.devices and (r.to_build or not to_build)]
    needed += [engine.quantizers[precision]] if precision in engine.quantizers else []
    return _absent(needed)


def missing_for_worker(device: Device, engine: Engine | None = None, precision: str = "") -> list[Requirement]:
    """What this interpreter lacks of what every worker imports, or of what the workers of `engine` import besides, at a
    precision that they quantize to themselves, too."""
    if engine is None:
        return _absent([r for r in WORKER_REQUIREMENTS if device in r.devices])
    if engine.needs == "torch":
        return missing(engine, device, precision=precision)
    return [*_absent(GRAPH_WORKER_REQUIREMENTS), *missing(engine, device)]  # Its graphs are made elsewhere.


def _absent(needed: Iterable[Requirement]) -> list[Requirement]:
    return [r for r in dict.fromkeys(needed) if not _is_there(r)]


def explain(lacking: Sequence[Requirement], pip: str = "pip") -> str:
    """What is missing or does not go together, and the commands that mend it, each once; `pip` is how to call that."""
    groups: dict[tuple[str, str], list[Requirement]] = {}
    for requirement in lacking:
        # A module and a program, which one command may install, are said in one sentence.
        sentence: str = "module" if requirement.kind == "program" else requirement.kind
        groups.setdefault((install_command(requirement, pip), sentence), []).append(requirement)
    sentences = []
    for (install, sentence), group in groups.items():
        if sentence == "same version":
            installed = " and ".join(f"{name} {installed_version(name)}" for r in group for name in r.name.split("="))
            sentences.append(f"{installed} are not of one version: {install}")
        elif sentence == "only one":
            names = [name for r in group for name in r.name.split("|") if installed_version(name)]
            sentences.append(f"{' and '.join(names)} fill the same folders, only one may be installed: {install}")
        elif sentence == "file":
            paths = [Path(r.name) for r in group]
            files = " and ".join(path.name for path in paths)
            sentences.append(f"{paths[0].parts[0]} is installed without {files}: {install}")
        else:
            names = [r.name.replace("|", " or ") for r in group]
            sentences.append(f"{' and '.join(names)} {'is' if len(names) == 1 else 'are'} not installed: {install}")
    return "; ".join(sentences)


def install_command(requirement: Requirement, pip: str = "pip") -> str:
    """The command that mends it, for the CUDA that torch was built for: torch's driver serves that one."""
    return requirement.install.replace("{cuda}", _cuda_of_torch()).replace("pip ", f"{pip} ")


@functools.cache
def _cuda_of_torch() -> str:
    """ "cu12" or "cu13", read from torch's version.py; "cu13" where torch is not installed or is for the CPU."""
    for folder in _folders("torch"):
        with contextlib.suppress(OSError):
            if found := re.search(r"^cuda\b.*?= *'(\d+)\.", (Path(folder) / "version.py").read_text(), re.MULTILINE):
                return f"cu{found[1]}"
    return "cu13"


def _is_there(requirement: Requirement) -> bool:
    if requirement.kind == "program":
        candidates = [os.environ.get("CXX", ""), requirement.name]
        return any(c and shutil.which(c) for c in candidates)
    if requirement.kind == "same version":
        versions = [version for name in requirement.name.split("=") if (version := installed_version(name))]
        # A post-release is the same build packed again.
        return len({re.sub(r"\.post\d+$", "", version) for version in versions}) <= 1
    if requirement.kind == "only one":
        return sum(installed_version(name) is not None for name in requirement.name.split("|")) <= 1
    if requirement.kind == "file":
        module, _, file = requirement.name.partition("/")
        folders = [Path(folder) for folder in _folders(module)]
        return not folders or any((folder / file).exists() for folder in folders)
    return any(map(_is_installed, requirement.name.split("|")))


def _is_installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # The package that it is in.
        return False


def _folders(module: str) -> Sequence[str]:
    """Where a package is installed; empty where it is not."""
    spec = importlib.util.find_spec(module)
    return list(spec.submodule_search_locations or ()) if spec else []
