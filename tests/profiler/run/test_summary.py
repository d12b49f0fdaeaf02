"""At 120 columns every figure is whole, every reason told, no name taken for markup; a plan fits a screen."""

from __future__ import annotations

import io
from dataclasses import replace
from typing import Any

import handmade
import polars as pl
import pytest
from matrix_product import write_text
from rich.console import Console
from runs import on_console

from exporters.source import ModelSource
from profiler.job.case import Case
from profiler.job.config import config_of
from profiler.results.cells import cells
from profiler.results.columns import Group, Shown, fields
from profiler.results.warning_kinds import footnotes
from profiler.run.summary import print_plan, print_results
from profiler.tables.numbers import within

TRAINING = {"pass": "training"}


def row(variant: str, precision: str = "fp32", ms: float | None = 1.0, **more: Any) -> dict[str, Any]:
    """One case with every figure that the tables show; without `ms` one that gave none."""
    if ms is None:
        return handmade.row(variant, precision, None, **more)
    figures = dict.fromkeys(("gpu_ms", "forward_ms", "backward_ms"), ms)
    shown = {"clock": "event", "host_ms": None, "rel_l2_error": 1e-5, "rel_l2_error_high": 1.234e-4}
    shown |= {"peak_memory_mib": 12345.6}
    return handmade.row(variant, precision, ms, **figures | shown | more)


def printed(*rows: dict[str, Any], width: int = 120, **more: Any) -> str:
    results, _ = handmade.run(*rows)
    return on_console(print_results, results, cells(results), width=width, **more)


def lines(text: str, start: str) -> list[list[str]]:
    return [line.split() for line in text.splitlines() if line.lstrip().startswith(start)]


def words(text: str, start: str) -> list[str]:
    (line,) = lines(text, start)
    return line


def heads(text: str) -> str:
    rows = text.splitlines()
    (ruler,) = [i for i, line in enumerate(rows) if line.startswith(" ───")]
    return " ".join(" ".join(rows[ruler - 2 : ruler]).split())


LADDER = [
    row(variant, precision, ms, fraction_of_peak=0.987, **{"pass": pass_})
    for pass_ in ("inference", "training")
    for variant, precision, ms in [
        ("eager", "fp32", 1234.5678),
        ("eager-tuned", "tf32", 812.3),
        ("eager-nocudnn", "amp-fp16", 9999.9),
        ("compiled", "fp16", 23.4),
        ("ort", "fp32", 345.6),
        ("ort-tuned", "fp16", 12.3),
        ("trt-rtx", "int8", 7.9),
        ("openvino", "fp32", 456.7),
        ("ort", "bf16", 2345.6),
    ]
]
LONG = "resnet152-with-a-very-long-label-that-somebody-gave-it"
LONG_ROWS = [row("eager", ms=1234.5, model=LONG)] + [
    row(f"ort-{'very-' * n}long-label-{n}", "amp-fp16", 123.4 / n, model=LONG) for n in range(1, 10)
]
REASON = " ".join(f"word{n}" for n in range(60))
LONG_REASONS = [
    row("eager"),
    row("ort", ms=None, reason=REASON, model=LONG),
    row("compiled", ms=None, reason="/a/path/without/any/space/" * 12, model=LONG),
    *(row(f"{LONG}-{n}", ms=None, status="unsupported", reason="no such thing", model=LONG) for n in range(6)),
]


@pytest.mark.parametrize("rows", [LADDER, LONG_ROWS, LONG_REASONS], ids=["ladder", "long names", "long reasons"])
def test_every_row_and_reason_is_whole_and_nothing_is_wider_than_the_terminal(rows):
    text = printed(*rows)
    assert "…" not in text
    assert max(len(line.rstrip()) for line in text.splitlines()) <= 120
    for one in (each for each in rows if each["status"] == "ok"):
        figure = within(one["latency_ms"], one["latency_low_ms"], one["latency_high_ms"])
        # A long name is broken, and goes on below.
        found = [line for line in text.splitlines() if line.split()[1:2] == [one["precision"]] and figure in line]
        assert any(one["variant"].startswith(line.split()[0]) for line in found), (one["case_id"], figure)
    assert (REASON in " ".join(text.split())) == (rows is LONG_REASONS)


