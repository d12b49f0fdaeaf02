"""`explain`: a planted bad layer, found from the run's folder in the CPU's engines, and requests that are refused."""

from __future__ import annotations

import json
import math
import re
import shutil
from pathlib import Path
from typing import Any

import handmade
import numpy as np
import onnxruntime
import pytest
from able_engines import if_able
from planted_nets import conv_net
from rich.console import Console
from ruamel.yaml import YAML
from runs import Profiler, run_job

from profiler.commands import explain as command_module
from profiler.commands.explain import _chosen, answer
from profiler.errors import ConfigError
from profiler.job.case import Case
from profiler.machine.target import usable_cores
from profiler.options import Explain
from profiler.processes.messages import Outcome
from profiler.results.choice import Limit
from profiler.results.run_folder import RunFolder
from profiler.worker.bisection import Explained

pytestmark = pytest.mark.slow
NODES, ROUNDS = (("a", "Exp", ""),), ((1.0, 1.5, 3.0),) * 15
CELL: dict[str, Any] = handmade.row("ort", "fp16", device="cpu", accuracy=0.1, accuracy_loss=0.9, worst="y, item 7")
CELL |= {"latency_spread": 1e-4, "latency_spread_free": 30.0}
JOB = """
models: [{name: net, onnx: net.onnx}, {name: other, onnx: net.onnx}]
engines: [ort, openvino]
precisions: [fp32, int8]
batch_sizes: [1, 2]
budget: {seconds: 0.01}
exclude: [{model: other, precision: int8}, {precision: fp32, batch_size: 2}]
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("explain")


@pytest.fixture(scope="module")
def bad(folder: Path) -> int:
    return conv_net(folder / "net.onnx", 3)[1]


@pytest.fixture(scope="module")
def run(folder: Path, bad: int, profiler: Profiler) -> Path:
    return run_job(profiler, folder, JOB, PROFILER_CACHE=str(folder / "cache"))


@pytest.mark.parametrize("engine", ["ort", if_able("openvino")])
def test_planted_layer_is_found_and_its_graph_is_accurate(engine, run, bad, folder, profiler):
    words = ("explain", str(run), "--model", "net", "--configuration", f"{engine}/int8")
    done = profiler(*words, cwd=folder, PROFILER_CACHE=str(folder / "cache"))
    print(done.stdout, done.stderr)
    assert done.returncode == 0
    assert f"c{bad + 1} " in done.stdout
    assert " of 10 parts in float32: error bound" in done.stdout
    (graph,) = (run / "explain").glob(f"net,{engine},*,b1,*.onnx")
    variants = re.search(r"variants: (.+)", done.stdout)
    assert variants
    assert YAML(typ="safe").load(variants[1]) == {"int8": str(graph)}
    x = np.random.default_rng(5).standard_normal((2, 3, 8, 8), np.float32)
    ours, truth = (
        onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"]).run(None, {"x": x})[0]
        for path in (graph, folder / "net.onnx")
    )
    assert np.linalg.norm(ours - truth) < 0.2 * np.linalg.norm(truth)


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (
            ["--configuration", "ort/fp32"],
            "ort runs the fp32 graph at fp32, so no node of its own is rounded; explain another, such as ort/int8",
        ),
        (["--configuration", "ort/int4"], "--configuration: unknown 'ort/int4'; did you mean 'ort/int8'?"),
        (["--configuration", "x"], "--configuration: unknown 'x'; valid: openvino/int8, ort/int8"),
        (["--configuration", "ort/int8", "--batch", "3"], "--batch: unknown '3'; valid: 1, 2"),
        (["--configuration", "ort/int8", "--model", "nett"], "--model: unknown 'nett'; did you mean 'net'?"),
        (["--configuration", "ort/fp32"], "--model: it ran several models; give one: net, other"),
    ],
)
def test_refused_requests(words, why, run, folder, command):
    given = ["--model", "net"] if "--model" not in words and "several" not in why else []
    done = command("explain", str(run), *words, *given, cwd=folder)
    assert (done.returncode, done.stdout) == (2, "")
    assert why in done.stderr


def test_a_run_that_takes_no_graphs_is_refused(run, folder, command, tmp_path):
    copied = Path(shutil.copytree(run, tmp_path / "run", ignore=shutil.ignore_patterns("explain")))
    (copied / "explain").touch()
    done = command("explain", str(copied), "--model", "net", "--configuration", "ort/int8", cwd=folder)
    assert (done.returncode, done.stdout) == (2, "")
    assert f"{copied}/explain: cannot be written" in done.stderr


@pytest.mark.parametrize("configuration", ["ort/int8", "eager/fp32"])
def test_a_run_without_graphs_says_what_to_measure(configuration, command, tmp_path):
    run = RunFolder.create(tmp_path).path
    handmade.frame([handmade.row("eager"), handmade.row("compiled")]).write_parquet(run / "results.parquet")
    done = command("explain", str(run), "--configuration", configuration, cwd=tmp_path)
    assert done.returncode == 2 and "to explain; measure one, such as by --engine ort" in done.stderr
    rows = [handmade.row("openvino", precision) for precision in ("fp32", "bf16")]
    handmade.frame(rows).write_parquet(run / "results.parquet")
    done = command("explain", str(run), "--configuration", "openvino/bf16", cwd=tmp_path)
    assert done.returncode == 2 and "to explain: openvino/bf16 rounds inside the fp32 graph; measure one" in done.stderr


def test_of_another_hosts_run_only_the_chosen_models_code_needs_trust(run, tmp_path):
    copied = Path(shutil.copytree(run, tmp_path / "run"))
    facts = json.loads((copied / "environment.json").read_text())
    (copied / "environment.json").write_text(json.dumps(facts | {"host": "elsewhere"}))
    bench, options = copied / "bench.yaml", Explain(run=copied, configuration="ort/int8", model="net")
    bench.write_text(re.sub("(name: other\n  )onnx: .*", r"\1factory: evil:make", bench.read_text()))
    assert _chosen(options)[0].model == "net"
    bench.write_text(re.sub("(name: net\n  )onnx: .*", r"\1factory: evil:make", bench.read_text()))
    with pytest.raises(ConfigError, match="another host or user"):
        _chosen(options)


def test_tensorrt_8_keeps_no_node_in_float32(command, tmp_path):
    published = Path(__file__).parents[3] / "docs/results/h200"
    done = command("explain", str(published), "--model", "resnet50", "--configuration", "trt/fp16", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert "TensorRT 8 chooses the types of layers itself" in done.stderr


def test_words_for_an_error_that_is_spread_or_not_of_the_nodes():
    scores = tuple((1.0,) * hits + (0.0,) * (20 - hits) for hits in (2, 18, 19))
    few = answer(Explained(NODES, 1, 54, (math.inf, 0.012, 0.001), ROUNDS, scores), CELL, [])
    assert few.splitlines()[:3] == [
        "outputs are not finite, accuracy 10.00 %",
        "With 1 of 54 parts in float32: error bound 1.2e-2, accuracy 90.00 %; "
        "1.50× slower compared with fp16; 2.0× faster compared with all in float32",
        "With all in float32: error bound 1.0e-3, accuracy 95.00 %",
    ]
    busy = tuple((1.0, 10.0 ** (number % 3), 3.0) for number in range(15))
    assert "compared" not in answer(Explained(NODES, 1, 54, (0.3, 0.1, 0.0), busy), CELL, []), "too wide to say"
    assert "spread over the graph" in answer(Explained(NODES, 40, 54, (0.3, 0.1, 0.0), ROUNDS), CELL, [])
    none = answer(Explained((), 0, 54, (0.3, 0.3, 0.25)), CELL, [])
    assert none.startswith("error bound 3.0e-1; with all 54 parts in float32 error bound 2.5e-1, so their type")


@pytest.mark.parametrize(
    ("error", "losses", "limits", "outcome"),
    [
        (0.012, None, [], "misses the limit: error bound 1.2e-2, over"),
        (0.012, None, [Limit("error", 0.1)], "meets the limit: error bound 1.2e-2, within"),
        (0.9, 0, [], "meets the limit: accuracy loss 0.00 %"),
        (0.9, 50, [], "misses the limit: accuracy loss 5.00 %"),
        (0.9, 5, [], "may miss the limit: accuracy loss 0.50 %"),
        (0.012, None, [Limit("accuracy_loss", 0.1)], "may miss the limit: no base to compare with"),
    ],
)
def test_the_graph_is_judged_by_the_limit(error, losses, limits, outcome):
    scores = () if losses is None else ((0.0,) * 1000, (0.0,) * losses + (1.0,) * (1000 - losses), (1.0,) * 1000)
    said = answer(Explained(NODES, 1, 54, (1.0, error, 0.0), ROUNDS, scores), CELL, limits)
    assert f"\nWith 1 of 54 parts in float32 it {outcome}" in said and "item 7" not in said


@pytest.mark.parametrize(
    ("whole_ms", "clock", "said"),
    [
        *((3.0, "host", "is faster"), (0.5, "host", "is slower"), (1.5, "host", "is no faster")),
        *((1.55, "host", "is not clearly"), (1.55, "event", "is faster")),
    ],
)
def test_the_graph_is_compared_with_fp32(whole_ms, clock, said):
    rounds = tuple((1.0, 1.5 * (1 + number / 1000), whole_ms) for number in range(15))
    explained = Explained(NODES, 1, 54, (1.0, 0.1, 0.0), rounds)
    cell = CELL | {"clock": clock}
    assert answer(explained, cell, []).splitlines()[-1].startswith(f"It {said}")
    for spread in (0.5, None):
        told = answer(explained, cell | {"latency_spread": spread}, [])
        assert told.endswith("It is not clearly faster than fp32"), "processes differ by more"


def test_a_graph_without_int8_is_no_advice_and_the_cores_are_the_runs(run, bad, folder, monkeypatch, capsys):
    environment_of = RunFolder.read_environment

    def explain(case: Case, folders: tuple[str, ...], path: Path, console: Console) -> Outcome:
        assert usable_cores() == 1
        shutil.copy(folder / "net.onnx", path)
        return Outcome("ok", value=Explained((("c1", "Conv", ""),), 1, 2, (0.5, 0.1, 0.1), ((1.0, 1.0, 1.0),)))

    monkeypatch.setattr(command_module, "_explain", explain)
    monkeypatch.setattr(RunFolder, "read_environment", lambda run: environment_of(run) | {"cpu_cores": 1})
    options = Explain(run=run, configuration="ort/int8", model="net", batch=2, max_error=["1e-9"])
    assert command_module.execute(options, Console()) == 0
    said = capsys.readouterr().out
    assert "Nothing in int8 is left" in said and "variants:" not in said
    assert not list((run / "explain").glob("net-ort-*-b2-*.onnx"))
