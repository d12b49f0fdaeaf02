"""Make one step of a transformers model of its parts: the prompt, or a further token with what is cached of the others.

A cache of transformers is an object; here it is plain tensors, which graphs take and give. They have the names of
optimum's exports: past_key_values.0.key goes in, present.0.key comes out, and of a model with an encoder
past_key_values.0.decoder.key and past_key_values.0.encoder.key go in
(https://github.com/huggingface/optimum-onnx, optimum/exporters/onnx/base.py).
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._pytree import tree_leaves
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer, EncoderDecoderCache

from exporters.calls import tensors_in
from exporters.declared_inputs import BATCH, DeclaredInput, Place
from exporters.source import ModelError

Part = Mapping[str, Any]
"""A layer's "key" and "value", each [batch, heads, length, width]; with an encoder one such for "decoder", the layer's
own tokens, and one for "encoder"."""
_PROMPT, _STATES = 2, 3
"""Tokens of a prompt, and of what the encoder gave, by whose lengths the tensors of a cache are told apart."""
_KNOWN: dict[tuple[Any, str], tuple[DeclaredInput, ...]] = {}
"""The caches that have been looked at, by the model's class and its configuration."""


class Step(nn.Module):
    """A model that takes its cache as tensors and gives it back one step longer.

    Without a cache it is the prompt's step. Of the prompt's logits only the last token's are computed, as transformers'
    generate() does, where the model's forward can do so. Keys and values of an encoder are given back by the prompt's
    step only, since they stay the same.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        self.has_encoder = bool(model.config.is_encoder_decoder)  # type: ignore[union-attr]
        self.last_only = "logits_to_keep" in inspect.signature(model.forward).parameters

    def forward(
        self, past_key_values: Sequence[Part] = (), encoder_hidden_states: Tensor | None = None, **given: Any
    ) -> dict[str, Any]:
        if self.last_only:
            given["logits_to_keep"] = 1
        if self.has_encoder:
            # Where its keys and values are cached only the length of what the encoder gave is read: any view will do.
            cached = past_key_values[0]["encoder"]["key"][:, 0] if past_key_values else None
            given["encoder_outputs"] = (encoder_hidden_states if cached is None else cached,)
        cache = _cache([part.get("decoder", part) for part in past_key_values])
        if self.has_encoder:
            cache = EncoderDecoderCache(cache, _cache([part["encoder"] for part in past_key_values]))
        result = self.model(**given, past_key_values=cache, use_cache=True)
        name = "logits" if "logits" in result else "last_hidden_state"
        return {name: result[name], "present": _present(cache, with_encoder=not past_key_values)}


def _cache(parts: Sequence[Part]) -> Any:
    """Keys and values as transformers' object, without a copy, as its own constructor would make one."""
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
    own: list[Part] = [{"decoder": _part(layer)} for layer in cache.self_attention_cache.layers]
    if not with_encoder:
        return own
    others = cache.cross_attention_cache.layers
    return [{**part, "encoder": _part(layer)} for part, layer in zip(own, others, strict=True)]


def _part(layer: Any) -> Part:
    return {"key": getattr(layer, "keys", None), "value": getattr(layer, "values", None)}


def cached_inputs(cls: Any, config: Any) -> tuple[DeclaredInput, ...]:
    """The tensors of the model's cache, by what it caches of fake tensors, which neither compute nor hold anything.

    Raises ModelError for a model whose cache is not keys and values, one pair of them a layer.
    """
    key = cls, config.to_json_string()
    if key not in _KNOWN:
        _KNOWN[key] = tuple(_declared(place, tensor) for place, tensor in tensors_in(_made(cls, config)))
    return _KNOWN[key]


def _made(cls: Any, config: Any) -> list[Part]:
    with FakeTensorMode(), torch.no_grad():
        ids = torch.zeros((1, _PROMPT), dtype=torch.int64)
        given: dict[str, Any] = {"input_ids": ids}
        if config.is_encoder_decoder:
            given = {"decoder_input_ids": ids, "encoder_outputs": (torch.zeros((1, _STATES, config.hidden_size)),)}
        result = cls(config).eval()(**given, use_cache=True)
        made = _present(cache, with_encoder=True) if (cache := getattr(result, "past_key_values", None)) else []
    if not made or not all(isinstance(leaf, Tensor) for leaf in tree_leaves(made)):
        raise ModelError(
            f"{cls.__name__} has no cache with keys and values in each layer; prefill and decode are steps of decoders "
            "such as GPT2LMHeadModel. Of another model's step make a factory whose inputs and outputs hold its state"
        )
    return made


def _declared(place: Place, tensor: Tensor) -> DeclaredInput:
    _, heads, length, width = tensor.shape
    size = {_PROMPT: "cache", _STATES: "encoder_sequence"}[length]
    return DeclaredInput(("past_key_values", *place), (BATCH, heads, size, width), "float32")
