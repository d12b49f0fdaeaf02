"""The page of a published benchmark as a browser shows it, wide and on a phone."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from profiler.options import Report as Options
from profiler.report.command import write

if TYPE_CHECKING:
    from tests.browser.conftest import Page

SUITES = Path(__file__).resolve().parents[2] / "docs" / "results" / "suites" / "h200"
FIGURES = "[...document.querySelectorAll('figure')]"
CUT = f"""{FIGURES}.flatMap(figure => {{
  const box = figure.querySelector('svg').getBoundingClientRect();
  return [...figure.querySelectorAll('svg text')].filter(text => {{
    const its = text.getBoundingClientRect();
    return its.width && (its.left < box.left - 1 || its.right > box.right + 1 || its.bottom > box.bottom + 1);
  }}).map(text => figure.id + ': ' + text.textContent);
}})"""
UPON = f"""{FIGURES}.flatMap(figure => {{
  const boxes = [...figure.querySelectorAll('.mark-text text, .role-legend-label text')]
    .filter(text => getComputedStyle(text).opacity > 0)
    .map(text => [text.textContent, text.getBoundingClientRect()]).filter(([text, box]) => text && box.width);
  return boxes.flatMap(([text, a], i) => boxes.slice(i + 1).filter(([_, b]) => a.left < b.right - 1
    && b.left < a.right - 1 && a.top < b.bottom - 3 && b.top < a.bottom - 3).map(([other]) => text + ' / ' + other));
}})"""
"""Texts that lie upon each other."""


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("studies")
    suites = {"cnn-benchmarks": "cnn-benchmarks", "convnet-layers": "convnet-benchmarks"}
    suites |= {"minibatch-efficiency": "gpu-study"}
    return {
        suite: write(Options(runs=[str(SUITES / suite)], study=study, output=folder / f"{suite}.html"))
        for suite, study in suites.items()
    }


@pytest.mark.parametrize("width", [1280, 400])
@pytest.mark.parametrize(
    ("suite", "figures"), [("cnn-benchmarks", 3), ("convnet-layers", 1), ("minibatch-efficiency", 2)]
)
def test_pictures_are_whole_and_can_be_read(
    tab: Page, pages: dict[str, Path], suite: str, figures: int, width: int
) -> None:
    tab.show(pages[suite], width)
    assert tab.errors == []
    assert tab.evaluate("document.documentElement.scrollWidth") == width, "the page scrolls sideways"
    drawn = tab.evaluate(f"{FIGURES}.map(f => f.querySelectorAll('svg .mark-symbol path, svg .mark-rect path').length)")
    assert len(drawn) == figures
    assert min(drawn) >= 40
    assert tab.evaluate(CUT) == []
    assert tab.evaluate(UPON) == []


def test_panels_stand_next_to_each_other_where_there_is_room(tab: Page, pages: dict[str, Path]) -> None:
    places = """new Set([...document.querySelector('figure').querySelectorAll('.cell > g')]
      .map(cell => Math.round(cell.getBoundingClientRect().left / 40))).size"""
    found = {}
    for width in (1280, 400):
        tab.show(pages["minibatch-efficiency"], width)
        found[width] = tab.evaluate(places)
    assert found[400] == 1
    assert found[1280] >= 4
