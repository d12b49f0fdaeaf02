"""The job that a command line with a model makes: its keys, what it leaves to the device, and what it refuses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matrix_product import write_text

from engines import requirements
from engines.catalog import PRESETS
from engines.options import Device
from profiler.errors import ConfigError
from profiler.job.config import Config, GraphInput
from profiler.options import Run
from profiler.run import command, model_job
from profiler.run.prepare import with_shapes

NET = """
from torch import nn


def make():
    return nn.Sequential(nn.Flatten(), nn.Linear(12, 4))
"""
WORDS = "words.onnx --shapes sequence=64 --input attention_mask=1,2"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make a folder with a factory, a graph of words, one with a fixed batch, one in fp16."""
    monkeypatch.chdir(tmp_path)
    Path("net.py").write_text(NET)
    Path("folder.onnx").mkdir()
    ids = "int64[n, sequence] input_ids, int64[n, sequence] attention_mask"
    write_text(Path("words.onnx"), f"g ({ids}) => (int64[n, sequence] y) {{ y = Identity (input_ids) }}")
    for name, kind in (("fixed", "float[2, 3]"), ("free", "float[n, 3]"), ("half", "float16[n, 3]")):
        write_text(Path(f"{name}.onnx"), f"g ({kind} x) => ({kind} y) {{ y = Identity (x) }}")
    cache = "float[n, past] key, int64[n, past_x_length] mask, int64[n, past_x_1] place, int64[n, length] ids"
    cached = write_text(Path("cached.onnx"), f"g ({cache}) => (int64 y) {{ y = Size (ids) }}")
    cached.write_bytes(cached.read_bytes().replace(b"_x_", b" + "))  # The text format has no such symbols.
    write_text(Path("voice.onnx"), "g (float[n, samples] x, float[2, ?, 8] state) => (int64 y) { y = Size (x) }")
    np.save("ids.npy", np.ones((2, 64), np.int64))
    return tmp_path


def options(line: str) -> Run:
    word, *rest = line.split()
    given: dict[str, Any] = {"inputs": [], "engine": [], "shapes": [], "batch_axis": []}
    for flag, value in zip(rest[::2], rest[1::2], strict=True):
        name = {"--input": "inputs", "--pass": "pass_"}.get(flag, flag.strip("-").replace("-", "_"))
        given[name] = [*given[name], value] if name in ("inputs", "engine", "shapes", "batch_axis") else value
    return Run(config=Path(word), **given)


def job(line: str | Run, device: Device = "cpu", hardware: str | None = None) -> Config:
    given = options(line) if isinstance(line, str) else line
    command.check_options(given)
    return command.read_job(given, command.open_job(given), device, hardware)


@pytest.mark.parametrize(
    ("line", "entry"),
    [
        ("resnet18", {"name": "resnet18"}),
        ("net:make --input 3,2,2", {"name": "net.make", "factory": "net:make", "input": (3, 2, 2)}),
        ("net:make --input 3x2x2", {"input": (3, 2, 2)}),
        ("net:make", {"input": None}),
        ("net:make --batch-axis state=1 --batch-axis mask=none", {"batch": {"state": 1, "mask": None}}),
        (
            f"{WORDS} --input input_ids=0,1000",
            {"inputs": {"input_ids": GraphInput(range=(0, 1000)), "attention_mask": GraphInput(range=(1, 2))}},
        ),
        ("timm:vit_base_patch16_224.augreg", {"library": "timm", "network": "timm:vit_base_patch16_224.augreg"}),
        ("hf:BertModel", {"library": "hf", "inputs": {}}),
    ],
)
def test_the_model_and_its_inputs(line, entry, monkeypatch):
    monkeypatch.setattr(model_job, "not_installed", lambda library: None)
    (model,) = job(line).models
    assert {key: getattr(model, key) for key in entry} == entry


def test_an_array_of_a_file_is_found_from_the_current_folder(folder):
    config = job(f"{WORDS} --input input_ids=ids.npy")
    assert config.models[0].inputs["input_ids"].data == folder / "ids.npy"
    assert config.shapes == {"sequence": [64]}


