"""What may win, what is said of it while a run goes on, and what only its error keeps from winning."""

from __future__ import annotations

from typing import Any

import handmade
import pytest

from profiler.errors import resuming
from profiler.recommend.answer import Request, cells_of, decide
from profiler.recommend.command import _why, comparison, headline, kept_out, settling
from profiler.results.cells import cells
from profiler.results.choice import Choice, Limit, choose, contenders
from profiler.run.model_job import usual_engines
from profiler.run.summary import so_far

ROWS = [handmade.row("eager", ms=10.0), handmade.row("ort", ms=2.0, load_s=1.0)]


@pytest.mark.parametrize(("others", "named"), [((), []), ((2.01, 2.5), ["a"]), ((2.002, 2.004, 2.006), ["a", "b"])])
def test_the_winner_and_up_to_two_within_the_best_ones_interval_may_win(others, named):
    more = [handmade.row(name, ms=ms, load_s=9.0) for name, ms in zip("abc", others, strict=False)]
    results, _ = handmade.run(*ROWS, *more)
    assert [cell["variant"] for (group,) in [contenders(cells(results))] for cell in group] == ["ort", *named]


def test_what_is_fastest_so_far_is_one_line():
    results, _ = handmade.run(*ROWS, handmade.row("eager", ms=40.0, batch_size=8))
    names, text = so_far(cells(results))
    assert names == ["ort fp32", "eager fp32"]
    assert text.startswith("so far: batch 1: ort fp32, 5.0× eager fp32")
    assert "batch 8: eager fp32, the base" in text


def chosen(error: float) -> Choice:
    results, _ = handmade.run(*ROWS, handmade.row("ort", "bf16", 1.0, rel_l2_error=error, rel_l2_error_high=error))
    return decide(cells_of(results), Request("net"))


def test_what_is_better_but_for_its_error_is_named_with_the_limit_that_admits_it():
    text = kept_out(chosen(1.8e-2))
    assert text.startswith("Better but for its error bound of 1.80e-2: ") and text.endswith(
        "; --max-error 2e-2 admits it"
    )
    assert kept_out(chosen(2e-3)) == "", "it wins"
    near = handmade.row("ort", "bf16", 1.98, rel_l2_error=0.1, rel_l2_error_high=0.1)
    text = kept_out(decide(cells_of(handmade.run(*ROWS, near)[0]), Request("net")))
    assert text == "", "its interval does not prove it better"


def scored(loss: float | None, *limits: Limit) -> Choice:
    """Choose where int8 is the fastest, with an error of 30 % and this loss of accuracy."""
    rows = [handmade.row("eager", ms=10.0), handmade.row("ort", "bf16", 1.0, rel_l2_error=0.3, rel_l2_error_high=0.3)]
    for row, lost in zip(rows, (0.0, loss), strict=True):
        low, high = (None, None) if lost is None else (lost - 0.005, lost + 0.005)
        ends = {"accuracy_loss": lost, "accuracy_loss_low": low, "accuracy_loss_high": high}
        row |= ends | {"accuracy": 0.9 - (lost or 0.0), "accuracy_items": 500}
    results, _ = handmade.run(*rows)
    return decide(cells_of(results), Request("net", limits=limits))


def test_a_configuration_that_surely_loses_accuracy_is_not_better_but_for_its_error():
    choice = scored(0.3)
    assert kept_out(choice) == ""
    assert _why(choice.losers[-1]) == (
        "error bound 3.0e-1, over the limit of 1.0e-2; accuracy loss 30.00 % (29.50 to 30.50)"
    )


def test_without_a_base_nothing_is_known_to_meet_a_limit_of_the_loss():
    results = handmade.frame([handmade.row("ort", accuracy=0.9)])
    choice = decide(cells_of(results), Request("net", limits=(Limit("accuracy_loss", 0.01),)))
    assert [reason.code for loser in choice.losers for reason in loser.reasons] == ["no-base"]
    assert (choice.status, choice.doubt and choice.doubt.code, choice.winner) == ("undecided", "no-base", None)


