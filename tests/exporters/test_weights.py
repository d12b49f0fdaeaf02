"""Keys differ where model sources do, and only there."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from exporters import load_model
from exporters.source import ModelError, ModelSource, plain
from exporters.weights import source_key


def test_canonical_keys_differ_by_name_options_and_weights(tmp_path: Path) -> None:
    weights = tmp_path / "weights.pt"
    torch.save(load_model("googlenet").state_dict(), weights)
    sources = [
        ModelSource("googlenet"),
        ModelSource("resnet18"),
        ModelSource("resnet34"),
        ModelSource("googlenet", options={"auxiliary": True}),
        ModelSource("googlenet", weights=weights, key="ema"),
        ModelSource("googlenet", weights=weights, prefix="module."),
        ModelSource("googlenet", weights=weights),
    ]
    keys = [source_key(source) for source in sources]
    assert len(set(keys)) == len(keys)
    assert keys == [source_key(source) for source in sources]
    assert source_key(ModelSource("mine", network="googlenet")) == keys[0], "a name is no part of a network"
    torch.save({}, weights)
    assert source_key(sources[-1]) != keys[-1]
    with pytest.raises(ModelError, match="no such file"):
        source_key(ModelSource("googlenet", weights=tmp_path / "absent.pt"))


def test_options_with_sets_have_the_same_text_however_the_sets_are_listed() -> None:
    # 8 and 16 share a place in a table of eight, so that the first that came is the first.
    one, other = ({"steps": [{8, 16}], frozenset({8, 16}): 1}, {"steps": [{16, 8}], frozenset({16, 8}): 1})
    assert (one, str(one) != str(other)) == (other, True)
    assert plain(one) == plain(other) != plain({"steps": [{8, 24}], frozenset({8, 16}): 1})


def test_factory_key_follows_options_and_code(small: ModelSource, factories: Path) -> None:
    key = source_key(small)
    assert source_key(small) == key
    assert source_key(ModelSource("mine", small.factory, input_shape=(3, 16, 16), options={"width": 4})) != key
    factories.write_text(factories.read_text() + "\n# edited\n")
    assert source_key(small) != key
