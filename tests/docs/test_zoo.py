"""The zoo's job has the same models in both of its forms, and its own models take their inputs."""

from __future__ import annotations

from pathlib import Path

import torch

from exporters.factories import call_factory
from exporters.inputs import input_specs, seeded_inputs
from profiler.job.config import load_config

ZOO = Path(__file__).resolve().parents[2] / "examples" / "zoo.yaml"


def test_both_forms_have_the_same_models():
    small, whole = (load_config(ZOO, device).models for device in ("cpu", "cuda"))
    assert [entry.name for entry in small] == [entry.name for entry in whole]
    assert {entry.library for entry in whole} == {"timm", "torchvision", "hf", None}


def test_its_own_models_take_their_inputs(monkeypatch):
    monkeypatch.syspath_prepend(ZOO.parent)
    entries = [entry for entry in load_config(ZOO, "cpu").models if entry.factory]
    assert entries
    for entry in entries:
        source = entry.source()
        inputs = [torch.from_numpy(array).to("meta") for array in seeded_inputs(input_specs(source), 2)]
        with torch.device("meta"):
            assert call_factory(source)[0](*inputs).shape[0] == 2, entry.name
