"""Runs of suites are published without a trace of whose machine it was, and the published pages are current."""

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
from rich.console import Console

from benchmarks.publish import page as page_of_run
from engines.base import Warning
from profiler.bundled import bundled
from profiler.errors import ConfigError
from profiler.job.config import load_config
from profiler.job.plan import make_plan
from profiler.options import ShowSuites, SubmitSuites
from profiler.published import command
from profiler.published.cleaning import clean, read_run
from profiler.published.command import show, submit, write_pages
from profiler.results.result import Result
from profiler.results.run_folder import RunFolder

SUITES = bundled("suites")
RESULTS = Path(__file__).resolve().parents[3] / "docs" / "results"
FOLDERS = sorted(path.parent for path in RESULTS.rglob("results.parquet"))
SUITE = "convnet-benchmarks"
HOME, HOST = "/home/jdoe/src", "tower-7.lab.example"
ENVIRONMENT = {
    "gpu": None, "host": HOST, "user": "jroe", "device": "cpu", "torch_version": "2.12.1", "gpu_uuid": "GPU-secret",
    "cpu": "Some Processor 9000", "cpu_cores": 4, "memory_mib": 64_000.0, "python": "3.12.3", "platform": "Linux-6.8",
    "command": [f"{HOME}/profiler/__main__.py", SUITE, "--output", "/scratch/jdoe/runs", "--machine", "label=Tower"],
    "variables": {"OMP_NUM_THREADS": "4"}, "machine": {"label": "Tower"}, "sampling_seconds": 3.0,
}  # fmt: skip


@pytest.fixture
def make(tmp_path: Path) -> Callable[..., Path]:
    """Write a run of the suite on a CPU, with a warning in its first row and facts in place of its own."""

    def write(warning: Warning | None = None, suite: str = SUITE, **facts: Any) -> Path:
        config = load_config(SUITES / f"{SUITE}.yaml", "cpu", {"device": "cpu"})
        run = RunFolder.create(tmp_path / "results")
        cases, environment = make_plan(config, "cpu"), {**ENVIRONMENT, **facts}
        run.write_config(config.model_copy(update={"suite": suite, "output": tmp_path / "results"}))
        run.write_environment(environment)
        for number, case in enumerate(cases):
            ms = 100.0 + number
            result = Result(case.id, "ok", clock="host", throughput=1e3 * case.batch_size / ms)
            result.samples, result.figures = {"host": [ms] * 40}, {"forward_ms": ms / 3, "backward_ms": 2 * ms / 3}
            result.warnings += [warning] if warning and not number else []
            run.append(result)
        run.write_parquet(suite, cases, environment)
        return run.path

    return write


def published(into: Path, *runs: Path, pages: bool = False) -> str:
    """Submit the runs; write the suites' pages, which takes seconds, only for a test that reads them."""
    console = Console(file=io.StringIO(), width=200)
    with pytest.MonkeyPatch.context() as patch:
        if not pages:
            patch.setattr(command, "write_pages", lambda into: None)
        assert submit(SubmitSuites(runs=list(map(str, runs)), into=into), console) == 0
    return console.file.getvalue()


def test_a_run_is_published_without_a_trace_of_whose_machine_it_was(make, tmp_path):
    gone = Warning("no-layers", f"see {HOME}/x.log on {HOST}, says jdoe, {HOME}/runs/20261120T123125Z-tower-7-8c80/y")
    run, into = make(gone, spread={"host/eager": [0.03, 10.0]}), tmp_path / "suites"
    assert f"Written: {into / 'tower' / SUITE}" in published(into, run)
    folder = into / "tower" / SUITE
    assert {path.name for path in folder.iterdir()} == {"results.parquet", "environment.json"}
    results = pl.read_parquet(folder / "results.parquet")
    text = results.with_columns(pl.col("warnings").list.join("\n")).select(pl.col(pl.String)).write_csv()
    text += (folder / "environment.json").read_text()
    private = ("jdoe", "jroe", "tower-7", "scratch", "OMP_NUM_THREADS", "GPU-secret", str(tmp_path))
    assert [word for word in private if word in text] == []
    assert re.findall(r"(?<![\w.~/<-])~?/\w[\w.-]*", text) == []
    assert results["warnings"][0].to_list() == ["no-layers: see x.log on host, says user, y"]
    environment = json.loads((folder / "environment.json").read_text())
    assert environment["command"][3:] == [SUITE, "--machine", "label=Tower"]
    assert results["latency_spread"].null_count() == 0, "the spread of the machine's earlier runs stays"
    # Every figure is there, and what is published can be published again, unchanged.
    numbers = pl.col(pl.Float64, pl.Int64)
    assert results.select(numbers).equals(read_run(run).results.select(numbers))
    files = {path: path.read_bytes() for path in folder.iterdir()}
    published(into, folder)
    assert files == {path: path.read_bytes() for path in folder.iterdir()}


