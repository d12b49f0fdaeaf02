"""Run model.onnx in OpenVINO with the options of config.json. Needs only requirements.txt."""

from typing import Any

import numpy as np
import openvino
from frame import HERE, Array, main


class Model:
    def __init__(self, config: dict[str, Any], arrays: list[Array]) -> None:
        core = openvino.Core()
        model = core.read_model(HERE / "model.onnx")
        model.reshape({port: spec["shape"] for port, spec in zip(model.inputs, config["inputs"], strict=True)})
        self.request = core.compile_model(model, "CPU", config["settings"]).create_infer_request()
        for number, array in enumerate(arrays):
            self.request.set_input_tensor(number, openvino.Tensor(array))

    def call(self) -> None:
        self.request.infer()

    def outputs(self) -> list[Array]:
        return [np.array(tensor.data) for tensor in self.request.output_tensors]


if __name__ == "__main__":
    main(Model)
