"""Run a job and write its results folder."""

from __future__ import annotations

import contextlib
import json
import traceback
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from profiler.errors import ConfigError, nearest
from profiler.job.case import Budget, Case, Role
from profiler.job.conditions import parse_only
from profiler.job.config import Config, load_config, parse_machine
from profiler.job.plan import estimate_seconds, estimate_total, make_plan
from profiler.machine import Target, check_device, describe, resolve_device
from profiler.processes.forkserver import libraries
from profiler.published.command import covers, present, require
from profiler.results.lines import summary, without_probes, write_tables
from profiler.results.reading import flat_environment
from profiler.results.result import Result
from profiler.results.run_folder import RunFolder
from profiler.results.wall_time import describe as describe_time
from profiler.results.warning_kinds import is_measured_again
from profiler.run.probes import probes_among, searched
from profiler.run.progress import duration, open_display
from profiler.run.runner import Runner
from profiler.run.summary import print_results

_QUICK = {"seconds": 0.3, "min_samples": 5}
_COMMANDS = (
    *("run", "build", "report", "compare", "recommend", "query", "layers", "published"),
    *("suites", "engines", "models", "environment"),
)
_MUST_AGREE = ("gpu", "device", "torch_version", "onnxruntime_version", "tensorrt_version")


@dataclass(frozen=True, kw_only=True)
class Options:
    """The command's options; None where the config decides."""

    config: Path | None = None
    device: str | None = None
    output: Path | None = None
    only: tuple[str, ...] = ()
    quick: bool = False
    dry_run: bool = False
    resume: Path | None = None
    retry: bool = False
    strict: bool = False
    profile: bool = False
    machine: str | None = None


def execute(options: Options, console: Console) -> int:
    """Run the job; returns the exit code. Raises ConfigError."""
    if options.retry and options.resume is None:
        raise ConfigError("--retry goes with --resume and a run's folder")
    if options.device is not None:
        check_device(options.device)
    only = parse_only(options.only)
    machine = parse_machine(options.machine)
    path = _config_path(options)
    wanted = options.device or load_config(path).device
    for kind in ("cpu", "cuda"):
        load_config(path, kind, _overrides(options))  # A mistake in the other device's block should show here too.
    with libraries() as facts:
        target = resolve_device(wanted, facts)
        config = load_config(path, target.kind, _overrides(options))
        config = config.model_copy(update={"machine": config.machine.model_copy(update=machine)})
        if options.resume is None:
            config = config.model_copy(update={"suite": config.suite or path.stem, "budget": _budget(config, options)})
        budget = _budget(config, options)
        require(config.published)
        cases = make_plan(config, target.kind, only, target.compute_capability)
        if options.dry_run:
            _print_plan(console, cases, budget, target)
            return 0
        environment = describe(target, facts) | {"machine": config.machine.model_dump(exclude_none=True)}
        run = _open_run(options, config, target, environment)
        return _measure(console, options, config, cases, run, budget, target, environment)


def _measure(
    console: Console,
    options: Options,
    config: Config,
    cases: Sequence[Case],
    run: RunFolder,
    budget: Budget,
    target: Target,
    environment: dict[str, Any],
) -> int:
    journal = run.results()
    done = {case_id for case_id, result in journal.items() if _is_done(result, options.retry)}
    waiting = [case for case in cases if case.id not in done]
    limits = config.largest_batch
    to_search = [case for case in searched(cases) if limits.covers(case.model, case.pass_)] if limits else []
    probes = {id_: result for id_, result in journal.items() if id_.role is Role.PROBE}
    again = {id_ for id_, result in probes.items() if options.retry and result.status != "ok"}
    runnable = sum(case.unsupported is None for case in waiting)
    console.print(Text(f"{target.name}: {runnable} of {len(waiting)} cases can run; into {run.path}"), soft_wrap=True)
    interrupted = False
    with open_display(console) as display:
        folders = tuple(map(str, config.import_from))
        runner = Runner(
            run, budget, target, display, folders, config.energy, environment, config.profile, config.largest_batch
        )
        try:
            runner.measure(waiting, to_search, again)
        except KeyboardInterrupt:
            interrupted = True
    plan = make_plan(config, target.kind, capability=target.compute_capability)
    tried = probes_among(plan, run.results()) if config.largest_batch else []
    results, samples = run.write_parquet(config.suite, [*plan, *tried], environment)
    lines = summary(results, samples)
    write_tables(run.tables, results, lines)
    study = config.published
    print_results(console, results, lines, lambda group: study is not None and covers(study, group))
    if study is not None:
        present(console, study, results, [flat_environment(environment)], run.tables)
    if waiting or to_search:
        split = runner.wall.split()
        total = Counter(environment.get("wall_seconds", {}))
        total.update(split)
        run.write_environment({**environment, "wall_seconds": {k: round(v, 3) for k, v in total.most_common()}})
        console.print(Text(f"\n{describe_time(split)}"))
    _report(console, run, lines)
    console.print(Text(f"\nEverything stands in {run.path}"), soft_wrap=True)
    if (run.path / "layers.parquet").exists():
        console.print(Text(f"Its layers: python -m profiler layers {run.path}"), soft_wrap=True)
    if interrupted:
        flags = (" --strict" if options.strict else "") + (" --profile" if options.profile else "")
        same = "".join(f" --only {condition}" for condition in options.only) + flags
        console.print(Text(f"Interrupted; go on with: python -m profiler --resume {run.path}{same}"), soft_wrap=True)
        return 130
    statuses = set(without_probes(results)["status"])
    if "ok" not in statuses or (options.strict and statuses - {"ok", "unsupported"}):
        return 1
    return 0


