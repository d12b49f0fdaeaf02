"""End what hangs once it does, and nothing else: a limit of seconds would end what does not, on a busy machine."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING

from profiler.processes.process import Child

if TYPE_CHECKING:
    import pytest


def end_once(hangs: Callable[[Child], bool], patch: pytest.MonkeyPatch | None = None) -> None:
    """Let a call's limit be over a few looks after it hangs, for however long that took; without `patch` for good."""
    remaining, looks = Child.remaining, Counter[Child]()

    def sooner(child: Child) -> float:
        looks[child] += hangs(child)
        return 0.0 if looks[child] > 3 else remaining(child)

    (patch.setattr if patch else setattr)(Child, "remaining", sooner)
