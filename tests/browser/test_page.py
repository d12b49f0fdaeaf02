"""The report as a browser shows it: at two widths, in both colour schemes, without scripts, filtered, and on paper."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from profiler.report.command import Options, write
from profiler.report.palette import DARK, LIGHT

if TYPE_CHECKING:
    from tests.browser.conftest import Page

ROOT = Path(__file__).resolve().parents[2]
RUNS = {name: ROOT / "tests" / "golden" / name for name in ("h200", "cpu")} | {
    "full": ROOT / "docs" / "results" / "h200"
}
FIGURES = "[...document.querySelectorAll('figure')]"
MODEL = "select[data-key=model]"


CUT = f"""{FIGURES}.flatMap(figure => {{
  const box = figure.querySelector('svg').getBoundingClientRect();
  return [...figure.querySelectorAll('svg text')].filter(text => {{
    const its = text.getBoundingClientRect();
    return its.width
      && (its.left < box.left - 1 || its.right > box.right + 1 || its.bottom > box.bottom + 1);
  }}).map(text => figure.id + ': ' + text.textContent);
}})"""
"""Every text lies inside its drawing: legends and the titles of axes need room that is counted beforehand."""
UPON = f"""{FIGURES}.filter(figure => {{
  const boxes = [...figure.querySelectorAll('.role-legend-label, .role-legend-title, .role-axis-title')]
    .flatMap(group => [...group.querySelectorAll('text')]).map(text => text.getBoundingClientRect());
  return boxes.some((a, i) => boxes.slice(i + 1).some(b => a.left < b.right - 1 && b.left < a.right - 1
    && a.top < b.bottom - 1 && b.top < a.bottom - 1));
}}).map(figure => figure.id)"""
"""Legends lie upon nothing else."""


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory, hostile_run: Path) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("pages")
    runs = {**RUNS, "hostile": hostile_run}
    return {name: write(Options(runs=[run], output=folder / f"{name}.html")) for name, run in runs.items()}


def rgb(colour: str) -> str:
    return f"rgb({', '.join(str(int(colour[i : i + 2], 16)) for i in (1, 3, 5))})"


def test_hostile_names_are_text(tab: Page, pages: dict[str, Path]) -> None:
    tab.show(pages["hostile"], 390)
    options = tab.evaluate(f"[...document.querySelector('{MODEL}').options].map(option => option.text)")
    names = json.loads(tab.evaluate("document.getElementById('data').textContent"))["options"]["model"]
    assert [" ".join(name.split()) for name in names] == [" ".join(option.split()) for option in options[1:]]
    for name in options[1:]:
        tab.choose(model=name)
    x, y = tab.evaluate(
        """(() => {
          const point = document.querySelector('#chart-speedups .mark-symbol.role-mark path');
          point.scrollIntoView({block: 'center'});
          const box = point.getBoundingClientRect();
          return [box.x + box.width / 2, box.y + box.height / 2];
        })()"""
    )
    tab.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)
    tab.wait("document.querySelector('#vg-tooltip-element')?.textContent.includes('Engine')")
    assert tab.evaluate("window.hacked ?? null") is None
    assert tab.evaluate("document.querySelectorAll('img, b[onload], section script').length") == 0
    assert tab.errors == []


@pytest.mark.parametrize(("name", "width"), [("hostile", 390), ("full", 1280), ("cpu", 390), ("h200", 390)])
def test_page_is_whole(tab: Page, pages: dict[str, Path], name: str, width: int) -> None:
    tab.show(pages[name], width)
    assert tab.errors == []
    assert [address for address in tab.requests if not address.startswith("data:")] == [pages[name].as_uri()]
    assert tab.evaluate("document.documentElement.scrollWidth") == width, "the page scrolls sideways"
    if width == 1280 and name != "hostile":
        unfold = "document.querySelectorAll('details').forEach(one => one.open = true)"
        wide = "[...document.querySelectorAll('.table')].filter(t => t.scrollWidth > t.clientWidth).map(t => t.id)"
        tab.evaluate(unfold)
        assert tab.evaluate(wide) == [], "a table scrolls sideways"
    drawn = tab.evaluate(
        f"{FIGURES}.map(f => [f.id, f.querySelectorAll('svg .mark-symbol path, svg .mark-rect path').length])"
    )
    assert len(drawn) >= 4
    assert [figure for figure, marks in drawn if not marks] == []
    inside = f"{FIGURES}.every(f => f.querySelector('svg').getBoundingClientRect().right <= innerWidth)"
    assert tab.evaluate(inside), "a chart is wider than the page"
    if name in ("h200", "full"):
        assert tab.evaluate(CUT) == []
    assert tab.evaluate(UPON) == []
    label = "document.querySelector('figure .role-axis-label text')"
    for palette in (LIGHT, DARK):
        # What is drawn follows the reader's colour scheme, at once.
        tab.look(width, dark=palette is DARK)
        assert tab.evaluate("getComputedStyle(document.body).backgroundColor") == rgb(palette.paper)
        assert tab.evaluate(f"getComputedStyle({label}).fill") == rgb(palette.ink)
    assert tab.errors == []


def test_what_a_choice_has_nothing_of_says_so(tab: Page, pages: dict[str, Path]) -> None:
    tab.show(pages["h200"], 390)
    tab.choose(precision="tf32", **{"pass": "training"})
    assert tab.evaluate("document.querySelector('#table-training').closest('details').hidden") is False
    tab.choose(**{"pass": "inference"})
    assert tab.evaluate("document.querySelector('#table-training').hidden")
    assert tab.evaluate("document.querySelector('#table-training').closest('details').hidden")
    assert tab.evaluate("document.documentElement.scrollWidth") == 390
    ends = """(() => {
      const table = document.querySelector('#table-answer'), box = table.getBoundingClientRect();
      table.scrollLeft = table.scrollWidth;
      const [first, last] = [table.querySelector('td'), table.querySelector('td:last-child')];
      return [table.scrollLeft > 0, first.getBoundingClientRect().left - box.left < 3,
        last.getBoundingClientRect().right - box.right < 3];
    })()"""
    assert tab.evaluate(ends) == [True] * 3, "a table that scrolls keeps its first column, and shows its last"
    tab.show(pages["hostile"], 390, precision="fp32")
    assert tab.evaluate("document.querySelector('#table-not-measured').hidden"), "only tf32 failed"
    assert tab.evaluate("document.querySelector('#not-measured .nothing').checkVisibility()")
    assert tab.errors == []


def test_what_is_chosen_is_what_is_shown(tab: Page, pages: dict[str, Path]) -> None:
    tab.show(pages["h200"], 1280)
    assert tab.evaluate(f"document.querySelector('{MODEL}').selectedOptions[0].text") == "All"
    scope = "document.querySelector('#chart-{} .scope').textContent"
    first = "alexnet, inference, batch 1, 16: the first of 3 models and 2 passes; choose another above"
    assert tab.evaluate(scope.format("speedups")) == first
    assert tab.evaluate(scope.format("memory")).startswith("alexnet, inference, batch 16: ")
    # The points' group is the last of the marks.
    points = "[...document.querySelectorAll('#chart-speedups .mark-symbol.role-mark')].at(-1).children.length"
    assert tab.evaluate(points) == 30
    tab.choose(model="resnet50", batch_size="16", **{"pass": "training"})
    scopes = tab.evaluate(f"{FIGURES}.map(f => f.querySelector('.scope').textContent)")
    assert set(scopes) == {"resnet50, training, batch 16"}
    rows = "[...document.querySelectorAll('#table-{} tbody tr:not([hidden])')].map(row => row.textContent)"
    shown = tab.evaluate(rows.format("speedups"))
    assert len(shown) == tab.evaluate(points) == 7
    assert all("resnet50" in row and "training" in row for row in shown)
    assert len(tab.evaluate(rows.format("answer"))) == 1
    tab.choose(model="All", batch_size="All", precision="fp16", **{"pass": "All"})
    assert len(tab.evaluate(rows.format("answer"))) == 12, "the answer is of all precisions"
    assert all("fp16" in row for row in tab.evaluate(rows.format("speedups")))
    tab.choose(precision="All")
    assert tab.evaluate("document.querySelectorAll('#table-speedups tbody tr[hidden]').length") == 0
    assert tab.errors == []


def test_paper_is_light_and_shows_charts(tab: Page, pages: dict[str, Path], tmp_path: Path) -> None:
    tab.show(pages["h200"], 1280)
    tab.look(1280, dark=True, media="print")
    assert tab.evaluate("getComputedStyle(document.body).backgroundColor") == rgb(LIGHT.paper)
    assert tab.evaluate("getComputedStyle(document.querySelector('figure .role-axis-label text')).fill") == rgb(
        LIGHT.ink
    )
    assert not tab.evaluate("document.querySelector('.filters').checkVisibility()")
    tab.pdf(tmp_path / "report.pdf")
    assert (tmp_path / "report.pdf").read_bytes().startswith(b"%PDF")


def test_tables_need_no_scripts(tab: Page, pages: dict[str, Path]) -> None:
    tab.look(1280)
    tab.open(pages["cpu"], scripts=False)
    tab.wait("document.querySelector('#table-answer')?.checkVisibility()")
    assert tab.evaluate("document.querySelectorAll('#table-answer tbody tr').length") == 12
    assert not tab.evaluate("document.querySelector('.filters').checkVisibility()")
    assert tab.evaluate("document.querySelector('.only-without').checkVisibility()")
