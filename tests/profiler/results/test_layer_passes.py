"""Tables of single layers from results made by hand: parts on one clock, rates, reasons, and the best of each layer."""

from __future__ import annotations

from typing import Any

import handmade
import polars as pl
import pytest

from profiler.results.layer_passes import ALL_LAYERS, best_per_layer, layer_rows

GFLOP = 1e9


def case(variant: str, pass_: str = "training", **more: Any) -> dict[str, Any]:
    return {
        "model_kind": "layer", "model": "L1", "machine": "a-gpu", "device": "cuda", "engine": variant.partition("-")[0],
        "variant": variant, "pass": pass_, "precision": "fp32", "batch_size": 10, "replicate": 0, "status": "ok",
        "warnings": [],
        "flops_per_item": 3 * GFLOP if pass_ == "training" else GFLOP, **more,
    }  # fmt: skip


def trained(variant: str, *parts: float, gpu: tuple[float, ...] = (), **more: Any) -> dict[str, Any]:
    """A measured training pass: its three parts by events, and by gated ones if `gpu` has them."""
    names = ("forward", "grad_input", "grad_weight")
    found = {f"{name}_ms": ms for name, ms in zip(names, parts, strict=True)}
    found |= {f"gpu_{name}_ms": ms for name, ms in zip(names, gpu, strict=False)}
    found |= {"gpu_ms": sum(gpu)} if gpu else {}
    return case(variant, clock="event", latency_ms=sum(parts), peak_memory_mib=100.0, **{**found, **more})


def inferred(variant: str, ms: float, **more: Any) -> dict[str, Any]:
    return case(variant, "inference", clock="event", latency_ms=ms, peak_memory_mib=40.0, **more)


def failed(variant: str, status: str, reason: str, pass_: str = "training", **more: Any) -> dict[str, Any]:
    return case(variant, pass_, status=status, reason=reason, flops_per_item=None, **more)


def frame(*cases: dict[str, Any]) -> pl.DataFrame:
    return handmade.frame(cases)


def rows(*cases: dict[str, Any]) -> list[dict[str, Any]]:
    return layer_rows(frame(*cases)).to_dicts()


def best(*cases: dict[str, Any]) -> list[dict[str, Any]]:
    return best_per_layer(layer_rows(frame(*cases))).to_dicts()


def test_row_has_parts_sums_memory_and_rates_of_the_device_clock() -> None:
    (row,) = rows(trained("eager", 2.0, 3.0, 5.0, gpu=(1.0, 2.0, 4.0)))
    assert (row["clock"], row["forward_ms"], row["grad_input_ms"], row["grad_weight_ms"]) == ("gpu", 1.0, 2.0, 4.0)
    assert (row["backward_ms"], row["total_ms"], row["peak_memory_mib"]) == (6.0, 7.0, 100.0)
    # Ten items of a GFLOP in each part.
    assert row["forward_tflops"] == pytest.approx(10 * GFLOP / 1e-3 / 1e12)
    assert row["grad_weight_tflops"] == pytest.approx(2.5)
    assert row["total_tflops"] == pytest.approx(30 / 7)
    assert (row["status"], row["reason"]) == ("ok", None)


def test_row_is_on_one_clock_even_where_a_part_of_it_was_gated() -> None:
    (row,) = rows(trained("eager", 2.0, 3.0, 5.0, gpu=(1.0, 2.0)))
    assert (row["clock"], row["forward_ms"], row["total_ms"]) == ("event", 2.0, 10.0)


def test_replicates_are_one_row_of_medians_and_those_that_failed_are_left_out() -> None:
    cases = [trained("eager", ms, 3.0, 5.0, replicate=i) for i, ms in enumerate((1.0, 2.0, 9.0))]
    (row,) = rows(*cases, failed("eager", "crashed", "it died", replicate=3))
    assert (row["forward_ms"], row["status"], row["reason"]) == (2.0, "ok", None)


def test_engine_of_inference_alone_gives_the_forward_part_and_says_why_not_more() -> None:
    (row,) = rows(failed("ort", "unsupported", "ort has no training"), inferred("ort", 4.0, gpu_ms=2.0))
    assert (row["forward_ms"], row["forward_tflops"], row["clock"]) == (2.0, pytest.approx(5.0), "gpu")
    assert (row["peak_memory_mib"], row["status"], row["reason"]) == (40.0, "unsupported", "ort has no training")
    assert [row[f"{part}_ms"] for part in ("grad_input", "grad_weight", "backward", "total")] == [None] * 4
    # Without a training pass in the run there is nothing to explain.
    (row,) = rows(inferred("ort", 4.0))
    assert (row["forward_ms"], row["clock"], row["status"], row["reason"]) == (4.0, "event", "ok", None)


def test_forward_part_of_the_training_pass_comes_before_inference() -> None:
    (row,) = rows(inferred("eager", 1.0), trained("eager", 2.0, 3.0, 5.0))
    assert (row["forward_ms"], row["peak_memory_mib"]) == (2.0, 100.0)