def test_a_group_has_a_title_and_its_cells_fastest_first_with_intervals_and_factors():
    replicates = [row("trt", ms=1.5 * share, replicate=n) for n, share in enumerate((0.999, 1.0, 1.001))]
    rows = [row("eager", ms=6.0), row("ort", ms=3.0), *replicates, row("eager", ms=60.0, batch_size=16)]
    text = printed(*rows)
    assert text.index("net, inference, batch 1\n") < text.index("net, inference, batch 16\n")
    assert text.index("\n trt ") < text.index("\n ort ") < text.index("\n eager ")
    assert text.count("eager fp32") == 2, "the base is in the heading"
    assert words(text, "ort ") == [*("ort", "fp32", "3.00", "(2.97–3.03)", "3.00", "2.0", "333", "12,346", "1.2e-4")]
    assert lines(text, "eager ")[0][2:6] == ["6.00", "(5.94–6.06)", "6.00", "1.00"]
    assert len(lines(text, "trt ")) == 1, "a cell's replicates are one row"
    assert text.count("In parentheses: 95 % intervals") == 1
    assert "--replicates" not in text


def test_trials_of_a_search_have_a_table_of_their_own():
    rows = row("eager", ms=6.0), row("eager+mine", ms=7.0), row("eager+channels_last", ms=5.0)
    text = printed(*rows, planned=["eager", "eager+mine"])
    own, trials = text.index("net, inference, batch 1\n"), text.index("net, inference, batch 1, trials of the search\n")
    assert own < text.index("\n eager ") < text.index("\n eager+mine ") < trials
    assert trials < text.index("\n eager+channels_last ")


def test_training_shows_its_parts_and_the_gradients_error_where_there_is_room():
    more = {**TRAINING, "rel_l2_error_high": None, "gradient_error": 4.567e-6, "throughput": 12345.6}
    rows = [row("eager", ms=1234.5678, **more), row("eager-nocudnn", ms=999.9, forward_ms=400.0, **more)]
    text = printed(*rows)
    for heading in ("Forward", "Backward", "Gradient"):
        assert heading in heads(text)
    assert words(text, "eager-nocudnn ")[4:6] == ["400", "1,000"]
    assert words(text, "eager-nocudnn ")[-1] == "4.6e-6"
    narrow = printed(*rows, width=72)
    assert "Left out for the width: " in narrow and "Gradient error" in narrow and "4.6e-6" not in narrow
    inference = printed(row("eager"), row("ort", ms=0.5))
    assert "Gradient" not in inference and "Forward" not in inference


def test_columns_are_there_where_their_figures_are():
    known = {"fraction_of_peak": 0.0123, "usd_per_hour": 45.0}
    text = printed(row("eager", **known), row("ort", ms=0.5, fraction_of_peak=0.9, usd_per_hour=90.0))
    assert "peak %" in heads(text) and "USD/1M" in heads(text)
    assert {"1.2", "12.5"} <= set(words(text, "eager ")) and {"90.0", "12.5"} <= set(words(text, "ort "))
    without = printed(*(row(name, gpu_ms=None, peak_memory_mib=None) for name in ("eager", "ort")))
    assert not [head for head in ("peak", "USD", "Device", "Memory") if head in without]
    step = printed(*(row(name, step_ms=0.75, setting="optimizer=sgd", **TRAINING) for name in ("eager", "ort")))
    assert "net, training, batch 1, optimizer sgd" in step and "0.750" in words(step, "eager ")


def test_what_was_not_measured_is_listed_once_a_reason_with_its_cells():
    text = printed(
        row("eager"),
        row("ort", "tf32", ms=None, status="unsupported", reason="TF32 needs a GPU"),
        row("ort-tuned", "tf32", ms=None, status="unsupported", reason="TF32 needs a GPU"),
        row("compiled", ms=None, status="oom", reason="out of memory", batch_size=64, log="logs/compiled.log"),
        row("trt", ms=None, status="crashed", reason="ended by SIGSEGV"),
        row("openvino", ms=None, status="waiting", reason="the run ended before"),
    )
    _, listed = text.split("Not measured")
    assert listed.count("TF32 needs a GPU") == 1
    assert listed.count("batch 64") == listed.count("log:") == listed.count("log: logs/compiled.log") == 1
    for word in ("unsupported", "oom", "crashed", "ended by SIGSEGV", "ort, ort-tuned", "compiled", "waiting"):
        assert word in listed
    failed = printed(row("ort", ms=None, reason="no luck"))
    assert "no luck" in failed and "Latency" not in failed and "In parentheses" not in failed
    assert "Not measured" not in printed(row("eager"), row("ort"))


