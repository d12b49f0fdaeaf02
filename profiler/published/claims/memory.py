"""Answer by own rows what fits into memory, and what only one library can run."""

from __future__ import annotations

import polars as pl

from profiler.published import references
from profiler.published.claims.evidence import Claim, Evidence
from profiler.published.claims.speeds import ran_everything
from profiler.published.conclusions import the
from profiler.published.layers import LAYERS
from profiler.results.replicates import without_probes
from profiler.tables.numbers import compact, count, decimals, listed, milliseconds


def fit_own(evidence: Evidence) -> list[str]:
    """The peak memory of what was out of memory, next to the memory of those GPUs; then what was so in own rows."""
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
    return [*found, *ran_everything(evidence)]


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
    rows = without_probes(evidence.results).filter(
        pl.col("model").is_in(LAYERS), pl.col("pass") == "training", model_kind="layer", batch_size=128
    )
    found = []
    for (machine, layer), group in rows.drop_nulls("peak_memory_mib").group_by("machine", "model", maintain_order=True):
        ordered = group.sort("peak_memory_mib", maintain_order=True)
        least, most = ordered.row(0, named=True), ordered.row(-1, named=True)
        found.append((most["peak_memory_mib"] / least["peak_memory_mib"], machine, layer, least, most))
    if not found:
        return []
    factor, machine, layer, least, most = max(found, key=lambda one: one[0])
    return [
        f"On {the(machine)}, {layer} takes from {count(least['peak_memory_mib'])} MiB ({_variant(least)}) to "
        f"{count(most['peak_memory_mib'])} MiB ({_variant(most)}): {compact(factor, 2)} times as much."
    ]


def _variant(row: Claim) -> str:
    return f"{row['variant']} {row['precision']}"


def sizes() -> dict[str, float]:
    return dict(references.read("hardware").select("gpu", "memory_gb").iter_rows())


def _peaks(evidence: Evidence, network: str, batch_size: int) -> pl.DataFrame:
    """The lowest peak memory of a network among the variants in fp32, a row a machine; `least` says that of several.

    What searches for algorithms holds workspaces that a network does not need.
    """
    training = pl.col("pass") == "training"
    mine = evidence.own.filter(training, model=network, batch_size=batch_size, precision="fp32", status="ok")
    peaks = evidence.results.filter(training).with_columns(model=pl.coalesce("network", "model"))
    peaks = peaks.group_by("model", "variant", "precision", "batch_size", "machine").agg(
        pl.col("peak_memory_mib").median()
    )
    known = mine.join(
        peaks, on=["model", "variant", "precision", "batch_size", "machine"], maintain_order="left"
    ).drop_nulls("peak_memory_mib")
    searches = pl.when(variant="eager-benchmark").then(pl.lit(", workspaces of cuDNN's search included"))
    several = pl.when(pl.len().over("machine") > 1).then(pl.lit(", the least in fp32"))
    least = pl.coalesce(several, searches, pl.lit(""))
    ranked = known.with_columns(least=least).sort("peak_memory_mib", maintain_order=True)
    return ranked.unique("machine", keep="first", maintain_order=True)
