"""docs/suites.md has a line for everything in the four documents: its lists are compared with references/ and with the
documents' own tables in tests/data/seeds."""

from __future__ import annotations

import csv
import re
import runpy
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import pytest

from engines.catalog import PRESETS
from exporters.catalog import CATALOG

ROOT = Path(__file__).resolve().parents[2]
PARSE = runpy.run_path(str(ROOT / "tests" / "data" / "seeds" / "parse.py"))
PAGE = (ROOT / "docs" / "suites.md").read_text(encoding="utf-8")
STUDIES = ("cnn-benchmarks", "cloud-gpus", "convnet-benchmarks", "gpu-study")
Pair = tuple[str, str]
"""What, and the document that has it."""


def read(name: str) -> list[dict[str, str]]:
    with (ROOT / "references" / f"{name}.csv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def lines(heading: str) -> list[list[str]]:
    """The cells of the table under the heading, each of which says where it is here."""
    section = PAGE.split(f"\n### {heading}\n")[1].split("\n#")[0]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in section.splitlines() if line[:1] == "|"][
        2:
    ]
    assert all(row[-1] for row in rows)
    return rows


def listed(heading: str) -> set[Pair]:
    found = Counter((row[0], document) for row in lines(heading) for document in row[1].split(", "))
    assert [pair for pair, count in found.items() if count > 1] == [], "two lines of the same"
    return set(found)


def pairs(rows: Iterable[dict[str, str]], *columns: str) -> set[Pair]:
    return {(row[column], row["source"]) for row in rows for column in columns if row.get(column)}


def of_studies(column: str) -> set[Pair]:
    return {(name, row["source"]) for row in read("studies") for name in row[column].split("; ") if name}


FIGURES = [row for study in STUDIES for row in read(study)]
LAYERS = read("convnet-layers")


def test_every_network_has_a_line() -> None:
    networks = pairs([*FIGURES, *read("networks")], "published_network") | of_studies("published_networks")
    assert listed("Their networks") == {pair for pair in networks if not re.fullmatch(r"L\d", pair[0])}


def test_every_layer_and_pass_has_a_line() -> None:
    found = pairs([*FIGURES, *LAYERS], "pass") | pairs(read("convnet-layer-shapes"), "layer")
    # Of the gpu-study's forward pass there are pictures only.
    found |= {("forward", "gpu-study")} | pairs(LAYERS, "remark")
    empty = {(name, "convnet-benchmarks") for name in ("Peak Memory Formula", "Limitations")}
    assert empty <= {(column, "convnet-benchmarks") for _, columns, _ in PARSE["tables_002"]() for column in columns}
    more = {("time per sample", "gpu-study"), ("spread", "none")}
    more |= {("layers, top-1 and top-5 error", row["source"]) for row in read("networks")}
    assert listed("Their layers, passes and figures") == found | empty | more


def test_every_library_and_framework_has_a_line() -> None:
    expected = set()
    for row in FIGURES:
        if row["source"] in ("cnn-benchmarks", "cloud-gpus"):
            library = f"cuDNN {row['library_version']}" if row["library"] == "cudnn" else "None"
            expected.add((library, row["source"]))
    for row in [*read("convnet-benchmarks"), *LAYERS]:
        expected.add((f"{row['published_library'].rstrip('* ')}, {row['implementation']}", row["source"]))
    for row in read("studies"):
        if row["source"] == "gpu-study":
            expected.add((f"{row['framework']} {row['framework_version'][:7]}", row["source"]))
    assert listed("Their libraries and frameworks, and which row of today stands for them") == expected


def test_every_machine_has_a_line() -> None:
    hosts = {(cpu.replace(" v3", ""), source) for cpu, source in pairs(read("machines"), "cpu")}
    expected = pairs([*FIGURES, *LAYERS, *read("hardware")], "gpu") | of_studies("gpus")
    dual = {("Intel Xeon E5-2630", "cnn-benchmarks")}
    assert dual <= hosts, "the line of the dual machine is that of its CPU rows"
    named = {("GTX 580", "cnn-benchmarks"), ("GTX 580", "cloud-gpus"), ("DGX-1", "gpu-study")}
    assert listed("Their machines") == expected | (hosts - dual) | named


def test_every_table_has_a_line() -> None:
    found = listed("Their tables")
    printed = {pair for pair in found if not pair[0].startswith("(text)")}
    names = {
        ("; ".join(name for name, _ in PARSE[f"tables_{number}"]()), source)
        for number, source in (("000", "cnn-benchmarks"), ("001", "cloud-gpus"))
    }
    titles = [heading.strip("# ").split(" - Input ")[0] for heading, _, _ in PARSE["tables_002"]()]
    networks, layers = titles[:3], titles[3:]
    names |= {("; ".join(networks), "convnet-benchmarks"), (layers[0], "convnet-benchmarks")}
    names |= {
        ("; ".join(layers[1:]), "convnet-benchmarks"),
        ("L1 to L5 (a list of their shapes)", "convnet-benchmarks"),
    }
    columns = "GPU, cuDNN, Forward (ms), Backward (ms), Total (ms): "
    others = {(what.removeprefix(columns), document) for what, document in printed} - names
    assert len(printed) - len(others) == len(names)
    headers = {line for name in ("000-cnn-benchmarks", "001-cloud-gpus") for line in PARSE["extracted"](f"{name}.txt")}
    glued = {what.replace(", ", "") for what, document in others if document == "cnn-benchmarks"}
    assert glued == {line for line in headers if re.match("NetworkLayers|GPUMemory", line)}
    (cloud,) = (what for what, document in others if document == "cloud-gpus")
    assert f"|{cloud.replace(', ', '|')}|" in headers


def test_every_picture_has_a_line() -> None:
    (bars,) = {row["gpus"] for row in read("studies") if row["study"] == "frameworks"}
    drawn = [name for line in PARSE["plots_003"]() for name in line.split()]
    expected = {(f"{gpu}: forward; forward + backward", "gpu-study") for gpu in bars.split("; ")}
    expected |= {(f"{name}: time per sample by minibatch", "gpu-study") for name in drawn}
    expected |= {('"TitanX Pascal benchmark graph"', "gpu-study")}
    assert listed("Their pictures") == expected | {("(none)", study) for study in STUDIES[:3]}


def test_every_conclusion_has_a_line() -> None:
    counts = Counter((row["kind"], row["source"]) for row in read("conclusions"))
    assert {(kind, source): int(count) for kind, source, count, _ in lines("Their conclusions")} == counts


@pytest.mark.parametrize(
    ("heading", "known"),
    [
        ("Their networks", CATALOG),
        ("Their libraries and frameworks, and which row of today stands for them", PRESETS),
    ],
)
def test_what_stands_for_it_here_is_known(heading: str, known: Iterable[str]) -> None:
    named = {name for row in lines(heading) for name in re.findall(r"`([^`]+)`", row[-1])}
    assert named
    assert named <= set(known)