@pytest.mark.parametrize(
    ("busy", "note"),
    [
        (0, "±?: one process; spread not measured on this machine. --replicates 3 measures it."),
        (
            2,
            "±?: one process, or one quiet of 3; spread not measured on this machine. --replicates 5 measures it.",
        ),
    ],
)
def test_a_figure_without_an_interval_is_of_one_process_or_of_the_only_quiet_one(busy, note):
    rows = [handmade.row("ort", ms=1.0)]
    rows += [handmade.row("ort", ms=3.0, replicate=n + 1, warnings=["disturbed: other work"]) for n in range(busy)]
    results = handmade.frame(row | {"latency_spread": None, "latency_spread_free": None} for row in rows)
    assert note in on_console(print_results, results, cells(results))


@pytest.mark.parametrize("reach", [1.1, 4.0])
def test_a_note_says_what_busy_means_where_a_cell_is(reach):
    results = handmade.frame([handmade.row("ort", ms=1.0, latency_low_ms=1 / reach, latency_high_ms=reach)])
    assert ("busy: " in on_console(print_results, results, cells(results))) == (reach**2 > 10)


# Single layers: one table a layer


def test_a_note_says_which_precisions_and_errors_mean_less():
    warnings = [["calibration: seeded", "drift: 3 %"], ["calibration: seeded", "mixed-precision: half"]]
    rows = [row(name, "int8", ms=1.0, warnings=kinds) for name, kinds in zip(("a", "b"), warnings, strict=True)]
    text = " ".join(printed(row("eager"), *rows).split())
    assert all(f" {note}: " in text for note in ("calibration (a int8 and b int8)", "mixed-precision (b int8)"))
    assert "drift" not in text, "its interval has it"
    assert footnotes([("a int8", ["drift"])] * 2)[0].startswith("drift (a int8): "), "of two batch sizes"


def layer(name: str, variant: str, *parts: float, **more: Any) -> dict[str, Any]:
    times = dict(zip(("forward_ms", "grad_input_ms", "grad_weight_ms"), parts, strict=True))
    place = {**TRAINING, "batch_size": 16, "model_kind": "layer", "flops_per_item": 3e9, "backward_ms": None}
    return row(variant, ms=sum(parts), model=name, **place | times | more)


LAYERS = [layer("L1", "eager", 1.0, 2.0, 4.0), layer("L1", "tuned", 1.5, 1.0, 1.0), layer("L2", "eager", 1.0, 1.0, 1.0)]


def test_a_layer_has_one_table_for_all_its_passes():
    parts = dict.fromkeys(("forward_ms", "grad_input_ms", "grad_weight_ms", "backward_ms"))
    alone = row("ort", ms=0.5, model="L1", batch_size=16, model_kind="layer", **parts)
    text = printed(*LAYERS, alone)
    assert [" ".join(line) for line in lines(text, "L")] == ["L1, batch 16", "L2, batch 16"]
    # 16 items of 3 GFLOP, a third of them in the forward pass.
    assert words(text, "tuned")[2:8] == ["1.500", "1.00", "1.00", "3.50", "10.7", "13.71"]
    assert words(text, "ort")[2] == "0.500"
    assert text.index("tuned") < text.index("eager"), "the fastest first"
    assert "×" not in text, "there are no factors"


# The plan: what cannot run and why, and how long the rest takes.

CASE = Case("a-model-with-a-longer-name", "eager", "eager", "inference", "fp32", 1, "cpu", 0, ModelSource("alexnet"))


def planned(cases: list[Case]) -> tuple[int, list[str]]:
    output, config = io.StringIO(), config_of({"models": ["alexnet"], "engines": ["eager"]})
    code = print_plan(Console(file=output, width=80), "EPYC", cases, config)
    return code, [" ".join(line.split()) for line in output.getvalue().splitlines() if line.strip()]


