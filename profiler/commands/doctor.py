"""Carry out `python -m profiler doctor`: run a tiny network in every engine and print a line for each."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shlex
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

from rich.console import Console

from engines.catalog import ENGINES, PRESETS, Preset, foreign_hardware
from engines.requirements import missing
from exporters.cache import CacheError, check_root, default_root
from profiler.errors import PROGRAM, WHEN_IDLE
from profiler.job.case import Case
from profiler.job.config import Config, config_of
from profiler.machine.nvml import Nvml, visible_gpus
from profiler.machine.target import Target, available_memory_mib, check_device, cpu_model, resolve_device, usable_cores
from profiler.options import Doctor as Options
from profiler.options import Run
from profiler.processes.forkserver import libraries, own_folder
from profiler.results.result import Result
from profiler.results.run_folder import RunFolder, writing
from profiler.results.warning_kinds import NO_CUDA_GRAPH
from profiler.run.command import begin, resolved, write_results
from profiler.run.watch import other_work
from profiler.tables.numbers import grouped, milliseconds, times
from profiler.tables.table import Section, name, of_rows, prose
from profiler.tables.writers import print_section, say

Ran = tuple[Case, Result | None]
"""A case and its result; None if the run was interrupted before it."""
_OF_INSTALLATION = (NO_CUDA_GRAPH, "unproven", "no-layers")
"""Kinds of warning about an installation; others are about a figure."""
_SLOW = 10
"""A runtime that works is never slower than eager by this factor."""


class Check(NamedTuple):
    """The result of one check; `text` tells how to mend a fault."""

    status: Literal["ok", "note", "missing", "failed", "unchecked"]
    subject: str
    text: str


def execute(options: Options, console: Console) -> int:
    """Check this machine, and print the results; return 1 if an installed runtime fails. Raises ConfigError."""
    output = contextlib.nullcontext(options.output.resolve()) if options.output else own_folder()
    with libraries() as facts, output as folder:
        target = resolve_device(check_device(options.device), facts)
        machine = [*_card(target, facts), *of_host(target)]
        _print(console, "Machine", machine)
        start, run = resolved(Run(), console, tiny_job(target, folder), target, facts), RunFolder.create(folder)
        interrupted, runner = False, start.runner(run)
        say(console, "Running a tiny network in every engine, which takes a minute or two")
        with writing(run.path):
            run.write_config(start.config)
            begin(runner)
            runner.append_unsupported(start.cases)
            try:
                with runner.display, runner.supervised():  # Not `measure`, which would confirm winners.
                    tasks = runner.prepare([case for case in start.cases if case.unsupported is None])
                    runner.build_ahead(tasks)
                    runner.measure_each(tasks)
            except KeyboardInterrupt:
                interrupted = True
            write_results(runner, Console(quiet=True))
        results = run.results()
        engines = of_engines(((case, results.get(case.id)) for case in start.cases), target)
        _print(console, "Engines, each with a tiny network", engines)
        failed = dict.fromkeys(check.subject for check in (*machine, *engines) if check.status == "failed")
        verdict = "Interrupted: unchecked engines may work" if interrupted else "Everything installed works"
        verdict = f"Does not work: {', '.join(failed)}" if failed else verdict
        report = f"to report it: {PROGRAM} doctor --output doctor-report, and send that folder" if failed else ""
        place = f"all findings and logs are in {run.path}" if options.output else report
        say(console, "; ".join(filter(None, [verdict, place])))
    return 130 if interrupted else int(bool(failed))


def _print(console: Console, title: str, checks: Sequence[Check]) -> None:
    fields = [name("Status", "status"), name("What", "subject"), prose("Found", "text")]
    print_section(console, Section(tables=[of_rows(title, fields, checks)]))


def tiny_job(target: Target, folder: Path) -> Config:
    """Return doctor's job for the device: the usual presets in fp32, and in narrower precisions where that is cheap."""
    with_usual = {preset.engine for preset in PRESETS.values() if preset.usual}
    usual = [name for name, preset in PRESETS.items() if preset.usual or preset.engine not in with_usual]
    narrow = ["fp16", "int8"]
    exclude: list[dict[str, Any]] = [{"replicate": [1, 2]}, {"pass": "training", "precision": narrow}]
    exclude += [{"pass": "training", "variant": [name for name in usual if name != "eager"]}]
    exclude += [{"precision": narrow, "engine": ["compiled"]}]
    network = {"name": "tiny", "factory": "profiler.commands.doctor:tiny_network", "input": [3, 32, 32]}
    budget = {"seconds": 0.1, "min_samples": 3, "repeats": 0, "timeout": 120, "build_timeout": 300}
    job: dict[str, Any] = {"suite": "doctor", "models": [network], "engines": usual, "precisions": ["fp32", *narrow]}
    job |= {"passes": ["inference", "training"], "batch_sizes": [2], "profile": True, "exclude": exclude}
    return config_of(job | {"device": str(target), "output": folder, "budget": budget})


