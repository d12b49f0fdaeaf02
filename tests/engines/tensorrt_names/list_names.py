"""Print the public names of TensorRT's Python bindings, one a line, from their wheel.

    pip download --no-deps tensorrt-cu13-bindings==11.4.0.106
    python list_names.py tensorrt_cu13_bindings-11.4.0.106-cp311-none-manylinux_2_28_x86_64.whl > 11.4.txt

The bindings come as wheels without TensorRT's own libraries, which they need to be imported. They take nine C functions
from them and call none on import, so stand-in libraries that define those, beside the extension module (its run path),
will do. The Python must be of the wheel's version, and `cc` is needed.
"""

from __future__ import annotations

import hashlib
import inspect
import re
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from types import ModuleType

LIBRARIES = ("nvinfer", "nvinfer_plugin", "nvonnxparser")
FUNCTIONS = (
    "createInferBuilder_INTERNAL",
    "createInferRefitter_INTERNAL",
    "createInferRuntime_INTERNAL",
    "createNvOnnxParser_INTERNAL",
    "createNvOnnxParserRefitter_INTERNAL",
    "getBuilderPluginRegistry",
    "getNvOnnxParserVersion",
    "getPluginRegistry",
    "initLibNvInferPlugins",
)


def names_of(module: ModuleType) -> list[str]:
    """`Class`, `Class.member`, `function`: what a program may write after the module's name; no private names."""
    found = set()
    for name, value in vars(module).items():
        if name.startswith("_") or isinstance(value, ModuleType):
            continue
        found.add(name)
        if inspect.isclass(value):
            found |= {f"{name}.{member}" for member in dir(value) if not member.startswith("_")}
    return sorted(found)


def load(wheel: Path, folder: Path) -> ModuleType:
    """The package in the wheel, unpacked into `folder` and imported with stand-in libraries."""
    with zipfile.ZipFile(wheel) as file:
        file.extractall(folder)
    (extension,) = folder.glob("*/tensorrt.so")
    major = re.search(rb"libnvinfer\.so\.(\d+)", extension.read_bytes())
    assert major is not None, "the extension needs libnvinfer"
    source = folder / "standin.c"
    source.write_text("".join(f"void *{function}(void) {{ return 0; }}\n" for function in FUNCTIONS))
    for library in LIBRARIES:
        name = f"lib{library}.so.{major[1].decode()}"
        target = extension.parent / name
        subprocess.run(["cc", "-shared", "-fPIC", f"-Wl,-soname,{name}", "-o", target, source], check=True)
    sys.path.insert(0, str(folder))
    return __import__(extension.parent.name)


if __name__ == "__main__":
    wheel = Path(sys.argv[1])
    with tempfile.TemporaryDirectory() as folder:
        module = load(wheel, Path(folder))
        print(f"# TensorRT {module.__version__}, from {wheel.name}")
        print(f"# (sha256 {hashlib.sha256(wheel.read_bytes()).hexdigest()}); made by list_names.py")
        print("\n".join(names_of(module)))