@pytest.mark.parametrize(
    ("loss", "limits", "end"),
    [
        (0.002, [], "accuracy loss 0.20 % (-0.30 to 0.70); --max-accuracy-loss 0.7% admits it"),
        (None, [], "accuracy 90.00 %; --max-error 3e-1 admits it"),
        # The given limit of the error stays, whatever that of the loss.
        (0.002, [0.05], "accuracy loss 0.20 % (-0.30 to 0.70); --max-error 3e-1 admits it"),
    ],
)
def test_the_option_that_admits_a_configuration_is_that_of_the_limit_it_misses(loss, limits, end):
    assert kept_out(scored(loss, *(Limit("error", limit) for limit in limits))).endswith(end)


BASE, BUSY = handmade.row("eager", ms=2.0), ["disturbed: other work"]
WAITING = handmade.row("ort", ms=None, status="waiting")
BEATEN = handmade.row("ort", "tf32", ms=None, status="skipped", beaten_by="compiled fp16")
UNKNOWN = handmade.row("ort", ms=1.0, latency_spread=None, latency_spread_free=None)
DISTURBED = [
    handmade.row("ort", ms=3.0, replicate=n, warnings=BUSY, latency_spread=None, latency_spread_free=None)
    for n in (1, 2)
]
AT = "model=net,pass=inference,batch_size=1,variant=ort,eager,precision=fp32"
OTHERS = f"MODEL --engine {','.join(usual_engines('cpu', lambda name: name != 'ort-dynamic'))}"
AGAIN = "--resume a/run --retry --wait-for-idle 10"
HERE = {"openvino_version": "2026.4", "device": "cpu", "model_kind": "onnx"}


def spread(variant: str, ms: float, reach: float) -> list[dict[str, Any]]:
    return [handmade.row(variant, ms=ms * factor, replicate=n) for n, factor in enumerate((1 / reach, 1.0, reach))]


def reaching(low: float, high: float) -> dict[str, Any]:
    rates = {"throughput_low": 1000 / high, "throughput_high": 1000 / low}
    return handmade.row("eager", latency_low_ms=low, latency_high_ms=high, **rates)


