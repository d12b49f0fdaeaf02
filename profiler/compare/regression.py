"""Find the cells of a comparison that are slower by more than a limit, such as 5%."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import polars as pl

from profiler.errors import ConfigError
from profiler.results.warning_kinds import was_disturbed
from profiler.stats.ratios import BETWEEN, WITHIN
from profiler.tables.numbers import count, counted, grouped, milliseconds, percent, times

Row = Mapping[str, Any]

_MODEL = ["model", "base", "side"]
_MEND = "measure them, or leave them out by --only"
BROKEN = ("failed", "oom", "timeout", "crashed")
_CLOCKS = {"gpu": "device time", "host": "latency", "latency": "latency"}


def parse_limit(text: str) -> float:
    """ "5%" and "0.05" as 0.05; raises ConfigError for anything else."""
    found = re.fullmatch(r"(\d+(?:\.\d*)?|\.\d+) ?%|(0?\.\d+|0)", text.strip())
    if not found:
        raise ConfigError(
            f"--fail-on-regression: expected a percentage such as 5%, or a share below 1 such as 0.05, got '{text}'"
        )
    return float(found[1]) / 100 if found[1] else float(found[2])


@dataclass(frozen=True)
class Regression:
    """What the cells say of slow-downs by more than `limit` (0.05 is 5 %); each frame has rows of `compare`'s.

    `slower`: the whole interval between processes lies beyond the limit, on the clock that is judged. `broken`: the
    base ran the cell, and it failed on the side. `perhaps`: the ratio lies beyond the limit, and that is not proven:
    there are not three processes a side, their interval reaches back over the limit, or other work disturbed either.
    `lost`: the base ran the cell, and the side lacks it or calls it unsupported. `unknown`: the ratio is within the
    limit, and there is no interval, or other work disturbed either side. A row that is judged `on_device` says so, and
    whether its model is `certain` to be another network on the side; null where nothing says that it is another.
    """

    limit: float
    slower: pl.DataFrame
    broken: pl.DataFrame
    perhaps: pl.DataFrame
    lost: pl.DataFrame
    unknown: pl.DataFrame

    @property
    def exit_code(self) -> int:
        """1 for a regression; 4 where one is not proven, and where a cell cannot be compared any more; else 0."""
        if self.slower.height or self.broken.height:
            return 1
        return 0 if self.perhaps.is_empty() and self.lost.is_empty() else 4

    def lines(self, top: int) -> list[str]:
        """In words, of each kind of cells the worst `top`."""
        limit = f"{100 * self.limit:g} %"
        slower = f"{counted(self.slower.height, 'cell')} slower by more than {limit}:"
        lines = [f"No cell is certainly slower by more than {limit}." if self.slower.is_empty() else slower]
        lines += _listed(self.slower, top, _how_much)
        disturbed = pl.col("disturbed").is_not_null()
        unjudged = f"could not be judged ({{}}slower by more than {limit}, by the medians alone); measure again:"
        for listed, what, why in (
            (self.broken, "that the base ran failed:", _why_lost),
            (self.perhaps.filter(~disturbed), "may be slower by more, which is not proven:", _why_perhaps),
            (self.perhaps.filter(disturbed), unjudged.format(""), _why_unjudged),
            (self.unknown, unjudged.format("not "), _why_unjudged),
            (self.lost, f"that the base ran cannot be compared; {_MEND}:", _why_lost),
        ):
            if listed.height:
                lines += [f"{counted(listed.height, 'cell')} {what}", *_listed(listed, top, why)]
        return lines


def find_regressions(cells: pl.DataFrame, limit: float, models: Sequence[Row] = ()) -> Regression:
    """Judges the cells of `compare`, the worst first; `models` are those of a Comparison. Raises ConfigError where no
    cell can be judged."""
    others = pl.DataFrame(models, dict.fromkeys(_MODEL, pl.String) | {"certain": pl.Boolean})
    cells = cells.join(others, on=_MODEL, how="left", maintain_order="left")
    # Of calls that no gate can hold there is no device time.
    on_device = (pl.col("interval") == BETWEEN) & pl.col("device_ratio_high").is_not_null()
    ratio, high = (pl.when("on_device").then(f"device_{name}").otherwise(name) for name in ("ratio", "ratio_high"))
    worst = cells.with_columns(on_device=on_device.fill_null(value=False))
    worst = worst.sort(ratio, nulls_last=True, maintain_order=True)
    beyond = 1 / (1 + limit)
    compared = worst.drop_nulls("ratio")
    ran = worst.filter(base_status="ok")
    proven = (pl.col("interval").eq(BETWEEN) & (high < beyond)).fill_null(value=False) & pl.col("disturbed").is_null()
    found = Regression(
        limit,
        slower=compared.filter(proven),
        broken=ran.filter(pl.col("side_status").is_in(BROKEN)),
        perhaps=compared.filter(ratio < beyond, ~proven),
        lost=ran.filter(~pl.col("side_status").is_in(["ok", *BROKEN]).fill_null(value=False)),
        unknown=compared.filter(high.is_null() | pl.col("disturbed").is_not_null(), ratio >= beyond),
    )
    if compared.filter(high.is_not_null()).is_empty() and found.exit_code == 0:
        why = "; ".join(dict.fromkeys(map(_why_unknown, compared.to_dicts()))) or "no cell was measured on both sides"
        raise ConfigError(
            f"--fail-on-regression: no cell can be judged ({why}); measure again, with replicates: 3 or more"
        )
    return found


def _listed(cells: pl.DataFrame, top: int, text: Callable[[Row], str]) -> list[str]:
    """The first `top` cells, each with what is to say of it, once for all of which it is the same; and how many more
    there are."""
    texts = grouped(((row["side"], text(row) + _another(row)), _name(row)) for row in cells.head(top).to_dicts())
    lines = [f"{side}: {', '.join(names)}: {said}" for (side, said), names in texts.items()]
    return [*lines, f"and {count(cells.height - top)} more"] if cells.height > top else lines


def _another(row: Row) -> str:
    """Like "; not the same model in b as in a", where the model is another network, or may be."""
    if row["certain"] is None:
        return ""
    return f"; {'' if row['certain'] else 'maybe '}not the same model in {row['side']} as in {row['base']}"


def _doubts(row: Row) -> str:
    """The warnings that make either side's times unreliable, like "; unsteady in a; drift, unsteady in b"."""
    return "".join(f"; {kinds} in {row[side]}" for side in ("base", "side") if (kinds := row[f"{side}_doubts"]))


