"""Check which library or framework is the fastest, which ran everything, and what the best of each layer is worth."""

from __future__ import annotations

import polars as pl

from profiler.published.claims.evidence import Evidence, sound
from profiler.published.conclusions import the
from profiler.published.layers import LAYERS
from profiler.published.studies import PASSES
from profiler.results.layer_passes import ALL_LAYERS, best_per_layer, layer_rows
from profiler.tables.numbers import decimals, listed

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
