"""Take a tiny network through every engine, from build to result, and say in a line each what works."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from engines.base import Proof
from engines.catalog import ENGINES, PRESETS, Preset, foreign_capability
from engines.requirements import explain, missing
from profiler.doctor.machine import Check
from profiler.job.config import Config, config_of
from profiler.machine import Target
from profiler.results.result import Result
from profiler.results.warning_kinds import NO_CUDA_GRAPH
from profiler.stats.samples import median
from profiler.tables.numbers import milliseconds, significant

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
