"""Answer statements on speed by own rows: with and without cuDNN, network against network, the fastest library."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import polars as pl

from profiler.published import setups
from profiler.published.claims.evidence import Evidence, sound
from profiler.published.conclusions import MODELS, Comparison, Subject, compare, span, the
from profiler.published.layers import LAYERS
from profiler.published.studies import PASSES
from profiler.results.layer_passes import ALL_LAYERS, best_per_layer, layer_rows
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


_WITHOUT = "without cuDNN"


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


_REASONS = {"oom": "ran out of memory", "timeout": "took too long", "crashed": "crashed"}


def framework_own(evidence: Evidence) -> list[str]:
    return [*fastest(evidence), *ran_everything(evidence)]


def fastest(evidence: Evidence) -> list[str]:
    """A sentence a machine, pass and precision in which several variants ran: who wins on how many networks."""
    keys = ["machine", "pass", "precision"]
    found = []
    # Training first, and of the precisions that in which the source computed.
    # A time that the host sets is the most that the device can take: it counts where it wins all the same.
    least = pl.col("ms").filter(pl.col("disturbed").is_null()).min().over(*keys, "model")
    counts = sound() | (pl.col("disturbed").is_null() & (pl.col("ms") == least))
    # Nobody wins where one alone was tried, as in a run that was cut off.
    several = pl.col("variant").n_unique().over(*keys, "model") > 1
    rows = evidence.own.filter(several).filter(counts)
    rows = rows.sort("pass", pl.col("precision") == "fp32", descending=True, maintain_order=True)
    for (machine, pass_, precision), group in rows.group_by(keys, maintain_order=True):
        ran = dict(group.group_by("variant", maintain_order=True).agg(pl.col("model").n_unique()).iter_rows())
        if len(ran) < 2:
            continue
        first = group.sort("ms").unique("model", keep="first", maintain_order=True)
        won = first["variant"].value_counts().sort("count", "variant", descending=[True, False]).iter_rows()
        shares = [f"{variant} on {count} of {ran[variant]}" for variant, count in won]
        shares += [f"{variant} on 0 of {ran[variant]}" for variant in ran if variant not in set(first["variant"])]
        found.append(
            f"On {the(machine)}, {PASSES[str(pass_)]} in {precision}, the fastest variant is {shares[0]} networks that "
            f"it ran, {listed(shares[1:])}."
        )
    return found


def ran_everything(evidence: Evidence) -> list[str]:
    """A sentence a machine: what ran out of memory or failed, or that nothing did."""
    found = []
    for (machine,), rows in evidence.own.group_by("machine", maintain_order=True):
        failed = rows.filter(~pl.col("status").is_in(["ok", "unsupported"]))
        if failed.is_empty():
            number = rows["model"].n_unique()
            which = f"all {number} networks" if number > 1 else "the one network"
            # Rows that a library does not support are missing.
            ran = (
                f"{which} that {'were' if number > 1 else 'was'} asked for ran: "
                if (rows["status"] == "ok").all()
                else ""
            )
            found.append(f"On {the(machine)}, {ran}nothing was out of memory.")
            continue
        reason = pl.col("status").replace_strict(_REASONS, default="failed")
        by = failed.with_columns(reason=reason).group_by("software", "pass", "reason", maintain_order=True)
        names = [
            f"{software}, {PASSES[pass_]}, {why} on {listed(dict.fromkeys(of))}"
            for software, pass_, why, of in by.agg("published_network").iter_rows()
        ]
        found.append(f"On {the(machine)}, {'; '.join(names)}.")
    return found


def layers_own(evidence: Evidence) -> list[str]:
    """What picking the fastest variant of each layer and pass is worth in own rows, for each precision."""
    rows = layer_rows(evidence.results.filter(pl.col("model_kind") == "layer", pl.col("model").is_in(LAYERS)))
    keys = ["machine", "precision", "batch_size"]
    whole = rows.filter(pl.col("disturbed").is_null()).group_by(*keys, "variant", maintain_order=True)
    sums = whole.agg(pl.col("total_ms").sum(), pl.col("total_ms").count().alias("count")).filter(count=len(LAYERS))
    single = sums.sort("total_ms").unique(keys, keep="first", maintain_order=True)
    best = best_per_layer(rows).filter(pl.col("layer") == ALL_LAYERS, pl.col("disturbed").is_null())
    several = sums.group_by(keys).agg(pl.len().alias("variants")).filter(pl.col("variants") > 1)
    both = (
        single.join(best, on=keys, suffix="_best", maintain_order="left")
        .join(several, on=keys, how="semi")
        .drop_nulls("total_ms_best")
    )
    return [
        f"On {the(row['machine'])} in {row['precision']}, the fastest variant for each layer and pass takes "
        f"{decimals(row['total_ms_best'], 2)} ms for L1 to L5; {row['variant']}, the fastest single one, "
        f"{decimals(row['total_ms'], 2)} ms."
        for row in both.to_dicts()
    ]
