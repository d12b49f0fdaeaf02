"""Build a model as a torch.nn.Module in eval mode, fp32, on the CPU, with its weights from a file or seeded."""

from __future__ import annotations

import contextlib
import math
import pickle
import re
import sys
import time
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeGuard

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.overrides import TorchFunctionMode

from exporters.calls import call, cast, in_eval_mode
from exporters.errors import text_of
from exporters.factories import SEED, make
from exporters.inputs import fixed_batch, input_specs, seeded_inputs
from exporters.libraries import folder_of
from exporters.networks import BUILDERS
from exporters.onnx_files import refuse_pointer
from exporters.source import ModelError, ModelSource, network_of

CALIBRATION_ITEMS = 8
RESIDUAL_SCALE = 0.2
_FAULT_CHARACTERS = 400
"""Longest quotation of torch's list of keys."""
_ALWAYS_UNPACKED, _MOST_COMPRESSED = 2**30, 10
"""Bytes that any compressed checkpoint may unpack to; larger ones, to this multiple of their size."""
_SMALL = 0.01
"""Largest constant scale that hides its branch: deep networks' layer scale starts at 1e-5 or 1e-6; the 0.1 of shallow
networks hides nothing (https://arxiv.org/abs/2103.17239)."""
# erfinv_ turns uniform draws into truncated normals, and is as slow as drawing.
_DRAWS = ("normal_", "uniform_", "kaiming_uniform_", "erfinv_")
_HELD: dict[Path, tuple[nn.Module, float]] = {}
"""Models of `hold` and the seconds that they took, by the file of their state."""
spared_seconds = 0.0
"""Seconds that holding the model saved in `restore`."""
_SHIFT = 0.5
"""Mean bias of a library's batch norms, in standard deviations of their normalized input."""


def build(source: ModelSource) -> nn.Module:
    """Build the module as its code makes it. Raises ModelError."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(SEED)
        model = make(source) if source.factory else structure(source)
    return in_eval_mode(cast(model.to("cpu"), torch.float32))


def load(source: ModelSource) -> nn.Module:
    """Build the model with weights from `source.weights`, else the factory's, else seeded. Raises ModelError."""
    model = build(source) if source.factory else empty(source).to_empty(device="cpu")
    generator = torch.Generator().manual_seed(SEED)
    if source.weights is not None:
        assign(model, read_weights(source.weights, source.key, source.prefix), source.weights)
    elif source.factory is None:
        initialize(model, generator)
        if network := network_of(source):
            items = torch.randn(CALIBRATION_ITEMS, *network.input_shape, generator=generator)
            calibrate(model, lambda: model(items))
    elif source.library is not None and folder_of(source.factory) is None:
        vary_constants(model, generator)
        _calibrate_on_own_inputs(model, source)
    return model


def _calibrate_on_own_inputs(model: nn.Module, source: ModelSource) -> None:
    """Calibrate with the library's inputs, so that weights do not depend on the job; a model may refuse them."""
    try:
        specs = input_specs(replace(source, dimensions={}, varied={}, specs=None))
        inputs = seeded_inputs(specs, fixed_batch(specs) or CALIBRATION_ITEMS)
        calibrate(model, lambda: call(model, specs, [torch.from_numpy(array) for array in inputs]))
    except Exception as error:
        if isinstance(error, MemoryError) or "allocate" in str(error):  # Another process may have enough memory.
            raise
        print(f"model {source.name!r}: batch norms could not be calibrated: {error!r}", file=sys.stderr)


def structure(source: ModelSource) -> nn.Module:
    """Build a canonical network or a single layer on torch's default device."""
    if layer := source.layer:
        return nn.Conv2d(layer.input_shape[0], layer.out_channels, layer.kernel)
    network = network_of(source)
    if network is None:
        raise ModelError(f"model {source.name!r} is an ONNX file ({source.onnx}): no torch module can be made of it")
    if source.options:
        raise source.error(f"a canonical network has no options; leave out {', '.join(source.options)}")
    return BUILDERS[network.family](network.name)