def test_what_is_usual_depends_on_the_device(monkeypatch):
    monkeypatch.setattr(model_job, "missing", lambda engine, device: "")
    monkeypatch.setattr(model_job, "has_bf16", lambda: True)
    on_cpu, on_gpu = job("resnet18"), job("resnet18", "cuda")
    assert (on_cpu.precisions, on_cpu.batch_sizes, on_cpu.passes) == (["fp32", "bf16"], [1, 16], ["inference"])
    without = [condition.conditions for condition in on_cpu.exclude]
    assert {"variant": ["ort"], "pass": ["inference"], "precision": ["bf16"]} in without
    assert not any(condition["variant"] == ["openvino"] for condition in without)
    monkeypatch.setattr(model_job, "has_bf16", lambda: False)
    assert (job("resnet18").precisions, job("resnet18").exclude) == (["fp32"], [])
    assert (on_gpu.precisions, on_gpu.batch_sizes) == (["fp32", "tf32", "fp16"], [1, 64])
    labels = {kind: [entry.label for entry in config.engines] for kind, config in (("cpu", on_cpu), ("cuda", on_gpu))}
    # What compiles for long comes last.
    assert labels["cpu"] == ["eager", "eager-tuned", "ort", "openvino", "compiled", "compiled-tuned"]
    assert " ".join(labels["cuda"]) == "eager eager-tuned ort ort-tuned trt trt-rtx compiled compiled-tuned"
    h100 = job("resnet18", "cuda", "9.0")
    assert "trt-rtx" not in [entry.label for entry in h100.engines], "which does not run there"


def test_what_is_not_installed_is_left_out_unless_asked_for(monkeypatch):
    monkeypatch.setattr(requirements, "_is_installed", lambda module: module != "openvino")
    assert "openvino" not in [entry.label for entry in job("resnet18").engines]
    assert [entry.label for entry in job("resnet18 --engine openvino").engines] == ["openvino"], "a row says what lacks"
    told = "Not tried: openvino: openvino is not installed: pip install 'openvino>=2026.0'"
    assert told in model_job.not_tried(model_job.model_job("resnet18", options("resnet18")), "cpu")
    asked = "resnet18 --engine ort"
    assert model_job.not_tried(model_job.model_job("resnet18", options(asked)), "cpu") == []


def test_an_onnx_file_is_measured_in_what_takes_graphs():
    config = job("free.onnx")
    assert {PRESETS[entry.label].engine for entry in config.engines} <= {"ort", "openvino"}
    assert config.batch_sizes == [1, 16]
    assert job("free.onnx --precision fp32,int8").precisions == ["fp32", "int8"]
    assert job("fixed.onnx").batch_sizes == job("fixed.onnx --batch 2").batch_sizes == [2]


def test_what_is_given_is_taken():
    line = "resnet18 --batch 4,8 --precision fp32,bf16 --engine ort,eager --engine trt --pass training --device cpu"
    config = job(line)
    assert (config.batch_sizes, config.precisions, config.passes) == ([4, 8], ["fp32", "bf16"], ["training"])
    assert [entry.name for entry in config.engines] == ["ort", "eager", "trt"]
    given = Run(config=Path("resnet18"), seconds=5.0, machine="label=Desk", output=Path("out"))
    config = job(given)
    assert config.budget.seconds == 5.0
    assert (config.machine.label, config.output) == ("Desk", Path("out").resolve())


def test_a_range_of_values_may_be_of_any_numbers():
    for text, ends in (("-1,1", (-1, 1)), ("0.5,1e3", (0.5, 1000))):
        (entry,) = job(f"free.onnx --input x={text}").models
        (values,) = entry.inputs.values()
        assert values.range == ends


