"""`profiler compare`, as a user runs it: what is printed and written, and with which exit code it ends."""

from __future__ import annotations

import csv
import io
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from rich.console import Console
from runs import Profiler

from exporters.source import Identity
from profiler.compare.command import Options, differences, execute, make_comparison
from profiler.compare.view import data, sections
from profiler.errors import ConfigError
from profiler.results.columns import SAMPLES
from profiler.results.reading import read_runs
from profiler.results.run_folder import RunFolder

GOLDEN = Path(__file__).resolve().parents[2] / "golden"
H200, CPU = str(GOLDEN / "h200"), str(GOLDEN / "cpu")


def make_run(folder: Path, slowed: float = 0.0, seed: int = 0, **environment: Any) -> Path:
    """The golden CPU run as if it had been taken with three replicates, all of them slower by a share."""
    folder.mkdir(parents=True)
    real = read_runs([CPU]).results.collect()
    factor = (1 + slowed) * np.exp(np.random.default_rng(seed).normal(0, 0.003, 3 * real.height))
    case_id = pl.col("case_id")
    rows = pl.concat(
        [real.with_columns(case_id.str.replace(r"/r0", f"/r{n}"), replicate=pl.lit(n, pl.Int64)) for n in range(3)]
    )
    measures = [name for name in rows.columns if name.endswith("_ms") and rows[name].dtype == pl.Float64]
    told = {"machine": "a laptop", "torch_version": "2.13.0", **environment}
    rows = rows.with_columns(
        *(pl.col(name) * pl.Series(factor) for name in measures),
        run_id=pl.lit(folder.name),
        **{name: pl.lit(value) for name, value in told.items() if name in rows.columns},
    )
    rows.write_parquet(folder / "results.parquet")
    pl.DataFrame(schema=SAMPLES).write_parquet(folder / "samples.parquet")
    (folder / "environment.json").write_text(json.dumps({**told, "machine": {"label": told["machine"]}}))
    return folder


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    make_run(tmp_path / "main", seed=1)
    make_run(tmp_path / "again", seed=2)
    make_run(tmp_path / "slow", slowed=0.10, seed=3, torch_version="2.12.0", cpu_cores=2)
    return tmp_path


def page(request: Options, width: int = 120) -> tuple[int, str]:
    out = io.StringIO()
    code = execute(request, Console(file=out, width=width))
    return code, out.getvalue()


def test_two_equal_runs_end_with_0_and_a_slowed_one_with_1(runs: Path, profiler: Profiler) -> None:
    limit = ("--fail-on-regression", "5%")
    equal = profiler("compare", "main", "again", *limit, cwd=runs)
    assert (equal.returncode, equal.stderr) == (0, "")
    verdicts = re.findall(r"Verdicts: ([^.]*)\.", " ".join(equal.stdout.split()))
    assert verdicts and all(re.fullmatch(r"(\d+ equivalent)?(, )?(\d+ unclear)?", one) for one in verdicts)
    assert "No cell is certainly slower by more than 5 %." in equal.stdout
    slowed = profiler("compare", "main", "slow", *limit, cwd=runs)
    assert (slowed.returncode, slowed.stderr) == (1, "")
    said = " ".join(slowed.stdout.split())
    assert "In inference, across all models, slow is 1.10× slower than main." in said
    assert "25 cells slower by more than 5 %:" in said
    assert "slow: resnet50/ort/inference/fp32/b16: " in said
    assert "torch_version 2.13.0 2.12.0" in said, "what differs"
    faster = profiler("compare", "slow", "main", *limit, cwd=runs)
    assert faster.returncode == 0
    assert "main is 1.10× faster than slow" in faster.stdout