def empty(source: ModelSource) -> nn.Module:
    """Build a canonical network or a layer on the meta device, without data, in eval mode."""
    with torch.device("meta"):
        return structure(source).eval()


def read_weights(path: Path, key: str | None = None, prefix: str = "") -> dict[str, Tensor]:
    """Read the state dict at `key` of a .safetensors or .pt file; strip `prefix` from its names. Raises ModelError."""
    if not path.is_file():
        raise ModelError(f"weights {path}: no such file")
    refuse_pointer(path)
    try:
        content = _opened(path)
    except Exception as error:
        why = ": ".join(filter(None, (type(error).__name__, text_of(error, 200))))
        is_unsafe = re.search("Unsupported (global|class)|TorchScript", str(error))
        if is_unsafe or isinstance(error, pickle.UnpicklingError | LookupError):  # torch advises to unpickle it anyway.
            unsafe = "it holds more than tensors; only tensors are read: others could run code"
            why = unsafe if is_unsafe else "it is damaged, or no checkpoint"
        raise ModelError(
            f"weights {path}: not a readable state dict ({why}); save one by "
            "torch.save(model.state_dict(), path) or safetensors.torch.save_file"
        ) from error
    parts = content if isinstance(content, Mapping) else {}
    if key is not None and key not in parts:
        raise ModelError(
            f"weights {path}: it has no key {key!r}; it has {', '.join(map(str, parts))[:_FAULT_CHARACTERS]}"
        )
    state = content if key is None else parts[key]
    if not _is_state_dict(state):
        names = [str(name) for name, part in parts.items() if key is None and part and _is_state_dict(part)]
        hint = f"add `key: {names[0]}` next to weights" if names else "save one by torch.save(model.state_dict(), path)"
        raise ModelError(f"weights {path}: no state dict of tensors; {hint}")
    return {name.removeprefix(prefix): tensor for name, tensor in state.items()}


def _opened(path: Path) -> Any:
    """Open a file of tensors, mapped if its format allows, so that nothing is read before it is used."""
    if path.suffix == ".safetensors":
        from safetensors.torch import load_file  # Only needed for these files.

        return load_file(path)
    is_mappable = zipfile.is_zipfile(path)  # False for files of torch before 1.6.
    if is_mappable:
        with zipfile.ZipFile(path) as archive:  # torch silently maps compressed tensors (2.13).
            is_mappable = all(member.compress_type == zipfile.ZIP_STORED for member in archive.infolist())
            unpacked, packed = sum(member.file_size for member in archive.infolist()), path.stat().st_size
        if unpacked > max(_ALWAYS_UNPACKED, _MOST_COMPRESSED * packed):
            raise ValueError(f"its {packed:,} bytes unpack to {unpacked:,}")
    return torch.load(path, map_location="cpu", mmap=is_mappable, weights_only=True)


def _is_state_dict(content: object) -> TypeGuard[Mapping[str, Tensor]]:
    return isinstance(content, Mapping) and all(
        isinstance(name, str) and isinstance(value, Tensor) for name, value in content.items()
    )


def assign(model: nn.Module, state: Mapping[str, Tensor], path: Path) -> None:
    """Copy a state dict into the model. Raises ModelError with the misfits."""
    expected = model.state_dict()
    for key in (key for key in expected if key in state):
        if (dtype := state[key].dtype).is_floating_point != expected[key].dtype.is_floating_point:
            raise ModelError(f"weights {path}: {key} is {dtype}, not {expected[key].dtype}; convert and save it")
    try:
        model.load_state_dict(state)
    except RuntimeError as error:
        fault, first = " ".join(str(error).split())[:_FAULT_CHARACTERS], next(iter(expected), "")
        prefixes = [name.removesuffix(first) for name in state if name.endswith(f".{first}")]
        fitting = [prefix for prefix in prefixes if all(f"{prefix}{name}" in state for name in expected)]
        mend = f"; add `prefix: {fitting[0]}` next to weights" if fitting else ""
        raise ModelError(f"weights {path}: keys do not fit the model{mend}: {fault}") from error


