"""List the suites: what each of suites/*.yaml measures, and how long it takes here."""

from __future__ import annotations

from dataclasses import dataclass
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


@dataclass(frozen=True)
class Suite:
    """One file: `measures` is the first sentence of its leading comment."""

    path: Path
    config: Config
    measures: str

    @property
    def source(self) -> str:
        """The benchmark that it reproduces, with its address."""
        study = STUDIES.get(self.config.published or "")
        return ", ".join(filter(None, (study.title, study.address))) if study else ""

    def plan(self, device: Device, capability: str | None) -> tuple[int, int, float]:
        """How many cases it has, how many of them can run here, and a guess at the seconds that they take."""
        cases = make_plan(self.config, device, capability=capability)
        runnable = sum(case.unsupported is None for case in cases)
        return len(cases), runnable, estimate_total(cases, self.config.budget)


def read_suites(device: Device) -> list[Suite]:
    """Every suite with its block for the device, by file name. Raises ConfigError where the folder has none."""
    paths = sorted(FOLDER.glob("*.yaml"))
    if not paths:
        raise ConfigError(f"{FOLDER} has no suites: this copy of the profiler is not complete; install it again")
    return [Suite(path, load_config(path, device), _first_comment(path)) for path in paths]


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
    for suite in read_suites(device):
        total, runnable, seconds = suite.plan(device, target.compute_capability)
        what = f"{suite.measures} Based on: {suite.source}" if suite.source else suite.measures
        cases = str(total) if runnable == total else f"{runnable} of {total}"
        rows.append([suite.path.stem, what, cases, seconds])
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
