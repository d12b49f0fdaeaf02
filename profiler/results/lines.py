"""What enters: results and samples of a run. What leaves: latency, memory and speed-up tables, a sentence per group.

A group is a model, a pass, a batch size and what else distinguishes a case, such as an optimizer: what a deployment
chooses within. Replicates of a case are one line.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import polars as pl

from profiler.job.case import Role, setting_words
from profiler.results import batch_sweeps
from profiler.results.columns import MEASURE, Column, Group, Shown, columns, names
from profiler.results.layer_passes import best_per_layer, layer_rows
from profiler.results.replicates import as_one
from profiler.results.speedups import (
    CONFIGURATION,
    GROUP,
    sides,
    speedups,
    spreads,
    with_device_intervals,
)
from profiler.results.warning_kinds import KINDS
from profiler.stats.ratios import Verdict
from profiler.tables import numbers
from profiler.tables.numbers import times
from profiler.tables.table import of_frame
from profiler.tables.writers import TEXTS

LINE = CONFIGURATION
IDENTITY = ["setting", "role", "is_base"]
"""What else is the same in all replicates of a line."""
Line = dict[str, Any]
"""A row of `summary`."""

_TIMES = (Group.LATENCY, Group.CLOCKS, Group.PARTS, Group.THROUGHPUT, Group.COST, Group.ACCURACY)
"""What tables/latency.csv has of a case."""


def latency(results: pl.DataFrame) -> pl.DataFrame:
    """One row a measured case: every clock's figures."""
    return _ok(results).select([*LINE, "replicate", *names(*_TIMES), "warnings"])


def memory(results: pl.DataFrame) -> pl.DataFrame:
    """One row a measured case: the parts of its memory."""
    return _ok(results).select([*LINE, "replicate", *names(Group.MEMORY)])


def problems(results: pl.DataFrame) -> pl.DataFrame:
    """The cases without figures, one row a reason, with how many share it."""
    bad = without_probes(results).filter(pl.col("status") != "ok")
    keys = ["status", "model", "variant", "pass", "precision", "reason"]
    return bad.group_by(keys, maintain_order=True).agg(pl.col("batch_size").unique().sort())


def summary(results: pl.DataFrame, samples: pl.DataFrame, common: pl.DataFrame | None = None) -> pl.DataFrame:
    """One row a line of the printed tables: medians over replicates, and how it compares with its group's base.

    `speedup` and its ends are on the headline clock; `device_speedup`, its ends and `verdict` on the verdict's clock,
    which is `gpu` on CUDA and `host` on the CPU. `indistinguishable_from` is in a group's fastest line only: the
    runner-up, where three replicates a side do not tell them apart; `runner_up_verdict` is the verdict on the two.
    `warnings` are the kinds that its replicates carry. `common` are the `spreads` of the whole run, where `results` are
    a part of it.
    """
    measures = [column.name for column in columns(*Group) if column.type == MEASURE and _is_summed_up(column)]
    rows = with_device_intervals(_ok(results), samples)
    own = [*measures, "clock", *IDENTITY, "warnings"]
    lines = sides(rows, LINE, spreads(results) if common is None else common, *as_one(rows.select(own).schema))
    return lines.select(*LINE, *own[:-1], "replicates", "warnings").hstack(speedups(lines))


def _is_summed_up(column: Column) -> bool:
    return column.group in (*_TIMES, Group.ROOFLINE) or column.shown == Shown.TERMINAL


def groups(lines: pl.DataFrame) -> Iterator[tuple[dict[str, Any], list[dict[str, Any]]]]:
    """Each group's key and its lines, fastest first."""
    for key, group in lines.group_by(GROUP, maintain_order=True):
        rows = group.sort("latency_ms").to_dicts()
        yield {**dict(zip(GROUP, key, strict=True)), **{name: rows[0][name] for name in ("setting", "role")}}, rows


def title(key: dict[str, Any]) -> str:
    """A group's, like "resnet50, training, batch 16, optimizer sgd"."""
    return ", ".join([key["model"], key["pass"], f"batch {key['batch_size']}", *setting_words(key["setting"])])


