"""A document is printed as it is, or written with a word about where."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console

from profiler.errors import ConfigError
from profiler.tables.writers import deliver


def delivered(document: str | bytes, output: Path | None, about: str = "") -> str:
    console = Console(file=io.StringIO(), width=40)
    deliver(document, output, console, about)
    return console.file.getvalue()  # type: ignore[attr-defined, no-any-return]


def test_without_a_file_a_text_is_printed_as_it_is_and_nothing_more(capsys: pytest.CaptureFixture[str]) -> None:
    assert delivered("[bold]a,b\n", None, ", 3 rows") == ""
    assert capsys.readouterr().out == "[bold]a,b\n"


@pytest.mark.parametrize("document", ["é\n", "é\n".encode()])
def test_a_file_is_written_in_utf_8_and_named_on_one_line(
    document: str | bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / f"[red]{'x' * 60}"
    assert delivered(document, path, ", 3 rows") == f"Written: {path}, 3 rows\n"
    assert path.read_bytes() == "é\n".encode()
    assert capsys.readouterr().out == ""


def test_a_file_that_cannot_be_written_is_named_with_the_reason(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"^--output \S+/no/such: No such file or directory; give another file$"):
        delivered("", tmp_path / "no" / "such")
    with pytest.raises(ConfigError, match="Is a directory"):
        delivered(b"", tmp_path)
