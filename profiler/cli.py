"""Parse the command line and call the command that it names.

Exit codes: 0 done; 1 no row is ok, a regression, or with --strict a failed case; 2 a config, file or argument that
cannot be used; 3 no candidate meets the limits; 70 a fault of the profiler's own; 130 interrupted.
"""

from __future__ import annotations

import signal
import sys
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer
from typer.core import TyperGroup

if TYPE_CHECKING:
    from rich.console import Console

# What a command needs is imported in it: `--help` must answer at once.

Runs = Annotated[list[str], typer.Argument(metavar="RUN...", help="Folders of runs, patterns, or addresses")]
Only = Annotated[list[str] | None, typer.Option(help="Conditions: model=resnet50,precision=fp16; may be repeated")]
OutputFile = Annotated[Path | None, typer.Option(help="Write to this file, not to the terminal")]
ListedDevice = Annotated[str, typer.Option(help="auto, cpu or cuda")]


class _DefaultsToRun(TyperGroup):
    """`python -m profiler bench.yaml` is `python -m profiler run bench.yaml`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if args and args[0] not in self.commands and args[0] not in ("--help", "-h"):
            args = ["run", *args]
        return super().parse_args(ctx, args)


app = typer.Typer(
    cls=_DefaultsToRun,
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Measures networks in PyTorch, torch.compile and ONNX Runtime, and says which runtime to deploy.\n\n"
    "A job: python -m profiler bench.yaml\n\nIts options: python -m profiler run --help",
)


@app.command()
def run(
    config: Annotated[Path | None, typer.Argument(help="The job, a YAML file such as bench.yaml")] = None,
    device: Annotated[str | None, typer.Option(help="auto, cpu, cuda or cuda:1, in place of the file's")] = None,
    output: Annotated[Path | None, typer.Option(help="Folder for the run's folder, in place of the file's")] = None,
    only: Only = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="A fraction of the sampling time: rough figures, soon")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the plan and a time estimate; measure nothing")
    ] = False,
    resume: Annotated[Path | None, typer.Option(help="A run's folder: measure the cases that it lacks")] = None,
    retry: Annotated[bool, typer.Option("--retry", help="With --resume: measure again what is not ok, too")] = False,
    strict: Annotated[
        bool, typer.Option("--strict", help="Exit with 1 if any case failed, not only if all did")
    ] = False,
    profile: Annotated[
        bool, typer.Option("--profile", help="Take every measured case's layers apart, too: see profiler layers")
    ] = False,
    machine: Annotated[
        str | None, typer.Option(help="What it is called and costs: label=H200,cloud=…,instance=…,usd_per_hour=7.9")
    ] = None,
) -> None:
    """Run a job: prepare the models, measure every case, print the tables."""
    from profiler.run.command import Options, execute

    options = Options(
        config=config,
        device=device,
        output=output,
        only=tuple(only or ()),
        quick=quick,
        dry_run=dry_run,
        resume=resume,
        retry=retry,
        strict=strict,
        profile=profile,
        machine=machine,
    )
    raise typer.Exit(execute(options, _console()))


@app.command()
def build(
    engine: Annotated[str, typer.Option(help="trt (on the GPU that it is for) or trt-rtx (anywhere, with --target)")],
    model: Annotated[
        list[str], typer.Option(help="A canonical network, or the path of an .onnx file; may be repeated")
    ],
    batch: Annotated[str, typer.Option(help="Sizes and ranges, an engine each: 1,16,1:8:32 (a range is min:opt:max)")],
    precision: Annotated[
        list[str] | None, typer.Option(help="fp32, tf32, fp16, bf16 or int8; may be repeated; none for an .onnx file")
    ] = None,
    target: Annotated[
        str | None, typer.Option(help="trt-rtx: compute capabilities to build for, such as sm89 or sm89,sm120, or all")
    ] = None,
    export: Annotated[Path | None, typer.Option(help="Copy the engine to this file too")] = None,
    rebuild: Annotated[bool, typer.Option("--rebuild", help="Build even what the engine cache has")] = False,
    optimization_level: Annotated[int | None, typer.Option(min=0, max=5, help="The builder's, 0 to 5")] = None,
    workspace_mib: Annotated[int | None, typer.Option(min=1, help="Most scratch memory a layer may use")] = None,
    calibration: Annotated[Path | None, typer.Option(help="int8: a folder of .npy files with inputs")] = None,
    timeout: Annotated[float, typer.Option(min=0.1, help="Seconds for each export and each build")] = 900.0,
) -> None:
    """Build TensorRT engines into the cache, ahead of time, without running them."""
    from profiler.build import Options, execute

    options = Options(
        engine=engine,
        models=tuple(model),
        batches=batch,
        precisions=tuple(precision or ()),
        target=target,
        export=export,
        rebuild=rebuild,
        optimization_level=optimization_level,
        workspace_mib=workspace_mib,
        calibration=calibration,
        timeout=timeout,
    )
    raise typer.Exit(execute(options, _console()))


@app.command()
def layers(
    run: Annotated[Path, typer.Argument(help="A run's folder, made with --profile")],
    model: Annotated[str | None, typer.Option(help="Only these, such as resnet18,resnet50")] = None,
    variant: Annotated[str | None, typer.Option(help="Only these, such as eager,ort")] = None,
    pass_: Annotated[str | None, typer.Option("--pass", help="inference or training")] = None,
    precision: Annotated[str | None, typer.Option(help="Only these, such as fp16")] = None,
    batch: Annotated[str | None, typer.Option(help="Only these sizes, such as 1,16")] = None,
    top: Annotated[int | None, typer.Option(min=1, help="The longest so many rows of each table")] = None,
) -> None:
    """Print what each layer took, and the exported nodes with every variant's time side by side."""
    from profiler.layers import Options, execute

    options = Options(run=run, model=model, variant=variant, pass_=pass_, precision=precision, batch=batch, top=top)
    raise typer.Exit(execute(options, _console()))