def test_the_plan_says_what_the_inputs_of_files_lack(tmp_path):
    write_text(tmp_path / "s.onnx", "s (int64[n, 4] a, int64[n, 4] b) => (int64[n, 4] y) { y = Add (a, b) }")
    files = [ModelSource(name, onnx=tmp_path / "s.onnx", inputs=own) for name, own in (("p", {}), ("q", {"a": (0, 9)}))]
    cases = [replace(CASE, engine="ort", model=source.name, source=source) for source in files]
    code, lines = planned([*cases, CASE])
    text = " ".join(lines)
    assert (code, "1 of 3 cases to try" in text) == (2, True)
    assert "model 'p': no range of values for inputs 'a' (int64), 'b' (int64): give --input a=0,100" in text
    assert "model 'q': no range of values for input 'b' (int64): give --input b=0,100" in text
    assert planned([CASE])[0] == 0


def test_the_plan_names_unchecked_inputs_only_of_models_that_are_code():
    factory = replace(CASE, source=ModelSource("f", factory="no:code", input_shape=(3,)))
    told = [" ".join(planned([CASE, *more])[1]) for more in ([], [factory])]
    assert ["No module was loaded" in text for text in told] == [False, True]


@pytest.mark.parametrize(
    "source", [ModelSource("alexnet"), ModelSource("f", factory="no:code", input_shape=(3,)), ModelSource("resnet18")]
)
def test_the_plan_refuses_a_dimension_that_no_input_has_without_the_models_code(source):
    code, lines = planned([CASE, replace(CASE, source=replace(source, dimensions={"shape": 1}))])
    assert (code, f"model '{source.name}': no dimension 'shape'" in " ".join(lines)) == (2, True)


def test_a_model_variant_and_pass_is_a_row_with_its_cases_and_their_time_or_a_reason():
    compiled = replace(CASE, engine="compiled", variant="compiled")
    lacking = [replace(CASE, variant=name, unsupported="openvino is not installed") for name in ("a", "b", "b")]
    code, lines = planned([CASE, replace(CASE, batch_size=4), compiled, *lacking])
    assert code == 0
    assert [line.removeprefix(CASE.model).lstrip() for line in lines if line.startswith(CASE.model)] == [
        "eager inference 2 14 s",
        "compiled inference 1 37 s",
        "a inference 1 unsupported: openvino",
        "b inference 2 unsupported: openvino",
    ]
    end = " ".join(lines[-2:])
    assert "3 of 6 cases to try, in about 51 s, guessed, besides preparing the models and confirming winners" in end
    assert planned(lacking)[0] == 2


def test_no_figure_of_a_busy_row_is_printed():
    ends = {"latency_low_ms": [0.99, 0.05], "latency_high_ms": [1.01, 20.0]}
    ends |= {"throughput_low": [990.0, 50.0], "throughput_high": [1010.0, 2e4]}
    names = ("throughput", "fraction_of_peak", "usd_per_million_items")
    frame = pl.DataFrame(ends | {name: [1.0, 1.0] for name in names})
    made = fields(Group.THROUGHPUT, Group.ROOFLINE, Group.COST, shown=Shown.TERMINAL)
    assert [field.columns[0] for field in made] == [*names]
    for field in made:
        quiet, busy = field.format(*(frame[column] for column in field.columns))
        assert quiet.startswith("1") and busy == "busy"


def test_the_note_on_accuracy_has_the_scored_items_of_all_models():
    rows = [row("eager", model=f"m{items}", accuracy=0.9, accuracy_items=items) for items in (58, 1180, 100)]
    assert "Accuracy: of 58–1,180 scored items" in printed(*rows)
    assert "Accuracy: of 58 scored items" in printed(rows[0])


def test_data_that_give_no_accuracy_are_told_once():
    for warning, note in (
        ("no-accuracy: no output holds items", "No accuracy of net: no output holds items."),
        ("unlabelled: the data have no labels", "\nnet: the data have no labels."),
    ):
        assert printed(row("eager", warnings=[warning]), row("ort", warnings=[warning])).count(note) == 1
