"""Build transformers' models from a class with random weights or a local folder with weights; download nothing.

A step is the prompt, one more token with the cache of the earlier ones, or the encoder. The cache is plain tensors with
the names of optimum's exports: past_key_values.0.key goes in, present.0.key comes out; with an encoder
past_key_values.0.decoder.key and past_key_values.0.encoder.key go in
(https://github.com/huggingface/optimum-onnx, optimum/exporters/onnx/base.py).
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # Before the import, which reads it.

import torch
import transformers
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._pytree import tree_leaves
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer, EncoderDecoderCache

from exporters.calls import Place, tensors_in
from exporters.errors import nearest
from exporters.libraries import DeclaredInputs, files_of, folder_of, similar
from exporters.source import BATCH, ModelError, TensorSpec

_SEQUENCE, _DECODER_SEQUENCE, _SAMPLES, _IMAGE = 128, 16, 16000, 224
_PAST = "past_key_values."
_POSITIONS = ("max_position_embeddings", "n_positions", "max_target_positions")
_OWN_CODE_ONLY = {"local_files_only": True, "trust_remote_code": False}
Part = Mapping[str, Any]
"""A layer's "key" and "value", [batch, heads, length, width]; with an encoder a Part for "decoder", the layer's own
tokens, and one for "encoder"."""
_PROMPT, _STATES = 2, 3
"""Lengths of a fake run's prompt and encoder states; they differ, so that a cached tensor's length tells its origin."""
_CACHE_INPUTS: dict[tuple[Any, str], tuple[TensorSpec, ...]] = {}
"""Inputs of `cached_inputs` by model class and configuration."""


def build_hf(name: str, options: Mapping[str, Any], step: str = "") -> nn.Module:
    """Build a model; `options` go into its configuration, such as num_hidden_layers or attn_implementation."""
    model: nn.Module = _whole(name, options)
    if step == "encode":
        return model.get_encoder()  # type: ignore[no-any-return, operator]
    return CachedStep(model) if step else model


def _whole(name: str, options: Mapping[str, Any]) -> Any:
    config, cls = _config(name, options)
    if folder_of(f"hf:{name}") is None:
        return cls(config) if cls is not None else transformers.AutoModel.from_config(config)
    if not any(file.suffix == ".safetensors" for file in files_of(Path(name))):
        raise ModelError(f"{name} has no .safetensors file, the only format that weights are read from")
    model, info = (cls or transformers.AutoModel).from_pretrained(
        name, config=config, use_safetensors=True, dtype=torch.float32, output_loading_info=True, **_OWN_CODE_ONLY
    )
    if missing := sorted(info["missing_keys"]):
        raise ModelError(f"{name} lacks {len(missing)} weights of {type(model).__name__}, such as {missing[0]}")
    return model


def inputs_hf(name: str, options: Mapping[str, Any], step: str = "") -> DeclaredInputs:
    """Return the inputs of `forward` or a step; prefill and decode need no mask, since items are equally long."""
    config, cls = _config(name, options)
    owner = cls or transformers.AutoModel._model_mapping[type(config)]
    if isinstance(owner, tuple):
        owner = owner[0]
    if step == "encode" and not config.is_encoder_decoder:
        raise ModelError(f"{owner.__name__} has no encoder of its own; steps of it are prefill and decode")
    rows, sizes = _rows(config, owner)
    ids = "decoder_input_ids" if config.is_encoder_decoder else "input_ids"
    if step == "prefill":
        specs = [rows[key] for key in (ids, "encoder_hidden_states") if key in rows]
        cached_inputs(owner, config)
    elif step == "decode":
        specs = [replace(rows[ids], shape=(BATCH, 1)), *cached_inputs(owner, config)]
    else:
        parameters = inspect.signature(owner.forward).parameters
        accepted = [row for key, row in rows.items() if key in parameters]
        specs = [row for row in accepted if not (step and str(row.place).startswith("decoder_"))]
    used = {size for spec in specs for size in spec.shape}
    return DeclaredInputs(tuple(specs), {name: size for name, size in sizes.items() if name in used})


def _rows(config: Any, owner: Any) -> tuple[dict[str, TensorSpec], dict[str, int]]:
    """Return the inputs of models of that configuration, and their usual sizes."""
    text, vision = config.get_text_config(), getattr(config, "vision_config", config)
    words = int(getattr(text, "vocab_size", None) or getattr(config, "vocab_size", 0) or 0)
    ids = {"dtype": "int64", "range": (0, words)}
    has_text = words > 0 and "input_ids" in inspect.signature(owner.forward).parameters
    has_image = owner.main_input_name == "pixel_values" or vision is not config
    channels, image = getattr(vision, "num_channels", 3), getattr(vision, "image_size", None) or _IMAGE
    height, width = (image, image) if isinstance(image, int) else tuple(image)[-2:]
    longest = min([value for key in _POSITIONS if (value := getattr(text, key, None))], default=_SEQUENCE)
    has_encoder = bool(config.is_encoder_decoder)
    rows: dict[str, tuple[bool, tuple[int | str, ...], dict[str, Any]]] = {
        "input_ids": (has_text, (BATCH, "sequence"), ids),
        "attention_mask": (has_text, (BATCH, "sequence"), {"is_mask": True, "dtype": "int64"}),
        "pixel_values": (has_image, (BATCH, channels, "height", "width"), {}),
        "input_features": (True, (BATCH, getattr(config, "num_mel_bins", 80), "frames"), {}),
        "input_values": (True, (BATCH, "samples"), {}),
        "encoder_hidden_states": (has_encoder, (BATCH, "encoder_sequence", getattr(config, "hidden_size", 0)), {}),
        "decoder_input_ids": (has_encoder, (BATCH, "decoder_sequence"), ids),
    }
    positions = getattr(config, "max_source_positions", None)
    sizes = {
        "sequence": min(_SEQUENCE, longest),
        "decoder_sequence": min(_DECODER_SEQUENCE, longest),
        "encoder_sequence": positions or min(_SEQUENCE, longest),
        "cache": min(_SEQUENCE, max(longest - 1, 1)),
        "height": height,
        "width": width,
        "frames": 2 * (positions or 1500),
        "samples": _SAMPLES,
    }
    declared = {
        key: TensorSpec(key, shape, **{"dtype": "float32", "place": key, **fields})
        for key, (is_input, shape, fields) in rows.items()
        if is_input
    }
    return declared, sizes


def _config(name: str, options: Mapping[str, Any]) -> tuple[Any, Any]:
    """Return the configuration with these options, and the model's class if the configuration does not determine it."""
    if folder_of(f"hf:{name}"):
        cls = _architecture(name)
        config = transformers.AutoConfig.from_pretrained(name, **_OWN_CODE_ONLY)
        config_class = type(config)
        defaults: dict[str, Any] = config.to_dict()
    else:
        cls, config_class, defaults = *_classes(name), {}
    if strays := [key for key in options if key != "attn_implementation" and not hasattr(config_class(), key)]:
        valid = [key for key in vars(config_class()) if not key.startswith("_")]
        raise ModelError(f"{config_class.__name__} has no option {strays[0]!r}{similar(strays[0], valid, 'options')}")
    config = config_class(**{**defaults, **options})
    # A single call needs no cache of keys and values.
    if "use_cache" not in options and hasattr(config.get_text_config(), "use_cache"):
        config.use_cache = config.get_text_config().use_cache = False
    return config, cls