def _report(console: Console, run: RunFolder, lines: Any) -> None:
    """Write the run's report.html, `lines` being table.summary's. What goes wrong is told, and loses nothing."""
    try:
        from profiler.report.command import Options, write

        write(Options(runs=[run.path]), lines)
    except Exception as error:
        with contextlib.suppress(OSError):
            (run.logs / "report.log").write_text(traceback.format_exc())
        said = " ".join(str(error).split())[:200] or type(error).__name__
        told = f"\nThere is no report ({said}; logs/report.log says more); again: python -m profiler report {run.path}"
        console.print(Text(told, style="yellow"), soft_wrap=True)


def _is_done(result: Result, retry: bool) -> bool:
    """Whether a resumed run leaves it as it is: not what was interrupted before a slowed-down card's second time."""
    return not is_measured_again(result.warnings) and (not retry or result.status == "ok")


def _config_path(options: Options) -> Path:
    if options.resume is not None:
        if options.config is not None:
            raise ConfigError("give a config or --resume, not both: a resumed run has its own bench.yaml")
        RunFolder.resume(options.resume)
        return options.resume / "bench.yaml"
    if options.config is None:
        raise ConfigError("no config was given; try: python -m profiler bench.yaml")
    if not options.config.suffix and not options.config.exists():
        name = str(options.config)
        raise ConfigError(f"'{name}' is neither a file nor a command{nearest(name, _COMMANDS)}")
    return options.config


def _overrides(options: Options) -> dict[str, Any]:
    given = {"device": options.device, "output": str(options.output.resolve()) if options.output else None}
    # Recorded in the run's bench.yaml, so that resuming it goes on profiling.
    profile = {"profile": True} if options.profile else {}
    return {key: value for key, value in given.items() if value is not None} | profile


def _budget(config: Config, options: Options) -> Budget:
    if not options.quick:
        return config.budget
    return replace(
        config.budget, seconds=min(config.budget.seconds, _QUICK["seconds"]), min_samples=int(_QUICK["min_samples"])
    )


def _open_run(options: Options, config: Config, target: Target, environment: dict[str, Any]) -> RunFolder:
    if options.resume is None:
        run = RunFolder.create(config.output)
        device = f"cuda:{target.gpu.index}" if target.gpu else "cpu"
        run.write_config(config.model_copy(update={"device": device, "output": config.output.resolve()}))
    else:
        run = RunFolder.resume(options.resume)
        try:
            before = json.loads((run.path / "environment.json").read_text())
        except (OSError, ValueError):
            raise ConfigError(
                f"--resume {options.resume}: its environment.json cannot be read; start a new run"
            ) from None
        for key in _MUST_AGREE:
            if before.get(key) != environment.get(key):
                raise ConfigError(
                    f"--resume {options.resume}: the run was made with {key} {before.get(key)}, here it is "
                    f"{environment.get(key)}; figures of the two do not belong into one table: start a new run"
                )
        environment |= {key: before[key] for key in ("roofs", "wall_seconds") if before.get(key)}
        # The config of the run is the first start's; what a later one told of the machine stands here.
        told = {**before.get("machine", {}), **parse_machine(options.machine)}
        environment["machine"] = {**environment["machine"], **told}
        environment["earlier_commands"] = [*before.get("earlier_commands", []), before.get("command")]
    run.write_environment(environment)
    return run


def _print_plan(console: Console, cases: Sequence[Case], budget: Budget, target: Target) -> None:
    table = Table(box=None, pad_edge=False, padding=(0, 2))
    for head in ("Case", "Estimate s", "Note"):
        table.add_column(head, justify="right" if head == "Estimate s" else "left", no_wrap=head != "Note")
    for case in cases:
        seconds = estimate_seconds(case, budget)
        table.add_row(
            Text(str(case.id)), f"{seconds:.0f}" if seconds else "", Text(case.unsupported or "", style="dim")
        )
    console.print(table)
    total = estimate_total(cases, budget)
    runnable = sum(case.unsupported is None for case in cases)
    console.print(
        Text(f"\n{target.name}: {runnable} of {len(cases)} cases can run here, in about {duration(total)} (a guess)")
    )
