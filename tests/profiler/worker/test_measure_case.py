"""Cases prepared and measured in this process by the real engines, on the CPU: what each row must and must not hold."""

from __future__ import annotations

import itertools
import re
import sys
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from matrix_product import write_text
from torch._dynamo.utils import counters

from engines import requirements
from engines.base import Memory, Unsupported
from engines.catalog import ENGINES
from engines.eager import EagerSession
from engines.options import Training
from engines.ort import OrtSession
from engines.requirements import missing
from exporters.build_model import restore
from exporters.flops import Cost
from exporters.gradients import GradientReference, Gradients, Step
from exporters.inputs import TensorSpec, seeded_inputs
from exporters.source import ModelError, ModelSource
from profiler.job.case import Budget, Case
from profiler.processes.holders import Holders
from profiler.processes.messages import Outcome
from profiler.results.result import Result
from profiler.run.prepare import prepare
from profiler.stats.intervals import upper_bound
from profiler.worker import measure_case as measuring
from profiler.worker import prepare_model as preparing
from profiler.worker import sampling
from profiler.worker.measure_case import measure_case, random_heap
from profiler.worker.memory import DeviceMeter, declared_parts
from profiler.worker.parity import Outputs
from profiler.worker.prepare_model import (
    affordable_runs,
    prepare_export,
    prepare_gradients,
    prepare_model,
    prepare_reference,
)
from profiler.worker.task import Prepared, Task, static_graph

pytestmark = pytest.mark.slow

