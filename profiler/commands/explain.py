"""Find the nodes that cost a configuration its accuracy, and write the graph that keeps them in float32.

For a configuration within the limits the figure is printed instead.
"""

from __future__ import annotations

import json
import math
import tempfile
from collections.abc import Sequence
from pathlib import Path

import polars as pl
from rich.console import Console

from engines.catalog import ENGINES, engine_row
from engines.options import Device
from exporters.cache import default_root
from exporters.onnx_files import is_float32
from profiler.errors import ConfigError, check_choice
from profiler.job.case import Budget, Case, file_name
from profiler.job.config import load_config
from profiler.job.plan import make_plan
from profiler.machine.target import on_cores, resolve_device, usable_cores
from profiler.options import Explain as Options
from profiler.processes.forkserver import libraries
from profiler.processes.holders import Holders
from profiler.processes.messages import Outcome
from profiler.processes.process import Call, run_one
from profiler.recommend.command import check_scored, read_limits
from profiler.results.cells import Row, cells
from profiler.results.choice import MAX_ERROR, Limit
from profiler.results.columns import LIMITED_BY
from profiler.results.losses import loss_over, telling_error
from profiler.results.reading import read_results
from profiler.results.reasons import Reason
from profiler.results.run_folder import RunFolder, without_foreign_code, writable
from profiler.run.prepare import Stages, failure
from profiler.run.progress import Display
from profiler.stats.intervals import Verdict, margin, rounds_interval, spread_reach, verdict
from profiler.stats.samples import Interval
from profiler.tables.numbers import BUSY, counted, error, listed, points, relative
from profiler.tables.table import of_rows, words
from profiler.tables.writers import print_table, say
from profiler.worker.bisection import Explained
from profiler.worker.task import Task, graph_of

_SECONDS = 3600.0
"""Time limit of all graphs together, without building engines."""
_FEW, _SPREAD = 2, 0.25
"""The error is spread if more parts, and a larger share of them, have to stay in float32."""
_OUTCOMES = {"within": "meets the limit", "over": "misses the limit"}
"""Map a reason's code to words; other codes leave it unknown."""
_THAN_FP32 = {
    Verdict.FASTER: "is faster than fp32",
    Verdict.SLOWER: "is slower than fp32: deploy fp32",
    Verdict.EQUIVALENT: "is no faster than fp32: deploy fp32",
    Verdict.UNCLEAR: "is not clearly faster than fp32",
}
_FIELDS = [words("Node", "node"), words("Operator", "operator"), words("PyTorch module", "module")]


def execute(options: Options, console: Console) -> int:
    """Explain one configuration of a run; return 1 if that failed, else 0. Raises ConfigError."""
    case, folders, cell = _chosen(options)
    why = case.unsupported
    if ENGINES[case.engine].needs == "torch" or graph_of(case) in ("fp32", "native"):
        graph = "no graph" if ENGINES[case.engine].needs == "torch" else f"the {graph_of(case)} graph"
        why = f"{case.variant} runs {graph} at {case.precision}, so no node of its own is rounded"
        why += "; explain another, such as ort/int8"
    if case.engine == "trt" and case.precision == "fp16" and (cell["tensorrt_version"] or "").startswith("8."):
        why = "TensorRT 8 chooses the types of layers itself, so it keeps none in float32; explain ort/fp16"
    if why:
        raise ConfigError(f"--configuration {options.configuration}: {why}")
    limits = read_limits(options)
    check_scored(limits, read_results(options.run), [cell["model"]], needs_base=False)
    reason, name = _judged(cell, limits), f"{case.model}, {case.variant} {case.precision}"
    if cell["status"] == "ok" and reason.code == "within":
        advice = f"A lower {LIMITED_BY[reason.figure]} explains it."
        say(console, f"Nothing to explain in {name}: {reason}.\n{advice}")
        return 0
    path = options.run.resolve() / "explain" / f"{file_name(str(case.id))}.onnx"
    with writable(path.parent, "a copy of the run"):
        path.parent.mkdir(exist_ok=True)
        tempfile.TemporaryFile(dir=path.parent).close()
    cores = RunFolder(options.run).read_environment().get("cpu_cores") or usable_cores()
    with on_cores(min(cores, usable_cores())):
        outcome = _explain(case, folders, path, console)
    if outcome.status != "ok":
        log = f" (log: {outcome.log})" if outcome.log else ""
        say(console, f"{case.id}: {outcome.status}: {outcome.reason}{log}")
        return 1
    say(console, f"\n{name}: {answer(outcome.value, cell, limits)}\n")
    if outcome.value.nodes:
        print_table(console, of_rows("Kept in float32", _FIELDS, outcome.value.nodes))
        variants = json.dumps({case.precision: str(path)})
        use = f"\nThe graph: {path}\nTo measure it, add to the model in a job: variants: {variants}"
        if is_float32(path):
            path.unlink()
            use = f"\nNothing in {case.precision} is left: deploy it in fp32"
        say(console, use)
    return 0


