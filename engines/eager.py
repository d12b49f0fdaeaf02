"""Run a module in PyTorch eager, for inference or training, with or without a CUDA graph, and deploy it."""

from __future__ import annotations

import math
import re
import traceback
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.linear import NonDynamicallyQuantizableLinear
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from engines.base import Array, Job, Layer, Mark, Memory, Phase, Proof, Unsupported, ignore
from engines.deployment import Deployed, copy_run, described_inputs
from engines.device import capture
from engines.layers import origins, profile_module
from engines.options import EIGHT_BITS, PRECISION_TABLE, CompiledOptions, Device, TorchOptions, float_part
from engines.renewal import Renewal
from engines.training import LayerStep, TrainingStep
from exporters import settings
from exporters.build_model import restore
from exporters.cache import Cache
from exporters.calls import (
    Flattened,
    Watch,
    call,
    cast,
    computes_when_read,
    dense,
    inner_tensors,
    named_outputs,
    stored,
    tensors_in,
    typed,
)
from exporters.errors import sentence
from exporters.inputs import first_items, input_specs, seeded_inputs
from exporters.onnx_export import quiet
from exporters.onnx_files import read_onnx
from exporters.source import ModelError
from exporters.weights import cached_state

DTYPES: dict[str, torch.dtype] = {name: getattr(torch, row.type) for name, row in PRECISION_TABLE.items()}
"""torch types of weights and inputs, by precision."""
CHANNELS_LAST = {4: torch.channels_last, 5: torch.channels_last_3d}
"""Memory format by number of dimensions: images have 4, volumes and clips 5."""
_COMPUTE = {
    *("convolution", "addmm", "mm", "bmm", "baddbmm", "linear", "matmul", "bilinear", "convolution_backward"),
    # Inference mode's operators:
    *(f"conv{kind}{n}d" for kind in ("", "_transpose") for n in (1, 2, 3)),
    *("lstm", "gru"),
    # torchao's; int8 takes out_dtype on a GPU.
    *("_int_mm", "out_dtype", "_scaled_mm", "f8f8bf16_rowwise"),
}
_NEXT: dict[Any, Any] = {torch.inference_mode: torch.no_grad, torch.no_grad: torch.enable_grad}
"""The next mode of inference, which allows more."""
_OF_GRADIENTS = re.compile("requires? grad|[Ii]nference tensor|for backward")
_DROPS = {"bernoulli", "bernoulli_", "native_dropout"}
_MAY_DROP = ("_scaled_dot_product", "_cudnn_rnn")
"""Beginnings of the names of operators with a probability among their arguments."""
_SAME = {"uint8": "int8", "float8_e4m3fn": "float8", "complex64": "float32", "complex128": "float64"}
"""Names in proofs: uint8 times int8 is int8 arithmetic, and a complex product four real ones."""
_MULTIPLE_OF = {("int8", "cuda"): 8, ("fp8", "cuda"): 16}
"""Divisor of both sizes of a layer: else torchao 0.18 multiplies int8 as int32 on the CPU, and skips fp8."""
_FEWEST_ROWS = {("int8", "cuda"): 17}
"""Fewest rows of a layer's input: torch._int_mm refuses fewer on a GPU, and torchao falls back to float32."""
_WARM_UPS_BEFORE_CAPTURE = 3
_PROOF_ITEMS = 2
"""Items run for the proof: enough to show all operators without a second batch's memory."""


def set_switches(job: Job[TorchOptions]) -> None:
    """Set TF32 and cuDNN."""
    # The newer `fp32_precision` follows these flags; setting it would make reading them an error, and torch.export and
    # users' models read them.
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = job.precision == "tf32"
    torch.backends.cudnn.enabled = job.options.cudnn
    torch.backends.cudnn.benchmark = job.options.cudnn_benchmark


