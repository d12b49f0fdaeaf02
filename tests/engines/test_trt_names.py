"""Every name that engines/ uses exists in TensorRT 11.4 and in TensorRT for RTX, or is one of 8.5's.

A name that a release lacks must be asked for by getattr or hasattr, with its name as a string. `make test-tensorrt`
compares 8.5's with the real module.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import functools
import hashlib
import os
import re
import threading
from collections import Counter, deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from importlib.metadata import Distribution
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from tensorrt_names import OF_8_5, versions

ROOT = Path(__file__).resolve().parents[2]
MODULES = ("trt", "trt_build", "trt_releases", "trt_reports", "deployed/run_trt")
SOURCES = [ROOT / "engines" / f"{name}.py" for name in MODULES]
LIBRARY = {"library", "module"}
OBJECTS = {
    "builder": "Builder",
    "config": "IBuilderConfig",
    "network": "INetworkDefinition",
    "parser": "OnnxParser",
    "refusal": "ParserError",
    "profile": "IOptimizationProfile",
    "tensor": "ITensor",
    "plan": "IHostMemory",
    "runtime": "Runtime",
    "engine": "ICudaEngine",
    "runtime_config": "IRuntimeConfig",
    "kernels": "DynamicShapesKernelSpecializationStrategy",
    "strategies": "ExecutionContextAllocationStrategy",
    "flags": "NetworkDefinitionCreationFlag",
    "capabilities": "ComputeCapability",
    "context": "IExecutionContext",
    "inspector": "EngineInspector",
    "statistics": "EngineStat",
}
"""Types of variables and attributes by name, in these files."""
CUDA = {"driver", "cuda"}
"""Variables and attributes that hold CUDA's own functions."""
OTHERS = (
    *(str, bytes, int, list, dict, tuple, set, type, Path, re.Match, re.Pattern, Counter, deque),
    *(Exception, ImportError, OSError, threading.Event, threading.Thread, contextlib.ExitStack),
    *(Distribution, os.stat_result, type(hashlib.sha256()), argparse.ArgumentParser, argparse.Namespace),
    *(np.random.Generator, np.ndarray, torch.Tensor, torch.cuda.Stream, torch.cuda.CUDAGraph),
)
PROTOS = (onnx.ModelProto, onnx.GraphProto, onnx.NodeProto, onnx.ValueInfoProto, onnx.TensorProto)
"""Other types that they work with."""


def test_the_names_are_whole() -> None:
    assert list(versions()) == ["TensorRT 11.4", "TensorRT for RTX"]
    for names in versions().values():
        assert len(names) > 1500
        assert {"Builder.create_network", "BuilderFlag.TF32", "ICudaEngine.num_io_tensors", "Runtime"} <= names
    assert "ComputeCapability.SM89" in versions()["TensorRT for RTX"] - versions()["TensorRT 11.4"]
    assert not {"BuilderFlag.FP16", "ICudaEngine.device_memory_size"} & versions()["TensorRT 11.4"]


@dataclass
class Uses:
    """Names that a source takes from TensorRT with their line; `optional` those of getattr or hasattr."""

    names: list[tuple[str, int]] = field(default_factory=list)
    optional: set[str] = field(default_factory=set)
    strangers: list[tuple[str, int]] = field(default_factory=list)
    """Attributes of objects that nothing is known of."""


def uses_of(source: str, own: set[str]) -> Uses:
    tree, uses = ast.parse(source), Uses()
    imported = {a.asname or a.name.partition(".")[0] for n in imports(tree) for a in n.names}
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and not node.attr.startswith("__"):
            path = path_of(node)
            owner = owner_of(node.value)
            if owner == "":
                uses.names.append((node.attr, node.lineno))
            elif owner is not None:
                uses.names.append((f"{owner}.{node.attr}", node.lineno))
            elif path.partition(".")[0] not in imported and node.attr not in own and not CUDA & {*path.split(".")}:
                uses.strangers.append((path, node.lineno))
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("getattr", "hasattr"):
            owner, name = owner_of(node.args[0]), node.args[1]
            if owner is not None and isinstance(name, ast.Constant):
                uses.optional.add(f"{owner}.{name.value}".lstrip("."))
        elif isinstance(node, ast.ClassDef):
            for base in filter(None, map(owner_of, node.bases)):
                methods = [item for item in node.body if isinstance(item, ast.FunctionDef)]
                uses.names += [(f"{base}.{m.name}", m.lineno) for m in methods if not m.name.startswith("_")]
    return uses