def _judged(cell: Row, limits: Sequence[Limit]) -> Reason:
    """Return why the cell misses a limit, or else the figure that is within the first one.

    The default limit is of the accuracy loss, or of the error where the loss is unknown.
    """
    figure = "error" if cell["accuracy_loss"] is None else "accuracy_loss"
    limits = limits or [Limit(figure, MAX_ERROR)]
    if missed := next(filter(None, (limit.missed(cell) for limit in limits)), None):
        return missed
    figure, limit = limits[0].figure, limits[0].value
    low, high = cell.get(f"{figure}_low"), cell[f"{figure}_high"]
    return Reason("within", high if figure == "error" else cell[figure], limit, low, high, figure=figure)


def _chosen(options: Options) -> tuple[Case, tuple[str, ...], Row]:
    """Return the configuration's case, the folders of its model's code, and its cell. Raises ConfigError."""
    rows = cells(read_results(options.run)).filter(pl.col("pass") == "inference")
    rows = rows.with_columns(configuration=pl.format("{}/{}", "variant", "precision"))
    explainable = {row["configuration"] for row in rows.iter_rows(named=True) if _has_graph(row)}
    if not explainable:
        pairs = [(row, engine_row(row["engine"])) for row in rows.iter_rows(named=True)]
        alike = [row["configuration"] for row, e in pairs if e.needs != "torch" and row["precision"] in e.switches]
        of_fp32 = f": {listed(dict.fromkeys(alike))} rounds inside the fp32 graph" if alike else ""
        advice = "measure one, such as by --engine ort --precision fp32,int8"
        raise ConfigError(f"{options.run} has no graph at fp16, bf16 or int8 to explain{of_fp32}; {advice}")
    asked = {options.configuration} & {*rows["configuration"]}  # execute() says why it cannot be explained.
    check_choice("--configuration", options.configuration, sorted(explainable | asked))
    rows = rows.filter(configuration=options.configuration)
    for column, value in {"model": options.model, "batch_size": options.batch, "setting": options.setting}.items():
        valid = sorted(rows[column].unique())
        if value is not None:
            check_choice(f"--{column.removesuffix('_size')}", str(value), [str(word) for word in valid])
        elif column == "model" and len(valid) > 1:
            raise ConfigError(f"--model: it ran several models; give one: {', '.join(valid)}")
        rows = rows.filter(pl.col(column) == (valid[0] if value is None else value))
    cell, bench = rows.row(0, named=True), options.run / "bench.yaml"
    device: Device = "cuda" if cell["device"] == "cuda" else "cpu"
    config = load_config(bench, device)
    # Only this model's code is called.
    single = config.model_copy(update={"models": [entry for entry in config.models if entry.name == cell["model"]]})
    folders = without_foreign_code(single, options.run, "explain", options.trust_code).path
    case = next((case for case in make_plan(config, device) if case.id in cell["case_ids"]), None)
    if case is None:
        raise ConfigError(f"explain: {cell['case_ids'][0]} is not in {bench}; give a configuration of the job")
    return case, folders, cell


def _has_graph(row: Row) -> bool:
    engine = engine_row(row["engine"])
    is_exact = row["precision"] in ("fp32", "native", *engine.switches)
    return engine.needs != "torch" and not is_exact and row["status"] != "unsupported"


