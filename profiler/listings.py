"""List what there is: engines, networks, suites, the cache, and what a run would record of this machine."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import get_args

from rich.console import Console
from rich.text import Text

from engines.catalog import ENGINES, PRECISIONS, PRESETS, Device, Engine, Pass, Preset, foreign_hardware
from engines.requirements import explain, missing
from exporters.cache import Entry, default_root, entries
from exporters.catalog import CATALOG
from profiler import nvml
from profiler.bundled import bundled
from profiler.errors import PROGRAM, ConfigError, check_choice
from profiler.job.config import Config, load_config
from profiler.job.plan import estimate_seconds, make_plan
from profiler.machine import Target, check_device, describe, resolve_device
from profiler.options import Cache, Engines, Environment, Models, Suites
from profiler.processes.forkserver import libraries
from profiler.published.studies import STUDIES
from profiler.run.prepare import cache_limit, check_cache
from profiler.tables.numbers import counted, decimals, duration, each, whole
from profiler.tables.table import Table, figure, name, of_rows, prose, words
from profiler.tables.writers import print_table

SUITES = bundled("suites")
_TWO_DECIMALS = each(lambda value: decimals(value, 2))


def _gib(size: float) -> str:
    return decimals(size / 2**30, 2)


def list_engines(options: Engines, console: Console) -> int:
    """Print every preset, and every option of an engine. Raises ConfigError for a word that is no device."""
    print_table(console, engines_table(options.device))
    print_table(console, options_table())
    return 0


def list_models(_: Models, console: Console) -> int:
    print_table(console, models_table())
    return 0


def list_suites(options: Suites, console: Console) -> int:
    """Print the suites. Raises ConfigError for a word that is no device."""
    print_table(console, suites_table(options.device))
    return 0


def print_environment(_: Environment, console: Console) -> int:
    with libraries() as facts:
        console.print_json(data=describe(resolve_device("auto", facts), facts))
    return 0


def cache(options: Cache, console: Console) -> int:
    """List the cache's entries by kind, or clear them. Raises ConfigError for a word that is neither, and for a cache
    that cannot be."""
    check_choice("cache", options.action, ("list", "clear"))
    check_cache()
    root, latest = default_root(), time.time() - 86_400 * options.older_than
    found = [entry for entry in entries(root) if entry.used <= latest]
    if options.action == "clear":
        found = [entry for entry in found if entry.remove()]
    else:
        print_table(console, cache_table(found))
    what = f"{counted(len(found), 'artifact')}, {_gib(sum(entry.size for entry in found))} GiB"
    done = "removed from" if options.action == "clear" else "in"
    console.print(Text(f"{what} {done} {root} (PROFILER_CACHE)"), soft_wrap=True)
    limit = f"A run leaves at most {_gib(cache_limit())} GiB there (PROFILER_CACHE_GIB), what was used last."
    console.print(Text(limit), soft_wrap=True)
    return 0


def cache_table(found: Sequence[Entry]) -> Table:
    """A row a kind of entry: how many, how large, and how long ago the last one was used."""
    fields = [
        name("Kind", "kind"),
        figure("Artifacts", "artifacts", whole),
        figure("Size", "size", each(_gib), unit="GiB"),
        figure("Last used", "used", _TWO_DECIMALS, unit="days ago"),
    ]
    rows = []
    for kind in sorted({entry.kind for entry in found}):
        own = [entry for entry in found if entry.kind == kind]
        days = (time.time() - max(entry.used for entry in own)) / 86_400
        rows.append([kind, len(own), sum(entry.size for entry in own), days])
    return of_rows("", fields, rows)


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
        why_not = _why_not(preset, target, bool(nvml.visible_gpus()))
        able = [engine.precisions.get((pass_, device), ()) if why_not is None else () for pass_ in get_args(Pass)]
        passes = [" ".join(precision for precision in PRECISIONS if precision in of_pass) for of_pass in able]
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
        name("Model", "model", repeated=True),
        name("Input", "input"),
        figure("Parameters", "parameters", whole),
        figure("GMAC", "gmac", _TWO_DECIMALS),
        figure("Top-1 error", "top1", _TWO_DECIMALS, unit="%"),
        figure("Top-5 error", "top5", _TWO_DECIMALS, unit="%"),
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
    if why_not is None:
        if lacking := missing(engine, device):
            return explain(lacking)
        able = engine.precisions.get(("inference", device), ())
        narrow = [each for each in engine.quantizers if each in able and missing(engine, device, precision=each)]
        return f"for {' and '.join(narrow)}: {explain(missing(engine, device, precision=narrow[0]))}" if narrow else ""
    return f"{why_not}; {_ahead_of_time(engine)}" if engine.builds == "anywhere" else why_not


def _why_not(preset: Preset, target: Target, driver: bool) -> str | None:
    """Why the preset cannot run on the device, whatever were installed; None if it can."""
    engine = ENGINES[preset.engine]
    if target.kind in preset.options:
        return foreign_hardware(engine, target.kind, target.hardware)
    needs_a_gpu = not any(on == "cpu" for _, on in engine.precisions)
    return preset.reasons[target.kind] + ("; no NVIDIA driver answers" if needs_a_gpu and not driver else "")


def _ahead_of_time(engine: Engine) -> str:
    """What an engine that cannot run here can all the same, or needs for it."""
    lacking = missing(engine, "cuda", to_build=True)
    if lacking:
        return f"to build engines here ahead of time: {explain(lacking)}"
    return f"can build engines here ahead of time: {PROGRAM} build --engine {engine.name} --target sm89 …"


def read_suites(device: Device) -> list[tuple[Path, Config]]:
    """Every suite with its block for the device, by file name. Raises ConfigError where the folder has none."""
    paths = sorted(SUITES.glob("*.yaml"))
    if not paths:
        raise ConfigError(f"{SUITES} has no suites: this copy of the profiler is not complete; install it again")
    return [(path, load_config(path, device)) for path in paths]


def suites_table(requested: str) -> Table:
    """Name, source, what it measures, cases and time here, command. Raises ConfigError for an unknown device."""
    target = resolve_device(check_device(requested))
    device, gpu = target.kind, target.gpu
    title = f"Suites on {device}{f' ({gpu.name})' if gpu else ''}; run one by its name:"
    command = f"{PROGRAM} cnn-benchmarks"
    fields = [
        name("Suite", "suite", repeated=True),
        prose("Measures", "measures"),
        figure("Cases", "cases", list),
        figure("About", "seconds", each(duration)),
    ]
    rows = []
    for path, config in read_suites(device):
        cases = make_plan(config, device, hardware=target.hardware)
        runnable = sum(case.unsupported is None for case in cases)
        number = str(len(cases)) if runnable == len(cases) else f"{runnable} of {len(cases)}"
        study, what = STUDIES.get(config.published or ""), _first_comment(path)
        what += f" Based on: {', '.join(filter(None, (study.title, study.address)))}" if study else ""
        rows.append([path.stem, what, number, sum(estimate_seconds(case, config.budget) for case in cases)])
    return of_rows(f"{title} {command}", fields, rows)


def _first_comment(path: Path) -> str:
    """The comment at the file's head up to its first empty line, as one text."""
    words: list[str] = []
    for line in path.read_text(encoding="utf-8").splitlines():
        text = line.removeprefix("#").strip()
        if not line.startswith("#") or not text:
            break
        words.append(text)
    return " ".join(words)
