"""A column, a clock, a part of memory or a library's version reaches every place that its group promises."""

from __future__ import annotations

import csv
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

SCRIPT = """
import sys
from dataclasses import replace
from pathlib import Path
from engines import catalog
from profiler.results import columns
from profiler.results.columns import Column, Group, Shown

# As a line in columns.py would: before anything else reads the declarations.
for name, group, unit, part in (
    ("toy_mib", Group.MEMORY, "MiB", "peak_memory_mib"),
    ("toy_ms", Group.CLOCKS, "ms", ""),
    ("toy_s", Group.SET_UP, "s", "set_up_s"),
    ("toy_error", Group.ACCURACY, "error", ""),
):
    columns.COLUMNS[name] = Column(name=name, heading=f"Toy {unit}", unit=unit, group=group, meaning="a toy's",
                                   part_of=part, better="less", shown=Shown.TERMINAL)
    columns.RESULTS[name] = columns.MEASURE
columns.COLUMNS["toys"] = Column(name="toys", heading="Toys", group=Group.MEMORY, type=columns.COUNT, meaning="",
                                 shown=Shown.TERMINAL)
columns.RESULTS["toys"] = columns.COUNT
columns.COLUMNS["toy_version"] = Column(name="toy_version", heading="Toy library", group=Group.VERSIONS, meaning="",
                                        type=columns.TEXT)
columns.RESULTS["toy_version"] = columns.TEXT
toys = catalog.LibraryVersion("toy_version", ("toy-gpu", "toy"))
catalog.ENGINES["toy"] = replace(catalog.ENGINES["openvino"], name="toy", version=toys)

from rich.console import Console
from exporters.source import ModelSource
from profiler.compare.command import differences
from profiler.job.case import Case
from profiler.recommend.answer import recommend
from profiler.recommend.options import Request
from profiler.report import chart_specs, command
from profiler.results.cells import cells
from profiler.results.run_tables import write_tables
from profiler.results.reading import read_runs
from profiler.results.result import Result
from profiler.results.run_folder import RunFolder
from profiler.run.summary import print_results

run = RunFolder.create(Path(sys.argv[1]))
cases = [Case("net", "eager", "eager", "inference", "fp32", 1, "cpu", n, ModelSource("net")) for n in range(3)]
figures = {"peak_memory_mib": 20.0, "toy_mib": 7.0, "toy_s": 1.5, "toy_error": 1e-3}
samples = {"host": [1.0] * 5, "toy": [0.125] * 5}
for case, toys in zip(cases, (38, 42, 900)):
    run.append(Result(case.id, "ok", clock="host", samples=samples, figures={**figures, "toys": toys}))
environment = {"cpu": "a CPU", "toy_version": "9.8.7"}
run.write_parquet("suite", cases, environment)
run.write_environment(environment)
runs = read_runs([run.path])
results = runs.results.collect()
merged = cells(results)
write_tables(run.tables, results, merged)
print_results(Console(file=sys.stdout, width=200), results, merged)
print("parts:", *chart_specs.MEMORY)
figures = recommend(results, Request("net")).winner.figures
print("recommend:", {name: figure.value for name, figure in figures.items()})
command.write(command.Options(runs=(str(run.path),)))
sides = {v: [{"new": v, "packages": {"toy": v, "numpy": v}, "toy_version": v}] for v in ("1", "2")}
print("compare:", *(row["what"] for row in differences(sides)))
"""


@pytest.fixture(scope="module")
def printed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The run's folder, and what the script printed: a process of its own, in which the columns are declared first."""
    folder = tmp_path_factory.mktemp("run")
    done = subprocess.run([sys.executable, "-c", SCRIPT, folder], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return next(folder.iterdir()), done.stdout


def test_the_runs_tables_and_the_terminal_have_it_and_of_replicates_the_median(printed):
    folder, text = printed
    for table, column in (("memory", "toy_mib"), ("memory", "toys"), ("latency", "toy_ms"), ("latency", "toy_error")):
        with (folder / "tables" / f"{table}.csv").open() as file:
            assert [float(row[column]) > 0 for row in csv.DictReader(file)] == [True] * 3
    shown = text.partition("parts:")[0].split()
    assert {"7", "0.125", "1.50", "1.0e-3", "42"} <= {*shown}
    assert not {"38", "900", "326"} & {*shown}
    assert "Toys" in shown


def test_the_charts_recommend_and_the_report_have_it(printed):
    folder, text = printed
    parts, recommend = text.partition("parts:")[2].split("recommend:")
    assert "toy_mib" in parts.split()
    assert "'toy_ms': 0.125" in recommend
    assert "'set_up_s': 1.5" in recommend
    page = (folder / "report.html").read_text()
    for heading in ("Toy MiB, MiB", "Toy ms, ms", "Toy s, s", "Toys"):
        assert heading in page


def test_the_reports_environment_and_compare_have_an_engines_version_and_not_its_package_too(printed):
    folder, text = printed
    page = (folder / "report.html").read_text()
    assert '<td>Toy library</td><td class="p">9.8.7</td>' in page
    assert text.partition("compare:")[2].split() == ["toy_version", "new", "packages.numpy"]
