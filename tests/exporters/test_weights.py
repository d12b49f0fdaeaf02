"""A model's key follows whatever changes what it computes, and stays while nothing does."""

from __future__ import annotations

import importlib
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from exporters.cache import Cache
from exporters.factories import save
from exporters.onnx_export import export_onnx
from exporters.source import Identity, ModelError, ModelSource
from exporters.weights import code, identified, identify, source_key

FACTORY = """
import torch
from torch import nn

import helpers.heads
from helpers import FACTOR

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
    return ModelSource("mine", f"mine:{name}", input_shape=(4,), **more)  # type: ignore[arg-type]


def test_a_factorys_key_follows_files_weights_and_options(folder: Path) -> None:
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


MAIN = 'if __name__ == "__main__":\n    helped(3.0)\n'


@pytest.mark.parametrize(
    ("file", "before", "after", "counts"),
    [
        ("mine.py", "def later", "def another():\n    return helped\n\ndef later", False),
        ("mine.py", "import absent", "return 1", False),
        ("mine.py", "def later", f"# A remark.\n{MAIN}\ndef later", False),
        ("helpers/scaling.py", "def scaled", "def other():\n    return 1\n\ndef scaled", False),
        ("mine.py", "self.layer(x)", "2 * self.layer(x)", True),
        ("mine.py", "def later", "FACTORS = 1\n\ndef later", True),
        ("mine.py", "def later", "@print\ndef later", True),
        ("mine.py", "def later", "class Head(Net):\n    pass\n\ndef later", False),
        ("mine.py", "def later", "\f\ndef __getattr__(name):\n    return 1\n\ndef later", True),
        ("mine.py", "import absent", "import absent  # A remark.", False),
        ("mine.py", "scale=1.0):", "scale=1.0):  # A remark.", False),
        ("helpers/__init__.py", "2", "3", True),
        ("helpers/heads.py", "return scaled(y)", "return scaled(y) + 1", True),
    ],
)
def test_only_what_a_factory_mentions_is_its_code(
    folder: Path, file: str, before: str, after: str, counts: bool
) -> None:
    was = code(["mine"], factory("helped"))
    (folder / file).write_text(FILES[file].replace(before, after))
    assert (code(["mine"], factory("helped")) != was) == counts


def test_an_option_may_name_what_a_factory_makes_and_what_is_looked_up_may_be_anything(folder: Path) -> None:
    made = "import other\n\ndef one():\n    return 1\n\ndef make(name):\n    return "

    def changes(how: str, name: str) -> bool:
        source = factory("make", options={"name": name})
        (folder / "mine.py").write_text(made + how)
        was = code(["mine"], source)
        (folder / "mine.py").write_text(made.replace("return 1", "return 2") + how)
        return code(["mine"], source) != was

    assert changes("other.make(name)", "one") and not changes("other.make(name)", "two")
    assert changes("globals()[f'o{name}']()", "ne")
    assert not changes("other.make().eval()", "vars"), "a module's mode, and a value, look nothing up"
    broken, long = [], f"helped = {' + '.join(['1'] * 900)}"
    for text in ("def helped(:\n", "def helped(: # other\n", long, f"{long}  # other\n"):
        (folder / "mine.py").write_text(text)
        broken.append(code(["mine"], factory("helped"))["mine"])
    assert len(set(broken)) == 4, "of what is no Python, or too long for it, all counts"


def test_a_function_that_is_saved_with_its_inputs_has_the_code_of_its_file(folder: Path) -> None:
    def identity() -> Identity:
        return identify(ModelSource("plain", **save(importlib.import_module("plain").make, folder, torch.ones(2, 4))))

    (folder / "plain.py").write_text("from torch import nn\n\ndef make():\n    return nn.Sequential(nn.ReLU())\n")
    before = identity()
    assert identity() == before
    (folder / "plain.py").write_text((folder / "plain.py").read_text().replace("ReLU", "GELU"))
    assert before.changes(identity()) == ["code (plain)"]


def test_a_model_that_changes_while_it_is_prepared_is_not_kept(folder: Path, tmp_path: Path) -> None:
    source, cache = identified(factory("helped")), Cache(tmp_path / "cache")
    (folder / "mine.py").write_text(FACTORY.replace("scale=1.0", "scale=2.0"))
    with pytest.raises(ModelError, match=r"changed while it was being prepared \(code \(mine\)\)"):
        export_onnx(source, "fp32", cache)
    assert not list((cache.root / "onnx").glob("*.onnx"))


def test_a_library_is_left_out_wherever_it_is_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
    source = ModelSource("network", factory="network:make")
    assert set(code(["network"], source)) == {"network", "part"}
    assert set(code(["network", "somelib"], source)) == {"network", "part", "somelib"}, "whose module the model is"


def test_canonical_keys_differ_by_name_options_and_weights(tmp_path: Path) -> None:
    weights = tmp_path / "weights.pt"
    weights.write_bytes(b"a")
    sources = [
        ModelSource("googlenet"),
        ModelSource("resnet18"),
        ModelSource("googlenet", weights=weights, key="ema"),
        ModelSource("googlenet", weights=weights, prefix="module."),
        ModelSource("googlenet", weights=weights),
    ]
    keys = [source_key(source) for source in sources]
    assert len(set(keys)) == len(keys)
    assert keys == [source_key(source) for source in sources]
    assert source_key(ModelSource("mine", network="googlenet")) == keys[0], "a name is no part of a network"
    weights.write_bytes(b"b")
    assert source_key(sources[-1]) != keys[-1]
    with pytest.raises(ModelError, match="no such file"):
        source_key(replace(sources[0], weights=tmp_path / "absent.pt"))
