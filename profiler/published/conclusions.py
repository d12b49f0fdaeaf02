"""What enters: results and the published figures. What leaves: sentences on who is how many times faster on all models.

A comparison is the range, over all networks that both ran, of the ratios of their times for a forward and a backward
pass, worded like the source's: "Across all models, the Quadro P5000 is 2.2x to 2.5x faster than Quadro M4000."
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import polars as pl

from profiler.published import references, setups
from profiler.published.layers import LAYERS, layer_times
from profiler.published.study import study_times
from profiler.published.tables import network_times
from profiler.results import batch_sweeps
from profiler.tables import numbers
from profiler.tables.numbers import decimals

EQUAL = 0.05
"""Two whose ratio stays within this of 1 on every network are called equal."""
FORWARD_ALONE = "models, forward alone"
_INTRODUCTION = """\
Each range is over all {what} that both ran: the least and the greatest ratio of their times for {passes}, per
image where batch sizes differ. Equal (`==`) are two that stay within 5 % of each other throughout.
Own machines and libraries come first."""


@dataclass(frozen=True)
class Comparison:
    """`slower`'s times over `faster`'s: least and greatest over the `subjects` that both ran, of which there are `of`.

    `faster` is the one with the lower geometric mean of its times. `machine` is named where both ran on it, `ours` says
    whether either is one of ours, `what` the subjects are, such as "layers", or "models, forward alone".
    """

    faster: str
    slower: str
    low: float
    high: float
    subjects: tuple[str, ...]
    of: int
    ours: bool = False
    what: str = "models"
    machine: str = ""
    article: str = "the "

    @property
    def relation(self) -> str:
        """`==` within 5 % throughout, `>` where `faster` is faster on every network, else `~`."""
        if self.low > 1 - EQUAL and self.high < 1 + EQUAL:
            return "=="
        return ">" if self.low > 1 else "~"

    def sentence(self) -> str:
        """In Markdown."""
        low, high = (numbers.times(end, sign="x") for end in (self.low, self.high))
        ratio = f"**{low}**" if low == high else f"**{low} to {high}**"
        where = self._where()
        if self.relation == ">":
            return f"{where}, {self.article}{self.faster} is {ratio} faster than {self.slower}."
        if self.relation == "==":
            return f"{where}, **{self.faster} == {self.slower}**: within 5 % of each other."
        return f"{where}, {self.article}{self.faster} is {ratio} as fast as {self.slower}: neither is faster on all."

    def _where(self) -> str:
        what, _, how = self.what.partition(", ")
        ending = (f" on the {self.machine}" if self.machine else "") + (f", {how}" if how else "")
        if len(self.subjects) == self.of:
            return f"Across all {what}{ending}"
        if len(self.subjects) == 1:
            return f"On {self.subjects[0]} alone{ending}"
        return f"Across the {len(self.subjects)} {what} that both ran{ending}"


def compare(times: pl.DataFrame, name: str, also: Sequence[str] = ()) -> list[Comparison]:
    """Every two values of the column `name`, compared over the networks that both have; the clearest first.

    `times` has `network`, `published_network`, `ms` (for one image), `ours` and `of`, how many networks there are;
    `also` are columns that must agree, such as the machine where libraries are compared. Of several times of one value
    for a network the lowest counts.
    """
    rows = times.drop_nulls("ms").group_by(name, "network", *also, maintain_order=True).agg(
        pl.col("ms").min(), pl.col("ours").any(), pl.col("published_network").first()
    )  # fmt: skip
    places = {value: place for place, value in enumerate(rows[name].unique(maintain_order=True))}
    rows = rows.with_columns(place=pl.col(name).replace_strict(places, return_dtype=pl.Int64))
    pairs = rows.join(rows, on=["network", *also], suffix="_2").filter(pl.col("place") < pl.col("place_2"))
    ratio = pl.col("ms_2") / pl.col("ms")
    ranges = pairs.group_by(name, f"{name}_2", maintain_order=True).agg(
        mean=ratio.log().mean(), low=ratio.min(), high=ratio.max(),
        subjects=pl.col("published_network").unique(maintain_order=True),
        ours=(pl.col("ours") | pl.col("ours_2")).any(),
    ).sort(pl.col("mean").abs(), descending=True, maintain_order=True)  # fmt: skip
    return [_oriented(row[name], row[f"{name}_2"], row, times["of"][0]) for row in ranges.to_dicts()]


def compare_machines(times: pl.DataFrame, newest: bool) -> list[Comparison]:
    """Machines: the published ones with the `newest` cuDNN that ran a network, else the fastest library; ours plain.

    The sources compared their GPUs so: where the newest cuDNN could not run a network, an older one stands in.
    """
    by_release = pl.col("library").replace("None", "")
    best = (
        times.drop_nulls("ms")
        .filter(~pl.col("ours") | pl.col("plain"))
        .sort(by_release if newest else pl.col("ms"), descending=newest, maintain_order=True)
        .unique(["machine", "network"], keep="first", maintain_order=True)
    )
    return compare(best.with_columns(pl.col("machine").str.strip_prefix("CPU: ")), "machine")


def compare_libraries(times: pl.DataFrame) -> list[Comparison]:
    """Libraries, each pair over all machines and networks on which both ran."""
    return [replace(c, article="") for c in compare(times, "called", also=("machine",))]


def compare_setups(times: pl.DataFrame) -> list[Comparison]:
    """Machines with their libraries; what both ends have in common is said once."""
    parts = _parts(times)
    return [_shortened(c, parts[c.faster], parts[c.slower]) for c in compare(times, "setup")]


def _parts(times: pl.DataFrame) -> dict[str, dict[str, Any]]:
    """Machine and library of each setup that has a time; one that could not run has no library to name."""
    named = times.drop_nulls(["ms", "called"]).select("setup", "machine", "called").unique(maintain_order=True)
    return {row["setup"]: row for row in named.to_dicts()}


def best_published(times: pl.DataFrame) -> set[str]:
    """The published setups to hold ours against: for our GPUs the fastest GPU's, for our CPUs the CPU's.

    The fastest is that with the lowest geometric mean, among those that ran the most of the networks that we ran.
    """
    found: set[str] = set()
    for device in times.filter("ours")["device"].unique():
        mine = times.filter(pl.col("ours"), device=device).drop_nulls("ms")
        rivals = times.filter(~pl.col("ours"), device=device).drop_nulls("ms").join(mine, on="network", how="semi")
        ranked = rivals.group_by("setup").agg(count=pl.col("network").n_unique(), mean=pl.col("ms").log().mean())
        found |= set(ranked.sort("count", "mean", "setup", descending=[True, False, False])["setup"].head(1))
    return found


def most_telling(times: pl.DataFrame, what: str = "models") -> list[Comparison]:
    """What a terminal has room for: our plain fp32 against the best published, and our other libraries against it."""
    plain = set(times.filter("ours", "plain")["setup"])
    ours, best = set(times.filter("ours")["setup"]), best_published(times)
    parts = _parts(times)
    chosen = [
        c for c in compare(times, "setup") if {c.faster, c.slower} & plain and {c.faster, c.slower} <= ours | best
    ]
    against = [c for c in chosen if {c.faster, c.slower} & best]
    among_ours = [c for c in chosen if c not in against]
    shortened = [_shortened(c, parts[c.faster], parts[c.slower]) for c in (*against, *among_ours)]
    return [replace(c, what=what) for c in shortened]


def times_of(study: str, results: pl.DataFrame) -> dict[str, pl.DataFrame]:
    """Published and own times of one image, by what they are of: models or layers."""
    own = setups.times(results).filter(pl.col("model_kind") != "layer")
    found = {}
    if study == "gpu-study":
        rows = study_times(own).filter(~pl.col("swept")).with_columns(ms="per_item_ms", called="library")
        found["models"] = rows.filter(pl.col("pass") == "training")
        found[FORWARD_ALONE] = rows.filter(pl.col("pass") == "inference")
    else:
        found["models"] = network_times(study, own).with_columns(ms="per_item_ms")
    if study == "convnet-benchmarks":
        found["layers"] = layer_times(results)
        found["layers"] = found["layers"].with_columns(of=pl.lit(len(LAYERS)))
    of = pl.lit(len(references.network_names(study))).alias("of")
    found |= {what: frame.with_columns(of) for what, frame in found.items() if what != "layers"}
    return {what: frame for what, frame in found.items() if frame["ours"].any()}


def published_times(study: str) -> pl.DataFrame:
    """The published rows alone, as `times_of` has them."""
    per_item = pl.col("total_ms") / pl.col("batch_size")
    of = pl.lit(len(references.network_names(study))).alias("of")
    return references.networks(study).with_columns(of, ms=per_item, ours=pl.lit(False), plain=pl.lit(False))


def with_cudnn_releases(times: pl.DataFrame) -> pl.DataFrame:
    """cloud-gpus' rows with cnn-benchmarks', which its conclusions on cuDNN rest on: it has none of 5.0.05 itself."""
    both = pl.concat([times, published_times("cnn-benchmarks")], how="diagonal")
    return both.unique(["setup", "network"], keep="first", maintain_order=True)


def markdown(study: str, results: pl.DataFrame) -> str:
    """Every comparison as a page."""
    parts = [f"# {references.STUDIES[study].title}: conclusions"]
    for what, times in times_of(study, results).items():
        newest = study in ("cnn-benchmarks", "cloud-gpus")
        libraries = with_cudnn_releases(times) if study == "cloud-gpus" else times
        with_their = "newest cuDNN" if newest else "fastest library"
        sections = {
            f"Machines, each with its {with_their}; ours in eager fp32": compare_machines(times, newest),
            "Libraries, over all machines that ran both": _of_several_machines(libraries),
            "Machines with their libraries": compare_setups(times),
        }
        alone = what == FORWARD_ALONE
        passes = "a forward pass" if alone else "a forward and a backward pass"
        parts.append(_INTRODUCTION.format(what="models" if alone else what, passes=passes))
        for heading, comparisons in sections.items():
            own_first = sorted((replace(c, what=what) for c in comparisons), key=lambda c: not c.ours)
            parts.append(f"## {heading}{' (forward alone)' if alone else ''}")
            parts.append("\n".join(f"- {c.sentence()}" for c in own_first) or "There is nothing to compare.")
    if study == "gpu-study" and (findings := _minibatch(results)):
        parts += ["## Minibatch efficiency", "\n".join(f"- {finding}" for finding in findings)]
    return "\n\n".join(parts) + "\n"


def write_conclusions(folder: Path, study: str, results: pl.DataFrame) -> None:
    """conclusions.md."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "conclusions.md").write_text(markdown(study, results))


