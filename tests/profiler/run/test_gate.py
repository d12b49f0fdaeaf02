"""Two sides measured in turn: which cells are compared, what is told of them, and the whole on the CPU."""

from __future__ import annotations

import contextlib
import math
import os
import subprocess
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from xml.etree import ElementTree

import pytest
import yaml

from engines.base import Warning
from exporters.source import ModelSource
from profiler.errors import ConfigError
from profiler.job.case import Budget, Case
from profiler.processes.holders import Holders
from profiler.results.result import Result
from profiler.run import gate
from profiler.run.command import read_seconds
from profiler.run.gate import Pair, _add_round, pair, write_junit
from profiler.run.supervisor import Supervisor
from profiler.run.watch import Watcher
from profiler.worker.task import Prepared, Task

CASE = Case("new", "eager", "eager", "inference", "fp32", 1, "cpu", 0, ModelSource("new"))
OLD = replace(CASE, model="old")
NET = """
from torch import nn


def make():
    return nn.Sequential(*[layer for _ in range({}) for layer in (nn.Linear(256, 256), nn.ReLU())])
"""


@pytest.mark.parametrize(
    ("loads", "busy"), [((0.0, 0.1, 0.9), 1), ((0.4, 0.4, 0.9), 2), ((1.0, 1.0), 1), ((0.2, 0.2), 0)]
)
def test_busy_cores_are_left_to_other_work_but_for_one(monkeypatch, loads, busy):
    monkeypatch.setattr(gate, "core_loads", lambda: dict(enumerate(loads)))
    assert gate.busy_cores() == busy


def cell(*ratios: float, problem: str | None = None) -> Pair:
    return Pair(CASE, OLD, logs=[math.log(ratio) for ratio in ratios], problem=problem, fails=problem is not None)


@pytest.mark.parametrize(
    ("measured", "expected", "words"),
    [
        (cell(1.30, 1.29, 1.31), True, "1.30× slower (1.26–1.34) against old, 3 processes each: over the limit of 5 %"),
        (cell(1.00, 1.01, 1.00), False, "within the limit of 5 %"),
        (cell(0.50, 0.51, 0.50), False, "faster"),
        (
            cell(0.002, 0.04, 0.003, 0.02),
            False,
            "by an unknown factor, as other work ran, against old, 4 processes each",
        ),
        (cell(1.02, 1.2, 0.9), None, "no verdict yet: so far this machine resolves"),
        (cell(1.3, 1.3), None, "no verdict yet against old: 2 of at least 3 rounds were measured"),
        (cell(problem="failed: no such layer"), True, "failed: no such layer"),
        (Pair(CASE, OLD, problem="the old side: failed"), None, "the old side: failed"),
    ],
)
def test_a_cell_is_told_once_its_interval_lies_on_one_side_of_the_limit(measured, expected, words):
    assert measured.is_slower(0.05) is expected
    assert words in measured.describe("old", 0.05)


@pytest.mark.parametrize(
    ("measured", "waits", "code", "words"),
    [
        (cell(), False, "time", "--within 240s"),
        (cell(1.3, 1.3), False, "time", "--within 120s"),
        (cell(1.0, 1.02, 0.99), False, "time", "--within 120s"),
        (cell(1.02, 1.2, 0.9), False, "limit", "--limit 74%"),
        (cell(*[1.05, 1.04, 1.06] * 9), False, "limit", "--limit 7%"),
        (replace(cell(1.02, 1.2, 0.9), disturbed=2), False, "quiet", "--wait-for-idle"),
        (replace(cell(1.02, 1.2, 0.9), disturbed=2), True, "limit", "--limit"),
        (replace(cell(1.02, 1.2, 0.9), disturbed=1), False, "limit", "--limit"),
        (replace(cell(1.3, 1.3), disturbed=2), False, "time", "--within"),
    ],
)
def test_a_cell_without_a_verdict_gets_the_advice_that_helps_it(measured, waits, code, words):
    assert measured.is_slower(0.05) is None
    need, amount = measured.need(0.05, not waits)
    assert need == code and words in gate._ADVICE[code][1](amount, 60.0)


def test_of_two_models_the_cells_are_paired_whatever_their_names():
    unsupported = replace(CASE, precision="fp16", unsupported="not here")
    (one,), *alone = pair(
        [CASE, replace(CASE, replicate=1), unsupported], [OLD, replace(OLD, precision="fp16", unsupported="not here")]
    )
    assert (one.new, one.old, one.tests, alone) == (CASE, OLD, 1, [[], []])
    both, *_ = pair([CASE, unsupported], [OLD, replace(OLD, precision="fp16")])
    assert [each.problem for each in both] == [None, "not here"]
    assert {each.tests for each in both} == {2}


