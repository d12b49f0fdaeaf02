"""Make each model once, which takes seconds, in a process of its own, and fork its calls from there."""

from __future__ import annotations

import resource
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path

import psutil

from profiler.machine.target import available_memory_mib
from profiler.processes.messages import Outcome
from profiler.processes.process import ORIGINS, Call, Child, Server, run_all

_FREE_MIB = 8192
"""The oldest holder ends if less memory is free; its calls then make the model themselves."""


def origin_of(logs: Path, model: str) -> str:
    """Name the holder of a model, in the run with these logs."""
    return f"{logs}/{model}"


class Holders(AbstractContextManager["Holders", None]):
    """The holders of a run, named by the `origin` of their calls; they end with the run."""

    def __init__(self) -> None:
        self._children: dict[str, Child] = {}
        self._outcomes: dict[str, Outcome] = {}

    def __exit__(self, *_: object) -> None:
        self.give_up()

    def give_up(self) -> None:
        """End all holders; their calls then make the models themselves."""
        while self._children:
            self._give_up(next(iter(self._children)))

    def forget(self) -> None:
        """End all holders; a later `start` makes their models again."""
        self.give_up()
        self._outcomes.clear()

    def start(
        self, calls: Mapping[str, Call], slots: int, tick: Callable[[int], None] = lambda done: None
    ) -> dict[str, Outcome]:
        """Run the calls, `slots` at a time, until each serves (`process.serve`) or ends; return outcomes by name.

        Calls of earlier starts are not run again, except those that their deadline stopped. A call that cannot serve
        returns its value, and nothing is forked from it.
        """
        names = [name for name in calls if name not in self._outcomes]

        def serving(number: int, child: Child) -> Outcome | None:
            if child.serves is None:
                return None
            address, value = child.serves
            assert child.process.pid is not None
            ORIGINS[names[number]] = Server(child.process.pid, address)
            self._children[names[number]] = child
            while len(self._children) > 1 and _is_short():
                self._give_up(next(iter(self._children)))
            return Outcome("ok", value=value)

        ended = run_all([calls[name] for name in names], slots, tick, serving)
        outcomes = self._outcomes | dict(zip(names, ended, strict=True))
        stopped = {name for name in names if outcomes[name].status == "timeout" and calls[name].is_late()}
        self._outcomes = {name: outcome for name, outcome in outcomes.items() if name not in stopped}
        return {name: outcomes[name] for name in calls}

    def _give_up(self, name: str) -> None:
        ORIGINS.pop(name, None)
        self._children.pop(name).kill()


def _is_short() -> bool:
    """Return whether memory is short, or half of the allowed files are open."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return available_memory_mib() < _FREE_MIB or psutil.Process().num_fds() > limit / 2
