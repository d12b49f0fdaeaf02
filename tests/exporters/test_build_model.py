"""Modules get the right weights, and sources that cannot be built an error that helps."""

from __future__ import annotations

import copy
import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from exporters import load_model
from exporters.build_model import CALIBRATION_ITEMS, SEED, build, load, restore, structure
from exporters.cache import Cache
from exporters.inputs import input_specs, seeded_inputs
from exporters.random_weights import calibrate, initialize
from exporters.source import ModelError, ModelSource
from exporters.weights import cached_state


def states_equal(first: nn.Module, second: nn.Module) -> bool:
    one, two = first.state_dict(), second.state_dict()
    return one.keys() == two.keys() and all(torch.equal(one[key], two[key]) for key in one)


@pytest.fixture(scope="module")
def resnet18() -> nn.Module:
    """No test writes to it."""
    return load_model("resnet18")


@pytest.fixture(scope="module")
def googlenet() -> dict[str, Tensor]:
    """The tensors of a state, which no test writes to."""
    return load_model("googlenet").state_dict()


def test_seeded_weights_do_not_depend_on_the_global_generator(resnet18: nn.Module) -> None:
    torch.manual_seed(torch.initial_seed() + 1)
    before = torch.get_rng_state()
    second = load_model("resnet18")
    assert torch.equal(before, torch.get_rng_state())
    assert states_equal(resnet18, second)
    assert not second.training
    assert {parameter.dtype for parameter in second.parameters()} == {torch.float32}
    assert all(parameter.requires_grad and parameter.device.type == "cpu" for parameter in second.parameters())


@pytest.mark.parametrize("name", ["alexnet", "googlenet", "resnet50"])
def test_seeded_activations_stay_in_range(name: str) -> None:
    """Far inside fp16's 65504, and neither vanishing nor the same for every item."""
    source = ModelSource(name)
    model = load(source)
    peaks: list[float] = []

    def record(_module: nn.Module, _inputs: object, output: Tensor) -> None:
        peaks.append(output.abs().max().item())

    for module in model.modules():
        module.register_forward_hook(record)
    with torch.no_grad():
        logits = model(torch.from_numpy(seeded_inputs(input_specs(source), batch=2)[0]))
    assert max(peaks) < 100
    assert 0.1 < logits.std() < 30
    assert (logits[0] - logits[1]).std() > 0.01


def test_seeded_resnet_is_well_conditioned() -> None:
    """fp32 against fp64: 3e-4 for ResNet-152 whose residual branches are at full scale, 3e-6 here. On smaller images,
    which do not change how deep it is."""
    model = structure(ModelSource("resnet152")).eval()
    generator = torch.Generator().manual_seed(SEED)
    initialize(model, generator)
    items = torch.randn(CALIBRATION_ITEMS, 3, 64, 64, generator=generator)
    calibrate(model, lambda: model(items))
    x = torch.randn(1, 3, 64, 64, generator=generator)
    with torch.no_grad():
        actual = model(x).double()
        expected = model.double()(x.double())
    assert torch.linalg.vector_norm(actual - expected) < 2e-5 * torch.linalg.vector_norm(expected)


def test_batch_normalization_is_calibrated(resnet18: nn.Module) -> None:
    statistics = resnet18.get_buffer("layer4.1.bn2.running_var")
    assert not torch.equal(statistics, torch.ones_like(statistics))


@pytest.mark.parametrize("suffix", [".pt", ".safetensors"])
def test_weights_file(tmp_path: Path, suffix: str, googlenet: dict[str, Tensor]) -> None:
    state = {**googlenet, "fc.bias": torch.full((1000,), 3.0)}
    path = tmp_path / f"weights{suffix}"
    save_file(state, path) if suffix == ".safetensors" else torch.save(state, path)
    model = load_model("googlenet", weights=path)
    assert torch.equal(model.get_parameter("fc.bias"), state["fc.bias"])
    assert torch.equal(model.get_parameter("fc.weight"), state["fc.weight"])


def test_weights_that_do_not_fit_name_the_keys(tmp_path: Path, googlenet: dict[str, Tensor]) -> None:
    state = dict(googlenet)
    state["head.bias"] = state.pop("fc.bias")
    state["fc.weight"] = torch.zeros(10, 1024)
    torch.save(state, tmp_path / "weights.pt")
    with pytest.raises(ModelError) as caught:
        load_model("googlenet", weights=tmp_path / "weights.pt")
    for words in ("1 missing (fc.bias)", "1 unexpected (head.bias)", "fc.weight (10, 1024) instead of (1000, 1024)"):
        assert words in str(caught.value)
    assert str(caught.value).endswith("; canonical networks have 1000 classes: for another head give a factory")


def test_weights_that_are_not_there(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="no such file"):
        load_model("googlenet", weights=tmp_path / "weights.pt")


@pytest.fixture
def checkpoint(tmp_path: Path, small: ModelSource) -> ModelSource:
    """The small model with the weights of a training script's checkpoint."""
    state = {f"module.{name}": tensor + 1 for name, tensor in build(small).state_dict().items()}
    path = tmp_path / "checkpoint.pt"
    torch.save({"epoch": 3, "state_dict": state, "optimizer": {"state": {}, "param_groups": []}}, path)
    return replace(small, weights=path)


