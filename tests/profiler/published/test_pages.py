"""The pages in docs/results/suites say of the rows there what these say."""

from __future__ import annotations

import re
from pathlib import Path

import polars as pl
import pytest

from profiler.published import references
from profiler.published.command import study_of
from profiler.published.tables import picture_rows
from profiler.published.times import layer_times, own_times
from profiler.results.reading import read_runs
from profiler.tables.pictures import COLORS

SUITES = Path(__file__).resolve().parents[3] / "docs" / "results" / "suites"
PAGES = sorted(path for path in SUITES.glob("*.md") if path.stem != "README")


def rows_of(suite: str) -> pl.DataFrame:
    return read_runs([str(path) for path in SUITES.glob(f"*/{suite}")]).results.collect()


def tables(page: Path) -> list[list[dict[str, str]]]:
    """Return every table of a page: its rows by heading."""
    found = []
    for block in re.findall(r"(?:^\|.*\n)+", page.read_text(), re.MULTILINE):
        head, _, *lines = [re.split(r"(?<!\\)\|", line.strip().strip("|")) for line in block.splitlines()]
        found.append([dict(zip((h.strip() for h in head), (c.strip() for c in line), strict=True)) for line in lines])
    return found


def number(cell: str) -> float:
    return float(cell.strip("*").replace(",", ""))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_bold_is_the_lowest_per_image_of_a_column_among_the_published_rows_and_among_ours(page: Path) -> None:
    seen = 0
    for table in tables(page):
        for heading in table[0]:
            bold: dict[bool, set[float]] = {}
            for row in table:
                if row[heading].startswith("**"):
                    images = number(row.get("Batch", "1"))
                    bold.setdefault("▸" in next(iter(row.values())), set()).add(number(row[heading]) / images)
            for ours, best in bold.items():
                others = [
                    number(row[heading]) / number(row.get("Batch", "1"))
                    for row in table
                    if re.fullmatch(r"\**[\d.,]+\**", row[heading]) and ("▸" in next(iter(row.values()))) == ours
                    and "best per layer" not in row.values()
                ]  # fmt: skip
                assert best == {min(others)}, (table[0], heading)
                seen += 1
    assert seen > 3


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_row_whose_device_works_as_long_as_the_call_takes_is_not_host_bound(page: Path) -> None:
    own = own_times(rows_of(page.stem))
    busy = own.filter(pl.col("gpu_ms") >= 0.98 * pl.col("latency_ms"))
    assert not busy["note"].fill_null("").str.contains("host-bound").any()
    for table in tables(page):
        for row in table:
            total, device = row.get("Total (ms)", ""), row.get("Device (ms)", "")
            if total and device and number(device) >= 0.981 * number(total):
                assert "host-bound" not in row.get("Note", "")


def times_faster(text: str) -> tuple[float, float]:
    low, high = map(float, re.findall(r"([\d.]+)x", text)[:2])
    return low, high


@pytest.mark.parametrize(
    ("suite", "machine", "variant"),
    [
        ("convnet-benchmarks", "H200", "eager"),
        ("convnet-benchmarks", "H100", "eager"),
        ("cnn-benchmarks", "H200", "eager-benchmark"),
        ("convnet-layers", "H200", "eager-benchmark"),
    ],
)
def test_the_headline_compares_with_the_fastest_published_row_of_each_network(
    suite: str, machine: str, variant: str
) -> None:
    own = own_times(rows_of(suite)).filter(machine=machine, variant=variant, precision="fp32")
    mine = dict(own.select("model", "latency_ms").rows())
    lowest: dict[str, float] = {}
    if suite == "convnet-layers":
        mine = dict(layer_times(rows_of(suite)).filter(machine=machine, variant=variant, precision="fp32")
                    .select("layer", "total_ms").rows())  # fmt: skip
        parts = references.layers().filter(pl.col("library") != "cherry-picking")
        for layer in mine:
            both = parts.filter(layer=layer).drop_nulls(["forward_ms", "backward_ms"])
            lowest[layer] = min(both["forward_ms"] + both["backward_ms"])
    else:
        for network, ms in references.networks(suite).filter(device="cuda").select("network", "total_ms").rows():
            lowest[network] = min(ms, lowest.get(network, ms))
    factors = [lowest[name] / ms for name, ms in mine.items()]
    (line,) = re.findall(rf"^- The {machine} \({variant} fp32\) .* the fastest published .*", page_text(suite), re.M)
    assert times_faster(line) == pytest.approx((min(factors), max(factors)), rel=0.02)
    printed = {("convnet-benchmarks", "H200"): (18.5, 28.4), ("convnet-layers", "H200"): (16.3, 37.3)}
    assert times_faster(line) == printed.get((suite, machine), times_faster(line))


