"""Run a job on a Ray cluster, in parts for each kind of device, whose rows come into this run as they are made.

Ray places the parts, one at a time on a device; each is an ordinary run on its node (profiler.cluster.part). Each of
the kinds of devices that a job names has a run's folder in the job's.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import signal
import socket
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import polars as pl
import psutil
from rich.console import Console
from rich.text import Text

from engines.options import DEVICES
from exporters.errors import sentence
from exporters.whole_file import write_whole
from profiler.cluster.kinds import Kind, kinds_of
from profiler.cluster.part import ENDED, ENVIRONMENT, JOURNAL, MODELS, TRIES, Part, measure, sources
from profiler.errors import ConfigError
from profiler.job.case import Budget, Case, Filter, parse_only
from profiler.job.config import Config, JobFile, Machine
from profiler.job.plan import estimate_seconds, make_plan, only_of
from profiler.machine import Target, describe, host_and_user
from profiler.options import Run as Options
from profiler.processes.forkserver import libraries
from profiler.processes.messages import Status
from profiler.results.cells import cells
from profiler.results.columns import RESULTS
from profiler.results.result import Result
from profiler.results.run_folder import RunFolder, append_line, as_job, models_of, moved, read_json, read_text, writing
from profiler.results.schema import identities_of
from profiler.run import command as run
from profiler.run.prepare import with_shapes
from profiler.run.progress import Display
from profiler.run.runner import Runner
from profiler.run.search import trials_of
from profiler.run.summary import print_results
from profiler.tables.numbers import counted, duration

_MOST_LOST = 2
"""So many nodes may end under a part before what is left of it is given up."""
_LEAST_PARTS, _ENOUGH_PARTS = 2, 4
"""Parts a device: with fewer than the least, models are cut by batch size, since parts take different times; with more
than enough, short ones are put together, since each takes a while to start."""
_SHORT_SECONDS = 600.0
"""A part that takes less is short. A longer one would lose more where a node ends twice."""
_WAIT_SECONDS = 1.0
_CONNECT_SECONDS = 5.0
_HEAD_SECONDS = 3.0
"""Seconds without an answer after which the cluster's head has ended."""
_HEAD_ENDED = "the cluster's head has ended"
_DRIVERS = ("machine", "command", "earlier_commands", "job_folder", "spread", "sampling_seconds")
"""Keys of environment.json that only the driver knows."""
_STAYS = (".git", ".venv", "venv", "__pycache__", "node_modules")
"""What does not travel of a job's folder, besides its results."""


class _ClusterError(Exception):
    """The cluster takes no more parts."""


def execute(options: Options, console: Console, conclude: run.Conclude | None = None) -> int:
    """Run the job on the cluster at `options.ray`; returns the exit code. Raises ConfigError."""
    started = time.monotonic()
    run.check_options(options)
    job, only, address = run.open_job(options), parse_only(options.only), str(options.ray)
    configs = [run.read_job(options, job, device) for device in DEVICES]
    shared = configs[0]
    folder = job.path.resolve().parent if isinstance(job, JobFile) else Path.cwd()
    if options.resume is not None:
        folder = Path(RunFolder(options.resume).read_environment().get("job_folder", Path.cwd()))
    with contextlib.ExitStack() as stack:
        # Before the forkserver, which ends children that it does not know.
        travelling = next(filter(None, (_travelling(config, folder) for config in configs)), {})
        ray = stack.enter_context(_connected(address, travelling))
        kinds = kinds_of(shared.devices, shared.device, ray.nodes())
        facts = stack.enter_context(libraries(()))  # Nothing is measured here.
        display = stack.enter_context(Display(console))
        whole = RunFolder.create(shared.output) if options.resume is None else RunFolder.resume(options.resume)
        if shared.devices and options.resume is None:
            whole.write_environment(host_and_user() | {"job_folder": str(folder)})
            whole.write_config(shared)
        sides = list[Side]()
        for kind in kinds:
            own = RunFolder(whole.path / f"{whole.run_id}-{kind.entry.kind}") if shared.devices else whole
            own.logs.mkdir(parents=True, exist_ok=True)
            stack.enter_context(writing(own.path))
            begun = own.path / "bench.yaml"
            read = run.read_job(options, JobFile(begun) if begun.exists() else job, kind.device)
            config = with_shapes(_of_kind(kind, shared, read), display.doing)
            target, plan = Target(kind.device), make_plan(config, kind.device)
            chosen = only_of(plan, only)
            more = {"machine": config.machine.model_dump(exclude_none=True), "job_folder": str(folder)}
            environment = own.read_environment() or describe(target, facts) | more
            if begun.exists():
                commands = [*environment.get("earlier_commands", []), environment.get("command")]
                environment |= {"command": sys.argv, "earlier_commands": commands}
            else:
                own.write_config(config)
            start = run.Start(options, console, config, target, environment, plan, chosen)
            sides.append(Side(kind, start.runner(own, display), options, folder if travelling else None))
        count = counted(sum(len(side.shares) for side in sides), "part")
        display.announce(f"{count} to measure; into {whole.path}")
        interrupted, refused, ended = False, list[str](), ""
        try:
            interrupted, refused = _measure(ray, sides, display)
        except _ClusterError as error:
            ended = str(error)
        results = _write(sides, console)
    if ended:
        raise ConfigError(f"--ray {address}: {ended}; {run.going_on(options, whole.path)}")
    console.print(Text(f"\nTook {duration(time.monotonic() - started)}\n\nResults: {whole.path}"), soft_wrap=True)
    if interrupted:
        console.print(Text(f"Interrupted; {run.going_on(options, whole.path)}"), soft_wrap=True)
        return 130
    if not results.is_empty():
        if not options.no_report:
            run.write_report(whole.path, results, console)
        if conclude is not None and not shared.layers:
            conclude(whole.path, results, console)
    if refused:
        raise ConfigError("; ".join(dict.fromkeys(refused)))
    own_rows = [(results.filter(run_id=side.run.run_id), side.runner.config) for side in sides]
    return max(run.exit_code(rows, config, options.strict) for rows, config in own_rows)


