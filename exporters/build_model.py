"""Build a model as a torch.nn.Module in eval mode, fp32, on the CPU."""

from __future__ import annotations

import importlib
import inspect
import pickle
import re
import sys
import zipfile
from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeGuard

import torch
from torch import Tensor, nn

from exporters.calls import call
from exporters.catalog import CLASSES, network_of
from exporters.errors import closest, nearest, sentence, text_of
from exporters.inputs import fixed_batch, input_specs, seeded_inputs
from exporters.libraries.catalog import build_from_library, folder_of
from exporters.packages import library_folders, spec_of
from exporters.random_weights import calibrate, initialize, vary_constants
from exporters.single_layers import Conv2d
from exporters.source import ModelError, ModelSource

SEED = 0
CALIBRATION_ITEMS = 8
_GLOBAL = re.compile(r"(?:GLOBAL|class) ([\w.]+)")
"""What torch names in a file that it refuses (2.13)."""
FIRST_KEYS = 3  # of a list of keys in an error message


def make(source: ModelSource, seed: int = SEED) -> nn.Module:
    """The structure as it was made, initialized by default: a factory's model, a canonical network, a layer. Raises
    ModelError."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = call_factory(source) if source.factory else structure(source)
    tensors = (*model.named_parameters(), *model.named_buffers())
    if names := [name for name, tensor in tensors if tensor.is_complex()]:
        raise source.error(
            f"{names[0]} is complex, and in fp32 its imaginary part would be lost; keep the two "
            "parts as floats (torch.view_as_real) and make them one in forward (torch.view_as_complex)"
        )
    return model


def acts_as_in_training(model: nn.Module) -> bool:
    """Whether modules of it are in training mode whose forward pass asks for that, as dropout's and batch norm's do."""
    codes = (getattr(inspect.unwrap(m.forward), "__code__", None) for m in model.modules() if m.training)
    return any(code is None or "training" in code.co_names for code in codes)  # None: compiled, and so not known.


def build(source: ModelSource) -> nn.Module:
    """The same in fp32 and eval mode. Raises ModelError."""
    return make(source).to("cpu", torch.float32).eval()


def load(source: ModelSource, made: nn.Module | None = None) -> nn.Module:
    """The model with weights from `source.weights`, else the factory's own, else seeded ones; `made` is the factory's
    where it was called before. Raises ModelError."""
    if source.factory:
        model = (make(source) if made is None else made).to("cpu", torch.float32).eval()
    else:
        model = empty(source).to_empty(device="cpu")
    generator = torch.Generator().manual_seed(SEED)
    if source.weights is not None:
        fill(model, source)
    elif source.factory is None:
        initialize(model, generator)
        if network := network_of(source):
            items = torch.randn(CALIBRATION_ITEMS, *network.input_shape, generator=generator)
            calibrate(model, lambda: model(items))
    elif source.library is not None and folder_of(source.factory) is None:
        vary_constants(model, generator)
        _calibrate_as_known(model, source)
    return model


def _calibrate_as_known(model: nn.Module, source: ModelSource) -> None:
    """Calibrate by the inputs that the library knows, since weights are the same at every shape and of whatever inputs
    a job gives. A model that does not run by them stays as it is, and its reference outputs say why where it matters.
    """
    try:
        specs = input_specs(replace(source, inputs=(), input_shape=None, dimensions={}, varied={}))
        inputs = seeded_inputs(specs, fixed_batch(specs) or CALIBRATION_ITEMS)
        calibrate(model, lambda: call(model, specs, [torch.from_numpy(array) for array in inputs]))
    except MemoryError:
        raise
    except Exception as error:
        if "allocate" in str(error):  # torch's own for memory, after which another process may find enough.
            raise
        print(f"model {source.name!r}: batch norms could not be calibrated: {error!r}", file=sys.stderr)


def structure(source: ModelSource) -> nn.Module:
    """A canonical network or a single layer, on torch's current default device."""
    if isinstance(layer := source.layer, Conv2d):
        shared = {name: getattr(layer, name) for name in ("stride", "padding", "dilation", "groups", "bias")}
        return nn.Conv2d(layer.input[0], layer.out_channels, layer.kernel, **shared)
    if layer is not None:
        return nn.Linear(layer.in_features, layer.out_features, layer.bias)
    network = network_of(source)
    if network is None:
        raise ModelError(f"model {source.name!r} is an ONNX file ({source.onnx}): no torch module can be made of it")
    family = importlib.import_module(f"exporters.models.{network.family}")
    known = list(inspect.signature(family.build).parameters)[1:]
    for option in source.options:
        if option not in known:
            raise source.error(f"unknown option {option!r}{nearest(option, known)}")
    model: nn.Module = family.build(network.name, **source.options)
    return model


def empty(source: ModelSource) -> nn.Module:
    """The same on the meta device, without data, in eval mode."""
    with torch.device("meta"):
        return structure(source).eval()


