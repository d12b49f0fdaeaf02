"""Run a model whose weights exceed protobuf's 2 GiB, and print the most memory that each process held.

    python benchmarks/large_model.py FOLDER [--gib 2.4] [--engines eager,ort] [--precisions fp32]

The module has its first and last weights in common; the .onnx file is made next to it, with external data.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper

WIDTH, ROWS = 2048, 32_000
MODULE = f'''
import torch
from torch import nn


class Large(nn.Module):
    """Table, blocks of two products each, and the table again."""

    def __init__(self, blocks):
        super().__init__()
        self.table = nn.Embedding({ROWS}, {WIDTH})
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Linear({WIDTH}, {4 * WIDTH}), nn.ReLU(), nn.Linear({4 * WIDTH}, {WIDTH}))
            for _ in range(blocks)
        )
        self.head = nn.Linear({WIDTH}, {ROWS}, bias=False)
        self.head.weight = self.table.weight

    def forward(self, tokens):
        x = self.table(tokens)
        for block in self.blocks:
            x = x + block(x)
        return self.head(x)


def large(blocks):
    return Large(blocks), {{"tokens": torch.randint({ROWS}, (1, 4))}}
'''
JOB = """
models:
  - name: module
    factory: "large:large"
    options: {{blocks: {blocks}}}
  - name: file
    onnx: large.onnx
    inputs: {{tokens: {{range: [0, {rows}]}}}}
engines: [{engines}]
precisions: [{precisions}]
batch_sizes: [1]
device: {device}
budget: {{seconds: 2, build_timeout: 900}}
"""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="where the model and the run go")
    parser.add_argument("--gib", type=float, default=2.4, help="weights in float32")
    parser.add_argument("--engines", default="eager, ort")
    parser.add_argument("--precisions", default="fp32, fp16")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--only", help="passed on to the profiler, such as model=file")
    arguments = parser.parse_args()
    blocks = max(1, round((arguments.gib * 2**28 - ROWS * WIDTH) / (8 * WIDTH * WIDTH)))
    folder = arguments.folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "large.py").write_text(MODULE)
    if not (folder / "large.onnx").exists():
        write_graph(folder / "large.onnx", blocks)
    job = JOB.format(rows=ROWS, blocks=blocks, **vars(arguments))
    (folder / "large.yaml").write_text(job)
    command = [sys.executable, "-m", "profiler", "large.yaml", *(["--only", arguments.only] if arguments.only else [])]
    environment = os.environ | {"PROFILER_CACHE": str(folder / "cache")}
    path = os.pathsep.join(filter(None, [str(Path(__file__).resolve().parents[1]), os.environ.get("PYTHONPATH")]))
    child = subprocess.Popen(command, cwd=folder, env=environment | {"PYTHONPATH": path})
    peaks, most = watched(child)
    print(f"\n{'GiB own':>8} {'mapped':>7}  s  process")
    for name, (own, mapped, first, last) in peaks.items():
        print(f"{own / 2**30:8.2f} {mapped / 2**30:7.2f}  {last - first:.0f}  {name}")
    print(f"{most / 2**30:8.2f}            all of them together, own memory")
    return child.returncode


def write_graph(path: Path, blocks: int) -> None:
    """Write the module's twin with weights of its own, each as it is drawn."""
    generator, nodes, weights = np.random.default_rng(0), [], []
    with path.with_suffix(".data").open("wb") as file:

        def weight(name: str, *shape: int) -> str:
            tensor = TensorProto(name=name, data_type=TensorProto.FLOAT, dims=shape)
            tensor.data_location = TensorProto.EXTERNAL
            data = generator.standard_normal(shape, np.float32) / np.float32(np.sqrt(shape[0]))
            places = {"location": path.with_suffix(".data").name, "offset": file.tell(), "length": data.nbytes}
            for key, value in places.items():
                tensor.external_data.add(key=key, value=str(value))
            data.tofile(file)
            weights.append(tensor)
            return name

        nodes.append(helper.make_node("Gather", [weight("table", ROWS, WIDTH), "tokens"], ["x0"]))
        for i in range(blocks):
            nodes.append(helper.make_node("MatMul", [f"x{i}", weight(f"up{i}", WIDTH, 4 * WIDTH)], [f"wide{i}"]))
            nodes.append(helper.make_node("Relu", [f"wide{i}"], [f"kept{i}"]))
            nodes.append(helper.make_node("MatMul", [f"kept{i}", weight(f"down{i}", 4 * WIDTH, WIDTH)], [f"y{i}"]))
            nodes.append(helper.make_node("Mul", [f"y{i}", "half"], [f"x{i + 1}"]))
    weights.append(helper.make_tensor("half", TensorProto.FLOAT, [], [0.5]))
    tokens = helper.make_tensor_value_info("tokens", TensorProto.INT64, ["batch", 4])
    result = helper.make_tensor_value_info(f"x{blocks}", TensorProto.FLOAT, ["batch", 4, WIDTH])
    graph = helper.make_graph(nodes, "large", [tokens], [result], weights)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10), path)


def watched(child: subprocess.Popen[bytes]) -> tuple[dict[str, tuple[int, int, float, float]], int]:
    """Return the peak of each process of the child's tree, by the file that it prints to, which says what it does.

    Of each its own bytes, the mapped ones, and when it was first and last seen; then the peak of all own ones together.
    """
    peaks: dict[str, tuple[int, int, float, float]] = {}
    most = 0
    while child.poll() is None:
        total = 0
        for pid in tree(child.pid):
            with contextlib.suppress(OSError, KeyError):
                own, mapped = memory(pid)
                output = Path(f"/proc/{pid}/fd/1").readlink().name.split(".log")[0]
                name = "parent" if pid == child.pid else output or str(pid)
                before = peaks.get(name, (0, 0, time.monotonic(), 0.0))
                peaks[name] = max(own, before[0]), max(mapped, before[1]), before[2], time.monotonic()
                total += own
        most = max(most, total)
        time.sleep(0.1)
    return peaks, most


def memory(pid: int) -> tuple[int, int]:
    """Bytes in memory that are the process's own, and of files that it has mapped, which the kernel can drop."""
    fields = dict(line.split(":") for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    kib = [int(fields[key].split()[0]) for key in ("RssAnon", "RssShmem", "RssFile")]
    return (kib[0] + kib[1]) * 1024, kib[2] * 1024


def tree(root: int) -> list[int]:
    found = [root]
    for pid in found:
        for children in Path(f"/proc/{pid}/task").glob("*/children"):
            with contextlib.suppress(OSError):
                found += map(int, children.read_text().split())
    return found


if __name__ == "__main__":
    sys.exit(main())
