"""Run and train a network in JAX: torch.export's graph, walked by torch.fx once, compiled by XLA for one batch."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

# JAX reads this on import; otherwise it reserves three quarters of the GPU's memory, and memory figures mean nothing.
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")

import jax
import jax.numpy as jnp
import numpy as np
import torch
from torch.export.graph_signature import InputKind, OutputKind

from engines.base import NO_FLOATS, Array, Job, Layer, Mark, Memory, Phase, Proof, Unsupported, ignore
from engines.eager import DTYPES
from engines.jax_operators import DECOMPOSED, OPERATORS, products
from engines.options import Options
from exporters.build_model import restore
from exporters.calls import Flattened, chosen, prepare_to_train, typed
from exporters.factories import hooked_tensors
from exporters.gradients import input_names, is_input, of_reference_items, positions, reference_items, tiled
from exporters.inputs import TensorSpec
from exporters.losses import OWN, draw, form
from exporters.onnx_export import quiet

PRODUCTS = {"fp32": "highest", "tf32": "tensorfloat32"}
"""`jax_default_matmul_precision`, of convolutions too. What JAX takes by default on a GPU is TF32."""


State = Mapping[str, Any]
Step = Callable[[State, Sequence[jax.Array], jax.Array | None], tuple[jax.Array, dict[str, jax.Array], State]]


def open_session(job: Job[Options]) -> JaxSession:
    """Trace and compile `job`'s model. Raises Unsupported for an operator that is not translated."""
    return JaxSession(job)


class JaxSession:
    """A compiled iteration, and the arrays on the device that it reads and replaces."""

    def __init__(self, job: Job[Options]) -> None:
        if job.training.optimizer != "none":
            raise Unsupported("the JAX engine trains without an optimizer's step: ask for optimizers: [none]")
        if job.training.accumulation > 1:
            raise Unsupported("the JAX engine accumulates no gradients: ask for accumulation: 1")
        self.job = job
        # XLA's CPU client reads it at start; otherwise it takes every core.
        os.environ.setdefault("NPROC", str(torch.get_num_threads()))
        # Open only the case's device, so that nothing silently runs on the CPU.
        jax.config.update("jax_platforms", job.device)
        # A cached build would have no build time.
        jax.config.update("jax_enable_compilation_cache", False)
        try:
            self.device = jax.devices()[0]
        except RuntimeError as error:
            raise Unsupported(f"JAX has no {job.device} device: {error}") from error
        assert job.state is not None, "an engine that needs torch gets the prepared weights"
        model = restore(job.source, job.state).to(DTYPES[job.precision])
        if job.pass_ == "training":
            if hooked := hooked_tensors(model):
                raise Unsupported(f"JAX runs no hooks of torch, as {hooked[0]} has")
            asked = job.training
            prepare_to_train(model, asked.dropout, asked.input_gradient, asked.frozen)
        job.phase(Phase.BUILD)
        self.program = trace(model, job.inputs, job.specs)
        self.inputs = [self._to_device(array) for array in job.inputs]
        self.target: jax.Array | None = None
        self.head: str | None = None
        self.state = self._start()
        self.gradient: Mapping[str, jax.Array] = {}
        self.result: Any = None
        self.compiled = self._compile()
        job.phase(Phase.LOAD)
        jax.block_until_ready((self.state, self.inputs, self.target))

    def feed(self, inputs: Sequence[Array]) -> None:
        self.inputs = [self._to_device(array) for array in inputs]

    def run(self, mark: Mark) -> None:
        """Dispatch one iteration, which has no inner boundaries."""
        if self.job.pass_ == "inference":
            self.result = self.compiled(self.state, self.inputs)
        else:
            self.gradient = {}
            self.result, self.gradient, self.state = self.compiled(self.state, self.inputs, self.target)
        if self.job.device == "cpu":
            self.wait()

    def wait(self) -> None:
        """Wait for the last iteration, and so for those before it."""
        jax.block_until_ready((self.result, self.gradient, self.state))

    def outputs(self) -> list[Array]:
        return [_to_numpy(array) for array in jax.tree.leaves(self.result)]

    def output_names(self) -> list[str]:
        return list(self.program.names)

    def memory(self) -> Memory:
        """Count activations by the compiler's plan: the allocator's peak has its search for algorithms in it."""
        weights = _bytes((self.state["weights"], self.state["buffers"]))
        gradients = optimizer = None
        if self.job.pass_ == "training":
            gradients = _bytes({name: gradient for name, gradient in self.gradient.items() if not is_input(name)})
            optimizer = 0
        if self.job.device == "cpu":
            return Memory(weights=weights, gradients=gradients, optimizer=optimizer)
        plan, statistics = self.compiled.memory_analysis(), self.device.memory_stats() or {}
        activations = plan.temp_size_in_bytes + _bytes((self.inputs, self.target, self.result))
        activations += _bytes({name: gradient for name, gradient in self.gradient.items() if is_input(name)})
        accounted = weights + (gradients or 0) + activations
        pool = max(statistics.get(key, 0) for key in ("peak_pool_bytes", "pool_bytes", "peak_bytes_in_use"))
        slack = max(pool - accounted, 0) if pool else None
        return Memory(weights, activations, slack, gradients=gradients, optimizer=optimizer)

    def gradients(self, inputs: Sequence[Array], target: Array | None) -> tuple[Array, dict[str, Array]]:
        """Run the measured iteration: weights and items are copied to where it reads them."""
        self.state = self._start()
        self.feed(inputs)
        if self.target is not None:
            assert target is not None
            target = tiled(target, self.target.shape, self.head == "logits")
            self.target = jax.device_put(jnp.asarray(target, self.target.dtype), self.device)
        self.run(ignore)
        sampled = {name: _sample(gradient) for name, gradient in self.gradient.items() if not is_input(name)}
        of_inputs = [self.gradient.get(name) for name in input_names(len(self.inputs))]
        batch = self.job.batch_size
        parts = of_reference_items(self.job.specs, of_inputs, batch, reference_items(batch))
        return self.outputs()[0], sampled | {name: _sample(part) * np.float32(factor) for name, part, factor in parts}

    def proof(self) -> Proof:
        """Read the compiled program's convolutions and products, with their types and precision."""
        compiled = products(self.compiled.as_text())
        devices = {device for array in jax.tree.leaves(self.result) for device in array.devices()}
        return Proof(
            library=f"jax {jax.__version__}",
            device=" and ".join(sorted({"cuda" if d.platform == "gpu" else d.platform for d in devices})),
            compute_types=dict(compiled.types),
            head=self.head,
            tf32=self.job.device == "cuda" and compiled.below_float32 > 0,
            details={"operators": len(self.program.module.graph.nodes)},
        )

    def layers(self) -> list[Layer]:
        return []

    def close(self) -> None:
        self.result = self.gradient = self.state = self.inputs = self.target = None  # type: ignore[assignment]
        del self.compiled
        jax.clear_caches()

    def _start(self) -> dict[str, Any]:
        weights = {name: self._to_device(tensor) for name, tensor in self.program.weights.items()}
        buffers = {name: self._to_device(tensor) for name, tensor in self.program.buffers.items()}
        return {"weights": weights, "buffers": buffers}

    def _compile(self) -> Any:
        with jax.default_matmul_precision(PRODUCTS.get(self.job.precision, "default")):
            if self.job.pass_ == "inference":
                program = self.program
                infer = jax.jit(lambda state, inputs: program(state["weights"], state["buffers"], inputs)[0])
                return infer.lower(self.state, self.inputs).compile()
            step, self.target, self.head = make_step(self.job, self.program, self.state, self.inputs)
            # An iteration may overwrite the state that it replaces.
            return jax.jit(step, donate_argnums=0).lower(self.state, self.inputs, self.target).compile()

    def _to_device(self, thing: Array | torch.Tensor) -> jax.Array:
        return jax.device_put(converted(thing, self.job.precision), self.device)


