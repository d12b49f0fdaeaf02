"""Plan a job: its cases in running order, with a reason for those that cannot run."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import chain, groupby, islice, product
from typing import Any

from engines.catalog import ENGINES, PRESETS, unsupported
from engines.options import EIGHT_BITS, PLAIN, PRECISION_TABLE, Device, Pass, Training
from engines.requirements import missing
from exporters.catalog import CATALOG
from exporters.inputs import at_shape
from exporters.onnx_files import not_made, precisions_of
from exporters.source import ModelSource
from profiler.errors import ConfigError
from profiler.job.case import Budget, Case, Filter
from profiler.job.config import Config, EngineEntry, LayerEntry, ModelEntry
from profiler.machine.target import usable_cores

_CASE_SECONDS = {"cpu": 2.5, "cuda": 4.0}
_COMPILE_SECONDS = {"cpu": 30.0, "cuda": 20.0}
"""Guessed seconds of a case beyond 1.5 times its sampling, and of compiling."""
_BUILD_SECONDS, _LONG_BUILD_SECONDS = 45.0, 180.0
"""Guessed seconds of a build: the median of docs/results/h200-networks (TensorRT 8.5), and a search's longest ones."""
_CORE_FLOPS = 5e10
"""Guessed FLOP/s of a network on a core: PyTorch's on an EPYC."""
_CALLS = 2
"""Guessed calls of a case besides its samples, such as the warm-up's."""
_GENERATION = ("prefill", "decode")
BASE_PROCESSES = 3
"""Fewest processes of a base: they show how far processes differ."""
CONFIRMING_PROCESSES = 3
"""Further processes of a likely winner: the planned ones, which chose it, do not confirm it."""
MOST_PROCESSES = 9
"""Most processes of cells that a search cannot distinguish."""
MOST_CASES = 50_000
_LAYERS = Training(head="logits")
"""A layer has no loss: its training pass starts from a fixed gradient of its output."""