@pytest.mark.parametrize(
    ("rows", "objective", "status", "code", "command"),
    [
        ([BASE, handmade.row("ort", ms=1.0)], "latency", "deploy", None, ""),
        ([BASE, handmade.row("ort", ms=1.0), handmade.row("openvino", ms=1.0)], "latency", "tie", None, ""),
        ([handmade.row("eager", ms=None, status="waiting")], "latency", "undecided", "unmeasured", "--resume a/run"),
        ([BASE], "latency", "undecided", "only-base", "engines"),
        ([BASE | {"device": "cpu", "model_kind": "factory"}], "latency", "undecided", "only-base", OTHERS),
        ([BASE | {"warnings": BUSY}, handmade.row("ort", ms=None, status="waiting")], "latency", "undecided",
         "only-base", AGAIN),
        ([BASE, handmade.row("trt", ms=None, status="unsupported")], "memory", "undecided", "only-base", "engines"),
        ([BASE, handmade.row("ort", ms=None, status="waiting")], "latency", "undecided", "only-base", "--resume a/run"),
        ([BASE, handmade.row("ort", ms=None, status="crashed")], "latency", "deploy", None, ""),
        ([BASE, handmade.row("ort", ms=None, status="crashed"), handmade.row("trt", ms=None, status="waiting")],
         "latency", "undecided", "only-base", "--resume a/run"),
        # Its library is installed, and refused this model.
        ([BASE, handmade.row("openvino", ms=None, status="unsupported", **HERE)], "latency", "deploy", None, ""),
        ([BASE, handmade.row("openvino", "fp8", ms=None, status="unsupported", **HERE)], "latency", "undecided",
         "only-base", "engines"),
        ([BASE, handmade.row("ort", ms=1.0, rel_l2_error_high=0.5)], "latency", "deploy", None, ""),
        ([BASE | {"warnings": BUSY}, handmade.row("ort", ms=1.0, warnings=BUSY)], "latency", "undecided", "disturbed",
         AGAIN),
        ([BASE | {"warnings": BUSY}, handmade.row("ort", ms=1.0, warnings=BUSY)], "memory", "tie", None, ""),
        ([BASE | {"warnings": BUSY}, handmade.row("ort", ms=1.0)], "latency", "deploy", None, ""),
        # 906 times as fast (3 to 170,581), where 2.5 is true.
        ([*spread("eager", 900.0, 60.0), handmade.row("ort", ms=1.0)], "latency", "undecided", "busy",
         AGAIN),
        ([*spread("eager", 2.0, 1.15), *spread("ort", 1.9, 1.12)], "latency", "undecided", "open",
         f"--resume a/run --replicates 5 --only {AT}"),
        # Of both there are as many processes as the command would ask for.
        ([row | {"replicate": row["replicate"] + n} for n in (0, 3) for row in
          (*spread("eager", 2.0, 1.5), *spread("ort", 1.9, 1.5))], "latency", "undecided", "open",
         f"--resume a/run --replicates 12 --only {AT}"),
        ([*spread("eager", 9.0, 1.15), *spread("ort", 1.0, 1.12)], "latency", "deploy", None, ""),
        # A rival besides the base may be better by more than 25 %, or by less.
        ([*spread("eager", 9.0, 1.15), *spread("ort", 1.0, 1.15), *spread("openvino", 1.1, 1.2)], "latency",
         "undecided", "open", f"--resume a/run --replicates 5 --only {AT.replace('eager', 'openvino')}"),
        ([*spread("eager", 9.0, 1.15), *spread("ort", 1.0, 1.05), *spread("openvino", 1.1, 1.05)], "latency", "tie",
         None, ""),
        # An energy has no interval: it is the lowest by five margins, or it ties.
        *(([row | {"energy_mj_per_item": energy} for energy, variant in ((3.0, "ort"), (other, "eager"))
            for row in spread(variant, 1.0, 1.3)], "energy", status, None, "")
          for other, status in ((2.9, "tie"), (2.5, "deploy"))),
        # Other work leaves unknown how far the base is behind, or a rival.
        ([*spread("eager", 9.0, 1.5), *spread("ort", 1.0, 1.5)], "latency", "undecided", "busy", AGAIN),
        ([*spread("eager", 9.0, 1.15), *spread("ort", 1.0, 1.05), *spread("openvino", 1.1, 9.0)], "latency",
         "undecided", "busy", AGAIN),
        # The base leads by 1.42 over one process, and its own interval spans more.
        ([*spread("eager", 1.0, 1.3), UNKNOWN | {"latency_ms": 1.42}], "latency", "undecided", "open",
         f"--resume a/run --replicates 5 --only {AT.replace('ort,eager', 'eager,ort')}"),
        ([*spread("eager", 1.0, 1.3), UNKNOWN | {"latency_ms": 9.0}], "latency", "deploy", None, ""),
        # Only the worse end of the best's interval makes a rival better.
        *(([reaching(1.0, 1.5), UNKNOWN | {"latency_ms": 1.06, "throughput": 943.0}], aim, "undecided", "open",
           f"--resume a/run --replicates 5 --only {AT.replace('ort,eager', 'eager,ort')}")
          for aim in ("latency", "throughput")),
        *(([reaching(0.7, 1.0), UNKNOWN | {"latency_ms": 1.06, "throughput": 943.0}], aim, "tie", None, "")
          for aim in ("latency", "throughput")),
        # Without a base or a runner-up the best is measured alone.
        ([UNKNOWN, handmade.row("trt", ms=None)], "latency", "undecided", "one-process",
         f"--resume a/run --replicates 5 --only {AT.replace(',eager', '')}"),
        ([BASE, UNKNOWN], "latency", "undecided", "one-process", f"--resume a/run --replicates 5 --only {AT}"),
        ([BASE, UNKNOWN, *DISTURBED], "latency", "undecided", "one-process",
         f"--resume a/run --replicates 5 --only {AT} --retry --wait-for-idle 10"),
        # ort's TF32 was skipped because of an fp16 that its error excludes, or that --only leaves out.
        ([BASE, handmade.row("compiled", "fp16", ms=0.5, rel_l2_error_high=0.5), handmade.row("compiled", "tf32"),
          BEATEN], "latency", "undecided", "skipped", "--resume a/run --all"),
        ([BASE, handmade.row("ort", "fp16", ms=0.5), BEATEN], "latency", "undecided", "skipped",
         "--resume a/run --all"),
        ([BASE, handmade.row("compiled", "fp16", ms=0.5), BEATEN], "latency", "deploy", None, ""),
        ([BASE, handmade.row("compiled", "fp16", ms=0.5), handmade.row("a", "int8", ms=0.1, calibrated=False), BEATEN],
         "latency", "deploy", None, ""),
        ([BASE, handmade.row("compiled", "fp16", ms=0.5), BEATEN], "memory", "undecided", "skipped",
         "--resume a/run --all"),
        # Measuring more gives no price; without a GPU there is no energy.
        ([BASE, WAITING], "cost", "undecided", "unknown", "--resume a/run --machine usd_per_hour=PRICE"),
        ([BASE, BEATEN], "cost", "undecided", "unknown", "--resume a/run --machine usd_per_hour=PRICE"),
        ([BASE, WAITING], "energy", "undecided", "unknown", ""),
        # Another name for the base's program is no rival.
        ([BASE, handmade.row("eager-tuned", ms=None, status="skipped")], "latency", "undecided", "only-base",
         "engines"),
    ],
)  # fmt: skip
def test_nothing_is_recommended_without_ground(rows, objective, status, code, command):
    rows = [{"peak_memory_mib": 9.0, "load_s": 1.0} | row for row in rows]
    choice = decide(cells_of(handmade.frame(rows)), Request("net", objective=objective))
    assert (choice.status, choice.doubt and choice.doubt.code) == (status, code)
    assert (choice.winner is None) == (code is not None)
    assert (choice.best is None) == (code in ("unmeasured", "unknown"))
    assert (settling(choice, "a/run") or "").removeprefix("python -m profiler ") == command
    assert headline(choice).startswith("No recommendation yet: " if code else f"Deploy {choice.names}, batch 1: ")


