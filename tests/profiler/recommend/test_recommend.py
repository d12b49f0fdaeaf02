"""Test the winner against brute force, reasons and commands as data, and the printed answer."""

from __future__ import annotations

import io
import json
import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import handmade
import numpy as np
import polars as pl
import pytest
from rich.console import Console
from runs import on_console

from profiler import Choice
from profiler.errors import ConfigError
from profiler.options import Recommend as Options
from profiler.recommend.answer import OBJECTIVES, Request, as_data, recommend
from profiler.recommend.command import conclude, execute, headline, print_answer, read_limits, requests
from profiler.results.choice import Limit, Loser
from profiler.results.columns import SAMPLES
from profiler.results.reading import load

GOLDEN = Path(__file__).resolve().parents[2] / "golden" / "h200"
Row = dict[str, Any]
TRAINING: Row = {"pass": "training"}


def row(variant: str, precision: str = "fp16", ms: float | None = 1.0, *, reach: float = 0.002, **more: Any) -> Row:
    """One case on a GPU, each figure with an interval of ±`reach`; without `ms` one that was not measured."""
    case: Row = {"batch_size": 1, "device": "cuda", "options": "{}", "machine": "H200", "gpu": "H200"}
    case |= {"setting": "", "is_base": False} | more
    if ms is None:
        return handmade.row(variant, precision, None, **{"status": "unsupported"} | case)
    rate = 1000 / ms * int(case["batch_size"])
    figures: Row = {"clock": "event", "gpu_ms": ms * (1 - reach), "host_ms": 2 * ms, "throughput": rate}
    figures |= {"latency_spread": 0.001, "latency_spread_free": 30.0}
    figures |= {"samples": 40, "load_s": 0.5, "peak_memory_mib": 1000.0} | case
    if figures.get("usd_per_hour") and figures["throughput"]:
        figures["usd_per_million_items"] = 1e6 * figures["usd_per_hour"] / 3600 / figures["throughput"]
    for name in ("latency", "throughput"):
        unit, middle = ("_ms", ms) if name == "latency" else ("", figures["throughput"])
        if middle is not None:
            figures |= {f"{name}_low{unit}": middle * (1 - reach), f"{name}_high{unit}": middle * (1 + reach)}
    made = handmade.row(variant, precision, ms, **figures)
    return made | {"case_id": "/".join(filter(None, (made["case_id"], made["setting"])))}


def run(*rows: Row) -> pl.DataFrame:
    return handmade.frame(rows)


def ask(*rows: Row, **request: Any) -> Choice:
    return recommend(run(*rows), Request("net", **request))


def codes(choice: Choice) -> dict[str, list[tuple[str, str]]]:
    """By loser's name the code and the figure of each reason."""
    return {each.cell["name"]: [(why.code, why.figure) for why in each.reasons] for each in choice.losers}


def shown(choice: Choice, width: int = 120, **request: Any) -> str:
    return on_console(lambda console: print_answer(console, Request("net", **request), choice, ["a run"]), width=width)


# Against brute force

VARIANTS = ("eager", "eager-tuned", "compiled", "ort", "ort-tuned", "trt")
FIGURES = {"latency_ms": "latency_ms", "throughput": "throughput", "peak_memory_mib": "peak_memory_mib",
           "error": "rel_l2_error"}  # fmt: skip


def random_rows(rng: np.random.Generator) -> list[Row]:
    """Up to twelve cells of two batch sizes: near figures and far ones, wide intervals and narrow, some failed."""
    rows = {}
    for _ in range(rng.integers(1, 13)):
        cell = str(rng.choice(VARIANTS)), str(rng.choice(["fp32", "fp16"])), int(rng.choice([1, 16]))
        ms = float(rng.choice([1.0, 1.001, 1.03, 1.5, 3.0])) if rng.random() > 0.12 else None
        figures: Row = {} if ms is None else {
            "peak_memory_mib": float(rng.integers(5, 9) * 100), "load_s": float(rng.choice([0.0, 0.7, 2.5, 3.0])),
            "rel_l2_error": float(rng.choice([1e-6, 4e-4, 2e-2])), "reach": float(rng.choice([0.001, 0.01, 0.1])),
        }  # fmt: skip
        rows[cell] = row(cell[0], cell[1], ms, batch_size=cell[2], **figures)
    return list(rows.values())


