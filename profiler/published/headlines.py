"""Pick the few conclusions that tell most: own machines against published ones, cost, libraries, networks, memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import zip_longest
from typing import Any

import polars as pl

from profiler.published import conclusions, references
from profiler.published.claims import libraries, networks, speed, sweeps
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
    """What a million images cost by the cheapest setup of those that ran the most networks, where a price was given."""
    keys = ["pass", "setup", "usd_per_hour"]
    # What the host holds up costs so much, too.
    priced = evidence.own.drop_nulls("usd_per_million_items").filter(pl.col("disturbed").is_null())
    figure, name = pl.col("usd_per_million_items"), pl.col("published_network")
    ranked = priced.group_by(keys, maintain_order=True).agg(
        count=pl.col("model").n_unique(),
        mean=geometric_mean(figure),
        low=figure.min(),
        high=figure.max(),
        cheapest=name.sort_by(figure).first(),
        dearest=name.sort_by(figure).last(),
    )
    best = ranked.sort("count", "mean", descending=[True, False]).unique("pass", keep="first", maintain_order=True)
    return [
        f"A million images, {PASSES[row['pass']]}, cost {_prices(row)} on the {row['setup']}, the cheapest with "
        f"undisturbed times of {counted(row['count'], 'network')}, at {compact(row['usd_per_hour'])} USD an hour."
        for row in best.to_dicts()
    ]


def _prices(row: Mapping[str, Any]) -> str:
    """The least and the greatest, each with its network; one where both are of the same."""
    ends = ((row["low"], row["cheapest"]), (row["high"], row["dearest"]))
    return " to ".join(dict.fromkeys(f"**{compact(usd, 3)} USD** ({network})" for usd, network in ends))


def without_cudnn(evidence: Evidence) -> list[str]:
    """What cuDNN is worth."""
    return [pair.sentence() for pair in speed.without_cudnn(evidence)]


def outdone(evidence: Evidence) -> list[str]:
    """Which networks are both faster and more accurate than another."""
    return [one.sentence() for one in networks.most_outdone(evidence)]


def _of_kind(kind: str) -> Callable[[Evidence], list[str]]:
    """What own rows answer to the study's statements of a kind; nothing where it makes none."""

    def answers(evidence: Evidence) -> list[str]:
        claims = [claim for claim in references.claims(evidence.study) if claim["kind"] == kind]
        return KINDS[kind].own(claims, evidence) if claims else []

    return answers


HEADLINES: Sequence[Callable[[Evidence], list[str]]] = (
    machines,
    fastest,
    own_machines,
    cost,
    without_cudnn,
    _of_kind("best_per_layer"),
    _of_kind("memory_use"),
    outdone,
    _of_kind("framework"),
    _of_kind("time_per_sample"),
    sweeps.knees,
    _of_kind("ms_above_twice"),
    _of_kind("curvature"),
    sweeps.largest,
    _of_kind("fit"),
    libraries.fastest,
)
"""In the order in which they are told; what a study did not ask gives none."""
