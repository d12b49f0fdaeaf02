"""Find the cases that would tell nothing new: another one runs the same program, or a faster one has won clearly."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import polars as pl

from engines.options import PRECISION_TABLE
from profiler.job.case import Case
from profiler.results.cells import Row
from profiler.results.choice import cell_name, choices
from profiler.results.result import Result
from profiler.results.warning_kinds import DISTURBED
from profiler.run.search import identity, with_option
from profiler.worker.task import Task

_CLEAR = 2.0
"""A winner is clear if it is this many times as fast as its base.

On an H200 the fastest TF32 was then 1.16 to 2.4 times slower than the fastest fp16: 13 networks and ViT-B/16, batch 1
to 64 (docs/results). Within one engine TF32 was faster than fp16 in a fifth of the cells.
"""


def same_programs(tasks: Iterable[Task], plan: Iterable[Case]) -> list[Result]:
    """Return a result for each task whose NHWC changes nothing, since no tensor is an image."""
    planned = {identity(case): case.variant for case in plan if case.unsupported is None}
    results = []
    for case in (task.case for task in tasks if not task.prepared.has_images):
        if case.options.get("channels_last"):
            plain = planned.get(identity(with_option(case, "channels_last", value=False)))
            reason = f"the same program as {plain}: NHWC is for images, and no input or weight has their dimensions"
            results += [Result(case.id, "skipped", [reason])] if plain else []
    return results


def beaten(tasks: Iterable[Task], plan: Iterable[Case], cells: pl.DataFrame) -> list[Result]:
    """Return a result for each task at TF32 that fewer bits have beaten clearly, within the error limit.

    The winner's variant is measured at TF32 all the same: that tells what exact weights cost. Labels may set another
    limit, so that with scores nothing is beaten. `cells` are those so far.
    """
    planned = {(*_place(case), case.variant) for case in plan if case.precision == "tf32" and case.unsupported is None}
    winners: dict[tuple[object, ...], Row] = {
        (key["model"], key["pass"], key["batch_size"], key["setting"] or ""): choice.best
        for key, choice in choices(cells)
        if choice.best and _is_clear(choice.best, [c for c in choice.cells if c["is_base"] and c["status"] == "ok"])
    }
    results = []
    for case in (task.case for task in tasks if (task.case.pass_, task.case.precision) == ("inference", "tf32")):
        best = winners.get(_place(case))
        if best and best["variant"] != case.variant and (*_place(case), best["variant"]) in planned:
            speed = f"at least {_CLEAR:g} times as fast as the base, within the error limit"
            reason = f"{cell_name(best)} is {speed}; TF32 was not tried"
            results.append(Result(case.id, "skipped", [reason], beaten_by=cell_name(best)))
    return results


def _is_clear(best: Row, bases: Sequence[Row]) -> bool:
    is_narrow = PRECISION_TABLE[best["precision"]].bits < PRECISION_TABLE["tf32"].bits
    is_quiet = all(DISTURBED not in cell["footnotes"] for cell in (best, *bases))
    lows = [base["latency_low_ms"] or base["latency_ms"] for base in bases]
    is_far = bool(lows) and min(lows) >= _CLEAR * best["latency_ms"]
    return is_narrow and is_quiet and is_far and best["accuracy"] is None


def _place(case: Case) -> tuple[object, ...]:
    return case.model, case.pass_, case.batch_size, case.setting
