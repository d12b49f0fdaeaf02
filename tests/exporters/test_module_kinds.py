"""Modules of all kinds run in eager as PyTorch runs them, and hooks see the call that PyTorch makes."""

from __future__ import annotations

import zipfile
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import torch

from exporters import build_model
from exporters.build_model import build, load, read_weights
from exporters.cache import Cache
from exporters.calls import call
from exporters.inputs import input_specs, seeded_inputs
from exporters.onnx_export import export_onnx
from exporters.onnx_files import read_onnx
from exporters.source import ModelError, ModelSource

pytestmark = pytest.mark.slow

KINDS = """
import dataclasses

import torch
from does import Does
from torch import nn

x = torch.randn(4, 16)

def base():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 4)).eval()

def program():
    return torch.export.export(base(), (x,)), (x,)

def quantized():
    return torch.ao.quantization.quantize_dynamic(base(), {nn.Linear}), (x,)

@torch.inference_mode()
def in_inference_mode():
    return base(), (x,)

def lazy():
    return nn.Sequential(nn.LazyLinear(8), nn.ReLU(), nn.LazyLinear(4)), (x,)

def sparse_buffer():
    a, layer = torch.eye(16).to_sparse(), nn.Linear(16, 16)
    return Does(lambda self, x: torch.sparse.mm(self.a, self.layer(x).T).T, a=a, layer=layer), (x,)

def complex_weights():
    w = nn.Parameter(torch.randn(9, dtype=torch.cfloat))
    return Does(lambda self, x: torch.fft.irfft(torch.fft.rfft(x) * self.w, n=16), w=w), (x,)

@dataclasses.dataclass
class Sample:
    image: torch.Tensor
    mask: torch.Tensor

def dataclass_input():
    takes = Does(lambda self, sample: self.layer(sample.image * sample.mask), layer=nn.Linear(16, 4))
    return takes, (Sample(x, torch.ones(4, 16)),)

class Step(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(16, 16)
    def forward(self, x, t):
        return self.layer(x) * t

def time_step():
    return Step(), (x, torch.tensor(0.5))

def double_inside():
    return Does(lambda self, x: self.layer(x.double()).float(), layer=nn.Linear(16, 16).double()), (x,)

def compiled():
    return torch.compile(Does(lambda self, x: self.part(x), part=torch.compile(base()))), (x,)

class Delegates(Does):
    def __getattr__(self, name):
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(self.part, name)

def quantized_by_torchao():
    from torchao.quantization import Int8WeightOnlyConfig, quantize_
    model = base()
    quantize_(model, Int8WeightOnlyConfig())
    return model, (x,)

def delegating():
    return Delegates(lambda self, x: self.part(x) * 10, part=torch.compile(base(), backend="eager")), (x,)

def meta():
    with torch.device("meta"):
        model = nn.Sequential(nn.Linear(16, 16), nn.Linear(16, 16))
        model[1].weight = model[0].weight
        model.register_buffer("scale", torch.ones(1), persistent=False)
    return model, (x,)

def meta_state():
    model = meta()[0]
    del model.scale
    return model, (x,)

def hook_on_outputs():
    torch.manual_seed(0)
    model = Does(lambda self, x: {"logits": self.layer(x)}, layer=nn.Linear(16, 4))
    model.register_forward_hook(lambda module, args, out: {"p": out["logits"].softmax(-1)})
    return model, (x,)

def hook_on_inputs():
    torch.manual_seed(0)
    model = Does(lambda self, d: self.layer(d["a"]) + self.layer(d["b"]), layer=nn.Linear(16, 4))
    model.register_forward_pre_hook(lambda module, args: ({"a": args[0]["a"] / 255, "b": args[0]["b"]},))
    return model, ({"a": torch.randn(4, 16), "b": torch.randn(4, 16)},)
"""


@pytest.fixture
def kinds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "module_kinds.py").write_text(KINDS)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PROFILER_CACHE", str(tmp_path / "cache"))
    return tmp_path


def run(source: ModelSource) -> torch.Tensor:
    model, specs = build(source), input_specs(source)
    tensors = [torch.from_numpy(array) for array in seeded_inputs(specs, 4)]
    with torch.no_grad():
        result = call(model, specs, tensors)
    return next(iter(result.values())) if isinstance(result, dict) else result


