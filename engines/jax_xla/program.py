"""Trace a torch module with torch.export, run its graph in JAX, and make the function of a training iteration of it:
forward and backward pass, and the optimizer's step.

No further dependency: torch.fx walks the graph once, while JAX traces it; what XLA compiles is all of it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import torch
from torch.export.graph_signature import InputKind, OutputKind

from engines.base import Array, Job, Unsupported
from engines.catalog import Options
from engines.jax_xla.aten import OPERATORS
from engines.pytorch.training_step import ADAMW, LEARNING_RATE, SGD, epsilon
from exporters.calls import chosen, flattened, typed
from exporters.gradients import input_names
from exporters.inputs import TensorSpec
from exporters.loss import seeded_target
from exporters.onnx_export import quiet

State = Mapping[str, Any]
Step = Callable[[State, Sequence[jax.Array], jax.Array | None], tuple[jax.Array, dict[str, jax.Array], State]]


@dataclass(frozen=True)
class Program:
    """A traced module: what it computes of its weights, buffers and inputs. `weights` and `buffers` are torch's tensors
    by name, one name for those that modules share."""

    module: torch.fx.GraphModule
    weights: Mapping[str, torch.Tensor]
    buffers: Mapping[str, torch.Tensor]
    trained: frozenset[str]
    """The weights that have gradients."""
    placeholders: Sequence[tuple[InputKind, str]]
    """What each argument of the graph is, and its name."""
    results: Sequence[tuple[OutputKind, str | None]]
    names: Sequence[str]
    """Of the outputs."""

    def __call__(self, weights: Mapping[str, Any], buffers: Mapping[str, Any], inputs: Sequence[Any]) -> Any:
        """The list of outputs, and the buffers after the call."""
        given = iter(inputs)
        arguments = [
            next(given) if kind is InputKind.USER_INPUT else weights[name] if name in weights else buffers[name]
            for kind, name in self.placeholders
        ]
        interpreter = _InJax(self.module)
        interpreter.extra_traceback = False  # An error's own words are the row's reason.
        last = interpreter.run(*arguments, enable_io_processing=False)
        outputs, changed = [], dict(buffers)
        for (kind, name), value in zip(self.results, last, strict=True):
            if kind is OutputKind.BUFFER_MUTATION:
                changed[name or ""] = value.astype(buffers[name or ""].dtype)
            elif value is not None:
                outputs.append(value)
        return outputs, changed


class _InJax(torch.fx.Interpreter):
    def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
        return OPERATORS[_name(target)](*args, **kwargs)


def trace(model: torch.nn.Module, inputs: Sequence[Array], specs: Sequence[TensorSpec] = ()) -> Program:
    """Trace `model` for inputs of these shapes, at the places in its call that `specs` say. Raises Unsupported for an
    operator that is not in OPERATORS."""
    dtype = next((p.dtype for p in model.parameters()), torch.float32)
    example = typed(inputs, dtype)
    with quiet(), flattened(model, specs) as names:
        # Functional: statistics that are updated in place become results.
        table = torch.export.default_decompositions()
        for packet in [key for key in table if key._schema.name.removeprefix("aten::") in OPERATORS]:
            table.pop(packet)
        exported = torch.export.export(model, example).run_decompositions(table)
    names_called = {_name(node.target) for node in exported.graph.nodes if node.op == "call_function"}
    if lacking := sorted(names_called - OPERATORS.keys()):
        raise Unsupported(f"not translated to JAX: {', '.join(lacking)}")
    signature, state = exported.graph_signature, {**exported.state_dict, **exported.constants}
    shared = {id(tensor): name for name, tensor in reversed(list(model.named_parameters(remove_duplicate=False)))}
    own = {name: shared.get(id(tensor), name) for name, tensor in model.named_parameters(remove_duplicate=False)}
    weights, buffers = {}, {}
    for spec in signature.input_specs:
        if spec.kind is InputKind.PARAMETER:
            weights[own[spec.target]] = state[spec.target]
        elif spec.kind is not InputKind.USER_INPUT:
            buffers[spec.target] = state[spec.target]
    return Program(
        exported.graph_module,
        weights,
        buffers,
        frozenset(own[name] for name, parameter in model.named_parameters() if parameter.requires_grad),
        [(spec.kind, own.get(spec.target or "", spec.target or "")) for spec in signature.input_specs],
        [(spec.kind, spec.target) for spec in signature.output_specs],
        names,
    )


def _name(target: Any) -> str:
    """ATen's name of what a node calls; that of a function of Python's otherwise."""
    schema: Any = getattr(target, "_schema", None)
    return getattr(target, "__name__", "?") if schema is None else str(schema.name.removeprefix("aten::"))


def make_step(
    job: Job[Options], program: Program, state: State, inputs: Sequence[jax.Array]
) -> tuple[Step, jax.Array | None]:
    """The iteration, and the target that its head needs.

    It takes state, inputs and target, and returns the loss (with the head "logits" the network's first output), the
    gradients by name, among them the inputs' where they are asked for, and the new state.
    """
    head, first = job.training.head, chosen(job.source.outputs, program.names)[0]
    shapes = jax.eval_shape(lambda s, x: program(s["weights"], s["buffers"], x)[0][first], state, inputs)
    like = torch.empty(shapes.shape, device="meta")
    drawn = seeded_target(torch.empty(1, *like.shape[1:]), head, job.batch_size)
    target = None if drawn is None else jnp.asarray(drawn.numpy(), shapes.dtype if head == "logits" else jnp.int32)
    asked = job.training.input_gradient or job.source.layer is not None
    names = input_names(len(inputs))
    sought_inputs = {n for n, x in zip(names, inputs, strict=True) if asked and jnp.issubdtype(x.dtype, jnp.floating)}

    def step(state: State, inputs: Sequence[jax.Array], target: jax.Array | None) -> Any:
        weights = state["weights"]
        sought = {name: weight for name, weight in weights.items() if name in program.trained}
        sought |= {name: x for name, x in zip(names, inputs, strict=True) if name in sought_inputs}

        def forward(sought: Mapping[str, jax.Array]) -> Any:
            items = [sought.get(name, x) for name, x in zip(names, inputs, strict=True)]
            outputs, buffers = program({**weights, **sought}, state["buffers"], items)
            return (outputs[first] if head == "logits" else loss(outputs[first], target)), buffers

        result, pull, buffers = jax.vjp(forward, sought, has_aux=True)
        (gradients,) = pull(target if head == "logits" else jnp.ones((), result.dtype))
        trained = {name: gradient for name, gradient in gradients.items() if name in program.trained}
        new, optimizer = _update(job, weights, trained, state["optimizer"])
        return result, gradients, {"weights": {**weights, **new}, "buffers": buffers, "optimizer": optimizer}

    return step, target


def loss(first: jax.Array, target: jax.Array | None) -> jax.Array:
    """What `exporters.loss.start_of_backward` computes: cross entropy of logits, else the mean square, in fp32."""
    first = first.astype(jnp.promote_types(first.dtype, jnp.float32))
    if target is None:
        return jnp.square(first).mean()
    return -jnp.take_along_axis(jax.nn.log_softmax(first), target[:, None], 1).mean()


def start_of_optimizer(job: Job[Options], weights: Mapping[str, jax.Array]) -> dict[str, Any]:
    """Its state before the first step."""

    def zeros() -> dict[str, jax.Array]:
        return {name: jnp.zeros_like(weight) for name, weight in weights.items()}

    if job.training.optimizer == "sgd":
        return {"momentum": zeros()}
    if job.training.optimizer == "adamw":
        return {"mean": zeros(), "square": zeros(), "steps": jnp.zeros((), jnp.float32)}
    return {}


def _update(
    job: Job[Options], weights: Mapping[str, jax.Array], gradients: Mapping[str, jax.Array], state: Mapping[str, Any]
) -> tuple[dict[str, jax.Array], Mapping[str, Any]]:
    """The new weights and state, by torch's SGD or AdamW (their documentation has the formulas)."""
    if job.training.optimizer == "sgd":
        momentum = {
            name: SGD["momentum"] * state["momentum"][name] + gradient + SGD["weight_decay"] * weights[name]
            for name, gradient in gradients.items()
        }
        return {name: weights[name] - LEARNING_RATE * m for name, m in momentum.items()}, {"momentum": momentum}
    if job.training.optimizer == "adamw":
        one, two = ADAMW["betas"]
        steps = state["steps"] + 1
        mean = {n: one * state["mean"][n] + (1 - one) * g for n, g in gradients.items()}
        square = {n: two * state["square"][n] + (1 - two) * g * g for n, g in gradients.items()}
        new = {}
        for name, m in mean.items():
            root = jnp.sqrt(square[name] / (1 - two**steps)) + epsilon(job.precision)
            kept = weights[name] * (1 - LEARNING_RATE * ADAMW["weight_decay"])
            new[name] = (kept - LEARNING_RATE * m / (1 - one**steps) / root).astype(weights[name].dtype)
        return new, {"mean": mean, "square": square, "steps": steps}
    return {}, state
