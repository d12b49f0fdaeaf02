"""Run calls in another Python interpreter, which has other versions of the libraries.

A process there (serve_calls.py) runs them as this one runs its own: isolation, limits and post-mortem are the same.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import pickle
import select
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from engines.catalog import ENGINES, Device
from profiler.processes import trees
from profiler.processes.messages import Outcome, Running
from profiler.processes.pipe import BrokenMessage, Receiver, frame
from profiler.processes.process import Call, Child, end_calls_of, how_ended, while_in
from profiler.processes.temporary import own_folder

_ROOT = Path(__file__).resolve().parents[2]
_PACKAGES = ("engines", "exporters", "profiler")
_LEAST = (3, 11)
_LOOK = """
import platform, sys
if sys.version_info < {least}: sys.exit('OLD ' + platform.python_version())
from profiler.machine import describe_interpreter; describe_interpreter({device!r}, {workers})
"""
"""What another interpreter is asked; an older one could not even read the module that answers."""
_LOOK_SECONDS = 300.0
"""How long importing the libraries may take, as a forkserver's first start."""
_SILENT_SECONDS = 1000.0
"""How long that process may say nothing: three forkservers in a row may each take minutes to start."""
_LEAVE_SECONDS = 20.0
"""How long it may take to end what it runs and to leave."""
_TICK_SECONDS = 0.2
Tick = Callable[[Child | Running], None]
"""Called a few times a second with the process that runs."""


class Unusable(Exception):
    """An interpreter in which no call can run; the message says why, and what mends it."""


@dataclass(frozen=True)
class Interpreter:
    """What another interpreter is: facts as environment.json has them, and what is lacking there to which workers."""

    facts: Mapping[str, str | None]
    lacking: Mapping[str, str]
    """As profiler.machine.describe_interpreter prints it."""


def look_at(python: Path, device: Device, workers: Sequence[str]) -> Interpreter:
    """Ask an interpreter what it has, and have it import what `workers`, such as "eager int8", will.

    Raises Unusable where it can run none at all.
    """
    if python.is_dir():
        raise Unusable(f"{python} is a folder; write the interpreter in it, such as {python}/bin/python")
    if not python.is_file():
        raise Unusable(f"there is no file {python}; paths are relative to the YAML")
    with own_folder() as folder:
        try:
            found = subprocess.run(
                [python, "-c", _LOOK.format(least=_LEAST, device=device, workers=list(workers))],
                env=_environment(folder),
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=_LOOK_SECONDS,
                check=False,
            )
            answer = json.loads((found.stdout.splitlines() or ["0"])[-1])
            last = (found.stderr.strip().splitlines() or ["it printed nothing"])[-1]
        except subprocess.TimeoutExpired:
            answer, last = 0, f"it did not answer within {_LOOK_SECONDS:.0f} s"
        except ValueError:
            answer, last = 0, "it printed something else than was asked"
        except OSError as error:
            answer, last = 0, error.strerror or str(error)
    if last.startswith("OLD "):
        raise Unusable(f"{python} is Python {last[4:]}; {'.'.join(map(str, _LEAST))} or newer is needed")
    if isinstance(answer, str):
        raise Unusable(f"{python} {how_ended(found.returncode)} while importing {answer}: {last[:300]}")
    if not isinstance(answer, dict) or not answer.get("facts"):
        raise Unusable(f"{python} does not work as a Python interpreter: {last[:300]}")
    if lacking := answer["lacking"].get(""):
        raise Unusable(f"{python}: {lacking}")
    return Interpreter({"path": str(python), **answer["facts"]}, answer["lacking"])


