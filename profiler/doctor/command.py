"""Carry out `python -m profiler doctor`: a tiny network goes through every engine, and a line each says what works."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from rich.console import Console
from rich.status import Status
from rich.text import Text

from engines.base import Proof
from engines.catalog import ENGINES, PRESETS, Preset, foreign_hardware
from engines.requirements import explain, missing
from exporters.cache import CacheError, check_root, default_root
from profiler.errors import PROGRAM, WHEN_IDLE
from profiler.job.case import Case
from profiler.job.config import Config, config_of
from profiler.machine import (
    Target,
    available_memory_mib,
    check_device,
    core_quota,
    cpu_model,
    resolve_device,
    total_memory_mib,
    untested,
    usable_cores,
)
from profiler.nvml import Nvml, slowdowns, visible_gpus
from profiler.options import Doctor as Options
from profiler.processes.forkserver import libraries
from profiler.processes.temporary import own_folder
from profiler.results.result import Result
from profiler.results.run_folder import RunFolder, writing
from profiler.results.warning_kinds import NO_CUDA_GRAPH
from profiler.run.measure import run_job
from profiler.run.progress import PlainDisplay
from profiler.stats.samples import median
from profiler.tables.numbers import counted, milliseconds, significant
from profiler.tables.writers import print_pairs

_TRYING = "A tiny network goes through every engine"
TENSORRT = ("trt", "trt-rtx")
"""Engines of which every step is said."""
_TELLING = (NO_CUDA_GRAPH, "unproven", "no-layers", "timing-cache")
"""Kinds of warning that say something of an installation; others are of a figure, and these figures are nobody's."""
State = Literal["ok", "note", "missing", "failed"]
STYLES: dict[State, str] = {"ok": "green", "note": "yellow", "missing": "yellow", "failed": "red"}
"""`note`: figures may suffer, or it is nothing for this device; `missing`: a library that is not installed; `failed`:
what is there does not work."""
_LEAST_GIB = 5.0
"""Room on a disk below which graphs, references and engines of a job of large networks do not fit."""
_LEAST_MIB = 2048
"""Below it the larger networks cannot be prepared: VGG-16's weights alone are 0.5 GiB, and there are copies."""
_MEND = {"Cache": "name another folder in PROFILER_CACHE", "Temporary files": "name another folder in TMPDIR"}
_BUSY = 0.25
"""Load by core from which other work is likely to be seen in the figures."""


class Spinner(PlainDisplay):
    """Name what is tried on a spinner."""

    def __init__(self, spinner: Status, console: Console) -> None:
        super().__init__(console)
        self._spinner = spinner

    def measuring(self, case: Case, phase: str, done: int, total: int, seconds_left: float) -> None:
        self._spinner.update(f"{_TRYING}: {case.variant} {case.precision} {case.pass_}, {done + 1} of {total}")


def execute(options: Options, console: Console) -> int:
    """Print what works here and what does not; returns 1 where something that is there fails. Raises ConfigError."""
    kept = contextlib.nullcontext(options.output.resolve()) if options.output else own_folder()
    with libraries() as facts, kept as folder:
        target = resolve_device(check_device(options.device), facts)
        machine = of_machine(target, facts)
        _print(console, "Machine", machine)
        run = RunFolder.create(folder)
        config = tiny_job(target, folder)
        with writing(run.path), console.status(f"{_TRYING}, which takes a minute or two") as spinner:
            quiet = Console(quiet=True)
            interrupted = run_job(run, config, target, facts, quiet, report=False, display=Spinner(spinner, quiet))
        engines = of_engines(list(run.results().values()), target)
        _print(console, "Engines, each with a tiny network", engines)
        checks = [*machine, *engines]
        console.print(Text(_conclusion(checks, target, run.path if options.output else None)), soft_wrap=True)
    return 130 if interrupted else int(any(check.status == "failed" for check in checks))


def _print(console: Console, title: str, checks: Sequence[Check]) -> None:
    console.print(Text(f"\n{title}", style="bold"))
    widest = max((len(check.what) for check in checks), default=0)
    print_pairs(
        console,
        [
            (Text.assemble("  ", (f"{each.status:<8}", STYLES[each.status]), each.what.ljust(widest)), Text(each.text))
            for each in checks
        ],
    )


