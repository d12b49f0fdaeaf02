"""Compare the rows of results: put processes together, and compute how many times faster one side is than another.

A configuration is an engine's variant at a precision; a group is a model, a pass, a batch size and what else
distinguishes a case, such as an optimizer: what a deployment chooses within. `summary` makes one row of each
configuration that a run measured, and compares it with its group's base.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import polars as pl

from profiler.results.columns import COLUMNS, MEASURE, Group, Shown
from profiler.results.replicates import as_one, by_throughput_ms, disturbed, measured, ranked_ms
from profiler.stats import ratios
from profiler.stats.ratios import REPLICATES_FOR_A_VERDICT, Side, Times, Verdict, common_spread
from profiler.stats.samples import Floats, median_interval

GROUP = ["model", "pass", "batch_size", "extra"]

NEEDED = ["status", "clock", "latency_ms", "latency_ci_low_ms", "latency_ci_high_ms", "gpu_ms"]
"""Of the results those that a comparison needs, besides the keys of its sides, `run_id` and CONFIGURATION."""
CONFIGURATION = [*GROUP, "variant", "precision"]
"""What rows of one run that are replicates of one another agree in."""
INTERVAL = ["latency_ci_low_ms", "latency_ci_high_ms"]
"""Of a latency: within its process, and of several replicates between them (`with_intervals`)."""
OF_BASE = ["base_warnings"]
"""What a row of `speedups` has of its base, besides its name."""
SPEEDUPS = [
    *("speedup", "speedup_low", "speedup_high", "base", "interval"),
    *("device_speedup", "device_speedup_low", "device_speedup_high", "verdict", "replicates_to_settle"),
    *("indistinguishable_from", "runner_up_verdict", "runner_up_replicates"),
    *OF_BASE,
]
FACTORS = [
    *("speedup", "speedup_low", "speedup_high", "verdict"),
    *("device_speedup", "device_speedup_low", "device_speedup_high"),
]
"""Of those what is left out where the row or its base was disturbed."""
_CLOCKS = ("latency", "device")
_PROCESSES = ("median", "mean", "variance", "processes", "below", "above")
_COMMON = ("prior_free", "prior_variance")
IDENTITY = ["setting", "role", "is_base", "network", "reference_model"]
"""What else is the same in all replicates of a configuration."""
TIMES = (Group.LATENCY, Group.CLOCKS, Group.PARTS, Group.THROUGHPUT, Group.COST, Group.ACCURACY)
"""What tables/latency.csv has of a case."""


def spreads(results: pl.DataFrame | pl.LazyFrame) -> pl.DataFrame:
    """What the configurations of each run have in common of their spread between processes: one row a run.

    All of a run's rows belong here, whichever of them are compared: what is left out would change the verdicts.
    """
    rows = _measured(measured(results.lazy()).select(*NEEDED, *CONFIGURATION, "run_id").collect())
    found = rows.group_by("run_id", *CONFIGURATION, maintain_order=True).agg(_statistics())
    schema = {"run_id": pl.String, **{f"{clock}_{name}": pl.Float64 for clock in _CLOCKS for name in _COMMON}}
    runs = []
    for (run_id,), part in found.group_by("run_id", maintain_order=True):
        common: list[float] = []
        for clock in _CLOCKS:
            known = part.filter(pl.col(f"{clock}_processes") > 1)
            variances, processes = (known[f"{clock}_{name}"].to_numpy() for name in ("variance", "processes"))
            common += common_spread(variances, processes - 1.0)
        runs.append((run_id, *common))
    return pl.DataFrame(runs, schema=schema, orient="row")


def sides(rows: pl.DataFrame, keys: Sequence[str], common: pl.DataFrame, *more: pl.Expr) -> pl.DataFrame:
    """One row for all rows that agree in `keys`: the statistics of its processes' times, and `more`.

    `common` are the `spreads` of their runs, which count for sides of one run. In `more` the column `ok` says which
    rows were measured.
    """
    run = pl.col("run_id").filter("ok")
    only = pl.when(run.n_unique() == 1).then(run.first()).alias("only_run")
    found = _measured(rows).group_by(keys, maintain_order=True).agg(*_statistics(), only, *more)
    found = found.join(common, left_on="only_run", right_on="run_id", how="left", maintain_order="left")
    filled = [pl.col(f"{clock}_{name}").fill_null(0.0) for clock in _CLOCKS for name in _COMMON]
    return found.with_columns(filled).drop("only_run")


def with_device_intervals(rows: pl.DataFrame, samples: pl.DataFrame) -> pl.DataFrame:
    """The rows with the interval of their device time's median, `gpu_ci_low_ms` and `gpu_ci_high_ms`.

    Only for groups in which a configuration has too few processes for an interval between them.
    """
    fewest = pl.len().over(CONFIGURATION).min().over(GROUP)
    few = rows.filter(fewest < REPLICATES_FOR_A_VERDICT, clock="event")
    keys = ["run_id", "case_id"]
    parts = samples.filter(clock="gpu").join(few, on=keys, how="semi").partition_by(keys, as_dict=True)
    found = [
        (*key, *vars(interval).values()) for key, part in parts.items() if (interval := median_interval(part["ms"]))
    ]
    schema = {**dict.fromkeys(keys, pl.String), "gpu_ci_low_ms": pl.Float64, "gpu_ci_high_ms": pl.Float64}
    intervals = pl.DataFrame(found, schema=schema, orient="row")
    return rows.join(intervals, on=keys, how="left", maintain_order="left")


def with_intervals(lines: pl.DataFrame) -> pl.DataFrame:
    """The rows of `sides` with the interval between their processes in place of the median of those within each."""
    several = pl.col("latency_processes") > 1
    ends = zip(INTERVAL, ratios.interval_of(side_of(lines).latency), strict=True)
    return lines.with_columns(
        pl.when(several).then(pl.lit(pl.Series(end))).otherwise(name).alias(name) for name, end in ends
    )


def side_of(frame: pl.DataFrame, suffix: str = "") -> Side:
    """The rows of `sides`, whose columns end in `suffix`, as one side of so many comparisons."""

    def times(clock: str) -> Times:
        names = [*_PROCESSES, *_COMMON]
        return Times(**{name: frame[f"{clock}_{name}{suffix}"].cast(pl.Float64).to_numpy() for name in names})

    return Side(clock=frame[f"clock{suffix}"].to_list(), latency=times("latency"), device=times("device"))


def compared(both: pl.DataFrame, base: str = "", side: str = "") -> pl.DataFrame:
    """How many times faster the side is than the base, as columns, one row for each of `both`.

    `both` has the columns of `sides` twice: the base's with the suffix `base`, the side's with `side`.
    """
    found = ratios.compare(side_of(both, base), side_of(both, side))
    columns: dict[str, Floats] = {}
    for name, ratio in (("ratio", found.latency), ("device_ratio", found.device)):
        columns |= {name: ratio.ratio, f"{name}_low": ratio.low, f"{name}_high": ratio.high}
    words = {name: getattr(found, name) for name in ("interval", "judged_on", "verdict", "why_no_verdict")}
    texts = [pl.Series(name, [v and str(v) for v in values], pl.String) for name, values in words.items()]
    settled = pl.Series("replicates_to_settle", found.replicates_to_settle, pl.Int64)
    return pl.DataFrame(columns).fill_nan(None).with_columns(*texts, settled)


def speedups(lines: pl.DataFrame) -> pl.DataFrame:
    """How each line compares with its base, as columns; null where that was not measured.

    `lines` are of `sides`, one a CONFIGURATION, with the median `latency_ms`, `is_base`, `reference_model` and
    `warnings`. A group's fastest line names in `indistinguishable_from` the runner-up from which replicates do
    not tell it, by `runner_up_verdict`, which `runner_up_replicates` a side would settle where it is unclear.
    """
    rank = ranked_ms().rank("ordinal").over(GROUP)
    lines = lines.with_columns(rank=rank, is_base=pl.col("is_base").fill_null(value=False)).with_row_index("line")
    bases, others = lines.filter("is_base"), lines.filter(~pl.col("is_base"))
    own = {name: name.removeprefix("base_") for name in OF_BASE}
    itself = bases.select("line", base=_name(), speedup=1.0, device_speedup=1.0, **own)
    against = with_base(others, bases)
    figures = compared(against, base="_base").rename(lambda name: name.replace("ratio", "speedup"))
    named = against.select("line", base=_base(), **{name: f"{column}_base" for name, column in own.items()})
    found = pl.concat([itself, named.hstack(figures)], how="diagonal_relaxed")
    found = lines.select("line").join(found, on="line", how="left", maintain_order="left")
    return found.join(_ties(lines), on="line", how="left", maintain_order="left").select(SPEEDUPS)


def with_base(lines: pl.DataFrame, bases: pl.DataFrame, *by: str) -> pl.DataFrame:
    """Each line with its base, whose columns end in `_base`: its group's, or that of the group's `reference_model`.

    `by` are further columns in which the two agree. A damaged file may have several bases of a group: the first counts.
    """
    lines = lines.with_columns(base_model=pl.coalesce("reference_model", "model"))
    keys = [*by, "base_model", *GROUP[1:]]
    bases = bases.rename({"model": "base_model"}).unique(keys, keep="first", maintain_order=True)
    return lines.join(bases, on=keys, how="left", suffix="_base", nulls_equal=True, maintain_order="left")


def geometric_mean(ratios: pl.Expr) -> pl.Expr:
    """Of what is known of ratios or times above 0; null without any."""
    return ratios.log().mean().exp()


def _ties(lines: pl.DataFrame) -> pl.DataFrame:
    """By `line` the fastest of each group that is not told from its runner-up."""
    first, second = lines.filter(rank=1), lines.filter(rank=2)
    pairs = first.join(second, on=GROUP, how="left", suffix="_base", nulls_equal=True, maintain_order="left")
    tied = [one for one in Verdict if not one.differs]
    judged = {"runner_up_verdict": "verdict", "runner_up_replicates": "replicates_to_settle"}
    found = pairs.hstack(compared(pairs, base="_base").select(**judged))
    runner_up = pl.concat_str("variant_base", "precision_base", separator=" ")
    found = found.select("line", *judged, indistinguishable_from=runner_up)
    return found.filter(pl.col("runner_up_verdict").is_in(tied))


def _name(suffix: str = "") -> pl.Expr:
    return pl.concat_str(f"precision{suffix}", f"variant{suffix}", separator=" ")


def _base() -> pl.Expr:
    """What the base of a row of `with_base` is called, like "fp32 eager", or of another model "fp32 eager of mine"."""
    other = pl.col("reference_model").is_not_null()
    return pl.when(other).then(pl.concat_str(_name("_base"), "base_model", separator=" of ")).otherwise(_name("_base"))


def _measured(rows: pl.DataFrame) -> pl.DataFrame:
    """With the logarithms of times, and how far each process's own interval reaches below and above its median."""
    latency, on_gpu = _log("latency_ms"), (pl.col("clock") == "event").fill_null(value=False)
    ok = ((pl.col("status") == "ok") & latency.is_not_null()).fill_null(value=False)
    own = {"below": latency - _log("latency_ci_low_ms"), "above": _log("latency_ci_high_ms") - latency}
    device = dict.fromkeys(own, pl.lit(None, pl.Float64))
    if "gpu_ci_low_ms" in rows.columns:
        gpu = _log("gpu_ms")
        device = {"below": gpu - _log("gpu_ci_low_ms"), "above": _log("gpu_ci_high_ms") - gpu}
    columns = {"latency": latency, "device": pl.when(on_gpu).then(_log("gpu_ms")).otherwise(latency)}
    columns |= {f"latency_{arm}": own[arm] for arm in own}
    columns |= {f"device_{arm}": pl.when(on_gpu).then(device[arm]).otherwise(own[arm]) for arm in own}
    return rows.with_columns(ok=ok, **{name: pl.when(ok).then(value) for name, value in columns.items()})