FACTORIES = '''
import contextlib
import dataclasses
from pathlib import Path

import torch
from does import Does
from torch import nn
from torch.utils.checkpoint import checkpoint


def attention():
    def forward(self, x):
        q, k = self.project(x).chunk(2, dim=-1)
        return (q @ k.transpose(1, 2)).softmax(-1).mean(1)

    return Does(forward, project=nn.Linear(8, 16))


def pooling():
    return nn.AvgPool1d(2)


def product(forward):
    """A product, and what becomes of it; with the seed that the test's own copy has."""
    torch.manual_seed(0)
    return Does(forward, last=nn.Linear(8, 6))


def masked():
    """Logits of which a fixed half, and one that depends on the input, are left out."""
    def forward(self, x):
        logits = torch.where(torch.arange(6) % 2 == 0, self.last(x), float("-inf"))
        return logits, logits.argmax(-1)

    return product(forward)


def deaf():
    """Outputs of about 1, of which the input decides a thousandth."""
    return product(lambda self, x: self.last(x) * 0.001 + 1)


def scaled():
    """Each item's outputs are as small as its first value, and their rounding is that of one."""
    return product(lambda self, x: (self.last(x) * x[:, :1, :1].abs() + 1 - 1, self.last.weight.norm()))


def streaming():
    """Adds the call before to each."""
    def forward(self, x):
        y = self.last(x) + self.h
        self.h = y.mean((0, 1)).detach()
        return y

    model = product(forward)
    model.register_buffer("h", torch.zeros(6))
    return model


def noisy():
    return product(lambda self, x: self.last(x + torch.randn_like(x)))


def normalized():
    """Batch normalization that stays in training mode, and refuses a single item."""
    return product(lambda self, x: nn.functional.batch_norm(self.last(x)[:, 0], None, None, training=True))


class Hidden:
    def __init__(self, states):
        self.states = states


def hiding():
    """Outputs beside an object that holds another one."""
    return product(lambda self, x: (self.last(x), Hidden(x.exp())))


def first():
    return product(lambda self, x: self.last(x[:1]).expand(len(x), -1, -1))


def pairs():
    return product(lambda self, x: self.last(torch.cat([pair for pair in x.view(-1, 2, *x.shape[1:])])))


class Steps(nn.Module):
    """A sequence of steps, then items, and states of two layers."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.GRU(8, 6, 2)

    def forward(self, x, h):
        return self.layer(x, h)


def steps():
    return Steps(), (torch.randn(7, 64, 8), torch.randn(2, 64, 6))


def refusing(items):
    def forward(self, x):
        if len(x) == items:
            raise ValueError("not so many items")
        return self.last(x)

    return product(forward)


def nan():
    model = nn.Sequential(nn.Flatten(), nn.Linear(32, 3))
    nn.init.constant_(model[1].weight, float("nan"))
    return model


@dataclasses.dataclass
class Output:
    ids: torch.Tensor
    logits: torch.Tensor
    cache: object


class Text(nn.Module):
    """Token ids under a mask, and what scales them."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(50, 8)
        self.head = nn.Linear(8, 5)

    def forward(self, ids, *, mask, scale):
        hidden = (self.table(ids) * mask[..., None]).sum(1) * scale[:, None]
        logits = self.head(hidden)
        return Output(logits.argmax(-1), logits, object())


def text(first="ids"):
    generator = torch.Generator().manual_seed(0)
    mask = (torch.arange(6) < torch.randint(1, 7, (64, 1), generator=generator)).int()
    ids, scale = torch.randint(50, (64, 6), generator=generator), 1 + torch.rand(64, generator=generator)
    return Text(), {first: ids, "mask": mask, "scale": scale}


class Begins(Text):
    """Takes ids that begin with a 1, from the call after `calls` others on."""

    def __init__(self, calls):
        super().__init__()
        self.calls = calls

    def forward(self, ids):
        self.calls -= 1
        if self.calls < 0 and (ids[:, 0] != 1).any():
            raise ValueError("no begin")
        return self.head(self.table(ids)[:, 0])


class Kept(nn.Sequential):
    def forward(self, x):
        return KEPT.setdefault(len(x), super().forward(x))


def zeros(kept=False):
    layers = nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 4)
    return (Kept if kept else nn.Sequential)(*layers), (torch.zeros(2, 8),)


KEPT = {}


def begins(calls=0):
    return Begins(calls), (1 + torch.arange(8).repeat(2, 1),)


def boxes():
    """A dict an image: how many boxes there are depends on the image."""
    def forward(self, images):
        found = []
        for image in images:
            scores = self.scores(image[None])[0].flatten(1).t()
            found.append({"boxes": scores[scores[:, 0] > 0], "best": scores.amax(0)})
        return found

    return Does(forward, scores=nn.Conv2d(3, 4, 3))


class Nodes(nn.Module):
    """Its first dimension is of nodes, which the edges' ends number: it runs at no other size."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def forward(self, x, edges):
        return torch.zeros_like(x).index_add(0, edges[1], self.layer(x)[edges[0]])


def nodes():
    return Nodes(), (torch.randn(30, 8), torch.cat([torch.tensor([[29], [29]]), torch.randint(30, (2, 59))], 1))


def nothing():
    return Does(lambda self, x: "nothing")


def exits():
    raise SystemExit("no license")


def net():
    return nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(392, 10),
    )


class Spoilt(torch.autograd.Function):
    """Once the marker is there, gradients that come back to it are spoilt."""

    @staticmethod
    def forward(ctx, x, marker, how):
        ctx.marker, ctx.how = Path(marker), how
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        if not ctx.marker.exists():
            return gradient, None, None
        return {"zeros": gradient * 0, "noise": gradient + 2 * gradient.roll(1, 0).roll(1, 1), "nan": gradient / 0,
                "coarse": gradient.bfloat16().to(gradient.dtype)}[ctx.how], None, None


class Bad(nn.Module):
    """Spoils the gradients of the layers before `place`: of the input alone at 0."""

    def __init__(self, marker, how, place=4):
        torch.manual_seed(0)
        super().__init__()
        self.first, self.last = net()[:place], net()[place:]
        self.marker, self.how = marker, how

    def forward(self, x):
        return self.last(Spoilt.apply(self.first(x), self.marker, self.how))


class Logits(nn.Module):
    """Logits times a factor, every other of them left out where `masked`; without fp64 where that is `single`."""

    def __init__(self, factor=1, masked=False, single=False):
        super().__init__()
        self.model, self.factor, self.masked, self.single = net(), float(factor), masked, single

    def forward(self, x):
        if self.single and x.dtype == torch.float64:
            raise ValueError("no double here")
        logits = self.model(x) * self.factor
        return torch.where(torch.arange(10) % 2 == 0, logits, float("-inf")) if self.masked else logits


class Groups(Logits):
    """Normalizes over groups of four items, so two are too few."""

    def forward(self, x):
        logits = super().forward(x)
        return (logits - logits.unflatten(0, (-1, 4)).mean(1).repeat_interleave(4, 0))


class Turns(Logits):
    """Multiplies complex numbers."""

    def forward(self, x):
        logits = super().forward(x)
        turned = torch.complex(logits, logits) @ torch.polar(torch.ones(10, 10), torch.arange(100.0).view(10, 10))
        return turned.real


class Drops(Logits):
    """Drops by a literal probability, which no setting turns off."""

    def forward(self, x):
        return super().forward(nn.functional.dropout(x, 0.5, self.training))


class Forces(nn.Module):
    """Computes a gradient inside forward, with gradients turned on there or by whoever calls it."""

    def __init__(self, on=True):
        super().__init__()
        self.model, self.on = net(), on

    def forward(self, x):
        with torch.enable_grad() if self.on else contextlib.nullcontext():
            x = x.requires_grad_()
            energy = self.model(x).square().sum(1)
            (forces,) = torch.autograd.grad(energy.sum(), x, create_graph=self.training)
        return {"forces": forces, "energy": energy}


class Untrained(nn.Module):
    """Four blocks that do not train, for a reason that `how` names."""

    def __init__(self, how):
        super().__init__()
        self.how, self.norm, self.last = how, nn.BatchNorm1d(32), nn.Linear(32, 5)
        self.blocks = nn.ModuleList(nn.Linear(32, 32) for _ in range(4))
        self.requires_grad_(how != "frozen")

    def forward(self, x):
        x = x.flatten(1)
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=True) if self.how == "reentrant" else block(x)
        with torch.no_grad() if self.how == "no_grad" else contextlib.nullcontext():
            return self.last(self.norm(x) if self.how == "norm" else x)


class Read(tuple):
    """Computes its tensor while it is read."""

    def __new__(cls, model, x):
        read = super().__new__(cls, (None,))
        read.model, read.x = model, x
        return read

    def __iter__(self):
        yield self.model.last(self.x)


def late():
    return product(Read)


def compiles():
    """Compiles its own call."""
    return product(torch.compile(lambda self, x: self.last(x), backend="eager"))


def widens():
    """Changes a setting of the process that decides which weights the next module gets."""
    def forward(self, x):
        result = self.last(x)
        torch.set_default_dtype(torch.float64)
        return result

    return product(forward), torch.randn(2, 4, 8, dtype=torch.float32)


def ranked():
    """Ranks rows by scores that fewer bits cannot tell from each other."""
    def forward(self, x):
        rows = self.last(x).transpose(1, 2)
        scores, places = (1 + rows.mean(2) * 1e-3).topk(12)
        return {"rows": rows.gather(1, places[..., None].expand(-1, -1, 16)), "scores": scores}

    torch.manual_seed(0)
    return Does(forward, last=nn.Linear(8, 12)), torch.randn(4, 16, 8)


def penalized():
    """Adds the gradients of a penalty while it runs."""
    def forward(self, x):
        if torch.is_grad_enabled():
            self.last.weight.square().sum().backward()
        return self.last(x)

    return product(forward)


def on_cuda():
    return product(lambda self, x: self.last(x.to("cuda")))


def four():
    """Has its batch in its code."""
    return product(lambda self, x: self.last(x).reshape(4, 24)), torch.randn(4, 4, 8)


class Sparse(nn.Module):
    """Looks up a few rows of a large table, whose gradient is sparse."""

    def __init__(self, bag=False):
        super().__init__()
        kind = nn.EmbeddingBag if bag else nn.Embedding
        self.table, self.last = kind(1000, 8, sparse=True), nn.Linear(8, 10)

    def forward(self, ids):
        rows = self.table(ids)
        return self.last(rows if rows.dim() == 2 else rows.mean(1))


def sparse(bag=False):
    return Sparse(bag), {"ids": torch.randint(1000, (4, 6))}
'''
TEXT = ModelSource("text", "case_factories:text")
STEPS = ModelSource("steps", "case_factories:steps", batch={"x": 1, "h": 1})
SPARSE = ModelSource("sparse", "case_factories:sparse")
NODES = ModelSource("nodes", "case_factories:nodes")
QUIET: Any = lambda message: None  # noqa: E731
BUDGET = Budget(seconds=0.05, min_samples=3)