def _classes(name: str) -> tuple[Any, Any]:
    """Return the classes of the model, None for a configuration's name, and of the configuration."""
    attribute = getattr(transformers, name, None)
    if inspect.isclass(attribute) and issubclass(attribute, transformers.PreTrainedConfig):
        return None, attribute
    if (config_class := getattr(attribute, "config_class", None)) is not None:
        return attribute, config_class
    models = [word for word in dir(transformers) if "Model" in word or "For" in word]
    hint = "names of the Hub are not downloaded: give a local folder with a config.json, or a class such as BertModel"
    raise ModelError(f"transformers has no such class{nearest(name, models, hint, count=3)}")


def _architecture(name: str) -> Any:
    """Return the class in a folder's config.json, if it has one. Raises ModelError."""
    config, _ = transformers.PreTrainedConfig.get_config_dict(name, local_files_only=True)
    named = config.get("architectures") or [None]
    word = named[0] if isinstance(named, list) else named
    cls = getattr(transformers, word, None) if isinstance(word, str) else None
    if word is None and "auto_map" not in config:
        return None
    if inspect.isclass(cls) and issubclass(cls, transformers.PreTrainedModel):
        return cls
    if "auto_map" in config:
        raise ModelError(f"{name} needs Python code of its own, which is not run; make it in a factory, or export it")
    raise ModelError(
        f"{name}/config.json: architectures is {named}, and transformers {transformers.__version__} has no such model"
    )


