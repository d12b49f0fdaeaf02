"""A factory's key follows whatever changes what its model computes, and stays while nothing does."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from exporters import fingerprint
from exporters.cache import Cache
from exporters.fingerprint import code
from exporters.onnx_export import export_onnx
from exporters.source import RANDOM_WEIGHTS, TOO_LONG, TRAINING_MODE, Identity, ModelError, ModelSource
from exporters.weights import identified
from profiler.processes.process import Call, run_one

pytestmark = pytest.mark.slow
FACTORY = """
import os
from pathlib import Path

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

def helped():
    return Net(helpers.heads.head)

def branching():
    return Net(lambda y: helpers.heads.head(y) if len(y) > 100 else y)

def reading(file="scale.txt"):
    return Net(lambda y: y * float(Path(__file__).with_name(file).read_text()))

def closed():
    scale = float(os.environ.get("SCALE", 2))
    return Net(lambda y: y * scale)

def frozen():
    net = Net(torch.relu)
    net.layer.requires_grad_("SCALE" not in os.environ)
    return net

def dropping():
    # Of six values alone, two calls would drop the same ones once in 64 times.
    return Net(lambda y: nn.functional.dropout(y.repeat(1, 99), training=True))

def unseeded():
    net = Net(torch.relu)
    net.layer.weight.data = torch.frombuffer(bytearray(os.urandom(12)), dtype=torch.uint8).reshape(3, 4).float()
    return net

def failing():
    return Net(None)

def loaded():
    net = Net(torch.relu).eval()
    net.load_state_dict({"layer.weight": torch.ones(3, 4), "layer.bias": torch.ones(3)})
    return net

def projected():
    net = loaded()
    waves = torch.randn(3)
    net.function = lambda y: y * waves
    return net

def normed():
    net = Net(torch.relu)
    net.norm = nn.BatchNorm1d(3)
    return net
"""
HELPERS = {
    "helpers/__init__.py": "FACTOR = 2\n",
    "helpers/heads.py": "from .scaling import scaled\n\ndef head(y):\n    return scaled(y)\n",
    "helpers/scaling.py": "def scaled(y):\n    return y * 2\n",
    "scale.txt": "2",
}
Identify = Callable[..., Identity]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Where the factories are."""
    folder = tmp_path / "factories"
    (folder / "helpers").mkdir(parents=True)
    for name, text in {"mine.py": FACTORY, **HELPERS}.items():
        (folder / name).write_text(text)
    return folder


@pytest.fixture
def identify(forkserver: None, tmp_path: Path, folder: Path) -> Identify:
    """What a factory's model is, asked in a process of its own as a run does."""

    def identity(name: str, threads: int = 2, variables: dict[str, str] | None = None, **options: Any) -> Identity:
        source = ModelSource("mine", f"mine:{name}", input_shape=(4,), options=options)
        call = Call(
            "profiler.worker.prepare_model:identify_model",
            (source, tmp_path),
            tmp_path / "log",
            environment=variables or {},
            path=(str(folder),),
            threads=threads,
        )
        outcome = run_one(call)
        assert outcome.status == "ok", outcome.reason
        found: Identity = outcome.value
        return found

    return identity


CHANGES: dict[str, tuple[str, str, str, set[str]]] = {
    # What changes, in the file, to this: and the parts of the identity that show it.
    "a helper of a helper": (
        "helped",
        "helpers/scaling.py",
        "def scaled(y):\n    return y * 1000\n",
        {"code", "outputs"},
    ),
    "a helper in a branch": ("branching", "helpers/scaling.py", "def scaled(y):\n    return -y\n", {"code"}),
    "a constant of a package": ("helped", "helpers/__init__.py", "FACTOR = 3\n", {"code"}),
    "a data file": ("reading", "scale.txt", "1000", {"outputs"}),
}


@pytest.mark.parametrize("what", CHANGES)
def test_a_changed_file_changes_the_key(identify: Identify, folder: Path, what: str) -> None:
    name, file, text, parts = CHANGES[what]
    before = identify(name)
    assert identify(name) == before
    (folder / file).write_text(text)
    now = identify(name)
    assert now.key != before.key
    assert {part for part in now.parts if now.parts[part] != before.parts[part]} == parts
    assert before.changes(now)