def page_text(suite: str) -> str:
    return (SUITES / f"{suite}.md").read_text()


def drawn(suite: str) -> tuple[pl.DataFrame, str]:
    return picture_rows(study_of(next(SUITES.glob(f"*/{suite}"))), rows_of(suite))


def test_a_librarys_points_are_all_of_one_class_in_the_layers_picture() -> None:
    rows, _ = drawn("convnet-layers")
    published = references.layers().filter(pl.col("library") != "cherry-picking")
    sides = published.select(pl.concat_str("machine", "library", "implementation", separator=", ")).unique()
    assert set(rows.filter(kind="published")["side"]) <= set(sides.to_series())
    both = published.filter(pl.col("layer") != "total")
    for name, kind in (("Torch-7", "nn.SpatialConvolutionMM"), ("Theano (experimental)", "CorrMM")):
        points = rows.filter(side=f"Titan Black, {name}, {kind}")
        of = both.filter(library=name, implementation=kind)
        of = of.select("layer", value=(pl.col("forward_ms") + pl.col("backward_ms")) / 128)
        assert points.select("network", "value").rows() == of.rows()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_pictures_axis_names_the_unit_and_a_kind_has_one_colour(page: Path) -> None:
    rows, unit = drawn(page.stem)
    text = page.with_suffix(".svg").read_text()
    assert unit.startswith("US dollars per million images" if page.stem == "cloud-gpus" else "Milliseconds per image")
    assert f">{unit}, on a logarithmic scale" in text
    assert rows.filter(pl.col("side").str.contains("Titan|GTX"))["kind"].unique().to_list() in ([], ["published"])
    assert set(rows["kind"]) <= set(COLORS)
    assert rows["swept"].any() == (page.stem == "minibatch-efficiency"), "lines are of our sweeps"
    assert rows.group_by("side").agg(pl.col("kind").n_unique())["kind"].max() == 1, "a variant keeps its colour"
    sides = sorted(rows["side"].unique(), key=lambda side: text.index(f">{side.replace('&', '&amp;')}<"))
    if not rows["swept"].any():
        both = rows.join(rows, on=["network", "pass"], suffix="_below")
        ratios = both.group_by("side", "side_below").agg((pl.col("value") / pl.col("value_below")).min().alias("least"))
        slower = ratios.filter(pl.col("least") > 1).select("side", "side_below").rows()
        assert slower and all(sides.index(side) > sides.index(below) for side, below in slower), "the fastest on top"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_blank_of_ours_says_why_once_and_without_advice(page: Path) -> None:
    text = page.read_text()
    assert "pip install" not in text and not re.search(r"[ ,]0 ms", text)
    for table in tables(page):
        for row in table:
            cells = [cell for heading, cell in row.items() if "▸" in next(iter(row.values())) and heading != "×"]
            assert cells.count("not measured") <= 1 or "is not installed" in str(cells)


def test_own_figures_in_a_note_are_those_of_the_rows() -> None:
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
    assert f"{min(factors):.1f}, {max(factors):.1f}" == "6.6, 15.6" and "6 to 15 times" in told


def test_every_line_of_the_table_of_coverage_is_on_its_page() -> None:
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
