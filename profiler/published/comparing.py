"""Compare our rows with a study's published ones: five conclusions, a matrix of ratios, and its claims as of today."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import polars as pl

from exporters.catalog import LAYERS
from profiler.published import references
from profiler.published.studies import STUDIES, Study
from profiler.published.times import BEST_PER_LAYER, NOT_MEASURED, PASSES, TOTALS, break_even, cost_rows
from profiler.results.cells import compared
from profiler.tables.numbers import compact, count, counted, listed, mean_factors, milliseconds, natural, times
from profiler.tables.table import Section, Table, figure, prose, words
from profiler.tables.writers import MARK

MATRIX = "How many times as fast"
OWN = f"{MARK}\u00a0{{}}"
"""The heading of a column of ours; a terminal does not break it after the sign."""
Claim = Mapping[str, Any]
_USES = {"inference": "classify", "training": "train on"}
_LEADS = {"faster": "proven", "unclear": "unclear", "equivalent": "within the margin", None: "without an interval"}
"""Words for the verdict of the first library over the second."""
_KEYS = ("network", "pass", "key")
_WITHOUT_CUDNN = pl.col("implementation").str.starts_with("eager-nocudnn")
_TIMED = (pl.col("device") == "cpu") | pl.col("gpu_ms").is_not_null()
"""True for rows with a time on their device's clock. Our sweeps compare sizes by it, and some GPU rows lack it."""
_SWEEP_CLAIMS = ("time_per_sample", "ms_above_twice", "curvature")


def per_network(name: str, rows: pl.DataFrame, layers: pl.DataFrame) -> pl.DataFrame:
    """Return rows of networks and layers with a time per image, their `side`, and a sweep's batch size as `key`."""
    study, library = STUDIES[name], pl.col("library")
    if "layers" in study.tables:
        single = (pl.col("layer") != "total") & pl.col("implementation").ne_missing(BEST_PER_LAYER)
        layers = layers.filter(single).with_columns(
            pl.lit("training").alias("pass"), network="layer", swept=pl.lit(value=False),
            gpu_ms=pl.lit(None, pl.Float64), published_network=pl.lit(None, pl.String), note=pl.lit(None, pl.String),
        )  # fmt: skip
        # Keep the kinds that we measured: layers, networks or both.
        both = (layers, rows)
        rows = pl.concat([frame for frame in both if frame["ours"].any()] or both, how="diagonal_relaxed")
    if study.by_release:
        library = release()
    named = ["machine", library, *["implementation"] * ("implementation" in study.columns)]
    side = pl.concat_str(named, separator=", ", ignore_nulls=True)
    # Published figures have no intervals.
    totals = {cell: pl.when("ours").then(total).otherwise("total_ms") for total, cell in TOTALS.items()}
    per_image = {cell: total / pl.col("batch_size") for cell, total in totals.items()}
    return rows.with_columns(**per_image, side=side, key=pl.when("swept").then("batch_size")).drop_nulls("latency_ms")


def release() -> pl.Expr:
    """Name a published row by its cuDNN, a row of ours by its library."""
    named = pl.when(library="None").then(pl.lit("no cuDNN")).otherwise("cuDNN " + pl.col("library"))
    return pl.when("ours").then("library").otherwise(named)


def represented(rows: pl.DataFrame, study: Study) -> pl.DataFrame:
    """Keep our rows, and one published row per machine and network: its newest release or fastest library.

    A published row's `side` becomes its machine. A single machine keeps a row per library, under the library's name.
    """
    published = rows.filter(~pl.col("ours"))
    if published["machine"].n_unique() < 2:
        side = pl.concat_str("library", "implementation", separator=", ", ignore_nulls=True)
    else:
        # Sort 2.9 before 2.11, and rows without a library first.
        newest = pl.col("library").replace("None", "").map_elements(natural, return_dtype=pl.String)
        order = newest if study.by_release else pl.col("latency_ms")
        published = published.sort(order, descending=study.by_release, maintain_order=True)
        keys, side = ["machine", "network", "batch_size", "swept"], pl.col("machine")
        published = published.unique(keys, keep="first", maintain_order=True)
    return pl.concat([rows.filter("ours"), published.with_columns(side=side)])


