"""Compute how efficient each batch size is, where the curve over batch sizes bends, and what fits.

A family is one model in one engine variant, pass and precision on one machine, over three batch sizes or more. The
curve is the time per item against log2 of the batch. The words concave-up and concave-down are those of the published
study of minibatch efficiency (references/, gpu-study) for its plots: with rising batches a falling curve that is
concave-up flattens, and one that is concave-down falls ever faster.

Of a family of which the host limits some batch, knees and curvature are of the device's own time (`gpu_ms`):
else the knee would be the host's. A batch that the host limits and whose `gpu_ms` is unknown is left out of them.
"""

from __future__ import annotations

import polars as pl

from profiler.results.cells import OK, cells
from profiler.results.problems import why_not
from profiler.results.warning_kinds import HOST_BOUND

FAMILY = ["run_id", "machine", "model", "variant", "pass", "precision", "setting"]
LEAST_BATCHES = 3
KNEE_SHARE = 0.9
UP, DOWN = "concave-up", "concave-down"


def alone(results: pl.DataFrame) -> pl.DataFrame:
    """Keep the rows of models in a single configuration over several batches, which only compare among themselves."""
    work = ["model", "pass", "setting"]
    configurations = pl.struct("variant", "precision").n_unique().over(work)
    several = pl.col("batch_size").n_unique().over(work) >= LEAST_BATCHES
    return results.filter(pl.col("model_kind").ne_missing("layer")).filter(configurations == 1, several)


def efficiency(results: pl.DataFrame) -> pl.DataFrame:
    """Give one row a batch of a family, in rising order.

    Latency, device time and throughput are a cell's, `ms_per_item` is the latency of an item, and `efficiency` the
    share of the family's best throughput; null with a `note` for a batch that was not measured. `host_bound` says that
    the host is the limit, `on_device` that `judged_ms`, the time on which knees and the like rest, is the device's own;
    `low_ms` and `high_ms` are its interval.
    """
    found = cells(results.filter(pl.col("model_kind").ne_missing("layer")), ("run_id", "machine"))
    rate = pl.col("throughput")
    held_up = OK & pl.col("footnotes").list.contains(HOST_BOUND)
    points = found.with_columns(note=why_not(), host_bound=held_up)
    several = pl.len().over(FAMILY) >= LEAST_BATCHES, pl.col("latency_ms").is_not_null().any().over(FAMILY)
    points = points.with_columns(**_judged()).filter(*several).with_row_index("place")
    points = points.with_columns(
        ms_per_item=pl.col("latency_ms") / pl.col("batch_size"),
        efficiency=rate / rate.max().over(FAMILY),
        place=pl.col("place").min().over(FAMILY),
    )
    figures = ["latency_ms", "latency_low_ms", "latency_high_ms", "throughput", "peak_memory_mib", "gpu_ms"]
    judged = ["host_bound", "on_device", "judged_ms", "low_ms", "high_ms"]
    order = [*FAMILY, "batch_size", *figures, "clock", "note", "ms_per_item", "efficiency", *judged, "footnotes"]
    return points.sort("place", "batch_size").select(order)


def _judged() -> dict[str, pl.Expr]:
    """The time of each point on which knees and the like rest, with its interval, and whether it is the device's."""
    held_up = pl.col("host_bound").any().over(FAMILY)
    on_device = held_up & pl.col("gpu_ms").is_not_null()
    own = pl.when(~pl.col("host_bound"))

    def judged(of_device: str, of_call: str) -> pl.Expr:
        # The device cannot take longer than the call.
        return pl.when(on_device).then(pl.min_horizontal(of_device, of_call)).otherwise(own.then(of_call))

    return {
        "on_device": on_device,
        "judged_ms": judged("gpu_ms", "latency_ms"),
        "low_ms": judged("gpu_low_ms", "latency_low_ms"),
        "high_ms": judged("gpu_high_ms", "latency_high_ms"),
    }


def knees(results: pl.DataFrame) -> pl.DataFrame:
    """Give one row a family: `knee`, the smallest batch whose throughput reaches 90 % of the best, and that best.

    `largest_batch` is where the batches end.

    The definition is this project's own, chosen to be read off a table; https://doi.org/10.1109/ICDCSW.2011.20
    (Kneedle) defines a knee by the distance from a chord, which moves with the ends of the curve. `open_ended` tells
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
    """Give one row a batch between two others of its family: the second difference of the curve there.

    `curvature` is in milliseconds per item and squared doubling of the batch, `noise` the half-width of its 95 %
    interval, from those of the three times. `shape` is "concave-up", "concave-down", or null where it is within the
    noise; `changes` says that the shape before was the other one.
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
    bends = (
        efficiency(results)
        .drop_nulls("judged_ms")
        .with_columns(
            curvature=pl.sum_horizontal(bend, ignore_nulls=False),
            noise=pl.sum_horizontal(squares, ignore_nulls=False).sqrt(),
        )
    )
    above, below = pl.col("curvature") > pl.col("noise"), pl.col("curvature") < -pl.col("noise")
    shape = pl.when(above).then(pl.lit(UP)).when(below).then(pl.lit(DOWN))
    last = pl.col("shape").forward_fill().shift().over(FAMILY)
    bends = bends.with_columns(shape=shape).with_columns(changes=(pl.col("shape") != last).fill_null(value=False))
    return bends.drop_nulls("curvature").select(*FAMILY, "batch_size", "curvature", "noise", "shape", "changes")


def _neighbour(value: pl.Expr, places: int) -> pl.Expr:
    """The value so many points before in the family, or after."""
    return value.shift(places).over(FAMILY)
