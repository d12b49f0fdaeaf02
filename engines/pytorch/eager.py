"""Run a module in PyTorch eager, for inference or training, with or without a CUDA graph, and write what deploys it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from engines.base import Array, Job, Layer, Mark, Memory, Phase, Proof, ignore
from engines.catalog import EIGHT_BITS, EagerOptions, TorchOptions, float_part
from engines.cuda_graph import capture
from engines.deployment import Deployed, described_inputs, write_run
from engines.layer_profile.node_mapping import origins
from engines.layer_profile.torch_modules import profile_module
from engines.pytorch.layer_step import LayerStep
from engines.pytorch.quantized import quantize, stored
from engines.pytorch.training_step import TrainingStep
from exporters.build_model import restore
from exporters.cache import Cache
from exporters.calls import call, flattened, named_outputs, typed
from exporters.errors import sentence
from exporters.inputs import arguments, first_items, input_specs, read_onnx, seeded_inputs
from exporters.onnx_export import quiet
from exporters.source import ModelError
from exporters.watch import Watch
from exporters.weights import cached_state

DTYPES = {
    **dict.fromkeys(("fp32", "tf32", "amp-fp16", "amp-bf16"), torch.float32),
    "fp16": torch.float16,
    "bf16": torch.bfloat16,
}
"""Of weights and inputs."""
CHANNELS_LAST = {4: torch.channels_last, 5: torch.channels_last_3d}
"""By a tensor's dimensions: those of images, and of volumes or clips."""
_COMPUTE = {"convolution", "addmm", "mm", "bmm", "baddbmm", "linear", "matmul", "bilinear", "convolution_backward"}
# As inference mode has them.
_COMPUTE |= {f"conv{kind}{n}d" for kind in ("", "_transpose") for n in (1, 2, 3)} | {"lstm", "gru"}
_COMPUTE |= {"_int_mm", "out_dtype", "_scaled_mm", "f8f8bf16_rowwise"}  # Of torchao; out_dtype is int8's on a GPU.
_SAME = {"uint8": "int8", "float8_e4m3fn": "float8"}
"""What proofs call a type that products are computed in: uint8 times int8 is int8's arithmetic."""
_WARM_UPS_BEFORE_CAPTURE = 3
_PROOF_ITEMS = 2
"""That many of a batch show all operators, and need no second batch's memory next to what a graph or a compiled module
holds."""


def open_session(job: Job[EagerOptions]) -> EagerSession:
    """Open `job` in PyTorch eager. Raises exporters.build_model.ModelError, or what the model itself raises."""
    return EagerSession(job)


def set_switches(job: Job[TorchOptions]) -> None:
    """Set TF32 and cuDNN as the job asks.

    Through torch's older TF32 flags: setting them keeps the newer `fp32_precision` in step, while setting that makes
    reading these an error, and torch.export and users' models read them.
    """
    torch.backends.cuda.matmul.allow_tf32 = job.precision == "tf32"
    torch.backends.cudnn.allow_tf32 = job.precision == "tf32"
    torch.backends.cudnn.enabled = job.options.cudnn
    torch.backends.cudnn.benchmark = job.options.cudnn_benchmark


