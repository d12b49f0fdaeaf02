"""Load a plugin of ONNX Runtime, an execution provider that comes as a library of its own.

See https://onnxruntime.ai/docs/execution-providers/plugin-ep-libraries/usage.html, and packaging.html next to it.
"""

from __future__ import annotations

import functools
import importlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnxruntime

from engines.base import Unsupported
from engines.catalog import Device
from engines.option_values import is_path
from exporters.errors import text_of

_HARDWARE = {"cpu": "CPU", "cuda": "GPU"}


@dataclass(frozen=True)
class Plugin:
    """A library that ONNX Runtime has loaded, and what it offers here."""

    path: Path
    devices: tuple[Any, ...]
    """onnxruntime.OrtEpDevice, each a provider with a piece of hardware."""

    def on(self, device: Device) -> Any:
        """Its first device of that kind. Raises Unsupported where it has none."""
        kind = _HARDWARE[device]
        if found := [each for each in self.devices if each.device.type.name == kind]:
            return found[0]
        here = ", ".join(dict.fromkeys(f"{each.ep_name} on {each.device.type.name}" for each in self.devices))
        raise Unsupported(f"{self.path.name} offers no {kind} here, only {here or 'nothing'}: it needs other hardware")


@functools.cache
def load_plugin(library: str) -> Plugin:
    """Have ONNX Runtime load the library, a package's or a file, once a process. Raises Unsupported, which says why."""
    if not library:
        raise Unsupported(
            "no library is named: give the package of the plugin, such as library: onnxruntime_ep_openvino, or the "
            "path of its .so"
        )
    path, names = (Path(library), []) if is_path(library) else _of_package(library)
    if not path.is_file():
        raise Unsupported(f"library: {path} is {'a folder' if path.is_dir() else 'not there'}: give the plugin's .so")
    if not hasattr(onnxruntime, "register_execution_provider_library"):
        raise Unsupported(f"ONNX Runtime {onnxruntime.__version__} takes no plugins; 1.23 and later do")
    before = onnxruntime.get_ep_devices()
    try:
        onnxruntime.register_execution_provider_library(path.stem, str(path))
    except Exception as error:  # Its own classes, which have no other base.
        raise Unsupported(
            f"ONNX Runtime {onnxruntime.__version__} cannot load {path} as a plugin: {text_of(error)}; give a library "
            "that is one, of a version for this ONNX Runtime, with the libraries that it needs"
        ) from error
    known = {(each.ep_name, each.device.type.name) for each in before}
    new = [each for each in onnxruntime.get_ep_devices() if (each.ep_name, each.device.type.name) not in known]
    return Plugin(path, tuple(each for each in new if not names or each.ep_name in names))


def _of_package(name: str) -> tuple[Path, list[str]]:
    """The library of a package, and the names of its providers, as far as it says them."""
    try:
        package = importlib.import_module(name)
        return Path(package.get_library_path()), [package.get_ep_name()] if hasattr(package, "get_ep_name") else []
    except Exception as error:
        top = name.partition(".")[0]
        if isinstance(error, ModuleNotFoundError) and error.name == top:
            distribution = top.replace("_", "-")
            mend = f"pip install {distribution}, or give the path of its .so, such as ./{distribution}.so"
            raise Unsupported(f"{name} is not installed: {mend}") from error
        raise Unsupported(
            f"{name} cannot be imported, or does not say where its library is: {text_of(error)}; give the path of its "
            ".so as library"
        ) from error
