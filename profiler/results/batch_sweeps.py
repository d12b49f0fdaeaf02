"""Tell from batch sweeps how efficient each batch size is, where the curve bends, and what fits.

All functions take a run's results, of which the rows of sweeps and of probes for the largest batch count.

A family is one model in one engine variant, pass and precision on one machine, over its batch sizes; replicates are
one point. The curve is the time per item against log2 of the batch. The words concave-up and concave-down are those of
the published study of minibatch efficiency (references/, gpu-study) for its plots: with rising batches a falling curve
that is concave-up flattens, and one that is concave-down falls ever faster.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

import polars as pl

from profiler.job.case import Role, setting_words
from profiler.results.replicates import OK, OUT_OF_MEMORY, merge, why_not
from profiler.stats.ratios import margin

FAMILY = ["run_id", "machine", "model", "variant", "pass", "precision", "settings"]
"""`settings` is what else distinguishes a family, such as "optimizer=sgd"; empty for none."""
KNEE_SHARE = 0.9
_UP, _DOWN = "concave-up", "concave-down"

Row = dict[str, Any]
_TEXTS: dict[str, pl.DataType] = {column: pl.String() for column in FAMILY}


def efficiency(results: pl.DataFrame) -> pl.DataFrame:
    """One row a batch of a family that has several, in rising order.

    `latency_ms` and its ends (the widest of the replicates', or null), the `fastest_ms` and `slowest_ms` replicate,
    `ms_per_item`, `throughput` in items/s, and
    `efficiency`, the share of the family's best throughput; null with a `note` for a batch that was not measured.
    """
    ms, low, high = (pl.col(name).filter(OK) for name in ("latency_ms", "latency_ci_low_ms", "latency_ci_high_ms"))
    swept = results.filter(pl.col("role") == Role.SWEEP).with_columns(settings="setting")
    points = (
        merge(
            swept,
            [*FAMILY, "batch_size"],
            ["latency_ms", "throughput", "clock", "status", "reason"],
            latency_low_ms=pl.when(~low.is_null().any()).then(low.min()),
            latency_high_ms=pl.when(~high.is_null().any()).then(high.max()),
            fastest_ms=ms.min(),
            slowest_ms=ms.max(),
        )
        .with_columns(note=why_not())
        .filter(pl.len().over(FAMILY) > 1, pl.col("latency_ms").is_not_null().any().over(FAMILY))
        .with_row_index("place")
        .with_columns(
            ms_per_item=pl.col("latency_ms") / pl.col("batch_size"),
            efficiency=pl.col("throughput") / pl.col("throughput").max().over(FAMILY),
            place=pl.col("place").min().over(FAMILY),
        )
    )
    ends = ["latency_low_ms", "latency_high_ms", "fastest_ms", "slowest_ms"]
    order = [*FAMILY, "batch_size", "latency_ms", "throughput", *ends, "clock", "note", "ms_per_item", "efficiency"]
    return points.sort("place", "batch_size").select(order)


def knees(results: pl.DataFrame) -> pl.DataFrame:
    """One row a family: `knee`, the smallest batch whose throughput reaches 90 % of the sweep's best, and that best.

    The definition is this project's own, chosen to be read off a table; https://doi.org/10.1109/ICDCSW.2011.20
    (Kneedle) defines a knee by the distance from a chord, which moves with the ends of the sweep. `open_ended` tells
    that the largest batch measured is the best: larger ones may be better still.
    """
    points = efficiency(results).drop_nulls("efficiency").filter(pl.len().over(FAMILY) > 1)
    best = pl.col("efficiency").arg_max()
    return points.group_by(FAMILY, maintain_order=True).agg(
        knee=pl.col("batch_size").filter(pl.col("efficiency") >= KNEE_SHARE).first(),
        knee_throughput=pl.col("throughput").filter(pl.col("efficiency") >= KNEE_SHARE).first(),
        best_batch=pl.col("batch_size").get(best),
        best_throughput=pl.col("throughput").max(),
        open_ended=pl.col("batch_size").get(best) == pl.col("batch_size").max(),
    )


def curvature(results: pl.DataFrame) -> pl.DataFrame:
    """One row a batch between two others of its family: the second difference of the curve there.

    `curvature` is in milliseconds per item and squared doubling of the batch, `noise` the half-width of its 95 %
    interval, from those of the three latencies (1 % on a GPU, 3 % on a CPU where one has none). `shape` is
    "concave-up", "concave-down", or null where it is within the noise; `changes` tells that the shape before was the
    other one.
    """
    rows = [row for _, points in _families(results) for row in _bends(points)]
    schema = {**_TEXTS, "batch_size": pl.Int64(), "curvature": pl.Float64(), "noise": pl.Float64()}
    return pl.DataFrame(rows, schema={**schema, "shape": pl.String(), "changes": pl.Boolean()})


def more_than_twice(results: pl.DataFrame) -> pl.DataFrame:
    """One row a batch that takes more than twice the time of `half` of it, beyond both intervals: `excess_ms` more."""
    rows = []
    for family, points in _families(results):
        by_batch = {point["batch_size"]: point for point in points}
        for batch, point in by_batch.items():
            half = by_batch.get(batch / 2)
            if half is not None and _ends(point)[0] > 2 * _ends(half)[1]:
                excess = point["latency_ms"] - 2 * half["latency_ms"]
                times = {"half_ms": half["latency_ms"], "latency_ms": point["latency_ms"], "excess_ms": excess}
                rows.append({**family, "half": batch // 2, "batch_size": batch, **times})
    counts = dict.fromkeys(("half", "batch_size"), pl.Int64())
    measures = dict.fromkeys(("half_ms", "latency_ms", "excess_ms"), pl.Float64())
    return pl.DataFrame(rows, schema={**_TEXTS, **counts, **measures})


def largest(results: pl.DataFrame) -> pl.DataFrame:
    """One row a family of a sweep that was searched, or of which a batch ran out of memory.

    `largest` is the largest batch that ran, null if none did; `peak_memory_mib` what it took, of the host where the
    device is the CPU; `refused` the smallest batch above it that did not run, with its `refused_status` and
    `refused_reason`, null where nothing larger was tried. Where it was `searched`, all that is the probes' word: each
    had a process of its own. Elsewhere it is the sweep's.
    """
    ok, probe = pl.col("status") == "ok", pl.col("role") == Role.PROBE
    most = pl.col("batch_size").filter(ok).max()
    refused = ~ok & (pl.col("batch_size") > most.fill_null(0))
    smallest = pl.col("batch_size").filter(refused).min()
    rows = (
        results.filter(pl.col("role") != Role.CELL)
        .with_columns(settings="setting")
        .filter((probe | (pl.col("status") == "oom")).any().over(FAMILY))
        .filter(probe | ~probe.any().over(FAMILY))
    )
    return rows.group_by(FAMILY, maintain_order=True).agg(
        largest=most,
        peak_memory_mib=pl.col("peak_memory_mib").filter(ok & (pl.col("batch_size") == most)).max(),
        refused=smallest,
        refused_status=pl.col("status").filter(refused & (pl.col("batch_size") == smallest)).first(),
        refused_reason=pl.col("reason").filter(refused & (pl.col("batch_size") == smallest)).first(),
        searched=probe.any(),
    )


def sentences(results: pl.DataFrame) -> list[str]:
    """What the frames say, a sentence a finding, family by family within each kind of finding."""
    results = results.filter(pl.col("role") != Role.CELL)
    several = results["machine"].n_unique() > 1
    again = results["run_id"].n_unique() > results["machine"].n_unique()
    found = [
        *((row, _knee(row)) for row in knees(results).to_dicts()),
        *((family, _shapes(rows)) for family, rows in _by_family(curvature(results))),
        *((row, _excess(row)) for row in more_than_twice(results).to_dicts()),
        *((row, _largest(row)) for row in largest(results).to_dicts()),
    ]
    return [f"{_name(row, several, again)}: {finding}." for row, finding in found if finding]


def _name(row: Row, with_machine: bool, with_run: bool) -> str:
    """A family in words, like "vgg16 training, eager fp32"."""
    model = f"{row['model']} training" if row["pass"] == "training" else row["model"]
    machine = [f"on {row['machine']}"] if with_machine else []
    run = [f"run {row['run_id']}"] if with_run else []
    return ", ".join([model, f"{row['variant']} {row['precision']}", *setting_words(row["settings"]), *machine, *run])


def _families(results: pl.DataFrame) -> Iterator[tuple[Row, list[Row]]]:
    """Each family's key and its measured points, smaller batches first."""
    return _by_family(efficiency(results).filter(pl.col("latency_ms").is_not_null()))


def _by_family(frame: pl.DataFrame) -> Iterator[tuple[Row, list[Row]]]:
    for key, rows in frame.group_by(FAMILY, maintain_order=True):
        yield dict(zip(FAMILY, key, strict=True)), rows.to_dicts()


def _ends(point: Row) -> tuple[float, float]:
    """A latency's interval, or margin, and no less than its replicates' spread."""
    low, high, ms = point["latency_low_ms"], point["latency_high_ms"], point["latency_ms"]
    # Without an interval a latency is as uncertain as what verdicts take for no difference.
    within = margin(point["clock"]) * ms
    ends = (ms - within, ms + within) if low is None or high is None else (low, high)
    spread = max(point["slowest_ms"] - ms, ms - point["fastest_ms"])
    return min(ends[0], ms - spread), max(ends[1], ms + spread)


def _bends(points: Sequence[Row]) -> Iterator[Row]:
    """A family's rows of `curvature`."""
    before = None
    for left, point, right in zip(points, points[1:], points[2:], strict=False):
        # The second divided difference, since batches need not be doublings; its weights for the three points.
        steps = [math.log2(b["batch_size"] / a["batch_size"]) for a, b in pairwise((left, point, right))]
        mean = sum(steps) / 2
        weights = (1 / steps[0] / mean, -(1 / steps[0] + 1 / steps[1]) / mean, 1 / steps[1] / mean)
        three = (left, point, right)
        bend = sum(w * p["ms_per_item"] for w, p in zip(weights, three, strict=True))
        widths = [(_ends(p)[1] - _ends(p)[0]) / 2 / p["batch_size"] for p in three]
        noise = math.hypot(*(w * width for w, width in zip(weights, widths, strict=True)))
        shape = None if abs(bend) <= noise else _UP if bend > 0 else _DOWN
        family = {column: point[column] for column in FAMILY}
        changes = shape is not None and before is not None and shape != before
        found = {"curvature": bend, "noise": noise, "shape": shape, "changes": changes}
        yield {**family, "batch_size": point["batch_size"], **found}
        before = shape or before


def _knee(row: Row) -> str:
    best = f"the best, {_rate(row['best_throughput'])} at batch {row['best_batch']}"
    more = ", where the sweep ends" if row["open_ended"] else ""
    if row["knee"] == row["best_batch"]:
        return f"no smaller batch reaches {100 * KNEE_SHARE:.0f} % of {best}{more}"
    share = row["knee_throughput"] / row["best_throughput"]
    return f"a batch of {row['knee']} has {100 * share:.0f} % of the throughput of {best}{more}"


def _shapes(rows: Sequence[Row]) -> str:
    """Where the curve is concave-down, which is what surprises; empty where it only flattens."""
    sizes = {shape: [row["batch_size"] for row in rows if row["shape"] == shape] for shape in (_DOWN, _UP)}
    if not sizes[_DOWN]:
        return ""
    shapes = ", ".join(f"{shape} at {_listed(found)}" for shape, found in sizes.items() if found)
    turns = [row["batch_size"] for row in rows if row["changes"]]
    return f"time per item against minibatch size is {shapes}" + (f"; it turns at {_listed(turns)}" if turns else "")


def _excess(row: Row) -> str:
    return (
        f"a batch of {row['batch_size']} takes {row['latency_ms']:,.2f} ms, {row['excess_ms']:,.2f} ms more than twice "
        f"the {row['half_ms']:,.2f} ms of {row['half']}"
    )


def _largest(row: Row) -> str:
    status, reason = row["refused_status"], row["refused_reason"] or ""
    why = reason if reason.startswith("not tried") else OUT_OF_MEMORY if status == "oom" else f"{status}: {reason}"
    if row["largest"] is None:
        tried = "probe" if row["searched"] and row["refused"] > 1 else "batch"
        return f"no {tried} fits, {row['refused']} does not ({why})"
    memory = "" if row["peak_memory_mib"] is None else f" ({row['peak_memory_mib']:,.0f} MiB)"
    text = f"the largest batch {'' if row['searched'] else 'of the sweep '}that fits is {row['largest']}{memory}"
    return text + ("; none above it was tried" if row["refused"] is None else f"; {row['refused']} does not ({why})")


def _rate(throughput: float) -> str:
    return f"{throughput:,.0f} items/s" if throughput >= 100 else f"{throughput:.3g} items/s"


def _listed(sizes: Sequence[int]) -> str:
    *rest, last = map(str, sizes)
    return f"{', '.join(rest)} and {last}" if rest else last
