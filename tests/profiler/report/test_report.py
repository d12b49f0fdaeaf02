"""The report's answer, tables and page: of golden runs, of runs made by hand, and of hostile names."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
from report_rows import row

from profiler.errors import ConfigError
from profiler.options import Report as Options
from profiler.report import command as report_page
from profiler.report.command import Report, compose, headline, write
from profiler.report.data import gather
from profiler.results.reading import read_runs


class Reader(HTMLParser):
    """Reads a page's elements, scripts and tables, as a browser's parser would find them."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[str] = []
        self.tables: dict[str, list[list[str]]] = {}
        self._open: list[str] | None = None
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        told = dict(attrs)
        self.elements.append((tag, told))
        if tag == "div" and (told.get("id") or "").startswith("table-"):
            self.tables[str(told["id"]).removeprefix("table-")] = []
        elif tag == "tr":
            list(self.tables.values())[-1].append([])
        elif tag in ("td", "script"):
            self._open = []

    def handle_endtag(self, tag: str) -> None:
        if tag in ("td", "script"):
            words, self._open = "".join(self._open or ()), None
            (self.scripts if tag == "script" else list(self.tables.values())[-1][-1]).append(words)

    def handle_data(self, data: str) -> None:
        if self._open is not None:
            self._open.append(data)


def shown(report: Report, name: str) -> list[dict[str, str]]:
    (table,) = (table for table in report.tables if table.name == name)
    columns = {field.heading: texts for field, texts in table.columns()}
    return [dict(zip(columns, texts, strict=True)) for texts in zip(*columns.values(), strict=True)]


# The answer.


def test_the_answer_says_how_sure_it_is_and_leaves_nothing_out(gathered):
    """The choice, what ties with it, the runner-up, the base and all of their footnotes."""
    rows = [
        row("eager", 10.0, warnings=["drift: a"], peak_memory_mib=100.0, load_s=0.1),
        row(
            "ort", 2.0, spread=0.1, warnings=["disturbed: b"], peak_memory_mib=50.0, load_s=0.1, rel_l2_error_high=8e-4
        ),
        row("compiled", 2.02, spread=0.1, warnings=["unsteady: c"], peak_memory_mib=80.0, build_s=9.0),
        row("openvino", None),
    ]
    report = compose(gathered(*rows))
    (answer,) = shown(report, "answer")
    assert (answer["Deploy"], answer["Runner-up"]) == ("ort fp32", "compiled fp32")
    assert answer["Tied with, or why none"] == "compiled fp32"
    assert answer["Latency (95\u00a0%)"] == "2.00 (1.80–2.20)"
    assert answer["× eager fp32 (95\u00a0%)"] == "5.0 (4.5–5.6)"
    assert answer["× slower"] == "1.01 (0.88–1.16)"
    assert (answer["Error bound"], answer["Memory"]) == ("8.0e-4", "50")
    assert answer["Footnotes"] == "disturbed, drift, unsteady"
    assert report.title == "Deploy ort fp32 or compiled fp32: 5.0× eager fp32 (4.5–5.6)"
    assert [(one["Status"], one["Engine"]) for one in shown(report, "not-measured")] == [("failed", "openvino")]
    assert [one["Warning"] for one in shown(report, "warnings")] == ["drift", "disturbed", "unsteady"]


def test_where_nothing_may_be_chosen_the_answer_says_why(gathered):
    report = compose(gathered(row("ort", 1.0, precision="int8", calibrated=False, rel_l2_error=0.2)))
    (answer,) = shown(report, "answer")
    assert answer["Deploy"] == "nothing"
    assert answer["Tied with, or why none"].startswith("ort int8: ")
    assert report.title == "No configuration can be deployed"
    failed = compose(gathered(row("eager", None, reason="no luck"), row("ort", None), name="failed"))
    assert failed.title == "No case succeeded"
    assert (failed.charts, shown(failed, "not-measured")[0]["Reason"]) == ([], "no luck")
    assert "answer" not in {table.name for table in failed.tables}


@pytest.mark.parametrize(
    ("fastest", "said"),
    [
        ({"a": "ort"}, "Deploy ort fp32: 2.0× eager fp32"),
        ({"a": "eager"}, "Deploy eager fp32: the base itself"),
        ({"a": "ort", "b": "ort", "c": "eager"}, "Deploy ort fp32 for 2 of 3 models and batch sizes"),
        ({"a": "neither"}, "Deploy eager fp32 or ort fp32: the base itself"),
    ],
)
def test_headline_counts_the_choices_of_inference(gathered, fastest, said):
    rows = [
        row(variant, 1.0 if variant == best else 2.0, model=model)
        for model, best in fastest.items()
        for variant in ("eager", "ort")
    ]
    assert headline(gathered(*rows, row("compiled", 1.0, **{"pass": "training"})).choices) == said


OVER = {"rel_l2_error": 0.2, "model": "b"}


@pytest.mark.parametrize(
    ("others", "said", "deploys"),
    [
        # A model that has no answer counts like any other.
        ([row("eager", 2.0, **OVER)], "Deploy ort fp32 for 1 of 2 models and batch sizes", ["nothing", "ort fp32"]),
        ([row("eager", None, model="b")], "Deploy ort fp32 for 1 of 2 models and batch sizes", ["ort fp32"]),
        ([row("eager", None, model="b", status="waiting")], "Deploy ort fp32 for 1 of 2 models and batch sizes",
         ["none yet", "ort fp32"]),
        ([row("eager", None, model="b", status="unsupported")], "Deploy ort fp32: 2.0× eager fp32", ["ort fp32"]),
    ],
)  # fmt: skip
def test_headline_and_answer_count_models_without_a_winner(gathered, others, said, deploys):
    report = compose(gathered(row("eager", 2.0), row("ort", 1.0), *others))
    assert report.title == said
    assert [answer["Deploy"] for answer in shown(report, "answer")] == deploys


