"""Measure a part of a job on a node: run the program there, and send its rows as it writes them."""

from __future__ import annotations

import functools
import hashlib
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from exporters.named_files import whole_lines, write_whole
from profiler.job.mistakes import to_yaml
from profiler.machine.nvml import visible_gpus
from profiler.machine.target import cores_of_gpu
from profiler.processes.forkserver import own_folder
from profiler.processes.process import end_with_parent
from profiler.results.run_folder import moved

JOURNAL, TRIES, MODELS, ENVIRONMENT = "journal.jsonl", "largest_batch.jsonl", "models.json", "environment.json"
ENDED = "ended"
_POLL_SECONDS = 0.3
_MOST_OUTPUT = 2000
"""Characters sent from the end of the program's output."""
_SET_BY_RAY = "OMP_NUM_THREADS"
"""Ray gives each task one thread."""


@dataclass(frozen=True)
class Part:
    """A part of a job for a node: the whole job, and the `words` on the command line that select the part.

    Ray copies `folder`, if any, to the task's working directory, and paths below it change to that. `files` has the
    texts of the files of `run`, by name. `sources` is the digest of the sender's sources.
    """

    job: dict[str, Any]
    folder: Path | None
    run: str
    files: dict[str, str]
    words: tuple[str, ...]
    sources: str


def measure(part: Part) -> Iterator[tuple[str, str]]:
    """Run a part; yield names and texts of files in its run folder, from JOURNAL and TRIES line by line.

    ENDED comes last: the exit code, a line break, and the end of the program's output.
    """
    if part.sources != sources():
        differs = f"{socket.gethostname()} has other sources of the profiler ({sources()}, not {part.sources})"
        yield ENDED, f"2\n--ray: {differs}; install the same version on every node"
        return
    cards = visible_gpus() if part.job["device"] == "cuda" else []
    cores = cores_of_gpu(cards[0].uuid if cards else None)

    def begin() -> None:
        end_with_parent()
        os.sched_setaffinity(0, cores)

    with own_folder() as temporary:
        folder, printed = temporary / "part", temporary / "printed"
        folder.mkdir()

        def translated(text: str) -> str:
            """Replace this node's paths by the driver's."""
            text = text.replace(str(folder), part.run)
            return text.replace(str(Path.cwd()), str(part.folder)) if part.folder else text

        job = moved(part.job, part.folder, Path.cwd()) if part.folder else part.job
        for name, text in {**part.files, "bench.yaml": to_yaml(job)}.items():
            write_whole(folder / name, text)
        command = [sys.executable, "-m", "profiler", "--resume", str(folder), "--trust-code", "--no-report"]
        variables = {name: value for name, value in os.environ.items() if name != _SET_BY_RAY}
        with printed.open("wb") as out:
            program = subprocess.Popen([*command, *part.words], env=variables, stdout=out, stderr=out, preexec_fn=begin)
        try:
            sent = {name: len(part.files[name].encode()) for name in (JOURNAL, TRIES)}
            is_over, texts = False, dict[str, str]()
            while not is_over:
                is_over = program.poll() is not None
                # Models and environment precede the rows that refer to them.
                for file in (folder / MODELS, folder / ENVIRONMENT):
                    if file.exists() and (text := translated(file.read_text(errors="replace"))) != texts.get(file.name):
                        texts[file.name] = text
                        yield file.name, text
                for name, at in sent.items():
                    new = whole_lines(folder / name, at)
                    sent[name] += len(new)
                    yield from ((name, translated(line)) for line in new.decode(errors="replace").splitlines())
                time.sleep(_POLL_SECONDS)
        finally:
            program.kill()
            program.wait()
        for file in (folder / "logs").glob("*.log"):
            yield str(file.relative_to(folder)), translated(file.read_text(errors="replace"))
        yield ENDED, translated(f"{program.returncode}\n{printed.read_text(errors='replace')[-_MOST_OUTPUT:]}")


@functools.cache
def sources() -> str:
    """Digest the profiler's sources, which must be the same on every node."""
    root, digest = Path(__file__).parents[2], hashlib.sha256()
    for package in ("engines", "exporters", "profiler"):
        for file in sorted((root / package).rglob("*.py")):
            digest.update(file.read_bytes())
    return digest.hexdigest()[:12]
