"""Every number has its digits by its unit, and a column of a table its points below each other."""

from __future__ import annotations

import math
from functools import partial

import polars as pl
import pytest

from profiler.tables import numbers
from profiler.tables.numbers import compact, duration, error, listed, relative, seconds, significant, times, within


@pytest.mark.parametrize(
    ("form", "given", "text"),
    [
        *((significant, (value, 4), text) for value, text in [
            (0.0, "0"), (1.23456, "1.235"), (9.99999, "10.00"), (0.05, "0.05000"), (12345.678, "12,346"),
            (1441218880.0, "1,441,218,880"), (1e-5, "1.000e-5"), (-3.25, "-3.250"), (99.996, "100.0"),
            (float("inf"), "inf"), (float("nan"), "nan"), (1.5e15, "1.500e15")]),
        *((compact, (value,), text) for value, text in [
            (0.25, "0.25"), (1980.0, "1,980"), (12.30, "12.3"), (1e-5, "1.000e-5")]),
        *((times, (value,), text) for value, text in [
            (1.049, "1.05×"), (1.996, "2.0×"), (5.83, "5.8×"), (25.34, "25.3×"), (143.2, "143×")]),
        *((duration, (value,), text) for value, text in [
            (40.4, "40 s"), (200, "3 min 20 s"), (7500, "2 h 5 min"), (-1, "0 s")]),
        *((seconds, (value,), text) for value, text in [(0.04, "0.040 s"), (3.14, "3.1 s"), (1234.5, "1,234 s")]),
        *((error, (value,), text) for value, text in [(4.04e-4, "4.0e-4"), (0.0, "0"), (1.25, "1.2e0")]),
        (numbers.percent, (0.178,), "18"),
        (numbers.counted, (1, "cell"), "1 cell"),
        (numbers.counted, (1200, "cell"), "1,200 cells"),
        (listed, ([1, 2, 3],), "1, 2 and 3"),
        (times, (4.83, 4.5, 5.6), "4.8× (4.5–5.6)"),
        (times, (4.83, 4.81, 4.84), "4.8×"),
        (times, (5.8, None, None), "5.8× ±?"),
        (relative, (1.0969, 1.0961, 1.0978), "1.10× faster"),
        (relative, (0.75, 0.725, 0.78), "1.33× slower (1.28–1.38)"),
        (relative, (0.999, 0.999, 0.999), "1.00×"),
        (partial(within, unit="ms"), (0.925, 0.9249, 0.9252), "0.925 ms"),
        (partial(within, unit="ms"), (5.21, 4.6, 6.1), "5.21 ms (4.60–6.10)"),
        (within, (12345.6, 12000.0, 13000.0), "12,346 (12,000–13,000)"),
        (within, (0.0,), "0.000"),
        # Wider than a factor of ten it is no figure.
        (partial(within, unit="ms"), (27.1, 0.3, 41.7), "busy"),
        (partial(times, sign="× eager fp32"), (906.0, 3.0, 170581.0), "busy"),
        (relative, (0.5, 0.01, 0.9), "busy"),
    ],
)  # fmt: skip
def test_a_number_in_a_sentence_has_its_digits_and_its_range_where_that_is_wider(form, given, text):
    assert form(*given) == text


FRAME = pl.DataFrame({"ms": [0.5, None], "sizes": [[1, 16], []]})


@pytest.mark.parametrize(
    ("form", "columns", "cells"),
    [
        (numbers.ms, [[0.1934, None, 12.7, 0]], ["0.193", "", "12.700", "0.000"]),
        (numbers.ms, [[1234.5, 345.6]], ["1,234", "346"]),
        (numbers.ms, [[None, None]], ["", ""]),
        (numbers.ms, [FRAME["ms"]], ["0.500", ""]),
        (numbers.aligned(max_places=2), [[0.0123, 5.0]], ["0.01", "5.00"]),
        (numbers.aligned(), [[math.inf, 1.5, math.nan]], ["inf", "1.50", "nan"]),
        (numbers.whole, [[12345.6, None]], ["12,346", ""]),
        (numbers.shares, [[0.178, None]], ["17.8", ""]),
        (numbers.errors, [[1.6e-3, 0.0, None]], ["1.6e-3", "0", ""]),
        (numbers.rates, [[36488.2, 122.34, 0.0834]], ["36,488", "122.3", "0.08340"]),
        (numbers.factors, [[12.2, None, 1.0], [12.1, None, None], [12.31, None, None]],
         ["12.2 (12.1–12.3)", "", "1.00 ±?"]),
        (numbers.mean_factors, [[0.0014, 0.04], [0.0012, 0.01], [0.0017, 0.13]],
         ["0.0014 (0.0012–0.0017)", "0.04 (0.01–0.13)"]),
        (numbers.relatives, [[0.75, None], [0.725, None], [0.78, None]], ["1.33× slower (1.28–1.38)", ""]),
        (numbers.ranges, [[0.925, 5.21, None], [0.925, 4.6, None], [0.925, 6.1, None]],
         ["0.925", "5.21 (4.60–6.10)", ""]),
        (numbers.words, [["two\nlines", None, True, False, [1, 16], 5]], ["two lines", "", "yes", "", "1, 16", "5"]),
        (numbers.words, [FRAME["sizes"]], ["1, 16", ""]),
        (numbers.anythings, [[1 / 3, 70772, True, None, ["a", "b"], "x\ty"]],
         ["0.333333", "70772", "True", "", "a; b", "x y"]),
    ],
)  # fmt: skip
def test_a_column(form, columns, cells):
    assert form(*columns) == cells