class EagerSession:
    """A torch module, its inputs on the device, and how to run one iteration of it."""

    def __init__(self, job: Job[TorchOptions]) -> None:
        set_switches(job)
        self.job = job
        self.dtype = DTYPES[float_part(job.precision, job.device)]
        self.formats = (
            CHANNELS_LAST if job.options.channels_last else dict.fromkeys(CHANNELS_LAST, torch.contiguous_format)
        )
        self.model: nn.Module
        self.inputs: list[torch.Tensor] = []
        self.arguments: tuple[tuple[Any, ...], dict[str, Any]] = (), {}
        self.call: Callable[..., Any]
        self.quantized: dict[str, Any] = {}
        """What torchao quantized, for the proof."""
        self.result: Any = None
        self.graph: torch.cuda.CUDAGraph | None = None
        self.fallback: str | None = None
        """Why no CUDA graph could be recorded."""
        self.training: TrainingStep | None = None
        self.step: Callable[[Mark], None] = self._infer if job.pass_ == "inference" else self._train
        self._open()

    def feed(self, inputs: Sequence[Array]) -> None:
        for tensor, array in zip(self.inputs, inputs, strict=True):
            tensor.copy_(torch.from_numpy(array))

    def run(self, mark: Mark) -> None:
        """Enqueue one forward pass, or a training iteration with the boundaries "forward", "backward" and "step"."""
        if self.graph is None and self.job.options.cuda_graph and not self.fallback:
            self._capture(mark)
        if self.graph is not None:
            self.graph.replay()
        else:
            self.step(mark)

    def outputs(self) -> list[Array]:
        return [_to_numpy(tensor) for tensor in named_outputs(self.result).values()]

    def output_names(self) -> list[str]:
        return list(named_outputs(self.result))

    def memory(self) -> Memory:
        weights = sum(t.nbytes for t in stored((*self.model.parameters(), *self.model.buffers())))
        gradients = optimizer = None
        if self.job.pass_ == "training":
            gradients = sum(p.grad.nbytes for p in self.model.parameters() if p.grad is not None)
            optimizer = self.training.optimizer_bytes() if self.training else 0
        if self.job.device == "cpu":
            return Memory(weights=weights, gradients=gradients, optimizer=optimizer)
        allocated, reserved = torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()
        activations = max(allocated - weights - (gradients or 0) - (optimizer or 0), 0)
        return Memory(weights, activations, reserved - allocated, allocated, reserved, gradients, optimizer)

    def gradients(self, inputs: Sequence[Array], target: Array | None) -> tuple[Array, dict[str, Array]]:
        """By the very iteration that was measured: weights and items are copied to where it reads them."""
        assert self.training is not None, "only of training sessions"
        assert self.job.state is not None, "an engine that needs torch gets the prepared weights"
        state = torch.load(self.job.state, map_location="cpu", mmap=True, weights_only=True)
        self.training.start_again(state, inputs, target)
        gradients = self.training.gradients(lambda: self.run(ignore))
        return self.outputs()[0], gradients

    def proof(self) -> Proof:
        """Run once more under a dispatch mode, which sees every operator with the types of its inputs."""
        types, operators = self.operators_seen()
        return self.facts(types, operators=operators)

    def operators_seen(self) -> tuple[Counter[str], int]:
        """The types of the first inputs of the module's convolutions and matrix products, without whatever compiles or
        replays them, and how many operators it runs."""
        seen, types = list[str](), Counter[str]()

        def see(operator: Any, args: Sequence[Any], _: Any) -> None:
            seen.append(operator.__name__)
            if operator.__name__ in _COMPUTE:
                own = _name(next(a for a in args if isinstance(a, torch.Tensor)).dtype)
                types[_SAME.get(own, own)] += 1

        with Watch(see):
            if self.training is not None:
                self.training.few(_PROOF_ITEMS)
            else:
                # A quantized layer's kernel depends on the batch. And on a GPU another batch takes a search of other
                # algorithms, of seconds, where the batch itself has just run as it does here.
                has_run = self.job.device == "cuda" and self.call is self.model and self.graph is None
                items = self.job.batch_size if self.quantized or has_run else _PROOF_ITEMS
                with torch.inference_mode():
                    call(self.model, self.job.specs, first_items(self.job.specs, self.inputs, items))
        return types, len(seen)

    def facts(self, compute_types: Counter[str], **details: Any) -> Proof:
        """What the process's switches and the session's state say, with the types that were seen."""
        cuda = self.job.device == "cuda"
        tf32 = torch.backends.cuda.matmul.allow_tf32 and torch.backends.cudnn.allow_tf32
        images = [w for w in self.model.parameters() if w.dim() in CHANNELS_LAST]
        own = {
            "weight_types": dict(Counter(_name(p.dtype) for p in stored(self.model.parameters()))),
            "channels_last": bool(images)
            and all(w.is_contiguous(memory_format=CHANNELS_LAST[w.dim()]) for w in images),
        }
        return Proof(
            library=f"torch {torch.__version__}",
            device=str(self.inputs[0].device),
            compute_types=dict(compute_types),
            tf32=cuda and tf32,
            cudnn=cuda and torch.backends.cudnn.enabled,
            cuda_graph=self.graph is not None,
            cuda_graph_fallback=self.fallback,
            details=own | self.quantized | details,
        )

    def layers(self) -> list[Layer]:
        """Its operators, seen by torch.profiler; those of a captured graph as they run without it."""
        graph = origins(read_onnx(self.job.onnx).graph) if self.job.onnx else []
        return profile_module(self.model, lambda: self.step(ignore), self.job.device, graph)

    def close(self) -> None:
        self.graph = self.result = None
        self.inputs.clear()
        del self.model, self.call, self.step, self.training

    def _open(self) -> None:
        """The module and the job's inputs, ready to run."""
        self._load()
        self._take_batch()
        self._quantize()

    def _load(self) -> None:
        """The module with the prepared weights, in float."""
        assert self.job.state is not None, "an engine that needs torch gets the prepared weights"
        self.call = self.model = self._to_device(restore(self.job.source, self.job.state))

    def _quantize(self) -> None:
        """Quantize the module where the precision asks for it, which takes a call in float."""
        job = self.job
        if job.precision in EIGHT_BITS:
            job.phase(Phase.BUILD)
            self.quantized = quantize(self.model, job.precision, job.device, lambda: self._infer(ignore))
            self.result = None
            job.phase(Phase.LOAD)

    def _forget(self) -> None:
        """Free what the inputs brought."""
        self.graph = self.fallback = self.result = self.training = None
        self.model.zero_grad(set_to_none=True)
        self.inputs.clear()

    def _take_batch(self) -> None:
        """The job's inputs, and the training iteration on them."""
        job = self.job
        self.inputs += [self._to_device(torch.from_numpy(a)) for a in job.inputs]
        self.arguments = arguments(job.specs, self.inputs)
        if job.pass_ == "training":
            iteration = TrainingStep if job.source.layer is None else LayerStep
            self.training = iteration(job, self.model, self.inputs, lambda *args, **kwargs: self.call(*args, **kwargs))

    def _infer(self, mark: Mark) -> None:
        self.result = None  # Else a second output's memory would be in use while this one is computed.
        with torch.inference_mode():
            positional, keywords = self.arguments
            self.result = self.call(*positional, **keywords)

    def _train(self, mark: Mark) -> None:
        assert self.training is not None
        self.result = None
        self.result = self.training(mark)

    def _capture(self, mark: Mark) -> None:
        """Record one iteration; marks inside it become part of the graph, recorded again at every replay. What cannot
        be recorded, such as a branch on a computed value, is enqueued at every call."""
        for _ in range(_WARM_UPS_BEFORE_CAPTURE):
            self.step(ignore)
        torch.cuda.synchronize()
        # Capturing begins with returning what the allocator had cached: up to 76 MiB more than is held ever after.
        self.job.at_peak()
        try:
            self.graph = capture(lambda: self.step(mark))
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:
            self.fallback = sentence(error)
            torch.cuda.synchronize()

    def _to_device(self, thing: Any) -> Any:
        """A module or tensor on the job's device, floats in the job's type, images in the job's memory order."""
        if isinstance(thing, torch.Tensor):
            dtype = self.dtype if thing.is_floating_point() else thing.dtype
            order = self.formats.get(thing.dim(), torch.contiguous_format)
            return thing.to(self.job.device, dtype, memory_format=order)
        module: nn.Module = thing.to(self.job.device, self.dtype)
        for tensor in (*module.parameters(), *module.buffers()):  # Module.to takes one order, for images alone.
            if tensor.dim() in self.formats:
                tensor.data = tensor.data.contiguous(memory_format=self.formats[tensor.dim()])
        return module


def _to_numpy(tensor: torch.Tensor) -> Array:
    tensor = tensor.detach().cpu()
    return (tensor.float() if tensor.is_floating_point() else tensor).numpy()


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def write_program(job: Job[TorchOptions], folder: Path, built: Path | None) -> Deployed:
    """Write model.pt2, a program for the batch size of the job, and the weights again for other uses. Raises ModelError
    for a model that torch.export cannot take, and in 8 bits."""
    from safetensors.torch import save_model

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
