"""Run a job on a Ray cluster, in parts for each kind of device, and collect rows as cases end.

Ray places the parts, one at a time on a device; each is an ordinary run on its node (profiler.cluster.part). If a job
names kinds of devices, each kind has a run's folder inside the job's.
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
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import polars as pl
import psutil
from rich.console import Console

from engines.options import DEVICES, Device
from exporters.errors import sentence
from exporters.named_files import write_whole
from profiler.cluster.part import ENDED, ENVIRONMENT, JOURNAL, MODELS, TRIES, Part, measure, sources
from profiler.errors import ConfigError, nearest
from profiler.job.case import Budget, Case, Filter, parse_only
from profiler.job.config import Config, DeviceEntry, JobFile, Machine
from profiler.job.plan import estimate_seconds, make_plan, only_of
from profiler.machine.target import Target, describe, host_and_user
from profiler.options import Run as Options
from profiler.processes.forkserver import libraries
from profiler.processes.messages import Status
from profiler.results.cells import cells
from profiler.results.columns import RESULTS
from profiler.results.result import Result
from profiler.results.run_folder import RunFolder, append_line, as_job, models_of, moved, read_text, writing
from profiler.results.schema import IDENTITIES, read_json
from profiler.run import command as run
from profiler.run.prepare import with_shapes
from profiler.run.progress import Display
from profiler.run.runner import Runner
from profiler.run.search import trials_of
from profiler.run.summary import print_results
from profiler.tables.numbers import counted, duration
from profiler.tables.writers import say

_MOST_LOST = 2
"""A part is given up once its program or node has ended this often."""
_FEWEST_PARTS, _ENOUGH_PARTS = 2, 4
"""Parts per device. With fewer, models are cut by batch size, so that devices end together; with more, short parts are
joined, since each takes a while to start."""
_SHORT_SECONDS = 600.0
"""Join parts up to this duration; a longer part loses more with its node."""
_WAIT_SECONDS = 1.0
_CONNECT_SECONDS = 5.0
_HEAD_SECONDS = 3.0
"""Seconds of silence after which the cluster's head counts as ended."""
_HEAD_ENDED = "the cluster's head has ended"
_DRIVER_KEYS = ("machine", "command", "earlier_commands", "job_folder", "spread", "sampling_seconds")
"""Keys of environment.json that the driver sets."""
_TYPE = "accelerator_type:"
_EXCLUDED = (".git", ".venv", "venv", "__pycache__", "node_modules")
"""Names in a job's folder that are not sent to nodes, nor are its results."""


class _ClusterError(Exception):
    """The cluster takes no more parts."""


def execute(options: Options, console: Console, conclude: run.Conclude | None = None) -> int:
    """Run the job on the cluster at `options.ray`; return the exit code. Raises ConfigError."""
    started = time.monotonic()
    run.check_options(options)
    job, only, address = run.open_job(options), parse_only(options.only), str(options.ray)
    configs = [run.read_job(options, job, device) for device in DEVICES]
    shared = configs[0]
    folder = job.path.resolve().parent if isinstance(job, JobFile) else Path.cwd()
    if options.resume is not None:
        folder = Path(RunFolder(options.resume).read_environment().get("job_folder", Path.cwd()))
    with contextlib.ExitStack() as stack:
        # Before the forkserver, which kills unknown children.
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
            part_run = RunFolder(whole.path / f"{whole.run_id}-{kind.entry.kind}") if shared.devices else whole
            part_run.logs.mkdir(parents=True, exist_ok=True)
            stack.enter_context(writing(part_run.path))
            resumed = part_run.path / "bench.yaml"
            read = run.read_job(options, JobFile(resumed) if resumed.exists() else job, kind.device)
            config = with_shapes(_of_kind(kind, shared, read), display.doing)
            target, plan = Target(kind.device), make_plan(config, kind.device)
            chosen = only_of(plan, only)
            facts_of_job = {"machine": config.machine.model_dump(exclude_none=True), "job_folder": str(folder)}
            environment = part_run.read_environment() or describe(target, facts) | facts_of_job
            if resumed.exists():
                commands = [*environment.get("earlier_commands", []), environment.get("command")]
                environment |= {"command": sys.argv, "earlier_commands": commands}
            else:
                part_run.write_config(config)
            start = run.Start(options, console, config, target, environment, plan, chosen)
            sides.append(Side(kind, start.runner(part_run, display), options, folder if travelling else None))
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
    say(console, f"\nTook {duration(time.monotonic() - started)}\n\nResults: {whole.path}")
    if interrupted:
        say(console, f"Interrupted; {run.going_on(options, whole.path)}")
        return 130
    if not results.is_empty():
        if not options.no_report:
            run.write_report(whole.path, results, console)
        if conclude is not None and not shared.layers:
            conclude(whole.path, results, console)
    if refused:
        raise ConfigError("; ".join(dict.fromkeys(refused)))
    return max(
        run.exit_code(results.filter(run_id=side.run.run_id), side.runner.config, options.strict) for side in sides
    )


