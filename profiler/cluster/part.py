"""Measure a part of a job on a node: the program itself runs it there, and its rows are sent as they are journalled."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from exporters.whole_file import write_whole
from profiler.job.mistakes import to_yaml
from profiler.machine import own_cores
from profiler.nvml import visible_gpus
from profiler.processes.process import end_with_parent
from profiler.results.run_folder import moved

JOURNAL, TRIES, MODELS, ENVIRONMENT = "journal.jsonl", "largest_batch.jsonl", "models.json", "environment.json"
NODE, ENDED = "node", "ended"
_POLL_SECONDS = 0.3
_SAID = 2000
"""Last characters of what the program printed."""
_SET_BY_RAY = "OMP_NUM_THREADS"
"""Ray gives each task one thread."""


@dataclass(frozen=True)
class Part:
    """A part of a job as a node gets it.

    `job` is its bench.yaml. Its paths below `folder` are in the task's working directory, to which that has travelled;
    None if nothing has. `files` are those that the run has already, by name; `words` are further options.
    """

    job: dict[str, Any]
    folder: Path | None
    files: dict[str, str]
    words: tuple[str, ...]


def measure(part: Part) -> Iterator[tuple[str, str]]:
    """Run a part, and say what a file of its run folder has: of JOURNAL and TRIES each new line, of others all.

    NODE comes first: as JSON the host, the card's UUID, the cores that are its own, and the profiler's sources. ENDED
    comes last: the exit code, a line break, and the end of what the program printed.
    """

    def here(text: str) -> str:
        """Name files of the job's folder by where they are for who started the run."""
        return text.replace(str(Path.cwd()), str(part.folder)) if part.folder else text

    cards = visible_gpus() if part.job["device"] == "cuda" else []
    uuid = cards[0].uuid if cards else None
    cores = own_cores(uuid)
    yield NODE, json.dumps({"host": socket.gethostname(), "gpu": uuid, "cores": cores, "sources": sources()})
    with tempfile.TemporaryDirectory(prefix="profiler-part-", ignore_cleanup_errors=True) as temporary:
        folder, printed = Path(temporary, "part"), Path(temporary, "printed")
        folder.mkdir()
        files = {JOURNAL: "", TRIES: "", **part.files}
        job = moved(part.job, part.folder, Path.cwd()) if part.folder else part.job
        for name, text in {**files, "bench.yaml": to_yaml(job)}.items():
            write_whole(folder / name, text)
        sent = {name: len(files[name].encode()) for name in (JOURNAL, TRIES)}
        with _program(["--resume", str(folder), "--trust-code", "--no-report", *part.words], cores, printed) as program:
            is_over = False
            while not is_over:
                is_over = program.poll() is not None
                for name, at in sent.items():
                    new = _whole_lines(folder / name, at)
                    sent[name] += len(new)
                    yield from ((name, here(line)) for line in new.decode(errors="replace").splitlines())
                time.sleep(_POLL_SECONDS)
        for file in (folder / MODELS, folder / ENVIRONMENT, *(folder / "logs").glob("*.log")):
            if file.exists():
                yield str(file.relative_to(folder)), here(file.read_text(errors="replace"))
        yield ENDED, here(f"{program.returncode}\n{printed.read_text(errors='replace')[-_SAID:]}")


@functools.cache
def sources() -> str:
    """Digest the profiler's own sources, which should be the same on every node."""
    root, digest = Path(__file__).parents[2], hashlib.sha256()
    for package in ("engines", "exporters", "profiler"):
        for file in sorted((root / package).rglob("*.py")):
            digest.update(file.read_bytes())
    return digest.hexdigest()[:12]


def _whole_lines(file: Path, at: int) -> bytes:
    with file.open("rb") as opened:
        opened.seek(at)
        text = opened.read()
    return text[: text.rfind(b"\n") + 1]


@contextlib.contextmanager
def _program(words: Sequence[str], cores: Sequence[int], printed: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Start the program on these cores; it ends with this process, and where the task is cancelled."""

    def begin() -> None:
        end_with_parent()
        os.sched_setaffinity(0, cores)

    command, variables = [sys.executable, "-m", "profiler", *words], {**os.environ}
    variables.pop(_SET_BY_RAY, None)
    with printed.open("wb") as file:
        program = subprocess.Popen(command, env=variables, stdout=file, stderr=file, preexec_fn=begin)
    try:
        yield program
    finally:
        program.kill()
        program.wait()