def call_factory(source: ModelSource) -> nn.Module:
    """Import "package.module:function" and call it with the source's options; or make a library's model."""
    assert source.factory is not None
    if source.library is not None:
        return build_from_library(source)
    module_name, _, function_name = source.factory.partition(":")
    if not module_name or not function_name:
        raise source.error(f"factory {source.factory!r} is not 'package.module:function'")
    try:
        module = importlib.import_module(module_name)
        factory = getattr(module, function_name, None)
        model = factory(**source.options) if factory is not None else None
    except (Exception, SystemExit) as error:
        if isinstance(error, ModuleNotFoundError) and f"{module_name}.".startswith(f"{error.name}."):
            raise source.error(f"factory {source.factory!r}: {_no_module(error.name)}") from error
        mend = _in_package(source.factory) if str(error).startswith("attempted relative import") else ""
        raise source.error(f"factory {source.factory!r} raised {sentence(error)}{mend}") from error
    if factory is None:
        own = [name for name, value in vars(module).items() if getattr(value, "__module__", "") == module_name]
        hint = nearest(function_name, own)
        raise source.error(f"{module_name} has no {function_name!r}{hint}")
    if not isinstance(model, nn.Module):
        raise source.error(
            f"factory {source.factory!r} returned {type(model).__module__}."
            f"{type(model).__qualname__}, not a torch.nn.Module; return the module itself"
        )
    return model


def _in_package(factory: str) -> str:
    """How to name the factory of a module that imports from its own package, which it was not imported as part of."""
    module = factory.partition(":")[0]
    spec = spec_of(module)
    if spec is None or spec.origin is None:
        return ""
    folder = Path(spec.origin).parents[module.count(".") + (spec.submodule_search_locations is not None)]
    return f'; write factory: "{folder.name}.{factory}" and put {folder.parent} into import_from'


def _no_module(name: str | None) -> str:
    """Where the user's folders lack this module, which is part of none, and the file there that was probably meant."""
    package, _, last = (name or "").rpartition(".")
    libraries, checkout = library_folders(), Path(__file__).resolve().parents[1]
    path = dict.fromkeys(Path(folder).resolve() for folder in sys.path)
    folders = [folder for folder in path if folder.is_dir() and libraries.isdisjoint((folder, *folder.parents))]
    # The profiler's own folder is on the path of its processes; the user's code is there only where the user is.
    folders = [folder for folder in folders if folder != checkout or folder == Path.cwd()]
    files = [file for folder in folders for file in sorted((folder / package.replace(".", "/")).glob("*.py"))]
    near = closest(last, [file.stem for file in files])
    hint = f"; did you mean {'.'.join(filter(None, (package, near[0])))!r}?" if near else ""
    return f"there is no module {name!r} in {', '.join(map(str, folders))} (import_from), nor installed{hint}"


def read_weights(path: Path, key: str | None = None, prefix: str = "", own: Collection[str] = ()) -> dict[str, Tensor]:
    """A state dict from a .safetensors or a .pt file: what a checkpoint has under `key`, without its keys' `prefix`.

    `own` are the model's keys, by which a prefix that is lacking is seen. Raises ModelError for a missing or unreadable
    file, and for one that holds something else.
    """
    if not path.is_file():
        raise ModelError(f"weights {path}: no such file")
    try:
        if path.suffix == ".safetensors":
            from safetensors.torch import load_file  # A worker that reads no such file does without.

        content = load_file(path) if path.suffix == ".safetensors" else opened(path)
    except Exception as error:
        raise ModelError(
            f"weights {path}: not a readable state dict ({_why_unreadable(error)}); save one by "
            "torch.save(model.state_dict(), path) or safetensors.torch.save_file"
        ) from error
    state = state_dict(content, key, path, () if prefix else own)
    if empty := [name for name, tensor in state.items() if tensor.is_meta or tensor.is_nested]:
        raise ModelError(f"weights {path}: {empty[0]} is no array of numbers; save the model once it has its weights")
    if strays := [name for name in state if not name.startswith(prefix)]:
        what = f"{len(strays)} keys do not begin with {prefix!r}, {strays[0]} for one"
        raise ModelError(f"weights {path}: {what}; correct or leave out prefix")
    return {name.removeprefix(prefix): tensor for name, tensor in state.items()}


def _why_unreadable(error: Exception) -> str:
    """In words; where it is that a file holds more than tensors, without torch's advice to read it all the same."""
    if isinstance(error, pickle.UnpicklingError):
        named = _GLOBAL.search(str(error))
        return (
            f"it holds {named[1] if named else 'more than tensors'}; only tensors are read, for others could run code"
        )
    return ": ".join(filter(None, (type(error).__name__, text_of(error, 200))))


def opened(path: Path) -> Any:
    """What torch.save wrote, its tensors mapped from the file, so that nothing is read before it is used. The format
    that torch wrote before 1.6 cannot be mapped, and is read."""
    is_zip = zipfile.is_zipfile(path)
    if is_zip:
        with zipfile.ZipFile(path) as file:
            packed = [info.filename for info in file.infolist() if info.compress_type]
        if packed:
            raise ValueError(f"{packed[0]} in it is compressed, which torch.save never does")
    return torch.load(path, map_location="cpu", mmap=is_zip, weights_only=True)


