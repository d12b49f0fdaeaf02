"""Find a job's kinds of devices in a Ray cluster, and the resources that reserve one."""

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
    """A kind of device: the job's entry, the resources that a Ray task requests for one, and the number of devices."""

    entry: DeviceEntry
    device: Device
    request: Mapping[str, Any]
    count: int


def kinds_of(entries: Sequence[DeviceEntry], device: str, nodes: Sequence[Mapping[str, Any]]) -> list[Kind]:
    """Return the kinds that a job names, by default its `device`. `nodes` is the output of ray.nodes().

    Raises ConfigError for a kind that the cluster lacks.
    """
    alive = [node["Resources"] for node in nodes if node["Alive"]]
    usual = "cuda" if any(node.get("GPU") for node in alive) else "cpu"
    if ":" in device:
        of_host = f"CUDA_VISIBLE_DEVICES={device.partition(':')[2]}"
        raise ConfigError(f"device {device}: Ray hands the GPUs out; say cuda, and start Ray with {of_host}")
    default = DeviceEntry(kind=usual if device == "auto" else device)
    return [_kind(entry, alive) for entry in entries or [default]]


def _kind(entry: DeviceEntry, nodes: Sequence[Mapping[str, float]]) -> Kind:
    name, cards = entry.kind, [node for node in nodes if node.get("GPU")]
    with_name = [node for node in nodes if name in node]
    custom = {key for node in nodes for key in node if ":" not in key} - {"CPU", "GPU", "memory", "object_store_memory"}
    if name == "cpu":
        return Kind(entry, "cpu", {"num_cpus": _cores(nodes), "scheduling_strategy": "SPREAD"}, _hosts(nodes))
    if name == "cuda" and cards:
        return Kind(entry, "cuda", {"num_gpus": 1}, _gpus(cards))
    if typed := [node for node in cards if f"{_TYPE}{name}" in node]:
        return Kind(entry, "cuda", {"num_gpus": 1, "accelerator_type": name}, _gpus(typed))
    if name in custom:
        if all(node in cards for node in with_name):
            count = int(sum(min(node["GPU"], node[name]) for node in with_name))
            return Kind(entry, "cuda", {"num_gpus": 1, "resources": {name: 1}}, count)
        return Kind(entry, "cpu", {"num_cpus": _cores(with_name), "resources": {name: 1}}, _hosts(with_name))
    valid = sorted({"cpu", *custom, *(key.removeprefix(_TYPE) for node in cards for key in node if _TYPE in key)})
    raise ConfigError(f"devices: the cluster has no {name}{nearest(name, valid)}")


def _cores(nodes: Sequence[Mapping[str, float]]) -> int:
    """Return just over half of the largest node's cores: no node can run two such tasks."""
    return int(max(node.get("CPU", 0) for node in nodes) // 2 + 1)


def _hosts(nodes: Sequence[Mapping[str, float]]) -> int:
    return sum(node.get("CPU", 0) >= _cores(nodes) for node in nodes)


def _gpus(nodes: Sequence[Mapping[str, float]]) -> int:
    return int(sum(node["GPU"] for node in nodes))