@app.command()
def report(
    runs: Annotated[list[str], typer.Argument(help="Folders of runs, patterns such as 'results/*', or addresses")],
    format_: Annotated[
        str, typer.Option("--format", help="html (one page that loads nothing), md, or csv (a folder of tables)")
    ] = "html",
    output: Annotated[
        Path | None, typer.Option(help="File or folder; else the run's own folder, for several runs this one")
    ] = None,
    charts: Annotated[str | None, typer.Option(help="Every chart as an image too: svg or png")] = None,
    only: Only = None,
) -> None:
    """Write a report: what to deploy and why, with charts, every table, the environment and the method."""
    from profiler.report.command import Options, execute

    options = Options(runs=runs, format=format_, output=output, charts=charts, only=tuple(only or ()))
    raise typer.Exit(execute(options, _console()))


@app.command()
def recommend(
    runs: Runs,
    model: Annotated[str | None, typer.Option(help="The model to deploy, where the runs hold several")] = None,
    batch: Annotated[str | None, typer.Option(help="Batch sizes to choose from, such as 1,16; all if left out")] = None,
    pass_: Annotated[str, typer.Option("--pass", help="inference or training")] = "inference",
    precision: Annotated[str | None, typer.Option(help="Precisions to choose from, such as fp32,fp16")] = None,
    extra: Annotated[str | None, typer.Option(help="Which training, as ids end: optimizer=sgd, or plain")] = None,
    max_latency_ms: Annotated[
        list[str] | None, typer.Option(help="Maximum latency per call (ms): 2 (the median), p99=2, or both")
    ] = None,
    min_throughput: Annotated[float | None, typer.Option(help="Minimum throughput (items/s)")] = None,
    max_memory_mib: Annotated[float | None, typer.Option(help="Maximum peak memory (MiB)")] = None,
    max_error: Annotated[float | None, typer.Option(help="Maximum rel_l2_error (training: gradient_error)")] = None,
    usd_per_hour: Annotated[
        list[str] | None, typer.Option(help="The machine's price, LABEL=3.5 for one of several; in place of the runs'")
    ] = None,
    objective: Annotated[str, typer.Option(help="latency, throughput, memory, energy or cost")] = "latency",
    format_: Annotated[str, typer.Option("--format", help="text, md or json")] = "text",
    export: Annotated[
        Path | None, typer.Option(help="Write the choice, ready to run, into this folder: model, config.json, run.py")
    ] = None,
) -> None:
    """Say what to deploy, by how much it wins, and why each other candidate loses; exit code 3 if nothing fits."""
    from profiler.recommend.command import execute
    from profiler.recommend.options import Options

    options = Options(
        runs=tuple(runs),
        model=model,
        batch=batch,
        pass_=pass_,
        precision=precision,
        extra=extra,
        max_latency_ms=tuple(max_latency_ms or ()),
        min_throughput=min_throughput,
        max_memory_mib=max_memory_mib,
        max_error=max_error,
        usd_per_hour=tuple(usd_per_hour or ()),
        objective=objective,
        format=format_,
        export=export,
    )
    raise typer.Exit(execute(options, _console()))


