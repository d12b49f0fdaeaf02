"""Models of libraries are made offline, seeded, with the inputs that they know; each test needs its library."""

from __future__ import annotations

import importlib.util
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from exporters.build_model import build, load
from exporters.calls import call, named_outputs
from exporters.inputs import input_specs, seeded_inputs
from exporters.libraries import LIBRARIES, Library, library_of
from exporters.source import ModelError, ModelSource
from exporters.weights import has_own_weights, source_key

SMALL = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
TRANSFORMERS = pytest.mark.skipif(
    importlib.util.find_spec("transformers") is None, reason="transformers is not installed"
)


def model(word: str, **more: Any) -> ModelSource:
    library = library_of(word)
    assert library is not None
    return ModelSource("mine", factory=word, library=library.prefix, **more)


def outputs(source: ModelSource) -> dict[str, tuple[int, ...]]:
    specs = input_specs(source)
    tensors = [torch.from_numpy(array) for array in seeded_inputs(specs, 2)]
    with torch.no_grad():
        named = named_outputs(call(build(source), specs, tensors))
    assert all(torch.isfinite(tensor).all() for tensor in named.values())
    return {name: tuple(tensor.shape) for name, tensor in named.items()}


def test_a_missing_library_is_named_with_its_installation(monkeypatch):
    row = Library("hf", "no_such_library", "exporters.libraries.transformers_models")
    monkeypatch.setitem(LIBRARIES, "hf", row)
    with pytest.raises(ModelError, match=r"needs no_such_library, .* pip install no_such_library"):
        input_specs(model("hf:BertModel"))


OWN = """
from torch import nn

from exporters.libraries import DeclaredInputs
from exporters.source import BATCH, TensorSpec


def build_own(name, options):
    embedding = nn.Embedding(options.get("words", 10), int(name))
    return nn.Sequential(embedding, nn.BatchNorm1d(4)) if options.get("norm") else embedding


def inputs_own(name, options):
    ids = TensorSpec("input", (BATCH, "length"), "int64", range=(0, options.get("words", 10)))
    return DeclaredInputs((ids,), {"length": 4})
"""


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own_library.py").write_text(OWN)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "own_library", raising=False)
    row = Library("own", "torch", "own_library")
    monkeypatch.setitem(LIBRARIES, "own", row)


@pytest.mark.usefixtures("own")
def test_a_library_is_a_row_and_two_functions():
    (spec,) = input_specs(model("own:8"))
    assert (spec.name, spec.shape, spec.range) == ("input", ("batch", 4), (0, 10))
    assert outputs(model("own:8", dimensions={"length": 7})) == {"y": (2, 7, 8)}
    with pytest.raises(ModelError, match="no dimension 'lenght'; did you mean 'length'"):
        input_specs(model("own:8", dimensions={"lenght": 7}))
    with pytest.raises(ModelError, match=r"own:eight: torch raised .*invalid literal"):
        build(model("own:eight"))


@pytest.mark.usefixtures("own")
def test_random_weights_are_no_constants_and_the_same_at_every_shape():
    first = load(model("own:8", options={"norm": True})).state_dict()
    assert not (first["1.weight"] == 1).any()
    assert not (first["1.running_var"] == 1).any()
    again = load(model("own:8", options={"norm": True}, dimensions={"length": 7})).state_dict()
    assert all(torch.equal(first[name], again[name]) for name in first)


@TRANSFORMERS
@pytest.mark.parametrize(
    ("word", "options", "taken", "given"),
    [
        ("hf:BertModel", SMALL, {"input_ids": (128,), "attention_mask": (128,)}, {"last_hidden_state": (2, 128, 32)}),
        ("hf:BertConfig", SMALL, {"input_ids": (128,), "attention_mask": (128,)}, {"pooler_output": (2, 32)}),
        (
            "hf:CLIPModel",
            {"text_config": SMALL, "vision_config": {**SMALL, "image_size": 64, "patch_size": 16}},
            {"input_ids": (77,), "attention_mask": (77,), "pixel_values": (3, 64, 64)},
            {"logits_per_image": (2, 2)},
        ),
        (
            "hf:T5Model",
            {"d_model": 32, "d_ff": 64, "num_layers": 1, "num_heads": 2, "d_kv": 16},
            {"input_ids": (128,), "attention_mask": (128,), "decoder_input_ids": (16,)},
            {"last_hidden_state": (2, 16, 32)},
        ),
    ],
)
def test_transformers(word, options, taken, given):
    source = model(word, options=dict(options))
    assert {spec.name: spec.shape[1:] for spec in input_specs(source)} == taken
    assert given.items() <= outputs(source).items()


@TRANSFORMERS
def test_a_saved_folder_of_transformers_has_its_weights(tmp_path):
    saved = build(model("hf:BertModel", options=SMALL))
    saved.save_pretrained(tmp_path / "bert")
    source = model(f"hf:{tmp_path / 'bert'}")
    loaded = build(source).state_dict()
    assert all(torch.equal(tensor, loaded[name]) for name, tensor in saved.state_dict().items())
    before = source_key(source)
    assert has_own_weights(source)
    (tmp_path / "bert" / "config.json").write_text((tmp_path / "bert" / "config.json").read_text() + "\n")
    assert source_key(source) != before
    for file in (tmp_path / "bert").glob("*.safetensors"):
        file.unlink()
    with pytest.raises(ModelError, match=r"has no .safetensors file"):
        build(source)


