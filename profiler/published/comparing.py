"""Compare own rows with a study's published ones: five conclusions, a matrix of ratios, and its claims as of today."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import polars as pl

from exporters.catalog import LAYERS
from profiler.published import references
from profiler.published.studies import STUDIES
from profiler.published.times import NOT_MEASURED, cost_rows, per_image
from profiler.results.cells import compared
from profiler.tables import numbers
from profiler.tables.numbers import compact, listed, milliseconds, times
from profiler.tables.table import Section, Table, figure, prose, words
from profiler.tables.writers import MARK

MATRIX = "How many times as fast"
CLAIMS = "What the source states, and what the rows say"
CONCLUSIONS = 5
OWN = f"{MARK}\u00a0{{}}"
"""The heading of a column of ours; on a terminal it does not break after the sign."""
Claim = Mapping[str, Any]
_KEYS = ("network", "pass", "key")
_WITHOUT_CUDNN = pl.col("implementation").str.starts_with("eager-nocudnn")


def per_network(name: str, rows: pl.DataFrame, layers: pl.DataFrame) -> pl.DataFrame:
    """Return the rows of networks and layers with a time per image; `side` tells what ran them where.

    `key` is the batch size in a sweep.
    """
    study, library = STUDIES[name], pl.col("library")
    rows = pl.concat([rows, _layer_totals(layers)], how="diagonal_relaxed") if "layers" in study.tables else rows
    if study.by_release:
        release = pl.when(library="None").then(pl.lit("no cuDNN")).otherwise("cuDNN " + library)
        library = pl.when("ours").then(library).otherwise(release)
    side = pl.concat_str(
        "machine", library, *["implementation"] * ("implementation" in study.columns), separator=", ", ignore_nulls=True
    )
    rows = per_image(rows).drop_nulls("latency_ms")
    return rows.with_columns(side=side, key=pl.when("swept").then("batch_size"))


def matrix(rows: pl.DataFrame) -> list[Section]:
    """Compare every side with each published one, and with what stands for these on our machines.

    A cell is the geometric mean of the ratios over all networks that both ran, and their range, to the ends of the 95 %
    intervals.
    """
    columns = rows.filter(~pl.col("ours") | pl.col("counterpart")).sort("ours", maintain_order=True)
    both = _pairs(rows, columns, (*_KEYS, "device")).filter(pl.col("side") != pl.col("side_base"))
    ratios = both.group_by("side", "ours", "side_base", maintain_order=True).agg(
        middle=pl.col("factor").log().mean().exp(), low=pl.col("factor_low").min(), high=pl.col("factor_high").max()
    )
    if ratios.is_empty():
        return []
    wide = ratios.pivot("side_base", index=["side", "ours"], values=["middle", "low", "high"], maintain_order=True)
    ours = dict(columns.select("side", "ours").rows())
    bases = [side for side in ours if f"middle_{side}" in wide.columns]
    fields = [
        figure(OWN.format(side) if ours[side] else side, tuple(f"{part}_{side}" for part in ("middle", "low", "high")),
               numbers.factors)
        for side in bases
    ]  # fmt: skip
    text = (
        "The row's speed over the column's: geometric mean over all networks or layers that both ran, with the range "
        "of the ratios, intervals included; per image, GPUs and CPUs apart."
    )
    return [Section(MATRIX, [text], [Table("matrix", "", wide, [words("×", "side"), *fields], marked="ours")])]


def sentence(subject: str, rows: pl.DataFrame, other: str, bases: pl.DataFrame) -> str:
    """Say in which range of factors rows are faster than others, of the same networks; empty if they share none.

    They are "faster" only if the whole interval of every ratio says so.
    """
    both = _pairs(rows, bases)
    if both.is_empty():
        return ""
    names = both["published_network"].fill_null(both["network"]).unique(maintain_order=True).to_list()
    kind = "layers" if names[0] in LAYERS else "networks"
    word = "faster than" if both["factor_low"].min() > 1 else "as fast as"  # type: ignore[operator]
    over = names[0] if len(names) == 1 else f"each of {len(names)} {kind}"
    return f"{subject} is {_range(both['factor'])} {word} {other} on {over}."


def conclusions(rows: pl.DataFrame) -> list[str]:
    """Draw the source's kind of conclusions from own rows, the broadest first and GPUs before CPUs."""
    published, ours = rows.filter(~pl.col("ours")), rows.filter("ours")
    standing = ours.filter("counterpart").sort("device", descending=True, maintain_order=True)
    machines = standing.partition_by("machine", maintain_order=True)
    drawn: list[tuple[int, str, pl.DataFrame, str, pl.DataFrame]] = []
    for own in machines:
        machine, device, variant = own.select("machine", "device", "implementation").row(0)
        mine, same = ours.filter(machine=machine), published.filter(device=device)
        called = f"{machine} ({variant} fp32)"
        units = {"cuda": "GPU", "cpu": "CPU"} if published["machine"].n_unique() > 1 else {device: "library"}
        if same["network"].n_unique() > 1:
            drawn.append((0, f"The {called}", own, f"the fastest published {units[device]}", fastest(same)))
        if units[device] == "GPU":
            # The fastest of those that ran most networks.
            of_side = same.group_by("side").agg(pl.len(), speed=-pl.col("latency_ms").log().mean())
            best = of_side.sort("len", "speed")["side"][-1]
            drawn.append((1, f"The {machine}", own, f"the {best}", same.filter(side=best)))
        drawn.append((2, f"On the {machine}, cuDNN", own, "PyTorch without it", mine.filter(_WITHOUT_CUDNN)))
        sizes = {size: own.filter(key=size).with_columns(key=None) for size in own["key"].drop_nulls().unique().sort()}
        for least in [size for size in (min(sizes, default=0), 8, 64) if size in sizes and size < max(sizes)]:
            most = f"Per image, the {machine} with {max(sizes)} at a time"
            drawn.append((2, most, sizes[max(sizes)], f"with {least}", sizes[least]))
        if device == "cuda":
            slower = ((theirs, theirs["machine"][0]) for theirs in machines if theirs["device"][0] == "cpu")
            drawn += [(3, f"Per image, the {machine}", own, f"the {other}", theirs) for theirs, other in slower]
        if mine["side"].n_unique() > 1:
            drawn.append((4, f"The {machine} in its fastest configuration", fastest(mine), f"the {called}", own))
        others = mine.filter(~pl.col("counterpart")).partition_by("side", maintain_order=True)
        drawn += [(5, its["side"][0], its, str(variant), own) for its in others]
    said = [sentence(*parts[1:]) for parts in sorted(drawn, key=lambda parts: parts[0])]
    return [text for text in said if text]


