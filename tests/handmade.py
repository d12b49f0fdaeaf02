"""Small runs made by hand: cases of a net on a CPU or a GPU, with as many samples as they need."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

import polars as pl

from profiler.results.columns import RESULTS, SAMPLES, check
from profiler.results.result import ends_of
from profiler.stats.intervals import Spread, spread_reach

SPREAD = Spread(sd=0.0014, free=4 / 3)
"""Processes of one configuration differ by so much: the interval of one reaches 1 % to both sides."""
KNOWN = {"latency_spread": 1e-9, "latency_spread_free": 1e-6, "gpu_spread": 1e-9, "gpu_spread_free": 1e-6}
"""A spread that is nothing: the interval of one process is its own, that of several is of how far they differ."""
_SHAPE = [0.995, 0.9975, 1.0025, 1.005] * 10
"""Forty samples as shares of their median."""


def row(variant: str, precision: str = "fp32", ms: float | None = 1.0, **more: Any) -> dict[str, Any]:
    """One case; without `ms` one that gave no figures."""
    case = {
        "run_id": "run",
        "model": "net",
        "pass": "inference",
        "batch_size": 1,
        "replicate": 0,
        "setting": "",
        "engine": variant.partition("-")[0],
        "variant": variant,
        "precision": precision,
        "is_base": (variant, precision) == ("eager", "fp32"),
        "status": "ok" if ms is not None else "failed",
        "warnings": [],
    }
    if ms is not None:
        case |= {"clock": "host", "latency_ms": ms, "host_ms": ms, "throughput": 1000 / ms, "rel_l2_error": 4e-4}
        case |= KNOWN
    case |= more
    place = "{model}/{variant}/{pass}/{precision}/b{batch_size}/r{replicate}".format(**case)
    return {"case_id": f"{place}/{case['setting']}" if case["setting"] else place, **case}


def whole_row(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row with every column, null where it has none. Raises KeyError for a key that is no column."""
    check(row)
    return {name: row.get(name) for name in RESULTS}


def frame(rows: Iterable[Mapping[str, Any]]) -> pl.DataFrame:
    """Results; where a row says neither, its setting is empty, and variant and precision tell whether it is a base."""
    return pl.DataFrame([whole_row({**_identity(row), **row}) for row in rows], schema=RESULTS)


def _identity(row: Mapping[str, Any]) -> dict[str, Any]:
    return {"setting": "", "is_base": (row["variant"], row["precision"]) in (("eager", "fp32"), ("ort", "native"))}


def run(*rows: dict[str, Any]) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Results and samples; each measured case has samples within 0.5 % of its latency, and an interval of SPREAD."""
    samples = []
    for case in (each for each in rows if "latency_ms" in each):
        times = [case["latency_ms"] * share for share in _SHAPE]
        reach = float(spread_reach(SPREAD.sd, SPREAD.free))
        ends = (case["latency_ms"] * math.exp(sign * reach) for sign in (-1, 1))
        case |= dict(zip(ends_of("latency_ms"), ends, strict=True)) | {"samples": len(times)}
        case |= {"latency_spread": SPREAD.sd, "latency_spread_free": SPREAD.free}
        place = {"run_id": case["run_id"], "case_id": case["case_id"], "clock": case["clock"]}
        samples += [{**place, "index": i, "ms": ms} for i, ms in enumerate(times)]
    return frame(rows), pl.DataFrame(samples, schema=SAMPLES)


def layer(name: str, kind: str, ms: float, *nodes: str) -> dict[str, Any]:
    return {"layer": name, "kind": kind, "nodes": list(nodes), "ms": ms}


EAGER = [
    layer("stem.conv", "conv2d", 2.0, "node_Conv_1"),
    layer("stem.bn", "batch_norm", 0.5, "node_Conv_1"),
    layer("stem.relu", "relu_", 0.5, "node_relu"),
    layer("block", "add_", 0.25, "node_add"),
    layer("head.fc", "linear", 0.75, "node_linear"),
]
"""The layers of a small network as eager runs it, and as ONNX Runtime does."""
ORT = [
    layer("Reorder", "ReorderInput", 0.1),
    layer("fused [bold]", "FusedConv", 1.5, "node_Conv_1", "node_relu"),
    layer("node_add", "Add", 0.2, "node_add"),
    layer("node_reshape", "Reshape", 0.0, "node_reshape"),
    layer("node_linear", "Gemm", 0.7, "node_linear"),
]