class EagerSession:
    """A torch module with its inputs on the device. Raises ModelError and the model's own errors."""

    def __init__(self, job: Job[TorchOptions]) -> None:
        set_switches(job)
        # The model's code may call torch.compile, too. Training keeps that: else flex_attention loses the gradients of
        # tensors that its score function captures (torch 2.11 on an H200).
        is_plain = type(self) is EagerSession and job.pass_ == "inference"
        torch.compiler.set_stance("force_eager" if is_plain else "default")
        self.settings = settings.read()
        self.job = job
        self.dtype = DTYPES[float_part(job.precision, job.device)]
        self.formats = (
            CHANNELS_LAST if job.options.channels_last else dict.fromkeys(CHANNELS_LAST, torch.contiguous_format)
        )
        self.model: nn.Module
        self.inputs: list[torch.Tensor] = []
        self.renewal: Renewal
        self.call: Callable[..., Any]
        self.drops = False
        """True after a dropout operator ran."""
        self.quantized: dict[str, Any] = {}
        """torchao's part of the proof."""
        self.result: Any = None
        self.is_lazy: bool | None = None
        """True if reading the result may compute it; None before the first call."""
        self.graph: torch.cuda.CUDAGraph | None = None
        self.fallback: str | None = None
        """Why no CUDA graph could be recorded."""
        self.guard: Callable[[], AbstractContextManager[Any]] = torch.inference_mode
        self.training: TrainingStep | None = None
        self.step: Callable[[Mark], None] = self._infer if job.pass_ == "inference" else self._train
        self._open()

    def feed(self, inputs: Sequence[Array]) -> None:
        for tensors in self.renewal.copies:
            for tensor, array in zip(tensors, inputs, strict=True):
                tensor.copy_(torch.from_numpy(array))

    def renew(self, calls: int) -> None:
        if self.training is None and self.graph is None:  # Replaying a graph runs no Python.
            self.renewal.renew(calls)

    def move(self) -> None:
        if self.training is None and self.graph is None:
            self.renewal.move()

    def run(self, mark: Mark) -> None:
        """Enqueue one forward pass, or a training iteration with the boundaries "forward", "backward" and "step"."""
        if self.graph is None and self.job.options.cuda_graph and not self.fallback:
            self._capture(mark)
        if self.graph is not None:
            self.graph.replay()
        else:
            self.step(mark)

    def outputs(self) -> list[Array]:
        # Copies, since the model may change the tensors later.
        return [_to_numpy(tensor, copy=True) for tensor in named_outputs(self.result).values()]

    def output_names(self) -> list[str]:
        return list(named_outputs(self.result))

    def memory(self) -> Memory:
        weights = held_bytes((*self.model.parameters(), *self.model.buffers()))
        gradients = optimizer = None
        if self.job.pass_ == "training":
            grads = (p.grad for p in self.model.parameters() if p.grad is not None)
            gradients = sum(part.nbytes for gradient in grads for part in stored(gradient))
            optimizer = self.training.optimizer_bytes() if self.training else 0
        if self.job.device == "cpu":
            return Memory(weights=weights, gradients=gradients, optimizer=optimizer)
        allocated, reserved = torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()
        activations = max(allocated - weights - (gradients or 0) - (optimizer or 0), 0)
        return Memory(weights, activations, reserved - allocated, allocated, reserved, gradients, optimizer)

    def gradients(self, inputs: Sequence[Array], target: Array | None) -> tuple[Array, dict[str, Array]]:
        """Run the measured iteration on copied weights and items."""
        assert self.training is not None, "only training sessions have gradients"
        assert self.job.state is not None, "an engine that needs torch gets the prepared weights"
        state = torch.load(self.job.state, map_location="cpu", mmap=True, weights_only=True)
        self.training.start_again(state, inputs, target)
        gradients = self.training.gradients(lambda: self.run(ignore))
        return self.outputs()[0], gradients

    def proof(self) -> Proof:
        """Run again under a dispatch mode, which sees every operator with the types of its inputs."""
        types, operators = self.operators_seen()
        return self.facts(types, operators=operators)

    def operators_seen(self) -> tuple[Counter[str], int]:
        """Run the plain module; return the input types of its convolutions and products, and its operator count."""
        operators, types = list[str](), Counter[str]()

        def see(operator: Any, args: Sequence[Any], _: Any) -> None:
            name: str = operator.__name__
            operators.append(name)
            may_drop = name.startswith(_MAY_DROP) and any(isinstance(value, float) and 0 < value < 1 for value in args)
            self.drops |= name in _DROPS or may_drop
            if name in _COMPUTE:
                kind = _name(next(a for a in args if isinstance(a, torch.Tensor)).dtype)
                types[_SAME.get(kind, kind)] += 1

        # A quantized layer's kernel depends on the batch. On a GPU another batch may search for algorithms for seconds;
        # the measured batch has just run.
        has_run = self.job.device == "cuda" and self.call is self.model and self.graph is None
        is_whole = self.training is None and (self.quantized or has_run)
        run, items = self._run_plainly, self.job.batch_size
        if self.training is not None:
            run, items = self.training.few, self.training.items
        for count in (items if is_whole else _PROOF_ITEMS, items):  # It may run only at its own batch.
            operators.clear()
            types.clear()
            try:
                with Watch(see):
                    run(count)
                return types, len(operators)
            except Exception:
                traceback.print_exc()
        try:
            run(items)
        except Exception:  # The failed call has spoiled the model's state, so nothing is proven.
            return Counter(), 0
        raise RuntimeError("the model runs, but not while its operators are recorded")

    def _run_plainly(self, items: int) -> None:
        with self.guard():
            self._read(call(self.model, self.job.specs, first_items(self.job.specs, self.inputs, items)))

    def facts(self, compute_types: Counter[str], **details: Any) -> Proof:
        """Build the proof from the process's switches, the session's state and the compute types."""
        cuda = self.job.device == "cuda"
        tf32 = torch.backends.cuda.matmul.allow_tf32 and torch.backends.cudnn.allow_tf32
        images = [w for w in self.model.parameters() if w.dim() in CHANNELS_LAST]
        state = {
            "settings": {name: str(value) for name, value in self.settings.items()},
            **({"settings_undone": settings.UNDONE} if settings.UNDONE else {}),
            "grad_mode": self.guard.__name__,
            "channels_last": bool(images)
            and all(w.is_contiguous(memory_format=CHANNELS_LAST[w.dim()]) for w in images),
        }
        return Proof(
            library=f"torch {torch.__version__}",
            device=str(self.inputs[0].device),
            compute_types=dict(compute_types),
            weight_types=dict(Counter(_name(p.dtype) for p in inner_tensors(self.model.parameters()))),
            tf32=cuda and tf32,
            cudnn=cuda and torch.backends.cudnn.enabled,
            head=self.training.objectives[0].name if self.training else None,
            dropout=self.drops if self.training else None,
            cuda_graph=self.graph is not None,
            cuda_graph_fallback=self.fallback,
            settings_changed=settings.changes(self.settings) or None,
            details=state | self.quantized | details,
        )

    def layers(self) -> list[Layer]:
        """Profile the operators, outside any captured graph."""
        graph = origins(read_onnx(self.job.onnx).graph) if self.job.onnx else []
        return profile_module(self.model, lambda: self.step(ignore), self.job.device, graph)

    def close(self) -> None:
        self.graph = self.result = None
        self.inputs.clear()
        del self.renewal, self.model, self.call, self.step, self.training

    def _open(self) -> None:
        job = self.job
        assert job.state is not None, "an engine that needs torch gets the prepared weights"
        self.call = self.model = self._to_device(restore(job.source, job.state))
        self.inputs += [self._to_device(torch.from_numpy(a)) for a in job.inputs]
        self.renewal = Renewal(job.specs, self.inputs)
        if job.pass_ == "training":
            iteration = TrainingStep if job.source.layer is None else LayerStep
            self.training = iteration(job, self.model, self.inputs, lambda *args, **kwargs: self.call(*args, **kwargs))
        if job.precision in EIGHT_BITS:
            job.phase(Phase.BUILD)  # Quantizing takes a call in float.
            self.quantized = quantize(self.model, job.precision, job.device, lambda: self._infer(ignore))
            self.result = None
            job.phase(Phase.LOAD)

    def _infer(self, mark: Mark) -> None:
        self.result = None  # Else the next output would need memory beside this one.
        positional, keywords = next(self.renewal.turn)
        try:
            with self.guard():
                self.result = self.call(*positional, **keywords)
                if self.is_lazy is not False:
                    self._read(self.result)
        except RuntimeError as error:  # The module computes gradients inside, such as forces.
            if self.guard not in _NEXT or not _OF_GRADIENTS.search(str(error)):
                raise
            self.guard = _NEXT[self.guard]
            self._infer(mark)

    def _read(self, result: Any) -> None:
        """Read the result within the call, if only reading computes it."""
        if self.is_lazy is None:
            self.is_lazy = computes_when_read(result)
        if self.is_lazy:
            for _, tensor in tensors_in(result):
                _to_numpy(tensor)

    def _train(self, mark: Mark) -> None:
        assert self.training is not None
        self.result = None
        self.result = self.training(mark)

    def _capture(self, mark: Mark) -> None:
        """Record one iteration with its marks; an iteration that cannot be recorded is enqueued at every call."""
        for _ in range(_WARM_UPS_BEFORE_CAPTURE):
            self.step(ignore)
        torch.cuda.synchronize()
        # Capturing first returns the allocator's cache: up to 76 MiB more than is in use later.
        self.job.at_peak()
        try:
            self.graph = capture(lambda: self.step(mark))
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:
            self.fallback = sentence(error)
            torch.cuda.synchronize()

    def _to_device(self, thing: Any) -> Any:
        if isinstance(thing, torch.Tensor):
            dtype = self.dtype if thing.is_floating_point() else thing.dtype
            order = self.formats.get(thing.dim(), torch.contiguous_format)
            return thing.to(self.job.device, dtype, memory_format=order)
        module: nn.Module = cast(thing.to(self.job.device), self.dtype)
        for tensor in (*module.parameters(), *module.buffers()):  # Module.to takes one memory format, for images alone.
            if tensor.dim() in self.formats and tensor.layout == torch.strided:
                tensor.data = tensor.data.contiguous(memory_format=self.formats[tensor.dim()])
        return module


