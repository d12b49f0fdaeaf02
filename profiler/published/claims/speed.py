"""Check who is how many times faster: GPUs, releases of cuDNN, and cuDNN against none."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import polars as pl

from profiler.published import setups
from profiler.published.claims.evidence import Answer, Claim, Evidence, Outcome
from profiler.published.conclusions import (
    EQUAL,
    Comparison,
    compare,
    compare_libraries,
    compare_machines,
    span,
    with_releases,
)
from profiler.tables.numbers import counted, listed

ROUNDING = 0.05
"""A printed end of a range and the computed one agree if they are closer than this, or than 1 %."""
_NONE = "Torch without cuDNN"
_WITHOUT = "without cuDNN"


def checked(claim: Claim, evidence: Evidence) -> Answer:
    to = _name(claim["to"])
    pair = _pair(claim, evidence)
    low, high = (pair.low, pair.high) if pair.faster == to else (1 / pair.high, 1 / pair.low)
    noun = counted(len(pair.networks), "network")
    return Answer(verdict(claim, low, high, pair.faster == to), f"The published rows say {span(low, high)}, on {noun}.")


def verdict(claim: Claim, low: float, high: float, mostly: bool) -> Outcome:
    """Of a printed range, or of none, what the computed one says; `mostly` whether the mean has the same direction."""
    if claim["relation"] == "equal":
        off = max(1 - low, high - 1)
        return Outcome.HOLDS if off < EQUAL else Outcome.IN_PART if off < 2 * EQUAL else Outcome.FAILS
    if claim["low"] is not None and low > 1:
        ends = ((claim["low"], low), (claim["high"], high))
        near = all(abs(said - found) < max(ROUNDING, said / 100) for said, found in ends)
        return Outcome.HOLDS if near else Outcome.IN_PART
    return Outcome.HOLDS if low > 1 else Outcome.IN_PART if mostly else Outcome.FAILS


def order_checked(claim: Claim, evidence: Evidence) -> Answer:
    found = compare_machines(evidence.published, evidence.row.by_release)
    pairs = {frozenset((pair.faster, pair.slower)): pair for pair in found}
    chain = [(one, other, pairs[frozenset((one, other))]) for one, other in pairwise(claim["gpu"])]
    kept = [pair.faster == one and pair.low > 1 for one, _, pair in chain]
    if all(kept):
        return Answer(Outcome.HOLDS, "In the published rows each is faster than the next on every network.")
    turned = [pair.faster != one for one, _, pair in chain]
    wrong = listed(f"{one} and {other}" for (one, other, _), right in zip(chain, kept, strict=True) if not right)
    says = f"In the published rows each is faster than the next on every network, but not {wrong}."
    return Answer(Outcome.FAILS if any(turned) else Outcome.IN_PART, says)


def without_cudnn(evidence: Evidence) -> list[str]:
    """Own machines' variant that stands for the published library against the same without cuDNN."""
    found: list[Comparison] = []
    for subject, rows in evidence.times.items():
        none = pl.col("ending").str.contains("no cuDNN", literal=True)
        ending = pl.col("ending").str.replace(", cuDNN", " with cuDNN", literal=True)
        graph = pl.col("implementation").str.contains("graph", literal=True)
        bare = pl.when(graph).then(pl.lit(f"{_WITHOUT} (in a CUDA graph)")).otherwise(pl.lit(_WITHOUT))
        called = pl.when(none).then(bare).otherwise(pl.format("{}{}", "software", ending))
        mine = rows.filter("ours", pl.col("counterpart") | none).with_columns(called=called, none=none)
        mine = mine.sort("none", maintain_order=True)  # A sentence without a factor names them in this order.
        for (machine,), both in mine.group_by("machine", maintain_order=True):
            if both["none"].n_unique() > 1:
                sides = (
                    (pair, {name.startswith(_WITHOUT) for name in (pair.faster, pair.slower)})
                    for pair in compare(both, "called")
                )
                pairs = [pair for pair, bare in sides if len(bare) > 1]
                found += [replace(p, subject=subject, machine=str(machine), article=False) for p in pairs]
    return [pair.sentence() for pair in found]


def _name(what: str) -> str:
    if what == "nn":
        return _NONE
    return what.removeprefix("CPU: ").replace("cudnn", "cuDNN")


def _pair(claim: Claim, evidence: Evidence) -> Comparison:
    rows = evidence.published
    if claim["from"].startswith("cudnn"):
        pairs = compare_libraries(with_releases(evidence.study, rows))
    elif claim["from"] == "nn":
        none = pl.col("library") == "None"
        named = rows.filter(machine=claim["gpu"][0]).with_columns(
            called=pl.when(none).then(pl.lit(_NONE)).otherwise(pl.lit("cuDNN"))
        )
        pairs = compare(setups.one_each(named, by_release=True, name="called"), "called")
    else:
        pairs = compare_machines(rows, evidence.row.by_release)
    names = {_name(claim["from"]), _name(claim["to"])}
    (pair,) = (pair for pair in pairs if {pair.faster, pair.slower} == names)
    return pair
