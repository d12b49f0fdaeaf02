"""Check the facts of environment.json: what has not the form that this program writes is left out."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from engines.catalog import ENGINES

Form = Callable[[Any], bool]


def is_text(value: Any) -> bool:
    return isinstance(value, str)


def is_number(value: Any) -> bool:
    """Neither so small nor so large that what is made of it overflows."""
    return isinstance(value, int | float) and not isinstance(value, bool) and (value == 0 or 1e-9 <= value <= 1e18)


def items_of(form: Form) -> Form:
    return lambda value: isinstance(value, list) and all(map(form, value))


def values_of(form: Form) -> Form:
    return lambda value: isinstance(value, dict) and all(map(form, value.values()))


def _or_null(form: Form) -> Form:
    return lambda value: value is None or form(value)


def is_machine(value: Any) -> bool:
    """What the user said of the machine; of results that were put together its label alone."""
    if not isinstance(value, dict):
        return is_text(value)
    forms = {"label": is_text, "cloud": is_text, "instance": is_text, "usd_per_hour": is_number}
    return all(_or_null(forms.get(key, is_text))(item) for key, item in value.items())


_FORMS: dict[str, Form] = {
    **dict.fromkeys(("gpu", "cpu", "host", "cuda", "driver", "cudnn", "device", "compute_capability"), is_text),
    **dict.fromkeys(("gpu_uuid", "platform", "python", "cloud", "instance"), is_text),
    **dict.fromkeys(("price_source", "roofs_disturbance"), is_text),
    **dict.fromkeys(("gpu_memory_mib", "memory_mib", "cpu_cores", "torch_threads", "sampling_seconds"), is_number),
    **dict.fromkeys(("roofs", "measured_roofs", "wall_seconds"), values_of(is_number)),
    **dict.fromkeys(("packages", "variables"), values_of(_or_null(is_text))),
    **dict.fromkeys(("command", "untested"), items_of(is_text)),
    "earlier_commands": items_of(_or_null(items_of(is_text))),
    "older_rows": values_of(_or_null(is_text)),
    "interpreters": values_of(values_of(_or_null(is_text))),
    "usd_per_hour": is_number,
    "machine": is_machine,
}
"""By key; what another version writes may have any form."""


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


def known_facts(environment: Mapping[str, Any], forms: Mapping[str, Form] = _FORMS) -> tuple[dict[str, Any], list[str]]:
    """The facts that have their form, and the keys of the others."""
    wrong = [key for key, form in forms.items() if key in environment and not _or_null(form)(environment[key])]
    return {key: value for key, value in environment.items() if key not in wrong}, wrong


def versions_of_others(engines: Iterable[str]) -> set[str]:
    """The facts, by their flat keys, of libraries without a part in rows of `engines`; PyTorch, which exports, has."""
    own = {*engines, "eager"}
    keys: dict[bool, set[str]] = {True: set(), False: set()}
    for name, engine in ENGINES.items():
        column, packages = (engine.version.column, engine.version.packages) if engine.version else ("", ())
        keys[name in own] |= {column, *(f"packages.{package}" for package in (*packages, *engine.packages))}
    return keys[False] - keys[True]