def test_a_base_alone_in_training_is_measured_beside_what_trains():
    base = BASE | {"device": "cpu", "model_kind": "factory", "pass": "training"}
    command = settling(choose(cells(handmade.frame([base]))), "a/run") or ""
    assert command.endswith(" --pass training") and "eager-tuned" in command and "ort" not in command


UNCHECKED = {"rel_l2_error": None, "rel_l2_error_high": None}
CLOSE = {"accuracy": 0.9, "accuracy_items": 100} | dict.fromkeys(("accuracy_loss", "accuracy_loss_low"), 0.0)


@pytest.mark.parametrize(
    ("rows", "limit", "status", "code"),
    [
        ([BASE], Limit("latency_ms", 1.0), "nothing", None),
        # A case that the run did not reach may meet the limit, or be the answer at the smallest batch.
        ([BASE, WAITING], Limit("latency_ms", 1.0), "undecided", "unmeasured"),
        ([WAITING, BASE | {"batch_size": 16}, handmade.row("ort", batch_size=16)], None, "undecided", "unmeasured"),
        # More samples may show that a percentile meets it, whatever others miss.
        ([BASE, handmade.row("ort", samples=40)], Limit("latency_p99_ms", 1.5), "undecided", "unknown"),
        ([BASE | {"latency_p99_ms": 2.1}, handmade.row("ort", samples=40)], Limit("latency_p99_ms", 1.5), "undecided",
         "unknown"),
        ([BASE, handmade.row("ort", samples=40, **UNCHECKED)], Limit("latency_p99_ms", 1.5), "nothing", None),
        ([BASE | UNCHECKED], None, "nothing", None),
        (spread("ort", 3.0, 60.0), Limit("latency_ms", 1.0), "undecided", "over"),
        ([BASE | CLOSE | {"accuracy_loss_high": 0.04}], Limit("accuracy_loss", 0.01), "undecided", "too-wide"),
        ([BASE | {"accuracy": 0.9}], Limit("accuracy_loss", 0.01), "undecided", "no-base"),
    ],
)  # fmt: skip
def test_what_is_not_known_to_meet_a_limit_is_undecided_if_more_figures_may_tell(rows, limit, status, code):
    choice = decide(cells_of(handmade.frame(rows)), Request("net", limits=(limit,) if limit else ()))
    assert (choice.status, choice.doubt and choice.doubt.code) == (status, code)
    assert settling(choice, "a/run") == (
        None if code in (None, "unknown", "too-wide", "no-base")
        else "python -m profiler --resume a/run" + " --retry --wait-for-idle 10" * (code == "over")
    )  # fmt: skip
    assert headline(choice).startswith("No recommendation yet: " if code == "unmeasured" else "Nothing ")


