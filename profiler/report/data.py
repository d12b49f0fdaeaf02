"""Gather a page's data from runs: cells, the choice in each group, failed cases, and charts' rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import polars as pl

from engines.catalog import ENGINES, PRESETS
from engines.options import PASSES, PRECISIONS
from profiler.job.case import Filter
from profiler.report.chart_specs import MEMORY, Domains
from profiler.results.cells import CONFIGURATION, GROUP, OK, Row, cells, not_measured, warned
from profiler.results.choice import Choice, choices
from profiler.results.columns import FACTOR, parts, place
from profiler.results.layers import Profiled, match_layers, profiled, together
from profiler.results.reading import Runs, chosen
from profiler.results.result import ends_of
from profiler.tables.numbers import WIDEST, natural

KEY = ["run", *GROUP]
CONFIGURATION_KEY = ["run", *CONFIGURATION]
_MOST_LAYERED = 8
"""Most cells whose layers are drawn; the command `layers` prints all."""
_MOST_LAYERS = 14
"""Most layers of a cell in their chart."""
_DRAWN = [
    *("run", "model", "pass", "batch_size", "variant", "precision", "configuration", "step", "setting"),
    *("latency_ms", "latency_low_ms", "latency_high_ms", "throughput", *FACTOR),
    *("tflops", "intensity", "fraction_of_peak", "peak_memory_mib", *MEMORY),
]
_OF_LATENCY = (*FACTOR, "throughput", "tflops", "intensity", "fraction_of_peak")
"""Drawn figures that are unknown where the latency is, such as the base's factor, which is 1."""


@dataclass(frozen=True)
class Data:
    """The data of a page.

    `cells` are the measured ones, each group fastest first; `run` labels their runs. Each choice has its group's key.
    `layers` has groups of profiled cells that differ only by the variant. `statuses` counts the cases by status.
    """

    runs: Runs
    cells: pl.DataFrame
    choices: Sequence[tuple[dict[str, Any], Choice]]
    problems: pl.DataFrame
    warnings: pl.DataFrame
    layers: Sequence[Sequence[Profiled]]
    statuses: Mapping[str, int]

    @property
    def environments(self) -> dict[str, dict[str, Any]]:
        """Return the first environment.json of each label."""
        first: dict[str, dict[str, Any]] = {}
        for run_id, label in self.runs.labels.items():
            first.setdefault(label, self.runs.environments[run_id])
        return first


def gather(runs: Runs, only: Filter | None = None, merged: pl.DataFrame | None = None) -> Data:
    """Gather the cells that meet the conditions; `merged` are the cells of all runs by run_id, if already made."""
    run = pl.col("run_id").replace_strict(runs.labels, default=None, return_dtype=pl.String)
    results = runs.results.with_columns(run=run).collect()
    merged = cells(results, by=("run",)) if merged is None else merged.with_columns(run=run).drop("run_id")
    if only:
        results = results.filter(chosen(only))
        merged = merged.join(results, on=CONFIGURATION_KEY, how="semi", nulls_equal=True, maintain_order="left")
    merged = _sorted(merged)
    shown = merged.filter(OK)
    statuses = results.group_by("status", maintain_order=True).len().sort("len", descending=True, maintain_order=True)
    return Data(
        runs,
        _derived(shown),
        choices(merged.filter((pl.col("status") != "unsupported").any().over(KEY)), by=("run",)),
        _problems(results),
        warned(results).sort("cases", descending=True, maintain_order=True),
        _layers(runs, shown),
        dict(statuses.iter_rows()),
    )


def _sorted(merged: pl.DataFrame) -> pl.DataFrame:
    """Sort groups for reading, each fastest first; `step` orders configurations by variant, then precision."""
    runs = merged["run"].unique(maintain_order=True)
    models = sorted(merged["model"].unique(), key=natural)
    settings = sorted(merged["setting"].unique(), key=natural)
    engine, variant = place("engine", ENGINES), place("variant", PRESETS)
    names = merged.select("engine", "variant").unique().sort(engine, variant, "variant")["variant"]
    step = place("variant", names.unique(maintain_order=True)) * len(PRECISIONS) + place("precision", PRECISIONS)
    places = [place("run", runs), place("pass", PASSES), place("model", models), place("setting", settings)]
    return merged.with_columns(step=step).sort(*places, "batch_size", "latency_ms", maintain_order=True)


def _derived(shown: pl.DataFrame) -> pl.DataFrame:
    moved = pl.coalesce("moved_mib", "weights_mib")
    rest = pl.col("peak_memory_mib") - pl.sum_horizontal(parts("peak_memory_mib"))
    return shown.with_columns(
        configuration=pl.concat_str("variant", "precision", separator=" "),
        moved_mib=moved,
        gflops_per_item=pl.col("flops_per_item") / 1e9,
        intensity=pl.col("flops_per_item") * pl.col("batch_size") / (moved.replace(0, None) * 2**20),
        over_floor=pl.min_horizontal("latency_ms", "gpu_ms") / pl.col("floor_ms").replace(0, None),
        undivided_mib=pl.when(rest > 0.5).then(rest),
    )


