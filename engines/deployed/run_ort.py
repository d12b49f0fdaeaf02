"""Run model.onnx in ONNX Runtime with the options of config.json. Needs only requirements.txt."""

from typing import Any

import numpy as np
import onnxruntime as ort
from frame import HERE, Array, main

TYPES = {"float": np.float32, "float16": np.float16, "double": np.float64, "int32": np.int32, "int64": np.int64}


class Model:
    def __init__(self, config: dict[str, Any], arrays: list[Array]) -> None:
        settings, device = config["settings"], config["device"]
        if device == "cuda":
            ort.preload_dlls()  # CUDA and cuDNN from pip's packages, if they are not installed system-wide.
        options = ort.SessionOptions()
        options.intra_op_num_threads = settings["threads"]
        if not settings["optimize"]:
            options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
        for key, value in settings["session"].items():
            options.add_session_config_entry(key, value)
        for name, size in settings["dimensions"].items():
            options.add_free_dimension_override_by_name(name, size)
        providers = [tuple(provider) for provider in settings["providers"]]
        self.session = ort.InferenceSession(HERE / "model.onnx", options, providers=providers)
        if self.session.get_providers()[0] != providers[0][0]:
            raise SystemExit(
                f"ONNX Runtime could not load {providers[0][0]}, and fell back to {self.session.get_providers()[0]}"
            )
        self.binding = self.session.io_binding()
        for spec, array in zip(config["inputs"], arrays, strict=True):
            self.binding.bind_ortvalue_input(spec["name"], ort.OrtValue.ortvalue_from_numpy(array, device, 0))
        self.bind_outputs(device)
        self.device, self.unbuffered = device, list[str]()
        try:
            self.call()
        except Exception:  # The file declares other sizes than it computes, so no buffer fits.
            self.unbuffered = [node.name for node in self.session.get_outputs()]

    def bind_outputs(self, device: str) -> None:
        """Bind the outputs once: a CUDA graph needs fixed addresses, and calls then copy nothing more."""
        for node in self.session.get_outputs():
            kind = TYPES.get(node.type.removeprefix("tensor(").removesuffix(")"))
            if kind and all(isinstance(size, int) for size in node.shape):
                value = ort.OrtValue.ortvalue_from_shape_and_type(node.shape, kind, device, 0)
                self.binding.bind_ortvalue_output(node.name, value)
            else:
                self.binding.bind_output(node.name, device)

    def call(self) -> None:
        for name in self.unbuffered:
            self.binding.bind_output(name, self.device)
        self.session.run_with_iobinding(self.binding)
        self.binding.synchronize_outputs()

    def outputs(self) -> list[Array]:
        return [np.asarray(output) for output in self.binding.copy_outputs_to_cpu()]


if __name__ == "__main__":
    main(Model)
