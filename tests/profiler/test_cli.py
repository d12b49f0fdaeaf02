"""The command line gives a command every option, and starts and ends without tracebacks."""

from __future__ import annotations

import contextlib
import errno
import io
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from rich.text import Text
from typer.testing import CliRunner

from profiler import cli
from profiler.compare import command
from profiler.errors import ConfigError
from profiler.job.config import config_of
from profiler.options import COMMANDS, Compare, RunSuite
from profiler.results.reading import read_runs
from profiler.results.run_folder import RunFolder, writing
from profiler.run.model_job import _FLAGS
from profiler.tables.writers import console

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def given(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Record the arguments of `compare`, whose exit code is 3."""
    options: list[Any] = []
    monkeypatch.setattr(command, "execute", lambda given, console: options.append(given) or 3)
    return options


def test_what_is_given_arrives_under_its_name(given):
    words = ["compare", "one", "two", "--only", "model=a", "--only", "pass=b", "--format", "md"]
    assert CliRunner().invoke(cli.app, [*words, "--top", "3"]).exit_code == 3
    assert CliRunner().invoke(cli.app, ["compare", "one"]).exit_code == 3
    options, plain = given
    assert (list(plain.runs), list(plain.only), plain.format, plain.top) == (["one"], [], "text", 40)
    assert options == Compare(runs=["one", "two"], only=["model=a", "pass=b"], format="md", top=3)


def test_every_class_variable_of_the_options_has_a_type_since_python_3_10_reads_no_other():
    hints = [hint for options, _ in COMMANDS.values() for hint in options.__annotations__.values()]
    assert "ClassVar" not in hints and any(hint.startswith("ClassVar[") for hint in hints)


def test_the_help_of_a_suite_lists_no_option_that_it_refuses():
    listed = CliRunner().invoke(cli.app, ["suites", "run", "--help"]).stdout
    assert "--only" in listed and {name for name, _ in _FLAGS.values()} <= {*RunSuite.refused}
    for name in RunSuite.refused:
        flag = {"pass_": "--pass", "inputs": "--input"}.get(name, f"--{name.replace('_', '-')}")
        value = {"retry": (), "trust_code": (), "max_accuracy_loss": ("1%",)}.get(name, ("1",))
        assert f" {flag} " not in listed
        with pytest.raises(ConfigError):
            CliRunner().invoke(cli.app, ["suites", "run", "gpu-study", flag, *value], catch_exceptions=False)


@pytest.mark.parametrize(("columns", "width"), [("200", 200), ("60", 60), ("", 120)])
def test_a_pipe_is_as_wide_as_columns_says(monkeypatch, columns, width):
    monkeypatch.setenv("COLUMNS", columns)
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", io.StringIO())
        assert console().width == width


def test_a_misspelt_command_is_the_mistake_and_not_what_follows_it():
    with pytest.raises(ConfigError, match="neither a file nor a model nor a command; did you mean 'recommend'"):
        CliRunner().invoke(cli.app, ["recomend", "results/x"], catch_exceptions=False)


LONG = "x" * 400
UNUSABLE = {"pipe": "pipe or a device", "loop": "symbolic links", "/dev/zero": "pipe or a device", LONG: "too long"}
EXPORT = ("recommend", str(ROOT / "tests" / "golden" / "cpu"), "--model", "alexnet", "--export")
READERS = [
    *(("report",), ("compare",), ("recommend",), ("layers",), ("suites", "show"), ("suites", "submit")),
    ("--resume",),
    EXPORT,
]


@pytest.fixture
def unusable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    os.mkfifo("pipe")
    os.mkfifo("pipe.onnx")
    Path("loop").symlink_to("loop")
    Path("loop.onnx").symlink_to("loop.onnx")


@pytest.mark.parametrize("name", [*UNUSABLE, "pipe.onnx", "loop.onnx", f"{LONG}.onnx", f"{'x/' * 3000}"])
def test_a_name_that_is_no_regular_file_is_refused_at_once(unusable, name):
    says = UNUSABLE.get(name.removesuffix(".onnx"), "too long")
    with pytest.raises(ConfigError, match=says):
        CliRunner().invoke(cli.app, [name, "--dry-run"], catch_exceptions=False)
    with pytest.raises(ConfigError, match=f"{says}.*"):
        config_of({"models": [{"name": "m", "onnx": name, "weights": name}], "engines": ["ort"]})


@pytest.mark.parametrize("name", ["loop", LONG, f"{'x/' * 3000}"])
@pytest.mark.parametrize("words", READERS)
def test_a_folder_that_cannot_be_looked_up_is_one_sentence(unusable, words, name):
    with pytest.raises(ConfigError, match=r"symbolic links|too long") as caught:
        CliRunner().invoke(cli.app, [*words, name], catch_exceptions=False)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("file", ["environment.json", "bench.yaml", "journal.jsonl", "models.json", "results.parquet"])
def test_a_pipe_in_a_runs_folder_is_not_waited_for(tmp_path, file):
    run = Path(shutil.copytree(ROOT / "tests" / "golden" / "cpu", tmp_path / "run"))
    (run / file).unlink(missing_ok=True)
    os.mkfifo(run / file)
    with contextlib.suppress(ConfigError):
        read_runs([run])
        RunFolder.resume(run)
        RunFolder(run).read_models()
        RunFolder(run).results()


def test_what_a_terminal_would_act_on_is_escaped_in_errors_and_output(capsys, monkeypatch):
    name = "\x1b[31mred\x1b]0;t\x07"
    monkeypatch.setattr(sys, "argv", ["profiler", "report", name])
    handlers = [signal.getsignal(each) for each in (*cli.SIGNALS, signal.SIGALRM)]
    with pytest.raises(SystemExit, match="2"):
        cli.main()
    for number, handler in zip((*cli.SIGNALS, signal.SIGALRM), handlers, strict=True):
        signal.signal(number, handler)
    console().print(Text(f"Results: {name}"))
    said = capsys.readouterr()
    assert r"\x1b[31mred\x1b]0;t\x07: no run's folder" in said.err
    assert r"Results: \x1b[31mred" in said.out
    assert "\x1b" not in said.err + said.out


class Panic(BaseException):
    """As Polars' Rust raises it."""


@pytest.mark.parametrize("kind", [RuntimeError, OSError, Panic])
def test_a_limit_of_processes_is_one_sentence(kind, tmp_path, monkeypatch, capsys):
    text = "can't start new thread" if kind is RuntimeError else os.strerror(errno.EAGAIN)

    def reach(**given: Any) -> None:
        raise kind(text)

    monkeypatch.setattr(cli, "app", reach)
    monkeypatch.setattr(signal, "signal", lambda *given: None)  # The tests keep their handlers.
    with pytest.raises(SystemExit, match="2"):
        cli.main()
    assert capsys.readouterr().err.endswith("(ulimit -u), then try again\n")
    with pytest.raises(ConfigError, match=rf"ulimit -u\), then go on with: .* --resume {tmp_path}"), writing(tmp_path):
        raise kind(text)


class Dropping:
    def __del__(self):
        signal.raise_signal(signal.SIGTERM)


def in_what_rust_calls() -> None:
    begin = pl.List.__init__

    def interrupted(type_: pl.List, inner: Any) -> None:
        signal.raise_signal(signal.SIGTERM)
        begin(type_, inner)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pl.List, "__init__", interrupted)
        pl.LazyFrame({"a": pl.Series([[1]])}).collect_schema()


