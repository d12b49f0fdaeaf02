"""Every time in references/*.csv is printed in the four documents, whose tables are in tests/data/documents."""

from __future__ import annotations

import csv
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
LINE = re.compile(r"\|([^|]*)\|[^|]*((?:\|[^|]*)+)$")
"""A row of a table in Markdown: library, class, then figures."""


def read(name: str) -> list[dict[str, str]]:
    with (ROOT / "references" / name).open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def document(name: str) -> list[str]:
    return (ROOT / "tests" / "data" / "documents" / f"{name}.txt").read_text(encoding="utf-8").splitlines()


@pytest.mark.parametrize(("name", "between"), [("000-cnn-benchmarks", ""), ("001-cloud-gpus", "|")])
def test_every_time_of_a_network_is_printed_and_no_other(name, between):
    found: dict[tuple[str, ...], dict[str, str]] = {}
    for row in read(f"{name[4:]}.csv"):
        place = (row["network"], row["rank"], row["gpu"], row["library_version"] or "None")
        found.setdefault(place, {})[row["pass"]] = row["milliseconds"]
    taken = [between.join((*place[2:], *times.values())) for place, times in found.items()]
    printed = [re.sub(r"\s*\|\s*", "|", line).strip("|") for line in document(name)]
    rows = [line for line in printed if re.match(r"(GTX|Pascal|Maxwell|Quadro|Tesla|GRID|CPU: )", line)]
    assert taken == [row for row in rows if "GDDR" not in row]


def test_every_time_of_a_library_is_printed_and_no_other():
    printed = [
        (row[1].replace("_", "").strip(), cell.strip(" *_"))
        for row in filter(None, map(LINE.match, document("002-convnet-benchmarks")))
        if row[1].strip(" :-") and "Original Library" not in row[1]
        for cell in row[2].split("|")
    ]
    rows = [*read("convnet-benchmarks.csv"), *read("convnet-layers.csv")]
    taken = [(row["published_library"], row["milliseconds"] or row.get("remark", "")) for row in rows]
    assert sorted(pair for pair in printed if pair[1]) == sorted(pair for pair in taken if pair[1])


def test_the_figures_of_the_study_of_gpus_stand_in_its_text():
    text = "\n".join(document("003-gpu-study"))
    shown = [row["milliseconds"] for row in read("gpu-study.csv")]
    errors = [row["top5_error_percent"] for row in read("networks.csv") if row["source"] == "gpu-study"]
    shown += [error.rstrip("0").rstrip(".") for error in errors]
    assert [figure for figure in shown if figure not in text] == []