def prices(name: str, results: pl.DataFrame) -> list[str]:
    """Say what a million images cost on each machine whose price is known, in the cheapest way for each network."""
    if "cost" not in STUDIES[name].tables:
        return []
    costs, said = cost_rows(name, results).drop_nulls("usd_per_million_items"), []
    for (machine, price), rows in costs.group_by("machine", "usd_per_hour", maintain_order=True):
        least = rows.group_by("pass", "network").agg(usd=pl.col("usd_per_million_items").min())
        parts = [
            f"{compact(of['usd'][0], 2)} to {compact(of['usd'][-1], 2)} USD to {word}"
            for pass_, word in (("inference", "classify"), ("training", "train on"))
            if (of := least.filter(pl.col("pass") == pass_).sort("usd")).height
        ]
        cost = listed(parts)
        said.append(f"On the {machine}, at {compact(float(str(price)))} USD an hour, a million images cost {cost}.")
    return said


def claims(name: str, rows: pl.DataFrame) -> list[Section]:
    """List the source's statements: what its rows say (references/conclusions.csv), and what ours do."""
    frame, ours = references.read("conclusions").filter(source=name), rows.filter("ours")
    today = [
        _TODAY[claim["kind"]](claim, ours) if claim["kind"] in _TODAY else "" for claim in frame.iter_rows(named=True)
    ]
    frame = frame.with_columns(today=pl.Series([text or NOT_MEASURED for text in today], dtype=pl.String))
    fields = [words("Verdict", "verdict"), prose("Statement", "statement"), prose("Its rows", "answer")]
    return [Section(CLAIMS, (), [Table("claims", "", frame, [*fields, prose(OWN.format("Today"), "today")])])]


def _ratio_today(claim: Claim, ours: pl.DataFrame) -> str:
    slow, fast = claim["from"], claim["to"]
    gpus, cpus = (ours.filter("counterpart", device=kind) for kind in ("cuda", "cpu"))
    if claim["kind"] == "network_speed":
        both = _pairs(gpus.filter(network=fast), gpus.filter(network=slow), ("pass", "side"))
    elif slow == "nn":
        both = _pairs(gpus, ours.filter(_WITHOUT_CUDNN), (*_KEYS, "machine"))
    elif slow.startswith("CPU"):
        both = _pairs(gpus, cpus)
    else:
        both = _pairs(ours.filter("counterpart", machine=fast), ours.filter("counterpart", machine=slow))
    printed = f"printed {_range(pl.Series([claim['low'], claim['high']]))}; " if claim["low"] else ""
    return f"{printed}today {_range(both['factor'])}" if both.height else ""