def meets(r: Row, limit: Limit) -> bool:
    value = r[FIGURES[limit.figure]]
    return bool(value >= limit.value if limit.figure == "throughput" else value <= limit.value)


def is_worse(r: Row, best: Row, objective: str) -> bool:
    """Return True if the whole interval of the ratio is beyond 1 %; memory is taken as it is."""
    figure, sign = OBJECTIVES[objective], -1 if objective == "throughput" else 1
    stem, unit = (figure.removesuffix("_ms"), "_ms") if figure.endswith("_ms") else (figure, "")

    def logs(one: Any) -> tuple[float, float, float]:
        ends = (one.get(f"{stem}_low{unit}", one[figure]), one[figure], one.get(f"{stem}_high{unit}", one[figure]))
        low, middle, high = sorted(sign * math.log(value) for value in ends)
        return low, middle, high

    (low, middle, _), (_, other, high) = logs(r), logs(best)
    return middle - other - math.hypot(middle - low, high - other) > math.log(1.01)


def test_the_winner_is_the_optimum_and_every_loser_has_its_reason():
    won = tied = unmet = 0
    for seed in range(60):
        rng = np.random.default_rng(seed)
        rows = random_rows(rng)
        measured = [r for r in rows if r["status"] == "ok"]
        limits = []
        for figure, column in FIGURES.items():
            if measured and rng.random() < 0.25:
                value = float(rng.choice([r[column] for r in measured])) * float(rng.choice([0.7, 1.0, 1.3]))
                limits.append(Limit(figure, value))
        objective = str(rng.choice(["latency", "throughput", "memory"]))
        answer = ask(*rows, limits=tuple(limits), objective=objective)
        every = [*limits] if any(limit.figure == "error" for limit in limits) else [*limits, Limit("error", 1e-2)]
        fit = [r for r in measured if all(meets(r, limit) for limit in every)]
        assert [*answer.limits] == every, seed
        for each in answer.losers:
            check_reasons(each, rows, every, seed)
        if not fit:
            assert answer.winner is None, seed
            assert len(answer.losers) == len(rows), seed
            unmet += 1
            continue
        assert answer.winner is not None, seed
        if objective == "latency":
            smallest = min(r["batch_size"] for r in fit)
            fit = [r for r in fit if r["batch_size"] == smallest]
        sign, figure = (-1 if objective == "throughput" else 1), OBJECTIVES[objective]
        best = min(fit, key=lambda r: sign * r[figure])
        pool = [r for r in fit if not is_worse(r, best, objective)]
        near = [r for r in pool if abs(math.log(r[figure] / best[figure])) < 0.05]
        alike = min(r["load_s"] for r in near) + 1.0
        order = [(max(r["load_s"], alike), r["precision"] == "fp16", r["peak_memory_mib"]) for r in near]
        winner = next(r for r in fit if r["case_id"] == answer.winner["case_ids"][0])
        assert winner in near and order[near.index(winner)] == min(order), seed
        assert len(answer.tied) == len(pool) - 1, seed
        won, tied = won + 1, tied + (len(pool) > 1)
    assert min(won, tied, unmet) >= 5


def check_reasons(loser: Loser, rows: list[Row], limits: list[Limit], seed: int) -> None:
    (own,) = [r for r in rows if r["case_id"] == loser.cell["case_ids"][0]]
    found = [why.code for why in loser.reasons]
    missed = [limit for limit in limits if own["status"] == "ok" and not meets(own, limit)]
    if own["status"] != "ok":
        assert found == ["not-measured"], seed
    elif missed:
        assert [(why.figure, why.limit) for why in loser.reasons] == [(x.figure, x.value) for x in missed], seed
        assert [why.value for why in loser.reasons] == [own[FIGURES[limit.figure]] for limit in missed], seed
    else:
        assert found in (["worse"], ["unclear"], ["equivalent"]), seed
    assert all(len(str(why).split()) <= 25 for why in loser.reasons), seed


