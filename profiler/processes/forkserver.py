"""Start the forkserver for a run, and ask the libraries that it imported for their versions and devices."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import time
from collections.abc import Iterable, Iterator
from multiprocessing import forkserver
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from profiler.errors import ConfigError
from profiler.processes.process import LOG, PRELOADED, Call, adopt_orphans, run_all, start_forkserver

_CACHE = "TORCHINDUCTOR_CACHE_DIR"
_PREFIX, _LOCK, _NEW_SECONDS = "profiler-scratch-", "lock", 60


@contextlib.contextmanager
def libraries(modules: Iterable[str] = ()) -> Iterator[dict[str, Any]]:
    """Start the forkserver and ask the libraries, in a forked process, what they are; yields the answers.

    The forkserver also imports `modules`, as far as that works, so that no worker has to. Raises ConfigError where the
    process that is asked ends twice, or a library cannot be loaded.
    """
    os.environ["PROFILER_PRELOAD"] = ",".join(modules)
    sweep()
    with own_folder() as folder:
        log, users = folder / "forkserver.log", os.environ.get(_CACHE)
        # A cache of this run's own: with the user's, build_s would tell what an earlier run had compiled already.
        os.environ[_CACHE] = users or str(folder / "inductor")
        try:
            start_forkserver(log)
            (outcome,) = run_all([Call("profiler.worker.preload:probe", None, log, timeout=300)], 1)
            if outcome.status != "ok":
                text = log.read_text(errors="replace")[-4000:] if log.exists() else ""
                raise ConfigError(f"the libraries could not be loaded: {outcome.reason}\n{text}".strip())
            yield outcome.value
        finally:
            for name in (LOG, *([] if users else [_CACHE])):
                os.environ.pop(name, None)


def forget_choices() -> None:
    """Forget which kernels torch.compile timed as the fastest: they were timed beside other work.

    In a cache of the user's own they stay.
    """
    cache = Path(os.environ.get(_CACHE, ""))
    if cache.parent.name.startswith(_PREFIX):
        for choice in cache.rglob("*.best_config"):
            choice.unlink(missing_ok=True)


@contextlib.contextmanager
def leaving_no_trace() -> Iterator[None]:
    """Leave a user's process as it was: without the forkserver that was started, and with its own environment.

    Raises ConfigError where the process has a forkserver already, which has not imported what this one must.
    """
    server: Any = forkserver._forkserver
    before, preload, is_running = dict(os.environ), server._preload_modules, server._forkserver_pid is not None
    if is_running and PRELOADED not in preload:
        raise ConfigError(
            "multiprocessing has started a forkserver in this process, and measuring needs its own: "
            "call measure first, or in another process"
        )
    try:
        yield
    finally:
        if not is_running:
            server._stop()
            server.set_forkserver_preload(preload)
            adopt_orphans(False)
        os.environ.clear()
        os.environ.update(before)


@contextlib.contextmanager
def own_folder() -> Iterator[Path]:
    """Make a temporary folder that is removed in the end, or else by the next run: its lock goes with this process."""
    folder = tempfile.TemporaryDirectory(prefix=_PREFIX, ignore_cleanup_errors=True)
    with folder as name, FileLock(Path(name, _LOCK)):
        yield Path(name)


def sweep() -> None:
    """Remove the temporary folders of processes that are gone."""
    for lock in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*/{_LOCK}"):
        with contextlib.suppress(OSError, Timeout):
            if time.time() - lock.stat().st_mtime > _NEW_SECONDS:  # A new one may not be locked yet.
                with FileLock(lock, timeout=0):
                    shutil.rmtree(lock.parent, ignore_errors=True)
