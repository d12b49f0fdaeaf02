"""Declare the commands of `python -m profiler`, and every option of theirs once: its type, default and help.

A command's `execute` takes an object of its class. Nothing else is imported here, so that `--help` answers at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from typer import Argument, Option

Runs = Annotated[Sequence[str], Argument(metavar="RUN...", help="Folders of runs, patterns, or addresses")]
Only = Annotated[Sequence[str], Option(help="Conditions: model=resnet50,precision=fp16; may be repeated")]
TrustCode = Annotated[
    bool,
    Option(
        "--trust-code",
        help="Call the functions, libraries and interpreters that a run names, though it was made elsewhere",
    ),
]
OutputFile = Annotated[Path | None, Option(help="Write to this file, not to the terminal")]
ListedDevice = Annotated[str, Option(help="auto, cpu or cuda")]


@dataclass(frozen=True, kw_only=True)
class Run:
    """Measure a model, or run a job: prepare the models, measure every case, print the tables."""

    config: Annotated[
        Path | None,
        Argument(
            metavar="MODEL|JOB",
            help="model.onnx, resnet50, package.module:factory, hf:BertModel, timm:NAME or torchvision:NAME; or a job: "
            "a YAML file, or a suite's name",
        ),
    ] = None
    batch: Annotated[str | None, Option(help="Of a model: batch sizes, such as 1,16")] = None
    shapes: Annotated[
        Sequence[str],
        Option(
            metavar="NAME=SIZES",
            help="Of a model: sizes of a dimension of its inputs, such as sequence=32,128 or height=224,448; may be "
            "repeated",
        ),
    ] = ()
    precision: Annotated[str | None, Option(help="Of a model: number formats, such as fp32,fp16")] = None
    engine: Annotated[
        Sequence[str], Option(help="Of a model: presets, such as eager,ort (profiler engines); may be repeated")
    ] = ()
    pass_: Annotated[str | None, Option("--pass", help="Of a model: inference, training or both, by a comma")] = None
    inputs: Annotated[
        Sequence[str],
        Option(
            "--input",
            metavar="[NAME=]SHAPE[:DTYPE[:VALUES]]",
            help="Of a model: what it takes, without the batch: 3,224,224 or ids=128:int64:0,30522; may be repeated",
        ),
    ] = ()
    step: Annotated[str | None, Option(help="Of a model of transformers: prefill, decode or encode")] = None
    write_yaml: Annotated[Path | None, Option(metavar="FILE", help="Of a model: write the job as a YAML file")] = None
    device: Annotated[str | None, Option(help="auto, cpu, cuda or cuda:1, in place of the file's")] = None
    output: Annotated[Path | None, Option(help="Folder for the run's folder, in place of the file's")] = None
    only: Only = ()
    quick: Annotated[bool, Option("--quick", help="A fraction of the sampling time: rough figures, soon")] = False
    seconds: Annotated[
        float | None, Option(min=0.01, metavar="SECONDS", help="Sampling time of each case, in place of the file's")
    ] = None
    min_samples: Annotated[
        int | None,
        Option(min=3, metavar="N", help="Fewest samples of each case, in place of the file's"),
    ] = None
    dry_run: Annotated[bool, Option("--dry-run", help="Print the plan and a time estimate; measure nothing")] = False
    prepare: Annotated[
        bool, Option("--prepare", help="Fill the caches on all cores, for a run that measures later; measure nothing")
    ] = False
    resume: Annotated[Path | None, Option(help="A run's folder: measure the cases that it lacks")] = None
    retry: Annotated[
        bool, Option("--retry", help="With --resume: measure again what is not ok or is still disturbed, too")
    ] = False
    trust_code: TrustCode = False
    strict: Annotated[bool, Option("--strict", help="Exit with 1 if any case failed, not only if all did")] = False
    profile: Annotated[
        bool, Option("--profile", help="Also time each layer of every measured case: see profiler layers")
    ] = False
    wait_for_idle: Annotated[
        float | None,
        Option(
            metavar="MINUTES",
            help="Wait up to so long, such as 10, before each case until the machine is quiet",
        ),
    ] = None
    machine: Annotated[
        str | None, Option(help="What it is called and costs: label=H200,cloud=…,instance=…,usd_per_hour=7.9")
    ] = None


@dataclass(frozen=True, kw_only=True)
class Build:
    """Build TensorRT engines into the cache, ahead of time, without running them."""

    engine: Annotated[str, Option(help="trt (on the GPU that it is for) or trt-rtx (anywhere, with --target)")]
    models: Annotated[
        Sequence[str], Option("--model", help="A canonical network, or the path of an .onnx file; may be repeated")
    ]
    batches: Annotated[
        str, Option("--batch", help="Sizes and ranges, an engine each: 1,16,1:8:32 (a range is min:opt:max)")
    ]
    precisions: Annotated[
        Sequence[str],
        Option("--precision", help="fp32, tf32, fp16, bf16, int8, fp8; repeatable; of an .onnx file fp32 if left out"),
    ] = ()
    target: Annotated[
        str | None, Option(help="trt-rtx: compute capabilities to build for, such as sm89 or sm89,sm120, or all")
    ] = None
    export: Annotated[Path | None, Option(help="Copy the engine to this file too")] = None
    rebuild: Annotated[bool, Option("--rebuild", help="Build even what the engine cache has")] = False
    optimization_level: Annotated[int | None, Option(min=0, max=5, help="The builder's, 0 to 5")] = None
    workspace_mib: Annotated[int | None, Option(min=1, help="Most scratch memory a layer may use")] = None
    calibration: Annotated[Path | None, Option(help="int8: a folder of .npy files with inputs")] = None
    timeout: Annotated[float, Option(min=0.1, help="Seconds for each export and each build")] = 900.0


@dataclass(frozen=True, kw_only=True)
class Layers:
    """Print what each layer took, and the exported nodes with every variant's time side by side."""

    run: Annotated[Path, Argument(help="A run's folder, made with --profile")]
    model: Annotated[str | None, Option(help="Only these, such as resnet18,resnet50")] = None
    variant: Annotated[str | None, Option(help="Only these, such as eager,ort")] = None
    pass_: Annotated[str | None, Option("--pass", help="inference or training")] = None
    precision: Annotated[str | None, Option(help="Only these, such as fp16")] = None
    batch: Annotated[str | None, Option(help="Only these sizes, such as 1,16")] = None
    top: Annotated[int | None, Option(min=1, help="The longest so many rows of each table")] = None