@pytest.mark.parametrize(
    ("reach", "names", "code", "batches"),
    [(1.02, ["openvino"], None, ""), (1.1, ["openvino"], "open", "1,8"), (60.0, [], "busy", "")],
)
def test_a_rival_at_another_batch_ties_or_leaves_the_choice_open(reach, names, code, batches):
    further = [
        {**row, "batch_size": 8, "throughput": 8e3 / row["latency_ms"]} for row in spread("openvino", 8.2, reach)
    ]
    rows = [*spread("eager", 9.0, 1.1), *spread("ort", 1.0, 1.02), *further]
    found = decide(cells_of(handmade.frame(rows)), Request("net", objective="throughput"))
    assert found.best and [cell["variant"] for cell in found.tied] == names
    assert (found.doubt and found.doubt.code) == code
    assert f",batch_size={batches},variant=ort,openvino," in (settling(found, "a/run") or "") or not batches
    assert found.runner_up and found.runner_up["variant"] == "eager", "it is of the same batch"


@pytest.mark.parametrize(("machine", "code"), [("host", "open"), ("other", None)])
def test_a_rival_on_another_machine_leaves_nothing_open(machine, code):
    rivals = [{**row, "machine": machine} for row in spread("openvino", 1.03, 1.1)]
    rows = [{**row, "machine": "host"} for row in spread("ort", 1.0, 1.02)]
    found = decide(cells_of(handmade.frame([*rows, *rivals])), Request("net"))
    assert (found.best and found.best["variant"], found.doubt and found.doubt.code) == ("ort", code)


def test_a_base_at_another_batch_hides_no_factor():
    further = [{**row, "batch_size": 8} for row in spread("eager", 8e3, 5.0)]
    rows = [*spread("eager", 9.0, 1.1), *spread("ort", 1.0, 1.02), *further]
    found = decide(cells_of(handmade.frame(rows)), Request("net", objective="throughput"))
    assert (found.best and found.best["variant"], found.doubt) == ("ort", None)


def test_the_runner_up_is_of_another_batch_where_its_own_has_none():
    rows = [
        {**row, "batch_size": batch, "throughput": rate / row["latency_ms"]}
        for batch, rate in ((1, 1e3), (8, 9e3))
        for row in spread("ort", 1.0, 1.02)
    ]
    found = decide(cells_of(handmade.frame(rows)), Request("net", objective="throughput"))
    assert found.best and found.runner_up and (found.best["batch_size"], found.runner_up["batch_size"]) == (8, 1)
    assert comparison(found).startswith("Runner-up: ")


def test_a_candidate_beside_others_that_were_measured_is_not_the_only_one_that_could_be():
    rows = [handmade.row("ort", ms=1.0), handmade.row("openvino", ms=0.5, **UNCHECKED)]
    met = comparison(decide(cells_of(handmade.frame(rows)), Request("net")))
    could = comparison(decide(cells_of(handmade.frame([rows[0], handmade.row("trt", ms=None)])), Request("net")))
    assert met.endswith("meets the limits") and could.endswith("could be measured")


@pytest.mark.parametrize(
    ("rows", "names"),
    [
        ([*spread("ort", 1.0, 1.02), *spread("openvino", 1.3, 1.3)], ["ort", "openvino"]),
        ([*spread("ort", 1.0, 1.02), *spread("openvino", 1.3, 1.02)], ["ort"]),
        ([UNKNOWN, *spread("openvino", 1.05, 1.3)], ["ort", "openvino"]),
    ],
)
def test_a_rival_that_leaves_the_choice_open_may_win(rows, names):
    ((*group,),) = contenders(cells(handmade.frame([*spread("eager", 9.0, 1.1), *rows])))
    assert [cell["variant"] for cell in group] == names


