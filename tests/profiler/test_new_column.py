"""A column of each type, declared and filled by a new contributor, reaches every place that it is declared for."""

from __future__ import annotations

import csv
import json
import subprocess
import sys
from pathlib import Path

import polars as pl
import pytest

pytestmark = pytest.mark.slow

SCRIPT = """
import importlib.util, json, sys, types
from dataclasses import replace
from pathlib import Path
from engines import catalog

# As lines in columns.py would: before anything else reads the declarations.
ADDED = '''
    Group.CASE,
    _text("layout", "Layout", shown=Shown.TERMINAL),
    Group.MEMORY,
    _of_peak("toy_mib", "Toy MiB", shown=Shown.TERMINAL),
    _count("toys", "Toys", shown=Shown.TERMINAL),
    _column("toy_small", "Small", type=pl.UInt8(), shown=Shown.TERMINAL),
    _flag("toy_flag", "Flag", shown=Shown.TERMINAL),
    Group.CLOCKS,
    _ms("toy_ms", "Toy ms", aim="toy", limit="--max-toy", shown=Shown.TERMINAL),
    Group.SET_UP,
    _seconds("toy_s", "Toy s", part_of="start_s", limit="--max-toy-s", shown=Shown.TERMINAL),
    Group.ACCURACY,
    _error("toy_error", "Toy error", shown=Shown.TERMINAL),
    Group.MACHINE,
    _text("rack", "Rack", shown=Shown.TERMINAL),
    Group.VERSIONS,
    _text("toy_version", "Toy library"),
)
'''
name = "profiler.results.columns"
spec = importlib.util.find_spec(name)
source, end = Path(spec.origin).read_text(), ")\\n" + 3 * '"' + "The columns in the order"
assert source.count(end) == 1
module = sys.modules[name] = types.ModuleType(name)
exec(source.replace(end, ADDED + end[2:]), module.__dict__)
toys = catalog.LibraryVersion("toy_version", ("toy-gpu", "toy"))
catalog.ENGINES["toy"] = replace(catalog.ENGINES["openvino"], name="toy", version=toys)

from rich.console import Console
from exporters.source import ModelSource
from profiler.compare.command import differences
from profiler.job.case import Case
from profiler.recommend.answer import Request, recommend, stated
from profiler.report import chart_specs, command
from profiler.results.cells import cells
from profiler.results.choice import Limit
from profiler.results.reading import read_runs
from profiler.results.result import Result
from profiler.results.run_folder import RunFolder, write_tables
from profiler.run.summary import print_results

class Toy(Case):
    layout = "nhwc"

run = RunFolder.create(Path(sys.argv[1]))
cases = [Toy("net", "eager", "eager", "inference", "fp32", 1, "cpu", n, ModelSource("net")) for n in range(3)]
figures = {"peak_memory_mib": 20.0, "toy_mib": 7.0, "toy_s": 1.5, "toy_error": 1e-3, "toy_small": 3, "toy_flag": True}
figures |= {"rel_l2_error": 1e-6, "rel_l2_error_high": 1e-6}
samples = {"host": [1.0] * 5, "toy": [0.125] * 5}
for case, toys in zip(cases, (38, 42, 900)):
    run.append(Result(case.id, "ok", clock="host", samples=samples, figures={**figures, "toys": toys}))
environment = {"cpu": "a CPU", "toy_version": "9.8.7", "machine": {"rack": "r7"}}
run.write_parquet("suite", cases, environment)
run.write_environment(environment)
runs = read_runs([run.path])
results = runs.results.collect()
merged = cells(results)
write_tables(run.tables, results, merged)
print_results(Console(file=sys.stdout, width=250), results, merged)
command.write(command.Options(runs=(str(run.path),)))
request = Request("net", objective="toy", limits=(Limit("toy_s", 2.0), Limit("toy_ms", 0.13)))
sides = {v: [{"new": v, "packages": {"toy": v, "numpy": v}, "toy_version": v}] for v in ("1", "2")}
print("facts:", json.dumps({
    "parts": [str(part) for part in chart_specs.MEMORY],
    "figures": stated(recommend(results, request).best),
    "asked": request.words(),
    "compare": [row["what"] for row in differences(sides)],
}))
"""


@pytest.fixture(scope="module")
def printed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str, dict[str, object]]:
    """Give the run's folder, what the terminal showed, and facts of answers, from a process of its own."""
    folder = tmp_path_factory.mktemp("run")
    done = subprocess.run([sys.executable, "-c", SCRIPT, folder], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    shown, _, facts = done.stdout.partition("facts:")
    return next(folder.iterdir()), shown, json.loads(facts)


def test_files_and_the_terminal_have_it_and_of_replicates_the_median(printed):
    folder, shown, _ = printed
    for table, column in (("memory", "toy_mib"), ("memory", "toys"), ("latency", "toy_ms"), ("latency", "toy_error")):
        with (folder / "tables" / f"{table}.csv").open() as file:
            assert [float(row[column]) > 0 for row in csv.DictReader(file)] == [True] * 3
    row = pl.read_parquet(folder / "results.parquet").row(0, named=True)
    assert (row["layout"], row["rack"], row["toy_version"], row["toy_flag"]) == ("nhwc", "r7", "9.8.7", True)
    words = shown.split()
    assert {"7", "0.125", "1.50", "1.0e-3", "42", "3", "yes", "nhwc", "r7"} <= {*words}
    assert not {"38", "900", "326"} & {*words}
    assert {"Toys", "Layout", "Rack", "Small", "Flag"} <= {*words}


def test_charts_recommend_and_report_have_it(printed):
    folder, _, facts = printed
    assert "toy_mib" in facts["parts"]
    assert (facts["figures"]["toy_ms"], facts["figures"]["set_up_s"]) == (0.125, 1.5)
    assert facts["asked"][-2:] == ["--max-toy", "0.13"]
    page = (folder / "report.html").read_text()
    for heading in ("Toy MiB, MiB", "Toy ms, ms", "Toy s, s", "Toys", "Toy error", "Layout", "Rack"):
        assert heading in page
    assert '<td>Toy library</td><td class="p">9.8.7</td>' in page
    assert sorted(facts["compare"]) == ["new", "packages.numpy", "toy_version"], "a version, and not its package too"
