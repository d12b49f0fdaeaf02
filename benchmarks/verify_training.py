"""Compare training rows of eight models with a plain loop of PyTorch: times of the parts, memory, gradients.

    python benchmarks/verify_training.py [--rounds 3] [MODEL …]

Both take turns, each in a process of its own. Nothing in the plain loop goes through a session or clock of the
profiler's. Prints ours over the plain loop's, the medians over the rounds.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from fnmatch import fnmatch
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

ON_GPU = Path("/proc/driver/nvidia").exists()
DEVICE = "cuda" if ON_GPU else "cpu"
PARTS = ("forward", "backward", "step", "total")
_SECONDS = 2.0


def size(gpu: int, cpu: int) -> int:
    return gpu if ON_GPU else cpu


WIDTH, BATCH = size(1024, 128), size(32, 8)


class LoRA(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.base, self.down, self.up = nn.Linear(width, width), nn.Linear(width, 8), nn.Linear(8, width)

    def forward(self, x: Tensor) -> Tensor:
        return x + F.gelu(self.base(x) + self.up(self.down(x)))


class Checkpointed(nn.Module):
    def __init__(self, blocks: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(WIDTH, 8, 4 * WIDTH, 0.0, batch_first=True) for _ in range(blocks)
        )

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = checkpoint(layer, x, use_reentrant=False)
        return x.mean(1)


class Energy(nn.Module):
    """Forces are the energy's gradient, taken inside forward."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(3, WIDTH), nn.SiLU(), nn.Linear(WIDTH, WIDTH), nn.SiLU(), nn.Linear(WIDTH, 1)
        )

    def forward(self, positions: Tensor) -> Tensor:
        with torch.enable_grad():
            x = positions.detach().requires_grad_()
            (forces,) = torch.autograd.grad(self.net(x).sum(), x, create_graph=True)
        return forces


class Gan(nn.Module):
    """Generator and critic, with the loss that the module returns itself."""

    def __init__(self) -> None:
        super().__init__()
        self.generator = nn.Sequential(nn.Linear(64, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 4 * WIDTH))
        self.critic = nn.Sequential(nn.Linear(4 * WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 1))

    def forward(self, noise: Tensor) -> dict[str, Tensor]:
        return {"loss": F.softplus(-self.critic(self.generator(noise))).mean()}