@dataclass(frozen=True, kw_only=True)
class Report:
    """Write a report: what to deploy and why, with charts, every table, the environment and the method."""

    runs: Annotated[Sequence[str], Argument(help="Folders of runs, patterns such as 'results/*', or addresses")]
    format: Annotated[str, Option(help="html (one page that loads nothing), md, or csv (a folder of tables)")] = "html"
    output: Annotated[
        Path | None, Option(help="File or folder; else the run's own folder, for several runs this one")
    ] = None
    charts: Annotated[str | None, Option(help="Every chart as an image too: svg or png")] = None
    study: Annotated[
        str | None, Option(help="Next to a published benchmark's figures instead, such as cnn-benchmarks")
    ] = None
    only: Only = ()


@dataclass(frozen=True, kw_only=True)
class Recommend:
    """Say what to deploy, by how much it wins, and why each other candidate loses; exit code 3 if nothing fits."""

    runs: Runs
    model: Annotated[str | None, Option(help="The model to deploy, where the runs hold several")] = None
    batch: Annotated[str | None, Option(help="Batch sizes to choose from, such as 1,16; all if left out")] = None
    pass_: Annotated[str, Option("--pass", help="inference or training")] = "inference"
    precision: Annotated[str | None, Option(help="Precisions to choose from, such as fp32,fp16")] = None
    engine: Annotated[
        Sequence[str], Option(help="Engines or variants to choose from: ort,compiled; may be repeated")
    ] = ()
    exclude_engine: Annotated[Sequence[str], Option(help="Engines or variants to leave out; may be repeated")] = ()
    machine: Annotated[
        Sequence[str], Option(metavar="LABEL", help="Only what was measured on this machine; may be repeated")
    ] = ()
    extra: Annotated[str | None, Option(help="Which training, as ids end: optimizer=sgd, or plain")] = None
    max_latency_ms: Annotated[
        Sequence[str], Option(help="Maximum latency per call (ms): 2 (the median), p99=2, or both")
    ] = ()
    min_throughput: Annotated[float | None, Option(help="Minimum throughput (items/s)")] = None
    max_memory_mib: Annotated[float | None, Option(help="Maximum peak memory (MiB)")] = None
    max_error: Annotated[float | None, Option(help="Maximum rel_l2_error (training: gradient_error)")] = None
    allow_uncalibrated: Annotated[
        bool,
        Option("--allow-uncalibrated", help="Choose from int8, fp8 without calibration data too; so does --max-error"),
    ] = False
    usd_per_hour: Annotated[
        Sequence[str], Option(help="The machine's price, LABEL=3.5 for one of several; in place of the runs'")
    ] = ()
    objective: Annotated[str, Option(help="latency, throughput, memory, energy or cost")] = "latency"
    format: Annotated[str, Option(help="text, md or json")] = "text"
    export: Annotated[
        Path | None, Option(help="Write the choice, ready to run, into this folder: model, config.json, run.py")
    ] = None
    trust_code: TrustCode = False


