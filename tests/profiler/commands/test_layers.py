"""Layers in a run: measured by --profile, kept in the journal and layers.parquet, printed by the command `layers`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import polars as pl
import pytest
from handmade import EAGER, ORT, layer
from runs import Finished, Profiler, finish, on_console

from engines.base import Warning
from engines.options import Training
from exporters.source import ModelSource
from profiler import load, load_layers
from profiler.commands.layers import Options, execute, read
from profiler.errors import ConfigError
from profiler.job.case import Case
from profiler.processes.messages import Outcome
from profiler.results.columns import LAYERS
from profiler.results.result import Kept, Result, Stage, result_of
from profiler.results.run_folder import RunFolder

TINY = """
import os
import signal

import torch
from torch import nn


def good():
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, bias=False), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
        nn.Linear(784, 10),
    )


class Shy(nn.Module):
    '''Does not like to be profiled.'''

    def __init__(self, what):
        super().__init__()
        self.model, self.what = good(), what

    def forward(self, x):
        if torch.autograd._profiler_enabled():
            self.what()
        return self.model(x)


def refuse():
    raise RuntimeError("not under a profiler")


def die():
    os.kill(os.getpid(), signal.SIGSEGV)


def refusing():
    return Shy(refuse)


def dying():
    return Shy(die)