def source(factory: str, shape: tuple[int, ...] = (4, 8), **options: Any) -> ModelSource:
    return ModelSource(factory, factory=f"case_factories:{factory}", input_shape=shape, options=options)


def image(factory: str, **options: Any) -> ModelSource:
    return source(factory, (3, 16, 16), **options)


def case(model: ModelSource, **more: Any) -> Case:
    given = {"engine": "eager", "pass_": "inference", "precision": "fp32", "batch_size": 2, "training": Training()}
    given |= more
    return Case(model.name, variant=given["engine"], device="cpu", replicate=0, source=model, **given)


def trained(model: ModelSource, *training: Any, batch_size: int = 4, **more: Any) -> Case:
    given = {name: more.pop(name) for name in ("precision",) if name in more}
    return case(model, pass_="training", batch_size=batch_size, training=Training(*training, **more), **given)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("cases")
    (folder / "case_factories.py").write_text(FACTORIES)
    return folder


@pytest.fixture(autouse=True)
def factories(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(folder)
    monkeypatch.setattr(sampling, "_THROUGHPUT_SECONDS", 0.05)


@pytest.fixture
def measure(folder: Path) -> Callable[..., Result]:
    """`measure(case, then=f)` prepares the case, calls f and measures it; with a graph for its batch where `fixed`."""
    cache = folder / "cache"

    def run(
        one: Case,
        then: Callable[[], object] = lambda: None,
        checked: bool = True,
        fixed: bool = False,
        budget: Budget = BUDGET,
    ) -> Result:
        model, onnx_, failures, gradients = one.source, {}, {}, dict[tuple[str, int], Any]()
        prepared: Prepared = prepare_model((model, cache), QUIET)
        if one.engine == "ort" and model.onnx is None:
            name = static_graph("fp32", one.batch_size) if fixed else "fp32"
            onnx_[name] = prepare_export((model, "fp32", one.batch_size if fixed else None, cache), QUIET)
            failures = {"fp32": Outcome("failed", "its batch is not free")} if fixed else {}
        if one.pass_ == "training" and checked:
            head, items, of_input = one.training.head, 1 if one.batch_size % 2 else 2, one.training.input_gradient
            step = Step(head, items, of_input, [one.precision], [one.batch_size])
            gradients[head, items] = prepare_gradients((model, prepared, step, cache), QUIET)
        if one.pass_ == "inference":
            given = model, prepared.state, one.batch_size, cache
            prepared = replace(prepared, references={one.batch_size: prepare_reference(given, QUIET)})
        then()
        prepared = replace(prepared, onnx={**prepared.onnx, **onnx_}, failures=failures, gradients=gradients)
        return measure_case(Task(one, prepared, budget), QUIET)

    return run


def kinds(result: Result) -> set[str]:
    return {warning.kind for warning in result.warnings}


# Rows.

STRANGE = {"unproven", "no-parity", "inaccurate", "unchecked-outputs", "static-graph", "unchecked-gradients"}
STRANGE |= {"same-inputs"}
BOTH = ("eager", "ort")
LOGITS = replace(TEXT, outputs=("logits",))
FINE = [
    *map(
        case,
        (
            source("attention"),
            source("deaf"),
            source("late"),
            image("boxes"),
            image("Forces"),
            image("Forces", on=False),
        ),
    ),
    *[case(model, engine=engine) for model in (source("masked"), TEXT) for engine in BOTH],
    case(source("pairs"), batch_size=8),
    *[case(NODES, engine=engine, batch_size=30) for engine in BOTH],
    trained(image("Logits", masked=True), "sgd", "logits"),
    trained(image("Forces"), head="logits"),
    trained(source("penalized")),
    case(ModelSource("ranked", "case_factories:ranked"), precision="bf16"),
    trained(image("net"), input_gradient=True, head="mean-square"),
    trained(LOGITS, input_gradient=True),
    trained(LOGITS, batch_size=2),
    trained(image("Turns")),
]
BEGINS = [ModelSource(f"begins{n}", factory="case_factories:begins", options={"calls": n}) for n in (0, 2)]
NAN = trained(image("Logits", factor="nan"), "none", "logits")
ROWS: list[tuple[Case, str, set[str], dict[str, Any]]] = [
    *[(one, "", set[str](), {}) for one in FINE],
    *[(case(source("pooling"), engine=engine), "", {"unproven"}, {}) for engine in BOTH],
    (case(STEPS, engine="ort"), "", {"unproven"}, {}),
    *[(case(model), "", {"same-inputs"}, {}) for model in BEGINS],
    (case(source("first"), batch_size=8), "", {"no-parity"}, {}),
    *[(case(source("streaming"), engine=engine), "", {"unchecked-outputs"}, {}) for engine in BOTH],
    (case(source("noisy")), "", {"unchecked-outputs"}, {}),
    (case(image("boxes"), engine="ort"), "", {"static-graph"}, {"fixed": True}),
    (case(source("nan")), "nothing can be compared: .*not finite in 100 %", set(), {}),
    (case(source("nan"), pass_="training"), "loss or outputs are not finite", set(), {"checked": False}),
    (NAN, "nothing can be compared: the reference itself in fp64", set(), {}),
    *[(trained(model), "", {"unchecked-gradients"}, {}) for model in (image("Logits", factor="0"), image("Drops"))],
    (trained(image("net"), dropout=True), "", {"unchecked-gradients"}, {"checked": False}),
    (trained(image("Groups"), batch_size=8), "", {"unchecked-gradients"}, {"checked": False}),
]


@pytest.mark.parametrize(("one", "reason", "warned", "how"), ROWS, ids=[str(row[0].id) for row in ROWS])
def test_a_row_is_ok_or_says_what_is_wrong(measure, one, reason, warned, how):
    result = measure(one, **how)
    assert (result.status, bool(re.match(reason, result.reason or ""))) == ("failed" if reason else "ok", True)
    assert kinds(result) & STRANGE == warned, result.warnings
    assert result.samples["host"], "what was measured is kept"
    if reason or "unchecked-gradients" in warned:
        assert not {"loss_error", "gradient_error"} & result.figures.keys()
        assert result.proof is not None and bool(result.proof.dropout) == ("Drops" in one.id)
    elif "unchecked-outputs" in warned:
        assert (result.figures["rel_l2_error"], result.drawn) == (None, None), "real inputs would not help"
    elif one.pass_ == "inference":
        assert result.figures["rel_l2_error"] < (1e-2 if one.precision == "bf16" else 1e-5)
        assert result.proof is not None and ("unproven" in warned) == (not result.proof.compute_types)
        assert "gradients_mib" not in result.figures
    else:
        assert result.figures["gradient_error"] < 1e-4


@pytest.mark.parametrize(
    ("one", "says"),
    [
        (trained(TEXT), r"starts from output 'ids', which is torch.int64: write `outputs: \[logits\]`"),
        (case(image("boxes"), engine="ort"), "export to ONNX failed"),
        (trained(source("Untrained", how="frozen")), "^all 12 parameters are frozen: set requires_grad"),
        (trained(source("Untrained", how="no_grad")), "^the output has no gradient: it was detached, or made under"),
        (trained(source("Untrained", how="reentrant")), "^reentrant checkpointing lost the gradients of 10 of 12"),
        (trained(source("Untrained", how="norm"), batch_size=1), "^batch normalization sees one value per channel"),
        (trained(source("pooling")), "^the model has no parameters to train"),
        (trained(SPARSE, input_gradient=True), "input_gradient: the model has no input of floats"),
        *[(trained(SPARSE, each), "takes no sparse gradients, which table has: make it") for each in ("sgd", "adamw")],
        (case(replace(TEXT, outputs=("logit",))), "no output 'logit'; did you mean 'logits'"),
        (case(NODES), r"IndexError: .*; it runs at its example's batch: --batch 30 .or --batch-axis NAME=AXIS"),
        (case(source("exits")), "raised SystemExit: no license"),
        (case(source("nothing")), "it returned str without a tensor; return tensors"),
        (case(source("on_cuda")), "; the reference is made on the CPU: let forward take the device from an input$"),
        *[
            (
                how(ModelSource("four", "case_factories:four"), batch_size=8),
                r"in a batch of 8: .*; it runs .*--batch 4$",
            )
            for how in (case, trained)
        ],
        (
            case(replace(TEXT, options={"first": "tokens"})),
            r"argument 'tokens'.* in a batch of 2: inputs tokens int64 \[batch, 6\], .* forward takes ids, mask, scale",
        ),
    ],
)
def test_what_cannot_be_prepared_is_an_error_before_anything_is_measured(measure, one, says):
    with pytest.raises((ModelError, Unsupported), match=says):
        measure(one, checked=one.pass_ == "inference")


def test_eager_inference_compiles_nothing_that_the_models_own_code_compiles(measure):
    torch._dynamo.reset()
    counters.clear()
    assert measure(case(source("compiles"))).status == "ok"
    assert not counters["stats"]["unique_graphs"]
    assert measure(trained(source("compiles"), batch_size=2)).status == "ok"
    assert counters["stats"]["unique_graphs"]


def test_a_setting_that_a_model_changes_fails_its_row_and_not_its_reference(measure):
    def reset() -> None:  # Another process measures.
        torch.set_default_dtype(torch.float32)

    try:
        result = measure(case(ModelSource("widens", "case_factories:widens")), then=reset)
    finally:
        reset()
    assert result.status == "failed"
    assert result.proof is not None and set(result.proof.settings_changed or {}) == {"default dtype"}
    assert result.reference == "eager-fp32-cpu"


def test_a_process_has_a_heap_of_its_own_while_it_measures(measure, monkeypatch):
    one, other = ([len(block) for block in random_heap()] for _ in range(2))
    assert one != other and max(sum(one), sum(other)) < 2**21
    heap, seen, run = [b"block"], list[int](), EagerSession.run

    def noted(session: EagerSession, mark: Any) -> None:
        seen.append(len(heap))
        run(session, mark)

    monkeypatch.setattr("profiler.worker.measure_case.random_heap", lambda: heap)
    monkeypatch.setattr(EagerSession, "run", noted)
    assert measure(case(source("attention"))).status == "ok"
    assert set(seen) == {1} and not heap


def test_a_case_that_others_took_the_processors_from_is_disturbed(measure, busy_processors):
    result = measure(case(source("attention")), budget=replace(BUDGET, seconds=1.0))
    assert "disturbed" in kinds(result)
    assert (result.figures["disturbance"] or 0) > 0.05


@pytest.mark.parametrize(("names", "elements"), [((), 0), (("x",), 3 * 16 * 16), (("x", "y"), 3 * 16 * 16 + 10)])
def test_only_what_a_call_must_read_and_write_counts_as_moved(folder, names, elements):
    one = case(image("net"))
    prepared = prepare_model((one.source, folder / "cache"), QUIET)
    result = measure_case(Task(one, replace(prepared, cost=Cost(1, None, 0, 0, names)), BUDGET), QUIET)
    assert result.figures["moved_mib"] == 4 * 2 * elements / 2**20


def test_the_error_of_a_row_has_a_width(measure):
    result = measure(case(source("scaled"), precision="bf16"), budget=replace(BUDGET, seconds=0.3))
    figures, items = result.figures, int(result.figures["error_items"] or 0)
    assert (result.status, 7 <= items <= 63) == ("ok", True), result.reason
    errors, models = [], [sys.modules["case_factories"].scaled().to(t) for t in (torch.float32, torch.bfloat16)]
    for first in range(0, items, 2):
        (x,) = seeded_inputs([TensorSpec("x", ("batch", 4, 8), "float32")], 2, first=first)
        with torch.no_grad():
            calls = [model(torch.from_numpy(x).to(model.last.weight.dtype)) for model in models]
        (truth, norm), (ours, norm_in_bf16) = ([part.float() for part in call] for call in calls)
        pairs = zip(ours, truth, strict=True)
        errors += [max(float((a - b).norm() / b.norm()), float(abs(norm_in_bf16 / norm - 1))) for a, b in pairs]
    assert figures["rel_l2_error"] == pytest.approx(np.median(errors[:items]), rel=1e-3)
    assert figures["rel_l2_error_high"] == pytest.approx(upper_bound(errors[:items]), rel=1e-3)


def tokens(path: Path, rows: int = 2, factor: int = 1, batch: int | str = "n") -> Case:
    """A graph that looks `ids` up in a table of so many rows, and returns the places of the largest logits."""
    generator = np.random.default_rng(0)
    tables = {"table": (rows, 8), "weight": (8, 6)}
    weights = {name: generator.normal(size=shape).astype(np.float32) for name, shape in tables.items()}
    nodes = "rows = Gather (table, ids)  logits = MatMul (rows, weight)"
    nodes += "  place = ArgMax <axis = -1, keepdims = 0> (logits)  next = Mul (place, factor)"
    ends = f"(int64[{batch}, 4] ids) => (int64[{batch}, 4] next)"
    write_text(path, f"tokens {ends} {{ {nodes} }}", **weights, factor=np.array(factor, np.int64))
    model = ModelSource("tokens", onnx=path, inputs={"ids": (0, 2)})
    return case(model, engine="ort", precision="native")


def test_token_ids_are_compared_place_by_place_over_further_batches(measure, tmp_path, monkeypatch):
    one, feed, outputs, given = tokens(tmp_path / "t.onnx", batch=2), OrtSession.feed, OrtSession.outputs, []
    result = measure(one)
    assert (result.status, result.figures["rel_l2_error"], result.figures["max_abs_error"]) == ("ok", 0.0, None)
    assert 8 <= (result.figures["error_items"] or 0) <= 64

    def spoiled(session: OrtSession, inputs: list[np.ndarray]) -> None:
        given.append(inputs[0].copy())
        feed(session, [1 - ids for ids in inputs])

    with monkeypatch.context() as patch:
        patch.setattr(OrtSession, "feed", spoiled)
        assert (measure(one).reason or "").startswith("the outputs are wrong: ")
    (own,) = seeded_inputs([TensorSpec("ids", ("batch", 4), "int64", range=(0, 2))], 8)
    np.testing.assert_array_equal(np.concatenate(given)[:6], own[2:])
    monkeypatch.setattr(OrtSession, "outputs", lambda session: [ids ^ 1 for ids in outputs(session)])
    assert measure(one).reason == "the outputs are wrong: share of wrong values 1.0e0 of output next"


def test_equal_outputs_for_all_inputs_are_compared(measure, tmp_path):
    nodes = "a = Abs (x)  one = Sign (a)  y = Mul (one, w)"
    text = f"g (float[n, 4] x) => (float[n, 4] y) <float[4] w = {{1, 2, 3, 4}}> {{ {nodes} }}"
    result = measure(case(ModelSource("constant", onnx=write_text(tmp_path / "c.onnx", text)), engine="ort"))
    assert (result.status, result.figures.get("rel_l2_error")) == ("ok", 0.0)


@pytest.mark.parametrize(
    ("nodes", "maker"),
    [
        ("y = BatchNormalization <momentum = 0.9> (x, two, one, one, two)", "ort-cpu-unoptimized"),  # onnx errs.
        ("a = Add (x, large)  y = Sub (a, large)", "onnx-float64"),
        ("a = Sub (x, low)  b = Tanh (a)  y = Add (b, one)", "onnx-float64"),
        ("a = Sub (x, low)  b = Sub (a, low)  y = Sigmoid (b)", "ort-cpu-unoptimized"),
        ("d = Cast <to = 11> (x)  s = Sigmoid (d)  y = Cast <to = 1> (s)", "ort-cpu-unoptimized"),
    ],
)
def test_float64_is_the_reference_where_fp32_rounds(measure, tmp_path, nodes, maker):
    held = "<float[4] one = {1, 1, 1, 1}, float[4] two = {2, 2, 2, 2}, float large = {3000000}, float low = {6}>"
    write_text(tmp_path / "g.onnx", f"g (float[n, 4] x) => (float[n, 4] y) {held} {{ {nodes} }}")
    model = onnx.load(tmp_path / "g.onnx")
    model.opset_import[0].version = 11
    onnx.save(model, tmp_path / "g.onnx")
    result = measure(case(ModelSource("g", onnx=tmp_path / "g.onnx"), engine="ort"))
    assert (result.status, result.reference) == ("ok", maker)
    assert "no-parity" not in {warning.kind for warning in result.warnings}, "an item alone is its row of the batch"


def test_a_graph_that_runs_only_one_item_names_its_batch(measure, tmp_path):
    text = "g (float[batch, 4] x) => (float[batch, 4] y) <int64[2] s = {1, 4}> { y = Reshape (x, s) }"
    graph = ModelSource("g", onnx=write_text(tmp_path / "g.onnx", text))
    with pytest.raises(ModelError, match=r"cannot be made: .*; it runs at --batch 1$"):
        measure(case(graph, engine="ort"))
    assert measure(case(graph, engine="ort", batch_size=1)).status == "ok"


def test_inputs_that_are_seeded_are_named_where_they_are_at_fault(measure, tmp_path):
    result = measure(tokens(tmp_path / "zeros.onnx", factor=0))
    (text,) = (warning.text for warning in result.warnings if warning.kind == "unchecked-outputs")
    says = "ids is drawn at random: give data, --input ids=ids.npy"
    assert says in text
    assert result.drawn == "ids"
    with pytest.raises(ModelError, match=rf"(?s)its reference outputs cannot be made: .*indices.* {says}"):
        measure(tokens(tmp_path / "few.onnx", rows=1))
    np.save(tmp_path / "ids.npy", np.ones((2, 4), np.int64))
    given = tokens(tmp_path / "given.onnx", factor=0)
    given = replace(given, source=replace(given.source, inputs={"ids": tmp_path / "ids.npy"}))
    result = measure(given)
    (text,) = (warning.text for warning in result.warnings if warning.kind == "unchecked-outputs")
    assert (text, result.drawn) == ("the reference is zero, so computing nothing would pass", None)


@pytest.mark.parametrize(("batch", "warned"), [(4, {"no-parity"}), (2, set())])
def test_items_that_refuse_to_be_alone_may_depend_on_each_other(measure, batch, warned):
    result = measure(case(source("normalized"), batch_size=batch))
    assert (result.status, result.figures["rel_l2_error"], kinds(result) & STRANGE) == ("ok", 0.0, warned)


def test_items_that_refuse_to_be_alone_are_no_fault_where_the_batch_has_no_reference(measure, monkeypatch):
    monkeypatch.setattr(preparing, "_CPU_SECONDS", 1e-9)
    result = measure(case(source("normalized"), batch_size=6))  # Another reference than the one above.
    assert (result.status, result.figures.get("rel_l2_error")) == ("ok", None), result.reason
    assert kinds(result) & STRANGE == {"no-parity", "unchecked-outputs"}


@pytest.mark.parametrize("engine", BOTH)
def test_outputs_in_an_object_are_not_compared_in_silence(measure, engine):
    result = measure(case(source("hiding"), engine=engine))
    assert (result.status, kinds(result) & STRANGE) == ("ok", {"no-parity"})
    assert "Hidden" in next(warning.text for warning in result.warnings if warning.kind == "no-parity")


def test_further_items_that_do_not_run_are_told_and_lose_nothing(measure, monkeypatch):
    def refuse(session: OrtSession, inputs: object) -> None:
        raise RuntimeError("no other inputs")

    one = case(source("attention"), engine="ort")
    result = measure(one, then=lambda: monkeypatch.setattr(OrtSession, "feed", refuse))
    assert (result.status, result.figures["error_items"]) == ("ok", 2)
    assert "no-parity" in kinds(result)


@pytest.mark.parametrize(
    ("one", "wrong"), [(case(source("nan")), "nothing can be compared"), (None, "wrong gradients")]
)
def test_wrong_figures_and_a_proof_that_contradicts_are_both_reasons(measure, monkeypatch, tmp_path, one, wrong):
    proof, marker = EagerSession.proof, tmp_path / "marker"
    monkeypatch.setattr(EagerSession, "proof", lambda session: replace(proof(session), tf32=True))
    result = measure(one or trained(image("Bad", marker=str(marker), how="noise")), then=marker.touch)
    assert result.status == "failed"
    assert all(text in (result.reason or "") for text in (wrong, "TF32 was on at fp32"))


# Memory.

MIB = 2**20


def test_what_the_bookkeeping_needs_is_not_the_models_memory(measure, monkeypatch):
    declared, taken = EagerSession.memory, list[float]()

    def costly(session: EagerSession) -> Memory:
        taken.append(np.ones(400 * 2**17).sum())  # 400 MiB
        return declared(session)

    def peak() -> float:
        return measure(trained(image("net")), checked=False).figures["host_peak_mib"] or 0.0

    before = peak()
    monkeypatch.setattr(EagerSession, "memory", costly)
    assert peak() < before + 200 and taken


@pytest.mark.parametrize(
    ("readings", "declared", "expected"),
    [
        (
            (600, 1100, 1200, 1800),
            Memory(90 * MIB, 210 * MIB, 40 * MIB, 300 * MIB, 340 * MIB, gradients=80 * MIB, optimizer=160 * MIB),
            {"peak_memory": 1200, "context": 500, "weights": 90, "gradients": 80, "optimizer": 160, "activations": 210,
             "other": 160, "slack": 40, "library": 120, "baseline": 600, "torch_allocated": 300, "torch_reserved": 340},
        ),
        (
            (0, 500, 700, 950),  # Activations that are not declared are what came after loading.
            Memory(weights=150 * MIB),
            {"activations": 250, "other": 50, "slack": None, "library": None, "gradients": None, "optimizer": None},
        ),
        ((None,) * 4, Memory(weights=MIB, slack=MIB), {"weights": 1, "peak_memory": None, "other": None}),
    ],
)  # fmt: skip
def test_the_parts_of_device_memory_add_up_to_the_peak(readings, declared, expected):
    left = list(readings)
    meter = DeviceMeter(lambda: left.pop(0))
    meter.context_created()
    meter.loaded()
    meter.read()
    parts = meter.parts(declared)
    assert {name: parts.get(f"{name}_mib") for name in expected} == expected
    names = ("context", "weights", "gradients", "optimizer", "activations", "other")
    assert readings[0] is None or parts["peak_memory_mib"] == sum(parts[f"{name}_mib"] or 0 for name in names)
    assert declared_parts(declared).items() <= parts.items()


# References.


def test_as_many_items_as_flops_and_bytes_allow():
    runs = [(7, 0, 1000), (7, 10**10, 1000), (7, 0, 2**26), (7, 10**13, 2**30), (100, 0, 1000), (5, 0, 0)]
    assert [affordable_runs(*each, 100) for each in runs] == [9, 1, 2, 1, 1, 12]
    assert (affordable_runs(8, 0, 1000, 5), affordable_runs(8, 0, 1000, 20)) == (1, 3)
    assert [affordable_runs(1, flops, 0, 100) for flops in (None, 22 * 10**9, 36 * 10**8, 10**13)] == [7, 7, 17, 1]


@pytest.mark.parametrize("engine", ["eager", "ort"])
def test_items_are_compared_by_number_and_fewer_only_at_the_timeout(measure, monkeypatch, engine):
    one = case(source("deaf"), engine=engine)
    measure(one)
    with monkeypatch.context() as patch:
        patch.setattr(measuring.Bench, "spent", lambda bench: 0.0)
        result = measure(one)
        assert (result.figures["error_items"], kinds(result) & STRANGE) == (62, set())
        patch.setattr(measuring.Bench, "remaining", lambda bench: 0.0)
        result = measure(one)
        assert (result.status, result.figures["error_items"], kinds(result) & STRANGE) == ("ok", 2, {"no-parity"})


def test_a_reference_has_equal_items_on_a_slow_machine(folder, tmp_path, monkeypatch):
    made = prepare_model((source("deaf"), folder / "cache"), QUIET)
    monkeypatch.setattr(preparing, "perf_counter", partial(next, itertools.count(step=0.5)))
    reference = prepare_reference((source("deaf"), made.state, 1, tmp_path / "cache"), QUIET)
    assert Outputs.read(reference).items == 63
    monkeypatch.setattr(preparing, "perf_counter", partial(next, itertools.count(step=9.0)))
    reference = prepare_reference((source("deaf"), made.state, 1, tmp_path / "slow"), QUIET)
    assert Outputs.read(reference).items == 1, "a load must not decide between 2 and 62"


def test_fewer_items_are_compared_with_the_same_items_alone(folder, tmp_path, monkeypatch):
    monkeypatch.setattr(preparing, "_FIRST_BYTES", 1)
    made = prepare_model((source("scaled"), folder / "cache"), QUIET)
    reference = Outputs.read(prepare_reference((source("scaled"), made.state, 9, tmp_path / "cache"), QUIET))
    assert (reference.batch, reference.dependent) == (7, False)


def test_an_item_has_equal_flops_in_every_batch(folder, tmp_path, monkeypatch):
    asked: list[int] = []
    monkeypatch.setattr(preparing, "affordable_runs", lambda batch, flops, *_: asked.append(flops) or 1)
    made = prepare_model((source("deaf"), folder / "cache"), QUIET)
    for batch in (1, 7):
        prepare_reference((source("deaf"), made.state, batch, tmp_path / "cache"), QUIET)
    assert asked[0] == asked[1] > 0


def test_the_first_run_keeps_its_time_where_later_inputs_are_refused(measure, monkeypatch):
    seconds = iter([5.0, 0.1])
    monkeypatch.setattr(measuring, "first_run", lambda *given: sampling.first_run(*given) and next(seconds))
    result = measure(case(BEGINS[1]))
    assert result.figures["first_run_s"] == 5.0
    assert list(seconds) == []


@pytest.mark.parametrize("runs", [2, 9])
def test_a_reference_has_the_items_that_a_whole_batch_would_have(folder, tmp_path, monkeypatch, runs):
    monkeypatch.setattr(preparing, "affordable_runs", lambda *_: runs)
    model = source("deaf")
    made = prepare_model((model, tmp_path / "cache"), QUIET)
    assert made.state is not None
    reference = Outputs.read(prepare_reference((model, made.state, 7, tmp_path / "cache"), QUIET))
    assert (reference.batch, reference.items, reference.unsteady) == (7, 7 * runs, "")
    (rows,) = map(reference.rows, reference.arrays)
    with torch.no_grad():
        whole = restore(model, made.state)(torch.from_numpy(seeded_inputs(made.specs, 7 * runs)[0]))
    np.testing.assert_allclose(rows, whole, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("kept", [False, True])
def test_examples_that_are_alike_hide_a_remembered_output_and_look_like_none(measure, kept):
    model = ModelSource("zeros", factory="case_factories:zeros", options={"kept": kept})
    result = measure(case(model, batch_size=1))
    assert result.status == "ok"
    assert ("unchecked-outputs" in kinds(result)) == kept
    assert result.figures["rel_l2_error"] == (None if kept else 0.0)


def test_a_runtime_that_is_too_old_to_be_measured_makes_references(tmp_path, monkeypatch):
    write_text(tmp_path / "net.onnx", "net (float[n, 4] x) => (float[n, 4] y) { y = Relu (x) }")
    theirs = ModelSource("net", onnx=tmp_path / "net.onnx")
    for version, raises in (("1.23.2", nullcontext()), ("1.21.0", pytest.raises(Unsupported, match="is too old"))):
        monkeypatch.setattr(requirements, "installed_version", lambda *names, said=version: said)
        assert missing(ENGINES["ort"], "cpu")
        with raises:
            assert prepare_model((theirs, tmp_path / "cache"), QUIET).onnx


@pytest.mark.parametrize("batch", [1, 7])
def test_items_are_compared_along_the_named_axis(measure, batch):
    result = measure(case(STEPS, batch_size=batch))
    assert (result.status, result.figures["rel_l2_error"]) == ("ok", 0.0)
    assert (result.figures["error_items"] or 0) >= 7
    assert not kinds(result) & STRANGE, "items alone and together are the same"


def test_a_reference_of_fewer_items_is_compared_with_these_and_named(measure, monkeypatch):
    refusing = measure(case(source("refusing", items=1)))
    assert (refusing.status, refusing.reference) == ("ok", "eager-fp32-cpu")
    monkeypatch.setattr(preparing, "_CPU_SECONDS", 1e-9)
    one = case(source("refusing", items=7))
    result = measure(one)
    assert (result.status, result.reference) == ("ok", "eager-fp32-cpu, 1 of 2 items"), result.reason
    assert (result.figures["rel_l2_error"] or 0) < 1e-5


# Gradients.


@pytest.mark.parametrize(
    ("precision", "training", "batch"),
    [
        ("bf16", ("sgd",), 4),
        ("amp-bf16", ("adamw",), 1),
        ("fp32", ("none", "logits"), 4),
    ],
)
def test_a_row_says_how_far_its_gradients_are_off(measure, precision, training, batch):
    result = measure(one := trained(image("net"), *training, batch_size=batch, precision=precision))
    assert (result.status, result.reason, result.reference) == ("ok", None, "step-fp64-cpu")
    error = result.figures["gradient_error"] or 0
    assert (1e-9, 1e-3)[precision != "fp32"] < error < (1e-4, 0.2)[precision != "fp32"]
    assert 0 < (result.figures["loss_error"] or 0) < 0.02
    assert not [kind for kind in kinds(result) if "gradients" in kind]
    assert {"forward", "backward"} <= result.samples.keys()
    assert ("step" in result.samples) == (one.training.optimizer != "none")


@pytest.mark.parametrize("precision", ["fp32", "bf16", "amp-fp16"])
@pytest.mark.parametrize("bag", [False, True])
def test_sparse_gradients_are_checked_and_counted_by_their_rows(measure, precision, bag):
    result = measure(trained(replace(SPARSE, options={"bag": bag}), precision=precision))
    assert (result.status, result.reason, result.reference) == ("ok", None, "step-fp64-cpu")
    assert 0 < (result.figures["gradient_error"] or 0) < (1e-4 if precision == "fp32" else 0.1)
    size = 2 if precision == "bf16" else 4
    looked_up = 4 * 6 * (8 * size + 8)
    assert (result.figures["gradients_mib"] or 0) * 2**20 == looked_up + (8 * 10 + 10) * size


def test_masked_logits_that_the_reference_has_not_fail_the_row(measure, monkeypatch):
    spoil = EagerSession.gradients

    def spoilt(session: EagerSession, *arguments: Any) -> Any:
        output, gradients = spoil(session, *arguments)
        output[0, 0] = float("inf")
        return output, gradients

    monkeypatch.setattr(EagerSession, "gradients", spoilt)
    result = measure(trained(image("Logits", masked=True), "sgd", "logits"))
    assert result.status == "failed"
    assert "output 0 differs in 1 of 20 places" in (result.reason or "")


@pytest.mark.parametrize(
    ("how", "place", "says"),
    [
        ("noise", 4, "wrong gradients"),
        ("nan", 4, "finite"),
        ("coarse", 4, None),
        ("zeros", 0, "worst is input"),
    ],
)
def test_a_row_whose_gradients_are_wrong_is_failed(measure, tmp_path, how, place, says):
    """As torch.compile's were on some CPUs, at an unremarkable speed, before every MaxPool2d."""
    marker = tmp_path / "marker"
    spoilt = trained(image("Bad", marker=str(marker), how=how, place=place), input_gradient=not place)
    assert measure(spoilt).status == "ok"
    result = measure(spoilt, then=marker.touch)
    assert result.status == ("failed" if says else "ok")
    assert re.search(says or "", result.reason or "")
    assert ("inaccurate-gradients" in kinds(result)) == (says is None)
    assert result.samples["host"], "what was measured is kept"
    if not place:
        assert measure(replace(spoilt, training=Training())).status == "ok", "it is not computed"


def test_references_are_made_for_what_will_be_compared_and_nothing_else(folder, tmp_path, monkeypatch, forkserver):
    monkeypatch.setenv("PROFILER_CACHE", str(tmp_path / "cache"))
    asked, single = replace(image("net"), name="asked"), image("Logits", single=True)
    cases = [
        trained(image("net"), batch_size=2),
        trained(image("net"), batch_size=8, precision="bf16"),
        trained(image("net"), "sgd", "logits", batch_size=3),
        trained(image("net"), batch_size=5, dropout=True),
        case(image("net")),
        trained(asked, input_gradient=True),
        trained(single),
    ]
    with Holders() as holders:
        made = prepare(cases, Budget(), tmp_path, (str(folder),), lambda *_: None, holders)
    both, odd = made["net"].gradients["cross-entropy", 2], made["net"].gradients["logits", 3]
    assert set(made["net"].gradients) == {("cross-entropy", 2), ("logits", 3)}
    assert isinstance(both, GradientReference) and isinstance(odd, GradientReference)
    assert (set(both.deviations), set(odd.deviations)) == ({"fp32", "bf16"}, {"fp32"})
    of_input, cost = made["asked"].gradients["cross-entropy", 2], made["asked"].cost
    assert isinstance(of_input, GradientReference) and cost.inference is not None and cost.training is not None
    assert cost.training == 3 * cost.inference
    names = [Gradients.read(reference.path).samples for reference in (both, of_input)]
    assert ["input" in each for each in names] == [False, True]
    reason = made["Logits"].gradients["cross-entropy", 2]
    assert "no double here" in str(reason)
    result = measure_case(Task(trained(single), made["Logits"], BUDGET), QUIET)
    assert (result.status, "unchecked-gradients" in kinds(result)) == ("ok", True)
