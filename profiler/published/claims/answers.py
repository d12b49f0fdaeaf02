"""Answer by own rows what is said of speed, of memory and of the minibatch.

With and without cuDNN, network against network, the fastest library; what fits, and what only one library can run; the
time per sample, more than twice the time, and how the curve bends.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

import polars as pl

from profiler.published import references, setups
from profiler.published.claims.evidence import Claim, Evidence
from profiler.published.conclusions import MODELS, Comparison, Subject, compare, span, the
from profiler.published.studies import PASSES
from profiler.published.tables import LAYERS
from profiler.results.cells import compared
from profiler.results.choice import choose
from profiler.results.ends import ends_of
from profiler.results.layer_passes import ALL_LAYERS, best_per_layer, layer_rows
from profiler.tables.numbers import compact, count, counted, decimals, listed, milliseconds, within

_MACHINES = Subject("machines")
_WITHOUT = "without cuDNN"
_REASONS = {"oom": "ran out of memory", "timeout": "took too long", "crashed": "crashed"}
UP, DOWN = "concave-up", "concave-down"
_MEANING = {DOWN: "falls faster than before it", UP: "falls more slowly than before it"}
_KNEE = 0.9
_BY = ["machine", "pass", "variant", "precision"]
_CURVE = [*_BY, "setup", "model"]
_TIMES = ("latency_ms", *ends_of("latency_ms"))
Outdone = tuple[int, str]
"""How many networks are both faster and more accurate than one, and the sentence that says which."""


def networks_own(evidence: Evidence) -> list[str]:
    """Which networks are both faster and more accurate than another: in the published rows, and on own machines."""
    found = [*_outdone(published(evidence), evidence, "On every published GPU"), *_on_own_machines(evidence)]
    return [sentence for _, sentence in found]


def most_outdone(evidence: Evidence) -> list[str]:
    """On own machines, what most networks outdo first."""
    return [sentence for _, sentence in sorted(_on_own_machines(evidence), key=lambda one: -one[0])]


def against_each_other(times: pl.DataFrame) -> list[Comparison]:
    """Every two networks, compared over the machines that ran both; `times` has one setup a machine and network."""
    name, machine = pl.col("published_network"), pl.col("machine")
    rows = times.with_columns(
        name=name, network=machine, published_network=machine, of=pl.lit(times["machine"].n_unique())
    )
    return [replace(pair, subject=_MACHINES, article=False) for pair in compare(rows, "name")]


def _on_own_machines(evidence: Evidence) -> list[Outdone]:
    if MODELS not in evidence.times:
        return []
    mine = evidence.times[MODELS].filter("ours", "counterpart").group_by("machine", maintain_order=True)
    return [one for (machine,), rows in mine for one in _outdone(rows, evidence, f"On {the(str(machine))}")]


def _outdone(times: pl.DataFrame, evidence: Evidence, where: str) -> list[Outdone]:
    """Of each network that others outdo, the fastest of them first."""
    errors = {evidence.name(network): error for network, error in evidence.errors.items()}
    if len(errors) < 2:
        return []
    # Within 5 % two are equal, as everywhere.
    pairs = [pair for pair in against_each_other(times) if pair.relation == ">" and pair.faster in errors]
    found = []
    for network, error in errors.items():
        by = [pair for pair in pairs if pair.slower == network and errors[pair.faster] < error]
        better = [f"{one.faster} ({span(one.low, one.high)} as fast, {percent(errors[one.faster])})" for one in by]
        if by:
            who = f"{counted(len(by), 'network')} {'is' if len(by) == 1 else 'are'} both faster and more accurate"
            than = f"{network} (top-5 error {percent(error)})"
            found.append((len(by), f"{where}, {who} than {than}: {listed(better)}."))
    return found


def published(evidence: Evidence) -> pl.DataFrame:
    """Of each published GPU a network's time with the newest release."""
    return setups.one_each(evidence.published.filter(device="cuda"), by_release=True)


def percent(error: float) -> str:
    return f"{decimals(error, 2)} %"


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
        for (machine,), both in mine.group_by("machine", maintain_order=True):
            if both["none"].n_unique() > 1:
                sides = (
                    (pair, {name.startswith(_WITHOUT) for name in (pair.faster, pair.slower)})
                    for pair in compare(both, "called")
                )
                pairs = [pair for pair, bare in sides if len(bare) > 1]
                found += [replace(p, subject=subject, machine=str(machine), article=False) for p in pairs]
    return [pair.sentence() for pair in found]


