"""Small runs made by hand: cases of a net on a CPU or a GPU, with as many samples as they need."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import polars as pl

from profiler.results import sentences, speedups
from profiler.results.columns import RESULTS, SAMPLES
from profiler.results.reading import with_all_columns
from profiler.stats import samples as statistics

Frames = tuple[pl.DataFrame, pl.DataFrame]


def row(variant: str, precision: str = "fp32", ms: float | None = 1.0, **more: Any) -> dict[str, Any]:
    """One case; without `ms` one that gave no figures."""
    case = {
        "run_id": "run",
        "model": "net",
        "pass": "inference",
        "batch_size": 1,
        "replicate": 0,
        "engine": variant.partition("-")[0],
        "variant": variant,
        "precision": precision,
        "status": "ok" if ms is not None else "failed",
        "warnings": [],
    }
    if ms is not None:
        case |= {"clock": "host", "latency_ms": ms, "host_ms": ms, "throughput": 1000 / ms, "rel_l2_error": 4e-4}
    case |= more
    place = "{model}/{variant}/{pass}/{precision}/b{batch_size}/r{replicate}".format(**case)
    extra = case.get("extra")
    return {"case_id": f"{place}/{extra}" if extra else place, **case}


def on_gpu(variant: str, ms: float, gpu_ms: float | None, **more: Any) -> dict[str, Any]:
    """One case of a GPU, where the headline is `event`."""
    return row(variant, ms=ms, clock="event", gpu_ms=gpu_ms, host_ms=9.0, **more)


def thrice(case: Callable[..., dict[str, Any]], *names: str, spread: float = 0.005, **figures: Any) -> list[Any]:
    """Three replicates whose figures differ by `spread`."""
    return [
        case(*names, replicate=i, **{k: v if v is None else v * factor for k, v in figures.items()})
        for i, factor in enumerate((1 - spread, 1.0, 1 + spread))
    ]


def run(*rows: dict[str, Any], spread: float = 0.01) -> Frames:
    """Results and samples; each measured case has 40 samples within ±`spread` of its latency and of its device time."""
    shape = [1 - spread, 1 - spread / 2, 1 + spread / 2, 1 + spread] * 10
    interval = statistics.median_interval(shape)
    assert interval is not None
    for r in rows:
        if "latency_ms" in r:
            r["latency_ci_low_ms"], r["latency_ci_high_ms"] = (r["latency_ms"] * end for end in vars(interval).values())
    results = with_all_columns(pl.DataFrame(list(rows), schema=RESULTS))
    samples = [
        {"run_id": "run", "case_id": r["case_id"], "clock": clock, "index": i, "ms": ms * factor}
        for r in rows
        if "latency_ms" in r
        for clock, ms in {r["clock"]: r["latency_ms"], "gpu": r.get("gpu_ms")}.items()
        if ms is not None
        for i, factor in enumerate(shape)
    ]
    return results, pl.DataFrame(samples, schema=SAMPLES)


def line(frames: Frames, variant: str, precision: str = "fp32", **more: Any) -> dict[str, Any]:
    (found,) = speedups.summary(*frames).filter(variant=variant, precision=precision, **more).to_dicts()
    return found


def said(frames: Frames) -> list[str | None]:
    return [sentences.group_sentence(key, lines) for key, lines in speedups.groups(speedups.summary(*frames))]


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
