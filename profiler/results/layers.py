"""Match the profiled layers of variants by the exported nodes, and combine the passes of single layers.

`layer_rows` follows the layer-wise tables of convnet-benchmarks (https://github.com/soumith/convnet-benchmarks).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

import polars as pl

from engines.catalog import ENGINES
from profiler.results.cells import cells
from profiler.tables.numbers import grouped

_CASE = ["run_id", "case_id"]
PARTS = ("forward", "grad_input", "grad_weight")
KEYS = ["machine", "device", "layer", "engine", "variant", "precision", "batch_size"]


@dataclass(frozen=True)
class Profiled:
    """A case's row of the results, and its layers in running order."""

    row: Mapping[str, Any]
    layers: Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class Layer:
    """Exported nodes that some variant runs as one, like "Conv_754 + relu", and each variant's time for them."""

    nodes: str
    ms: Mapping[str, float]
    modules: str | None = None
    """Their PyTorch modules, like "layer1.0: conv3, bn3, add, relu", if known."""


def profiled(rows: pl.DataFrame, layers: pl.LazyFrame, keys: Sequence[str]) -> list[Profiled]:
    """Return the rows that have layers, in their order; rows that agree in `keys` give their first replicate."""
    matching = layers.join(rows.lazy().select(_CASE), on=_CASE, how="semi").collect()
    parts = matching.sort("order").partition_by(_CASE, as_dict=True)
    profiled_rows = rows.with_row_index("place").join(matching, on=_CASE, how="semi", maintain_order="left")
    first = profiled_rows.sort("replicate", maintain_order=True).unique(keys, keep="first", maintain_order=True)
    return [Profiled(row, parts[row["run_id"], row["case_id"]].to_dicts()) for row in first.sort("place").to_dicts()]


def together(cases: Iterable[Profiled], keys: Sequence[str]) -> list[list[Profiled]]:
    """Group the cases that agree in these columns."""
    return list(grouped((tuple(case.row[key] for key in keys), case) for case in cases).values())


def match_layers(cases: Sequence[Profiled]) -> list[Layer]:
    """Match variants' layers by the finest groups of exported nodes that each runs whole, in the graph's order.

    Layers without nodes are summed at the end. If no layer has nodes, the first variant's layers stand alone.
    """
    covering = [(case.row["variant"], layer) for case in cases for layer in case.layers if layer["nodes"]]
    if not covering:
        variant = cases[0].row["variant"]
        return [Layer(f"{layer['kind']} {layer['layer']}", {variant: layer["ms"]}) for layer in cases[0].layers]
    root: dict[str, str] = {}

    def find(node: str) -> str:
        while root.setdefault(node, node) != node:
            node = root[node]
        return node

    for _, layer in covering:
        for node in layer["nodes"]:
            root[find(node)] = find(layer["nodes"][0])
    layers_of = grouped((find(layer["nodes"][0]), (variant, layer)) for variant, layer in covering)
    namer = next((case.row["variant"] for case in cases if ENGINES[case.row["engine"]].layers_are_modules), "")
    rows = []
    for first, nodes in grouped((find(node), node) for node in _order(cases)).items():
        by_variant = grouped(layers_of[first])
        name = " + ".join(node.removeprefix("node_") for node in nodes)  # The prefix is torch.onnx's.
        rows.append(Layer(name, _sums(by_variant), _modules(by_variant.get(namer, []))))
    others = ((case.row["variant"], layer) for case in cases for layer in case.layers if not layer["nodes"])
    sums = _sums(grouped(others))
    return [*rows, *[Layer("no exported node", sums)] * bool(sums)]


def _sums(by_variant: Mapping[str, Sequence[Mapping[str, Any]]]) -> dict[str, float]:
    return {variant: float(sum(layer["ms"] for layer in layers)) for variant, layers in by_variant.items()}


def _order(cases: Sequence[Profiled]) -> list[str]:
    """Order all covered nodes as the case with the most nodes does, with other cases' nodes in between."""
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
    """Join the common start of the modules' paths and each rest; without a rest, the kind of operator."""
    paths = [layer["layer"].split(".") for layer in layers]
    common = [name for name, *_ in takewhile(lambda level: len({*level}) == 1, zip(*paths, strict=False))]
    head = ".".join(common)
    if all(path == common for path in paths):
        return head
    rests = (".".join(path[len(common) :]) for path in paths)
    tails = [rest or str(layer["kind"]).strip("_") for rest, layer in zip(rests, layers, strict=True)]
    return f"{head + ': ' if head else ''}{', '.join(dict.fromkeys(tails))}"


def layer_rows(results: pl.DataFrame) -> pl.DataFrame:
    """Return one row by KEYS per measured layer: its training pass, or inference as the forward part.

    All times and rates are on one `clock`: "gpu" if the device's time is known for the whole row, else the headline
    clock. `status` and `reason` are training's if the job has training. `results` are results.parquet's.
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
    # Training without a time takes its forward part from inference.
    rank = pl.when(~in_training).then(1).when(total.is_null()).then(2).otherwise(0)
    layers = layers.with_columns(**figures, part_tflop=part_flops / 1e9, rank=rank)
    rows = layers.group_by(KEYS, maintain_order=True).agg(
        pl.col(*figures, "part_tflop", "peak_memory_mib").sort_by("rank").first(),
        pl.col("status", "reason").sort_by(~in_training).first(),
    )
    backward, tflop = pl.col("grad_input_ms") + pl.col("grad_weight_ms"), pl.col("part_tflop")
    rates = {"forward_tflops": tflop / pl.col("forward_ms"), "total_tflops": 3 * tflop / pl.col("total_ms")}
    return rows.with_columns(backward_ms=backward, **rates).drop("part_tflop")
