"""Mistakes in a config are told with file, line, key and remedy; blocks, paths and words mean what they say."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from exporters.weights import has_own_weights
from profiler.errors import ConfigError
from profiler.job.config import config_of, load_config
from profiler.results.run_folder import RunFolder

HEAD = "models: [alexnet]\nengines: [eager]\n"
Write = Callable[[str], Path]


def models(*entries: str) -> str:
    return "engines: [eager]\nmodels:\n" + "".join(f"  - {entry}\n" for entry in entries)


def engines(*entries: str) -> str:
    return "models: [alexnet]\nengines:\n" + "".join(f"  - {entry}\n" for entry in entries)


def more(text: str) -> str:
    return f"{HEAD}{text}\n"


def factory(keys: str) -> str:
    return models(f"{{name: x, factory: 'a:b', {keys}}}")


MISTAKES: list[tuple[str, int, str]] = [
    # Keys, numbers and lists: the text, the line, and words of the message.
    (more("precision: [fp32]"), 3, "'precision' mean 'precisions'?"),
    (more("zzz: 1"), 3, "'zzz' models batch_sizes cpu cuda"),
    (more("budget:\n  second: 3"), 4, "budget.second: 'second' mean 'seconds'?"),
    (more("budget: 3"), 3, "budget: must be keys and values, got 3"),
    (more("machine: box"), 3, "machine: must be keys and values, got 'box'"),
    (models("3"), 3, "models[0]: must be a name, or keys and values, got 3"),
    (more("budget: {build_timeout: 1e999}"), 3, "budget.build_timeout: less"),
    (more("budget: {min_samples: 1}"), 3, "budget.min_samples: 3, got 1"),
    (more("batch_sizes: [9223372036854775808]"), 3, "batch_sizes[0]: must"),
    (more("batch_sizes: []"), 3, "batch_sizes: at least one entry"),
    (more("shapes: {sequence: []}"), 3, "shapes.sequence: at least one entry"),
    (more("energy: yes"), 3, "energy: true false 'yes'"),
    (more("precisions: [fp23]"), 3, "precisions[0]: 'fp23' mean 'fp32'?"),
    (more("precisions: [native]"), 3, "precisions[0]: 'native' valid"),
    (more("training: {accumulation: 0}"), 3, "training.accumulation[0]: greater got 0"),
    (more("training: {frozen: [a/b]}"), 3, "training.frozen: 'a/b' pattern"),
    (more("training: {loss: net.py}"), 3, "training.loss 'net.py' package.module:function"),
    (more("exclude:\n  - {engine: ort}\n  - {model: alexnt}"), 5, "exclude[1].model: mean 'alexnet'?"),
    (more("exclude: [{}]"), 3, "exclude[0]: conditions"),
    # Engines.
    (engines("name: ort\n    label: two\n    thread: 2"), 5, "'thread' mean 'threads'?"),
    (engines("{name: ort, label: x, threads: many}"), 3, "threads: number 'many'"),
    (engines("{name: ort, threads: 1}"), 3, "engines[0] label: ort-"),
    (engines("{name: ort, label: a/b}"), 3, "engines[0].label: 'a/b' '/'"),
    (engines("{name: ort, label: eager, threads: 1}"), 3, "eager preset another"),
    (engines("{label: a}"), 3, "engines[0].name: missing"),
    # Models.
    ("engines: [eager]\n", 1, "models: at least one entry"),
    (models("resnet5"), 3, "models[0]: 'resnet5' mean 'resnet50'? factory"),
    (models("{name: x, factroy: 'a:b'}"), 3, "models[0].factroy: 'factroy' mean 'factory'?"),
    (models("{name: a/b, onnx: there.onnx}"), 3, "models[0].name: 'a/b' '/'"),
    (models("{name: x, onnx: no.onnx}"), 3, "models[0].onnx: no.onnx relative"),
    (models("{name: x, onnx: there.onnx, variants: {int4: there.onnx}}"), 3, "'int4' int8"),
    (models("{name: alexnet, calibration: empty}"), 3, "models[0].calibration: .npy"),
    (models("{name: alexnet, step: decode}"), 3, "models[0].step: hf:GPT2LMHeadModel"),
    (models("{name: x, factory: mymodel, input: [3]}"), 3, "models[0].factory: 'mymodel' package.module:function"),
    (models("{name: x, factory: 'a/b.py:c', input: [3]}"), 3, "models[0].factory: without .py"),
    (factory("network: vgg16, input: [3]"), 3, "not both"),
    (factory("inputs: {ids: {range: [0, 4]}}"), 3, "models[0].inputs: (module, example_inputs)"),
    (models("{name: x, onnx: there.onnx, inputs: {ids: {rang: [0, 4]}}}"), 3, "inputs.ids.rang: 'rang' mean 'range'?"),
    (models("{name: x, onnx: there.onnx, inputs: {ids: {range: [4, 4]}}}"), 3, "inputs.ids: range data"),
    # Layers.
    ("engines: [eager]\nlayers: [L9]\n", 2, "layers[0].name: 'L9' L"),
    ("engines: [eager]\nlayers: [L1]\nmodels: [alexnet]\n", 3, "models: leave this out"),
    # What is no YAML, or no job.
    (more("budget:\n  seconds: 1\n  seconds: 2"), 5, 'YAML duplicate "seconds"'),
    (more("passes: [inference\nprecisions: [fp32]"), 4, "YAML"),
    (more("batch_sizes: &a [*a]"), 3, "batch_sizes[0]:"),
    ("", 1, "keys models engines"),
    # Blocks of a device.
    (more("cpu:\n  replicates: 1\n  engines: [eagr]"), 5, "cpu.engines[0] mean 'eager'?"),
    (more("budget: {seconds: 2}\ncpu:\n  budget: {second: 3}"), 5, "cpu.budget.second 'seconds'"),
    (more("cpu: [1]"), 3, "3: cpu: keys"),
    (more("cpu: {cpu: {}}"), 3, "cpu.cpu: unknown key 'cpu'; valid: batch_sizes"),
]


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Write:
    """Write a job beside some files; the current folder is another one."""
    (tmp_path / "there.onnx").write_bytes(b"")
    (tmp_path / "images").mkdir()
    (tmp_path / "images" / "a.npy").write_bytes(b"")
    (tmp_path / "cwd").mkdir()
    monkeypatch.chdir(tmp_path / "cwd")

    def write(text: str) -> Path:
        path = tmp_path / "bench.yaml"
        path.write_text(text)
        return path

    return write


@pytest.mark.parametrize(("text", "line", "words"), MISTAKES)
def test_a_mistake_is_one_line_with_file_key_and_remedy_in_the_users_words(write, text, line, words):
    path = write(text)
    with pytest.raises(ConfigError) as caught:
        load_config(path, "cpu")
    message, *others = str(caught.value).splitlines()
    assert message.startswith(f"{path}:{line}: "), message
    assert [word for word in words.split() if word not in message] == [], message
    assert others == []
    # The YAML's own words are list, number and true: not pydantic's or Python's types.
    assert not re.search(r"pydantic|instance of|<class|Entry\b|\bBudget\b|dictionary|tuple|unable to parse", message)


LAUGHS = "a0: &a0 [x,x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"a{n}: &a{n} [{','.join([f'*a{n - 1}'] * 10)}]\n" for n in range(1, 9)
)


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("laughs.yaml", f"{LAUGHS}{HEAD}".encode(), "over 20,000 values, those behind aliases included"),
        ("many.yaml", f"{HEAD}batch_sizes: [{'1,' * 30_000}]".encode(), "over 20,000 values, those"),
        ("large.yaml", b"#" * 10**6, "has 1,000,000 bytes, over the limit"),
        ("binary.yaml", b"\x89PNG\xff\x00", "YAML"),
        ("zeros.yaml", b"a\x00b\n", "YAML"),
        ("no.yaml", None, "No such file"),
        ("my.pt", b"PK", "YAML|keys"),
    ],
)
def test_a_file_that_cannot_be_read_is_named(tmp_path, name, content, says):
    path = tmp_path / name
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ConfigError, match=rf"{re.escape(str(path))}:.*({says})"):
        load_config(path)


def test_every_mistake_is_told_at_once_by_line(write):
    with pytest.raises(ConfigError) as caught:
        load_config(write("models: [resnet5]\nengines: [eagr]\nreplicates: 0\n"))
    assert re.findall(r"bench\.yaml:(\d+):", str(caught.value)) == ["1", "2", "3"]


@pytest.mark.parametrize("written", ["tensorrt", "TensorRT", "trtt", "tensorrt_rtx", "tensort-rtx"])
def test_tensorrt_is_found_by_its_name(written):
    meant = "trt-rtx" if "rtx" in written else "trt"
    with pytest.raises(ConfigError, match=f"unknown engine '{written}'; did you mean '{meant}'"):
        config_of({"models": ["resnet18"], "engines": [written]})


def test_the_default_job_is_valid_on_both_devices():
    default = Path(__file__).parents[3] / "bench.yaml"
    assert load_config(default, "cpu").precisions == ["fp32"]
    assert load_config(default, "cuda").precisions == ["fp32", "tf32", "fp16"]


def test_a_block_is_not_blamed_for_a_key_of_the_job(write):
    path = write(more("budget: {second: 2}\ncpu:\n  budget: {seconds: 3}"))
    with pytest.raises(ConfigError, match=r":3: budget\.second: "):
        load_config(path, "cpu")


def test_a_block_replaces_keys_on_its_device_only_and_merges_the_budget(write):
    path = write(more("replicates: 2\nbudget: {seconds: 2, min_samples: 7}\ncpu:\n  replicates: 5\n  engines: [ort]\n"
                      "  budget: {seconds: 4}"))  # fmt: skip
    found = {}
    for device in ("cpu", "cuda", ""):
        config = load_config(path, device)
        found[device] = config.replicates, config.budget.seconds, config.budget.min_samples, config.engines[0].name
    assert found == {"cpu": (5, 4, 7, "ort"), "cuda": (2, 2, 7, "eager"), "": (2, 2, 7, "eager")}
    assert load_config(path, "cpu", {"replicates": 9}).replicates == 9


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("budget: {timeout: -1}", r"bench\.yaml:3: budget\.timeout: must be"),
        ("machine: {usd_per_hour: -1}", r"bench\.yaml:3: machine\.usd_per_hour: must be"),
        ("replicates: 1", "^--seconds: must be"),
    ],
)
def test_a_mistake_is_blamed_on_an_option_only_where_that_was_typed(write, text, says):
    seconds = -1 if "replicates" in text else 0.3
    with pytest.raises(ConfigError, match=says):
        load_config(write(more(text)), "cpu", {"budget": {"seconds": seconds}, "machine": {"label": "Desk"}})


def test_paths_are_relative_to_the_yaml(write, tmp_path):
    named = models("{name: x, onnx: there.onnx}", "{name: vgg16, weights: there.onnx, calibration: images}")
    config = load_config(write(f"{named}output: out\n"))
    assert [config.models[0].onnx, config.models[1].weights] == [tmp_path / "there.onnx"] * 2
    assert config.models[1].source().calibration == tmp_path / "images"
    assert (config.output, config.import_from) == (tmp_path / "out", [tmp_path])
    config = load_config(write(f"{HEAD}import_from: [src, /opt]\noutput: ../up\n"))
    assert (config.import_from, config.output) == ([tmp_path / "src", Path("/opt")], tmp_path.parent / "up")


def test_a_word_is_a_network_a_librarys_model_or_a_file(write, tmp_path):
    (tmp_path / "saved").mkdir()
    (tmp_path / "saved" / "config.json").write_text("{}")
    words = ["resnet18", "hf:BertModel", "{name: 'timm:a.b_c', options: {num_classes: 3}}", "there.onnx", "hf:saved"]
    named = "{name: tiny, network: 'hf:BertConfig', options: {num_hidden_layers: 2}, dimensions: {sequence: 8}}"
    config = load_config(write(models(*words, named, "{name: m, factory: 'a.b:make', input: [3]}")))
    sources = [entry.source() for entry in config.models]
    assert [(each.name, each.kind, each.library, each.factory) for each in sources] == [
        ("resnet18", "canonical", None, None),
        ("BertModel", "factory", "hf", "hf:BertModel"),
        ("a.b_c", "factory", "timm", "timm:a.b_c"),
        ("there", "onnx", None, None),
        ("saved", "factory", "hf", f"hf:{tmp_path / 'saved'}"),
        ("tiny", "factory", "hf", "hf:BertConfig"),
        ("m", "factory", None, "a.b:make"),
    ]
    assert (sources[2].options, sources[5].dimensions) == ({"num_classes": 3}, {"sequence": 8})
    assert [has_own_weights(each) for each in sources] == [False, False, False, True, True, False, False]


def test_a_dimension_may_be_empty(write):
    config = load_config(
        write(models("{name: x, onnx: there.onnx, dimensions: {past: 0}}") + "shapes: {cache: [0, 8]}\n")
    )
    assert (config.models[0].source().dimensions, config.shapes) == ({"past": 0}, {"cache": [0, 8]})
    with pytest.raises(ConfigError, match=r"shapes\.cache\[0\]: .*greater than or equal to 0.* got -1"):
        load_config(write(models("resnet18") + "shapes: {cache: [-1]}\n"))


def test_a_config_as_resolved_reads_back_as_the_same_wherever_its_folder_is(write, tmp_path):
    run = RunFolder.create(tmp_path / "results")
    (run.path / "model").mkdir()
    np.save(run.path / "model" / "0.npy", np.ones((2, 4), np.int64))
    labelled = "{name: mine, network: resnet18, weights: there.onnx, key: state_dict, prefix: module.}"
    theirs = "{name: x, onnx: there.onnx, dimensions: {time: 4}}"
    taking = f"{{name: y, onnx: there.onnx, inputs: {{ids: {{data: '{run.path}/model/0.npy'}}}}}}"
    text = models("{name: resnet18, calibration: images}", theirs, labelled, taking, "hf:BertModel") + (
        "exclude: [{engine: ort, pass: training, batch_size: [1, 2]}]\nbudget: {seconds: 0.5}\noutput: out\n"
    )
    config = load_config(write(text.replace("[eager]", "[eager, {name: ort, label: two, threads: 2}]")))
    two = config.engines[1]
    assert (two.name, two.label, two.options) == ("ort", "two", {"threads": 2})
    run.write_config(config)
    assert load_config(run.path / "bench.yaml", "cpu") == config
    run.write_config(config.model_copy(update={"import_from": [run.path / "model", Path("/opt")]}))
    moved = run.path.rename(tmp_path / "moved")
    again = load_config(moved / "bench.yaml")
    assert again.import_from == [moved / "model", Path("/opt")]
    assert again.models[3].source().inputs == {"ids": moved / "model" / "0.npy"}


def test_yaml_keeps_its_types(write):
    text = "engines: [eager, {name: ort, label: two, threads: 0x2}]\nbatch_sizes: &b [1, 10]\nsuite: 2020-13-45\n"
    text += "models: [{name: x, factory: 'a:b', input: [3], options: {a: {0: null, 1: 1e-3}, t: \"two\\nlines\"}}]\n"
    config = load_config(write(f"{text}budget: &t {{seconds: 1}}\ncpu: {{budget: {{<<: *t, repeats: 0}}}}\n"), "cpu")
    assert (config.suite, config.budget.repeats, config.engines[1].options) == ("2020-13-45", 0, {"threads": 2})
    assert config.models[0].options == {"a": {0: None, 1: 1e-3}, "t": "two\nlines"}
