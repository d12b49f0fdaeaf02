"""Find the kinds of devices that a job asks of a Ray cluster, and what a task asks of Ray to have one of its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from engines.options import Device
from profiler.errors import ConfigError, nearest
from profiler.job.config import DeviceEntry

_TYPE = "accelerator_type:"


@dataclass(frozen=True)
class Kind:
    """A kind of device: what the job calls and pays for it, and the options of a Ray task that takes one whole."""

    entry: DeviceEntry
    device: Device
    asks: Mapping[str, Any]


def kinds_of(entries: Sequence[DeviceEntry], device: str, nodes: Sequence[Mapping[str, Any]]) -> list[Kind]:
    """Return the kinds that a job names, or else the one of its `device`; `nodes` are as ray.nodes() has them.

    Raises ConfigError for what the cluster does not have.
    """
    alive = [node["Resources"] for node in nodes if node["Alive"]]
    usual = "cuda" if any(node.get("GPU") for node in alive) else "cpu"
    own = DeviceEntry(kind=usual if device == "auto" else device.partition(":")[0])
    return [_kind(entry, alive) for entry in entries or [own]]


def _kind(entry: DeviceEntry, nodes: Sequence[Mapping[str, float]]) -> Kind:
    name, cards = entry.kind, [node for node in nodes if node.get("GPU")]
    having = [node for node in nodes if name in node]
    own = {key for node in nodes for key in node if ":" not in key} - {"CPU", "GPU", "memory", "object_store_memory"}
    if name == "cpu":
        return Kind(entry, "cpu", {"num_cpus": _most_of(nodes), "scheduling_strategy": "SPREAD"})
    if name == "cuda" and cards:
        return Kind(entry, "cuda", {"num_gpus": 1})
    if any(f"{_TYPE}{name}" in node for node in cards):
        return Kind(entry, "cuda", {"num_gpus": 1, "accelerator_type": name})
    if name in own:
        if all(node in cards for node in having):
            return Kind(entry, "cuda", {"num_gpus": 1, "resources": {name: 1}})
        return Kind(entry, "cpu", {"num_cpus": _most_of(having), "resources": {name: 1}})
    known = sorted({"cpu", *own, *(key.removeprefix(_TYPE) for node in cards for key in node if _TYPE in key)})
    raise ConfigError(f"devices: the cluster has no {name}{nearest(name, known)}")


def _most_of(nodes: Sequence[Mapping[str, float]]) -> int:
    """Return more than half of the cores of the largest node: none has two tasks that ask for so many."""
    return int(max(node.get("CPU", 0) for node in nodes) // 2 + 1)
