"""Collect the times of one or several runs, by what machine and library are called.

A setup is a machine with a library at a precision, such as "H200 with PyTorch 2.11 eager fp32, cuDNN 9.19": what a
published table has a row for.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import polars as pl

from engines.catalog import known
from profiler.job.case import Role
from profiler.results.lines import without_probes
from profiler.results.replicates import merge, why_not

_FIGURES = [
    *("latency_ms", "forward_ms", "backward_ms", "grad_input_ms", "grad_weight_ms", "throughput", "peak_memory_mib"),
    *("tflops", "usd_per_million_items", "items_per_usd"),
]
KEYS = [
    *("model", "model_kind", "pass", "batch_size", "device", "machine", "cloud", "instance", "usd_per_hour"),
    *("library", "runtime", "variant", "precision", "setup", "swept", "updates", "plain"),
]


def times(results: pl.DataFrame) -> pl.DataFrame:
    """One row a cell of the matrix, KEYS and medians over its replicates; `note` says why a cell has no figures.

    `library` names runtime, version, variant, precision and cuDNN, `runtime` the same without the variant; `plain`
    marks what the others are held against, `swept` the rows of a batch sweep, `updates` those with an
    optimizer's step. Rows that only looked for the largest batch are left out.
    """
    rows = without_probes(results)
    cells = list(rows.iter_rows(named=True))
    on_cpu = pl.when(device="cpu").then(pl.lit("CPU")).otherwise(pl.lit("GPU"))
    labelled = rows.with_columns(
        pl.Series("library", [library(row) for row in cells], pl.String),
        pl.Series("runtime", [library({**row, "variant": ""}) for row in cells], pl.String),
        machine=pl.coalesce("machine", "gpu", on_cpu),
        model_kind=pl.col("model_kind").fill_null("canonical"),
        swept=pl.col("role") == Role.SWEEP,
        updates=pl.col("optimizer").fill_null("none") != "none",
        plain="is_base",
    ).with_columns(setup=pl.format("{} with {}", "machine", "library"))
    found = merge(labelled, KEYS, [*_FIGURES, "status", "reason"])
    return found.select(*KEYS, *_FIGURES, note=why_not())


def nearest_batch(*keys: str) -> pl.Expr:
    """Lets rows at the published batch size, column `usual`, through; where a setup, `keys`, has none, all others."""
    is_usual = pl.col("batch_size") == pl.col("usual")
    return is_usual | ~is_usual.any().over(keys)


def library(row: Mapping[str, Any]) -> str:
    """How a row of results calls its library, like "PyTorch 2.11 eager fp32, cuDNN 9.19"."""
    engine = known(row["engine"])
    version = _release(row[engine.version.column]) if engine.version else ""
    words = [engine.library, version, row["variant"], row["precision"]]
    return " ".join(filter(None, words)) + _cudnn(row) + _unusual(row)


def _unusual(row: Mapping[str, Any]) -> str:
    """What else a training row did than the published ones, which began with a gradient of the network's output."""
    words = [f"optimizer {row['optimizer']}"] if row["optimizer"] not in (None, "none") else []
    words += ["dropout on"] if row["dropout"] else []
    if row["pass"] == "training" and row["model_kind"] != "layer" and row["head"] != "logits":
        words.append("with loss")
    return "".join(f", {word}" for word in words)


def _cudnn(row: Mapping[str, Any]) -> str:
    if row["device"] != "cuda" or not known(row["engine"]).uses_cudnn or row["cudnn"] is None:
        return ""
    if json.loads(row["options"] or "{}").get("cudnn", True) is False:
        return ", no cuDNN"
    return f", cuDNN {_cudnn_release(row['cudnn'])}"


def _cudnn_release(number: str) -> str:
    """cuDNN's own number as people write it: 91900 is 9.19, 8902 is 8.9."""
    if not number.isdigit():
        return _release(number)
    value = int(number)
    thousands = 10_000 if value >= 90_000 else 1_000
    return f"{value // thousands}.{value % thousands // 100}"


def _release(version: str | None) -> str:
    """2.11.0+cu130 as 2.11."""
    return ".".join((version or "").partition("+")[0].split(".")[:2])
