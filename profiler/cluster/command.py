"""Run a job on a Ray cluster: a part a model and kind of device, whose rows come into this run as they are made.

Ray places the parts, one at a time on a device; each is an ordinary run on its node (profiler.cluster.part). Of several
kinds of devices each has a run's folder of its own, in one for all.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import polars as pl
from rich.console import Console

from engines.options import DEVICES
from exporters.errors import sentence
from profiler.cluster.kinds import Kind, kinds_of
from profiler.cluster.part import ENVIRONMENT, JOURNAL, MODELS, TRIES, Node, Part, Said, measure, sources
from profiler.errors import ConfigError, resuming
from profiler.job.case import parse_only
from profiler.job.config import Config, JobFile, Machine
from profiler.job.plan import make_plan, only_of
from profiler.machine import Target, describe, host_and_user
from profiler.options import Run as Options
from profiler.processes.forkserver import libraries
from profiler.processes.messages import Status
from profiler.results.cells import cells
from profiler.results.result import Result
from profiler.results.run_folder import RunFolder, append_line, as_job, models_of, moved, writing
from profiler.run.command import (
    Conclude,
    Start,
    begin,
    exit_code,
    must_agree,
    open_job,
    preloaded,
    read_job,
    waiting,
    write_report,
    write_results,
)
from profiler.run.prepare import with_shapes
from profiler.run.progress import Display
from profiler.run.runner import Runner
from profiler.run.search import trials_of
from profiler.run.summary import print_results
from profiler.tables.numbers import counted

_MOST_LOST = 2
"""So many nodes may end under a part before what is left of it is given up."""
_WAIT_SECONDS = 1.0
_STAYS = (".git", ".venv", "venv", "__pycache__", "node_modules")
"""What does not travel of a job's folder, besides its results."""


def execute(options: Options, console: Console, conclude: Conclude | None = None) -> int:
    """Run the job on the cluster at `options.ray`; returns the exit code. Raises ConfigError."""
    job, only, address = open_job(options), parse_only(options.only), str(options.ray)
    configs = [read_job(options, job, device) for device in DEVICES]
    shared = configs[0]
    folder = job.path.resolve().parent if isinstance(job, JobFile) and options.resume is None else Path.cwd()
    with contextlib.ExitStack() as stack:
        # Before the forkserver, which ends children that it does not know.
        ray = stack.enter_context(_connected(address, _travelling(shared, folder)))
        kinds = kinds_of(shared.devices, shared.device, ray.nodes())
        facts = stack.enter_context(libraries(preloaded(configs)))
        display = stack.enter_context(Display(console))
        whole = RunFolder.create(shared.output) if options.resume is None else RunFolder.resume(options.resume)
        if shared.devices and options.resume is None:
            whole.write_config(shared.model_copy(update={"output": shared.output.resolve()}))
        sides = list[Side]()
        for kind in kinds:
            run = RunFolder(whole.path / f"{whole.run_id}-{kind.entry.kind}") if shared.devices else whole
            run.logs.mkdir(parents=True, exist_ok=True)
            stack.enter_context(writing(run.path))
            begun = run.path / "bench.yaml"
            config = _of_kind(kind, shared, read_job(options, JobFile(begun) if begun.exists() else job, kind.device))
            config = with_shapes(config, display.doing)
            plan = make_plan(config, kind.device)
            target = Target(kind.device)
            environment = run.read_environment() or describe(target, facts) | {"machine": _machine(config)}
            start = Start(options, console, config, target, environment, plan, only_of(plan, only))
            if not begun.exists():
                run.write_config(config.model_copy(update={"device": kind.device}))
            runner = start.runner(run, display)
            begin(runner)
            sides.append(Side(kind, runner, options, folder))
        start.say(f"{counted(sum(len(side.models) for side in sides), 'part')} to measure; into {whole.path}")
        interrupted = _measure(ray, sides, display)
        results = _write(sides, console)
        start.say(f"\nResults: {whole.path}")
    if interrupted:
        start.say(f"Interrupted; go on with: {resuming(whole.path)} --ray {shlex.quote(address)}")
        return 130
    if not results.is_empty():
        write_report(whole.path, results, console)
        if conclude is not None and not shared.layers:
            conclude(whole.path, results, console)
    return exit_code(results, shared, options.strict)


