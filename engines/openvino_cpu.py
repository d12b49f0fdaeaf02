"""Run a graph in OpenVINO on the CPU."""

from __future__ import annotations

import contextlib
import importlib
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from engines.base import Array, Job, Layer, Mark, Memory, Phase, Proof, Unsupported
from engines.deployment import Deployed, copy_graph, copy_run
from engines.options import OpenVinoOptions
from exporters.errors import text_of
from exporters.inputs import numpy_dtype
from exporters.onnx_files import types_of

_COMPUTE = ("Convolution", "FullyConnected", "MatMul", "GroupConvolution")
"""Prefixes of convolution and product kinds, such as FullyConnectedQuantizedLegacy."""
_TYPES = {"f32": "float32", "f16": "float16", "bf16": "bfloat16", "i8": "int8", "u8": "int8"}
"""Names by the type of activations: uint8 times int8 is int8's arithmetic."""
_REFUSED = re.compile(
    r"(?:No conversion rule found for operations|Conversion is failed for|Unsupported operation of type): "
    r"([^\n ,]+(?:, [^\n ,]+)*)"
)


def compute_type(kind: str, precision: str) -> str | None:
    """Name a convolution's or product's type by its precision or its kernel ("brgconv_avx512_amx_bf16")."""
    word = precision.rpartition("_")[2]
    return _TYPES.get(word, word) if kind.startswith(_COMPUTE) else None


def cpu_properties(job: Job[OpenVinoOptions]) -> dict[str, str | int]:
    """Return the CPU plugin's properties; 0 threads let OpenVINO choose."""
    # By default it computes any graph in bf16 if it can; only bf16 and files with 16-bit floats allow that.
    is_half = job.precision == "native" and types_of(job.graph) & {"float16", "bfloat16"}
    hint = {} if is_half else {"INFERENCE_PRECISION_HINT": "bf16" if job.precision == "bf16" else "f32"}
    return {**hint, "PERFORMANCE_HINT": "LATENCY", "INFERENCE_NUM_THREADS": job.options.threads}


_USAGE = """import json
import openvino

settings = json.load(open("config.json"))["settings"]
model = openvino.Core().compile_model("model.onnx", "CPU", settings)
outputs = model({feeds})"""


@contextlib.contextmanager
def _naming_operators(step: str = "") -> Iterator[None]:
    """Raise Unsupported with the operators that OpenVINO cannot convert; with a `step` for other errors, too."""
    try:
        yield
    except RuntimeError as error:
        operators = _REFUSED.findall(str(error))
        if not operators and not step:
            raise
        why = f"convert {', '.join(operators)}" if operators else f"{step}: {text_of(error)}"
        raise Unsupported(f"OpenVINO cannot {why}") from error


def _array(tensor: Any) -> Array:
    """Copy a tensor; floats become float32."""
    array: Array = tensor.data
    if tensor.element_type.get_type_name() == "bf16":  # OpenVINO labels its bits float16.
        array = array.view(numpy_dtype("bfloat16"))
    return np.array(array, dtype=np.float32) if array.dtype.kind in "fV" else array.copy()


class OpenVinoSession:
    """A compiled model and one inference request with its inputs set. Raises OpenVINO's own errors."""

    def __init__(self, job: Job[OpenVinoOptions]) -> None:
        self.job = job
        self.library: Any = importlib.import_module("openvino")
        core = self.library.Core()
        if job.precision == "bf16" and "BF16" not in core.get_property("CPU", "OPTIMIZATION_CAPABILITIES"):
            raise Unsupported("this processor has no bf16; ask for fp32")
        with _naming_operators("read the graph"):
            model = core.read_model(job.graph)
        self.names = [port.any_name for port in model.inputs]
        arrays = job.named_inputs(self.names)
        model.reshape({port: array.shape for port, array in zip(model.inputs, arrays, strict=True)})
        job.phase(Phase.BUILD)
        with _naming_operators():
            self.compiled = core.compile_model(model, "CPU", cpu_properties(job))
        job.phase(Phase.LOAD)
        self.request = self.compiled.create_infer_request()
        self.feed(job.inputs)

    def feed(self, inputs: Sequence[Array]) -> None:
        arrays = self.job.named_inputs(self.names, inputs)
        for number, array in enumerate(arrays):
            is_bf16 = array.dtype.kind == "V"  # ml_dtypes' kind, which OpenVINO takes only as bits.
            bits = (array.view(np.int16), array.shape, self.library.Type.bf16) if is_bf16 else (array,)
            self.request.set_input_tensor(number, self.library.Tensor(*bits))

    def run(self, mark: Mark) -> None:
        self.request.infer()

    def outputs(self) -> list[Array]:
        return [_array(self.request.get_output_tensor(n)) for n in range(len(self.compiled.outputs))]

    def output_names(self) -> list[str]:
        return [port.any_name for port in self.compiled.outputs]

    def memory(self) -> Memory:
        return Memory()

    def proof(self) -> Proof:
        """Read the types of the compiled graph's nodes from the plugin's own execution graph."""
        nodes = [node.get_rt_info() for node in self.compiled.get_runtime_model().get_ordered_ops()]
        kinds = [(_info(node, "layerType"), _info(node, "runtimePrecision")) for node in nodes]
        types = Counter(filter(None, (compute_type(kind, precision) for kind, precision in kinds)))
        return Proof(
            library=f"openvino {self.library.__version__}",
            device="cpu",
            compute_types=dict(types),
            tf32=False,
            cuda_graph=False,
            details={
                "operators": len(nodes),
                "inference_precision": self.compiled.get_property("INFERENCE_PRECISION_HINT").get_type_name(),
            },
        )

    def layers(self) -> list[Layer]:
        return []

    def close(self) -> None:
        del self.request, self.compiled


open_session = OpenVinoSession


def deploy(job: Job[OpenVinoOptions], folder: Path, built: Path | None) -> Deployed:
    """Write a folder that runs the graph with the measured settings."""
    copy_run("run_openvino.py", folder)
    settings = {**copy_graph(job, folder), "settings": cpu_properties(job)}
    return Deployed(settings, "model.onnx is the model.", _USAGE)


def _info(info: Any, key: str) -> str:
    return str(info[key].astype(str)) if key in info else ""
