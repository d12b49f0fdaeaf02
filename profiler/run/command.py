"""Run a job and write its results folder."""

from __future__ import annotations

import contextlib
import shlex
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import polars as pl
from rich.console import Console
from rich.text import Text

from engines.catalog import Device
from exporters.cache import default_root, trim
from exporters.libraries.catalog import library_of
from profiler.bundled import job_file
from profiler.errors import PROGRAM, ConfigError, resuming
from profiler.job.case import Budget, Case, CaseId
from profiler.job.conditions import Filter, parse_only
from profiler.job.config import Config, load_config, parse_machine
from profiler.job.config_errors import DEVICE_BLOCKS
from profiler.job.plan import make_plan, only_of, searched
from profiler.machine import Target, check_device, describe, resolve_device
from profiler.options import Run as Options
from profiler.processes.forkserver import libraries
from profiler.published.command import covers, nothing_compared, present, require
from profiler.results.cells import cells
from profiler.results.reading import describe as describe_time
from profiler.results.result import Result, WallTime
from profiler.results.row import earlier_spread, flat_environment, keep_spread, spread_of_bases
from profiler.results.run_folder import RunFolder, without_foreign_code, write_tables, writing
from profiler.run.dry_run import check_output, look_at_models, print_plan, refusal
from profiler.run.estimate import Estimates
from profiler.run.model_job import ModelJob, check_new_file, model_job, refuse_model_options, write_job
from profiler.run.prepare import cache_limit, check_cache, compile_caches, prepare_ahead
from profiler.run.progress import Display, open_display
from profiler.run.resume import carried_on, check_machine, check_measured_models
from profiler.run.runner import Runner, is_done
from profiler.run.shapes import with_shapes
from profiler.run.summary import print_results
from profiler.tables.numbers import counted
from profiler.worker.task import Look

_QUICK_SAMPLES, _QUICK_SECONDS = 3, 0.3
Conclude = Callable[[Path, pl.DataFrame, Console], None]
"""Called with the run's folder and its results."""
LEAST_WAIT = 0.1
"""Minutes that a case may be told to wait for a quiet machine, at least."""


@dataclass(frozen=True)
class Start:
    """What a command starts: its job as resolved for the target, and what `environment` says of the machine."""

    options: Options
    console: Console
    config: Config
    target: Target
    environment: dict[str, Any]
    plan: Sequence[Case]
    """Every case of the job."""
    cases: Sequence[Case]
    """Of these what `--only` lets through."""

    def say(self, text: str, style: str = "") -> None:
        """Print a line that is not broken."""
        self.console.print(Text(text, style=style), soft_wrap=True)

    def looks(self, cases: Sequence[Case]) -> dict[str, Look]:
        """What a look at the models of these cases finds, each in a process of its own."""
        with open_display(self.console) as display:
            return look_at_models(cases, self.config.budget, self.config.path, display.preparing)

    def runner(self, run: RunFolder, display: Display | None = None) -> Runner:
        """What measures into the run's folder; it shows its progress on the console where no display is given."""
        display, idle = display or open_display(self.console), self.options.wait_for_idle
        return Runner(run, self.config, self.target, self.plan, self.cases, self.environment, display, idle)


def execute(options: Options, console: Console, conclude: Conclude | None = None) -> int:
    """Run the job; returns the exit code. Raises ConfigError.

    `conclude` says what follows from a run that came to its end.
    """
    started = time.monotonic()
    _check_budget(options)
    job, only = _open_job(options), parse_only(options.only)
    limit, caches = cache_limit(), compile_caches()
    if not options.dry_run:
        check_cache()
    # A mistake in the other device's block should show here too.
    words = {entry.network or "" for kind in DEVICE_BLOCKS for entry in job.read(kind).models}
    with libraries({library.module for library in map(library_of, words) if library}) as facts:
        target = resolve_device(job.device, facts)
        start = resolved(options, console, job.read(target.kind, target.hardware), target, facts, only)
        if job.model is not None:
            _look_at(job.model, start)
        if options.dry_run:
            return _dry_run(start)
        if options.prepare:
            return prepare_ahead(start.config, start.target, start.cases, caches, console)
        with _open_run(start) as run:
            runner = start.runner(run)
            runner.wall.count_from(started)
            interrupted, results = measure_cases(runner, console, options.retry)
    if removed := trim(default_root(), limit):
        console.print(Text(f"\nCache: {counted(len(removed), 'artifact')} removed, those not used for longest"))
    _say_where(start, run)
    if interrupted:
        start.say(f"Interrupted; {_what_is_left(start, run)}")
        return 130
    if conclude is not None and start.config.kind != "layers":
        conclude(run.path, results, console)
    if job.model is not None:
        _say_yaml(start, run)
    statuses = set(results["status"])
    return int("ok" not in statuses or (options.strict and bool(statuses - {"ok", "unsupported"})))


