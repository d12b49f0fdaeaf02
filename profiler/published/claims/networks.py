"""Check network against network: which is faster, which makes fewer errors, and which is both."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import polars as pl

from profiler.published import setups
from profiler.published.claims.evidence import Evidence
from profiler.published.conclusions import MODELS, Comparison, Subject, compare, span, the
from profiler.tables.numbers import counted, decimals, listed

_MACHINES = Subject("machines")


def own(evidence: Evidence) -> list[str]:
    """Which networks are both faster and more accurate than another: in the published rows, and on own machines."""
    return [one.sentence() for where in _everywhere(evidence) for one in where]


@dataclass(frozen=True)
class Outdone:
    """A network, and those that are both faster and more accurate `where` it ran, the fastest of them first."""

    network: str
    error: float
    by: Sequence[tuple[Comparison, float]]
    where: str

    def sentence(self) -> str:
        """Like "On the H200, 1 network is both faster and more accurate than VGG-16 (top-5 error 8.80 %): …"."""
        better = listed(f"{p.faster} ({span(p.low, p.high)} as fast, {percent(error)})" for p, error in self.by)
        who = f"{counted(len(self.by), 'network')} {'is' if len(self.by) == 1 else 'are'}"
        than = f"{self.network} (top-5 error {percent(self.error)})"
        return f"{self.where}, {who} both faster and more accurate than {than}: {better}."


def most_outdone(evidence: Evidence) -> list[str]:
    """On own machines, what most networks outdo first."""
    found = sorted((one for where in _everywhere(evidence)[1:] for one in where), key=lambda one: -len(one.by))
    return [one.sentence() for one in found]


def against_each_other(times: pl.DataFrame) -> list[Comparison]:
    """Every two networks, compared over the machines that ran both; `times` has one setup a machine and network."""
    name, machine = pl.col("published_network"), pl.col("machine")
    rows = times.with_columns(
        name=name, network=machine, published_network=machine, of=pl.lit(times["machine"].n_unique())
    )
    return [replace(pair, subject=_MACHINES, article=False) for pair in compare(rows, "name")]


def _everywhere(evidence: Evidence) -> list[list[Outdone]]:
    """What is outdone on the published GPUs, then on each own machine."""
    found = [_outdone(published(evidence), evidence, "On every published GPU")] if len(evidence.errors) > 1 else []
    rows = evidence.times.get(MODELS)
    if not found or rows is None:
        return found
    mine = rows.filter("ours", "counterpart")
    for (machine,), of_it in mine.group_by("machine", maintain_order=True):
        found.append(_outdone(of_it, evidence, f"On {the(machine)}"))
    return found


def _outdone(times: pl.DataFrame, evidence: Evidence, where: str) -> list[Outdone]:
    of = {evidence.name(network): error for network, error in evidence.errors.items()}
    # Within 5 % two are equal, as everywhere.
    faster = [pair for pair in against_each_other(times) if pair.relation == ">"]
    pairs = [pair for pair in faster if {pair.faster, pair.slower} <= set(of)]
    found = []
    for network, error in of.items():
        better = [(pair, of[pair.faster]) for pair in pairs if pair.slower == network and of[pair.faster] < error]
        if better:
            found.append(Outdone(network, error, better, where))
    return found


def published(evidence: Evidence) -> pl.DataFrame:
    """Of each published GPU a network's time with the newest release."""
    return setups.one_each(evidence.published.filter(device="cuda"), by_release=True)


def percent(error: float) -> str:
    return f"{decimals(error, 2)} %"
