"""Whatever a job's file holds is a job, or is refused in words: in this process, with no run started."""

from __future__ import annotations

import json
import os
from typing import Any

import pytest

from engines.catalog import ENGINES, PRESETS
from exporters.catalog import CATALOG
from profiler.errors import ConfigError
from profiler.job.case import file_name
from profiler.job.config import Config, load_config
from profiler.job.plan import make_plan

KEYS = [*Config.model_fields, "cpu", "cuda", "name", "seconds", "timeout", "factory", "inputs", "range", "dimensions"]
WORDS = [*CATALOG, *ENGINES, *PRESETS, "training", "fp16", "cuda:1", "models", "a:b", "hf:x", "x.onnx"]
NUMBERS = [0, -1, 1, 2**31, 2**63, 10**30, 0.5, 1e308]
MARKS = [*"[]{}'\"#~\t\n\0", "models: ", "- ", ": ", ", ", "\n  ", "&a ", "*a", "<<: ", "? ", "!!int ", "!x ", "|\n"]


def examples(st: Any) -> Any:
    """Return a strategy of jobs and of texts."""
    keys, numbers = st.sampled_from(KEYS), st.sampled_from(NUMBERS) | st.integers() | st.floats()
    values = st.recursive(
        st.sampled_from(WORDS) | numbers | st.text(max_size=300) | st.booleans() | st.none(),
        lambda inner: st.lists(inner, max_size=4) | st.dictionaries(keys | st.text(), inner, max_size=4),
        max_leaves=12,
    )
    parts = st.sampled_from([*MARKS, "---\n", "0x1", ".inf", "alexnet"]) | st.text(max_size=8)
    return st.dictionaries(keys, values, max_size=6) | st.lists(parts, max_size=30)


def written(example: Any) -> bytes:
    """Write a job as JSON, which is YAML, or a text behind a good job."""
    if isinstance(example, dict):
        return json.dumps({"models": ["alexnet"], "engines": ["eager"], **example}).encode()
    good = "models: [alexnet]\nengines: [eager]\n" * (len(example) % 2)
    return (good + "".join(example)).encode("utf-8", "surrogatepass")


def test_any_text_or_structure_is_a_job_or_refused(soak, tmp_path):
    hypothesis = pytest.importorskip("hypothesis")
    path, tried, rng = tmp_path / "bench.yaml", 0, next(iter(soak.trials(1)))

    @hypothesis.seed(rng.getrandbits(64))
    @hypothesis.settings(max_examples=soak.times(100, 700), database=None, deadline=None,
                         suppress_health_check=list(hypothesis.HealthCheck))  # fmt: skip
    @hypothesis.given(examples(hypothesis.strategies))
    @hypothesis.example({"exclude": [{"\U00010000": None}]})  # JSON writes it as two surrogates.
    @hypothesis.example(["\n", "!!int "])
    def check(example: Any) -> None:
        nonlocal tried
        tried += 1
        path.write_bytes(written(example))
        try:
            for case in make_plan(load_config(path, "cpu"), "cpu"):
                assert len(os.fsencode(file_name(case.id))) <= 180, case.id
        except ConfigError as error:
            lines = str(error).split("\n")
            assert len(lines) <= 11, error
            assert all(line.isprintable() and len(line) < 1500 for line in lines), error

    check()
    soak.count("configs", tried=tried)
