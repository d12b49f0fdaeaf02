"""The pages of docs/results/suites are what their data give: the tables of today's code over every machine's rows."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from handmade import row, run

from benchmarks.publish_suites import SUITES, Submitted, repeated, submitted, write_suite
from benchmarks.publish_suites import index as index_of
from profiler.submit.cleaning import FILES, Cleaner, Run, read_run
from profiler.tables.writers import slug

MEND = "run: PYTHONPATH=. python benchmarks/publish_suites.py"
FOLDERS = sorted(path.parent for path in SUITES.glob("*/*/results.parquet"))


@pytest.fixture(scope="module")
def runs() -> dict[Path, Submitted]:
    """What lies in each of the folders, in the pages' order."""
    return {one.folder: one for one in submitted(SUITES)}


@pytest.mark.parametrize("suite", sorted({folder.name for folder in FOLDERS}))
def test_the_pages_are_what_the_data_give(
    runs: dict[Path, Submitted], suite: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Which takes most of the time; tests/profiler/published/test_pictures.py checks what is drawn.
    monkeypatch.setattr("vl_convert.vegalite_to_svg", lambda drawing: "<svg/>")
    made, there = tmp_path / suite, SUITES / suite
    write_suite([run for run in runs.values() if run.suite == suite], made)
    assert {path.name for path in made.iterdir()} == {path.name for path in there.iterdir()}, MEND
    for path in made.iterdir():
        if path.suffix != ".svg":  # Whose fonts another version draws otherwise.
            assert path.read_text() == (there / path.name).read_text(), MEND


def test_the_list_of_runs_and_machines_is_that_of_the_data(runs: dict[Path, Submitted]) -> None:
    assert index_of(list(runs.values())) == (SUITES / "README.md").read_text(), MEND


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: f"{folder.parent.name}, {folder.name}")
def test_a_run_lies_where_submit_writes_it_and_names_nothing_private(runs: dict[Path, Submitted], folder: Path) -> None:
    one = runs[folder]
    assert one.folder.parts[-2:] == (slug(one.machine), slug(one.suite))
    assert {path.name for path in one.folder.iterdir()} == set(FILES)
    read = read_run(one.folder)
    clean = Cleaner([read])
    assert clean.left(read) == []
    assert clean.environment(read.environment) == read.environment


def test_the_page_says_how_far_apart_two_runs_of_one_case_are() -> None:
    def suite(name: str, *cases: dict[str, object]) -> Submitted:
        return Submitted("Mine", name, SUITES / "mine" / name, Run(run(*cases)[0], {}, {}))

    one = suite("one", row("eager", ms=2.0), row("eager", model="other", ms=4.0))
    other = suite("other", row("eager", ms=2.2), row("eager", model="other", ms=8.0))
    (said,) = repeated([one, other])
    assert said.startswith("2 cases ran in several suites here")
    assert "1.55× the least in the median, and 2.0× at most: other inference, eager fp32, batch 1, took 4 ms" in said
    assert repeated([one, suite("third", row("eager", model="third", ms=1.0))]) == []


def test_a_folder_that_is_no_run_is_none(tmp_path: Path) -> None:
    shutil.copytree(FOLDERS[0], tmp_path / "some" / FOLDERS[0].name)
    (tmp_path / FOLDERS[0].name).mkdir()
    assert [run.folder.parent.name for run in submitted(tmp_path)] == ["some"]
