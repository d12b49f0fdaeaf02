"""Run model.pt2 in PyTorch with the options of config.json. Needs only requirements.txt."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from frame import HERE, Array, main
from torch.export.passes import move_to_device_pass

DTYPES = {"fp32": torch.float32, "tf32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}


class Model:
    def __init__(self, config: dict[str, Any], arrays: list[Array]) -> None:
        options, self.device, dtype = config["options"], config["device"], DTYPES[config["precision"]]
        if self.device == "cuda":
            # After work on two streams, replays take up to 9 % longer (torch 2.11, H200).
            torch.cuda.set_stream(torch.cuda.Stream())
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = config["precision"] == "tf32"
        torch.backends.cudnn.enabled = options.get("cudnn", True)
        torch.backends.cudnn.benchmark = options.get("cudnn_benchmark", False)
        orders = {4: torch.channels_last, 5: torch.channels_last_3d} if options.get("channels_last") else {}
        program = torch.export.load(HERE / "model.pt2")
        if self.device == "cuda":
            program = move_to_device_pass(program, self.device)
        module = program.module()
        for weight in module.parameters():
            weight.data = weight.data.contiguous(memory_format=orders.get(weight.dim(), torch.contiguous_format))
        model: Callable[..., Any] = module
        if config["engine"] == "compiled":
            model = torch.compile(model, mode=options.get("mode", "reduce-overhead"), dynamic=False)
        inputs = []
        for tensor in [torch.from_numpy(array).to(self.device) for array in arrays]:
            typed = tensor.to(dtype) if tensor.is_floating_point() else tensor
            inputs.append(typed.contiguous(memory_format=orders.get(tensor.dim(), torch.contiguous_format)))
        self.run: Callable[[], Any] = lambda: model(*inputs)
        self.result = self.run()
        self.graph = self.captured() if options.get("cuda_graph") else None

    def captured(self) -> torch.cuda.CUDAGraph:
        for _ in range(3):
            self.run()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=torch.cuda.current_stream()):
            self.result = self.run()
        return graph

    def call(self) -> None:
        if self.graph is not None:
            self.graph.replay()
        else:
            self.result = self.run()
        if self.device == "cuda":
            torch.cuda.synchronize()

    def outputs(self) -> list[Array]:
        tensors = [leaf for leaf in torch.utils._pytree.tree_leaves(self.result) if isinstance(leaf, torch.Tensor)]
        return [np.asarray((x.float() if x.is_floating_point() else x).cpu()) for x in tensors]


if __name__ == "__main__":
    with torch.inference_mode():
        main(Model)
