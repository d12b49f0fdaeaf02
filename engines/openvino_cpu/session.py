"""Run a graph in OpenVINO on the CPU."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import openvino

from engines.base import Array, Job, Layer, Mark, Memory, Phase, Proof, ignore
from engines.catalog import OpenVinoOptions
from engines.deployment import Deployed, copy_graph, write_run
from engines.layer_profile.node_mapping import node_name
from engines.openvino_cpu.cpu_plugin import compute_type, cpu_properties
from exporters.inputs import read_onnx

_PROFILED_RUNS = 10
"""The first of them, which is slower, is in the mean."""


def open_session(job: Job[OpenVinoOptions]) -> OpenVinoSession:
    """Compile `job`'s graph for the CPU. Raises OpenVINO's own errors."""
    return OpenVinoSession(job)


class OpenVinoSession:
    """A compiled model and one inference request with its inputs set."""

    def __init__(self, job: Job[OpenVinoOptions], **properties: Any) -> None:
        """`properties` are further ones of OpenVINO's, such as PERF_COUNT."""
        self.job = job
        core = openvino.Core()
        model = core.read_model(job.graph)
        self.names = [port.any_name for port in model.inputs]
        arrays = job.named_inputs(self.names)
        model.reshape({port: array.shape for port, array in zip(model.inputs, arrays, strict=True)})
        job.phase(Phase.BUILD)
        self.compiled = core.compile_model(model, "CPU", {**cpu_properties(job.options.threads), **properties})
        job.phase(Phase.LOAD)
        self.request = self.compiled.create_infer_request()
        self.feed(job.inputs)

    def feed(self, inputs: Sequence[Array]) -> None:
        arrays = self.job.named_inputs(self.names, inputs)
        for number, array in enumerate(arrays):
            self.request.set_input_tensor(number, openvino.Tensor(array))

    def run(self, mark: Mark) -> None:
        self.request.infer()

    def outputs(self) -> list[Array]:
        tensors = [self.request.get_output_tensor(n).data for n in range(len(self.compiled.outputs))]
        return [np.array(t, dtype=np.float32) if t.dtype.kind == "f" else t.copy() for t in tensors]

    def output_names(self) -> list[str]:
        return [port.any_name for port in self.compiled.outputs]

    def memory(self) -> Memory:
        return Memory()

    def proof(self) -> Proof:
        """The types that the compiled graph's nodes run in, as the plugin's own execution graph tells them."""
        nodes = [node.get_rt_info() for node in self.compiled.get_runtime_model().get_ordered_ops()]
        kinds = [(_info(node, "layerType"), _info(node, "runtimePrecision")) for node in nodes]
        types = Counter(filter(None, (compute_type(*each) for each in kinds)))
        return Proof(
            library=f"openvino {openvino.__version__}",
            device="cpu",
            compute_types=dict(types),
            tf32=False,
            cuda_graph=False,
            details={"operators": len(nodes)},
        )

    def layers(self) -> list[Layer]:
        """What the plugin's execution graph says of a twin that counts: each layer's mean time over all its runs."""
        twin = OpenVinoSession(self.job, PERF_COUNT=True)
        self.job.phase(Phase.PROFILE)
        for _ in range(_PROFILED_RUNS):
            twin.run(ignore)
        exported = read_onnx(self.job.graph).graph.node
        layers: dict[int, Layer] = {}
        for operator in twin.compiled.get_runtime_model().get_ordered_ops():
            info = operator.get_rt_info()
            time, fused = _info(info, "execTimeMcs"), set(_info(info, "originalLayersNames").split(","))
            if time.isdigit():
                # The last node goes by its output's name.
                nodes = tuple(node_name(n) for n in exported if fused & {n.name, *n.output})
                layer = Layer(operator.get_friendly_name(), _info(info, "layerType"), nodes, int(time) / 1000)
                layers[int(_info(info, "execOrder"))] = layer
        twin.close()
        return [layers[place] for place in sorted(layers)]

    def close(self) -> None:
        del self.request, self.compiled


def write_graph(job: Job[OpenVinoOptions], folder: Path, built: Path | None) -> Deployed:
    """Write a folder that runs the graph with the settings that were measured."""
    write_run(__file__, folder)
    return Deployed(
        {**copy_graph(job, folder), "settings": cpu_properties(job.options.threads)}, "model.onnx is the model."
    )


def _info(info: Any, key: str) -> str:
    return str(info[key].astype(str)) if key in info else ""
