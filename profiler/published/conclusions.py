"""Say who is how many times faster on all networks: ranges of ratios, of published rows and of runs.

A comparison is the range, over all networks that both ran, of the ratios of their times for a forward and a backward
pass, worded like the source's: "Across all models, the Quadro P5000 is 2.2x to 2.5x faster than Quadro M4000."
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace

import polars as pl

from profiler.published import references, setups
from profiler.published.layers import LAYERS, layer_times
from profiler.published.studies import STUDIES
from profiler.results.speedups import geometric_mean
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
    """`slower`'s times over `faster`'s: least and greatest over the `networks` that both ran, of which there are `of`.

    `faster` is the one with the lower geometric mean of its times. `machine` is named where both ran on it, `ours` says
    whether either is one of ours. Networks on which either was `disturbed`, or whose time the host sets (`host_set`),
    do not count; where none is left, `low` and `high` are no numbers, and the two in no order.
    """

    faster: str
    slower: str
    low: float
    high: float
    networks: tuple[str, ...]
    of: int
    ours: bool = False
    disturbed: tuple[str, ...] = ()
    host_set: tuple[str, ...] = ()
    subject: Subject = MODELS
    machine: str = ""
    article: str = "the "

    @property
    def relation(self) -> str:
        """`==` within 5 % throughout, `>` where `faster` is faster on every network, else `~`."""
        if self.low > 1 - EQUAL and self.high < 1 + EQUAL:
            return "=="
        return ">" if self.low > 1 else "~"

    def sentence(self, bold: str = "**") -> str:
        """In Markdown, or with another mark around what is bold."""
        if not self.networks:
            who = f"between {self.faster} and {self.slower}"
            why = [f"{listed(self.disturbed)} {self._were} disturbed"] if self.disturbed else []
            why += [f"the host sets the time of {listed(self.host_set)}"] if self.host_set else []
            return f"No factor {who}{self._setting}: {', and '.join(why)}."
        ratio = f"{bold}{span(self.low, self.high)}{bold}"
        where = self._where()
        if self.relation == ">":
            return f"{where}, {self.article}{self.faster} is {ratio} faster than {self.slower}."
        if self.relation == "==":
            return f"{where}, {bold}{self.faster} == {self.slower}{bold}: within 5 % of each other."
        return f"{where}, {self.article}{self.faster} is {ratio} as fast as {self.slower}: neither is faster on all."

    @property
    def _were(self) -> str:
        return "was" if len(self.disturbed) == 1 else "were"

    @property
    def _setting(self) -> str:
        on = f" on the {self.machine}" if self.machine else ""
        return f"{on}{f', {self.subject.manner}' if self.subject.manner else ''}"

    def _where(self) -> str:
        noun, both = self.subject.noun, len(self.networks) + len(self.disturbed) + len(self.host_set)
        if both == self.of:
            over = f"Across all {noun}"
        elif both == 1:
            over = f"On {self.networks[0]} only"
        else:
            over = f"Across the {both} {noun} that both ran"
        but = [f"{listed(self.disturbed)}, which {self._were} disturbed"] if self.disturbed else []
        but += [f"{listed(self.host_set)}, whose time the host sets"] if self.host_set else []
        return f"{over}{self._setting}" + (f" but {', and '.join(but)}" if but else "")


def span(low: float, high: float) -> str:
    """A range of ratios, like "1.01x to 1.32x", or one where both ends read the same."""
    return " to ".join(dict.fromkeys(numbers.times(end, sign="x") for end in (low, high)))


def compare(times: pl.DataFrame, name: str, also: Sequence[str] = ()) -> list[Comparison]:
    """Every two values of the column `name`, compared over the networks that both have; the clearest first.

    `times` has `network`, `published_network`, `ms` (for one image), `ours`, `of`, how many networks there are,
    `disturbed`, the kinds of warnings with which no factor counts, and `host_set`; `also` are columns that must agree,
    such as the machine where libraries are compared. Of several times of one value for a network the lowest counts of
    those that were not disturbed and that the host does not set.
    """
    rows = _one_each(times, [name, "network", *also])
    places = {value: place for place, value in enumerate(rows[name].unique(maintain_order=True))}
    rows = rows.with_columns(place=pl.col(name).replace_strict(places, return_dtype=pl.Int64))
    pairs = rows.join(rows, on=["network", *also], suffix="_2").filter(pl.col("place") < pl.col("place_2"))
    calm, good = (pl.col(which) & pl.col(f"{which}_2") for which in ("calm", "good"))
    ratio, network = (pl.col("ms_2") / pl.col("ms")).filter(good), pl.col("published_network")
    ranges = pairs.group_by(name, f"{name}_2", maintain_order=True).agg(
        mean=geometric_mean(ratio).log(),
        low=ratio.min(),
        high=ratio.max(),
        networks=network.filter(good).unique(maintain_order=True),
        disturbed=network.filter(~calm).unique(maintain_order=True),
        host_set=network.filter(calm & ~good).unique(maintain_order=True),
        ours=(pl.col("ours") | pl.col("ours_2")).any(),
    )
    ranges = ranges.with_columns(pl.col("mean", "low", "high").fill_null(math.nan))
    ranges = ranges.sort(pl.col("mean").abs().fill_nan(-1.0), descending=True, maintain_order=True)
    found = []
    for first, second, mean, low, high, networks, disturbed, host_set, ours in ranges.iter_rows():
        if mean < 0:
            first, second, low, high = second, first, 1 / high, 1 / low
        # Of a pair on several machines a network may be undisturbed on another one.
        lost = dict.fromkeys(one for one in disturbed if one not in networks)
        held = tuple(one for one in host_set if one not in networks and one not in lost)
        found.append(Comparison(first, second, low, high, tuple(networks), times["of"][0], ours, tuple(lost), held))
    return found


def _one_each(times: pl.DataFrame, keys: Sequence[str]) -> pl.DataFrame:
    """The time by the keys, whether it was undisturbed (`calm`), and whether it counts (`good`)."""
    calm = pl.col("disturbed").is_null()
    good = calm & ~pl.col("host_set")
    figures = [
        pl.coalesce(pl.col("ms").filter(good).min(), pl.col("ms").min()),
        pl.col("ours").any(),
        pl.col("published_network").first(),
        calm.any().alias("calm"),
        good.any().alias("good"),
    ]
    return times.drop_nulls("ms").group_by(keys, maintain_order=True).agg(figures)


def compare_machines(times: pl.DataFrame, by_release: bool) -> list[Comparison]:
    """Machines: the published ones with the newest release that ran a network, else the fastest library.

    Of ours the variant counts that stands for the published library (studies.py). The sources compared their GPUs so:
    where the newest cuDNN could not run a network, an older one takes its place.
    """
    standing = times.filter(~pl.col("ours") | pl.col("counterpart"))
    return compare(setups.one_each(standing, by_release), "machine")


def compare_libraries(times: pl.DataFrame) -> list[Comparison]:
    """Libraries, each pair over all machines and networks on which both ran."""
    return [replace(c, article="") for c in compare(times, "called", also=("machine",))]


def compare_shared_libraries(times: pl.DataFrame) -> list[Comparison]:
    """Libraries; ours only where several machines of ours ran: of one machine they are among the setups."""
    several = times.filter("ours")["machine"].n_unique() > 1
    return [c for c in compare_libraries(times) if several or not c.ours]


def compare_setups(times: pl.DataFrame) -> list[Comparison]:
    """Machines with their libraries; what both have in common is left out."""
    return shortened(compare(times, "setup"), times)


def by_device(times: pl.DataFrame) -> list[pl.DataFrame]:
    """The rows of GPUs and those of CPUs, as far as some are ours: no headline holds a GPU against a CPU."""
    kinds = times.filter("ours")["device"].unique()
    return [times.filter(device=kind) for kind in ("cuda", "cpu") if kind in kinds]


def fastest(rows: pl.DataFrame) -> set[str]:
    """The setup with the lowest geometric mean of times, among those that ran the most networks; none of no rows."""
    means = rows.group_by("setup").agg(count=pl.col("network").n_unique(), mean=geometric_mean(pl.col("ms")))
    return set(means.sort("count", "mean", "setup", descending=[True, False, False])["setup"].head(1))


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
            comparison = replace(comparison, faster=faster, slower=slower, machine=machine, article="")
        found.append(comparison)
    return found


def _per_image(study: str, rows: pl.DataFrame) -> pl.DataFrame:
    """Rows as `compare` takes them; what a source prints before a CPU's name is no part of it in a sentence."""
    return rows.with_columns(
        pl.col("machine", "setup").str.strip_prefix("CPU: "),
        ms=pl.col("judged_ms") / pl.col("batch_size"),
        of=pl.lit(len(references.network_names(study))),
    )
