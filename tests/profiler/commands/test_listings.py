"""`python -m profiler engines` says of TensorRT what to install, why it cannot be, and what works all the same."""

from __future__ import annotations

import dataclasses

import pytest
from runs import on_console

from engines.catalog import ENGINES, Requirement
from exporters.cache import Cache
from profiler.commands import listings
from profiler.machine import nvml
from profiler.machine.nvml import Gpu
from profiler.options import Engines


def card(capability: str) -> Gpu:
    return Gpu(0, "GPU-1", "A card", 81_920.0, "580.95", capability)


@pytest.fixture
def row(monkeypatch: pytest.MonkeyPatch):
    """`row("trt", [card("9.0")])` is what the table says of that preset on a machine with these GPUs."""

    def row(preset: str, gpus: list[Gpu]) -> str:
        monkeypatch.setattr(nvml, "visible_gpus", lambda: gpus)
        shown = on_console(lambda console: listings.list_engines(Engines(), console), width=2000)
        lines = shown.splitlines()
        return next(line for line in lines if line.split()[:1] == [preset])

    return row


def lack(monkeypatch: pytest.MonkeyPatch, engine: str, *requirements: Requirement) -> None:
    monkeypatch.setitem(ENGINES, engine, dataclasses.replace(ENGINES[engine], requirements=requirements))


BINDINGS = Requirement("no_bindings|no_bindings_either", "pip install them")
LIBRARIES = Requirement("no_libraries", "pip install them")

MISSING = {
    "requirements": (
        "trt", ["9.0"], [BINDINGS, LIBRARIES],
        ["no_bindings or no_bindings_either is not installed, no_libraries is not", "pip install them",
         "fp32 tf32 fp16 bf16 int8 native"],
    ),
    "no driver": ("trt", [], None, ["TensorRT runs only on NVIDIA GPUs"]),
    "another card": (
        "trt-rtx", ["9.0"], [BINDINGS],
        ["trt-rtx does not support this GPU's compute capability 9.0; it has 7.5, 8.0, 8.6, 8.9, 12.0", "-pip install"],
    ),
    "its card": ("trt-rtx", ["8.9"], [BINDINGS], ["-does not support", "no_bindings or"]),
}  # fmt: skip


@pytest.mark.parametrize("name", MISSING)
def test_what_is_missing_and_what_goes_all_the_same(monkeypatch, row, name):
    """A word with a minus must not be said."""
    preset, cards, requirements, words = MISSING[name]
    if requirements is not None:
        lack(monkeypatch, preset, *requirements)
    said = row(preset, [card(each) for each in cards])
    for word in words:
        assert (word.removeprefix("-") in said) != word.startswith("-"), said


def test_what_only_narrower_precisions_need(monkeypatch, row):
    quantizers = dict.fromkeys(("int8", "fp8"), Requirement("no_quantizer", "pip install it"))
    monkeypatch.setitem(ENGINES, "eager", dataclasses.replace(ENGINES["eager"], quantizers=quantizers))
    assert "for int8: no_quantizer is not installed: pip install it" in row("eager", [])
    assert "for fp8: no_quantizer" in row("eager", [card("9.0")])


def test_the_cache_is_listed_and_cleared(command, tmp_path):
    root = tmp_path / "cache"
    for kind in ("onnx", "state"):
        Cache(root).entry(kind, "key", ".txt", lambda path: path.write_bytes(b"0" * 2**20))
    listed = command("cache", cwd=tmp_path, PROFILER_CACHE=str(root), PROFILER_CACHE_GIB="1.5").stdout
    assert f"2 artifacts, 0.00 GiB in {root} (PROFILER_CACHE)" in listed
    assert "a run leaves at most 1.50 GiB there" in listed
    cleared = command("cache", "clear", cwd=tmp_path, PROFILER_CACHE=str(root))
    assert "2 artifacts, 0.00 GiB removed from" in cleared.stdout
    assert [*root.glob("*/key.txt")] == []
    assert command("cache", "empty", cwd=tmp_path).stderr == "cache: unknown 'empty'; valid: list, clear\n"
    assert command("cache", cwd=tmp_path, PROFILER_CACHE=str(root), PROFILER_CACHE_GIB="much").returncode == 2
    assert command("cache", cwd=tmp_path, PROFILER_CACHE=str(root), PROFILER_CACHE_GIB="inf").returncode == 0
