"""Format numbers for readers, one for a sentence or a column for a table (a `Format`), by their unit."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, TypeVar

K = TypeVar("K")
V = TypeVar("V")
Format = Callable[..., list[str]]
"""Format a table's column, given one or several columns of the frame."""
BUSY = "busy"
"""Replaces a figure with too wide an interval."""
WIDEST = 10.0
"""Widest interval of a figure, as the ratio of its ends."""
ASSUMED = "±?"
"""Follows a figure that lacks its interval."""


def count(value: float) -> str:
    """Format without decimals: 1,234."""
    return f"{value:,.0f}"


def decimals(value: float, places: int = 3) -> str:
    return f"{value:,.{places}f}"


def counted(number: int, noun: str) -> str:
    """Count: 1 cell, 2 cells."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def listed(values: Iterable[object], last: str = "and", shown: int | None = None) -> str:
    """List: 1, 2 and 3; 1, 2 and 5 more with `shown` 2; no values give an empty text."""
    words = [*map(str, values)]
    words = [*words[:shown], f"{len(words) - shown} more"] if shown and len(words) > shown else words
    return f" {last} ".join(filter(None, [", ".join(words[:-1]), *words[-1:]]))


def grouped(pairs: Iterable[tuple[K, V]]) -> dict[K, list[V]]:
    """Collect the values of each key, both in the order of the pairs."""
    groups: dict[K, list[V]] = {}
    for key, value in pairs:
        groups.setdefault(key, []).append(value)
    return groups


def natural(name: str | None) -> str:
    """Return a sorting key that puts resnet50 before resnet101, and sequence=64 before sequence=128."""
    return re.sub(r"\d+", lambda number: number[0].zfill(12), name or "")


def significant(value: float, digits: int = 3) -> str:
    """Format with this number of digits, but never round before the point: 0.460, 12.3, 12,346, 1.20e-5."""
    if not value:
        return "0"
    if not 1e-4 <= abs(value) < 1e15:
        return _short_power(f"{value:.{digits - 1}e}")
    magnitude = math.floor(math.log10(abs(float(f"{value:.{digits}g}"))))
    return f"{value:,.{max(0, digits - 1 - magnitude)}f}"


def compact(value: float, digits: int = 4) -> str:
    """Format like `significant`, without trailing zeros: 0.25, 1,980."""
    text = significant(value, digits)
    return text.rstrip("0").rstrip(".") if "." in text and "e" not in text else text


def measure(value: float) -> str:
    """Format with two decimals, below 1 with three, below 0.1 with three digits."""
    return compact(value, 3) if 0 < value < 0.1 else decimals(value, 3 if value < 1 else 2)


def percent(share: float, places: int = 0) -> str:
    """Format a share in percent, without the sign: 0.178 is 18."""
    return f"{100 * share:.{places}f}"


def error(value: float, digits: int = 2) -> str:
    """Format a relative error: 1.6e-3, 0."""
    return _short_power(f"{value:.{digits - 1}e}") if value else "0"


def is_busy(low: float | None, high: float | None) -> bool:
    """Return whether an interval is too wide, usually because of other work."""
    return low is not None and high is not None and high > WIDEST * low


def times(value: float, *ends: float | None, sign: str = "×") -> str:
    """Format a factor with its range, if wider than the last digit: 1.05×, 4.8× (4.5–5.6), 1.8× ±?."""
    return BUSY if ends and is_busy(*ends) else over_all(value, *ends, sign=sign)


def over_all(value: float, *ends: float | None, sign: str = "") -> str:
    """Format a mean factor with the range over several networks, of any width: 0.0043, 0.04 (0.01–0.13), 12.3."""
    places = 2 if round(value, 2) < 2 else 1 if round(value, 1) < 100 else 0
    places = 1 - math.floor(math.log10(value)) if 0 < value < 0.01 else places
    return f"{value:.{places}f}{sign}{_range(value, ends, places)}"


def relative(ratio: float, *ends: float | None, words: tuple[str, str] = ("faster", "slower")) -> str:
    """Format a ratio in words: 1.10× faster, 1.33× slower (1.28–1.38), 1.00× (0.99–1.01)."""
    word = words[0]
    if ratio < 1:
        ratio, ends, word = 1 / ratio, tuple(end and 1 / end for end in reversed(ends)), words[1]
    return times(ratio, *ends, sign="×" if f"{ratio:.2f}" == "1.00" else f"× {word}")


def points(share: float, *ends: float | None, unit: str = " %") -> str:
    """Format a share or a difference of shares in percent with its range: 97.20 %, 0.15 % (-0.30 to 0.62)."""
    # Adding 0 to -0.0 gives 0.0.
    middle, *texts = (f"{round(100 * value, 2) + 0.0:.2f}" for value in (share, *ends) if value is not None)
    return f"{middle}{unit}{f' ({texts[0]} to {texts[1]})' if len({*texts}) > 1 else ''}"


def within(value: float, *ends: float | None, unit: str = "", digits: int = 3) -> str:
    """Format a figure with its range, if wider than the last digit: 0.925 ms, 5.21 ms (4.60–6.10)."""
    if ends and is_busy(*ends):
        return BUSY
    places = max(0, digits - 1 - math.floor(math.log10(value))) if value > 0 else digits
    return f"{value:,.{places}f}{f' {unit}' if unit else ''}{_range(value, ends, places)}"


def milliseconds(value: float) -> str:
    """Format 0.46 ms, 12.3 ms, 12,346 ms."""
    return f"{compact(value, 3)} ms"


def seconds(value: float) -> str:
    """Format 0.040 s, 3.1 s, 41 s."""
    return f"{count(value) if value >= 10 else significant(value, 2)} s"


def duration(value: float) -> str:
    """Format seconds in words: 40 s, 3 min 20 s, 2 h 5 min."""
    whole = max(0, round(value))
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def each(form: Callable[..., str]) -> Format:
    """Format every row alone, from the values of all columns."""
    return lambda *columns: ["" if row[0] is None else form(*row) for row in zip(*columns, strict=True)]


def aligned(digits: int = 3, max_places: int = 3) -> Format:
    """Use one decimal count for the column: enough for the smallest value, at most `max_places`: 0.193, 12.700."""

    def cells(values: Iterable[float | None]) -> list[str]:
        values = list(values)
        sizes = [abs(value) for value in values if value and math.isfinite(value)]
        places = max(0, min(max_places, digits - 1 - math.floor(math.log10(min(sizes))))) if sizes else 0
        return ["" if value is None else f"{value:,.{places}f}" for value in values]

    return cells


def unless_busy(form: Format) -> Format:
    """Format a column as `form` does, but print "busy" where the interval is too wide."""

    def cells(values: Iterable[Any], lows: Iterable[float | None], highs: Iterable[float | None]) -> list[str]:
        plain = zip(form(values), lows, highs, strict=True)
        return [BUSY if cell and is_busy(low, high) else cell for cell, low, high in plain]

    return cells


def own_ends(low: Iterable[float | None], high: Iterable[float | None], timed: Iterable[bool]) -> list[str]:
    """Format both ends of our timed rows, with three digits, or with four if three do not tell them apart."""

    def ends(low: float | None, high: float | None, is_timed: bool) -> str:
        if not is_timed or low is None or high is None:
            return ASSUMED if is_timed else ""
        texts = ((significant(low, digits), significant(high, digits)) for digits in (3, 4))
        return next((f"{first}–{last}" for first, last in texts if first != last), "")

    return list(map(ends, low, high, timed))


def text(value: Any) -> str:
    """Write words on one line, and lists with commas; true is "yes", and false is empty."""
    if isinstance(value, bool):
        return "yes" if value else ""
    if isinstance(value, str) or not isinstance(value, Iterable):
        return " ".join(str(value).split())
    return ", ".join(map(text, value))


def anything(value: Any) -> str:
    """Format any value of a frame: fractions with six digits, lists with semicolons."""
    if isinstance(value, float):
        return significant(value, 6)
    is_list = isinstance(value, Iterable) and not isinstance(value, str | dict)
    return "; ".join(map(anything, value)) if is_list else " ".join(str(value).split())


words = each(text)
as_written = each(str)
anythings = each(anything)
ms = aligned()
whole = each(count)
shares = each(lambda share: percent(share, 1))
errors = each(error)
ranged_points = each(partial(points, unit=""))
rates = each(lambda value: significant(value, 4))
ranges = each(within)
relatives = each(relative)
measures = each(measure)
money = each(lambda value: compact(value, 3))
factors = each(lambda value, low, high: times(value, low, high, sign=""))
mean_factors = each(over_all)
UNITS: dict[str, tuple[str, Format]] = {
    **dict.fromkeys(("", "items"), ("", whole)),
    **{unit: (unit, whole) for unit in ("MiB", "W", "MHz", "°C")},
    **{unit: (unit, ms) for unit in ("ms", "mJ/item")},
    **dict.fromkeys(("items/s", "TFLOP/s", "USD", "USD/1M items"), ("", ms)),
    "s": ("s", aligned(max_places=2)),
    "share": ("%", shares),
    "error": ("", errors),
    "points": ("%", ranged_points),
    "FLOPs": ("", rates),
}
"""Text in the heading, and format, of each unit in the results."""


def _range(value: float, ends: Sequence[float | None], places: int) -> str:
    """Format a range if it shows in these decimals; an unknown end is None."""
    texts = [f"{end:,.{places}f}" for end in ends if end is not None]
    if len(texts) < len(ends):
        return f" {ASSUMED}"
    return "" if {*texts} <= {f"{value:,.{places}f}"} else f" ({texts[0]}–{texts[1]})"


def _short_power(number: str) -> str:
    """Write 1.6e-03 as 1.6e-3."""
    mantissa, e, power = number.partition("e")
    return f"{mantissa}e{int(power)}" if e else number