def _minibatch(results: pl.DataFrame) -> list[str]:
    """What a batch sweep found, and the published excess over twice the time of half the batch."""
    if not (findings := batch_sweeps.sentences(results)):
        return []
    half, whole = references.minibatch().sort("batch_size").to_dicts()
    excess = whole["total_ms"] - 2 * half["total_ms"]
    published = (
        f"Published: {whole['published_network']} training, {whole['library']} on {whole['machine']}: a batch of "
        f"{whole['batch_size']} takes {decimals(whole['total_ms'], 2)} ms, {decimals(excess, 2)} ms more than twice "
        f"the {decimals(half['total_ms'], 2)} ms of {half['batch_size']}."
    )
    return [*findings, published]


def _of_several_machines(times: pl.DataFrame) -> list[Comparison]:
    """Libraries; ours only where several machines of ours ran, for one machine's stand among the setups."""
    several = times.filter("ours")["machine"].n_unique() > 1
    return [c for c in compare_libraries(times) if several or not c.ours]


def _oriented(first: str, second: str, row: dict[str, Any], of: int) -> Comparison:
    low, high, subjects, ours = row["low"], row["high"], tuple(row["subjects"]), row["ours"]
    if row["mean"] >= 0:
        return Comparison(first, second, low, high, subjects, of, ours)
    return Comparison(second, first, 1 / high, 1 / low, subjects, of, ours)


def _shortened(comparison: Comparison, faster: dict[str, Any], slower: dict[str, Any]) -> Comparison:
    """On one machine the libraries alone are named, without what their names end in alike."""
    if faster["machine"] != slower["machine"]:
        first, second = (name.removeprefix("CPU: ") for name in (comparison.faster, comparison.slower))
        return replace(comparison, faster=first, slower=second)
    (first, *ends), (second, *others) = faster["called"].split(", "), slower["called"].split(", ")
    if ends != others:
        first, second = faster["called"], slower["called"]
    machine = faster["machine"].removeprefix("CPU: ")
    return replace(comparison, faster=first, slower=second, machine=machine, article="")