def tiny_network() -> object:
    """Build a network from [batch, 3, 32, 32] to [batch, 10] that any machine compiles and runs in seconds."""
    from torch import nn

    first = nn.Conv2d(3, 32, 3, padding=1, bias=False), nn.BatchNorm2d(32), nn.ReLU()
    second = nn.Conv2d(32, 32, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()
    return nn.Sequential(*first, *second, nn.Linear(32, 10))


def lacks(preset: Preset, target: Target) -> Check | None:
    """Return why a preset is not tried: it is not for this device, or a library is not installed."""
    engine, device = ENGINES[preset.engine], target.kind
    if device not in preset.options:
        return Check("note", preset.name, preset.reasons[device])
    if reason := foreign_hardware(engine, device, target.hardware):
        return Check("note", preset.name, reason)
    absent = missing(engine, device)
    return Check("missing", preset.name, absent) if absent else None


def of_engines(results: Iterable[Ran], target: Target) -> list[Check]:
    """Return a check per preset; a preset that proves unsupported when tried has failed."""
    by_preset = grouped((case.variant, (case, result)) for case, result in results)
    usual = {(case.pass_, case.precision): ran.latency_ms for case, ran in by_preset.get("eager", []) if ran}
    return [lacks(PRESETS[name], target) or _of_preset(name, ran, usual) for name, ran in by_preset.items()]


def _of_preset(name: str, results: Sequence[Ran], usual: Mapping[Any, float | None]) -> Check:
    planned = [(case, result) for case, result in results if case.unsupported is None] or results
    done = [(case, result) for case, result in planned if result]
    ran = [(case, result) for case, result in done if result.status != "unsupported"] or done
    figures = ", ".join(
        f"{'training ' * (case.pass_ == 'training')}{case.precision} {milliseconds(result.latency_ms or 0.0)}"
        for case, result in ran
        if result.status == "ok"
    )
    for case, result in ran:
        if result.status != "ok":
            fault = f"{result.status} in {case.precision} {case.pass_}: {result.reason}"
            return Check("failed", name, "; ran: ".join(filter(None, [fault, figures])))
    if len(done) < len(planned):
        return Check("unchecked", name, "; ran: ".join(filter(None, ["interrupted", figures])))
    notes = {str(warning): None for _, result in ran for warning in result.warnings if warning.kind in _OF_INSTALLATION}
    for case, result in ran:
        eager = usual.get((case.pass_, case.precision))
        # Take the fastest sample, since other work only adds time.
        fastest = min(result.samples.get(result.clock or "", []), default=0.0)
        if eager and fastest > _SLOW * eager:
            notes[f"{case.precision} takes {times(fastest / eager)} what eager takes: too slow to be right"] = None
    library = next((result.proof.library for _, result in ran if result.proof and result.proof.library), name)
    return Check("note" if notes else "ok", name, "; ".join([f"{library}: {figures}", *notes]))


def _card(target: Target, facts: Mapping[str, Any]) -> Iterator[Check]:
    gpu = target.gpu
    if gpu is None:
        gpus = visible_gpus()
        if gpus and not facts.get("cuda_available"):
            reason = "cannot use it" if facts.get("torch_cuda") else "was installed without CUDA"
            yield Check("failed", "GPU", f"{gpus[0].name}: torch {reason}; install torch for driver {gpus[0].driver}")
        else:
            yield Check("note", "GPU", "not asked for" if gpus else "no NVIDIA driver answers")
        return
    card = f"{gpu.name}, compute capability {gpu.compute_capability}, {gpu.memory_mib / 1024:.0f} GiB"
    yield Check("ok", "GPU", f"{card}; driver {gpu.driver}, torch's CUDA {facts.get('torch_cuda')}")


def of_host(target: Target) -> Iterator[Check]:
    if busy := other_work(Nvml(target.gpu.uuid if target.gpu else None)):
        yield Check("note", "Other work", f"{busy}; a run with {WHEN_IDLE} waits for quiet")
    yield Check("ok", "CPU", f"{cpu_model()}, {usable_cores()} of {os.cpu_count()} cores")
    yield Check("ok", "Memory", f"{available_memory_mib() / 1024:.1f} GiB available")
    torch = importlib.util.find_spec("torch")
    if torch and torch.origin and not Path(importlib.util.cache_from_source(torch.origin)).exists():
        command = f"python -m compileall -q {shlex.quote(str(Path(torch.origin).parent))}"
        mend = f"unset PYTHONDONTWRITEBYTECODE, or run {command}"
        yield Check("note", "Start", f"each start compiles PyTorch's sources for 10 s or more; {mend}")
    try:
        check_root(default_root())
    except CacheError as error:
        yield Check("failed", "Cache", str(error))
        return
    gib = shutil.disk_usage(default_root()).free / 2**30
    yield Check("ok", "Cache", f"{default_root()}, {gib:.1f} GiB free (PROFILER_CACHE names another folder)")
