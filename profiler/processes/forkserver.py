"""Start a run's forkserver, and probe the versions and devices of the libraries that it imports."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import shutil
import signal
import tempfile
import time
from collections.abc import Iterable, Iterator
from multiprocessing import forkserver
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from exporters.cache import default_root, shared
from profiler.errors import ConfigError
from profiler.processes.process import LOG, PRELOADED, Call, adopt_orphans, run_all, start_forkserver

_CACHE = "TORCHINDUCTOR_CACHE_DIR"
COMPILER = "torch._inductor.compile_fx"
"""Importing it takes a second, in each compiled case or once in the forkserver."""
_PREFIX, _LOCK, _NEW_SECONDS = "profiler-scratch-", "lock", 60
_SHORT, _LONGEST = "/tmp", 60
"""Folder for sockets if the run's own has more characters: a socket's path has at most 107 bytes (man 7 unix)."""


@contextlib.contextmanager
def libraries(modules: Iterable[str] = (COMPILER,)) -> Iterator[dict[str, Any]]:
    """Start the forkserver; yield the libraries' versions and devices, probed in a forked process.

    The forkserver also imports the `modules` that it can, so that no worker has to. Raises ConfigError if a library
    cannot be loaded, or the probe crashes twice.
    """
    os.environ["PROFILER_PRELOAD"] = ",".join(sorted(modules))
    sweep()
    with own_folder() as folder, _sockets_in(folder), shared(default_root()):
        log, user_cache = folder / "forkserver.log", os.environ.get(_CACHE)
        # A fresh cache for this run: in a shared one, build_s would depend on earlier runs.
        os.environ[_CACHE] = user_cache or str(folder / "inductor")
        try:
            start_forkserver(log)
            (outcome,) = run_all([Call("profiler.worker.preload:probe", None, log, timeout=300)], 1)
            if outcome.status != "ok":
                text = log.read_text(errors="replace")[-4000:] if log.exists() else ""
                raise ConfigError(f"the libraries could not be loaded: {outcome.reason}\n{text}".strip())
            yield outcome.value
        finally:
            for name in (LOG, *([] if user_cache else [_CACHE])):
                os.environ.pop(name, None)


@contextlib.contextmanager
def _sockets_in(folder: Path) -> Iterator[None]:
    """Keep multiprocessing's sockets in the folder, or in _SHORT if their paths would be too long."""
    config: dict[str, Any] = multiprocessing.current_process()._config  # type: ignore[attr-defined]
    usual = config.pop("tempdir", None)
    with contextlib.ExitStack() as stack:
        config["tempdir"] = str(folder if len(str(folder)) <= _LONGEST else stack.enter_context(own_folder(_SHORT)))
        try:
            yield
        finally:
            config["tempdir"] = usual


def forget_choices() -> None:
    """Forget torch.compile's choices of kernels, timed beside other work; leave a user's cache alone."""
    cache = Path(os.environ.get(_CACHE, ""))
    if cache.parent.name.startswith(_PREFIX):
        for choice in cache.rglob("*.best_config"):
            choice.unlink(missing_ok=True)


@contextlib.contextmanager
def leaving_no_trace() -> Iterator[None]:
    """Restore the calling process afterwards: its environment, and its own forkserver if it has one."""
    usual: Any = forkserver._forkserver
    before, is_ours = dict(os.environ), usual._forkserver_pid is not None and PRELOADED in usual._preload_modules
    server: Any = usual if is_ours else forkserver.ForkServer()
    _use(server)
    try:
        yield
    finally:
        if not is_ours:
            with contextlib.suppress(FileNotFoundError):  # Its socket went with the run's folder.
                server._stop()
            _use(usual)
            adopt_orphans(False)
        os.environ.clear()
        os.environ.update(before)


def _use(server: Any) -> None:
    """Make multiprocessing use this forkserver: the module's functions are bound methods of a single one."""
    forkserver._forkserver = server
    for name in ("ensure_running", "get_inherited_fds", "connect_to_new_process", "set_forkserver_preload"):
        setattr(forkserver, name, getattr(server, name))


def check_process() -> None:
    """Raise ConfigError if this process cannot start others, or cannot see their end."""
    if signal.getsignal(signal.SIGCHLD) is signal.SIG_IGN:
        raise ConfigError("SIGCHLD is ignored, which hides the end of processes; call signal.signal(SIGCHLD, SIG_DFL)")
    if multiprocessing.current_process().daemon:
        raise ConfigError("a daemonic process may start no processes; measure in a process with daemon=False")
    try:
        Path.cwd()
    except FileNotFoundError:
        raise ConfigError("the current folder has been removed; change to another one") from None


@contextlib.contextmanager
def own_folder(place: str | None = None) -> Iterator[Path]:
    """Make a temporary folder. If this process cannot remove it, a later run does, once its lock is free."""
    folder = tempfile.TemporaryDirectory(prefix=_PREFIX, dir=place, ignore_cleanup_errors=True)
    with folder as name, FileLock(Path(name, _LOCK)):
        yield Path(name)


def sweep() -> None:
    """Remove the temporary folders of processes that are gone."""
    for folder in (path for place in (tempfile.gettempdir(), _SHORT) for path in Path(place).glob(f"{_PREFIX}*")):
        lock = folder / _LOCK
        with contextlib.suppress(OSError, Timeout):
            created = (lock if lock.exists() else folder).lstat().st_mtime
            if not folder.is_symlink() and time.time() - created > _NEW_SECONDS:  # A new one may not be locked yet.
                with FileLock(lock, timeout=0):
                    shutil.rmtree(folder, ignore_errors=True)
