"""Pick the few conclusions that tell most: own machines against published ones, cost, libraries, networks, memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import zip_longest

import polars as pl

from profiler.published import conclusions
from profiler.published.claims import speeds, sweeps
from profiler.published.claims.evidence import Evidence, sound
from profiler.published.claims.kinds import KINDS
from profiler.published.conclusions import best_published, between, compare_machines, most_telling
from profiler.published.studies import PASSES
from profiler.results.speedups import geometric_mean
from profiler.tables.numbers import compact, counted

MOST = 5


def headlines(evidence: Evidence) -> list[str]:
    """At most five sentences in Markdown: the first of each kind of conclusion that there is, then further ones."""
    found = [kind(evidence) for kind in HEADLINES]
    return list(dict.fromkeys(one for turn in zip_longest(*found) for one in turn if one))[:MOST]


def machines(evidence: Evidence) -> list[str]:
    """The own variant that stands for the published library against the fastest published setup, then others to it."""
    found = (most_telling(times, subject) for subject, times in evidence.times.items())
    return [pair.sentence() for pairs in found for pair in pairs]


def fastest(evidence: Evidence) -> list[str]:
    """The fastest own setup against the fastest published one, or against the own one that stands for it."""
    found = []
    for subject, times in evidence.times.items():
        for of in conclusions.by_device(times):
            mine = set(of.filter("ours", "counterpart")["setup"])
            first = conclusions.fastest(of.filter("ours").filter(sound()))
            if mine.isdisjoint(first):
                found += [pair.sentence() for pair in between(of, first, best_published(of) or mine, subject)]
    return found


def own_machines(evidence: Evidence) -> list[str]:
    """Own machines against each other, each with the variant that stands for the published library."""
    found = []
    for subject, times in evidence.times.items():
        for of in conclusions.by_device(times):
            pairs = compare_machines(of.filter("ours"), evidence.row.by_release)
            found += [replace(pair, subject=subject).sentence() for pair in pairs]
    return found


def cost(evidence: Evidence) -> list[str]:
    """What a million images cost as the published library computed, and in the cheapest way; only where priced.

    Of each machine and pass. Two ways are compared over the networks that both ran, and only over half of them or more.
    """
    # What the host holds up costs so much, too.
    priced = evidence.own.drop_nulls("usd_per_million_items").filter(pl.col("disturbed").is_null())
    found = []
    for (pass_, _, price), rows in priced.group_by("pass", "machine", "usd_per_hour", maintain_order=True):
        figure = pl.col("usd_per_million_items")
        setup = conclusions.fastest(
            (rows.filter("counterpart") if rows["counterpart"].any() else rows).with_columns(network="model", ms=figure)
        )
        base = rows.filter(pl.col("setup").is_in(setup)).sort(figure, maintain_order=True)
        found.append(
            f"A million images, {PASSES[str(pass_)]}, cost {_prices(base)} on {conclusions.the(base['setup'][0])}, at "
            f"{compact(price)} USD an hour{_cheapest(base, rows)}."
        )
    return found


def _prices(rows: pl.DataFrame) -> str:
    """The least and the greatest of sorted rows, each with its network; one where both are of the same."""
    ends = rows.select("usd_per_million_items", "published_network").rows()
    least, most = ends[0], next(end for end in ends if end[0] == ends[-1][0])
    return " to ".join(dict.fromkeys(f"**{compact(usd, 3)} USD** ({network})" for usd, network in (least, most)))


def _cheapest(base: pl.DataFrame, rows: pl.DataFrame) -> str:
    """Which setup costs least in comparison, like "; eager amp-fp16 costs 0.25x to 0.90x as much, …", or nothing."""
    both = rows.join(base, on="model", suffix="_base").filter(pl.col("setup") != pl.col("setup_base"))
    both = both.with_columns(ratio=pl.col("usd_per_million_items") / pl.col("usd_per_million_items_base"))
    means = both.group_by("setup").agg(mean=geometric_mean(pl.col("ratio")), count=pl.col("model").n_unique())
    cheaper = means.filter(pl.col("mean") < 1, 2 * pl.col("count") >= base["model"].n_unique()).sort("mean", "setup")
    if cheaper.is_empty():
        return ""
    best = both.filter(setup=cheaper["setup"][0]).sort("ratio")
    low, high = best["ratio"][0], best["ratio"][-1]
    return (
        f"; with {best['library'][0]}, **{conclusions.span(low, high)}** as much, on the "
        f"{counted(cheaper['count'][0], 'network')} that both ran undisturbed"
    )


def _of_kind(kind: str) -> Callable[[Evidence], list[str]]:
    """What own rows answer to the study's statements of a kind; nothing where it makes none."""
    return lambda evidence: KINDS[kind].own(evidence) if evidence.claims(kind) else []


HEADLINES: Sequence[Callable[[Evidence], list[str]]] = (
    machines,
    fastest,
    own_machines,
    cost,
    speeds.without_cudnn,
    _of_kind("best_per_layer"),
    _of_kind("memory_use"),
    speeds.most_outdone,
    _of_kind("framework"),
    _of_kind("time_per_sample"),
    sweeps.knees,
    _of_kind("ms_above_twice"),
    _of_kind("curvature"),
    sweeps.largest,
    _of_kind("fit"),
    speeds.fastest,
)
"""In the order in which they are told; what a study did not ask gives none."""