# The rules


@pytest.mark.parametrize(
    ("objective", "batch"), [("latency", 1), ("throughput", 16), ("memory", 1), ("energy", 16), ("cost", 16)]
)
def test_each_objective_has_its_own_best(objective, batch):
    rows = [
        row("ort", ms=1.0, peak_memory_mib=500.0, energy_mj_per_item=40.0, usd_per_hour=2.0),
        row("ort", ms=3.0, batch_size=16, peak_memory_mib=1000.0, energy_mj_per_item=10.0, usd_per_hour=2.0),
        row("trt", ms=4.0, peak_memory_mib=9000.0, energy_mj_per_item=90.0, usd_per_hour=2.0),
    ]
    answer = ask(*rows, objective=objective)
    assert answer.winner and answer.winner["batch_size"] == batch
    assert (len(answer.losers) == 1) == (objective == "latency"), "of single calls the smallest batch that will do"


def test_a_cost_is_as_uncertain_as_its_throughput():
    rows = [row(variant, ms=ms, usd_per_hour=2.0, reach=0.1) for variant, ms in (("ort", 1.0), ("trt", 1.04))]
    cost, rate = (ask(*rows, objective=objective) for objective in ("cost", "throughput"))
    assert cost.status == rate.status == "tie"
    assert [cost.margin.low, cost.margin.high] == pytest.approx([rate.margin.low, rate.margin.high])


def test_a_figure_that_was_not_measured_says_what_it_takes():
    told = headline(ask(row("ort", device="cpu"), objective="energy"))
    assert told.endswith("no energy was measured; that takes a GPU and `energy: true` in the job")


def test_replicates_of_several_runs_are_one_candidate_unless_their_versions_differ():
    runs = [row("ort", ms=ms, run_id=f"run{n}", torch_version="2.11") for n, ms in enumerate((1.0, 1.2, 1.1))]
    bases = [row("eager", "fp32", 4.0, run_id=r["run_id"], torch_version="2.11", is_base=True) for r in runs]
    answer = ask(*runs, *bases)
    assert answer.winner and (answer.winner["processes"], answer.winner["run_ids"]) == (3, ["run0", "run1", "run2"])
    assert answer.winner["latency_ms"] == 1.1
    assert answer.winner["factor"] == pytest.approx(4 / 1.1)
    apart = ask(*runs[:2], runs[2] | {"torch_version": "2.13"})
    assert apart.winner and {apart.winner["name"], *codes(apart)} == {"ort fp16 (run run0)", "ort fp16 (run run2)"}


def test_training_is_judged_by_its_gradients_and_by_what_it_does():
    rows = [
        row("eager", ms=2.0, rel_l2_error=None, gradient_error=1e-3, **TRAINING),
        row("eager", "bf16", ms=1.0, rel_l2_error=None, gradient_error=3e-2, **TRAINING),
        row("eager", ms=0.5, setting="optimizer=sgd", optimizer="sgd", **TRAINING),
    ]
    found = ask(*rows, pass_="training", limits=(Limit("error", 1e-2),))
    assert codes(found) == {"eager bf16": [("over", "error")]}
    free = ask(*rows, pass_="training")
    assert free.limits == () and free.winner and free.winner["precision"] == "bf16"
    sgd = ask(*rows, pass_="training", setting="optimizer=sgd")
    assert sgd.winner and sgd.winner["latency_ms"] == 0.5 and not sgd.losers


# What is printed


LIMITED: dict[str, Any] = {"limits": (Limit("latency_ms", 0.5), Limit("peak_memory_mib", 800.0))}