class Side:
    """What is measured on one kind of device: a part a model of a run."""

    def __init__(self, kind: Kind, runner: Runner, options: Options, folder: Path) -> None:
        self.kind, self.runner, self.run, self.folder = kind, runner, runner.run, folder
        self.lost = Counter[str]()
        """By model the nodes that ended under it."""
        self.nodes = list[Node]()
        self.words = [word for condition in options.only for word in ("--only", condition)]
        self.words += ["--wait-for-idle", f"{options.wait_for_idle:g}"] if options.wait_for_idle else []
        self.words += ["--retry"] if options.retry else []
        left = [*waiting(self.run.results(), runner.chosen, options.retry), *runner.lacking()]
        every = [entry.name for entry in runner.config.subjects]
        # Only the node knows whether a search or the largest batch has ended.
        is_open = runner.config.search or runner.config.largest_batch
        self.models = every if is_open else [name for name in every if name in {case.model for case in left}]

    def part(self, model: str) -> Part:
        """Make the part of a model, with the rows that are there."""
        job = as_job(self.runner.config) | {"device": self.kind.device}
        job |= {key: [entry for entry in job[key] if entry["name"] == model] for key in ("models", "layers")}
        lines = [result.to_json() for id_, result in self.run.results().items() if id_.startswith(f"{model}/")]
        return Part(job, self.folder, tuple(lines), tuple(self.words))

    def take(self, said: Said, display: Display) -> None:
        """Put what a node says into the run's files."""
        if said.file == JOURNAL:
            display.ended(self.run.append(Result.from_json(said.text)))
        elif said.file == TRIES:
            append_line(self.run.tries, said.text)
        elif said.file == MODELS:
            self.run.write_models(models_of(said.data()))
        elif said.file == ENVIRONMENT:
            self._know(said.data(), display)
        else:
            (self.run.path / said.file).write_text(said.text)

    def meet(self, node: Node, display: Display) -> None:
        """Take down where a part runs."""
        if node.sources != sources():
            display.announce(f"{node.host} has other sources of the profiler ({node.sources}, here {sources()})")
        if node not in self.nodes:
            self.nodes.append(node)

    def _know(self, found: dict[str, Any], display: Display) -> None:
        """Keep the first node's environment, and say in what another one's differs."""
        known = self.runner.environment
        if "nodes" in known:
            one, other = must_agree(known), must_agree(found)
            differs = [f"{key} {other.get(key)}, not {value}" for key, value in one.items() if other.get(key) != value]
            if differs:
                display.announce(f"{found['host']} differs from the first node: {'; '.join(differs)}")
            known["roofs"] = {**found.get("roofs", {}), **known.get("roofs", {})}
        else:
            kept = {key: known[key] for key in ("machine", "command", "earlier_commands") if key in known}
            # The run's owner is who started it; its rows name their own hosts.
            known = found | host_and_user() | kept
        self.runner.environment = known | {"nodes": [asdict(node) for node in self.nodes]}
        self.run.write_environment(self.runner.environment)

    def give_up(self, model: str, status: Status, reason: str) -> None:
        """Make rows of what is left of a model."""
        for case in waiting(self.run.results(), self.runner.chosen, retry=False):
            if case.model == model:
                self.run.append(Result(case.id, status, [reason]))


