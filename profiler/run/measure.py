"""Measure a model from Python: `profiler.measure` makes a job of its arguments, and runs it as the command would."""

from __future__ import annotations

import contextlib
import inspect
import shutil
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from rich.console import Console

from exporters.cache import default_root, most_bytes, trim
from exporters.inputs import dimensions_of, symbolic_shapes
from exporters.onnx_files import file_inputs
from exporters.source import ModelSource
from profiler.errors import ConfigError
from profiler.job.case import QUICK
from profiler.job.config import config_of
from profiler.machine.target import resolve_device
from profiler.options import Run as Options
from profiler.processes.forkserver import check_process, leaving_no_trace, libraries
from profiler.results.reading import load
from profiler.results.run_folder import RunFolder, writing
from profiler.run.command import measure_cases, preloaded, resolved
from profiler.run.model_job import named_entry
from profiler.tables.writers import console

_TURN = threading.Lock()
"""Threads take turns: side by side they would slow each other, and change one environment."""
_MODEL = "model"
"""Folder of the saved model, inside the run's."""


def measure(
    model: Any,
    inputs: Any = None,
    *,
    engines: Sequence[str | dict[str, Any]] = ("eager", "ort"),
    precisions: Sequence[str] = ("fp32",),
    batch_sizes: Sequence[int] | None = None,
    shapes: Mapping[str, Sequence[int]] | None = None,
    batch: Mapping[str, int | None] | None = None,
    data: str | Path | Callable[[], Iterable[Any]] | None = None,
    metric: str | Callable[[Any, Any], Any] | None = None,
    passes: Sequence[str] = ("inference",),
    training: Mapping[str, Any] | None = None,
    device: str = "auto",
    replicates: int = 1,
    budget: dict[str, float] | None = None,
    quick: bool = False,
    output: str | Path | None = None,
    name: str | None = None,
    progress: bool = False,
) -> tuple[pl.LazyFrame, pl.LazyFrame]:
    """Measure a model as `python -m profiler` does; return results and samples as `load` does.

    `model` is a torch.nn.Module; a function that returns one, or its name "package.module:function"; the path of an
    .onnx file; or a name: a canonical network's, or a library's model such as "hf:BertModel". `inputs` is the shape of
    one item, such as (3, 224, 224), or examples as torch.export takes them, the batch first in each; `batch` names
    another axis, by input. `data` is a .npz file, a folder of images or a module's function, whose items `metric`
    scores, a word or a module's function. `training` has a job's keys: optimizers, head, loss, dropout, input_gradient,
    accumulation, frozen. `quick` takes a fraction of the sampling time, `output` is the folder that keeps the run,
    `name` names the model in rows, `progress` prints the command's output; docs/config.md describes all else.

    A case that fails is a row with status and reason. Raises ConfigError for unusable arguments. A KeyboardInterrupt
    writes the finished cases before it propagates, and names the folder.
    """
    axes = {"engines": engines, "precisions": precisions, "passes": passes, "batch_sizes": batch_sizes}
    job = {key: _listed(values) for key, values in axes.items() if values is not None}
    job["shapes"] = {name: _listed(sizes) for name, sizes in (shapes or {}).items()}
    job["training"] = dict(training or {})
    job |= {"device": device, "replicates": replicates, "budget": {**(budget or {}), **(QUICK if quick else {})}}
    check_process()
    cache_bytes = most_bytes()
    with _TURN, _run_folder(output) as run:
        entry, items = _entry(model, inputs, run.path / _MODEL, batch or {})
        entry["name"] = name or entry["name"]
        entry |= {key: _named(key, value) for key, value in (("data", data), ("metric", metric)) if value is not None}
        usual = {"suite": "measure", "models": [entry], "batch_sizes": [items], "output": run.path.parent}
        _run(run, {**usual, **job}, cache_bytes, _console(progress), report=output is not None)
        results, samples = load(run.path)
        return (results.collect().lazy(), samples.collect().lazy()) if output is None else (results, samples)


def _run(run: RunFolder, job: dict[str, Any], cache_bytes: int, console: Console, report: bool) -> None:
    """Measure the job, then trim the cache. Raises KeyboardInterrupt after an interrupted run."""
    config = config_of({**job, "import_from": [run.path / _MODEL, Path.cwd()]})
    with leaving_no_trace(), writing(run.path), libraries(preloaded([config])) as facts:
        target = resolve_device(config.device, facts)
        start = resolved(Options(), console, config, target, facts)
        run.write_config(start.config.model_copy(update={"device": str(target)}))
        interrupted, _ = measure_cases(start.runner(run), console, report=report)
    trim(default_root(), cache_bytes)
    if interrupted:
        raise KeyboardInterrupt


@contextlib.contextmanager
def _run_folder(output: str | Path | None) -> Iterator[RunFolder]:
    """Open a new run's folder in `output`, or a temporary one.

    Removes an empty folder, and a temporary one unless the run is interrupted; the KeyboardInterrupt names it.
    """
    folder = Path(tempfile.mkdtemp(prefix="profiler-run-") if output is None else output).resolve()
    run = RunFolder.create(folder)
    is_kept = output is not None
    try:
        yield run
    except KeyboardInterrupt:
        is_kept = True
        advice = f"profiler.load({str(run.path)!r}) has what was measured"
        raise KeyboardInterrupt(advice if run.journal.exists() else "nothing was measured") from None
    finally:
        if not is_kept or not run.journal.exists():
            shutil.rmtree(folder if output is None else run.path, ignore_errors=True)


