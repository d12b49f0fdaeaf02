"""List what there is: engines, networks, suites, and what a run would record of this machine."""

from __future__ import annotations

from dataclasses import dataclass

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from engines.catalog import ENGINES, PRECISIONS, PRESETS, Device, Engine, Pass, Preset, foreign_capability
from engines.requirements import explain, missing
from exporters.catalog import CATALOG
from profiler import nvml
from profiler.machine import check_device, describe, resolve_device
from profiler.nvml import Gpu
from profiler.processes.forkserver import libraries
from profiler.published.suites import suites_table


@dataclass(frozen=True, kw_only=True)
class Options:
    """What is listed: "engines", "models", "suites" or "environment"; and the device that it is listed for."""

    subject: str
    device: str = "auto"


def execute(options: Options, console: Console) -> int:
    """Print the listing. Raises ConfigError for a word that is no device."""
    match options.subject:
        case "engines":
            console.print(engines_table(options.device))
            console.print(options_table())
        case "models":
            console.print(models_table())
        case "suites":
            console.print(suites_table(options.device))
        case "environment":
            with libraries() as facts:
                console.print_json(data=describe(resolve_device("auto", facts), facts))
    return 0


def engines_table(wanted: str) -> Table:
    """Every preset: what it can do on the device, by pass, and what is missing with the command that installs it.

    Raises ConfigError for a word that is no device.
    """
    target = resolve_device(check_device(wanted))
    device, gpu = target.kind, target.gpu
    name = f" ({gpu.name}, compute capability {gpu.compute_capability})" if gpu else ""
    if device == "cuda" and gpu is None:
        name = " (no NVIDIA driver answers here)"
    table = Table(title=f"Engines on {device}{name}", title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    for head in ("Preset", "Engine", "Inference", "Training", "What it is, and what is missing"):
        table.add_column(head, no_wrap=head in ("Preset", "Engine"))
    for preset in PRESETS.values():
        engine = ENGINES[preset.engine]
        reason = _why_not(preset, device, gpu, bool(nvml.visible_gpus()))
        able = reason is None
        note = Text(preset.summary)
        if reason is not None:
            note.append(f"; not here: {reason}", style="yellow")
        elif lacking := missing(engine, device):
            note.append(f"; {explain(lacking)}", style="red")
        if engine.builds == "anywhere" and not able:
            note.append(f"; {_ahead_of_time(engine)}")
        cells = [_precisions(engine, pass_, device) if able else "" for pass_ in ("inference", "training")]
        table.add_row(preset.name, engine.name, *cells, note)
    return table


def options_table() -> Table:
    """Every option that a config may give an engine, with its default and meaning."""
    table = Table(title="Options", title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    for head in ("Engine", "Option", "Default", "On", "Meaning"):
        table.add_column(head, no_wrap=head != "Meaning")
    for engine in ENGINES.values():
        for name, option in engine.options.declared().items():
            choices = f": {', '.join(option.choices)}" if option.choices else ""
            default = str(option.default).lower() if isinstance(option.default, bool) else str(option.default)
            table.add_row(engine.name, name, default, ", ".join(option.devices), option.meaning + choices)
    return table


def models_table() -> Table:
    """Every canonical network: size, work, published error and citation."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for head in ("Model", "Input", "Parameters", "GMAC", "Top-1 %", "Top-5 %", "Citation"):
        table.add_column(
            head, justify="left" if head in ("Model", "Input", "Citation") else "right", no_wrap=head != "Citation"
        )
    for row in CATALOG.values():
        errors = ["" if e is None else f"{e:.2f}" for e in (row.top1_error, row.top5_error)]
        shape = "×".join(map(str, row.input_shape))
        table.add_row(row.name, shape, f"{row.parameters:,}", f"{row.multiply_adds / 1e9:.2f}", *errors, row.citation)
    return table


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
    return f"can build engines here ahead of time: python -m profiler build --engine {engine.name} --target sm89 …"


def _precisions(engine: Engine, pass_: Pass, device: Device) -> str:
    able = engine.precisions.get((pass_, device), frozenset())
    return " ".join(p for p in PRECISIONS if p in able)
