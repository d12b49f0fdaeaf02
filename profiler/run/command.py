"""Run a job and write its results folder."""

from __future__ import annotations

import contextlib
import shlex
import shutil
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import polars as pl
from rich.console import Console
from rich.text import Text

from engines.catalog import ENGINES
from engines.options import Device
from exporters.cache import default_root, trim
from exporters.libraries import library_of
from profiler.bundled import job_file
from profiler.errors import PROGRAM, ConfigError, resuming
from profiler.job.case import Budget, Case, Filter, parse_only
from profiler.job.config import Config, JobFile, parse_machine
from profiler.job.plan import make_plan, only_of, searched
from profiler.machine import Target, check_device, describe, resolve_device
from profiler.options import Run as Options
from profiler.processes.forkserver import libraries
from profiler.published.command import NOTHING, present
from profiler.results.cells import cells
from profiler.results.reading import took
from profiler.results.result import Result
from profiler.results.row import earlier_spread, flat_environment, keep_spread, spread_of_bases
from profiler.results.run_folder import RunFolder, without_foreign_code, write_tables, writing
from profiler.run.model_job import ModelJob, model_job, refuse_model_options, write_job
from profiler.run.prepare import Stages, cache_limit, check_cache, check_models, with_shapes
from profiler.run.progress import Display, open_display
from profiler.run.runner import Runner, is_done
from profiler.run.summary import earlier_seconds, print_plan, print_results
from profiler.tables.numbers import counted

_QUICK_SAMPLES, _QUICK_SECONDS = 3, 0.3
Conclude = Callable[[Path, pl.DataFrame, Console], None]
_CONFLICTS = (
    *(("--quick", "--seconds"), ("--quick", "--min-samples")),
    *((given, "--resume") for given in ("--replicates", "--seconds", "--min-samples", "a job")),
)
"""Options that contradict each other: a resumed run goes on with its own bench.yaml."""
KINDS: tuple[Device, ...] = ("cpu", "cuda")
_ALL_RUNS_KEYS = ("roofs", "roofs_quiet", "wall_seconds", "spread")
"""Keys of environment.json that a resumed run keeps."""


@dataclass(frozen=True)
class Start:
    """A command's job as resolved for the target, with all of its cases, and those that `--only` lets through."""

    options: Options
    console: Console
    config: Config
    target: Target
    environment: dict[str, Any]
    plan: Sequence[Case]
    cases: Sequence[Case]

    def say(self, text: str, style: str = "") -> None:
        """Print a line that is not broken."""
        self.console.print(Text(text, style=style), soft_wrap=True)

    def runner(self, run: RunFolder, display: Display | None = None) -> Runner:
        """Make what measures into the run's folder; it shows its progress on the console or the display."""
        display, idle = display or open_display(self.console), self.options.wait_for_idle
        return Runner(run, self.config, self.target, self.plan, self.cases, self.environment, display, idle)


def execute(options: Options, console: Console, conclude: Conclude | None = None) -> int:
    """Run the job; returns the exit code. Raises ConfigError.

    `conclude` is called with the folder and the results of a run that was not interrupted.
    """
    started = time.monotonic()
    _check_options(options)
    job, only = open_job(options), parse_only(options.only)
    limit = cache_limit()
    if not options.dry_run:
        check_cache()
    # A mistake in the other device's block should show here too.
    configs = [read_job(options, job, kind) for kind in KINDS]
    words = {entry.network or "" for config in configs for entry in config.models}
    asked = [library for library in map(library_of, words) if library]
    with libraries({name for library in asked for name in (library.module, library.package)}) as facts:
        target = resolve_device(configs[0].device, facts)
        config = read_job(options, job, target.kind, target.hardware)
        start = resolved(options, console, config, target, facts, only)
        kind, hardware = start.target.kind, start.target.hardware
        if isinstance(job, ModelJob) and (text := job.not_installed(start.config, kind, hardware)):
            start.say(text, "dim")
        if options.dry_run:
            _write_yaml(start)
            return _dry_run(start)
        with _open_run(start) as run:
            runner = start.runner(run)
            runner.started = started
            runner.refuses = isinstance(job, ModelJob)
            interrupted, results = measure_cases(runner, console, options.retry)
    _write_yaml(start)
    trim(default_root(), limit)
    start.say(f"\nResults: {run.path}")
    if (run.path / "layers.parquet").exists():
        start.say(f"Its layers: {PROGRAM} layers {shlex.quote(str(run.path))}")
    if interrupted:
        start.say(f"Interrupted; {_what_is_left(start, run)}")
        return 130
    if conclude is not None and start.config.kind != "layers":
        conclude(run.path, results, console)
    statuses = set(results["status"])
    return int("ok" not in statuses or (options.strict and bool(statuses - {"ok", "unsupported"})))