@dataclass(frozen=True, kw_only=True)
class Compare:
    """Compare runs, machines or versions: ratios with intervals, verdicts, and what differs between them."""

    runs: Runs
    by: Annotated[
        str | None, Option(help="What the sides are: run, machine, driver, torch_version or another text column")
    ] = None
    base: Annotated[str | None, Option(help="The side that the others are compared with; else the first")] = None
    best: Annotated[bool, Option("--best", help="Of each side the fastest variant, whatever its name")] = False
    only: Only = ()
    references: Annotated[
        Sequence[str], Option("--reference", help="Published figures to show next to the runs, such as cnn-benchmarks")
    ] = ()
    fail_on_regression: Annotated[
        str | None,
        Option(help="Exit with 1 if a cell is slower by more than this, such as 5%; with 4 if that is not proven"),
    ] = None
    format: Annotated[str, Option(help="text, md, csv or json")] = "text"
    output: OutputFile = None
    top: Annotated[int, Option(min=1, help="Rows of each table in text and md: those that changed most")] = 40


@dataclass(frozen=True, kw_only=True)
class Query:
    """Query the tables results, samples, layers and environments of runs by SQL.

    For example: query 'results/*' "select model, variant, min(latency_ms) from results group by model, variant"
    """

    runs: Annotated[Sequence[str], Argument(help="Folders of runs, patterns or addresses, and last the query")]
    format: Annotated[str, Option(help="text, md, csv, html, json or parquet")] = "text"
    output: OutputFile = None
    rows: Annotated[int, Option(min=1, help="Most rows on the terminal")] = 200


@dataclass(frozen=True, kw_only=True)
class Engines:
    """List every engine and preset: what it can do here, and what is missing."""

    device: ListedDevice = "auto"


@dataclass(frozen=True, kw_only=True)
class Models:
    """List the canonical networks."""


@dataclass(frozen=True, kw_only=True)
class Suites:
    """List the published benchmarks that ship as jobs: what each measures, and how long it takes here."""

    device: ListedDevice = "auto"


@dataclass(frozen=True, kw_only=True)
class Published:
    """Print finished runs next to a published benchmark's figures, and who is how many times faster."""

    runs: Annotated[Sequence[str], Argument(help="Folders of finished runs, of one or several machines")]
    study: Annotated[str | None, Option(help="cnn-benchmarks, cloud-gpus, convnet-benchmarks or gpu-study")] = None
    into: Annotated[Path | None, Option(help="Folder for the tables; without it they are only printed")] = None


@dataclass(frozen=True, kw_only=True)
class Submit:
    """Check finished runs of suites, and write what may be published of them: no host, user, folder or variable."""

    runs: Annotated[Sequence[str], Argument(metavar="RUN...", help="Folders of finished runs, one a suite and machine")]
    into: Annotated[Path, Option(help="Folder of the machines; each run goes to <machine>/<suite> in it")] = Path(
        "docs/results/suites"
    )
    most_disturbed: Annotated[
        float, Option(min=0, max=1, help="Refuse a run of whose rows other work disturbed a larger share")
    ] = 0.2
    incomplete: Annotated[
        bool, Option(help="Take a run that was cut off, too; the list of runs says which cases it lacks")
    ] = False


@dataclass(frozen=True, kw_only=True)
class Cache:
    """List what is kept between runs (exports, references, engines), or clear it."""

    action: Annotated[str, Argument(help="list or clear")] = "list"
    older_than: Annotated[float, Option(min=0, help="clear: only what was not used for so many days")] = 0.0


@dataclass(frozen=True, kw_only=True)
class Environment:
    """Print what a run would record of this machine, as JSON."""


@dataclass(frozen=True, kw_only=True)
class Doctor:
    """Say what works on this machine: its driver, card and limits, and every engine with a tiny network."""

    device: Annotated[str, Option(help="auto, cpu, cuda or cuda:1")] = "auto"
    output: Annotated[Path | None, Option(help="Keep all that was found in this folder, to report it")] = None


COMMANDS: dict[str, tuple[type, str]] = {
    "run": (Run, "profiler.recommend.after_run:execute"),
    "build": (Build, "profiler.build:execute"),
    "layers": (Layers, "profiler.layers:execute"),
    "report": (Report, "profiler.report.command:execute"),
    "recommend": (Recommend, "profiler.recommend.command:execute"),
    "compare": (Compare, "profiler.compare.command:execute"),
    "query": (Query, "profiler.query:execute"),
    "doctor": (Doctor, "profiler.doctor.command:execute"),
    "engines": (Engines, "profiler.listings:list_engines"),
    "models": (Models, "profiler.listings:list_models"),
    "suites": (Suites, "profiler.listings:list_suites"),
    "published": (Published, "profiler.published.command:execute"),
    "submit": (Submit, "profiler.submit.command:execute"),
    "cache": (Cache, "profiler.listings:cache"),
    "environment": (Environment, "profiler.listings:print_environment"),
}
"""By name the class of a command's options, whose docstring is its help, and the function that carries it out."""