"""


# The command and the frames.


COMPILED = [layer("triton_poi_fused_convolution_relu_0" + "_very_long" * 20, "triton", 1.25)]


def case(variant: str, model: str = "net", replicate: int = 0, batch: int = 1) -> Case:
    engine = variant.partition("-")[0]
    return Case(model, engine, variant, "inference", "fp32", batch, "cpu", replicate, ModelSource(model))


def result(of: Case, layers: list[dict[str, Any]]) -> Result:
    return Result(of.id, "ok", clock="host", samples={"host": [4.0, 4.0, 4.0]}, layers=layers)


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    folder = RunFolder.create(tmp_path / "results")
    cases = [case("eager"), case("eager", replicate=1), case("ort"), case("compiled"), case("eager", "other")]
    for of, layers in zip(cases, [EAGER, EAGER[:1], ORT, COMPILED, []], strict=True):
        folder.append(result(of, layers))
    folder.write_parquet("suite", cases, {"host": "here"})
    return folder


def printed(run: RunFolder, width: int = 120, top: int | None = None, only: str = "") -> str:
    options = Options(run=run.path, top=top, only=[only] if only else [])
    text = on_console(lambda console: execute(options, console), width=width)
    assert all(len(line) <= width for line in text.splitlines())
    return text


def line_with(text: str, *words: str) -> str:
    (line,) = (" ".join(line.split()) for line in text.splitlines() if all(word in line for word in words))
    return line


def test_layers_are_read_back_as_they_were_measured(run, tmp_path):
    frame = load_layers(run.path).collect()
    assert dict(frame.schema) == LAYERS
    own = frame.filter(case_id=str(case("ort").id))
    assert own["order"].to_list() == [0, 1, 2, 3, 4]
    assert own.select("layer", "kind", "nodes", "ms").to_dicts() == ORT == run.results()[case("ort").id].layers
    assert own["share"].to_list() == pytest.approx([0.04, 0.6, 0.08, 0.0, 0.28])
    assert set(frame["run_id"]) == {run.run_id}
    assert load_layers(f"{run.path.parent}/*").collect().height == frame.height
    still = RunFolder.create(tmp_path / "still")
    still.append(result(case("eager"), [layer("view", "view", 0.0)]))
    still.write_parquet("suite", [case("eager")], {})
    assert load_layers(still.path).collect()["share"].to_list() == [0.0], "what took no time has no share"
    assert "view" in printed(still)


@pytest.mark.parametrize("width", [80, 120])
def test_variants_stand_side_by_side_by_the_nodes_that_one_of_them_fuses(run, width):
    text = printed(run, width)
    assert "net, inference, fp32, batch 1" in text and "other" not in text
    assert [variant in text for variant in ("eager", "ort", "compiled")] == [True] * 3
    rows = ["3.000 1.500", "block add 0.250 0.200", "reshape 0.000", "no exported node 0.100 1.250"]
    rows += ["all layers 4.000 2.500 1.250", "latency 4.000 4.000 4.000"]
    found = [" ".join(line.split()) for line in text.splitlines()]
    places = [next(n for n, line in enumerate(found) if line.endswith(row)) for row in rows]
    assert places == sorted(places), "in the graph's order, and the sums last"


def test_a_busy_latency_is_no_figure_and_operators_are_no_nodes(run):
    path = run.path / "results.parquet"
    low = pl.when(variant="ort").then(0.01).otherwise("latency_low_ms")
    pl.read_parquet(path).with_columns(latency_low_ms=low).write_parquet(path)
    text = printed(run)
    assert line_with(text, "latency") == "latency 4.000 busy 4.000"
    assert [heading in text for heading in ("ONNX nodes", "Operators")] == [True, False]
    text = printed(run, only="variant=compiled")
    assert [heading in text for heading in ("ONNX nodes", "Operators")] == [False, True]


def test_a_choice_may_be_of_one_variant_and_of_the_longest_rows(run):
    assert "triton_poi" in printed(run, only="variant=compiled")
    assert line_with(printed(run, only="engine=eager"), "Conv_1").endswith("2.500")
    text = printed(run, top=1)
    assert "block" not in text
    for only, said in (("model=resnet51", "no row of these runs matches"), ("model=other", "no case with layers has")):
        with pytest.raises(ConfigError, match=said):
            printed(run, only=only)


def test_the_devices_time_has_its_own_line_and_settings_stand_apart(tmp_path):
    folder = RunFolder.create(tmp_path / "results")
    plain = [replace(case(variant), pass_="training") for variant in ("eager", "ort")]
    other = [replace(of, training=Training("sgd", "logits")) for of in plain]
    for of, layers in zip([*plain, *other], (EAGER, ORT, EAGER, ORT), strict=True):
        folder.append(Result(of.id, "ok", clock="event", samples={"event": [8.0], "gpu": [5.0]}, layers=layers))
    folder.write_parquet("suite", [*plain, *other], {})
    text = " ".join(printed(folder).split())
    assert text.count("on the device 5.000 5.000") == 2
    assert "net, training, fp32, batch 1, optimizer sgd, head logits" in text


def test_a_run_without_layers_says_how_to_get_them(tmp_path):
    with pytest.raises(ConfigError, match="no run's folder"):
        read(tmp_path / "nothing")
    folder = RunFolder.create(tmp_path / "results")
    refused = result(case("eager"), [])
    for warning, why in (
        (None, ""),
        (Warning("no-layers", "RuntimeError: CUPTI"), r" \(no-layers: RuntimeError: CUPTI\)"),
    ):
        refused.warnings += [warning] if warning else []
        folder.append(refused)
        folder.write_parquet("suite", [case("eager")], {})
        assert not (folder.path / "layers.parquet").exists()
        with pytest.raises(ConfigError, match=rf"has no layers{why}; .*{folder.run_id}/bench\.yaml --profile"):
            read(folder.path)


def test_what_was_measured_outlives_a_process_that_profiling_ended():
    measured = result(case("eager"), [])
    reason = "ended after 300 s in phase profile; raise budget.timeout if it needs longer"
    kept = result_of(case("eager").id, Outcome("timeout", reason, salvage=Kept(measured, Stage.CHECKED)))
    assert (kept.status, kept.reason) == ("ok", None)
    assert kept.warnings == [Warning("no-layers", reason)]
    lost = result_of(case("eager").id, Outcome("timeout", reason, salvage=Kept(measured, Stage.SAMPLED)))
    assert (lost.status, lost.reason) == ("timeout", reason)


@pytest.mark.slow
def test_a_runtime_that_tells_no_layers_says_so():
    from profiler.worker.measure_case import _profile

    measured = result(case("eager"), [])
    _profile(SimpleNamespace(layers=list), measured)
    assert [warning.kind for warning in measured.warnings] == ["no-layers"]


# Whole runs.


@pytest.fixture(scope="module")
def profiled(tmp_path_factory: pytest.TempPathFactory, profiler: Profiler) -> Finished:
    folder: Path = tmp_path_factory.mktemp("profiled")
    (folder / "tiny_shy.py").write_text(TINY)
    models = ", ".join(
        f'{{name: {name}, factory: "tiny_shy:{name}", input: [3, 16, 16]}}' for name in ("good", "refusing", "dying")
    )
    job = (
        f"models: [{models}]\nengines: [eager, ort]\ndevice: cpu\nbudget: {{seconds: 0.05, min_samples: 3}}\n"
        "exclude: [{engine: ort, model: [refusing, dying]}]\n"
    )
    return finish(profiler, folder, job, "--profile", PROFILER_CACHE=str(folder / "cache"))


def test_profile_gives_every_measured_case_its_layers(profiled, profiler):
    run, done = profiled.folder, profiled.done
    layers = load_layers(run).collect()
    eager = layers.filter(pl.col("case_id").str.starts_with("good/eager"))
    assert eager["kind"].to_list() == ["conv2d", "batch_norm", "relu", "max_pool2d", "flatten", "linear"]
    assert eager["share"].sum() == pytest.approx(1.0)
    ort = layers.filter(pl.col("case_id").str.starts_with("good/ort"))
    assert set(eager["nodes"].explode()) == set(ort["nodes"].explode().drop_nulls())
    assert f"profiler layers {Path('results') / run.name}" in done.stdout.replace(str(run.parent.parent) + "/", "")
    said = profiler("layers", str(run), "--only", "model=good", "--top", "3", cwd=run).stdout
    assert "good, inference, fp32, batch 1" in said


def test_a_failed_profile_is_a_warning_of_a_row_that_is_ok(profiled):
    run = profiled.folder
    rows = {row["case_id"]: row for row in load(run)[0].collect().to_dicts()}
    assert {row["status"] for row in rows.values()} == {"ok"}
    refusing, dying = (rows[f"{name}/eager/inference/fp32/b1/r0"] for name in ("refusing", "dying"))
    (warning,) = (w for w in refusing["warnings"] if w.startswith("no-layers"))
    assert warning.startswith("no-layers: RuntimeError: not under a profiler at ")
    assert warning.endswith('tiny_shy.py:30 (`raise RuntimeError("not under a profiler")`)')
    assert [w for w in dying["warnings"] if w.startswith("no-layers")] == [
        "no-layers: ended by SIGSEGV in phase profile"
    ]
    assert all(row["latency_ms"] > 0 for row in (refusing, dying))
    assert "not under a profiler" in (run / "logs" / "refusing,eager,inference,fp32,b1,r0.log").read_text()
