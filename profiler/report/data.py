"""Gather what a page shows of runs: their cells, the choice in each group, and what was not measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import polars as pl

from engines.catalog import ENGINES, PASSES, PRECISIONS, PRESETS
from profiler.errors import PROGRAM
from profiler.job.conditions import Filter
from profiler.results.cells import CONFIGURATION, GROUP, OK, cells, not_measured, warned
from profiler.results.choice import Choice, choices
from profiler.results.columns import parts, place
from profiler.results.layers import Profiled, profiled, together
from profiler.results.reading import Runs, chosen
from profiler.tables.numbers import count, natural

KEY = ["run", *GROUP]
CONFIGURATION_KEY = ["run", *CONFIGURATION]
SWEEP = ["run", "model", "pass", "setting"]
"""Groups that differ only by the batch size share these."""
MOST_CONFIGURATIONS = 1000
"""On a page, whose tables and charts take some 4 kB for each."""
MOST_LAYERED = 8
"""Cells whose layers are on a page; the command `layers` prints every one."""
_MOST_PROBLEMS = 300


@dataclass(frozen=True)
class Data:
    """All that a page shows.

    `cells` are the measured ones, each group fastest first, with what `_derived` adds; their column `run` tells the
    runs apart, by the machine where that suffices. `choices` are made in each group's cells, under the group's key.
    `problems` and `warnings` are as in profiler/results/problems.py, `statuses` counts cases, `layers` holds profiled
    cells that differ only by the variant, and `notes` say what was left out.
    """

    runs: Runs
    labels: Mapping[str, str]
    cells: pl.DataFrame
    choices: Sequence[tuple[dict[str, Any], Choice]]
    problems: pl.DataFrame
    warnings: pl.DataFrame
    layers: Sequence[Sequence[Profiled]]
    statuses: Mapping[str, int]
    notes: Sequence[str]

    @property
    def environments(self) -> dict[str, dict[str, Any]]:
        """Return environment.json by label; of several runs under one label the first."""
        first: dict[str, dict[str, Any]] = {}
        for run_id, label in self.labels.items():
            first.setdefault(label, self.runs.environments[run_id])
        return first


def gather(
    runs: Runs, only: Filter | None = None, known: pl.DataFrame | None = None, most: int = MOST_CONFIGURATIONS
) -> Data:
    """Gather the cells that hold the conditions, up to `most`; without any case `statuses` is empty.

    `known` are `cells` of all the runs by run_id, where they were made before.
    """
    results = runs.results.collect()
    labels = _labels(runs, results)
    run = pl.col("run_id").replace_strict(labels, default=None, return_dtype=pl.String)
    results = results.with_columns(run=run)
    merged = cells(results, by=("run",)) if known is None else known.with_columns(run=run).drop("run_id")
    if only:
        results = results.filter(chosen(only))
        merged = _of_groups(merged, results, CONFIGURATION_KEY)
    notes: list[str] = []
    merged = _sorted(merged)
    shown = _capped(merged.filter(OK), most, notes)
    statuses = results.group_by("status", maintain_order=True).len().sort("len", descending=True, maintain_order=True)
    return Data(
        runs,
        labels,
        _derived(shown),
        choices(_of_groups(merged, shown, KEY), by=("run",)),
        _problems(results, notes),
        warned(results).sort("cases", descending=True, maintain_order=True),
        _layers(runs, shown, notes),
        dict(statuses.iter_rows()),
        notes,
    )


def _labels(runs: Runs, results: pl.DataFrame) -> dict[str, str]:
    """Name each run by its machine, or by its folder where a machine measured one case in more than one run."""
    cases = results.select("run_id", "machine", "case_id").unique()
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


def _of_groups(frame: pl.DataFrame, groups: pl.DataFrame, keys: list[str]) -> pl.DataFrame:
    return frame.join(groups, on=keys, how="semi", nulls_equal=True, maintain_order="left")


def _sorted(merged: pl.DataFrame) -> pl.DataFrame:
    """Sort groups for reading, each fastest first; `step` is a configuration's place from the base on."""
    runs = merged["run"].unique(maintain_order=True)
    models = sorted(merged["model"].unique(), key=natural)
    settings = sorted(merged["setting"].unique(), key=natural)
    engine, variant = place("engine", ENGINES), place("variant", PRESETS)
    names = merged.select("engine", "variant").unique().sort(engine, variant, "variant")["variant"]
    step = place("variant", names.unique(maintain_order=True)) * len(PRECISIONS) + place("precision", PRECISIONS)
    places = [place("run", runs), place("pass", PASSES), place("model", models), place("setting", settings)]
    return merged.with_columns(step=step).sort(*places, "batch_size", "latency_ms", maintain_order=True)


