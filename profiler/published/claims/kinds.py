"""List the kinds of statements: how each is checked against the published rows, and answered by own rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

from profiler.published import references
from profiler.published.claims import libraries, memory, networks, speed, sweeps
from profiler.published.claims.evidence import NO_FIGURES, Answer, Claim, Evidence, Outcome

Check = Callable[[Claim, Evidence], Answer]


@dataclass(frozen=True)
class Kind:
    """The function that checks one statement, and what `own` rows answer to all of a kind."""

    heading: str
    checked: Check
    own: Callable[[Evidence], list[str]] = lambda _: []


_SPEED, _NETWORKS, _LIBRARIES, _MEMORY, _SWEEPS = (
    "Machines and libraries",
    "Network against network",
    "The fastest library",
    "Memory",
    "Minibatches",
)


def _undecided(says: str) -> Check:
    return lambda *_: Answer(Outcome.UNDECIDED, says)


_PICTURES, _NO_COLUMN = _undecided(NO_FIGURES), "The source has a column for peak memory, and nothing in it."


KINDS: Mapping[str, Kind] = {
    "speed": Kind(_SPEED, speed.checked, speed.without_cudnn),
    "order": Kind(_SPEED, speed.order_checked),
    "network_speed": Kind(_NETWORKS, networks.speed_checked, networks.own),
    "accuracy": Kind(_NETWORKS, networks.accuracy_checked),
    "best": Kind(_LIBRARIES, libraries.best_checked, libraries.fastest),
    "framework": Kind(_LIBRARIES, _PICTURES, libraries.framework_own),
    "best_per_layer": Kind(_LIBRARIES, libraries.layers_checked, libraries.layers_own),
    "memory": Kind(_MEMORY, memory.size_checked),
    "fit": Kind(_MEMORY, memory.fit_checked, memory.fit_own),
    "support": Kind(_MEMORY, memory.support_checked, memory.support_own),
    "memory_use": Kind(_MEMORY, _undecided(_NO_COLUMN), memory.use_own),
    "time_per_sample": Kind(_SWEEPS, sweeps.per_sample_checked, sweeps.per_sample_own),
    "ms_above_twice": Kind(_SWEEPS, sweeps.excess_checked, sweeps.excess_own),
    "curvature": Kind(_SWEEPS, _PICTURES, sweeps.bend_own),
    "best_gpu": Kind("Which card to buy", _undecided("The source gives no figures for it.")),
}
"""By the `kind` of references/conclusions.csv, in the order of their headings."""


@dataclass(frozen=True)
class Checked:
    """A statement in words, and its answer."""

    claimed: str
    answer: Answer

    def sentence(self) -> str:
        """In Markdown."""
        return f"**{self.answer.verdict}**: {self.claimed}. {self.answer.says}"


@dataclass(frozen=True)
class Group:
    """The statements under one heading, and what own rows say of them."""

    heading: str
    checked: Sequence[Checked]
    own: Sequence[str]


def groups(evidence: Evidence) -> list[Group]:
    order = list(KINDS)
    claims = sorted(references.claims(evidence.study), key=lambda claim: order.index(claim["kind"]))
    return [
        _group(heading, list(of), evidence)
        for heading, of in groupby(claims, lambda claim: KINDS[claim["kind"]].heading)
    ]


def _group(heading: str, claims: Sequence[Claim], evidence: Evidence) -> Group:
    checked = [Checked(claim["statement"], KINDS[claim["kind"]].checked(claim, evidence)) for claim in claims]
    kinds = dict.fromkeys(claim["kind"] for claim in claims)
    own = dict.fromkeys(sentence for kind in kinds for sentence in KINDS[kind].own(evidence))
    return Group(heading, checked, list(own))
