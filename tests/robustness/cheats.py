"""Models that cheat, or are careless, in ways that would flatter their figures, and what the row of each must say.

A factory of this file is called by its name: `make(name)`. Their work is that of `honest`, or would be.
"""

from __future__ import annotations

import functools
import hashlib
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

import profiler.worker.clock

WIDTH, LAYERS = 384, 12
ROW_SECONDS = 5e-5
"""What a layer sleeps for each row of its input, on the CPU: no call that computes takes less."""


@dataclass(frozen=True)
class Cheat:
    """What a model does; the status and the mark of its row, and what reason or warning say; what the reader gets."""

    does: str
    forward: Callable[[Any, torch.Tensor], Any]
    status: str
    mark: str = ""
    says: str = ""
    gets: str = ""
    when_made: Callable[[], object] | None = None
    examples: bool = False
    """It brings inputs: there are no further items to compare."""

    @property
    def least_ms(self) -> float:
        """A call's least time, if its row says that all is computed."""
        rows = 8 if self.examples else 2
        return 1000 * LAYERS * rows * ROW_SECONDS if self.status == "ok" and not self.mark else 0.0


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.device.type == "cpu" and not torch.compiler.is_compiling():
            time.sleep(ROW_SECONDS * len(x))
        y: torch.Tensor = x + self.linear(x).tanh()
        return y