def state_dict(content: object, key: str | None, path: Path, own: Collection[str] = ()) -> Mapping[str, Tensor]:
    """The file's content, or what it has under `key`. Raises ModelError, which names the key to give, and the prefix
    that its keys have and the model's `own` do not."""
    parts = content if isinstance(content, Mapping) else {}
    names = [str(name) for name, part in parts.items() if is_state_dict(part) and part]
    if key is not None:
        if key not in parts:
            mend = f"give one of {', '.join(names)}" if names else "leave out key"
            raise ModelError(f"weights {path}: it has no key {key!r}; {mend}")
        content, names = parts[key], []
    if is_state_dict(content):
        return content
    hint = "save one by torch.save(model.state_dict(), path)"
    if names:
        prefix = shared_prefix(own, parts.get(names[0], {}))
        mend = f"`key: {names[0]}`" + (f" and `prefix: {prefix}`" if prefix else "")
        hint = f"it is a checkpoint of {', '.join(map(str, parts))}; add {mend} next to weights"
    raise ModelError(f"weights {path}: no state dict of tensors; {hint}")


def is_state_dict(content: object) -> TypeGuard[Mapping[str, Tensor]]:
    return isinstance(content, Mapping) and all(
        isinstance(name, str) and isinstance(value, Tensor) for name, value in content.items()
    )


def fill(model: nn.Module, source: ModelSource) -> None:
    """Copy the state dict of the source's weights file into the model. Raises ModelError."""
    assert source.weights is not None, "the caller asks for a source with weights"
    state = read_weights(source.weights, source.key, source.prefix, model.state_dict())
    assign(model, state, source.weights, source.kind == "canonical")


def assign(model: nn.Module, state: Mapping[str, Tensor], path: Path, canonical: bool = False) -> None:
    """Copy a state dict into the model; ModelError names the first keys that do not fit. `canonical`: whether the model
    is a canonical network, whose head cannot be chosen."""
    own = model.state_dict()
    pairs = {key: (state[key], own[key]) for key in own if key in state}
    # Counted in training only, and absent from checkpoints made before torch 0.4.1.
    missing = [key for key in own if key not in state and not key.endswith("num_batches_tracked")]
    unexpected = [key for key in state if key not in own]
    shapes = [f"{k} {tuple(a.shape)} instead of {tuple(b.shape)}" for k, (a, b) in pairs.items() if a.shape != b.shape]
    types = [f"{k} {_type_of(a)} instead of {_type_of(b)}" for k, (a, b) in pairs.items() if _kind(a) != _kind(b)]
    kinds = (("missing", missing), ("unexpected", unexpected), ("of another shape", shapes), ("of another type", types))
    faults = [
        f"{len(keys)} {what} ({', '.join(keys[:FIRST_KEYS])}{', …' if len(keys) > FIRST_KEYS else ''})"
        for what, keys in kinds
        if keys
    ]
    if faults:
        hint = f"; add `prefix: {prefix}` next to weights" if (prefix := shared_prefix(own, state)) else ""
        if canonical and any(f" instead of ({CLASSES}," in shape for shape in shapes):
            hint += f"; canonical networks have {CLASSES} classes: for another head give a factory"
        if types:
            hint += "; a number means something else in another type: convert them where that is known, and save them"
        raise ModelError(f"weights {path}: keys do not fit the model: {'; '.join(faults)}{hint}")
    for key in own:
        if key not in state:
            own[key].zero_()
    model.load_state_dict(state, strict=False)


def _kind(tensor: Tensor) -> tuple[bool, ...]:
    """What two tensors share of which one can be copied into the other without losing what it means."""
    is_plain = tensor.layout is torch.strided and not tensor.is_quantized and not tensor.is_nested
    kinds = (tensor.is_floating_point(), tensor.is_complex(), tensor.dtype is torch.bool)
    return (is_plain, *kinds)


def _type_of(tensor: Tensor) -> str:
    layout = "" if tensor.layout is torch.strided else f"{str(tensor.layout).removeprefix('torch.')} "
    return layout + str(tensor.dtype).removeprefix("torch.")


def shared_prefix(own: Collection[str], state: Collection[str]) -> str | None:
    """What all keys of `state` begin with that would be among the model's `own` without it; None if nothing is."""
    first = next(iter(state), "")
    for prefix in (first[: place + 1] for place, letter in enumerate(first) if letter == "."):
        if all(key.startswith(prefix) for key in state) and any(key.removeprefix(prefix) in own for key in state):
            return prefix
    return None


def restore(source: ModelSource, state_path: Path) -> nn.Module:
    """The model with the state that `exporters.weights.cached_state` wrote: as `load` returns it, without seeding.

    A canonical network's weights, and a layer's, are mapped from the file (copy on write), so nothing is read before it
    is used. Raises ModelError if the state is unreadable or another model's.
    """
    if source.factory:
        model = build(source)
        assign(model, read_weights(state_path), state_path)
        return model
    model = empty(source)
    try:
        state = opened(state_path)
        model.load_state_dict(state, assign=True)
    except Exception as error:
        cause = str(error).strip().partition("\n")[0]
        raise source.error(f"{state_path} cannot be restored ({cause}); delete it") from error
    return model
