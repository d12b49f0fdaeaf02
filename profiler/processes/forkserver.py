"""Start the forkserver, and ask the libraries that it imported for their versions and devices."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from profiler.processes.process import Call, run_one, start_forkserver


@contextlib.contextmanager
def libraries() -> Iterator[dict[str, Any]]:
    """Start the forkserver and ask the libraries, in a forked process, what they are; yields the answers."""
    with tempfile.TemporaryDirectory(prefix="profiler-", ignore_cleanup_errors=True) as folder:
        log = Path(folder) / "forkserver.log"
        # A cache of this run's own: with the user's, build_s would tell what an earlier run had compiled already.
        os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(Path(folder) / "inductor"))
        start_forkserver(log)
        outcome = run_one(Call("profiler.worker.preload:probe", None, log, timeout=300))
        if outcome.status != "ok":
            text = log.read_text()[-2000:] if log.exists() else ""
            raise RuntimeError(f"the libraries could not be loaded: {outcome.reason}\n{text}")
        yield outcome.value
