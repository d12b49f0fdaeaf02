"""Compare the passes of single layers, and pick the best engine for each.

The form of convnet-benchmarks' layer-wise tables (https://github.com/soumith/convnet-benchmarks), whose last row picks
the fastest library for each layer and pass: what an engine would reach that chose among all of them.
"""

from __future__ import annotations

import polars as pl

from profiler.results.cells import cells
from profiler.results.problems import OUT_OF_MEMORY
from profiler.results.warning_kinds import HOST_BOUND

PARTS = ("forward", "grad_input", "grad_weight")
ALL_LAYERS = "total"
"""The layer in a row of sums, as in references/convnet-layers.csv."""
KEYS = ["machine", "device", "layer", "engine", "variant", "precision", "batch_size"]
_GROUP = ["machine", "device", "precision", "batch_size"]
_FIGURES = [*(f"{part}_ms" for part in PARTS), "total_ms"]
_TOO_SHORT = "calls under 0.05 ms are timed in blocks, without their parts; a larger batch has them"


def layer_rows(results: pl.DataFrame) -> pl.DataFrame:
    """Return one row a layer, variant, precision and batch size, from cells. `results` are results.parquet's.

    - `machine device layer engine variant precision batch_size`
    - `forward_ms grad_input_ms grad_weight_ms`, `backward_ms` (both gradients), `total_ms` with its interval `low_ms`
      and `high_ms`
    - `clock`: "gpu" where the device's own time, free of gaps between launches, is there for all of the row, else the
      headline's name, "event" or "host"
    - `peak_memory_mib`: of the training pass, or of inference where only that was measured
    - `forward_tflops grad_input_tflops grad_weight_tflops total_tflops`: 10¹² FLOPs a second on that clock
    - `status`, `reason`: of the training pass if it was asked for; `reason` says why a figure is missing
    - `kinds`: of its warnings, but that the host is the limit where `clock` is "gpu"

    Where there is no training pass (an engine that does inference only, a pass that did not fit), `forward_ms` is
    inference's.
    """
    layers = cells(results.filter(pl.col("model_kind") == "layer"), by=("machine", "device")).rename({"model": "layer"})
    rows = _together(_passes(layers)).with_columns(backward_ms=pl.col("grad_input_ms") + pl.col("grad_weight_ms"))
    rates = [(pl.col("part_flops") / pl.col(f"{part}_ms") / 1e9).alias(f"{part}_tflops") for part in PARTS]
    rates.append((3 * pl.col("part_flops") / pl.col("total_ms") / 1e9).alias("total_tflops"))
    kinds = pl.col("kinds").fill_null([])
    kinds = pl.when(clock="gpu").then(kinds.list.set_difference([HOST_BOUND])).otherwise(kinds)
    times = [*(f"{part}_ms" for part in PARTS), "backward_ms", "total_ms", "low_ms", "high_ms"]
    return rows.select(*KEYS, *times, "clock", "peak_memory_mib", *rates, kinds.alias("kinds"), "status", "reason")


