"""Find the cases that would tell nothing new: another one runs the same program, or a faster one has won clearly."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import polars as pl

from engines.options import PRECISION_TABLE
from profiler.job.case import Case
from profiler.results.cells import Row
from profiler.results.choice import cell_name, choices
from profiler.run.search import identity, with_option
from profiler.worker.task import Task

_CLEAR = 2.0
"""Factor over its base from which a winner is clear.

On an H200 the fastest TF32 was then 1.16 to 2.4 times slower than the fastest fp16: 13 networks and ViT-B/16, batch 1
to 64 (docs/results). A single engine proves nothing: in a fifth of these cells its TF32 was faster than its fp16.
"""


def same_programs(tasks: Sequence[Task], plan: Iterable[Case]) -> dict[str, str]:
    """Find cases whose NHWC changes nothing, since no tensor is an image; map their ids to the reason."""
    planned = {identity(case): case.variant for case in plan if case.unsupported is None}
    reasons = dict[str, str]()
    for case in (task.case for task in tasks if not task.prepared.has_images):
        if case.options.get("channels_last"):
            plain = planned.get(identity(with_option(case, "channels_last", value=False)))
            reasons |= {case.id: f"the same program as {plain}: no input or weight is an image"} if plain else {}
    return reasons


def beaten(tasks: Sequence[Task], plan: Iterable[Case], cells: pl.DataFrame) -> dict[str, str]:
    """Find inference at TF32 that fewer bits have beaten clearly, within the error limit; map ids to the reason.

    The winner's variant is measured at TF32 all the same: that tells what exact weights cost. `cells` are those so far.
    """
    planned = {(*_place(case), case.variant) for case in plan if case.precision == "tf32" and case.unsupported is None}
    winners: dict[tuple[object, ...], Row | None] = {
        (key["model"], key["pass"], key["batch_size"], key["setting"] or ""): c.best for key, c in choices(cells)
    }
    reasons = dict[str, str]()
    for case in (task.case for task in tasks if (task.case.pass_, task.case.precision) == ("inference", "tf32")):
        best = winners.get(_place(case))
        if best is None or best["variant"] == case.variant or (*_place(case), best["variant"]) not in planned:
            continue
        if PRECISION_TABLE[best["precision"]].bits < PRECISION_TABLE["tf32"].bits and (best["factor"] or 0.0) >= _CLEAR:
            reasons[case.id] = f"{cell_name(best)} is clearly faster, within the error limit"
    return reasons


def _place(case: Case) -> tuple[object, ...]:
    return case.model, case.pass_, case.batch_size, case.setting
