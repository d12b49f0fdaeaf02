"""`profiler compare`, as a user runs it: what is printed and written, and with which exit code it ends."""

from __future__ import annotations

import io
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from rich.console import Console
from runs import on_console

from exporters.source import Identity
from profiler.compare.command import Comparison, Options, differences, execute, make_comparison
from profiler.errors import ConfigError
from profiler.results.columns import SAMPLES
from profiler.results.reading import read_runs
from profiler.results.run_folder import RunFolder

GOLDEN = Path(__file__).resolve().parents[2] / "golden"
H200, CPU = str(GOLDEN / "h200"), str(GOLDEN / "cpu")
WIDTH = 0.004


def make_run(folder: Path, slowed: float = 0.0, seed: int = 0, **environment: Any) -> Path:
    folder.mkdir(parents=True)
    rows = read_runs([CPU]).results.collect()
    factor = pl.Series((1 + slowed) * np.exp(np.random.default_rng(seed).normal(0, WIDTH / 2, rows.height)))
    told = {"machine": "a laptop", "torch_version": "2.13.0", **environment}
    latency = pl.col("latency_ms") * factor
    rows.with_columns(
        latency_ms=latency,
        latency_low_ms=latency / (1 + WIDTH),
        latency_high_ms=latency * (1 + WIDTH),
        latency_spread=pl.lit(1e-9),
        latency_spread_free=pl.lit(1000.0),
        run_id=pl.lit(folder.name),
        **{name: pl.lit(value) for name, value in told.items() if name in rows.columns},
    ).write_parquet(folder / "results.parquet")
    pl.DataFrame(schema=SAMPLES).write_parquet(folder / "samples.parquet")
    (folder / "environment.json").write_text(json.dumps({**told, "machine": {"label": told["machine"]}}))
    (folder / "bench.yaml").write_text("models: [alexnet]\n")
    return folder


def change(run: Path, **columns: Any) -> None:
    path = run / "results.parquet"
    pl.read_parquet(path).with_columns(**columns).write_parquet(path)


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    make_run(tmp_path / "main", seed=1)
    make_run(tmp_path / "again", seed=2)
    make_run(tmp_path / "slow", slowed=0.10, seed=3, torch_version="2.12.0", cpu_cores=2)
    return tmp_path


def of(folder: Path, *names: str, **options: Any) -> Options:
    return Options(runs=tuple(str(folder / name) for name in names or ("main", "slow")), **options)


def page(options: Options, width: int = 120) -> tuple[int, str]:
    out = io.StringIO()
    code = execute(options, Console(file=out, width=width))
    return code, " ".join(out.getvalue().split())


def test_equal_runs_end_with_0_and_a_slowed_one_with_1(runs, command):
    limit = ("--fail-on-regression", "5%")
    equal = command("compare", "main", "again", *limit, cwd=runs)
    assert (equal.returncode, equal.stderr) == (0, "")
    assert "Cells: none." in equal.stdout
    slowed = command("compare", "main", "slow", *limit, cwd=runs)
    assert (slowed.returncode, slowed.stderr) == (1, "")
    said = " ".join(slowed.stdout.split())
    assert "slow inference 19 1.10× slower" in said
    assert "Differences below 0.6 % cannot be resolved;" in said, "both intervals reach 0.4 %"
    assert "Cells: 25 slower." in said
    assert "torch_version 2.13.0 2.12.0" in said, "what differs"
    assert command("compare", "slow", "main", *limit, cwd=runs).returncode == 0


@pytest.mark.parametrize(
    ("names", "options", "said"),
    [
        (["main", "missing"], {}, "missing: no run's folder"),
        (["main", "slow"], {"only": ("model=resnet18,batch_size=7",)}, "no row of these runs matches"),
        (["main", "slow"], {"only": ("model=resnet50,model=resnet5",)}, "model=resnet5: .* did you mean 'resnet50'"),
        (["main", "slow"], {"format": "jsonn"}, "did you mean 'json'"),
    ],
)
def test_what_cannot_be_used_is_a_config_error(runs, names, options, said):
    with pytest.raises(ConfigError, match=said) as error:
        page(of(runs, *names, **options))
    assert len(str(error.value).splitlines()) == 1


