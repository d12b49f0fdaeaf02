"""Read the facts of environment.json."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from engines.catalog import ENGINES


def flat(environment: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Its facts by keys such as "packages.torch", and before those of a mapping that mapping."""
    for key, value in environment.items():
        yield f"{prefix}{key}", value
        if isinstance(value, Mapping):
            yield from flat(value, f"{prefix}{key}.")


def flat_environment(environment: Mapping[str, Any], name: str | None = None) -> dict[str, Any]:
    """What environment.json says, with the machine's price and cloud as keys of their own; `machine` is its name.

    Without a label that is its GPU's, or its processor's.
    """
    machine = environment.get("machine")
    price = dict(machine) if isinstance(machine, dict) else {}
    name = name or price.pop("label", None) or environment.get("gpu") or environment.get("cpu")
    return {**environment, **price, "machine": name}


def versions_of_others(engines: Iterable[str]) -> set[str]:
    """The facts, by their flat keys, of libraries without a part in rows of `engines`; PyTorch, which exports, has."""
    own = {*engines, "eager"}
    keys: dict[bool, set[str]] = {True: set(), False: set()}
    for name, engine in ENGINES.items():
        column, packages = (engine.version.column, engine.version.packages) if engine.version else ("", ())
        keys[name in own] |= {column, *(f"packages.{package}" for package in (*packages, *engine.packages))}
    return keys[False] - keys[True]