def _say_where(start: Start, run: RunFolder) -> None:
    start.say(f"\nResults: {run.path}")
    if (run.path / "layers.parquet").exists():
        start.say(f"Its layers: {PROGRAM} layers {shlex.quote(str(run.path))}")


@dataclass(frozen=True)
class _Job:
    """What to measure on which device; `model` is the job of a model that the command line names."""

    device: str
    read: Callable[..., Config]
    """Takes the kind of device and its hardware (machine.Target)."""
    model: ModelJob | None = None


def _open_job(options: Options) -> _Job:
    """The job that is given by its file's or its model's name. Raises ConfigError."""
    path = _job_file(options)
    if path is not None:
        its_device = load_config(path).device  # Of what is no job that is to be said, not that it has keys.
        refuse_model_options(options, f"{path.name} has the keys itself, and --only measures a part of it")
        device = check_device(options.device) if options.device else its_device
        return _Job(device, lambda kind, _=None: _read_job(options, path, kind))
    if options.write_yaml is not None:
        check_new_file(options.write_yaml)
    model = model_job(str(options.config), options)

    def read(kind: Device, hardware: str | None = None) -> Config:
        return _with_options(options, model.config(kind, _overrides(options), hardware))

    return _Job(check_device(options.device or "auto"), read, model)


def resolved(
    options: Options, console: Console, job: Config, target: Target, facts: dict[str, Any], only: Filter | None = None
) -> Start:
    """The job with all that its models, the target and the libraries' `facts` say of it. Raises ConfigError."""
    with open_display(console) as display:
        config = with_shapes(job, display.preparing)
    require(config.published)
    plan = make_plan(config, target.kind, hardware=target.hardware)
    environment = describe(target, facts) | {"machine": config.machine.model_dump(exclude_none=True)}
    return Start(options, console, config, target, environment, plan, only_of(plan, only))


def _look_at(model: ModelJob, start: Start) -> None:
    """Look at a model that the command line names, say what is left out, and write the YAML. Raises ConfigError."""
    config, target, file = start.config, start.target, start.options.write_yaml
    if not start.options.dry_run:
        for look in start.looks(start.cases).values():
            if outcome := look.prepared.failures.get("model"):
                raise ConfigError(str(outcome.reason))
    if text := model.not_installed(config, target.kind, target.hardware):
        start.say(text, "dim")
    if file is not None:
        write_job(config, file)
        start.console.print(Text(f"Written: {file}; {PROGRAM} {shlex.quote(str(file))} measures the same"))


def _say_yaml(start: Start, run: RunFolder) -> None:
    text = "The same as a YAML file, to extend: add --write-yaml job.yaml"
    if (file := start.options.write_yaml) is not None:
        text = f"The same again: {PROGRAM} {shlex.quote(str(file))}"
    start.say(f"{text} (the run's own is {run.path / 'bench.yaml'})", "dim")