@TRANSFORMERS
def test_shards_count_as_their_index_names_them(tmp_path):
    folder, source = tmp_path / "bert", model(f"hf:{tmp_path / 'bert'}")
    build(model("hf:BertModel", options=SMALL)).save_pretrained(folder, max_shard_size="100KB")
    for kind in ("old", "new"):
        (folder / kind).mkdir()
        for shard in folder.glob("model-*.safetensors"):
            content = shard.read_bytes()
            (folder / kind / shard.name).write_bytes(content if kind == "old" else content[:-4] + bytes(4))
    index = folder / "model.safetensors.index.json"
    text = index.read_text()
    for shard in folder.glob("model-*.safetensors"):
        shard.unlink()
    keys, states = set(), []
    for kind in ("old", "new"):
        index.write_text(text.replace("model-0", f"{kind}/model-0"))
        keys.add(source_key(source))
        states.append(build(source).state_dict())
    assert len(keys) == 2
    assert any(not torch.equal(states[0][name], states[1][name]) for name in states[0])
    shard = next((folder / "new").iterdir())
    shard.rename(tmp_path / "blob")
    shard.symlink_to(tmp_path / "blob")  # As in the Hugging Face cache.
    assert source_key(source) in keys
    shard.unlink()
    with pytest.raises(ModelError, match=r"names new/model-0.* no such file"):
        source_key(source)
    for outside in ("../model-0", f"{tmp_path}/model-0"):
        index.write_text(text.replace("model-0", outside))
        with pytest.raises(ModelError, match=r"which is outside its folder"):
            source_key(source)


@TRANSFORMERS
@pytest.mark.parametrize(
    ("word", "options", "says"),
    [
        ("hf:BertModell", {}, "transformers has no such class; did you mean 'BertModel'"),
        ("hf:BertModel", {"hidden_sise": 3}, "BertConfig has no option 'hidden_sise'; did you mean 'hidden_size'"),
        ("hf:DetrModel", {"zzz": 3}, r"DetrConfig has no option 'zzz'; it has \d+ options"),
        ("hf:google/bert", {}, "names of the Hub are not downloaded: give a local folder"),
        ("hf:bert-base-uncased", {}, "names of the Hub are not downloaded: give a local folder"),
    ],
)
def test_what_transformers_lacks_is_named(word, options, says):
    with pytest.raises(ModelError, match=says):
        build(model(word, options=options))


MINE = {"model_type": "mine", "auto_map": {"AutoConfig": "mine.Config", "AutoModel": "mine.Model"}}


@TRANSFORMERS
@pytest.mark.parametrize(
    ("config", "says"),
    [
        (MINE, "needs Python code of its own, which is not run"),
        ({**MINE, "architectures": ["Mine"]}, "needs Python code of its own, which is not run"),
        ({**MINE, "model_type": "bert", "architectures": ["Mine"]}, "needs Python code of its own, which is not run"),
        *(
            ({"model_type": "bert", "architectures": named}, r"config.json: architectures is .*no such model")
            for named in ("Mine", ["Mine"], [7], [["BertModel"]], {"a": 1}, ["BertConfig"], ["AutoModel"], ["logging"])
        ),
    ],
)
def test_a_folder_of_another_architecture_is_refused(tmp_path, monkeypatch, config, says):
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "mine.py").write_text("raise SystemExit")
    monkeypatch.setattr("builtins.input", lambda *_: pytest.fail("nobody is asked"))
    with pytest.raises(ModelError, match=says):
        build(model(f"hf:{tmp_path}"))


TINY_GPT2 = {"n_embd": 32, "n_layer": 2, "n_head": 2, "vocab_size": 100}
TINY_LLAMA = {**SMALL, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 100}
TINY_T5 = {"d_model": 32, "d_ff": 64, "num_layers": 2, "num_heads": 2, "d_kv": 16, "vocab_size": 100}


def cached(prompt: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    return {name.replace("present", "past_key_values"): x for name, x in named_outputs(prompt).items() if "." in name}


@TRANSFORMERS
@pytest.mark.parametrize(
    ("word", "options"),
    [
        ("hf:GPT2LMHeadModel", TINY_GPT2),
        ("hf:LlamaForCausalLM", TINY_LLAMA),
        ("hf:T5ForConditionalGeneration", TINY_T5),
    ],
)
def test_a_prompt_and_a_step_from_its_cache_give_what_the_whole_model_gives(word, options):
    whole = build(model(word, options=options))
    prefill, decode = (build(model(word, options=options, step=step)) for step in ("prefill", "decode"))
    ids = torch.arange(10).reshape(2, 5)
    with torch.no_grad():
        if whole.config.is_encoder_decoder:
            states = build(model(word, options=options, step="encode"))(input_ids=ids).last_hidden_state
            expected = whole(input_ids=ids, decoder_input_ids=ids).logits
            prompt = prefill(decoder_input_ids=ids[:, :4], encoder_hidden_states=states)
            step = decode(decoder_input_ids=ids[:, 4:], **cached(prompt))
        else:
            expected = whole(input_ids=ids).logits
            prompt = prefill(input_ids=ids[:, :4])
            step = decode(input_ids=ids[:, 4:], **cached(prompt))
    assert torch.allclose(prompt["logits"][:, -1], expected[:, 3], atol=1e-5)
    assert torch.allclose(step["logits"][:, -1], expected[:, 4], atol=1e-5)
