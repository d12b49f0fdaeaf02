"""State reasons: each is data, and its words are one template a code in this file."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from profiler.results.columns import FIGURES
from profiler.results.result import JUDGED, RANGED
from profiler.stats.samples import PERCENTILE_NEEDS
from profiler.tables import numbers

COMPARATIVES = {
    "latency_ms": ("slower", "faster"),
    "throughput": ("lower throughput", "higher throughput"),
    "peak_memory_mib": ("more memory", "less memory"),
    "energy_mj_per_item": ("more energy", "less energy"),
    "usd_per_million_items": ("more expensive", "cheaper"),
}
"""Map an objective's figure to the words for worse and better."""
_UNMEASURED = {
    "usd_per_million_items": "no price; set usd_per_hour of the job's machine",
    "energy_mj_per_item": "no energy was measured; that takes a GPU and `energy: true` in the job",
    "accuracy_loss": "no accuracy: it takes --data with labels, and a warning of the row may say more",
}


BASES = "eager fp32 (ort fp32 for an .onnx file)"
_MOST_ITEMS = 1_000_000
"""Nobody labels more."""


@dataclass(frozen=True)
class Reason:
    """A reason as data: a code, a value of `figure` with its interval, and its limit.

    `have` is the number of samples or processes so far; `text` and `rival` are names for the template, such as cells'.
    """

    code: str
    value: float | None = None
    limit: float | None = None
    low: float | None = None
    high: float | None = None
    figure: str = ""
    have: float | None = None
    text: str = ""
    rival: str = ""

    @property
    def is_busy(self) -> bool:
        """True if a timed figure's interval is too wide; a loss may be negative, so its ends have no ratio."""
        return self.figure in JUDGED and numbers.is_busy(self.low, self.high)

    @property
    def is_open(self) -> bool:
        """True if more samples or items, a base or a quiet machine may show that the limit is met."""
        return self.is_busy or self.code in ("too-wide", "no-base") or (self.code == "unknown" and bool(self.value))

    def __str__(self) -> str:
        return _TEMPLATES[self.code](self)


def amount(figure: str, value: float, *ends: float | None) -> str:
    """Format a figure in its unit, with its range where that is wider than the last digit."""
    unit = FIGURES[figure].unit
    if unit in ("share", "points"):
        return numbers.points(value, *_known(figure, ends))
    text = numbers.error(value) if unit == "error" else numbers.within(value, *_known(figure, ends), unit=unit)
    return f"{noun(figure)} unknown because of other work" if text == numbers.BUSY else text


def _known(figure: str, ends: Sequence[float | None]) -> Sequence[float | None]:
    """Return the ends if the figure has an interval."""
    return ends if figure in (*JUDGED, *RANGED) else ()


def noun(figure: str) -> str:
    return FIGURES[figure].noun or FIGURES[figure].heading.lower()


def bound(figure: str, value: float) -> str:
    """Format a limit, like "latency ≤ 2 ms", with the number as it was given."""
    return f"{noun(figure)} {'≥' if FIGURES[figure].better == 'more' else '≤'} {_given(figure, value)}"


def _given(figure: str, value: float | None) -> str:
    unit = FIGURES[figure].unit
    if unit == "points":
        return f"{100 * (value or 0):.10g} %"
    return numbers.error(value or 0) if unit == "error" else f"{value:,.10g} {unit}"


def _worse(reason: Reason) -> str:
    words = COMPARATIVES.get(reason.figure, ("worse", "better"))
    if reason.is_busy:
        return f"{words[0]} by an unknown factor"
    ends = _known(reason.figure, (reason.low, reason.high))
    return numbers.relative(reason.value, *ends, words=words) if reason.value else "figures of 0"


def _held(reason: Reason) -> str:
    """Format the figure that a limit applies to, like "p99 latency 2.40 ms"; for an error, its bound."""
    value = reason.value or 0.0
    if reason.figure != "error":
        return f"{noun(reason.figure)} {amount(reason.figure, value, reason.low, reason.high)}"
    # With two digits 0.01036 would look equal to a limit of 0.01.
    is_close = numbers.error(value) == numbers.error(reason.limit or 0.0)
    place = f" (largest in {reason.text})" if reason.text else ""
    return f"error bound {numbers.error(value, 3 if is_close else 2)}{place}"


def _limited(reason: Reason) -> str:
    limit = f"{reason.code} the limit of {_given(reason.figure, reason.limit)}"
    if reason.is_busy:
        return f"{noun(reason.figure)} seems {limit}, but other work made its interval too wide"
    return f"{_held(reason)}, {limit}"


def _too_wide(reason: Reason) -> str:
    needed = reason.have or 0.0
    items = "too close to tell" if needed > _MOST_ITEMS else f"about {numbers.count(needed)} scored items would decide"
    return f"{_held(reason)}, the limit is {_given(reason.figure, reason.limit)}: {items}"


def _unknown(reason: Reason) -> str:
    percentile = FIGURES[reason.figure].percentile
    if percentile:
        needs = PERCENTILE_NEEDS[percentile]
        advice = f": --seconds {reason.value:g} takes them" if reason.value else ""
        return f"p{percentile} needs {needs} samples, has {numbers.count(reason.have or 0)}{advice}"
    return _UNMEASURED.get(reason.figure, f"{noun(reason.figure)} was not measured")


def _only_base(reason: Reason) -> str:
    waiting = f"; the run did not reach {numbers.counted(int(reason.value), 'other')}" if reason.value else ""
    return f"only the base, {reason.text}, was measured{waiting}"


def _skipped(reason: Reason) -> str:
    leader = f"{reason.text} leads, but " if reason.text else ""
    return (
        f"{leader}{numbers.counted(int(reason.value or 0), 'skipped case')} lost only to a cell that is left out here"
    )


def _one_process(reason: Reason) -> str:
    quiet = f"the only quiet one of {numbers.count(reason.have or 0)} processes"
    processes = quiet if (reason.have or 0) > 1 else "one process"
    return f"{reason.text} leads, by {processes}; its spread was not measured on this machine"


_TEMPLATES: dict[str, Callable[[Reason], str]] = {
    "worse": _worse,
    "unclear": lambda reason: f"{'busy' if reason.is_busy else _worse(reason)}, not told apart",
    "equivalent": lambda reason: f"as good ({_worse(reason)})",
    "over": _limited,
    "under": _limited,
    "within": _limited,
    "too-wide": _too_wide,
    "unknown": _unknown,
    "no-base": lambda reason: f"no base to compare with: measure {BASES} too; it has to score above 0",
    "uncalibrated": lambda reason: (
        "8 bits measured without your data: give --data, or admit them with --allow-uncalibrated"
    ),
    "unmeasured": lambda reason: f"the run did not reach {numbers.counted(int(reason.value or 0), 'case')}",
    "skipped": _skipped,
    "only-base": _only_base,
    "only-left": lambda reason: f"--only leaves only the base, {reason.text}; widen it, or measure other engines",
    "disturbed": lambda reason: f"most figures were taken beside other work; {reason.text} leads",
    "busy": lambda reason: f"{reason.text} leads, by an unknown factor: other work made an interval too wide",
    "open": lambda reason: f"{reason.text} leads, but {reason.rival}, {_worse(reason)}, may be better",
    "one-process": _one_process,
    "not-measured": lambda reason: f"not measured: {reason.text}",
}
