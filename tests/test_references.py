"""references/*.csv hold the published figures unchanged, and our verdicts on them follow from their rows."""

from __future__ import annotations

import csv
import hashlib
import re
from pathlib import Path

import polars as pl
import pytest

from exporters.catalog import CATALOG

ROOT = Path(__file__).resolve().parents[1]
REFERENCES = ROOT / "references"
README = REFERENCES / "README.md"
LAYERS = ("L1", "L2", "L3", "L4", "L5")
OURS = ("statement", "verdict", "answer", "citation_url")
"""Columns of conclusions.csv and networks.csv that are not the source's."""
Row = dict[str, str]
FIGURES = {
    "cnn-benchmarks.csv": "6c89dfc87e3cd995",
    "cloud-gpus.csv": "9ed48a75da07cd16",
    "convnet-benchmarks.csv": "3176459f18d16a13",
    "convnet-layers.csv": "06b49af37079129d",
    "convnet-layer-shapes.csv": "c293e4937792742f",
    "gpu-study.csv": "bdb3243b76a483e0",
    "hardware.csv": "9c2d32e36a88aecd",
    "machines.csv": "55687892d6782bf3",
    "networks.csv": "76bf04fb82efe2c2",
    "studies.csv": "c50c516d7ce56236",
    "conclusions.csv": "2ab3b5c18e1a9cb1",
}
"""By file a digest of every row as compared with the documents, cell by cell."""


def read(name: str) -> list[Row]:
    with (REFERENCES / name).open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def digest(name: str) -> str:
    rows = [{key: value for key, value in row.items() if key not in OURS} for row in read(name)]
    return hashlib.sha256(repr(rows).encode()).hexdigest()[:16]


@pytest.mark.parametrize("name", FIGURES)
def test_a_file_holds_the_published_figures_and_is_plain_csv(name):
    assert digest(name) == FIGURES[name]
    raw = (REFERENCES / name).read_bytes()
    assert raw.endswith(b"\n") and b"\r" not in raw and not raw.startswith(b"\xef\xbb\xbf")
    frame = pl.read_csv(REFERENCES / name)
    units = ("_gb", "_mhz", "_ghz", "_percent", "_usd", "_gb_per_s", "cores", "tflops", "runs", "rank")
    for column in frame.columns:
        if column.endswith(units) or column in ("milliseconds", "low", "high"):
            assert frame[column].dtype.is_numeric(), column
    text = README.read_text(encoding="utf-8")
    assert f"`{name}`" in text
    assert [column for column in frame.columns if f"`{column}`" not in text] == []


def test_networks_are_the_catalogs_and_no_file_is_missing():
    assert {path.name for path in REFERENCES.iterdir()} == {*FIGURES, "notes.csv", "cards.csv", "README.md"}
    for name in FIGURES:
        for row in read(name):
            named = {part for key in ("network", "networks") for part in row.get(key, "").split("; ")}
            assert named - {"", "all", *LAYERS} <= set(CATALOG)
            if name in ("cnn-benchmarks.csv", "cloud-gpus.csv", "convnet-benchmarks.csv"):
                assert row["input_shape"] == "x".join(map(str, CATALOG[row["network"]].input_shape))


def test_a_statement_in_words_has_the_figures_of_its_row():
    for row in read("conclusions.csv"):
        said = {float(number) for number in re.findall(r"\d+(?:\.\d+)?", row["statement"])}
        assert {float(row[key]) for key in ("low", "high") if row[key]} <= said, row["statement"]


def milliseconds(row: Row) -> float | None:
    return float(row["milliseconds"]) if row["milliseconds"] else None


def ratios(claim: Row) -> list[tuple[float, str]]:
    """Return how many times as fast `to` is as `from`, with the networks, by the newest cuDNN of a GPU."""
    files = [claim["source"], *["cnn-benchmarks"] * claim["from"].startswith("cudnn")]
    rows = [row for file in files for row in read(f"{file}.csv") if row["pass"] == "total"]

    def newest(network: str, gpu: str, library: str = "", version: str = "") -> float | None:
        fit = [r for r in rows if (r["network"], r["gpu"]) == (network, gpu) and library in ("", r["library"])]
        fit = [row for row in fit if version in ("", row["library_version"])]
        key = lambda row: [int(part) for part in row["library_version"].split(".") if part]  # noqa: E731
        return milliseconds(max(fit, key=key)) if fit else None

    slow, fast = claim["from"].split(), claim["to"].split()
    found = []
    for network, gpu in dict.fromkeys((row["network"], claim["gpu"] or row["gpu"]) for row in rows):
        if slow[0] in ("nn", "cudnn"):
            both = newest(network, gpu, *slow), newest(network, gpu, *fast)
        else:
            both = newest(network, claim["from"]), newest(network, claim["to"])
        if None not in both:
            found.append((both[0] / both[1], network))
    return found


SPEEDS = [claim for claim in read("conclusions.csv") if claim["kind"] == "speed"]


@pytest.mark.parametrize("claim", SPEEDS, ids=lambda claim: claim["statement"][:40])
def test_the_verdict_on_a_speed_is_what_the_rows_say(claim):
    found = ratios(claim)
    low, high = min(found)[0], max(found)[0]
    said = re.search(r"say ([\d.]+)x to ([\d.]+)x, on (\d+) networks", claim["answer"])
    assert int(said[3]) == len({network for _, network in found})
    for value, text in ((low, said[1]), (high, said[2])):
        assert f"{value:.{len(text.partition('.')[2])}f}" == text
    if claim["low"]:
        places = (len(claim[end].partition(".")[2]) for end in ("low", "high"))
        ends = [round(value, digits) for value, digits in zip((low, high), places, strict=True)]
        inside = float(claim["low"]) <= ends[0] and ends[1] <= float(claim["high"])
    elif claim["relation"] == "equal":
        inside = low > 0.95 and high < 1.05
    else:
        # "Slightly faster" allows a tie.
        inside = low > (0.995 if claim["remark"] == "slightly" else 1)
    assert claim["verdict"] == ("Holds" if inside else "Not quite")


def test_a_citation_leads_to_its_paper():
    for row in read("networks.csv"):
        assert bool(row["citation"]) == row["citation_url"].startswith("https://")
