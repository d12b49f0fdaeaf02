"""Gather what a report shows of runs, aggregated and within what a page can hold.

Of raw samples nothing is read but those of the configurations that are shown.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import polars as pl

from engines.catalog import EIGHT_BITS, ENGINES, PASSES, PRECISIONS, PRESETS
from profiler.errors import PROGRAM
from profiler.job.case import Role, settings
from profiler.job.conditions import Filter
from profiler.results.columns import SAMPLES, parts, place
from profiler.results.layer_profiles import Profiled, profiled, together
from profiler.results.reading import Runs, chosen
from profiler.results.replicates import (
    OK,
    by_throughput_ms,
    disturbed,
    merge,
    not_measured,
    ranked_ms,
    warned,
    why_not,
    without_probes,
)
from profiler.results.sentences import not_in_the_choice, rough
from profiler.results.set_up import BREAK_EVENS, break_even, set_up
from profiler.results.speedups import CONFIGURATION, GROUP, INTERVAL, SPEEDUPS, spreads, summary, with_base
from profiler.stats.ratios import JUDGED_ON
from profiler.tables.numbers import count, natural

KEY = ["run", *GROUP]
"""A group: what a deployment chooses within."""
CONFIGURATION_KEY = ["run", *CONFIGURATION]
"""A configuration of a group."""
SWEEP = ["run", "model", "pass", "extra"]
"""What groups that differ only by the batch size have in common."""
MOST_CONFIGURATIONS = 1000
"""On a page, whose tables and charts take some 4 kB for each."""
MOST_LAYERED = 8
"""Cells whose layers are on a page; the command `layers` prints every one."""
TICKS = 40
"""Samples of a configuration that are drawn, evenly spaced by rank, the fastest and the slowest among them."""
_MOST_SAMPLES = 600_000
"""That intervals are made from: some four seconds."""
_MOST_PROBLEMS = 300
_PARTS = parts("peak_memory_mib")
_CLOCKS = {headline: sorted({headline, judged}) for headline, judged in JUDGED_ON.items()}
"""By headline clock those that intervals and verdicts are made from."""


@dataclass(frozen=True)
class Data:
    """What a report shows.

    `configurations`: one row each (replicates together, medians over them), each group fastest first, with what
    `_derived` and `_quartiles` add; its column `run` is what tells the runs apart, the machine where that suffices.
    `failed`: configurations without figures, and `why`. `probes`: rows of a search for the largest batch. `problems`:
    cases without figures, by reason. `warnings`: how many rows carry each kind. `layers`: profiled cases that differ
    only by the variant. `notes`: what was left out.
    """

    runs: Runs
    labels: Mapping[str, str]
    configurations: pl.DataFrame
    failed: pl.DataFrame
    probes: pl.DataFrame
    problems: pl.DataFrame
    warnings: pl.DataFrame
    layers: Sequence[Sequence[Profiled]]
    statuses: Mapping[str, int]
    notes: Sequence[str]
    lost: str | None = None
    """Which configurations failed, so that the answer cannot be one of them."""

    @property
    def environments(self) -> dict[str, dict[str, Any]]:
        """By label; of several runs under one label the first."""
        first: dict[str, dict[str, Any]] = {}
        for run_id, label in self.labels.items():
            first.setdefault(label, self.runs.environments[run_id])
        return first


def gather(
    runs: Runs,
    only: Filter | None = None,
    most_configurations: int | None = MOST_CONFIGURATIONS,
    compared: pl.DataFrame | None = None,
) -> Data:
    """What a report of `runs` shows of the cases that hold the conditions `only`.

    `most_configurations` caps them; None shows all. `compared` is speedups.summary of the one run, where it is
    known already. Without any case `statuses` is empty.
    """
    results = runs.results
    if only:
        results = results.filter(chosen(only))
    labels = _labels(runs, results)
    named = results.with_columns(run=pl.col("run_id").replace_strict(labels, default=None, return_dtype=pl.String))
    cells, probes = without_probes(named), named.filter(role=Role.PROBE)
    statuses = cells.group_by("status", maintain_order=True).len().sort("len", descending=True, maintain_order=True)
    rows = cells.filter(OK, pl.col("latency_ms").is_not_null()).drop("options", "proof", "reason", "host").collect()
    doubt = rough(runs.sampling_seconds(rows["run_id"].unique()))
    notes: list[str] = [doubt] if doubt else []
    shown = _capped(rows, most_configurations, notes)
    samples = _samples(runs, shown, notes)
    configurations = _derived(_configurations(shown, samples, spreads(runs.results), compared))
    return Data(
        runs,
        labels,
        configurations.join(
            _quartiles(shown, samples), on=CONFIGURATION_KEY, how="left", nulls_equal=True, maintain_order="left"
        ),
        _failed(cells, rows),
        probes.collect(),
        _problems(cells, notes),
        warned(rows).sort("cases", descending=True, maintain_order=True),
        _layers(runs, shown, notes),
        {str(status): number for status, number in statuses.collect().iter_rows()},
        notes,
        not_in_the_choice(cells),
    )


def _labels(runs: Runs, results: pl.LazyFrame) -> dict[str, str]:
    """By run id its machine, and the run's name where a machine measured one case in more than one run."""
    cases = results.select("run_id", "machine", "case_id").unique().collect()
    clashes = cases.group_by("machine", "case_id").len().filter(pl.col("len") > 1)["machine"].unique().to_list()
    machines = dict(cases.select("run_id", "machine").unique().iter_rows())
    several = len(set(machines.values())) > 1
    labels = {}
    for run in runs.runs:
        for run_id in filter(machines.__contains__, run.run_ids):
            name, machine = (run.name if len(run.run_ids) == 1 else run_id), machines[run_id]
            where = machine or name
            labels[run_id] = where if machine not in clashes else f"{where}, {name}" if several else name
    return labels