def test_of_jobs_with_several_models_the_names_count():
    (one,), (lost,), (added,) = pair([CASE, OLD], [OLD, replace(OLD, model="third")])
    assert one.new == one.old == OLD
    assert (added.name.partition(",")[0], added.problem) == (CASE.model, "the old side has no such case")
    assert (lost.name.partition(",")[0], lost.problem) == ("third", "the new side has no such case")
    assert lost.is_slower(0.05) is None, "a lost cell has no verdict"
    at_2 = replace(CASE, batch_size=2)
    assert pair([CASE, at_2], [CASE, replace(at_2, unsupported="no GPU")])[2][0].problem == "the old side: no GPU"
    with pytest.raises(ConfigError, match="nothing in common that runs here"):
        pair([CASE], [replace(OLD, batch_size=2)])


def test_a_round_that_does_not_end_in_the_time_is_none(monkeypatch):
    monkeypatch.setattr(gate, "_replicate", lambda runner, case, number: runner.results.pop(0))

    def side(*latencies: float | None, kind: str = "outliers") -> Any:
        given: dict[str, Any] = {"clock": "host", "warnings": [Warning(kind, "by others")]}
        results = [ms and Result(CASE.id, "ok", samples={"host": [ms]}, **given) for ms in latencies]
        return SimpleNamespace(display=SimpleNamespace(), results=results)

    begun = cell()
    _add_round(begun, 0, side(1.0), side(2.0, kind="disturbed"))
    assert (begun.logs, begun.disturbed) == ([math.log(0.5)], 1)
    _add_round(begun, 1, side(1.0), side(None))
    assert len(begun.logs) == begun.disturbed == 1 and begun.problem is None
    _add_round(begun, 2, side(1.0), side(2.0))
    assert (len(begun.logs), begun.disturbed) == (2, 1)


def test_no_round_is_started_that_cannot_end_in_time(monkeypatch, tmp_path, alone):
    seconds: list[float] = [0.0]
    runner: Any = SimpleNamespace(
        supervised=contextlib.nullcontext,
        supervisor=Supervisor(tmp_path, (), Watcher(None, tmp_path, tmp_path), alone, Holders()),
        run=SimpleNamespace(logs=tmp_path),
        config=SimpleNamespace(path=()),
        prepare=lambda *_: None,
        is_over=lambda more=0.0: seconds[0] + more > 17,
    )

    def take_four(*_: Any) -> None:
        seconds[0] += 4

    for name, fake in {"begin": lambda _: None, "_add_round": take_four}.items():
        monkeypatch.setattr(gate, name, fake)
    monkeypatch.setattr(gate, "time", SimpleNamespace(monotonic=lambda: seconds[0]))
    cells = [cell(), cell(), cell()]
    gate._measure(runner, runner, cells, 0.05, "old")
    assert [one.seconds for one in cells] == [8.0, 4.0, 4.0]


def test_a_gate_judges_outputs_without_labels():
    measured: list[Task] = []
    runner = SimpleNamespace(
        tasks={CASE.id: Task(CASE, Prepared(labels="key"), Budget())},
        run=SimpleNamespace(results=dict),
        measure_each=lambda tasks, is_estimated: measured.extend(tasks),
    )
    assert gate._replicate(runner, CASE, 0) is None
    assert [task.scores for task in measured] == [False]


def test_junit_has_a_test_a_cell(tmp_path):
    cells = [cell(1.3, 1.3, 1.3), cell(1.0, 1.0, 1.0, 1.0), cell(1.0)]
    for one, seconds in zip(cells, (2.0, 0.5, 0.0), strict=True):
        one.seconds = seconds
    write_junit(tmp_path / "gate.xml", cells, "old", 0.05)
    suite = ElementTree.parse(tmp_path / "gate.xml").getroot()
    assert [suite.get(key) for key in ("tests", "failures", "skipped")] == ["3", "1", "1"]
    assert [case.get("time") for case in suite] == ["2.000", "0.500", "0.000"]
    assert [[child.tag for child in case] for case in suite] == [
        ["failure", "system-out"],
        ["system-out"],
        ["skipped", "system-out"],
    ]
    with pytest.raises(ConfigError, match="--junit"):
        write_junit(tmp_path / "missing" / "gate.xml", cells, "old", 0.05)


@pytest.mark.parametrize(("text", "seconds"), [("90s", 90), ("3m", 180), ("1.5 h", 5400)])
def test_a_time(text, seconds):
    assert read_seconds("--within", text) == seconds


@pytest.mark.parametrize("text", ["90", "3 minutes", "0s", "-3m", ""])
def test_what_is_no_time(text):
    with pytest.raises(ConfigError, match="--within: expected a time such as 90s"):
        read_seconds("--within", text)