open_session = EagerSession


def _to_numpy(tensor: torch.Tensor, copy: bool = False) -> Array:
    tensor = dense(tensor.detach().to("cpu", copy=copy))
    return (tensor.float() if tensor.is_floating_point() else tensor).numpy()


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def quantize(model: nn.Module, precision: str, device: Device, infer: Callable[[], object]) -> dict[str, Any]:
    """Quantize the linear layers of `model` in place by torchao; return their number and the method for the proof.

    Each row of weights has a scale, and at every call each token of activations; products are computed in 8 bits.
    `infer` runs the model once. Raises Unsupported if no layer can be quantized.
    """
    import torchao
    from torchao.quantization import quantize_

    linear = [part for part in model.modules() if isinstance(part, nn.Linear)]
    # nn.MultiheadAttention's projection only lends its weights.
    layers = [part for part in linear if not isinstance(part, NonDynamicallyQuantizableLinear)]
    chosen = _choose(layers, precision, device, infer)
    config = _config(precision, device)
    quantize_(model, config, lambda part, name: part in chosen and not is_traceable_wrapper_subclass(part.weight))
    torch.backends.mha.set_fastpath_enabled(False)  # torch's fused transformer layer reads plain weights.
    if device == "cuda":  # Do not count the memory of quantizing.
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    quantized = sum(is_traceable_wrapper_subclass(part.weight) for part in layers)
    return {
        "linear_layers": len(layers),
        "quantized_layers": quantized,
        "quantized_by": f"torchao {torchao.__version__}, {type(config).__name__}",
    }