def test_runs_of_one_machine_and_suite_become_one_folder(make, tmp_path):
    into = tmp_path / "suites"
    words = [f"{HOME}/profiler/__main__.py", "suites", "run", SUITE, "--only", "model=vgg11"]
    first, second = make(), make(command=words)
    published(into, first, second)
    folder = into / "tower" / SUITE
    assert pl.read_parquet(folder / "results.parquet")["run_id"].unique().len() == 2
    # What is published already can have a run more, and the same run again.
    third = make(command=[*words, "--retry"])
    for pages in (False, True):
        published(into, folder, third, pages=pages)
        rows = pl.read_parquet(folder / "results.parquet")
        assert rows["run_id"].unique().len() == 3 and rows.select("run_id", "case_id").is_unique().all()
    assert f"[Tower](tower/{SUITE})" in (into / "README.md").read_text()
    assert f"`python -m profiler {SUITE} " in (page := (into / f"{SUITE}.md").read_text()) and "| ▸ Tower |" in page
    assert f", then `python -m profiler suites run {SUITE} --only model=vgg11`" in page
    assert page.count(", then `") == 2
    with pytest.raises(ConfigError, match="another machine is called 'Tower' in "):
        published(tmp_path / "new", first, make(cpu="Another"))


@pytest.mark.parametrize(
    ("words", "typed"),
    [
        (f"{HOME}/profiler/__main__.py /elsewhere/suites/gpu-study.yaml", "gpu-study.yaml"),
        ("/opt/bin/runtime-profiler suites run x --output=/x --device cuda:3", "suites run x --device cuda:3"),
        (
            "/x/profiler/__main__.py --resume /y/20261122T154559Z-tower-7-bdff --retry",
            "--resume 20261122T154559Z-bdff --retry",
        ),
        ("/x/profiler/__main__.py vgg16 --only model=vgg16 --device=cpu", "vgg16 --only model=vgg16 --device=cpu"),
    ],
)
def test_a_recorded_command_is_one_that_a_reader_can_type(make, words, typed):
    (run,) = clean([read_run(make(command=words.split()))])
    assert run.environment["command"] == ["python", "-m", "profiler", *typed.split()]


@pytest.mark.parametrize(
    ("facts", "message"),
    [
        ({"suite": "mine"}, "its job 'mine' is no suite"),
        ({"machine": {}}, "its machine has no name"),
        ({"sampling_seconds": 0.1}, "run it without --quick"),
        ({"cpu": "Another"}, "another machine is called 'Tower'"),
    ],
)
def test_a_run_that_would_mislead_is_refused(make, tmp_path, facts, message):
    into = tmp_path / "suites"
    other = into / "tower" / "gpu-study"
    other.mkdir(parents=True)
    (other / "environment.json").write_text(json.dumps(ENVIRONMENT))
    shutil.copy(RESULTS / "suites" / "2-core-epyc" / "gpu-study" / "results.parquet", other)
    with pytest.raises(ConfigError, match=re.escape(message)):
        published(into, make(**facts))
    assert not (into / "tower" / SUITE).exists()


@pytest.mark.parametrize(
    ("run", "message"),
    [
        ("nowhere", "no run's folder"),
        (str(RESULTS / "h200-vit"), "its job names no published benchmark: run a suite, or add `published`"),
    ],
)
def test_what_cannot_be_compared_is_an_error(run, message):
    with pytest.raises(ConfigError, match=message):
        show(ShowSuites(runs=[run]), Console(file=io.StringIO()))


# What lies in docs/results.


def test_the_pages_of_the_suites_are_what_their_data_give(tmp_path):
    into = Path(shutil.copytree(RESULTS / "suites", tmp_path / "suites"))
    for page in into.glob("*.*"):
        page.unlink()
    write_pages(into)
    for page in (RESULTS / "suites").glob("*.*"):
        mend = "run: python -m profiler suites submit 'docs/results/suites/*/*'"
        current, made = (shown(path.read_text()) for path in (page, into / page.name))
        assert current == made, mend


def shown(text: str) -> str:
    """Return a page whole; of a picture its words and marks, since other widths follow from the machine's fonts."""
    if not text.startswith("<svg"):
        return text
    marks = re.findall(r"role-mark [^>]*>(.*?)</g>", text, re.DOTALL)
    assert marks
    return " ".join([*re.findall(r">([^<]+)<", text), *marks])


@pytest.mark.parametrize("folder", ["h200", "h200-networks", "h200-vit", "zoo/h200", "zoo/cpu"])
def test_the_page_of_a_run_is_what_its_data_give(folder):
    text = (RESULTS / folder / "README.md").read_text()
    mend = f"run: python benchmarks/publish.py docs/results/{folder} --into docs/results/{folder}"
    assert text == page_of_run([read_run(RESULTS / folder)]), mend


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: str(folder.relative_to(RESULTS)))
def test_a_published_run_names_nothing_private(folder):
    run = read_run(folder)
    (cleaned,) = clean([run])
    assert cleaned.results.equals(run.results)
    assert (cleaned.environment, cleaned.job) == (run.environment, run.job)
    assert {path.name for path in folder.iterdir() if not path.is_dir()} <= {
        *("results.parquet", "environment.json", "bench.yaml", "README.md"),
        *("seconds.parquet", "layers.md", "verification.md", "verification.csv"),
    }
