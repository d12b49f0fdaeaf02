"""Match the profiled layers of variants by the exported nodes, and put the passes of single layers together.

The latter in the form of convnet-benchmarks' layer-wise tables (https://github.com/soumith/convnet-benchmarks).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Any

import polars as pl

from engines.catalog import ENGINES
from profiler.results.cells import cells
from profiler.tables.numbers import grouped

_PREFIX = "node_"
"""Prefix that torch.onnx gives the names of exported nodes."""
_CASE = ["run_id", "case_id"]
PARTS = ("forward", "grad_input", "grad_weight")
KEYS = ["machine", "device", "layer", "engine", "variant", "precision", "batch_size"]


@dataclass(frozen=True)
class Profiled:
    """A case's row of the results, and its layers in running order."""

    row: Mapping[str, Any]
    layers: Sequence[Mapping[str, Any]]

    @property
    def ms(self) -> float:
        return float(sum(layer["ms"] for layer in self.layers))


@dataclass
class Group:
    """Exported nodes that cannot be told apart, since some variant runs them as one; each variant's layers for them."""

    nodes: list[str] = field(default_factory=list)
    layers: dict[str, list[Mapping[str, Any]]] = field(default_factory=dict)
    modules: str = ""
    """The PyTorch modules that they come from, like "layer1.0: conv3, bn3, add, relu"; empty if unknown."""

    @property
    def name(self) -> str:
        """Join the nodes without what torch.onnx puts before them, like "Conv_754 + relu"."""
        return " + ".join(node.removeprefix(_PREFIX) for node in self.nodes)

    def ms(self, variant: str) -> float:
        return float(sum(layer["ms"] for layer in self.layers.get(variant, [])))


def profiled(rows: pl.DataFrame, layers: pl.LazyFrame, keys: Sequence[str]) -> list[Profiled]:
    """Return the rows that have layers, in their order; of those that are alike in the keys the first replicate."""
    found = layers.join(rows.lazy().select(_CASE), on=_CASE, how="semi").collect()
    parts = found.sort("order").partition_by(_CASE, as_dict=True)
    own = rows.with_row_index("place").join(found, on=_CASE, how="semi", maintain_order="left")
    first = own.sort("replicate", maintain_order=True).unique(keys, keep="first", maintain_order=True)
    return [Profiled(row, parts[row["run_id"], row["case_id"]].to_dicts()) for row in first.sort("place").to_dicts()]


def together(cases: Iterable[Profiled], keys: Sequence[str]) -> list[list[Profiled]]:
    return list(grouped((tuple(case.row[key] for key in keys), case) for case in cases).values())


def groups(cases: Sequence[Profiled]) -> list[Group]:
    """Return the exported nodes in the graph's order, as finely as every variant tells them apart."""
    root: dict[str, str] = {}

    def find(node: str) -> str:
        while root.setdefault(node, node) != node:
            node = root[node]
        return node

    covering = [(case, layer) for case in cases for layer in case.layers if layer["nodes"]]
    for _, layer in covering:
        for node in layer["nodes"]:
            root[find(node)] = find(layer["nodes"][0])
    found: dict[str, Group] = {}
    for node in _order(cases):
        found.setdefault(find(node), Group()).nodes.append(node)
    for case, layer in covering:
        found[find(layer["nodes"][0])].layers.setdefault(case.row["variant"], []).append(layer)
    namer = next((case.row["variant"] for case in cases if ENGINES[case.row["engine"]].layers_are_modules), "")
    for group in found.values():
        group.modules = _modules(group.layers.get(namer, []))
    return list(found.values())


def _order(cases: Sequence[Profiled]) -> list[str]:
    """Order every node that some layer covers: as the case that knows most, the others' own nodes put between."""
    runs = [list(dict.fromkeys(node for layer in case.layers for node in layer["nodes"])) for case in cases]
    order = list[str]()
    for nodes in sorted(runs, key=len, reverse=True):
        place = 0
        for node in nodes:
            if node not in order:
                order.insert(place, node)
            place = order.index(node) + 1
    return order


def _modules(layers: Sequence[Mapping[str, Any]]) -> str:
    """Name the common part of the modules' paths, then the rest of each, or its kind for an own operator."""
    paths = [layer["layer"].split(".") for layer in layers]
    common = [name for name, *_ in takewhile(lambda level: len({*level}) == 1, zip(*paths, strict=False))]
    head = ".".join(common)
    if all(path == common for path in paths):
        return head
    rests = (".".join(path[len(common) :]) for path in paths)
    own = [rest or str(layer["kind"]).strip("_") for rest, layer in zip(rests, layers, strict=True)]
    return f"{head + ': ' if head else ''}{', '.join(dict.fromkeys(own))}"


def layer_rows(results: pl.DataFrame) -> pl.DataFrame:
    """Return one row by KEYS of each measured layer: its training pass, or inference as the forward part.

    All times and rates are on one `clock`: "gpu" where the device's own time is there for all of the row, else the
    headline's. `status` and `reason` are training's if it was asked for. `results` are results.parquet's.
    """
    layers = cells(results.filter(pl.col("model_kind") == "layer"), by=("machine", "device")).rename({"model": "layer"})
    in_training, parts = pl.col("pass") == "training", [f"gpu_{part}_ms" for part in PARTS]
    gated = pl.col("gpu_ms").is_not_null() & (~in_training | pl.all_horizontal(pl.col(parts).is_not_null()))
    total, low, high = (pl.when(gated).then(f"gpu{e}_ms").otherwise(f"latency{e}_ms") for e in ("", "_low", "_high"))
    figures = {f"{part}_ms": pl.when(gated).then(f"gpu_{part}_ms").otherwise(f"{part}_ms") for part in PARTS}
    figures["forward_ms"] = pl.when(in_training).then(figures["forward_ms"]).otherwise(total)
    whole = {"total_ms": total, "low_ms": low, "high_ms": high}
    figures |= {name: pl.when(in_training).then(value) for name, value in whole.items()}
    figures["clock"] = pl.when(gated).then(pl.lit("gpu")).otherwise("clock")
    part_flops = pl.col("flops_per_item") * pl.col("batch_size") / pl.when(in_training).then(3).otherwise(1)
    # Where training has no time, inference stands in for its forward part.
    rank = pl.when(~in_training).then(1).when(total.is_null()).then(2).otherwise(0)
    rows = layers.with_columns(**figures, part_tflop=part_flops / 1e9, rank=rank).group_by(KEYS, maintain_order=True)
    made = rows.agg(
        pl.col(*figures, "part_tflop", "peak_memory_mib").sort_by("rank").first(),
        pl.col("status", "reason").sort_by(~in_training).first(),
    )
    backward, tflop = pl.col("grad_input_ms") + pl.col("grad_weight_ms"), pl.col("part_tflop")
    rates = {"forward_tflops": tflop / pl.col("forward_ms"), "total_tflops": 3 * tflop / pl.col("total_ms")}
    return made.with_columns(backward_ms=backward, **rates).drop("part_tflop")