def matrix(rows: pl.DataFrame) -> list[Section]:
    """Compare every side with each published one and with our counterparts.

    A cell is the geometric mean of the ratios over the networks that both ran, and their range, to the ends of the 95 %
    intervals.
    """
    columns = rows.filter(~pl.col("ours") | pl.col("counterpart")).sort("ours", maintain_order=True)
    both = _pairs(rows, columns, (*_KEYS, "device")).filter(pl.col("side") != pl.col("side_base"))
    is_known = pl.col("factor_low").null_count() == 0
    ratios = both.group_by("side", "ours", "side_base", maintain_order=True).agg(
        middle=pl.col("factor").log().mean().exp(),
        low=pl.when(is_known).then(pl.col("factor_low").min()),
        high=pl.when(is_known).then(pl.col("factor_high").max()),
    )
    parts = ["middle", "low", "high"]
    wide = ratios.pivot("side_base", index=["side", "ours"], values=parts, maintain_order=True)
    fields = [words("×", "side")] + [
        figure(OWN.format(side) if ours else side, tuple(f"{part}_{side}" for part in parts), mean_factors)
        for side, ours in columns.select("side", "ours").unique(maintain_order=True).rows()
        if f"middle_{side}" in wide.columns
    ]
    text = (
        "The row's speed over the column's: geometric mean over all networks or layers that both ran, with the range "
        "of the ratios, intervals included (±? if one is unknown); per image, GPUs and CPUs apart."
    )
    return [Section(MATRIX, [text], [Table("matrix", "", wide, fields, marked="ours")] if wide.height else [])]


def difference_sentence(subject: str, rows: pl.DataFrame, other: str, bases: pl.DataFrame) -> str:
    """State the range of factors between rows and others of the same networks; empty without a common network.

    Rows are "faster" only if the whole interval of every ratio lies above 1.
    """
    both = _pairs(rows, bases)
    if both.is_empty():
        return ""
    names = both["published_network"].fill_null(both["network"]).unique(maintain_order=True).to_list()
    kind = "layers" if names[0] in LAYERS else "networks"
    word = "faster than" if both["factor_low"].fill_null(0.0).min() > 1 else "as fast as"  # type: ignore[operator]
    over = names[0] if len(names) == 1 else f"each of {len(names)} {kind}"
    return f"{subject} is {_range(both['factor'])} {word} {other} on {over}."


def conclusions(name: str, results: pl.DataFrame, rows: pl.DataFrame) -> list[str]:
    """Draw up to five conclusions like the source's from our rows, the broadest first and GPUs before CPUs."""
    published, ours = rows.filter(~pl.col("ours")), rows.filter("ours")
    counterparts = ours.filter("counterpart").sort("device", descending=True, maintain_order=True)
    machines = counterparts.partition_by("machine", maintain_order=True)
    drawn: list[tuple[int, str, pl.DataFrame, str, pl.DataFrame]] = []
    for usual in machines:
        machine, device, variant = usual.select("machine", "device", "implementation").row(0)
        mine, theirs = ours.filter(machine=machine), published.filter(device=device)
        called = f"{machine} ({variant} fp32)"
        units = {"cuda": "GPU", "cpu": "CPU"} if published["machine"].n_unique() > 1 else {device: "library"}
        if theirs["network"].n_unique() > 1:
            drawn.append((0, f"The {called}", usual, f"the fastest published {units[device]}", fastest(theirs)))
        if units[device] == "GPU":
            # The fastest of those that ran most networks.
            of_side = theirs.group_by("side").agg(pl.len(), speed=-pl.col("latency_ms").log().mean())
            best = of_side.sort("len", "speed")["side"][-1]
            drawn.append((1, f"The {machine}", usual, f"the {best}", theirs.filter(side=best)))
        drawn.append((2, f"On the {machine}, cuDNN", usual, "PyTorch without it", mine.filter(_WITHOUT_CUDNN)))
        timed = usual.filter(_TIMED)
        sizes = {size: timed.filter(key=size).with_columns(key=None) for size in timed["key"].drop_nulls().unique()}
        largest = max(sizes, default=0)
        for size in [size for size in (min(sizes, default=0), 8, 64) if size in sizes and size < largest]:
            subject = f"Per image, the {machine} with {largest} at a time"
            drawn.append((2, subject, sizes[largest], f"with {size}", sizes[size]))
        if mine["side"].n_unique() > 1:
            drawn.append((4, f"The {machine} in its fastest configuration", fastest(mine), f"the {called}", usual))
        others = mine.filter(~pl.col("counterpart")).partition_by("side", maintain_order=True)
        drawn += [(5, other["side"][0], other, str(variant), usual) for other in others]
    sentences = [difference_sentence(*parts[1:]) for parts in sorted(drawn, key=lambda parts: parts[0])]
    first = _winners(ours) if "frameworks" in STUDIES[name].tables else _prices(name, results, published)
    return [text for text in (*first, *sentences) if text][:5]


