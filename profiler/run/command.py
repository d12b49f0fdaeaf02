"""Run a job and write its results folder."""

from __future__ import annotations

import contextlib
import math
import os
import re
import shlex
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl
from rich.console import Console

from engines.options import DEVICES, Device
from exporters import named_files
from exporters.cache import check_root, default_root, most_bytes, trim
from exporters.dataset import labels_in
from exporters.errors import sentence
from exporters.libraries import library_of
from profiler.bundled import job_file
from profiler.errors import PROGRAM, ConfigError, resuming
from profiler.job.case import QUICK, Case, Filter, parse_only
from profiler.job.config import Config, JobFile, machine_keys
from profiler.job.plan import estimate_seconds, make_plan, only_of, searched
from profiler.machine.target import Target, check_device, describe, resolve_device
from profiler.options import Report
from profiler.options import Run as Options
from profiler.processes.forkserver import COMPILER, libraries
from profiler.published.command import NOTHING, present
from profiler.results.cells import FAULTS, cells
from profiler.results.reasons import BASES
from profiler.results.result import Result
from profiler.results.row import flat_environment
from profiler.results.run_folder import RunFolder, without_foreign_code, write_tables, writing
from profiler.results.spread import earlier_spread, keep_spread, learned
from profiler.results.warning_kinds import retaken
from profiler.run.model_job import ModelJob, model_job, not_tried, refuse_model_options
from profiler.run.prepare import Stages, check_models, with_shapes
from profiler.run.progress import Display
from profiler.run.runner import Runner
from profiler.run.search import contributions, trials_of
from profiler.run.summary import print_plan, print_results
from profiler.run.watch import PATIENCE_SECONDS, await_quiet
from profiler.stats.samples import PERCENTILE_NEEDS
from profiler.tables.numbers import counted, duration, grouped, listed
from profiler.tables.writers import say

Conclude = Callable[[Path, pl.DataFrame, Console], None]
_DURATION = re.compile(r"(\d+(?:\.\d*)?|\.\d+) ?([smh])")
_PERCENTILE = re.compile(r"p(\d+)=")
_LIMITS = ("--max-latency-ms", "--max-accuracy-loss")
_EXCLUDED: Mapping[str, tuple[Sequence[str], str]] = {
    "--resume": (
        ("a job", "--seconds", *_LIMITS, "--quick", "--dry-run", "--search"),
        ": a run goes on with its own bench.yaml",
    ),
    "--ray": (("--threads", "--within", "--against", "--dry-run"), ""),
    "--against": (
        ("--resume", "--replicates", "--dry-run", "--search", "--profile", "--all", *_LIMITS),
        ": a gate repeats until it has a verdict",
    ),
}
"""Map an option to those that it excludes, and why."""
_NEEDED: Mapping[str, tuple[Sequence[str], str]] = {
    "--resume": (("--retry", "--trust-code"), " and a run's folder"),
    "--against": (("--limit", "--junit"), ""),
}
"""Map an option to those that need it."""
LABELS = "labels (by --data, in a job by `data` of the model)"
BASE = f"base to compare with: {BASES}"
_KEPT_KEYS = ("roofs", "roofs_quiet", "spread")
"""Keys of environment.json that a resumed run keeps."""


@dataclass(frozen=True)
class Start:
    """A command's job, resolved for the target: the `plan` has all of its cases, `cases` those that --only selects."""

    options: Options
    console: Console
    config: Config
    target: Target
    environment: dict[str, Any]
    plan: Sequence[Case]
    cases: Sequence[Case]

    def runner(self, run: RunFolder, display: Display | None = None, by_name: bool = False) -> Runner:
        """Make the runner that measures into the run's folder; it shows progress on the display or the console."""
        display, idle = display or Display(self.console), self.options.wait_for_idle or 0.0
        return Runner(run, self.config, self.target, self.plan, self.cases, self.environment, display, idle, by_name)


