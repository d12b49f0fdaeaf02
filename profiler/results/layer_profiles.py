"""Read what a run measured layer by layer, and match the layers of variants by the exported nodes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Any

import polars as pl

from engines.catalog import ENGINES
from profiler.tables.numbers import grouped

_PREFIX = "node_"
"""Which torch.onnx puts before the names of the nodes that it exports."""
_CASE = ["run_id", "case_id"]


@dataclass(frozen=True)
class Profiled:
    """A case's row of the results, and its layers in running order."""

    row: Mapping[str, Any]
    layers: Sequence[Mapping[str, Any]]

    @property
    def ms(self) -> float:
        return float(sum(layer["ms"] for layer in self.layers))

    @property
    def names_modules(self) -> bool:
        """Whether its layers are called by the paths of PyTorch's modules."""
        return ENGINES[self.row["engine"]].layers_are_modules

    @property
    def without_nodes(self) -> list[Mapping[str, Any]]:
        """The layers that cover no exported node."""
        return [layer for layer in self.layers if not layer["nodes"]]


@dataclass
class Group:
    """Exported nodes that cannot be told apart, since some variant runs them as one; each variant's layers for them."""

    nodes: list[str] = field(default_factory=list)
    layers: dict[str, list[Mapping[str, Any]]] = field(default_factory=dict)
    modules: str = ""
    """The PyTorch modules that they come from, like "layer1.0: conv3, bn3, add, relu"; empty where none is known."""

    @property
    def name(self) -> str:
        return names(self.nodes)

    def ms(self, variant: str) -> float:
        return float(sum(layer["ms"] for layer in self.layers.get(variant, [])))


def profiled(rows: pl.DataFrame, layers: pl.LazyFrame, keys: Sequence[str]) -> list[Profiled]:
    """The rows that have layers, in their order; of those that are alike in the keys the first replicate."""
    found = layers.join(rows.lazy().select(_CASE), on=_CASE, how="semi").collect()
    parts = found.sort("order").partition_by(_CASE, as_dict=True)
    own = rows.with_row_index("place").join(found, on=_CASE, how="semi", maintain_order="left")
    first = own.sort("replicate", maintain_order=True).unique(keys, keep="first", maintain_order=True)
    return [Profiled(row, parts[row["run_id"], row["case_id"]].to_dicts()) for row in first.sort("place").to_dicts()]


def together(cases: Iterable[Profiled], keys: Sequence[str]) -> list[list[Profiled]]:
    return list(grouped((tuple(case.row[key] for key in keys), case) for case in cases).values())


def groups(cases: Sequence[Profiled]) -> list[Group]:
    """The exported nodes in the graph's order, as finely as every variant tells them apart, with each one's layers."""
    root: dict[str, str] = {}

    def find(node: str) -> str:
        while root.setdefault(node, node) != node:
            node = root[node]
        return node

    for case in cases:
        for layer in case.layers:
            for node in layer["nodes"]:
                root[find(node)] = find(layer["nodes"][0])
    found: dict[str, Group] = {}
    for node in _order(cases):
        found.setdefault(find(node), Group()).nodes.append(node)
    for case in cases:
        for layer in case.layers:
            if layer["nodes"]:
                group = found[find(layer["nodes"][0])]
                group.layers.setdefault(case.row["variant"], []).append(layer)
    namer = next((str(case.row["variant"]) for case in cases if case.names_modules), "")
    for group in found.values():
        group.modules = _modules(group.layers.get(namer, []))
    return list(found.values())


def _order(cases: Sequence[Profiled]) -> list[str]:
    """Every node that some layer covers: the order of the case that knows most, the others' own nodes put between."""
    runs = [list(dict.fromkeys(node for layer in case.layers for node in layer["nodes"])) for case in cases]
    runs.sort(key=len, reverse=True)
    order = list(runs[0]) if runs else []
    for nodes in runs[1:]:
        place = 0
        for node in nodes:
            if node in order:
                place = order.index(node) + 1
            else:
                order.insert(place, node)
                place += 1
    return order


def names(nodes: Iterable[str]) -> str:
    """The exported nodes without what torch.onnx puts before them, like "Conv_754 + relu"."""
    return " + ".join(node.removeprefix(_PREFIX) for node in nodes)


def _modules(layers: Sequence[Mapping[str, Any]]) -> str:
    """What the modules' paths have in common, then the rest of each; a module's own operator goes by its kind."""
    paths = [layer["layer"].split(".") for layer in layers]
    if not paths:
        return ""
    levels = takewhile(lambda level: len(set(level)) == 1, zip(*paths, strict=False))
    common = [name for name, *_ in levels]
    head = ".".join(common)
    if all(path == common for path in paths):
        return head
    own = [
        ".".join(path[len(common) :]) or str(layer["kind"]).strip("_")
        for path, layer in zip(paths, layers, strict=True)
    ]
    return f"{head + ': ' if head else ''}{', '.join(dict.fromkeys(own))}"
