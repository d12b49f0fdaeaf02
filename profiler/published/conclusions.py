"""Say who is how many times faster on all networks: ranges of ratios, of published rows and of runs.

A comparison is the range, over all networks that both ran, of the ratios of their times for a forward and a backward
pass, worded like the source's: "Across all models, the Quadro P5000 is 2.2x to 2.5x faster than Quadro M4000."
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import polars as pl

from profiler.published import references, setups
from profiler.published.setups import geometric_mean
from profiler.published.studies import STUDIES
from profiler.published.tables import LAYERS, layer_times
from profiler.results.cells import compared
from profiler.results.columns import place
from profiler.tables import numbers
from profiler.tables.numbers import listed

EQUAL = 0.05
"""Two whose ratio stays within this of 1 on every network are called equal."""


@dataclass(frozen=True)
class Subject:
    """What the times are of, and of which passes; `manner` names those where it is not both."""

    noun: str
    passes: str = "a forward and a backward pass"
    manner: str = ""


MODELS = Subject("models")
FORWARD_ONLY = Subject("models", "a forward pass", "forward only")
SINGLE_LAYERS = Subject("layers")


@dataclass(frozen=True)
class Comparison:
    """How many times faster one is than another: a range over the `networks` that both ran, of which there are `of`.

    `low` and `high` are the least and the greatest end of the ratios' intervals (profiler.results.cells.compared), of
    published times the ratios themselves; `mean` is the geometric mean of the ratios. `faster` is the one with the
    lower geometric mean of its times, and `lost` are networks on which `slower` is the faster one. `machine` is named
    where both ran on it, `ours` says whether either is one of ours.
    """

    faster: str
    slower: str
    low: float
    high: float
    networks: tuple[str, ...]
    of: int
    ours: bool = False
    subject: Subject = MODELS
    machine: str = ""
    article: bool = True
    mean: float = field(default=1.0, compare=False)
    lost: tuple[str, ...] = ()

    @property
    def relation(self) -> str:
        """`==` within 5 % throughout, `>` where `faster` is faster on every network, else `~`."""
        if self.low > 1 - EQUAL and self.high < 1 + EQUAL:
            return "=="
        return ">" if self.low > 1 else "~"

    def sentence(self) -> str:
        """In Markdown."""
        ratio = f"**{span(self.low, self.high)}**"
        where = self._where()
        if self.relation == ">":
            return f"{where}, {self._first} is {ratio} faster than {self.slower}."
        if self.relation == "==":
            return f"{where}, **{self.faster} == {self.slower}**: within 5 % of each other."
        on = f", {self.slower} is faster on {listed(self.lost)}" if self.lost else ""
        mean = f"{numbers.times(self.mean, sign='x')} in the geometric mean"
        return f"{where}, {self._first} is {ratio} as fast as {self.slower}: {mean}{on}."

    @property
    def _first(self) -> str:
        return the(self.faster) if self.article else self.faster

    def _where(self) -> str:
        noun, both = self.subject.noun, len(self.networks)
        if both == self.of:
            over = f"Across all {noun}"
        elif both == 1:
            over = f"On {self.networks[0]} only"
        else:
            over = f"Across the {both} {noun} that both ran"
        on = f" on {the(self.machine)}" if self.machine else ""
        return f"{over}{on}{f', {self.subject.manner}' if self.subject.manner else ''}"


def the(label: str) -> str:
    """The name of a machine after a preposition or at the start: without article where it has its own word."""
    return label if label.partition(" ")[0].lower() in ("my", "our", "your", "the") else f"the {label}"


def span(low: float, high: float) -> str:
    """A range of ratios, like "1.01x to 1.32x", or one where both ends read the same."""
    return " to ".join(dict.fromkeys(numbers.times(end, sign="x") for end in (low, high)))


def compare(times: pl.DataFrame, name: str, also: Sequence[str] = ()) -> list[Comparison]:
    """Compare every two values of the column `name` over the networks that both have; the clearest first.

    `times` has `network`, `published_network`, `machine`, `ms` (of one image) with `low_ms` and `high_ms` (null of
    published times), `clock`, `ours`, and `of`, how many networks there are; `also` are columns that must agree, such
    as the machine where libraries are compared. Of several times of one value for a network the lowest counts.
    """
    keys = [name, "network", *also]
    ordered = times.drop_nulls("ms").sort("ms", maintain_order=True).unique(keys, keep="first", maintain_order=True)
    first = times.select(name).unique(maintain_order=True).to_series()
    rows = ordered.with_columns(place=place(name, first)).rename(
        {"ms": "latency_ms", "low_ms": "latency_low_ms", "high_ms": "latency_high_ms"}
    )
    rows = rows.sort("place", place("network", times["network"].unique(maintain_order=True)), maintain_order=True)
    pairs = rows.join(rows, on=["network", *also], suffix="_2", maintain_order="left_right")
    pairs = pairs.filter(pl.col("place") < pl.col("place_2"))
    pairs = pairs.hstack(compared(pairs, base="_2"))
    factor, network = pl.col("factor"), pl.col("published_network")
    ranges = pairs.group_by(name, f"{name}_2", maintain_order=True).agg(
        mean=geometric_mean(factor).log(),
        low=pl.col("factor_low").min(),
        high=pl.col("factor_high").max(),
        ours=(pl.col("ours") | pl.col("ours_2")).any(),
        faster_on=network.filter(pl.col("factor_low") > 1).unique(maintain_order=True),
        slower_on=network.filter(pl.col("factor_high") < 1).unique(maintain_order=True),
        networks=network.unique(maintain_order=True),
    )
    ranges = ranges.sort(pl.col("mean").abs(), descending=True, maintain_order=True)
    return [_comparison(row, name, times["of"][0]) for row in ranges.iter_rows(named=True)]


def _comparison(row: Mapping[str, Any], name: str, of: int) -> Comparison:
    """Put a pair in its order. One that ran on several machines can win on one of them and lose on another."""
    faster, slower, low, high = row[name], row[f"{name}_2"], row["low"], row["high"]
    wins, losses = row["faster_on"], row["slower_on"]
    if row["mean"] < 0:
        faster, slower, low, high, wins, losses = slower, faster, 1 / high, 1 / low, losses, wins
    lost = tuple(network for network in losses if network not in wins)
    mean = math.exp(abs(row["mean"]))
    return Comparison(faster, slower, low, high, tuple(row["networks"]), of, row["ours"], mean=mean, lost=lost)


def compare_machines(times: pl.DataFrame, by_release: bool) -> list[Comparison]:
    """Machines: the published ones with the newest release that ran a network, else the fastest library.

    Of ours the variant counts that stands for the published library (studies.py). The sources compared their GPUs so:
    where the newest cuDNN could not run a network, an older one takes its place.
    """
    standing = times.filter(~pl.col("ours") | pl.col("counterpart"))
    return compare(setups.one_each(standing, by_release), "machine")


def compare_libraries(times: pl.DataFrame) -> list[Comparison]:
    """Libraries, each pair over all machines and networks on which both ran."""
    return [replace(c, article=False) for c in compare(times, "called", also=("machine",))]


def compare_shared_libraries(times: pl.DataFrame) -> list[Comparison]:
    """Libraries; ours only where several machines ran both: of one machine they are among the setups."""
    machines = {called: set(of["machine"]) for (called,), of in times.drop_nulls("ms").group_by("called")}
    return [c for c in compare_libraries(times) if not c.ours or len(machines[c.faster] & machines[c.slower]) > 1]


def compare_setups(times: pl.DataFrame) -> list[Comparison]:
    """Machines with their libraries; what both have in common is left out.

    Of ours only GPUs among GPUs and CPUs among CPUs: the two differ by so much that the library hardly counts, and
    `compare_machines` has the one ratio that tells.
    """
    device = dict(times.select("setup", "device").unique().rows())
    pairs = [pair for pair in compare(times, "setup") if not pair.ours or device[pair.faster] == device[pair.slower]]
    return shortened(pairs, times)


def by_device(times: pl.DataFrame) -> list[pl.DataFrame]:
    """The rows of GPUs and those of CPUs, as far as some are ours: no headline holds a GPU against a CPU."""
    kinds = times.filter("ours")["device"].unique()
    return [times.filter(device=kind) for kind in ("cuda", "cpu") if kind in kinds]


def fastest(rows: pl.DataFrame) -> set[str]:
    """The fastest setup of all; none of no rows."""
    return set(setups.fastest(rows, "setup")["setup"])


def best_published(times: pl.DataFrame) -> set[str]:
    """The published setup to hold ours against: the fastest on the networks that we ran. `times` are `by_device`'s."""
    known = times.drop_nulls("ms")
    return fastest(known.filter(~pl.col("ours")).join(known.filter("ours"), on="network", how="semi"))


