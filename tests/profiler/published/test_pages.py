"""The pages in docs/results/suites say of the rows there what these say."""

from __future__ import annotations

import math
import re
from pathlib import Path

import polars as pl
import pytest

from profiler.published import references
from profiler.published.command import study_of
from profiler.published.tables import picture_rows
from profiler.published.times import layer_times, own_times
from profiler.results.reading import read_runs

SUITES = Path(__file__).resolve().parents[3] / "docs" / "results" / "suites"
PAGES = sorted(path for path in SUITES.glob("*.md") if path.stem != "README")


def rows_of(suite: str) -> pl.DataFrame:
    return read_runs([str(path) for path in SUITES.glob(f"*/{suite}")]).results.collect()


def tables(page: Path) -> list[list[dict[str, str]]]:
    """Return every table of a page: its rows by heading."""
    return read_tables(page.read_text())


def read_tables(text: str) -> list[list[dict[str, str]]]:
    found = []
    for block in re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE):
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


def drawn(suite: str) -> list[tuple[pl.DataFrame, str]]:
    return picture_rows(study_of(next(SUITES.glob(f"*/{suite}"))), rows_of(suite))


def test_a_librarys_points_are_all_of_one_class_in_the_layers_picture() -> None:
    ((rows, _),) = drawn("convnet-layers")
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
    text = page.with_suffix(".svg").read_text()
    assert float(re.findall(r'width="([\d.]+)"', text)[0]) <= 830, "GitHub would shrink it"
    (heading,) = re.findall(r"^# (.*): published and own figures$", page.read_text(), re.M)
    assert f">{heading}<" in text.replace("&amp;", "&").replace("|", "\\|")
    parts = drawn(page.stem)
    units = ["Milliseconds per image", *["US dollars per million images"] * (page.stem == "cloud-gpus")]
    for (rows, unit), begins in zip(parts, units, strict=True):
        assert unit.startswith(begins) and f">{unit}" in text
        assert not rows.filter(pl.col("side").str.contains("CPU|EPYC")).height, "a CPU would squeeze the axis"
        published = rows.filter(pl.col("side").str.contains("Titan|GTX|Quadro|Tesla|GRID"))
        assert (published["side"] + ",").str.starts_with(published["kind"] + ",").all(), "a machine has its colour"
        assert rows["swept"].any() == (page.stem == "minibatch-efficiency"), "lines are of our sweeps"
        assert rows.group_by("side").agg(pl.col("kind").n_unique())["kind"].max() == 1, "a variant keeps its colour"
        sides = sorted(rows["side"].unique(), key=lambda side: text.rindex(f">{side.replace('&', '&amp;')}<"))
        if not rows["swept"].any() and len(parts) == 1:
            both = rows.join(rows, on=["network", "pass"], suffix="_below")
            least = (pl.col("value") / pl.col("value_below")).min().alias("least")
            ratios = both.group_by("side", "side_below").agg(least)
            slower = ratios.filter(pl.col("least") > 1).select("side", "side_below").rows()
            assert all(sides.index(side) > sides.index(below) for side, below in slower), "the fastest on top"


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
    assert "{:.1f}, {:.1f} and {:.1f} times as fast on L2, L3 and L4".format(*factors) in told


@pytest.mark.parametrize(
    ("suite", "sister"), [("convnet-benchmarks", "convnet-layers"), ("gpu-study", "minibatch-efficiency")]
)
def test_sister_pages_have_titles_and_statements_of_their_own(suite: str, sister: str) -> None:
    one, other = (page_text(name).partition("## What the source states")[2] for name in (suite, sister))
    statements = [{row.split(" | ")[1] for row in text.splitlines() if row.startswith("| ")} for text in (one, other)]
    assert statements[0] & statements[1] == {"---", "Statement"}
    claims = references.read("conclusions").filter(source=study_of(next(SUITES.glob(f"*/{suite}"))))
    assert len(statements[0] | statements[1]) == 2 + claims.height
    assert page_text(suite).splitlines()[0] != page_text(sister).splitlines()[0]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_what_gave_no_figures_is_there_once_with_its_reason(page: Path) -> None:
    absent = own_times(rows_of(page.stem)).filter(pl.col("status") != "ok")
    text = page.read_text()
    assert text.count("is not installed") == (absent.height > 0)
    for network in absent.select(pl.coalesce("network", "model")).to_series().unique():
        printed = references.network_names(study_of(next(SUITES.glob(f"*/{page.stem}")))).get(network, network)
        assert printed.replace("[", "\\[") in text.partition("## Not measured")[2].partition("\n## ")[0]


def test_larger_minibatches_are_compared_by_the_devices_clock() -> None:
    rows = pl.read_parquet(SUITES / "h200" / "minibatch-efficiency" / "results.parquet").drop_nulls("gpu_ms")
    per_image = rows.with_columns(ms=pl.min_horizontal("gpu_ms", "latency_ms") / pl.col("batch_size"))
    wide = per_image.filter(pl.col("batch_size").is_in([1, 8, 64, 512]))
    wide = wide.pivot("batch_size", index=["model", "pass"], values="ms")
    for size in (1, 8, 64):
        (line,) = re.findall(
            rf"^- Per image, the H200 with 512 .* with {size} on .*", page_text("minibatch-efficiency"), re.M
        )
        factors = wide[str(size)] / wide["512"]
        assert times_faster(line) == pytest.approx((factors.min(), factors.max()), rel=0.02)


