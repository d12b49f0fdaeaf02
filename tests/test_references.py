"""What enters: the table lines of the four published documents (tests/data/seeds). What is checked: references/*.csv
holds every one of their figures and statements and no other, and what references/README.md says of them."""

from __future__ import annotations

import csv
import os
import re
import runpy
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import polars as pl
import pytest

from exporters.catalog import CATALOG

ROOT = Path(__file__).resolve().parents[1]
REFERENCES = ROOT / "references"
EXTRACTED = ROOT / "tests" / "data" / "seeds"
README = REFERENCES / "README.md"
SEEDS = os.environ.get("SEEDS")
needs_documents = pytest.mark.skipif(not SEEDS, reason="SEEDS, the folder of the original documents, is not set")

EXTRACT = runpy.run_path(str(EXTRACTED / "extract.py"))
PARSE = runpy.run_path(str(EXTRACTED / "parse.py"))
PARSED, LAYERS, FIGURES, CLAIM = (PARSE[n] for n in ("PARSED", "LAYERS", "FIGURES", "CLAIM"))
extracted, figures, claims, pipes = (PARSE[name] for name in ("extracted", "figures", "claims", "pipes"))

Row = dict[str, str]
ROWS = {
    "cnn-benchmarks.csv": 348,
    "cloud-gpus.csv": 198,
    "convnet-benchmarks.csv": 36,
    "convnet-layers.csv": 324,
    "convnet-layer-shapes.csv": 5,
    "gpu-study.csv": 2,
    "hardware.csv": 13,
    "machines.csv": 6,
    "networks.csv": 17,
    "studies.csv": 9,
    "conclusions.csv": 53,
}


def read(name: str) -> list[Row]:
    with (REFERENCES / name).open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def test_every_file_is_compared():
    assert {path.name for path in REFERENCES.iterdir()} == {*PARSED, "README.md"}


@pytest.mark.parametrize("name", PARSED)
def test_the_csv_holds_every_figure_of_the_document_and_no_other(name):
    rows = read(name)
    for row in rows:
        for own in ("statement", "verdict", "answer"):  # Our words for the others, and what follows from them.
            row.pop(own, "")
    columns = list(rows[0])
    expected = list(PARSED[name]())
    assert {column for row in expected for column in row} <= set(columns)
    assert rows == [{column: row.get(column, "") for column in columns} for row in expected]
    assert len(rows) == ROWS[name]


def test_a_statement_in_words_has_the_figures_of_its_row():
    for row in read("conclusions.csv"):
        said = {float(number) for number in re.findall(r"\d+(?:\.\d+)?", row["statement"])}
        assert {float(row[key]) for key in ("low", "high") if row[key]} <= said, row["statement"]


@pytest.mark.parametrize("name", PARSED)
def test_a_file_is_plain_csv_that_polars_reads(name):
    raw = (REFERENCES / name).read_bytes()
    assert raw.endswith(b"\n") and b"\r" not in raw and not raw.startswith(b"\xef\xbb\xbf")
    frame = pl.read_csv(REFERENCES / name)
    assert frame.height == len(read(name))
    units = ("_gb", "_mhz", "_ghz", "_percent", "_usd", "_gb_per_s", "cores", "tflops", "runs", "rank")
    for column in frame.columns:
        if column.endswith(units) or column in ("milliseconds", "low", "high"):
            assert frame[column].dtype.is_numeric(), column


@pytest.mark.parametrize("name", PARSED)
def test_networks_are_the_catalogs(name):
    named = {part for row in read(name) for key in ("network", "networks") for part in row.get(key, "").split("; ")}
    assert named - {"", "all", *LAYERS} <= set(CATALOG)


def test_a_network_under_its_other_name_is_the_catalogs_with_that_name():
    """The published input and the catalog's agree, which they would not for another network."""
    for name in ("cnn-benchmarks.csv", "cloud-gpus.csv", "convnet-benchmarks.csv"):
        for row in read(name):
            assert row["input_shape"] == "x".join(map(str, CATALOG[row["network"]].input_shape))


# What the README says.


def readme_table(heading: str) -> set[tuple[str, ...]]:
    """The rows of the table under the heading."""
    text = README.read_text(encoding="utf-8").split(f"\n### {heading}\n")[1].split("\n#")[0]
    rows = [tuple(cell.strip("`") for cell in pipes(line)) for line in text.splitlines() if line.startswith("|")]
    assert len(rows) == len(set(rows))
    return set(rows[2:])


@pytest.mark.parametrize("name", PARSED)
def test_the_readme_explains_every_file_and_column(name):
    text = README.read_text(encoding="utf-8")
    assert f"`{name}`" in text
    assert [column for column in read(name)[0] if f"`{column}`" not in text] == []


def milliseconds(row: Row) -> float | None:
    return float(row["milliseconds"]) if row["milliseconds"] else None


def in_short(value: float) -> str:
    return f"{value:g}"


def network_totals(name: str) -> dict[tuple[str, str, str, str], dict[str, Row]]:
    """The rows by pass, for each network, GPU or implementation, library and version."""
    found: dict[tuple[str, str, str, str], dict[str, Row]] = {}
    for row in read(name):
        key = (row["network"], row["gpu"], row["library"], row["library_version"])
        assert row["pass"] not in found.setdefault(key, {})
        found[key][row["pass"]] = row
    return found


