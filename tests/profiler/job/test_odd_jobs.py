"""A file that is no job is refused in words, in moments, and what others may write still is one."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from odd_jobs import LONG, ODD, check, is_fit, odd_folder

from exporters.bounds import LARGEST
from profiler.errors import ConfigError
from profiler.job.config import config_of, load_config
from profiler.job.plan import make_plan


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return odd_folder(tmp_path_factory.mktemp("odd"))


def refusal(path: Path) -> str:
    """What is said of a file that is no job, on as many lines as it has mistakes."""
    with pytest.raises(ConfigError) as caught:
        check(load_config(path))
    return str(caught.value)


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
    assert "cannot be read: " in said, said
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
