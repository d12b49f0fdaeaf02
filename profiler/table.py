"""What enters: results and samples of a run. What leaves: latency, memory and speed-up tables, a sentence per group.

A group is a model, a pass and a batch size: what a deployment chooses within. Replicates of a case are one line.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl

from profiler.statistics import Interval, ratio_interval

GROUP = ["model", "pass", "batch_size"]
LINE = [*GROUP, "variant", "precision"]
BASES = (("eager", "fp32"), ("ort", "native"))
"""Variant and precision that a group's speed-ups are relative to; the second is for a user's ONNX file."""

_LATENCY = [
    "latency_ms",
    "latency_ci_low_ms",
    "latency_ci_high_ms",
    "latency_mean_ms",
    "latency_min_ms",
    "latency_p90_ms",
    "latency_p95_ms",
    "latency_p99_ms",
    "samples",
    "clock",
    "stop_reason",
    "gpu_ms",
    "enqueue_ms",
    "host_ms",
    "h2d_ms",
    "d2h_ms",
    "forward_ms",
    "backward_ms",
    "throughput",
]
_MEMORY = [
    "peak_memory_mib",
    "context_mib",
    "weights_mib",
    "activations_mib",
    "other_mib",
    "host_peak_mib",
    "torch_allocated_mib",
    "torch_reserved_mib",
]


@dataclass(frozen=True)
class Speedup:
    """How many times faster than the group's base, with the 95 % interval of the ratio within this run's processes."""

    ratio: float
    interval: Interval | None
    base: tuple[str, str]


def latency(results: pl.DataFrame) -> pl.DataFrame:
    """One row a measured case: every clock's figures."""
    return _ok(results).select([*LINE, "replicate", *_LATENCY, "rel_l2_error", "warnings"])


def memory(results: pl.DataFrame) -> pl.DataFrame:
    """One row a measured case: the parts of its memory."""
    return _ok(results).select([*LINE, "replicate", *_MEMORY])


def problems(results: pl.DataFrame) -> pl.DataFrame:
    """The cases without figures, one row a reason, with how many share it."""
    bad = results.filter(pl.col("status") != "ok")
    keys = ["status", "model", "variant", "pass", "precision", "reason"]
    return bad.group_by(keys, maintain_order=True).agg(pl.col("batch_size").unique().sort())


def summary(results: pl.DataFrame, samples: pl.DataFrame) -> pl.DataFrame:
    """One row a line of the printed tables: medians over replicates, the speed-up over the base and its interval."""
    measures = [
        *[c for c in _LATENCY if c.endswith("_ms")],
        "throughput",
        "peak_memory_mib",
        "rel_l2_error",
        "top1_agreement",
    ]
    lines = _ok(results).group_by(LINE, maintain_order=True).agg(
        pl.col(measures).median(), pl.col("clock").first(), pl.col("case_id"), pl.len().alias("replicates")
    )  # fmt: skip
    found = speedups(lines, samples)
    return lines.with_columns(
        pl.Series("speedup", [s.ratio if s else None for s in found], pl.Float64),
        pl.Series("speedup_low", [s.interval.low if s and s.interval else None for s in found], pl.Float64),
        pl.Series("speedup_high", [s.interval.high if s and s.interval else None for s in found], pl.Float64),
        pl.Series("base", [" ".join(reversed(s.base)) if s else None for s in found], pl.String),
    ).drop("case_id")


def speedups(lines: pl.DataFrame, samples: pl.DataFrame) -> list[Speedup | None]:
    """The speed-up of each of `lines` over its group's base; None where the group has none."""
    rows = lines.to_dicts()
    bases = {}
    for row in rows:
        for base in BASES:
            if (row["variant"], row["precision"]) == base:
                bases[tuple(row[k] for k in GROUP)] = row
    found: list[Speedup | None] = []
    for row in rows:
        base_row = bases.get(tuple(row[k] for k in GROUP))
        if base_row is None:
            found.append(None)
            continue
        interval = (
            None if row is base_row else ratio_interval(_samples_of(base_row, samples), _samples_of(row, samples))
        )
        ratio = base_row["latency_ms"] / row["latency_ms"]
        found.append(Speedup(ratio, interval, (base_row["variant"], base_row["precision"])))
    return found


def groups(lines: pl.DataFrame) -> Iterator[tuple[dict[str, Any], list[dict[str, Any]]]]:
    """Each group's key and its lines, fastest first."""
    for key, group in lines.group_by(GROUP, maintain_order=True):
        yield dict(zip(GROUP, key, strict=True)), group.sort("latency_ms").to_dicts()


def sentence(key: dict[str, Any], lines: list[dict[str, Any]]) -> str | None:
    """What a group says, like "resnet50, batch 16: ort-tuned fp16 is 5.8× fp32 eager (5.7–5.9), error 4e-4"."""
    best = lines[0]
    if best["speedup"] is None or len(lines) < 2:
        return None
    what = f"{key['model']}{' training' if key['pass'] == 'training' else ''}, batch {key['batch_size']}"
    name = f"{best['variant']} {best['precision']}"
    base = best["base"]
    if name == " ".join(reversed(base.split())):
        return f"{what}: nothing was faster than {base}"
    low, high = best["speedup_low"], best["speedup_high"]
    places = _places(best["speedup"])
    interval = f" ({low:.{places}f}–{high:.{places}f})" if low is not None else ""
    error = f", error {_short(best['rel_l2_error'])}" if best["rel_l2_error"] is not None else ""
    faster = f"{name} is {best['speedup']:.{places}f}× {base}{interval}{error}"
    if low is not None and low <= 1:
        return f"{what}: no clear winner; {faster}"
    return f"{what}: {faster}"


def write_tables(folder: Path, results: pl.DataFrame, samples: pl.DataFrame) -> None:
    """Each table as CSV (all digits) and as Markdown."""
    folder.mkdir(exist_ok=True)
    tables = {
        "latency": latency(results),
        "memory": memory(results),
        "speedup": summary(results, samples),
        "not-measured": problems(results),
    }
    for name, frame in tables.items():
        flat = frame.with_columns(
            pl.col(column).cast(pl.List(pl.String)).list.join("; ")
            for column, dtype in frame.schema.items()
            if dtype == pl.List
        )
        flat.write_csv(folder / f"{name}.csv")
        (folder / f"{name}.md").write_text(_markdown(flat))


def _ok(results: pl.DataFrame) -> pl.DataFrame:
    return results.filter(pl.col("status") == "ok")


def _samples_of(row: dict[str, Any], samples: pl.DataFrame) -> list[pl.Series]:
    """One series a replicate."""
    own = samples.filter(pl.col("clock") == row["clock"])
    return [own.filter(pl.col("case_id") == case_id)["ms"] for case_id in row["case_id"]]


def _places(number: float) -> int:
    return 2 if number < 2 else 1 if number < 20 else 0


def _short(number: float) -> str:
    """One significant digit: 4e-4, 0."""
    return f"{number:.0e}".replace("e-0", "e-") if number else "0"


def _markdown(frame: pl.DataFrame) -> str:
    """A GitHub table: figures with six significant digits, text whole and on one line."""

    def cell(value: Any) -> str:
        if isinstance(value, float):
            return f"{value:.6g}"
        return "" if value is None else " ".join(str(value).split()).replace("|", r"\|")

    rows = [frame.columns, ["---"] * frame.width, *([cell(v) for v in row] for row in frame.iter_rows())]
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)