@app.command()
def compare(
    runs: Runs,
    by: Annotated[
        str | None, typer.Option(help="What the sides are: run, machine, driver, torch_version or another text column")
    ] = None,
    base: Annotated[str | None, typer.Option(help="The side that the others are compared with; else the first")] = None,
    best: Annotated[bool, typer.Option("--best", help="Of each side the fastest variant, whatever its name")] = False,
    only: Only = None,
    reference: Annotated[
        list[str] | None, typer.Option(help="Published figures to compare with, such as cnn-benchmarks")
    ] = None,
    fail_on_regression: Annotated[
        str | None, typer.Option(help="Exit with 1 if a cell is slower by more than this, such as 5%")
    ] = None,
    format_: Annotated[str, typer.Option("--format", help="text, md, csv or json")] = "text",
    output: OutputFile = None,
    top: Annotated[int, typer.Option(min=1, help="Rows of each table in text and md: those that changed most")] = 40,
) -> None:
    """Compare runs, machines or versions: ratios with intervals, verdicts, and what differs between them."""
    from profiler.compare.command import Options, execute

    options = Options(
        runs=tuple(runs),
        by=by,
        base=base,
        best=best,
        only=tuple(only or ()),
        references=tuple(reference or ()),
        fail_on_regression=fail_on_regression,
        format=format_,
        output=output,
        top=top,
    )
    raise typer.Exit(execute(options, _console()))


@app.command()
def query(
    runs: Annotated[list[str], typer.Argument(help="Folders of runs, patterns or addresses, and last the query")],
    format_: Annotated[str, typer.Option("--format", help="text, md, csv, html, json or parquet")] = "text",
    output: OutputFile = None,
    rows: Annotated[int, typer.Option(min=1, help="Most rows on the terminal")] = 200,
) -> None:
    """Query the tables results, samples, layers and environments of runs by SQL.

    For example: query 'results/*' "select model, variant, min(latency_ms) from results group by model, variant"
    """
    from profiler.query import Options, execute

    *addresses, sql = runs
    options = Options(runs=tuple(addresses), sql=sql, format=format_, output=output, rows=rows)
    raise typer.Exit(execute(options, _console()))


@app.command()
def engines(device: ListedDevice = "auto") -> None:
    """List every engine and preset: what it can do here, and what is missing."""
    from profiler.listings import Options, execute

    raise typer.Exit(execute(Options(subject="engines", device=device), _console()))


@app.command()
def models() -> None:
    """List the canonical networks."""
    from profiler.listings import Options, execute

    raise typer.Exit(execute(Options(subject="models"), _console()))


@app.command()
def suites(device: ListedDevice = "auto") -> None:
    """List the published benchmarks that ship as jobs: what each measures, and how long it takes here."""
    from profiler.listings import Options, execute

    raise typer.Exit(execute(Options(subject="suites", device=device), _console()))


@app.command()
def published(
    runs: Annotated[list[str], typer.Argument(help="Folders of finished runs, of one or several machines")],
    study: Annotated[str, typer.Option(help="cnn-benchmarks, cloud-gpus, convnet-benchmarks or gpu-study")],
    into: Annotated[Path | None, typer.Option(help="Folder for the tables; without it they are only printed")] = None,
) -> None:
    """Print finished runs beside a published benchmark's figures, and who is how many times faster."""
    from profiler.published.command import Options, execute

    options = Options(runs=tuple(runs), study=study, into=into)
    raise typer.Exit(execute(options, _console()))


@app.command()
def environment() -> None:
    """Print what a run would record of this machine, as JSON."""
    from profiler.listings import Options, execute

    raise typer.Exit(execute(Options(subject="environment"), _console()))


def main() -> NoReturn:
    """The entry point; see the module's docstring for exit codes."""
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        app(prog_name="python -m profiler", standalone_mode=True)
    except KeyboardInterrupt:
        sys.exit(130)
    except Exception as error:
        from profiler.errors import ConfigError

        if isinstance(error, ConfigError):
            print(error, file=sys.stderr)
            sys.exit(2)
        traceback.print_exc()
        sys.exit(70)
    sys.exit(0)


def _console() -> Console:
    from rich.console import Console

    console = Console()
    # Where nobody looks, 80 columns would cut the tables.
    return console if console.is_terminal else Console(width=120)


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt
