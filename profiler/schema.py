"""What enters: nothing. What leaves: the columns of results.parquet and samples.parquet, declared once.

Outside tools rely on the names and types. Text is String, counts Int64, measures Float64; a unit stands in the name.
docs/columns.md explains each.
"""

from __future__ import annotations

import polars as pl

_TEXT = [
    "run_id",
    "case_id",
    "suite",
    "model",
    "engine",
    "variant",
    "pass",
    "precision",
    "device",
    "options",
    "status",
    "reason",
    "reference",
    "clock",
    "stop_reason",
    "proof",
    "gpu",
    "host",
    "cuda",
    "driver",
    "cudnn",
    "torch_version",
    "onnxruntime_version",
    "tensorrt_version",
]
_COUNTS = ["batch_size", "replicate", "samples"]

_COLUMNS = [
    "run_id",
    "case_id",
    "suite",
    "model",
    "engine",
    "variant",
    "pass",
    "precision",
    "batch_size",
    "device",
    "replicate",
    "options",
    "status",
    "reason",
    "reference",
    "clock",
    "latency_ms",
    "latency_mean_ms",
    "latency_min_ms",
    "latency_p90_ms",
    "latency_p95_ms",
    "latency_p99_ms",
    "latency_ci_low_ms",
    "latency_ci_high_ms",
    "samples",
    "stop_reason",
    "gpu_ms",
    "enqueue_ms",
    "host_ms",
    "h2d_ms",
    "d2h_ms",
    "forward_ms",
    "backward_ms",
    "step_ms",
    "throughput",
    "peak_memory_mib",
    "context_mib",
    "weights_mib",
    "activations_mib",
    "other_mib",
    "host_peak_mib",
    "torch_allocated_mib",
    "torch_reserved_mib",
    "export_s",
    "build_s",
    "load_s",
    "first_run_s",
    "rel_l2_error",
    "max_abs_error",
    "top1_agreement",
    "flops_per_item",
    "tflops",
    "fraction_of_peak",
    "floor_ms",
    "energy_mj_per_item",
    "power_w",
    "sm_clock_mhz",
    "temperature_c",
    "throttled",
    "proof",
    "warnings",
    "gpu",
    "host",
    "cuda",
    "driver",
    "cudnn",
    "torch_version",
    "onnxruntime_version",
    "tensorrt_version",
]


def _type(column: str) -> pl.DataType:
    if column in _TEXT:
        return pl.String()
    if column in _COUNTS:
        return pl.Int64()
    if column == "throttled":
        return pl.Boolean()
    return pl.List(pl.String()) if column == "warnings" else pl.Float64()


RESULTS: dict[str, pl.DataType] = {column: _type(column) for column in _COLUMNS}
"""One row a case."""

SAMPLES: dict[str, pl.DataType] = {
    "run_id": pl.String(),
    "case_id": pl.String(),
    "clock": pl.String(),
    "index": pl.Int64(),
    "ms": pl.Float64(),
}
"""One row a raw sample, in the order in which they were taken."""
