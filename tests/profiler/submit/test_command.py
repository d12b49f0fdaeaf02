"""Runs of suites, written as a run writes them, are checked, cleaned, and stand in the tables beside other machines."""

from __future__ import annotations

import io
import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import yaml
from rich.console import Console

from benchmarks import publish_suites
from engines.base import Warning
from profiler.errors import ConfigError
from profiler.job.config import load_config
from profiler.job.plan import make_plan
from profiler.listings import SUITES
from profiler.options import Submit
from profiler.results.result import Result
from profiler.results.run_folder import RunFolder
from profiler.submit.cleaning import Cleaner, read_run
from profiler.submit.command import execute

ROOT = Path(__file__).resolve().parents[3]
SUITE = "convnet-benchmarks"
HOME, HOST = "/home/jdoe/src", "tower-7.lab.example"
ENVIRONMENT = {
    "gpu": None,
    "host": HOST,
    "user": "jroe",
    "device": "cpu",
    "torch_version": "2.12.1",
    "cpu": "Some Processor 9000",
    "cpu_cores": 4,
    "memory_mib": 64_000.0,
    "python": "3.12.3",
    "platform": "Linux-6.8",
    "command": [
        *(f"{HOME}/profiler/__main__.py", f"{HOME}/suites/{SUITE}.yaml", "--output", "/scratch/jdoe/runs"),
        *("--machine", "label=Tower"),
    ],
    "variables": {"OMP_NUM_THREADS": "4"},
    "machine": {"label": "Tower"},
    "wall_seconds": {"measure": 30.0, "rest": 10.0},
}
Make = Callable[..., Path]


@pytest.fixture
def make(tmp_path: Path) -> Make:
    """Write a whole run of the suite on a CPU, with a warning in its first rows and facts in place of its own."""

    def write(warning: Warning | None = None, rows: int = 0, lacking: int = 0, **facts: Any) -> Path:
        config = load_config(SUITES / f"{SUITE}.yaml", "cpu", {"device": "cpu"})
        run = RunFolder.create(tmp_path / "results")
        cases, environment = make_plan(config, "cpu"), {**ENVIRONMENT, **facts}
        run.write_config(config.model_copy(update={"suite": SUITE, "output": tmp_path / "results"}))
        run.write_environment({key: value for key, value in environment.items() if value != "unknown"})
        for number, case in enumerate(cases[: len(cases) - lacking]):
            ms = 100.0 + number
            result = Result(case.id, "ok", clock="host", throughput=1e3 * case.batch_size / ms)
            result.samples, result.figures = {"host": [ms] * 40}, {"forward_ms": ms / 3, "backward_ms": 2 * ms / 3}
            if warning and number < rows:
                result.warnings.append(warning)
            run.append(result)
        run.write_parquet(SUITE, cases, environment)
        return run.path

    return write


def submit(into: Path, *runs: Path) -> str:
    console = Console(file=io.StringIO(), width=200)
    assert execute(Submit(runs=list(map(str, runs)), into=into), console) == 0
    return console.file.getvalue()  # type: ignore[attr-defined]


def test_a_run_is_written_without_a_trace_of_whose_machine_it_was(make: Make, tmp_path: Path) -> None:
    gone = Warning("no-layers", f"see {HOME}/x.log on {HOST}, says jdoe")
    printed = submit(tmp_path / "suites", make(gone, rows=1))
    folder = tmp_path / "suites" / "tower" / SUITE
    assert f"{folder}: " in printed
    assert {path.name for path in folder.iterdir()} == {"results.parquet", "environment.json", "bench.yaml"}
    results = pl.read_parquet(folder / "results.parquet")
    text = results.with_columns(pl.col("warnings").list.join("\n")).select(pl.col(pl.String)).write_csv()
    text += (folder / "environment.json").read_text() + (folder / "bench.yaml").read_text()
    assert [
        word for word in ("jdoe", "jroe", "tower-7", "scratch", "OMP_NUM_THREADS", str(tmp_path)) if word in text
    ] == []
    assert re.findall(r"(?<![\w.~/<-])~?/\w[\w.-]*", text) == []
    assert results["warnings"][0].to_list() == ["no-layers: see x.log on host, says user"]
    environment = json.loads((folder / "environment.json").read_text())
    assert environment["command"] == ["python", "-m", "profiler", f"suites/{SUITE}.yaml", "--machine", "label=Tower"]
    assert load_config(folder / "bench.yaml", "cpu").machine.label == "Tower"


@pytest.mark.parametrize(
    ("words", "typed"),
    [
        (f"{HOME}/profiler/__main__.py /elsewhere/suites/gpu-study.yaml", "suites/gpu-study.yaml"),
        ("/opt/bin/cnn-profiler gpu-study --output=/x --device cuda:3", "gpu-study --device cuda"),
        (f"{HOME}/profiler/__main__.py {HOME}/jobs/mine.yaml --output /x --quick", "jobs/mine.yaml --quick"),
        ("/x/profiler/__main__.py --resume /y/20261122T154559Z-tower-7-bdff --retry", "--resume results/<run> --retry"),
        ("python -m profiler gpu-study --only model=vgg16 --device=cpu", "gpu-study --only model=vgg16 --device cpu"),
    ],
)
def test_a_recorded_command_is_one_that_a_reader_can_type(make: Make, words: str, typed: str) -> None:
    clean = Cleaner([read_run(make())])
    command = clean.command(words.split())
    assert command == ["python", "-m", "profiler", *typed.split()]
    assert clean.command(command) == command


DISTURBED = Warning("disturbed", "other processes took 30 % of the processors")