def _capped(rows: pl.DataFrame, most: int | None, notes: list[str]) -> pl.DataFrame:
    """The rows of as many whole groups as make `most`: every model's first batch size before its second."""
    if most is None:
        return rows
    groups = rows.group_by(KEY, maintain_order=True).agg(
        configurations=pl.struct("variant", "precision").n_unique(), cases=pl.len()
    )
    size = pl.col("batch_size").rank("dense").over(SWEEP)
    fits = groups.sort(size, maintain_order=True).filter(pl.col("configurations").cum_sum() <= most)
    if fits.height < groups.height:
        shown, every = (count(int(some["configurations"].sum())) for some in (fits, groups))
        notes.append(
            f"The page shows {shown} of {every} configurations, for {count(fits.height)} of {count(groups.height)} "
            "choices (a model, pass and batch size each). --only shows others; --format csv has all."
        )
    return rows.join(fits, on=KEY, how="semi", nulls_equal=True, maintain_order="left")


def _samples(runs: Runs, rows: pl.DataFrame, notes: list[str]) -> pl.DataFrame:
    """The samples that intervals are made from: of whole groups, and of no more than can be dealt with in seconds."""
    groups = rows.group_by(KEY, maintain_order=True).agg(pl.col("samples").sum())
    fits = groups.filter(pl.col("samples").fill_null(0).cum_sum() <= _MOST_SAMPLES)
    if fits.height < groups.height:
        notes.append(
            f"Intervals and the chart of raw samples stop after {count(_MOST_SAMPLES)} samples: "
            f"{count(fits.height)} of {count(groups.height)} choices have them."
        )
    clocks = pl.col("clock").replace_strict(_CLOCKS, default=[], return_dtype=pl.List(pl.String))
    cases = rows.join(fits, on=KEY, how="semi", nulls_equal=True).select("run_id", "case_id", "run", clock=clocks)
    cases = cases.explode("clock")
    # Only these are joined of all that is read: of ten million samples that takes a tenth of the time.
    named = [pl.col(key).is_in(cases[key].unique().implode()) for key in ("case_id", "clock")]
    samples = runs.samples.filter(*named).join(cases.lazy(), on=["run_id", "case_id", "clock"], maintain_order="left")
    return samples.select("run", *SAMPLES).drop("index").collect(engine="streaming")


def _configurations(
    rows: pl.DataFrame, samples: pl.DataFrame, common: pl.DataFrame, compared: pl.DataFrame | None
) -> pl.DataFrame:
    """Medians over replicates, and how each compares with its group's base."""
    rows = rows.with_columns(**set_up())
    compared_by = [*INTERVAL, *SPEEDUPS, "disturbed"]
    own_columns = [name for name in rows.columns if name not in (*CONFIGURATION_KEY, *compared_by)]
    medians = merge(rows, CONFIGURATION_KEY, own_columns)
    summaries = []
    for part in rows.partition_by("run", maintain_order=True) or [rows]:
        run = part["run"].first()
        own = samples.filter(pl.col("run").eq_missing(run))
        judged = summary(part, own, common) if compared is None else compared
        summaries.append(judged.with_columns(run=pl.lit(run, pl.String)))
    speedups = pl.concat(summaries).select(*CONFIGURATION_KEY, *compared_by)
    return medians.join(speedups, on=CONFIGURATION_KEY, how="left", nulls_equal=True, maintain_order="left")