def restore(source: ModelSource, state_path: Path) -> nn.Module:
    """Build the model with the state of `cached_state`, mapped if no factory makes the model. Raises ModelError."""
    global spared_seconds
    if entry := _HELD.pop(state_path, None):
        model, spared_seconds = entry
        return model
    with _Undrawn() if source.library else contextlib.nullcontext():
        model = build(source) if source.factory else empty(source)
    # Not `read_weights`: a quantized module's state holds more than tensors.
    model.load_state_dict(_opened(state_path), assign=not source.factory)
    return model


def hold(source: ModelSource, state_path: Path) -> None:
    """Restore a model now for `restore`'s first call in every process forked from this one."""
    start = time.perf_counter()
    model = restore(source, state_path)
    _HELD[state_path] = model, time.perf_counter() - start


def has_images(source: ModelSource, state_path: Path) -> bool:
    """Return whether the held model has inputs or tensors of four or five axes; True if no model is held."""
    if state_path not in _HELD:
        return True
    model, _ = _HELD[state_path]
    ranks = {t.dim() for t in (*model.parameters(), *model.buffers())} | {len(s.shape) for s in source.specs or ()}
    return bool(ranks & {4, 5})


def is_shared(state_path: Path) -> bool:
    """Return True if a held model has tensors in shared memory, which forks would not copy."""
    model, _ = _HELD[state_path]
    tensors = (tensor for tensor in (*model.parameters(), *model.buffers()) if tensor.layout == torch.strided)
    return any(tensor.is_shared() for tensor in tensors)


class _Undrawn(TorchFunctionMode):
    """Skip random initialization, which takes 15 s for a small Qwen2: a state replaces all parameters."""

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        drawn = args[0] if args else (kwargs or {}).get("tensor")  # torch.nn.init's name for it.
        if getattr(function, "__name__", "") in _DRAWS and isinstance(drawn, nn.Parameter):
            return drawn
        return function(*args, **(kwargs or {}))


@torch.no_grad()
def initialize(model: nn.Module, generator: torch.Generator) -> None:
    """Initialize by fan-in as He et al., which keeps the activations' scale from layer to layer without batch
    normalization (https://arxiv.org/abs/1502.01852, equation 10).

    Biases and affine parameters are drawn too: else no parity figure would see a runtime that dropped them. Residual
    branches start small, as trained networks' do: at full scale a seeded deep network is chaotic, with ResNet-152 in
    fp32 3e-4 from fp64 and 0.14 with weights in fp16; at a fifth of the scale that is 3e-6 and 0.004.
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
    """Redraw parameters that start as one constant: scales at 1, biases and last layers at 0, layer scale at 1e-6.

    Otherwise no parity figure would show a bias that a runtime dropped, or a residual branch that it computed wrongly.
    Biases have a tenth of their layer's output scale: a fixed 0.1 would hide the input of timm's BEiT-B/16, whose
    logits are 0.0005 before the last bias. Biases of batch norms are drawn around 0.5: around 0, activations clip half
    of their inputs and amplify rounding (timm's ConvMixer-768/32 in fp16 is 0.50 off, and 0.19 around 0.5).
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
    """Return the scale of a layer's output for inputs of scale 1; 1 for a layer that only scales."""
    weight = getattr(owner, "weight", None)
    if not isinstance(weight, Tensor) or weight.ndim < 2:
        return 1.0
    return float(weight.square().mean().sqrt()) * math.sqrt(weight[0].numel())


@torch.no_grad()
def calibrate(model: nn.Module, run: Callable[[], object]) -> None:
    """Set the running statistics of every new batch normalization from the batch that `run` gives to the model.

    With the initial statistics (mean 0, variance 1) a seeded deep network in eval mode doubles its activations in every
    block and overflows fp16: ResNet-152 reaches 3e8.
    """
    layers = [module for module in model.modules() if isinstance(module, _BatchNorm) and _is_new(module)]
    if not layers:
        return
    momenta = [layer.momentum for layer in layers]
    for layer in layers:
        layer.momentum = None  # A cumulative average takes the statistics of the only batch.
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