def make_plan(config: Config, device: Device, hardware: str | None = None) -> list[Case]:
    """Return the config's cases in running order.

    `hardware` is Target.hardware: some engines run only on certain GPUs.

    Replicates are rounds through all configurations (A B C A B C), so that a drift of the machine spreads over all
    cells and shows between a cell's replicates. Bases have at least three processes: with fewer rounds, further ones
    run in the middle and at the end of their model's cases.

    Raises ConfigError if two cases have the same id, or if there are no cases or too many.
    """

    @functools.cache
    def requirements(engine: str, precision: str) -> str:
        """Explain missing requirements. Cached: a check takes milliseconds, and a plan may have thousands of cells."""
        return missing(ENGINES[engine], device, precision)

    every = chain.from_iterable(_cells(config, entry, device, hardware, requirements) for entry in config.subjects)
    cells = list(islice(every, MOST_CASES // config.replicates + 1))
    if len(cells) * config.replicates > MOST_CASES:
        raise ConfigError(f"a plan has at most {MOST_CASES:,} cases; shorten a list, or split the job")
    matrix = [list(group) for _, group in groupby(cells, key=lambda case: case.model)]
    numbers = range(config.replicates)
    rounds = [[[replace(case, replicate=number) for case in cells] for cells in matrix] for number in numbers]
    rounds[-1] = [_with_bases(cells, config.replicates) for cells in rounds[-1]]
    cases = [case for models in rounds for cells in models for case in cells]
    for case_id, count in Counter(case.id for case in cases).items():
        if count > 1:
            raise ConfigError(f"{count} cases have the id {case_id}: list models, engines and values once each")
    plan = [case for case in cases if not any(condition.matches(case) for condition in config.exclude)]
    if not plan:
        raise ConfigError(f"exclude: no case is left of {len(cases)}")
    return plan


def _with_bases(cases: list[Case], replicates: int) -> list[Case]:
    """Add processes of a model's bases up to BASE_PROCESSES, at its smallest and its largest batch."""
    bases: dict[tuple[str, str], list[Case]] = {}
    for case in cases:
        if case.is_base and case.unsupported is None:
            bases.setdefault((case.pass_, case.setting), []).append(case)
    # The smallest batch is likely host-bound, the largest device-bound.
    ends = [end(group, key=lambda case: case.batch_size) for group in bases.values() for end in (min, max)]
    unique = {case.id: case for case in ends}.values()
    added = [[replace(case, replicate=number) for case in unique] for number in range(replicates, BASE_PROCESSES)]
    halves = [cases[: len(cases) // 2], cases[len(cases) // 2 :]] if len(added) > 1 else [cases]
    return [case for half, extra in zip(halves, added, strict=False) for case in (*half, *extra)] if added else cases


def in_waves(cases: Sequence[Case]) -> tuple[list[list[Case]], list[Case]]:
    """Order one model's cases by how likely they win: up to three waves, and a list of unlikely winners.

    First come bases and modules that often win; then other frequent winners, which compile or need a graph; then the
    rest. Frequent winners run at their fewest bits besides int8 and fp8. Unlikely winners run at more bits than their
    variant needs, or are built alone, for a third of a minute each.
    """
    fewest: dict[str, int] = {}
    for case in cases:
        if case.precision not in EIGHT_BITS and case.unsupported is None:
            bits = PRECISION_TABLE[case.precision].bits
            fewest[case.variant] = min(bits, fewest.get(case.variant, bits))

    def wave(case: Case) -> int:
        preset, engine = PRESETS.get(case.variant), ENGINES[case.engine]
        if case.is_base and not case.replicate:
            return 0
        bits = PRECISION_TABLE[case.precision].bits
        # On a CPU fewer bits may exceed the allowed error, and a case that compiles nothing takes seconds.
        is_quick = case.device == "cpu" and not engine.compiles and case.precision not in EIGHT_BITS
        is_early = bits == fewest.get(case.variant) or is_quick
        if preset and case.device in preset.first and is_early and not case.replicate:
            return 0 if engine.needs == "torch" and not engine.compiles else 1
        is_unlikely = bits > fewest.get(case.variant, bits) and not case.is_base
        return 3 if is_unlikely or _is_built_alone(case) else 2

    *waves, last = ([case for case in cases if wave(case) == number] for number in range(4))
    waves[0].sort(key=lambda case: not case.is_base)
    return list(filter(None, waves)), sorted(last, key=_is_built_alone)


def _is_built_alone(case: Case) -> bool:
    return ENGINES[case.engine].compiles and not ENGINES[case.engine].shares_kernels


def processes_of_winners(is_search: bool) -> Sequence[int]:
    """Return the number of further processes of likely winners, round by round.

    The second round confirms cells that became likely winners in the first. A search adds processes while several
    cells may win.
    """
    return range(CONFIRMING_PROCESSES, MOST_PROCESSES + 1) if is_search else [CONFIRMING_PROCESSES] * 2


def further(case: Case, planned: int, processes: int = 0, is_wide: bool = False) -> list[Case]:
    """Return a likely winner's further replicates, at least CONFIRMING_PROCESSES beyond the planned ones.

    A base's planned processes count too, since they did not choose it, unless they disagree too much (`is_wide`).
    """
    count = max(processes, CONFIRMING_PROCESSES)
    of_base = max(processes, BASE_PROCESSES + CONFIRMING_PROCESSES * is_wide)
    numbers = range(1, of_base) if case.is_base else range(planned, planned + count)
    return [replace(case, replicate=number) for number in numbers]


def only_of(plan: list[Case], only: Filter | None) -> list[Case]:
    """Return the cases that match `only`. Raises ConfigError if no case has one of its words, or if none match."""
    if only is None:
        return plan
    only.check(lambda column: (case.value(column) for case in plan), "the config has none")
    cases = [case for case in plan if only.matches(case)]
    if not cases:
        raise ConfigError(f"--only {only}: no case has all of these")
    return cases


def builds_long(case: Case) -> bool:
    """Return whether one of the case's options makes its build take minutes."""
    options = ENGINES[case.engine].options.declared()
    return any(option.builds_long and case.options.get(name) in option.search for name, option in options.items())


def estimate_seconds(case: Case, budget: Budget, is_built: bool = False) -> float:
    """Guess a case's wall time."""
    if case.unsupported:
        return 0.0
    engine, building = ENGINES[case.engine], 0.0
    is_reused = case.replicate > 0 and (engine.shares_kernels or engine.builds is not None)
    if not is_built and not is_reused:
        usual = _BUILD_SECONDS if engine.builds else _COMPILE_SECONDS[case.device] if engine.compiles else 0.0
        building = _LONG_BUILD_SECONDS if builds_long(case) else usual
    # A backward pass takes about twice the forward's.
    network = CATALOG.get(case.source.catalog_name or "") if case.device == "cpu" else None
    flops = 2 * network.multiply_adds * case.batch_size * (3 if case.pass_ == "training" else 1) if network else 0
    calls = (budget.min_samples + _CALLS) * flops / (_CORE_FLOPS * usable_cores())
    return max(1.5 * budget.seconds, calls) + _CASE_SECONDS[case.device] + building


def searched(plan: Iterable[Case]) -> list[Case]:
    """Return one runnable case, of any batch, for each family: the search for the largest batch starts from it."""
    families = {case.family: case for case in reversed(list(plan)) if not case.unsupported and not case.replicate}
    return list(reversed(families.values()))


def _cells(
    config: Config,
    entry: ModelEntry | LayerEntry,
    device: Device,
    hardware: str | None,
    requirements: Callable[[str, str], str],
) -> Iterator[Case]:
    unshaped = entry.source()
    precisions = precisions_of(unshaped, config.precisions)
    trainings = config.training.settings(entry.name) if unshaped.layer is None else [_LAYERS]
    varied, batches = entry.shapes or {}, entry.batch_sizes or config.batch_sizes
    for sizes in product(*map(sorted, varied.values())):
        source = at_shape(unshaped, dict(zip(varied, sizes, strict=True)), varied)
        for batch_size, pass_, precision, engine_entry in product(batches, config.passes, precisions, config.engines):
            engine, (options, reason) = engine_entry.engine, _resolve(engine_entry, device)
            if precision in source.graphs and precision not in config.precisions and engine.needs == "torch":
                continue  # Only a file has this precision, and the engine runs no files.
            by_engine = unsupported(engine, pass_, device, precision, source.kind, hardware)
            for training in trainings if pass_ == "training" else [PLAIN]:
                why = reason or _untrainable(source, pass_, batch_size, training.accumulation) or by_engine
                if engine.needs == "onnx" and precision not in engine.switches:
                    why = why or not_made(source, precision)
                if engine.int8_graph == "int8-dynamic" and precision in source.graphs:
                    why = why or f"the model's {precision} file is quantized already: ort runs it"
                yield Case(
                    model=entry.name,
                    engine=engine.name,
                    variant=engine_entry.label,
                    pass_=pass_,
                    precision=precision,
                    batch_size=batch_size,
                    device=device,
                    replicate=0,
                    source=source,
                    options=options,
                    training=training,
                    unsupported=why or requirements(engine.name, precision) or None,
                )


def _untrainable(source: ModelSource, pass_: Pass, batch: int, parts: int) -> str | None:
    if batch % parts:
        return f"accumulation: a batch of {batch} cannot be divided into {parts} equal parts"
    if pass_ == "training" and source.step in _GENERATION:
        return f"{source.step} needs a cache, which training lacks: train the model without `step`, or exclude this"
    return None


def _resolve(entry: EngineEntry, device: Device) -> tuple[dict[str, Any], str | None]:
    """Return the engine's options on this device, and why the entry cannot run on it."""
    preset, declared = PRESETS.get(entry.name), entry.engine.options.declared()
    if preset and device not in preset.options:
        return entry.options, f"{entry.name}: {preset.reasons[device]}"
    options = {**(preset.options[device] if preset else {}), **entry.options}
    foreign = [key for key in options if device not in declared[key].devices]
    return options, f"option {foreign[0]} of {entry.engine.name} has no meaning on {device}" if foreign else None