def _derived(configurations: pl.DataFrame) -> pl.DataFrame:
    """Sorted for reading, with what follows from a configuration's own figures and its group's.

    `configuration`: its name, without its shape, which the group has; `subject`: its model, and the shape;
    `manner`: what else distinguishes it from others of its subject, as optimizers do; `rank` in its group, 1 the
    fastest, null of int8 and fp8 without calibration data where there is anything else, as `recommend` does not
    choose it either; `step`: its place from the base to the exported runtimes; `front`: none of the model has both a
    lower latency and a higher throughput; `undivided_mib` of the
    peak is in none of the parts; `item_gain`: over the smallest batch; `pays_off_items`, `restart_items`: after how
    many what is done once, and what a start takes, is won back against the base, null if never; `best_from_items`: from
    how many on it is the first of its group to be done with all of them, null if never; `own_disturbed`: as
    `disturbed`, of its own warnings alone. A gain, and what is won back, is null where what it rests on was disturbed.
    """
    work = pl.col("flops_per_item") * pl.col("batch_size")
    rates = {
        "intensity": work / (pl.col("moved_mib").replace(0, None) * 2**20),
        "over_floor": pl.min_horizontal("latency_ms", "gpu_ms") / pl.col("floor_ms").replace(0, None),
    }
    configurations = _sorted(configurations.with_columns(**_names(), **_figures()).with_columns(**rates))
    best_so_far = (1 / pl.col("item_s")).cum_max().over(SWEEP, order_by="latency_ms")
    calm_ms = pl.when(pl.col("own_disturbed").is_null()).then("item_ms")
    at_smallest = calm_ms.first().over([*SWEEP, "variant", "precision"], order_by="batch_size")
    front = 1 / pl.col("item_s") >= best_so_far
    configurations = configurations.with_columns(front=front, item_gain=at_smallest / calm_ms)
    costs = [*BREAK_EVENS.values(), "item_s"]
    both = with_base(configurations, configurations.filter("is_base").select(*KEY, *costs), "run")
    calm = pl.col("disturbed").is_null()
    for name, part in BREAK_EVENS.items():
        own = both.select(part, "item_s", f"{part}_base", "item_s_base")
        items = pl.Series([break_even(*each) for each in own.iter_rows()], dtype=pl.Float64).ceil()
        configurations = configurations.with_columns(pl.when(calm).then(items).alias(name))
    return configurations.join(
        _best_from(configurations), on=CONFIGURATION_KEY, how="left", nulls_equal=True, maintain_order="left"
    )


def _names() -> dict[str, pl.Expr]:
    of_shape = pl.col("shape").fill_null("")
    setting = pl.col("setting").str.strip_suffix(of_shape).str.strip_suffix("/")
    words = setting.map_elements(_short, pl.String)
    sizes = of_shape.str.replace_all("/", ", ").str.replace_all("=", " ")

    def more(text: pl.Expr) -> pl.Expr:
        return pl.when(text != "").then(", " + text).otherwise(pl.lit(""))

    return {
        "configuration": pl.concat_str("variant", "precision", separator=" ") + more(words),
        "subject": pl.col("model") + more(sizes),
        "manner": pl.concat_str(setting, "role", separator="/"),
    }


def _figures() -> dict[str, pl.Expr]:
    batch, latency = pl.col("batch_size"), pl.col("latency_ms")
    rest = pl.col("peak_memory_mib") - pl.sum_horizontal(_PARTS)
    seeded = pl.col("precision").is_in(EIGHT_BITS) & ~pl.col("calibrated").fill_null(value=False)
    return {
        "item_ms": latency / batch,
        "item_s": 1 / pl.coalesce("throughput", 1000 * batch / latency),
        "rank": pl.when(~seeded | seeded.all().over(KEY)).then(ranked_ms()).rank("ordinal").over(KEY),
        "moved_mib": pl.coalesce("moved_mib", "weights_mib"),
        "gflops_per_item": pl.col("flops_per_item") / 1e9,
        "undivided_mib": pl.when(rest > 0.5).then(rest),
        "own_disturbed": disturbed(pl.col("warnings")),
        "by_throughput_ms": by_throughput_ms(),
        "ranked_ms": ranked_ms(),
    }


def _short(setting: str) -> str:
    """A setting in a few words, like "sgd logits dropout=on"."""
    named = settings(setting).items()
    return " ".join(value if key in ("optimizer", "head") else f"{key}={value}" for key, value in named)


def _sorted(configurations: pl.DataFrame) -> pl.DataFrame:
    runs = configurations["run"].unique(maintain_order=True)
    models = sorted(configurations["model"].unique(), key=natural)
    names = (
        configurations.select("engine", "variant")
        .unique()
        .sort(place("engine", ENGINES), place("variant", PRESETS), "variant")
    )
    variant = place("variant", names["variant"].unique(maintain_order=True))
    configurations = configurations.with_columns(step=variant * len(PRECISIONS) + place("precision", PRECISIONS))
    places = [place("run", runs), place("pass", PASSES), place("model", models)]
    extra = pl.col("extra").map_elements(natural, pl.String, skip_nulls=False)
    return configurations.sort(*places, extra, "batch_size", "ranked_ms", maintain_order=True)


