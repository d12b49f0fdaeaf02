"""Run and train a network in JAX: the torch module's own graph, compiled by XLA for one batch size."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

# Read by JAX as it is imported. Else it takes three quarters of a GPU's memory at once, and no figure of memory holds.
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")

import jax
import jax.numpy as jnp
import numpy as np
import torch
from jax import export

from engines.base import Array, Job, Layer, Mark, Memory, Phase, Proof, Unsupported, ignore
from engines.catalog import Options
from engines.deployment import Deployed, described_inputs, write_run
from engines.jax_xla.hlo import products
from engines.jax_xla.program import make_step, start_of_optimizer, trace
from engines.pytorch.eager import DTYPES
from exporters.build_model import restore
from exporters.cache import Cache
from exporters.gradients import input_names, is_input, of_reference_items, positions
from exporters.inputs import input_specs, seeded_inputs
from exporters.loss import prepare_to_train
from exporters.weights import cached_state

PRODUCTS = {"fp32": "highest", "tf32": "tensorfloat32"}
"""`jax_default_matmul_precision`, of convolutions too. What JAX takes by default on a GPU is TF32."""


def open_session(job: Job[Options]) -> JaxSession:
    """Trace and compile `job`'s model. Raises Unsupported for an operator that is not translated."""
    return JaxSession(job)


class JaxSession:
    """A compiled iteration, and the arrays on the device that it reads and replaces."""

    def __init__(self, job: Job[Options]) -> None:
        self.job = job
        # It opens no other device than the case's, so nothing can run on the CPU in silence.
        jax.config.update("jax_platforms", job.device)
        # A time to build that came out of a cache would be none.
        jax.config.update("jax_enable_compilation_cache", False)
        try:
            with _as_many_threads_as_torch():
                self.device = jax.devices()[0]
        except RuntimeError as error:
            raise Unsupported(f"JAX has no {job.device} device: {error}") from error
        assert job.state is not None, "an engine that needs torch gets the prepared weights"
        model = restore(job.source, job.state).to(DTYPES[job.precision])
        if job.pass_ == "training":
            prepare_to_train(model, job.training.dropout)
        job.phase(Phase.BUILD)
        self.program = trace(model, job.inputs, job.specs)
        self.inputs = [self._to_device(array) for array in job.inputs]
        self.target: jax.Array | None = None
        self.state = self._start()
        self.gradient: Mapping[str, jax.Array] = {}
        self.result: Any = None
        self.compiled = self._compile()
        job.phase(Phase.LOAD)
        jax.block_until_ready((self.state, self.inputs, self.target))

    def feed(self, inputs: Sequence[Array]) -> None:
        self.inputs = [self._to_device(array) for array in inputs]

    def run(self, mark: Mark) -> None:
        """Dispatch one iteration, which XLA compiled as one: there are no boundaries inside it."""
        if self.job.pass_ == "inference":
            self.result = self.compiled(self.state, self.inputs)
        else:
            self.gradient = {}
            self.result, self.gradient, self.state = self.compiled(self.state, self.inputs, self.target)
        if self.job.device == "cpu":
            self.wait()

    def wait(self) -> None:
        """Wait for the last iteration, which has those before it behind it."""
        jax.block_until_ready((self.result, self.gradient, self.state))

    def outputs(self) -> list[Array]:
        return [_to_numpy(array) for array in jax.tree.leaves(self.result)]

    def output_names(self) -> list[str]:
        return list(self.program.names)

    def memory(self) -> Memory:
        """Activations are the compiler's own plan, since the allocator's peak has its search for algorithms in it."""
        weights = _bytes((self.state["weights"], self.state["buffers"]))
        gradients = optimizer = None
        if self.job.pass_ == "training":
            gradients = _bytes({name: each for name, each in self.gradient.items() if not is_input(name)})
            optimizer = _bytes(self.state["optimizer"])
        if self.job.device == "cpu":
            return Memory(weights=weights, gradients=gradients, optimizer=optimizer)
        plan, held = self.compiled.memory_analysis(), self.device.memory_stats() or {}
        own = plan.temp_size_in_bytes + _bytes((self.inputs, self.target, self.result))
        own += _bytes({name: each for name, each in self.gradient.items() if is_input(name)})
        known = weights + (gradients or 0) + (optimizer or 0) + own
        keys = ("peak_pool_bytes", "pool_bytes", "peak_bytes_in_use")
        pool = max((held[key] for key in keys if key in held), default=None)
        slack = None if pool is None else max(pool - known, 0)
        return Memory(weights, own, slack, gradients=gradients, optimizer=optimizer)

    def gradients(self, inputs: Sequence[Array], target: Array | None) -> tuple[Array, dict[str, Array]]:
        """By the very iteration that was measured: weights and items are copied to where it reads them."""
        self.state = self._start()
        self.feed(inputs)
        if self.target is not None:
            assert target is not None
            self.target = jax.device_put(jnp.asarray(target, self.target.dtype), self.device)
        self.run(ignore)
        sampled = {name: _sample(gradient) for name, gradient in self.gradient.items() if not is_input(name)}
        of_inputs = [self.gradient.get(name) for name in input_names(len(self.inputs))]
        parts = of_reference_items(self.job.specs, of_inputs, self.job.batch_size)
        return self.outputs()[0], sampled | {name: _sample(part) * np.float32(factor) for name, part, factor in parts}

    def proof(self) -> Proof:
        """The convolutions and products of the compiled program, as XLA prints it, with their types and precision."""
        seen = products(self.compiled.as_text())
        devices = {device for array in jax.tree.leaves(self.result) for device in array.devices()}
        return Proof(
            library=f"jax {jax.__version__}",
            device=" and ".join(sorted({"cuda" if d.platform == "gpu" else d.platform for d in devices})),
            compute_types=dict(seen.types),
            tf32=self.job.device == "cuda" and seen.below_float32 > 0,
            details={"calls": dict(seen.calls), "operators": len(self.program.module.graph.nodes), **self._threads()},
        )

    def layers(self) -> list[Layer]:
        return []

    def close(self) -> None:
        self.result = self.gradient = self.state = self.inputs = self.target = None  # type: ignore[assignment]
        del self.compiled
        jax.clear_caches()

    def _threads(self) -> dict[str, int]:
        """How many threads XLA's CPU client computes with, by their names; nothing where there is no /proc."""
        names = [path.read_text().strip() for path in Path("/proc/self/task").glob("*/comm")]
        return {"threads": names.count("tf_XLAEigen")} if names and self.job.device == "cpu" else {}

    def _start(self) -> dict[str, Any]:
        """Weights, buffers and the optimizer's state as they are before the first iteration."""
        weights = {name: self._to_device(tensor) for name, tensor in self.program.weights.items()}
        buffers = {name: self._to_device(tensor) for name, tensor in self.program.buffers.items()}
        trained = {name: weight for name, weight in weights.items() if name in self.program.trained}
        optimizer = start_of_optimizer(self.job, trained)
        return {"weights": weights, "buffers": buffers, "optimizer": optimizer}

    def _compile(self) -> Any:
        with jax.default_matmul_precision(PRODUCTS.get(self.job.precision, "default")):
            if self.job.pass_ == "inference":
                program = self.program
                infer = jax.jit(lambda state, inputs: program(state["weights"], state["buffers"], inputs)[0])
                return infer.lower(self.state, self.inputs).compile()
            step, self.target = make_step(self.job, self.program, self.state, self.inputs)
            # What an iteration replaces it may overwrite.
            return jax.jit(step, donate_argnums=0).lower(self.state, self.inputs, self.target).compile()

    def _to_device(self, thing: Array | torch.Tensor) -> jax.Array:
        """An array there, floats in the job's type."""
        return jax.device_put(converted(thing, self.job.precision), self.device)


