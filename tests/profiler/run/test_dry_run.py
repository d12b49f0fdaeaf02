"""The plan that is printed: what cannot run and why, how long the rest takes, and what was looked at."""

from __future__ import annotations

import io
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from engines.catalog import Training
from exporters.declared_inputs import DeclaredInput
from exporters.inputs import TensorSpec
from exporters.single_layers import LAYERS
from exporters.source import ModelSource
from profiler.errors import ConfigError
from profiler.job.case import Budget, Case
from profiler.processes.messages import Outcome
from profiler.run import fits
from profiler.run.dry_run import _kinds, check_output, look_at_models, print_plan, refusal
from profiler.run.estimate import Estimates
from profiler.worker.task import Look, Prepared

FACTORY = ModelSource("mine", factory="a:b", input_shape=(3,))
FIXED = Prepared((TensorSpec("x", (4, 3), "float32"),))


def case(source: ModelSource = FACTORY, engine: str = "eager", precision: str = "fp32", batch: int = 1) -> Case:
    return Case(source.name, engine, engine, "inference", precision, batch, "cpu", 0, source)


def printed(
    cases: list[Case], looks: Mapping[str, Look], idle: float | None = None, width: int = 120
) -> tuple[int, str]:
    output = io.StringIO()
    console = Console(file=output, width=width)
    estimates = Estimates(Path("nowhere"), {}, Budget())
    plan = [(each, refusal(each, looks, Budget())) for each in cases]
    code = print_plan(console, "EPYC", plan, looks, estimates, idle)
    return code, output.getvalue()


def test_a_case_and_what_is_said_of_it_share_a_line_at_eighty_columns() -> None:
    source = replace(FACTORY, name="a-model-with-a-longer-name")
    cases = [case(source), replace(case(source, "ort-openvino"), unsupported="openvino is not installed")]
    _, text = printed(cases, {source.name: Look(Prepared((TensorSpec("x", ("batch", 3), "float32"),)))}, width=80)
    lines = [line.rstrip() for line in text.splitlines() if line.startswith(f" {source.name}/")]
    assert [line.rpartition("  ")[2] for line in lines] == ["7 s (guess)", "unsupported (1)"]


def test_integers_have_no_gradient() -> None:
    look = Look(Prepared((TensorSpec("x", ("batch", 3), "float32"), TensorSpec("ids", ("batch", 8), "int64"))))
    asked = replace(case(), pass_="training", training=Training(input_gradient=True))
    code, text = printed([asked, replace(asked, training=Training())], {"mine": look})
    assert code == 0
    words = " ".join(text.split())
    assert "input ids is int64, of which there is no gradient; leave mine out of training's input_gradient" in words
    assert "1 of 2 cases can run here" in text


def test_a_fixed_batch_of_declared_inputs_may_be_a_batch_without_its_name() -> None:
    declared = replace(FACTORY, inputs=(DeclaredInput((0,), ("sequence",), "int64"),))
    hint = "a dimension that is the batch goes by that name, as in shape: [batch, sequence]"
    assert hint in " ".join(printed([case(declared)], {"mine": Look(FIXED)})[1].split())
    assert hint not in " ".join(printed([case()], {"mine": Look(FIXED)})[1].split())


def test_each_case_says_what_keeps_it_from_running_and_each_reason_is_there_once() -> None:
    cases = [case(), case(engine="ort"), case(engine="ort", precision="int8"), case(batch=4)]
    cases.append(replace(case(engine="openvino"), unsupported="openvino is not installed"))
    looks = {"mine": Look(replace(FIXED, failures={"int8": Outcome("failed", "no .npy file there")}), "opset 20")}
    code, text = printed(cases, looks)
    assert code == 0
    rows = dict(line.strip().split(maxsplit=1) for line in text.splitlines() if line.startswith(" mine/"))
    assert {case_id.removeprefix("mine/"): " ".join(words.split()) for case_id, words in rows.items()} == {
        "eager/inference/fp32/b1/r0": "unsupported (1)",
        "ort/inference/fp32/b1/r0": "unsupported (1)",
        "ort/inference/int8/b1/r0": "failed (2)",
        "eager/inference/fp32/b4/r0": "7 s (guess)",
        "openvino/inference/fp32/b1/r0": "unsupported (3)",
    }
    for reason in ("fixed batch of 4, and runs at no other size", "no .npy file there", "openvino is not installed"):
        assert text.count(reason) == 1
    assert "1 of 5 cases can run here" in text
    assert "a guess" in text


