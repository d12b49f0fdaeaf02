"""What enters: `Data`. What leaves: the rows that the charts draw, by data set, and what their scales must hold."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import polars as pl

from engines.catalog import PRECISIONS
from profiler.report import content
from profiler.report.chart_specs import MEMORY, SETUP, TRAINING, Domains
from profiler.report.data import LINE, Data

Row = dict[str, Any]

_MOST_GROUPS = 14
"""Of nodes, in the chart of layers: the longest."""
_DRAWN = [
    *("run", "model", "pass", "batch_size", "extra", "variant", "precision", "line", "rung", "place"),
    *("latency_ms", "gpu_ms", "speedup", "speedup_low", "speedup_high", "throughput", "item_ms", "item_s"),
    *("tflops", "intensity", "fraction_of_peak", "peak_memory_mib", *MEMORY),
    *("setup_s", *SETUP, *TRAINING, "ticks"),
]


def rows(data: Data) -> dict[str, list[Row]]:
    """One row a line in `lines`, a point of a roof in `roofs`, a variant's time for a group of nodes in `layers`."""
    return {"lines": _lines(data), "roofs": _roofs(data), "layers": _layers(data)}


def domains(data: Data, drawn: Sequence[Row]) -> Domains:
    """What the scales must hold, whatever is chosen; `drawn` are the rows of `lines`."""
    lines = data.lines.sort("rung")
    away = sorted(tick / row["latency_ms"] - 1 for row in drawn for tick in row["ticks"] or [])
    low, high = (away[len(away) // 100], away[-1 - len(away) // 100]) if away else (0.0, 0.0)
    precisions = lines["precision"].unique(maintain_order=True).to_list()
    return Domains(
        lines["variant"].unique(maintain_order=True).to_list(),
        sorted(precisions, key=lambda name: PRECISIONS.index(name) if name in PRECISIONS else len(PRECISIONS)),
        sorted(lines["batch_size"].unique()),
        [part for part in (*MEMORY, *TRAINING, *SETUP) if lines[part].count()],
        max((items for items in lines["best_from_items"] if items), default=0.0),
        (max(-0.5, min(-0.05, low)), min(2.0, max(0.05, high))),
    )


def _lines(data: Data) -> list[Row]:
    ticks = data.drawn.select(*LINE, "ticks")
    lines = data.lines.join(ticks, on=LINE, how="left", nulls_equal=True, maintain_order="left").with_row_index("place")
    return lines.select(_DRAWN).to_dicts()


def _roofs(data: Data) -> list[Row]:
    """The attainable rate of each precision that occurs, over the range of intensities that occur."""
    known = data.lines.filter(pl.col("intensity").is_not_null(), pl.col("tflops").is_not_null())
    if known.is_empty():
        return []
    intensities = known["intensity"].to_list()
    low, high = min(intensities) / 2, max(intensities) * 2
    found = []
    for run, environment in data.environments.items():
        roofs = environment.get("roofs") or {}
        slope = roofs.get("copy_gb_s")
        precisions = known.filter(run=run).sort("rung")["precision"].unique(maintain_order=True)
        peaks = {p: peak for p in precisions if (peak := roofs.get(f"{p.removeprefix('amp-')}_tflops"))}
        for precision, peak in peaks.items() if slope else ():
            # Roofs that lie upon each other share a label, which the first of them has.
            near = [other for other, height in peaks.items() if 0.8 < height / peak < 1.25]
            ridge = min(max(1000 * peak / slope, low), high)
            for intensity in sorted({low, ridge, high}):
                attainable = min(peak, slope * intensity / 1000)
                label = ", ".join(near) if intensity == high and near[0] == precision else None
                row = {"run": run, "precision": precision, "intensity": intensity, "tflops": attainable, "label": label}
                found.append(row)
    return found


def _layers(data: Data) -> list[Row]:
    """Of each profiled cell the longest groups of nodes, a row a variant."""
    found = []
    for cell in data.layers:
        groups = sorted(content.layer_rows(cell), key=_longest, reverse=True)[:_MOST_GROUPS]
        for group in groups:
            for case in cell:
                ms = group.get(f"ms_{case.row['variant']}")
                if ms is not None:
                    known = {key: case.row[key] for key in LINE}
                    found.append({**known, "nodes": group["nodes"], "modules": group["modules"], "ms": ms})
    return found


def _longest(group: Mapping[str, Any]) -> float:
    return max(float(ms) for key, ms in group.items() if key.startswith("ms_"))