def execute(options: Options, console: Console, conclude: Conclude | None = None) -> int:
    """Run the job; return the exit code. Raises ConfigError.

    Calls `conclude` with the folder, results and console of a run that was not interrupted.
    """
    started = time.monotonic()
    check_options(options)
    job, only = open_job(options), parse_only(options.only)
    limit = most_bytes()
    if not options.dry_run:
        check_root(default_root())
    # A mistake in the other device's block should show here too.
    configs = [read_job(options, job, kind) for kind in DEVICES]
    if configs[0].devices:
        raise ConfigError("devices: kinds of devices need a cluster; add --ray and its address")
    with libraries(preloaded(configs)) as facts:
        target = resolve_device(configs[0].device, facts)
        config = read_job(options, job, target.kind, target.hardware)
        start = resolved(options, console, config, target, facts, only)
        if options.dry_run:
            return print_plan(start.console, start.target.name, start.cases, start.config)
        with open_run(start) as run:
            runner = start.runner(run, by_name=isinstance(job, ModelJob))
            runner.started = started
            if options.within:
                runner.begin_in(read_seconds("--within", options.within))
            interrupted, results = measure_cases(runner, console, options.retry, report=not options.no_report)
    trim(default_root(), limit)
    say(console, f"\nResults: {run.path}")
    if (run.path / "layers.parquet").exists():
        say(console, f"Layers: {PROGRAM} layers {shlex.quote(str(run.path))}")
    if interrupted:
        say(console, f"Interrupted; {_what_is_left(start, run)}")
        return 130
    if missing := waiting(run.results(), start.cases, start.config.skip):
        # Unmeasured configurations matter more than replicates.
        first, budget = [case for case in missing if not case.replicate], start.config.budget
        sizes = grouped((f"{case.variant} {case.precision}", f"b{case.batch_size}") for case in first or missing)
        which = "; ".join(f"{name} {', '.join(dict.fromkeys(batches))}" for name, batches in sizes.items())
        counts = (len(first), "case"), (len(missing) - len(first), "replicate")
        cases = listed(counted(number, noun) for number, noun in counts if number)
        seconds = sum(runner.estimate(case) or estimate_seconds(case, budget) for case in missing)
        needs = f"about {duration(seconds)} more"
        say(console, f"{cases} did not fit in {options.within}, {needs}: {which}; {_what_is_left(start, run)}")
    elif not runner.search_ended:
        say(console, f"The search did not fit in {options.within}; {_what_is_left(start, run)}")
    if conclude is not None and not start.config.layers:
        conclude(run.path, results, console)
        if start.config.search:
            for line in contributions(cells(results), runner.plan):
                say(console, line)
    for line in not_tried(job, target.kind) if isinstance(job, ModelJob) else ():
        say(console, line, "dim")
    return exit_code(results, start.config, options.strict)


def exit_code(results: pl.DataFrame, config: Config, strict: bool) -> int:
    """Return 1 if no planned row is ok or, if `strict`, one failed; else 0."""
    planned = results.filter(pl.col("variant").is_in([entry.label for entry in config.engines] or [""]))
    statuses = set((results if config.layers else planned)["status"])
    return int("ok" not in statuses or (strict and bool(statuses & {*FAULTS})))


def preloaded(configs: Sequence[Config]) -> set[str]:
    """Name the modules to import once for all cases: the models' libraries, and torch.compile's."""
    words = {entry.network or "" for config in configs for entry in config.models}
    asked = [library for library in map(library_of, words) if library]
    names = {name for library in asked for name in (library.module, library.package)}
    compiles = any(entry.engine.shares_kernels for config in configs for entry in config.engines)
    return names | ({COMPILER} if compiles else set())


def read_seconds(option: str, text: str) -> float:
    """Read "90s", "3m" or "1.5h"; raises ConfigError for anything else."""
    match = _DURATION.fullmatch(text.strip())
    if not match or not float(match[1]):
        raise ConfigError(f"{option}: expected a time such as 90s, 3m or 1h, got '{text}'")
    return float(match[1]) * {"s": 1, "m": 60, "h": 3600}[match[2]]


