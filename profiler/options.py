"""Declare the commands of `python -m profiler` and each of their options once: its type, default and help.

A command's function takes an object of its class. Nothing else is imported here, so that `--help` answers at once.
"""
# ruff: noqa: RUF009 -- the called functions make fields.

from __future__ import annotations

from dataclasses import MISSING, dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from typer import Argument, Option

_RUNS = "Folders of runs, or patterns"
_ONLY = "Conditions: model=resnet50,precision=fp16,tf32; may be repeated"
_TRUST_CODE = "Call the functions that someone else's run names"


def _argument(help: str, default: Any = MISSING, **settings: Any) -> Any:
    return field(default=default, metadata={"typer": Argument(help=help, **settings)})


def _option(help: str, *names: str, default: Any = None, **settings: Any) -> Any:
    """Declare an option named after its field, or by `names`, with further `settings` of typer.Option."""
    return field(default=default, metadata={"typer": Option(..., *names, help=help, **settings)})


def _flag(help: str) -> Any:
    return _option(help, default=False)


def _several(help: str, *names: str, **settings: Any) -> Any:
    """Declare an option that may be repeated."""
    return _option(help, *names, default=(), **settings)


@dataclass(frozen=True, kw_only=True)
class Run:
    """Measure a model, or run a job: prepare the models, measure every case, print the tables."""

    config: Path | None = _argument(
        "model.onnx, resnet50, package.module:factory, hf:BertModel, timm:NAME or torchvision:NAME; or a job: a "
        "YAML file",
        default=None,
        metavar="MODEL|JOB",
    )
    batch: str | None = _option("With a model: batch sizes, such as 1,16")
    shapes: list[str] = _several(
        "With a model: sizes of an input dimension, such as sequence=32,128 or height=224,448; may be repeated",
        metavar="NAME=SIZES",
    )
    precision: str | None = _option("With a model: precisions, such as fp32,fp16")
    engine: list[str] = _several("With a model: presets, such as eager,ort (engines lists them); may be repeated")
    pass_: str | None = _option("With a model: inference, training or inference,training")
    inputs: list[str] = _several(
        "A factory's item, such as 3,224,224; or what an .onnx file's input holds, such as ids=0,30522 or ids=ids.npy",
        "--input",
        metavar="SHAPE|NAME=VALUES",
    )
    batch_axis: list[str] = _several(
        "An .onnx file's input, or a factory's, whose batch is not the first axis: state=1, mask=none; may be repeated",
        metavar="NAME=AXIS",
    )
    data: str | None = _option(
        "With a model: your items: FILE.npz with an array for each input and `labels`, a folder with a subfolder of "
        "images for each class, or package.module:function, which yields (inputs, labels)"
    )
    metric: str | None = _option(
        "With --data: top1, relative-error, or package.module:function, which takes outputs and labels and returns a "
        "score from 0 to 1 for each item"
    )
    device: str | None = _option("auto, cpu, cuda or cuda:1, in place of the file's")
    output: Path | None = _option("Folder for the run's folder, in place of the file's")
    only: list[str] = _several(_ONLY)
    threads: int | None = _option("Run on this many cores, idle ones first, with a thread each", min=1, metavar="N")
    quick: bool = _flag("Sample for 0.3 s a case: rough figures, soon; --seconds overrides that")
    seconds: float | None = _option("Sampling time of each case, in place of the file's", min=0.01, metavar="SECONDS")
    max_latency_ms: list[str] = _several(
        "Limit of the deployed model's latency: 2 (the median) or p99=2, which also takes enough samples"
    )
    max_accuracy_loss: list[str] = _several("Limit of the deployed model's loss of accuracy on --data, such as 0.5%")
    replicates: int | None = _option(
        "Processes of each case, in place of the file's; with --resume, up to this many", min=1, max=100, metavar="N"
    )
    dry_run: bool = _flag("Print the plan and a time estimate; measure nothing")
    resume: Path | None = _option("A run's folder: measure its missing cases")
    retry: bool = _flag("With --resume: also repeat cases that are not ok, or that other work disturbed")
    trust_code: bool = _flag(_TRUST_CODE)
    all: bool = _flag("Also measure cases that a run skips: they run another's program, or have clearly lost")
    strict: bool = _flag(
        "Exit with 1 if any case failed, not only if all did; with --against, with 4 if a cell has no verdict"
    )
    profile: bool = _flag("Also time each layer of every measured case: see profiler layers")
    no_report: bool = _flag("Write no report.html, which takes some seconds")
    wait_for_idle: float | None = _option(
        "Wait up to this long, such as 10, before each case until the machine is quiet", min=0.1, metavar="MINUTES"
    )
    search: bool = _flag("Go on from the best presets: try their engines' options, and confirm the winner")
    within: str | None = _option(
        "Measure what fits into this time, such as 90s or 3m; leave out cases whose estimate exceeds the time left",
        metavar="TIME",
    )
    against: str | None = _option(
        "Another model or job, or git:REVISION for an earlier version of this one: measure both in turn until it is "
        "clear whether this one is slower; exit code 1 if so. Their outputs are not compared",
        metavar="OLD",
    )
    ray: str | None = _option("Measure on all devices of a Ray cluster: local, auto or its address", metavar="ADDRESS")
    limit: str | None = _option("With --against: the slowdown that is too much, by default 5%")
    junit: Path | None = _option("With --against: also write the result as JUnit's XML", metavar="FILE")
    machine: str | None = _option("The machine's name and price: label=H200,cloud=…,instance=…,usd_per_hour=7.9")