def full() -> list[Row]:
    return [
        row("compiled", ms=0.925, reach=0.016, build_s=8.0, load_s=0.1, rel_l2_error=1.2e-3, rel_l2_error_high=2e-3),
        row("eager-tuned", ms=1.4, reach=0.05, peak_memory_mib=700.0),
        row("eager", "fp32", ms=6.85, is_base=True, warnings=["host-bound: x"]),
        row("trt", ms=None, reason="no GPU"),
        row("trt", "fp32", ms=None, reason="no GPU"),
    ]


def test_the_whole_answer():
    text = shown(ask(*full()), width=160)
    assert [" ".join(line.split()) for line in text.splitlines() if line.strip(" ─")] == [
        "net on H200: lowest latency with error ≤ 1.0e-2",
        "Deploy compiled fp16, batch 1: 0.925 ms a call (0.910–0.940), 7.4× eager fp32 (7.3–7.5), error 1.2e-3 "
        "(bound 2.0e-3), 1,000 MiB, starts in 8.1 s",
        "Runner-up: eager-tuned fp16, 1.51× slower (1.43–1.59)",
        "Why not the others",
        "Latency",
        "Candidate ms Why",
        "eager-tuned fp16 1.40 (1.33–1.47) 1.51× slower (1.43–1.59)",
        "eager fp32 6.85 (6.84–6.86) 7.4× slower (7.3–7.5)",
        "Not measured",
        "Candidates Why",
        "trt fp16 and trt fp32 unsupported: no GPU",
        "Export: python -m profiler recommend 'a run' --model net --export deploy/",
    ]


def test_where_nothing_meets_the_limits_it_says_what_comes_nearest():
    answer = ask(*full(), **LIMITED)
    assert answer.winner is None and answer.nearest and answer.nearest["name"] == "compiled fp16"
    assert headline(answer).startswith("Nothing meets the limits; the nearest is compiled fp16: latency 0.925 ms (")
    assert headline(ask(row("trt", ms=None, reason="no GPU"))) == (
        "Nothing to deploy: no candidate has a figure for latency; trt fp16: not measured: unsupported: no GPU"
    )
    assert headline(ask(row("ort", ms=3.0, reach=0.9), limits=(Limit("latency_ms", 2.0),))).startswith(
        "Nothing is known to meet the limits; the nearest is ort fp16: latency seems over "
    )
    apart = {"rel_l2_error": 0.1, "rel_l2_error_high": 0.2, "worst": "scores, item 3"}
    drawn = {"drawn": "input:0, ids", "model_kind": "onnx"}
    assert headline(ask(row("ort", **apart, **drawn))) == (
        "Nothing meets the limits; the nearest is ort fp16: error bound 2.0e-1 (largest in scores, item 3), over the "
        "limit of 1.0e-2; input:0, ids are drawn at random: give data, --input input:0=input_0.npy --input ids=ids.npy "
        '(in a job `inputs: {"input:0": {data: input_0.npy}, ids: {data: ids.npy}}`)'
    )
    unknown = {"rel_l2_error": None, "rel_l2_error_high": None, "drawn": "x", "model_kind": "factory"}
    assert "error was not measured; x is drawn at random: real ones come from a factory" in headline(
        ask(row("ort", **unknown))
    )
    assert headline(ask(row("ort", **apart))).endswith("over the limit of 1.0e-2")


def test_other_work_leaves_a_winner_of_memory_without_a_latency():
    rows = row("ort", reach=0.9, peak_memory_mib=9.0), row("eager", "fp32", 4.0, is_base=True)
    assert " 9.00 MiB, latency unknown because of other work, error" in headline(ask(*rows, objective="memory"))


@pytest.mark.parametrize("wanted", [{}, {"objective": "throughput"}, LIMITED])
def test_nothing_is_cut_and_all_is_data(wanted):
    answer = ask(*full(), row("a|b [red]<i>", ms=2.0), **wanted)
    for width in (120, 60):
        text = shown(answer, width, **wanted)
        assert not [line for line in text.splitlines() if len(line) > width and not line.startswith("Export: ")]
        assert "…" not in text
        assert " ".join(headline(answer).split()) in " ".join(text.split())
    data = json.loads(json.dumps(as_data(Request("net", **wanted), answer), allow_nan=False))
    assert [loser["name"] for loser in data["losers"]] == [*codes(answer)]
    assert (data["winner"] is None) == (wanted is LIMITED)


