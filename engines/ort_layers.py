"""Read the nodes that ran from ONNX Runtime's profile and torch's trace of the same runs.

The profile has every node's interval on the host. On CUDA that is the time of enqueueing: the published builds cannot
see kernels (they lack `enable_cuda_profiling`). torch.profiler can; a kernel belongs to the node whose interval
contains its launch. Both clocks are the system's, to a microsecond.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import onnx

from engines.base import Layer
from engines.layers import Kernel, Trace, median_layers, node_name

_SUFFIX = "_kernel_time"
_SLACK_US = 5.0
"""Slack around a node's interval; ONNX Runtime spends more between two nodes, on the profile itself."""
_ROUNDING_US = 1.0
_MOST_STRANGERS = 0.05
"""Largest share of kernels outside every node, beside two."""


@dataclass(frozen=True)
class NodeRun:
    """A node that ran, in microseconds since the profile's start."""

    name: str
    kind: str
    start: float
    end: float


@dataclass(frozen=True)
class GraphRun:
    """One run of the graph and its nodes, in microseconds since the profile's start."""

    start: float
    end: float
    nodes: list[NodeRun]


def read_runs(path: Path, last: int) -> list[GraphRun]:
    """Read the `last` runs in a profile. Raises RuntimeError if there are fewer."""
    # Sorted so that enclosing events come first.
    events = sorted(json.loads(path.read_text()), key=lambda e: (e["ts"], -e["dur"]))
    runs = [GraphRun(e["ts"], e["ts"] + e["dur"], []) for e in events if e["name"] == "model_run"][-last:]
    if len(runs) < last:
        raise RuntimeError(f"ONNX Runtime's profile has {len(runs)} runs, {last} were made")
    for event in events:
        if event["cat"] != "Node" or not event["name"].endswith(_SUFFIX):
            continue
        name, start = event["name"].removesuffix(_SUFFIX), event["ts"]
        run = next((run for run in runs if run.start <= start <= run.end), None)
        # A subgraph's nodes run inside the node that holds it, and its time includes theirs.
        if run and (not run.nodes or start >= run.nodes[-1].end):
            run.nodes.append(NodeRun(name, event["args"]["op_name"], start, start + event["dur"]))
    return runs


def host_layers(
    runs: Sequence[GraphRun], steps: Sequence[onnx.NodeProto], covered: Sequence[tuple[str, ...]]
) -> list[Layer]:
    """Take each node's median time on the host."""
    return median_layers([_named(run, steps, covered, [(n.end - n.start) / 1000 for n in run.nodes]) for run in runs])


def device_layers(
    runs: Sequence[GraphRun],
    started_ns: int,
    trace: Trace,
    steps: Sequence[onnx.NodeProto],
    covered: Sequence[tuple[str, ...]],
) -> list[Layer]:
    """Return every node's median time on the device, summed over the kernels launched in its interval.

    `started_ns` is the profile's start in nanoseconds since 1970. Kernels outside all nodes follow as layers of the
    kind "kernel". Raises RuntimeError if the two clocks do not fit.
    """
    pairs = list(zip(runs, trace.iterations, strict=True))
    offset = (started_ns - trace.unix_ns) / 1000
    low = max(call.start - run.start for run, call in pairs)
    high = min(call.returned - run.end for run, call in pairs)
    if not low - _SLACK_US <= offset <= high + _SLACK_US:  # Every run lies in its call.
        offset = (low + high) / 2
    iterations = []
    for run, iteration in pairs:
        times, others = launched_in(run.nodes, iteration.kernels, offset)
        iterations.append([*_named(run, steps, covered, times), *(Layer(k.name, "kernel", (), k.ms) for k in others)])
    return median_layers(iterations)


def launched_in(nodes: Sequence[NodeRun], kernels: Sequence[Kernel], offset: float) -> tuple[list[float], list[Kernel]]:
    """Sum the milliseconds of every node's kernels; list other kernels. Raises RuntimeError if those are too many."""
    starts = [node.start + offset for node in nodes]
    times, strangers = [0.0] * len(nodes), []
    for kernel in kernels:
        number = max(bisect_right(starts, kernel.launched + _ROUNDING_US) - 1, 0)
        if starts and starts[number] - _SLACK_US <= kernel.launched <= nodes[number].end + offset + _SLACK_US:
            times[number] += kernel.ms
        else:
            strangers.append(kernel)
    if len(strangers) > _MOST_STRANGERS * len(kernels) + 2:
        raise RuntimeError(f"{len(strangers)} of {len(kernels)} kernels lie outside of every node: the clocks differ")
    return times, strangers


def _named(
    run: GraphRun, steps: Sequence[onnx.NodeProto], covered: Sequence[tuple[str, ...]], times: Sequence[float]
) -> list[Layer]:
    """Pair nodes with their exported nodes by place, or by name if they ran in another order."""
    nodes = list(covered)
    if [step.op_type for step in steps] != [node.kind for node in run.nodes]:
        by_name = dict(zip(map(node_name, steps), covered, strict=True))
        nodes = [by_name.get(node.name, ()) for node in run.nodes]
    return [Layer(n.name, n.kind, c, ms) for n, c, ms in zip(run.nodes, nodes, times, strict=True)]