@pytest.mark.parametrize(
    ("facts", "option"),
    [('{"threads": 2}', " --threads 2"), *((text, "") for text in ('{"threads": "2; rm"}', '{"threads": 1e999}', "["))],
)
def test_a_command_that_resumes_a_run_has_its_number_of_threads(facts, option, tmp_path):
    (tmp_path / "environment.json").write_text(facts)
    assert resuming(tmp_path).endswith(f"--resume {tmp_path}{option}")


def test_without_a_base_an_open_leader_is_narrowed_beside_its_rival():
    others = [row | {"is_base": False} for row in (*spread("openvino", 1.0, 1.3), UNKNOWN | {"latency_ms": 1.42})]
    choice = decide(cells_of(handmade.frame(others)), Request("net"))
    assert choice.doubt and choice.doubt.code == "open"
    assert (settling(choice, "a/run") or "").endswith("variant=openvino,ort,precision=fp32")
    assert (choice.doubt.text, choice.doubt.rival, choice.doubt.value) == ("openvino fp32", "ort fp32", 1.42)


def test_an_open_choice_is_narrowed_at_its_own_batch_and_shape():
    at_16 = {"batch_size": 16, "setting": "sequence=32", "shape": "sequence=32", "device": "cpu"}
    rows = [
        row | at_16 | {"throughput": 16e3 / row["latency_ms"]}
        for row in (*spread("eager", 2.0, 1.15), *spread("ort", 1.9, 1.12))
    ]
    other = BASE | at_16 | {"batch_size": 1}
    choice = decide(
        cells_of(handmade.frame([*rows, other])), Request("net", setting="sequence=32", objective="throughput")
    )
    assert choice.doubt and choice.doubt.code == "open"
    conditions = "batch_size=16,shape=sequence=32,variant=ort,eager,precision=fp32"
    assert (
        settling(choice, "a/run")
        == f"python -m profiler --resume a/run --replicates 5 --only model=net,pass=inference,{conditions}"
    )


@pytest.mark.parametrize(
    ("others", "names"),
    [((), "ort fp32"), ("a", "ort fp32 or a fp32"), ("abc", "ort fp32, a fp32, b fp32 or 1 more")],
)
def test_a_tie_is_named_as_one(others, names):
    rows = [*ROWS, *(handmade.row(name, ms=2.0 + n / 1e3, load_s=9.0) for n, name in enumerate(others))]
    assert decide(cells_of(handmade.run(*rows)[0]), Request("net")).names == names


@pytest.mark.parametrize(("load_s", "winner"), [(0.2, "fp32"), (1.0, "fp32"), (1.6, "tf32")])
def test_a_tie_goes_to_the_soonest_start_and_within_a_second_to_the_most_exact_precision(load_s, winner):
    rows = [handmade.row("ort", "bf16", 2.0, load_s=0.3), handmade.row("ort", "tf32", 2.0, load_s=0.5)]
    results, _ = handmade.run(handmade.row("eager", ms=10.0), *rows, handmade.row("ort", ms=2.001, load_s=load_s))
    choice = choose(cells(results))
    assert choice.winner and choice.winner["precision"] == winner
    assert len(choice.tied) == 2


@pytest.mark.parametrize(
    ("loss", "arm", "code"),
    [(0.0, 0.004, None), (0.0, 0.01, "too-wide"), (0.006, 1e-4, "over"), (-0.1, 0.2, "too-wide")],
)
def test_the_end_of_a_losss_interval_meets_the_limit(loss, arm, code):
    ends = {"accuracy_loss_low": loss - arm, "accuracy_loss_high": loss + arm}
    reason = Limit("accuracy_loss", 0.005).missed({"accuracy_loss": loss, **ends, "accuracy_items": 300})
    assert (reason and reason.code) == code
