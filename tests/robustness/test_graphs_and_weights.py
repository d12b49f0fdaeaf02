"""Hostile and damaged graphs and weights: each soon gets its sentence, no code runs, and the good ones are taken.

All go through the function by which a run prepares a model, many in one process; where one ends that, another goes on.
"""

from __future__ import annotations

import random
import re
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import hostile_graphs
import hostile_weights
import pytest

from exporters.build_model import build
from exporters.source import ModelSource
from profiler.processes.process import Call, run_one

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]
Ended = tuple[str, str]
"""A status and a reason."""


@pytest.fixture
def folder() -> Iterator[Path]:
    """Make a folder for the files of one test."""
    with tempfile.TemporaryDirectory() as name:
        yield Path(name)


def graph(path: Path) -> ModelSource:
    return ModelSource("m", onnx=path)


def weights(path: Path) -> ModelSource:
    options = {"in_features": 4, "out_features": 3}
    return ModelSource("m", "torch.nn:Linear", input_shape=(4,), options=options, weights=path)


def ends(sources: Sequence[ModelSource], folder: Path) -> list[Ended]:
    """Prepare each; returns how that ended."""
    calls = [Call("try_files:try_one", (source, folder), folder / "log", 60, 60) for source in sources]
    outcomes = map(run_one, calls)
    return [outcome.value or (outcome.status, str(outcome.reason)) for outcome in outcomes]


def is_sentence(text: str) -> bool:
    return text.count("\n") <= 1 and len(text) < 1_500 and "Traceback" not in text and "raised " not in text


def test_every_hostile_graph_and_file_of_weights_gets_its_sentence(forkserver, soak, folder):
    sources, expected = list[ModelSource](), dict[str, tuple[str, str]]()
    for name, (make, *end) in hostile_graphs.GRAPHS.items():
        own = folder / name.replace("/", "-")
        own.mkdir()
        sources.append(graph(make(own)))
        expected[f"graph {name}"] = tuple(end)
    for number, (name, (suffix, make, *end)) in enumerate(hostile_weights.WEIGHTS.items()):
        path = folder / f"{number}{suffix}"
        make(path)
        sources.append(weights(path))
        expected[f"weights {name}"] = tuple(end)
    found = dict(zip(expected, ends(sources, folder), strict=True))
    wrong = {
        name: end
        for (name, end), (status, pattern) in zip(found.items(), expected.values(), strict=True)
        if not (re.fullmatch(status, end[0]) and re.search(pattern, end[1]) and is_sentence(end[1]))
    }
    assert wrong == {}
    soak.count("graphs and weights", tried=len(found), code_run=int((folder / "code ran").exists()))


def test_a_factorys_imaginary_parts_do_not_vanish(forkserver, folder):
    source = ModelSource("m", factory="hostile_weights:with_a_spectrum", input_shape=(4,))
    ((status, reason),) = ends([source], folder)
    assert status == "ok", reason
    assert any(tensor.is_complex() for tensor in build(source).state_dict().values())


def mutated(content: bytes, rng: random.Random) -> bytes:
    """The same with a few bytes changed, put in, taken out, doubled, or all after some place missing."""
    data = bytearray(content)
    for _ in range(rng.choice([1, 1, 2, 5, 20])):
        place, length = rng.randrange(len(data) + 1), rng.choice([1, 2, 8, 40])
        kinds = [
            (1, bytes([rng.randrange(256)])),
            (0, rng.choice([b"\xff", b"\0", b"\x7f"]) * length),
            (length, b""),
            (0, bytes(data[place : place + length])),
            (1, b"\xff" * 9 + b"\x01"),  # A large number as protobuf writes it.
            (len(data) if rng.random() < 0.2 else 0, b""),
        ]
        gone, put = rng.choice(kinds)
        data[place : place + gone] = put
    return bytes(data)


def content_of(make: Callable[[Path], object], suffix: str) -> bytes:
    with tempfile.TemporaryDirectory() as name:
        path = Path(name, f"file{suffix}")
        make(path)
        return path.read_bytes()


SEEDS: dict[str, Callable[[], bytes]] = {
    ".onnx": lambda: hostile_graphs.good().SerializeToString(),
    ".external.onnx": lambda: hostile_graphs.external("w.bin").SerializeToString(),
    ".pt": hostile_weights.good,
    ".safetensors": lambda: content_of(hostile_weights.headed(hostile_weights.described([3, 4])), ".safetensors"),
    ".old.pt": lambda: content_of(hostile_weights.saved(_use_new_zipfile_serialization=False), ".pt"),
    ".code.pt": lambda: content_of(hostile_weights.with_code_as_long_ago, ".pt"),
}


def test_damaged_graphs_and_weights_end_in_words(forkserver, soak, folder):
    contents = {suffix: make() for suffix, make in SEEDS.items()}
    sources, files = [], []
    for rng in soak.trials(24, 80):
        own = folder / str(rng.trial)
        own.mkdir()
        (own / "w.bin").write_bytes(bytes(64))
        suffix = list(contents)[rng.trial % len(contents)]
        files.append(mutated(contents[suffix], rng))
        path = own / f"m{suffix}"
        path.write_bytes(files[-1])
        sources.append(graph(path) if suffix.endswith(".onnx") else weights(path))
    found = ends(sources, folder)
    silent = [end for end in found if end[0] != "ok" and not (end[1] and is_sentence(end[1]))]
    assert silent == []
    hung = [file for file, end in zip(files, found, strict=True) if end[0] == "timeout" and "loops" not in end[1]]
    assert hung == []
    soak.count("graphs and weights", tried=len(found), code_run=int(any(folder.rglob("code ran"))))