def _check_options(options: Options) -> None:
    """Raise ConfigError for options that contradict each other."""
    names = ("quick", "seconds", "min_samples", "resume", "dry_run", "replicates", "retry", "trust_code")
    given = {f"--{name.replace('_', '-')}" for name in names if getattr(options, name)}
    given |= {"a job"} if options.config is not None else set()
    for one, other in _CONFLICTS:
        if {one, other} <= given:
            raise ConfigError(f"give {one} or {other}, not both")
    for name in ("--retry", "--trust-code"):
        if name in given and options.resume is None:
            raise ConfigError(f"{name} goes with --resume and a run's folder")
    if options.device is not None:
        check_device(options.device)
    if not given & {"a job", "--resume"}:
        raise ConfigError(f"no model or job was given; try: {PROGRAM} resnet18, or {PROGRAM} bench.yaml")


def open_job(options: Options) -> JobFile | ModelJob:
    """Open the job that is given by its file's or its model's name. Raises ConfigError."""
    if options.resume is not None:
        RunFolder.resume(options.resume)
        path: Path | None = options.resume / "bench.yaml"
    else:
        path = job_file(str(options.config))
    if path is not None:
        refuse_model_options(options, f"{path.name} has the keys itself, and --only measures a part of it")
        return JobFile(path)
    if (file := options.write_yaml) is not None and (file.exists() or not file.resolve().parent.is_dir()):
        raise ConfigError(f"--write-yaml {file}: give a new file in a folder that is there")
    return model_job(str(options.config), options)


def read_job(options: Options, job: JobFile | ModelJob, kind: Device, hardware: str | None = None) -> Config:
    """Check the job on a device of this kind, with the command's options in place of its own keys."""
    output = options.output and str(options.output.resolve())
    given = {"output": output, **{name: getattr(options, name) for name in ("device", "profile", "replicates")}}
    config = job.config(kind, {key: value for key, value in given.items() if value}, hardware)
    machine = config.machine.model_copy(update=parse_machine(options.machine))
    budget = quick_budget(config.budget) if options.quick else _with_samples(config.budget, options)
    config = config.model_copy(update={"machine": machine, "budget": budget})
    if options.resume is not None:
        config = without_foreign_code(config, options.resume, f"--resume {options.resume}", options.trust_code)
    name = job.path.stem if isinstance(job, JobFile) else ""
    return config.model_copy(update={"suite": config.suite or name})


def resolved(
    options: Options, console: Console, job: Config, target: Target, facts: dict[str, Any], only: Filter | None = None
) -> Start:
    """Resolve the job by what its models, the target and the libraries' `facts` say of it. Raises ConfigError."""
    with open_display(console) as display:
        config = with_shapes(job, display.preparing)
    plan = make_plan(config, target.kind, hardware=target.hardware)
    environment = describe(target, facts) | {"machine": config.machine.model_dump(exclude_none=True)}
    return Start(options, console, config, target, environment, plan, only_of(plan, only))


def _write_yaml(start: Start) -> None:
    """Write the job of a model given by name, once it was found to be one. Raises ConfigError."""
    if (file := start.options.write_yaml) is not None:
        write_job(start.config, file)
        start.say(f"Written: {file}; {PROGRAM} {shlex.quote(str(file))} measures the same")


def quick_budget(budget: Budget) -> Budget:
    """Cut the sampling time to a fraction."""
    return replace(budget, seconds=min(budget.seconds, _QUICK_SECONDS), min_samples=_QUICK_SAMPLES)


def _with_samples(budget: Budget, options: Options) -> Budget:
    """Put the options' sampling time and fewest samples into the budget. The time limit gets what they add."""
    seconds = options.seconds or budget.seconds
    fewest = options.min_samples or budget.min_samples
    most = max(budget.max_samples, options.min_samples or 0)
    limit = budget.timeout + 2 * max(seconds - budget.seconds, 0)  # The warm-up may take as long as the sampling.
    return replace(budget, seconds=seconds, min_samples=fewest, max_samples=most, timeout=limit)


