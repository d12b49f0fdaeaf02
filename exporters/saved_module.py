"""Save a live module, or a function that makes one, as a factory that other processes can call.

Code that another process can import is saved by its name, as pickle does it. What a notebook, a script, a function or a
test defines no other process can import: that code is saved itself, by cloudpickle.
"""

from __future__ import annotations

import contextlib
import hashlib
import inspect
import marshal
import pickle
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import CellType, CodeType, FunctionType, ModuleType, SimpleNamespace
from typing import Any

import cloudpickle
import torch
from torch import nn

from exporters.errors import sentence
from exporters.packages import spec_of
from exporters.source import ModelError

NAME = "measured_module"
"""Of the factory's module, and of the file next to it."""
_FACTORY = '''"""Load the model that was saved next to this file; written by profiler.measure."""

from pathlib import Path

{imports}from exporters.saved_module import load as load_file

CODE = "{code}"
"""The sha256 of what was saved as code, rather than as the name of something in a module."""


def load():
    return load_file(Path(__file__).with_suffix(".pt"))
'''


def save(model: nn.Module | Callable[[], nn.Module], folder: Path) -> str:
    """Save the model into `folder` and return the factory, "module:function", that is found there and makes it again.

    A function that can be imported is a factory already. A factory's key follows its source files: the one that is
    written here imports what the saved code uses, and has a hash of the rest. Raises ModelError.
    """
    module = sys.modules.get(getattr(model, "__module__", ""))
    name = getattr(model, "__qualname__", "")
    if module and _can_be_imported(module.__name__) and name and getattr(module, name, None) is model:
        return f"{module.__name__}:{name}"
    code: set[str] = set()
    modules: set[str] = set()
    parts = model.modules() if isinstance(model, nn.Module) else [model]
    pickler = SimpleNamespace(__name__="cloudpickle", Pickler=_pickler(code, modules))
    try:
        with _by_value({getattr(part, "__module__", "__main__") for part in parts}):
            torch.save(model, folder / f"{NAME}.pt", pickler, pickle.HIGHEST_PROTOCOL)
    except Exception as error:
        raise ModelError(
            f"the model cannot be saved for the processes that measure it: {sentence(error)}; "
            "give a function that makes it, or export it to ONNX and give the file's path"
        ) from error
    known = {*sys.stdlib_module_names, "torch", "cloudpickle"}
    own = (used for used in sorted(modules) if used.partition(".")[0] not in known and _can_be_imported(used))
    imports = "".join(f"import {used}\n" for used in own)
    digest = hashlib.sha256("\n".join(sorted(code)).encode()).hexdigest()
    (folder / f"{NAME}.py").write_text(_FACTORY.format(imports=imports, code=digest))
    return f"{NAME}:load"


def load(path: Path) -> nn.Module:
    """The module that was saved in this file, or what the function makes that was."""
    saved = torch.load(path, map_location="cpu", weights_only=False)
    model: nn.Module = saved if isinstance(saved, nn.Module) else saved()
    parts = model.modules() if isinstance(model, nn.Module) else ()
    for each in {each for part in parts for each in type(part).__mro__}:
        for value in filter(callable, vars(each).values()):
            _name_scope(getattr(inspect.unwrap(value), "__globals__", {}))
    return model


def _name_scope(scope: dict[str, Any]) -> None:
    """Put the globals of code that was saved itself into the module of their name: torch.compile looks there."""
    name = scope.get("__name__")
    if name is None or vars(module := sys.modules.setdefault(name, ModuleType(name))) is scope:
        return
    vars(module).update({key: value for key, value in scope.items() if not key.startswith("__")})


def _pickler(code: set[str], modules: set[str]) -> type[cloudpickle.Pickler]:
    """cloudpickle's pickler, which also notes what code it writes, and the modules of what it writes by name."""

    class Pickler(cloudpickle.Pickler):  # type: ignore[misc]
        def reducer_override(self, value: Any) -> Any:
            reduced = super().reducer_override(value)
            if isinstance(value, ModuleType):
                modules.add(value.__name__)
            elif isinstance(value, type | FunctionType):
                if reduced is NotImplemented:
                    modules.add(value.__module__)
                elif value.__module__ != "builtins":
                    code.add(_described(value))
            return reduced

    return Pickler


def _described(value: type | FunctionType) -> str:
    """What a class or a function is made of, without what differs between two processes: addresses, lines and files."""
    if isinstance(value, type):
        parts: list[object] = [value.__qualname__, value.__bases__, dict(vars(value))]
    else:
        own = _without_lines(value.__code__)
        cells = list(_contents(value.__closure__ or ()))
        used = {name: value.__globals__[name] for name in _names(own) if name in value.__globals__}
        parts = [value.__qualname__, marshal.dumps(own, 2), value.__defaults__, value.__kwdefaults__, cells, used]
    return re.sub(r"0x[0-9a-f]+", "", repr(parts))


def _without_lines(code: CodeType) -> CodeType:
    constants = tuple(_without_lines(each) if isinstance(each, CodeType) else each for each in code.co_consts)
    return code.replace(co_filename="", co_firstlineno=1, co_linetable=b"", co_consts=constants)


def _names(code: CodeType) -> Iterator[str]:
    """The names of globals and attributes in a function and those inside it."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)


def _contents(closure: Iterable[CellType]) -> Iterator[Any]:
    for cell in closure:
        with contextlib.suppress(ValueError):  # Nothing was assigned yet.
            yield cell.cell_contents


@contextlib.contextmanager
def _by_value(names: Iterable[str]) -> Iterator[None]:
    """Save the code itself of modules that another process does not find, such as a test's."""
    hidden = [sys.modules[name] for name in names if name in sys.modules and not _can_be_imported(name)]
    for module in hidden:
        cloudpickle.register_pickle_by_value(module)
    try:
        yield
    finally:
        for module in hidden:
            cloudpickle.unregister_pickle_by_value(module)


def _can_be_imported(name: str) -> bool:
    """Whether another process with this one's path finds the module, and in the same file."""
    spec = spec_of(name)
    known = getattr(sys.modules.get(name), "__file__", None)
    return name != "__main__" and spec is not None and (known is None or spec.origin in (known, None))
