"""Layers: variants matched by the nodes that some runtime runs as one, and single layers with the best of each pass."""

from __future__ import annotations

from typing import Any

import handmade
import polars as pl
import pytest
from handmade import layer

from profiler.results.layers import Profiled, layer_rows, match_layers, profiled, together

GFLOP = 1e9
EAGER = Profiled({"engine": "eager", "variant": "mine"}, handmade.EAGER)
ORT = Profiled({"engine": "ort", "variant": "ort"}, handmade.ORT)


def test_layers_are_as_fine_as_every_variant_tells_nodes_apart():
    found = match_layers([EAGER, ORT])
    names = ["Conv_1 + relu", "add", "reshape", "linear", "no exported node"]
    assert [layer.nodes for layer in found] == names
    assert [layer.ms.get("mine", 0.0) for layer in found] == [3.0, 0.25, 0.0, 0.75, 0.0]
    assert [layer.ms.get("ort", 0.0) for layer in found] == [1.5, 0.2, 0.0, 0.7, 0.1]
    assert [layer.nodes for layer in match_layers([EAGER])] == ["Conv_1", "relu", "add", "linear"]
    assert not any(layer.modules for layer in match_layers([ORT]))


def test_of_replicates_the_first_is_taken_and_of_settings_each():
    rows = [
        ("a", "eager", "", 1),
        ("b", "eager", "optimizer=sgd", 0),
        ("c", "eager", "", 0),
        ("d", "ort", "", 0),
        ("without-layers", "compiled", "", 0),
    ]
    keys = ["case_id", "variant", "setting", "replicate"]
    frame = pl.DataFrame(rows, keys, orient="row").with_columns(run_id=pl.lit("r"), model=pl.lit("net"))
    measured = [{"run_id": "r", "case_id": id_, "order": n, "ms": 1.0 + n} for id_ in "dcba" for n in (1, 0)]
    found = profiled(frame, pl.LazyFrame(measured), ["model", "variant", "setting"])
    assert [case.row["case_id"] for case in found] == ["b", "c", "d"]
    assert [row["ms"] for row in found[0].layers] == [1.0, 2.0]
    alike = together(found, ["model", "setting"])
    assert [[case.row["case_id"] for case in cases] for cases in alike] == [["b"], ["c", "d"]]


@pytest.mark.parametrize(
    ("layers", "said"),
    [
        ([layer("block.conv", "conv2d", 1.0)], "block.conv"),
        ([layer("block.conv", "conv2d", 1.0), layer("block.bn", "bn", 1.0)], "block: conv, bn"),
        ([layer("block.conv", "conv2d", 1.0), layer("block", "relu_", 1.0)], "block: conv, relu"),
        ([layer("a", "conv2d", 1.0), layer("b", "relu_", 1.0)], "a, b"),
    ],
)
def test_modules_are_named_by_what_they_have_in_common(layers, said):
    own = [{**one, "nodes": ["node_Conv"]} for one in layers]
    found = match_layers([ORT, Profiled({"engine": "eager", "variant": "mine"}, own)])
    assert {layer.nodes: layer.modules for layer in found if layer.modules} == {"Conv": said}


def case(variant: str, pass_: str = "training", **more: Any) -> dict[str, Any]:
    return {
        "model_kind": "layer", "model": "L1", "machine": "a-gpu", "device": "cuda", "engine": variant.partition("-")[0],
        "variant": variant, "pass": pass_, "precision": "fp32", "batch_size": 10, "replicate": 0, "status": "ok",
        "warnings": [],
        "flops_per_item": 3 * GFLOP if pass_ == "training" else GFLOP, **more,
    }  # fmt: skip


def trained(variant: str, *parts: float, gpu: tuple[float, ...] = (), **more: Any) -> dict[str, Any]:
    """Make a measured training pass: its three parts by events, and by gated ones if `gpu` has them."""
    names = ("forward", "grad_input", "grad_weight")
    found = {f"{name}_ms": ms for name, ms in zip(names, parts, strict=True)}
    found |= {f"gpu_{name}_ms": ms for name, ms in zip(names, gpu, strict=False)}
    found |= {"gpu_ms": sum(gpu)} if gpu else {}
    return case(variant, clock="event", latency_ms=sum(parts), peak_memory_mib=100.0, **{**found, **more})