@contextlib.contextmanager
def _open_run(start: Start) -> Iterator[RunFolder]:
    """Open a new run's folder, or the resumed one's; nobody else writes into it.

    Raises ConfigError for a run that cannot be resumed, and where the folder cannot be made.
    """
    config, folder = start.config, start.options.resume
    run = RunFolder.create(config.output) if folder is None else RunFolder.resume(folder)
    with writing(run.path):
        if folder is not None:
            _carry_on(run, folder, start)
        run.write_environment(start.environment)
        if folder is None:  # After the environment, without which a run is nobody's own.
            run.write_config(config.model_copy(update={"device": str(start.target), "output": config.output.resolve()}))
        try:
            yield run
        except ConfigError:
            if folder is None and all(row.status == "unsupported" for row in run.results().values()):
                shutil.rmtree(run.path)
            raise


def _carry_on(run: RunFolder, folder: Path, start: Start) -> None:
    """Keep what the run's environment says of its earlier rows. Raises ConfigError where it cannot go on here."""
    environment, before = start.environment, run.read_environment()
    check_machine(folder, before, environment)
    journal = run.results()
    measured = {case.model for case in start.plan if case.id in journal and journal[case.id].status == "ok"}
    compared = [case for case in start.cases if case.unsupported is None and case.model in measured]
    sources = {case.subject: case.source for case in compared}
    with open_display(start.console) as display:
        stages = Stages(sources, start.config.budget, run.logs, start.config.path, display.preparing)
        check_models(run, stages, f"--resume {folder}", "figures of two networks cannot be mixed in one table")
    environment |= {key: before[key] for key in _ALL_RUNS_KEYS if key in before}
    # The run's bench.yaml is the first start's; what later ones said of the machine is only in here.
    environment["machine"] |= before.get("machine", {}) | parse_machine(start.options.machine)
    environment["earlier_commands"] = [*before.get("earlier_commands", []), before.get("command")]


