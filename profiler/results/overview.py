"""Tabulate answers, two lines a model: the base, the best of each runtime, and which to deploy."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from engines.catalog import ENGINES
from profiler.results.cells import Row
from profiler.results.choice import Choice, cell_name
from profiler.tables import numbers
from profiler.tables.table import Table, figure, name

_NOTE = "Each runtime's best: ms and ×, then MiB and error bound; ~ marks a × whose verdict is unclear."
_BASE = "base"


def overview(answers: Sequence[tuple[str, Mapping[str, Any], Choice]]) -> Table:
    """Make a row of each answer: a subject, such as "resnet50, b1", the keys that a page filters by, and the choice."""
    by_runtime = [best_of_runtimes(choice) for _, _, choice in answers]
    wins = Counter(choice.best["engine"] for _, _, choice in answers if choice.best)
    runtimes = [runtime for runtime in (_BASE, *ENGINES) if any(runtime in cells for cells in by_runtime)]
    bases = {cell_name(cells[_BASE]) for cells in by_runtime if _BASE in cells}
    frame: dict[str, list[Any]] = {"deploy": [f"{subject}\n{_deploy(choice)}" for subject, _, choice in answers]}
    frame |= {key: [keys[key] for _, keys, _ in answers] for key in (answers[0][1] if answers else ())}
    frame |= {runtime: [_figures(cells.get(runtime)) for cells in by_runtime] for runtime in runtimes}
    headings = {runtime: runtime for runtime in runtimes} | {_BASE: bases.pop() if len(bases) == 1 else "Base"}
    # A narrow terminal keeps the base and each winner, and drops the last of the others first.
    columns = [
        figure(headings[runtime], runtime, numbers.as_written, expendable=0 if wins[runtime] else place)
        for place, runtime in enumerate(runtimes)
    ]
    keys = [key for key in frame if key not in ("deploy", *runtimes)]
    fields = [name("Model, and what to deploy", "deploy", numbers.as_written), *columns]
    return Table("deploy", "What to deploy", frame, fields, keys=keys, note=_NOTE)


def _deploy(choice: Choice) -> str:
    nothing = "nothing meets the limits" if choice.nearest else "nothing to deploy"
    words = {"undecided": "no recommendation yet", "nothing": nothing}
    cells = choice.leaders
    batches = [f" b{cell['batch_size']}" * (cell["batch_size"] != cells[0]["batch_size"]) for cell in cells]
    names = dict.fromkeys(f"{cell_name(cell)}{batch}" for cell, batch in zip(cells, batches, strict=True))
    first, *ties = names or [""]
    tied = f" or {ties[0] if len(ties) == 1 else f'{len(ties)} more'}" if ties else ""
    return f"→ {words.get(choice.status, first + tied)}"


def best_of_runtimes(choice: Choice) -> dict[str, Row]:
    """Return the base and each engine's best other cell, of the answer's batch and setting."""
    place, best = ("batch_size", "setting", "machine"), dict[str, Row]()
    cells = [cell for cell in choice.cells if cell["latency_ms"]]
    for cell in cells:
        if all(cell[key] == cells[0][key] for key in place):
            best.setdefault(_BASE if cell["is_base"] else cell["engine"], cell)
    return best


def _figures(cell: Row | None) -> str:
    if cell is None:
        return ""
    is_busy = numbers.is_busy(cell["latency_low_ms"], cell["latency_high_ms"])
    times = [numbers.BUSY if is_busy else numbers.significant(cell["latency_ms"])]
    if cell["factor"] and not cell["is_base"] and not numbers.is_busy(cell["factor_low"], cell["factor_high"]):
        times.append(f"{'~' if cell['verdict'] in (None, 'unclear') else ''}{numbers.times(cell['factor'])}")
    others = [] if cell["peak_memory_mib"] is None else [numbers.count(cell["peak_memory_mib"])]
    others += [] if cell["error_high"] is None else [numbers.error(cell["error_high"], 1)]
    return f"{' '.join(times)}\n{' '.join(others)}"
