"""The zoo's job is read in both of its forms, which have the same models, and its own models can be made."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from exporters.build_model import call_factory
from exporters.inputs import input_specs, seeded_inputs
from profiler.job.config import ModelEntry, load_config
from profiler.job.plan import make_plan

ZOO = Path(__file__).resolve().parents[2] / "examples" / "zoo.yaml"


def test_both_forms_have_the_same_models_and_train_five_of_them() -> None:
    forms = {device: load_config(ZOO, device) for device in ("cpu", "cuda")}
    small, whole = ([entry.name for entry in form.models] for form in forms.values())
    assert small == whole and len(whole) >= 24
    assert {entry.library for entry in forms["cuda"].models} == {"timm", "torchvision", "hf", None}
    for device, form in forms.items():
        plan = make_plan(form, device)
        assert len({case.model for case in plan if case.id.pass_ == "training"}) == 5
        assert {(case.model, case.engine) for case in plan} >= {
            (name, each) for name in whole for each in ("eager", "ort")
        }


@pytest.mark.slow
@pytest.mark.parametrize(
    "entry", [each for each in load_config(ZOO, "cpu").models if each.factory], ids=lambda e: e.name
)
def test_its_own_models_take_their_inputs(entry: ModelEntry, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ZOO.parent)
    source = entry.source()
    inputs = [torch.from_numpy(array).to("meta") for array in seeded_inputs(input_specs(source), 2)]
    with torch.device("meta"):
        assert call_factory(source)(*inputs).shape[0] == 2