def _measure(ray: Any, sides: Sequence[Side], display: Display) -> bool:
    """Have Ray place every part, and take what it says; returns whether that was interrupted."""
    task = ray.remote(num_returns="streaming", max_retries=0)(measure)
    going = dict[Any, tuple[Side, str]]()

    def send(side: Side, model: str) -> None:
        going[task.options(**side.kind.asks).remote(side.part(model))] = side, model

    def lose(side: Side, model: str, why: str) -> None:
        side.lost[model] += 1
        if side.lost[model] < _MOST_LOST:
            display.announce(f"{model}: {why}; it goes on elsewhere")
            send(side, model)
        else:
            side.give_up(model, "crashed", f"{counted(_MOST_LOST, 'node')} ended under it: {why}")

    for side in sides:
        for model in side.models:
            send(side, model)
    total = len(going)
    try:
        while going:
            display.doing("measuring on the cluster", total - len(going), total)
            for stream in ray.wait(list(going), timeout=_WAIT_SECONDS)[0]:
                side, model = going[stream]
                try:
                    said = ray.get(next(stream))
                except StopIteration:
                    going.pop(stream)
                except ray.exceptions.RayError as error:
                    going.pop(stream)
                    lose(side, model, sentence(error))
                else:
                    if isinstance(said, Node):
                        side.meet(said, display)
                    elif isinstance(said, Said):
                        side.take(said, display)
                    elif said.code == 2:
                        side.give_up(model, "failed", said.printed)
                    elif said.code not in (0, 1):
                        going.pop(stream)
                        lose(side, model, f"exit code {said.code}: {said.printed}")
    except KeyboardInterrupt:
        for stream in going:
            ray.cancel(stream)
        return True
    return False


def _write(sides: Sequence[Side], console: Console) -> pl.DataFrame:
    """Write what each side's journal holds, print all in the same tables, and return the results."""
    quiet = Console(quiet=True)
    for side in sides:
        if side.runner.config.search:
            side.runner.plan = [*side.runner.plan, *trials_of(side.run.results(), side.runner.plan)]
    if len(sides) == 1:
        return write_results(sides[0].runner, console)
    results = pl.concat([write_results(side.runner, quiet) for side in sides])
    tries = pl.concat([side.run.largest_batches() for side in sides])
    labels = [entry.label for side in sides for entry in side.runner.config.engines]
    is_search = any(side.runner.config.search for side in sides)
    print_results(console, results, cells(results), tries=tries, planned=labels if is_search else None)
    return results


@contextlib.contextmanager
def _connected(address: str, environment: dict[str, Any]) -> Iterator[Any]:
    """Be a driver of the cluster. Raises ConfigError where there is none, or Ray cannot send the job's folder."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_RUNTIME_ENV_IGNORE_GITIGNORE", "1")  # Weights are no part of a repository.
    try:
        import ray
    except ImportError:
        raise ConfigError("--ray: Ray is not installed; pip install 'runtime-profiler[ray]'") from None
    usual: dict[str, Any] = {"log_to_driver": False, "configure_logging": False, "runtime_env": environment}
    usual |= {"include_dashboard": False} if address == "local" else {}
    handler = signal.getsignal(signal.SIGTERM)
    try:
        ray.init(address, **usual)
    except (OSError, RuntimeError, ValueError, ray.exceptions.RayError) as error:
        advice = "give local, auto, or the address that ray start printed"
        raise ConfigError(f"--ray {address}: {sentence(error)}; {advice}") from None
    signal.signal(signal.SIGTERM, handler)  # Ray's would end the driver without its tables.
    try:
        yield ray
    finally:
        ray.shutdown()


def _travelling(config: Config, folder: Path) -> dict[str, Any]:
    """Return Ray's environment of the tasks: with the job's folder, if it needs files or functions of that."""
    job = {key: value for key, value in as_job(config).items() if key not in ("output", "import_from")}
    if not any(entry.factory for entry in config.models) and moved(job, folder) == job:
        return {}
    inside = config.output.resolve()
    results = [str(inside.relative_to(folder))] if inside.is_relative_to(folder) and inside != folder else []
    return {"working_dir": str(folder), "excludes": [*_STAYS, *results]}


def _of_kind(kind: Kind, shared: Config, config: Config) -> Config:
    """Return the job of one kind of device, which is called and priced as the entry says."""
    given = config.machine.model_dump(exclude_none=True) | kind.entry.model_dump(exclude_none=True)
    name = given.pop("kind")
    machine = Machine(**({"label": name} if shared.devices else {}) | given)
    return config.model_copy(update={"devices": [], "machine": machine})


def _machine(config: Config) -> dict[str, Any]:
    return config.machine.model_dump(exclude_none=True)