@pytest.mark.usefixtures("kinds")
@pytest.mark.parametrize(
    "name",
    ["program", "quantized", "in_inference_mode", "lazy", "complex_weights", "dataclass_input", "time_step",
     "double_inside", "sparse_buffer", "delegating", "quantized_by_torchao"],
)  # fmt: skip
def test_each_kind_computes_what_it_computes_by_itself(name):
    import module_kinds

    torch.manual_seed(0)  # As a factory is called.
    model, given = getattr(module_kinds, name)()
    source = ModelSource(name, factory=f"module_kinds:{name}")
    with torch.no_grad():
        expected = model.module()(*given) if name == "program" else model(*given)
    torch.testing.assert_close(run(source), expected)


@pytest.mark.usefixtures("kinds")
def test_compiled_modules_are_plain_at_any_depth():
    model = build(ModelSource("c", factory="module_kinds:compiled"))
    assert not any(hasattr(module, "_orig_mod") for module in model.modules())
    assert not any(name.startswith("_orig_mod") for name in model.state_dict())


@pytest.mark.usefixtures("kinds")
def test_a_weights_file_fills_meta_tensors_and_keeps_ties(tmp_path):
    weights = tmp_path / "w.pt"
    state = torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.Linear(16, 16)).state_dict()
    torch.save(state | {"1.weight": state["0.weight"]}, weights)
    model = load(ModelSource("m", factory="module_kinds:meta_state", weights=weights))
    assert all(torch.equal(model.state_dict()[name], state[name]) for name in ("0.weight", "0.bias", "1.bias"))
    assert model[0].weight is model[1].weight
    for name, more, says in (
        ("meta_state", {}, "leaves 0.weight on the meta device, .* or add `weights: FILE`$"),
        ("meta", {"weights": weights}, "leaves scale on the meta device, without values; build it on the CPU$"),
    ):
        with pytest.raises(ModelError, match=says):
            build(ModelSource(name, factory=f"module_kinds:{name}", **more))


@pytest.mark.parametrize("name", ["hook_on_outputs", "hook_on_inputs"])
def test_hooks_on_the_root_run_in_an_export_as_in_eager(kinds, name):
    source = ModelSource(name, factory=f"module_kinds:{name}")
    export = export_onnx(source, "fp32", Cache(kinds / "cache"))
    session = onnxruntime.InferenceSession(export.path)
    arrays = seeded_inputs(input_specs(source), 4)
    feeds = dict(zip((each.name for each in session.get_inputs()), arrays, strict=True))
    np.testing.assert_allclose(session.run(None, feeds)[0], run(source).numpy(), rtol=1e-5, atol=1e-6)


def test_a_pointer_of_git_lfs_says_how_to_fetch_the_file(tmp_path):
    for name, read in (("w.pt", read_weights), ("m.onnx", read_onnx)):
        (tmp_path / name).write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n")
        with pytest.raises(ModelError, match="git lfs pull"):
            read(tmp_path / name)


def compressed(plain: Path) -> Path:
    """Rezip a checkpoint, as `zip -r` does."""
    small = plain.with_name("small.pt")
    with zipfile.ZipFile(plain) as source, zipfile.ZipFile(small, "w", zipfile.ZIP_DEFLATED) as target:
        for member in source.namelist():
            target.writestr(member, source.read(member))
    return small


def test_compressed_weights_are_read_as_saved_unless_they_unpack_to_far_more(tmp_path, monkeypatch):
    state = {"weight": torch.zeros(512, 512), "bias": torch.randn(64)}
    torch.save(state, plain := tmp_path / "plain.pt")
    small = compressed(plain)
    for each in (plain, small):
        found = read_weights(each)
        assert all(torch.equal(found[key], value) for key, value in state.items())
    monkeypatch.setattr(build_model, "_ALWAYS_UNPACKED", 2**19)
    assert read_weights(plain)["weight"].shape == (512, 512)
    with pytest.raises(ModelError, match=r"its [\d,]+ bytes unpack to 1,04[\d,]+\); save one by"):
        read_weights(small)