def fastest(evidence: Evidence) -> list[str]:
    """Say which of several variants is the fastest, by machine, pass and precision."""
    keys = ["machine", "pass", "precision"]
    found = []
    # Nobody wins where one alone was tried, as in a run that was cut off.
    several = pl.col("variant").n_unique().over(*keys, "model") > 1
    rows = evidence.own.filter(several).drop_nulls("ms")
    # Training first, and of the precisions that in which the source computed.
    rows = rows.sort("pass", pl.col("precision") == "fp32", descending=True, maintain_order=True)
    for (machine, pass_, precision), group in rows.group_by(keys, maintain_order=True):
        ran = dict(group.group_by("variant", maintain_order=True).agg(pl.col("model").n_unique()).iter_rows())
        won = Counter(variant for _, one in group.group_by("model", maintain_order=True) for variant in _leaders(one))
        ordered = sorted(ran, key=lambda variant: -won[variant])
        shares = [f"{variant} on {won[variant]} of {ran[variant]}" for variant in ordered]
        found.append(
            f"On {the(machine)}, {PASSES[str(pass_)]} in {precision}, the fastest variant is {shares[0]} networks that "
            f"it ran, {listed(shares[1:])}{_ties(won, group)}."
        )
    return found


def _leaders(cells: pl.DataFrame) -> list[str]:
    """Return the variants of a network that are the fastest: one, or those that are tied."""
    choice = choose(cells)
    return [row["variant"] for row in (choice.winner, *choice.tied) if row is not None]


def _ties(won: Counter[str], group: pl.DataFrame) -> str:
    return ", ties included" if won.total() > group["model"].n_unique() else ""


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
    whole = rows.group_by(*keys, "variant", maintain_order=True)
    sums = whole.agg(pl.col("total_ms").sum(), pl.col("total_ms").count().alias("count")).filter(count=len(LAYERS))
    several = sums.filter(pl.len().over(keys) > 1)
    single = several.sort("total_ms").unique(keys, keep="first", maintain_order=True)
    best = best_per_layer(rows).filter(pl.col("layer") == ALL_LAYERS)
    both = single.join(best, on=keys, suffix="_best", maintain_order="left").drop_nulls("total_ms_best")
    return [
        f"On {the(row['machine'])} in {row['precision']}, the fastest variant for each layer and pass takes "
        f"{decimals(row['total_ms_best'], 2)} ms for L1 to L5; {row['variant']}, the fastest single one, "
        f"{decimals(row['total_ms'], 2)} ms."
        for row in both.to_dicts()
    ]


def fit_own(evidence: Evidence) -> list[str]:
    """The peak memory of what was out of memory, next to the memory of those GPUs."""
    failing = [claim for claim in evidence.claims("fit") if claim["relation"] == "out of memory"]
    known, found = sizes(), []
    for network in reversed(dict.fromkeys(name for claim in failing for name in claim["networks"])):
        gpus = dict.fromkeys(claim["gpu"][0] for claim in failing if network in claim["networks"])
        where = listed(f"the {gpu} ({count(known[gpu])} GB)" for gpu in gpus)
        found += [
            f"{evidence.name(network)} with {row['batch_size']} images, which ran out of memory on {where}, takes "
            f"**{decimals(row['peak_memory_mib'] / 1024, 1)} GiB** at its peak on {the(row['machine'])} "
            f"({row['software']}{row['least']})."
            for row in _peaks(evidence, network, failing[0]["batch_size"]).to_dicts()
        ]
    return found


def support_own(evidence: Evidence) -> list[str]:
    networks = [network for claim in evidence.claims("support") for network in claim["networks"]]
    rows = evidence.own.filter(pl.col("model").is_in(networks), pl.col("ending").str.contains("no cuDNN"))
    return [
        f"On {the(row['machine'])}, {row['published_network']} runs without cuDNN, too: {row['software']} takes "
        f"{milliseconds(row['ms'])}."
        for row in rows.drop_nulls("ms").to_dicts()
    ]


