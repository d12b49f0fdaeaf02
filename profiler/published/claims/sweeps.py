"""Answer by own rows what is said of the minibatch: less time per sample, more than twice the time, and the bends."""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from profiler.published.claims.evidence import Claim, Evidence
from profiler.published.conclusions import the
from profiler.published.studies import PASSES
from profiler.results import batch_sweeps
from profiler.results.batch_sweeps import DOWN, FAMILY, UP
from profiler.tables.numbers import decimals, listed

_ON_DEVICE = ", on the device's own time"
"""Said where the host holds some minibatches up."""
_MEANING = {UP: "falls more slowly than before it", DOWN: "falls faster than before it"}
_BY = ["machine", "pass", "variant", "precision"]


def _groups(rows: pl.DataFrame, evidence: Evidence) -> Iterator[tuple[str, pl.DataFrame]]:
    """Those of one machine, pass and variant, with what to call it; training first."""
    held_up = batch_sweeps.efficiency(evidence.results).filter("on_device").select(_BY).unique().rows()
    ordered = rows.sort("pass", descending=True, maintain_order=True)
    for key, group in ordered.group_by(_BY, maintain_order=True):
        machine, pass_, *_ = key
        yield f"On {the(machine)}, {PASSES[str(pass_)]}{_ON_DEVICE if key in held_up else ''}", group


def per_sample_own(evidence: Evidence) -> list[str]:
    """For each machine, pass and variant: at how many steps to a larger minibatch the time per sample fell."""
    points = batch_sweeps.efficiency(evidence.results).drop_nulls("latency_ms")
    calm = pl.col("disturbed").is_null()
    each = pl.when(calm).then(pl.col("judged_ms") / pl.col("batch_size"))
    steps = points.with_columns(less=each < each.shift().over(FAMILY), step=pl.int_range(pl.len()).over(FAMILY) > 0)
    found = []
    for where, every in _groups(steps.filter("step"), evidence):
        group = every.drop_nulls("less")
        if group.is_empty():
            continue
        rose, left = group.filter(~pl.col("less")), len(every) - len(group)
        sizes = rose.group_by("model", maintain_order=True).agg("batch_size").iter_rows()
        not_at = [f"{evidence.name(model)} at {listed(of)}" for model, of in sizes]
        but = f"; not for {listed(not_at)}" if not_at else ""
        but += f"; {left} more {'does' if left == 1 else 'do'} not count: disturbed, or set by the host" if left else ""
        found.append(
            f"{where}, a larger minibatch took less time per sample in "
            f"{len(group) - len(rose)} of {len(group)} steps from one minibatch to the next{but}."
        )
    return found


def excess_own(evidence: Evidence) -> list[str]:
    points = batch_sweeps.efficiency(evidence.results).drop_nulls("judged_ms").filter(pl.col("disturbed").is_null())
    found = []
    for claim in evidence.claims("ms_above_twice"):
        half, whole = (int(claim[side].removeprefix("batch ")) for side in ("from", "to"))
        mine = points.filter(pl.col("model") == claim["networks"][0], pl.col("pass") == "training")
        for _, group in mine.group_by(FAMILY, maintain_order=True):
            ms = dict(group.select("batch_size", "judged_ms").iter_rows())
            if {half, whole} <= set(ms):
                excess, row = ms[whole] - 2 * ms[half], group.row(0, named=True)
                found.append(
                    f"On {the(row['machine'])}, training {evidence.name(row['model'])}, {whole} images take "
                    f"{decimals(ms[whole], 2)} ms: {decimals(abs(excess), 2)} ms {'more' if excess > 0 else 'less'} "
                    f"than twice the {decimals(ms[half], 2)} ms of {half}."
                )
    return found


def bend_own(evidence: Evidence) -> list[str]:
    """For each machine and pass how the curves bend at that size, and where each bends most."""
    (size,) = {claim["batch_size"] for claim in evidence.claims("curvature")}
    bends = batch_sweeps.curvature(evidence.results)
    found = []
    for where, group in _groups(bends, evidence):
        there = group.filter(batch_size=size)
        shapes = {shape: there.filter(shape=shape)["model"].to_list() for shape in (DOWN, UP)}
        words = [
            f"{_MEANING[shape]} ({shape}) for {listed(map(evidence.name, of))}" for shape, of in shapes.items() if of
        ]
        if not words:
            continue
        found.append(
            f"{where}, after a minibatch of {size} the time per sample {' and '.join(words)}; it bends most at "
            f"{_most(group.join(there, on='model', how='semi', maintain_order='left'), evidence)}."
        )
    return found


def _most(bends: pl.DataFrame, evidence: Evidence) -> str:
    """Where each network bends most, like "2 (AlexNet and Overfeat) and 4 (VGG)"."""
    biggest = bends.sort(pl.col("curvature").abs(), descending=True, maintain_order=True)
    places = biggest.unique("model", keep="first").group_by("batch_size").agg("model").sort("batch_size").iter_rows()
    in_order = list(evidence.names)
    return listed(
        f"{batch} ({listed(evidence.name(model) for model in sorted(of, key=in_order.index))})" for batch, of in places
    )


def knees(evidence: Evidence) -> list[str]:
    """For each machine and pass the least and the greatest of the networks' smallest efficient minibatches."""
    found = []
    for where, group in _groups(batch_sweeps.knees(evidence.results), evidence):
        low, high = (group.sort("knee", descending=down).row(0, named=True) for down in (False, True))
        ends = dict.fromkeys(f"{row['knee']} ({evidence.name(row['model'])})" for row in (low, high))
        tried = max(group["largest_batch"].to_list())
        found.append(
            f"{where}, the smallest minibatch with 90 % of the best throughput of those up to {tried} is "
            f"{' to '.join(ends)}."
        )
    return found


def largest(evidence: Evidence) -> list[str]:
    """The largest minibatch that fits, where it was searched."""
    rows = batch_sweeps.largest(evidence.results).filter("searched").drop_nulls("largest")
    return [
        f"On {the(row['machine'])}, {PASSES[row['pass']]}, the largest minibatch of {evidence.name(row['model'])} that "
        f"fits is {_range(row)} ({row['variant']} {row['precision']})."
        for row in rows.to_dicts()
    ]


def _range(row: Claim) -> str:
    """Between which minibatches the largest is: one that ran, and the one before the first that did not."""
    if row["refused_status"] != "oom":
        return f"**{row['largest']:,}** or more"
    below = row["refused"] - 1
    return f"**{row['largest']:,}**" if below == row["largest"] else f"between **{row['largest']:,}** and **{below:,}**"
