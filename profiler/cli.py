"""Parse the command line and call the command that it names.

Exit codes: 0 done; 1 no row is ok, a regression, or with --strict a failed case; 2 an invalid config, file or argument;
3 no candidate meets the limits; 4 no answer yet: a possible regression, or no recommendation; 70 a fault of the
profiler; 130 interrupted.
"""

from __future__ import annotations

import contextlib
import copy
import inspect
import signal
import sys
import traceback
from collections.abc import Callable, Iterator
from dataclasses import fields
from importlib import import_module
from types import FrameType
from typing import Annotated, Any, NoReturn, get_type_hints

import typer
from typer.core import TyperGroup
from typer.models import OptionInfo

from exporters.errors import printable
from profiler.bundled import job_file
from profiler.errors import PROGRAM, ConfigError, naming_limits
from profiler.options import COMMANDS, Build, Doctor, Explain, Run, RunSuite, Suites

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""Signals after which a run still writes its tables."""
_LOADING = (Run, RunSuite, Build, Explain, Doctor)
"""Commands that load torch and the runtimes."""


class _DefaultsToRun(TyperGroup):
    """Takes `python -m profiler WORD` as `python -m profiler run WORD` if the word is a job or a model."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if args and args[0] not in self.commands and args[0] not in ("--help", "-h", "--version"):
            if not args[0].startswith("-"):
                # Refuse a misspelt command here: typer would blame the next word.
                job_file(args[0])
            args = ["run", *args]
        return super().parse_args(ctx, args)


app = typer.Typer(
    cls=_DefaultsToRun,
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _command(options: type, function: str) -> Callable[..., None]:
    """Return a function for typer, whose parameters are the fields of the command's options."""

    def command(**arguments: Any) -> None:
        # A command is imported only here: `--help` must answer at once.
        if options in _LOADING and sys.stderr.isatty():
            print("Loading libraries, which takes some seconds", file=sys.stderr)
        module, _, name = function.partition(":")
        execute = getattr(import_module(module), name)
        from profiler.tables.writers import console

        try:
            with _interruptible():
                code = execute(options(**arguments), console())
        except KeyboardInterrupt:  # A run that has a folder catches this itself, and prints more.
            print("Interrupted", file=sys.stderr)
            raise typer.Exit(130) from None
        raise typer.Exit(code)

    hints, signature = get_type_hints(options), inspect.signature(options)
    declared = {field.name: copy.copy(field.metadata["typer"]) for field in fields(options)}
    for name, option in declared.items():
        if isinstance(option, OptionInfo) and not option.param_decls:  # Typer would add --no-NAME to a flag.
            option.param_decls = (f"--{name.strip('_').replace('_', '-')}",)
        # Hidden, but parsed: the command says what to use instead.
        option.hidden = name in getattr(options, "refused", ())
    types = {name: Annotated[hints[name], option] for name, option in declared.items()}
    parameters = [parameter.replace(annotation=types[name]) for name, parameter in signature.parameters.items()]
    command.__signature__ = signature.replace(parameters=parameters, return_annotation=None)  # type: ignore[attr-defined]
    command.__doc__ = options.__doc__
    return command


def _print_version(requested: bool) -> None:
    if requested:
        from exporters.packages import installed_version

        print(f"runtime-profiler {installed_version('runtime-profiler') or 'of a copy that is not installed'}")
        raise typer.Exit


@app.callback(
    help="Measures PyTorch and ONNX models in PyTorch, torch.compile, ONNX Runtime, OpenVINO and TensorRT, and "
    "says which to deploy.\n\n"
    f"A model: {PROGRAM} model.onnx\n\nA job: {PROGRAM} bench.yaml\n\nTheir options: {PROGRAM} run --help"
)
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version")
    ] = False,
) -> None:
    """Parse the options that need no command."""


_suites = typer.Typer(invoke_without_command=True, pretty_exceptions_enable=False, add_completion=False)
app.add_typer(_suites, name="suites", help=Suites.__doc__)


@_suites.callback()
def _list_suites(ctx: typer.Context) -> None:
    """List the suites unless one of their commands is named."""
    if ctx.invoked_subcommand is None:
        _command(*COMMANDS["suites"])()


for _name, _row in COMMANDS.items():
    _group, _, _last = _name.rpartition(" ")
    if _name != "suites":
        (_suites if _group else app).command(_last)(_command(*_row))


def main() -> NoReturn:
    """Run the command that the arguments name, and exit with its code."""
    try:
        with naming_limits("try again"):
            app(prog_name=PROGRAM, standalone_mode=True)
    except KeyboardInterrupt:
        sys.exit(130)
    except ConfigError as error:
        print(printable(str(error)), file=sys.stderr)
        sys.exit(2)
    except Exception:
        traceback.print_exc()
        sys.exit(70)
    finally:  # Code that runs as Python exits would answer a signal by a traceback.
        for number in (*SIGNALS, signal.SIGALRM):
            signal.signal(number, signal.SIG_IGN)
    sys.exit(0)


@contextlib.contextmanager
def _interruptible() -> Iterator[None]:
    """Raise Interrupted at Ctrl-C, SIGTERM and a closed terminal, except for signals that the caller ignores."""
    for number in SIGNALS:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _interrupt)
    before, sys.unraisablehook = sys.unraisablehook, _interrupt_again
    try:
        yield
    finally:
        sys.unraisablehook = before


class Interrupted(KeyboardInterrupt):
    """An interrupt. After a plain KeyboardInterrupt inside exec() Python ends by SIGINT, even if it was caught."""


def _interrupt_again(unraisable: Any) -> None:
    """Repeat an interrupt that Python dropped where it cannot raise, as in a destructor."""
    if issubclass(unraisable.exc_type, KeyboardInterrupt):
        _interrupt_soon()
    else:
        sys.__unraisablehook__(unraisable)


def _interrupt_soon() -> None:
    signal.signal(signal.SIGALRM, _interrupt)
    signal.setitimer(signal.ITIMER_REAL, 0.05)


def _interrupt(number: int, frame: FrameType | None) -> None:
    if number == signal.SIGHUP:  # The shell and the kernel each send one: the second would cut off the tables.
        signal.signal(number, signal.SIG_IGN)
    while frame is not None:
        if frame.f_globals.get("__name__", "").partition(".")[0] == "polars":
            return _interrupt_soon()  # Its Rust would panic at the exception and lose the interrupt.
        frame = frame.f_back
    raise Interrupted(number)
