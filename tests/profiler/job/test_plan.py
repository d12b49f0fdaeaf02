"""The plan: readable ids, replicates in rounds, filters that mean what they say, and a reason for what cannot run."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from engines.catalog import ENGINES, Requirement
from exporters.source import ModelSource
from exporters.weights import source_key
from profiler.job import plan
from profiler.job.case import Budget
from profiler.job.conditions import parse_only
from profiler.job.config import Config, ConfigError, config_of, load_config
from profiler.job.plan import estimate_seconds, make_plan, only_of
from profiler.results.result import Result
from profiler.results.row import row_of
from profiler.stats.intervals import UNMEASURED

MATRIX = """
models: [alexnet, resnet18]
engines: [eager, {name: ort, label: ort-two, threads: 2}]
passes: [inference, training]
precisions: [fp32, bf16]
batch_sizes: [1, 4]
replicates: 2
"""


@pytest.fixture
def config(tmp_path: Path):
    (tmp_path / "theirs.onnx").write_bytes(b"")

    def config(text: str, device: str = "cpu") -> Config:
        path = tmp_path / "bench.yaml"
        path.write_text(text)
        return load_config(path, device)

    return config


def reason(config, device: str, *, engine="eager", pass_="inference", precision="fp32", model="alexnet") -> str | None:
    """Why the plan's only case cannot run."""
    text = f"models: [{model}]\nengines: [{engine}]\npasses: [{pass_}]\nprecisions: [{precision}]\n"
    (case,) = make_plan(config(text), device)
    return case.unsupported


def test_an_id_is_readable(config):
    text = "models: [resnet50]\nengines: [ort-tuned]\nprecisions: [fp16]\nbatch_sizes: [16]\n"
    (case,) = make_plan(config(text), "cuda")
    assert str(case.id) == "resnet50/ort-tuned/inference/fp16/b16/r0"
    assert (case.engine, case.variant, case.device) == ("ort", "ort-tuned", "cuda")


@pytest.mark.parametrize("step", ["prefill", "decode", "encode"])
def test_steps_of_generation_are_not_trained(config, step: str):
    model = f'{{network: "hf:T5Model", step: {step}}}'
    why = reason(config, "cpu", pass_="training", model=model)
    assert (why or "").startswith(f"{step} is a step of generation") == (step != "encode")
    assert reason(config, "cpu", model=model) is None


def test_ids_are_the_same_every_time(config):
    first, second = (make_plan(config(MATRIX), "cpu") for _ in range(2))
    assert [case.id for case in first] == [case.id for case in second]


def test_every_cell_of_the_matrix_is_there_once(config):
    cases = make_plan(config(MATRIX), "cpu")
    assert len({case.id for case in cases}) == len(cases) == 2 * 2 * 2 * 2 * 2 * 2


@pytest.mark.parametrize(
    ("engines", "models"),
    [
        ("[eager, eager]", "[alexnet]"),
        ("[{name: ort, label: mine, threads: 1}, {name: ort, label: mine, threads: 2}]", "[alexnet]"),
        ("[eager]", "[alexnet, {name: alexnet, options: {}}]"),
    ],
    ids=["preset", "label", "model"],
)
def test_two_cases_with_one_id_are_an_error(config, engines, models):
    with pytest.raises(ConfigError, match="2 cases have the id alexnet/") as caught:
        make_plan(config(f"models: {models}\nengines: {engines}\n"), "cpu")
    assert "label" in str(caught.value)


def test_a_network_may_be_there_twice_under_another_name(config, tmp_path):
    (tmp_path / "weights.pt").write_bytes(b"")
    models = "{name: resnet18, weights: weights.pt}, {name: seeded, network: resnet18}"
    given, seeded = make_plan(config(f"models: [{models}]\nengines: [eager]\n"), "cpu")
    assert [case.model for case in (given, seeded)] == ["resnet18", "seeded"]
    assert [case.source.catalog_name for case in (given, seeded)] == ["resnet18", "resnet18"]
    assert source_key(given.source) != source_key(seeded.source) == source_key(ModelSource("resnet18"))
    assert estimate_seconds(given, Budget()) == estimate_seconds(seeded, Budget())
    row = row_of(Result(seeded.id, "failed"), seeded, "run", "suite", {}, UNMEASURED)
    assert (row["model"], row["network"]) == ("seeded", "resnet18")


@pytest.mark.parametrize(
    ("key", "values"), [("batch_sizes", "[4, 4]"), ("precisions", "[fp32, fp32]"), ("passes", "[inference, inference]")]
)
def test_a_value_given_twice_is_named_as_the_cause(config, key, values):
    with pytest.raises(ConfigError) as caught:
        make_plan(config(f"models: [alexnet]\nengines: [eager]\n{key}: {values}\n"), "cpu")
    assert key in str(caught.value)