def _check_budget(options: Options) -> None:
    """Raises ConfigError where options contradict each other about how long a case is sampled, or a wait is none."""
    if options.wait_for_idle is not None and not options.wait_for_idle >= LEAST_WAIT:
        raise ConfigError(f"--wait-for-idle {options.wait_for_idle:g}: it is in minutes; give {LEAST_WAIT} or more")
    given = {"--seconds": options.seconds, "--min-samples": options.min_samples}
    names = [name for name, value in given.items() if value is not None]
    if names and options.quick:
        raise ConfigError(f"give {names[0]} or --quick, not both: each says how long a case is sampled")
    if options.replicates is not None and options.resume is not None:
        raise ConfigError("give --replicates or --resume, not both: a resumed run has its own bench.yaml")
    if names and options.resume is not None:
        raise ConfigError(f"give {names[0]} or --resume, not both: all cases of a run are sampled for equally long")


def _job_file(options: Options) -> Path | None:
    """The YAML to read: the one that is given, or the resumed run's own; None where a model is named instead."""
    if options.prepare and (options.resume is not None or options.dry_run):
        raise ConfigError("--prepare measures nothing: give it without --resume and --dry-run")
    if options.resume is not None:
        if options.config is not None:
            raise ConfigError("give a config or --resume, not both: a resumed run has its own bench.yaml")
        RunFolder.resume(options.resume)
        return options.resume / "bench.yaml"
    for name, given in (("--retry", options.retry), ("--trust-code", options.trust_code)):
        if given:
            raise ConfigError(f"{name} goes with --resume and a run's folder")
    if options.config is None:
        raise ConfigError(f"no model or job was given; try: {PROGRAM} resnet18, or {PROGRAM} bench.yaml")
    return job_file(str(options.config))


def _read_job(options: Options, path: Path, kind: str) -> Config:
    """The file's job on a device of this kind, with the command's options in place of its own."""
    config = _with_options(options, load_config(path, kind, _overrides(options)))
    if options.resume is not None:
        config = without_foreign_code(config, options.resume, f"--resume {options.resume}", options.trust_code)
    return config.model_copy(update={"suite": config.suite or path.stem})


def _overrides(options: Options) -> dict[str, Any]:
    """Keys of a job that the command's options give."""
    output = options.output and str(options.output.resolve())
    # Whether to profile is recorded in the run's bench.yaml, so that resuming it goes on with that.
    given = {
        "device": options.device,
        "output": output,
        "profile": options.profile,
        "replicates": options.replicates,
    }
    return {key: value for key, value in given.items() if value}


def _with_options(options: Options, config: Config) -> Config:
    """The job with the machine and the sampling time that the command's options say."""
    machine = config.machine.model_copy(update=parse_machine(options.machine))
    budget = quick_budget(config.budget) if options.quick else _with_samples(config.budget, options)
    return config.model_copy(update={"machine": machine, "budget": budget})


def quick_budget(budget: Budget) -> Budget:
    """A fraction of the sampling time."""
    return replace(budget, seconds=min(budget.seconds, _QUICK_SECONDS), min_samples=_QUICK_SAMPLES)


def _with_samples(budget: Budget, options: Options) -> Budget:
    """The job's budget with the options' sampling time and fewest samples in place of its own.

    What the options add to a case's warm-up and sampling, its time limit gets too: nobody asks for samples to have the
    case ended while they are taken.
    """
    seconds = options.seconds or budget.seconds
    fewest = options.min_samples or budget.min_samples
    most = max(budget.max_samples, options.min_samples or 0)
    limit = budget.timeout + 2 * max(seconds - budget.seconds, 0)  # The warm-up may take as long as the sampling.
    return replace(budget, seconds=seconds, min_samples=fewest, max_samples=most, timeout=limit)


@contextlib.contextmanager
def _open_run(start: Start) -> Iterator[RunFolder]:
    """A new run's folder, or the resumed one's, whose earlier environment is carried on; nobody else writes into it.

    Raises ConfigError for a run that cannot be resumed, and where the disk takes no more.
    """
    config, folder = start.config, start.options.resume
    if folder is None:
        check_output(config.output, len(start.cases))
    run = RunFolder.create(config.output) if folder is None else RunFolder.resume(folder)
    with writing(run.path):
        if folder is not None:
            _carry_on(run, folder, start)
        run.write_environment(start.environment)
        if folder is None:  # After the environment, without which a run is nobody's own.
            run.write_config(config.model_copy(update={"device": str(start.target), "output": config.output.resolve()}))
        yield run