def sentence(key: dict[str, Any], lines: list[Line]) -> str | None:
    """What a group says, like "resnet50, batch 16: ort-tuned fp16 is 5.8× fp32 eager (5.7–5.9), error 4e-4".

    With replicates a verdict follows: "; on device time 5.7× (5.6–5.8): faster". Where the line or the base was
    disturbed, " (drift: measure again)" ends it.
    """
    best = lines[0]
    if best["speedup"] is None or len(lines) < 2:
        return None
    model = f"{key['model']}{' training' if key['pass'] == 'training' else ''}"
    what = ", ".join([model, f"batch {key['batch_size']}", *setting_words(best["setting"])])
    base, tied = best["base"], best["indistinguishable_from"]
    carried = {kind for line in lines if line is best or line["is_base"] for kind in line["warnings"]}
    disturbed = ", ".join(kind.kind for kind in KINDS.values() if kind.unsteady and kind.kind in carried)
    doubt = f" ({disturbed}: measure again)" if disturbed else ""
    if best["is_base"]:
        return f"{what}: nothing was faster than {base}{f', {_tie(best)}' if tied else ''}{doubt}"
    ratio = times(best["speedup"], best["speedup_low"], best["speedup_high"], f"× {base}")
    error = f", error {numbers.error(best['rel_l2_error'], 1)}" if best["rel_l2_error"] is not None else ""
    low = best["speedup_low"]
    unclear = low is not None and low <= 1 if best["verdict"] is None else not Verdict(best["verdict"]).differs
    clear = "no clear winner; " if unclear else ""
    return f"{what}: {clear}{_name(best)} is {ratio}{error}{_judgement(best, lines)}{doubt}"


def write_tables(folder: Path, results: pl.DataFrame, lines: pl.DataFrame) -> None:
    """Each table as CSV (all digits) and as Markdown; `lines` are `summary`'s."""
    folder.mkdir(exist_ok=True)
    tables = {
        "latency": latency(results),
        "memory": memory(results),
        "speedup": lines.drop(IDENTITY),
        "not-measured": problems(results),
    }
    if "layer" in results["model_kind"]:
        tables["layer-passes"] = layer_rows(results)
        tables["best-per-layer"] = best_per_layer(tables["layer-passes"])
    if (results["role"] != Role.CELL).any():
        tables["minibatch"] = batch_sweeps.efficiency(results)
        tables["minibatch-knees"] = batch_sweeps.knees(results)
        tables["minibatch-curvature"] = batch_sweeps.curvature(results)
        tables["largest-batch"] = batch_sweeps.largest(results)
    for name, frame in tables.items():
        for ending in ("csv", "md"):
            text = TEXTS[ending](of_frame(name, name, frame))
            (folder / f"{name}.{ending}").write_text(text, encoding="utf-8")


def without_probes(results: pl.DataFrame) -> pl.DataFrame:
    """The rows that the job asked for: without those by which the largest batch was searched."""
    return results.filter(pl.col("role") != Role.PROBE)


def _ok(results: pl.DataFrame) -> pl.DataFrame:
    return without_probes(results).filter(pl.col("status") == "ok")


def _judgement(best: Line, lines: list[Line]) -> str:
    """How the best of `lines` compares with the base and with the runner-up; empty without replicates."""
    tied, other = _tie(best), best["indistinguishable_from"]
    if other in [_name(line) for line in lines if line["is_base"]]:
        tied = ""  # The verdict on the base says it already.
    if best["verdict"] is None:
        return f"; {tied}" if tied else ""
    said = Verdict(best["verdict"])
    text = str(said) if said.differs else f"{said.relation} {best['base']}"
    if tied:
        alike = said == best["runner_up_verdict"]
        text += f", but {tied}" if said.differs else f" and {other if alike else tied}"
    if best["clock"] == "host":
        return f": {text}"
    ratio = times(*(best[f"device_speedup{end}"] for end in ("", "_low", "_high")))
    return f"; on device time {ratio}: {text}"


def _tie(best: Line) -> str:
    """Like "indistinguishable from ort fp32", the runner-up; empty where the two are told apart."""
    verdict = best["runner_up_verdict"]
    return f"{Verdict(verdict).relation} {best['indistinguishable_from']}" if verdict else ""


def _name(line: Line) -> str:
    return f"{line['variant']} {line['precision']}"
