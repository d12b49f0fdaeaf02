"""The report of a published benchmark: what is on it, and what is said where it cannot be."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from profiler.errors import ConfigError
from profiler.options import Report as Options
from profiler.report.command import write
from profiler.report.page import page
from profiler.report.study import compose
from profiler.results.reading import read_runs

SUITES = Path(__file__).resolve().parents[3] / "docs" / "results" / "suites" / "h200"


def test_a_page_has_the_conclusions_the_pictures_each_table_and_the_machine(tmp_path: Path) -> None:
    target = write(Options(runs=[str(SUITES / "cnn-benchmarks")], study="cnn-benchmarks", output=tmp_path))
    assert target.name == "report-cnn-benchmarks.html"
    text = target.read_text().partition("<script")[0]
    headings = re.findall("<h2>(.*?)</h2>", text)
    assert headings[0] == "What follows"
    assert {"cnn-benchmarks: forward and backward pass", "The machines"} < set(headings)
    assert headings[-1] == "Machines and versions"
    assert re.findall('<figure id="(.*?)"', text) == [
        "chart-published-machines-cuda-training",
        "chart-published-engines-h200-training",
        "chart-published-errors",
    ]
    assert len(re.findall("<summary>Table: ", text)) == 10, "one of each network"
    assert 3 <= text.partition("</section>")[0].count("<p>") <= 6, "five conclusions at most, and how to read it"
    assert "▸ H200" in text
    assert "NVIDIA H200, 143,771 MiB" in text


def test_bold_of_a_sentence_is_bold_on_the_page() -> None:
    report = compose("cnn-benchmarks", read_runs([SUITES / "cnn-benchmarks"]), None)
    bold = [re.findall(r"\*\*(.*?)\*\*", text) for text in report.sections[0].text]
    text = page(report)
    assert bold[0]
    assert f"<b>{bold[0][0]}</b>" in text
    assert "**" not in text.partition("<script")[0]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"study": "cnn-benchmark"}, "did you mean 'cnn-benchmarks'"),
        ({"study": "gpu-study"}, "no row of these runs fits a table of gpu-study"),
        ({"study": "cnn-benchmarks", "only": ["model=lenet"]}, "lenet|no row"),
    ],
)
def test_what_cannot_be_a_page_is_refused(tmp_path: Path, options: dict[str, object], said: str) -> None:
    runs = [str(SUITES / ("convnet-layers" if options["study"] == "gpu-study" else "cnn-benchmarks"))]
    with pytest.raises(ConfigError, match=said):
        write(Options(runs=runs, output=tmp_path, **options))  # type: ignore[arg-type]
    assert list(tmp_path.iterdir()) == []
