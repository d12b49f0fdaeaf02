"""End what hangs once it does, and nothing else: a limit of seconds would end what does not, on a busy machine."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest

from profiler.processes.process import Child


def end_once(hangs: Callable[[Child], bool], patch: pytest.MonkeyPatch) -> None:
    """Let a call's limit be over a few looks after it hangs, for however long that took."""
    remaining, looks = Child._remaining, Counter[Child]()

    def sooner(child: Child) -> float:
        looks[child] += hangs(child)
        return 0.0 if looks[child] > 3 else remaining(child)

    patch.setattr(Child, "_remaining", sooner)