def use_own(evidence: Evidence) -> list[str]:
    """The layer of which own variants' peak memory differs most."""
    rows = evidence.layers.filter(pl.col("pass") == "training", batch_size=128)
    ordered = rows.drop_nulls("peak_memory_mib").sort("peak_memory_mib", maintain_order=True)
    groups = ordered.group_by("machine", "model", maintain_order=True)
    ends = [(group.row(0, named=True), group.row(-1, named=True)) for _, group in groups]
    apart = [(most["peak_memory_mib"] / least["peak_memory_mib"], least, most) for least, most in ends]
    if not apart:
        return []
    factor, least, most = max(apart, key=lambda one: one[0])
    return [
        f"On {the(least['machine'])}, {least['model']} takes from {count(least['peak_memory_mib'])} MiB "
        f"({_variant(least)}) to {count(most['peak_memory_mib'])} MiB "
        f"({_variant(most)}): {compact(factor, 2)} times as much."
    ]


def _variant(row: Claim) -> str:
    return f"{row['variant']} {row['precision']}"


def sizes() -> dict[str, float]:
    return dict(references.read("hardware").select("gpu", "memory_gb").iter_rows())


def _peaks(evidence: Evidence, network: str, batch_size: int) -> pl.DataFrame:
    """The lowest peak memory of a network among the variants in fp32, a row a machine; `least` says that of several.

    What searches for algorithms holds workspaces that a network does not need.
    """
    own = evidence.own.drop_nulls("peak_memory_mib").filter(pl.col("pass") == "training", precision="fp32")
    searches = pl.when(variant="eager-benchmark").then(pl.lit(", workspaces of cuDNN's search included"))
    several = pl.when(pl.len().over("machine") > 1).then(pl.lit(", the least in fp32"))
    least = pl.coalesce(several, searches, pl.lit(""))
    known = own.filter(model=network, batch_size=batch_size).with_columns(least=least)
    ranked = known.sort("peak_memory_mib", maintain_order=True)
    return ranked.unique("machine", keep="first", maintain_order=True)


def _groups(rows: pl.DataFrame) -> Iterator[tuple[str, pl.DataFrame]]:
    """Those of one machine, pass and variant, with what to call it; training first."""
    ordered = rows.sort("pass", descending=True, maintain_order=True)
    for (machine, pass_, *_), group in ordered.group_by(_BY, maintain_order=True):
        yield f"On {the(str(machine))}, {PASSES[str(pass_)]}", group


def per_sample_own(evidence: Evidence) -> list[str]:
    """For each machine, pass and variant: at how many steps to a larger minibatch the time per sample surely fell."""
    each = {name: pl.col(name) / pl.col("batch_size") for name in _TIMES}
    swept = evidence.swept.drop_nulls("latency_ms").select(*_CURVE, "batch_size", "clock", **each)
    before = {f"{name}_before": pl.col(name).shift().over(_CURVE) for name in (*_TIMES, "clock")}
    steps = swept.with_columns(**before).drop_nulls("latency_ms_before")
    steps = steps.hstack(compared(steps, base="_before"))
    found = []
    for where, group in _groups(steps):
        rest = group.filter(pl.col("factor_low") <= 1)
        sizes = rest.group_by("model", maintain_order=True).agg("batch_size").iter_rows()
        not_at = [f"{evidence.name(model)} at {listed(of)}" for model, of in sizes]
        but = f"; not surely for {listed(not_at)}" if not_at else ""
        found.append(
            f"{where}, a larger minibatch took less time per sample in "
            f"{len(group) - len(rest)} of {len(group)} steps from one minibatch to the next{but}."
        )
    return found


def excess_own(evidence: Evidence) -> list[str]:
    found = []
    for claim in evidence.claims("ms_above_twice"):
        half, whole = (int(claim[side].removeprefix("batch ")) for side in ("from", "to"))
        mine = evidence.swept.drop_nulls("ms").filter(pl.col("model") == claim["networks"][0])
        for _, group in mine.filter(pl.col("pass") == "training").group_by(_CURVE, maintain_order=True):
            rows = {row["batch_size"]: row for row in group.to_dicts()}
            if {half, whole} <= set(rows):
                excess, row = rows[whole]["ms"] - 2 * rows[half]["ms"], rows[whole]
                found.append(
                    f"On {the(row['machine'])}, training {evidence.name(row['model'])}, {whole} images take "
                    f"{_time(row)}: {decimals(abs(excess), 2)} ms {'more' if excess > 0 else 'less'} "
                    f"than twice the {_time(rows[half])} of {half}."
                )
    return found