def test_a_changed_closure_option_or_flag_changes_the_key(identify: Identify, folder: Path) -> None:
    (folder / "other.txt").write_text("2")
    keys = [
        *(identify(name, variables=v).key for name in ("closed", "frozen") for v in ({}, {"SCALE": "1000"})),
        *(identify("reading", **options).key for options in ({}, {"file": "other.txt"})),
    ]
    assert len(set(keys)) == len(keys)


def test_the_key_is_the_same_with_any_number_of_threads_and_from_any_folder(
    identify: Identify, folder: Path, tmp_path: Path
) -> None:
    one = identify("helped", threads=1)
    assert one.repeatable
    folder.rename(tmp_path / "moved")
    folder.symlink_to(tmp_path / "moved")
    assert identify("helped", threads=2) == one


@pytest.mark.parametrize("name", ["dropping", "unseeded", "failing"])
def test_a_model_that_differs_each_time_never_has_the_same_key(identify: Identify, folder: Path, name: str) -> None:
    first, second = identify(name), identify(name)
    assert not first.repeatable
    assert first.key != second.key
    assert first.changes(second) == [], "which does not make it another network"
    (folder / "helpers" / "__init__.py").write_text("FACTOR = 3\n")
    assert first.changes(identify(name)) == ["its source code (helpers)"]


def test_random_weights_are_remarked_and_training_mode_where_it_changes_something(identify: Identify) -> None:
    assert identify("helped").remarks == identify("unseeded").remarks == (RANDOM_WEIGHTS,)
    assert identify("normed").remarks == (TRAINING_MODE, RANDOM_WEIGHTS)
    assert identify("loaded").repeatable and identify("loaded").remarks == ()


def test_what_is_random_beside_the_state_is_the_same_at_its_seed(identify: Identify) -> None:
    assert identify("projected").repeatable
    assert identify("projected").key == identify("projected").key


def test_what_is_imported_is_found_without_importing_it(identify: Identify, folder: Path) -> None:
    (folder / "mine.py").write_text(FACTORY + "\ndef later():\n    from lazy.part import missing\n    import absent\n")
    (folder / "lazy").mkdir()
    for name in ("__init__", "part"):
        (folder / "lazy" / f"{name}.py").write_text("raise SystemExit('this was imported')\n")
    modules = {"mine", "helpers", "helpers.heads", "helpers.scaling", "lazy", "lazy.part"}
    assert set(identify("helped").parts["code"]) == modules


def test_a_model_that_changes_while_it_is_prepared_is_not_kept(
    small: ModelSource, factories: Path, cache: Cache
) -> None:
    source = identified(small)
    factories.write_text(factories.read_text() + "\n# edited\n")
    with pytest.raises(
        ModelError, match=r"'mine' changed while it was being prepared \(its source code \(small_factories\)\)"
    ):
        export_onnx(source, "fp32", cache)
    assert not list((cache.root / "onnx").glob("*.onnx"))


def test_of_a_model_that_takes_too_long_the_key_is_without_outputs(
    small: ModelSource, factories: Path, cache: Cache, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = identified(small).identity
    monkeypatch.setattr(fingerprint, "SECONDS", -1.0)
    slow = identified(small)
    assert known is not None
    assert slow.identity is not None
    assert (slow.identity.repeatable, slow.identity.parts["outputs"]) == (True, TOO_LONG)
    assert slow.identity == identified(small).identity
    assert known.changes(slow.identity) == slow.identity.changes(known) == []
    assert export_onnx(slow, "fp32", cache).path.is_file(), "it has not changed while it was exported"
    factories.write_text(factories.read_text() + "\n# edited\n")
    edited = identified(small).identity
    assert edited is not None
    assert slow.identity.changes(edited) == ["its source code (small_factories)"]


@pytest.fixture
def cache(tmp_path: Path) -> Cache:
    return Cache(tmp_path / "cache")


def test_a_library_is_left_out_wherever_it_is_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    library, own = tmp_path / "site", tmp_path / "own"
    for folder in (library / "somelib-1.0.dist-info", library / "somelib", own / "deep" / "deeper"):
        folder.mkdir(parents=True)
    (library / "somelib" / "__init__.py").write_text("VERSION = 1\n")
    (own / "part.py").write_text("")
    # No package has an __init__.py here, so that none has a place before it is imported.
    (own / "deep" / "deeper" / "mine.py").write_text("")
    (own / "network.py").write_text("def make():\n    import somelib, part, deep.deeper.mine\n")
    for folder in (library, own):
        monkeypatch.syspath_prepend(folder)
    assert set(code(["network"])) == {"network", "part"}