@dataclass(frozen=True)
class Kind:
    """A kind of device: the job's entry, the resources that a Ray task requests for one, and the number of devices."""

    entry: DeviceEntry
    device: Device
    request: Mapping[str, Any]
    count: int


def kinds_of(entries: Sequence[DeviceEntry], device: str, nodes: Sequence[Mapping[str, Any]]) -> list[Kind]:
    """Return the kinds that a job names, by default its `device`. `nodes` is the output of ray.nodes().

    Raises ConfigError for a kind that the cluster lacks.
    """
    alive = [node["Resources"] for node in nodes if node["Alive"]]
    usual = "cuda" if any(node.get("GPU") for node in alive) else "cpu"
    if ":" in device:
        of_host = f"CUDA_VISIBLE_DEVICES={device.partition(':')[2]}"
        raise ConfigError(f"device {device}: Ray hands the GPUs out; say cuda, and start Ray with {of_host}")
    default = DeviceEntry(kind=usual if device == "auto" else device)
    return [_kind(entry, alive) for entry in entries or [default]]


def _kind(entry: DeviceEntry, nodes: Sequence[Mapping[str, float]]) -> Kind:
    name, cards = entry.kind, [node for node in nodes if node.get("GPU")]
    with_name = [node for node in nodes if name in node]
    custom = {key for node in nodes for key in node if ":" not in key} - {"CPU", "GPU", "memory", "object_store_memory"}
    if name == "cpu":
        return Kind(entry, "cpu", {"num_cpus": _cores(nodes), "scheduling_strategy": "SPREAD"}, _hosts(nodes))
    if name == "cuda" and cards:
        return Kind(entry, "cuda", {"num_gpus": 1}, _gpus(cards))
    if typed := [node for node in cards if f"{_TYPE}{name}" in node]:
        return Kind(entry, "cuda", {"num_gpus": 1, "accelerator_type": name}, _gpus(typed))
    if name in custom:
        if all(node in cards for node in with_name):
            count = int(sum(min(node["GPU"], node[name]) for node in with_name))
            return Kind(entry, "cuda", {"num_gpus": 1, "resources": {name: 1}}, count)
        return Kind(entry, "cpu", {"num_cpus": _cores(with_name), "resources": {name: 1}}, _hosts(with_name))
    valid = sorted({"cpu", *custom, *(key.removeprefix(_TYPE) for node in cards for key in node if _TYPE in key)})
    raise ConfigError(f"devices: the cluster has no {name}{nearest(name, valid)}")


