"""The report as a browser shows it: at two widths, in both colour schemes, without scripts, filtered, and on paper."""

from __future__ import annotations

from pathlib import Path

import pytest

from profiler.report.command import Options, write

ROOT = Path(__file__).resolve().parents[2]
GOLDEN = ROOT / "tests" / "golden"
FIGURES = "[...document.querySelectorAll('figure')]"
CUT = f"""{FIGURES}.flatMap(figure => {{
  const box = figure.querySelector('svg').getBoundingClientRect();
  return [...figure.querySelectorAll('svg text')].filter(text => {{
    const its = text.getBoundingClientRect();
    return its.width && (its.left < box.left - 1 || its.right > box.right + 1 || its.bottom > box.bottom + 1);
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
LIGHT, DARK = ("#ffffff", "#1b1f24"), ("#14181d", "#e8ebee")
"""Paper and ink."""
WIDE = "[...document.querySelectorAll('.table')].filter(t => t.scrollWidth > t.clientWidth).map(t => t.id)"


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory, hostile_run: Path) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("pages")
    runs = {"h200": GOLDEN / "h200", "cpu": GOLDEN / "cpu", "hostile": hostile_run}
    return {name: write(Options(runs=[str(run)], output=folder / f"{name}.html")) for name, run in runs.items()}


def rgb(colour: str) -> str:
    return f"rgb({', '.join(str(int(colour[i : i + 2], 16)) for i in (1, 3, 5))})"


def test_hostile_names_are_text(tab, pages):
    tab.open(pages["hostile"], 390)
    options = tab.evaluate("[...document.querySelector('select[data-key=model]').options].map(option => option.text)")
    for name in options[1:]:
        tab.choose(model=name)
    assert tab.evaluate("window.hacked ?? null") is None
    assert tab.evaluate("document.querySelectorAll('img, b[onload], section script').length") == 0
    assert tab.errors == []


@pytest.mark.parametrize(("name", "width"), [("hostile", 390), ("h200", 1280), ("h200", 390)])
def test_page_is_whole(tab, pages, name, width):
    tab.open(pages[name], width)
    assert [address for address in tab.requests if not address.startswith("data:")] == [pages[name].as_uri()]
    assert tab.evaluate("document.documentElement.scrollWidth") == width, "the page scrolls sideways"
    if width == 1280:
        tab.evaluate("document.querySelectorAll('details').forEach(one => one.open = true)")
        assert tab.evaluate(WIDE) == [], "a table scrolls sideways"
    marks = f"{FIGURES}.map(f => f.querySelectorAll('svg .mark-symbol path, svg .mark-rect path').length)"
    drawn = tab.evaluate(marks)
    assert len(drawn) >= 4 and all(drawn)
    inside = f"{FIGURES}.every(f => f.querySelector('svg').getBoundingClientRect().right <= innerWidth)"
    assert tab.evaluate(inside), "a chart is wider than the page"
    assert (tab.evaluate(CUT) if name == "h200" else [], tab.evaluate(UPON)) == ([], [])
    if width < 600:
        sizes = "[...document.querySelectorAll('#table-deploy tbody tr:first-child td')].map(td => td.offsetWidth)"
        assert sum(tab.evaluate(sizes)[:3]) <= width, "the base and a runtime are beside what to deploy"
    label = "getComputedStyle(document.querySelector('figure .role-axis-label text')).fill"
    background = "getComputedStyle(document.body).backgroundColor"
    # What is drawn follows the reader's colour scheme, at once; paper is always light.
    for (paper, ink), media in ((LIGHT, "screen"), (DARK, "screen"), (LIGHT, "print")):
        tab.look(width, dark=paper == DARK[0] or media == "print", media=media)
        assert [tab.evaluate(background), tab.evaluate(label)] == [rgb(paper), rgb(ink)]
        assert tab.evaluate("document.querySelector('.filters').checkVisibility()") == (media == "screen")
    assert tab.errors == []


def test_what_is_chosen_is_what_is_shown(tab, pages):
    tab.open(pages["h200"], 1280)
    scope = "document.querySelector('#chart-speedups .scope').textContent"
    first = "alexnet, inference, batch 1, 16: the first of 3 models and 2 passes; choose another above"
    assert tab.evaluate(scope) == first
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
    assert len(tab.evaluate(rows.format("answer"))) == len(tab.evaluate(rows.format("deploy"))) == 1
    tab.choose(**{"pass": "inference"})
    assert tab.evaluate("document.querySelector('#table-training').closest('details').hidden")
    tab.choose(model="All", batch_size="All", precision="fp16", **{"pass": "All"})
    assert len(tab.evaluate(rows.format("answer"))) == 12, "the answer is of all precisions"
    assert all("fp16" in row for row in tab.evaluate(rows.format("speedups")))
    assert tab.errors == []


def test_tables_need_no_scripts(tab, pages):
    tab.open(pages["cpu"], 1280, scripts=False)
    tab.wait("document.querySelector('#table-answer')?.checkVisibility()")
    assert tab.evaluate("document.querySelectorAll('#table-answer tbody tr').length") == 12
    assert not tab.evaluate("document.querySelector('.filters').checkVisibility()")
    assert tab.evaluate("document.querySelector('.only-without').checkVisibility()")
