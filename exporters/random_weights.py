"""Draw the weights of models that bring none of their own, so that every parity figure sees all of a model."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

RESIDUAL_SCALE = 0.2
_SMALL = 0.01
"""Up to here a constant scale hides its branch, as layer scale of deep networks does, which starts at 1e-5 or 1e-6
(https://arxiv.org/abs/2103.17239); the 0.1 of shallow ones does not."""

_SHIFT = 0.5
"""The mean of a library's batch norms' biases, in standard deviations of what they shift."""


@torch.no_grad()
def initialize(model: nn.Module, generator: torch.Generator) -> None:
    """He initialization by fan-in, which keeps the activations' scale from layer to layer without batch normalization
    (https://arxiv.org/abs/1502.01852, equation 10).

    Biases and batch normalization's affine parameters are drawn too, around 0 and 1: a runtime that dropped or
    mixed them up would otherwise go unnoticed by every parity figure.

    Residual branches start small, as trained networks' do (https://arxiv.org/abs/1706.02677 starts them at 0). At full
    scale a seeded deep network is chaotic and no parity figure would mean anything: fp32 ResNet-152 is 3e-4 from fp64,
    and 0.14 once its weights are rounded to fp16; at a fifth of the scale that is 3e-6 and 0.004.
    """
    for module in model.modules():
        if isinstance(module, nn.Conv2d | nn.Linear):
            fan_in = module.weight[0].numel()
            module.weight.normal_(0, math.sqrt(2 / fan_in), generator=generator)
            if module.bias is not None:
                module.bias.normal_(0, 0.1, generator=generator)
        elif isinstance(module, nn.BatchNorm2d):
            module.weight.uniform_(0.75, 1.25, generator=generator)
            module.bias.normal_(0, 0.1, generator=generator)
            module.reset_running_stats()
    for module in model.modules():
        if branch_end := getattr(module, "branch_end", None):
            module.get_submodule(branch_end).get_parameter("weight").mul_(RESIDUAL_SCALE)


@torch.no_grad()
def vary_constants(model: nn.Module, generator: torch.Generator) -> None:
    """Draw what a library starts as one constant: scales at 1, biases and last layers at 0, layer scale at 1e-6.

    Else a bias that a runtime dropped, and a residual branch that it computed wrongly, would go unnoticed by every
    parity figure, and a model whose last layer is 0 would have only zeros to compare. Trained weights are no constants.
    A vector that is no bias counts as a scale, a class token too. What is not trained stays.

    Biases are a tenth of what their layer's weights give. At a fixed 0.1 they hide the input in networks of small
    weights: the logits of timm's BEiT-B/16 are 0.0005 before the last bias.

    Biases of batch norms are drawn around 0.5. Around 0 an activation bends about half of its inputs, so that deep
    networks amplify rounding: with weights and activations rounded to fp16 the outputs of timm's ConvMixer-768/32 are
    0.50 off, Inception-V3's 0.071 and SelecSLS-42b's 0.051; around 0.5 they are 0.19, 0.010 and 0.005 off.
    """
    owners = {id(bias): module for module in model.modules() if (bias := getattr(module, "bias", None)) is not None}
    for name, parameter in model.named_parameters():
        if not parameter.numel() or not parameter.requires_grad or (parameter != parameter.flatten()[0]).any():
            continue
        value, is_bias = float(parameter.flatten()[0]), "bias" in name.rpartition(".")[2]
        is_scale = not is_bias and parameter.squeeze().ndim < 2
        if is_scale and (value == 1 or abs(value) <= _SMALL):
            parameter.uniform_(0.75, 1.25, generator=generator).mul_(value if value == 1 else RESIDUAL_SCALE)
        elif value == 0:
            owner = owners.get(id(parameter))
            mean = _SHIFT if isinstance(owner, _BatchNorm) else 0.0
            parameter.normal_(mean, 0.1 * _gain(owner) if is_bias else 0.02, generator=generator)


def _gain(owner: nn.Module | None) -> float:
    """What a layer's weights make of inputs at 1; 1 for a layer that only scales, and without one."""
    weight = getattr(owner, "weight", None)
    if not isinstance(weight, torch.Tensor) or weight.ndim < 2:
        return 1.0
    return float(weight.square().mean().sqrt()) * math.sqrt(weight[0].numel())


@torch.no_grad()
def calibrate(model: nn.Module, run: Callable[[], object]) -> None:
    """Set the running statistics of each batch normalization that has none yet to those of the batch that `run` gives
    to the model.

    With the initial statistics (mean 0, variance 1) a seeded deep network in eval mode doubles its activations in every
    block and overflows fp16: ResNet-152 reaches 3e8.
    """
    layers = [module for module in model.modules() if isinstance(module, _BatchNorm) and _is_new(module)]
    if not layers:
        return
    momenta = [layer.momentum for layer in layers]
    for layer in layers:
        layer.momentum = None  # a cumulative average: of one batch it is that batch's
        layer.train()
    try:
        run()
    except BaseException:
        for layer in layers:
            layer.reset_running_stats()
        raise
    finally:
        for layer, momentum in zip(layers, momenta, strict=True):
            layer.momentum = momentum
            layer.eval()


def _is_new(layer: _BatchNorm) -> bool:
    mean, variance = layer.running_mean, layer.running_var
    return mean is not None and variance is not None and not mean.any() and bool((variance == 1).all())