def _cores(nodes: Sequence[Mapping[str, float]]) -> int:
    """Return just over half of the largest node's cores: no node can run two such tasks."""
    return int(max(node.get("CPU", 0) for node in nodes) // 2 + 1)


def _hosts(nodes: Sequence[Mapping[str, float]]) -> int:
    return sum(node.get("CPU", 0) >= _cores(nodes) for node in nodes)


def _gpus(nodes: Sequence[Mapping[str, float]]) -> int:
    return int(sum(node["GPU"] for node in nodes))


class Share(NamedTuple):
    """A part's share of the cases: models, or one model at one batch size."""

    models: tuple[str, ...]
    batch_size: int | None = None

    def __str__(self) -> str:
        first, others = self.models[0], len(self.models) - 1
        if self.batch_size is not None:
            return f"{first} at batch {self.batch_size}"
        return f"{first} and {counted(others, 'other model')}" if others else first

    def has(self, case: Case) -> bool:
        return case.model in self.models and self.batch_size in (None, case.batch_size)


def shares_of(cases: Sequence[Case], budget: Budget, fewest: int, enough: int) -> list[Share]:
    """Cut cases by model, and the longest models by batch size until there are `fewest` shares; return longest first.

    Joins the shortest while there are more than `enough`, unless they become long.
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
        if len(seconds) < fewest:
            del seconds[whole]
            for case in cases:
                if whole.has(case):
                    seconds[Share(whole.models, case.batch_size)] += estimate_seconds(case, budget)
    return longest_first()


class Side:
    """The parts of a run that are measured on one kind of device."""

    def __init__(self, kind: Kind, runner: Runner, options: Options, folder: Path | None) -> None:
        run.begin(runner)
        self.kind, self.runner, self.run, self.options, self.folder = kind, runner, runner.run, options, folder
        self.lost = Counter[Share]()
        """How often each part's program or node ended."""
        waiting = run.waiting(self.run.results(), runner.chosen, runner.config.skip, options.retry)
        self.unmeasured, self.arrived = {case.id for case in waiting}, set(self.run.results())
        # Only the node finds out whether its searches have ended.
        is_open = runner.config.search or runner.config.largest_batch
        cases = runner.chosen if is_open else [*waiting, *runner.missing_replicates()]
        # One search of the largest batch serves all batch sizes.
        fewest = 0 if runner.config.largest_batch or kind.count == 1 else _FEWEST_PARTS * kind.count
        self.shares = shares_of(cases, runner.config.budget, fewest, _ENOUGH_PARTS * kind.count)

    def part(self, share: Share) -> Part:
        """Make a part with its earlier rows, which its node will not measure again."""
        only = parse_only(self.options.only)
        conditions = {**(only.conditions if only else {}), "model": list(share.models)}
        conditions |= {} if share.batch_size is None else {"batch_size": [share.batch_size]}
        words = ["--only", str(Filter(conditions))]
        words += ["--wait-for-idle", f"{self.options.wait_for_idle:g}"] if self.options.wait_for_idle else []
        words += ["--retry"] if self.options.retry else []
        runner, results = self.runner, self.run.results()
        trials = trials_of(results, runner.plan) if runner.config.search else []
        ended = self.run.ended_cases([*runner.plan, *trials])
        subjects = {case.subject for case in runner.plan if share.has(case)}
        models = read_json(self.run.path / MODELS, IDENTITIES).items()
        files = {
            TRIES: read_text(self.run.tries),
            MODELS: json.dumps({name: model for name, model in models if name in subjects}),
            JOURNAL: "".join(f"{results[case.id].to_json()}\n" for case in ended if share.has(case)),
        }
        return Part(as_job(runner.config), self.folder, str(self.run.path), files, tuple(words), sources())

    def waiting(self, share: Share) -> list[Case]:
        """Return the share's cases that the journal lacks."""
        cases = [case for case in self.runner.chosen if share.has(case)]
        return run.waiting(self.run.results(), cases, self.runner.config.skip)

    def take(self, file: str, text: str, display: Display) -> None:
        """Write a node's text into the run's file."""
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
            self._take_environment(json.loads(text))
        else:
            write_whole(self.run.path / file, text)

    def contradicts(self, text: str) -> str:
        """Say which models differ from an earlier node's; empty if none do."""
        recorded, models = self.run.read_models(), models_of(json.loads(text))
        names = [name for name, model in models.items() if name in recorded and recorded[name].changes(model)]
        listing = ", ".join(names)
        return f"--ray: models differ between nodes: {listing}; give all nodes the same files" if names else ""

    def _take_environment(self, theirs: dict[str, Any]) -> None:
        """Keep the first node's environment, and the identity of every node; rows have their own environments."""
        ours = self.runner.environment
        nodes, node = ours.get("nodes", []), {key: theirs.get(key) for key in ("host", "gpu_uuid", "cores")}
        roofs = (theirs.get("roofs") or {}) | (ours.get("roofs") or {})
        if not nodes or node == nodes[0]:
            drivers = {key: ours[key] for key in _DRIVER_KEYS if key in ours}
            ours = theirs | host_and_user() | {"earlier_commands": []} | drivers
        self.runner.environment = ours | {"roofs": roofs, "nodes": [*nodes, *([node] if node not in nodes else [])]}
        self.run.write_environment(self.runner.environment)

    def give_up(self, share: Share, status: Status, reason: str) -> None:
        """Write rows for the share's remaining cases."""
        for case in self.waiting(share):
            self.unmeasured.discard(case.id)
            self.run.append(Result(case.id, status, [reason]))


def _measure(ray: Any, sides: Sequence[Side], display: Display) -> tuple[bool, list[str]]:
    """Run every part on Ray and collect its files; return whether it was interrupted, and why nodes refused."""
    task = ray.remote(num_returns="streaming", max_retries=0)(measure)
    going, refused = dict[Any, tuple[Side, Share]](), list[str]()

    def send(side: Side, share: Share) -> None:
        going[task.options(**side.kind.request).remote(side.part(share))] = side, share

    def lose(side: Side, share: Share, why: str) -> None:
        side.lost[share] += 1
        if side.lost[share] < _MOST_LOST:
            display.announce(f"{share}: {why}; it continues on the next free {side.kind.entry.kind}")
            send(side, share)
        else:
            side.give_up(share, "crashed", f"its program or node ended {counted(_MOST_LOST, 'time')}: {why}")

    head, answered = ray.get_runtime_context().gcs_address, time.monotonic()
    try:
        for side in sides:
            for share in side.shares:
                send(side, share)
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
                    code, message = text.split("\n")[0], text.strip().split("\n")[-1]
                    if code == "2":
                        refused.append(message)
                    elif code not in ("0", "1") or side.waiting(share):
                        lose(side, share, f"exit code {code}: {message}")
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
    host, _, port = address.rpartition(":")
    socket.create_connection((host, int(port)), _CONNECT_SECONDS).close()


def _write(sides: Sequence[Side], console: Console) -> pl.DataFrame:
    # A kind without rows has no tables yet.
    runners = [side.runner for side in sides if side.run.journal.exists() or len(sides) == 1]
    for runner in runners:
        run.begin(runner)  # It plans the trials that nodes added.
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
    """Connect to the cluster. Raises ConfigError without one, or if Ray cannot send the job's folder."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_RUNTIME_ENV_IGNORE_GITIGNORE", "1")  # Repositories often ignore weights.
    try:
        import ray
    except ImportError:
        raise ConfigError("--ray: Ray is not installed; pip install ray") from None
    usual: dict[str, Any] = {"log_to_driver": False, "configure_logging": False, "runtime_env": environment}
    usual |= {"include_dashboard": False} if address == "local" else {}
    logging.getLogger("ray").setLevel(logging.ERROR)  # It prints notes on its token and on ignored folders.
    handler, started = signal.getsignal(signal.SIGTERM), list[psutil.Process]()
    try:
        if address not in ("local", "auto"):  # Ray would try for minutes.
            host, _, port = address.rpartition(":")
            if not (host and port.isdecimal()):
                raise ValueError("not of the form HOST:PORT")
            _reach(address)
        ray.init(address, **usual)
        signal.signal(signal.SIGTERM, handler)  # Ray's handler would end the driver without tables.
        started = psutil.Process().children(recursive=True)
        yield ray
    except Exception as error:  # Ray raises a plain Exception if it does not start in time.
        if ray.is_initialized():
            raise
        if "InvalidAuthToken" in f"{error} {error.__cause__}":
            raise ConfigError(f"--ray {address}: this cluster asks for a token; set RAY_AUTH_MODE=token") from None
        why = str(error) if isinstance(error, ValueError) else sentence(error).partition(". Last connection error")[0]
        raise ConfigError(f"--ray {address}: {why}; give local, auto, or HOST:PORT of ray start") from None
    finally:
        ray.shutdown()
        for process in started:  # Without a head some survive.
            with contextlib.suppress(psutil.Error):
                process.kill()


def _travelling(config: Config, folder: Path) -> dict[str, Any]:
    """Return Ray's environment for tasks: the job's folder, if the job needs files or functions from there."""
    job = {key: value for key, value in as_job(config).items() if key not in ("output", "import_from")}
    if not any(entry.factory or entry.data for entry in config.models) and moved(job, folder) == job:
        return {}
    output = config.output.resolve()
    results = [f"/{output.relative_to(folder)}"] if output.is_relative_to(folder) and output != folder else []
    return {"working_dir": str(folder), "excludes": [*_EXCLUDED, *results]}


def _of_kind(kind: Kind, shared: Config, config: Config) -> Config:
    machine_keys = config.machine.model_dump(exclude_none=True) | ({"label": kind.entry.kind} if shared.devices else {})
    machine = Machine(**machine_keys | kind.entry.model_dump(exclude_none=True, exclude={"kind"}))
    return config.model_copy(update={"devices": [], "machine": machine, "device": kind.device})