def inferred(variant: str, ms: float, **more: Any) -> dict[str, Any]:
    return case(variant, "inference", clock="event", latency_ms=ms, peak_memory_mib=40.0, **more)


def failed(variant: str, status: str, reason: str, **more: Any) -> dict[str, Any]:
    return case(variant, status=status, reason=reason, flops_per_item=None, **more)


def rows(*cases: dict[str, Any]) -> list[dict[str, Any]]:
    return layer_rows(handmade.frame(cases)).to_dicts()


NO_TRAINING = failed("ort", "unsupported", "ort has no training")
NO_ROOM = failed("eager", "oom", "CUDA out of memory. Tried to allocate 3 GiB")
THREE = [trained("eager", ms, 3.0, 5.0, replicate=i) for i, ms in enumerate((1.0, 2.0, 9.0))]


@pytest.mark.parametrize(
    ("cases", "clock", "parts", "total", "status", "reason"),
    [
        ([trained("eager", 2.0, 3.0, 5.0, gpu=(1.0, 2.0, 4.0))], "gpu", [1.0, 2.0, 4.0], 7.0, "ok", None),
        # On one clock even where a part of it was gated.
        ([trained("eager", 2.0, 3.0, 5.0, gpu=(1.0, 2.0))], "event", [2.0, 3.0, 5.0], 10.0, "ok", None),
        ([*THREE, failed("eager", "crashed", "it died", replicate=3)], "event", [2.0, 3.0, 5.0], 10.0, "ok", None),
        ([NO_TRAINING, inferred("ort", 4.0, gpu_ms=2.0)], "gpu", [2.0, None, None], None, "unsupported",
         "ort has no training"),
        ([inferred("ort", 4.0)], "event", [4.0, None, None], None, "ok", None),
        ([inferred("eager", 1.0), trained("eager", 2.0, 3.0, 5.0)], "event", [2.0, 3.0, 5.0], 10.0, "ok", None),
        ([NO_ROOM, inferred("eager", 6.0)], "event", [6.0, None, None], None, "oom", NO_ROOM["reason"]),
        ([NO_ROOM], None, [None] * 3, None, "oom", NO_ROOM["reason"]),
        ([case("eager", clock="event", latency_ms=0.02)], "event", [None] * 3, 0.02, "ok", None),
    ],
)  # fmt: skip
def test_a_layer_has_the_parts_of_one_clock_and_says_what_is_missing(cases, clock, parts, total, status, reason):
    (row,) = rows(*cases)
    assert (row["clock"], row["total_ms"], row["status"], row["reason"]) == (clock, total, status, reason)
    assert [row[f"{part}_ms"] for part in ("forward", "grad_input", "grad_weight")] == parts
    if None not in parts:
        # Ten items of a GFLOP in each part.
        assert row["forward_tflops"] == pytest.approx(10 * GFLOP / (parts[0] or 0) / 1e9)
        assert row["total_tflops"] == pytest.approx(30 / (total or 0))
        assert row["backward_ms"] == (parts[1] or 0) + (parts[2] or 0)
        assert row["peak_memory_mib"] == 100.0


def test_networks_are_no_layers_and_what_tells_rows_apart_keeps_them_apart():
    network = handmade.frame([{**trained("eager", 1.0, 2.0, 3.0), "model_kind": "canonical"}])
    assert layer_rows(network).is_empty()
    others = ({"precision": "fp16"}, {"batch_size": 1}, {"machine": "b-gpu"}, {"machine": None})
    cases = [trained(variant, 1.0, 2.0, 3.0) for variant in ("eager", "eager-tuned")]
    cases += [trained("eager", 1.0, 2.0, 3.0, **other) for other in others]
    assert [row["total_ms"] for row in rows(*cases)] == [6.0] * len(cases)


def test_a_total_has_the_interval_of_its_clock():
    ends = {"latency_low_ms": 8.1, "latency_high_ms": 10.8}
    (row,) = rows(trained("eager", 1.0, 3.0, 5.0, **ends, **handmade.KNOWN))
    assert (row["low_ms"], row["high_ms"]) == pytest.approx((8.1, 10.8))