def test_replicates_are_rounds_through_the_whole_matrix(config):
    job = "models: [alexnet, resnet18]\nengines: [eager, ort]\nbatch_sizes: [1, 4]\nreplicates: 3\n"
    cases = make_plan(config(job), "cpu")
    once = [
        (case.model, case.variant, case.batch_size)
        for case in make_plan(config(f"{job}exclude: [{{replicate: [1, 2]}}]\n"), "cpu")
    ]
    assert len(once) == 8
    assert [(case.model, case.variant, case.batch_size) for case in cases] == once * 3
    assert [case.replicate for case in cases] == [0] * 8 + [1] * 8 + [2] * 8


@pytest.mark.parametrize(
    ("condition", "left_out"),
    [
        ("{model: resnet18}", lambda case: case.model == "resnet18"),
        ("{precision: [bf16, fp16]}", lambda case: case.precision == "bf16"),
        ("{pass: training, batch_size: 4}", lambda case: case.pass_ == "training" and case.batch_size == 4),
    ],
)
def test_exclude_leaves_out_what_it_describes_and_nothing_else(config, condition, left_out):
    everything = make_plan(config(MATRIX), "cpu")
    kept = make_plan(config(f"{MATRIX}exclude: [{condition}]\n"), "cpu")
    assert [case.id for case in kept] == [case.id for case in everything if not left_out(case)]


def test_any_entry_of_exclude_is_enough(config):
    kept = make_plan(config(f"{MATRIX}exclude: [{{model: resnet18}}, {{pass: training}}]\n"), "cpu")
    assert {(case.model, case.pass_) for case in kept} == {("alexnet", "inference")}


def test_only_keeps_what_it_describes(config):
    only = parse_only(["model=alexnet,pass=training,batch_size=1,batch_size=4,replicate=0"])
    kept = only_of(make_plan(config(MATRIX), "cpu"), only)
    assert {str(case.id) for case in kept} == {
        f"alexnet/{variant}/training/{precision}/b{batch}/r0"
        for variant in ("eager", "ort-two")
        for precision in ("fp32", "bf16")
        for batch in (1, 4)
    }


MINE = "models: [{name: mine, network: resnet18}, {name: theirs, onnx: theirs.onnx}]\n"


@pytest.mark.parametrize(
    ("only", "says"),
    [
        ("model=mnie", "the config has no model mnie; did you mean 'mine'? It has mine, theirs"),
        ("model=mine,model=theri", "the config has no model theri; did you mean 'theirs'? It has mine, theirs"),
        ("engine=ort,engine=eagr", "the config has no engine eagr; did you mean 'eager'? It has eager, ort"),
        ("model=vgg16,batch_size=8", "the config has no model vgg16; valid: mine, theirs"),
        ("engine=ort2", "the config has no engine ort2; did you mean 'ort'? It has eager, ort"),
        ("precision=fp23", "the config has no precision fp23; did you mean 'fp32'? It has fp32, bf16, native"),
        ("batch_size=3", "the config has no batch_size 3; valid: 1, 8"),
        (
            "precision=fp32,model=theirs",
            "no case has all of these; with model=theirs there is only precision native",
        ),
    ],
)
def test_an_empty_selection_says_what_there_is(config, only, says):
    job = f"{MINE}engines: [eager, ort]\nprecisions: [fp32, bf16]\nbatch_sizes: [1, 8]\n"
    with pytest.raises(ConfigError) as caught:
        only_of(make_plan(config(job), "cpu"), parse_only([only]))
    conditions, _, why = str(caught.value).partition(": ")
    assert sorted(conditions.removeprefix("--only ").split(",")) == sorted(only.split(","))
    assert why == says


def test_an_exclude_that_leaves_nothing_is_an_error(config):
    with pytest.raises(ConfigError, match=r"^exclude: no case is left"):
        make_plan(config(f"{MATRIX}exclude: [{{replicate: [0, 1]}}]\n"), "cpu")


@pytest.mark.parametrize(
    ("device", "wanted", "says"),
    [
        ("cpu", {"engine": "ort", "precision": "fp16"}, "fp32"),
        ("cpu", {"engine": "ort-tuned"}, "ort-tuned"),
        ("cpu", {"engine": "eager-nocudnn"}, "cuDNN"),
        ("cpu", {"engine": "eager", "model": "{name: x, onnx: theirs.onnx}"}, "torch module"),
        ("cpu", {"engine": "{name: eager, label: x, cuda_graph: true}"}, "option cuda_graph of eager"),
        ("cuda", {"engine": "{name: ort, label: x, threads: 2}"}, "option threads of ort"),
    ],
)
def test_what_cannot_run_is_a_case_with_a_reason(config, device, wanted, says):
    assert says in (reason(config, device, **wanted) or "")
    assert reason(config, "cpu", engine="ort") is None


def test_a_missing_module_is_a_reason_with_the_command_that_installs_it(config, monkeypatch):
    lacking = Requirement("no_such_module", "pip install no-such-module")
    monkeypatch.setitem(ENGINES, "ort", dataclasses.replace(ENGINES["ort"], requirements=(lacking,)))
    assert reason(config, "cpu", engine="ort") == "no_such_module is not installed: pip install no-such-module"