@pytest.mark.parametrize("drop", [Dropping, in_what_rust_calls])
def test_an_interrupt_comes_again_where_it_would_be_dropped(drop, capfd):
    handlers = [signal.getsignal(each) for each in (*cli.SIGNALS, signal.SIGALRM)]
    try:
        with pytest.raises(KeyboardInterrupt), cli._interruptible():
            drop()
            time.sleep(600)
    finally:
        for number, handler in zip((*cli.SIGNALS, signal.SIGALRM), handlers, strict=True):
            signal.signal(number, handler)
    assert capfd.readouterr().err == ""


def environment(**more: str) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT), **more}


ENDED = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # As without nohup.
from profiler import __main__ as program
from profiler.commands import query
sys.argv[1:] = ["query", "nothing", "select 1"]
query.execute = lambda *_: exec("signal.raise_signal(signal.{0})", {{"signal": signal}})
if {1}:
    program._check_names = lambda: signal.raise_signal(signal.{0})
program.start()
"""


@pytest.mark.slow
@pytest.mark.parametrize(("name", "is_early"), [("SIGINT", True), ("SIGTERM", True), ("SIGHUP", False)])
def test_every_signal_ends_a_command_with_130(tmp_path, name, is_early):
    (tmp_path / "ended.py").write_text(ENDED.format(name, is_early))
    # By -m, as users start it: only so does Python end by SIGINT after a plain KeyboardInterrupt.
    done = subprocess.run([sys.executable, "-m", "ended"], cwd=tmp_path, env=environment(), capture_output=True)
    assert (done.returncode, b"Traceback" in done.stderr) == (130, False), done.stderr


@pytest.mark.slow
def test_a_signal_while_a_command_exits_changes_nothing():
    code = (
        "import atexit, signal, sys; from profiler import cli; sys.argv[1:] = ['query', 'nothing', 'select 1']\n"
        "cli._interrupt_soon(); signal.setitimer(signal.ITIMER_REAL, 0); ends = (*cli.SIGNALS, signal.SIGALRM)\n"
        "atexit.register(lambda: [signal.raise_signal(each) for each in ends]); cli.main()"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr and "nothing" in done.stderr


@pytest.mark.slow
def test_output_that_nobody_reads_is_dropped():
    """The exit code is what it would have been; what a locale lacks is its escape."""
    command = [sys.executable, "-m", "profiler", "models", "--markup-×"]
    reader, writer = os.pipe()
    os.close(reader)
    locale = environment(PYTHONIOENCODING="ascii", COLUMNS="200")
    with os.fdopen(writer) as left:
        ended = [
            subprocess.run(words, env=locale, text=True, check=False, stdout=left, stderr=subprocess.PIPE)
            for words in (command[:-1], command)
        ]
    assert [(each.returncode, "Traceback" in each.stderr) for each in ended] == [(0, False), (2, False)]
    assert "--markup-\\xd7" in ended[1].stderr


@pytest.mark.slow
def test_control_c_during_imports_is_silent(tmp_path):
    (tmp_path / "typer.py").write_text("import os, signal\nos.kill(os.getpid(), signal.SIGINT)\n")
    ended = subprocess.run(
        [sys.executable, "-m", "profiler", "models"],
        env=environment(PYTHONPATH=os.pathsep.join([str(tmp_path), str(ROOT)])),
        capture_output=True,
        text=True,
        check=False,
        # A shell's background job ignores it.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (130, "", "")
