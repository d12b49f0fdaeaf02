"""Show a run's progress: a live line on a terminal, plain lines elsewhere."""

from __future__ import annotations

import time

from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from profiler.job.case import Case
from profiler.results.result import Result
from profiler.tables.numbers import counted, decimals, duration

_REDRAW_SECONDS = 1.0
_STYLES = {"ok": "green", "unsupported": "dim"}


def open_display(console: Console) -> PlainDisplay | LiveDisplay:
    """The live display on a terminal, plain lines elsewhere."""
    return LiveDisplay(console) if console.is_terminal else PlainDisplay(console)


class PlainDisplay:
    """One line per ended case, for logs and pipes."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._prepared: tuple[str, int] | None = None
        self._number, self._total, self._left = 0, 0, 0.0

    def __enter__(self) -> PlainDisplay:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def preparing(self, what: str, done: int, total: int) -> None:
        if (what, done) != self._prepared:
            self._prepared = what, done
            self._print(Text(f"prepare: {what}, {done} of {total}"))

    def measuring(self, case: Case, phase: str, done: int, total: int, seconds_left: float) -> None:
        self._number, self._total, self._left = done + 1, total, seconds_left

    def building(self, what: str, phase: str, done: int, total: int) -> None:
        if (what, done) != self._prepared:
            self._prepared = what, done
            self._print(Text(f"[{done + 1}/{total}] build: {what}"))

    def ended(self, case: Case, result: Result) -> None:
        self._print(Text(f"[{self._number}/{self._total}] ").append_text(_line(case, result)))

    def _print(self, text: Text) -> None:
        self._console.print(text, soft_wrap=True, highlight=False)


class LiveDisplay:
    """What runs now, how many are left, and the time left; redrawn at most once a second, so as not to disturb."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._live = Live(console=console, auto_refresh=False, transient=True)
        self._drawn = 0.0

    def __enter__(self) -> LiveDisplay:
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def preparing(self, what: str, done: int, total: int) -> None:
        self._draw(Text(f"Preparing: {what}, {done} of {total}"))

    def measuring(self, case: Case, phase: str, done: int, total: int, seconds_left: float) -> None:
        line = Table.grid(padding=(0, 2))
        line.add_row(
            Text(f"{done + 1}/{total}", style="bold"),
            Text(str(case.id), style="cyan"),
            Text(phase, style="dim"),
            Text(f"about {duration(seconds_left)} left"),
        )
        self._draw(line)

    def building(self, what: str, phase: str, done: int, total: int) -> None:
        """Called a few times a second while an engine is built ahead of time."""
        line = Table.grid(padding=(0, 2))
        line.add_row(Text(f"{done + 1}/{total}", style="bold"), Text(what, style="cyan"), Text(phase, style="dim"))
        self._draw(line)

    def ended(self, case: Case, result: Result) -> None:
        self._console.print(_line(case, result), soft_wrap=True, highlight=False)

    def _draw(self, what: Text | Table) -> None:
        now = time.monotonic()
        if now - self._drawn >= _REDRAW_SECONDS:
            self._drawn = now
            self._live.update(what, refresh=True)


def _line(case: Case, result: Result) -> Text:
    """How a case ended: its median, or why it has none."""
    samples = sorted(result.samples.get(result.clock or "", []))
    what = result.reason or ""
    if result.status == "ok" and samples:
        what = f"{decimals(samples[len(samples) // 2])} ms, {counted(len(samples), 'sample')}"
    status = Text(f"{result.status:<11} ", style=_STYLES.get(result.status, "red"))
    return status.append(f"{case.id}  ", style="default").append(what, style="dim")
