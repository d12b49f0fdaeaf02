"""Time calls with new inputs, which no model that remembers what it returned has an answer to."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from engines.base import Array, Feedable, Movable, Session, Warning, ignore
from exporters.inputs import TensorSpec, distinct_items, item_axes, seeded_inputs
from profiler.results.result import Result
from profiler.stats.intervals import CONTRADICTION
from profiler.tables.numbers import milliseconds
from profiler.worker.clock import Clock

_FEW = 3
"""Calls with new inputs, elsewhere too, that every case makes if they are affordable."""
_ROUNDS, _SLOW = 9, 3
"""Calls of each kind, in turn, before a row gets the figure of new inputs: all of these must be slower than all but
three of the others, which is so by chance in 220 of 48,620 orders, before any margin."""
_COLD_MS = 0.02
"""What a call of microseconds takes longer after other work, whatever its inputs are."""
_DRAWN, _FIRST = 16, 1000
"""The largest batch whose items are drawn for it, from an item on that nothing else draws."""


def _is_slower(taken: Sequence[float], usual: float) -> bool:
    return min(taken) > CONTRADICTION * usual + _COLD_MS


@dataclass
class Fresh:
    """Times calls of a session with new inputs.

    `own` are the measured inputs; `taken` has the milliseconds of calls whose new inputs lay in the same memory.
    """

    session: Session
    clock: Clock
    specs: Sequence[TensorSpec]
    own: Sequence[Array]
    batch: int
    taken: list[float] = field(default_factory=list)

    def run(self) -> None:
        """Time a call after its inputs were fed."""
        self.taken.append(self._timed())

    def judge(
        self, result: Result, affords: Callable[[int], bool], affords_all: Callable[[int], bool] = lambda calls: True
    ) -> None:
        """Give the row the figure of calls with new inputs where they are slower than those with its own.

        `affords` tells whether there is time for one more call after so many, `affords_all` whether for so many in all.
        """
        session, usual = self.session, result.samples.get("host", [])
        if not isinstance(session, Feedable) or not usual:
            return
        moved, most = list[float](), float(np.quantile(usual, 0.75))
        # One slow call alone says little.
        while len(moved) < _FEW and (affords(len(moved)) or (moved and _is_slower(moved, most))):
            moved.append(self._call(len(moved), is_new=True))
        tried = [taken for taken in (self.taken, moved) if taken]
        if not any(_is_slower(taken, most) for taken in tried):
            return
        again, new = [most], max(tried, key=min)
        if affords_all(4 * _ROUNDS):
            again, new = [], []
            for number in range(_FEW, _FEW + _ROUNDS):
                for taken, is_new in ((again, False), (new, True)):
                    session.feed(self.own)
                    session.run(ignore)
                    taken.append(self._call(number, is_new))
            if not _is_slower(new, sorted(again)[-1 - _SLOW]):
                return
        figures = f"{milliseconds(float(np.median(new)))} with new inputs, {milliseconds(float(np.median(again)))} with"
        text = f"a call takes {figures} the same again: the model remembers outputs, and the figure is that of new ones"
        result.samples, result.clock = {"host": new}, "host"
        result.throughput = 1000 * self.batch / float(np.median(new))
        result.warnings.append(Warning("inconsistent", text))

    def _call(self, number: int, is_new: bool) -> float:
        """Time a call with inputs that are new in value and place, or with its own after the same work."""
        assert isinstance(self.session, Feedable)
        inputs = self._inputs(number)
        move = self.session.move if isinstance(self.session, Movable) else lambda: None
        move()
        if not is_new:
            move()
        self.session.feed(inputs if is_new else self.own)
        taken = self._timed()
        if is_new:
            move()
        return taken

    def _timed(self) -> float:
        return self.clock.time_synchronized(self.session.run, 1)["host"][0]

    def _inputs(self, number: int) -> list[Array]:
        """Return inputs of the same kind with other values: further items of a small batch, else the items elsewhere.

        A single item of a user's own integers stays as it is: others might be none. One of floats is moved.
        """
        if self.batch <= _DRAWN and distinct_items(self.specs) is None:
            return seeded_inputs(self.specs, self.batch, first=_FIRST + number * self.batch)
        new = []
        for axis, array in zip(item_axes(self.specs), self.own, strict=True):
            shift = 1 + number % (self.batch - 1) if self.batch > 1 else 0
            moved = array.copy() if axis is None else np.roll(array, shift, axis)
            new.append(np.roll(moved, number + 1, -1) if moved.ndim and array.dtype.kind == "f" else moved)
        return new
