"""Compute from batch sweeps how efficient each batch size is, where the curve bends, and what fits.

All functions take a run's results, of which the rows of sweeps and of probes for the largest batch count.

A family is one model in one engine variant, pass and precision on one machine, over its batch sizes; replicates are
one point. The curve is the time per item against log2 of the batch. The words concave-up and concave-down are those of
the published study of minibatch efficiency (references/, gpu-study) for its plots: with rising batches a falling curve
that is concave-up flattens, and one that is concave-down falls ever faster.

Of a family of which the host limits some batch, knees, curvature and excess are of the device's own time (`gpu_ms`):
else the knee would be the host's. A batch that the host limits and whose `gpu_ms` is unknown is left out of them.
"""

from __future__ import annotations

import polars as pl

from profiler.job.case import Role
from profiler.results.replicates import OK, disturbed, merge, why_not
from profiler.results.warning_kinds import HOST_BOUND
from profiler.stats.ratios import JUDGED_ON, margin

FAMILY = ["run_id", "machine", "model", "variant", "pass", "precision", "settings"]
"""`settings` is what else distinguishes a family, such as "optimizer=sgd"; empty for none."""
KNEE_SHARE = 0.9
UP, DOWN = "concave-up", "concave-down"
_TIMES = ("gpu_ms", "latency_ms", "latency_ci_low_ms", "latency_ci_high_ms")


def efficiency(results: pl.DataFrame) -> pl.DataFrame:
    """One row a batch of a family that has several, in rising order.

    `latency_ms` and its ends (the widest of the replicates', or null), the `fastest_ms` and `slowest_ms` replicate,
    `ms_per_item`, `throughput` in items/s, and `efficiency`, the share of the family's best throughput; null with a
    `note` for a batch that was not measured. `warnings` has kinds; `disturbed` those with which no factor counts.
    `host_bound` says that the host is the limit, or nearly, and `judged_ms` is the time on which knees and the like
    rest; `on_device` that it is the device's own.
    """
    gpu_ms, ms, low, high = (pl.col(name).filter(OK) for name in _TIMES)
    swept = results.filter(pl.col("role") == Role.SWEEP).with_columns(settings="setting")
    spans = {
        "latency_low_ms": pl.when(~low.is_null().any()).then(low.min()),
        "latency_high_ms": pl.when(~high.is_null().any()).then(high.max()),
        "fastest_ms": ms.min(),
        "slowest_ms": ms.max(),
        "gpu_spread_ms": (gpu_ms.max() - gpu_ms.min()) / 2,
    }
    merged = ["latency_ms", "gpu_ms", "throughput", "clock", "status", "reason", "warnings"]
    points = merge(swept, [*FAMILY, "batch_size"], merged, **spans)
    kinds, rate = pl.col("warnings"), pl.col("throughput")
    held_up = OK & kinds.list.contains(HOST_BOUND)
    points = points.with_columns(note=why_not(), disturbed=disturbed(kinds), host_bound=held_up)
    several = pl.len().over(FAMILY) > 1, pl.col("latency_ms").is_not_null().any().over(FAMILY)
    points = points.with_columns(**_judged()).filter(*several).with_row_index("place")
    points = points.with_columns(
        ms_per_item=pl.col("latency_ms") / pl.col("batch_size"),
        efficiency=rate / rate.max().over(FAMILY),
        place=pl.col("place").min().over(FAMILY),
    )
    ends = ["latency_low_ms", "latency_high_ms", "fastest_ms", "slowest_ms"]
    order = [*FAMILY, "batch_size", "latency_ms", "throughput", *ends, "clock", "note", "disturbed"]
    judged = ["gpu_ms", "gpu_spread_ms", "host_bound", "on_device", "judged_ms"]
    return points.sort("place", "batch_size").select(*order, "ms_per_item", "efficiency", *judged, "warnings")


def _judged() -> dict[str, pl.Expr]:
    """Of each point the time on which knees and the like rest, and whether it is the device's own."""
    held_up = pl.col("host_bound").any().over(FAMILY)
    # The device cannot take longer than the call.
    device = pl.when(pl.col("gpu_ms").is_not_null()).then(pl.min_horizontal("gpu_ms", "latency_ms"))
    of_device = pl.coalesce(device, pl.when(~pl.col("host_bound")).then("latency_ms"))
    return {
        "on_device": held_up & pl.col("gpu_ms").is_not_null(),
        "judged_ms": pl.when(held_up).then(of_device).otherwise("latency_ms"),
    }