@pytest.mark.parametrize(("batches", "what"), [([4], "the case"), ([4, 4], "each of 2 cases")])
def test_how_long_a_run_may_wait_is_said(batches: list[int], what: str) -> None:
    cases, looks = [case(batch=batch) for batch in batches], {"mine": Look(FIXED)}
    assert f"), plus up to 10 min of waiting before {what}\n" in printed(cases, looks, 10.0)[1]
    assert "of waiting" not in printed(cases, looks)[1]


def test_a_job_of_which_nothing_can_run_gives_2() -> None:
    look = Look(Prepared(failures={"model": Outcome("failed", "model 'mine': no luck")}))
    code, text = printed([case(), case(engine="ort")], {"mine": look})
    assert code == 2
    assert text.count("model 'mine': no luck") == 1
    assert "0 of 2 cases can run here" in text
    assert "in about" not in text


def test_what_was_looked_at_and_what_was_not_is_told() -> None:
    looks = {"mine": Look(seen="its factory was called"), "other": Look(unseen="not looked at: too long"), "x": Look()}
    text = printed([case()], looks)[1]
    assert re.search(r"mine +its factory was called *\n +other +not looked at: too long *\n", text)
    assert "Not looked at: whether the models run, can be exported" in text
    assert "x " not in text.split("Looked at")[1].split("\n\n")[0]


def test_a_canonical_network_needs_no_process(tmp_path: Path) -> None:
    looks = look_at_models([case(ModelSource("alexnet"))], Budget(), ())
    assert looks == {"alexnet": Look(Prepared((TensorSpec("x", ("batch", 3, 224, 224), "float32"),)))}


def test_what_is_counted_while_it_is_looked_at_is_named() -> None:
    cases = [case(), case(replace(FACTORY, name="other"))]
    assert _kinds(cases, ["mine", "other"]) == "models"
    assert _kinds(cases, ["mine", "other", "theirs"]) == "models and references"


def test_a_reference_with_other_inputs_is_refused(tmp_path: Path) -> None:
    pruned = replace(case(ModelSource("alexnet")), reference=ModelSource("L1", layer=LAYERS["L1"]))
    looks = look_at_models([pruned], Budget(), ())
    why = refusal(pruned, looks, Budget())
    assert why is not None
    assert "model 'alexnet': reference L1 has the inputs floats (1, 3, 128, 128), not floats" in why[1]


@pytest.mark.parametrize(
    ("limit", "refused"), [(30.0, True), (900.0, False)], ids=["no longer than a run's", "shorter than a run's"]
)
def test_a_look_that_took_too_long_refuses_only_what_a_run_would(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, limit: float, refused: bool
) -> None:
    monkeypatch.setattr(
        fits, "run_all", lambda calls, slots, tick: [Outcome("timeout", f"after {calls[0].timeout:g} s")]
    )
    look = look_at_models([case()], Budget(build_timeout=limit), ())["mine"]
    assert bool(look.prepared.failures) == refused
    if refused:
        assert look.prepared.failures["model"].reason == "the model could not be prepared: after 30 s"
    else:
        assert look.unseen == "not looked at: that took more than 60 s"


def test_an_output_that_no_run_could_write_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    check_output(tmp_path / "new" / "newer", 1)
    assert not (tmp_path / "new").exists()
    for folder in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(ConfigError, match=r"output .*file.* is a file; give another folder by --output"):
            check_output(folder, 1)
    with pytest.raises(ConfigError, match=r"a run of 10,000,000,000,000 cases writes about 1000000000002 MiB, and"):
        check_output(tmp_path / "new", 10**13)