@pytest.mark.parametrize(
    ("names", "options", "said"),
    [
        (["main"], {}, "only one side"),
        (["main", "missing"], {}, "missing: there is no such folder"),
        (["main", "slow"], {"fail_on_regression": "5"}, "expected a percentage such as 5%"),
        (["main", "slow"], {"only": ("modle=resnet50",)}, "did you mean 'model'"),
        (["main", "slow"], {"only": ("model=resnet18,batch_size=7",)}, "no row of these runs matches"),
        (
            ["main", "slow"],
            {"only": ("model=resnet50,model=resnet5",)},
            "model=resnet5: no row .* did you mean 'resnet50'",
        ),
        (["main", "slow"], {"format": "jsonn"}, "did you mean 'json'"),
        (["main", "slow"], {"format": "md", "output": Path("no/such/file")}, "--output no/such/file"),
        (["main", "slow"], {"references": ("cnn",)}, "no published figures of 'cnn'"),
    ],
)
def test_what_cannot_be_used_is_a_config_error(runs: Path, names: list[str], options: Any, said: str) -> None:
    with pytest.raises(ConfigError, match=said) as error:
        page(Options(runs=tuple(f"{runs}/{name}" for name in names), **options))
    assert len(str(error.value).splitlines()) == 1


def test_a_config_error_ends_with_2_and_one_line(runs: Path, profiler: Profiler) -> None:
    done = profiler("compare", "main", "slow", "--fail-on-regression", "5", cwd=runs)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        "--fail-on-regression: expected a percentage such as 5%, or a share below 1 such as 0.05, got '5'\n"
    )


def test_json_holds_everything_and_standard_error_why_it_failed(runs: Path, profiler: Profiler) -> None:
    done = profiler("compare", "main", "slow", "--format", "json", "--fail-on-regression", "5%", cwd=runs)
    assert done.returncode == 1
    assert done.stderr.startswith("25 cells slower by more than 5 %:")
    found = json.loads(done.stdout)
    assert (found["base"], [side["name"] for side in found["sides"]]) == ("main", ["main", "slow"])
    assert len(found["cells"]) == 25
    assert {cell["verdict"] for cell in found["cells"]} == {"slower"}
    assert found["totals"][0]["ratio"] == pytest.approx(1 / 1.1, rel=0.01)
    assert found["totals"][0]["sentence"].startswith("In inference, across all models")
    assert len(found["regression"]["slower"]) == 25
    assert {"what": "cpu_cores", "main": "", "slow": "2"} not in found["differences"], "main did not record it"
    assert {"what": "torch_version", "main": "2.13.0", "slow": "2.12.0"} in found["differences"]