def _statistics() -> list[pl.Expr]:
    """Of rows of `_measured`, as `profiler.stats.ratios.Times` has them."""
    found = []
    for clock in _CLOCKS:
        count, arms = pl.col(clock).count(), (f"{clock}_below", f"{clock}_above")
        known = pl.all_horizontal(pl.col(arm).count() == count for arm in arms)
        found += [
            pl.col(clock).exp().median().log().alias(f"{clock}_median"),
            pl.col(clock).mean().alias(f"{clock}_mean"),
            pl.col(clock).var().alias(f"{clock}_variance"),
            count.cast(pl.Int64).alias(f"{clock}_processes"),
            *(pl.when(known).then((pl.col(arm) ** 2).sum().sqrt() / count).alias(arm) for arm in arms),
        ]
    return found


def _log(name: str) -> pl.Expr:
    """The logarithm; null for a figure that is not above 0."""
    return pl.when(pl.col(name) > 0).then(pl.col(name)).log()


def summary(results: pl.DataFrame, samples: pl.DataFrame, common: pl.DataFrame | None = None) -> pl.DataFrame:
    """One row a configuration: medians over replicates, and how it compares with its base.

    `speedup` and its ends are on the headline clock; `device_speedup`, its ends and `verdict` on the verdict's clock,
    which is `gpu` on CUDA and `host` on the CPU. `indistinguishable_from` is in a group's fastest row only: the
    runner-up, where three replicates a side do not tell them apart; `runner_up_verdict` is the verdict on the two.
    Of several replicates `latency_ci_low_ms` and `latency_ci_high_ms` are between them (`ratios.interval_of`).
    `warnings` are the kinds that its replicates carry, `disturbed` those of its own or its base's with which no factor
    counts (null without any). `common` are the `spreads` of the whole run, where `results` are a part of it.
    """
    every = (*TIMES, Group.ROOFLINE)
    known = [column for column in COLUMNS.values() if column.group in every or column.shown == Shown.TERMINAL]
    measures = [column.name for column in known if column.type == MEASURE]
    rows = with_device_intervals(measured(results), samples)
    own = [*measures, "disturbance", "clock", *IDENTITY, "warnings"]
    common = spreads(results) if common is None else common
    lines = with_intervals(sides(rows, CONFIGURATION, common, *as_one(rows.select(own).schema)))
    compared = lines.select(*CONFIGURATION, *own[:-1], "replicates", "warnings").hstack(speedups(lines))
    kinds = [disturbed(pl.col(name)) for name in ("warnings", "base_warnings")]
    return compared.with_columns(disturbed=pl.coalesce(kinds))


def certain(lines: pl.DataFrame) -> pl.DataFrame:
    """The configurations without the factors that rest on a disturbed row, and with a `note` of what was disturbed."""
    known, own = pl.col("disturbed").is_null(), disturbed(pl.col("warnings"))
    return lines.with_columns(
        *(pl.when(known).then(name).alias(name) for name in FACTORS),
        note=pl.coalesce(own, "base: " + pl.col("disturbed")),
    )


def groups(lines: pl.DataFrame) -> Iterator[tuple[dict[str, Any], list[dict[str, Any]]]]:
    """Each group's key and its configurations, fastest first, with `by_throughput_ms`."""
    lines = lines.with_columns(by_throughput_ms=by_throughput_ms())
    same = [name for name in IDENTITY if name != "is_base"]
    for key, group in lines.group_by(GROUP, maintain_order=True):
        rows = group.sort(ranked_ms()).to_dicts()
        yield {**dict(zip(GROUP, key, strict=True)), **{name: rows[0][name] for name in same}}, rows
