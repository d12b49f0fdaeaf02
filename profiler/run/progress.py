"""Show a run's progress: a live line on a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from typing import Self

from rich.console import Console
from rich.live import Live
from rich.text import Text

from profiler.job.case import Case
from profiler.results.result import Result
from profiler.stats.samples import median
from profiler.tables.numbers import counted, decimals, duration

_REDRAW_SECONDS = 1.0
_STYLES = {"ok": "green", "unsupported": "dim"}


class Display:
    """Print one line per ended case, and what is done in between.

    On a terminal the latter is one line, redrawn at most once a second so as not to slow the case down.
    """

    def __init__(self, console: Console) -> None:
        self._console = console
        self._live = Live(console=console, auto_refresh=False, transient=True) if console.is_terminal else None
        self._last, self._place, self._drawn = "", "", 0.0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()

    def doing(self, what: str, done: int = 0, total: int = 1) -> None:
        """Show what is prepared or waited for; called a few times a second."""
        text = f"{what}, {done} of {total}" if total > 1 else what
        if self._live is not None:
            self._draw(text)
        elif text != self._last:
            self._console.print(Text(text), soft_wrap=True, highlight=False)
        self._last = text

    def measuring(self, case: Case, phase: str, done: int, total: int, seconds_left: float) -> None:
        """Show what is measured; called a few times a second while a case runs."""
        self._place = f"[{done + 1}/{total}] "
        self._draw(f"{self._place}{case.id}  {phase}, about {duration(seconds_left)} left")

    def announce(self, what: str) -> None:
        """Print a line of its own, or several: it is wrapped."""
        self._console.print(Text(what), highlight=False)

    def ended(self, case: Case, result: Result, counts: bool = True) -> None:
        """Print a case's median, or why it has none; where that does not count, an earlier measurement stays."""
        what = f"{result.reason or ''}{f' (log: {result.log})' if result.log else ''}"
        samples = result.samples.get(result.clock or "", [])
        if result.status == "ok" and (middle := median(samples)) is not None:
            what = f"{decimals(middle)} ms, {counted(len(samples), 'sample')}"
        what += "" if counts else ": the earlier measurement was quieter and stays"
        status = Text(f"{result.status:<11} ", style=_STYLES.get(result.status, "red"))
        line = Text.assemble(self._place, status, f"{case.id}  ", (what, "dim"))
        self._console.print(line, soft_wrap=True, highlight=False)

    def _draw(self, text: str) -> None:
        now = time.monotonic()
        if self._live is not None and now - self._drawn >= _REDRAW_SECONDS:
            self._live.start()  # Only now: one that never draws leaves no empty line.
            self._drawn = now
            self._live.update(Text(text, overflow="ellipsis", no_wrap=True), refresh=True)