def _best_from(configurations: pl.DataFrame) -> pl.DataFrame:
    """From how many items on `set_up_s` + items · `item_s` is the least of its group; others have no row."""
    costs = configurations.drop_nulls("set_up_s").sort("set_up_s", maintain_order=True)
    costs = costs.unique([*KEY, "item_s"], keep="first", maintain_order=True).select(
        *CONFIGURATION_KEY, "set_up_s", "item_s"
    )
    pairs = costs.join(costs, on=KEY, nulls_equal=True, suffix="_other")
    gain = pl.col("item_s_other") - pl.col("item_s")
    crossing = (pl.col("set_up_s") - pl.col("set_up_s_other")) / gain
    spans = pairs.group_by(CONFIGURATION_KEY).agg(
        # Faster than the slower ones from the last crossing on, and until the first with a faster one.
        start=crossing.filter(gain > 0).max().fill_null(0).clip(0),
        end=crossing.filter(gain < 0).min().fill_null(float("inf")),
    )
    start = pl.col("start")
    first = pl.when(start > 0).then(start.floor() + 1).otherwise(0.0)
    return spans.filter(start < pl.col("end")).select(*CONFIGURATION_KEY, best_from_items=first)


def _quartiles(rows: pl.DataFrame, samples: pl.DataFrame) -> pl.DataFrame:
    """By configuration samples of the headline clock: up to `TICKS`, sorted; how many, their quartiles, outliers."""
    headline = samples.join(rows.select(*CONFIGURATION_KEY, "case_id", "clock"), on=["run", "case_id", "clock"])
    ms = pl.col("ms").sort()
    last = (pl.len() - 1).cast(pl.Float64)
    places = (pl.int_range(TICKS) * last / (TICKS - 1)).round().cast(pl.UInt32).unique(maintain_order=True)
    low, high = pl.col("ms").quantile(0.25, "linear"), pl.col("ms").quantile(0.75, "linear")
    return headline.group_by(CONFIGURATION_KEY, maintain_order=True).agg(
        ticks=ms.gather(places),
        taken=pl.len(),
        outliers=(~pl.col("ms").is_between(low - 1.5 * (high - low), high + 1.5 * (high - low))).sum(),
        ms_p25=low,
        ms_p75=high,
        ms_max=pl.col("ms").max(),
    )


def _failed(cells: pl.LazyFrame, rows: pl.DataFrame) -> pl.DataFrame:
    """The configurations without any figures, as they are named; none that is unsupported."""
    lost = cells.filter(~OK, pl.col("status") != "unsupported").collect()
    lost = lost.join(rows, on=CONFIGURATION_KEY, how="anti", nulls_equal=True, maintain_order="left")
    lost = lost.unique(CONFIGURATION_KEY, keep="first", maintain_order=True).head(_MOST_PROBLEMS)
    return lost.with_columns(**_names(), why=why_not())


def _problems(cells: pl.LazyFrame, notes: list[str]) -> pl.DataFrame:
    """One row a reason, with the models and batch sizes that it holds for."""
    keys = ["run", "status", "reason", "pass", "variant", "precision"]
    reasons = not_measured(cells, keys, pl.col("model").unique(), pl.len().alias("cases")).collect()
    if reasons.height > _MOST_PROBLEMS:
        notes.append(
            f"Of {count(reasons.height)} reasons why cases have no figures the commonest {_MOST_PROBLEMS} are shown."
        )
        reasons = reasons.sort("cases", descending=True, maintain_order=True).head(_MOST_PROBLEMS)
    models = [sorted(names, key=natural) for names in reasons["model"].to_list()]
    return reasons.with_columns(pl.Series("model", models, pl.List(pl.String)))


def _layers(runs: Runs, rows: pl.DataFrame, notes: list[str]) -> list[list[Profiled]]:
    """The first replicate of each profiled configuration, those together that differ only by the variant."""
    if runs.layers is None:
        return []
    keys = [*KEY, "precision"]
    cells = together(profiled(rows, runs.layers, [*keys, "variant"]), keys)
    if len(cells) > MOST_LAYERED:
        notes.append(
            f"The layers of {MOST_LAYERED} of {count(len(cells))} profiled choices are shown; {PROGRAM} layers "
            "prints the others."
        )
    # The fullest first: most variants side by side, then the largest batch. What is kept is sorted as they are.
    fullest = sorted(cells, key=lambda cell: (-len(cell), -cell[0].row["batch_size"]))[:MOST_LAYERED]

    def order(row: Mapping[str, Any]) -> tuple[Any, ...]:
        return row["run"], PASSES.index(row["pass"]), natural(row["model"]), natural(row["extra"]), -row["batch_size"]

    return sorted(fullest, key=lambda cell: order(cell[0].row))
