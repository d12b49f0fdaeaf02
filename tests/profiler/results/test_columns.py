"""The columns that outside tools rely on: names, order, types and units, as agreed, and their page."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest

from profiler.results import columns
from profiler.results.columns import COLUMNS, LAYERS, RESULTS, SAMPLES, Group, Shown
from profiler.stats.samples import PERCENTILE_NEEDS

TEXT, COUNT, MEASURE = pl.String(), pl.Int64(), pl.Float64()

AGREED = """
run_id case_id suite model engine variant pass precision batch_size device replicate model_kind network setting shape
is_base reference_model optimizer head dropout input_gradient options calibrated
status reason log graph reference
clock latency_ms latency_low_ms latency_high_ms latency_mean_ms latency_min_ms latency_p90_ms latency_p95_ms
latency_p99_ms latency_spread latency_spread_free samples stop_reason
gpu_ms gpu_low_ms gpu_high_ms gpu_spread gpu_spread_free enqueue_ms host_ms h2d_ms d2h_ms
forward_ms forward_low_ms forward_high_ms backward_ms backward_low_ms backward_high_ms step_ms step_low_ms
step_high_ms grad_input_ms grad_input_low_ms grad_input_high_ms grad_weight_ms grad_weight_low_ms grad_weight_high_ms
gpu_forward_ms gpu_backward_ms gpu_step_ms gpu_grad_input_ms gpu_grad_weight_ms
throughput throughput_low throughput_high
peak_memory_mib context_mib weights_mib gradients_mib optimizer_mib activations_mib other_mib slack_mib library_mib
baseline_mib host_peak_mib set_up_peak_mib torch_allocated_mib torch_reserved_mib
export_s build_s load_s first_run_s
rel_l2_error rel_l2_error_high error_items max_abs_error top1_agreement loss_error gradient_error
flops_per_item moved_mib tflops fraction_of_peak floor_ms
energy_mj_per_item power_w sm_clock_mhz temperature_c throttled
proof disturbance warnings
machine cloud instance usd_per_hour
usd_per_million_items items_per_usd
gpu host
cuda driver cudnn python torch_version onnxruntime_version tensorrt_version openvino_version jax_version
"""
TEXTS = """
run_id case_id suite model engine variant pass precision device model_kind network setting shape reference_model
optimizer head options status reason log graph reference clock stop_reason proof machine cloud instance gpu host
cuda driver cudnn python torch_version onnxruntime_version tensorrt_version openvino_version jax_version
"""
NOT_MEASURES = {
    **dict.fromkeys(TEXTS.split(), TEXT),
    **dict.fromkeys(("batch_size", "replicate", "samples", "error_items"), COUNT),
    **dict.fromkeys(("throttled", "dropout", "input_gradient", "is_base", "calibrated"), pl.Boolean()),
    "warnings": pl.List(pl.String()),
}
WITHOUT_UNIT = """
throughput throughput_low throughput_high rel_l2_error rel_l2_error_high max_abs_error top1_agreement loss_error
gradient_error fraction_of_peak tflops disturbance latency_spread latency_spread_free gpu_spread gpu_spread_free
"""
UNITS = {"ms": "_ms", "MiB": "_mib", "s": "_s", "W": "_w", "MHz": "_mhz", "°C": "_c", "error": "_error"}


def test_results_has_the_agreed_columns_and_types_in_their_order():
    assert list(RESULTS) == AGREED.split()
    assert {column: NOT_MEASURES.get(column, MEASURE) for column in RESULTS} == RESULTS


def test_samples_has_the_agreed_columns_and_types():
    assert list(SAMPLES) == ["run_id", "case_id", "clock", "index", "ms"]
    assert {"run_id": TEXT, "case_id": TEXT, "clock": TEXT, "index": COUNT, "ms": MEASURE} == SAMPLES


def test_layers_has_the_agreed_columns_and_types():
    assert list(LAYERS) == ["run_id", "case_id", "order", "layer", "kind", "nodes", "ms", "share"]
    texts = dict.fromkeys(("run_id", "case_id", "layer", "kind"), TEXT)
    assert {**texts, "order": COUNT, "nodes": pl.List(TEXT), "ms": MEASURE, "share": MEASURE} == LAYERS


def test_a_measures_unit_stands_in_its_name():
    units = (*UNITS.values(), "_per_item", "_per_usd", "_per_hour", "_per_million_items")
    measures = [column for column, kind in RESULTS.items() if kind == MEASURE]
    assert [column for column in measures if not column.endswith(units) and column not in WITHOUT_UNIT.split()] == []
    named = [(c.name.removesuffix("_high"), c.unit) for c in COLUMNS.values()]
    assert [name for name, unit in named if unit in UNITS and not name.endswith(UNITS[unit])] == []
    measured = [c for c in COLUMNS.values() if c.type == MEASURE and not c.name.endswith("_free")]
    assert [c.name for c in measured if not (c.unit and c.heading)] == []


def test_the_page_has_the_table_of_the_columns():
    page = (Path(__file__).resolve().parents[3] / "docs" / "columns.md").read_text()
    rows: list[tuple[list[str], str]] = []
    for column in COLUMNS.values():
        if not rows or rows[-1][1] != column.meaning:
            rows.append(([], column.meaning))
        rows[-1][0].append(f"`{column.name}`")
    lines = [f"| {' '.join(found)} | {meaning} |" for found, meaning in rows]
    table = "\n".join(["| columns | meaning |", "| --- | --- |", *lines])
    assert f"\n\n{table}\n\n" in page, f"put this into docs/columns.md:\n{table}"


def test_columns_are_chosen_by_group_and_by_how_far_they_reach():
    costs = ["usd_per_million_items", "items_per_usd"]
    assert columns.names(Group.THROUGHPUT, Group.COST) == ["throughput", "throughput_low", "throughput_high", *costs]
    assert columns.names(Group.PARTS, shown=Shown.TERMINAL) == ["forward_ms", "backward_ms", "step_ms"]
    assert "other_mib" not in columns.names(Group.MEMORY, shown=Shown.REPORT)


def test_the_parts_of_a_part_stand_in_for_it():
    peak = columns.parts("peak_memory_mib")
    assert peak[0] == "context_mib"
    assert peak[-2:] == ["slack_mib", "library_mib"]
    assert "other_mib" not in peak
    assert columns.parts("set_up_s") == ["export_s", "build_s", "load_s", "first_run_s"]


def test_every_percentile_that_is_computed_is_declared():
    assert {c.percentile for c in COLUMNS.values()} - {None} == set(PERCENTILE_NEEDS)


def test_a_row_is_made_whole_and_an_unknown_key_refused():
    row = columns.whole_row({"run_id": "a", "latency_ms": 1.0})
    assert list(row) == list(RESULTS)
    assert (row["latency_ms"], row["gpu_ms"]) == (1.0, None)
    with pytest.raises(KeyError, match="latency_s"):
        columns.whole_row({"latency_s": 1.0})


def test_an_empty_frame_of_each_schema_survives_parquet(tmp_path):
    for schema in (RESULTS, SAMPLES, LAYERS):
        pl.DataFrame(schema=schema).write_parquet(tmp_path / "empty.parquet")
        assert pl.read_parquet(tmp_path / "empty.parquet").schema == pl.Schema(schema)