def test_a_checkpoint_is_read_by_key_and_prefix(checkpoint: ModelSource) -> None:
    loaded = load(replace(checkpoint, key="state_dict", prefix="module."))
    own = build(replace(checkpoint, weights=None)).state_dict()
    assert all(torch.equal(tensor, own[name] + 1) for name, tensor in loaded.state_dict().items())


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({}, "add `key: state_dict` and `prefix: module.` next to weights"),
        ({"prefix": "module."}, "it is a checkpoint of epoch, state_dict, optimizer; add `key: state_dict` next to"),
        ({"key": "model"}, "it has no key 'model'; give one of state_dict"),
        ({"key": "optimizer"}, "no state dict of tensors; save one by torch.save"),
        (
            {"key": "state_dict"},
            "8 unexpected (module.0.weight, module.1.weight, module.1.bias, …); add `prefix: module.`",
        ),
        (
            {"key": "state_dict", "prefix": "model."},
            "keys do not begin with 'model.', module.0.weight for one; correct",
        ),
    ],
)
def test_a_checkpoint_that_does_not_fit_says_which_key_to_give(
    checkpoint: ModelSource, changes: dict[str, str], says: str
) -> None:
    with pytest.raises(ModelError) as caught:
        load(replace(checkpoint, **changes))  # type: ignore[arg-type]
    assert says in str(caught.value)


def test_unknown_option_suggests_a_known_one() -> None:
    with pytest.raises(ModelError, match=r"unknown option 'auxilary'; did you mean 'auxiliary'"):
        load_model("googlenet", auxilary=True)
    with pytest.raises(ModelError, match="valid: none"):
        load_model("vgg16", depth=3)


def test_factory(small: ModelSource) -> None:
    torch.manual_seed(1)
    first = build(small)
    torch.manual_seed(2)
    assert states_equal(first, build(small))
    assert not first.training
    wide = ModelSource(small.name, factory=small.factory, input_shape=small.input_shape, options={"width": 4})
    assert build(wide).get_parameter("0.weight").shape[0] == 4


@pytest.mark.parametrize(
    ("factory", "words"),
    [
        ("small_factories:raising", "raised ValueError: no luck at .*small_factories.py:14"),
        ("small_factories:other", "returned builtins.dict, not a torch.nn.Module"),
        ("small_factories:smal", "'mine': small_factories has no 'smal'; did you mean 'small'\\?$"),
        ("small_factories:zzz", "small_factories has no 'zzz'; valid: .*Branching, branching$"),
        ("smal_factories:f", "no module 'smal_factories' in {folder}.*import_from.*; did you mean 'small_factories'"),
        ("absent:f", r"'absent:f': there is no module 'absent' in {folder}.* \(import_from\), nor installed$"),
        ("lacking:f", "raised ModuleNotFoundError: No module named 'absent' at .*lacking.py:1"),
        (
            "inside:f",
            'no known parent package at .*inside.py:1 .*; write factory: "{name}.inside:f" and put {above} into im',
        ),
        ("package:f", '__init__.py:1 .*; write factory: "{name}.package:f" and put {above} into import_from$'),
        (
            "package.part:f",
            '__init__.py:1 .*; write factory: "{name}.package.part:f" and put {above} into import_from$',
        ),
        ("small_factories", "is not 'package.module:function'"),
    ],
)
def test_factory_errors(factories: Path, factory: str, words: str) -> None:
    folder = factories.parent
    (folder / "lacking.py").write_text("import absent\n")
    (folder / "package").mkdir()
    (folder / "package" / "__init__.py").write_text("from ..small_factories import small as f\n")
    (folder / "package" / "part.py").write_text("f = None\n")
    (folder / "inside.py").write_text("from .small_factories import small as f\n")
    places = {"{folder}": folder, "{above}": folder.parent, "{name}": folder.name}
    for key, place in places.items():
        words = words.replace(key, re.escape(str(place)))
    with pytest.raises(ModelError, match=words):
        build(ModelSource("mine", factory=factory, input_shape=(3, 16, 16)))


def test_restore(tmp_path: Path, small: ModelSource, resnet18: nn.Module) -> None:
    for source, model in ((ModelSource("resnet18"), copy.deepcopy(resnet18)), (small, load(small))):
        first = next(model.parameters())
        with torch.no_grad():
            first.mul_(2)  # so that a restore that ignores the file is noticed
        torch.save(model.state_dict(), tmp_path / "state.pt")
        restored = restore(source, tmp_path / "state.pt")
        assert states_equal(model, restored)
        assert not restored.training
        assert all(parameter.requires_grad for parameter in restored.parameters())


def test_restored_weights_are_a_private_copy(tmp_path: Path, resnet18: nn.Module) -> None:
    source, path = ModelSource("resnet18"), tmp_path / "state.pt"
    torch.save(resnet18.state_dict(), path)
    before = path.read_bytes()
    with torch.no_grad():
        for parameter in restore(source, path).parameters():
            parameter.zero_()
    assert path.read_bytes() == before


def test_restore_refuses_another_models_state(tmp_path: Path, resnet18: nn.Module) -> None:
    torch.save(resnet18.state_dict(), tmp_path / "state.pt")
    with pytest.raises(ModelError, match="cannot be restored"):
        restore(ModelSource("resnet34"), tmp_path / "state.pt")


def test_cached_state(cache: Cache, resnet18: nn.Module) -> None:
    source = ModelSource("resnet18")
    path = cached_state(source, cache)
    modified = path.stat().st_mtime_ns
    assert cached_state(source, cache) == path
    assert path.stat().st_mtime_ns == modified
    assert states_equal(restore(source, path), resnet18)
