"""The catalog's rows say what the networks are."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from exporters.build_model import structure
from exporters.catalog import CATALOG, network_of
from exporters.source import ModelError, ModelSource

PUBLISHED_PARAMETERS = {
    "alexnet": 60_965_224,
    "alexnet-owt": 61_100_840,
    "vgg11": 132_863_336,
    "vgg16": 138_357_544,
    "vgg19": 143_667_240,
    "googlenet": 6_998_552,
    "resnet18": 11_689_512,
    "resnet34": 21_797_672,
    "resnet50": 25_557_032,
    "resnet101": 44_549_160,
    "resnet152": 60_192_808,
}


@pytest.mark.parametrize("name", CATALOG)
def test_row_describes_its_network(name: str) -> None:
    row = CATALOG[name]
    with torch.device("meta"):
        model = structure(ModelSource(name)).eval()
        with FlopCounterMode(display=False) as counter:
            logits = model(torch.empty(2, *row.input_shape))
    assert logits.shape == (2, 1000)
    assert sum(parameter.numel() for parameter in model.parameters()) == row.parameters
    assert row.parameters == PUBLISHED_PARAMETERS.get(name, row.parameters)
    assert counter.get_total_flops() == 2 * 2 * row.multiply_adds  # two operations each, two items


def test_overfeat_counts_by_hand() -> None:
    """The paper's Table 1 layer by layer; its Table 4 says 145 million parameters and 2810 million connections."""
    convolutions = [(3, 96, 11, 56), (96, 256, 5, 24), (256, 512, 3, 12), (512, 1024, 3, 12), (1024, 1024, 3, 12)]
    linear = [(1024 * 6 * 6, 3072), (3072, 4096), (4096, 1000)]
    parameters = sum(i * o * k * k + o for i, o, k, _ in convolutions) + sum(i * o + o for i, o in linear)
    multiply_adds = sum(i * o * k * k * s * s for i, o, k, s in convolutions) + sum(i * o for i, o in linear)
    row = CATALOG["overfeat"]
    assert (row.parameters, row.multiply_adds) == (parameters, multiply_adds)
    assert row.parameters // 10**6 == 145
    assert row.multiply_adds == pytest.approx(2810e6, rel=0.01)


def test_resnet200_counts_by_hand() -> None:
    """Block by block from fb.resnet.torch's preresnet.lua: no biases but the classifier's, batch normalization (2 per
    channel) before every convolution but the first block's first, projections without it, and one more at the end."""
    parameters = 3 * 64 * 49 + 2 * 64
    multiply_adds = 3 * 64 * 49 * 112**2
    channels = 64
    for stage, count in enumerate((3, 24, 36, 3)):
        width, size = 64 * 2**stage, 56 // 2**stage
        for block in range(count):
            first = block == 0
            convolutions = channels * width + width * width * 9 + width * 4 * width
            projection = channels * width * 4 if first else 0
            preactivation = 0 if first and stage == 0 else 2 * channels
            parameters += convolutions + projection + preactivation + 2 * width + 2 * width
            # The first 1x1 convolution of stages 2 to 4 still sees the larger input: the stride is on the 3x3.
            finer = 4 if first and stage > 0 else 1
            multiply_adds += (convolutions + projection + (finer - 1) * channels * width) * size**2
            channels = width * 4
    parameters += 2 * channels + channels * 1000 + 1000
    multiply_adds += channels * 1000
    row = CATALOG["resnet200"]
    assert (row.parameters, row.multiply_adds) == (parameters, multiply_adds)


def test_googlenet_torch_counts_by_hand() -> None:
    """Layer by layer from soumith/inception.torch's googlenet.lua: inputs, the table's widths, and the size, which its
    unpadded pooling after 3b makes 13."""
    modules = [
        (192, 64, (96, 128), (16, 32), 32, 28),
        (256, 128, (128, 192), (32, 96), 64, 28),
        (480, 192, (96, 204), (16, 48), 64, 13),
        (508, 160, (112, 224), (24, 64), 64, 13),
        (512, 128, (128, 256), (24, 64), 64, 13),
        (512, 112, (144, 288), (32, 64), 64, 13),
        (528, 256, (160, 320), (32, 128), 128, 13),
        (832, 256, (160, 320), (48, 128), 128, 7),
        (832, 384, (192, 384), (48, 128), 128, 7),
    ]
    convolutions = [(3, 64, 7, 112), (64, 64, 1, 56), (64, 192, 3, 56)]
    for inputs, one, three, five, projection, size in modules:
        convolutions += [(inputs, width, 1, size) for width in (one, three[0], five[0], projection)]
        convolutions += [(*three, 3, size), (*five, 5, size)]
    row = CATALOG["googlenet-torch"]
    assert row.parameters == sum(i * o * k * k + o for i, o, k, _ in convolutions) + 1024 * 1008 + 1008
    assert row.multiply_adds == sum(i * o * k * k * s * s for i, o, k, s in convolutions) + 1024 * 1008
    assert round(row.multiply_adds / 1e9, 3) == 1.509


def test_googlenet_torch_cuts_off_all_but_the_1000_classes() -> None:
    model = structure(ModelSource("googlenet-torch"))
    classifier = model.get_submodule("fc")
    classifier.weight = torch.nn.Parameter(torch.zeros(1008, 1024))
    classifier.bias = torch.nn.Parameter(torch.arange(1008.0))
    assert model(torch.zeros(1, 3, 224, 224)).tolist() == [list(range(1, 1001))]


def test_auxiliary_heads_are_the_papers() -> None:
    with pytest.raises(ModelError, match="'googlenet-torch' has no auxiliary classifiers; leave out auxiliary"):
        structure(ModelSource("googlenet-torch", options={"auxiliary": True}))


def test_auxiliary_heads_train_and_do_not_infer() -> None:
    with torch.device("meta"):
        model = structure(ModelSource("googlenet", options={"auxiliary": True}))
        x = torch.empty(2, 3, 224, 224)
        trained, inferred = model.train()(x), model.eval()(x)
    # 128 1x1 filters and two linear layers a head: Caffe's train_val.prototxt.
    heads = sum(i * 128 + 128 + 2048 * 1024 + 1024 + 1024 * 1000 + 1000 for i in (512, 528))
    assert sum(parameter.numel() for parameter in model.parameters()) == 6_998_552 + heads
    assert [tuple(logits.shape) for logits in trained] == [(2, 1000)] * 3
    assert inferred.shape == (2, 1000)


def test_unknown_name_suggests_a_known_one() -> None:
    with pytest.raises(ModelError, match=r"unknown model 'resnet5o'; did you mean 'resnet50'"):
        network_of(ModelSource("resnet5o"))


def test_importing_catalog_and_inputs_leaves_torch_out() -> None:
    code = (
        "import sys, exporters.catalog, exporters.inputs, exporters.cache, exporters.onnx_export\n"
        "from exporters.weights import source_key\n"
        "from exporters.source import ModelSource\n"
        "assert len(source_key(ModelSource('resnet50'))) == 64\n"
        "assert not {'torch', 'onnx', 'onnxruntime'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
