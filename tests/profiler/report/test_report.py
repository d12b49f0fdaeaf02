"""The report's figures, sentences and files: of the golden runs, of runs made by hand, and of hostile names."""

from __future__ import annotations

import base64
import hashlib
import json
import math
import re
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from typing import Any

import handmade
import polars as pl
import pytest
import vl_convert
from runs import Profiler, on_console

from engines.catalog import PRECISIONS
from profiler.errors import ConfigError
from profiler.report import page as report_page
from profiler.report.command import Options, write
from profiler.report.data import CONFIGURATION_KEY, TICKS, Data, gather, natural
from profiler.report.findings import findings, headline, lead
from profiler.report.sections import Report, compose
from profiler.report.tables import tables
from profiler.results.columns import LAYERS, RESULTS, SAMPLES
from profiler.results.reading import read_runs
from profiler.results.run_folder import RunFolder
from profiler.results.sentences import RANKED
from profiler.results.speedups import summary
from profiler.run import command
from profiler.tables.writers import csv

ROOT = Path(__file__).resolve().parents[3]
GOLDEN = ROOT / "tests" / "golden"
FULL = ROOT / "docs" / "results" / "h200"
Rows = list[dict[str, Any]]


class Reader(HTMLParser):
    """Reads a page's elements, scripts and tables, as a browser's parser would find them."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[str] = []
        self.tables: dict[str, Rows] = {}
        self.hidden: dict[str, list[bool]] = {}
        self._table = ""
        self._heads: list[list[tuple[str, int]]] = []
        self._rows: list[list[str]] = []
        self._open: list[str] | None = None
        self._body = False
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        told = dict(attrs)
        self.elements.append((tag, told))
        if tag == "div" and (told.get("id") or "").startswith("table-"):
            self._table = str(told["id"]).removeprefix("table-")
            self._heads, self._rows, self.hidden[self._table] = [], [], []
        elif tag == "tr":
            if self._body:
                self._rows.append([])
                self.hidden[self._table].append("hidden" in told)
            else:
                self._heads.append([])
        elif tag in ("thead", "tbody"):
            self._body = tag == "tbody"
        elif tag == "th":
            # Negative: so many columns, whose own heads stand in the next row.
            self._heads[-1].append(("", -int(told.get("colspan") or 1) if told.get("class") == "s" else 1))
            self._open = [""]
        elif tag in ("td", "script"):
            self._open = [""]

    def handle_endtag(self, tag: str) -> None:
        words, self._open = "".join(self._open or ()), None if tag in ("td", "th", "script") else self._open
        if tag == "th":
            self._heads[-1][-1] = (words, self._heads[-1][-1][1])
        elif tag == "td":
            self._rows[-1].append(words)
        elif tag == "script":
            self.scripts.append(words)
        elif tag == "table":
            below = iter([head for head, _ in self._heads[-1]])
            first = self._heads[0] if len(self._heads) > 1 else [(head, 1) for head in below]
            heads = [
                name for head, span in first for name in ([head] if span > 0 else [next(below) for _ in range(-span)])
            ]
            self.tables[self._table] = [dict(zip(heads, row, strict=True)) for row in self._rows]

    def handle_data(self, data: str) -> None:
        if self._open is not None:
            self._open.append(data)


def page_of(*runs: Path, folder: Path, **order: Any) -> str:
    path = write(Options(runs=runs, output=folder / "report.html", **order))[0]
    return path.read_text(encoding="utf-8")


@pytest.fixture(scope="session")
def cpu(tmp_path_factory: pytest.TempPathFactory) -> str:
    return page_of(GOLDEN / "cpu", folder=tmp_path_factory.mktemp("cpu"))


@pytest.fixture(scope="session")
def h200_csv(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("h200") / "tables"
    return write(Options(runs=[GOLDEN / "h200"], format="csv", output=folder))


def number(text: str) -> float:
    return float(text.replace(",", ""))


# The figures.


@pytest.mark.parametrize("name", ["h200", "cpu"])
def test_tables_of_the_page_hold_the_runs_figures(name: str, request: pytest.FixtureRequest) -> None:
    results, samples = (
        table.collect() for table in (read_runs([GOLDEN / name]).results, read_runs([GOLDEN / name]).samples)
    )
    found = Reader(request.getfixturevalue(name)).tables
    keys = ("Model", "Pass", "Batch", "Engine", *(["Precision"] if name == "h200" else []))
    for table in ("speedups", "latency", "throughput", "memory", "efficiency", "samples", "setup"):
        assert len(found[table]) == results.height, table
    shown = {tuple(row[k] for k in keys): row for row in found["latency"]}
    speedups = {tuple(row[k] for k in keys): row for row in found["speedups"]}
    for line in summary(results, samples).to_dicts():
        named = [line["model"], line["pass"], str(line["batch_size"]), line["variant"], line["precision"]]
        row, speedup = shown[tuple(named[: len(keys)])], speedups[tuple(named[: len(keys)])]
        assert number(row["Latency, ms"]) == pytest.approx(line["latency_ms"], abs=0.5 if name == "cpu" else 5e-4)
        assert number(speedup["Speed-up, ×"]) == pytest.approx(line["speedup"], abs=0.005)
        ends = speedup.get("95 %", "")
        assert bool(ends) == (line["speedup_low"] is not None)
        if ends:
            low, high = ends.split("–")
            assert float(low) == pytest.approx(line["speedup_low"], abs=0.005)
            assert float(high) == pytest.approx(line["speedup_high"], abs=0.005)


def test_the_answer_is_each_groups_fastest_line(h200: str) -> None:
    page = Reader(h200)
    rows, hidden = page.tables["answer"], page.hidden["answer"]
    results = read_runs([GOLDEN / "h200"]).results.collect().sort("latency_ms")

    def fastest(of: pl.DataFrame) -> dict[tuple[str, ...], str]:
        best = of.group_by("model", "pass", "batch_size", maintain_order=True).first().to_dicts()
        return {(r["model"], r["pass"], str(r["batch_size"])): f"{r['variant']} {r['precision']}" for r in best}

    shown = [row for row, away in zip(rows, hidden, strict=True) if not away]
    assert {(r["Model"], r["Pass"], r["Batch"]): r["Configuration"] for r in shown} == fastest(results)
    assert {(r["Model"], r["Pass"], r["Batch"]): r["Fastest in fp32, ms"].split(",")[0] for r in shown} == fastest(
        results.filter(precision="fp32")
    )
    waiting = [row for row, away in zip(rows, hidden, strict=True) if away]
    for precision in ("fp32", "tf32", "fp16"):
        own = [row for row in waiting if row["Configuration"].endswith(f" {precision}")]
        expected = fastest(results.filter(precision=precision))
        assert {(r["Model"], r["Pass"], r["Batch"]): r["Configuration"] for r in own} == expected


def test_csv_holds_every_digit(h200_csv: list[Path]) -> None:
    written = {path.stem: path for path in h200_csv}
    names = set(written)
    assert names >= {
        "answer",
        "speedups",
        "latency",
        "memory",
        "training",
        "samples",
        "setup",
        "warnings",
        "environment",
    }
    latency = pl.read_csv(written["latency"])
    results = read_runs([GOLDEN / "h200"]).results.collect()
    keys = ["model", "pass", "batch_size", "variant", "precision"]
    both = results.join(latency, on=keys, suffix="_written")
    assert both.height == results.height
    for column in ("latency_ms", "latency_p90_ms", "gpu_ms", "h2d_ms", "latency_ci_low_ms"):
        assert both[column].to_list() == both[f"{column}_written"].to_list()
    answer = pl.read_csv(written["answer"])
    assert answer.filter(pl.col("restricted_to").is_null()).height == 12


def test_the_answer_lists_the_precisions_of_a_choice_in_one_order(h200_csv: list[Path]) -> None:
    answer = pl.read_csv(next(path for path in h200_csv if path.stem == "answer"), infer_schema=False)
    key = ["model", "batch_size", "pass"]
    listed = answer.group_by(key).agg("restricted_to")["restricted_to"].to_list()
    measured = pl.read_parquet(GOLDEN / "h200" / "results.parquet")["precision"]
    assert listed == len(listed) * [[None, *(p for p in PRECISIONS if p in measured)]]


def test_csv_of_more_lines_than_a_page_has_room_for_has_them_all(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("profiler.report.command.MOST_CONFIGURATIONS", 40)
    write(Options(runs=[GOLDEN / "h200"], format="csv", output=tmp_path))
    assert pl.read_csv(tmp_path / "latency.csv").height == 120
    page = page_of(GOLDEN / "h200", folder=tmp_path)
    assert "The page shows 36 of 120 configurations, for 4 of 12 choices" in page
    assert len(Reader(page).tables["latency"]) == 36


def test_markdown_holds_the_same_tables(tmp_path: Path) -> None:
    (path,) = write(Options(runs=[GOLDEN / "cpu"], format="md", output=tmp_path))
    text = path.read_text()
    assert path.name == "report.md"
    assert "| resnet50 | inference | 16 | ort fp32 | 291.86 |" in text
    assert text.count("\n## ") >= 12
    headed = [line for line in text.splitlines() if line.startswith("| ---")]
    assert len(headed) == len(compose(gather(read_runs([GOLDEN / "cpu"]))).tables)
    assert "compiled fp16" not in text


def test_charts_become_images_beside_the_text(tmp_path: Path) -> None:
    only = ["model=resnet18,pass=inference,batch_size=16"]
    path, *images = write(
        Options(runs=[GOLDEN / "cpu"], format="md", output=tmp_path / "here.md", charts="png", only=only)
    )
    assert {image.suffix for image in images} == {".png"}
    assert all(image.read_bytes().startswith(b"\x89PNG") for image in images)
    linked = re.findall(r"!\[[^\]]*\]\(([^)]+)\)", path.read_text())
    assert [tmp_path / link for link in linked] == images
    assert {image.parent for image in images} == {tmp_path / "here-charts"}


def test_svg_has_a_title_and_the_light_palette(tmp_path: Path) -> None:
    _, *images = write(
        Options(
            runs=[GOLDEN / "h200"],
            format="html",
            output=tmp_path,
            charts="svg",
            only=["model=resnet50,pass=inference,batch_size=16"],
        )
    )
    throughput = next(image for image in images if image.stem == "throughput").read_text()
    assert "Throughput against latency" in throughput
    assert "resnet50, inference, batch 16" in throughput
    assert "var(--" not in throughput


# The page loads nothing, and believes no name.


def test_page_loads_nothing(h200: str, hostile: str) -> None:
    for text in (h200, hostile):
        for tag, told in Reader(text).elements:
            assert tag not in ("img", "iframe", "object", "embed", "base", "source", "video", "audio", "form") or (
                tag == "form" and told.get("class") == "filters"
            )
            for name in ("src", "srcset", "action", "data", "poster", "xlink:href"):
                assert name not in told, (tag, told)
            assert (told.get("href") or "#").startswith(("#", "data:,")), (tag, told)
            assert not any(name.startswith("on") for name in told), (tag, told)
        style = re.search(r"<style>(.*?)</style>", text, re.DOTALL)
        assert style
        assert "@import" not in style[1]
        assert "url(" not in style[1]


def test_policy_lets_the_pages_own_scripts_run_alone(h200: str, hostile: str) -> None:
    for text in (h200, hostile):
        page = Reader(text)
        policy = next(told["content"] for tag, told in page.elements if told.get("http-equiv"))
        assert policy
        assert "default-src 'none'" in policy
        assert "unsafe-eval" not in policy
        assert "script-src 'unsafe-inline'" not in policy
        assert len(page.scripts) == 3
        data, *code = page.scripts
        hashes = [base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in code]
        assert re.findall(r"'sha256-([^']+)'", policy) == hashes
        json.loads(data)


def test_hostile_names_are_text(hostile: str) -> None:
    page = Reader(hostile)
    names = {row["Model"] for row in page.tables["answer"]}
    assert "<script>window.hacked=1</script>" in names
    assert len(names) == 3
    assert "it said <script>window.hacked=1</script>" in {row["Reason"] for row in page.tables["not-measured"]}
    assert all("hacked" not in script for script in page.scripts[1:])
    data = json.loads(page.scripts[0])
    assert "<script>window.hacked=1</script>" in data["options"]["model"]
    assert "<" not in page.scripts[0]


def test_hostile_names_do_not_break_markdown_nor_files(
    hostile_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    draw, drawn = vl_convert.vegalite_to_svg, set()

    def draw_once(spec: dict[str, Any]) -> str:
        """Each chart of one model only: this is about their names."""
        title = spec["title"]["text"]
        new = title not in drawn
        drawn.add(title)
        return draw(spec) if new else "<svg/>"

    monkeypatch.setattr("vl_convert.vegalite_to_svg", draw_once)
    path, *images = write(
        Options(
            runs=[hostile_run], format="md", output=tmp_path / "out", charts="svg", only=["pass=inference,batch_size=1"]
        )
    )
    text = re.sub(r"(?ms)^(`{3,})$.*?^\1$", "", path.read_text())
    assert "```" not in text
    assert not re.search(r"(?<!\\)<(script|img)", re.sub(r"`[^`\n]*`", "", text))
    for row in (line for line in text.splitlines() if line.startswith("| ")):
        assert len(re.findall(r"(?<!\\)\|", row)) > 2
    for table in re.findall(r"(?m)(?:^\|.*\n)+", text):
        assert len({len(re.findall(r"(?<!\\)\|", row)) for row in table.splitlines()}) == 1, table
    assert images
    assert all(
        re.fullmatch(r"[\w.-]+", image.name) and image.parent == tmp_path / "out" / "report-charts" for image in images
    )


# Runs made by hand.


def row(variant: str, ms: float, **more: Any) -> dict[str, Any]:
    more = {"machine": "laptop", "device": "cpu", "samples": 40, "rel_l2_error": None} | more
    return handmade.row(variant, ms=ms, **more)


def failed(variant: str, **more: Any) -> dict[str, Any]:
    case = row(variant, 1.0, **more)
    return {k: v for k, v in case.items() if not k.endswith("_ms")} | {"status": "failed", "reason": "no luck"} | more


def save(folder: Path, rows: Rows, layers: Rows | None = None, **environment: Any) -> Path:
    folder.mkdir(parents=True)
    table = pl.DataFrame([{name: r.get(name) for name in RESULTS} for r in rows], schema=RESULTS)
    table.write_parquet(folder / "results.parquet")
    samples = [
        {
            "run_id": r["run_id"],
            "case_id": r["case_id"],
            "clock": "host",
            "index": i,
            "ms": r["latency_ms"] * (1 + 0.01 * math.sin(3 * i)),
        }
        for r in rows
        if "latency_ms" in r
        for i in range(40)
    ]
    pl.DataFrame(samples, schema=SAMPLES).write_parquet(folder / "samples.parquet")
    if layers:
        pl.DataFrame(layers, schema=LAYERS).write_parquet(folder / "layers.parquet")
    (folder / "environment.json").write_text(json.dumps({"cpu": "a CPU", "device": "cpu", **environment}))
    return folder


def gathered(folder: Path, rows: Rows, **more: Any) -> Data:
    return gather(read_runs([save(folder / "run", rows)]), **more)


def of(data: Data, variant: str) -> dict[str, Any]:
    return data.configurations.row(by_predicate=pl.col("variant") == variant, named=True)


def test_set_up_pays_off_where_the_seconds_are_won_back(tmp_path: Path) -> None:
    rows = [
        row("eager", 10.0, throughput=100.0, load_s=1.0),
        row("ort", 5.0, throughput=200.0, export_s=1.5, load_s=0.5),
        row("trt", 2.0, throughput=500.0, build_s=40.0, load_s=2.0),
        row("compiled", 20.0, throughput=50.0, build_s=9.0),
    ]
    data = gathered(tmp_path, rows)
    assert [of(data, "ort")[part] for part in ("set_up_s", "once_s", "start_s")] == [2.0, 1.5, 0.5]
    assert of(data, "ort")["pays_off_items"] == 1.5 / (0.01 - 0.005)
    assert of(data, "ort")["restart_items"] == 0, "it starts sooner than the base"
    assert of(data, "trt")["pays_off_items"] == 40.0 / (0.01 - 0.002)
    assert of(data, "trt")["restart_items"] == 1.0 / (0.01 - 0.002)
    assert of(data, "compiled")["start_s"] == 9.0
    assert of(data, "compiled")["pays_off_items"] is None
    assert [of(data, name)["best_from_items"] for name in ("eager", "ort", "trt")] == [0, 201, 13334]
    assert of(data, "compiled")["best_from_items"] is None


def test_the_best_from_so_many_items_on_is_the_best(tmp_path: Path) -> None:
    """Against the totals themselves, over many numbers of items."""
    costs = [
        (0.1, 9.0),
        (0.4, 7.5),
        (0.5, 8.0),
        (1.0, 5.0),
        (2.0, 4.9),
        (4.0, 2.0),
        (5.0, 2.5),
        (30.0, 1.0),
        (31.0, 1.0),
    ]
    rows = [row(f"ort-{i}", ms, throughput=1000 / ms, build_s=s) for i, (s, ms) in enumerate(costs)]
    lines = gathered(tmp_path, rows).configurations.to_dicts()
    steps = sorted((line["best_from_items"], line["variant"]) for line in lines if line["best_from_items"] is not None)
    assert len(steps) == 5
    for items in [0, 1, *(round(10 ** (n / 8)) for n in range(1, 60))]:
        totals = {line["variant"]: line["set_up_s"] + items * line["item_s"] for line in lines}
        told = [variant for start, variant in steps if start <= items][-1]
        assert totals[told] == pytest.approx(min(totals.values()), rel=1e-9), items


def test_the_front_holds_what_nothing_beats_in_both(tmp_path: Path) -> None:
    rows = [
        row(f"ort-{i}", ms, batch_size=batch, throughput=rate)
        for i, (ms, batch, rate) in enumerate(
            [(1, 1, 900), (2, 1, 950), (2.5, 1, 400), (3, 4, 1300), (9, 16, 1250), (9, 16, 1700)]
        )
    ]
    lines = gathered(tmp_path, rows).configurations.to_dicts()
    front = {
        line["variant"]
        for line in lines
        if not any(
            other["latency_ms"] <= line["latency_ms"] and other["throughput"] > line["throughput"] for other in lines
        )
    }
    assert {line["variant"] for line in lines if line["front"]} == front == {"ort-0", "ort-1", "ort-3", "ort-5"}


def test_steps_go_from_the_base_to_the_exported_runtimes(tmp_path: Path) -> None:
    names = [
        ("trt", "fp16"),
        ("ort-tuned", "fp16"),
        ("eager", "fp16"),
        ("compiled", "fp16"),
        ("eager", "tf32"),
        ("eager-tuned", "fp16"),
        ("mine", "fp32"),
        ("ort", "fp32"),
        ("eager", "fp32"),
    ]
    rows = [
        row(v, 9.0 - i / 2, precision=p, engine="ort" if v == "mine" else v.partition("-")[0])
        for i, (v, p) in enumerate(names)
    ]
    table = tables(gathered(tmp_path, rows))["speedups"].frame
    assert table["configuration"].to_list() == [
        *("eager fp32", "eager tf32", "eager fp16", "eager-tuned fp16", "compiled fp16"),
        *("ort fp32", "ort-tuned fp16", "mine fp32", "trt fp16"),
    ]
    times = table["latency_ms"].to_list()
    assert table["gain"].to_list()[1:] == pytest.approx([a / b for a, b in pairwise(times)])


def test_int8_that_was_calibrated_on_seeded_data_is_not_what_to_deploy(tmp_path: Path) -> None:
    seeded = row("ort", 1.0, precision="int8", warnings=["calibration: seeded"])
    data = gathered(tmp_path, [seeded, row("eager", 10.0), row("ort", 5.0)])
    report = compose(data)
    answer = tables(data)["answer"].frame
    assert answer.filter(pl.col("restricted_to").is_null())["configuration"].to_list() == ["ort fp32"]
    (section,) = (each for each in report.sections if each.name == "answer")
    assert [text.split(": ")[1] for text, _ in section.sentences] == ["ort fp32 is 2.0× fp32 eager"]
    assert "Left out: int8" in section.text[0]
    alone = tables(gathered(tmp_path / "alone", [seeded]))["answer"].frame
    assert alone["configuration"].to_list() == ["ort int8"]


def test_replicates_give_a_verdict_in_the_answer(tmp_path: Path) -> None:
    rows = [
        row(v, ms * f, replicate=i) for v, ms in (("eager", 10.0), ("ort", 5.0)) for i, f in enumerate((0.99, 1, 1.01))
    ]
    data = gathered(tmp_path, rows)
    line = of(data, "ort")
    assert (line["replicates"], line["verdict"], line["interval"]) == (3, "faster", "between processes")
    answer = Reader(report_page.page(compose(data))).tables["answer"][0]
    assert (answer["Configuration"], answer["Verdict"]) == ("ort fp32", "faster")


def test_runs_of_one_machine_with_the_same_cases_keep_their_names(tmp_path: Path) -> None:
    for name, ms in (("before", 2.0), ("after", 1.0)):
        save(tmp_path / name, [row("eager", ms, run_id=name)])
    data = gather(read_runs([tmp_path / "before", tmp_path / "after"]))
    assert data.configurations.select("run", "latency_ms").rows() == [("before", 2.0), ("after", 1.0)]


def test_runs_that_share_a_job_are_one(tmp_path: Path) -> None:
    save(tmp_path / "one", [row("eager", 2.0, run_id="one")])
    save(tmp_path / "two", [row("ort", 1.0, run_id="two")])
    data = gather(read_runs([tmp_path / "one", tmp_path / "two"]))
    assert data.configurations["run"].unique().to_list() == ["laptop"]
    assert of(data, "ort")["speedup"] == 2.0


def test_machines_stand_apart(tmp_path: Path) -> None:
    save(tmp_path / "one", [row("eager", 2.0, run_id="one")])
    save(tmp_path / "two", [row("eager", 1.0, run_id="two", machine="server")])
    page = page_of(tmp_path / "one", tmp_path / "two", folder=tmp_path)
    assert {r["Run"] for r in Reader(page).tables["latency"]} == {"laptop", "server"}
    assert [told.get("data-key") for tag, told in Reader(page).elements if tag == "select"] == ["run"]


def test_samples_that_are_drawn_are_real_and_span_them_all(h200_data: Data, tmp_path: Path) -> None:
    data = gathered(tmp_path, [row("eager", 10.0)])
    drawn = data.configurations.row(0, named=True)
    samples = sorted(10.0 * (1 + 0.01 * math.sin(3 * i)) for i in range(40))
    assert drawn["taken"] == 40
    assert len(drawn["ticks"]) == TICKS
    assert drawn["ticks"] == pytest.approx(samples)
    assert h200_data.configurations["ticks"].list.len().max() == TICKS


def test_a_cap_keeps_whole_groups_and_every_model(tmp_path: Path) -> None:
    rows = [row(v, 1.0, model=m, batch_size=b) for m in "abcd" for b in (1, 2, 4) for v in ("eager", "ort")]
    data = gathered(tmp_path, rows, most_configurations=11)
    assert data.configurations.height == 10
    assert set(data.configurations["model"]) == set("abcd")
    assert data.configurations.group_by(CONFIGURATION_KEY[:-2]).len()["len"].unique().to_list() == [2]
    assert "10 of 24 configurations" in data.notes[0]


def test_raw_samples_are_left_out_where_they_are_too_many(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("profiler.report.data._MOST_SAMPLES", 100)
    rows = [row(v, 1.0, model=m) for m in "ab" for v in ("eager", "ort")]
    data = gathered(tmp_path, rows)
    assert set(data.configurations.drop_nulls("taken")["model"]) == {"a"}
    assert data.configurations.filter(model="b")["speedup"].to_list() == [1.0, 1.0]
    assert any("100 samples" in note for note in data.notes)


def test_a_search_for_the_largest_batch_is_a_table_and_no_curve(tmp_path: Path) -> None:
    rows = [
        row("eager", 1.0),
        *(row("eager", 1.0 * b, batch_size=b, extra="probe=largest", throughput=None) for b in (8, 16, 24)),
        # Memory need not grow with the batch.
        *(failed("eager", batch_size=b, extra="probe=largest", status="oom") for b in (20, 32, 40)),
    ]
    data = gathered(tmp_path, rows)
    assert data.configurations.height == 1
    assert data.problems.is_empty()
    assert data.statuses == {"ok": 1}
    (found,) = Reader(report_page.page(compose(data))).tables["largest-batch"]
    assert (found["Largest batch"], found["Too large"], found["Status"]) == ("24", "32", "oom")


def test_each_setting_has_a_largest_batch_of_its_own(tmp_path: Path) -> None:
    rows = [row("eager", 1.0, **{"pass": "training"})]
    for setting, most in (("head=logits", 24), ("optimizer=adamw/head=logits", 16)):
        more = {"pass": "training", "extra": f"{setting}/probe=largest"}
        rows += [row("eager", 1.0, batch_size=most, **more), failed("eager", batch_size=most + 1, status="oom", **more)]
    found = Reader(report_page.page(compose(gathered(tmp_path, rows)))).tables["largest-batch"]
    assert [(line["Setting"], line["Largest batch"], line["Too large"]) for line in found] == [
        ("head=logits", "24", "25"),
        ("optimizer=adamw/head=logits", "16", "17"),
    ]


def test_only_refuses_a_value_that_no_row_has_beside_one_that_some_have(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--only engine=eager-tuuned: no row of these runs matches; did you mean"):
        page_of(GOLDEN / "cpu", folder=tmp_path, only=("engine=eager-tuned,engine=eager-tuuned",))


def test_of_several_optimizers_the_sentence_on_speedups_is_of_one(tmp_path: Path) -> None:
    rows = [
        row(variant, ms * slower, **{"pass": "training"}, extra=extra)
        for extra, slower in ((None, 1.0), ("optimizer=sgd", 1.5))
        for variant, ms in (("eager", 4.0), ("compiled", 2.0))
    ]
    (said,) = findings(gathered(tmp_path, rows))["speedups"]
    assert said["text"] == "Over fp32 eager at batch 1: compiled fp32 2.0×; the fastest is compiled fp32 at 2.0×."


def test_a_line_that_ran_alone_is_not_held_against_itself(tmp_path: Path) -> None:
    rows = [row("eager", 1.0 * b, batch_size=b, extra="sweep=batch") for b in (1, 2)]
    assert lead(gathered(tmp_path, rows).configurations) == []


def test_a_model_with_a_reference_is_held_against_that_ones_base(tmp_path: Path) -> None:
    theirs = {"model": "theirs", "reference_model": "net", "is_base": False}
    rows = [row("eager", 10.0, load_s=1.0), row("ort", 5.0, load_s=1.0, export_s=2.0, **theirs)]
    data = gathered(tmp_path, rows)
    assert of(data, "ort")["pays_off_items"] == 2.0 / (0.01 - 0.005)
    assert list(map(str, lead(data.configurations))) == ["batch 1: 2.0× as fast as fp32 eager of net: theirs"]
    (said,) = findings(data)["speedups"]
    assert said["text"] == "Over fp32 eager of net at batch 1: ort fp32 2.0×; the fastest is ort fp32 at 2.0×."
    assert tables(data)["speedups"].frame.filter(model="theirs")["base"].to_list() == ["fp32 eager of net"]


def test_optimizers_stand_side_by_side(tmp_path: Path) -> None:
    rows = [
        row("eager", ms, **{"pass": "training"}, extra=extra, forward_ms=ms / 3, backward_ms=2 * ms / 3)
        for extra, ms in ((None, 3.0), ("optimizer=sgd", 4.0), ("optimizer=adamw", 5.0))
    ]
    report = compose(gathered(tmp_path, rows))
    training = next(chart for chart in report.charts if chart.name == "training")
    assert training.keep.get("extra") is None
    assert {r["configuration"] for r in report.rows["lines"]} == {"eager fp32", "eager fp32, sgd", "eager fp32, adamw"}


def test_layers_share_a_row_where_some_runtime_fuses_them(tmp_path: Path) -> None:
    rows = [row("eager", 3.0), row("ort", 2.0)]

    def layer(case: int, order: int, name: str, nodes: list[str], ms: float) -> dict[str, Any]:
        told = {"run_id": "run", "case_id": rows[case]["case_id"], "order": order, "layer": name, "kind": "conv"}
        return {**told, "nodes": nodes, "ms": ms, "share": 0.5}

    layers = [
        layer(0, 0, "conv1", ["node_conv"], 1.0),
        layer(0, 1, "relu", ["node_relu"], 0.5),
        layer(0, 2, "fc", ["node_fc"], 1.5),
        layer(1, 0, "fused", ["node_conv", "node_relu"], 1.2),
        layer(1, 1, "fc", ["node_fc"], 0.6),
        layer(1, 2, "reorder", [], 0.2),
    ]
    folder = save(tmp_path / "run", rows, layers)
    report = compose(gather(read_runs([folder])))
    (table,) = (table for table in report.tables if table.name.startswith("layers"))
    heads = [field.title for field, _ in table.columns()]
    assert heads[-2:] == ["eager, ms", "ort, ms"]
    cells = list(zip(*(cells for _, cells in table.columns()), strict=True))
    assert [row[1:] for row in cells] == [
        ("conv + relu", "1.50", "1.200"),
        ("fc", "1.50", "0.600"),
        ("no exported node", "", "0.200"),
        ("all layers", "3.00", "2.000"),
    ]
    (finding,) = report.findings["layers"]
    assert finding["text"] == "conv + relu takes longest: 1.50 ms in eager, 50.0 % of the sum of its layers."


@pytest.mark.parametrize("warnings", [[], ["disturbed: a"]])
def test_more_seconds_are_advised_only_where_no_base_was_disturbed(tmp_path: Path, warnings: list[str]) -> None:
    report = compose(gathered(tmp_path, [row("eager", 2.0, warnings=warnings), row("ort", 1.0)]))
    said = " ".join(next(section.text for section in report.sections if section.name == "speedups"))
    assert ("Raise `budget.seconds`" in said) == (not warnings)
    assert ("Without a factor: 2 of 2" in said) == bool(warnings)


def test_roofs_bound_what_is_drawn_below_them(h200_report: Report, tmp_path: Path) -> None:
    folder = save(
        tmp_path / "run",
        [row("eager", 2.0, flops_per_item=2e9, moved_mib=100.0, tflops=1.0, fraction_of_peak=0.5, floor_ms=1.0)],
        roofs={"fp32_tflops": 2.0, "copy_gb_s": 50.0, "cache_mib": 1.0},
    )
    report = compose(gather(read_runs([folder])))
    assert "roofline" in {chart.name for chart in report.charts}
    (line,) = report.rows["lines"]
    assert line["intensity"] == pytest.approx(2e9 / (100 * 2**20))
    for point in report.rows["roofs"]:
        assert point["tflops"] == pytest.approx(min(2.0, 0.05 * point["intensity"]))
    (text,) = next(section.text for section in report.sections if section.name == "roofline")
    assert text.startswith("The lines are limits")
    facts = json.loads((folder / "environment.json").read_text())
    (folder / "environment.json").write_text(json.dumps({**facts, "roofs_disturbance": "the GPU slowed down"}))
    doubted = compose(gather(read_runs([folder])))
    (text,) = next(s.text for s in doubted.sections if s.name == "roofline")
    assert "limits" not in text
    (calm,) = report.findings["roofline"]
    assert "roof, with 50.0 % of it; " in calm["text"]
    assert doubted.findings["roofline"] == [], "an older run has shares of a peak that was too low"
    assert "no share of the peak is given: while they were measured, the GPU slowed down. A point" in text
    assert "roofline" not in {chart.name for chart in h200_report.charts}
    (said,) = next(section.text for section in h200_report.sections if section.name == "roofline")
    assert said.startswith("No chart: the device's peaks")


def test_a_run_in_which_nothing_worked_has_a_report_of_reasons(tmp_path: Path) -> None:
    page = page_of(save(tmp_path / "run", [failed("eager"), failed("ort")]), folder=tmp_path)
    reader = Reader(page)
    assert "No case succeeded" in page
    assert [r["Reason"] for r in reader.tables["not-measured"]] == ["no luck", "no luck"]
    assert not any(tag == "figure" for tag, _ in reader.elements)


def test_a_model_that_computes_and_moves_nothing_has_a_page(tmp_path: Path) -> None:
    nothing = {"flops_per_item": 0, "tflops": 0.0, "moved_mib": 0.0, "floor_ms": 0.0}
    page = page_of(
        save(tmp_path / "run", [row("eager", 0.002, **nothing), row("ort", 0.001, **nothing)]), folder=tmp_path
    )
    assert not {"inf", "nan"} & {text for rows in Reader(page).tables.values() for r in rows for text in r.values()}


def test_what_ranks_contradictory_rows_is_said_where_something_is_called_the_fastest(tmp_path: Path) -> None:
    rows = [row("eager", 2.0, batch_size=n) for n in (1, 4)] + [row("ort", 1.0, batch_size=n) for n in (1, 4)]
    calm = {s.name: s.text for s in compose(gathered(tmp_path / "calm", rows)).sections}
    rows[-1] |= {"throughput": 100.0, "warnings": ["inconsistent: x"]}
    texts = {s.name: s.text for s in compose(gathered(tmp_path / "odd", rows)).sections}
    assert {name for name, text in texts.items() if RANKED in text} == {"answer", "latency"}
    assert not any(RANKED in text for text in calm.values())


def test_headline_counts_models_and_batch_sizes(tmp_path: Path) -> None:
    rows = [
        *(row(v, ms, model=m) for m in "ab" for v, ms in (("eager", 2.0), ("ort", 1.0))),
        *(row(v, ms, model="c") for v, ms in (("eager", 1.0), ("ort", 2.0))),
        row("eager", 1.0, **{"pass": "training"}),
    ]
    lines = gathered(tmp_path, rows).configurations
    assert headline(lines) == "ort fp32 is the fastest for 2 of 3 models and batch sizes in inference"
    assert [str(one) for one in lead(lines)] == [
        "batch 1: 1.59× as fast as fp32 eager: geometric mean of 3 models, which range from 1.00× to 2.0×"
    ]


def test_headline_says_how_many_can_be_judged_and_a_base_that_wins_has_no_factor(tmp_path: Path) -> None:
    busy = {"warnings": ["disturbed: by others"]}
    rows = [row("eager", 1.0), row("ort", 2.0), row("eager", 1.0, model="b", **busy), row("ort", 2.0, model="b")]
    lines = gathered(tmp_path / "all", rows).configurations
    assert headline(lines) == "eager fp32 is the fastest for the 1 of 2 models and batch sizes that can be judged"
    assert list(map(str, lead(lines))) == ["batch 1: nothing faster than fp32 eager: net"]
    lines = gathered(
        tmp_path / "some", [*rows, row("eager", 2.0, model="c"), row("ort", 1.0, model="c")]
    ).configurations
    assert headline(lines).endswith("is the fastest for 1 of 2 models and batch sizes; 1 more cannot be judged")


def test_models_are_sorted_as_people_count() -> None:
    assert sorted(["vgg11", "resnet101", "resnet18", "alexnet"], key=natural) == [
        "alexnet",
        "resnet18",
        "resnet101",
        "vgg11",
    ]


# The command.


def test_command_writes_beside_the_run(profiler: Profiler, tmp_path: Path) -> None:
    folder = save(tmp_path / "run", [row("eager", 2.0), row("ort", 1.0)])
    done = profiler("report", "run", cwd=tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, "run/report.html\n", "")
    assert "ort fp32 is the fastest" in (folder / "report.html").read_text()


@pytest.mark.parametrize(
    ("order", "said"),
    [
        ({"format": "htm"}, "--format: unknown 'htm'; did you mean 'html'?"),
        ({"charts": "pdf"}, "valid: png, svg"),
        ({"only": ["model=nothere"]}, "--only model=nothere: no row of these runs matches"),
        ({"only": ["modell=x"]}, "unknown key 'modell'"),
        ({"output": Path("/proc/nowhere")}, "cannot be written"),
    ],
)
def test_bad_orders_say_what_is_wrong(order: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(said)):
        write(Options(runs=[GOLDEN / "cpu"], **order))


def test_a_report_that_fails_is_told_and_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("no fonts at all")

    monkeypatch.setattr("profiler.report.command.write", fail)
    run = RunFolder.create(tmp_path)
    assert "Report failed: no fonts at all (see logs/report.log)" in on_console(command._report, run, None, width=200)
    assert "RuntimeError: no fonts at all" in (run.logs / "report.log").read_text()


def test_bundle_is_made_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PROFILER_CACHE", str(tmp_path))
    monkeypatch.setattr("vl_convert.javascript_bundle", lambda code: f"'</script></SCRIPT>'; {code}")
    first = report_page.vega_bundle()
    assert "</script" not in first.lower()
    monkeypatch.setattr("vl_convert.javascript_bundle", lambda *_: pytest.fail("made again"))
    assert report_page.vega_bundle() == first
    assert "vegaEmbed" in first
    monkeypatch.setattr("vl_convert.javascript_bundle", lambda code: f"'</script></SCRIPT>'; {code}")
    monkeypatch.setenv("PROFILER_CACHE", "/dev/null/no-folder")
    assert report_page.vega_bundle() == first, "a report needs no cache"


def test_page_holds_the_bundle(h200: str) -> None:
    _, bundle, _ = Reader(h200).scripts
    assert "globalThis.vegaEmbed" in bundle
    assert len(bundle) > 500_000


def test_page_is_small(h200: str, tmp_path: Path) -> None:
    """A full run's page goes by mail."""
    for text in (h200, page_of(FULL, folder=tmp_path)):
        assert len(text.encode()) < 5e6


