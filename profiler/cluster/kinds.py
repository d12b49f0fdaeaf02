"""Find the kinds of devices that a job asks of a Ray cluster, and what a task asks of Ray to have one of its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
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
    asks: Mapping[str, Any] = field(default_factory=dict)


def kinds_of(entries: Sequence[DeviceEntry], device: str, nodes: Sequence[Mapping[str, Any]]) -> list[Kind]:
    """Return the kinds that a job names, or else the one of its `device`; `nodes` are as ray.nodes() has them.

    Raises ConfigError for what the cluster does not have.
    """
    alive = [node["Resources"] for node in nodes if node["Alive"]]
    if not entries:
        has_gpu = any(node.get("GPU") for node in alive)
        wanted = ("cuda" if has_gpu else "cpu") if device == "auto" else device.partition(":")[0]
        return [_kind(DeviceEntry(kind=wanted), alive)]
    return [_kind(entry, alive) for entry in entries]


def _kind(entry: DeviceEntry, nodes: Sequence[Mapping[str, float]]) -> Kind:
    name = entry.kind
    types = {key.removeprefix(_TYPE) for node in nodes for key in node if key.startswith(_TYPE)}
    if name == "cpu":
        # More than half of the largest node's cores: no node has two such tasks, and nodes without a GPU come first.
        most = max(node.get("CPU", 0) for node in [n for n in nodes if not n.get("GPU")] or nodes)
        return Kind(entry, "cpu", {"num_cpus": int(most // 2 + 1), "scheduling_strategy": "SPREAD"})
    if name == "cuda" and any(node.get("GPU") for node in nodes):
        return Kind(entry, "cuda", {"num_gpus": 1})
    if name in types:
        return Kind(entry, "cuda", {"num_gpus": 1, "accelerator_type": name})
    having = [node for node in nodes if node.get(name) and not name.startswith("node:")]
    if not having:
        own = {key for node in nodes for key in node} - {"CPU", "GPU", "memory", "object_store_memory"}
        known = sorted({"cpu", *types, *(key for key in own if ":" not in key)})
        raise ConfigError(f"devices: the cluster has no {name}{nearest(name, known)}")
    if all(node.get("GPU") for node in having):
        return Kind(entry, "cuda", {"num_gpus": 1, "resources": {name: 1}})
    return Kind(entry, "cpu", {"resources": {name: 1}})
