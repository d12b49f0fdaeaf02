"""Every engine of the CPU on one tiny network: the same outputs, gradients, and a proof of what ran."""

from __future__ import annotations

import gc
import os
import weakref
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from able_engines import if_able
from sessions import cache_beside, error, make_job, outputs

import engines
from engines.base import Job, Session, ignore
from engines.eager import EagerSession
from engines.options import EagerOptions
from engines.ort import run_options
from engines.ort_providers import PROVIDERS
from exporters.build_model import restore
from exporters.cache import Cache
from exporters.inputs import input_specs, seeded_inputs
from exporters.source import ModelError, ModelSource
from exporters.weights import cached_state

FACTORY = """
from torch import nn

def tiny():
    return nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 3), nn.ReLU(), nn.AvgPool2d(2), nn.Flatten(),
        nn.Linear(288, 10),
    )
"""
SOURCE = ModelSource("tiny", factory="tiny_for_sessions:tiny", input_shape=(3, 16, 16))
BATCH = 2
PARAMETERS = 3 * 8 * 9 + 8 + 8 + 8 + 8 * 8 * 9 + 8 + 288 * 10 + 10
STATISTICS = 8 + 8
COUNTER_BYTES = 8
"""Batch normalization counts its batches in an int64."""


COMPILED, OPENVINO = map(if_able, ("compiled", "openvino"))


cache = cache_beside("tiny_for_sessions", FACTORY)


@pytest.fixture
def open_session(cache: Cache) -> Callable[..., Session]:
    """`open_session("eager", "bf16", channels_last=True)`."""

    def start(engine: str, precision: str = "fp32", **more: Any) -> Session:
        return engines.open_session(engine, make_job(SOURCE, cache, engine, precision, batch=BATCH, **more))

    return start


@pytest.fixture(scope="module")
def expected(cache: Cache) -> Any:
    with torch.no_grad():
        model = restore(SOURCE, cached_state(SOURCE, cache))
        return model(torch.from_numpy(seeded_inputs(input_specs(SOURCE), BATCH)[0])).numpy()


@pytest.mark.parametrize("engine", ["eager", COMPILED, "ort", OPENVINO])
def test_every_engine_gives_the_modules_outputs_of_its_inputs_and_of_others(engine, open_session, cache, expected):
    session = open_session(engine)
    assert error(outputs(session), expected) < 1e-5
    assert error(outputs(session), expected) < 1e-5, "and again"
    (other,) = seeded_inputs(input_specs(SOURCE), BATCH, first=BATCH)
    with torch.no_grad():
        truth = restore(SOURCE, cached_state(SOURCE, cache))(torch.from_numpy(other)).numpy()
    assert error(truth, expected) > 1e-2
    session.feed([other])
    assert error(outputs(session), truth) < 1e-5
    assert session.proof().compute_types.keys() == {"float32"}


def test_a_graph_with_other_inputs_than_the_model_is_an_error():
    specs = input_specs(SOURCE)
    job = Job(SOURCE, "inference", "fp32", 1, "cpu", EagerOptions(), tuple(seeded_inputs(specs, 1)), specs=tuple(specs))
    assert len(job.named_inputs(["x"])) == 1
    with pytest.raises(ModelError, match="the graph takes x, mask, and the model x: give a graph with the same inputs"):
        job.named_inputs(["x", "mask"])


def test_channels_last_and_half_precision_give_the_same_outputs(open_session, expected):
    assert error(outputs(open_session("eager", channels_last=True)), expected) < 1e-5
    assert 1e-4 < error(outputs(open_session("eager", "bf16")), expected) < 5e-2


def test_channels_last_really_is(open_session):
    session: Any = open_session("eager", channels_last=True)
    seen: list[torch.Tensor] = []
    session.model[3].register_forward_hook(lambda module, inputs, output: seen.extend([*inputs, output]))
    session.run(lambda name: None)
    for tensor in (*session.inputs, session.model[0].weight, *seen):
        assert tensor.is_contiguous(memory_format=torch.channels_last)
        assert not tensor.is_contiguous()
    assert session.proof().details["channels_last"]
    plain: Any = open_session("eager")
    assert plain.inputs[0].is_contiguous()
    assert not plain.proof().details["channels_last"]


