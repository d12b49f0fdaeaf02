"""A process goes on where its output goes away: a pipe's reader that leaves, a full disk, ASCII."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow
ROOT = Path(__file__).resolve().parents[3]
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