def test_what_recommend_leaves_undecided_is_undecided_in_the_headline(gathered):
    skipped = row("ort", None, precision="tf32", status="skipped", beaten_by="ort fp16")
    report = compose(gathered(row("ort", 1.0, precision="fp16", rel_l2_error=0.2), skipped))
    assert report.title.startswith("No recommendation yet: ")
    assert [answer["Deploy"] for answer in shown(report, "answer")] == ["none yet"]
    waiting = compose(gathered(row("ort", None, status="waiting"), name="waiting"))
    assert waiting.title.startswith("No recommendation yet: ")
    disturbed = {"warnings": ["disturbed: x"]}
    leaders = [row("ort", 1.0, **disturbed), row("trt", 1.0, precision="fp16", model="b", **disturbed)]
    for rows, is_told in ((leaders[:1], True), (leaders, False)):
        title = compose(gathered(*rows, name=f"disturbed{len(rows)}")).title
        assert (title == "No recommendation yet") != is_told, "each model has a doubt of its own"


# Runs and groups.


def test_runs_stand_apart_by_machine_or_by_name(save):
    before, after = (save(row("eager", ms, run_id=name), name=name) for name, ms in (("before", 2.0), ("after", 1.0)))
    data = gather(read_runs([before, after]))
    assert data.cells.select("run", "latency_ms").rows() == [("before", 2.0), ("after", 1.0)]
    server = save(row("eager", 1.0, run_id="server", machine="server"), name="server")
    report = compose(gather(read_runs([before, server])))
    assert {one["Run"] for one in shown(report, "latency")} == {"laptop", "server"}
    selects = [told.get("data-key") for tag, told in Reader(report_page.page(report)).elements if tag == "select"]
    assert selects == ["run"]


def test_only_chooses_cells_and_keeps_their_factors(save):
    folder = save(row("eager", 10.0), row("ort", 5.0), row("ort", 4.0, precision="fp16"))
    text = write(Options(runs=[str(folder)], only=["engine=ort,precision=fp32"])).read_text()
    assert "<h1>Deploy ort fp32: 2.0× eager fp32</h1>" in text
    assert len(Reader(text).tables["latency"]) == 2, "its heading and one row"
    for only, said in (
        (["engine=ort,engine=ortt"], "--only engine=ortt: no row of these runs matches; did you mean"),
        (["modell=x"], "unknown key 'modell'"),
        (["engine=eager,precision=fp16"], "no case of"),
    ):
        with pytest.raises(ConfigError, match=re.escape(said)):
            write(Options(runs=[str(folder)], only=only))


# The page loads nothing, and believes no name.


def test_page_loads_nothing_and_lets_its_own_scripts_run_alone(h200, hostile):
    for text in (h200, hostile):
        page = Reader(text)
        for tag, told in page.elements:
            assert tag not in ("img", "iframe", "object", "embed", "base", "source", "video", "audio")
            assert not {"src", "srcset", "action", "data", "poster", "xlink:href"} & set(told), (tag, told)
            assert (told.get("href") or "#").startswith(("#", "data:,")), (tag, told)
            assert not any(name.startswith("on") for name in told), (tag, told)
        (style,) = re.findall(r"<style>(.*?)</style>", text, re.DOTALL)
        assert "@import" not in style and "url(" not in style
        policy = next(told["content"] or "" for tag, told in page.elements if told.get("http-equiv"))
        assert "default-src 'none'" in policy
        assert "unsafe-eval" not in policy and "script-src 'unsafe-inline'" not in policy
        _, bundle, script = page.scripts
        hashes = [base64.b64encode(hashlib.sha256(code.encode()).digest()).decode() for code in (bundle, script)]
        assert re.findall(r"'sha256-([^']+)'", policy) == hashes
        assert len(text.encode()) < 5e6, "it goes by mail"


def test_hostile_names_are_text(hostile):
    page = Reader(hostile)
    names = {cells[0] for cells in page.tables["answer"] if cells}
    assert "<script>window.hacked=1</script>" in names
    assert len(names) == 3
    reasons = {cell for cells in page.tables["not-measured"] for cell in cells}
    assert "it said <script>window.hacked=1</script>" in reasons
    assert all("hacked" not in script for script in page.scripts[1:])
    assert "<script>window.hacked=1</script>" in json.loads(page.scripts[0])["options"]["model"]
    assert "<" not in page.scripts[0]


def test_bundle_is_made_once(tmp_path, monkeypatch):
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


# The command.


def test_command_writes_beside_the_run_or_where_it_is_told(profiler, save, tmp_path):
    folder = save(row("eager", 2.0), row("ort", 1.0))
    done = profiler("report", "run", cwd=tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, "run/report.html\n", "")
    assert "Deploy ort fp32" in (folder / "report.html").read_text()
    assert write(Options(runs=[str(folder)], output=tmp_path / "new")) == tmp_path / "new" / "report.html"
    with pytest.raises(ConfigError, match="cannot be written"):
        write(Options(runs=[str(folder)], output=Path("/proc/nowhere")))