class CachedStep(nn.Module):
    """A model that takes its cache as tensors and returns it one step longer.

    Without a cache it is the prompt's step. It computes only the last token's logits, like transformers' generate(), if
    the model's forward can. Only the prompt's step returns an encoder's keys and values, since they stay the same.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        self.has_encoder = bool(model.config.is_encoder_decoder)  # type: ignore[union-attr]
        self.last_only = "logits_to_keep" in inspect.signature(model.forward).parameters

    def forward(self, encoder_hidden_states: Tensor | None = None, **tensors: Tensor) -> dict[str, Any]:
        arguments: dict[str, Any] = {name: x for name, x in tensors.items() if not name.startswith(_PAST)}
        past_key_values = _nested(tensors)
        if self.last_only:
            arguments["logits_to_keep"] = 1
        if self.has_encoder:
            # With cached keys and values, only the length of the encoder's states is read: any view will do.
            cached = past_key_values[0]["encoder"]["key"][:, 0] if past_key_values else None
            arguments["encoder_outputs"] = (encoder_hidden_states if cached is None else cached,)
        cache = _cache([part.get("decoder", part) for part in past_key_values])
        if self.has_encoder:
            cache = EncoderDecoderCache(cache, _cache([part["encoder"] for part in past_key_values]))
        result = self.model(**arguments, past_key_values=cache, use_cache=True)
        name = "logits" if "logits" in result else "last_hidden_state"
        return {name: result[name], "present": _present(cache, with_encoder=not past_key_values)}


def _nested(tensors: Mapping[str, Tensor]) -> list[Part]:
    """Gather the cache by layer from names such as past_key_values.0.decoder.key."""
    layers: dict[int, dict[str, Any]] = {}
    for name, tensor in tensors.items():
        if name.startswith(_PAST):
            layer, *inner, last = name.removeprefix(_PAST).split(".")
            part = layers.setdefault(int(layer), {})
            (part.setdefault(inner[0], {}) if inner else part)[last] = tensor
    return [layers[number] for number in sorted(layers)]


def _cache(parts: Sequence[Part]) -> Any:
    """Wrap keys and values in transformers' object; its constructor would copy them."""
    cache = DynamicCache()
    for part in parts:
        layer = DynamicLayer()
        layer.keys, layer.values = part["key"], part["value"]
        layer.dtype, layer.device, layer.is_initialized = layer.keys.dtype, layer.keys.device, True
        cache.layers.append(layer)
    return cache


def _present(cache: Any, with_encoder: bool) -> list[Part]:
    if not isinstance(cache, EncoderDecoderCache):
        return [_part(layer) for layer in cache.layers]
    decoder: list[Part] = [{"decoder": _part(layer)} for layer in cache.self_attention_cache.layers]
    if not with_encoder:
        return decoder
    others = cache.cross_attention_cache.layers
    return [{**part, "encoder": _part(layer)} for part, layer in zip(decoder, others, strict=True)]


def _part(layer: Any) -> Part:
    return {"key": getattr(layer, "keys", None), "value": getattr(layer, "values", None)}


def cached_inputs(cls: Any, config: Any) -> tuple[TensorSpec, ...]:
    """Return the tensors of the model's cache of keys and values, by a run on fake tensors. Raises ModelError."""
    key = cls, config.to_json_string()
    if key not in _CACHE_INPUTS:
        _CACHE_INPUTS[key] = tuple(_declared(place, tensor) for place, tensor in tensors_in(_fake_cache(cls, config)))
    return _CACHE_INPUTS[key]


def _fake_cache(cls: Any, config: Any) -> list[Part]:
    with FakeTensorMode(), torch.no_grad():
        ids = torch.zeros((1, _PROMPT), dtype=torch.int64)
        arguments: dict[str, Any] = {"input_ids": ids}
        if config.is_encoder_decoder:
            arguments = {"decoder_input_ids": ids, "encoder_outputs": (torch.zeros((1, _STATES, config.hidden_size)),)}
        result = cls(config).eval()(**arguments, use_cache=True)
        parts = _present(cache, with_encoder=True) if (cache := getattr(result, "past_key_values", None)) else []
    if not parts or not all(isinstance(leaf, Tensor) for leaf in tree_leaves(parts)):
        raise ModelError(
            f"{cls.__name__} has no cache with keys and values in each layer; prefill and decode are steps of decoders "
            "such as GPT2LMHeadModel. For another model's step write a factory whose inputs and outputs hold the state"
        )
    return parts


def _declared(place: Place, tensor: Tensor) -> TensorSpec:
    _, heads, length, width = tensor.shape
    size = {_PROMPT: "cache", _STATES: "encoder_sequence"}[length]
    name = _PAST + ".".join(map(str, place))
    return TensorSpec(name, (BATCH, heads, size, width), "float32", name)
