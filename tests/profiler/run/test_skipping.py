"""Which cases a run skips: a second name for a program, and TF32 that cannot win."""

from __future__ import annotations

from dataclasses import replace

import handmade
import polars as pl
import pytest

from exporters.source import ModelSource
from profiler import load
from profiler.job.case import Budget, Case
from profiler.results.cells import cells
from profiler.run.search import beaten, same_programs
from profiler.worker.task import Prepared, Task

EAGER = Case("net", "eager", "eager", "inference", "fp32", 1, "cuda", 0, ModelSource("net"))
TUNED = replace(EAGER, variant="eager-tuned", options={"channels_last": True})
COMPILED = replace(EAGER, engine="compiled", variant="compiled", precision="tf32")
ORT = replace(EAGER, engine="ort", variant="ort", precision="tf32")


def tasks(*cases: Case, has_images: bool = False) -> list[Task]:
    return [Task(case, Prepared(has_images=has_images), Budget()) for case in cases]


def test_nhwc_of_a_model_without_images_is_its_plain_program():
    plan = [EAGER, TUNED]
    (found,) = same_programs(tasks(*plan), plan)
    assert (found.case_id, found.status, found.beaten_by) == (TUNED.id, "skipped", None)
    assert "the same program as eager" in str(found.reason)
    assert not same_programs(tasks(*plan, has_images=True), plan)
    with_graph = replace(TUNED, options={"channels_last": True, "cuda_graph": True})
    assert not same_programs(tasks(EAGER, with_graph), [EAGER, with_graph]), "a CUDA graph is another program"
    assert not same_programs(tasks(TUNED), [replace(EAGER, unsupported="no"), TUNED])


def measured(ms: float = 1.0, precision: str = "fp16", **best: object) -> pl.DataFrame:
    bases = [handmade.row("eager", ms=each, replicate=n, device="cuda") for n, each in enumerate((3.9, 4.0, 4.1))]
    row = handmade.row("compiled", precision, ms=ms, device="cuda", **{"rel_l2_error_high": 1e-3} | best)
    return cells(handmade.frame([*bases, row]))


@pytest.mark.parametrize(
    ("so_far", "skips"),
    [
        (measured(), True),
        (measured(ms=3.0), False),
        (measured(rel_l2_error_high=2e-2), False),
        (measured(precision="fp32"), False),
        (measured(warnings=["disturbed: by others"]), False),
        (measured(accuracy=0.9, accuracy_items=100), False),
    ],
)
def test_tf32_is_skipped_where_fewer_bits_win_clearly(so_far, skips):
    training = replace(ORT, pass_="training", batch_size=1)
    plan = [COMPILED, ORT, replace(ORT, batch_size=16), replace(ORT, precision="fp32"), training]
    found = beaten(tasks(*plan), plan, so_far)
    assert [result.case_id for result in found] == ([ORT.id] if skips else [])
    assert {result.beaten_by for result in found} <= {"compiled fp16"}


def test_without_a_base_nothing_is_clear():
    rows = [handmade.row("eager", ms=None, status="oom"), handmade.row("compiled", "fp16", ms=0.1)]
    assert not beaten(tasks(COMPILED, ORT), [COMPILED, ORT], cells(handmade.frame(rows)))


def test_tf32_is_measured_if_the_winner_has_none():
    assert not beaten(tasks(ORT), [ORT, replace(COMPILED, unsupported="it has no tf32")], measured())


@pytest.mark.slow
def test_a_run_journals_what_it_skips_and_all_measures_it(tmp_path, profiler):
    (tmp_path / "net.py").write_text("from torch import nn\n\n\ndef make():\n    return nn.Linear(8, 8)\n")
    given = ["net:make", "--input", "8", "--batch", "1", "--precision", "fp32", "--engine", "eager,eager-tuned"]
    done = profiler(*given, "--device", "cpu", "--seconds", "0.05", "--no-report", cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "(--all measures them)" in done.stdout
    (run,) = tmp_path.glob("results/*")

    def statuses() -> dict[str, str]:
        return dict(load(str(run))[0].filter(replicate=0).select("variant", "status").collect().iter_rows())

    assert statuses() == {"eager": "ok", "eager-tuned": "skipped"}
    again = profiler("--resume", str(run), "--no-report", cwd=tmp_path)
    assert "0 of" in again.stdout and statuses()["eager-tuned"] == "skipped", again.stdout + again.stderr
    profiler("--resume", str(run), "--all", "--no-report", cwd=tmp_path)
    assert set(statuses().values()) == {"ok"}