def best_per_layer(rows: pl.DataFrame) -> pl.DataFrame:
    """For each layer, precision and batch size the fastest variant of each pass. `rows` are `layer_rows`'.

    - `machine device precision batch_size layer`
    - `forward_ms` and `forward_variant`, the same of `grad_input` and `grad_weight`
    - `backward_ms`, `total_ms`: sums of the best parts, which may be of several variants; `low_ms` and `high_ms` reach
      as far from `total_ms` as the widest interval of a layer's rows
    - `clock`: of what was compared; several, joined by " and ", where variants differ
    - `kinds`: of what was picked

    Each group of one machine, device, precision and batch size ends with a row of sums, whose layer is ALL_LAYERS. A
    sum is blank where a layer that is in `rows` for that machine and batch size has no figure.
    """
    times = {part: pl.col(f"{part}_ms") for part in PARTS}
    is_picked = {part: ms == ms.min() for part, ms in times.items()}
    names = [pl.col("variant").filter(one).first().alias(f"{part}_variant") for part, one in is_picked.items()]
    ends = {end: pl.col(end) / pl.col("total_ms") for end in ("low_ms", "high_ms")}
    reaches = [ends["low_ms"].min().alias("low"), ends["high_ms"].max().alias("high")]
    kinds = _each_once(pl.col("kinds").filter(pl.any_horizontal(*is_picked.values())).explode())
    clocks = _each_once(pl.col("clock")).str.join(" and ").replace("", None)
    # Every layer in every group, so that a missing one blanks the sums.
    layers = rows.select("machine", "device", "batch_size", "layer").unique(maintain_order=True)
    groups = rows.select(_GROUP).unique(maintain_order=True).with_row_index("place")
    every = groups.join(layers, on=["machine", "device", "batch_size"], nulls_equal=True, maintain_order="left_right")
    figures = [*(ms.min() for ms in times.values()), *names, clocks, kinds, *reaches]
    found = rows.group_by([*_GROUP, "layer"]).agg(figures)
    best = every.join(found, on=[*_GROUP, "layer"], how="left", nulls_equal=True, maintain_order="left")
    whole = [pl.when(ms.is_not_null().all()).then(ms.sum()) for ms in times.values()]
    last = [*whole, pl.col("low").min(), pl.col("high").max(), _each_once(pl.col("kinds").explode())]
    sums = best.group_by("place", *_GROUP).agg(*last, layer=pl.lit(ALL_LAYERS))
    both = pl.concat([best, sums], how="diagonal").sort("place", maintain_order=True)
    backward = pl.col("grad_input_ms") + pl.col("grad_weight_ms")
    parts = [pl.col(f"{part}_{what}") for part in PARTS for what in ("ms", "variant")]
    parts += [backward.alias("backward_ms"), (pl.col("forward_ms") + backward).alias("total_ms")]
    found = both.select(*_GROUP, "layer", *parts, "clock", "kinds", low_ms="low", high_ms="high")
    return found.with_columns(pl.col("low_ms", "high_ms") * pl.col("total_ms"))


def _each_once(values: pl.Expr) -> pl.Expr:
    return values.drop_nulls().unique(maintain_order=True)


def _together(passes: pl.DataFrame) -> pl.DataFrame:
    """One row by KEYS: what the training pass has, or inference where that has no time, or is alone."""
    in_training = pl.col("pass") == "training"
    timed = pl.col("total_ms").filter(in_training).first().is_not_null()

    def picked(column: str, trained: pl.Expr) -> pl.Expr:
        found, alone = (pl.col(column).filter(which).first() for which in (in_training, ~in_training))
        return pl.when(trained).then(found).otherwise(alone).alias(column)

    of_training = ("grad_input_ms", "grad_weight_ms", "total_ms", "low_ms", "high_ms")
    of_either = ("forward_ms", "clock", "peak_memory_mib", "part_flops", "kinds")
    return passes.group_by(KEYS, maintain_order=True).agg(
        *(picked(column, timed) for column in of_either),
        *(picked(column, in_training.any()) for column in ("status", "reason")),
        *(pl.col(column).filter(in_training).first() for column in of_training),
    )


def _passes(layers: pl.DataFrame) -> pl.DataFrame:
    """A row a pass by KEYS: its parts and total on one clock, memory, and the FLOPs of each part of a call.

    Inference is only the forward part.
    """
    in_training, parts = pl.col("pass") == "training", [f"gpu_{part}_ms" for part in PARTS]
    gated = pl.col("gpu_ms").is_not_null() & (~in_training | pl.all_horizontal(pl.col(parts).is_not_null()))
    total, *ends = (pl.when(gated).then(f"gpu{end}_ms").otherwise(f"latency{end}_ms") for end in ("", "_low", "_high"))
    figures = {f"{part}_ms": pl.when(gated).then(f"gpu_{part}_ms").otherwise(f"{part}_ms") for part in PARTS}
    figures["forward_ms"] = pl.when(in_training).then(figures["forward_ms"]).otherwise(total)
    short = in_training & pl.col("latency_ms").is_not_null() & pl.col("forward_ms").is_null()
    why = pl.when(status="oom").then(pl.lit(OUT_OF_MEMORY)).when(short).then(pl.lit(_TOO_SHORT)).otherwise("reason")
    return layers.select(
        *(*KEYS, "pass", "status", "peak_memory_mib"),
        **figures,
        kinds="footnotes",
        total_ms=total,
        low_ms=ends[0],
        high_ms=ends[1],
        clock=pl.when(gated).then(pl.lit("gpu")).otherwise("clock"),
        reason=why,
        part_flops=pl.col("flops_per_item") * pl.col("batch_size") / pl.when(in_training).then(3).otherwise(1),
    )