def _conclusion(checks: Sequence[Check], target: Target, kept: Path | None) -> str:
    failed = [check.what.strip() for check in checks if check.status == "failed"]
    text = f"\nDoes not work: {', '.join(dict.fromkeys(failed))}" if failed else "\nWhat is installed works"
    if kept is not None:
        return f"{text}. Everything that was found is in {kept}, with logs"
    with_tensorrt = target.kind == "cuda" and any(not missing(ENGINES[name], "cuda") for name in TENSORRT)
    if failed or with_tensorrt:
        text += f". To report it: {PROGRAM} doctor --output doctor-report, and send that folder"
    return text


def tiny_job(target: Target, folder: Path) -> Config:
    """The job of doctor on the device: every preset that it tries, in fp32 and, where it is cheap, narrower."""
    able = [preset.name for preset in usual() if not lacks(preset, target)]
    slow = [name for name in able if PRESETS[name].engine in ("compiled", "jax")]
    others = [name for name in able if name != "eager"]
    return config_of(
        {
            "suite": "doctor",
            "models": [{"name": "tiny", "factory": "profiler.worker.tiny_network:TinyNetwork", "input": [3, 32, 32]}],
            "engines": able,
            "precisions": ["fp32", "fp16", "int8"],
            "passes": ["inference", "training"],
            "batch_sizes": [2],
            "device": str(target),
            "output": folder,
            "profile": True,
            "budget": {"seconds": 0.1, "min_samples": 3, "repeats": 0, "timeout": 120, "build_timeout": 300},
            "exclude": [
                {"pass": "training", "precision": ["fp16", "int8"]},
                *([{"pass": "training", "variant": others}] if others else []),
                *([{"precision": ["fp16", "int8"], "variant": slow}] if slow else []),
            ],
        }
    )


def usual() -> list[Preset]:
    """The presets that doctor tries: the usual ones, and those of engines that have none."""
    known = {preset.engine for preset in PRESETS.values() if preset.usual}
    return [preset for preset in PRESETS.values() if preset.usual or preset.engine not in known]


def lacks(preset: Preset, target: Target) -> Check | None:
    """Why a preset is not tried: it is not for this device, or a library is not installed."""
    engine, device = ENGINES[preset.engine], target.kind
    if device not in preset.options:
        return Check("note", preset.name, preset.reasons[device])
    if why := foreign_hardware(engine, device, target.hardware):
        return Check("note", preset.name, why)
    lacking = missing(engine, device)
    return Check("missing", preset.name, explain(lacking)) if lacking else None


def of_engines(results: Sequence[Result], target: Target) -> list[Check]:
    """A line a preset; below one of TensorRT's a line a row, with every step."""
    found: list[Check] = []
    for preset in usual():
        own = [each for each in results if each.case_id.variant == preset.name]
        ran = [each for each in own if each.status != "unsupported"]
        if check := lacks(preset, target):
            found.append(check)
        elif ran:
            found.append(_of_preset(preset, ran))
            if preset.engine in TENSORRT:
                found += tensorrt_steps(ran)
        elif own:  # What only shows once it is tried, as a driver that is older than the library's CUDA.
            plain = next((each for each in own if each.case_id.precision == "fp32"), own[0])
            found.append(Check("failed", preset.name, str(plain.reason)))
    return found


def _of_preset(preset: Preset, results: Sequence[Result]) -> Check:
    ran = ", ".join(
        f"{'training ' * (each.case_id.pass_ == 'training')}{each.case_id.precision} {milliseconds(_latency(each))}"
        for each in results
        if each.status == "ok"
    )
    bad = next((each for each in results if each.status != "ok"), None)
    if bad is not None:
        what = f"{bad.status} in {bad.case_id.precision} {bad.case_id.pass_}: {bad.reason}"
        return Check("failed", preset.name, what + (f" (ran: {ran})" if ran else ""))
    told = dict.fromkeys(str(warning) for each in results for warning in each.warnings if warning.kind in _TELLING)
    library = next((each.proof.library for each in results if each.proof and each.proof.library), preset.engine)
    return Check("note" if told else "ok", preset.name, "; ".join([f"{library}: {ran}", *told]))


def tensorrt_steps(results: Iterable[Result]) -> list[Check]:
    found = []
    for result in results:
        if result.status == "ok":
            proof = result.proof or Proof()
            types = {kind: count for kind, count in (proof.compute_types or {}).items() if kind != "unknown"}
            built, error = proof.build, result.figures.get("rel_l2_error")
            steps = {
                "built": "" if built is None else "before" if built.cached else f"in {built.seconds:.1f} s",
                "error": "" if error is None else significant(error),
                "CUDA graph": "recorded" if proof.cuda_graph else "",
                "types by the inspector": ", ".join(f"{count} {kind}" for kind, count in types.items()),
                "layers timed": str(len(result.layers) or ""),
            }
            text = "; ".join(f"{step}: {said or 'NONE'}" for step, said in steps.items())
            found.append(Check("ok" if all(steps.values()) else "failed", f"  {result.case_id.precision}", text))
    return found


