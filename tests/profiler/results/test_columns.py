"""The columns that outside tools rely on: names, order and types, as agreed in the design."""

from __future__ import annotations

import polars as pl

from profiler.results.columns import LAYERS, RESULTS, SAMPLES

TEXT, COUNT, MEASURE = pl.String(), pl.Int64(), pl.Float64()

DESIGN = """
run_id case_id suite model engine variant pass precision batch_size device replicate options status reason reference
clock latency_ms latency_mean_ms latency_min_ms latency_p90_ms latency_p95_ms latency_p99_ms latency_ci_low_ms
latency_ci_high_ms samples stop_reason
gpu_ms enqueue_ms host_ms h2d_ms d2h_ms forward_ms backward_ms step_ms throughput
peak_memory_mib context_mib weights_mib activations_mib other_mib host_peak_mib torch_allocated_mib torch_reserved_mib
export_s build_s load_s first_run_s
rel_l2_error max_abs_error top1_agreement
flops_per_item tflops fraction_of_peak floor_ms
energy_mj_per_item power_w sm_clock_mhz temperature_c throttled
proof warnings
gpu host cuda driver cudnn torch_version onnxruntime_version tensorrt_version
"""
AGREED = DESIGN.split()
SINCE = """
slack_mib library_mib
model_kind extra optimizer head dropout
grad_input_ms grad_weight_ms gpu_forward_ms gpu_backward_ms gpu_step_ms gpu_grad_input_ms gpu_grad_weight_ms
gradients_mib optimizer_mib loss_error gradient_error
machine cloud instance usd_per_hour usd_per_million_items items_per_usd
"""
ADDED = [*SINCE.split(), "moved_mib"]
"""The parts of other_mib; what else distinguishes a case; training in depth; layers; the machine's price; bytes."""

TEXTS = """
run_id case_id suite model engine variant pass precision device options status reason reference clock stop_reason proof
gpu host cuda driver cudnn torch_version onnxruntime_version tensorrt_version
model_kind extra optimizer head machine cloud instance
"""
NOT_MEASURES = {
    **dict.fromkeys(TEXTS.split(), TEXT),
    **dict.fromkeys(("batch_size", "replicate", "samples"), COUNT),
    **dict.fromkeys(("throttled", "dropout"), pl.Boolean()),
    "warnings": pl.List(pl.String()),
}


def test_results_has_the_agreed_columns_in_their_order():
    assert [column for column in RESULTS if column not in ADDED] == AGREED
    assert set(ADDED) < set(RESULTS)


def test_results_has_the_agreed_types():
    assert {column: NOT_MEASURES.get(column, MEASURE) for column in RESULTS} == RESULTS


def test_samples_has_the_agreed_columns_and_types():
    assert list(SAMPLES) == ["run_id", "case_id", "clock", "index", "ms"]
    assert {"run_id": TEXT, "case_id": TEXT, "clock": TEXT, "index": COUNT, "ms": MEASURE} == SAMPLES


def test_layers_has_the_agreed_columns_and_types():
    assert list(LAYERS) == ["run_id", "case_id", "order", "layer", "kind", "nodes", "ms", "share"]
    texts = dict.fromkeys(("run_id", "case_id", "layer", "kind"), TEXT)
    assert {**texts, "order": COUNT, "nodes": pl.List(TEXT), "ms": MEASURE, "share": MEASURE} == LAYERS


def test_a_measures_unit_stands_in_its_name():
    ratios = {"throughput", "rel_l2_error", "max_abs_error", "top1_agreement", "fraction_of_peak", "tflops"}
    ratios |= {"loss_error", "gradient_error"}
    units = ("_ms", "_mib", "_s", "_w", "_mhz", "_c", "_per_item", "_per_usd", "_per_hour", "_per_million_items")
    measures = {column for column, kind in RESULTS.items() if kind == MEASURE}
    assert [column for column in measures - ratios if not column.endswith(units)] == []


def test_an_empty_frame_of_each_schema_survives_parquet(tmp_path):
    for schema in (RESULTS, SAMPLES, LAYERS):
        pl.DataFrame(schema=schema).write_parquet(tmp_path / "empty.parquet")
        assert pl.read_parquet(tmp_path / "empty.parquet").schema == pl.Schema(schema)