def check_options(options: Options) -> None:
    """Raise ConfigError for options that contradict each other."""
    for option, (others, why) in _EXCLUDED.items():
        if clash := [other for other in others if _is_given(options, option) and _is_given(options, other)]:
            raise ConfigError(f"{clash[0]} and {option} exclude each other{why}")
    for option, (others, place) in _NEEDED.items():
        if lone := [other for other in others if _is_given(options, other) and not _is_given(options, option)]:
            raise ConfigError(f"{lone[0]} goes with {option}{place}")
    if options.ray is not None and options.resume is not None and options.replicates:
        raise ConfigError("--replicates of a resumed run and --ray exclude each other")
    if options.within is not None:
        read_seconds("--within", options.within)
    if options.junit is not None and not (named_files.exists(options.junit) or options.junit.parent.is_dir()):
        raise ConfigError(f"--junit {options.junit}: there is no folder {options.junit.parent}")
    if options.device is not None:
        check_device(options.device)
    if options.config is None and options.resume is None:
        raise ConfigError(f"no model or job was given; try: {PROGRAM} resnet18, or {PROGRAM} bench.yaml")


def _is_given(options: Options, option: str) -> bool:
    value = getattr(options, "config" if option == "a job" else option[2:].replace("-", "_"))
    return value not in (None, False, (), [])


def open_job(options: Options) -> JobFile | ModelJob:
    """Open the named file's job, or make one of the named model. Raises ConfigError."""
    if options.resume is not None:
        RunFolder.resume(options.resume)
        path: Path | None = options.resume / "bench.yaml"
    else:
        path = job_file(str(options.config))
    if path is not None:
        refuse_model_options(options, f"{path.name} has the keys itself, and --only measures a part of it")
        return JobFile(path)
    return model_job(str(options.config), options)


def read_job(options: Options, job: JobFile | ModelJob, kind: Device, hardware: str | None = None) -> Config:
    """Validate the job for a device of this kind; the command's options replace its keys."""
    config = job.config(kind, _overrides(options), hardware)
    if options.max_accuracy_loss:
        only, data = parse_only(options.only), {entry.name: getattr(entry, "data", None) for entry in config.subjects}
        chosen = only.conditions.get("model", data) if only else data
        unlabelled = [name for name, word in data.items() if not word or labels_in(str(word)) == 0]
        advice = "; choose others by --only model=NAME" * (len(unlabelled) < len(data))
        refuse_unscored(filter(chosen.__contains__, unlabelled), LABELS, advice)
    if options.resume is not None:
        config = without_foreign_code(config, options.resume, f"--resume {options.resume}", options.trust_code)
    return config


def refuse_unscored(models: Iterable[str], need: str, advice: str = "") -> None:
    """Raise ConfigError if models under a limit of the accuracy loss lack labels or a base."""
    if names := ", ".join(models):
        raise ConfigError(f"--max-accuracy-loss: no {need}, for {names}{advice}")


def _overrides(options: Options) -> dict[str, Any]:
    keys: dict[str, Any] = {name: getattr(options, name) for name in ("device", "profile", "search")}
    if options.resume is None:  # In a resumed run --replicates only confirms winners.
        keys["replicates"] = options.replicates
    keys |= {"output": options.output and os.path.realpath(options.output), "machine": machine_keys(options.machine)}
    keys["budget"] = (QUICK if options.quick else {}) | ({"seconds": options.seconds} if options.seconds else {})
    needs = [PERCENTILE_NEEDS.get(int(number), 0) for number in _PERCENTILE.findall(" ".join(options.max_latency_ms))]
    keys["budget"] |= {"min_samples": max(needs)} if needs else {}
    return {key: value for key, value in keys.items() if value} | ({"skip": False} if options.all else {})


def resolved(
    options: Options, console: Console, job: Config, target: Target, facts: dict[str, Any], only: Filter | None = None
) -> Start:
    """Resolve the job for its models, the target and the libraries' `facts`. Raises ConfigError."""
    with Display(console) as display:
        config = with_shapes(job, display.doing)
    plan = cases = make_plan(config, target.kind, hardware=target.hardware)
    if options.resume is not None and options.replicates:  # Replicates beyond the run's plan confirm its winners.
        replicated = config.model_copy(update={"replicates": options.replicates})
        cases = make_plan(replicated, target.kind, hardware=target.hardware)
    cases = only_of(cases, only)
    if options.max_accuracy_loss:
        bases = {case.model for case in cases if case.is_base and case.pass_ == "inference"}
        refuse_unscored(dict.fromkeys(case.model for case in cases if case.model not in bases), BASE)
    environment = describe(target, facts) | {"machine": config.machine.model_dump(exclude_none=True)}
    environment |= {"threads": options.threads} if options.threads else {}
    return Start(options, console, config, target, environment, plan, cases)


