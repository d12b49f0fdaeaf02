"""What a table of results may hold is what its journal may."""

from __future__ import annotations

import polars as pl
import pytest

from profiler.results.checked import _items, _short
from profiler.results.run_files import MOST_TEXT, plain


@pytest.mark.parametrize("letter", ["x", "長", "😀"])
def test_texts_are_as_long_in_tables_as_in_journals(letter: str) -> None:
    for text in (letter * MOST_TEXT, letter * (MOST_TEXT + 1)):
        table = pl.DataFrame({"reason": [text], "warnings": [[text]]})
        fits = table.select(_short("reason"), _items("warnings")).row(0)
        assert fits == (plain(text) is not None,) * 2 == (len(text) == MOST_TEXT,) * 2
