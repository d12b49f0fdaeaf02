"""Measure a model from Python: `profiler.measure` makes a job of its arguments, and runs it as the command would."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import polars as pl
from rich.console import Console

from exporters.cache import default_root, trim
from exporters.source import ModelError
from profiler.errors import ConfigError
from profiler.job.config import Config, config_of
from profiler.machine import Target, resolve_device
from profiler.options import Run as Options
from profiler.processes.forkserver import leaving_no_trace, libraries
from profiler.results.reading import load
from profiler.results.run_folder import RunFolder, writing
from profiler.run.command import measure_cases, quick_budget, resolved
from profiler.run.model_job import Example, examples, named_entry, taken_by_module
from profiler.run.prepare import cache_limit
from profiler.run.progress import Display
from profiler.tables.standard_streams import given_width


def measure(
    model: Any,
    inputs: Any = None,
    *,
    engines: Sequence[str | dict[str, Any]] = ("eager", "ort"),
    precisions: Sequence[str] = ("fp32",),
    batch_sizes: Sequence[int] | None = None,
    shapes: Mapping[str, Sequence[int]] | None = None,
    passes: Sequence[str] = ("inference",),
    device: str = "auto",
    replicates: int = 1,
    budget: dict[str, float] | None = None,
    quick: bool = False,
    output: str | Path | None = None,
    name: str | None = None,
    progress: bool = False,
) -> tuple[pl.LazyFrame, pl.LazyFrame]:
    """Measure a model as `python -m profiler` does; returns results and samples as `load` does.

    `model` is a torch.nn.Module; a function that returns one, or its name "package.module:function"; the path of an
    .onnx file; or a name: a canonical network's, or a library's model such as "hf:BertModel". `inputs` is the shape of
    one item, such as (3, 224, 224), or an example whose first dimension is the batch; a tuple holds several, a dict
    several by name. `quick` takes a fraction of the sampling time, `output` is a folder in which the run's is kept,
    `name` what rows call the model, `progress` prints what the command prints; all else is as in docs/config.md.

    A case that fails is a row with status and reason. Raises ConfigError for arguments that cannot be used. A
    KeyboardInterrupt goes on once what was measured is written, and names the folder.
    """
    axes = {"engines": engines, "precisions": precisions, "passes": passes, "batch_sizes": batch_sizes}
    job = {key: _listed(values) for key, values in axes.items() if values is not None}
    job["shapes"] = {name: _listed(sizes) for name, sizes in (shapes or {}).items()}
    job |= {"device": device, "replicates": replicates, "budget": budget or {}}
    most = cache_limit()
    with _run_folder(output) as run:
        folder = run.path / "model"
        entry, example = _entry(model, inputs, folder)
        entry["name"] = name or entry["name"]
        usual = {"suite": "measure", "models": [entry], "batch_sizes": [example.batch or 1], "output": run.path.parent}
        config = config_of({**usual, **job, "import_from": [folder, Path.cwd()]})
        if quick:
            config = config.model_copy(update={"budget": quick_budget(config.budget)})
        with leaving_no_trace(), writing(run.path), libraries() as facts:
            target = resolve_device(config.device, facts)
            interrupted = run_job(run, config, target, facts, _console(progress), report=output is not None)
        trim(default_root(), most)
        if interrupted:
            raise KeyboardInterrupt
        results, samples = load(run.path)
        return (results.collect().lazy(), samples.collect().lazy()) if output is None else (results, samples)


@contextlib.contextmanager
def _run_folder(output: str | Path | None) -> Iterator[RunFolder]:
    """Open a new run's folder in `output`, or a temporary one, which is removed unless the run is interrupted.

    A folder in which nothing was measured is removed. A KeyboardInterrupt says where the folder is.
    """
    folder = Path(tempfile.mkdtemp(prefix="profiler-run-") if output is None else output).resolve()
    run = RunFolder.create(folder)
    is_kept = output is not None
    try:
        yield run
    except KeyboardInterrupt:
        is_kept = True
        kept = f"profiler.load({str(run.path)!r}) has what was measured"
        raise KeyboardInterrupt(kept if run.journal.exists() else "nothing was measured") from None
    finally:
        if not is_kept or not run.journal.exists():
            shutil.rmtree(folder if output is None else run.path, ignore_errors=True)


def run_job(
    run: RunFolder,
    config: Config,
    target: Target,
    facts: dict[str, Any],
    console: Console,
    report: bool,
    display: Display | None = None,
) -> bool:
    """Measure every case of the job into the run's folder; returns whether that was interrupted."""
    start = resolved(Options(), console, config, target, facts)
    run.write_config(start.config.model_copy(update={"device": str(target)}))
    return measure_cases(start.runner(run, display), console, report=report)[0]


def _entry(model: Any, inputs: Any, folder: Path) -> tuple[dict[str, Any], Example]:
    """Make the job's entry of the model, saving a live module into the folder, and take its first input."""
    given = examples(inputs)
    first = next(iter(given.values()), Example(None))
    if isinstance(model, str | Path):
        return named_entry(model, given, folder), first
    if not callable(model):
        raise ConfigError(
            f"model: expected a torch.nn.Module, a function that returns one, the path of an .onnx file or a name, "
            f"got {type(model).__name__}"
        )
    if not given and hasattr(model, "modules"):
        raise ConfigError("inputs: give the shape of one item, such as (3, 224, 224), or an example tensor")
    taken = taken_by_module(given, folder)
    from exporters.factories import save

    model = getattr(model, "_orig_mod", model)  # Of what torch.compile returned: it is the engines that compile here.
    folder.mkdir(exist_ok=True)
    try:
        factory = save(model, folder)
    except ModelError as error:
        raise ConfigError(str(error)) from None
    name = getattr(model, "__name__", type(model).__name__).strip("<>")  # as of <lambda>
    return {"name": name, "factory": factory, **taken}, first


def _listed(values: Any) -> Any:
    return values if isinstance(values, str | Mapping) or not hasattr(values, "__iter__") else list(values)


def _console(progress: bool) -> Console:
    # A notebook shows text as one output, and rich's own as many.
    return Console(width=given_width(), force_jupyter=False) if progress else Console(quiet=True, force_terminal=False)
