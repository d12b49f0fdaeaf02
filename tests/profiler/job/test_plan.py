"""The plan: readable ids, replicates in rounds, conditions that mean what they say, a reason for what cannot run."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

import polars as pl
import pytest

from engines.catalog import ENGINES, Requirement
from engines.options import Training
from exporters.source import ModelSource
from exporters.weights import source_key
from profiler.errors import ConfigError
from profiler.job import plan
from profiler.job.case import Budget, Case, Filter, file_name, parse_only, setting_words
from profiler.job.config import config_of, load_config
from profiler.job.plan import estimate_seconds, in_waves, make_plan, only_of, searched
from profiler.results.reading import chosen

MATRIX = """
models: [alexnet, resnet18]
engines: [eager, {name: ort, label: ort-two, threads: 2}]
passes: [inference, training]
precisions: [fp32, bf16]
batch_sizes: [1, 4]
replicates: 2
"""


@pytest.fixture
def planned(tmp_path: Path) -> Callable[..., list[Case]]:
    (tmp_path / "theirs.onnx").write_bytes(b"")
    (tmp_path / "weights.pt").write_bytes(b"")

    def planned(text: str, device: str = "cpu", hardware: str | None = None) -> list[Case]:
        path = tmp_path / "bench.yaml"
        path.write_text(text)
        return make_plan(load_config(path, device), device, hardware)

    return planned


def one(engine: str = "eager", pass_: str = "inference", precision: str = "fp32", model: str = "alexnet") -> str:
    return f"models: [{model}]\nengines: [{engine}]\npasses: [{pass_}]\nprecisions: [{precision}]\n"


def test_an_id_is_the_axes_of_its_case():
    source = ModelSource("net", dimensions={"height": 64}, varied={"height": (64, 64)})
    case = Case("my net", "ort", "ort-tuned", "training", "fp16", 16, "cuda", 2, source)
    sgd = dataclasses.replace(case, training=Training("sgd", "logits", False, True, 4, ("stem", "*.bias")))
    assert case.id == "my net/ort-tuned/training/fp16/b16/r2/height=64"
    assert sgd.setting == "optimizer=sgd/head=logits/input_gradient=on/accumulation=4/frozen=stem+*.bias/height=64"
    assert sgd.id == f"my net/ort-tuned/training/fp16/b16/r2/{sgd.setting}"
    assert file_name("my net/eager/r2") == "my net,eager,r2"
    assert len({*map(file_name, ("m/x-y/fp32", "m-x/y/fp32", "m/x/y/fp32", "m-x-y-fp32"))}) == 4
    assert case.family == dataclasses.replace(case, batch_size=1).family != sgd.family
    long = [file_name(dataclasses.replace(case, model="ü" * 200 + end).id) for end in "ab"]
    assert len(set(long)) == 2
    assert max(len(name.encode()) for name in long) <= 180
    assert setting_words("optimizer=sgd/head=logits") == ["optimizer sgd", "head logits"]
    assert setting_words("") == []


def test_speed_ups_are_relative_to_eager_in_fp32_or_to_onnx_runtime_for_an_onnx_file():
    def is_base(variant: str, precision: str, onnx: Path | None = None) -> bool:
        source = ModelSource("net", onnx=onnx)
        return Case("net", "eager", variant, "inference", precision, 1, "cpu", 0, source).is_base

    file = Path("net.onnx")
    assert [is_base("ort", precision, file) for precision in ("native", "fp32", "fp16")] == [True, True, False]
    assert [is_base(*cell) for cell in (("eager", "fp32"), ("eager", "fp16"), ("ort", "fp32"))] == [True, False, False]


def test_every_cell_of_the_matrix_is_there_once_and_the_same_every_time(planned):
    first, second = planned(MATRIX), planned(MATRIX)
    assert [case.id for case in first] == [case.id for case in second]
    assert len({case.id for case in first}) == len(first) == 2 * 2 * 2 * 2 * 2 * 2


@pytest.mark.parametrize(
    "job",
    [
        "models: [alexnet]\nengines: [eager, eager]\n",
        "models: [alexnet]\nengines: [{name: ort, label: m, threads: 1}, {name: ort, label: m, threads: 2}]\n",
    ],
)
def test_two_cases_with_one_id_are_an_error(planned, job):
    with pytest.raises(ConfigError, match=r"2 cases have the id alexnet/.* once each"):
        planned(job)


def test_a_plan_that_is_too_large_is_refused_before_it_is_made(planned, monkeypatch):
    monkeypatch.setattr(plan, "MOST_CASES", 63)
    with pytest.raises(ConfigError, match=r"^a plan has at most 63 cases; shorten a list"):
        planned(MATRIX)


def test_a_network_may_be_there_twice_under_another_name(planned):
    models = "{name: resnet18, weights: weights.pt}, {name: seeded, network: resnet18}"
    given, seeded = planned(f"models: [{models}]\nengines: [eager]\n")
    assert [case.source.catalog_name for case in (given, seeded)] == ["resnet18", "resnet18"]
    assert source_key(given.source) != source_key(seeded.source) == source_key(ModelSource("resnet18"))


def test_replicates_are_rounds_through_the_whole_matrix(planned):
    job = "models: [alexnet, resnet18]\nengines: [eager, ort]\nbatch_sizes: [1, 4]\nreplicates: 3\n"
    cells = [(case.model, case.variant, case.batch_size) for case in planned(job)]
    once = [(c.model, c.variant, c.batch_size) for c in planned(f"{job}exclude: [{{replicate: [1, 2]}}]\n")]
    assert len(once) == 8
    assert cells == once * 3
    assert [case.replicate for case in planned(job)] == [0] * 8 + [1] * 8 + [2] * 8
    assert [case.id for case in searched(planned(job))] == [
        f"{model}/{variant}/inference/fp32/b1/r0" for model in ("alexnet", "resnet18") for variant in ("eager", "ort")
    ]


def test_a_base_is_measured_three_times_spread_over_its_model(monkeypatch):
    monkeypatch.setattr(plan, "BASE_PROCESSES", 3)
    monkeypatch.setattr(plan, "CONFIRMING_PROCESSES", 3)
    job = {"models": ["resnet18", "alexnet"], "engines": ["eager", "ort"], "batch_sizes": [1, 4, 16]}
    ids = [case.id for case in make_plan(config_of(job), "cpu")]
    own = [text.removeprefix("resnet18/").replace("/inference/fp32", "") for text in ids if text.startswith("resnet18")]
    assert own == [
        *("eager/b1/r0", "ort/b1/r0", "eager/b4/r0"),
        *("eager/b1/r1", "eager/b16/r1"),
        *("ort/b4/r0", "eager/b16/r0", "ort/b16/r0"),
        *("eager/b1/r2", "eager/b16/r2"),
    ]
    assert len(ids) == 2 * len(own)
    assert len(make_plan(config_of(job | {"replicates": 3}), "cpu")) == 36, "replicates already are three"
    twice = [case.id for case in make_plan(config_of(job | {"replicates": 2}), "cpu")]
    assert len(twice) == 28
    assert twice[-2:] == ["alexnet/eager/inference/fp32/b1/r2", "alexnet/eager/inference/fp32/b16/r2"]


@pytest.mark.parametrize(
    ("exclude", "left_out"),
    [
        ("{model: resnet18}", lambda case: case.model == "resnet18"),
        ("{precision: [bf16, fp16]}", lambda case: case.precision == "bf16"),
        ("{pass: training, batch_size: 4}", lambda case: case.pass_ == "training" and case.batch_size == 4),
        ("{model: resnet18}, {pass: training}", lambda case: case.model == "resnet18" or case.pass_ == "training"),
    ],
)
def test_exclude_leaves_out_what_it_describes_and_nothing_else(planned, exclude, left_out):
    kept = planned(f"{MATRIX}exclude: [{exclude}]\n")
    assert [case.id for case in kept] == [case.id for case in planned(MATRIX) if not left_out(case)]
    with pytest.raises(ConfigError, match=r"^exclude: no case is left"):
        planned(f"{MATRIX}exclude: [{exclude}, {{replicate: [0, 1]}}]\n")


CASE = Case("alexnet", "ort", "ort-tuned", "inference", "fp32", 1, "cpu", 0, ModelSource("alexnet"))
CASES = [
    CASE,
    dataclasses.replace(CASE, model="vgg16", batch_size=16),
    dataclasses.replace(CASE, engine="eager", variant="eager", replicate=1),
    dataclasses.replace(CASE, variant="ort", precision="bf16"),
    dataclasses.replace(CASE, engine="eager", variant="eager", pass_="training", training=Training("sgd")),
    dataclasses.replace(CASE, engine="eager", variant="eager", pass_="training"),
]
ROWS = pl.DataFrame(
    {
        **{name: getattr(case, name) for name in ("model", "engine", "variant", "precision", "batch_size")},
        "pass": case.pass_,
        "replicate": case.replicate,
        "optimizer": case.training.optimizer if case.pass_ == "training" else None,
    }
    for case in CASES
)


@pytest.mark.parametrize(
    ("condition", "left"),
    [
        ("model=alexnet", [0, 2, 3, 4, 5]),
        ("model=alexnet,model=vgg16,batch_size=1", [0, 2, 3, 4, 5]),
        ("engine=ort", [0, 1, 3]),
        ("engine=ort-tuned", [0, 1]),
        ("variant=ort", [3]),
        ("pass=training", [4, 5]),
        ("precision=bf16,precision=fp32,replicate=1", [2]),
        ("optimizer=sgd", [4]),
    ],
)
def test_conditions_choose_the_same_cases_and_rows(condition, left):
    conditions = parse_only([condition])
    assert conditions is not None
    assert only_of(CASES, conditions) == [CASES[number] for number in left]
    assert ROWS.with_row_index("row").filter(chosen(conditions))["row"].to_list() == left
    assert sorted(str(conditions).split(",")) == sorted(condition.split(","))
    assert str(conditions.without("model")) == ",".join(w for w in condition.split(",") if "model" not in w)


@pytest.mark.parametrize(
    ("condition", "says"),
    [
        ("modl=alexnet", "unknown key 'modl'; did you mean 'model'?"),
        ("alexnet", "'alexnet' is not of the form key=value"),
        ("batch_size=many", "batch_size: must be a whole number, got 'many'"),
        ("model=alxnet", "model=alxnet: the config has none; did you mean 'alexnet'?"),
        ("batch_size=3", "batch_size=3: the config has none; valid: 1, 16"),
        ("model=vgg16,pass=training", "no case has all of these"),
    ],
)
def test_only_refuses_what_it_does_not_understand_or_nobody_has(condition, says):
    with pytest.raises(ConfigError, match=r"^--only") as caught:
        only_of(CASES, parse_only([condition]))
    assert says in str(caught.value)
    assert parse_only([]) is None
    assert parse_only(["model=vgg16, alexnet,batch_size=1,"]) == parse_only(
        ["model=vgg16", "model=alexnet,batch_size=1"]
    )
    assert Filter.of({"batch_size": "4"}).conditions == {"batch_size": [4]}
    sizes = parse_only(["shape=sequence=32/height=8,sequence=128/height=8,model=vgg16"])
    assert sizes and sizes.conditions == {
        "shape": ["sequence=32/height=8", "sequence=128/height=8"],
        "model": ["vgg16"],
    }


@pytest.mark.parametrize(
    ("device", "job", "says"),
    [
        ("cpu", one("ort", precision="fp16"), "fp32"),
        ("cpu", one("eager-nocudnn"), "cuDNN"),
        ("cpu", one(model="{name: x, onnx: theirs.onnx}"), "torch module"),
        ("cpu", one("{name: eager, label: x, cuda_graph: true}"), "option cuda_graph of eager"),
        ("cuda", one("trt-rtx"), "compute capability 9.0"),
        ("cpu", one(pass_="training", model='{network: "hf:T5Model", step: decode}'), "decode needs a cache"),
        ("cpu", one(model='{network: "hf:T5Model", step: decode}'), ""),
        ("cpu", one(pass_="training", model='{network: "hf:T5Model", step: encode}'), ""),
        ("cpu", one(pass_="training", precision="fp32]\ntraining:\n  accumulation: [3"), "a batch of 1 cannot"),
        ("cpu", one("ort"), ""),
    ],
)
def test_what_cannot_run_is_a_case_with_a_reason(planned, device, job, says):
    (case,) = planned(job, device, "9.0")
    assert says in (case.unsupported or "")
    assert bool(case.unsupported) == bool(says)
    assert bool(estimate_seconds(case, Budget())) != bool(says)


def test_a_slow_network_takes_longer_than_its_sampling_on_a_cpu_alone(planned):
    def seconds(model: str, device: str, pass_: str = "inference") -> float:
        return estimate_seconds(*planned(one(model=model, pass_=pass_), device, "9.0"), Budget(seconds=0.1))

    alexnet, vgg, trained = seconds("alexnet", "cpu"), seconds("vgg19", "cpu"), seconds("vgg19", "cpu", "training")
    assert seconds("{name: x, onnx: theirs.onnx}", "cpu") <= alexnet < vgg < trained
    assert seconds("alexnet", "cuda") == seconds("vgg19", "cuda")


@pytest.mark.parametrize(("engine", "expected"), [("eager", [0, 0]), ("trt", [45, 0]), ("compiled", [20, 0])])
def test_a_first_process_builds_and_a_further_one_reuses_it(planned, engine, expected):
    case = dataclasses.replace(planned(one("eager"), "cuda", "9.0")[0], engine=engine, replicate=0)
    usual = estimate_seconds(dataclasses.replace(case, engine="eager"), Budget())
    cases = case, dataclasses.replace(case, replicate=1)
    assert [estimate_seconds(case, Budget()) - usual for case in cases] == expected


def test_a_missing_module_is_a_reason_with_the_command_that_installs_it(planned, monkeypatch):
    lacking = Requirement("no_such_module", "pip install no-such-module")
    monkeypatch.setitem(ENGINES, "ort", dataclasses.replace(ENGINES["ort"], requirements=(lacking,)))
    (case,) = planned(one("ort"))
    assert case.unsupported == "no_such_module is not installed: pip install no-such-module"


def test_graphs_that_are_given_run_at_their_own_precisions(planned):
    theirs = "onnx: theirs.onnx, variants: {int8: theirs.onnx}"
    models = f"{{name: x, factory: 'a:b', input: [3], {theirs}}}, {{name: y, {theirs}}}"
    text = f"models: [{models}]\nengines: [eager, ort]\n"
    cases = planned(text)
    pair, alone = cases[0], cases[-1]
    assert (pair.source.kind, pair.source.onnx, set(pair.source.graphs)) == ("factory", None, {"fp32", "int8"})
    assert (alone.source.kind, alone.precision, alone.calibrated) == ("onnx", "int8", True)
    found = {name: [(c.model, c.precision) for c in cases if c.variant == name] for name in ("eager", "ort")}
    assert found == {
        "eager": [("x", "fp32"), ("y", "native")],
        "ort": [("x", "fp32"), ("x", "int8"), ("y", "native"), ("y", "int8")],
    }, "the file is no reason to quantize the module"
    dynamic = planned(f"models: [{models}]\nengines: [ort-dynamic]\nprecisions: [int8]\n")
    assert [(c.precision, c.unsupported) for c in dynamic if c.model == "x"] == [
        ("int8", "the model's int8 file is quantized already: ort runs it")
    ]
    asked = planned(f"{text}precisions: [fp32, int8]\n")
    assert [c.precision for c in asked if (c.model, c.variant) == ("x", "eager")] == ["fp32", "int8"]


@pytest.mark.parametrize(
    ("device", "engine", "options"),
    [
        ("cpu", "eager-tuned", {"channels_last": True}),
        (
            "cuda",
            "{name: ort-tuned, label: heuristic, conv_search: HEURISTIC}",
            {"prefer_nhwc": True, "cuda_graph": True, "conv_search": "HEURISTIC"},
        ),
        ("cpu", "eager", {}),
    ],
)
def test_options_are_the_presets_on_this_device_and_the_users_over_them(planned, device, engine, options):
    (case,) = planned(one(engine), device)
    assert case.options == options


def test_of_one_model_bases_and_what_often_wins_come_first():
    engines = ["eager", "eager-tuned", "openvino", "ort"]
    job = {"models": ["resnet18"], "engines": engines, "batch_sizes": [1, 8]}
    for device, narrow, first, second in (
        ("cuda", "fp16", ("eager/fp32", "eager-tuned/fp16"), ()),
        ("cpu", "bf16", ("eager/fp32",), ("openvino/fp32", "openvino/bf16", "ort/fp32", "ort/bf16")),
    ):
        plan = make_plan(config_of({**job, "precisions": ["fp32", narrow, "int8"]}), device)
        waves, late = in_waves(plan)
        names = [[f"{case.variant}/{case.precision}/b{case.batch_size}" for case in of] for of in waves]
        assert names[0] == [f"{name}/b{batch}" for name in first for batch in (1, 8)]
        assert not second or sorted(names[1]) == sorted(f"{name}/b{batch}" for name in second for batch in (1, 8))
        assert {case.precision for case in late} == {"fp32"}, "at more bits"
        assert not any(case.is_base for case in late)
        assert sorted(case.id for of in [*waves, late] for case in of) == sorted(case.id for case in plan)