# The command


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    results = run(
        row("ort"), row("eager", "fp32", ms=2.0, batch_size=16), row("ort", model="other"),
        row("eager", ms=4.0, setting="optimizer=sgd", optimizer="sgd", **TRAINING),
        row("eager", ms=4.0, setting="optimizer=adamw", optimizer="adamw", **TRAINING),
    )  # fmt: skip
    return written(tmp_path / "run", results)


def written(path: Path, results: pl.DataFrame) -> Path:
    path.mkdir()
    results.write_parquet(path / "results.parquet")
    pl.DataFrame(schema=SAMPLES).write_parquet(path / "samples.parquet")
    (path / "environment.json").write_text(json.dumps({"gpu": "H200"}))
    (path / "bench.yaml").write_text("models: [{name: net, onnx: gone.onnx}]\nengines: [ort]\n")
    return path


def order(folder: Path, **options: Any) -> tuple[int, str]:
    out = io.StringIO()
    code = execute(Options(runs=(str(folder),), **options), Console(file=out, width=120))
    return code, out.getvalue()


Data = Callable[..., Any]


@pytest.fixture
def data(folder: Path, capsys: pytest.CaptureFixture[str]) -> Data:

    def asked(place: Path = folder, **options: Any) -> Any:
        capsys.readouterr()
        order(place, format="json", **options)
        return json.loads(capsys.readouterr().out)

    return asked


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"model": "ne"}, "--model, inference: unknown 'ne'; did you mean 'net'?"),
        ({"export": Path("x")}, "--export takes one model's inference; choose by --model, --setting or"),
        ({"format": "htm"}, "--format: unknown 'htm'"),
        ({"model": "other", "pass_": "training"}, "--model, training: unknown 'other'; valid: net"),
        ({"only": ["precision=fp61"]}, "--only precision=fp61: no row of these runs matches; did you mean"),
        ({"only": ["replicate=0"]}, "--only replicate: an answer is of all replicates"),
        ({"only": ["batch_size=16,precision=fp16"]}, "--pass inference and --only: no row of these runs has it"),
        ({"max_latency_ms": ["fast"]}, "--max-latency-ms: 'fast' is no limit; give a number greater than 0, or p"),
        ({"max_error": ["inf"]}, "--max-error: 'inf' is no limit"),
        ({"max_accuracy_loss": ["0.5"]}, "--max-accuracy-loss: '0.5' is no limit; give a percentage with its sign"),
        ({"pass_": "training", "setting": "optimizer=lion"}, "--setting: unknown 'optimizer=lion'; did you mean"),
    ],
)  # fmt: skip
def test_an_order_that_cannot_be_used_says_how_to_mend_it(folder, options, words):
    with pytest.raises(ConfigError, match=re.escape(words)):
        order(folder, **options)


@pytest.mark.parametrize(
    ("figures", "need"),
    [({}, "labels "), ({"accuracy": 0.9}, "base to compare with")],
)
def test_a_limit_of_the_loss_names_models_without_one_and_another_to_choose(tmp_path, figures, need):
    scored = {"accuracy": 0.9, "accuracy_loss": 0.0, "accuracy_loss_low": 0.0, "accuracy_loss_high": 0.0}
    folder = written(tmp_path / "run", run(row("ort", **figures), row("ort", model="other", **scored)))
    with pytest.raises(ConfigError, match=f": no {need}.*, for net; .*choose others by --model other$"):
        order(folder, max_accuracy_loss=["1%"])
    order(folder, max_accuracy_loss=["1%"], model="other")