def _name(row: Row) -> str:
    batch = row["batch_size"] and f"b{row['batch_size']}"
    parts = [row["model"], row["variant"], row["pass"], row["precision"], batch, row["extra"]]
    return "/".join(filter(None, parts))


def _how_much(row: Row) -> str:
    """Like "7.1 % slower (6.2 to 8.0, between processes, on device time; drift in b)"; from twice the time on "77×
    slower (…)"."""
    name = "device_ratio" if row["on_device"] else "ratio"
    middle = 1 / row[name]
    slower = times(middle, sign="× slower") if middle >= 2 else f"{percent(middle - 1, 1)} % slower"
    if row[f"{name}_high"] is None:
        return f"{slower}, without an interval{_doubts(row)}"
    least, most = (1 / row[f"{name}{end}"] for end in ("_high", "_low"))
    ends = [times(end) if middle >= 2 else percent(end - 1, 1) for end in (least, most)]
    clock = _CLOCKS[row["judged_on"]] if row["on_device"] else "latency"
    kind = "within process" if row["interval"] == WITHIN else f"between processes, on {clock}"
    return f"{slower} ({' to '.join(ends)}, {kind}{_doubts(row)})"


def _why_perhaps(row: Row) -> str:
    """How much, and what would prove it."""
    if row["verdict"] is None:
        return f"{_how_much(row)}; {row['why_no_verdict']}"
    least = max(row["base_processes"], row["side_processes"], row["replicates_to_settle"] or 0)
    return f"{_how_much(row)}; more than {count(least)} replicates a side may prove it"


def _why_unjudged(row: Row) -> str:
    """Both medians, since a disturbed cell has no factor, and why: "1 ms in a, 77 ms in b; either side was …"."""
    clock = "device_ms" if row["on_device"] else "ms"
    medians = (f"{milliseconds(row[f'{which}_{clock}'])} in {row[which]}" for which in ("base", "side"))
    return f"{', '.join(medians)}; {_why_unknown(row)}"


def _why_unknown(row: Row) -> str:
    """What keeps a cell from being judged."""
    if row["disturbed"]:
        return f"either side {was_disturbed(row['disturbed'].split(', '))}"
    return str(row["why_no_verdict"] or "there is no interval")


def _why_lost(row: Row) -> str:
    if row["side_status"] is None:
        return f"missing in {row['side']}"
    return f"{row['side_status']}, {row['side_reason']}"