def _carry_on(run: RunFolder, folder: Path, start: Start) -> None:
    """Put into the environment what the run says of its earlier rows. Raises ConfigError where it cannot go on here."""
    environment = start.environment
    for note in run.damages():
        start.say(f"Note: {note}", "yellow")
    before = run.read_environment()
    check_machine(folder, before, environment)
    with open_display(start.console) as display:
        check_measured_models(run, folder, start.config, start.cases, display.preparing)
    environment |= carried_on(before)
    # The run's bench.yaml is the first start's; what later ones said of the machine is only in here.
    environment["machine"] |= before.get("machine", {}) | parse_machine(start.options.machine)
    environment["earlier_commands"] = [*before.get("earlier_commands", []), before.get("command")]


def measure_cases(
    runner: Runner, console: Console, retry: bool = False, report: bool = True
) -> tuple[bool, pl.DataFrame]:
    """Measure what the journal lacks and write all; returns whether it was interrupted, and the results."""
    runner.environment["sampling_seconds"] = runner.config.budget.seconds
    runner.environment.setdefault("spread", earlier_spread(runner.environment))
    runner.run.write_environment(runner.environment)
    interrupted, wall = _measure(runner, retry, console)
    return interrupted, _write_results(runner, wall, console, report)


def _waiting(journal: Mapping[CaseId, Result], cases: Sequence[Case], budget: Budget, retry: bool) -> list[Case]:
    """The cases that the journal lacks or has to be measured again."""
    return [case for case in cases if case.id not in journal or not is_done(journal[case.id], budget, retry)]


def to_measure(journal: Mapping[CaseId, Result], cases: Sequence[Case], waiting: Sequence[Case]) -> str:
    """Like "9 of 18 cases are left; 7 disturbed ones are measured again", of the cases of a run and those that wait.
    Which can run only preparing their models says."""
    of = counted(len(cases), "case")
    if not waiting:
        return f"Nothing is left to measure of {of}; --retry measures again what is not ok or is still disturbed"
    if not journal:
        unsupported = sum(case.unsupported is not None for case in waiting)
        return f"{of}{f', {unsupported} of them unsupported here' if unsupported else ''}"
    left = sum(case.id not in journal for case in waiting)
    again = [journal[case.id].status == "ok" for case in waiting if case.id in journal and case.unsupported is None]
    text = f"{left} of {of} {'is' if left == 1 else 'are'} left" if left else f"nothing is left of {of}"
    for number, one, several in (
        (sum(again), "disturbed one is", "disturbed ones are"),
        (again.count(False), "that is not ok is", "that are not ok are"),
    ):
        text += f"; {number} {one if number == 1 else several} measured again" if number else ""
    return text


def _measure(runner: Runner, retry: bool, console: Console) -> tuple[bool, WallTime | None]:
    """Measure what the journal lacks; returns whether that was interrupted, and its time if there was any."""
    journal, cases = runner.run.results(), runner.chosen
    waiting = _waiting(journal, cases, runner.config.budget, retry)
    limits = runner.config.largest_batch
    to_search = [case for case in searched(cases) if limits.covers(case.model, case.pass_)] if limits else []
    what = to_measure(journal, cases, waiting)
    if waiting:
        what = f"{runner.target.name}: {what}; into {runner.run.path}"
    for note in runner.environment["untested"]:
        console.print(Text(f"Note: {note}"), soft_wrap=True)
    console.print(Text(what), soft_wrap=True)
    interrupted = False
    with runner.display:
        try:
            runner.measure(waiting, to_search, retry)
        except KeyboardInterrupt:
            interrupted = True
    return interrupted, runner.wall if waiting or to_search else None


