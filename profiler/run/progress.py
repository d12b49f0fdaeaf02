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
"""After so long a log gets a line even where nothing has ended; after the second the same one again."""
_STYLES = {"ok": "green", "unsupported": "dim"}


class Display(AbstractContextManager["Display", None]):
    """Show what is done, and how each case ended.

    On a terminal these are a few lines, redrawn at most once a second so as not to slow the case down; elsewhere a line
    a step and a case, and one more whenever there was none for a while.
    """

    def __init__(self, console: Console) -> None:
        self._console = console
        self._live = Live(console=console, auto_refresh=False, transient=True) if console.is_terminal else None
        self._doing, self._place, self._fastest = "", "", list[str]()
        self.what = ""
        """What is measured now besides its case, such as the side of a comparison."""
        self._ended, self._so_far = Text(), Text()
        self._drawn, self._printed, self._said = 0.0, time.monotonic(), ""

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()

    @property
    def is_live(self) -> bool:
        """Return whether somebody looks."""
        return self._live is not None

    def doing(self, what: str, done: int = 0, total: int = 1) -> None:
        """Show what is prepared or waited for; called a few times a second."""
        if self._live is None and what != self._doing:
            self._print(Text(what))
        self._doing = what
        self._show(f"{what}, {done} of {total}" if total > 1 else what)

    def measuring(self, case: Case, phase: str, done: int, total: int, seconds_left: float) -> None:
        """Show what is measured; called a few times a second while a case runs."""
        self._place = f"{self.what or f'[{done + 1}/{total}]'} "
        self._show(f"{self._place}{case.id}  {phase}, about {duration(seconds_left)} left")

    def announce(self, what: str) -> None:
        """Print a line of its own, or several: it is wrapped."""
        self._console.print(Text(what), highlight=False)

    def ended(self, result: Result, counts: bool = True, where: str = "") -> None:
        """Show a case's median `where` it ran, or why it has none; if that does not count, an earlier one stays."""
        what = f"{result.reason or ''}{f' (log: {result.log})' if result.log else ''}"
        samples = result.samples.get(result.clock or "", [])
        if is_ok := result.status == "ok" and (middle := median(samples)) is not None:
            doubts = dict.fromkeys(warning.kind for warning in retaken(result.warnings))
            what = ", ".join([f"{decimals(middle)} ms", counted(len(samples), "sample"), *doubts])
        what += "" if counts else ": the earlier measurement was quieter and stays"
        status = Text(f"{result.status:<11} ", style=_STYLES.get(result.status, "red"))
        line = Text.assemble(self._place, f"{where} ".lstrip(), status, f"{result.case_id}  ", (what, "dim"))
        if self._live is None or not is_ok:  # What failed stays to be read.
            self._print(line)
        else:
            self._ended = line

    def so_far(self, fastest: list[str], text: str) -> None:
        """Show which configurations are the fastest so far; elsewhere than on a terminal, whenever they change."""
        if self._live is None and fastest != self._fastest:
            self._print(Text(text, style="bold"))
        self._fastest, self._so_far = fastest, Text(text, style="bold")

    def _print(self, line: Text) -> None:
        self._console.print(line, soft_wrap=True, highlight=False)
        self._printed = time.monotonic()

    def _show(self, text: str) -> None:
        now = time.monotonic()
        if self._live is None:
            if now - self._printed >= (_UNCHANGED_SECONDS if text == self._said else _SILENT_SECONDS):
                self._print(Text(f"  {text}", style="dim"))
                self._said = text
        elif now - self._drawn >= _REDRAW_SECONDS:
            self._live.start()  # Only now: one that never draws leaves no empty line.
            self._drawn = now
            lines = [line for line in (self._ended, Text(text), self._so_far) if line]
            for line in lines:
                line.overflow, line.no_wrap = "ellipsis", True
            self._live.update(Group(*lines), refresh=True)