def _capped(measured: pl.DataFrame, most: int, notes: list[str]) -> pl.DataFrame:
    """Keep whole groups that make up `most` cells: every model's first batch size before its second."""
    groups = measured.group_by(KEY, maintain_order=True).len()
    size = pl.col("batch_size").rank("dense").over(SWEEP)
    fits = groups.sort(size, maintain_order=True).filter(pl.col("len").cum_sum() <= most)
    if fits.height < groups.height:
        shown, every = (count(int(some["len"].sum())) for some in (fits, groups))
        notes.append(f"The page shows {shown} of {every} configurations; choose others with --only, or use query.")
    return _of_groups(measured, fits, KEY)


def _derived(shown: pl.DataFrame) -> pl.DataFrame:
    """Add what follows from a cell's own figures, and `front`: nothing has both less latency and more throughput."""
    moved = pl.coalesce("moved_mib", "weights_mib")
    rest = pl.col("peak_memory_mib") - pl.sum_horizontal(parts("peak_memory_mib"))
    best_so_far = pl.col("throughput").cum_max().over(SWEEP, order_by="latency_ms")
    return shown.with_columns(
        configuration=pl.concat_str("variant", "precision", separator=" "),
        moved_mib=moved,
        gflops_per_item=pl.col("flops_per_item") / 1e9,
        intensity=pl.col("flops_per_item") * pl.col("batch_size") / (moved.replace(0, None) * 2**20),
        over_floor=pl.min_horizontal("latency_ms", "gpu_ms") / pl.col("floor_ms").replace(0, None),
        undivided_mib=pl.when(rest > 0.5).then(rest),
        front=pl.col("throughput") >= best_so_far,
    )


def _problems(results: pl.DataFrame, notes: list[str]) -> pl.DataFrame:
    """Return one row a reason, with the models and batch sizes that it holds for."""
    keys = ["run", "status", "reason", "pass", "variant", "precision"]
    reasons = not_measured(results, keys, pl.col("model").unique(), pl.len().alias("cases"))
    if reasons.height > _MOST_PROBLEMS:
        notes.append(
            f"Of {count(reasons.height)} reasons for missing figures the commonest {_MOST_PROBLEMS} are shown."
        )
        reasons = reasons.sort("cases", descending=True, maintain_order=True).head(_MOST_PROBLEMS)
    models = [sorted(names, key=natural) for names in reasons["model"].to_list()]
    return reasons.with_columns(pl.Series("model", models, pl.List(pl.String)))


def _layers(runs: Runs, shown: pl.DataFrame, notes: list[str]) -> list[list[Profiled]]:
    """Put profiled cells together that differ only by the variant; of a cell the first profiled process counts."""
    if runs.layers is None:
        return []
    keys = [*KEY, "precision"]
    cases = shown.with_columns(run_id="run_ids", case_id="case_ids").explode("case_id").explode("run_id")
    profiles = together(profiled(cases.with_row_index("replicate"), runs.layers, [*keys, "variant"]), keys)
    if len(profiles) > MOST_LAYERED:
        notes.append(f"Layers of {MOST_LAYERED} of {len(profiles)} profiled cells are shown; {PROGRAM} layers has all.")
    # The fullest: most variants side by side, then the largest batch.
    fullest = sorted(range(len(profiles)), key=lambda i: (-len(profiles[i]), -profiles[i][0].row["batch_size"]))
    return [profiles[i] for i in sorted(fullest[:MOST_LAYERED])]