def test_a_factory_that_became_slower_fails_against_its_revision(tmp_path, profiler):
    git = ["git", "-c", "user.name=x", "-c", "user.email=x@x", "-C", str(tmp_path)]
    (tmp_path / "net.py").write_text(NET.format(2))
    for words in (["init", "-q"], ["add", "net.py"], ["commit", "-qm", "small"]):
        subprocess.run([*git, *words], check=True)
    (tmp_path / "net.py").write_text(NET.format(60))
    given = ["net:make", "--input", "256", "--batch", "64", "--limit", "100%", "--seconds", "0.05", "--junit", "j.xml"]
    done = profiler(*given, "--against", "git:HEAD", cwd=tmp_path)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "over the limit of 100 %" in done.stdout
    assert "[round 1, old] ok" in done.stdout
    assert ElementTree.parse(tmp_path / "j.xml").getroot().get("failures") == "1"
    assert len([*tmp_path.glob("results/*/results.parquet")]) == 2
    for words, told in (
        ([*given, "--against", "git:nowhere"], "git:nowhere"),
        ([*given, "--against", "git:--output=x"], "not a git revision"),
        (["resnet18", "--against", "git:HEAD"], "model 'resnet18' has no file in this folder at that revision"),
        (["net:make", "--limit", "5%"], "--limit goes with --against"),
        (["net:make", "--against", "net:make", "--dry-run"], "--dry-run and --against exclude each other"),
        (["net:make", "--against", "net:make", "--max-accuracy-loss", "1%"], "--max-accuracy-loss and --against"),
        (["net:make", "--against", "net:make", "--junit", "no/j.xml"], "there is no folder no"),
        (["net:make", "--against", "net:make", "--within", "3"], "--within: expected a time"),
        (["--against", "net:make"], "give"),
        ([*given, "--against", "git:"], "not a git revision"),
    ):
        refused = profiler(*words, cwd=tmp_path)
        assert (refused.returncode, refused.stdout) == (2, ""), refused.stdout + refused.stderr
        assert told in refused.stderr


def test_what_does_not_run_any_more_fails(tmp_path, profiler):
    (tmp_path / "net.py").write_text(NET.format(2) + "\n\ndef broken():\n    raise ValueError('no weights')\n")
    done = profiler("net:broken", "--against", "net:make", "--input", "256", cwd=tmp_path)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "no weights" in done.stdout


def test_a_model_that_the_old_side_lacks_is_told_before_the_new_one_is_prepared(tmp_path, profiler):
    (tmp_path / "net.py").write_text(NET.format(2))
    done = profiler("net:make", "--against", "net:nope", "--input", "256", cwd=tmp_path)
    assert done.returncode == 2 and "--against net:nope: model 'net.nope': net has no 'nope'" in done.stderr
    assert "preparing" not in done.stdout


@pytest.mark.parametrize(("words", "code"), [([], 0), (["--strict"], 4)])
def test_without_a_verdict_a_gate_passes_and_says_so_unless_strict(tmp_path, profiler, words, code):
    bad = "class Bad(nn.Linear):\n    def forward(self, x):\n        raise ValueError('no weights')\n"
    (tmp_path / "net.py").write_text(f"{NET.format(2)}\n\n{bad}\n\ndef broken():\n    return Bad(256, 256)\n")
    done = profiler("net:make", "--against", "net:broken", "--input", "256", *words, cwd=tmp_path)
    assert done.returncode == code and "the old side: failed" in done.stdout, done.stdout + done.stderr
    assert ("Cells without a verdict pass: the exit code is 0" in done.stdout) == (not code)


@pytest.mark.slow
@pytest.mark.parametrize(("engine", "words"), [(None, []), ("eager,ort", ["--engine", "eager,ort"])])
@pytest.mark.parametrize(("strict", "flag"), [(None, []), ("false", []), ("true", ["--strict"])])
def test_the_action_names_an_engine_and_is_strict_only_if_asked(tmp_path, engine, words, strict, flag):
    action = yaml.safe_load((Path(__file__).parents[3] / "action.yml").read_text())
    step, inputs = action["runs"]["steps"][1], {name: row.get("default") for name, row in action["inputs"].items()}
    inputs |= {"model": "job.yaml"} | ({"engine": engine} if engine else {}) | ({"strict": strict} if strict else {})
    (tmp_path / "python").write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    (tmp_path / "python").chmod(0o755)
    given = {key: inputs[key.lower()] for key in step["env"]} | {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    done = subprocess.run(["bash", "-c", step["run"]], env=given, capture_output=True, text=True, check=True)
    before = ["-m", "profiler", "job.yaml", "--against", "git:origin/main"]
    after = ["--limit", "5%", "--within", "3m", *flag, "--junit", "latency.xml"]
    assert done.stdout.splitlines() == [*before, *words, *after]