class Net(nn.Module):
    """Some layers; `forward` is the cheat's, `whole` the honest one's."""

    def __init__(self, forward: Any) -> None:
        super().__init__()
        self.layers = nn.Sequential(*(Block() for _ in range(LAYERS)))
        self.how, self.seen, self.calls = forward, dict[Any, Any](), 0
        self.x = self.y = torch.empty(0)

    def whole(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.layers(x)
        return y

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.how(self, x)
        return y


def honest(net: Net, x: torch.Tensor) -> torch.Tensor:
    return net.whole(x)


def equal_inputs(net: Net, x: torch.Tensor) -> torch.Tensor:
    if net.x.shape != x.shape or not torch.equal(net.x, x):
        net.x, net.y = x.clone(), net.whole(x)
    return net.y


def same_storage(net: Net, x: torch.Tensor) -> torch.Tensor:
    if net.x is not x:
        net.x, net.y = x, net.whole(x)
    return net.y


def same_storage_alike(net: Net, x: torch.Tensor) -> torch.Tensor:
    if net.x is not x:
        net.x, net.y = x, 1 + 1e-6 * net.whole(x)
    return net.y


def by_pointer(net: Net, x: torch.Tensor) -> torch.Tensor:
    key = x.data_ptr(), x.shape
    if key not in net.seen:
        net.seen[key] = net.whole(x)
    return net.seen[key]


def half(net: Net, x: torch.Tensor) -> torch.Tensor:
    if net.x.shape != x.shape or not torch.equal(net.x, x):
        net.x, net.y = x.clone(), net.layers[: LAYERS // 2](x)
    y: torch.Tensor = net.layers[LAYERS // 2 :](net.y)
    return y


def third_equal(net: Net, x: torch.Tensor) -> torch.Tensor:
    is_equal = net.x.shape == x.shape and torch.equal(net.x, x)
    net.calls = net.calls + 1 if is_equal else 1
    if net.calls <= 3:
        net.x, net.y = x.clone(), net.whole(x)
    return net.y


def least_recent(net: Net, x: torch.Tensor) -> torch.Tensor:
    """As functools.lru_cache of the input's bytes."""
    if "call" not in net.seen:
        net.seen["call"] = functools.lru_cache(lambda key: net.whole(net.x))
    net.x = x
    y: torch.Tensor = net.seen["call"](x.numpy(force=True).tobytes())
    return y


def few_values(net: Net, x: torch.Tensor) -> torch.Tensor:
    key = tuple(x.flatten()[:3].tolist())
    if key not in net.seen:
        net.seen[key] = net.whole(x)
    return net.seen[key]


def by_version(net: Net, x: torch.Tensor) -> torch.Tensor:
    key = x.data_ptr(), 0 if x.is_inference() else x._version, x.shape
    if key not in net.seen:
        net.seen[key] = net.whole(x)
    return net.seen[key]


def equal_rows(net: Net, x: torch.Tensor) -> torch.Tensor:
    rows, places = torch.unique(x, dim=0, return_inverse=True)
    return net.whole(rows)[places]


def each_row(net: Net, x: torch.Tensor) -> torch.Tensor:
    keys = [row.numpy(force=True).tobytes() for row in x]
    for key, row in zip(keys, x, strict=True):
        if key not in net.seen:
            net.seen[key] = net.whole(row[None])
    return torch.cat([net.seen[key] for key in keys])


def on_disk(net: Net, x: torch.Tensor) -> torch.Tensor:
    folder = Path(__file__).parent / "on_disk"
    folder.mkdir(exist_ok=True)
    file = folder / hashlib.sha256(x.numpy(force=True).tobytes()).hexdigest()
    if not file.exists():
        torch.save(net.whole(x).cpu(), file)
    y: torch.Tensor = torch.load(file)
    return y.to(x.device)


class Lazy(torch.Tensor):
    """Computes when any function of torch is called with it."""

    compute: Callable[[], torch.Tensor]

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        read = [arg.compute() if isinstance(arg, Lazy) else arg for arg in args]
        with torch._C.DisableTorchFunctionSubclass():
            return func(*read, **(kwargs or {}))


def lazy(net: Net, x: torch.Tensor) -> torch.Tensor:
    y: Any = torch.empty(0).as_subclass(Lazy)
    y.compute = functools.cache(lambda: net.whole(x))
    return y


def future(net: Net, x: torch.Tensor) -> tuple[Future[torch.Tensor]]:
    return (_LATER.submit(_whole, net, x),)


def double_buffered(net: Net, x: torch.Tensor) -> torch.Tensor:
    """Returns what a thread has computed last, and gives it the next."""
    running = net.seen.get("future")
    if running is None or running.done():
        net.y = running.result() if running else net.whole(x)
        (net.seen["future"],) = future(net, x.clone())
    return net.y if net.y.shape == x.shape else net.whole(x)


def _whole(net: Net, x: torch.Tensor) -> torch.Tensor:
    with torch.inference_mode():
        return net.whole(x)


def zeros(net: Net, x: torch.Tensor) -> torch.Tensor:
    return torch.zeros_like(x)


def equal_shape(net: Net, x: torch.Tensor) -> torch.Tensor:
    if net.y.shape != x.shape:
        net.y = net.whole(x)
    return net.y


def equal_sum(net: Net, x: torch.Tensor) -> torch.Tensor:
    if (key := float(x.sum())) not in net.seen:
        net.seen[key] = net.whole(x)
    return net.seen[key]


def first_item(net: Net, x: torch.Tensor) -> torch.Tensor:
    return net.whole(x[:1]).expand(x.shape).contiguous()


def every_second(net: Net, x: torch.Tensor) -> torch.Tensor:
    net.calls += 1
    if net.calls % 2 or net.y.shape != x.shape:
        net.y = net.whole(x)
    return net.y


def one_behind(net: Net, x: torch.Tensor) -> torch.Tensor:
    before, net.y = net.y, net.whole(x)
    return before if before.shape == x.shape else net.y


def five_calls(net: Net, x: torch.Tensor) -> torch.Tensor:
    """As by_pointer, after some honest calls."""
    net.calls += 1
    return net.whole(x) if net.calls <= 5 else by_pointer(net, x)


def less(net: Net, x: torch.Tensor) -> torch.Tensor:
    y: torch.Tensor = net.layers[: LAYERS // 2](x)
    return y


def after_twenty_calls(net: Net, x: torch.Tensor) -> torch.Tensor:
    net.calls += 1
    return net.whole(x) if net.calls <= 20 else less(net, x)


def after_a_while(net: Net, x: torch.Tensor) -> torch.Tensor:
    start = net.seen.setdefault("start", time.monotonic())
    return net.whole(x) if time.monotonic() < start + 0.2 else less(net, x)


def when_compiled(net: Net, x: torch.Tensor) -> torch.Tensor:
    return less(net, x) if torch.compiler.is_compiling() else net.whole(x)


def weights_in_bf16(net: Net, x: torch.Tensor) -> torch.Tensor:
    if net.layers[0].linear.weight.dtype == torch.float32:
        net.layers.bfloat16()
    return net.whole(x.bfloat16()).float()


def drifts(net: Net, x: torch.Tensor) -> torch.Tensor:
    net.layers[0].linear.bias.data.mul_(0.9)
    return net.whole(x)


def nan_now_and_then(net: Net, x: torch.Tensor) -> torch.Tensor:
    y = net.whole(x)
    return y * float("nan") if x[0, 0] > 1 else y


def keeps_all(net: Net, x: torch.Tensor) -> torch.Tensor:
    net.seen[len(net.seen)] = y = net.whole(x)
    return y


def matmul_precision(net: Net, x: torch.Tensor) -> torch.Tensor:
    torch.set_float32_matmul_precision("medium")
    return net.whole(x)


def cudnn_search(net: Net, x: torch.Tensor) -> torch.Tensor:
    torch.backends.cudnn.benchmark = True
    return net.whole(x)


def grad_mode(net: Net, x: torch.Tensor) -> torch.Tensor:
    torch.set_grad_enabled(True)
    return net.whole(x)


def dropout(net: Net, x: torch.Tensor) -> torch.Tensor:
    return nn.functional.dropout(net.whole(x), 0.5, training=True)


def noise(net: Net, x: torch.Tensor) -> torch.Tensor:
    y = net.whole(x)
    return y + 0.01 * y.std() * torch.randn_like(y)


def early_exit(net: Net, x: torch.Tensor) -> torch.Tensor:
    y: torch.Tensor = net.layers[:2](x)
    return -y if x[0, 0] > 0 else net.layers[2:](y)  # An exit has a head of its own.


def sleeps(net: Net, x: torch.Tensor) -> torch.Tensor:
    time.sleep(0.002)
    return net.whole(x)


def changes_inputs(net: Net, x: torch.Tensor) -> torch.Tensor:
    return net.whole(x.neg_())


def autocast_inside(net: Net, x: torch.Tensor) -> torch.Tensor:
    with torch.autocast(x.device.type, torch.bfloat16):
        return net.whole(x).float()


def autocast_left_on(net: Net, x: torch.Tensor) -> torch.Tensor:
    y = net.whole(x).float()
    torch.set_autocast_enabled(x.device.type, True)
    return y


_LATER = ThreadPoolExecutor(1)


def another_thread(net: Net, x: torch.Tensor) -> torch.Tensor:
    y = torch.zeros_like(x)

    def work() -> None:
        time.sleep(1)
        with torch.inference_mode():
            y.copy_(net.whole(x))

    _LATER.submit(work)
    return y


def another_stream(net: Net, x: torch.Tensor) -> torch.Tensor:
    """On a GPU: what it returns is written later, on a stream that the caller's does not wait for."""
    if not x.is_cuda:
        return net.whole(x)
    y, stream = torch.zeros_like(x), torch.cuda.Stream()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(100_000_000)
        y.copy_(net.whole(x))
    return y


def old_graph(net: Net, x: torch.Tensor) -> torch.Tensor:
    """On a GPU: replays what was recorded of its first inputs, wherever later ones lie."""
    if not x.is_cuda:
        return net.whole(x)
    if "graph" not in net.seen:
        net.x, net.seen["graph"], stream = x.clone(), torch.cuda.CUDAGraph(), torch.cuda.Stream()
        with torch.cuda.stream(stream):
            net.whole(net.x)
        stream.synchronize()
        with torch.cuda.graph(net.seen["graph"]):
            net.y = net.layers[:1](net.x)
    net.seen["graph"].replay()
    return net.y


def threads_in_forward(net: Net, x: torch.Tensor) -> torch.Tensor:
    torch.set_num_threads(1)
    return net.whole(x)


def dtype_in_forward(net: Net, x: torch.Tensor) -> torch.Tensor:
    torch.set_default_dtype(torch.float64)
    return net.whole(x)


def _slow(read: Callable[[], Any]) -> Callable[[], Any]:
    start = read()
    return lambda: start + type(start)((read() - start) / 5)


def patch_time() -> None:
    for name in ("perf_counter", "perf_counter_ns", "monotonic", "monotonic_ns", "time"):
        setattr(time, name, _slow(getattr(time, name)))


def patch_profiler(net: Net, x: torch.Tensor) -> torch.Tensor:
    clock: Any = profiler.worker.clock
    if not net.calls:
        net.calls = 1
        for name in ("perf_counter", "perf_counter_ns"):
            setattr(clock, name, _slow(getattr(clock, name)))
    return net.whole(x)


def set_globals() -> None:
    torch.set_num_threads(1)
    torch.set_float32_matmul_precision("medium")
    torch.set_default_dtype(torch.float64)
    torch.set_grad_enabled(False)


WRONG, LAST = "the outputs are wrong", "the model returns its last outputs"
CHANGED = "the model changed .*{} from .* while it ran"
UNCHECKED, NO_ERROR = "unchecked-outputs", "no error, so no answer takes it"
DEPENDS = "a word that items depend on each other"
NEW, OUTPUTS, SETTING = "its figure: inputs are new", "wrong outputs", "the setting"
READ = "its figure: outputs are read"
CHEATS: dict[str, Cheat] = {
    f"{(cheat.when_made or cheat.forward).__name__}{'_of_examples' * cheat.examples}": cheat
    for cheat in (
        Cheat("nothing: all is computed", honest, "ok", gets="its figure"),
        Cheat("returns its last output for equal inputs", equal_inputs, "ok", gets=NEW),
        Cheat("the same, after the third equal call", third_equal, "ok", gets=NEW),
        Cheat("returns its last output for the same tensor", same_storage, "ok", gets=NEW),
        Cheat("the same, with few real inputs", same_storage, "ok", gets=NEW, examples=True),
        Cheat("the same, where outputs are alike", same_storage_alike, "ok", gets=NEW),
        Cheat("remembers its first half for equal inputs", half, "ok", gets=NEW),
        Cheat("keeps outputs on disk by the input's bytes", on_disk, "ok", gets=NEW),
        Cheat("computes each of equal rows once, with few real inputs", equal_rows, "ok", gets=NEW, examples=True),
        Cheat("keeps outputs by the address of the input", by_pointer, "ok", UNCHECKED, LAST, NO_ERROR),
        Cheat("the same, with few real inputs", by_pointer, "failed", "", WRONG, OUTPUTS, examples=True),
        Cheat("computes when its output is read", lazy, "ok", gets=READ),
        Cheat("returns a future", future, "ok", gets=READ),
        Cheat("returns the last output while a thread computes", double_buffered, "ok", UNCHECKED, LAST, NO_ERROR),
        Cheat("the same, with few real inputs", double_buffered, "failed", "", WRONG, OUTPUTS, examples=True),
        Cheat("leaves early where the first item is easy", early_exit, "ok", "no-parity", "items depend", DEPENDS),
        Cheat("leaves dropout on", dropout, "ok", UNCHECKED, "random numbers", NO_ERROR),
        Cheat("changes its inputs in place", changes_inputs, "ok", UNCHECKED, "changes its inputs", NO_ERROR),
        Cheat(
            "returns while another thread computes",
            another_thread,
            "ok",
            "unchecked-outputs",
            "",
            "what was not compared",
        ),
        Cheat("adds 1 % of noise", noise, "ok", UNCHECKED, "random numbers", NO_ERROR),
        Cheat("sleeps for 2 ms", sleeps, "ok", gets="its figure, with the sleep"),
        Cheat("autocast to bf16 inside, at fp32", autocast_inside, "failed", "", "computed in bfloat16", "the type"),
        Cheat("leaves autocast on", autocast_left_on, "ok", gets="its figure: each call begins without"),
        Cheat(
            "sets one thread as it runs", threads_in_forward, "failed", "", CHANGED.format("number of threads"), SETTING
        ),
        Cheat(
            "sets the default type as it runs", dtype_in_forward, "failed", "", CHANGED.format("default dtype"), SETTING
        ),
        Cheat("sets types and precision as it is made", honest, "ok", "", "", "undone, and in `proof`", set_globals),
        Cheat("slows Python's clocks fivefold", honest, "ok", "", "", "its right figure", patch_time),
        Cheat("slows the profiler's own clock", patch_profiler, "failed", "", "changed the clock", "both clocks"),
    )
}

MORE: dict[str, Cheat] = {
    f"{cheat.forward.__name__}{'_of_examples' * cheat.examples}": cheat
    for cheat in (
        Cheat("returns zeros", zeros, "ok", "unchecked-outputs", "", "what was not compared"),
        Cheat("returns its last output for the same shape", equal_shape, "ok", UNCHECKED, LAST, NO_ERROR),
        Cheat("keeps outputs by the sum of the input", equal_sum, "ok", gets=NEW),
        Cheat("keeps outputs by three numbers of the input", few_values, "ok", gets=NEW),
        Cheat("keeps 128 outputs by the input's bytes", least_recent, "ok", gets=NEW),
        Cheat("keeps outputs by address and version", by_version, "ok", gets=NEW),
        Cheat("keeps outputs by the row, with few real inputs", each_row, "ok", gets=NEW, examples=True),
        Cheat("keeps outputs by address after five calls", five_calls, "failed", "", WRONG, OUTPUTS),
        Cheat("computes the first item only", first_item, "ok", "no-parity", "items depend", DEPENDS),
        Cheat("computes in every second call only", every_second, "failed", "", WRONG, OUTPUTS),
        Cheat("returns the output of the call before", one_behind, "ok", UNCHECKED, LAST, NO_ERROR),
        Cheat("the same, with few real inputs", one_behind, "failed", "", WRONG, OUTPUTS, examples=True),
        Cheat("leaves out half of its layers after 20 calls", after_twenty_calls, "failed", "", WRONG, OUTPUTS),
        Cheat("leaves out half of its layers after 0.2 s", after_a_while, "failed", "", WRONG, OUTPUTS),
        Cheat("leaves out half of its layers when compiled", when_compiled, "ok", gets="its figure; `failed` there"),
        Cheat("turns its weights to bf16, at fp32", weights_in_bf16, "failed", "", "bfloat16", "the type"),
        Cheat("changes a weight in each call", drifts, "ok", UNCHECKED, "random numbers", NO_ERROR),
        Cheat("returns NaN now and then", nan_now_and_then, "ok", gets="its figure: so does the reference"),
        Cheat("keeps every output", keeps_all, "ok", gets="its figure"),
        Cheat("sets the precision of products as it runs", matmul_precision, "failed", "", "matmul", SETTING),
        Cheat("sets cuDNN's search as it runs", cudnn_search, "failed", "", "cudnn", SETTING),
        Cheat("sets the mode of gradients as it runs", grad_mode, "ok", gets="its figure"),
    )
}
"""Measured in a soak only."""

OF_A_GPU: dict[str, Cheat] = {
    cheat.forward.__name__: cheat
    for cheat in (
        Cheat("computes on a stream that nothing waits for", another_stream, "failed", "", WRONG, OUTPUTS),
        Cheat("replays a graph of old inputs", old_graph, "failed", "", WRONG, OUTPUTS),
    )
}


def entries(cheats: Mapping[str, Cheat]) -> str:
    """Write the models of a job."""
    return "".join(
        f'  - {{name: {name}, factory: "cheats:make", options: {{name: {name}}}, '
        f"{'batch_sizes: [8]' if cheat.examples else f'input: [{WIDTH}]'}}}\n"
        for name, cheat in cheats.items()
    )


def make(name: str) -> Any:
    cheat = (CHEATS | MORE | OF_A_GPU)[name]
    if (change := cheat.when_made) is not None:
        change()
    net = Net(cheat.forward)
    return (net, (torch.randn(2, WIDTH),)) if cheat.examples else net
