"""What a person reads of single layers and of batch sweeps: one table a layer, one a family, and no flood of groups."""

from __future__ import annotations

import io
from typing import Any

import polars as pl
import pytest
from rich.console import Console

from profiler.results.columns import RESULTS, SAMPLES
from profiler.results.reading import with_all_columns
from profiler.results.speedups import summary
from profiler.run.summary import print_results


def case(model: str, variant: str = "eager", ms: float | None = 3.0, **more: Any) -> dict[str, Any]:
    found: dict[str, Any] = {
        "run_id": "run", "model": model, "engine": variant, "variant": variant, "precision": "fp32",
        "pass": "training", "batch_size": 16, "replicate": 0, "machine": "here", "device": "cuda",
        "model_kind": "canonical", "status": "ok" if ms else "oom", "reason": None if ms else "CUDA out of memory",
        "warnings": [], "clock": "event", "latency_ms": ms, "throughput": 16_000 / ms if ms else None,
    }  # fmt: skip
    found |= more
    found["case_id"] = "/".join(str(found[k]) for k in ("model", "variant", "pass", "batch_size", "replicate"))
    return found


def layer(name: str, variant: str, *parts: float, **more: Any) -> dict[str, Any]:
    times = dict(zip(("forward_ms", "grad_input_ms", "grad_weight_ms"), parts, strict=True))
    return case(name, variant, sum(parts), model_kind="layer", flops_per_item=3e9, **times, **more)


def swept(batch: int, ms: float | None, **more: Any) -> dict[str, Any]:
    rate = 1000 * batch / ms if ms else None
    return case("vgg16", ms=ms, batch_size=batch, extra="head=logits/sweep=batch", throughput=rate, **more)


def printed(*cases: dict[str, Any], width: int = 120, **how: Any) -> str:
    results = with_all_columns(pl.DataFrame(list(cases), schema=RESULTS))
    console = Console(file=io.StringIO(), width=width)
    print_results(console, results, summary(results, pl.DataFrame(schema=SAMPLES)), **how)
    return console.file.getvalue()  # type: ignore[attr-defined, no-any-return]


def lines(text: str, start: str) -> list[list[str]]:
    return [line.split() for line in text.splitlines() if line.strip().startswith(start)]


LAYERS = [layer("L1", "eager", 1.0, 2.0, 4.0), layer("L1", "tuned", 1.5, 1.0, 1.0), layer("L2", "eager", 1.0, 1.0, 1.0)]


def test_a_layer_has_one_table_for_all_its_passes() -> None:
    alone = case("L1", "ort", 0.5, model_kind="layer", **{"pass": "inference"})
    text = printed(*LAYERS, alone)
    assert [" ".join(words) for words in lines(text, "L")] == ["L1, batch 16", "L2, batch 16"]
    # 16 items of 3 GFLOP, a third of them in the forward pass.
    assert lines(text, "tuned")[0][2:] == ["1.500", "1.00", "1.00", "3.50", "10.7", "13.71"]
    assert lines(text, "ort")[0][2:] == ["0.500"]
    assert text.index("tuned") < text.index("eager"), "the fastest first"
    assert "Speed-ups" not in text, "there are none"


def test_of_several_variants_the_best_of_each_pass_is_a_line() -> None:
    text = printed(*LAYERS)
    (best,) = lines(text, "best of")
    assert best[-4:] == ["1.00", "1.00", "1.00", "3.00"], "of L1; L2 has one variant"


@pytest.mark.parametrize("width", [120, 80])
def test_a_family_of_a_sweep_is_one_table(width: int) -> None:
    text = printed(swept(16, 16.0), swept(32, 20.0), swept(64, None), width=width)
    assert max(map(len, text.splitlines())) <= width
    assert "vgg16, training, eager fp32, head logits" in text
    assert text.count("item ms") == 1
    assert "batch 16" not in text, "no group of its own"
    (first,) = lines(text, "16 ")
    assert first == ["16", "16.0", "1.000", "1,000", "62"]
    assert lines(text, "64 ")[0] == ["64", "out", "of", "memory"]
    assert "vgg16 training, eager fp32, head logits: " in text, "what the curve says"


def test_groups_whose_tables_stand_elsewhere_keep_their_sentence() -> None:
    pair = [case("vgg16", ms=6.0), case("vgg16", "compiled", ms=2.0)]
    told = printed(*pair, elsewhere=lambda group: group["model"] == "vgg16")
    assert "vgg16, training, batch 16\n" not in told
    assert "vgg16 training, batch 16: compiled fp32 is 3.0× fp32 eager" in told
    assert "vgg16, training, batch 16" in printed(*pair)


def test_layers_and_sweeps_stand_once_where_they_stand_elsewhere() -> None:
    text = printed(*LAYERS, swept(16, 16.0), swept(32, 20.0), elsewhere=lambda group: True)
    assert "batch 16" not in text
    assert "item ms" not in text


def test_an_optimizers_step_and_a_price_are_columns() -> None:
    text = printed(
        case("vgg16", step_ms=0.75, usd_per_million_items=1.25, extra="optimizer=sgd"),
        case("vgg16", "compiled", step_ms=0.25, usd_per_million_items=0.75, extra="optimizer=sgd"),
    )
    assert "vgg16, training, batch 16, optimizer sgd" in text
    assert {"0.750", "1.250"} <= set(lines(text, "eager")[0])
