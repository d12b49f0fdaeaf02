"""Models that cheat, or are careless, in ways that would flatter their figures, and what the row of each must say.

A factory of this file is called by its name: `make(name)`. Their work is that of `honest`, or would be.
"""

from __future__ import annotations

import functools
import hashlib
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn

import profiler.worker.clock

WIDTH, LAYERS = 384, 12
ROW_SECONDS = 5e-5
"""What a layer sleeps for each row of its input, on the CPU: no call that computes takes less."""


class Cheat(NamedTuple):
    """What a model does in each call, and the status, the mark and the words of its row."""

    forward: Callable[[Any, torch.Tensor], Any]
    status: str = "ok"
    mark: str = ""
    says: str = ""
    when_made: Callable[[], object] | None = None
    examples: bool = False
    """It brings inputs: there are no further items to compare."""

    @property
    def least_ms(self) -> float:
        rows = 8 if self.examples else 2
        return 1000 * LAYERS * rows * ROW_SECONDS if self.status == "ok" and not self.mark else 0.0


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.device.type == "cpu" and not torch.compiler.is_compiling():
            time.sleep(ROW_SECONDS * len(x))
        return x + self.linear(x).tanh()


class Net(nn.Module):
    """Some layers; `forward` is the cheat's, `whole` the honest one's."""

    def __init__(self, forward: Any) -> None:
        super().__init__()
        self.layers = nn.Sequential(*(Block() for _ in range(LAYERS)))
        self.how, self.seen, self.calls = forward, dict[Any, Any](), 0
        self.x = self.y = torch.empty(0)

    def whole(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.how(self, x)


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


def keeps(key: Callable[[torch.Tensor], object]) -> Callable[[Net, torch.Tensor], torch.Tensor]:
    """Compute once for each key of the input."""

    def forward(net: Net, x: torch.Tensor) -> torch.Tensor:
        if (place := key(x)) not in net.seen:
            net.seen[place] = net.whole(x)
        return net.seen[place]

    return forward


by_pointer = keeps(lambda x: (x.data_ptr(), x.shape))


def sets(change: Callable[[], object]) -> Callable[[Net, torch.Tensor], torch.Tensor]:
    """Change a setting of the process in each call."""
    return lambda net, x: (change(), net.whole(x))[1]


def half(net: Net, x: torch.Tensor) -> torch.Tensor:
    if net.x.shape != x.shape or not torch.equal(net.x, x):
        net.x, net.y = x.clone(), net.layers[: LAYERS // 2](x)
    return net.layers[LAYERS // 2 :](net.y)


def third_equal(net: Net, x: torch.Tensor) -> torch.Tensor:
    is_equal = net.x.shape == x.shape and torch.equal(net.x, x)
    net.calls = net.calls + 1 if is_equal else 1
    if net.calls <= 3:
        net.x, net.y = x.clone(), net.whole(x)
    return net.y


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
    net.calls += 1
    return net.whole(x) if net.calls <= 5 else by_pointer(net, x)


def less(net: Net, x: torch.Tensor) -> torch.Tensor:
    return net.layers[: LAYERS // 2](x)


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


UNCHECKED = "unchecked-outputs"
LAST = ("ok", UNCHECKED, "the model returns its last outputs")
RANDOM = ("ok", UNCHECKED, "random numbers")
DEPENDS = ("ok", "no-parity", "items depend")
WRONG = ("failed", "", "the outputs are wrong")
CHANGED = "the model changed .*{} from .* while it ran"
CHEATS: dict[str, Cheat] = {
    "honest": Cheat(honest),
    "equal_inputs": Cheat(equal_inputs),
    "third_equal": Cheat(third_equal),
    "same_storage": Cheat(same_storage),
    "same_storage_of_examples": Cheat(same_storage, examples=True),
    "same_storage_alike": Cheat(same_storage_alike),
    "half": Cheat(half),
    "on_disk": Cheat(on_disk),
    "equal_rows_of_examples": Cheat(equal_rows, examples=True),
    "by_pointer": Cheat(by_pointer, *LAST),
    "by_pointer_of_examples": Cheat(by_pointer, *WRONG, examples=True),
    "lazy": Cheat(lazy),
    "future": Cheat(future),
    "double_buffered": Cheat(double_buffered, *LAST),
    "double_buffered_of_examples": Cheat(double_buffered, *WRONG, examples=True),
    "early_exit": Cheat(early_exit, *DEPENDS),
    "dropout": Cheat(dropout, *RANDOM),
    "changes_inputs": Cheat(changes_inputs, "ok", UNCHECKED, "changes its inputs"),
    "another_thread": Cheat(another_thread, "ok", UNCHECKED),
    "noise": Cheat(noise, *RANDOM),
    "sleeps": Cheat(sleeps),
    "autocast_inside": Cheat(autocast_inside, "failed", "", "computed in bfloat16"),
    "autocast_left_on": Cheat(autocast_left_on),
    "threads": Cheat(sets(lambda: torch.set_num_threads(1)), "failed", "", CHANGED.format("number of threads")),
    "dtype": Cheat(sets(lambda: torch.set_default_dtype(torch.float64)), "failed", "", CHANGED.format("default dtype")),
    "set_globals": Cheat(honest, when_made=set_globals),
    "patch_time": Cheat(honest, when_made=patch_time),
    "patch_profiler": Cheat(patch_profiler, "failed", "", "changed the clock"),
}
MORE: dict[str, Cheat] = {
    "zeros": Cheat(zeros, "ok", UNCHECKED),
    "equal_shape": Cheat(keeps(lambda x: x.shape), *LAST),
    "equal_sum": Cheat(keeps(lambda x: float(x.sum()))),
    "few_values": Cheat(keeps(lambda x: tuple(x.flatten()[:3].tolist()))),
    "equal_bytes": Cheat(keeps(lambda x: x.numpy(force=True).tobytes())),
    "by_version": Cheat(keeps(lambda x: (x.data_ptr(), 0 if x.is_inference() else x._version, x.shape))),
    "each_row_of_examples": Cheat(each_row, examples=True),
    "five_calls": Cheat(five_calls, *WRONG),
    "first_item": Cheat(first_item, *DEPENDS),
    "every_second": Cheat(every_second, *WRONG),
    "one_behind": Cheat(one_behind, *LAST),
    "one_behind_of_examples": Cheat(one_behind, *WRONG, examples=True),
    "after_twenty_calls": Cheat(after_twenty_calls, *WRONG),
    "after_a_while": Cheat(after_a_while, *WRONG),
    "when_compiled": Cheat(when_compiled),
    "weights_in_bf16": Cheat(weights_in_bf16, "failed", "", "bfloat16"),
    "drifts": Cheat(drifts, *RANDOM),
    "nan_now_and_then": Cheat(nan_now_and_then),
    "keeps_all": Cheat(keeps_all),
    "matmul_precision": Cheat(sets(lambda: torch.set_float32_matmul_precision("medium")), "failed", "", "matmul"),
    "cudnn_search": Cheat(sets(lambda: setattr(torch.backends.cudnn, "benchmark", True)), "failed", "", "cudnn"),
    "grad_mode": Cheat(sets(lambda: torch.set_grad_enabled(True))),
}
"""Measured in a soak only."""
OF_A_GPU: dict[str, Cheat] = {"another_stream": Cheat(another_stream, *WRONG), "old_graph": Cheat(old_graph, *WRONG)}


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