def test_limits_are_read_as_they_are_written_and_given_back_so():
    options = Options(
        runs=("run",), max_latency_ms=["5", "p99=8", "p90=6"], min_throughput=["100"], max_memory_mib=["1e3"],
        max_error=["0.01"],
    )  # fmt: skip
    limits = read_limits(options)
    assert limits == (
        Limit("latency_ms", 5.0), Limit("latency_p99_ms", 8.0), Limit("latency_p90_ms", 6.0),
        Limit("throughput", 100.0), Limit("peak_memory_mib", 1000.0), Limit("error", 1e-2),
    )  # fmt: skip
    assert " ".join(Request("net", limits=limits).words()) == (
        "--model net --max-latency-ms 5 --max-latency-ms p99=8 --max-latency-ms p90=6 --min-throughput 100 "
        "--max-memory-mib 1000 --max-error 0.01"
    )


def test_a_percentiles_limit_is_held_against_it():
    rows = [row("ort", samples=700, latency_p99_ms=1.5), row("eager", ms=4.0, samples=700, latency_p99_ms=6.0)]
    answer = ask(*rows, limits=(Limit("latency_p99_ms", 2.0),))
    assert answer.winner and codes(answer) == {"eager fp16": [("over", "latency_p99_ms")]}
    none = ask(*rows, limits=(Limit("latency_p99_ms", 0.5),))
    assert none.winner is None and none.nearest and none.nearest["name"] == "ort fp16"
    few = [row("ort", ms=4.0, clock="host"), row("eager", ms=9.0), row("jax", ms=2.0)]
    unknown = ask(*few, limits=(Limit("latency_p99_ms", 5.0),))
    whys = {one.cell["name"]: one.reasons[0] for one in unknown.losers}
    told = {name: (why.code, why.figure, why.value, why.have) for name, why in whys.items()}
    # A case that is steady stops after half of its time, which on a GPU is half of the seconds.
    assert told["ort fp16"] == told["jax fp16"] == ("unknown", "latency_p99_ms", 6, 40)
    assert told["eager fp16"] == ("over", "latency_ms", 9.0, None), "a median beyond the limit needs no percentile"


def test_exit_codes_and_the_next_commands(folder, data):
    code, text = order(folder, model="net")
    assert code == 0
    assert text.endswith(f"\nExport: python -m profiler recommend {folder} --model net --export deploy/\n")
    alone = written(folder.parent / "jax", run(row("jax")))
    assert order(alone)[1].endswith("\njax cannot be exported; choose among others, such as --only engine=ort\n")
    code, text = order(folder, model="net", max_latency_ms=["0.5"])
    assert code == 3
    assert "Why none" in text and "--export" not in text
    assert order(folder, model="net", max_latency_ms=["p99=1.5"])[0] == 4, "more samples would tell"
    others = [row("trt", ms=1.02, reach=0.03, load_s=1.0), row("eager", "fp32", 1.08, reach=0.1, is_base=True)]
    for starts, told in (
        (1.0, "A tie of 3: ort fp16, eager fp32 and trt fp16; the best figure leads; --replicates 5 may part them"),
        (
            9.0,
            "A tie of 3: trt fp16, eager fp32 and ort fp16; within 5 % the soonest start wins, among starts within",
        ),
    ):
        tie = written(folder.parent / f"tie-{starts}", run(row("ort", reach=0.03, load_s=starts), *others))
        assert told in " ".join(order(tie, model="net")[1].split())
    told = order(tie, model="net", objective="memory")[1]
    assert "A tie of 3" in told and "--replicates" not in told, "figures without intervals stay as near"
    busy = [row("ort", reach=0.03, replicate=n, warnings=["disturbed: other work"] * (n > 0)) for n in range(3)]
    again = [{**each, "run_id": "again"} for each in busy]
    told = order(written(folder.parent / "busy", run(*busy, *again, *others)), model="net")[1]
    assert "A tie of 3" in told and "--replicates" not in told, "six were measured, and four ran beside other work"


