"""Carry out `python -m profiler doctor`: a tiny network goes through every engine, and a line each says what works."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Sequence
from pathlib import Path

from rich.console import Console
from rich.status import Status
from rich.text import Text

from engines.base import Proof
from engines.catalog import ENGINES, PRESETS, Preset, foreign_capability
from engines.requirements import explain, missing
from profiler.doctor.machine import STYLES, Check, of_machine
from profiler.errors import PROGRAM
from profiler.job.case import Case
from profiler.job.config import Config, config_of
from profiler.machine import Target, check_device, resolve_device
from profiler.options import Doctor as Options
from profiler.processes.forkserver import libraries
from profiler.processes.temporary import own_folder
from profiler.results.result import Result
from profiler.results.run_folder import RunFolder
from profiler.results.run_lock import writing
from profiler.results.warning_kinds import NO_CUDA_GRAPH
from profiler.run.measure import run_job
from profiler.run.progress import PlainDisplay
from profiler.stats.samples import median
from profiler.tables.numbers import milliseconds, significant
from profiler.tables.writers import print_pairs

_TRYING = "A tiny network goes through every engine"


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


TENSORRT = ("trt", "trt-rtx")
"""Engines of which every step is said."""
_TELLING = (NO_CUDA_GRAPH, "unproven", "no-layers", "timing-cache")
"""Kinds of warning that say something of an installation; others are of a figure, and these figures are nobody's."""


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
    if why := foreign_capability(engine, device, target.compute_capability):
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
            found.append(Check("failed", preset.name, str(own[0].reason)))
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
