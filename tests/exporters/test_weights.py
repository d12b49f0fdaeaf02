"""A model's key follows whatever changes what it computes, and stays while nothing does."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest
import torch

from exporters.cache import Cache
from exporters.factories import save
from exporters.onnx_export import export_onnx
from exporters.source import Identity, ModelError, ModelSource
from exporters.weights import code, identified, identify

FACTORY = """
import torch
from torch import nn

import helpers.heads

class Net(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.layer, self.function = nn.Linear(4, 3), function

    def forward(self, x):
        return self.function(self.layer(x))

def helped(scale=1.0):
    net = Net(helpers.heads.head)
    net.layer.weight.data *= scale
    return net

def later():
    from lazy.part import missing
    import absent
"""
FILES = {
    "mine.py": FACTORY,
    "helpers/__init__.py": "FACTOR = 2\n",
    "helpers/heads.py": "from .scaling import scaled\n\ndef head(y):\n    return scaled(y)\n",
    "helpers/scaling.py": "def scaled(y):\n    return y * 2\n",
    "lazy/__init__.py": "raise SystemExit('this was imported')\n",
    "lazy/part.py": "raise SystemExit('this was imported')\n",
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name, text in FILES.items():
        (tmp_path / "factories" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "factories" / name).write_text(text)
    monkeypatch.syspath_prepend(tmp_path / "factories")
    for name in [name for name in sys.modules if name.partition(".")[0] in ("mine", "plain", "helpers", "lazy")]:
        monkeypatch.delitem(sys.modules, name)
    return tmp_path / "factories"


def factory(name: str, **more: object) -> ModelSource:
    return ModelSource("mine", f"mine:{name}", input_shape=(4,), **more)


def test_a_factorys_key_follows_files_weights_and_options(folder):
    before = identify(factory("helped"))
    assert identify(factory("helped")) == before
    modules = {"mine", "helpers", "helpers.heads", "helpers.scaling", "lazy", "lazy.part"}
    assert set(before.parts["code"]) == modules, "what is imported is found without importing it"
    other = identify(factory("helped", options={"scale": 2.0}))
    assert before.changes(other) == ["options (scale)", "state"]
    (folder / "helpers" / "scaling.py").write_text("def scaled(y):\n    return y * 1000\n")
    now = identify(factory("helped"))
    assert now.key != before.key
    assert before.changes(now) == ["code (helpers.scaling)"]


@pytest.mark.parametrize("text", [FACTORY + "# A remark.\n", "def helped(:\n", f"helped = {' + '.join(['1'] * 900)}"])
def test_a_file_that_is_imported_counts_whole_even_if_it_is_no_python(folder, text):
    before = code(["mine"])
    (folder / "mine.py").write_text(text)
    assert code(["mine"])["mine"] != before["mine"]


def test_a_function_that_is_saved_with_its_inputs_has_the_code_of_its_file(folder):
    def identity() -> Identity:
        return identify(ModelSource("plain", **save(importlib.import_module("plain").make, folder, torch.ones(2, 4))))

    (folder / "plain.py").write_text("from torch import nn\n\ndef make():\n    return nn.Sequential(nn.ReLU())\n")
    before = identity()
    assert identity() == before
    (folder / "plain.py").write_text((folder / "plain.py").read_text().replace("ReLU", "GELU"))
    assert before.changes(identity()) == ["code (plain)"]


def test_a_model_that_changes_while_it_is_prepared_is_not_kept(folder, tmp_path):
    source, cache = identified(factory("helped")), Cache(tmp_path / "cache")
    (folder / "mine.py").write_text(FACTORY.replace("scale=1.0", "scale=2.0"))
    with pytest.raises(ModelError, match=r"changed while it was being prepared \(code \(mine\)\)"):
        export_onnx(source, "fp32", cache)
    assert not list((cache.root / "onnx").glob("*.onnx"))


def test_a_library_is_left_out_wherever_it_is_installed(tmp_path, monkeypatch):
    library, own = tmp_path / "site", tmp_path / "own"
    for made in (library / "somelib-1.0.dist-info", library / "somelib", own / "deep" / "deeper"):
        made.mkdir(parents=True)
    (library / "somelib" / "__init__.py").write_text("VERSION = 1\n")
    (own / "part.py").write_text("")
    # No package has an __init__.py here, so that none has a place before it is imported.
    (own / "deep" / "deeper" / "mine.py").write_text("")
    (own / "network.py").write_text("def make():\n    import somelib, part, deep.deeper.mine\n")
    for each in (library, own):
        monkeypatch.syspath_prepend(each)
    assert set(code(["network"])) == {"network", "part"}
    assert set(code(["network", "somelib"])) == {"network", "part", "somelib"}, "whose module the model is"