def _problems(results: pl.DataFrame) -> pl.DataFrame:
    keys = ["run", "status", "reason", "pass", "variant", "precision"]
    reasons = not_measured(results, keys, pl.col("model").unique(), pl.len().alias("cases"))
    models = [sorted(names, key=natural) for names in reasons["model"].to_list()]
    return reasons.with_columns(pl.Series("model", models, pl.List(pl.String)))


def _layers(runs: Runs, shown: pl.DataFrame) -> list[list[Profiled]]:
    """Group profiled cells that differ only by the variant; a cell's first profiled process counts."""
    keys = [*KEY, "precision"]
    cases = shown.with_columns(run_id="run_ids", case_id="case_ids").explode("case_id").explode("run_id")
    profiles = together(profiled(cases.with_row_index("replicate"), runs.layers, [*keys, "variant"]), keys)
    # Prefer cells with most variants, then with the largest batch.
    fullest = sorted(profiles, key=lambda cell: (-len(cell), -cell[0].row["batch_size"]))[:_MOST_LAYERED]
    return [cell for cell in profiles if cell in fullest]


def chart_rows(data: Data) -> dict[str, list[Row]]:
    """Return the rows that charts draw, by data set, without figures of too wide intervals."""
    cells = data.cells
    for name, others in {"factor": (), "throughput": (), "latency_ms": _OF_LATENCY}.items():
        low, high = ends_of(name)
        is_narrow = (pl.col(high) <= WIDEST * pl.col(low)).fill_null(value=True)
        cells = cells.with_columns(pl.when(is_narrow).then(pl.col(name, low, high, *others)))
    lines: list[Row] = list(cells.select(_DRAWN).iter_rows(named=True))
    return {"lines": lines, "roofs": _roofs(data), "layers": _longest_layers(data)}


def domains(cells: pl.DataFrame) -> Domains:
    """Return the values that scales cover under every filter."""
    cells = cells.sort("step", nulls_last=True)
    sweep = ["run", "model", "pass", "setting"]  # Groups that differ only by the batch size share these.
    precisions = cells.select("precision").unique().sort(place("precision", PRECISIONS), "precision")
    bases = cells["base"].drop_nulls().unique()
    return Domains(
        cells["variant"].unique(maintain_order=True).to_list(),
        precisions["precision"].to_list(),
        sorted(cells.filter(pl.col("batch_size").n_unique().over(sweep) > 1)["batch_size"].unique()),
        [part for part in MEMORY if cells[part].count()],
        bases[0] if len(bases) == 1 else "the base",
    )


def _roofs(data: Data) -> list[Row]:
    """Return each measured precision's attainable rate over the range of measured intensities."""
    cells = data.cells.drop_nulls(["intensity", "tflops"])
    if cells.is_empty():
        return []
    low, high = cells["intensity"].min() / 2, cells["intensity"].max() * 2  # type: ignore[operator]
    points: list[Row] = []
    for run, environment in data.environments.items():
        roofs = (environment.get("roofs") or {}) if environment.get("roofs_quiet", True) else {}
        slope = roofs.get("copy_gb_s")
        precisions = cells.filter(run=run).sort("step")["precision"].unique(maintain_order=True)
        peaks = {p: peak for p in precisions if (peak := roofs.get(f"{p.removeprefix('amp-')}_tflops"))}
        for precision, peak in peaks.items() if slope else ():
            # Roofs at nearly the same height share the first one's label.
            near = [other for other, height in peaks.items() if 0.8 < height / peak < 1.25]
            ridge = min(max(1000 * peak / slope, low), high)
            for intensity in sorted({low, ridge, high}):
                label = ", ".join(near) if intensity == high and near[0] == precision else None
                row = {"run": run, "precision": precision, "intensity": intensity, "label": label}
                points.append(row | {"tflops": min(peak, slope * intensity / 1000)})
    return points


def _longest_layers(data: Data) -> list[Row]:
    drawn: list[Row] = []
    for cell in data.layers:
        longest = sorted(match_layers(cell), key=lambda layer: max(layer.ms.values()), reverse=True)[:_MOST_LAYERS]
        keys = {case.row["variant"]: {name: case.row[name] for name in CONFIGURATION_KEY} for case in cell}
        for layer in longest:
            names = {"nodes": layer.nodes, "modules": layer.modules}
            drawn += [{**key, **names, "ms": layer.ms[name]} for name, key in keys.items() if name in layer.ms]
    return drawn
