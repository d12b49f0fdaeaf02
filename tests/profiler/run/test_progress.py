from __future__ import annotations

import io

from rich.console import Console

from exporters.source import ModelSource
from profiler.job.case import Case
from profiler.results.result import Result
from profiler.run.progress import PlainDisplay

CASE = Case("alexnet", "ort", "ort", "inference", "fp32", 1, "cpu", 0, ModelSource("alexnet"))


def test_the_line_of_a_case_has_the_median_that_its_row_has() -> None:
    result = Result(CASE.id, "ok", clock="host", samples={"host": [4.0, 1.0, 2.0, 3.0]})
    output = io.StringIO()
    PlainDisplay(Console(file=output, width=120)).ended(CASE, result)
    assert output.getvalue().split("  ")[-1] == "2.500 ms, 4 samples\n"