REFUSED = [
    ("nope.onnx", "^there is no file nope.onnx; "),
    ("folder.onnx", "^there is no file folder.onnx; (?!did you mean 'folder.onnx')"),
    ("word.onnx", "^there is no file word.onnx; did you mean .words.onnx"),
    ("resnet05", "'resnet05' is neither a file nor a model nor a command; did you mean 'resnet50'"),
    ("qqq", "nor a command; your function is module:function"),
    ("net.py:make --input 3", "not of the form package.module:function, without .py"),
    ("resnet18 --engine ort,tensort", "^--engine: unknown engine 'tensort'; did you mean 'trt'"),
    ("resnet18 --batch 1,x", "^--batch: must be a whole number, got 'x'"),
    ("resnet18 --batch ²", "^--batch: must be a whole number, got '²'"),
    ("resnet18 --batch 1.5", "^--batch: must be a whole number, got 1.5"),
    ("net:make --batch-axis x=²", "--batch-axis x=²: is not of the form NAME=AXIS"),
    ("resnet18 --device gpu", "'gpu'|--device gpu"),
    ("resnet18 --input 3,32,32", "resnet18 knows its input's shape: leave out input"),
    ("net:make --input 3,2x", "--input: must be a whole number, got '2x'"),
    ("net:make --batch-axis state", "--batch-axis state: is not of the form NAME=AXIS"),
    ("resnet18 --batch-axis x=1", "--batch-axis: the inputs are known: the batch is their first axis"),
    ("words.onnx --shapes sequence=8", r"give --input input_ids=0,100 --input attention_mask=1,2 .the end is excl"),
    ("words.onnx --batch-axis ids=1", "batch: no input 'ids'; valid: input_ids"),
    ("net:make --input a=0,3", r"--input: inputs need an .onnx file; .*\(module, example_inputs\)"),
    (
        "words.onnx",
        "no fixed size: sequence(.|\n)*on the command line: --shapes sequence=128 --input input_ids=0,100 "
        "--input attention_mask=1,2$",
    ),
    (
        "cached.onnx --shapes length=1",
        r"--shapes past=256 --shapes 'past \+ length=257' --shapes 'past \+ 1=257' --input mask=1,2",
    ),
    (WORDS, "no range of values for input 'input_ids' .int64.: give --input input_ids=0,100 "),
    ("voice.onnx", r"on the command line: --shapes samples=16000 --shapes 'state\[1\]=1' --batch 1$"),
    (f"{WORDS} --input input_ids=3", "--input input_ids: LOW,HIGH is a range of values; give such as input_ids=0,100"),
    ("fake.onnx", r"no ONNX model, or a truncated one(?s:(?!.*--shapes))"),
    ("fake.py", "fake.py is Python: name its function, such as fake:make"),
    ("job.yaml --batch 1", "--batch goes with a model, .*; job.yaml has the keys itself"),
    ("words.onx", "'words.onx' is neither a file .*; did you mean 'words.onnx'"),
    (
        "net:make --input image=3,64,64",
        r"--input image: LOW,HIGH is a range of values; shapes of several inputs come",
    ),
    ("resnet18 --pass x --precision y", r"--pass: unknown pass 'x'.*\n--precision: unknown precision 'y'"),
]


@pytest.mark.parametrize(("line", "sentence"), REFUSED)
def test_what_cannot_be_used_is_refused_by_what_was_typed(line, sentence, monkeypatch):
    monkeypatch.setattr(model_job, "not_installed", lambda library: None)
    Path("fake.onnx").write_text("no graph")
    Path("fake.py").write_text("make = 1")
    Path("job.yaml").write_text("models: [resnet18]\nengines: [eager]\n")
    with pytest.raises(ConfigError, match=sentence):
        job(line)


def test_a_size_of_no_dimension_is_named_before_those_that_lack_one():
    with pytest.raises(ConfigError, match="dimension 'sequense'; did you mean 'sequence'"):
        with_shapes(job("words.onnx --shapes sequense=8 --input input_ids=0,9"))


@pytest.mark.usefixtures("folder")
def test_a_file_comes_before_a_network():
    Path("resnet18").write_text("models: [vgg16]\nengines: [eager]\n")
    assert [model.name for model in job("resnet18").models] == ["vgg16"]
    Path("resnet50").mkdir()
    assert [model.name for model in job("resnet50").models] == ["resnet50"], "a folder is no job"
