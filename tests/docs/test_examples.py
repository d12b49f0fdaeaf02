"""Run the examples of docs/api.md in order, as one session, and compare what they print with the page.

After a change that is meant: UPDATE_EXAMPLES=1 python -m pytest tests/docs/test_examples.py
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import shutil
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "api.md"
BLOCK = re.compile(r"```python\n(?P<code>.*?)```\n(?:\n```text\n(?P<shown>.*?)```\n)?", re.DOTALL)
RUNS = {"h200": "20261121T081213Z-vm-ec8e", "cpu": "20261121T071636Z-vm-a59a"}


def printed(code: str, session: dict[str, object]) -> str:
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        exec(compile(code, str(PAGE), "exec"), session)
    return out.getvalue()


def test_the_examples_run_and_print_what_the_page_shows(tmp_path, monkeypatch):
    for name, run_id in RUNS.items():
        shutil.copytree(ROOT / "tests" / "golden" / name, tmp_path / "results" / run_id)
    monkeypatch.chdir(tmp_path)
    session: dict[str, object] = {"__name__": "__main__"}
    page = PAGE.read_text()
    blocks = [(block, printed(block["code"], session)) for block in BLOCK.finditer(page)]
    assert len(blocks) == page.count("```python") >= 8
    if os.environ.get("UPDATE_EXAMPLES"):
        for block, said in reversed(blocks):
            if block["shown"] is not None:
                page = page[: block.start("shown")] + said + page[block.end("shown") :]
        PAGE.write_text(page)
        return
    for block, said in blocks:
        assert said == (block["shown"] or ""), block["code"]