@dataclass(frozen=True, kw_only=True)
class Build:
    """Build TensorRT engines into the cache, ahead of time, without running them."""

    engine: str = _option("trt (on the GPU that it is for) or trt-rtx (anywhere, with --target)", default=MISSING)
    models: list[str] = _option(
        "resnet50, model.onnx, hf:BertModel or another model; may be repeated", "--model", default=MISSING
    )
    batches: str = _option("Batch sizes, an engine each: 1,16", "--batch", default=MISSING)
    precisions: list[str] = _several("fp32 (the default), tf32, fp16, bf16, int8, fp8; may be repeated", "--precision")
    target: str | None = _option("trt-rtx: compute capabilities to build for, such as sm89 or sm89,sm120, or all")


@dataclass(frozen=True, kw_only=True)
class Layers:
    """Print the time of each layer, and of the exported nodes in every variant side by side."""

    run: Path = _argument("A run's folder, made with --profile")
    only: list[str] = _several(_ONLY)
    top: int | None = _option("Print only this many layers of each table, the slowest", min=1)


@dataclass(frozen=True, kw_only=True)
class Explain:
    """Find the nodes that cost a 16-bit or int8 graph its accuracy, and write a graph that keeps them in float32."""

    run: Path = _argument("A run's folder")
    configuration: str = _option(
        "The variant and precision to explain: ort/int8", default=MISSING, metavar="VARIANT/PRECISION"
    )
    model: str | None = _option("The model, if the run has several")
    batch: int | None = _option("The batch size; by default the smallest", min=1)
    setting: str | None = _option("Which shape: sequence=128; by default the first")
    max_accuracy_loss: list[str] = _several("Explain only a loss of accuracy above this, by default 1%")
    max_error: list[str] = _several("Explain only an error bound above this, without labels by default 0.01")
    trust_code: bool = _flag(_TRUST_CODE)


@dataclass(frozen=True, kw_only=True)
class Report:
    """Write a report as one page that loads nothing: what to deploy, charts, tables, environment and method."""

    runs: list[str] = _argument(_RUNS, metavar="RUN...")
    output: Path | None = _option("File or folder; by default the run's folder, or for several runs the current one")
    only: list[str] = _several(_ONLY)


@dataclass(frozen=True, kw_only=True)
class Recommend:
    """Say what to deploy, by how much it wins, and why each other candidate loses; exit code 3 if nothing fits,
    4 if nothing can be recommended yet."""

    runs: list[str] = _argument(_RUNS, metavar="RUN...")
    model: str | None = _option("The model to deploy; without it, a short answer for each model")
    pass_: str | None = _option("inference or training; without it training only where the runs have nothing else")
    setting: str | None = _option("Which training or shape: optimizer=sgd, sequence=128, or plain")
    only: list[str] = _several("Choose among these: engine=ort,precision=fp16,batch_size=1; may be repeated")
    max_latency_ms: list[str] = _several("Maximum latency per call (ms): 2 (the median) or p99=2; may be repeated")
    min_throughput: list[str] = _several("Minimum throughput (items/s)")
    max_memory_mib: list[str] = _several("Maximum peak memory (MiB)")
    max_error: list[str] = _several("Maximum error bound, by default 0.01 (training: gradient_error, by default none)")
    max_accuracy_loss: list[str] = _several(
        "Maximum loss of accuracy on the runs' data, in percentage points such as 0.5%: the end of its interval"
    )
    allow_uncalibrated: bool = _flag("Choose from int8 and fp8 without your data too; so does --max-error")
    objective: str = _option("latency, throughput, memory, energy or cost", default="latency")
    format: str = _option("text or json", default="text")
    export: Path | None = _option("Write the choice, ready to run, into this folder: model, config.json, run.py")
    trust_code: bool = _flag(_TRUST_CODE)


