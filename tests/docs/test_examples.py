"""The examples of docs/api.md run in order, as one session, and print what the page says.

After a change that is meant: UPDATE_EXAMPLES=1 python -m pytest tests/docs, then read the difference.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "api.md"
BLOCK = re.compile(r"```python\n(?P<code>.*?)```\n(?:\n```text\n(?P<shown>.*?)```\n)?", re.DOTALL)
RUNS = {"h200": "20261121T081213Z-vm-ec8e", "cpu": "20261121T071636Z-vm-a59a"}


@pytest.fixture
def workplace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with the golden runs in results/, as the page says."""
    for name, run_id in RUNS.items():
        shutil.copytree(ROOT / "tests" / "golden" / name, tmp_path / "results" / run_id)
    monkeypatch.chdir(tmp_path)
    yield tmp_path


def printed(code: str, session: dict[str, object]) -> str:
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        exec(compile(code, str(PAGE), "exec"), session)
    return out.getvalue()


@pytest.mark.usefixtures("workplace")
def test_the_examples_run_and_print_what_the_page_shows() -> None:
    session: dict[str, object] = {"__name__": "__main__"}
    page = PAGE.read_text()
    made = [(block, printed(block["code"], session)) for block in BLOCK.finditer(page)]
    assert len(made) > 8
    if os.environ.get("UPDATE_EXAMPLES"):
        for block, said in reversed(made):
            if block["shown"] is not None:
                page = page[: block.start("shown")] + said + page[block.end("shown") :]
        PAGE.write_text(page)
        return
    for block, said in made:
        assert said == (block["shown"] or ""), block["code"]


def test_no_line_of_the_examples_is_too_long_to_read() -> None:
    blocks = [line for block in BLOCK.finditer(PAGE.read_text()) for line in block["code"].splitlines()]
    assert max(map(len, blocks)) <= 120


def test_every_block_of_python_is_found() -> None:
    assert len(BLOCK.findall(PAGE.read_text())) == PAGE.read_text().count("```python")
