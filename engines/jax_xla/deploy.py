"""Write a folder that runs a model in JAX, without torch and without this project."""

from __future__ import annotations

from pathlib import Path

import jax
import numpy as np
from jax import export

from engines.base import Job
from engines.catalog import Options
from engines.deployment import Deployed, described_inputs, write_run
from engines.jax_xla.program import trace
from engines.jax_xla.session import PRODUCTS, converted
from engines.pytorch.eager import DTYPES
from exporters.build_model import restore
from exporters.cache import Cache
from exporters.inputs import input_specs, seeded_inputs
from exporters.weights import cached_state


def write_program(job: Job[Options], folder: Path, built: Path | None) -> Deployed:
    """Write model.stablehlo, a program for the batch size and the device of the job, and its weights.

    It is lowered for the device without having it; XLA compiles it when it is run.
    """
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