@dataclass(frozen=True, kw_only=True)
class Compare:
    """Compare runs, machines or versions: how many times faster each is, with its range, and their differences."""

    runs: list[str] = _argument(_RUNS, metavar="RUN...")
    by: str | None = _option("What the sides are: run, machine, driver, torch_version or another text column")
    base: str | None = _option("The side that the others are compared with; else the first")
    only: list[str] = _several(_ONLY)
    fail_on_regression: str | None = _option(
        "Exit with 1 if a cell is slower by more than this, such as 5%, or fails; with 4 if that is unclear"
    )
    format: str = _option("text, md or json", default="text")
    top: int = _option("Rows of each table in text and md, those that changed most", default=40, min=1)


@dataclass(frozen=True, kw_only=True)
class Query:
    """Query the tables results, cells, samples, layers, scores and environments of runs by SQL.

    For example: query 'results/*' "select model, variant, min(latency_ms) from results group by model, variant"
    """

    runs: list[str] = _argument("Folders of runs or patterns, and last the query")
    format: str = _option("text, md, csv or json", default="text")
    rows: int = _option("Most rows on the terminal", default=200, min=1)


@dataclass(frozen=True, kw_only=True)
class Engines:
    """List every engine and preset, its abilities on this machine, and its missing packages."""


@dataclass(frozen=True, kw_only=True)
class Models:
    """List the canonical networks."""


@dataclass(frozen=True, kw_only=True)
class Suites:
    """List the published benchmarks and their time here; run them, or show their figures next to your runs."""


@dataclass(frozen=True, kw_only=True)
class RunSuite(Run):
    """Run a published benchmark, and print its tables with your figures."""

    config: Path = _argument("A suite's name, such as cnn-benchmarks", metavar="SUITE")
    refused: ClassVar[tuple[str, ...]] = (
        *("batch", "shapes", "precision", "engine", "pass_", "inputs", "batch_axis", "data", "metric"),
        *("max_accuracy_loss", "resume", "retry", "trust_code"),
    )
    """Options of `run` that no suite takes."""


@dataclass(frozen=True, kw_only=True)
class ShowSuites:
    """Print finished runs next to the published figures of their benchmark."""

    runs: list[str] = _argument("Folders of finished runs, of one or several machines", metavar="RUN...")


@dataclass(frozen=True, kw_only=True)
class SubmitSuites:
    """Publish runs of suites, without host, user or path of the machine, and write every page anew."""

    runs: list[str] = _argument(_RUNS, metavar="RUN...")
    into: Path = _option("Folder of the published runs", default=Path("docs/results/suites"))


@dataclass(frozen=True, kw_only=True)
class Cache:
    """Show the size of the cache (exports, references, engines), or clear it."""

    action: str = _argument("list or clear", default="list")


@dataclass(frozen=True, kw_only=True)
class Doctor:
    """Check this machine: its driver, card and processors, and every engine with a tiny network."""

    device: str = _option("auto, cpu, cuda or cuda:1", default="auto")
    output: Path | None = _option("Write all findings into this folder, for a bug report")


COMMANDS: dict[str, tuple[type, str]] = {
    "run": (Run, "profiler.recommend.command:execute_run"),
    "build": (Build, "profiler.commands.build:execute"),
    "layers": (Layers, "profiler.commands.layers:execute"),
    "explain": (Explain, "profiler.commands.explain:execute"),
    "report": (Report, "profiler.report.command:execute"),
    "recommend": (Recommend, "profiler.recommend.command:execute"),
    "compare": (Compare, "profiler.compare.command:execute"),
    "query": (Query, "profiler.commands.query:execute"),
    "doctor": (Doctor, "profiler.commands.doctor:execute"),
    "engines": (Engines, "profiler.commands.listings:list_engines"),
    "models": (Models, "profiler.commands.listings:list_models"),
    "suites": (Suites, "profiler.commands.listings:list_suites"),
    "suites run": (RunSuite, "profiler.recommend.command:execute_suite"),
    "suites show": (ShowSuites, "profiler.published.command:show"),
    "suites submit": (SubmitSuites, "profiler.published.command:submit"),
    "cache": (Cache, "profiler.commands.listings:cache"),
}
"""Map each command, of one or two words, to its options, whose docstring is its help, and its function."""