def test_a_card_that_the_library_does_not_support_is_a_reason(config):
    text = "models: [alexnet]\nengines: [trt-rtx]\n"
    (case,) = make_plan(config(text), "cuda", hardware="9.0")
    assert "compute capability 9.0" in (case.unsupported or "")
    for capability in ("8.9", None):
        (case,) = make_plan(config(text), "cuda", hardware=capability)
        assert "compute capability" not in (case.unsupported or "")


def test_a_case_knows_the_model_that_it_is_compared_with_and_is_no_base(config):
    models = "alexnet, {name: theirs, onnx: theirs.onnx, reference: alexnet}"
    own, theirs = make_plan(config(f"models: [{models}]\nengines: [ort]\n"), "cpu")
    assert (own.reference, own.is_base) == (None, False)
    assert theirs.reference == own.source
    assert (theirs.precision, theirs.is_base) == ("native", False)
    (alone,) = make_plan(config("models: [{name: theirs, onnx: theirs.onnx}]\nengines: [ort]\n"), "cpu")
    assert alone.is_base


def test_a_module_with_a_graph_next_to_it_is_a_module_whose_graph_is_given(config):
    theirs = "onnx: theirs.onnx, variants: {int8: theirs.onnx}"
    models = f"{{name: x, factory: 'a:b', input: [3], {theirs}}}, {{name: y, {theirs}}}"
    text = f"models: [{models}]\nengines: [eager, ort]\n"
    pair, alone = make_plan(config(text), "cpu")[0], make_plan(config(text), "cpu")[-1]
    assert (pair.source.kind, pair.source.onnx, set(pair.source.graphs)) == ("factory", None, {"fp32", "int8"})
    assert (alone.source.kind, alone.precision, alone.calibrated) == ("onnx", "int8", True)
    assert [case.precision for case in make_plan(config(text), "cpu") if case.variant == "ort"] == [
        *("fp32", "int8"),
        *("native", "int8"),
    ]
    eager = [case.precision for case in make_plan(config(text), "cpu") if case.variant == "eager"]
    assert eager == ["fp32", "native"], "the file is no reason to quantize the module"
    asked = make_plan(config(f"{text}precisions: [fp32, int8]\n"), "cpu")
    assert [c.precision for c in asked if (c.model, c.variant) == ("x", "eager")] == ["fp32", "int8"]


def test_an_onnx_file_runs_once_at_its_own_precision(config):
    text = "models: [{name: x, onnx: theirs.onnx}]\nengines: [eager, ort]\nprecisions: [fp32, fp16]\n"
    cases = make_plan(config(text, "cuda"), "cuda")
    assert [(case.variant, case.precision) for case in cases] == [("eager", "native"), ("ort", "native")]
    assert [case.unsupported is None for case in cases][1]


@pytest.mark.parametrize(
    ("device", "engine", "options"),
    [
        ("cpu", "eager-tuned", {"channels_last": True}),
        ("cuda", "eager-tuned", {"channels_last": True, "cuda_graph": True}),
        ("cuda", "ort-tuned", {"prefer_nhwc": True, "cuda_graph": True, "conv_search": "EXHAUSTIVE"}),
        (
            "cuda",
            "{name: ort-tuned, label: heuristic, conv_search: HEURISTIC}",
            {"prefer_nhwc": True, "cuda_graph": True, "conv_search": "HEURISTIC"},
        ),
        ("cpu", "eager", {}),
    ],
)
def test_options_are_the_presets_on_this_device_and_the_users_over_them(config, device, engine, options):
    (case,) = make_plan(config(f"models: [alexnet]\nengines: [{engine}]\n"), device)
    assert case.options == options


def test_estimates_cost_the_unsupported_nothing_and_more_work_more(config):
    small, large = make_plan(config("models: [alexnet, vgg19]\nengines: [eager]\nbatch_sizes: [64]\n"), "cpu")
    assert 0 < estimate_seconds(small, Budget()) < estimate_seconds(large, Budget())
    assert estimate_seconds(dataclasses.replace(large, unsupported="no"), Budget()) == 0


def test_a_base_is_measured_three_times_spread_over_its_model(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(plan, "BASE_PROCESSES", 3)
    job = {"models": ["resnet18", "alexnet"], "engines": ["eager", "ort"], "batch_sizes": [1, 4, 16]}
    ids = [str(case.id) for case in make_plan(config_of(job), "cpu")]
    own = [text.removeprefix("resnet18/").replace("/inference/fp32", "") for text in ids if text.startswith("resnet18")]
    assert own == [
        *("eager/b1/r0", "ort/b1/r0", "eager/b4/r0"),
        *("eager/b1/r1", "eager/b16/r1"),
        *("ort/b4/r0", "eager/b16/r0", "ort/b16/r0"),
        *("eager/b1/r2", "eager/b16/r2"),
    ]
    assert len(ids) == 2 * len(own)
    thrice = [str(case.id) for case in make_plan(config_of(job | {"replicates": 3}), "cpu")]
    assert len(thrice) == 36, "replicates already are three"
    twice = [str(case.id) for case in make_plan(config_of(job | {"replicates": 2}), "cpu")]
    assert len(twice) == 28
    assert twice[-2:] == ["alexnet/eager/inference/fp32/b1/r2", "alexnet/eager/inference/fp32/b16/r2"]
