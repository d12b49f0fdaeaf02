"""Make transformers' models: of a class with random weights, or of a local folder with its own. Nothing is downloaded.

A model's configuration knows its vocabulary and its image, and the signature of `forward` which of these it takes.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # Before the import, which reads it.

import torch
import transformers
from torch import nn

from exporters.declared_inputs import BATCH, DeclaredInput
from exporters.libraries.catalog import Known, closest, folder_of
from exporters.source import ModelError

_SEQUENCE, _DECODER_SEQUENCE, _SAMPLES, _IMAGE = 128, 16, 16000, 224
_POSITIONS = ("max_position_embeddings", "n_positions", "max_target_positions")


def build(name: str, options: Mapping[str, Any]) -> nn.Module:
    """`options` are those of the configuration, such as num_hidden_layers or attn_implementation."""
    config, cls = _config(name, options)
    if folder_of(f"hf:{name}") is None:
        made: nn.Module = cls(config) if cls is not None else transformers.AutoModel.from_config(config)
        return made
    if not list(Path(name).glob("*.safetensors")):
        raise ModelError(f"{name} has no .safetensors file, from which alone weights are read")
    model, info = (cls or transformers.AutoModel).from_pretrained(
        name, config=config, local_files_only=True, use_safetensors=True, dtype=torch.float32, output_loading_info=True
    )
    if missing := sorted(info["missing_keys"]):
        raise ModelError(f"{name} lacks {len(missing)} weights of {type(model).__name__}, {missing[0]} for one")
    loaded: nn.Module = model
    return loaded


def inputs(name: str, options: Mapping[str, Any]) -> Known:
    """Those of forward's parameters that the configuration knows the shape and the values of."""
    config, cls = _config(name, options)
    owner = cls or transformers.AutoModel._model_mapping[type(config)]
    if isinstance(owner, tuple):
        owner = owner[0]
    parameters = inspect.signature(owner.forward).parameters
    text, vision = config.get_text_config(), getattr(config, "vision_config", config)
    words = int(getattr(text, "vocab_size", None) or getattr(config, "vocab_size", 0) or 0)
    ids = {"dtype": "int64", "range": (0, words)}
    has_text = "input_ids" in parameters and words > 0
    has_image = owner.main_input_name == "pixel_values" or vision is not config
    channels, image = getattr(vision, "num_channels", 3), getattr(vision, "image_size", None) or _IMAGE
    height, width = (image, image) if isinstance(image, int) else tuple(image)[-2:]
    longest = min([value for key in _POSITIONS if (value := getattr(text, key, None))], default=_SEQUENCE)
    rows: dict[str, tuple[bool, tuple[int | str, ...], dict[str, Any]]] = {
        "input_ids": (has_text, (BATCH, "sequence"), ids),
        "attention_mask": (has_text, (BATCH, "sequence"), {"dtype": "int64", "fill": "lengths"}),
        "bbox": (has_text, (BATCH, "sequence", 4), {"dtype": "int64", "fill": "zeros"}),
        "pixel_values": (has_image, (BATCH, channels, "height", "width"), {"dtype": "float32"}),
        "input_features": (True, (BATCH, getattr(config, "num_mel_bins", 80), "frames"), {"dtype": "float32"}),
        "input_values": (True, (BATCH, "samples"), {"dtype": "float32"}),
        "decoder_input_ids": (bool(config.is_encoder_decoder), (BATCH, "decoder_sequence"), ids),
    }
    taken = tuple(
        DeclaredInput((key,), shape, **more) for key, (has, shape, more) in rows.items() if has and key in parameters
    )
    sizes = {
        "sequence": min(_SEQUENCE, longest),
        "decoder_sequence": min(_DECODER_SEQUENCE, longest),
        "height": height,
        "width": width,
        "frames": 2 * getattr(config, "max_source_positions", 1500),
        "samples": _SAMPLES,
    }
    used = {size for each in taken for size in each.shape or ()}
    return Known(taken, {size: value for size, value in sizes.items() if size in used})


def _config(name: str, options: Mapping[str, Any]) -> tuple[Any, Any]:
    """The configuration with these options, and the model's class; None where the configuration alone says it.

    One call needs no cache of keys and values, so a decoder makes none unless it is asked to.
    """
    if folder_of(f"hf:{name}"):
        config = transformers.AutoConfig.from_pretrained(name, local_files_only=True)
        config_class, cls = type(config), getattr(transformers, (config.architectures or [""])[0], None)
        given: dict[str, Any] = config.to_dict()
    else:
        cls, config_class, given = *_classes(name), {}
    if strays := [key for key in options if key != "attn_implementation" and not hasattr(config_class(), key)]:
        known = [key for key in vars(config_class()) if not key.startswith("_")]
        raise ModelError(f"{config_class.__name__} has no option {strays[0]!r}; {closest(strays[0], known)}")
    config = config_class(**{**given, **options})
    if "use_cache" not in options and hasattr(config.get_text_config(), "use_cache"):
        config.use_cache = config.get_text_config().use_cache = False
    return config, cls


def _classes(name: str) -> tuple[Any, Any]:
    """The model's class, None for a configuration's name, and the configuration's."""
    found = getattr(transformers, name, None)
    if found is None or not inspect.isclass(found):
        if "/" in name or Path(name).exists():
            raise ModelError(
                f"{name} is no folder with a config.json (nothing is downloaded: give a local folder, or a model class)"
            )
        models = [each for each in dir(transformers) if "Model" in each or "For" in each]
        raise ModelError(f"transformers has no such class; {closest(name, models)}")
    if issubclass(found, transformers.PreTrainedConfig):
        return None, found
    config_class = getattr(found, "config_class", None)
    if config_class is None:
        raise ModelError(f"{name} is no model with a configuration of its own; give a class such as BertModel")
    return found, config_class