def _time(row: Claim) -> str:
    return within(row["ms"], row["low_ms"], row["high_ms"], "ms")


def bend_own(evidence: Evidence) -> list[str]:
    """For each machine and pass how the curves bend at that size, and where each bends most."""
    (size,) = {claim["batch_size"] for claim in evidence.claims("curvature")}
    found = []
    for where, group in _groups(bends(evidence.swept)):
        there = group.filter(batch_size=size)
        shapes = {shape: there.filter(shape=shape)["model"].to_list() for shape in _MEANING}
        words = [
            f"{_MEANING[shape]} ({shape}) for {listed(map(evidence.name, of))}" for shape, of in shapes.items() if of
        ]
        if not words:
            continue
        found.append(
            f"{where}, after a minibatch of {size} the time per sample {' and '.join(words)}; it bends most at "
            f"{_most(group.join(there, on='model', how='semi', maintain_order='left'), evidence)}."
        )
    return found


def bends(swept: pl.DataFrame) -> pl.DataFrame:
    """Return one row a batch between two others of its curve: the curve's second difference there, as `curvature`.

    The curve is the time per sample against log2 of the batch. `shape` is in the source's words, or null where the
    second difference is within the half-width of its 95 % interval, which follows from those of the three times.
    """
    doublings = pl.col("batch_size").log(2)
    before, after = doublings - doublings.shift().over(_CURVE), doublings.shift(-1).over(_CURVE) - doublings
    # Divided differences, since batches need not be doublings.
    mean = (before + after) / 2
    weights = {1: 1 / before / mean, 0: -(1 / before + 1 / after) / mean, -1: 1 / after / mean}
    each, width = pl.col("ms") / pl.col("batch_size"), (pl.col("high_ms") - pl.col("low_ms")) / 2 / pl.col("batch_size")
    bend = [weight * each.shift(place).over(_CURVE) for place, weight in weights.items()]
    squares = [(weight * width.shift(place).over(_CURVE)) ** 2 for place, weight in weights.items()]
    found = swept.drop_nulls("ms").with_columns(
        curvature=pl.sum_horizontal(bend, ignore_nulls=False),
        noise=pl.sum_horizontal(squares, ignore_nulls=False).sqrt(),
    )
    up, down = pl.col("curvature") > pl.col("noise"), pl.col("curvature") < -pl.col("noise")
    shape = pl.when(up).then(pl.lit(UP)).when(down).then(pl.lit(DOWN))
    return found.drop_nulls("curvature").select(*_CURVE, "batch_size", "curvature", "noise", shape=shape)


def _most(bends: pl.DataFrame, evidence: Evidence) -> str:
    """Where each network bends most, like "2 (AlexNet and Overfeat) and 4 (VGG)"."""
    biggest = bends.sort(pl.col("curvature").abs(), descending=True, maintain_order=True)
    places = biggest.unique("model", keep="first").group_by("batch_size").agg("model").sort("batch_size").iter_rows()
    in_order = list(evidence.names)
    return listed(
        f"{batch} ({listed(evidence.name(model) for model in sorted(of, key=in_order.index))})" for batch, of in places
    )


def knees(evidence: Evidence) -> list[str]:
    """For each machine and pass the least and the greatest of the networks' smallest efficient minibatches."""
    rate, size = pl.col("throughput"), pl.col("batch_size")
    curves = evidence.swept.drop_nulls("throughput").group_by(_CURVE, maintain_order=True)
    knee = size.filter(rate >= _KNEE * rate.max()).min()
    found = []
    for where, group in _groups(curves.agg(knee=knee, largest_batch=size.max())):
        low, high = (group.sort("knee", descending=down).row(0, named=True) for down in (False, True))
        ends = dict.fromkeys(f"{row['knee']} ({evidence.name(row['model'])})" for row in (low, high))
        tried = max(group["largest_batch"].to_list())
        found.append(
            f"{where}, the smallest minibatch with 90 % of the best throughput of those up to {tried} is "
            f"{' to '.join(ends)}."
        )
    return found
