"""Show a run's progress: a live line on a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from typing import Self

from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from profiler.job.case import Case
from profiler.results.result import Result
from profiler.stats.samples import median
from profiler.tables.numbers import counted, decimals, duration

_REDRAW_SECONDS = 1.0
_STYLES = {"ok": "green", "unsupported": "dim", "disturbed": "yellow"}


class PlainDisplay:
    """One line per ended case, for logs and pipes."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._last, self._place, self._is_waiting = "", "", False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def preparing(self, what: str, done: int, total: int) -> None:
        """Show what is prepared; called a few times a second."""
        self._print_once(f"prepare: {what}{f', {done} of {total}' if total > 1 else ''}")

    def measuring(self, case: Case, phase: str, done: int, total: int, seconds_left: float) -> None:
        """Show what is measured; called a few times a second while a case runs."""
        self._place, self._is_waiting = f"[{done + 1}/{total}] ", False

    def waiting(self, what: str) -> None:
        """Show what the run waits for; called about once a second."""
        if not self._is_waiting:  # Once for each case: what keeps it busy is different every second.
            self._print_once(what)
        self._is_waiting = True

    def announce(self, what: str) -> None:
        """Print a line of its own, or several: it is wrapped."""
        self._console.print(Text(what), highlight=False)

    def ended(self, case: Case, result: Result, counts: bool = True) -> None:
        """Print how a case ended; where that does not count, an earlier measurement of it stays."""
        line = Text(self._place).append_text(_line(case, result, counts))
        self._console.print(line, soft_wrap=True, highlight=False)

    def _print_once(self, text: str) -> None:
        if text != self._last:
            self._last = text
            self._console.print(Text(text), soft_wrap=True, highlight=False)


class LiveDisplay(PlainDisplay):
    """One line that is redrawn at most once a second, so as not to disturb: what runs now, and the time left."""

    def __init__(self, console: Console) -> None:
        super().__init__(console)
        self._live = Live(console=console, auto_refresh=False, transient=True)
        self._drawn = 0.0

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def preparing(self, what: str, done: int, total: int) -> None:
        self._draw(Text(f"Preparing: {what}, {done} of {total}"))

    def measuring(self, case: Case, phase: str, done: int, total: int, seconds_left: float) -> None:
        left = Text(f"about {duration(seconds_left)} left")
        place = Text(f"{done + 1}/{total}", style="bold")
        self._draw(place, Text(case.id, style="cyan"), Text(phase, style="dim"), left)

    def waiting(self, what: str) -> None:
        self._draw(Text(what, style="yellow"))

    def _draw(self, *words: Text) -> None:
        now = time.monotonic()
        if now - self._drawn >= _REDRAW_SECONDS:
            self._live.start()  # Only now: one that never draws leaves no empty line.
            self._drawn = now
            line = Table.grid(padding=(0, 2))
            line.add_row(*words)
            self._live.update(line, refresh=True)


Display = PlainDisplay


def open_display(console: Console) -> Display:
    """Open the live display on a terminal, plain lines elsewhere."""
    return LiveDisplay(console) if console.is_terminal else PlainDisplay(console)


def _line(case: Case, result: Result, counts: bool) -> Text:
    """Say how a case ended: its median, why there is none, or that it does not count."""
    what = f"{result.reason or ''}{f' (log: {result.log})' if result.log else ''}"
    samples = result.samples.get(result.clock or "", [])
    middle, state = median(samples), str(result.status)
    if result.status == "ok" and not counts:
        what, state = "no less disturbed", "disturbed"
    elif result.status == "ok" and middle is not None:
        what = f"{decimals(middle)} ms, {counted(len(samples), 'sample')}"
    what += "" if counts else ": the earlier measurement stays"
    status = Text(f"{state:<11} ", style=_STYLES.get(state, "red"))
    return status.append(f"{case.id}  ", style="default").append(what, style="dim")