def test_what_every_row_carries_is_said_once_and_not_in_each_row(tmp_path: Path) -> None:
    rows = [
        row("eager", 10.0, warnings=["drift: a", "outliers: b"]),
        row("ort", 5.0, warnings=["drift: c"]),
        row("eager", 10.0, model="other", warnings=["drift: d"]),
        row("ort", 5.0, model="other", warnings=["drift: e", "outliers: f"]),
    ]
    folder = save(tmp_path / "run", rows, sampling_seconds=0.3)
    report = compose(gather(read_runs([folder])))
    made = {table.name: table for table in report.tables}
    for name, cells in (("answer", ["", "outliers"]), ("latency", ["", "outliers", "outliers", ""])):
        (shown,) = (texts for field, texts in made[name].columns() if field.heading == "Warnings")
        assert shown == cells, name
        assert "drift" in csv(made[name]), "which has everything"
    (section,) = (section for section in report.sections if section.name == "warnings")
    assert section.text == ["On every row, and not in the tables again: drift."]
    (answer,) = (section for section in report.sections if section.name == "answer")
    assert not any("drift" in text for text, _ in answer.sentences)
    assert [note for note in report.notes if note.startswith("Rough figures: cases were sampled for 0.3 s")]
    save(tmp_path / "failed", [failed("eager")], sampling_seconds=0.3)
    assert not any("Rough" in note for note in gather(read_runs([tmp_path / "failed"])).notes), "there is no figure"
