"""Measure a part of a job on a node: the program itself runs it there, and its rows are sent as they are journalled."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from profiler import nvml
from profiler.processes.process import end_with_parent
from profiler.results.run_folder import moved

JOURNAL, TRIES, MODELS, ENVIRONMENT = "journal.jsonl", "largest_batch.jsonl", "models.json", "environment.json"
_POLL_SECONDS = 0.3
_ENDING_SECONDS = 20.0
_SAID = 2000
"""Last characters of what the program printed, of a part that could not run."""
_SET_BY_RAY = ("OMP_NUM_THREADS",)
"""Ray gives each task one thread."""


@dataclass(frozen=True)
class Part:
    """A part of a job as a node gets it.

    `job` is its bench.yaml with paths below `folder`, which has travelled to the task's working directory; `journal`
    has the lines that are there already, and `words` further options of the command.
    """

    job: dict[str, Any]
    folder: Path
    journal: tuple[str, ...]
    words: tuple[str, ...]


@dataclass(frozen=True)
class Node:
    """Where a part runs: the host, the card's UUID, the cores that it has for itself, and the profiler's sources."""

    host: str
    gpu: str | None
    cores: tuple[int, ...]
    sources: str


@dataclass(frozen=True)
class Said:
    """A text in a file of the part's run folder: a new line of a journal, or all of another file."""

    file: str
    text: str

    def data(self) -> dict[str, Any]:
        """Return the file's JSON object."""
        return dict(json.loads(self.text))


@dataclass(frozen=True)
class Ended:
    """How the program ended, and the last of what it printed."""

    code: int
    printed: str


def measure(part: Part) -> Iterator[Node | Said | Ended]:
    """Run a part and say where, then what it measures, and how that ended. The program ends with this process."""
    node = here()
    yield node
    with tempfile.TemporaryDirectory(prefix="profiler-part-") as temporary:
        folder, log = Path(temporary, "part"), Path(temporary, "printed")
        folder.mkdir()
        (folder / "bench.yaml").write_text(json.dumps(moved(part.job, part.folder, Path.cwd())))
        (folder / JOURNAL).write_text("".join(f"{line}\n" for line in part.journal))
        sent = {JOURNAL: (folder / JOURNAL).stat().st_size, TRIES: 0}
        with _program(["--resume", str(folder), "--trust-code", *part.words], node.cores, log) as program:
            is_over = False
            while not is_over:
                is_over = program.poll() is not None
                for name, at in sent.items():
                    new = _whole_lines(folder / name, at)
                    sent[name] += len(new)
                    yield from (Said(name, line) for line in new.decode(errors="replace").splitlines())
                time.sleep(_POLL_SECONDS)
        logs = [file for file in (folder / "logs").glob("*") if file.is_file()]
        for file in (*(folder / name for name in (MODELS, ENVIRONMENT)), *logs):
            if file.exists():
                yield Said(str(file.relative_to(folder)), file.read_text(errors="replace"))
        yield Ended(program.returncode, log.read_text(errors="replace")[-_SAID:])


def here() -> Node:
    """Describe this process's node, which has one card at most."""
    cards = nvml.visible_gpus()
    uuid = cards[0].uuid if cards else None
    return Node(socket.gethostname(), uuid, tuple(own_cores(uuid)), sources())


def own_cores(uuid: str | None) -> list[int]:
    """Share the cores next to a card among the cards that they are next to; without a card all are its own."""
    usable = os.sched_getaffinity(0)
    near = {card: (cores & usable) or usable for card, cores in nvml.near_cores().items()}
    if uuid is None or uuid not in near:
        return sorted(usable)
    beside = sorted(card for card, cores in near.items() if cores & near[uuid])
    # The second threads of cores are numbered after all first ones: every n-th one leaves most to one card.
    return sorted(near[uuid])[beside.index(uuid) :: len(beside)]


@functools.cache
def sources() -> str:
    """Digest the profiler's own sources, which should be the same on every node."""
    root, digest = Path(__file__).parents[2], hashlib.sha256()
    for package in ("engines", "exporters", "profiler"):
        for file in sorted((root / package).rglob("*.py")):
            digest.update(file.read_bytes())
    return digest.hexdigest()[:12]


def _whole_lines(file: Path, at: int) -> bytes:
    if not file.exists():
        return b""
    with file.open("rb") as opened:
        opened.seek(at)
        text = opened.read()
    return text[: text.rfind(b"\n") + 1]


@contextlib.contextmanager
def _program(words: Sequence[str], cores: Sequence[int], log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Start the program on these cores; interrupt it where the task is cancelled."""

    def begin() -> None:
        end_with_parent()
        os.sched_setaffinity(0, cores)

    variables: dict[str, Any] = {name: value for name, value in os.environ.items() if name not in _SET_BY_RAY}
    command = [sys.executable, "-m", "profiler", *words]
    with log.open("wb") as printed:
        program = subprocess.Popen(command, env=variables, stdout=printed, stderr=printed, preexec_fn=begin)
    try:
        yield program
    finally:
        if program.poll() is None:
            program.send_signal(signal.SIGINT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                program.wait(_ENDING_SECONDS)
            program.kill()
        program.wait()
