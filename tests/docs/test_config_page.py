"""docs/config.md lists every key of a budget and of conditions, and every option of an engine."""

from __future__ import annotations

import re
from dataclasses import asdict
from pathlib import Path

from engines.catalog import ENGINES
from profiler.job.case import KEYS, Budget

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "config.md").read_text()


def rows(beginning: str) -> list[list[str]]:
    """Return the cells of the first table after this text."""
    _, _, after = PAGE.partition(beginning)
    table = re.search(r"(?:^\|.*\n)+", after, re.MULTILINE)
    assert table
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table[0].splitlines()[2:]]


def test_every_key_of_a_budget_has_its_default():
    listed = {key.strip("`"): float(default) for key, _, default in rows("\n## Budget\n")}
    assert listed == asdict(Budget())


def test_every_option_of_an_engine_is_listed():
    listed = {
        engine: set(re.findall(r"`(\w+)`", options))
        for engines, options in rows("lists the presets, and the packages missing here.")
        for engine in re.findall(r"`([\w-]+)`", engines)
    }
    assert listed == {name: set(engine.options.declared()) for name, engine in ENGINES.items()}


def test_every_key_of_conditions_is_listed():
    (keys,) = re.findall(r"use the same keys: (.*?)\. A key's", PAGE, re.DOTALL)
    assert sorted(re.findall(r"`(\w+)`", keys)) == sorted(KEYS)
    assert f"Keys: {', '.join(KEYS)}; " in (ROOT / "bench.yaml").read_text().replace("\n# ", " ")