def test_several_models_and_settings_have_short_answers(folder, data):
    code, text = order(folder)
    assert code == 0
    assert text.startswith("\nnet, lowest latency: Deploy ort fp16, batch 1: 1.00 ms a call")
    assert f"\nWhy not the others: python -m profiler recommend {folder} --model net\n" in text
    assert [(one["request"]["model"], one["winner"]["variant"]) for one in data()] == [("net", "ort"), ("other", "ort")]
    assert order(folder, max_latency_ms=["0.5"], only=["precision=fp16"])[0] == 3
    code, text = order(folder, pass_="training")
    assert code == 0
    assert "net training, optimizer sgd, lowest latency: Deploy" in text and "optimizer adamw" in text
    only = written(folder.parent / "training", run(row("eager", **TRAINING)))
    assert order(only)[1].startswith("net training"), "there is nothing else"
    sizes = [f"width={size}" for size in (8, 16, 32)]
    shapes = written(folder.parent / "shapes", run(*(row("ort", shape=at, setting=at) for at in sizes)))
    text = order(shapes)[1]
    assert "Runner-up" not in text and all(f"net, width {size}" in text for size in (8, 16, 32))


def test_among_several_models_each_has_figures_or_the_reason(tmp_path):
    rows = [row("ort", model="good"), row("ort", ms=3.0, model="slow"), row("ort", ms=4.0, model="slower")]
    folder = written(tmp_path / "run", run(row("trt", ms=None, model="broken", reason="no GPU"), *rows))
    text = order(folder, max_latency_ms=["2"])[1]
    assert re.search(r"^broken: Nothing to deploy: .* no GPU$", text, re.MULTILINE)
    assert "\nslow and 1 more: Nothing meets the limits; the nearest is ort fp16: latency 3.00 ms (" in text
    assert text.endswith(f" recommend {folder} --model good --max-latency-ms 2\n"), "others have no figure within it"
    assert order(folder, max_latency_ms=["0.5"])[1].endswith(" --model good --max-latency-ms 0.5\n"), "the nearest has"


def test_models_that_differ_in_the_leader_share_no_doubt(tmp_path):
    base = {"is_base": True, "precision": "fp32", "warnings": ["disturbed: x"], "reach": 0.9}
    leaders = {"a": "ort", "b": "ort", "c": "trt"}
    rows = [row("eager", ms=2.0, model=model, **base) for model in leaders]
    rows += [row(leader, model=model, reach=0.9, warnings=["disturbed: x"]) for model, leader in leaders.items()]
    text = order(written(tmp_path / "run", run(*rows)))[1]
    doubts = re.findall(r"^(.*): No recommendation yet: .*; (\w+) fp16 leads$", text, re.MULTILINE)
    assert doubts == [("a, b1 and 1 more", "ort"), ("c, b1", "trt")]


def test_doubts_that_one_command_settles_name_it_once(tmp_path):
    base = {"is_base": True, "precision": "fp32"}
    busy = [row("eager", ms=2.0, model="busy", reach=0.9, **base), row("ort", model="busy", reach=0.9)]
    disturbed = [{**each, "model": "disturbed", "warnings": ["disturbed: x"]} for each in busy]
    waiting = [row("ort", ms=None, model=name, status="waiting") for name in ("unreached", "base")]
    folder = written(tmp_path / "run", run(*busy, *disturbed, *waiting, row("eager", model="base", **base)))
    text = order(folder)[1]
    nexts = [line for line in text.splitlines() if line.startswith("Next: ")]
    resume = f"Next: python -m profiler --resume {folder}"
    assert nexts == [f"{resume} --retry --wait-for-idle 10", resume]
    assert text.count("docs/first-run.md") == 1
    assert "docs/first-run.md" not in order(folder, model="base")[1], "nothing ran beside it"