class Share(NamedTuple):
    """What one part measures: models, or one model at one batch size."""

    models: tuple[str, ...]
    batch_size: int | None = None

    def __str__(self) -> str:
        more = f" and {counted(len(self.models) - 1, 'other model')}" if len(self.models) > 1 else ""
        return f"{self.models[0]}{more}" if self.batch_size is None else f"{self.models[0]} at batch {self.batch_size}"

    def has(self, case_id: str) -> bool:
        """Tell whether a row is of this part, by its name."""
        of_batch = self.batch_size is None or f"/b{self.batch_size}/r" in case_id
        return case_id.partition("/")[0] in self.models and of_batch


def shares_of(cases: Sequence[Case], budget: Budget, least: int, enough: int) -> list[Share]:
    """Cut cases by model, and the longest models by batch size until there are `least` parts; the longest come first.

    With more than `enough` parts the shortest are put together, as long as they stay short.
    """
    seconds = defaultdict[Share, float](float)

    def longest_first() -> list[Share]:
        return sorted(seconds, key=lambda share: seconds[share], reverse=True)

    for case in cases:
        seconds[Share((case.model,))] += estimate_seconds(case, budget)
    while len(seconds) > enough:
        longer, shorter = longest_first()[-2:]
        if seconds[longer] + seconds[shorter] > _SHORT_SECONDS:
            break
        seconds[Share(longer.models + shorter.models)] = seconds.pop(longer) + seconds.pop(shorter)
    for whole in longest_first():
        if len(seconds) < least:
            del seconds[whole]
            for case in cases:
                if whole.has(case.id):
                    seconds[Share(whole.models, case.batch_size)] += estimate_seconds(case, budget)
    return longest_first()