def _named(key: str, value: object) -> str:
    """Return a path, or the name of a module's function. Raises ConfigError."""
    if isinstance(value, str | Path):
        return str(value)
    module, name = getattr(value, "__module__", None), getattr(value, "__qualname__", "")
    if callable(value) and module not in (None, "__main__") and name.isidentifier():
        return f"{module}:{name}"
    raise ConfigError(f'{key}: give a path, a function of a module, or its name "package.module:function"')


def _entry(model: Any, inputs: Any, folder: Path, axes: Mapping[str, int | None]) -> tuple[dict[str, Any], int]:
    """Return the job's entry of the model, and the batch of its examples; save live objects into the folder."""
    is_shape = isinstance(inputs, tuple | list) and all(isinstance(size, int) for size in inputs)
    examples, keys = (None, {"input": inputs}) if is_shape else (inputs, dict[str, Any]())
    keys |= {"batch": dict(axes)} if axes else {}
    names = list(inspect.signature(model.forward).parameters) if hasattr(model, "forward") else []
    if isinstance(model, str | Path):
        entry = named_entry(model) | keys
        names = [value.name for value in file_inputs(Path(entry["onnx"]))] if "onnx" in entry else []
        items = _batch(examples, axes, names)
        return entry | ({} if examples is None else _of_graph(entry, examples, folder)), items
    if not callable(model):
        raise ConfigError(
            f"model: expected a torch.nn.Module, a function that returns one, the path of an .onnx file or a name, "
            f"got {type(model).__name__}"
        )
    if inputs is None and hasattr(model, "modules"):
        raise ConfigError("inputs: give the shape of one item, such as (3, 224, 224), or an example tensor")
    from exporters.factories import save, unwrapped

    model = unwrapped(model)  # The engines compile.
    folder.mkdir(exist_ok=True)
    entry = save(model, folder, examples)
    entry = {"name": getattr(model, "__name__", type(model).__name__), **entry, **keys}
    return entry, _batch(examples, axes, names)


def _batch(examples: Any, axes: Mapping[str, int | None], names: Sequence[str]) -> int:
    """Return the batch of the first example, 1 without examples. Raises ConfigError for anything but tensors."""
    several = examples if isinstance(examples, Mapping | tuple | list) else [examples]
    by_name = several if isinstance(several, Mapping) else dict(zip(names, several, strict=False))
    for name, axis in axes.items():
        shape = getattr(by_name.get(name), "shape", ())
        if axis is not None and axis < len(shape):
            return int(shape[axis])
    while isinstance(examples, Mapping | tuple | list) and examples:
        examples = next(iter(examples.values() if isinstance(examples, Mapping) else examples))
    shape = getattr(examples, "shape", ())
    if examples is not None and not shape:
        raise ConfigError(
            "inputs: expected the shape of one item, such as (3, 224, 224), or tensors or arrays whose first "
            f"dimension is the batch, got {type(examples).__name__}"
        )
    return int(shape[0]) if shape else 1


def _of_graph(entry: Mapping[str, Any], examples: Any, folder: Path) -> dict[str, Any]:
    """Save an ONNX file's inputs, and take the sizes of its free dimensions from them. Raises ConfigError."""
    if "onnx" not in entry:
        raise ConfigError(f"inputs: {entry['name']} brings its inputs; a factory returns (module, example_inputs)")
    folder.mkdir(exist_ok=True)
    path, sizes, data = Path(entry["onnx"]), dict[str, int](), dict[str, Any]()
    source = ModelSource(path.stem, onnx=path, batch=dict(entry.get("batch", {})))
    shapes, free = symbolic_shapes(file_inputs(path)), dimensions_of(source)
    several = examples if isinstance(examples, tuple | list) else [examples]
    by_name = examples if isinstance(examples, Mapping) else dict(zip(shapes, several, strict=False))
    for number, (name, value) in enumerate(by_name.items()):
        shape = shapes.get(name, [])
        if len(shape) != len(value.shape) or len(by_name) != len(shapes):
            raise ConfigError(f"inputs: {path.name} takes {shapes}: give an example of each, or none")
        sizes |= {axis: int(size) for axis, size in zip(shape, value.shape, strict=True) if axis in free}
        np.save(folder / f"{number}.npy", getattr(value, "cpu", lambda value=value: value)())
        data[name] = {"data": str(folder / f"{number}.npy")}
    return {"dimensions": sizes, "inputs": data}


def _listed(values: Any) -> Any:
    return values if isinstance(values, str | Mapping) or not hasattr(values, "__iter__") else list(values)


def _console(progress: bool) -> Console:
    # A notebook shows plain text as one output, but each of rich's prints as another.
    return console(force_jupyter=False) if progress else Console(quiet=True, force_terminal=False)
