"""What enters: a Job. What leaves: a session of PyTorch eager, inference or training, with or without a CUDA graph."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from engines.base import Array, Job, Layer, Mark, Memory
from engines.module_layers import profile_module
from exporters.coverage import origins, read_graph
from exporters.load import restore

DTYPES = {"fp32": torch.float32, "tf32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
_COMPUTE = {"convolution", "conv2d", "addmm", "mm", "bmm", "baddbmm", "linear", "matmul", "convolution_backward"}
_WARM_UPS_BEFORE_CAPTURE = 3


def open_session(job: Job) -> EagerSession:
    """Open `job` in PyTorch eager. Raises exporters.load.ModelError, or what the model itself raises."""
    return EagerSession(job)


def set_switches(job: Job) -> None:
    """Set TF32 and cuDNN as the job asks.

    Through torch's older TF32 flags: setting them keeps the newer `fp32_precision` in step, while setting that makes
    reading these an error, and torch.export and users' models read them.
    """
    torch.backends.cuda.matmul.allow_tf32 = job.precision == "tf32"
    torch.backends.cudnn.allow_tf32 = job.precision == "tf32"
    torch.backends.cudnn.enabled = bool(job.options.get("cudnn", True))
    torch.backends.cudnn.benchmark = bool(job.options.get("cudnn_benchmark", False))


class EagerSession:
    """A torch module, its inputs on the device, and how to run one iteration of it."""

    def __init__(self, job: Job) -> None:
        set_switches(job)
        self.job = job
        self.dtype = DTYPES[job.precision]
        self.format = torch.channels_last if job.options.get("channels_last") else torch.contiguous_format
        self.model = self._to_device(_restore(job))
        self.inputs = [self._to_device(torch.from_numpy(a)) for a in job.inputs]
        self.call: Callable[..., Any] = self.model
        self.result: Any = None
        self.graph: torch.cuda.CUDAGraph | None = None
        if job.pass_ == "training":
            self.target = _seeded_target(self.model, self.inputs)
            self.model.train()
            self.step = self._train
        else:
            self.step = self._infer

    def run(self, mark: Mark) -> None:
        """Enqueue one forward pass, or one forward and backward pass with the boundaries "forward" and "backward"."""
        if self.graph is not None:
            self.graph.replay()
        elif self.job.options.get("cuda_graph"):
            self.graph = self._capture(mark)
            self.graph.replay()
        else:
            self.step(mark)

    def outputs(self) -> list[Array]:
        return [_to_numpy(t) for t in tree_leaves(self.result) if isinstance(t, torch.Tensor)]

    def memory(self) -> Memory:
        weights = sum(t.nbytes for t in (*self.model.parameters(), *self.model.buffers()))
        if self.job.device == "cpu":
            return Memory(weights=weights)
        allocated, reserved = torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()
        return Memory(weights, max(allocated - weights, 0), reserved - allocated, allocated, reserved)

    def proof(self) -> dict[str, Any]:
        """Run once more under a dispatch mode, which sees every operator with the types of its inputs."""
        with _Recorder() as seen:
            self.step(_ignore)
        return self.facts() | {"compute_types": dict(seen.types), "operators": sum(seen.operators.values())}

    def facts(self) -> dict[str, Any]:
        """What the process's switches and the session's state say."""
        cuda = self.job.device == "cuda"
        tf32 = torch.backends.cuda.matmul.allow_tf32 and torch.backends.cudnn.allow_tf32
        images = [w for w in self.model.parameters() if w.dim() == 4]
        weights = Counter(_name(p.dtype) for p in self.model.parameters())
        return {
            "library": f"torch {torch.__version__}",
            "device": str(self.inputs[0].device),
            "weight_types": dict(weights),
            "tf32": cuda and tf32,
            "cudnn": cuda and torch.backends.cudnn.enabled,
            "cuda_graph": self.graph is not None,
            "channels_last": bool(images) and all(w.is_contiguous(memory_format=torch.channels_last) for w in images),
        }

    def layers(self) -> list[Layer]:
        """Its operators, seen by torch.profiler; those of a captured graph as they run without it."""
        graph = origins(read_graph(self.job.onnx)) if self.job.onnx else []
        return profile_module(self.model, lambda: self.step(_ignore), self.job.device, graph)

    def close(self) -> None:
        self.graph = self.result = None
        self.inputs.clear()
        del self.model, self.call, self.step

    def _infer(self, mark: Mark) -> None:
        with torch.inference_mode():
            self.result = self.call(*self.inputs)

    def _train(self, mark: Mark) -> None:
        self.model.zero_grad(set_to_none=True)
        loss = _loss(self.call(*self.inputs), self.target)
        mark("forward")
        loss.backward()
        mark("backward")
        self.result = loss.detach()

    def _capture(self, mark: Mark) -> torch.cuda.CUDAGraph:
        """Record one iteration; marks inside it become part of the graph, recorded anew at every replay."""
        for _ in range(_WARM_UPS_BEFORE_CAPTURE):
            self.step(_ignore)
        torch.cuda.synchronize()
        # Capturing begins with returning what the allocator had cached: up to 76 MiB more than is held ever after.
        self.job.at_peak()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=torch.cuda.current_stream()):
            self.step(mark)
        return graph

    def _to_device(self, thing: Any) -> Any:
        """A module or tensor on the job's device, floats in the job's type, images in the job's memory order."""
        if isinstance(thing, torch.Tensor):
            dtype = self.dtype if thing.is_floating_point() else thing.dtype
            memory_format = self.format if thing.dim() == 4 else torch.contiguous_format
            return thing.to(self.job.device, dtype, memory_format=memory_format)
        return thing.to(self.job.device, self.dtype).to(memory_format=self.format)


def _restore(job: Job) -> torch.nn.Module:
    assert job.state is not None, "an engine that needs torch gets the prepared weights"
    return restore(job.source, job.state)


def _seeded_target(model: torch.nn.Module, inputs: list[torch.Tensor]) -> torch.Tensor | None:
    """Class labels, shape (batch,), where the model (in eval mode) returns logits, (batch, classes); else None."""
    with torch.no_grad():
        first = tree_leaves(model(*(x[:1] for x in inputs)))[0]
    if first.dim() != 2:
        return None
    generator = torch.Generator().manual_seed(0)
    return torch.randint(first.shape[1], (inputs[0].shape[0],), generator=generator).to(inputs[0].device)


def _loss(result: Any, target: torch.Tensor | None) -> torch.Tensor:
    """Cross entropy of logits; for any other output, the mean square of its first tensor."""
    first: torch.Tensor = tree_leaves(result)[0].float()
    return first.square().mean() if target is None else torch.nn.functional.cross_entropy(first, target)


class _Recorder(TorchDispatchMode):
    """Counts the operators that run, and for convolutions and matrix products the type of their first input."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.operators: Counter[str] = Counter()
        self.types: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        self.operators[name] += 1
        if name in _COMPUTE:
            self.types[_name(next(a for a in args if isinstance(a, torch.Tensor)).dtype)] += 1
        return func(*args, **(kwargs or {}))


def _to_numpy(tensor: torch.Tensor) -> Array:
    tensor = tensor.detach().cpu()
    return (tensor.float() if tensor.is_floating_point() else tensor).numpy()


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _ignore(name: str) -> None:
    pass
