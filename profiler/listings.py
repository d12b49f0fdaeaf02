"""List what there is: engines, networks, suites, and what a run would record of this machine."""

from __future__ import annotations

from typing import get_args

from rich.console import Console

from engines.catalog import ENGINES, PRECISIONS, PRESETS, Device, Engine, Pass, Preset, foreign_capability
from engines.requirements import explain, missing
from exporters.catalog import CATALOG
from profiler import nvml
from profiler.errors import PROGRAM
from profiler.machine import check_device, describe, resolve_device
from profiler.nvml import Gpu
from profiler.options import Engines, Environment, Models, Suites
from profiler.processes.forkserver import libraries
from profiler.published.suites import suites_table
from profiler.tables.numbers import decimals, each, whole
from profiler.tables.table import Table, figure, name, of_rows, prose, words
from profiler.tables.writers import print_table

_TWO_DECIMALS = each(lambda value: decimals(value, 2))


def list_engines(options: Engines, console: Console) -> int:
    """Print every preset, and every option of an engine. Raises ConfigError for a word that is no device."""
    print_table(console, engines_table(options.device))
    print_table(console, options_table())
    return 0


def list_models(_: Models, console: Console) -> int:
    """Print the canonical networks."""
    print_table(console, models_table())
    return 0


def list_suites(options: Suites, console: Console) -> int:
    """Print the suites. Raises ConfigError for a word that is no device."""
    print_table(console, suites_table(options.device))
    return 0


def print_environment(_: Environment, console: Console) -> int:
    """Print what environment.json would have."""
    with libraries() as facts:
        console.print_json(data=describe(resolve_device("auto", facts), facts))
    return 0


def engines_table(requested: str) -> Table:
    """Every preset: what it can do on the device, by pass, and what is missing with the command that installs it.

    Raises ConfigError for a word that is no device.
    """
    target = resolve_device(check_device(requested))
    device, gpu = target.kind, target.gpu
    card = f" ({gpu.name}, compute capability {gpu.compute_capability})" if gpu else ""
    if device == "cuda" and gpu is None:
        card = " (no NVIDIA driver answers here)"
    fields = [
        name("Preset", "preset", repeated=True),
        name("Engine", "engine"),
        words("Inference", "inference"),
        words("Training", "training"),
        prose("What it is", "summary"),
        prose("What is missing here", "missing", style="yellow"),
    ]
    rows = []
    for preset in PRESETS.values():
        engine = ENGINES[preset.engine]
        why_not = _why_not(preset, device, gpu, bool(nvml.visible_gpus()))
        passes = [_precisions(engine, pass_, device) if why_not is None else "" for pass_ in get_args(Pass)]
        rows.append([preset.name, engine.name, *passes, preset.summary, _missing(engine, device, why_not)])
    return of_rows(f"Engines on {device}{card}", fields, rows)


def options_table() -> Table:
    """Every option that a config may give an engine, with its default and meaning."""
    fields = [
        *(name(heading, heading) for heading in ("Engine", "Option", "Default", "On")),
        prose("Meaning", "meaning"),
    ]
    rows = []
    for engine in ENGINES.values():
        for key, option in engine.options.declared().items():
            choices = f": {', '.join(option.choices)}" if option.choices else ""
            default = str(option.default).lower() if isinstance(option.default, bool) else str(option.default)
            rows.append([engine.name, key, default, option.devices, option.meaning + choices])
    return of_rows("Options", fields, rows)


def models_table() -> Table:
    """Every canonical network: size, work, published error and citation."""
    fields = [
        name("Model", "model"),
        name("Input", "input"),
        figure("Parameters", "parameters", whole),
        figure("GMAC", "gmac", _TWO_DECIMALS),
        figure("Top-1", "top1", _TWO_DECIMALS, unit="%"),
        figure("Top-5", "top5", _TWO_DECIMALS, unit="%"),
        prose("Citation", "citation"),
    ]
    rows = []
    for row in CATALOG.values():
        shape = "×".join(map(str, row.input_shape))
        errors = row.top1_error, row.top5_error
        rows.append([row.name, shape, row.parameters, row.multiply_adds / 1e9, *errors, row.citation])
    return of_rows("", fields, rows)


def _missing(engine: Engine, device: Device, why_not: str | None) -> str:
    """Why the engine cannot run on the device, or what is to be installed for it; empty where it can run."""
    lacking = missing(engine, device)
    if why_not is None:
        return explain(lacking) if lacking else ""
    return f"{why_not}; {_ahead_of_time(engine)}" if engine.builds == "anywhere" else why_not


def _why_not(preset: Preset, device: Device, gpu: Gpu | None, driver: bool) -> str | None:
    """Why the preset cannot run on the device, whatever were installed; None if it can."""
    engine = ENGINES[preset.engine]
    if device in preset.options:
        return foreign_capability(engine, device, gpu.compute_capability if gpu else None)
    needs_a_gpu = not any(on == "cpu" for _, on in engine.precisions)
    return preset.reasons[device] + ("; no NVIDIA driver answers" if needs_a_gpu and not driver else "")


def _ahead_of_time(engine: Engine) -> str:
    """What an engine that cannot run here can all the same, or needs for it."""
    lacking = missing(engine, "cuda", to_build=True)
    if lacking:
        return f"to build engines here ahead of time: {explain(lacking)}"
    return f"can build engines here ahead of time: {PROGRAM} build --engine {engine.name} --target sm89 …"


def _precisions(engine: Engine, pass_: Pass, device: Device) -> str:
    able = engine.precisions.get((pass_, device), frozenset())
    return " ".join(p for p in PRECISIONS if p in able)
