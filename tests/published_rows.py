"""Rows made by hand to stand next to published ones: of the H200, as a suite measures them."""

from __future__ import annotations

from typing import Any

import handmade
import polars as pl

from profiler.published.studies import STUDIES

WITH_INPUT_GRADIENT = {name for study in STUDIES.values() for name in study.input_gradient}
TODAY = {"torch_version": "2.11.0+cu130", "onnxruntime_version": "1.31.1", "cudnn": "91900", "device": "cuda"}


def case(
    model: str, variant: str = "eager", precision: str = "fp32", ms: float | None = 3.0, **more: Any
) -> dict[str, Any]:
    """A training row of the H200 at batch 16: a third of it forward; without `ms` one that gave no figures."""
    found: dict[str, Any] = {
        "model": model, "engine": variant.partition("-")[0], "variant": variant, "precision": precision,
        "pass": "training", "batch_size": 16, "replicate": 0, "machine": "H200", "gpu": "NVIDIA H200",
        "run_id": "20261122T170029Z-81f5",
        "model_kind": "canonical", "head": "logits", "setting": "head=logits", "status": "ok" if ms else "failed",
        "input_gradient": (more.get("network") or model) in WITH_INPUT_GRADIENT,
        "warnings": [], **TODAY,
    }  # fmt: skip
    if ms:
        found |= {"latency_ms": ms, "forward_ms": ms / 3, "backward_ms": 2 * ms / 3, "throughput": 16_000 / ms}
        found |= handmade.KNOWN
    return found | more


def layer(name: str, ms: tuple[float, float, float], variant: str = "eager", **more: Any) -> dict[str, Any]:
    parts = dict(zip(("forward_ms", "grad_input_ms", "grad_weight_ms"), ms, strict=True))
    figures = {"latency_ms": sum(ms), "clock": "event", "backward_ms": None, "peak_memory_mib": 100.4}
    shape = {"model_kind": "layer", "head": None, "setting": "", "batch_size": 128, "flops_per_item": 1e9}
    return case(name, variant, **{**shape, **figures, **parts, **more})


def frame(*cases: dict[str, Any]) -> pl.DataFrame:
    return handmade.frame(cases)