def most_telling(times: pl.DataFrame, subject: Subject = MODELS) -> list[Comparison]:
    """Our counterparts against the best published, then our other libraries against them, machine by machine."""
    counterparts, ours = (set(times.filter("ours", which)["setup"]) for which in ("counterpart", "ours"))
    published = [one for of in by_device(times) for one in between(of, counterparts, best_published(of), subject)]
    libraries = between(times, counterparts, ours - counterparts, subject)
    return published + [pair for pair in libraries if pair.machine]


def between(times: pl.DataFrame, mine: Collection[str], others: Collection[str], subject: Subject) -> list[Comparison]:
    """Every setup of one kind against every one of another, named as `compare_setups` does."""
    pairs = compare(times.filter(pl.col("setup").is_in([*mine, *others])), "setup")
    sides = [(c, {c.faster, c.slower}) for c in pairs]
    chosen = [replace(c, subject=subject) for c, both in sides if len(both & set(mine)) == 1 and both & set(others)]
    return shortened(chosen, times)


def counterparts(times: pl.DataFrame) -> str:
    """Which of our variants stand for the published libraries, like "; ours in eager-benchmark fp32", or nothing."""
    found = times.filter("ours", "counterpart").drop_nulls("ms")["implementation"].unique(maintain_order=True)
    return "" if found.is_empty() else f"; ours in {listed(found)} fp32"


