"""The program starts and ends without tracebacks, whoever reads what it prints."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow
ROOT = Path(__file__).resolve().parents[2]


def environment(**more: str) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT), **more}


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