def _explain(case: Case, folders: tuple[str, ...], path: Path, console: Console) -> Outcome:
    logs = default_root() / "logs"
    logs.mkdir(parents=True, exist_ok=True)
    with libraries() as facts, Display(console) as display, Holders() as holders:
        gpu = resolve_device(case.device, facts).gpu
        uuid = gpu.uuid if gpu else None
        stages = Stages({case.subject: case.source}, Budget(), logs, folders, display.doing, [case], gpu=uuid)
        stages.hold(holders)
        stages.make()
        prepared = stages.prepared[case.subject]
        if why_not := failure(case, prepared):
            return why_not
        log, visible = logs / f"explain-{path.stem}.log", {"CUDA_VISIBLE_DEVICES": uuid or ""}
        task = Task(case, prepared, Budget(seconds=1.0), uuid)
        call = Call("profiler.worker.explain:explain", (task, path), log, _SECONDS, environment=visible, path=folders)
        return run_one(call, lambda child: display.doing(f"{case.model}: {child.progress or 'compare graphs'}"))


def answer(explained: Explained, cell: Row, limits: Sequence[Limit]) -> str:
    """State error and accuracy of the cell's graph, with some parts in float32, and with all of them.

    The limits and the speed judge the graph with some; its loss is relative to the graph with all.
    """
    errors, parts = list(map(_error, explained.errors)), counted(explained.parts, "part")
    if not explained.nodes:
        cause = "look at weights and constants of few bits, or at types that the runtime chooses"
        return f"{errors[0]}; with all {parts} in float32 {errors[2]}, so their type is not the cause: {cause}"
    accuracies = [f", accuracy {points(sum(part) / len(part))}" for part in explained.scores] or [""] * len(errors)
    before, after, whole = map("{}{}".format, errors, accuracies)
    # Factors of the graph with some parts in float32 over the graphs with none and with all.
    factors = [_factor([math.log(ms[other] / ms[1]) for ms in explained.rounds], cell) for other in (0, 2)]
    speeds = [relative(math.sqrt(factor.low * factor.high), factor.low, factor.high) for factor in factors]
    others = zip(speeds, (cell["precision"], "all in float32"), strict=True)
    clear = [f"{speed} compared with {other}" for speed, other in others if speed != BUSY]
    some = f"With {explained.count} of {parts} in float32"
    lines = [before, f"{some}: {'; '.join([after, *clear])}", f"With all in float32: {whole}"]
    if explained.count > max(_FEW, _SPREAD * explained.parts):
        lines.append("The error is spread over the graph: fewer parts do not halve it")
    reason = _judged(_cell_of(explained, cell), limits)
    speed = verdict(factors[1].low, factors[1].high, margin(cell["clock"]))
    outcome = f"{some} it {_OUTCOMES.get(reason.code, 'may miss the limit')}: {reason}"
    return "\n".join([*lines, outcome, f"It {_THAN_FP32[speed]}"])


def _factor(logs: Sequence[float], cell: Row) -> Interval:
    """Return the interval of a ratio; rounds of one process do not show the spread between processes, so add it."""
    rounds = rounds_interval(logs)
    middle = math.log(rounds.low * rounds.high) / 2
    reach = float(spread_reach(cell["latency_spread"] or math.inf, cell["latency_spread_free"] or 1.0))
    arm = math.hypot(math.log(rounds.high) - middle, math.sqrt(2) * reach)
    return Interval(math.exp(middle - arm), math.exp(middle + arm))


def _cell_of(explained: Explained, cell: Row) -> Row:
    """Return the cell with error and loss of the graph that keeps some parts in float32."""
    _, ours, base = explained.scores or ((), (), ())
    bound = dict.fromkeys(("error_high", "rel_l2_error_high"), explained.errors[1])
    loss = loss_over(base, ours, telling_error({**cell, **bound}))
    return {**cell, **bound, **loss, "accuracy_items": len(ours), "worst": None}


def _error(value: float) -> str:
    return f"error bound {error(value)}" if math.isfinite(value) else "outputs are not finite"
