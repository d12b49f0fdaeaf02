"""A run goes on where its output goes away: a pipe's reader that leaves, a full disk, a closed terminal, ASCII."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow
ROOT = Path(__file__).resolve().parents[2]
PRINTS = """
import sys
from profiler.tables.standard_streams import check_written, keep_writing
keep_writing()
for _ in range(3):
    print("1.2 × faster" * 10_000)
    sys.stdout.flush()
print("but this is read", file=sys.stderr)
{end}
sys.exit(7)
"""
JOB = f"""
engines: [eager]
models: [{{name: tiny, factory: "net:make", input: [8]}}]
batch_sizes: {[*range(1, 41)]}
budget: {{seconds: 1, repeats: 0}}
"""
"""What takes longer than a busy machine may take to see that a case has ended."""


def environment(**more: str) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT), **more}


def printing(end: str, **files: object) -> subprocess.CompletedProcess[str]:
    """A process that prints a lot, does what `end` says, and ends with 7."""
    command = [sys.executable, "-c", PRINTS.format(end=end)]
    return subprocess.run(command, env=environment(), text=True, check=False, **files)  # type: ignore[call-overload, no-any-return]


@pytest.mark.parametrize("gone", ["full", "left", "closed"])
def test_what_nobody_takes_is_dropped(gone: str) -> None:
    """With the exit code that the process would have had."""
    reader, writer = os.pipe()
    os.close(reader)
    with open("/dev/full", "w") as full:  # noqa: PTH123
        output = {"full": full, "left": writer, "closed": None}[gone]
        before = (lambda: os.close(1)) if gone == "closed" else None
        ended = printing("", stdout=output, stderr=subprocess.PIPE, preexec_fn=before)
    os.close(writer)
    assert (ended.returncode, ended.stderr) == (7, "but this is read\n")


def test_a_document_that_is_lost_is_no_success() -> None:
    with open("/dev/full", "w") as full:  # noqa: PTH123
        ended = printing("check_written()", stdout=full, stderr=subprocess.PIPE)
    assert "ConfigError: standard output: No space left on device" in ended.stderr
    assert ended.returncode == 1
    ended = printing("check_written()", stderr=subprocess.PIPE, preexec_fn=lambda: os.close(1))
    assert "ConfigError: standard output: it was closed" in ended.stderr
    assert ended.returncode == 1


def test_a_pipe_that_does_not_wait_gets_everything() -> None:
    """As one that is shared with a program that reads and writes without waiting."""
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    command = [sys.executable, "-c", PRINTS.format(end="")]
    with subprocess.Popen(command, env=environment(), stdout=writer, stderr=subprocess.DEVNULL) as process:
        os.close(writer)
        with os.fdopen(reader, "rb") as file:
            read = file.read()
        assert process.wait() == 7
    assert read.decode() == f"{'1.2 × faster' * 10_000}\n" * 3


def test_a_character_that_a_locale_lacks_is_its_escape() -> None:
    ended = printing("keep_writing('ascii'); print('×', flush=True)", stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    assert ended.stdout.endswith("\n\\xd7\n")


def test_control_c_during_imports_is_silent(tmp_path: Path) -> None:
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


def test_a_run_whose_terminal_closes_ends_with_its_tables(tmp_path: Path) -> None:
    """In an ASCII locale, with a reader that left after a line, and with temporary files in a folder whose name is too
    long for sockets; a shell and the kernel send SIGHUP each."""
    (tmp_path / "net.py").write_text("from torch import nn\n\n\ndef make():\n    return nn.Linear(8, 4)\n")
    (tmp_path / "job.yaml").write_text(JOB)
    temporary = tmp_path / ("l" * 100)
    temporary.mkdir()
    locale = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    with subprocess.Popen(
        [sys.executable, "-m", "profiler", "job.yaml"],
        cwd=tmp_path,
        env=environment(**locale, TMPDIR=str(temporary)),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        preexec_fn=lambda: [signal.signal(each, signal.SIG_DFL) for each in (signal.SIGINT, signal.SIGHUP)],
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.readline()
        process.stdout.close()
        while process.poll() is None and not any(b'"ok"' in each.read_bytes() for each in journals(tmp_path)):
            time.sleep(0.05)
        for _ in range(2):
            process.send_signal(signal.SIGHUP)
            time.sleep(0.05)
        errors = process.stderr.read()
        assert (process.wait(), errors) == (130, b"")
    (run,) = (tmp_path / "results").iterdir()
    assert {"results.parquet", "report.html", "tables"} <= {each.name for each in run.iterdir()}
    assert list((run / "tables").iterdir())


def journals(folder: Path) -> list[Path]:
    return list(folder.glob("results/*/journal.jsonl"))
