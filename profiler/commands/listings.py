"""List engines, networks, suites and the cache."""

from __future__ import annotations

from rich.console import Console

from engines.catalog import ENGINES, PRESETS, Engine
from engines.options import PASSES, PRECISIONS, Device
from engines.requirements import missing
from exporters.cache import check_root, default_root, entries, exclusive, most_bytes
from exporters.catalog import CATALOG
from profiler.bundled import suites
from profiler.commands.doctor import lacks
from profiler.errors import PROGRAM, check_choice
from profiler.job.config import load_config
from profiler.job.plan import estimate_seconds, make_plan
from profiler.machine.target import resolve_device
from profiler.options import Cache, Engines, Models, Suites
from profiler.published.studies import STUDIES
from profiler.tables.numbers import counted, decimals, duration, each, whole
from profiler.tables.table import figure, name, of_rows, prose, words
from profiler.tables.writers import print_table, say

_TWO_DECIMALS = each(lambda value: decimals(value, 2))


def list_engines(_: Engines, console: Console) -> int:
    """Print every preset with its precisions here, by pass, and how to install missing libraries."""
    target, rows = resolve_device("auto"), []
    device, gpu = target.kind, target.gpu
    card = f" ({gpu.name}, compute capability {gpu.compute_capability})" if gpu else ""
    for preset in PRESETS.values():
        engine, lack = ENGINES[preset.engine], lacks(preset, target)
        runs = lack is None or lack.status == "missing"
        able = [engine.precisions.get((pass_, device), ()) if runs else () for pass_ in PASSES]
        passes = [" ".join(precision for precision in PRECISIONS if precision in of_pass) for of_pass in able]
        reason = lack.text if lack else _narrower(engine, device)
        rows.append([preset.name, engine.name, *passes, preset.summary, reason])
    fields = [
        *(name("Preset", "preset"), name("Engine", "engine")),
        *(words("Inference", "inference"), words("Training", "training")),
        *(prose("What it is", "summary"), prose("What is missing here", "missing")),
    ]
    print_table(console, of_rows(f"Engines on {device}{card}", fields, rows))
    return 0


def _narrower(engine: Engine, device: Device) -> str:
    absent = {narrow: missing(engine, device, precision=narrow) for narrow in engine.quantizers}
    able = engine.precisions.get(("inference", device), ())
    return "; ".join(f"for {narrow}: {lack}" for narrow, lack in absent.items() if lack and narrow in able)


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


def list_suites(_: Suites, console: Console) -> int:
    """Print every suite with its subject, and with its cases and time here."""
    target, rows = resolve_device("auto"), []
    for path in suites().values():
        config = load_config(path, target.kind)
        cases = make_plan(config, target.kind, hardware=target.hardware)
        # The comment at the file's head, up to its first empty line.
        head = path.read_text(encoding="utf-8").partition("\n\n")[0].partition("\n#\n")[0]
        about, study = " ".join(line.lstrip("# ") for line in head.splitlines()), STUDIES.get(config.published or "")
        about += f" Based on: {', '.join(filter(None, (study.title, study.address)))}" if study else ""
        runnable = sum(not case.unsupported for case in cases)
        seconds = sum(estimate_seconds(case, config.budget) for case in cases)
        rows.append([path.stem, about, f"{runnable} of {len(cases)}", seconds])
    fields = [name("Suite", "suite"), prose("Measures", "measures")]
    fields += [figure("Cases", "cases", list), figure("About", "seconds", each(duration))]
    title = f"Suites on {target.name}; run one by its name: {PROGRAM} suites run cnn-benchmarks"
    print_table(console, of_rows(title, fields, rows))
    return 0


def cache(options: Cache, console: Console) -> int:
    """Print the cache's size, or clear it. Raises ConfigError for another action."""
    check_choice("cache", options.action, ("list", "clear"))
    check_root(default_root())
    artifacts, relation = list(entries(default_root())), "in"
    if options.action == "clear":
        with exclusive(default_root()):
            artifacts, relation = [entry for entry in artifacts if entry.remove()], "removed from"
    sizes = sum(entry.size for entry in artifacts), most_bytes()
    gib, most_gib = (decimals(size / 2**30, 2) for size in sizes)
    total = f"{counted(len(artifacts), 'artifact')}, {gib} GiB"
    limit = f"a run leaves at most {most_gib} GiB there (PROFILER_CACHE_GIB)"
    say(console, f"{total} {relation} {default_root()} (PROFILER_CACHE); {limit}")
    return 0