class Language(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(size(8192, 512), WIDTH)
        self.layers = nn.Sequential(
            *(nn.TransformerEncoderLayer(WIDTH, 8, 4 * WIDTH, 0.0, batch_first=True) for _ in range(2))
        )
        self.head = nn.Linear(WIDTH, size(8192, 512))

    def forward(self, ids: Tensor) -> Any:
        return self.head(self.layers(self.table(ids)))


class Bags(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.EmbeddingBag(400_000, 64, sparse=True)
        self.layers = nn.Sequential(nn.Linear(64, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 10))

    def forward(self, ids: Tensor) -> Any:
        return self.layers(self.table(ids))


def lora() -> Any:
    return nn.Sequential(*(LoRA(WIDTH) for _ in range(8)), nn.Linear(WIDTH, 10)), torch.randn(BATCH, 128, WIDTH)


def gan() -> Any:
    return Gan(), torch.randn(8 * BATCH, 64)


def energy() -> Any:
    return Energy(), torch.randn(BATCH, 256, 3)


def language() -> Any:
    return Language(), torch.randint(500, (BATCH, size(256, 64)))


def segmentation() -> Any:
    convolutions = [nn.Conv2d(3, 64, 3, padding=1), nn.ReLU()]
    for _ in range(4):
        convolutions += [nn.Conv2d(64, 64, 3, padding=1), nn.BatchNorm2d(64), nn.ReLU()]
    return nn.Sequential(*convolutions, nn.Conv2d(64, 21, 1)), torch.randn(BATCH, 3, *(size(256, 64),) * 2)


def embeddings() -> Any:
    return Bags(), torch.randint(400_000, (size(4096, 256), 50))


def checkpointed() -> Any:
    return Checkpointed(4), torch.randn(BATCH, size(256, 64), WIDTH)


def accumulated() -> Any:
    from exporters.build_model import build
    from exporters.source import ModelSource

    return build(ModelSource("resnet18")), torch.randn(size(64, 8), 3, 224, 224)


@dataclass(frozen=True)
class Kind:
    """How one of the models is trained, in the profiler's words, and its loss in plain PyTorch."""

    make: Callable[[], Any]
    loss: Callable[[Any, Tensor], Tensor]
    training: dict[str, Any] = field(default_factory=dict)
    channels_last: bool = False


def over_classes(logits: Tensor, target: Tensor) -> Tensor:
    return F.cross_entropy(logits.flatten(0, 1) if logits.dim() == 3 else logits, target)


def squares(output: Tensor, target: Tensor) -> Tensor:
    return F.mse_loss(output, target)


KINDS = {
    "lora": Kind(lora, over_classes, {"optimizers": ["adamw"], "frozen": ["*.base.*"]}),
    "gan": Kind(gan, lambda output, _: output["loss"], {"optimizers": ["adamw"]}),
    "energy": Kind(energy, squares, {"optimizers": ["adamw"], "head": "mean-square"}),
    "language": Kind(language, over_classes, {"optimizers": ["adamw"]}),
    "segmentation": Kind(segmentation, over_classes, {"optimizers": ["sgd"]}, channels_last=True),
    "embeddings": Kind(embeddings, over_classes, {"optimizers": ["none"]}),
    "checkpointed": Kind(checkpointed, squares, {"optimizers": ["adamw"], "head": "mean-square"}),
    "accumulated": Kind(accumulated, over_classes, {"optimizers": ["sgd"], "accumulation": 4}),
}
OPTIMIZERS: dict[str, Callable[[Any], Any]] = {
    "none": lambda parameters: None,
    "sgd": lambda parameters: torch.optim.SGD(parameters, 1e-6, momentum=0.9, weight_decay=1e-4, fused=True),
    "adamw": lambda parameters: torch.optim.AdamW(parameters, 1e-6, fused=True),
}


def plain(kind: Kind) -> dict[str, float]:
    """Train the model in a loop; return the median milliseconds of each part, and the peak MiB."""
    # PyTorch's own first iteration, which the profiler's workers have behind them.
    F.mse_loss(nn.Linear(2, 2)(torch.ones(2, 2)), torch.ones(2, 2)).backward()
    torch.optim.AdamW([torch.ones(1, requires_grad=True)], fused=True)
    start = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    torch.set_float32_matmul_precision("highest")
    torch.backends.cudnn.allow_tf32 = False
    model, x = kind.make()
    order = torch.channels_last if kind.channels_last else torch.contiguous_format
    model, x = model.to(DEVICE, memory_format=order), x.to(DEVICE)
    x = x.to(memory_format=order) if kind.channels_last else x
    for pattern in kind.training.get("frozen", ()):
        for name, parameter in model.named_parameters():
            if fnmatch(name, pattern):
                parameter.requires_grad_(False)
    optimizer = OPTIMIZERS[kind.training["optimizers"][0]]([p for p in model.parameters() if p.requires_grad])
    parts = x.chunk(kind.training.get("accumulation", 1))
    targets = [target_of(kind, model(part)) for part in parts]

    def iteration(mark: Callable[[str], None]) -> None:
        model.zero_grad(set_to_none=True)
        for part, target in zip(parts, targets, strict=True):
            output = model(part)
            loss = kind.loss(output, target)
            mark("forward")
            (loss if len(parts) == 1 else loss / len(parts)).backward()
            mark("backward")
        if optimizer is not None:
            optimizer.step()
            mark("step")

    for _ in range(5):
        iteration(lambda name: None)
    timed = list((_events if ON_GPU else _clock)(iteration))
    found = {name: statistics.median(one[name] for one in timed) for name in timed[0]}
    used = (torch.cuda.mem_get_info()[1] - torch.cuda.mem_get_info()[0]) / 2**20 if ON_GPU else 0.0
    return found | {"memory": used or resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024 - start}


def target_of(kind: Kind, output: Any) -> Tensor:
    if kind.loss is not over_classes:
        return torch.zeros_like(output) if isinstance(output, Tensor) else torch.zeros(())
    classes = output.shape[-1] if output.dim() == 3 else output.shape[1]
    shape = (output.shape[0] * output.shape[1],) if output.dim() == 3 else (output.shape[0], *output.shape[2:])
    return torch.randint(classes, shape, device=output.device)


def _events(iteration: Callable[[Callable[[str], None]], None]) -> Iterator[dict[str, float]]:
    """Time iterations that are queued, as training runs them."""
    until = time.monotonic() + _SECONDS
    while time.monotonic() < until:
        marks: list[list[tuple[str, torch.cuda.Event]]] = []
        for _ in range(10):
            marks.append([])

            def mark(name: str, into: list[Any] = marks[-1]) -> None:
                event = torch.cuda.Event(enable_timing=True)
                event.record()
                into.append((name, event))

            mark("")
            iteration(mark)
        torch.cuda.synchronize()
        for one in marks[3:]:
            yield _summed([(name, before.elapsed_time(event)) for (_, before), (name, event) in pairwise(one)])


def _clock(iteration: Callable[[Callable[[str], None]], None]) -> Iterator[dict[str, float]]:
    until = time.monotonic() + _SECONDS
    while time.monotonic() < until:
        marks = [("", time.perf_counter())]

        def mark(name: str, into: list[tuple[str, float]] = marks) -> None:
            into.append((name, time.perf_counter()))

        iteration(mark)
        # Its end frees the graph, after the last part.
        whole = 1e3 * (time.perf_counter() - marks[0][1])
        yield _summed([(name, 1e3 * (end - start)) for (_, start), (name, end) in pairwise(marks)]) | {"total": whole}


def _summed(parts: list[tuple[str, float]]) -> dict[str, float]:
    return {n: sum(ms for name, ms in parts if name == n) for n, _ in parts} | {"total": sum(ms for _, ms in parts)}


def ours(name: str, kind: Kind) -> dict[str, Any]:
    """Return the profiler's row of the model, its times by the plain loop's names."""
    import profiler

    _, x = kind.make()
    engine = {"name": "eager", "label": "eager-nhwc", "channels_last": True} if kind.channels_last else "eager"
    results, _ = profiler.measure(
        f"verify_training:{name}", engines=[engine], passes=["training"], training=kind.training,
        batch_sizes=[len(x)], device=DEVICE, budget={"seconds": _SECONDS},
    )  # fmt: skip
    row = results.collect().row(0, named=True)
    if row["status"] != "ok":
        raise SystemExit(f"{name}: {row['status']}: {row['reason']}")
    times = {part: row[f"{part}_ms"] for part in PARTS[:3]}
    said = {key: row[key] for key in ("head", "gradient_error", "warnings")}
    # Iterations of both are queued.
    return times | {"total": 1e3 * row["batch_size"] / row["throughput"], "memory": row["peak_memory_mib"]} | said


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", metavar="MODEL", help=", ".join(KINDS))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--one", choices=("plain", "ours"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    names = options.models or list(KINDS)
    if options.one:
        kind = KINDS[names[0]]
        print(json.dumps(plain(kind) if options.one == "plain" else ours(names[0], kind)))
        return
    print(f"{'':13}" + "".join(f"{name:>27}" for name in (*PARTS, "memory")) + "  loss, gradient error")
    for name in names:
        _compare(name, options.rounds)


def _compare(name: str, rounds: int) -> None:
    found: dict[str, list[dict[str, Any]]] = {"plain": [], "ours": []}
    for number in range(2 * rounds):
        side = ("plain", "ours")[number % 2]
        command = [sys.executable, __file__, name, "--one", side]
        done = subprocess.run(command, cwd=Path(__file__).parent, capture_output=True, text=True)
        if done.returncode:
            print(f"{name}: {side}: {done.stderr[-500:]}")
            return
        found[side].append(json.loads(done.stdout.splitlines()[-1]))
    words = []
    for part in (*PARTS, "memory"):
        b, a = (statistics.median(one.get(part) or 0.0 for one in found[side]) for side in found)
        words.append(f"{a:9.4g} /{b:9.4g} {a / b:6.3f}" if a and b else "")
    last = found["ours"][-1]
    said = [str(last[key]) for key in ("head", "gradient_error", "warnings")]
    print(f"{name:13}" + "".join(f"{word:>27}" for word in words), *said, flush=True)


if __name__ == "__main__":
    main()
