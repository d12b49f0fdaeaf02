"""Modules are called with named inputs, and what they return is named."""

from __future__ import annotations

from collections import OrderedDict, UserDict, namedtuple
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from multiprocessing.pool import ThreadPool
from typing import Any

import numpy as np
import pytest
import torch
from does import Does
from torch import Tensor, nn

from exporters.calls import (
    call,
    chosen,
    computes_when_read,
    content,
    dense,
    inner_tensors,
    named_outputs,
    prepare_to_train,
    trained_output,
)
from exporters.inputs import TensorSpec, input_specs, seeded_inputs
from exporters.onnx_export import write_onnx
from exporters.source import ModelError, ModelSource


@dataclass
class Output:
    ids: Tensor
    logits: Tensor
    cache: object = None


class Tagged(nn.Module):
    """Embeds ids under a mask."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(10, 4)
        self.head = nn.Linear(4, 3)

    def forward(self, ids: Tensor, *, scale: Any, mask: Tensor | None = None) -> Output:
        hidden = self.table(ids) * scale[:, None, None]
        hidden = hidden if mask is None else hidden * mask[..., None]
        logits = self.head(hidden.sum(1))
        return Output(logits.argmax(1), logits, cache=object())


SPECS = (
    TensorSpec("ids", ("batch", 5), "int64", "ids", (0, 10)),
    TensorSpec("scale", ("batch",), "float32", "scale"),
    TensorSpec("mask", ("batch", 5), "int64", "mask", is_mask=True),
)


def test_outputs_are_named_by_their_places():
    a, b, pair = torch.ones(1), torch.zeros(2), namedtuple("pair", "left right")
    assert list(named_outputs(a)) == ["y"]
    assert list(named_outputs((a, [b, None, 3]))) == ["y0", "y1.0"]
    assert list(named_outputs({"logits": a, "none": None, "more": (b, a)})) == ["logits", "more.0", "more.1"]
    assert list(named_outputs([{"boxes": a}, {"boxes": b}])) == ["y0.boxes", "y1.boxes"]
    assert list(named_outputs(pair(a, b))) == ["left", "right"]
    assert list(named_outputs(Output(a, b, object()))) == ["ids", "logits"]
    assert named_outputs("text") == {}


def test_outputs_are_chosen_by_name():
    names = ["logits", "states.0", "states.1"]
    assert chosen([], names) == [0, 1, 2]
    assert chosen(["states", "logits"], names) == [1, 2, 0]
    with pytest.raises(ModelError, match="no output 'logit'; did you mean 'logits'"):
        chosen(["logit"], names)


def test_training_starts_from_the_first_wanted_output_of_floats():
    output = Output(torch.ones(2, dtype=torch.int64), torch.ones(2, 3))
    with pytest.raises(ModelError, match=r"from output 'ids', which is torch.int64: write `outputs: \[logits\]`"):
        trained_output(output)
    assert trained_output(output, ("logits",)) is output.logits
    with pytest.raises(ModelError, match="returned str without a tensor"):
        trained_output("text")


def test_an_exported_module_cannot_train():
    model = torch.export.export(nn.Linear(2, 2), (torch.ones(1, 2),)).module()
    with pytest.raises(ModelError, match="give the module it was exported from"):
        prepare_to_train(model, dropout=False)


class FreesItself(nn.Linear):
    def train(self, mode=True):
        return super().train(mode).requires_grad_(mode)


def test_parameters_that_the_training_mode_frees_train_unless_the_job_freezes_them():
    model = FreesItself(2, 2).requires_grad_(False)
    prepare_to_train(model, dropout=False, frozen=["bias"])
    assert [name for name, parameter in model.named_parameters() if parameter.requires_grad] == ["weight"]


@pytest.mark.parametrize("batch", [None, 3])
def test_an_export_takes_and_gives_the_models_names(tmp_path, batch):
    import onnxruntime

    model, specs = Tagged().eval(), SPECS
    write_onnx(model, specs, "fp32", tmp_path / "m.onnx", batch)
    session = onnxruntime.InferenceSession(tmp_path / "m.onnx", providers=["CPUExecutionProvider"])
    assert [node.name for node in session.get_inputs()] == ["ids", "scale", "mask"]
    assert [node.name for node in session.get_outputs()] == ["output.ids", "logits"]  # `ids` is an input's name.
    assert session.get_inputs()[0].shape == [batch or "batch", 5]
    arrays = seeded_inputs(specs, 3)
    found = session.run(None, {spec.name: array for spec, array in zip(specs, arrays, strict=True)})
    with torch.no_grad():
        expected = named_outputs(call(model, specs, [torch.from_numpy(array) for array in arrays]))
    np.testing.assert_allclose(found[1], expected["logits"].numpy(), rtol=1e-5, atol=1e-6)
    assert "table.weight" in model.state_dict()
    assert "forward" not in vars(model)


@pytest.mark.parametrize(("taken", "given"), [("x", "relu"), ("relu", "y"), ("relu", "relu")])
def test_an_input_or_output_may_have_the_name_of_an_inner_value(tmp_path, taken, given):
    import onnxruntime

    specs = [TensorSpec(taken, ("batch", 3), "float32", 0)]
    write_onnx(Does(lambda self, x: {given: x.relu() + 1}).eval(), specs, "fp32", tmp_path / "m.onnx")
    session = onnxruntime.InferenceSession(tmp_path / "m.onnx", providers=["CPUExecutionProvider"])
    (x,) = seeded_inputs(specs, 2)
    (output,) = session.run(None, {taken: x})
    assert session.get_outputs()[0].name == (given if given != taken else f"output.{given}")
    np.testing.assert_array_equal(output, np.maximum(x, 0) + 1)


class Biased(nn.Module):
    """Attention with a learned bias by distance, as T5 and Swin have it."""

    def __init__(self) -> None:
        super().__init__()
        self.project = nn.Linear(8, 24)
        self.bias = nn.Embedding(5, 2)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (part.view(*x.shape[:2], 2, 4).transpose(1, 2) for part in self.project(x).chunk(3, -1))
        places = torch.arange(5, device=x.device)
        bias = self.bias((places[:, None] - places).abs()).permute(2, 0, 1).expand(x.shape[0], -1, -1, -1)
        mixed = nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=bias)
        return mixed.transpose(1, 2).contiguous().view(*x.shape)


def test_attention_with_a_bias_is_exported(tmp_path):
    import onnxruntime

    model, specs = Biased().eval(), input_specs(ModelSource("biased", factory="a:b", input_shape=(5, 8)))
    write_onnx(model, specs, "fp32", tmp_path / "m.onnx")
    session = onnxruntime.InferenceSession(tmp_path / "m.onnx", providers=["CPUExecutionProvider"])
    (x,) = seeded_inputs(specs, 3)
    with torch.no_grad():
        expected = model(torch.from_numpy(x)).numpy()
    np.testing.assert_allclose(session.run(None, {"x": x})[0], expected, rtol=1e-5, atol=1e-6)


class Own(Tensor):
    """A class of tensors that may compute when it is read."""


def in_thread(kind: str) -> Any:
    if kind == "torch":
        done: Any = torch.futures.Future()
        done.set_result(torch.ones(2))
        return done
    if kind == "pool":
        return ThreadPool(1).apply_async(torch.ones, (2,))
    future: Future[Tensor] = ThreadPoolExecutor(1).submit(torch.ones, 2)
    return future


@pytest.mark.parametrize("kind", ["torch", "pool", "concurrent"])
def test_futures_among_the_outputs_are_awaited(kind):
    for result in (in_thread(kind), (in_thread(kind), None), Output(torch.ones(2), in_thread(kind))):
        assert computes_when_read(result)
        assert all(torch.equal(tensor, torch.ones(2)) for tensor in named_outputs(result).values())


class Later(list[Tensor]):
    """Computes its tensors while they are read."""

    def __iter__(self) -> Iterator[Tensor]:
        return (tensor + 1 for tensor in super().__iter__())


@pytest.mark.parametrize(
    ("result", "computes"),
    [
        (torch.ones(2), False),
        (nn.Parameter(torch.ones(2)), False),
        ((torch.ones(2), [torch.ones(2), None, 3, object()]), False),
        (torch.ones(2, 3).max(0), False),
        (OrderedDict(a={"b": torch.ones(2)}), False),
        (Output(torch.ones(2), torch.ones(2)), False),
        (torch.ones(2).as_subclass(Own), True),
        ({"a": [torch.ones(2).as_subclass(Own)]}, True),
        (UserDict(a=torch.ones(2)), True),
        (Later([torch.ones(2)]), True),
    ],
)
def test_results_of_the_models_own_classes_may_compute_when_they_are_read(result, computes):
    assert computes_when_read(result) == computes


@pytest.mark.parametrize(
    ("tensor", "expected"),
    [
        (torch.eye(2).to_sparse(), torch.eye(2)),
        (torch.tensor([1 + 2j]).conj(), torch.tensor([1 - 2j])),
        (torch.tensor([1 + 2j]).conj().imag, torch.tensor([-2.0])),
        (torch.quantize_per_tensor(torch.ones(2), 0.5, 0, torch.quint8), torch.ones(2)),
        (torch.nested.nested_tensor([torch.ones(2), torch.ones(1)]), torch.tensor([[1.0, 1.0], [1.0, 0.0]])),
    ],
)
def test_numpy_reads_dense_tensors(tensor, expected):
    assert dense(tensor).numpy().tolist() == expected.tolist()


def test_the_content_of_a_wrapper_is_that_of_the_tensors_that_it_wraps():
    pytest.importorskip("torchao")
    from torchao.quantization import Int8WeightOnlyConfig, quantize_

    model = nn.Linear(64, 32)
    quantize_(model, Int8WeightOnlyConfig())
    inner = list(inner_tensors([model.weight]))
    assert len(inner) > 1 and bytes(content(model.weight)) == b"".join(map(bytes, map(content, inner)))