def test_sides_without_a_common_cell_end_with_2_and_one_line_or_with_1(runs, command):
    change(runs / "slow", status=pl.lit("failed"))
    code, said = page(of(runs))
    assert (code, "No cell was measured on both sides." in said) == (1, True)
    change(runs / "slow", model=pl.lit("another"))
    done = command("compare", "main", "slow", cwd=runs)
    assert (done.returncode, done.stdout, len(done.stderr.splitlines())) == (2, "", 1)


def test_json_is_all_data_with_a_schema(runs, capsys):
    failed = pl.when(model="alexnet").then(pl.lit("oom")).otherwise("status")
    change(runs / "slow", status=failed)
    code, _ = page(of(runs, format="json", fail_on_regression="5%", top=2))
    found = json.loads(capsys.readouterr().out)
    assert code == 1
    assert set(found) == set(Comparison.model_json_schema(mode="serialization")["properties"])
    assert (found["base"], found["sides"]) == ("main", {"main": ["main"], "slow": ["slow"]})
    assert len(found["cells"]) == 25 and found["cells"][0]["base_footnotes"] == ["outliers"]
    assert found["totals"][0]["ratio"] == pytest.approx(1 / 1.1, rel=0.01)
    assert found["resolution"] == pytest.approx(np.expm1(np.sqrt(2) * np.log1p(WIDTH)))
    alexnet = sum(cell["model"] == "alexnet" for cell in found["cells"])
    assert [one["code"] for one in found["regressions"]] == ["slower"] * (25 - alexnet) + ["failed"] * alexnet
    assert {"what": "torch_version", "main": "2.13.0", "slow": "2.12.0"} in found["differences"]
    differing = [row["what"] for row in found["differences"]]
    assert "cpu_cores" not in differing, "main did not record it"
    assert "run_id" not in differing, "it says nothing of the machine"


def test_what_reaches_back_over_the_limit_ends_with_4(runs):
    for name in ("main", "slow"):
        change(runs / name, latency_low_ms=pl.col("latency_ms") / 1.08, latency_high_ms=pl.col("latency_ms") * 1.08)
    comparison = make_comparison(of(runs, fail_on_regression="5%"))
    assert comparison.exit_code == 4
    assert comparison.regressions is not None and set(comparison.regressions["code"]) == {"unclear"}


def test_a_mean_of_useless_figures_is_busy(runs):
    change(runs / "slow", latency_low_ms=pl.col("latency_ms") / 1e9)
    text = page(of(runs, only=("pass=inference",), top=19))[1]
    assert "slow inference 19 busy 1.00× 0 0 0 19" in text
    assert len(re.findall(r" [\d.,]+ busy busy unclear", text)) == 19, "the base's times are known"
    assert "Differences below" not in text and "Most differences cannot be resolved" in text


@pytest.mark.parametrize("width", [80, 120])
def test_the_page_is_as_wide_as_the_terminal_and_cuts_no_figure(runs, width):
    text = on_console(lambda console: execute(of(runs, "main", "slow", "again"), console), width=width)
    assert max(map(len, text.splitlines())) <= width
    assert "…" not in text
    assert ("Left out for the width: " in text) == (width == 80)


def test_of_many_cells_those_that_changed_most_are_printed(runs):
    change(runs / "slow", latency_ms=pl.col("latency_ms") * pl.when(variant="compiled").then(2).otherwise(1))
    comparison = make_comparison(of(runs, only=("pass=inference",)))
    ratios = (1 / comparison.cells["ratio"]).sort(descending=True)
    _, text = page(of(runs, only=("pass=inference",), top=2))
    assert "of 19 cells the 2 that changed most" in text
    assert f"{ratios[0]:.1f}× slower" in text and f"{ratios[-1]:.2f}× slower" in text


