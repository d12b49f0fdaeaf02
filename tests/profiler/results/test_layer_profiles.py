"""Layers by case: the first replicate, put next to other variants' by the nodes that some runtime runs as one."""

from __future__ import annotations

from typing import Any

import handmade
import polars as pl
import pytest
from handmade import layer

from profiler.results.layer_profiles import Profiled, groups, names, profiled, together

KEYS = ["model", "variant", "setting"]


EAGER = Profiled({"engine": "eager", "variant": "mine"}, handmade.EAGER)
ORT = Profiled({"engine": "ort", "variant": "ort"}, handmade.ORT)


def test_groups_are_as_fine_as_every_variant_tells_nodes_apart() -> None:
    found = groups([EAGER, ORT])
    assert [group.nodes for group in found] == [
        ["node_Conv_1", "node_relu"],
        ["node_add"],
        ["node_reshape"],
        ["node_linear"],
    ]
    assert [group.ms("mine") for group in found] == [3.0, 0.25, 0.0, 0.75]
    assert [group.ms("ort") for group in found] == [1.5, 0.2, 0.0, 0.7]
    assert [group.nodes for group in groups([EAGER])] == [
        ["node_Conv_1"],
        ["node_relu"],
        ["node_add"],
        ["node_linear"],
    ]


def test_of_replicates_the_first_is_taken_and_of_settings_each() -> None:
    rows = [
        ("a", "eager", "", 1),
        ("b", "eager", "optimizer=sgd", 0),
        ("c", "eager", "", 0),
        ("d", "ort", "", 0),
        ("without-layers", "compiled", "", 0),
    ]
    frame = pl.DataFrame(
        [
            {"run_id": "r", "case_id": id_, "model": "net", "variant": variant, "setting": setting, "replicate": number}
            for id_, variant, setting, number in rows
        ]
    )
    measured = [{"run_id": "r", "case_id": id_, "order": n, "ms": 1.0 + n} for id_ in "dcba" for n in (1, 0)]
    found = profiled(frame, pl.LazyFrame(measured), KEYS)
    assert [case.row["case_id"] for case in found] == ["b", "c", "d"]
    assert [row["ms"] for row in found[0].layers] == [1.0, 2.0]
    assert found[0].ms == 3.0
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
def test_modules_are_named_by_what_they_have_in_common(layers: list[dict[str, Any]], said: str) -> None:
    together = [{**one, "nodes": ["node_Conv"]} for one in layers]
    found = groups([ORT, Profiled({"engine": "eager", "variant": "mine"}, together)])
    assert {group.name: group.modules for group in found if group.modules} == {"Conv": said}


def test_where_no_layers_are_called_by_modules_none_are_named() -> None:
    assert not ORT.names_modules
    assert {group.modules for group in groups([ORT])} == {""}


def test_nodes_go_without_the_exporters_prefix() -> None:
    assert names(["node_Conv_754", "relu"]) == "Conv_754 + relu"