class Side:
    """What is measured on one kind of device: parts of a run."""

    def __init__(self, kind: Kind, runner: Runner, options: Options, folder: Path | None) -> None:
        run.begin(runner)
        self.kind, self.runner, self.run, self.options, self.folder = kind, runner, runner.run, options, folder
        self.lost = Counter[Share]()
        """By part how often its program or node ended."""
        lacking = run.waiting(self.run.results(), runner.chosen, options.retry)
        self.unmeasured, self.arrived = {case.id for case in lacking}, set(self.run.results())
        # Only the node knows whether a search or the largest batch has ended.
        is_open = runner.config.search or runner.config.largest_batch
        cases = runner.chosen if is_open else [*lacking, *runner.lacking()]
        # The largest batch is searched once for all of them.
        least = 0 if runner.config.largest_batch or kind.count == 1 else _LEAST_PARTS * kind.count
        self.shares = shares_of(cases, runner.config.budget, least, _ENOUGH_PARTS * kind.count)

    def part(self, share: Share) -> Part:
        """Make a part, with what is there of it."""
        only = parse_only(self.options.only)
        conditions = {**(only.conditions if only else {}), "model": list(share.models)}
        conditions |= {} if share.batch_size is None else {"batch_size": [share.batch_size]}
        words = ["--only", str(Filter(conditions))]
        words += ["--wait-for-idle", f"{self.options.wait_for_idle:g}"] if self.options.wait_for_idle else []
        words += ["--retry"] if self.options.retry else []
        models = read_json(self.run.path / MODELS, identities_of).items()
        files = {
            TRIES: read_text(self.run.tries),
            MODELS: json.dumps({name: one for name, one in models if name.partition("/")[0] in share.models}),
            JOURNAL: "".join(f"{row.to_json()}\n" for id_, row in self.run.results().items() if share.has(id_)),
        }
        return Part(as_job(self.runner.config), self.folder, str(self.run.path), files, tuple(words), sources())

    def left(self, share: Share) -> list[Case]:
        """Return the cases of a part that the journal lacks."""
        cases = [case for case in self.runner.chosen if share.has(case.id)]
        return run.waiting(self.run.results(), cases, retry=False)

    def take(self, file: str, text: str, display: Display) -> None:
        """Put what a node says into the run's files."""
        if file == JOURNAL:
            result = self.run.append(Result.from_json(text))
            again = "again " if result.case_id in self.arrived else ""
            self.unmeasured.discard(result.case_id)
            self.arrived.add(result.case_id)
            display.ended(result, where=f"{again}{self.runner.config.machine.label or ''}".strip())
        elif file == TRIES:
            append_line(self.run.tries, text)
        elif file == MODELS:
            self.run.write_models(models_of(json.loads(text)))
        elif file == ENVIRONMENT:
            self._know(json.loads(text))
        else:
            write_whole(self.run.path / file, text)

    def contradicts(self, text: str) -> str:
        """Say which models are other networks on a node than on an earlier one; empty if none is."""
        known, found = self.run.read_models(), models_of(json.loads(text))
        names = [name for name, one in found.items() if name in known and known[name].changes(one)]
        why = "is another network on one node than on another; give all nodes the same files"
        return f"--ray: {', '.join(names)} {why}" if names else ""

    def _know(self, found: dict[str, Any]) -> None:
        """Keep the first node's environment, and of each node who it is; rows have their own."""
        known = self.runner.environment
        nodes, node = known.get("nodes", []), {key: found.get(key) for key in ("host", "gpu_uuid", "cores")}
        kept = {key: known[key] for key in _DRIVERS if key in known}
        is_first = not nodes or node == nodes[0]
        first = found | host_and_user() | {"earlier_commands": []} | kept if is_first else known
        roofs = {"roofs": (found.get("roofs") or {}) | (known.get("roofs") or {})}
        self.runner.environment = first | roofs | {"nodes": [*nodes, *([node] if node not in nodes else [])]}
        self.run.write_environment(self.runner.environment)

    def give_up(self, share: Share, status: Status, reason: str) -> None:
        """Make rows of what is left of a part."""
        for case in self.left(share):
            self.unmeasured.discard(case.id)
            self.run.append(Result(case.id, status, [reason]))


def _measure(ray: Any, sides: Sequence[Side], display: Display) -> tuple[bool, list[str]]:
    """Have Ray place every part, and take what it says; returns whether that was interrupted, and why nodes refused."""
    task = ray.remote(num_returns="streaming", max_retries=0)(measure)
    going, refused = dict[Any, tuple[Side, Share]](), list[str]()

    def send(side: Side, share: Share) -> None:
        going[task.options(**side.kind.asks).remote(side.part(share))] = side, share

    def lose(side: Side, share: Share, why: str) -> None:
        side.lost[share] += 1
        if side.lost[share] < _MOST_LOST:
            display.announce(f"{share}: {why}; it goes on where a {side.kind.entry.kind} is free")
            send(side, share)
        else:
            side.give_up(share, "crashed", f"its program or node ended {counted(_MOST_LOST, 'time')}: {why}")

    head, answered = ray.get_runtime_context().gcs_address, time.monotonic()
    try:
        for each in sides:
            for share in each.shares:
                send(each, share)
        total = sum(len(side.unmeasured) for side in sides)
        while going:
            done = total - sum(len(side.unmeasured) for side in sides)
            display.doing(f"measuring on the cluster, {counted(len(going), 'part')} left", done, total)
            if _answers(head):
                answered = time.monotonic()
            elif time.monotonic() - answered > _HEAD_SECONDS:
                raise _ClusterError(_HEAD_ENDED)
            for stream in ray.wait(list(going), timeout=_WAIT_SECONDS)[0]:
                side, share = going.pop(stream)
                try:
                    file, text = ray.get(next(stream))
                except ray.exceptions.RayError as error:
                    if not _answers(head):
                        raise _ClusterError(_HEAD_ENDED) from error
                    lose(side, share, sentence(getattr(error, "cause", None) or error))
                    continue
                if file == MODELS and (why := side.contradicts(text)):
                    ray.cancel(stream)
                    refused.append(why)
                elif file != ENDED:
                    going[stream] = side, share
                    side.take(file, text, display)
                else:
                    code, said = text.split("\n")[0], text.strip().split("\n")[-1]
                    if code == "2":
                        refused.append(said)
                    elif code not in ("0", "1") or side.left(share):
                        lose(side, share, f"exit code {code}: {said}")
    except (ray.exceptions.ObjectStoreFullError, ray.exceptions.OutOfDiskError) as error:
        raise _ClusterError("this node's object store is full (see: ray memory)") from error
    except KeyboardInterrupt:
        for stream in going:
            ray.cancel(stream)
        return True, refused
    return False, refused


