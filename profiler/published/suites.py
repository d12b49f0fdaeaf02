"""List the suites: what each of suites/*.yaml measures, and how long it takes here."""

from __future__ import annotations

from pathlib import Path

from engines.catalog import Device
from profiler.bundled import bundled
from profiler.errors import PROGRAM, ConfigError
from profiler.job.config import Config, load_config
from profiler.job.plan import estimate_total, make_plan
from profiler.machine import check_device, resolve_device
from profiler.published.studies import STUDIES
from profiler.tables.numbers import duration, each
from profiler.tables.table import Table, figure, name, of_rows, prose

FOLDER = bundled("suites")


def read_suites(device: Device) -> list[tuple[Path, Config]]:
    """Every suite with its block for the device, by file name. Raises ConfigError where the folder has none."""
    paths = sorted(FOLDER.glob("*.yaml"))
    if not paths:
        raise ConfigError(f"{FOLDER} has no suites: this copy of the profiler is not complete; install it again")
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
        cases = make_plan(config, device, capability=target.compute_capability)
        runnable = sum(case.unsupported is None for case in cases)
        number = str(len(cases)) if runnable == len(cases) else f"{runnable} of {len(cases)}"
        study, what = STUDIES.get(config.published or ""), _first_comment(path)
        what += f" Based on: {', '.join(filter(None, (study.title, study.address)))}" if study else ""
        rows.append([path.stem, what, number, estimate_total(cases, config.budget)])
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