def _winners(ours: pl.DataFrame) -> list[str]:
    """Count the networks on which each library leads, by machine and pass, and the verdicts on its leads."""
    texts, rows = [], ours.filter(~pl.col("swept")).sort("device", descending=True, maintain_order=True)
    for (machine, pass_), part in rows.group_by("machine", "pass", maintain_order=True):
        ranked = part.sort("latency_ms").with_columns(rank=pl.int_range(pl.len()).over("network"))
        both = _pairs(ranked.filter(rank=0), ranked.filter(rank=1), ("network",))
        counts = both["library"].value_counts(sort=True).sort("count", "library", descending=[True, False]).rows()
        if both.height:
            leads = [f"{library} leads on {won}" for library, won in counts]
            judged = {word: both["verdict"].eq_missing(verdict).sum() for verdict, word in _LEADS.items()}
            verdicts = "the lead is " + ", ".join(f"{word} on {number}" for word, number in judged.items() if number)
            networks = f"On the {machine}, {PASSES[str(pass_)]}, {counted(both.height, 'network')}"
            texts.append(f"{networks}: {'; '.join([*leads, verdicts])}.")
    return texts


def _prices(name: str, results: pl.DataFrame, published: pl.DataFrame) -> list[str]:
    """State each priced machine's cost of a million images, with the cheapest configuration for each network."""
    costs, texts = cost_rows(name, results).drop_nulls("usd_per_million_items"), []
    for (machine, price), rows in costs.group_by("machine", "usd_per_hour", maintain_order=True):
        usd = pl.col("usd_per_million_items")
        cheapest = rows.group_by("pass", "network").agg(usd.min())
        ends = cheapest.group_by("pass").agg(low=usd.min(), high=usd.max()).sort("pass").rows()
        cost = listed(f"{compact(low, 2)} to {compact(high, 2)} USD to {_USES[pass_]}" for pass_, low, high in ends)
        texts.append(f"On the {machine}, at {compact(float(str(price)))} USD an hour, a million images cost {cost}.")
    for (machine,), cards in break_even(costs, published).group_by("machine", maintain_order=True):
        ends = cards.select("gpu", "usd_low", "usd_high").rows()
        prices = [f"the {gpu} at {compact(low, 2)} to {compact(high, 2)}" for gpu, low, high in ends]
        texts.append(f"To train as cheaply as the {machine}, in USD an hour by network: {listed(prices)}.")
    return texts


def claims(name: str, rows: pl.DataFrame, layers: pl.DataFrame) -> list[Section]:
    """Compare the source's statements (references/conclusions.csv) with its rows, and with ours on the same subject."""
    frame, ours = references.read("conclusions").filter(source=name), rows.filter("ours")
    of_sweeps, of_layers = pl.col("kind").is_in(_SWEEP_CLAIMS), pl.col("layer").is_not_null()
    others = ours.filter(~pl.col("swept") & ~pl.col("network").is_in(list(LAYERS))).height > 0
    subject = pl.when(of_layers).then(pl.lit(layers["ours"].any())).when(of_sweeps).then(pl.lit(ours["swept"].any()))
    frame = frame.filter(subject.otherwise(pl.lit(others)))
    layers = layers.filter("ours", device="cuda", precision="fp32")
    today = [_today(claim, ours, layers) or NOT_MEASURED for claim in frame.iter_rows(named=True)]
    frame = frame.with_columns(today=pl.Series(today, dtype=pl.String))
    fields = [words("Verdict", "verdict"), prose("Statement", "statement"), prose("Its rows", "answer")]
    fields.append(prose(OWN.format("Today"), "today"))
    text = "A printed range holds if the range of the rows, rounded alike, lies within it."
    return [Section("What the source states, and what the rows say", [text], [Table("claims", "", frame, fields)])]