def imports(tree: ast.AST) -> Iterator[ast.Import | ast.ImportFrom]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield node


def path_of(node: ast.expr) -> str:
    """`a.b.c` as it is written; `(…)` where something is called or indexed."""
    if isinstance(node, ast.Attribute):
        return f"{path_of(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else "(…)"


def owner_of(node: ast.expr) -> str | None:
    """The class whose member an attribute of `node` is: "" for the library itself, None if it is none of TensorRT's."""
    last = node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""
    if last in LIBRARY:
        return ""
    if isinstance(node, ast.Attribute) and owner_of(node.value) == "":
        return None if last.startswith("__") else last
    return OBJECTS.get(last)


@functools.cache
def own_attributes() -> set[str]:
    """Return the attributes of this project's classes and of other libraries."""
    found = {name for kind in OTHERS for name in dir(kind)} | {f.name for p in PROTOS for f in p.DESCRIPTOR.fields}
    found |= {"cuda_stream", "SerializeToString"}  # The first of torch.cuda.Stream, where torch was built with CUDA.
    for path in (*(ROOT / "engines").rglob("*.py"), *(ROOT / "exporters").glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef):
                found |= {item.name for item in ast.walk(node) if isinstance(item, ast.FunctionDef)}
                found |= {item.target.id for item in node.body if isinstance(item, ast.AnnAssign | ast.AugAssign)
                          if isinstance(item.target, ast.Name)}  # fmt: skip
                found |= {item.attr for item in ast.walk(node) if isinstance(item, ast.Attribute)
                          if isinstance(item.ctx, ast.Store) and path_of(item.value) == "self"}  # fmt: skip
    return found


def problems(source: str) -> list[str]:
    """The names in `source` that some version does not have, and that are not asked for."""
    uses, told, found = uses_of(source, own_attributes()), [], versions()
    for name, line in uses.names:
        lacking = [version for version, names in found.items() if name not in names]
        if name in OF_8_5:
            continue
        if len(lacking) == len(found):
            told.append(f"line {line}: {name} is in no version")
        elif lacking and not {name, name.partition(".")[0]} & uses.optional:
            told.append(f"line {line}: {name} is not in {', '.join(lacking)}: ask for it by getattr or hasattr")
    known = OF_8_5.union(*found.values())
    told += [f"{name}, which is asked for, is in no version" for name in sorted(uses.optional - known)]
    told += [f"line {line}: {name}: of what? A name in OBJECTS tells" for name, line in uses.strangers]
    return told


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.stem)
def test_every_name_is_in_every_version_or_asked_for(path: Path) -> None:
    assert problems(path.read_text()) == []


@pytest.mark.parametrize(
    ("source", "wrong"),
    [
        ("library.Bulider(logger)", "Bulider is in no version"),
        ("config.set_falg(1)", "IBuilderConfig.set_falg is in no version"),
        ("config.get_flag(library.BuilderFlag.BF16)", "BuilderFlag.BF16 is in no version"),
        ("library.ComputeCapability.SM89", "ComputeCapability.SM89 is not in TensorRT 11.4"),
        ("getattr(library, 'ComputeCapabilty', None)", "ComputeCapabilty, which is asked for, is in no version"),
        ("class P(library.IProfiler):\n    def report_time(self): pass", "IProfiler.report_time is in no version"),
        ("thing = builder.create_builder_config()\nthing.set_flag(1)", "thing.set_flag: of what?"),
        ("builder.create_builder_config().bulid()", "(…).bulid: of what?"),
    ],
)
def test_a_name_that_does_not_exist_shows(source: str, wrong: str) -> None:
    assert any(wrong in told for told in problems(source)), problems(source)