@pytest.mark.parametrize(("precision", "dtype"), [("fp32", "float32"), ("fp16", "float16"), ("bf16", "bfloat16")])
def test_proof_of_eager_counts_convolutions_and_products_by_type(open_session, precision, dtype):
    proof = open_session("eager", precision).proof()
    assert proof.compute_types == {dtype: 3}, "two convolutions and a product"
    assert proof.weight_types.keys() == {dtype}
    assert not proof.tf32
    assert not proof.cuda_graph
    assert proof.device == "cpu"


@pytest.mark.parametrize("engine", [COMPILED])
def test_compiled_counts_its_graphs_in_channels_last_and_half_precision(open_session, engine, expected):
    phases: list[str] = []
    session = open_session(engine, "bf16", phase=phases.append, channels_last=True)
    assert 1e-4 < error(outputs(session), expected) < 5e-2
    assert phases == ["build", "load"]
    proof = session.proof()
    assert proof.details["compiled_graphs"] >= 1
    assert proof.graph_breaks == 0
    assert proof.cuda_graph is False


def test_no_call_of_ort_asks_for_an_option_that_is_not_set(open_session):
    """Python's run_with_iobinding asks for `gpu_graph_id`; the exception that it catches took 20 µs of every call."""
    assert open_session("ort").run_options is None
    options = run_options(PROVIDERS["ort", "cuda"])
    assert options is not None
    assert options.get_run_config_entry("gpu_graph_id") == "0"


def test_proof_of_ort_has_every_nodes_provider(open_session):
    session = open_session("ort")
    session.run(lambda name: None)
    proof = session.proof()
    assert proof.providers.keys() == {"CPUExecutionProvider"}
    assert proof.compute_providers == {"CPUExecutionProvider": 3}
    assert proof.compute_types == {"float32": 3}
    assert proof.details["casts"] == 0
    assert 0.2 < proof.details["plain_run"] < 20, "what a plain run takes beside it"
    assert not proof.tf32


def test_ort_computes_an_fp16_graph_in_fp32_on_the_cpu(open_session):
    """Why it is unsupported: nothing but the optimized graph tells."""
    proof = open_session("ort", "fp16").proof()
    assert "float32" in proof.compute_types
    assert proof.details["casts"] > 0


def test_weights_of_a_torch_session_are_its_parameters_and_statistics(open_session):
    tensors = PARAMETERS + STATISTICS
    assert open_session("eager").memory().weights == 4 * tensors + COUNTER_BYTES
    assert open_session("eager", "bf16").memory().weights == 2 * tensors + COUNTER_BYTES


def test_a_weight_that_others_share_or_that_is_expanded_is_held_once(open_session):
    session = open_session("eager")
    before, shared, row = session.memory().weights, torch.zeros(1000), torch.zeros(1, 8)
    for name, tensor in {"whole": shared, "part": shared[:10], "row": row.expand(500, 8)}.items():
        session.model.register_buffer(name, tensor)
    session.model.register_buffer("sparse", torch.eye(3).to_sparse())
    assert session.memory().weights == before + 4 * (1000 + 8 + 3) + 8 * 2 * 3


@pytest.mark.parametrize(
    ("engine", "attribute", "pass_"),
    [
        ("eager", "model", "inference"),
        ("eager", "model", "training"),
        ("ort", "session", "inference"),
        pytest.param("openvino", "compiled", "inference", marks=OPENVINO.marks),
    ],
)
def test_closed_session_lets_its_model_go(engine, attribute, pass_, open_session):
    session: Any = open_session(engine, pass_=pass_)
    session.run(lambda name: None)
    model = weakref.ref(getattr(session, attribute))
    assert model() is not None
    session.close()
    gc.collect()
    assert model() is None, "whatever name holds it"


