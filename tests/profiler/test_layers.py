"""Layers in a run: measured by --profile, kept in the journal and layers.parquet, printed by the command `layers`."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import polars as pl
import pytest
from handmade import EAGER, ORT, layer
from runs import Profiler, on_console

from engines.base import Warning
from engines.catalog import Training
from exporters.source import ModelSource
from profiler import load, load_layers
from profiler.errors import ConfigError
from profiler.job.case import Case
from profiler.layers import Options, execute, read
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
    """A run of three variants of "net", and of one variant of "other", which has no layers."""
    folder = RunFolder.create(tmp_path / "results")
    cases = [case("eager"), case("eager", replicate=1), case("ort"), case("compiled"), case("eager", "other")]
    for of, layers in zip(cases, [EAGER, EAGER[:1], ORT, COMPILED, []], strict=True):
        folder.append(result(of, layers))
    folder.write_parquet("suite", cases, {"host": "here"})
    return folder


def printed(run: RunFolder, width: int = 120, top: int | None = None, **wanted: str) -> str:
    text = on_console(lambda console: execute(Options(run=run.path, top=top, **wanted), console), width=width)
    assert all(len(line) <= width for line in text.splitlines())
    return text


def lines_with(text: str, *words: str) -> list[str]:
    return [line for line in text.splitlines() if all(word in line for word in words)]


def test_layers_are_read_back_as_they_were_measured(run: RunFolder) -> None:
    frame = load_layers(run.path).collect()
    assert dict(frame.schema) == LAYERS
    own = frame.filter(case_id=str(case("ort").id))
    assert own["order"].to_list() == [0, 1, 2, 3, 4]
    assert own.select("layer", "kind", "nodes", "ms").to_dicts() == ORT
    assert own["share"].to_list() == pytest.approx([0.04, 0.6, 0.08, 0.0, 0.28])
    assert set(frame["run_id"]) == {run.run_id}
    assert load_layers(f"{run.path.parent}/*").collect().height == frame.height


def test_journal_keeps_the_layers(run: RunFolder) -> None:
    assert run.results()[case("ort").id].layers == ORT


def test_a_run_without_layers_has_no_file(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path / "results")
    folder.append(result(case("eager"), []))
    folder.write_parquet("suite", [case("eager")], {})
    assert not (folder.path / "layers.parquet").exists()


def test_layers_that_took_no_time_have_no_share(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path / "results")
    folder.append(result(case("eager"), [layer("view", "view", 0.0)]))
    folder.write_parquet("suite", [case("eager")], {})
    assert load_layers(folder.path).collect()["share"].to_list() == [0.0]
    assert "view" in printed(folder)


def test_a_case_is_printed_layer_by_layer(run: RunFolder) -> None:
    text = printed(run, variant="eager")
    order = [line.split()[0] for line in lines_with(text, "stem.") + lines_with(text, "head.fc")]
    assert order == ["1", "2", "3", "5"]
    (longest,) = lines_with(text, "stem.conv")
    assert longest.split() == ["1", "2.000", "50.0", "██████████", "conv2d", "stem.conv", "Conv_1"]
    assert "5 layers, 4.000 ms together: 100 % of the latency of 4.000 ms" in text
    assert "eager/inference/fp32/b1/r0" in text
    assert "r1" not in text, "of replicates the first"
    assert "side" not in text
    assert not lines_with(text, "node by node"), "one variant stands beside nothing"


def test_a_layer_is_printed_as_it_is_called(run: RunFolder) -> None:
    text = printed(run, variant="ort")
    assert lines_with(text, "fused [bold]", "Conv_1 + relu")
    assert not lines_with(text, "node by node")


def test_kernels_without_nodes_have_no_column_for_them(run: RunFolder) -> None:
    text = printed(run, variant="compiled")
    assert "ONNX nodes" not in text
    assert lines_with(text, "triton_poi_fused_convolution_relu_0_very_long", "…")


def test_variants_stand_side_by_side_by_the_nodes_that_one_of_them_fuses(run: RunFolder) -> None:
    text = printed(run)
    table = text[text.index("node by node") :]
    (heads,) = lines_with(table, "PyTorch modules")
    assert heads.split() == ["PyTorch", "modules", "ONNX", "nodes", "eager", "ort", "compiled"]
    (stem,) = lines_with(table, "Conv_1 + relu")
    assert stem.split() == ["stem:", "conv,", "bn,", "relu", "Conv_1", "+", "relu", "3.000", "×3", "1.500"]
    (add,) = lines_with(table, "block")
    assert add.split() == ["block", "add", "0.250", "0.200"]
    (reshape,) = lines_with(table, "reshape")
    assert reshape.split() == ["reshape", "0.000"]
    (rest,) = lines_with(table, "no exported node")
    assert rest.split()[3:] == ["0.100", "1.250"]
    (total,) = lines_with(table, "all layers")
    assert total.split() == ["all", "layers", "4.000", "×5", "2.500", "×5", "1.250"]
    (latency,) = lines_with(table, "latency")
    assert latency.split() == ["latency", "4.000", "4.000", "4.000"]
    rows = [lines_with(table, name)[0] for name in ("Conv_1", "add", "reshape", "linear")]
    assert rows == sorted(rows, key=table.index), "in the graph's order"


def test_top_keeps_the_longest_rows_in_order_and_sums_the_rest(run: RunFolder) -> None:
    text = printed(run, top=2)
    case_table = text[: text.index("5 layers")]
    assert [line.split()[0] for line in lines_with(case_table, "stem.conv") + lines_with(case_table, "head.fc")] == [
        "1",
        "5",
    ]
    assert not lines_with(case_table, "stem.bn")
    (rest,) = lines_with(case_table, "3 more")
    assert rest.split()[:2] == ["1.250", "31.2"]
    table = text[text.index("node by node") :]
    (more,) = lines_with(table, "2 more rows")
    assert more.split() == ["2", "more", "rows", "0.250", "0.200", "×2"]


@pytest.mark.parametrize("width", [80, 100, 120])
def test_a_narrow_terminal_cuts_names_and_no_figure(run: RunFolder, width: int) -> None:
    text = printed(run, width=width)
    assert lines_with(text, "stem: conv", "3.000 ×3", "1.500")
    assert lines_with(text, "all layers", "4.000 ×5", "2.500 ×5", "1.250")


def test_layers_that_took_far_longer_than_the_case_are_no_shares_of_it(tmp_path: Path) -> None:
    """As on a machine that others kept busy while the layers were profiled: they came to "30206 % of the latency"."""
    folder = RunFolder.create(tmp_path / "results")
    slow = Result(case("eager").id, "ok", clock="host", samples={"host": [4.0]}, layers=[layer("a", "a", 1208.24)])
    event = {"event": [8.0], "gpu": [2.0]}
    host_bound = Result(case("ort").id, "ok", clock="event", samples=event, layers=[layer("a", "a", 4.0)])
    for of in (slow, host_bound):
        folder.append(of)
    folder.write_parquet("suite", [case("eager"), case("ort")], {})
    text = printed(folder)
    assert "1 layers, 1,208.240 ms together: far more than the case's 4.000 ms, so no shares of it" in text
    assert "1 layers, 4.000 ms together: far more than the case's 2.000 ms, so no shares of it" in text
    assert "% of the latency" not in text


def test_latency_on_the_device_has_its_own_line(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path / "results")
    cases = [case("eager"), case("ort")]
    for of, layers in zip(cases, (EAGER, ORT), strict=True):
        folder.append(Result(of.id, "ok", clock="event", samples={"event": [8.0], "gpu": [5.0]}, layers=layers))
    folder.write_parquet("suite", cases, {})
    text = printed(folder)
    assert "50 % of the latency of 8.000 ms, 80 % of the 5.000 ms on the device" in text
    assert lines_with(text, "on the device", "5.000")[-1].split() == ["on", "the", "device", "5.000", "5.000"]


def test_cases_that_differ_by_a_setting_are_all_printed_and_stand_apart(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path / "results")
    plain = [replace(case(variant), pass_="training") for variant in ("eager", "ort")]
    cases = [
        *plain,
        *(replace(of, setting="optimizer=sgd/head=logits", training=Training("sgd", "logits")) for of in plain),
    ]
    for of, layers in zip(cases, (EAGER, ORT, EAGER, ORT), strict=True):
        folder.append(result(of, layers))
    folder.write_parquet("suite", cases, {})
    text = " ".join(printed(folder).split())
    assert text.count("5 layers, ") == 4
    assert text.count("net, training, fp32, batch 1: node by node") == 1
    assert text.count("net, training, fp32, batch 1, optimizer sgd, head logits: node by node") == 1


def test_nothing_selected_says_what_there_is(run: RunFolder) -> None:
    with pytest.raises(ConfigError, match=r"no profiled case has model resnet51; there is: model net; variant eager, "):
        printed(run, model="resnet51")
    with pytest.raises(ConfigError, match=r"no profiled case has variant ort and batch 16; .*batch 1"):
        printed(run, variant="ort", batch="16")


def test_a_folder_without_a_run_is_a_config_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="there is no such folder"):
        read(tmp_path / "nothing")


def test_a_run_without_layers_says_how_to_get_them(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path / "results")
    folder.append(result(case("eager"), []))
    folder.write_parquet("suite", [case("eager")], {})
    with pytest.raises(ConfigError, match=r"has no layers; .*bench\.yaml --profile; .*--resume \S+ --profile"):
        read(folder.path)
    refused = result(case("eager"), [])
    refused.warnings.append(Warning("no-layers", "RuntimeError: CUPTI"))
    folder.append(refused)
    folder.write_parquet("suite", [case("eager")], {})
    with pytest.raises(ConfigError, match=r"has no layers \(no-layers: RuntimeError: CUPTI\)"):
        read(folder.path)


def test_what_was_measured_outlives_a_process_that_profiling_ended() -> None:
    measured = result(case("eager"), [])
    reason = "ended after 300 s while timing its layers; raise budget.timeout if it needs longer"
    kept = result_of(case("eager").id, Outcome("timeout", reason, salvage=Kept(measured, Stage.CHECKED)))
    assert (kept.status, kept.reason) == ("ok", None)
    assert kept.warnings == [Warning("no-layers", reason)]
    lost = result_of(case("eager").id, Outcome("timeout", reason, salvage=Kept(measured, Stage.SAMPLED)))
    assert (lost.status, lost.reason) == ("timeout", reason)


# Whole runs.


def start(profiler: Profiler, folder: Path, *arguments: str, code: int = 0) -> CompletedProcess[str]:
    done = profiler(*arguments, cwd=folder, PROFILER_CACHE=str(folder / "cache"))
    assert done.returncode == code, done.stdout + done.stderr
    return done


@pytest.fixture(scope="module")
def profiled(tmp_path_factory: pytest.TempPathFactory, profiler: Profiler) -> tuple[Path, CompletedProcess[str]]:
    folder: Path = tmp_path_factory.mktemp("profiled")
    (folder / "tiny_shy.py").write_text(TINY)
    models = ", ".join(
        f'{{name: {name}, factory: "tiny_shy:{name}", input: [3, 16, 16]}}' for name in ("good", "refusing", "dying")
    )
    (folder / "job.yaml").write_text(
        f"models: [{models}]\nengines: [eager, ort]\ndevice: cpu\nbudget: {{seconds: 0.05, min_samples: 3}}\n"
        "exclude: [{engine: ort, model: [refusing, dying]}]\n"
    )
    done = start(profiler, folder, "job.yaml", "--profile")
    (run,) = (folder / "results").iterdir()
    return run, done


def test_profile_gives_every_measured_case_its_layers(profiled: tuple[Path, CompletedProcess[str]]) -> None:
    run, done = profiled
    layers = load_layers(run).collect()
    eager = layers.filter(pl.col("case_id").str.starts_with("good/eager"))
    assert eager["kind"].to_list() == ["conv2d", "batch_norm", "relu", "max_pool2d", "flatten", "linear"]
    assert eager["layer"].to_list() == ["0", "1", "2", "3", "4", "5"]
    assert eager["share"].sum() == pytest.approx(1.0)
    ort = layers.filter(pl.col("case_id").str.starts_with("good/ort"))
    assert set(eager["nodes"].explode()) == set(ort["nodes"].explode().drop_nulls())
    assert f"profiler layers {Path('results') / run.name}" in done.stdout.replace(str(run.parent.parent) + "/", "")


def test_a_failed_profile_is_a_warning_of_a_row_that_is_ok(profiled: tuple[Path, CompletedProcess[str]]) -> None:
    run, _ = profiled
    rows = {row["case_id"]: row for row in load(run)[0].collect().to_dicts()}
    assert {row["status"] for row in rows.values()} == {"ok"}
    refusing, dying = (rows[f"{name}/eager/inference/fp32/b1/r0"] for name in ("refusing", "dying"))
    (warning,) = (w for w in refusing["warnings"] if w.startswith("no-layers"))
    assert warning.startswith("no-layers: RuntimeError: not under a profiler at ")
    assert warning.endswith('tiny_shy.py:30 (`raise RuntimeError("not under a profiler")`)')
    assert [w for w in dying["warnings"] if w.startswith("no-layers")] == [
        "no-layers: ended by SIGSEGV while timing its layers"
    ]
    assert all(row["latency_ms"] > 0 for row in (refusing, dying))
    assert "not under a profiler" in (run / "logs" / "refusing-eager-inference-fp32-b1-r0.log").read_text()


def test_resuming_a_profiled_run_profiles_too(profiled: tuple[Path, CompletedProcess[str]], profiler: Profiler) -> None:
    run, _ = profiled
    journal = run / "journal.jsonl"
    kept = [line for line in journal.read_text().splitlines() if json.loads(line)["case_id"].startswith("good/eager")]
    journal.write_text("\n".join(kept) + "\n")
    start(profiler, run.parent.parent, "--resume", str(run), "--only", "model=good")
    cases = load_layers(run).collect()["case_id"].unique().to_list()
    assert sorted(cases) == ["good/eager/inference/fp32/b1/r0", "good/ort/inference/fp32/b1/r0"]


def test_the_command_prints_and_refuses(profiled: tuple[Path, CompletedProcess[str]], profiler: Profiler) -> None:
    run, _ = profiled
    folder = run.parent.parent
    said = start(profiler, folder, "layers", str(run), "--variant", "eager,ort", "--model", "good", "--top", "3").stdout
    assert "good, inference, fp32, batch 1: node by node, ms" in said
    assert lines_with(said, "batch_norm") or lines_with(said, "conv2d")
    wrong = start(profiler, folder, "layers", str(run), "--precision", "fp16", code=2)
    assert wrong.stderr.startswith("no profiled case has precision fp16; there is: model good")
    assert "there is no such folder" in start(profiler, folder, "layers", "nothing", code=2).stderr
