"""Hand-written lines about docs/results/suites are what the rows and pages there say."""

from __future__ import annotations

import re
from pathlib import Path

import polars as pl

from profiler.published import references
from profiler.published.times import layer_times, own_times
from profiler.results.reading import read_runs

SUITES = Path(__file__).resolve().parents[3] / "docs" / "results" / "suites"
PAGES = sorted(path for path in SUITES.glob("*.md") if path.stem != "README")


def rows_of(suite: str) -> pl.DataFrame:
    return read_runs([str(path) for path in SUITES.glob(f"*/{suite}")]).results.collect()


def test_own_figures_in_a_note_are_those_of_the_rows():
    def per_image(suite: str, model: str) -> float:
        rows = own_times(rows_of(suite)).filter(machine="H200", model=model, variant="eager-benchmark")
        (row,) = rows.filter(pl.col("pass") == "training", precision="fp32").to_dicts()
        return float(row["latency_ms"]) / row["batch_size"]

    vgg16, vgg11 = per_image("gpu-study", "vgg16"), per_image("convnet-benchmarks", "vgg11")
    plain, grouped = per_image("convnet-benchmarks", "alexnet-owt"), per_image("gpu-study", "alexnet")
    told = references.notes("gpu-study")["forward + backward"]
    for figure in (f"{vgg16:.2f} ms", f"{vgg11:.3f} (", f"{vgg16 / vgg11:.2f}x", f"{plain:.4f} ms", f"{grouped:.3f};"):
        assert figure in told
    assert f"{182.79 / 16:.2f} on the same GTX 1080 ({182.79 / 16 / (420.28 / 64):.2f}x)" in told

    layers = layer_times(rows_of("convnet-layers")).filter(machine="H200", precision="fp32")
    ort, searched = (
        layers.filter(pl.col("layer").is_in(["L2", "L3", "L4"]), variant=variant)["forward_ms"].to_list()
        for variant in ("ort", "eager-benchmark")
    )
    factors = [b / a for a, b in zip(ort, searched, strict=True)]
    told = references.notes("convnet-benchmarks")["forward"]
    assert f"takes {ort[0]:.2f} ms at L2" in told and f"takes {searched[0]:.2f}, and is" in told
    assert "{:.1f}, {:.1f} and {:.1f} times as fast on L2, L3 and L4".format(*factors) in told


def test_every_line_of_the_table_of_coverage_is_on_its_page():
    text = (SUITES.parents[1] / "suites.md").read_text().partition("| In the document |")[2].partition("\n\n")[0]
    lines = [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in text.splitlines()[2:]]
    assert {re.sub(r".*suites/(.*)\.md\)", r"\1", page) for _, page, _ in lines} == {page.stem for page in PAGES}
    for _, page, under in lines:
        (path,) = re.findall(r"\((.*)\)", page)
        found = (SUITES.parents[1] / path).read_text()
        below = re.split(rf"^(?:## {re.escape(under)}|\*\*{re.escape(under)}\*\*)$", found, flags=re.M)
        assert len(below) == 2, (path, under)
        assert below[1].lstrip().split("\n\n")[0], (path, under)
        assert re.search(r"^\|", below[1].split("\n## ")[0], re.M), "a table is there"
