"""Show a run's progress: live lines on a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from contextlib import AbstractContextManager

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from profiler.job.case import Case
from profiler.results.result import Result
from profiler.results.warning_kinds import retaken
from profiler.stats.samples import median
from profiler.tables.numbers import counted, decimals, duration

_REDRAW_SECONDS = 1.0
_SILENT_SECONDS, _UNCHANGED_SECONDS = 5.0, 60.0
"""Silence after which a log gets a line, and before it repeats one."""
_STYLES = {"ok": "green", "unsupported": "dim", "skipped": "dim"}


class Display(AbstractContextManager["Display", None]):
    """Shows progress and how each case ended.

    A terminal gets a few lines, redrawn at most once a second so as not to slow the case. A log gets a line for each
    step and case, and further ones after a silence.
    """

    def __init__(self, console: Console) -> None:
        self._console = console
        self._live = Live(console=console, auto_refresh=False, transient=True) if console.is_terminal else None
        self._doing, self._place, self._announced, self._fastest = "", "", "", list[str]()
        self.label = ""
        """Shown before a case instead of its number, such as a comparison's side."""
        self._ended, self._so_far, self._failures = Text(), Text(), set[str]()
        self._drawn, self._printed, self._last_text = 0.0, time.monotonic(), ""

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()

    @property
    def is_live(self) -> bool:
        """True on a terminal, where somebody may be watching."""
        return self._live is not None

    def doing(self, text: str, done: int = 0, total: int = 1) -> None:
        """Show a step, such as preparing or waiting. Call it a few times a second."""
        if self._live is None and text != self._doing:
            self._print(Text(text))
        self._doing = text
        self._show(f"{text}, {done} of {total}" if total > 1 else text)

    def measuring(self, case: Case, phase: str, done: int, total: int, seconds_left: float) -> None:
        """Show the running case. Call it a few times a second."""
        self._place = f"{self.label or f'[{done + 1}/{total}]'} "
        self._show(f"{self._place}{case.id}  {phase}, about {duration(seconds_left)} left")

    def announce(self, text: str) -> None:
        """Print a text that may wrap, unless it repeats the last one."""
        if text != self._announced:
            self._console.print(Text(text), highlight=False)
        self._announced = text

    def ended(self, result: Result, counts: bool = True, where: str = "") -> None:
        """Show a case's median and `where` it ran, or its reason; mark a second take that does not count."""
        details = f"{result.reason or ''}{f' (log: {result.log})' if result.log else ''}"
        samples = result.samples.get(result.clock or "", [])
        if is_ok := result.status == "ok" and (middle := median(samples)) is not None:
            doubts = dict.fromkeys(warning.kind for warning in retaken(result.warnings))
            details = ", ".join([f"{decimals(middle)} ms", counted(len(samples), "sample"), *doubts])
        details += "" if counts else ": the earlier measurement was quieter and stays"
        status = Text(f"{result.status:<11} ", style=_STYLES.get(result.status, "red"))
        if not is_ok and not result.phases:  # The model could not be prepared: its first case says why.
            if str(result.reason) in self._failures:
                return
            self._failures.add(str(result.reason))
        line = Text.assemble(self._place, f"{where} ".lstrip(), status, f"{result.case_id}  ", (details, "dim"))
        if self._live is None or not is_ok:  # Failures stay on the screen.
            self._print(line)
        else:
            self._ended = line

    def so_far(self, fastest: list[str], text: str) -> None:
        """Show the fastest configurations so far; in a log only when they change."""
        if self._live is None and fastest != self._fastest:
            self._print(Text(text, style="bold"))
        self._fastest, self._so_far = fastest, Text(text, style="bold")

    def _print(self, line: Text) -> None:
        self._console.print(line, soft_wrap=True, highlight=False)
        self._printed = time.monotonic()

    def _show(self, text: str) -> None:
        now = time.monotonic()
        if self._live is None:
            if now - self._printed >= (_UNCHANGED_SECONDS if text == self._last_text else _SILENT_SECONDS):
                self._print(Text(f"  {text}", style="dim"))
                self._last_text = text
        elif now - self._drawn >= _REDRAW_SECONDS:
            self._live.start()  # Not earlier: a display that shows nothing must leave no empty line.
            self._drawn = now
            lines = [line for line in (self._ended, Text(text), self._so_far) if line]
            for line in lines:
                line.overflow, line.no_wrap = "ellipsis", True
            self._live.update(Group(*lines), refresh=True)