def converted(thing: Array | torch.Tensor, precision: str) -> Array:
    """Convert on the host, floats to the type of that precision."""
    tensor = (torch.from_numpy(thing) if isinstance(thing, np.ndarray) else thing).detach()
    if not tensor.is_floating_point():
        return tensor.numpy()
    return tensor.float().numpy().astype(jnp.dtype(str(DTYPES[precision]).removeprefix("torch.")))


def _sample(gradient: jax.Array) -> Array:
    return _to_numpy(gradient).ravel()[positions(gradient.size)]


def _to_numpy(array: jax.Array) -> Array:
    host = np.asarray(array)
    return host.astype(np.float32) if jnp.issubdtype(array.dtype, jnp.floating) else host


def _bytes(tree: Any) -> int:
    return sum(array.nbytes for array in jax.tree.leaves(tree))


@dataclass(frozen=True)
class Program:
    """A traced module. `weights` and `buffers` are torch's tensors by name, one name for those that modules share."""

    module: torch.fx.GraphModule
    weights: Mapping[str, torch.Tensor]
    buffers: Mapping[str, torch.Tensor]
    trained: frozenset[str]
    """The weights that have gradients."""
    placeholders: Sequence[tuple[InputKind, str]]
    """The kind and name of each argument of the graph."""
    results: Sequence[tuple[OutputKind, str | None]]
    names: Sequence[str]
    """Names of the outputs."""

    def __call__(self, weights: Mapping[str, Any], buffers: Mapping[str, Any], inputs: Sequence[Any]) -> Any:
        """Return the list of outputs, and the buffers after the call."""
        remaining = iter(inputs)
        arguments = [
            next(remaining) if kind is InputKind.USER_INPUT else weights[name] if name in weights else buffers[name]
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
    """Trace `model` for inputs of these shapes. Raises Unsupported for an operator that is not in OPERATORS."""
    dtype = next((p.dtype for p in model.parameters()), torch.float32)
    example = typed(inputs, dtype)
    # Else torch decomposes attention in 16 bits into products of float32.
    torch.backends.cuda.allow_fp16_bf16_reduction_math_sdp(True)
    flat = Flattened(model, specs)
    with quiet():
        # Functional: statistics that are updated in place become results.
        table = torch.export.default_decompositions()
        for packet in [key for key in table if key._schema.name.removeprefix("aten::") in OPERATORS]:
            table.pop(packet)
        table.update(DECOMPOSED)
        exported = torch.export.export(flat, example).run_decompositions(table)
    names_called = {_name(node.target) for node in exported.graph.nodes if node.op == "call_function"}
    if untranslated := sorted(names_called - OPERATORS.keys()):
        raise Unsupported(f"not translated to JAX: {', '.join(untranslated)}")
    signature, state = exported.graph_signature, {**exported.state_dict, **exported.constants}
    shared = {id(tensor): name for name, tensor in reversed(list(model.named_parameters(remove_duplicate=False)))}
    canonical = {name: shared.get(id(tensor), name) for name, tensor in model.named_parameters(remove_duplicate=False)}
    weights, buffers = {}, {}
    for spec in signature.input_specs:
        if spec.kind is InputKind.PARAMETER:
            weights[canonical[spec.target]] = state[spec.target]
        elif spec.kind is not InputKind.USER_INPUT:
            buffers[spec.target] = state[spec.target]
    return Program(
        exported.graph_module,
        weights,
        buffers,
        frozenset(canonical[name] for name, parameter in model.named_parameters() if parameter.requires_grad),
        [(spec.kind, canonical.get(spec.target or "", spec.target or "")) for spec in signature.input_specs],
        [(spec.kind, spec.target) for spec in signature.output_specs],
        flat.names,
    )


def _name(target: Any) -> str:
    schema: Any = getattr(target, "_schema", None)
    return getattr(target, "__name__", "?") if schema is None else str(schema.name.removeprefix("aten::"))


def make_step(
    job: Job[Options], program: Program, state: State, inputs: Sequence[jax.Array]
) -> tuple[Step, jax.Array | None, str]:
    """Make the training iteration, the target that it needs, and the form of its head.

    It takes state, inputs and target, and returns the loss (or first output), the gradients by name, and the new state.
    """
    if ":" in job.training.head:
        raise Unsupported("JAX computes no loss that is a function of torch")
    first = chosen(job.source.outputs, program.names)[0]
    has_own = job.training.head == "cross-entropy" and not job.source.outputs and "loss" in program.names
    first = program.names.index("loss") if has_own else first
    shapes = jax.eval_shape(lambda s, x: program(s["weights"], s["buffers"], x)[0][first], state, inputs)
    head = OWN if has_own else form(job.training.head, shapes.shape)
    drawn = None if head == OWN else draw(head, shapes.shape)
    target = None if drawn is None else jnp.asarray(drawn.numpy(), shapes.dtype if head == "logits" else jnp.int32)
    asked = job.training.input_gradient or job.source.layer is not None
    names = input_names(len(inputs))
    sought_inputs = {n for n, x in zip(names, inputs, strict=True) if asked and jnp.issubdtype(x.dtype, jnp.floating)}
    if asked and not sought_inputs:
        raise Unsupported(NO_FLOATS)

    def step(state: State, inputs: Sequence[jax.Array], target: jax.Array | None) -> Any:
        weights = state["weights"]
        sought = {name: weight for name, weight in weights.items() if name in program.trained}
        sought |= {name: x for name, x in zip(names, inputs, strict=True) if name in sought_inputs}

        def forward(sought: Mapping[str, jax.Array]) -> Any:
            items = [sought.get(name, x) for name, x in zip(names, inputs, strict=True)]
            outputs, buffers = program({**weights, **sought}, state["buffers"], items)
            return (outputs[first] if head == "logits" else loss(outputs[first], target, head)), buffers

        result, pull, buffers = jax.vjp(forward, sought, has_aux=True)
        (gradients,) = pull(target if head == "logits" else jnp.ones((), result.dtype))
        return result, gradients, {"weights": weights, "buffers": buffers}

    return step, target, head


def loss(first: jax.Array, target: jax.Array | None, head: str) -> jax.Array:
    """Compute as `exporters.losses.Objective`, in fp32."""
    if head == OWN:
        return first.mean()
    first = first.astype(jnp.promote_types(first.dtype, jnp.float32))
    if target is None:
        return jnp.square(first).mean()
    axis = 1 if head == "pixel-cross-entropy" else first.ndim - 1
    return -jnp.take_along_axis(jax.nn.log_softmax(first, axis), jnp.expand_dims(target, axis), axis).mean()