def _write_results(runner: Runner, wall: WallTime | None, console: Console, report: bool) -> pl.DataFrame:
    """Write and print what the journal holds, a `report` of it too; `wall` is what the time went into."""
    run, config, environment = runner.run, runner.config, runner.environment
    planned = runner.plan
    results, _ = run.write_parquet(config.suite, planned, environment)
    known, tries = run.results(), run.largest_batches()
    ended = ((case, known[case.id]) for case in planned if case.id in known)
    keep_spread(environment, run.run_id, spread_of_bases(ended, calm=True))
    merged = cells(results)
    write_tables(run.tables, results, merged, tries)
    study = config.published

    def print_study() -> None:
        if study is None or results.is_empty():
            return
        text = Text(f"\n{nothing_compared(study, results['pass'])}", style="yellow")
        if present(console, study, results, [flat_environment(environment)], run.tables):
            text = Text(f"As a page: {run.tables / 'published.md'}", style="dim")
        console.print(text, soft_wrap=True)

    print_results(
        console,
        results,
        merged,
        lambda group: study is not None and covers(study, group),
        print_study,
        tries,
    )
    _say_kept(runner, console)
    if wall is not None:
        # Only now: the time of writing and printing the tables counts, too.
        seconds = wall.split()
        total = Counter(environment.get("wall_seconds", {}))
        total.update(seconds)
        run.write_environment({**environment, "wall_seconds": {k: round(v, 3) for k, v in total.most_common()}})
        console.print(Text(f"\n{describe_time(seconds)}"))
    if report and not results.is_empty():
        _report(console, run, merged)
    return results


def _say_kept(runner: Runner, console: Console) -> None:
    """How many rows an earlier start measured, where this one measured others."""
    rows = [each for each in runner.run.results().values() if each.status == "ok"]
    kept = sum(runner.earlier.get(row.case_id) == row.phases for row in rows)
    if 0 < kept < len(rows):
        of = f"{kept} of {len(rows)} rows {'was' if kept == 1 else 'were'} measured at an earlier start of this run"
        console.print(Text(f"\n{of}, perhaps beside more or less other work than the rest."))


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
        retry = f"{PROGRAM} report {shlex.quote(str(run.path))} --output FILE"
        message = f"\nReport failed: {why} (see logs/report.log); retry with: {retry}"
        console.print(Text(message, style="yellow"), soft_wrap=True)


def _what_is_left(start: Start, run: RunFolder) -> str:
    """That an interrupted run is complete all the same, or the command that goes on with it."""
    options, config = start.options, start.config
    if config.largest_batch is None and not _waiting(run.results(), start.cases, config.budget, retry=False):
        return "all cases have been measured"
    only = "".join(f" --only {shlex.quote(condition)}" for condition in options.only)
    flags = " --trust-code" if options.trust_code else ""
    flags += (" --strict" if options.strict else "") + (" --profile" if options.profile else "")
    if options.wait_for_idle is not None:
        flags += f" --wait-for-idle {options.wait_for_idle:g}"
    return f"go on with: {resuming(run.path)}{only}{flags}"


def _dry_run(start: Start) -> int:
    """Print what a run would do, or what is left of the one to resume; raises what starting it would.

    Whether a model has changed since is not looked at: for that it would have to run.
    """
    options, config, cases = start.options, start.config, start.cases
    if options.resume is None:
        check_output(config.output, len(cases))
    else:
        run = RunFolder(options.resume)
        check_machine(options.resume, run.read_environment(), start.environment)
        journal = run.results()
        cases = _waiting(journal, cases, config.budget, options.retry)
        start.say(to_measure(journal, start.cases, cases))
        if not cases:
            return 0
    doubt = _incomparable(config.published, cases)
    estimates = Estimates(config.output, start.environment, config.budget)
    looks = start.looks(cases)
    plan = [(case, refusal(case, looks, config.budget)) for case in cases]
    code = print_plan(start.console, start.target.name, plan, looks, estimates, options.wait_for_idle)
    if config.largest_batch is not None:
        start.console.print(Text("The search for the largest batch comes on top."))
    if doubt:
        start.say(doubt, "yellow")
    return code


def _incomparable(study: str | None, cases: Sequence[Case]) -> str:
    """That no case has a row in the study's tables, and why; empty where one has."""
    groups = (
        {"model": c.model, "network": c.source.catalog_name, "pass": c.pass_, "setting": c.setting} for c in cases
    )
    if study is None or any(covers(study, group) for group in groups):
        return ""
    return nothing_compared(study, [case.pass_ for case in cases])