def knees(results: pl.DataFrame) -> pl.DataFrame:
    """One row a family: `knee`, the smallest batch whose throughput reaches 90 % of the sweep's best, and that best.

    `largest_batch` is where the sweep ends.

    The definition is this project's own, chosen to be read off a table; https://doi.org/10.1109/ICDCSW.2011.20
    (Kneedle) defines a knee by the distance from a chord, which moves with the ends of the sweep. `open_ended` tells
    that the largest batch measured is the best: larger ones may be better still. Of a family that the host held up the
    throughput is what the device's own time allows.
    """
    points = efficiency(results).drop_nulls(["efficiency", "judged_ms"]).filter(pl.len().over(FAMILY) > 1)
    held_up = pl.col("on_device").any().over(FAMILY)
    rate = pl.when(held_up).then(1000 * pl.col("batch_size") / pl.col("judged_ms")).otherwise("throughput")
    points = points.with_columns(rate=rate)
    best, reaches = pl.col("rate").arg_max(), pl.col("rate") >= KNEE_SHARE * pl.col("rate").max()
    return points.group_by(FAMILY, maintain_order=True).agg(
        knee=pl.col("batch_size").filter(reaches).first(),
        knee_throughput=pl.col("rate").filter(reaches).first(),
        best_batch=pl.col("batch_size").get(best),
        best_throughput=pl.col("rate").max(),
        largest_batch=pl.col("batch_size").max(),
        open_ended=pl.col("batch_size").get(best) == pl.col("batch_size").max(),
    )


def curvature(results: pl.DataFrame) -> pl.DataFrame:
    """One row a batch between two others of its family: the second difference of the curve there.

    `curvature` is in milliseconds per item and squared doubling of the batch, `noise` the half-width of its 95 %
    interval, from those of the three times (1 % on a GPU, 3 % on a CPU where one has none, as the device's). `shape` is
    "concave-up", "concave-down", or null where it is within the noise; `changes` says that the shape before was the
    other one.
    """
    doublings = pl.col("batch_size").log(2)
    before, after = doublings - _neighbour(doublings, 1), _neighbour(doublings, -1) - doublings
    # The second divided difference, since batches need not be doublings; its weights for the three points.
    mean = (before + after) / 2
    weights = {1: 1 / before / mean, 0: -(1 / before + 1 / after) / mean, -1: 1 / after / mean}
    width = (pl.col("high_ms") - pl.col("low_ms")) / 2 / pl.col("batch_size")
    per_item = pl.col("judged_ms") / pl.col("batch_size")
    bend = [weight * _neighbour(per_item, place) for place, weight in weights.items()]
    squares = [(weight * _neighbour(width, place)) ** 2 for place, weight in weights.items()]
    bends = _measured(results).with_columns(
        curvature=pl.sum_horizontal(bend, ignore_nulls=False),
        noise=pl.sum_horizontal(squares, ignore_nulls=False).sqrt(),
    )
    above, below = pl.col("curvature") > pl.col("noise"), pl.col("curvature") < -pl.col("noise")
    shape = pl.when(above).then(pl.lit(UP)).when(below).then(pl.lit(DOWN))
    last = pl.col("shape").forward_fill().shift().over(FAMILY)
    bends = bends.with_columns(shape=shape).with_columns(changes=(pl.col("shape") != last).fill_null(value=False))
    return bends.drop_nulls("curvature").select(*FAMILY, "batch_size", "curvature", "noise", "shape", "changes")


def more_than_twice(results: pl.DataFrame) -> pl.DataFrame:
    """One row a batch that takes more than twice the time of `half` of it, beyond both intervals: `excess_ms` more."""
    points = _measured(results).with_columns(ms="judged_ms")
    half = points.select(*FAMILY, half="batch_size", half_ms="ms", half_high_ms="high_ms")
    half = half.with_columns(batch_size=2 * pl.col("half"))
    both = points.join(half, on=[*FAMILY, "batch_size"], nulls_equal=True, maintain_order="left")
    slower = both.filter(pl.col("low_ms") > 2 * pl.col("half_high_ms"))
    excess = pl.col("ms") - 2 * pl.col("half_ms")
    return slower.select(*FAMILY, "half", "batch_size", "half_ms", "ms", excess_ms=excess)


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


def _measured(results: pl.DataFrame) -> pl.DataFrame:
    """Each family's measured points, smaller batches first.

    `low_ms` and `high_ms` are the interval of `judged_ms`, or margin, and no less than its replicates' spread.
    """
    ms, on_device = pl.col("judged_ms"), pl.col("on_device")
    # Without an interval a time is as uncertain as what verdicts take for no difference; the device's own has none.
    share = pl.col("clock").replace_strict({clock: margin(clock) for clock in JUDGED_ON}, default=margin(None))
    ends = [pl.when(~on_device).then(f"latency_{end}_ms") for end in ("low", "high")]
    low, high = pl.coalesce(ends[0], ms - share * ms), pl.coalesce(ends[1], ms + share * ms)
    apart = pl.max_horizontal(pl.col("slowest_ms") - ms, ms - pl.col("fastest_ms"))
    spread = pl.when(on_device).then("gpu_spread_ms").otherwise(apart)
    points = efficiency(results).drop_nulls("judged_ms")
    return points.with_columns(low_ms=pl.min_horizontal(low, ms - spread), high_ms=pl.max_horizontal(high, ms + spread))


def _neighbour(value: pl.Expr, places: int) -> pl.Expr:
    """The value so many points before in the family, or after."""
    return value.shift(places).over(FAMILY)