def check_machine(folder: Path, before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Raise ConfigError where the run's environment.json contradicts what this machine is `now`."""
    here = _must_agree(now)
    for key, value in _must_agree(before).items() if before else ():
        if value != here.get(key):
            raise ConfigError(
                f"--resume {folder}: the run was made with {key} {value}, here it is {here.get(key)}; start a new run, "
                "or resume this one as it was made"
            )


def _must_agree(environment: Mapping[str, Any]) -> dict[str, Any]:
    """Select what all rows of a run have in common: the device, its threads, and every installed engine's version."""
    columns = [e.version.column for e in ENGINES.values() if e.version and e.version.packages]
    packages = [name for e in ENGINES.values() if e.version is None for name in e.packages]
    known = {**environment.get("packages", {}), **environment}
    keys = ("cpu", "cpu_cores", "torch_threads", *columns, *packages)
    common = {key: environment.get(key) for key in ("gpu", "device")}
    return common | {key: known[key] for key in keys if known.get(key) is not None}


def measure_cases(
    runner: Runner, console: Console, retry: bool = False, report: bool = True
) -> tuple[bool, pl.DataFrame]:
    """Measure what the journal lacks and write all; returns whether it was interrupted, and the results."""
    environment, config = runner.environment, runner.config
    environment["sampling_seconds"] = config.budget.seconds
    environment.setdefault("spread", earlier_spread(environment))
    runner.run.write_environment(environment)
    journal, cases, limits = runner.run.results(), runner.chosen, config.largest_batch
    waiting = _waiting(journal, cases, config.budget, retry)
    to_search = [case for case in searched(cases) if limits.covers(case.model, case.pass_)] if limits else []
    where = f"{runner.target.name}: {_to_measure(journal, cases, waiting)}; into {runner.run.path}"
    console.print(Text(where), soft_wrap=True)
    interrupted = False
    with runner.display:
        try:
            runner.measure(waiting, to_search, retry)
        except KeyboardInterrupt:
            interrupted = True
    return interrupted, _write_results(runner, console, report)


def _waiting(journal: Mapping[str, Result], cases: Sequence[Case], budget: Budget, retry: bool) -> list[Case]:
    """Select the cases that the journal lacks or that have to be measured again."""
    return [case for case in cases if case.id not in journal or not is_done(journal[case.id], budget, retry)]


def _to_measure(journal: Mapping[str, Result], cases: Sequence[Case], waiting: Sequence[Case]) -> str:
    of, again = counted(len(cases), "case"), sum(case.id in journal for case in waiting)
    if not waiting:
        return f"Nothing is left to measure of {of}; --retry measures again what is not ok or is still disturbed"
    unsupported = sum(case.unsupported is not None for case in waiting)
    left = f"{len(waiting) - again} of {of} left, {again} to measure again" if journal else of
    return f"{left}, {unsupported} of them unsupported here" if unsupported else left


def _write_results(runner: Runner, console: Console, report: bool) -> pl.DataFrame:
    """Write and print what the journal holds, a `report` of it too."""
    run, config, environment = runner.run, runner.config, runner.environment
    results, _ = run.write_parquet(config.suite, runner.plan, environment)
    known, tries, study = run.results(), run.largest_batches(), config.published
    ended = ((case, known[case.id]) for case in runner.plan if case.id in known)
    keep_spread(environment, run.run_id, spread_of_bases(ended, calm=True))
    merged = cells(results)
    write_tables(run.tables, results, merged, tries)

    def print_study() -> None:
        if study is None or results.is_empty():
            return
        told = Text(f"As a page: {run.tables / 'published.md'}", style="dim")
        if not present(console, study, results, [flat_environment(environment)], run.tables):
            told = Text(f"\n{NOTHING.format(study)}", style="yellow")
        console.print(told, soft_wrap=True)

    print_results(console, results, merged, print_study, tries)
    if runner.measured_s:
        # Only now: the time of writing and printing the tables counts, too.
        seconds = {"total": time.monotonic() - runner.started, "measuring": runner.measured_s}
        before = environment.get("wall_seconds", {})
        total = {name: round(before.get(name, 0.0) + value, 3) for name, value in seconds.items()}
        run.write_environment({**environment, "wall_seconds": total})
        console.print(Text(f"\n{took(seconds)}"))
    if report and not results.is_empty():
        _report(console, run, merged)
    return results


def _report(console: Console, run: RunFolder, merged: pl.DataFrame) -> None:
    """Write the run's report.html, `merged` being the results' cells. A report that fails loses nothing."""
    try:
        from profiler.options import Report
        from profiler.report.command import write

        write(Report(runs=[str(run.path)]), merged)
    except Exception as error:
        with contextlib.suppress(OSError):
            (run.logs / "report.log").write_text(traceback.format_exc())
        why = " ".join(str(error).split())[:200] or type(error).__name__
        message = f"\nReport failed: {why} (see logs/report.log); retry with: {PROGRAM} report {run.path}"
        console.print(Text(message, style="yellow"), soft_wrap=True)


def _what_is_left(start: Start, run: RunFolder) -> str:
    """Say that an interrupted run is complete all the same, or which command goes on with it."""
    options, config = start.options, start.config
    if config.largest_batch is None and not _waiting(run.results(), start.cases, config.budget, retry=False):
        return "all cases have been measured"
    words = [word for condition in options.only for word in ("--only", shlex.quote(condition))]
    words += [] if options.wait_for_idle is None else ["--wait-for-idle", f"{options.wait_for_idle:g}"]
    words += [f"--{name}" for name in ("strict", "profile") if getattr(options, name)]
    return f"go on with: {' '.join([resuming(run.path), *words])}"


def _dry_run(start: Start) -> int:
    """Print what a run would do, or what is left of the one to resume."""
    options, config, cases = start.options, start.config, start.cases
    if options.resume is not None:
        run = RunFolder(options.resume)
        check_machine(options.resume, run.read_environment(), start.environment)
        journal = run.results()
        cases = _waiting(journal, cases, config.budget, options.retry)
        start.say(_to_measure(journal, start.cases, cases))
        if not cases:
            return 0
    earlier = earlier_seconds(config.output, start.environment, config.budget)
    code = print_plan(start.console, start.target.name, cases, config.budget, earlier)
    if config.largest_batch is not None:
        start.say("The search for the largest batch comes on top.")
    return code
