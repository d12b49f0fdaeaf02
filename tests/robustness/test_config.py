"""Whatever a job's file holds is a job, or is refused in words: in this process, with no run started.

Texts, structures and numbers are hypothesis's, from the harness's seed; what once broke it is in tests/odd_jobs.py.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from odd_jobs import HEAD, check, is_fit, odd_folder

from engines.catalog import ENGINES, PRESETS
from exporters.catalog import CATALOG
from profiler.errors import ConfigError
from profiler.job.config import Config, config_of, load_config

hypothesis = pytest.importorskip("hypothesis")
st = hypothesis.strategies


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return odd_folder(tmp_path_factory.mktemp("odd"))


KEYS = [*Config.model_fields, "cpu", "cuda", "name", "seconds", "timeout", "factory", "inputs", "shape", "dimensions"]
WORDS = [*CATALOG, *ENGINES, *PRESETS, "training", "fp16", "cuda:1", "pipe", "loop", "models", "a:b", "hf:x", "x.onnx"]
NUMBERS = st.sampled_from([0, -1, 1, 2**31 - 1, 2**31, 2**63, 2**64, 10**30, 0.5, 1e308]) | st.integers() | st.floats()
SCALARS = st.sampled_from(WORDS) | NUMBERS | st.text(max_size=300) | st.booleans() | st.none()
VALUES = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.sampled_from(KEYS) | st.text(max_size=20) | st.integers(), inner, max_size=4)
    ),
    max_leaves=12,
)
JOBS = st.dictionaries(st.sampled_from(KEYS), VALUES, max_size=6)
FRAGMENTS = st.lists(
    st.sampled_from(
        [
            *"[]{}'\"#~\t\n\0\x85\ufeff\u2028\U0001f600",
            *("models: ", "engines: ", "- ", ": ", ", ", "\n  ", "&a ", "*a", "<<: ", "? ", "!!int ", "!!set ", "!x "),
            *("|\n", ">-\n", "\\x", "---\n", "%YAML 1.1\n", "0x1", "1:30", ".inf", "alexnet", "eager", "batch_sizes"),
            "budget",
        ]
    )
    | st.text(max_size=8),
    max_size=30,
)


def try_all(soak: Any, kind: str, few: int, strategy: Any, check_one: Any) -> None:
    """Call `check_one`, which raises for what is no refusal in words, with `few` examples, with more in a soak."""
    tried, rng = 0, next(iter(soak.trials(1)))

    @hypothesis.seed(rng.getrandbits(64))
    @hypothesis.settings(
        max_examples=soak.times(few, 3.5 * few),
        database=None,
        deadline=None,
        suppress_health_check=list(hypothesis.HealthCheck),
    )
    @hypothesis.given(strategy)
    def check_each(example: Any) -> None:
        nonlocal tried
        tried += 1
        check_one(example)

    check_each()
    soak.count(kind, tried=tried)


def accept_or_refuse(make: Any) -> None:
    try:
        check(make())
    except ConfigError as error:
        assert is_fit(str(error)), error


def test_any_structure_is_a_job_or_refused(soak: Any, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    usual = {"models": ["alexnet"], "engines": ["eager"]}
    try_all(soak, "configs", 80, JOBS, lambda job: accept_or_refuse(lambda: config_of({**usual, **job})))


def test_any_text_is_a_job_or_refused(soak: Any, folder: Path) -> None:
    path = folder / "bench.yaml"

    def read(text: bytes) -> None:
        path.write_bytes(text)
        accept_or_refuse(lambda: load_config(path, "cpu"))

    texts = FRAGMENTS.map(lambda parts: (HEAD * (len(parts) % 2) + "".join(parts)).encode("utf-8", "surrogatepass"))
    try_all(soak, "configs", 120, texts | st.binary(max_size=60), read)


def test_any_job_survives_being_written(soak: Any, folder: Path) -> None:
    """JSON is YAML: the values that hypothesis makes reach the checks behind the parser."""
    path = folder / "bench.yaml"

    def read(job: dict[str, Any]) -> None:
        path.write_text(json.dumps({"models": ["alexnet"], "engines": ["eager"], **job}))
        accept_or_refuse(lambda: load_config(path, "cuda"))

    try_all(soak, "configs", 80, JOBS, read)
