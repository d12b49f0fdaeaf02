"""Bring files outside docs/ into the documentation site; mkdocs.yml names this file as its hook.

README.md becomes the front page. A linked Markdown file becomes a page; any other linked file or folder becomes a page
that shows it. So the same relative links work on GitHub and in the site.
"""

from __future__ import annotations

import re
from pathlib import Path
from posixpath import dirname, join, normpath, relpath

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[1]
LINK = re.compile(r'(?:(?<=\]\()|(?<=src="))(?!\w+:)[^)"#\s]+')
ADDED: dict[str, str] = {}
"""Added pages: their path in the repository, by their place in the site."""


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the front page and everything else that a page links to."""
    ADDED.clear()
    for file in files.documentation_pages():
        add_linked(f"docs/{file.src_uri}")
    add("README.md")
    for place, path in ADDED.items():
        files.append(File.generated(config, place, content=content(path)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Point links at the site's places, and render the Markdown in `<details>`."""
    place = page.file.src_uri
    path = ADDED.get(place, f"docs/{place}")

    def moved(match: re.Match[str]) -> str:
        target = normpath(join(dirname(path), match[0]))
        return relpath(place_of(target), dirname(place) or ".") if (ROOT / target).exists() else match[0]

    return LINK.sub(moved, markdown).replace("<details>", "<details markdown>")


def add(path: str) -> None:
    """Add a page for this file or folder, unless it has one."""
    place = place_of(path)
    if place not in ADDED and not is_in_docs(path):
        ADDED[place] = path
        if path.endswith(".md"):
            add_linked(path)


def add_linked(path: str) -> None:
    """Add what this page links to."""
    for link in LINK.findall((ROOT / path).read_text()):
        target = normpath(join(dirname(path), link))
        if (ROOT / target).exists():
            add(target)


def is_in_docs(path: str) -> bool:
    """Return whether MkDocs reads this file by itself."""
    return path.startswith("docs/") and (ROOT / path).is_file()


def place_of(path: str) -> str:
    """Return where the site keeps a file or folder of the repository."""
    if path == "README.md":
        return "index.md"
    if is_in_docs(path):
        return path.removeprefix("docs/")
    return path if path.endswith(".md") else f"source/{path}.md"


def content(path: str) -> str:
    """Return the Markdown of an added page."""
    file = ROOT / path
    if file.is_dir():
        names = sorted(child.name for child in file.iterdir())
        return f"# `{path}`\n\n" + "".join(f"- [{name}]({file.name}/{name})\n" for name in names)
    text = file.read_text()
    return text if path.endswith(".md") else f"# `{path}`\n\n~~~~ {file.suffix[1:]}\n{text}~~~~\n"