@pytest.mark.parametrize(
    ("made", "why"),
    [
        ({"lacking": 1}, r"1 of \d+ cases have no row, such as .*: measure them by .* --resume"),
        ({"lacking": 99}, "no row has figures"),
        ({"warning": DISTURBED, "rows": 99}, r"(\d+) of \1 rows were disturbed .* --retry --wait-for-idle 10"),
        ({"machine": {}}, "its machine has no name: .* --resume .* --machine 'label=Some 9000'"),
        ({"machine": {"label": "Titan Black"}}, "'Titan Black' is a published machine"),
        ({"machine": {"label": "cnn-benchmarks"}}, "is a published machine or a suite"),
        ({"cpu": "unknown", "python": None}, "does not say what cpu and python it ran on"),
        ({"torch_version": None}, "does not say what torch_version it ran on"),
        ({"note": r"see C:\work\jdoe"}, r"after cleaning it still names C:\\work\\user: take that out"),
    ],
)
def test_what_would_mislead_is_refused_with_how_to_mend_it(make: Make, tmp_path: Path, made: Any, why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        submit(tmp_path / "suites", make(**made))
    assert not (tmp_path / "suites").exists()


def edited(run: Path, **job: Any) -> Path:
    found = yaml.safe_load((run / "bench.yaml").read_text())
    (run / "bench.yaml").write_text(yaml.safe_dump(found | job))
    return run


def test_a_job_of_no_study_and_a_rough_one_are_refused(make: Make, tmp_path: Path) -> None:
    budget = yaml.safe_load((make() / "bench.yaml").read_text())["budget"]
    rough = edited(make(), budget=budget | {"seconds": 0.01})
    for run, why in [
        (edited(make(), published=None), "no published benchmark has a table for it"),
        (edited(make(), suite="train"), "its job 'train' is no suite, .* run one of cloud-gpus, cnn-benchmarks, "),
        (rough, "sampled for 0.01 s, the suite asks for"),
        (edited(make(), models=["no-such-network"]), "its job cannot be planned by this version"),
        (tmp_path, "not a whole run: it lacks results.parquet"),
    ]:
        with pytest.raises(ConfigError, match=why):
            submit(tmp_path / "suites", run)


def test_a_few_disturbed_rows_are_told_with_the_command_that_measures_them_again(make: Make, tmp_path: Path) -> None:
    run = make(DISTURBED, rows=1)
    assert f"disturbed, which the tables mark; to measure those again: python -m profiler --resume {run}" in submit(
        tmp_path / "suites", run
    )


def test_of_several_runs_the_good_ones_are_written(make: Make, tmp_path: Path) -> None:
    good, bad, twice = make(), make(machine={}), make()
    with pytest.raises(ConfigError) as refused:
        submit(tmp_path / "suites", good, bad, twice)
    lines = str(refused.value).splitlines()
    assert [line.partition(": ")[0] for line in lines] == [str(bad), str(twice)]
    assert "another of these runs is of convnet-benchmarks on Tower, too" in lines[1]
    assert (tmp_path / "suites" / "tower" / SUITE / "results.parquet").is_file()


def test_another_machine_of_the_same_name_is_refused_and_the_same_one_replaced(make: Make, tmp_path: Path) -> None:
    submit(tmp_path / "suites", make())
    submit(tmp_path / "suites", make())
    (tmp_path / "suites" / "tower" / SUITE).rename(tmp_path / "suites" / "tower" / "gpu-study")
    with pytest.raises(ConfigError, match=r"Tower in .* is another machine \(cpu Some Processor 9000, here Another\)"):
        submit(tmp_path / "suites", make(cpu="Another"))


def test_the_list_of_runs_has_what_a_run_lacks_of_its_suite_and_its_samples(make: Make, tmp_path: Path) -> None:
    shutil.copytree(make(lacking=2), tmp_path / "suites" / "tower" / SUITE)
    (line,) = publish_suites._runs(publish_suites.submitted(tmp_path / "suites"))[2:]
    cells = [cell.strip() for cell in line.split("|")]
    had, planned = map(int, re.findall(r"\d+", cells[4])[:2])
    assert (planned - had, cells[5]) == (2, "40 (40)")


def test_a_foreign_run_stands_in_every_table_and_conclusion(make: Make, tmp_path: Path) -> None:
    run, suites = make(), tmp_path / "suites"
    shutil.copytree(ROOT / "docs" / "results" / "suites" / "h200" / SUITE, suites / "h200" / SUITE)
    submit(suites, run)
    publish_suites.publish(suites)
    pages = {path.name: path.read_text() for path in (suites / SUITE).iterdir()}
    alexnet = pages["published.md"].partition("### AlexNet")[2].partition("###")[0]
    mine = [line for line in alexnet.splitlines() if "PyTorch" in line]
    assert {machine for machine in ("H200", "Tower") for line in mine if machine in line} == {"H200", "Tower"}
    assert {line for line in mine if "Tower" in line} == {line for line in mine if "PyTorch 2.12 fp32" in line}
    own = pl.read_csv(io.StringIO(pages["published-networks.csv"])).filter("ours")
    assert set(own["machine"]) == {"H200", "Tower"}
    assert re.search(r"the H200 is \*\*[\d.,]+x.*\*\* faster than Tower", pages["conclusions.md"])
    index = (suites / "README.md").read_text()
    assert "On 2 machines: H200, Tower." in index
    first = re.search(r"^1\. (.*)$", pages["conclusions.md"], re.MULTILINE)
    assert first is not None
    assert f"\n- {SUITE}: {first[1]}\n" in index
    assert f"| [{SUITE}]({SUITE}/published.md) | [conclusions]" in index
    assert f"`python -m profiler suites/{SUITE}.yaml --machine label=Tower`" in index
    assert "Some Processor 9000" in index.partition("### Tower")[2]