def _today(claim: Claim, ours: pl.DataFrame, layers: pl.DataFrame) -> str:
    """Answer a claim from our rows and fp32 layers, or return "". A claim without networks is about the layers."""
    kind, gpus = claim["kind"], ours.filter(device="cuda")
    networks = claim["networks"].split("; ") if claim["networks"] else [*LAYERS]
    named, swept = gpus.filter(pl.col("network").is_in(networks)), gpus.filter("counterpart", "swept", _TIMED)
    if kind in ("speed", "network_speed") and (ratios := _ratios_today(claim, ours)).len():
        printed = f"printed {_range(pl.Series([claim['low'], claim['high']]))}; " if claim["low"] else ""
        return f"{printed}today {_range(ratios)}"
    if kind in ("fit", "support") and (ran := named.filter(_WITHOUT_CUDNN | pl.lit(kind == "fit"))).height:
        runs = "it runs" if len(networks) == 1 else f"{ran['network'].n_unique()} of {len(networks)} run"
        return f"today {runs}{' without it' * (kind == 'support')} on the {ran['machine'][0]}"
    if kind == "best":
        # Compare in the claim's first pass, and in fp32 like the source.
        part = pl.col(f"{claim['pass'].partition(';')[0]}_ms")
        sums = named.filter(part.is_not_null(), precision="fp32").group_by("side").agg(pl.len(), part.sum().alias("ms"))
        best = sums.filter(len=len(networks)).sort("ms").select("side", "ms").rows()
        return f"today {best[0][0]}, {milliseconds(best[0][1])}" if best else ""
    if kind == "best_per_layer":
        part = pl.col(references.LAYER_PARTS.get(claim["pass"], "total_ms"))
        lowest = layers.filter(implementation=BEST_PER_LAYER).group_by("layer").agg(part.min().alias("ms"))
        times_ms = lowest["ms"].drop_nulls().to_list()
        text = f"printed {compact(claim['low'])} ms; today {milliseconds(sum(times_ms))}"
        return text if len(times_ms) == len(LAYERS) else ""
    if kind == "memory_use":
        peaks = layers.group_by("library", "implementation").agg(pl.col("peak_memory_mib").max()).drop_nulls()
        ends = peaks.sort("peak_memory_mib", "implementation").rows()
        texts = [f"{count(mib)} MiB ({library}, {variant})" for library, variant, mib in (*ends[:1], *ends[1:][-1:])]
        return f"today from {' to '.join(texts)}" if texts else ""
    doubled = _pairs(swept.with_columns(key=pl.col("key") // 2), swept)
    if kind == "time_per_sample" and doubled.height:
        return f"today less at {(doubled['factor'] > 1).sum()} of {doubled.height} doublings"
    doubled = doubled.filter(pl.col("pass") == "training", network=networks[0], key=64)
    if kind == "ms_above_twice" and doubled.height:
        above = (doubled["total_ms"] - 2 * doubled["total_ms_base"])[0]
        word = "less" if above < 0 else "more"
        return f"printed almost {compact(claim['low'])} ms more; today {abs(above):.2f} ms {word}"
    return ""


def _ratios_today(claim: Claim, ours: pl.DataFrame) -> pl.Series:
    """Return the factors of a claim's `to` over its `from`, by our counterparts."""
    slow, fast, counterparts = claim["from"], claim["to"], ours.filter("counterpart")
    gpus, cpus = (counterparts.filter(device=kind) for kind in ("cuda", "cpu"))
    if claim["kind"] == "network_speed":
        both = _pairs(gpus.filter(network=fast), gpus.filter(network=slow), ("pass", "side"))
    elif slow == "nn":
        both = _pairs(gpus, ours.filter(_WITHOUT_CUDNN), (*_KEYS, "machine"))
    elif slow.startswith("CPU"):
        both = _pairs(gpus, cpus)
    else:
        both = _pairs(counterparts.filter(machine=fast), counterparts.filter(machine=slow))
    return both["factor"]


def _pairs(rows: pl.DataFrame, bases: pl.DataFrame, keys: Sequence[str] = _KEYS) -> pl.DataFrame:
    both = rows.join(bases, on=list(keys), suffix="_base", nulls_equal=True, maintain_order="left_right")
    return both.with_columns(compared(both).get_columns())


def fastest(rows: pl.DataFrame) -> pl.DataFrame:
    return rows.sort("latency_ms").unique(list(_KEYS), keep="first", maintain_order=True)


def _range(ratios: pl.Series) -> str:
    """Format the lowest and the highest factor as the sources do: 1.31x to 1.43x."""
    ends = [times(end, sign="x") for end in ratios.sort().gather([0, -1])]
    return " to ".join(dict.fromkeys(ends))
