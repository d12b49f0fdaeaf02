"""What enters: the command line. What leaves: a run or a listing, and the exit code.

0 done; 1 no row is ok, or with --strict a case failed; 2 a config, file or argument that cannot be used; 70 a fault of
the profiler's own; 130 interrupted.
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
    only: Annotated[
        list[str] | None, typer.Option(help="Conditions: model=resnet50,precision=fp16; may be repeated")
    ] = None,
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
    from profiler.job import Request, execute

    signal.signal(signal.SIGTERM, _interrupt)
    request = Request(
        config, device, output, tuple(only or ()), quick, dry_run, resume, retry, strict, profile, machine
    )  # fmt: skip
    raise typer.Exit(execute(request, _console()))


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
    from profiler.build import execute
    from profiler.build_order import BuildOrder

    signal.signal(signal.SIGTERM, _interrupt)
    order = BuildOrder(
        engine, tuple(model), tuple(precision or ()), batch, target, export, rebuild, optimization_level, workspace_mib,
        calibration, timeout,
    )  # fmt: skip
    raise typer.Exit(execute(order, _console()))


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
    from profiler.layers import print_layers

    given = {"model": model, "variant": variant, "pass": pass_, "precision": precision, "batch_size": batch}
    print_layers(_console(), run, {key: text.split(",") if text else [] for key, text in given.items()}, top)


@app.command()
def engines(device: Annotated[str, typer.Option(help="auto, cpu or cuda")] = "auto") -> None:
    """List every engine and preset: what it can do here, and what is missing."""
    from profiler.listing import engines_table, options_table

    console = _console()
    console.print(engines_table(device))
    console.print(options_table())


@app.command()
def models() -> None:
    """List the canonical networks."""
    from profiler.listing import models_table

    _console().print(models_table())


@app.command()
def suites(device: Annotated[str, typer.Option(help="auto, cpu or cuda")] = "auto") -> None:
    """List the published benchmarks that ship as jobs: what each measures, and how long it takes here."""
    from profiler.suites import suites_table

    _console().print(suites_table(device))


@app.command()
def published(
    runs: Annotated[list[Path], typer.Argument(help="Folders of finished runs, of one or several machines")],
    study: Annotated[str, typer.Option(help="cnn-benchmarks, cloud-gpus, convnet-benchmarks or gpu-study")],
    into: Annotated[Path | None, typer.Option(help="Folder for the tables; without it they are only printed")] = None,
) -> None:
    """Print finished runs beside a published benchmark's figures, and who is how many times faster."""
    from profiler.studies import execute

    execute(runs, study, into, _console())


@app.command()
def environment() -> None:
    """Print what a run would record of this machine, as JSON."""
    from profiler.job import environment_now

    _console().print_json(data=environment_now())


def main() -> NoReturn:
    """The entry point; see the module's docstring for exit codes."""
    try:
        app(prog_name="python -m profiler", standalone_mode=True)
    except KeyboardInterrupt:
        sys.exit(130)
    except Exception as error:
        from profiler.document import ConfigError

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