@contextlib.contextmanager
def open_run(start: Start) -> Iterator[RunFolder]:
    """Open the folder of a new or a resumed run, and keep other writers out.

    Raises ConfigError if the run cannot be resumed, or its folder cannot be made.
    """
    config, folder = start.config, start.options.resume
    run = RunFolder.create(config.output) if folder is None else RunFolder.resume(folder)
    with writing(run.path):
        if folder is not None:
            _carry_on(run, folder, start)
        run.write_environment(start.environment)
        if folder is None:  # Last: a job without environment.json would count as another user's.
            run.write_config(config.model_copy(update={"device": str(start.target)}))
        try:
            yield run
        except ConfigError:
            if folder is None and all(row.status == "unsupported" for row in run.results().values()):
                shutil.rmtree(run.path)
            raise


def _carry_on(run: RunFolder, folder: Path, start: Start) -> None:
    """Keep facts of the run's earlier environment. Raises ConfigError if the run cannot continue here."""
    environment, before = start.environment, run.read_environment()
    _check_machine(folder, before, environment)
    journal = run.results()
    if run.damaged and not journal:
        unread = f"this version reads none of journal.jsonl's {counted(run.damaged, 'line')}"
        raise ConfigError(f"--resume {folder}: {unread}; start a new run")
    measured = {case.model for case in start.plan if case.id in journal and journal[case.id].status == "ok"}
    compared = [case for case in start.cases if case.unsupported is None and case.model in measured]
    sources = {case.subject: case.source for case in compared}
    with Display(start.console) as display:
        stages = Stages(sources, start.config.budget, run.logs, start.config.path, display.doing)
        check_models(run, stages, f"--resume {folder}", "figures of two networks cannot be mixed in one table")
    environment |= {key: before[key] for key in _KEPT_KEYS if key in before}
    # bench.yaml has only the first start's --machine; later ones are in environment.json.
    typed = {key: environment["machine"][key] for key in machine_keys(start.options.machine)}
    environment["machine"] |= before.get("machine", {}) | typed
    environment["earlier_commands"] = [*before.get("earlier_commands", []), before.get("command")]