def test_csv_is_the_cells_with_all_digits(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    request = Options(runs=(str(runs / "main"), str(runs / "slow")), format="csv")
    execute(request, Console(file=io.StringIO()))
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    cells = make_comparison(request).cells
    assert [float(row["ratio"]) for row in rows] == cells["ratio"].to_list()
    assert [*rows[0]] == cells.columns


@pytest.mark.parametrize("format_", ["text", "md", "csv", "json"])
def test_every_format_can_be_written_to_a_file(runs: Path, format_: str) -> None:
    path = runs / "comparison"
    code, said = page(Options(runs=(f"{runs}/main", f"{runs}/slow"), format=format_, output=path))
    assert (code, said.strip()) == (0, f"Written: {path}")
    assert "resnet50" in path.read_text()


def test_markdown_has_a_table_of_cells(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page(Options(runs=(f"{runs}/main", f"{runs}/slow"), format="md", only=("model=alexnet",)))
    lines = capsys.readouterr().out.splitlines()
    head = next(line for line in lines if line.startswith("| Model"))
    assert head.startswith("| Model | Variant | Precision | Batch | Base, ms | Side, ms | Ratio (95 %) | Verdict |")
    rows = [line for line in lines if line.startswith("| alexnet")]
    assert len(rows) == len(read_runs([CPU]).results.filter(model="alexnet").collect())
    assert all(line.count(" | ") == head.count(" | ") for line in rows)


@pytest.mark.parametrize("width", [80, 120])
def test_the_page_is_as_wide_as_the_terminal_and_cuts_no_figure(runs: Path, width: int) -> None:
    _, text = page(Options(runs=(f"{runs}/main", f"{runs}/slow", H200)), width)
    assert max(map(len, text.splitlines())) <= width
    assert "…" not in text
    assert ("Left out for the width: " in text) == (width == 80)
    comparison = make_comparison(Options(runs=(f"{runs}/main", f"{runs}/slow")))
    cell = comparison.cells.to_dicts()[0]
    assert f"{cell['ratio']:.3f} ({cell['ratio_low']:.3f}–{cell['ratio_high']:.3f})" in text


@pytest.mark.parametrize(("width", "explained"), [(None, True), (200, True), (60, False)])
def test_a_column_that_is_left_out_for_the_width_is_not_explained(
    runs: Path, width: int | None, explained: bool
) -> None:
    comparison = make_comparison(Options(runs=(f"{runs}/main", f"{runs}/slow")))
    legend = " ".join(text for section in sections(comparison, 9, width) for text in section.paragraphs)
    assert "Ratio: the base's time over the side's" in legend
    assert ("; memory: the side's over the base's" in legend) == explained


def test_of_many_cells_those_that_changed_most_are_printed(runs: Path) -> None:
    _, text = page(Options(runs=(f"{runs}/main", f"{runs}/slow"), top=4))
    assert "of 19 cells the 4 that changed most" in text
    ratios = (
        make_comparison(Options(runs=(f"{runs}/main", f"{runs}/slow"), only=("pass=inference",))).cells["ratio"].sort()
    )
    assert all(f"{ratio:.3f} (" in text for ratio in (*ratios[:2], *ratios[-2:]))


def test_sides_are_called_by_their_machines_where_those_tell_them_apart(runs: Path) -> None:
    make_run(runs / "other", seed=4, machine="a server")
    names = [side.name for side in make_comparison(Options(runs=(f"{runs}/main", f"{runs}/other"))).sides]
    assert names == ["a laptop", "a server"]
    assert [s.name for s in make_comparison(Options(runs=(f"{runs}/main", f"{runs}/slow"))).sides] == ["main", "slow"]


def test_runs_may_be_grouped_by_a_version(runs: Path) -> None:
    given = (f"{runs}/main", f"{runs}/again", f"{runs}/slow")
    found = make_comparison(Options(runs=given, by="torch_version"))
    assert [(side.name, len(side.runs)) for side in found.sides] == [("2.13.0", 2), ("2.12.0", 1)]
    assert set(found.cells["base_processes"]) == {6}
    assert set(found.cells["verdict"]) == {"slower"}
    assert found.notes == ()


def test_a_side_of_several_machines_is_said(runs: Path) -> None:
    make_run(runs / "other", seed=4, machine="a server")
    given = (f"{runs}/main", f"{runs}/other", f"{runs}/slow")
    (note,) = make_comparison(Options(runs=given, by="torch_version")).notes
    assert "2.13.0 has several machines (a laptop, a server)" in note


def test_without_replicates_there_is_no_verdict_and_the_page_says_why() -> None:
    code, text = page(Options(runs=(H200, str(GOLDEN.parents[1] / "docs" / "results" / "h200"))))
    said = " ".join(text.split())
    assert code == 0
    assert "1 and 1 processes: a verdict needs 3 a side" in said
    assert "Intervals cover noise within one process only" in said
    assert "Verdict" not in said.replace("No verdict", "")


def test_cells_of_one_side_are_named_with_their_reason(runs: Path) -> None:
    path = runs / "slow" / "results.parquet"
    failed = (pl.col("model") == "alexnet") & (pl.col("pass") == "training")
    rows = pl.read_parquet(path).with_columns(
        status=pl.when(failed).then(pl.lit("oom")).otherwise("status"),
        reason=pl.when(failed).then(pl.lit("no memory [left]")).otherwise("reason"),
    )
    rows.filter(pl.col("model") != "resnet18").write_parquet(path)
    code, text = page(Options(runs=(f"{runs}/main", f"{runs}/slow"), fail_on_regression="50%"))
    said = " ".join(text.split())
    assert code == 1, "a cell that ran no longer does"
    assert "slow oom 2 no memory [left] alexnet; eager; training; fp32; batch 1, 16" in said
    assert "slow missing" in said
    assert "In inference, across the 2 models that both ran" in said
    request = Options(runs=(f"{runs}/main", f"{runs}/slow"), fail_on_regression="0.5", only=("pass=inference",))
    code, text = page(request)
    assert (code, "missing in slow" in text) == (4, True)


def test_published_figures_stand_beside_a_run_of_ours() -> None:
    found = make_comparison(
        Options(runs=(H200,), references=("cnn-benchmarks",), only=("variant=eager", "pass=training"))
    )
    assert [side.name for side in found.sides][:3] == ["NVIDIA H200", "GTX 1080 Ti", "Pascal Titan X"]
    compared = found.cells.drop_nulls("ratio")
    assert set(compared["model"]) == {"alexnet", "resnet18", "resnet50"}
    assert (compared["ratio"] < 1).all(), "an H200 is faster than all of 2017's"
    assert compared.filter(side="GTX 1080 Ti", model="alexnet")["variant"].item() == "eager | cudnn 5.1.10"
    upside_down = make_comparison(Options(runs=(H200,), references=("cnn-benchmarks",), base="GTX 1080 Ti"))
    assert (upside_down.cells.filter(side="NVIDIA H200").drop_nulls("ratio")["ratio"] > 1).all()


def test_sides_that_share_no_measured_cell_end_with_1(runs: Path) -> None:
    path = runs / "slow" / "results.parquet"
    pl.read_parquet(path).with_columns(status=pl.lit("failed"), reason=pl.lit("no luck")).write_parquet(path)
    code, text = page(Options(runs=(f"{runs}/main", f"{runs}/slow")))
    assert code == 1
    assert "No cell was measured on both sides." in text
    assert "no luck" in text


def test_sides_that_have_no_cell_in_common_cannot_be_used(runs: Path, profiler: Profiler) -> None:
    path = runs / "slow" / "results.parquet"
    pl.read_parquet(path).with_columns(model=pl.lit("another")).write_parquet(path)
    done = profiler("compare", "main", "slow", cwd=runs)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("no cell is on both sides: main and slow share no model, variant, pass")


def test_a_check_that_can_prove_nothing_does_not_pass() -> None:
    published = str(GOLDEN.parents[1] / "docs" / "results" / "h200")
    request = Options(runs=(H200, published), only=("model=resnet18", "variant=compiled"), fail_on_regression="5%")
    assert make_comparison(request, 0.05).regression is not None
    regression = make_comparison(Options(runs=(H200,), references=("cnn-benchmarks",)), 0.05).regression
    assert regression is not None
    assert regression.exit_code == 4, "published figures have no interval"


def test_of_rough_figures_it_says_so_once(tmp_path: Path) -> None:
    for name in ("quick", "other"):
        make_run(tmp_path / name, sampling_seconds=0.3)
    make_run(tmp_path / "long", sampling_seconds=3.0)
    _, text = page(Options(runs=(f"{tmp_path}/quick", f"{tmp_path}/other")))
    assert text.count("Rough figures: cases were sampled for 0.3 s") == 1
    _, text = page(Options(runs=(f"{tmp_path}/quick", f"{tmp_path}/long")))
    assert text.count("Rough figures") == 1
    assert re.search(r"sampling_seconds +(0\.3|3) +(0\.3|3)\b", text), "what differs"


def test_cautions_say_how_many_cells_rest_on_doubted_rows(runs: Path) -> None:
    path = runs / "slow" / "results.parquet"
    drifting = pl.when(model="alexnet", replicate=0).then(pl.lit(["drift: by 5 %"])).otherwise("warnings")
    pl.read_parquet(path).with_columns(warnings=drifting).write_parquet(path)
    _, text = page(Options(runs=(f"{runs}/main", f"{runs}/slow"), only=("model=alexnet",)))
    cells = len(read_runs([CPU]).results.filter(model="alexnet").collect())
    assert f"Caution: drift ({cells} cells): figures moved while they were taken" in " ".join(text.split())


def test_another_network_under_the_same_name_is_said(runs: Path) -> None:
    parts = {"kind": "factory", "code": {}, "state": "1", "outputs": "2", "torch": "2.12"}
    RunFolder(runs / "main").write_models({name: Identity(parts) for name in ("alexnet", "resnet18/height=64", "gone")})
    other = {
        "gone": {"state": "8"},
        "alexnet": {"state": "8", "code": {"\x1b[2J": "1"}},
        "resnet18/height=64": {"outputs": "8"},
    }
    RunFolder(runs / "slow").write_models({name: Identity({**parts, **more}) for name, more in other.items()})
    request = Options(runs=(f"{runs}/main", f"{runs}/slow"))
    _, text = page(request)
    # Outputs are rounded otherwise on another processor; no row is of `gone`.
    expected = "Not the same model in slow as in main: alexnet (its source code (\\x1b[2J), its parameters or buffers)."
    assert f"{expected} In inference, across all models, slow is" in " ".join(text.split()), "before any factor"
    assert text.count("ot the same model") == 1
    (row,) = data(make_comparison(request))["models"]
    assert row == {
        "model": "alexnet",
        "base": "main",
        "side": "slow",
        "certain": True,
        "differs": ["its source code (\\x1b[2J)", "its parameters or buffers"],
    }
    for damaged in ("{", '{"alexnet": {"since": "", "parts": 5, "repeatable": true}}'):
        (runs / "slow" / "models.json").write_text(damaged)
        (note,) = make_comparison(request).notes
        assert note == f"{runs}/slow/models.json: cannot be read; whether its models are the others' is not known"


@pytest.mark.parametrize(
    ("other", "cpu", "said"),
    [
        (
            {"code": {"net.py": "2"}, "factory": "b:net"},
            "Arm",
            "Maybe not {}: alexnet (its source code (net.py), where it",
        ),
        ({"structure": "4"}, "Arm", "Not {}: alexnet (its modules)."),
        ({"outputs": "4"}, "Arm", "Not {}: alexnet (what it computes)."),
        ({"outputs": "4"}, "x86", ""),
        ({"outputs": "4", "torch": "2.13"}, "Arm", ""),
    ],
)
def test_maybe_another_network_is_one_of_which_only_the_source_differs(
    tmp_path: Path, other: dict[str, Any], cpu: str, said: str
) -> None:
    parts = {
        "kind": "factory",
        "factory": "a:net",
        "code": {"net.py": "1"},
        "structure": "3",
        "outputs": "2",
        "torch": "2.12",
    }
    for name, processor, own in (("main", "Arm", parts), ("slow", cpu, {**parts, **other})):
        RunFolder(make_run(tmp_path / name, cpu=processor)).write_models({"alexnet": Identity(own)})
    _, text = page(Options(runs=(f"{tmp_path}/main", f"{tmp_path}/slow")))
    assert said.format("the same model in slow as in main") in " ".join(text.split())
    assert ("ot the same model" in text) == bool(said)


@pytest.mark.parametrize("base", ["main", "slow"])
def test_a_regression_of_another_network_says_so_in_its_line_and_with_data_too(
    runs: Path, base: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, state in (("main", "1"), ("slow", "2")):
        RunFolder(runs / name).write_models({"alexnet": Identity({"state": state})})
    (other,) = {"main", "slow"} - {base}
    request = Options(runs=(f"{runs}/main", f"{runs}/slow"), base=base, fail_on_regression="5%", format="json", top=99)
    code, _ = page(request)
    first, *lines = capsys.readouterr().err.splitlines()
    assert first == f"Not the same model in {other} as in {base}: alexnet (its parameters or buffers)."
    assert code == (base == "main"), "weights change no exit code"
    slower = [line for line in lines if line.startswith("slow: ")]
    assert bool(slower) == (base == "main")
    ending = "; not the same model in slow as in main"
    assert all(line.endswith(ending) == line.startswith("slow: alexnet/") for line in slower)


# What differs between environments


ONE = {
    "gpu": "NVIDIA H200",
    "driver": "580.1",
    "cpu_cores": 64,
    "memory_mib": 515850.8,
    "sm_clock_mhz": 1980.0,
    "packages": {"torch": "2.11.0", "numpy": "2.5.2"},
    "variables": {},
    "command": ["python", "-m", "profiler"],
    "wall_seconds": {"measure": 100.0},
}


def found(other: dict[str, Any], one: dict[str, Any] = ONE) -> dict[str, tuple[str, str]]:
    return {row["what"]: (row["A"], row["B"]) for row in differences({"A": [one], "B": [other]})}


def test_equal_environments_differ_in_nothing() -> None:
    assert differences({"A": [ONE], "B": [dict(ONE)]}) == []


@pytest.mark.parametrize(
    ("change", "rows"),
    [
        ({"driver": "590.2"}, {"driver": ("580.1", "590.2")}),
        ({"cpu_cores": 2}, {"cpu_cores": ("64", "2")}),
        ({"gpu": None}, {"gpu": ("NVIDIA H200", "none")}),
        ({"sm_clock_mhz": 1400.0}, {"sm_clock_mhz": ("1,980", "1,400")}),
        ({"sm_clock_mhz": 1975.0, "memory_mib": 515000.0}, {}),
        ({"packages": {"torch": "2.12.0", "numpy": "2.6.0"}}, {"packages.numpy": ("2.5.2", "2.6.0")}),
        ({"packages": {"torch": "2.11.0"}}, {"packages.numpy": ("2.5.2", "none")}),
        ({"variables": {"OMP_NUM_THREADS": "1"}}, {"variables.OMP_NUM_THREADS": ("none", "1")}),
        ({"command": ["other"], "wall_seconds": {"measure": 7.0}}, {}),
    ],
)
def test_what_differs_is_a_row(change: dict[str, Any], rows: dict[str, tuple[str, str]]) -> None:
    assert found({**ONE, **change}) == rows


def test_roofs_that_other_work_lowered_are_no_difference_of_the_machines() -> None:
    low = {**ONE, "roofs": {"fp32_tflops": 0.04}, "roofs_disturbance": "other processes took 70 % of 2 processors"}
    rows = found(low, {**ONE, "roofs": {"fp32_tflops": 0.22}})
    assert rows == {"roofs.fp32_tflops": ("0.22", "0.04 (beside other work)")}


def test_what_a_run_did_not_record_is_no_difference() -> None:
    assert found({"gpu": "NVIDIA H200"}) == {}


def test_machine_and_driver_come_before_packages() -> None:
    other = {**ONE, "packages": {"numpy": "1"}, "driver": "1", "gpu": "other", "brand_new": 1}
    assert [*found(other, {**ONE, "brand_new": 2})] == ["gpu", "driver", "packages.numpy", "brand_new"]


def test_a_side_of_several_runs_tells_all_its_values() -> None:
    rows = differences({"A": [ONE, {**ONE, "driver": "570"}], "B": [ONE]})
    assert rows == [{"what": "driver", "A": "580.1, 570", "B": "580.1"}]


def test_a_side_has_the_versions_of_its_rows_engines_only() -> None:
    ran = {"torch_version": "2.13", "onnxruntime_version": "1.31", "packages": {"jax": "0.10", "jaxlib": "0.10"}}
    other = {"torch_version": "2.12", "onnxruntime_version": "1.27", "openvino_version": "2026.4", "packages": {}}
    rows = differences({"ort": [{**ran, "engines": ["ort"]}], "ov": [{**other, "engines": ["openvino"]}]})
    assert rows == [{"what": "torch_version", "ort": "2.13", "ov": "2.12"}], "PyTorch exports for all"
    every = differences({"ort": [{**ran, "engines": ["ort", "jax"]}], "ov": [{**other, "engines": ["ort"]}]})
    assert [row["what"] for row in every] == ["torch_version", "onnxruntime_version"]
    assert every[1] == {"what": "onnxruntime_version", "ort": "1.31", "ov": "1.27"}