def test_the_base_alone_is_no_lack_of_engines_if_only_left_the_others_out(tmp_path):
    rows = row("eager", ms=2.0, is_base=True), row("ort")
    choice = ask(*rows, only="engine=eager")
    assert (choice.status, choice.doubt and choice.doubt.code) == ("undecided", "only-left")
    assert order(written(tmp_path / "run", run(*rows)), only=["engine=eager"])[1].count("Next: ") == 0
    waiting = ask(*rows, row("eager", "tf32", None, status="waiting"), only="engine=eager")
    assert waiting.doubt and waiting.doubt.code == "only-base"


def test_one_command_settles_every_open_choice(tmp_path):
    rows = [row(name, ms=ms, model=model, reach=0.2, is_base=name == "eager")
            for model in "abc" for name, ms in (("eager", 1.05), ("ort", 1.0))]  # fmt: skip
    folder = written(tmp_path / "run", run(*rows))
    (command,) = (line for line in order(folder)[1].splitlines() if line.startswith("Next: "))
    assert "--replicates 5 --only model=a,b,c,pass=inference,batch_size=1,variant=ort,eager," in command


def test_a_run_ends_with_models_that_failed_or_were_not_reached():
    lost = [row("ort", ms=None, model=status, status=status) for status in ("failed", "waiting")]
    results = run(row("eager", ms=2.0, is_base=True), row("ort"), *lost)
    text = on_console(lambda console: conclude(Path("a run"), results, console))
    assert [f"\n {name} " in text for name in ("net, b1", "failed", "waiting")] == [True] * 3


def test_a_doubt_of_one_objective_shows_beside_a_winner_of_another(tmp_path):
    rates = {"throughput": 900.0, "throughput_low": 890.0, "throughput_high": 910.0}
    rows = [row("ort", reach=0.01), row("trt", ms=1.01, reach=0.4) | rates]
    slow = [row("ort", ms=99.0, batch_size=2), row("ort", ms=99.0, model="other")]
    text = on_console(lambda console: conclude(tmp_path, run(*rows, *slow), console), width=200)
    assert text.count("→ ort fp16") == 2 and text.count("→ no recommendation yet") == 1


def test_a_plain_setting_answers_for_a_models_pass():
    wide = {"setting": "width=8", "shape": "width=8"}
    others = row("ort", **wide), row("ort", model="wide", **wide), row("ort", model="wide", **TRAINING)
    results = run(row("ort"), *others)
    questions = requests(Options(runs=()), results)
    assert [(question.model, question.setting) for question in questions] == [("net", ""), ("wide", "width=8")]
    text = on_console(lambda console: conclude(Path("a run"), results, console))
    assert [name in text for name in ("net, width 8", "wide, width 8", "wide training")] == [False, True, True]


def test_a_run_ends_with_an_answer_for_each_aim_and_many_are_a_table():
    results = load(GOLDEN)[0].filter(model="resnet50").collect()
    inference = results.filter(pl.col("pass") == "inference")

    def said(results: pl.DataFrame) -> str:
        return on_console(lambda console: conclude(Path("a run"), results, console), width=200)

    text = " ".join(said(inference).split())
    for aim, batch, option in (("lowest latency", 1, ""), ("highest throughput", 16, " --objective throughput")):
        assert f"resnet50, {aim}: Deploy compiled fp16, batch {batch}: " in text
        assert f"Export: python -m profiler recommend 'a run' --model resnet50{option} --export deploy/" in text
    assert "throughput" not in said(inference.filter(batch_size=16))
    assert said(results).count("→ ") == 4 and said(results).count("--export") == 1
    training = said(results.filter(pl.col("pass") == "training"))
    assert (
        "resnet50 training, lowest latency: Deploy eager fp32, eager fp16 or eager tf32, b" in training
        and "--export" not in training
    )
    assert "1.00×" not in training, "a base is no faster than itself"
    assert said(results.with_columns(status=pl.lit("failed"))) == ""


def test_training_has_no_usual_limit_and_a_run_may_have_no_machine():
    choice = ask(row("eager", **TRAINING, machine=None), pass_="training")
    assert choice.winner and not choice.limits
    assert shown(choice, pass_="training").startswith("net training: lowest latency\n")
