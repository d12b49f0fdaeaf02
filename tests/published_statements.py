"""Check the published statements against the published rows: what references/conclusions.csv has as verdict and answer.

Call it as a script to write these two columns anew.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import pairwise

import polars as pl

from profiler.published import references, setups
from profiler.published.claims import answers as own
from profiler.published.claims.evidence import Claim, Evidence, Outcome
from profiler.published.conclusions import (
    EQUAL,
    Comparison,
    compare,
    compare_libraries,
    compare_machines,
    span,
    with_releases,
)
from profiler.published.tables import LAYERS
from profiler.tables.numbers import compact, count, counted, decimals, listed

NO_FIGURES = "The source printed the figures as pictures."
ROUNDING = 0.05
"""A printed end of a range and the computed one agree if they are closer than this, or than 1 %."""
_NONE = "Torch without cuDNN"
ALIKE = 0.5
"""Two networks whose top-5 errors are as close as this, in points of percent, are called equally accurate."""


@dataclass(frozen=True)
class Answer:
    """A verdict, and in a sentence what it rests on."""

    verdict: Outcome
    says: str


def speed(claim: Claim, evidence: Evidence) -> Answer:
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


def order(claim: Claim, evidence: Evidence) -> Answer:
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


def network_speed(claim: Claim, evidence: Evidence) -> Answer:
    pairs = own.against_each_other(own.published(evidence))
    pair = next(p for p in pairs if {p.faster, p.slower} == {evidence.name(claim["from"]), evidence.name(claim["to"])})
    ahead = pair.faster == evidence.name(claim["to"])
    low, high = (pair.low, pair.high) if ahead else (1 / pair.high, 1 / pair.low)
    says = f"In the published rows it is {span(low, high)} as fast, on {counted(len(pair.networks), 'GPU')}."
    return Answer(verdict(claim, low, high, ahead), says)


def accuracy(claim: Claim, evidence: Evidence) -> Answer:
    known = references.top5_errors(evidence.study)
    source = "Its table has"
    if not {claim["from"], claim["to"]} <= set(known):
        known, source = references.top5_errors("cnn-benchmarks"), "cnn-benchmarks has"
    mine, other = known[claim["to"]], known[claim["from"]]
    says = f"{source} a top-5 error of {own.percent(mine)} against {own.percent(other)}."
    if claim["relation"] == "equal":
        return Answer(Outcome.HOLDS if abs(mine - other) <= ALIKE else Outcome.FAILS, says)
    as_printed = (mine, other) == (claim["low"], claim["high"])
    return Answer(Outcome.FAILS if mine >= other else Outcome.HOLDS if as_printed else Outcome.IN_PART, says)


def best(claim: Claim, evidence: Evidence) -> Answer:
    rows, wins, says = _of(claim, evidence), True, []
    name = _published_name(claim, rows)
    for pass_ in claim["pass"]:
        ranked = rows.filter(pl.col("pass") == pass_).drop_nulls("milliseconds").sort("milliseconds")
        first, second = ranked.head(2).to_dicts()
        wins &= (first["published_library"], first["implementation"]) == (name, claim["implementation"])
        times = [f"{compact(row['milliseconds'])} ms" for row in (first, second)]
        says.append(f"{pass_} {times[0]}, then {second['published_library']} with {times[1]}")
    return Answer(Outcome.HOLDS if wins else Outcome.FAILS, f"The published rows say {'; '.join(says)}.")


def _of(claim: Claim, evidence: Evidence) -> pl.DataFrame:
    """The published times among which a library is the fastest."""
    if claim["networks"]:
        return references.read(evidence.study).filter(network=claim["networks"][0])
    return references.read("convnet-layers").filter(pl.col("library") != "cherry-picking", table="summary")


def layers(claim: Claim, _: Evidence) -> Answer:
    (pass_,) = claim["pass"]
    rows = references.layers().filter(pl.col("library") != "cherry-picking")
    tables = ["forward", "backward"] if pass_ == "total" else [pass_]
    least = sum(float(rows.filter(table=table).select(pl.col(LAYERS).min()).sum_horizontal()[0]) for table in tables)
    off = abs(least - claim["low"])
    verdict = Outcome.HOLDS if off < 1 else Outcome.IN_PART if off <= least / 20 else Outcome.FAILS
    return Answer(verdict, f"The lowest published times add up to {compact(least)} ms.")


def _published_name(claim: Claim, rows: pl.DataFrame) -> str:
    same = rows.filter(library=claim["library"], implementation=claim["implementation"])
    version = claim["library_version"]
    same = same.filter(pl.col("library_version").eq_missing(pl.lit(version, pl.String)))
    return str(same["published_library"][0])


def size(claim: Claim, evidence: Evidence) -> Answer:
    known = own.sizes()
    mine, other = known[claim["to"]], known[claim["from"]]
    holds = mine / other == claim["low"] if claim["low"] else mine < other
    says = f"Its table has {count(mine)} GB against {count(other)} GB."
    return Answer(Outcome.HOLDS if holds else Outcome.FAILS, says)


def fit(claim: Claim, evidence: Evidence) -> Answer:
    rows = references.read(evidence.study).filter(pl.col("network").is_in(claim["networks"]), gpu=claim["gpu"][0])
    if version := claim["library_version"]:
        before = pl.col("library_version") < version.removeprefix("before ")
        rows = rows.filter(before if version.startswith("before") else pl.col("library_version") == version)
    ran = rows["network"].n_unique()
    if claim["relation"] == "fits":
        every = ran == len(claim["networks"])
        says = "The tables have times of it" if len(claim["networks"]) == 1 else "The tables have times of them"
        return Answer(
            Outcome.HOLDS if every else Outcome.FAILS, f"{says} there." if every else "Not all have times there."
        )
    says = f"The tables have {'no times' if ran == 0 else 'times'} of it there."
    return Answer(Outcome.HOLDS if ran == 0 else Outcome.FAILS, says)


def support(claim: Claim, evidence: Evidence) -> Answer:
    rows = references.read(evidence.study).filter(network=claim["networks"][0])
    only = set(rows["library"]) == {claim["library"]}
    says = "The tables have no time of it without cuDNN." if only else "The tables have times without cuDNN."
    return Answer(Outcome.HOLDS if only else Outcome.FAILS, says)


def per_sample(_: Claim, evidence: Evidence) -> Answer:
    half, whole = _halves(evidence)
    each = [f"{decimals(row['total_ms'] / row['batch_size'], 2)} ms" for row in (half, whole)]
    says = f"{NO_FIGURES} The two in its text are an exception: {half['published_network']} on {half['machine']} takes "
    says += f"{each[0]} per sample at {half['batch_size']}, {each[1]} at {whole['batch_size']}."
    return Answer(Outcome.UNDECIDED, says)


def excess(claim: Claim, evidence: Evidence) -> Answer:
    half, whole = _halves(evidence)
    excess = whole["total_ms"] - 2 * half["total_ms"]
    times = [f"{decimals(row['total_ms'], 2)} ms" for row in (whole, half)]
    says = f"The published {times[0]} are {decimals(excess, 2)} ms more than twice {times[1]}."
    return Answer(Outcome.HOLDS if claim["low"] - 1 < excess < claim["low"] else Outcome.FAILS, says)


def _halves(evidence: Evidence) -> list[Claim]:
    """The two times in the text, the smaller minibatch first."""
    return list(evidence.published.sort("batch_size").to_dicts())


Check = Callable[[Claim, Evidence], Answer]


def undecided(says: str) -> Check:
    return lambda *_: Answer(Outcome.UNDECIDED, says)


CHECKS: Mapping[str, Check] = {
    "speed": speed,
    "order": order,
    "network_speed": network_speed,
    "accuracy": accuracy,
    "best": best,
    "framework": undecided(NO_FIGURES),
    "best_per_layer": layers,
    "memory": size,
    "fit": fit,
    "support": support,
    "memory_use": undecided("The source has a column for peak memory, and nothing in it."),
    "time_per_sample": per_sample,
    "ms_above_twice": excess,
    "curvature": undecided(NO_FIGURES),
    "best_gpu": undecided("The source gives no figures for it."),
}
"""By the `kind` of references/conclusions.csv."""


def answers(study: str) -> list[tuple[Claim, Answer]]:
    """Each of a study's statements with what its rows say of it."""
    evidence = Evidence(study, pl.DataFrame())
    return [(claim, CHECKS[claim["kind"]](claim, evidence)) for claim in references.claims(study)]


def write() -> None:
    path = references.FOLDER / "conclusions.csv"
    with path.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    found = [answer for study in dict.fromkeys(row["source"] for row in rows) for _, answer in answers(study)]
    for row, answer in zip(rows, found, strict=True):
        row |= {"verdict": answer.verdict, "answer": answer.says}
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


if __name__ == "__main__":
    write()