MATRICES = [
    ("cnn-benchmarks", "H200"),
    ("cloud-gpus", "H200"),
    ("cnn-benchmarks", "2-core EPYC"),
    ("cloud-gpus", "2-core EPYC"),
]


@pytest.mark.parametrize(("suite", "machine"), MATRICES)
def test_the_matrix_of_ratios_follows_from_the_tables_above_it(suite: str, machine: str) -> None:
    found = tables(SUITES / f"{suite}.md")
    times = [table for table in found if "95 %, ms" in table[0] and "Total (ms)" in table[0]]
    (matrix,) = [table for table in found if "×" in table[0]]
    checked = 0
    for row in matrix:
        for heading, cell in row.items():
            if not row["×"].startswith(f"▸ {machine}, ") or not cell or heading.startswith(("▸", "×")):
                continue
            library, ratios, ends = row["×"].partition(", ")[2], [], []
            for table in times:
                own = [each for each in table if (each["GPU"], each["Library"]) == (f"▸ {machine}", library)]
                cards = [each for each in table if each["GPU"] == heading]
                if cards and own and own[0]["Total (ms)"] != "not measured":
                    newest = max(cards, key=lambda each: [int(part) for part in re.findall(r"\d+", each["Library"])])
                    theirs = number(newest["Total (ms)"])
                    low, high = map(
                        number, own[0]["95 %, ms"].split("–") if own[0]["95 %, ms"] else [own[0]["Total (ms)"]] * 2
                    )
                    ratios.append(theirs / number(own[0]["Total (ms)"]))
                    ends += [theirs / low, theirs / high]
            middle, *least_and_most = map(float, re.findall(r"[\d.]+", cell))
            assert middle == pytest.approx(math.exp(sum(map(math.log, ratios)) / len(ratios)), rel=0.02, abs=0.006)
            assert least_and_most == pytest.approx([min(ends), max(ends)], rel=0.02, abs=0.06) or not least_and_most
            checked += 1
    assert checked >= (1 if "EPYC" in machine else 8)


@pytest.mark.parametrize("suite", ["cnn-benchmarks", "cloud-gpus", "convnet-benchmarks"])
def test_intervals_and_peaks_of_memory_are_those_of_the_rows(suite: str) -> None:
    rows = rows_of(suite).filter(pl.col("status") == "ok", pl.col("pass") == "training")
    keys = ["machine", "model", "variant", "precision"]
    quiet = ~pl.col("warnings").list.eval(pl.element().str.starts_with("disturbed")).list.any()
    every = rows.filter(quiet | ~quiet.any().over(keys)).group_by(keys).agg(
        *(pl.col(name).median() for name in ("latency_ms", "peak_memory_mib")),
        *(pl.col(name).first() for name in ("latency_low_ms", "latency_high_ms", "gpu_low_ms")),
        processes=pl.len(),
    )  # fmt: skip
    names, checked = references.network_names(study_of(next(SUITES.glob(f"*/{suite}")))), 0
    heads = [(title, table) for title in names.values() for table in tables_below(SUITES / f"{suite}.md", title)]
    for row in every.iter_rows(named=True):
        (table,) = [table for title, table in heads if title == names[row["model"]]]
        variant = f"{row['variant']} {row['precision']}"
        for line in table:
            called = f"{line['Library']}, " if suite != "convnet-benchmarks" else ""
            if suite == "convnet-benchmarks" and f" {row['precision']}," in f"{line['Library']},":
                called = f" {line['Class/Function']} {row['precision']},"
            if line["GPU"] != f"▸ {row['machine']}" or not re.search(rf" {re.escape(variant)},", f" {called}"):
                continue
            total = number(line.get("Total (ms)") or line["Time (ms)"])
            assert total == pytest.approx(row["latency_ms"], rel=6e-3)
            if line["95 %, ms"]:
                low, high = map(number, line["95 %, ms"].split("–"))
                assert low <= total <= high
            if line["95 %, ms"] and row["processes"] == 1:
                floor = 0.98 * min(row["gpu_low_ms"] or 0, row["latency_ms"])
                ends = [max(row["latency_low_ms"], floor), row["latency_high_ms"]]
                assert [low, high] == pytest.approx(ends, rel=6e-3)
            assert number(line["Peak (MiB)"]) == pytest.approx(row["peak_memory_mib"], abs=1)
            checked += 1
    assert checked >= 10


def tables_below(page: Path, title: str) -> list[list[dict[str, str]]]:
    """Return the tables whose title is a network's."""
    blocks = re.split(r"^\*\*(.*)\*\*$", page.read_text(), flags=re.M)
    (text,) = [text for name, text in zip(blocks[1::2], blocks[2::2], strict=True) if name.replace("\\", "") == title]
    return read_tables(text)[:1]


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