def _choose(
    layers: Sequence[nn.Linear], precision: str, device: Device, infer: Callable[[], object]
) -> Collection[nn.Module]:
    """Choose the layers that torchao can compute in 8 bits on the device. Raises Unsupported if there are none."""
    if not layers:
        raise Unsupported(f"{precision}: torchao quantizes nn.Linear layers, and the model has none")
    step, fewest = (table.get((precision, device), 1) for table in (_MULTIPLE_OF, _FEWEST_ROWS))
    chosen: set[nn.Module] = {part for part in layers if part.in_features % step == part.out_features % step == 0}
    if fewest > 1:
        chosen = {part for part, rows in _rows(chosen, infer).items() if rows >= fewest}
    if not chosen:
        needs = f"sizes that are multiples of {step}" + (f" and inputs of {fewest} rows or more" if fewest > 1 else "")
        raise Unsupported(f"{precision}: on a GPU a linear layer needs {needs}; none of the model's {len(layers)} has")
    return chosen


def held_bytes(tensors: Iterable[Tensor]) -> int:
    """Return the bytes of the tensors' storages, each once: views share one, and an expanded tensor repeats its own."""
    sizes = dict[int, int]()
    for part in (part for tensor in inner_tensors(tensors) for part in stored(tensor)):
        if part.layout == torch.strided:
            storage = part.untyped_storage()
            sizes[storage._cdata] = storage.nbytes()
        else:  # Compressed rows have no storage of their own.
            sizes[id(part)] = part.nbytes
    return sum(sizes.values())