@contextlib.contextmanager
def _as_many_threads_as_torch() -> Iterator[None]:
    """Have XLA's CPU client, which reads NPROC as it starts, take no more; else it takes every core, whatever
    OMP_NUM_THREADS says. Processes that this one starts later choose for themselves."""
    if "NPROC" in os.environ:
        yield
        return
    os.environ["NPROC"] = str(torch.get_num_threads())
    try:
        yield
    finally:
        del os.environ["NPROC"]


def converted(thing: Array | torch.Tensor, precision: str) -> Array:
    """The same on the host, floats in the type of that precision."""
    tensor = (torch.from_numpy(thing) if isinstance(thing, np.ndarray) else thing).detach()
    if not tensor.is_floating_point():
        return tensor.numpy()
    return tensor.float().numpy().astype(jnp.dtype(str(DTYPES[precision]).removeprefix("torch.")))


def _sample(gradient: jax.Array) -> Array:
    """The elements at `positions`."""
    return _to_numpy(gradient).ravel()[positions(gradient.size)]


def _to_numpy(array: jax.Array) -> Array:
    host = np.asarray(array)
    return host.astype(np.float32) if jnp.issubdtype(array.dtype, jnp.floating) else host


def _bytes(tree: Any) -> int:
    return sum(array.nbytes for array in jax.tree.leaves(tree))


def write_program(job: Job[Options], folder: Path, built: Path | None) -> Deployed:
    """Write model.stablehlo, a program for the batch size and the device of the job, and its weights. It is lowered for
    the device without having it; XLA compiles it when it is run."""
    jax.config.update("jax_platforms", "cpu")
    specs = input_specs(job.source)
    model = restore(job.source, cached_state(job.source, Cache())).to(DTYPES[job.precision])
    inputs = seeded_inputs(specs, job.batch_size)
    program = trace(model, inputs, specs)
    state = {n: converted(t, job.precision) for n, t in {**program.weights, **program.buffers}.items()}
    items = [converted(array, job.precision) for array in inputs]
    with jax.default_matmul_precision(PRODUCTS.get(job.precision, "default")):
        call = jax.jit(lambda state, items: program(state, state, items)[0])
        exported = export.export(call, platforms=[job.device])(state, items)
    (folder / "model.stablehlo").write_bytes(exported.serialize())
    # NumPy's files have no bf16.
    stored = {n: array.astype(np.float32) if array.dtype == "bfloat16" else array for n, array in state.items()}
    np.savez(folder / "weights.npz", **stored)  # type: ignore[arg-type]
    write_run(__file__, folder)
    return Deployed(
        {"inputs": described_inputs(specs, job.batch_size), "settings": {}},
        f"model.stablehlo is the program, for batches of {job.batch_size} only, and weights.npz has its weights; XLA "
        "compiles it at the first call.",
    )