def times_of(study: str, results: pl.DataFrame) -> dict[Subject, pl.DataFrame]:
    """Published and own times of one image, by what they are of; only where some are ours."""
    own = setups.network_cells(results)
    rows = _per_image(study, setups.network_times(study, own).filter(~pl.col("swept")))
    subjects = {"training": MODELS, "inference": FORWARD_ONLY}
    found = {subjects[pass_]: rows.filter(pl.col("pass") == pass_) for pass_ in STUDIES[study].passes}
    if "layers" in STUDIES[study].tables:
        found[SINGLE_LAYERS] = layer_times(results).with_columns(of=pl.lit(len(LAYERS)))
    return {subject: times for subject, times in found.items() if times["ours"].any()}


def published_times(study: str) -> pl.DataFrame:
    """Only the published rows, as `times_of` has them."""
    return _per_image(study, setups.published_times(study))


def with_releases(study: str, times: pl.DataFrame) -> pl.DataFrame:
    """A study's rows with those of the one that its comparison of libraries needs too."""
    other = STUDIES[study].releases_of
    if not other:
        return times
    both = pl.concat([times, published_times(other)], how="diagonal")
    return both.unique(["setup", "network"], keep="first", maintain_order=True)


def shortened(comparisons: Iterable[Comparison], times: pl.DataFrame) -> list[Comparison]:
    """On one machine only the libraries are named, without the ending that both have."""
    # A setup that could not run has no library to name.
    named = times.drop_nulls(["ms", "called"]).unique("setup", keep="first")
    parts = {row["setup"]: row for row in named.to_dicts()}
    found = []
    for comparison in comparisons:
        sides = parts[comparison.faster], parts[comparison.slower]
        (machine, ending), (other_machine, other_ending) = ((side["machine"], side["ending"]) for side in sides)
        if machine == other_machine:
            faster, slower = (side["software" if ending == other_ending else "called"] for side in sides)
            comparison = replace(comparison, faster=faster, slower=slower, machine=machine, article=False)
        found.append(comparison)
    return found


def _per_image(study: str, rows: pl.DataFrame) -> pl.DataFrame:
    """Rows as `compare` takes them; what a source prints before a CPU's name is no part of it in a sentence."""
    return rows.with_columns(
        pl.col("machine", "setup").str.strip_prefix("CPU: "),
        ms=pl.col("total_ms") / pl.col("batch_size"),
        **{end: pl.col(end) / pl.col("batch_size") for end in ("low_ms", "high_ms")},
        of=pl.lit(len(references.network_names(study))),
    )