class OtherPython:
    """A process in another interpreter, started at once, that runs one call at a time; started again if it has ended.

    Its output, and that of its forkserver, goes into `log`.
    """

    def __init__(self, python: Path, log: Path, folder: Path) -> None:
        """`folder` is emptied by its owner, after this one is closed."""
        self.python, self.log, self._folder = python, log, folder
        self.failed: Outcome | None = None
        """How loading the libraries ended, if not well; where that ended the process, the next call tries again."""
        self._facts: Mapping[str, Any] | None = None
        self._start()

    def _start(self) -> None:
        (source, calls), (results, sink) = os.pipe(), os.pipe()
        self._calls, self._results = os.fdopen(calls, "wb", 0), os.fdopen(results, "rb", 0)
        os.set_blocking(calls, False)
        self._receiver, self._facts, self._heard = Receiver(results), None, time.monotonic()
        self.failed, self._unsent = None, memoryview(b"")
        # What is compiled there is not found here, nor the other way round: build_s would say it was done in no time.
        variables = {engine.compile_cache for engine in ENGINES.values()} & os.environ.keys()
        own = f"python-{hashlib.sha256(str(self.python).encode()).hexdigest()[:8]}"
        caches = {name: str(Path(os.environ[name], own)) for name in variables}
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [self.python, "-m", "profiler.processes.serve_calls", str(source), str(sink)],
                env=_environment(self._folder) | caches,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=(source, sink),
                start_new_session=True,  # Ctrl-C and a closed terminal are this process's.
            )
        os.close(source)
        os.close(sink)

    def ready(self) -> Mapping[str, Any]:
        """Wait until its libraries are loaded; what they say of themselves, nothing where that failed."""
        try:
            while self._facts is None and self.failed is None:
                for message in self._messages():
                    if isinstance(message, Outcome):
                        self.failed = replace(message, log=self.log)
                    else:
                        self._facts = message
        except (OSError, EOFError, BrokenMessage) as error:
            self.failed = self._post_mortem(error, Running())
        return self._facts or {}

    def run(self, call: Call, tick: Tick) -> Outcome:
        """Run a call to its end, as `run_one` does."""
        if self._process.poll() is not None and (self.failed is None or self.failed.status == "crashed"):
            self.close()
            self._start()
        if not self.ready() and self.failed is not None:
            return replace(self.failed)
        self._heard = time.monotonic()
        seen, outcome, self._unsent = Running(), None, memoryview(frame(pickle.dumps(call)))
        try:
            while (outcome := self._look(seen, call)) is None:
                tick(seen)
        finally:
            if outcome is None:  # The user has interrupted it.
                self.close()
        return outcome

    def _look(self, seen: Running, call: Call) -> Outcome | None:
        """How the call ended, if it has; else how far it is, is put into `seen`."""
        try:
            for message in self._messages():
                if isinstance(message, Outcome):
                    return replace(message, parts=[*seen.parts, *message.parts])
                seen.doing, seen.phase, seen.is_closing = message.doing, message.phase, message.is_closing
                seen.parts += message.parts
        except (OSError, EOFError, BrokenMessage) as error:
            return replace(self._post_mortem(error, seen), parts=seen.parts, log=call.log)
        return None

    def _messages(self) -> Iterator[Any]:
        """What came within a fraction of a second, while the call is sent. Raises EOFError and BrokenMessage."""
        came, room, _ = select.select([self._results], [self._calls] if self._unsent else [], [], _TICK_SECONDS)
        if room:
            with contextlib.suppress(BrokenPipeError):  # Of which the next look tells.
                self._unsent = self._unsent[os.write(self._calls.fileno(), self._unsent) :]
        if came or room:
            self._heard = time.monotonic()
            yield from self._receiver.messages()
            return
        self._process.send_signal(signal.SIGCONT)  # A model may have stopped it.
        if time.monotonic() - self._heard > _SILENT_SECONDS:
            raise BrokenMessage(f"said nothing for {_SILENT_SECONDS:g} s")

    def _post_mortem(self, error: Exception, seen: Running) -> Outcome:
        """How a call ended with the process that ran it."""
        self.close()
        how = str(error) if isinstance(error, BrokenMessage) else how_ended(self._process.returncode)
        return Outcome("crashed", f"{self.python}, which runs its processes, {how}{while_in(seen.phase)}", log=self.log)

    def close(self) -> None:
        """Have it leave, and end it and all that is below it if it does not."""
        self._calls.close()
        self._results.close()
        self._process.send_signal(signal.SIGCONT)
        try:
            # One that is still loading its libraries does not look up.
            self._process.wait(0 if self._facts is None else _LEAVE_SECONDS)
        except subprocess.TimeoutExpired:
            trees.end_below(self._process.pid)
            self._process.kill()
            self._process.wait()
        end_calls_of(self._process.pid)


@contextlib.contextmanager
def other_pythons(pythons: Sequence[Path], logs: Path) -> Iterator[dict[Path, OtherPython]]:
    """Start a process in each interpreter, which end with this context."""
    with contextlib.ExitStack() as stack:
        folder, others = stack.enter_context(own_folder()), dict[Path, OtherPython]()
        for number, python in enumerate(dict.fromkeys(pythons), 1):
            others[python] = OtherPython(python, logs / f"interpreter-{number}.log", folder)
            stack.callback(others[python].close)
        yield others


def _environment(folder: Path) -> dict[str, str]:
    """The variables of a process in another interpreter, which finds this project by links in `folder`.

    Not by its own folder: where it is installed, all libraries of this interpreter lie next to it.
    """
    for name in _PACKAGES:
        with contextlib.suppress(FileExistsError):
            (folder / name).symlink_to(_ROOT / name)
    known = filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))
    path = [str(folder), *(each for each in known if Path(each) != _ROOT)]
    own = {"PYTHONPATH": os.pathsep.join(path), "PYTHONSAFEPATH": "1"}
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONHOME"}
    return {**kept, **own}
