"""Keep processes that hold what calls share, such as a model that took seconds to make: calls are forked from them."""

from __future__ import annotations

import resource
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path

import psutil

from profiler.machine import available_memory_mib
from profiler.processes.messages import Outcome
from profiler.processes.process import ORIGINS, Call, Child, Server, run_all

_LEAST_MIB = 8192
"""Memory that stays free: below it the oldest holder is given up, and its calls make for themselves what it held."""


def origin_of(logs: Path, model: str) -> str:
    """Name the holder of a model of the run that has these logs."""
    return f"{logs}/{model}"


class Holders(AbstractContextManager["Holders", None]):
    """The holders of a run, by the name that their calls have as `origin`; they end with it."""

    def __init__(self) -> None:
        self._children: dict[str, Child] = {}
        self._made: dict[str, Outcome] = {}

    def __exit__(self, *_: object) -> None:
        self.give_up()

    def give_up(self) -> None:
        """End all of them; their calls make for themselves what they held."""
        while self._children:
            self._give_up(next(iter(self._children)))

    def forget(self) -> None:
        """End all holders, and make their models again when they are asked for."""
        self.give_up()
        self._made.clear()

    def start(
        self, calls: Mapping[str, Call], slots: int, tick: Callable[[int], None] = lambda done: None
    ) -> dict[str, Outcome]:
        """Run each call, `slots` at a time, until it serves or ends; by name what it made, now or when it ran before.

        A call serves by `process.serve`, with what it made; where it cannot, it returns that and is no origin.
        """
        names = [name for name in calls if name not in self._made]

        def serving(number: int, child: Child) -> Outcome | None:
            if child.serves is None:
                return None
            address, made = child.serves
            assert child.process.pid is not None
            ORIGINS[names[number]] = Server(child.process.pid, address)
            self._children[names[number]] = child
            while len(self._children) > 1 and _is_short():
                self._give_up(next(iter(self._children)))
            return Outcome("ok", value=made)

        outcomes = run_all([calls[name] for name in names], slots, tick, serving)
        self._made |= dict(zip(names, outcomes, strict=True))
        return {name: self._made[name] for name in calls}

    def _give_up(self, name: str) -> None:
        ORIGINS.pop(name, None)
        self._children.pop(name).kill()


def _is_short() -> bool:
    """Tell whether memory is short, or half of the files that this process may open are."""
    most, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return available_memory_mib() < _LEAST_MIB or psutil.Process().num_fds() > most / 2