def _answers(address: str) -> bool:
    try:
        _reach(address)
    except OSError:
        return False
    return True


def _reach(address: str) -> None:
    """Raise OSError where nobody answers."""
    host, _, port = address.rpartition(":")
    socket.create_connection((host, int(port)), _CONNECT_SECONDS).close()


def _write(sides: Sequence[Side], console: Console) -> pl.DataFrame:
    """Write what each side's journal holds, print all in the same tables, and return the results."""
    # A kind without rows has no tables yet.
    runners = [side.runner for side in sides if side.run.journal.exists() or len(sides) == 1]
    for runner in runners:
        if runner.config.search:
            runner.plan = [*runner.plan, *trials_of(runner.run.results(), runner.plan)]
    if not runners:
        return pl.DataFrame(schema=RESULTS)
    if len(sides) == 1:
        return run.write_results(runners[0], console)
    results = pl.concat([run.write_results(runner, Console(quiet=True)) for runner in runners])
    tries = pl.concat([runner.run.largest_batches() for runner in runners])
    labels = [entry.label for runner in runners for entry in runner.config.engines]
    is_search = any(runner.config.search for runner in runners)
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
    logging.getLogger("ray").setLevel(logging.ERROR)  # Else it prints notes on its token and on ignored folders.
    handler, started = signal.getsignal(signal.SIGTERM), list[psutil.Process]()
    try:
        if address not in ("local", "auto"):  # Ray tries for minutes.
            host, _, port = address.rpartition(":")
            if not (host and port.isdigit()):
                raise ValueError("that is no HOST:PORT")
            _reach(address)
        ray.init(address, **usual)
        signal.signal(signal.SIGTERM, handler)  # Ray's would end the driver without its tables.
        started = psutil.Process().children(recursive=True)
        yield ray
    except Exception as error:  # Ray raises a plain one where it does not start in time.
        if ray.is_initialized():
            raise
        if "InvalidAuthToken" in f"{error} {error.__cause__}":
            raise ConfigError(f"--ray {address}: this cluster asks for a token; set RAY_AUTH_MODE=token") from None
        why = str(error) if isinstance(error, ValueError) else sentence(error).partition(". Last connection error")[0]
        raise ConfigError(f"--ray {address}: {why}; give local, auto, or HOST:PORT of ray start") from None
    finally:
        ray.shutdown()
        for process in started:  # Without a head some stay.
            with contextlib.suppress(psutil.Error):
                process.kill()


def _travelling(config: Config, folder: Path) -> dict[str, Any]:
    """Return Ray's environment of the tasks: with the job's folder, if it needs files or functions of that."""
    job = {key: value for key, value in as_job(config).items() if key not in ("output", "import_from")}
    if not any(entry.factory for entry in config.models) and moved(job, folder) == job:
        return {}
    output = config.output.resolve()
    results = [f"/{output.relative_to(folder)}"] if output.is_relative_to(folder) and output != folder else []
    return {"working_dir": str(folder), "excludes": [*_STAYS, *results]}


def _of_kind(kind: Kind, shared: Config, config: Config) -> Config:
    """Return the job of one kind of device, which is called and priced as the entry says."""
    given = config.machine.model_dump(exclude_none=True) | ({"label": kind.entry.kind} if shared.devices else {})
    machine = Machine(**given | kind.entry.model_dump(exclude_none=True, exclude={"kind"}))
    return config.model_copy(update={"devices": [], "machine": machine, "device": kind.device})