def _config(precision: str, device: Device) -> Any:
    from torchao.quantization import (
        Float8DynamicActivationFloat8WeightConfig,
        Int8DynamicActivationInt8WeightConfig,
        PerRow,
    )
    from torchao.utils import should_reduce_range

    if precision == "fp8":
        return Float8DynamicActivationFloat8WeightConfig(granularity=PerRow())
    return Int8DynamicActivationInt8WeightConfig(reduce_range=should_reduce_range(torch.device(device)))


def _rows(layers: Iterable[nn.Module], infer: Callable[[], object]) -> dict[nn.Module, float]:
    """Return the fewest rows of every layer's input in a call, without layers that are not called."""
    fewest: dict[nn.Module, float] = {}

    def note(layer: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        tensor: Tensor = next(iter((*args, *kwargs.values())))
        fewest[layer] = min(tensor.numel() // tensor.shape[-1], fewest.get(layer, math.inf))

    hooks = [layer.register_forward_pre_hook(note, with_kwargs=True) for layer in layers]
    try:
        infer()
    finally:
        for hook in hooks:
            hook.remove()
    return fewest


_USAGE = """import torch

model = torch.export.load("model.pt2").module()
{compiled}with torch.inference_mode():
    outputs = model({{variables}})"""
_COMPILED = "model = torch.compile(model, dynamic=False)\n"


def deploy(job: Job[TorchOptions], folder: Path, built: Path | None) -> Deployed:
    """Write model.pt2, a program for the job's batch size, and the weights for other uses. Raises ModelError."""
    from safetensors.torch import save_model

    if job.precision in EIGHT_BITS:
        raise ModelError(
            f"{job.precision} is not exported: torchao chooses its kernels by device and batch. Deploy the module with "
            "torchao.quantization.quantize_ and the configuration in the row's proof (`quantized_by`)"
        )
    dtype, specs = DTYPES[job.precision], input_specs(job.source)
    model = cast(restore(job.source, cached_state(job.source, Cache())), dtype)
    example = typed(seeded_inputs(specs, job.batch_size), dtype)
    failing = job.source.failing("torch.export", "no program can be written: export another variant")
    with failing, quiet(), torch.no_grad():
        program = torch.export.export(Flattened(model, specs), example)
        for node in program.graph.nodes:
            node.meta.pop("stack_trace", None)  # It has paths of the traced code.
        torch.export.save(program, folder / "model.pt2")
    weights = folder / "weights.safetensors"
    save_model(model, str(weights))
    weights.chmod(0o644)  # safetensors makes it readable by its owner only.
    copy_run("run_torch.py", folder)
    return Deployed(
        {"inputs": described_inputs(specs, job.batch_size), "settings": {}},
        f"model.pt2 is a program with its weights, for batches of {job.batch_size} only; weights.safetensors has the "
        "weights for other uses.",
        _USAGE.format(compiled=_COMPILED * isinstance(job.options, CompiledOptions)),
    )