def _fit_today(claim: Claim, ours: pl.DataFrame) -> str:
    networks = claim["networks"].split("; ")
    ran = ours.filter(_WITHOUT_CUDNN if claim["kind"] == "support" else True, device="cuda")
    ran = ran.filter(pl.col("network").is_in(networks))
    how = " without it" if claim["kind"] == "support" else ""
    count = f"{ran['network'].n_unique()} of {len(networks)}"
    return f"today {count} run{how} on the {ran['machine'][0]}" if ran.height else ""


def _best_today(claim: Claim, ours: pl.DataFrame) -> str:
    """Name the fastest of ours in the first pass: of a network, or of the sums over all layers."""
    column, networks = f"{claim['pass'].partition(';')[0]}_ms", [claim["networks"]] if claim["networks"] else [*LAYERS]
    of = ours.filter(pl.col("network").is_in(networks), device="cuda").drop_nulls("total_ms").group_by("side")
    best = of.agg(pl.len(), pl.col(column).sum()).filter(len=len(networks)).sort(column).select("side", column).rows()
    return f"today {best[0][0]}, {milliseconds(best[0][1])}" if best else ""


def _sum_today(claim: Claim, ours: pl.DataFrame) -> str:
    column = {"gradInput": "grad_input_ms", "gradWeight": "grad_weight_ms"}.get(claim["pass"], f"{claim['pass']}_ms")
    layers = ours.filter(pl.col("network").is_in(list(LAYERS)), device="cuda")
    lowest = layers.group_by("network").agg(pl.col(column).min())[column].to_list()
    said = f"printed {compact(claim['low'])} ms; today {milliseconds(sum(lowest))}"
    return said if len(lowest) == len(LAYERS) else ""


def _sweep_today(claim: Claim, ours: pl.DataFrame) -> str:
    rows = ours.filter("counterpart", pl.col("key").is_not_null(), device="cuda")
    pairs = _pairs(rows.with_columns(key=pl.col("key") // 2), rows)
    if claim["kind"] == "time_per_sample":
        return f"today less at {(pairs['factor'] > 1).sum()} of {pairs.height} doublings" if pairs.height else ""
    took = pairs.filter(pl.col("pass") == "training", network=claim["networks"], key=64)
    more = (took["total_ms"] - 2 * took["total_ms_base"]).to_list()
    return f"printed almost {compact(claim['low'])} ms; today {more[0]:.2f} ms" if more else ""


_TODAY: Mapping[str, Callable[[Claim, pl.DataFrame], str]] = {
    **dict.fromkeys(("speed", "network_speed"), _ratio_today),
    **dict.fromkeys(("fit", "support"), _fit_today),
    **dict.fromkeys(("ms_above_twice", "time_per_sample"), _sweep_today),
    "best": _best_today,
    "best_per_layer": _sum_today,
}
"""By a claim's kind what own GPUs' rows say of it; empty if they say nothing."""


def _pairs(rows: pl.DataFrame, bases: pl.DataFrame, keys: Sequence[str] = _KEYS) -> pl.DataFrame:
    both = rows.join(bases, on=list(keys), suffix="_base", nulls_equal=True, maintain_order="left_right")
    return both.hstack(compared(both))


def fastest(rows: pl.DataFrame) -> pl.DataFrame:
    return rows.sort("latency_ms").unique(list(_KEYS), keep="first", maintain_order=True)


def _range(factors: pl.Series) -> str:
    """Write the least and the greatest factor as the sources do: 1.31x to 1.43x."""
    ends = [times(end, sign="x") for end in factors.sort().gather([0, -1])]
    return " to ".join(dict.fromkeys(ends))


def _layer_totals(own: pl.DataFrame) -> pl.DataFrame:
    """Return the layers as rows of `study_times`: forward, gradInput and gradWeight together."""
    both = references.layers().filter(
        pl.col("table").is_in(["forward", "backward"]), pl.col("library") != "cherry-picking"
    )
    keys = ["machine", "library", "implementation", "batch_size"]
    long = both.unpivot(list(LAYERS), index=["table", *keys], variable_name="layer")
    total = pl.when(pl.col("value").count() == 2).then(pl.col("value").sum()).first()
    published = long.group_by([*keys, "layer"], maintain_order=True).agg(total_ms=total).with_columns(
        ours=pl.lit(value=False), counterpart=pl.lit(value=False), low_ms="total_ms", high_ms="total_ms"
    )  # fmt: skip
    rows = pl.concat([published, own.drop_nulls("total_ms")], how="diagonal_relaxed").with_columns(
        pl.lit("training").alias("pass"), network="layer", swept=pl.lit(value=False)
    )
    return rows.with_columns(pl.col("device").fill_null("cuda"))
