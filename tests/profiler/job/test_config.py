"""Mistakes in a config are told with file, line, key and remedy; blocks, paths and `--only` do what they say."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from odd_jobs import LONG, ODD, check, is_fit, odd_folder

from exporters.bounds import LARGEST
from exporters.weights import has_own_weights
from profiler.errors import ConfigError
from profiler.job.config import Config, config_of, load_config
from profiler.job.plan import make_plan
from profiler.results.run_folder import RunFolder

HEAD = "models: [alexnet]\nengines: [eager]\n"


def models(*entries: str) -> str:
    return "engines: [eager]\nmodels:\n" + "".join(f"  - {entry}\n" for entry in entries)


def engines(*entries: str) -> str:
    return "models: [alexnet]\nengines:\n" + "".join(f"  - {entry}\n" for entry in entries)


def mistake(name: str, text: str, line: int, *says: str) -> object:
    return pytest.param(text, line, says, id=name.replace(" ", "-"))


MISTAKES = [
    mistake("unknown key", HEAD + "precision: [fp32]\n", 3, "'precision'", "did you mean 'precisions'?"),
    mistake("unknown key, nothing near", HEAD + "zzz: 1\n", 3, "'zzz'", "models", "batch_sizes", "budget"),
    mistake("unknown budget key", HEAD + "budget:\n  second: 3\n", 4, "budget", "'second'", "mean 'seconds'?"),
    mistake("budget without keys", HEAD + "budget: 3\n", 3, "budget", "seconds", "got 3"),
    mistake("negative budget", HEAD + "budget: {seconds: -1}\n", 3, "budget.seconds", "greater than 0", "-1"),
    mistake("budget in words", HEAD + "budget: {seconds: long}\n", 3, "budget.seconds", "number", "'long'"),
    mistake("negative repeats", HEAD + "budget: {repeats: -0.5}\n", 3, "budget.repeats", "greater than or equal to 0"),
    mistake("too few samples", HEAD + "budget: {min_samples: 1}\n", 3, "budget.min_samples", "3", "got 1"),
    mistake("misspelt eager", engines("ort", "eagr"), 4, "engines[1]", "engine 'eagr'", "did you mean 'eager'?"),
    mistake("misspelt openvino", engines("opnvino"), 3, "engines[0]", "'opnvino'", "did you mean 'openvino'?"),
    mistake("misspelt preset", engines("ort-tund"), 3, "engines[0]", "'ort-tund'", "did you mean 'ort-tuned'?"),
    mistake("engine nothing like", engines("zzzz"), 3, "engines[0]", "'zzzz'", "eager", "compiled", "ort-tuned"),
    mistake("engine a number", engines("3"), 3, "engines[0]", "name", "got 3"),
    mistake(
        "misspelt option",
        engines("{name: eager, label: nhwc, chanels_last: true}"),
        *(3, "engines[0]", "option of eager", "'chanels_last'", "did you mean 'channels_last'?"),
    ),
    mistake(
        "option on its own line", engines("name: ort\n    label: two\n    thread: 2"), 5, "'thread'", "mean 'threads'?"
    ),
    mistake(
        "option of the wrong type", engines("{name: ort, label: x, threads: many}"), 3, "threads", "number", "'many'"
    ),
    mistake("yes is no bool in quotes", engines("{name: ort, label: x, optimize: 'yes'}"), 3, "optimize", "'yes'"),
    mistake(
        "option outside its choices",
        engines("{name: compiled, label: x, mode: fast}"),
        *(3, "engines[0]", "mode", "reduce-overhead", "max-autotune", "'fast'"),
    ),
    mistake(
        "option above its range", engines("{name: trt, label: x, optimization_level: 9}"), 3, "from -1 to 5, got 9"
    ),
    mistake("option below its range", engines("{name: trt, label: x, workspace_mib: -5}"), 3, "workspace_mib", "-5"),
    mistake("option of another form", engines("{name: trt, label: x, batch_range: '8:1'}"), 3, "'8:1'", "min:opt:max"),
    mistake("options of a plugin", engines("{name: ort-plugin, label: x, provider_options: a}"), 3, "key=value"),
    mistake("option without label", engines("{name: ort, threads: 1}"), 3, "engines[0]", "label", "label: ort-"),
    mistake("label with a slash", engines("{name: ort, label: a/b}"), 3, "engines[0].label", "'a/b'", "'/'"),
    mistake("label of a preset", engines("{name: ort, label: eager, threads: 1}"), 3, "label", "eager", "another"),
    mistake("engine without name", engines("{label: a}"), 3, "engines[0].name", "missing"),
    mistake("misspelt model", models("resnet5"), 3, "models[0]", "'resnet5'", "mean 'resnet50'?", "factory"),
    mistake("model nothing like", models("vgg16", "zzzz"), 4, "models[1]", "'zzzz'", "alexnet", "googlenet"),
    mistake("no models", "engines: [eager]\n", 1, "models", "at least one entry"),
    mistake("empty models", "engines: [eager]\nmodels: []\n", 2, "models", "at least"),
    mistake("models no list", "engines: [eager]\nmodels: resnet50\n", 2, "models", "list", "'resnet50'"),
    mistake("misspelt model key", models("{name: x, factroy: 'a:b'}"), 3, "models[0]", "'factroy'", "mean 'factory'?"),
    mistake("model with a slash", models("{name: a/b, onnx: there.onnx}"), 3, "models[0].name", "'a/b'", "'/'"),
    mistake("no such onnx file", models("{name: x, onnx: no.onnx}"), 3, "models[0].onnx", "no.onnx", "relative"),
    mistake("no such weights", models("{name: alexnet, weights: no.pt}"), 3, "models[0].weights", "no.pt", "relative"),
    mistake(
        "no such calibration", models("{name: alexnet, calibration: empty}"), 3, "models[0].calibration", "no .npy"
    ),
    mistake(
        "a variant at no such precision",
        models("{name: x, onnx: there.onnx, variants: {int4: there.onnx}}"),
        *(3, "models[0].variants", "'int4'", "int8"),
    ),
    mistake("onnx a number", models("{name: x, onnx: 3}"), 3, "models[0].onnx", "path", "got 3"),
    mistake(
        "factory without colon",
        models("{name: x, factory: mymodel, input: [3]}"),
        *(3, "models[0].factory", "'mymodel'", "package.module:function"),
    ),
    mistake("factory with a dot", models("{name: x, factory: a.b, input: [3]}"), 3, "factory", "did you mean 'a:b'?"),
    mistake(
        "factory as a file",
        models("{name: x, factory: 'a/b.py:c', input: [3]}"),
        3,
        "factory",
        "leave out .py: 'a.b:c'",
    ),
    mistake("factory with two colons", models("{name: x, factory: 'a:b:c', input: [3]}"), 3, "factory", "'a:b:c'"),
    mistake("factory without input", models("{name: x, factory: 'a:b'}"), 3, "models[0]", "input: [3, 224, 224]"),
    mistake("input no list", models("{name: x, factory: 'a:b', input: 3}"), 3, "models[0].input", "list", "got 3"),
    mistake("factory and network", models("{name: x, factory: 'a:b', network: vgg16, input: [3]}"), 3, "only one"),
    mistake("input beside onnx", models("{name: x, onnx: there.onnx, input: [3]}"), 3, "models[0]", "leave out"),
    mistake("input of a known network", models("{name: alexnet, input: [3]}"), 3, "models[0]", "input", "leave out"),
    mistake(
        "misspelt network", models("{name: x, network: resnet8}"), 3, "models[0].network", "'resnet8'", "did you mean"
    ),
    mistake("network and factory", models("{name: x, network: vgg16, factory: 'a:b', input: [3]}"), 3, "only one"),
    mistake("name of another network", models("{name: vgg16, network: vgg19}"), 3, "models[0].name", "vgg19"),
    mistake("key without weights", models("{name: alexnet, key: state_dict}"), 3, "models[0]", "give weights"),
    mistake("prefix without weights", models("{name: alexnet, prefix: module.}"), 3, "models[0]", "give weights"),
    mistake(
        "misspelt reference",
        models("alexnet", "{name: vgg16, reference: alexnt}"),
        4,
        "models[1].reference: ",
        "'alexnet'?",
    ),
    mistake(
        "reference to itself",
        models("alexnet", "{name: vgg16, reference: vgg16}"),
        4,
        "models[1].reference: ",
        "leave reference out",
    ),
    mistake(
        "reference of a reference",
        models("alexnet", "{name: vgg16, reference: alexnet}", "{name: vgg19, reference: vgg16}"),
        *(5, "models[2].reference: ", "vgg16 has a reference itself"),
    ),
    mistake(
        "dimensions of a factory", models("{name: x, factory: 'a:b', input: [3], dimensions: {n: 3}}"), 3, "leave them"
    ),
    mistake(
        "integers without a range",
        models("{name: x, factory: 'a:b', inputs: {ids: {shape: [batch, 4], dtype: int64}}}"),
        *(3, "models[0].inputs.ids: ", "give `inputs: {ids: {range: [0, 1000]}}`"),
    ),
    mistake(
        "misspelt key of an input",
        models("{name: x, factory: 'a:b', inputs: {ids: {shape: [batch, 4], typ: int64}}}"),
        *(3, "models[0].inputs.ids: ", "unknown key 'typ'", "dtype"),
    ),
    mistake(
        "size without a number",
        models("{name: x, factory: 'a:b', inputs: {ids: {shape: [batch, length]}}}"),
        *(3, "models[0].inputs: ", "dimensions: {length: 128}"),
    ),
    mistake(
        "dimension of no input",
        models("{name: x, factory: 'a:b', inputs: [{shape: [batch, n]}], dimensions: {n: 3, m: 4}}"),
        *(3, "models[0].dimensions.m: ", "no input has a dimension m"),
    ),
    mistake(
        "input and inputs",
        models("{name: x, factory: 'a:b', input: [3], inputs: [{shape: [batch]}]}"),
        *(3, "give one of them"),
    ),
    mistake("negative batch", HEAD + "batch_sizes: [1, -4]\n", 3, "batch_sizes[1]", "greater than 0", "got -4"),
    mistake("batch in words", HEAD + "batch_sizes: [one]\n", 3, "batch_sizes[0]", "number", "'one'"),
    mistake("batch sizes no list", HEAD + "batch_sizes: 16\n", 3, "batch_sizes", "list", "got 16"),
    mistake("zero replicates", HEAD + "replicates: 0\n", 3, "replicates", "greater than 0", "got 0"),
    mistake("nothing after a key", HEAD + "replicates:\n", 3, "replicates", "number"),
    mistake("unknown precision", HEAD + "precisions: [fp32, fp61]\n", 3, "precisions", "'fp61'", "mean 'fp16'?"),
    mistake("precision on its own line", HEAD + "precisions:\n  - fp32\n  - double\n", 5, "'double'", "fp32", "tf32"),
    mistake("native is not asked for", HEAD + "precisions: [native]\n", 3, "precisions", "'native'", "fp32"),
    mistake("unknown pass", HEAD + "passes: [inferense]\n", 3, "passes", "'inferense'", "mean 'inference'?"),
    mistake("pass on its own line", HEAD + "passes:\n  - inference\n  - zzz\n", 5, "'zzz'", "inference", "training"),
    mistake("pass in two lists", HEAD + "passes: [[inference]]\n", 3, "passes", "inference"),
    mistake("no passes", HEAD + "passes: []\n", 3, "passes", "at least"),
    mistake("unknown device", HEAD + "device: gpu\n", 3, "device", "'gpu'", "auto", "cpu", "cuda:1"),
    mistake("a second cpu", HEAD + "device: cpu:1\n", 3, "device", "'cpu:1'", "cuda:1"),
    mistake("cuda without number", HEAD + "device: 'cuda:'\n", 3, "device", "'cuda:'", "cuda:1"),
    mistake("energy in quotes", HEAD + "energy: 'yes'\n", 3, "energy", "'yes'", "true"),
    mistake("exclude unknown key", HEAD + "exclude:\n  - {engin: ort}\n", 4, "exclude[0]", "'engin'", "mean 'engine'?"),
    mistake("exclude no conditions", HEAD + "exclude:\n  - ort\n", 4, "exclude[0]", "{engine: ", "batch_size"),
    mistake("exclude no list", HEAD + "exclude: {engine: ort}\n", 3, "exclude", "list"),
    mistake(
        "exclude batch in words", HEAD + "exclude:\n  - {batch_size: many}\n", 4, "exclude[0].batch_size: ", "'many'"
    ),
    mistake(
        "exclude another model",
        HEAD + "exclude:\n  - {engine: ort}\n  - {model: alexnt}\n",
        5,
        "exclude[1].model: ",
        "mean 'alexnet'?",
    ),
    mistake(
        "exclude another engine, in a list",
        HEAD + "exclude:\n  - pass: training\n    engine:\n      - eager\n      - eagr\n",
        *(7, "exclude[0].engine[1]: ", "mean 'eager'?"),
    ),
    mistake("exclude another pass", HEAD + "cpu:\n  exclude: [{pass: train}]\n", 4, "exclude[0].pass: ", "training"),
    mistake(
        "largest batch of another model",
        HEAD + "largest_batch:\n  limit: 8\n  models: [resnet18]\n",
        *(5, "largest_batch.models[0]: ", "alexnet"),
    ),
    mistake("input gradient in words", HEAD + "training: {input_gradient: 3}\n", 3, "true, false or a list", "got 3"),
    mistake(
        "input gradient of another model",
        HEAD + "training:\n  head: logits\n  input_gradient: [alexnet, resnet]\n",
        *(5, "training.input_gradient[1]: ", "'resnet'", "did you mean"),
    ),
    mistake("key twice", HEAD + "models: [vgg16]\n", 3, "'models'", "twice"),
    mistake("inner key twice", HEAD + "budget:\n  seconds: 1\n  seconds: 2\n", 5, "'seconds'", "twice"),
    mistake("key a number", HEAD + "3: 1\n", 3, "3"),
    mistake("no YAML", HEAD + "passes: [inference\nprecisions: [fp32]\n", 4, "YAML", "','"),
    mistake("tab", HEAD + "budget:\n\tseconds: 3\n", 4, "YAML", "\\t"),
    mistake("unknown anchor", HEAD + "suite: *nowhere\n", 3, "YAML", "nowhere"),
    mistake("no date", HEAD + "replicates: 2020-13-45\n", 3, "replicates"),
    mistake("empty file", "", 1, "models", "engines"),
    mistake("comments alone", "# nothing yet\n", 1, "models", "engines"),
    mistake("a list", "- alexnet\n- eager\n", 1, "models", "engines"),
    mistake("cpu block no keys", HEAD + "cpu: 3\n", 3, "cpu", "keys"),
    mistake("cpu block unknown key", HEAD + "cpu:\n  zzz: 3\n", 4, "'zzz'", "models"),
    mistake("cpu block engine", HEAD + "cpu:\n  replicates: 1\n  engines: [eagr]\n", 5, "engines[0]", "mean 'eager'?"),
    mistake(
        "cpu block budget", HEAD + "budget: {seconds: 2}\ncpu:\n  budget: {second: 3}\n", 5, "'second'", "'seconds'"
    ),
    mistake("top budget below a block", HEAD + "budget: {second: 2}\ncpu:\n  budget: {seconds: 3}\n", 3, "'second'"),
    mistake("block budget over none", HEAD + "budget: 2\ncpu:\n  budget: {seconds: 3}\n", 3, "budget", "got 2"),
    mistake("block in a block", HEAD + "cpu:\n  cuda: {replicates: 3}\n", 4, "'cuda'"),
]


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        *((word, "trt") for word in ("tensorrt", "tensort", "TensorRT", "trtt")),
        *((word, "trt-rtx") for word in ("tensorrt-rtx", "tensorrt_rtx", "trt-rtxx", "tensort-rtx")),
    ],
)
def test_tensorrt_is_found_by_its_name(write, written, meant):
    with pytest.raises(ConfigError, match=f"unknown engine '{written}'; did you mean '{meant}'"):
        load_config(write(f"models: [resnet18]\nengines: [{written}]\n"))


@pytest.fixture
def write(tmp_path: Path):
    (tmp_path / "there.onnx").write_bytes(b"")
    (tmp_path / "images").mkdir()
    (tmp_path / "images" / "a.npy").write_bytes(b"")

    def write(text: str) -> Path:
        path = tmp_path / "bench.yaml"
        path.write_text(text)
        return path

    return write


def refusal(path: Path, device: str = "cpu") -> str:
    """What is said of a file that is no job, on as many lines as it has mistakes."""
    with pytest.raises(ConfigError) as caught:
        check(load_config(path, device))
    return str(caught.value)


@pytest.mark.parametrize(("text", "line", "says"), MISTAKES)
def test_a_mistake_is_one_line_with_file_key_and_remedy_in_the_users_words(write, text, line, says):
    path = write(text)
    message = refusal(path)
    assert message.startswith(f"{path}:{line}: ")
    assert [word for word in says if word not in message] == [], message
    assert len(message.splitlines()) == 1
    # The YAML's own words are list, number and true: not pydantic's or Python's types.
    assert not re.search(
        r"Traceback|pydantic|instance of|<class|Entry\b|\bBudget\b|dictionary|tuple|after validation|unable to parse|"
        r"\bNone\b|a int",
        message,
    ), message
    assert not re.search(r"'([^']+)'; did you mean '\1'", message), message


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("binary.yaml", b"\x89PNG\xff\x00", "not UTF-8"),
        ("zeros.yaml", b"a\x00b\n", "YAML"),
        *((name, b"models: [alexnet]\n", "is no job; give a YAML file whose") for name in ("my.onnx", "my.pt")),
    ],
)
def test_a_file_that_cannot_be_read_is_named(tmp_path, name, content, says):
    path = tmp_path / name
    path.write_bytes(content)
    message = refusal(path)
    assert message.startswith(f"{path}:")
    assert says in message
    assert len(message.splitlines()) == 1


def test_every_mistake_is_told_at_once(write):
    told = refusal(write("models: [resnet5]\nengines: [eagr]\nreplicates: 0\n")).splitlines()
    assert [re.search(r"bench\.yaml:(\d+):", line).group(1) for line in told] == ["1", "2", "3"]


def test_the_smallest_config_has_the_designs_defaults(write):
    config = load_config(write(HEAD))
    assert (config.passes, config.precisions, config.batch_sizes) == (["inference"], ["fp32"], [1])
    assert (config.device, config.replicates, config.energy) == ("auto", 1, False)
    budget = config.budget
    assert (budget.seconds, budget.min_samples, budget.max_samples) == (3, 3, 5000)
    assert (budget.timeout, budget.build_timeout, budget.repeats) == (300, 900, 0.5)


def test_the_default_job_is_valid_on_both_devices():
    path = Path(__file__).parents[3] / "bench.yaml"
    assert load_config(path, "cpu").precisions == ["fp32"]
    assert load_config(path, "cuda").precisions == ["fp32", "tf32", "fp16"]


BLOCKS = HEAD + "replicates: 2\nbudget: {seconds: 2, min_samples: 7}\ncpu:\n  replicates: 5\n  budget: {seconds: 4}\n"


@pytest.mark.parametrize(
    ("device", "replicates", "seconds"), [("cpu", 5, 4), ("cuda", 2, 2), ("", 2, 2)], ids=["cpu", "cuda", "neither"]
)
def test_a_block_replaces_top_level_keys_on_its_device_only(write, device, replicates, seconds):
    config = load_config(write(BLOCKS), device)
    assert config.replicates == replicates
    assert config.budget.seconds == seconds


def test_a_blocks_budget_is_merged_with_the_jobs(write):
    assert load_config(write(BLOCKS), "cpu").budget.min_samples == 7


def test_a_blocks_list_replaces_the_jobs(write):
    config = load_config(write(HEAD + "cuda:\n  engines: [ort]\n"), "cuda")
    assert [entry.name for entry in config.engines] == ["ort"]


def test_overrides_win_over_the_block(write):
    assert load_config(write(HEAD + "cpu:\n  device: cpu\n"), "cpu", {"device": "auto"}).device == "auto"


@pytest.fixture
def elsewhere(tmp_path, monkeypatch) -> Path:
    """The folder of the YAML, which is not the current one."""
    (tmp_path / "cwd").mkdir()
    monkeypatch.chdir(tmp_path / "cwd")
    return tmp_path


def test_model_files_are_relative_to_the_yaml(write, elsewhere):
    config = load_config(write(models("{name: x, onnx: there.onnx}", "{name: vgg16, weights: there.onnx}")))
    assert [config.models[0].onnx, config.models[1].weights] == [elsewhere / "there.onnx"] * 2


def test_a_word_is_a_network_a_librarys_model_or_a_file(write, elsewhere):
    (elsewhere / "saved").mkdir()
    (elsewhere / "saved" / "config.json").write_text("{}")
    words = ["resnet18", "hf:BertModel", "{name: 'timm:a.b_c', options: {num_classes: 3}}", "there.onnx", "hf:saved"]
    named = "{name: tiny, network: 'hf:BertConfig', options: {num_hidden_layers: 2}, dimensions: {sequence: 8}}"
    config = load_config(write(models(*words, named, "{name: m, factory: 'a.b:make', input: [3]}")))
    sources = [entry.source() for entry in config.models]
    assert [(each.name, each.kind, each.library, each.factory) for each in sources] == [
        ("resnet18", "canonical", None, None),
        ("BertModel", "factory", "hf", "hf:BertModel"),
        ("a.b_c", "factory", "timm", "timm:a.b_c"),
        ("there", "onnx", None, None),
        ("saved", "factory", "hf", f"hf:{elsewhere / 'saved'}"),
        ("tiny", "factory", "hf", "hf:BertConfig"),
        ("m", "factory", None, "a.b:make"),
    ]
    assert (sources[2].options, sources[5].dimensions) == ({"num_classes": 3}, {"sequence": 8})
    assert [has_own_weights(each) for each in sources] == [False, False, False, True, True, False, False]


def test_a_folder_that_is_called_like_a_librarys_model_is_not_taken_for_it(write, elsewhere):
    for name, file in {"resnet50": "config.json", "BertModel": "notes.txt"}.items():
        (elsewhere / name).mkdir()
        (elsewhere / name / file).write_text("{}")
    config = load_config(write(models("timm:resnet50", "hf:BertModel")))
    assert [entry.source().factory for entry in config.models] == ["timm:resnet50", "hf:BertModel"]
    assert not any(has_own_weights(entry.source()) for entry in config.models)


def test_calibration_data_are_relative_to_the_yaml_and_reach_the_model(write, elsewhere):
    (entry,) = load_config(write(models("{name: vgg16, calibration: images}"))).models
    assert entry.source().calibration == elsewhere / "images"
    assert load_config(write(models("vgg16"))).models[0].source().calibration is None


def test_output_is_relative_to_the_yaml(write, elsewhere):
    assert load_config(write(HEAD + "output: out\n")).output == elsewhere / "out"


def test_factories_are_found_beside_the_yaml(write, elsewhere):
    assert load_config(write(HEAD)).import_from == [elsewhere]


def test_factories_are_found_in_the_folders_given(write, elsewhere):
    assert load_config(write(HEAD + "import_from: [src, /opt]\n")).import_from == [elsewhere / "src", Path("/opt")]


def test_a_config_as_resolved_reads_back_as_the_same(write, tmp_path):
    labelled = "{name: mine, network: resnet18, weights: there.onnx, key: state_dict, prefix: module., reference: x}"
    theirs = "{name: x, onnx: there.onnx, dimensions: {time: 4}}"
    np.savez(tmp_path / "real.npz", ids=np.ones((2, 4), np.int64))
    taking = "{name: y, factory: 'a:b', inputs: {ids: {data: real.npz}, t: [{shape: [batch, n]}]}, dimensions: {n: 3}}"
    text = models("{name: resnet18, calibration: images}", theirs, labelled, taking, "hf:BertModel") + (
        "exclude: [{engine: ort, pass: training, batch_size: [1, 2]}]\nbudget: {seconds: 0.5}\noutput: out\n"
    )
    config = load_config(write(text.replace("[eager]", "[eager, {name: ort, label: two, threads: 2}]")))
    run = RunFolder.create(tmp_path / "results")
    run.write_config(config)
    again: Config = load_config(run.path / "bench.yaml", "cpu")
    assert again.models == config.models
    assert again.engines == config.engines
    assert again == config


def test_what_a_runs_own_folder_has_to_import_is_found_after_it_was_moved(write, tmp_path):
    run = RunFolder.create(tmp_path / "results")
    config = load_config(write(HEAD))
    run.write_config(config.model_copy(update={"import_from": [run.path / "model", Path("/opt")]}))
    moved = run.path.rename(tmp_path / "moved")
    assert load_config(moved / "bench.yaml").import_from == [moved / "model", Path("/opt")]


def test_a_runs_own_inputs_are_found_after_it_was_moved(write, tmp_path):
    run = RunFolder.create(tmp_path / "results")
    (run.path / "model").mkdir()
    np.savez(run.path / "model" / "inputs.npz", ids=np.ones((2, 4), np.int64))
    text = models(f"{{name: x, factory: 'a:b', inputs: {{ids: {{data: '{run.path}/model/inputs.npz'}}}}}}")
    run.write_config(load_config(write(text)))
    moved = run.path.rename(tmp_path / "moved")
    (declared,) = load_config(moved / "bench.yaml").models[0].source().inputs
    assert declared.data == moved / "model" / "inputs.npz"


def test_options_of_an_engine_are_kept_under_its_label(write):
    entry = load_config(write(engines("{name: ort, label: two, threads: 2}"))).engines[0]
    assert (entry.name, entry.label, entry.options) == ("ort", "two", {"threads": 2})


@pytest.mark.parametrize("own", ["engines.py", "engines/__init__.py"])
def test_a_factory_with_the_name_of_a_package_of_the_profiler_is_refused(write, own):
    path = write("engines: [eager]\nmodels:\n  - {name: mine, factory: 'engines:make', input: [3, 8, 8]}\n")
    load_config(path)  # There is nothing here that it could mean instead.
    (path.parent / own).parent.mkdir(exist_ok=True)
    (path.parent / own).touch()
    with pytest.raises(ConfigError, match=r"factory engines:make: the profiler has a package 'engines' itself; rename"):
        load_config(path)


def test_paths_are_told_without_steps_up_and_a_link_at_the_end_stays(tmp_path: Path) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "a" / "b")
    (tmp_path / "blob").touch()
    (tmp_path / "model.onnx").symlink_to(tmp_path / "blob")
    job = tmp_path / "a" / "job.yaml"
    job.write_text("models: [{name: x, onnx: ../model.onnx}]\nengines: [ort]\noutput: ../link/../results\n")
    config = load_config(job, "cpu")
    assert config.models[0].onnx == tmp_path / "model.onnx"
    assert config.output == tmp_path / "a" / "results", "the folder above a link's is its target's"


# A file that is no job is refused in words, in moments, and what others may write still is one


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return odd_folder(tmp_path_factory.mktemp("odd"))


@pytest.mark.parametrize("name", ODD)
def test_an_odd_job_is_refused_in_words(folder: Path, name: str) -> None:
    text, says = ODD[name]
    path = folder / "bench.yaml"
    path.write_text(text)
    said = refusal(path)
    assert said.startswith(str(path)), said
    assert re.search(says, said), said
    assert is_fit(said), said


@pytest.mark.parametrize(
    ("name", "says"),
    [
        *(("pipe", "it is no regular file"), ("/dev/zero", "it is no regular file"), ("folder.yaml", "Is a directory")),
        *(("loop", "symbolic links"), (f"{LONG}.yaml", "too long"), ("no.yaml", "No such file")),
    ],
)
def test_what_is_no_file_is_refused_and_not_waited_for(folder: Path, name: str, says: str) -> None:
    said = refusal(folder / name)
    assert ": cannot be read: " in said, said
    assert says in said, said


def test_long_names_have_logs_of_their_own() -> None:
    """Of the longest names, label, setting and shape that a job may have; a log's name says more after that."""
    long, most = "ü" * 60, 2**31 - 1
    engines = [{"name": "ort", "label": f"{long[:-1]}{letter}", "threads": 1} for letter in "ab"]
    shape = {"height" * 5: [most], "width" * 5: [most]}
    inputs = {"a": {"shape": ["batch", *shape]}}
    entry = {"name": long, "factory": "a:b", "inputs": inputs, "shapes": shape}
    config = config_of({"models": [entry], "engines": engines, "batch_sizes": [most]})
    check(config)
    names = {case.id.file_name for case in make_plan(config, "cpu")}
    assert len(names) == 2


def test_what_others_may_write_is_a_job(folder: Path) -> None:
    """Bounds are for what nothing could measure: aliases, merges, dates and keys of numbers stay what they were."""
    path = folder / "bench.yaml"
    path.write_text(
        "suite: 2020-13-45\nengines: [eager, {name: ort, label: two, threads: 0x2}]\nbatch_sizes: &b [1, 1_0]\n"
        f"budget: &t {{seconds: 1e-3}}\nmodels:\n  - {{name: x, factory: 'a:b', input: [{LARGEST}], "
        'options: {names: {0: no, 1: yes}, text: "two\\nlines"}}\n'
        "exclude: [{engine: two, batch_size: *b}]\ncpu: {budget: {<<: *t, repeats: 0}}\n"
    )
    config = load_config(path, "cpu")
    assert (config.suite, config.batch_sizes, config.budget.seconds) == ("2020-13-45", [1, 10], 1e-3)
    assert config.models[0].options == {"names": {0: False, 1: True}, "text": "two\nlines"}
    assert len(make_plan(config, "cpu")) == 2
