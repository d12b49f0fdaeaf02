"""references/*.csv hold the published figures unchanged, and references/README.md lists what does not add up."""

from __future__ import annotations

import csv
import hashlib
import re
from collections.abc import Iterator
from itertools import pairwise
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


def readme_table(heading: str) -> set[tuple[str, ...]]:
    """Return the rows of the table under the heading."""
    text = README.read_text(encoding="utf-8").split(f"\n### {heading}\n")[1].split("\n#")[0]
    rows = [line.strip("|").split("|") for line in text.splitlines() if line.startswith("|")]
    return {tuple(cell.strip(" `") for cell in row) for row in rows[2:]}


def milliseconds(row: Row) -> float | None:
    return float(row["milliseconds"]) if row["milliseconds"] else None


def in_short(value: float) -> str:
    return f"{value:g}"


def network_totals(name: str) -> dict[tuple[str, str, str, str], dict[str, Row]]:
    """Return the rows by pass, for each network, GPU, library and version."""
    found: dict[tuple[str, str, str, str], dict[str, Row]] = {}
    for row in read(name):
        key = (row["network"], row["gpu"], row["library"], row["library_version"])
        assert row["pass"] not in found.setdefault(key, {})
        found[key][row["pass"]] = row
    return found


Layer = tuple[str, str, str]
"""Library, version, implementation."""


def layer_times() -> dict[Layer, dict[tuple[str, str, str], float]]:
    """Return milliseconds by table, pass and layer, for each library."""
    found: dict[Layer, dict[tuple[str, str, str], float]] = {}
    for row in read("convnet-layers.csv"):
        times = found.setdefault((row["library"], row["library_version"], row["implementation"]), {})
        if row["milliseconds"]:
            times[row["table"], row["pass"], row["layer"]] = milliseconds(row)
    return found


def layer_sums() -> Iterator[tuple[str, Layer, list[float | None], float | None]]:
    """Yield the parts and the printed total of every sum of each library."""
    for library, times in layer_times().items():
        for pass_ in ("forward", "backward", "gradInput", "gradWeight"):
            parts = [times.get((pass_, pass_, layer)) for layer in LAYERS]
            yield f"{pass_}: L1 to L5", library, parts, times.get((pass_, pass_, "total"))
        for layer in (*LAYERS, "total"):
            parts = [times.get((pass_, pass_, layer)) for pass_ in ("gradInput", "gradWeight")]
            yield f"{layer}: gradInput and gradWeight", library, parts, times.get(("backward", "backward", layer))
        parts = [times.get(("summary", pass_, "total")) for pass_ in ("forward", "backward")]
        yield "summary: forward and backward", library, parts, times.get(("summary", "total", "total"))


def test_the_layers_add_up_but_for_the_sums_that_the_readme_lists():
    wrong = {
        (" ".join(filter(None, library)), what, in_short(total), in_short(sum(parts)))
        for what, library, parts, total in layer_sums()
        if total is not None and None not in parts and abs(sum(parts) - total) > 1
    }
    assert wrong == readme_table("Sums that do not hold")
    checked = [total for _, _, parts, total in layer_sums() if total is not None and None not in parts]
    assert len(checked) == 12 * 11 - 10


def test_the_readme_counts_the_best_layers_that_are_not_the_lowest():
    times = layer_times()
    best = times.pop(("cherry-picking", "", "best per layer"))
    wrong = set()
    for pass_ in ("forward", "backward", "gradInput", "gradWeight"):
        for layer in LAYERS:
            key = (pass_, pass_, layer)
            lowest = min(other[key] for other in times.values() if key in other)
            if lowest != best[key]:
                wrong.add((pass_, layer, in_short(best[key]), in_short(lowest)))
    assert f"{len(wrong)} of its 20 cells" in README.read_text(encoding="utf-8")
    assert ("gradInput", "L2", "230", "111") in wrong


def test_rows_are_ranked_by_total_but_for_those_that_the_readme_lists():
    wrong = set()
    for name in ("cnn-benchmarks.csv", "cloud-gpus.csv", "convnet-benchmarks.csv"):
        rows = [row for row in read(name) if row["pass"] == "total"]
        for above, below in pairwise(rows):
            if above["network"] == below["network"] and milliseconds(above) > milliseconds(below):
                wrong.add((name, *(above[key] for key in ("network", "rank", "milliseconds")), below["milliseconds"]))
    assert wrong == readme_table("Ranks against the times")


def test_the_readme_counts_the_rows_that_lack_networks():
    wrong = set()
    for name in ("cnn-benchmarks.csv", "cloud-gpus.csv"):
        rows = read(name)
        every = list(dict.fromkeys(row["network"] for row in rows))
        for gpu, library, version in dict.fromkeys((r["gpu"], r["library"], r["library_version"]) for r in rows):
            missing = [network for network in every if (network, gpu, library, version) not in network_totals(name)]
            if missing:
                wrong.add((name, gpu, f"{library} {version}".strip(), ", ".join(missing)))
    assert f"{len(wrong)} rows of GPUs and libraries" in README.read_text(encoding="utf-8")


def test_the_errors_that_a_statement_names_are_those_of_the_networks_but_for_the_one_that_the_readme_lists():
    networks = [row for row in read("networks.csv") if row["source"] == "cnn-benchmarks"]
    errors = {row["network"]: float(row["top5_error_percent"]) for row in networks}
    named = [row for row in read("conclusions.csv") if row["kind"] == "accuracy" and row["low"]]
    wrong = {
        (row["from"], row["to"], f"{row['low']} vs {row['high']}", f"{errors[row['to']]:g} vs {errors[row['from']]:g}")
        for row in named
        if (float(row["low"]), float(row["high"])) != (errors[row["to"]], errors[row["from"]])
    }
    assert len(named) == 2
    assert wrong == readme_table("Errors that are another network's")


def test_a_statement_keeps_how_much_the_source_says():
    (row,) = [row for row in read("conclusions.csv") if row["to"] == "cudnn 5.1.10"]
    assert (row["remark"], "slightly faster" in row["statement"]) == ("slightly", True)


def test_a_note_has_the_input_of_its_network_and_the_sums_that_the_readme_lists():
    notes = {(source, row["table"]): row["note"] for row in read("notes.csv") for source in row["source"].split("; ")}
    for name in ("cnn-benchmarks", "cloud-gpus", "convnet-benchmarks"):
        for row in read(f"{name}.csv"):
            shape = " x ".join([row["batch_size"], *row["input_shape"].split("x")])
            assert notes[name, row["published_network"]].startswith(f"Input {shape}"), row["published_network"]
    said = " ".join(note.replace(",", "") for (source, _), note in notes.items() if source == "convnet-benchmarks")
    sums = readme_table("Sums that do not hold")
    assert all(f"{printed} " in f"{said} " and parts in said for _, what, printed, parts in sums if "grad" not in what)
    assert {"985", "734", "2069", "1458"} <= set(re.findall(r"\d+", said))


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