def test_sides_are_called_by_what_tells_them_apart(runs):
    make_run(runs / "other", seed=4, machine="a server")
    assert [*make_comparison(of(runs, "main", "other")).sides] == ["a laptop", "a server"]
    assert [*make_comparison(of(runs)).sides] == ["main", "slow"]
    found = make_comparison(of(runs, "main", "again", "slow", by="torch_version"))
    assert found.sides == {"2.13.0": ["main", "again"], "2.12.0": ["slow"]}
    assert set(found.cells["base_processes"]) == {2}
    assert set(found.cells["verdict"]) == {"slower"}


def test_cells_of_one_side_are_counted(runs):
    failed = (pl.col("model") == "alexnet") & (pl.col("pass") == "training")
    change(runs / "slow", status=pl.when(failed).then(pl.lit("oom")).otherwise("status"))
    rows = pl.read_parquet(runs / "slow" / "results.parquet")
    rows.filter(pl.col("model") != "resnet18").write_parquet(runs / "slow" / "results.parquet")
    code, said = page(of(runs, fail_on_regression="50%"), 200)
    assert code == 1, "a cell that ran no longer does"
    lost = 2 + rows.filter(model="resnet18").height
    assert f"Cells that ran on one side only: {lost};" in said
    code, said = page(of(runs, fail_on_regression="0.5", only=("pass=inference",)))
    assert (code, " lost." in said) == (4, True)


CODE = {"code": {"net.py": "2"}, "factory": "b:net"}


@pytest.mark.parametrize(("other", "certain"), [(CODE, [False]), ({"state": "4"}, [True]), ({}, [])])
def test_a_model_of_which_only_the_source_differs_may_be_the_same(runs, other, certain):
    parts = {"kind": "factory", "factory": "a:net", "code": {"net.py": "1"}, "state": "3"}
    for name, own in (("main", parts), ("again", {**parts, **other})):
        RunFolder(runs / name).write_models({"alexnet": Identity(own), "gone": Identity({**own, "state": name})})
    found = make_comparison(of(runs, "main", "again", fail_on_regression="5%"))
    assert ([model.certain for model in found.other_models], found.exit_code) == (certain, 0)
    assert ("he same model in again as in main: alexnet (" in page(of(runs, "main", "again"))[1]) == bool(certain)


# What differs between environments


ONE = {
    "gpu": "NVIDIA H200", "driver": "580.1", "cpu_cores": 64, "memory_mib": 515850.8, "sm_clock_mhz": 1980.0,
    "packages": {"torch": "2.11.0", "numpy": "2.5.2"}, "variables": {},
    "command": ["python", "-m", "profiler"], "wall_seconds": {"measure": 100.0},
}  # fmt: skip


@pytest.mark.parametrize(
    ("change", "rows"),
    [
        ({}, {}),
        ({"driver": "590.2"}, {"driver": ("580.1", "590.2")}),
        ({"cpu_cores": 2}, {"cpu_cores": ("64", "2")}),
        ({"sm_clock_mhz": 1400.0}, {"sm_clock_mhz": ("1,980", "1,400")}),
        ({"sm_clock_mhz": 1975.0, "memory_mib": 515000.0}, {}),
        ({"packages": {"torch": "2.12.0", "numpy": "2.6.0"}}, {"packages.numpy": ("2.5.2", "2.6.0")}),
        ({"command": ["other"], "wall_seconds": {"measure": 7.0}}, {}),
    ],
)
def test_what_differs_is_a_row(change, rows):
    found = differences({"A": [ONE], "B": [{**ONE, **change}]})
    assert {row["what"]: (row["A"], row["B"]) for row in found} == rows


def test_several_runs_of_a_side_have_all_of_their_values():
    several = differences({"A": [ONE, {**ONE, "driver": "570"}], "B": [ONE]})
    assert several == [{"what": "driver", "A": "580.1, 570", "B": "580.1"}]