def _latency(result: Result) -> float:
    return median(result.samples.get(result.clock or "", [])) or 0.0


@dataclass(frozen=True)
class Check:
    """What was looked at, how it is, and what mends it."""

    status: State
    what: str
    text: str


def of_machine(target: Target, facts: Mapping[str, Any]) -> list[Check]:
    """All that can be said before anything is measured; `facts` are the libraries' (processes.forkserver.libraries)."""
    versions = (Check("note", "Version", text) for text in untested())
    return [*_card(target, facts), *_processor(), *_memory(), *_disks(), *versions]


def _card(target: Target, facts: Mapping[str, Any]) -> Iterator[Check]:
    gpus, gpu = visible_gpus(), target.gpu
    if gpu is None:
        if gpus and not facts.get("cuda_available"):
            why = "cannot use it" if facts.get("torch_cuda") else "was installed without CUDA"
            text = f"{gpus[0].name} answers with driver {gpus[0].driver}, but torch {why}: install torch for its CUDA"
            yield Check("failed", "GPU", f"{text} (docs/first-run.md)")
        else:
            yield Check("note", "GPU", "no NVIDIA driver answers" if not gpus else "not asked for")
        return
    card = f"{gpu.name}, compute capability {gpu.compute_capability}, {gpu.memory_mib / 1024:.0f} GiB"
    yield Check("ok", "GPU", f"{card}; driver {gpu.driver}, torch's CUDA {facts.get('torch_cuda')}")
    if gpu.card:
        yield Check("note", "MIG", "a slice of a card: power, clock and temperature are the whole card's")
    nvml = Nvml(gpu.uuid)
    limit, usual, clock = nvml.power_limit_w(), nvml.default_power_limit_w(), nvml.most_sm_clock_mhz()
    if limit and usual and limit < usual:
        text = f"limited to {limit:.0f} W of {usual:.0f} W, under load it is slower: sudo nvidia-smi -pl {usual:.0f}"
        yield Check("note", "Power", text)
    reading = nvml.read()
    if clock:
        slowed = slowdowns(reading.reasons or 0)
        text = f"at most {clock:.0f} MHz, now {reading.sm_clock_mhz or 0:.0f}"
        yield Check("note" if slowed else "ok", "Clock", f"{text}{''.join(f', {each}' for each in slowed)}")
    if users := nvml.users():
        text = f"{users} others compute on it: nvidia-smi names them; {WHEN_IDLE} waits for their end"
        yield Check("note", "Other processes", text)


def _processor() -> Iterator[Check]:
    cores, there, quota = usable_cores(), os.cpu_count() or 1, core_quota()
    text = f"{cpu_model()}, {counted(cores, 'core')}" + (f" of {there}" if cores < there else "")
    yield Check("ok", "CPU", text)
    if quota is not None and quota < cores:
        text = f"a control group gives {quota:g} of {cores} cores: give it all, or fewer threads by taskset"
        yield Check("note", "CPU limit", text)
    load = os.getloadavg()[0]
    if load > max(1.0, _BUSY * cores):
        text = f"{load:.1f} on {counted(cores, 'core')}: other work runs; {WHEN_IDLE} waits for its end"
        yield Check("note", "Load", text)
    governor = Path("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor")
    if governor.is_file() and (mode := governor.read_text().strip()) == "powersave":
        yield Check("note", "Clock of the CPU", f"governor {mode}: sudo cpupower frequency-set -g performance")


def _memory() -> Iterator[Check]:
    total, free = total_memory_mib(), available_memory_mib()
    if total and free:
        yield Check(
            "ok" if free > _LEAST_MIB else "note", "Memory", f"{free / 1024:.1f} GiB of {total / 1024:.1f} can be had"
        )


def _disks() -> Iterator[Check]:
    folders = {"Cache": default_root(), "Temporary files": Path(tempfile.gettempdir())}
    try:
        check_root(folders["Cache"])
    except CacheError as error:
        yield Check("failed", "Cache", str(error))
        del folders["Cache"]
    for what, folder in folders.items():
        free = shutil.disk_usage(folder).free / 2**30
        mend = f": {_MEND[what]}" if free < _LEAST_GIB else ""
        yield Check("note" if mend else "ok", what, f"{folder}, {free:.1f} GiB free{mend}")
