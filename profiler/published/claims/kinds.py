"""List the kinds of published statements: under which heading they stand, and what own rows answer to them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

from profiler.published import references
from profiler.published.claims import memory, speeds, sweeps
from profiler.published.claims.evidence import Claim, Evidence


@dataclass(frozen=True)
class Kind:
    """What `own` rows answer to all statements of a kind."""

    heading: str
    own: Callable[[Evidence], list[str]] = lambda _: []


_SPEED, _NETWORKS, _LIBRARIES, _MEMORY, _SWEEPS = (
    "Machines and libraries",
    "Network against network",
    "The fastest library",
    "Memory",
    "Minibatches",
)
KINDS: Mapping[str, Kind] = {
    "speed": Kind(_SPEED, speeds.without_cudnn),
    "order": Kind(_SPEED),
    "network_speed": Kind(_NETWORKS, speeds.own),
    "accuracy": Kind(_NETWORKS),
    "best": Kind(_LIBRARIES, speeds.fastest),
    "framework": Kind(_LIBRARIES, speeds.framework_own),
    "best_per_layer": Kind(_LIBRARIES, speeds.layers_own),
    "memory": Kind(_MEMORY),
    "fit": Kind(_MEMORY, memory.fit_own),
    "support": Kind(_MEMORY, memory.support_own),
    "memory_use": Kind(_MEMORY, memory.use_own),
    "time_per_sample": Kind(_SWEEPS, sweeps.per_sample_own),
    "ms_above_twice": Kind(_SWEEPS, sweeps.excess_own),
    "curvature": Kind(_SWEEPS, sweeps.bend_own),
    "best_gpu": Kind("Which card to buy"),
}
"""By the `kind` of references/conclusions.csv, in the order of their headings."""


@dataclass(frozen=True)
class Group:
    """The statements under one heading, and what own rows say of them."""

    heading: str
    claims: Sequence[Claim]
    own: Sequence[str]


def groups(evidence: Evidence) -> list[Group]:
    order, found = list(KINDS), []
    claims = sorted(references.claims(evidence.study), key=lambda claim: order.index(claim["kind"]))
    for heading, of in groupby(claims, lambda claim: KINDS[claim["kind"]].heading):
        stated = list(of)
        kinds = dict.fromkeys(claim["kind"] for claim in stated)
        own = dict.fromkeys(sentence for kind in kinds for sentence in KINDS[kind].own(evidence))
        found.append(Group(heading, stated, list(own)))
    return found
