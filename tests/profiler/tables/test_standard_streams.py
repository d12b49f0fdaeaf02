"""Output that nobody reads is dropped, and the process goes on; a lost document is an error."""

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
    """Run a process that prints a lot, does what `end` says, and ends with 7."""
    command = [sys.executable, "-c", PRINTS.format(end=end)]
    return subprocess.run(command, env=environment(), text=True, check=False, stderr=subprocess.PIPE, **files)  # type: ignore[call-overload, no-any-return]


@pytest.mark.parametrize("gone", ["full", "left", "closed"])
def test_what_nobody_takes_is_dropped(gone: str) -> None:
    """The exit code is what it would have been."""
    reader, writer = os.pipe()
    os.close(reader)
    with Path("/dev/full").open("w") as full:
        output = {"full": full, "left": writer, "closed": None}[gone]
        ended = printing("", stdout=output, preexec_fn=(lambda: os.close(1)) if gone == "closed" else None)
        lost = printing("check_written()", stdout=full) if gone == "full" else None
    os.close(writer)
    assert (ended.returncode, ended.stderr) == (7, "but this is read\n")
    if lost:
        assert lost.returncode == 1
        assert "ConfigError: standard output: No space left on device" in lost.stderr


def test_a_pipe_that_does_not_wait_gets_everything() -> None:
    """Such a pipe is shared with a program that reads and writes without waiting."""
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    end = "sys.stdout.reconfigure(encoding='ascii'); keep_writing(); print('×', flush=True)"
    with subprocess.Popen([sys.executable, "-c", PRINTS.format(end=end)], env=environment(), stdout=writer) as process:
        os.close(writer)
        with os.fdopen(reader, "rb") as file:
            read = file.read()
        assert process.wait() == 7
    assert read.decode() == f"{'1.2 × faster' * 10_000}\n" * 3 + "\\xd7\n", "what a locale lacks is its escape"


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