def test_training_pass_that_did_not_fit_is_blank_with_its_reason() -> None:
    one = trained("eager", 2.0, 3.0, 5.0)
    two = failed("eager", "oom", "CUDA out of memory. Tried to allocate 3 GiB", batch_size=512)
    first, second = rows(one, two, inferred("eager", 6.0, batch_size=512))
    assert first["reason"] is None
    assert (second["forward_ms"], second["total_ms"], second["reason"]) == (6.0, None, "out of memory")
    (alone,) = rows(two)
    assert (alone["forward_ms"], alone["clock"], alone["status"]) == (None, None, "oom")


def test_calls_that_are_timed_in_blocks_say_why_they_have_no_parts() -> None:
    short = case("eager", clock="event", latency_ms=0.02)
    (row,) = rows(short)
    assert (row["total_ms"], row["forward_ms"], row["status"]) == (0.02, None, "ok")
    assert "in blocks, without their parts" in row["reason"]


def test_networks_are_no_layers() -> None:
    network = {**trained("eager", 1.0, 2.0, 3.0), "model_kind": "canonical"}
    assert layer_rows(frame(network)).is_empty()
    assert best_per_layer(layer_rows(frame(network))).is_empty()


def test_variants_precisions_batches_and_machines_have_rows_of_their_own() -> None:
    cases = [
        trained("eager", 1.0, 2.0, 3.0),
        trained("eager-tuned", 1.0, 2.0, 3.0),
        trained("eager", 1.0, 2.0, 3.0, precision="fp16"),
        trained("eager", 1.0, 2.0, 3.0, batch_size=1),
        trained("eager", 1.0, 2.0, 3.0, machine="b-gpu"),
        trained("eager", 1.0, 2.0, 3.0, machine=None),
    ]
    assert len(rows(*cases)) == len(cases)
    assert all(row["total_ms"] == 6.0 for row in rows(*cases))


def test_best_of_a_layer_is_picked_pass_by_pass() -> None:
    layer, total = best(
        trained("eager", 5.0, 2.0, 9.0),
        trained("compiled", 4.0, 3.0, 7.0),
        failed("ort", "unsupported", "ort has no training"),
        inferred("ort", 1.0),
    )
    assert (layer["layer"], layer["forward_ms"], layer["forward_variant"]) == ("L1", 1.0, "ort")
    assert (layer["grad_input_variant"], layer["grad_weight_variant"]) == ("eager", "compiled")
    assert (layer["backward_ms"], layer["total_ms"], layer["clock"]) == (9.0, 10.0, "event")
    assert (total["layer"], total["forward_ms"], total["backward_ms"]) == (ALL_LAYERS, 1.0, 9.0)
    assert (total["total_ms"], total["forward_variant"]) == (10.0, None)


def test_best_of_all_layers_is_their_sum() -> None:
    found = best(
        trained("eager", 5.0, 2.0, 9.0),
        trained("compiled", 4.0, 3.0, 7.0),
        trained("eager", 1.0, 1.0, 1.0, model="L2"),
        trained("compiled", 2.0, 0.5, 2.0, model="L2", gpu=(2.0, 0.5, 2.0)),
    )
    assert [(row["layer"], row["total_ms"]) for row in found] == [("L1", 13.0), ("L2", 2.5), (ALL_LAYERS, 15.5)]
    assert {"event", "gpu"} == set(found[1]["clock"].split(" and "))


def test_sum_is_blank_where_a_layer_is_missing_and_another_precision_is_not_concerned() -> None:
    found = best(
        trained("eager", 5.0, 2.0, 9.0),
        trained("eager", 1.0, 1.0, 1.0, model="L2"),
        trained("eager", 3.0, 1.0, 4.0, precision="fp16"),
        failed("eager", "oom", "no room", model="L2", precision="fp16"),
        inferred("eager", 2.0, model="L2", precision="fp16"),
        # Not even tried at L2.
        trained("eager", 3.0, 1.0, 4.0, precision="tf32"),
    )
    totals = {row["precision"]: row for row in found if row["layer"] == ALL_LAYERS}
    assert totals["fp32"]["total_ms"] == 19.0
    assert (totals["fp16"]["forward_ms"], totals["fp16"]["grad_input_ms"]) == (5.0, None)
    assert totals["fp16"]["total_ms"] is None
    assert totals["tf32"]["total_ms"] is None
    assert [row["layer"] for row in found if row["precision"] == "tf32"] == ["L1", "L2", ALL_LAYERS]


def test_a_total_has_the_interval_of_its_clock_and_a_best_that_of_the_widest() -> None:
    ends = {"latency_low_ms": 8.1, "latency_high_ms": 10.8}
    cases = [trained("eager", 1.0, 3.0, 5.0, **ends), trained("compiled", 2.0, 2.0, 4.0)]
    first = rows(*cases)[0]
    assert (first["low_ms"], first["high_ms"]) == pytest.approx((8.1, 10.8))
    (one, _) = best(*cases)
    assert (one["low_ms"], one["high_ms"]) == pytest.approx((0.9 * one["total_ms"], 1.2 * one["total_ms"]))
