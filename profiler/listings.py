"""List what there is: engines, networks, suites and the cache."""

from __future__ import annotations

import time

from rich.console import Console
from rich.text import Text

from engines.catalog import ENGINES, PRESETS, Preset, foreign_hardware
from engines.options import PRECISIONS, Device
from engines.requirements import explain, missing
from exporters.cache import Entry, default_root, entries
from exporters.catalog import CATALOG
from profiler import nvml
from profiler.bundled import bundled
from profiler.errors import PROGRAM, check_choice
from profiler.job.config import load_config
from profiler.job.plan import estimate_seconds, make_plan
from profiler.machine import Target, check_device, resolve_device
from profiler.options import Cache, Engines, Models, Suites
from profiler.published.studies import STUDIES
from profiler.run.prepare import cache_limit, check_cache
from profiler.tables.numbers import counted, decimals, duration, each, grouped, whole
from profiler.tables.table import Table, figure, name, of_rows, prose, words
from profiler.tables.writers import print_table

_TWO_DECIMALS = each(lambda value: decimals(value, 2))


def list_engines(options: Engines, console: Console) -> int:
    """Print every preset. Raises ConfigError for a word that is no device."""
    print_table(console, engines_table(options.device))
    return 0


def engines_table(requested: str) -> Table:
    """Return every preset: what it can do on the device, by pass, and what is missing, with how to install it.

    Raises ConfigError for a word that is no device.
    """
    target, rows = resolve_device(check_device(requested)), []
    device, gpu = target.kind, target.gpu
    card = f" ({gpu.name}, compute capability {gpu.compute_capability})" if gpu else ""
    if device == "cuda" and gpu is None:
        card = " (no NVIDIA driver answers here)"
    for preset in PRESETS.values():
        engine, why_not = ENGINES[preset.engine], _why_not(preset, target)
        able = [() if why_not else engine.precisions.get((of, device), ()) for of in ("inference", "training")]
        passes = [" ".join(precision for precision in PRECISIONS if precision in of_pass) for of_pass in able]
        if why_not and engine.builds == "anywhere":
            lacking = missing(engine, "cuda")
            how = explain(lacking) if lacking else f"{PROGRAM} build --engine {engine.name} --target sm89 …"
            why_not += f"; it can build engines here ahead of time: {how}"
        rows.append([preset.name, engine.name, *passes, preset.summary, why_not or _missing(preset, device)])
    fields = [
        *(name("Preset", "preset"), name("Engine", "engine")),
        *(words("Inference", "inference"), words("Training", "training")),
        *(prose("What it is", "summary"), prose("What is missing here", "missing", style="yellow")),
    ]
    return of_rows(f"Engines on {device}{card}", fields, rows)


def _why_not(preset: Preset, target: Target) -> str | None:
    """Say why the preset cannot run on the device, whatever were installed; None if it can."""
    engine = ENGINES[preset.engine]
    if target.kind in preset.options:
        return foreign_hardware(engine, target.kind, target.hardware)
    needs_a_gpu = not any(on == "cpu" for _, on in engine.precisions)
    return preset.reasons[target.kind] + "; no NVIDIA driver answers" * (needs_a_gpu and not nvml.visible_gpus())


def _missing(preset: Preset, device: Device) -> str:
    engine = ENGINES[preset.engine]
    if lacking := missing(engine, device):
        return explain(lacking)
    able = engine.precisions.get(("inference", device), ())
    narrow = [each for each in engine.quantizers if each in able and missing(engine, device, precision=each)]
    return f"for {' and '.join(narrow)}: {explain(missing(engine, device, precision=narrow[0]))}" if narrow else ""


def list_models(_: Models, console: Console) -> int:
    """Print every canonical network with its input, size, published errors and citation."""
    rows = []
    for row in CATALOG.values():
        shape, work = "×".join(map(str, row.input_shape)), row.multiply_adds / 1e9
        rows.append([row.name, shape, row.parameters, work, row.top1_error, row.top5_error, row.citation])
    fields = [
        *(name("Model", "name"), name("Input", "input"), figure("Parameters", "parameters", whole)),
        figure("GMAC", "gmac", _TWO_DECIMALS),
        figure("Top-1 error", "top1", _TWO_DECIMALS, unit="%"),
        figure("Top-5 error", "top5", _TWO_DECIMALS, unit="%"),
        prose("Citation", "citation"),
    ]
    print_table(console, of_rows("", fields, rows))
    return 0


def list_suites(options: Suites, console: Console) -> int:
    """Print every suite: what it measures, cases and time here. Raises ConfigError for an unknown device."""
    target, rows = resolve_device(check_device(options.device)), []
    for path in sorted(bundled("suites").glob("*.yaml")):
        config = load_config(path, target.kind)
        cases = make_plan(config, target.kind, hardware=target.hardware)
        runnable = sum(case.unsupported is None for case in cases)
        number = str(len(cases)) if runnable == len(cases) else f"{runnable} of {len(cases)}"
        # The comment at the file's head, up to its first empty line.
        head = path.read_text(encoding="utf-8").partition("\n\n")[0].partition("\n#\n")[0]
        about, study = " ".join(line.lstrip("# ") for line in head.splitlines()), STUDIES.get(config.published or "")
        about += f" Based on: {', '.join(filter(None, (study.title, study.address)))}" if study else ""
        rows.append([path.stem, about, number, sum(estimate_seconds(case, config.budget) for case in cases)])
    fields = [name("Suite", "suite"), prose("Measures", "measures")]
    fields += [figure("Cases", "cases", list), figure("About", "seconds", each(duration))]
    title = f"Suites on {target.name}; run one by its name: {PROGRAM} cnn-benchmarks"
    print_table(console, of_rows(title, fields, rows))
    return 0


def cache(options: Cache, console: Console) -> int:
    """List the cache's entries by kind, or clear them.

    Raises ConfigError for a word that is neither, and for a cache that cannot be.
    """
    check_choice("cache", options.action, ("list", "clear"))
    check_cache()
    found, done = list(entries(default_root())), "in"
    if options.action == "clear":
        found, done = [entry for entry in found if entry.remove()], "removed from"
    else:
        print_table(console, _cache_table(found))
    total = f"{counted(len(found), 'artifact')}, {_gib(sum(entry.size for entry in found))} GiB"
    console.print(Text(f"{total} {done} {default_root()} (PROFILER_CACHE)"), soft_wrap=True)
    limit = f"A run leaves at most {_gib(cache_limit())} GiB there (PROFILER_CACHE_GIB), what was used last."
    console.print(Text(limit), soft_wrap=True)
    return 0


def _cache_table(found: list[Entry]) -> Table:
    rows = []
    for kind, own in sorted(grouped((entry.kind, entry) for entry in found).items()):
        days = (time.time() - max(entry.used for entry in own)) / 86_400
        rows.append([kind, len(own), sum(entry.size for entry in own), days])
    fields = [
        *(name("Kind", "kind"), figure("Artifacts", "artifacts", whole)),
        figure("Size", "size", each(_gib), unit="GiB"),
        figure("Last used", "used", _TWO_DECIMALS, unit="days ago"),
    ]
    return of_rows("", fields, rows)


def _gib(size: float) -> str:
    return decimals(size / 2**30, 2)
