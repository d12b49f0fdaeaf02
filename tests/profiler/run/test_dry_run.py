"""The plan that is printed: what cannot run and why, and how long the rest takes, with times of earlier runs."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console

from exporters.source import ModelSource
from profiler.job.case import Budget, Case
from profiler.results.result import Result
from profiler.results.run_folder import RunFolder
from profiler.run.summary import earlier_seconds, print_plan

CASE = Case("a-model-with-a-longer-name", "eager", "eager", "inference", "fp32", 1, "cpu", 0, ModelSource("net"))
MACHINE = {"device": "cpu", "gpu": None, "cpu": "EPYC", "cpu_cores": 2, "sampling_seconds": 3.0}


def printed(cases: list[Case], earlier: dict[str, float]) -> tuple[int, list[str]]:
    output = io.StringIO()
    code = print_plan(Console(file=output, width=80), "EPYC", cases, Budget(), earlier)
    return code, [" ".join(line.split()) for line in output.getvalue().splitlines() if line.strip()]


def test_a_model_variant_and_pass_is_a_row_with_its_cases_and_their_time_or_a_reason() -> None:
    compiled = replace(CASE, engine="compiled", variant="compiled")
    lacking = [replace(CASE, variant=name, unsupported="openvino is not installed") for name in ("a", "b", "b")]
    code, lines = printed([CASE, replace(CASE, batch_size=4), compiled, *lacking], {CASE.id: 9.0})
    assert code == 0
    assert [line.removeprefix(CASE.model).lstrip() for line in lines if line.startswith(CASE.model)] == [
        "eager inference 2 16 s",
        "compiled inference 1 1 min 7 s",
        "a inference 1 unsupported: openvino",
        "b inference 2 unsupported: openvino",
    ]
    end = " ".join(lines[-2:])
    assert "3 of 6 cases can run here, in about 1 min 23 s besides preparing" in end
    assert "(1 as in earlier runs here, the others guessed)" in end
    assert printed(lacking, {})[0] == 2


def test_times_are_of_the_latest_runs_on_this_machine_with_this_sampling(tmp_path: Path) -> None:
    def run(name: str, seconds: float, environment: dict[str, Any]) -> None:
        (tmp_path / name / "logs").mkdir(parents=True)
        folder = RunFolder(tmp_path / name)
        folder.write_environment(environment)
        folder.append(Result(CASE.id, "ok", phases={"load": 1.0, "measure": seconds - 1.0}))
        folder.append(Result("failed", "failed", phases={"load": 1.0}))

    run("2026-1", 5.0, MACHINE)
    run("2026-2", 6.0, MACHINE)
    run("2026-3", 7.0, MACHINE | {"cpu": "Xeon"})
    run("2026-4", 8.0, MACHINE | {"sampling_seconds": 1.0})
    (tmp_path / "2026-5").mkdir()
    (tmp_path / "2026-5" / "environment.json").write_text("{")
    here = {key: value for key, value in MACHINE.items() if key != "sampling_seconds"}
    assert earlier_seconds(tmp_path, here, Budget()) == {CASE.id: 6.0}
    assert earlier_seconds(tmp_path / "none", here, Budget()) == {}
