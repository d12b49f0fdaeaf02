"""Every link, anchor and path that a page names exists."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), ROOT / "references" / "README.md"])
LINK = re.compile(r"\]\((?!https?:)([^)#\s]*)(?:#([^)]+))?\)")
NAMED = re.compile(r"`((?:benchmarks|engines|examples|exporters|profiler|tests|suites|references)/[\w/.-]+)`")


def anchors(page: Path) -> set[str]:
    headings = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_and_paths_lead_somewhere(page):
    text = page.read_text()
    for name, anchor in LINK.findall(re.sub(r"```.*?```", "", text, flags=re.DOTALL)):
        target = page.parent / name if name else page
        assert target.exists(), name
        assert not anchor or anchor in anchors(target), f"{name}#{anchor}"
    missing = [name for name in NAMED.findall(text) if not (ROOT / name).exists()]
    assert set(missing) <= {"engines/onnx_reference.py"}, "the file that docs/extending.md adds"
