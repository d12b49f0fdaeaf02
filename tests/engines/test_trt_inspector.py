"""Engines as TensorRT 10 and 11 describe them: their layers, the types that these compute in, and what is not told."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from engines.trt_reports import EngineLayer, compute_types, read_layers, summarize

pytestmark = pytest.mark.slow

HALF = "Channel major FP16 format where channel % 8 == 0"
FLOAT = "Channel major FP32 format where channel % 4 == 0"


def tensor(name: str, words: str, **more: Any) -> dict[str, Any]:
    return {"Name": name, "Location": "Device", "Dimensions": [16, 64, 56, 56], "Format/Datatype": words, **more}


CONVOLUTION: dict[str, Any] = {
    "Name": "node_conv2d + node_relu",
    "LayerType": "CaskConvolution",
    "Inputs": [tensor("x", HALF)],
    "Outputs": [tensor("relu", HALF)],
    "ParameterType": "Convolution",
    "Kernel": [3, 3],
    "Weights": {"Type": "Half", "Count": 36864},
    "Bias": {"Type": "Half", "Count": 64},
    "Activation": "RELU",
    "TacticName": "sm80_xmma_fprop_implicit_gemm_f16f16_f16f32_f32_nhwckrsc_nhwc_tilesize128x64x32_stage4_g1_t1r3s3",
    "TacticValue": "0x27b316f52c109002",
    "StreamId": 0,
    "Metadata": "[ONNX Layer: node_conv2d]\x1e[ONNX Layer: node_relu]",
}
REFORMAT: dict[str, Any] = {
    "Name": "Reformatting CopyNode for Input Tensor 0 to node_conv2d + node_relu",
    "LayerType": "Reformat",
    "Inputs": [tensor("data", "Row major linear FP32")],
    "Outputs": [tensor("x", HALF)],
    "Origin": "REFORMAT",
    "TacticValue": "0x00000000000003e8",
    "Metadata": "",
}
GEMM: dict[str, Any] = {
    "Name": "node_linear_myl0_7",
    "LayerType": "gemm",
    "Inputs": [{"Name": "pooled", "Dimensions": [16, 512], "Format/Datatype": "Half"}],
    "Outputs": [{"Name": "y", "Dimensions": [16, 1000], "Format/Datatype": "Half"}],
    "TacticName": "sm80_xmma_gemm_f16f16_f16f16_f16_nn_n_tilesize32x32x64_stage6_warpsize2x2x1_tensor16x8x16",
    "Metadata": "[ONNX Layer: node_linear][ONNX Layer: node_add]",
}
POINTWISE: dict[str, Any] = {
    "Name": "__myl_AddMeanMul_myl0_3",
    "LayerType": "kgen",
    "Inputs": [{"Name": "a", "Dimensions": [16, 512], "Format/Datatype": "Half"}],
    "Outputs": [{"Name": "pooled", "Dimensions": [16, 512], "Format/Datatype": "Half"}],
    "TacticName": "__myl_AddMeanMul_0xf2543c36ff9f104bbb1655b0183afb47",
    "Metadata": "[ONNX Layer: node_add_1]\x1e[ONNX Layer: node_mean]",
}
ENGINE_10 = {"Layers": [REFORMAT, CONVOLUTION, POINTWISE, GEMM], "Bindings": ["data", "y"]}
PRODUCTS = ["node_conv2d", "node_linear"]


def described(*layers: Any) -> list[EngineLayer]:
    return read_layers(json.dumps({"Layers": list(layers), "Bindings": []}))


def changed(layer: dict[str, Any], **fields: Any) -> dict[str, Any]:
    """The layer with other fields; without those that are None."""
    return {key: value for key, value in {**layer, **fields}.items() if value is not None}


def test_layers_of_tensorrt_10():
    layers = read_layers(json.dumps(ENGINE_10))
    assert [layer.kind for layer in layers] == ["Reformat", "CaskConvolution", "kgen", "gemm"]
    assert [layer.compute_type for layer in layers] == [None, "float16", None, "float16"]
    assert [layer.nodes for layer in layers] == [
        (),
        ("node_conv2d", "node_relu"),
        ("node_add_1", "node_mean"),
        ("node_linear", "node_add"),
    ]
    assert summarize(layers, PRODUCTS) == {
        "compute_types": {"float16": 2},
        "layer_types": {"Reformat": 1, "CaskConvolution": 1, "kgen": 1, "gemm": 1},
        "tf32_kernels": 0,
    }


def test_layers_of_tensorrt_11_keep_type_and_format_apart():
    split = {
        "Name": "x",
        "Dimensions": [1, 64],
        "Format": "Row major linear FP32 format (kLINEAR)",
        "Datatype": "BFloat16",
    }
    engine = {
        "Layers": [changed(GEMM, Constants=[split], Outputs=[{**split, "Datatype": "Half"}], TacticName="mystery")],
        "I/O Tensors": [{"Name": "x", "IOMode": "Input", "DataType": "Float", "Dimensions": [1, 64]}],
    }
    (layer,) = read_layers(json.dumps(engine))
    assert layer.compute_type == "bfloat16"


def test_an_engine_that_keeps_names_alone_proves_nothing():
    layers = read_layers(json.dumps({"Layers": ["node_conv2d + node_relu", "node_linear"]}))
    assert [layer.name for layer in layers] == ["node_conv2d + node_relu", "node_linear"]
    assert summarize(layers, PRODUCTS)["compute_types"] == {"unknown": 2}
    assert summarize(layers, PRODUCTS)["layer_types"] == {"unknown": 2}


@pytest.mark.parametrize("text", ["", "{", "[]", '{"Bindings": []}', '{"Layers": "none"}'])
def test_what_is_no_description_is_refused(text):
    with pytest.raises(ValueError, match=r"Layers|JSON|Expecting"):
        read_layers(text)


@pytest.mark.parametrize(
    ("tactic", "expected"),
    [
        ("sm80_xmma_fprop_implicit_gemm_f16f16_f16f16_f16_nhwckrsc_nhwc_tilesize128x64x32", "float16"),
        ("sm80_xmma_fprop_implicit_gemm_interleaved_i8i8_i8i32_f32_nchw_vect_c_32kcrs_vect_c_32", "int8"),
        ("sm80_xmma_fprop_implicit_gemm_f32f32_tf32f32_f32_nhwckrsc_nhwc", "float32"),
        ("sm80_xmma_fprop_implicit_gemm_f32f32_f32f32_f32_nhwckrsc_nchw", "float32"),
        ("sm89_xmma_gemm_e4m3e4m3_e4m3f32_bf16_tn_n_tilesize64x64x64", "float8"),
        ("sm80_xmma_fprop_implicit_gemm_interleaved_i8f32_i8i32_f32_nchw_vect_c_32kcrs_vect_c_32", "int8"),
        ("sm90_xmma_fprop_implicit_gemm_f16_f16_f32_nhwckrsc_nhwc", "float16"),
        ("nvjet_hsh_128x64_64x6_1x2_h_bz_coopA_TNT", "float16"),
        ("nvjet_sm100_tst_128x256_64x4_2x1_2cta_h_bz_TNT", "bfloat16"),
        ("nvjet_qqtst_128x128_128x6_1x2_h_bz_TNT", "float8"),
    ],
)
def test_a_kernels_name_says_what_its_operands_are(tactic, expected):
    # Whatever the tensors are: the cast to the operands may be part of the kernel.
    (layer,) = described(changed(CONVOLUTION, TacticName=tactic, Inputs=[tensor("x", "Row major linear Int64")]))
    assert layer.compute_type == expected
    assert layer.tf32 == ("tf32" in tactic)


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"TacticName": "ampere_h16816cudnn_256x64_ldg8_relu_exp_small_nhwc_tn_v1"}, "float16"),
        ({"TacticName": None, "Weights": {"Type": "Float", "Count": 9}}, "float32"),
        ({"TacticName": None, "Weights": {"Type": "Int8", "Count": 9}, "Inputs": [tensor("x", FLOAT)]}, "int8"),
        ({"TacticName": None, "Weights": None, "Constants": [{"Name": "w", "Type": "Half"}]}, "float16"),
        ({"TacticName": None, "Weights": None, "Constants": [tensor("s", "Int64"), tensor("w", HALF)]}, "float16"),
        ({"TacticName": None, "Weights": None, "Constants": [tensor("w", "Unknown format")]}, "unknown"),
        # A cast may be part of the layer, so what goes in is no contradiction to what was asked for.
        ({"TacticName": None, "Weights": None, "Inputs": [tensor("x", FLOAT)]}, "unknown"),
    ],
    ids=["opaque name", "float weights", "int8 weights", "constant", "second", "odd constant", "input"],
)
def test_without_a_kernel_that_tells_weights_and_constants_do(fields, expected):
    (layer,) = described(changed(CONVOLUTION, **fields))
    assert layer.compute_type == expected


@pytest.mark.parametrize(
    ("kind", "tactic", "computes"),
    [
        ("CaskConvolution", "", True),
        ("CaskConvActPool", "", True),
        ("MatrixMultiply", "", True),
        ("correlation", "", True),
        ("fusion", "sm80_xmma_gemm_f16f16_f16f32_f32_tn_n_tilesize64x64x64", True),
        ("kgen", "__myl_FcAddRelu_0x12ab", True),
        ("kgen", "_gemm_mha_v2_0x12ab", True),
        ("kgen", "__myl_ReplCastConcMove_0x12ab", False),
        ("CaskPooling", "sm50_xmma_pooling_fw_4d_FP16FP32NHWC_Average_FastDiv_CAlign4", False),
        ("Convolution", "", True),
        ("PointWiseV2", "0x0000000000000001", False),
        ("Myelin", "", False),
    ],
)
def test_which_layers_convolve_or_multiply(kind, tactic, computes):
    (layer,) = described(changed(GEMM, LayerType=kind, TacticName=tactic))
    assert (layer.compute_type is not None) == computes


def test_products_in_an_opaque_layer_are_unknown():
    foreign = changed(
        POINTWISE, Name="{ForeignNode[node_linear...node_add]}", LayerType="Myelin", TacticName="", Metadata=""
    )
    assert compute_types(described(CONVOLUTION, foreign), PRODUCTS) == {"float16": 1, "unknown": 1}
    assert compute_types(described(foreign), PRODUCTS) == {"unknown": 2}


def test_an_engine_without_origins_is_taken_at_its_layers_word():
    layers = described(changed(CONVOLUTION, Metadata=""), changed(GEMM, Metadata=None))
    assert compute_types(layers, PRODUCTS) == {"float16": 2}


REAL = json.loads((Path(__file__).parents[1] / "data" / "tensorrt-8.5-layers.json").read_text())
"""Layers of ResNet-18 at batch 4, as TensorRT 8.5.3.1 described them on an H200."""


def test_layers_of_tensorrt_8_5_have_types_and_nodes():
    def read(precision: str) -> list[EngineLayer]:
        nodes = {"node_Conv_292", "node_relu", "node_max_pool2d", "node_linear"}
        return read_layers(json.dumps({"Layers": REAL[precision]}), nodes)

    layers = read("fp16")
    assert [layer.compute_type for layer in layers] == [None, "float16", None, "float16", "float16"]
    assert [layer.nodes for layer in layers[:3]] == [(), ("node_Conv_292", "node_relu"), ("node_max_pool2d",)]
    (tf32,) = read("tf32")
    assert (tf32.compute_type, tf32.tf32) == ("float32", True)
    quantized = read("int8")
    fused = ("node_Conv_292", "node_relu", "node_max_pool2d")
    assert quantized[1] == EngineLayer(REAL["int8"][1]["Name"], "CaskConvActPool", fused, "int8")
    assert {layer.compute_type for layer in quantized} == {None, "int8"}
    assert any("node_linear" in layer.nodes for layer in quantized)
