"""Write a folder that runs a model in PyTorch."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors.torch import save_model

from engines.base import Job
from engines.catalog import EIGHT_BITS, TorchOptions
from engines.deployment import Deployed, described_inputs, write_run
from engines.pytorch.eager import DTYPES
from exporters.build_model import restore
from exporters.cache import Cache
from exporters.calls import flattened, typed
from exporters.errors import sentence
from exporters.inputs import input_specs, seeded_inputs
from exporters.onnx_export import quiet
from exporters.source import ModelError
from exporters.weights import cached_state


def write_program(job: Job[TorchOptions], folder: Path, built: Path | None) -> Deployed:
    """Write model.pt2, a program for the batch size of the job, and the weights again for other uses.

    Raises ModelError for a model that torch.export cannot take, and in 8 bits.
    """
    if job.precision in EIGHT_BITS:
        raise ModelError(
            f"{job.precision} is not exported: torch.export would fix the kernels, which torchao chooses by device and "
            "batch. Deploy the module itself, with torchao.quantization.quantize_ and the configuration that the row's "
            "proof names (`quantized_by`)"
        )
    dtype, specs = DTYPES[job.precision], input_specs(job.source)
    model = restore(job.source, cached_state(job.source, Cache())).to(dtype)
    example = typed(seeded_inputs(specs, job.batch_size), dtype)
    try:
        with quiet(), torch.no_grad(), flattened(model, specs):
            torch.export.save(torch.export.export(model, example), folder / "model.pt2")
    except Exception as error:
        raise job.source.error(
            f"torch.export cannot take it, so no program can be written that runs without its source: {sentence(error)}"
        ) from error
    weights = folder / "weights.safetensors"
    save_model(model, str(weights))
    weights.chmod(0o644)  # It is made for its owner's eyes only.
    write_run(__file__, folder)
    return Deployed(
        {"inputs": described_inputs(specs, job.batch_size), "settings": {}},
        f"model.pt2 is a program with its weights, for batches of {job.batch_size} only; weights.safetensors has the "
        "weights for other uses.",
    )