def _check_machine(folder: Path, before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Raise ConfigError if the machine `before` differs from this one `now`."""
    ours = _must_agree(now)
    for key, value in _must_agree(before).items() if before else ():
        if value != ours.get(key):
            differs = f"the run was made with {key} {value}, here it is {ours.get(key)}"
            advice = f"add --threads {value}, or start" if key in ("cpu_cores", "torch_threads") else "start"
            raise ConfigError(f"--resume {folder}: {differs}; {advice} a new run")


def _must_agree(environment: Mapping[str, Any]) -> dict[str, Any]:
    """Select the facts that all rows of a run must share: the device, its threads, and each library's version."""
    device = {key: environment.get(key) for key in ("gpu", "device")}
    threads = {key: environment[key] for key in ("cpu", "cpu_cores", "torch_threads") if environment.get(key)}
    versions = {key: value for key, value in environment.items() if key.endswith("_version") and value}
    return {**device, **threads, **versions, **environment.get("packages", {})}


def begin(runner: Runner) -> None:
    """Write the environment that all rows share, and add the journal's trials to the plan."""
    runner.environment["sampling_seconds"] = runner.config.budget.seconds
    runner.environment.setdefault("spread", earlier_spread(runner.environment))
    runner.run.write_environment(runner.environment)
    trials = trials_of(runner.run.results(), runner.plan) if runner.config.search else []
    runner.plan, runner.chosen = [*runner.plan, *trials], [*runner.chosen, *trials]


def measure_cases(
    runner: Runner, console: Console, retry: bool = False, report: bool = True
) -> tuple[bool, pl.DataFrame]:
    """Measure the cases missing from the journal, and write the results; return (interrupted, rows)."""
    begin(runner)
    cases, limits = runner.chosen, runner.config.largest_batch
    missing = waiting(runner.run.results(), cases, runner.config.skip, retry)
    if damaged := runner.run.damaged:
        lost = f"Ignored {counted(damaged, 'damaged line')} of journal.jsonl; their cases will be measured again"
        say(console, lost, "yellow")
    to_search = [case for case in searched(cases) if limits.covers(case.model, case.pass_)] if limits else []
    new, whole = (sum(case.unsupported is None for case in of) for of in (missing, cases))
    say(console, f"{runner.target.name}: {new} of {counted(whole, 'case')} to try; into {runner.run.path}")
    interrupted = False
    with runner.display:
        try:
            if new and runner.target.kind == "cpu" and not runner.idle_minutes:
                await_quiet(runner.display, 0.0 if math.isfinite(runner.deadline) else PATIENCE_SECONDS)
            runner.measure(missing, to_search, retry)
        except KeyboardInterrupt:
            interrupted = True
    results = write_results(runner, console)
    if report and not results.is_empty():
        write_report(runner.run.path, results, console)
    if missing or to_search:
        say(console, f"\nTook {duration(time.monotonic() - runner.started)}")
    return interrupted, results


def write_report(folder: Path, results: pl.DataFrame, console: Console) -> None:
    """Write the report. If that fails, only warn: the results are already written."""
    try:
        from profiler.report.command import write  # altair takes half a second

        write(Report(runs=[str(folder)]), cells(results))
    except Exception as error:
        again = f"try again: {PROGRAM} report {shlex.quote(str(folder))}"
        why = error if isinstance(error, ConfigError) else sentence(error)
        say(console, f"no report: {why}; {again}", "yellow")


def waiting(journal: Mapping[str, Result], cases: Sequence[Case], skips: bool, retry: bool = False) -> list[Case]:
    """Select the cases missing from the journal; with `retry`, also those not ok or worth a second take.

    Skipped cases wait if the job no longer `skips` any.
    """

    def is_done(result: Result | None) -> bool:
        if result is None or result.status == "skipped":
            return result is not None and skips
        return not (retry and (result.status != "ok" or retaken(result.warnings)))

    return [case for case in cases if not is_done(journal.get(case.id))]


def write_results(runner: Runner, console: Console, is_gate: bool = False) -> pl.DataFrame:
    """Write and print the journal's results. A gate's short rounds teach later runs no spread."""
    run, config, environment = runner.run, runner.config, runner.environment
    missing = [] if is_gate else waiting(run.results(), runner.chosen, config.skip)
    journal = run.results()  # A skipped case has a row already.
    missing = [case for case in missing if not case.replicate and case.id not in journal]
    results, _ = run.write_parquet(config.suite, runner.plan, environment, missing)
    tries, study = run.largest_batches(), config.published
    if not is_gate:
        keep_spread(environment, run.run_id, learned(results, calm=True))
    merged = cells(results)
    write_tables(run.tables, results, merged, tries)

    def print_study() -> None:
        if study is None or results.is_empty():
            return
        if present(console, study, results, [flat_environment(environment)], run.tables):
            say(console, f"As a page: {run.tables / 'published.md'}", "dim")
        else:
            say(console, f"\n{NOTHING.format(study)}", "yellow")

    labels = [entry.label for entry in config.engines] if config.search else None
    print_results(console, results, merged, print_study, tries, labels)
    return results


def _what_is_left(start: Start, run: RunFolder) -> str:
    """Give the command that continues an interrupted run, or say that all cases have been measured."""
    is_open = start.config.largest_batch is not None or start.config.search
    if not is_open and not waiting(run.results(), start.cases, start.config.skip, start.options.retry):
        return "all cases have been measured"
    return going_on(start.options, run.path)


def going_on(options: Options, run: Path) -> str:
    """Give the command that continues a run."""
    words = [word for condition in options.only for word in ("--only", shlex.quote(condition))]
    words += ["--wait-for-idle", f"{options.wait_for_idle:g}"] if options.wait_for_idle else []
    # A new run's bench.yaml has its replicates.
    words += ["--replicates", str(options.replicates)] if options.resume and options.replicates else []
    words += [flag for flag in ("--retry", "--trust-code", "--all", "--strict") if _is_given(options, flag)]
    words += ["--ray", shlex.quote(options.ray)] if options.ray else []
    return f"go on with: {' '.join([resuming(run), *words])}"