def test_the_cuda_arena_is_read_from_what_onnx_runtime_logs(capfd):
    from engines import ort

    line = "2026-11-21 05:17:10.9 [I:onnxruntime:Default, bfc_arena.cc:{}] {}\n"
    said = [
        (281, "Reserving memory in BFCArena for Cuda size: 4096"),
        (281, "Reserving memory in BFCArena for Cpu size: 16"),
        (335, "Extending BFCArena for Cuda. bin_num:0 (requested) num_bytes: 250 (actual) rounded_bytes:256"),
        (205, "Extended allocation by 256 bytes."),
        (208, "Total allocated bytes: 256"),
        (335, "Extending BFCArena for CudaPinned. bin_num:0 (requested) num_bytes: 250 (actual) rounded_bytes:512"),
        (205, "Extended allocation by 512 bytes."),
    ]
    start = ort._log_size()
    for where, what in said:
        os.write(2, line.format(where, what).encode())
    loaded = ort._log_size()
    os.write(2, line.format(335, "Extending BFCArena for Cuda. bin_num:9 (requested) num_bytes: 1 ").encode())
    os.write(2, line.format(205, "Extended allocation by 1024 bytes.").encode())
    assert ort._arena_bytes(start, loaded) == 4096 + 256
    assert ort._arena_bytes(loaded, ort._log_size()) == 1024
    assert ort._arena_bytes(loaded, loaded) is None
    capfd.readouterr()


MODULES = """
import torch
from torch import nn
from torch.utils._python_dispatch import _get_current_dispatch_mode

class First(nn.Module):
    def __init__(self, recurrent):
        super().__init__()
        self.recurrent = recurrent

    def forward(self, x):
        return self.recurrent(x)[0]

class Past(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.past = nn.Linear(2, 3), []

    def forward(self, x):
        self.past.append(self.layer(x))
        return torch.stack(self.past)

class Hiding(nn.Linear):
    def forward(self, x):
        if _get_current_dispatch_mode() is not None:
            raise RuntimeError("not now")
        return super().forward(x)

def make(kind):
    if kind in ("past", "hiding"):
        return Past() if kind == "past" else Hiding(2, 3)
    if kind in ("LSTM", "GRU"):
        return First(getattr(nn, kind)(2, 4))
    return getattr(nn, kind)(2, 4, 3)
"""


@pytest.mark.parametrize(
    ("kind", "item"),
    [(f"Conv{kind}{n}d", (2, *(5,) * n)) for kind in ("", "Transpose") for n in (1, 2, 3)]
    + [("LSTM", (3, 2)), ("GRU", (3, 2))],
)
def test_each_kind_of_convolution_is_proven(kind, item, tmp_path, monkeypatch):
    assert all_kinds(kind, item, 2, tmp_path, monkeypatch).proof().compute_types == {"float32": 1}


def test_a_state_that_fits_one_batch_is_unproven(tmp_path, monkeypatch):
    session = all_kinds("past", (2,), 3, tmp_path, monkeypatch)
    session.run(ignore)
    assert session.proof().compute_types == {}


def test_a_model_that_runs_only_unrecorded_is_not_merely_unproven(tmp_path, monkeypatch):
    session = all_kinds("hiding", (2,), 3, tmp_path, monkeypatch)
    with pytest.raises(RuntimeError, match="not while its operators are recorded"):
        session.proof()


def all_kinds(kind, item, batch, tmp_path, monkeypatch):
    (tmp_path / "all_kinds.py").write_text(MODULES)
    monkeypatch.syspath_prepend(tmp_path)
    source = ModelSource("net", factory="all_kinds:make", input_shape=item, options={"kind": kind})
    specs = tuple(input_specs(source))
    state = cached_state(source, Cache(tmp_path / "cache"))
    inputs = tuple(seeded_inputs(specs, batch))
    return EagerSession(Job(source, "inference", "fp32", batch, "cpu", EagerOptions(), inputs, state, specs=specs))


@pytest.mark.parametrize("engine", ["eager", COMPILED])
def test_renewed_inputs_are_what_calls_compute_with_and_fed_ones_come_back(engine, cache, expected):
    specs = tuple(input_specs(SOURCE))
    job = replace(make_job(SOURCE, cache, engine, "fp32", batch=BATCH), specs=specs)
    session: Any = engines.open_session(engine, job)
    own, found = seeded_inputs(specs, BATCH), list[Any]()
    for calls in (1, 1, 3):
        session.renew(calls)
        found += [outputs(session) for _ in range(calls)]
    session.move()
    found.append(outputs(session))
    assert len({array.tobytes() for array in found}) == len(found)
    assert min(error(array, expected) for array in found) > 1e-2
    session.feed(own)
    assert error(outputs(session), expected) < 1e-5
    assert not session.proof().recompilations