Layer = tuple[str, str, str]
"""Library, version, implementation."""


def layer_times() -> dict[Layer, dict[tuple[str, str, str], float]]:
    """Milliseconds by table, pass and layer, for each library; what is missing is left out."""
    found: dict[Layer, dict[tuple[str, str, str], float]] = {}
    for row in read("convnet-layers.csv"):
        times = found.setdefault((row["library"], row["library_version"], row["implementation"]), {})
        if row["milliseconds"]:
            times[row["table"], row["pass"], row["layer"]] = milliseconds(row)
    return found


def layer_sums() -> Iterator[tuple[str, Layer, list[float | None], float | None]]:
    """What should be the sum of what, in each library."""
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


def test_the_row_of_the_best_library_is_the_lowest_but_for_the_cells_that_the_readme_lists():
    times = layer_times()
    best = times.pop(("cherry-picking", "", "best per layer"))
    wrong = set()
    for pass_ in ("forward", "backward", "gradInput", "gradWeight"):
        for layer in LAYERS:
            key = (pass_, pass_, layer)
            lowest = min(other[key] for other in times.values() if key in other)
            if lowest != best[key]:
                wrong.add((pass_, layer, in_short(best[key]), in_short(lowest)))
    assert wrong == readme_table("Best per layer that is not the lowest")


def test_rows_are_ranked_by_total_but_for_those_that_the_readme_lists():
    wrong = set()
    for name in ("cnn-benchmarks.csv", "cloud-gpus.csv", "convnet-benchmarks.csv"):
        rows = [row for row in read(name) if row["pass"] == "total"]
        for above, below in pairwise(rows):
            if above["network"] == below["network"] and milliseconds(above) > milliseconds(below):
                wrong.add((name, *(above[key] for key in ("network", "rank", "milliseconds")), below["milliseconds"]))
    assert wrong == readme_table("Ranks against the times")


def test_the_cells_that_are_missing_are_those_that_the_readme_lists():
    wrong = set()
    for name in ("cnn-benchmarks.csv", "cloud-gpus.csv"):
        rows = read(name)
        every = list(dict.fromkeys(row["network"] for row in rows))
        for gpu, library, version in dict.fromkeys((r["gpu"], r["library"], r["library_version"]) for r in rows):
            missing = [network for network in every if (network, gpu, library, version) not in network_totals(name)]
            if missing:
                wrong.add((name, gpu, f"{library} {version}".strip(), ", ".join(missing)))
    assert wrong == readme_table("Networks that a row of the tables lacks")


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


# Where the original documents are: SEEDS=folder.

NO_FIGURE = re.compile(
    r"\[?\[\d(?:,\d)*\]|[Tt]op-\d|GTX \d+|Tesla K\d+|GRID K520|Quadro [PM]\d+|K40|VGG-\d+|[Ii]nception-[Vv]\d"
    r"|\d+-layer|resnet-\d+|ILSVRC[- ]\d{4}|(?:NIPS|ICLR|CVPR|ECCV) \d{4}|In \d{4}|DGX-1|Pylearn2|\bL\d\b|\d×\d"
    r"|pull/\d#issuecomment-\d+|gist\.github\.com/\S+|1 Comment|limit of 2 GPUs"
    # Not about what was measured: a picture's size at test time, a download's size, AlexNet's own machine.
    r"|256x256|2\.1 GB|3GB"
)
"""Digits in the documents that are left out: names, citations, years, addresses."""


@needs_documents
@pytest.mark.parametrize("document", [*EXTRACT["DOCUMENTS"], EXTRACT["README"]], ids=lambda document: document.into)
def test_the_extracted_lines_are_the_documents(document):
    path = Path(SEEDS or "") / document.file
    if document is EXTRACT["README"] and not path.is_file():
        pytest.skip("SEEDS has no README.md of cnn-benchmarks")
    text = path.read_text(encoding="utf-8")
    assert EXTRACT["extract"](document, text) == (EXTRACTED / document.into).read_text(encoding="utf-8")


@needs_documents
@pytest.mark.parametrize("document", EXTRACT["DOCUMENTS"], ids=lambda document: document.into)
def test_no_figure_of_the_documents_is_left_out(document):
    """Told without the script: what is kept stands in the document in this order, and no figure stands between."""
    text = (Path(SEEDS or "") / document.file).read_text(encoding="utf-8")
    between, position = [], 0
    for line in (line for line in extracted(document.into) if not line.startswith(CLAIM)):
        parts = figures([line])[0] if line.startswith(FIGURES) else [line]
        if not line.startswith(FIGURES):
            assert f"\n{line}\n" in f"\n{text}\n"
        for part in parts:
            found = text.index(part, position)
            between.append(text[position:found])
            position = found + len(part)
    between.append(text[position:])
    rest = NO_FIGURE.sub("", "\n".join(between))
    assert [line for line in rest.splitlines() if re.search(r"\d", line)] == []


@needs_documents
@pytest.mark.parametrize("document", EXTRACT["DOCUMENTS"], ids=lambda document: document.into)
def test_the_words_of_a_statement_stand_in_the_document_in_their_order(document):
    text = (Path(SEEDS or "") / document.file).read_text(encoding="utf-8")
    parts = [part for words in claims(extracted(document.into)) for part in words]
    assert parts
    position = 0
    for part in parts:
        position = text.index(part, position) + len(part)
