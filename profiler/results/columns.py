"""What enters: nothing. What leaves: the columns of results, samples and layers .parquet, declared once.

Outside tools rely on the names and types. Text is String, counts Int64, measures Float64; a unit stands in the name.
docs/columns.md explains each.
"""

from __future__ import annotations

import polars as pl

TEXT, COUNT, MEASURE = pl.String(), pl.Int64(), pl.Float64()


def _all(names: str, dtype: pl.DataType) -> dict[str, pl.DataType]:
    return dict.fromkeys(names.split(), dtype)


RESULTS: dict[str, pl.DataType] = {
    **_all("run_id case_id suite model engine variant pass precision", TEXT),
    "batch_size": COUNT,
    "device": TEXT,
    "replicate": COUNT,
    **_all("model_kind extra optimizer head", TEXT),
    "dropout": pl.Boolean(),
    **_all("options status reason reference clock", TEXT),
    **_all("latency_ms latency_mean_ms latency_min_ms latency_p90_ms latency_p95_ms latency_p99_ms", MEASURE),
    **_all("latency_ci_low_ms latency_ci_high_ms", MEASURE),
    "samples": COUNT,
    "stop_reason": TEXT,
    **_all("gpu_ms enqueue_ms host_ms h2d_ms d2h_ms forward_ms backward_ms step_ms throughput", MEASURE),
    **_all("grad_input_ms grad_weight_ms gpu_forward_ms gpu_backward_ms gpu_step_ms", MEASURE),
    **_all("gpu_grad_input_ms gpu_grad_weight_ms", MEASURE),
    **_all("peak_memory_mib context_mib weights_mib activations_mib other_mib slack_mib library_mib", MEASURE),
    **_all("gradients_mib optimizer_mib", MEASURE),
    **_all("host_peak_mib torch_allocated_mib torch_reserved_mib export_s build_s load_s first_run_s", MEASURE),
    **_all("rel_l2_error max_abs_error top1_agreement loss_error gradient_error", MEASURE),
    **_all("flops_per_item moved_mib tflops fraction_of_peak floor_ms", MEASURE),
    **_all("energy_mj_per_item power_w sm_clock_mhz temperature_c", MEASURE),
    "throttled": pl.Boolean(),
    "proof": TEXT,
    "warnings": pl.List(pl.String()),
    **_all("machine cloud instance", TEXT),
    **_all("usd_per_hour usd_per_million_items items_per_usd", MEASURE),
    **_all("gpu host cuda driver cudnn torch_version onnxruntime_version tensorrt_version", TEXT),
}
"""One row a case."""

SAMPLES: dict[str, pl.DataType] = {
    **_all("run_id case_id clock", TEXT),
    "index": COUNT,
    "ms": MEASURE,
}
"""One row a raw sample, in the order in which they were taken."""

LAYERS: dict[str, pl.DataType] = {
    **_all("run_id case_id", TEXT),
    "order": COUNT,
    **_all("layer kind", TEXT),
    "nodes": pl.List(pl.String()),
    **_all("ms share", MEASURE),
}
"""One row a layer of a case, in running order; `share` is of the sum over the case's layers."""
