"""Tell a factory's model from the one that it made yesterday: by its parameters, its code and what it computes."""

from __future__ import annotations

import ast
import contextlib
import hashlib
import importlib.util
import inspect
import re
import sys
import uuid
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from exporters.build_model import SEED, acts_as_in_training, load, make
from exporters.cache import file_sha256
from exporters.calls import call, named_outputs
from exporters.inputs import fixed_batch, input_specs, seeded_inputs
from exporters.packages import library_folders, spec_of
from exporters.source import RANDOM_WEIGHTS, TOO_LONG, TRAINING_MODE, ModelSource
from exporters.time_limit import TooLong, limited

ITEMS = 2
"""As many as an export is made with: at one item some models take another way, or fail."""
SECONDS = 30.0
"""How long a model may take for these on one thread; one that takes longer is known by its parameters and its code."""


def fingerprint(source: ModelSource) -> tuple[dict[str, Any], bool, tuple[str, ...]]:
    """The parts of a factory's identity that its model gives, whether it gives the same ones every time, and remarks.

    The model is made and run twice, the second time at another seed, and again at the first seed where it is another
    one then. One that differs at one seed (dropout that is always on, weights from an unseeded generator), or that
    cannot be run, gets parts that no other run has. Raises ModelError.
    """
    model = make(source)
    remarks = [TRAINING_MODE] if acts_as_in_training(model) else []
    first = look(source, model)
    del model  # Before the next is made: it may have gigabytes.
    runs = first["outputs"] != TOO_LONG
    second = look(source, make(source, SEED + 1), runs, first["state"])
    if second["state"] != first["state"]:
        remarks.append(RANDOM_WEIGHTS)
    if second != first:  # By buffers that are no part of the state, too.
        second = look(source, runs=runs)
    if TOO_LONG in (first["outputs"], second["outputs"]):
        first["outputs"] = second["outputs"] = TOO_LONG
    if first == second and first["outputs"] is not None:
        return first, True, tuple(remarks)
    return first | {"outputs": uuid.uuid4().hex}, False, tuple(remarks)


def look(
    source: ModelSource, made: nn.Module | None = None, runs: bool = True, state: str | None = None
) -> dict[str, Any]:
    """What a factory's model is like: parameters and buffers, modules, outputs (TOO_LONG unless it `runs`), files. One
    whose parameters and buffers are not those of `state`, where that is given, is not run.

    The outputs are compared bit by bit: they come from one thread, so that neither the number of cores nor what else is
    prepared next to it changes them. A change of code that they do not show (of how it trains, say) is in the files.
    """
    assert source.factory is not None
    model = load(source, made)
    parts: dict[str, Any] = {"state": _digest(model.state_dict().items()), "structure": _structure(model)}
    outputs = _outputs(model, source) if runs and state in (None, parts["state"]) else TOO_LONG
    # After the run, which may import more.
    names = {type(module).__module__ for module in model.modules()} | {source.factory.partition(":")[0]}
    return parts | {"outputs": outputs, "code": code(name for name in names if name.partition(".")[0] != "torch")}


def _structure(model: nn.Module) -> str:
    """The modules' text, in which options are that change the forward pass without a parameter, and their flags.
    Without addresses, which are others in each process."""
    text = re.sub(r"0x[0-9a-f]+", "", repr(model))
    flags = [(name, module.training) for name, module in model.named_modules()]
    flags += [(name, parameter.requires_grad) for name, parameter in model.named_parameters()]
    return hashlib.sha256(f"{text}\n{flags}".encode()).hexdigest()


def _outputs(model: nn.Module, source: ModelSource) -> str | None:
    """A hash of everything that the model returns for the first seeded items; None where it cannot be run, and TOO_LONG
    where that takes too long."""
    # Copies, since torch aligns them: sums can differ in their last bits by where an array happens to lie.
    specs = input_specs(source)
    items = fixed_batch(specs) or ITEMS
    inputs = [torch.from_numpy(array).clone() for array in seeded_inputs(specs, items)]
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        with torch.no_grad(), torch.random.fork_rng(devices=[]), limited(SECONDS):
            torch.seed()
            outputs = named_outputs(call(model, specs, inputs))
    except TooLong as error:
        print(f"model {source.name!r}: its key is of its parameters and its code only: {error}", file=sys.stderr)
        return TOO_LONG
    except Exception as error:
        # The reference outputs will meet it, too, and say why.
        print(f"model {source.name!r}: could not be run for its key: {error!r}", file=sys.stderr)
        return None
    finally:
        torch.set_num_threads(threads)
    return _digest(outputs.items())


def _digest(named: Iterable[tuple[str, object]]) -> str:
    """The sha256 of tensors, and of what else `get_extra_state` gives, by name."""
    total = hashlib.sha256()
    for name, value in named:
        if not isinstance(value, Tensor):
            total.update(repr((name, re.sub(r"0x[0-9a-f]+", "", repr(value)))).encode("utf-8", "backslashreplace"))
            continue
        total.update(repr((name, f"{value.dtype} {tuple(value.shape)}")).encode("utf-8", "backslashreplace"))
        # As bytes, since NumPy has no bfloat16; where they lie, since a table of embeddings has gigabytes.
        total.update(value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return total.hexdigest()


def code(modules: Iterable[str]) -> dict[str, str]:
    """By module, the sha256 of the source files of these modules and of all that they import, directly or not. Imported
    libraries are left out. What is imported under a name that only the running program knows is not found."""
    libraries = library_folders()  # known by its version, or other parts of a key speak for it
    files: dict[str, str] = {}
    waiting = [(name, True) for name in modules]
    while waiting:
        name, is_model = waiting.pop()
        path = None if name in files else _file(name)
        is_library = path is not None and not libraries.isdisjoint(path.parents)
        if path is None or (is_library and not is_model):
            continue
        files[name] = file_sha256(path)
        if not is_library and path.suffix == ".py":
            waiting += [(imported, False) for imported in _imports(path, name)]
    return files


def _file(module: str) -> Path | None:
    """The module's file; nothing is imported to find it."""
    try:
        if module in sys.modules:
            file: str | None = inspect.getfile(sys.modules[module])
        else:
            spec = spec_of(module)
            file = spec.origin if spec else None
    except (ImportError, AttributeError, KeyError, ValueError, TypeError):  # built in, or a namespace
        return None
    return Path(file).resolve() if file and Path(file).is_file() else None


def _imports(path: Path, module: str) -> Iterator[str]:
    """The modules that a source file's import statements name, wherever they are in it, with their packages."""
    package = module if path.name == "__init__.py" else module.rpartition(".")[0]
    try:
        statements = list(ast.walk(ast.parse(path.read_bytes())))
    except SyntaxError:
        return
    for statement in statements:
        names: list[str] = []
        if isinstance(statement, ast.Import):
            names = [alias.name for alias in statement.names]
        elif isinstance(statement, ast.ImportFrom):
            with contextlib.suppress(ImportError):  # Of a parent that there is not.
                base = importlib.util.resolve_name("." * statement.level + (statement.module or ""), package)
                names = [base, *(f"{base}.{alias.name}" for alias in statement.names)]
        for name in names:
            if name and name.partition(".")[0] not in sys.stdlib_module_names:
                parts = name.split(".")
                yield from (".".join(parts[:count]) for count in range(1, len(parts) + 1))
