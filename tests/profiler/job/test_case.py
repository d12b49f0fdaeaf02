from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from exporters.source import ModelSource
from profiler.job.case import Case, CaseId, setting_words

PLAIN = CaseId(model="net", variant="ort-tuned", pass_="inference", precision="fp16", batch_size=16, replicate=2)
TEXTS = {
    "net/ort-tuned/inference/fp16/b16/r2": PLAIN,
    "net/ort-tuned/inference/fp16/b16/r2/optimizer=sgd/head=logits": replace(
        PLAIN, setting="optimizer=sgd/head=logits"
    ),
    "my net/b1 r2/training/native/b1/r0": CaseId(
        model="my net", variant="b1 r2", pass_="training", precision="native", batch_size=1, replicate=0
    ),
}


@pytest.mark.parametrize(("text", "case_id"), TEXTS.items())
def test_an_id_is_written_and_read_as_the_same_text(text: str, case_id: CaseId) -> None:
    assert str(case_id) == text
    assert CaseId.parse(text) == case_id


@pytest.mark.parametrize(
    "text", ["", "net", "net/ort/inference/fp16/16/0", "net/ort/inference/fp16/b1", "a//b/c/b1/r0"]
)
def test_a_text_that_is_no_id_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="no case's id"):
        CaseId.parse(text)


def test_a_family_is_an_id_without_batch_size() -> None:
    sgd = replace(PLAIN, setting="optimizer=sgd")
    assert sgd.family == "net/ort-tuned/inference/fp16/r2/optimizer=sgd"
    assert replace(sgd, batch_size=99).family == sgd.family
    assert replace(sgd, replicate=0).family != sgd.family


def test_an_id_is_a_file_name() -> None:
    assert replace(PLAIN, setting="optimizer=sgd").file_name == "net-ort-tuned-inference-fp16-b16-r2-optimizer=sgd"


def test_speed_ups_are_relative_to_eager_in_fp32_or_to_onnx_runtime_for_an_onnx_file() -> None:
    def is_base(variant: str, precision: str, onnx: Path | None = None) -> bool:
        source = ModelSource("net", onnx=onnx)
        return Case("net", "eager", variant, "inference", precision, 1, "cpu", 0, source).is_base

    assert is_base("eager", "fp32")
    found = [is_base("ort", precision, onnx=Path("net.onnx")) for precision in ("native", "fp32", "fp16")]
    assert found == [True, True, False]
    assert not is_base("ort", "native")
    assert not is_base("eager", "fp16")
    assert not is_base("ort", "fp32")


def test_a_setting_is_said_in_words() -> None:
    assert setting_words("optimizer=sgd/head=logits") == ["optimizer sgd", "head logits"]
    assert setting_words("") == []
